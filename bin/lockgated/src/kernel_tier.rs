//! The kernel tier of virtual networks, as the daemon runs it: its tables, the lease without which
//! they say nothing, and the endpoints that go over to it, with the verdicts on their flows in
//! networks with groups.
//!
//! ```text
//!  every 250 ms   connections that end give up their verdicts; all workers turned? ─▶ the lease
//!                 lasts 2 s from then
//!  every second   samples of the workers ─▶ who is used most ─▶ the workers' rings are empty ─▶ in
//!  a change       what it takes away goes before the workers change over, what it adds goes after
//! ```
//!
//! An endpoint or a verdict whose admission a table refuses stays with the workers; it is tried in
//! five periods, then skipped for a minute. A table that refuses any other write (of the lease, of
//! networks and their generations, of ways, or one that takes something out) closes the tier at
//! once: the lease ends, and no more is written. The next change of the snapshot makes new tables.
//!
//! Once a second the audit judges samples of what the kernel answered again. One that was wrong
//! closes the tier for a minute; then it gets new tables.

mod audit;
mod closed;
mod flows;
mod lease;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bpf::tier::{FlowKey, Size, Tier};
use bpf::{AnsweredSample, BpfError, Miss};
use config::{KernelSettings, KernelUse};
use dataplane::counters::Volume;
use dataplane::{PortId, Snapshot, TenantSample};
use endpoints::EndpointKey;
use placement::{
    Admission, CountedRule, Counts, Heat, Moment, Moves, PortPlace, Residents, TRIES, Tried, Tries,
    endpoints_of,
};
use wire::{Flow, Vni};

use crate::events::{Events, Kind};
use closed::{Closed, Until};
use flows::FlowUse;

pub(crate) use audit::{Audited, SampleTally};
pub(crate) use flows::FlowTally;
pub(crate) use lease::{Pulse, now_ns};

/// Virtual networks that there is room for.
const NETWORKS: u32 = 65_536;
/// Residents whose use is looked at in a second.
const LOOKED_AT: usize = 4096;

/// Places of ports on netdevs with the tier's program.
pub(crate) type Places = HashMap<PortId, PortPlace>;

/// The tier; empty before the first overlay is configured, and where it is switched off.
pub(crate) struct KernelTier {
    settings: KernelSettings,
    inner: Mutex<Option<Inner>>,
    /// The snapshot for which no tables could be made.
    refused: Mutex<Weak<Snapshot>>,
    events: Events,
}

/// The part that was done to give the tier's program to netdevs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prepared {
    /// There are no tables.
    Nothing,
    /// The tables are those of before.
    AsBefore,
    /// The tables are new ones: each netdev needs a program that reads them.
    Anew,
}

struct Inner {
    tables: Arc<Tier>,
    residents: Residents<Arc<Tier>>,
    heat: Heat<EndpointKey>,
    tries: Tries<EndpointKey>,
    flows: FlowUse,
    /// The snapshot that the workers walk by, and the places of its ports.
    snapshot: Arc<Snapshot>,
    places: Places,
    /// Workers are about to change over to another snapshot: nothing is added.
    is_changing: bool,
    /// Keys whose use is looked at next.
    to_look_at: Vec<EndpointKey>,
    /// Samples of answers whose destination was another endpoint than the table says: it may have
    /// just changed.
    doubtful: Vec<AnsweredSample>,
    /// Samples that these tables had lost when they were last looked at.
    lost: u64,
    closed: Option<Closed>,
    tally: Tally,
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tally {
    /// Endpoints that went over to the kernel, and of these while packets waited for a worker.
    pub(crate) promoted: u64,
    pub(crate) promoted_busy: u64,
    /// Endpoints and verdicts that could not go over because packets waited for a worker.
    pub(crate) deferred: u64,
    /// Endpoints that gave their place up.
    pub(crate) evicted: u64,
    /// Endpoints for which there was no room.
    pub(crate) full: u64,
    /// Writes that the kernel refused.
    pub(crate) refused: u64,
    /// Endpoints and verdicts that it refused too often.
    pub(crate) skipped: u64,
    pub(crate) flows: FlowTally,
    pub(crate) samples: SampleTally,
}

/// The endpoints and flows that are to go over to the kernel.
#[derive(Default)]
pub(crate) struct Wanted {
    endpoints: Vec<EndpointKey>,
    flows: Vec<FlowKey>,
}

impl Wanted {
    pub(crate) fn len(&self) -> usize {
        self.endpoints.len() + self.flows.len()
    }
}

/// The tier at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TierReport {
    pub(crate) counts: Counts,
    pub(crate) tally: Tally,
    pub(crate) misses: Vec<(&'static str, u64)>,
    pub(crate) closed: Option<String>,
}

/// The state of the workers when endpoints go over to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Promotion {
    /// No packet waits for a worker.
    Idle,
    /// Packets wait, and later ones may overtake them.
    Busy,
}

impl KernelTier {
    pub(crate) fn new(settings: KernelSettings, events: Events) -> Arc<KernelTier> {
        let (inner, refused) = (Mutex::new(None), Mutex::default());
        Arc::new(KernelTier { settings, inner, refused, events })
    }

    /// Returns a tier that does nothing.
    #[cfg(test)]
    pub(crate) fn off() -> Arc<KernelTier> {
        let settings = KernelSettings { usage: KernelUse::Off, ..KernelSettings::default() };
        KernelTier::new(settings, Events::new())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Inner>> {
        // A panic left at most a record that no key leads to.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the tables when a snapshot has the first overlay, or when others may follow those that
    /// were closed.
    pub(crate) fn prepare(&self, snapshot: &Arc<Snapshot>) -> Prepared {
        let mut inner = self.lock();
        let is_wanted = self.settings.usage != KernelUse::Off && snapshot.overlays().is_some();
        let tally = match inner.as_ref() {
            Some(inner) if !inner.is_over(snapshot) => return Prepared::AsBefore,
            Some(Inner { tally, .. }) => *tally,
            None if is_wanted && !self.is_refused(snapshot) => Tally::default(),
            None => return Prepared::Nothing,
        };
        match self.tables() {
            Ok(tables) => {
                *inner = Some(Inner::of(tables.into(), snapshot.clone(), tally));
                Prepared::Anew
            }
            Err(why) => {
                *inner = None;
                drop(inner);
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) =
                    Arc::downgrade(snapshot);
                self.tell(&why);
                Prepared::Nothing
            }
        }
    }

    /// Returns whether no tables could be made for a snapshot.
    fn is_refused(&self, snapshot: &Arc<Snapshot>) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        std::ptr::eq(refused.as_ptr(), Arc::as_ptr(snapshot))
    }

    fn tables(&self) -> Result<Tier, String> {
        let mut number = [0; 4];
        getrandom::fill(&mut number).map_err(|error| error.to_string())?;
        let endpoints = self.settings.endpoints;
        let size = Size { endpoints, flows: endpoints, networks: NETWORKS };
        Tier::new(u32::from_ne_bytes(number), size).map_err(|error| error.to_string())
    }

    /// The tables, for the program of a netdev. `None`: its packets are the workers'.
    pub(crate) fn tables_for(&self, netdev: &str) -> Option<Arc<Tier>> {
        let is_of_a_device = || Path::new("/sys/class/net").join(netdev).join("device").exists();
        let serves = match self.settings.usage {
            KernelUse::On => true,
            KernelUse::Auto => is_of_a_device(),
            KernelUse::Off => false,
        };
        self.lock().as_ref().filter(|_| serves).map(|inner| inner.tables.clone())
    }

    /// Takes away what a snapshot does not leave to the tier: before workers change over to it, or
    /// when a netdev goes.
    pub(crate) fn narrow(&self, snapshot: &Arc<Snapshot>, places: &Places) {
        self.write(|inner, now| {
            inner.is_changing = true;
            inner.residents.narrow(snapshot, |port| places.get(&port).copied(), now.kernel_ns)
        });
    }

    /// Adds what a snapshot leaves to the tier: when all workers walk by it, and now and then.
    pub(crate) fn widen(&self, snapshot: &Arc<Snapshot>, places: Places) {
        self.write(|inner, now| {
            (inner.snapshot, inner.places) = (snapshot.clone(), places);
            inner.is_changing = false;
            let Inner { residents, snapshot, places, .. } = inner;
            residents.widen(snapshot, |port| places.get(&port).copied(), now.kernel_ns)
        });
    }

    /// Takes endpoints out that have changed, or are no more: before their change is answered.
    pub(crate) fn withdraw(&self, keys: impl IntoIterator<Item = EndpointKey>) {
        self.write(|inner, now| {
            for key in keys {
                inner.residents.withdraw(key, now.kernel_ns)?;
                inner.heat.forget(key);
                inner.tries.forget(key);
            }
            Ok(())
        });
    }

    /// Lets the tables hold until a moment of `CLOCK_MONOTONIC`. Nothing else renews the lease, so
    /// no verdict outlives its connection by more than the lease.
    pub(crate) fn renew(&self, until_ns: u64) {
        self.write(|inner, now| {
            inner.look_at_connections(now)?;
            inner.tables.renew(until_ns)
        });
    }

    /// Takes out the verdicts of connections that have ended: before their removal is answered.
    pub(crate) fn look_at_connections(&self) {
        self.write(Inner::look_at_connections);
    }

    /// Ends the lease for good: the daemon ends.
    pub(crate) fn end(&self) {
        self.write(|inner, _| {
            inner.close("the daemon ends".into(), Until::Change);
            Ok(())
        });
    }

    /// Returns whether endpoints go over although packets wait for a worker.
    pub(crate) fn promotes_busy(&self) -> bool {
        self.settings.promote_busy
    }

    /// Ends a second: takes what the workers saw, takes out who is used little, and returns who is
    /// to go over.
    pub(crate) fn end_period(&self, seen: &[(Vec<TenantSample>, u64)]) -> Wanted {
        let mut wanted = Wanted::default();
        self.write(|inner, now| {
            for (samples, each) in seen {
                let Inner { heat, residents, tries, .. } = &mut *inner;
                let is_none = |key| residents.has(key) || tries.rests(key);
                heat.count(endpoints_of(samples), *each, is_none);
                inner.count_flows(samples, *each);
            }
            for key in inner.residents.stranded() {
                inner.residents.withdraw(key, now.kernel_ns)?;
                inner.heat.forget(key);
            }
            let Counts { resident, max, .. } = inner.residents.counts();
            let room = max.saturating_sub(resident);
            if room == 0 {
                inner.look_at_residents()?;
            }
            let Moves { enter, leave } = inner.heat.end_period(room);
            for key in leave {
                inner.residents.withdraw(key, now.kernel_ns)?;
                inner.heat.forget(key);
                inner.tally.evicted += 1;
            }
            inner.tries.end_period();
            wanted = Wanted { endpoints: enter, flows: inner.end_period_of_flows(now)? };
            Ok(())
        });
        wanted
    }

    /// Takes the packets that the kernel judged since the last call, by rule.
    pub(crate) fn take_rule_use(&self) -> Vec<(CountedRule, Volume)> {
        let mut used = Vec::new();
        self.write(|inner, _| {
            used.extend(inner.residents.take_rule_use()?);
            Ok(())
        });
        used
    }

    /// Counts endpoints and verdicts that could not go over.
    pub(crate) fn defer(&self, count: usize) {
        if let Some(inner) = self.lock().as_mut() {
            inner.tally.deferred += count as u64;
        }
    }

    /// Takes endpoints in as the workers' table has them now, and verdicts on flows as the workers'
    /// snapshot has them.
    pub(crate) fn promote(&self, wanted: &Wanted, promotion: Promotion) {
        let mut skipped = Vec::new();
        self.write(|inner, now| {
            if inner.is_changing {
                inner.tally.deferred += wanted.len() as u64;
                return Ok(());
            }
            for key in &wanted.endpoints {
                if let Some(error) = inner.promote(*key, promotion, now.kernel_ns)? {
                    skipped.push((format!("endpoint {key}"), error));
                }
            }
            for key in &wanted.flows {
                if let Some(error) = inner.promote_flow(*key, now)? {
                    let FlowKey { vni, source, destination, .. } = key;
                    let what = format!("a flow of network {vni}, {source} → {destination},");
                    skipped.push((what, error));
                }
            }
            Ok(())
        });
        self.tell_skipped(&skipped);
    }

    /// Tells whom the kernel refused too often, with its last reason.
    fn tell_skipped(&self, skipped: &[(String, BpfError)]) {
        for (what, error) in skipped {
            let message = format!("{what} stays with the workers, after {TRIES} tries: {error}");
            self.events.record(Kind::KernelEndpointSkipped, "", message, &[]);
        }
    }

    /// The tier at this moment; `None`: there is none.
    pub(crate) fn report(&self) -> Option<TierReport> {
        let inner = self.lock();
        let Inner { tables, residents, tally, closed, .. } = inner.as_ref()?;
        let counts = tables.misses().unwrap_or_default();
        let misses = Miss::ALL.iter().map(|miss| miss.name()).zip(counts).collect();
        let closed = closed.as_ref().map(|closed| closed.why.clone());
        let (counts, tally) = (residents.counts(), *tally);
        Some(TierReport { counts, tally, misses, closed })
    }

    /// The tier's answer to packets of a flow in a network, as a predicate.
    pub(crate) fn standing(&self, vni: Vni, flow: &Flow) -> String {
        match self.lock().as_ref() {
            None => "answers nothing: it is switched off, or the kernel refused its tables".into(),
            Some(Inner { closed: Some(Closed { why, .. }), .. }) => {
                format!("answers nothing: {why}")
            }
            Some(Inner { residents, snapshot, .. }) => {
                residents.standing(vni, flow, snapshot, lease::now()).to_string()
            }
        }
    }

    /// Writes to the tables, unless they are closed. If one refuses, they are from now on.
    fn write(&self, write: impl FnOnce(&mut Inner, Moment) -> Result<(), BpfError>) {
        let mut guard = self.lock();
        let Some(inner) = guard.as_mut().filter(|inner| inner.closed.is_none()) else { return };
        let Err(error) = write(inner, lease::now()) else { return };
        inner.tally.refused += 1;
        let why = inner.close(error.to_string(), Until::Change);
        drop(guard);
        self.tell(&why);
    }

    fn tell(&self, why: &str) {
        let message = format!("the kernel answers no packets of virtual networks: {why}");
        self.events.record(Kind::KernelTierClosed, "", message, &[]);
    }
}

impl Inner {
    /// An empty tier.
    fn of(tables: Arc<Tier>, snapshot: Arc<Snapshot>, tally: Tally) -> Inner {
        Inner {
            residents: Residents::new(tables.clone()),
            tables,
            heat: Heat::default(),
            tries: Tries::default(),
            flows: FlowUse::default(),
            snapshot,
            places: Places::new(),
            is_changing: false,
            to_look_at: Vec::new(),
            doubtful: Vec::new(),
            lost: 0,
            closed: None,
            tally,
        }
    }

    /// Returns whether the tables were closed, and others may follow under a snapshot.
    fn is_over(&self, snapshot: &Arc<Snapshot>) -> bool {
        let has_changed = || !Arc::ptr_eq(&self.snapshot, snapshot);
        self.closed.as_ref().is_some_and(|closed| closed.is_over(has_changed, now_ns()))
    }

    /// Ends the lease, and writes no more to these tables. Returns the reason in full.
    fn close(&mut self, why: String, until: Until) -> String {
        // If this is refused, the lease runs out by itself.
        let why = match self.tables.renew(0) {
            Ok(()) => why,
            Err(second) => format!("{why}; and the lease runs for up to 2 s: {second}"),
        };
        self.closed = Some(Closed { why: why.clone(), until });
        why
    }

    /// Takes an endpoint in. Returns the reason why it is skipped from now on, if it is.
    fn promote(
        &mut self,
        key: EndpointKey,
        promotion: Promotion,
        now_ns: u64,
    ) -> Result<Option<BpfError>, BpfError> {
        let Inner { residents, snapshot, places, tally, heat, tries, .. } = self;
        let place_of = |port| places.get(&port).copied();
        match tries.count(key, residents.admit(key, snapshot, place_of, now_ns))? {
            Tried::Done(Admission::Admitted) => {
                heat.forget(key);
                tally.promoted += 1;
                tally.promoted_busy += u64::from(promotion == Promotion::Busy);
            }
            Tried::Done(Admission::Full) => tally.full += 1,
            Tried::Done(Admission::Resident | Admission::Ineligible) => {}
            Tried::Refused(_) => tally.refused += 1,
            Tried::Skipped(error) => {
                heat.forget(key);
                tally.refused += 1;
                tally.skipped += 1;
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    /// Looks at the use of some residents: at all of them in turn.
    fn look_at_residents(&mut self) -> Result<(), BpfError> {
        if self.to_look_at.is_empty() {
            self.to_look_at = self.residents.keys().collect();
        }
        let rest = self.to_look_at.len().saturating_sub(LOOKED_AT);
        let keys = self.to_look_at.split_off(rest);
        let used = self.residents.look_at(&keys)?;
        self.heat.used(&used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_kernel_refused_too_often_is_an_event_with_the_reason() {
        // AX-34
        let events = Events::new();
        let tier = KernelTier::new(KernelSettings::default(), events.clone());
        let full = BpfError::NoDevice { ifindex: 7 };
        tier.tell_skipped(&[("endpoint 7/172.16.0.1".into(), full)]);
        let (told, _) = events.subscribe();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].kind, Kind::KernelEndpointSkipped.name());
        for words in ["endpoint 7/172.16.0.1 stays with the workers, after 5 tries", "index 7"] {
            assert!(told[0].message.contains(words), "{}", told[0].message);
        }
    }
}
