//! Tells the service manager (sd_notify(3)) that the daemon is ready, what it does, and that it
//! lives. Without a manager that listens, it tells nothing.
//!
//! The watchdog is fed only while the daemon says that it is healthy: the manager ends and restarts
//! one that hangs, or whose workers do, and its ports stay closed meanwhile.

use std::time::Duration;

use sd_notify::NotifyState;

/// Number of times that the watchdog is fed within its time: one message may be late.
const FED_PER_TIME: u32 = 3;
/// Longest status text, bytes: it is one line of `systemctl status`.
const MAX_STATUS: usize = 200;

/// Health of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// Every part comes round in its time.
    Good,
    /// One part does not; the text says which.
    Bad(String),
}

/// Tells systemd that the daemon runs, with a status line.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Sets the daemon's line of `systemctl status`.
pub(crate) fn status(status: &str) {
    tell(&[NotifyState::Status(&one_line(status))]);
}

/// Tells systemd that the daemon ends.
pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
}

/// Feeds the watchdog, if there is one, as long as `health` is good. Runs as a task of the control
/// thread, so that it stops with it.
pub(crate) async fn feed_watchdog(mut health: impl FnMut() -> Health) {
    let Some(time) = sd_notify::watchdog_enabled() else { return };
    let mut interval = tokio::time::interval(fed_every(time));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Health::Good;
    loop {
        interval.tick().await;
        let now = health();
        match &now {
            Health::Good => tell(&[NotifyState::Watchdog]),
            Health::Bad(why) if now != last => status(why),
            Health::Bad(_) => {}
        }
        last = now;
    }
}

fn fed_every(time: Duration) -> Duration {
    (time / FED_PER_TIME).max(Duration::from_millis(1))
}

/// One line of bounded length: a newline would begin another message.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars() {
        if line.len() + c.len_utf8() > MAX_STATUS {
            break;
        }
        line.push(if c.is_control() { ' ' } else { c });
    }
    line
}

/// A manager that does not listen is no reason to stop.
fn tell(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    #[test]
    fn a_status_is_one_short_line() {
        assert_eq!(one_line("a\nREADY=1\r"), "a READY=1 ");
        assert_eq!(one_line(&"ä".repeat(500)).len(), MAX_STATUS);
    }

    #[test]
    fn the_watchdog_is_fed_three_times_in_its_time() {
        assert_eq!(fed_every(Duration::from_secs(3)), Duration::from_secs(1));
        assert!(fed_every(Duration::ZERO) > Duration::ZERO);
    }

    /// Set in the process that plays the daemon.
    const CHILD: &str = "LOCKGATE_NOTIFY_TEST_CHILD";

    /// The daemon is this program again, told where to notify: variables are the process's.
    #[test]
    fn the_manager_hears_ready_and_is_fed_only_while_health_is_good() {
        if std::env::var_os(CHILD).is_some() {
            return play_the_daemon();
        }
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let test = "the_manager_hears_ready_and_is_fed_only_while_health_is_good";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("notify::tests::{test}")])
            .env(CHILD, "1")
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "30000")
            .env_remove("WATCHDOG_PID")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        let mut heard = Vec::new();
        let mut buffer = [0; 1024];
        while heard.last().is_none_or(|last: &String| !last.contains("STOPPING")) {
            let length = manager.recv(&mut buffer).expect("a message");
            heard.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        assert_eq!(heard[0], "READY=1\nSTATUS=2 ports, 1 worker\n");
        assert_eq!(heard.iter().filter(|told| *told == "WATCHDOG=1\n").count(), 3, "{heard:?}");
        let bad = heard.iter().filter(|told| *told == "STATUS=worker 0 hangs\n").count();
        assert_eq!(bad, 1, "{heard:?}");
    }

    fn play_the_daemon() {
        ready("2 ports, 1 worker");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let rounds = tokio::sync::Notify::new();
        let mut asked = 0;
        let health = || {
            asked += 1;
            // A few rounds with bad health: the status is told once.
            if asked == 8 {
                rounds.notify_one();
            }
            if asked <= 3 { Health::Good } else { Health::Bad("worker 0 hangs".into()) }
        };
        runtime.block_on(async {
            tokio::select! {
                () = feed_watchdog(health) => panic!("nothing feeds the watchdog"),
                () = rounds.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(10)) => panic!("no round"),
            }
        });
        stopping("");
    }
}
