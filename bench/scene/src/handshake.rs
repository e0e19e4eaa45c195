//! TCP connections from lan to dmz: the segments by which they begin, each an address pair and port
//! of its own.

use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol;
use wire::{Flow, Upper};

use crate::case::{Case, MAX_FLOWS, TRAFFICS_PORT};

/// A segment of a connection that begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// The originator's SYN.
    Syn,
    /// The responder's answer.
    SynAck,
    /// The originator's ACK, and every later segment of it.
    Ack,
}

impl Step {
    /// All segments, in their order.
    pub const ALL: [Step; 3] = [Step::Syn, Step::SynAck, Step::Ack];

    /// The byte of TCP flags.
    pub const fn flags(self) -> u8 {
        match self {
            Step::Syn => tcp_flags::SYN,
            Step::SynAck => tcp_flags::SYN | tcp_flags::ACK,
            Step::Ack => tcp_flags::ACK,
        }
    }
}

/// The largest segment that both ends offer.
const MSS: u16 = 1400;

impl Case {
    /// A segment of a connection of [`Direction::Forward`](crate::Direction::Forward), without
    /// data, as it is with this hop limit.
    pub fn segment(&self, connection: u32, step: Step, hop_limit: u8) -> PacketBuilder {
        let Flow { upper, .. } = self.connection(connection);
        let Upper::Ports { source: port, .. } = upper else { unreachable!("TCP has ports") };
        let [near, far] = self.hosts(connection as usize % MAX_FLOWS);
        let (packet, ports, mss) = match step {
            Step::Syn => (PacketBuilder::new(near, far), [port, TRAFFICS_PORT], Some(MSS)),
            Step::SynAck => (PacketBuilder::new(far, near), [TRAFFICS_PORT, port], Some(MSS)),
            Step::Ack => (PacketBuilder::new(near, far), [port, TRAFFICS_PORT], None),
        };
        packet.tcp_with(ports[0], ports[1], step.flags(), mss).hop_limit(hop_limit)
    }

    /// The flow of a connection's originator. No two numbers below 64,512 × [`MAX_FLOWS`] have the
    /// same one.
    pub fn connection(&self, connection: u32) -> Flow {
        let [near, far] = self.hosts(connection as usize % MAX_FLOWS);
        let round = connection / MAX_FLOWS as u32;
        let upper = Upper::Ports { source: 1024 + round as u16, destination: TRAFFICS_PORT };
        Flow {
            family: self.family,
            source: near.value,
            destination: far.value,
            protocol: protocol::TCP,
            upper,
            opens: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Direction, HOP_LIMIT};
    use ipsec::Suite;
    use std::collections::HashSet;
    use wire::{Family, packet};

    #[test]
    fn the_segments_of_a_connection_are_of_its_flow_and_no_other() {
        for family in [Family::V4, Family::V6] {
            let (direction, suite) = (Direction::Forward, Suite::Null);
            let case = Case {
                direction,
                suite,
                family,
                size: 48,
                flows: 1,
                backend: None,
                workers: 1,
                sas: 1,
            };
            let parsed = |connection, step| {
                let bytes = case.segment(connection, step, HOP_LIMIT).ip();
                let packet = packet::parse(&bytes).unwrap();
                assert_eq!(bytes[usize::from(packet.upper_offset) + 13], Step::flags(step));
                packet.flow
            };
            let numbers = (0..300).map(|number| number * 65_535);
            let mut seen = HashSet::new();
            for connection in numbers {
                let flow = case.connection(connection);
                assert!(seen.insert(flow), "{connection}");
                assert_eq!(Flow { opens: false, ..parsed(connection, Step::Syn) }, flow);
                assert_eq!(parsed(connection, Step::Ack), flow);
                assert_eq!(parsed(connection, Step::SynAck), flow.reversed());
            }
        }
    }
}
