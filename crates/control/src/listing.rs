//! The policies of a configuration as its file lists them, told from those that run.

use std::collections::HashMap;
use std::sync::Arc;

use policy::{PolicyIndex, SaSetId, Spd};

use config::validated::{PeerId, Policy, Validated};

use crate::port_slots::PortSlots;

/// A configuration without its policies, and the order of the policies, whose content the SPD
/// holds. Cheap to copy.
#[derive(Clone)]
pub(crate) struct Listing {
    /// The configuration with an empty list of policies.
    settings: Arc<Validated>,
    /// Slots in the order of the file.
    order: Arc<[PolicyIndex]>,
    /// Slots from this one on came later, and follow in their order.
    listed: usize,
}

impl Listing {
    /// Makes a listing of a configuration whose policies an SPD holds.
    pub(crate) fn new(mut whole: Validated, spd: &Spd) -> Listing {
        let (policies, names) = (std::mem::take(&mut whole.policies), spd.names());
        let order = policies.iter().filter_map(|policy| names.get(&policy.name)).collect();
        Listing { settings: Arc::new(whole), order, listed: spd.slots() }
    }

    /// Returns the same configuration on an SPD that was made of all its policies, those of
    /// `before` and added ones; slots may differ.
    pub(crate) fn upon(&self, spd: &Spd, before: &Spd) -> Listing {
        let names = spd.names();
        // One that went and came again under its name is another, and the newest.
        let place = |slot: PolicyIndex| {
            let policy = before.policy(slot);
            names.get(&policy.name).filter(|now| spd.policy(*now).id == policy.id)
        };
        let mut order: Vec<PolicyIndex> = self.slots(before).filter_map(place).collect();
        let mut is_listed = vec![false; spd.slots()];
        order.iter().for_each(|slot| is_listed[slot.0 as usize] = true);
        let mut came: Vec<_> =
            of_file(spd).filter(|(slot, _)| !is_listed[slot.0 as usize]).collect();
        came.sort_by_key(|(_, policy)| policy.id);
        order.extend(came.into_iter().map(|(slot, _)| slot));
        let (settings, order) = (self.settings.clone(), order.into());
        Listing { settings, order, listed: spd.slots() }
    }

    /// The configuration without its policies.
    pub(crate) fn settings(&self) -> &Arc<Validated> {
        &self.settings
    }

    /// The slots of the policies that hold, in the order of the configuration.
    fn slots(&self, spd: &Spd) -> impl Iterator<Item = PolicyIndex> {
        let mut holds = vec![false; spd.slots()];
        of_file(spd).for_each(|(slot, _)| holds[slot.0 as usize] = true);
        let came = (self.listed as u32..spd.slots() as u32).map(PolicyIndex);
        let all = self.order.iter().copied().chain(came);
        all.filter(move |slot| holds[slot.0 as usize])
    }

    /// The configuration as it is now, with the sets that its peers have and the slots of its
    /// ports. Cost: all policies are copied.
    pub(crate) fn whole(&self, spd: &Spd, sets: &[SaSetId], slots: &PortSlots) -> Validated {
        let peers: HashMap<SaSetId, PeerId> =
            (0..).map(PeerId).zip(sets).map(|(peer, set)| (*set, peer)).collect();
        let mut places = slots.to_places();
        let policies = self.slots(spd).map(|slot| {
            Policy::from_spd(spd.policy(slot), |set| peers[&set], |ports| places.list(ports))
        });
        Validated { policies: policies.collect(), ..(*self.settings).clone() }
    }
}

/// The policies that hold and are none of charon's own.
fn of_file(spd: &Spd) -> impl Iterator<Item = (PolicyIndex, &policy::Policy)> {
    spd.holding_policies().filter(|(_, policy)| !policy.id.is_behind())
}
