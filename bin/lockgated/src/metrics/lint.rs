//! The rules of `promtool check metrics` and of OpenMetrics 1.0.0, over the text of a scrape.

use std::collections::{BTreeMap, BTreeSet};

/// Units that have a base unit, and abbreviations.
const NOT_BASE: [&str; 14] = [
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "ms",
    "us",
    "ns",
    "minutes",
    "hours",
    "days",
    "kilobytes",
    "megabytes",
    "bits",
    "percent",
    "secs",
];
/// Words for types, which a name does not repeat.
const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

/// A family as the text declares it.
#[derive(Default, Debug)]
struct Family {
    kind: String,
    help: String,
    unit: Option<String>,
    samples: usize,
}

/// A text that is being read, line by line: a parser of its own, which shares nothing with the
/// libraries that write.
#[derive(Default)]
struct Reader {
    is_open: bool,
    families: BTreeMap<String, Family>,
    /// The family whose lines are being read.
    current: String,
    samples: BTreeMap<String, f64>,
    faults: Vec<String>,
}

/// Returns the samples by name and labels.
///
/// # Panics
/// With every rule that the text breaks.
pub(crate) fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut reader = Reader { is_open: text.ends_with("# EOF\n"), ..Reader::default() };
    let body = text.strip_suffix("# EOF\n").unwrap_or(text);
    if !body.ends_with('\n') {
        reader.faults.push("its last line has no end".into());
    }
    for line in body.lines() {
        match line.strip_prefix("# ") {
            Some(rest) => reader.read_description(rest),
            None => reader.read_sample(line),
        }
    }
    let Reader { is_open, families, samples, mut faults, .. } = reader;
    let mut helps = BTreeSet::new();
    for (name, family) in &families {
        faults.extend(of_family(name, family, is_open));
        if !helps.insert(&family.help) {
            faults.push(format!("{name}: its help is another family's too"));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    samples
}

impl Reader {
    /// Reads a line of a family's description, which precedes its samples.
    fn read_description(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let [word, name, value] = [(); 3].map(|()| words.next().unwrap_or_default());
        if name != self.current && self.families.contains_key(name) {
            self.faults.push(format!("{name}: its lines are not together"));
        }
        name.clone_into(&mut self.current);
        let family = self.families.entry(name.to_owned()).or_default();
        match word {
            "HELP" if family.help.is_empty() => value.clone_into(&mut family.help),
            "TYPE" if family.kind.is_empty() => value.clone_into(&mut family.kind),
            "UNIT" if self.is_open && family.unit.is_none() => family.unit = Some(value.into()),
            _ => self.faults.push(format!("not expected here: {line}")),
        }
        if family.samples > 0 {
            self.faults.push(format!("{name}: described after its first sample"));
        }
    }

    /// Reads a line that is a sample: name, labels, a blank, a value.
    fn read_sample(&mut self, line: &str) {
        let Some((sample, value)) = line.rsplit_once(' ') else {
            self.faults.push(format!("neither a comment nor a sample: {line:?}"));
            return;
        };
        let name = sample.split('{').next().unwrap_or_default();
        let Some(family) = self.families.get_mut(&self.current) else {
            self.faults.push(format!("{name}: a sample without a family"));
            return;
        };
        family.samples += 1;
        let current = &self.current;
        let expected = match (family.kind.as_str(), self.is_open) {
            ("counter", true) => format!("{current}_total"),
            ("info", true) => format!("{current}_info"),
            _ => current.clone(),
        };
        if name != expected {
            self.faults.push(format!("{name}: a sample of {current} is called {expected}"));
        }
        if labels(sample).is_none() {
            self.faults.push(format!("{sample}: its labels cannot be read"));
        }
        let is_plain = value.bytes().all(|c| c.is_ascii_digit() || b"+-.eE".contains(&c));
        match value.parse() {
            Ok(_) if !is_plain => self.faults.push(format!("{sample}: {value} is no number")),
            Ok(value) if family.kind == "counter" && value < 0.0 => {
                self.faults.push(format!("{sample}: a counter below 0"));
            }
            Ok(value) => {
                if self.samples.insert(sample.to_owned(), value).is_some() {
                    self.faults.push(format!("{sample}: twice"));
                }
            }
            Err(_) => self.faults.push(format!("{sample}: {value} is no number")),
        }
    }
}

/// Returns names and values of a sample's labels, unescaped; `None` if the formats' grammar, which
/// is the same for both here, does not allow them.
pub(crate) fn labels(sample: &str) -> Option<Vec<(String, String)>> {
    let Some((_, text)) = sample.split_once('{') else { return Some(Vec::new()) };
    let mut rest = text.strip_suffix('}')?;
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        let (name, value) = rest.split_once("=\"")?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_name = name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit());
        if name.is_empty() || !is_name || labels.iter().any(|(other, _)| other == name) {
            return None;
        }
        let (value, after) = unquote(value)?;
        labels.push((name.to_owned(), value));
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(labels),
        }
    }
}

/// Returns the text up to the closing quotation mark, unescaped, and what follows the mark.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        value.push(match chars.next()? {
            (end, '"') => return Some((value, &text[end + 1..])),
            (_, '\\') => match chars.next()?.1 {
                'n' => '\n',
                plain @ ('\\' | '"') => plain,
                _ => return None,
            },
            (_, plain) => plain,
        });
    }
}

fn of_family(name: &str, family: &Family, is_open: bool) -> Vec<String> {
    let Family { kind, help, unit, samples } = family;
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("{name}: {text}"));
    let kinds: &[&str] =
        if is_open { &["counter", "gauge", "info"] } else { &["counter", "gauge"] };
    if !kinds.contains(&kind.as_str()) {
        fault(format!("is of type {kind:?}"));
    }
    if help.len() < 15 {
        fault("has no help to speak of".into());
    }
    // prometheus-client writes a help text as it is.
    if help.contains(['\\', '"']) {
        fault("has a help text with a character that the formats escape".into());
    }
    if *samples == 0 {
        fault("has no samples".into());
    }
    // A help text stands alone in a browser of metrics.
    let first = help.split(' ').next().unwrap_or_default();
    if ["Their", "Its", "Of", "They", "It", "These", "Those"].contains(&first) {
        fault(format!("its help begins with {first:?}: of what?"));
    }
    let base = match (kind.as_str(), is_open) {
        ("counter", false) => match name.strip_suffix("_total") {
            Some(base) => base,
            None => {
                fault("is a counter without _total".into());
                name
            }
        },
        _ => name,
    };
    if base.ends_with("_total") || (is_open && base.ends_with("_info")) {
        fault("has a suffix that is added, or is no counter".into());
    }
    for word in base.split('_') {
        if NOT_BASE.contains(&word) {
            fault(format!("{word} is no base unit"));
        }
        if TYPES.contains(&word) {
            fault(format!("{word} is its type"));
        }
        if word.is_empty() || !word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            fault("is not in snake_case".into());
        }
    }
    let has_unit = ["seconds", "bytes", "packets"].iter().find(|unit| base.ends_with(*unit));
    if is_open && unit.as_deref() != has_unit.copied() {
        fault(format!("its unit is {unit:?}"));
    }
    if !["lockgate_", "process_"].iter().any(|prefix| name.starts_with(prefix)) {
        fault("is nobody's".into());
    }
    faults
}
