//! `lockgate demo`: laboratories that show what Lockgate does, and check it.

mod compare;
mod laboratory;
mod replay;
mod report;
mod traffic;

use std::path::PathBuf;

use crate::failure::Failure;

/// Builds a laboratory, sends traffic through it, and checks what comes out. Ends with 0 only if
/// every check holds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which one
    #[arg(value_enum, default_value = "replay")]
    name: Name,
    /// Go on, with new keys and new traffic, for so many seconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u64,
    /// Keep configurations, keys and captures of the last round in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Three gateways, a hub and two spokes, as replays of captures; needs no privileges
    Replay,
}

/// Runs a demonstration.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.name {
        Name::Replay => replay::run(args.seconds, args.keep.as_deref(), args.json),
    }
}
