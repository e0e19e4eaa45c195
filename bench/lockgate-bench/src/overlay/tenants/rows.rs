//! Rounds as rows: medians with their spread, sums of what was lost; the tables.

use comfy_table::{Table, presets};
use serde::Serialize;

use super::super::super::measure::Figure;
use super::super::{WORKERS, Workers, published::Ours};
use super::{CONNECTIONS, Crossing, PINGS, STREAM_INTERVAL, Turn};

/// The figures of this part.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct Figures {
    rows: Vec<Row>,
    crossings: Vec<Crossing>,
}

/// The median of the rounds, and the distance of the quartiles as a part of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Median {
    median: f64,
    spread: f64,
}

impl Median {
    /// `None`: there are no figures.
    fn of(figures: &[f64]) -> Option<Median> {
        let Figure { median, spread, .. } = Figure::of(figures);
        (!figures.is_empty()).then_some(Median { median, spread })
    }
}

/// Round trips of a way.
#[derive(Clone, Copy, Debug, Serialize)]
struct PingRow {
    p50_us: Median,
    p99_us: Median,
    p999_us: Median,
    sent: u64,
    answered: u64,
}

/// Numbered packets of a way.
#[derive(Clone, Copy, Debug, Serialize)]
struct StreamRow {
    packets_per_s: Median,
    sent: usize,
    lost: usize,
    reordered: usize,
}

/// One way.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    ping: Option<PingRow>,
    /// Gbit/s of one connection, and of several.
    tcp_gbps: Option<Median>,
    tcp_several_gbps: Option<Median>,
    stream: Option<StreamRow>,
    /// Of the packets of several connections that the gateway received, the percentage that the
    /// kernel answered.
    percent_in_kernel: Option<Median>,
}

impl Row {
    fn of(what: &'static str, turns: &[Turn]) -> Row {
        let median = |of: &dyn Fn(&Turn) -> Option<f64>| {
            Median::of(&turns.iter().filter_map(of).collect::<Vec<f64>>())
        };
        let percentile =
            |part| median(&|turn| turn.ping.as_ref().and_then(|ping| ping.percentile_us(part)));
        let pings = || turns.iter().filter_map(|turn| turn.ping.as_ref());
        let ping = match [0.5, 0.99, 0.999].map(percentile) {
            [Some(p50_us), Some(p99_us), Some(p999_us)] => Some(PingRow {
                p50_us,
                p99_us,
                p999_us,
                sent: pings().map(|ping| ping.sent).sum(),
                answered: pings().map(|ping| ping.received).sum(),
            }),
            _ => None,
        };
        let streams = || turns.iter().filter_map(|turn| turn.stream);
        let rate = median(&|turn| turn.stream.map(|stream| stream.packets_per_s));
        let stream = rate.map(|packets_per_s| StreamRow {
            packets_per_s,
            sent: streams().map(|stream| stream.sent).sum(),
            lost: streams().map(|stream| stream.lost).sum(),
            reordered: streams().map(|stream| stream.reordered).sum(),
        });
        Row {
            what,
            ping,
            tcp_gbps: median(&|turn| turn.tcp[0]),
            tcp_several_gbps: median(&|turn| turn.tcp[1]),
            stream,
            percent_in_kernel: median(&|turn| turn.percent_in_kernel),
        }
    }

    fn cells(&self) -> [String; 10] {
        let time = |of: fn(&PingRow) -> Median| {
            self.ping.as_ref().map_or("-".to_owned(), |ping| format!("{:.0}", of(ping).median))
        };
        let spread = |median: Option<Median>, digits: usize| {
            median.map_or("-".to_owned(), |Median { median, spread }| {
                format!("{median:.digits$} ± {:.0} %", spread * 100.0)
            })
        };
        let count = |of: fn(&StreamRow) -> usize| {
            self.stream.as_ref().map_or("-".to_owned(), |stream| of(stream).to_string())
        };
        let rate = self.stream.map(|stream| stream.packets_per_s);
        let in_kernel = self.percent_in_kernel.map(|percent| format!("{:.0} %", percent.median));
        [
            self.what.to_owned(),
            spread(self.ping.map(|ping| ping.p50_us), 0),
            time(|ping| ping.p99_us),
            time(|ping| ping.p999_us),
            spread(self.tcp_gbps, 2),
            spread(self.tcp_several_gbps, 2),
            spread(rate, 0),
            count(|stream| stream.lost),
            count(|stream| stream.reordered),
            in_kernel.unwrap_or("-".to_owned()),
        ]
    }
}

impl Figures {
    /// The rows of some ways, from their turns, and those of the crossings.
    pub(super) fn of<'t>(
        ways: impl Iterator<Item = (&'static str, &'t Vec<Turn>)>,
        crossings: Vec<Crossing>,
    ) -> Figures {
        let rows = ways.map(|(what, turns)| Row::of(what, turns)).collect();
        Figures { rows, crossings }
    }

    /// The tables and their words.
    pub(in super::super) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "way",
            "ping p50 µs",
            "p99",
            "p99.9",
            "TCP Gbit/s",
            &format!("TCP × {CONNECTIONS}"),
            "stream packets/s",
            "lost",
            "reordered",
            "in kernel",
        ]);
        self.rows.iter().for_each(|row| {
            table.add_row(row.cells());
        });
        let mut crossings = Table::new();
        crossings.load_style(presets::NOTHING);
        crossings.set_header([
            "over after",
            "before packets/s",
            "after",
            "sent",
            "lost",
            "reordered",
            "deferred",
        ]);
        for row in &self.crossings {
            crossings.add_row([
                format!("{:.1} s", row.after_s),
                format!("{:.0}", row.before_per_s),
                format!("{:.0}", row.after_per_s),
                row.sent.to_string(),
                row.lost.to_string(),
                row.reordered.to_string(),
                row.deferred.to_string(),
            ]);
        }
        let offered = 1.0 / STREAM_INTERVAL.as_secs_f64();
        format!(
            "\n{table}\n\nMedians of the rounds ± IQR; {PINGS} pings a round; inner MTU 1450. \
             TCP: one connection, and {CONNECTIONS}. stream: numbered UDP packets, {offered:.0} a \
             second offered; lost and reordered of all rounds. in kernel: of the packets of \
             TCP × {CONNECTIONS} that the gateway received, those that the kernel answered.\n\n\
             A stream whose endpoints take places in the kernel, one line a round\n\n\
             {crossings}\n\nover after: from its first packet until the kernel had both \
             endpoints. deferred: times that one stayed out because a packet waited for a \
             worker.\n"
        )
    }

    /// Notes what stands beside published figures.
    pub(in super::super) fn note(&self, ours: &mut Ours) {
        let of = |what: &str| self.rows.iter().find(|row| row.what == what);
        let ping = |row: Option<&Row>| Some(row?.ping?.p50_us.median / 1000.0);
        let tcp = |row: Option<&Row>| Some(row?.tcp_several_gbps?.median);
        for Workers { count, user, kernel } in WORKERS {
            let both = [user, kernel].map(|(what, _)| of(what));
            if both.iter().any(Option::is_some) {
                let line = ours.line(count);
                line.ping_ms = both.map(ping);
                line.tcp_gbps = both.map(tcp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use netlab::ping::Answers;

    use super::super::super::super::overlay::published;
    use super::super::Steady;
    use super::*;

    fn turn(worst_us: f64, gbps: f64, reordered: usize) -> Turn {
        let mut times_us = vec![40.0; 988];
        times_us.extend([90.0; 10]);
        times_us.extend([worst_us; 2]);
        let ping = Answers { sent: 1001, received: 1000, times_us, ..Answers::default() };
        let stream = Steady { packets_per_s: 19_990.0, sent: 20_000, lost: 1, reordered };
        Turn {
            ping: Some(ping),
            tcp: [Some(gbps), Some(2.0 * gbps)],
            stream: Some(stream),
            percent_in_kernel: Some(99.0),
        }
    }

    fn cells(text: &str, name: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        let cells = line.unwrap_or_default().split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    }

    // AX-17, BM-4f: round trips with their tails, rates of packets, throughput, all in one table.
    #[test]
    fn a_way_has_its_latency_its_throughput_and_its_packets() {
        let turns = [turn(300.0, 1.0, 0), turn(500.0, 1.2, 2), turn(400.0, 1.4, 0)];
        let crossing = Crossing {
            after_s: 2.5,
            before_per_s: 19_000.0,
            after_per_s: 19_500.0,
            sent: 70_000,
            lost: 3,
            reordered: 5,
            deferred: 1,
        };
        let only_tcp = Turn { tcp: [None, Some(3.0)], ..Turn::default() };
        let names = ["kernel tier", "kernel, connection", "worker"];
        let all = [turns.to_vec(), vec![only_tcp], turns.to_vec()];
        let figures = Figures::of(names.into_iter().zip(&all), vec![crossing]);
        let text = figures.text();
        let tier = cells(&text, "kernel tier");
        let expected = ["40 ± 0 %", "90", "400", "1.20 ± 17 %", "2.40 ± 17 %"];
        assert_eq!(tier[1..6], expected, "{text}");
        assert_eq!(tier[6..], ["19990 ± 0 %", "3", "2", "99 %"], "{text}");
        let connection = cells(&text, "kernel, connection");
        assert_eq!(connection[1..], ["-", "-", "-", "-", "3.00 ± 0 %", "-", "-", "-", "-"]);
        let crossing = cells(&text, "2.5 s");
        assert_eq!(crossing[1..], ["19000", "19500", "70000", "3", "5", "1"], "{text}");

        let mut ours = Ours::default();
        figures.note(&mut ours);
        let beside = published::text(&ours);
        assert_eq!(cells(&beside, "Lockgate")[1..6], ["1", "0.040", "0.040", "2.40", "2.40"]);
        let written = serde_json::to_value(&figures).unwrap();
        assert_eq!(written["rows"][0]["ping"]["answered"], 3000);
        assert_eq!(written["rows"][0]["stream"]["reordered"], 2);
    }
}
