//! Limits of the use of an SA.

use serde::{Deserialize, Serialize};

use crate::capabilities::{Exactness, SaAbilities};

/// Limits of the use of an SA, as the card counts it. `None`: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaLimits {
    /// Packets behind which the card tells.
    pub soft_packets: Option<u64>,
    /// Packets behind which nothing more passes. Of an SA that seals: the lease of numbers.
    pub hard_packets: Option<u64>,
    /// Bytes behind which the card tells: those that the cipher processes (RFC 4301 §4.4.2.1).
    pub soft_bytes: Option<u64>,
    /// Bytes behind which nothing more passes.
    pub hard_bytes: Option<u64>,
}

impl SaLimits {
    /// These limits for a card. One that does not keep limits of bytes exactly gets limits of
    /// packets in their place, so that nothing passes beyond them whatever the packets' size:
    /// bytes ÷ `largest_payload`, the most that one packet has the cipher process.
    ///
    /// # Panics
    /// If `largest_payload` is 0: no packet has none.
    pub fn for_card(self, card: &SaAbilities, largest_payload: u32) -> SaLimits {
        if card.byte_limits.get() == Some(&Exactness::Exact) {
            return self;
        }
        let packets = |bytes: Option<u64>, packets: Option<u64>| {
            let fewest = bytes.map(|bytes| bytes / u64::from(largest_payload));
            [fewest, packets].into_iter().flatten().min()
        };
        SaLimits {
            soft_packets: packets(self.soft_bytes, self.soft_packets),
            hard_packets: packets(self.hard_bytes, self.hard_packets),
            soft_bytes: None,
            hard_bytes: None,
        }
    }

    /// Returns whether a limit of packets is set.
    pub(crate) const fn has_packets(&self) -> bool {
        self.soft_packets.is_some() || self.hard_packets.is_some()
    }

    /// Returns whether a limit of bytes is set.
    pub(crate) const fn has_bytes(&self) -> bool {
        self.soft_bytes.is_some() || self.hard_bytes.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capabilities::{Ability, Capabilities};

    fn mlx5() -> SaAbilities {
        *Capabilities::named("mlx5-as-read").unwrap().sas.get().unwrap()
    }

    const BYTES: SaLimits = SaLimits {
        soft_packets: None,
        hard_packets: Some(1000),
        soft_bytes: Some(80_000),
        hard_bytes: Some(100_000),
    };

    // XO-18: of a card that only polls
    #[test]
    fn limits_of_bytes_become_packets_where_the_card_only_polls_them() {
        let polled = BYTES.for_card(&mlx5(), 1500);
        assert_eq!((polled.soft_packets, polled.hard_packets), (Some(53), Some(66)));
        assert_eq!((polled.soft_bytes, polled.hard_bytes), (None, None));
        // The lower of both.
        assert_eq!(BYTES.for_card(&mlx5(), 64).hard_packets, Some(1000));
        let exact = SaAbilities { byte_limits: Ability::Has(Exactness::Exact), ..mlx5() };
        assert_eq!(BYTES.for_card(&exact, 1500), BYTES);
        let lacks = SaAbilities { byte_limits: Ability::Lacks("it counts packets"), ..mlx5() };
        assert_eq!(BYTES.for_card(&lacks, 1500), polled);
        // A limit below one packet lets none pass, rather than one too many.
        let low = SaLimits { hard_bytes: Some(1499), ..SaLimits::default() };
        assert_eq!(low.for_card(&mlx5(), 1500).hard_packets, Some(0));
        assert_eq!(SaLimits::default().for_card(&mlx5(), 1500), SaLimits::default());
    }

    proptest! {
        // XO-18
        #[test]
        fn no_packets_within_the_limit_are_more_bytes_than_it(
            bytes in 0u64..1 << 40,
            largest in 1u32..65_536,
            sizes in prop::collection::vec(1u32..65_536, 1..50),
        ) {
            let limits = SaLimits { hard_bytes: Some(bytes), ..SaLimits::default() };
            let packets = limits.for_card(&mlx5(), largest).hard_packets.unwrap();
            let passed = sizes.iter().map(|size| u64::from((*size).min(largest)));
            prop_assert!(passed.take(packets.min(50) as usize).sum::<u64>() <= bytes);
            prop_assert!(u128::from(packets) * u128::from(largest) <= u128::from(bytes));
        }
    }
}
