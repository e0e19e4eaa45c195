//! Native and generic XDP: the same verdicts, and no other mode than was chosen.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use net::{AGAIN, Lab, lab};
use netlab::Scope;
use netlab::capture::Tally;
use netlab::ping::Ping;
use netlab::sites::Plan;

/// Packets that each policy gets.
const PACKETS: usize = 40;
/// The UDP port that a policy of gateway 1 discards.
const DISCARDED: u16 = 4242;
/// The UDP port of packets that the policies protect.
const PROTECTED: u16 = 4243;

/// Writes `xdp` at both ports of a gateway.
fn choose(lab: &mut Lab, number: u8, mode: &str) {
    let file = lab.gateways.file_mut(number);
    (file.lan, file.wan) = (format!("xdp = \"{mode}\"\n"), format!("xdp = \"{mode}\"\n"));
}

/// Two gateways whose ports all have this mode, with a policy that discards.
fn gateways(test: &str, mode: &str) -> Option<Lab> {
    let mut lab = lab(test, Plan::default())?;
    for number in [1, 2] {
        choose(&mut lab, number, mode);
    }
    lab.gateways.file_mut(1).extra = format!(
        "\n[[policy]]\nname = \"no\"\naction = \"discard\"\nlocal = [\"10.1.0.0/16\"]\n\
         remote = [\"10.2.0.0/16\"]\nprotocol = \"udp\"\nremote_ports = [\"{DISCARDED}\"]\n\
         priority = 200\n"
    );
    lab.start(test)
}

/// The modes that a gateway shows of its two ports.
fn modes(lab: &Lab, number: u8) -> Vec<String> {
    let shown = lab.gateways.daemon(number).unwrap().ask(&["show", "port"]).unwrap();
    let ports = shown["ports"].as_array().unwrap().iter();
    let ports = ports.filter(|port| port["name"] == "lan" || port["name"] == "wan");
    ports.map(|port| port["xdp_mode"].as_str().unwrap().to_owned()).collect()
}

/// Packets of a policy of gateway 1, by its own count.
fn counted(lab: &Lab, policy: &str) -> u64 {
    let shown = lab.gateways.daemon(1).unwrap().ask(&["show", "policy"]).unwrap();
    let policies = shown["policies"].as_array().unwrap();
    let policy = policies.iter().find(|shown| shown["name"] == policy).unwrap();
    policy["outbound"]["packets"].as_u64().unwrap()
}

/// Sends packets to a UDP port of site 2's host.
fn send(lab: &Lab, port: u16) {
    let host = &lab.gateways.site(1).host;
    let socket = host.enter(|| UdpSocket::bind("10.1.0.10:0")).unwrap().unwrap();
    let to = SocketAddr::from(([10, 2, 0, 10], port));
    for _ in 0..PACKETS {
        socket.send_to(b"by this mode", to).unwrap();
    }
}

/// Everything that the two modes must have in common.
fn verdicts(lab: &mut Lab) -> Vec<(&'static str, u64)> {
    lab.flows_again();
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    let before = lab.gateways.daemon(1).unwrap().settled(AGAIN).unwrap();
    let protected = counted(lab, "to-gw-b");
    let receiver = lab.gateways.site(2).host.enter(|| UdpSocket::bind("10.2.0.10:4243"));
    let receiver = receiver.unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    send(lab, DISCARDED);
    send(lab, PROTECTED);
    let mut packet = [0; 64];
    let arrived = (0..PACKETS).take_while(|_| receiver.recv(&mut packet).is_ok()).count();
    let tally = Tally::of(&capture.stop().unwrap()).unwrap();
    // The gateway itself, from outside: what `allow_host` lists, and what it does not.
    let gateway = lab.gateways.site(1).wan_v4();
    let wire = &lab.gateways.site(2).gateway;
    let listed = Ping::new(&gateway, 5).run_until_answered(wire).unwrap().all_answered();
    let stranger = wire.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for _ in 0..PACKETS {
        stranger.send_to(b"nobody lists this", (gateway.as_str(), 9)).unwrap();
    }
    net::wait_for("unlisted packets are dropped", || {
        let after = lab.gateways.daemon(1).unwrap().counters().unwrap();
        after.dropped("no_match") >= before.dropped("no_match") + PACKETS as u64
    });
    let after = lab.gateways.daemon(1).unwrap().settled(AGAIN).unwrap();
    lab.balances();
    let dropped = |reason| after.dropped(reason) - before.dropped(reason);
    vec![
        ("arrived", arrived as u64),
        ("listed service answers", u64::from(listed)),
        ("protected", counted(lab, "to-gw-b") - protected),
        ("discarded", dropped("policy_discard")),
        ("unlisted", dropped("no_match")),
        ("in clear on the wire", tally.clear),
    ]
}

#[test]
fn native_and_generic_programs_give_the_same_verdicts() {
    // AX-39
    let mut seen = Vec::new();
    for mode in ["native", "generic"] {
        let Some(mut lab) = gateways("xdp_modes", mode) else { return };
        for number in [1, 2] {
            assert_eq!(modes(&lab, number), [mode, mode]);
            let shown =
                lab.gateways.daemon(number).unwrap().run(&["show", "port", "--wide"]).unwrap();
            assert!(shown.stdout.contains(&format!("{mode}, copy")), "{}", shown.stdout);
        }
        seen.push(verdicts(&mut lab));
    }
    println!("native, generic: {seen:?}");
    assert_eq!(seen[0], seen[1]);
    let packets = PACKETS as u64;
    let of = |what| seen[0].iter().find(|(name, _)| *name == what).unwrap().1;
    assert_eq!((of("arrived"), of("discarded"), of("unlisted")), (packets, packets, packets));
    assert_eq!((of("listed service answers"), of("in clear on the wire")), (1, 0));
}

#[test]
fn another_mode_is_refused_by_name_until_the_program_is_off() {
    // AX-39
    let Some(mut lab) = gateways("xdp_change", "native") else { return };
    lab.flows_again();
    let apply = |lab: &mut Lab, mode: &str| {
        choose(lab, 1, mode);
        let file = lab.gateways.file(1);
        let path = file.write_as(&file.beside("next.toml")).unwrap();
        let words = ["apply", "-f", path.to_str().unwrap()];
        lab.gateways.daemon(1).unwrap().run(&words).unwrap()
    };
    let refused = apply(&mut lab, "generic");
    assert!(!refused.status.success(), "{}", refused.stdout);
    for word in ["port.lan.xdp", "native", "ip link set lan xdpdrv off", "stop lockgated"] {
        assert!(refused.stderr.contains(word), "no {word} in {}", refused.stderr);
    }
    assert_eq!(modes(&lab, 1), ["native", "native"]);
    // The mode in use is one of those that `auto` takes: nothing has to change.
    let applied = apply(&mut lab, "auto");
    assert!(applied.status.success(), "{}", applied.stderr);
    assert_eq!(modes(&lab, 1), ["native", "native"]);
    lab.flows_again();

    // The programs of the run before are there: a start says so, and what to do helps.
    lab.gateways.take(1).unwrap().terminate().unwrap();
    choose(&mut lab, 1, "generic");
    lab.gateways.file(1).write().unwrap();
    let refused = {
        let (gateways, file) = (&lab.gateways, lab.gateways.file(1));
        let gateway = &gateways.site(1).gateway;
        let daemon = netlab::Daemon::launch(&gateways.programs, gateway, file).unwrap();
        daemon.finish(net::AGAIN).unwrap()
    };
    assert!(!refused.status.success(), "{}", refused.stderr);
    assert!(refused.stderr.contains("xdpdrv off"), "{}", refused.stderr);
    for netdev in ["lan", "wan"] {
        let off = ["ip", "link", "set", netdev, "xdpdrv", "off"];
        lab.gateways.site(1).gateway.run(&off, AGAIN).unwrap().success().unwrap();
    }
    lab.gateways.start(1).unwrap();
    assert_eq!(modes(&lab, 1), ["generic", "generic"]);
    lab.flows_again();
    lab.balances();
}
