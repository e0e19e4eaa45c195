//! A connection as a line of text. Only what [`Line::of`] writes is read back: a line that means
//! the same in other words, or anything that no connection can be, is none.
//!
//! ```text
//! lan 0 in 6 10.1.0.7 4000 10.2.0.9 443 4 3 86211
//! ```
//! Port, virtual network, side of the groups that let it begin, protocol, originator, its port,
//! responder, its port, state, flags, second of the boot in which it was last seen.

use std::fmt::{Display, Formatter};
use std::net::IpAddr;

use dataplane::connections::{Connection, End, Judgement, Key, Place, Zone};
use policy::connection::{Flags, State, Status};
use policy::{Book, DomainId, GroupSide, PortClass};
use wire::flow::protocol;
use wire::{Address, Family, Flow, Upper};

/// A connection that both ends have shown to want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line<'t> {
    /// Name of the gateway's port whose rule let it begin.
    pub(super) port: &'t str,
    /// The virtual network, 24 bits; 0 for none.
    pub(super) vni: u32,
    side: GroupSide,
    protocol: u8,
    originator: End,
    responder: End,
    status: Status,
    /// Second of the boot in which it was last seen.
    pub(super) seen_s: u64,
}

impl<'t> Line<'t> {
    /// Returns the line of a connection at a port; `None`: a half-open one, which is not kept.
    pub(super) fn of(connection: &Connection, port: &'t str, seen_s: u64) -> Option<Line<'t>> {
        let Connection { zone, originator, responder, protocol, status, judgement, .. } =
            *connection;
        let side = match judgement.domain.book() {
            Book::GroupIn => GroupSide::In,
            Book::GroupOut => GroupSide::Out,
            Book::SpdIn | Book::SpdOut => return None,
        };
        let vni = zone.vni;
        let line = Line { port, vni, side, protocol, originator, responder, status, seen_s };
        line.is_possible().then_some(line)
    }

    /// Reads a line, without its end.
    pub(super) fn parse(text: &'t str) -> Option<Line<'t>> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let (port, vni, side) = (word()?, word()?.parse().ok()?, word()?);
        let protocol = word()?.parse().ok()?;
        let mut end = || Some(End { address: address(word()?)?, port: word()?.parse().ok()? });
        let (originator, responder) = (end()?, end()?);
        let state = State::of_number(word()?.parse().ok()?)?;
        let flags: u8 = word()?.parse().ok()?;
        let status = Status { state, flags: Flags::of_bits(flags) };
        let seen_s = word()?.parse().ok()?;
        let side = GroupSide::ALL.into_iter().find(|known| known.name() == side)?;
        let line = Line { port, vni, side, protocol, originator, responder, status, seen_s };
        // One text for one connection: `+1`, `01`, `::ffff` in capitals are none of ours.
        (line.to_string() == text && line.is_possible()).then_some(line)
    }

    /// Returns whether a connection can be like that, and is one that is kept.
    fn is_possible(&self) -> bool {
        let Status { state, flags } = self.status;
        let [of_originator, of_responder] =
            [Flags::FIN_ORIGINATOR, Flags::FIN_RESPONDER].map(|flag| flags.has(flag));
        let fins = u8::from(of_originator) + u8::from(of_responder);
        let has_state = match self.protocol {
            protocol::TCP => match state {
                State::Established => fins == 0,
                State::Closing => fins == 1,
                State::TimeWait => fins == 2,
                State::Reset | State::ResetOriginatorHeard | State::ResetResponderHeard => true,
                _ => false,
            },
            protocol::UDP | protocol::UDP_LITE => state == State::Datagram && fins == 0,
            protocol::ICMP | protocol::ICMPV6 => {
                state == State::Echo && fins == 0 && self.originator.port == self.responder.port
            }
            _ => state == State::Other && fins == 0,
        };
        let is_icmp_of_family = match self.protocol {
            protocol::ICMP => self.originator.address.family == Family::V4,
            protocol::ICMPV6 => self.originator.address.family == Family::V6,
            _ => true,
        };
        let has_no_ports = self.originator.port == 0 && self.responder.port == 0;
        let is_echo = state == State::Echo;
        has_state
            && is_icmp_of_family
            && !self.status.is_half_open()
            && flags.has(Flags::REPLIED)
            && self.originator.address.family == self.responder.address.family
            && self.vni < 1 << 24
            && (is_echo || has_no_ports || protocol::has_ports(self.protocol))
    }

    /// Returns the connection of a port that is in a slot now; `None`: it has no key, or was last
    /// seen too long ago. Its judgement is of no generation: its first packet is judged again.
    pub(super) fn connection(&self, slot: u16, idle_s: u64) -> Option<Connection> {
        let Line { originator, responder, protocol, status, .. } = *self;
        let family = originator.address.family;
        let zone = Zone { attachment: slot, vni: self.vni };
        let upper = match (status.state, family) {
            (State::Echo, Family::V4) => Upper::Icmp { kind: 8, code: 0 },
            (State::Echo, Family::V6) => Upper::Icmp { kind: 128, code: 0 },
            _ if protocol::has_ports(protocol) => {
                Upper::Ports { source: originator.port, destination: responder.port }
            }
            _ => Upper::None,
        };
        let (source, destination) = (originator.address.value, responder.address.value);
        let flow = Flow { family, source, destination, protocol, upper, opens: false };
        let key = match status.state {
            State::Echo => Key::of_echo(&flow, originator.port, zone)?,
            _ => Key::of(&flow, zone)?,
        };
        let book = match self.side {
            GroupSide::In => Book::GroupIn,
            GroupSide::Out => Book::GroupOut,
        };
        // The class may be another one since the restart: only the book and the family count.
        let domain = DomainId::new(PortClass(0), book, family);
        let idle_s = u32::try_from(idle_s).ok()?;
        Some(Connection {
            place: Place(0),
            zone,
            originator,
            responder,
            protocol,
            status,
            idle_s,
            made_s: 0,
            judgement: Judgement { domain, ..Judgement::UNKNOWN },
            key,
        })
    }
}

fn address(text: &str) -> Option<Address> {
    text.parse::<IpAddr>().ok().map(Address::from)
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Line { port, vni, side, protocol, originator, responder, status, seen_s } = self;
        write!(f, "{port} {vni} {} {protocol}", side.name())?;
        for End { address, port } in [originator, responder] {
            write!(f, " {address} {port}")?;
        }
        write!(f, " {} {} {seen_s}", status.state as u8, status.flags.bits())
    }
}
