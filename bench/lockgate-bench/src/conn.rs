//! `lockgate bench conn`: connections of `reflect` rules.
//!
//! TCP connections from lan to dmz, two protected ports; `groups_in` on lan, whose last rule
//! reflects. Measures new connections, through the walk and of the table alone; packets of
//! established ones; the worker's sweep; and established ones while new ones are refused. One core,
//! through ports in memory, all checks and counters on. Rows of one table share it: each leaves it
//! as it was, and is refused otherwise.

mod gateway;
mod laps;
mod rows;

use wire::Family;

use super::rows::version;
use super::station::{Course, RunArguments, refused};
use super::{ArgumentError, BenchError};
use gateway::{Gateway, HalfOpen, Stock};
use laps::{Order, Subject, Sweep, Work};

/// Places of a table at least, and at most.
const LEAST_PLACES: usize = 4096;
const MOST_PLACES: usize = 1 << 24;
/// Share of the table that is taken at the bound of half-open connections.
const BESIDE_HALF_OPEN_PERCENT: u32 = 50;

/// Arguments of `lockgate bench conn`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ConnArguments {
    /// Work to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = WorkArgument::ALL)]
    work: Vec<WorkArgument>,
    /// Places of the table; a connection of IPv6 takes two.
    #[arg(long, default_value_t = 256 << 10)]
    max: usize,
    /// Live connections of the rows of work `new` and `table`, percent of the table.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 50, 90])]
    load: Vec<usize>,
    /// Live connections of the rows of work `established` and `sweep`, beside 1 % of the table; the
    /// table then has twice as many places.
    #[arg(long, default_value_t = 1_000_000)]
    live: usize,
    /// Order of the packets of established connections.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Order::Random, Order::Turn])]
    order: Vec<Order>,
    /// SYNs in a hundred packets, of the rows of work `refused`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    syn_percent: Vec<usize>,
    /// IP versions.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    #[command(flatten)]
    run: RunArguments,
}

/// Work, on a command line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
enum WorkArgument {
    /// New connections through the walk: SYN, SYN+ACK, ACK.
    New,
    /// The table alone: new connections, lookups.
    Table,
    /// Packets of established connections.
    Established,
    /// The worker's sweep.
    Sweep,
    /// Packets of established connections while new ones are refused.
    Refused,
}

impl WorkArgument {
    const ALL: [WorkArgument; 5] = [
        WorkArgument::New,
        WorkArgument::Table,
        WorkArgument::Established,
        WorkArgument::Sweep,
        WorkArgument::Refused,
    ];
}

/// Parameters of one row of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Row {
    stock: Stock,
    work: Work,
}

impl Row {
    fn label(&self) -> String {
        let Stock { family, max, live, half_open } = self.stock;
        let version = version(family);
        let half_open = match half_open {
            HalfOpen::None => "",
            HalfOpen::AtBound => " and as many half-open ones as may be",
        };
        format!("{:?}, IPv{version}, {live} live connections{half_open}, {max} places", self.work)
    }
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &ConnArguments) -> Result<(), BenchError> {
    let rows = arguments.rows().map_err(BenchError::Argument)?;
    let (run, mut course) = (&arguments.run, arguments.run.begin()?);
    let Course { random, frames, .. } = &mut course;
    let mut gateways: Vec<Gateway> = Vec::new();
    let mut subjects: Vec<(usize, Subject)> = Vec::with_capacity(rows.len());
    for row in &rows {
        netlab::interrupt::check()?;
        let known = gateways.iter().position(|gateway| gateway.stock == row.stock);
        let place = known.unwrap_or(gateways.len());
        if known.is_none() {
            let (entries, in_flight) = (run.cache_entries(), run.in_flight());
            let gateway = Gateway::new(row.stock, entries, in_flight, frames, random);
            gateways.push(gateway.map_err(|error| refused(&row.label(), error))?);
        }
        let subject = Subject::new(row.work, &gateways[place], run.in_flight(), random);
        subjects.push((place, subject));
    }
    let laps = run.laps(rows.len(), random, |at, random| {
        let (place, subject) = &mut subjects[at];
        let lap = gateways[*place].within(frames, |gateway| subject.lap(gateway, random));
        lap.map_err(|error| refused(&rows[at].label(), error))
    })?;
    let figures: Vec<rows::Figures> =
        rows.iter().zip(&laps).map(|(row, laps)| rows::Figures::of(row, laps)).collect();
    let tables = rows::tables(&figures);
    let subject = format!(
        "in memory, TCP from lan to dmz, groups_in on lan with {} rules, the last reflects",
        gateway::RULES
    );
    let charts = rows::charts(&figures);
    run.report(("conn", &subject), &course.end(), &figures, tables, &charts)
}

impl ConnArguments {
    /// Rows to measure.
    fn rows(&self) -> Result<Vec<Row>, ArgumentError> {
        ArgumentError::check("--max", &[self.max], LEAST_PLACES, MOST_PLACES)?;
        ArgumentError::check("--load", &self.load, 1, 99)?;
        // The larger table has four places for each at most.
        ArgumentError::check("--live", &[self.live], LEAST_PLACES / 4, MOST_PLACES / 4)?;
        ArgumentError::check("--syn-percent", &self.syn_percent, 1, 99)?;
        self.run.check()?;
        let mut rows = Vec::new();
        for version in &self.family {
            let family = if *version == 4 { Family::V4 } else { Family::V6 };
            self.work.iter().for_each(|work| self.add(*work, family, &mut rows));
        }
        Ok(rows)
    }

    /// Adds the rows of a family that are about some work.
    fn add(&self, work: WorkArgument, family: Family, rows: &mut Vec<Row>) {
        // At most MOST_PLACES: both fit.
        let (max, many) = (self.max as u32, self.live as u32);
        let none = Stock { family, max, live: 0, half_open: HalfOpen::None };
        let width = none.width();
        let part = |percent: u32| {
            let live = (u64::from(max / width) * u64::from(percent) / 100) as u32;
            Stock { live, ..none }
        };
        let large = Stock { max: 2 * many * width, live: many, ..none };
        let loads = || self.load.iter().map(|percent| part(*percent as u32));
        let of = |work| move |stock| Row { stock, work };
        match work {
            WorkArgument::New => rows.extend(loads().map(of(Work::New))),
            WorkArgument::Table => rows.extend(loads().map(of(Work::Table))),
            WorkArgument::Established => {
                for stock in [part(1), large] {
                    let row = |order: &Order| Row { stock, work: Work::Established(*order) };
                    rows.extend(self.order.iter().map(row));
                }
            }
            WorkArgument::Sweep => {
                rows.push(Row { stock: large, work: Work::Sweep(Sweep::Live) });
                rows.push(Row { stock: none, work: Work::Sweep(Sweep::Over) });
            }
            WorkArgument::Refused => {
                let full = Stock { live: max / width, ..none };
                let half_open = HalfOpen::AtBound;
                let half = Stock { half_open, ..part(BESIDE_HALF_OPEN_PERCENT) };
                for stock in [full, half] {
                    let work = |percent: &usize| Work::Refused { syn_percent: *percent as u32 };
                    rows.extend(self.syn_percent.iter().map(work).map(|work| Row { stock, work }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lap_error::LapError;
    use super::*;
    use clap::Parser;
    use io::memory::MemoryFrames;
    use scene::Random;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ConnArguments,
    }

    const IN_FLIGHT: usize = 256;
    const SMALL: [&str; 3] = ["--max=4096", "--live=2000", "--syn-percent=10"];

    fn rows(line: &[&str]) -> Result<Vec<Row>, ArgumentError> {
        Line::parse_from([&["conn"], line].concat()).arguments.rows()
    }

    fn gateway(stock: Stock, frames: &mut MemoryFrames, random: &mut Random) -> Gateway {
        let gateway = Gateway::new(stock, 1 << 15, IN_FLIGHT, frames, random);
        gateway.unwrap_or_else(|error| panic!("{stock:?}: {error}"))
    }

    #[test]
    fn rows_are_those_of_all_kinds_of_work_and_no_two_alike() {
        let all = rows(&[]).unwrap();
        assert_eq!(all.len(), 2 * (3 + 3 + 4 + 2 + 4));
        let mut labels: Vec<String> = all.iter().map(Row::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), all.len());
        let one = rows(&["--work=new", "--family=6", "--load=50"]).unwrap();
        assert_eq!((one.len(), one[0].stock.live), (1, 65_536), "IPv6 takes two places");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_name() {
        for (name, found) in [
            ("--max", "4095"),
            ("--load", "0"),
            ("--load", "100"),
            ("--live", "1"),
            ("--syn-percent", "0"),
            ("--laps", "6"),
        ] {
            let error = rows(&[name, found]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    // A lap of each kind, small, with every check on.
    #[test]
    fn a_lap_of_every_kind_counts() {
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(IN_FLIGHT as u32, 2048);
        for row in rows(&SMALL).unwrap() {
            let mut gateway = gateway(row.stock, &mut frames, &mut random);
            let mut subject = Subject::new(row.work, &gateway, IN_FLIGHT, &mut random);
            for _ in 0..2 {
                let lap = gateway.within(&mut frames, |gateway| subject.lap(gateway, &mut random));
                let lap = lap.unwrap_or_else(|error| panic!("{}: {error}", row.label()));
                let is_measured = lap.values.iter().any(|value| *value > 0.0);
                assert!(is_measured, "{}: {:?}", row.label(), lap.values);
            }
            assert_eq!(frames.conservation().held(), 0);
        }
    }

    #[test]
    fn a_lap_that_leaves_other_connections_or_refuses_others_does_not_count() {
        let mut random = Random::new(3);
        let mut frames = MemoryFrames::with_frame_bytes(IN_FLIGHT as u32, 2048);
        let stock = rows(&SMALL).unwrap()[1].stock;
        let mut lap = |work, spoil: fn(&mut Gateway)| {
            let mut gateway = gateway(stock, &mut frames, &mut random);
            let mut subject = Subject::new(work, &gateway, IN_FLIGHT, &mut random);
            spoil(&mut gateway);
            gateway.within(&mut frames, |gateway| subject.lap(gateway, &mut random))
        };
        let error = lap(Work::Refused { syn_percent: 10 }, |_| {}).unwrap_err();
        assert!(matches!(error, LapError::Refused { found: 0, .. }), "there is room: {error}");
        let one_gone: fn(&mut Gateway) = |gateway| assert!(gateway.remove(gateway.live[0]));
        let error = lap(Work::New, one_gone).unwrap_err();
        assert!(matches!(error, LapError::Connections { .. }), "{error}");
        let error = lap(Work::Table, one_gone).unwrap_err();
        assert!(matches!(error, LapError::Table { .. }), "{error}");
        let end: fn(&mut Gateway) = |gateway| gateway.now_s += 100_000;
        let error = lap(Work::Sweep(Sweep::Live), end).unwrap_err();
        assert!(matches!(error, LapError::Table { expected: 0, .. }), "{error}");
    }
}
