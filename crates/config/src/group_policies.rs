//! Rules of groups as policies of the database: what `[[rule]]`, `groups_in` and `groups_out` mean
//! together.
//!
//! A port asks the rules of its first group, in their order, then those of the second, and so on.
//! The highest priority decides, so a rule's priority says both places:
//!
//! | bits | |
//! |---|---|
//! | 24 … 31 | 255 − the group's place in the port's list |
//! | 0 … 23 | 2²⁴ − 1 − 128 × the rule's number in its group |
//!
//! Between two rules there are 127 free priorities. A rule of a group that ports list at different
//! places becomes a policy for each place.
//!
//! A virtual network lists groups as a port does: a rule names ports and networks in one list, the
//! networks by numbers from [`FIRST_NETWORK`].

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::{
    Action, AddressRange, GroupMode, GroupSide, Policy, PolicyId, Selector, UpperSelector,
};
use wire::{Family, Vni};

use crate::groups::{GroupId, Rule, RuleAction};
use crate::overlays::{FIRST_NETWORK, NetworkSettings};
use crate::validated::{Port, Validated};

/// Groups at most on a side of a port: each place has priorities of its own.
pub const MAX_GROUPS_A_SIDE: usize = 64;
/// Rules at most in one group: each number has a priority of its own.
pub const MAX_RULES_A_GROUP: usize = 131_000;

/// Priorities from one rule of a group to the next.
const STEP: u32 = 128;
/// The highest priority of a place, in its low bits.
const TOP: u32 = 0xff_ffff;

const _: () = assert!(MAX_RULES_A_GROUP as u32 * STEP < TOP && MAX_GROUPS_A_SIDE <= 256);

/// The ports and virtual networks that list a group at one place of one side, ascending.
pub(crate) type Attachments = BTreeMap<(GroupSide, GroupId, usize), Vec<u16>>;

/// Returns where groups are listed. Ports are places in the file; virtual networks with groups have
/// numbers from [`FIRST_NETWORK`], in the order of their VNIs.
pub(crate) fn attachments(ports: &[Port], networks: &[NetworkSettings]) -> Attachments {
    let mut found = Attachments::new();
    let mut add = |place: u16, side, groups: &[GroupId]| {
        for (position, group) in groups.iter().enumerate() {
            found.entry((side, *group, position)).or_default().push(place);
        }
    };
    for (place, port) in (0..).zip(ports) {
        GroupSide::ALL.into_iter().for_each(|side| add(place, side, port.groups(side)));
    }
    for (place, network) in attached(networks) {
        GroupSide::ALL.into_iter().for_each(|side| add(place, side, network.groups(side)));
    }
    found
}

/// The virtual networks that list groups, with the numbers under which rules name them.
fn attached(networks: &[NetworkSettings]) -> impl Iterator<Item = (u16, &NetworkSettings)> {
    (FIRST_NETWORK..).zip(networks.iter().filter(|network| network.lists_groups()))
}

/// The priority of a rule whose group is at this place of a port's list.
fn priority(position: usize, number: u32) -> u32 {
    (255 - position as u32) << 24 | (TOP - STEP * number)
}

/// The name of the rule that decides what no rule of the groups of a port or virtual network
/// matches: `lan (in)`, `vni 7 (in)`. No other rule or policy can have it, and no port is called as
/// a network is: names have no spaces.
pub fn last_rule_name(port: &str, side: GroupSide) -> String {
    format!("{port} ({})", side.name())
}

/// The name of a group's rule in the database: `GROUP/RULE`.
pub fn rule_name(group: &str, rule: &str) -> String {
    format!("{group}/{rule}")
}

/// Every packet of both families.
fn everything() -> Selector {
    let any = vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    Selector { local: any.clone(), remote: any, protocol: None, upper: UpperSelector::Any }
}

impl Port {
    /// The groups of one side, in their order.
    pub fn groups(&self, side: GroupSide) -> &[GroupId] {
        match side {
            GroupSide::In => &self.groups_in,
            GroupSide::Out => &self.groups_out,
        }
    }
}

impl Validated {
    /// Returns the rules of the groups that ports and virtual networks list, as policies for the
    /// database, and for each of their sides with groups the last rule, which denies what none of
    /// them matches. Ports are places in the file, networks numbers of
    /// [`Validated::network_attachments`]. All have id 0: the caller numbers them. A rule is called
    /// `GROUP/RULE`, a last rule by [`last_rule_name`]; no two of a side have the same name and
    /// priority.
    pub fn group_policies(&self) -> Vec<Policy> {
        let mut rules: Vec<Vec<&Rule>> = vec![Vec::new(); self.groups.len()];
        for rule in &self.rules {
            rules[rule.group.0 as usize].push(rule);
        }
        let mut policies = Vec::new();
        for ((side, id, position), places) in attachments(&self.ports, &self.networks) {
            let group = &self.groups[id.0 as usize];
            let places: Arc<[u16]> = places.into();
            policies.extend(rules[id.0 as usize].iter().map(|rule| Policy {
                id: PolicyId(0),
                name: rule_name(&group.name, &rule.name),
                action: match rule.action {
                    RuleAction::Permit => Action::Permit(group.mode),
                    RuleAction::Deny => Action::Deny(group.mode),
                    RuleAction::Reflect => Action::Reflect(group.mode),
                },
                priority: priority(position, rule.number),
                only: None,
                group: Some(side),
                ingress: Some(places.clone()),
                selector: rule.selector(&self.sets),
            }));
        }
        for (place, port) in (0..).zip(&self.ports) {
            let sides = GroupSide::ALL.into_iter().filter(|side| !port.groups(*side).is_empty());
            let last = |side| self.last_rule(place, &port.name, (side, port.groups(side)));
            policies.extend(sides.map(last));
        }
        for (place, network) in attached(&self.networks) {
            let sides = GroupSide::ALL.into_iter().filter(|side| !network.groups(*side).is_empty());
            let name = format!("vni {}", network.vni);
            let last = |side| self.last_rule(place, &name, (side, network.groups(side)));
            policies.extend(sides.map(last));
        }
        policies
    }

    /// Returns the numbers under which rules of groups name virtual networks, for those that list
    /// groups, ascending by VNI.
    pub fn network_attachments(&self) -> impl Iterator<Item = (Vni, u16)> {
        attached(&self.networks).map(|(place, network)| (network.vni, place))
    }

    /// The rule that denies what no rule of the groups of a port, or virtual network, matched.
    fn last_rule(&self, place: u16, name: &str, (side, groups): (GroupSide, &[GroupId])) -> Policy {
        let is_audit = |id: &GroupId| self.groups[id.0 as usize].mode == GroupMode::Audit;
        let mode = match groups.iter().all(is_audit) {
            true => GroupMode::Audit,
            false => GroupMode::Enforce,
        };
        Policy {
            id: PolicyId(0),
            name: last_rule_name(name, side),
            action: Action::NoRule(mode),
            priority: 0,
            only: None,
            group: Some(side),
            ingress: Some([place].into()),
            selector: everything(),
        }
    }
}
