//! `check` and `keygen`, the real binary.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};

use common::Place;
use serde_json::Value;
use wire::build::PacketBuilder;

#[test]
fn a_good_file_is_said_to_be_good_in_one_line() {
    let place = Place::with_gateways();
    let ran = place.run(&["check", "a.toml"]);
    assert_eq!(ran.code(), 0);
    let line = ran.out();
    let good = "a.toml: OK: node gw-a, 2 ports, 2 peers, 4 policies, 5 routes; ";
    assert!(line.starts_with(good) && line.lines().count() == 1, "{line}");
    assert_eq!(ran.err(), "", "`manual` acknowledges that the keys are a laboratory's");
    let json = place.json(&["check", "a.toml"]);
    assert_eq!((&json["ok"], &json["errors"]), (&Value::Bool(true), &0.into()));
}

#[test]
fn the_effective_configuration_is_one_that_checks_and_says_the_same() {
    let place = Place::with_gateways();
    let effective = place.succeeds(&["check", "--effective", "a.toml"]);
    assert!(effective.contains("replay_window = 1024"), "{effective}");
    place.write("effective.toml", &effective);
    assert_eq!(place.succeeds(&["check", "--effective", "effective.toml"]), effective);
    let json = place.json(&["check", "--effective", "a.toml"]);
    assert_eq!(json["effective"], Value::String(effective));
}

#[test]
fn a_bad_file_is_refused_with_place_and_nearest_word() {
    let place = Place::with_gateways();
    let bad = place.text("a.toml").replace("priority = 50", "prioritty = 50");
    place.write("bad.toml", &bad);
    let line = bad.lines().position(|line| line.contains("prioritty")).unwrap() + 1;
    let at = format!("bad.toml:{line}:1: ");
    place.fails(1, &["check", "bad.toml"], &[&at, "did you mean `priority`?", "1 error"]);
    let ran = place.run(&["check", "--json", "bad.toml"]);
    assert_eq!(ran.code(), 1);
    let json: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(json["ok"], Value::Bool(false));
    let problem = &json["problems"].as_array().unwrap().last().unwrap();
    assert_eq!((&problem["line"], &problem["column"]), (&line.into(), &1.into()));
}

/// A gateway with a group of so many rules, no two of which are of the same packets.
fn with_rules(count: u32) -> String {
    let mut text = "[node]\nname = \"gw\"\n\
        [port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\naddresses = [\"10.0.0.1/24\"]\n\
        groups_in = [\"web\"]\n\
        [port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\naddresses = [\"192.0.2.1/24\"]\n\
        [group.web]\nmode = \"enforce\"\n"
        .to_owned();
    for number in 0..count {
        let action = ["permit", "deny", "reflect"][number as usize % 3];
        let [_, high, middle, low] = (number << 2).to_be_bytes();
        let rule = format!(
            "[[rule]]\ngroup = \"web\"\naction = \"{action}\"\nprotocol = \"tcp\"\n\
             from = [\"10.{high}.{middle}.{low}/30\"]\nto = [\"10.200.0.0/16\"]\n\
             to_ports = [\"{}\"]\n",
            1 + number % 60_000,
        );
        text.push_str(&rule);
    }
    text
}

#[test]
fn a_hundred_thousand_rules_are_read_and_the_bad_one_is_named() {
    let place = Place::with_gateways();
    let good = with_rules(100_000);
    place.write("many.toml", &good);
    let line = place.succeeds(&["check", "many.toml"]);
    assert!(line.contains("; 0 warnings"), "{line}");
    let bad = format!("{good}[[rule]]\ngroup = \"web\"\nacton = \"permit\"\n");
    place.write("bad.toml", &bad);
    let at = format!("bad.toml:{}:1", bad.lines().count());
    place.fails(1, &["check", "bad.toml"], &[&at, "did you mean `action`?"]);
}

#[test]
fn files_that_are_missing_are_named() {
    let place = Place::with_gateways();
    place.fails(1, &["check", "nowhere.toml"], &["nowhere.toml"]);
    std::fs::remove_file(place.file("a-b.keys")).unwrap();
    place.fails(1, &["check", "a.toml"], &["a-b.keys", "lockgate keygen"]);
}

#[test]
fn unfit_key_files_are_refused_and_their_content_never_shown() {
    let place = Place::with_gateways();
    let good = place.text("a-b.keys");
    let lines = good.lines().filter(|line| !line.starts_with('#'));
    let secret: Vec<&str> = lines.filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(secret.len(), 2);
    let set_mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.file("a-b.keys"), permissions).unwrap();
    };
    let refused = |words: &[&str]| {
        place.fails(1, &["check", "a.toml"], words);
        let ran = place.run(&["check", "--json", "a.toml"]);
        for text in [ran.out(), ran.err()] {
            assert!(!secret.iter().any(|key| text.contains(&key[..8])), "{text}");
        }
    };
    set_mode(0o640);
    refused(&["a-b.keys", "0640"]);
    set_mode(0o600);
    place.write("a-b.keys", &good[..good.len() - 3]);
    refused(&["a-b.keys:3:", "hexadecimal digits"]);
    std::fs::rename(place.file("a-b.keys"), place.file("real.keys")).unwrap();
    symlink("real.keys", place.file("a-b.keys")).unwrap();
    refused(&["a-b.keys", "symbolic link"]);
}

#[test]
fn keygen_makes_a_pair_for_its_owner_only_and_shows_no_key() {
    let place = Place::empty();
    let said = place.succeeds(&["keygen", "--out-dir", "keys", "paris", "berlin"]);
    let mode = std::fs::metadata(place.file("keys")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700, "the directory that it made");
    assert!(said.contains("keys/paris-berlin.keys") && said.contains("file:berlin-paris.keys"));
    let mut lines = Vec::new();
    for name in ["keys/paris-berlin.keys", "keys/berlin-paris.keys"] {
        let mode = std::fs::metadata(place.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
        for line in place.text(name).lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert!(!said.contains(&words[2]), "{said}");
            assert_eq!(words[2].len(), 40, "128 bits of key and 32 of salt");
            lines.push(words);
        }
    }
    let same = |a: &[String], b: &[String]| a[1..] == b[1..] && a[0] != b[0];
    assert!(same(&lines[0], &lines[3]) && same(&lines[1], &lines[2]), "mirrored");
    assert_ne!(lines[0][1..], lines[1][1..]);
}

#[test]
fn keygen_says_why_a_directory_cannot_be_made() {
    let place = Place::empty();
    place.write("taken", "");
    place.fails(1, &["keygen", "--out-dir", "taken/keys", "a", "b"], &["taken/keys", "directory"]);
}

/// Checks the promises of README.md and of the example's first lines.
#[test]
fn the_example_is_good_with_the_keys_that_it_names() {
    let place = Place::empty();
    place.write("gw-a.toml", include_str!("../../../etc/lockgate.toml"));
    place.succeeds(&["keygen", "gw-a", "berlin"]);
    let json = place.json(&["check", "gw-a.toml"]);
    assert_eq!((&json["ok"], &json["errors"]), (&true.into(), &0.into()), "{json}");
    assert_eq!(json["warnings"], 0, "{json}");
    let packet = PacketBuilder::v4("10.1.0.10", "10.2.0.10").udp(5, 6);
    let frame = packet.frame([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 0x10], None);
    place.capture("lan.pcap", &[frame]);
    let json = place.json(&["replay", "--config", "gw-a.toml", "lan.pcap", "out.pcap"]);
    assert_eq!(json["verdicts"][0]["verdict"], "protect", "{json}");
    assert_eq!(place.packets("out.wan.pcap").len(), 1);
}

#[test]
fn keygen_overwrites_nothing_and_leaves_no_half_pair() {
    let place = Place::empty();
    place.write("b-a.keys", "precious");
    place.fails(1, &["keygen", "a", "b"], &["b-a.keys", "not overwritten"]);
    assert_eq!(place.names(), ["b-a.keys"]);
    assert_eq!(place.text("b-a.keys"), "precious");
}

/// A disk that is full, by way of a limit on the size of files.
#[test]
fn keygen_leaves_no_partial_file_when_writing_fails() {
    let place = Place::empty();
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" keygen a b";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockgate")]).current_dir(&place.path);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a-b.keys cannot be written"), "{said}");
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn keygen_refuses_what_cannot_be_meant() {
    let place = Place::empty();
    place.fails(2, &["keygen", "a", "a"], &["different names"]);
    place.fails(2, &["keygen", "../a", "b"], &["cannot be the name"]);
    place.fails(2, &["keygen", "--suite", "aes-128-cbc", "a", "b"], &["aes-256-gcm"]);
    assert!(place.names().is_empty());
    let json = place.json(&["keygen", "--suite", "aes-256-gcm", "a", "b"]);
    assert_eq!(json["files"][1]["keys"], "file:b-a.keys");
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_2() {
    let place = Place::empty();
    for args in [&["chekc", "a.toml"][..], &["check"], &["check", "--effectiv", "a"]] {
        assert_eq!(place.run(args).code(), 2, "{args:?}");
    }
}
