//! Scopes: all that a verdict depends on besides the flow and its way out, as one number.

use crate::domain::DomainId;
use crate::policy::SaSetId;

/// The circumstances in which a flow is judged: its domain (question, family, class of the ingress
/// port) and, if the packet was opened, the set of the SA that opened it. [`Tables`] make and read
/// these numbers:
///
/// ```text
/// 31 ............ shift | shift - 1 ... 0
/// SA set + 1, 0: none   | domain
/// ```
///
/// Tables that were made from one another mean the same by a number as long as the generation of
/// its domain stays: classes of ports, and with them `shift`, change only together with all
/// generations, and the numbers of sets are given once.
///
/// [`Tables`]: crate::Tables
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Scope(pub u32);

/// The bits of a [`Scope`] that say its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScopeBits {
    shift: u32,
    /// The bits below `shift`.
    mask: u32,
}

impl ScopeBits {
    /// Returns the bits that a number of domains takes.
    pub fn of(domains: usize) -> ScopeBits {
        let shift = domains.next_power_of_two().trailing_zeros();
        ScopeBits { shift, mask: (1 << shift) - 1 }
    }

    /// The highest set that a scope can name.
    pub fn highest_set(self) -> SaSetId {
        SaSetId((u32::MAX >> self.shift) - 1)
    }

    /// The scope of packets of a domain that were opened by an SA of a set, which is not above
    /// [`highest_set`](Self::highest_set), or by none.
    #[inline(always)]
    pub fn scope(self, domain: DomainId, opened_by: Option<SaSetId>) -> Scope {
        let set = opened_by.map_or(0, |SaSetId(set)| set + 1);
        Scope(set << self.shift | u32::from(domain.0))
    }

    /// The domain of a scope.
    #[inline(always)]
    pub fn domain(self, scope: Scope) -> DomainId {
        DomainId((scope.0 & self.mask) as u16)
    }

    /// The set of a scope; `None`: of packets that came in clear, or are leaving.
    #[inline(always)]
    pub fn opened_by(self, scope: Scope) -> Option<SaSetId> {
        (scope.0 >> self.shift).checked_sub(1).map(SaSetId)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_scope_says_what_it_was_made_of(
            domains in prop_oneof![1usize..=9, Just(16_388), Just(65_535), Just(65_536)],
            of in any::<prop::sample::Index>(),
            set in prop_oneof![Just(None), Just(Some(0)), any::<u32>().prop_map(Some)],
        ) {
            let bits = ScopeBits::of(domains);
            let domain = DomainId(of.index(domains) as u16);
            let set = set.map(|set| SaSetId(set.min(bits.highest_set().0)));
            let scope = bits.scope(domain, set);
            prop_assert_eq!((bits.domain(scope), bits.opened_by(scope)), (domain, set));
            let highest = bits.scope(domain, Some(bits.highest_set()));
            prop_assert_eq!(bits.opened_by(highest), Some(bits.highest_set()));
        }
    }
}
