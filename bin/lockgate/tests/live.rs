//! The commands about the running gateway, the real binary, before a daemon that is none: what is
//! asked, what is printed, and how it ends.

mod common;
#[path = "common/daemon.rs"]
mod daemon;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::Place;
use daemon::{Lab, RUNNING};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn without_a_daemon_every_command_says_so_and_ends_with_its_code_for_trouble() {
    let place = Place::with_gateways();
    let socket = place.file("none.sock");
    let socket = socket.to_str().unwrap();
    let asks: [(i32, &[&str]); 7] = [
        (1, &["show", "port"]),
        (1, &["apply", "-f", "a.toml"]),
        (1, &["rollback"]),
        (1, &["export"]),
        (1, &["events", "-f"]),
        (1, &["explain", "--in", "lan", "esp", "10.1.0.5", "10.2.0.9"]),
        (2, &["diff", "-f", "a.toml"]),
    ];
    for (code, words) in asks {
        let said = ["nothing answers at", "none.sock", "is lockgated running?"];
        place.fails(code, &[words, &["--socket", socket]].concat(), &said);
    }
    place.write("file", "");
    place.fails(1, &["--socket", "file", "show", "port"], &["file: is no socket"]);
}

#[test]
fn the_socket_is_the_one_named_else_that_of_the_environment() {
    let lab = Lab::new();
    let run = |socket: &Path, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let ran = command.env(api::SOCKET_VARIABLE, socket).args(words).output().unwrap();
        ran.status.code()
    };
    assert_eq!(run(&lab.socket, &["show", "status"]), Some(0));
    assert_eq!(run(Path::new("/nowhere"), &["show", "status"]), Some(1));
    let named = ["show", "status", "--socket", lab.socket.to_str().unwrap()];
    assert_eq!(run(Path::new("/nowhere"), &named), Some(0));
}

#[test]
fn everything_is_shown_as_text_and_as_the_json_of_the_api() {
    let lab = Lab::new();
    let shown: [(&str, &str, &str); 13] = [
        ("status", "1 min 5 s", "/uptime_ms"),
        ("port", "native, copy", "/ports/0/queues/0/rx_packets"),
        ("peer", "berlin", "/peers/0/state"),
        ("sa", "0x00001001, peer : refused: its record is gone", "/sas/0/state_reason"),
        ("policy", "ipv6-outbound-spd-flow-cache-entries: 3", "/cache_entries/0/entries"),
        ("placement", "Card nic0 (emulated)", "/rules/1/reason"),
        ("placement", "outbound policies in the order of lookup", "/policies/0/in_front"),
        ("group", "Group web (enforce); in: lan; out: -", "/groups/0/rules/0/decided/packets"),
        ("cache", "grows up to 4194304 entries, 134217728 bytes", "/max_size/bytes"),
        ("neighbour", "no neighbours", "/neighbours"),
        ("route", "blackhole", "/routes/0/kind"),
        ("counters", "nothing matches", "/tiers/classifier"),
        ("revisions", "apply", "/revisions/0/cause"),
    ];
    for (what, words, pointer) in shown {
        let text = lab.succeeds(&["show", what]);
        assert!(text.contains(words), "{what}: no {words:?} in {text}");
        let json = lab.json(&["show", what]);
        assert!(json.pointer(pointer).is_some(), "{what}: no {pointer} in {json}");
    }
    lab.fails(2, &["show", "port", "lan"], &["there is no port \"lan\""]);
    lab.fails(2, &["show", "port", "lan", "wan"], &["takes one name"]);
}

#[test]
fn connections_come_page_by_page_and_go_by_the_same_filter() {
    let lab = Lab::new();
    let text = lab.succeeds(&["show", "connection", "host", "10.1.0.7"]);
    let row = " tcp       10.1.0.7:4000  10.2.0.9\\n:443  established       0  host 10.1.0.7  -";
    assert_eq!(text.lines().filter(|line| *line == row).count(), 2, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("originator")).count(), 1, "{text}");
    assert!(text.contains("2 connections, 0 of them half-open; 0 of 64 places"), "{text}");
    let json = lab.json(&["show", "connections"]);
    assert_eq!(json["connections"][1]["originator"]["port"], 4000);
    assert_eq!(json["table"]["max"], 64);
    lab.fails(2, &["show", "connection", "hots", "10.1.0.7"], &["no word of a filter"]);
    assert_eq!(lab.succeeds(&["connection", "clear", "tcp", "on"]), "removed 6 connections\n");
    assert_eq!(lab.json(&["connection", "clear"])["removed"], 0);
    lab.fails(2, &["show", "connection", "--entries", "3"], &["--entries is for"]);
}

#[test]
fn the_overview_is_what_no_command_shows_too() {
    let lab = Lab::new();
    let text = lab.succeeds(&[]);
    for words in
        ["gw-a\\u{1b}[2J: lockgate", "1 min 5 s", "silent", "- peer berlin does not answer"]
    {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(!text.contains('\x1b'), "colours are for terminals: {text:?}");
    for words in [&["status"][..], &["show", "status"]] {
        assert_eq!(lab.succeeds(words), text);
    }
    assert_eq!(lab.json(&["status"])["warnings"][0], "peer berlin does not answer");
    // Again and again, until nobody reads.
    let program = env!("CARGO_BIN_EXE_lockgate");
    let mut watch = Command::new(program);
    watch.args(["status", "--watch", "1", "--socket"]).arg(&lab.socket);
    let mut watch = watch.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.by_ref().filter(|line| line.starts_with("gw-a")).take(2).count(), 2);
    drop(lines);
    assert!(watch.wait().unwrap().success());
    let alone = lab.place.run(&["--socket", "/nowhere"]);
    assert_eq!(alone.code(), 1);
    assert!(alone.err().contains("`lockgate --help` lists the commands"), "{}", alone.err());
    lab.fails(2, &["status", "--watch", "0"], &["1..=3600"]);
}

#[test]
fn apply_sends_the_text_with_its_absolute_place_and_ends_with_what_became_of_it() {
    let lab = Lab::new();
    for text in ["good", "bad", "unfit", "forbidden", "full"] {
        lab.place.write(text, text);
    }
    let ran = lab.place.run(&lab.args(&["apply", "-f", "good"]));
    assert_eq!((ran.code(), ran.err().as_str()), (0, "note: peer berlin: its key is refused\n"));
    assert!(ran.out().contains("revision 5 runs: 0 changes, generation 9"), "{}", ran.out());
    let here = std::fs::canonicalize(&lab.place.path).unwrap();
    let sent = lab.fake.applied.lock().unwrap()[0].clone();
    assert_eq!((sent.text.as_str(), sent.dry_run), ("good", false));
    assert_eq!(Path::new(&sent.file), here.join("good"));
    assert_eq!(Path::new(&sent.base_directory), here);
    let dry = lab.json(&["apply", "-f", "good", "--dry-run"]);
    assert_eq!(dry["dry_run"], true);
    lab.succeeds(&["apply", "-f", "good", "--confirm", "2m"]);
    let sent = lab.fake.applied.lock().unwrap().pop().unwrap();
    assert_eq!(sent.confirm_within_s, 120);
    lab.fails(2, &["apply", "-f", "good", "--confirm", "soon"], &["60, 60s, 2m or 1h"]);
    lab.fails(2, &["apply", "-f", "good", "--confirm", "9", "--dry-run"], &["cannot be used with"]);
    assert_eq!(lab.succeeds(&["confirm"]), "revision 5 is confirmed and stays\n");
    assert_eq!(lab.json(&["confirm", "5"])["revision"], 5);
    lab.fails(1, &["confirm", "6"], &["nothing waits to be confirmed"]);
    let saved = lab.succeeds(&["apply", "-f", "good", "--save"]);
    assert!(saved.ends_with("saved to /etc/x.toml\n"), "{saved}");
    assert!(lab.fake.applied.lock().unwrap().pop().unwrap().save);
    let ran = lab.place.run(&lab.args(&["apply", "-f", "full", "--save"]));
    assert_eq!(ran.code(), 1, "{}", ran.out());
    assert!(ran.err().contains("the change runs, but is not saved: no space"), "{}", ran.err());
    lab.fails(2, &["apply", "-f", "good", "--save", "--confirm", "9"], &["cannot be used with"]);
    assert_eq!(lab.succeeds(&["save"]), "revision 5 is saved to /etc/x.toml\n");
    assert_eq!(lab.json(&["save"])["file"], "/etc/x.toml");
    lab.fails(1, &["apply", "-f", "bad"], &["new.toml:1:1: not good"]);
    lab.fails(1, &["apply", "-f", "unfit"], &["eth9 is not there; nothing was changed"]);
    lab.fails(1, &["apply", "-f", "forbidden"], &["be root"]);
    lab.fails(1, &["apply", "-f", "missing"], &["missing: "]);
    assert_eq!(lab.json(&["rollback", "2"])["revision"], 2);
    for bad in ["abc", "0", "-1", "99999999999999999999"] {
        let said = ["a revision is a number from 1: see `lockgate rollback --list`"];
        lab.fails(2, &["rollback", "--", bad], &said);
    }
    assert_eq!(lab.succeeds(&["rollback", "--list"]), lab.succeeds(&["show", "revisions"]));
    assert_eq!(lab.json(&["rollback", "--list"])["revisions"][0]["revision"], 3);
    assert_eq!(lab.succeeds(&["export"]), RUNNING);
}

#[test]
fn policies_are_added_from_options_or_a_file_and_removed_by_name() {
    let lab = Lab::new();
    lab.place.write("new", "[[policy]]\nname = \"n\"\n");
    let text = lab.succeeds(&[
        "policy",
        "add",
        "--name",
        "web",
        "--peer",
        "berlin",
        "--local",
        "any",
        "--remote",
        "10.2.0.0/16",
        "--protocol",
        "tcp",
        "--remote-ports",
        "443,8000-8999",
        "--priority",
        "7",
    ]);
    assert!(text.contains("revision 6 runs: 0 changes, generation 10"), "{text}");
    assert_eq!(lab.json(&["policy", "add", "-f", "new", "--dry-run"])["dry_run"], true);
    assert_eq!(lab.json(&["policy", "add", "new", "--dry-run"])["dry_run"], true);
    lab.succeeds(&["policy", "del", "a", "b"]);
    lab.succeeds(&["policy", "change", "--add", "new", "--del", "a", "b"]);
    lab.fails(1, &["policy", "del", "unknown"], &["no policy \"unknown\"; nothing was changed"]);
    lab.fails(1, &["policy", "add", "-f", "missing"], &["missing: "]);
    for senseless in [&["add"][..], &["del"], &["change"], &["add", "-f", "new", "--name", "n"]] {
        lab.fails(2, &[&["policy"], senseless].concat(), &["Usage"]);
    }
    // Nothing stands for all addresses but the word.
    let oops = ["policy", "add", "--name", "oops", "--action", "bypass"];
    lab.fails(2, &oops, &["--local", "--remote"]);
    lab.fails(2, &[&oops[..], &["--local", "any"]].concat(), &["--remote"]);
    let sent = lab.fake.changed.lock().unwrap().clone();
    let web = "[[policy]]\nname = \"web\"\npeer = \"berlin\"\nprotocol = \"tcp\"\n\
               local = [\"any\"]\nremote = [\"10.2.0.0/16\"]\n\
               remote_ports = [\"443\", \"8000-8999\"]\npriority = 7\n";
    let new = "[[policy]]\nname = \"n\"\n";
    let asked: Vec<(&str, Vec<&str>)> = sent
        .iter()
        .map(|asked| (&*asked.add, asked.remove.iter().map(String::as_str).collect()))
        .collect();
    let expected: [(&str, Vec<&str>); 6] = [
        (web, vec![]),
        (new, vec![]),
        (new, vec![]),
        ("", vec!["a", "b"]),
        (new, vec!["a", "b"]),
        ("", vec!["unknown"]),
    ];
    assert_eq!(asked, expected);
    assert_eq!((sent[0].file.as_str(), sent[1].dry_run), ("the command line", true));
}

#[test]
fn sas_are_put_from_a_file_or_standard_input_and_deleted_by_spi() {
    let lab = Lab::new();
    let write = |name: &str, text: &str| {
        let path = lab.place.file(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
    };
    write("sas", "in 0x5d3c7e01 0a0b peer=paris replaces=0x2001\nout 4097 0c hard_packets=9\n");
    let text = lab.succeeds(&["sa", "put", "sas", "--peer", "berlin"]);
    assert!(text.starts_with("put 1 SA, 1 SA ran already, "), "{text}");
    let sent = lab.fake.put.lock().unwrap().pop().unwrap();
    // The keys may be of any time.
    assert_eq!(sent.incarnation, "");
    let [first, second] = &sent.sas[..] else { panic!("{sent:?}") };
    assert_eq!((first.direction.as_str(), first.spi.as_str()), ("inbound", "0x5d3c7e01"));
    assert_eq!((first.peer.as_str(), &first.key[..]), ("paris", &[10, 11][..]));
    assert_eq!((first.replaces.as_deref(), first.hard), (Some("0x00002001"), None));
    assert_eq!((second.peer.as_str(), second.hard.unwrap().packets), ("berlin", Some(9)));
    assert_eq!(lab.json(&["sa", "put", "sas", "--peer", "b", "--incarnation", "run-6"])["put"], 1);
    assert_eq!(lab.fake.put.lock().unwrap().pop().unwrap().incarnation, "run-6");
    lab.fails(2, &["sa", "put", "sas"], &["names no peer", "--peer NAME"]);
    write("met", "out 500 0c\nout 501 ff\n");
    let met = ["sa", "put", "met", "--peer", "b"];
    lab.fails(1, &met, &["SA 2: the key was put before; nothing was changed"]);
    write("bad", "out 500 deadbeef options\n");
    let ran = lab.place.run(&lab.args(&["sa", "put", "bad"]));
    assert!(ran.code() == 1 && ran.err().contains("bad:1:18"), "{}", ran.err());
    assert!(!ran.err().contains("deadbeef"), "{}", ran.err());
    lab.place.write("open", "out 500 0c peer=b\n");
    lab.fails(1, &["sa", "put", "open"], &["wider than 0600"]);

    assert!(lab.succeeds(&["sa", "del", "768", "0x1001"]).starts_with("deleted 2 SAs, "));
    let sent = lab.fake.deleted.lock().unwrap().pop().unwrap();
    let names: Vec<_> = sent.sas.iter().map(|sa| (&*sa.direction, &*sa.spi)).collect();
    assert_eq!(names, [("inbound", "768"), ("outbound", "4097")]);
    lab.fails(2, &["sa", "del", "0x2001"], &["--direction in or out"]);
    lab.fails(2, &["sa", "del", "spi"], &["\"spi\" is no SPI"]);
    let of_b = ["sa", "del", "0x2001", "--direction", "out", "--peer", "b"];
    assert_eq!(lab.json(&of_b)["deleted"], 1);
    let sent = lab.fake.deleted.lock().unwrap().pop().unwrap();
    assert_eq!((&*sent.sas[0].direction, &*sent.sas[0].peer), ("outbound", "b"));

    let text = lab.succeeds(&["sa", "reserve", "berlin"]);
    assert!(
        text.starts_with("0x5d3c7e01 is reserved for peer berlin for 300 s: worker 1"),
        "{text}"
    );
    assert_eq!(lab.json(&["sa", "reserve", "berlin"])["incarnation"], "run-7");
    lab.fails(2, &["sa", "reserve", "brelin"], &["did you mean \"berlin\"?"]);
}

#[test]
fn policies_that_need_sas_are_shown_until_the_daemon_ends() {
    let lab = Lab::new();
    let ran = lab.place.run(&lab.args(&["sa", "watch"]));
    let flow = "10.1.0.5 port 1000 to 10.2.0.9 port 53, udp";
    let lines = [1, 2].map(|id| format!("{id}: peer berlin, policy berlin-net: {flow}\n"));
    // The stream ended by itself, which is a failure: no further request would be seen.
    assert_eq!((ran.code(), ran.out()), (1, lines.concat()), "{}", ran.err());
    let ran = lab.place.run(&lab.args(&["sa", "watch", "--json"]));
    let first: serde_json::Value = serde_json::from_str(ran.out().lines().next().unwrap()).unwrap();
    assert_eq!((&first["peer"], &first["ports"]["destination"]), (&"berlin".into(), &53.into()));
}

#[test]
fn the_caches_entries_are_shown_as_many_as_are_asked_for() {
    let lab = Lab::new();
    let text = lab.succeeds(&["show", "cache", "--entries", "2", "--worker", "1"]);
    assert_eq!(text.matches("10.1.0.7").count(), 2, "{text}");
    assert!(text.contains("web") && text.contains("there are more"), "{text}");
    let text = lab.succeeds(&["show", "cache", "--entries", "1", "--stale"]);
    assert!(text.contains("7 (stale)"), "{text}");
    let json = lab.json(&["show", "cache", "--entries", "1"]);
    assert_eq!(json["flows"][0]["policy"], "web");
    lab.fails(2, &["show", "port", "--entries", "1"], &["is for `lockgate show cache`"]);
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn diff_ends_like_diff() {
    let lab = Lab::new();
    let other = RUNNING.replace("priority = 1", "priority = 2");
    lab.place.write("same", RUNNING);
    lab.place.write("other", &other);
    lab.place.write("bad", &other.replace("discard", "discrad"));
    assert_eq!(lab.succeeds(&["diff", "-f", "same"]), "");
    let ran = lab.place.run(&lab.args(&["diff", "-f", "other"]));
    let notes = "note: keys were not compared: be root or in group lockgate-admin\n";
    let is_root = is_root();
    assert_eq!(ran.code(), 1);
    let policy = "~ policy dns\n    - priority = 1\n    + priority = 2\n";
    assert_eq!(
        (ran.out().as_str(), ran.err().as_str()),
        (policy, if is_root { "" } else { notes })
    );
    lab.fails(2, &["diff", "-f", "bad"], &["bad:8:10: error: ", "discrad"]);
    lab.fails(2, &["diff", "-f", "missing"], &["missing: "]);
    let json = lab.place.run(&lab.args(&["diff", "-f", "other", "--json"])).out();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ok"], &json["revision"]), (&true.into(), &4.into()));
    assert_eq!(
        (&json["differences"][0]["name"], &json["keys_compared"]),
        (&"dns".into(), &is_root.into())
    );
}

/// The daemon compares keys, by a dry run.
#[test]
fn diff_compares_keys_for_administrators_only() {
    let lab = Lab::new();
    if !is_root() {
        eprintln!("SKIPPED: diff_compares_keys_for_administrators_only: needs root");
        return;
    }
    for name in ["keys", "busy", "lost"] {
        lab.place.write(name, &format!("{RUNNING}# {name}\n"));
    }
    let ran = lab.place.run(&lab.args(&["diff", "-f", "keys"]));
    let told = "~ keys of peer berlin\n    + out 0x00001001 fingerprint 0123456789abcdef…\n";
    assert_eq!((ran.code(), ran.out().as_str()), (1, told));
    assert!(lab.fake.applied.lock().unwrap().iter().all(|request| request.dry_run));
    let ran = lab.place.run(&lab.args(&["diff", "-f", "busy"]));
    let told = "note: keys were not compared: revision 5 waits\n";
    assert_eq!((ran.code(), ran.err().as_str()), (0, told));
    lab.fails(2, &["diff", "-f", "lost"], &["berlin.keys: is not there"]);
    // A reader asks for the running text alone.
    lab.fake.applied.lock().unwrap().clear();
    let program = lab.place.copy_program();
    for (path, mode) in [(&lab.place.path, 0o755), (&lab.socket, 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut reader = Command::new("setpriv");
    reader.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    reader.arg(program).args(lab.args(&["diff", "-f", "-"])).current_dir(&lab.place.path);
    let file = std::fs::File::open(lab.place.file("keys")).unwrap();
    let ran = reader.stdin(file).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    let told = "note: keys were not compared: be root or in group lockgate-admin\n";
    assert_eq!((ran.status.code(), &*said), (Some(0), told));
    assert!(lab.fake.applied.lock().unwrap().is_empty());
}

#[test]
fn the_daemon_and_the_file_explain_alike() {
    let lab = Lab::new();
    let asks: [&[&str]; 5] = [
        &["--in", "lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"],
        &["--in", "lan", "icmp/8/0", "10.1.0.10", "10.3.0.10"],
        &["--in", "lan", "--fragment", "tcp", "10.1.0.10", "10.2.0.10"],
        &["--in", "wan", "--from-peer", "b", "udp", "10.2.0.10:7", "10.1.0.10:7"],
        &["--in", "host", "esp", "10.1.0.1", "10.2.0.10"],
    ];
    for ask in asks {
        let of_file = [&["explain", "--config", "a.toml"], ask].concat();
        let of_daemon = [&["explain"], ask].concat();
        assert_eq!(lab.place.succeeds(&of_file), lab.succeeds(&of_daemon), "{ask:?}");
        assert_eq!(lab.place.json(&of_file), lab.json(&of_daemon), "{ask:?}");
    }
    lab.fails(2, &["explain", "--in", "lna", "esp", "10.1.0.1", "10.2.0.1"], &["lan, wan, host"]);
}

#[test]
fn explain_notes_the_ports_on_a_packets_way_that_are_down() {
    let lab = Lab::new();
    let lines = |ask: &[&str]| -> Vec<String> {
        let text = lab.succeeds(&[&["explain", "--in"], ask].concat());
        text.lines().filter(|line| line.contains(" is down")).map(str::to_owned).collect()
    };
    let dead = |names: &[&str]| {
        let port = |name: &&str| control::DeadPort {
            name: (*name).to_owned(),
            state: "down".into(),
            reason: "eth0 has no carrier".into(),
        };
        *lab.fake.dead.lock().unwrap() = names.iter().map(port).collect();
    };
    let to_b = ["lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"];
    let to_us = ["lan", "tcp", "10.1.0.10:1", "10.1.0.1:22"];
    let nowhere = ["lan", "udp", "[2001:db8:1::10]:1", "[2002::1]:2"];
    assert_eq!(lines(&to_b), [""; 0], "all are up");
    dead(&["wan"]);
    let [told] = &lines(&to_b)[..] else { panic!("one note: {:?}", lines(&to_b)) };
    assert!(told.ends_with("port wan is down: eth0 has no carrier; no packet leaves by it"));
    assert_eq!(lines(&to_us), [""; 0], "the packet does not come near that port");
    let [told] = &lines(&nowhere)[..] else { panic!("one note: {:?}", lines(&nowhere)) };
    assert!(told.ends_with("; Linux has no routes by it"), "{told}");
    dead(&["lan", "wan"]);
    let both = lines(&to_b);
    let [came, left] = &both[..] else { panic!("two notes: {both:?}") };
    assert!(came.contains("port lan is down") && came.ends_with("; no packet comes in by it"));
    assert!(left.contains("port wan is down") && left.ends_with("; no packet leaves by it"));
    dead(&["a", "b", "c", "d", "e", "f"]);
    assert_eq!(lines(&nowhere).len(), 4, "no more than a few");
}

#[test]
fn events_are_lines_for_people_or_of_json() {
    let lab = Lab::new();
    let text = lab.succeeds(&["events"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("notice  wan: two | lines [port_up]"), "{text}");
    let text = lab.succeeds(&["events", "--json"]);
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["details"], serde_json::json!({"port": "wan", "limit": 5}), "{first}");
    let numbers: Vec<u64> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2]);
    let filters = ["--kind", "port_up,port_down", "--severity", "notice"];
    lab.succeeds(&[&["events", "--since", "2026-08-30T12:00:00Z"], &filters[..]].concat());
    let asked = lab.fake.watched.lock().unwrap().pop().unwrap();
    assert_eq!(asked.kinds, ["port_up", "port_down"]);
    assert_eq!(asked.severity.as_deref(), Some("notice"));
    assert_eq!(asked.since.as_deref(), Some("2026-08-30T12:00:00.000000000Z"));
    lab.fails(2, &["events", "--since", "noon"], &["10m"]);
    // Who follows is told that the daemon has ended.
    let ran = lab.place.run(&lab.args(&["events", "-f"]));
    assert_eq!((ran.code(), ran.out().lines().count()), (1, 2), "{}", ran.err());
    assert!(ran.err().contains("the daemon ended"), "{}", ran.err());
}

#[test]
fn a_capture_escapes_the_names_it_shows() {
    let lab = Lab::new();
    let shown = lab.succeeds(&["capture", "wan"]);
    let fate = "drop policy_discard; inbound policy \\u{1b}[2J\\u{202e}\\nforged\n";
    assert!(shown.ends_with(fate) && shown.lines().count() == 1, "{shown:?}");
    let json = lab.succeeds(&["capture", "wan", "--json"]);
    assert!(!json.contains(['\x1b', '\u{202e}']) && json.lines().count() == 1, "{json:?}");
    lab.fails(1, &["capture", "lan"], &["capture: permission denied"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let place = Place::empty();
    place.succeeds(&["generate", "man", "m"]);
    let words = [
        "apply", "confirm", "diff", "rollback", "save", "export", "policy", "show", "explain",
        "events", "probe",
    ];
    for word in words.into_iter().chain(["detach", "check", "keygen", "replay", "demo", "bench"]) {
        assert!(place.file(&format!("m/lockgate-{word}.1")).exists(), "{word}");
    }
}

/// Environment variable that makes this test program a stand-in daemon: a file for its socket's
/// path.
const STAND_IN: &str = "LOCKGATE_TEST_STAND_IN";

/// Not a test: the process that [`StandIn`] starts.
#[test]
fn stand_in_daemon() {
    let Some(file) = std::env::var_os(STAND_IN) else { return };
    let lab = Lab::new();
    lab.fake.follows.store(true, std::sync::atomic::Ordering::Relaxed);
    let beside = Path::new(&file).with_extension("new");
    std::fs::write(&beside, lab.socket.to_str().unwrap()).unwrap();
    std::fs::rename(&beside, &file).unwrap();
    // Until the test that started it ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A stand-in daemon in a process of its own, so that it can be stopped.
struct StandIn {
    child: Child,
    socket: String,
}

impl StandIn {
    fn start(place: &Place) -> StandIn {
        let file = place.file("socket-of-stand-in");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "stand_in_daemon"]).env(STAND_IN, &file);
        // The stand-in is killed: its directory is removed with the test's.
        command.env("TMPDIR", &place.path);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stand_in = StandIn { child, socket: String::new() };
        while stand_in.socket.is_empty() {
            assert_eq!(stand_in.child.try_wait().unwrap(), None, "the stand-in ended");
            stand_in.socket = std::fs::read_to_string(&file).unwrap_or_default();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        stand_in
    }

    /// Sends a signal, and waits until the kernel shows its effect.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        let stat = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
        while is_stopped() != (signal == Signal::STOP) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_command_names_a_daemon_that_is_stopped() {
    let place = Place::with_gateways();
    let stand_in = StandIn::start(&place);
    let socket = stand_in.socket.as_str();
    let commands: [(i32, &[&str]); 12] = [
        (1, &[]),
        (1, &["status"]),
        (1, &["show", "port"]),
        (1, &["show", "policy"]),
        (1, &["apply", "a.toml"]),
        (2, &["diff", "a.toml"]),
        (1, &["export"]),
        (1, &["rollback"]),
        (1, &["events"]),
        (1, &["sa", "watch"]),
        (1, &["show", "endpoint"]),
        (1, &["capture", "wan"]),
    ];
    // A daemon that is at work answers: the socket is right.
    place.succeeds(&["status", "--socket", socket]);
    stand_in.signal(Signal::STOP);
    let process = stand_in.child.id();
    let named = format!(
        "lockgated (process {process}, state T) does not answer: it is stopped, and `kill -CONT \
         {process}` continues it"
    );
    std::thread::scope(|scope| {
        for (code, words) in commands {
            let (place, named) = (&place, &named);
            scope.spawn(move || {
                place.fails(code, &[words, &["--socket", socket]].concat(), &[named]);
            });
        }
    });
    stand_in.signal(Signal::CONT);
    place.succeeds(&["status", "--socket", socket]);
}

#[test]
fn a_command_that_waits_names_a_daemon_that_is_stopped_meanwhile() {
    let place = Place::with_gateways();
    let stand_in = StandIn::start(&place);
    let mut follow = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    follow.args(["events", "--follow", "--socket", &stand_in.socket]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("two | lines"), "{first}");
    stand_in.signal(Signal::STOP);
    let ended = follow.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let named = format!("(process {}, state T) does not answer", stand_in.child.id());
    assert!(told.contains(&named), "{told}");
}

#[test]
fn a_capture_file_is_whole_although_the_daemon_is_stopped_meanwhile() {
    let place = Place::with_gateways();
    let stand_in = StandIn::start(&place);
    let path = place.file("wan.pcapng");
    let mut capture = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    capture.args(["capture", "wan", "--socket", &stand_in.socket, "-w"]).arg(&path);
    let capture = capture.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let length = || std::fs::metadata(&path).map_or(0, |file| file.len());
    while length() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    stand_in.signal(Signal::STOP);
    let ended = capture.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let named = format!("(process {}, state T) does not answer", stand_in.child.id());
    assert!(told.contains(&named) && told.contains("none left out: broken off"), "{told}");
    let bytes = std::fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("of the whole capture: none left out"), "{text}");
}

#[test]
fn apply_and_diff_send_the_texts_of_set_files() {
    let lab = Lab::new();
    let text = "[node]\nname = \"a\"\n[set.s]\nfile = \"sets/s.txt\"\n";
    lab.place.write("new.toml", text);
    let missing = ["new.toml:4:8: error: set file sets/s.txt cannot be read: No such file"];
    lab.fails(1, &["apply", "new.toml"], &missing);
    lab.fails(2, &["diff", "new.toml"], &missing);
    std::fs::create_dir(lab.place.file("sets")).unwrap();
    lab.place.write("sets/s.txt", "10.0.0.0/8\n");
    let ran = lab.place.run(&lab.args(&["apply", "new.toml"]));
    assert!(!ran.err().contains("does not start"), "{}", ran.err());
    let sent = lab.fake.applied.lock().unwrap().pop().unwrap();
    let (file, text) = ("sets/s.txt".into(), "10.0.0.0/8\n".into());
    assert_eq!(sent.included, [api::v1::IncludedText { file, text }]);
    // The next start would refuse the link.
    std::os::unix::fs::symlink("s.txt", lab.place.file("sets/link.txt")).unwrap();
    lab.place.write("new.toml", "[node]\nname = \"a\"\n[set.s]\nfile = \"sets/link.txt\"\n");
    let ran = lab.place.run(&lab.args(&["apply", "new.toml"]));
    let warning = "4:8: warning: lockgated does not start with set file sets/link.txt";
    assert_eq!(ran.err().matches(warning).count(), 1, "{}", ran.err());
    let ran = lab.place.run(&lab.args(&["diff", "new.toml"]));
    assert_eq!(ran.err().matches(warning).count(), 1, "{}", ran.err());
}

#[test]
fn a_set_file_is_opened_with_the_rights_of_the_caller() {
    // A user who is not root: another one if this test is root's.
    let place = Place::with_gateways();
    let open = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.file(name), mode).unwrap();
    };
    place.write("secret", "root:*:20228:0:99999:7:::\n");
    let secret = place.file("secret");
    let text = format!("[node]\nname = \"a\"\n[set.s]\nfile = \"{}\"\n", secret.display());
    place.write("new.toml", &text);
    let program = place.copy_program();
    for (name, mode) in [(".", 0o755), ("lockgate", 0o755), ("new.toml", 0o644), ("secret", 0)] {
        open(name, mode);
    }
    let mut command = Command::new(program);
    command.args(["apply", "new.toml", "--socket", "none.sock"]).current_dir(&place.path);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let ran = command.output().unwrap();
    let told = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{told}");
    let named = format!("set file {} cannot be read: Permission denied", secret.display());
    assert!(told.contains(&named) && !told.contains("root:"), "{told}");
}
