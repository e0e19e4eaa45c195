//! Addresses as text, as the importable tables hold them: one form for each address.

use std::fmt::Write;
use std::net::IpAddr;

/// Writes an IP address in the form that `std` prints: RFC 5952, lower case.
pub(super) fn write_ip(text: &mut String, address: IpAddr) {
    text.clear();
    match address {
        // By hand: of a million endpoints most addresses are IPv4, four numbers each.
        IpAddr::V4(address) => {
            for (i, byte) in address.octets().into_iter().enumerate() {
                if i > 0 {
                    text.push('.');
                }
                if byte >= 100 {
                    text.push((b'0' + byte / 100) as char);
                }
                if byte >= 10 {
                    text.push((b'0' + byte / 10 % 10) as char);
                }
                text.push((b'0' + byte % 10) as char);
            }
        }
        // Writing to a `String` does not fail.
        IpAddr::V6(address) => {
            let _ = write!(text, "{address}");
        }
    }
}

/// Writes a MAC address as `02:00:00:0a:0b:0c`.
pub(super) fn write_mac(text: &mut String, mac: [u8; 6]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.clear();
    for (i, byte) in mac.into_iter().enumerate() {
        if i > 0 {
            text.push(':');
        }
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

/// Reads an address that [`write_ip`] wrote; `None` for any other form, else one key could have two
/// rows.
pub(super) fn read_ip(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address: IpAddr = text.parse().ok()?;
    // IPv4 addresses parse in one form only.
    (address.is_ipv4() || address.to_string() == text).then_some(address)
}

/// Reads an address that [`write_mac`] wrote; `None` for any other form.
pub(super) fn read_mac(text: &[u8]) -> Option<[u8; 6]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 17 {
        return None;
    }
    let mut mac = [0; 6];
    for (i, group) in text.chunks(3).enumerate() {
        let [high, low, rest @ ..] = group else { return None };
        if !matches!(rest, [] | [b':']) {
            return None;
        }
        mac[i] = digit(*high)? << 4 | digit(*low)?;
    }
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn addresses_survive_their_text(
            v4: [u8; 4], v6: [u8; 16], zeros in 0..16_usize, mac: [u8; 6],
        ) {
            let mut sparse = v6;
            sparse[zeros..].fill(0);
            let mut mapped = [0; 16];
            mapped[10..12].fill(255);
            mapped[12..].copy_from_slice(&v4);
            let mut text = String::new();
            for address in [v4.into(), IpAddr::from(v6), sparse.into(), mapped.into()] {
                write_ip(&mut text, address);
                prop_assert_eq!(&text, &address.to_string());
                prop_assert_eq!(read_ip(text.as_bytes()), Some(address));
            }
            write_mac(&mut text, mac);
            prop_assert_eq!(read_mac(text.as_bytes()), Some(mac));
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in
            ["", "10.0.0.01", "10.0.0", "::0", "2001:DB8::", "10.0.0.1 ", "1:2:3:4:5:6:7:8:"]
        {
            assert_eq!(read_ip(text.as_bytes()), None, "{text}");
        }
        for text in
            ["", "02:00:00:00:00", "02-00-00-00-00-00", "02:00:00:00:00:0A", "02:00:00:00:00:00:"]
        {
            assert_eq!(read_mac(text.as_bytes()), None, "{text}");
        }
    }
}
