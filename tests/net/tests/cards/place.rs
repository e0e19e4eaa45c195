//! The laboratory of these tests, which ends them where something is not as it must be.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use net::AGAIN;
use netlab::carded::{CardLab, SERVER, placed};
use netlab::ping::Ping;
use netlab::stream::Stream;
use netlab::{CardPlan, Daemon, EmulatedCard, LabError};
use serde_json::Value;

/// The wait for answers that are not to come.
const SOON: Duration = Duration::from_millis(150);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The laboratory.
pub(crate) struct Place {
    lab: CardLab,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Place {
    type Target = CardLab;

    fn deref(&self) -> &CardLab {
        &self.lab
    }
}

impl DerefMut for Place {
    fn deref_mut(&mut self) -> &mut CardLab {
        &mut self.lab
    }
}

impl Place {
    /// A laboratory without a daemon. `None` (said aloud): something that it needs is missing.
    pub(crate) fn build(test: &str, plan: CardPlan<'_>) -> Option<Place> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
        match CardLab::build(plan) {
            Ok(lab) => Some(Place { lab, _alone: alone }),
            Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
                println!("SKIPPED: {test}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn write(&self, lan: &str, rules: &str) -> PathBuf {
        self.lab.write(lan, rules).unwrap()
    }

    pub(crate) fn start(&mut self, rules: &str) {
        self.lab.start(rules).unwrap();
    }

    pub(crate) fn insert(&mut self, plan: CardPlan<'_>) {
        self.lab.insert(plan).unwrap();
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.lab.daemon().unwrap()
    }

    pub(crate) fn card(&self) -> &EmulatedCard {
        self.lab.card().unwrap()
    }

    pub(crate) fn placement(&self) -> Value {
        self.lab.placement().unwrap()
    }

    pub(crate) fn placed(&self, name: &str) -> Value {
        placed(&self.placement(), name).clone()
    }

    /// Waits until something holds of `show placement`.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let (placement, held) = self.lab.wait_until(AGAIN, holds).unwrap();
        assert!(held, "not {what}: {placement:#}\n{}", self.daemon().log());
        placement
    }

    /// Sends pings and waits until the rule that permits them is in the card.
    pub(crate) fn settle(&self) {
        self.pings(5);
        self.until("lan/ping in the card", |placement| {
            self.pings(1);
            placed(placement, "lan/ping")["counts"] == true
        });
    }

    pub(crate) fn pings(&self, count: u32) -> u64 {
        self.lab.pings(count).unwrap()
    }

    /// Answers to so many pings of the client's, for each of which it waits but shortly.
    pub(crate) fn pings_in_vain(&self, count: u32) -> u64 {
        let ping = Ping { patience: SOON, ..Ping::new(SERVER, count) };
        ping.run(&self.client).unwrap().received
    }

    pub(crate) fn stream(&self) -> Stream {
        self.lab.stream().unwrap()
    }

    pub(crate) fn decided(&self) -> [u64; 2] {
        self.lab.decided().unwrap()
    }

    pub(crate) fn audited(&self) -> [u64; 2] {
        self.lab.audited().unwrap()
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        self.lab.counted(name).unwrap()
    }

    /// Frames that the kernel dropped since the start because a queue's ring had no room or no
    /// free frame: the daemon had no core for a while.
    pub(crate) fn lost_by_rings(&self) -> u64 {
        let ports = self.daemon().ports().unwrap();
        let queues = ports.iter().flat_map(|port| port["queues"].as_array().unwrap());
        let count = |queue: &Value, name: &str| queue[name].as_u64().unwrap_or(0);
        queues.map(|queue| count(queue, "rx_dropped") + count(queue, "queue_full")).sum()
    }

    pub(crate) fn items(&self) -> usize {
        self.lab.items().unwrap()
    }

    /// Fails if the ledger does not balance.
    pub(crate) fn balances(&self) {
        let counters = self.daemon().settled(AGAIN).unwrap();
        assert_eq!(counters.ledger_imbalance, 0, "{counters:?}");
    }
}
