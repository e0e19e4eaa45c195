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

/// Tops reservations up, for ever, and says for what reason that is refused, if it is.
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
    use crate::gateway::simulated::{Started, started, view};
    use crate::netdev::Claim;
    use crate::orders::Order;
    use crate::revisions::Revisions;
    use crate::state::{Beginning, State};
    use crate::workers::Workers;

    const CONFIG: &str = r#"
[node]
name = "gw"
state_dir = "STATE"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a.keys"
manual = "laboratory"
suite = "aes-128-gcm"
"#;

    #[tokio::test]
    async fn an_sa_does_not_run_out_of_numbers_while_the_control_thread_does_something_long() {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!("out 0x1001 {}\nin 0x2001 {}\n", "01".repeat(20), "02".repeat(20));
        config::write_key_file(&folder.path().join("a.keys"), &lines).unwrap();
        let text = CONFIG.replace("STATE", &folder.path().display().to_string());
        let loaded = config::parse(&text, "test").unwrap().load_keys(folder.path()).unwrap();
        let Started { gateway, machine, keys, .. } = started(&loaded, view(), folder.path());
        let counter = gateway.compiled.sad.outbound().next().unwrap().sequence.clone();
        let guard = gateway.guard.clone();
        let events = Events::new();
        let mut state = State::new(Beginning {
            gateway,
            workers: Workers::new(Vec::new()),
            file: folder.path().join("gw.toml"),
            base: folder.path().into(),
            revisions: Revisions::open(folder.path()).unwrap(),
            keystate: keys,
            events: events.clone(),
            namespace: Claim::Squatted,
        });
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
