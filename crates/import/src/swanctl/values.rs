//! Values of swanctl.conf: words, numbers, times, addresses, selectors, proposals.

use std::net::IpAddr;

use ipsec::Suite;
use policy::{AddressRange, PortRange};
use wire::Address;

use crate::algorithms::{self, Cipher, Hash, Keyed};

/// Reads `yes` or `no` in each of charon's spellings.
pub(super) fn yes_or_no(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(["yes", "true", "enabled", "1"]) {
        return Some(true);
    }
    is(["no", "false", "disabled", "0"]).then_some(false)
}

/// Reads a number, decimal or `0x…`.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Reads a time: seconds, or with `s`, `m`, `h` or `d`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    with_unit(text, &[('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)])
}

/// Reads a volume: bytes, or with `k`, `m` or `g`.
pub(super) fn bytes(text: &str) -> Option<u64> {
    with_unit(text, &[('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)])
}

fn with_unit(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let last = text.chars().last()?.to_ascii_lowercase();
    let (digits, unit) = match units.iter().find(|(letter, _)| *letter == last) {
        Some((_, unit)) => (text[..text.len() - 1].trim_end(), *unit),
        None => (text, 1),
    };
    number(digits)?.checked_mul(unit)
}

/// The entries of a list with commas.
pub(super) fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// An address of `local_addrs` or `remote_addrs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Host<'a> {
    One(IpAddr),
    /// `%any`, `%any4` or `%any6`.
    Any,
    /// A prefix or a range.
    Several,
    Name(&'a str),
}

pub(super) fn host(text: &str) -> Host<'_> {
    // `%` in front: charon allows it to be another one.
    let plain = text.strip_prefix('%').unwrap_or(text);
    if let Ok(address) = plain.parse() {
        return Host::One(address);
    }
    if matches!(text, "%any" | "%any4" | "%any6" | "0.0.0.0/0" | "::/0") {
        return Host::Any;
    }
    match range(text) {
        Some(_) => Host::Several,
        None => Host::Name(text),
    }
}

/// A prefix, an address, or a range of them.
fn range(text: &str) -> Option<AddressRange> {
    if let Some((lo, hi)) = text.split_once('-') {
        let [lo, hi] = [lo, hi].map(|ip| ip.trim().parse::<IpAddr>().ok().map(Address::from));
        return AddressRange::new(lo?, hi?).ok();
    }
    let (ip, length) = match text.split_once('/') {
        Some((ip, length)) => (ip, Some(length)),
        None => (text, None),
    };
    let address = Address::from(ip.parse::<IpAddr>().ok()?);
    let bits = address.family.address_bits();
    let length = match length {
        None => bits,
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().ok().filter(|length| *length <= bits)?
        }
        Some(_) => return None,
    };
    Some(AddressRange::network(address, length))
}

/// A traffic selector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TrafficSelector {
    /// `None`: `dynamic`, the end of the tunnel.
    pub(super) addresses: Option<AddressRange>,
    pub(super) protocol: Option<u8>,
    /// Ports, or with ICMP type and code; `None`: all.
    pub(super) ports: Option<PortRange>,
}

/// The reason why a text is no selector that can be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSelector {
    /// charon would refuse it too.
    Wrong,
    /// A name of a protocol or a service that is not known here.
    Name,
    /// `opaque`.
    Opaque,
}

/// Reads `10.1.0.0/16`, `dynamic` or `10.1.0.1-10.1.0.9`, with `[protocol]` or `[protocol/port]`.
pub(super) fn selector(text: &str) -> Result<TrafficSelector, NoSelector> {
    let (addresses, upper) = match text.split_once('[') {
        Some((addresses, upper)) => {
            (addresses.trim(), Some(upper.strip_suffix(']').ok_or(NoSelector::Wrong)?))
        }
        None => (text, None),
    };
    let addresses = match addresses {
        "dynamic" => None,
        text => Some(range(text).ok_or(NoSelector::Wrong)?),
    };
    let (name, port) = match upper.map(|upper| upper.split_once('/').unwrap_or((upper, ""))) {
        Some((name, port)) => (name.trim(), port.trim()),
        None => ("", ""),
    };
    let protocol = match name {
        "" | "any" | "0" => None,
        name => Some(protocol(name)?),
    };
    let ports = match port {
        "" | "any" => None,
        "opaque" => return Err(NoSelector::Opaque),
        port => Some(ports(port)?),
    };
    // All ports are no condition: packets without ports match too.
    let ports = ports.filter(|ports| (ports.lo, ports.hi) != (0, u16::MAX));
    Ok(TrafficSelector { addresses, protocol, ports })
}

fn protocol(name: &str) -> Result<u8, NoSelector> {
    const OTHERS: [(&str, u8); 8] = [
        ("ipv6-icmp", 58),
        ("igmp", 2),
        ("ipencap", 4),
        ("ipv6", 41),
        ("ah", 51),
        ("ospf", 89),
        ("pim", 103),
        ("l2tp", 115),
    ];
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        let number = number(name).and_then(|number| u8::try_from(number).ok());
        return number.ok_or(NoSelector::Wrong);
    }
    if let Some((_, number)) = OTHERS.iter().find(|(other, _)| *other == name) {
        return Ok(*number);
    }
    policy::selector::parse_protocol(name).ok().flatten().ok_or(NoSelector::Name)
}

fn ports(text: &str) -> Result<PortRange, NoSelector> {
    // Services that stand in such selectors, as /etc/services names them.
    const SERVICES: [(&str, u16); 12] = [
        ("ftp", 21),
        ("ssh", 22),
        ("telnet", 23),
        ("smtp", 25),
        ("domain", 53),
        ("http", 80),
        ("ntp", 123),
        ("snmp", 161),
        ("bgp", 179),
        ("https", 443),
        ("syslog", 514),
        ("l2f", 1701),
    ];
    if let Some((_, port)) = SERVICES.iter().find(|(name, _)| *name == text) {
        return PortRange::new(*port, *port).map_err(|_| NoSelector::Wrong);
    }
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(NoSelector::Name);
    }
    let (lo, hi) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| number(text.trim()).and_then(|port| u16::try_from(port).ok());
    let (lo, hi) = port(lo).zip(port(hi)).ok_or(NoSelector::Wrong)?;
    PortRange::new(lo, hi).map_err(|_| NoSelector::Wrong)
}

/// Proposals, as far as they are suites of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Proposed {
    /// The first suite that Lockgate has, and the words that it is of.
    pub(super) first: Option<(Suite, String)>,
    /// The number of combinations of algorithms, those that Lockgate lacks included.
    pub(super) combinations: usize,
}

/// Reads proposals: `aes256gcm16-ecp256-esn,aes256-sha256`.
///
/// # Errors
/// A word that is no algorithm of charon's.
pub(super) fn proposals(text: &str) -> Result<Proposed, &str> {
    let mut found = Proposed { first: None, combinations: 0 };
    for proposal in entries(text) {
        if proposal == "default" {
            found.combinations += 3;
            let first = || (Suite::Aes128Gcm, "default".to_owned());
            found.first = found.first.or_else(|| Some(first()));
            continue;
        }
        let (mut ciphers, mut hashes) = (Vec::new(), Vec::new());
        for word in proposal.split('-').map(str::trim) {
            match algorithm(word).ok_or(word)? {
                Algorithm::Cipher(of, bits) => ciphers.push((word, of, bits)),
                Algorithm::Integrity(hash) => hashes.push((word, hash)),
                Algorithm::OfIke => {}
            }
        }
        for (word, cipher, bits) in ciphers {
            let Some(cipher) = cipher else {
                found.combinations += 1;
                continue;
            };
            if matches!(cipher, Cipher::Gcm | Cipher::ChaCha20Poly1305) {
                found.combinations += 1;
                found.offer(suite(cipher, bits, None), || word.to_owned());
                continue;
            }
            for (hash_word, hash) in &hashes {
                found.combinations += 1;
                let suite = hash.and_then(|hash| suite(cipher, bits, Some(hash)));
                found.offer(suite, || format!("{word}-{hash_word}"));
            }
        }
    }
    Ok(found)
}

impl Proposed {
    fn offer(&mut self, suite: Option<Suite>, words: impl FnOnce() -> String) {
        if let (None, Some(suite)) = (&self.first, suite) {
            self.first = Some((suite, words()));
        }
    }
}

fn suite(cipher: Cipher, bits: usize, hash: Option<Hash>) -> Option<Suite> {
    let salt = if matches!(cipher, Cipher::Gcm | Cipher::ChaCha20Poly1305) { 4 } else { 0 };
    let key = vec![0; bits / 8 + salt];
    let keyed = Keyed { cipher, key: Some(&key) };
    match hash {
        Some(hash) => algorithms::with_hmac(&keyed, hash),
        None => algorithms::aead(&keyed),
    }
    .ok()
    .flatten()
}

/// A word of a proposal.
enum Algorithm {
    /// A cipher with the bits of its key; `None`: one that Lockgate does not have.
    Cipher(Option<Cipher>, usize),
    /// A hash function; `None`: likewise.
    Integrity(Option<Hash>),
    /// A key exchange, or sequence numbers: charon negotiates them.
    OfIke,
}

/// Finds a word of a proposal among those of charon.
fn algorithm(word: &str) -> Option<Algorithm> {
    use Algorithm::{Cipher as Encryption, Integrity, OfIke};
    const OTHER_CIPHERS: [&str; 7] =
        ["des", "3des", "blowfish", "camellia", "cast", "serpent", "twofish"];
    const OTHER_HASHES: [&str; 10] = [
        "sha",
        "sha1",
        "sha1_160",
        "sha256_96",
        "sha2_256_96",
        "md5",
        "md5_128",
        "aesxcbc",
        "camelliaxcbc",
        "aescmac",
    ];
    const EXCHANGES: [&str; 13] = [
        "modp",
        "ecp",
        "curve25519",
        "x25519",
        "curve448",
        "x448",
        "ntru",
        "newhope",
        "mlkem",
        "ke1_",
        "ke2_",
        "ke3_",
        "prf",
    ];
    let found = match word {
        "null" => Encryption(Some(Cipher::Null), 0),
        "aes" => Encryption(Some(Cipher::Cbc), 128),
        "chacha20poly1305" | "chacha20poly1305compat" => {
            Encryption(Some(Cipher::ChaCha20Poly1305), 256)
        }
        "sha256" | "sha2_256" => Integrity(Some(Hash::Sha256)),
        "sha384" | "sha2_384" => Integrity(Some(Hash::Sha384)),
        "sha512" | "sha2_512" => Integrity(Some(Hash::Sha512)),
        "esn" | "noesn" | "none" => OfIke,
        word if OTHER_HASHES.contains(&word) => Integrity(None),
        word => {
            let has = |list: &[&str]| list.iter().any(|one| word.starts_with(one));
            match aes(word) {
                Some((cipher, bits)) => Encryption(cipher, bits),
                None if has(&OTHER_CIPHERS) => Encryption(None, 0),
                None if has(&EXCHANGES) => OfIke,
                None => return None,
            }
        }
    };
    Some(found)
}

/// An AES of any mode, with the bits of its key.
fn aes(word: &str) -> Option<(Option<Cipher>, usize)> {
    let rest = word.strip_prefix("aes")?;
    let sizes = [("128", 128), ("192", 192), ("256", 256)];
    let (mode, bits) =
        sizes.into_iter().find_map(|(text, bits)| Some((rest.strip_prefix(text)?, bits)))?;
    let cipher = match mode {
        "" => Some(Cipher::Cbc),
        "gcm" | "gcm16" | "gcm128" => Some(Cipher::Gcm),
        "gcm8" | "gcm64" | "gcm12" | "gcm96" | "ctr" | "gmac" => None,
        mode if mode.starts_with("ccm") => None,
        _ => return None,
    };
    Some((cipher, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_volumes_have_units() {
        assert_eq!(
            ["3600", "60m", "1 h", "1D", "0"].map(seconds),
            [Some(3600), Some(3600), Some(3600), Some(86_400), Some(0)]
        );
        assert_eq!(
            ["10k", "1G", "0x10", "", "m", "1x"].map(bytes),
            [Some(10 << 10), Some(1 << 30), Some(16), None, None, None]
        );
        assert_eq!(seconds("18446744073709551615d"), None);
    }

    #[test]
    fn selectors_have_addresses_protocols_and_ports() {
        let of = |text| {
            let one = selector(text)?;
            let addresses = one.addresses.map_or("dynamic".into(), |range| range.to_string());
            let ports = one.ports.map_or(String::new(), |ports| ports.to_string());
            Ok((addresses, one.protocol, ports))
        };
        let is = |text: &str, protocol, ports: &str| Ok((text.to_owned(), protocol, ports.into()));
        assert_eq!(of("10.1.2.3/16"), is("10.1.0.0/16", None, ""));
        assert_eq!(of("dynamic[tcp/80]"), is("dynamic", Some(6), "80"));
        assert_eq!(of("fd00::/8[udp/1000-2000]"), is("fd00::/8", Some(17), "1000-2000"));
        assert_eq!(of("10.0.0.1-10.0.0.9[/53]"), is("10.0.0.1-10.0.0.9", None, "53"));
        assert_eq!(of("10.0.0.1[tcp/http]"), is("10.0.0.1", Some(6), "80"));
        assert_eq!(of("10.0.0.1[17/0-65535]"), is("10.0.0.1", Some(17), ""));
        assert_eq!(of("10.0.0.1[tcp/opaque]"), Err(NoSelector::Opaque));
        assert_eq!(of("10.0.0.1[tcp/nfs]"), Err(NoSelector::Name));
        for text in ["10.0.0.0/33", "", "x", "10.0.0.1[tcp", "::1[6/65536]", "10.0.0.1[6/9-1]"] {
            assert_eq!(of(text), Err(NoSelector::Wrong), "{text}");
        }
    }

    #[test]
    fn the_first_suite_of_a_proposal_is_taken() {
        let of =
            |text| proposals(text).map(|all| (all.first.map(|(suite, _)| suite), all.combinations));
        assert_eq!(of("aes256gcm16-ecp256-esn"), Ok((Some(Suite::Aes256Gcm), 1)));
        assert_eq!(of("aes192-sha256,aes256-sha1-sha512"), Ok((Some(Suite::Aes256CbcSha512), 3)));
        assert_eq!(of("chacha20poly1305"), Ok((Some(Suite::ChaCha20Poly1305), 1)));
        assert_eq!(of("null-sha256"), Ok((Some(Suite::NullSha256), 1)));
        assert_eq!(of("3des-sha1-modp1024"), Ok((None, 1)));
        assert_eq!(of("aes128gcm8"), Ok((None, 1)));
        assert_eq!(of("default"), Ok((Some(Suite::Aes128Gcm), 3)));
        assert_eq!(of("aes256gmc16"), Err("aes256gmc16"));
    }

    #[test]
    fn hosts_are_addresses_names_or_many() {
        let one = "192.0.2.1".parse().unwrap();
        assert_eq!(host("192.0.2.1"), Host::One(one));
        assert_eq!(host("%any"), Host::Any);
        assert_eq!(host("192.0.2.0/24"), Host::Several);
        assert_eq!(host("vpn.example.com"), Host::Name("vpn.example.com"));
    }
}
