//! One row of a packet table: what arrives, its verdict, what leaves.

use dataplane::{PortId, SetIndex, Verdict};
use wire::checksum;

use crate::lab::{HOST, LAN, Laboratory, Outcome, WAN};

/// What arrives.
#[derive(Clone, Debug)]
pub enum In {
    /// An IP packet in clear.
    Clear(PortId, Vec<u8>),
    /// A frame as it is, on the device of this port.
    Frame(PortId, Vec<u8>),
    /// An IP packet sealed by this peer, by the unprotected port.
    Sealed(SetIndex, Vec<u8>),
}

/// What leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// An IP packet in clear, by this port.
    Clear(PortId, Vec<u8>),
    /// An IP packet that this peer opens, by the unprotected port.
    Sealed(SetIndex, Vec<u8>),
}

/// A row: a description, a packet, its verdict, the packets out.
#[derive(Clone, Debug)]
pub struct Row {
    /// What the row says, shown when it fails.
    pub description: String,
    /// What arrives.
    pub packet: In,
    /// What becomes of it; behind it verdicts of what was made, if any.
    pub verdicts: Vec<Verdict>,
    /// What leaves, in order.
    pub out: Vec<Out>,
}

impl Row {
    /// A row whose packet has this verdict and from which nothing leaves.
    pub fn new(description: impl Into<String>, packet: In, verdict: Verdict) -> Row {
        Row { description: description.into(), packet, verdicts: vec![verdict], out: vec![] }
    }

    /// Adds a packet that leaves.
    pub fn out(mut self, out: Out) -> Row {
        self.out.push(out);
        self
    }

    /// Adds the verdict of a packet that is made.
    pub fn makes(mut self, verdict: Verdict) -> Row {
        self.verdicts.push(verdict);
        self
    }

    /// Runs the row in this laboratory.
    ///
    /// # Panics
    /// If anything comes otherwise than the row says, or the books do not balance.
    pub fn run(&self, lab: &mut Laboratory) -> Outcome {
        let outcome = match &self.packet {
            In::Clear(port, packet) => lab.send(*port, packet),
            In::Frame(port, frame) => {
                let device = lab.snapshot.port(*port).device;
                lab.send_frames(device, &[frame])
            }
            In::Sealed(set, packet) => {
                let sealed = lab.peer(*set).seal(packet);
                lab.send(WAN, &sealed)
            }
        };
        let what = &self.description;
        assert_eq!(outcome.verdicts, self.verdicts, "{what}: verdicts");
        let left = opened(lab, &outcome);
        assert_eq!(left.len(), self.out.len(), "{what}: packets out: {left:x?}");
        for (place, (left, expected)) in left.iter().zip(&self.out).enumerate() {
            assert_eq!(left, expected, "{what}: packet out {place}");
        }
        outcome
    }
}

/// What left, each packet opened by the peer that can.
///
/// # Panics
/// If ESP left that no peer opens.
pub fn opened(lab: &mut Laboratory, outcome: &Outcome) -> Vec<Out> {
    let peers = crate::lab::agreements().map(|agreement| agreement.index);
    let mut left = vec![];
    for sent in &outcome.sent {
        let parsed = wire::packet::parse(&sent.packet);
        let is_esp = parsed.is_ok_and(|packet| packet.flow.protocol == wire::flow::protocol::ESP);
        let by = peers.iter().find_map(|set| Some((*set, lab.peer(*set).open(&sent.packet)?)));
        left.push(match by {
            Some((set, opened)) => {
                assert_eq!(sent.port, WAN, "sealed packets leave by the unprotected port");
                Out::Sealed(set, opened.inner)
            }
            None => {
                let is_ours = is_esp && sent.port == WAN;
                assert!(!is_ours, "ESP that nobody can open: {:x?}", sent.packet);
                Out::Clear(sent.port, sent.packet.clone())
            }
        });
    }
    left
}

/// The packet as a router forwards it: TTL or hop limit less one, the IPv4 header checksum anew.
pub fn forwarded(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
    } else {
        packet[8] -= 1;
        sum_header(&mut packet);
    }
    packet
}

/// Writes the right IPv4 header checksum.
pub fn sum_header(packet: &mut [u8]) {
    let header_bytes = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&packet[..header_bytes]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The ports by which clear packets arrive, for tests that go over all of them.
pub const CLEAR_PORTS: [PortId; 3] = [LAN, WAN, HOST];
