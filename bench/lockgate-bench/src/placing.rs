//! `lockgate bench plan`: how long it takes to plan which rules a card should have, and to take a
//! change of rules in. No packet is sent, and the card is emulated: the figures are the planner's
//! and the ledger's, on one core.
//!
//! Sets of rules from files of ClassBench's form, or generated ranges; one rule in four denies. The
//! packets of rules are drawn with a long tail. In every lap the plan is compared with the rules: a
//! rule without one of those that must be before it, or too many entries, stops the bench.
//!
//! Beside it stands how long an emulated card takes to learn the plan, and which share of the
//! packets its tags decide meanwhile: that is reckoned, by the card's own clock.

mod programming;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use emulated_card::EmulatedCard;
use offload::{
    Capabilities, Card, Effect, Ledger, Order, Plan, Problem, RuleAbilities, RuleKey, plan,
};
use policy::{Action, GroupMode, GroupSide, Policy, PolicyId, PolicyIndex};
use scene::Random;
use serde::Serialize;

use super::classify::{Set, read, sized};
use super::machine::{self, Seat};
use super::measure::{self, Figure, Span, measure, rounds};
use super::rows::undisturbed;
use programming::Programming;

use super::{ArgumentError, BenchError, Report, RulesRefused, publish};

/// Laps at least.
const LEAST_LAPS: usize = 7;
/// Rules at most.
const MOST_RULES: usize = 1_000_000;
/// Rounds of a card until it has what is planned: chains of winners are not longer.
const ROUNDS: usize = 200;
/// Most time that planning 100,000 rules and one change are meant to take.
const GOALS: (f64, f64) = (1000.0, 1000.0);

/// Arguments of `lockgate bench plan`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PlanArguments {
    /// Files of rules of ClassBench's form.
    #[arg(long, value_delimiter = ',', num_args = 1.., required = true)]
    rules_file: Vec<PathBuf>,
    /// Rules to take of each file: its first, or, where it has fewer, copies of all of them with
    /// other network parts.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000])]
    scale_to: Vec<usize>,
    /// Entries of the card.
    #[arg(long, default_value_t = 2000)]
    entries: usize,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 7)]
    laps: usize,
    /// Seconds that the laps may take, about, if as many as asked for allow it.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Seed of the packets, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core to measure on; without it the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A plan that must not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum WrongPlan {
    /// A rule is there without one that must be before it.
    #[error("rule {} is planned without rule {}, which must be before it", .0.slot.0, .1.slot.0)]
    Unsafe(RuleKey, RuleKey),
    /// More entries than the card has.
    #[error("{0} entries are planned for a card of {1}")]
    TooMany(u64, usize),
    /// The card did not take what was planned.
    #[error("{0} of {1} rules are in the card")]
    NotThere(usize, usize),
}

/// One row: a set of rules and a card.
struct Row {
    set: String,
    policies: Vec<Policy>,
    packets: Vec<u64>,
    card: Capabilities,
    entries: usize,
    order: Order,
}

/// Figures measured in a lap.
#[derive(Clone, Copy, Debug)]
struct LapFigures {
    /// To plan for an empty card.
    plan: Span,
    /// To plan again, for a card that has what was planned.
    again: Span,
    /// To take in that a rule came and one went, and say which marks count.
    change: Span,
    placed: usize,
    share: f64,
}

/// A row with its figures.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    set: String,
    rules: usize,
    family: u8,
    order: &'static str,
    entries: usize,
    emulated: bool,
    placed: usize,
    /// Packets that rules in the card decide, as a part of all.
    share: f64,
    /// CPU time, medians of the laps.
    plan_ms: f64,
    again_ms: f64,
    change_us: f64,
    /// Distance of the quartiles of `plan_ms` as a part of the median.
    spread: f64,
    laps: usize,
    /// By the clock of the emulated card.
    programming: Programming,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &PlanArguments) -> Result<(), BenchError> {
    arguments.check().map_err(BenchError::Argument)?;
    let seat = Seat::take(arguments.core)?;
    let seed = measure::seed(arguments.seed)?;
    let mut random = Random::new(seed);
    let mut rows = Vec::new();
    for file in &arguments.rules_file {
        let set = read(file).map_err(|error| BenchError::Rules(RulesRefused(error)))?;
        for rules in &arguments.scale_to {
            let set = sized(&set, *rules);
            let of = |order| Row::new(&set, arguments.entries, order, &mut random);
            rows.extend(Order::ALL.map(of));
        }
    }
    let allowed = Duration::from_secs(arguments.seconds);
    let laps =
        rounds(rows.len(), arguments.laps, allowed, &mut random, |place, _| rows[place].lap())?;
    let programmed = |row: &Row| row.program(&row.plan(&Ledger::new(row.card.clone())).0);
    let programming = rows.iter().map(programmed).collect::<Result<Vec<_>, _>>();
    let programming = programming.map_err(BenchError::Plan)?;
    let laps = laps.iter().zip(programming);
    let figures: Vec<Figures> =
        rows.iter().zip(laps).map(|(row, laps)| Figures::of(row, laps)).collect();
    let (machine, commit) = (seat.machine(), machine::commit());
    let text = format!(
        "bench plan, commit {commit}\n{machine}\nplanner and ledger alone, no packets; the card is \
         emulated\nseed {seed}\n\n{}",
        table(&figures)
    );
    let report = Report { bench: "plan", machine: &machine, commit: &commit, rows: &figures };
    publish(&report, &text, arguments.json.as_deref())
}

impl PlanArguments {
    fn check(&self) -> Result<(), ArgumentError> {
        ArgumentError::check("--laps", &[self.laps], LEAST_LAPS, 1_000_000)?;
        ArgumentError::check("--entries", &[self.entries], 1, 100_000)?;
        ArgumentError::check("--scale-to", &self.scale_to, 1, MOST_RULES)
    }
}

impl Row {
    fn new(set: &Set, entries: usize, order: Order, random: &mut Random) -> Row {
        let mut rule = |policy: &Policy| Policy {
            action: match random.below(4) {
                0 => Action::Deny(GroupMode::Enforce),
                _ => Action::Permit(GroupMode::Enforce),
            },
            only: None,
            group: Some(GroupSide::In),
            ingress: Some([0].into()),
            ..policy.clone()
        };
        let policies: Vec<Policy> = set.policies.iter().map(&mut rule).collect();
        // Few rules decide most packets.
        let mut packets = |_: &Policy| {
            let rank = 1 + random.below(1000) as u64;
            1_000_000 / (rank * rank)
        };
        let packets = policies.iter().map(&mut packets).collect();
        let abilities = RuleAbilities {
            entries: entries as u32,
            programming_ms: 0,
            order,
            ..RuleAbilities::default()
        };
        let card = Capabilities::emulated(abilities);
        Row { set: set.name.clone(), policies, packets, card, entries, order }
    }

    fn plan(&self, ledger: &Ledger) -> (Plan, Span) {
        let rules: Vec<(PolicyIndex, &Policy)> =
            (0..).map(PolicyIndex).zip(&self.policies).collect();
        let standing = ledger.standing();
        let packets = |slot: PolicyIndex| self.packets[slot.0 as usize];
        let problem = Problem {
            rules: &rules,
            ports: &[0],
            unused: &[],
            card: &self.card,
            effect: Effect::Mark,
            own: &[],
            packets: &packets,
            standing: &standing,
            most_moves: usize::MAX,
        };
        measure(|| plan(&problem))
    }

    /// Plans for an empty card, fills it, plans again, and changes a rule.
    fn lap(&self) -> Result<LapFigures, BenchError> {
        let mut ledger = Ledger::new(self.card.clone());
        let (first, plan) = self.plan(&ledger);
        self.check(&first).map_err(BenchError::Plan)?;
        self.fill(&mut ledger, &first).map_err(BenchError::Plan)?;
        let (_, again) = self.plan(&ledger);
        let gone = first.place.first().map(|placing| placing.key);
        let number = self.policies.len() as u32;
        let came = Policy { id: PolicyId(number), priority: u32::MAX, ..self.policies[0].clone() };
        let gone: Vec<RuleKey> = gone.into_iter().collect();
        let (_, change) = measure(|| {
            ledger.changed(&gone, &[(PolicyIndex(number), &came)]);
            ledger.placements()
        });
        let (placed, share) = (first.place.len(), first.share.fraction());
        Ok(LapFigures { plan, again, change, placed, share })
    }

    /// Compares a plan with what must be true of it.
    fn check(&self, plan: &Plan) -> Result<(), WrongPlan> {
        if plan.entries > self.entries as u64 {
            return Err(WrongPlan::TooMany(plan.entries, self.entries));
        }
        let mut there = HashSet::new();
        for placing in &plan.place {
            match placing.guards.iter().find(|guard| !there.contains(*guard)) {
                Some(guard) => return Err(WrongPlan::Unsafe(placing.key, *guard)),
                None => there.insert(placing.key),
            };
        }
        Ok(())
    }

    /// Gives a card what is planned.
    fn fill(&self, ledger: &mut Ledger, plan: &Plan) -> Result<(), WrongPlan> {
        let mut card = EmulatedCard::new(self.card.clone(), 1);
        ledger.adopt(plan).expect("no rule has changed");
        for _ in 0..ROUNDS {
            let orders = ledger.orders();
            if orders.place.is_empty() {
                break;
            }
            orders.give(&mut card);
            card.advance(0);
            let mut events = Vec::new();
            card.poll(&mut events);
            for event in &events {
                ledger.event(event);
            }
            ledger.look(&card);
        }
        let there = ledger.placements().rules().count();
        match there == plan.place.len() {
            true => Ok(()),
            false => Err(WrongPlan::NotThere(there, plan.place.len())),
        }
    }
}

impl Figures {
    fn of(row: &Row, (laps, programming): (&Vec<LapFigures>, Programming)) -> Figures {
        let (kept, _) = undisturbed(laps, |lap| lap.plan);
        let figure = |of: fn(&LapFigures) -> Span| {
            Figure::of(&kept.iter().map(|lap| of(lap).cpu.as_secs_f64()).collect::<Vec<_>>())
        };
        let plan = figure(|lap| lap.plan);
        Figures {
            set: row.set.clone(),
            rules: row.policies.len(),
            family: 4,
            order: row.order.name(),
            entries: row.entries,
            emulated: true,
            placed: laps[0].placed,
            share: laps[0].share,
            plan_ms: plan.median * 1e3,
            again_ms: figure(|lap| lap.again).median * 1e3,
            change_us: figure(|lap| lap.change).median * 1e6,
            spread: plan.spread,
            laps: kept.len(),
            programming,
        }
    }
}

/// The rows as an aligned table with an explanation of the columns.
fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "set",
        "rules",
        "order",
        "entries",
        "placed",
        "share",
        "plan ms",
        "± IQR",
        "again ms",
        "change µs",
        "laps",
        "goals",
    ]);
    for row in figures {
        let reached = row.plan_ms <= GOALS.0 && row.change_us <= GOALS.1;
        table.add_row([
            row.set.clone(),
            row.rules.to_string(),
            row.order.to_owned(),
            row.entries.to_string(),
            row.placed.to_string(),
            format!("{:.3}", row.share),
            format!("{:.1}", row.plan_ms),
            format!("{:.0} %", 100.0 * row.spread),
            format!("{:.1}", row.again_ms),
            format!("{:.0}", row.change_us),
            row.laps.to_string(),
            if reached { "reached" } else { "missed" }.to_owned(),
        ]);
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        if !matches!(place, 0 | 2 | 11) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{table}\n\nplan: for an empty card. again: for a card that has what was planned. change: \
         one rule came and one went; which marks count is known.\nshare: packets that rules in the \
         card decide. goals: {} ms and {} µs at most.\n",
        GOALS.0, GOALS.1
    ) + &programming_table(figures)
}

/// The course of programming, row by row.
fn programming_table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = ["set", "rules", "order", "placed", "rules/s", "first tag ms", "all ms"];
    let told = figures.first().map_or(&[][..], |row| &row.programming.shares);
    let told = told.iter().map(|(ms, _)| format!("after {ms} ms"));
    table.set_header(heads.map(String::from).into_iter().chain(told));
    for row in figures {
        let Programming { rules_per_s, first_ms, all_ms, shares, .. } = &row.programming;
        let cells = [
            row.set.clone(),
            row.rules.to_string(),
            row.order.to_owned(),
            row.placed.to_string(),
            format!("{rules_per_s:.0}"),
            first_ms.to_string(),
            all_ms.to_string(),
        ];
        let shares = shares.iter().map(|(_, share)| format!("{share:.3}"));
        table.add_row(cells.into_iter().chain(shares));
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "\n{table}\n\nby the clock of the emulated card, from an empty card on: rules that it \
         takes a second; until the first tag\ncounts, and all do; share of the packets whose \
         tags count after some time.\n"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: PlanArguments,
    }

    const RULES: &str = "\
@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000
@10.1.0.0/16 10.2.0.0/16 0 : 65535 80 : 80 0x06/0xFF 0x0000/0x0000
@0.0.0.0/0 10.3.0.7/32 0 : 65535 53 : 60 0x11/0xFF 0x0000/0x0000
";

    // BM-5d
    #[test]
    fn a_lap_of_both_orders_plans_fills_and_changes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("acl_3.rules");
        std::fs::write(&file, RULES).unwrap();
        let set = sized(&read(&file).unwrap(), 300);
        for order in Order::ALL {
            let row = Row::new(&set, 50, order, &mut Random::new(1));
            let laps: Vec<LapFigures> = (0..7).map(|_| row.lap().unwrap()).collect();
            assert!(laps[0].placed > 10 && laps[0].share > 0.05, "{laps:?}");
            let programming = row.program(&row.plan(&Ledger::new(row.card.clone())).0).unwrap();
            let Programming { first_ms, all_ms, shares, .. } = &programming;
            // Entries take 5 ms each, one after the other; the tag counts after another look.
            assert!(*first_ms <= 30 && *all_ms >= 5 * laps[0].placed as u64, "{programming:?}");
            assert!(shares.is_sorted_by(|a, b| a.1 <= b.1) && shares[0].1 > 0.0);
            assert!(shares.iter().all(|(_, share)| *share <= laps[0].share + 1e-9));
            let figures = Figures::of(&row, (&laps, programming));
            assert!(figures.plan_ms > 0.0 && figures.emulated && figures.laps > 0);
            assert!(table(&[figures]).contains("share"));
        }
    }

    #[test]
    fn arguments_have_their_bounds() {
        let check = |more: &[&str]| {
            let line = [&["plan", "--rules-file", "x.rules"], more].concat();
            Line::parse_from(line).arguments.check().is_ok()
        };
        assert!(check(&[]) && check(&["--entries", "1"]));
        assert!(!check(&["--laps", "6"]) && !check(&["--entries", "0"]));
        assert!(!check(&["--scale-to", "0"]));
    }
}
