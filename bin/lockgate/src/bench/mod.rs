//! `lockgate bench`: figures that can be had again (DESIGN §5, "Benches are honest or worthless").
//!
//! The real walk, through ports in memory, on one core, all checks and counters on. A lap in which
//! a packet was dropped, or an output was wrong, stops the bench: there is no figure then.
//!
//! | file | what |
//! |---|---|
//! | `esp` | `bench esp`: its rows, the table, the JSON |
//! | `lap` | one lap of one row, and when it does not count |
//! | `scene` | the gateway, its keys, its traffic |
//! | `check` | what must be true of an output |
//! | `other_cipher` | ESP by another hand |
//! | `shares` | where the walk's instructions go, by valgrind |
//! | `measure` | clocks, median, spread, random order |
//! | `machine` | what it was measured on |
//!
//! Not here: AF_XDP. On a copy-mode port the same core carries 7–10 Gbit/s.

mod check;
mod esp;
mod lap;
mod machine;
mod measure;
mod other_cipher;
mod scene;
mod shares;

use std::path::PathBuf;

pub(crate) use esp::EspArguments;

/// Measure
#[derive(clap::Args, Debug)]
pub(crate) struct BenchArguments {
    /// Which bench.
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// ESP in tunnel mode, and forwarding without it: Mpps, Gbit/s, ns a packet.
    Esp(EspArguments),
}

/// Why a bench gives no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// An argument does not fit another.
    #[error("{0}")]
    Argument(ArgumentError),
    /// A lap does not count.
    #[error("{case}: {error}; there are no figures")]
    Lap {
        /// The row it was a lap of.
        case: String,
        /// What was wrong with it.
        error: LapRefused,
    },
    /// The JSON cannot be written.
    #[error("{}: {error}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Valgrind cannot be run.
    #[error("cannot run valgrind: {0}; it is in the package of that name")]
    Valgrind(std::io::Error),
    /// What valgrind ran failed.
    #[error("under valgrind: {0}")]
    UnderValgrind(std::process::ExitStatus),
    /// Valgrind counted nothing: the timed span was not found by its name.
    #[error("valgrind counted no instruction of the timed span")]
    NothingCounted,
}

/// Why a lap was refused.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct LapRefused(lap::LapError);

/// Arguments that do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    /// No packet of the family has that size, or it is not sealed whole.
    #[error("--size {size}: an IPv{family} packet of this bench has {least} to {most} bytes")]
    Size {
        /// Bytes asked for.
        size: usize,
        /// IP version.
        family: u8,
        /// Fewest bytes.
        least: usize,
        /// Most bytes.
        most: usize,
    },
    /// Too few laps for a median that means something, or too few or many flows.
    #[error("{name} {found}: from {least} to {most}")]
    Range {
        /// The option.
        name: &'static str,
        /// Its value.
        found: usize,
        /// Least value.
        least: usize,
        /// Largest value.
        most: usize,
    },
}

/// Runs a bench.
///
/// # Errors
/// [`BenchError`]: nothing was measured, or what was measured means nothing.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), BenchError> {
    match &arguments.bench {
        Bench::Esp(arguments) => esp::run(arguments),
    }
}
