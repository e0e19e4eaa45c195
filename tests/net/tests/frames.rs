//! The size of frames: chosen at the start by the MTUs of the ports, and what happens when an MTU
//! does not fit it any more.

use std::time::{Duration, Instant};

use net::{AGAIN, Lab, running};
use netlab::laboratory::connect;
use netlab::ping::{Fragments, Ping};
use netlab::sites::{BRIDGE, HOST_INTERFACE, LAN, Plan, WAN};

/// Largest MTU whose packets fit frames of 2048 bytes.
const MOST: u32 = 1725;
/// An MTU that asks for larger frames, and that veth takes an XDP program for.
const JUMBO: u32 = 3000;

/// Bytes of a frame and frames of a ring, as gateway `number` says.
fn chosen(lab: &Lab, number: u8) -> (u64, u64) {
    let answer = lab.gateways.daemon(number).unwrap().ask(&["show", "counters"]).unwrap();
    let worker = &answer["workers"][0];
    let of = |name: &str| worker[name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    (of("frame_bytes"), of("ring_frames"))
}

/// Largest packet that a tunnel over IPv4 with AES-GCM carries on a link of this MTU.
fn tunnel_mtu(mtu: u32) -> u32 {
    ((mtu - 20 - 8 - 8 - 16) & !3) - 2
}

/// Sends the largest packets that cross unfragmented, and their answers of the same size.
fn largest_packets_cross(lab: &Lab, mtu: u32) {
    lab.flows_again();
    let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
    for (from, to) in [(a, b), (b, a)] {
        for (address, headers) in [(to.host_v4(), 28), (to.host_v6(), 48)] {
            let (size, fragments) = (tunnel_mtu(mtu) - headers, Fragments::Forbidden);
            let answers =
                Ping { size, fragments, ..Ping::new(&address, 5) }.run_until_answered(&from.host);
            let answers = answers.unwrap();
            assert!(answers.all_answered(), "MTU {mtu}: {}\n{}", answers.text, lab.logs());
        }
    }
    lab.balances();
}

/// Gives all links of the laboratory an MTU.
fn set_mtu(lab: &Lab, mtu: u32) {
    let wire = &lab.gateways.sites.wire;
    for number in [1, 2] {
        let site = lab.gateways.site(number);
        wire.ip(&format!("link set {} mtu {mtu}", site.wire_port())).unwrap();
        let lines = [LAN, WAN].map(|netdev| format!("link set {netdev} mtu {mtu}")).join("\n");
        site.gateway.ip(&lines).unwrap();
        site.host.ip(&format!("link set {HOST_INTERFACE} mtu {mtu}")).unwrap();
    }
    wire.ip(&format!("link set {BRIDGE} mtu {mtu}")).unwrap();
}

/// Frames that the kernel dropped before a worker of gateway 1 saw them.
fn dropped_before(lab: &Lab) -> u64 {
    let ports = lab.gateways.daemon(1).unwrap().ports().unwrap();
    let queues = ports.iter().flat_map(|port| port["queues"].as_array().unwrap());
    queues.map(|queue| queue["rx_dropped"].as_u64().unwrap()).sum()
}

#[test]
fn frames_have_the_size_that_the_largest_packets_of_the_ports_need() {
    let Some(mut lab) = net::lab("frame_size", Plan::default()) else { return };
    // The MTU, and the frames that the daemons choose.
    let cases =
        [(1500, (2048, 1024)), (MOST, (2048, 1024)), (MOST + 1, (4096, 512)), (JUMBO, (4096, 512))];
    for (mtu, expected) in cases {
        set_mtu(&lab, mtu);
        let Some(started) = lab.start("frame_size") else { return };
        lab = started;
        for number in [1, 2] {
            assert_eq!(chosen(&lab, number), expected, "MTU {mtu}");
        }
        largest_packets_cross(&lab, mtu);
        for number in [1, 2] {
            lab.gateways.take(number).unwrap().terminate().unwrap().success().unwrap();
        }
    }
}

#[test]
fn the_configuration_can_ask_for_larger_frames_before_they_are_needed() {
    let Some(mut lab) = net::lab("frames_asked_for", Plan::default()) else { return };
    lab.gateways.file_mut(1).lan = format!("mtu = {JUMBO}\n");
    let Some(lab) = lab.start("frames_asked_for") else { return };
    assert_eq!((chosen(&lab, 1).0, chosen(&lab, 2).0), (4096, 2048));
    // Gateways with different frames understand each other.
    largest_packets_cross(&lab, 1500);
}

#[test]
fn an_mtu_that_outgrows_the_frames_is_told_and_a_port_that_does_is_refused() {
    let Some(mut lab) = running("frames_outgrown", Plan::default()) else { return };
    let site = lab.gateways.site(1);
    site.gateway.ip(&format!("link set {LAN} mtu {JUMBO}")).unwrap();
    site.host.ip(&format!("link set {HOST_INTERFACE} mtu {JUMBO}")).unwrap();
    let told = format!(
        "port lan: lan has an MTU of {JUMBO}, but frames of 2048 bytes hold packets of {MOST} \
         bytes at most: restart lockgated"
    );
    lab.gateways.daemon_mut(1).unwrap().wait_for(&told, AGAIN).unwrap();
    until_warned(&lab, &told);

    // What fits goes on; what does not is counted, not lost in silence.
    let before = dropped_before(&lab);
    let to = lab.gateways.site(2).host_v4();
    let from = &lab.gateways.site(1).host;
    let long = Ping { size: 2500, fragments: Fragments::Forbidden, ..Ping::new(&to, 3) };
    assert_eq!(long.run(from).unwrap().received, 0);
    assert_eq!(dropped_before(&lab), before + 3);
    lab.flows_again();

    // A new port with such an MTU is refused as a whole.
    let second = lab.gateways.sites.laboratory.namespace("second").unwrap();
    let gateway = &lab.gateways.site(1).gateway;
    // Renamed last: the daemon never sees a `lan2` with another MTU.
    connect((gateway, "unnamed"), (&second, "eth0"), 1).unwrap();
    let named = format!("link set unnamed down\nlink set unnamed mtu {JUMBO} name lan2");
    gateway.ip(&format!("{named}\nlink set lan2 up\naddr add 10.1.128.1/24 dev lan2")).unwrap();
    let file = lab.gateways.file(1);
    let changed = file.beside("changed.toml");
    let port = "\n[port.lan2]\nnetdev = \"lan2\"\nside = \"protected\"\n";
    std::fs::write(&changed, file.text() + port).unwrap();
    let words = ["apply", "-f", &changed.display().to_string()];
    let refused = refused(&lab, &words, "port lan2: lan2 has an MTU of 3000");
    assert!(refused.contains("restart lockgated, which then chooses larger frames"), "{refused}");
    lab.flows_again();

    // Lower, it is taken; the other port is told as resolved.
    lab.gateways.site(1).gateway.ip("link set lan2 mtu 1500").unwrap();
    lab.gateways.site(1).gateway.ip(&format!("link set {LAN} mtu {MOST}")).unwrap();
    let resolved = format!("resolved: {told}");
    lab.gateways.daemon_mut(1).unwrap().wait_for(&resolved, AGAIN).unwrap();
    let finished = lab.gateways.daemon(1).unwrap().run(&words).unwrap();
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);

    // A restart chooses larger frames, and the long packets cross as far as the wire takes them.
    lab.gateways.site(1).gateway.ip(&format!("link set {LAN} mtu {JUMBO}")).unwrap();
    lab.gateways.take(1).unwrap().terminate().unwrap().success().unwrap();
    lab.gateways.start(1).unwrap();
    assert_eq!(chosen(&lab, 1).0, 4096);
    let from = &lab.gateways.site(1).host;
    lab.flows_again();
    let before = dropped_before(&lab);
    let answers = long_answers(from, &to);
    assert_eq!((answers, dropped_before(&lab)), (Some(tunnel_mtu(1500)), before));
    lab.balances();
}

/// Waits until the first gateway's status warns of this.
fn until_warned(lab: &Lab, told: &str) {
    let end = Instant::now() + AGAIN;
    loop {
        let status = lab.gateways.daemon(1).unwrap().ask(&["show", "status"]).unwrap();
        if status["warnings"].to_string().contains(told) {
            break;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Gives the first gateway a command that it refuses, until it says this text.
fn refused(lab: &Lab, words: &[&str], text: &str) -> String {
    let end = Instant::now() + AGAIN;
    // Until the daemon knows of the netdev it is refused for another reason.
    loop {
        let finished = lab.gateways.daemon(1).unwrap().run(words).unwrap();
        assert!(!finished.status.success(), "{}", finished.stdout);
        let said = finished.stdout + &finished.stderr;
        if said.contains(text) || Instant::now() > end {
            return said;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends long packets; returns the MTU that the gateway answers with.
fn long_answers(from: &netlab::Namespace, to: &str) -> Option<u32> {
    let ping = Ping { size: 2500, fragments: Fragments::Forbidden, ..Ping::new(to, 3) };
    ping.run(from).unwrap().mtu
}
