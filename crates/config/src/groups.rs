//! Security groups as they are configured: sets of addresses, groups, and the rules of groups.

use std::fmt::Write;

use policy::selector::protocol_text;
use policy::{AddressRange, GroupMode, PortRange, Selector, UpperSelector};

use crate::written::{addresses, list, quoted};

/// Groups at most.
pub(crate) const MAX_GROUPS: usize = 4096;
/// Sets at most.
pub(crate) const MAX_SETS: usize = 1024;

/// A set of addresses: place in [`Validated::sets`](crate::Validated::sets).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SetId(pub u32);

/// A group: place in [`Validated::groups`](crate::Validated::groups).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(pub u32);

/// A set of addresses that rules name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// Its name, without `@`.
    pub name: String,
    /// Its addresses, those of a file among them: ascending, IPv4 first. Members that overlap or
    /// adjoin are one range.
    pub addresses: Vec<AddressRange>,
}

/// A security group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its treatment of packets that it denies.
    pub mode: GroupMode,
}

/// A rule of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The group that it is of.
    pub group: GroupId,
    /// Its name, which no other rule of its group has: as written, else its number.
    pub name: String,
    /// Its number in its group, from 1, in the order of the file: the lowest that matches decides.
    pub number: u32,
    /// Its action.
    pub action: RuleAction,
    /// Sources.
    pub from: Vec<RuleAddresses>,
    /// Destinations.
    pub to: Vec<RuleAddresses>,
    /// Upper-layer protocol, or any.
    pub protocol: Option<u8>,
    /// Ports, kind of TCP segments or ICMP types; of ports `local` are those of the source.
    pub upper: UpperSelector,
}

/// The action of a rule on the packets that it matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleAction {
    /// The packet passes to the next question.
    Permit,
    /// The packet is denied.
    Deny,
    /// The packet passes to the next question, and the answers of its connection pass too.
    Reflect,
}

/// An entry of a rule's `from` or `to`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleAddresses {
    /// These addresses.
    Range(AddressRange),
    /// The addresses of a set.
    Set(SetId),
}

impl RuleAction {
    /// All actions.
    pub const ALL: [RuleAction; 3] = [RuleAction::Permit, RuleAction::Deny, RuleAction::Reflect];

    /// `permit`, `deny` or `reflect`.
    pub const fn name(self) -> &'static str {
        match self {
            RuleAction::Permit => "permit",
            RuleAction::Deny => "deny",
            RuleAction::Reflect => "reflect",
        }
    }
}

impl Rule {
    /// The packets that it matches: `local` is the source, `remote` the destination. `sets` are
    /// those of its configuration. Entries that overlap or adjoin are one range.
    ///
    /// # Panics
    /// If the rule is of another configuration.
    pub fn selector(&self, sets: &[Set]) -> Selector {
        Selector {
            local: ranges(&self.from, sets),
            remote: ranges(&self.to, sets),
            protocol: self.protocol,
            upper: self.upper.clone(),
        }
    }
}

/// The addresses that entries of a rule mean.
pub(crate) fn ranges(entries: &[RuleAddresses], sets: &[Set]) -> Vec<AddressRange> {
    let of = |entry: &RuleAddresses| match entry {
        RuleAddresses::Range(range) => std::slice::from_ref(range).to_vec(),
        RuleAddresses::Set(set) => sets[set.0 as usize].addresses.clone(),
    };
    joined(entries.iter().flat_map(of).collect())
}

/// The same addresses in as few ranges as possible, ascending, IPv4 first.
pub(crate) fn joined(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable_by_key(|range| (range.family as u8, range.lo, range.hi));
    let mut joined: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.family == range.family && range.lo <= last.hi.saturating_add(1) => {
                last.hi = last.hi.max(range.hi);
            }
            _ => joined.push(range),
        }
    }
    joined
}

impl Set {
    /// Writes its section.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        // A member is never "any": both families in full are two members.
        let members = self.addresses.iter().map(ToString::to_string);
        writeln!(out, "[set.{}]\naddresses = {}", quoted(&self.name), list(members))
    }
}

impl Group {
    /// Writes its section.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        let mode = match self.mode {
            GroupMode::Enforce => "enforce",
            GroupMode::Audit => "audit",
        };
        writeln!(out, "[group.{}]\nmode = \"{mode}\"", quoted(&self.name))
    }
}

impl Rule {
    /// Returns the entries of `from` and of `to` as they are written. `sets` are those of the
    /// rule's configuration.
    ///
    /// # Panics
    /// If the rule is of another configuration.
    pub fn ends_text(&self, sets: &[Set]) -> [Vec<String>; 2] {
        [&self.from, &self.to].map(|entries| texts(entries, sets))
    }

    /// Writes its section, with the names of its configuration's groups and sets.
    pub(crate) fn write(
        &self,
        out: &mut String,
        groups: &[Group],
        sets: &[Set],
    ) -> std::fmt::Result {
        let group = &groups[self.group.0 as usize].name;
        writeln!(out, "[[rule]]\ngroup = {}", quoted(group))?;
        // A rule without a name keeps being called by its number where rules come before it.
        let mark = if self.name == self.number.to_string() { "# " } else { "" };
        writeln!(out, "{mark}name = {}", quoted(&self.name))?;
        writeln!(out, "action = \"{}\"", self.action.name())?;
        writeln!(out, "from = {}", list(texts(&self.from, sets)))?;
        writeln!(out, "to = {}", list(texts(&self.to, sets)))?;
        writeln!(out, "protocol = \"{}\"", protocol_text(self.protocol))?;
        match &self.upper {
            UpperSelector::Any => {}
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
                for (key, ports) in [("from_ports", local), ("to_ports", remote)] {
                    if !ports.is_empty() {
                        writeln!(out, "{key} = {}", list(ports.iter().map(PortRange::to_string)))?;
                    }
                }
            }
            UpperSelector::Icmp(messages) if messages.is_empty() => {}
            UpperSelector::Icmp(messages) => {
                writeln!(out, "icmp = {}", list(messages.iter().map(ToString::to_string)))?;
            }
        }
        if let Some(segments) = self.upper.segments() {
            writeln!(out, "tcp = \"{}\"", segments.name())?;
        }
        Ok(())
    }
}

/// Entries of `from` and `to` as they are written.
fn texts(entries: &[RuleAddresses], sets: &[Set]) -> Vec<String> {
    let (mut texts, mut run) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            RuleAddresses::Range(range) => run.push(*range),
            RuleAddresses::Set(set) => {
                texts.extend(addresses(&run));
                run.clear();
                texts.push(format!("@{}", sets[set.0 as usize].name));
            }
        }
    }
    texts.extend(addresses(&run));
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined_texts(texts: &[&str]) -> Vec<String> {
        let ranges = texts.iter().map(|text| text.parse().unwrap()).collect();
        joined(ranges).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_that_overlap_or_adjoin_are_one_and_families_stay_apart() {
        let v6_all = "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        for (texts, one) in [
            (
                &["10.1.0.0/24", "10.0.0.0/24", "10.0.1.0/24"][..],
                &["10.0.0.0/23", "10.1.0.0/24"][..],
            ),
            (&["10.0.0.0/8", "10.1.0.0/16"], &["10.0.0.0/8"]),
            (&["10.0.0.1-10.0.0.5", "10.0.0.3-10.0.0.8"], &["10.0.0.1-10.0.0.8"]),
            (&["10.0.0.1", "10.0.0.1"], &["10.0.0.1"]),
            (&["::/0", "0.0.0.0/0", "::1", "255.255.255.255"], &["0.0.0.0/0", "::/0"]),
            (&[v6_all, v6_all], &["::/0"]),
            (&[], &[]),
        ] {
            assert_eq!(joined_texts(texts), one, "{texts:?}");
        }
    }
}
