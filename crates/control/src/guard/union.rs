//! Sets of addresses.

use std::collections::BTreeMap;

use policy::AddressRange;
use wire::Family;

use super::rules::merged_addresses;

/// Addresses of one family, as ranges that neither overlap nor touch: last address by first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Union(BTreeMap<u128, u128>);

impl Union {
    pub(super) fn add(&mut self, range: &AddressRange) {
        let (mut lo, mut hi) = (range.lo, range.hi);
        // From the last that begins at or before the end of ours, downwards.
        while let Some((&first, &last)) = self.0.range(..=hi.saturating_add(1)).next_back() {
            if last.saturating_add(1) < lo {
                break;
            }
            (lo, hi) = (lo.min(first), hi.max(last));
            self.0.remove(&first);
        }
        self.0.insert(lo, hi);
    }

    /// Returns whether every address of the range is in the set.
    pub(super) fn holds(&self, range: &AddressRange) -> bool {
        let before = self.0.range(..=range.lo).next_back();
        before.is_some_and(|(_, &last)| last >= range.hi)
    }

    /// Returns whether any address of the range is in the set.
    pub(super) fn meets(&self, range: &AddressRange) -> bool {
        let before = self.0.range(..=range.hi).next_back();
        before.is_some_and(|(_, &last)| last >= range.lo)
    }

    pub(super) fn ranges(&self, family: Family) -> Vec<AddressRange> {
        let range = |(&lo, &hi): (&u128, &u128)| AddressRange { family, lo, hi };
        let ranges: Vec<AddressRange> = self.0.iter().map(range).collect();
        debug_assert_eq!(ranges, merged_addresses(ranges.iter()));
        ranges
    }
}
