//! The connections that `reflect` rules let begin: one table that all workers share, of a size that
//! is set when it is made. `tracking.rs` says which connection a packet is of.
//!
//! | module | what |
//! |---|---|
//! | `lines` | lines of 64 bytes that threads read, change, insert and remove at once |
//! | `state_word` | the word of a line that is exchanged |
//! | `key` | both directions of a connection as one key |
//! | `steady` | packets that change nothing of their connection, many together |
//! | `below` | connections whose packets a lower tier passes |
//! | `changes` | how often connections were changed, so that they need not be looked at |
//! | `tally` | counts and bounds |
//! | `half_open` | half-open connections in order of beginning |
//! | `eviction` | room under a bound: connections that give way or are over |
//!
//! # Place
//!
//! A key has two buckets of four lines, by a keyed hash that no stranger can compute. A connection
//! of IPv4 takes one line and one of IPv6 two, in the bucket or in the one beside it. The table has
//! twice as many lines as connections are allowed, so that a bucket hardly ever is full before the
//! table is. An entry never moves: a [`Place`] may be remembered. It may pass to another
//! connection, so that every use of it compares the key.
//!
//! # Who waits for whom
//!
//! Finding and observing wait for nobody. Insertions of one bucket wait for each other, so that the
//! first packets of both directions make one connection. A removal waits for a thread that is just
//! [renewing](Connections::renew) the entry.
//!
//! # What gives way
//!
//! Half-open connections have at most a quarter of the table and a share of each zone, unless the
//! limits say otherwise. At a bound the oldest half-open connection gives way, of the same zone if
//! the bound is the zone's (`half_open`; a search reads at most 1024 slots). If there is none, the
//! next 4 lines of the table are swept. If no connection of these lines is over, the new one is
//! refused and counted. If both buckets of a new key are full, the oldest half-open connection in
//! the buckets gives way. An assured connection gives way to nobody before its time-out.
//!
//! # Time
//!
//! Seconds of any clock that goes forward, as an argument. A connection whose time-out has passed
//! is not found any more. [`sweep`](Connections::sweep) removes the connection, or an insertion
//! does, for its place or before a refusal.
//!
//! Not here: rules (they say what a first packet may do), packets, fragments.

mod below;
mod changes;
mod eviction;
mod half_open;
mod key;
mod latest_slots;
mod lines;
#[cfg(test)]
mod model;
mod state_word;
mod steady;
mod tally;

use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use cpu::aes::{KeyedHash, Secret};
use policy::connection::{self, Event, Next, Segment, Shown, Side, Status, Timeouts};
use policy::{DomainId, Generation, PolicyIndex};

pub use below::{LEEWAY_S, NotLasting};
pub(crate) use changes::ChangesView;
use changes::{ChangeGroup, Changes, GROUP_BITS};
pub(crate) use key::{EchoMessage, Gate};
pub use key::{End, Key, Zone, ZoneOwner};
pub use tally::{Limits, Refusal, TableCounts, ZoneCounts};

use eviction::Eviction;
use half_open::{HalfOpenEntry, HalfOpenRing, RingSlot};
use key::{KEY, Originator, ZoneSlot};
use latest_slots::LatestSlots;
use lines::{Bounds, Candidates, Entry, LineInserted, Lines, Removals, RemovedTenant};
use state_word::StateWord;
use steady::Steady;
pub(crate) use steady::{EventClass, FlowHead, KeyColumn, KeyWords, SteadyConnection};
use tally::{Share, Tally};

/// Words of a value in a line: two of the judgement, one that stays.
const VALUE: usize = 3;
/// Lines of a bucket.
const BUCKET: usize = 4;
/// Lines a connection of IPv4 that is allowed: the table is at most half full.
const LINES_A_CONNECTION: usize = 2;

/// A connection's place in the table. It is good only together with the connection's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(pub u32);

/// The rule that let a connection begin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Judgement {
    /// The `reflect` rule that decided.
    pub rule: PolicyIndex,
    /// The groups that it is of: those of one side of the ports of the zone's class.
    pub domain: DomainId,
    /// The generation of the domain when it was asked. If the domain has another one, the first
    /// packet's flow is judged again.
    pub generation: Generation,
}

impl Judgement {
    /// A judgement of no generation that a domain has.
    pub const UNKNOWN: Judgement =
        Judgement { rule: PolicyIndex(u32::MAX), domain: DomainId(0), generation: Generation(0) };

    /// The groups and their generation as one number.
    #[inline]
    pub(crate) fn by(&self) -> u64 {
        u64::from(self.generation.0) << 32 | u64::from(self.domain.0)
    }

    #[inline]
    fn words(&self, constant: u64) -> [u64; VALUE] {
        let generation = u64::from(self.generation.0);
        [u64::from(self.rule.0) | generation << 32, self.domain.0.into(), constant]
    }

    #[inline]
    fn of_words(words: &[u64; VALUE]) -> Judgement {
        Judgement {
            rule: PolicyIndex(words[0] as u32),
            domain: DomainId(words[1] as u16),
            generation: Generation((words[0] >> 32) as u32),
        }
    }
}

/// The last word of a value:
/// `originator << 63 | group of changes << 49 | zone's place << 32 | second in which it was made`.
#[derive(Clone, Copy)]
struct Constant(u64);

/// Bits below the group of changes in a [`Constant`].
const GROUP_SHIFT: u32 = 49;
const _: () = assert!(GROUP_SHIFT + GROUP_BITS == 63);

impl Constant {
    fn new(originator: Originator, group: ChangeGroup, zone: ZoneSlot, made_s: u32) -> Constant {
        let originator = u64::from(originator == Originator::Second);
        let (group, zone) = (u64::from(group.0), u64::from(zone.0));
        Constant(originator << 63 | group << GROUP_SHIFT | zone << 32 | u64::from(made_s))
    }

    #[inline]
    fn group(self) -> ChangeGroup {
        ChangeGroup((self.0 >> GROUP_SHIFT) as u16 & ((1 << GROUP_BITS) - 1))
    }

    #[inline]
    fn originator(self) -> Originator {
        if self.0 >> 63 == 0 { Originator::First } else { Originator::Second }
    }

    #[inline]
    fn zone(self) -> ZoneSlot {
        ZoneSlot((self.0 >> 32) as u16)
    }

    fn made_s(self) -> u32 {
        self.0 as u32
    }
}

/// A connection that a packet is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Place.
    pub place: Place,
    /// The end that sent the packet.
    pub from: Side,
    /// Status, before the packet.
    pub status: Status,
    /// The judgement of its first packet. Of generation 0, which no domain has, while another
    /// worker writes a new one.
    pub judgement: Judgement,
}

/// Outcome of a packet for the connection in a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observed {
    /// The packet is of it.
    Seen {
        /// The end that sent the packet.
        from: Side,
        /// Status before the packet.
        before: Status,
        /// Status after it.
        after: Status,
    },
    /// The packet is of no connection: it is judged as the first of another one, which takes the
    /// place of this one if it is [inserted](Connections::insert).
    IsNew,
    /// The place has another connection or none, or the time-out has passed.
    Gone,
    /// The packet would begin the connection anew, and a bound on half-open ones is reached.
    Refused(Refusal),
}

/// Outcome of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The connection is there now.
    New(Place),
    /// Another worker was faster. The packet is now to be observed as one of that connection.
    Raced(Found),
    /// A bound is reached; it is counted.
    Refused(Refusal),
    /// No connection begins with such a packet.
    MakesNone,
}

/// A connection, as operators see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Place.
    pub place: Place,
    /// Zone.
    pub zone: Zone,
    /// The end that sent the first packet.
    pub originator: End,
    /// The other end.
    pub responder: End,
    /// Protocol.
    pub protocol: u8,
    /// Status.
    pub status: Status,
    /// Seconds since it was last seen.
    pub idle_s: u32,
    /// Second in which its place was taken.
    pub made_s: u32,
    /// The judgement of its first packet.
    pub judgement: Judgement,
    /// Key of packets of the originator.
    pub key: Key,
}

/// The part of the table that one worker sweeps, and how far it is.
#[derive(Clone, Debug)]
pub struct Stripe {
    first: usize,
    end: usize,
    next: usize,
}

/// The table. Workers share it behind an `Arc`.
pub struct Connections {
    lines: Lines<AtomicU64, KEY, VALUE, BUCKET>,
    hash: KeyedHash,
    tally: Tally,
    half_open: HalfOpenRing<AtomicU64>,
    latest: LatestSlots,
    /// Next line to sweep before a refusal.
    reclaiming: AtomicUsize,
    timeouts: Timeouts,
    steady: Steady,
    changes: Changes,
    /// Clearings by operators until now.
    clearings: AtomicU32,
    number: u64,
}

/// The number of the next table.
static NEXT_TABLE: AtomicU64 = AtomicU64::new(1);

impl Connections {
    /// An empty table, whose memory is taken at once: [`Limits::table_bytes`].
    pub fn new(limits: Limits, timeouts: Timeouts, secret: &Secret) -> Connections {
        let lines = limits.max as usize * LINES_A_CONNECTION;
        let slots = half_open::slots_for(limits.half_open);
        // Two buckets that lie beside each other are one for a connection of IPv6.
        let buckets = lines.div_ceil(2 * BUCKET).max(1) * 2;
        Connections {
            lines: Lines::new(buckets),
            hash: KeyedHash::new(secret),
            tally: Tally::new(limits),
            half_open: HalfOpenRing::new(slots),
            latest: LatestSlots::new(slots),
            reclaiming: AtomicUsize::new(0),
            steady: Steady::new(&timeouts),
            timeouts,
            changes: Changes::new(secret),
            clearings: AtomicU32::new(0),
            number: NEXT_TABLE.fetch_add(1, Relaxed),
        }
    }

    /// The number of the table, which no other table of the process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Clearings by operators until now.
    #[inline]
    pub(crate) fn clearings(&self) -> u32 {
        self.clearings.load(Acquire)
    }

    /// Bytes of the lines, and of the order of half-open connections.
    pub fn bytes(&self) -> usize {
        self.lines.len() * 64 + self.half_open.bytes() + self.latest.bytes()
    }

    /// Lines of the table.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    #[inline]
    fn candidates(&self, key: &Key) -> Candidates {
        let [address, identity, zone] = key.line.head;
        let mut hash = [0];
        match key.line.tail {
            None => self.hash.hash(&[[address, identity, zone, 0]], &mut hash),
            Some([high, low, other]) => {
                self.hash.hash(&[[address, identity, zone, high, low, other]], &mut hash);
            }
        }
        Candidates { buckets: self.buckets(hash[0]), start: hash[0] as usize % BUCKET }
    }

    /// Asks for the memory in which a key is looked for first.
    #[inline]
    pub fn prefetch(&self, key: &Key) {
        let Candidates { buckets: [first, _], start } = self.candidates(key);
        self.lines.prefetch(first * BUCKET + start);
    }

    /// Asks for the memory of a place.
    #[inline]
    pub fn prefetch_place(&self, place: Place) {
        self.lines.prefetch(place.0 as usize);
    }

    #[inline]
    fn is_expired(&self, word: StateWord, now_s: u32) -> bool {
        word.is_live() && word.age_s(now_s) >= self.steady.timeout_s(word)
    }

    fn found(key: &Key, entry: &Entry<VALUE>) -> Option<Found> {
        Some(Found {
            place: Place(entry.at as u32),
            from: key.side(Constant(entry.constant).originator()),
            status: entry.word.status()?,
            judgement: entry.value.as_ref().map_or(Judgement::UNKNOWN, Judgement::of_words),
        })
    }

    /// Finds the connection that a packet is of. It changes nothing.
    #[inline]
    pub fn find(&self, key: &Key, now_s: u32) -> Option<Found> {
        let entry = self.lines.find(&key.line, self.candidates(key))?;
        if self.is_expired(entry.word, now_s) { None } else { Self::found(key, &entry) }
    }

    /// Reads the connection in a place, if it still is the one that a packet is of.
    #[inline]
    pub fn at(&self, place: Place, key: &Key, now_s: u32) -> Option<Found> {
        let entry = self.lines.entry_of(place.0 as usize, &key.line)?;
        if self.is_expired(entry.word, now_s) { None } else { Self::found(key, &entry) }
    }

    /// Moves the connection in a place on by a packet of it. Writes only if its status changes, or
    /// if it was last seen in another second.
    #[inline]
    pub fn observe(&self, place: Place, key: &Key, shown: Shown, now_s: u32) -> Observed {
        let width = key.line.width() as u32;
        // The last of what these say holds: others may interfere.
        let (mut said, mut zone, mut reserved) = (Observed::Gone, None, None);
        let mut slot = RingSlot::NONE;
        let changed = self.lines.update(place.0 as usize, &key.line, |word, constant| {
            let constant = Constant(constant);
            let (new, what) = self.observed(key, word, constant, shown, now_s);
            (said, zone) = (what, Some(constant.zone()));
            if word.is_half_open() && !new.is_half_open() {
                slot = RingSlot(self.lines.note(place.0 as usize));
            }
            if new.is_half_open() && !word.is_half_open() && reserved.is_none() {
                match self.reserve_half_open(constant.zone(), width, now_s) {
                    Ok(()) => reserved = zone,
                    Err(refusal) => {
                        said = Observed::Refused(refusal);
                        return None;
                    }
                }
            }
            Some(new)
        });
        let was_and_is = changed.map(|(was, is)| (was.is_half_open(), is.is_half_open()));
        let entry = |zone| HalfOpenEntry { line: place.0, zone };
        let no_more = match was_and_is {
            Some((true, false)) => zone.inspect(|zone| {
                self.half_open.remove(slot, entry(*zone));
            }),
            Some((false, true)) => {
                let slot = zone.map_or(RingSlot::NONE, |zone| self.enlist(entry(zone)));
                self.lines.set_note(place.0 as usize, slot.0);
                None
            }
            _ => reserved,
        };
        if let Some(zone) = no_more {
            self.tally.give_back_half_open(zone, width);
        }
        if let Some((was, is)) = changed
            && was.status_bits() != is.status_bits()
            && self.steady.may_be_marked(was)
        {
            self.changes.count(self.group_of(key));
        }
        match (changed, said) {
            (None, _) => Observed::Gone,
            (_, Observed::Refused(refusal)) => {
                self.tally.refuse(refusal);
                said
            }
            _ => said,
        }
    }

    /// The state word after a packet, and what to say of it.
    #[inline]
    fn observed(
        &self,
        key: &Key,
        word: StateWord,
        constant: Constant,
        shown: Shown,
        now_s: u32,
    ) -> (StateWord, Observed) {
        let before = match word.status() {
            Some(before) if !self.is_expired(word, now_s) => before,
            _ => return (word, Observed::Gone),
        };
        let from = key.side(constant.originator());
        let (after, seen_s) = match connection::next(Some(before), Event { from, shown }) {
            Next::Begins(after) | Next::Continues(after) | Next::Resets(after) => {
                (after, word.seen_s(now_s))
            }
            Next::Keeps(after) => (after, word.last_seen_s()),
            Next::IsNew => return (word, Observed::IsNew),
            Next::MakesNone => (before, word.last_seen_s()),
        };
        (word.with(after, seen_s), Observed::Seen { from, before, after })
    }

    /// Makes a connection of a packet that is of none, and that a rule permits in its own
    /// direction: the packet's sender is its originator.
    pub fn insert(&self, key: &Key, shown: Shown, judgement: Judgement, now_s: u32) -> Inserted {
        let event = Event { from: Side::Originator, shown };
        let Next::Begins(status) = connection::next(None, event) else {
            return Inserted::MakesNone;
        };
        let is_syn = shown == Shown::Tcp(Segment::Syn);
        let closed = if is_syn { Closed::GivesWay } else { Closed::Stays };
        self.insert_as(key, status, judgement, (now_s, now_s), closed)
    }

    /// Makes a connection that another table had, as if it was last seen `idle_s` ago. The key is
    /// that of its originator.
    pub fn restore(&self, connection: &Connection, now_s: u32) -> Inserted {
        let Connection { key, status, judgement, idle_s, .. } = connection;
        let seen_s = now_s.wrapping_sub(*idle_s);
        self.insert_as(key, *status, *judgement, (seen_s, now_s), Closed::Stays)
    }

    fn insert_as(
        &self,
        key: &Key,
        status: Status,
        judgement: Judgement,
        (seen_s, now_s): (u32, u32),
        closed: Closed,
    ) -> Inserted {
        let zone = ZoneSlot(key.zone().attachment);
        let width = key.line.width() as u32;
        let share = Share { zone, width, is_half_open: status.is_half_open() };
        let admission = Admission { table: self, key, share, now_s, closed };
        let constant = Constant::new(key.sender(), self.group_of(key), zone, now_s);
        let (value, tenant) = (judgement.words(constant.0), StateWord::new(status, seen_s));
        let candidates = self.candidates(key);
        match self.lines.insert(candidates, &key.line, (&value, tenant), &admission) {
            LineInserted::New(at) => {
                self.tally.made.fetch_add(1, Relaxed);
                Inserted::New(Place(at as u32))
            }
            LineInserted::Raced(entry) => {
                Self::found(key, &entry).map_or(Inserted::MakesNone, Inserted::Raced)
            }
            LineInserted::Refused(refusal) => {
                self.tally.refuse(refusal);
                Inserted::Refused(refusal)
            }
        }
    }

    /// Writes a new judgement of the connection in a place, after its first packet's flow was
    /// judged again. Returns whether it did: `false` if the connection is gone, or another worker
    /// does the same.
    pub fn renew(&self, place: Place, key: &Key, judgement: Judgement) -> bool {
        self.lines.renew(place.0 as usize, &key.line, &judgement.words(0))
    }

    /// Removes the connection in a place. Returns whether it was there.
    pub fn remove(&self, place: Place, key: &Key) -> bool {
        self.lines.remove_key(place.0 as usize, &key.line, &Removal(self))
    }

    /// The part of one of `workers` workers.
    ///
    /// # Panics
    /// If there are no workers.
    pub fn stripe(&self, worker: usize, workers: usize) -> Stripe {
        let [first, end] = [worker, worker + 1].map(|at| at * self.lines.len() / workers);
        Stripe { first, end, next: first }
    }

    /// Looks at the next lines of a stripe, and removes connections whose time-out has passed.
    /// Returns how many.
    pub fn sweep(&self, stripe: &mut Stripe, lines: usize, now_s: u32) -> usize {
        let mut removed = 0;
        for _ in 0..lines.min(stripe.end - stripe.first) {
            let at = stripe.next;
            stripe.next = if at + 1 < stripe.end { at + 1 } else { stripe.first };
            removed += usize::from(self.expire(at, now_s));
        }
        self.tally.expired.fetch_add(removed as u64, Relaxed);
        removed
    }

    /// Removes the connection in a line if its time-out has passed. False: nothing was removed.
    #[inline]
    fn expire(&self, at: usize, now_s: u32) -> bool {
        let word = self.lines.word(at);
        let is_over = |word| self.is_expired(word, now_s);
        is_over(word) && self.lines.remove(at, word, &Removal(self), is_over)
    }

    /// Removes the connections of a filter, and returns their number. A connection that begins
    /// meanwhile may stay. Expired connections are removed as well, without being counted.
    pub fn clear(&self, now_s: u32, filter: impl Fn(&Connection) -> bool) -> usize {
        let (mut removed, mut expired) = (0, 0);
        for at in 0..self.lines.len() {
            let connection = self.connection(at, now_s);
            let is_removed =
                connection.is_some_and(|it| filter(&it) && self.remove(it.place, &it.key));
            removed += usize::from(is_removed);
            expired += u64::from(!is_removed && self.expire(at, now_s));
        }
        self.tally.expired.fetch_add(expired, Relaxed);
        self.clearings.fetch_add(1, Release);
        removed
    }

    /// Appends the connections of some lines; returns the first line behind them, unless that is
    /// the end. It only reads: no worker waits for it or notices it.
    ///
    /// A connection that is there all the time is in one page; of others none is in two, unless it
    /// ended and began again.
    pub fn page(
        &self,
        from: Place,
        lines: usize,
        now_s: u32,
        page: &mut Vec<Connection>,
    ) -> Option<Place> {
        let from = from.0 as usize;
        let end = from.saturating_add(lines).min(self.lines.len());
        page.extend((from..end).filter_map(|at| self.connection(at, now_s)));
        (end < self.lines.len()).then_some(Place(end as u32))
    }

    fn connection(&self, at: usize, now_s: u32) -> Option<Connection> {
        let (entry, line) = self.lines.any_entry(at)?;
        let constant = Constant(entry.constant);
        let key = Key::of_line(line).sent_by(constant.originator());
        let found = Self::found(&key, &entry).filter(|_| !self.is_expired(entry.word, now_s))?;
        let [originator, responder] = key.ends(constant.originator());
        Some(Connection {
            place: found.place,
            zone: key.zone(),
            originator,
            responder,
            protocol: key.protocol(),
            status: found.status,
            idle_s: entry.word.age_s(now_s),
            made_s: constant.made_s(),
            judgement: found.judgement,
            key,
        })
    }

    /// Sizes.
    pub fn limits(&self) -> Limits {
        self.tally.limits
    }

    /// Time-outs.
    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Counts of the table. Those whose time-out has passed are counted until they are removed.
    pub fn counts(&self) -> TableCounts {
        self.tally.counts()
    }

    /// Removes the connections of zones, and returns their number. No worker knows the ports and
    /// virtual networks of these zones any more, so none begins meanwhile. Cost: one pass over the
    /// table, unless no zone has a connection.
    pub fn clear_zones(&self, zones: Vec<Zone>, now_s: u32) -> usize {
        let has_some = |zone: &Zone| self.tally.live(ZoneSlot(zone.attachment)) > 0;
        let mut zones: Vec<Zone> = zones.into_iter().filter(has_some).collect();
        zones.sort_unstable();
        match zones.is_empty() {
            true => 0,
            false => self.clear(now_s, |it| zones.binary_search(&it.zone).is_ok()),
        }
    }

    /// Counts of each zone that has a connection.
    pub fn zones(&self) -> impl Iterator<Item = ZoneCounts> {
        self.tally.zones()
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// Fate of a connection of the same key that is closed, if its responder sends the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// It stays: the packet begins nothing.
    Stays,
    /// It gives way: the packet is a SYN.
    GivesWay,
}

/// Removals that nothing else is wanted for.
struct Removal<'a>(&'a Connections);

impl Removals for Removal<'_> {
    fn removed(&self, tenant: RemovedTenant) {
        let RemovedTenant { at, word, constant, note, width } = tenant;
        let (is_half_open, constant) = (word.is_half_open(), Constant(constant));
        let share = Share { zone: constant.zone(), width: width as u32, is_half_open };
        self.0.tally.give_back(share);
        if is_half_open {
            let entry = HalfOpenEntry { line: at as u32, zone: share.zone };
            self.0.half_open.remove(RingSlot(note), entry);
        }
        if self.0.steady.may_be_marked(word) {
            self.0.changes.count(constant.group());
        }
    }
}

/// The insertion of one connection.
struct Admission<'a> {
    table: &'a Connections,
    key: &'a Key,
    share: Share,
    now_s: u32,
    closed: Closed,
}

impl Removals for Admission<'_> {
    fn removed(&self, tenant: RemovedTenant) {
        Eviction { table: self.table, now_s: self.now_s }.removed(tenant);
    }
}

impl Bounds for Admission<'_> {
    type Refusal = Refusal;
    const FULL: Refusal = Refusal::TableFull;

    fn reserve(&self) -> Result<(), Refusal> {
        self.table.reserve(self.share, self.now_s)
    }

    fn give_back(&self) {
        self.table.tally.give_back(self.share);
    }

    fn note(&self, at: usize) -> u64 {
        let entry = HalfOpenEntry { line: at as u32, zone: self.share.zone };
        if self.share.is_half_open { self.table.enlist(entry).0 } else { RingSlot::NONE.0 }
    }

    fn readiness(&self, word: StateWord) -> Option<u32> {
        match self.table.is_expired(word, self.now_s) {
            true => Some(u32::MAX),
            false => word.is_half_open().then(|| word.age_s(self.now_s)),
        }
    }

    fn is_over(&self, word: StateWord, constant: u64) -> bool {
        let originator = Constant(constant).originator();
        let is_closed = self.closed == Closed::GivesWay
            && self.key.side(originator) == Side::Responder
            && word.status().is_some_and(Status::gives_way);
        is_closed || self.table.is_expired(word, self.now_s)
    }
}

#[cfg(test)]
mod tests;
