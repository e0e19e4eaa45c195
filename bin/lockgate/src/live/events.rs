//! `lockgate events`: what happened lately, and with `-f` what happens.

use std::io::Write;

use api::v1;

use super::{AnswerError, Ask, LiveError, Socket};
use crate::failure::Failure;

/// Print what happened, and what happens
///
/// Prints events as JSON, one a line: the last ones that the daemon keeps and, with --follow, those
/// to come until it is interrupted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
}

/// Prints events as they come; each line is there when its event is.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::EventsRequest { follow: args.follow };
    let mut stream = ask.call(async |client| client.events(request).await)?;
    while let Some(event) = ask.runtime.block_on(stream.message()).map_err(AnswerError)? {
        let mut line = serde_json::to_string(&event).expect("no map key is anything but text");
        line.push('\n');
        let mut out = std::io::stdout().lock();
        // Nobody reads any more: that is an end like another.
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
    match args.follow {
        true => Err(LiveError::StreamEnded.into()),
        false => Ok(()),
    }
}
