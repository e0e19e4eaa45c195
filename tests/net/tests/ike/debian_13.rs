//! charon 6, in a root of Debian 13 with the package of the plugin, beside charon 5.9.8 of this
//! machine's Debian 12. `make test-long PART=charon6` makes the root.

use std::path::PathBuf;
use std::time::Duration;

use net::{lab, wait_for};
use netlab::charon::{self, ROOT_VARIABLE, Root};
use netlab::ping::Ping;
use netlab::sites::Plan;
use netlab::{Charon, ChildPlan};
use serde_json::Value;

use super::moves::{Sections, moves_of, to_the_second_address};
use super::{Place, Wish, rekey_child, rekey_ike};

/// The root that the part has made.
pub(super) fn root() -> Option<PathBuf> {
    std::env::var_os(ROOT_VARIABLE).map(PathBuf::from)
}

/// The root. Says loudly if there is none.
fn root_for(test: &str) -> Option<PathBuf> {
    let root = root();
    if root.is_none() {
        println!("SKIPPED: {test}: {ROOT_VARIABLE} names no root: make test-long PART=charon6");
    }
    root
}

/// The gateway whose charon is the new one.
const NEW: u8 = 1;

/// Two gateways, whose first has a charon of Debian 13.
fn mixed(test: &str) -> Option<Place> {
    let wish = Wish { roots: [Some(root_for(test)?), None], ..Wish::default() };
    let place = Place::of(test, lab(test, Plan::default())?, &wish)?;
    let [new, old] = [1, 2].map(|number| place.swanctl(number, &["--version", "--daemon"]));
    assert!(new.contains(" 6.") && old.contains(" 5."), "{new} {old}");
    let plugins = place.swanctl(NEW, &["--stats"]);
    assert!(plugins.split_whitespace().any(|word| word == "lockgate"), "{plugins}");
    Some(place)
}

fn spis(place: &Place, number: u8) -> Vec<Value> {
    place.sas(number).iter().map(|sa| sa["spi"].clone()).collect()
}

#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn charon_6_and_charon_5_make_a_tunnel_and_change_its_keys_without_a_loss() {
    let Some(mut place) = mixed("charon_6_and_charon_5") else { return };
    assert!(place.sas(1).is_empty(), "a trap makes no SA");
    let to = place.lab.gateways.site(2).host_v4();
    let host = &place.lab.gateways.site(1).host;
    let answers = Ping::new(&to, 5).run_at_once(host).unwrap();
    assert!(answers.all_answered(), "{}\n{}", answers.text, place.story());
    assert!(place.sas(1).iter().all(|sa| sa["owner"] == "ike"), "{:?}", place.sas(1));
    place.shows_names();
    let first = spis(&place, 1);
    let Place { lab, charons, .. } = &mut place;
    // Each asks the other for new keys of the child, and then of IKE itself.
    let quarry = lab.hunt(|gateways| {
        for change in [rekey_child, rekey_ike] {
            for number in [1, 2, 1, 2] {
                change(gateways, charons, number);
            }
        }
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    // The first pair and four others.
    assert!(quarry.wire.spis().len() >= 10, "{:?}", quarry.wire.spis());
    wait_for("old SAs go", || place.sas(1).len() == 2 && place.sas(2).len() == 2);
    assert!(spis(&place, 1).iter().all(|spi| !first.contains(spi)));
    place.shows_names();
    for number in [1, 2] {
        let listed = place.swanctl(number, &["--list-sas"]);
        assert!(listed.contains("AES_GCM_16-256/ESN") && listed.contains(" packets"), "{listed}");
        let log = place.charon(number).log();
        assert!(log.matches("rekeyed between").count() >= 4, "{log}");
    }
    place.lab.balances();
}

#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn after_kills_of_the_daemon_and_of_charon_6_no_key_comes_again_and_traffic_goes_on() {
    let Some(mut place) = mixed("after_kills_of_the_daemon_and_of_charon_6") else { return };
    place.lab.flows_again();
    let before = spis(&place, NEW);
    // Nothing in clear, and no number twice under one SPI: the hunt looks.
    place.lab.hunt(|gateways| {
        gateways.kill(NEW);
        gateways.start(NEW).unwrap();
        std::thread::sleep(Duration::from_secs(3));
    });
    place.lab.flows_again();
    let after = spis(&place, NEW);
    assert!(after.iter().all(|spi| !before.contains(spi)), "{before:?} {after:?}");
    place.charons[0].as_mut().expect("it runs").kill();
    wait_for("charon is gone", || !place.events(NEW, "charon_gone").is_empty());
    place.lab.flows_again();
    place.start_charon(NEW).unwrap();
    // What the other gateway may still seal by them is opened to their limits.
    let is_replaced = || {
        let sas = place.sas(NEW);
        let mut outbound = sas.iter().filter(|sa| sa["direction"] == "outbound").peekable();
        outbound.peek().is_some() && outbound.all(|sa| !after.contains(&sa["spi"]))
    };
    wait_for("the SAs that the first charon left are replaced", is_replaced);
    place.lab.flows_again();
}

/// Somebody has copied the plugin of Debian 12 into Debian 13; dpkg would have refused it.
#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn the_plugin_for_another_charon_refuses_all_sas_and_leaves_none_to_linux() {
    let Some(mut place) = mixed("the_plugin_for_another_charon") else { return };
    place.charons[0].as_mut().expect("it runs").kill();
    wait_for("charon is gone", || !place.events(NEW, "charon_gone").is_empty());
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let directory = place.lab.gateways.directory().join("charon-1");
    let gateway = &place.lab.gateways.site(NEW).gateway;
    let run_dir = place.lab.gateways.file(NEW).run_dir();
    let plan = (&*run_dir, &place.children[0]);
    let (folder, plugin) = (root().expect("it is there"), charon::plugin().unwrap());
    let root = Root { folder: &folder, plugin: Some(&plugin) };
    let wrong = Charon::start_in(root, gateway, &directory, plan).unwrap();
    wrong.swanctl(gateway, &["--initiate", "--child", "net"]).unwrap_err();
    let log = wrong.log();
    assert!(log.contains("built for strongSwan 5.9.8, which this charon is not"), "{log}");
    assert!(log.contains("IT REFUSES ALL IPSEC"), "{log}");
    let to = place.lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 3).run(&place.lab.gateways.site(1).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);
    assert!(place.sas(1).is_empty() && place.sas(2).is_empty());
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.esp, wire.clear), (0, 0), "{wire:?}");
}

/// RFC 4555, from each of the two versions.
#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn sas_of_charon_6_and_charon_5_follow_a_gateway_that_moves() {
    let test = "sas_of_charon_6_and_charon_5";
    let Some(root) = root_for(test) else { return };
    // The second gateway moves.
    for roots in [[None, Some(root.clone())], [Some(root), None]] {
        moves_of(test, &to_the_second_address(), Sections::Peers, roots);
    }
}

/// RFC 9370: charon 6 makes the keys of both from two exchanges, which charon 5 does not have.
#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn keys_of_two_exchanges_change_under_streams_without_a_loss() {
    let test = "keys_of_two_exchanges";
    let Some(root) = root_for(test) else { return };
    let Some(lab) = lab(test, Plan::default()) else { return };
    let child = |_: u8, plan: &mut ChildPlan| {
        plan.connection = "mobike = no\nproposals = aes256-sha256-x25519-ke1_ecp384".into();
        plan.esp = "aes256gcm16-x25519-ke1_ecp384-esn".into();
    };
    let roots = [Some(root.clone()), Some(root)];
    let Some(mut place) = Place::of(test, lab, &Wish { child: &child, roots, ..Wish::default() })
    else {
        return;
    };
    place.lab.flows_again();
    let Place { lab, charons, .. } = &mut place;
    let quarry = lab.hunt(|gateways| {
        rekey_child(gateways, charons, 1);
        rekey_ike(gateways, charons, 1);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    let listed = place.swanctl(1, &["--list-sas"]);
    // Of IKE and of the child.
    assert_eq!(listed.matches("KE1_ECP_384").count(), 2, "{listed}");
    place.lab.balances();
}

#[test]
#[ignore = "make test-long PART=charon6: needs a root of Debian 13"]
fn two_charons_of_debian_13_carry_both_modes() {
    let test = "two_charons_of_debian_13";
    let Some(root) = root_for(test) else { return };
    for mode in ["tunnel", "transport"] {
        let Some(lab) = lab(test, Plan::default()) else { return };
        let transport = mode == "transport";
        let peer = |_: u8, peer: &mut netlab::PeerEntry| {
            if transport {
                peer.ours = vec![peer.local.clone()];
                peer.theirs = vec![peer.remote.clone()];
            }
        };
        let child = |_: u8, plan: &mut ChildPlan| plan.more = format!("mode = {mode}");
        let section = |_| format!("mode = \"{mode}\"");
        let roots = [Some(root.clone()), Some(root.clone())];
        let wish = Wish { peer: &peer, child: &child, section: &section, roots, ..Wish::default() };
        let Some(place) = Place::of(test, lab, &wish) else { return };
        let [one, two] = [1, 2].map(|number| place.lab.gateways.site(number));
        let (to, from) = match transport {
            true => (two.wan_v4(), &one.gateway),
            false => (two.host_v4(), &one.host),
        };
        let crosses = || Ping::new(&to, 5).run_until_answered(from).unwrap().all_answered();
        wait_for(&format!("pings to {to}"), crosses);
        assert!(place.sas(1).iter().all(|sa| sa["mode"] == mode), "{:?}", place.sas(1));
        assert!(
            place
                .charons
                .iter()
                .flatten()
                .map(Charon::log)
                .all(|log| log.contains("strongSwan 6."))
        );
        place.lab.balances();
    }
}
