//! Decisions of rules, as far as two rules can differ.

use policy::{Action, GroupMode};

/// The decision of a rule. Two rules that decide the same are the same to a packet: which of them
/// counts it is all that differs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// The packet passes to the next question.
    Permit,
    /// A rule denies it.
    Deny,
    /// No rule matches it.
    NoRule,
    /// A rule of a group in audit mode would deny it.
    WouldDeny,
    /// No rule matches it, and all groups are in audit mode.
    WouldNotMatch,
    /// The packet passes, and its connection begins.
    Reflect,
    /// A policy of the SPD decides.
    Policy,
}

impl Decision {
    /// The decision of an action.
    pub const fn of(action: Action) -> Decision {
        match action {
            Action::Permit(_) => Decision::Permit,
            Action::Deny(GroupMode::Enforce) => Decision::Deny,
            Action::NoRule(GroupMode::Enforce) => Decision::NoRule,
            Action::Deny(GroupMode::Audit) => Decision::WouldDeny,
            Action::NoRule(GroupMode::Audit) => Decision::WouldNotMatch,
            Action::Reflect(_) => Decision::Reflect,
            Action::Protect(_) | Action::Bypass | Action::Discard => Decision::Policy,
        }
    }

    /// Its name, as operators see it.
    pub const fn name(self) -> &'static str {
        match self {
            Decision::Permit => "permit",
            Decision::Deny => "deny",
            Decision::NoRule => "no match",
            Decision::WouldDeny => "would deny",
            Decision::WouldNotMatch => "would not match",
            Decision::Reflect => "reflect",
            Decision::Policy => "policy",
        }
    }

    /// Returns whether the packet is dropped.
    pub const fn drops(self) -> bool {
        matches!(self, Decision::Deny | Decision::NoRule)
    }

    /// A bit for each decision.
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}
