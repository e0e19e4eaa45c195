//! Virtual networks: tenants' packets that hosts send each other in VXLAN or Geneve, by way of this
//! gateway.
//!
//! A host sends an overlay packet to one of our [entrances](Overlay::entrances). The network that
//! its header names says which groups judge the packet in it; the table of
//! [endpoints](endpoints::Table) says which host has its destination. There it goes on, in the same
//! overlay header. What leaves is an IP packet like any other: by its route, and sealed where the
//! outbound SPD says so.
//!
//! `decide/crossing.rs` is the stage of the walk that does so.
//!
//! Not built: flooding, routes between networks, ways out of a network to a port.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use endpoints::Table;
use foldhash::fast::FixedState;
use wire::overlay::Kind;
use wire::{Address, Family, Vni};

use crate::ids::PortId;

/// The place of an overlay in [`Overlays`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OverlayId(pub u16);

/// An overlay: how hosts' packets reach us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay {
    /// Name in the configuration.
    pub name: String,
    /// Form of its packets.
    pub kind: Kind,
    /// UDP port that its packets are sent to.
    pub udp_port: u16,
    /// The port that its packets come by, unless an SA opened them.
    pub port: PortId,
    /// Our addresses that hosts send to.
    pub entrances: Vec<Address>,
    /// UDP port that hosts hear about direct paths at; `None`: they are told none.
    pub direct_port: Option<u16>,
}

/// The part of a sender that must be known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SourceCheck {
    /// The inner source, with its link address, is an endpoint behind the host that sends.
    #[default]
    Endpoint,
    /// The host that sends has an endpoint of the network.
    Host,
    /// Nothing.
    None,
}

/// A virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualNetwork {
    /// Its number.
    pub vni: Vni,
    /// The overlay that carries it.
    pub overlay: OverlayId,
    /// Slot of the network in rules of groups and in counts of connections, at or above
    /// [`Zone::FIRST_NETWORK`](crate::connections::Zone::FIRST_NETWORK); `None`: no groups.
    pub attachment: Option<u16>,
    /// The part of a sender that must be known.
    pub source_check: SourceCheck,
}

/// The overlays and virtual networks of a snapshot, with the table of endpoints that all snapshots
/// share.
pub struct Overlays {
    overlays: Box<[Overlay]>,
    /// Entrances with their UDP ports, ascending.
    entrances: Box<[(u16, Address, OverlayId)]>,
    /// The UDP ports, with the ports that they are on.
    ports: Box<[(u16, PortId)]>,
    networks: HashMap<Vni, VirtualNetwork, FixedState>,
    endpoints: Arc<Table>,
    number: u64,
}

/// Number of the next [`Overlays`] of the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Overlays {
    /// Puts overlays and networks together. Of two overlays with one entrance and UDP port the
    /// first has it; a network whose overlay is not there is reached by none.
    pub fn new(
        overlays: Vec<Overlay>,
        networks: impl IntoIterator<Item = VirtualNetwork>,
        endpoints: Arc<Table>,
    ) -> Overlays {
        let mut entrances: Vec<(u16, Address, OverlayId)> = (0..)
            .map(OverlayId)
            .zip(&overlays)
            .flat_map(|(id, overlay)| {
                overlay.entrances.iter().map(move |entrance| (overlay.udp_port, *entrance, id))
            })
            .collect();
        entrances.sort_by_key(|(port, entrance, id)| (*port, *entrance, id.0));
        entrances.dedup_by_key(|(port, entrance, _)| (*port, *entrance));
        let ports = overlays.iter().map(|overlay| (overlay.udp_port, overlay.port)).collect();
        let networks = networks.into_iter().map(|network| (network.vni, network)).collect();
        Overlays {
            overlays: overlays.into(),
            entrances: entrances.into(),
            ports,
            networks,
            endpoints,
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
        }
    }

    /// The number of the overlays and networks, which no others of the process have.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The overlays; [`OverlayId`] counts into them.
    pub fn overlays(&self) -> &[Overlay] {
        &self.overlays
    }

    /// The virtual networks, in no order.
    pub fn networks(&self) -> impl Iterator<Item = &VirtualNetwork> {
        self.networks.values()
    }

    /// Returns the slot of a network; `None`: the network has no groups, or is not here.
    pub(crate) fn slot_of(&self, vni: Vni) -> Option<u16> {
        self.networks.get(&vni)?.attachment
    }

    /// The table of endpoints.
    pub fn endpoints(&self) -> &Arc<Table> {
        &self.endpoints
    }

    /// Returns the overlay with this UDP port and entrance.
    #[inline]
    pub(crate) fn of_entrance(
        &self,
        udp_port: u16,
        entrance: Address,
    ) -> Option<(OverlayId, &Overlay)> {
        let key = |(port, address, _): &(u16, Address, OverlayId)| (*port, *address);
        let at = self.entrances.binary_search_by_key(&(udp_port, entrance), key).ok()?;
        let (.., id) = self.entrances[at];
        Some((id, &self.overlays[usize::from(id.0)]))
    }

    /// Returns whether packets to a UDP port may be of an overlay.
    #[inline]
    pub(crate) fn has_udp_port(&self, udp_port: u16) -> bool {
        self.ports.iter().any(|(of, _)| *of == udp_port)
    }

    /// Returns whether an overlay with a UDP port is on a port.
    pub(crate) fn is_on(&self, udp_port: u16, port: PortId) -> bool {
        self.ports.contains(&(udp_port, port))
    }

    /// Returns the overlay with this UDP port and entrance, if it is on a port.
    pub(crate) fn entered_on(
        &self,
        port: PortId,
        udp_port: u16,
        entrance: Address,
    ) -> Option<(OverlayId, &Overlay)> {
        let entered = self.has_udp_port(udp_port).then(|| self.of_entrance(udp_port, entrance));
        entered.flatten().filter(|(_, overlay)| overlay.port == port)
    }

    /// Returns an overlay.
    ///
    /// # Panics
    /// If it is one of others.
    pub(crate) fn overlay(&self, id: OverlayId) -> &Overlay {
        &self.overlays[usize::from(id.0)]
    }

    /// Returns a network of an overlay.
    #[inline]
    pub fn network(&self, vni: Vni, overlay: OverlayId) -> Option<&VirtualNetwork> {
        self.networks.get(&vni).filter(|network| network.overlay == overlay)
    }
}

impl Overlay {
    /// Returns the entrance of a family from which packets are sent to hosts of that family.
    pub(crate) fn entrance(&self, family: Family) -> Option<Address> {
        self.entrances.iter().copied().find(|entrance| entrance.family == family)
    }
}
