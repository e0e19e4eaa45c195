//! Limits of SAs over two workers: exactly the limit leaves, each expiry is told once, and neither
//! a change of the configuration nor SIGKILL takes anything back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use net::{events, wait_for};
use netlab::Gateways;
use netlab::sites::Plan;
use serde_json::Value;

/// Flows, each from a port of its own, so that both workers get some.
const FLOWS: usize = 32;
/// Packets on the way above which sending slows down.
const MANY: usize = 128;
/// Longest time from seal to arrival on a busy machine.
const LAST: Duration = Duration::from_secs(3);
/// Silence after the last arrival in which a surplus packet would arrive.
const TICK: Duration = Duration::from_millis(100);

/// Two gateways of two workers; `lifetime` are the keys of the section at gateway 1.
fn limited(test: &str, lifetime: &str) -> Option<net::Lab> {
    let mut lab = net::lab(test, Plan { queues: 2, ..Plan::default() })?;
    for number in [1, 2] {
        lab.gateways.file_mut(number).workers = "2".to_owned();
    }
    write_limits(&mut lab.gateways, lifetime);
    lab.start(test)
}

/// Writes `[peer.NAME.lifetime]` of gateway 1's only peer.
fn write_limits(gateways: &mut Gateways, lifetime: &str) {
    let file = gateways.file_mut(1);
    let name = file.peers[0].name.clone();
    file.extra = format!("\n[peer.{name}.lifetime]\n{lifetime}\n");
}

fn apply(gateways: &mut Gateways, lifetime: &str) {
    write_limits(gateways, lifetime);
    let path = gateways.file(1).write_as(&gateways.file(1).beside("limits")).unwrap();
    gateways.daemon(1).unwrap().apply(&path).unwrap();
}

fn ask(gateways: &Gateways, words: &[&str]) -> Value {
    gateways.daemon(1).unwrap().ask(words).unwrap()
}

/// The outbound SA of gateway 1.
fn outbound(gateways: &Gateways) -> Value {
    let shown = ask(gateways, &["show", "sa"]);
    let sas = shown["sas"].as_array().unwrap();
    sas.iter().find(|sa| sa["direction"] == "outbound").unwrap().clone()
}

fn used(gateways: &Gateways) -> u64 {
    outbound(gateways)["lifetime"]["packets"].as_u64().unwrap()
}

fn dropped(gateways: &Gateways) -> u64 {
    gateways.daemon(1).unwrap().counters().unwrap().dropped("sa_hard_limit")
}

/// The events of one kind about outbound SAs of gateway 1.
fn expiries(gateways: &Gateways, kind: &str) -> Vec<Value> {
    let events = events(gateways, 1, kind).into_iter();
    events.filter(|event| event["details"]["direction"] == "outbound").collect()
}

/// Sends packets from site 1's host to site 2's until the outbound SA has sealed or refused each;
/// returns the number of arrivals.
fn send(gateways: &Gateways, packets: usize) -> usize {
    let receiver = net::host_socket(gateways, 2);
    receiver.set_read_timeout(Some(TICK)).unwrap();
    let target = receiver.local_addr().unwrap();
    let senders: Vec<_> = (0..FLOWS).map(|_| net::host_socket(gateways, 1)).collect();
    let came = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let (used_before, dropped_before) = (used(gateways), dropped(gateways));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut packet = [0; 64];
            let end = Instant::now() + 3 * net::AGAIN;
            loop {
                match receiver.recv(&mut packet) {
                    Ok(_) => drop(came.fetch_add(1, Ordering::Relaxed)),
                    Err(_) if is_over.load(Ordering::Relaxed) || Instant::now() > end => return,
                    Err(_) => {}
                }
            }
        });
        for number in 0..packets {
            senders[number % FLOWS].send_to(b"within limits", target).unwrap();
            // No ring is to overflow: sending slows down behind packets on the way or dropped.
            let many = number > came.load(Ordering::Relaxed) + MANY;
            std::thread::sleep(Duration::from_micros(if many { 1500 } else { 300 }));
        }
        let sealed = || (used(gateways) - used_before) as usize;
        let judged = || sealed() + (dropped(gateways) - dropped_before) as usize;
        wait_until(net::AGAIN, || judged() >= packets);
        // A sealed packet may be lost while a neighbour is resolved.
        let sealed = sealed();
        wait_until(LAST, || came.load(Ordering::Relaxed) >= sealed);
        is_over.store(true, Ordering::Relaxed);
    });
    came.into_inner()
}

/// Waits until a condition holds, at most `limit`. The caller checks the result.
fn wait_until(limit: Duration, is_so: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() && Instant::now() < end {
        std::thread::sleep(TICK / 10);
    }
}

/// XO-17 and XO-18: a limit by packets.
#[test]
fn exactly_the_hard_limit_leaves_over_two_workers_and_each_expiry_is_told_once() {
    let test = "hard_limit";
    let Some(mut lab) = limited(test, "soft_packets = 3000\nhard_packets = 4000") else { return };
    lab.flows_again();
    let gateways = &mut lab.gateways;
    let before = used(gateways);
    let within = 2990 - before as usize;
    assert_eq!(send(gateways, within), within);
    assert_eq!(used(gateways), 2990);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(expiries(gateways, "sa_soft_expire").len(), 0);
    assert_eq!(send(gateways, 1000), 1000);
    wait_for("no soft expiry", || !expiries(gateways, "sa_soft_expire").is_empty());
    // Ten are left.
    assert_eq!(send(gateways, 500), 10);
    assert_eq!((used(gateways), dropped(gateways)), (4000, 490));
    wait_for("no hard expiry", || !expiries(gateways, "sa_hard_expire").is_empty());
    // No change of the configuration takes the use or the end back, and nothing is told again.
    apply(gateways, "soft_packets = 100\nhard_packets = 9000");
    assert_eq!(send(gateways, 5), 0);
    gateways.daemon(1).unwrap().run(&["rollback"]).unwrap();
    assert_eq!(send(gateways, 5), 0);
    let sa = outbound(gateways);
    assert_eq!((&sa["state"], &sa["lifetime"]["ended"]), (&"ended".into(), &"packets".into()));
    assert_eq!((used(gateways), dropped(gateways)), (4000, 500));
    std::thread::sleep(Duration::from_millis(500));
    for (kind, most) in [("sa_soft_expire", 3000), ("sa_hard_expire", 4000)] {
        let told = expiries(gateways, kind);
        assert_eq!(told.len(), 1, "{kind}: {told:?}");
        let details = &told[0]["details"];
        assert_eq!((&details["limit"], &details["limit_value"]), (&"packets".into(), &most.into()));
        assert!(details["packets"].as_u64().unwrap() >= most, "{details}");
    }
    lab.balances();
}

/// XO-17: a limit by bytes, of which 13 bytes of UDP take 44 in the cipher.
#[test]
fn a_soft_limit_by_bytes_is_told_once_and_a_hard_one_is_never_passed() {
    const EACH: u64 = 44;
    let lifetime = format!("soft_bytes = {}\nhard_bytes = {}", 300 * EACH, 400 * EACH + 43);
    let Some(lab) = limited("byte_limit", &lifetime) else { return };
    let gateways = &lab.gateways;
    // The neighbours are not known yet: packets wait, and are sealed already.
    let came = send(gateways, 500) as u64;
    let lifetime = &outbound(gateways)["lifetime"];
    let [packets, bytes] = ["packets", "bytes"].map(|name| lifetime[name].as_u64().unwrap());
    assert!(came <= packets, "{came} of {packets}");
    assert_eq!((packets, bytes), (400, 400 * EACH));
    assert_eq!(dropped(gateways), 100);
    for kind in ["sa_soft_expire", "sa_hard_expire"] {
        wait_for(kind, || !expiries(gateways, kind).is_empty());
        std::thread::sleep(Duration::from_millis(300));
        let told = expiries(gateways, kind);
        assert_eq!((told.len(), &told[0]["details"]["limit"]), (1, &"bytes".into()), "{told:?}");
    }
}

/// XO-18: a daemon that was killed goes on where it was.
#[test]
fn after_sigkill_one_packet_short_of_the_limit_exactly_one_leaves() {
    const MOST: u64 = 500;
    let test = "limit_over_sigkill";
    let lifetime = format!("soft_packets = 400\nhard_packets = {MOST}");
    let Some(mut lab) = limited(test, &lifetime) else { return };
    lab.flows_again();
    let gateways = &mut lab.gateways;
    let within = (MOST - 1 - used(gateways)) as usize;
    assert_eq!(send(gateways, within), within);
    wait_for("no soft expiry", || !expiries(gateways, "sa_soft_expire").is_empty());
    gateways.kill(1);
    gateways.start(1).unwrap();
    assert_eq!(used(gateways), MOST - 1);
    assert_eq!(send(gateways, 20), 1);
    assert_eq!((used(gateways), dropped(gateways)), (MOST, 19));
    wait_for("no hard expiry", || !expiries(gateways, "sa_hard_expire").is_empty());
    // An end outlives the daemon, and what was told is not told again.
    gateways.kill(1);
    gateways.start(1).unwrap();
    assert_eq!(send(gateways, 5), 0);
    std::thread::sleep(Duration::from_millis(500));
    for kind in ["sa_soft_expire", "sa_hard_expire"] {
        assert_eq!(expiries(gateways, kind), Vec::<Value>::new());
    }
    lab.balances();
}

#[test]
fn an_sa_ends_at_its_time() {
    // The SA has to outlast the starts of both daemons, and the pings.
    let Some(lab) = limited("time_limit", "hard_seconds = 10") else { return };
    lab.flows_again();
    wait_for("no end", || !expiries(&lab.gateways, "sa_hard_expire").is_empty());
    assert_eq!(send(&lab.gateways, 5), 0);
    let sa = outbound(&lab.gateways);
    assert_eq!((&sa["state"], &sa["lifetime"]["ended"]), (&"ended".into(), &"seconds".into()));
    lab.balances();
}
