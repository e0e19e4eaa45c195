//! What follows from a change of policies and need not be waited for: changes are folded into one
//! search, and the guard lets go of what no policy asks for any more.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use control::guard::Guard;
use control::{NotAdopted, Validated};

use crate::daemon::Daemon;
use crate::events::Kind;
use crate::state::State;
use crate::worker::WorkerGone;

/// How long changes are waited for that come one after the other.
const GATHER: Duration = Duration::from_millis(200);

/// What a folding was refused of: with more policies upon it, it would be refused again.
struct RefusedOf {
    /// Those of the set that was compiled whole last.
    settings: Arc<Validated>,
    policies_removed: u64,
}

impl RefusedOf {
    /// Whether the set was not compiled whole since, and no policy was taken away.
    fn still_runs(&self, settings: &Arc<Validated>, policies_removed: u64) -> bool {
        Arc::ptr_eq(&self.settings, settings) && self.policies_removed == policies_removed
    }
}

/// Does what follows from changes of policies; for ever.
pub(crate) async fn run(daemon: Arc<Daemon>) {
    let mut refused = None;
    loop {
        daemon.changed.notified().await;
        tokio::time::sleep(GATHER).await;
        // A worker that has ended ends the daemon.
        let _ = fold_in(&daemon, &mut refused).await;
        narrow_guard(&daemon).await;
    }
}

/// Folds the changes in front of the policies' search into it, unless that was refused.
async fn fold_in(daemon: &Daemon, refused: &mut Option<RefusedOf>) -> Result<(), WorkerGone> {
    let (job, of) = {
        let state = daemon.state.lock().await;
        let (settings, policies_removed) = (state.config().clone(), state.policies_removed);
        if refused.as_ref().is_some_and(|of| of.still_runs(&settings, policies_removed)) {
            return Ok(());
        }
        *refused = None;
        let compiler = state.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        (compiler.rebuild_job(&state.compiled), RefusedOf { settings, policies_removed })
    };
    let Some(job) = job else { return Ok(()) };
    let rebuilt = tokio::task::spawn_blocking(move || job.run()).await;
    let Ok(rebuilt) = rebuilt else { return Ok(()) };
    let rebuilt = match rebuilt {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            daemon.events.record(Kind::FoldRefused, "", error.to_string(), &[]);
            *refused = Some(of);
            return Ok(());
        }
    };
    let _one_at_a_time = daemon.changing.lock().await;
    let mut state = daemon.state.lock().await;
    let adopted = {
        let mut compiler = state.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        compiler.adopt(&state.compiled, rebuilt)
    };
    match adopted {
        Ok(compiled) if !state.stopping => {
            let snapshot = match compiled.assemble(&state.live) {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    daemon.events.record(Kind::FoldRefused, "", error.to_string(), &[]);
                    *refused = Some(of);
                    return Ok(());
                }
            };
            let old = std::mem::replace(&mut state.compiled, compiled);
            state.publish(snapshot).await?;
            tokio::task::spawn_blocking(move || drop(old));
            Ok(())
        }
        Ok(_) => Ok(()),
        // Once more, of what runs now.
        Err(NotAdopted::Overtaken | NotAdopted::TooManyChanges) => {
            daemon.changed.notify_one();
            Ok(())
        }
    }
}

/// Puts up the guard of the policies that run, if it is another one.
async fn narrow_guard(daemon: &Daemon) {
    let (compiled, view, reserved, revision) = {
        let state = daemon.state.lock().await;
        (state.compiled.copied(), state.view.clone(), state.reserved.clone(), state.revision)
    };
    let make = move || Guard::new(compiled.validated(), &view, &reserved);
    let Ok(made) = tokio::task::spawn_blocking(make).await else { return };
    let _one_at_a_time = daemon.changing.lock().await;
    let mut state = daemon.state.lock().await;
    if state.revision != revision {
        daemon.changed.notify_one();
        return;
    }
    match made {
        Ok(guard) => state.put_up(guard).await,
        Err(error) => state.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
    }
}

impl State {
    /// Puts up a guard if another one stands.
    async fn put_up(&mut self, guard: Guard) {
        if self.stopping {
            return;
        }
        // Addresses and netdevs may be others by now.
        let guard = match guard.with_netdevs(self.config(), &self.view, &self.reserved) {
            Ok(other) => other.unwrap_or(guard),
            Err(error) => {
                return self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
            }
        };
        let guard = match guard.standing_as(&self.guard) {
            Ok(guard) => {
                self.guard = guard;
                return;
            }
            Err(guard) => guard,
        };
        match guard.installed().await {
            Ok(guard) => {
                self.guard = guard;
                self.tell_guard();
            }
            Err(error) => self.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
[node]
name = "a"
[port.lan]
netdev = "eth1"
side = "protected"
mac = "02:00:00:00:0a:01"
mtu = 1500
addresses = ["10.1.0.1/16"]
"#;

    #[test]
    fn a_refused_folding_is_tried_again_when_a_policy_went_or_all_were_compiled_whole() {
        let parsed = || Arc::new(control::parse(CONFIG, "a.toml").unwrap().validated);
        let (settings, policies_removed) = (parsed(), 7);
        let refused = RefusedOf { settings: settings.clone(), policies_removed };
        assert!(refused.still_runs(&settings, 7), "policies were added, if anything");
        assert!(!refused.still_runs(&settings, 8), "one was taken away");
        assert!(!refused.still_runs(&parsed(), 7), "the same was applied as a whole");
    }
}
