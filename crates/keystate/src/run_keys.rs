//! Keys of this run of the daemon: in memory alone, since no other run takes them.
//!
//! * Keys of IKE: charon hands a key out once. A key is remembered while its SA runs, and from one
//!   to two [`SWEEP_NS`] longer.
//! * Keys of programs that named the run: remembered until the run ends. A program may repeat its
//!   request at any time.

use std::collections::HashMap;
use std::path::Path;

use crate::HostIdentity;
use crate::put_keys::first_half;
use crate::record::digest;

/// The most keys of this run.
pub const MAX_RUN_KEYS: usize = 1 << 22;
/// Time between two sweeps, nanoseconds.
pub(crate) const SWEEP_NS: u64 = 300_000_000_000;

/// The sweep that a key is never older than.
const NEVER_FORGOTTEN: u64 = u64::MAX;

/// Keys of this run, by the first 8 bytes of their fingerprints.
pub(crate) struct RunKeys {
    /// The last sweep that met the SA of a key.
    keys: HashMap<u64, u64>,
    /// Number of the latest sweep, and its time on the boot clock.
    latest: (u64, u64),
    most: usize,
}

/// How long a key of this run is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remember {
    /// While its SA runs, and some minutes longer.
    WithSa,
    UntilEnd,
}

impl RunKeys {
    pub(crate) fn new(now_ns: u64) -> RunKeys {
        RunKeys::with_most(now_ns, MAX_RUN_KEYS)
    }

    fn with_most(now_ns: u64, most: usize) -> RunKeys {
        RunKeys { keys: HashMap::new(), latest: (0, now_ns), most }
    }

    /// Adds the keys of a file that earlier versions kept from boot to boot, if it is of this boot.
    pub(crate) fn add_earlier(&mut self, path: &Path, host: &HostIdentity) {
        let Ok(bytes) = std::fs::read(path) else { return };
        let Some(records) = bytes.strip_prefix(earlier_header(host).as_slice()) else { return };
        let (records, _) = records.as_chunks::<16>();
        for key in records.iter().filter_map(|record| record.first_chunk()) {
            self.keys.insert(u64::from_ne_bytes(*key), NEVER_FORGOTTEN);
        }
    }

    pub(crate) fn knows(&self, fingerprint: u128) -> bool {
        self.keys.contains_key(&first_half(fingerprint))
    }

    /// Returns whether there is room for more keys.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.keys.len() + count <= self.most
    }

    /// Adds a key.
    pub(crate) fn add(&mut self, fingerprint: u128, remember: Remember) {
        let sweep = match remember {
            Remember::WithSa => self.latest.0,
            Remember::UntilEnd => NEVER_FORGOTTEN,
        };
        self.keys.insert(first_half(fingerprint), sweep);
    }

    /// Returns whether it is time for a sweep.
    pub(crate) fn is_sweep_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.latest.1) >= SWEEP_NS
    }

    /// Forgets the keys of IKE that neither ran at this sweep nor at the one before, nor were added
    /// since.
    pub(crate) fn sweep(&mut self, running: impl Iterator<Item = u128>, now_ns: u64) {
        let now = self.latest.0 + 1;
        self.latest = (now, now_ns);
        for key in running {
            if let Some(sweep) = self.keys.get_mut(&first_half(key)) {
                *sweep = (*sweep).max(now);
            }
        }
        self.keys.retain(|_, sweep| sweep.saturating_add(1) >= now);
        if self.keys.capacity() / 8 > self.keys.len() {
            self.keys.shrink_to_fit();
        }
    }
}

/// The header of that file: magic, version, boot, machine, check.
fn earlier_header(host: &HostIdentity) -> Vec<u8> {
    let magic = u64::from_be_bytes(*b"lockonce");
    let mut bytes: Vec<u8> = [magic, 1].map(u64::to_ne_bytes).as_flattened().to_vec();
    bytes.extend([host.boot, host.machine].map(u128::to_ne_bytes).as_flattened());
    bytes.extend(digest("once header", &bytes).to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> u128 {
        u128::from(number) << 64
    }

    #[test]
    fn keys_of_ike_are_remembered_while_their_sas_run_and_one_sweep_longer() {
        let mut keys = RunKeys::with_most(0, 4);
        keys.add(key(1), Remember::WithSa);
        keys.add(key(2), Remember::WithSa);
        keys.add(key(3), Remember::UntilEnd);
        assert!(keys.has_room(1) && !keys.has_room(2));
        assert!(!keys.is_sweep_due(SWEEP_NS - 1) && keys.is_sweep_due(SWEEP_NS));
        let known = |keys: &RunKeys| [1, 2, 3, 4].map(|number| keys.knows(key(number)));
        keys.sweep([key(1)].into_iter(), SWEEP_NS);
        assert!(!keys.is_sweep_due(SWEEP_NS));
        assert_eq!(known(&keys), [true, true, true, false]);
        keys.add(key(4), Remember::WithSa);
        keys.sweep([key(1)].into_iter(), 2 * SWEEP_NS);
        assert_eq!(known(&keys), [true, false, true, true]);
        // The SA of key 1 ended right after the sweep.
        keys.sweep([].into_iter(), 3 * SWEEP_NS);
        assert_eq!(known(&keys), [true, false, true, false]);
        keys.sweep([].into_iter(), 4 * SWEEP_NS);
        assert_eq!(known(&keys), [false, false, true, false]);
    }
    #[test]
    fn keys_of_an_earlier_versions_file_are_known_in_its_boot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys-used");
        let host = |boot: &str| HostIdentity::new("machine", boot);
        let record = |number: u64| [number.to_ne_bytes(), [7; 8]].concat();
        let records = [record(1), record(2), vec![0; 5]].concat();
        std::fs::write(&path, [earlier_header(&host("1")), records].concat()).unwrap();
        for (boot, expected) in [("1", [true, true, false]), ("2", [false; 3])] {
            let mut keys = RunKeys::new(0);
            keys.add_earlier(&path, &host(boot));
            assert_eq!([1, 2, 0].map(|number| keys.knows(key(number))), expected);
        }
    }
}
