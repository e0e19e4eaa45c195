//! Room under the bounds of the table: the oldest half-open connection gives way, or expired
//! connections go.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::half_open::{HalfOpenEntry, RingSlot};
use super::key::ZoneSlot;
use super::lines::{Removals, RemovedTenant};
use super::state_word::{StateWord, Vacant};
use super::tally::{Refusal, Share};
use super::{Connections, Constant, Removal};

/// Maximum slots of half-open connections for one eviction to read by each of two hands.
const EVICTION_STEPS: usize = 512;
/// Slots as expensive as one line.
const LOOK_STEPS: usize = 32;
/// Lines to sweep before a refusal.
const RECLAIMED_LINES: usize = 4;
/// Maximum connections to give way for one insertion.
const MOST_EVICTED: usize = 8;

impl Connections {
    /// Inserts a half-open connection into the ring.
    pub(super) fn enlist(&self, entry: HalfOpenEntry) -> RingSlot {
        let slot = self.half_open.push(entry, |entry| self.is_stale(entry));
        self.latest.push(entry.zone, slot);
        slot
    }

    /// Reads the line of an entry.
    fn tenant_of(&self, entry: HalfOpenEntry) -> EntryTenant {
        let at = entry.line as usize;
        let word = self.lines.word(at);
        if !word.is_half_open() {
            return if word.is(Vacant::Busy) { EntryTenant::InFlux } else { EntryTenant::Other };
        }
        match self.lines.constant_of(at, word) {
            None => EntryTenant::InFlux,
            Some(constant) if Constant(constant).zone() == entry.zone => {
                EntryTenant::HalfOpen(word)
            }
            Some(_) => EntryTenant::Other,
        }
    }

    fn is_stale(&self, entry: HalfOpenEntry) -> bool {
        matches!(self.tenant_of(entry), EntryTenant::Other)
    }

    /// Removes the oldest half-open connection that is found, of a zone or of all. False: none was
    /// found.
    fn evict_half_open(&self, zone: Option<ZoneSlot>, removals: &impl Removals) -> bool {
        if self.tally.half_open(zone) == 0 {
            return false;
        }
        let hands = self.tally.hands(zone).in_order();
        hands.into_iter().any(|hand| self.evict_at(hand, zone, removals))
            || zone.is_some_and(|zone| self.evict_latest(zone, removals))
    }

    /// Removes one of a zone's latest half-open connections. False: none of them is half-open.
    fn evict_latest(&self, zone: ZoneSlot, removals: &impl Removals) -> bool {
        self.latest.of(zone).any(|slot| {
            let entry = self.half_open.entry(slot).filter(|entry| entry.zone == zone);
            entry.is_some_and(|entry| self.evict(slot, entry, removals))
        })
    }

    /// Removes the half-open connection of an entry. False: the line has another tenant.
    fn evict(&self, slot: RingSlot, entry: HalfOpenEntry, removals: &impl Removals) -> bool {
        match self.tenant_of(entry) {
            EntryTenant::InFlux => false,
            EntryTenant::Other => {
                self.half_open.remove(slot, entry);
                false
            }
            EntryTenant::HalfOpen(word) => {
                self.lines.remove(entry.line as usize, word, removals, StateWord::is_half_open)
            }
        }
    }

    /// Removes the next half-open connection at a hand. False: none was found within the steps.
    fn evict_at(&self, hand: &AtomicU64, zone: Option<ZoneSlot>, removals: &impl Removals) -> bool {
        let is_of = |entry: HalfOpenEntry| zone.is_none_or(|zone| entry.zone == zone);
        let mut steps = EVICTION_STEPS;
        while let Some((slot, entry)) = self.half_open.advance(hand, &mut steps, is_of) {
            if self.evict(slot, entry, removals) {
                self.prefetch_next(hand);
                return true;
            }
            steps = steps.saturating_sub(LOOK_STEPS);
        }
        false
    }

    /// Prefetches the line at a hand for the next eviction. The second line says whether the first
    /// one has a wide entry.
    fn prefetch_next(&self, hand: &AtomicU64) {
        if let Some(entry) = self.half_open.peek(hand) {
            let first = entry.line as usize & !1;
            (first..first + 2).for_each(|at| self.lines.prefetch(at));
        }
    }

    /// Sweeps the next lines of the table. True if a connection was over.
    fn reclaim(&self, now_s: u32) -> bool {
        let all = self.lines.len();
        let first = self.reclaiming.fetch_add(RECLAIMED_LINES, Relaxed) % all;
        let lines = first..first + RECLAIMED_LINES.min(all);
        let is_swept = |at| self.expire(if at < all { at } else { at - all }, now_s);
        let removed = lines.clone().filter(|at| is_swept(*at)).count();
        // For the next refusal.
        (lines.end..lines.end + RECLAIMED_LINES).for_each(|at| self.lines.prefetch(at));
        if removed > 0 {
            self.tally.expired.fetch_add(removed as u64, Relaxed);
        }
        removed > 0
    }

    /// Makes room under a bound. True if a connection gave way or was over.
    #[cold]
    fn make_room(&self, refusal: Refusal, zone: ZoneSlot, now_s: u32) -> bool {
        let zone = Some(zone).filter(|_| refusal.is_of_zone());
        self.evict_half_open(zone, &Eviction { table: self, now_s }) || self.reclaim(now_s)
    }

    /// Counts one more connection; at a bound others give way.
    pub(super) fn reserve(&self, share: Share, now_s: u32) -> Result<(), Refusal> {
        self.within_bounds(share.zone, now_s, || {
            self.tally.reserve(share, || self.half_open.tail())
        })
    }

    /// Counts an assured connection as half-open; at a bound others give way.
    #[cold]
    #[inline(never)]
    pub(super) fn reserve_half_open(
        &self,
        zone: ZoneSlot,
        width: u32,
        now_s: u32,
    ) -> Result<(), Refusal> {
        self.within_bounds(zone, now_s, || {
            self.tally.reserve_half_open(zone, width, || self.half_open.tail())
        })
    }

    #[inline]
    fn within_bounds(
        &self,
        zone: ZoneSlot,
        now_s: u32,
        reserve: impl Fn() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut reserved = reserve();
        for _ in 0..MOST_EVICTED {
            match reserved {
                Err(refusal) if self.make_room(refusal, zone, now_s) => reserved = reserve(),
                _ => break,
            }
        }
        reserved
    }
}

/// Tenant of a ring entry's line.
enum EntryTenant {
    /// A half-open connection of the entry's zone.
    HalfOpen(StateWord),
    /// Another connection, or none.
    Other,
    /// The line is being written.
    InFlux,
}

/// Removals of connections that give way to another.
pub(super) struct Eviction<'a> {
    pub(super) table: &'a Connections,
    pub(super) now_s: u32,
}

impl Removals for Eviction<'_> {
    fn removed(&self, tenant: RemovedTenant) {
        Removal(self.table).removed(tenant);
        let tally = &self.table.tally;
        let is_expired = self.table.is_expired(tenant.word, self.now_s);
        let count = if is_expired { &tally.expired } else { &tally.replaced };
        count.fetch_add(1, Relaxed);
    }
}
