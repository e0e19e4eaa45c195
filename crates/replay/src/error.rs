//! Errors of a replay.

use std::path::PathBuf;

use config::{ConfigErrors, KeyFileError};
use control::{CompileError, QuestionError};
use io::{CaptureError, LinkType};

/// A reason why captures were not replayed. Nothing was written to its place, unless the operating
/// system failed at that very step.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A key file is wrong; its author is at fault.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The configuration cannot be compiled.
    #[error("{name}: {error}")]
    Compile {
        /// The configuration.
        name: String,
        /// The reason.
        error: CompileError,
    },
    /// A capture cannot be read or written.
    #[error("{0}")]
    Capture(#[from] CaptureError),
    /// Keys cannot be drawn or written.
    #[error("{0}")]
    Keys(#[from] KeyFileError),
    /// A file cannot be made, removed or moved.
    #[error("{}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A capture whose packets have another link type than its port.
    #[error(
        "{}: its packets begin with {}; port {port} takes {}",
        .file.display(), link_text(*.found), link_text(*.expected)
    )]
    WrongLink {
        /// The capture.
        file: PathBuf,
        /// The port that it should enter by.
        port: String,
        /// The port's link type.
        expected: LinkType,
        /// The capture's link type.
        found: LinkType,
    },
    /// An output that exists and is not a regular file.
    #[error("{}: is not a regular file and is not replaced", .file.display())]
    NotRegular {
        /// The output.
        file: PathBuf,
    },
    /// An output would overwrite an input.
    #[error("{}: is read by this command and would be overwritten", .file.display())]
    OverwritesInput {
        /// The file.
        file: PathBuf,
    },
    /// No port has the name of an input.
    #[error("{0}")]
    Question(#[from] QuestionError),
    /// An input without a port's name, and no port for it.
    #[error("no port is protected: name the ingress port with --in PORT=FILE")]
    NoProtectedPort,
    /// An output without a file name.
    #[error("the output needs the name of a file")]
    NoFileName,
}

impl ReplayError {
    /// Returns whether the caller named what makes no sense, rather than a file being bad.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            ReplayError::OverwritesInput { .. }
                | ReplayError::Question(_)
                | ReplayError::NoProtectedPort
                | ReplayError::NoFileName
        )
    }

    /// Returns a function for `map_err` that names the file at fault.
    pub(crate) fn file(file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> ReplayError {
        move |error| ReplayError::File { file: file.into(), error }
    }
}

fn link_text(link: LinkType) -> &'static str {
    match link {
        LinkType::Ethernet => "an Ethernet header",
        LinkType::Raw => "an IP header",
    }
}
