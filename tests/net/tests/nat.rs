//! A gateway behind a NAT (RFC 3948), and two gateways in transport mode.
//!
//! ```text
//! host-a ── gw-a ──── wire ──── outside nat inside ──── gw-b ── host-b
//!        192.0.2.1    192.0.2.102, .103   172.16.2.1    172.16.2.2
//! ```

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use net::router::{self, HIDDEN, INSIDE, Mapping, translate};
use net::{Lab, rewrite_peer};
use netlab::capture::{Tally, marked};
use netlab::inject::inject;
use netlab::ping::Ping;
use netlab::sites::{HOST_INTERFACE, Plan};
use netlab::{Capture, Namespace, Scope};
use serde_json::Value;

/// Time in which something happens, on a machine that others use too.
const SOON: Duration = net::AGAIN;
/// Packets that the NAT holds back.
const HELD: u32 = 3;
/// An end where nobody is.
const THIRD: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 66), 4500);

/// The ends at which the NAT lets gateway B appear.
const FIRST: Mapping = Mapping { inside: 4500, address: "192.0.2.102", port: 31001 };
const SECOND: Mapping = Mapping { inside: 4500, address: "192.0.2.103", port: 47002 };

/// Waits for something, and fails if it does not come.
fn await_that(lab: &Lab, what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !there() {
        assert!(Instant::now() < end, "{what}: never\n{}", lab.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A laboratory with gateway B behind a NAT; its daemons run.
fn natted(test: &str) -> Option<(Lab, Namespace)> {
    let mut lab = net::lab(test, Plan::default())?;
    let nat = router::put_between(&lab, &[FIRST.address, SECOND.address]);
    translate(&lab, &nat, &[]);
    let common = "encapsulation = \"udp\"\n";
    let keys = format!("{common}behind_nat = true\nnat_keepalive = \"off\"");
    rewrite_peer(&mut lab.gateways, 1, &keys, |peer| peer.remote = FIRST.address.to_owned());
    let keys = format!("{common}nat_keepalive = 1");
    rewrite_peer(&mut lab.gateways, 2, &keys, |peer| peer.local = HIDDEN.to_owned());
    Some((lab.start(test)?, nat))
}

/// Waits until all of a few pings from one site's host to another's are answered, both families.
fn crosses(lab: &Lab, from: u8, to: u8) {
    let (host, to) = (&lab.gateways.site(from).host, lab.gateways.site(to));
    for address in [to.host_v4(), to.host_v6()] {
        let all = || Ping::new(&address, 5).run_until_answered(host).unwrap().all_answered();
        await_that(lab, &format!("pings from site {from} to {address}"), all);
    }
}

/// Gateway A's only peer, as it is shown.
fn peer(lab: &Lab) -> Value {
    let answer = lab.gateways.daemon(1).unwrap().ask(&["show", "peer"]).unwrap();
    let list = answer.as_object().and_then(|answer| answer.values().find(|list| list.is_array()));
    let peers = list.unwrap_or(&answer).as_array().unwrap();
    assert_eq!(peers.len(), 1, "{answer}");
    peers[0].clone()
}

/// Returns whether gateway A's peer is where a mapping puts it, after so many moves.
fn is_at(lab: &Lab, Mapping { address, port, .. }: Mapping, moves: u64) -> bool {
    let peer = peer(lab);
    let end = (&peer["current_remote"], &peer["current_remote_port"], &peer["moves"]);
    end == (&Value::from(address), &Value::from(port), &Value::from(moves))
}

/// The moves that gateway A has told: where from, where to.
fn told(lab: &Lab) -> Vec<[String; 2]> {
    let command = ["events", "--json", "--kind", "peer_moved"];
    let events = lab.gateways.daemon(1).unwrap().run(&command).unwrap().success().unwrap();
    let moves = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let end = |event: &Value, name: &str| event["details"][name].as_str().unwrap().to_owned();
    moves.map(|event| ["from", "to"].map(|name| end(&event, name))).collect()
}

/// Drops of gateway A for one reason.
fn dropped(lab: &Lab, reason: &str) -> u64 {
    lab.gateways.daemon(1).unwrap().counters().unwrap().dropped(reason)
}

/// Waits until gateway A has swallowed one more keepalive.
fn swallows_a_keepalive(lab: &Lab) {
    let before = dropped(lab, "keepalive");
    await_that(lab, "a keepalive", || dropped(lab, "keepalive") > before);
}

/// Sends a few packets from site 2 that the NAT drops, and returns the frames as it had them.
fn held_back(lab: &Lab, nat: &Namespace) -> Vec<Vec<u8>> {
    translate(lab, nat, &[]);
    let place = (lab.gateways.directory(), "held");
    let capture = Capture::start(nat, INSIDE, Scope::Whole, place).unwrap();
    let to = lab.gateways.site(1).host_v4();
    let answers = Ping::new(&to, HELD).run(&lab.gateways.site(2).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);
    let bytes = std::fs::read(capture.stop().unwrap()).unwrap();
    let mut frames = Vec::new();
    let mut rest = &bytes[24..];
    while let Some((record, following)) = rest.split_at_checked(16) {
        let length = u32::from_ne_bytes(record[8..12].try_into().unwrap()) as usize;
        let (frame, following) = following.split_at(length);
        // UDP to port 4500 that is no keepalive: those have one byte.
        let is_udp = frame[12..14] == [8, 0] && frame[23] == 17;
        if is_udp && frame[36..38] == 4500u16.to_be_bytes() && frame[38..40] != [0, 9] {
            frames.push(frame.to_vec());
        }
        rest = following;
    }
    assert_eq!(frames.len(), HELD as usize);
    frames
}

/// The frame as it would come to gateway A from elsewhere.
fn from_third(mut frame: Vec<u8>) -> Vec<u8> {
    let (address, port) = THIRD;
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 1, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    frame[26..30].copy_from_slice(&address.octets());
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    // No UDP checksum (RFC 3948 §2.1), and that of the IPv4 header anew.
    frame[40..42].fill(0);
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    frame
}

#[test]
fn a_peer_behind_a_nat_is_followed_to_its_new_mapping_and_by_nothing_old() {
    let Some((mut lab, nat)) = natted("behind_nat") else { return };
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    assert!(peer(&lab)["behind_nat"] == true && peer(&lab)["extended_sequence_numbers"] == true);
    assert_eq!(told(&lab), [[""; 2]; 0]);

    // The NAT has chosen another port than the configured one: the first packet says so.
    translate(&lab, &nat, &[FIRST]);
    crosses(&lab, 2, 1);
    await_that(&lab, "the first move", || is_at(&lab, FIRST, 1));
    crosses(&lab, 1, 2);
    swallows_a_keepalive(&lab);

    let frames = held_back(&lab, &nat);
    translate(&lab, &nat, &[SECOND]);
    // A keepalive is not authentic: it moves nothing, and what goes to the old mapping is lost.
    swallows_a_keepalive(&lab);
    assert!(is_at(&lab, FIRST, 1), "{}", peer(&lab));
    let to = lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 3).run(&lab.gateways.site(1).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);

    crosses(&lab, 2, 1);
    await_that(&lab, "the second move", || is_at(&lab, SECOND, 2));
    crosses(&lab, 1, 2);
    let end = |Mapping { address, port, .. }| format!("{address}:{port}");
    let configured = end(Mapping { port: 4500, ..FIRST });
    let moves = [[configured, end(FIRST)], [end(FIRST), end(SECOND)]];
    await_that(&lab, "both moves told", || told(&lab) == moves);

    // Authentic, and new to gateway A, but older than what it has opened: delivered, not followed.
    let frames: Vec<Vec<u8>> = frames.into_iter().map(from_third).collect();
    let (wire, port) = (&lab.gateways.sites.wire, lab.gateways.site(1).wire_port());
    let host = &lab.gateways.site(1).host;
    let place = (lab.gateways.directory(), "late");
    let at_host = Capture::start(host, HOST_INTERFACE, Scope::Whole, place).unwrap();
    let replayed = dropped(&lab, "replayed");
    assert_eq!(inject(wire, &port, &frames).unwrap(), frames.len());
    // Each with its answer.
    let delivered = marked(&at_host.stop().unwrap()).unwrap();
    assert_eq!(delivered, 2 * frames.len() as u64, "{}", lab.logs());
    // And once more: not even delivered.
    assert_eq!(inject(wire, &port, &frames).unwrap(), frames.len());
    let all = replayed + frames.len() as u64;
    await_that(&lab, "replays dropped", || dropped(&lab, "replayed") == all);
    assert!(is_at(&lab, SECOND, 2), "{}", peer(&lab));

    crosses(&lab, 1, 2);
    crosses(&lab, 2, 1);
    assert!(is_at(&lab, SECOND, 2), "{}", peer(&lab));
    assert_eq!(told(&lab), moves);
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!(wire.clear, 0, "leaked: {:?}", wire.clear_examples);
    assert_eq!(wire.esp, 0, "ESP that is not in UDP");
    lab.balances();
}

#[test]
fn what_two_gateways_say_to_each_other_is_sealed_in_transport_mode() {
    let Some(mut lab) = net::lab("transport", Plan::default()) else { return };
    for number in [1, 2] {
        rewrite_peer(&mut lab.gateways, number, "mode = \"transport\"", |peer| {
            peer.ours = vec![peer.local.clone()];
            peer.theirs = vec![peer.remote.clone()];
        });
    }
    let Some(mut lab) = lab.start("transport") else { return };
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    for (from, to) in [(1, 2), (2, 1)] {
        let address = lab.gateways.site(to).wan_v4();
        let from = &lab.gateways.site(from).gateway;
        let all = || Ping::new(&address, 5).run_until_answered(from).unwrap().all_answered();
        await_that(&lab, &format!("pings to {address}"), all);
    }
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    // Pings carry a marker: one in clear is found wherever it is.
    assert_eq!(wire.clear, 0, "leaked: {:?}", wire.clear_examples);
    assert!(wire.esp >= 20, "{wire:?}");
    assert_eq!(wire.repeated, 0, "sealed twice: {:x?}", wire.repeated_examples);
    lab.balances();
}
