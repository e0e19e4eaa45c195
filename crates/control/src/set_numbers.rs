//! Numbers of SA sets: each is given once, to a peer of the file or of charon's own.
//!
//! A configuration takes numbers while it is prepared, beside changes of charon's that take
//! numbers too. A prepared configuration that never runs returns its numbers, since no packet has
//! met them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use policy::SaSetId;

use crate::compile::CompileError;

/// The numbers that are left. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct SetNumbers(Arc<Mutex<LeftNumbers>>);

#[derive(Default)]
struct LeftNumbers {
    /// The first number that was never taken.
    next: u32,
    returned: BTreeSet<u32>,
}

impl SetNumbers {
    /// Takes a number for good.
    ///
    /// # Errors
    /// [`CompileError::OutOfNumbers`].
    pub(crate) fn take(&self) -> Result<SaSetId, CompileError> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(returned) = left.returned.pop_first() {
            return Ok(SaSetId(returned));
        }
        let number = left.next;
        left.next = number.checked_add(1).ok_or(CompileError::OutOfNumbers)?;
        Ok(SaSetId(number))
    }

    /// Begins a list of numbers that return unless they are kept.
    pub(crate) fn reservation(&self) -> ReservedSets {
        ReservedSets { numbers: self.clone(), taken: Vec::new() }
    }
}

/// Numbers of a configuration that does not run yet. Dropped, they may be taken again.
pub(crate) struct ReservedSets {
    numbers: SetNumbers,
    taken: Vec<SaSetId>,
}

impl ReservedSets {
    /// Takes a number.
    ///
    /// # Errors
    /// [`CompileError::OutOfNumbers`].
    pub(crate) fn take(&mut self) -> Result<SaSetId, CompileError> {
        let number = self.numbers.take()?;
        self.taken.push(number);
        Ok(number)
    }

    /// Keeps the numbers: the configuration runs.
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }
}

impl Drop for ReservedSets {
    fn drop(&mut self) {
        let mut left = self.numbers.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.returned.extend(self.taken.iter().map(|set| set.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_reservation_returns_its_numbers_and_kept_one_does_not() {
        let numbers = SetNumbers::default();
        let mut dropped = numbers.reservation();
        assert_eq!(dropped.take().unwrap(), SaSetId(0));
        assert_eq!(numbers.take().unwrap(), SaSetId(1), "taken beside the reservation");
        assert_eq!(dropped.take().unwrap(), SaSetId(2));
        drop(dropped);
        let mut kept = numbers.reservation();
        assert_eq!([kept.take().unwrap(), kept.take().unwrap()], [SaSetId(0), SaSetId(2)]);
        kept.keep();
        assert_eq!(numbers.take().unwrap(), SaSetId(3));
    }

    #[test]
    fn numbers_end_without_a_panic() {
        let numbers = SetNumbers::default();
        numbers.0.lock().unwrap().next = u32::MAX;
        assert!(matches!(numbers.take(), Err(CompileError::OutOfNumbers)));
        assert!(matches!(numbers.reservation().take(), Err(CompileError::OutOfNumbers)));
    }
}
