//! Figures that Arion published, with Lockgate's beside them.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

/// Figures of one number of sockets, which are workers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Line {
    /// Round trip in ms: through user space, and in the kernel.
    pub(super) ping_ms: [Option<f64>; 2],
    /// TCP in Gbit/s, likewise.
    pub(super) tcp_gbps: [Option<f64>; 2],
    /// Packets a second at most, of small packets.
    pub(super) packets: Option<f64>,
    /// Mbit/s at most, of large packets.
    pub(super) mbps: Option<f64>,
}

/// Figures published of Arion, by its sockets: 24 CPUs, a 10 GbE card (BM-4a … BM-4e).
const ARION: [(u32, Line); 5] = [
    (1, published([0.623, 0.598], [4.69, 4.74], 859728.0, 9691.0)),
    (2, published([0.547, 0.635], [4.58, 4.98], 869994.0, 9708.0)),
    (4, published([0.629, 0.715], [5.44, 5.06], 855856.0, 9433.0)),
    (8, published([0.77, 0.752], [5.86, 5.53], 861414.0, 9434.0)),
    (16, published([0.673, 0.649], [4.92, 4.82], 842844.0, 9354.0)),
];

/// TCP with a large MTU and without, as Arion's benchmark says (BM-4i).
const STREAMS: &str = "Arion published, of one TCP stream in Mbit/s: MTU 1500 direct 5031.76, by \
    its wing 4995.24, with XDP in the driver 5292.14, with its direct path 4275.28, by Zeta \
    3073.6; MTU 9000 direct 9426.22, by its wing 9586.03. Lockgate's ports take no jumbo frames \
    for AF_XDP: it has no figure at 9000.";

const fn published(ping_ms: [f64; 2], tcp_gbps: [f64; 2], packets: f64, mbps: f64) -> Line {
    let (ping_ms, tcp_gbps) = (some(ping_ms), some(tcp_gbps));
    Line { ping_ms, tcp_gbps, packets: Some(packets), mbps: Some(mbps) }
}

const fn some([user, kernel]: [f64; 2]) -> [Option<f64>; 2] {
    [Some(user), Some(kernel)]
}

/// Lockgate's figures, by workers.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Ours(BTreeMap<u32, Line>);

impl Ours {
    /// Returns the figures of so many workers, to fill in.
    pub(super) fn line(&mut self, workers: u32) -> &mut Line {
        self.0.entry(workers).or_default()
    }
}

/// The table (BM-4f) and its words.
pub(super) fn text(ours: &Ours) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "gateway",
        "sockets",
        "ping ms, user",
        "kernel",
        "TCP Gbit/s, user",
        "kernel",
        "packets/s",
        "Mbit/s",
    ]);
    let named = |name, (sockets, line): (u32, Line)| (name, sockets, line);
    let arion = ARION.into_iter().map(|line| named("Arion", line));
    let ours = ours.0.iter().map(|(workers, line)| named("Lockgate", (*workers, *line)));
    for (name, sockets, line) in arion.chain(ours) {
        let cell = |figure: Option<f64>, digits: usize| {
            figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        let [ping_user, ping_kernel] = line.ping_ms.map(|ms| cell(ms, 3));
        let [tcp_user, tcp_kernel] = line.tcp_gbps.map(|gbps| cell(gbps, 2));
        let (packets, mbps) = (cell(line.packets, 0), cell(line.mbps, 0));
        let name = name.to_owned();
        let sockets = sockets.to_string();
        table.add_row([name, sockets, ping_user, ping_kernel, tcp_user, tcp_kernel, packets, mbps]);
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "Beside published figures\n\n{table}\n\nArion: as published, hosts and cards of its own; \
         ours on veths of this machine, hosts, generators and gateway on the same cores. The \
         figures of a line compare, not the lines.\n{STREAMS}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // BM-4a, BM-4b, BM-4c, BM-4d, BM-4e, BM-4f, BM-4i
    #[test]
    fn ours_stands_beside_arions_five_numbers_of_sockets() {
        let mut ours = Ours::default();
        let (ping_ms, tcp_gbps) = ([Some(0.0421), Some(0.0312)], [Some(1.13), None]);
        *ours.line(2) = Line { ping_ms, tcp_gbps, packets: Some(512_345.4), mbps: Some(6_789.0) };
        let text = text(&ours);
        let cells = |name: &str, sockets: &str| -> Vec<&str> {
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let mut lines = lines.filter(|cells| cells.starts_with(&[name, sockets]));
            lines.next().unwrap_or_default().split_off(2)
        };
        for (sockets, figures) in [
            ("1", ["0.623", "0.598", "4.69", "4.74", "859728", "9691"]),
            ("2", ["0.547", "0.635", "4.58", "4.98", "869994", "9708"]),
            ("4", ["0.629", "0.715", "5.44", "5.06", "855856", "9433"]),
            ("8", ["0.770", "0.752", "5.86", "5.53", "861414", "9434"]),
            ("16", ["0.673", "0.649", "4.92", "4.82", "842844", "9354"]),
        ] {
            assert_eq!(cells("Arion", sockets), figures, "{text}");
        }
        assert_eq!(cells("Lockgate", "2"), ["0.042", "0.031", "1.13", "-", "512345", "6789"]);
        let figures = ["5031.76", "4995.24", "5292.14", "4275.28", "3073.6", "9586.03", "9426.22"];
        for figure in figures {
            assert!(text.contains(figure), "{figure} in\n{text}");
        }
    }
}
