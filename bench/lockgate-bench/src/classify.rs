//! `lockgate bench classify`: the classifier alone, every packet a miss.
//!
//! Sets of rules from files of ClassBench's form (`@src/len dst/len lo : hi lo : hi proto/mask`),
//! or generated; flows at the corners of rules, a flood of a few, or random ones; by 64, CPU time
//! of the thread. In every lap a sample of the answers is compared with the linear search: where
//! one differs there are no figures. What is measured is `Spd::classify`, which the walk calls.

mod rows;
mod sets;
mod trace;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cpu::lanes::Form;
use policy::{Book, Decider, Search, Spd, SpdError, common};
use wire::{BATCH, Family, Flow};

use super::machine::{self, Seat};
use super::measure::{self, Span, measure, overhead, rounds};
use super::{ArgumentError, BenchError, Report, RulesRefused, WrongAnswer, publish};
use scene::Random;
use sets::Generated;
pub(super) use sets::{Set, SetError, read, sized};
use trace::Trace;

/// Laps at least.
const LEAST_LAPS: usize = 7;
/// Flows of a trace: they stay in the second cache, as what the walk asks about is near too. More
/// would measure how fast flows are read from memory.
const FLOWS: usize = 1 << 13;
/// Flows of a linear search's lap at least.
const LEAST_FLOWS: usize = 2 * BATCH;
/// Approximate time that a lap takes at most, ns.
const LAP_NS: f64 = 50e6;
/// Answers compared in every lap.
const SAMPLE: usize = 16;
/// Times that a set is built; the median counts.
const BUILDS: usize = 3;
/// Rules at most.
const MOST_RULES: usize = 1_000_000;

/// Form of the classifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
enum FormArgument {
    /// The widest that this machine has.
    Best,
    Avx512,
    Avx2,
    Portable,
    /// No classifier: the linear search.
    Linear,
}

/// Arguments of `lockgate bench classify`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClassifyArguments {
    /// Files of rules of ClassBench's form.
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    rules_file: Vec<PathBuf>,
    /// Rules to take of each file, too: its first, or, where it has fewer, copies of all of them
    /// with other network parts.
    #[arg(long, value_delimiter = ',')]
    scale_to: Vec<usize>,
    /// Sets to generate; without files all of them.
    #[arg(long, value_delimiter = ',', value_enum)]
    generated: Vec<Generated>,
    /// Rules of each generated set.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000, 100_000])]
    rules: Vec<usize>,
    /// Flows that are looked up.
    #[arg(long, value_delimiter = ',', value_enum,
          default_values_t = [Trace::Corner, Trace::Flood, Trace::Random])]
    trace: Vec<Trace>,
    /// Forms of the search.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [FormArgument::Best])]
    form: Vec<FormArgument>,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Seconds that the laps may take, about, if as many as asked for allow it.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Seed of the traces, from an earlier run.
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

/// A set made for searching.
struct Built {
    set: Set,
    spd: Spd,
    /// Median time that it took.
    build_ms: f64,
}

/// One row: a set searched in a form for the flows of a trace.
struct Row<'b> {
    built: &'b Built,
    spd: Spd,
    form: &'static str,
    trace: Trace,
    flows: Vec<Flow>,
}

/// Figures measured in a lap.
#[derive(Clone, Copy, Debug)]
struct LapFigures {
    ns: f64,
    span: Span,
}

/// Answers of the classifier that are not those of the linear search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{flow}: the search says {found:?}, the linear search {expected:?}")]
pub(super) struct WrongDecision {
    flow: Flow,
    expected: Decider,
    found: Decider,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &ClassifyArguments) -> Result<(), BenchError> {
    arguments.check().map_err(BenchError::Argument)?;
    let seat = Seat::take(arguments.core)?;
    let seed = measure::seed(arguments.seed)?;
    let mut random = Random::new(seed);
    let (mut built, mut refused) = (Vec::new(), Vec::new());
    for set in arguments.sets().map_err(|error| BenchError::Rules(RulesRefused(error)))? {
        netlab::interrupt::check()?;
        let (name, rules) = (set.name.clone(), set.policies.len());
        match Built::new(set) {
            Ok(set) => built.push(set),
            Err(error) => refused.push(rows::Refused { set: name, rules, why: error.to_string() }),
        }
    }
    let mut measured = rows_of(arguments, &built, &mut random);
    let allowed = Duration::from_secs(arguments.seconds);
    let laps = rounds(measured.len(), arguments.laps, allowed, &mut random, |place, random| {
        measured[place].lap(random)
    })?;
    let figures: Vec<rows::Figures> =
        measured.iter().zip(&laps).map(|(row, laps)| rows::Figures::of(row, laps)).collect();
    let (machine, commit) = (seat.machine(), machine::commit());
    let heading = format!(
        "bench classify, commit {commit}\n{machine}\nevery packet a miss, by {BATCH}, no walk \
         around it\nseed {seed}"
    );
    let mut text = vec![heading, rows::table(&figures, &machine)];
    text.extend(refused.iter().map(rows::Refused::to_string));
    if let Some(directory) = &arguments.plot {
        for chart in rows::charts(&figures) {
            let drawn = chart.draw(directory)?;
            text.extend(drawn.map(|file| format!("drawn: {}", file.display())));
        }
    }
    let report = Report { bench: "classify", machine: &machine, commit: &commit, rows: &figures };
    publish(&report, &text.join("\n\n"), arguments.json.as_deref())
}

/// Measures each set in each form for each trace. Skips forms that the machine does not have, and
/// prints which.
fn rows_of<'b>(
    arguments: &ClassifyArguments,
    built: &'b [Built],
    random: &mut Random,
) -> Vec<Row<'b>> {
    let mut rows = Vec::new();
    for built in built {
        for form in &arguments.form {
            let Some((spd, form)) = form.of(built) else {
                eprintln!("this machine does not have {form:?}");
                continue;
            };
            for trace in &arguments.trace {
                let flows = trace::flows(&built.set, *trace, FLOWS, random);
                rows.push(Row { built, spd: spd.clone(), form, trace: *trace, flows });
            }
        }
    }
    rows
}

impl FormArgument {
    /// A set's database in this form, and the form's name.
    fn of(self, built: &Built) -> Option<(Spd, &'static str)> {
        let name = match self {
            FormArgument::Linear => {
                return Some((built.spd.clone().searched(Search::Linear), "linear"));
            }
            FormArgument::Best => Form::best().name(),
            FormArgument::Avx512 => "AVX-512",
            FormArgument::Avx2 => "AVX2",
            FormArgument::Portable => "portable",
        };
        let form = Form::all().find(|form| form.name() == name)?;
        let spd = match self {
            FormArgument::Best => built.spd.clone(),
            // What it is made of is shared, and its form with it.
            _ => Spd::new(built.set.policies.clone()).ok()?.in_form(form),
        };
        Some((spd, name))
    }
}

impl Built {
    /// Makes a set for searching, several times.
    fn new(set: Set) -> Result<Built, SpdError> {
        let mut times = Vec::with_capacity(BUILDS);
        let mut build = || {
            let policies = set.policies.clone();
            let begin = Instant::now();
            let (spd, span) = measure(|| Spd::new(policies));
            times.push(span.cpu.as_secs_f64() * 1e3);
            (spd, begin.elapsed())
        };
        let (mut spd, took) = build();
        if took < Duration::from_secs(2) {
            for _ in 1..BUILDS {
                spd = build().0;
            }
        }
        let build_ms = measure::Figure::of(&times).median;
        Ok(Built { spd: spd?, set, build_ms })
    }
}

impl Row<'_> {
    /// Looks all flows up, fewer where each takes long, and compares a sample.
    fn lap(&mut self, random: &mut Random) -> Result<LapFigures, BenchError> {
        let mut says = vec![Decider::None; self.flows.len()];
        let trial = self.search(&mut says, 0, LEAST_FLOWS);
        let each = (trial.cpu.as_nanos() as f64 / LEAST_FLOWS as f64).max(1.0);
        let count = ((LAP_NS / each) as usize).clamp(LEAST_FLOWS, self.flows.len());
        let count = count / BATCH * BATCH;
        let first = random.below((self.flows.len() - count) / BATCH + 1) * BATCH;
        // One that only warms up, where it is quick.
        if count == self.flows.len() {
            self.search(&mut says, first, count);
        }
        let mut span = self.search(&mut says, first, count);
        span.cpu = span.cpu.saturating_sub(overhead());
        for _ in 0..SAMPLE {
            let place = first + random.below(count);
            let (flow, found) = (self.flows[place], says[place]);
            same(&self.spd, self.built.set.family, flow, found)?;
        }
        Ok(LapFigures { ns: span.cpu.as_nanos() as f64 / count as f64, span })
    }

    #[inline(never)]
    fn search(&self, says: &mut [Decider], first: usize, count: usize) -> Span {
        let domain = common(Book::SpdOut, self.built.set.family);
        let range = first..first + count;
        let (flows, says) = (&self.flows[range.clone()], &mut says[range]);
        measure(|| {
            for (flows, says) in flows.chunks(BATCH).zip(says.chunks_mut(BATCH)) {
                self.spd.classify(domain, flows, says);
            }
        })
        .1
    }
}

/// Checks that an answer is that of the linear search.
fn same(spd: &Spd, family: Family, flow: Flow, found: Decider) -> Result<(), BenchError> {
    match spd.search_linear(common(Book::SpdOut, family), &flow) {
        expected if expected == found => Ok(()),
        expected => Err(BenchError::Wrong(WrongAnswer(WrongDecision { flow, expected, found }))),
    }
}

impl ClassifyArguments {
    fn check(&self) -> Result<(), ArgumentError> {
        ArgumentError::check("--laps", &[self.laps], LEAST_LAPS, 1_000_000)?;
        ArgumentError::check("--rules", &self.rules, 1, MOST_RULES)?;
        ArgumentError::check("--scale-to", &self.scale_to, 1, MOST_RULES)
    }

    /// All sets that are asked for.
    fn sets(&self) -> Result<Vec<Set>, SetError> {
        let mut sets = Vec::new();
        for file in &self.rules_file {
            let set = sets::read(file)?;
            let scaled: Vec<Set> =
                self.scale_to.iter().map(|rules| sets::sized(&set, *rules)).collect();
            sets.push(set);
            sets.extend(scaled);
        }
        let every = [Generated::Spd, Generated::Nested, Generated::Ipv6];
        let kinds = match self.generated.is_empty() && self.rules_file.is_empty() {
            true => &every[..],
            false => &self.generated,
        };
        for kind in kinds {
            sets.extend(self.rules.iter().map(|rules| sets::generated(*kind, *rules)));
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ClassifyArguments,
    }

    fn arguments(line: &[&str]) -> ClassifyArguments {
        Line::parse_from([&["classify"], line].concat()).arguments
    }

    #[test]
    fn a_lap_of_every_set_form_and_trace_counts() {
        let forms = "--form=best,avx512,avx2,portable,linear";
        let arguments = arguments(&["--rules=1,300", forms]);
        let random = &mut Random::new(5);
        let built: Vec<Built> = arguments
            .sets()
            .unwrap()
            .into_iter()
            .map(|set| Built::new(set).expect("300 rules are not too many"))
            .collect();
        let mut rows = rows_of(&arguments, &built, random);
        let forms = 2 + Form::all().count();
        assert_eq!(rows.len(), 3 * 2 * 3 * forms);
        for row in &mut rows {
            row.flows.truncate(4 * BATCH);
            let lap = row.lap(random).unwrap();
            assert!(lap.ns > 0.0);
            let json = serde_json::to_value(rows::Figures::of(row, &[lap; 7])).unwrap();
            for key in [
                "set",
                "rules",
                "family",
                "trace",
                "ns_per_lookup",
                "build_ms",
                "bytes",
                "worst_case_cost",
                "form",
                "spread",
            ] {
                assert!(!json[key].is_null(), "{key}");
            }
        }
    }

    #[test]
    fn a_wrong_answer_ends_the_bench() {
        let set = arguments(&["--rules=300", "--generated=nested"]).sets().unwrap().remove(0);
        let spd = Spd::new(set.policies.clone()).unwrap();
        let flow = trace::flows(&set, Trace::Corner, 1, &mut Random::new(5))[0];
        let right = spd.search_linear(common(Book::SpdOut, set.family), &flow);
        same(&spd, set.family, flow, right).unwrap();
        let wrong = Decider::Policy(policy::PolicyIndex(300));
        let error = same(&spd, set.family, flow, wrong).unwrap_err().to_string();
        assert!(error.contains("the linear search") && error.contains("no figures"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (name, found) in [("--laps", "6"), ("--rules", "0"), ("--scale-to", "1000001")] {
            let error = arguments(&[name, found]).check().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(arguments(&["--generated=spd"]).sets().unwrap().len(), 3);
        assert_eq!(arguments(&[]).sets().unwrap().len(), 9);
    }
}
