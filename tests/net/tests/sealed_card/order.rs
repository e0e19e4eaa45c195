//! The order in which policies are looked up where a card carries the packets of some.

use netlab::sealed::{CLIENT, End, FAR, NewSa, THERE};
use serde_json::{Value, json};

use crate::CARD;
use crate::place::Place;

/// Policies beside that of the tunnel. One has nothing in common with those of the peer, and one
/// wins over one of the peer's.
const BESIDE: &str = r#"
offload = "auto"
[[policy]]
name = "away"
action = "bypass"
local = ["any"]
remote = ["10.9.0.0/16"]
priority = 901
[[policy]]
name = "closed"
action = "discard"
local = ["any"]
remote = ["10.3.0.7/32"]
priority = 900
[[policy]]
name = "second"
peer = "other"
local = ["10.1.0.0/24"]
remote = ["10.3.0.0/24"]
priority = 1
"#;

/// Addresses at the edges of the policies, and beside them.
const EDGES: [&str; 12] = [
    "10.2.0.0",
    "10.2.0.2",
    "10.2.0.255",
    "10.2.1.0",
    "10.3.0.0",
    "10.3.0.6",
    "10.3.0.7",
    "10.3.0.8",
    "10.3.0.255",
    "10.8.255.255",
    "10.9.0.0",
    "10.9.255.255",
];

fn near(place: &Place, words: &[&str]) -> Value {
    place.daemon(End::Near).unwrap().ask(words).unwrap()
}

/// Verdicts on packets to and from the edges, and the policies that give them.
fn verdicts(place: &Place) -> Vec<Value> {
    let told = |answer: Value| {
        let by = answer["policies"].as_array().into_iter().flatten();
        let by: Vec<Value> = by.map(|asked| asked["decided_by"].clone()).collect();
        json!([answer["verdict"], answer["reason"], answer["peer"], by])
    };
    let both = EDGES.iter().flat_map(|edge| {
        let out = near(place, &["explain", "--in", "lan", "icmp/8/0", CLIENT, edge]);
        let from_peer = ["--in", "wan", "--from-peer", "other", "icmp/0/0", edge, CLIENT];
        let back = near(place, &[&["explain"][..], &from_peer].concat());
        [told(out), told(back)]
    });
    both.collect()
}

/// The policies of a direction as they are looked up: name, carrier, and the one because of which
/// it is not in front.
fn order(place: &Place, direction: &str) -> Vec<[String; 3]> {
    let shown = near(place, &["show", "placement"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = shown["policies"].as_array().cloned().unwrap_or_default();
    let of: Vec<&Value> = all.iter().filter(|of| of["direction"] == direction).collect();
    for (at, policy) in (1..).zip(&of) {
        assert_eq!(policy["place"], at, "{shown:#}");
    }
    of.iter().map(|of| ["policy", "carrier", "because_of"].map(|field| text(&of[field]))).collect()
}

fn lines(all: [[&str; 3]; 4]) -> Vec<[String; 3]> {
    all.map(|line| line.map(str::to_owned)).into()
}

// XO-10
#[test]
fn policies_of_the_card_are_shown_in_front_and_every_verdict_is_that_of_software() {
    let built = Place::build_with("in_front", CARD, [BESIDE, ""], |lab| {
        for network in ["10.3.0.0/24", "10.9.0.0/16"] {
            lab.near_gateway.ip(&format!("route replace {network} via {FAR}")).unwrap();
        }
    });
    let Some(mut place) = built else { return };
    let software = lines([
        ["away", "workers", ""],
        ["closed", "workers", ""],
        ["sites", "workers", ""],
        ["second", "workers", ""],
    ]);
    place.put_pair(0, "offload=none");
    let of_software = verdicts(&place);
    let said = |verdict: &str, by: &str| {
        let is_it = |of: &&Value| of[0] == verdict && of[3].to_string().contains(by);
        of_software.iter().filter(is_it).count()
    };
    // The edges tell the policies apart.
    let outward = [said("protect", "sites"), said("protect", "second"), said("drop", "closed")];
    assert!(outward[0] == 3 && outward[1] == 4 && outward[2] >= 1, "{of_software:?}");
    assert!(said("forward", "away") >= 2, "{of_software:?}");
    for direction in ["outbound", "inbound"] {
        assert_eq!(order(&place, direction), software);
    }
    place.put_pair(1, "offload=packet");
    for direction in ["outbound", "inbound"] {
        let in_front = lines([
            ["sites", "card", ""],
            ["away", "workers", ""],
            ["closed", "workers", ""],
            ["second", "card", "closed"],
        ]);
        assert_eq!(order(&place, direction), in_front);
    }
    assert_eq!(verdicts(&place), of_software);
    // Its packets are counted by the card; each policy has the name of the SA.
    assert_eq!(place.pings(5), 5, "{}", place.story());
    let first = |place: &Place| near(place, &["show", "placement"])["policies"][0].clone();
    place.until("counted", |place| first(place)["packets"] == 5);
    let spi = format!("{:#010x}", NewSa::new(End::Near, 1).spi());
    let shown = first(&place);
    assert_eq!((&shown["spi"], &shown["sas"]), (&json!(spi), &json!(1)), "{shown:#}");
    assert_eq!((&shown["card"], &shown["state"]), (&json!("nic0"), &json!("live")), "{shown:#}");
    let text = place.daemon(End::Near).unwrap().run(&["show", "placement"]).unwrap();
    let text = text.success().unwrap();
    let rows = ["outbound policies in the order of lookup", "sites", "card nic0", "away", "closed"];
    let places: Vec<usize> = rows.iter().filter_map(|row| text.find(row)).collect();
    assert!(places.len() == rows.len() && places.is_sorted(), "{text}");
    // What the card has lost it carries no more.
    place.card().unwrap().tell("reset told").unwrap();
    place.until("lost", |place| place.sa(THERE + 1).unwrap().is_null());
    for direction in ["outbound", "inbound"] {
        assert_eq!(order(&place, direction), software);
    }
    assert_eq!(verdicts(&place), of_software);
    place.balances();
}
