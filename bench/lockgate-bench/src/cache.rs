//! `lockgate bench cache`: the flow cache's table alone, without a walk around it; then the walk
//! under loads for which the cache helps little (`strain`).
//!
//! Measures the cost of a look that finds its entry (hit), of one that finds nothing and writes
//! (miss), of one that finds its entry of an earlier generation and overwrites it (stale), and of a
//! worker's reaction to changed policies (invalidate): over the size of the table. Keys are made,
//! hashed and looked up by 64, uniformly, a quarter of the table full. CPU time of the thread.

mod strain;

use std::path::PathBuf;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use dataplane::cache::{Batch, CacheUse, CachedRoute, ENTRIES_A_FLOW, FlowCache, Key};
use dataplane::{NextHopId, Snapshot, SnapshotParts};
use io::memory::MemoryFrames;
use policy::{Book, Deciders, FlowVerdict, Policy, PolicyId, PolicyIndex, ScopeBits, Spd, common};
use serde::Serialize;
use wire::{BATCH, Family, Flow, Upper, flow::protocol};

use super::machine::{self, Seat};
use super::measure::{self, Figure, Span, measure, overhead, rounds};
use super::plot::{Chart, Curve, Scale, add_point};
use super::rows::{undisturbed, version};
use super::station::refused;
use super::{ArgumentError, BenchError, Report, publish};
use scene::Random;
use scene::{Case, Direction as Way_};

/// Laps at least.
const LEAST_LAPS: usize = 7;
/// Lookups of a lap that are timed: less than this only where the table has fewer flows.
const LOOKUPS: usize = 1 << 15;
/// Tables up to this size are fresh for every lap of misses; larger ones are never filled.
const FRESH_UP_TO: usize = 1 << 20;
/// Slots for policies: more than there are changes.
const SLOTS: usize = 1 << 20;
/// Looks without a key that are timed together after a change.
const CHANGES: usize = 16;

/// Arguments of `lockgate bench cache`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CacheArguments {
    /// Sizes of the table: exponents of 2, of IPv4 entries. An IPv6 entry takes two of them.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 12, 14, 16, 18, 20, 22, 24],
          value_parser = clap::value_parser!(u32).range(8..=28))]
    entries: Vec<u32>,
    /// IP versions.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Seconds that the laps of each of both tables may take, about, if as many as asked for allow
    /// it.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core to measure on; without it the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the curves into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// Times measured in a lap, ns.
#[derive(Clone, Copy, Debug)]
struct LapFigures {
    hit: f64,
    miss: f64,
    stale: f64,
    /// A change.
    invalidate: f64,
    span: Span,
}

/// One row: a size and a family.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// Room of the table, in IPv4 entries.
    entries: usize,
    bytes: usize,
    family: u8,
    /// Flows that are in the table.
    flows: usize,
    dist: &'static str,
    hit_ns: f64,
    /// A miss, with the entry written.
    miss_ns: f64,
    /// A stale entry, overwritten.
    stale_ns: f64,
    /// Time that a worker takes when policies have changed, once for all entries.
    invalidate_ns: f64,
    /// Distance of the quartiles of `hit_ns` as a part of its median.
    spread: f64,
    laps: usize,
}

/// A table in use, and another for what would spoil it.
struct Row {
    entries: usize,
    family: Family,
    kept: FlowCache,
    written: FlowCache,
    /// The keys of `kept`, in random order.
    keys: Vec<Key>,
    /// Index into `keys` at which the next lap begins.
    next: usize,
    /// The first flow that was never seen.
    unseen: u32,
    /// Snapshot under which `kept` is always looked up.
    first: Snapshot,
    /// Snapshot under which `written` was last looked up.
    snapshot: Snapshot,
    batch: Batch,
}

/// The reason why a table's lookups do not count: too many or too few of them hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} of {keys} lookups found their entry, {expected} should have")]
pub(crate) struct WrongHits {
    keys: usize,
    expected: usize,
    found: usize,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &CacheArguments) -> Result<(), BenchError> {
    let laps = ArgumentError::check("--laps", &[arguments.laps], LEAST_LAPS, usize::MAX);
    laps.map_err(BenchError::Argument)?;
    let seat = Seat::take(arguments.core)?;
    let seed = measure::seed(arguments.seed)?;
    let mut random = Random::new(seed);
    let figures = table_alone(arguments, &mut random)?;
    let strained = strained(arguments, &mut random)?;
    let (machine, commit) = (seat.machine(), machine::commit());
    let heading = format!(
        "bench cache, commit {commit}\n{machine}\nthe table alone, keys made and hashed, by \
         {BATCH}, a quarter of it full\nseed {seed}"
    );
    let mut text = vec![heading, table(&figures), strain::table(&strained)];
    if let Some(directory) = &arguments.plot {
        let drawn = chart(&figures).draw(directory)?;
        text.extend(drawn.map(|file| format!("drawn: {}", file.display())));
    }
    let rows: Vec<AnyRow> = figures
        .into_iter()
        .map(AnyRow::TableAlone)
        .chain(strained.into_iter().map(AnyRow::Strained))
        .collect();
    let report = Report { bench: "cache", machine: &machine, commit: &commit, rows: &rows };
    publish(&report, &text.join("\n\n"), arguments.json.as_deref())
}

/// A row in the JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyRow {
    TableAlone(Figures),
    Strained(strain::Figures),
}

fn families(arguments: &CacheArguments) -> impl Iterator<Item = Family> {
    arguments.family.iter().map(|version| if *version == 4 { Family::V4 } else { Family::V6 })
}

/// Measures the table alone.
fn table_alone(
    arguments: &CacheArguments,
    random: &mut Random,
) -> Result<Vec<Figures>, BenchError> {
    let mut rows = Vec::new();
    for exponent in &arguments.entries {
        for family in families(arguments) {
            netlab::interrupt::check()?;
            rows.push(Row::new(1 << exponent, family, random)?);
        }
    }
    let allowed = Duration::from_secs(arguments.seconds);
    let laps = rounds(rows.len(), arguments.laps, allowed, random, |place, _| rows[place].lap())?;
    Ok(rows.iter().zip(&laps).map(|(row, laps)| row.figures(laps)).collect())
}

/// Measures the walk under loads for which the cache helps little.
fn strained(
    arguments: &CacheArguments,
    random: &mut Random,
) -> Result<Vec<strain::Figures>, BenchError> {
    let mut frames = MemoryFrames::new(strain::IN_FLIGHT as u32);
    let mut rows = Vec::new();
    for family in families(arguments) {
        netlab::interrupt::check()?;
        let made = strain::rows(family, &mut frames, random);
        rows.extend(made.map_err(|error| refused("a gateway with a flow cache", error))?);
    }
    let allowed = Duration::from_secs(arguments.seconds);
    let laps = rounds(rows.len(), arguments.laps, allowed, random, |place, random| {
        let lap = rows[place].lap(&mut frames, random);
        lap.map_err(|error| refused(&rows[place].label(), error))
    })?;
    Ok(rows.iter().zip(&laps).map(|(row, laps)| row.figures(laps)).collect())
}

impl Row {
    /// A table with this room, a quarter full.
    fn new(entries: usize, family: Family, random: &mut Random) -> Result<Row, BenchError> {
        let flows = match family {
            Family::V4 => entries / ENTRIES_A_FLOW,
            Family::V6 => entries / ENTRIES_A_FLOW / 2,
        };
        let mut keys: Vec<Key> = (0..flows as u32).map(|flow| key(flow, family)).collect();
        random.shuffle(&mut keys);
        let spd = Spd::with_room(Vec::new(), SLOTS).expect("no policies");
        let (first, snapshot) = (snapshot(spd.clone()), snapshot(spd));
        let (kept, written) = (fresh(entries)?, fresh(entries)?);
        let unseen = flows as u32;
        let batch = Batch::default();
        let next = 0;
        let mut row =
            Row { entries, family, kept, written, keys, next, unseen, first, snapshot, batch };
        let Row { kept, written, keys, snapshot, batch, .. } = &mut row;
        look(batch, kept, snapshot, keys);
        look(batch, written, snapshot, keys);
        Ok(row)
    }

    fn lap(&mut self) -> Result<LapFigures, BenchError> {
        let count = self.keys.len().min(LOOKUPS);
        if self.next + count > self.keys.len() {
            self.next = 0;
        }
        let range = self.next..self.next + count;
        self.next += count;
        // What a small table holds is near when it is used.
        if count == self.keys.len() {
            self.timed_hits(range.clone())?;
        }
        let hit = self.timed_hits(range.clone())?;
        self.change();
        let (batch, written, snapshot) = (&mut self.batch, &mut self.written, &self.snapshot);
        let (found, stale) = measure(|| look(batch, written, snapshot, &self.keys[range]));
        expect(count, 0, found)?;
        let miss = self.timed_misses(count)?;
        let invalidate = self.timed_changes();
        let ns = |span: Span, of: usize| {
            span.cpu.saturating_sub(overhead()).as_nanos() as f64 / of as f64
        };
        let mut span = hit;
        [stale, miss].into_iter().for_each(|other| span.add(other));
        let (hit, stale, miss) = (ns(hit, count), ns(stale, count), ns(miss, count));
        Ok(LapFigures { hit, miss, stale, invalidate, span })
    }

    /// Looks up keys that the table holds.
    fn timed_hits(&mut self, range: std::ops::Range<usize>) -> Result<Span, BenchError> {
        // The other table is under later generations; this one stays under its first.
        let (batch, kept, count) = (&mut self.batch, &mut self.kept, range.len());
        let first = &self.first;
        let (found, span) = measure(|| look(batch, kept, first, &self.keys[range]));
        // Two buckets of two ways lose one in some thousand, and one secret more than another.
        expect(count, count.saturating_sub(count / 50 + 4), found)?;
        Ok(span)
    }

    /// Looks up what never was, in a table that has room for it.
    fn timed_misses(&mut self, count: usize) -> Result<Span, BenchError> {
        if self.entries <= FRESH_UP_TO {
            self.written = fresh(self.entries)?;
            look(&mut self.batch, &mut self.written, &self.snapshot, &[]);
        }
        let unseen = self.unseen..self.unseen + count as u32;
        self.unseen = unseen.end;
        let keys: Vec<Key> = unseen.map(|flow| key(flow, self.family)).collect();
        let (batch, written, snapshot) = (&mut self.batch, &mut self.written, &self.snapshot);
        let (found, span) = measure(|| look(batch, written, snapshot, &keys));
        expect(count, 0, found)?;
        if self.entries <= FRESH_UP_TO {
            look(&mut self.batch, &mut self.written, &self.snapshot, &self.keys);
        }
        Ok(span)
    }

    /// Returns the time that a worker takes with its cache when it meets a snapshot with another
    /// generation, ns.
    fn timed_changes(&mut self) -> f64 {
        let snapshots: Vec<Snapshot> = (0..CHANGES)
            .map(|_| {
                self.change();
                snapshot(self.snapshot.spd().clone())
            })
            .collect();
        let (batch, written) = (&mut self.batch, &mut self.written);
        let ((), span) = measure(|| {
            snapshots.iter().for_each(|snapshot| {
                look(batch, written, snapshot, &[]);
            });
        });
        span.cpu.saturating_sub(overhead()).as_nanos() as f64 / CHANGES as f64
    }

    /// Moves to another generation, as a change of policies does.
    fn change(&mut self) {
        let spd = self.snapshot.spd();
        let case = Case { family: self.family, ..traffic() };
        let held: Vec<PolicyIndex> = spd.holding().map(|(index, _)| index).collect();
        let id = PolicyId(spd.slots() as u32);
        let policies = match held.len() {
            0 => vec![Policy { action: policy::Action::Bypass, ..case.peers_policy(id, 1) }],
            _ => Vec::new(),
        };
        let (next, _) = spd.renewed(policies, SLOTS).expect("one policy");
        self.snapshot = snapshot(next);
    }

    fn figures(&self, laps: &[LapFigures]) -> Figures {
        let (kept, _) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<_>>());
        let hit = figure(|lap| lap.hit);
        Figures {
            entries: self.entries,
            bytes: self.kept.bytes(),
            family: version(self.family),
            flows: self.keys.len(),
            dist: "uniform",
            hit_ns: hit.median,
            miss_ns: figure(|lap| lap.miss).median,
            stale_ns: figure(|lap| lap.stale).median,
            invalidate_ns: figure(|lap| lap.invalidate).median,
            spread: hit.spread,
            laps: kept.len(),
        }
    }
}

/// Looks all keys up, and writes those that are not there. Returns how many were.
#[inline(never)]
fn look(batch: &mut Batch, cache: &mut FlowCache, snapshot: &Snapshot, keys: &[Key]) -> usize {
    let deciders = Deciders::one(PolicyIndex(0));
    let said = (FlowVerdict { deciders, ..FlowVerdict::NOT_ASKED }, CachedRoute::Via(NextHopId(0)));
    let mut hits = 0;
    let mut told = |_, found: Option<_>| hits += usize::from(found.is_some());
    if keys.is_empty() {
        batch.run(cache, snapshot, keys, |_| said, &mut told);
    }
    for keys in keys.chunks(BATCH) {
        batch.run(cache, snapshot, keys, |_| said, &mut told);
    }
    hits
}

/// # Errors
/// [`WrongHits`]: what was timed is not what it is called.
fn expect(keys: usize, expected: usize, found: usize) -> Result<(), BenchError> {
    match found {
        found if expected == 0 && found > 0 || found < expected => {
            Err(BenchError::Hits(WrongHits { keys, expected, found }))
        }
        _ => Ok(()),
    }
}

fn fresh(entries: usize) -> Result<FlowCache, BenchError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| BenchError::System {
        doing: "drawing the cache's secret",
        error: std::io::Error::other(error.to_string()),
    })?;
    let cache = FlowCache::new(entries, &secret, CacheUse::Always);
    let mut cache = cache.map_err(BenchError::system("making a table"))?;
    cache.touch().map_err(BenchError::system("taking a table's memory"))?;
    Ok(cache)
}

fn snapshot(spd: Spd) -> Snapshot {
    let parts = SnapshotParts { spd: spd.into(), ..SnapshotParts::default() };
    Snapshot::new(parts).expect("nothing that could not fit together")
}

fn traffic() -> Case {
    Case {
        direction: Way_::Out,
        suite: ipsec::Suite::Null,
        family: Family::V4,
        size: 64,
        flows: 1,
        backend: None,
        workers: 1,
        sas: 1,
    }
}

/// The key of an outbound UDP flow.
fn key(number: u32, family: Family) -> Key {
    let (source, destination) = match family {
        Family::V4 => (10 << 24 | u128::from(number >> 12), 10 << 24 | 2 << 16),
        Family::V6 => (0xfd << 120 | u128::from(number >> 12), 0xfd << 120 | 2),
    };
    let upper = Upper::Ports { source: number as u16 & 0xfff, destination: 443 };
    let flow = Flow { family, source, destination, protocol: protocol::UDP, upper, opens: false };
    // No policy of the snapshots names a port.
    Key { scope: ScopeBits::of(4).scope(common(Book::SpdOut, family), None), flow }
}

fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "entries",
        "MiB",
        "IP",
        "flows",
        "hit ns",
        "miss ns",
        "stale ns",
        "invalidate ns",
        "± IQR",
        "laps",
    ]);
    for row in figures {
        table.add_row([
            row.entries.to_string(),
            format!("{:.2}", row.bytes as f64 / f64::from(1 << 20)),
            row.family.to_string(),
            row.flows.to_string(),
            format!("{:.1}", row.hit_ns),
            format!("{:.1}", row.miss_ns),
            format!("{:.1}", row.stale_ns),
            format!("{:.0}", row.invalidate_ns),
            format!("{:.1} %", row.spread * 100.0),
            row.laps.to_string(),
        ]);
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n\
         hit: entry found. miss: nothing found, entry written; what a search costs is not in it. \
         stale: written over an entry of an\nearlier generation. invalidate: what a worker does \
         once when policies have changed, whatever the table holds. ± IQR: of hit."
    )
}

fn chart(figures: &[Figures]) -> Chart {
    let mut curves: Vec<Curve> = Vec::new();
    for row in figures {
        let costs = [("hit", row.hit_ns), ("miss", row.miss_ns), ("stale", row.stale_ns)];
        for (what, ns) in costs {
            let (name, point) = (format!("{what}, IPv{}", row.family), (row.entries as f64, ns));
            add_point(&mut curves, &name, point);
        }
    }
    Chart {
        name: "cache".into(),
        title: "The flow cache's table alone: one look, by 64, load 0.25".into(),
        x: "entries",
        y: "ns",
        scale: Scale::Linear,
        curves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // BM-2a
    #[test]
    fn each_cost_is_measured_of_what_it_is_called() {
        let random = &mut Random::new(9);
        for family in [Family::V4, Family::V6] {
            let mut row = Row::new(1 << 10, family, random).unwrap();
            let laps: Vec<LapFigures> = (0..7).map(|_| row.lap().unwrap()).collect();
            let counters = row.batch.counters;
            assert!(counters.hits > 0 && counters.stale > 0 && counters.inserts > counters.stale);
            let figures = row.figures(&laps);
            assert!(figures.hit_ns > 0.0 && figures.invalidate_ns >= 0.0, "{figures:?}");
            let json = serde_json::to_value(&figures).unwrap();
            for name in ["entries", "family", "hit_ns", "miss_ns", "stale_ns", "invalidate_ns"] {
                assert!(json[name].is_number(), "{name}");
            }
        }
    }

    #[test]
    fn lookups_that_find_what_they_should_not_are_refused() {
        assert!(expect(100, 0, 1).is_err());
        assert!(expect(100, 98, 97).is_err());
        expect(100, 98, 100).unwrap();
        expect(100, 0, 0).unwrap();
    }
}
