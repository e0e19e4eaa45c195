//! Writes the seeds of the fuzz corpora: `cargo run -p fuzz-replay --example seeds -- fuzz/corpus`.
//!
//! Seeds are few and each shows the fuzzer one thing; what it finds from there `cargo fuzz cmin`
//! makes small again.

use std::path::Path;

use charon_link::{
    AddPolicy, AddSa, Algorithm, Answer, Charon, CharonId, Hardness, Header, LinkMode, NameSa,
    Policy, PolicyAction, PolicyDirection, Report, Request, SaDirection, SaHandle, SaLimits,
    SaName, Selector, Status, UpdateSa, Use, VERSION, encode_answer, encode_report, encode_request,
};
use wire::build::{PacketBuilder, tcp_flags};

/// A target's seeds: a name and the input.
type Seeds = Vec<(String, Vec<u8>)>;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: seeds FOLDER");
        std::process::exit(2);
    };
    for (target, seeds) in [
        ("parse", parse()),
        ("esp_open", esp_open()),
        ("configuration", configuration()),
        ("overlay", overlay()),
        ("card_link", card_link()),
        ("charon", charon()),
        ("walk", walk()),
    ] {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, input) in &seeds {
            std::fs::write(folder.join(format!("seed-{name}")), input)?;
        }
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}

/// A message of each kind.
fn card_link() -> Seeds {
    let span = r#"{"first":"10.0.0.0","last":"10.255.255.255"}"#;
    let upper =
        r#"{"ports":{"protocol":6,"source":[0,65535],"destination":[80,443],"segments":"new"}}"#;
    let pattern = format!(r#"{{"source":{span},"destination":{span},"upper":{upper}}}"#);
    let tag = r#"{"handle":7,"incarnation":0}"#;
    let rule = format!(r#"{{"ports":[1],"rank":9,"effect":"mark","patterns":[{pattern}]}}"#);
    let refusal = r#"{"kind":"full","code":-28,"text":"no room"}"#;
    let lines = [
        ("begin", r#"{"begin":{}}"#.to_owned()),
        ("place", format!(r#"{{"place":{{"tag":{tag},"rule":{rule}}}}}"#)),
        ("withdraw", format!(r#"{{"withdraw":{{"tag":{tag}}}}}"#)),
        ("look", r#"{"look":{"number":1}}"#.to_owned()),
        ("begun", r#"{"begun":{"card":"emulated"}}"#.to_owned()),
        ("live", format!(r#"{{"event":{{"live":{tag}}}}}"#)),
        ("refused", format!(r#"{{"event":{{"refused":[{tag},{refusal}]}}}}"#)),
        ("reset", r#"{"event":"reset"}"#.to_owned()),
        ("found", r#"{"found":{"number":1,"card":"v9","at_ms":5,"items":[[7,1,60]]}}"#.to_owned()),
        ("stream", "\u{5}one\ntwo\n\nthree\nfour".to_owned()),
    ];
    lines.into_iter().map(|(name, line)| (name.into(), line.into_bytes())).collect()
}

/// A message of each kind.
fn charon() -> Seeds {
    let ends = ["192.0.2.1:500", "198.51.100.1:4500"].map(|end| end.parse().unwrap());
    let [source, destination] = ends;
    let name = SaName { source, destination, spi: 0x1001 };
    let selector = Selector {
        protocol: 6,
        ports: (443, 443),
        addresses: ("10.1.0.0".parse().unwrap(), "10.1.255.255".parse().unwrap()),
    };
    let algorithm = |transform, bytes| Algorithm { transform, key: vec![7; bytes].into() };
    let limits = SaLimits { seconds: 3600, bytes: 0, packets: 1 };
    let sa = AddSa {
        direction: SaDirection::Outbound,
        name,
        reqid: 1,
        mode: LinkMode::Tunnel,
        encryption: algorithm(20, 36),
        integrity: algorithm(0, 0),
        esn: true,
        window: 32,
        in_udp: false,
        soft: limits,
        hard: limits,
        selectors: [vec![selector.clone()], vec![selector.clone(); 2]],
        initiator: true,
    };
    let selectors = [selector.clone(), selector.clone()];
    let direction = PolicyDirection::Outbound;
    let policy = Policy { direction, source, destination, selectors: selectors.clone() };
    let query = Request::QueryPolicy { direction, selectors: selectors.clone() };
    let action = PolicyAction::Protect;
    let add = AddPolicy { policy, action, reqid: 1, spi: 0, priority: 9, repeat: false };
    let [handle, gone] = [1, 2].map(|serial| SaHandle::new((7 << 40) + serial).unwrap());
    let hello = Charon { id: CharonId([3; 16]), charon: "5.9.8".into(), plugin: "1".into() };
    let names = NameSa { handle, reqid: 1, ike: "gw-b".into(), child: "net".into() };
    let (reqid, moved) = (Some(2), Some([vec![selector.clone()], vec![selector.clone()]]));
    let update = UpdateSa { handle, source, destination, in_udp: true, reqid, selectors: moved };
    let requests = [
        ("hello", Request::Hello(hello)),
        ("get-spi", Request::GetSpi { source, destination }),
        ("add-sa", Request::AddSa(Box::new(sa))),
        ("update-sa", Request::UpdateSa(update)),
        ("query-sa", Request::QuerySa(handle)),
        ("add-policy", Request::AddPolicy(add.clone())),
        ("query-policy", query),
        ("delete-policy", Request::DeletePolicy(add)),
        ("resume-sas", Request::ResumeSas(vec![handle, gone])),
        ("resumed", Request::Resumed),
        ("name-sa", Request::NameSa(names)),
    ];
    let requests = requests.map(|(kind, request)| (kind, encode_request(1, 2, &request)));
    let usage = Some(Use { packets: 1, bytes: 2, idle_seconds: None });
    let answer = Answer::plain(Status::Refused, "no");
    let answer =
        Answer { spi: Some(7), handle: Some(handle), lacking: vec![gone], usage, ..answer };
    let asked = Header { version: VERSION, kind: 2, number: 1, incarnation: 2 };
    let reports = [
        ("acquire", Report::Acquire { reqid: 1, selectors }),
        ("expire", Report::Expire { handle, hardness: Hardness::Hard }),
        ("mapping", Report::Mapping { handle, peer: source }),
    ];
    let told = reports.map(|(kind, report)| (kind, encode_report(2, &report)));
    let all =
        requests.into_iter().chain(told).chain([("answer", encode_answer(&asked, 2, &answer))]);
    all.map(|(kind, bytes)| (kind.into(), bytes.to_vec())).collect()
}

/// Tenants' frames between known endpoints, and questions for link addresses.
fn overlay() -> Seeds {
    let mac = |tenant: u8| [2, 7, 0, 0, 0, tenant];
    let frame = |packet: PacketBuilder| packet.frame(mac(2), mac(1), None);
    let v4 = PacketBuilder::v4("172.16.0.1", "172.16.0.2");
    let v6 = PacketBuilder::v6("fd00::1", "fd00::2");
    let arp = [
        &[0xff; 6][..],
        &mac(1),
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &mac(1),
        &[172, 16, 0, 1],
        &[0; 6],
        &[172, 16, 0, 2],
    ];
    let frames = [
        ("v4-udp", frame(v4.clone().udp(1, 2).payload_of(9))),
        ("v6-tcp", frame(v6.clone().tcp_with(1, 80, tcp_flags::SYN, None))),
        ("v6-solicitation", frame(v6.hop_limit(255).icmp(135, 0, [0; 4]).payload_of(16))),
        ("arp", arp.concat()),
    ];
    let mut seeds = Seeds::new();
    for (name, frame) in &frames {
        for flags in 0..8 {
            let length = frame.len().div_ceil(2) as u8;
            let input = [&[flags, 1, length][..], frame].concat();
            seeds.push((format!("{name}-{flags}"), input));
        }
    }
    let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 0x11, 0xc8, 0][..], &frames[0].1].concat();
    seeds.push(("geneve-option".into(), [&[2, 0, geneve.len() as u8 / 2][..], &geneve].concat()));
    seeds
}

/// Packets of every kind that the parsers tell apart.
fn packets() -> Vec<(&'static str, PacketBuilder)> {
    let v4 = || PacketBuilder::v4("10.1.0.1", "10.2.0.2");
    let v6 = || PacketBuilder::v6("2001:db8:1::1", "2001:db8:2::2");
    vec![
        ("v4-udp", v4().udp(1000, 53).payload_of(20)),
        ("v4-tcp-syn", v4().tcp_with(1000, 443, tcp_flags::SYN, Some(1460))),
        ("v4-echo", v4().icmp(8, 0, [0, 1, 0, 2]).payload_of(8)),
        ("v4-sctp", v4().protocol(132).payload_of(12)),
        ("v4-other", v4().protocol(47).payload_of(4)),
        ("v4-options", v4().options(&[1, 1, 148, 4, 0, 0]).udp(1, 2)),
        ("v4-source-route", v4().options(&[131, 7, 4, 9, 9, 9, 9]).udp(1, 2)),
        ("v4-first-fragment", v4().udp(1, 2).payload_of(16).fragment(0, true)),
        ("v4-later-fragment", v4().udp(1, 2).payload_of(16).fragment(3, false)),
        ("v4-dont-fragment", v4().udp(1, 2).dont_fragment().traffic_class(0xb9).hop_limit(1)),
        ("v6-udp", v6().udp(1000, 53).payload_of(20)),
        ("v6-tcp-syn", v6().tcp_with(1000, 443, tcp_flags::SYN, Some(1440))),
        ("v6-echo", v6().icmp(128, 0, [0, 1, 0, 2]).payload_of(8)),
        ("v6-too-big", v6().icmp(2, 0, [0, 0, 5, 0]).payload(&v6().udp(1, 2).ip())),
        ("v6-hop-by-hop", v6().extension(0, &[5, 2, 0, 0]).extension(60, &[]).udp(1, 2)),
        ("v6-routing", v6().extension(43, &[0, 0]).tcp(1, 2)),
        ("v6-source-route", v6().extension(43, &[0, 1, 0, 0, 0, 0]).tcp(1, 2)),
        ("v6-first-fragment", v6().udp(1, 2).payload_of(16).fragment(0, true)),
        ("v6-later-fragment", v6().udp(1, 2).payload_of(16).fragment(3, false)),
        ("v6-mobility", v6().extension(135, &[1; 14]).extension(139, &[]).protocol(59)),
        ("v4-unreachable", v4().icmp(3, 4, [0, 0, 5, 0]).payload(&v4().tcp(3, 4).ip())),
    ]
}

fn parse() -> Seeds {
    let (ours, theirs) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut seeds = Seeds::new();
    for (i, (name, packet)) in packets().into_iter().enumerate() {
        seeds.push((format!("ip-{name}"), packet.ip()));
        let vlan = (i % 2 == 1).then_some(i as u16);
        seeds.push((format!("frame-{name}"), packet.frame(ours, theirs, vlan)));
    }
    let mut padded = packets()[0].1.ip();
    padded.resize(60, 0);
    seeds.push(("ip-padded".into(), padded));
    let mut stacked = packets()[0].1.frame(ours, theirs, Some(7));
    stacked.splice(12..12, [0x88, 0xa8, 0, 5]);
    seeds.push(("frame-stacked".into(), stacked));
    seeds
}

/// The first byte of an input is the suite, the second numbers, family, mode, UDP and what is done:
/// see `esp_open`.
fn esp_open() -> Seeds {
    const SUITES: u8 = ipsec::Suite::ALL.len() as u8;
    const SEALED: u8 = 1 << 4;
    const TEXT: u8 = 2 << 4;
    let mut seeds = Seeds::new();
    let inner = packets()[0].1.ip();
    let round = |mut text: Vec<u8>, trailer: [u8; 4]| {
        // A multiple of every suite's block, in front of a trailer of 4 bytes.
        text.resize((text.len() + 4).next_multiple_of(16) - 4, 0);
        text.extend(trailer);
        text
    };
    for suite in 0..SUITES {
        // Numbers, family, mode and UDP: over the suites all come with all.
        let way = suite.wrapping_mul(5) % 16;
        let raw = [&[suite, way, 0][..], &[1, 2, 3, 4, 0, 0, 0, 1], &inner].concat();
        seeds.push((format!("raw-{suite}"), raw));
        for (n, way) in [way, way ^ 4, way ^ 8, way ^ 15].into_iter().enumerate() {
            // Number, no changes, not shortened, shape, class, header.
            let head = [suite, way | SEALED, 0, 0, 0, 1 + suite, 0, 0, 17, 0xb8, n as u8];
            seeds.push((format!("sealed-{suite}-{n}"), [&head[..], &inner].concat()));
        }
        let head = [suite, way | SEALED, 1, 0, 0, 1, 1, 0, way, 0x80, 0, 17, 0xb8, 1];
        seeds.push((format!("changed-{suite}"), [&head[..], &inner].concat()));
        for (name, trailer) in [
            ("good", [1u8, 2, 2, 4]),
            ("bad", [1, 3, 2, 4]),
            ("long", [0, 0, 255, 41]),
            ("dummy", [1, 2, 2, 59]),
        ] {
            let head = [suite, way | TEXT, 0, 0, 0, suite + 1];
            // AES-CBC takes its IV from the input.
            let is_cbc = (4..10).contains(&suite);
            let iv = if is_cbc { &[7; 16][..] } else { &[] };
            let text = [&head[..], iv, &round(inner.clone(), trailer)].concat();
            seeds.push((format!("text-{name}-{suite}"), text));
        }
    }
    let cut = [&[0u8, SEALED, 0, 0, 0, 9, 0, 4, 0, 0][..], &inner].concat();
    seeds.push(("cut".into(), cut));
    seeds
}

/// A configuration of keys that the example does not have.
const REST: &str = r#"
[node]
name = "b"
workers = 2
reserve_cores = 1
on_exit = "open"
keys_dir = "keys"
[cache]
flows = "off"
[port.lan]
netdev = "eth1"
vlan = 12
side = "protected"
mac = "02:00:00:00:01:01"
mtu = 1400
addresses = ["10.1.0.1/24", "2001:db8:1::1/64"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["2001:db8:ff::1/64"]
allow_host = ["tcp/22", "icmpv6", "89"]
[peer.c]
local = "2001:db8:ff::1"
remote = "2001:db8:dd::4"
keys = "file:c.keys"
manual = "laboratory"
suite = "aes-256-gcm"
mode = "tunnel"
replay_window = 4096
mss_clamp = false
[[policy]]
name = "web"
peer = "c"
local = ["10.1.0.0/16", "2001:db8:1::/48"]
remote = ["10.4.0.0-10.4.3.255", "2001:db8:4::/48"]
protocol = "tcp"
local_ports = ["1024-65535"]
remote_ports = ["443", "8000-8999"]
direction = "outbound"
[[policy]]
name = "echo"
action = "discard"
local = ["any"]
remote = ["any"]
protocol = "icmp"
icmp = ["8/0", "3"]
[[route]]
to = "2001:db8:4::/48"
via = "2001:db8:ff::fe"
port = "wan"
[[route]]
to = "2001:db8::/32"
type = "blackhole"
[[neighbour]]
port = "lan"
address = "10.1.0.5"
mac = "02:00:00:00:01:05"
"#;

/// The example of the repository, and small files that use what it does not.
fn configuration() -> Seeds {
    const EXAMPLE: &str = include_str!("../../../etc/lockgate.toml");
    let mut seeds = vec![("example".into(), EXAMPLE.into()), ("rest".into(), REST.into())];
    // Each section alone, and the whole without it.
    for (name, text) in [("example", EXAMPLE), ("rest", REST)] {
        let sections: Vec<&str> = text.split_inclusive("\n[").collect();
        for at in 0..sections.len() {
            let mut without = sections.clone();
            let section = without.remove(at);
            seeds.push((format!("{name}-only-{at}"), format!("[{section}").into_bytes()));
            seeds.push((format!("{name}-without-{at}"), without.concat().into_bytes()));
        }
    }
    seeds
}

/// Bit of an arrival that says that another follows in its batch.
const MORE: u8 = 4;

/// Packets as `walk` reads them: shape, source, destination, payload, upper layer; `address` and
/// `upper` of the fuzz target say what is what.
mod packet {
    use super::MORE;

    pub(super) fn udp(from: u8, to: u8) -> Vec<u8> {
        vec![0, from, to, 20, 0, 0, 1]
    }

    pub(super) fn tcp(from: u8, to: u8) -> Vec<u8> {
        vec![0, from, to, 20, 1, 0, 2]
    }

    pub(super) fn syn(from: u8, to: u8) -> Vec<u8> {
        vec![0, from, to, 0, 2, 0, 2, 5, 0xb4]
    }

    pub(super) fn echo(from: u8, to: u8) -> Vec<u8> {
        vec![0, from, to, 8, 3, 8, 0]
    }

    pub(super) fn error(from: u8, to: u8) -> Vec<u8> {
        vec![0, from, to, 0, 4, 0, to, from, 1, 0, 0, 4]
    }

    pub(super) fn v6(mut packet: Vec<u8>) -> Vec<u8> {
        packet[0] |= 1;
        packet
    }

    pub(super) fn large(mut packet: Vec<u8>, more: &[u8]) -> Vec<u8> {
        packet[0] |= 32;
        packet.extend(more);
        packet
    }

    /// An arrival in clear.
    pub(super) fn clear(more: u8, packet: Vec<u8>) -> Vec<u8> {
        [vec![more], packet].concat()
    }

    /// An arrival that a peer has sealed.
    pub(super) fn sealed(more: u8, peer: u8, packet: Vec<u8>) -> Vec<u8> {
        [vec![1 | more, peer], packet, vec![0, 0]].concat()
    }

    /// Arrivals by a port.
    pub(super) fn batch(port: u8, arrivals: Vec<Vec<u8>>) -> Vec<u8> {
        [vec![port, 1], arrivals.concat()].concat()
    }

    /// An arrival of peer 0 with a number of its own: choice 8 takes it from the input.
    pub(super) fn numbered() -> Vec<u8> {
        [vec![1 | MORE, 0], udp(1, 0), vec![8, 5, 0]].concat()
    }
}

/// Inputs as `walk` reads them: the gateway's shape, then batches.
fn walk() -> Seeds {
    use packet::{batch, clear, echo, error, large, numbered, sealed, syn, tcp, udp, v6};
    const SHAPE: [u8; 3] = [0, 0, 0];
    let [lan, wan, lan2, host] = [0u8, 1, 2, 3];
    let mut inputs: Vec<(String, Vec<Vec<u8>>)> = vec![];
    for to in 0..27 {
        let all = |more| vec![clear(MORE, udp(0, to)), clear(more, v6(tcp(0, to)))];
        for (name, port) in [("lan", lan), ("wan", wan), ("lan2", lan2), ("host", host)] {
            inputs.push((format!("{name}-to-{to}"), vec![batch(port, all(0))]));
        }
    }
    for peer in 0..3 {
        for (name, to) in [("lan", 0), ("spoke", 2 - peer), ("web", 9), ("us", 13)] {
            let from = peer + 1;
            let arrivals = vec![
                sealed(MORE, peer, udp(from, to)),
                sealed(MORE, peer, v6(syn(from, to))),
                sealed(MORE, peer, echo(from, to)),
                sealed(MORE, peer, error(from, to)),
                sealed(0, peer, udp(if peer == 0 { 2 } else { 1 }, to)),
            ];
            inputs.push((format!("peer-{peer}-to-{name}"), vec![batch(wan, arrivals)]));
        }
    }
    for (name, size) in [("1400", 0), ("1438", 2), ("1500", 3), ("2900", 5), ("9000", 7)] {
        let arrivals = vec![
            clear(MORE, large(udp(0, 1), &[size, 140])),
            clear(MORE, large(v6(udp(0, 3)), &[size, 140])),
            clear(0, large(udp(0, 9), &[size, 200])),
        ];
        inputs.push((format!("size-{name}"), vec![batch(lan, arrivals)]));
    }
    let there = batch(lan, vec![clear(MORE, tcp(0, 1)), clear(0, v6(udp(0, 2)))]);
    let back = batch(wan, vec![sealed(MORE, 0, tcp(1, 0)), sealed(0, 1, v6(udp(2, 0)))]);
    inputs.push(("there-and-back".into(), vec![there, back]));
    inputs.push(("replayed".into(), vec![batch(wan, vec![numbered(), numbered()])]));
    // Hop limit 1, and a frame for nobody.
    let last = [vec![2, 0, 1, 20, 0, 0, 1, 1, 0]].concat();
    inputs.push(("last-hop".into(), vec![batch(lan, vec![clear(0, last)])]));
    let odd = [vec![3], udp(0, 1), vec![1, 2, 0, 64]].concat();
    inputs.push(("odd-frame".into(), vec![batch(wan, vec![odd])]));
    // Making the gateway costs more than a packet: long inputs let much happen in one.
    let all: Vec<Vec<u8>> = inputs.iter().flat_map(|(_, batches)| batches.clone()).collect();
    for step in [1, 5, 7, 11, 13, 17, 19, 23] {
        let some = (0..48).map(|n| all[n * step % all.len()].clone()).collect();
        inputs.push((format!("long-{step}"), some));
    }
    inputs
        .into_iter()
        .map(|(name, batches)| (name, [SHAPE.to_vec(), batches.concat()].concat()))
        .collect()
}
