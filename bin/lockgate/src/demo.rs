//! `lockgate demo`: laboratories that show what Lockgate does, and check it.

mod compare;
mod gateways;
mod laboratory;
mod replay;
mod report;
mod traffic;

use std::path::PathBuf;

use crate::failure::{Failure, Usage};

/// Show what Lockgate does in a laboratory, and check it
///
/// Builds a laboratory, sends traffic through it, and checks what comes out. Ends with 0 only if
/// every check holds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which one
    #[arg(value_enum, default_value = "replay")]
    name: Name,
    /// replay: go on, with new keys and new traffic, for so many seconds; gateways: measure each
    /// throughput for so many seconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u64,
    /// replay: keep configurations, keys and captures of the last round in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// gateways: run this program too, between the same gateways, and show its figures beside ours
    #[arg(long, value_name = "wireguard-go=PATH")]
    peer: Option<gateways::Rival>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Two gateways with their hosts in five namespaces, real traffic over AF_XDP; needs root
    Gateways,
    /// Three gateways, a hub and two spokes, as replays of captures; needs no privileges
    Replay,
}

/// Runs a demonstration.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.name {
        Name::Gateways if args.keep.is_some() => {
            Err(Usage::OtherDemo { option: "--keep", demo: "replay" }.into())
        }
        Name::Gateways => gateways::run(args.seconds, args.peer.as_ref(), args.json),
        Name::Replay if args.peer.is_some() => {
            Err(Usage::OtherDemo { option: "--peer", demo: "gateways" }.into())
        }
        Name::Replay => replay::run(args.seconds, args.keep.as_deref(), args.json),
    }
}
