//! `lockgate demo ike`: keys from IKE for two gateways, each with strongSwan's charon beside it, in
//! five namespaces.
//!
//! ```text
//!           charon ── IKE (UDP 500) ── charon
//!             │                          │
//! host-a ── gw-a ── wire (ESP alone) ── gw-b ── host-b
//! ```
//! First with a pre-shared key, then with certificates; under changes of keys and kills of either
//! side; with 300 CHILD_SAs; with a gateway that moves. Two others judge it: tshark, which decrypts
//! a capture with the keys of charon's log, and strongSwan's own ESP in user space as the peer.
//! Needs root and strongSwan.

mod certificates;
mod children;
mod crashes;
mod decrypted;
mod elsewhere;
mod libipsec;
mod moves;
mod plan;
mod report;
mod scenes;
mod stage;

use console::failure::Form;
use console::output::{print, print_json};
use netlab::{LabError, interrupt};

use crate::failure::Failure;
use stage::Stage;

/// Plays a part of the demonstration.
type Scene = fn(&mut Stage) -> Result<(), LabError>;

/// The scenes in their order.
const SCENES: [Scene; 8] = [
    scenes::first_packet,
    scenes::new_keys,
    crashes::kills,
    certificates::certificates,
    children::many,
    decrypted::by_tshark,
    libipsec::peer,
    moves::mobike,
];
/// The number of scenes.
pub(crate) const LAST_SCENE: u32 = SCENES.len() as u32;

/// Runs the demonstration: the first `scenes` of its scenes.
pub(crate) fn run(scenes: u32, form: Form) -> Result<(), Failure> {
    interrupt::listen()?;
    let mut stage = Stage::build(form)?;
    let outcome = play(&mut stage, scenes);
    let report = stage.close(outcome)?;
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&format!("\n{}", report.text())),
    }?;
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// A scene that cannot be played ends the play, or notes that it is skipped; a check that does not
/// hold does not.
fn play(stage: &mut Stage, scenes: u32) -> Result<(), LabError> {
    scenes::control_run(stage)?;
    scenes::start(stage)?;
    for scene in SCENES.iter().take(scenes as usize) {
        scene(stage)?;
        stage.count_acquires()?;
        stage.report.scenes += 1;
    }
    stage.settle()
}
