//! SAs that programs put, delete and reserve SPIs for, as they are asked for and answered.

use std::sync::Arc;

use control::{CompileError, DeleteRefusal, KeyManager, PutSa, RefusedPut, ReserveRefusal, SaName};
use dataplane::SnapshotError;
use ipsec::Spi;
use keystate::{KeyOrigin, KeyUsed};

use crate::cards::NoSeat;
use crate::totals::SaKey;

/// Returns a name for this run of the daemon that no other has. Empty, which no request may name,
/// if the kernel gives no random number.
pub(crate) fn new_incarnation() -> Arc<str> {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => format!("{:032x}", u128::from_ne_bytes(bytes)).into(),
        Err(_) => "".into(),
    }
}

/// A request to put SAs. No `Debug`: it holds key bytes.
pub(crate) struct SaPut {
    /// The run of the daemon that they are for. Empty, with keys of any time alone: whichever runs.
    pub(crate) incarnation: String,
    /// The origin of the keys.
    pub(crate) origin: KeyOrigin,
    /// The SAs: all of them or none.
    pub(crate) sas: Vec<PutSa>,
}

/// A request to delete SAs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SaDeletion {
    /// Only in this run of the daemon; empty: in whichever runs.
    pub(crate) incarnation: String,
    /// The SAs: all of them or none.
    pub(crate) names: Vec<SaName>,
    /// The way by which it came. charon is told of SAs of its own that others delete.
    pub(crate) manager: KeyManager,
}

/// A change of SAs that was made.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct SaChange {
    pub(crate) put: u32,
    /// SAs that ran already, exactly as they were asked for.
    pub(crate) unchanged: u32,
    pub(crate) deleted: u32,
    /// The names of the SAs, for an event.
    pub(crate) names: SaNames,
    /// The SAs that were deleted.
    pub(crate) gone: Vec<SaKey>,
}

/// Names of SAs, for events.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct SaNames {
    /// The peer, if it is one; else how many they are.
    pub(crate) subject: String,
    /// The first few SAs: `outbound 0x00001001 instead of 0x00001000`.
    pub(crate) text: String,
}

/// An SPI that was reserved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reserved {
    pub(crate) spi: Spi,
    pub(crate) worker: u32,
    /// The run of the daemon that it is reserved in.
    pub(crate) incarnation: Arc<str>,
}

/// The reason why SAs are neither put nor deleted. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaRefusal {
    /// The SAs are for another run of the daemon, which alone knew their numbers.
    #[error(
        "these SAs are for another run of the daemon, and this one, {runs}, does not know them: \
         agree on new keys with the peer, and never put these again, with or without a run"
    )]
    OtherIncarnation {
        /// The run that there is.
        runs: Arc<str>,
    },
    /// One cannot be put.
    #[error(transparent)]
    Put(#[from] RefusedPut),
    /// One cannot be deleted.
    #[error("{why}")]
    Delete {
        /// Place of the SA in the request.
        place: usize,
        /// The reason.
        why: DeleteRefusal,
    },
    /// A key was used before, or the record of used keys cannot be read.
    #[error("{why}")]
    Key {
        /// Place of the SA in the request, if it is about one.
        place: Option<usize>,
        /// The reason.
        why: KeyUsed,
    },
    /// No card is asked for one that only a card may carry.
    #[error("{why}")]
    NoSeat {
        /// Place of the SA in the request.
        place: usize,
        /// The reason.
        why: NoSeat,
    },
    /// A card did not take one that only a card may carry.
    #[error("{why}; none of the request runs, and its keys are used up: make new ones")]
    Card {
        /// Place of the SA in the request.
        place: usize,
        /// The reason, in the words of the card.
        why: String,
    },
    /// An SA cannot be made: a bug of Lockgate.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The SAs do not become a snapshot: a bug of Lockgate.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}

impl SaRefusal {
    /// Returns the word of the reason in the API: one of a closed set.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            SaRefusal::OtherIncarnation { .. } => "other_incarnation",
            SaRefusal::Put(refused) => refused.why.word(),
            SaRefusal::Delete { why, .. } => why.word(),
            SaRefusal::Key { why, .. } if why.is_met_before() => "key_used",
            SaRefusal::Key { .. } => "key_records",
            SaRefusal::NoSeat { why, .. } => why.word(),
            SaRefusal::Card { .. } => "card_refused",
            SaRefusal::Compile(_) | SaRefusal::Snapshot(_) => "internal",
            SaRefusal::Stopping => "stopping",
        }
    }

    /// Returns the place in the request of the SA that it is about.
    pub(crate) fn place(&self) -> Option<usize> {
        match self {
            SaRefusal::Put(refused) => Some(refused.place),
            SaRefusal::Delete { place, .. }
            | SaRefusal::NoSeat { place, .. }
            | SaRefusal::Card { place, .. } => Some(*place),
            SaRefusal::Key { place, .. } => *place,
            _ => None,
        }
    }
}

/// The reason why no SPI is reserved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// The peer is none that SAs are put for, or there is no SPI.
    #[error(transparent)]
    Refused(#[from] ReserveRefusal),
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}
