//! SAs of charon's in a card: the card of gateway A seals and opens, and keeps the numbers.

use std::time::Duration;

use net::{AGAIN, Lab, lab, wait_for};
use netlab::sites::{Plan, WAN};
use netlab::{CardPlan, EmulatedCard, Scope, Tally};
use serde_json::Value;

use super::{Place, Wish, rekey_child};

/// The netdev that is the card's wire.
const WIRE: &str = "w0";
/// Time between two packets of a stream: the ring of a queue holds at least 256 frames, so a
/// program without a core for a second loses no packet.
const STREAM_STEP: Duration = Duration::from_millis(4);

/// Plugs a card in between gateway A and the wire.
fn plug_in(lab: &mut Lab) -> EmulatedCard {
    let (directory, gateways) = (lab.gateways.directory().to_owned(), &mut lab.gateways);
    gateways.file_mut(1).extra += &format!(
        "\n[card.nic0]\nkind = \"emulated\"\nsocket = \"{}/card\"\nports = [\"{WAN}\"]\n",
        directory.display()
    );
    let site = gateways.site(1);
    site.gateway
        .ip(&format!("link set {WAN} down\nlink set {WAN} name {WIRE}\nlink set {WIRE} up"))
        .unwrap();
    // No card shows the frames of its wire to the host's Linux.
    let hidden = format!(
        "add table netdev card; add chain netdev card wire {{ type filter hook ingress device \
         \"{WIRE}\" priority 0; policy drop; }}"
    );
    site.gateway.run(&["nft", &hidden], AGAIN).unwrap().success().unwrap();
    site.gateway.ip(&format!("addr flush dev {WIRE}")).unwrap();
    let plan =
        CardPlan { card: "emulated:rules=10,ms=1,sas=100", queues: 1, ..CardPlan::new(WAN, WIRE) };
    let card = EmulatedCard::start(&site.gateway, &plan, (&directory, "card")).unwrap();
    gateways.sites.raise_wan(site).unwrap();
    card
}

#[test]
fn a_card_carries_the_sas_of_charon_and_new_keys_cost_no_packet() {
    let test = "a_card_carries_charons";
    let Some(mut lab) = lab(test, Plan::default()) else { return };
    let card = plug_in(&mut lab);
    let section = |number| match number {
        1 => "offload = \"packet\"".to_owned(),
        _ => String::new(),
    };
    let wish = Wish { section: &section, ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    place.lab.flows_again();
    let in_card = |place: &Place| -> Vec<Value> {
        place.sas(1).iter().map(|sa| sa["card"].clone()).collect()
    };
    assert_eq!(in_card(&place), ["nic0", "nic0"], "{}", place.story());
    let counts = |card: &EmulatedCard| card.tell("counts").unwrap()["sealed"].as_u64().unwrap();
    let before = counts(&card);
    let capture = place.lab.gateways.capture(Scope::Heads).unwrap();
    let streams = [(1, 2), (2, 1)]
        .map(|(from, to)| place.lab.gateways.stream(from, to, STREAM_STEP).unwrap());
    for _ in 0..3 {
        rekey_child(&place.lab.gateways, &place.charons, 1);
    }
    for stream in streams.map(netlab::stream::Stream::finish) {
        assert_eq!((stream.lost(), stream.repeated()), (0, 0), "of {}", stream.sent.len());
    }
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert!(wire.spis().len() >= 8, "four pairs: {:?}", wire.spis());
    // Gateway 2 has opened a packet by the keys of each change.
    assert!(counts(&card) >= before + 3, "the card seals");
    wait_for("old SAs go", || in_card(&place) == ["nic0", "nic0"]);
    for kind in ["charon_refused", "sa_lost"] {
        assert_eq!(place.events(1, kind), [Value::Null; 0]);
    }
    place.lab.balances();
}
