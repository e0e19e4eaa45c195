//! A router between two gateways that cuts their ESP packets, as Linux does for a link of smaller
//! MTU: they are put together before they are opened (RFC 4303 §3.4.1).
//!
//! Gateway A has links of a larger MTU than gateway B, so that some packets that come to B whole
//! fit no frame there.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use net::router::{self, HIDDEN, INSIDE, OUTSIDE};
use net::{AGAIN, Lab, rewrite_peer};
use netlab::inject::inject;
use netlab::ping::Ping;
use netlab::sites::{BRIDGE, HOST_INTERFACE, LAN, Plan, WAN};
use netlab::stream::Stream;
use netlab::{Namespace, PeerEntry};
use serde_json::Value;
use wire::build::PacketBuilder;
use wire::flow::protocol;

/// The router's address on the wire.
const OUTER: &str = "192.0.2.102";
/// MTU of the links of gateway A, and of the wire.
const LARGE: u32 = 3400;
/// Largest packet that the router lets through uncut.
const NARROW: u32 = 1300;
/// Link address of gateway A on the wire, and of nobody.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 9, 9]];

/// A laboratory whose router cuts what the gateways send; they run.
fn with_router(test: &str, keys: &str) -> Option<(Lab, Namespace)> {
    let mut lab = net::lab(test, Plan::default())?;
    widen(&lab);
    let router = router::put_between(&lab, &[OUTER]);
    router.ip(&format!("link set {OUTSIDE} mtu {LARGE}")).unwrap();
    lab.gateways.sites.wire.ip(&format!("link set routerport mtu {LARGE}")).unwrap();
    router
        .ip(&format!(
            "route replace 192.0.2.0/24 dev {OUTSIDE} src {OUTER} mtu {NARROW}
             route replace 172.16.2.0/24 dev {INSIDE} src {} mtu {NARROW}",
            router::ROUTER
        ))
        .unwrap();
    let a = &lab.gateways.site(1).gateway;
    a.ip(&format!(
        "route replace 172.16.2.0/24 via {OUTER}
         route replace 10.2.0.0/16 via {OUTER}"
    ))
    .unwrap();
    let keys = format!("df = \"clear\"\n{keys}");
    let change = |peer: &mut PeerEntry| peer.remote = HIDDEN.to_owned();
    rewrite_peer(&mut lab.gateways, 1, &keys, change);
    let change = |peer: &mut PeerEntry| peer.local = HIDDEN.to_owned();
    rewrite_peer(&mut lab.gateways, 2, &keys, change);
    Some((lab.start(test)?, router))
}

/// Gives the links of site 1 and the wire the larger MTU.
fn widen(lab: &Lab) {
    let (wire, a) = (&lab.gateways.sites.wire, lab.gateways.site(1));
    wire.ip(&format!("link set {} mtu {LARGE}", a.wire_port())).unwrap();
    let lines = [LAN, WAN].map(|netdev| format!("link set {netdev} mtu {LARGE}")).join("\n");
    a.gateway.ip(&lines).unwrap();
    a.host.ip(&format!("link set {HOST_INTERFACE} mtu {LARGE}")).unwrap();
    wire.ip(&format!("link set {BRIDGE} mtu {LARGE}")).unwrap();
}

/// Pings and datagrams of all sizes cross in both directions, and none is lost.
fn all_cross(lab: &Lab) {
    lab.flows_again();
    let sites = [1, 2].map(|number| lab.gateways.site(number));
    for (from, to) in [(0, 1), (1, 0)] {
        for size in [1400, 3000, 8000, 60_000] {
            let address = sites[to].host_v4();
            let ping = Ping { size, ..Ping::new(&address, 10) };
            // A queue of Linux's may lose one of 60 fragments while a core is taken; what the
            // gateways lose is looked for by its number in `none_was_lost`.
            let run = || ping.run_until_answered(&sites[from].host).unwrap();
            let mut answers = run();
            for _ in 0..2 {
                if !answers.all_answered() {
                    println!("once more, {size}: {}", answers.summary());
                    answers = run();
                }
            }
            assert!(answers.all_answered(), "{size}: {}\n{}", answers.text, lab.logs());
        }
    }
    for bytes in [1400, 8000] {
        let streams = [(0, 1), (1, 0)].map(|(from, to)| {
            let end = |site: usize| (&sites[site].host, sites[site].host_v4().parse().unwrap());
            Stream::start(end(from), end(to), bytes, Duration::from_millis(5)).unwrap()
        });
        std::thread::sleep(Duration::from_millis(600));
        for delivery in streams.map(Stream::finish) {
            assert!(delivery.sent.len() > 20, "{bytes}: {} sent", delivery.sent.len());
            let (lost, repeated) = (delivery.lost(), delivery.repeated());
            assert_eq!((lost, repeated), (0, 0), "{bytes} bytes\n{}", lab.logs());
        }
    }
}

/// A number of gateway `number`'s only peer: `opened`, or `sealed` packets.
fn packets(lab: &Lab, number: u8, what: &str) -> u64 {
    let answer = lab.gateways.daemon(number).unwrap().ask(&["show", "peer"]).unwrap();
    let peers = answer.get("peers").unwrap_or(&answer).as_array().unwrap();
    peers[0][what]["packets"].as_u64().unwrap_or_else(|| panic!("{what}: {answer}"))
}

/// A number of the ledger of a gateway's port on the wire.
fn ledger(lab: &Lab, number: u8, what: &str) -> u64 {
    let ports = lab.gateways.daemon(number).unwrap().ports().unwrap();
    let is_wan = |port: &&Value| port["name"] == WAN;
    let port = ports.iter().find(is_wan).unwrap_or_else(|| panic!("{ports:?}"));
    port["ledger"][what].as_u64().unwrap_or_else(|| panic!("{what}: {port}"))
}

/// Packets that the router has cut, and the fragments that it made of them.
fn cut(router: &Namespace) -> (u64, u64) {
    let text = router.run(&["cat", "/proc/net/snmp"], AGAIN).unwrap().success().unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split(' '));
    let of = |name: &str| {
        let at = names.clone().position(|known| known == name).unwrap();
        values.clone().nth(at).unwrap().parse().unwrap()
    };
    (of("FragOKs"), of("FragCreates"))
}

/// Asserts that every packet that a gateway sealed was opened by the other, and that those which
/// the router cut were put together.
fn none_was_lost(lab: &Lab, router: &Namespace) {
    lab.balances();
    for (from, to) in [(1, 2), (2, 1)] {
        let [sealed, opened] = [packets(lab, from, "sealed"), packets(lab, to, "opened")];
        assert_eq!(opened, sealed, "from gateway {from}\n{}", lab.logs());
        let counters = lab.gateways.daemon(to).unwrap().counters().unwrap();
        let reasons = counters.drops.iter().filter(|(name, count)| {
            (name.contains("fragment") || name.contains("replay")) && **count > 0
        });
        assert_eq!(reasons.collect::<Vec<_>>(), [], "gateway {to}");
    }
    let (packets, fragments) = cut(router);
    assert!(packets > 300 && fragments >= 2 * packets, "{packets} packets, {fragments} fragments");
    // All but the last one of each packet waited, and became part of it.
    let consumed: u64 = [1, 2].map(|number| ledger(lab, number, "consumed")).iter().sum();
    assert!(consumed >= fragments - packets, "{consumed} of {packets} in {fragments}");
}

/// Fragments of ESP, alone and in UDP, from where no peer is: so many of four are refused.
fn strangers_are_refused(lab: &Lab, refused: u64) {
    let from = || PacketBuilder::v4("192.0.2.66", "192.0.2.1");
    let esp = |number| from().identification(number).protocol(protocol::ESP).payload(&[7; 64]);
    let udp = |number| from().identification(number).udp(4500, 4500).payload(&[7; 56]);
    let sent = [
        esp(1).fragment(0, true),
        esp(1).fragment(8, false),
        udp(2).fragment(0, true),
        udp(2).fragment(8, false).protocol(protocol::UDP),
    ];
    let dropped = || lab.gateways.daemon(1).unwrap().counters().unwrap().dropped("esp_fragment");
    let (before, opened) = (dropped(), packets(lab, 1, "opened"));
    let frames = sent.map(|packet| packet.frame(MACS[0], MACS[1], None));
    let (wire, port) = (&lab.gateways.sites.wire, lab.gateways.site(1).wire_port());
    assert_eq!(inject(wire, &port, &frames).unwrap(), frames.len());
    let end = Instant::now() + Duration::from_secs(5);
    while dropped() < before + refused && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        (dropped() - before, packets(lab, 1, "opened")),
        (refused, opened),
        "{}",
        lab.logs()
    );
}

/// IKE that IP cut reaches Linux at gateway A: from the peer, and from elsewhere.
fn ike_arrives(lab: &Lab, router: &Namespace) {
    let a = &lab.gateways.site(1).gateway;
    for (port, from) in [(500, &lab.gateways.site(2).gateway), (4500, router)] {
        let to = format!("{}:{port}", lab.gateways.site(1).wan_v4());
        let socket = a.enter(|| UdpSocket::bind(&to)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        // Zeros: on port 4500 the marker of IKE.
        let arrives = || {
            sender.send_to(&[0; 3000], &to).unwrap();
            socket.recv(&mut [0; 4000]).ok()
        };
        let received = (0..3).find_map(|_| arrives());
        assert_eq!(received, Some(3000), "port {port} from {}\n{}", from.name(), lab.logs());
    }
}

#[test]
fn esp_that_a_router_cuts_is_put_together() {
    // REASM
    let Some((lab, router)) = with_router("esp_in_fragments", "") else { return };
    all_cross(&lab);
    none_was_lost(&lab, &router);
    // Nothing of UDP may be a peer's: Linux has IKE from the program, and later fragments that it
    // can put together with nothing.
    strangers_are_refused(&lab, 3);
    ike_arrives(&lab, &router);
    assert_eq!(ledger(&lab, 1, "host"), 0);
    lab.balances();
}

/// IKE is listed (`allow_host`), so Linux would have the later fragments of UDP.
#[test]
fn esp_in_udp_that_a_router_cuts_is_put_together_and_ike_in_fragments_reaches_linux() {
    // REASM
    let keys = "encapsulation = \"udp\"\nnat_keepalive = \"off\"";
    let Some((lab, router)) = with_router("esp_in_udp_in_fragments", keys) else { return };
    all_cross(&lab);
    none_was_lost(&lab, &router);
    strangers_are_refused(&lab, 4);
    ike_arrives(&lab, &router);
    assert!(ledger(&lab, 1, "host") >= 4, "by the host port");
    lab.balances();
}
