//! Flows of a batch that no entry answers: equal ones are searched once.

use wire::BATCH;

/// The first flows of a batch that have one key, by hash. At most [`BATCH`] of them: the table has
/// room for twice as many.
pub(crate) struct Firsts {
    numbers: [u16; FIRSTS],
    last: usize,
}

const FIRSTS: usize = 2 * BATCH;
const _: () = assert!(FIRSTS.is_power_of_two());
const VACANT: u16 = u16::MAX;

impl Default for Firsts {
    fn default() -> Firsts {
        Firsts { numbers: [VACANT; FIRSTS], last: 0 }
    }
}

impl Firsts {
    /// Returns the earlier number with this hash and for which `same` is true; otherwise notes
    /// `number`. Numbers may exceed [`BATCH`]: released fragments wait beside the packets of a
    /// batch.
    pub(crate) fn find(
        &mut self,
        hash: u64,
        number: usize,
        same: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let noted = u16::try_from(number).unwrap_or(VACANT);
        let mut at = hash as usize % FIRSTS;
        loop {
            match self.numbers[at] {
                VACANT => {
                    (self.numbers[at], self.last) = (noted, at);
                    return None;
                }
                known if same(usize::from(known)) => return Some(usize::from(known)),
                _ => at = (at + 1) % FIRSTS,
            }
        }
    }

    /// Forgets the number that was noted last.
    pub(crate) fn forget_last(&mut self) {
        self.numbers[self.last] = VACANT;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Numbers at the edges of a byte, of a batch and of the type.
    fn number() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..3, Just(BATCH - 1), Just(BATCH), 254usize..258, 65_533usize..65_535]
    }

    proptest! {
        #[test]
        fn equal_keys_find_their_first_number(
            numbers in prop::collection::vec((number(), 0u64..40), 0..BATCH),
            spread in prop_oneof![Just(0u64), Just(1), Just(FIRSTS as u64 - 1)],
        ) {
            let (mut firsts, mut model) = (Firsts::default(), HashMap::new());
            let mut keys: HashMap<usize, u64> = HashMap::new();
            for (number, key) in numbers {
                if keys.contains_key(&number) {
                    continue; // numbers are unique
                }
                let found = firsts.find(key * spread, number, |other| keys[&other] == key);
                prop_assert_eq!(found, model.get(&key).copied());
                model.entry(key).or_insert(number);
                keys.insert(number, key);
            }
        }
    }

    #[test]
    fn a_forgotten_number_is_not_found() {
        let mut firsts = Firsts::default();
        assert_eq!(firsts.find(7, 300, |_| true), None);
        assert_eq!(firsts.find(7, 301, |_| true), Some(300));
        firsts.forget_last();
        assert_eq!(firsts.find(7, 302, |_| true), None);
    }
}
