//! The word of a line that is changed by compare-exchange: who has the line, and how the connection
//! stands.
//!
//! ```text
//! 63     lock of the bucket, in its first line
//! 62     the value is being written anew
//! 61-36  version: one more each time that a tenant leaves or its value is written anew
//! 35-32  state: 0 nobody, 1 to 12 a connection's, 14 being written, 15 second line of an entry
//! 31-28  flags of the connection
//! 27-0   second in which it was last seen, modulo 2^28 (8½ years)
//! ```

use policy::connection::{Flags, State, Status};

const LOCKED: u64 = 1 << 63;
const RENEWING: u64 = 1 << 62;
const VERSION: u64 = ((1 << 26) - 1) << VERSION_SHIFT;
const VERSION_SHIFT: u32 = 36;
const CODE: u64 = 0xf << CODE_SHIFT;
const CODE_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 28;
pub(super) const SECONDS: u32 = (1 << 28) - 1;
/// All that belongs to a tenant.
const TENANT: u64 = CODE | u32::MAX as u64;

/// Use of a line that no connection is known by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Vacant {
    /// By nobody.
    Free = 0,
    /// By whoever writes it.
    Busy = 14,
    /// By the entry that begins in the line before.
    Tail = 15,
}

/// The state word of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StateWord(pub(super) u64);

impl StateWord {
    /// The tenant's part of a word, of a connection that was seen now.
    #[inline]
    pub(super) fn new(status: Status, now_s: u32) -> StateWord {
        StateWord(0).with(status, now_s)
    }

    /// This word with another status, seen now.
    #[inline]
    pub(super) fn with(self, status: Status, seen_s: u32) -> StateWord {
        let tenant = (status.state as u64) << CODE_SHIFT
            | u64::from(status.flags.bits()) << FLAGS_SHIFT
            | u64::from(seen_s & SECONDS);
        StateWord(self.0 & !TENANT | tenant)
    }

    /// This word with the tenant of another one.
    #[inline]
    pub(super) fn with_tenant(self, tenant: StateWord) -> StateWord {
        StateWord(self.0 & !TENANT | tenant.0 & TENANT)
    }

    /// This word, used by no connection.
    #[inline]
    pub(super) fn vacant(self, code: Vacant) -> StateWord {
        StateWord(self.0 & !TENANT | (code as u64) << CODE_SHIFT)
    }

    /// This word after its tenant has left.
    #[inline]
    pub(super) fn left(self, code: Vacant) -> StateWord {
        self.next_version().vacant(code)
    }

    #[inline]
    fn next_version(self) -> StateWord {
        let version = self.0.wrapping_add(1 << VERSION_SHIFT) & VERSION;
        StateWord(self.0 & !VERSION | version)
    }

    #[inline]
    fn code(self) -> u8 {
        ((self.0 & CODE) >> CODE_SHIFT) as u8
    }

    /// Returns whether the line is vacant in this way.
    #[inline]
    pub(super) fn is(self, vacant: Vacant) -> bool {
        self.code() == vacant as u8
    }

    /// The status, if a connection has the line.
    #[inline]
    pub(super) fn status(self) -> Option<Status> {
        let state = State::of_number(self.code())?;
        Some(Status { state, flags: Flags::of_bits((self.0 >> FLAGS_SHIFT) as u8) })
    }

    /// State and flags, as a number below 256.
    #[inline(always)]
    pub(super) fn status_bits(self) -> usize {
        usize::from((self.0 >> FLAGS_SHIFT) as u8)
    }

    /// Returns whether a connection has the line.
    #[inline]
    pub(super) fn is_live(self) -> bool {
        (1..=State::ALL.len() as u8).contains(&self.code())
    }

    /// Returns whether a connection has the line that is not assured.
    #[inline]
    pub(super) fn is_half_open(self) -> bool {
        self.status().is_some_and(Status::is_half_open)
    }

    /// Returns whether both words are of one tenant and of one value.
    #[inline]
    pub(super) fn is_of_same_tenancy(self, other: StateWord) -> bool {
        self.is_live() && other.is_live() && (self.0 ^ other.0) & VERSION == 0
    }

    /// The second in which the connection was last seen.
    #[inline]
    pub(super) fn last_seen_s(self) -> u32 {
        self.0 as u32 & SECONDS
    }

    /// Seconds since the connection was last seen; 0 if that was later than `now_s`, by the clock
    /// of another worker.
    #[inline]
    pub(super) fn age_s(self, now_s: u32) -> u32 {
        let age = now_s.wrapping_sub(self.last_seen_s()) & SECONDS;
        if age > SECONDS / 2 { 0 } else { age }
    }

    /// The later of both: now, and when the connection was last seen.
    #[inline]
    pub(super) fn seen_s(self, now_s: u32) -> u32 {
        if self.age_s(now_s) == 0 { self.last_seen_s() } else { now_s & SECONDS }
    }

    #[inline]
    pub(super) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    #[inline]
    pub(super) fn locked(self) -> StateWord {
        StateWord(self.0 | LOCKED)
    }

    #[inline]
    pub(super) fn unlocked(self) -> StateWord {
        StateWord(self.0 & !LOCKED)
    }

    /// Returns whether the value is being written anew.
    #[inline]
    pub(super) fn is_renewing(self) -> bool {
        self.0 & RENEWING != 0
    }

    /// This word while the value is written anew.
    #[inline]
    pub(super) fn renewing(self) -> StateWord {
        StateWord(self.next_version().0 | RENEWING)
    }

    /// This word after the value was written anew.
    #[inline]
    pub(super) fn renewed(self) -> StateWord {
        StateWord(self.0 & !RENEWING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_part_keeps_the_others(
            bits: u64, state in 0usize..12, flags in 0u8..16, now_s: u32, later in 0u32..1 << 27,
        ) {
            let status = Status { state: State::ALL[state], flags: Flags::of_bits(flags) };
            let word = StateWord(bits).with(status, now_s);
            prop_assert_eq!(word.status(), Some(status));
            prop_assert_eq!(word.age_s(now_s.wrapping_add(later)), later);
            prop_assert_eq!(word.age_s(now_s.wrapping_sub(later)), 0);
            prop_assert_eq!(word.0 & !TENANT, bits & !TENANT);
            prop_assert_eq!(word.locked().unlocked().status(), Some(status));
            prop_assert_eq!(word.locked().is_locked(), true);
            prop_assert!(word.is_of_same_tenancy(word.with(status, now_s + 1).locked()));
            prop_assert!(word.renewing().is_renewing() && !word.renewing().renewed().is_renewing());
            prop_assert!(!word.is_of_same_tenancy(word.renewing().renewed()));
            let left = word.left(Vacant::Free);
            prop_assert!(left.is(Vacant::Free) && !left.is_live() && left.status().is_none());
            prop_assert!(!left.with_tenant(word).is_of_same_tenancy(word));
            prop_assert_eq!(left.with_tenant(word).status(), Some(status));
        }
    }
}
