//! Policies that come and go while traffic runs: what is judged by which set, what is lost, and
//! what the flow cache has to do with it.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::{AGAIN, Lab, STEP, lab};
use netlab::configuration::make_keys;
use netlab::sites::Plan;
use serde_json::Value;

/// Changes of the long run.
const CHANGES: usize = 200;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Two gateways whose caches are asked for every packet.
fn with_caches(test: &str, cache: &str) -> Option<Lab> {
    let mut lab = lab(test, Plan::default())?;
    for number in 1..=2 {
        lab.gateways.file_mut(number).extra = cache.to_owned();
    }
    lab.start(test)
}

const ALWAYS: &str = "\n[cache]\nflows = \"16K\"\nuse = \"always\"\n";

/// Runs a command of an operator that must succeed, and returns what it says.
fn succeed(lab: &Lab, number: u8, words: &[&str]) -> String {
    let finished = lab.gateways.daemon(number).unwrap().run(words).unwrap();
    assert!(finished.status.success(), "{words:?}: {}\n{}", finished.stdout, finished.stderr);
    finished.stdout
}

fn ask(lab: &Lab, words: &[&str]) -> Value {
    lab.gateways.daemon(1).unwrap().ask(words).unwrap()
}

fn add<'w>(name: &'w str, rest: &[&'w str]) -> Vec<&'w str> {
    [&["policy", "add", "--name", name], rest].concat()
}

/// The domains of gateway 1: direction and family with generation and entries.
fn domains(lab: &Lab) -> Vec<(String, u64, u64)> {
    let cache = ask(lab, &["show", "cache"]);
    let domains = cache["domains"].as_array().unwrap().iter();
    let number = |domain: &Value, key: &str| domain[key].as_u64().unwrap();
    let text = |domain: &Value, key: &str| domain[key].as_str().unwrap().to_owned();
    domains
        .map(|domain| {
            let name = format!("{} {}", text(domain, "direction"), text(domain, "family"));
            (name, number(domain, "generation"), number(domain, "entries"))
        })
        .collect()
}

fn domain<'d>(domains: &'d [(String, u64, u64)], name: &str) -> &'d (String, u64, u64) {
    domains.iter().find(|(known, ..)| known == name).unwrap()
}

/// The four lines at the end of `show policy`, as a number each.
fn entry_lines(lab: &Lab) -> Vec<(String, u64)> {
    let text = succeed(lab, 1, &["show", "policy"]);
    let lines = text.lines().filter_map(|line| line.split_once("-spd-flow-cache-entries: "));
    lines.map(|(kind, number)| (kind.to_owned(), number.parse().unwrap())).collect()
}

#[test]
fn after_the_answer_no_packet_is_judged_by_the_old_policies() {
    // FC-16, FC-17, FC-18, FC-19, FC-23
    let Some(lab) = with_caches("after_the_answer", ALWAYS) else { return };
    lab.flows_again();
    // In clear from host to host, by a policy that wins over the one that protects.
    let clear = |ours, theirs| {
        let ends = ["--action", "bypass", "--local", ours, "--remote", theirs];
        [&ends[..], &["--priority", "200", "--yes"]].concat()
    };
    succeed(&lab, 1, &add("clear", &clear("10.1.0.0/24", "10.2.0.0/24")));
    succeed(&lab, 2, &add("clear", &clear("10.2.0.0/24", "10.1.0.0/24")));
    let stream = lab.gateways.stream(1, 2, STEP).unwrap();
    pause(500);
    let entries = ask(&lab, &["show", "cache", "--entries", "1000"]);
    let decided = entries["flows"].as_array().unwrap().iter();
    assert!(decided.clone().any(|flow| flow["policy"] == "clear"), "{entries}");
    let stop = ["--action", "discard", "--remote", "10.2.0.0/24", "--priority", "300"];
    succeed(&lab, 1, &add("stop", &[&stop[..], &["--local", "any"]].concat()));
    let stopped = Instant::now();
    pause(700);
    // A later packet may still be on the way when the policy goes.
    let going = Instant::now() - Duration::from_millis(200);
    succeed(&lab, 1, &["policy", "del", "stop"]);
    let gone = Instant::now();
    pause(500);
    let stream = stream.finish();
    let arrived: std::collections::HashSet<u64> =
        stream.arrived.iter().map(|(number, _)| *number).collect();
    let between = |from: Instant, to: Instant| {
        let sent = stream.sent.iter().filter(move |(_, at)| *at > from && *at < to);
        let sent: Vec<u64> = sent.map(|(number, _)| *number).collect();
        let there = sent.iter().filter(|number| arrived.contains(number)).count();
        (sent.len(), there)
    };
    let (sent, passed) = between(stopped, going);
    assert!(sent > 10, "{sent} were sent while it was stopped");
    assert_eq!(passed, 0, "of {sent}");
    let (sent, passed) = between(gone, gone + Duration::from_millis(400));
    assert_eq!(passed, sent, "after it was taken away again");
    // Nothing is on its way: what is remembered stands still.
    let before = domains(&lab);
    assert!(domain(&before, "outbound ipv4").2 > 0, "{before:?}");
    assert!(entry_lines(&lab).iter().any(|(kind, n)| kind == "ipv4-outbound" && *n > 0));
    let far = ["--action", "discard", "--remote", "10.77.0.0/16", "--direction", "outbound"];
    succeed(&lab, 1, &add("far", &[&far[..], &["--local", "10.1.0.0/24"]].concat()));
    let after = domains(&lab);
    for (name, generation, entries) in &before {
        let expected = match name.as_str() {
            "outbound ipv4" => (generation + 1, 0),
            _ => (*generation, *entries),
        };
        let found = domain(&after, name);
        assert_eq!((found.1, found.2), expected, "{name}: {before:?} {after:?}");
    }
    let lines = entry_lines(&lab);
    let kinds: Vec<&str> = lines.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["ipv4-outbound", "ipv4-inbound", "ipv6-outbound", "ipv6-inbound"]);
    assert_eq!(lines[0].1, 0);
    lab.balances();
}

#[test]
fn two_hundred_changes_under_load_lose_no_packet_and_lead_back() {
    // FC-35 in the small; revisions and rollback over single policies and files.
    let Some(mut lab) = with_caches("two_hundred", ALWAYS) else { return };
    let first = ask(&lab, &["show", "status"])["revision"].as_u64().unwrap();
    let quarry = lab.hunt(|gateways| {
        let daemon = gateways.daemon(1).unwrap();
        for change in 0..CHANGES / 2 {
            let name = format!("n{change}");
            let remote = format!("10.{}.0.0/16", 3 + change % 200);
            // Some win over the policy of the stream, and speak of others.
            let priority = (99 + change % 3).to_string();
            let ends = ["--local", "any", "--remote", &remote];
            let words = [&ends[..], &["--action", "bypass", "--priority", &priority]].concat();
            for words in [add(&name, &words), vec!["policy", "del", &name]] {
                let finished = daemon.run(&words).unwrap();
                assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
            }
        }
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    lab.balances();
    let now = || ask(&lab, &["show", "status"])["revision"].as_u64().unwrap();
    assert_eq!(now(), first + CHANGES as u64);
    let names = || -> Vec<String> {
        let shown = ask(&lab, &["show", "policy"]);
        let policies = shown["policies"].as_array().unwrap().iter();
        policies.map(|policy| policy["name"].as_str().unwrap().to_owned()).collect()
    };
    let at_first = names();
    // Back to the middle, where a policy had come and not gone yet.
    let middle = (first + 101).to_string();
    assert!(succeed(&lab, 1, &["export", &middle]).contains("\"n50\""));
    succeed(&lab, 1, &["rollback", &middle]);
    assert!(names().contains(&"n50".to_owned()), "{:?}", names());
    succeed(&lab, 1, &["policy", "del", "n50"]);
    assert_eq!(names(), at_first);
    succeed(&lab, 1, &["rollback"]);
    assert!(names().contains(&"n50".to_owned()), "{:?}", names());
    // A file replaces them all, and what was changed one by one can be had again.
    let file: PathBuf = lab.gateways.file(1).path();
    lab.gateways.daemon(1).unwrap().apply(&file).unwrap();
    assert_eq!(names(), at_first);
    let exported = lab.gateways.file(1).beside("exported.toml");
    std::fs::write(&exported, succeed(&lab, 1, &["export"])).unwrap();
    assert_eq!(succeed(&lab, 1, &["diff", "-f", exported.to_str().unwrap()]), "");
    // All or nothing: the second of the transaction is wrong.
    let finished = lab.gateways.daemon(1).unwrap();
    let finished = finished.run(&["policy", "del", &at_first[0], "no-such"]).unwrap();
    assert!(!finished.status.success() && finished.stderr.contains("no-such"));
    assert_eq!(names(), at_first);
    lab.flows_again();
    lab.balances();
}

/// An edit of a policy under its name, and a rollback, keep the counts of the policy.
fn edit_and_rollback_keep_counts(lab: &Lab, first: &str, file: &Path) {
    let counted = || {
        let shown = ask(lab, &["show", "policy", first]);
        shown["policies"][0]["outbound"]["packets"].as_u64().unwrap()
    };
    let decided = counted();
    assert!(decided > 0, "the stream was protected");
    let exported = succeed(lab, 1, &["export"]);
    let section = exported.split("[[policy]]").find(|text| text.contains(&format!("{first:?}")));
    let section = section.unwrap().split("\n[").next().unwrap();
    let edited = format!("[[policy]]{}", section.replace("priority = ", "priority = 1"));
    std::fs::write(file, edited).unwrap();
    let file = file.to_str().unwrap();
    succeed(lab, 1, &["policy", "change", "--del", first, "--add", file]);
    assert!(counted() >= decided, "{} of {decided}", counted());
    succeed(lab, 1, &["rollback"]);
    assert!(counted() >= decided, "{} of {decided}", counted());
}

#[test]
fn a_change_that_takes_packets_from_a_protect_policy_is_refused_until_somebody_says_yes() {
    let Some(mut lab) = with_caches("takes_packets", "") else { return };
    let policies = ask(&lab, &["show", "policy"]);
    let policies = policies["policies"].as_array().unwrap().iter();
    let protect: Vec<String> = policies
        .filter(|policy| policy["action"] == "PROTECT")
        .map(|policy| policy["name"].as_str().unwrap().to_owned())
        .collect();
    let first = protect[0].as_str();
    let file = lab.gateways.file(1).beside("same-name.toml");
    let section = format!(
        "[[policy]]\nname = \"{first}\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
         remote = [\"any\"]\n"
    );
    std::fs::write(&file, section).unwrap();
    let any = ["--action", "bypass", "--local", "any", "--remote", "any"];
    let revision = || ask(&lab, &["show", "status"])["revision"].as_u64().unwrap();
    let (before, low) = (revision(), [&any[..], &["--priority", "1"]].concat());
    // Below the policies that protect, a BYPASS takes nothing.
    succeed(&lab, 1, &add("rest", &low));
    let quarry = lab.hunt(|gateways| {
        let daemon = gateways.daemon(1).unwrap();
        let refused = |words: &[&str], code: i32, says: &[&str]| {
            let finished = daemon.run(words).unwrap();
            assert_eq!(finished.status.code(), Some(code), "{words:?}: {}", finished.stdout);
            for word in says {
                assert!(finished.stderr.contains(word), "{words:?}: {}", finished.stderr);
            }
        };
        refused(&add("oops", &["--action", "bypass"]), 2, &["--local", "--remote"]);
        let named = format!("from policy \"{first}\" (protect with peer");
        let takes = ["policy \"oops\" (bypass) takes", &named, "--yes", "nothing was changed"];
        refused(&add("oops", &any), 1, &takes);
        refused(&add("oops", &[&any[..], &["--dry-run"]].concat()), 1, &takes);
        refused(&["policy", "del", first], 1, &["policy \"rest\" (bypass) takes", &named]);
        let file = file.to_str().unwrap();
        refused(&["policy", "change", "--del", first, "--add", file], 1, &[&named]);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    let revision = || ask(&lab, &["show", "status"])["revision"].as_u64().unwrap();
    assert_eq!(revision(), before + 1, "only the BYPASS below was added");
    edit_and_rollback_keep_counts(&lab, first, &file);
    let before = before + 2;
    // With the operator's yes it is done, and told.
    succeed(&lab, 1, &add("oops", &[&any[..], &["--yes"]].concat()));
    succeed(&lab, 1, &["policy", "del", "oops"]);
    assert_eq!(revision(), before + 3);
    let events = succeed(&lab, 1, &["events", "--json"]);
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let message = |event: &Value| event["message"].as_str().unwrap().to_owned();
    let told = |event: &Value| {
        event["kind"] == "policies_changed"
            && event["subject"] == "oops"
            && message(event).contains("added \"oops\" (bypass)")
            && event["details"]["takes_from"].as_str().is_some_and(|from| from.contains(first))
    };
    assert!(events.iter().any(told), "{events:?}");
    // The dry run is no change, so no event reports its refusal.
    let refused = events.iter().filter(|event| event["kind"] == "policies_refused");
    assert_eq!(refused.count(), 3, "{events:?}");
}

/// Resident memory of the daemon of gateway 1, bytes.
fn resident(lab: &Lab) -> u64 {
    let pid = lab.gateways.daemon(1).unwrap().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_rekey_keeps_what_is_remembered_and_a_cache_that_is_off_is_not_there() {
    // FC-09, FC-10, FC-12, FC-13, FC-40
    let text = "\n[cache]\nuse = \"always\"\n";
    let Some(mut lab) = with_caches("rekey", text) else { return };
    let at_start = resident(&lab);
    lab.flows_again();
    let cache = ask(&lab, &["show", "cache"]);
    let workers = cache["workers"].as_array().unwrap().len() as u64;
    assert_eq!(cache["size"]["entries"], 65_536 * workers, "{cache}");
    assert_eq!(cache["max_size"]["entries"], 4_194_304, "{cache}");
    assert_eq!(cache["max_size"]["bytes"], 134_217_728, "{cache}");
    assert!(resident(&lab) < at_start + (4 << 20), "{at_start} bytes at the start");
    let before = domains(&lab);
    assert!(domain(&before, "outbound ipv4").2 > 0, "{before:?}");
    let spis = |lab: &Lab| ask(lab, &["show", "sa"])["sas"][0]["spi"].clone();
    let old = spis(&lab);
    let keys = lab.gateways.sites.laboratory.directory().join("keys");
    let (a, b) = (lab.gateways.file(1).name().to_owned(), lab.gateways.file(2).name().to_owned());
    make_keys(&lab.gateways.programs, &keys, &a, &b).unwrap();
    for number in 1..=2 {
        let file = lab.gateways.file(number).path();
        lab.gateways.daemon(number).unwrap().apply(&file).unwrap();
    }
    assert_ne!(spis(&lab), old, "the SAs are others");
    assert_eq!(domains(&lab), before, "policies did not change");
    lab.flows_again();
    // Off: no lines, no memory.
    let on = resident(&lab);
    lab.gateways.file_mut(1).extra = "\n[cache]\nflows = \"off\"\n".to_owned();
    let off = lab.gateways.file(1).beside("off.toml");
    lab.gateways.file(1).write_as(&off).unwrap();
    lab.gateways.daemon(1).unwrap().apply(&off).unwrap();
    assert_eq!(entry_lines(&lab), []);
    assert!(succeed(&lab, 1, &["show", "cache"]).contains("is off"));
    let end = Instant::now() + AGAIN;
    while resident(&lab) + workers * (2 << 20) > on {
        assert!(Instant::now() < end, "{on} bytes on, {} off", resident(&lab));
        pause(50);
    }
    lab.flows_again();
    // Larger than is offered: refused, and what runs goes on.
    lab.gateways.file_mut(1).extra = "\n[cache]\nflows = \"4G\"\n".to_owned();
    lab.gateways.file(1).write_as(&off).unwrap();
    let refused = lab.gateways.daemon(1).unwrap().apply(&off);
    assert!(refused.is_err(), "{refused:?}");
    lab.flows_again();
    lab.balances();
}

/// Sends a packet of each of 131,070 flows from site 1's host to site 2's.
fn send_many_flows(lab: &Lab) {
    let to = lab.gateways.site(2).host_v4();
    let send = || {
        for _ in 0..2 {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 1..=u16::MAX {
                // Refused where a queue is full: other flows go on.
                let _ = socket.send_to(b"flow", (to.as_str(), port));
                // A gateway on the same core gets its turn before a ring is full.
                if port % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        }
    };
    lab.gateways.site(1).host.enter(send).unwrap();
}

#[test]
fn many_flows_make_the_cache_larger_and_few_do_not() {
    // FC-09
    let text = "\n[cache]\nuse = \"always\"\n";
    let Some(lab) = with_caches("larger", text) else { return };
    let size = |lab: &Lab| {
        let cache = ask(lab, &["show", "cache"]);
        ["size", "max_size"].map(|size| cache[size]["bytes"].as_u64().unwrap())
    };
    lab.flows_again();
    pause(2500);
    let [first, most] = size(&lab);
    assert!(first <= 4 << 20 && most == 128 << 20, "{first} of {most}");
    let before = resident(&lab);
    let end = Instant::now() + AGAIN;
    while size(&lab)[0] == first {
        assert!(Instant::now() < end, "{}", ask(&lab, &["show", "cache"]));
        send_many_flows(&lab);
    }
    let [larger, still_most] = size(&lab);
    assert!(larger >= first + (6 << 20) && larger <= most && still_most == most, "{larger}");
    let after = resident(&lab);
    println!("{first} bytes, {before} resident; {larger} bytes, {after} resident");
    assert!(after > before + (4 << 20), "{before} bytes before, {after} after");
    let events = succeed(&lab, 1, &["events", "--json", "--kind", "cache_grown"]);
    assert!(events.contains("has room for 262144 entries"), "{events:?}");
    lab.flows_again();
    lab.balances();
}
