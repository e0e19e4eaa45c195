//! The demonstrations that need namespaces, as people run them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netlab::process::{self, Running};
use netlab::{Laboratory, Programs};
use serde_json::Value;

/// Time for a demonstration, and for its end.
const PATIENCE: Duration = Duration::from_secs(300);

/// The command `lockgate demo` with its words; `None`: no laboratory can be built here.
fn demo(test: &str, words: &[&str]) -> Option<Command> {
    if let Err(error) = Laboratory::new() {
        println!("SKIPPED: {test}: {error}");
        return None;
    }
    let mut command = Command::new(Programs::find().unwrap().lockgate);
    command.arg("demo").args(words);
    Some(command)
}

/// Plays a demonstration with these words, which must hold, and returns its JSON; `None`: no
/// laboratory can be built here.
fn played(test: &str, words: &[&str]) -> Option<Value> {
    let ran = process::run(demo(test, words)?, PATIENCE).unwrap();
    if net::lacks_a_feature(&ran.stderr) || net::lacks_a_feature(&ran.stdout) {
        println!("SKIPPED: {test}: {}", ran.stderr.trim().replace('\n', " | "));
        return None;
    }
    assert_eq!(ran.status.code(), Some(0), "{}\n{}", ran.stderr, ran.stdout);
    Some(serde_json::from_str(&ran.stdout).unwrap())
}

#[test]
fn groups_hold_in_the_first_scenes_of_their_demonstration() {
    let test = "groups_hold";
    let Some(answer) = played(test, &["acl", "--scenes", "8", "--json"]) else { return };
    let told = [&answer["demo"], &answer["rules"], &answer["scenes"], &answer["ok"]];
    assert_eq!(
        told,
        [&"acl".into(), &"stateless and stateful".into(), &8.into(), &Value::Bool(true)]
    );
    // Each scene but the first asks again without its rule.
    let checks = answer["checks"].as_array().unwrap();
    let names = checks.iter().map(|check| check["name"].as_str().unwrap());
    let controls = names.filter(|name| name.starts_with("control: "));
    assert!(controls.count() >= 6, "{checks:?}");
    for reason in ["group_deny", "group_no_match"] {
        assert!(answer["drops"][reason].as_u64().unwrap() > 0, "{reason}: {answer}");
    }
    let counters = answer["counters"].as_array().unwrap();
    for name in ["web/http", "lan (in)", "dmz (out)", "would_deny", "group_no_match"] {
        let rows: Vec<_> = counters.iter().filter(|row| row["counter"] == name).collect();
        assert!(!rows.is_empty(), "no {name}: {counters:?}");
        assert!(rows.iter().all(|row| row["counted"] == row["sent"]), "{name}: {rows:?}");
    }
}

// AX-01 AX-02 AX-14 AX-18 AX-27 LEASE
#[test]
fn each_set_of_tenants_has_its_tier_in_the_demonstration_of_overlays() {
    let test = "each_set_of_tenants";
    let Some(answer) = played(test, &["overlay", "--json"]) else { return };
    assert_eq!((&answer["demo"], &answer["ok"]), (&"overlay".into(), &true.into()));
    let sets = answer["sets"].as_array().unwrap();
    let [kernel, workers] = sets.as_slice() else { panic!("{sets:?}") };
    assert_eq!((&kernel["set"], &workers["set"]), (&"10.0.0.0/24".into(), &"11.0.0.0/24".into()));
    let number = |value: &Value| value.as_u64().unwrap();
    assert!(number(&kernel["kernel"]) > number(&kernel["workers"]), "{kernel}");
    assert!(number(&workers["kernel"]) == 0 && number(&workers["workers"]) > 0, "{workers}");
    // AX-18: and both at once, each in its tier.
    let checks = answer["checks"].as_array().unwrap();
    let is_both = |check: &&Value| check["name"].as_str().unwrap().starts_with("both at once");
    assert!(checks.iter().find(is_both).is_some_and(|check| check["ok"] == true), "{checks:?}");
    for set in sets {
        let [sent, arrived] = ["udp_sent", "udp_arrived"].map(|name| number(&set[name]));
        assert!(sent > 0 && arrived > 0 && arrived <= sent, "{set}");
    }
    let full = &answer["full"];
    assert_eq!((number(&full["reached"]), number(&full["dropped"])), (10_000, 0), "{full}");
    assert_eq!((number(&full["resident"]), &full["pressure"]), (1024, &1.0.into()), "{full}");
    assert!(number(&answer["wire"]["esp"]) > 0, "{answer}");
    assert_eq!(number(&answer["wire"]["clear"]), 0, "{answer}");
}

// AX-19
#[test]
fn the_demonstration_of_overlays_has_two_nodes_with_two_sets_of_tenants_and_a_wing() {
    let test = "two nodes and a wing";
    let Some(command) = demo(test, &["overlay"]) else { return };
    let mut running = Running::start(command).unwrap();
    // Its first laboratory.
    let prefix = format!("lg{}-0-", running.pid());
    if let Err(error) = running.wait_until("a check", PATIENCE, |it| it.stdout().contains(" ok ")) {
        assert!(net::lacks_a_feature(&error.to_string()), "{error}");
        println!("SKIPPED: {test}: {error}");
        return;
    }
    let mut roles = left(Path::new("/run/netns"), &prefix);
    roles.sort();
    assert_eq!(roles, ["fabric", "node1", "node2", "wing"].map(|role| prefix.clone() + role));
    let within = |role: &str, words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{prefix}{role}")]).args(words);
        process::succeed(command, PATIENCE).unwrap()
    };
    for (node, number) in [("node1", 1), ("node2", 2)] {
        for (device, set) in [("vx10", 10), ("vx11", 11)] {
            let shown = within(node, &["ip", "-4", "-o", "addr", "show", "dev", device]);
            let found = shown.lines().filter_map(|line| line.split_whitespace().nth(3));
            let tenants = [1, 2].map(|tenant| format!("{set}.0.0.{number}{tenant}/24"));
            assert_eq!(found.collect::<Vec<_>>(), tenants, "{node}");
        }
    }
    // The speed that a veth says it has; nothing holds packets to it.
    for (role, netdev) in [("node1", "eth0"), ("node2", "eth0"), ("wing", "fab0")] {
        let speed = within(role, &["cat", &format!("/sys/class/net/{netdev}/speed")]);
        assert_eq!(speed.trim(), "10000", "{role}, Mbit/s");
    }
    assert_eq!(running.interrupt(PATIENCE).unwrap().status.code(), Some(1));
}

#[test]
fn keys_from_ike_carry_packets_over_changes_and_kills_in_their_demonstration() {
    // Up to the tunnel with certificates.
    demonstrates_ike(&["ike", "--scenes", "4", "--json"], 7);
}

#[test]
#[ignore = "make test-long PART=charon"]
fn other_implementations_agree_with_the_demonstration_of_ike() {
    let Some(answer) = demonstrates_ike(&["ike", "--json"], 11) else { return };
    assert_eq!(answer["skipped"].as_array().unwrap(), &[] as &[Value], "{answer}");
    assert_eq!(answer["ike"]["children"], 300, "{answer}");
    for name in ["tshark decrypts", "strongSwan's own ESP", "SAs follow a gateway"] {
        let is_named = |check: &&Value| check["name"].as_str().unwrap().starts_with(name);
        let checks = answer["checks"].as_array().unwrap();
        assert!(checks.iter().find(is_named).is_some_and(|check| check["ok"] == true), "{name}");
    }
    assert!(answer["wire"]["udp_esp"].as_u64().unwrap() > 0, "{answer}");
}

/// Plays the demonstration of IKE with these words, which has at least so many checks.
fn demonstrates_ike(words: &[&str], checks: usize) -> Option<Value> {
    let test = "demo ike";
    let ran = process::run(demo(test, words)?, PATIENCE).unwrap();
    // Neither strongSwan nor its plugin is part of Lockgate.
    let lacks = ran.stdout.contains("missing: charon")
        || ran.stdout.contains("no libstrongswan-lockgate.so")
        || net::lacks_a_feature(&ran.stdout)
        || net::lacks_a_feature(&ran.stderr);
    if lacks {
        println!("SKIPPED: {test}: {}", ran.stdout.trim().replace('\n', " | "));
        return None;
    }
    assert_eq!(ran.status.code(), Some(0), "{}\n{}", ran.stderr, ran.stdout);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&answer["demo"], &answer["ok"]), (&"ike".into(), &true.into()), "{answer}");
    assert!(answer["checks"].as_array().unwrap().len() >= checks, "{answer}");
    let ike = &answer["ike"];
    let numbers = ["rekeys", "acquires", "lost"].map(|name| ike[name].as_u64().unwrap());
    assert!(numbers[0] == 7 && numbers[1] >= 1 && numbers[2] == 0, "{ike}");
    let wire = ["esp", "clear"].map(|name| answer["wire"][name].as_u64().unwrap());
    assert!(wire[0] > 0 && wire[1] == 0, "{answer}");
    Some(answer)
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    leaves_nothing("acl", 6);
    match Path::new("/usr/lib/ipsec/charon").exists() {
        true => leaves_nothing("ike", 5),
        false => println!("SKIPPED: interrupted: ike: strongSwan is not installed"),
    }
    leaves_nothing("overlay", 4);
}

/// Interrupts a demonstration that has so many namespaces behind its first check.
fn leaves_nothing(name: &str, count: usize) {
    let Some(command) = demo("interrupted", &[name]) else { return };
    let mut running = Running::start(command).unwrap();
    // `lockgate` becomes the program that it executes.
    let prefix = format!("lg{}-", running.pid());
    let namespaces = || left(Path::new("/run/netns"), &prefix);
    if let Err(error) = running.wait_until("a check", PATIENCE, |it| it.stdout().contains(" ok ")) {
        assert!(net::lacks_a_feature(&error.to_string()), "{error}");
        println!("SKIPPED: interrupted: {error}");
        return;
    }
    assert_eq!(namespaces().len(), count, "{:?}", namespaces());
    let ended = running.interrupt(PATIENCE).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    let directories = left(&std::env::temp_dir(), &prefix);
    assert_eq!([namespaces(), directories], [Vec::<String>::new(), Vec::new()]);
}

/// Names in a directory that begin with `prefix`.
fn left(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

// HA-05, HA-07, HA-14
#[test]
#[ignore = "make test-long PART=cards"]
fn an_emulated_card_is_slow_small_forgetful_and_a_liar_in_the_demonstration_of_offload() {
    let test = "demo offload";
    let Some(answer) = played(test, &["offload", "--json"]) else { return };
    let told = [&answer["demo"], &answer["emulated"], &answer["ok"], &answer["ledger_imbalance"]];
    let expected = [Value::from("offload"), true.into(), true.into(), 0.into()];
    assert_eq!(told, expected.each_ref());
    let number = |value: &Value| value.as_u64().unwrap();
    for scene in answer["scenes"].as_array().unwrap() {
        assert!(number(&scene["tagged"]) > 0 && number(&scene["lost"]) == 0, "{scene}");
    }
    assert!(number(&answer["audited"]) > 0 && number(&answer["wrong"]) == 0, "{answer}");
    assert!(number(&answer["captures"]["tagged"]) > 0, "{answer}");
    let modes = answer["modes"].as_array().unwrap();
    let named: Vec<&str> = modes.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(named, ["none", "crypto", "packet", "auto"]);
    for row in modes {
        let of = |name: &str| number(&row[name]);
        assert_eq!([of("lost"), of("wire_clear"), of("repeated")], [0, 0, 0], "{row}");
        let is_clear = row["mode"] == "packet" || row["mode"] == "auto";
        assert_eq!((of("host_clear") > 0, of("host_esp") > 0), (is_clear, !is_clear), "{row}");
        let in_clear = if row["mode"] == "crypto" { of("host_esp") } else { 0 };
        assert_eq!([of("host_esp_in_clear"), of("wire_esp_in_clear")], [in_clear, 0], "{row}");
    }
}
