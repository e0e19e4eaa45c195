//! The counts of the table, and what they may reach.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use super::half_open::EvictionHands;
use super::key::ZoneSlot;

/// The bound that refused a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// No line is free, and none may be taken.
    TableFull,
    /// As many connections are half-open as may be.
    HalfOpenLimit,
    /// The zone has as many connections as it may have.
    ZoneLimit,
    /// The zone has as many half-open connections as it may have.
    ZoneHalfOpenLimit,
}

impl Refusal {
    /// All bounds.
    pub const ALL: [Refusal; 4] = [
        Refusal::TableFull,
        Refusal::HalfOpenLimit,
        Refusal::ZoneLimit,
        Refusal::ZoneHalfOpenLimit,
    ];

    /// The bound's name, as operators see it.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::TableFull => "max",
            Refusal::HalfOpenLimit => "half_open",
            Refusal::ZoneLimit => "per_port",
            Refusal::ZoneHalfOpenLimit => "half_open_per_port",
        }
    }

    pub(super) fn is_of_zone(self) -> bool {
        matches!(self, Refusal::ZoneLimit | Refusal::ZoneHalfOpenLimit)
    }
}

/// Sizes of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of IPv4 in all; one of IPv6 counts as two.
    pub max: u32,
    /// Half-open connections in all, counted likewise.
    pub half_open: u32,
    /// Connections of a zone.
    pub per_zone: u32,
    /// Half-open connections of a zone.
    pub half_open_per_zone: u32,
}

impl Limits {
    /// Bytes of a table: 128 for each connection, and two to four slots of 8 for each half-open
    /// connection.
    pub fn table_bytes(&self) -> u64 {
        let slots = super::half_open::slots_for(self.half_open);
        u64::from(self.max) * 128 + slots as u64 * 8
    }

    /// Limits of a table of this size: a quarter may be half-open; each zone may have all of it,
    /// and half of what may be half-open. Room for one is always there.
    pub fn of(max: u32) -> Limits {
        let max = max.max(2);
        let half_open = (max / 4).max(2);
        Limits { max, half_open, per_zone: max, half_open_per_zone: half_open / 2 }
    }
}

/// Counts of a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneCounts {
    /// Slot of the port or virtual network.
    pub attachment: u16,
    /// Connections, half-open ones among them.
    pub live: u32,
    /// Half-open connections.
    pub half_open: u32,
}

/// Counts of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCounts {
    /// Lines of connections: one of IPv4, two of IPv6.
    pub lines: u32,
    /// Lines of half-open connections.
    pub half_open_lines: u32,
    /// Connections that were made.
    pub made: u64,
    /// Connections that ended by their time-out.
    pub expired: u64,
    /// Connections that gave way to others before their time-out: half-open or closed ones.
    pub replaced: u64,
    /// Connections that were refused, by bound, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
}

/// Slots of zones: ports and virtual networks have numbers of 16 bits.
const ZONES: usize = 1 << 16;

/// Two counts in one word: all, and half-open ones.
#[derive(Default)]
struct Pair(AtomicU64);

impl Pair {
    fn word(all: u32, half_open: u32) -> u64 {
        u64::from(all) | u64::from(half_open) << 32
    }

    fn read(&self) -> (u32, u32) {
        let word = self.0.load(Relaxed);
        (word as u32, (word >> 32) as u32)
    }

    /// Adds, or names the first exceeded limit. Moves a hand of the count to `tail`, the position
    /// of the next half-open connection, if the hand begins with this addition.
    ///
    /// The tail is read before the exchange. A thread with a later exchange therefore inserts at
    /// that position or behind.
    fn reserve(
        &self,
        add: (u32, u32),
        limits: (u32, u32),
        (hands, tail): (&EvictionHands<AtomicU64>, &impl Fn() -> u64),
    ) -> Result<(), Exceeded> {
        let add = Pair::word(add.0, add.1);
        let mut seen = self.0.load(Relaxed);
        loop {
            let new = seen + add;
            if new as u32 > limits.0 {
                return Err(Exceeded::All);
            }
            // What is not half-open is not refused for what is.
            if add >> 32 > 0 && (new >> 32) as u32 > limits.1 {
                return Err(Exceeded::HalfOpen);
            }
            let half_open = [(seen >> 32) as u32, (new >> 32) as u32];
            let moves = EvictionHands::<AtomicU64>::moves(half_open, limits.1);
            let tail = moves.map(|hand| (hand, tail()));
            match self.0.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
                Ok(_) => {
                    tail.into_iter().for_each(|(hand, tail)| hands.put(hand, tail));
                    return Ok(());
                }
                Err(other) => seen = other,
            }
        }
    }

    fn take(&self, all: u32, half_open: u32) {
        self.0.fetch_sub(Pair::word(all, half_open), Relaxed);
    }
}

enum Exceeded {
    All,
    HalfOpen,
}

/// A zone's counts, and the hands of its evictions.
#[derive(Default)]
struct ZoneEntry {
    counts: Pair,
    hands: EvictionHands<AtomicU64>,
}

/// The counts.
pub(super) struct Tally {
    pub(super) limits: Limits,
    lines: Pair,
    /// The hands of evictions from all zones.
    hands: EvictionHands<AtomicU64>,
    pub(super) made: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) replaced: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    /// By slot.
    zones: Box<[ZoneEntry]>,
}

/// A connection's part in the counts.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) zone: ZoneSlot,
    /// Lines.
    pub(super) width: u32,
    pub(super) is_half_open: bool,
}

impl Tally {
    pub(super) fn new(limits: Limits) -> Tally {
        Tally {
            limits,
            lines: Pair::default(),
            hands: EvictionHands::default(),
            made: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            refused: Default::default(),
            zones: (0..ZONES).map(|_| ZoneEntry::default()).collect(),
        }
    }

    fn pair(&self, slot: ZoneSlot) -> &Pair {
        &self.zones[usize::from(slot.0)].counts
    }

    /// The hands of a zone's evictions; without a zone, of evictions from all zones.
    pub(super) fn hands(&self, zone: Option<ZoneSlot>) -> &EvictionHands<AtomicU64> {
        zone.map_or(&self.hands, |slot| &self.zones[usize::from(slot.0)].hands)
    }

    /// Counts a connection. `tail` returns the position of the next half-open connection.
    pub(super) fn reserve(&self, share: Share, tail: impl Fn() -> u64) -> Result<(), Refusal> {
        let half_open = u32::from(share.is_half_open);
        let zone = &self.zones[usize::from(share.zone.0)];
        let limits = (self.limits.per_zone, self.limits.half_open_per_zone);
        zone.counts.reserve((1, half_open), limits, (&zone.hands, &tail)).map_err(
            |it| match it {
                Exceeded::All => Refusal::ZoneLimit,
                Exceeded::HalfOpen => Refusal::ZoneHalfOpenLimit,
            },
        )?;
        let add = (share.width, half_open * share.width);
        let limits = (self.limits.max, self.limits.half_open);
        let reserved = self.lines.reserve(add, limits, (&self.hands, &tail));
        reserved.map_err(|exceeded| {
            zone.counts.take(1, half_open);
            match exceeded {
                Exceeded::All => Refusal::TableFull,
                Exceeded::HalfOpen => Refusal::HalfOpenLimit,
            }
        })
    }

    /// Counts a connection no more.
    pub(super) fn give_back(&self, share: Share) {
        let half_open = u32::from(share.is_half_open);
        self.pair(share.zone).take(1, half_open);
        self.lines.take(share.width, half_open * share.width);
    }

    /// Counts an assured connection as half-open. `tail`: as for [`reserve`](Self::reserve).
    pub(super) fn reserve_half_open(
        &self,
        zone: ZoneSlot,
        width: u32,
        tail: impl Fn() -> u64,
    ) -> Result<(), Refusal> {
        let zone = &self.zones[usize::from(zone.0)];
        let limits = (u32::MAX, self.limits.half_open_per_zone);
        let reserved = zone.counts.reserve((0, 1), limits, (&zone.hands, &tail));
        reserved.map_err(|_| Refusal::ZoneHalfOpenLimit)?;
        let limits = (u32::MAX, self.limits.half_open);
        self.lines.reserve((0, width), limits, (&self.hands, &tail)).map_err(|_| {
            zone.counts.take(0, 1);
            Refusal::HalfOpenLimit
        })
    }

    /// Counts a connection that is there as half-open no more.
    pub(super) fn give_back_half_open(&self, zone: ZoneSlot, width: u32) {
        self.pair(zone).take(0, 1);
        self.lines.take(0, width);
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> TableCounts {
        let (lines, half_open_lines) = self.lines.read();
        TableCounts {
            lines,
            half_open_lines,
            made: self.made.load(Relaxed),
            expired: self.expired.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            refused: std::array::from_fn(|at| self.refused[at].load(Relaxed)),
        }
    }

    /// Half-open connections of a zone, or half-open lines of all.
    pub(super) fn half_open(&self, zone: Option<ZoneSlot>) -> u32 {
        zone.map_or(&self.lines, |slot| self.pair(slot)).read().1
    }

    /// Connections of a zone.
    pub(super) fn live(&self, slot: ZoneSlot) -> u32 {
        self.pair(slot).read().0
    }

    pub(super) fn zones(&self) -> impl Iterator<Item = ZoneCounts> {
        (0..=u16::MAX).zip(&self.zones).filter_map(|(attachment, zone)| {
            let (live, half_open) = zone.counts.read();
            (live > 0).then_some(ZoneCounts { attachment, live, half_open })
        })
    }
}
