//! Connections of a running gateway: answers come back while the rule stands, and over a restart;
//! the other end may not begin.

use net::{Lab, lab, wait_for};
use netlab::ping::Ping;
use netlab::sites::Plan;
use serde_json::Value;

/// Hosts of site 1 may begin, and nothing else leaves to them.
const GROUPS: &str = r#"
[group.lan-in]
[[rule]]
group = "lan-in"
name = "begin"
action = "reflect"
from = ["any"]
to = ["any"]

[group.lan-out]
[[rule]]
group = "lan-out"
name = "nothing"
action = "deny"
from = ["any"]
to = ["any"]
"#;

fn succeed(lab: &Lab, words: &[&str]) -> String {
    let finished = lab.gateways.daemon(1).unwrap().run(words).unwrap();
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(finished.status.success(), "{words:?}: {said}");
    said
}

fn ask(lab: &Lab, words: &[&str]) -> Value {
    lab.gateways.daemon(1).unwrap().ask(words).unwrap()
}

/// Answers to five pings from the host of a site to that of another, all of which should come.
fn answers(lab: &Lab, from: u8, to: u8) -> u64 {
    let (from, to) = (&lab.gateways.sites.site(from).host, lab.gateways.sites.site(to).host_v4());
    Ping::new(&to, 5).run_until_answered(from).unwrap().received
}

/// Fails if one of five pings from the host of a site to that of another is answered.
fn no_answer(lab: &Lab, from: u8, to: u8) {
    let (from, to) = (&lab.gateways.sites.site(from).host, lab.gateways.sites.site(to).host_v4());
    let answered = Ping::new(&to, 5).run(from).unwrap();
    assert_eq!(answered.received, 0, "{}", answered.text);
}

fn connections(lab: &Lab, filter: &[&str]) -> Vec<Value> {
    let shown = ask(lab, &[&["show", "connection"], filter].concat());
    shown["connections"].as_array().unwrap().clone()
}

// AX-15
#[test]
fn answers_come_back_while_the_rule_stands_and_over_a_restart() {
    let Some(mut lab) = lab("answers_come_back", Plan::default()) else { return };
    let file = lab.gateways.file_mut(1);
    file.lan = "groups_in = [\"lan-in\"]\ngroups_out = [\"lan-out\"]".into();
    file.extra = GROUPS.into();
    let Some(mut lab) = lab.start("answers_come_back") else { return };
    lab.flows_again();
    assert_eq!(answers(&lab, 1, 2), 5, "{}", lab.logs());
    // The other end may not begin.
    no_answer(&lab, 2, 1);

    let host = lab.gateways.sites.site(1).host_v4();
    let shown = connections(&lab, &["host", &host, "and", "icmp", "on", "lan"]);
    assert!(!shown.is_empty());
    for connection in &shown {
        assert_eq!(connection["originator"]["address"], host.as_str(), "{connection}");
        assert_eq!(connection["rule"], "lan-in/begin", "{connection}");
        assert_eq!(
            (&connection["state"], &connection["half_open"]),
            (&"echo".into(), &false.into())
        );
    }
    assert!(connections(&lab, &["udp", "host", "192.0.2.77"]).is_empty());

    // What both ends want goes on over a restart.
    assert_eq!(answers(&lab, 1, 2), 5);
    lab.gateways.take(1).unwrap().terminate().unwrap().success().unwrap();
    lab.gateways.start(1).unwrap();
    let kept = connections(&lab, &["icmp", "host", &host]);
    assert!(!kept.is_empty(), "{}", lab.logs());
    assert!(kept.iter().all(|it| it["rule"].is_null()), "they are to be judged again: {kept:?}");
    let events = succeed(&lab, &["events"]);
    assert!(events.contains("connections_restored"), "{events}");

    // Cleared: as if they had never been. Nor does a restart bring them back.
    let cleared = ask(&lab, &["connection", "clear"])["removed"].as_u64().unwrap();
    assert!(cleared >= kept.len() as u64);
    assert!(connections(&lab, &[]).is_empty());
    lab.gateways.kill(1);
    lab.gateways.start(1).unwrap();
    assert!(connections(&lab, &["icmp"]).is_empty(), "{}", lab.logs());

    // With the rule go its connections, in both directions.
    lab.flows_again();
    let other = lab.gateways.sites.site(2).host_v4();
    // The test ends before the last ping.
    let pings = Ping::new(&other, 100_000);
    let running = pings.start(&lab.gateways.sites.site(1).host).unwrap();
    wait_for("a connection", || !connections(&lab, &["icmp"]).is_empty());
    succeed(&lab, &["rule", "del", "lan-in/begin"]);
    wait_for("no packet belongs to a connection of the rule", || {
        let left = connections(&lab, &["icmp", "state", "echo", "host", &host]);
        left.iter().all(|it| it["idle_s"].as_u64().unwrap() >= 2)
    });
    drop(running);
    no_answer(&lab, 1, 2);
    lab.balances();
}
