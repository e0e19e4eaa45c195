//! Two workers: packets of two SAs that arrive on one queue, and tunnels that are kept awake.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netlab::sites::Plan;
use netlab::{Capture, Daemon, Gateways, Scope};

/// Flows of a flood, each from a port of its own.
const FLOWS: usize = 32;
/// Packets of each flow.
const ROUNDS: usize = 125;
/// Time between two packets of one flow: 2000 packets a second in all.
const ROUND: Duration = Duration::from_millis(16);
/// Most packets on the way: fewer than the ring of a queue holds.
const ON_THEIR_WAY: usize = 512;
/// Longest time that a packet may be on its way, on a busy machine.
const LAST: Duration = Duration::from_secs(3);

fn two_workers(test: &str) -> Option<net::Lab> {
    let mut lab = net::lab(test, Plan { queues: 2, ..Plan::default() })?;
    for number in [1, 2] {
        lab.gateways.file_mut(number).workers = "2".to_owned();
    }
    Some(lab)
}

/// Adds a second SA each way to the key files of the two gateways.
fn add_second_pair(gateways: &Gateways) {
    let keys = gateways.directory().join("keys");
    let material = |seed: u8| -> String {
        (0..20u8).map(|n| format!("{:02x}", n.wrapping_mul(13).wrapping_add(seed))).collect()
    };
    let (there, back) = (material(0x31), material(0x97));
    for (file, out, inwards) in [
        ("gw-a-gw-b.keys", ("0x00770001", &there), ("0x00770002", &back)),
        ("gw-b-gw-a.keys", ("0x00770002", &back), ("0x00770001", &there)),
    ] {
        let path = keys.join(file);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += &format!("out {} {}\nin {} {}\n", out.0, out.1, inwards.0, inwards.1);
        std::fs::write(&path, text).unwrap();
    }
}

/// Sends many flows from site 1's host to site 2's and returns how many packets went and came.
fn flood(gateways: &Gateways) -> (usize, usize) {
    let receiver = net::host_socket(gateways, 2);
    let target = receiver.local_addr().unwrap();
    let senders: Vec<_> = (0..FLOWS).map(|_| net::host_socket(gateways, 1)).collect();
    receiver.set_read_timeout(Some(LAST)).unwrap();
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut packet = [0; 64];
            while arrived.load(Ordering::Relaxed) < FLOWS * ROUNDS
                && receiver.recv(&mut packet).is_ok()
            {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..ROUNDS {
            for sender in &senders {
                sender.send_to(b"one of many flows", target).unwrap();
            }
            // A machine that was late sends the rest later, not faster.
            std::thread::sleep(ROUND);
            let are_many = || round * FLOWS > arrived.load(Ordering::Relaxed) + ON_THEIR_WAY;
            while are_many() && !reader.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        reader.join().unwrap();
    });
    (FLOWS * ROUNDS, arrived.into_inner())
}

/// A number that each worker of a gateway shows.
fn of_workers(gateways: &Gateways, number: u8, name: &str) -> Vec<u64> {
    let counters = gateways.daemon(number).unwrap().ask(&["show", "counters"]).unwrap();
    let workers = counters["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker[name].as_u64().unwrap()).collect()
}

/// Packets of a gateway's SAs of one direction.
fn of_sas(gateways: &Gateways, number: u8, direction: &str) -> Vec<u64> {
    let answer = gateways.daemon(number).unwrap().ask(&["show", "sa"]).unwrap();
    let list = answer.as_object().and_then(|answer| answer.values().find(|list| list.is_array()));
    let sas = list.unwrap_or(&answer).as_array().unwrap();
    let sas = sas.iter().filter(|sa| sa["direction"] == direction);
    sas.map(|sa| sa["packets"].as_u64().unwrap()).collect()
}

#[test]
fn two_sas_of_one_pair_that_arrive_on_one_queue_use_both_workers() {
    // AX-07
    let Some(lab) = two_workers("two_sas") else { return };
    add_second_pair(&lab.gateways);
    // Whatever flow a packet is of, it arrives at gateway 2 on queue 0.
    let wire = &lab.gateways.sites.wire;
    let port = lab.gateways.site(2).wire_port();
    let one_queue = ["ethtool", "-L", &port, "tx", "1"];
    wire.run(&one_queue, net::AGAIN).unwrap().success().unwrap();
    let Some(lab) = lab.start("two_sas") else { return };
    lab.flows_again();

    let before = of_workers(&lab.gateways, 2, "taken_over");
    let (sent, arrived) = flood(&lab.gateways);
    assert_eq!(arrived, sent, "lost on the way\n{}", lab.logs());

    // Gateway 1 sealed with both, one each worker.
    let sealed = of_sas(&lab.gateways, 1, "outbound");
    assert_eq!(sealed.len(), 2);
    assert!(sealed.iter().all(|packets| *packets >= sent as u64 / 16), "sealed: {sealed:?}");
    // Gateway 2 opened with both, on both workers.
    let opened = of_sas(&lab.gateways, 2, "inbound");
    assert!(opened.iter().all(|packets| *packets >= sent as u64 / 16), "opened: {opened:?}");
    let given = of_workers(&lab.gateways, 2, "handed_over");
    let taken = of_workers(&lab.gateways, 2, "taken_over");
    assert_eq!((given[1], taken[0]), (0, 0), "everything arrives at worker 0");
    assert_eq!(given[0], taken[1]);
    let moved = taken[1] - before[1];
    assert!(moved >= sent as u64 / 16, "handed over: {moved} of {sent}");

    for number in [1, 2] {
        let counters = lab.gateways.daemon(number).unwrap().counters().unwrap();
        for reason in ["replayed", "replay_too_old", "handover_full", "integrity"] {
            assert_eq!(counters.dropped(reason), 0, "gateway {number}: {counters:?}");
        }
    }
    println!("sealed {sealed:?}, opened {opened:?}, handed over {moved} of {sent}");
    lab.balances();
}

#[test]
fn nothing_leaks_or_comes_twice_while_workers_hand_packets_over() {
    let Some(lab) = two_workers("handing_over") else { return };
    add_second_pair(&lab.gateways);
    let Some(mut lab) = lab.start("handing_over") else { return };
    let quarry = lab.hunt(|gateways| {
        let (sent, arrived) = flood(gateways);
        assert_eq!(arrived, sent);
    });
    assert_eq!(quarry.streams.each_ref().map(|stream| stream.lost()), [0, 0]);
    lab.balances();
}

/// ESP in UDP for the peers of a gateway, and a keepalive after a second of silence.
fn put_in_udp(gateways: &mut Gateways, number: u8) {
    let file = gateways.file_mut(number);
    for peer in std::mem::take(&mut file.peers) {
        let netlab::PeerEntry { name, local, remote, keys, ours, theirs } = peer;
        file.extra += &format!(
            "
[peer.{name}]
local = \"{local}\"
remote = \"{remote}\"
keys = \"file:{keys}\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"
encapsulation = \"udp\"
nat_keepalive = 1

[[policy]]
name = \"to-{name}\"
peer = \"{name}\"
local = {ours:?}
remote = {theirs:?}
priority = 100
"
        );
    }
}

#[test]
fn a_silent_tunnel_in_udp_sends_keepalives_that_the_other_end_swallows() {
    const SILENCE: Duration = Duration::from_secs(4);
    let Some(mut lab) = two_workers("keepalives") else { return };
    for number in [1, 2] {
        put_in_udp(&mut lab.gateways, number);
    }
    let Some(mut lab) = lab.start("keepalives") else { return };
    // Of port 4500 Linux is to have nothing here: every keepalive is seen by the walk.
    let daemons = [1, 2].map(|number| {
        lab.gateways.take(number).unwrap().terminate().unwrap();
        let file = lab.gateways.file(number);
        let (path, text) = (file.path(), file.text().replace("\"udp/4500\", ", ""));
        assert!(!text.contains("udp/4500"));
        std::fs::write(&path, text).unwrap();
        let (programs, gateway) = (&lab.gateways.programs, &lab.gateways.site(number).gateway);
        let mut daemon = Daemon::launch_with(programs, gateway, &path, file.socket()).unwrap();
        daemon.wait_ready().unwrap();
        daemon
    });
    lab.flows_again();
    let wire = &lab.gateways.sites.wire;
    let place = (lab.gateways.directory(), "silence");
    let swallowed = |daemon: &Daemon| daemon.counters().unwrap().dropped("keepalive");
    let began = Instant::now();
    let capture = Capture::start(wire, netlab::sites::BRIDGE, Scope::Whole, place).unwrap();
    let before = daemons.each_ref().map(swallowed);
    std::thread::sleep(SILENCE);
    // The first of three may have passed the bridge before the capture began.
    net::wait_for("three keepalives each", || {
        daemons.iter().zip(before).all(|(daemon, before)| swallowed(daemon) >= before + 3)
    });
    let file = capture.stop().unwrap();
    // One a second, and a quarter of a second's doubt each.
    let most = 1 + began.elapsed().as_millis() / 750;
    let file = file.to_str().unwrap();
    for (from, to) in [(1, 2), (2, 1)] {
        let [from, to] = [from, to].map(|number| lab.gateways.site(number).wan_v4());
        let filter = format!(
            "src {from} and dst {to} and udp src port 4500 and udp dst port 4500 \
             and udp[4:2] = 9 and udp[8] = 0xff"
        );
        let words = ["tcpdump", "-n", "-r", file, &filter];
        let seen = wire.run(&words, net::AGAIN).unwrap().success().unwrap();
        let seen = seen.lines().count() as u128;
        let told = format!("{seen} of at most {most} from {from}\n{}", lab.logs());
        assert!((2..=most).contains(&seen), "{told}");
    }
    for daemon in &daemons {
        let counters = daemon.settled(net::AGAIN).unwrap();
        assert!(counters.dropped("keepalive") >= 2, "{counters:?}");
        assert_eq!(counters.ledger_imbalance, 0, "{counters:?}");
        let made = &daemon.ask(&["show", "counters"]).unwrap()["keepalives"];
        assert!(made.as_u64().unwrap() >= 2, "{made}");
    }
}
