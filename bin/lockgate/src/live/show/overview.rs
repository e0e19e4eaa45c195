//! The gateway on one screen.

use api::v1;
use console::output::{Numbers, counted, table};
use console::terminal::{Style, Terminal, printable};

use super::tables::{duration, received};

/// Ports, peers and reasons for drops that fit a screen; the rest is counted.
const MAX_PORTS: usize = 8;
const MAX_PEERS: usize = 12;
const MAX_DROPS: usize = 5;
/// Characters of a name; `show` has it whole.
const LONGEST_NAME: usize = 16;
/// Columns of a screen of unknown width.
const WIDTH: usize = 80;

/// The node, its ports and peers, recent drops and warnings.
pub(super) fn overview(status: &v1::Status, terminal: Terminal) -> String {
    let mut text = head(status, terminal);
    text.push_str(&unsettled(status, terminal));
    text.push('\n');
    text.push_str(&ports(status, terminal));
    text.push_str(&peers(status, terminal));
    text.push_str(&connections(status, terminal));
    text.push_str(&drops(status, terminal));
    text.push_str(&warnings(status, terminal));
    text
}

fn head(status: &v1::Status, terminal: Terminal) -> String {
    let v1::Status { node, version, uptime_ms, started, revision, workers, .. } = status;
    let guard = match status.guard.split_once(':') {
        None if status.guard == "intact" => terminal.paint(Style::Good, "guard intact"),
        None => terminal.paint(Style::Bad, &format!("guard {}", printable(&status.guard))),
        Some((word, _)) => terminal.paint(Style::Bad, &format!("guard {word}")),
    };
    let workers = counted((*workers).into(), "worker");
    let name = terminal.paint(Style::Heading, &printable(node));
    format!(
        "{name}: lockgate {version}, running {} (since {started})\nrevision {revision}, {workers}, \
         {guard}, {} on exit\n",
        duration(*uptime_ms),
        if status.on_exit.is_empty() { "closed" } else { &status.on_exit },
    )
}

/// Lines about a change that waits to be confirmed, and about one that the file does not have.
fn unsettled(status: &v1::Status, terminal: Terminal) -> String {
    let waiting = status.waiting.as_ref().map(|v1::Waiting { revision, previous, left_ms }| {
        let seconds = left_ms.div_ceil(1000);
        format!(
            "revision {revision} waits for `lockgate confirm`: {seconds} s left, then revision \
             {previous} comes back"
        )
    });
    let drift = status.drift.iter().filter(|drift| !drift.saved && !drift.text.is_empty());
    let lines = waiting.into_iter().chain(drift.map(|drift| drift.text.clone()));
    lines.map(|line| marked(&line, terminal)).collect()
}

fn ports(status: &v1::Status, terminal: Terminal) -> String {
    let shown = &status.ports[..status.ports.len().min(MAX_PORTS)];
    let more = more(status.ports.len(), MAX_PORTS, "lockgate show port");
    paint(&port_rates(shown, status.rate_time_ms), terminal) + &more
}

/// Ports with their rates.
pub(super) fn port_rates(ports: &[v1::PortActivity], rate_time_ms: u64) -> String {
    let rows = ports.iter().map(|port| {
        vec![
            clipped(&port.name),
            port.side.clone(),
            port.state.clone(),
            si(port.received_packets_per_second),
            si(port.transmitted_packets_per_second),
            si(port.transmitted_bytes_per_second.saturating_mul(8)),
            si(port.dropped_packets_per_second),
        ]
    });
    let header = ["port", "side", "state", "received p/s", "sent p/s", "sent bit/s", "dropped p/s"];
    let title = match rate_time_ms {
        0 => "Ports (no rates yet: the daemon has just started)".to_owned(),
        time => format!("Ports, mean of the last {} s", (time + 500) / 1000),
    };
    table(&title, &header, rows, Numbers(3..=6))
}

fn peers(status: &v1::Status, terminal: Terminal) -> String {
    let mut all: Vec<&v1::PeerActivity> = status.peers.iter().collect();
    // Those with trouble first, then those with most traffic.
    all.sort_by_key(|peer| {
        let [sealed, opened] = [peer.sealed, peer.opened].map(Option::unwrap_or_default);
        (peer.state == "ready", std::cmp::Reverse(sealed.bytes.saturating_add(opened.bytes)))
    });
    let rows = all.iter().take(MAX_PEERS).map(|peer| {
        let [sealed, opened, sealed_rate, opened_rate] =
            [peer.sealed, peer.opened, peer.sealed_per_second, peer.opened_per_second]
                .map(Option::unwrap_or_default);
        vec![
            clipped(&peer.name),
            state_word(&peer.state).to_owned(),
            received(peer.last_received_age_ms).replace(" ago", ""),
            si(opened_rate.bytes.saturating_mul(8)),
            si(opened.bytes),
            si(sealed_rate.bytes.saturating_mul(8)),
            si(sealed.bytes),
            lost(peer),
        ]
    });
    let header = ["peer", "state", "heard", "in bit/s", "in B", "out bit/s", "out B", "lost"];
    let more = more(status.peers.len(), MAX_PEERS, "lockgate show peer");
    paint(&table("Peers", &header, rows, Numbers(3..=7)), terminal) + &more
}

/// A name, cut where it would make the table too wide.
fn clipped(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        None => name.to_owned(),
        Some(_) => name.chars().take(LONGEST_NAME - 1).chain(['…']).collect(),
    }
}

/// A state that may be a sentence, as one word: warnings have the sentence.
fn state_word(state: &str) -> &str {
    match state {
        "ready" | "silent" => state,
        "no route to it" => "no route",
        _ => "no SA",
    }
}

/// The part of a peer's sequence numbers of the last minute that never came.
fn lost(peer: &v1::PeerActivity) -> String {
    match (peer.expected_last_minute, peer.lost_last_minute) {
        (0, _) => "-".into(),
        (_, 0) => "0 %".into(),
        (expected, lost) => match lost as f64 * 100.0 / expected as f64 {
            part @ ..9.95 => format!("{part:.1} %"),
            part => format!("{part:.0} %"),
        },
    }
}

/// Connections that `reflect` rules let begin, and those that found no room.
fn connections(status: &v1::Status, terminal: Terminal) -> String {
    let Some(table) = &status.connections else { return String::new() };
    let v1::ConnectionTable { live, half_open, taken, max, refused, .. } = table;
    let used = taken.saturating_mul(100) / (*max).max(1);
    let (live, half_open) = (si(*live), si(*half_open));
    let refused: u64 = refused.iter().map(|refused| refused.count).sum();
    let refused = match refused {
        0 => String::new(),
        refused => terminal.paint(Style::Warning, &format!(", {} refused", si(refused))),
    };
    format!("Connections: {live}, {half_open} half-open, table {used} % full{refused}\n\n")
}

fn drops(status: &v1::Status, terminal: Terminal) -> String {
    let drops = &status.drops_last_minute;
    if drops.is_empty() {
        return "No drops in the last minute.\n\n".into();
    }
    let header = ["reason", "packets", "meaning"];
    let shown = || drops.iter().take(MAX_DROPS);
    let name = shown().map(|drop| drop.name.len()).fold(header[0].len(), usize::max);
    let packets = shown().map(|drop| drop.count.to_string().len());
    let packets = packets.fold(header[1].len(), usize::max);
    // A space in front of the line, and one on both sides of each cell.
    let indent = 1 + (name + 2) + (packets + 2) + 1;
    let rows = shown().flat_map(|drop| {
        let help = drop.help.split([':', ';', ',']).next().unwrap_or_default();
        let lines = terminal.wrap_at(help, indent, WIDTH).into_iter().enumerate();
        lines.map(|(number, line)| match number {
            0 => vec![drop.name.clone(), drop.count.to_string(), line],
            _ => vec![String::new(), String::new(), line],
        })
    });
    let more = more(drops.len(), MAX_DROPS, "lockgate show counters");
    table("Drops in the last minute", &header, rows, Numbers(1..=1)) + &more
}

fn warnings(status: &v1::Status, terminal: Terminal) -> String {
    let mut warnings = status.troubles.iter().chain(&status.warnings).peekable();
    if warnings.peek().is_none() {
        return terminal.paint(Style::Good, "No warnings.") + "\n";
    }
    let lines = warnings.map(|warning| marked(warning, terminal));
    format!("Warnings\n{}", lines.collect::<String>())
}

/// A sentence that somebody should read, over as many lines as it needs.
fn marked(sentence: &str, terminal: Terminal) -> String {
    let lines = terminal.wrap_at(&printable(sentence), 3, WIDTH).into_iter().enumerate();
    let line = |(place, line): (usize, String)| {
        let mark = if place == 0 { "-" } else { " " };
        format!(" {mark} {}\n", terminal.paint(Style::Warning, &line))
    };
    lines.map(line).collect()
}

/// Says how many there are that are not shown.
fn more(all: usize, shown: usize, command: &str) -> String {
    match all.checked_sub(shown) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more: `{command}`\n\n"),
    }
}

/// A table with its title and its words for states in colours. A colour takes no column, so that
/// it comes after the table is laid out.
fn paint(table: &str, terminal: Terminal) -> String {
    let words = [
        (" down ", Style::Bad),
        (" absent ", Style::Bad),
        (" refused ", Style::Bad),
        (" detached ", Style::Bad),
        (" no route ", Style::Bad),
        (" no SA ", Style::Bad),
        (" silent ", Style::Warning),
        (" up ", Style::Good),
        (" ready ", Style::Good),
    ];
    let lines = table.lines().enumerate().map(|(place, line)| {
        if place < 2 {
            return if line.is_empty() {
                String::new()
            } else {
                terminal.paint(Style::Heading, line)
            };
        }
        let mut line = printable(line);
        for (word, style) in words {
            line = line.replacen(word, &format!(" {} ", terminal.paint(style, word.trim())), 1);
        }
        line
    });
    lines.map(|line| line + "\n").collect()
}

/// A number with at most four digits: `950`, `12.3 k`, `1.2 G`.
fn si(number: u64) -> String {
    const PREFIXES: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if number < 1000 {
        return number.to_string();
    }
    let mut value = number as f64 / 1000.0;
    let mut place = 0;
    while value >= 999.5 && place + 1 < PREFIXES.len() {
        value /= 1000.0;
        place += 1;
    }
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$} {}", PREFIXES[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> v1::Status {
        let port = |name: &str, state: &str| v1::PortActivity {
            name: name.into(),
            side: "unprotected".into(),
            state: state.into(),
            received_packets_per_second: 1_234_567,
            transmitted_packets_per_second: 999_999,
            transmitted_bytes_per_second: 1_250_000_000,
            ..v1::PortActivity::default()
        };
        let volume = Some(v1::Volume { packets: 1, bytes: 123_456_789_012 });
        let peer = |name: &str, state: &str| v1::PeerActivity {
            name: name.into(),
            state: state.into(),
            last_received_age_ms: Some(200_000_000),
            sealed: volume,
            opened: volume,
            sealed_per_second: volume,
            opened_per_second: volume,
            expected_last_minute: 1000,
            lost_last_minute: 12,
            ..v1::PeerActivity::default()
        };
        let drop = |name: &str| v1::Drop {
            name: name.into(),
            count: 7,
            help: "no policy matches, and what matches nothing is dropped".into(),
        };
        let long = v1::Drop {
            name: "sequence_not_reserved".into(),
            count: 1_234_567,
            help: "an ICMP message of ours that quotes a protected packet and would have left in \
                   cleartext by a BYPASS policy; add a PROTECT policy"
                .into(),
        };
        v1::Status {
            node: "gw-a".into(),
            version: "0.1.0".into(),
            uptime_ms: 11_000_000,
            started: "2026-08-30T12:00:00.000Z".into(),
            revision: 4,
            workers: 1,
            guard: "intact".into(),
            on_exit: "closed".into(),
            ports: vec![port("lan", "up"), port("wan", "down")],
            peers: vec![peer("berlin", "ready"), peer("a-long-peer-name-of-a-city", "silent")],
            drops_last_minute: vec![drop("no_match"), long],
            warnings: vec!["port wan is down: eth0 has no carrier, and that is long ".repeat(3)],
            rate_time_ms: 5001,
            last_minute_ms: 60_000,
            connections: Some(v1::ConnectionTable {
                max: 262_144,
                live: 12_345,
                half_open: 678,
                taken: 20_000,
                refused: vec![
                    v1::RefusedConnections { bound: "max".into(), count: 1 },
                    v1::RefusedConnections { bound: "half_open".into(), count: 11_700 },
                ],
                ..v1::ConnectionTable::default()
            }),
            ..v1::Status::default()
        }
    }

    #[test]
    fn everything_stands_on_one_screen_of_eighty_columns() {
        for terminal in [Terminal::plain(None), Terminal::plain(Some(80))] {
            let text = overview(&status(), terminal);
            for words in [
                "gw-a: lockgate 0.1.0, running 3 h 3 min",
                "revision 4, 1 worker, guard intact",
                "Ports, mean of the last 5 s",
                "1.2 M",
                "10.0 G",
                "123 G",
                "2 d 7 h",
                "a-long-peer-nam…",
                "1.2 %",
                "Connections: 12.3 k, 678 half-open, table 7 % full, 11.7 k refused",
                "no_match",
                "by a BYPASS policy",
                "port wan is down",
            ] {
                assert!(text.contains(words), "{words} in\n{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.lines().count() <= 26, "{text}");
            // Trouble comes first.
            assert!(text.find("a-long-peer").unwrap() < text.find("berlin").unwrap());
        }
    }

    #[test]
    fn changes_that_wait_or_are_not_saved_and_lasting_trouble_are_told() {
        let waiting = Some(v1::Waiting { revision: 4, previous: 3, left_ms: 29_500 });
        let drift =
            Some(v1::Drift { changes: 2, text: "2 changes not saved".into(), saved: false });
        let troubles = vec!["revision 4 is not on disk".into()];
        let status = v1::Status { waiting, drift, troubles, ..status() };
        let text = overview(&status, Terminal::plain(None));
        for words in [
            " - revision 4 waits for `lockgate confirm`: 30 s left",
            " - 2 changes not saved",
            " - revision 4 is not on disk",
        ] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut status = status();
        status.peers = vec![status.peers[0].clone(); 100];
        let text = overview(&status, Terminal::plain(None));
        assert!(text.contains("and 88 more: `lockgate show peer`"), "{text}");
        assert!(text.lines().count() < 40);
    }

    #[test]
    fn colours_change_no_column() {
        let coloured = overview(&status(), Terminal::coloured(80));
        assert!(coloured.contains("\x1b[31mdown\x1b[0m") && coloured.contains("\x1b[33msilent"));
        let mut plain = coloured;
        for code in ["0", "1", "2", "31", "32", "33"] {
            plain = plain.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(plain, overview(&status(), Terminal::plain(Some(80))));
    }

    #[test]
    fn numbers_have_few_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0 k"),
            (12_340, "12.3 k"),
            (99_949, "99.9 k"),
            (123_456, "123 k"),
            (999_499, "999 k"),
            (999_500, "1.0 M"),
            (u64::MAX, "18.4 E"),
        ] {
            assert_eq!(si(number), text);
        }
    }
}
