//! The scenes, one function each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use netlab::capture::{Scope, Tally};
use netlab::ping::{Answers, Fragments, Ping};
use netlab::stream::Stream;
use netlab::{LabError, interrupt, iperf};

use super::report::{PingTimes, TierCounts};
use super::stage::{A, B, Stage};

/// Seconds of each throughput measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seconds(pub(super) u32);

/// UDP: bytes of a packet, and packets a second. Three parties share two cores: more is for
/// benches.
pub(super) const UDP: (u32, u32) = (1200, 10_000);
/// Target for the part of them that is lost, a figure: a host that shares two cores with everybody
/// loses some itself.
const UDP_LOSS_TARGET: f64 = 0.01;
/// Largest inner packet of a tunnel over a link of 1500 bytes: outer IPv4 20, ESP 8, IV 8, ICV 16;
/// of the remaining 1448, a multiple of 4, the trailer takes 2.
pub(super) const TUNNEL_MTU: u32 = 1446;
/// Pings for the figures, and the time between two.
const TIMED_PINGS: (u32, Duration) = (1000, Duration::from_millis(2));
/// Time between two packets of a stream.
const STEP: Duration = Duration::from_millis(1);
/// A step that takes longer than this never ends: the only time that a check knows.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(60);
/// Target for the time from a port's link up to the first packet: a figure that is shown, not a
/// check.
const UP_AGAIN_TARGET: Duration = Duration::from_secs(2);
/// Target for the time of one reload, another figure.
const RELOAD_TARGET: Duration = Duration::from_millis(100);

/// Sends the pings without Lockgate: they must cross and be seen in cleartext, or the later checks
/// would prove nothing.
pub(super) fn control_run(stage: &mut Stage) -> Result<(), LabError> {
    // Not counted: neighbours come to be known.
    ping_both_families(stage, A, 3)?;
    let capture = stage.gateways.capture(Scope::Heads)?;
    let answers = ping_both_families(stage, A, 10)?;
    let tally = Tally::of(&capture.stop()?)?;
    let crossed = answers.iter().all(Answers::all_answered);
    // Each ping and its answer, both families; a busy host sends some more.
    let seen = tally.clear >= 40;
    let summary = summary(&answers);
    stage.check(
        "control run: without Lockgate pings cross in clear",
        crossed && seen,
        format!("{summary}; {} packets seen in clear on the wire", tally.clear),
    );
    match crossed && seen {
        true => Ok(()),
        false => Err(LabError::Answer {
            command: "the control run".to_owned(),
            answer: "without it no later check proves anything".to_owned(),
        }),
    }
}

/// Starts both daemons, waits for their ports, and notes how XDP programs are attached.
pub(super) fn start_daemons(stage: &mut Stage) -> Result<(), LabError> {
    for end in [A, B] {
        stage.gateways.start(end)?;
    }
    let end = Instant::now() + STEP_LIMIT;
    let mut ports = ports(stage)?;
    while !ports.down.is_empty() && Instant::now() < end {
        interrupt::sleep(Duration::from_millis(100))?;
        ports = self::ports(stage)?;
    }
    let mode = ports.modes.into_iter().collect::<Vec<_>>().join(" and ");
    let detail = match ports.down.as_slice() {
        [] => format!("XDP {mode}"),
        down => down.join("; "),
    };
    stage.report.xdp_mode = Some(mode);
    stage.report.workers = Some(stage.gateways.daemon(A)?.counters()?.workers);
    stage.check("two daemons are up", ports.down.is_empty(), detail);
    Ok(())
}

/// The ports of both gateways.
struct Ports {
    /// Modes in which XDP programs are attached.
    modes: BTreeSet<String>,
    /// Ports that are not up, and the reason.
    down: Vec<String>,
}

fn ports(stage: &Stage) -> Result<Ports, LabError> {
    let mut ports = Ports { modes: BTreeSet::new(), down: Vec::new() };
    for end in [A, B] {
        for port in stage.gateways.daemon(end)?.ports()? {
            let text = |field: &str| port[field].as_str().unwrap_or_default().to_owned();
            if text("state") != "up" {
                let gateway = stage.gateways.file(end).name();
                let (name, state, why) = (text("name"), text("state"), text("state_reason"));
                ports.down.push(format!("{gateway} {name}: {state} {why}"));
            }
            if text("name") != "host" {
                ports.modes.insert(text("xdp_mode"));
            }
        }
    }
    Ok(ports)
}

/// Pings of both families, too big ones, and those of a gateway itself.
pub(super) fn reach(stage: &mut Stage) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::Heads)?;
    for (name, end) in [("ping from host a, v4 and v6", A), ("ping from host b, v4 and v6", B)] {
        let answers = ping_both_families(stage, end, 20)?;
        stage.check(name, answers.iter().all(Answers::all_answered), summary(&answers));
    }
    too_big(stage)?;
    let (far, own) = (stage.gateways.site(B).host_v4(), stage.gateways.site(A).lan_v4());
    let ping = Ping { from: Some(&own), ..Ping::new(&far, 20) };
    let answers = ping.run_until_answered(&stage.gateways.site(A).gateway)?;
    stage.check(
        "ping from gateway a itself to the far network",
        answers.all_answered(),
        answers.summary(),
    );
    stage.add_capture(capture)
}

/// A packet that does not fit the tunnel and must not be fragmented is answered by the gateway,
/// with what fits.
fn too_big(stage: &mut Stage) -> Result<(), LabError> {
    let (a, b) = (stage.gateways.site(A), stage.gateways.site(B));
    let mut found = Vec::new();
    // 1500 bytes with their headers.
    for (to, from, size) in [(b.host_v4(), a.lan_v4(), 1472), (b.host_v6(), a.lan_v6(), 1452)] {
        let ping = Ping { size, fragments: Fragments::Forbidden, ..Ping::new(&to, 2) };
        let answers = ping.run(&a.host)?;
        let by_gateway = answers.text.contains(&format!("From {from} "));
        found.push((answers, by_gateway));
    }
    let ok = found.iter().all(|(answers, by_gateway)| {
        answers.received == 0 && answers.mtu == Some(TUNNEL_MTU) && *by_gateway
    });
    let detail: Vec<String> = found
        .iter()
        .map(|(answers, by_gateway)| {
            let by = if *by_gateway { "the gateway says" } else { "the gateway does not say it;" };
            answers.mtu.map_or("no ICMP came".into(), |mtu| format!("{by} MTU {mtu}"))
        })
        .collect();
    let detail = format!("v4: {}; v6: {}", detail[0], detail[1]);
    forget_mtus(stage)?;
    stage.check("a big packet with DF is answered by the right ICMP", ok, detail);
    Ok(())
}

/// Flushes the path MTUs that the hosts learned, so that later checks do not depend on them.
pub(super) fn forget_mtus(stage: &Stage) -> Result<(), LabError> {
    for site in [stage.gateways.site(A), stage.gateways.site(B)] {
        for family in ["-4", "-6"] {
            let words = ["ip", family, "route", "flush", "cache"];
            site.host.run(&words, Duration::from_secs(5))?.success()?;
        }
    }
    Ok(())
}

/// UDP at a rate that the machine can carry.
pub(super) fn bounded_udp(stage: &mut Stage, seconds: Seconds) -> Result<(), LabError> {
    let to = stage.gateways.site(B);
    let server = iperf::Server::start(&to.host)?;
    let addresses = [to.host_v4(), to.host_v6()];
    let capture = stage.gateways.capture(Scope::Heads)?;
    let from = &stage.gateways.site(A).host;
    let v4 = iperf::udp(from, &addresses[0], seconds.0, UDP)?;
    let v6 = iperf::udp(from, &addresses[1], 1, UDP)?;
    stage.add_capture(capture)?;
    drop(server);
    stage.report.udp.sent_pps = Some(v4.sent_pps);
    stage.report.udp.loss = Some(v4.loss);
    let text = |udp: &iperf::Udp| {
        format!("{} of {} lost at {:.0} packets/s", udp.lost, udp.sent, udp.sent_pps)
    };
    stage.check(
        "iperf3 UDP crosses, v4 and v6",
        [&v4, &v6].iter().all(|udp| udp.lost < udp.sent),
        format!(
            "v4: {}; v6: {} (target: at most {:.0} %)",
            text(&v4),
            text(&v6),
            UDP_LOSS_TARGET * 100.0
        ),
    );
    Ok(())
}

/// Round trips and TCP, with a capture that takes everything but ESP.
pub(super) fn rates(stage: &mut Stage, seconds: Seconds) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::NotEsp)?;
    let (times, answers) = timed_pings(stage)?;
    stage.report.ping_us = times;
    stage.check(
        "every one of the timed pings is answered",
        answers.all_answered(),
        format!("{}; p50 {:.0} µs", answers.summary(), times.p50.unwrap_or(0.0)),
    );
    let [v4, v6] = tcp_both_families(stage, seconds)?;
    stage.report.tcp_gbps = Some(v4);
    stage.check(
        "iperf3 TCP, v4 and v6",
        v4 > 0.0 && v6 > 0.0,
        format!("v4: {v4:.2} Gbit/s; v6: {v6:.2} Gbit/s"),
    );
    stage.add_capture(capture)
}

/// Pings from host a to host b, for the figures.
pub(super) fn timed_pings(stage: &Stage) -> Result<(PingTimes, Answers), LabError> {
    let (count, interval) = TIMED_PINGS;
    let to = stage.gateways.site(B).host_v4();
    let ping = Ping { interval, ..Ping::new(&to, count) };
    let answers = ping.run_until_answered(&stage.gateways.site(A).host)?;
    let times = PingTimes { p50: answers.percentile_us(0.5), p99: answers.percentile_us(0.99) };
    Ok((times, answers))
}

/// TCP from host a to host b: IPv4 for the figures, IPv6 for a second.
pub(super) fn tcp_both_families(stage: &Stage, seconds: Seconds) -> Result<[f64; 2], LabError> {
    let to = stage.gateways.site(B);
    let from = &stage.gateways.site(A).host;
    let server = iperf::Server::start(&to.host)?;
    let rates = [iperf::tcp(from, &to.host_v4(), seconds.0)?, iperf::tcp(from, &to.host_v6(), 1)?];
    drop(server);
    Ok(rates)
}

/// A configuration applied under traffic costs no packet.
pub(super) fn reload(stage: &mut Stage) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::Heads)?;
    let streams = both_ways(stage)?;
    interrupt::sleep(Duration::from_millis(500))?;
    let mut changed = stage.gateways.file(A).clone();
    changed.extra += "
[[policy]]
name = \"lookup\"
action = \"bypass\"
local = [\"any\"]
remote = [\"9.9.9.9/32\"]
protocol = \"udp\"
remote_ports = [\"53\"]
priority = 50
";
    let other = changed.write_as(&changed.beside("changed.toml"))?;
    let daemon = stage.gateways.daemon(A)?;
    let mut slowest = Duration::ZERO;
    for file in [other.clone(), stage.gateways.file(A).path(), other, stage.gateways.file(A).path()]
    {
        let start = Instant::now();
        daemon.apply(&file)?;
        slowest = slowest.max(start.elapsed());
        interrupt::sleep(Duration::from_millis(300))?;
    }
    let deliveries = streams.map(Stream::finish);
    stage.add_capture(capture)?;
    let sent: usize = deliveries.iter().map(|delivery| delivery.sent.len()).sum();
    let lost: usize = deliveries.iter().map(netlab::stream::Delivery::lost).sum();
    stage.check(
        "a policy reload under traffic loses nothing",
        lost == 0 && sent > 0,
        format!("4 reloads, {lost} of {sent} packets lost"),
    );
    stage.note_time("policy reload, the slowest of 4", [Some(slowest); 2], RELOAD_TARGET);
    Ok(())
}

/// An unprotected port goes down and comes up again.
pub(super) fn port_down_and_up(stage: &mut Stage) -> Result<(), LabError> {
    let capture = stage.gateways.capture(Scope::Heads)?;
    let streams = both_ways(stage)?;
    interrupt::sleep(Duration::from_millis(300))?;
    let site = stage.gateways.site(A);
    site.gateway.ip("link set wan down")?;
    let down = Instant::now();
    interrupt::sleep(Duration::from_millis(700))?;
    // Taken before: it forwards before the command has returned.
    let up = Instant::now();
    stage.gateways.sites.raise_wan(site)?;
    wait_for_both(&streams, up)?;
    interrupt::sleep(Duration::from_millis(500))?;
    let deliveries = streams.map(Stream::finish);
    stage.add_capture(capture)?;
    let through: usize = deliveries
        .iter()
        .map(|delivery| delivery.arrived_between(down + Duration::from_millis(50), up))
        .sum();
    let first = deliveries.each_ref().map(|delivery| delivery.first_after(up));
    stage.check(
        "a port that goes down carries nothing, and carries traffic again when it is up",
        through == 0 && first.iter().all(Option::is_some),
        format!("while down {through} packets came through; {}", directions(first)),
    );
    stage.note_time("port up: link up to the first packet", first, UP_AGAIN_TARGET);
    Ok(())
}

/// Waits until no packet is under way, and returns the sums.
pub(super) fn settle(stage: &mut Stage) -> Result<(), LabError> {
    let mut total = stage.counted.clone();
    let mut imbalance = 0;
    for end in [A, B] {
        let counters = stage.gateways.daemon(end)?.settled(Duration::from_secs(3))?;
        imbalance += counters.ledger_imbalance;
        total.add(&counters);
    }
    stage.report.ledger_imbalance = Some(imbalance);
    stage.report.tiers = TierCounts::from_names(&total.tiers);
    stage.report.drops.extend(total.drops.into_iter().filter(|&(_, count)| count > 0));
    stage.check(
        "the ledgers of both gateways balance",
        imbalance == 0,
        format!("out by {imbalance} packets"),
    );
    let tally = stage.tally();
    let (esp, clear) = (tally.esp, tally.clear);
    let examples = tally.clear_examples.join(", ");
    let (repeated, pairs) = (tally.repeated, format!("{:x?}", tally.repeated_examples));
    stage.check(
        "nothing in clear was on the wire",
        clear == 0 && esp > 0,
        match clear {
            0 => format!(
                "none in clear, {esp} in ESP (those of the timed pings and of TCP not counted)"
            ),
            _ => format!("{clear} in clear: {examples}"),
        },
    );
    stage.check(
        "no SPI and sequence number was on the wire twice",
        repeated == 0 && esp > 0,
        match repeated {
            0 => format!("{esp} different ones (without the timed pings and TCP)"),
            _ => format!("{repeated} again: {pairs}"),
        },
    );
    Ok(())
}

/// Steady streams from host a to host b and back.
pub(super) fn both_ways(stage: &Stage) -> Result<[Stream; 2], LabError> {
    Ok([stage.gateways.stream(A, B, STEP)?, stage.gateways.stream(B, A, STEP)?])
}

/// Waits until both streams deliver a packet after `moment`, or until [`STEP_LIMIT`].
pub(super) fn wait_for_both(streams: &[Stream; 2], moment: Instant) -> Result<(), LabError> {
    streams.iter().try_for_each(|stream| {
        stream.wait_for_arrival(moment, STEP_LIMIT).map(|_arrived_in_time| ())
    })
}

/// Times of both directions as text.
pub(super) fn directions(times: [Option<Duration>; 2]) -> String {
    let text = |time: Option<Duration>| match time {
        Some(time) => format!("after {} ms", time.as_millis()),
        None => format!("not within {} s", STEP_LIMIT.as_secs()),
    };
    format!("a to b {}, b to a {}", text(times[0]), text(times[1]))
}

/// Pings from a site's host to the other's, over IPv4 and IPv6.
fn ping_both_families(stage: &Stage, from: u8, count: u32) -> Result<[Answers; 2], LabError> {
    let to = stage.gateways.site(if from == A { B } else { A });
    let host = &stage.gateways.site(from).host;
    let ping = |to: &str| Ping::new(to, count).run_until_answered(host);
    Ok([ping(&to.host_v4())?, ping(&to.host_v6())?])
}

fn summary(answers: &[Answers; 2]) -> String {
    let [v4, v6] = answers;
    format!("v4: {}; v6: {}", v4.summary(), v6.summary())
}
