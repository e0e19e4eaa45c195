//! The end of an SA: at its hard limit nothing more leaves, until both gateways have new keys.

use std::time::{Duration, Instant};

use netlab::capture::Scope;
use netlab::configuration::make_keys;
use netlab::ping::Ping;
use netlab::stream::Stream;
use netlab::{LabError, Programs, interrupt};
use serde_json::Value;

use super::scenes::STEP_LIMIT;
use super::stage::{A, B, Stage};

/// Packets that may leave.
const MOST: u64 = 500;
/// Time between two packets, and time that they are sent for: twice as many as may leave.
const STEP: Duration = Duration::from_millis(1);
const SENT_FOR: Duration = Duration::from_millis(1200);

/// Gives gateway a's SA a hard limit, sends more, and gives both gateways new keys.
pub(super) fn hard_limit(stage: &mut Stage) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::Heads)?;
    let peer = stage.gateways.file(A).peers[0].name.clone();
    let used = number(&outbound(stage)?["sequence"]);
    let most = used + MOST;
    let mut limited = stage.gateways.file(A).clone();
    limited.extra += &format!("\n[peer.{peer}.lifetime]\nhard_packets = {most}\n");
    let limited = limited.write_as(&limited.beside("limited.toml"))?;
    stage.gateways.daemon(A)?.apply(&limited)?;
    let dropped = dropped_so_far(stage)?;
    let stream = stage.gateways.stream(A, B, STEP)?;
    interrupt::sleep(SENT_FOR)?;
    let delivery = Stream::finish(stream);
    let (sent, lost) = (delivery.sent.len() as u64, delivery.lost() as u64);
    let dropped = dropped_so_far(stage)? - dropped;
    let sa = outbound(stage)?;
    let left = number(&sa["sequence"]) - used;
    stage.check(
        "at the hard limit of an SA exactly as many packets have left",
        left == MOST && sent - lost == MOST && dropped == sent - MOST && sa["state"] == "ended",
        format!(
            "limit {MOST}: of {sent} sent {left} left, {} came, {dropped} dropped",
            sent - lost
        ),
    );
    let told = expiries(stage)?;
    stage.check("one event says so", told == 1, format!("{told} events sa_hard_expire"));
    new_keys(stage)?;
    let to = stage.gateways.site(B).host_v4();
    let answers = Ping::new(&to, 5).run_until_answered(&stage.gateways.site(A).host)?;
    stage.check("with new keys traffic flows again", answers.all_answered(), answers.summary());
    stage.add_capture(capture)
}

/// Replaces the keys of both gateways.
fn new_keys(stage: &Stage) -> Result<(), LabError> {
    let gateways = &stage.gateways;
    let names = [A, B].map(|end| gateways.file(end).name());
    make_keys(&Programs::find()?, &gateways.directory().join("keys"), names[0], names[1])?;
    for end in [A, B] {
        gateways.daemon(end)?.apply(&gateways.file(end).path())?;
    }
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The outbound SA of gateway a.
fn outbound(stage: &Stage) -> Result<Value, LabError> {
    let shown = stage.gateways.daemon(A)?.ask(&["show", "sa"])?;
    let sas = shown["sas"].as_array().cloned().unwrap_or_default();
    let found = sas.into_iter().find(|sa| sa["direction"] == "outbound");
    Ok(found.unwrap_or_default())
}

fn dropped_so_far(stage: &Stage) -> Result<u64, LabError> {
    Ok(stage.gateways.daemon(A)?.settled(Duration::from_secs(3))?.dropped("sa_hard_limit"))
}

/// Events about the end of gateway a's outbound SA: waits for the first, and a little longer.
fn expiries(stage: &Stage) -> Result<usize, LabError> {
    let count = || -> Result<usize, LabError> {
        let words = ["events", "--kind", "sa_hard_expire", "--json"];
        let printed = stage.gateways.daemon(A)?.run(&words)?;
        let events = printed.stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(events.filter(|event: &Value| event["details"]["direction"] == "outbound").count())
    };
    let end = Instant::now() + STEP_LIMIT;
    while count()? == 0 && Instant::now() < end {
        interrupt::sleep(Duration::from_millis(50))?;
    }
    interrupt::sleep(Duration::from_millis(300))?;
    count()
}
