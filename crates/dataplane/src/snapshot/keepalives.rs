//! The sets with NAT keepalives (RFC 3948 §4). The control plane lists the sets, so that workers
//! visit no other set.

use std::sync::Arc;

use imbl::OrdMap;
use ipsec::encapsulation::UdpPorts;
use ipsec::{Encapsulation, SaId, Tunnel};
use policy::{SaSetId, SetIndex};

use super::{Snapshot, Sources};
use crate::sa_set::SaSet;
use crate::silence::PeerSilence;

/// Sets with keepalives, by place.
pub(crate) type KeepaliveSets = OrdMap<SetIndex, KeepaliveSet>;

/// A set with keepalives.
#[derive(Clone)]
pub(crate) struct KeepaliveSet {
    id: SaSetId,
    pub(crate) silence: Arc<PeerSilence>,
}

/// Settings of a set's keepalives.
pub(crate) struct KeepaliveSettings {
    pub(crate) after_ns: u64,
    /// The SA whose ends the keepalives have.
    pub(crate) sa: SaId,
    pub(crate) tunnel: Tunnel,
    pub(crate) ports: UdpPorts,
}

/// Returns the list of an earlier snapshot without the removed sets.
pub(super) fn listed_before(earlier: &Snapshot, sources: &Sources) -> KeepaliveSets {
    let mut listed = earlier.keepalives.clone();
    for (place, before) in &earlier.keepalives {
        if sources.sad.set(*place).is_none_or(|set| set.id != before.id) {
            listed.remove(place);
        }
    }
    listed
}

impl Snapshot {
    /// The sets with keepalives.
    pub(crate) fn keepalive_sets(&self) -> &KeepaliveSets {
        &self.keepalives
    }

    /// Returns the settings of a set's keepalives; `None`: the set has no keepalives, no outbound
    /// SA or no ESP in UDP.
    pub(crate) fn keepalive_settings(&self, set: &SaSet) -> Option<KeepaliveSettings> {
        let after_ns = u64::from(set.keepalive_s?) * 1_000_000_000;
        // Of SAs with several ends the newest has the peer's present ones.
        let sa = *set.outbound.last()?;
        let Encapsulation { tunnel, udp, .. } = self.outbound_sa(sa).encapsulation;
        Some(KeepaliveSettings { after_ns, sa, tunnel, ports: udp? })
    }

    /// Lists the set at a place, or unlists the place. A listed set keeps its silence.
    pub(super) fn list_keepalives(&mut self, place: SetIndex) {
        let wants = |set: &&SaSet| self.keepalive_settings(set).is_some();
        let Some(id) = self.find_set(place).filter(wants).map(|set| set.id) else {
            self.keepalives.remove(&place);
            return;
        };
        if self.keepalives.get(&place).is_none_or(|listed| listed.id != id) {
            self.keepalives.insert(place, KeepaliveSet { id, silence: Arc::default() });
        }
    }
}
