//! SAs whose ends move: MOBIKE (RFC 4555), and NATs that choose another mapping (RFC 7296 §2.23).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use net::router::{self, HIDDEN, Mapping, translate};
use net::{AGAIN, lab, wait_for};
use netlab::ping::Ping;
use netlab::sites::{Plan, WAN};
use netlab::stream::Delivery;
use netlab::{ChildPlan, PeerEntry, Tally};
use serde_json::Value;

use super::{Place, SUITE, Wish};

/// Gateway A's address.
const HUB: &str = "192.0.2.1";
/// Gateway B's second address.
const SECOND: &str = "192.0.2.12";

/// The only peer of a gateway, as it is shown.
fn peer(place: &Place, number: u8) -> Value {
    let shown = place.lab.gateways.daemon(number).unwrap().ask(&["show", "peer"]).unwrap();
    let list = shown.as_object().and_then(|answer| answer.values().find(|list| list.is_array()));
    list.unwrap_or(&shown)[0].clone()
}

/// The ends of a gateway's SAs, each once.
fn ends(place: &Place, number: u8) -> Vec<[Value; 2]> {
    let mut ends: Vec<[Value; 2]> = Vec::new();
    for sa in place.sas(number) {
        let of = ["local", "remote"].map(|end| sa[end].clone());
        if !ends.contains(&of) {
            ends.push(of);
        }
    }
    ends
}

fn waits_until(place: &Place, what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + AGAIN;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: never\n{}", place.story());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Prints what a move cost. A busy machine makes any limit of time a lie; that packets arrive again
/// afterwards is what the tests assert.
fn report(what: &str, streams: &[Delivery; 2]) {
    let [out, back] = streams.each_ref().map(|stream| (stream.lost(), stream.sent.len()));
    println!(
        "{what}: of {} packets to the gateway that moves {} were lost, of {} from it {}",
        out.1, out.0, back.1, back.0
    );
}

/// The sections of a gateway whose peers charon alone makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sections {
    /// Peers of the file.
    Peers,
    /// `[ike]` alone.
    Bounds,
}

/// `[ike]` for tunnels between these addresses.
fn bounds(ends: &[&str], peers: &[&str], PeerEntry { ours, theirs, .. }: &PeerEntry) -> String {
    format!(
        "\n[ike]\nends = {ends:?}\npeers = {peers:?}\nlocal = {ours:?}\nremote = {theirs:?}\n\
         suites = [\"{SUITE}\"]\n"
    )
}

/// A gateway that moves: the second one, whose first address is taken away.
pub(super) struct Move {
    /// Commands that make its other address the only one that is left.
    prepare: String,
    take_away: String,
    /// The ends of its SAs afterwards, the other gateway's first.
    ends: [&'static str; 2],
}

/// Builds it, with MOBIKE, and lets the SAs move to these ends and no others.
fn mobile(
    test: &str,
    way: &Move,
    sections: Sections,
    roots: [Option<PathBuf>; 2],
) -> Option<Place> {
    let lab = lab(test, Plan::default())?;
    lab.gateways.site(2).gateway.ip(&way.prepare).unwrap();
    let [hub, mobile] = way.ends;
    let section = |number| {
        let (theirs, ours) = if number == 1 { (mobile, hub) } else { (hub, mobile) };
        format!("moves_to = [\"{theirs}\"]\nlocal_moves_to = [\"{ours}\"]")
    };
    let child = |_: u8, plan: &mut ChildPlan| plan.connection = "mobike = yes".into();
    let of_ike = |peer: &PeerEntry| {
        let (local, remote) = (&*peer.local, &*peer.remote);
        match local == HUB {
            true => bounds(&[local, hub], &[remote, mobile], peer),
            false => bounds(&[local, mobile], &[remote, hub], peer),
        }
    };
    let instead: Option<&dyn Fn(&PeerEntry) -> String> = match sections {
        Sections::Peers => None,
        Sections::Bounds => Some(&of_ike),
    };
    let wish = Wish { section: &section, child: &child, instead, roots, ..Wish::default() };
    Place::of(test, lab, &wish)
}

/// Takes the address away under streams.
fn moves(test: &str, way: &Move, sections: Sections) {
    moves_of(test, way, sections, [None, None]);
}

/// Takes the address away under streams; the charons are those of the roots.
pub(super) fn moves_of(test: &str, way: &Move, sections: Sections, roots: [Option<PathBuf>; 2]) {
    let Some(mut place) = mobile(test, way, sections, roots) else { return };
    place.lab.flows_again();
    let spis =
        |place: &Place| -> Vec<Value> { place.sas(1).iter().map(|sa| sa["spi"].clone()).collect() };
    let before = spis(&place);
    let [hub, mobile] = way.ends.map(Value::from);
    let quarry = place.lab.hunt(|gateways| {
        gateways.site(2).gateway.ip(&way.take_away).unwrap();
        let daemon = gateways.daemon(1).unwrap();
        let end = Instant::now() + net::BY_ITSELF;
        let has_moved = || daemon.ask(&["show", "sa"]).unwrap().to_string().contains(way.ends[1]);
        while !has_moved() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_secs(1));
    });
    report(test, &quarry.streams);
    assert_eq!(ends(&place, 1), [[hub.clone(), mobile.clone()]], "{}", place.story());
    assert_eq!(ends(&place, 2), [[mobile.clone(), hub]], "{}", place.story());
    // The same SAs, with numbers that go on: the hunt has looked for one that came twice.
    assert_eq!(spis(&place), before);
    let shown = peer(&place, 1);
    assert_eq!((&shown["current_remote"], &shown["moves"]), (&mobile, &1.into()));
    assert_eq!(peer(&place, 2)["current_local"], mobile);
    for number in [1, 2] {
        assert_eq!(place.events(number, "charon_refused"), [Value::Null; 0]);
    }
    place.lab.flows_again();
    // Keys change there as they did before.
    place.swanctl(1, &["--rekey", "--child", "net"]);
    place.lab.flows_again();
    wait_for("old SAs go", || place.sas(1).len() == 2);
    assert_eq!(ends(&place, 1).len(), 1);
    assert!(spis(&place).iter().all(|spi| !before.contains(spi)));
    place.lab.balances();
}

/// Gateway B's address is taken away, and its second one stays.
pub(super) fn to_the_second_address() -> Move {
    let prefix = "192.0.2.0/24";
    Move {
        // Of another prefix, so that it stays when the first is taken away; and charon would
        // try IPv6 too.
        prepare: format!(
            "addr add {SECOND}/32 dev {WAN}
             addr del 2001:db8:ffff::2/64 dev {WAN}"
        ),
        take_away: format!(
            "route add {prefix} dev {WAN} src {SECOND} metric 5
             addr del 192.0.2.2/24 dev {WAN}"
        ),
        ends: [HUB, SECOND],
    }
}

#[test]
fn sas_follow_a_gateway_whose_address_is_taken_away() {
    moves("sas_follow_a_gateway", &to_the_second_address(), Sections::Peers);
}

#[test]
fn sas_that_ike_admits_follow_a_gateway_whose_address_is_taken_away() {
    moves("sas_that_ike_admits_follow", &to_the_second_address(), Sections::Bounds);
}

#[test]
fn sas_follow_a_gateway_from_ipv4_to_ipv6() {
    moves(
        "sas_follow_a_gateway_to_ipv6",
        &Move {
            prepare: String::new(),
            // With the address goes the route to the other site, which led by its network.
            take_away: format!(
                "addr del 192.0.2.2/24 dev {WAN}
                 route add 10.1.0.0/16 dev {WAN}"
            ),
            ends: ["2001:db8:ffff::1", "2001:db8:ffff::2"],
        },
        Sections::Peers,
    );
}

/// The mapping that the NAT gives to gateway B's UDP ports of IKE, and of IKE and ESP.
type Mappings = [Mapping; 2];

const fn mappings(address: &'static str, ike: u16, esp: u16) -> Mappings {
    [Mapping { inside: 500, address, port: ike }, Mapping { inside: 4500, address, port: esp }]
}

const FROM: Mappings = mappings("192.0.2.102", 31_500, 31_001);
const TO: Mappings = mappings("192.0.2.103", 47_500, 47_002);

#[test]
fn charon_hears_of_a_nat_that_maps_a_gateway_elsewhere_and_moves_its_sas() {
    // ESP is in UDP because charon finds a NAT.
    let moves_to = format!("moves_to = [\"{}\"]", TO[1].address);
    maps_elsewhere("charon_hears_of_a_nat", &moves_to, Sections::Peers);
}

#[test]
fn a_peer_that_ike_admits_is_followed_to_another_mapping_of_its_nat() {
    maps_elsewhere("a_peer_that_ike_admits_nat", "", Sections::Bounds);
}

#[test]
fn a_peer_behind_a_nat_is_followed_by_its_packets_and_charon_is_told() {
    let behind = "encapsulation = \"udp\"\nbehind_nat = true";
    maps_elsewhere("a_peer_behind_a_nat_of_charons", behind, Sections::Peers);
}

/// Has the NAT of gateway B map it elsewhere; `of_hub` are further lines of gateway A's section.
fn maps_elsewhere(test: &str, of_hub: &str, sections: Sections) {
    let Some(lab) = lab(test, Plan::default()) else { return };
    let nat = router::put_between(&lab, &[FROM[1].address, TO[1].address]);
    translate(&lab, &nat, &FROM);
    let peer_entry = |number: u8, peer: &mut PeerEntry| match number {
        1 => peer.remote = FROM[1].address.to_owned(),
        _ => peer.local = HIDDEN.to_owned(),
    };
    let section = |number| match number {
        1 => of_hub.to_owned(),
        _ => "encapsulation = \"udp\"\nnat_keepalive = 1".to_owned(),
    };
    let of_ike = |peer: &PeerEntry| match &*peer.local == HUB {
        true => bounds(&[HUB], &[FROM[1].address, TO[1].address], peer),
        false => super::sections(peer, (SUITE, section(2))),
    };
    let instead: Option<&dyn Fn(&PeerEntry) -> String> = match sections {
        Sections::Peers => None,
        Sections::Bounds => Some(&of_ike),
    };
    let wish = Wish { peer: &peer_entry, section: &section, instead, ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    let crosses = |place: &Place, from: u8, to: u8| {
        let host = &place.lab.gateways.site(from).host;
        let to = place.lab.gateways.site(to).host_v4();
        let all = || Ping::new(&to, 5).run_until_answered(host).unwrap().all_answered();
        waits_until(place, &format!("pings from site {from}"), all);
    };
    // Only the gateway behind the NAT can begin.
    crosses(&place, 2, 1);
    crosses(&place, 1, 2);
    let is_at = |place: &Place, [_, Mapping { address, port, .. }]: Mappings| {
        let shown = peer(place, 1);
        (&shown["current_remote"], &shown["current_remote_port"])
            == (&Value::from(address), &Value::from(port))
    };
    assert!(is_at(&place, FROM), "{}\n{}", peer(&place, 1), place.story());
    let spis =
        |place: &Place| -> Vec<Value> { place.sas(1).iter().map(|sa| sa["spi"].clone()).collect() };
    let before = spis(&place);
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let streams =
        [(1, 2), (2, 1)].map(|(from, to)| place.lab.gateways.stream(from, to, net::STEP).unwrap());
    translate(&place.lab, &nat, &TO);
    waits_until(&place, "the move", || is_at(&place, TO));
    std::thread::sleep(Duration::from_secs(1));
    let streams = streams.map(netlab::stream::Stream::finish);
    report("another mapping of a NAT", &streams);
    assert_eq!(streams[1].lost(), 0, "what comes from elsewhere is opened: it is authentic");
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated, wire.esp), (0, 0, 0), "{wire:?}");
    assert_eq!(spis(&place), before);
    crosses(&place, 1, 2);
    crosses(&place, 2, 1);
    let log = place.charon(1).log();
    assert!(log.contains("NAT mappings of"), "{log}");
    assert_eq!(place.events(1, "charon_refused"), [Value::Null; 0]);
    place.lab.balances();
}
