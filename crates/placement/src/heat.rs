//! The endpoints, and the flows, that are worth a place in the tier: those that are used most, and
//! for a while, so that places do not change hands for a burst.

use std::collections::HashMap;
use std::hash::Hash;

use dataplane::TenantSample;
use endpoints::EndpointKey;

/// Packets in a period that are worth a place while there is room.
const WORTH_ROOM: u64 = 2;
/// Packets in a period that are worth another one's place, and how often in a row.
const WORTH_A_PLACE: u64 = 100;
const IN_A_ROW: u32 = 2;
/// One that takes a place is used this many times as much as the one that had it.
const TIMES: u64 = 2;
/// Endpoints, or flows, that go in or out in a period at most.
pub(crate) const MOST_MOVES: usize = 1000;
/// Endpoints, or flows, that are watched at most; others are seen again.
const MOST_WATCHED: usize = 1 << 17;

/// An endpoint, or a flow, outside the tier.
#[derive(Clone, Copy, Default)]
struct Candidate {
    /// Packets in this period.
    now: u64,
    /// Packets in the last.
    last: u64,
    /// Periods in a row, the last among them, in which it was worth another's place.
    periods: u32,
}

/// The use of endpoints or flows, period by period: a second each.
pub struct Heat<K> {
    candidates: HashMap<K, Candidate>,
    /// Packets of residents in a period, on the average of some.
    residents: HashMap<K, u64>,
}

/// The moves that a period calls for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moves<K> {
    /// Those to be taken in, the most used first.
    pub enter: Vec<K>,
    /// Those to be taken out.
    pub leave: Vec<K>,
}

/// The two endpoints of each packet that workers saw.
pub fn endpoints_of(samples: &[TenantSample]) -> impl Iterator<Item = EndpointKey> {
    let ends = |sample: &TenantSample| {
        let vni = sample.vni;
        [sample.source, sample.destination].map(|address| EndpointKey { vni, address })
    };
    samples.iter().flat_map(ends)
}

impl<K> Default for Heat<K> {
    fn default() -> Heat<K> {
        Heat { candidates: HashMap::new(), residents: HashMap::new() }
    }
}

impl<K: Copy + Ord + Hash> Heat<K> {
    /// Counts packets that workers saw: each key stands for `times` of them. What is inside the
    /// tier is no candidate, though workers see its packets with what is outside.
    pub fn count(
        &mut self,
        keys: impl IntoIterator<Item = K>,
        times: u64,
        is_inside: impl Fn(K) -> bool,
    ) {
        for key in keys {
            let is_watched = self.candidates.contains_key(&key);
            if !is_inside(key) && (is_watched || self.candidates.len() < MOST_WATCHED) {
                self.candidates.entry(key).or_default().now += times;
            }
        }
    }

    /// Counts packets of residents in the period.
    pub fn used(&mut self, residents: &[(K, u64)]) {
        for (key, packets) in residents {
            let average = self.residents.entry(*key).or_insert(*packets);
            *average = (*average * 3 + packets) / 4;
        }
    }

    /// Forgets one.
    pub fn forget(&mut self, key: K) {
        self.candidates.remove(&key);
        self.residents.remove(&key);
    }

    /// Ends a period. `room`: places that are free.
    pub fn end_period(&mut self, room: usize) -> Moves<K> {
        self.candidates.retain(|_, candidate| {
            let is_worth = candidate.now >= WORTH_A_PLACE;
            candidate.periods = if is_worth { candidate.periods + 1 } else { 0 };
            (candidate.last, candidate.now) = (candidate.now, 0);
            candidate.last > 0
        });
        let mut hot: Vec<(u64, u32, K)> = self
            .candidates
            .iter()
            .filter(|(_, candidate)| candidate.last >= WORTH_ROOM)
            .map(|(key, candidate)| (candidate.last, candidate.periods, *key))
            .collect();
        // Of equal ones always the same, in whatever order the map has them.
        hot.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(&b.2)));
        let fits = hot.len().min(room).min(MOST_MOVES);
        let enter = hot[..fits].iter().map(|(.., key)| *key).collect();
        Moves { enter, leave: self.coldest(&hot[fits..], fits) }
    }

    /// The residents whose places others have earned.
    fn coldest(&self, hot: &[(u64, u32, K)], moved: usize) -> Vec<K> {
        let mut earned = hot.iter().filter(|(_, periods, _)| *periods >= IN_A_ROW).peekable();
        if earned.peek().is_none() {
            return Vec::new();
        }
        let mut cold: Vec<(u64, K)> =
            self.residents.iter().map(|(key, packets)| (*packets, *key)).collect();
        cold.sort_unstable();
        earned
            .zip(cold)
            .take_while(|((hot, ..), (cold, _))| *hot >= cold * TIMES)
            .map(|(_, (_, key))| key)
            .take(MOST_MOVES - moved)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use wire::{Address, Vni};

    use super::*;

    fn key(number: u32) -> EndpointKey {
        EndpointKey { vni: Vni::new(7).unwrap(), address: Address::v4(number) }
    }

    fn see(heat: &mut Heat<EndpointKey>, number: u32, count: u64) {
        let (vni, address) = (Vni::new(7).unwrap(), Address::v4(number));
        // Both ends are one: it is counted twice.
        let sample = TenantSample { vni, source: address, destination: address, judged: None };
        heat.count(endpoints_of(&[sample]), count / 2, |_| false);
    }

    #[test]
    fn while_there_is_room_little_use_is_enough() {
        let mut heat = Heat::default();
        see(&mut heat, 1, 2);
        see(&mut heat, 2, 400);
        assert_eq!(heat.end_period(8).enter, [key(2), key(1)]);
        // Nobody was seen since.
        assert_eq!(heat.end_period(8), Moves { enter: vec![], leave: vec![] });
    }

    #[test]
    fn a_full_tier_gives_a_place_up_for_lasting_use_only() {
        let mut heat = Heat::default();
        for round in 0..4 {
            heat.used(&[(key(1), 150), (key(2), 40)]);
            see(&mut heat, 3, 200);
            see(&mut heat, 4, 98);
            let moves = heat.end_period(0);
            assert_eq!(moves.enter, []);
            // The first period may be a burst; the second is not. The fourth endpoint is worth room
            // but nobody's place, and the first is used too much.
            let leave = if round == 0 { vec![] } else { vec![key(2)] };
            assert_eq!(moves.leave, leave, "round {round}");
        }
        // A pause, and it begins anew.
        heat.end_period(0);
        see(&mut heat, 3, 200);
        assert_eq!(heat.end_period(0).leave, []);
    }

    #[test]
    fn an_endpoint_inside_takes_no_second_place() {
        let mut heat = Heat::default();
        let is_inside = |inside: EndpointKey| inside == key(1);
        let with = |number| {
            let (source, destination) = (Address::v4(1), Address::v4(number));
            TenantSample { vni: Vni::new(7).unwrap(), source, destination, judged: None }
        };
        // It speaks with all the others, and is seen most.
        for _ in 0..3 {
            heat.count(endpoints_of(&[with(2), with(3)]), 50, is_inside);
            assert_eq!(heat.end_period(1).enter, [key(2)]);
            heat.used(&[(key(1), 150), (key(4), 0)]);
            heat.count(endpoints_of(&[with(2), with(3)]), 50, is_inside);
            assert_eq!(heat.end_period(0).leave, [], "nobody outside has earned a place");
        }
    }

    #[test]
    fn places_do_not_change_hands_among_equals() {
        let mut heat = Heat::default();
        for _ in 0..9 {
            heat.used(&[(key(1), 150)]);
            see(&mut heat, 2, 200);
            assert_eq!(heat.end_period(0).leave, []);
        }
    }

    #[test]
    fn moves_and_watched_endpoints_are_bounded() {
        let mut heat = Heat::default();
        for number in 0..MOST_WATCHED as u32 + 10 {
            see(&mut heat, number, 200);
        }
        assert_eq!(heat.candidates.len(), MOST_WATCHED);
        assert_eq!(heat.end_period(usize::MAX).enter.len(), MOST_MOVES);
    }
}
