//! Sets of rules, and flows that lie at their edges.

use std::sync::Arc;

use wire::flow::protocol::*;
use wire::{Family, Flow, Upper};

use super::super::{self as classifier, Dead};
use crate::list::{List, Side};
use crate::rule::{Rule, UpperRule};
use crate::{Decider, IcmpRange, PolicyIndex, PortRange, TcpSegments};

/// A small generator of numbers: what a seed says is the same on every machine (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of the values.
    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A number between two, both included.
    pub(super) fn within(&mut self, (lo, hi): (u128, u128)) -> u128 {
        let wide = u128::from(self.next()) << 64 | u128::from(self.next());
        match (hi - lo).checked_add(1) {
            Some(count) => lo + wide % count,
            None => wide,
        }
    }
}

/// Returns the answer of the linear search.
pub(super) fn linear(rules: &[Rule], dead: &Dead, flow: &Flow) -> u32 {
    (0..)
        .zip(rules)
        .filter(|&(position, _)| !dead.contains(position))
        .find(|(_, rule)| rule.judge(flow) != Decider::None)
        .map_or(classifier::NONE, |(position, _)| position)
}

/// A rule for all of some addresses.
pub(super) fn rule(source: (u128, u128), destination: (u128, u128)) -> Rule {
    let index = PolicyIndex(0);
    let lists = [None, None];
    Rule { source, destination, lists, protocol: None, upper: UpperRule::Any, index }
}

/// The arrangement of the ranges of a set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// Each within the one before or around it.
    Nested,
    /// Each begins where another ends.
    Adjacent,
    /// Anywhere, any width.
    Unaligned,
    /// Prefixes.
    Prefixes,
    /// All of everything, or one address.
    Extreme,
    /// Few different ones, many times.
    Repeated,
    /// Wide on one side and narrow on the other.
    Crossing,
}

pub(super) const LIES: [Lie; 7] = [
    Lie::Nested,
    Lie::Adjacent,
    Lie::Unaligned,
    Lie::Prefixes,
    Lie::Extreme,
    Lie::Repeated,
    Lie::Crossing,
];

/// An address range of a family.
fn addresses(random: &mut Random, lie: Lie, family: Family, side: u64) -> (u128, u128) {
    let highest = family.highest_address();
    let bits = u64::from(family.address_bits());
    // Most of the interest is in a few places, so that ranges meet.
    let base = match family {
        Family::V4 => 0x0a00_0000,
        Family::V6 => 0x2001_0db8 << 96,
    };
    let step = 1u128 << (bits - 20);
    match lie {
        Lie::Nested => {
            let depth = u128::from(random.below(400));
            (base + depth * 3, (base + step * 16 - depth * 5).min(highest))
        }
        Lie::Adjacent => {
            let place = u128::from(random.below(64));
            let count = 1 + u128::from(random.below(3));
            (base + place * step, base + (place + count) * step - 1)
        }
        Lie::Unaligned => {
            let (one, other) = (random.within((0, highest)), random.within((0, highest)));
            (one.min(other), one.max(other))
        }
        Lie::Prefixes => {
            let length = random.below(bits + 1);
            let below = if length == 0 { highest } else { (1u128 << (bits - length)) - 1 };
            let near = base + random.within((0, step * 4));
            (near & !below & highest, near | below)
        }
        Lie::Extreme => match random.below(5) {
            0 | 1 => (0, highest),
            2 => (highest, highest),
            3 => (0, 0),
            _ => {
                let one = base + u128::from(random.below(40));
                (one, one)
            }
        },
        Lie::Repeated => {
            let place = u128::from(random.below(3));
            (base + place * 100, base + place * 100 + 150)
        }
        Lie::Crossing => match (random.below(8) + side) % 2 {
            0 => (0, highest),
            _ => {
                let one = base + u128::from(random.below(500)) * 7;
                (one, one + u128::from(random.below(9)))
            }
        },
    }
}

fn port_range(random: &mut Random) -> PortRange {
    let lo = random.one(&[0, 0, 1, 22, 80, 443, 1024, 65535, random.0 as u16]);
    let hi = match random.below(4) {
        0 => lo,
        1 => u16::MAX,
        _ => lo.saturating_add(random.below(2000) as u16),
    };
    PortRange { lo, hi }
}

fn upper_rule(random: &mut Random) -> UpperRule {
    match random.below(7) {
        0..=2 => UpperRule::Any,
        3 | 4 => UpperRule::Ports { source: port_range(random), destination: port_range(random) },
        5 => UpperRule::Tcp {
            segments: random.one(&TcpSegments::ALL),
            source: port_range(random),
            destination: port_range(random),
        },
        _ => {
            let lo = random.one(&[0, 0, 0x0300, 0x0800, 0x8000, u16::MAX]);
            let hi = random.one(&[lo, lo | 0xff, u16::MAX]);
            UpperRule::Icmp(IcmpRange { lo, hi })
        }
    }
}

const PROTOCOLS: [u8; 10] = [TCP, UDP, ICMP, ICMPV6, SCTP, ESP, 0, 255, NONE, 47];

/// A few long lists, in most sets none; some hold others, share ranges or are equal.
fn lists(random: &mut Random, family: Family, lie: Lie) -> Vec<Arc<List>> {
    let count = random.one(&[0, 0, 1, 3, 9]);
    let mut lists: Vec<Arc<List>> = Vec::new();
    for _ in 0..count {
        let most = random.one(&[2, 20, 300]);
        let ranges = 1 + random.below(most);
        let side = random.below(2);
        let mut ranges: Vec<(u128, u128)> = (0..ranges)
            .map(|_| match addresses(random, lie, family, side) {
                (lo, hi) if random.below(2) == 0 => (lo, hi),
                // Most are narrow: else a list is soon everything.
                (lo, hi) => (lo, hi.min(lo.saturating_add(random.below(3).into()))),
            })
            .collect();
        if let (Some(other), 0) = (lists.last(), random.below(3)) {
            ranges.extend(other.ranges().iter().take(random.below(40) as usize));
        }
        lists.push(Arc::new(List::new(ranges)));
    }
    lists
}

/// A side of a rule: a range, or one of the lists.
fn some_side(
    random: &mut Random,
    (lie, family, side): (Lie, Family, u64),
    lists: &[Arc<List>],
) -> Side {
    if lists.is_empty() || random.below(3) != 0 {
        return (addresses(random, lie, family, side), None);
    }
    let list = &lists[random.below(lists.len() as u64) as usize];
    (list.around(), Some(list.clone()))
}

/// A range of one side of a rule.
fn range_of(random: &mut Random, rule: &Rule, side: usize) -> (u128, u128) {
    match &rule.lists[side] {
        Some(list) => random.one(list.ranges()),
        None => [rule.source, rule.destination][side],
    }
}

/// Rules whose ranges lie in one of the ways.
pub(super) fn random_rules(
    random: &mut Random,
    family: Family,
    lie: Lie,
    count: usize,
) -> Vec<Rule> {
    let plain = random.below(4) == 0;
    let lists = lists(random, family, lie);
    (0..count)
        .map(|index| {
            let side = random.below(2);
            let source = some_side(random, (lie, family, side), &lists);
            let destination = some_side(random, (lie, family, side + 1), &lists);
            let ((source, of_source), (destination, of_destination)) = (source, destination);
            let lists = [of_source, of_destination];
            let base =
                Rule { index: PolicyIndex(index as u32), lists, ..rule(source, destination) };
            match plain {
                true => base,
                false => {
                    let any = random.below(3) == 0;
                    let protocol = (!any).then(|| random.one(&PROTOCOLS));
                    let upper = upper_rule(random);
                    let is_tcp = matches!(upper, UpperRule::Tcp { .. });
                    Rule { protocol: if is_tcp { Some(TCP) } else { protocol }, upper, ..base }
                }
            }
        })
        .collect()
}

/// A number at an end of a range, just beyond one, or anywhere in it.
fn edge(random: &mut Random, (lo, hi): (u128, u128), highest: u128) -> u128 {
    match random.below(6) {
        0 => lo,
        1 => hi,
        2 => lo.saturating_sub(1),
        3 => (hi.min(highest - 1)) + 1,
        _ => random.within((lo, hi)),
    }
}

/// A flow at the edge of a rule of the set, consistent or not.
pub(super) fn edge_flow(random: &mut Random, family: Family, rules: &[Rule]) -> Flow {
    let rule = &rules[random.below(rules.len() as u64) as usize];
    let highest = family.highest_address();
    let other = &rules[random.below(rules.len() as u64) as usize];
    let destination = if random.below(4) == 0 { other } else { rule };
    let destination = range_of(random, destination, 1);
    let number = |random: &mut Random, range: PortRange| {
        edge(random, (range.lo.into(), range.hi.into()), 0xffff) as u16
    };
    let upper = match (random.below(8), rule.upper) {
        (0, _) => Upper::Fragment,
        (1, _) => Upper::None,
        (2, _) => Upper::Icmp { kind: random.next() as u8, code: random.next() as u8 },
        (
            _,
            UpperRule::Ports { source, destination } | UpperRule::Tcp { source, destination, .. },
        ) => {
            let source = number(random, source);
            Upper::Ports { source, destination: number(random, destination) }
        }
        (_, UpperRule::Icmp(range)) => {
            let [kind, code] =
                number(random, PortRange { lo: range.lo, hi: range.hi }).to_be_bytes();
            Upper::Icmp { kind, code }
        }
        (3, _) => Upper::Ports { source: u16::MAX, destination: u16::MAX },
        _ => Upper::Ports { source: random.next() as u16, destination: random.next() as u16 },
    };
    let protocol = match random.below(5) {
        0 => random.one(&PROTOCOLS),
        _ => rule.protocol.unwrap_or(TCP),
    };
    let source = range_of(random, rule, 0);
    let source = edge(random, source, highest);
    let destination = edge(random, destination, highest);
    let opens = matches!(upper, Upper::Ports { .. }) && protocol == TCP && random.below(2) == 0;
    match random.below(50) {
        0 => Flow {
            family,
            source: highest,
            destination: highest,
            protocol: 255,
            upper,
            opens: false,
        },
        _ => Flow { family, source, destination, protocol, upper, opens },
    }
}
