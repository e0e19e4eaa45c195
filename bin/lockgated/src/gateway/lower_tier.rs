//! The kernel tier follows the gateway: before a change it loses what the change takes away, and
//! after it it gets what the change adds.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{NetdevId, PortId, PortInfo, Snapshot};
use placement::PortPlace;

use super::Gateway;
use crate::events::Kind;
use crate::kernel_tier::{Places, Prepared};
use crate::netdev::Netdev;

impl Gateway {
    /// Gives the tier's program to netdevs that have none yet, and opens what the walk leaves to
    /// the tier. Returns whether there is a tier.
    pub(crate) fn serve_tier(&mut self) -> bool {
        match self.tier.prepare(&self.snapshot) {
            Prepared::Nothing => return false,
            Prepared::AsBefore => {}
            Prepared::Anew => {
                Arc::make_mut(&mut self.netdevs).values_mut().for_each(|netdev| netdev.tier = None);
            }
        }
        let without = self.netdevs.iter().filter(|(_, netdev)| netdev.tier.is_none());
        let without: Vec<String> = without.map(|(name, _)| name.clone()).collect();
        for name in without {
            let Some(tables) = self.tier.tables_for(&name) else { continue };
            let added = self.machine.add_tier(&name, &tables);
            if let Err(error) = &added {
                let message = format!("the workers have all packets of virtual networks: {error}");
                self.events.record(Kind::KernelTierClosed, &name, message, &[]);
            }
            if let Some(netdev) = Arc::make_mut(&mut self.netdevs).get_mut(&name) {
                netdev.tier = Some(added.is_ok());
            }
        }
        self.tier.widen(&self.snapshot, self.tier_places(&self.snapshot));
        true
    }

    /// The places of a snapshot's ports that are on netdevs with the tier's program.
    pub(super) fn tier_places(&self, snapshot: &Snapshot) -> Places {
        let netdevs = self.netdevs.iter().filter(|(_, netdev)| netdev.tier == Some(true));
        let of = |(name, netdev): (&String, &Netdev)| {
            self.compiled.slots().netdev_named(name).map(|id| (id, netdev.ifindex))
        };
        let indexes: HashMap<NetdevId, u32> = netdevs.filter_map(of).collect();
        let place = |(id, port): (PortId, &PortInfo)| {
            let ifindex = *indexes.get(&port.netdev)?;
            let place = PortPlace { ifindex, vlan: port.vlan, mac: port.mac, mtu: port.mtu };
            Some((id, place))
        };
        snapshot.ports().filter_map(place).collect()
    }
}
