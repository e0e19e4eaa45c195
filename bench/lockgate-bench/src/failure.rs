//! Failures of the bench program, and the exit codes they lead to.

use console::failure::Failed;
use console::line::LineError;
use console::output::OutputError;
use ipsec::SelfTestError;

use crate::BenchError;

/// A reason why there are no figures. Its text is for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line is not parsed.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The ciphers give wrong results on this machine.
    #[error("{0}; nothing was sealed")]
    SelfTest(#[from] SelfTestError),
    /// A bench gives no figures.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

impl Failed for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Line(error) => error.exit_code(),
            Failure::Bench(BenchError::Argument(_)) => 2,
            _ => 1,
        }
    }

    fn of_output(&self) -> Option<&OutputError> {
        match self {
            Failure::Line(LineError::Output(error)) => Some(error),
            _ => None,
        }
    }
}
