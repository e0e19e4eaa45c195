//! A captured packet as a line: for people, as JSON, and as the comment in a file.

use api::v1::CapturedPacket;
use config::escaped_line;
use console::output::json_line;
use wire::flow::protocol;
use wire::link::Link;
use wire::{Family, packet::parse_quoted};

/// Seconds of a day.
const DAY_S: u64 = 24 * 60 * 60;

/// `20:51:31.123456 wan in  tcp 10.1.0.5:40000 -> 10.2.0.7:80, 74 bytes: drop unprotected`
pub(super) fn text(packet: &CapturedPacket) -> String {
    let (port, direction) = (name_of(&packet.port), &packet.direction);
    let inner = if packet.inner { " inner" } else { "" };
    let (what, bytes) = (described(packet), packet.original_length);
    let (time, fate) = (time_of_day(packet.unix_ns), fate(packet));
    let line = format!("{time} {port} {direction}{inner} {what}, {bytes} bytes: {fate}");
    // Names are of files: an end of line in one would forge another packet.
    escaped_line(&line).into_owned() + "\n"
}

/// A JSON object on one line.
pub(super) fn json(packet: &CapturedPacket) -> String {
    let mut value = serde_json::to_value(packet).expect("no map key is anything but text");
    let digits: String = packet.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    value["bytes"] = digits.into();
    json_line(&value) + "\n"
}

/// Describes a packet in `name=value` words: all that is known of it apart from its bytes. Programs
/// that read the file may show it on a terminal.
pub(super) fn comment(packet: &CapturedPacket) -> String {
    let verdict = if packet.verdict.is_empty() { "sent" } else { &packet.verdict };
    let layer = if packet.inner { "inner" } else { "outer" };
    let mut words = vec![format!("verdict={verdict}")];
    let mut add = |name: &str, value: &str| {
        if !value.is_empty() {
            words.push(format!("{name}={value}"));
        }
    };
    add("reason", &packet.reason);
    add("to", &packet.to);
    add("opened_from", &packet.opened_from);
    add("inbound_policy", &packet.inbound_policy);
    add("outbound_policy", &packet.outbound_policy);
    add("port", name_of(&packet.port));
    add("direction", &packet.direction);
    add("layer", layer);
    escaped_line(&words.join(" ")).into_owned()
}

/// A packet's verdict, and the policies that decided it.
fn fate(packet: &CapturedPacket) -> String {
    let mut text = match packet.verdict.as_str() {
        "" => "sent; made or released here".to_owned(),
        "drop" => format!("drop {}", packet.reason),
        "forward" => format!("forward to {}", packet.to),
        "protect" => format!("protect for {}", packet.to),
        other => other.to_owned(),
    };
    let mut add = |what: &str, name: &str| {
        if !name.is_empty() {
            text.push_str(&format!("; {what} {name}"));
        }
    };
    add("opened from", &packet.opened_from);
    add("inbound policy", &packet.inbound_policy);
    add("outbound policy", &packet.outbound_policy);
    text
}

/// A port's name; a frame may have none.
fn name_of(port: &str) -> &str {
    if port.is_empty() { "(no port)" } else { port }
}

/// The flow, and of ESP the SPI and the number.
fn described(packet: &CapturedPacket) -> String {
    let bytes = &packet.bytes[..];
    let (ip, ethertype) = match packet.link.as_str() {
        "ip" => (bytes, None),
        _ => match Link::parse(bytes) {
            Some(link) => (bytes.get(link.length..).unwrap_or_default(), Some(link.ethertype)),
            None => return "frame without a link header".into(),
        },
    };
    let Some(flow) = parse_quoted(ip) else {
        return match ethertype {
            Some(number) => format!("ethertype 0x{number:04x}, no readable IP packet"),
            None => "no readable IP packet".into(),
        };
    };
    let mut text = control::flow_text(&flow);
    if flow.protocol == protocol::ESP {
        let header = match flow.family {
            Family::V4 => usize::from(ip[0] & 15) * 4,
            Family::V6 => 40,
        };
        if let Some([a, b, c, d, e, f, g, h]) = ip.get(header..header + 8) {
            let spi = u32::from_be_bytes([*a, *b, *c, *d]);
            let number = u32::from_be_bytes([*e, *f, *g, *h]);
            text.push_str(&format!(" spi 0x{spi:08x} number {number}"));
        }
    }
    text
}

/// Hours, minutes, seconds and microseconds of a day, UTC.
fn time_of_day(unix_ns: u64) -> String {
    let (seconds, microseconds) = (unix_ns / 1_000_000_000 % DAY_S, unix_ns / 1000 % 1_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{microseconds:06}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::build::PacketBuilder;

    fn packet() -> CapturedPacket {
        let bytes = PacketBuilder::v4("10.1.0.5", "10.2.0.7").tcp(40_000, 80).ip();
        CapturedPacket {
            unix_ns: (20 * 3600 + 51 * 60 + 31) * 1_000_000_000 + 123_456_789,
            port: "wan".into(),
            direction: "in".into(),
            link: "ip".into(),
            original_length: bytes.len() as u32,
            bytes,
            verdict: "drop".into(),
            reason: "unprotected".into(),
            inbound_policy: "berlin-net".into(),
            ..CapturedPacket::default()
        }
    }

    #[test]
    fn a_line_says_when_where_what_and_why() {
        assert_eq!(
            text(&packet()),
            "20:51:31.123456 wan in tcp 10.1.0.5:40000 -> 10.2.0.7:80, 40 bytes: drop unprotected; \
             inbound policy berlin-net\n"
        );
        assert_eq!(
            comment(&packet()),
            "verdict=drop reason=unprotected inbound_policy=berlin-net port=wan direction=in \
             layer=outer"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&packet())).unwrap();
        assert!(json["bytes"].as_str().unwrap().starts_with("4500"), "{json}");
        assert_eq!(json["reason"], "unprotected");
    }

    #[test]
    fn a_hostile_name_stays_on_its_line_and_does_nothing_to_a_terminal() {
        let hostile = "a\x1b[2J\u{202e}b\u{9b}1m\r\nc\u{2066}";
        let packet = CapturedPacket {
            port: hostile.into(),
            verdict: "protect".into(),
            to: hostile.into(),
            reason: hostile.into(),
            opened_from: hostile.into(),
            inbound_policy: hostile.into(),
            outbound_policy: hostile.into(),
            ..packet()
        };
        let escaped = "a\\u{1b}[2J\\u{202e}b\\u{9b}1m\\r\\nc\\u{2066}";
        for (shown, names) in [(text(&packet), 5), (comment(&packet) + "\n", 6)] {
            assert_eq!(shown.lines().count(), 1, "{shown:?}");
            assert!(!shown.trim_end_matches('\n').contains(config::is_hidden), "{shown:?}");
            assert_eq!(shown.matches(escaped).count(), names, "{shown:?}");
        }
        let json = json(&packet);
        assert_eq!(json.lines().count(), 1);
        assert!(!json.trim_end().contains(config::is_hidden), "{json:?}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["port"], hostile);
    }

    #[test]
    fn bytes_that_are_no_packet_make_a_line_too() {
        for length in 0..40 {
            for link in ["ip", "ethernet"] {
                let mut bytes = packet().bytes;
                bytes.truncate(length);
                let packet = CapturedPacket { bytes, link: link.into(), ..packet() };
                assert!(text(&packet).ends_with("inbound policy berlin-net\n"));
            }
        }
    }
}
