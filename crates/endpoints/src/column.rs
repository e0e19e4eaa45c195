//! Keys of a batch of packets, looked up together: each step asks for memory that the next one
//! reads, for all keys, so that many come at a time.

use wire::{Address, LinkAddress};

use crate::endpoint::{ContentWords, EndpointKey, HOST_V6, KeyWords};
use crate::map::{Hash, Lead};
use crate::table::{Found, Table};

/// Keys that a column has room for: those of a batch.
const KEYS: usize = 64;

/// A column of keys, with what is known of them so far. The caller keeps it, so that a batch
/// allocates nothing. Steps, in this order: [`set`](Column::set), [`Table::ask`],
/// [`Table::ask_endpoints`], [`Table::led`], [`Table::content`]. A key that was not set is that of an earlier batch.
pub struct Column {
    /// The words of each key, and 0 behind them: the form that is hashed.
    keys: [[u64; 4]; KEYS],
    hashes: [u64; KEYS],
    leads: [Lead; KEYS],
}

impl Default for Column {
    fn default() -> Column {
        Column { keys: [[0; 4]; KEYS], hashes: [0; KEYS], leads: [Lead::NONE; KEYS] }
    }
}

impl Column {
    /// Writes a key to a place.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    #[inline(always)]
    pub fn set(&mut self, place: usize, key: EndpointKey) {
        let [network, high, low] = key.words();
        self.keys[place] = [network, high, low, 0];
    }

    /// Returns the key at a place.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    pub fn endpoint_key(&self, place: usize) -> EndpointKey {
        EndpointKey::from_words(self.key(place))
    }

    #[inline(always)]
    fn key(&self, place: usize) -> KeyWords {
        let [network, high, low, _] = self.keys[place];
        [network, high, low]
    }
}

/// All of an endpoint but its key, as it stands in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content(ContentWords);

impl Content {
    /// Returns whether the endpoint is where a sender says it is.
    #[inline(always)]
    pub fn is_at(&self, sender: &Sender) -> bool {
        let Content([high, low, host_mac, mac]) = self;
        let Sender([host_high, host_low, family, tenant]) = sender;
        let differs = (high ^ host_high) | (low ^ host_low) | ((host_mac ^ family) & HOST_V6);
        differs | (mac ^ tenant) == 0
    }
}

impl From<Content> for Found {
    #[inline(always)]
    fn from(Content(words): Content) -> Found {
        Found::from_words(&words)
    }
}

/// Where a packet says that its sender is: outer address of the host, and link address of the
/// tenant, in the form that a table compares.
#[derive(Clone, Copy, Debug)]
pub struct Sender(ContentWords);

impl Sender {
    /// The tenant with a link address behind a host.
    #[inline(always)]
    pub fn new(host: Address, mac: LinkAddress) -> Sender {
        Sender(Found { host, host_mac: None, mac }.words())
    }
}

impl Table {
    /// Hashes the first so many keys, and asks for the memory of their places in the index.
    ///
    /// # Panics
    /// If there are more than 64.
    #[inline]
    pub fn ask(&self, column: &mut Column, count: usize) {
        let Column { keys, hashes, .. } = column;
        self.hash.hash(&keys[..count], &mut hashes[..count]);
        for hash in &hashes[..count] {
            self.endpoints.prefetch_bucket(Hash(*hash));
        }
    }

    /// Asks for the memory of their endpoints. It waits for that of the index.
    ///
    /// # Panics
    /// If there are more than 64.
    #[inline]
    pub fn ask_endpoints(&self, column: &mut Column, count: usize) {
        let Column { hashes, leads, .. } = column;
        for (hash, lead) in hashes[..count].iter().zip(&mut leads[..count]) {
            *lead = self.endpoints.lead(Hash(*hash));
        }
    }

    /// Returns what the key at a place leads to. `None`: [`content`](Table::content) says whether
    /// it has an endpoint, which it does seldom.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    #[inline(always)]
    pub fn led(&self, column: &Column, place: usize) -> Option<Content> {
        self.endpoints.follow(column.leads[place], &column.key(place)).map(Content)
    }

    /// Finds the endpoint of the key at a place, as [`find`](Table::find) does.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    pub fn content(&self, column: &Column, place: usize) -> Option<Content> {
        self.endpoints.find(&column.key(place), Hash(column.hashes[place])).map(Content)
    }
}
