//! A hub: a gateway with many peers, each with SAs of its own. After SIGKILL every SA goes on with
//! numbers that it never used. Prints times and memory, for `LOCKGATE_PEERS` peers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use netlab::sites::Plan;
use netlab::{Daemon, Gateways, Programs};
use serde_json::Value;

/// Peers that packets are sent to before and after.
const ASKED: u32 = 50;
/// Sixty times the goal for a restart with 10,000 peers: a busy machine misses the goal.
const RESTART: Duration = Duration::from_secs(60);
/// Time for the first start: two files are made for each key.
const FIRST: Duration = Duration::from_secs(300);
/// The event that says that the daemon runs.
const STARTED: &str = " started: ";

/// Number of peers: `LOCKGATE_PEERS` asks for more.
fn peers() -> u32 {
    std::env::var("LOCKGATE_PEERS").map_or(300, |text| text.parse().unwrap())
}

fn outer(peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + peer)
}

fn inner(peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + peer)
}

/// Writes key files, and the sections of peers and policies.
fn write_peers(gateways: &mut Gateways) {
    let keys = gateways.directory().join("keys");
    let local = gateways.site(1).wan_v4();
    let mut text = String::new();
    for peer in 0..peers() {
        let path = keys.join(format!("hub-{peer}.keys"));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path).unwrap();
        let (out, into) = (0x1_0000 + peer, 0x9_0000 + peer);
        let key = |direction: u32| format!("{:08x}{direction:08x}{}", peer + 1, "5a".repeat(12));
        writeln!(file, "out {out:#x} {}\nin {into:#x} {}", key(1), key(2)).unwrap();
        let _ = write!(
            text,
            "
[peer.hub-{peer}]
local = \"{local}\"
remote = \"{}\"
keys = \"file:hub-{peer}.keys\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"

[[policy]]
name = \"to-hub-{peer}\"
peer = \"hub-{peer}\"
local = [\"10.1.0.0/16\"]
remote = [\"{}\"]
priority = 100
",
            outer(peer),
            inner(peer)
        );
    }
    gateways.file_mut(1).extra = text;
    gateways.file(1).write().unwrap();
}

/// Starts the daemon of gateway 1; returns it, and the time until its SAs seal.
fn start(gateways: &Gateways, limit: Duration) -> (Daemon, Duration) {
    let programs = Programs::find().unwrap();
    let began = Instant::now();
    let mut daemon =
        Daemon::launch(&programs, &gateways.site(1).gateway, gateways.file(1)).unwrap();
    daemon.wait_for(STARTED, limit).unwrap();
    (daemon, began.elapsed())
}

/// Asks for a list of which the laboratory would not keep all.
fn ask(daemon: &Daemon, what: &str) -> Value {
    let printed = daemon.command(&["show", what, "--json"]).output().unwrap();
    serde_json::from_slice(&printed.stdout).unwrap()
}

/// The outbound SAs: peer, last number and state.
fn sealing(daemon: &Daemon) -> Vec<(String, u64, String)> {
    let shown = ask(daemon, "sa");
    let sas = shown["sas"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    sas.filter(|sa| sa["direction"] == "outbound")
        .map(|sa| (text(&sa["peer"]), sa["sequence"].as_u64().unwrap(), text(&sa["state"])))
        .filter(|(peer, ..)| peer.starts_with("hub-"))
        .collect()
}

/// Sends one packet to each of some peers' hosts.
fn send(gateways: &Gateways) {
    let host = &gateways.site(1).host;
    let from = SocketAddr::from(([10, 1, 0, 10], 0));
    let socket = host.enter(|| UdpSocket::bind(from)).unwrap().unwrap();
    for number in 0..ASKED {
        let peer = number * (peers() / ASKED);
        socket.send_to(b"to a hub's peer", (inner(peer), 9)).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until each of the peers that were sent something has used a number above `before`.
fn used(daemon: &Daemon, before: u64) -> u64 {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let sas = sealing(daemon);
        assert!(sas.iter().all(|(.., state)| state == "ok"), "{sas:?}");
        let moved: Vec<u64> =
            sas.iter().map(|(_, last, _)| *last).filter(|last| *last > before).collect();
        if moved.len() >= ASKED as usize {
            return moved.into_iter().max().unwrap();
        }
        if Instant::now() > end {
            let drops = daemon.counters().unwrap().drops;
            panic!("{} of {ASKED} SAs have sealed; drops {drops:?}", moved.len());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hub_goes_on_after_sigkill_with_numbers_that_no_sa_has_used() {
    let Some(mut lab) = net::lab("hub", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let (bare, _) = start(gateways, FIRST);
    let without = resident_kib(bare.pid());
    bare.terminate().unwrap();
    write_peers(gateways);
    for network in ["198.18.0.0/15", "172.16.0.0/12"] {
        let line = format!("route add {network} via {}", gateways.site(2).wan_v4());
        gateways.site(1).gateway.ip(&line).unwrap();
    }
    let (mut daemon, first) = start(gateways, FIRST);
    send(gateways);
    let before = used(&daemon, 0);
    daemon.kill();
    drop(daemon);
    let (daemon, restart) = start(gateways, RESTART);
    let sas = sealing(&daemon);
    assert_eq!(sas.len(), peers() as usize);
    let asked = Instant::now();
    let shown = ask(&daemon, "peer")["peers"].as_array().unwrap().len();
    let asked = asked.elapsed();
    assert!(shown >= peers() as usize);
    send(gateways);
    used(&daemon, before);
    let kib = resident_kib(daemon.pid()).saturating_sub(without);
    println!(
        "hub: {} peers: first start {first:.2?}, start after SIGKILL {restart:.2?}, \
         show peer {asked:.2?}, {} KiB a peer",
        peers(),
        kib / u64::from(peers())
    );
    daemon.terminate().unwrap();
}
