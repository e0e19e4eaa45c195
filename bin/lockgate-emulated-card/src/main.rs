//! An emulated network card as a process of its own. Everything that it prints says `emulated`.
//!
//! ```text
//!                 ┌────────────── this process ──────────────┐
//!  wire (a veth) ─┤ packet socket ─▶ card: tag, queue ─▶ TAP ├─ netdev of a port of Lockgate's
//!                 │               ◀─────────────────────     │  (a header with the tag in front)
//!                 └───────▲──────────────────────▲───────────┘
//!                socket: items, events   socket.operator: faults, link, unplug
//! ```
//!
//! A card that ended with the daemon would prove nothing about what a card keeps while the daemon
//! is away, so it is a process. Frames from the wire get a header each (`wire::card_header`), which
//! the host's XDP program takes away. The host's frames go to the wire as they are, or sealed if
//! the host has written the header of an SA in front of them:
//!
//! ```text
//! wire ─▶ ESP of an SA of the card ─▶ the frame in clear, header with the SA's tag  ─▶ host
//!         anything else            ─▶ as it came, header with a rule's tag or none  ─▶ host
//! host ─▶ header with an SA's tag  ─▶ sealed, or dropped if the card has no such SA ─▶ wire
//!         another header           ─▶ dropped
//!         no header                ─▶ as it is                                      ─▶ wire
//! ```
//!
//! Sealed, a frame is longer: the MTU of the wire bounds it, as that of the host's netdev bounds
//! the frame with its header. What does not fit the wire is dropped and counted (`wire_refused`).
//!
//! | module | what |
//! |---|---|
//! | `arguments` | the command line |
//! | `service` | the loop: one thread, which sleeps until something comes |
//! | `station` | the card with its netdevs: frames both ways |
//! | `wire_socket` | the packet socket on the wire |
//! | `host` | connections of hosts: rules and SAs in, events out |
//! | `operator` | commands of an operator, and his connections |
//! | `lines` | a connection that brings and takes lines |
//! | `capture` | the host's view of the traffic, as a file |
//! | `counts` | frames by what became of them |
//!
//! Not here: addresses, MTU and state of the netdevs, which are the laboratory's. The wire carries
//! frames without VLAN tags; tagged ones are dropped (the kernel hands their tags over apart).
#![forbid(unsafe_code)]

mod arguments;
mod capture;
mod counts;
mod failure;
mod host;
mod lines;
mod operator;
mod service;
mod station;
mod wire_socket;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use console::failure::{Form, tell};
use console::line::{LineError, parsed};
use console::output::print_line;

use arguments::Arguments;
use failure::Failure;
use service::Service;

/// Time that the card has for an operator's command.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(&failure, Form::Text),
    }
}

fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let Some(matches) = parsed(&mut Arguments::command(), args)? else { return Ok(()) };
    let arguments = Arguments::from_arg_matches(&matches).map_err(LineError::Refused)?;
    match &arguments.tell {
        Some(socket) => command(socket, &arguments.command),
        None => Service::open(&arguments)?.run(),
    }
}

/// Gives a running card a command, and prints its answer.
fn command(socket: &Path, words: &[String]) -> Result<(), Failure> {
    let socket = operator::socket_of(socket);
    let ask = || {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{}\n", words.join(" ")).as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|source| Failure::File { path: socket.clone(), source })?;
    let value: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    match value.get("error").and_then(serde_json::Value::as_str) {
        Some(refused) => Err(Failure::Refused { text: refused.into() }),
        None => {
            print_line(answer.trim_end())?;
            Ok(())
        }
    }
}
