//! The networks that are open or ask, and the overlays by which their packets come in.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use bpf::MAX_TIER_OVERLAYS;
use bpf::tier::{NetworkState, Overlay, QUARANTINE, State};
use dataplane::{JudgedBy, NetworkBelow, OverlayId, PortId, Snapshot};
use wire::{Address, Family, Vni};

use crate::place::PortPlace;
use crate::slots::Slots;
use crate::tables::Tables;

/// A network that is open, or asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenNetwork {
    pub(crate) overlay: OverlayId,
    /// Its number in the table.
    pub(crate) number: u32,
    state: NetworkState,
    /// The rules by which verdicts of its generation are given; `None`: none are.
    by: Option<JudgedBy>,
}

impl OpenNetwork {
    /// The generation that the network has in the table, if it is there as the walk leaves it to
    /// the tier; 0: it is open.
    pub(crate) fn generation_by(&self, below: NetworkBelow) -> Option<u32> {
        match below {
            NetworkBelow::Open => (self.state == NetworkState::Open).then_some(0),
            NetworkBelow::Asks(by) => self.generation_of(by),
            NetworkBelow::Closed => None,
        }
    }

    /// The generation of the verdicts that hold, if they are those of these rules.
    pub(crate) fn generation_of(&self, by: JudgedBy) -> Option<u32> {
        self.generation().filter(|_| self.by == Some(by))
    }

    /// The generation of the verdicts that hold.
    pub(crate) fn generation(&self) -> Option<u32> {
        match self.state {
            NetworkState::Asks { generation } => Some(generation),
            NetworkState::Open | NetworkState::Closed => None,
        }
    }
}

/// Returns whether a network is in the table as a snapshot leaves it to the tier.
fn fits(known: &OpenNetwork, below: NetworkBelow) -> bool {
    match below {
        NetworkBelow::Open => known.state == NetworkState::Open,
        NetworkBelow::Asks(by) => known.by == Some(by),
        NetworkBelow::Closed => false,
    }
}

/// Networks and overlays in the tables.
pub(crate) struct Gates {
    networks: BTreeMap<Vni, OpenNetwork>,
    numbers: Slots,
    /// The generation that a network got last: each gets one that none had before.
    generation: u32,
    overlays: BTreeMap<OverlayId, Overlay>,
    /// The moments from which overlays that were closed may be opened.
    closed: BTreeMap<OverlayId, u64>,
}

/// The networks and overlays that the walk leaves to a lower tier.
struct Allowed {
    networks: BTreeMap<Vni, (OverlayId, NetworkBelow)>,
    overlays: BTreeMap<OverlayId, Overlay>,
}

impl Allowed {
    fn by(snapshot: &Snapshot, place_of: &impl Fn(PortId) -> Option<PortPlace>) -> Allowed {
        let mut allowed = Allowed { networks: BTreeMap::new(), overlays: BTreeMap::new() };
        let Some(overlays) = snapshot.overlays() else { return allowed };
        for network in overlays.networks() {
            let below = snapshot.network_below(network);
            if below != NetworkBelow::Closed {
                allowed.networks.insert(network.vni, (network.overlay, below));
            }
        }
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
            generation: 0,
            overlays: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// A network, if it is open or asks.
    pub(crate) fn network(&self, vni: Vni) -> Option<OpenNetwork> {
        self.networks.get(&vni).copied()
    }

    /// Returns whether packets of an overlay come in.
    pub(crate) fn has_entrance(&self, overlay: OverlayId) -> bool {
        self.overlays.contains_key(&overlay)
    }

    /// Networks that are open or ask.
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
        for (vni, known) in self.networks.clone() {
            let OpenNetwork { overlay, number, .. } = known;
            match allowed.networks.get(&vni) {
                Some((of, below)) if *of == overlay && fits(&known, *below) => {}
                // Whatever verdicts there are, they hold no longer.
                Some((of, below)) if *of == overlay => {
                    let by = match below {
                        NetworkBelow::Asks(by) => Some(*by),
                        NetworkBelow::Open | NetworkBelow::Closed => None,
                    };
                    let state = self.asking();
                    self.set(tables, vni, OpenNetwork { state, by, ..known })?;
                }
                _ => {
                    tables.set_network(
                        number,
                        vni.get(),
                        overlay.0.into(),
                        NetworkState::Closed,
                    )?;
                    self.networks.remove(&vni);
                    self.numbers.give(number, now_ns);
                }
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
        for (vni, (overlay, below)) in allowed.networks {
            let number = match self.networks.get(&vni) {
                Some(known) if fits(known, below) => continue,
                Some(known) => Some(known.number),
                None => self.numbers.take(now_ns),
            };
            let Some(number) = number else { continue };
            let (state, by) = match below {
                NetworkBelow::Open => (NetworkState::Open, None),
                NetworkBelow::Asks(by) => (self.asking(), Some(by)),
                NetworkBelow::Closed => continue,
            };
            self.set(tables, vni, OpenNetwork { overlay, number, state, by })?;
        }
        Ok(())
    }

    /// The state of a network that asks, and of which there is no verdict yet.
    fn asking(&mut self) -> NetworkState {
        // When all numbers are used up no network asks any more, until the tables are new ones.
        let next = self.generation.checked_add(1);
        self.generation = next.unwrap_or(self.generation);
        next.map_or(NetworkState::Closed, |generation| NetworkState::Asks { generation })
    }

    fn set<T: Tables>(
        &mut self,
        tables: &T,
        vni: Vni,
        network: OpenNetwork,
    ) -> Result<(), T::Error> {
        let OpenNetwork { overlay, number, state, .. } = network;
        tables.set_network(number, vni.get(), overlay.0.into(), state)?;
        self.networks.insert(vni, network);
        Ok(())
    }
}
