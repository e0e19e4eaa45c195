//! Random rules, packets, cards and steps, at the edges of each other.

use offload::{AddressForm, Order, PortForm, Protocols, RuleAbilities};
use proptest::prelude::*;
use wire::{Address, Family};

/// A rule as it is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) action: u8,
    pub(crate) priority: u32,
    /// Ports that ask it, as bits.
    pub(crate) ports: u8,
    pub(crate) sources: Vec<(Family, u128, u128)>,
    pub(crate) destinations: Vec<(Family, u128, u128)>,
    pub(crate) protocol: Option<u8>,
    pub(crate) upper: Upper,
}

/// Upper-layer condition as it is drawn.
#[derive(Clone, Debug)]
pub(crate) enum Upper {
    Any,
    Ports(Vec<(u16, u16)>, Vec<(u16, u16)>),
    Icmp(Vec<(u16, u16)>),
    Tcp(u8, Vec<(u16, u16)>),
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Packets come.
    Packets(Vec<PacketLine>),
    /// Packets come, are marked, and are judged later.
    Late(PacketLine),
    /// The planner runs, with these packets counted by rule.
    Plan(Vec<u64>),
    /// The card is asked what the ledger says.
    Orders,
    /// Time passes.
    Advance(u64),
    /// An event of the card is told, perhaps twice, and not the oldest first.
    Event(prop::sample::Index, u8),
    /// All events are told.
    AllEvents,
    /// The ledger looks at the card.
    Look,
    /// A rule comes.
    Add(Line),
    /// A rule goes.
    Remove(prop::sample::Index),
    /// The card fails.
    Fault(u8, prop::sample::Index),
    /// A period ends.
    Period,
    /// The control thread goes round so many times.
    Rounds(u8),
}

/// A packet as it is drawn: near the rule that an index names.
#[derive(Clone, Debug)]
pub(crate) struct PacketLine {
    pub(crate) near: prop::sample::Index,
    pub(crate) port: u8,
    pub(crate) corner: [u8; 5],
    pub(crate) noise: [u16; 4],
    /// Of the packet: plain, a first or later fragment, options or an extension header.
    pub(crate) form: u8,
}

/// A card as it is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardLine {
    pub(crate) rules: RuleAbilities,
    pub(crate) faults: [u16; 5],
}

/// Numbers near few places, so that ranges meet.
fn number(highest: u128) -> impl Strategy<Value = u128> {
    prop_oneof![
        4 => 0..10u128,
        2 => (0..4u128).prop_map(move |n| highest - n),
        1 => Just(highest / 2),
        1 => (highest / 2 - 2)..=(highest / 2 + 2),
    ]
}

fn range(highest: u128) -> impl Strategy<Value = (u128, u128)> {
    prop_oneof![
        3 => (number(highest), number(highest)).prop_map(|(a, b)| (a.min(b), a.max(b))),
        2 => number(highest).prop_map(|a| (a, a)),
        1 => Just((0, highest)),
        // HA-19: all but the ends.
        1 => Just((1, highest - 1)),
    ]
}

fn ranges16() -> impl Strategy<Value = Vec<(u16, u16)>> {
    let one = range(0xffff).prop_map(|(lo, hi)| (lo as u16, hi as u16));
    proptest::collection::vec(one, 0..3)
}

fn addresses() -> impl Strategy<Value = Vec<(Family, u128, u128)>> {
    let one = prop_oneof![
        3 => range(Family::V4.highest_address()).prop_map(|(lo, hi)| (Family::V4, lo, hi)),
        2 => range(Family::V6.highest_address()).prop_map(|(lo, hi)| (Family::V6, lo, hi)),
    ];
    prop_oneof![
        3 => proptest::collection::vec(one, 1..3),
        1 => Just(vec![
            (Family::V4, 0, Family::V4.highest_address()),
            (Family::V6, 0, Family::V6.highest_address()),
        ]),
    ]
}

pub(crate) fn line() -> impl Strategy<Value = Line> {
    let protocol = prop_oneof![
        2 => Just(None),
        4 => prop::sample::select(vec![6u8, 17]).prop_map(Some),
        1 => prop::sample::select(vec![1u8, 58, 132, 47, 50, 136]).prop_map(Some),
    ];
    let upper = prop_oneof![
        3 => Just(Upper::Any),
        3 => (ranges16(), ranges16()).prop_map(|(s, d)| Upper::Ports(s, d)),
        1 => ranges16().prop_map(Upper::Icmp),
        1 => (0..2u8, ranges16()).prop_map(|(kind, d)| Upper::Tcp(kind, d)),
    ];
    // Permit and deny, seldom reflect or audit.
    let action = prop_oneof![4 => Just(0u8), 4 => Just(1u8), 1 => 2..6u8];
    (action, 0..6u32, 1..8u8, addresses(), addresses(), protocol, upper).prop_map(
        |(action, priority, ports, sources, destinations, protocol, upper)| Line {
            action,
            priority,
            ports,
            sources,
            destinations,
            protocol,
            upper,
        },
    )
}

fn packet() -> impl Strategy<Value = PacketLine> {
    let form = prop_oneof![8 => Just(0u8), 1 => 1..5u8];
    (any::<prop::sample::Index>(), 0..3u8, any::<[u8; 5]>(), any::<[u16; 4]>(), form).prop_map(
        |(near, port, corner, noise, form)| PacketLine { near, port, corner, noise, form },
    )
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::collection::vec(packet(), 1..24).prop_map(Step::Packets),
        3 => packet().prop_map(Step::Late),
        3 => proptest::collection::vec(prop_oneof![Just(0), 0..1000u64, Just(u64::MAX)], 1..14)
            .prop_map(Step::Plan),
        4 => Just(Step::Orders),
        4 => (0..60u64).prop_map(Step::Advance),
        2 => (any::<prop::sample::Index>(), 0..3u8).prop_map(|(at, twice)| Step::Event(at, twice)),
        3 => Just(Step::AllEvents),
        4 => Just(Step::Look),
        1 => line().prop_map(Step::Add),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => (0..10u8, any::<prop::sample::Index>()).prop_map(|(kind, of)| Step::Fault(kind, of)),
        1 => Just(Step::Period),
        4 => (1..6u8).prop_map(Step::Rounds),
    ]
}

pub(crate) fn card() -> impl Strategy<Value = CardLine> {
    let entries = prop_oneof![1 => 0..4u32, 3 => 1..40u32, 1 => Just(2000)];
    let order = prop::sample::select(vec![Order::None, Order::Priority, Order::Priority]);
    let faults = prop_oneof![2 => Just([0u16; 5]), 1 => any::<[u8; 5]>().prop_map(|of| {
        of.map(|often| u16::from(often % 4) * 80)
    })];
    (entries, prop_oneof![Just(0u32), Just(5), Just(500)], order, any::<[bool; 6]>(), faults)
        .prop_map(|(entries, programming_ms, order, weak, faults)| {
            let all = RuleAbilities::default();
            let lacks = offload::Ability::Lacks("drawn so");
            let rules = RuleAbilities {
                entries,
                programming_ms,
                order,
                addresses: if weak[0] { AddressForm::Ranges } else { AddressForm::Prefixes },
                ports: match weak[1] {
                    true => offload::Ability::Has(PortForm::Single),
                    false => all.ports,
                },
                protocols: if weak[2] { Protocols::TcpUdp } else { Protocols::All },
                messages: if weak[3] { lacks } else { all.messages },
                segments: if weak[4] { lacks } else { all.segments },
                fragments: if weak[5] { lacks } else { all.fragments },
                ..all
            };
            CardLine { rules, faults }
        })
}

/// A number at a corner of a range, or beside it.
pub(crate) fn corner((lo, hi): (u128, u128), choice: u8, highest: u128) -> u128 {
    match choice % 6 {
        0 => lo,
        1 => hi,
        2 => lo.saturating_sub(1),
        3 => hi.saturating_add(1).min(highest),
        4 => lo + (hi - lo) / 2,
        _ => lo.saturating_add(1).min(hi),
    }
}

pub(crate) fn address(family: Family, value: u128) -> Address {
    Address { family, value }
}
