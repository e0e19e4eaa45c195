//! Errors of a laboratory.

use std::path::PathBuf;
use std::time::Duration;

/// A reason why a laboratory cannot be built or used further. All but
/// [`NotRoot`](LabError::NotRoot) and [`Missing`](LabError::Missing) mean that something went
/// wrong; these two mean that no laboratory can run here.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces need root.
    #[error("network namespaces need root: run it with sudo")]
    NotRoot,
    /// Programs that are not installed.
    #[error("missing: {}", .0.iter().map(|need| need.text()).collect::<Vec<_>>().join(", "))]
    Missing(Vec<crate::programs::Need>),
    /// One of our own programs is neither beside this one nor in PATH.
    #[error(
        "there is no {program} beside this program and none in PATH: build it, or set {variable}"
    )]
    NotBuilt {
        /// Its name.
        program: &'static str,
        /// Environment variable that can hold its path.
        variable: &'static str,
    },
    /// A program cannot be started.
    #[error("cannot start {command}: {error}")]
    Start {
        /// The command line.
        command: String,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A program ran and failed.
    #[error("{command}: {status}: {}", .stderr.trim())]
    Failed {
        /// The command line.
        command: String,
        /// The program's exit status.
        status: std::process::ExitStatus,
        /// The program's output to standard error.
        stderr: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not end within {:.1} s{}", .limit.as_secs_f64(), said(.output))]
    TimedOut {
        /// A program, or what was waited for.
        what: String,
        /// The time that it had.
        limit: Duration,
        /// Output that the program had printed by then.
        output: String,
    },
    /// A program ended that should have stayed.
    #[error("{command} has ended{}", said(.output))]
    Ended {
        /// The command line.
        command: String,
        /// Output that the program had printed by then.
        output: String,
    },
    /// A program's answer is not what was asked for.
    #[error("{command} answers something unexpected: {}", .answer.trim())]
    Answer {
        /// The command line.
        command: String,
        /// The answer.
        answer: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A socket or a namespace refuses an operation.
    #[error("{what}: {error}")]
    Socket {
        /// The operation.
        what: &'static str,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A namespace has no interface of this name.
    #[error("there is no interface {interface} in {namespace}")]
    NoInterface {
        /// The namespace.
        namespace: String,
        /// The interface.
        interface: String,
    },
    /// A capture cannot be read.
    #[error("{0}")]
    Capture(#[from] io::CaptureError),
    /// An XDP program of the laboratory cannot be loaded or attached.
    #[error("{0}")]
    Bpf(#[from] bpf::BpfError),
    /// The kernel dropped packets before the capture had them: it proves nothing.
    #[error("the capture {name} is not complete: the kernel dropped {packets} packets of it")]
    Incomplete {
        /// Name of the capture.
        name: String,
        /// Packets.
        packets: u64,
    },
    /// Something that a step needs was not started.
    #[error("{0} does not run")]
    NotRunning(&'static str),
    /// Ctrl-C, or a signal that asks to end.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// Returns a function for `map_err` that names the file at fault.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> LabError {
        move |error| LabError::File { path: path.into(), error }
    }

    /// Returns a function for `map_err` that names the failed operation on a socket or a namespace.
    pub fn socket(what: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
        move |error| LabError::Socket { what, error }
    }
}

/// The last lines of what a program said, behind a colon.
fn said(output: &str) -> String {
    let lines: Vec<&str> = output.trim().lines().collect();
    match lines.as_slice() {
        [] => String::new(),
        lines => format!("; it said: {}", lines[lines.len().saturating_sub(16)..].join(" | ")),
    }
}
