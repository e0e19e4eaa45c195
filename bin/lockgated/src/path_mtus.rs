//! Path MTUs that fell: an event when ICMP has lowered the path MTU to a peer. The control loop
//! looks once a second, so a peer has at most one event a second; one that is forgotten by its age
//! and learned again with the same value has no other.

use std::collections::HashMap;

use dataplane::{PathMtu, SetSizes, Snapshot};
use policy::SaSetId;

use crate::events::{Events, Kind};

/// The path MTU of each peer that was last told.
#[derive(Default)]
pub(crate) struct PathMtuEvents {
    told: HashMap<SaSetId, (PathMtu, u32)>,
}

/// A path MTU that ICMP has lowered.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LoweredMtu {
    peer: String,
    sizes: SetSizes,
}

impl PathMtuEvents {
    /// Records an event for each peer whose path MTU was lowered since the last look, by the
    /// workers' clock.
    pub(crate) fn report(&mut self, snapshot: &Snapshot, now_ns: u64, events: &Events) {
        for LoweredMtu { peer, sizes } in self.lowered(snapshot, now_ns) {
            let (outer, whole) = (sizes.outer, sizes.whole);
            let message = format!(
                "ICMP from a router says that the path to peer {peer} carries {outer} bytes: inner \
                 packets of up to {whole} bytes pass whole"
            );
            let details: crate::events::Details<'_> = &[("mtu", &outer), ("inner_mtu", &whole)];
            events.record(Kind::PathMtuLowered, &peer, message, details);
        }
    }

    fn lowered(&mut self, snapshot: &Snapshot, now_ns: u64) -> Vec<LoweredMtu> {
        let mut before = std::mem::take(&mut self.told);
        let mut lowered = Vec::new();
        for (place, set) in snapshot.sets() {
            let Some(path) = &set.path_mtu else { continue };
            // At another place the peer has another path.
            let told = before.remove(&set.id).filter(|(known, _)| known == path);
            let Some(mtu) = path.known(now_ns) else {
                self.told.extend(told.map(|told| (set.id, told)));
                continue;
            };
            let sizes = snapshot.set_sizes(place, now_ns);
            if sizes.outer == mtu && told.is_none_or(|(_, told)| told != mtu) {
                lowered.push(LoweredMtu { peer: set.peer.clone(), sizes });
            }
            self.told.insert(set.id, (path.clone(), mtu));
        }
        lowered
    }
}

#[cfg(test)]
mod tests {
    use dataplane::path_mtu::AGE_NS;
    use dataplane::{NextHop, Prefix, RouteTarget};

    use super::*;
    use crate::test_lab::{PEER, TestLab};

    /// MTU and inner MTU of each event.
    fn told(events: &Events) -> Vec<[u64; 2]> {
        let (kept, _) = events.subscribe();
        let falls = kept.iter().filter(|event| event.kind == "path_mtu_lowered");
        let detail = |event: &api::v1::Event, name: &str| event.details[name].to_string();
        falls.map(|e| ["mtu", "inner_mtu"].map(|name| detail(e, name).parse().unwrap())).collect()
    }

    /// The lab's snapshot with a route to the peer.
    fn routed(lab: &TestLab) -> Snapshot {
        let mut sources = lab.state.gateway.snapshot.sources().clone();
        let port = lab.state.gateway.snapshot.port_named("wan").unwrap();
        let everywhere = Prefix { address: wire::Address::v4(0), length: 0 };
        sources.routes.insert(everywhere, RouteTarget::Via(NextHop { port, gateway: None }));
        Snapshot::after(sources, None).unwrap()
    }

    #[test]
    fn a_fall_is_told_once_and_again_only_with_another_value() {
        let lab = TestLab::new(PEER);
        let snapshot = &routed(&lab);
        let (place, set) = snapshot.sets().next().unwrap();
        assert_eq!(snapshot.set_sizes(place, 0).outer, 1500, "the peer has a route");
        let path = set.path_mtu.as_ref().unwrap();
        let mut reported = PathMtuEvents::default();
        let mut look = |now_ns| {
            reported.lowered(snapshot, now_ns).iter().map(|of| of.sizes.outer).collect::<Vec<_>>()
        };
        let start_ns = 1_000_000_000;
        assert!(look(start_ns).is_empty());
        assert!(path.lower(1400, start_ns));
        assert_eq!((look(start_ns), look(start_ns + 1)), (vec![1400], vec![]));
        assert!(path.lower(1300, start_ns + 2));
        assert_eq!((look(start_ns + 2), look(start_ns + 3)), (vec![1300], vec![]));
        // Forgotten, and learned again.
        let later_ns = start_ns + 2 * AGE_NS;
        assert!(look(later_ns).is_empty());
        assert!(path.lower(1300, later_ns));
        assert!(look(later_ns).is_empty());
        assert!(path.lower(1200, later_ns));
        assert_eq!(look(later_ns), [1200]);
        // More than the port carries is no fall.
        assert!(path.lower(9000, later_ns + 2 * AGE_NS));
        assert!(look(later_ns + 2 * AGE_NS).is_empty());
    }

    #[test]
    fn an_event_names_the_peer_and_both_sizes() {
        let lab = TestLab::new(PEER);
        let snapshot = &routed(&lab);
        let (_, set) = snapshot.sets().next().unwrap();
        assert!(set.path_mtu.as_ref().unwrap().lower(1400, 0));
        PathMtuEvents::default().report(snapshot, 0, &lab.events);
        assert_eq!(told(&lab.events), [[1400, 1346]]);
        let (kept, _) = lab.events.subscribe();
        assert_eq!(kept.last().unwrap().subject, "a");
    }
}
