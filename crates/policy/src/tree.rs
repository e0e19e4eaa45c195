//! Policies arranged by their addresses: which of very many reach into a box, without looking at
//! the others.
//!
//! A tree of bounding boxes for each family. A node knows what its policies reach at most, their
//! highest and lowest precedence and what they do, so that whole subtrees are passed by. It holds
//! places in a list, 4 bytes an entry, and about 14 more for the nodes above it.

use std::ops::ControlFlow;

use wire::Family;

use crate::policy::{Action, Policy, Precedence};
use crate::region::{Addresses, Sides, common};
use crate::selector::Selector;
use crate::steps::{Exhausted, Steps};

/// Entries of a leaf at most.
const LEAF: usize = 8;
/// Combinations of a policy's address lists that are entered one by one; of more, one box around
/// all is.
const FEW_WINDOWS: usize = 16;

/// The addresses of a box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) local: Addresses,
    pub(crate) remote: Addresses,
}

impl Window {
    fn meets(&self, other: &Window) -> bool {
        common(self.local, other.local).is_some() && common(self.remote, other.remote).is_some()
    }

    fn around(&self, other: &Window) -> Window {
        let around = |one: Addresses, other: Addresses| (one.0.min(other.0), one.1.max(other.1));
        Window { local: around(self.local, other.local), remote: around(self.remote, other.remote) }
    }
}

/// The boxes of addresses that a policy speaks of, or one around them if they are many.
pub(crate) fn windows(selector: &Selector, family: Family) -> Vec<Window> {
    let sides = Sides::new(selector, family);
    if combinations(&sides) <= FEW_WINDOWS {
        let of_local = |local| sides.remotes().map(move |remote| Window { local, remote });
        return sides.locals().flat_map(of_local).collect();
    }
    let hull = |ranges: &mut dyn Iterator<Item = Addresses>| {
        ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    };
    let (local, remote) = (hull(&mut sides.locals()), hull(&mut sides.remotes()));
    local.zip(remote).map(|(local, remote)| Window { local, remote }).into_iter().collect()
}

/// Returns the number of [`windows`].
fn window_count(selector: &Selector, family: Family) -> usize {
    let count = combinations(&Sides::new(selector, family));
    if count <= FEW_WINDOWS { count } else { 1 }
}

fn combinations(sides: &Sides<'_>) -> usize {
    sides.locals().count().saturating_mul(sides.remotes().count())
}

/// Kinds of actions, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const ALL: Kinds = Kinds(7);
    pub(crate) const PROTECT: Kinds = Kinds(1);
    pub(crate) const BYPASS: Kinds = Kinds(2);
    /// The kinds that let packets through.
    pub(crate) const PASSING: Kinds = Kinds(3);

    pub(crate) const fn of(action: Action) -> Kinds {
        match action {
            Action::Protect(_) => Kinds(1),
            Action::Bypass | Action::Permit(_) | Action::Reflect(_) => Kinds(2),
            Action::Discard | Action::Deny(_) | Action::NoRule(_) => Kinds(4),
        }
    }

    pub(crate) const fn meet(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// The relation that a policy's addresses must have to the window for a search to find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// They overlap the window.
    Into,
    /// They cover all of the window.
    Around,
}

/// The conditions of a search. A subtree or policy that fails one is passed by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    pub(crate) window: Window,
    pub(crate) reach: Reach,
    pub(crate) kinds: Kinds,
    /// Lies above the precedence sought, if any.
    pub(crate) below: Option<Precedence>,
    /// Lies below the precedence sought, if any.
    pub(crate) above: Option<Precedence>,
}

#[derive(Debug)]
struct Node {
    window: Window,
    kinds: Kinds,
    lowest: Precedence,
    highest: Precedence,
    /// Entries of a leaf; of an inner node, none.
    entries: std::ops::Range<u32>,
    /// The node behind this one's subtree.
    next: u32,
}

impl Node {
    fn may_hold(&self, sought: &Sought) -> bool {
        self.kinds.meet(sought.kinds)
            && sought.below.is_none_or(|below| self.lowest < below)
            && sought.above.is_none_or(|above| self.highest > above)
            && match sought.reach {
                Reach::Into => self.window.meets(&sought.window),
                Reach::Around => self.window.around(&sought.window) == self.window,
            }
    }
}

/// Policies of both families. A policy is known by its place in the list that the tree was made of.
#[derive(Debug, Default)]
pub(crate) struct AddressTree {
    families: [Tree; 2],
}

#[derive(Debug, Default)]
struct Tree {
    /// A node stands in front of its subtree.
    nodes: Vec<Node>,
    entries: Vec<u32>,
}

impl AddressTree {
    /// Arranges policies. Cost: n log n. Reads the policies several times, so that no list grows.
    pub(crate) fn new<'p>(
        policies: impl Iterator<Item = (u32, ArrangedPolicy<'p>)> + Clone,
    ) -> AddressTree {
        let tree = |family| {
            let counts = policies.clone().map(|(_, policy)| window_count(policy.selector, family));
            let mut entries = Vec::with_capacity(counts.sum());
            for (place, ArrangedPolicy { selector, action, precedence }) in policies.clone() {
                let (windows, kinds) = (windows(selector, family), Kinds::of(action));
                let entry = |window| Entry { window, place, kinds, precedence };
                entries.extend(windows.into_iter().map(entry));
            }
            Tree::new(entries)
        };
        AddressTree { families: [tree(Family::V4), tree(Family::V6)] }
    }

    /// Places of policies that may be sought, each to `visit`, until that breaks. A place may come
    /// more than once, and the policy be another than sought but for its addresses' bounds.
    pub(crate) fn search<B>(
        &self,
        family: Family,
        sought: &Sought,
        steps: &mut Steps,
        mut visit: impl FnMut(u32, &mut Steps) -> Result<ControlFlow<B>, Exhausted>,
    ) -> Result<Option<B>, Exhausted> {
        let Tree { nodes, entries } = &self.families[family as usize];
        let mut place = 0;
        while let Some(node) = nodes.get(place) {
            steps.take(1)?;
            if !node.may_hold(sought) {
                place = node.next as usize;
                continue;
            }
            for &entry in &entries[node.entries.start as usize..node.entries.end as usize] {
                steps.take(1)?;
                if let ControlFlow::Break(found) = visit(entry, steps)? {
                    return Ok(Some(found));
                }
            }
            place += 1;
        }
        Ok(None)
    }
}

/// A policy as the tree arranges policies.
#[derive(Clone, Copy)]
pub(crate) struct ArrangedPolicy<'p> {
    pub(crate) selector: &'p Selector,
    pub(crate) action: Action,
    pub(crate) precedence: Precedence,
}

impl<'p> From<&'p Policy> for ArrangedPolicy<'p> {
    fn from(policy: &'p Policy) -> ArrangedPolicy<'p> {
        let Policy { selector, action, .. } = policy;
        ArrangedPolicy { selector, action: *action, precedence: policy.precedence() }
    }
}

struct Entry {
    window: Window,
    place: u32,
    kinds: Kinds,
    precedence: Precedence,
}

/// Returns the number of nodes over so many entries, as [`Tree::add`] makes them.
const fn node_count(entries: usize) -> usize {
    if entries <= LEAF {
        return 1;
    }
    let half = entries / 2;
    1 + node_count(half) + node_count(entries - half)
}

impl Tree {
    fn new(mut entries: Vec<Entry>) -> Tree {
        let mut tree = Tree::default();
        if !entries.is_empty() {
            tree.entries.reserve_exact(entries.len());
            tree.nodes.reserve_exact(node_count(entries.len()));
            tree.add(&mut entries);
        }
        tree
    }

    /// Adds a node for these entries, which are not none, and everything below it.
    fn add(&mut self, entries: &mut [Entry]) {
        let place = self.nodes.len();
        let (first, rest) = entries.split_first().expect("a node has entries");
        let mut node = Node {
            window: first.window,
            kinds: first.kinds,
            lowest: first.precedence,
            highest: first.precedence,
            entries: 0..0,
            next: 0,
        };
        for entry in rest {
            node.window = node.window.around(&entry.window);
            node.kinds = Kinds(node.kinds.0 | entry.kinds.0);
            node.lowest = node.lowest.min(entry.precedence);
            node.highest = node.highest.max(entry.precedence);
        }
        let window = node.window;
        self.nodes.push(node);
        if entries.len() <= LEAF {
            let start = self.entries.len() as u32;
            self.entries.extend(entries.iter().map(|entry| entry.place));
            self.nodes[place].entries = start..self.entries.len() as u32;
        } else {
            let extent = |(lo, hi): Addresses| hi - lo;
            // Twice the middle, without an overflow: halves are precise enough to sort by.
            let middle = |(lo, hi): Addresses| lo / 2 + hi / 2;
            let half = entries.len() / 2;
            match extent(window.local) >= extent(window.remote) {
                true => entries.select_nth_unstable_by_key(half, |e| middle(e.window.local)),
                false => entries.select_nth_unstable_by_key(half, |e| middle(e.window.remote)),
            };
            let (below, above) = entries.split_at_mut(half);
            self.add(below);
            self.add(above);
        }
        self.nodes[place].next = self.nodes.len() as u32;
    }
}
