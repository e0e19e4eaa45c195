//! Rules that have been busy for a while, so that places do not change hands for a burst.

use std::collections::{HashMap, HashSet};

use crate::reason::RuleKey;

/// Packets in a period that are worth another rule's place.
pub const WORTH_A_PLACE: u64 = 100;
/// Periods in a row for which a rule must be worth it.
pub const IN_A_ROW: u32 = 2;

/// Periods in a row in which rules were worth a place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seasons {
    periods: HashMap<RuleKey, u32>,
}

impl Seasons {
    /// Ends a period, in which these rules decided so many packets.
    pub fn end_period(&mut self, packets: impl IntoIterator<Item = (RuleKey, u64)>) {
        let before = std::mem::take(&mut self.periods);
        let worth = packets.into_iter().filter(|(_, packets)| *packets >= WORTH_A_PLACE);
        self.periods = worth
            .map(|(key, _)| (key, before.get(&key).map_or(1, |periods| periods.saturating_add(1))))
            .collect();
    }

    /// The rules that may take others' places.
    pub fn seasoned(&self) -> HashSet<RuleKey> {
        let long = self.periods.iter().filter(|(_, periods)| **periods >= IN_A_ROW);
        long.map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use policy::PolicyIndex;
    use wire::Family;

    use super::*;

    #[test]
    fn a_rule_is_seasoned_when_it_was_busy_two_periods_in_a_row() {
        let [one, other] =
            [1, 2].map(|slot| RuleKey { slot: PolicyIndex(slot), family: Family::V4 });
        let mut seasons = Seasons::default();
        seasons.end_period([(one, WORTH_A_PLACE), (other, WORTH_A_PLACE)]);
        assert!(seasons.seasoned().is_empty());
        seasons.end_period([(one, WORTH_A_PLACE), (other, WORTH_A_PLACE - 1)]);
        assert_eq!(seasons.seasoned(), [one].into());
        seasons.end_period([(other, u64::MAX)]);
        assert!(seasons.seasoned().is_empty());
    }
}
