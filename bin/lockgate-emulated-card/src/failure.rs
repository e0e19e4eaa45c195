//! The reasons why the program ends without success.

use std::path::PathBuf;

use console::failure::Failed;
use console::line::LineError;
use console::output::OutputError;
use io::{Defect, TunError};

/// A reason why the program ends without success. The person at the terminal is at fault, or the
/// place lacks something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line is not parsed.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Nothing can be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The card refuses a command.
    #[error("emulated card: {text}")]
    Refused {
        /// Its answer.
        text: Box<str>,
    },
    /// The netdev for the host cannot be made.
    #[error("emulated card: {0}")]
    Tap(#[from] TunError),
    /// No netdev of that name is there to be the wire.
    #[error(
        "emulated card: there is no netdev {name} to be the wire: make it first, such as a veth"
    )]
    NoWire {
        /// The name.
        name: String,
    },
    /// The wire's packet socket, or a wait, failed.
    #[error("emulated card: {call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Another process serves on the socket.
    #[error("emulated card: another process serves on {path}", path = .path.display())]
    Served {
        /// The socket.
        path: PathBuf,
    },
    /// A socket or a file cannot be used.
    #[error("emulated card: {path}: {source}", path = .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The capture cannot be written.
    #[error("emulated card: the capture: {0}")]
    Capture(#[from] Defect),
}

impl Failed for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Line(line) => line.exit_code(),
            _ => 1,
        }
    }

    fn of_output(&self) -> Option<&OutputError> {
        match self {
            Failure::Line(LineError::Output(error)) | Failure::Output(error) => Some(error),
            _ => None,
        }
    }
}
