//! The tries of admissions that tables refuse: one a period, [`TRIES`] at most, then a rest.

use std::collections::HashMap;
use std::hash::Hash;

use crate::admission::{Admission, AdmitError};

/// Tries of an admission at most, one a period.
pub const TRIES: u32 = 5;
/// Periods for which one is skipped that was refused so often, and for which a refusal counts.
pub const REST: u32 = 60;
/// Refused ones that are remembered at most; others are tried again, and not counted.
const MOST: usize = 1 << 16;

/// The outcome of an admission that was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried<E> {
    /// No table refused it.
    Done(Admission),
    /// A table refused it; all is as it was before, and it may be tried in the next period.
    Refused(E),
    /// As [`Tried::Refused`], for the last time: it rests from now on.
    Skipped(E),
}

/// The refusals of one.
#[derive(Clone, Copy, Default)]
struct Refusals {
    times: u32,
    /// Periods until they are forgotten.
    left: u32,
}

/// The endpoints, or flows, whose admission tables refused lately.
pub struct Tries<K> {
    refused: HashMap<K, Refusals>,
}

impl<K> Default for Tries<K> {
    fn default() -> Tries<K> {
        Tries { refused: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Tries<K> {
    /// Returns whether one is skipped: it is not to be tried.
    pub fn rests(&self, key: K) -> bool {
        self.refused.get(&key).is_some_and(|refusals| refusals.times >= TRIES)
    }

    /// Counts a try.
    ///
    /// # Errors
    /// A table refused the way back too: the caller ends the lease.
    pub fn count<E>(
        &mut self,
        key: K,
        outcome: Result<Admission, AdmitError<E>>,
    ) -> Result<Tried<E>, E> {
        match outcome {
            Ok(admission) => {
                self.refused.remove(&key);
                Ok(Tried::Done(admission))
            }
            Err(AdmitError::Left(error)) => Err(error),
            Err(AdmitError::RolledBack(error)) => {
                let is_known = self.refused.contains_key(&key);
                if !is_known && self.refused.len() >= MOST {
                    return Ok(Tried::Refused(error));
                }
                let refusals = self.refused.entry(key).or_default();
                *refusals = Refusals { times: refusals.times + 1, left: REST };
                match refusals.times {
                    TRIES => Ok(Tried::Skipped(error)),
                    _ => Ok(Tried::Refused(error)),
                }
            }
        }
    }

    /// Forgets one: it has changed.
    pub fn forget(&mut self, key: K) {
        self.refused.remove(&key);
    }

    /// Ends a period.
    pub fn end_period(&mut self) {
        self.refused.retain(|_, refusals| {
            refusals.left -= 1;
            refusals.left > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<Admission, AdmitError<&'static str>>;
    const REFUSED: Outcome = Err(AdmitError::RolledBack("no room"));

    /// Tries one until it rests; the number of tries.
    fn tries(tries: &mut Tries<u32>, key: u32) -> u32 {
        let mut made = 0;
        while !tries.rests(key) {
            made += 1;
            let tried = tries.count(key, REFUSED).unwrap();
            let is_last = matches!(tried, Tried::Skipped("no room"));
            assert_eq!(is_last, made == 5, "{tried:?}");
            assert_eq!(tries.rests(key), is_last);
            tries.end_period();
        }
        made
    }

    #[test]
    fn a_refused_admission_is_tried_five_times_and_then_rests_a_minute() {
        let mut all = Tries::default();
        assert_eq!(tries(&mut all, 7), 5);
        assert!(!all.rests(8));
        (2..REST).for_each(|_| all.end_period());
        assert!(all.rests(7));
        all.end_period();
        assert!(!all.rests(7));
        assert_eq!(tries(&mut all, 7), 5);
    }

    #[test]
    fn one_that_went_in_or_changed_begins_anew() {
        let mut all = Tries::default();
        let done: Outcome = Ok(Admission::Admitted);
        for _ in 0..4 {
            all.count(7, REFUSED).unwrap();
        }
        assert_eq!(all.count(7, done.clone()).unwrap(), Tried::Done(Admission::Admitted));
        assert_eq!(tries(&mut all, 7), 5);
        all.forget(7);
        assert_eq!(tries(&mut all, 7), 5);
    }

    #[test]
    fn a_way_back_that_is_refused_is_no_try() {
        let mut all = Tries::default();
        let left: Outcome = Err(AdmitError::Left("and back"));
        assert_eq!(all.count(7, left), Err("and back"));
        assert_eq!(tries(&mut all, 7), 5);
    }

    #[test]
    fn refusals_take_bounded_memory() {
        let mut all = Tries::default();
        for key in 0..MOST as u32 + 100 {
            all.count(key, REFUSED).unwrap();
        }
        assert_eq!(all.refused.len(), MOST);
        // Those beyond are tried again, and none that is known is forgotten.
        let beyond = MOST as u32 + 50;
        (0..10).for_each(|_| assert_eq!(all.count(beyond, REFUSED), Ok(Tried::Refused("no room"))));
        (1..5).for_each(|_| assert!(all.count(3, REFUSED).is_ok()));
        assert!(all.rests(3));
    }
}
