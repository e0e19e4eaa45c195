//! Peers whose packets Linux carries, for a card that does ESP under Linux (kind `xfrm`).
//!
//! No machine of these tests has such a card. Where the kernel has ESP, Linux's own stands in for
//! the card (`stand_in = "linux"`): states, policies, programs and guard are what they would be.
//! `cargo xtask test-long xfrm` runs these in a guest that has it; elsewhere they say that they
//! were skipped, but for the one that asks what is refused.

mod place;

use netlab::capture::{Tally, frames};
use netlab::iperf;
use netlab::sealed::{BACK, End, NewSa, SERVER, THERE};
use place::Place;

const STANDS_IN: &str = "stand_in = \"linux\"";
const PACKET: &str = "offload = \"packet\"";
const CRYPTO: &str = "offload = \"crypto\"";
const AUTO: &str = "offload = \"auto\"";

#[test]
fn what_linux_cannot_do_is_refused_in_its_words_or_stays_in_software() {
    let Some(mut place) = Place::build("refused", "", AUTO) else { return };
    let card = place.card_shown();
    assert_eq!((&card["state"], &card["kind"]), (&"none".into(), &"xfrm".into()), "{card:#}");
    // The kernel's own text: it has no cipher, no ESP, no such flag, or the netdev no card.
    let why = card["state_reason"].as_str().unwrap().to_owned();
    let known = ["algorithm not found", "not offloaded", "to no card", "Unrecognized flags"];
    assert!(known.iter().any(|words| why.contains(words)), "{why}");
    // What only the card may carry is refused before its key is used.
    for (number, mode) in [(0, "packet"), (2, "crypto")] {
        let refused = place.put(&[with(End::Near, number, &format!("offload={mode}"))]).unwrap();
        assert!(!refused.status.success(), "{mode}");
        assert!(refused.stderr.contains(&why), "{mode}: {why}: {}", refused.stderr);
        assert!(place.sa(THERE + number).unwrap().is_null());
    }
    // What may be in software is, from the first packet on.
    place.put_pair(1);
    assert_eq!(place.sa(THERE + 1).unwrap()["card"], "");
    assert_eq!(place.pings(5), 5, "{}", place.story());
    assert_eq!(place.in_linux(), ["", ""]);
}

#[test]
#[ignore = "make test-long PART=xfrm"]
fn linux_carries_what_the_policies_say_and_the_wire_has_esp_alone() {
    let Some(mut place) = Place::with_esp("carries", STANDS_IN, PACKET) else { return };
    place.put_pair(0);
    let [states, policies] = place.in_linux();
    assert_eq!(states.matches("reqid 12797").count(), 2, "{states}");
    for words in ["dir in ", "dir fwd ", "dir out "] {
        assert_eq!(policies.matches(words).count(), 1, "{words}: {policies}");
    }
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(20), 20, "{}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    // A slow guest asks more than once.
    assert!(wire.clear == 0 && wire.esp >= 40, "{wire:?}");
    assert_eq!(wire.spis(), [THERE, BACK].into());
    for spi in [THERE, BACK] {
        let (count, _) = wire.of_spi(spi);
        place.until("counted", |place| place.sa(spi).unwrap()["packets"] == count);
        assert_eq!(place.sa(spi).unwrap()["card"], "nic0");
    }
    assert!(place.passed("lan0") >= 20 && place.passed("wan0") >= 20, "{}", place.story());
    let near = place.daemon(End::Near).unwrap();
    let flow = |from: &str, to: &str| [from, to].map(|end| format!("{end}:7"));
    for (words, ends, spi) in [
        (&["explain", "--in", "lan"][..], flow(netlab::sealed::CLIENT, SERVER), THERE),
        (
            &["explain", "--in", "wan", "--from-peer", "other"],
            flow(SERVER, netlab::sealed::CLIENT),
            BACK,
        ),
    ] {
        let words = [words, &["udp", &ends[0], &ends[1]]].concat();
        let told = near.run(&words).unwrap().success().unwrap();
        let by = format!("by SA {spi:#010x} (reqid 12797");
        assert!(told.contains("policy sites: Linux carries it for card nic0, "), "{told}");
        assert!(told.contains(&by), "{by}: {told}");
    }
    // In clear from outside: the program passes it, and Linux does not forward it.
    let inside = place.capture_at_client("spoofed");
    place.spoof(20).unwrap();
    let seen = inside.stop().unwrap();
    assert_eq!(place.clear_from_server(&seen), 0, "{}", place.story());
    // A rekey: both new SAs, then the old ones go.
    place.put_pair(1);
    assert_eq!(place.pings(5), 5, "{}", place.story());
    place.balances();
    // Stopped, nothing of ours is left, and nothing passes.
    place.end_near();
    assert_eq!(place.in_linux(), ["", ""]);
    place.no_answer(2);
}

#[test]
#[ignore = "make test-long PART=xfrm"]
fn what_is_flushed_from_linux_leaves_nothing_in_clear() {
    let Some(mut place) = Place::with_esp("flushed", STANDS_IN, PACKET) else { return };
    for (number, words) in [(0, &["state"][..]), (1, &["policy"]), (2, &["policy", "state"])] {
        place.put_pair(number);
        assert_eq!(place.pings(2), 2, "{words:?}: {}", place.story());
        let capture = place.capture("wire").unwrap();
        for word in words {
            place.near_gateway.ip(&format!("xfrm {word} flush")).unwrap();
        }
        place.no_answer(10);
        let wire = Tally::of(&capture.stop().unwrap()).unwrap();
        assert_eq!(wire.clear, 0, "{words:?}: {wire:?}");
        if words.contains(&"state") {
            // It is told, and the SAs are out of use.
            place.until("lost", |place| place.sa(THERE + number).unwrap().is_null());
        } else {
            let spis = [THERE + number, BACK + number].map(|spi| format!("{spi:#x}"));
            for spi in spis {
                place.daemon(End::Near).unwrap().run(&["sa", "del", &spi]).unwrap();
            }
        }
        place.end_at_far(number);
    }
}

/// The same as before without the guard: the test can fail.
#[test]
#[ignore = "make test-long PART=xfrm"]
fn without_the_guard_a_flush_leaks() {
    let Some(mut place) = Place::with_esp("control", STANDS_IN, PACKET) else { return };
    place.put_pair(0);
    assert_eq!(place.pings(2), 2, "{}", place.story());
    // Stopped, so that it does not put the guard back.
    place.daemon(End::Near).unwrap().pause();
    place.near_gateway.run(&["nft", "delete", "table", "inet", "lockgate"], place::LIMIT).unwrap();
    let capture = place.capture("wire").unwrap();
    place.near_gateway.ip("xfrm policy flush").unwrap();
    place.near_gateway.ip("xfrm state flush").unwrap();
    place.no_answer(10);
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert!(wire.clear > 0, "nothing leaked, so that the other test proves nothing: {wire:?}");
    println!("control: without the guard {} packets left in clear", wire.clear);
    place.daemon(End::Near).unwrap().resume();
}

#[test]
#[ignore = "make test-long PART=xfrm"]
fn what_a_killed_daemon_left_is_swept_by_the_next_and_nothing_else_is() {
    let Some(mut place) = Place::with_esp("killed", STANDS_IN, PACKET) else { return };
    place.put_pair(0);
    let other = "xfrm policy add src 172.16.0.0/16 dst 172.17.0.0/16 dir out tmpl src 192.0.2.1 \
                 dst 192.0.2.9 proto esp reqid 7 mode tunnel";
    place.near_gateway.ip(other).unwrap();
    place.kill_near();
    let [states, policies] = place.in_linux();
    assert!(states.contains("reqid 12797") && policies.contains("reqid 12797"), "{states}");
    place.start_one(End::Near, PACKET).unwrap();
    place.has_only_others();
    place.no_answer(2);
    // Detached, at once.
    place.end_at_far(0);
    place.put_pair(1);
    assert_eq!(place.pings(2), 2, "{}", place.story());
    place.kill_near();
    assert!(place.in_linux()[0].contains("reqid 12797"));
    let capture = place.capture("wire").unwrap();
    let detached = place.detach_near();
    assert!(detached.contains("Linux: 5 SAs and policies"), "{detached}");
    assert!(detached.contains("guard: removed"), "{detached}");
    place.has_only_others();
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!(wire.clear, 0, "{wire:?}");
}

/// Linux may have sealed by an SA before it refused its policy.
#[test]
#[ignore = "make test-long PART=xfrm"]
fn with_auto_a_policy_that_linux_refuses_is_a_put_refused() {
    let Some(mut place) = Place::with_esp("auto", STANDS_IN, AUTO) else { return };
    let other = "xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out priority 100 tmpl src \
                 192.0.2.1 dst 192.0.2.9 proto esp reqid 7 mode tunnel";
    place.near_gateway.ip(other).unwrap();
    let refused = place.put(&[NewSa::new(End::Near, 0)]).unwrap();
    assert!(!refused.status.success());
    let words = "its policy was not (out, 10.1.0.0/24 to 10.2.0.0/24)";
    assert!(
        refused.stderr.contains(words) && refused.stderr.contains("File exists"),
        "{refused:?}"
    );
    place.has_only_others();
    assert!(place.sa(THERE).unwrap().is_null(), "in software neither");
    place.no_answer(2);
}

#[test]
#[ignore = "make test-long PART=xfrm"]
fn exactly_the_hard_limit_leaves_and_is_told_once() {
    for (mode, peer) in [("packet", PACKET), ("crypto", CRYPTO)] {
        let Some(mut place) = Place::with_esp("limit", STANDS_IN, peer) else { return };
        let soft = "soft_packets=5 hard_packets=10";
        place.must_put(&[with(End::Far, 0, ""), with(End::Near, 0, soft)]);
        assert_eq!(place.sa(THERE).unwrap()["card_mode"], mode);
        let capture = place.capture("wire").unwrap();
        let answered = place.pings_patiently(20);
        let wire = Tally::of(&capture.stop().unwrap()).unwrap();
        assert_eq!((answered, wire.clear, wire.esp), (10, 0, 20), "{mode}: {}", place.story());
        place.until("told", |place| place.events("sa_hard_expire").len() == 1);
        assert_eq!(place.events("sa_soft_expire").len(), 1, "{mode}");
        // 20,000 bytes are 12 packets of the largest, 1564 bytes for the cipher.
        place.must_put(&[with(End::Far, 1, ""), with(End::Near, 1, "hard_bytes=20000")]);
        let answered = place.pings_patiently(20);
        assert_eq!(answered, 12, "{mode}: {}", place.story());
        place.until("told", |place| place.events("sa_hard_expire").len() == 2);
    }
}

/// An SA with these options at the near end.
fn with(from: End, number: u32, near: &str) -> NewSa {
    NewSa { near: near.into(), ..NewSa::new(from, number) }
}

// XO-12: in Linux's own lookup, by software ESP
#[test]
#[ignore = "make test-long PART=xfrm"]
fn a_policy_of_prefixes_is_found_beside_one_of_single_addresses() {
    let peer = format!(
        "{PACKET}\n[[policy]]\nname = \"one\"\npeer = \"other\"\nlocal = [\"10.1.0.77/32\"]\n\
         remote = [\"10.2.0.77/32\"]\npriority = 900\n"
    );
    let Some(mut place) = Place::with_esp("prefixes", STANDS_IN, &peer) else { return };
    place.put_pair(0);
    let [_, policies] = place.in_linux();
    for selector in ["src 10.1.0.77/32 dst 10.2.0.77/32", "src 10.1.0.0/24 dst 10.2.0.0/24"] {
        assert!(policies.contains(selector), "{selector}: {policies}");
    }
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(5), 5, "{}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    // A slow guest asks more than once.
    assert!(wire.clear == 0 && wire.esp >= 10, "{wire:?}");
}

// XO-35
#[test]
#[ignore = "make test-long PART=xfrm"]
fn segments_of_a_sender_with_gso_keep_to_the_mtu() {
    let Some(mut place) = Place::with_esp("gso", STANDS_IN, PACKET) else { return };
    place.put_pair(0);
    place
        .client
        .run(&["ethtool", "-K", "c0", "tx", "on", "tso", "on", "gso", "on"], place::LIMIT)
        .unwrap();
    place.near_gateway.run(&["ethtool", "-K", "lan0", "gro", "on"], place::LIMIT).unwrap();
    let server = iperf::Server::start(&place.server).unwrap();
    let whole = place.capture_heads("heads");
    let wire = place.longer_than(1514, "br0");
    let inside = place.longer_than(1514, "lan0");
    let rate = iperf::tcp(&place.client, SERVER, 2).unwrap();
    drop(server);
    let [wire, inside] = [wire, inside].map(|capture| frames(&capture.stop().unwrap()).unwrap());
    println!("{rate:.3} Gbit/s; frames beyond 1514 bytes: {inside} inside, {wire} on the wire");
    assert!(inside > 0, "no frame of several segments came, so that this proves nothing");
    assert_eq!(wire, 0);
    // The number that is shown is the wire's, and each segment was counted.
    assert_eq!(place.pings(3), 3);
    let (_, last) = Tally::of(&whole.stop().unwrap()).unwrap().of_spi(THERE);
    assert!(last > 100, "{last}");
    place.until("counted", |place| place.sa(THERE).unwrap()["sequence"] == last);
    assert_eq!(place.sa(THERE).unwrap()["packets"], last);
}
