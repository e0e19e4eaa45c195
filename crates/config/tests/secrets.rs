//! A key that stands where none belongs: in the configuration, or instead of it. What is said
//! about the file shows nothing of it.

use std::fs;

use config::{ConfigErrors, generate_pair, load, parse};
use ipsec::Suite;
use proptest::prelude::*;

/// Key and salt for AES-128-GCM.
const KEY: &str = "a1a2a3a4a5a6a7a8a9aaabacadaeafa0b1b2b3b4";

const CONFIGURATION: &str = r#"[node]
name = "gw-a"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.1.0.1/24"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
[cache]
flows = "1M"
[peer.berlin]
local = "192.0.2.1"
remote = "198.51.100.7"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-128-gcm"
[[policy]]
name = "berlin-net"
peer = "berlin"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
protocol = "tcp"
priority = 7
[[route]]
to = "default"
via = "192.0.2.254"
[[neighbour]]
port = "wan"
address = "192.0.2.254"
mac = "02:00:00:00:02:fe"
"#;

/// Everything that is told about a text, for people and for machines.
fn told(text: &str) -> String {
    match parse(text, "test.toml") {
        Ok(parsed) => config::render(&parsed.warnings),
        Err(errors) => everything(&errors),
    }
}

fn everything(errors: &ConfigErrors) -> String {
    let json = serde_json::to_string(&errors.problems).expect("JSON");
    format!("{errors}\n{json}")
}

/// No run of eight hexadecimal digits of `secret` stands in `text`.
fn assert_not_shown(secret: &str, text: &str, of: &str) {
    let text = text.to_lowercase();
    let secret = secret.to_lowercase();
    let runs = secret.as_bytes().windows(8).filter(|run| run.iter().all(u8::is_ascii_hexdigit));
    for run in runs {
        let run = std::str::from_utf8(run).expect("digits");
        assert!(!text.contains(run), "{run} is shown for\n{of}\n{text}");
    }
}

/// Texts to be put into a place of a key file: one thing in each, another in the next; with
/// `LOCKGATE_LONG` all of them.
fn put_at(place: usize) -> Vec<&'static str> {
    const ALL: [&str; 9] = ["x", "\n", "\"", "=", " ", "", "[", "#", "é"];
    match std::env::var_os("LOCKGATE_LONG") {
        Some(_) => ALL.to_vec(),
        None => vec![ALL[place % ALL.len()]],
    }
}

#[test]
fn a_key_file_that_is_checked_instead_of_the_configuration_is_not_shown() {
    for (number, &suite) in Suite::ALL.iter().enumerate() {
        for pair in generate_pair(suite).expect("keys") {
            let secret = pair.lines().filter(|line| !line.starts_with('#')).collect::<String>();
            assert_not_shown(&secret, &told(&pair), &pair);
            for (at, _) in pair.char_indices() {
                for other in put_at(at + number) {
                    let changed = format!("{}{other}{}", &pair[..at], &pair[at + 1..]);
                    assert_not_shown(&changed, &told(&changed), &changed);
                }
            }
        }
    }
}

#[test]
fn a_key_in_any_place_of_the_configuration_is_not_shown() {
    for (number, line) in CONFIGURATION.lines().enumerate() {
        let (name, value) = line.split_once(" = ").unwrap_or((line, ""));
        let header = line.trim_start_matches('[').trim_end_matches(']');
        let section = line.replace(header.rsplit('.').next().unwrap_or(header), KEY);
        for instead in [
            KEY.to_owned(),
            format!("out 0x1001 {KEY}"),
            format!("{name} = {KEY}"),
            format!("{name} = 0x{KEY}"),
            format!("{name} = 0x{}", &KEY[8..]),
            format!("{name} = \"{KEY}\""),
            format!("{name} = \"{KEY}"),
            format!("{name} = \"file:{KEY}\""),
            format!("{name} = \"file:{}x{}\"", &KEY[..10], &KEY[11..]),
            format!("{name} = [\"{KEY}\"]"),
            format!("{name} = [\"{}\n{}\"]", &KEY[..10], &KEY[10..]),
            format!("{KEY} = {value}"),
            format!("{KEY} = 1\n{KEY} = 2\n{line}"),
            format!("key = \"{KEY}\"\n{line}"),
            format!("ah = \"{KEY}\"\n{line}"),
            format!("{line} # {KEY}"),
            format!("{line} {KEY}"),
            section,
        ] {
            let lines = CONFIGURATION.lines().enumerate();
            let text: Vec<&str> =
                lines.map(|(at, line)| if at == number { &instead } else { line }).collect();
            assert_not_shown(KEY, &told(&text.join("\n")), &instead);
        }
    }
}

#[test]
fn a_key_as_the_name_of_a_directory_or_a_file_is_not_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("secrets.toml");
    for (from, to) in [
        ("name = \"gw-a\"", format!("name = \"gw-a\"\nkeys_dir = \"{KEY}\"")),
        ("file:berlin.keys", format!("file:{KEY}")),
    ] {
        fs::write(&path, CONFIGURATION.replace(from, &to)).expect("written");
        let errors = load(&path, None).err().expect("refused");
        assert_not_shown(KEY, &everything(&errors), &to);
    }
}

/// Only the key is hidden: the mistake beside it is told as ever.
#[test]
fn a_pasted_key_is_told_by_its_place() {
    let pasted = format!("suite = \"aes-128-gcm\"\nmaterial = \"{KEY}\"");
    let text = told(&CONFIGURATION.replace("suite = \"aes-128-gcm\"", &pasted));
    assert!(
        text.contains("test.toml:19:1: error: unknown key `material` in [peer.berlin]"),
        "{text}"
    );
    let text = told(&CONFIGURATION.replace("\"aes-128-gcm\"", &format!("\"{KEY}\"")));
    assert!(
        text.contains("test.toml:18:9: error: this value is wrong, and is not shown"),
        "{text}"
    );
    assert!(text.contains("keys belong in a file of their own"), "{text}");
    let text = told(&CONFIGURATION.replace("\"1M\"", "\"1Q\""));
    assert!(text.contains("flows = \"1Q\""), "other lines are shown:\n{text}");
}

proptest! {
    // Few, because each reads a configuration in every way; `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Wherever it was pasted.
    #[test]
    fn a_key_pasted_anywhere_is_not_shown(
        at in 0..CONFIGURATION.len(),
        around in "[ \"=\n\\[\\],.x]{0,2}",
        upper: bool,
    ) {
        let key = if upper { KEY.to_uppercase() } else { KEY.to_owned() };
        let (before, after) = CONFIGURATION.split_at(at);
        let text = format!("{before}{around}{key}{around}{after}");
        assert_not_shown(KEY, &told(&text), &text);
    }
}
