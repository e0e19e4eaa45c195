//! Writes the seeds of the fuzz corpora: `cargo run -p fuzz-replay --example seeds -- fuzz/corpus`.
//!
//! Seeds are few and each shows the fuzzer one thing; what it finds from there `cargo fuzz cmin`
//! makes small again.

use std::path::Path;

use wire::build::{PacketBuilder, tcp_flags};

/// A target's seeds: a name and the input.
type Seeds = Vec<(String, Vec<u8>)>;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: seeds FOLDER");
        std::process::exit(2);
    };
    for (target, seeds) in [("parse", parse()), ("esp_open", esp_open())] {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, input) in &seeds {
            std::fs::write(folder.join(format!("seed-{name}")), input)?;
        }
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
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

/// The first byte of an input is suite, numbers, outer family and what is done: see `esp_open`.
fn esp_open() -> Seeds {
    let mut seeds = Seeds::new();
    let inner = packets()[0].1.ip();
    for way in 0..8u8 {
        let as_it_is = [&[way, 0][..], &[1, 2, 3, 4, 0, 0, 0, 1], &inner].concat();
        seeds.push((format!("raw-{way}"), as_it_is));
        // Family, class, number, no changes, not shortened.
        let head = [way | 8, 0, 0xb8, 0, 0, 0, 1 + way, 0, 0];
        seeds.push((format!("sealed-{way}"), [&head[..], &inner].concat()));
        let head = [way | 8, 1, 0, 0, 0, 1, 0, 1, 0, way, 0x80, 0];
        seeds.push((format!("changed-{way}"), [&head[..], &inner].concat()));
        for (name, trailer) in [
            ("good", &[1u8, 2, 2, 4][..]),
            ("bad", &[1, 3, 2, 4]),
            ("long", &[0, 0, 255, 41]),
            ("dummy", &[1, 2, 2, 59]),
        ] {
            let text = [&[way | 16, 0, 0, 0, way + 1][..], &inner, trailer].concat();
            seeds.push((format!("text-{name}-{way}"), text));
        }
    }
    let cut = [&[8u8, 0, 0, 0, 0, 0, 9, 0, 4][..], &inner].concat();
    seeds.push(("cut".into(), cut));
    seeds
}
