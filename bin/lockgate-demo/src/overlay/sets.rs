//! The scenes in which each set of tenants has its tier.

use std::time::{Duration, Instant};

use netlab::iperf::{self, Udp};
use netlab::ping::{Answers, Ping};
use netlab::{LabError, interrupt};

use super::report::SetRow;
use super::stage::{ENTRANCE, LIMIT, Network, Stage};
use crate::report::Check;

/// Pings for the figures, and the time between two.
const TIMED_PINGS: (u32, Duration) = (500, Duration::from_millis(2));
/// UDP of each set: bytes of a packet, and packets a second. All share two cores: more is for
/// benches.
const UDP: (u32, u32) = (1200, 2000);

/// Pings from a tenant of node 1 to one of node 2.
pub(super) fn pings(stage: &Stage, network: Network, count: u32) -> Result<Answers, LabError> {
    Ping::new(&network.tenant(2, 1), count).run(stage.node(1))
}

/// Waits until the kernel tier answers all pings of the plain network. Returns what it then sent.
///
/// # Errors
/// [`LabError::TimedOut`].
pub(super) fn wait_for_kernel(stage: &Stage) -> Result<u64, LabError> {
    const SOME: u32 = 5;
    let end = Instant::now() + LIMIT;
    loop {
        let before = stage.glance()?;
        let answers = pings(stage, Network::Plain, SOME)?;
        let kernel = stage.glance()?.kernel_since(&before);
        if answers.all_answered() && kernel >= 2 * u64::from(SOME) {
            return Ok(kernel);
        }
        if Instant::now() > end {
            let what = "waiting for the kernel tier".to_owned();
            return Err(LabError::TimedOut { what, limit: LIMIT, output: answers.text });
        }
        interrupt::sleep(Duration::from_millis(200))?;
    }
}

/// Waits until tenants of the grouped network answer.
fn wait_for_workers(stage: &Stage) -> Result<(), LabError> {
    let end = Instant::now() + LIMIT;
    while !pings(stage, Network::Grouped, 3)?.all_answered() && Instant::now() < end {
        interrupt::sleep(Duration::from_millis(200))?;
    }
    Ok(())
}

/// Pings each set: those of the first are answered in the kernel, those of the second by workers.
pub(super) fn split(stage: &mut Stage) -> Result<(), LabError> {
    wait_for_workers(stage)?;
    wait_for_kernel(stage)?;
    for network in Network::ALL {
        let (count, interval) = TIMED_PINGS;
        let before = stage.reading()?;
        let to = network.tenant(2, 1);
        let ping = Ping { interval, ..Ping::new(&to, count) };
        let answers = ping.run_until_answered(stage.node(1))?;
        let after = stage.reading()?;
        let (kernel, workers) = (after.kernel_since(&before), after.workers_since(&before));
        let (lapsed, dropped) = (after.without_lease_since(&before), after.dropped_since(&before));
        let packets = 2 * u64::from(count);
        // Requests for link addresses, and what a busy machine has ping send beyond its number.
        let few = packets / 10;
        let (name, is_split) = match network {
            Network::Plain => (
                "10.0.0.0/24: the kernel answers, hardly anything comes to the workers",
                kernel + lapsed >= packets && workers <= few + lapsed,
            ),
            Network::Grouped => (
                "11.0.0.0/24: the workers have every packet, the kernel answers none",
                workers >= packets && kernel == 0,
            ),
        };
        let detail = format!(
            "{}; {kernel} packets in the kernel, {workers} by workers, {dropped} dropped",
            answers.summary()
        );
        stage.note(Check { name, ok: answers.all_answered() && is_split && dropped == 0, detail });
        stage.report.sets.push(SetRow {
            set: network.prefix(),
            why: network.why(),
            kernel,
            workers,
            ping_p50_us: answers.percentile_us(0.5),
            ping_p99_us: answers.percentile_us(0.99),
            udp_sent: 0,
            udp_arrived: 0,
        });
    }
    Ok(())
}

/// Pings the wing itself: what is no overlay packet goes to Linux, as before.
pub(super) fn wing_itself(stage: &mut Stage) -> Result<(), LabError> {
    let before = stage.reading()?;
    let answers = Ping::new(ENTRANCE, 5).run_until_answered(stage.node(1))?;
    let after = stage.reading()?;
    let taken = after.kernel_since(&before) + after.workers_since(&before);
    stage.note(Check {
        name: "the wing's own address answers pings, past both tiers",
        ok: answers.all_answered() && taken == 0,
        detail: format!("{}, {taken} packets in kernel tier and workers", answers.summary()),
    });
    Ok(())
}

/// Sends UDP through both sets at the same time: each keeps its tier.
pub(super) fn both_at_once(stage: &mut Stage, seconds: u32) -> Result<(), LabError> {
    let (before, losses) = (stage.reading()?, stage.losses()?);
    let server = iperf::Server::start(stage.node(2))?;
    let [plain, grouped] = Network::ALL.map(|network| network.tenant(2, 1));
    let (node, other) = (stage.node(1), iperf::Server::start_at(stage.node(2), OTHER_PORT)?);
    let udp = std::thread::scope(|scope| {
        let one = scope.spawn(|| iperf::udp(node, &plain, seconds, UDP));
        let two = scope.spawn(|| iperf::udp_at(node, (&grouped, OTHER_PORT), seconds, UDP));
        [one, two].map(|it| it.join().expect("iperf3's thread does not panic"))
    });
    drop((server, other));
    let [plain, grouped] = udp;
    let (plain, grouped) = (plain?, grouped?);
    let after = stage.reading()?;
    let (kernel, workers) = (after.kernel_since(&before), after.workers_since(&before));
    let dropped = after.dropped_since(&before);
    for (row, udp) in stage.report.sets.iter_mut().zip([plain, grouped]) {
        (row.udp_sent, row.udp_arrived) = (udp.sent, arrived(&udp));
    }
    stage.note(Check {
        name: "both at once: each set keeps its tier",
        ok: kernel + after.without_lease_since(&before) >= arrived(&plain)
            && workers >= arrived(&grouped),
        detail: format!("{kernel} packets in the kernel, {workers} by workers"),
    });
    let lost = stage.losses()?.since(&losses);
    let missing = plain.lost + grouped.lost;
    stage.note(Check {
        name: "nothing is lost that no counter has",
        ok: dropped == 0 && after.imbalance == 0 && missing <= lost.all(),
        detail: format!(
            "{missing} lost by iperf3's count; {dropped} dropped by the wing, {}",
            lost.text()
        ),
    });
    Ok(())
}

/// Port of the second server.
const OTHER_PORT: u16 = 5202;

fn arrived(udp: &Udp) -> u64 {
    udp.sent - udp.lost
}
