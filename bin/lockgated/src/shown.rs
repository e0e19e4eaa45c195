//! Describes what runs in the API's messages.

use std::net::IpAddr;

use api::v1;
use config::{HOST_NETDEV, mac_text, service_text};
use control::PortState;
use dataplane::{
    AuditCounts, DirectCounts, DropReason, FastTier, L4Checksum, Ledger, PortId, PortInfo, Side,
};
use ipsec::{Encapsulation, Fingerprint};
use linux::NeighbourState;

mod lookup_order;
mod sas;

pub(crate) use lookup_order::policies_in_order;
pub(crate) use sas::sa_entries;

use crate::assign;
use crate::kernel_tier::TierReport;
use crate::netdev::Netdev;
use crate::overview;
use crate::picture::Picture;
use crate::totals::Totals;
use crate::worker::Report;

fn ledger(ledger: &Ledger) -> v1::Ledger {
    v1::Ledger {
        received: ledger.received,
        made: ledger.made,
        sent: ledger.sent,
        dropped: ledger.dropped,
        consumed: ledger.consumed,
        host: ledger.host,
        held: ledger.held,
        imbalance: ledger.imbalance(),
    }
}

pub(crate) fn ports(picture: &Picture, reports: &[Report], totals: &Totals) -> Vec<v1::Port> {
    let slots = picture.live.slots.ports().enumerate();
    slots.map(|place| port(picture, place, reports, totals)).collect()
}

/// Describes a port by its place in the file, where the host port is behind the last, and its slot.
fn port(
    picture: &Picture,
    (place, slot): (usize, PortId),
    reports: &[Report],
    totals: &Totals,
) -> v1::Port {
    let info = picture.live.ports.at(usize::from(slot.0));
    let configured = picture.config().ports.get(place);
    let netdev = configured.map_or(HOST_NETDEV, |port| port.netdev.as_str());
    let device = picture.netdevs.get(netdev);
    let is_host = configured.is_none();
    let ifindex = picture.live.netdevs.get(usize::from(info.netdev.0)).copied().flatten();
    let (port_state, reason) = port_state(picture, slot, netdev);
    let queues = queues(picture, info, reports);
    let copy_mode = reports.iter().find_map(|report| {
        report.queues.get(usize::from(info.netdev.0))?.first().map(|queue| match queue.transfer {
            xsk::Transfer::Copy => "copy",
            xsk::Transfer::ZeroCopy => "zero-copy",
        })
    });
    let transmitted = totals.transmitted.get(&info.name).copied().unwrap_or_default();
    v1::Port {
        name: info.name.clone(),
        netdev: netdev.into(),
        ifindex: ifindex.unwrap_or(0),
        vlan: info.vlan.map(u32::from),
        side: side_text(info.side).into(),
        state: port_state.into(),
        state_reason: reason,
        xdp_mode: match device {
            _ if is_host => "tun".into(),
            Some(device) => device.attached.mode.name().into(),
            None => String::new(),
        },
        native_refused: device
            .and_then(|device| device.attached.native_refused.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        copy_mode: copy_mode.unwrap_or_default().into(),
        mac: mac_text(info.mac),
        mtu: info.mtu,
        addresses: addresses(picture, slot),
        allow_host: info.allow_host.iter().map(service_text).collect(),
        kernel: device.and_then(|device| kernel_counters(device, &queues)),
        queues,
        ledger: Some(totals.ledgers.get(&info.name).map(ledger).unwrap_or_default()),
        tx_packets: transmitted.packets,
        tx_bytes: transmitted.bytes,
        l4_checksum: Some(l4_checksum(info, totals)),
    }
}

fn l4_checksum(info: &PortInfo, totals: &Totals) -> v1::L4Checksum {
    let counts = totals.l4_checksums.get(&info.name).copied().unwrap_or_default();
    v1::L4Checksum {
        mode: match info.l4_checksum {
            L4Checksum::Complete => "complete".into(),
            L4Checksum::Pass => "pass".into(),
        },
        completed: counts.completed,
        checked: counts.checked,
        bad: counts.bad,
    }
}

fn port_state(picture: &Picture, slot: PortId, netdev: &str) -> (&'static str, String) {
    let trouble = picture.troubles.get(netdev);
    let is_ours = slot == picture.live.slots.host() || picture.netdevs.contains_key(netdev);
    match (picture.live.states.get(usize::from(slot.0)), trouble) {
        (Some(PortState::Absent) | None, _) => ("absent", format!("there is no netdev {netdev}")),
        (_, Some(trouble)) => ("refused", trouble.clone()),
        _ if !is_ours => ("detached", "its netdev is not attached yet".into()),
        (Some(PortState::Down), _) => {
            ("down", format!("{netdev} is switched off: ip link set {netdev} up"))
        }
        (Some(PortState::NoCarrier), _) => ("down", format!("{netdev} has no carrier")),
        (Some(PortState::Up), _) => ("up", String::new()),
    }
}

fn side_text(side: Side) -> &'static str {
    match side {
        Side::Protected => "protected",
        Side::Unprotected => "unprotected",
    }
}

fn addresses(picture: &Picture, PortId(slot): PortId) -> Vec<String> {
    let link = picture.live.links.get(usize::from(slot)).copied().flatten();
    let Some(link) = link else { return Vec::new() };
    let on_link = picture.view.addresses.iter().filter(|(index, ..)| *index == link);
    on_link.map(|(_, address, length)| format!("{address}/{length}")).collect()
}

fn queues(picture: &Picture, info: &PortInfo, reports: &[Report]) -> Vec<v1::Queue> {
    let mut queues = Vec::new();
    for (worker, report) in reports.iter().enumerate() {
        for queue in report.queues.get(usize::from(info.netdev.0)).into_iter().flatten() {
            let (kernel, own) = (queue.statistics.kernel, queue.statistics.own);
            queues.push(v1::Queue {
                queue: queue.queue,
                worker: worker as u32,
                socket: true,
                socket_refused: String::new(),
                rx_packets: own.received,
                tx_packets: own.sent,
                rx_dropped: kernel.rx_dropped + own.rx_invalid + own.rx_abandoned,
                queue_full: kernel.rx_ring_full,
                foreign: queue.foreign,
                fill_empty: kernel.rx_fill_ring_empty_descs,
                tx_invalid: kernel.tx_invalid_descs,
                tx_full: own.tx_full,
            });
        }
    }
    if info.netdev == picture.live.slots.host_netdev() {
        queues.extend(host_queues(reports));
        return queues;
    }
    let device = picture.netdevs.values().find(|device| {
        picture.live.netdevs.get(usize::from(info.netdev.0)) == Some(&Some(device.ifindex))
    });
    for queue in 0..device.map_or(0, |device| device.queues) {
        if queues.iter().all(|known| known.queue != queue) {
            queues.push(v1::Queue {
                queue,
                worker: assign::worker_of(queue, picture.active as u32),
                socket_refused: "its socket is not bound".into(),
                ..v1::Queue::default()
            });
        }
    }
    queues.sort_by_key(|queue| queue.queue);
    queues
}

/// The host port's queues, one per worker.
fn host_queues(reports: &[Report]) -> impl Iterator<Item = v1::Queue> {
    let with_host = (0..).zip(reports).filter_map(|(worker, report)| Some((worker, report.host?)));
    with_host.map(|(worker, host)| v1::Queue {
        queue: worker,
        worker,
        socket: true,
        rx_packets: host.received,
        tx_packets: host.sent,
        rx_dropped: host.too_long,
        tx_invalid: host.refused,
        tx_full: host.full + host.down,
        ..v1::Queue::default()
    })
}

/// Returns the program's counters, compared with what the sockets received and lost of its packets;
/// `None`: they cannot be read.
fn kernel_counters(device: &Netdev, queues: &[v1::Queue]) -> Option<v1::KernelCounters> {
    let counters = device.counters.as_ref()?.read().ok()?;
    let of = |counter| counters.of(counter);
    let to_worker = of(bpf::Counter::ToWorker);
    let lost: u64 = queues.iter().map(|queue| queue.rx_dropped + queue.queue_full).sum();
    let received: u64 = queues.iter().map(|queue| queue.rx_packets).sum();
    Some(v1::KernelCounters {
        received: counters.received(),
        passed_not_to_us: of(bpf::Counter::PassedNotToUs),
        passed_arp_nd: of(bpf::Counter::PassedArpNd),
        passed_not_ip: of(bpf::Counter::PassedNotIp),
        passed_to_host: of(bpf::Counter::PassedToHost),
        passed_allow_host: of(bpf::Counter::PassedAllowHost),
        to_worker,
        no_socket: of(bpf::Counter::NoSocket),
        mark_failed: of(bpf::Counter::MarkFailed),
        ring_full: lost,
        imbalance: to_worker as i64 - (received + lost) as i64,
        transmitted: of(bpf::Counter::Transmitted),
        arp_answered: of(bpf::Counter::ArpAnswered),
        verdict_dropped: of(bpf::Counter::VerdictDropped),
        no_card_header: of(bpf::Counter::NoCardHeader),
        passed_carried: of(bpf::Counter::PassedCarried),
    })
}

/// The kernel tier of virtual networks.
pub(crate) fn kernel_tier(report: TierReport) -> v1::KernelTier {
    let TierReport { counts, tally, misses, closed } = report;
    let miss = |(reason, count): (&str, u64)| v1::Miss { reason: reason.into(), count };
    v1::KernelTier {
        endpoints: counts.resident as u64,
        max: counts.max as u64,
        networks: counts.networks as u64,
        ways: counts.ways as u64,
        promoted: tally.promoted,
        promoted_busy: tally.promoted_busy,
        deferred: tally.deferred,
        evicted: tally.evicted,
        full: tally.full,
        refused: tally.refused,
        skipped: tally.skipped,
        closed: closed.unwrap_or_default(),
        verdicts: counts.flows as u64,
        max_verdicts: counts.max_flows as u64,
        verdicts_placed: tally.flows.placed,
        verdicts_evicted: tally.flows.evicted,
        verdicts_void: tally.flows.void,
        verdicts_full: tally.flows.full,
        verdicts_of_connections: counts.connection_flows as u64,
        verdicts_ended: tally.flows.ended,
        samples_outdated: tally.samples.outdated,
        samples_lost: tally.samples.lost,
        misses: misses.into_iter().map(miss).collect(),
    }
}

/// Returns the headers before ESP, in the configuration's words.
pub(crate) fn in_front(encapsulation: &Encapsulation) -> &'static str {
    if encapsulation.udp.is_some() { "udp" } else { "none" }
}

/// The first digits of a fingerprint.
pub(crate) fn short(fingerprint: &Fingerprint) -> String {
    fingerprint.to_string().chars().take(16).collect()
}

pub(crate) fn neighbours(picture: &Picture) -> Vec<v1::Neighbour> {
    let mut all: Vec<(IpAddr, v1::Neighbour)> = picture
        .view
        .neighbours
        .iter()
        .filter_map(|((link, address), entry)| {
            let port = picture.live.port_of_link(*link)?;
            let text = match entry.state {
                NeighbourState::Good => "reachable",
                NeighbourState::Permanent => "permanent",
                NeighbourState::Stale => "stale",
                NeighbourState::Unresolved => "incomplete",
                NeighbourState::Failed => "failed",
            };
            let neighbour = v1::Neighbour {
                port: picture.live.ports.at(usize::from(port.0)).name.clone(),
                address: address.to_string(),
                mac: entry.mac.map(mac_text).unwrap_or_default(),
                state: text.into(),
                next_hop: picture.live.fresh.contains(&(*link, *address)),
                held: 0,
            };
            Some(((*address).into(), neighbour))
        })
        .collect();
    all.sort_by(|(a, left), (b, right)| (&left.port, a).cmp(&(&right.port, b)));
    all.into_iter().map(|(_, neighbour)| neighbour).collect()
}

fn direct_paths(counts: &DirectCounts) -> v1::DirectPaths {
    let DirectCounts { told, ended, refused } = *counts;
    v1::DirectPaths { told, ended, refused }
}

pub(crate) fn counters(picture: &Picture, reports: &[Report], totals: &Totals) -> v1::Counters {
    let total = totals.ledger();
    let ports = ports(picture, reports, totals);
    let mut kernel_imbalance = 0;
    let mut in_kernel = 0;
    let mut seen = Vec::new();
    for port in &ports {
        if let (Some(kernel), false) = (&port.kernel, seen.contains(&port.netdev)) {
            seen.push(port.netdev.clone());
            kernel_imbalance += kernel.imbalance.unsigned_abs();
            in_kernel += kernel.received - kernel.to_worker;
        }
    }
    let ledgers = totals.ledgers.values().map(|ledger| ledger.imbalance().unsigned_abs());
    v1::Counters {
        tiers: Some(v1::Tiers {
            device: totals.tagged,
            kernel: in_kernel,
            cache: totals.cache.hits,
            classifier: total.received.saturating_sub(totals.cache.hits + totals.tagged),
        }),
        drops: DropReason::ALL
            .iter()
            .map(|reason| v1::Drop {
                name: reason.name().into(),
                count: totals.drops.get(reason).copied().unwrap_or(0),
                help: reason.help().into(),
            })
            .collect(),
        ledger_imbalance: ledgers.sum::<u64>() + kernel_imbalance,
        ledger: Some(ledger(&total)),
        workers: reports.iter().enumerate().map(|(n, report)| worker(picture, n, report)).collect(),
        held: reports.iter().map(|report| report.waiting as u32).sum(),
        icmp_limited: totals.icmp_limited,
        icmp_no_frame: totals.icmp_no_frame,
        path_mtu_lowered: totals.path_mtu_lowered,
        path_mtu_ignored: totals.path_mtu_ignored,
        generation: picture.snapshot.generation().0,
        revision: picture.revision,
        uptime_ms: picture.since.elapsed().as_millis() as u64,
        netlink_resyncs: picture.netlink_resyncs,
        keepalives: totals.keepalives,
        direct_paths: Some(direct_paths(&totals.direct)),
        fast_path: totals.fast_path,
        audited: audited(&totals.audit),
        full_lookups: totals.full_lookups,
        ports: ports.iter().map(|port| overview::port_activity(picture, port)).collect(),
        kernel_tier: None,
        drops_last_minute: overview::drops(picture),
        rate_time_ms: overview::milliseconds(picture.history.lately()),
    }
}

fn audited(counts: &AuditCounts) -> Vec<v1::Audited> {
    let of = |tier: FastTier| v1::Audited {
        tier: tier.name().into(),
        packets: counts.judged[tier as usize],
        wrong: counts.wrong[tier as usize],
    };
    FastTier::ALL.map(of).into()
}

fn worker(picture: &Picture, number: usize, report: &Report) -> v1::Worker {
    let census = &report.census;
    v1::Worker {
        worker: number as u32,
        cpu: picture.workers.all()[number].core as u32,
        turns: report.turns,
        cpu_ms: report.cpu.as_millis() as u64,
        sleeps: report.sleeps,
        generation: report.flushed.snapshot.generation().0,
        frames: Some(v1::FrameCensus {
            total: census.total as u64,
            free: census.free as u64,
            fill: census.receive as u64,
            rx: 0,
            tx: census.transmit as u64,
            completion: census.quarantined as u64,
            held: census.outside as u64,
            missing: census.imbalance(),
        }),
        handed_over: report.handed_over,
        taken_over: report.taken_over,
        frame_bytes: report.frame_bytes as u32,
        ring_frames: report.quota,
        snapshots: report.changeovers.count,
        snapshot_ns: report.changeovers.spent.as_nanos() as u64,
        snapshot_longest_ns: report.changeovers.longest.as_nanos() as u64,
    }
}
