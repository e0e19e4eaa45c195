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
