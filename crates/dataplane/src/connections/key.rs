//! Keys: the two ends of a connection in an order of their own, so that the packets of both
//! directions have one key.
//!
//! ```text
//! word   first line                                    second line, IPv6 alone
//! 0      IPv4: first address | second << 32            high half of the first address
//!        IPv6: low half of the first address
//! 1      first port | second << 16 | protocol << 32    low half of the second address
//!        | kind << 40
//! 2      attachment | VNI << 16                        high half of the second address
//! ```
//! The first end is the one with the lower address, then port. Of an ICMP echo it is the one that
//! asks, and both ports are the identifier: a request from the other end is of another connection.

use policy::PortClass;
use policy::connection::Side;
use wire::flow::protocol;
use wire::glance::{self, UpperKind};
use wire::{Address, Family, Flow, Upper, Vni};

use super::lines::LineKey;
use crate::ids::PortId;

/// Words of a key in a line.
pub(super) const KEY: usize = 3;

/// Set in every kind: no key is zeros.
const OCCUPIED: u8 = 0x80;
const IS_V6: u8 = 0x40;
const IS_ECHO: u8 = 0x01;
const KIND_SHIFT: u32 = 40;

/// Slot of a port or virtual network: the index of its zone's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ZoneSlot(pub(super) u16);

/// The realm of a connection: those of two zones never meet, whatever their addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Zone {
    /// Slot of the port or of the virtual network ([`Zone::FIRST_NETWORK`] and above). The control
    /// plane assigns and quarantines slots.
    pub attachment: u16,
    /// VNI, 24 bits; 0 for a port.
    pub vni: u32,
}

impl Zone {
    /// Lowest slot of a virtual network. All slots of ports are lower.
    pub const FIRST_NETWORK: u16 = 0x8000;

    /// The zone of a port.
    #[inline]
    pub const fn of_port(port: PortId) -> Zone {
        Zone { attachment: port.0, vni: 0 }
    }

    /// The zone of a virtual network in a slot.
    #[inline]
    pub const fn of_network(vni: Vni, slot: u16) -> Zone {
        Zone { attachment: slot, vni: vni.get() }
    }

    /// Returns the port, or the virtual network, whose zone it is.
    pub const fn owner(self) -> ZoneOwner {
        match Vni::new(self.vni) {
            Some(vni) if self.attachment >= Zone::FIRST_NETWORK => ZoneOwner::Network(vni),
            _ => ZoneOwner::Port(PortId(self.attachment)),
        }
    }

    #[inline]
    pub(super) fn word(self) -> u64 {
        u64::from(self.attachment) | u64::from(self.vni & 0xff_ffff) << 16
    }

    pub(super) fn of_word(word: u64) -> Zone {
        Zone { attachment: word as u16, vni: (word >> 16) as u32 & 0xff_ffff }
    }
}

/// A place on a packet's way where connections may be tracked: a port, or a virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    /// Its connections.
    pub(crate) zone: Zone,
    /// Its groups.
    pub(crate) class: PortClass,
}

/// The port, or the virtual network, that a zone belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneOwner {
    /// A port.
    Port(PortId),
    /// A virtual network.
    Network(Vni),
}

/// ICMP echo message (RFC 792, RFC 4443 §4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EchoMessage {
    Request,
    Reply,
}

impl EchoMessage {
    /// Returns the message of a flow. `None`: another message.
    #[inline]
    pub(crate) fn of(flow: &Flow) -> Option<EchoMessage> {
        let Upper::Icmp { kind, code: 0 } = flow.upper else { return None };
        match (flow.protocol, kind) {
            (protocol::ICMP, 8) | (protocol::ICMPV6, 128) => Some(EchoMessage::Request),
            (protocol::ICMP, 0) | (protocol::ICMPV6, 129) => Some(EchoMessage::Reply),
            _ => None,
        }
    }
}

/// The key of a packet: its connection, and which end sent it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub(super) line: LineKey<KEY>,
    /// The second end sent the packet.
    is_from_second: bool,
}

impl Key {
    /// The key of a flow. `None`: of ICMP, for which [`of_echo`](Key::of_echo) is, or of a later
    /// fragment, which has the verdict of its datagram.
    #[inline]
    pub fn of(flow: &Flow, zone: Zone) -> Option<Key> {
        let (source, destination) = match flow.upper {
            Upper::Ports { source, destination } => (source, destination),
            Upper::None => (0, 0),
            Upper::Icmp { .. } | Upper::Fragment => return None,
        };
        let is_from_second = (flow.source, source) > (flow.destination, destination);
        let sender = (flow.source, source);
        let other = (flow.destination, destination);
        Some(Key::new(flow, sender, other, zone, (0, is_from_second)))
    }

    /// The key of an ICMP echo request or reply with this identifier. `None`: the flow is of
    /// another message.
    #[inline]
    pub fn of_echo(flow: &Flow, identifier: u16, zone: Zone) -> Option<Key> {
        let is_reply = EchoMessage::of(flow)? == EchoMessage::Reply;
        let sender = (flow.source, identifier);
        let other = (flow.destination, identifier);
        Some(Key::new(flow, sender, other, zone, (IS_ECHO, is_reply)))
    }

    fn new(
        flow: &Flow,
        sender: (u128, u16),
        other: (u128, u16),
        zone: Zone,
        (kind, is_from_second): (u8, bool),
    ) -> Key {
        let (first, second) = if is_from_second { (other, sender) } else { (sender, other) };
        let family = if flow.family == Family::V6 { IS_V6 } else { 0 };
        let identity = u64::from(first.1)
            | u64::from(second.1) << 16
            | u64::from(flow.protocol) << 32
            | u64::from(OCCUPIED | kind | family) << KIND_SHIFT;
        let halves = |address: u128| [address as u64, (address >> 64) as u64];
        let ([low, high], [other_low, other_high]) = (halves(first.0), halves(second.0));
        let line = match flow.family {
            Family::V4 => {
                LineKey { head: [low | other_low << 32, identity, zone.word()], tail: None }
            }
            Family::V6 => LineKey {
                head: [low, identity, zone.word()],
                tail: Some([high, other_low, other_high]),
            },
        };
        Key { line, is_from_second }
    }

    /// The key of a packet in the other direction; of the packet that an ICMP error quotes.
    #[inline]
    pub fn reversed(self) -> Key {
        Key { is_from_second: !self.is_from_second, ..self }
    }

    /// The zone.
    pub fn zone(&self) -> Zone {
        Zone::of_word(self.line.head[2])
    }

    /// Returns the end of a connection that sent the packet.
    #[inline]
    pub(super) fn side(&self, originator: Originator) -> Side {
        if self.is_from_second == (originator == Originator::Second) {
            Side::Originator
        } else {
            Side::Responder
        }
    }

    /// The sender, as the originator of a connection.
    #[inline]
    pub(super) fn sender(&self) -> Originator {
        if self.is_from_second { Originator::Second } else { Originator::First }
    }

    /// The key with another sender.
    pub(super) fn sent_by(self, sender: Originator) -> Key {
        Key { is_from_second: sender == Originator::Second, ..self }
    }

    /// Returns both ends, originator first.
    pub(super) fn ends(&self, originator: Originator) -> [End; 2] {
        let [word, identity, _] = self.line.head;
        let [first, second] = match self.line.tail {
            None => [Address::v4(word as u32), Address::v4((word >> 32) as u32)],
            Some([high, other_low, other_high]) => {
                let of = |high, low| Address::v6(u128::from(high) << 64 | u128::from(low));
                [of(high, word), of(other_high, other_low)]
            }
        };
        let first = End { address: first, port: identity as u16 };
        let second = End { address: second, port: (identity >> 16) as u16 };
        if originator == Originator::First { [first, second] } else { [second, first] }
    }

    /// The family.
    #[inline]
    pub fn family(&self) -> Family {
        if self.line.tail.is_none() { Family::V4 } else { Family::V6 }
    }

    /// The flow of the first packet of the key's connection, whose packet `from` sent. Of TCP that
    /// is a segment that opens it.
    pub fn first_flow(&self, from: Side) -> Flow {
        let is_from_second = self.is_from_second == (from == Side::Originator);
        let originator = if is_from_second { Originator::Second } else { Originator::First };
        let [source, destination] = self.ends(originator);
        let (family, number) = (self.family(), self.protocol());
        let is_echo = (self.line.head[1] >> KIND_SHIFT) as u8 & IS_ECHO != 0;
        let has_ports = match family {
            Family::V4 => glance::kind_v4(number) == UpperKind::Ports,
            Family::V6 => glance::kind_v6(number) == UpperKind::Ports,
        };
        let upper = match (is_echo, family) {
            (true, Family::V4) => Upper::Icmp { kind: 8, code: 0 },
            (true, Family::V6) => Upper::Icmp { kind: 128, code: 0 },
            _ if has_ports => Upper::Ports { source: source.port, destination: destination.port },
            _ => Upper::None,
        };
        let (source, destination) = (source.address.value, destination.address.value);
        let opens = number == protocol::TCP;
        Flow { family, source, destination, protocol: number, upper, opens }
    }

    /// The protocol.
    pub fn protocol(&self) -> u8 {
        (self.line.head[1] >> 32) as u8
    }

    pub(super) fn of_line(line: LineKey<KEY>) -> Key {
        Key { line, is_from_second: false }
    }
}

/// The end of a key that sent the first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Originator {
    First,
    Second,
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct End {
    /// Address.
    pub address: Address,
    /// TCP or UDP port, identifier of an ICMP echo, or 0.
    pub port: u16,
}
