//! The ports of a snapshot, and tables computed from the ports alone.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use persistent::Slotted;
use policy::{PortClass, Spd};
use wire::{Address, Family, LinkAddress};

use super::Snapshot;
use crate::error::SnapshotError;
use crate::ids::{NetdevId, PortId, RouteGeneration};
use crate::port::{Medium, PortInfo, Side};

/// Ports by slot; [`PortId`] counts into it. A port keeps its slot as long as it is there.
pub type PortInfos = Slotted<PortInfo>;

/// The ports.
pub(super) struct Ports {
    pub(super) infos: PortInfos,
    /// Our addresses on unprotected ports.
    pub(super) outside: HashSet<Address, FixedState>,
    pub(super) speakers: Speakers,
    /// [`NetdevId`] counts into this list.
    pub(super) netdevs: Box<[Option<Netdev>]>,
}

/// Our addresses to speak from where a port has no address.
#[derive(Default)]
pub(super) struct Speakers {
    /// The first of any port.
    pub(super) any: FirstAddresses,
    /// The first of a protected port.
    pub(super) inside: FirstAddresses,
}

/// The first address of each family.
#[derive(Default)]
pub(super) struct FirstAddresses {
    v4: Option<Address>,
    v6: Option<Address>,
}

impl FirstAddresses {
    pub(super) fn get(&self, family: Family) -> Option<Address> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn add(&mut self, port: &PortInfo) {
        self.v4 = self.v4.or_else(|| port.address_of(Family::V4));
        self.v6 = self.v6.or_else(|| port.address_of(Family::V6));
    }
}

/// A netdev's ports.
#[derive(Clone, Debug)]
pub(super) struct Netdev {
    pub(super) untagged: Option<PortId>,
    /// Ports by VLAN id, up to the highest id; empty: no port has an id.
    pub(super) tagged: Vec<Option<PortId>>,
    pub(super) medium: Medium,
    /// True if one of the ports completes checksums.
    pub(super) completes_checksums: bool,
    /// The route generation with which it came into its slot.
    pub(super) since: RouteGeneration,
}

/// The fields of a port that each packet needs, on half a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathPort {
    pub(crate) mac: LinkAddress,
    pub(crate) netdev: NetdevId,
    pub(crate) mtu: u32,
    pub(crate) vlan: Option<u16>,
    pub(crate) side: Side,
    pub(crate) medium: Medium,
    pub(crate) class: PortClass,
    pub(crate) completes_checksums: bool,
}

impl PathPort {
    /// Fills a vacant slot: no packet comes or leaves by it.
    fn vacant() -> PathPort {
        PathPort {
            mac: LinkAddress::new([0; 6]),
            netdev: NetdevId(u16::MAX),
            mtu: 0,
            vlan: None,
            side: Side::Unprotected,
            medium: Medium::Ip,
            class: PortClass(0),
            completes_checksums: false,
        }
    }
}

impl Ports {
    /// Makes the tables of ports that come with a route generation, after earlier ones.
    pub(super) fn new(
        infos: PortInfos,
        earlier: Option<&Ports>,
        generation: RouteGeneration,
    ) -> Result<Ports, SnapshotError> {
        if let Some(earlier) = earlier {
            let mut others = infos.changes(&earlier.infos, PortInfo::is_port);
            let means_two = others.find(|(_, before, now)| before.is_some() && now.is_some());
            if let Some((slot, ..)) = means_two {
                return Err(SnapshotError::OtherPort(PortId(slot as u16)));
            }
        }
        let unprotected = infos.iter().filter(|(_, port)| port.side == Side::Unprotected);
        let outside = unprotected.flat_map(|(_, port)| port.addresses.iter().copied()).collect();
        let mut speakers = Speakers::default();
        for (_, port) in infos.iter() {
            speakers.any.add(port);
            if port.side == Side::Protected {
                speakers.inside.add(port);
            }
        }
        let mut netdevs = netdevs(&infos, generation)?;
        let before = earlier.map_or(&[][..], |earlier| &earlier.netdevs);
        for (now, before) in netdevs.iter_mut().zip(before) {
            if let (Some(now), Some(before)) = (now, before) {
                now.since = before.since;
            }
        }
        Ok(Ports { infos, outside, speakers, netdevs })
    }

    /// Returns the number of slots up to the last one that is not vacant.
    pub(super) fn slots(&self) -> usize {
        self.infos.iter().last().map_or(0, |(last, _)| last + 1)
    }

    /// Returns the fields of the ports that packets need, with the classes that policies put them
    /// into.
    pub(super) fn on_path(&self, spd: &Spd) -> Arc<[PathPort]> {
        let path_port = |place: usize| {
            let Some(info) = self.infos.get(place) else { return PathPort::vacant() };
            let PortInfo { netdev, mtu, vlan, side, medium, .. } = *info;
            let (mac, class) = (LinkAddress::new(info.mac), spd.class(place as u16));
            let completes_checksums = info.completes_checksums();
            PathPort { mac, netdev, mtu, vlan, side, medium, class, completes_checksums }
        };
        (0..self.slots()).map(path_port).collect()
    }
}

fn netdevs(
    ports: &PortInfos,
    generation: RouteGeneration,
) -> Result<Box<[Option<Netdev>]>, SnapshotError> {
    let count = ports.iter().map(|(_, port)| usize::from(port.netdev.0) + 1).max().unwrap_or(0);
    let mut netdevs: Vec<Option<Netdev>> = vec![None; count];
    for (place, port) in ports.iter() {
        let id = PortId(place as u16);
        let netdev = netdevs[usize::from(port.netdev.0)].get_or_insert(Netdev {
            untagged: None,
            tagged: Vec::new(),
            medium: port.medium,
            completes_checksums: false,
            since: generation,
        });
        netdev.completes_checksums |= port.completes_checksums();
        let earlier = match port.vlan {
            None => netdev.untagged.replace(id),
            Some(tag) => {
                let place = usize::from(tag);
                if netdev.tagged.len() <= place {
                    netdev.tagged.resize(place + 1, None);
                }
                netdev.tagged[place].replace(id)
            }
        };
        if let Some(earlier) = earlier {
            return Err(SnapshotError::SamePort(earlier, id));
        }
    }
    Ok(netdevs.into())
}

impl Snapshot {
    /// Returns the number of slots of ports, vacant or not: all ports are below it.
    pub fn port_slots(&self) -> usize {
        self.path_ports.len()
    }

    /// Returns the number of slots of netdevs, vacant or not: all netdevs are below it.
    pub fn netdev_slots(&self) -> usize {
        self.ports.netdevs.len()
    }

    /// Returns the ports of an earlier snapshot that are no longer in their slots.
    pub fn ports_gone_since<'s>(
        &'s self,
        before: &'s Snapshot,
    ) -> impl Iterator<Item = PortId> + 's {
        let changes = self.ports.infos.changes(&before.ports.infos, PortInfo::is_port);
        changes.filter(|(_, _, now)| now.is_none()).map(|(slot, ..)| PortId(slot as u16))
    }

    /// Returns whether an address is the gateway's own, on an unprotected port.
    pub(crate) fn is_own_outside(&self, address: Address) -> bool {
        self.ports.outside.contains(&address)
    }

    /// Our address of a family to speak from: the port's own, else the first of any other port.
    pub(crate) fn own_address(&self, port: PortId, family: Family) -> Option<Address> {
        let own = self.port(port).address_of(family);
        own.or_else(|| self.ports.speakers.any.get(family))
    }

    /// Our first address of a family on a protected port.
    pub(crate) fn address_inside(&self, family: Family) -> Option<Address> {
        self.ports.speakers.inside.get(family)
    }
}
