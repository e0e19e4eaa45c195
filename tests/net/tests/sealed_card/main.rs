//! SAs in an emulated card, under a daemon, against a gateway that seals in software: what each
//! side of the card sees, and what becomes of the SAs and the traffic when the card refuses, is
//! silent, forgets, or goes.

mod ciphers;
mod cycles;
mod layers;
mod order;
mod place;

use std::time::Instant;

use netlab::SeenFrame;
use netlab::capture::Tally;
use netlab::listen::Listener;
use netlab::sealed::{BACK, End, FAR, NEAR, NewSa, SPOOFED, THERE};
use place::Place;

const CARD: &str = "emulated:rules=10,ms=1,sas=100";
const PACKET: &str = "offload = \"packet\"";

/// EtherType and protocol of a frame, as far as it has them.
fn kind(frame: &[u8]) -> (u16, u8) {
    let ethertype = frame.get(12..14).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    (ethertype, frame.get(23).copied().unwrap_or(0))
}

const IPV4: u16 = 0x0800;
const ESP: u8 = 50;
const ICMP: u8 = 1;

// XO-02, XO-16, XO-19
#[test]
fn the_host_sees_clear_packets_and_the_wire_esp_alone() {
    let Some(mut place) = Place::build("the_host_sees", CARD, PACKET) else { return };
    place.put_pair(0, "");
    assert_eq!(place.seats().unwrap(), 2);
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(20), 20, "{}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!(wire.clear, 0, "{wire:?}");
    assert_eq!(wire.spis(), [THERE, BACK].into());
    // Both ways, whole and in clear.
    let seen = place.card().unwrap().seen().unwrap();
    let of = |to_host: bool, protocol: u8| {
        let is_it =
            |frame: &&SeenFrame| frame.to_host == to_host && kind(&frame.bytes) == (IPV4, protocol);
        seen.iter().filter(is_it).count()
    };
    assert_eq!([of(true, ESP), of(false, ESP)], [0, 0]);
    assert_eq!([of(true, ICMP), of(false, ICMP)], [20, 20]);
    // Its counts are those of the card, within a poll.
    for spi in [THERE, BACK] {
        place.until("counted", |place| place.sa(spi).unwrap()["packets"] == 20);
        let sa = place.sa(spi).unwrap();
        assert_eq!((&sa["card"], &sa["state"]), (&"nic0".into(), &"ok".into()), "{sa:#}");
        assert!(sa["card_read_age_ms"].as_u64().is_some_and(|age| age < 5000), "{sa:#}");
    }
    // Its numbers are the card's: the peer is not out of them.
    let shown = place.daemon(End::Near).unwrap().ask(&["show", "peer"]).unwrap();
    assert_eq!(shown["peers"][0]["state"], "ready", "{shown:#}");
    place.balances();
}

// XO-06, XO-29, XO-37
#[test]
fn what_the_card_refuses_is_not_put_and_nothing_of_the_request_is_left() {
    let two = "emulated:rules=10,ms=1,sas=1";
    let Some(mut place) = Place::build("the_card_refuses", two, PACKET) else { return };
    // The second of three is one too many.
    let sas = [NewSa::new(End::Near, 0), NewSa::new(End::Near, 1), NewSa::new(End::Near, 2)];
    let refused = place.put(&sas).unwrap();
    assert!(!refused.status.success());
    for words in ["SA 2", "all of 1 SAs taken", "code -28", "make new ones", "nothing was changed"]
    {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    place.until("taken back", |place| place.seats().unwrap() == 0);
    assert!(place.sa(THERE).unwrap().is_null());
    // Nothing leaves in clear, and nothing is sealed by software.
    place.no_answer(2);
    assert_eq!(place.counted("/sealed"), 0);
    // One that the card cannot carry at all is refused before its key is used up, by its name.
    let short = NewSa { near: "suite=null-hmac-sha-256".into(), ..NewSa::new(End::Near, 5) };
    let line = format!("out 0x00001005 {} peer=other {}\n", "5a".repeat(32), short.near);
    let refused = place.put_at(End::Near, &line).unwrap();
    assert!(
        refused.stderr.contains("card nic0 cannot carry this SA (suite)"),
        "{}",
        refused.stderr
    );
    // With what fits it goes on.
    place.must_put(&[NewSa::new(End::Near, 7)]);
    assert_eq!(place.seats().unwrap(), 1);
    place.balances();
}

// XO-04
#[test]
fn an_sa_and_the_policy_beside_it_are_in_the_card_both_or_not_at_all() {
    let Some(mut place) = Place::build("both_halves", CARD, PACKET) else { return };
    let policies = |place: &Place| {
        let answer = place.card().unwrap().tell("tags").unwrap();
        answer["policies"].as_array().cloned().unwrap_or_default()
    };
    // The card takes one half alone: the put is refused by the name of the other.
    for (fault, number, missing) in
        [("policy=1000", 0, "policy beside the SA"), ("sa=1000", 1, "SA beside its policy")]
    {
        tell(&place, &format!("faults {fault}"));
        let refused = place.put(&[NewSa::new(End::Near, number)]).unwrap();
        assert!(!refused.status.success());
        let words = format!("the {missing} was not taken");
        assert!(refused.stderr.contains(&words), "{words}: {}", refused.stderr);
        place.until("nothing is left", |place| {
            place.seats().unwrap() == 0 && policies(place).is_empty()
        });
        assert!(place.sa(THERE + number).unwrap().is_null());
        place.no_answer(1);
    }
    assert_eq!(place.counted("/sealed"), 0);
    tell(&place, "faults");
    place.put_pair(7, "");
    assert_eq!((place.seats().unwrap(), policies(&place).len()), (2, 2));
    assert_eq!(place.pings(5), 5, "{}", place.story());
    // The card forgets one half without a word: the SA is lost, and the other half goes.
    let of_out = place.handles()[0] + 1;
    let handles: Vec<u64> =
        policies(&place).iter().filter_map(|of| of["handle"].as_u64()).collect();
    assert!(handles.contains(&of_out), "{handles:?}");
    tell(&place, &format!("forget {of_out} silent"));
    place.until("told", |place| !place.events("sa_lost").is_empty());
    place.until("one SA is left", |place| place.seats().unwrap() == 1);
    assert_eq!(policies(&place).len(), 1);
    place.no_answer(2);
    place.balances();
}

// XO-29
#[test]
fn an_sa_that_may_be_in_software_is_there_if_no_card_takes_it() {
    let one = "emulated:rules=10,ms=1,sas=1";
    let Some(mut place) = Place::build("may_be_in_software", one, "offload = \"auto\"") else {
        return;
    };
    // The first is the card's, the second software's; each way.
    place.must_put(&[NewSa::new(End::Near, 0)]);
    place.must_put(&[NewSa::new(End::Far, 0)]);
    let card = |spi| place.sa(spi).unwrap()["card"].as_str().unwrap_or_default().to_owned();
    assert_eq!([card(THERE), card(BACK)], ["nic0", ""]);
    assert_eq!(place.pings(5), 5, "{}", place.story());
    assert_eq!(place.counted("/sealed"), 5);
    // What is asked for by name is not served otherwise.
    let refused = place.put(&[NewSa { near: "offload=packet".into(), ..NewSa::new(End::Near, 1) }]);
    let refused = refused.unwrap();
    assert!(refused.stderr.contains("all of 1 SAs taken"), "{}", refused.stderr);
    place.must_put(&[NewSa { near: "offload=none".into(), ..NewSa::new(End::Near, 2) }]);
    assert_eq!(place.sa(THERE + 2).unwrap()["card"], "");
    // The card's SA goes before software's.
    assert_eq!(place.pings(5), 5);
    assert_eq!(place.counted("/sealed"), 10);
    place.balances();
}

// XO-17, XO-18, XO-20
#[test]
fn exactly_the_hard_limit_leaves_and_each_limit_is_told_once() {
    let Some(mut place) = Place::build("hard_limit", CARD, PACKET) else { return };
    let limited = "soft_packets=5 hard_packets=10".to_owned();
    place.must_put(&[NewSa::new(End::Far, 0)]);
    place.must_put(&[NewSa { near: limited, ..NewSa::new(End::Near, 0) }]);
    assert_eq!(place.pings(4), 4);
    assert!(place.events("sa_soft_expire").is_empty());
    // An answer may be late, after ping has given up: the counters are exact.
    assert!(place.pings_with_losses(26) <= 6, "{}", place.story());
    // The card drops what comes beyond; once it has said so, the gateway does.
    let beyond = place.counted("/dropped_by_sa/out/hard_limit") + place.dropped("sa_hard_limit");
    assert_eq!((place.counted("/sealed"), beyond), (10, 20));
    place.until("told", |place| !place.events("sa_hard_expire").is_empty());
    place.no_answer(3);
    let told = |kind: &str| -> Vec<String> {
        let events = place.events(kind);
        let one = |event: &serde_json::Value| {
            let detail = |name: &str| event["details"][name].to_string().replace('"', "");
            format!("{} {}", detail("limit"), detail("packets"))
        };
        events.iter().map(one).collect()
    };
    assert_eq!(told("sa_hard_expire"), ["packets 10"]);
    assert_eq!(told("sa_soft_expire").len(), 1);
    assert_eq!(place.sa(THERE).unwrap()["state"], "ended");
    place.balances();
}

// XO-20
#[test]
fn a_card_that_only_claims_a_limit_ends_no_sa_and_its_numbers_go_on() {
    let Some(mut place) = Place::build("claims_a_limit", CARD, PACKET) else { return };
    let limited = "soft_packets=6 hard_packets=10".to_owned();
    place.must_put(&[NewSa { near: limited.clone(), ..NewSa::new(End::Far, 0) }]);
    place.must_put(&[NewSa { near: limited, ..NewSa::new(End::Near, 0) }]);
    assert_eq!(place.pings(3), 3);
    // Early, twice, and of one that the card never had.
    let handles = place.handles();
    assert_eq!(handles.len(), 2);
    for handle in handles.iter().copied().chain([handles[1] + 9]) {
        for limit in ["soft", "hard", "hard"] {
            tell(&place, &format!("claim {handle} {limit}"));
        }
    }
    // Nobody but the control thread ends an SA, and it looks at the card's counts first.
    place.until("looked at", |place| place.sa(THERE).unwrap()["packets"] == 3);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    for kind in ["sa_soft_expire", "sa_hard_expire", "sa_lost"] {
        assert!(place.events(kind).is_empty(), "{kind}: {}", place.story());
    }
    for spi in [THERE, BACK] {
        assert_eq!(place.sa(spi).unwrap()["state"], "ok");
    }
    assert_eq!(place.seats().unwrap(), 2);
    let capture = place.capture("wire").unwrap();
    assert!(place.pings_with_losses(20) <= 7, "{}", place.story());
    place.until("told", |place| place.events("sa_hard_expire").len() == 2);
    assert_eq!((place.events("sa_soft_expire").len(), place.counted("/sealed")), (2, 10));
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated, wire.esp), (0, 0, 14), "{wire:?}");
    // Claims of SAs that have ended tell nothing again.
    for handle in place.handles() {
        tell(&place, &format!("claim {handle} hard"));
    }
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(place.events("sa_hard_expire").len(), 2);
    place.balances();
}

/// Something that happens to a card.
type Happening = fn(&Place);

/// Fails if the loss of SAs by their card is not told once each, if anything leaves afterwards, or
/// if it does not go on with new keys.
fn lost(test: &str, happens: Happening, comes_back: Happening) {
    let Some(mut place) = Place::build(test, CARD, PACKET) else { return };
    place.put_pair(0, "");
    assert_eq!(place.pings(3), 3);
    happens(&place);
    let took = place.until("both told", |place| place.events("sa_lost").len() == 2);
    println!("{test}: {} ms until both SAs were told to be lost", took.as_millis());
    let shown = place.sa(THERE).unwrap();
    assert!(shown.is_null(), "{shown:#}");
    let sealed = place.counted("/sealed");
    place.no_answer(3);
    assert_eq!(place.counted("/sealed"), sealed);
    comes_back(&place);
    place.serves();
    // No SA comes back by itself.
    place.no_answer(2);
    place.end_at_far(BACK);
    place.put_pair(1, "");
    assert_eq!(place.pings(5), 5, "{}", place.story());
    assert_eq!(place.events("sa_lost").len(), 2, "each once");
    place.balances();
}

fn tell(place: &Place, words: &str) {
    place.card().unwrap().tell(words).unwrap();
}

#[test]
fn a_card_that_begins_anew_and_says_so_has_lost_its_sas() {
    lost("begins_anew", |place| tell(place, "reset told"), |_| {});
}

#[test]
fn a_card_that_begins_anew_without_a_word_is_found_out() {
    lost("begins_silently", |place| tell(place, "reset silent"), |_| {});
}

// XO-22
#[test]
fn a_link_that_goes_down_flushes_the_sas_from_the_card() {
    let down: Happening = |place| {
        place.near_gateway.ip("link set wan0 down").unwrap();
        let took = place.until("flushed", |place| place.seats().unwrap() == 0);
        println!("link down: {} ms until the card had no SA any more", took.as_millis());
        // The row says 100 ms; a busy machine takes longer.
        assert!(took.as_secs() < 10, "{took:?}");
    };
    lost("link_down", down, |place| {
        place.near_gateway.ip("link set wan0 up").unwrap();
        place.near_gateway.ip("route replace 10.2.0.0/24 via 192.0.2.2").unwrap();
    });
}

// XO-22
// XO-13: among the SAs of a set, in the emulated card
#[test]
fn with_a_software_sa_beside_it_traffic_goes_on_when_the_card_is_lost() {
    let Some(mut place) = Place::build("software_beside", CARD, "offload = \"auto\"") else {
        return;
    };
    place.put_pair(0, "");
    place.put_pair(1, "offload=none");
    assert_eq!(place.pings(5), 5);
    assert_eq!(place.counted("/sealed"), 5, "the card's goes first");
    // What the far end sends by is the SA that it got last, which software opens here.
    let capture = place.capture("wire").unwrap();
    let stream = place.stream().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    tell(&place, "reset told");
    place.until("both told", |place| place.events("sa_lost").len() == 2);
    let told = Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(stream.wait_for_arrival(Instant::now(), net::AGAIN).unwrap(), "{}", place.story());
    let delivery = stream.finish();
    println!("{} of {} packets lost", delivery.lost(), delivery.sent.len());
    let arrived = delivery.arrived_of_span(told, Instant::now());
    assert!(arrived > 0, "it goes on: {}", place.story());
    place.end_at_far(BACK);
    assert_eq!(place.pings(5), 5, "{}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert!(wire.spis().contains(&THERE) && wire.spis().contains(&(THERE + 1)));
    place.balances();
}

#[test]
fn limits_of_time_end_an_sa_in_a_card_and_one_in_software_goes_on() {
    let Some(mut place) = Place::build("limit_of_time", CARD, "offload = \"auto\"") else { return };
    let limited = "hard_seconds=5".to_owned();
    place.must_put(&[NewSa::new(End::Far, 0)]);
    place.must_put(&[NewSa { near: limited, ..NewSa::new(End::Near, 0) }]);
    assert_eq!(place.pings(3), 3);
    place.until("ended", |place| place.sa(THERE).unwrap()["state"] == "ended");
    let sealed = place.counted("/sealed");
    place.no_answer(3);
    assert_eq!((place.counted("/sealed"), place.dropped("sa_hard_limit")), (sealed, 3));
    assert_eq!(place.events("sa_hard_expire").len(), 1);
    place.must_put(&[NewSa { near: "offload=none".into(), ..NewSa::new(End::Near, 1) }]);
    assert_eq!(place.pings(3), 3, "{}", place.story());
    assert_eq!(place.counted("/sealed"), sealed);
    place.balances();
}

// XO-34
#[test]
fn after_an_sa_is_deleted_nothing_leaves_by_it() {
    let Some(mut place) = Place::build("deleted", CARD, PACKET) else { return };
    for number in 0..10 {
        place.put_pair(number, "");
        let stream = place.stream().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let spi = format!("{:#x}", THERE + number);
        place.daemon(End::Near).unwrap().run(&["sa", "del", &spi]).unwrap().success().unwrap();
        let deleted = Instant::now();
        // The card seals the last packets handed over before the answer.
        let sealed = place.counted_at_rest("/sealed");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let delivery = stream.finish_cut();
        assert_eq!(delivery.arrived_of_span(deleted, Instant::now()), 0, "sent after the answer");
        assert_eq!(place.counted("/sealed"), sealed, "after the answer");
        let spi = format!("{:#x}", BACK + number);
        place.daemon(End::Near).unwrap().run(&["sa", "del", &spi]).unwrap().success().unwrap();
        place.until("the card has none", |place| place.seats().unwrap() == 0);
    }
    assert!(place.events("sa_lost").is_empty());
    place.balances();
}

// XO-25, XO-33, OWN
#[test]
fn under_a_card_that_seals_clear_packets_of_the_policy_are_dropped_and_ike_passes() {
    // A policy for everything, whose SAs are in the card, stands beside.
    let everything = format!(
        "{PACKET}\n[[policy]]\nname = \"all\"\npeer = \"other\"\nlocal = [\"any\"]\n\
         remote = [\"any\"]\npriority = 1\n"
    );
    let Some(mut place) = Place::build("clear_packets", CARD, &everything) else { return };
    place.put_pair(0, "");
    assert_eq!(place.pings(2), 2);
    let before = place.dropped("unprotected");
    let listener = Listener::open(&place.client, "c0").unwrap();
    place.spoof(10).unwrap();
    place.until("dropped", |place| place.dropped("unprotected") == before + 10);
    let is_it = |frame: &[u8]| frame.ends_with(SPOOFED);
    let got = listener.wait(1, std::time::Duration::from_millis(100), is_it);
    assert!(got.is_err(), "nothing came: {got:?}");
    // What the gateways say to each other is sealed by no one, in either direction; and what is
    // sealed is sealed once.
    let capture = place.capture("ike").unwrap();
    let ike = |from: &netlab::Namespace, from_address: &str, to_address: &str| {
        let (from_address, to_address) =
            (format!("{from_address}:500"), format!("{to_address}:500"));
        let send = || {
            let socket = std::net::UdpSocket::bind(&from_address)?;
            (0..5).try_for_each(|_| socket.send_to(b"ike", &to_address).map(drop))
        };
        from.enter(send).unwrap().unwrap();
    };
    ike(&place.near_gateway, NEAR, FAR);
    let arrives = place.near_gateway.enter(|| std::net::UdpSocket::bind(format!("{NEAR}:500")));
    let arrives = arrives.unwrap().unwrap();
    arrives.set_read_timeout(Some(net::AGAIN)).unwrap();
    ike(&place.far_gateway, FAR, NEAR);
    let mut datagram = [0; 16];
    let (bytes, _) = arrives.recv_from(&mut datagram).unwrap();
    assert_eq!(&datagram[..bytes], b"ike");
    assert_eq!(place.pings(3), 3);
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.esp), (0, 6), "{wire:?}");
    assert!(wire.other >= 10, "IKE of both, as it is: {wire:?}");
    place.balances();
}

// XO-18
#[test]
fn while_the_daemon_stands_still_the_card_hands_over_no_packet_beyond_the_limit() {
    let Some(mut place) = Place::build("stands_still", CARD, PACKET) else { return };
    place.must_put(&[NewSa::new(End::Near, 0)]);
    let limited = "hard_packets=10".to_owned();
    place.must_put(&[NewSa { near: limited, ..NewSa::new(End::Far, 0) }]);
    assert_eq!(place.pings(1), 1);
    let near = place.daemon(End::Near).unwrap();
    near.pause();
    let sent = 30;
    place.ping_from_server(sent);
    let opened =
        || (0..4).map(|queue| place.counted(&format!("/queues/{queue}/opened"))).sum::<u64>();
    assert_eq!((opened(), place.counted("/dropped_by_sa/in/hard_limit")), (10, 21));
    place.daemon(End::Near).unwrap().resume();
    place.until("told", |place| !place.events("sa_hard_expire").is_empty());
    assert_eq!(place.events("sa_hard_expire").len(), 1);
    assert_eq!(place.sa(BACK).unwrap()["state"], "ended");
    place.balances();
}

#[test]
fn new_keys_in_the_card_cost_no_packet() {
    let Some(mut place) = Place::build("new_keys", CARD, PACKET) else { return };
    place.put_pair(0, "");
    let delivery = ciphers::with_new_keys(&mut place, 5);
    assert_eq!((delivery.lost(), delivery.repeated()), (0, 0), "of {}", delivery.sent.len());
    assert_eq!(place.pings(3), 3);
    // Those that were replaced go: the ones that seal at once, the others when they had their time.
    assert!(place.sa(THERE + 4).unwrap().is_null());
    assert!(place.seats().unwrap() <= 1 + 6);
    place.balances();
}
