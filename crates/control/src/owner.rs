//! The owners of SAs.

use config::validated::KeySource;

/// The way by which a program puts SAs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyManager {
    /// The API, into peers with `keys = "api"`.
    Api,
    /// The plugin of charon, into peers with `keys = "ike"`.
    Ike,
}

impl KeyManager {
    /// The word of an SA's owner in the API, and of `keys`.
    pub const fn name(self) -> &'static str {
        match self {
            KeyManager::Api => "api",
            KeyManager::Ike => "ike",
        }
    }

    /// Returns whether the keys of a peer come this way.
    pub(crate) fn keys(self, source: &KeySource) -> bool {
        match self {
            KeyManager::Api => *source == KeySource::Api,
            KeyManager::Ike => *source == KeySource::Ike,
        }
    }
}

/// The owner of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaOwner {
    /// A key file.
    File,
    /// A program that put it.
    Program {
        /// The way by which it came.
        manager: KeyManager,
        /// Time of the put, in nanoseconds of the boot clock.
        put_ns: u64,
    },
}

impl SaOwner {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            SaOwner::File => "file",
            SaOwner::Program { manager, .. } => manager.name(),
        }
    }
}
