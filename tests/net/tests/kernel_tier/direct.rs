//! Direct paths, with hosts whose agents do as they are told: the second packet of a flow goes
//! past the gateway.

use std::time::{Duration, Instant};

use net::{AGAIN, Lab, lab};
use netlab::direct_paths::{DirectAgent, Heard};
use netlab::sites::Plan;
use serde_json::Value;
use wire::direct_path::Operation;

use crate::NETWORK;
use crate::tenants::{address, furnish, kernel, late_pings, pings, put, reaches, succeed};

/// Time until a path of a deleted endpoint is ended (AX-36).
const ENDED: Duration = Duration::from_millis(100);

// AX-31
#[test]
fn the_second_packet_of_a_flow_goes_past_the_gateway() {
    let Some(mut lab) = lab("direct paths", Plan { sites: 1, ..Plan::default() }) else { return };
    let told = NETWORK.replace("[vni.7]", "direct = \"on\"\n\n[vni.7]");
    lab.gateways.file_mut(1).extra = told;
    let far = furnish(&lab);
    let near = DirectAgent::start(&lab.gateways.site(1).host, "vx", 8300).unwrap();
    let far_agent = DirectAgent::start(&far, "vx", 8300).unwrap();
    let Some(lab) = lab.start("direct paths") else { return };
    let host = lab.gateways.site(1).host_v4();
    put(&lab, 1, &host);
    put(&lab, 2, "10.1.5.2");

    reaches(&lab);
    let agents = [&near, &far_agent];
    for agent in agents {
        wait_for(&lab, agent, Operation::Encap, 1);
    }
    let said = near.heard()[0].message;
    assert_eq!(said.flow.source.to_string(), address(1));
    assert_eq!(said.flow.destination.to_string(), address(2));
    assert_eq!(said.path.host.to_string(), "10.1.5.2");
    assert_eq!((said.flow.protocol, said.timeout_s), (1, 30));

    let before = kernel(&lab, "to_worker");
    let answers = late_pings(&lab, 50);
    assert!(answers.all_answered(), "{}", answers.text);
    let by_gateway = kernel(&lab, "to_worker") - before;
    println!("of 50 pings and their answers {by_gateway} packets came by the gateway");
    // Other frames come by the port, too; few.
    assert!(by_gateway < 20, "{by_gateway}");

    // A deleted endpoint: its path is ended, and packets meet the gateway's drop.
    let deleted = Instant::now();
    succeed(&lab, &["endpoint", "del", "7", &address(2)]);
    let ended = wait_for(&lab, &near, Operation::Delete, 1).at - deleted;
    println!(
        "deleted: the host heard after {ended:?}, the command's own time in it (goal {ENDED:?})"
    );
    assert!(ended < 10 * ENDED, "{ended:?}");
    assert_eq!(pings(&lab, 3).received, 0);

    put(&lab, 2, "10.1.5.2");
    reaches(&lab);
    wait_for(&lab, &near, Operation::Encap, 2);
    let counters = lab.gateways.daemon(1).unwrap().ask(&["show", "counters"]).unwrap();
    let count = |what: &str| counters["direct_paths"][what].as_u64().unwrap_or_default();
    assert!(count("told") >= 3 && count("ended") >= 1, "{:#}", counters["direct_paths"]);
    assert_eq!(tier_networks(&counters), 0, "workers tell: the kernel has no part in it");

    // Without direct paths hosts are told so, and the gateway has all packets again.
    let file = lab.gateways.directory().join("by-gateway.toml");
    let without = succeed(&lab, &["export"]).replace("direct = \"on\"", "direct = \"off\"");
    std::fs::write(&file, without).unwrap();
    lab.gateways.daemon(1).unwrap().apply(&file).unwrap();
    wait_for(&lab, &near, Operation::Delete, 2);
    wait_for(&lab, &far_agent, Operation::Delete, 2);
    let came = |lab| kernel(lab, "to_worker") + kernel(lab, "transmitted");
    let before = came(&lab);
    assert!(late_pings(&lab, 50).all_answered());
    assert!(came(&lab) - before >= 100);
    lab.balances();
}

fn tier_networks(counters: &Value) -> u64 {
    counters["kernel_tier"]["networks"].as_u64().unwrap_or_default()
}

/// Waits until an agent has heard so many messages of a kind, and returns the last of these.
fn wait_for(lab: &Lab, agent: &DirectAgent, operation: Operation, count: usize) -> Heard {
    let end = Instant::now() + AGAIN;
    loop {
        let heard = agent.heard();
        let mut of_kind = heard.iter().filter(|it| it.message.operation == operation);
        if let Some(last) = of_kind.nth(count - 1) {
            return *last;
        }
        assert!(Instant::now() < end, "{operation:?} {count}: {heard:#?}\n{}", lab.logs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
