//! One list of policies out of the two of a foreign form, outbound and inbound, so that the order
//! of each stays as it was.
//!
//! A policy of ours holds in both directions. An outbound policy and its mirrored inbound twin
//! become one where that changes no order: of all pairs of twins the longest sequence is taken that
//! ascends in both lists. The others stay two policies of one direction each.

use std::collections::HashMap;
use std::hash::Hash;

/// A policy of the list: the places of what it was made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placed {
    /// An outbound policy and its twin.
    Both(usize, usize),
    Outbound(usize),
    Inbound(usize),
}

/// Returns the list. Two policies are twins if they are equal.
pub(crate) fn joined<T: Eq + Hash>(outbound: &[T], inbound: &[T]) -> Vec<Placed> {
    let mut places: HashMap<&T, usize> = HashMap::new();
    for (place, policy) in inbound.iter().enumerate() {
        // A second one that is equal never decides.
        places.entry(policy).or_insert(place);
    }
    let pairs = outbound.iter().enumerate().filter_map(|(place, policy)| {
        // So each inbound policy has one twin at most.
        places.remove(policy).map(|twin| (place, twin))
    });
    let chain = longest_ascending(&pairs.collect::<Vec<_>>());
    let mut list = Vec::with_capacity(outbound.len() + inbound.len());
    let (mut out, mut inw) = (0, 0);
    for (to_out, to_in) in chain.into_iter().chain([(outbound.len(), inbound.len())]) {
        list.extend((out..to_out).map(Placed::Outbound));
        list.extend((inw..to_in).map(Placed::Inbound));
        if to_out < outbound.len() {
            list.push(Placed::Both(to_out, to_in));
        }
        (out, inw) = (to_out + 1, to_in + 1);
    }
    list
}

/// Of pairs that ascend by their first number, the longest sequence that ascends by the second too.
fn longest_ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, the pair that a sequence of that length can end with at the lowest.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, (_, second)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < *second);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut chain = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(at) = next {
        chain.push(pairs[at]);
        next = before[at];
    }
    chain.reverse();
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn twins_become_one_and_the_others_stay_in_their_order() {
        use Placed::{Both, Inbound, Outbound};
        assert_eq!(joined(&["a", "b"], &["a", "b"]), [Both(0, 0), Both(1, 1)]);
        assert_eq!(joined(&["a", "b"], &["b", "a"]), [Outbound(0), Both(1, 0), Inbound(1)]);
        assert_eq!(joined(&["a"], &["x", "a", "y"]), [Inbound(0), Both(0, 1), Inbound(2)]);
        assert_eq!(joined::<&str>(&[], &[]), []);
    }

    proptest! {
        #[test]
        fn each_policy_is_there_once_and_both_orders_are_kept(
            outbound in prop::collection::vec(0u8..12, 0..12),
            inbound in prop::collection::vec(0u8..12, 0..12),
        ) {
            let list = joined(&outbound, &inbound);
            let of = |pick: fn(&Placed) -> Option<usize>| list.iter().filter_map(pick);
            let out = of(|placed| match placed {
                Placed::Both(out, _) | Placed::Outbound(out) => Some(*out),
                Placed::Inbound(_) => None,
            });
            let inw = of(|placed| match placed {
                Placed::Both(_, inw) | Placed::Inbound(inw) => Some(*inw),
                Placed::Outbound(_) => None,
            });
            prop_assert!(out.eq(0..outbound.len()));
            prop_assert!(inw.eq(0..inbound.len()));
            for placed in &list {
                if let Placed::Both(out, inw) = placed {
                    prop_assert_eq!(outbound[*out], inbound[*inw]);
                }
            }
        }
    }
}
