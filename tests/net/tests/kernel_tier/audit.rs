//! The audit of what the kernel answers. The fault is made from outside, by this test alone: it
//! turns round a verdict in the daemon's table in the kernel.

use std::fs;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use net::{AGAIN, Lab, lab};
use netlab::sites::Plan;

use crate::tenants::{address, furnish, kernel, late_pings, pings, put, reaches, residents, tier};
use crate::verdicts;

const NETWORK: &str = r#"
[overlay.fabric]
kind = "vxlan"
port = "lan"
entrances = ["10.1.0.1"]

[vni.7]
groups_in = ["all"]

[group.all]

[[rule]]
group = "all"
name = "any"
action = "permit"
from = ["any"]
to = ["any"]

[kernel]
use = "on"
endpoints = 16

[audit]
one_of = 1
"#;

/// The table of verdicts on flows, and the place of the verdict among the words of a record
/// (`struct lockgate_flow`).
const TABLE: &str = "lockgate_said";
const VERDICT_AT: usize = 7 * 4;
const PERMIT: [u8; 4] = 1u32.to_ne_bytes();
const DROP: [u8; 4] = 2u32.to_ne_bytes();

/// Answers of the kernel that were judged again, and the wrong ones.
fn audited(lab: &Lab) -> [u64; 2] {
    let counters = lab.gateways.daemon(1).unwrap().ask(&["show", "counters"]).unwrap();
    let audited = counters["audited"].as_array().unwrap();
    let of_kernel = audited.iter().find(|of| of["tier"] == "kernel").unwrap();
    ["packets", "wrong"].map(|what| of_kernel[what].as_u64().unwrap())
}

/// Waits, with pings, until the audit has judged so many answers, and so many were wrong.
fn until_audited(lab: &Lab, at_least: [u64; 2]) {
    let end = Instant::now() + AGAIN;
    loop {
        let now = audited(lab);
        if now.iter().zip(at_least).all(|(count, least)| *count >= least) {
            return;
        }
        assert!(Instant::now() < end, "{now:?}: {:#}\n{}", tier(lab), lab.logs());
        pings(lab, 2);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The table of verdicts of a daemon, by a descriptor of its own.
fn table_of(pid: u32) -> MapHandle {
    let mut maps = Vec::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        let text = fs::read_to_string(descriptor.unwrap().path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"));
        maps.extend(id.map(|id| MapHandle::from_map_id(id.trim().parse().unwrap()).unwrap()));
    }
    maps.into_iter().find(|map| map.name() == TABLE).expect("the daemon's table")
}

/// Makes the kernel drop what one verdict permits; returns how many verdicts there are.
fn turn_one_round(pid: u32) -> usize {
    let table = table_of(pid);
    let mut permitted = table.keys().filter_map(|slot| {
        let record = table.lookup(&slot, MapFlags::ANY).unwrap()?;
        (record[VERDICT_AT..][..4] == PERMIT).then_some((slot, record))
    });
    let (slot, mut record) = permitted.next().expect("a verdict");
    let others = permitted.count();
    record[VERDICT_AT..][..4].copy_from_slice(&DROP);
    table.update(&slot, &record, MapFlags::ANY).unwrap();
    1 + others
}

#[test]
fn a_wrong_verdict_in_the_kernel_is_found_and_the_tier_rests() {
    let Some(mut lab) = lab("kernel audit", Plan { sites: 1, ..Plan::default() }) else { return };
    lab.gateways.file_mut(1).extra = NETWORK.into();
    let _far = furnish(&lab);
    let Some(lab) = lab.start("kernel audit") else { return };
    put(&lab, 1, &lab.gateways.site(1).host_v4());
    put(&lab, 2, "10.1.5.2");
    reaches(&lab);
    residents(&lab, 2);
    verdicts(&lab, 2);

    // Every answer is judged again, and right.
    until_audited(&lab, [20, 0]);
    assert_eq!(audited(&lab)[1], 0, "{}", lab.logs());
    assert_eq!(tier(&lab)["closed"], "");

    let daemon = lab.gateways.daemon(1).unwrap();
    assert_eq!(turn_one_round(daemon.pid()), 2);
    let dropped = kernel(&lab, "verdict_dropped");
    assert_eq!(pings(&lab, 2).received, 0);
    assert!(kernel(&lab, "verdict_dropped") > dropped);
    until_audited(&lab, [21, 1]);
    let log = daemon.log();
    let rules = "and the rules say forward by all/any";
    for words in ["audit_failed", "the kernel said drop", rules, "network=7", &address(2)] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let closed = tier(&lab)["closed"].as_str().unwrap().to_owned();
    assert!(closed.contains("the audit found a wrong answer"), "{closed}");

    // Workers have all packets, by the rules, once the tier has let go of the last.
    reaches(&lab);
    let sent = kernel(&lab, "transmitted");
    assert!(late_pings(&lab, 5).all_answered(), "{:#}", tier(&lab));
    assert_eq!(kernel(&lab, "transmitted"), sent);
    lab.balances();
}
