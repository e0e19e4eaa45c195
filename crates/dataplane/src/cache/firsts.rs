//! Flows of a batch that no entry answers: equal ones are searched once.

use wire::BATCH;

/// The first flows of a batch that have one key, by hash. At most [`BATCH`] of them: the table has
/// room for twice as many.
pub(crate) struct Firsts {
    places: [u8; FIRSTS],
    last: usize,
}

const FIRSTS: usize = 2 * BATCH;
const _: () = assert!(FIRSTS.is_power_of_two() && FIRSTS < VACANT as usize);
const VACANT: u8 = u8::MAX;

impl Default for Firsts {
    fn default() -> Firsts {
        Firsts { places: [VACANT; FIRSTS], last: 0 }
    }
}

impl Firsts {
    /// Returns the earlier number with this hash of which `same` is true; without one, notes
    /// `number` in its place.
    pub(crate) fn find(
        &mut self,
        hash: u64,
        number: usize,
        same: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        debug_assert!(number < usize::from(VACANT), "a number of a batch");
        let mut at = hash as usize % FIRSTS;
        loop {
            match self.places[at] {
                VACANT => {
                    (self.places[at], self.last) = (number as u8, at);
                    return None;
                }
                known if same(usize::from(known)) => return Some(usize::from(known)),
                _ => at = (at + 1) % FIRSTS,
            }
        }
    }

    /// Forgets the number that was noted last.
    pub(crate) fn forget_last(&mut self) {
        self.places[self.last] = VACANT;
    }
}
