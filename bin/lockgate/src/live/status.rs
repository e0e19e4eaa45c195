//! `lockgate status`, and `lockgate` alone: the gateway on one screen.

use super::{LiveError, Socket, show};
use crate::failure::Failure;

/// Show the gateway on one screen: ports, peers, rates, drops, warnings
///
/// Rates are means over the last 5 seconds. "heard" is the time since the last authentic packet of
/// a peer. "in" and "out" count its inner packets: bits each second, and bytes since the daemon
/// started. "lost" is the part of the peer's sequence numbers of the last minute whose packets
/// never came, or came too late for the replay window. `lockgate` alone shows the same.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repeat every SECONDS (2) until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: Option<u32>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    show::run(&show::Args::status(args.watch, args.json), socket)
}

/// Asks and prints, for a user who named no command.
pub(crate) fn run_alone(socket: &Socket) -> Result<(), Failure> {
    show::run(&show::Args::status(None, false), socket).map_err(|failure| match failure {
        Failure::Connect(error) => LiveError::Alone(error).into(),
        failure => failure,
    })
}
