//! The table that workers read.

use std::io;
use std::sync::atomic::AtomicU64;

use cpu::aes::{KeyedHash, Secret};
use wire::{Address, Vni};

pub use crate::endpoint::Found;
use crate::endpoint::{EndpointKey, KeyWords, key_words};
use crate::map::{Hash, MAX_BUCKETS, MAX_RECORDS, Map};

/// Endpoints that a table has at most.
pub const MAX_ENDPOINTS: usize = 4_194_304;

/// Places of a bucket of the index: with their hints one line of 64 bytes.
const PLACES: usize = 7;
/// Endpoints for each bucket at most, on average: four of its seven places.
const ENDPOINTS_A_BUCKET: usize = 4;
const _: () = assert!(MAX_ENDPOINTS / ENDPOINTS_A_BUCKET <= MAX_BUCKETS);
const _: () = assert!(MAX_ENDPOINTS < MAX_RECORDS);

/// Three words of a key and four of an endpoint's content, with the state a line of 64 bytes.
pub(crate) type Endpoints = Map<AtomicU64, 3, 4, 1, PLACES>;
/// A host of a network has no value: it is there or not. Two records are a line.
pub(crate) type Hosts = Map<AtomicU64, 3, 0, 2, PLACES>;

/// The endpoints of all virtual networks, and the set of hosts of each. It is of fixed size. Any
/// number of threads read it without waiting; only its [`Book`](crate::Book) changes it.
///
/// A reader that asks twice may see a change in between: an endpoint's host may be one of its
/// network no longer when [`has_host`](Table::has_host) is asked after [`find`](Table::find).
/// While a [`find`](Table::find) can return a host, the host is one of its network.
pub struct Table {
    pub(crate) hash: KeyedHash,
    /// An odd number that says where workers remember recent keys.
    pub(crate) factor: u64,
    pub(crate) endpoints: Endpoints,
    pub(crate) hosts: Hosts,
    max_endpoints: usize,
}

/// A key with its hash, so that it is computed once for prefetches and lookup.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub(crate) key: KeyWords,
    pub(crate) hash: Hash,
}

impl Table {
    /// Keys that are looked up together: enough to wait for all their memory at once, few enough
    /// that the first is still in the cache when the last has come.
    pub(crate) const TOGETHER: usize = 64;

    /// Room for as many probes as are made together.
    pub(crate) fn no_probes() -> [Probe; Table::TOGETHER] {
        [Probe { key: [0; 3], hash: Hash::default() }; Table::TOGETHER]
    }

    /// An empty table of at most so many endpoints, 1 to [`MAX_ENDPOINTS`]. Its memory is taken
    /// now: 128 bytes an endpoint, or more where the number is not a power of two. The secret is
    /// drawn from the operating system's generator at each start: strangers choose keys.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: the number is out of its range.
    /// [`io::ErrorKind::OutOfMemory`]: there is not that much memory.
    pub fn new(max_endpoints: usize, secret: &Secret) -> io::Result<Table> {
        if !(1..=MAX_ENDPOINTS).contains(&max_endpoints) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a table of {max_endpoints} endpoints: 1 to {MAX_ENDPOINTS} are possible"),
            ));
        }
        let buckets = max_endpoints.div_ceil(ENDPOINTS_A_BUCKET).next_power_of_two();
        Table::with_buckets(max_endpoints, buckets.max(2), secret)
    }

    /// A table with so many buckets in each index, a power of two of at least 2.
    pub(crate) fn with_buckets(
        max_endpoints: usize,
        buckets: usize,
        secret: &Secret,
    ) -> io::Result<Table> {
        let no_memory = |_| io::ErrorKind::OutOfMemory;
        // One more, because what changes is there twice for a moment.
        let records = max_endpoints + 1;
        let (hash, mut factor) = (KeyedHash::new(secret), [0]);
        // Of no key: its words are not those of one.
        hash.hash(&[[u64::MAX; 4]], &mut factor);
        Ok(Table {
            hash,
            factor: factor[0] | 1,
            endpoints: Map::new(records, buckets).map_err(no_memory)?,
            hosts: Map::new(records, buckets).map_err(no_memory)?,
            max_endpoints,
        })
    }

    /// Returns the number of endpoints that it has room for.
    pub fn max_endpoints(&self) -> usize {
        self.max_endpoints
    }

    /// Finds an endpoint. `None`: there is none with this key. All of what it returns was of this
    /// endpoint at one moment during the call.
    #[inline]
    pub fn find(&self, key: EndpointKey) -> Option<Found> {
        self.find_probed(&self.probe(key))
    }

    /// Returns whether an endpoint of a network lives on the host with this outer address.
    #[inline]
    pub fn has_host(&self, vni: Vni, host: Address) -> bool {
        let Probe { key, hash } = self.probe_words(key_words(vni, host));
        self.hosts.find(&key, hash).is_some()
    }

    /// Asks for the memory of a key's place in the index, and waits for nothing.
    #[inline]
    pub fn prefetch(&self, key: EndpointKey) -> Probe {
        let probe = self.probe(key);
        self.endpoints.prefetch_bucket(probe.hash);
        probe
    }

    /// Asks for the memory of an endpoint. Best some tens of nanoseconds after
    /// [`prefetch`](Table::prefetch): it waits for the memory of the index.
    #[inline]
    pub fn prefetch_endpoint(&self, probe: &Probe) {
        self.endpoints.prefetch_record(probe.hash);
    }

    /// Finds an endpoint as [`find`](Table::find) does.
    #[inline]
    pub fn find_probed(&self, probe: &Probe) -> Option<Found> {
        self.endpoints.find(&probe.key, probe.hash).as_ref().map(Found::from_words)
    }

    /// Finds many endpoints, waiting for their memory together: `found[i]` is what
    /// [`find`](Table::find) returns for `keys[i]`. What was in `found` is dropped.
    pub fn find_many(&self, keys: &[EndpointKey], found: &mut Vec<Option<Found>>) {
        found.clear();
        found.reserve(keys.len());
        let mut probes = Table::no_probes();
        for keys in keys.chunks(Table::TOGETHER) {
            let words = keys.iter().map(EndpointKey::words);
            let probes = self.prefetch_words(words, &mut probes);
            probes.iter().for_each(|probe| self.prefetch_endpoint(probe));
            found.extend(probes.iter().map(|probe| self.find_probed(probe)));
        }
    }

    /// Hashes keys, at most as many as there are `probes`, and asks for their places in the index.
    pub(crate) fn prefetch_words<'a>(
        &self,
        keys: impl Iterator<Item = KeyWords>,
        probes: &'a mut [Probe; Table::TOGETHER],
    ) -> &'a [Probe] {
        let (mut blocks, mut hashes) = ([[0; 4]; Table::TOGETHER], [0; Table::TOGETHER]);
        let mut count = 0;
        for (probe, (block, key)) in probes.iter_mut().zip(blocks.iter_mut().zip(keys)) {
            (probe.key, *block) = (key, block_of(key));
            count += 1;
        }
        self.hash.hash(&blocks[..count], &mut hashes);
        let probes = &mut probes[..count];
        for (probe, hash) in probes.iter_mut().zip(hashes) {
            probe.hash = Hash(hash);
            self.endpoints.prefetch_bucket(probe.hash);
        }
        probes
    }

    #[inline]
    pub(crate) fn probe(&self, key: EndpointKey) -> Probe {
        self.probe_words(key.words())
    }

    #[inline]
    pub(crate) fn probe_words(&self, key: KeyWords) -> Probe {
        Probe { key, hash: self.hash_of(&key) }
    }

    #[inline]
    pub(crate) fn hash_of(&self, key: &KeyWords) -> Hash {
        let mut hash = [0];
        self.hash.hash(&[block_of(*key)], &mut hash);
        Hash(hash[0])
    }
}

#[inline]
fn block_of([network, high, low]: KeyWords) -> [u64; 4] {
    [network, high, low, 0]
}

const _: () = assert!(size_of::<(u64, KeyWords, crate::endpoint::ContentWords)>() == 64);
