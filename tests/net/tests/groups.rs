//! Security groups of a running gateway: rules and members of sets that come and go under pings,
//! and what the operator is told of them.

use net::{Lab, lab};
use netlab::ping::Ping;
use netlab::sites::Plan;
use serde_json::Value;

const GROUPS: &str = r#"
[set.hosts]
addresses = ["10.2.0.0/16", "fd00:2::/48"]

[group.lan-in]
[[rule]]
group = "lan-in"
name = "all"
action = "permit"
from = ["any"]
to = ["any"]
"#;

fn run(lab: &Lab, words: &[&str]) -> (bool, String) {
    let finished = lab.gateways.daemon(1).unwrap().run(words).unwrap();
    (finished.status.success(), format!("{}{}", finished.stdout, finished.stderr))
}

fn succeed(lab: &Lab, words: &[&str]) -> String {
    let (succeeded, said) = run(lab, words);
    assert!(succeeded, "{words:?}: {said}");
    said
}

fn groups(lab: &Lab) -> Value {
    lab.gateways.daemon(1).unwrap().ask(&["show", "group"]).unwrap()
}

/// Answers to five pings from the host of site 1 to that of site 2, all of which should come.
fn answers(lab: &Lab) -> usize {
    let sites = &lab.gateways.sites;
    let to = sites.site(2).host_v4();
    let answered = Ping::new(&to, 5).run_until_answered(&sites.site(1).host).unwrap();
    answered.received as usize
}

/// Fails if one of five pings from the host of site 1 to that of site 2 is answered.
fn no_answer(lab: &Lab) {
    let sites = &lab.gateways.sites;
    let answered = Ping::new(&sites.site(2).host_v4(), 5).run(&sites.site(1).host).unwrap();
    assert_eq!(answered.received, 0, "{}", answered.text);
}

fn packets(of: &Value) -> u64 {
    of["decided"]["packets"].as_u64().unwrap()
}

// AX-15
#[test]
fn rules_and_members_of_sets_come_and_go() {
    let Some(mut lab) = lab("rules_and_members", Plan::default()) else { return };
    let file = lab.gateways.file_mut(1);
    file.lan = "groups_in = [\"lan-in\"]".into();
    file.extra = GROUPS.into();
    let Some(lab) = lab.start("rules_and_members") else { return };
    lab.flows_again();
    assert_eq!(answers(&lab), 5);
    let before = groups(&lab);
    assert!(packets(&before["groups"][0]["rules"][0]) >= 5, "{before}");
    assert_eq!(packets(&before["ports"][0]), 0, "{before}");

    // A rule in front of the one that permits.
    let deny = ["--group", "lan-in", "--name", "no-ping", "--action", "deny", "--from", "any"];
    let to = ["--to", "any", "--protocol", "icmp", "--icmp", "8", "--before", "all"];
    let add = [&["rule", "add"][..], &deny, &to].concat();
    let dry = succeed(&lab, &[&add[..], &["--dry-run"]].concat());
    assert!(dry.contains("rule lan-in/no-ping"), "{dry}");
    assert_eq!(answers(&lab), 5, "a dry run changes nothing");
    succeed(&lab, &add);
    no_answer(&lab);
    let shown = groups(&lab);
    let rules = shown["groups"][0]["rules"].as_array().unwrap();
    let names: Vec<&str> = rules.iter().map(|rule| rule["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["no-ping", "all"]);
    assert_eq!(packets(&rules[0]), 5, "{shown}");
    let host = lab.gateways.sites.site(1).host_v4();
    let other = lab.gateways.sites.site(2).host_v4();
    let explained = succeed(&lab, &["explain", "--in", "lan", "icmp/8/0", &host, &other]);
    for words in ["groups in", "rule \"lan-in/no-ping\"", "group_deny", "rule \"lan-in/all\""] {
        assert!(explained.contains(words), "{words}: {explained}");
    }
    succeed(&lab, &["rule", "del", "lan-in/no-ping"]);
    lab.flows_again();

    // A permit for the members of a set alone.
    let permit = ["--group", "lan-in", "--name", "set", "--action", "permit", "--from", "any"];
    let to = ["--to", "@hosts", "--before", "all"];
    succeed(&lab, &[&["rule", "add"][..], &permit, &to].concat());
    succeed(&lab, &["rule", "del", "lan-in/all"]);
    assert_eq!(answers(&lab), 5);
    succeed(&lab, &["set", "del", "hosts", &other]);
    no_answer(&lab);
    let shown = groups(&lab);
    assert_eq!(packets(&shown["ports"][0]), 5, "{shown}");
    succeed(&lab, &["set", "add", "hosts", &other]);
    assert_eq!(answers(&lab), 5);

    // What is not there, or not right, changes nothing.
    let revision = |lab: &Lab| {
        let daemon = lab.gateways.daemon(1).unwrap();
        daemon.ask(&["show", "status"]).unwrap()["revision"].as_u64().unwrap()
    };
    let running = revision(&lab);
    for (words, said) in [
        (&["rule", "del", "lan-in/sett"][..], "did you mean \"lan-in/set\"?"),
        (&["set", "del", "host", "10.2.0.1"], "did you mean \"hosts\"?"),
        (&["set", "add", "hosts", "10.2.0.300"], "10.2.0.300"),
        (&[&["rule", "add"][..], &permit, &["--to", "@hosst"]].concat(), "hosst"),
    ] {
        let (succeeded, found) = run(&lab, words);
        assert!(!succeeded && found.contains(said), "{words:?}: {found}");
    }
    assert_eq!(revision(&lab), running);
    lab.balances();
}
