//! The table of the published flow cache, with Lockgate's figures.

use comfy_table::{CellAlignment, Table, presets};

use super::rows::Figures;

/// Policy indices of the published table.
const INDICES: [usize; 4] = [1, 10, 100, 1000];

/// Figures published in 2021 of VPP's outbound flow cache: one core, one null-encrypted ESP tunnel,
/// 64-byte packets; Mpps without and with the cache at each of [`INDICES`] (BM-1a … BM-1c).
pub(super) const MACHINES: [(&str, [(f64, f64); 4]); 3] = [
    ("VPP, Arm Neoverse N1", [(5.2, 4.84), (4.55, 4.84), (2.11, 4.84), (0.3295, 4.84)]),
    ("VPP, Arm TX2", [(2.81, 2.6), (2.51, 2.6), (1.27, 2.6), (0.17662, 2.6)]),
    ("VPP, Intel SKX", [(4.93, 4.48), (4.29, 4.46), (2.05, 4.48), (0.33679, 4.47)]),
];

/// Figures without and with the cache, at each index.
type Line = [(f64, f64); 4];

/// The table (BM-1d), with a line for each set of rows that has all of it; `None`: none has.
pub(super) fn table(figures: &[Figures]) -> Option<String> {
    let ours: Vec<(String, Line)> = ours(figures);
    if ours.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let indices = INDICES.map(|index| format!("policy {index}"));
    let head = ["linear / cached, Mpps".to_owned()].into_iter().chain(indices);
    table.set_header(head.chain(["times faster at 1000".into(), "cached max/min".into()]));
    let published = MACHINES.iter().map(|(name, line)| ((*name).to_owned(), *line));
    for (name, line) in published.chain(ours) {
        let cells = line.map(|(without, with)| format!("{without:.2} / {with:.2}"));
        let cached = line.map(|(_, with)| with);
        let (least, most) =
            cached.iter().fold((f64::MAX, 0f64), |(l, m), with| (l.min(*with), m.max(*with)));
        let faster = format!("{:.1}", line[3].1 / line[3].0);
        let flat = format!("{:.3}", most / least);
        table.add_row([name].into_iter().chain(cells).chain([faster, flat]));
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         VPP: as published, by packet generators on the wire, 64-byte frames; ours in memory on \
         this machine.\nThe ratios of a line compare, not the lines."
    ))
}

/// Lines of Lockgate: linear and cached figures of otherwise equal rows.
fn ours(figures: &[Figures]) -> Vec<(String, Line)> {
    let mut lines = Vec::new();
    let candidates = figures.iter().filter(|of| of.policies == INDICES[0] && of.lookup == "cache");
    for of in candidates.filter(|of| of.is_match("last") && of.workers <= 1) {
        let find = |index, lookup| {
            let alike = |other: &&Figures| {
                other.policies == index && other.lookup == lookup && other.differs_only_so(of)
            };
            figures.iter().find(alike).map(|found| found.measured.mpps)
        };
        let cells = INDICES.map(|index| Some((find(index, "linear")?, find(index, "cache")?)));
        if let [Some(a), Some(b), Some(c), Some(d)] = cells {
            let Figures { family, flows, rules, dist, burst, .. } = of;
            let name = format!("Lockgate, IPv{family}, {rules}, {flows} flows {dist}, by {burst}");
            lines.push((name, [a, b, c, d]));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::super::station::Measured;
    use super::*;

    fn figures(policies: usize, lookup: &'static str, mpps: f64) -> Figures {
        let (rules, matching, dist, family) = ("addr", "last", "uniform", 4);
        let measured = Measured { mpps, ..Measured::default() };
        Figures { policies, lookup, measured, rules, matching, dist, family, ..Figures::default() }
    }

    // BM-1a, BM-1b, BM-1c, BM-1d
    #[test]
    fn ours_stands_beside_the_three_published_machines() {
        let mut all = Vec::new();
        for (place, index) in INDICES.into_iter().enumerate() {
            all.push(figures(index, "linear", 20.0 / (1 + place) as f64));
            all.push(figures(index, "cache", 40.0 + place as f64));
        }
        let text = table(&all).unwrap();
        for words in ["20.00 / 40.00", "1.075"] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        for (machine, cells) in [
            ("N1", ["5.20 / 4.84", "4.55 / 4.84", "2.11 / 4.84", "0.33 / 4.84"]),
            ("TX2", ["2.81 / 2.60", "2.51 / 2.60", "1.27 / 2.60", "0.18 / 2.60"]),
            ("SKX", ["4.93 / 4.48", "4.29 / 4.46", "2.05 / 4.48", "0.34 / 4.47"]),
        ] {
            let line = text.lines().find(|line| line.contains(machine)).unwrap_or_default();
            let places = cells.map(|cell| line.find(cell));
            assert!(places.is_sorted() && places[0].is_some(), "{machine}: {cells:?} in\n{text}");
        }
        assert!(text.contains("8.6"), "43 / 5");
        assert!(text.contains("14.7"), "N1's: 4.84 / 0.3295");
        assert_eq!(table(&all[..7]), None, "a table without its last figure is none");
    }
}
