//! Tests that the files of docs/reference show the code's own tables: the keys of the
//! configuration, drop reasons, events and metrics. `cargo xtask reference` runs these tests with
//! `LOCKGATE_WRITE_REFERENCE` set, and they write the files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use config::schema::{Default, Key, SECTIONS};
use dataplane::DropReason;

use crate::events::{Kind, RateLimit, Severity};
use crate::metrics;

/// Checks a file of docs/reference, or writes it if the environment says so.
fn check(file: &str, title: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(file);
    let text = format!(
        "# {title}\n\n<!-- Written by `cargo xtask reference` from the code's own tables: change \
         those. -->\n\n{text}"
    );
    if std::env::var_os("LOCKGATE_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = text.lines().zip(found.lines()).find(|(right, found)| right != found);
    assert!(
        found == text,
        "docs/reference/{file} is stale: run `cargo xtask reference`; first difference: \
         {differing:?}"
    );
}

/// A row of a table in Markdown.
fn row<const N: usize>(cells: [&str; N]) -> String {
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

fn default(key: &Key) -> String {
    match key.default {
        Default::Required => "required".into(),
        Default::Value(value) => format!("`{value}`"),
        Default::Words(words) => words.into(),
    }
}

#[test]
fn the_reference_of_configuration_keys_is_current() {
    let mut text = "One TOML file. [CONFIGURATION.md](../CONFIGURATION.md) explains how to write \
                    it; `lockgate check FILE --effective` prints a file with every default.\n"
        .to_owned();
    for section in SECTIONS {
        let _ = write!(text, "\n## `{}`\n\n{}\n\n", section.header, section.meaning);
        text += "| key | value | default | meaning |\n|---|---|---|---|\n";
        for key in section.keys {
            let name = format!("`{}`", key.name);
            text += &row([&name, key.value.words(), &default(key), key.meaning]);
        }
    }
    check("configuration.md", "Configuration keys", &text);
}

#[test]
fn the_reference_of_drop_reasons_is_current() {
    let mut text = "The gateway counts every dropped packet under one reason: `lockgate show \
                    counters`, and the metric `lockgate_dropped_packets_total`.\n\n\
                    | reason | meaning | what to do |\n|---|---|---|\n"
        .to_owned();
    for reason in DropReason::ALL {
        let (meaning, action) = reason.help().split_once("; ").unwrap();
        text += &row([&format!("`{reason}`"), meaning, action]);
    }
    check("drop-reasons.md", "Drop reasons", &text);
}

#[test]
fn the_reference_of_events_is_current() {
    let mut text = "`lockgate events` shows the events of the running daemon; each is also one \
                    line of the log. Severities, the most severe first: "
        .to_owned();
    text += &Severity::ALL.map(Severity::word).join(", ");
    text += ". A kind that is limited is reported once a second at most for one subject; the last \
             event that was held back follows, with `repeated`, the number held back.\n\n\
             | kind | severity | limited | meaning |\n|---|---|---|---|\n";
    for kind in Kind::ALL {
        let limited = if kind.rate_limit() == RateLimit::PerSecond { "yes" } else { "" };
        text += &row([&format!("`{kind}`"), kind.severity().word(), limited, kind.help()]);
    }
    check("events.md", "Events", &text);
}

#[test]
fn the_reference_of_metrics_is_current() {
    let mut text = "The daemon serves its metrics at the address of `[metrics] listen`, path \
                    `/metrics`, as Prometheus text format 0.0.4, or as OpenMetrics if the request \
                    asks for it.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    let scrape = metrics::tests::texts(3)[0].clone();
    let mut labels: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for sample in scrape.lines().filter(|line| !line.starts_with('#')) {
        let (name, _) = sample.split_once([' ', '{']).unwrap();
        let of_sample = metrics::lint::labels(sample.rsplit_once(' ').unwrap().0).unwrap();
        let names = of_sample.into_iter().map(|(name, _)| format!("`{name}`"));
        labels.entry(name).or_insert_with(|| names.collect());
    }
    let words = |line: &'static str| move |text: &str| text.strip_prefix(line).map(str::to_owned);
    let types: BTreeMap<String, String> = scrape
        .lines()
        .filter_map(words("# TYPE "))
        .filter_map(|line| line.split_once(' ').map(|(name, kind)| (name.into(), kind.into())))
        .collect();
    for line in scrape.lines().filter_map(words("# HELP ")) {
        let (name, help) = line.split_once(' ').unwrap();
        let labels = labels.get(name).map(|labels| labels.join(", ")).unwrap_or_default();
        text += &row([&format!("`{name}`"), &types[name], &labels, help]);
    }
    check("metrics.md", "Metrics", &text);
}
