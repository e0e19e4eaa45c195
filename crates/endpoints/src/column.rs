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
/// [`Table::ask_endpoints`], [`Table::led`], [`Table::content`]. A key that was not set is that of
/// an earlier batch.
pub struct Column {
    keys: [KeyWords; KEYS],
    leads: [Lead; KEYS],
    unknown: Unknown,
}

/// The keys of a column that no recent lead was of.
struct Unknown {
    count: usize,
    places: [u8; KEYS],
    /// The words of each key, and 0 behind them: the form that is hashed.
    keys: [[u64; 4]; KEYS],
    hashes: [u64; KEYS],
}

impl Default for Column {
    fn default() -> Column {
        let (places, keys, hashes) = ([0; KEYS], [[0; 4]; KEYS], [0; KEYS]);
        let unknown = Unknown { count: 0, places, keys, hashes };
        Column { keys: [[0; 3]; KEYS], leads: [Lead::NONE; KEYS], unknown }
    }
}

impl Column {
    /// Writes a key to a place.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    #[inline(always)]
    pub fn set(&mut self, place: usize, key: EndpointKey) {
        self.keys[place] = key.words();
    }

    /// The keys of which no recent lead was known when they were last [asked](Table::ask) about.
    #[cfg(test)]
    pub(crate) fn unknown(&self) -> usize {
        self.unknown.count
    }

    /// Returns the key at a place.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    pub fn endpoint_key(&self, place: usize) -> EndpointKey {
        EndpointKey::from_words(self.keys[place])
    }
}

/// Sets of the leads that are remembered, and the bits that pick one.
const SETS: usize = 1 << SET_BITS;
const SET_BITS: u32 = 12;

/// Leads to keys that were looked up lately in a table: two in each set, the later one first. It
/// is a worker's own. A lead is checked when it is followed, so nothing need be forgotten when the
/// table changes, and a wrong one costs a lookup.
pub struct Recent {
    /// As words, because zeroed words cost nothing: [`Remembered::words`].
    sets: Box<[[[u64; 2]; 2]; SETS]>,
}

/// A key's short form, and its lead.
#[derive(Clone, Copy)]
struct Remembered {
    short: u64,
    lead: Lead,
}

impl Remembered {
    #[inline(always)]
    fn of([short, lead]: [u64; 2]) -> Remembered {
        Remembered { short, lead: Lead::of(lead) }
    }

    #[inline(always)]
    fn words(self) -> [u64; 2] {
        [self.short, self.lead.word()]
    }
}

impl Default for Recent {
    fn default() -> Recent {
        const { assert!(Lead::NONE.word() == 0, "a zeroed place leads nowhere") };
        let sets = vec![[[0; 2]; 2]; SETS].into_boxed_slice();
        let Ok(sets) = sets.try_into() else { unreachable!("it has as many") };
        Recent { sets }
    }
}

/// The set of a key. Strangers choose keys: `factor` is a table's secret, and the second product
/// mixes what a bad factor does not.
#[inline(always)]
fn set_of(short: u64, factor: u64) -> usize {
    let mixed = short.wrapping_mul(factor);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(MIX);
    (mixed >> (u64::BITS - SET_BITS)) as usize
}

/// 2^64 divided by the golden ratio: its multiples are spread evenly (Knuth, "The Art of Computer
/// Programming" 3, §6.4).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl Recent {
    /// The lead of a key, or none. Without a branch: which of both has it is not to be guessed.
    #[inline(always)]
    fn lead(&self, short: u64, factor: u64) -> Lead {
        let set = &self.sets[set_of(short, factor)];
        let first = Remembered::of(set[0]).short == short;
        let Remembered { short: found, lead } = Remembered::of(set[usize::from(!first)]);
        lead.if_same(found, short)
    }

    fn remember(&mut self, (short, factor): (u64, u64), lead: Lead) {
        let [later, earlier] = &mut self.sets[set_of(short, factor)];
        if Remembered::of(*later).short != short {
            *earlier = *later;
        }
        *later = Remembered { short, lead }.words();
    }
}

/// A key in one word. Two keys of IPv4 never have the same one, two of IPv6 hardly ever.
#[inline(always)]
fn short([network, high, low]: KeyWords) -> u64 {
    network << 32 ^ low ^ high.wrapping_mul(MIX)
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

/// The place where a packet says that its sender is: outer address of the host, and link address of
/// the tenant, in the form that a table compares.
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
    /// Asks for the memory of the endpoints of the first so many keys where recent leads say where
    /// they are; hashes the others, and asks for the memory of their places in the index.
    ///
    /// # Panics
    /// If there are more than 64.
    #[inline(always)]
    pub fn ask(&self, recent: &Recent, column: &mut Column, count: usize) {
        let Column { keys, leads, unknown } = column;
        let mut others = 0;
        for (place, (key, lead)) in keys[..count].iter().zip(&mut leads[..count]).enumerate() {
            *lead = recent.lead(short(*key), self.factor);
            self.endpoints.prefetch_lead(*lead);
            // Without a branch: which keys are known is not to be guessed.
            unknown.places[others & (KEYS - 1)] = place as u8;
            others += usize::from(*lead == Lead::NONE);
        }
        unknown.count = others;
        if others > 0 {
            self.ask_index(column);
        }
    }

    #[inline(never)]
    fn ask_index(&self, Column { keys, unknown, .. }: &mut Column) {
        let Unknown { count, places, keys: blocks, hashes } = unknown;
        for (block, place) in blocks[..*count].iter_mut().zip(places) {
            let [network, high, low] = keys[usize::from(*place)];
            *block = [network, high, low, 0];
        }
        self.hash.hash(&blocks[..*count], &mut hashes[..*count]);
        for hash in &hashes[..*count] {
            self.endpoints.prefetch_bucket(Hash(*hash));
        }
    }

    /// Asks for the memory of the endpoints of the other keys, and remembers where they are. It
    /// waits for the memory of the index.
    #[inline(always)]
    pub fn ask_endpoints(&self, recent: &mut Recent, column: &mut Column) {
        if column.unknown.count > 0 {
            self.ask_unknown(recent, column);
        }
    }

    #[inline(never)]
    fn ask_unknown(&self, recent: &mut Recent, column: &mut Column) {
        let Column { keys, leads, unknown: Unknown { count, places, hashes, .. } } = column;
        for (hash, place) in hashes[..*count].iter().zip(places) {
            let (place, lead) = (usize::from(*place), self.endpoints.lead(Hash(*hash)));
            self.endpoints.prefetch_lead(lead);
            leads[place] = lead;
            // Who is not where the index leads is remembered when it is found.
            if lead != Lead::NONE {
                recent.remember((short(keys[place]), self.factor), lead);
            }
        }
    }

    /// Returns what the key at a place leads to. `None`: [`content`](Table::content) says whether
    /// it has an endpoint, which it does seldom.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    #[inline(always)]
    pub fn led(&self, column: &Column, place: usize) -> Option<Content> {
        self.endpoints.follow(column.leads[place], &column.keys[place]).map(Content)
    }

    /// Finds the endpoint of the key at a place, as [`find`](Table::find) does, and remembers where
    /// it is.
    ///
    /// # Panics
    /// If the place is 64 or higher.
    #[inline(never)]
    pub fn content(&self, recent: &mut Recent, column: &Column, place: usize) -> Option<Content> {
        let key = column.keys[place];
        let (lead, content) = self.endpoints.find_led(&key, self.hash_of(&key))?;
        recent.remember((short(key), self.factor), lead);
        Some(Content(content))
    }
}
