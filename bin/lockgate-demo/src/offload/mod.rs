//! `lockgate demo offload`: a gateway with one port on an emulated network card, in three
//! namespaces.
//!
//! ```text
//! client 10.1.0.2 ── w0 ── emulated card ── lan0 ── gateway ── srv0 ── server 10.2.0.2
//! ```
//! Rules of the port's security group go into the card, which tags packets with them; the gateway
//! believes a tag while that is safe, and judges all else by itself. The card is then slow, small,
//! forgetful, without a link, pulled out, and at last it lies. All of it is emulated: no card is
//! measured. Every packet that a tag decides is judged again. Needs root.
//!
//! Then a tunnel between two gateways, of which the near one has its outer port on such a card: one
//! policy in the modes none, crypto, packet and auto, with captures of both sides of the card:
//!
//! ```text
//!          host                          card          wire
//! none     ESP, sealed ───────────────── passes ────── ESP, sealed
//! crypto   ESP, its text in clear ────── cipher ────── ESP, sealed
//! packet   clear packets ─────────────── all of ESP ── ESP, sealed
//! ```

mod report;
mod scenes;
mod sealed;
mod stage;

use console::failure::Form;
use console::output::{print, print_json};
use netlab::{LabError, interrupt};

use crate::failure::Failure;
use stage::Stage;

/// Runs the demonstration.
pub(crate) fn run(form: Form) -> Result<(), Failure> {
    interrupt::listen()?;
    let mut stage = Stage::build(form)?;
    let outcome = play(&mut stage);
    let report = stage.close(outcome)?;
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&format!("\n{}", report.text())),
    }?;
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// The scenes in their order. One that cannot be played ends the play; a check that does not hold
/// does not.
fn play(stage: &mut Stage) -> Result<(), LabError> {
    scenes::slow(stage)?;
    scenes::tags(stage)?;
    scenes::change(stage)?;
    scenes::forgetful(stage)?;
    scenes::small(stage)?;
    scenes::pulled_out(stage)?;
    scenes::lies(stage)?;
    stage.settle()?;
    sealed::play(stage)
}
