//! `lockgate demo overlay`: two compute nodes and one wing, the gateway of their virtual networks,
//! in four namespaces.
//!
//! ```text
//! node-1 (192.0.2.11) ──┐                        10.0.0.0/24: network 10, without groups
//! node-2 (192.0.2.12) ── fabric ── wing          11.0.0.0/24: network 11, a group in audit mode
//! ```
//! Each node has tenants in both networks, behind VXLAN devices that know nothing but the wing
//! (192.0.2.1). The kernel tier answers the first network. The group of the second is in audit
//! mode: it would deny everything, and workers count that, so all packets go through AF_XDP. Needs
//! root.

mod full;
mod lapse;
mod losses;
mod protect;
mod reading;
mod report;
mod sets;
mod stage;
mod sweep;

use console::failure::Form;
use console::output::{print, print_json};
use netlab::{LabError, interrupt};

use crate::failure::Failure;
use stage::Stage;

/// Seconds of each throughput measurement where the command line says nothing.
const DEFAULT_SECONDS: u32 = 2;
/// Longest duration that is accepted.
const MAX_SECONDS: u64 = 600;

/// Runs the demonstration.
pub(crate) fn run(seconds: u64, form: Form) -> Result<(), Failure> {
    interrupt::listen()?;
    let seconds = match seconds {
        0 => DEFAULT_SECONDS,
        // At most MAX_SECONDS: it fits.
        seconds => seconds.min(MAX_SECONDS) as u32,
    };
    let mut stage = Stage::build(form)?;
    let outcome = play(&mut stage, seconds);
    let report = stage.close(outcome)?;
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&format!("\n{}", report.text())),
    }?;
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// The scenes in their order. One that cannot be played ends the play; a check that does not hold
/// does not.
fn play(stage: &mut Stage, seconds: u32) -> Result<(), LabError> {
    stage.start()?;
    sets::split(stage)?;
    sets::wing_itself(stage)?;
    sets::both_at_once(stage, seconds)?;
    full::more_than_fit(stage)?;
    protect::protect(stage)?;
    lapse::hang(stage)?;
    lapse::kill(stage)?;
    stage.settle()
}
