//! `lockgate bench acl`: security groups between two protected ports.
//!
//! The set-up of the published figures of VPP's ACL plugin: UDP flows from lan to dmz in the
//! smallest packets, groups in on lan, and the rule that permits all of the traffic behind rules
//! that match none of it. One core, through ports in memory, all checks and counters on. The rows
//! without groups are measured in the same rounds, and every row is compared with its own of them.

mod rows;

use std::collections::HashMap;
use std::num::{NonZeroUsize, ParseIntError};
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use policy::Spd;
use scene::{Case, Direction, MAX_FLOWS, Shape, Treatment};
use wire::{BATCH, Family};

use super::draw::Distribution;
use super::rows::version;
use super::spd;
use super::station::{Fate, RunArguments, Setting, Tier, each, refused};
use super::subject::{Caching, WalkKind};
use super::{ArgumentError, BenchError};

/// Rules at most.
const MOST_RULES: usize = 1_000_000;

/// Arguments of `lockgate bench acl`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AclArguments {
    /// Rules of the groups, of which the last permits the traffic; none: no groups, which is always
    /// measured too.
    #[arg(long, value_delimiter = ',', value_parser = rules,
          default_values = ["none", "1", "10", "50", "100", "1000", "10000"])]
    rules: Vec<usize>,
    /// Rules in front of the last: pairs of single addresses; or prefixes, ranges and ports.
    #[arg(long, value_delimiter = ',', value_parser = shapes(),
          default_values = Shape::ALL.map(Shape::name))]
    shape: Vec<Shape>,
    /// Groups whose last rule is `permit`, or `reflect`: it tracks connections.
    #[arg(long, value_delimiter = ',', value_parser = kinds(),
          default_values = ["stateless", "stateful"])]
    kind: Vec<Treatment>,
    /// Flow cache in front of the classifier, or the classifier alone.
    #[arg(long, value_delimiter = ',', value_parser = caches(), default_values = ["on", "off"])]
    cache: Vec<Caching>,
    /// IP versions.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    /// Walks: the fast path where it takes packets, or the general walk alone.
    #[arg(long, value_delimiter = ',', value_enum,
          default_values_t = [WalkKind::Fast, WalkKind::General])]
    walk: Vec<WalkKind>,
    /// Flows.
    #[arg(long, default_value_t = 20_000)]
    flows: usize,
    #[command(flatten)]
    run: RunArguments,
}

/// Reads a number of rules.
fn rules(text: &str) -> Result<usize, ParseIntError> {
    match text {
        "none" => Ok(0),
        number => number.parse().map(NonZeroUsize::get),
    }
}

fn shapes() -> impl TypedValueParser<Value = Shape> {
    PossibleValuesParser::new(Shape::ALL.map(Shape::name)).map(|name| {
        let named = |shape: &Shape| shape.name() == name;
        Shape::ALL.into_iter().find(named).expect("one of the possible values")
    })
}

fn kinds() -> impl TypedValueParser<Value = Treatment> {
    let (without, with) = (Treatment::Stateless, Treatment::Stateful);
    let kind = move |name: String| if name == with.name() { with } else { without };
    PossibleValuesParser::new([without.name(), with.name()]).map(kind)
}

fn caches() -> impl TypedValueParser<Value = Caching> {
    let caching = |name: String| if name == "on" { Caching::Always } else { Caching::Off };
    PossibleValuesParser::new(["on", "off"]).map(caching)
}

/// Parameters of one row of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row {
    /// 0: no groups.
    rules: usize,
    shape: Shape,
    kind: Treatment,
    caching: Caching,
    family: Family,
    walk: WalkKind,
}

impl Row {
    fn label(&self) -> String {
        let (version, walk, cache) = (version(self.family), self.walk.name(), self.cache());
        let groups = match self.rules {
            0 => "no groups".to_owned(),
            rules => format!("{rules} rules ({}, {})", self.shape.name(), self.kind.name()),
        };
        format!("{groups}, cache {cache}, IPv{version}, {walk} walk")
    }

    /// The setting of the cache on the command line.
    const fn cache(&self) -> &'static str {
        match self.caching {
            Caching::Off => "off",
            Caching::Auto | Caching::Always => "on",
        }
    }

    /// Returns whether another row differs at most by rules, their shape and kind.
    fn is_like(&self, other: &Row) -> bool {
        let Row { rules, shape, kind, .. } = *other;
        Row { rules, shape, kind, ..*self } == *other
    }

    /// The row's gateway with these policies, and its traffic.
    fn setting(&self, spd: Arc<Spd>, flows: usize) -> Setting {
        let Row { walk, caching, .. } = *self;
        let permit = spd.holding_rules().find(|(_, rule)| rule.name == scene::PERMIT);
        let tier = match (permit, walk, caching) {
            // The fast path takes a batch between ports without groups as a whole.
            (None, WalkKind::Fast, _) => Tier::None,
            (None, WalkKind::General, _) => Tier::Any,
            (Some(_), _, Caching::Off) => Tier::Classifier,
            (Some(_), _, Caching::Auto | Caching::Always) => Tier::Cache,
        };
        let fate = Fate::Leaves(permit.map(|(slot, _)| slot));
        Setting {
            label: self.label(),
            spd,
            traffic: traffic(self.family),
            flows,
            distribution: Distribution::Uniform,
            burst: BATCH,
            walk,
            caching,
            fate,
            tier,
            connections: (self.rules > 0 && self.kind == Treatment::Stateful)
                .then(scene::connections),
        }
    }
}

/// The smallest UDP packets, between two protected ports.
fn traffic(family: Family) -> Case {
    Case { direction: Direction::Forward, ..spd::traffic(family) }
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &AclArguments) -> Result<(), BenchError> {
    let rows = arguments.rows().map_err(BenchError::Argument)?;
    let mut databases = Databases::default();
    let setting = |row: &Row| Ok(row.setting(databases.of(row)?, arguments.flows));
    let measurement = arguments.run.measure(&rows, setting)?;
    let figures = rows::Figures::all(&rows, &measurement.rows);
    let tables = vec![rows::table(&figures), rows::goals(&figures)];
    let subject = format!(
        "in memory, from lan to dmz, groups_in on lan, {} UDP flows of packets with 46 (IPv6: 48) \
         bytes",
        arguments.flows
    );
    let charts = rows::charts(&figures);
    arguments.run.report(("acl", &subject), &measurement.provenance, &figures, tables, &charts)
}

/// The databases of all rows, each made once.
#[derive(Default)]
struct Databases(HashMap<(usize, Shape, Treatment, Family), Arc<Spd>>);

impl Databases {
    fn of(&mut self, row: &Row) -> Result<Arc<Spd>, BenchError> {
        let Row { rules, shape, kind, family, .. } = *row;
        if let Some(spd) = self.0.get(&(rules, shape, kind, family)) {
            return Ok(spd.clone());
        }
        let spd = Spd::new(traffic(family).grouped_policies(rules, shape, kind));
        let spd = spd.map_err(|error| refused(&row.label(), error.into()))?;
        Ok(self.0.entry((rules, shape, kind, family)).or_insert(spd.into()).clone())
    }
}

impl AclArguments {
    /// Rows to measure: every combination of the lists, and of each first the one without groups.
    fn rows(&self) -> Result<Vec<Row>, ArgumentError> {
        ArgumentError::check("--rules", &self.rules, 0, MOST_RULES)?;
        ArgumentError::check("--flows", &[self.flows], 1, MAX_FLOWS)?;
        self.run.check()?;
        let (caching, family, walk) = (Caching::Off, Family::V4, WalkKind::Fast);
        let (shape, kind) = (Shape::Uniform, Treatment::Stateless);
        let mut rows = vec![Row { rules: 0, shape, kind, caching, family, walk }];
        each(&mut rows, &self.family, |row, version| Row {
            family: if *version == 4 { Family::V4 } else { Family::V6 },
            ..row
        });
        each(&mut rows, &self.walk, |row, walk| Row { walk: *walk, ..row });
        each(&mut rows, &self.cache, |row, caching| Row { caching: *caching, ..row });
        let mut groups = vec![(0, shape, kind)];
        for kind in &self.kind {
            for shape in &self.shape {
                let counts = self.rules.iter().filter(|rules| **rules > 0);
                groups.extend(counts.map(|rules| (*rules, *shape, *kind)));
            }
        }
        each(&mut rows, &groups, |row, &(rules, shape, kind)| Row { rules, shape, kind, ..row });
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lap_error::LapError;
    use super::super::station::Station;
    use super::*;
    use clap::Parser;
    use io::memory::MemoryFrames;
    use scene::Random;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: AclArguments,
    }

    fn arguments(line: &[&str]) -> AclArguments {
        Line::parse_from([&["acl"], line].concat()).arguments
    }

    #[test]
    fn rows_are_every_combination_beside_one_without_groups() {
        let rows = arguments(&[]).rows().unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * (1 + 6 * 2 * 2));
        let mut labels: Vec<String> = rows.iter().map(Row::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), rows.len());
        let line = ["--rules=7", "--shape=mixed", "--cache=on", "--family=6", "--walk=fast"];
        let line = [&line[..], &["--kind=stateful"]].concat();
        let rows: Vec<usize> =
            arguments(&line).rows().unwrap().iter().map(|row| row.rules).collect();
        assert_eq!(rows, [0, 7], "what it is compared with is not left out");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_name() {
        for (line, name) in [
            (["--rules=1000001"], "--rules"),
            (["--flows=65537"], "--flows"),
            (["--laps=6"], "--laps"),
        ] {
            let error = arguments(&line).rows().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        for line in ["--rules=0", "--rules=many", "--cache=auto", "--shape=round"] {
            assert!(Line::try_parse_from(["acl", line]).is_err(), "{line}");
        }
    }

    // BM-5a: a lap of each kind, small, with every check on.
    #[test]
    fn a_lap_of_every_kind_counts() {
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
        let mut databases = Databases::default();
        for row in arguments(&["--rules=1,40"]).rows().unwrap() {
            let setting = row.setting(databases.of(&row).unwrap(), 300);
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)
                .unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            station.shorten(300);
            let lap = station.lap(&mut frames, &mut random);
            let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            assert!(lap.ns > 0.0 && lap.packets == 300);
        }
    }

    #[test]
    fn a_lap_that_another_rule_or_another_tier_answers_is_refused() {
        let row = Row { rules: 5, ..arguments(&["--cache=off"]).rows().unwrap()[0] };
        let spd = Databases::default().of(&row).unwrap();
        let refused = |setting| {
            let mut random = Random::new(3);
            let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)?;
            station.shorten(300);
            station.lap(&mut frames, &mut random)
        };
        let (other, _) = spd.holding_rules().next().unwrap();
        let setting = row.setting(spd.clone(), 300);
        let of_others = Setting { fate: Fate::Leaves(Some(other)), ..setting.clone() };
        let error = refused(of_others).unwrap_err();
        assert!(matches!(error, LapError::Decider { counted: 0, .. }), "{error}");
        for (tier, is_right) in
            [(Tier::Classifier, true), (Tier::Cache, false), (Tier::None, false)]
        {
            let lap = refused(Setting { tier, ..setting.clone() });
            assert_eq!(lap.is_ok(), is_right, "{tier:?}");
            let told = lap.err().map(|error| matches!(error, LapError::Tier { .. }));
            assert_ne!(told, Some(false), "{tier:?}");
        }
    }
}
