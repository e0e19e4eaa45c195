//! Errors of making a scene.

use dataplane::SnapshotError;
use ipsec::SaError;
use ipsec::cipher::BackendKind;
use policy::SpdError;

/// Reasons why the gateway of a case cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// This machine does not have the library.
    #[error("this machine does not have {}", .0.name())]
    NoBackend(BackendKind),
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
    /// The scene's SA was refused: a mistake of the scene.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// The scene's policies were refused: a mistake of the scene.
    #[error(transparent)]
    Spd(#[from] SpdError),
    /// The scene's parts do not fit: a mistake of the scene.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}
