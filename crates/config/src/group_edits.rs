//! Changes of single rules and of members of sets in the text of a configuration.

use policy::AddressRange;

use crate::diagnostic::nearest;
use crate::errors::ConfigErrors;
use crate::groups::{Set, joined};
use crate::validated::Validated;

/// A change of the rules of security groups, or of the members of sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupEdit {
    /// Puts a rule in front of another of its group, or behind all of them.
    AddRule {
        /// The group.
        group: String,
        /// A `[[rule]]` section.
        section: String,
        /// Name of the rule in front of which it goes.
        before: Option<String>,
    },
    /// Takes rules away: `GROUP/NAME`.
    RemoveRules(Vec<String>),
    /// Adds members to a set; a set that is not there is made.
    AddMembers {
        /// The set.
        set: String,
        /// Its new members.
        members: Vec<AddressRange>,
    },
    /// Takes addresses out of a set.
    RemoveMembers {
        /// The set.
        set: String,
        /// The addresses.
        members: Vec<AddressRange>,
    },
}

/// The reason why a change cannot be made in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum GroupEditError {
    /// The text is no configuration.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// A section that is not there.
    #[error("there is no {what} \"{name}\"{}", did_you_mean(.nearest))]
    Unknown {
        /// `rule`, `security group` or `set`.
        what: &'static str,
        /// The name.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// No address of a set is one of those to take out.
    #[error("set \"{set}\" holds none of these addresses")]
    NoMember {
        /// The set.
        set: String,
    },
    /// A set would have no member left.
    #[error("set \"{set}\" would be empty: take away the rules that name it, and then the set")]
    Emptied {
        /// The set.
        set: String,
    },
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |nearest| format!("; did you mean \"{nearest}\"?"))
}

/// Returns a configuration's text with a change made in it, every default written out. The new rule
/// is not looked at: the text may be wrong where it stands.
///
/// # Errors
/// [`GroupEditError`].
pub fn with_group_edit(text: &str, name: &str, edit: &GroupEdit) -> Result<String, GroupEditError> {
    let mut config = crate::parse(text, name)?.validated;
    match edit {
        GroupEdit::AddRule { group, section, before } => {
            return with_rule(&config, (group, section), before.as_deref());
        }
        GroupEdit::RemoveRules(names) => remove_rules(&mut config, names)?,
        GroupEdit::AddMembers { set, members } => {
            let known = config.sets.iter_mut().find(|known| known.name == *set);
            match known {
                Some(known) => known.addresses.extend(members),
                None => {
                    config.sets.push(Set { name: set.clone(), addresses: members.clone() });
                }
            }
            for set in &mut config.sets {
                set.addresses = joined(std::mem::take(&mut set.addresses));
            }
        }
        GroupEdit::RemoveMembers { set, members } => remove_members(&mut config, set, members)?,
    }
    Ok(config.effective())
}

/// The names of all rules: `GROUP/NAME`.
fn rule_names(config: &Validated) -> Vec<String> {
    let name = |rule: &crate::groups::Rule| {
        crate::rule_name(&config.groups[rule.group.0 as usize].name, &rule.name)
    };
    config.rules.iter().map(name).collect()
}

fn unknown<'k>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'k str>,
) -> GroupEditError {
    GroupEditError::Unknown { what, name: name.to_owned(), nearest: nearest(name, known) }
}

fn remove_rules(config: &mut Validated, names: &[String]) -> Result<(), GroupEditError> {
    let known = rule_names(config);
    if let Some(missing) = names.iter().find(|name| !known.contains(name)) {
        return Err(unknown("rule", missing, known.iter().map(String::as_str)));
    }
    let mut known = known.iter();
    config.rules.retain(|_| known.next().is_some_and(|name| !names.contains(name)));
    Ok(())
}

/// Inserts a section in front of a rule of its group, or behind the last.
fn with_rule(
    config: &Validated,
    (group, section): (&str, &str),
    before: Option<&str>,
) -> Result<String, GroupEditError> {
    if !config.groups.iter().any(|known| known.name == group) {
        let known = config.groups.iter().map(|group| group.name.as_str());
        return Err(unknown("security group", group, known));
    }
    let mut sections: Vec<(&'static str, String, String)> =
        config.sections().into_iter().map(|of| (of.what, of.name, of.text)).collect();
    let is_rule = |of: &(&str, String, String)| of.0 == "rule";
    let of_group = |of: &(&str, String, String)| {
        is_rule(of) && of.1.split_once('/').is_some_and(|(name, _)| name == group)
    };
    let place = match before {
        Some(before) => {
            let name = crate::rule_name(group, before);
            let found = sections.iter().position(|of| is_rule(of) && of.1 == name);
            let known = || {
                sections
                    .iter()
                    .filter(|of| of_group(of))
                    .filter_map(|of| Some(of.1.split_once('/')?.1))
            };
            found.ok_or_else(|| unknown("rule", before, known()))?
        }
        None => {
            let last = sections.iter().rposition(of_group);
            last.map_or(sections.len(), |last| last + 1)
        }
    };
    sections.insert(place, ("rule", String::new(), section.to_owned()));
    let texts: Vec<String> = sections.into_iter().map(|(_, _, text)| text).collect();
    Ok(texts.join("\n"))
}

fn remove_members(
    config: &mut Validated,
    set: &str,
    members: &[AddressRange],
) -> Result<(), GroupEditError> {
    let names = || config.sets.iter().map(|set| set.name.as_str());
    let place = config.sets.iter().position(|known| known.name == set);
    let place = place.ok_or_else(|| unknown("set", set, names()))?;
    let addresses = &mut config.sets[place].addresses;
    let before = addresses.clone();
    for member in members {
        *addresses = addresses.iter().flat_map(|range| without(*range, *member)).collect();
    }
    match (addresses.is_empty(), *addresses == before) {
        (true, _) => Err(GroupEditError::Emptied { set: set.to_owned() }),
        (_, true) => Err(GroupEditError::NoMember { set: set.to_owned() }),
        (false, false) => Ok(()),
    }
}

/// The parts of a range that another does not hold.
fn without(range: AddressRange, gone: AddressRange) -> Vec<AddressRange> {
    if range.family != gone.family || gone.hi < range.lo || range.hi < gone.lo {
        return vec![range];
    }
    let below = gone.lo.checked_sub(1).filter(|hi| *hi >= range.lo && gone.lo > range.lo);
    let above = gone.hi.checked_add(1).filter(|lo| *lo <= range.hi && gone.hi < range.hi);
    let below = below.map(|hi| AddressRange { hi, ..range });
    below.into_iter().chain(above.map(|lo| AddressRange { lo, ..range })).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::Family;

    use super::*;

    const RUNNING: &str = r#"
[node]
name = "a"
[port.lan]
netdev = "eth1"
side = "protected"
groups_in = ["web"]
[port.wan]
netdev = "eth0"
side = "unprotected"
[set.admins]
addresses = ["10.9.0.0/24"]
[group.web]
[[rule]]
group = "web"
name = "http"
action = "permit"
from = ["@admins"]
to = ["any"]
[[rule]]
group = "web"
name = "rest"
action = "deny"
from = ["any"]
to = ["any"]
"#;

    fn edited(edit: &GroupEdit) -> Result<Validated, String> {
        let text = with_group_edit(RUNNING, "a.toml", edit).map_err(|error| error.to_string())?;
        Ok(crate::parse(&text, "a.toml").map_err(|errors| errors.to_string())?.validated)
    }

    fn add(before: Option<&str>) -> GroupEdit {
        GroupEdit::AddRule {
            group: "web".into(),
            section: "[[rule]]\ngroup = \"web\"\nname = \"new\"\naction = \"permit\"\nfrom = \
                      [\"10.0.0.1\"]\nto = [\"any\"]\n"
                .into(),
            before: before.map(str::to_owned),
        }
    }

    fn names(config: &Validated) -> Vec<&str> {
        config.rules.iter().map(|rule| rule.name.as_str()).collect()
    }

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_rule_goes_in_front_of_another_or_behind_all_and_rules_go_by_name() {
        assert_eq!(names(&edited(&add(None)).unwrap()), ["http", "rest", "new"]);
        assert_eq!(names(&edited(&add(Some("rest"))).unwrap()), ["http", "new", "rest"]);
        assert_eq!(names(&edited(&add(Some("http"))).unwrap()), ["new", "http", "rest"]);
        let error = edited(&add(Some("htp"))).unwrap_err();
        assert_eq!(error, "there is no rule \"htp\"; did you mean \"http\"?");
        let gone = GroupEdit::RemoveRules(vec!["web/http".into()]);
        assert_eq!(names(&edited(&gone).unwrap()), ["rest"]);
        let error = edited(&GroupEdit::RemoveRules(vec!["wob/http".into()])).unwrap_err();
        assert!(error.contains("did you mean \"web/http\"?"), "{error}");
    }

    #[test]
    fn members_come_and_go_and_a_set_is_never_empty() {
        let of = |edit: GroupEdit| edited(&edit).map(|config| config.sets);
        let (set, added) = ("admins".to_owned(), ranges(&["10.9.1.0/24", "2001:db8::1"]));
        let sets = of(GroupEdit::AddMembers { set: set.clone(), members: added }).unwrap();
        assert_eq!(sets[0].addresses, ranges(&["10.9.0.0/23", "2001:db8::1"]));
        let new = GroupEdit::AddMembers { set: "new".into(), members: ranges(&["10.0.0.1"]) };
        assert_eq!(of(new).unwrap().len(), 2);
        let take = |members: &[&str]| GroupEdit::RemoveMembers {
            set: set.clone(),
            members: ranges(members),
        };
        let sets = of(take(&["10.9.0.1", "10.9.0.255"])).unwrap();
        assert_eq!(sets[0].addresses, ranges(&["10.9.0.0", "10.9.0.2-10.9.0.254"]));
        assert!(of(take(&["10.9.0.0/16"])).unwrap_err().contains("would be empty"));
        assert!(of(take(&["10.8.0.0/16"])).unwrap_err().contains("none of these"));
        let unknown = GroupEdit::RemoveMembers { set: "admin".into(), members: vec![] };
        assert!(of(unknown).unwrap_err().contains("did you mean \"admins\"?"));
    }

    proptest! {
        #[test]
        fn what_is_left_of_a_range_is_what_the_other_does_not_hold(
            ends in [0u128..12, 0u128..12, 0u128..12, 0u128..12],
            at_the_top in any::<bool>(),
        ) {
            let shift = if at_the_top { u128::MAX - 11 } else { 0 };
            let [a, b, c, d] = ends.map(|end| end + shift);
            let range = |one: u128, other: u128| AddressRange {
                family: Family::V6,
                lo: one.min(other),
                hi: one.max(other),
            };
            let (of, gone) = (range(a, b), range(c, d));
            let left = without(of, gone);
            for address in (0..12).map(|place| place + shift) {
                let is_in = |range: &AddressRange| (range.lo..=range.hi).contains(&address);
                prop_assert_eq!(left.iter().any(is_in), is_in(&of) && !is_in(&gone));
            }
        }
    }
}
