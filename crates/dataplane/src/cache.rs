//! The flow cache: what the policies said of a flow, remembered beside the generation at which they
//! said it (DESIGN §2).
//!
//! One table a worker, for both families and both directions. Its size is fixed: where it is too
//! small, a larger one takes its place (`growth.rs`). A batch is looked up as a whole: all keys
//! are made and hashed and their lines asked for, then all are compared, then those that are
//! missing are searched together, equal ones once, and written.
//!
//! **Key**: scope (question, family, class of the ingress port, and of an opened packet the set of
//! the SA that opened it), addresses, protocol, upper layer, and where a rule asks whether a TCP
//! segment opens a connection, that. The set does for the SPI: all SAs of a
//! set are judged alike, and it stays when they are rekeyed. **Value**: the number of a verdict,
//! under its domain's generation; and the next hop, under a number that this worker gives each
//! routing table it sees. A stale route is looked up again; the verdict stands if the new route
//! leads to a port of the same class, with the same groups.
//!
//! Invalidation is in the numbers: nothing is ever cleared. An entry is of no use as soon as its
//! domain has another generation. Where generations begin anew after their highest, entries from
//! before could look like new ones: then the table answers nothing until it is taken out and a
//! fresh one put in ([`FlowCache::needs_replacement`]).
//!
//! Not here: what must be asked of each packet, whatever its flow (`decide.rs`).

mod column;
mod entry;
mod firsts;
mod growth;
mod lane;
mod marks;
mod place_index;
mod table;
mod verdicts;

use cpu::aes::{KeyedHash, Secret};
use policy::{DomainId, FlowVerdict, Generation, Scope, TrackedVerdict};
use wire::{Family, Flow};

use crate::connections::Connections;
use crate::ids::{PortId, RouteGeneration};
use crate::snapshot::{Snapshot, SnapshotNumber};
pub(crate) use column::{Column, Scopes, bits};
pub use entry::{CachedRoute, Key};
pub(crate) use entry::{Value, Words, set_opens, v4_head, v6_head};
pub(crate) use firsts::Firsts;
pub use growth::{FIRST_ENTRIES, Usage, entries_of_fresh};
pub(crate) use lane::{Lane, Lanes};
use marks::Ticks;
pub(crate) use marks::{Mark, Tick};
use table::{Domain, Domains, Table, WriteOutcome};
pub(crate) use verdicts::Said;
use verdicts::Verdicts;

/// Size of an IPv4 entry in bytes. An IPv6 entry is twice as large.
pub const ENTRY_BYTES: usize = 32;
/// Entries for each flow that is to be carried: a load of a quarter.
pub const ENTRIES_A_FLOW: usize = 4;

/// Returns the bytes of a cache with so many IPv4 entries, the memory for tracked connections
/// included.
pub fn memory_bytes(entries: usize) -> u64 {
    (entries as u64).saturating_mul(ENTRY_BYTES as u64) + Verdicts::bytes(entries) as u64
}

/// Choice of the domains that are looked up in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CacheUse {
    /// Domains whose search costs no more than the cache are searched.
    #[default]
    WherePaid,
    /// Every domain is looked up.
    Always,
}

/// Steps ([`policy::classifier::Cost::steps`]) up to which a search costs no more than a look into
/// the cache: on the fast path that is 60 instructions where the search of a single policy is 250
/// more, so only a domain without rules is searched.
pub const BREAK_EVEN_STEPS: u32 = 0;

/// Counters of a worker's cache. Plain numbers, all of packets or entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Packets that were answered without a search: by an entry, or with one of the same batch.
    pub hits: u64,
    /// Packets whose flow had no entry that holds.
    pub misses: u64,
    /// Hits whose route had to be looked up again.
    pub routes: u64,
    /// Entries written.
    pub inserts: u64,
    /// Entries written over an entry of another generation.
    pub stale: u64,
    /// Entries that held when another took their place.
    pub evictions: u64,
    /// Evictions of entries that said more than that no policy matched: those of flows for which
    /// the table is too small.
    pub crowded_out: u64,
    /// Entries written that say that no policy matched.
    pub negative: u64,
    /// Entries that were not written: one that says that no policy matched, because it would have
    /// cost one that holds, or any, because the cache holds as many different verdicts as it can.
    pub refused: u64,
}

impl CacheCounters {
    /// Counts packets that were looked up, of which `misses` had no answer.
    #[inline]
    pub(crate) fn count(&mut self, packets: usize, misses: usize) {
        self.hits += (packets - misses) as u64;
        self.misses += misses as u64;
    }

    /// Adds another worker's.
    pub fn add(&mut self, other: &CacheCounters) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.routes += other.routes;
        self.inserts += other.inserts;
        self.stale += other.stale;
        self.evictions += other.evictions;
        self.crowded_out += other.crowded_out;
        self.negative += other.negative;
        self.refused += other.refused;
    }
}

/// A cache's answer for a packet, for `explain`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recall {
    /// The cache has an answer.
    Known,
    /// The cache does not know the flow yet.
    Unknown,
    /// The cache is not asked: a search of this domain costs no more than a lookup.
    Bypassed,
    /// The cache answers nothing until a fresh one takes its place.
    Invalid,
}

/// A cache entry as `lockgate show cache` displays it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheEntry {
    /// Scope and flow that the entry is for.
    pub key: Key,
    /// The remembered verdict.
    pub verdict: FlowVerdict,
    /// Generation of its domain when the policies were asked.
    pub generation: Generation,
    /// True if that is still the domain's generation.
    pub is_current: bool,
    /// The next hop, if the routes have not changed since.
    pub route: CachedRoute,
}

/// One worker's flow cache.
pub struct FlowCache {
    table: Table,
    hash: KeyedHash,
    use_: CacheUse,
    verdicts: Verdicts,
    domains: Domains,
    /// The snapshot of the last sync; `None`: no sync yet.
    synced: Option<SnapshotNumber>,
    /// `Spd::wraps` of the first snapshot; `None`: none was seen yet.
    wraps: Option<u32>,
    /// Route generation of the latest snapshot; `None`: none was seen yet.
    routes: Option<RouteGeneration>,
    /// Number that the cache gave the latest routing table, from 1.
    epoch: u16,
    ticks: Ticks,
    is_invalid: bool,
}

impl FlowCache {
    /// A cache with room for so many IPv4 entries, rounded up to a power of two, at least 8. Its
    /// memory is taken as it is first used, or at once by [`touch`](Self::touch).
    ///
    /// # Errors
    /// The kernel's error: there is no room for the table.
    pub fn new(entries: usize, secret: &Secret, use_: CacheUse) -> std::io::Result<FlowCache> {
        let lines = entries.div_ceil(cpu::memory::LINE_BYTES / ENTRY_BYTES);
        Ok(FlowCache {
            table: Table::new(lines)?,
            hash: KeyedHash::new(secret),
            use_,
            verdicts: Verdicts::new(entries),
            domains: Domains::default(),
            synced: None,
            wraps: None,
            routes: None,
            epoch: 0,
            ticks: Ticks::default(),
            is_invalid: false,
        })
    }

    /// Replaces the hash by the one for processors without AES rounds.
    pub fn with_portable_hash(mut self, secret: &Secret) -> FlowCache {
        self.hash = KeyedHash::portable(secret);
        self
    }

    /// Makes the kernel provide the memory of the cache now. The memory for tracked connections is
    /// reserved; the kernel provides it at the first use.
    ///
    /// # Errors
    /// The kernel's error: there is not that much memory.
    pub fn touch(&mut self) -> std::io::Result<()> {
        self.verdicts.touch();
        self.table.touch()
    }

    /// Room, in IPv4 entries.
    pub fn capacity(&self) -> usize {
        self.bytes() / ENTRY_BYTES
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(self.table.lines())
    }

    /// Returns whether the cache must be replaced by a fresh one: generations began anew since its
    /// first entry, or too many routing tables were seen, or ticks. Until then it answers nothing,
    /// or no routes, or has no marks.
    pub fn needs_replacement(&self) -> bool {
        self.is_invalid || self.epoch == u16::MAX || self.ticks.are_spent()
    }

    /// Returns whether no further verdict can be numbered. Flows with other verdicts are then not
    /// remembered until a fresh cache takes its place.
    pub fn is_full(&self) -> bool {
        self.verdicts.is_full()
    }

    /// Entries that hold and say what the policies of a domain said, under the snapshot that was
    /// walked last.
    pub fn entries_of(&self, domain: DomainId) -> u64 {
        self.domains.list.get(usize::from(domain.0)).map_or(0, |domain| domain.entries)
    }

    /// Domains of the snapshot of the last sync.
    pub fn domains(&self) -> usize {
        self.domains.list.len()
    }

    /// The valid entries of each domain from a number on, and whether the cache is bypassed.
    pub fn domain_uses(&self, from: usize) -> impl Iterator<Item = (u64, bool)> {
        let domains = self.domains.list.get(from..).unwrap_or_default();
        domains.iter().map(|domain| (domain.entries, domain.is_bypassed))
    }

    /// Says what it would do with a packet of a key, and changes nothing.
    pub fn recall(&self, key: &Key) -> Recall {
        match (self.serves(key.scope), key.flow.family) {
            (false, _) if self.is_invalid => Recall::Invalid,
            (false, _) => Recall::Bypassed,
            (true, Family::V4) => self.recall_words::<{ entry::V4 }>(key),
            (true, Family::V6) => self.recall_words::<{ entry::V6 }>(key),
        }
    }

    fn recall_words<const WORDS: usize>(&self, key: &Key) -> Recall
    where
        Flow: Words<WORDS>,
    {
        let (mut words, mut hash) = (key.flow.words(key.scope), [0]);
        self.domains.narrow(&mut words);
        self.hash.hash(&[words], &mut hash);
        entry::set_generation(&mut words, self.domains.generation(key.scope));
        let [hash] = hash;
        let found = [self.table.find(hash, &words), self.table.find_second(hash, &words)];
        let Some(value) = found.iter().find(|value| !value.is_nothing()) else {
            return Recall::Unknown;
        };
        // Where no book was asked the route alone says so: it is looked up, and may lead to one.
        let stands = value.verdict().is_asked() || value.route(self.epoch) != CachedRoute::Unknown;
        if stands { Recall::Known } else { Recall::Unknown }
    }

    /// Returns whether packets of a domain are not looked up, because its search costs no more.
    pub fn bypasses(&self, domain: DomainId) -> bool {
        self.domains.list.get(usize::from(domain.0)).is_none_or(|domain| domain.is_bypassed)
    }

    /// The entries of up to `limit` lines from `line` on, and the line to go on with; `None`: that
    /// was all.
    pub fn entries(&self, line: usize, limit: usize) -> (Vec<CacheEntry>, Option<usize>) {
        let end = line.saturating_add(limit).min(self.table.lines().len());
        let shown = (line..end).flat_map(|line| self.table.tenants(line));
        let entries = shown.map(|(key, value, tenant)| CacheEntry {
            key,
            verdict: *self.verdicts.get(value.verdict()),
            generation: tenant.generation,
            is_current: self.domains.generation(key.scope) == tenant.generation,
            route: value.route(self.epoch),
        });
        (entries.collect(), (end < self.table.lines().len()).then_some(end))
    }
}

/// Operations that the walk calls, batch by batch.
impl FlowCache {
    /// Goes over to a snapshot: entries of other generations become void. Call it before each
    /// batch. Cost: a compare for the same snapshot; else a visit of every domain, and room for
    /// every port.
    #[inline]
    pub(crate) fn sync(&mut self, snapshot: &Snapshot) {
        if self.synced != Some(snapshot.number()) {
            self.go_over(snapshot);
        }
    }

    #[inline(never)]
    fn go_over(&mut self, snapshot: &Snapshot) {
        self.synced = Some(snapshot.number());
        self.ticks.make_room(snapshot.port_slots());
        let spd = snapshot.spd();
        let wraps = spd.wraps();
        self.is_invalid |= *self.wraps.get_or_insert(wraps) != wraps;
        if self.routes != Some(snapshot.route_generation()) {
            self.routes = Some(snapshot.route_generation());
            self.epoch = self.epoch.saturating_add(1);
        }
        self.domains.bits = snapshot.tables().scopes();
        self.domains.list.resize(spd.domains().count(), Domain::default());
        for (known, domain) in self.domains.list.iter_mut().zip(spd.domains()) {
            let generation = spd.generation(domain);
            if known.generation != generation {
                self.ticks.generations += 1;
                self.is_invalid |= generation < known.generation;
                let is_bypassed = self.use_ == CacheUse::WherePaid
                    && (..=BREAK_EVEN_STEPS).contains(&spd.question_cost(domain).steps());
                let tells_segments = spd.tells_segments(domain);
                *known = Domain { generation, is_bypassed, tells_segments, entries: 0 };
            }
        }
    }

    /// The tick of packets that came by a port. `None`: there are no more.
    #[inline]
    pub(crate) fn tick(
        &mut self,
        port: PortId,
        connections: &Connections,
        now_s: u32,
    ) -> Option<Tick> {
        self.ticks.of(port, connections, now_s)
    }

    /// Returns whether packets of a scope are looked up.
    #[inline(always)]
    pub(crate) fn serves(&self, scope: Scope) -> bool {
        !self.is_invalid && self.domains.of(scope).is_some_and(|domain| !domain.is_bypassed)
    }

    /// Looks up every packet of a lane in both buckets of its key. Counts nothing: the caller knows
    /// which answers serve, and calls [`CacheCounters::count`].
    #[inline]
    pub(crate) fn look_up<const WORDS: usize>(&self, lane: &mut Lane<WORDS>) {
        if lane.len() > 0 {
            lane.look_up(&self.hash, &self.table, &self.domains);
        }
    }

    /// Returns the verdict and the route found for a packet of a lane.
    #[inline(always)]
    pub(crate) fn found<const WORDS: usize>(
        &self,
        lane: &Lane<WORDS>,
        at: usize,
    ) -> Option<(&FlowVerdict, CachedRoute)> {
        let value = lane.value(at);
        (!value.is_nothing()).then(|| (self.verdicts.get(value.verdict()), value.route(self.epoch)))
    }

    /// Remembers what was said of a packet of a lane, and where it goes. The route is left out
    /// where it cannot be written down or routing tables can no longer be told apart.
    pub(crate) fn remember<const WORDS: usize>(
        &mut self,
        lane: &Lane<WORDS>,
        at: usize,
        said: (Said<'_>, CachedRoute),
        counters: &mut CacheCounters,
    ) {
        self.write(lane.hash(at), lane.key(at), said, counters);
    }

    /// Returns what each book said by itself of a packet of a lane, if that was found.
    #[inline(always)]
    pub(crate) fn found_tracked<const WORDS: usize>(
        &self,
        lane: &Lane<WORDS>,
        at: usize,
    ) -> Option<&TrackedVerdict> {
        let value = lane.value(at);
        if value.is_nothing() { None } else { self.verdicts.tracked(value.verdict()) }
    }

    /// Writes an entry for a key with its generation.
    fn write<const WORDS: usize>(
        &mut self,
        hash: u64,
        key: &[u64; WORDS],
        (said, route): (Said<'_>, CachedRoute),
        counters: &mut CacheCounters,
    ) {
        let route = if self.epoch == u16::MAX { CachedRoute::Unknown } else { route };
        let Some(number) = self.verdicts.number_of(said) else {
            counters.refused += 1;
            return;
        };
        let value = Value::new(number, route, self.epoch);
        if !number.is_asked() && value.route(self.epoch) == CachedRoute::Unknown {
            return; // it would say nothing
        }
        if self.domains.of(entry::scope_of(key)).is_none() {
            return; // no generation says how long it holds
        }
        let entry = entry::with_value(*key, value);
        let written = self.table.write(hash, &entry, &mut self.domains);
        match written {
            WriteOutcome::Refused => counters.refused += 1,
            WriteOutcome::Again => {}
            WriteOutcome::Empty | WriteOutcome::Stale | WriteOutcome::Evicting { .. } => {
                counters.inserts += 1;
                counters.negative += u64::from(number.is_negative());
            }
        }
        match written {
            WriteOutcome::Stale => counters.stale += 1,
            WriteOutcome::Evicting { entries, crowded_out } => {
                counters.evictions += entries;
                counters.crowded_out += crowded_out;
            }
            WriteOutcome::Empty | WriteOutcome::Again | WriteOutcome::Refused => {}
        }
    }
}

/// Keys that are looked up together without a walk: for benches and tests of the table alone.
#[derive(Default)]
pub struct Batch {
    lanes: Lanes,
    /// Counters of the lookups and inserts.
    pub counters: CacheCounters,
}

impl Batch {
    /// Goes over to a snapshot, looks up all keys (at most [`wire::BATCH`], of domains of the
    /// snapshot), and says of each what is remembered. What is not is answered by `answer`, once
    /// for equal keys, and remembered.
    pub fn run(
        &mut self,
        cache: &mut FlowCache,
        snapshot: &Snapshot,
        keys: &[Key],
        mut answer: impl FnMut(&Key) -> (FlowVerdict, CachedRoute),
        mut told: impl FnMut(usize, Option<(FlowVerdict, CachedRoute)>),
    ) {
        cache.sync(snapshot);
        let Batch { lanes, counters } = self;
        lanes.clear();
        for (row, key) in keys.iter().enumerate() {
            lanes.push(row, key.scope, &key.flow);
        }
        run_lane(cache, &mut lanes.v4, counters, keys, &mut answer, &mut told);
        run_lane(cache, &mut lanes.v6, counters, keys, &mut answer, &mut told);
    }
}

fn run_lane<const WORDS: usize>(
    cache: &mut FlowCache,
    lane: &mut Lane<WORDS>,
    counters: &mut CacheCounters,
    keys: &[Key],
    answer: &mut impl FnMut(&Key) -> (FlowVerdict, CachedRoute),
    told: &mut impl FnMut(usize, Option<(FlowVerdict, CachedRoute)>),
) {
    cache.look_up(lane);
    let (mut misses, mut firsts) = (0, Firsts::default());
    for at in 0..lane.len() {
        let found = cache.found(lane, at);
        let is_missing = found.is_none();
        told(lane.row(at), found.map(|(verdict, route)| (*verdict, route)));
        misses += usize::from(is_missing);
        let same = |other: usize| lane.key(other) == lane.key(at);
        if is_missing && firsts.find(lane.hash(at), at, same).is_none() {
            let (verdict, route) = answer(&keys[lane.row(at)]);
            cache.remember(lane, at, (Said::Verdict(&verdict), route), counters);
        }
    }
    counters.count(lane.len(), misses);
}

#[cfg(test)]
mod byte_order;
#[cfg(test)]
mod tests;
