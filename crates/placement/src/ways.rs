//! Ways to hosts: each is in the tier's table once, for all endpoints that use it.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bpf::tier::{QUARANTINE, State, Way};
use dataplane::OverlayId;
use wire::LinkAddress;

use crate::slots::Slots;
use crate::tables::Tables;

/// The things that a way depends on, beside the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WayKey {
    pub(crate) overlay: OverlayId,
    pub(crate) host: Ipv4Addr,
    /// The link address of the host that an endpoint names.
    pub(crate) host_mac: Option<LinkAddress>,
}

/// A way that endpoints use.
struct Known {
    number: u32,
    users: u32,
    /// The way that is open in the table; `None`: it is closed.
    open: Option<Way>,
    /// The moment from which it may be opened.
    from_ns: u64,
}

impl Known {
    fn open<T: Tables>(
        &mut self,
        tables: &T,
        key: &WayKey,
        now_ns: u64,
        way_of: &impl Fn(&WayKey) -> Option<Way>,
    ) -> Result<(), T::Error> {
        if self.open.is_none()
            && self.from_ns <= now_ns
            && let Some(way) = way_of(key)
        {
            tables.add_exit(way.ifindex)?;
            tables.set_way(self.number, &way, State::Open)?;
            self.open = Some(way);
        }
        Ok(())
    }
}

/// The ways in the table.
pub(crate) struct Ways {
    known: HashMap<WayKey, Known>,
    slots: Slots,
}

impl Ways {
    /// For a table with places 1 to `last`.
    pub(crate) fn new(last: u32) -> Ways {
        Ways { known: HashMap::new(), slots: Slots::new(1, last + 1) }
    }

    /// Number of the way of a key, for one more user. `None`: no number is free.
    pub(crate) fn use_way(&mut self, key: WayKey, now_ns: u64) -> Option<u32> {
        if let Some(known) = self.known.get_mut(&key) {
            known.users += 1;
            return Some(known.number);
        }
        let number = self.slots.take(now_ns)?;
        self.known.insert(key, Known { number, users: 1, open: None, from_ns: now_ns });
        Some(number)
    }

    /// One user less; a way that nobody uses is closed.
    ///
    /// # Errors
    /// The table refuses it: the way is open still, and its number is not given out again.
    pub(crate) fn release<T: Tables>(
        &mut self,
        tables: &T,
        key: WayKey,
        now_ns: u64,
    ) -> Result<(), T::Error> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        known.users -= 1;
        if known.users > 0 {
            return Ok(());
        }
        let Known { number, open, .. } = *known;
        self.known.remove(&key);
        if let Some(way) = open {
            tables.set_way(number, &way, State::Closed)?;
        }
        self.slots.give(number, now_ns);
        Ok(())
    }

    /// Closes the ways that are others by now, or none any more.
    ///
    /// # Errors
    /// The table refuses it: some are open still.
    pub(crate) fn narrow<T: Tables>(
        &mut self,
        tables: &T,
        now_ns: u64,
        way_of: impl Fn(&WayKey) -> Option<Way>,
    ) -> Result<(), T::Error> {
        for (key, known) in &mut self.known {
            if let Some(way) = known.open.filter(|way| way_of(key) != Some(*way)) {
                tables.set_way(known.number, &way, State::Closed)?;
                known.open = None;
                known.from_ns = now_ns + QUARANTINE.as_nanos() as u64;
            }
        }
        Ok(())
    }

    /// Opens the ways that there are, and that have been closed long enough.
    ///
    /// # Errors
    /// The table refuses it: some stay closed.
    pub(crate) fn widen<T: Tables>(
        &mut self,
        tables: &T,
        now_ns: u64,
        way_of: impl Fn(&WayKey) -> Option<Way>,
    ) -> Result<(), T::Error> {
        let mut known = self.known.iter_mut();
        known.try_for_each(|(key, known)| known.open(tables, key, now_ns, &way_of))
    }

    /// Opens one way, as [`widen`](Ways::widen) does.
    ///
    /// # Errors
    /// The table refuses it: it stays closed.
    pub(crate) fn open_one<T: Tables>(
        &mut self,
        tables: &T,
        key: WayKey,
        now_ns: u64,
        way_of: impl Fn(&WayKey) -> Option<Way>,
    ) -> Result<(), T::Error> {
        let known = self.known.get_mut(&key);
        known.map_or(Ok(()), |known| known.open(tables, &key, now_ns, &way_of))
    }

    /// Returns whether the way of a key is open.
    pub(crate) fn is_open(&self, key: &WayKey) -> bool {
        self.known.get(key).is_some_and(|known| known.open.is_some())
    }

    /// Ways that are open.
    pub(crate) fn open(&self) -> usize {
        self.known.values().filter(|known| known.open.is_some()).count()
    }
}
