//! Handles of the SPIs that charon reserved and has not used yet.
//!
//! The control thread keeps the reservations themselves, with shares for remote ends, and lets them
//! lapse. Each entry here lapses at the same age, and a reused SPI takes the place of its entry.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use charon_link::SaHandle;
use control::{MAX_RESERVED, RESERVED_NS};
use ipsec::Spi;
use tokio::time::Instant;

/// Time after which an unused reservation lapses.
const LAPSE: Duration = Duration::from_nanos(RESERVED_NS);

/// A reserved SPI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReservedSpi {
    pub(super) spi: Spi,
    /// The remote address that the SPI was reserved for.
    pub(super) remote: IpAddr,
}

struct Entry {
    reserved: ReservedSpi,
    since: Instant,
    is_named: bool,
}

/// Reserved SPIs by their handles, at most [`MAX_RESERVED`].
#[derive(Default)]
pub(super) struct SpiReservations {
    by_handle: HashMap<SaHandle, Entry>,
    by_spi: HashMap<Spi, SaHandle>,
    /// Handles in the order of their reservations; some are gone.
    oldest_first: VecDeque<SaHandle>,
}

impl SpiReservations {
    /// Adds a reservation. At the bound the oldest entry gives way.
    pub(super) fn add(&mut self, handle: SaHandle, reserved: ReservedSpi, now: Instant) {
        self.take_spi(reserved.spi);
        self.by_spi.insert(reserved.spi, handle);
        self.by_handle.insert(handle, Entry { reserved, since: now, is_named: true });
        self.oldest_first.push_back(handle);
        while let Some(oldest) = self.oldest_first.front().copied() {
            let is_over = self.oldest_first.len() > MAX_RESERVED
                || self.by_handle.get(&oldest).is_none_or(|entry| has_lapsed(entry, now));
            if !is_over {
                break;
            }
            self.oldest_first.pop_front();
            self.take(oldest);
        }
    }

    /// Removes a reservation; returns it, also if it has lapsed.
    pub(super) fn take(&mut self, handle: SaHandle) -> Option<ReservedSpi> {
        let reserved = self.by_handle.remove(&handle)?.reserved;
        self.by_spi.remove(&reserved.spi);
        Some(reserved)
    }

    /// Removes the reservation of an SPI, which an SA has now.
    pub(super) fn take_spi(&mut self, spi: Spi) {
        if let Some(handle) = self.by_spi.get(&spi).copied() {
            self.take(handle);
        }
    }

    /// Notes that charon names a reservation; returns whether the reservation is there.
    pub(super) fn name(&mut self, handle: SaHandle, now: Instant) -> bool {
        match self.by_handle.get_mut(&handle) {
            Some(entry) if !has_lapsed(entry, now) => {
                entry.is_named = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that a connection begins, which has named nothing yet.
    pub(super) fn begin(&mut self) {
        self.by_handle.values_mut().for_each(|entry| entry.is_named = false);
    }

    /// Removes the reservations that charon has not named; returns them.
    pub(super) fn take_unnamed(&mut self) -> Vec<ReservedSpi> {
        let unnamed = self.by_handle.iter().filter(|(_, entry)| !entry.is_named);
        let unnamed: Vec<SaHandle> = unnamed.map(|(handle, _)| *handle).collect();
        unnamed.into_iter().filter_map(|handle| self.take(handle)).collect()
    }
}

fn has_lapsed(entry: &Entry, now: Instant) -> bool {
    now.saturating_duration_since(entry.since) >= LAPSE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(value: u64) -> SaHandle {
        SaHandle::new(value).unwrap()
    }

    fn reserved(spi: u32) -> ReservedSpi {
        ReservedSpi { spi: Spi::new(spi).unwrap(), remote: [192, 0, 2, 1].into() }
    }

    #[test]
    fn an_entry_lapses_is_reused_and_goes_unless_it_is_named() {
        let (mut spis, now) = (SpiReservations::default(), Instant::now());
        spis.add(handle(1), reserved(0x1001), now);
        spis.add(handle(2), reserved(0x1002), now);
        assert!(spis.name(handle(1), now) && !spis.name(handle(3), now));
        assert!(!spis.name(handle(1), now + LAPSE));
        // The control thread reserves an SPI again: the handle of before means nothing.
        spis.add(handle(3), reserved(0x1001), now);
        assert_eq!(spis.take(handle(1)), None);
        spis.begin();
        assert!(spis.name(handle(2), now));
        assert_eq!(spis.take_unnamed(), [reserved(0x1001)]);
        spis.take_spi(reserved(0x1002).spi);
        assert_eq!((spis.by_handle.len(), spis.by_spi.len()), (0, 0));
    }

    #[test]
    fn the_oldest_entry_gives_way_at_the_bound_and_lapsed_ones_before() {
        let (mut spis, now) = (SpiReservations::default(), Instant::now());
        let most = MAX_RESERVED as u64;
        for number in 1..=most + 2 {
            spis.add(handle(number), reserved(0x1000 + number as u32), now);
        }
        assert_eq!(spis.by_handle.len(), MAX_RESERVED);
        assert_eq!((spis.take(handle(2)), spis.take(handle(3))), (None, Some(reserved(0x1003))));
        spis.add(handle(most + 3), reserved(0x999), now + LAPSE);
        assert_eq!((spis.by_handle.len(), spis.oldest_first.len()), (1, 1));
    }
}
