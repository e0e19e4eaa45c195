//! A router between two gateways whose link carries less than theirs: gateway A learns the path MTU
//! from its ICMP (RFC 4301 §8.2).
//!
//! ```text
//! host-a ── gw-a ──── wire ──── outside router inside ──── gw-b ── host-b
//!        192.0.2.1      192.0.2.102     172.16.2.1 (narrow) 172.16.2.2
//! ```
//! `allow_host` lists ICMP: the message reaches the worker all the same, and Linux by way of it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use net::router::{self, HIDDEN, INSIDE, OUTSIDE};
use net::{AGAIN, Lab, rewrite_peer};
use netlab::capture::{Scope, esp_frames_to};
use netlab::ping::{Fragments, Ping};
use netlab::sites::{Plan, WAN};
use netlab::{Namespace, PeerEntry};
use serde_json::Value;

/// The router's address on the wire.
const OUTER: &str = "192.0.2.102";
/// Gateways and router outside, where IPv6 is there.
const A6: &str = "2001:db8:fff1::1";
const OUTER6: &str = "2001:db8:fff1::66";
const NET_A6: &str = "2001:db8:fff1::/64";
const ROUTER6: &str = "2001:db8:fff2::1";
const B6: &str = "2001:db8:fff2::2";
const NET_B6: &str = "2001:db8:fff2::/64";
/// MTU of the narrow link, and the largest inner packet that then passes whole.
const NARROW: u32 = 1400;
const INNER: u32 = 1346;
/// Inner packets that fit a link of 1500 bytes, and no narrow one.
const LARGE: u32 = 1440;

/// A laboratory with a router in between; the peers have these keys, the daemons run.
fn with_router(test: &str, keys: &str) -> Option<(Lab, Namespace)> {
    let mut lab = net::lab(test, Plan::default())?;
    let router = router::put_between(&lab, &[OUTER]);
    let a = &lab.gateways.site(1).gateway;
    a.ip(&format!(
        "route replace 172.16.2.0/24 via {OUTER}
         route replace 10.2.0.0/16 via {OUTER}"
    ))
    .unwrap();
    let change = |peer: &mut PeerEntry| peer.remote = HIDDEN.to_owned();
    rewrite_peer(&mut lab.gateways, 1, keys, change);
    let change = |peer: &mut PeerEntry| peer.local = HIDDEN.to_owned();
    rewrite_peer(&mut lab.gateways, 2, keys, change);
    let lab = lab.start(test)?;
    lab.flows_again();
    Some((lab, router))
}

/// As [`with_router`], with IPv6 outside.
fn with_router_of_ipv6(test: &str) -> Option<(Lab, Namespace)> {
    let mut lab = net::lab(test, Plan::default())?;
    let router = router::put_between(&lab, &[OUTER]);
    router.set("net/ipv6/conf/all/forwarding", "1").unwrap();
    let [a, b] = [1, 2].map(|number| &lab.gateways.site(number).gateway);
    // Further addresses on links that are there, so that nothing else changes.
    a.ip(&format!(
        "addr add {A6}/64 dev {WAN} nodad
         route add {NET_B6} via {OUTER6}
         route replace 10.2.0.0/16 via {OUTER}"
    ))
    .unwrap();
    router
        .ip(&format!(
            "addr add {OUTER6}/64 dev {OUTSIDE} nodad
             addr add {ROUTER6}/64 dev {INSIDE} nodad"
        ))
        .unwrap();
    b.ip(&format!("addr add {B6}/64 dev {WAN} nodad\nroute add {NET_A6} via {ROUTER6}")).unwrap();
    for (number, local, remote) in [(1, A6, B6), (2, B6, A6)] {
        rewrite_peer(&mut lab.gateways, number, "", |peer: &mut PeerEntry| {
            (peer.local, peer.remote) = (local.to_owned(), remote.to_owned());
        });
    }
    let lab = lab.start(test)?;
    lab.flows_again();
    Some((lab, router))
}

/// Makes the router let no more than this through to gateway B. The way back stays wide.
fn narrow(router: &Namespace, mtu: u32) {
    let (to, own) = ("172.16.2.0/24", router::ROUTER);
    router.ip(&format!("route replace {to} dev {INSIDE} src {own} mtu {mtu}")).unwrap();
}

/// As [`narrow`], for IPv6.
fn narrow_for_ipv6(router: &Namespace, mtu: u32) {
    router.ip(&format!("route replace {NET_B6} dev {INSIDE} metric 1 mtu {mtu}")).unwrap();
}

/// A field of gateway `number`'s only peer.
fn peer(lab: &Lab, number: u8, field: &str) -> Value {
    let answer = lab.gateways.daemon(number).unwrap().ask(&["show", "peer"]).unwrap();
    let peers = answer.get("peers").unwrap_or(&answer).as_array().unwrap();
    peers[0][field].clone()
}

/// Messages that lowered gateway A's path MTU, and others that told of one.
fn told(lab: &Lab) -> (u64, u64) {
    let counters = lab.gateways.daemon(1).unwrap().ask(&["show", "counters"]).unwrap();
    let count = |name: &str| counters[name].as_u64().unwrap();
    (count("path_mtu_lowered"), count("path_mtu_ignored"))
}

/// A ping from host A to host B that nobody may cut, of an IP packet of so many bytes.
fn ping<'a>(to: &'a str, bytes: u32, count: u32) -> Ping<'a> {
    let headers = if to.contains(':') { 48 } else { 28 };
    Ping { size: bytes - headers, fragments: Fragments::Forbidden, ..Ping::new(to, count) }
}

/// "Destination unreachable" that Linux on gateway A has received.
fn heard_by_linux(lab: &Lab) -> u64 {
    let a = &lab.gateways.site(1).gateway;
    let text = a.run(&["cat", "/proc/net/snmp"], AGAIN).unwrap().success().unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split(' '));
    let mut both = names.zip(values);
    both.find(|(name, _)| *name == "InDestUnreachs").unwrap().1.parse().unwrap()
}

#[test]
fn a_narrow_link_on_the_way_is_answered_at_once_and_tcp_goes_on() {
    // XO-23
    let Some((lab, router)) = with_router("path_mtu", "") else { return };
    let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
    let (to4, to6) = (b.host_v4(), b.host_v6());
    for to in [&to4, &to6] {
        let answers = ping(to, LARGE, 5).run_until_answered(&a.host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
    }
    assert_eq!((peer(&lab, 1, "path_mtu"), peer(&lab, 1, "inner_mtu")), (1500.into(), 1446.into()));
    let mut stream = Transfer::begin(&lab);
    stream.send(1 << 20);

    narrow(&router, NARROW);
    let before = heard_by_linux(&lab);
    // The router drops the first; of the second gateway A says what fits.
    let answers = ping(&to4, LARGE, 3).run(&a.host).unwrap();
    assert_eq!((answers.received, answers.mtu), (0, Some(INNER)), "{}", answers.text);
    assert!(answers.text.contains(&format!("From {} ", a.lan_v4())), "{}", answers.text);
    assert_eq!(told(&lab).0, 1);
    let answers = ping(&to6, LARGE, 1).run(&a.host).unwrap();
    assert_eq!((answers.received, answers.mtu), (0, Some(INNER)), "{}", answers.text);
    for to in [&to4, &to6] {
        let answers = ping(to, INNER, 5).run_until_answered(&a.host).unwrap();
        assert!(answers.all_answered(), "{}\n{}", answers.text, lab.logs());
    }
    stream.send(4 << 20);
    stream.end();

    assert_eq!(peer(&lab, 1, "path_mtu"), NARROW);
    assert_eq!(peer(&lab, 1, "inner_mtu"), INNER);
    assert!(peer(&lab, 1, "path_mtu_age_ms").as_u64().is_some_and(|age| age < 600_000));
    assert_eq!(peer(&lab, 2, "path_mtu"), 1500, "the way back is wide");
    assert!(heard_by_linux(&lab) > before, "Linux has it too: allow_host lists ICMP");
    let command = ["events", "--json", "--kind", "path_mtu_lowered"];
    let end = Instant::now() + AGAIN;
    let events = loop {
        let events = lab.gateways.daemon(1).unwrap().run(&command).unwrap().success().unwrap();
        if !events.is_empty() || Instant::now() > end {
            break events;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let details = &event["details"];
    assert_eq!(
        (&details["mtu"], &details["inner_mtu"]),
        (&NARROW.into(), &INNER.into()),
        "{event}"
    );
    lab.balances();
}

#[test]
fn with_pmtu_ignore_nothing_is_learned() {
    let Some((lab, router)) = with_router("path_mtu_ignored", "pmtu = \"ignore\"\n") else {
        return;
    };
    narrow(&router, NARROW);
    let (a, to) = (lab.gateways.site(1), lab.gateways.site(2).host_v4());
    let answers = ping(&to, LARGE, 3).run(&a.host).unwrap();
    assert_eq!((answers.received, answers.mtu), (0, None), "{}", answers.text);
    assert_eq!(told(&lab), (0, 3));
    assert_eq!((peer(&lab, 1, "path_mtu"), peer(&lab, 1, "pmtu")), (1500.into(), "ignore".into()));
    lab.balances();
}

#[test]
fn ipv6_of_1280_bytes_crosses_a_path_below_1280_in_outer_fragments() {
    let Some((mut lab, router)) = with_router("outer_fragments", "") else { return };
    narrow(&router, 1000);
    let to = lab.gateways.site(2).host_v6();
    // The router tells of the first ones.
    ping(&to, 1280, 2).run(&lab.gateways.site(1).host).unwrap();
    assert_eq!(peer(&lab, 1, "path_mtu"), 1000);
    let capture = lab.gateways.capture(Scope::Whole).unwrap();
    let answers = ping(&to, 1280, 20).run_until_answered(&lab.gateways.site(1).host).unwrap();
    assert!(answers.all_answered(), "{}\n{}", answers.text, lab.logs());
    let frames = esp_frames_to(&capture.stop().unwrap(), HIDDEN.parse().unwrap()).unwrap();
    // One more for each that was lost.
    assert!(pairs(&frames, 1000) >= 20);
    let a = lab.gateways.site(1);
    // Larger ones are told of 1280, which every host of IPv6 takes.
    let answers = ping(&to, LARGE, 1).run(&a.host).unwrap();
    assert_eq!(answers.mtu, Some(1280), "{}", answers.text);
    lab.balances();
}

/// Sends pings that no longer fit, and learns that those of `inner` bytes do, from the router that
/// lets [`NARROW`] through.
fn learns(lab: &Lab, inner: u32) {
    let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
    for to in [b.host_v4(), b.host_v6()] {
        let answers = ping(&to, 1420, 3).run(&a.host).unwrap();
        assert_eq!((answers.received, answers.mtu), (0, Some(inner)), "{}", answers.text);
        let answers = ping(&to, inner, 5).run_until_answered(&a.host).unwrap();
        assert!(answers.all_answered(), "{}\n{}", answers.text, lab.logs());
    }
    assert_eq!((peer(lab, 1, "path_mtu"), told(lab).0), (NARROW.into(), 1));
    lab.balances();
}

#[test]
fn the_path_mtu_of_esp_in_udp_is_learned_too() {
    let keys = "encapsulation = \"udp\"\n";
    let Some((lab, router)) = with_router("path_mtu_udp", keys) else { return };
    narrow(&router, NARROW);
    // 1400 less IPv4 (20), UDP (8), ESP header and IV (16), ICV (16): with pad length and next
    // header (2) a multiple of 4.
    learns(&lab, (NARROW - 20 - 8 - 16 - 16) / 4 * 4 - 2);
}

#[test]
fn the_path_mtu_between_gateways_of_ipv6_is_learned_too() {
    let Some((lab, router)) = with_router_of_ipv6("path_mtu_ipv6") else { return };
    narrow_for_ipv6(&router, NARROW);
    // IPv6 (40), ESP header and IV (16), ICV (16).
    learns(&lab, (NARROW - 40 - 16 - 16) / 4 * 4 - 2);
}

/// Counts the outer packets of a capture, each of which must be in two fragments of at most `mtu`
/// bytes with an identification of its own.
fn pairs(frames: &[Vec<u8>], mtu: usize) -> usize {
    let mut packets: HashMap<[u8; 2], Vec<(usize, usize, bool)>> = HashMap::new();
    for frame in frames {
        let packet = &frame[14..];
        let number = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (length, place) = (usize::from(number(2)), number(6));
        assert!(length <= mtu, "{length} bytes");
        let (from, goes_on) = (usize::from(place & 0x1fff) * 8, place & 0x2000 != 0);
        packets.entry([packet[4], packet[5]]).or_default().push((from, length - 20, goes_on));
    }
    for (identification, parts) in &mut packets {
        parts.sort_unstable();
        let [(0, first, true), (from, _, false)] = parts[..] else {
            panic!("{identification:?}: {parts:?}");
        };
        assert_eq!(first, from, "{identification:?}");
    }
    packets.len()
}

/// A TCP connection from host A to host B.
struct Transfer {
    near: TcpStream,
    far: TcpStream,
    sent: u64,
}

impl Transfer {
    fn begin(lab: &Lab) -> Transfer {
        let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
        let address: SocketAddr = format!("{}:5000", b.host_v4()).parse().unwrap();
        let listener = b.host.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let near = a.host.enter(|| TcpStream::connect_timeout(&address, AGAIN)).unwrap().unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(AGAIN)).unwrap();
        near.set_write_timeout(Some(AGAIN)).unwrap();
        Transfer { near, far, sent: 0 }
    }

    /// Sends so many bytes, and waits until all of them have arrived.
    fn send(&mut self, bytes: usize) {
        let Transfer { near, far, .. } = self;
        std::thread::scope(|scope| {
            scope.spawn(move || near.write_all(&vec![7; bytes]).unwrap());
            let mut received = vec![0; bytes];
            far.read_exact(&mut received).unwrap();
            assert!(received.iter().all(|byte| *byte == 7));
        });
        self.sent += bytes as u64;
    }

    fn end(self) {
        assert!(self.sent > 0);
        drop(self.near);
    }
}
