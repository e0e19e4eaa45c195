//! The flow cache where it helps least, through the walk: flows that collide, and a flood of flows
//! that no policy matches. Acceptance rows FC-06, FC-08, FC-26.
//!
//! Colliding flows pass a worker with a cache of 16 buckets and one without a cache, in turn: the
//! rate with the cache is not to be below nine tenths of the rate without. The flood is compared
//! otherwise, because a saturated core that spends time on the flood has less for all else: its
//! packets pass alone, those of the cached flows pass alone, and both pass mixed, one for one. The
//! rate kept is the time of the cached packets alone over the time of the mix without that of the
//! flood.

use std::collections::HashMap;
use std::sync::Arc;

use comfy_table::{CellAlignment, Table, presets};
use cpu::aes::Secret;
use dataplane::cache::{Batch, CacheUse, CachedRoute, FlowCache, Key};
use dataplane::{NextHopId, Snapshot};
use io::memory::MemoryFrames;
use policy::{Deciders, FlowVerdict, PolicyIndex, Spd};
use scene::{Case, HOP_LIMIT, MAX_FLOWS, Random};
use serde::Serialize;
use wire::{BATCH, Family, packet};

use super::super::draw::Distribution;
use super::super::lap_error::LapError;
use super::super::measure::{Figure, Span};
use super::super::rows::{undisturbed, version};
use super::super::spd::fillers::{self, Matching, Rules};
use super::super::spd::traffic;
use super::super::station::{Fate, Setting, Station, Tier};
use super::super::subject::{Caching, WalkKind};

/// Numbers of policies: a search that costs next to nothing, and one as of a real gateway.
const POLICIES: [usize; 2] = [1, 1000];
/// Buckets of the cache in which flows collide.
const BUCKETS: usize = 16;
/// Ways of a bucket.
const WAYS: usize = 2;
/// Flows among which colliding ones are looked for.
const CANDIDATES: usize = MAX_FLOWS;
/// Entries of the table that tells where candidates belong: next to no bucket is full.
const ROOMY: usize = 1 << 20;
/// Packets of a lap, of each kind.
const PACKETS: usize = 16_384;
/// Frames in flight.
pub(super) const IN_FLIGHT: usize = 4096;
/// Flows that are cached while the flood passes; a quarter of the entries.
const CACHED: usize = 16_384;
/// The rate at least that colliding flows keep of the rate without a cache.
const KEPT_COLLIDING: f64 = 0.9;
/// The rate at least that cached flows keep beside a flood.
const KEPT_BESIDE_FLOOD: f64 = 0.8;
/// The part at most of colliding packets that the cache answers where it holds hardly any.
const MOST_HITS: f64 = 0.05;
/// The part at least of the cached packets that the cache answers.
const LEAST_HITS: f64 = 0.98;

/// A load under which the cache helps little.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strain {
    /// Three flows with one first bucket, in turn.
    Three,
    /// 256 flows with the same two buckets, in turn: a vector of VPP.
    Vector,
    /// Cached flows beside as many packets of flows that no policy matches, each of another.
    Flood,
}

impl Strain {
    const ALL: [Strain; 3] = [Strain::Three, Strain::Vector, Strain::Flood];

    const fn name(self) -> &'static str {
        match self {
            Strain::Three => "3 colliding flows",
            Strain::Vector => "256 colliding flows",
            Strain::Flood => "flood of unmatched flows",
        }
    }

    /// The acceptance row.
    const fn row(self) -> &'static str {
        match self {
            Strain::Three => "FC-06",
            Strain::Vector => "FC-08",
            Strain::Flood => "FC-26",
        }
    }

    /// Colliding flows; 0: none collide.
    const fn colliding(self) -> usize {
        match self {
            Strain::Three => 3,
            Strain::Vector => 256,
            Strain::Flood => 0,
        }
    }

    const fn limit(self) -> f64 {
        match self {
            Strain::Three | Strain::Vector => KEPT_COLLIDING,
            Strain::Flood => KEPT_BESIDE_FLOOD,
        }
    }
}

/// Figures of a lap.
#[derive(Clone, Copy, Debug)]
pub(super) struct LapFigures {
    /// Packets without the cache, or of the cached flows alone, ns.
    without_ns: f64,
    /// Packets with the cache, or of the cached flows beside the flood without its time, ns.
    with_ns: f64,
    /// Packets of the flood alone, ns; NaN: there is none.
    flood_ns: f64,
    /// Part of the colliding or cached packets that the cache answered.
    hit_rate: f64,
    span: Span,
}

/// One row: a load, a family, a number of policies.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    strain: &'static str,
    row: &'static str,
    policies: usize,
    family: u8,
    without_ns: f64,
    with_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    flood_ns: Option<f64>,
    hit_rate: f64,
    /// Median of the laps.
    rate_kept: f64,
    /// Part of the rate that cached flows keep of a saturated core of which the flood has its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_kept_saturated: Option<f64>,
    limit: f64,
    /// Distance of the quartiles of `rate_kept` as a part of its median.
    spread: f64,
    laps: usize,
}

/// A row with its workers.
pub(super) struct Row {
    strain: Strain,
    policies: usize,
    family: Family,
    /// The worker with the cache.
    cached: Station,
    /// The worker without one; `None`: the row needs none.
    bare: Option<Station>,
    /// Colliding or cached flows.
    flows: Vec<usize>,
    /// The first flow of the flood that never was.
    unseen: usize,
}

/// All rows of a family. `frames` are those of the laps.
///
/// # Errors
/// [`LapError`].
pub(super) fn rows(
    family: Family,
    frames: &mut MemoryFrames,
    random: &mut Random,
) -> Result<Vec<Row>, LapError> {
    let mut rows = Vec::new();
    for policies in POLICIES {
        for strain in Strain::ALL {
            rows.push(Row::new(strain, policies, family, frames, random)?);
        }
    }
    Ok(rows)
}

impl Row {
    fn new(
        strain: Strain,
        policies: usize,
        family: Family,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<Row, LapError> {
        let spd = database(&traffic(family), policies, strain)?;
        let mut station = |caching| {
            let setting = setting(spd.clone(), family, strain, caching);
            Station::new(setting, width(family) * 4 * CACHED, IN_FLIGHT, frames, random)
        };
        let mut cached = station(Caching::Always)?;
        let bare = match strain {
            Strain::Flood => None,
            Strain::Three | Strain::Vector => Some(station(Caching::Off)?),
        };
        let flows = match strain.colliding() {
            0 => (0..CACHED).collect(),
            count => {
                let mut secret = [0; 32];
                (0..32).for_each(|at| secret[at] = random.below(256) as u8);
                let search = Search { family, secret: &secret, station: &cached };
                let flows = search.colliding(count)?;
                cached.take_cache(search.fresh(BUCKETS * WAYS)?);
                flows
            }
        };
        Ok(Row { strain, policies, family, cached, bare, flows, unseen: CACHED })
    }

    /// The row in an error message.
    pub(super) fn label(&self) -> String {
        let version = version(self.family);
        format!("{}, {} policies, IPv{version}", self.strain.name(), self.policies)
    }

    /// One lap.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn lap(
        &mut self,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        match self.strain {
            Strain::Three | Strain::Vector => self.colliding_lap(frames, random),
            Strain::Flood => self.flood_lap(frames, random),
        }
    }

    fn colliding_lap(
        &mut self,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        let turns: Vec<usize> = self.flows.iter().copied().cycle().take(PACKETS).collect();
        let Row { cached, bare, .. } = self;
        let mut timed = |station: &mut Station| {
            station.carry(&turns[..IN_FLIGHT], frames, random)?;
            station.carry(&turns, frames, random)
        };
        let with = timed(cached)?;
        let without = timed(bare.as_mut().expect("a row of colliding flows has both workers"))?;
        let is_right = match self.strain {
            Strain::Vector => with.hit_rate <= MOST_HITS,
            Strain::Three | Strain::Flood => with.hit_rate == 1.0,
        };
        if !is_right || without.hit_rate > 0.0 {
            return Err(LapError::Tier {
                hits: with.hit_rate,
                searches: with.search_rate,
                tags: 0.0,
            });
        }
        let mut span = with.span;
        span.add(without.span);
        let (without_ns, with_ns, hit_rate) = (without.ns, with.ns, with.hit_rate);
        Ok(LapFigures { without_ns, with_ns, flood_ns: f64::NAN, hit_rate, span })
    }

    fn flood_lap(
        &mut self,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        random.shuffle(&mut self.flows);
        let (first, second) = (self.unmatched(), self.unmatched());
        let mut mixed: Vec<usize> = self.flows.iter().chain(&second).copied().collect();
        random.shuffle(&mut mixed);
        self.cached.carry(&self.flows, frames, random)?;
        let alone = self.cached.carry(&self.flows, frames, random)?;
        let flood = self.cached.carry(&first, frames, random)?;
        let both = self.cached.carry(&mixed, frames, random)?;
        // None of the flood is seen twice: all hits are of the cached flows.
        let hit_rate = 2.0 * both.hit_rate;
        if alone.hit_rate < LEAST_HITS || hit_rate < LEAST_HITS || flood.hit_rate > 0.0 {
            return Err(LapError::Tier { hits: hit_rate, searches: both.search_rate, tags: 0.0 });
        }
        let mut span = alone.span;
        [flood.span, both.span].into_iter().for_each(|other| span.add(other));
        let (without_ns, with_ns) = (alone.ns, 2.0 * both.ns - flood.ns);
        Ok(LapFigures { without_ns, with_ns, flood_ns: flood.ns, hit_rate, span })
    }

    /// Flows that no policy matches and that never were, as many as packets of a lap.
    fn unmatched(&mut self) -> Vec<usize> {
        let is_unmatched = |flow: &usize| flow % MAX_FLOWS >= CACHED;
        let flows: Vec<usize> = (self.unseen..).filter(is_unmatched).take(PACKETS).collect();
        self.unseen = flows[PACKETS - 1] + 1;
        flows
    }

    /// The figures of the row's laps.
    pub(super) fn figures(&self, laps: &[LapFigures]) -> Figures {
        let (kept, _) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<_>>());
        let rate_kept = figure(|lap| lap.without_ns / lap.with_ns);
        let flood = self.strain == Strain::Flood;
        let saturated = figure(|lap| lap.without_ns / (lap.with_ns + lap.flood_ns)).median;
        Figures {
            strain: self.strain.name(),
            row: self.strain.row(),
            policies: self.policies,
            family: version(self.family),
            without_ns: figure(|lap| lap.without_ns).median,
            with_ns: figure(|lap| lap.with_ns).median,
            flood_ns: flood.then(|| figure(|lap| lap.flood_ns).median),
            hit_rate: figure(|lap| lap.hit_rate).median,
            rate_kept: rate_kept.median,
            rate_kept_saturated: flood.then_some(saturated),
            limit: self.strain.limit(),
            spread: rate_kept.spread,
            laps: kept.len(),
        }
    }
}

/// Entries of IPv4 that an entry takes.
fn width(family: Family) -> usize {
    if family == Family::V4 { 1 } else { 2 }
}

/// The policies: the last one is the peer's, which the flood does not match.
fn database(traffic: &Case, policies: usize, strain: Strain) -> Result<Arc<Spd>, LapError> {
    let mut list = fillers::policies(traffic, policies, Rules::Range, Matching::Last);
    if let (Strain::Flood, Some(peers)) = (strain, list.last_mut()) {
        let local = &mut peers.selector.local[0];
        local.hi = local.lo + CACHED as u128 - 1;
    }
    Ok(Spd::new(list)?.into())
}

fn setting(spd: Arc<Spd>, family: Family, strain: Strain, caching: Caching) -> Setting {
    let peers = spd.named("peer");
    let fate = match strain {
        Strain::Three | Strain::Vector => Fate::Leaves(peers),
        Strain::Flood => Fate::LeavesBelow(peers, CACHED),
    };
    Setting {
        label: strain.name().into(),
        spd,
        traffic: traffic(family),
        flows: CACHED,
        distribution: Distribution::Uniform,
        burst: BATCH,
        walk: WalkKind::Fast,
        caching,
        fate,
        tier: Tier::Any,
        connections: None,
        workers: 1,
        known: None,
        card: None,
        audit: 0,
    }
}

/// A search for flows that belong in the same buckets under a secret.
struct Search<'s> {
    family: Family,
    secret: &'s Secret,
    /// Its cache has entries, which tell the scope.
    station: &'s Station,
}

impl Search<'_> {
    /// A cache under the secret.
    fn fresh(&self, entries: usize) -> Result<FlowCache, LapError> {
        let entries = width(self.family) * entries;
        FlowCache::new(entries, self.secret, CacheUse::Always).map_err(LapError::Memory)
    }

    /// Returns flows with the same first bucket of [`BUCKETS`]; where they are more than both of
    /// their buckets can hold, with the same second one, too.
    fn colliding(&self, count: usize) -> Result<Vec<usize>, LapError> {
        let first = self.with_one_bucket()?;
        if count <= WAYS * 2 {
            return Ok(first[..count].iter().map(|(flow, _)| *flow).collect());
        }
        let mut seconds: HashMap<usize, Vec<usize>> = HashMap::new();
        let [(_, one), (_, two), ..] = first[..] else { return Err(found_none(count, 0)) };
        for (flow, key) in &first[WAYS..] {
            let mut cache = self.fresh(BUCKETS * WAYS)?;
            [one, two, *key].iter().for_each(|key| self.write(&mut cache, &[*key]));
            let bucket = self.places(&cache, BUCKETS).remove(key).unwrap_or_default();
            seconds.entry(bucket).or_default().push(*flow);
        }
        let most = seconds.into_values().max_by_key(Vec::len).unwrap_or_default();
        match most.get(..count) {
            Some(flows) => Ok(flows.to_vec()),
            None => Err(found_none(count, most.len())),
        }
    }

    /// Returns the candidates whose first bucket of [`BUCKETS`] is the first one.
    fn with_one_bucket(&self) -> Result<Vec<(usize, Key)>, LapError> {
        let case = traffic(self.family);
        let shown = self.station.cache().map(|cache| cache.entries(0, usize::MAX).0);
        let scope = shown.and_then(|entries| Some(entries.first()?.key.scope));
        let scope = scope.ok_or(LapError::Tier { hits: 0.0, searches: 0.0, tags: 0.0 })?;
        let keys: Vec<Key> = (0..CANDIDATES)
            .map(|flow| {
                let parsed = packet::parse(&case.inner(flow, HOP_LIMIT).ip());
                Key { scope, flow: parsed.expect("a packet of the scene").flow }
            })
            .collect();
        let mut cache = self.fresh(ROOMY)?;
        keys.chunks(BATCH).for_each(|keys| self.write(&mut cache, keys));
        let places = self.places(&cache, BUCKETS);
        let is_there = |(_, key): &(usize, Key)| places.get(key) == Some(&0);
        Ok(keys.into_iter().enumerate().filter(is_there).collect())
    }

    /// Remembers flows.
    fn write(&self, cache: &mut FlowCache, keys: &[Key]) {
        let deciders = Deciders::one(PolicyIndex(0));
        let verdict = FlowVerdict { deciders, ..FlowVerdict::NOT_ASKED };
        let snapshot: &Snapshot = self.station.snapshot();
        let answer = |_: &Key| (verdict, CachedRoute::Via(NextHopId(0)));
        Batch::default().run(cache, snapshot, keys, answer, |_, _| ());
    }

    /// Returns the bucket of each key, in a table of `buckets` buckets.
    fn places(&self, cache: &FlowCache, buckets: usize) -> HashMap<Key, usize> {
        let mut places = HashMap::new();
        let (mut line, lines) = (0, cache.capacity() / WAYS);
        while line < lines {
            for entry in cache.entries(line, 1).0 {
                places.insert(entry.key, line / width(self.family) % buckets);
            }
            line += 1;
        }
        places
    }
}

fn found_none(expected: usize, found: usize) -> LapError {
    LapError::Table { expected, found }
}

/// Formats the rows beside their limits.
pub(super) fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "through the walk",
        "row",
        "policies",
        "IP",
        "hits",
        "ns without",
        "ns with",
        "flood ns",
        "kept, saturated",
        "rate kept",
        "± IQR",
        "limit",
        "",
        "laps",
    ]);
    for row in figures {
        let word = if row.rate_kept >= row.limit { "reached" } else { "missed" };
        table.add_row([
            row.strain.to_owned(),
            row.row.to_owned(),
            row.policies.to_string(),
            row.family.to_string(),
            format!("{:.1} %", row.hit_rate * 100.0),
            format!("{:.1}", row.without_ns),
            format!("{:.1}", row.with_ns),
            row.flood_ns.map_or(String::new(), |ns| format!("{ns:.1}")),
            row.rate_kept_saturated.map_or(String::new(), |kept| format!("{kept:.2}")),
            format!("{:.2}", row.rate_kept),
            format!("{:.1} %", row.spread * 100.0),
            row.limit.to_string(),
            word.to_owned(),
            row.laps.to_string(),
        ]);
    }
    table.column_iter_mut().skip(2).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n\
         Colliding flows, in a cache of 16 buckets: ns a packet without a cache and with it; rate \
         kept: without over with.\n\
         Flood, one unmatched packet of a new flow for each cached one: ns without: cached packets \
         alone; with: the mix without the time\n\
         of the flood alone; rate kept: without over with, so what the flood spoils beyond the \
         time it takes itself.\n\
         kept, saturated: what is left of the cached flows' rate where the core is full and the \
         flood has its time, too."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // FC-06, FC-08, FC-26: each load is what it is called; how fast it is no test asks.
    #[test]
    fn a_lap_of_each_load_counts() {
        let random = &mut Random::new(5);
        let mut frames = MemoryFrames::with_frame_bytes(IN_FLIGHT as u32, 2048);
        for (strain, family) in [
            (Strain::Three, Family::V4),
            (Strain::Vector, Family::V4),
            (Strain::Vector, Family::V6),
            (Strain::Flood, Family::V4),
        ] {
            let mut row = Row::new(strain, 1, family, &mut frames, random).unwrap();
            let lap = row.lap(&mut frames, random);
            let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            let figures = row.figures(&[lap; 7]);
            assert!(figures.rate_kept > 0.0 && figures.without_ns > 0.0, "{figures:?}");
            assert_eq!(figures.flood_ns.is_some(), strain == Strain::Flood);
            let json = serde_json::to_value(&figures).unwrap();
            assert!(json["rate_kept"].is_number() && json["row"].is_string());
        }
    }

    #[test]
    fn a_rate_below_its_limit_is_missed() {
        let figures = |rate_kept| Figures {
            strain: Strain::Vector.name(),
            row: Strain::Vector.row(),
            policies: 1,
            family: 4,
            without_ns: 1.0,
            with_ns: 1.0,
            flood_ns: None,
            hit_rate: 0.0,
            rate_kept,
            rate_kept_saturated: None,
            limit: Strain::Vector.limit(),
            spread: 0.0,
            laps: 7,
        };
        let text = table(&[figures(0.89), figures(0.9)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("missed") && lines[2].contains("reached"), "{text}");
    }
}
