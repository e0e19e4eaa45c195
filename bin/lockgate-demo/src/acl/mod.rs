//! `lockgate demo acl`: security groups between a client and a server, in six namespaces.
//!
//! A rule is shown by what becomes of packets with it and without it: each scene asks the same
//! services both times, and compares Lockgate's counters with the kernel's counts of what was
//! sent. Needs root.

mod changes;
mod connections;
mod groups;
mod rates;
mod report;
mod scenes;
mod stage;
mod traffic;

use console::failure::Form;
use console::output::{print, print_json};
use netlab::{LabError, interrupt};

use crate::failure::Failure;
use stage::Stage;

/// Seconds of each throughput measurement where the command line says nothing.
const DEFAULT_SECONDS: u32 = 1;
/// Longest duration that is accepted.
const MAX_SECONDS: u64 = 600;

/// Plays a part of the demonstration.
type Scene = fn(&mut Stage) -> Result<(), LabError>;

/// The scenes in their order, before [`rates::compare`].
const SCENES: [Scene; 13] = [
    scenes::no_groups,
    scenes::permit_some,
    scenes::order,
    scenes::audit,
    scenes::groups_out,
    connections::reflect,
    connections::rule_goes,
    connections::port_reuse,
    changes::set_of_a_file,
    changes::under_a_stream,
    connections::restart,
    connections::flood,
    scenes::tunnel,
];
/// The number of scenes.
pub(crate) const LAST_SCENE: u32 = SCENES.len() as u32 + 1;

/// Runs the demonstration: the first `scenes` of its scenes.
pub(crate) fn run(seconds: u64, scenes: u32, form: Form) -> Result<(), Failure> {
    interrupt::listen()?;
    let seconds = match seconds {
        0 => DEFAULT_SECONDS,
        // At most MAX_SECONDS: it fits.
        seconds => seconds.min(MAX_SECONDS) as u32,
    };
    let mut stage = Stage::build(form)?;
    let outcome = play(&mut stage, seconds, scenes);
    let report = stage.close(outcome)?;
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&format!("\n{}", report.text())),
    }?;
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// A scene that cannot be played ends the play; a check that does not hold does not.
fn play(stage: &mut Stage, seconds: u32, scenes: u32) -> Result<(), LabError> {
    for scene in SCENES.iter().take(scenes as usize) {
        scene(stage)?;
        stage.report.scenes += 1;
    }
    if scenes >= LAST_SCENE {
        rates::compare(stage, seconds)?;
        stage.report.scenes += 1;
    }
    scenes::settle(stage)
}
