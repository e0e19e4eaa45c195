//! `lockgate show group`: security groups as tables.

use api::v1;
use console::output::{Numbers, table};

use super::tables::{ends, some};

/// Writes a table for each group, the ports that groups are bound to, and the sums.
pub(super) fn groups(answer: &v1::Groups) -> String {
    let mut text = String::new();
    for group in &answer.groups {
        text.push_str(&one(group));
    }
    let mut text = some(text, "no security groups");
    let ports = answer.ports.iter().map(|port| {
        let no_match = match port.no_match.as_str() {
            "would_deny" => "passes (audit)",
            other => other,
        };
        let words = [&port.port, &port.side, &port.groups.join(", "), no_match];
        with_volume(words.map(str::to_owned).into(), port.decided.as_ref())
    });
    let header = ["port", "side", "groups, in order", "no rule matches", "packets", "bytes"];
    text.push_str(&table("Ports with groups", &header, ports, Numbers(4..=5)));
    let sums = answer.sums.iter().map(|sum| {
        let [outbound, inbound] = [&sum.outbound, &sum.inbound].map(|v| v.unwrap_or_default());
        let packets = (outbound.packets + inbound.packets).to_string();
        vec![sum.action.clone(), packets, (outbound.bytes + inbound.bytes).to_string()]
    });
    let header = ["decision", "packets", "bytes"];
    text.push_str(&table("All rules since the start", &header, sums, Numbers(1..=2)));
    text
}

fn one(group: &v1::Group) -> String {
    let bound = |ports: &[String]| if ports.is_empty() { "-".into() } else { ports.join(" ") };
    let title = format!(
        "Group {} ({}); in: {}; out: {}",
        group.name,
        group.mode,
        bound(&group.ports_in),
        bound(&group.ports_out)
    );
    let rules = group.rules.iter().map(|rule| {
        let action = match (rule.action.as_str(), group.mode.as_str()) {
            ("deny", "audit") => "would deny".into(),
            _ => rule.action.clone(),
        };
        let protocol = match rule.icmp.as_slice() {
            [] if rule.tcp.is_empty() => rule.protocol.clone(),
            [] => format!("{} {}", rule.protocol, rule.tcp),
            messages => format!("{} {}", rule.protocol, messages.join(" ")),
        };
        let words = vec![
            rule.number.to_string(),
            rule.name.clone(),
            action,
            ends(&rule.from, &rule.from_ports),
            ends(&rule.to, &rule.to_ports),
            protocol,
        ];
        with_volume(words, rule.decided.as_ref())
    });
    if group.rules.is_empty() {
        return format!("{title}\n  no rules\n");
    }
    let header = ["#", "rule", "action", "from", "to", "protocol", "packets", "bytes"];
    table(&title, &header, rules, Numbers(6..=7))
}

fn with_volume(mut words: Vec<String>, volume: Option<&v1::Volume>) -> Vec<String> {
    let volume = volume.copied().unwrap_or_default();
    words.extend([volume.packets.to_string(), volume.bytes.to_string()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stand_in_order_with_what_they_decided() {
        let rule = |number, name: &str, action: &str| v1::GroupRule {
            number,
            name: name.into(),
            action: action.into(),
            from: vec!["any".into()],
            to: vec!["10.1.0.0/16".into(), "@admins".into()],
            protocol: "tcp".into(),
            to_ports: vec!["443".into()],
            tcp: "new".into(),
            decided: Some(v1::Volume { packets: 4711, bytes: 5 }),
            ..Default::default()
        };
        let group = v1::Group {
            name: "web".into(),
            mode: "audit".into(),
            ports_in: vec!["lan".into()],
            rules: vec![rule(1, "https", "permit"), rule(2, "rest", "deny")],
            ..Default::default()
        };
        let port = v1::PortGroups {
            port: "lan".into(),
            side: "in".into(),
            groups: vec!["web".into()],
            no_match: "would_deny".into(),
            decided: Some(v1::Volume { packets: 7, bytes: 8 }),
        };
        let answer = v1::Groups { groups: vec![group], ports: vec![port], sums: vec![] };
        let text = groups(&answer);
        for words in [
            "Group web (audit); in: lan; out: -",
            "10.1.0.0/16 @admins port 443",
            "would deny",
            "tcp new",
            "passes (audit)",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.find("https").unwrap() < text.find("rest").unwrap(), "{text}");
        assert!(groups(&v1::Groups::default()).contains("no security groups"));
    }
}
