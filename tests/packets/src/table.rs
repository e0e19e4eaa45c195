//! One row of a packet table: what arrives, its verdict, what leaves.

use std::rc::Rc;

use dataplane::{DropReason, HoldKind, PortId, SetIndex, Verdict};
use wire::checksum;
use wire::flow::protocol;

use crate::lab::{self, Hub, Laboratory, Outcome, WAN};
use crate::peer::Peer;

/// A function by which a peer makes a packet that no peer should send.
type Craft = Rc<dyn Fn(&mut Peer) -> Vec<u8>>;

/// A packet that arrives.
#[derive(Clone)]
pub enum In {
    /// An IP packet in clear.
    Clear(PortId, Vec<u8>),
    /// A frame as it is, on the netdev of this port.
    Frame(PortId, Vec<u8>),
    /// An IP packet sealed by this peer, by the unprotected port.
    Sealed(SetIndex, Vec<u8>),
    /// An IP packet that the card of the unprotected port opened by the SA of this set.
    Opened(SetIndex, Vec<u8>),
    /// An outer IP packet of this peer, by the unprotected port: see [`In::crafted`].
    Crafted(SetIndex, Craft),
}

impl In {
    /// An outer IP packet that the peer makes in its own way.
    pub fn crafted(set: SetIndex, craft: impl Fn(&mut Peer) -> Vec<u8> + 'static) -> In {
        In::Crafted(set, Rc::new(craft))
    }

    /// Lets it arrive.
    pub fn arrive(&self, lab: &mut Laboratory) -> Outcome {
        match self {
            In::Clear(port, packet) => lab.send(*port, packet),
            In::Frame(port, frame) => {
                let netdev = lab.snapshot.port(*port).netdev;
                lab.send_frames(netdev, &[frame])
            }
            In::Sealed(set, packet) => {
                let sealed = lab.peer(*set).seal(packet);
                lab.send(WAN, &sealed)
            }
            In::Opened(set, packet) => {
                let [_, tag] = lab::tags(*set);
                let frame = lab.frame(WAN, packet);
                lab.send_marked(lab::CARD, &[(frame, Some(lab::opened_mark(lab::CARD, tag)))])
            }
            In::Crafted(set, craft) => {
                let outer = craft(lab.peer(*set));
                lab.send(WAN, &outer)
            }
        }
    }
}

/// A packet that leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// An IP packet in clear, by this port.
    Clear(PortId, Vec<u8>),
    /// An IP packet that this peer opens, by the unprotected port.
    Sealed(SetIndex, Vec<u8>),
}

/// A row: a description, a packet, its verdict, the packets out.
#[derive(Clone)]
pub struct Row {
    /// Description of the row, shown when it fails.
    pub description: String,
    /// Change to the gateway for this row.
    pub hub: Rc<dyn Fn(&mut Hub)>,
    /// Packets that arrived before.
    pub before: Vec<In>,
    /// The packet that arrives.
    pub packet: In,
    /// Verdict on the packet; behind it verdicts on the packets made, if any.
    pub verdicts: Vec<Verdict>,
    /// Packets that leave, in order.
    pub out: Vec<Out>,
    /// Reasons for which the transmitter drops packets behind the walk.
    pub not_transmitted: Vec<DropReason>,
    /// Reasons for which fragments are dropped that arrived before and waited.
    pub in_vain: Vec<DropReason>,
}

impl Row {
    /// A row whose packet has this verdict and from which nothing leaves.
    pub fn new(description: impl Into<String>, packet: In, verdict: Verdict) -> Row {
        Row {
            description: description.into(),
            hub: Rc::new(|_| {}),
            before: vec![],
            packet,
            verdicts: vec![verdict],
            out: vec![],
            not_transmitted: vec![],
            in_vain: vec![],
        }
    }

    /// A row whose packet is dropped.
    pub fn drops(description: impl Into<String>, packet: In, reason: DropReason) -> Row {
        Row::new(description, packet, Verdict::Drop(reason))
    }

    /// A row whose packet waits for the first fragment of its datagram.
    pub fn waits(description: impl Into<String>, packet: In) -> Row {
        Row::new(description, packet, Verdict::Hold(HoldKind::Fragment))
    }

    /// A row whose packet leaves, in clear or sealed.
    pub fn passes(description: impl Into<String>, packet: In, out: Out) -> Row {
        let verdict = match &out {
            Out::Clear(port, _) => Verdict::Forward(*port),
            Out::Sealed(set, _) => Verdict::Protect(*set),
        };
        Row::new(description, packet, verdict).out(out)
    }

    /// A row whose packet is handed to Linux by the host port.
    pub fn delivers(description: impl Into<String>, packet: In, delivered: Vec<u8>) -> Row {
        Row::new(description, packet, Verdict::Host).out(Out::Clear(crate::lab::HOST, delivered))
    }

    /// Changes the gateway.
    pub fn with(mut self, hub: impl Fn(&mut Hub) + 'static) -> Row {
        self.hub = Rc::new(hub);
        self
    }

    /// Adds a packet that arrived before.
    pub fn after(mut self, packet: In) -> Row {
        self.before.push(packet);
        self
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

    /// Adds a drop by who transmits.
    pub fn not_transmitted(mut self, reason: DropReason) -> Row {
        self.not_transmitted.push(reason);
        self
    }

    /// Adds a drop of a fragment that arrived before and waited.
    pub fn in_vain(mut self, reason: DropReason) -> Row {
        self.in_vain.push(reason);
        self
    }

    /// Runs the row in a laboratory of its own and returns it with the outcome.
    ///
    /// # Panics
    /// If anything comes otherwise than the row says, or the books do not balance.
    pub fn run(&self) -> (Laboratory, Outcome) {
        self.run_in(Hub::laboratory)
    }

    /// Runs the row as [`Row::run`] does, in a laboratory that is made of the gateway in some other
    /// way.
    ///
    /// # Panics
    /// As [`Row::run`].
    pub fn run_in(&self, laboratory: impl Fn(Hub) -> Laboratory) -> (Laboratory, Outcome) {
        let mut hub = Hub::default();
        (self.hub)(&mut hub);
        let mut lab = laboratory(hub);
        self.before.iter().for_each(|packet| drop(packet.arrive(&mut lab)));
        let drops_before = lab.counters().drops;
        let outcome = self.packet.arrive(&mut lab);

        let what = &self.description;
        assert_eq!(outcome.verdicts, self.verdicts, "{what}: verdicts");
        let left = opened(&mut lab, &outcome);
        assert_eq!(left.len(), self.out.len(), "{what}: packets out: {left:x?}");
        for (place, (left, expected)) in left.iter().zip(&self.out).enumerate() {
            assert_eq!(left, expected, "{what}: packet out {place}");
        }
        for reason in DropReason::ALL {
            let by_verdict =
                self.verdicts.iter().filter(|verdict| **verdict == Verdict::Drop(*reason)).count();
            let besides = self.not_transmitted.iter().chain(&self.in_vain);
            let besides = besides.filter(|dropped| *dropped == reason).count();
            let counted = lab.counters().dropped(*reason) - drops_before[*reason as usize];
            assert_eq!(counted, (by_verdict + besides) as u64, "{what}: drops {reason}");
        }
        (lab, outcome)
    }
}

/// Runs every row.
///
/// # Panics
/// As [`Row::run`].
pub fn run(rows: &[Row]) {
    assert!(!rows.is_empty(), "a table has rows");
    for row in rows {
        row.run();
    }
}

/// Returns the packets that left, each opened by the peer that can.
///
/// # Panics
/// If ESP left by the unprotected port that no peer opens, or a packet that nobody has sealed.
pub fn opened(lab: &mut Laboratory, outcome: &Outcome) -> Vec<Out> {
    let peers = crate::lab::agreements().map(|agreement| agreement.index);
    let mut left = vec![];
    for sent in &outcome.sent {
        assert_eq!(sent.to_seal, None, "no card is there that seals it");
        let by = peers.iter().find_map(|set| Some((*set, lab.peer(*set).open(&sent.packet)?)));
        left.push(match by {
            Some((set, opened)) => {
                assert_eq!(sent.port, WAN, "sealed packets leave by the unprotected port");
                Out::Sealed(set, opened.inner)
            }
            None => {
                let parsed = wire::packet::parse(&sent.packet);
                let is_esp = parsed.is_ok_and(|packet| packet.flow.protocol == protocol::ESP);
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
