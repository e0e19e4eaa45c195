//! The path MTU to a peer, as far as ICMP has told it (RFC 4301 §8.2, RFC 1191, RFC 8201).
//!
//! * **Age.** ICMP only ever lowers a path MTU. [`AGE_NS`] after it was learned it is forgotten
//!   (RFC 1191 §6.3, RFC 8201 §5.3): the next packet that is too large is told of again.
//! * **Shared.** All workers and snapshots share a peer's path MTU. What a worker learns holds for
//!   the next packet of every worker.
//!
//! Not here: which messages are believed, see `mtu_messages`; probing without ICMP (RFC 4821).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time after which a path MTU is forgotten, nanoseconds: ten minutes.
pub const AGE_NS: u64 = 600_000_000_000;
/// Sequence numbers of an SA, counted back from the last one given out, that a quoted packet may
/// have.
pub const RECENT_NUMBERS: u32 = 65_536;
/// The least path MTU that is learned over IPv4, bytes: what every host takes (RFC 791 §3.1).
pub const FLOOR_V4: u32 = 576;
/// The least path MTU that is learned over IPv6, bytes: the least that a link may have (RFC 8200
/// §5).
pub const FLOOR_V6: u32 = 1280;

const NS_PER_MS: u64 = 1_000_000;
/// Bits of the word that hold the MTU; the milliseconds are above them.
const MTU_BITS: u32 = 16;

/// A path MTU that was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedMtu {
    /// Largest packet that the path carries whole, bytes of the outer packet, [`FLOOR_V4`] to
    /// 65,535.
    pub mtu: u32,
    /// Time since it was learned, milliseconds, below [`AGE_NS`].
    pub age_ms: u64,
}

/// The path MTU to a peer. A clone is another handle to the same; two are equal if they are.
#[derive(Clone, Default, Debug)]
pub struct PathMtu {
    /// The MTU, and above it the milliseconds at which it was learned; 0: none is known.
    word: Arc<AtomicU64>,
}

impl PartialEq for PathMtu {
    fn eq(&self, other: &PathMtu) -> bool {
        Arc::ptr_eq(&self.word, &other.word)
    }
}

impl Eq for PathMtu {}

impl PathMtu {
    /// The path MTU that is known at a time, bytes of the outer packet; `None`: none was learned
    /// within [`AGE_NS`]. Cost: a load.
    #[inline(always)]
    pub fn known(&self, now_ns: u64) -> Option<u32> {
        // Relaxed: only this one word matters.
        match self.word.load(Ordering::Relaxed) {
            0 => None,
            word => fresh(word, now_ns).map(|learned| learned.mtu),
        }
    }

    /// The path MTU that is known at a time, with its age.
    pub fn learned(&self, now_ns: u64) -> Option<LearnedMtu> {
        fresh(self.word.load(Ordering::Relaxed), now_ns)
    }

    /// Takes an MTU for the path's if none is known or the known one is larger. Returns whether it
    /// did. For those who have a reason to believe it, as a worker has.
    pub fn lower(&self, mtu: u16, now_ns: u64) -> bool {
        let (now, order) = (now_ns / NS_PER_MS, Ordering::Relaxed);
        let lowered = self.word.fetch_update(order, order, |word| {
            let is_lower = fresh(word, now_ns).is_none_or(|known| u32::from(mtu) < known.mtu);
            is_lower.then_some(now << MTU_BITS | u64::from(mtu))
        });
        lowered.is_ok()
    }
}

/// The meaning of a word at a time.
#[cold]
fn fresh(word: u64, now_ns: u64) -> Option<LearnedMtu> {
    let (learned_ms, mtu) = (word >> MTU_BITS, (word & 0xffff) as u32);
    // Another worker may have learned it a little later than now.
    let age_ms = (now_ns / NS_PER_MS).saturating_sub(learned_ms);
    (mtu != 0 && age_ms < AGE_NS / NS_PER_MS).then_some(LearnedMtu { mtu, age_ms })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    proptest! {
        /// Oracle: all that was ever told, oldest first.
        #[test]
        fn a_path_mtu_is_the_least_told_until_it_is_ten_minutes_old(
            steps in prop::collection::vec((576u16..=65_535, 0u64..400, any::<bool>()), 1..60),
        ) {
            let path = PathMtu::default();
            // What was taken, and when.
            let (mut taken, mut now_ns) = (Vec::<(u16, u64)>::new(), 7 * SECOND_NS);
            for (mtu, seconds, tells) in steps {
                now_ns += seconds * SECOND_NS;
                let last = taken.last().filter(|(_, at)| now_ns - at < AGE_NS).copied();
                if tells {
                    let expected = last.is_none_or(|(known, _)| mtu < known);
                    prop_assert_eq!(path.clone().lower(mtu, now_ns), expected);
                    if expected {
                        taken.push((mtu, now_ns));
                    }
                }
                let last = taken.last().filter(|(_, at)| now_ns - at < AGE_NS);
                prop_assert_eq!(path.known(now_ns), last.map(|(mtu, _)| u32::from(*mtu)));
                let age = path.learned(now_ns).map(|learned| learned.age_ms);
                prop_assert_eq!(age, last.map(|(_, at)| (now_ns - at) / 1_000_000));
            }
        }
    }

    #[test]
    fn it_is_forgotten_after_ten_minutes_to_the_millisecond() {
        let path = PathMtu::default();
        let learned_ns = 5 * SECOND_NS;
        assert!(path.lower(1400, learned_ns));
        assert_eq!(path.known(learned_ns + AGE_NS - 1), Some(1400));
        assert_eq!(path.known(learned_ns + AGE_NS), None);
        assert!(path.lower(1450, learned_ns + AGE_NS), "a larger one, once it is forgotten");
        // A worker whose time is a little behind.
        assert_eq!(path.known(learned_ns), Some(1450));
    }

    #[test]
    fn handles_are_equal_if_they_are_of_one_path() {
        let path = PathMtu::default();
        assert_eq!(path, path.clone());
        assert_ne!(path, PathMtu::default());
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        let path = PathMtu::default();
        assert!(path.lower(1280, u64::MAX));
        assert_eq!(path.known(u64::MAX), Some(1280));
    }
}
