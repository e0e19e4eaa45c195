//! Failures, refusals and repairs.

use std::path::PathBuf;

use ipsec::{Fingerprint, Spi};

use crate::KeyUse;
use crate::boot_keys::MAX_NAMED_KEYS;
use crate::evaluate::Refusal;
use crate::files::FileError;
use crate::ike_keys::MAX_IKE_KEYS;
use crate::put_keys::MAX_PUT_KEYS;

/// A failure to open the state of keys. The daemon must not start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyStateError {
    /// Another process uses the directory.
    #[error(
        "{} is in use by another daemon{}: stop it first, or give this one its own directories",
        .path.display(), .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The locked file.
        path: PathBuf,
        /// The other process, if it says.
        pid: Option<u32>,
    },
    /// A file or directory cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A key that is not used. The others are.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key {fingerprint} of SPI {spi} is not used: {reason}")]
pub struct KeyRefused {
    /// The key.
    pub fingerprint: Fingerprint,
    /// The use that was refused.
    pub usage: KeyUse,
    /// SPI of the SA that would use the key.
    pub spi: Spi,
    /// The reason.
    pub reason: Refusal,
}

/// The proof that a key was put for the first time: the numbers of the key may begin at 1. Making
/// the key's counter consumes the proof.
#[must_use = "the key is used up: no other SA may have it"]
#[derive(PartialEq, Eq, Debug)]
pub struct Once {
    pub(crate) fingerprint: Fingerprint,
}

impl Once {
    /// The key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// A key that must not be put over the API, or all of them for now. Nothing was taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyUsed {
    /// The key was put before, or twice at once. Its numbers would begin at 1 a second time.
    #[error(
        "the key {fingerprint} was put before: an AEAD key seals for one SA only; agree on a new \
         one"
    )]
    PutBefore {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// A key file has, or had, the key.
    #[error("the key {fingerprint} is, or was, in a key file of this machine: agree on a new one")]
    FileKey {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// As many keys were put without a named run as are remembered.
    #[error(
        "{} keys were put without `incarnation`, the most that are remembered: agree on keys for \
         the run of the daemon and name it (`lockgate sa put --incarnation RUN`)",
        MAX_PUT_KEYS
    )]
    PutKeysFull,
    /// As many keys were put with a named run as are remembered.
    #[error(
        "{} keys were put with `incarnation` since the machine booted, the most that are \
         remembered: more are taken after the next boot",
        MAX_NAMED_KEYS
    )]
    NamedKeysFull,
    /// As many keys of IKE are remembered as may be.
    #[error(
        "{} keys of IKE are remembered, the most there may be: lockgated forgets a key 5 to 10 \
         minutes after its SA",
        MAX_IKE_KEYS
    )]
    IkeKeysFull,
    /// A file of the run directory is damaged or lost some: any key of this boot may have been in
    /// it.
    #[error(
        "{} is damaged, so which keys were put since the machine booted is unknown: the put is \
         taken after the next boot, with keys that were never used",
        .path.display()
    )]
    DamagedUntilBoot {
        /// The file.
        path: PathBuf,
    },
    /// The file of the keys put without a named run is damaged or lost some: any key may have been
    /// in it.
    #[error(
        "{} is damaged, so which keys were put before is unknown: agree on keys for the run of the \
         daemon and name it (`lockgate sa put --incarnation RUN`); or use none of the earlier keys \
         again, move the file away and reboot",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A record cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl KeyUsed {
    /// Returns true if the key was met before, so that another key helps.
    pub fn is_met_before(&self) -> bool {
        matches!(self, KeyUsed::PutBefore { .. } | KeyUsed::FileKey { .. })
    }
}

/// Records could not be written. The SAs concerned seal up to the end of their reservations, and
/// again once writing succeeds.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("records of {failed} keys could not be written: {first}")]
pub struct TopUpError {
    /// Number of records.
    pub failed: usize,
    /// The error of the first.
    pub first: FileError,
}
