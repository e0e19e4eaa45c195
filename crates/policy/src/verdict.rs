//! The answer of the tables for a flow.

use crate::ids::{PolicyIndex, SetIndex};

/// The rule of one book that decides a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Decider {
    /// The policy of this slot decides.
    Policy(PolicyIndex),
    /// A non-first fragment whose missing ports, ICMP type or (IPv6) protocol this rule would have
    /// to see before anything below it may decide. It never falls past (FC-44).
    FragmentPorts(PolicyIndex),
    /// No rule matches the flow.
    #[default]
    None,
}

impl Decider {
    /// The slot of the rule, if there is one.
    #[inline]
    pub const fn slot(self) -> Option<PolicyIndex> {
        match self {
            Decider::Policy(slot) | Decider::FragmentPorts(slot) => Some(slot),
            Decider::None => None,
        }
    }
}

/// The answer of the tables about a flow in a [`Scope`](crate::Scope). It holds until a book that
/// was consulted changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowVerdict {
    /// The action.
    pub action: FlowAction,
    /// The rules that decided; the last one made the verdict.
    pub deciders: Deciders,
    /// The ports by which it holds.
    pub egress: EgressClass,
}

/// Slots of the rules that decided a flow: one of each book that was asked and had one, at most
/// three, in the order in which they were asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deciders([u32; 3]);

/// A value above every slot of a database: an empty place.
const NONE: u32 = u32::MAX;

impl Deciders {
    /// The value for a flow that no rule decided.
    pub const NONE: Deciders = Deciders([NONE; 3]);

    /// Returns the deciders that consist of one rule.
    #[inline]
    pub const fn one(slot: PolicyIndex) -> Deciders {
        Deciders([slot.0, NONE, NONE])
    }

    /// Adds the rule of the book that was asked next.
    #[inline]
    pub(crate) fn push(&mut self, slot: PolicyIndex) {
        if let Some(place) = self.0.iter_mut().find(|place| **place == NONE) {
            *place = slot.0;
        }
    }

    /// Names these rules, at most three: those behind the third are left out.
    pub fn of(slots: &[PolicyIndex]) -> Deciders {
        let mut deciders = Deciders::NONE;
        deciders.0.iter_mut().zip(slots).for_each(|(place, slot)| *place = slot.0);
        deciders
    }

    /// The slots.
    #[inline]
    pub fn slots(&self) -> impl Iterator<Item = PolicyIndex> {
        self.0.iter().take_while(|slot| **slot != NONE).map(|slot| PolicyIndex(*slot))
    }

    /// The slot of the rule that was asked first.
    #[inline]
    pub const fn first(self) -> Option<PolicyIndex> {
        if self.0[0] == NONE { None } else { Some(PolicyIndex(self.0[0])) }
    }

    /// Returns whether there is no rule.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0[0] == NONE
    }
}

/// An action, with its SA set found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowAction {
    /// The packet passes in cleartext.
    Permit,
    /// The packet is sealed with an SA of this set.
    Protect(SetIndex),
    /// The packet is dropped.
    Refuse(Refusal),
}

/// The reason for which the tables refuse a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// No rule matches.
    NoMatch,
    /// A DISCARD policy matches.
    Discard,
    /// A later fragment lacks the ports that a rule asks for.
    FragmentPorts,
    /// The packet came in cleartext, and a PROTECT policy matches.
    Unprotected,
    /// The packet was opened by an SA that the matching policy does not name.
    SelectorMismatch,
    /// A rule of a security group denies it.
    GroupDeny,
    /// The port has security groups, and no rule of theirs matches.
    GroupNoMatch,
    /// A `reflect` rule matches, and there is no room for another connection.
    ConnectionLimit,
}

/// The ways out that a verdict holds for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EgressClass {
    /// The verdict holds whatever way the packet takes.
    #[default]
    Any,
    /// The verdict holds for ways out of this class only
    /// ([`Tables::egress_class`](crate::Tables::egress_class)).
    Only(u16),
}

impl FlowVerdict {
    /// The verdict on a flow of which no book is asked: it passes.
    pub const NOT_ASKED: FlowVerdict = FlowVerdict {
        action: FlowAction::Permit,
        deciders: Deciders::NONE,
        egress: EgressClass::Any,
    };

    /// Returns the verdict as one of a book that is asked about the way out: refused packets are
    /// refused there only.
    #[inline]
    pub(crate) fn by_way_out(self) -> FlowVerdict {
        FlowVerdict { egress: EgressClass::Only(0), ..self }
    }

    /// Returns whether the packet passes, in cleartext or protected.
    #[inline]
    pub fn passes(&self) -> bool {
        !matches!(self.action, FlowAction::Refuse(_))
    }

    /// Adds what the book says that is asked next: it is asked of what passes only. What is to be
    /// protected stays so where groups permit it.
    #[inline]
    pub(crate) fn then(&mut self, next: &FlowVerdict) {
        if !self.passes() {
            return;
        }
        if next.action != FlowAction::Permit {
            self.action = next.action;
        }
        self.egress = next.egress;
        next.deciders.slots().for_each(|slot| self.deciders.push(slot));
    }

    /// Returns whether a book was asked: what passes has a rule that permits it.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.action != FlowAction::Permit || !self.deciders.is_empty()
    }

    /// Returns whether it says that no rule matched.
    #[inline]
    pub fn is_negative(&self) -> bool {
        matches!(self.action, FlowAction::Refuse(Refusal::NoMatch | Refusal::GroupNoMatch))
    }
}

impl EgressClass {
    /// Returns whether a verdict of this class holds for a packet whose way out is of `class`.
    #[inline]
    pub fn admits(self, class: u16) -> bool {
        match self {
            EgressClass::Any => true,
            EgressClass::Only(only) => only == class,
        }
    }
}
