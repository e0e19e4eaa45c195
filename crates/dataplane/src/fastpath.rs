//! The fast path: packets whose path is known as a whole leave at once, by prepared headers.
//!
//! ```text
//! look    1. each packet: one chain of compares, its flow as the words of a key
//!         2. the cache, all keys together; the tables, about what it does not know
//!         3. what was said becomes a path, one for many packets
//! finish  4. a run of such packets, one after the other: everything that is written
//!         5. the cipher
//! ```
//! Sealed packets are looked at likewise, opened run by run, and then judged by what was in them;
//! those that a network card opened are looked at as in clear, and judged as opened.
//! Overlay packets to an entrance have a look of their own, which asks the table of endpoints.
//!
//! It says only what the general walk would say. What it does not take, a packet with options or
//! fragments, without a known neighbour, with its last hop, goes by the general walk, at its place
//! in the order: until `finish` nothing of a packet has changed, and no counter but those of the
//! cache. What a packet is asked besides its flow, it is asked before its flow is remembered, or in
//! `look`.
//!
//! **Runs.** Packets leave in the order in which they came: `look` marks those that it takes, and
//! the walk goes over runs of marked and of other packets in turn. So a batch is walked as if it
//! had been received in pieces. Where they would be many, the general walk takes all of it: see
//! [`MOST_RUNS`].

mod ahead;
mod audited;
mod by_card;
mod carry;
mod clear;
mod connection_keys;
mod emit;
mod finish;
mod judge;
mod limited;
mod marked;
mod overlay;
mod prepared_path;
mod sealed;
mod segments;
mod tagged;
mod tracked;

use std::ops::Range;

use ipsec::{OpenJob, SealJob};
use policy::Scope;
use wire::link::Entrance;
use wire::{BATCH, FrameId, Frames, Received};

use crate::batch_context::BatchContext;
use crate::cache::{Column, FlowCache, bits};
use crate::ids::{NetdevId, PortId};
use crate::port::{Medium, Side};
use crate::stage::StageClock;
use by_card::CardOpeners;
use connection_keys::TrackingColumns;
use judge::Learning;
use overlay::{Entry, OverlayColumns};
use prepared_path::{PathId, PreparedPaths};
use sealed::Opening;

/// Runs of a batch that the fast path takes at most; what is behind them is the general walk's.
const MOST_RUNS: u32 = 4;
/// Runs from which on the general walk takes the whole batch.
const TOO_MANY_RUNS: u32 = 9;
/// Batches that are not looked at, at most, after several of which nothing was taken: a look that
/// finds nothing costs a tenth of a walk.
const LONGEST_PAUSE: u32 = 15;

/// A packet on its way through the fast path.
#[derive(Clone, Copy, Default)]
struct Row {
    /// Offset of its IP header in the frame.
    ip: u32,
    /// Bytes of the IP packet.
    length: u32,
    path: PathId,
    /// The place of the decision that gave it the path. Before it is opened: the ECN field of the
    /// packet outside.
    decision: u16,
}

/// Columns of a batch: one entry a packet.
struct Columns {
    rows: [Row; BATCH],
    v4: Column<2>,
    v6: Column<6>,
    seal_jobs: [SealJob; BATCH],
    open_jobs: [OpenJob; BATCH],
    /// Of opened packets.
    scopes: [Scope; BATCH],
}

/// A worker's fast path.
pub(crate) struct FastPath {
    columns: Box<Columns>,
    paths: PreparedPaths,
    learning: Learning,
    tracking: Box<TrackingColumns>,
    opening: Opening,
    card_openers: CardOpeners,
    overlay: Box<OverlayColumns>,
    /// The port of the batch.
    gate: Gate,
    /// The entrance that its packets are for; `None`: they are for none.
    entry: Option<Entry>,
    /// True if what is taken of the batch was opened by cards.
    by_card: bool,
    /// TCP segments with SYN: a bit a packet.
    syn: u64,
    /// Packets whose flow had no entry in the cache.
    misses: u64,
    /// Packets that were decided by a card's tag: a bit a packet.
    tagged: u64,
    /// True if packets are counted as looked up.
    counts_lookups: bool,
    pause: Pause,
    /// Packets that a capture looks at.
    shown: Vec<crate::row::Row>,
}

/// The port that the common packets of a batch come by.
#[derive(Clone, Copy)]
struct Gate {
    ingress: PortId,
    side: Side,
    entrance: Entrance,
    is_tagged: bool,
}

/// A pause in which batches are not looked at: none after the first of which nothing is taken,
/// because it has too many runs or none, and longer after each that follows it.
struct Pause {
    /// Batches until the next look.
    batches: u32,
    /// Batches of the next pause.
    next: u32,
    longest: u32,
}

impl Pause {
    /// Returns whether this batch is left out.
    #[inline]
    fn rests(&mut self) -> bool {
        let rests = self.batches > 0;
        self.batches = self.batches.saturating_sub(1);
        rests
    }

    #[cold]
    fn begin(&mut self) {
        self.batches = self.next;
        self.next = (2 * self.next + 1).min(self.longest);
    }

    #[inline]
    fn end(&mut self) {
        self.next = 0;
    }
}

impl Default for FastPath {
    fn default() -> FastPath {
        let columns = Columns {
            rows: [Row::default(); BATCH],
            v4: Column::default(),
            v6: Column::default(),
            seal_jobs: [SealJob::of(FrameId(0)); BATCH],
            open_jobs: [OpenJob::of(FrameId(0)); BATCH],
            scopes: [Scope::default(); BATCH],
        };
        let nobody = wire::LinkAddress::new([0; 6]);
        let entrance = Entrance::new(nobody, None);
        let gate = Gate { ingress: PortId(0), side: Side::Protected, entrance, is_tagged: false };
        FastPath {
            columns: Box::new(columns),
            paths: PreparedPaths::default(),
            learning: Learning::default(),
            tracking: Box::default(),
            opening: Opening::default(),
            card_openers: CardOpeners::default(),
            overlay: Box::default(),
            gate,
            entry: None,
            by_card: false,
            syn: 0,
            misses: 0,
            tagged: 0,
            counts_lookups: false,
            pause: Pause { batches: 0, next: 0, longest: LONGEST_PAUSE },
            shown: Vec::new(),
        }
    }
}

impl FastPath {
    /// A fast path that looks at every batch.
    pub(crate) fn eager() -> FastPath {
        let mut eager = FastPath::default();
        eager.pause.longest = 0;
        eager
    }

    /// Returns the packets of a batch that it takes: a bit a packet. Changes nothing but what the
    /// cache remembers, and its counters.
    #[inline]
    pub(crate) fn look<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        netdev: NetdevId,
        packets: &[Received],
        cache: Option<&mut FlowCache>,
        clock: &mut impl StageClock,
    ) -> u64 {
        if self.pause.rests() {
            return 0;
        }
        for Received { packet, .. } in packets {
            context.frames.prefetch(packet.frame, packet.offset);
        }
        let Some(gate) = gate(context, netdev, packets) else { return 0 };
        self.gate = gate;
        self.paths.clear();
        (self.misses, self.syn, self.tagged, self.counts_lookups) = (0, 0, 0, false);
        self.entry = match gate.side {
            Side::Protected => overlay::entry(context, &gate, packets),
            Side::Unprotected => None,
        };
        self.by_card = by_card::may_be(context);
        if self.by_card {
            return match (gate.side, gate.is_tagged) {
                (Side::Unprotected, false) => {
                    self.look_opened::<14, F>(context, (netdev, packets), cache, clock)
                }
                (Side::Unprotected, true) => {
                    self.look_opened::<18, F>(context, (netdev, packets), cache, clock)
                }
                (Side::Protected, _) => 0,
            };
        }
        if let Some(entry) = self.entry {
            return match gate.is_tagged {
                false => self.look_overlay::<14, F>(context, packets, &entry, clock),
                true => self.look_overlay::<18, F>(context, packets, &entry, clock),
            };
        }
        match (gate.side, gate.is_tagged) {
            (Side::Protected, false) => self.look_clear::<14, F>(context, packets, cache, clock),
            (Side::Protected, true) => self.look_clear::<18, F>(context, packets, cache, clock),
            (Side::Unprotected, false) => self.look_sealed::<14, F>(context, packets, clock),
            (Side::Unprotected, true) => self.look_sealed::<18, F>(context, packets, clock),
        }
    }

    /// Returns whether what [`look`](Self::look) took is sealed.
    #[inline]
    pub(crate) fn is_sealed(&self) -> bool {
        self.gate.side == Side::Unprotected && !self.by_card
    }

    /// Of packets that look common, those that are taken.
    #[inline(always)]
    fn taken(&mut self, common: u64) -> u64 {
        let begins = common & !(common << 1);
        if (1..=MOST_RUNS).contains(&begins.count_ones()) {
            self.pause.end();
            return common;
        }
        self.first_runs(common, begins)
    }

    #[cold]
    fn first_runs(&mut self, common: u64, begins: u64) -> u64 {
        if begins == 0 || begins.count_ones() >= TOO_MANY_RUNS {
            self.pause.begin();
            return 0;
        }
        let behind = bits(begins).nth(MOST_RUNS as usize).unwrap_or(63);
        common & ((1 << behind) - 1)
    }
}

/// Returns the port that the first packet came by. `None`: its packets are not for the fast path.
#[inline]
fn gate<F: Frames>(
    context: &BatchContext<'_, F>,
    netdev: NetdevId,
    packets: &[Received],
) -> Option<Gate> {
    let snapshot = context.snapshot;
    let vlan = match snapshot.has_tagged(netdev) {
        false => None,
        true => first_tag(context.frames, packets.first()?),
    };
    let ingress = snapshot.port_of(netdev, vlan)?;
    let port = snapshot.path_port(ingress);
    if port.medium != Medium::Ethernet || snapshot.host() == Some(ingress) {
        return None;
    }
    let entrance = Entrance::new(port.mac, vlan);
    Some(Gate { ingress, side: port.side, entrance, is_tagged: vlan.is_some() })
}

/// The VLAN of a packet.
#[cold]
fn first_tag<F: Frames>(frames: &F, received: &Received) -> Option<u16> {
    let frame = frames.bytes(received.packet.frame);
    let packet = frame.get(received.packet.offset as usize..)?;
    match wire::link::Link::parse(packet)?.tag {
        wire::link::Tag::Vlan(id) => Some(id),
        wire::link::Tag::Untagged | wire::link::Tag::Stacked => None,
    }
}

/// The bits of a range.
#[inline(always)]
fn mask_of(range: &Range<usize>) -> u64 {
    if range.is_empty() { 0 } else { u64::MAX >> (BATCH - range.len()) << range.start }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of a mask, as they are counted.
    fn begins(mask: u64) -> u32 {
        (mask & !(mask << 1)).count_ones()
    }

    #[test]
    fn a_batch_is_taken_up_to_its_fourth_run() {
        let mut fast = FastPath::eager();
        for mask in [1, u64::MAX, 1 << 63, 0b1011_0111, 0b101_0101] {
            assert!(begins(mask) <= MOST_RUNS);
            assert_eq!(fast.taken(mask), mask, "{mask:b}");
        }
        for (mask, taken) in [
            (0b1_0101_0101, 0b0_0101_0101),
            (0b1101_1011_0110_1100, 0b0001_1011_0110_1100),
            (1 << 63 | 0b101_0101, 0b101_0101),
        ] {
            assert_eq!(fast.taken(mask), taken, "{mask:b}");
        }
        assert_eq!(fast.taken(0x5555), 0x55, "eight runs");
        assert_eq!(fast.taken(0x1_5555), 0, "nine runs");
        assert_eq!(fast.taken(0), 0);
    }

    #[test]
    fn while_nothing_is_taken_one_batch_in_sixteen_is_looked_at() {
        let mut fast = FastPath::default();
        let mut looked_at = Vec::new();
        for batch in 0..100 {
            if !fast.pause.rests() {
                looked_at.push(batch);
                fast.taken(0);
            }
        }
        assert_eq!(looked_at, [0, 1, 3, 7, 15, 31, 47, 63, 79, 95]);
        while fast.pause.rests() {}
        fast.taken(1);
        fast.taken(0);
        assert!(!fast.pause.rests(), "after one that was taken it begins anew");
    }

    #[test]
    fn the_bits_of_a_range_are_its_places() {
        for (range, mask) in
            [(0..0, 0), (0..1, 1), (0..64, u64::MAX), (63..64, 1 << 63), (2..5, 28)]
        {
            assert_eq!(mask_of(&range), mask);
        }
    }
}
