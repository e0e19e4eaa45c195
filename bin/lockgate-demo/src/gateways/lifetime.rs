//! The life of an SA: new keys under traffic, without a lost packet; and its end, at a hard limit,
//! behind which nothing more leaves until both gateways have new keys.

use std::path::Path;
use std::time::{Duration, Instant};

use netlab::capture::Scope;
use netlab::configuration::make_keys;
use netlab::ping::Ping;
use netlab::stream::Stream;
use netlab::{Gateways, LabError, Programs, interrupt, iperf};
use serde_json::Value;

use super::scenes::{STEP_LIMIT, Seconds, UDP, both_ways};
use super::stage::{A, B, Stage};

/// Packets that may leave.
const MOST: u64 = 500;
/// Time between two packets, and time that they are sent for: twice as many as may leave.
const STEP: Duration = Duration::from_millis(1);
const SENT_FOR: Duration = Duration::from_millis(1200);

/// Drops that a change of keys could cause.
const OF_KEYS: [&str; 5] = ["unknown_spi", "integrity", "replayed", "replay_too_old", "no_sa"];

/// Changes the keys of both gateways under streams and iperf3, in two steps: both learn to decrypt
/// with the new keys, then both encrypt with them.
pub(super) fn rekey(stage: &mut Stage, seconds: Seconds) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::Heads)?;
    let of_keys = |stage: &Stage| -> Result<u64, LabError> {
        let of = |end| -> Result<u64, LabError> {
            let counters = stage.gateways.daemon(end)?.counters()?;
            Ok(OF_KEYS.iter().map(|reason| counters.dropped(reason)).sum())
        };
        Ok(of(A)? + of(B)?)
    };
    let (dropped, before) = (of_keys(stage)?, outbound(stage)?["spi"].clone());
    let streams = both_ways(stage)?;
    let to = stage.gateways.site(B);
    let server = iperf::Server::start(&to.host)?;
    let (from, address) = (&stage.gateways.site(A).host, to.host_v4());
    let (changed, udp) = std::thread::scope(|scope| {
        let udp = scope.spawn(|| iperf::udp(from, &address, seconds.0, UDP));
        let changed = interrupt::sleep(Duration::from_millis(500))
            .and_then(|()| keys_in_two_steps(&stage.gateways));
        (changed, udp.join().expect("iperf3's thread does not panic"))
    });
    drop(server);
    changed?;
    let udp = udp?;
    let deliveries = streams.map(Stream::finish);
    stage.add_capture(capture)?;
    let sent: usize = deliveries.iter().map(|delivery| delivery.sent.len()).sum();
    let lost: usize = deliveries.iter().map(netlab::stream::Delivery::lost).sum();
    let dropped = of_keys(stage)? - dropped;
    let is_new = outbound(stage)?["spi"] != before;
    stage.check(
        "new keys under traffic lose nothing",
        is_new && sent > 0 && lost == 0 && dropped == 0,
        format!(
            "{lost} of {sent} packets lost, {dropped} dropped for their SA, beside iperf3 UDP at \
             {:.0} packets/s ({} lost)",
            udp.sent_pps, udp.lost
        ),
    );
    Ok(())
}

/// Writes the lines of key files that a step wants, with those of new keys.
fn keys_in_two_steps(gateways: &Gateways) -> Result<(), LabError> {
    let names = [A, B].map(|end| gateways.file(end).name());
    let (keys, fresh) = (gateways.directory().join("keys"), gateways.directory().join("new-keys"));
    std::fs::create_dir_all(&fresh).map_err(LabError::file(&fresh))?;
    make_keys(&Programs::find()?, &fresh, names[0], names[1])?;
    let read = |path: &Path| std::fs::read_to_string(path).map_err(LabError::file(path));
    let of = |text: &str, direction: &str| -> String {
        text.lines()
            .filter(|line| line.starts_with(direction))
            .fold(String::new(), |text, line| text + line + "\n")
    };
    let files = [
        (A, format!("{}-{}.keys", names[0], names[1])),
        (B, format!("{}-{}.keys", names[1], names[0])),
    ];
    for both_encrypt in [false, true] {
        for (end, file) in &files {
            let path = keys.join(file);
            let (old, new) = (read(&path)?, read(&fresh.join(file))?);
            let text = match both_encrypt {
                false => format!("{old}{}", of(&new, "in")),
                true => of(&old, "in") + &of(&new, "out"),
            };
            std::fs::write(&path, text).map_err(LabError::file(&path))?;
            gateways.daemon(*end)?.apply(&gateways.file(*end).path())?;
        }
        interrupt::sleep(Duration::from_millis(300))?;
    }
    Ok(())
}

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
    let before = dropped + delivery.closing as u64;
    let dropped = dropped_so_far(stage)?.saturating_sub(before);
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
