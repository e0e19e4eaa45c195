//! Values of foreign texts: numbers, addresses, prefixes, keys.

use std::net::IpAddr;

use policy::AddressRange;
use wire::Address;
use zeroize::Zeroizing;

use crate::problem::{Mistake, Parsed, at, shown};
use crate::words::{Cursor, Word};

/// Takes the word behind another one.
pub(crate) fn value<'a>(cursor: &mut Cursor<'_, 'a>, behind: Word<'_>) -> Parsed<Word<'a>> {
    match cursor.next() {
        Some(word) => Ok(word),
        None => at(cursor, behind, Mistake::NoValue { word: shown(behind.text) }),
    }
}

/// Takes a number, decimal or `0x…`, from 0 to `highest`. What a dump with statistics writes behind
/// it in parentheses is the same number once more.
pub(crate) fn number(cursor: &mut Cursor<'_, '_>, behind: Word<'_>, highest: u64) -> Parsed<u64> {
    let Some(word) = cursor.next() else {
        return at(cursor, behind, Mistake::NoValue { word: shown(behind.text) });
    };
    match number_of(word.text).filter(|number| *number <= highest) {
        Some(number) => Ok(number),
        None => {
            let text = shown(word.text);
            at(cursor, word, Mistake::NotANumber { text, lowest: 0, highest })
        }
    }
}

pub(crate) fn number32(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<u32> {
    number(cursor, behind, u32::MAX.into()).map(|number| number as u32)
}

/// Reads a number, decimal or `0x…`, with a comma or a parenthesis behind it.
pub(crate) fn number_of(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(',');
    let text = text.split_once('(').map_or(text, |(number, _)| number);
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` would take a sign too.
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Takes an address.
pub(crate) fn address(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<IpAddr> {
    let Some(word) = cursor.next() else {
        return at(cursor, behind, Mistake::NoValue { word: shown(behind.text) });
    };
    match word.text.parse() {
        Ok(address) => Ok(address),
        Err(_) => at(cursor, word, Mistake::NotAnAddress { text: shown(word.text) }),
    }
}

/// Takes a prefix; an address alone is one. `None`: any, of an IP version that is not said.
pub(crate) fn prefix(
    cursor: &mut Cursor<'_, '_>,
    behind: Word<'_>,
) -> Parsed<Option<AddressRange>> {
    let Some(word) = cursor.next() else {
        return at(cursor, behind, Mistake::NoValue { word: shown(behind.text) });
    };
    if matches!(word.text, "any" | "all" | "default") {
        return Ok(None);
    }
    let (ip, length) = match word.text.split_once('/') {
        Some((ip, length)) => (ip, Some(length)),
        None => (word.text, None),
    };
    let range = ip.parse::<IpAddr>().ok().and_then(|ip| {
        let address = Address::from(ip);
        let bits = address.family.address_bits();
        let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let length = match length {
            None => bits,
            Some(text) => Some(text).filter(plain)?.parse().ok().filter(|len| *len <= bits)?,
        };
        Some(AddressRange::network(address, length))
    });
    match range {
        Some(range) => Ok(Some(range)),
        None => at(cursor, word, Mistake::NotAnAddress { text: shown(word.text) }),
    }
}

/// Reads hexadecimal digits, of whole bytes.
pub(crate) fn bytes_of(digits: &str) -> Option<Zeroizing<Vec<u8>>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    // Allocated at its full size: growing would leave copies behind that nobody wipes.
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    bytes
        .extend(digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
    Some(bytes)
}
