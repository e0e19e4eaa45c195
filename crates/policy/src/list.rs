//! Long lists of addresses: one side of a rule that is many ranges at once.

use std::sync::Arc;

use wire::Family;

use crate::selector::AddressRange;

/// Address ranges of one family, ascending; none overlaps or adjoins another.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct List(Box<[(u128, u128)]>);

/// One side of a rule: its lowest and highest address, and the ranges between if it is a list.
pub(crate) type Side = ((u128, u128), Option<Arc<List>>);

impl List {
    /// Ranges up to which a side of a group's rule is expanded: one rule for each of them.
    pub(crate) const FEW: usize = 64;

    /// The list of these ranges, at least one.
    pub(crate) fn new(mut ranges: Vec<(u128, u128)>) -> List {
        ranges.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (lo, hi) in ranges {
            match joined.last_mut() {
                Some(last) if lo <= last.1.saturating_add(1) => last.1 = last.1.max(hi),
                _ => joined.push((lo, hi)),
            }
        }
        List(joined.into())
    }

    /// The ranges.
    pub(crate) fn ranges(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// Returns whether an address lies in one of the ranges.
    pub(crate) fn contains(&self, address: u128) -> bool {
        let behind = self.0.partition_point(|(lo, _)| *lo <= address);
        behind > 0 && address <= self.0[behind - 1].1
    }

    /// Its lowest and highest address.
    pub(crate) fn around(&self) -> (u128, u128) {
        (self.0.first().map_or(0, |first| first.0), self.0.last().map_or(0, |last| last.1))
    }
}

/// The sides that ranges of a family make: each of them, or all as one list.
pub(crate) fn sides(ranges: &[AddressRange], family: Family, most: usize) -> Vec<Side> {
    let of_family = ranges.iter().filter(|range| range.family == family);
    let of_family = of_family.map(|range| (range.lo, range.hi));
    if of_family.clone().count() <= most {
        return of_family.map(|range| (range, None)).collect();
    }
    let list = List::new(of_family.collect());
    vec![(list.around(), Some(Arc::new(list)))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_holds_what_one_of_its_ranges_holds(
            ranges in proptest::collection::vec((0u128..60, 0u128..6), 1..20),
            at_the_end: bool,
        ) {
            let from = if at_the_end { u128::MAX - 70 } else { 0 };
            let ranges: Vec<_> =
                ranges.into_iter().map(|(lo, more)| (from + lo, from + lo + more)).collect();
            let list = List::new(ranges.clone());
            for address in from..=from + 70 {
                let within = ranges.iter().any(|(lo, hi)| (*lo..=*hi).contains(&address));
                prop_assert_eq!(list.contains(address), within, "{}", address);
            }
            prop_assert!(list.ranges().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }
}
