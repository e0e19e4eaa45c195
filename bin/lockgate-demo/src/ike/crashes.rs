//! A daemon and a charon are killed under traffic, and come back.

use std::time::{Duration, Instant};

use netlab::capture::Scope;
use netlab::charon::KeysInLog;
use netlab::ping::Ping;
use netlab::stream::{Delivery, Stream};
use netlab::{LabError, interrupt};

use super::stage::{A, B, LIMIT, Stage};
use crate::report::Check;

/// Time that something stays dead.
const DEAD: Duration = Duration::from_millis(700);
/// Time after a death within which packets on their way have arrived.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// Plays both.
pub(super) fn kills(stage: &mut Stage) -> Result<(), LabError> {
    daemon(stage)?;
    charon(stage)
}

/// Kills gateway a's daemon. Its SAs are gone with it, and charon makes others.
fn daemon(stage: &mut Stage) -> Result<(), LabError> {
    let before = stage.outbound(A)?;
    let capture = stage.capture(Scope::Heads)?;
    let streams = stage.both_ways()?;
    interrupt::sleep(Duration::from_millis(300))?;
    stage.kill_daemon(A)?;
    let dead = Instant::now() + ON_ITS_WAY;
    interrupt::sleep(DEAD)?;
    let before_start = Instant::now();
    let started = stage.gateways.start(A)?;
    for stream in &streams {
        stream.wait_for_arrival(started, LIMIT)?;
    }
    interrupt::sleep(Duration::from_millis(300))?;
    let deliveries = streams.map(Stream::finish);
    let wire = stage.add_capture(capture)?;
    let slipped: usize =
        deliveries.iter().map(|stream| stream.arrived_between(dead, before_start)).sum();
    let first = deliveries.each_ref().map(|stream| stream.first_after(started));
    let repeated: usize = deliveries.iter().map(Delivery::repeated).sum();
    let after = stage.outbound(A)?;
    let is_new = !after.is_empty() && after.iter().all(|spi| !before.contains(spi));
    let flows = first.iter().all(Option::is_some);
    stage.note(Check {
        name: "a killed daemon stays closed, begins with other keys, and nothing is in clear",
        ok: slipped == 0
            && flows
            && is_new
            && repeated == 0
            && wire.clear == 0
            && wire.repeated == 0,
        detail: format!(
            "{slipped} packets came through it dead, {} in clear, {} numbers twice, {repeated} \
             delivered twice",
            wire.clear, wire.repeated
        ),
    });
    let slowest = first.into_iter().collect::<Option<Vec<_>>>();
    let slowest = slowest.and_then(|times| times.into_iter().max());
    stage.note_time("kill of lockgated: its start to the first packet, both ways", slowest);
    Ok(())
}

/// Kills gateway a's charon. Its SAs stay; one that begins anew replaces them.
fn charon(stage: &mut Stage) -> Result<(), LabError> {
    let before = stage.outbound(A)?;
    let gone = stage.newest(A, "charon_gone")?;
    let capture = stage.capture(Scope::Heads)?;
    let streams = stage.both_ways()?;
    interrupt::sleep(Duration::from_millis(300))?;
    stage.kill_charon(A);
    stage.wait("charon is gone", |stage| Ok(stage.newest(A, "charon_gone")? > gone))?;
    interrupt::sleep(DEAD)?;
    let deliveries = streams.map(Stream::finish);
    let (lost, sent) = stage.note_lost(&deliveries);
    stage.note(Check {
        name: "without charon its SAs carry on",
        ok: lost == 0 && sent > 0 && stage.outbound(A)? == before,
        detail: format!("{lost} of {sent} packets lost while charon was killed and gone"),
    });
    let streams = stage.both_ways()?;
    let secret = stage.proof();
    let started = Instant::now();
    stage.start_charon(A, &secret, KeysInLog::No)?;
    stage.wait("the old SA is replaced", |stage| {
        let after = stage.outbound(A)?;
        Ok(after.len() == 1 && after != before)
    })?;
    let replaced = started.elapsed();
    interrupt::sleep(Duration::from_millis(300))?;
    let deliveries = streams.map(Stream::finish);
    let wire = stage.add_capture(capture)?;
    let lost: usize = deliveries.iter().map(Delivery::lost).sum();
    let sent: usize = deliveries.iter().map(|stream| stream.sent.len()).sum();
    let to = stage.gateways.site(B).host_v4();
    let answers = Ping::new(&to, 5).run_until_answered(&stage.gateways.site(A).host)?;
    stage.note(Check {
        name: "a charon that begins anew replaces them, and nothing is in clear",
        ok: answers.all_answered() && wire.clear == 0 && wire.repeated == 0 && lost < sent,
        detail: format!(
            "{} afterwards; {} in clear, {} numbers twice; {lost} of {sent} packets lost, since \
             the other gateway drops the SAs of the charon that it lost",
            answers.summary(),
            wire.clear,
            wire.repeated
        ),
    });
    stage.note_time("kill of charon: its start until its SAs are replaced", Some(replaced));
    Ok(())
}
