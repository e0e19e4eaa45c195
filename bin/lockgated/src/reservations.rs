//! Keeps sequence numbers reserved ahead of their use, by a task of its own: orders of the control
//! thread can take longer than what is reserved lasts, which is two seconds at 1 Mpps.

use std::sync::Arc;

use keystate::{KeyState, TOP_UP_INTERVAL};
use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::events::{Events, Kind};

/// The state of all keys: the control thread takes counters and windows of it, the task tops it
/// up. Who waits for it is served in turn.
pub(crate) type Keys = Arc<Mutex<KeyState>>;

/// Tops reservations up, for ever, and publishes the reason whenever that is refused.
pub(crate) async fn keep_ahead(keys: Keys, refusal: watch::Sender<Option<String>>, events: Events) {
    let mut clock = interval(TOP_UP_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let refused = {
            let mut keys = keys.lock().await;
            end_if_cut(&keys);
            keys.top_up().err().map(|error| error.to_string())
        };
        if let Some(error) = &refused {
            events.record(Kind::ReservationFailed, "", error.as_str(), &[]);
        }
        refusal.send_if_modified(|last| std::mem::replace(last, refused.clone()) != refused);
    }
}

/// Ends the process at once if somebody cut the run file: nothing of it is to be touched again, in
/// the order of an end neither. Ports stay closed.
fn end_if_cut(keys: &KeyState) {
    if let Some(text) = keys.cut_short() {
        eprintln!("lockgated: {text}");
        std::process::exit(keystate::RUN_FILE_CUT.into());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keystate::RESERVATION_STEP;
    use tokio::sync::{Semaphore, oneshot};

    use super::*;
    use crate::orders::Order;
    use crate::test_lab::{PEER, TestLab};

    #[tokio::test]
    async fn an_sa_does_not_run_out_of_numbers_while_the_control_thread_does_something_long() {
        let TestLab { folder: _folder, machine, mut state, events, .. } = TestLab::new(PEER);
        let outbound = state.gateway.compiled.sad.outbound().next().unwrap();
        let (counter, guard) = (outbound.sequence.clone(), state.gateway.guard.clone());
        let (refusal, _) = watch::channel(None);
        tokio::spawn(keep_ahead(state.keys.clone(), refusal, events));
        // A guard that nobody lets be put up yet.
        let held_up = Arc::new(Semaphore::new(0));
        machine.world().held_up = Some(held_up.clone());
        let (reply, _) = oneshot::channel();
        let order = Order::PutUp { guard, revision: state.revision, reply };
        let long = tokio::spawn(async move { state.obey(order).await });
        while machine.world().guards_waiting == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        counter.draw(RESERVATION_STEP as u32).whole().unwrap();
        let has_more = async {
            while counter.draw(1).whole().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), has_more).await.unwrap();
        assert!(!long.is_finished());
        held_up.add_permits(1);
        long.await.unwrap().unwrap();
    }
}
