//! All counters as text.

use api::v1;
use console::output::{Columns, Numbers, counted, fitted, table, wrapped};

use super::tables::{LEDGER, duration, ledger_row};

/// Shows all counters.
pub(super) fn counters(counters: &v1::Counters, columns: Columns) -> String {
    let tiers = counters.tiers.unwrap_or_default();
    let tiers = [
        ("device", tiers.device),
        ("kernel", tiers.kernel),
        ("cache", tiers.cache),
        ("classifier", tiers.classifier),
    ];
    let tiers = tiers.map(|(tier, packets)| vec![tier.to_owned(), packets.to_string()]);
    let mut text = super::overview::port_rates(&counters.ports, counters.rate_time_ms);
    let tiers =
        table("Packets by the tier that decided them", &["tier", "packets"], tiers, Numbers(1..=1));
    text.push_str(&tiers);
    if let Some(tier) = &counters.kernel_tier {
        text.push_str(&kernel_tier(tier));
    }
    let drops = counters.drops.iter();
    let drops =
        drops.map(|drop| vec![drop.name.clone(), drop.count.to_string(), drop.help.clone()]);
    let header = ["reason", "packets", "meaning"];
    text.push_str(&wrapped("Drops", &header, drops, Numbers(1..=1), columns));
    let ledger = counters.ledger.iter().map(ledger_row);
    text.push_str(&table("Ledger, all ports, in packets", &LEDGER, ledger, Numbers(0..=7)));
    text.push_str(&workers(&counters.workers, columns));
    let v1::Counters { revision, generation, netlink_resyncs, .. } = counters;
    let v1::Counters { icmp_limited, icmp_no_frame, .. } = counters;
    let v1::Counters { path_mtu_lowered, path_mtu_ignored, direct_paths, .. } = counters;
    let since = duration(counters.uptime_ms);
    let held = counted(counters.held.into(), "packet");
    text.push_str(&format!(
        "imbalance of all ledgers {}; {held} waiting for a next hop\n\
         ICMP not made: {icmp_limited} by the rate limit, {icmp_no_frame} without a frame\n\
         {} of the kernel's tables\n\
         revision {revision}, generation {generation}, running {since}\n",
        counters.ledger_imbalance,
        counted(*netlink_resyncs, "resync"),
    ));
    text.push_str(&format!(
        "{path_mtu_lowered} ICMP lowered a path MTU, {path_mtu_ignored} told of one and changed \
         none\n"
    ));
    if let Some(v1::DirectPaths { told, ended, refused }) = direct_paths.filter(|it| it.told > 0) {
        text.push_str(&format!(
            "{told} direct paths told, {ended} ended, {refused} without room\n"
        ));
    }
    text.push_str(&format!(
        "{} by the fast path, {} of the classifier\n",
        counted(counters.fast_path, "packet"),
        match counters.full_lookups {
            1 => "1 search".to_owned(),
            searches => format!("{searches} searches"),
        },
    ));
    text
}

fn kernel_tier(tier: &v1::KernelTier) -> String {
    let misses = tier.misses.iter().map(|miss| vec![miss.reason.clone(), miss.count.to_string()]);
    let title = "Virtual networks: packets that the kernel left to the workers";
    let mut text = table(title, &["reason", "packets"], misses, Numbers(1..=1));
    let v1::KernelTier { endpoints, max, networks, ways, promoted, promoted_busy, .. } = tier;
    let v1::KernelTier { deferred, evicted, full, refused, skipped, .. } = tier;
    let pressure = *endpoints as f64 / (*max).max(1) as f64;
    text.push_str(&format!(
        "{endpoints} of at most {max} endpoints in the kernel (pressure {pressure:.2}), {} and {} \
         open\n{promoted} went over, {promoted_busy} of them busy; {deferred} put off, {evicted} \
         given up, {full} without room, {refused} writes refused, {skipped} \
         skipped\n",
        counted(*networks, "network"),
        counted(*ways, "way"),
    ));
    let v1::KernelTier { verdicts, max_verdicts, verdicts_placed: placed, .. } = tier;
    let v1::KernelTier { verdicts_void: void, verdicts_evicted, verdicts_full, .. } = tier;
    let v1::KernelTier { verdicts_of_connections, verdicts_ended: ended, .. } = tier;
    let pressure = *verdicts as f64 / (*max_verdicts).max(1) as f64;
    text.push_str(&format!(
        "{verdicts} of at most {max_verdicts} verdicts on flows in the kernel (pressure \
         {pressure:.2}), {verdicts_of_connections} of connections; {placed} placed, {void} void, \
         {ended} of connections that ended, {verdicts_evicted} given up, {verdicts_full} without \
         room\n",
    ));
    let v1::KernelTier { samples_outdated: outdated, samples_lost: lost, .. } = tier;
    if outdated + lost > 0 {
        text.push_str(&format!(
            "samples that the audit did not judge: {outdated} of earlier rules, {lost} without \
             room\n"
        ));
    }
    if !tier.closed.is_empty() {
        text.push_str(&format!("closed: {}\n", tier.closed));
    }
    text
}

fn workers(workers: &[v1::Worker], columns: Columns) -> String {
    let rows = workers.iter().map(|worker| {
        let frames = worker.frames.unwrap_or_default();
        let v1::FrameCensus { total, free, fill, rx, tx, completion, held, missing } = frames;
        let place = [worker.worker, worker.cpu].map(|number| number.to_string());
        let numbers = [worker.turns, worker.sleeps].map(|number| number.to_string());
        let cpu = format!("{}.{:03}", worker.cpu_ms / 1000, worker.cpu_ms % 1000);
        let frames = [total, free, fill, rx, tx, completion, held].map(|number| number.to_string());
        let handed = [worker.handed_over, worker.taken_over];
        let [handed, taken] = handed.map(|number| number.to_string());
        let rest = [missing.to_string(), worker.generation.to_string(), handed, taken];
        let microseconds = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
        let mean = worker.snapshot_ns.checked_div(worker.snapshots).unwrap_or(0);
        let [mean, longest] = [mean, worker.snapshot_longest_ns].map(microseconds);
        let last = [worker.ring_frames.to_string(), worker.snapshots.to_string(), mean, longest];
        [place.as_slice(), &numbers, &[cpu], &frames, &rest, &last].concat()
    });
    let header = [
        "worker",
        "core",
        "turns",
        "sleeps",
        "CPU s",
        "frames",
        "free",
        "fill",
        "rx",
        "tx",
        "completion",
        "held",
        "missing",
        "generation",
        "handed over",
        "taken over",
        "a ring",
        "snapshots",
        "µs each",
        "longest µs",
    ];
    // The places of frames go last: they show a leak.
    let wide = [
        "turns",
        "sleeps",
        "generation",
        "handed over",
        "taken over",
        "a ring",
        "snapshots",
        "µs each",
        "longest µs",
        "CPU s",
        "core",
    ];
    let bytes = workers.first().map_or(0, |worker| worker.frame_bytes);
    let title = format!("Workers, and where their frames of {bytes} bytes are");
    fitted(&title, &header, rows, Numbers(0..=19), (columns, &wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_fit_a_terminal_and_lose_no_meaning() {
        let drop = |reason: &dataplane::DropReason| v1::Drop {
            name: reason.name().into(),
            count: 7,
            help: reason.help().into(),
        };
        let counters = v1::Counters {
            drops: dataplane::DropReason::ALL.iter().map(drop).collect(),
            workers: vec![v1::Worker::default()],
            icmp_limited: 5,
            icmp_no_frame: 6,
            direct_paths: Some(v1::DirectPaths { told: 3, ended: 2, refused: 1 }),
            ..Default::default()
        };
        let text = super::counters(&counters, Columns::Within(80));
        assert!(text.contains("\n3 direct paths told, 2 ended, 1 without room\n"), "{text}");
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for reason in dataplane::DropReason::ALL {
            let last = reason.help().split_whitespace().last().unwrap();
            assert!(words(&text).contains(last), "{last}: {text}");
        }
        assert!(text.contains("--wide adds: turns, sleeps"), "{text}");
        assert!(words(&text).contains("a ring, snapshots, µs each, longest µs"), "{text}");
        let icmp = "ICMP not made: 5 by the rate limit, 6 without a frame\n";
        assert!(text.contains(icmp), "{text}");
    }
}
