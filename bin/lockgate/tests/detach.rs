//! `detach`, the real binary, in a network namespace: it opens what is ours and nothing else.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use bpf::Steering;
use netlab::laboratory::connect;
use netlab::process::Finished;
use netlab::{LabError, Laboratory, Namespace};
use serde_json::Value;

const COMMAND: &str = env!("CARGO_BIN_EXE_lockgate");
const LIMIT: Duration = Duration::from_secs(20);

/// A laboratory with a namespace whose netdev `p0` leads to `q0` in another one; `None`, said
/// loudly, where there can be none.
fn lab(test: &str) -> Option<(Laboratory, Namespace, Namespace)> {
    let laboratory = match Laboratory::new() {
        Err(error @ (LabError::NotRoot | LabError::Missing(_))) => {
            eprintln!("SKIPPED: {test}: {error}");
            return None;
        }
        made => made.unwrap(),
    };
    let [ours, other] = ["ours", "other"].map(|role| laboratory.namespace(role).unwrap());
    connect((&ours, "p0"), (&other, "q0"), 1).unwrap();
    Some((laboratory, ours, other))
}

fn index_of(namespace: &Namespace, netdev: &str) -> u32 {
    let links = namespace.ip_json(&["link", "show", "dev", netdev]).unwrap();
    links[0]["ifindex"].as_u64().unwrap() as u32
}

fn detach(namespace: &Namespace, more: &[&str]) -> Finished {
    let socket = ["--socket", "/nonexistent/api.sock"];
    namespace.run(&[&[COMMAND, "detach"], &socket[..], more].concat(), LIMIT).unwrap()
}

#[test]
fn what_a_dead_daemon_left_closed_is_opened_and_named() {
    let Some((_lab, ours, _other)) = lab("what_a_dead_daemon_left_closed_is_opened_and_named")
    else {
        return;
    };
    let ifindex = index_of(&ours, "p0");
    ours.enter(|| drop(Steering::load(0, 1).unwrap().attach(ifindex).unwrap())).unwrap();
    assert!(ours.enter(|| bpf::attached(ifindex)).unwrap().unwrap().is_some(), "it stays attached");
    ours.ip("tuntap add lockgate0 mode tun").unwrap();
    for family in ["-4", "-6"] {
        let add = |rule: &str| {
            let words = ["ip", family, "rule", "add", "protocol", "76"];
            let words: Vec<&str> = words.into_iter().chain(rule.split(' ')).collect();
            ours.run(&words, LIMIT).unwrap().success().unwrap();
        };
        add("priority 77 nop");
        for port in [500, 4500] {
            add(&format!("priority 75 dport {port} ipproto udp goto 77"));
        }
        add("priority 76 table 76");
    }
    ours.ip("rule add priority 76 table 77").unwrap();
    // Policies that Linux carried for a card, and one of another's.
    for (reqid, direction, network) in
        [(0x4c47_0001, "out", 2), (0x4c47_0001, "fwd", 3), (7, "out", 4)]
    {
        ours.ip(&format!(
            "xfrm policy add src 10.1.0.0/16 dst 10.{network}.0.0/16 dir {direction} tmpl src \
             192.0.2.1 dst 192.0.2.9 proto esp reqid {reqid} mode tunnel"
        ))
        .unwrap();
    }
    let table = ours.run(&["nft", "add", "table", "inet", "lockgate"], LIMIT).unwrap();
    assert!(table.status.success(), "{table:?}");
    // The probe sees whose program it is.
    let probed = ours.run(&[COMMAND, "probe", "--json"], LIMIT).unwrap();
    let json: Value = serde_json::from_str(&probed.stdout).unwrap();
    let netdevs = json["netdevs"].as_array().unwrap();
    let netdev = netdevs.iter().find(|netdev| netdev["name"] == "p0").unwrap();
    assert!(netdev["program"].as_str().unwrap().contains("Lockgate"), "{netdev}");
    assert_eq!((&netdev["rx_queues"], &netdev["native_xdp"]), (&1.into(), &true.into()));

    let ran = detach(&ours, &["--json"]);
    assert!(ran.status.success(), "{ran:?}");
    let opened: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected = serde_json::json!(
        {"netdevs": ["p0"], "guard": true, "host_port": true, "host_rules": true, "carried": 2}
    );
    assert_eq!(opened, expected);
    let policies = ours.run(&["ip", "xfrm", "policy"], LIMIT).unwrap().stdout;
    assert_eq!(policies.matches("tmpl").count(), 1, "{policies}");
    assert!(policies.contains("reqid 7 "), "{policies}");
    let rules = ours.run(&["ip", "rule"], LIMIT).unwrap().stdout;
    assert!(rules.contains("lookup 77") && !rules.contains("lookup 76"), "{rules}");
    for family in ["-4", "-6"] {
        let rules = ours.run(&["ip", family, "rule"], LIMIT).unwrap().stdout;
        assert!(!rules.contains("proto 76") && !rules.contains("goto"), "{rules}");
    }
    assert!(ours.enter(|| bpf::attached(ifindex)).unwrap().unwrap().is_none());
    let again = detach(&ours, &[]);
    assert_eq!(again.stdout, "no part of Lockgate is here\n");
}

#[test]
fn a_living_daemons_ports_stay_closed() {
    let Some((_lab, ours, _other)) = lab("a_living_daemons_ports_stay_closed") else { return };
    let ifindex = index_of(&ours, "p0");
    ours.enter(|| drop(Steering::load(0, 1).unwrap().attach(ifindex).unwrap())).unwrap();
    // What a daemon holds for as long as it lives, wherever its socket is.
    let claim = ours.enter(|| {
        let address = SocketAddr::from_abstract_name(format!("lockgate/port/{ifindex}"));
        UnixListener::bind_addr(&address.unwrap()).unwrap()
    });
    let claim = claim.unwrap();
    let ran = detach(&ours, &[]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let words = format!("lockgated is running (process {}): stop it first", std::process::id());
    assert!(ran.stderr.contains(&words), "{ran:?}");
    assert!(ours.enter(|| bpf::attached(ifindex)).unwrap().unwrap().is_some());
    drop(claim);
    assert!(detach(&ours, &[]).stdout.contains("p0: open"));
}
