//! `lockgate demo gateways`: two daemons, two hosts and the wire between them, in five namespaces.
//!
//! ```text
//! host-a ── gw-a ── wire ── gw-b ── host-b
//! ```
//! Forwarding is on in the gateways and the kernel's routes would work: the control run without
//! Lockgate shows that, and shows that the capture would see a leak. Needs root.

mod lifetime;
mod report;
mod restart;
mod scenes;
mod stage;
mod wireguard;

use std::path::Path;

use console::failure::Form;
use console::output::{print, print_json};
use netlab::{LabError, interrupt};

use crate::failure::Failure;

use scenes::Seconds;
use stage::Stage;

/// Seconds of each throughput measurement where the command line says nothing.
const DEFAULT_SECONDS: u32 = 4;
/// Longest duration that is accepted.
const MAX_SECONDS: u64 = 600;

/// Another implementation to run in the same namespaces: `NAME=PATH`.
#[derive(Clone, Debug)]
pub(crate) struct Rival {
    program: std::path::PathBuf,
}

impl std::str::FromStr for Rival {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Rival, &'static str> {
        match text.split_once('=') {
            Some(("wireguard-go", path)) if !path.is_empty() => Ok(Rival { program: path.into() }),
            _ => Err("write wireguard-go=PATH"),
        }
    }
}

/// Runs the demonstration.
pub(crate) fn run(seconds: u64, rival: Option<&Rival>, form: Form) -> Result<(), Failure> {
    interrupt::listen()?;
    let seconds = match seconds {
        0 => DEFAULT_SECONDS,
        // At most MAX_SECONDS: it fits.
        seconds => seconds.min(MAX_SECONDS) as u32,
    };
    let mut stage = Stage::build(form)?;
    let outcome = play(&mut stage, Seconds(seconds), rival.map(|rival| rival.program.as_path()));
    let report = stage.close(outcome)?;
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&format!("\n{}", report.text())),
    }?;
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// The scenes in their order. One that cannot be played ends the play; a check that does not hold
/// does not.
fn play(stage: &mut Stage, seconds: Seconds, rival: Option<&Path>) -> Result<(), LabError> {
    scenes::control_run(stage)?;
    if let Some(program) = rival {
        wireguard::measure(stage, program, seconds)?;
    }
    scenes::start_daemons(stage)?;
    scenes::reach(stage)?;
    scenes::bounded_udp(stage, seconds)?;
    scenes::rates(stage, seconds)?;
    scenes::reload(stage)?;
    lifetime::rekey(stage, seconds)?;
    lifetime::hard_limit(stage)?;
    let captured = restart::kill_and_restart(stage)?;
    restart::replay(stage, &captured)?;
    scenes::port_down_and_up(stage)?;
    scenes::settle(stage)
}
