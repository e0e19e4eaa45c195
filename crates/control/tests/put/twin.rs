//! Puts, deletions and time in random order, against lists.

use std::collections::BTreeMap;

use crate::gateway::{Gateway, SECOND, of, peers, sa, spi};
use control::{LINGER_NS, MOST_LINGER_NS, PutSa, SaName};
use policy::Direction::{Inbound, Outbound};
use proptest::prelude::*;

/// The obvious twin: lists.
#[derive(Clone, Default)]
struct Twin {
    /// Outbound SPIs of each peer, in order.
    outbound: BTreeMap<&'static str, Vec<u32>>,
    /// Peer of each inbound SPI; when it was replaced, by which; when a packet of one was noticed.
    inbound: BTreeMap<u32, TwinInbound>,
}

#[derive(Clone)]
struct TwinInbound {
    peer: &'static str,
    received: bool,
    replaced: Option<(Vec<u32>, u64)>,
    noticed: Option<u64>,
}

#[derive(Clone, Debug)]
enum Move {
    Put { peer: bool, inbound: bool, value: u32, replaces: Option<u32> },
    Delete { peer: bool, inbound: bool, value: u32 },
    Receive(u32),
    Pass(u64),
    Apply,
}

fn moves() -> impl Strategy<Value = Move> {
    let value = || 500..512_u32;
    prop_oneof![
        8 => (any::<bool>(), any::<bool>(), value(), prop::option::of(value()))
            .prop_map(|(peer, inbound, value, replaces)| Move::Put {
                peer, inbound, value, replaces,
            }),
        3 => (any::<bool>(), any::<bool>(), value())
            .prop_map(|(peer, inbound, value)| Move::Delete { peer, inbound, value }),
        4 => value().prop_map(Move::Receive),
        3 => prop_oneof![Just(SECOND), Just(LINGER_NS), Just(MOST_LINGER_NS), Just(1)]
            .prop_map(Move::Pass),
        1 => Just(Move::Apply),
    ]
}

impl Twin {
    /// Makes a move; returns whether it is allowed.
    fn make(&mut self, step: &Move, now: u64) -> bool {
        let peer = |of: bool| if of { "b" } else { "a" };
        match step {
            Move::Put { peer: of, inbound: false, value, replaces } => {
                let list = self.outbound.entry(peer(*of)).or_default();
                let old = replaces.map(|old| list.iter().position(|known| *known == old));
                match old {
                    _ if list.contains(value) => return false,
                    None => list.push(*value),
                    Some(None) => return false,
                    Some(Some(place)) => list[place] = *value,
                }
                true
            }
            Move::Put { peer: of, inbound: true, value, replaces } => {
                let peer = peer(*of);
                if self.inbound.contains_key(value) {
                    return false;
                }
                if let Some(old) = replaces {
                    let Some(known) = self.inbound.get_mut(old).filter(|sa| sa.peer == peer) else {
                        return false;
                    };
                    known.replaced.get_or_insert((Vec::new(), now)).0.push(*value);
                }
                let fresh = TwinInbound { peer, received: false, replaced: None, noticed: None };
                self.inbound.insert(*value, fresh);
                true
            }
            Move::Delete { peer: of, inbound: false, value } => {
                let list = self.outbound.entry(peer(*of)).or_default();
                let before = list.len();
                list.retain(|known| known != value);
                list.len() < before
            }
            Move::Delete { peer: of, inbound: true, value } => {
                let is_its = self.inbound.get(value).is_some_and(|sa| sa.peer == peer(*of));
                is_its && self.inbound.remove(value).is_some()
            }
            Move::Receive(value) => self
                .inbound
                .get_mut(value)
                .is_some_and(|sa| !std::mem::replace(&mut sa.received, true)),
            Move::Pass(_) => {
                let all = self.clone();
                for sa in self.inbound.values_mut() {
                    if sa.noticed.is_none() && all.has_begun(sa, 0) {
                        sa.noticed = Some(now);
                    }
                }
                self.inbound.retain(|_, sa| {
                    let Some((_, since)) = &sa.replaced else { return true };
                    let is_over = sa.noticed.is_some_and(|at| now - at >= LINGER_NS);
                    !is_over && now - since < MOST_LINGER_NS
                });
                true
            }
            Move::Apply => true,
        }
    }

    fn has_begun(&self, sa: &TwinInbound, depth: usize) -> bool {
        let by = sa.replaced.iter().flat_map(|(by, _)| by);
        let by = by.filter_map(|value| self.inbound.get(value)).filter(|next| next.peer == sa.peer);
        let mut by = by.filter(|_| depth < 32);
        by.any(|next| next.received || self.has_begun(next, depth + 1))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 24 } else { 200 }))]

    #[test]
    fn puts_deletions_and_time_do_what_lists_do(steps in prop::collection::vec(moves(), 1..60)) {
        let (mut gateway, mut twin) = (Gateway::new(&peers()), Twin::default());
        let mut at = gateway.all();
        for (number, step) in steps.iter().enumerate() {
            let name = |of: bool| if of { "b" } else { "a" };
            let direction = |inbound: bool| if inbound { Inbound } else { Outbound };
            if let Move::Pass(time) = step {
                gateway.now_ns += time;
            }
            let allowed = twin.make(step, gateway.now_ns);
            let done = match step {
                Move::Put { peer, inbound, value, replaces } => {
                    let fresh = sa(direction(*inbound), *value, 1000 + number as u32);
                    let replaces = replaces.map(spi).into_iter().collect();
                    gateway.put(vec![PutSa { replaces, ..of(name(*peer), fresh) }]).is_ok()
                }
                Move::Delete { peer, inbound, value } => {
                    let (direction, peer) = (direction(*inbound), Some(name(*peer).to_owned()));
                    gateway.delete(&[SaName { direction, spi: spi(*value), peer }]).is_ok()
                }
                Move::Receive(value) => {
                    let there = gateway.snapshot.inbound_by_spi(spi(*value));
                    there.is_some_and(|sa| sa.window.commit(1).is_ok())
                }
                Move::Pass(_) => {
                    gateway.pass(0);
                    true
                }
                Move::Apply => gateway.apply(&peers()).is_ok(),
            };
            prop_assert_eq!(done, allowed, "{:?}", step);
            for peer in ["a", "b"] {
                let order = twin.outbound.get(peer).cloned().unwrap_or_default();
                prop_assert_eq!(gateway.order(peer), order);
            }
            let inbound: BTreeMap<u32, &str> =
                twin.inbound.iter().map(|(value, sa)| (*value, sa.peer)).collect();
            let now = gateway.all();
            let run = now.keys().filter(|(direction, _, peer)| {
                *direction == Inbound && peer != "f"
            });
            let run: BTreeMap<u32, &str> =
                run.map(|(_, value, peer)| (*value, peer.as_str())).collect();
            prop_assert_eq!(run, inbound);
            // Whoever stays keeps its slot; nobody shares one.
            let moved = now.iter().find(|(name, slot)| at.get(*name).is_some_and(|at| at != *slot));
            prop_assert_eq!(moved, None);
            at = now;
        }
    }
}
