//! The first scenes: a control run, the first packet, and changes of keys.

use std::time::Duration;

use netlab::capture::{Scope, Tally};
use netlab::charon::KeysInLog;
use netlab::ping::Ping;
use netlab::stream::{Delivery, Stream};
use netlab::{LabError, interrupt, iperf};

use super::plan::{CHILD, CONNECTION};
use super::stage::{A, B, Stage};
use crate::report::Check;

/// Changes of the CHILD_SA's keys, and of the IKE_SA's.
const REKEYS: [usize; 2] = [5, 2];
/// UDP of iperf3: bytes of a packet, and packets a second.
const UDP: (u32, u32) = (1200, 2_000);
/// Seconds of it.
const UDP_SECONDS: u32 = 6;
/// Time between two changes of keys.
const BETWEEN: Duration = Duration::from_millis(300);
/// Pings in a row, of which the first has to wait for its keys.
const PINGS: u32 = 5;

/// Drops that a change of keys could cause.
const OF_KEYS: [&str; 5] = ["unknown_spi", "integrity", "replayed", "replay_too_old", "no_sa"];

/// Sends pings without Lockgate: they must cross and be seen in clear, or the later checks would
/// prove nothing.
pub(super) fn control_run(stage: &mut Stage) -> Result<(), LabError> {
    let to = stage.gateways.site(B).host_v4();
    // Not counted: neighbours come to be known.
    Ping::new(&to, 2).run_until_answered(&stage.gateways.site(A).host)?;
    let capture = stage.capture(Scope::Heads)?;
    let answers = Ping::new(&to, 10).run_until_answered(&stage.gateways.site(A).host)?;
    let tally = Tally::of(&capture.stop()?)?;
    let ok = answers.all_answered() && tally.clear >= 20;
    stage.note(Check {
        name: "control run: without Lockgate pings cross in clear",
        ok,
        detail: format!("{}; {} packets seen in clear on the wire", answers.summary(), tally.clear),
    });
    match ok {
        true => Ok(()),
        false => Err(LabError::Answer {
            command: "the control run".to_owned(),
            answer: "without it no later check proves anything".to_owned(),
        }),
    }
}

/// Starts daemons, and charons with a pre-shared key.
pub(super) fn start(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("two daemons, and two charons with a pre-shared key");
    let secret = stage.proof();
    for number in [A, B] {
        stage.gateways.start(number)?;
        stage.start_charon(number, &secret, KeysInLog::No)?;
    }
    Ok(())
}

/// The first packet has no SA: it waits while charon negotiates, and is not lost.
pub(super) fn first_packet(stage: &mut Stage) -> Result<(), LabError> {
    let none = stage.sas(A)?.is_empty() && stage.sas(B)?.is_empty();
    let capture = stage.capture(Scope::Heads)?;
    let to = stage.gateways.site(B).host_v4();
    // One that is lost is missed: later ones do not count for it.
    let answers = Ping::new(&to, PINGS).run_until_answered(&stage.gateways.site(A).host)?;
    let asked = stage.events(A, "acquire")?.len();
    let sas = stage.sas(A)?;
    let are_charons = sas.len() == 2 && sas.iter().all(|sa| sa["owner"] == "ike");
    let first = answers.times_us.last().copied().unwrap_or(0.0);
    let lost = answers.sent - answers.received;
    stage.report.ike.lost += lost;
    stage.add_capture(capture)?;
    stage.note(Check {
        name: "a packet without an SA asks charon for one, waits, and arrives",
        ok: none && answers.all_answered() && asked == 1 && are_charons,
        detail: format!(
            "{}, the slowest after {:.1} ms; charon was asked {asked} time(s)",
            answers.summary(),
            first / 1000.0
        ),
    });
    let took = Duration::from_micros(first as u64);
    stage.note_time("the first packet, with its answer: IKE from the beginning", Some(took));
    Ok(())
}

/// Changes the keys of the CHILD_SA and of the IKE_SA under streams and iperf3.
pub(super) fn new_keys(stage: &mut Stage) -> Result<(), LabError> {
    let dropped = dropped_for_keys(stage)?;
    let capture = stage.capture(Scope::Heads)?;
    let streams = stage.both_ways()?;
    let to = stage.gateways.site(B);
    let server = iperf::Server::start(&to.host)?;
    let (from, address) = (&stage.gateways.site(A).host, to.host_v4());
    let (changed, udp) = std::thread::scope(|scope| {
        let udp = scope.spawn(|| iperf::udp(from, &address, UDP_SECONDS, UDP));
        let changed = interrupt::sleep(Duration::from_millis(500)).and_then(|()| rekey(stage));
        (changed, udp.join().expect("iperf3's thread does not panic"))
    });
    drop(server);
    let (changed, udp) = (changed?, udp?);
    let deliveries = streams.map(Stream::finish);
    let wire = stage.add_capture(capture)?;
    let (lost, sent) = stage.note_lost(&deliveries);
    let dropped = dropped_for_keys(stage)? - dropped;
    let repeated: usize = deliveries.iter().map(Delivery::repeated).sum();
    let rekeys: usize = changed.iter().sum();
    stage.report.ike.rekeys += rekeys as u64;
    // Two of the first pair, and two of each other.
    let spis = wire.spis().len();
    stage.note(Check {
        name: "new keys of CHILD_SA and IKE_SA under traffic lose nothing",
        ok: lost == 0
            && sent > 0
            && dropped == 0
            && repeated == 0
            && changed == REKEYS
            && spis == 2 + 2 * REKEYS[0],
        detail: format!(
            "{} and {} changes, {spis} SAs on the wire; {lost} of {sent} packets lost, {dropped} \
             dropped for their SA, beside iperf3 UDP at {:.0} packets/s ({} lost)",
            changed[0], changed[1], udp.sent_pps, udp.lost
        ),
    });
    stage.wait("old SAs go", |stage| Ok(stage.sas(A)?.len() == 2))
}

/// Packets that both gateways have dropped for their SA.
fn dropped_for_keys(stage: &Stage) -> Result<u64, LabError> {
    let mut sum = 0;
    for number in [A, B] {
        let counters = stage.gateways.daemon(number)?.counters()?;
        sum += OF_KEYS.iter().map(|reason| counters.dropped(reason)).sum::<u64>();
    }
    Ok(sum)
}

/// Changes keys; returns how often those of the CHILD_SA and of the IKE_SA are others than before.
fn rekey(stage: &Stage) -> Result<[usize; 2], LabError> {
    let mut changed = [0; 2];
    for _ in 0..REKEYS[0] {
        let before = stage.outbound(A)?;
        stage.swanctl(A, &["--rekey", "--child", CHILD])?;
        stage.wait("new keys of the CHILD_SA", |stage| Ok(stage.outbound(A)? != before))?;
        changed[0] += 1;
        interrupt::sleep(BETWEEN)?;
    }
    for _ in 0..REKEYS[1] {
        let before = ike_sas(stage)?;
        stage.swanctl(A, &["--rekey", "--ike", CONNECTION])?;
        stage.wait("new keys of the IKE_SA", |stage| {
            let after = ike_sas(stage)?;
            Ok(after.len() == 1 && after != before)
        })?;
        changed[1] += 1;
        interrupt::sleep(BETWEEN)?;
    }
    Ok(changed)
}

/// Numbers of the IKE_SAs of gateway a, as `swanctl --list-sas` shows them.
fn ike_sas(stage: &Stage) -> Result<Vec<String>, LabError> {
    let listed = stage.swanctl(A, &["--list-sas"])?;
    let prefix = format!("{CONNECTION}: ");
    let lines = listed.lines().filter_map(|line| line.strip_prefix(&prefix));
    Ok(lines.filter_map(|line| line.split(',').next()).map(str::to_owned).collect())
}
