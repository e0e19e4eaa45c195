//! Tests failures behind the walk or in memory: rings, neighbours, frames, the cipher.

use std::cell::Cell;

use dataplane::Verdict::{self, Drop, Forward, Hold, Protect};
use dataplane::{DropReason, HoldKind, Input, NetdevId, Outputs, Walk};
use io::MemoryFrames;
use ipsec::SaId;
use packets::lab::{BERLIN, DORA, HOST, Hub, LAN, LAN2, Laboratory, WAN, own};
use packets::table::run;
use packets::{In, Row};
use wire::Family::V4;
use wire::build::PacketBuilder;
use wire::{FrameId, Frames};

use crate::{FAMILIES, between, datagram};

/// Drop reasons that no row of the tables shows. No healthy memory makes the cipher refuse
/// ([`whatever_memory_fails_nothing_leaves_in_clear`]); only among live ports is anything unsteered
/// (`holding`); only the daemon's counters have reservations (`esp`); and one worker hands nothing
/// over (the program `workers`).
pub(crate) const SEEN_ELSEWHERE: [DropReason; 5] = [
    // `fragments`
    DropReason::FragmentTimeout,
    DropReason::CipherRefused,
    DropReason::Unsteered,
    DropReason::SequenceNotReserved,
    DropReason::HandoverFull,
];

#[test]
fn rings_neighbours_and_frames() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    use DropReason::{HopLimit, NoFrame, NoNeighbour, Oversize, TransmitFull};
    let held = Hold(HoldKind::Neighbour);
    let mut rows = vec![];
    for family in FAMILIES {
        let lan = |packet: PacketBuilder| In::Clear(LAN, packet.ip());
        let full: fn(&mut Hub) = |hub| hub.ring = 0;
        let no_router: fn(&mut Hub) = |hub| hub.parts.neighbours.retain(|n| n.port != WAN);
        let one_frame: fn(&mut Hub) = |hub| hub.frames = 1;
        let tight: fn(&mut Hub) = |hub| hub.frame_bytes = 256 + 14 + 200;
        let header = if family == V4 { 28 } else { 48 };
        let to_us =
            PacketBuilder::new(packets::lab::host(family, 1), own(family, 1)).udp(1, 2).ip();
        let nowhere = between(family, 1, 86).udp(1, 2);
        rows.extend([
            Row::new("a full ring, in clear", lan(datagram(family, 1, 12)), Forward(LAN2))
                .with(full)
                .not_transmitted(TransmitFull),
            Row::new("a full ring, sealed", lan(datagram(family, 1, 2)), Protect(BERLIN))
                .with(full)
                .not_transmitted(TransmitFull),
            Row::new("a full host port", In::Clear(LAN, to_us), Verdict::Host)
                .with(full)
                .not_transmitted(TransmitFull),
            Row::new(
                "a host that does not answer",
                {
                    let unknown = PacketBuilder::new(packets::lab::host(family, 12), {
                        let known = packets::lab::host(family, 1);
                        wire::Address { value: known.value + 72, ..known }
                    });
                    In::Clear(LAN2, unknown.udp(1, 2).ip())
                },
                held,
            )
            .not_transmitted(NoNeighbour),
            Row::new("a router that does not answer, sealed", lan(datagram(family, 1, 2)), held)
                .with(no_router)
                .not_transmitted(NoNeighbour),
            Row::new("a router that does not answer, in clear", lan(datagram(family, 1, 8)), held)
                .with(no_router)
                .not_transmitted(NoNeighbour),
            // The message would need a frame: it is not made.
            Row::drops(
                "no frame for an ICMP message",
                lan(datagram(family, 1, 2).hop_limit(1)),
                HopLimit,
            )
            .with(one_frame),
            Row::drops(
                "no room for the ESP trailer",
                lan(between(family, 1, 2).udp(1, 2).payload_of(200 - header)),
                Oversize,
            )
            .with(tight),
        ]);
        if family == V4 {
            rows.push(
                Row::new("a second router that does not answer", lan(nowhere), held)
                    .not_transmitted(NoNeighbour),
            );
            let big = || lan(between(V4, 1, 2).udp(1, 2).payload_of(1600));
            rows.push(Row::drops("no frame for fragments", big(), NoFrame).with(one_frame));
            let two: fn(&mut Hub) = |hub| hub.frames = 2;
            let narrow: fn(&mut Hub) = |hub| hub.parts.ports[usize::from(WAN.0)].mtu = 80;
            let what = "a way with no room for a fragment's data";
            rows.push(Row::drops(what, big(), DropReason::TooBig).with(narrow));
            rows.push(Row::drops("a frame for one of two fragments", big(), NoFrame).with(two));
        }
    }
    rows
}

#[test]
fn a_ring_that_takes_three_drops_the_rest() {
    let mut lab = Hub { ring: 3, ..Hub::default() }.laboratory();
    let outcome = lab.send_all(LAN, &vec![datagram(V4, 1, 2).ip(); 10]);
    assert_eq!(outcome.verdicts, [Protect(BERLIN); 10]);
    assert_eq!(outcome.sent.len(), 3);
    let ledger = lab.counters().total();
    assert_eq!((ledger.received, ledger.sent, ledger.dropped), (10, 3, 7));
    assert_eq!(lab.counters().dropped(DropReason::TransmitFull), 7);
    assert_eq!(lab.counters().transmitted[usize::from(WAN.0)].packets, 3);
}

#[test]
fn fragments_of_a_packet_that_lacks_a_frame_give_back_what_they_took() {
    // The packet itself and two of three fragments; the laboratory checks that all come back.
    let mut lab = Hub { frames: 3, ..Hub::default() }.laboratory();
    let packet = between(V4, 1, 4).udp(1, 2).payload_of(3000).ip();
    for _ in 0..3 {
        assert_eq!(lab.send(LAN, &packet).verdicts, [Drop(DropReason::NoFrame)]);
    }
    assert_eq!(lab.send(LAN, &datagram(V4, 1, 4).ip()).verdicts, [Protect(DORA)]);
    // What did not leave took no sequence number.
    assert_eq!(lab.snapshot.outbound_sa(SaId(2)).sequence.last(), 1);
}

#[test]
fn ledgers_name_the_port_a_packet_came_by() {
    let mut lab = Laboratory::default();
    lab.send(LAN, &datagram(V4, 1, 2).ip());
    lab.send(LAN2, &datagram(V4, 12, 200).ip());
    lab.send(HOST, &PacketBuilder::v4("10.1.0.1", "10.2.0.5").udp(1, 2).ip());
    let outer = lab.peer(BERLIN).seal(&datagram(V4, 2, 1).hop_limit(1).ip());
    lab.send(WAN, &outer);
    let of = |port: dataplane::PortId| lab.counters().ledgers[usize::from(port.0)];
    assert_eq!((of(LAN).received, of(LAN).sent), (1, 1));
    assert_eq!((of(LAN2).received, of(LAN2).dropped), (1, 1));
    assert_eq!((of(HOST).received, of(HOST).sent), (1, 1));
    assert_eq!((of(WAN).received, of(WAN).made, of(WAN).dropped, of(WAN).sent), (1, 1, 1, 1));
}

/// Memory that, from one access for writing on, shows every frame too short for the ICV.
struct BrokenMemory {
    frames: MemoryFrames,
    accesses: Cell<usize>,
    breaks_at: usize,
    shown: usize,
}

impl Frames for BrokenMemory {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        self.frames.bytes(frame)
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        self.accesses.set(self.accesses.get() + 1);
        let bytes = self.frames.bytes_mut(frame);
        let shown = if self.accesses.get() > self.breaks_at { self.shown } else { bytes.len() };
        &mut bytes[..shown]
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        self.accesses.set(self.accesses.get() + 1);
        let named_once = self.frames.many_mut(frames, into);
        if self.accesses.get() > self.breaks_at {
            for bytes in into {
                *bytes = &mut std::mem::take(bytes)[..self.shown];
            }
        }
        named_once
    }

    fn take(&mut self) -> Option<FrameId> {
        self.frames.take()
    }

    fn give(&mut self, frame: FrameId) {
        self.frames.give(frame);
    }
}

/// DESIGN I10: what the cipher refuses is in clear still, and does not leave.
#[test]
fn whatever_memory_fails_nothing_leaves_in_clear() {
    for family in FAMILIES {
        let mut reasons = std::collections::BTreeSet::new();
        for breaks_at in 0..12 {
            let snapshot = Hub::default().snapshot();
            let lab = Laboratory::default();
            let inner = datagram(family, 1, 2).ip();
            let mut frames = MemoryFrames::new(8);
            let packets: Vec<_> = (0..2)
                .map(|_| frames.store(&lab.frame(LAN, &inner)).expect("a frame").into())
                .collect();
            // One byte of the ICV is missing.
            let shown = 256 + 14 + (inner.len() + 2).next_multiple_of(4) + 15;
            let mut memory = BrokenMemory { frames, accesses: Cell::new(0), breaks_at, shown };
            let mut walk = Walk::new(&snapshot);
            let mut out = Outputs::default();
            let input = Input::received(NetdevId(0), &packets);
            walk.run(&snapshot, 0, input, &mut memory, &mut out);
            for (place, verdict) in out.verdicts.iter().enumerate() {
                match verdict.expect("a verdict") {
                    Drop(reason) => _ = reasons.insert(reason),
                    Protect(BERLIN) => {}
                    other => panic!("row {place}: {other:?}"),
                }
            }
            for tx_packet in &out.tx {
                let bytes = memory.frames.packet(tx_packet.packet).expect("in its frame");
                let payload = &inner[inner.len() - 20..];
                let is_clear = bytes.windows(payload.len()).any(|window| window == payload);
                assert!(!is_clear, "{family:?}, memory that breaks at access {breaks_at}");
            }
            let dropped = walk.counters().total().dropped as usize;
            assert_eq!(dropped + out.tx.len(), 2);
            assert_eq!(memory.frames.conservation().held(), out.tx.len());
        }
        let refused = DropReason::CipherRefused;
        assert_eq!(Vec::from_iter(reasons), [DropReason::Oversize, refused]);
    }
}
