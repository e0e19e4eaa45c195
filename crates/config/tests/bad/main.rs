//! Bad configurations: each is refused, or warned of, at its place, with what to do.
//!
//! Every row changes one piece of [`GOOD`] and names the line and column, a part of the message
//! and, where there is one, a part of the advice.

mod doubtful;
mod machine;
mod peers;
mod policies;

use config::{ConfigErrors, Diagnostic, DiagnosticKind, Severity, parse};
use doubtful::WARNINGS;

/// Every row of an error.
fn errors() -> impl Iterator<Item = &'static Row> {
    [machine::ERRORS, peers::ERRORS, policies::ERRORS].into_iter().flatten()
}

const GOOD: &str = r#"[node]
name = "gw-a"
workers = "auto"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.1.0.1/24", "2001:db8:1::1/64"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
allow_host = ["udp/500", "icmp"]
[cache]
flows = "1M"
[peer.berlin]
local = "192.0.2.1"
remote = "198.51.100.7"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-128-gcm"
mode = "tunnel"
[[policy]]
name = "berlin-net"
peer = "berlin"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0-10.2.255.255"]
[[policy]]
name = "dns"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9"]
protocol = "udp"
remote_ports = ["53"]
[[route]]
to = "default"
via = "192.0.2.254"
port = "wan"
[[neighbour]]
port = "wan"
address = "192.0.2.254"
mac = "02:00:00:00:02:fe"
"#;

pub(crate) struct Row {
    from: &'static str,
    to: &'static str,
    place: &'static str,
    message: &'static str,
    advice: &'static str,
}

pub(crate) const fn row(
    from: &'static str,
    to: &'static str,
    place: &'static str,
    message: &'static str,
    advice: &'static str,
) -> Row {
    Row { from, to, place, message, advice }
}

fn changed(row: &Row) -> String {
    assert_eq!(GOOD.matches(row.from).count().min(1), 1, "{:?} is not there", row.from);
    GOOD.replacen(row.from, row.to, 1)
}

/// Returns whether one of the problems is the row's, shown with its place, line and advice.
fn told(row: &Row, severity: Severity, problems: &[Diagnostic]) -> bool {
    problems.iter().any(|problem| {
        let text = problem.to_string();
        let kind = if severity == Severity::Warning { "warning" } else { "error" };
        problem.severity == severity
            && text.starts_with(&format!("bad.toml:{}: {kind}: ", row.place))
            && problem.mistake.to_string().contains(row.message)
            && text.contains(row.advice)
    })
}

#[test]
fn good_configuration_has_no_errors_and_only_the_warning_of_short_numbers() {
    let parsed = parse(GOOD, "good.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let told: Vec<_> = parsed.warnings.iter().map(|problem| problem.mistake.clone()).collect();
    assert_eq!(told, [DiagnosticKind::ShortNumbers]);
    for decided in ["esn = true", "esn = false"] {
        let text = GOOD.replace("mode = \"tunnel\"", decided);
        let parsed = parse(&text, "good.toml").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(parsed.warnings.len(), 0, "{}", config::render(&parsed.warnings));
    }
}

#[test]
fn a_port_has_room_for_32_services() {
    let with = |count: u16| {
        let services: Vec<String> = (1..=count).map(|n| format!("\"tcp/{}\"", 2 * n)).collect();
        parse(&GOOD.replace("\"udp/500\", \"icmp\"", &services.join(", ")), "good.toml")
    };
    assert!(with(32).is_ok());
    assert!(with(33).is_err_and(|errors| errors.to_string().contains("has room for 32")));
}

#[test]
fn every_bad_configuration_is_refused_at_its_place_with_advice() {
    // AX-39, FC-11, FC-14, FC-15, XO-01
    for row in errors() {
        let text = changed(row);
        let errors = parse(&text, "bad.toml").expect_err(row.message);
        assert!(told(row, Severity::Error, &errors.problems), "{:?}:\n{errors}", row.to);
    }
}

/// One mistake is told once: none of the rows may be followed by errors that only repeat it.
#[test]
fn one_mistake_is_one_error() {
    // Two rows share a change that is wrong twice; a table that becomes a list loses its policies.
    for row in errors().filter(|row| !row.to.contains("transport")) {
        let errors = parse(&changed(row), "bad.toml").expect_err(row.message);
        assert_eq!(errors.errors(), 1, "{:?}:\n{errors}", row.to);
    }
}

#[test]
fn every_doubtful_configuration_is_warned_of_at_its_place() {
    // FC-04
    for row in WARNINGS {
        let text = changed(row);
        let parsed = parse(&text, "bad.toml").unwrap_or_else(|e| panic!("{:?}: {e}", row.to));
        assert!(
            told(row, Severity::Warning, &parsed.warnings),
            "{:?}:\n{}",
            row.to,
            config::render(&parsed.warnings)
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let text = GOOD
        .replace("workers = \"auto\"", "worker = \"auto\"")
        .replace("side = \"unprotected\"", "side = 3")
        .replace("peer = \"berlin\"", "peer = \"bern\"")
        .replace("to = \"default\"", "to = \"10.0.0.0\\\\8\"");
    let errors = parse(&text, "bad.toml").unwrap_err();
    let lines: Vec<u32> = errors
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.place.line)
        .collect();
    assert_eq!(lines, [3, 10, 24, 35], "{errors}");
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret_under_it() {
    let text = GOOD.replace("peer = \"berlin\"", "peer = \"berln\"");
    let errors = parse(&text, "etc/lockgate.toml").unwrap_err();
    let error = errors.problems.iter().find(|p| p.severity == Severity::Error).unwrap();
    let expected = "\
etc/lockgate.toml:24:8: error: there is no peer `berln`
   |
24 | peer = \"berln\"
   |        ^^^^^^^
   |
   = help: did you mean `berlin`?";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn problems_as_json_hold_place_message_and_help() {
    let text = GOOD.replace("peer = \"berlin\"", "peer = \"berln\"");
    let errors: ConfigErrors = parse(&text, "x.toml").unwrap_err();
    let json = serde_json::to_value(&errors).unwrap();
    let problem = json["problems"]
        .as_array()
        .unwrap()
        .iter()
        .find(|problem| problem["severity"] == "error")
        .unwrap();
    assert_eq!(problem["line"], 24);
    assert_eq!(problem["column"], 8);
    assert_eq!(problem["file"], "x.toml");
    assert_eq!(problem["message"], "there is no peer `berln`");
    assert_eq!(problem["help"], "did you mean `berlin`?");
}

/// Addresses that are partly elsewhere, or not protected, are no swap.
#[test]
fn a_remote_that_is_only_partly_inside_is_not_warned_of() {
    let peer_net = "peer = \"berlin\"\nlocal = [\"10.1.0.0/16\"]\n\
                    remote = [\"10.2.0.0-10.2.255.255\"]";
    for policy in [
        "peer = \"berlin\"\nlocal = [\"10.1.0.0/16\"]\nremote = [\"10.1.0.0/23\"]",
        "peer = \"berlin\"\nlocal = [\"any\"]\nremote = [\"10.1.0.7\", \"10.2.0.7\"]",
        "action = \"discard\"\nlocal = [\"any\"]\nremote = [\"10.1.0.7\"]",
    ] {
        assert!(GOOD.contains(peer_net));
        let parsed = parse(&GOOD.replace(peer_net, policy), "x.toml").unwrap();
        let told = config::render(&parsed.warnings);
        assert!(!told.contains("network of protected port"), "{policy}:\n{told}");
    }
}

/// Another direction, another port, another selector, or a lower precedence: both may decide.
#[test]
fn a_policy_that_may_decide_is_not_told_to_be_hidden() {
    let policy = |name: &str, more: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\naction = \"discard\"\nlocal = [\"any\"]\n\
             remote = [\"198.18.0.0/15\"]\n{more}\n"
        )
    };
    for (low, high, hidden) in [
        ("", "", true),
        ("", "priority = 99", false),
        ("direction = \"inbound\"", "direction = \"outbound\"", false),
        ("", "direction = \"outbound\"", false),
        ("direction = \"outbound\"", "", true),
        ("ports = [\"lan\"]", "", true),
        ("", "ports = [\"lan\"]", false),
        ("ports = [\"lan\"]", "ports = [\"lan\", \"wan\"]", true),
        ("ports = [\"lan\"]", "ports = [\"host\"]", false),
        ("protocol = \"tcp\"", "protocol = \"udp\"", false),
    ] {
        let text = format!("{GOOD}{}{}", policy("low", low), policy("high", high));
        let parsed = parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let told = config::render(&parsed.warnings);
        assert_eq!(told.contains("never decides: policy `high`"), hidden, "{low}, {high}:\n{told}");
    }
}

/// Protocols that hosts do speak may be written as numbers.
#[test]
fn a_protocol_number_that_is_no_well_known_port_is_a_service() {
    for number in [2, 4, 41, 46, 47, 51, 88, 89, 103, 112, 115] {
        let text = GOOD.replace("\"udp/500\"", &format!("\"{number}\""));
        let parsed = parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(parsed.validated.ports[1].allow_host[0].protocol, number);
    }
}

#[test]
fn many_doubtful_policies_are_counted_and_some_are_told() {
    let mut text = String::from(GOOD);
    for number in 0..300 {
        text.push_str(&format!(
            "[[policy]]\nname = \"hole{number}\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
             remote = [\"10.2.{}.{}\"]\n",
            number / 256,
            number % 256
        ));
    }
    let parsed = parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let told = config::render(&parsed.warnings);
    assert_eq!(told.matches("takes packets from policy `berlin-net`").count(), 10, "{told}");
    assert!(
        told.contains("290 more such warnings are not shown: policies that take packets"),
        "{told}"
    );
}

#[test]
fn policies_of_too_many_rules_are_refused_at_the_one_that_is_too_much() {
    let entries = |net: u8, count: u32| {
        let one = |n| format!("\"10.{net}.{}.{}\"", n >> 8, n & 255);
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    };
    let policy = |name: &str, remotes| {
        let (local, remote) = (entries(1, 2000), entries(2, remotes));
        format!(
            "[[policy]]\nname = \"{name}\"\naction = \"discard\"\nlocal = [{local}]\n\
             remote = [{remote}]\n"
        )
    };
    // 2 directions × 2000 × 1000 is all there may be, and GOOD has rules of its own.
    let fits = parse(&format!("{GOOD}{}", policy("much", 999)), "x.toml");
    assert!(fits.is_ok());
    let text = format!("{GOOD}{}{}", policy("much", 999), policy("too-much", 1));
    let errors = parse(&text, "x.toml").unwrap_err();
    assert_eq!(errors.errors(), 1, "{errors}");
    let error = errors.problems.iter().find(|p| p.severity == Severity::Error).unwrap();
    let line = text.lines().position(|line| line.contains("too-much")).unwrap() + 1;
    assert_eq!(error.place.line as usize, line);
    assert!(error.to_string().contains("rules with this one; the limit is 4000000"), "{error}");
}

#[test]
fn thousands_of_mistakes_are_counted_and_not_all_told() {
    let text = format!("{GOOD}{}", "[[policy]]\nx = 1\n".repeat(5000));
    let errors = parse(&text, "bad.toml").unwrap_err();
    assert_eq!(errors.errors(), config::MAX_PROBLEMS);
    assert!(errors.untold > 10_000, "{}", errors.untold);
}

#[test]
fn a_flood_of_warnings_hides_no_error() {
    let warned = "[[policy]]\nname = \"NAME\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                  remote = [\"any\"]\nlocal_ports = [\"1\"]\n";
    let mut text = String::from(GOOD);
    for number in 0..1000 {
        text.push_str(&warned.replace("NAME", &format!("p{number}")));
    }
    text.push_str("[[policy]]\nname = \"last\"\n");
    let errors = parse(&text, "bad.toml").unwrap_err();
    assert_eq!((errors.errors(), errors.untold), (3, 0), "{errors}");
    assert_eq!(errors.problems.len(), config::MAX_PROBLEMS + 3);
}

/// Someone may paste a key into the wrong file.
#[test]
fn a_key_pasted_into_the_configuration_is_not_shown() {
    for pasted in ["keys = \"0123456789abcdef\"", "keys = \"file:a/0123456789abcdef\""] {
        let text = GOOD.replace("keys = \"file:berlin.keys\"", pasted);
        let errors = parse(&text, "bad.toml").unwrap_err();
        assert!(!errors.to_string().contains("0123"), "{errors}");
    }
}
