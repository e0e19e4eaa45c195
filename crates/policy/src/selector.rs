//! Selectors: which flows a policy matches (RFC 4301 §4.4.1.1), and how they are written.
//!
//! | what | forms |
//! |---|---|
//! | addresses | `10.0.0.0/8` · `10.2.0.0-10.2.255.255` · `192.0.2.1` · the same in IPv6 |
//! | ports | `443` · `8000-8999` |
//! | ICMP messages, as type/code | `8` (any code) · `3/4` · `3/0-3/15` · `3-5` (any code) |
//! | protocol | `any` · a name of [`PROTOCOL_NAMES`] · 0 … 255 |
//!
//! `Display` writes the shortest form, which parses back to the same value.

mod relation;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use wire::{Address, Family, Flow};

/// Protocols that have a name here. All others are written as numbers.
pub const PROTOCOL_NAMES: [(&str, u8); 9] = [
    ("icmp", wire::flow::protocol::ICMP),
    ("tcp", wire::flow::protocol::TCP),
    ("udp", wire::flow::protocol::UDP),
    ("dccp", wire::flow::protocol::DCCP),
    ("gre", 47),
    ("esp", wire::flow::protocol::ESP),
    ("icmpv6", wire::flow::protocol::ICMPV6),
    ("sctp", wire::flow::protocol::SCTP),
    ("udplite", wire::flow::protocol::UDP_LITE),
];

/// Reason why a text is no selector. The author of the text is at fault; each message says what to
/// write.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum SelectorError {
    /// Neither an address nor a prefix nor a range.
    #[error(
        "\"{text}\" is not an address: write a prefix (10.0.0.0/8), a range (10.2.0.0-10.2.0.9) \
         or a single address"
    )]
    NotAnAddress {
        /// The text as written.
        text: String,
    },
    /// The text behind `/` is no number, or more bits than the address has.
    #[error("\"{text}\": the prefix length must be a number from 0 to {bits}")]
    PrefixLength {
        /// The text as written.
        text: String,
        /// Bits of the address.
        bits: u8,
    },
    /// A prefix with bits set behind its length.
    #[error("\"{text}\" has bits set behind the prefix length: the network is {network}")]
    HostBits {
        /// The text as written.
        text: String,
        /// The network that the address lies in.
        network: AddressRange,
    },
    /// The ends of a range are of two families.
    #[error("the range {lo}-{hi} mixes IPv4 and IPv6: write one range for each")]
    MixedFamilies {
        /// First address as written.
        lo: Address,
        /// Second address as written.
        hi: Address,
    },
    /// The first address is above the second.
    #[error("the range {lo}-{hi} is inverted: write {hi}-{lo}")]
    InvertedAddresses {
        /// First address as written.
        lo: Address,
        /// Second address as written.
        hi: Address,
    },
    /// Neither a port nor a range of ports.
    #[error("\"{text}\" is not a port: write a number (443) or a range (8000-8999)")]
    NotAPort {
        /// The text as written.
        text: String,
    },
    /// A port above 65535.
    #[error("port {text} is too high: ports go from 0 to 65535")]
    PortTooHigh {
        /// The text as written; it can be of any length.
        text: String,
    },
    /// The first port is above the second.
    #[error("the port range {lo}-{hi} is inverted: write {hi}-{lo}")]
    InvertedPorts {
        /// First port as written.
        lo: u16,
        /// Second port as written.
        hi: u16,
    },
    /// Not an ICMP type, type and code, or range of these.
    #[error(
        "\"{text}\" is not an ICMP message: write a type (8), a type and code (3/4) or a range \
         (3/0-3/15), each number from 0 to 255"
    )]
    NotAnIcmpMessage {
        /// The text as written.
        text: String,
    },
    /// The first ICMP message is above the second.
    #[error("the ICMP range \"{text}\" is inverted: the lower type and code come first")]
    InvertedIcmp {
        /// The text as written.
        text: String,
    },
    /// No protocol of that name or number.
    #[error(
        "unknown protocol \"{text}\": write any, {}, or a number from 0 to 255",
        offered_protocols()
    )]
    UnknownProtocol {
        /// The text as written.
        text: String,
    },
}

/// Addresses `lo ..= hi` of one family, as numbers in host order. Never inverted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressRange {
    /// IP version.
    pub family: Family,
    /// Lowest address.
    pub lo: u128,
    /// Highest address.
    pub hi: u128,
}

impl AddressRange {
    /// All addresses of the family.
    pub const fn any(family: Family) -> Self {
        AddressRange { family, lo: 0, hi: family.highest_address() }
    }

    /// The addresses from `lo` to `hi`, both included.
    ///
    /// # Errors
    /// [`SelectorError::MixedFamilies`], [`SelectorError::InvertedAddresses`].
    pub fn new(lo: Address, hi: Address) -> Result<Self, SelectorError> {
        if lo.family != hi.family {
            return Err(SelectorError::MixedFamilies { lo, hi });
        }
        if lo.value > hi.value {
            return Err(SelectorError::InvertedAddresses { lo, hi });
        }
        Ok(AddressRange { family: lo.family, lo: lo.value, hi: hi.value })
    }

    /// The prefix of `length` bits that `address` lies in; lengths beyond the address's width
    /// count as the full width.
    pub fn network(address: Address, length: u8) -> Self {
        let family = address.family;
        let host_bits = u32::from(family.address_bits().saturating_sub(length));
        // A shift by all 128 bits is none in Rust: IPv6 prefixes of length 0.
        let host = u128::MAX.checked_shl(host_bits).map_or(u128::MAX, |mask| !mask);
        AddressRange { family, lo: address.value & !host, hi: address.value | host }
    }

    /// Lowest address.
    pub const fn first(&self) -> Address {
        Address { family: self.family, value: self.lo }
    }

    /// Highest address.
    pub const fn last(&self) -> Address {
        Address { family: self.family, value: self.hi }
    }

    /// Returns whether an address lies in the range.
    pub fn contains(&self, address: Address) -> bool {
        self.family == address.family && (self.lo..=self.hi).contains(&address.value)
    }

    /// Returns whether all of another range lies in this one.
    pub fn contains_range(&self, other: &AddressRange) -> bool {
        self.contains(other.first()) && self.contains(other.last())
    }

    /// Length of the prefix that the range is, if it is one.
    pub fn prefix_length(&self) -> Option<u8> {
        let differing = self.lo ^ self.hi;
        // The differing bits are a run of ones from bit 0, and all of them 0 in `lo`.
        let aligned = differing & differing.wrapping_add(1) == 0 && self.lo & differing == 0;
        aligned.then(|| self.family.address_bits() - differing.count_ones() as u8)
    }
}

impl From<IpAddr> for AddressRange {
    fn from(ip: IpAddr) -> Self {
        Address::from(ip).into()
    }
}

impl From<Address> for AddressRange {
    fn from(Address { family, value }: Address) -> Self {
        AddressRange { family, lo: value, hi: value }
    }
}

impl FromStr for AddressRange {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if let Some((lo, hi)) = text.split_once('-') {
            return AddressRange::new(parse_address(lo)?, parse_address(hi)?);
        }
        let Some((address, length)) = text.split_once('/') else {
            let address = parse_address(text)?;
            return AddressRange::new(address, address);
        };
        let address = parse_address(address)?;
        let bits = address.family.address_bits();
        let length = number(length)
            .and_then(|length| u8::try_from(length).ok())
            .filter(|&length| length <= bits)
            .ok_or_else(|| SelectorError::PrefixLength { text: text.into(), bits })?;
        let network = AddressRange::network(address, length);
        if network.lo != address.value {
            return Err(SelectorError::HostBits { text: text.into(), network });
        }
        Ok(network)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lo == self.hi {
            return write!(f, "{}", self.first());
        }
        match self.prefix_length() {
            Some(length) => write!(f, "{}/{length}", self.first()),
            None => write!(f, "{}-{}", self.first(), self.last()),
        }
    }
}

/// Parses an entry of an address list: what [`AddressRange`] parses, or `any`, which is one range
/// of each family.
///
/// # Errors
/// Those of [`AddressRange::from_str`].
pub fn parse_addresses(text: &str) -> Result<Vec<AddressRange>, SelectorError> {
    match text {
        "any" => Ok(vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)]),
        _ => Ok(vec![text.parse()?]),
    }
}

/// Ports `lo ..= hi`. Never inverted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    /// Lowest port.
    pub lo: u16,
    /// Highest port.
    pub hi: u16,
}

impl PortRange {
    /// Every port.
    pub const ANY: PortRange = PortRange { lo: 0, hi: u16::MAX };

    /// The ports from `lo` to `hi`, both included.
    ///
    /// # Errors
    /// [`SelectorError::InvertedPorts`].
    pub fn new(lo: u16, hi: u16) -> Result<Self, SelectorError> {
        if lo > hi {
            return Err(SelectorError::InvertedPorts { lo, hi });
        }
        Ok(PortRange { lo, hi })
    }
}

impl FromStr for PortRange {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let (lo, hi) = text.split_once('-').unwrap_or((text, text));
        PortRange::new(parse_port(lo, text)?, parse_port(hi, text)?)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lo == self.hi {
            return write!(f, "{}", self.lo);
        }
        write!(f, "{}-{}", self.lo, self.hi)
    }
}

/// ICMP messages `lo ..= hi`, each number `type << 8 | code`. Never inverted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IcmpRange {
    /// Lowest type and code.
    pub lo: u16,
    /// Highest type and code.
    pub hi: u16,
}

impl IcmpRange {
    /// Every message.
    pub const ANY: IcmpRange = IcmpRange { lo: 0, hi: u16::MAX };

    /// Every code of one type.
    pub const fn of_type(kind: u8) -> Self {
        IcmpRange { lo: u16::from_be_bytes([kind, 0]), hi: u16::from_be_bytes([kind, u8::MAX]) }
    }

    /// Returns the range of one ICMP message.
    pub const fn message(kind: u8, code: u8) -> Self {
        let number = u16::from_be_bytes([kind, code]);
        IcmpRange { lo: number, hi: number }
    }
}

impl FromStr for IcmpRange {
    type Err = SelectorError;

    /// An end of a range without a code stands for the type's lowest or highest code.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let (lo, hi) = text.split_once('-').unwrap_or((text, text));
        let (lo, hi) = (parse_icmp(lo, text)?.lo, parse_icmp(hi, text)?.hi);
        if lo > hi {
            return Err(SelectorError::InvertedIcmp { text: text.into() });
        }
        Ok(IcmpRange { lo, hi })
    }
}

impl fmt::Display for IcmpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([kind, code], [last_kind, last_code]) = (self.lo.to_be_bytes(), self.hi.to_be_bytes());
        if self.lo == self.hi {
            write!(f, "{kind}/{code}")
        } else if (code, last_code) != (0, u8::MAX) {
            write!(f, "{kind}/{code}-{last_kind}/{last_code}")
        } else if kind == last_kind {
            write!(f, "{kind}")
        } else {
            write!(f, "{kind}-{last_kind}")
        }
    }
}

/// The condition of a selector on the upper-layer header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum UpperSelector {
    /// Nothing: matches packets with ports, without, and fragments.
    Any,
    /// Ports. Matches only packets that have ports; a list that is empty means any port. Both
    /// empty name no port and mean [`UpperSelector::Any`]; 0-65535 does name ports.
    Ports {
        /// Ports at the local end.
        local: Vec<PortRange>,
        /// Ports at the remote end.
        remote: Vec<PortRange>,
    },
    /// ICMP type and code. Matches only ICMP packets: protocol 1 in IPv4, 58 in IPv6. A list that
    /// is empty means any message.
    Icmp(Vec<IcmpRange>),
    /// TCP segments of a kind. Matches only TCP, and no later fragment; a list of ports that is
    /// empty means any port.
    Tcp {
        /// The kind of segments.
        segments: TcpSegments,
        /// Ports at the local end.
        local: Vec<PortRange>,
        /// Ports at the remote end.
        remote: Vec<PortRange>,
    },
}

/// The kind of TCP segments that a selector matches. Each segment is of one kind, so that one bit
/// of a flow says which: a mask and a value of flags would need all eight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpSegments {
    /// Segments with SYN and without ACK, which open a connection (RFC 9293 §3.5).
    New,
    /// All others.
    Established,
}

impl TcpSegments {
    /// Both kinds.
    pub const ALL: [TcpSegments; 2] = [TcpSegments::New, TcpSegments::Established];

    /// `new` or `established`.
    pub const fn name(self) -> &'static str {
        match self {
            TcpSegments::New => "new",
            TcpSegments::Established => "established",
        }
    }

    /// Returns whether a TCP segment of this flow is of this kind.
    pub const fn has(self, flow: &Flow) -> bool {
        matches!(self, TcpSegments::New) == flow.opens
    }
}

impl UpperSelector {
    /// The lists of ports at the local and the remote end.
    pub fn ports(&self) -> Option<[&[PortRange]; 2]> {
        match self {
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
                Some([local, remote])
            }
            UpperSelector::Any | UpperSelector::Icmp(_) => None,
        }
    }

    /// The ICMP messages; none where there are no such messages or any matches.
    pub fn messages(&self) -> &[IcmpRange] {
        match self {
            UpperSelector::Icmp(messages) => messages,
            UpperSelector::Any | UpperSelector::Ports { .. } | UpperSelector::Tcp { .. } => &[],
        }
    }

    /// The kind of TCP segments that it asks for.
    pub const fn segments(&self) -> Option<TcpSegments> {
        match self {
            UpperSelector::Tcp { segments, .. } => Some(*segments),
            UpperSelector::Any | UpperSelector::Ports { .. } | UpperSelector::Icmp(_) => None,
        }
    }
}

/// The flows that a policy matches, seen from this gateway: `local` is the gateway's side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Selector {
    /// Addresses on the gateway's side; at least one.
    pub local: Vec<AddressRange>,
    /// Addresses on the far side; at least one.
    pub remote: Vec<AddressRange>,
    /// Upper-layer protocol, or any.
    pub protocol: Option<u8>,
    /// Ports or ICMP types.
    pub upper: UpperSelector,
}

/// Parses a protocol: `any` (`None`), a name of [`PROTOCOL_NAMES`], in capitals or not, or a
/// number.
///
/// # Errors
/// [`SelectorError::UnknownProtocol`].
pub fn parse_protocol(text: &str) -> Result<Option<u8>, SelectorError> {
    if text.eq_ignore_ascii_case("any") {
        return Ok(None);
    }
    let named = PROTOCOL_NAMES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
        .map(|&(_, number)| number);
    named
        .or_else(|| number(text).and_then(|value| u8::try_from(value).ok()))
        .map(Some)
        .ok_or_else(|| SelectorError::UnknownProtocol { text: text.into() })
}

/// Formats a protocol as [`parse_protocol`] reads it: `any`, a name, else the number.
pub fn protocol_text(protocol: Option<u8>) -> String {
    let Some(number) = protocol else {
        return "any".into();
    };
    let named = PROTOCOL_NAMES.iter().find(|&&(_, named)| named == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).into())
}

fn offered_protocols() -> String {
    PROTOCOL_NAMES.map(|(name, _)| name).join(", ")
}

fn parse_address(text: &str) -> Result<Address, SelectorError> {
    let ip: Result<IpAddr, _> = text.trim().parse();
    ip.map(Address::from).map_err(|_| SelectorError::NotAnAddress { text: text.into() })
}

/// One end of a range of ports; `whole` is the range, for the error.
fn parse_port(text: &str, whole: &str) -> Result<u16, SelectorError> {
    let text = text.trim();
    if !is_number(text) {
        return Err(SelectorError::NotAPort { text: whole.into() });
    }
    text.parse().map_err(|_| SelectorError::PortTooHigh { text: text.into() })
}

/// One end of a range of messages; `whole` is the range, for the error.
fn parse_icmp(text: &str, whole: &str) -> Result<IcmpRange, SelectorError> {
    let byte = |text| number(text).and_then(|value| u8::try_from(value).ok());
    let range = match text.trim().split_once('/') {
        None => byte(text).map(IcmpRange::of_type),
        Some((kind, code)) => {
            byte(kind).zip(byte(code)).map(|(kind, code)| IcmpRange::message(kind, code))
        }
    };
    range.ok_or_else(|| SelectorError::NotAnIcmpMessage { text: whole.into() })
}

/// Decimal digits only: `u16::from_str` would take a sign.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    if is_number(text) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().unwrap())
    }

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn address_ranges_parse_to_their_first_and_last_address() {
        for (text, first, last) in [
            ("10.0.0.0/8", "10.0.0.0", "10.255.255.255"),
            ("10.2.0.0-10.2.255.255", "10.2.0.0", "10.2.255.255"),
            ("10.2.0.5 - 10.2.0.9", "10.2.0.5", "10.2.0.9"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.1"),
            ("192.0.2.1/32", "192.0.2.1", "192.0.2.1"),
            ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
            ("255.255.255.255", "255.255.255.255", "255.255.255.255"),
            ("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::1"),
            ("2001:db8::1/128", "2001:db8::1", "2001:db8::1"),
            ("fd00::1-fd00::9", "fd00::1", "fd00::9"),
            ("::ffff:10.0.0.0/104", "::ffff:10.0.0.0", "::ffff:10.255.255.255"),
        ] {
            let parsed = range(text);
            assert_eq!((parsed.first(), parsed.last()), (address(first), address(last)), "{text}");
        }
        assert_eq!(range("0.0.0.0/0"), AddressRange::any(Family::V4));
        assert_eq!(range("::/0"), AddressRange::any(Family::V6));
    }

    #[test]
    fn any_is_one_address_range_of_each_family() {
        let any = [AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
        assert_eq!(parse_addresses("any").unwrap(), any);
        assert_eq!(parse_addresses("10.0.0.0/8").unwrap(), [range("10.0.0.0/8")]);
        assert!(parse_addresses("anything").is_err());
    }

    #[test]
    fn address_ranges_are_displayed_in_their_shortest_form() {
        for (text, shortest) in [
            ("10.2.0.0-10.2.255.255", "10.2.0.0/16"),
            ("192.0.2.1/32", "192.0.2.1"),
            ("192.0.2.1-192.0.2.1", "192.0.2.1"),
            ("10.0.0.0-10.0.0.1", "10.0.0.0/31"),
            ("10.0.0.1-10.0.0.2", "10.0.0.1-10.0.0.2"),
            ("0.0.0.0-255.255.255.255", "0.0.0.0/0"),
            ("0.0.0.1-255.255.255.255", "0.0.0.1-255.255.255.255"),
            ("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"),
            ("8000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::/1"),
        ] {
            assert_eq!(range(text).to_string(), shortest, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_range_is_refused_with_its_values() {
        use SelectorError::*;
        let error = |text: &str| text.parse::<AddressRange>().unwrap_err();
        assert_eq!(
            error("10.1.2.3/8"),
            HostBits { text: "10.1.2.3/8".into(), network: range("10.0.0.0/8") }
        );
        assert!(error("10.1.2.3/8").to_string().ends_with("the network is 10.0.0.0/8"));
        assert!(matches!(error("2001:db8::1/64"), HostBits { network, .. }
            if network == range("2001:db8::/64")));
        assert!(matches!(error("10.0.0.0/33"), PrefixLength { bits: 32, .. }));
        assert!(matches!(error("::/129"), PrefixLength { bits: 128, .. }));
        for text in
            ["10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/255.0.0.0", "10.0.0.0/99999999999", "::/264"]
        {
            assert!(matches!(error(text), PrefixLength { .. }), "{text}: {:?}", error(text));
        }
        assert_eq!(
            error("10.0.0.9-10.0.0.1"),
            InvertedAddresses { lo: address("10.0.0.9"), hi: address("10.0.0.1") }
        );
        assert_eq!(
            error("10.0.0.1-::1"),
            MixedFamilies { lo: address("10.0.0.1"), hi: address("::1") }
        );
        for text in [
            "",
            "-",
            "/",
            "any",
            "10.0.0",
            "10.0.0.256",
            "10.0.0.0/8-10.1.0.0/16",
            "fe80::1%eth0",
            "gw.example",
            "010.0.0.1",
        ] {
            assert!(matches!(error(text), NotAnAddress { .. }), "{text}: {:?}", error(text));
        }
    }

    #[test]
    fn ports_parse_and_what_is_none_is_refused_with_its_values() {
        let parse = |text: &str| text.parse::<PortRange>();
        assert_eq!(parse("443"), PortRange::new(443, 443));
        assert_eq!(parse("8000-8999"), PortRange::new(8000, 8999));
        assert_eq!(parse("0-65535"), Ok(PortRange::ANY));
        assert_eq!(parse("9-8"), Err(SelectorError::InvertedPorts { lo: 9, hi: 8 }));
        for text in ["65536", "1-65536", "99999999999999999999"] {
            assert!(matches!(parse(text), Err(SelectorError::PortTooHigh { .. })), "{text}");
        }
        for text in ["", "-", "1-", "-1", "http", "+1", "1-2-3", "0x50", "٣"] {
            let expected = SelectorError::NotAPort { text: text.into() };
            assert_eq!(parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn icmp_messages_parse_and_what_is_none_is_refused() {
        let parse = |text: &str| text.parse::<IcmpRange>();
        assert_eq!(parse("8"), Ok(IcmpRange { lo: 0x0800, hi: 0x08ff }));
        assert_eq!(parse("3/4"), Ok(IcmpRange { lo: 0x0304, hi: 0x0304 }));
        assert_eq!(parse("3/0-3/15"), Ok(IcmpRange { lo: 0x0300, hi: 0x030f }));
        assert_eq!(parse("3-5"), Ok(IcmpRange { lo: 0x0300, hi: 0x05ff }));
        assert_eq!(parse("0-255"), Ok(IcmpRange::ANY));
        assert!(matches!(parse("3/9-3/1"), Err(SelectorError::InvertedIcmp { .. })));
        for text in ["", "256", "3/256", "3/", "/4", "echo", "3/4/5", "1-2-3", "-1"] {
            let expected = SelectorError::NotAnIcmpMessage { text: text.into() };
            assert_eq!(parse(text), Err(expected), "{text}");
        }
        for text in ["8", "3/4", "3/0-3/15", "3-5", "0-255", "3/1-4/255", "3/0-4/0"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn protocols_parse_by_name_and_number() {
        assert_eq!(parse_protocol("any"), Ok(None));
        assert_eq!(parse_protocol("ANY"), Ok(None));
        for (text, number) in [
            ("tcp", 6),
            ("udp", 17),
            ("icmp", 1),
            ("icmpv6", 58),
            ("sctp", 132),
            ("dccp", 33),
            ("udplite", 136),
            ("esp", 50),
            ("ESP", 50),
            ("Tcp", 6),
            ("gre", 47),
            ("0", 0),
            ("255", 255),
        ] {
            assert_eq!(parse_protocol(text), Ok(Some(number)), "{text}");
        }
        for text in ["", "256", "-1", "tpc", "TCP "] {
            let error = parse_protocol(text).unwrap_err();
            assert_eq!(error, SelectorError::UnknownProtocol { text: text.into() });
            assert!(error.to_string().contains("icmp, tcp, udp, "), "{error}");
        }
    }

    #[test]
    fn every_protocol_displays_as_it_parses() {
        for protocol in (0..=u8::MAX).map(Some).chain([None]) {
            assert_eq!(parse_protocol(&protocol_text(protocol)), Ok(protocol));
        }
        assert_eq!(protocol_text(Some(6)), "tcp");
        assert_eq!(protocol_text(Some(7)), "7");
    }

    /// Two numbers up to `max`, ordered, mostly at the edges and near each other.
    fn ordered(max: u128) -> impl Strategy<Value = (u128, u128)> {
        let end = move || {
            prop_oneof![
                Just(0),
                Just(max),
                (0..4u128).prop_map(move |n| max - n),
                0..4u128,
                (0..128u32).prop_map(move |bit| (1u128 << bit) & max),
                (0..128u32).prop_map(move |bit| (1u128 << bit).wrapping_sub(1) & max),
                0..=max,
            ]
        };
        (end(), end()).prop_map(|(a, b)| (a.min(b), a.max(b)))
    }

    proptest! {
        #[test]
        fn a_displayed_address_range_parses_back(
            (family, (lo, hi)) in prop_oneof![
                ordered(Family::V4.highest_address()).prop_map(|ends| (Family::V4, ends)),
                ordered(Family::V6.highest_address()).prop_map(|ends| (Family::V6, ends)),
            ]
        ) {
            let range = AddressRange { family, lo, hi };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
            if lo < hi {
                let (first, last) = (range.first(), range.last());
                let inverted = format!("{last}-{first}").parse::<AddressRange>();
                let error = SelectorError::InvertedAddresses { lo: last, hi: first };
                prop_assert_eq!(inverted, Err(error));
            }
        }

        #[test]
        fn a_prefix_holds_its_address_and_displays_as_a_prefix(
            (value, _) in ordered(u128::MAX), length in 0..=128u8, v6 in any::<bool>(),
        ) {
            let address = if v6 { Address::v6(value) } else { Address::v4(value as u32) };
            let length = length.min(address.family.address_bits());
            let network = AddressRange::network(address, length);
            prop_assert!(network.contains(address) && network.contains_range(&address.into()));
            let before = Address { value: network.lo.wrapping_sub(1), ..address };
            let behind = Address { value: network.hi.wrapping_add(1), ..address };
            prop_assert!(length == 0 || !network.contains(before) && !network.contains(behind));
            let wider = AddressRange::network(address, length.saturating_sub(1));
            prop_assert!(wider.contains_range(&network));
            prop_assert_eq!(network.contains_range(&wider), length == 0);
            prop_assert!(network.hi <= address.family.highest_address());
            prop_assert_eq!(network.prefix_length(), Some(length));
            prop_assert_eq!(format!("{}/{length}", network.first()).parse(), Ok(network));
            let written = format!("{address}/{length}").parse::<AddressRange>();
            prop_assert_eq!(written.is_ok(), network.lo == address.value);
        }

        #[test]
        fn displayed_ports_and_icmp_messages_parse_back(
            (lo, hi) in ordered(u128::from(u16::MAX)).prop_map(|(lo, hi)| (lo as u16, hi as u16))
        ) {
            let (ports, messages) = (PortRange { lo, hi }, IcmpRange { lo, hi });
            prop_assert_eq!(ports.to_string().parse(), Ok(ports));
            prop_assert_eq!(messages.to_string().parse(), Ok(messages));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "[0-9a-f:./ -]{0,24}|\\PC{0,12}") {
            let _ = text.parse::<AddressRange>();
            let _ = text.parse::<PortRange>();
            let _ = text.parse::<IcmpRange>();
            let _ = parse_protocol(&text);
        }
    }
}
