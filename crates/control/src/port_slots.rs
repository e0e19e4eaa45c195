//! Slots of ports, netdevs, and virtual networks with groups. A port keeps its slot whatever other
//! ports come and go: counters, policies, connections, neighbours and waiting packets name the port
//! by its slot. Name, netdev and VLAN id identify a port; the name identifies a netdev, the VNI a
//! virtual network.
//!
//! Every compiled configuration holds its slots. A slot is assigned again only after all
//! configurations with this slot are gone. The configuration of the workers is held until all
//! workers have gone over to the next, so two neighbouring snapshots never mean two ports, or two
//! networks, by one slot.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Weak};

use config::validated::IngressPorts;
use config::{FIRST_NETWORK, HOST_NETDEV, HOST_PORT, Validated};
use dataplane::{NetdevId, PortId, PortInfo};
use wire::Vni;

/// The slots of a configuration's ports and netdevs, the host port among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSlots {
    /// Rows in the order of the file, the host port's last.
    rows: Vec<Row>,
    /// The numbers under which rules name virtual networks: those that list groups, ascending by
    /// their VNIs. They lie above all slots of ports.
    networks: Vec<(Vni, u16)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    key: PortKey,
    port: PortId,
    netdev: NetdevId,
}

/// The properties that make a port the same one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PortKey {
    name: String,
    netdev: String,
    vlan: Option<u16>,
}

impl PortSlots {
    /// Returns the slots of a configuration before which none was: ports and netdevs in the order
    /// of the file, the host port last.
    pub fn in_order(config: &Validated) -> PortSlots {
        PortSlots::beside(config, &[]).unwrap_or_default()
    }

    /// Assigns slots to the ports of a configuration. A port keeps the slot that it holds; a new
    /// port gets the lowest free one. `None`: no slot is free.
    fn beside(config: &Validated, held: &[Arc<PortSlots>]) -> Option<PortSlots> {
        let rows = || held.iter().flat_map(|slots| &slots.rows);
        let mut ports =
            Slots::of(rows().map(|row| (row.key.clone(), row.port.0)), 0..FIRST_NETWORK - 1);
        let mut netdevs =
            Slots::of(rows().map(|row| (row.key.netdev.clone(), row.netdev.0)), 0..u16::MAX);
        let configured = config.ports.iter().map(|port| PortKey {
            name: port.name.clone(),
            netdev: port.netdev.clone(),
            vlan: port.vlan,
        });
        let host = PortKey { name: HOST_PORT.into(), netdev: HOST_NETDEV.into(), vlan: None };
        let row = |key: PortKey| {
            let netdev = NetdevId(netdevs.slot_of(&key.netdev)?);
            Some(Row { port: PortId(ports.slot_of(&key)?), netdev, key })
        };
        let rows = configured.chain([host]).map(row).collect::<Option<_>>()?;
        let known = held.iter().flat_map(|slots| slots.networks.iter().copied());
        let mut numbers = Slots::of(known, FIRST_NETWORK..u16::MAX);
        let number = |(vni, _)| Some((vni, numbers.slot_of(&vni)?));
        let networks = config.network_attachments().map(number).collect::<Option<_>>()?;
        Some(PortSlots { rows, networks })
    }

    /// Returns the number under which rules name a virtual network; `None`: it lists no groups.
    pub(crate) fn attachment(&self, vni: Vni) -> Option<u16> {
        let place = self.networks.binary_search_by_key(&vni, |(known, _)| *known).ok()?;
        Some(self.networks[place].1)
    }

    /// Returns the ports in the order of the file, the host port last.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.rows.iter().map(|row| row.port)
    }

    /// Returns the host port.
    ///
    /// # Panics
    /// If these are slots of no configuration.
    pub fn host(&self) -> PortId {
        self.rows[self.rows.len() - 1].port
    }

    /// Returns the netdev of the host port.
    ///
    /// # Panics
    /// If these are slots of no configuration.
    pub fn host_netdev(&self) -> NetdevId {
        self.rows[self.rows.len() - 1].netdev
    }

    /// Returns the place of a port in the order of the file; the host port's is behind the last.
    pub fn place_of(&self, port: PortId) -> Option<usize> {
        self.rows.iter().position(|row| row.port == port)
    }

    /// Returns the netdev of a name.
    pub fn netdev_named(&self, name: &str) -> Option<NetdevId> {
        self.rows.iter().find(|row| row.key.netdev == name).map(|row| row.netdev)
    }

    /// Returns the ports as the configuration describes them, with the netdevs that they are on, in
    /// the order of the file, the host port last.
    pub(crate) fn infos(&self, config: &Validated) -> impl Iterator<Item = (PortId, PortInfo)> {
        let rows = self.rows.iter().zip(config.port_infos());
        rows.map(|(row, info)| (row.port, PortInfo { netdev: row.netdev, ..info }))
    }

    /// Returns the translation of lists of ports from places in the file into slots.
    pub(crate) fn to_slots(&self) -> Renumbering {
        let networks = (FIRST_NETWORK..).zip(self.networks.iter().map(|(_, number)| *number));
        Renumbering::of((0..).zip(self.ports().map(|port| port.0)).chain(networks))
    }

    /// Returns the translation of lists of ports from slots into places in the file.
    pub(crate) fn to_places(&self) -> Renumbering {
        let networks = self.networks.iter().map(|(_, number)| *number).zip(FIRST_NETWORK..);
        Renumbering::of(self.ports().map(|port| port.0).zip(0..).chain(networks))
    }
}

/// The slots that compiled configurations hold.
#[derive(Clone, Default)]
pub(crate) struct HeldSlots(Vec<Weak<PortSlots>>);

impl HeldSlots {
    /// Returns slots for a configuration; `None`: there are not enough.
    pub(crate) fn slots_for(&self, config: &Validated) -> Option<Arc<PortSlots>> {
        let held: Vec<Arc<PortSlots>> = self.0.iter().filter_map(Weak::upgrade).collect();
        let slots = PortSlots::beside(config, &held)?;
        let same = held.into_iter().find(|held| **held == slots);
        Some(same.unwrap_or_else(|| slots.into()))
    }

    /// Keeps slots from being reused until no reference to them is left.
    pub(crate) fn hold(&mut self, slots: &Arc<PortSlots>) {
        self.0.retain(|held| held.strong_count() > 0);
        if !self.0.iter().any(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(slots))) {
            self.0.push(Arc::downgrade(slots));
        }
    }
}

/// Slots while they are being given.
struct Slots<K> {
    known: HashMap<K, u16>,
    taken: HashSet<u16>,
    /// Slots that are left; all before the first are taken.
    left: Range<u16>,
}

impl<K: Clone + Eq + Hash> Slots<K> {
    /// Slots of a range, of which some are known.
    fn of(known: impl Iterator<Item = (K, u16)>, all: Range<u16>) -> Slots<K> {
        let known: HashMap<K, u16> = known.collect();
        let taken = known.values().copied().collect();
        Slots { known, taken, left: all }
    }

    /// Returns the slot of a key, or assigns the lowest vacant one. `None`: no slot is vacant.
    fn slot_of(&mut self, key: &K) -> Option<u16> {
        if let Some(slot) = self.known.get(key) {
            return Some(*slot);
        }
        let slot = self.left.find(|slot| !self.taken.contains(slot))?;
        self.known.insert(key.clone(), slot);
        Some(slot)
    }
}

/// A translation of lists of ports. Policies share their lists, so each is translated once.
pub(crate) struct Renumbering {
    numbers: HashMap<u16, u16>,
    /// True if every port keeps its number.
    is_same: bool,
    /// Lists by their addresses, which they keep while they are in here.
    known: HashMap<usize, [Arc<[u16]>; 2]>,
}

impl Renumbering {
    fn of(numbers: impl Iterator<Item = (u16, u16)>) -> Renumbering {
        let numbers: HashMap<u16, u16> = numbers.collect();
        let is_same = numbers.iter().all(|(from, to)| from == to);
        Renumbering { numbers, is_same, known: HashMap::new() }
    }

    /// Translates a list of ports; the result is ascending.
    ///
    /// # Panics
    /// If it names a port of another configuration.
    pub(crate) fn list(&mut self, list: &Arc<[u16]>) -> Arc<[u16]> {
        if self.is_same {
            return list.clone();
        }
        let translated = || {
            let mut numbers: Vec<u16> = list.iter().map(|number| self.numbers[number]).collect();
            numbers.sort_unstable();
            [list.clone(), numbers.into()]
        };
        self.known.entry(list.as_ptr() as usize).or_insert_with(translated)[1].clone()
    }

    /// Translates the ports that a configured policy speaks of.
    pub(crate) fn ingress(&mut self, ports: &IngressPorts) -> Arc<[u16]> {
        self.list(ports.numbers())
    }
}
