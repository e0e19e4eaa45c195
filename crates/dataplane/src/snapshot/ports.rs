//! The ports of a snapshot, and tables computed from the ports alone.

use std::sync::Arc;

use persistent::Slotted;
use policy::{PortClass, Spd};
use wire::{Address, LinkAddress};

use crate::error::SnapshotError;
use crate::ids::{NetdevId, PortId, RouteGeneration};
use crate::port::{Medium, PortInfo, Side};

/// Ports by slot; [`PortId`] counts into it. A port keeps its slot as long as it is there.
pub type PortInfos = Slotted<PortInfo>;

/// The ports.
pub(super) struct Ports {
    pub(super) infos: PortInfos,
    /// Our addresses on unprotected ports.
    pub(super) outside: Box<[Address]>,
    /// [`NetdevId`] counts into this list.
    pub(super) netdevs: Box<[Option<Netdev>]>,
}

/// A netdev's ports.
#[derive(Clone, Debug)]
pub(super) struct Netdev {
    pub(super) untagged: Option<PortId>,
    pub(super) tagged: Vec<(u16, PortId)>,
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
        let mut netdevs = netdevs(&infos, generation)?;
        let before = earlier.map_or(&[][..], |earlier| &earlier.netdevs);
        for (now, before) in netdevs.iter_mut().zip(before) {
            if let (Some(now), Some(before)) = (now, before) {
                now.since = before.since;
            }
        }
        Ok(Ports { infos, outside, netdevs })
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
                let earlier = netdev.tagged.iter().find(|(t, _)| *t == tag).map(|(_, p)| *p);
                netdev.tagged.push((tag, id));
                earlier
            }
        };
        if let Some(earlier) = earlier {
            return Err(SnapshotError::SamePort(earlier, id));
        }
    }
    Ok(netdevs.into())
}
