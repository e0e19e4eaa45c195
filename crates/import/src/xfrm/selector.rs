//! Selectors of xfrm: `src A dst B proto P sport N dport M`.

use policy::{AddressRange, Direction, IcmpRange, PortRange, Selector, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use crate::problem::{Mistake, Parsed, at, shown, unknown};
use crate::values::{number, number_of, prefix, value};
use crate::words::{Cursor, Word};

/// Protocols that `ip` names as /etc/protocols does, with their numbers.
const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("ipv4", 4),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("eigrp", 88),
    ("ospf", 89),
    ("ipip", 94),
    ("pim", 103),
    ("ipcomp", 108),
    ("comp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("mobility-header", 135),
    ("udplite", 136),
];

/// IP protocols that are extension headers of IPv6 or belong to them: no selector here names them.
const EXTENSIONS: [u8; 7] = [0, 43, 44, 60, 135, 139, 140];

/// A selector as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Written {
    source: Option<AddressRange>,
    destination: Option<AddressRange>,
    protocol: Option<u8>,
    /// Source port, or ICMP type.
    source_port: Option<u16>,
    /// Destination port, or ICMP code.
    destination_port: Option<u16>,
    /// A GRE key or a netdev: nothing here selects by them.
    odd: Option<&'static str>,
}

impl Written {
    /// Words of selectors.
    pub(super) const WORDS: [&str; 10] =
        ["src", "dst", "dev", "proto", "sport", "dport", "type", "code", "key", "uid"];

    /// Takes a word of a selector, if it is one, and returns whether it was.
    pub(super) fn take(&mut self, cursor: &mut Cursor<'_, '_>, word: Word<'_>) -> Parsed<bool> {
        let port = |cursor: &mut _| number(cursor, word, u16::MAX.into()).map(|n| Some(n as u16));
        match word.text {
            "src" => self.source = prefix(cursor, word)?,
            "dst" => self.destination = prefix(cursor, word)?,
            "proto" => self.protocol = Some(protocol_number(cursor, word)?).filter(|p| *p != 0),
            "sport" => self.source_port = port(cursor)?,
            "dport" => self.destination_port = port(cursor)?,
            "type" => self.source_port = Some(number(cursor, word, 255)? as u16),
            "code" => self.destination_port = Some(number(cursor, word, 255)? as u16),
            "key" => {
                value(cursor, word)?;
                self.odd = Some("key");
            }
            "dev" => {
                value(cursor, word)?;
                self.odd = Some("dev");
            }
            "uid" => {
                if number(cursor, word, u32::MAX.into())? != 0 {
                    self.odd = Some("uid");
                }
            }
            _ => return Ok(false),
        }
        let families = [self.source, self.destination].map(|range| range.map(|range| range.family));
        if let [Some(one), Some(other)] = families
            && one != other
        {
            return at(cursor, word, Mistake::BadPair);
        }
        Ok(true)
    }

    /// Source and destination, where one that is not written is any of the other's IP version.
    pub(super) fn ends(&self) -> [AddressRange; 2] {
        let family = |range: &Option<AddressRange>| range.map(|range| range.family);
        // `ip` takes IPv4 if nothing says a version.
        let family = family(&self.source).or(family(&self.destination)).unwrap_or(Family::V4);
        let any = AddressRange::any(family);
        [self.source.unwrap_or(any), self.destination.unwrap_or(any)]
    }

    /// Returns whether it matches every packet.
    pub(super) fn is_any(&self) -> bool {
        let Written { protocol, source_port, destination_port, odd, .. } = self;
        let all = self.ends().iter().all(|range| *range == AddressRange::any(range.family));
        all && protocol.is_none()
            && source_port.is_none()
            && destination_port.is_none()
            && odd.is_none()
    }

    /// The selector as this gateway sees packets of a direction.
    ///
    /// # Errors
    /// The word that no selector of ours can say.
    pub(super) fn seen(&self, direction: Direction) -> Result<Selector, &'static str> {
        if let Some(odd) = self.odd {
            return Err(odd);
        }
        if self.protocol.is_some_and(|number| EXTENSIONS.contains(&number)) {
            return Err("proto");
        }
        let [source, destination] = self.ends();
        let ports = [self.source_port, self.destination_port];
        let family_fits = match self.protocol {
            Some(protocol::ICMP) => source.family == Family::V4,
            Some(protocol::ICMPV6) => source.family == Family::V6,
            _ => true,
        };
        if !family_fits {
            return Err("proto");
        }
        let upper = match (self.protocol, ports) {
            (_, [None, None]) => UpperSelector::Any,
            (Some(protocol::ICMP | protocol::ICMPV6), [Some(kind), code]) => {
                let kind = kind as u8;
                let messages = match code {
                    None => IcmpRange::of_type(kind),
                    Some(code) => IcmpRange::message(kind, code as u8),
                };
                UpperSelector::Icmp(vec![messages])
            }
            (Some(protocol::ICMP | protocol::ICMPV6), [None, Some(_)]) => return Err("code"),
            (Some(number), ports) if protocol::has_ports(number) => {
                let list = |port: Option<u16>| {
                    port.map(|port| PortRange { lo: port, hi: port }).into_iter().collect()
                };
                let [of_source, of_destination] = ports.map(list);
                match direction {
                    Direction::Outbound => {
                        UpperSelector::Ports { local: of_source, remote: of_destination }
                    }
                    Direction::Inbound => {
                        UpperSelector::Ports { local: of_destination, remote: of_source }
                    }
                }
            }
            _ => return Err("sport"),
        };
        let (local, remote) = match direction {
            Direction::Outbound => (source, destination),
            Direction::Inbound => (destination, source),
        };
        Ok(Selector { local: vec![local], remote: vec![remote], protocol: self.protocol, upper })
    }
}

fn protocol_number(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<u8> {
    let word = value(cursor, behind)?;
    let named = PROTOCOLS.iter().find(|(name, _)| *name == word.text).map(|(_, number)| *number);
    if let Some(number) = named {
        return Ok(number);
    }
    let highest = u64::from(u8::MAX);
    match number_of(word.text) {
        Some(number) if number <= highest => Ok(number as u8),
        Some(_) => {
            let text = shown(word.text);
            at(cursor, word, Mistake::NotANumber { text, lowest: 0, highest })
        }
        None => {
            let names: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
            unknown(cursor, word, "protocols", &names)
        }
    }
}
