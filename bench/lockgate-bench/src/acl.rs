//! `lockgate bench acl`: security groups between two protected ports.
//!
//! The set-up of the published figures of VPP's ACL plugin: UDP flows from lan to dmz in the
//! smallest packets, groups in on lan, and the rule that permits all of the traffic behind rules
//! that match none of it. One core, through ports in memory, all checks and counters on. The rows
//! without groups are measured in the same rounds, and every row is compared with its own of them.
//!
//! With `--tags card` an emulated card that has the rules tags every packet, and the tags count:
//! the worker is measured, the card is not. With `--audit` packets are judged again.
//!
//! With files of ClassBench's form their rules are the groups, and the flows are drawn from them:
//! each hits a known rule.

mod card;
mod file;
mod rows;

use std::collections::HashMap;
use std::num::{NonZeroUsize, ParseIntError};
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use policy::Spd;
use scene::{Case, Direction, MAX_FLOWS, Random, Shape, Treatment};
use wire::{BATCH, Family};

use super::draw::Distribution;
use super::rows::version;
use super::spd;
use super::station::{CardTags, Fate, KnownFlows, RunArguments, Setting, Tier, each, refused};
use super::subject::{Caching, WalkKind};
use super::{ArgumentError, BenchError, RulesRefused};
use file::FileRules;

/// Rules at most.
const MOST_RULES: usize = 1_000_000;
/// Seed of the flows of files: the same in every run, as those of the other rows are.
const FLOWS_SEED: u64 = 17;

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
    /// Files of rules of ClassBench's form, which are IPv4: their rules are the groups, and each
    /// flow hits a known one. Rules that an earlier one covers are left out.
    #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "FILE",
          conflicts_with_all = ["rules", "shape", "family", "tags"])]
    rules_file: Vec<PathBuf>,
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
    /// Packets without tags, or each with the tag of an emulated card that has all rules: of
    /// uniform stateless ones.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Tags::None])]
    tags: Vec<Tags>,
    /// The audit judges 1 of this many packets that the cache or a tag decided; 0: no audit.
    #[arg(long, value_delimiter = ',', default_values_t = [0])]
    audit: Vec<u32>,
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

/// Tags of the packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
enum Tags {
    /// No packet has one.
    None,
    /// Each has that of an emulated card, and it counts.
    Card,
}

impl Tags {
    /// The name on a command line.
    const fn name(self) -> &'static str {
        match self {
            Tags::None => "none",
            Tags::Card => "card",
        }
    }
}

/// Parameters of one row of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Row {
    /// 0: no groups.
    rules: usize,
    shape: Shape,
    /// The file whose rules they are, and whose flows: its place among all files.
    file: Option<usize>,
    kind: Treatment,
    caching: Caching,
    family: Family,
    walk: WalkKind,
    tags: Tags,
    /// The audit judges 1 of this many packets again; 0: no audit.
    audit: u32,
}

impl Row {
    fn label(&self) -> String {
        let (version, walk, cache) = (version(self.family), self.walk.name(), self.cache());
        let groups = match self.rules {
            0 => "no groups".to_owned(),
            rules => format!("{rules} rules ({}, {})", self.shape(), self.kind.name()),
        };
        let tags = if self.tags == Tags::Card { ", tagged" } else { "" };
        let audit = match self.audit {
            0 => String::new(),
            every => format!(", audit of one in {every}"),
        };
        format!("{groups}{tags}{audit}, cache {cache}, IPv{version}, {walk} walk")
    }

    /// The shape of the rules, or that they are a file's.
    fn shape(&self) -> String {
        match self.file {
            None => self.shape.name().to_owned(),
            Some(number) => format!("file {}", number + 1),
        }
    }

    /// The setting of the cache on the command line.
    const fn cache(&self) -> &'static str {
        match self.caching {
            Caching::Off => "off",
            Caching::Auto | Caching::Always => "on",
        }
    }

    /// Returns whether another row differs at most by rules, their shape and kind, tags and audit.
    fn is_like(&self, other: &Row) -> bool {
        let Row { rules, shape, kind, tags, audit, .. } = *other;
        Row { rules, shape, kind, tags, audit, ..*self } == *other
    }

    /// The row's rules and family: rows that have these in common share a database.
    fn rules_alone(&self) -> Row {
        let (caching, walk, tags, audit) = (Caching::Off, WalkKind::Fast, Tags::None, 0);
        Row { caching, walk, tags, audit, ..*self }
    }

    /// Returns whether a row can have its tags.
    fn is_possible(&self) -> bool {
        let is_told = (self.shape, self.kind) == (Shape::Uniform, Treatment::Stateless);
        self.tags == Tags::None || is_told && self.rules > 0
    }

    /// The row that differs from this one by having no audit; `None`: it has none.
    fn unaudited(&self) -> Option<Row> {
        (self.audit > 0).then_some(Row { audit: 0, ..*self })
    }

    /// The row's gateway with these policies, and its traffic: `flows` flows, or a file's.
    fn setting(&self, spd: Arc<Spd>, flows: usize, known: Option<Arc<KnownFlows>>) -> Setting {
        let Row { walk, caching, .. } = *self;
        let permit = spd.holding_rules().find(|(_, rule)| rule.name == scene::PERMIT);
        let tier = match (self.rules, walk, caching) {
            _ if self.tags == Tags::Card => Tier::Card,
            // The fast path takes a batch between ports without groups as a whole, unless it has
            // packets of rare protocols.
            (0, WalkKind::Fast, _) if known.is_none() => Tier::None,
            (0, ..) => Tier::Any,
            (_, _, Caching::Off) => Tier::Classifier,
            (_, _, Caching::Auto | Caching::Always) => Tier::Cache,
        };
        let fate = match &known {
            Some(_) if self.rules > 0 => Fate::LeavesByKnown,
            _ => Fate::Leaves(permit.map(|(slot, _)| slot)),
        };
        let flows = known.as_ref().map_or(flows, |known| known.packets.len());
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
            workers: 1,
            known,
            card: None,
            audit: self.audit,
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
    let files = arguments.rules_file.iter().map(|file| FileRules::read(file));
    let files = files.collect::<Result<Vec<_>, _>>();
    let files = files.map_err(|error| BenchError::Rules(RulesRefused(error)))?;
    let rows = arguments.rows(&files).map_err(BenchError::Argument)?;
    let mut databases = Databases::new(&files);
    let setting = |row: &Row| databases.setting(row, arguments.flows);
    let measurement = arguments.run.measure(&rows, setting)?;
    let figures = rows::Figures::all(&rows, &files, &measurement.rows);
    let mut tables = vec![rows::table(&figures)];
    tables.extend(match files[..] {
        [] => rows::goals(&figures),
        _ => rows::files(&files, |number| databases.flows.get(&number).cloned()),
    });
    let flows = match files[..] {
        [] => format!("{} UDP flows of packets with 46 (IPv6: 48) bytes", arguments.flows),
        _ => format!("up to {} flows of packets with 46 bytes or more", arguments.flows),
    };
    let subject = format!("in memory, from lan to dmz, groups_in on lan, {flows}");
    let charts = if files.is_empty() { rows::charts(&figures) } else { Vec::new() };
    arguments.run.report(("acl", &subject), &measurement.provenance, &figures, tables, &charts)
}

/// The databases of all rows and the flows of all files, each made once.
struct Databases<'f> {
    files: &'f [FileRules],
    /// By row, whatever its cache and walk.
    made: HashMap<Row, Arc<Spd>>,
    flows: HashMap<usize, Arc<KnownFlows>>,
    /// By row, whatever its cache, walk and audit.
    cards: HashMap<Row, Arc<CardTags>>,
}

impl<'f> Databases<'f> {
    fn new(files: &'f [FileRules]) -> Databases<'f> {
        Databases { files, made: HashMap::new(), flows: HashMap::new(), cards: HashMap::new() }
    }

    fn setting(&mut self, row: &Row, flows: usize) -> Result<Setting, BenchError> {
        let known = row.file.map(|number| self.known(row, number, flows)).transpose()?;
        let setting = row.setting(self.of(row)?, flows, known);
        match row.tags {
            Tags::None => Ok(setting),
            Tags::Card => Ok(Setting { card: Some(self.card(row, &setting)?), ..setting }),
        }
    }

    /// The card of a row, with the tags of its flows.
    fn card(&mut self, row: &Row, setting: &Setting) -> Result<Arc<CardTags>, BenchError> {
        let key = row.rules_alone();
        if let Some(card) = self.cards.get(&key) {
            return Ok(card.clone());
        }
        let card = card::tags(&setting.traffic, &setting.spd, setting.flows);
        let card = card.map_err(|error| refused(&row.label(), error))?;
        Ok(self.cards.entry(key).or_insert(card.into()).clone())
    }

    fn of(&mut self, row: &Row) -> Result<Arc<Spd>, BenchError> {
        let key = row.rules_alone();
        let Row { rules, shape, kind, family, file, .. } = key;
        if let Some(spd) = self.made.get(&key) {
            return Ok(spd.clone());
        }
        let spd = match file {
            Some(number) if rules > 0 => self.files[number].group(&traffic(family), kind),
            _ => Spd::new(traffic(family).grouped_policies(rules, shape, kind)),
        };
        let spd = spd.map_err(|error| refused(&row.label(), error.into()))?;
        Ok(self.made.entry(key).or_insert(spd.into()).clone())
    }

    /// The flows of a file.
    fn known(
        &mut self,
        row: &Row,
        number: usize,
        most: usize,
    ) -> Result<Arc<KnownFlows>, BenchError> {
        if let Some(flows) = self.flows.get(&number) {
            return Ok(flows.clone());
        }
        let file = &self.files[number];
        let spd = self.of(&Row { rules: file.selectors.len(), ..*row })?;
        let flows = file.flows(&traffic(row.family), &spd, most, &mut Random::new(FLOWS_SEED));
        if flows.packets.is_empty() {
            return Err(BenchError::Rules(RulesRefused(file.without_flows())));
        }
        Ok(self.flows.entry(number).or_insert(flows.into()).clone())
    }
}

impl AclArguments {
    /// Rows to measure: every combination of the lists, and of each first the one without groups.
    fn rows(&self, files: &[FileRules]) -> Result<Vec<Row>, ArgumentError> {
        let most_rules = if self.tags == [Tags::None] { MOST_RULES } else { card::MOST_RULES };
        ArgumentError::check("--rules", &self.rules, 0, most_rules)?;
        ArgumentError::check("--flows", &[self.flows], 1, MAX_FLOWS)?;
        self.run.check()?;
        let (caching, family, walk) = (Caching::Off, Family::V4, WalkKind::Fast);
        let (shape, kind) = (Shape::Uniform, Treatment::Stateless);
        let (file, tags, audit) = (None, Tags::None, 0);
        let mut rows =
            vec![Row { rules: 0, shape, file, kind, caching, family, walk, tags, audit }];
        match files {
            [] => each(&mut rows, &self.family, |row, version| Row {
                family: if *version == 4 { Family::V4 } else { Family::V6 },
                ..row
            }),
            _ => each(&mut rows, &(0..files.len()).collect::<Vec<_>>(), |row, number| Row {
                file: Some(*number),
                ..row
            }),
        }
        each(&mut rows, &self.walk, |row, walk| Row { walk: *walk, ..row });
        each(&mut rows, &self.cache, |row, caching| Row { caching: *caching, ..row });
        if !files.is_empty() {
            let kinds = [None].into_iter().chain(self.kind.iter().copied().map(Some));
            each(&mut rows, &kinds.collect::<Vec<_>>(), |row, kind| {
                let rules = row.file.map_or(0, |number| files[number].selectors.len());
                kind.map_or(row, |kind| Row { rules, kind, ..row })
            });
            return Ok(self.with_tags(&rows));
        }
        let mut groups = vec![(0, shape, kind)];
        for kind in &self.kind {
            for shape in &self.shape {
                let counts = self.rules.iter().filter(|rules| **rules > 0);
                groups.extend(counts.map(|rules| (*rules, *shape, *kind)));
            }
        }
        each(&mut rows, &groups, |row, &(rules, shape, kind)| Row { rules, shape, kind, ..row });
        Ok(self.with_tags(&rows))
    }

    /// Each row with each of the tags and audits that it can have; those without rules have none.
    fn with_tags(&self, rows: &[Row]) -> Vec<Row> {
        let with = |row: &Row| {
            if row.rules == 0 {
                return vec![*row];
            }
            let mut rows = vec![*row];
            each(&mut rows, &self.tags, |row, tags| Row { tags: *tags, ..row });
            each(&mut rows, &self.audit, |row, audit| Row { audit: *audit, ..row });
            rows
        };
        rows.iter().flat_map(with).filter(Row::is_possible).collect()
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
        let rows = arguments(&[]).rows(&[]).unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * (1 + 6 * 2 * 2));
        let mut labels: Vec<String> = rows.iter().map(Row::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), rows.len());
        let line = ["--rules=7", "--shape=mixed", "--cache=on", "--family=6", "--walk=fast"];
        let line = [&line[..], &["--kind=stateful"]].concat();
        let rows: Vec<usize> =
            arguments(&line).rows(&[]).unwrap().iter().map(|row| row.rules).collect();
        assert_eq!(rows, [0, 7], "what it is compared with is not left out");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_name() {
        for (line, name) in [
            (["--rules=1000001"], "--rules"),
            (["--flows=65537"], "--flows"),
            (["--laps=6"], "--laps"),
        ] {
            let error = arguments(&line).rows(&[]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        for line in ["--rules=0", "--rules=many", "--cache=auto", "--shape=round"] {
            assert!(Line::try_parse_from(["acl", line]).is_err(), "{line}");
        }
    }

    // BM-5a, HA-16: a lap of each kind, small, with every check on.
    #[test]
    fn a_lap_of_every_kind_counts() {
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
        let mut databases = Databases::new(&[]);
        for row in arguments(&["--rules=1,40"]).rows(&[]).unwrap() {
            let setting = databases.setting(&row, 300).unwrap();
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)
                .unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            station.shorten(300);
            let lap = station.lap(&mut frames, &mut random);
            let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            assert!(lap.ns > 0.0 && lap.packets == 300);
        }
    }

    // BM-5a, HA-17: the host's part, with a card that is emulated.
    #[test]
    fn a_lap_of_tagged_packets_counts_and_what_is_judged_again_is_right() {
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
        let mut databases = Databases::new(&[]);
        let line = ["--rules=1,40", "--shape=uniform", "--kind=stateless"];
        let line = [&line[..], &["--tags=none,card", "--audit=0,100"]].concat();
        let rows = arguments(&line).rows(&[]).unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * (1 + 2 * 2 * 2));
        for row in rows {
            let setting = databases.setting(&row, 300).unwrap();
            let (tier, has_card) = (setting.tier, setting.card.is_some());
            let mut lap = |setting: Setting| {
                let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)?;
                station.shorten(300);
                station.lap(&mut frames, &mut random)
            };
            let figures =
                lap(setting.clone()).unwrap_or_else(|error| panic!("{}: {error}", row.label()));
            let is_tagged = row.tags == Tags::Card;
            assert_eq!((figures.tag_rate == 1.0, has_card), (is_tagged, is_tagged));
            let answers = matches!(tier, Tier::Card | Tier::Cache);
            let expected = u64::from(row.audit > 0 && answers) * 3;
            assert!(figures.audited.abs_diff(expected) <= 1, "{}: {figures:?}", row.label());
            if is_tagged {
                let error = lap(Setting { card: None, ..setting }).unwrap_err();
                assert!(matches!(error, LapError::Tier { tags: 0.0, .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_lap_that_another_rule_or_another_tier_answers_is_refused() {
        let row = Row { rules: 5, ..arguments(&["--cache=off"]).rows(&[]).unwrap()[0] };
        let spd = Databases::new(&[]).of(&row).unwrap();
        let refused = |setting| {
            let mut random = Random::new(3);
            let mut frames = MemoryFrames::with_frame_bytes(256, 2048);
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)?;
            station.shorten(300);
            station.lap(&mut frames, &mut random)
        };
        let (other, _) = spd.holding_rules().next().unwrap();
        let setting = row.setting(spd.clone(), 300, None);
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

    #[test]
    fn rules_of_a_file_are_groups_whose_every_rule_is_known_to_decide() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("few_6.rules");
        std::fs::write(&file, RULES).unwrap();
        let files = [FileRules::read(&file).unwrap()];
        assert_eq!((files[0].selectors.len(), files[0].left_out), (5, 2));
        let mut databases = Databases::new(&files);
        let rows = arguments(&[]).rows(&files).unwrap();
        assert_eq!(rows.len(), 2 * 2 * (1 + 2));
        let (mut random, mut frames) = (Random::new(3), MemoryFrames::with_frame_bytes(256, 2048));
        let mut lap = |setting: Setting| {
            let mut station = Station::new(setting, 4096, 256, &mut frames, &mut random)?;
            station.shorten(300);
            station.lap(&mut frames, &mut random)
        };
        for row in &rows {
            let setting = databases.setting(row, 200).unwrap();
            lap(setting).unwrap_or_else(|error| panic!("{}: {error}", row.label()));
        }
        let known = databases.flows[&0].clone();
        let hit: std::collections::HashSet<_> = known.deciders.iter().collect();
        assert_eq!((known.packets.len(), hit.len()), (200, 4), "multicast is no host's");

        let deciders = known.deciders.iter().rev().copied().collect();
        let known = Some(KnownFlows { packets: known.packets.clone(), deciders }.into());
        let right = databases.setting(&rows[1], 200).unwrap();
        let error = lap(Setting { known, ..right }).unwrap_err();
        assert!(matches!(error, LapError::Decider { .. }), "{error}");
    }

    /// Two of them can never decide: the third and the last.
    const RULES: &str = "\
        @20.1.0.0/24 30.1.0.0/24 0 : 65535 80 : 80 0x06/0xFF 0x0000/0x0000\n\
        @20.0.0.0/8 30.1.0.7/32 1000 : 2000 53 : 53 0x11/0xFF 0x0000/0x0000\n\
        @20.1.0.9/32 30.1.0.9/32 7 : 7 80 : 80 0x06/0xFF 0x0000/0x0000\n\
        @20.0.0.0/8 30.0.0.0/8 0 : 65535 0 : 65535 0x01/0xFF 0x0000/0x0000\n\
        @0.0.0.0/0 225.0.0.0/8 0 : 65535 0 : 65535 0x11/0xFF 0x0000/0x0000\n\
        @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000\n\
        @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000\n";
}
