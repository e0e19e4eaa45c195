//! The end: workers send what is in their rings and close their sockets; programs and guard stay,
//! so that nothing passes, unless the operator wants the ports open.

use config::validated::OnExit;
use control::guard::Guard;
use linux::Mirror;

use crate::control_loop::ShutdownSignal;
use crate::events::Kind;
use crate::failure::Failure;
use crate::state::State;

/// Ends everything but the API.
///
/// # Errors
/// A worker had ended before, or the record of sequence numbers could not be closed: its numbers
/// count as used.
pub(crate) async fn stop(
    state: &mut State,
    mirror: &mut Mirror,
    end: &Result<ShutdownSignal, Failure>,
) -> Result<(), Failure> {
    state.stopping = true;
    state.give_up_put();
    state.show();
    let why = match end {
        Ok(end) => end.name().to_owned(),
        Err(failure) => failure.to_string(),
    };
    state.events.record(Kind::Stopping, "", why, &[]);
    // The guard closes and the programs pass no more, and then Linux forgets.
    state.gateway.carry_nothing().await;
    state.gateway.cards.end();
    let gone = state.gateway.stop().await;
    // No worker changes one any more.
    state.kept_connections.keep(&state.gateway.snapshot, &state.events).await;
    // A daemon that fails is never a reason to open.
    let opens = state.config().node.on_exit == OnExit::Open && end.is_ok();
    if opens {
        open(state, mirror);
    }
    let endpoints = state.endpoints.clone();
    // What waits is stored, whatever becomes of this.
    let _ = tokio::task::spawn_blocking(move || endpoints.close()).await;
    if let Err(error) = state.keys.lock().await.settle() {
        state.events.record(Kind::ReservationFailed, "", error.to_string(), &[]);
    }
    let message = match opens {
        true => "Linux forwards in cleartext",
        false => "the ports stay closed; `lockgate detach` opens them",
    };
    state.events.record(Kind::Stopped, "", message, &[]);
    Ok(gone?)
}

/// Takes programs and guard away: Linux forwards again, in clear.
fn open(state: &mut State, mirror: &mut Mirror) {
    state.gateway.open();
    if let Err(error) = mirror.remove_host_rules() {
        state.events.record(Kind::HostRefused, "", error.to_string(), &[]);
    }
    match Guard::remove() {
        Ok(()) => state.events.record(Kind::Opened, "", "Linux forwards in clear", &[]),
        Err(error) => state.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
    }
}
