//! The rows whose instructions are counted.

use dataplane::FastPathUse;
use ipsec::Suite;
use ipsec::cipher::BackendKind;
use scene::{Case, Direction, SaLimits, Treatment};
use wire::Family;

/// Flows of a row, each with one packet: more than a batch, and the table of the cache is full of
/// them after one pass.
const FLOWS: usize = 1024;

/// Rules of the groups of a row that has groups. The last one permits its packets.
const RULES: usize = 100;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    /// Rules of the security groups of the port that packets come by; 0: it has no groups.
    pub(crate) rules: usize,
    /// Action of the last of them: `permit`, or `reflect`.
    pub(crate) treatment: Treatment,
    pub(crate) cache: Cache,
    pub(crate) capture: Capture,
    pub(crate) fast_path: FastPathUse,
    pub(crate) limits: SaLimits,
}

/// A capture that runs beside the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// No capture.
    Off,
    /// A capture of a port that no packet of the row crosses.
    Elsewhere,
    /// A capture that takes every packet, as received and as sent.
    On,
}

/// Use of a flow cache by the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cache {
    /// No cache: the classifier is searched for every packet.
    Without,
    /// Every packet that is counted finds its flow there.
    Hit,
}

impl Row {
    /// Returns the row's name in the table and on the command line: `null out v4 64 hit`.
    pub(crate) fn name(&self) -> String {
        let Case { direction, suite, family, size, .. } = self.case;
        let family = match family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let cache = match self.cache {
            Cache::Without => "search",
            Cache::Hit => "hit",
        };
        let name = match direction {
            Direction::Forward if self.rules > 0 => match self.treatment {
                Treatment::Stateless => format!("groups {family} {size} {cache}"),
                Treatment::Stateful => format!("connections {family} {size} {cache}"),
            },
            Direction::Forward | Direction::Overlay => {
                format!("{} {family} {size}", direction.name())
            }
            Direction::Bypass
            | Direction::PacketOut
            | Direction::PacketIn
            | Direction::CryptoOut
            | Direction::CryptoIn => {
                format!("{} {family} {size} {cache}", direction.name())
            }
            way => format!("{suite} {} {family} {size} {cache}", way.name()),
        };
        let name = match self.fast_path {
            FastPathUse::Never => format!("{name} general"),
            FastPathUse::WherePossible | FastPathUse::Eager => name,
        };
        let name = match self.limits {
            SaLimits::Without => name,
            SaLimits::Far => format!("{name} limited"),
        };
        match self.capture {
            Capture::Off => name,
            Capture::Elsewhere => format!("{name} capture elsewhere"),
            Capture::On => format!("{name} capture on"),
        }
    }
}

/// The ways of packets, with the suite and the size of the inner packet in bytes.
const WAYS: [(Direction, Suite, usize); 14] = [
    (Direction::Forward, Suite::Null, 64),
    (Direction::Overlay, Suite::Null, 64),
    (Direction::Bypass, Suite::Null, 64),
    (Direction::PacketOut, Suite::Null, 64),
    (Direction::PacketIn, Suite::Null, 64),
    (Direction::CryptoOut, Suite::Aes128Gcm, 64),
    (Direction::CryptoIn, Suite::Aes128Gcm, 64),
    (Direction::Out, Suite::Null, 64),
    (Direction::In, Suite::Null, 64),
    (Direction::Out, Suite::Aes128Gcm, 64),
    (Direction::In, Suite::Aes128Gcm, 64),
    (Direction::Out, Suite::Aes128Gcm, 1420),
    (Direction::In, Suite::Aes128Gcm, 1420),
    (Direction::Out, Suite::ChaCha20Poly1305, 64),
];

/// Returns every row.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for (direction, suite, size) in WAYS {
        for family in [Family::V4, Family::V6] {
            for cache in [Cache::Without, Cache::Hit] {
                // Between protected ports no policy is asked, and so no cache.
                let is_asked = !matches!(direction, Direction::Forward | Direction::Overlay);
                if !is_asked && cache == Cache::Hit {
                    continue;
                }
                // The same library in every run, whatever a clock says under valgrind.
                let (flows, backend, workers) = (FLOWS, Some(BackendKind::first(suite)), 1);
                let case = Case { direction, suite, family, size, flows, backend, workers, sas: 1 };
                let (capture, fast_path) = (Capture::Off, FastPathUse::WherePossible);
                let (rules, treatment) = (0, Treatment::Stateless);
                let limits = SaLimits::Without;
                rows.push(Row { case, rules, treatment, cache, capture, fast_path, limits });
            }
        }
    }
    let without = rows.iter().filter(|row| row.case.direction == Direction::Forward).copied();
    let grouped: Vec<Row> = without
        .flat_map(|row| {
            [Treatment::Stateless, Treatment::Stateful].map(|treatment| Row {
                rules: RULES,
                treatment,
                ..row
            })
        })
        .collect();
    rows.extend(
        grouped
            .iter()
            .flat_map(|row| [Cache::Without, Cache::Hit].map(|cache| Row { cache, ..*row })),
    );
    let row = rows.iter().find(|row| row.name() == "null out v4 64 hit");
    let row = *row.expect("one of the rows above");
    rows.extend([Capture::Elsewhere, Capture::On].map(|capture| Row { capture, ..row }));
    // The general walk takes what the fast path does not: it is counted with the same packets.
    let of_both = [
        "forward v4 64",
        "overlay v4 64",
        "groups v4 64 hit",
        "connections v4 64 hit",
        "null out v4 64 hit",
        "null in v4 64 hit",
    ];
    let of_both = rows.iter().filter(|row| of_both.contains(&&*row.name())).copied();
    let general = of_both.map(|row| Row { fast_path: FastPathUse::Never, ..row });
    let general: Vec<Row> = general.filter(|row| row.capture == Capture::Off).collect();
    rows.extend(general);
    let limited = limited(&rows);
    rows.extend(limited);
    rows
}

/// Returns some rows again with SAs that count their use.
fn limited(rows: &[Row]) -> Vec<Row> {
    let names = [
        "null out v4 64 hit",
        "null in v4 64 hit",
        "aes-128-gcm out v4 64 hit",
        "aes-128-gcm in v4 64 hit",
        "null out v4 64 hit general",
    ];
    let named = rows.iter().filter(|row| names.contains(&&*row.name()));
    named.map(|row| Row { limits: SaLimits::Far, ..*row }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut names: Vec<String> = all().iter().map(Row::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
