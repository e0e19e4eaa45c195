//! Suites, numbers, modes and keys that two charons negotiate, and those of IKE itself.

use net::{lab, wait_for};
use netlab::ping::Ping;
use netlab::sites::Plan;
use netlab::{ChildPlan, PeerEntry};
use std::time::Duration;

use super::{Place, Wish, rekey_ike};

/// Pings from both sites to the other's host: fewer than may wait for keys.
fn crosses(place: &Place) {
    for (from, to) in [(1, 2), (2, 1)] {
        let address = place.lab.gateways.site(to).host_v4();
        let host = &place.lab.gateways.site(from).host;
        let answers = Ping::new(&address, 3).run_at_once(host).unwrap();
        assert!(answers.all_answered(), "{}\n{}", answers.text, place.story());
    }
}

/// The suites and modes of a gateway's SAs, as they are shown, each once.
fn forms(place: &Place) -> Vec<String> {
    let form = |sa: &serde_json::Value| format!("{} {}", sa["suite"], sa["mode"]);
    let mut forms: Vec<String> = place.sas(1).iter().map(form).collect();
    forms.sort();
    forms.dedup();
    forms
}

#[test]
fn every_suite_of_charons_that_lockgate_has_carries_packets() {
    let rows = [
        ("aes-128-gcm", "aes128gcm16-esn"),
        ("aes-192-gcm", "aes192gcm16-esn"),
        ("aes-256-gcm", "aes256gcm16-noesn"),
        ("chacha20-poly1305", "chacha20poly1305-esn"),
        ("aes-128-cbc-hmac-sha-256", "aes128-sha256-esn"),
        ("aes-128-cbc-hmac-sha-384", "aes128-sha384-esn"),
        ("aes-128-cbc-hmac-sha-512", "aes128-sha512-noesn"),
        ("aes-256-cbc-hmac-sha-256", "aes256-sha256-esn"),
        ("aes-256-cbc-hmac-sha-384", "aes256-sha384-esn"),
        ("aes-256-cbc-hmac-sha-512", "aes256-sha512-esn"),
        ("null-hmac-sha-256", "null-sha256-esn"),
        ("null-hmac-sha-384", "null-sha384-esn"),
        ("null-hmac-sha-512", "null-sha512-noesn"),
    ];
    for (suite, proposal) in rows {
        let test = "every_suite_of_charons";
        let Some(lab) = lab(test, Plan::default()) else { return };
        let wish = Wish { suite, proposals: [proposal; 2], ..Wish::default() };
        let Some(place) = Place::of(test, lab, &wish) else { return };
        crosses(&place);
        let has_esn = proposal.ends_with("-esn");
        let sas = place.sas(1);
        assert!(sas.len() >= 2, "{suite}: {sas:?}");
        for sa in &sas {
            assert_eq!(sa["suite"], suite, "{sa}");
            assert_eq!(sa["extended_sequence_numbers"], has_esn, "{sa}");
        }
        assert_eq!(forms(&place).len(), 1);
        place.lab.balances();
    }
}

/// The gateway that answers takes the first of its own proposals that the other has too, as
/// strongSwan does; it makes no second choice if Lockgate refuses the first.
#[test]
fn of_two_proposals_the_one_of_the_section_is_used_and_another_is_refused_in_words() {
    let test = "of_two_proposals";
    let both = "aes128gcm16-esn,aes256gcm16-esn";
    for answers in ["aes256gcm16-esn", "aes256gcm16-esn,aes128gcm16-esn"] {
        let Some(lab) = lab(test, Plan::default()) else { return };
        let proposals = [both, answers];
        let Some(place) = Place::of(test, lab, &Wish { proposals, ..Wish::default() }) else {
            return;
        };
        crosses(&place);
        assert!(place.sas(1).iter().all(|sa| sa["suite"] == "aes-256-gcm"), "{:?}", place.sas(1));
    }
    let Some(lab) = lab(test, Plan::default()) else { return };
    let wish = Wish { proposals: [both; 2], ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let to = place.lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 3).run(&place.lab.gateways.site(1).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);
    let says_why = |event: &serde_json::Value| {
        let text = event["message"].as_str().unwrap_or_default();
        text.contains("suite = \"aes-256-gcm\" and charon negotiated aes-128-gcm")
    };
    wait_for("the refusal", || place.events(2, "charon_refused").iter().any(says_why));
    assert!(place.sas(1).is_empty() && place.sas(2).is_empty());
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.esp, wire.clear), (0, 0), "{wire:?}");
}

/// RFC 7296 §2.4: what arrives by the SAs shows that the peer lives.
#[test]
fn charon_asks_whether_the_peer_lives_only_if_nothing_comes_from_it() {
    let test = "charon_asks_whether_the_peer_lives";
    let Some(lab) = lab(test, Plan::default()) else { return };
    let delay = Duration::from_secs(4);
    // One of the two alone: a question from the other would show this one that it lives.
    let child = |number: u8, plan: &mut ChildPlan| {
        if number == 1 {
            plan.connection = format!("mobike = no\ndpd_delay = {}s", delay.as_secs());
        }
    };
    let Some(place) = Place::of(test, lab, &Wish { child: &child, ..Wish::default() }) else {
        return;
    };
    let asked = |place: &Place| place.charon(1).log().matches("sending DPD request").count();
    place.lab.flows_again();
    let streams = [(1, 2), (2, 1)]
        .map(|(from, to)| place.lab.gateways.stream(from, to, Duration::from_millis(50)).unwrap());
    std::thread::sleep(delay * 4);
    let while_busy = asked(&place);
    let streams = streams.map(netlab::stream::Stream::finish);
    // Enough arrived to show it, whatever a busy machine lost.
    for stream in &streams {
        let (arrived, sent) = (stream.received(), stream.sent.len());
        assert!(sent > 0 && 2 * arrived >= sent, "{arrived} of {sent}");
    }
    // charon 6 asks all the same, unless ESP is in UDP (its NEWS of 6.0.1).
    let is_charon_6 = place.roots[0].is_some();
    assert_eq!(while_busy > 0, is_charon_6, "{}", place.charon(1).log());
    wait_for("charon asks", || asked(&place) > 0);
}

#[test]
fn transport_mode_seals_what_two_gateways_say_to_each_other() {
    let test = "transport_mode_of_charons";
    let Some(lab) = lab(test, Plan::default()) else { return };
    let peer = |_: u8, peer: &mut PeerEntry| {
        peer.ours = vec![peer.local.clone()];
        peer.theirs = vec![peer.remote.clone()];
    };
    let child = |_: u8, plan: &mut ChildPlan| plan.more = "mode = transport".into();
    let section = |_| "mode = \"transport\"".to_owned();
    let wish = Wish { peer: &peer, child: &child, section: &section, ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    for (from, to) in [(1, 2), (2, 1)] {
        let address = place.lab.gateways.site(to).wan_v4();
        let from = &place.lab.gateways.site(from).gateway;
        let all = || Ping::new(&address, 5).run_until_answered(from).unwrap().all_answered();
        wait_for(&format!("pings to {address}"), all);
    }
    assert!(place.sas(1).iter().all(|sa| sa["mode"] == "transport"), "{:?}", place.sas(1));
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert!(wire.esp >= 20, "{wire:?}");
    place.lab.balances();
}

#[test]
fn keys_of_ike_itself_change_under_a_stream_and_no_sa_with_them() {
    let Some(mut place) = Place::build("keys_of_ike_itself", |_| ()) else { return };
    place.lab.flows_again();
    let spis = |place: &Place| -> Vec<serde_json::Value> {
        place.sas(1).iter().map(|sa| sa["spi"].clone()).collect()
    };
    let before = spis(&place);
    let Place { lab, charons, .. } = &mut place;
    let quarry = lab.hunt(|gateways| {
        for _ in 0..3 {
            rekey_ike(gateways, charons, 1);
        }
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    assert_eq!(spis(&place), before);
    let log = place.charon(1).log();
    assert!(log.matches("rekeyed between").count() >= 3, "{log}");
    place.lab.balances();
}
