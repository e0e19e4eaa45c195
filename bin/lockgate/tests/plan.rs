//! `plan`, the real binary: rules that a card would have, and the reasons of the others.

mod common;

use common::Place;
use serde_json::Value;

/// Ports with groups, policies, and rules of every kind.
const GATEWAY: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
groups_in = ["web", "rest"]
[port.dmz]
netdev = "eth2"
side = "protected"
groups_in = ["rest"]
groups_out = ["web"]
[port.wan]
netdev = "eth0"
side = "unprotected"
[group.web]
[group.rest]
[[policy]]
name = "out"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9"]
[[rule]]
group = "web"
name = "ssh"
action = "deny"
from = ["any"]
to = ["10.1.0.0/24"]
protocol = "tcp"
to_ports = ["22"]
[[rule]]
group = "web"
name = "https"
action = "permit"
from = ["any"]
to = ["10.1.0.0/16"]
protocol = "tcp"
to_ports = ["80", "443"]
[[rule]]
group = "web"
name = "dns"
action = "reflect"
from = ["10.1.0.0/16"]
to = ["9.9.9.9"]
protocol = "udp"
to_ports = ["53"]
[[rule]]
group = "rest"
name = "ping"
action = "permit"
from = ["10.0.0.0/8"]
to = ["10.0.0.0/8"]
protocol = "icmp"
[[rule]]
group = "rest"
name = "inside"
action = "permit"
from = ["10.2.0.0/16"]
to = ["10.2.0.0-10.2.255.9"]
"#;

fn place() -> Place {
    let place = Place::empty();
    place.write("gw.toml", GATEWAY);
    place
}

fn rules<'a>(list: &'a Value, reason: &str) -> Vec<&'a str> {
    let list = list.as_array().unwrap().iter();
    list.filter(|rule| rule["reason"] == reason)
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect()
}

fn placed(json: &Value) -> Vec<(&str, u64)> {
    let list = json["placed"].as_array().unwrap().iter();
    list.map(|rule| (rule["rule"].as_str().unwrap(), rule["family"].as_u64().unwrap())).collect()
}

// HA-06, HA-13, HA-18
#[test]
fn what_a_card_can_say_is_planned_and_every_other_rule_has_its_reason() {
    let place = place();
    let json = place.json(&["plan", "--config", "gw.toml"]);
    assert_eq!(json["card"]["emulated"], true);
    assert_eq!(json["counted"], false);
    let here = placed(&json);
    assert!(here.contains(&("web/https", 4)) && here.contains(&("dmz (in)", 6)), "{json}");
    let left = &json["left"];
    assert_eq!(rules(left, "policy"), ["out"]);
    assert_eq!(rules(left, "reflect"), ["web/dns"]);
    assert_eq!(rules(left, "beaten"), ["lan (in)"]);
    let beaten = left.as_array().unwrap().iter().find(|rule| rule["rule"] == "lan (in)").unwrap();
    assert_eq!((&beaten["because_of"], &beaten["family"]), (&"web/dns".into(), &4.into()));
    assert_eq!(rules(left, "egress").len(), 5);
    let all = json["placed"].as_array().unwrap().len() + left.as_array().unwrap().len();
    assert_eq!(json["share"]["tagged"].as_u64(), Some(here.len() as u64));
    let reasons = json["reasons"].as_array().unwrap().iter();
    let counted: u64 = reasons.map(|reason| reason["rules"].as_u64().unwrap()).sum();
    assert_eq!(counted as usize + here.len(), all);
    // A card that can ask for TCP and UDP alone gets no rule for ICMP: as a rule for the pair it
    // would match TCP too.
    let json = place.json(&["plan", "--config", "gw.toml", "--card", "acl-2000"]);
    assert_eq!(
        (&json["card"]["emulated"], &json["card"]["source"]),
        (&false.into(), &"as read".into())
    );
    assert_eq!(rules(&json["left"], "protocol"), ["rest/ping", "rest/ping"]);
    let json = place.json(&["plan", "--config", "gw.toml", "--card", "v9"]);
    assert!(placed(&json).is_empty() && json["card"]["no_rules"].is_string());
}

// HA-14
#[test]
fn the_entries_are_the_whole_cards_and_go_to_the_rules_that_decide_most_packets() {
    let place = place();
    let counters = r#"{"groups":[
        {"name":"web","rules":[{"name":"https","decided":{"packets":900}},{"name":"ssh"}]},
        {"name":"rest","rules":[{"name":"ping","decided":{"packets":50}},
                                {"name":"inside","decided":{"packets":90}}]}],
        "ports":[{"port":"lan","side":"in","decided":{"packets":10}}]}"#;
    place.write("groups.json", counters);
    let plan = |card: &str, more: &[&str]| {
        let asked = ["plan", "--config", "gw.toml", "--counters", "groups.json", "--card", card];
        place.json(&[&asked[..], more].concat())
    };
    // 900 packets are of the rule at both places, in and out: half of them came by a port.
    let json = plan("emulated:rules=3", &[]);
    assert_eq!(json["counted"], true);
    let places: Vec<&str> = placed(&json).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(places, ["rest/ping", "web/https"], "in the order of their ranks");
    assert_eq!((&json["entries"], &json["placed"][1]["packets"]), (&3.into(), &900.into()));
    let json = plan("emulated", &["--port", "dmz"]);
    let places: Vec<&str> = placed(&json).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(places, ["rest/ping", "rest/inside"]);
    assert_eq!(rules(&json["left"], "other_port").len(), 7);
    assert!(rules(&json["left"], "no_packets").contains(&"dmz (in)"));
}

#[test]
fn of_ports_that_say_none_no_rule_is_placed_and_the_reason_is_named() {
    let place = place();
    let none = |port: &str| GATEWAY.replace(port, &format!("{port}\noffload_groups = \"none\""));
    place.write("none.toml", &none("netdev = \"eth1\""));
    let json = place.json(&["plan", "--config", "none.toml"]);
    let here = placed(&json);
    assert!(here.contains(&("rest/ping", 4)) && !here.contains(&("web/https", 4)), "{json}");
    assert!(rules(&json["left"], "offload_none").contains(&"web/https"), "{json}");
    let why = json["left"].as_array().unwrap().iter();
    let why: Vec<&Value> = why.filter(|rule| rule["reason"] == "offload_none").collect();
    assert!(why[0]["why"].as_str().unwrap().contains("offload_groups = \"none\""), "{json}");
    // A rule that both ports ask is in the card for the other port alone.
    let ping = json["placed"].as_array().unwrap().iter().find(|of| of["rule"] == "rest/ping");
    assert_eq!(ping.unwrap()["ports"], serde_json::json!(["dmz"]));
}

#[test]
fn of_a_card_that_drops_the_plan_says_that_it_knows_the_addresses_of_the_file_alone() {
    let place = place();
    let drops = GATEWAY.replace("\nside", "\noffload_groups = \"drop\"\nside");
    let drops = drops.replace("action = \"reflect\"", "action = \"permit\"");
    let drops = drops
        + "[[rule]]\ngroup = \"rest\"\nname = \"stop\"\naction = \"deny\"\n\
                         from = [\"10.9.0.0/16\"]\nto = [\"any\"]\n";
    place.write("drops.toml", &drops);
    let json = place.json(&["plan", "--config", "drops.toml"]);
    // As under the daemon: `any` has groups and addresses of links.
    assert_eq!(
        rules(&json["left"], "own_traffic"),
        ["rest/stop", "rest/stop", "lan (in)", "lan (in)", "dmz (in)", "dmz (in)"],
        "{json}"
    );
    assert!(placed(&json).contains(&("web/ssh", 4)), "{json}");
    let note = "from the file alone. The daemon knows those of Linux too";
    assert!(json["notes"][0].as_str().unwrap().contains(note), "{json}");
    let text = place.succeeds(&["plan", "--config", "drops.toml"]);
    assert!(text.contains("from the file alone."), "{text}");
    let json = place.json(&["plan", "--config", "gw.toml"]);
    assert_eq!(json["notes"], serde_json::json!([]), "a card that marks drops nothing");
}

#[test]
fn the_text_lines_up_and_long_lists_are_cut() {
    let place = place();
    let text = place.succeeds(&["plan", "--config", "gw.toml", "--card", "emulated:order=none"]);
    for part in [
        "emulated: software plays it",
        "2000 entries for all its ports, order none, 5 ms",
        "No counters: every rule is taken to decide as many packets as any other.",
        "Rules that would be placed, winners first",
        "Rules that the gateway decides itself, by reason",
        "a rule that wins over it decides otherwise, and the card keeps no order",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let heading = text.lines().find(|line| line.contains("because of")).unwrap();
    let at = heading.find("because of").unwrap();
    let row =
        text.lines().find(|line| line.contains("dmz (in)") && line.contains("order")).unwrap();
    assert_eq!(row.find("rest/ping"), Some(at), "{text}");
    let many: String = (0..60)
        .map(|n| {
            format!(
                "[[rule]]\ngroup = \"rest\"\nname = \"n{n}\"\naction = \"permit\"\n\
                 from = [\"10.9.{n}.0/24\"]\nto = [\"10.8.0.0/16\"]\n"
            )
        })
        .collect();
    place.write("many.toml", &(GATEWAY.to_owned() + &many));
    let text = place.succeeds(&["plan", "--config", "many.toml"]);
    assert!(text.contains("more: --all") && text.lines().count() < 70, "{text}");
    let text = place.succeeds(&["plan", "--config", "many.toml", "--all"]);
    assert!(!text.contains("more: --all") && text.contains("rest/n59"), "{text}");
}

#[test]
fn a_mistake_is_told_and_ends_with_2() {
    let place = place();
    place.write("bad.json", "{\"groups\": 7}");
    for (name, text) in [
        ("flat.json", r#"{"groups":[{"name":"web","packets":"x"}]}"#),
        ("word.json", r#"{"groups":[{"name":"web","rules":[{"name":"ssh","packets":"x"}]}]}"#),
        (
            "other.json",
            r#"{"groups":[{"name":"a","rules":[{"name":"b","decided":{"packets":1}}]}]}"#,
        ),
    ] {
        place.write(name, text);
    }
    place.write("bad.toml", "x = 1\n");
    let told = place.run(&["plan", "--config", "bad.toml"]).err();
    assert!(told.contains("unknown section `x`"), "{told}");
    assert!(!told.contains("nothing was applied"), "{told}");
    for (args, parts) in [
        (
            &["--card", "emulated:order=nune"][..],
            &["no order \"nune\"", "did you mean \"none\""][..],
        ),
        (&["--card", "acl"], &["did you mean \"acl-2000\""]),
        (&["--port", "dms"], &["no port \"dms\"", "lan, dmz, wan"]),
        (&["--counters", "bad.json"], &["bad.json", "lockgate show group --json"]),
        (&["--counters", "flat.json"], &["flat.json", "missing field `rules`"]),
        (&["--counters", "word.json"], &["word.json", "none of its rules has"]),
        (&["--counters", "other.json"], &["other.json", "no rule of it is in the", "a/b is not"]),
    ] {
        let args = [&["plan", "--config", "gw.toml"], args].concat();
        place.fails(2, &args, parts);
    }
    place.fails(1, &["plan", "--config", "none.toml"], &["none.toml"]);
    place.fails(1, &["plan", "--config", "gw.toml", "--counters", "none.json"], &["none.json"]);
    place.fails(2, &["--socket", "x", "plan", "--config", "gw.toml"], &["asks no daemon"]);
}

/// A gateway with an emulated card on one port and one of kind `xfrm` on the other.
const PEERS: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[port.other]
netdev = "eth2"
side = "unprotected"
[card.soft]
kind = "emulated"
socket = "/run/lockgate/soft.sock"
ports = ["other"]
[card.nic]
kind = "xfrm"
ports = ["wan"]
[peer.good]
local = "192.0.2.1"
remote = "192.0.2.7"
keys = "api"
suite = "aes-128-gcm"
replay_window = 256
offload = "packet"
[peer.wide]
local = "192.0.2.1"
remote = "192.0.2.8"
keys = "api"
suite = "aes-128-gcm"
replay_window = 1024
offload = "auto"
[peer.limited]
local = "192.0.2.1"
remote = "192.0.2.9"
keys = "api"
suite = "aes-128-gcm"
replay_window = 256
offload = "crypto"
[peer.limited.lifetime]
hard_packets = 1000
[peer.none]
local = "192.0.2.1"
remote = "192.0.2.10"
keys = "api"
suite = "aes-128-gcm"
[[policy]]
name = "to-good"
peer = "good"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
[[policy]]
name = "to-wide"
peer = "wide"
local = ["10.1.0.0/16"]
remote = ["10.3.0.0/16"]
[[policy]]
name = "to-limited"
peer = "limited"
local = ["10.1.0.0/16"]
remote = ["10.4.0.0/16"]
"#;

// XO-10, XO-15
#[test]
fn the_sas_of_each_peer_are_planned_for_card_or_linux_with_the_reason_of_the_others() {
    let place = Place::empty();
    place.write("gw.toml", PEERS);
    let sas = |file: &str| {
        let json = place.json(&["plan", "--config", file]);
        let list = json["sas"].as_array().unwrap().clone();
        let text = |sa: &Value, key: &str| sa[key].as_str().unwrap_or("").to_owned();
        let row = |sa: &Value| {
            ["peer", "card", "carried_by", "mode", "reason"].map(|key| text(sa, key)).join(" ")
        };
        list.iter().map(row).collect::<Vec<String>>()
    };
    assert_eq!(
        sas("gw.toml"),
        [
            "good soft card packet ",
            "good nic linux packet ",
            "wide soft card packet ",
            // Its window is none of a card's; Linux has every size.
            "wide nic linux crypto window",
            "limited soft card crypto ",
            "limited nic refused  kernel_limits",
            "none soft software  none",
            "none nic software  none",
        ]
    );
    let json = place.json(&["plan", "--config", "gw.toml"]);
    let why = json["sas"][3]["why"].as_str().unwrap();
    assert!(why.starts_with("not in packet mode: "), "{why}");
    assert!(why.contains("replay_window = 32 or 64 or 128 or 256"), "{why}");
    // Linux would copy the DSCP that a fixed one is to hide.
    place.write("hidden.toml", &PEERS.replace("offload =", "dscp = 5\noffload ="));
    assert_eq!(
        sas("hidden.toml")[..6],
        [
            "good soft card packet ",
            "good nic refused  dscp",
            "wide soft card packet ",
            "wide nic software  dscp",
            "limited soft card crypto ",
            "limited nic refused  dscp",
        ]
    );
    // The plan names the software policies before and behind it.
    for (priority, words) in [(900, "wins over it"), (1, "decides, too,")] {
        let above = format!(
            "{PEERS}[[policy]]\nname = \"dns\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
             remote = [\"10.2.9.9\"]\npriority = {priority}\n"
        );
        place.write("above.toml", &above);
        assert_eq!(sas("above.toml")[1], "good nic refused  overlapped", "{priority}");
        let json = place.json(&["plan", "--config", "above.toml"]);
        let why = json["sas"][1]["why"].as_str().unwrap();
        assert!(why.contains("policy dns") && why.contains(words), "{why}");
        let text = place.succeeds(&["plan", "--config", "above.toml"]);
        assert!(text.contains("SAs of peers") && text.contains("overlapped"), "{text}");
    }
}

#[test]
fn a_card_on_protected_ports_alone_has_no_sas_and_long_names_leave_room_for_reasons() {
    let place = Place::empty();
    let inside =
        "[card.inside]\nkind = \"emulated\"\nsocket = \"/run/i.sock\"\nports = [\"lan\"]\n";
    let long = "p".repeat(64);
    let text = PEERS.replace("[peer.good]", &format!("{inside}[peer.good]"));
    let text = text.replace("peer.none", &format!("peer.{long}"));
    place.write("gw.toml", &text);
    let json = place.json(&["plan", "--config", "gw.toml"]);
    let sas = json["sas"].as_array().unwrap();
    assert_eq!(sas.len(), 8);
    assert!(sas.iter().all(|sa| sa["card"] != "inside"), "{json}");
    let text = place.succeeds(&["plan", "--config", "gw.toml"]);
    assert!(text.contains("\n    its section asks for no card\n"), "{text}");
    assert!(text.lines().count() < 60, "{text}");
}
