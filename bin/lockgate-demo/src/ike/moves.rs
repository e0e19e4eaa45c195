//! A gateway goes to another address (MOBIKE, RFC 4555), and its SAs go along.

use std::time::{Duration, Instant};

use netlab::capture::{Scope, Tally};
use netlab::ping::Ping;
use netlab::sites::WAN;
use netlab::stream::{Delivery, Stream};
use netlab::{Gateways, LabError, interrupt};
use serde_json::Value;

use super::elsewhere::{Elsewhere, Other};
use super::stage::{A, B, LIMIT, Stage, events};
use crate::report::Check;

/// The address that gateway b goes to.
const SECOND: &str = "192.0.2.12";
/// Time between two packets of a stream.
const STEP: Duration = Duration::from_millis(1);
/// Time that streams run before, and behind the first packets after the move.
const AROUND: Duration = Duration::from_millis(500);

/// Takes gateway b's address away under streams. It has a second one.
pub(super) fn mobike(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("another laboratory: gateway b loses its address, and has a second one");
    let more = |number| match number {
        A => format!("moves_to = [\"{SECOND}\"]\n"),
        _ => format!("local_moves_to = [\"{SECOND}\"]\n"),
    };
    let mut place = Elsewhere::build(more, |end| end.connection = "mobike = yes")?;
    // The second is of another prefix, so that it stays when the first goes. Without the address of
    // IPv6, which charon could choose as well, there is one way only.
    let gateway = &place.gateways.site(B).gateway;
    gateway.ip(&format!(
        "addr add {SECOND}/32 dev {WAN}
         addr del {}/64 dev {WAN}",
        place.gateways.site(B).wan_v6()
    ))?;
    place.start(Other::Lockgate)?;
    let capture = place.gateways.capture(Scope::Heads)?;
    let gateways = &place.gateways;
    let to = gateways.site(B).host_v4();
    Ping::new(&to, 5).run_until_answered(&gateways.site(A).host)?;
    let before = spis(gateways)?;
    let streams = [gateways.stream(A, B, STEP)?, gateways.stream(B, A, STEP)?];
    interrupt::sleep(AROUND)?;
    let moved = Instant::now();
    gateways.site(B).gateway.ip(&format!(
        "route add 192.0.2.0/24 dev {WAN} src {SECOND} metric 5
         addr del {}/24 dev {WAN}",
        gateways.site(B).wan_v4()
    ))?;
    place.wait("the SAs are at the other address", |gateways| {
        Ok([A, B].into_iter().all(|number| is_there(gateways, number).unwrap_or(false)))
    })?;
    let is_moved = Instant::now();
    for stream in &streams {
        stream.wait_for_arrival(is_moved, LIMIT)?;
    }
    interrupt::sleep(AROUND)?;
    let deliveries = streams.map(Stream::finish);
    let wire = Tally::of(&capture.stop()?)?;
    let answers = Ping::new(&to, 5).run_until_answered(&gateways.site(A).host)?;
    let told = events(gateways, A, "peer_moved")?.len();
    stage.report.wire.esp += wire.esp;
    stage.report.wire.clear += wire.clear;
    stage.report.ike.acquires += events(gateways, A, "acquire")?.len() as u64;
    let lost: usize = deliveries.iter().map(Delivery::lost).sum();
    let sent: usize = deliveries.iter().map(|stream| stream.sent.len()).sum();
    let are_the_same = spis(gateways)? == before && before.len() == 2;
    let imbalance = gateways.daemon(A)?.settled(LIMIT)?.ledger_imbalance;
    stage.note(Check {
        name: "SAs follow a gateway to its other address, with keys and numbers as they were",
        ok: are_the_same
            && told > 0
            && answers.all_answered()
            && wire.clear == 0
            && wire.repeated == 0
            && imbalance == 0,
        detail: format!(
            "the {} SAs of before; {} in clear, {} numbers twice; {lost} of {sent} packets lost \
             until both gateways knew; {} afterwards",
            if are_the_same { "same" } else { "NOT the same" },
            wire.clear,
            wire.repeated,
            answers.summary()
        ),
    });
    stage.note_time("MOBIKE: an address goes, until the SAs are moved", Some(is_moved - moved));
    Ok(())
}

/// SAs of a gateway.
fn sas(gateways: &Gateways, number: u8) -> Result<Vec<Value>, LabError> {
    let shown = gateways.daemon(number)?.ask(&["show", "sa"])?;
    Ok(shown["sas"].as_array().cloned().unwrap_or_default())
}

/// SPIs of gateway a's SAs, in their order.
fn spis(gateways: &Gateways) -> Result<Vec<String>, LabError> {
    let mut spis: Vec<String> = sas(gateways, A)?.iter().map(|sa| sa["spi"].to_string()).collect();
    spis.sort();
    Ok(spis)
}

/// Returns whether all SAs of a gateway have gateway b's second address as an end.
fn is_there(gateways: &Gateways, number: u8) -> Result<bool, LabError> {
    let end = if number == A { "remote" } else { "local" };
    let sas = sas(gateways, number)?;
    // SAs that ended have not moved.
    Ok(!sas.is_empty() && sas.iter().all(|sa| sa[end] == SECOND))
}
