//! The laboratory of these tests, which ends them where something is not as it must be.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use net::AGAIN;
use netlab::ping::Ping;
use netlab::sealed::{CLIENT, End, NewSa, SERVER, SealedLab};
use netlab::{CardPlan, LabError};
use serde_json::Value;

/// The wait for answers that are not to come.
const SOON: Duration = Duration::from_millis(300);

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
    /// A laboratory with a card of this kind, and both daemons; `peer` are lines of the peer's
    /// section at the near end. `None` (said aloud): something that it needs is missing.
    pub(crate) fn build(test: &str, card: &str, peer: &str) -> Option<Place> {
        Place::build_with(test, card, [peer, ""], |_| {})
    }

    /// As [`Place::build`], with lines of the peer's section at the near and the far end; `dress`
    /// prepares the namespaces.
    pub(crate) fn build_with(
        test: &str,
        card: &str,
        [near, far]: [&str; 2],
        dress: impl FnOnce(&SealedLab),
    ) -> Option<Place> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
        let plan = CardPlan { card, ..CardPlan::new("", "") };
        let lab = match SealedLab::build(plan) {
            Ok(lab) => lab,
            Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
                println!("SKIPPED: {test}: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut place = Place { lab, _alone: alone };
        dress(&place);
        place.start_one(End::Far, far).unwrap();
        place.start_one(End::Near, near).unwrap();
        place.serves();
        Some(place)
    }

    /// Waits until the card serves.
    pub(crate) fn serves(&self) {
        self.until("the card serves", |place| {
            let near = place.daemon(End::Near).unwrap();
            let shown = near.ask(&["show", "placement"]).unwrap_or_default();
            shown["cards"][0]["state"] == "serves"
        });
    }

    /// Puts SAs, which must be taken.
    pub(crate) fn must_put(&mut self, sas: &[NewSa]) {
        let done = self.put(sas).unwrap();
        assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    }

    /// Puts one SA each way.
    pub(crate) fn put_pair(&mut self, number: u32, near: &str) {
        let sa = |from| NewSa { near: near.into(), ..NewSa::new(from, number) };
        self.must_put(&[sa(End::Far), sa(End::Near)]);
    }

    /// Handles of the SAs in the card.
    pub(crate) fn handles(&self) -> Vec<u64> {
        let answer = self.card().unwrap().tell("tags").unwrap();
        let tags = answer["tags"].as_array().cloned().unwrap_or_default();
        tags.iter().filter_map(|tag| tag["handle"].as_u64()).filter(|of| *of >= 1 << 31).collect()
    }

    /// Deletes an SA by which the far end sends, as a key manager would that learned of its loss.
    pub(crate) fn end_at_far(&self, spi: u32) {
        let spi = format!("{spi:#x}");
        self.daemon(End::Far).unwrap().run(&["sa", "del", &spi]).unwrap().success().unwrap();
    }

    /// Events of the near daemon of a kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let words = ["events", "--kind", kind, "--json"];
        let printed = self.daemon(End::Near).unwrap().run(&words).unwrap();
        printed.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until something holds; returns the time that it took.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Place) -> bool) -> Duration {
        let began = Instant::now();
        while !holds(self) {
            let log = || self.daemon(End::Near).unwrap().log();
            assert!(began.elapsed() < AGAIN, "not {what}: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        began.elapsed()
    }

    pub(crate) fn pings(&self, count: u32) -> u64 {
        self.lab.pings(count).unwrap()
    }

    pub(crate) fn pings_with_losses(&self, count: u32) -> u64 {
        self.lab.pings_with_losses(count).unwrap()
    }

    /// Sends so many pings to the client, which may not be answered.
    pub(crate) fn ping_from_server(&self, count: u32) {
        let ping = Ping { patience: SOON, ..Ping::new(CLIENT, count) };
        let _ = ping.run(&self.server).unwrap();
    }

    /// Fails if one of so many pings of the client's is answered.
    pub(crate) fn no_answer(&self, count: u32) {
        let ping = Ping { patience: SOON, ..Ping::new(SERVER, count) };
        assert_eq!(ping.run(&self.client).unwrap().received, 0, "{}", self.story());
    }

    /// Packets that the near gateway dropped for a reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.daemon(End::Near).unwrap().counters().unwrap().dropped(reason)
    }

    /// The number at a place in the card's counts.
    pub(crate) fn counted(&self, pointer: &str) -> u64 {
        let counts = self.card().unwrap().tell("counts").unwrap();
        counts.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The number at a place in the card's counts after two equal readings.
    pub(crate) fn counted_at_rest(&self, pointer: &str) -> u64 {
        let end = Instant::now() + AGAIN;
        let mut before = self.counted(pointer);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.counted(pointer);
            if now == before {
                return now;
            }
            assert!(Instant::now() < end, "{pointer} does not stand still: {}", self.story());
            before = now;
        }
    }

    /// All counters and logs, for a failure.
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for end in [End::Near, End::Far] {
            let daemon = self.daemon(end).unwrap();
            let drops = daemon.ask(&["show", "counters"]).unwrap()["drops"].take();
            let sas = daemon.ask(&["show", "sa"]).unwrap();
            story += &format!("{end:?}:\n{}\ndrops {drops}\n{sas:#}\n", daemon.log());
        }
        let card = self.card().unwrap().tell("counts").unwrap();
        story + &format!("card: {card:#}")
    }

    /// Fails if a ledger does not balance.
    pub(crate) fn balances(&self) {
        for end in [End::Near, End::Far] {
            let counters = self.daemon(end).unwrap().settled(AGAIN).unwrap();
            assert_eq!(counters.ledger_imbalance, 0, "{counters:?}");
        }
    }
}
