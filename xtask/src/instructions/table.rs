//! The committed table of instructions a packet.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::Failure;

/// A row is worse when it is above the table by more than this share…
const SHARE: f64 = 0.01;
/// … and by more than so many instructions a packet.
const LEAST: f64 = 4.0;
/// Functions that a finding names.
const NAMED: usize = 5;

/// Tools that counts depend on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Head {
    pub(super) compiler: String,
    pub(super) valgrind: String,
    pub(super) profile: String,
    /// Instruction set that valgrind shows to programs.
    pub(super) instruction_set: String,
    pub(super) ciphers: String,
}

impl Head {
    fn fields(&self) -> [(&'static str, &String); 5] {
        [
            ("compiler", &self.compiler),
            ("valgrind", &self.valgrind),
            ("profile", &self.profile),
            ("instruction_set", &self.instruction_set),
            ("ciphers", &self.ciphers),
        ]
    }

    /// Returns the first field in which another head differs, for people.
    pub(super) fn difference(&self, now: &Head) -> Option<String> {
        let mut pairs = self.fields().into_iter().zip(now.fields());
        pairs
            .find(|(table, now)| table != now)
            .map(|((name, table), (_, now))| format!("{name} `{table}`; here it is `{now}`"))
    }
}

/// Instructions of one row.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Row {
    /// For a packet.
    pub(super) instructions: f64,
    /// For a packet, by function and the file that they were compiled from, those of less than one
    /// instruction left out.
    pub(super) functions: BTreeMap<String, f64>,
}

impl Row {
    /// Divides what callgrind counted among the packets.
    pub(super) fn of(counts: &callgrind::Counts, packets: u64) -> Row {
        let each = |count: u64| (10.0 * count as f64 / packets as f64).round() / 10.0;
        let mut functions = BTreeMap::<String, u64>::new();
        for ((file, symbol), count) in counts {
            *functions.entry(format!("{} ({})", short(symbol), short_file(file))).or_default() +=
                count;
        }
        let functions =
            functions.into_iter().map(|(name, count)| (name, each(count))).filter(|it| it.1 >= 1.0);
        Row { instructions: each(counts.values().sum()), functions: functions.collect() }
    }
}

/// A symbol without its hash and the arguments of its types.
fn short(symbol: &str) -> String {
    let symbol = symbol
        .rsplit_once("::h")
        .map_or(symbol, |(name, hash)| if hash.len() == 16 { name } else { symbol });
    if symbol.starts_with("0x") { "code without a name".into() } else { symbol.into() }
}

/// Shortens a file's path to `crate/src/…`. Cargo keeps a dependency in
/// `registry/src/HOST-HASH/crate-version/src/…`: host and hash differ between machines.
fn short_file(file: &str) -> &str {
    let dependency = file.split_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/'));
    let file = dependency.map_or(file, |(_host, file)| file);
    if let Some(at) = file.find("/src/") {
        let start = file[..at].rfind('/').map_or(0, |slash| slash + 1);
        return &file[start..];
    }
    file.rsplit('/').next().unwrap_or(file)
}

/// The committed table.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Table {
    pub(super) head: Head,
    pub(super) rows: BTreeMap<String, Row>,
}

/// Result of the comparison of a row with the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    Same,
    /// More than before, and the functions that it came from.
    Worse {
        table: f64,
        from: Vec<(String, f64)>,
    },
    /// Less than before: the table is to be renewed, or the gain may be lost again unseen.
    Better {
        table: f64,
    },
    /// The table has no such row.
    New,
}

impl Verdict {
    /// One line for people; several where the row is worse.
    pub(super) fn line(&self, name: &str, row: &Row) -> String {
        let now = row.instructions;
        let figures = |table: f64| {
            format!("{name:<34}{table:>10.1}{now:>10.1}{:>+8.1}%", 100.0 * (now - table) / table)
        };
        match self {
            Verdict::Same => format!("{name:<34}{:>20.1}", now),
            Verdict::Better { table } => {
                format!("{}  fewer: renew the table", figures(*table))
            }
            Verdict::New => format!("{name:<34}{:>10}{now:>10.1}  not in the table", "-"),
            Verdict::Worse { table, from } => {
                let from = from.iter().map(|(name, more)| format!("\n    {more:>+8.1}  {name}"));
                format!("{}  MORE{}", figures(*table), from.collect::<String>())
            }
        }
    }
}

impl Table {
    /// Holds a row against the table.
    pub(super) fn judge(&self, name: &str, now: &Row) -> Verdict {
        let Some(known) = self.rows.get(name) else { return Verdict::New };
        let table = known.instructions;
        let change = now.instructions - table;
        if change.abs() <= LEAST || change.abs() <= SHARE * table {
            return Verdict::Same;
        }
        if change < 0.0 {
            return Verdict::Better { table };
        }
        let before = |name: &String| known.functions.get(name).copied().unwrap_or_default();
        let mut from: Vec<(String, f64)> = now
            .functions
            .iter()
            .map(|(name, count)| (name.clone(), count - before(name)))
            .collect();
        from.sort_by(|a, b| b.1.total_cmp(&a.1));
        from.truncate(NAMED);
        Verdict::Worse { table, from }
    }

    /// Reads the committed table.
    pub(super) fn read(file: &Path) -> Result<Table, Failure> {
        let text = std::fs::read_to_string(file).map_err(Failure::read(file))?;
        Table::parse(&text).ok_or_else(|| Failure::Table { file: file.to_owned() })
    }

    fn parse(text: &str) -> Option<Table> {
        let json: Value = serde_json::from_str(text).ok()?;
        let word = |name: &str| Some(json[name].as_str()?.to_owned());
        let head = Head {
            compiler: word("compiler")?,
            valgrind: word("valgrind")?,
            profile: word("profile")?,
            instruction_set: word("instruction_set")?,
            ciphers: word("ciphers")?,
        };
        let mut rows = BTreeMap::new();
        for (name, row) in json["rows"].as_object()? {
            let functions = row["functions"].as_object()?.iter();
            let functions = functions.map(|(name, count)| Some((name.clone(), count.as_f64()?)));
            let row = Row {
                instructions: row["instructions"].as_f64()?,
                functions: functions.collect::<Option<_>>()?,
            };
            rows.insert(name.clone(), row);
        }
        Some(Table { head, rows })
    }

    /// Writes the table, so that a change of one row is a change of its lines.
    pub(super) fn write(&self, file: &Path) -> Result<(), Failure> {
        std::fs::write(file, self.text()).map_err(Failure::write(file))
    }

    fn text(&self) -> String {
        let mut json = json!({});
        for (name, value) in self.head.fields() {
            json[name] = json!(value);
        }
        for (name, row) in &self.rows {
            json["rows"][name] =
                json!({ "instructions": row.instructions, "functions": row.functions });
        }
        serde_json::to_string_pretty(&json).expect("text and numbers are JSON") + "\n"
    }
}

/// Returns a profile's settings as they stand in the manifest, on one line.
pub(super) fn profile(manifest: &str, name: &str) -> String {
    let heading = format!("[profile.{name}]");
    let lines = manifest.lines().skip_while(|line| line.trim() != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('[') && !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(instructions: f64, functions: &[(&str, f64)]) -> Row {
        let functions = functions.iter().map(|(name, count)| ((*name).to_owned(), *count));
        Row { instructions, functions: functions.collect() }
    }

    fn table() -> Table {
        let head = Head { compiler: "rustc 1".into(), ..Head::default() };
        let rows = [("a".to_owned(), row(1000.0, &[("f", 600.0), ("g", 400.0)]))];
        Table { head, rows: rows.into() }
    }

    #[test]
    fn a_row_is_worse_by_more_than_one_percent_and_four_instructions() {
        let judge = |instructions| table().judge("a", &row(instructions, &[("f", 0.0)]));
        assert_eq!(judge(1010.0), Verdict::Same);
        assert!(matches!(judge(1010.1), Verdict::Worse { .. }));
        assert_eq!(judge(990.0), Verdict::Same);
        assert_eq!(judge(989.9), Verdict::Better { table: 1000.0 });
        assert_eq!(table().judge("b", &row(1.0, &[])), Verdict::New);
        let mut small = table();
        small.rows.insert("a".into(), row(100.0, &[]));
        assert_eq!(small.judge("a", &row(104.0, &[])), Verdict::Same, "four are nothing");
        assert!(matches!(small.judge("a", &row(104.1, &[])), Verdict::Worse { .. }));
    }

    #[test]
    fn a_worse_row_names_the_function_that_grew_most() {
        let now = row(1100.0, &[("f", 610.0), ("g", 430.0), ("h", 60.0)]);
        let Verdict::Worse { from, .. } = table().judge("a", &now) else { panic!("not worse") };
        assert_eq!(from[0], ("h".to_owned(), 60.0));
        assert_eq!(from[1], ("g".to_owned(), 30.0));
        let line = table().judge("a", &now).line("a", &now);
        assert!(line.contains("+10.0%") && line.contains("+60.0  h"), "{line}");
    }

    #[test]
    fn what_is_written_reads_back() {
        assert_eq!(Table::parse(&table().text()), Some(table()));
    }

    #[test]
    fn other_tools_are_named() {
        let now = Head { compiler: "rustc 2".into(), ..Head::default() };
        let said = table().head.difference(&now).unwrap();
        assert_eq!(said, "compiler `rustc 1`; here it is `rustc 2`");
        assert_eq!(now.difference(&now), None);
    }

    #[test]
    fn symbols_lose_their_hashes_and_files_their_machine() {
        assert_eq!(short("walk::run::h0123456789abcdef"), "walk::run");
        assert_eq!(short("walk::hash"), "walk::hash");
        assert_eq!(short_file("a/crates/wire/src/packet.rs"), "wire/src/packet.rs");
        assert_eq!(short_file("a/b.S"), "b.S");
        let dependency = "a/.cargo/registry/src/host-0123456789abcdef/b-0.1.0/src/c/d.rs";
        assert_eq!(short_file(dependency), "b-0.1.0/src/c/d.rs");
    }

    #[test]
    fn a_profile_is_what_stands_below_its_heading() {
        let manifest = "[profile.a]\nx = 1\ny = 2\n[profile.b]\nz = 3\n";
        assert_eq!(profile(manifest, "a"), "x = 1, y = 2");
    }
}
