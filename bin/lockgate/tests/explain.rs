//! `explain`, the real binary: every kind of verdict, and what it says of it.

mod common;

use common::Place;
use serde_json::Value;

/// Arguments of a question, and the answer expected: verdict, reason, deciding policies.
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
fn a_packet_in_a_virtual_network_is_explained_with_the_overlay_packet_around_it() {
    let place = Place::with_gateways();
    let text = place.text("a.toml")
        + "[overlay.fabric]\nkind = \"vxlan\"\nport = \"lan\"\nentrances = [\"10.1.0.1\"]\n\
           [vni.7]\n";
    place.write("overlay.toml", &text);
    let flow = ["tcp", "172.16.0.1:1", "172.16.0.2:443"];
    let ask = |more: &[&'static str]| {
        let args = ["explain", "--config", "overlay.toml", "--in", "lan"];
        [&args[..], more, &flow[..]].concat()
    };
    let args = ask(&["--vni", "7", "--host", "10.1.0.10"]);
    let json = place.json(&args);
    assert_eq!((&json["verdict"], &json["reason"]), (&"drop".into(), &"overlay_host".into()));
    assert_eq!(json["inside"]["vni"], 7);
    assert_eq!(json["inside"]["host"], "10.1.0.10");
    let text = place.succeeds(&args);
    for part in [
        "in VNI 7, sent by host 10.1.0.10",
        "172.16.0.2 is no endpoint of VNI 7",
        "a file holds no endpoints",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    place.fails(2, &ask(&["--vni", "7"]), &["no endpoint of VNI 7", "--host"]);
    let unknown = ["--vni", "8", "--host", "10.1.0.10"];
    place.fails(2, &ask(&unknown), &["there is no virtual network 8"]);
    place.fails(2, &ask(&["--vni", "16777216"]), &["16777215"]);
    place.fails(2, &ask(&["--host", "10.1.0.10"]), &["--vni"]);
}

#[test]
fn tcp_segments_that_open_a_connection_are_asked_about_apart() {
    let place = Place::with_gateways();
    let text = place.text("a.toml").replace(
        "[port.lan]\n",
        "[group.web]\n[[rule]]\ngroup = \"web\"\nname = \"no-new\"\naction = \"deny\"\n\
         from = [\"any\"]\nto = [\"any\"]\nprotocol = \"tcp\"\ntcp = \"new\"\n[[rule]]\n\
         group = \"web\"\nname = \"rest\"\naction = \"permit\"\nfrom = [\"any\"]\nto = [\"any\"]\n\
         [port.lan]\ngroups_in = [\"web\"]\n",
    );
    place.write("groups.toml", &text);
    let flow = ["tcp", "10.1.0.10:1", "10.2.0.10:443"];
    let args = |more: &'static [&'static str], flow: &[&'static str]| {
        [&["explain", "--config", "groups.toml", "--in", "lan"], more, flow].concat()
    };
    let new: &[&str] = &["web/no-new"];
    let (denied, sealed) = (("drop", new), ("protect", &["web/rest", "b-net"][..]));
    for (more, (verdict, rules), words) in [
        (&[][..], denied, "(new: SYN without ACK)"),
        (&["--tcp", "new"], denied, "(new: SYN without ACK)"),
        (&["--tcp", "established"], sealed, "(established: not SYN alone)"),
    ] {
        let json = place.json(&args(more, &flow));
        assert_eq!((json["verdict"].as_str(), deciding(&json)), (Some(verdict), rules.to_vec()));
        let text = place.succeeds(&args(more, &flow));
        assert!(text.contains(words), "{text}");
    }
    let text = place.succeeds(&args(&[], &["udp", "10.1.0.10:1", "10.2.0.10:443"]));
    assert!(!text.contains("SYN"), "{text}");
    place.fails(2, &args(&["--tcp", "syn"], &flow), &["write new or established"]);
    let udp = ["udp", "10.1.0.10:1", "10.2.0.10:443"];
    place.fails(2, &args(&["--tcp", "new"], &udp), &["udp has no such segments"]);
    place.fails(2, &args(&["--tcp", "new", "--fragment"], &flow), &["cannot be used with"]);
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
    assert_eq!(to_b["generation"], 1);
    assert!(to_b.get("tier").is_none(), "no tier is claimed: {to_b}");
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

#[test]
fn what_a_flow_cannot_answer_ends_with_2_and_what_to_ask_instead() {
    let place = Place::with_gateways();
    let fails = |args: &[&str], words: &[&str]| {
        place.fails(2, &[&["explain", "--config", "a.toml", "--in"], args].concat(), words);
    };
    let quotes = ["decided by the packet that it quotes"];
    fails(&["wan", "--from-peer", "b", "icmp/3/4", "10.2.0.1", "10.1.0.10"], &quotes);
    fails(&["wan", "--from-peer", "b", "icmpv6/2/0", "2001:db8:2::1", "2001:db8:1::10"], &quotes);
    fails(&["wan", "esp", "192.0.2.2", "192.0.2.1"], &["--from-peer PEER about the packet inside"]);
    fails(&["wan", "--fragment", "esp", "192.0.2.2", "192.0.2.1"], &["esp_fragment"]);
    for port in ["lan", "host"] {
        let flow = ["udp", "10.2.0.1:1", "10.1.0.10:1"];
        let words = [&format!("\"{port}\" is not one; there is wan")[..]];
        fails(&[&[port, "--from-peer", "b"], &flow[..]].concat(), &words);
    }
    // These a flow can answer.
    for (port, flow) in [
        ("wan", ["icmp/3/4", "192.0.2.2", "192.0.2.1"]),
        ("wan", ["esp", "10.2.0.10", "10.1.0.10"]),
        ("lan", ["esp", "10.1.0.10", "192.0.2.1"]),
    ] {
        place.json(&[&["explain", "--config", "a.toml", "--in", port], &flow[..]].concat());
    }
}

#[test]
fn what_lets_a_packet_to_this_machine_through_is_named() {
    let place = Place::with_gateways();
    let ask = |flow: &[&str]| {
        let args = [&["explain", "--config", "a.toml", "--in"], flow].concat();
        let (json, text) = (place.json(&args), place.succeeds(&args));
        let through = json["let_through"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains(&through), "{text}");
        through
    };
    let ike = ask(&["wan", "udp", "192.0.2.9:500", "192.0.2.1:500"]);
    assert!(ike.ends_with("let through by `allow_host` of port wan: udp/500"), "{ike}");
    let nat_traversal = ask(&["wan", "udp", "192.0.2.9:4500", "192.0.2.1:4500"]);
    assert!(nat_traversal.ends_with(": udp/4500, taken for IKE (zero marker)"), "{nat_traversal}");
    let ping = ask(&["wan", "icmp/8/0", "192.0.2.9", "192.0.2.1"]);
    assert!(ping.ends_with("of port wan: icmp"), "{ping}");
    let solicited = ask(&["wan", "icmpv6/135/0", "2001:db8:ffff::9", "2001:db8:ffff::1"]);
    assert!(solicited.contains("neighbour discovery"), "{solicited}");
    assert_eq!(ask(&["lan", "tcp", "10.1.0.10", "10.1.0.1:22"]), "");
}

#[test]
fn a_drop_before_the_route_is_looked_up_does_not_claim_that_there_is_none() {
    let place = Place::with_gateways();
    let ask = |from, to| {
        place.succeeds(&["explain", "--config", "a.toml", "--in", "lan", "gre", from, to])
    };
    let route = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("route"));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(route(&ask("127.0.0.1", "10.2.0.1")), "not looked up");
    assert_eq!(route(&ask("2001:db8:1::10", "2002::1")), "none");
}

#[test]
fn without_key_files_everything_but_the_spi_is_told() {
    let place = Place::with_gateways();
    let flow = ["tcp", "10.1.0.10:1", "10.2.0.10:443"];
    let args = [&["explain", "--config", "a.toml", "--in", "lan"], &flow[..]].concat();
    let mut with = place.json(&args);
    std::fs::remove_file(place.file("a-b.keys")).unwrap();
    let warned = place.run(&args).err();
    assert!(warned.starts_with("warning: keys not read: key file "), "{warned}");
    assert!(warned.ends_with("No such file or directory; SPIs unknown\n"), "{warned}");
    assert!(place.succeeds(&args).contains("SPI unknown, aes-128-gcm"));
    with["spi"] = Value::Null;
    assert_eq!(place.json(&args), with);
}

#[test]
fn a_file_that_leaves_addresses_and_routes_to_linux_does_not_claim_a_drop() {
    let place = Place::with_gateways();
    let is_of_linux = |line: &&str| !line.starts_with("addresses");
    let whole = place.text("a.toml");
    let head = whole.split("[[route]]").next().unwrap();
    let live: Vec<&str> = head.lines().filter(is_of_linux).collect();
    place.write("live.toml", &live.join("\n"));
    let ask = |flow: &[&str]| {
        let args = [&["explain", "--config", "live.toml", "--in"], flow].concat();
        (place.json(&args), place.succeeds(&args))
    };
    let (json, text) = ask(&["lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"]);
    assert_eq!((&json["verdict"], &json["reason"]), (&"unknown".into(), &Value::Null), "{json}");
    assert_eq!(deciding(&json), ["b-net"]);
    assert!(text.contains("UNKNOWN: the file names neither addresses nor routes"), "{text}");
    assert!(text.contains("outbound    decided by policy \"b-net\""), "{text}");
    assert!(text.contains("without --config") && !text.contains("no_route"), "{text}");
    let (json, text) = ask(&["wan", "udp", "192.0.2.9:500", "192.0.2.1:500"]);
    assert_eq!(json["verdict"], "unknown");
    assert!(text.contains("`allow_host` of port wan lets it in: udp/500"), "{text}");
    // An address that no packet may have needs no route.
    let (json, _) = ask(&["lan", "udp", "10.1.0.10", "127.0.0.1:1"]);
    assert_eq!(json["reason"], "bad_address");
}

#[test]
fn what_no_policy_matches_is_told_with_the_nearest_policy_or_the_missing_service() {
    let place = Place::with_gateways();
    let notes = |flow: &[&str]| {
        let args = [&["explain", "--config", "a.toml", "--in"], flow].concat();
        let (json, text) = (place.json(&args), place.succeeds(&args));
        assert_eq!(json["reason"], "no_match", "{json}");
        let notes: Vec<String> = serde_json::from_value(json["notes"].clone()).unwrap();
        assert!(notes.iter().all(|note| text.contains(note)), "{text}");
        assert!(!text.contains("generation") && !text.contains("tier"), "{text}");
        notes
    };
    let near = notes(&["lan", "tcp", "10.9.0.10:1", "10.2.0.10:443"]);
    assert_eq!(near.len(), 1, "{near:?}");
    let words = "policy \"b-net\" matches but for local 10.9.0.10 (it has ";
    assert!(near[0].starts_with(words), "{near:?}");
    let ssh = notes(&["wan", "tcp", "192.0.2.9:1", "192.0.2.1:22"]);
    assert_eq!(ssh[0], "to let it in, add \"tcp/22\" to `allow_host` of port wan", "{ssh:?}");
    let dns = notes(&["lan", "tcp", "10.1.0.10:1", "9.9.9.9:53"]);
    assert_eq!(dns, ["policy \"dns\" matches but for protocol tcp (it has udp)"]);
}
