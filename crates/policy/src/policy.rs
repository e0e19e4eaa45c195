//! Policies (RFC 4301 §4.4.1), and the rules that a policy becomes.

use std::sync::Arc;

use wire::Family;

use crate::book::{Book, Direction, GroupSide};
use crate::ids::PolicyIndex;
use crate::list::{self, List};
use crate::rule::{Rule, UpperRule};
use crate::selector::{AddressRange, IcmpRange, PortRange, Selector, UpperSelector};

/// Number of a policy, never reused while the process lives (DESIGN I2). Policies whose numbers are
/// [`PolicyId::FIRST_BEHIND`] or higher stand behind all others, whatever their priorities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PolicyId(pub u32);

impl PolicyId {
    /// The first number of policies that stand behind all others.
    pub const FIRST_BEHIND: PolicyId = PolicyId(1 << 31);

    /// Returns whether its policy stands behind all those that have lower numbers than
    /// [`FIRST_BEHIND`](Self::FIRST_BEHIND).
    pub const fn is_behind(self) -> bool {
        self.0 >= PolicyId::FIRST_BEHIND.0
    }
}

/// Number of a set of SAs that a PROTECT policy names (RFC 9611), never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SaSetId(pub u32);

/// The action of a policy on the packets that it matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// PROTECT: ESP with an SA of this set.
    Protect(SaSetId),
    /// BYPASS: let through in clear.
    Bypass,
    /// DISCARD: drop, silently.
    Discard,
    /// A group's rule lets the packet pass to the next question.
    Permit(GroupMode),
    /// A group's rule lets the packet pass, and with it all packets of its connection, in both
    /// directions.
    Reflect(GroupMode),
    /// A group's rule denies the packet.
    Deny(GroupMode),
    /// No rule of a port's groups matched: the packet is denied.
    NoRule(GroupMode),
}

impl Action {
    /// Names of what actions do to packets, for sums over all policies and rules.
    pub const NAMES: [&'static str; 7] =
        ["protect", "bypass", "discard", "permit", "deny", "no_match", "would_deny"];

    /// Returns the place in [`NAMES`](Self::NAMES) of what the action does to packets.
    pub const fn kind(self) -> usize {
        match self {
            Action::Protect(_) => 0,
            Action::Bypass => 1,
            Action::Discard => 2,
            Action::Permit(_) | Action::Reflect(_) => 3,
            Action::Deny(GroupMode::Enforce) => 4,
            Action::NoRule(GroupMode::Enforce) => 5,
            Action::Deny(GroupMode::Audit) | Action::NoRule(GroupMode::Audit) => 6,
        }
    }
}

/// The mode of a security group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupMode {
    /// Denied packets are dropped.
    Enforce,
    /// Packets that would be denied are counted, and pass to the next question.
    Audit,
}

/// A policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Number of the policy.
    pub id: PolicyId,
    /// Name in the configuration.
    pub name: String,
    /// Action of the policy.
    pub action: Action,
    /// Higher wins; among equals the one added later, which has the higher id (FC-41). Policies
    /// that stand behind all others are compared among themselves alone
    /// ([`PolicyId::is_behind`]).
    pub priority: u32,
    /// The only direction that a policy of the SPD applies to; `None`: both, mirrored inbound.
    pub only: Option<Direction>,
    /// The side of a port whose security groups the rule is of; `None`: it is a policy of the SPD.
    pub group: Option<GroupSide>,
    /// Places of the ports by which a packet must have come for the policy to concern it; `None`:
    /// any. Of a rule of groups out: of the ports by which it leaves.
    pub ingress: Option<Arc<[u16]>>,
    /// The flows that it matches.
    pub selector: Selector,
}

/// The rank of a policy: the higher wins, compared as numbers. No two policies of a database share
/// one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Precedence(u64);

impl Precedence {
    /// Bits of an id that count: the highest says which half of the ranks it has.
    const ID_BITS: u32 = 31;

    /// The lowest of a priority, of policies that stand behind none.
    pub(crate) const fn lowest_of(priority: u32) -> Precedence {
        Precedence(1 << 63 | (priority as u64) << Precedence::ID_BITS)
    }

    pub(crate) const fn of(priority: u32, id: PolicyId) -> Precedence {
        let number = id.0 & (PolicyId::FIRST_BEHIND.0 - 1);
        let below = (priority as u64) << Precedence::ID_BITS | number as u64;
        Precedence(if id.is_behind() { below } else { 1 << 63 | below })
    }
}

impl Policy {
    /// Returns the rank of the policy as a number: of two that match a packet, the higher decides.
    /// No two policies of a database share one.
    pub fn rank(&self) -> u64 {
        self.precedence().0
    }

    pub(crate) fn precedence(&self) -> Precedence {
        Precedence::of(self.priority, self.id)
    }

    /// The books and families that the policy may have rules in.
    fn holds_in(&self) -> impl Iterator<Item = (Book, Family)> {
        let is_in = |book: &Book| match self.group {
            Some(side) => *book == side.book(),
            None => book.direction().is_some_and(|of| self.only.is_none_or(|only| only == of)),
        };
        let books = Book::ALL.into_iter().filter(is_in);
        books.flat_map(|book| [(book, Family::V4), (book, Family::V6)])
    }

    /// Returns the books and families with rules of the policy.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (Book, Family)> {
        self.holds_in().filter(|(_, family)| self.rules(*family) > 0)
    }

    /// Appends the policy's rules for a direction and family: the cross product of its lists.
    pub(crate) fn compile(
        &self,
        index: PolicyIndex,
        direction: Direction,
        family: Family,
        rules: &mut Vec<Rule>,
    ) {
        let Selector { local, remote, upper, .. } = &self.selector;
        let Some(protocol) = self.selector.asked_protocol() else { return };
        let (sources, destinations) = match direction {
            Direction::Outbound => (local, remote),
            Direction::Inbound => (remote, local),
        };
        let uppers = upper.rules(direction);
        let [sources, destinations] =
            [sources, destinations].map(|ranges| list::sides(ranges, family, self.most_expanded()));
        for (source, of_source) in &sources {
            for (destination, of_destination) in &destinations {
                rules.extend(uppers.iter().map(|&upper| Rule {
                    source: *source,
                    destination: *destination,
                    lists: [of_source.clone(), of_destination.clone()],
                    protocol,
                    upper,
                    index,
                }));
            }
        }
    }

    /// Returns the number of rules that the policy becomes in one direction of a family.
    pub(crate) fn rules(&self, family: Family) -> usize {
        self.selector.rules_of_at_most(family, self.most_expanded())
    }

    /// Ranges of a side up to which each becomes a rule.
    fn most_expanded(&self) -> usize {
        if self.group.is_some() { List::FEW } else { usize::MAX }
    }
}

impl Selector {
    /// Returns the number of rules that a policy with this selector becomes in one direction of a
    /// family, without making them.
    pub fn rules(&self, family: Family) -> usize {
        self.rules_of_at_most(family, usize::MAX)
    }

    /// Returns the number of rules that a rule of a group with this selector becomes in a family: a
    /// side of many ranges counts once.
    pub fn rules_of_group(&self, family: Family) -> usize {
        self.rules_of_at_most(family, List::FEW)
    }

    fn rules_of_at_most(&self, family: Family, most: usize) -> usize {
        let of_family = |ranges: &[AddressRange]| {
            let count = ranges.iter().filter(|range| range.family == family).count();
            if count > most { 1 } else { count }
        };
        let addresses = of_family(&self.local).saturating_mul(of_family(&self.remote));
        let uppers = match &self.upper {
            UpperSelector::Any => 1,
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
                local.len().max(1).saturating_mul(remote.len().max(1))
            }
            UpperSelector::Icmp(messages) => messages.len().max(1),
        };
        let uppers = if self.asked_protocol().is_some() { uppers } else { 0 };
        addresses.saturating_mul(uppers)
    }
}

impl UpperSelector {
    /// The combinations of the selector's lists as a packet of this direction shows them.
    fn rules(&self, direction: Direction) -> Vec<UpperRule> {
        match self {
            UpperSelector::Any => vec![UpperRule::Any],
            UpperSelector::Ports { local, remote } if local.is_empty() && remote.is_empty() => {
                vec![UpperRule::Any]
            }
            UpperSelector::Ports { local, remote } => {
                let rule = |(source, destination)| UpperRule::Ports { source, destination };
                port_pairs(local, remote, direction).map(rule).collect()
            }
            &UpperSelector::Tcp { segments, ref local, ref remote } => {
                let rule = |(source, destination)| UpperRule::Tcp { segments, source, destination };
                port_pairs(local, remote, direction).map(rule).collect()
            }
            UpperSelector::Icmp(messages) if messages.is_empty() => {
                vec![UpperRule::Icmp(IcmpRange::ANY)]
            }
            UpperSelector::Icmp(messages) => {
                messages.iter().map(|&range| UpperRule::Icmp(range)).collect()
            }
        }
    }
}

/// The combinations of source and destination ports of packets of a direction.
fn port_pairs<'p>(
    local: &'p [PortRange],
    remote: &'p [PortRange],
    direction: Direction,
) -> impl Iterator<Item = (PortRange, PortRange)> + 'p {
    let (sources, destinations) = match direction {
        Direction::Outbound => (local, remote),
        Direction::Inbound => (remote, local),
    };
    let destinations = ports_or_any(destinations);
    let pairs = |&source| destinations.iter().map(move |&destination| (source, destination));
    ports_or_any(sources).iter().flat_map(pairs)
}

/// An empty list of ports means any.
fn ports_or_any(ports: &[PortRange]) -> &[PortRange] {
    if ports.is_empty() { &[PortRange::ANY] } else { ports }
}
