//! An index of rules: which of very many win over one and decide otherwise.
//!
//! A tree of boxes over addresses, ports and protocols. A node knows the highest rank below it and
//! what its rules decide, so that whole subtrees are passed by. [`winners_one_by_one`] says the
//! same without it, and is what tests compare it with.

use std::ops::{ControlFlow, Range};

use crate::unit::{Area, Fit, Unit, areas, fit};

/// Entries of a leaf at most.
const LEAF: usize = 8;

#[derive(Debug)]
struct Node {
    area: Area,
    highest: u64,
    /// Bits of the decisions below it.
    decisions: u8,
    /// Entries of a leaf; of an inner node, none.
    entries: Range<u32>,
    /// The node behind this one's subtree.
    next: u32,
}

/// Rules of one family. A rule is known by its place in the list that the index was made of.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// A node stands in front of its subtree.
    nodes: Vec<Node>,
    entries: Vec<Entry>,
}

/// An area of a rule, with all that most comparisons need of the rule.
#[derive(Clone, Copy, Debug)]
struct Entry {
    area: Area,
    rank: u64,
    unit: u32,
    ports_number: u32,
    decision: u8,
    fit: Fit,
}

/// Rules that a search has come to already: one that has several areas counts once.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    marks: Vec<u32>,
    round: u32,
}

impl Seen {
    pub(crate) fn of(units: usize) -> Seen {
        Seen { marks: vec![0; units], round: 0 }
    }

    pub(crate) fn begin(&mut self) {
        self.round += 1;
    }

    /// Returns whether the rule is new.
    pub(crate) fn is_new(&mut self, unit: u32) -> bool {
        std::mem::replace(&mut self.marks[unit as usize], self.round) != self.round
    }
}

impl Index {
    /// Arranges rules. Cost: n log n.
    pub(crate) fn new<'u, 'p: 'u>(units: impl Iterator<Item = (u32, &'u Unit<'p>)>) -> Index {
        let mut entries = Vec::new();
        for (place, unit) in units {
            let fit = fit(unit.policy, unit.key.family);
            areas(unit.policy, unit.key.family, |area| {
                entries.push(Entry {
                    area,
                    rank: unit.rank,
                    unit: place,
                    ports_number: unit.ports_number,
                    decision: unit.decision.bit(),
                    fit,
                });
            });
        }
        let mut index = Index::default();
        if !entries.is_empty() {
            index.entries.reserve_exact(entries.len());
            index.add(&mut entries);
        }
        index
    }

    /// Adds a node for these entries, which are not none, and everything below it.
    fn add(&mut self, entries: &mut [Entry]) {
        let place = self.nodes.len();
        let (first, rest) = entries.split_first().expect("a node has entries");
        let (mut area, mut highest, mut decisions) = (first.area, first.rank, first.decision);
        for entry in rest {
            area = area.around(&entry.area);
            highest = highest.max(entry.rank);
            decisions |= entry.decision;
        }
        self.nodes.push(Node { area, highest, decisions, entries: 0..0, next: 0 });
        if entries.len() <= LEAF {
            let start = self.entries.len() as u32;
            self.entries.extend_from_slice(entries);
            self.nodes[place].entries = start..self.entries.len() as u32;
        } else {
            let half = entries.len() / 2;
            let by = widest(entries);
            entries.select_nth_unstable_by_key(half, |entry| middle(&entry.area, by));
            let (below, above) = entries.split_at_mut(half);
            self.add(below);
            self.add(above);
        }
        self.nodes[place].next = self.nodes.len() as u32;
    }

    /// Passes each rule that wins over a rule, decides otherwise and has packets in common with it
    /// to `visit`, each once, until that breaks. Adds what it looks at to `steps`.
    pub(crate) fn winners<B>(
        &self,
        units: &[Unit<'_>],
        of: &Unit<'_>,
        (seen, steps): (&mut Seen, &mut u64),
        mut visit: impl FnMut(u32) -> ControlFlow<B>,
    ) -> Option<B> {
        seen.begin();
        let mut windows = Vec::new();
        areas(of.policy, of.key.family, |area| windows.push(area));
        let (same, fit) = (of.decision.bit(), fit(of.policy, of.key.family));
        for window in &windows {
            let mut place = 0;
            while let Some(node) = self.nodes.get(place) {
                *steps += 1;
                let may_hold = node.highest > of.rank
                    && node.decisions & !same != 0
                    && node.area.meets(window);
                if !may_hold {
                    place = node.next as usize;
                    continue;
                }
                let entries = node.entries.start as usize..node.entries.end as usize;
                *steps += entries.len() as u64;
                for entry in &self.entries[entries] {
                    let may_win =
                        entry.rank > of.rank && entry.decision != same && entry.area.meets(window);
                    let is_exact = fit == Fit::Exact
                        && entry.fit == Fit::Exact
                        && entry.ports_number == of.ports_number;
                    if may_win
                        && (is_exact || units[entry.unit as usize].overlaps(of))
                        && seen.is_new(entry.unit)
                        && let ControlFlow::Break(found) = visit(entry.unit)
                    {
                        return Some(found);
                    }
                }
                place += 1;
            }
        }
        None
    }
}

/// The dimension in which the middles of boxes are farthest apart, for its width.
fn widest(entries: &[Entry]) -> usize {
    let spread = |dimension: usize| {
        let mut ends = (u128::MAX, 0);
        for entry in entries {
            let middle = middle(&entry.area, dimension);
            ends = (ends.0.min(middle), ends.1.max(middle));
        }
        ends.1.saturating_sub(ends.0)
    };
    // IPv4 addresses lie in the low 32 bits: what counts is the share of the widest there is.
    let (sources, destinations) = (spread(0), spread(1));
    let addresses = match sources.max(destinations) > u128::from(u32::MAX) {
        true => 128,
        false => 32,
    };
    let share = |spread: u128, bits: i32| (spread as f64) / 2f64.powi(bits);
    let shares = [
        share(sources, addresses),
        share(destinations, addresses),
        share(spread(2), 16),
        share(spread(3), 16),
        share(spread(4), 8),
    ];
    let best = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
    best.unwrap_or(0)
}

/// The middle of an area in a dimension; halves do not matter.
fn middle(area: &Area, dimension: usize) -> u128 {
    match dimension {
        0 | 1 => area.addresses[dimension].0 / 2 + area.addresses[dimension].1 / 2,
        2 | 3 => {
            let (lo, hi) = area.ports[dimension - 2];
            (u128::from(lo) + u128::from(hi)) / 2
        }
        _ => (u128::from(area.protocols.0) + u128::from(area.protocols.1)) / 2,
    }
}

/// The rules that win over one and decide otherwise, found by looking at each.
#[cfg(test)]
pub(crate) fn winners_one_by_one(units: &[Unit<'_>], of: &Unit<'_>) -> Vec<u32> {
    let wins = |unit: &Unit<'_>| {
        unit.key.family == of.key.family
            && unit.rank > of.rank
            && unit.decision != of.decision
            && unit.overlaps(of)
    };
    (0..).zip(units).filter(|(_, unit)| wins(unit)).map(|(place, _)| place).collect()
}
