//! The scenes in which rules change under traffic.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use dataplane::DropReason;
use netlab::process::Running;
use netlab::sites::HOST_INTERFACE;
use netlab::stream::Stream;
use netlab::{LabError, interrupt, iperf};
use wire::Family;

use super::groups::{Groups, Mode, Rule, http, tcp_to};
use super::stage::{A, Expected, Reading, Stage, Target, questions};
use super::traffic::Service::{Http, Https};
use super::traffic::{self, Addresses, Sent};
use crate::report::Check;

/// The file with the members of a set, beside the configuration.
const MEMBERS: &str = "members.txt";
/// A member that no host has.
const STRANGER: &str = "198.51.100.1\n";
/// Port of [`Stream`].
const STREAM_PORT: u16 = 7007;
/// Port of iperf3.
const IPERF_PORT: u16 = 5201;
/// Time between two packets of the stream beside the pings.
const STEP: Duration = Duration::from_millis(2);
/// Time after which answers to earlier pings have arrived.
const ON_ITS_WAY: Duration = Duration::from_millis(300);
/// Time that a door is watched.
const WATCH: Duration = Duration::from_millis(800);
/// Time for what must happen.
const LIMIT: Duration = Duration::from_secs(60);
/// Bounds of the TCP stream.
const TCP_SECONDS: u32 = 4;
const TCP_BITS_PER_SECOND: u64 = 50_000_000;
/// Changes under the TCP stream, and the time between two.
const CHANGES: u32 = 6;
const BETWEEN: Duration = Duration::from_millis(400);
/// Segments at most in what TCP hands to a device at once, where nobody sets it.
const MOST_SEGMENTS: u32 = 65_535;

/// Scene 9: a member of a set opens the door while it is one, and changes nothing else.
pub(super) fn set_of_a_file(stage: &mut Stage) -> Result<(), LabError> {
    write_members(stage, STRANGER)?;
    stage.apply(&door())?;
    let ends = [Addresses::of_host(A), Target::Dmz.addresses()];
    let [from, to]: [IpAddr; 2] = ends.map(|it| it.of(Family::V4));
    let beside = Stream::start((stage.client(), from), (&stage.server, to), 64, STEP)?;
    let target = to.to_string();
    // It ends by itself even if nobody is there to end it.
    let words = ["ping", "-n", "-D", "-i", "0.02", "-w", "120", &target];
    let ping = stage.client().start(&words)?;

    let mut closed = vec![watched(WATCH)?];
    write_members(stage, &format!("{STRANGER}{from}\n"))?;
    stage.apply_file(A)?;
    let opened = SystemTime::now();
    wait_for_answers(&ping, opened)?;
    let asked = &[Http, Https];
    let equal = vec![questions(&["open/http"], &[Http])];
    let equal = [equal, vec![questions(&["group_no_match"], &[Https])]].concat();
    let expected = Expected { asked, ..Expected::answered(&[Http], equal) };
    stage
        .expect("a member is added to the file of a set: other rules judge as before", &expected)?;
    let open = (opened, SystemTime::now());
    write_members(stage, STRANGER)?;
    stage.apply_file(A)?;
    interrupt::sleep(ON_ITS_WAY)?;
    closed.push(watched(WATCH)?);

    let times = answer_times(&ping.interrupt(LIMIT)?.stdout);
    let beside = beside.finish();
    let within = |(from, to)| times.iter().filter(|time| (from..=to).contains(*time)).count();
    let through: Vec<usize> = closed.into_iter().map(within).collect();
    let ok = through == [0, 0] && within(open) > 0;
    let detail = format!(
        "pings answered: before {}, as a member {}, afterwards {}",
        through[0],
        within(open),
        through[1]
    );
    let name = "under a running ping the member's door opens, and closes again";
    stage.note(Check { name, ok, detail });
    let (lost, sent) = (beside.lost(), beside.sent.len());
    let (ok, detail) = (lost == 0 && sent > 0, format!("{lost} of {sent} packets lost"));
    stage.note(Check { name: "a stream beside it loses nothing by both changes", ok, detail });
    Ok(())
}

/// A rule for the members of a set above rules for others.
fn door() -> Groups {
    let member = Rule::permit("member", "protocol = \"icmp\"\nicmp = [\"8\"]").from("@members");
    let beside = format!("protocol = \"udp\"\nto_ports = [\"{STREAM_PORT}\"]");
    Groups::none()
        .lan_in(&["door", "open"])
        .set_of_file("members", MEMBERS)
        .group("door", Mode::Enforce, &[member])
        .group("open", Mode::Enforce, &[http(), Rule::permit("stream", beside)])
}

fn write_members(stage: &Stage, members: &str) -> Result<(), LabError> {
    let path = stage.gateways.file(A).beside(MEMBERS);
    std::fs::write(&path, members).map_err(LabError::file(&path))
}

/// Waits, and returns from when to when.
fn watched(span: Duration) -> Result<(SystemTime, SystemTime), LabError> {
    let start = SystemTime::now();
    interrupt::sleep(span)?;
    Ok((start, SystemTime::now()))
}

/// Waits for some answers after a moment; it is no error if none come.
fn wait_for_answers(ping: &Running, after: SystemTime) -> Result<(), LabError> {
    const SOME: usize = 10;
    let end = Instant::now() + LIMIT;
    let later = |time: &SystemTime| *time > after;
    while answer_times(&ping.stdout()).iter().filter(|it| later(it)).count() < SOME {
        if Instant::now() > end {
            return Ok(());
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// The times at which answers arrived, as `ping -D` prints them.
fn answer_times(printed: &str) -> Vec<SystemTime> {
    let answers = printed.lines().filter(|line| line.contains(" time="));
    let seconds =
        answers.filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok());
    seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds)).collect()
}

/// Scene 10: groups change around a rule under a stream, and none of the stream is dropped.
pub(super) fn under_a_stream(stage: &mut Stage) -> Result<(), LabError> {
    let stays = Rule::permit("iperf", tcp_to(IPERF_PORT));
    let alone =
        |rules: &[Rule]| Groups::none().lan_in(&["stream"]).group("stream", Mode::Enforce, rules);
    let others: Vec<Rule> =
        (1..=50).map(|port| Rule::deny(format!("no-{port}"), tcp_to(port))).collect();
    let behind = Groups::none()
        .lan_in(&["more", "stream"])
        .group("more", Mode::Enforce, &others)
        .group("stream", Mode::Enforce, &[http(), stays.clone()]);
    let versions = [alone(&[stays]), behind];
    stage.apply(&versions[0])?;
    let server = iperf::Server::start(&stage.server)?;
    let before = stage.reading(Target::Dmz)?;
    let to = Target::Dmz.addresses().of(Family::V4);
    let bytes = under_tcp(stage, &to.to_string(), |stage| {
        for number in 1..=CHANGES {
            interrupt::sleep(BETWEEN)?;
            stage.apply(&versions[number as usize % 2])?;
        }
        Ok(())
    })?;
    let [judged, left, arrived, drops] = settled(stage, &before)?;
    stage.note(Check {
        name: "groups change around a rule: none of its TCP stream is dropped",
        ok: drops == 0 && judged == left && left > 0 && bytes > 0,
        detail: format!(
            "{CHANGES} changes, {:.1} MB received; stream/iperf {judged} of {left} packets sent, \
             {drops} dropped, {arrived} arrived",
            bytes as f64 / 1e6,
        ),
    });
    let connects =
        |stage: &Stage| traffic::connects(stage.client(), SocketAddr::new(to, IPERF_PORT));
    let with = connects(stage)?;
    stage.apply(&alone(&[http()]))?;
    let without = connects(stage)?;
    drop(server);
    let word = |connects| if connects { "connects" } else { "does not connect" };
    stage.note(Check {
        name: "control: without its rule the stream's port does not answer",
        ok: with && !without,
        detail: format!("with it TCP {}, without it {}", word(with), word(without)),
    });
    Ok(())
}

/// Runs a bounded TCP stream, and `meanwhile` beside it. Returns the bytes that arrived.
pub(super) fn under_tcp(
    stage: &mut Stage,
    to: &str,
    meanwhile: impl FnOnce(&mut Stage) -> Result<(), LabError>,
) -> Result<u64, LabError> {
    // nftables counts before large segments are cut: the client makes none meanwhile.
    let segments = |stage: &Stage, most: u32| {
        stage.client().ip(&format!("link set {HOST_INTERFACE} gso_max_segs {most}"))
    };
    segments(stage, 1)?;
    let running = iperf::start_bounded_tcp(stage.client(), to, TCP_SECONDS, TCP_BITS_PER_SECOND)?;
    meanwhile(stage)?;
    let bytes = running.finish()?;
    segments(stage, MOST_SEGMENTS)?;
    Ok(bytes)
}

/// Waits until the rule has counted what was sent. Returns both, the packets that arrived, and the
/// drops of all reasons.
fn settled(stage: &Stage, before: &Reading) -> Result<[u64; 4], LabError> {
    // Hosts announce their multicast groups whenever they like; no TCP has such addresses.
    let chatter = [DropReason::BadAddress, DropReason::LinkMulticast];
    let reasons = DropReason::ALL.iter().filter(|it| !chatter.contains(it));
    let reasons: Vec<&str> = reasons.map(|it| it.name()).collect();
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let after = stage.reading(Target::Dmz)?;
        let judged = after.counted_since(before, &["stream/iperf"]);
        let sent = after.sent_since(before, &[Sent::Stream]);
        if judged == sent || Instant::now() > end {
            let arrived = after.sent_since(before, &[Sent::StreamArrived]);
            return Ok([judged, sent, arrived, after.counted_since(before, &reasons)]);
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_each_answer_is_read() {
        let printed = "PING 10.3.0.10 (10.3.0.10) 56(84) bytes of data.\n\
            [1700000000.250000] 64 bytes from 10.3.0.10: icmp_seq=7 ttl=63 time=0.5 ms\n\
            [1700000001.000000] no answer yet for icmp_seq=8\n";
        let quarter = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        assert_eq!(answer_times(printed), [quarter]);
    }
}
