//! `lockgate bench spd`: the walk under many policies, searched linearly, compiled, and cached.
//!
//! The set-up of the published figures of VPP's flow cache: one null-encrypted ESP tunnel, the
//! policy that protects it behind policies that match nothing, the smallest UDP packets. One core,
//! through ports in memory, all checks and counters on.

pub(super) mod fillers;
mod published;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use ipsec::Suite;
use policy::{Search, Spd};
use wire::{BATCH, Family};

use super::draw::Distribution;
use super::rows::version;
use super::station::{Fate, RunArguments, Setting, Tier, each, refused};
use super::subject::{Caching, WalkKind};
use super::{ArgumentError, BenchError};
use fillers::{Matching, Rules};
use scene::{Case, Direction};

/// Flows at most.
const MOST: usize = 1 << 26;
/// Policies at most.
const MOST_POLICIES: usize = 1_000_000;
/// Name of the peer's policy.
const PEERS: &str = "peer";

/// Method by which a packet's policy is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
enum Lookup {
    /// One policy after the other.
    Linear,
    /// The classifier, without a cache.
    Compiled,
    /// The flow cache in front of the classifier, even where it costs more than it saves.
    Cache,
    /// The flow cache where it pays, as in the daemon.
    Auto,
}

/// The methods that are measured by default.
const LOOKUPS: [Lookup; 4] = [Lookup::Linear, Lookup::Compiled, Lookup::Cache, Lookup::Auto];

impl Lookup {
    const fn name(self) -> &'static str {
        match self {
            Lookup::Linear => "linear",
            Lookup::Compiled => "compiled",
            Lookup::Cache => "cache",
            Lookup::Auto => "auto",
        }
    }

    /// The worker's flow cache.
    const fn caching(self) -> Caching {
        match self {
            Lookup::Linear | Lookup::Compiled => Caching::Off,
            Lookup::Cache => Caching::Always,
            Lookup::Auto => Caching::Auto,
        }
    }
}

/// Arguments of `lockgate bench spd`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SpdArguments {
    /// Policies; that of the traffic is the last of them.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000, 10_000, 100_000])]
    policies: Vec<usize>,
    /// Fields by which the policies in front differ from the traffic.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Rules::Addr])]
    rules: Vec<Rules>,
    /// Flows.
    #[arg(long, value_delimiter = ',', default_values_t = [20_000])]
    flows: Vec<usize>,
    /// Method of the lookup.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = LOOKUPS)]
    lookup: Vec<Lookup>,
    /// Flow caches, instead of methods: "off" is linear and compiled, "always" cache, "auto" auto.
    #[arg(long, value_delimiter = ',', value_enum, conflicts_with = "lookup")]
    cache: Vec<Caching>,
    /// Walks: the fast path where it takes packets, or the general walk alone. Where both are asked
    /// for, their laps alternate.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [WalkKind::Fast])]
    walk: Vec<WalkKind>,
    /// Match of the traffic: the last policy, or none; then it is dropped.
    #[arg(long = "match", value_delimiter = ',', value_enum,
          default_values_t = [Matching::Last])]
    matching: Vec<Matching>,
    /// IP versions.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    /// Distribution of packets over the flows.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Distribution::Uniform])]
    dist: Vec<Distribution>,
    /// Workers, each with as many flows of its own, a flow cache and a core. 1 beside others
    /// shows how near their rate comes to a multiple.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    workers: Vec<usize>,
    /// Largest number of packets in a burst.
    #[arg(long, value_delimiter = ',', default_values_t = [BATCH])]
    burst: Vec<usize>,
    #[command(flatten)]
    run: RunArguments,
}

/// Parameters of one row of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Row {
    policies: usize,
    rules: Rules,
    flows: usize,
    lookup: Lookup,
    walk: WalkKind,
    matching: Matching,
    family: Family,
    distribution: Distribution,
    burst: usize,
    workers: usize,
}

impl Row {
    fn label(&self) -> String {
        let Row { policies, rules, flows, lookup, matching, family, distribution, burst, .. } =
            self;
        let (rules, lookup, matching) = (rules.name(), lookup.name(), matching.name());
        let (walk, workers) = (self.walk.name(), self.workers);
        let (version, distribution) = (version(*family), distribution.name());
        format!(
            "{policies} policies ({rules}) by {lookup}, matching {matching}, {flows} flows \
             ({distribution}), IPv{version}, burst {burst}, {walk} walk, {workers} workers"
        )
    }

    /// The row's gateway with these policies, and its traffic.
    fn setting(&self, spd: Arc<Spd>) -> Setting {
        let Row { flows, distribution, burst, walk, workers, .. } = *self;
        let spd = match self.lookup {
            Lookup::Linear => Spd::clone(&spd).searched(Search::Linear).into(),
            Lookup::Compiled | Lookup::Cache | Lookup::Auto => spd,
        };
        let fate = match self.matching {
            Matching::Last => Fate::Leaves(spd.named(PEERS)),
            Matching::None => Fate::NoMatch,
        };
        let (label, traffic) = (self.label(), traffic(self.family));
        let (caching, tier) = (self.lookup.caching(), Tier::Any);
        let (connections, known) = (None, None);
        Setting {
            label,
            spd,
            traffic,
            flows,
            distribution,
            burst,
            walk,
            caching,
            fate,
            tier,
            connections,
            workers,
            known,
            card: None,
            audit: 0,
        }
    }
}

/// The smallest UDP packets, sealed by nothing: of a frame of 60 bytes in IPv4, 62 in IPv6.
pub(super) fn traffic(family: Family) -> Case {
    let size = match family {
        Family::V4 => 46,
        Family::V6 => 48,
    };
    Case {
        direction: Direction::Out,
        suite: Suite::Null,
        family,
        size,
        flows: 1,
        backend: None,
        workers: 1,
        sas: 1,
    }
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &SpdArguments) -> Result<(), BenchError> {
    let rows = arguments.rows().map_err(BenchError::Argument)?;
    let mut databases = Databases::default();
    let setting = |row: &Row| Ok(row.setting(databases.of(row)?));
    let measurement = arguments.run.measure(&rows, setting)?;
    let of = |(row, measured)| rows::Figures::of(row, measured);
    let figures: Vec<rows::Figures> =
        rows.iter().zip(measurement.rows.iter().cloned()).map(of).collect();
    let mut tables = vec![rows::table(&figures, &measurement.provenance.machine)];
    tables.extend(rows::linear(&figures));
    tables.extend(published::table(&figures));
    let subject = "in memory, null ESP tunnel outbound, UDP packets of 46 (IPv6: 48) bytes";
    let charts = rows::charts(&figures);
    arguments.run.report(("spd", subject), &measurement.provenance, &figures, tables, &charts)
}

/// The databases of all rows, each made once.
#[derive(Default)]
struct Databases(HashMap<(usize, Rules, Matching, Family), Arc<Spd>>);

impl Databases {
    fn of(&mut self, row: &Row) -> Result<Arc<Spd>, BenchError> {
        let Row { policies, rules, matching, family, .. } = *row;
        let key = (policies, rules, matching, family);
        if let Some(spd) = self.0.get(&key) {
            return Ok(spd.clone());
        }
        let list = fillers::policies(&traffic(family), policies, rules, matching);
        let spd = Spd::new(list).map_err(|error| refused(&row.label(), error.into()))?;
        Ok(self.0.entry(key).or_insert(spd.into()).clone())
    }
}

impl SpdArguments {
    /// Rows to measure: every combination of the lists.
    fn rows(&self) -> Result<Vec<Row>, ArgumentError> {
        ArgumentError::check("--policies", &self.policies, 1, MOST_POLICIES)?;
        ArgumentError::check("--flows", &self.flows, 1, MOST)?;
        ArgumentError::check("--burst", &self.burst, 1, BATCH)?;
        let cores = super::machine::cores().map_or(1, |cores| cores.len());
        ArgumentError::check("--workers", &self.workers, 1, cores)?;
        self.run.check()?;
        let mut rows = vec![Row {
            policies: 1,
            rules: Rules::Addr,
            flows: 1,
            lookup: Lookup::Linear,
            walk: WalkKind::Fast,
            matching: Matching::Last,
            family: Family::V4,
            distribution: Distribution::Uniform,
            burst: BATCH,
            workers: 1,
        }];
        each(&mut rows, &self.family, |row, version| Row {
            family: if *version == 4 { Family::V4 } else { Family::V6 },
            ..row
        });
        each(&mut rows, &self.rules, |row, rules| Row { rules: *rules, ..row });
        each(&mut rows, &self.matching, |row, matching| Row { matching: *matching, ..row });
        each(&mut rows, &self.dist, |row, dist| Row { distribution: *dist, ..row });
        each(&mut rows, &self.burst, |row, burst| Row { burst: *burst, ..row });
        each(&mut rows, &self.flows, |row, flows| Row { flows: *flows, ..row });
        each(&mut rows, &self.policies, |row, policies| Row { policies: *policies, ..row });
        each(&mut rows, &self.lookups(), |row, lookup| Row { lookup: *lookup, ..row });
        each(&mut rows, &self.walk, |row, walk| Row { walk: *walk, ..row });
        each(&mut rows, &self.workers, |row, workers| Row { workers: *workers, ..row });
        Ok(rows)
    }

    /// Returns the methods that the arguments name, directly or by their caches.
    fn lookups(&self) -> Vec<Lookup> {
        if self.cache.is_empty() {
            return self.lookup.clone();
        }
        let is_wanted = |lookup: &Lookup| self.cache.contains(&lookup.caching());
        LOOKUPS.into_iter().filter(is_wanted).collect()
    }
}

/// The first row of a command line.
#[cfg(test)]
fn tests_row(line: &[&str]) -> Row {
    tests::arguments(line).rows().expect("arguments that fit")[0]
}

#[cfg(test)]
mod tests {
    use super::super::lap_error::LapError;
    use super::super::station::{Crew, Station};
    use super::*;
    use clap::Parser;
    use io::memory::MemoryFrames;
    use scene::Random;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SpdArguments,
    }

    pub(super) fn arguments(line: &[&str]) -> SpdArguments {
        Line::parse_from([&["spd"], line].concat()).arguments
    }

    #[test]
    fn rows_are_every_combination_and_no_two_alike() {
        let line = ["--policies=1,10", "--rules=addr,port,range", "--match=last,none"];
        let rows = arguments(&line).rows().unwrap();
        assert_eq!(rows.len(), 2 * 3 * 2 * 4 * 2);
        let mut labels: Vec<String> = rows.iter().map(Row::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), rows.len());
        assert_eq!(arguments(&[]).rows().unwrap().len(), 6 * 4 * 2);
    }

    #[test]
    fn rows_are_asked_for_by_their_cache_and_their_walk_too() {
        let line = ["--policies=10", "--family=4"];
        let of = |more: &[&str]| arguments(&[&line[..], more].concat()).rows().unwrap();
        let lookups = |more| of(more).iter().map(|row| row.lookup.name()).collect::<Vec<_>>();
        assert_eq!(lookups(&["--cache=off"]), ["linear", "compiled"]);
        assert_eq!(lookups(&["--cache=auto,always"]), ["cache", "auto"]);
        assert_eq!(lookups(&[]), ["linear", "compiled", "cache", "auto"]);
        let walks: Vec<WalkKind> =
            of(&["--cache=auto", "--walk=fast,general"]).iter().map(|row| row.walk).collect();
        assert_eq!(walks, [WalkKind::Fast, WalkKind::General]);
        let both = Line::try_parse_from(["spd", "--cache=off", "--lookup=linear"]);
        assert!(both.is_err(), "one of the two");
    }

    #[test]
    fn what_would_measure_nothing_is_refused() {
        for (name, found) in [
            ("--policies", "0"),
            ("--flows", "0"),
            ("--burst", "0"),
            ("--burst", "65"),
            ("--workers", "0"),
            ("--laps", "6"),
            ("--cache-flows", "1"),
            ("--in-flight", "4095"),
        ] {
            let error = arguments(&[name, found]).rows().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    // BM-1d, BM-1e, FC-47: a lap of each kind, small, with every check on.
    #[test]
    fn a_lap_of_every_kind_counts() {
        let line = ["--policies=1,40", "--rules=addr,port,range", "--match=last,none"];
        let more = ["--walk=fast,general", "--flows=300", "--burst=1,64"];
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
        let mut databases = Databases::default();
        for row in arguments(&[&line[..], &more].concat()).rows().unwrap() {
            let setting = row.setting(databases.of(&row).unwrap());
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random).unwrap();
            station.shorten(300);
            let lap = station.lap(&mut frames, &mut random);
            let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            assert!(lap.ns > 0.0 && lap.touch_ns > 0.0 && lap.packets == 300);
            assert_eq!(frames.conservation().held(), 0);
            if row.lookup == Lookup::Cache && row.matching == Matching::Last {
                assert!(lap.hit_rate > 0.99, "{}: {}", row.label(), lap.hit_rate);
            }
            if matches!(row.lookup, Lookup::Linear | Lookup::Compiled) {
                assert_eq!(lap.hit_rate, 0.0);
            }
        }
    }

    // FC-48: two workers at a time, each with flows and a flow cache of its own.
    #[test]
    fn a_lap_of_two_workers_is_answered_by_the_cache_of_each() {
        let cores = super::super::machine::cores().unwrap();
        if cores.len() < 2 {
            eprintln!("SKIPPED, two cores are needed");
            return;
        }
        let line = ["--policies=9", "--flows=300", "--lookup=cache", "--family=4,6"];
        let mut random = Random::new(3);
        let frames = |_| MemoryFrames::with_frame_bytes(256, 2048);
        let mut frames: Vec<MemoryFrames> = (0..2).map(frames).collect();
        for row in arguments(&[&line[..], &["--workers=2"]].concat()).rows().unwrap() {
            let setting = row.setting(Databases::default().of(&row).unwrap());
            // Room for the flows of one worker and no more.
            let mut crew = Crew::new(&setting, 1024, 256, &mut frames, &mut random).unwrap();
            let lap = crew.lap(&mut frames, &cores, &mut random);
            let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            assert!(lap.hit_rate > 0.95 && lap.ns > 0.0, "{lap:?}");
            let [one, two] = [crew.measured(&[lap; 7]).mpps, 1e3 / lap.ns];
            assert!((one / two - 2.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_lap_whose_packets_match_what_they_should_not_is_refused() {
        let row = arguments(&["--policies=5", "--flows=64", "--family=4"]).rows().unwrap()[0];
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
        let none = Row { matching: Matching::None, ..row };
        let setting = row.setting(Databases::default().of(&none).unwrap());
        let Err(error) = Station::new(setting, 4096, 256, &mut frames, &mut random) else {
            panic!("the peer's policy is not there");
        };
        let reason = dataplane::DropReason::NoMatch;
        assert!(matches!(error, LapError::Dropped { reason: found, .. } if found == reason));
    }
}
