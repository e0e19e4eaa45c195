//! `explain`, the real binary: every kind of verdict, and what it says of it.

mod common;

use common::Place;
use serde_json::Value;

/// What is asked, and what must be answered: verdict, reason, deciding policies.
type Row<'a> = (&'a [&'a str], &'a str, Option<&'a str>, &'a [&'a str]);

const ROWS: &[Row<'_>] = &[
    (&["lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"], "protect", None, &["b-net"]),
    (&["lan", "icmp/8/0", "10.1.0.10", "10.3.0.10"], "protect", None, &["c-net"]),
    (&["lan", "udp", "[2001:db8:1::10]:1", "[2001:db8:3::10]:2"], "protect", None, &["c-net"]),
    (&["lan", "udp", "10.1.0.10", "9.9.9.9:53"], "forward", None, &["dns"]),
    (&["lan", "tcp", "10.1.0.10", "10.1.0.1:22"], "host", None, &[]),
    (&["wan", "udp", "192.0.2.9:500", "192.0.2.1:500"], "host", None, &[]),
    (&["host", "udp", "10.1.0.1:5", "10.2.0.10:5"], "protect", None, &["b-net"]),
    (&["lan", "tcp", "10.1.0.10", "10.2.0.10:23"], "drop", Some("policy_discard"), &["no-telnet"]),
    (&["lan", "tcp", "10.1.0.10", "8.8.8.8:443"], "drop", Some("no_match"), &[]),
    (&["wan", "udp", "10.2.0.10:1", "10.1.0.10:1"], "drop", Some("unprotected"), &["b-net"]),
    (&["lan", "udp", "10.1.0.10", "127.0.0.1:1"], "drop", Some("bad_address"), &[]),
    (&["lan", "udp", "[2001:db8:1::10]:1", "[2002::1]:2"], "drop", Some("no_route"), &[]),
];

fn deciding(json: &Value) -> Vec<&str> {
    let policies = json["policies"].as_array().unwrap();
    policies.iter().filter_map(|asked| asked["decided_by"].as_str()).collect()
}

#[test]
fn every_verdict_is_explained_by_what_decided_it() {
    let place = Place::with_gateways();
    for (asked, verdict, reason, policies) in ROWS {
        let args = [&["explain", "--config", "a.toml", "--in"], *asked].concat();
        let json = place.json(&args);
        assert_eq!(json["verdict"], *verdict, "{asked:?}: {json}");
        assert_eq!(json["reason"].as_str(), *reason, "{asked:?}");
        assert_eq!(deciding(&json), *policies, "{asked:?}");
        let text = place.succeeds(&args);
        assert!(text.contains(&verdict.to_uppercase()), "{text}");
        if let Some(reason) = reason {
            assert!(text.contains(&format!("{reason}: ")), "the reason's help: {text}");
        }
    }
}

#[test]
fn the_way_out_is_told_with_tunnel_spi_and_mtu() {
    let place = Place::with_gateways();
    let ask =
        |to| place.json(&["explain", "--config", "a.toml", "--in", "lan", "esp", "10.1.0.10", to]);
    let to_b = ask("10.2.0.10");
    assert_eq!(to_b["tunnel"]["remote"], "192.0.2.2");
    assert_eq!(to_b["mtu"], 1446);
    assert_eq!(to_b["route"], "10.2.0.0/16 via 192.0.2.2 by port wan");
    let keys = place.text("a-b.keys");
    let out = keys.lines().find(|line| line.starts_with("out ")).unwrap();
    assert_eq!(to_b["spi"].as_str(), out.split(' ').nth(1));
    assert_eq!(ask("10.3.0.10")["mtu"], 1426);
    assert_eq!((&to_b["generation"], &to_b["tier"]), (&1.into(), &"classifier".into()));
}

#[test]
fn a_packet_from_a_peer_is_judged_by_that_peers_policies() {
    let place = Place::with_gateways();
    let ask = |from: &str| {
        let flow = ["udp", from, "10.1.0.10:7"];
        let way = ["explain", "--config", "a.toml", "--in", "wan", "--from-peer", "b"];
        place.json(&[&way[..], &flow].concat())
    };
    let own = ask("10.2.0.10:7");
    assert_eq!((&own["verdict"], &own["egress"]), (&"forward".into(), &"lan".into()));
    let forged = ask("10.3.0.10:7");
    assert_eq!(forged["reason"], "selector_mismatch");
    assert_eq!(deciding(&forged), ["c-net"]);
}

#[test]
fn beaten_policies_are_listed_in_order() {
    let place = Place::with_gateways();
    let telnet = ["tcp", "10.1.0.10:1", "10.2.0.10:23"];
    let args = [&["explain", "--config", "a.toml", "--in", "lan"], &telnet[..]].concat();
    assert_eq!(place.json(&args)["policies"][0]["beat"], serde_json::json!(["b-net"]));
    assert!(place.succeeds(&args).contains("beat policy \"b-net\""));
}

#[test]
fn a_later_fragment_does_not_fall_past_a_policy_with_ports() {
    let place = Place::with_gateways();
    let ask = |protocol| {
        let flow = [protocol, "10.1.0.10", "10.2.0.10"];
        let way = ["explain", "--config", "a.toml", "--in", "lan", "--fragment"];
        place.json(&[&way[..], &flow].concat())
    };
    assert_eq!(ask("tcp")["reason"], "fragment_ports"); // FC-44
    assert_eq!(ask("udp")["verdict"], "protect");
}

#[test]
fn names_and_flows_that_do_not_exist_end_with_2_and_what_there_is() {
    let place = Place::with_gateways();
    let fails = |args: &[&str], words: &[&str]| {
        place.fails(2, &[&["explain", "--config", "a.toml"], args].concat(), words);
    };
    fails(&["--in", "lna", "esp", "10.1.0.1", "10.2.0.1"], &["lna", "lan, wan, host"]);
    fails(&["--in", "wan", "--from-peer", "x", "esp", "10.1.0.1", "10.2.0.1"], &["b, c"]);
    fails(&["--in", "lan", "tcp", "10.1.0.1", "10.2.0.1"], &["10.2.0.1:PORT"]);
    fails(&["--in", "lan", "tpc", "10.1.0.1", "10.2.0.1"], &["unknown protocol"]);
}
