//! SAs that are put among many while a worker seals with them: each takes the place of another,
//! with a key, an SPI and numbers of its own, as a change of keys does it. What a user's program
//! adds, the API and the record of used keys, is not in it.

use std::sync::Arc;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use dataplane::Snapshot;
use ipsec::{InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Suite};
use scene::{Case, Direction, Keys, Random, SceneError, spi};
use serde::Serialize;
use wire::Family;

use super::super::lap_error::LapError;
use super::super::measure::quantile;
use super::super::{BenchError, LapRefused};
use super::worker::Mailbox;
use super::{CACHE_ENTRIES, Changing, ChurnArguments, Turns, hand_over, rows, turns};

/// Least share of the rate without installs.
const LEAST_KEPT: f64 = 0.97;
/// Most time until an SA is used, ms.
const MOST_EFFECT_MS: f64 = 1.0;

/// One row: a rate of installs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Installs {
    /// SAs of each direction.
    sas: usize,
    flows: usize,
    /// Installs asked for.
    installs_per_s: u32,
    installs_made: usize,
    /// Rate by the worker's CPU time, median of the turns.
    mpps: f64,
    spread: f64,
    /// `mpps` by that without installs; 0: that was not measured.
    rate_kept: f64,
    packets: u64,
    lost: u64,
    /// Time from the beginning of an install until the worker has the SA; 0 without installs.
    effect_ms: f64,
    effect_p99_ms: f64,
    effect_max_ms: f64,
}

/// A gateway with many SAs, the last snapshot of it, and how many were put.
struct Hub {
    case: Case,
    last: Arc<Snapshot>,
    put: usize,
    random: Random,
}

impl Hub {
    fn new(arguments: &ChurnArguments, seed: u64) -> Result<Hub, LapError> {
        let (flows, sas, suite) = (arguments.flows, arguments.sas, Suite::Aes128Gcm);
        let (direction, family, workers) = (Direction::Out, Family::V4, 1);
        let case = Case { direction, suite, family, size: 64, flows, backend: None, workers, sas };
        let keys = (0..sas).map(|_| Keys::fresh(suite));
        let last = case.gateway(&keys.collect::<Result<Vec<_>, _>>()?)?.into();
        Ok(Hub { case, last, put: 0, random: Random::new(seed) })
    }

    /// Puts an SA in the place of another, of both directions in turn.
    fn put(&mut self) -> Result<(), LapError> {
        let (keys, numbers) = (Keys::fresh(self.case.suite)?, SequenceNumbers::Short);
        let id = SaId(self.random.below(self.case.sas) as u32);
        // Behind those that the gateway began with.
        let spi = spi(self.case.sas + self.put);
        let mut sources = self.last.sources().clone();
        if self.put.is_multiple_of(2) {
            let old = self.last.outbound_sa(id);
            let (set, way) = (old.set, old.encapsulation);
            let counter = Arc::new(SequenceCounter::new(numbers));
            let sa = OutboundSa::new(id, spi, set, &keys.outbound, way, counter);
            sources.sad.put_outbound(Arc::new(sa.map_err(SceneError::from)?));
        } else {
            let old = self.last.inbound_sa(id);
            let (set, way) = (old.set, old.encapsulation);
            let window = ReplayWindow::new(ReplayWindow::LARGEST, numbers).expect("offered");
            let sa = InboundSa::new(id, spi, set, &keys.inbound, way, window.into());
            sources.sad.remove_inbound(id);
            let put = sources.sad.put_inbound(Arc::new(sa.map_err(SceneError::from)?));
            put.map_err(SceneError::from)?;
        }
        self.put += 1;
        let made = Snapshot::after(sources, Some(&self.last)).map_err(SceneError::from)?;
        self.last = Arc::new(made);
        Ok(())
    }
}

impl Changing for Hub {
    fn case(&self) -> Case {
        self.case
    }

    fn snapshot(&mut self) -> Result<Arc<Snapshot>, BenchError> {
        Ok(self.last.clone())
    }

    fn change(&mut self, mailbox: &Mailbox, turn: &mut Turns) -> Result<(), BenchError> {
        let begin = Instant::now();
        self.put().map_err(|error| refused(self.case.sas, error))?;
        hand_over(mailbox, self.last.clone())?;
        turn.effect_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    fn settle(&mut self, _: &Mailbox) -> Result<(), BenchError> {
        Ok(())
    }
}

fn refused(sas: usize, error: LapError) -> BenchError {
    BenchError::Lap { case: format!("{sas} SAs"), error: LapRefused(error) }
}

/// Measures all rates, in turn.
///
/// # Errors
/// [`BenchError`].
pub(super) fn measure(
    arguments: &ChurnArguments,
    cores: [usize; 2],
    seed: u64,
) -> Result<Vec<Installs>, BenchError> {
    let (sas, flows) = (arguments.sas, arguments.flows);
    let hub = Hub::new(arguments, seed).map_err(|error| refused(sas, error))?;
    let rates = (&arguments.installs[..], CACHE_ENTRIES);
    let turns = turns(arguments, hub, rates, cores, seed)?;
    let p99 = |turn: &Turns| {
        let mut effects = turn.effect_ms.clone();
        effects.sort_by(f64::total_cmp);
        if effects.is_empty() { 0.0 } else { quantile(&effects, 0.99) }
    };
    let p99s: Vec<f64> = turns.iter().map(p99).collect();
    let figures = rows::figures(sas, flows, turns).into_iter().zip(p99s);
    let rows = figures.map(|(of, effect_p99_ms)| Installs {
        sas,
        flows,
        installs_per_s: of.changes_per_s,
        installs_made: of.changes_made,
        mpps: of.mpps,
        spread: of.spread,
        rate_kept: of.rate_kept,
        packets: of.packets,
        lost: of.lost,
        effect_ms: of.effect_ms,
        effect_p99_ms,
        effect_max_ms: of.effect_max_ms,
    });
    Ok(rows.collect())
}

/// Formats the rows beside the goals.
pub(super) fn table(installs: &[Installs]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "SAs",
        "installs/s",
        "made",
        "Mpps",
        "± IQR",
        "kept",
        "lost",
        "effect ms",
        "p99",
        "max",
    ]);
    for row in installs {
        table.add_row([
            row.sas.to_string(),
            row.installs_per_s.to_string(),
            row.installs_made.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1} %", row.rate_kept * 100.0),
            row.lost.to_string(),
            format!("{:.3}", row.effect_ms),
            format!("{:.3}", row.effect_p99_ms),
            format!("{:.3}", row.effect_max_ms),
        ]);
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let busiest = installs.iter().max_by_key(|row| row.installs_per_s);
    let goals = busiest.filter(|row| row.installs_per_s > 0).map_or(String::new(), |row| {
        let word = |is_reached| if is_reached { "reached" } else { "missed" };
        let (found, goal) = (row.rate_kept * 100.0, LEAST_KEPT * 100.0);
        let kept = match row.rate_kept {
            0.0 => "kept: not measured, ask for 0 installs/s too".to_owned(),
            kept => format!("kept {found:.1} %, goal {goal:.0} %: {}", word(kept >= LEAST_KEPT)),
        };
        format!(
            "\nat {} installs/s: {kept}; effect p99 {:.3} ms, goal {MOST_EFFECT_MS:.0} ms: {}",
            row.installs_per_s,
            row.effect_p99_ms,
            word(row.effect_p99_ms <= MOST_EFFECT_MS),
        )
    });
    format!(
        "SAs that are put among many, outbound and inbound in turn, AES-128-GCM, packets of 64 \
         bytes sealed by all of them\n{table}\n\
         kept: of the rate without installs. effect: from the beginning of an install until the \
         worker has the SA.{goals}"
    )
}
