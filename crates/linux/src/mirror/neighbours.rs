//! Neighbours on demand: the kernel resolves, Lockgate asks and listens.

use std::collections::BTreeSet;

use imbl::OrdSet;
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourHeader,
    NeighbourMessage, NeighbourState as Nud,
};
use wire::{Address, Family};

use super::{Mirror, kind};
use crate::netlink::NetlinkError;
use crate::view::NeighbourState;

/// Stale neighbours that are asked again in one go at most.
const PROBES_AT_ONCE: usize = 64;

/// The party that keeps an entry fresh.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeping {
    /// The kernel (`NTF_MANAGED`).
    Kernel,
    /// No owner: the kernel asks for the neighbour once (`NTF_USE`).
    Nobody,
}

impl Mirror {
    /// Asks the kernel to resolve a neighbour's link address, as if it had a packet for it. The
    /// address arrives as a change of the view.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`]: the netdev is gone or down; others: netlink broke.
    pub fn resolve(&mut self, link: u32, address: Address) -> Result<(), NetlinkError> {
        let keeping = match self.fresh.contains(&(link, address)) {
            true => Keeping::Kernel,
            false => Keeping::Nobody,
        };
        self.ask(link, address, keeping)
    }

    /// Makes the kernel keep these next hops fresh (`NTF_MANAGED`), and no others that it was asked
    /// to keep before. To be called when the set changes, and every few seconds: a link that went
    /// down has forgotten its neighbours.
    ///
    /// # Errors
    /// The first refusal, after all were tried: the caller tries again next time.
    pub fn keep_fresh(&mut self, wanted: &OrdSet<(u32, Address)>) -> Result<(), NetlinkError> {
        let mut result = Ok(());
        let is_dropped = |hop: &&(u32, Address)| !wanted.contains(*hop);
        let dropped: Vec<_> = self.fresh.iter().filter(is_dropped).copied().collect();
        for key in dropped {
            if self.view.neighbours.get(&key).is_some_and(|entry| entry.managed) {
                result = result.and(self.ask(key.0, key.1, Keeping::Nobody));
            }
        }
        for key in wanted {
            let is_up = self.view.links.get(&key.0).is_some_and(|link| link.admin_up);
            let is_kept = self.view.neighbours.get(key).is_some_and(|entry| entry.managed);
            if is_up && !is_kept {
                result = result.and(self.ask(key.0, key.1, Keeping::Kernel));
            }
        }
        self.fresh.clone_from(wanted);
        result
    }

    /// Asks stale neighbours on these links again, 64 at most; they stay usable meanwhile. To be
    /// called about every second: the walk's packets do not pass the kernel, which so does not
    /// notice that a neighbour is in use. Returns how many were asked.
    pub fn probe_stale(&mut self, links: &BTreeSet<u32>) -> usize {
        let is_meant = |(link, _): &(u32, Address)| links.contains(link);
        let stale = self.view.neighbours.iter();
        let stale = stale.filter(|(_, entry)| entry.state == NeighbourState::Stale);
        let keys = stale.map(|(key, _)| *key).filter(is_meant).take(PROBES_AT_ONCE);
        let keys: Vec<(u32, Address)> = keys.collect();
        // One that was removed meanwhile is refused, and forgotten with its message.
        keys.iter().filter(|key| self.resolve(key.0, key.1).is_ok()).count()
    }

    fn ask(&mut self, link: u32, address: Address, keeping: Keeping) -> Result<(), NetlinkError> {
        let known = self.view.neighbours.get(&(link, address));
        // The kernel would forget that it is permanent.
        if known.is_some_and(|entry| entry.state == NeighbourState::Permanent) {
            return Ok(());
        }
        let payload = question(link, address, keeping);
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.requests.request("neighbour", kind::NEW_NEIGHBOUR, flags, &payload, |_| {})
    }
}

fn question(link: u32, address: Address, keeping: Keeping) -> Vec<u8> {
    let mut message = NeighbourMessage::default();
    let destination = match std::net::IpAddr::from(address) {
        std::net::IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        std::net::IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    message.header = NeighbourHeader {
        family: match address.family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        },
        ifindex: link,
        state: Nud::None,
        flags: NeighbourFlags::Use,
        ..NeighbourHeader::default()
    };
    message.attributes.push(NeighbourAttribute::Destination(destination));
    if keeping == Keeping::Kernel {
        message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    }
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    payload
}
