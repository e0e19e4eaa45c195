//! Values written as text: names, addresses, MAC addresses, sizes, services.

use std::net::IpAddr;

use dataplane::{HostService, Prefix};
use policy::{AddressRange, PortRange};
use wire::flow::protocol;
use wire::{Address, Family};

use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::interface_address::InterfaceAddress;
use crate::raw::{Number, Text};
use crate::source::Spanned;

/// Returns the value of one of several words; the default if nothing is written.
pub(crate) fn word<T: Copy>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Text,
    default: T,
    choices: &[(&'static str, T)],
) -> Option<T> {
    let Some(written) = written else { return Some(default) };
    let found = choices.iter().find(|(word, _)| word == written.get_ref());
    if found.is_none() {
        let word = written.get_ref().clone();
        let allowed: Vec<&'static str> = choices.iter().map(|(word, _)| *word).collect();
        let nearest = nearest(&word, allowed.iter().copied());
        problems
            .error(&written.span(), DiagnosticKind::UnknownWord { key, word, nearest, allowed });
    }
    found.map(|(_, value)| *value)
}

/// A number within bounds; the default if nothing is written.
pub(crate) fn bounded(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Number,
    default: u32,
    (lowest, highest): (u32, u32),
) -> Option<u32> {
    let Some(written) = written else { return Some(default) };
    let value = *written.get_ref();
    if (i128::from(lowest)..=i128::from(highest)).contains(&value) {
        return Some(value as u32);
    }
    problems.error(&written.span(), DiagnosticKind::OutOfRange { key, value, lowest, highest });
    None
}

/// Reads a name of a port, peer, policy or node, which appears in tables, file names and commands.
pub(crate) fn name(problems: &mut Diagnostics<'_>, written: &Spanned<String>) -> Option<String> {
    let text = written.get_ref();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=64).contains(&text.len()) && text.chars().all(allowed) && !text.starts_with(['.', '-'])
    {
        return Some(text.clone());
    }
    problems.error(&written.span(), DiagnosticKind::BadName { name: text.clone() });
    None
}

/// A single address of either family.
pub(crate) fn address(problems: &mut Diagnostics<'_>, written: &Spanned<String>) -> Option<IpAddr> {
    let parsed = written.get_ref().parse().ok();
    if parsed.is_none() {
        problems.error(
            &written.span(),
            DiagnosticKind::NotAnAddress { text: written.get_ref().clone() },
        );
    }
    parsed
}

/// Returns the reason why an address cannot be that of one interface, if it cannot.
pub fn unusable(ip: IpAddr) -> Option<&'static str> {
    match ip {
        _ if ip.is_unspecified() => Some("the unspecified address"),
        _ if ip.is_loopback() => Some("a loopback address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("the broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("of 0.0.0.0/8, which is no network"),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("of 240.0.0.0/4, which is reserved"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("an IPv4 address in IPv6 dress"),
        _ => None,
    }
}

/// An address with the length of its network's prefix: `10.1.0.1/24`.
pub(crate) fn interface(
    problems: &mut Diagnostics<'_>,
    written: &Spanned<String>,
) -> Option<InterfaceAddress> {
    let text = written.get_ref();
    let parsed = text.split_once('/').and_then(|(ip, length)| {
        let ip: IpAddr = ip.parse().ok()?;
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        let length: u8 = digits.then(|| length.parse().ok()).flatten()?;
        let address = Address::from(ip);
        let fits = (1..=address.family.address_bits()).contains(&length);
        fits.then_some((ip, InterfaceAddress { address, length }))
    });
    let Some((ip, interface)) = parsed else {
        problems.error(&written.span(), DiagnosticKind::NotAnInterface { text: text.clone() });
        return None;
    };
    let network = interface.network();
    let is_host = interface.address.family == Family::V6
        || interface.length >= 31
        || ![network.first(), network.last()].contains(&interface.address);
    let why = unusable(ip).or((!is_host).then_some("the first or last address of its network"));
    if let Some(why) = why {
        problems.error(&written.span(), DiagnosticKind::UnusableAddress { address: ip, why });
        return None;
    }
    Some(interface)
}

/// Reads the destinations of a route: a prefix, or `default`, which is all of IPv4.
pub(crate) fn prefix(problems: &mut Diagnostics<'_>, written: &Spanned<String>) -> Option<Prefix> {
    let text = match written.get_ref().as_str() {
        "default" => "0.0.0.0/0",
        text => text,
    };
    let range: AddressRange = match text.parse() {
        Ok(range) => range,
        Err(error) => {
            problems.error(&written.span(), DiagnosticKind::Selector(error.into()));
            return None;
        }
    };
    let prefix = range.prefix_length().map(|length| Prefix { address: range.first(), length });
    if prefix.is_none() {
        problems
            .error(&written.span(), DiagnosticKind::NotAPrefix { text: written.get_ref().clone() });
    }
    prefix
}

/// A MAC address, `02:00:00:00:00:01`.
pub(crate) fn mac(problems: &mut Diagnostics<'_>, written: &Spanned<String>) -> Option<[u8; 6]> {
    let text = written.get_ref();
    let parts: Vec<&str> = text.split(':').collect();
    let byte = |part: &&str| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
    let mac: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
    let mistake = match mac {
        None => DiagnosticKind::NotALinkAddress { text: text.clone() },
        Some([0, 0, 0, 0, 0, 0]) => DiagnosticKind::ZeroLinkAddress { text: text.clone() },
        Some(mac) if mac[0] & 1 == 1 => DiagnosticKind::GroupLinkAddress { text: text.clone() },
        Some(_) => return mac,
    };
    problems.error(&written.span(), mistake);
    None
}

/// Ports that people write without a protocol, which their number then is: the service and its
/// transport. Protocols that hosts do speak (2, 4, 41, 46, 47, 50, 51, 88, 89, 103, 112, 115) are
/// not among them.
const WELL_KNOWN: [(u16, &str, &str); 23] = [
    (20, "FTP data", "tcp"),
    (21, "FTP", "tcp"),
    (22, "SSH", "tcp"),
    (23, "Telnet", "tcp"),
    (25, "SMTP", "tcp"),
    (49, "TACACS", "tcp"),
    (53, "DNS", "udp"),
    (67, "DHCP", "udp"),
    (68, "DHCP", "udp"),
    (69, "TFTP", "udp"),
    (80, "HTTP", "tcp"),
    (110, "POP3", "tcp"),
    (123, "NTP", "udp"),
    (143, "IMAP", "tcp"),
    (161, "SNMP", "udp"),
    (162, "SNMP traps", "udp"),
    (179, "BGP", "tcp"),
    (443, "HTTPS", "tcp"),
    (500, "IKE", "udp"),
    (514, "syslog", "udp"),
    (1194, "OpenVPN", "udp"),
    (3784, "BFD", "udp"),
    (4500, "IKE through NAT", "udp"),
];

/// The mistake of who wrote a port and nothing else.
fn bare_port(text: &str) -> Option<DiagnosticKind> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number: u16 = text.parse().ok().filter(|_| digits)?;
    let known = WELL_KNOWN.iter().find(|(port, ..)| *port == number);
    let service = known.map(|&(_, name, transport)| (name, transport));
    let is_meant = number < 256 && service.is_none();
    (!is_meant).then_some(DiagnosticKind::BarePort { number, service })
}

/// Traffic to the gateway itself: `udp/500`, `tcp/8000-8080`, `icmp`, `89`.
pub(crate) fn service(
    problems: &mut Diagnostics<'_>,
    written: &Spanned<String>,
) -> Option<HostService> {
    let text = written.get_ref();
    if let Some(mistake) = bare_port(text) {
        problems.error(&written.span(), mistake);
        return None;
    }
    let (name, ports) = match text.split_once('/') {
        Some((name, ports)) => (name, Some(ports)),
        None => (text.as_str(), None),
    };
    let parsed = policy::selector::parse_protocol(name);
    let ports = ports.map(str::parse::<PortRange>).transpose();
    let mistake = match (parsed, ports) {
        (Err(_), _) => {
            let offered = policy::selector::PROTOCOL_NAMES.iter();
            let offered = offered.filter(|(_, number)| *number != protocol::ESP);
            let nearest = nearest(name, offered.map(|(name, _)| *name));
            DiagnosticKind::UnknownService { name: name.to_owned(), nearest }
        }
        (_, Err(error)) => DiagnosticKind::Selector(error.into()),
        (Ok(None), _) => DiagnosticKind::ServiceAny,
        (Ok(Some(protocol::ESP)), _) => DiagnosticKind::ServiceEsp,
        (Ok(Some(number)), Ok(Some(_))) if !protocol::has_ports(number) => {
            DiagnosticKind::NoPorts { key: "allow_host", protocol: number }
        }
        (Ok(Some(protocol)), Ok(ports)) => return Some(HostService { protocol, ports }),
    };
    problems.error(&written.span(), mistake);
    None
}

/// A count with an optional binary suffix: `1000`, `64K`, `1M` = 1,048,576 (FC-10).
pub(crate) fn count(text: &str) -> Option<u64> {
    large_count(text).filter(|_| !text.ends_with(['G', 'g', 'T', 't']))
}

/// A count with an optional binary suffix K, M, G or T.
pub(crate) fn large_count(text: &str) -> Option<u64> {
    let unit = match text.bytes().last().map(|last| last.to_ascii_uppercase()) {
        Some(b'K') => 1 << 10,
        Some(b'M') => 1 << 20,
        Some(b'G') => 1 << 30,
        Some(b'T') => 1 << 40,
        _ => 1,
    };
    let digits = if unit == 1 { text } else { &text[..text.len() - 1] };
    let digits_only = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits_only.then(|| digits.parse::<u64>().ok()?.checked_mul(unit)).flatten()
}

/// Returns whether an address is link-local, valid on one link only (RFC 3927, RFC 4291 §2.5.6).
pub fn is_link_local(address: Address) -> bool {
    match IpAddr::from(address) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
