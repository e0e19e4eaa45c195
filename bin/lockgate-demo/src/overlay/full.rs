//! The scene with more endpoints than the kernel has room for.

use std::net::Ipv4Addr;
use std::time::Instant;

use netlab::LabError;

use super::report::FullReport;
use super::stage::{KERNEL_ENDPOINTS, LIMIT, Network, Stage, line};
use super::sweep::sweep;
use crate::report::Check;

/// Endpoints that are added behind node 2.
const MANY: u32 = 10_000;
/// The first of them, and the prefix of all.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 64, 1);
const PREFIX: &str = "10.0.64.0/18";

/// Puts 10,000 endpoints over a kernel's table with room for 1024: all are reached.
pub(super) fn more_than_fit(stage: &mut Stage) -> Result<(), LabError> {
    let network = Network::Plain;
    let (device, via) = (network.device(), network.tenant(2, 1));
    // One link address has them all; node 1 asks for that of one tenant only.
    stage.node(1).ip(&format!("route add {PREFIX} via {via} dev {device}"))?;
    stage.node(2).ip(&format!("route add local {PREFIX} dev {device}"))?;
    let addresses: Vec<Ipv4Addr> =
        (0..MANY).map(|number| Ipv4Addr::from(u32::from(FIRST) + number)).collect();
    let lines: String =
        addresses.iter().map(|address| line(network, &address.to_string(), 2)).collect();
    let began = Instant::now();
    stage.import(&lines)?;
    stage.note_time("10,000 endpoints put, applied and durable", Some(began.elapsed()));

    let first = stage.reading()?;
    let end = Instant::now() + LIMIT;
    while stage.reading()?.endpoints < KERNEL_ENDPOINTS && Instant::now() < end {
        sweep(stage.node(1), &addresses)?;
    }
    let before = stage.reading()?;
    let swept = sweep(stage.node(1), &addresses)?;
    let after = stage.reading()?;
    let shown = stage.daemon()?.run(&["show", "counters"])?.success()?;
    let full = FullReport {
        endpoints: MANY.into(),
        reached: swept.reached as u64,
        resident: after.endpoints,
        max: after.max,
        pressure: after.endpoints as f64 / after.max.max(1) as f64,
        kernel: after.kernel_since(&before),
        workers: after.workers_since(&before),
        dropped: after.dropped_since(&first),
    };
    stage.report.full = full;
    let FullReport { reached, resident, max, kernel, workers, dropped, .. } = full;
    stage.note(Check {
        name: "10,000 endpoints over a kernel's table of 1024: all are reached",
        ok: reached == u64::from(MANY) && dropped == 0,
        detail: format!("{reached} answered {} pings, {dropped} dropped", swept.sent),
    });
    stage.note(Check {
        name: "the table is full, and says so; the workers do the rest",
        ok: max == KERNEL_ENDPOINTS
            && resident == max
            && shown.contains("(pressure 1.00)")
            && kernel > 0
            && workers > 0,
        detail: format!(
            "{resident} of {max} endpoints; {kernel} packets in the kernel, {workers} by workers"
        ),
    });
    Ok(())
}
