//! `replay`, the real binary.

mod common;

use common::{Place, host_mac, lan_mac};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use wire::build::PacketBuilder;

fn from_a(packet: &PacketBuilder) -> Vec<u8> {
    packet.frame(lan_mac(b'a'), host_mac(b'a'), None)
}

/// Packets of both families, of every size around the padding's edges.
fn mixed() -> Vec<PacketBuilder> {
    let v4 = || PacketBuilder::v4("10.1.0.10", "10.2.0.10");
    let v6 = || PacketBuilder::v6("2001:db8:1::10", "2001:db8:2::10");
    let mut packets: Vec<PacketBuilder> =
        (0..40).map(|size| v4().udp(5, 6).identification(size).payload_of(size as usize)).collect();
    packets.extend((0..40).map(|size| v6().udp(5, size as u16).payload_of(1300 + size)));
    packets.push(v4().options(&[0x94, 4, 0, 0]).icmp(8, 0, [1, 2, 3, 4]));
    packets.push(v6().extension(60, &[]).tcp(1, 2).bad_upper_checksum());
    packets
}

/// Replays A's traffic through A and what leaves through B.
fn through_a_and_b(place: &Place, packets: &[PacketBuilder]) -> (Value, Value) {
    let frames: Vec<Vec<u8>> = packets.iter().map(from_a).collect();
    place.capture("lan.pcap", &frames);
    let a = place.json(&["replay", "--config", "a.toml", "lan.pcap", "a.pcap"]);
    let wan = ["--in", "wan=a.wan.pcap", "--keys", "a.keys", "b.pcap"];
    let b = place.json(&[&["replay", "--config", "b.toml"], &wan[..]].concat());
    (a, b)
}

#[test]
fn what_a_seals_b_opens_and_it_is_the_same_but_for_the_hop_limit() {
    let place = Place::with_gateways();
    let packets = mixed();
    let (a, b) = through_a_and_b(&place, &packets);
    let expected: Vec<Vec<u8>> = packets
        .iter()
        .map(|packet| packet.clone().hop_limit(62).frame(host_mac(b'b'), lan_mac(b'b'), None))
        .collect();
    assert_eq!(place.packets("b.lan.pcap"), expected);
    assert_eq!(place.packets("b.pcap"), expected);
    for report in [&a, &b] {
        assert_eq!(report["ledger_imbalance"], 0);
        assert_eq!(report["drops"], serde_json::json!([]));
    }
    assert_eq!(a["verdicts"][0]["packets"], packets.len());
    let sealed = place.packets("a.wan.pcap");
    assert!(sealed.iter().all(|frame| frame[14 + 9] == 50), "nothing but ESP left");
}

#[test]
fn without_the_keys_of_the_other_replay_nothing_opens_and_the_report_says_why() {
    let place = Place::with_gateways();
    let packets = mixed();
    through_a_and_b(&place, &packets);
    let b = place.json(&["replay", "--config", "b.toml", "--in", "wan=a.wan.pcap", "b.pcap"]);
    assert_eq!(b["drops"][0]["reason"], "integrity", "the configured key seals nothing (I9)");
    assert_eq!(b["drops"][0]["packets"], packets.len());
    assert!(b["warnings"][0].as_str().unwrap().contains("--keys"));
    let wrong = ["--in", "wan=a.wan.pcap", "--keys", "a.keys", "c.pcap"];
    let c = place.json(&[&["replay", "--config", "a.toml"], &wrong[..]].concat());
    assert!(c["warnings"].to_string().contains("none of these keys"));
}

#[test]
fn keys_are_fresh_every_time_and_closed_to_others() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[from_a(&mixed()[0])]);
    let mut seen = Vec::new();
    for _ in 0..2 {
        place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
        for name in ["out.keys", "out.esp_sa", "out.pcap", "out.wan.pcap"] {
            let mode = std::fs::metadata(place.file(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
        }
        let keys = place.text("out.keys");
        let hex = keys.lines().last().unwrap().split(' ').nth(3).unwrap().to_owned();
        assert!(place.text("out.esp_sa").contains(&format!("\"0x{hex}\"")));
        assert!(!seen.contains(&hex) && !place.text("a-c.keys").contains(&hex));
        seen.push(hex);
    }
}

#[test]
fn several_inputs_are_merged_and_each_port_has_its_own_output() {
    let place = Place::with_gateways();
    let packets = mixed();
    let frames: Vec<Vec<u8>> = packets.iter().map(from_a).collect();
    let (even, odd): (Vec<_>, Vec<_>) =
        frames.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    place.capture("even.pcap", &even.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>());
    place.capture("odd.pcap", &odd.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>());
    let to_us = PacketBuilder::v4("10.1.0.10", "10.1.0.1").udp(1, 2);
    place.capture("us.pcap", &[from_a(&to_us)]);
    let inputs =
        ["--in", "lan=even.pcap", "--in", "lan=odd.pcap", "--in", "lan=us.pcap", "out.pcap"];
    let json = place.json(&[&["replay", "--config", "a.toml"], &inputs[..]].concat());
    assert_eq!(json["inputs"].as_array().unwrap().len(), 3);
    assert_eq!(place.packets("out.wan.pcap").len(), packets.len());
    assert_eq!(place.packets("out.host.pcap"), [to_us.ip()], "for Linux, without link header");
    assert!(!place.file("out.lan.pcap").exists());
}

#[test]
fn captures_of_an_earlier_run_do_not_stay_beside_a_new_one() {
    let place = Place::with_gateways();
    let to_us = PacketBuilder::v4("10.1.0.10", "10.1.0.1").udp(1, 2);
    place.capture("us.pcap", &[from_a(&to_us)]);
    place.capture("lan.pcap", &[from_a(&mixed()[0])]);
    place.succeeds(&["replay", "--config", "a.toml", "us.pcap", "out.pcap"]);
    assert!(place.file("out.host.pcap").exists());
    place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    assert!(!place.file("out.host.pcap").exists() && place.file("out.wan.pcap").exists());
}

#[test]
fn a_bad_capture_is_told_by_file_and_packet_and_destroys_nothing() {
    let place = Place::with_gateways();
    place.capture("good.pcap", &[from_a(&mixed()[0]), from_a(&mixed()[1]), from_a(&mixed()[2])]);
    place.succeeds(&["replay", "--config", "a.toml", "good.pcap", "out.pcap"]);
    let before: Vec<Vec<u8>> = ["out.pcap", "out.wan.pcap", "out.keys", "out.esp_sa"]
        .map(|name| std::fs::read(place.file(name)).unwrap())
        .into();
    let names = place.names();
    let mut bytes = std::fs::read(place.file("good.pcap")).unwrap();
    bytes.truncate(bytes.len() - 5);
    std::fs::write(place.file("short.pcap"), bytes).unwrap();
    place.write("text.pcap", "this is no capture at all");
    for (file, words) in [
        ("short.pcap", &["short.pcap: packet 3: ", "ends in the middle"][..]),
        ("text.pcap", &["text.pcap: neither pcap nor pcapng"]),
        ("nowhere.pcap", &["nowhere.pcap: cannot open"]),
    ] {
        place.fails(1, &["replay", "--config", "a.toml", file, "out.pcap"], words);
    }
    for (name, before) in ["out.pcap", "out.wan.pcap", "out.keys", "out.esp_sa"].iter().zip(before)
    {
        assert_eq!(std::fs::read(place.file(name)).unwrap(), before, "{name}");
    }
    std::fs::remove_file(place.file("short.pcap")).unwrap();
    std::fs::remove_file(place.file("text.pcap")).unwrap();
    assert_eq!(place.names(), names, "no temporary file stays");
}

#[test]
fn nothing_that_is_read_and_no_foreign_key_file_is_overwritten() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[from_a(&mixed()[0])]);
    place.capture("x.lan.pcap", &[from_a(&mixed()[0])]);
    let before = std::fs::read(place.file("lan.pcap")).unwrap();
    let replay = ["replay", "--config", "a.toml"];
    place.fails(2, &[&replay[..], &["lan.pcap", "lan.pcap"]].concat(), &["overwritten"]);
    place.fails(2, &[&replay[..], &["x.lan.pcap", "x.pcap"]].concat(), &["overwritten"]);
    assert_eq!(std::fs::read(place.file("lan.pcap")).unwrap(), before);
    let keys = place.text("a-b.keys");
    // a-b.keys lies where the keys of a-b.pcap would go.
    place.fails(1, &[&replay[..], &["lan.pcap", "a-b.pcap"]].concat(), &["a-b.keys"]);
    assert_eq!(place.text("a-b.keys"), keys);
    assert!(!place.file("a-b.pcap").exists());
    place.fails(1, &[&replay[..], &["lan.pcap", "/dev/null"]].concat(), &["not a regular file"]);
}

#[test]
fn a_capture_of_another_link_type_is_refused() {
    let place = Place::with_gateways();
    let path = place.file("raw.pcap");
    let (link, resolution) = (io::LinkType::Raw, io::Resolution::Microsecond);
    let mut writer = io::CaptureWriter::create(&path, link, resolution).unwrap();
    writer.write(0, &mixed()[0].ip()).unwrap();
    writer.finish().unwrap();
    let replay = ["replay", "--config", "a.toml"];
    place.fails(
        1,
        &[&replay[..], &["raw.pcap", "out.pcap"]].concat(),
        &["raw.pcap", "an IP header"],
    );
    // From this machine itself it is what is asked for.
    let from_host = PacketBuilder::v4("10.1.0.1", "10.2.0.10").udp(1, 2).ip();
    let mut writer = io::CaptureWriter::create(&path, link, resolution).unwrap();
    writer.write(0, &from_host).unwrap();
    writer.finish().unwrap();
    let json = place.json(&[&replay[..], &["--in", "host=raw.pcap", "out.pcap"]].concat());
    assert_eq!(json["verdicts"][0]["verdict"], "protect");
}

#[test]
fn packets_cut_short_by_the_capture_are_said_loudly() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[from_a(&mixed()[30])]);
    let mut bytes = std::fs::read(place.file("lan.pcap")).unwrap();
    // The record's second length: what the packet had on the wire.
    let original = u32::from_le_bytes(bytes[36..40].try_into().unwrap()) + 10;
    bytes[36..40].copy_from_slice(&original.to_le_bytes());
    std::fs::write(place.file("lan.pcap"), bytes).unwrap();
    let text = place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    assert!(text.contains("WARNING: lan.pcap: 1 of 1 packets TRUNCATED"), "{text}");
}

#[test]
fn frames_for_another_mac_address_are_left_alone_and_the_report_says_so() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[mixed()[0].frame([2, 9, 9, 9, 9, 9], host_mac(b'a'), None)]);
    let json = place.json(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    assert_eq!(
        json["verdicts"],
        serde_json::json!([{"verdict": "host", "to": null, "packets": 1}])
    );
    assert!(json["warnings"][0].as_str().unwrap().contains("02:09:09:09:09:09"), "{json}");
}

#[test]
fn what_is_dropped_by_verdict_and_by_reason_adds_up() {
    let place = Place::with_gateways();
    let nobody = PacketBuilder::v4("10.1.0.10", "9.9.9.9").udp(5, 53);
    let telnet = PacketBuilder::v4("10.1.0.10", "10.2.0.10").tcp(5, 23);
    let text = place.text("a.toml");
    let (known, _) = text.rsplit_once("[[neighbour]]").unwrap();
    place.write("a.toml", known);
    place.capture("lan.pcap", &[from_a(&nobody), from_a(&telnet)]);
    let text = place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    let line = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    assert!(line("hold (dropped: no_neighbour)").ends_with(" 1"), "{text}");
    assert!(line("drop ").ends_with(" 1"), "{text}");
    assert!(line("no_neighbour ").contains(" 1 "), "{text}");
    assert!(text.contains("1 packet had no MAC address to go to"), "{text}");
}

/// A fragment that waits for its first one has one verdict in the report, its last.
#[test]
fn a_fragment_that_waits_is_counted_once() {
    let place = Place::with_gateways();
    let of =
        |number| PacketBuilder::v4("10.1.0.10", "10.2.0.10").identification(number).payload_of(24);
    let later = |number| from_a(&of(number).protocol(6).fragment(9, false));
    let first = from_a(&of(1).tcp(5, 80).fragment(0, true).payload_of(52));
    place.capture("lan.pcap", &[later(1), later(2), first]);
    let json = place.json(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    let packets = |verdict: &str| {
        let lines = json["verdicts"].as_array().unwrap();
        let line = lines.iter().find(|line| line["verdict"] == verdict);
        line.map_or(0, |line| line["packets"].as_u64().unwrap())
    };
    assert_eq!(["protect", "drop", "hold"].map(packets), [2, 1, 0], "{json}");
    assert_eq!(json["drops"][0]["reason"], "fragment_timeout", "{json}");
}

#[test]
fn packets_larger_than_a_frame_are_said_with_their_likely_cause() {
    let place = Place::with_gateways();
    let large = PacketBuilder::v4("10.1.0.10", "10.2.0.10").udp(5, 6).payload_of(9000);
    place.capture("lan.pcap", &[from_a(&large)]);
    let text = place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    assert!(text.contains("WARNING: 1 packet is larger than a frame: segmentation"), "{text}");
}

#[test]
fn configured_keys_are_not_taken_for_those_of_a_replay() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[from_a(&mixed()[0])]);
    let args = ["replay", "--config", "a.toml", "--keys", "b-a.keys", "lan.pcap", "out.pcap"];
    place.fails(1, &args, &["b-a.keys:2:1: ", "`--keys` takes OUT.keys of another replay"]);
}

#[test]
fn a_replay_with_a_flow_cache_decides_the_same_and_says_which_tier_did() {
    let place = Place::with_gateways();
    let text = place.text("a.toml");
    let frames: Vec<Vec<u8>> = mixed().iter().chain(&mixed()).map(from_a).collect();
    place.capture("lan.pcap", &frames);
    let mut reports = Vec::new();
    for cache in ["flows = \"off\"", "flows = \"10k\"\nuse = \"always\""] {
        assert!(!text.contains("[cache]"));
        place.write("cached.toml", &format!("{text}\n[cache]\n{cache}\n"));
        let report = place.json(&["replay", "--config", "cached.toml", "lan.pcap", "out.pcap"]);
        let inner: usize = place.packets("out.wan.pcap").len();
        assert_eq!(inner, frames.len(), "{report}");
        reports.push(report);
    }
    for what in ["verdicts", "policies", "drops", "ledger"] {
        assert_eq!(reports[0][what], reports[1][what], "{what}");
    }
    let decisions = |report: &Value, tier: &str| {
        let tiers = report["tiers"].as_array().unwrap();
        let line = tiers.iter().find(|line| line["tier"] == tier).expect("the tier");
        line["decisions"].as_u64().unwrap()
    };
    assert_eq!(decisions(&reports[0], "cache"), 0);
    assert!(decisions(&reports[0], "classifier") >= frames.len() as u64 / 2);
    assert!(decisions(&reports[1], "cache") >= frames.len() as u64 / 2);
    assert!(decisions(&reports[1], "classifier") < decisions(&reports[0], "classifier"));
}

#[test]
fn tables_line_up() {
    let place = Place::with_gateways();
    let frames: Vec<Vec<u8>> = mixed().iter().map(from_a).collect();
    place.capture("lan.pcap", &frames);
    let text = place.succeeds(&["replay", "--config", "a.toml", "lan.pcap", "out.pcap"]);
    let ledger: Vec<&str> =
        text.lines().skip_while(|line| *line != "Ledger").skip(1).take(5).collect();
    assert_eq!(ledger.len(), 5);
    assert!(ledger.iter().all(|line| line.len() == ledger[0].len()), "{ledger:#?}");
}

#[test]
fn inputs_that_make_no_sense_end_with_2() {
    let place = Place::with_gateways();
    place.capture("lan.pcap", &[from_a(&mixed()[0])]);
    let replay = ["replay", "--config", "a.toml"];
    for (args, words) in [
        (&["out.pcap"][..], "nothing to replay"),
        (&["--in", "lan=lan.pcap", "lan.pcap", "out.pcap"], "not both"),
        (&["--in", "lna=lan.pcap", "out.pcap"], "lan, wan, host"),
        (&["--in", "lan.pcap", "out.pcap"], "PORT=FILE"),
    ] {
        place.fails(2, &[&replay[..], args].concat(), &[words]);
    }
    assert!(!place.file("out.pcap").exists());
}
