//! The siege: attacks at 3,000 packets a second beside honest traffic, `make test-long PART=siege`.
//!
//! | module | content |
//! |---|---|
//! | [`stage`] | configuration and network of the gateway under attack |
//! | [`frames`] | frames of the attacks |
//! | [`honest`] | honest packets, and their losses in a phase |
//! | [`probes`] | honest packets in the aim of an attack |
//! | [`readers`] | local users of the API and of the metrics |
//!
//! Each test runs a phase without the attack and a phase beside the attack, with one pair of
//! gateways. Honest packets of each kind lose at most one percent more beside the attack.
//! Afterwards no packet is held, no ledger has an imbalance, and the memory of the daemon is within
//! five percent. The largest memory grows by at most 64 MiB.

mod frames;
mod honest;
mod probes;
mod readers;
mod stage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use honest::{KindLoss, Phase};
use net::Lab;
use netlab::inject::FrameSender;
use netlab::sites::HOST_INTERFACE;
use probes::Probe;
use stage::{Aftermath, Stage};

/// Packets of an attack a second.
const RATE: u32 = 3000;
/// Head start of an attack, enough to reach the bounds.
const WARM_UP: Duration = Duration::from_secs(3);
/// Loss beside an attack above the loss without the attack, in percent.
const MAX_MORE_LOSS: f64 = 1.0;
/// Lasting growth of the daemon's memory after an attack.
const MAX_GROWTH: f64 = 1.05;
/// Growth of the daemon's largest memory by an attack, in KiB: eight times the largest text of a
/// request here, which is 8 MB.
const MAX_PEAK_GROWTH_KIB: u64 = 64 << 10;
/// Time to recover: fragments wait 2 s, packets for neighbours 3 s.
const RECOVERY: Duration = Duration::from_secs(20);

/// Sets a flag when dropped: an attacker ends even if a check fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs both phases of a test, prints a line of figures, and fails with the broken promises.
/// `attack` runs until its flag is set, and returns the number of packets or requests.
fn besiege(
    name: &str,
    stage: Stage,
    probe: impl FnOnce(&Lab) -> Option<Probe>,
    attack: impl Fn(&Lab, &AtomicBool) -> u64 + Sync,
) {
    let Some(lab) = stage.build(name) else { return };
    lab.flows_again();
    let mut probe = probe(&lab);
    let control = honest::run_phase(&lab, probe.as_mut());
    let before = stage::memory(&lab).expect("the daemon runs");
    let peak_before = stage::peak_memory(&lab).expect("the daemon runs");
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let (attacks, beside) = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let attacker = scope.spawn(|| attack(&lab, &stop));
        std::thread::sleep(WARM_UP);
        let beside = honest::run_phase(&lab, probe.as_mut());
        stop.store(true, Ordering::Relaxed);
        (attacker.join().expect("the attacker runs to its end"), beside)
    });
    let seconds = started.elapsed().as_secs_f64();
    let aftermath = stage::wait_for_recovery(&lab, before, RECOVERY);
    let peak = stage::peak_memory(&lab).unwrap_or(0);
    let mut faults = faults(&control, &beside, before, &aftermath);
    if peak > peak_before + MAX_PEAK_GROWTH_KIB {
        faults.push(format!("the daemon took {} MiB more", (peak - peak_before) >> 10));
    }
    let verdict = if faults.is_empty() { "holds".to_owned() } else { faults.join("; ") };
    let losses = control.kinds.iter().zip(&beside.kinds).map(|(control, beside)| {
        let KindLoss { name, sent, .. } = beside;
        format!("{name} {:.1} > {:.1} % of {sent}", control.percent(), beside.percent())
    });
    println!(
        "siege: {name}: {attacks} in {seconds:.1} s; lost: {}; {aftermath}, before {} MiB, \
         peak {} MiB: {verdict}",
        losses.collect::<Vec<_>>().join(", "),
        before >> 10,
        peak >> 10,
    );
    assert!(faults.is_empty(), "{name}: {verdict}\n{}", lab.logs());
}

/// Returns the broken promises.
fn faults(control: &Phase, beside: &Phase, before_kib: u64, aftermath: &Aftermath) -> Vec<String> {
    let mut faults = Vec::new();
    for (control, beside) in control.kinds.iter().zip(&beside.kinds) {
        let more = beside.percent() - control.percent();
        if more > MAX_MORE_LOSS {
            faults.push(format!("{} lose {more:.1} % more", beside.name));
        }
    }
    match aftermath {
        Aftermath::Ended => faults.push("the daemon has ended".to_owned()),
        Aftermath::Running { held, imbalance, memory_kib } => {
            if *held > 0 {
                faults.push(format!("{held} packets are held for ever"));
            }
            if *imbalance > 0 {
                faults.push(format!("the ledger has an imbalance of {imbalance}"));
            }
            if *memory_kib as f64 > before_kib as f64 * MAX_GROWTH {
                faults.push(format!("{} MiB of memory stay", (memory_kib - before_kib) >> 10));
            }
        }
    }
    faults
}

/// Floods the gateway's unprotected port.
fn flood_wan(lab: &Lab, stop: &AtomicBool, frame: impl FnMut(u64) -> Vec<u8>) -> u64 {
    let gateways = &lab.gateways;
    let sender = FrameSender::open(&gateways.sites.wire, &gateways.site(1).wire_port()).unwrap();
    sender.flood(RATE, stop, frame).unwrap()
}

/// Floods the gateway's protected port.
fn flood_lan(lab: &Lab, stop: &AtomicBool, frame: impl FnMut(u64) -> Vec<u8>) -> u64 {
    let sender = FrameSender::open(&lab.gateways.site(1).host, HOST_INTERFACE).unwrap();
    sender.flood(RATE, stop, frame).unwrap()
}

#[test]
#[ignore = "make test-long PART=siege"]
fn two_fragment_headers_of_ipv6_hold_no_fragment_for_ever() {
    besiege("two Fragment headers", Stage::named_ports(), |lab| Some(probes::fragments_v6(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::two_fragment_headers)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn a_subnet_scan_leaves_new_neighbours_reachable() {
    besiege("subnet scan", Stage::open(), |lab| Some(probes::new_neighbours(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::subnet_scan)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn a_syn_flood_leaves_room_for_new_connections() {
    besiege("SYN flood", Stage::tracked(), |lab| Some(probes::new_connections(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::syn)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn a_udp_flood_leaves_room_for_new_connections() {
    besiege("UDP flood", Stage::tracked(), |lab| Some(probes::new_connections(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::udp)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn packets_with_ttl_1_leave_packet_too_big_messages() {
    besiege("TTL 1", Stage::open(), |lab| Some(probes::packets_too_big(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::last_hop)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn fragments_that_never_complete_leave_room_for_fragments() {
    besiege("endless fragments", Stage::named_ports(), |lab| Some(probes::fragments_v4(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::endless_fragments)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn esp_with_an_unknown_spi_leaves_the_tunnel_alone() {
    besiege("ESP, unknown SPI", Stage::open(), |_| None, {
        |lab, stop| flood_wan(lab, stop, frames::esp_of_an_unknown_spi)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn forged_icmp_leaves_the_tunnel_alone() {
    besiege("forged ICMP", Stage::open(), |lab| Some(probes::packets_too_big(lab)), {
        |lab, stop| flood_wan(lab, stop, frames::forged_icmp)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn ipv4_options_leave_other_packets_alone() {
    besiege("IPv4 options", Stage::open(), |_| None, {
        |lab, stop| flood_lan(lab, stop, frames::ipv4_options)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn mixed_vlans_leave_other_packets_alone() {
    besiege("VLAN mix", Stage::vlans(), |_| None, {
        |lab, stop| flood_lan(lab, stop, frames::mixed_vlans)
    });
}

#[test]
#[ignore = "make test-long PART=siege"]
fn a_loop_of_metrics_leaves_traffic_alone() {
    besiege("metrics loop", Stage::many_policies(2000), |_| None, readers::read_metrics);
}

#[test]
#[ignore = "make test-long PART=siege"]
fn unread_streams_leave_traffic_and_memory_alone() {
    besiege("unread streams", Stage::many_policies(20_000), |_| None, readers::leave_unread);
}

#[test]
#[ignore = "make test-long PART=siege"]
fn a_giant_diff_leaves_traffic_and_memory_alone() {
    besiege("giant diff", Stage::open(), |_| None, readers::compare_giant);
}
