//! Acquire, live: a policy without an SA asks for one, once; its first packets wait and leave in
//! order when somebody has put it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use net::Lab;
use netlab::sites::Plan;
use netlab::{Gateways, PeerEntry};
use serde_json::Value;

/// Packets that wait.
const FIRST: usize = 5;
/// Time for what the daemon does by itself.
const BY_ITSELF: Duration = Duration::from_secs(20);

/// Two gateways whose SAs are put.
fn over_the_api(test: &str) -> Option<Lab> {
    let mut lab = net::lab(test, Plan::default())?;
    for number in [1, 2] {
        let file = lab.gateways.file_mut(number);
        let PeerEntry { name, local, remote, ours, theirs, .. } = file.peers.pop().unwrap();
        file.extra += &format!(
            "\n[peer.{name}]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"api\"\n\
             suite = \"aes-128-gcm\"\n\n[[policy]]\nname = \"to-{name}\"\npeer = \"{name}\"\n\
             local = {ours:?}\nremote = {theirs:?}\npriority = 100\n"
        );
    }
    for number in [1, 2] {
        lab.gateways.start(number).unwrap();
    }
    Some(lab)
}

/// `lockgate sa watch --json`; it ends with the test.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(gateways: &Gateways, number: u8, words: &[&str]) -> Command {
    gateways.daemon(number).unwrap().command(words)
}

/// Puts the SA of a line, as `lockgate sa put -` reads it.
fn put(gateways: &Gateways, number: u8, line: &str) {
    let mut command = command(gateways, number, &["sa", "put", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
}

fn reserve(gateways: &Gateways, number: u8, peer: &str) -> String {
    let reserved = gateways.daemon(number).unwrap().ask(&["sa", "reserve", peer]).unwrap();
    reserved["spi"].as_str().unwrap().to_owned()
}

fn acquires(gateways: &Gateways) -> usize {
    let printed = gateways.daemon(1).unwrap().run(&["events", "--kind", "acquire", "--json"]);
    printed.unwrap().stdout.lines().count()
}

fn no_sa(gateways: &Gateways) -> u64 {
    gateways.daemon(1).unwrap().counters().unwrap().dropped("no_sa")
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BY_ITSELF;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// XO-21: the request, the packets that wait, and the SA that lets them go.
#[test]
fn a_policy_without_an_sa_asks_once_and_its_first_packets_wait_for_it() {
    let Some(lab) = over_the_api("acquire") else { return };
    let gateways = &lab.gateways;
    let [one, two] = [1, 2].map(|number| gateways.file(number).name().to_owned());
    let bind = |site: u8| {
        let address = SocketAddr::from(([10, site, 0, 10], 0));
        let host = &gateways.site(site).host;
        host.enter(|| UdpSocket::bind(address)).unwrap().unwrap()
    };
    let (sender, receiver) = (bind(1), bind(2));
    receiver.set_read_timeout(Some(BY_ITSELF)).unwrap();
    let target = receiver.local_addr().unwrap();
    let send = |number: u8| sender.send_to(&[number; 8], target).unwrap();

    // Nobody is there to ask.
    send(0);
    wait_for("no drop", || no_sa(gateways) == 1);

    let mut watch = command(gateways, 1, &["sa", "watch", "--json"]);
    let mut watcher = Watcher(watch.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watcher.0.stdout.take().unwrap()).lines();
    // Until it is heard, packets are dropped.
    let mut number = 0;
    wait_for("the first packet does not wait", || {
        number += 1;
        let before = no_sa(gateways);
        send(number);
        std::thread::sleep(Duration::from_millis(100));
        no_sa(gateways) == before
    });
    let first = number;
    let asked: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&asked["peer"], &asked["policy"]),
        (&two.clone().into(), &format!("to-{two}").into())
    );
    assert_eq!((&asked["source"], &asked["protocol"]), (&"10.1.0.10".into(), &17.into()));
    let dropped = no_sa(gateways);
    for more in 1..FIRST as u8 {
        send(first + more);
    }
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!((acquires(gateways), no_sa(gateways)), (1, dropped), "asked once");

    let (spi, key) = (reserve(gateways, 2, &one), "7c".repeat(20));
    put(gateways, 2, &format!("in {spi} {key} peer={one}\n"));
    let begun = Instant::now();
    put(gateways, 1, &format!("out {spi} {key} peer={two}\n"));
    let mut packet = [0; 64];
    for more in 0..FIRST as u8 {
        assert_eq!(receiver.recv(&mut packet).unwrap(), 8);
        assert_eq!(packet[0], first + more, "in order");
    }
    println!("acquire: {FIRST} packets that waited came {:?} after the put began", begun.elapsed());
    send(200);
    assert_eq!((receiver.recv(&mut packet).unwrap(), packet[0]), (8, 200));
    assert_eq!((acquires(gateways), no_sa(gateways)), (1, dropped));

    // Without the SA it is asked for again; without a listener nothing waits.
    let deleted = command(gateways, 1, &["sa", "del", &spi]).stdout(Stdio::null()).status();
    assert!(deleted.unwrap().success());
    send(201);
    let end = Instant::now() + BY_ITSELF;
    while acquires(gateways) != 2 {
        let seen = || {
            let counters = gateways.daemon(1).unwrap().counters().unwrap();
            let events = gateways.daemon(1).unwrap().run(&["events"]).unwrap().stdout;
            format!("{} requests, drops {:?}\n{events}", acquires(gateways), counters.drops)
        };
        assert!(Instant::now() < end, "not asked again: {}", seen());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(no_sa(gateways), dropped);
    drop(lines);
    drop(watcher);
    wait_for("it is still waited for", || {
        send(202);
        no_sa(gateways) > dropped
    });
}
