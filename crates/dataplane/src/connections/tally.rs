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

    fn of_zone(exceeded: Exceeded) -> Refusal {
        match exceeded {
            Exceeded::All => Refusal::ZoneLimit,
            Exceeded::HalfOpen => Refusal::ZoneHalfOpenLimit,
        }
    }

    fn of_table(exceeded: Exceeded) -> Refusal {
        match exceeded {
            Exceeded::All => Refusal::TableFull,
            Exceeded::HalfOpen => Refusal::HalfOpenLimit,
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
    /// Bytes of a table: 128 for each connection, and two to four slots of 12 for each half-open
    /// connection.
    pub fn table_bytes(&self) -> u64 {
        let slots = super::half_open::slots_for(self.half_open);
        let order = slots * 8 + super::latest_slots::bytes_for(slots);
        u64::from(self.max) * 128 + order as u64
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

/// Connections or lines, and the half-open ones among them.
#[derive(Clone, Copy)]
struct CountPair {
    all: u32,
    half_open: u32,
}

impl CountPair {
    fn word(self) -> u64 {
        u64::from(self.all) | u64::from(self.half_open) << 32
    }

    fn of(word: u64) -> CountPair {
        CountPair { all: word as u32, half_open: (word >> 32) as u32 }
    }

    /// Returns the sum of two pairs, or the first exceeded limit.
    fn with(self, add: CountPair, limits: CountPair) -> Result<CountPair, Exceeded> {
        let sum = CountPair::of(self.word() + add.word());
        match sum {
            _ if sum.all > limits.all => Err(Exceeded::All),
            // A connection in another state is not refused for half-open ones.
            _ if add.half_open > 0 && sum.half_open > limits.half_open => Err(Exceeded::HalfOpen),
            _ => Ok(sum),
        }
    }
}

/// The hands of evictions under a bound, and the position at which a hand begins.
struct HandStart<'h, T> {
    hands: &'h EvictionHands<AtomicU64>,
    /// Returns the position of the next half-open connection.
    tail: &'h T,
}

/// A pair of counts in one word.
#[derive(Default)]
struct SharedCounts(AtomicU64);

impl SharedCounts {
    fn read(&self) -> CountPair {
        CountPair::of(self.0.load(Relaxed))
    }

    /// Adds, or names the first exceeded limit. Moves a hand of the count to `tail`, the position
    /// of the next half-open connection, if the hand begins with this addition.
    ///
    /// The tail is read before the exchange. A thread with a later exchange therefore inserts at
    /// that position or behind.
    fn reserve(
        &self,
        add: CountPair,
        limits: CountPair,
        start: &HandStart<'_, impl Fn() -> u64>,
    ) -> Result<(), Exceeded> {
        let mut seen = self.0.load(Relaxed);
        loop {
            let before = CountPair::of(seen);
            let after = before.with(add, limits)?;
            let new = after.word();
            let half_open = [before.half_open, after.half_open];
            let moves = EvictionHands::<AtomicU64>::moves(half_open, limits.half_open);
            let tail = moves.map(|hand| (hand, (start.tail)()));
            match self.0.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
                Ok(_) => {
                    tail.into_iter().for_each(|(hand, tail)| start.hands.put(hand, tail));
                    return Ok(());
                }
                Err(other) => seen = other,
            }
        }
    }

    fn take(&self, part: CountPair) {
        self.0.fetch_sub(part.word(), Relaxed);
    }
}

enum Exceeded {
    All,
    HalfOpen,
}

/// A zone's counts, and the hands of its evictions.
#[derive(Default)]
struct ZoneEntry {
    counts: SharedCounts,
    hands: EvictionHands<AtomicU64>,
}

/// The counts.
pub(super) struct Tally {
    pub(super) limits: Limits,
    lines: SharedCounts,
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

impl Share {
    /// Counts of the connection in the zone.
    fn connection(self) -> CountPair {
        CountPair { all: 1, half_open: u32::from(self.is_half_open) }
    }

    /// Counts of the connection's lines in the table.
    fn lines(self) -> CountPair {
        CountPair { all: self.width, half_open: u32::from(self.is_half_open) * self.width }
    }
}

impl Tally {
    pub(super) fn new(limits: Limits) -> Tally {
        Tally {
            limits,
            lines: SharedCounts::default(),
            hands: EvictionHands::default(),
            made: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            refused: Default::default(),
            zones: (0..ZONES).map(|_| ZoneEntry::default()).collect(),
        }
    }

    fn pair(&self, slot: ZoneSlot) -> &SharedCounts {
        &self.zones[usize::from(slot.0)].counts
    }

    /// The hands of a zone's evictions; without a zone, of evictions from all zones.
    pub(super) fn hands(&self, zone: Option<ZoneSlot>) -> &EvictionHands<AtomicU64> {
        zone.map_or(&self.hands, |slot| &self.zones[usize::from(slot.0)].hands)
    }

    /// Counts a connection. `tail` returns the position of the next half-open connection.
    pub(super) fn reserve(&self, share: Share, tail: impl Fn() -> u64) -> Result<(), Refusal> {
        let zone = &self.zones[usize::from(share.zone.0)];
        let zone_limits =
            CountPair { all: self.limits.per_zone, half_open: self.limits.half_open_per_zone };
        let (one, start) = (share.connection(), HandStart { hands: &zone.hands, tail: &tail });
        let table_limits = CountPair { all: self.limits.max, half_open: self.limits.half_open };
        // A full table mostly stays full: a refusal then costs no exchange.
        if let Err(exceeded) = self.lines.read().with(share.lines(), table_limits) {
            zone.counts.read().with(one, zone_limits).map_err(Refusal::of_zone)?;
            return Err(Refusal::of_table(exceeded));
        }
        zone.counts.reserve(one, zone_limits, &start).map_err(Refusal::of_zone)?;
        let start = HandStart { hands: &self.hands, tail: &tail };
        self.lines.reserve(share.lines(), table_limits, &start).map_err(|exceeded| {
            zone.counts.take(one);
            Refusal::of_table(exceeded)
        })
    }

    /// Counts a connection no more.
    pub(super) fn give_back(&self, share: Share) {
        self.pair(share.zone).take(share.connection());
        self.lines.take(share.lines());
    }

    /// Counts an assured connection as half-open. `tail`: as for [`reserve`](Self::reserve).
    pub(super) fn reserve_half_open(
        &self,
        zone: ZoneSlot,
        width: u32,
        tail: impl Fn() -> u64,
    ) -> Result<(), Refusal> {
        let zone = &self.zones[usize::from(zone.0)];
        let limit = |half_open| CountPair { all: u32::MAX, half_open };
        let add = |half_open| CountPair { all: 0, half_open };
        let start = HandStart { hands: &zone.hands, tail: &tail };
        let reserved = zone.counts.reserve(add(1), limit(self.limits.half_open_per_zone), &start);
        reserved.map_err(|_| Refusal::ZoneHalfOpenLimit)?;
        let start = HandStart { hands: &self.hands, tail: &tail };
        let reserved = self.lines.reserve(add(width), limit(self.limits.half_open), &start);
        reserved.map_err(|_| {
            zone.counts.take(add(1));
            Refusal::HalfOpenLimit
        })
    }

    /// Counts a connection that is there as half-open no more.
    pub(super) fn give_back_half_open(&self, zone: ZoneSlot, width: u32) {
        self.pair(zone).take(CountPair { all: 0, half_open: 1 });
        self.lines.take(CountPair { all: 0, half_open: width });
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> TableCounts {
        let lines = self.lines.read();
        TableCounts {
            lines: lines.all,
            half_open_lines: lines.half_open,
            made: self.made.load(Relaxed),
            expired: self.expired.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            refused: std::array::from_fn(|at| self.refused[at].load(Relaxed)),
        }
    }

    /// Half-open connections of a zone, or half-open lines of all.
    pub(super) fn half_open(&self, zone: Option<ZoneSlot>) -> u32 {
        zone.map_or(&self.lines, |slot| self.pair(slot)).read().half_open
    }

    /// Connections of a zone.
    pub(super) fn live(&self, slot: ZoneSlot) -> u32 {
        self.pair(slot).read().all
    }

    pub(super) fn zones(&self) -> impl Iterator<Item = ZoneCounts> {
        (0..=u16::MAX).zip(&self.zones).filter_map(|(attachment, zone)| {
            let CountPair { all: live, half_open } = zone.counts.read();
            (live > 0).then_some(ZoneCounts { attachment, live, half_open })
        })
    }
}
