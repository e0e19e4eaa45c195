//! Instructions of a row's packet, where the committed table of `cargo xtask instructions` has the
//! row. They were counted by callgrind, with the AVX2 forms, and are the same on every machine.

use std::collections::BTreeMap;

use scene::Treatment;
use serde::Deserialize;

use super::rows::Row;
use super::subject::{Caching, WalkKind};

/// The committed table.
const TABLE: &str = include_str!("../../instructions/table.json");

/// Rules of the rows of packets that go through security groups.
const GROUPED_RULES: usize = 100;

/// Part of the table that is read here.
#[derive(Deserialize)]
pub(super) struct Table {
    /// The cipher library, its version and form.
    ciphers: String,
    rows: BTreeMap<String, Counted>,
}

#[derive(Deserialize)]
struct Counted {
    instructions: f64,
}

impl Table {
    /// Reads the committed table.
    pub(super) fn committed() -> Table {
        serde_json::from_str(TABLE).expect("a test reads it")
    }

    /// Returns the instructions of a packet of a row; `None`: the table does not have that row.
    pub(super) fn of(&self, row: &Row) -> Option<f64> {
        let is_counted_cipher = ["none", "null"].contains(&row.suite)
            || self.ciphers.split(' ').next() == Some(row.backend);
        if row.workers != 1 || row.sas != 1 || !is_counted_cipher {
            return None;
        }
        self.rows.get(&name(row)?).map(|counted| counted.instructions)
    }

    /// Returns the instructions of a packet of 64 bytes that is forwarded through security groups
    /// with so many rules, pairs of single addresses; `None`: such a packet was not counted.
    pub(super) fn forward(
        &self,
        ip: u8,
        walk: WalkKind,
        cache: Caching,
        (rules, kind): (usize, Treatment),
    ) -> Option<f64> {
        let by = if walk == WalkKind::General { " general" } else { "" };
        let groups = match kind {
            Treatment::Stateless => "groups",
            Treatment::Stateful => "connections",
        };
        let name = match (rules, walk, cache) {
            // The general walk was counted without a cache.
            (0, WalkKind::General, Caching::Auto | Caching::Always) => return None,
            (0, ..) => format!("forward v{ip} 64{by}"),
            (GROUPED_RULES, _, Caching::Off) => format!("{groups} v{ip} 64 search{by}"),
            (GROUPED_RULES, ..) => format!("{groups} v{ip} 64 hit{by}"),
            _ => return None,
        };
        self.rows.get(&name).map(|counted| counted.instructions)
    }
}

/// Returns the name of a row in the table; `None`: it was counted with no such cache.
fn name(row: &Row) -> Option<String> {
    let Row { suite, direction, family, size, cache, hit_rate, .. } = row;
    let is_general = row.walk == WalkKind::General.name();
    let by = if is_general { " general" } else { "" };
    if *direction == "overlay" {
        return Some(format!("overlay v{family} {size}{by}"));
    }
    if *direction == "forward" {
        // The general walk, which looks routes up there, was counted without a cache.
        let is_counted = !is_general || *cache == "off";
        return is_counted.then(|| format!("forward v{family} {size}{by}"));
    }
    let cache = match *cache {
        "off" => "search",
        "always" if *hit_rate > 0.98 => "hit",
        _ => return None,
    };
    match *direction {
        "bypass" | "packet-out" | "packet-in" => {
            Some(format!("{direction} v{family} {size} {cache}{by}"))
        }
        _ => Some(format!("{suite} {direction} v{family} {size} {cache}{by}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &'static str, direction: &'static str, hit_rate: f64) -> Row {
        let (walk, backend) = ("fast", "ipsec-mb");
        let cache = if hit_rate > 0.0 { "always" } else { "off" };
        let (family, size, workers, sas) = (4, 64, 1, 1);
        let row = Row { suite, direction, walk, backend, cache, hit_rate, ..Row::default() };
        Row { family, size, workers, sas, ..row }
    }

    #[test]
    fn the_committed_table_has_the_rows_that_a_run_shows() {
        let table = Table::committed();
        let gcm = "aes-128-gcm";
        let hit = table.of(&row(gcm, "out", 1.0)).unwrap();
        assert!(hit > 100.0 && hit < table.of(&row(gcm, "out", 0.0)).unwrap());
        assert!(table.of(&row("none", "forward", 0.0)).is_some());
        for ip in [4, 6] {
            let fast = |cache, rules| {
                table.forward(ip, WalkKind::Fast, cache, (rules, Treatment::Stateless))
            };
            let (on, off) = (Caching::Always, Caching::Off);
            assert!(fast(on, 0).is_some() && fast(on, 0) == fast(off, 0));
            assert!(fast(on, 0) < fast(on, 100) && fast(on, 100) < fast(off, 100));
            assert_eq!(
                (fast(on, 99), table.forward(ip, WalkKind::General, on, (0, Treatment::Stateless))),
                (None, None)
            );
        }
        let fast = table.of(&row("null", "in", 1.0)).unwrap();
        let general = table.of(&Row { walk: "general", ..row("null", "in", 1.0) }).unwrap();
        assert!(fast < general, "{fast} {general}");
    }

    #[test]
    fn a_row_that_was_not_counted_so_has_no_count() {
        let table = Table::committed();
        let right = row("aes-128-gcm", "out", 1.0);
        for other in [
            Row { walk: "general", direction: "forward", ..right.clone() },
            Row { cache: "auto", ..right.clone() },
            Row { workers: 2, ..right.clone() },
            Row { sas: 2, ..right.clone() },
            Row { backend: "aws-lc-rs", ..right.clone() },
            Row { hit_rate: 0.5, ..right.clone() },
            Row { size: 65, ..right },
        ] {
            assert_eq!(table.of(&other), None, "{other:?}");
        }
    }
}
