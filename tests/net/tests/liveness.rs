//! Peers that do not answer: one whose daemon stands still, one that has other keys.

use std::time::{Duration, Instant};

use netlab::Gateways;
use netlab::ping::Ping;
use netlab::sites::Plan;
use serde_json::Value;

/// Time in which a silent peer is found, on a machine that others use too: the rule says 30 s.
const FOUND: Duration = Duration::from_secs(90);
/// Time in which a peer is heard again.
const HEARD: Duration = Duration::from_secs(60);

/// A peer of gateway A, as it is shown.
fn peer(gateways: &Gateways, name: &str) -> Value {
    let answer = gateways.daemon(1).unwrap().ask(&["show", "peer", name]).unwrap();
    answer["peers"][0].clone()
}

/// Pings the hosts behind the two peers until something is so.
fn ping_until(lab: &net::Lab, limit: Duration, what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    let (from, targets) = (&lab.gateways.site(1).host, [2, 3]);
    while !so() {
        assert!(Instant::now() < end, "{what}: never\n{}", lab.logs());
        for target in targets {
            let address = lab.gateways.site(target).host_v4();
            let _ = Ping::new(&address, 1).run(from);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Gives the keys of gateway C for gateway A another last digit each.
fn spoil_keys(gateways: &Gateways) {
    let path = gateways.directory().join("keys/gw-c-gw-a.keys");
    let text = std::fs::read_to_string(&path).unwrap();
    let spoilt: Vec<String> = text
        .lines()
        .map(|line| match line.strip_suffix('0') {
            _ if line.starts_with('#') || line.is_empty() => line.to_owned(),
            Some(head) => format!("{head}1"),
            None => format!("{}0", &line[..line.len() - 1]),
        })
        .collect();
    assert_ne!(text.trim(), spoilt.join("\n"));
    std::fs::write(&path, spoilt.join("\n") + "\n").unwrap();
}

#[test]
fn a_peer_that_stands_still_or_has_other_keys_is_silent_until_it_is_heard() {
    let test = "a_peer_that_stands_still_or_has_other_keys_is_silent_until_it_is_heard";
    let Some(lab) = net::lab(test, Plan { sites: 3, ..Plan::default() }) else { return };
    spoil_keys(&lab.gateways);
    let Some(lab) = lab.start(test) else { return };
    lab.flows_again();
    let gateways = &lab.gateways;
    ping_until(&lab, HEARD, "an authentic packet is seen", || {
        peer(gateways, "gw-b")["last_received"].is_string()
    });
    assert_eq!(peer(gateways, "gw-b")["state"], "ready");
    gateways.daemon(2).unwrap().pause();
    let is = |name: &str, state: &str| peer(gateways, name)["state"] == state;
    ping_until(&lab, FOUND, "both are silent", || is("gw-b", "silent") && is("gw-c", "silent"));
    let (b, c) = (peer(gateways, "gw-b"), peer(gateways, "gw-c"));
    assert!(b["last_received_age_ms"].as_u64().unwrap() >= 29_000, "{b}");
    assert_eq!((&c["last_received"], &c["silent"]), (&Value::Null, &Value::Bool(true)));
    let status = gateways.daemon(1).unwrap().ask(&["status"]).unwrap();
    // Pings that wait for an answer are few: less than one packet a second.
    let wan = &status["ports"][1];
    assert_eq!(wan["name"], "wan");
    assert!(wan["transmitted_bytes_per_second"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["peers"][0]["lost_last_minute"], 0);
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("peer gw-b does not answer"), "{warnings}");
    assert!(warnings.contains("peer gw-c does not answer"), "{warnings}");
    gateways.daemon(2).unwrap().resume();
    ping_until(&lab, HEARD, "B is heard", || is("gw-b", "ready"));
    assert!(is("gw-c", "silent"));
    let command = ["events", "--json", "--kind", "peer_silent,peer_heard"];
    let told = gateways.daemon(1).unwrap().run(&command).unwrap().success().unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| -> Vec<(&str, &str)> {
        let events = told.iter().filter(|event| event["subject"] == name);
        let words =
            events.map(|event| ["kind", "severity"].map(|key| event[key].as_str().unwrap()));
        words.map(|[kind, severity]| (kind, severity)).collect()
    };
    assert_eq!(of("gw-b"), [("peer_silent", "warning"), ("peer_heard", "notice")], "{told:?}");
    assert_eq!(of("gw-c"), [("peer_silent", "warning")], "{told:?}");
}
