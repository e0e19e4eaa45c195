//! The choice of a suite's backend, from times that were measured.
//!
//! ```text
//! ns a packet    64 B    512 B    1420 B
//! ipsec-mb         48      150       386    the best at 64 bytes
//! ring             90      155       285    the best at 1420 bytes
//!                                ^ from 544 bytes on ring takes less
//! ```
//! Times stand for themselves: which instructions a processor has, and which of them a library
//! uses, decides nothing.
//!
//! Not here: how times are measured (`measure`), and how packets find their key (`by_size`).

use super::kind::BackendKind;

/// Bytes of text for which backends are measured: the smallest packets, middle ones, and those of
/// an Ethernet behind a tunnel.
pub(super) const SIZES: [u32; 3] = [64, 512, 1420];

/// A backend is preferred to one that stands before it in [`BackendKind::ALL`] if it takes at most
/// 100 parts of the time where that one takes 105: no noise turns equal ones about.
const PREFERRED_PERCENT: u128 = 105;

/// The classes of text that go to one backend or another are cut at a multiple of this.
const GRAIN: u32 = 16;

/// The backend of a suite, or two of them, each for texts of some lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// One backend for all packets.
    One(BackendKind),
    /// Two backends, for an AEAD: both expand the key.
    BySize {
        /// The backend of texts of at most `short_bytes`.
        short: BackendKind,
        /// The backend of longer texts.
        long: BackendKind,
        /// Bytes of the longest text that goes to `short`.
        short_bytes: u32,
    },
}

/// Time that a backend takes for a batch, for texts of each of [`SIZES`]; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Times {
    pub(super) kind: BackendKind,
    pub(super) ns: [u64; SIZES.len()],
}

impl Choice {
    /// The backends at work, each once.
    pub fn kinds(self) -> impl Iterator<Item = BackendKind> {
        let (one, other) = match self {
            Choice::One(kind) => (kind, None),
            Choice::BySize { short, long, .. } => (short, Some(long)),
        };
        std::iter::once(one).chain(other)
    }
}

/// Chooses. `times`: of each backend that has the suite, in the order of [`BackendKind::ALL`].
///
/// 1. The best one for the shortest and the best one for the longest texts are taken.
/// 2. Of these two the better one for texts in the middle takes them as well.
/// 3. On that one's other side, where the lines through their times cross, the lengths are cut.
///
/// # Panics
/// Without any backend.
pub(super) fn choose(times: &[Times]) -> Choice {
    let [first, middle, last] = [0, 1, 2];
    let (short, long) = (best(times, first), best(times, last));
    if short.kind == long.kind {
        return Choice::One(short.kind);
    }
    let is_end = |it: &&Times| [short.kind, long.kind].contains(&it.kind);
    let ends: Vec<Times> = times.iter().filter(is_end).copied().collect();
    let below = if best(&ends, middle).kind == short.kind { middle } else { first };
    let short_bytes = crossing(&short, &long, below);
    Choice::BySize { short: short.kind, long: long.kind, short_bytes }
}

/// The first backend, or the one behind it that is clearly better than the best before it.
fn best(times: &[Times], size: usize) -> Times {
    let parts = |times: &Times, parts: u128| u128::from(times.ns[size]) * parts;
    let better = |best: Times, next: &Times| {
        if parts(next, PREFERRED_PERCENT) <= parts(&best, 100) { *next } else { best }
    };
    let (first, rest) = times.split_first().expect("the portable backend has every suite");
    rest.iter().fold(*first, better)
}

/// The length, between those of `below` and of the next size, at which the line through the times
/// of `short` crosses that of `long`, in whole grains. Where they do not cross: at the lower end,
/// if `long` is nowhere slower.
fn crossing(short: &Times, long: &Times, below: usize) -> u32 {
    let ahead_below = long.ns[below].saturating_sub(short.ns[below]);
    let ahead_above = short.ns[below + 1].saturating_sub(long.ns[below + 1]);
    let (from, to) = (SIZES[below], SIZES[below + 1]);
    let both = u128::from(ahead_below) + u128::from(ahead_above);
    let part = (u128::from(to - from) * u128::from(ahead_below)).checked_div(both).unwrap_or(0);
    let length = from + u32::try_from(part).expect("a part of the distance");
    (length / GRAIN * GRAIN).max(from)
}
