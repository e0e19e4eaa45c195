//! `lockgate bench churn`: changes of policies, and of SAs, while a worker processes packets.
//!
//! One core runs the worker, which processes as many packets as it can. The other runs the control
//! thread, which adds and removes a policy at the given rate. `Spd::changed` makes each database,
//! which is published as the daemon does it; after a number of changes they are compacted into a
//! new base in the background. Each change is in the traffic's own domain, so each makes all
//! entries of the cache stale. Rates take turns of half a second, so that disturbances hit all
//! rates alike.
//!
//! For each rate the bench reports: packets a second, and the share of the rate without changes;
//! the longest time that the worker was kept from its ports, as CPU time of a loop; lost packets,
//! which must be none; and the time from the beginning of a change until the worker has it. At the
//! end it compares the time of an add with a small and a large flow cache (`adds`), and puts SAs
//! among many, which the packets use (`installs`).

mod adds;
mod installs;
mod rows;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::{SaSet, Snapshot, SnapshotError};
use ipsec::{InboundSa, OutboundSa};
use policy::{Action, Policy, PolicyId, PolicyIndex, Spd, Tables};
use wire::Family;

use super::lap_error::LapError;
use super::machine::{self, Seat};
use super::measure;
use super::spd::fillers::{self, Matching, Rules};
use super::spd::traffic;
use super::{ArgumentError, BenchError, LapRefused, Report, publish};
use scene::{Case, Keys, LAN, MAX_SAS, SceneError};
use worker::{Mailbox, Slice};

/// Duration of a turn of a rate.
const TURN: Duration = Duration::from_millis(500);
/// Number of changes on one base after which a new base is made.
const WORTH_REBUILDING: usize = 64;
/// Slots for policies to come.
const ROOM: usize = 1 << 18;
/// Entries of the flow cache.
const CACHE_ENTRIES: usize = 1 << 22;
/// Time within which a change must reach the worker, or the bench gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `lockgate bench churn`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChurnArguments {
    /// Changes a second. The rate kept is relative to 0 changes.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 10, 100, 1000])]
    changes: Vec<u32>,
    /// Policies.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 100_000])]
    policies: Vec<usize>,
    /// SAs put a second, each in the place of another. The rate kept is relative to 0 installs.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1000])]
    installs: Vec<u32>,
    /// SAs of each direction among which SAs are put, at most as many as flows.
    #[arg(long, default_value_t = MAX_SAS)]
    sas: usize,
    /// Flows.
    #[arg(long, default_value_t = 20_000)]
    flows: usize,
    /// Seconds for each number of policies, and for the SAs; every rate has its share.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core of the worker; without it the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the curves into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &ChurnArguments) -> Result<(), BenchError> {
    let check = |name, values: &[usize], least| {
        ArgumentError::check(name, values, least, usize::MAX).map_err(BenchError::Argument)
    };
    check("--flows", &[arguments.flows], 64)?;
    check("--policies", &arguments.policies, 1)?;
    let most_sas = MAX_SAS.min(arguments.flows);
    ArgumentError::check("--sas", &[arguments.sas], 1, most_sas).map_err(BenchError::Argument)?;
    let seat = Seat::take(arguments.core)?;
    let [worker, control, ..] = seat.cores[..] else {
        return Err(BenchError::Cores { found: seat.cores.len() });
    };
    let seed = measure::seed(arguments.seed)?;
    let mut figures = Vec::new();
    for &policies in &arguments.policies {
        let refused = |error| {
            let case = format!("{policies} policies");
            BenchError::Lap { case, error: LapRefused(error) }
        };
        let scene = Scene::new(policies).map_err(refused)?;
        let rates = (&arguments.changes[..], CACHE_ENTRIES);
        let turns = turns(arguments, scene, rates, [worker, control], seed)?;
        figures.extend(rows::figures(policies, arguments.flows, turns));
    }
    let adds = adds::measure(arguments, [worker, control], seed)?;
    let installs = installs::measure(arguments, [worker, control], seed)?;
    let (machine, commit) = (seat.machine(), machine::commit());
    let heading = format!(
        "bench churn, commit {commit}\n{machine}\nworker on core {worker}, control on core \
         {control}; in memory, null ESP tunnel outbound, {} flows, cache on\nseed {seed}",
        arguments.flows
    );
    let mut text =
        vec![heading, rows::table(&figures), adds::table(&adds), installs::table(&installs)];
    if let Some(directory) = &arguments.plot {
        for chart in rows::charts(&figures) {
            let drawn = chart.draw(directory)?;
            text.extend(drawn.map(|file| format!("drawn: {}", file.display())));
        }
    }
    let rows = figures.into_iter().map(AnyRow::Rate);
    let rows = rows.chain(adds.into_iter().map(AnyRow::Adds));
    let rows: Vec<AnyRow> = rows.chain(installs.into_iter().map(AnyRow::Installs)).collect();
    let report = Report { bench: "churn", machine: &machine, commit: &commit, rows: &rows };
    publish(&report, &text.join("\n\n"), arguments.json.as_deref())
}

/// A row in the JSON.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum AnyRow {
    Rate(rows::Figures),
    Adds(adds::Adds),
    Installs(installs::Installs),
}

/// Measurements at one rate.
struct Turns {
    changes_per_s: u32,
    /// Slices that the worker filled.
    slices: Vec<Slice>,
    /// Time from the beginning of each change until the worker had it, ms.
    effect_ms: Vec<f64>,
    /// The same of changes that add a policy.
    adds_ms: Vec<f64>,
    /// Changes that had to wait until a new base was there.
    waited: usize,
}

/// A gateway that changes while a worker walks by it.
trait Changing {
    /// Its traffic.
    fn case(&self) -> Case;

    /// The gateway as it is now.
    fn snapshot(&mut self) -> Result<Arc<Snapshot>, BenchError>;

    /// Makes a change, and returns when the worker has it.
    fn change(&mut self, mailbox: &Mailbox, turn: &mut Turns) -> Result<(), BenchError>;

    /// Does what is due between two changes.
    fn settle(&mut self, mailbox: &Mailbox) -> Result<(), BenchError>;
}

/// All turns of these rates of changes, with a flow cache of this size.
fn turns(
    arguments: &ChurnArguments,
    mut scene: impl Changing,
    (rates, cache_entries): (&[u32], usize),
    [worker, control]: [usize; 2],
    seed: u64,
) -> Result<Vec<Turns>, BenchError> {
    let none = |rate: &u32| Turns {
        changes_per_s: *rate,
        slices: Vec::new(),
        effect_ms: Vec::new(),
        adds_ms: Vec::new(),
        waited: 0,
    };
    let mut turns: Vec<Turns> = rates.iter().map(none).collect();
    let allowed = Duration::from_secs(arguments.seconds);
    let first = scene.snapshot()?;
    let mailbox = Mailbox::default();
    thread::scope(|scope| {
        let (mailbox, case, flows) = (&mailbox, scene.case(), arguments.flows);
        let walking = scope.spawn(move || {
            machine::pin(Some(worker)).map_err(LapError::Pin)?;
            worker::walk(mailbox, &case, first, (flows, cache_entries), seed)
        });
        let pinned = machine::pin(Some(control)).map_err(BenchError::system("binding to a core"));
        let changed = pinned.and_then(|_| {
            mailbox.wait_ready();
            // One turn that only warms up.
            half_second(&mut scene, mailbox, 0, &mut none(&0))?;
            let begin = Instant::now();
            while turns.iter().any(|turn| turn.slices.is_empty()) || begin.elapsed() < allowed {
                for turn in &mut turns {
                    netlab::interrupt::check()?;
                    half_second(&mut scene, mailbox, turn.changes_per_s, turn)?;
                }
            }
            Ok(())
        });
        mailbox.end();
        let walked = walking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        walked.map_err(|error| BenchError::Lap {
            case: "the worker".into(),
            error: LapRefused(error),
        })?;
        changed
    })?;
    Ok(turns)
}

/// A thread that makes tables on a base of its own; `None`: they could not be made.
type Rebuilding = thread::JoinHandle<Option<Tables>>;

/// The gateway and its policies, as the control thread has them.
struct Scene {
    case: Case,
    keys: [Keys; 1],
    /// SAs shared by all snapshots.
    outbound: Vec<Arc<OutboundSa>>,
    inbound: Vec<Arc<InboundSa>>,
    spd: Arc<Spd>,
    /// The last snapshot.
    last: Option<Arc<Snapshot>>,
    /// Slot of the policy that came and is to go.
    came: Option<PolicyIndex>,
    /// Number of the next policy.
    next_id: u32,
    sets: Vec<SaSet>,
    /// A base that is being made, and its source.
    rebuilding: Option<(Rebuilding, Arc<Spd>)>,
}

impl Scene {
    fn new(count: usize) -> Result<Scene, LapError> {
        let case = traffic(Family::V4);
        let keys = [Keys::fresh(case.suite)?];
        let list = fillers::policies(&case, count, Rules::Range, Matching::Last);
        let spd = Arc::new(Spd::with_room(list, count + ROOM)?);
        let parts = case.parts(&keys, spd.clone())?;
        let (outbound, inbound, sets) = (parts.outbound, parts.inbound, parts.sets);
        let next_id = count as u32 + 1;
        let (last, came, rebuilding) = (None, None, None);
        Ok(Scene { case, keys, outbound, inbound, spd, last, came, next_id, sets, rebuilding })
    }

    /// Adds a policy, or removes the one that was added last. `false`: a new base is needed first.
    fn add_or_remove(&mut self) -> bool {
        let (removed, added) = match self.came {
            Some(index) => (vec![index], vec![]),
            None => (vec![], vec![self.other_policy()]),
        };
        let Ok(next) = self.spd.changed(&removed, added) else {
            self.rebuild();
            return false;
        };
        self.came = match self.came {
            Some(_) => None,
            None => Some(PolicyIndex(next.slots() as u32 - 1)),
        };
        self.next_id += 1;
        self.spd = next.into();
        true
    }

    /// Makes a policy that matches no packet and precedes all others.
    fn other_policy(&self) -> Policy {
        let mut policy = self.case.peers_policy(PolicyId(self.next_id), u32::MAX);
        policy.action = Action::Bypass;
        policy.name = format!("change-{}", self.next_id);
        // From lan to lan: nothing that is walked.
        policy.selector.remote = vec![self.case.network(LAN)];
        policy
    }

    /// Starts building a new base in the background, if it is worth it and none is being built.
    fn rebuild(&mut self) {
        if self.spd.changes() >= WORTH_REBUILDING && self.rebuilding.is_none() {
            let (spd, sets, earlier) = (self.spd.clone(), self.sets.clone(), self.spd.clone());
            let job = thread::spawn(move || {
                let sets = sets.iter().map(|set| set.id).collect();
                Tables::new(spd.rebuilt().ok()?.into(), &sets, None).ok()
            });
            self.rebuilding = Some((job, earlier));
        }
    }

    /// Replaces the base by a new one that is ready.
    fn adopt_rebuilt(&mut self, mailbox: &Mailbox) -> Result<(), BenchError> {
        let Some((job, earlier)) = self.rebuilding.take_if(|(job, _)| job.is_finished()) else {
            return Ok(());
        };
        let rebuilt = job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let Some(rebuilt) = rebuilt else { return Ok(()) };
        if let Ok(next) = self.spd.on(rebuilt.spd(), &earlier) {
            self.spd = next.into();
            self.last = self.last.take().map(|last| Arc::new(last.upon(rebuilt)));
            hand_over(mailbox, self.snapshot()?)?;
        }
        Ok(())
    }
}

impl Changing for Scene {
    fn case(&self) -> Case {
        self.case
    }

    fn snapshot(&mut self) -> Result<Arc<Snapshot>, BenchError> {
        let refused = |error: LapError| BenchError::Lap {
            case: "a snapshot".into(),
            error: LapRefused(error),
        };
        let parts = self.case.parts(&self.keys, self.spd.clone());
        let mut parts = parts.map_err(|error: SceneError| refused(error.into()))?;
        (parts.outbound, parts.inbound) = (self.outbound.clone(), self.inbound.clone());
        let sources = parts.try_into().map_err(|error: SnapshotError| refused(error.into()))?;
        let made = Snapshot::after(sources, self.last.as_deref());
        let made = Arc::new(made.map_err(|error: SnapshotError| refused(error.into()))?);
        self.last = Some(made.clone());
        Ok(made)
    }

    fn change(&mut self, mailbox: &Mailbox, turn: &mut Turns) -> Result<(), BenchError> {
        let begin = Instant::now();
        while !self.add_or_remove() {
            turn.waited += 1;
            self.adopt_rebuilt(mailbox)?;
            thread::sleep(Duration::from_micros(200));
            if begin.elapsed() > PATIENCE {
                return Err(BenchError::Worker);
            }
        }
        hand_over(mailbox, self.snapshot()?)?;
        let effect_ms = begin.elapsed().as_secs_f64() * 1e3;
        turn.effect_ms.push(effect_ms);
        if self.came.is_some() {
            turn.adds_ms.push(effect_ms);
        }
        self.rebuild();
        self.adopt_rebuilt(mailbox)
    }

    fn settle(&mut self, mailbox: &Mailbox) -> Result<(), BenchError> {
        self.adopt_rebuilt(mailbox)
    }
}

/// Makes changes at this rate for half a second.
fn half_second(
    scene: &mut impl Changing,
    mailbox: &Mailbox,
    rate: u32,
    turn: &mut Turns,
) -> Result<(), BenchError> {
    mailbox.begin_slice();
    let begin = Instant::now();
    let mut made = 0;
    while begin.elapsed() < TURN {
        if rate == 0 || begin.elapsed().as_secs_f64() * f64::from(rate) < f64::from(made) {
            scene.settle(mailbox)?;
            thread::sleep(Duration::from_micros(50));
            continue;
        }
        made += 1;
        scene.change(mailbox, turn)?;
    }
    turn.slices.push(mailbox.end_slice().ok_or(BenchError::Worker)?);
    Ok(())
}

/// Gives the worker a snapshot and returns when the worker has it.
fn hand_over(mailbox: &Mailbox, snapshot: Arc<Snapshot>) -> Result<(), BenchError> {
    mailbox.put(snapshot);
    let begin = Instant::now();
    while !mailbox.is_empty() {
        if begin.elapsed() > PATIENCE || mailbox.is_left.load(Ordering::Acquire) {
            return Err(BenchError::Worker);
        }
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // FC-35, FC-36: small, with every check on.
    #[test]
    fn policies_change_and_no_packet_is_lost() {
        let cores = machine::cores().unwrap();
        let [worker, control, ..] = cores[..] else {
            eprintln!("SKIPPED, two cores are needed");
            return;
        };
        let arguments = ChurnArguments {
            changes: vec![0, 500],
            policies: vec![50],
            installs: vec![0, 500],
            sas: 16,
            flows: 64,
            seconds: 0,
            seed: Some(1),
            core: None,
            json: None,
            plot: None,
        };
        let scene = Scene::new(50).unwrap();
        let rates = (&arguments.changes[..], 1 << 12);
        let mut turns = turns(&arguments, scene, rates, [worker, control], 1).unwrap();
        assert!(turns[0].effect_ms.is_empty() && !turns[1].effect_ms.is_empty());
        // FC-20: every other change is an add.
        assert_eq!(turns[1].adds_ms.len(), turns[1].effect_ms.len().div_ceil(2));
        for slice in turns.iter_mut().flat_map(|turn| &mut turn.slices) {
            assert!(slice.packets > 0 && slice.lost == 0 && !slice.loops_ns.is_empty());
        }
        let figures = rows::figures(50, 64, turns);
        assert_eq!(figures[0].rate_kept, 1.0);
        let json = serde_json::to_value(&figures[1]).unwrap();
        for name in ["changes_per_s", "mpps", "rate_kept", "stall_p9999_us", "lost", "effect_ms"] {
            assert!(json[name].is_number(), "{name}");
        }
        let rows = installs::measure(&arguments, [worker, control], 1).unwrap();
        let [quiet, busy] = [&rows[0], &rows[1]].map(|row| serde_json::to_value(row).unwrap());
        assert_eq!((&quiet["installs_made"], &quiet["rate_kept"]), (&0.into(), &1.0.into()));
        assert!(busy["installs_made"].as_u64() > Some(0) && busy["lost"] == 0, "{busy}");
        assert!(busy["effect_ms"].as_f64() > Some(0.0), "{busy}");
    }

    #[test]
    fn what_comes_goes_again_and_each_change_is_a_generation() {
        let mut scene = Scene::new(10).unwrap();
        let domain = policy::common(policy::Book::SpdOut, Family::V4);
        let first = scene.spd.generation(domain);
        assert!(scene.add_or_remove() && scene.spd.len() == 11);
        assert!(scene.add_or_remove() && scene.spd.len() == 10);
        assert_eq!(scene.spd.generation(domain).0, first.0 + 2, "FC-17");
    }
}
