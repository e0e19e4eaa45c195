//! The scenes in which the daemon hangs, and in which it is killed.

use std::time::{Duration, Instant};

use netlab::{LabError, interrupt};

use super::protect::{all, stream};
use super::sets::wait_for_kernel;
use super::stage::{LIMIT, Stage};
use crate::report::Check;

/// Time until the kernel is silent after a daemon hangs.
const LEASE: Duration = Duration::from_secs(2);
/// Time in which a packet that was sent has arrived.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// Time that the daemon is dead.
const DEAD: Duration = Duration::from_millis(700);
/// Time that a stream runs before the daemon hangs, and that silence is watched.
const BEFORE: Duration = Duration::from_millis(200);
const WATCH: Duration = Duration::from_millis(700);

/// Stops the daemon where it is, under a stream: the kernel answers alone until its lease ends.
pub(super) fn hang(stage: &mut Stage) -> Result<(), LabError> {
    wait_for_kernel(stage)?;
    let stream = stream(stage)?;
    interrupt::sleep(BEFORE)?;
    stage.daemon()?.pause();
    let stopped = Instant::now();
    let outcome = interrupt::sleep(LEASE + ON_ITS_WAY + WATCH);
    let delivery = stream.finish();
    stage.daemon()?.resume();
    outcome?;
    let silent_from = stopped + LEASE + ON_ITS_WAY;
    let alone = delivery.arrived_between(stopped, silent_from);
    let late = delivery.arrived_between(silent_from, Instant::now());
    let last = delivery.arrived.last().map(|(_, time)| time.saturating_duration_since(stopped));
    stage.note_time("daemon hangs: until the kernel is silent", last);
    stage.note(Check {
        name: "the daemon hangs: the kernel answers alone for a while",
        ok: alone > 0,
        detail: format!("{alone} packets came through"),
    });
    stage.note(Check {
        name: "the lease of 2 s ends: the kernel is silent",
        ok: late == 0,
        detail: format!(
            "the last packet after {} ms, {late} after the lease",
            last.unwrap_or_default().as_millis()
        ),
    });
    let began = Instant::now();
    let kernel = wait_for_kernel(stage)?;
    stage.note_time("daemon goes on: until the kernel answers again", Some(began.elapsed()));
    stage.note(Check {
        name: "the daemon goes on: the kernel answers again",
        ok: kernel > 0,
        detail: all(kernel),
    });
    Ok(())
}

/// Kills the daemon under a stream, and starts it: its endpoints are there.
pub(super) fn kill(stage: &mut Stage) -> Result<(), LabError> {
    stage.sum_up()?;
    let known = endpoints(stage)?;
    let stream = stream(stage)?;
    interrupt::sleep(DEAD)?;
    stage.kill();
    let dead = Instant::now() + ON_ITS_WAY;
    interrupt::sleep(DEAD)?;
    let before_start = Instant::now();
    let started = stage.launch()?;
    stream.wait_for_arrival(started, LIMIT)?;
    let delivery = stream.finish();
    let slipped = delivery.arrived_between(dead, before_start);
    stage.note(Check {
        name: "the daemon is killed: neither kernel nor workers answer",
        ok: slipped == 0,
        detail: format!(
            "{slipped} packets came through in {} ms",
            (before_start - dead).as_millis()
        ),
    });
    let first = delivery.first_after(started);
    stage.note_time("restart: daemon's start to the first packet", first);
    let kept = endpoints(stage)?;
    stage.note(Check {
        name: "started again it has its endpoints from the store, and traffic flows",
        ok: kept == known && first.is_some(),
        detail: format!(
            "{kept} of {known} endpoints; first packet after {}",
            first.map_or("never".to_owned(), |first| format!("{} ms", first.as_millis()))
        ),
    });
    let began = Instant::now();
    let kernel = wait_for_kernel(stage)?;
    stage.note_time("restart: until the kernel answers", Some(began.elapsed()));
    stage.note(Check {
        name: "the kernel tier is filled anew",
        ok: kernel > 0,
        detail: all(kernel),
    });
    Ok(())
}

/// Endpoints that the daemon knows.
fn endpoints(stage: &Stage) -> Result<usize, LabError> {
    let shown = stage.daemon()?.ask(&["show", "endpoint"])?;
    Ok(shown["endpoints"].as_array().map_or(0, Vec::len))
}
