//! Labels of addresses: the combination of lists that an address lies in, as one number.
//!
//! A rule over long lists is one rule over labels, and the tree over such rules stays small however
//! many addresses the lists have. The labels lie behind the [ranks](super::rank) of all ends of
//! the lists' ranges, one table for both sides.

use std::collections::HashMap;

use cpu::lanes::Lanes;

use super::forest::BATCH;
use super::rank::Ranks;
use crate::list::List;

/// Different lists of a domain at most.
pub(super) const MAX_LISTS: usize = 256;
/// Combinations of lists that addresses lie in at most.
pub(super) const MAX_LABELS: usize = 1 << 16;

/// Reason why long lists of addresses do not become labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooManyLists {
    /// More lists than `MAX_LISTS`.
    #[error(
        "rules name {0} different lists of more than {few} address ranges; at most {MAX_LISTS} \
         are held", few = List::FEW
    )]
    Lists(usize),
    /// More combinations than `MAX_LABELS`.
    #[error(
        "the addresses of lists of more than {few} ranges lie in more than {MAX_LABELS} \
         combinations of them", few = List::FEW
    )]
    Combinations,
    /// Lists overlap so much that rules fall into very many parts.
    #[error("lists of more than {few} address ranges overlap too much", few = List::FEW)]
    Parts,
}

/// A set of lists, a bit each.
type Combination = [u64; MAX_LISTS / 64];

/// The label of every address.
#[derive(Debug)]
pub(super) struct Labels {
    ranks: Ranks,
    /// One entry a rank.
    of_rank: Box<[u32]>,
}

/// Labels from the first to the last of a row of them, both included.
pub(super) type Run = (u32, u32);

impl Labels {
    /// Labels the addresses of lists. Returns for each list also its labels, as few runs as
    /// possible in their order.
    ///
    /// # Errors
    /// [`TooManyLists`].
    pub(super) fn new(lists: &[&List]) -> Result<(Labels, Vec<Vec<Run>>), TooManyLists> {
        if lists.len() > MAX_LISTS {
            return Err(TooManyLists::Lists(lists.len()));
        }
        let ranges = || lists.iter().flat_map(|list| list.ranges().iter().copied());
        let ranks = Ranks::new(ranges());
        let (mut seen, mut firsts) = (HashMap::new(), Vec::new());
        let mut of_rank = Vec::new();
        for combination in combinations(lists) {
            let found = *seen.entry(combination).or_insert(firsts.len());
            if found == firsts.len() {
                firsts.push(combination);
            }
            if firsts.len() > MAX_LABELS {
                return Err(TooManyLists::Combinations);
            }
            of_rank.push(found as u32);
        }
        // Those with the first list stand together, among them those with the second, and so on:
        // lists that do not overlap, or hold each other, have one run each.
        let mut order: Vec<usize> = (0..firsts.len()).collect();
        order.sort_unstable_by_key(|found| firsts[*found].map(u64::reverse_bits));
        let mut labels = vec![0; firsts.len()];
        (0..).zip(&order).for_each(|(label, found)| labels[*found] = label);
        of_rank.iter_mut().for_each(|rank| *rank = labels[*rank as usize]);
        let order: Vec<Combination> = order.iter().map(|found| firsts[*found]).collect();
        let runs = (0..lists.len()).map(|list| runs(&order, list)).collect();
        Ok((Labels { ranks, of_rank: of_rank.into() }, runs))
    }

    /// Nodes that a search looks at.
    pub(super) fn depth(&self) -> usize {
        self.ranks.depth()
    }

    /// Memory of the labels.
    pub(super) fn bytes(&self) -> usize {
        self.ranks.bytes() + size_of_val(&*self.of_rank)
    }

    /// The label of each address, at most [`BATCH`].
    #[inline(always)]
    pub(super) fn search<L: Lanes>(&self, lanes: L, addresses: &[u128], labels: &mut [u32]) {
        debug_assert!(addresses.len() <= BATCH);
        self.ranks.search(lanes, addresses, labels);
        labels.iter_mut().for_each(|label| *label = self.of_rank[*label as usize]);
    }
}

fn has(combination: &Combination, list: usize) -> bool {
    combination[list / 64] >> (list % 64) & 1 == 1
}

/// The combination of each rank: below the first end, between two, behind the last.
fn combinations(lists: &[&List]) -> Vec<Combination> {
    let mut ends: Vec<(u128, usize)> = Vec::new();
    for (number, list) in lists.iter().enumerate() {
        for &(lo, hi) in list.ranges() {
            ends.push((lo, number));
            ends.extend(hi.checked_add(1).map(|behind| (behind, number)));
        }
    }
    ends.sort_unstable();
    // Ranges of a list do not adjoin: at each end it begins where it was not, or the reverse.
    let mut here = Combination::default();
    let mut turn = |list: usize| {
        here[list / 64] ^= 1 << (list % 64);
        here
    };
    let begin = ends.partition_point(|(at, _)| *at == 0);
    let mut all = vec![ends[..begin].iter().fold(Combination::default(), |_, (_, l)| turn(*l))];
    for alike in ends[begin..].chunk_by(|one, other| one.0 == other.0) {
        all.extend(alike.iter().map(|(_, list)| turn(*list)).last());
    }
    all
}

/// The labels of the combinations that have a list.
fn runs(order: &[Combination], list: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (label, _) in (0..).zip(order).filter(|(_, combination)| has(combination, list)) {
        match runs.last_mut() {
            Some(last) if last.1 + 1 == label => last.1 = label,
            _ => runs.push((label, label)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use cpu::lanes::{Form, Kernel};
    use proptest::prelude::*;

    use super::*;

    struct Search<'a>(&'a Labels, &'a [u128]);

    impl Kernel for Search<'_> {
        type Output = Vec<u32>;

        fn run<L: Lanes>(self, lanes: L) -> Vec<u32> {
            let mut labels = vec![0; self.1.len()];
            for (addresses, labels) in self.1.chunks(BATCH).zip(labels.chunks_mut(BATCH)) {
                self.0.search(lanes, addresses, labels);
            }
            labels
        }
    }

    proptest! {
        #[test]
        fn an_address_has_a_label_of_a_list_exactly_if_the_list_holds_it(
            lists in proptest::collection::vec(
                proptest::collection::vec((0u128..200, 0u128..9), 1..30), 1..9),
            at_the_end: bool,
        ) {
            let from = if at_the_end { u128::MAX - 210 } else { 0 };
            let of = |ranges: Vec<(u128, u128)>| {
                List::new(ranges.into_iter().map(|(lo, w)| (from + lo, from + lo + w)).collect())
            };
            let lists: Vec<List> = lists.into_iter().map(of).collect();
            let lists: Vec<&List> = lists.iter().collect();
            let (labels, runs) = Labels::new(&lists).unwrap();
            let mut addresses: Vec<u128> = (from..=from + 210).collect();
            addresses.extend([0, 1, u128::MAX, u128::MAX / 2]);
            for form in Form::all() {
                let found = form.run(Search(&labels, &addresses));
                for (address, label) in addresses.iter().zip(found) {
                    for (list, runs) in lists.iter().zip(&runs) {
                        let has = runs.iter().any(|(lo, hi)| (*lo..=*hi).contains(&label));
                        prop_assert_eq!(has, list.contains(*address), "{}", address);
                    }
                }
            }
        }
    }

    #[test]
    fn lists_apart_and_within_each_other_have_one_run_each_and_bounds_are_kept() {
        let of = |ranges: &[(u128, u128)]| List::new(ranges.to_vec());
        let (wide, narrow, apart) = (of(&[(0, 99)]), of(&[(3, 4), (9, 9)]), of(&[(200, 300)]));
        let (_, runs) = Labels::new(&[&wide, &narrow, &apart]).unwrap();
        assert!(runs.iter().all(|runs| runs.len() == 1), "{runs:?}");
        let many: Vec<List> = (0..257).map(|at| of(&[(at, at)])).collect();
        let many: Vec<&List> = many.iter().collect();
        assert!(Labels::new(&many[..256]).is_ok());
        assert_eq!(Labels::new(&many).unwrap_err(), TooManyLists::Lists(257));
        // 17 lists by the bits of an address have every combination.
        let bit = |bit: u32| {
            let ranges = (0..1 << 17).filter(|at| at >> bit & 1 == 1).map(|at| (at, at));
            List::new(ranges.collect())
        };
        let lists: Vec<List> = (0..17).map(bit).collect();
        let lists: Vec<&List> = lists.iter().collect();
        assert_eq!(Labels::new(&lists[..16]).unwrap().1[3].len(), 8);
        assert_eq!(Labels::new(&lists).unwrap_err(), TooManyLists::Combinations);
    }
}
