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

/// Returns the samples by name and labels.
///
/// # Panics
/// With every rule that the text breaks.
pub(crate) fn samples(text: &str) -> BTreeMap<String, f64> {
    let is_open = text.ends_with("# EOF\n");
    let mut faults = Vec::new();
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut samples = BTreeMap::new();
    let mut current = String::new();
    let body = text.strip_suffix("# EOF\n").unwrap_or(text);
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let [word, name, value] = [words.next(), words.next(), words.next()];
            let (word, name, value) = (word.unwrap(), name.unwrap_or(""), value.unwrap_or(""));
            if name != current && families.contains_key(name) {
                faults.push(format!("{name}: its lines are not together"));
            }
            name.clone_into(&mut current);
            let family = families.entry(name.to_owned()).or_default();
            match word {
                "HELP" if family.help.is_empty() => value.clone_into(&mut family.help),
                "TYPE" if family.kind.is_empty() => value.clone_into(&mut family.kind),
                "UNIT" if is_open && family.unit.is_none() => family.unit = Some(value.into()),
                _ => faults.push(format!("not expected here: {line}")),
            }
            continue;
        }
        let Some((sample, value)) = line.rsplit_once(' ') else {
            faults.push(format!("neither a comment nor a sample: {line:?}"));
            continue;
        };
        let name = sample.split('{').next().unwrap_or_default();
        let Some(family) = families.get_mut(&current) else {
            faults.push(format!("{name}: a sample without a family"));
            continue;
        };
        family.samples += 1;
        let expected = match (family.kind.as_str(), is_open) {
            ("counter", true) => format!("{current}_total"),
            ("info", true) => format!("{current}_info"),
            _ => current.clone(),
        };
        if name != expected {
            faults.push(format!("{name}: a sample of {current} is called {expected}"));
        }
        match value.parse() {
            Ok(value) if samples.insert(sample.to_owned(), value).is_some() => {
                faults.push(format!("{sample}: twice"));
            }
            Ok(value) if family.kind == "counter" && value < 0.0 => {
                faults.push(format!("{sample}: a counter below 0"));
            }
            Ok(_) => {}
            Err(_) => faults.push(format!("{sample}: {value} is no number")),
        }
    }
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

fn of_family(name: &str, family: &Family, is_open: bool) -> Vec<String> {
    let Family { kind, help, unit, .. } = family;
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
