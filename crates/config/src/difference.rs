//! Compares two configurations, section by section.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::validated::{Section, Validated};

/// The way in which a section differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Only the later configuration has the section.
    Added,
    /// Only the earlier configuration has the section.
    Removed,
    /// Both configurations have the section, with different content.
    Changed,
}

impl Change {
    /// `added`, `removed`, `changed`.
    pub const fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Changed => "changed",
        }
    }
}

/// One section that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The way in which it differs.
    pub change: Change,
    /// Kind of the section: `node`, `port`, `cache`, `connections`, `metrics`, `peer`, `set`,
    /// `group`, `policy`, `rule`, `overlay`, `vni`, `store`, `kernel`, `card`, `audit`, `ike`,
    /// `route`, `neighbour`; or `order`: policies of both are in another order, which decides among
    /// equals, or rules of a group, of which the first that matches decides.
    pub what: &'static str,
    /// Name of the section, of a rule `GROUP/RULE`; of an order of rules the group's. Empty for a
    /// section that has none.
    pub name: String,
    /// Lines of the section in the earlier configuration; empty if that lacks it.
    pub before: String,
    /// Lines of the section in the later configuration; empty if that lacks it.
    pub after: String,
}

/// Lists the sections that differ, in the order of the later configuration, removed ones last.
/// Defaults count as written. Empty exactly if both mean the same, keys aside.
pub fn differences(before: &Validated, after: &Validated) -> Vec<Difference> {
    let (old, new) = (before.sections(), after.sections());
    let key = |section: &Section| (section.what, section.name.clone());
    let mut gone: HashMap<_, &Section> =
        old.iter().map(|section| (key(section), section)).collect();
    let mut found = Vec::new();
    let mut add = |change, section: &Section, before: &str, after: &str| {
        let (what, name) = key(section);
        let (before, after) = (before.to_owned(), after.to_owned());
        found.push(Difference { change, what, name, before, after });
    };
    for section in &new {
        match gone.remove(&key(section)) {
            Some(old) if old.text == section.text => {}
            Some(old) => add(Change::Changed, section, &old.text, &section.text),
            None => add(Change::Added, section, "", &section.text),
        }
    }
    for section in old.iter().filter(|section| gone.contains_key(&key(section))) {
        add(Change::Removed, section, &section.text, "");
    }
    found.extend(reordered("", policies(before), policies(after)));
    let (mut rules_before, mut rules_after) = (rules_by_group(before), rules_by_group(after));
    for group in after.groups.iter().map(|group| group.name.as_str()) {
        let names = [&mut rules_before, &mut rules_after].map(|rules| rules.remove(group));
        let [before, after] = names.map(Option::unwrap_or_default);
        found.extend(reordered(group, before, after));
    }
    found
}

/// The names of policies in their order.
fn policies(config: &Validated) -> Vec<&str> {
    config.policies.iter().map(|policy| policy.name.as_str()).collect()
}

/// The names of rules in their order, by the names of their groups.
fn rules_by_group(config: &Validated) -> HashMap<&str, Vec<&str>> {
    let mut rules: HashMap<&str, Vec<&str>> = HashMap::new();
    for rule in &config.rules {
        let group = &config.groups[rule.group.0 as usize].name;
        rules.entry(group).or_default().push(&rule.name);
    }
    rules
}

/// The names that both have, where their order differs; `name` says of what.
fn reordered<'n>(
    name: &str,
    mut before: Vec<&'n str>,
    mut after: Vec<&'n str>,
) -> Option<Difference> {
    fn set<'a>(names: &[&'a str]) -> HashSet<&'a str> {
        names.iter().copied().collect()
    }
    let (in_before, in_after) = (set(&before), set(&after));
    before.retain(|name| in_after.contains(name));
    after.retain(|name| in_before.contains(name));
    (before != after).then(|| Difference {
        change: Change::Changed,
        what: "order",
        name: name.to_owned(),
        before: before.join("\n") + "\n",
        after: after.join("\n") + "\n",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"
        [node]
        name = "a"
        [port.lan]
        netdev = "eth1"
        side = "protected"
        [port.wan]
        netdev = "eth0"
        side = "unprotected"
        [[policy]]
        name = "dns"
        action = "bypass"
        local = ["any"]
        remote = ["9.9.9.9/32"]
        priority = 10
        [[policy]]
        name = "rest"
        action = "discard"
        local = ["any"]
        remote = ["any"]
        priority = 10
    "#;

    fn parsed(text: &str) -> Validated {
        crate::parse(text, "test").unwrap_or_else(|errors| panic!("{errors:?}")).validated
    }

    fn told(old: &str, new: &str) -> Vec<String> {
        let told = differences(&parsed(old), &parsed(new));
        told.iter().map(|d| format!("{} {} {}", d.change.name(), d.what, d.name)).collect()
    }

    #[test]
    fn a_configuration_does_not_differ_from_itself_or_with_defaults_written() {
        assert_eq!(told(BASE, BASE), [""; 0]);
        assert_eq!(told(BASE, &parsed(BASE).effective()), [""; 0]);
    }

    #[test]
    fn what_is_added_removed_or_changed_is_named() {
        let changed = BASE.replace("9.9.9.9/32", "9.9.9.0/24");
        assert_eq!(told(BASE, &changed), ["changed policy dns"]);
        let renamed = BASE.replace("\"dns\"", "\"names\"");
        assert_eq!(told(BASE, &renamed), ["added policy names", "removed policy dns"]);
        let node = BASE.replace("name = \"a\"", "name = \"b\"");
        assert_eq!(told(BASE, &node), ["changed node "]);
    }

    #[test]
    fn another_order_of_the_same_policies_is_a_difference() {
        let (head, policies) = BASE.split_at(BASE.find("[[policy]]").unwrap());
        let (first, second) = policies.split_at(policies[2..].find("[[policy]]").unwrap() + 2);
        let swapped = format!("{head}{second}\n{first}");
        assert_eq!(told(BASE, &swapped), ["changed order "]);
    }
}
