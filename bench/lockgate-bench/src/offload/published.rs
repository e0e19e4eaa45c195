//! The table published of Linux XFRM, with Lockgate's figures beside it.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

use super::Mode;

/// CPUs of the published table, one TCP stream on each.
const CPUS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// One row of the published table.
struct Published {
    mode: Mode,
    gbps: [f64; 6],
    /// As part of the row without IPsec.
    percent: Option<[f64; 6]>,
}

/// Published with XFRM's packet offload: one iperf3 stream a CPU, Gbit/s (BM-3a … BM-3d).
const XFRM: [Published; 4] = [
    Published { mode: Mode::Baseline, gbps: [27.9, 59.0, 93.1, 92.8, 93.7, 94.4], percent: None },
    Published {
        mode: Mode::Software,
        gbps: [6.0, 11.9, 23.3, 45.9, 83.8, 91.8],
        percent: Some([21.5, 20.2, 25.0, 49.5, 89.4, 97.2]),
    },
    Published {
        mode: Mode::Crypto,
        gbps: [15.0, 29.7, 58.5, 89.6, 90.4, 90.8],
        percent: Some([53.8, 50.3, 62.8, 96.6, 96.5, 96.2]),
    },
    Published {
        mode: Mode::Packet,
        gbps: [28.0, 57.0, 90.7, 91.0, 91.3, 91.9],
        percent: Some([100.4, 96.6, 97.4, 98.1, 97.4, 97.4]),
    },
];

/// Lockgate's share of the rate without IPsec, in percent, by mode and workers.
pub(super) type Ours = BTreeMap<(Mode, usize), f64>;

/// The published table, and below each of its rows ours (BM-3a … BM-3e). `size`: bytes of our
/// packets.
pub(super) fn text(ours: &Ours, size: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = ["of", "mode", "what"].map(str::to_owned).into_iter();
    table.set_header(heads.chain(CPUS.map(|cpus| format!("{cpus} CPU{}", plural(cpus)))));
    for Published { mode, gbps, percent } in XFRM {
        let mut add = |of: &str, what: &str, cells: Vec<String>| {
            let words = [of, mode.name(), what].map(str::to_owned);
            table.add_row(words.into_iter().chain(cells));
        };
        add("XFRM", "Gbit/s", gbps.map(|gbps| format!("{gbps}")).to_vec());
        let percent = percent.unwrap_or([100.0; 6]);
        add("XFRM", "%", percent.map(|percent| format!("{percent:.1}")).to_vec());
        let cell = |cpus| ours.get(&(mode, cpus)).map_or("-".into(), |part| format!("{part:.1}"));
        add("Lockgate", "%", CPUS.map(cell).to_vec());
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "Beside published figures\n\n{table}\n\n%: of the rate without IPsec on as many CPUs. \
         XFRM: as published, TCP between two machines with a card that seals, whose link of 100 \
         Gbit/s is the limit from 4 CPUs on. Lockgate: the host's part alone, packets of {size} \
         bytes that leave, ports in memory, the card emulated: no link, no limit by the card."
    )
}

const fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    // BM-3a, BM-3b, BM-3c, BM-3d
    #[test]
    fn ours_stands_below_each_row_that_was_published() {
        let ours = Ours::from([((Mode::Software, 1), 22.06), ((Mode::Packet, 2), 97.04)]);
        let text = text(&ours, 1400);
        let cells = |begin: &[&str]| -> Vec<&str> {
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let mut lines = lines.filter(|cells| cells.starts_with(begin));
            lines.next().unwrap_or_default().split_off(begin.len())
        };
        for (mode, gbps, percent) in [
            ("baseline", ["27.9", "59", "93.1", "92.8", "93.7", "94.4"], ["100.0"; 6]),
            (
                "software",
                ["6", "11.9", "23.3", "45.9", "83.8", "91.8"],
                ["21.5", "20.2", "25.0", "49.5", "89.4", "97.2"],
            ),
            (
                "crypto",
                ["15", "29.7", "58.5", "89.6", "90.4", "90.8"],
                ["53.8", "50.3", "62.8", "96.6", "96.5", "96.2"],
            ),
            (
                "packet",
                ["28", "57", "90.7", "91", "91.3", "91.9"],
                ["100.4", "96.6", "97.4", "98.1", "97.4", "97.4"],
            ),
        ] {
            assert_eq!(cells(&["XFRM", mode, "Gbit/s"]), gbps, "{text}");
            assert_eq!(cells(&["XFRM", mode, "%"]), percent, "{text}");
        }
        assert_eq!(cells(&["Lockgate", "software", "%"])[..2], ["22.1", "-"]);
        assert_eq!(cells(&["Lockgate", "packet", "%"])[..3], ["-", "97.0", "-"]);
        assert!(text.contains("packets of 1400 bytes") && text.contains("emulated"));
    }
}
