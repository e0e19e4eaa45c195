//! A gateway is killed and comes back, and what was captured before is sent again.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use netlab::capture::{Capture, Scope, esp_frames_to, marked};
use netlab::inject::inject;
use netlab::ping::Ping;
use netlab::sites::HOST_INTERFACE;
use netlab::stream::Stream;
use netlab::{LabError, interrupt};

use super::scenes::{both_ways, directions, wait_for_both};
use super::stage::{A, B, Stage};

/// Frames that are sent again.
const REPLAYED: usize = 1000;
/// Target for the time from the start of a daemon until packets are delivered again: a figure that
/// is shown, not a check.
const RESTART_TARGET: Duration = Duration::from_secs(1);
/// Time after the daemon's death within which packets on their way have arrived.
const ON_ITS_WAY: Duration = Duration::from_millis(50);
/// Time that the gateway stays dead.
const DEAD: Duration = Duration::from_millis(700);

/// Kills gateway b under traffic, checks that it stays closed, and starts it again. Returns
/// complete ESP frames to it that were captured before.
pub(super) fn kill_and_restart(stage: &mut Stage) -> Result<Vec<Vec<u8>>, LabError> {
    let captured = frames_to_b(stage)?;
    // What it has counted dies with it.
    let counted = stage.gateways.daemon(B)?.counters()?;
    stage.counted.add(&counted);
    stage.counted.ledger_imbalance = 0;
    let capture = stage.gateways.capture(Scope::Heads)?;
    let streams = both_ways(stage)?;
    interrupt::sleep(Duration::from_millis(500))?;
    stage.gateways.kill(B);
    let dead = Instant::now() + ON_ITS_WAY;
    interrupt::sleep(DEAD)?;
    let before_start = Instant::now();
    let started = stage.gateways.start(B)?;
    wait_for_both(&streams, started)?;
    interrupt::sleep(Duration::from_millis(500))?;
    let deliveries = streams.map(Stream::finish);
    stage.add_capture(capture)?;
    let slipped: usize =
        deliveries.iter().map(|delivery| delivery.arrived_between(dead, before_start)).sum();
    stage.check(
        "a killed gateway stays closed",
        slipped == 0,
        format!("{slipped} packets came through in {} ms", (before_start - dead).as_millis()),
    );
    let first = deliveries.each_ref().map(|delivery| delivery.first_after(started));
    stage.check("started again it forwards", first.iter().all(Option::is_some), directions(first));
    stage.note_time("restart: daemon's start to the first packet", first, RESTART_TARGET);
    let repeated: usize = deliveries.iter().map(|delivery| delivery.repeated()).sum();
    stage.check(
        "no packet is delivered twice over the restart",
        repeated == 0,
        format!("{repeated} came twice"),
    );
    Ok(captured)
}

/// Captures whole frames of a stream on the wire, and keeps those with ESP to gateway b.
fn frames_to_b(stage: &mut Stage) -> Result<Vec<Vec<u8>>, LabError> {
    let capture = stage.gateways.capture(Scope::Whole)?;
    let streams = both_ways(stage)?;
    // Twice as many as are needed: the capture goes on for more than a second while it ends.
    interrupt::sleep(Duration::from_millis(900))?;
    let file = capture.stop()?;
    drop(streams);
    stage.add_file(&file)?;
    esp_frames_to(&file, Ipv4Addr::new(192, 0, 2, 2))
}

/// Sends captured frames to gateway b once more: none may be delivered, each must be counted.
pub(super) fn replay(stage: &mut Stage, captured: &[Vec<u8>]) -> Result<(), LabError> {
    let frames = &captured[captured.len().saturating_sub(REPLAYED)..];
    let dropped = |stage: &Stage| -> Result<u64, LabError> {
        let counters = stage.gateways.daemon(B)?.counters()?;
        Ok(counters.dropped("replayed") + counters.dropped("replay_too_old"))
    };
    let before = dropped(stage)?;
    let directory = stage.gateways.directory();
    let site = stage.gateways.site(B);
    let at_host = Capture::start(&site.host, HOST_INTERFACE, Scope::Whole, (directory, "host-b"))?;
    // By the bridge's port: the capture of the bridge does not see these again.
    let sent = inject(&stage.gateways.sites.wire, &site.wire_port(), frames)?;
    let delivered = marked(&at_host.stop()?)?;
    let refused = dropped(stage)? - before;
    stage.check(
        "1000 captured ESP packets sent again are refused",
        sent == REPLAYED && refused == REPLAYED as u64 && delivered == 0,
        format!("{sent} sent, {refused} refused as replays, {delivered} delivered"),
    );
    let to = stage.gateways.site(B).host_v4();
    let answers = Ping::new(&to, 10).run_until_answered(&stage.gateways.site(A).host)?;
    stage.check("after that traffic still flows", answers.all_answered(), answers.summary());
    Ok(())
}
