//! Errors that end the daemon or keep it from starting.

use std::path::PathBuf;

use config::ConfigErrors;
use control::guard::{GuardError, UnwritableName};
use control::{CompileError, PortRefusal};
use dataplane::SnapshotError;
use io::TunError;
use ipsec::SelfTestError;
use keystate::KeyStateError;
use linux::{HostPortError, MirrorError, NetlinkError};
use xsk::XskError;

use crate::cache_memory::CacheError;
use crate::hardening::HardeningError;
use crate::netdev::NetdevError;
use crate::unconfirmed::StartConfigurationError;
use crate::worker::WorkerGone;

/// Reason why the daemon does not start, or ends. Its text is for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration or a key file is wrong; its author is at fault.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The configuration was never confirmed, and the one before it is lost.
    #[error("{0}")]
    NeverConfirmed(#[from] crate::unconfirmed::NothingBefore),
    /// A task without which the daemon cannot go on has ended: a mistake in the program.
    #[error("a task of the daemon has ended{}", cause(.error.as_ref()))]
    TaskEnded {
        /// Its panic, if it had one.
        error: Option<tokio::task::JoinError>,
    },
    /// The configuration cannot be compiled.
    #[error("{0}")]
    Compile(#[from] CompileError),
    /// Compiled parts do not fit the kernel's view.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// The ciphers give wrong results on this machine.
    #[error("{0}; nothing was started")]
    SelfTest(#[from] SelfTestError),
    /// Privileges are missing.
    #[error("{how}")]
    Privileges {
        /// The missing privileges, and how to get them.
        how: String,
    },
    /// The process cannot be hardened, or the kernel is too old.
    #[error("{0}")]
    Hardening(#[from] HardeningError),
    /// Ports that cannot be taken.
    #[error("{}", lines(.0))]
    Ports(Vec<PortRefusal>),
    /// A directory cannot be made.
    #[error("{}: {error}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The record of sequence numbers.
    #[error("{0}")]
    KeyState(#[from] KeyStateError),
    /// The store of endpoints.
    #[error("{0}")]
    Store(#[from] store::StoreError),
    /// Netlink.
    #[error("{0}")]
    Mirror(#[from] MirrorError),
    /// The guard.
    #[error("{0}")]
    Guard(#[from] GuardError),
    /// The guard.
    #[error("{0}")]
    GuardName(#[from] UnwritableName),
    /// Netlink, asked for something.
    #[error("{0}")]
    Netlink(#[from] NetlinkError),
    /// The host port's netdev.
    #[error("{0}")]
    HostPort(#[from] HostPortError),
    /// The host port.
    #[error("{0}")]
    Tun(#[from] TunError),
    /// Frame memory.
    #[error("{0}")]
    Memory(XskError),
    /// Memory for the flow caches.
    #[error("{0}")]
    Cache(#[from] CacheError),
    /// A netdev.
    #[error("{0}")]
    Device(#[from] NetdevError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// A worker has ended.
    #[error("{0}")]
    Worker(#[from] WorkerGone),
    /// The API's socket.
    #[error("{0}")]
    Api(#[from] crate::api::ListenError),
    /// Signals cannot be received.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
}

impl From<StartConfigurationError> for Failure {
    fn from(none: StartConfigurationError) -> Failure {
        match none {
            StartConfigurationError::Config(errors) => errors.into(),
            StartConfigurationError::Lost(nothing) => nothing.into(),
        }
    }
}

fn lines<T: std::fmt::Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns a panic as the end of a sentence.
fn cause(error: Option<&tokio::task::JoinError>) -> String {
    error.map_or(String::new(), |error| format!(": {error}"))
}
