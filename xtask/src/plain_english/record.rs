//! The committed figures of each crate.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

/// Allowed rise of a figure: room for rounding and for merged branches.
const SLACK: f64 = 0.1;

/// A rule with counted breaches.
pub(super) struct Rule {
    /// Key in the file.
    pub(super) key: &'static str,
    /// Head of the column in the printed table.
    pub(super) head: &'static str,
    /// Subject of a finding.
    pub(super) title: &'static str,
    pub(super) advice: &'static str,
}

/// Number of rules.
pub(super) const COUNT: usize = 5;
/// Place of the pointing words in [`RULES`].
pub(super) const POINTING: usize = 0;
/// Place of the heavy sentences in [`RULES`].
pub(super) const HEAVY: usize = 1;
/// Place of the repeated type names in [`RULES`].
pub(super) const REPEATED: usize = 2;
/// Place of the single-word type names in [`RULES`].
pub(super) const VAGUE: usize = 3;
/// Place of the tuples as parameters in [`RULES`].
pub(super) const TUPLES: usize = 4;

pub(super) const RULES: [Rule; COUNT] = [
    Rule {
        key: "pointing",
        head: "pointing words",
        title: "pointing words per 100 words",
        advice: "say the noun",
    },
    Rule {
        key: "heavy",
        head: "3 and more",
        title: "percent of sentences with three pointing words or more",
        advice: "one idea a sentence, and say the noun",
    },
    Rule {
        key: "repeated",
        head: "repeated types",
        title: "type names that stand in the crate already",
        advice: "a type name stands once in a crate",
    },
    Rule {
        key: "vague",
        head: "vague types",
        title: "type names of one vague word",
        advice: "use a noun of two or three words",
    },
    Rule {
        key: "tuples",
        head: "tuples",
        title: "parameters of an anonymous tuple",
        advice: "give the tuple a type, or make two parameters",
    },
];

/// A count, or a share of a total.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Figure {
    pub(super) count: u64,
    /// Total of a share; 0: a plain count.
    pub(super) total: u64,
}

impl Figure {
    /// Returns the count, or the share in percent.
    pub(super) fn value(self) -> f64 {
        match self.total {
            0 => self.count as f64,
            total => 100.0 * self.count as f64 / total as f64,
        }
    }

    /// Returns the value for people.
    pub(super) fn text(self) -> String {
        match self.total {
            0 => self.count.to_string(),
            _ => format!("{:.1}", self.value()),
        }
    }

    /// True if both the count and the share are above another figure. Good comments may go: the
    /// share rises, and the count does not. Good comments may come: the count rises alone.
    fn has_risen(self, before: Figure, slack: f64) -> bool {
        self.count > before.count && self.value() > before.value() + slack
    }

    fn plus(self, other: Figure) -> Figure {
        Figure { count: self.count + other.count, total: self.total + other.total }
    }
}

/// The figures of a crate, by [`RULES`].
pub(super) type Figures = [Figure; COUNT];

/// The figures of all crates.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Record {
    pub(super) crates: BTreeMap<String, Figures>,
}

/// A figure above the recorded value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RisenFigure {
    pub(super) package: String,
    /// Place in [`RULES`].
    pub(super) rule: usize,
    pub(super) recorded: Figure,
    pub(super) now: Figure,
}

impl Record {
    /// Returns the sums over all crates.
    pub(super) fn sums(&self) -> Figures {
        let mut sums = Figures::default();
        for figures in self.crates.values() {
            for (sum, figure) in sums.iter_mut().zip(figures) {
                *sum = sum.plus(*figure);
            }
        }
        sums
    }

    /// Returns the figures of `now` above the record. A crate without a record has 0.
    pub(super) fn risen(&self, now: &Record) -> Vec<RisenFigure> {
        let mut risen = Vec::new();
        for (package, figures) in &now.crates {
            let recorded = self.crates.get(package).copied().unwrap_or_default();
            for (rule, (now, recorded)) in figures.iter().zip(recorded).enumerate() {
                if now.has_risen(recorded, SLACK) {
                    risen.push(RisenFigure { package: package.clone(), rule, recorded, now: *now });
                }
            }
        }
        risen
    }

    /// Returns the next record: lower figures, and higher figures if the sum over the tree does
    /// not rise.
    ///
    /// # Errors
    /// The figures above the record, if a sum rises.
    pub(super) fn renewed(&self, now: &Record) -> Result<Record, Vec<RisenFigure>> {
        let risen = self.risen(now);
        let mut next = now.clone();
        for (package, figures) in &mut next.crates {
            let Some(recorded) = self.crates.get(package) else { continue };
            for (rule, (figure, recorded)) in figures.iter_mut().zip(recorded).enumerate() {
                let is_higher = figure.value() > recorded.value();
                let is_risen = risen.iter().any(|it| it.rule == rule && it.package == *package);
                if is_higher && !is_risen {
                    *figure = *recorded;
                }
            }
        }
        let (before, after) = (self.sums(), next.sums());
        let raises_sum = |it: &RisenFigure| after[it.rule].has_risen(before[it.rule], 0.0);
        let refused: Vec<RisenFigure> = risen.into_iter().filter(raises_sum).collect();
        if refused.is_empty() { Ok(next) } else { Err(refused) }
    }

    /// Reads the file.
    pub(super) fn parse(text: &str) -> Option<Record> {
        let json: Value = serde_json::from_str(text).ok()?;
        let mut record = Record::default();
        for (package, values) in json.as_object()? {
            let mut figures = Figures::default();
            for (figure, rule) in figures.iter_mut().zip(RULES) {
                *figure = match &values[rule.key] {
                    Value::Array(share) => {
                        Figure { count: share.first()?.as_u64()?, total: share.get(1)?.as_u64()? }
                    }
                    count => Figure { count: count.as_u64()?, total: 0 },
                };
            }
            record.crates.insert(package.clone(), figures);
        }
        Some(record)
    }

    /// Writes one line a crate: branches with different crates merge.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (package, figures) in &self.crates {
            let _ = write!(text, "{}  \"{package}\": {{", if text.is_empty() { "" } else { ",\n" });
            for (place, (rule, figure)) in RULES.iter().zip(figures).enumerate() {
                let comma = if place == 0 { "" } else { ", " };
                let _ = write!(text, "{comma}\"{}\": ", rule.key);
                let _ = match (place, figure) {
                    (POINTING | HEAVY, Figure { count, total }) => {
                        write!(text, "[{count}, {total}]")
                    }
                    (_, Figure { count, .. }) => write!(text, "{count}"),
                };
            }
            text.push('}');
        }
        format!("{{\n{text}\n}}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of crates, each given as pointing words, words, and tuples.
    fn record(crates: &[(&str, [u64; 3])]) -> Record {
        let figures = |[count, total, tuples]: [u64; 3]| {
            let mut figures = Figures::default();
            figures[POINTING] = Figure { count, total };
            figures[TUPLES] = Figure { count: tuples, total: 0 };
            figures
        };
        let crates = crates.iter().map(|(name, values)| ((*name).to_owned(), figures(*values)));
        Record { crates: crates.collect() }
    }

    fn names(risen: &[RisenFigure]) -> Vec<(&str, &str)> {
        risen.iter().map(|it| (&*it.package, RULES[it.rule].key)).collect()
    }

    #[test]
    fn a_figure_rises_when_its_count_and_its_share_do() {
        let recorded = record(&[("a", [100, 1000, 2])]);
        let risen = |now| recorded.risen(&record(&[("a", now)]));
        assert_eq!(names(&risen([102, 1005, 2])), [("a", "pointing")]);
        assert_eq!(names(&risen([100, 1000, 3])), [("a", "tuples")]);
        for (now, reason) in [
            ([100, 500, 2], "plain comments went"),
            ([150, 1500, 2], "comments came, as good as those before"),
            ([101, 1000, 2], "rounding"),
            ([50, 1000, 0], "fewer"),
        ] {
            assert_eq!(risen(now), [], "{reason}");
        }
        assert_eq!(names(&recorded.risen(&record(&[("b", [1, 10, 0])]))), [("b", "pointing")]);
    }

    #[test]
    fn the_record_takes_lower_figures_and_keeps_the_others() {
        let recorded = record(&[("a", [100, 1000, 2]), ("b", [10, 1000, 1])]);
        let now = record(&[("a", [90, 1000, 2]), ("b", [10, 999, 0])]);
        let expected = record(&[("a", [90, 1000, 2]), ("b", [10, 1000, 0])]);
        assert_eq!(recorded.renewed(&now), Ok(expected));
    }

    #[test]
    fn code_that_moves_may_raise_a_crate_but_not_the_tree() {
        let recorded = record(&[("a", [100, 1000, 2]), ("b", [10, 1000, 1])]);
        let moved = record(&[("a", [50, 500, 1]), ("b", [60, 1500, 2])]);
        assert_eq!(recorded.renewed(&moved), Ok(moved));
        let split = record(&[("a", [50, 500, 0]), ("b", [10, 1000, 1]), ("c", [50, 500, 2])]);
        assert_eq!(recorded.renewed(&split), Ok(split));
        let raised = record(&[("a", [90, 1000, 3]), ("b", [12, 1000, 1])]);
        assert_eq!(names(&recorded.renewed(&raised).unwrap_err()), [("a", "tuples")]);
    }

    #[test]
    fn the_written_record_reads_back() {
        let record = record(&[("a", [1, 20, 3]), ("b", [0, 5, 0])]);
        assert_eq!(Record::parse(&record.text()), Some(record.clone()));
        assert_eq!(record.text().lines().count(), 4, "one line a crate");
        assert_eq!(Record::parse("{\"a\": {}}"), None);
    }
}
