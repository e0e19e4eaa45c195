//! The kernel tier of virtual networks, live. Both hosts are behind the protected port of gateway
//! A, which sends what comes from one back by the same port to the other:
//!
//! ```text
//! tenant 172.16.0.1 ┐                     lan
//!     vx in host-a (10.1.0.10) ── VXLAN ── gw-a (entrance 10.1.0.1)
//!       │ forwards
//!     vx in far (10.1.5.2), tenant 172.16.0.2
//! ```

mod audit;
mod connections;
mod direct;
mod tenants;

use std::time::{Duration, Instant};

use net::{AGAIN, Lab, lab};
use netlab::ping::Ping;
use netlab::sites::Plan;
use serde_json::Value;
use tenants::{
    address, furnish, kernel, late_pings, pings, put, reaches, residents, succeed, tier,
};

const NETWORK: &str = r#"
[overlay.fabric]
kind = "vxlan"
port = "lan"
entrances = ["10.1.0.1"]

[vni.7]

[kernel]
use = "on"
endpoints = 16
"#;

/// Time until the kernel is silent after a daemon hangs (DESIGN, I10).
const LEASE: Duration = Duration::from_secs(2);
/// Time until a deletion is to be gone from every tier (AX-36).
const GONE: Duration = Duration::from_millis(100);

// AX-01 AX-15 AX-24 AX-36 LEASE
#[test]
fn the_kernel_answers_what_it_may_and_nothing_more() {
    let Some(mut lab) = lab("kernel tier", Plan { sites: 1, ..Plan::default() }) else { return };
    lab.gateways.file_mut(1).extra = NETWORK.into();
    let far = furnish(&lab);
    let Some(mut lab) = lab.start("kernel tier") else { return };
    let host = lab.gateways.site(1).host_v4();
    put(&lab, 1, &host);
    put(&lab, 2, "10.1.5.2");
    reaches(&lab);
    residents(&lab, 2);

    // AX-01: what is in the table does not reach the workers.
    let before = ["transmitted", "to_worker"].map(|counter| kernel(&lab, counter));
    let answers = late_pings(&lab, 50);
    assert!(answers.all_answered(), "{}", answers.text);
    let after = ["transmitted", "to_worker"].map(|counter| kernel(&lab, counter));
    assert_eq!(after[0] - before[0], 100, "{:#}", tier(&lab));
    // Other frames come by the port, too; few.
    assert!(after[1] - before[1] < 20, "{before:?} {after:?}");

    // AX-24
    let answered = kernel(&lab, "arp_answered");
    far.ip("neigh flush dev vx").unwrap();
    lab.gateways.site(1).host.ip("neigh flush dev vx").unwrap();
    reaches(&lab);
    assert!(kernel(&lab, "arp_answered") > answered);

    hung(&lab);
    deleted(&lab);
    put(&lab, 2, "10.1.5.2");
    reaches(&lab);
    residents(&lab, 2);
    judged(&lab);
    killed(&mut lab);
    lab.balances();
}

/// LEASE: a daemon that hangs silences the kernel, by the kernel's clock.
fn hung(lab: &Lab) {
    let daemon = lab.gateways.daemon(1).unwrap();
    daemon.pause();
    let began = Instant::now();
    // Within the lease the kernel answers alone: a second at least, as it is renewed often.
    let alone = Ping::new(&address(2), 3).run(&lab.gateways.site(1).host).unwrap();
    let within = began.elapsed();
    std::thread::sleep((LEASE + Duration::from_millis(50)).saturating_sub(began.elapsed()));
    let silent = pings(lab, 3);
    daemon.resume();
    println!("hung: {} of 3 answered within {within:?}; then {}", alone.received, silent.received);
    assert!(within > LEASE / 2 || alone.all_answered(), "{}", alone.text);
    assert_eq!(silent.received, 0, "{}", silent.text);
    reaches(lab);
    residents(lab, 2);
    let before = kernel(lab, "transmitted");
    assert!(late_pings(lab, 5).all_answered());
    assert_eq!(kernel(lab, "transmitted") - before, 10);
}

/// AX-36: a deleted endpoint is gone from the kernel when the command answers.
fn deleted(lab: &Lab) {
    let said = succeed(lab, &["endpoint", "del", "7", &address(2), "--json"]);
    let before = kernel(lab, "transmitted");
    let done: Value = serde_json::from_str(&said).unwrap();
    let applied = Duration::from_micros(done["applied_us"].as_u64().unwrap());
    println!("deleted: applied after {applied:?} (goal {GONE:?})");
    // A busy machine misses the goal.
    assert!(applied < 100 * GONE, "{applied:?}");
    assert_eq!(pings(lab, 5).received, 0);
    assert_eq!(kernel(lab, "transmitted"), before);
    assert_eq!(tier(lab)["endpoints"], 1);
}

/// I4: packets of a network that gets a group are answered by verdicts on its flows only, a change
/// of its rules holds when it is answered, and without the group all is as before.
fn judged(lab: &Lab) {
    let daemon = lab.gateways.daemon(1).unwrap();
    let plain = succeed(lab, &["export"]);
    let grouped = plain.replace(
        "[vni.7]",
        "[group.all]\n\n[[rule]]\ngroup = \"all\"\nname = \"any\"\n\
        action = \"permit\"\nfrom = [\"any\"]\nto = [\"any\"]\n\n[vni.7]",
    );
    let grouped = grouped.replacen(
        "groups_in = []\ngroups_out = []\nsource_check",
        "groups_in = [\"all\"]\ngroups_out = []\nsource_check",
        1,
    );
    let file = lab.gateways.directory().join("grouped.toml");
    std::fs::write(&file, &grouped).unwrap();
    daemon.apply(&file).unwrap();
    assert_eq!(tier(lab)["verdicts"], 0, "{:#}", tier(lab));
    assert_eq!(tier(lab)["networks"], 1);
    let count = |counter| kernel(lab, counter);

    // The verdicts on the questions and on the answers go over.
    verdicts(lab, 2);
    let before = ["transmitted", "to_worker"].map(count);
    assert!(late_pings(lab, 50).all_answered());
    let after = ["transmitted", "to_worker"].map(count);
    assert_eq!(after[0] - before[0], 100, "{:#}", tier(lab));
    assert!(after[1] - before[1] < 20, "{before:?} {after:?}");

    // A rule holds when it is answered, here and in the kernel.
    let deny = ["rule", "add", "--group", "all", "--name", "no-ping", "--action", "deny"];
    let ping = ["--from", "any", "--to", "any", "--protocol", "icmp", "--icmp", "8"];
    succeed(lab, &[&deny[..], &ping, &["--before", "any"]].concat());
    let sent = kernel(lab, "transmitted");
    assert_eq!(pings(lab, 5).received, 0, "{:#}", tier(lab));
    assert_eq!(kernel(lab, "transmitted"), sent);
    let end = Instant::now() + AGAIN;
    while tier(lab)["verdicts"] != 1 {
        assert!(Instant::now() < end, "{:#}\n{}", tier(lab), lab.logs());
        pings(lab, 5);
    }
    let dropped = kernel(lab, "verdict_dropped");
    assert_eq!(pings(lab, 20).received, 0);
    assert_eq!(kernel(lab, "verdict_dropped") - dropped, 20, "{:#}", tier(lab));

    succeed(lab, &["rule", "del", "all/no-ping"]);
    let dropped = kernel(lab, "verdict_dropped");
    assert!(late_pings(lab, 5).all_answered(), "{:#}", tier(lab));
    assert_eq!(kernel(lab, "verdict_dropped"), dropped);

    // Without the group its endpoints are answered for at once: they were there all the time.
    std::fs::write(&file, &plain).unwrap();
    daemon.apply(&file).unwrap();
    let sent = kernel(lab, "transmitted");
    assert!(late_pings(lab, 5).all_answered());
    assert_eq!(kernel(lab, "transmitted") - sent, 10, "{:#}", tier(lab));
}

/// Waits, with traffic, until the kernel has so many verdicts.
fn verdicts(lab: &Lab, count: u64) {
    let end = Instant::now() + AGAIN;
    while tier(lab)["verdicts"] != count {
        assert!(Instant::now() < end, "{:#}\n{}", tier(lab), lab.logs());
        assert!(late_pings(lab, 5).all_answered());
    }
}

/// A killed daemon leaves no tier behind; one that starts fills it anew.
fn killed(lab: &mut Lab) {
    lab.gateways.kill(1);
    let silent = pings(lab, 5);
    assert_eq!(silent.received, 0, "{}", silent.text);
    lab.gateways.start(1).unwrap();
    reaches(lab);
    residents(lab, 2);
}
