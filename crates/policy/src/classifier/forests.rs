//! The trees over one kind of rules: for packets that show their upper-layer header, and for
//! non-first fragments.

use std::collections::HashMap;

use cpu::lanes::Lanes;
use wire::{Flow, Upper};

use super::build::{self, Built};
use super::forest::{AllCount, BATCH, Forest, Living};
use super::header::{Area, Header};
use super::{Budget, Cost, Dead, NONE, TooCostly};

/// The forests of some rules.
#[derive(Debug)]
pub(super) struct Forests {
    /// The forest for packets that show their upper-layer header.
    whole: Forest,
    /// The forest for non-first fragments; `None` if it equals `whole`.
    fragments: Option<Forest>,
}

/// The packets among some flows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// All are whole or first fragments.
    AllWhole,
    /// Non-first fragments are among them.
    SomeFragments,
}

/// The sizes of the forest for whole packets.
#[derive(Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) trees: usize,
    pub(super) depth: usize,
    pub(super) copies: usize,
}

impl Forests {
    /// Makes the forests over the `listed` of some areas: as whole packets show them, and as
    /// fragments do.
    ///
    /// # Errors
    /// [`TooCostly`].
    pub(super) fn new(
        whole: &[Area],
        fragments: &[Area],
        listed: Vec<u32>,
        budget: Budget,
    ) -> Result<(Forests, Sizes), TooCostly> {
        let is_same = listed.iter().all(|&at| whole[at as usize] == fragments[at as usize]);
        let of_fragments = match is_same {
            true => None,
            false => {
                let (listed, hidden, hiders) = distinct(fragments, &listed);
                Some(build::build(fragments, listed, &hidden, hiders, budget)?.forest)
            }
        };
        let Built { forest, depth, stored } =
            build::build(whole, listed, &[], Dead::default(), budget)?;
        let trees = if depth == 0 { 0 } else { forest.trees.len() };
        let sizes = Sizes { trees, depth, copies: stored };
        Ok((Forests { whole: forest, fragments: of_fragments }, sizes))
    }

    /// Gives areas the positions of the rules that they are of, which rise with the areas.
    pub(super) fn renumber(&mut self, owners: &[u32]) {
        self.whole.renumber(owners);
        self.fragments.iter_mut().for_each(|forest| forest.renumber(owners));
    }

    /// Returns the most that a search costs, by what one forest costs.
    pub(super) fn cost_of(&self, cost: impl Fn(&Forest) -> Cost) -> Cost {
        let whole = cost(&self.whole);
        let fragments = self.fragments.as_ref().map_or(whole, cost);
        if fragments.steps() > whole.steps() { fragments } else { whole }
    }

    /// Memory of the forests.
    pub(super) fn bytes(&self) -> usize {
        self.whole.bytes() + self.fragments.as_ref().map_or(0, Forest::bytes)
    }

    #[cfg(test)]
    pub(super) fn reserve_blocks(&self) -> usize {
        self.whole.reserve_blocks() + self.fragments.as_ref().map_or(0, Forest::reserve_blocks)
    }

    /// Searches up to [`BATCH`] flows by their headers, which are of no use afterwards.
    #[inline(always)]
    pub(super) fn search<L: Lanes>(
        &self,
        lanes: L,
        dead: Option<&Dead>,
        flows: &[Flow],
        (headers, shown): (&mut [Header; BATCH], Shown),
        out: &mut [u32],
    ) {
        let mut best = [NONE; BATCH];
        search_forest(lanes, &self.whole, dead, headers, flows.len(), &mut best);
        out.copy_from_slice(&best[..out.len()]);
        if let (Some(forest), Shown::SomeFragments) = (&self.fragments, shown) {
            search_fragments(lanes, forest, dead, flows, headers, out);
        }
    }
}

#[inline(always)]
fn search_forest<L: Lanes>(
    lanes: L,
    forest: &Forest,
    dead: Option<&Dead>,
    headers: &[Header; BATCH],
    rows: usize,
    best: &mut [u32; BATCH],
) {
    let Some(dead) = dead else {
        forest.search(lanes, AllCount, headers, rows, best);
        return;
    };
    let living = Living { dead, hiders: &forest.hiders };
    let mut misses = forest.search(lanes, living, headers, rows, best);
    let mut reserve = forest.reserve.as_deref();
    while let (Some(forest), true) = (reserve, misses != 0) {
        let mut asked = [Header::default(); BATCH];
        let mut rows = [0usize; BATCH];
        let mut count = 0;
        while misses != 0 {
            rows[count] = misses.trailing_zeros() as usize % BATCH;
            asked[count] = headers[rows[count]];
            misses &= misses - 1;
            count += 1;
        }
        let mut found = [NONE; BATCH];
        let living = Living { dead, hiders: &forest.hiders };
        let again = forest.search(lanes, living, &asked, count, &mut found);
        for (at, &row) in rows[..count].iter().enumerate() {
            best[row] = best[row].min(found[at]);
            misses |= (again >> at & 1) << row;
        }
        reserve = forest.reserve.as_deref();
    }
}

/// Searches the fragments of a batch in the forest that is theirs.
#[inline(always)]
fn search_fragments<L: Lanes>(
    lanes: L,
    forest: &Forest,
    dead: Option<&Dead>,
    flows: &[Flow],
    headers: &mut [Header; BATCH],
    out: &mut [u32],
) {
    let mut rows = [0usize; BATCH];
    let mut found = [NONE; BATCH];
    let mut count = 0;
    for (row, flow) in flows.iter().enumerate() {
        if flow.upper == Upper::Fragment {
            headers[count] = headers[row];
            rows[count] = row;
            count += 1;
        }
    }
    search_forest(lanes, forest, dead, headers, count, &mut found);
    for (&row, &found) in rows.iter().zip(&found[..count]) {
        out[row] = found;
    }
}

/// The listed areas that are the first of their like, the others, and those that others are like.
fn distinct(areas: &[Area], listed: &[u32]) -> (Vec<u32>, Vec<u32>, Dead) {
    let mut seen: HashMap<Area, u32> = HashMap::with_capacity(listed.len());
    let (mut firsts, mut hidden, mut hiders) = (Vec::new(), Vec::new(), Dead::default());
    for &position in listed {
        let first = *seen.entry(areas[position as usize]).or_insert(position);
        if first == position {
            firsts.push(position);
        } else {
            hidden.push(position);
            hiders.insert(first);
        }
    }
    (firsts, hidden, hiders)
}
