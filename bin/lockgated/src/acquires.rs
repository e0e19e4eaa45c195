//! Requests for SAs (acquire): workers report policies whose packets wait for an SA; each policy is
//! passed on once to the key managers that listen over the API.
//!
//! **Once.** A request is outstanding until the set has an outbound SA, or for [`OUTSTANDING_FOR`].
//! Meanwhile further reports of the policy are ignored. Workers report each second, so a request
//! that exceeds a bound is made later.
//!
//! **Bounds.** At most [`MAX_OUTSTANDING`] requests at a time and [`MAX_PER_SECOND`] new ones a
//! second, so that a sender to very many addresses does not flood the key manager.
//!
//! **Without a key manager** packets do not wait ([`AcquireSwitch`]). One that begins to listen
//! receives the outstanding requests first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::v1;
use dataplane::{AcquireRequest, AcquireSwitch, KeyManager};
use policy::SaSetId;
use tokio::sync::broadcast;
use wire::{Flow, Upper};

use crate::events::{Events, Kind};

/// Time after which a request is given up, and may be made again: that which packets wait.
pub(crate) const OUTSTANDING_FOR: Duration =
    Duration::from_nanos(dataplane::sa_queues::PATIENCE_NS);
/// Requests at a time: as many as packets wait.
pub(crate) const MAX_OUTSTANDING: usize = dataplane::sa_queues::MAX_WAITING;
/// New requests a second.
pub(crate) const MAX_PER_SECOND: u32 = 200;

/// Holds the outstanding requests and the channel to key managers. Shared by the control thread and
/// the API.
pub(crate) struct AcquireDesk {
    switch: Arc<AcquireSwitch>,
    to_key_managers: broadcast::Sender<v1::Acquire>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    outstanding: BTreeMap<(SaSetId, String), Outstanding>,
    last_id: u64,
    /// The second in which requests were made last, and how many.
    second: Option<(Instant, u32)>,
}

struct Outstanding {
    since: Instant,
    request: v1::Acquire,
}

/// The outcome of asking.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Asked {
    /// The key managers are asked.
    New(v1::Acquire),
    /// The request is outstanding.
    Before,
    /// A bound is reached.
    Limited,
    /// No key manager listens.
    NoKeyManager,
}

impl AcquireDesk {
    /// A desk without key managers.
    pub(crate) fn new(switch: Arc<AcquireSwitch>) -> Arc<AcquireDesk> {
        let (to_key_managers, _) = broadcast::channel(MAX_OUTSTANDING);
        Arc::new(AcquireDesk { switch, to_key_managers, book: Mutex::default() })
    }

    /// Subscribes a key manager. Returns the outstanding requests, and a receiver of later ones.
    pub(crate) fn listen(&self) -> (Vec<v1::Acquire>, broadcast::Receiver<v1::Acquire>) {
        // Under the lock: no request is in both.
        let book = self.book();
        let to_come = self.to_key_managers.subscribe();
        self.switch.set(KeyManager::Present);
        (book.outstanding.values().map(|one| one.request.clone()).collect(), to_come)
    }

    /// Asks the key managers for an SA of a peer.
    pub(crate) fn ask(&self, now: Instant, asked: &AcquireRequest, peer: &str) -> Asked {
        let mut book = self.book();
        if self.to_key_managers.receiver_count() == 0 {
            return Asked::NoKeyManager;
        }
        let key = (asked.set, asked.policy.clone());
        if book.outstanding.contains_key(&key) {
            return Asked::Before;
        }
        if book.outstanding.len() >= MAX_OUTSTANDING || !book.may_ask(now) {
            return Asked::Limited;
        }
        book.last_id += 1;
        let request = message(book.last_id, asked, peer);
        if self.to_key_managers.send(request.clone()).is_err() {
            return Asked::NoKeyManager;
        }
        book.outstanding.insert(key, Outstanding { since: now, request: request.clone() });
        Asked::New(request)
    }

    /// Removes requests whose set has an SA now (`has_sa`), and expired ones. Returns the expired
    /// ones.
    pub(crate) fn settle(
        &self,
        now: Instant,
        has_sa: impl Fn(SaSetId) -> bool,
    ) -> Vec<v1::Acquire> {
        let mut expired = Vec::new();
        self.book().outstanding.retain(|(set, _), one| {
            if has_sa(*set) {
                return false;
            }
            let stays = now.saturating_duration_since(one.since) < OUTSTANDING_FOR;
            if !stays {
                expired.push(one.request.clone());
            }
            stays
        });
        let listens = self.to_key_managers.receiver_count() > 0;
        self.switch.set(if listens { KeyManager::Present } else { KeyManager::Absent });
        expired
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Returns whether another request may be made in this second, and counts it.
    fn may_ask(&mut self, now: Instant) -> bool {
        let (since, used) = self.second.unwrap_or((now, 0));
        let (since, used) = match now.saturating_duration_since(since) {
            passed if passed >= Duration::from_secs(1) => (now, 0),
            _ => (since, used),
        };
        let may = used < MAX_PER_SECOND;
        self.second = Some((since, used + u32::from(may)));
        may
    }
}

/// Records the outcome of asking as an event.
pub(crate) fn record(events: &Events, asked: &Asked, policy: &str) {
    match asked {
        Asked::New(request) => {
            let v1::Acquire { id, peer, flow, .. } = request;
            let message = format!("policy \"{policy}\" needs an SA of peer \"{peer}\" for {flow}");
            events.record(Kind::Acquire, policy, message, &[("peer", peer), ("id", id)]);
        }
        Asked::Limited => {
            let message = format!("policy \"{policy}\": too many requests for SAs, asked later");
            events.record(Kind::AcquireLimited, policy, message, &[]);
        }
        Asked::Before | Asked::NoKeyManager => {}
    }
}

/// Records expired requests as events.
pub(crate) fn record_expired(events: &Events, expired: &[v1::Acquire]) {
    for v1::Acquire { id, peer, policy, .. } in expired {
        let seconds = OUTSTANDING_FOR.as_secs();
        let message = format!(
            "policy \"{policy}\": no key manager put an SA of peer \"{peer}\" in {seconds} s: its \
             packets are dropped (no_sa), and the next one asks again"
        );
        events.record(Kind::AcquireExpired, policy, message, &[("peer", peer), ("id", id)]);
    }
}

fn message(id: u64, asked: &AcquireRequest, peer: &str) -> v1::Acquire {
    let AcquireRequest { policy, flow, .. } = asked;
    let (ports, icmp) = match flow.upper {
        Upper::Ports { source, destination } => {
            let (source, destination) = (source.into(), destination.into());
            (Some(v1::PortPair { source, destination }), None)
        }
        Upper::Icmp { kind, code } => {
            (None, Some(v1::IcmpMessage { r#type: kind.into(), code: code.into() }))
        }
        _ => (None, None),
    };
    v1::Acquire {
        id,
        peer: peer.to_owned(),
        policy: policy.clone(),
        source: flow.source_address().to_string(),
        destination: flow.destination_address().to_string(),
        protocol: flow.protocol.into(),
        ports,
        icmp,
        flow: text(flow),
    }
}

fn text(flow: &Flow) -> String {
    let protocol = policy::selector::protocol_text(Some(flow.protocol));
    let (source, destination) = (flow.source_address(), flow.destination_address());
    match flow.upper {
        Upper::Ports { source: from, destination: to } => {
            format!("{source} port {from} to {destination} port {to}, {protocol}")
        }
        _ => format!("{source} to {destination}, {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::build::PacketBuilder;

    fn asked(set: u32, policy: &str) -> AcquireRequest {
        let packet = PacketBuilder::v4("10.1.0.5", "10.2.0.9").udp(1000, 53).ip();
        let flow = wire::packet::parse(&packet).expect("a packet").flow;
        AcquireRequest { set: SaSetId(set), policy: policy.into(), flow }
    }

    fn desk() -> Arc<AcquireDesk> {
        AcquireDesk::new(Arc::default())
    }

    /// Row XO-21.
    #[test]
    fn a_policy_is_asked_for_once_until_its_set_has_an_sa_or_time_is_over() {
        let (desk, start) = (desk(), Instant::now());
        assert_eq!(desk.ask(start, &asked(1, "a"), "x"), Asked::NoKeyManager);
        let (outstanding, mut to_come) = desk.listen();
        assert!(outstanding.is_empty() && desk.switch.is_on());
        let Asked::New(first) = desk.ask(start, &asked(1, "a"), "x") else { panic!("not asked") };
        assert_eq!((first.id, &*first.peer, &*first.policy), (1, "x", "a"));
        assert_eq!(
            (&*first.source, &*first.destination, first.protocol),
            ("10.1.0.5", "10.2.0.9", 17)
        );
        assert_eq!(first.ports, Some(v1::PortPair { source: 1000, destination: 53 }));
        assert_eq!(first.flow, "10.1.0.5 port 1000 to 10.2.0.9 port 53, udp");
        assert_eq!(to_come.try_recv(), Ok(first.clone()));
        for _ in 0..1000 {
            assert_eq!(desk.ask(start, &asked(1, "a"), "x"), Asked::Before);
        }
        // Another policy of the same set is another request.
        assert!(matches!(desk.ask(start, &asked(1, "b"), "x"), Asked::New(_)));
        let later = start + OUTSTANDING_FOR - Duration::from_millis(1);
        assert_eq!(desk.settle(later, |_| false), []);
        assert_eq!(desk.ask(later, &asked(1, "a"), "x"), Asked::Before);
        let expired = desk.settle(start + OUTSTANDING_FOR, |_| false);
        assert_eq!(expired.len(), 2);
        assert_eq!(expired[0], first);
        let again = start + OUTSTANDING_FOR;
        assert!(matches!(desk.ask(again, &asked(1, "a"), "x"), Asked::New(_)));
        // Put in time: no event. Once that SA is gone, another request is new.
        assert_eq!(desk.settle(again, |set| set == SaSetId(1)), []);
        assert!(matches!(desk.ask(again, &asked(1, "a"), "x"), Asked::New(_)));
    }

    #[test]
    fn a_listener_that_comes_later_is_told_what_is_outstanding_and_the_last_that_goes_is_seen() {
        let (desk, now) = (desk(), Instant::now());
        let (_, first) = desk.listen();
        desk.ask(now, &asked(1, "a"), "x");
        let (outstanding, mut second) = desk.listen();
        assert_eq!(outstanding.len(), 1);
        assert!(second.try_recv().is_err(), "told once");
        drop(first);
        desk.settle(now, |_| false);
        assert!(desk.switch.is_on());
        drop(second);
        desk.settle(now, |_| false);
        assert!(!desk.switch.is_on());
        assert_eq!(desk.ask(now, &asked(2, "b"), "x"), Asked::NoKeyManager);
    }

    #[test]
    fn requests_are_bounded_in_number_and_in_rate() {
        let (desk, start) = (desk(), Instant::now());
        let (_, _listener) = desk.listen();
        let (mut asked_for, mut now) = (0, start);
        while asked_for < MAX_OUTSTANDING {
            let before = asked_for;
            for _ in 0..MAX_OUTSTANDING {
                match desk.ask(now, &asked(asked_for as u32, "a"), "x") {
                    Asked::New(_) => asked_for += 1,
                    Asked::Limited => break,
                    other => panic!("{other:?}"),
                }
            }
            assert!(asked_for - before <= MAX_PER_SECOND as usize);
            now += Duration::from_secs(1);
        }
        assert!(now - start >= Duration::from_secs(MAX_OUTSTANDING as u64 / 200));
        assert_eq!(desk.ask(now, &asked(u32::MAX, "a"), "x"), Asked::Limited);
        desk.settle(now, |set| set == SaSetId(0));
        assert!(matches!(desk.ask(now, &asked(u32::MAX, "a"), "x"), Asked::New(_)));
    }
}
