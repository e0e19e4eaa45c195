//! Failures of a demonstration, and the exit codes they lead to.

use std::path::PathBuf;

use config::{ConfigErrors, KeyFileError};
use console::failure::Failed;
use console::line::LineError;
use console::output::OutputError;
use io::CaptureError;
use ipsec::SelfTestError;
use netlab::LabError;
use replay::ReplayError;

/// A reason why a demonstration did not succeed. Its text is for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A check does not hold; the answer, already printed, says which.
    #[error("")]
    Bad,
    /// The command line is not parsed.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(#[from] Usage),
    /// The answer cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The ciphers give wrong results on this machine.
    #[error("{0}; nothing was sealed")]
    SelfTest(#[from] SelfTestError),
    /// A configuration of the laboratory is refused.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// A key file cannot be made.
    #[error("{0}")]
    Keys(#[from] KeyFileError),
    /// A capture cannot be read or written.
    #[error("{0}")]
    Capture(#[from] CaptureError),
    /// Captures were not replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A file or directory cannot be made, read or removed.
    #[error("{}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A laboratory in network namespaces cannot be built or went wrong.
    #[error("{0}")]
    Laboratory(#[from] LabError),
}

/// A mistake of a command line that the parser of options does not find.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Usage {
    /// A directory to be filled that is not empty.
    #[error("{}: is not empty; name a new directory", .directory.display())]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
    },
    /// A directory to be filled that others own, or may write to.
    #[error(
        "{}: is no directory, or not one that only we can write to; name a new one",
        .directory.display()
    )]
    NotOurs {
        /// The directory.
        directory: PathBuf,
    },
    /// An option of another demonstration.
    #[error("{option} is an option of `lockgate demo {demo}` only")]
    OtherDemo {
        /// The option.
        option: &'static str,
        /// The demonstration that it is an option of.
        demo: &'static str,
    },
}

impl Failed for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Line(error) => error.exit_code(),
            _ => 1,
        }
    }

    fn of_output(&self) -> Option<&OutputError> {
        match self {
            Failure::Output(error) | Failure::Line(LineError::Output(error)) => Some(error),
            _ => None,
        }
    }
}

impl Failure {
    /// Returns a function for `map_err` that blames this file.
    pub(crate) fn file(file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Failure {
        move |error| Failure::File { file: file.into(), error }
    }
}
