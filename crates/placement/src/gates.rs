//! The networks that are open, and the overlays by which their packets come in.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use bpf::MAX_TIER_OVERLAYS;
use bpf::tier::{NetworkState, Overlay, QUARANTINE, State};
use dataplane::{OverlayId, PortId, Snapshot};
use wire::{Address, Family, Vni};

use crate::place::PortPlace;
use crate::slots::Slots;
use crate::tables::Tables;

/// An open network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenNetwork {
    pub(crate) overlay: OverlayId,
    /// Its number in the table.
    pub(crate) number: u32,
}

/// Networks and overlays in the tables.
pub(crate) struct Gates {
    networks: BTreeMap<Vni, OpenNetwork>,
    numbers: Slots,
    overlays: BTreeMap<OverlayId, Overlay>,
    /// The moments from which overlays that were closed may be opened.
    closed: BTreeMap<OverlayId, u64>,
}

/// The networks and overlays that the walk leaves to a lower tier.
struct Allowed {
    networks: BTreeMap<Vni, OverlayId>,
    overlays: BTreeMap<OverlayId, Overlay>,
}

impl Allowed {
    fn by(snapshot: &Snapshot, place_of: &impl Fn(PortId) -> Option<PortPlace>) -> Allowed {
        let mut allowed = Allowed { networks: BTreeMap::new(), overlays: BTreeMap::new() };
        let Some(overlays) = snapshot.overlays() else { return allowed };
        let open = overlays.networks().filter(|network| snapshot.is_open_below(network));
        allowed.networks = open.map(|network| (network.vni, network.overlay)).collect();
        let known = overlays.overlays().iter().take(MAX_TIER_OVERLAYS as usize).enumerate();
        for (number, overlay) in known {
            let Some(PortPlace { ifindex, vlan, .. }) = place_of(overlay.port) else { continue };
            let entrances = overlay.entrances.iter().filter_map(|entrance| v4(*entrance)).collect();
            let unsummed = snapshot.completes_checksums_of(overlay.port);
            let (kind, udp_port) = (overlay.kind, overlay.udp_port);
            let overlay = Overlay { kind, udp_port, ifindex, vlan, entrances, unsummed };
            allowed.overlays.insert(OverlayId(number as u16), overlay);
        }
        allowed
    }
}

/// An address of IPv4.
pub(crate) fn v4(address: Address) -> Option<Ipv4Addr> {
    (address.family == Family::V4).then(|| Ipv4Addr::from(address.value as u32))
}

impl Gates {
    /// For a table with room for so many networks.
    pub(crate) fn new(networks: u32) -> Gates {
        Gates {
            networks: BTreeMap::new(),
            numbers: Slots::new(0, networks),
            overlays: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// A network, if it is open.
    pub(crate) fn network(&self, vni: Vni) -> Option<OpenNetwork> {
        self.networks.get(&vni).copied()
    }

    /// Networks that are open.
    pub(crate) fn networks(&self) -> usize {
        self.networks.len()
    }

    /// Closes what a snapshot does not leave to the tier, or not in the way it is.
    ///
    /// # Errors
    /// A table refuses it: some is open still.
    pub(crate) fn narrow<T: Tables>(
        &mut self,
        tables: &T,
        now_ns: u64,
        (snapshot, place_of): (&Snapshot, &impl Fn(PortId) -> Option<PortPlace>),
    ) -> Result<(), T::Error> {
        let allowed = Allowed::by(snapshot, place_of);
        for (vni, OpenNetwork { overlay, number }) in self.networks.clone() {
            if allowed.networks.get(&vni) != Some(&overlay) {
                tables.set_network(number, vni.get(), overlay.0.into(), NetworkState::Closed)?;
                self.networks.remove(&vni);
                self.numbers.give(number, now_ns);
            }
        }
        for (id, overlay) in self.overlays.clone() {
            if allowed.overlays.get(&id) != Some(&overlay) {
                tables.set_overlay(id.0.into(), &overlay, State::Closed)?;
                self.overlays.remove(&id);
                self.closed.insert(id, now_ns + QUARANTINE.as_nanos() as u64);
            }
        }
        Ok(())
    }

    /// Opens what a snapshot leaves to the tier, and has been closed long enough.
    ///
    /// # Errors
    /// A table refuses it: some stays closed.
    pub(crate) fn widen<T: Tables>(
        &mut self,
        tables: &T,
        now_ns: u64,
        (snapshot, place_of): (&Snapshot, &impl Fn(PortId) -> Option<PortPlace>),
    ) -> Result<(), T::Error> {
        let allowed = Allowed::by(snapshot, place_of);
        self.closed.retain(|_, from_ns| *from_ns > now_ns);
        for (id, overlay) in allowed.overlays {
            if !self.overlays.contains_key(&id) && !self.closed.contains_key(&id) {
                tables.set_overlay(id.0.into(), &overlay, State::Open)?;
                self.overlays.insert(id, overlay);
            }
        }
        for (vni, overlay) in allowed.networks {
            if self.networks.contains_key(&vni) {
                continue;
            }
            let Some(number) = self.numbers.take(now_ns) else { continue };
            tables.set_network(number, vni.get(), overlay.0.into(), NetworkState::Open)?;
            self.networks.insert(vni, OpenNetwork { overlay, number });
        }
        Ok(())
    }
}
