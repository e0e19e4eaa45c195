//! `lockgate show placement`: network cards, the rules that they decide, and why not the others;
//! the policies in their order of lookup, those in front whose packets cards carry.

use std::collections::BTreeMap;

use api::v1;
use console::output::{Columns, Numbers, fitted, table};

use super::tables::some;

/// Rules of a list that are shown without `--wide`.
pub(super) const MOST_LINES: usize = 20;

/// Writes the cards, and two tables for each: rules that are to be in it, and the others.
pub(super) fn placement(answer: &v1::Placement, most: usize, columns: Columns) -> String {
    let mut text = String::new();
    for card in &answer.cards {
        text.push_str(&one(card));
        let rules = || answer.rules.iter().filter(|rule| rule.card == card.name);
        text.push_str(&in_card(rules().filter(|rule| rule.state != "classifier"), most));
        text.push_str(&reasons(rules().filter(|rule| rule.state == "classifier")));
        text.push_str(&left(rules().filter(|rule| rule.state == "classifier"), most));
    }
    text.push_str(&policies(answer, most, columns));
    some(text, "no network cards: see [card.NAME] in the configuration")
}

/// The policies in their order of lookup, if cards carry packets of some.
fn policies(answer: &v1::Placement, most: usize, columns: Columns) -> String {
    let all = &answer.policies;
    if all.iter().all(|policy| policy.carrier == "workers") {
        return String::new();
    }
    let mut text = String::new();
    for direction in ["outbound", "inbound"] {
        let of: Vec<_> = all.iter().filter(|policy| policy.direction == direction).collect();
        let rows = of.iter().take(most).map(|policy| policy_row(policy));
        let header = [
            "place",
            "policy",
            "action",
            "peer",
            "carried by",
            "state",
            "SA",
            "SAs",
            "packets",
            "because of",
        ];
        let title = format!("{direction} policies in the order of lookup");
        let wide = ["SAs", "state", "SA"];
        text.push_str(&fitted(&title, &header, rows, Numbers(7..=8), (columns, &wide)));
        text.push_str(&more(of.len(), most));
    }
    text
}

fn policy_row(policy: &v1::PlacedPolicy) -> Vec<String> {
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let carrier = match policy.carrier.as_str() {
        "card" => format!("card {}", policy.card),
        "linux" => format!("Linux for {}", policy.card),
        other => other.to_owned(),
    };
    let because = match policy.because_of.as_str() {
        "" => &policy.reason,
        other => other,
    };
    vec![
        policy.place.to_string(),
        policy.policy.clone(),
        policy.action.clone(),
        or_none(policy.peer.as_deref().unwrap_or_default()),
        carrier,
        or_none(&policy.state),
        or_none(policy.spi.as_deref().unwrap_or_default()),
        policy.sas.to_string(),
        policy.packets.to_string(),
        or_none(because),
    ]
}

fn one(card: &v1::Card) -> String {
    let v1::Card { name, kind, ports, card: profile, entries, max_entries, .. } = card;
    let mut text = format!("Card {name} ({kind}); ports: {}\n", ports.join(" "));
    match card.state.as_str() {
        "serves" => text.push_str(&format!("  serves       {profile}\n")),
        _ => text.push_str(&format!("  device       none ({})\n", card.state_reason)),
    }
    text.push_str(&format!("  entries      {entries} of {max_entries}\n"));
    let tags = match (card.rules, card.leaves_by.as_slice()) {
        (0, _) => String::new(),
        (_, []) => NOWHERE.to_owned(),
        (_, ports) => format!(", for packets that leave by {}", some_names(ports)),
    };
    text.push_str(&format!("  rules        {} with tags that count{tags}\n", card.rules));
    if card.share_of > 0 {
        let percent = 100.0 * card.share_tagged as f64 / card.share_of as f64;
        let (tagged, of) = (card.share_tagged, card.share_of);
        text.push_str(&format!(
            "  share        {percent:.1} % of the packets ({tagged} of {of} in the last period) \
             were of rules for the card\n"
        ));
    }
    text
}

/// The text for a card whose tags decide no packet: policies or groups are asked as well.
const NOWHERE: &str = "; they decide nothing: policies, groups_out or connections are asked, too";
/// Names in a cell at most.
const MOST_NAMES: usize = 3;

/// The first names of a list, and how many others there are.
fn some_names(names: &[String]) -> String {
    let text = names.iter().take(MOST_NAMES).map(String::as_str).collect::<Vec<_>>().join(" ");
    match names.len().checked_sub(MOST_NAMES) {
        None | Some(0) => text,
        Some(more) => format!("{text} +{more}"),
    }
}

fn in_card<'r>(rules: impl Iterator<Item = &'r v1::PlacedRule>, most: usize) -> String {
    let rules: Vec<&v1::PlacedRule> = rules.collect();
    if rules.is_empty() {
        return String::new();
    }
    let rows = rules.iter().take(most).map(|rule| {
        vec![
            rule.rule.clone(),
            format!("v{}", rule.family),
            rule.action.clone(),
            rule.state.clone(),
            if rule.counts { "yes" } else { "no" }.to_owned(),
            match rule.leaves_by.as_slice() {
                [] => "nowhere".to_owned(),
                ports => some_names(ports),
            },
            rule.entries.to_string(),
            rule.packets.to_string(),
            rule.behind.len().to_string(),
        ]
    });
    let header =
        ["rule", "IP", "action", "state", "counts", "leaves by", "entries", "packets", "behind"];
    let text = table("Rules that are to be in the card", &header, rows, Numbers(6..=8));
    text + &more(rules.len(), most)
}

fn reasons<'r>(rules: impl Iterator<Item = &'r v1::PlacedRule>) -> String {
    let mut reasons: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for rule in rules {
        reasons.entry(&rule.reason).or_insert((0, &rule.why)).0 += 1;
    }
    if reasons.is_empty() {
        return String::new();
    }
    let rows = reasons
        .into_iter()
        .map(|(reason, (count, why))| vec![reason.to_owned(), count.to_string(), why.to_owned()]);
    let header = ["reason", "rules", "meaning"];
    table("Why the other rules are not", &header, rows, Numbers(1..=1))
}

fn left<'r>(rules: impl Iterator<Item = &'r v1::PlacedRule>, most: usize) -> String {
    let rules: Vec<&v1::PlacedRule> = rules.collect();
    if rules.is_empty() {
        return String::new();
    }
    let rows = rules.iter().take(most).map(|rule| {
        let because = if rule.because_of.is_empty() { "-" } else { &rule.because_of };
        vec![
            rule.rule.clone(),
            format!("v{}", rule.family),
            rule.action.clone(),
            rule.reason.clone(),
            because.to_owned(),
        ]
    });
    let header = ["rule", "IP", "action", "reason", "because of"];
    let text = table("Rules that the gateway decides", &header, rows, Numbers::NONE);
    text + &more(rules.len(), most)
}

/// Says how many rules a table leaves out.
fn more(rules: usize, most: usize) -> String {
    match rules.checked_sub(most) {
        None | Some(0) => String::new(),
        Some(rest) => format!("  … and {rest} more: --wide or --json shows all\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_is_not_there_says_why() {
        let card = v1::Card {
            name: "nic0".into(),
            kind: "emulated".into(),
            ports: vec!["lan".into()],
            state: "none".into(),
            state_reason: "nothing listens at /run/c: not found".into(),
            ..v1::Card::default()
        };
        let answer = v1::Placement { cards: vec![card], ..v1::Placement::default() };
        let text = placement(&answer, MOST_LINES, Columns::All);
        assert!(text.contains("device       none (nothing listens"), "{text}");
        assert!(placement(&v1::Placement::default(), 1, Columns::All).contains("no network cards"));
    }

    #[test]
    fn rules_in_the_card_and_others_are_listed_apart_and_lists_are_cut() {
        let rule = |name: &str, state: &str, reason: &str| v1::PlacedRule {
            card: "nic0".into(),
            rule: name.into(),
            family: 4,
            action: "permit".into(),
            state: state.into(),
            reason: reason.into(),
            ..v1::PlacedRule::default()
        };
        let rules = vec![
            rule("web/1", "live", ""),
            rule("web/2", "pending", ""),
            rule("web/3", "classifier", "reflect"),
        ];
        let card = v1::Card { name: "nic0".into(), state: "serves".into(), ..v1::Card::default() };
        let answer = v1::Placement { cards: vec![card], rules, policies: Vec::new() };
        let text = placement(&answer, 1, Columns::All);
        assert!(text.contains("web/1") && !text.contains("web/2"), "{text}");
        assert!(text.contains("… and 1 more"), "{text}");
        assert!(text.contains("reflect"), "{text}");
    }

    #[test]
    fn a_card_whose_tags_decide_nothing_says_so_and_else_for_which_packets() {
        let shown = |ports: &[&str]| {
            let leaves_by: Vec<String> = ports.iter().map(|port| (*port).to_owned()).collect();
            let rule = v1::PlacedRule {
                card: "nic0".into(),
                rule: "web/1".into(),
                state: "live".into(),
                counts: true,
                leaves_by: leaves_by.clone(),
                ..v1::PlacedRule::default()
            };
            let card = v1::Card {
                name: "nic0".into(),
                state: "serves".into(),
                rules: 3,
                leaves_by,
                share_tagged: 9,
                share_of: 9,
                ..v1::Card::default()
            };
            let answer = v1::Placement { cards: vec![card], rules: vec![rule], policies: vec![] };
            placement(&answer, 9, Columns::All)
        };
        let text = shown(&[]);
        assert!(text.contains("3 with tags that count; they decide nothing"), "{text}");
        assert!(text.contains("yes     nowhere"), "{text}");
        assert!(text.contains("100.0 % of the packets (9 of 9 in the last period) were"), "{text}");
        let text = shown(&["a", "b", "c", "d", "e"]);
        assert!(text.contains("count, for packets that leave by a b c +2"), "{text}");
        assert!(!text.contains("nowhere"), "{text}");
    }

    #[test]
    fn policies_are_listed_in_order_with_their_carriers_and_reasons_if_a_card_carries_any() {
        let policy = |place, name: &str, carrier: &str, because: &str| v1::PlacedPolicy {
            direction: "outbound".into(),
            place,
            policy: name.into(),
            action: "PROTECT".into(),
            peer: Some("berlin".into()),
            carrier: carrier.into(),
            card: if carrier == "workers" { String::new() } else { "nic0".into() },
            because_of: because.into(),
            packets: 7,
            ..v1::PlacedPolicy::default()
        };
        let shown = |policies: Vec<v1::PlacedPolicy>| {
            let card = v1::Card { name: "nic0".into(), ..v1::Card::default() };
            let answer = v1::Placement { cards: vec![card], rules: Vec::new(), policies };
            placement(&answer, 3, Columns::Within(80))
        };
        let text = shown(vec![
            policy(1, "sites", "card", ""),
            policy(2, "quiet", "workers", ""),
            policy(3, "narrow", "linux", "quiet"),
            policy(4, "rest", "workers", ""),
        ]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |name: &str| rows.iter().find(|row| row.get(1) == Some(&name)).unwrap();
        assert_eq!(row("sites")[3..6], ["berlin", "card", "nic0"], "{text}");
        assert_eq!(row("quiet")[3..5], ["berlin", "workers"], "{text}");
        assert_eq!(row("narrow")[4..7], ["Linux", "for", "nic0"], "{text}");
        assert_eq!(row("narrow").last(), Some(&"quiet"), "{text}");
        assert!(!text.contains("rest") && text.contains("… and 1 more"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let none = shown(vec![policy(1, "quiet", "workers", "")]);
        assert!(!none.contains("order of lookup"), "{none}");
    }
}
