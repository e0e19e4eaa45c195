//! Keys of IKE: in memory alone, since charon hands a key out once. A key is remembered while its
//! SA runs, and from one to two [`SWEEP_NS`] longer.

use crate::key_table::{KeyTable, PARTS, first_half};

/// The most keys of IKE that are remembered at a time.
pub const MAX_IKE_KEYS: usize = 1 << 22;
/// Time between two sweeps, nanoseconds.
pub(crate) const SWEEP_NS: u64 = 300_000_000_000;

/// Keys of IKE, by the first 8 bytes of their fingerprints.
pub(crate) struct IkeKeys {
    /// The last sweep that met the SA of a key.
    keys: KeyTable<u64>,
    /// Number of the latest sweep, and its time on the boot clock.
    latest: (u64, u64),
    /// Parts of the table that the latest sweep has still to walk.
    unswept: usize,
    most: usize,
}

impl IkeKeys {
    pub(crate) fn new(now_ns: u64) -> IkeKeys {
        IkeKeys::with_most(now_ns, MAX_IKE_KEYS)
    }

    fn with_most(now_ns: u64, most: usize) -> IkeKeys {
        IkeKeys { keys: KeyTable::new(), latest: (0, now_ns), unswept: 0, most }
    }

    /// Number of keys, with ended ones that the sweep has still to remove.
    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn knows(&self, fingerprint: u128) -> bool {
        let sweep = self.keys.get(first_half(fingerprint));
        sweep.is_some_and(|sweep| is_kept(*sweep, self.latest.0))
    }

    /// Frees places for more keys by sweeping. Returns whether there is room.
    pub(crate) fn make_room(&mut self, count: usize) -> bool {
        while self.keys.len() + count > self.most && self.unswept > 0 {
            self.sweep_part();
        }
        self.keys.len() + count <= self.most
    }

    pub(crate) fn add(&mut self, fingerprint: u128) {
        self.keys.insert(first_half(fingerprint), self.latest.0);
    }

    /// Returns whether it is time for a sweep.
    pub(crate) fn is_sweep_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.latest.1) >= SWEEP_NS
    }

    /// Forgets keys of IKE whose SAs ran at neither of the last two sweeps and that were not added
    /// in between. [`IkeKeys::sweep_part`] frees their memory.
    pub(crate) fn sweep(&mut self, running: impl Iterator<Item = u128>, now_ns: u64) {
        let now = self.latest.0 + 1;
        for key in running {
            if let Some(sweep) = self.keys.get_mut(first_half(key)) {
                *sweep = now;
            }
        }
        self.latest = (now, now_ns);
        self.unswept = PARTS;
    }

    /// Walks one part of the table for the latest sweep, if any is left.
    pub(crate) fn sweep_part(&mut self) {
        if let Some(part) = self.unswept.checked_sub(1) {
            let latest = self.latest.0;
            self.keys.retain_in_part(part, |sweep| is_kept(*sweep, latest));
            self.unswept = part;
        }
    }
}

/// Returns whether a key that a sweep met last is remembered after the latest one.
fn is_kept(sweep: u64, latest: u64) -> bool {
    sweep + 1 >= latest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> u128 {
        u128::from(number) << 64
    }

    #[test]
    fn keys_of_ike_are_remembered_while_their_sas_run_and_one_sweep_longer() {
        let mut keys = IkeKeys::with_most(0, 4);
        keys.add(key(1));
        keys.add(key(2));
        assert!(keys.make_room(2) && !keys.make_room(3));
        assert!(!keys.is_sweep_due(SWEEP_NS - 1) && keys.is_sweep_due(SWEEP_NS));
        let known = |keys: &IkeKeys| [1, 2, 3].map(|number| keys.knows(key(number)));
        keys.sweep([key(1)].into_iter(), SWEEP_NS);
        assert!(!keys.is_sweep_due(SWEEP_NS));
        assert_eq!(known(&keys), [true, true, false]);
        keys.add(key(3));
        keys.sweep([key(1)].into_iter(), 2 * SWEEP_NS);
        assert_eq!(known(&keys), [true, false, true]);
        // The SA of key 1 ended right after the sweep.
        keys.sweep([].into_iter(), 3 * SWEEP_NS);
        assert_eq!(known(&keys), [true, false, false]);
        keys.sweep([].into_iter(), 4 * SWEEP_NS);
        assert_eq!(known(&keys), [false; 3]);
    }

    /// The sweep once walked 2^22 keys in one step, on the control thread.
    #[test]
    fn sweep_frees_one_part_a_step_and_all_parts_before_the_table_is_full() {
        let most = 10_000;
        let mut keys = IkeKeys::with_most(0, most as usize);
        (0..most).for_each(|number| keys.add(key(number)));
        (1..=2).for_each(|sweep| keys.sweep([key(5)].into_iter(), sweep * SWEEP_NS));
        let mut before = keys.count();
        for part in 0..PARTS / 2 {
            keys.sweep_part();
            let freed = before - keys.count();
            assert!((1..=most as usize / PARTS + 1).contains(&freed), "part {part}: {freed}");
            before = keys.count();
        }
        assert!(keys.make_room(most as usize - 1));
        assert_eq!((keys.count(), keys.knows(key(5)), keys.knows(key(6))), (1, true, false));
        keys.sweep_part();
        assert_eq!(keys.count(), 1);
    }
}
