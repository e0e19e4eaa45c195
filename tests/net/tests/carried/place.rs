//! The laboratory of these tests.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use net::AGAIN;
use netlab::capture::{Capture, Scope, Tally};
use netlab::ping::Ping;
use netlab::sealed::{BACK, End, NewSa, SERVER, SealedLab, THERE};
use netlab::{LabError, Namespace};
use serde_json::Value;

/// Time for a command.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// The wait for answers, some of which are not to come: an emulated processor is slow.
const SOON: Duration = Duration::from_secs(3);
/// The wait for answers that are all to come.
const LATE: Duration = Duration::from_secs(20);
/// Set where the kernel must have ESP: a test that lacks it fails there.
const MUST_HAVE_ESP: &str = "LOCKGATE_HAS_ESP";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The laboratory.
pub(crate) struct Place {
    lab: SealedLab,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Place {
    type Target = SealedLab;

    fn deref(&self) -> &SealedLab {
        &self.lab
    }
}

impl DerefMut for Place {
    fn deref_mut(&mut self) -> &mut SealedLab {
        &mut self.lab
    }
}

impl Place {
    /// A laboratory with both daemons; `card` and `peer` are lines of those sections at the near
    /// end. `None` (said aloud): something that it needs is missing.
    pub(crate) fn build(test: &str, card: &str, peer: &str) -> Option<Place> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
        let lab = match SealedLab::under_linux(card) {
            Ok(lab) => lab,
            Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
                println!("SKIPPED: {test}: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut place = Place { lab, _alone: alone };
        place.start(peer).unwrap();
        place.until("the card was asked", |place| {
            let card = place.card_shown();
            card["state"] == "serves" || card["state_reason"] != "not found yet"
        });
        Some(place)
    }

    /// The same where the kernel has ESP; elsewhere says that the test was skipped.
    pub(crate) fn with_esp(test: &str, card: &str, peer: &str) -> Option<Place> {
        let place = Place::build(test, card, peer)?;
        let shown = place.card_shown();
        if shown["state"] == "serves" {
            assert_eq!(shown["card"], "xfrm, Linux stands in", "{shown:#}");
            return Some(place);
        }
        let why = &shown["state_reason"];
        assert!(std::env::var_os(MUST_HAVE_ESP).is_none(), "{why}");
        println!("SKIPPED: {test}: {why}; see `cargo xtask test-long xfrm`");
        None
    }

    /// The card, as `show placement` has it.
    pub(crate) fn card_shown(&self) -> Value {
        let shown = self.daemon(End::Near).unwrap().ask(&["show", "placement"]);
        shown.unwrap_or_default()["cards"][0].take()
    }

    /// Puts SAs, which must be taken.
    pub(crate) fn must_put(&mut self, sas: &[NewSa]) {
        let done = self.put(sas).unwrap();
        assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    }

    /// Puts one SA each way.
    pub(crate) fn put_pair(&mut self, number: u32) {
        self.must_put(&[NewSa::new(End::Far, number), NewSa::new(End::Near, number)]);
    }

    /// Deletes both SAs of a number at the far end.
    pub(crate) fn end_at_far(&self, number: u32) {
        for spi in [THERE, BACK] {
            let spi = format!("{:#x}", spi + number);
            self.daemon(End::Far).unwrap().run(&["sa", "del", &spi]).unwrap();
        }
    }

    /// States and policies of the near gateway's Linux, as `ip` lists them.
    pub(crate) fn in_linux(&self) -> [String; 2] {
        ["state", "policy"].map(|what| {
            let mut words = vec!["ip", "xfrm", what, "list"];
            if what == "state" {
                // Without the keys.
                words.push("nokeys");
            }
            self.near_gateway.run(&words, LIMIT).unwrap().success().unwrap()
        })
    }

    /// Frames that the program of a netdev passed for Linux to carry.
    pub(crate) fn passed(&self, netdev: &str) -> u64 {
        let ports = self.daemon(End::Near).unwrap().ports().unwrap();
        let port = ports.iter().find(|port| port["netdev"] == netdev).unwrap();
        port["kernel"]["passed_carried"].as_u64().unwrap()
    }

    /// Events of the near daemon of a kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let words = ["events", "--kind", kind, "--json"];
        let printed = self.daemon(End::Near).unwrap().run(&words).unwrap();
        printed.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until something holds.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Place) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            let log = || self.daemon(End::Near).unwrap().log();
            assert!(began.elapsed() < AGAIN, "not {what}: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Answers to so many pings of the client's, all of which should be answered.
    pub(crate) fn pings(&self, count: u32) -> u64 {
        let ping = Ping { patience: LATE, ..Ping::new(SERVER, count) };
        ping.run_until_answered(&self.client).unwrap().received
    }

    /// Answers to so many pings of the client's, some of which are not to be answered.
    pub(crate) fn pings_patiently(&self, count: u32) -> u64 {
        let ping = Ping { patience: SOON, ..Ping::new(SERVER, count) };
        ping.run(&self.client).unwrap().received
    }

    /// Fails if one of so many pings of the client's is answered.
    pub(crate) fn no_answer(&self, count: u32) {
        assert_eq!(self.pings_patiently(count), 0);
    }

    /// Captures what the client gets.
    pub(crate) fn capture_at_client(&self, name: &str) -> Capture {
        self.capture_of(&self.client, "c0", name)
    }

    fn capture_of(&self, at: &Namespace, netdev: &str, name: &str) -> Capture {
        Capture::start(at, netdev, Scope::Heads, (self.directory(), name)).unwrap()
    }

    /// Captures heads of what is on the wire.
    pub(crate) fn capture_heads(&self, name: &str) -> Capture {
        self.capture_of(self.wire().unwrap(), "br0", name)
    }

    /// Packets in clear among those of a capture.
    pub(crate) fn clear_from_server(&self, capture: &Path) -> u64 {
        Tally::of(capture).unwrap().clear
    }

    /// Captures frames of more bytes than these: on the wire, or by a netdev of the near gateway.
    pub(crate) fn longer_than(&self, bytes: u32, netdev: &str) -> Capture {
        let at = if netdev == "br0" { self.wire().unwrap() } else { &self.near_gateway };
        let (scope, directory) = (Scope::LongerThan(bytes), self.directory());
        Capture::start(at, netdev, scope, (directory, netdev)).unwrap()
    }

    /// Ends the near daemon by a signal that it obeys.
    pub(crate) fn end_near(&mut self) {
        let near = self.near.take().unwrap();
        near.terminate().unwrap().success().unwrap();
    }

    /// Kills the near daemon.
    pub(crate) fn kill_near(&mut self) {
        let mut near = self.near.take().unwrap();
        near.kill();
    }

    /// Detaches the near gateway, whose daemon is dead; returns what was told.
    pub(crate) fn detach_near(&self) -> String {
        let programs = netlab::Programs::find().unwrap();
        let command = programs.lockgate.display().to_string();
        let words = [command.as_str(), "--socket", "/nonexistent", "detach"];
        self.near_gateway.run(&words, LIMIT).unwrap().success().unwrap()
    }

    /// Fails if the near gateway's Linux has other states and policies than the one with number 7.
    pub(crate) fn has_only_others(&self) {
        let [states, policies] = self.in_linux();
        assert_eq!(states, "");
        assert_eq!(policies.matches("tmpl").count(), 1, "{policies}");
        assert!(policies.contains("reqid 7 "), "{policies}");
    }

    /// Logs, drops and what Linux has, for a failure.
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for end in [End::Near, End::Far] {
            let Ok(daemon) = self.daemon(end) else { continue };
            let drops = daemon.ask(&["show", "counters"]).unwrap()["drops"].take();
            let sas = daemon.ask(&["show", "sa"]).unwrap();
            story += &format!("{end:?}:\n{}\ndrops {drops}\n{sas:#}\n", daemon.log());
        }
        let told = |words: &[&str]| {
            let done = self.near_gateway.run(words, LIMIT).map(|done| done.stdout);
            done.unwrap_or_else(|error| error.to_string())
        };
        let [states, policies] = self.in_linux();
        let guard = told(&["nft", "list", "table", "inet", "lockgate"]);
        let counts = told(&["cat", "/proc/net/xfrm_stat"]);
        story + &format!("{states}\n{policies}\n{guard}\n{counts}")
    }

    /// Fails if a ledger does not balance.
    pub(crate) fn balances(&self) {
        for end in [End::Near, End::Far] {
            let counters = self.daemon(end).unwrap().settled(AGAIN).unwrap();
            assert_eq!(counters.ledger_imbalance, 0, "{counters:?}");
        }
    }
}
