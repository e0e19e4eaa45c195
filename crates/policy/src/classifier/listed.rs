//! The rules of a table that have a long list of addresses on a side, searched by labels.
//!
//! Such a rule is a rule over the [labels](super::labels) of that side. Rules with a list for their
//! source, for their destination and for both are three kinds, each with forests of its own,
//! because a header shows either an address or its label. A rule whose list has several runs of
//! labels is as many areas of one position.

use std::collections::HashMap;

use cpu::lanes::Lanes;
use wire::{Family, Flow};

use super::forest::BATCH;
use super::forests::{Forests, Shown, Sizes};
use super::header::{Area, Header, Sees};
use super::labels::{Labels, Run, TooManyLists};
use super::{Budget, Cost, Dead, NONE, TooCostly, Unfit};
use crate::list::List;
use crate::rule::Rule;

/// Areas at most that rules of one kind may fall into.
const MOST_AREAS: usize = 1 << 20;

/// The sides of a rule that are lists: source, destination.
type Kind = [bool; 2];

const KINDS: [Kind; 3] = [[true, false], [false, true], [true, true]];

/// The search over the rules with lists.
#[derive(Debug)]
pub(super) struct Listed {
    labels: Labels,
    forests: Vec<(Kind, Forests)>,
}

impl Listed {
    /// Makes the search over those of some rules that have lists; `plain` are the source and
    /// destination of each rule as numbers. `None`: there are none.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(super) fn new<'r>(
        family: Family,
        rules: &'r [Rule],
        plain: impl Fn(usize) -> [(u32, u32); 2],
        budget: Budget,
    ) -> Result<Option<(Listed, Sizes)>, Unfit> {
        let (mut lists, mut numbers): (Vec<&'r List>, HashMap<&'r List, usize>) =
            Default::default();
        // Each list is looked at once: it may be long.
        let mut number = |list: &'r List| {
            *numbers.entry(list).or_insert_with(|| {
                lists.push(list);
                lists.len() - 1
            })
        };
        let numbers_of = |rule: &'r Rule| rule.lists.each_ref().map(|list| list.as_deref());
        let numbers: Vec<[Option<usize>; 2]> =
            rules.iter().map(|rule| numbers_of(rule).map(|list| list.map(&mut number))).collect();
        if lists.is_empty() {
            return Ok(None);
        }
        let (labels, runs) = Labels::new(&lists).map_err(Unfit::TooManyLists)?;
        let runs_of =
            |position: usize, side: usize| numbers[position][side].map(|it| &runs[it][..]);
        let (mut forests, mut sizes, mut cost) = (Vec::new(), Sizes::default(), Cost::default());
        for kind in KINDS {
            let parts = Parts::of(family, rules, kind, &plain, &runs_of)?;
            if parts.owners.is_empty() {
                continue;
            }
            let left = Budget { steps: budget.steps.saturating_sub(cost.steps()), ..budget };
            let (made, of_kind) = parts.forests(left).map_err(|error| {
                let cost = error.cost.and(cost);
                Unfit::TooCostly(TooCostly { cost, limit: budget.steps, ..error })
            })?;
            cost = cost.and(made.cost_of(|forest| forest.cost));
            sizes.trees += of_kind.trees;
            sizes.depth = sizes.depth.max(of_kind.depth);
            sizes.copies += of_kind.copies;
            forests.push((kind, made));
        }
        Ok(Some((Listed { labels, forests }, sizes)))
    }

    /// Returns the most that a search costs, by what the forests of a kind cost.
    pub(super) fn cost_of(&self, cost: impl Fn(&Forests) -> Cost) -> Cost {
        let labels = Cost { nodes: 2 * self.labels.depth() as u32, blocks: 0 };
        self.forests.iter().fold(labels, |sum, (_, forests)| sum.and(cost(forests)))
    }

    /// Memory of the labels and forests.
    pub(super) fn bytes(&self) -> usize {
        let forests: usize = self.forests.iter().map(|(_, forests)| forests.bytes()).sum();
        self.labels.bytes() + forests
    }

    /// Searches up to [`BATCH`] flows by their headers. Returns the first position of each, or
    /// [`NONE`].
    #[inline(never)]
    pub(super) fn search<L: Lanes>(
        &self,
        lanes: L,
        dead: Option<&Dead>,
        flows: &[Flow],
        headers: &[Header; BATCH],
        shown: Shown,
    ) -> [u32; BATCH] {
        let (mut addresses, mut labels) = ([0; BATCH], [[0; BATCH]; 2]);
        let sides: [fn(&Flow) -> u128; 2] = [|flow| flow.source, |flow| flow.destination];
        for (side, labels) in sides.into_iter().zip(&mut labels) {
            addresses.iter_mut().zip(flows).for_each(|(to, flow)| *to = side(flow));
            self.labels.search(lanes, &addresses[..flows.len()], &mut labels[..flows.len()]);
        }
        let mut best = [NONE; BATCH];
        for (kind, forests) in &self.forests {
            let mut headers = *headers;
            for side in (0..2).filter(|side| kind[*side]) {
                let labels = headers.iter_mut().zip(&labels[side]);
                labels.for_each(|(header, label)| header[side] = *label);
            }
            let mut found = [NONE; BATCH];
            let out = &mut found[..flows.len()];
            forests.search(lanes, dead, flows, (&mut headers, shown), out);
            best.iter_mut().zip(found).for_each(|(best, found)| *best = found.min(*best));
        }
        best
    }
}

/// The areas of the rules of one kind.
struct Parts {
    /// Position of each area's rule.
    owners: Vec<u32>,
    whole: Vec<Area>,
    fragments: Vec<Area>,
}

impl Parts {
    fn of<'r>(
        family: Family,
        rules: &[Rule],
        kind: Kind,
        plain: &impl Fn(usize) -> [(u32, u32); 2],
        runs_of: &impl Fn(usize, usize) -> Option<&'r [Run]>,
    ) -> Result<Parts, Unfit> {
        let mut parts = Parts { owners: Vec::new(), whole: Vec::new(), fragments: Vec::new() };
        for (position, rule) in rules.iter().enumerate() {
            if [0, 1].map(|side| rule.lists[side].is_some()) != kind {
                continue;
            }
            let numbers = plain(position);
            let of_side = |side: usize| {
                runs_of(position, side).unwrap_or(std::slice::from_ref(&numbers[side]))
            };
            for &source in of_side(0) {
                for &destination in of_side(1) {
                    let area = |sees| Area::new(rule, family, source, destination, sees);
                    parts.owners.push(position as u32);
                    parts.whole.push(area(Sees::Whole));
                    parts.fragments.push(area(Sees::Fragment));
                }
            }
            if parts.owners.len() > MOST_AREAS {
                return Err(Unfit::TooManyLists(TooManyLists::Parts));
            }
        }
        Ok(parts)
    }

    fn forests(self, budget: Budget) -> Result<(Forests, Sizes), TooCostly> {
        let Parts { owners, whole, fragments } = self;
        let every = (0..owners.len() as u32).collect();
        let made = Forests::new(&whole, &fragments, every, budget);
        let (mut forests, sizes) = made.map_err(|error| {
            let positions = error.positions.iter().map(|at| owners[*at as usize]).collect();
            TooCostly { positions, ..error }
        })?;
        forests.renumber(&owners);
        Ok((forests, sizes))
    }
}
