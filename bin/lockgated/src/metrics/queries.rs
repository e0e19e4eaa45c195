//! Checks what others write about the metrics: the dashboard, the alerts, the documents. The list
//! of names is a scrape itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use dataplane::DropReason;
use serde_json::Value;

use super::lint::{labels, samples};
use super::tests::texts;
use crate::events::Kind;

/// Functions, operators and modifiers of PromQL that our queries use, and `up`, which Prometheus
/// makes itself. Any other word is a mistake.
const WORDS: [&str; 16] = [
    "by",
    "sum",
    "min",
    "max",
    "rate",
    "increase",
    "changes",
    "topk",
    "time",
    "up",
    "and",
    "or",
    "unless",
    "absent",
    "on",
    "label_values",
];
/// Functions that only a counter makes sense in.
const OF_COUNTERS: [&str; 2] = ["rate", "increase"];
/// Labels that Prometheus adds to every sample.
const ADDED: [&str; 2] = ["instance", "job"];
/// Labels whose values are names that an operator gives.
const OPERATORS: [&str; 8] =
    ["instance", "job", "node", "version", "port", "netdev", "peer", "policy"];

/// Names of metrics, each with its labels and their values.
type Known = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Returns the metrics of a scrape, and the values that labels may have.
fn known() -> Known {
    let mut known = Known::new();
    for sample in samples(&texts(3)[0]).into_keys() {
        let name = sample.split('{').next().unwrap_or_default().to_owned();
        let of_metric = known.entry(name).or_default();
        for (label, value) in labels(&sample).expect("the lint has read it") {
            of_metric.entry(label).or_default().insert(value);
        }
    }
    let kinds = Kind::ALL.iter().map(|kind| kind.name().to_owned());
    let events = known.get_mut("lockgate_events_total").expect("events are counted");
    events.insert("kind".into(), kinds.collect());
    let directions = ["inbound", "outbound"].map(str::to_owned);
    for (name, of_metric) in &mut known {
        if name.starts_with("lockgate_sa_") {
            of_metric.insert("direction".into(), directions.clone().into());
        }
    }
    let reasons = &known["lockgate_dropped_packets_total"]["reason"];
    assert_eq!(reasons.len(), DropReason::ALL.len());
    known
}

/// A query that is being read, word by word.
struct Query<'a> {
    known: &'a Known,
    text: &'a str,
    rest: &'a str,
    /// Metrics in it.
    metrics: Vec<&'a str>,
    /// Labels that it keeps: those of `by`, if it sums.
    kept: Option<BTreeSet<&'a str>>,
    faults: Vec<String>,
}

impl<'a> Query<'a> {
    fn read(known: &'a Known, text: &'a str) -> Query<'a> {
        let (metrics, faults) = (Vec::new(), Vec::new());
        let mut query = Query { known, text, rest: text, metrics, kept: None, faults };
        let open = text.matches(['(', '[', '{']).count();
        if open != text.matches([')', ']', '}']).count() {
            query.fault("brackets do not match");
        }
        let mut function = "";
        while let Some(first) = query.rest.chars().next() {
            match first {
                'a'..='z' | 'A'..='Z' | '_' => function = query.read_word(function),
                // A number with its unit, a variable of the dashboard.
                '0'..='9' | '$' => {
                    query.rest = &query.rest[1..];
                    query.take_word();
                }
                '"' => {
                    query.fault("a text outside of braces");
                    query.rest = "";
                }
                _ => query.rest = &query.rest[first.len_utf8()..],
            }
        }
        if query.metrics.is_empty() && !text.contains("up{") {
            query.fault("asks for no metric");
        }
        query
    }

    fn fault(&mut self, what: impl std::fmt::Display) {
        self.faults.push(format!("{what}: {}", self.text));
    }

    fn take_word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    /// Reads a word with the braces or brackets behind it. Returns the innermost function so far.
    fn read_word(&mut self, function: &'a str) -> &'a str {
        let word = self.take_word();
        if word == "by" || word == "on" {
            let list = self.enclosed('(', ')');
            let list: BTreeSet<&str> = list.split(',').map(str::trim).collect();
            self.kept.get_or_insert_default().extend(list);
            return function;
        }
        let is_ours = ["lockgate_", "process_"].iter().any(|prefix| word.starts_with(prefix));
        if is_ours {
            self.read_metric(word, function);
        } else if word == "up" {
            self.enclosed('{', '}');
        } else if word == "label_values" {
            self.read_label_values();
        } else if !WORDS.contains(&word) {
            self.fault(format!("unknown word `{word}`"));
        }
        if is_ours { function } else { word }
    }

    /// Returns what stands between a pair of brackets that comes next, without them.
    fn enclosed(&mut self, open: char, close: char) -> &'a str {
        let Some(behind) = self.rest.trim_start().strip_prefix(open) else { return "" };
        let (inside, rest) = behind.split_once(close).unwrap_or((behind, ""));
        self.rest = rest;
        inside
    }

    fn read_metric(&mut self, name: &'a str, function: &str) {
        self.metrics.push(name);
        let matchers = self.enclosed('{', '}');
        let is_range = self.rest.starts_with('[');
        if OF_COUNTERS.contains(&function) && is_range && !name.ends_with("_total") {
            self.fault(format!("{function} of {name}, which is no counter"));
        }
        let Some(of_metric) = self.known.get(name) else {
            return self.fault(format!("there is no metric {name}"));
        };
        for matcher in matchers.split("\", ").filter(|matcher| !matcher.is_empty()) {
            let Some((label, value)) = matcher.split_once('=') else {
                return self.fault(format!("`{matcher}` matches nothing"));
            };
            let label = label.trim_end_matches('!');
            let value = value.trim_start_matches(['~', '"']).trim_end_matches('"');
            match of_metric.get(label) {
                None if ADDED.contains(&label) => {}
                None => self.fault(format!("{name} has no label {label}")),
                Some(_) if OPERATORS.contains(&label) || value.starts_with('$') => {}
                Some(values) => {
                    let unknown = value.split('|').find(|value| !values.contains(*value));
                    if let Some(value) = unknown {
                        self.fault(format!("no {label} of {name} is called {value}"));
                    }
                }
            }
        }
    }

    /// Reads what a variable of the dashboard asks for: a metric, and a label of it.
    fn read_label_values(&mut self) {
        let inside = self.rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let Some((metric, label)) = inside.and_then(|inside| inside.rsplit_once(", ")) else {
            return self.fault("label_values of what?");
        };
        self.rest = metric;
        let name = self.take_word();
        self.read_metric(name, "");
        self.rest = "";
        if !self.has_label(label) {
            self.fault(format!("{name} has no label {label}"));
        }
    }

    /// Returns whether the answer has the label.
    fn has_label(&self, label: &str) -> bool {
        match &self.kept {
            Some(kept) => kept.contains(label),
            None => ADDED.contains(&label) || self.is_of_metric(label),
        }
    }

    fn is_of_metric(&self, label: &str) -> bool {
        let of = |name: &&str| self.known.get(*name).is_some_and(|it| it.contains_key(label));
        self.metrics.iter().any(of)
    }

    /// Returns all faults, those of a text with `labels` in it among them.
    fn faults<'l>(mut self, labels: impl IntoIterator<Item = &'l str>) -> Vec<String> {
        let kept: Vec<&str> = self.kept.iter().flatten().copied().collect();
        for label in kept.into_iter().filter(|label| !ADDED.contains(label)) {
            if !self.is_of_metric(label) {
                self.fault(format!("sums by {label}, which no metric of it has"));
            }
        }
        for label in labels {
            if !self.has_label(label) {
                self.fault(format!("has no label {label} for its text"));
            }
        }
        self.faults
    }
}

/// Returns what stands between two marks, every time.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |part| part.split_once(close).map(|(it, _)| it.trim()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// An alert as the file has it.
#[derive(Default, Debug)]
struct Alert<'a> {
    name: &'a str,
    keys: BTreeMap<&'a str, &'a str>,
}

/// Reads alerts of the layout that our file keeps to: a key and its value on one line.
fn alerts(text: &str) -> Vec<Alert<'_>> {
    let mut alerts: Vec<Alert<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((key, value)) = line.trim().split_once(": ") else { continue };
        match (key, alerts.last_mut()) {
            ("- alert", _) => alerts.push(Alert { name: value, ..Alert::default() }),
            (key, Some(alert)) => {
                assert!(alert.keys.insert(key, value).is_none(), "{}: {key} twice", alert.name);
            }
            _ => {}
        }
    }
    alerts
}

#[test]
fn every_alert_asks_for_metrics_that_exist() {
    let (known, text) = (known(), read("etc/prometheus/lockgate.rules.yml"));
    assert!(!text.contains('\t'), "YAML takes no tabs");
    let alerts = alerts(&text);
    assert!(alerts.len() > 10, "{} alerts", alerts.len());
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.name).collect();
    assert_eq!(names.len(), alerts.len(), "two of one name");
    for Alert { name, keys } in &alerts {
        for key in ["expr", "for", "severity", "summary", "description"] {
            assert!(keys.contains_key(key), "{name} lacks {key}");
        }
        assert!(["critical", "warning"].contains(&keys["severity"]), "{name}");
        let told = format!("{} {}", keys["summary"], keys["description"]);
        let labels = between(&told, "{{ $labels.", "}}");
        assert_eq!(Query::read(&known, keys["expr"]).faults(labels), [""; 0], "{name}");
    }
}

/// Returns every value of these keys, wherever it stands.
fn values<'a>(json: &'a Value, keys: &[&str], found: &mut Vec<&'a str>) {
    match json {
        Value::Object(fields) => {
            for (key, value) in fields {
                found.extend(value.as_str().filter(|_| keys.contains(&key.as_str())));
                values(value, keys, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values(item, keys, found)),
        _ => {}
    }
}

#[test]
fn every_panel_of_the_dashboard_asks_for_metrics_that_exist() {
    let (known, text) = (known(), read("etc/grafana/lockgate.json"));
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut asked = Vec::new();
    values(&dashboard, &["expr", "definition"], &mut asked);
    assert!(asked.len() > 20, "{} queries", asked.len());
    for query in asked {
        assert_eq!(Query::read(&known, query).faults([]), [""; 0]);
    }
    let mut drawn = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = Query::read(&known, target["expr"].as_str().unwrap());
            let legend = target["legendFormat"].as_str().unwrap();
            assert_eq!(query.faults(between(legend, "{{", "}}")), [""; 0], "{title}");
            drawn += 1;
        }
        let is_row = panel["type"] == "row";
        assert!(is_row || panel["description"].as_str().unwrap().len() > 10, "{title}");
        assert!(is_row || panel["datasource"]["uid"] == "${datasource}", "{title}");
    }
    assert!(drawn > 20, "{drawn} targets");
}

#[test]
fn panels_have_numbers_and_places_of_their_own() {
    let dashboard: Value = serde_json::from_str(&read("etc/grafana/lockgate.json")).unwrap();
    let (mut numbers, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{} is too wide", panel["title"]);
        for (column, line) in (x..x + w).flat_map(|column| (y..y + h).map(move |y| (column, y))) {
            assert!(taken.insert((column, line)), "{} covers another", panel["title"]);
        }
    }
}

/// Names of metrics in a text: words with a prefix of Lockgate, without those that end in `*`.
fn metrics_in(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_word(c) && c != '*');
    words.filter(|word| word.starts_with("lockgate_") && !word.contains('*')).collect()
}

#[test]
fn the_documents_name_metrics_that_exist() {
    let known = known();
    let documents = std::fs::read_dir(root().join("docs")).unwrap();
    let documents = documents.map(|entry| entry.unwrap().path());
    let is_text = |file: &PathBuf| file.extension().is_some_and(|kind| kind == "md");
    let mut found = 0;
    for file in documents.filter(is_text).chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in metrics_in(&text) {
            assert!(known.contains_key(name), "{}: there is no metric {name}", file.display());
            found += 1;
        }
    }
    assert!(found > 15, "{found} names");
}

#[test]
fn a_mistake_in_a_query_is_found() {
    let known = known();
    let faults = |query: &str, label: &'static str| {
        Query::read(&known, query).faults(Some(label).filter(|label| !label.is_empty()))
    };
    for (good, label) in [
        ("lockgate_port_up == 0", "port"),
        ("up{job=\"lockgate\"} == 0", "instance"),
        (
            "sum by (reason) (rate(lockgate_dropped_packets_total{instance=~\"$i\"}[5m])) > 1",
            "reason",
        ),
        ("rate(lockgate_dropped_packets_total{reason=~\"integrity|ecn\"}[$__rate_interval])", ""),
        ("8 * sum(lockgate_port_up) / sum(1 - lockgate_sa_ok)", ""),
        ("label_values(lockgate_port_up{instance=~\"$instance\"}, port)", ""),
    ] {
        assert_eq!(faults(good, label), [""; 0], "{good}");
    }
    for (bad, label, why) in [
        ("lockgate_prot_up == 0", "", "no metric lockgate_prot_up"),
        ("lockgat_port_up == 0", "", "unknown word `lockgat_port_up`"),
        ("lockgate_port_up{prot=\"wan\"}", "", "no label prot"),
        ("lockgate_dropped_packets_total{reason=\"integrety\"}", "", "is called integrety"),
        ("lockgate_events_total{kind=~\"started|stoped\"}", "", "is called stoped"),
        ("rate(lockgate_port_up[5m])", "", "no counter"),
        ("sum by (reson) (lockgate_dropped_packets_total)", "", "sums by reson"),
        ("sum by (reason) (lockgate_dropped_packets_total)", "port", "no label port"),
        ("lockgate_port_up", "peer", "no label peer"),
        ("avrage(lockgate_port_up)", "", "unknown word `avrage`"),
        ("sum(lockgate_port_up", "", "brackets"),
        ("1 > 0", "", "no metric"),
        ("label_values(lockgate_port_up, peer)", "", "no label peer"),
    ] {
        let found = faults(bad, label);
        assert!(found.iter().any(|fault| fault.contains(why)), "{bad}: {found:?}");
    }
    assert_eq!(metrics_in("`lockgate_a` lockgate_*.deb process_x"), ["lockgate_a"]);
}
