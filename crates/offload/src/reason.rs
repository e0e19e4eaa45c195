//! Reasons why a rule is not in a card.

use policy::PolicyIndex;
use wire::Family;

use crate::card::Refusal;

/// A rule of one family: what a plan places or leaves. The slot is never given to another policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RuleKey {
    /// Slot of the policy.
    pub slot: PolicyIndex,
    /// Its packets' family.
    pub family: Family,
}

/// Reason why a rule cannot be said by a card, not more and not less than it says (DESIGN I5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Inexact {
    /// The card has no rules.
    NoRules,
    /// It is a policy of the SPD.
    Policy,
    /// It judges what leaves.
    Egress,
    /// No port of the card asks it.
    OtherPort,
    /// The ports of the card that ask it say that the card decides none of their rules.
    OffloadNone,
    /// It lets connections begin.
    Reflect,
    /// It is for IPv6.
    Ipv6,
    /// It asks for a protocol that the card cannot ask for.
    Protocol,
    /// It asks for ports in a form that the card does not have.
    Ports,
    /// It asks for ICMP messages.
    Messages,
    /// It tells TCP segments apart.
    Segments,
    /// No packet matches it.
    MatchesNothing,
    /// Its lists multiply to more entries than a rule may take.
    TooManyEntries,
    /// It would drop packets that the groups are not asked about: ESP, IKE, neighbour discovery.
    OwnTraffic,
    /// It would drop fragments that the card cannot tell from whole packets.
    Fragments,
    /// It would drop packets of connections that another rule let begin.
    Connections,
    /// The card marks, and does not drop.
    NoDrop,
}

impl Inexact {
    /// All of them.
    pub const ALL: [Inexact; 17] = [
        Inexact::NoRules,
        Inexact::Policy,
        Inexact::Egress,
        Inexact::OtherPort,
        Inexact::OffloadNone,
        Inexact::Reflect,
        Inexact::Ipv6,
        Inexact::Protocol,
        Inexact::Ports,
        Inexact::Messages,
        Inexact::Segments,
        Inexact::MatchesNothing,
        Inexact::TooManyEntries,
        Inexact::OwnTraffic,
        Inexact::Fragments,
        Inexact::Connections,
        Inexact::NoDrop,
    ];

    /// Its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Inexact::NoRules => "no_rules",
            Inexact::Policy => "policy",
            Inexact::Egress => "egress",
            Inexact::OtherPort => "other_port",
            Inexact::OffloadNone => "offload_none",
            Inexact::Reflect => "reflect",
            Inexact::Ipv6 => "ipv6",
            Inexact::Protocol => "protocol",
            Inexact::Ports => "ports",
            Inexact::Messages => "messages",
            Inexact::Segments => "segments",
            Inexact::MatchesNothing => "matches_nothing",
            Inexact::TooManyEntries => "too_many_entries",
            Inexact::OwnTraffic => "own_traffic",
            Inexact::Fragments => "fragments",
            Inexact::Connections => "connections",
            Inexact::NoDrop => "no_drop",
        }
    }

    /// Its meaning.
    pub const fn help(self) -> &'static str {
        match self {
            Inexact::NoRules => "the card holds no rules",
            Inexact::Policy => "a policy of the SPD; only rules of groups are placed",
            Inexact::Egress => "it judges what leaves; the card looks at what comes by a port",
            Inexact::OtherPort => "no port of the card lists its group",
            Inexact::OffloadNone => "the port that lists its group has offload_groups = \"none\"",
            Inexact::Reflect => "it lets connections begin, and the card follows none",
            Inexact::Ipv6 => "the card has no rules for IPv6",
            Inexact::Protocol => "the card cannot ask for its protocol",
            Inexact::Ports => "the card cannot say its ports",
            Inexact::Messages => "the card cannot tell ICMP messages apart",
            Inexact::Segments => "the card cannot tell TCP segments apart",
            Inexact::MatchesNothing => "no packet matches it",
            Inexact::TooManyEntries => "it takes more entries than one rule may take",
            Inexact::OwnTraffic => {
                "the card would drop packets that groups are not asked about (ESP, IKE, ND)"
            }
            Inexact::Fragments => "the card would drop fragments that it cannot tell apart",
            Inexact::Connections => "the card would drop packets of connections",
            Inexact::NoDrop => "the card marks packets, and drops none",
        }
    }
}

/// Reason why a rule is not to be in the card.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The card cannot say it.
    Inexact(Inexact),
    /// The card keeps no order, and this rule wins over it and decides otherwise.
    Order(RuleKey),
    /// A rule that wins over it and decides otherwise cannot be in the card, for this reason.
    Beaten(RuleKey, Inexact),
    /// A rule that wins over it and decides otherwise was refused by the card.
    BeatenByRefused(RuleKey),
    /// The rules that must be in the card before it take more entries than the card has.
    BundleTooLarge,
    /// The card refused it, and is not asked again yet.
    Refused(Refusal),
    /// No packet of it was counted.
    NoPackets,
    /// Others are more useful, and the card is full.
    Capacity,
    /// As many rules as one period may move were moved.
    Moves,
    /// Rules overlap so much that not all were looked at, and others are more useful.
    Effort,
}

impl Reason {
    /// Its name, for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Reason::Inexact(inexact) => inexact.name(),
            Reason::Order(_) => "order",
            Reason::Beaten(..) => "beaten",
            Reason::BeatenByRefused(_) => "beaten_by_refused",
            Reason::BundleTooLarge => "bundle_too_large",
            Reason::Refused(_) => "refused",
            Reason::NoPackets => "no_packets",
            Reason::Capacity => "capacity",
            Reason::Moves => "moves",
            Reason::Effort => "effort",
        }
    }

    /// Its meaning.
    pub const fn help(&self) -> &'static str {
        match self {
            Reason::Inexact(inexact) => inexact.help(),
            Reason::Order(_) => {
                "a rule that wins over it decides otherwise, and the card keeps no order"
            }
            Reason::Beaten(..) => {
                "a rule that wins over it decides otherwise and cannot be in the card"
            }
            Reason::BeatenByRefused(_) => {
                "a rule that wins over it decides otherwise and was refused by the card"
            }
            Reason::BundleTooLarge => "the rules that must be in the card before it do not fit",
            Reason::Refused(_) => "the card refused it",
            Reason::NoPackets => "no packet of it was counted",
            Reason::Capacity => "others are more useful, and the card is full",
            Reason::Moves => "as many rules as one period may move were moved",
            Reason::Effort => "rules overlap too much to look at all; others are more useful",
        }
    }

    /// The rule that is the cause, if one is.
    pub const fn cause(&self) -> Option<RuleKey> {
        match self {
            Reason::Order(by) | Reason::Beaten(by, _) | Reason::BeatenByRefused(by) => Some(*by),
            _ => None,
        }
    }
}
