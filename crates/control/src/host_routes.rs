//! The routes that lead this machine's own packets into the host port. `linux` puts them into the
//! kernel, and its module of the host port says how they are found there.

use std::collections::BTreeMap;

use config::validated::{Action, Policy};
use config::{Validated, is_link_local};
use dataplane::Prefix;
use linux::{HostRoute, View};
use policy::{AddressRange, Direction};
use wire::{Address, Family};

/// Routes of one policy at most: a range that needs more is left to the guard.
const MAX_PREFIXES: usize = 64;
/// The host port's MTU at most.
const MAX_MTU: u32 = 1500;
/// ... and at least: less carries no IPv6 (RFC 8200 §5).
const LEAST_MTU: u32 = 1280;

/// A PROTECT policy for which the host's own packets get no route into the tunnel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostRouteSkipped {
    /// The policy's remote side is all addresses: a default route would take everything.
    #[error(
        "policy {policy}: its remote side is every address: no route leads this machine's own \
         packets there; add one by hand"
    )]
    Everything {
        /// The policy's name.
        policy: String,
    },
    /// The policy's remote side is a range of many prefixes.
    #[error("policy {policy}: its remote range {range} is more than {MAX_PREFIXES} prefixes")]
    Unaligned {
        /// The policy's name.
        policy: String,
        /// The range.
        range: AddressRange,
    },
    /// This machine has no address on the policy's local side.
    #[error("policy {policy}: this machine has no address on its local side")]
    NoAddress {
        /// The policy's name.
        policy: String,
    },
}

/// The routes that lead this machine's own packets into the host port, one per prefix, and the
/// policies that none is made for. Pure.
pub fn host_routes(config: &Validated, view: &View) -> (Vec<HostRoute>, Vec<HostRouteSkipped>) {
    let mut routes: BTreeMap<(Address, u8), Address> = BTreeMap::new();
    let mut skipped = Vec::new();
    let outbound = config.policies.iter().filter(|policy| {
        matches!(policy.action, Action::Protect(_)) && policy.only != Some(Direction::Inbound)
    });
    // The winner first: of two policies with one far net its source stands.
    let mut policies: Vec<&Policy> = outbound.collect();
    policies.reverse();
    policies.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    for policy in policies {
        let name = || policy.name.clone();
        let mut has_address = false;
        for range in &policy.selector.remote {
            let Some(source) = source(policy, range.family, view) else { continue };
            has_address = true;
            if *range == AddressRange::any(range.family) {
                skipped.push(HostRouteSkipped::Everything { policy: name() });
                continue;
            }
            match prefixes(range) {
                None => skipped.push(HostRouteSkipped::Unaligned { policy: name(), range: *range }),
                Some(prefixes) => {
                    for prefix in prefixes {
                        routes.entry((prefix.address, prefix.length)).or_insert(source);
                    }
                }
            }
        }
        if !has_address {
            skipped.push(HostRouteSkipped::NoAddress { policy: name() });
        }
    }
    skipped.dedup();
    let route =
        |((address, length), source)| HostRoute { prefix: Prefix { address, length }, source };
    (routes.into_iter().map(route).collect(), skipped)
}

/// Returns the first of this machine's addresses that is on the policy's local side.
fn source(policy: &Policy, family: Family, view: &View) -> Option<Address> {
    let own = view.addresses.iter().map(|(_, address, _)| *address);
    let mut own = own.filter(|address| {
        let ip = std::net::IpAddr::from(*address);
        address.family == family && !is_link_local(*address) && !ip.is_loopback()
    });
    own.find(|address| policy.selector.local.iter().any(|range| range.contains(*address)))
}

/// The prefixes that a range is made of; `None`: too many.
fn prefixes(range: &AddressRange) -> Option<Vec<Prefix>> {
    let bits = range.family.address_bits();
    let mut prefixes = Vec::new();
    let mut next = range.lo;
    loop {
        // The widest that begins here and does not reach beyond the range.
        let length = (0..=bits).find(|length| {
            let network = AddressRange::network(Address { value: next, ..range.first() }, *length);
            network.lo == next && network.hi <= range.hi
        })?;
        let address = Address { value: next, ..range.first() };
        prefixes.push(Prefix { address, length });
        if prefixes.len() > MAX_PREFIXES {
            return None;
        }
        let last = AddressRange::network(address, length).hi;
        if last == range.hi {
            return Some(prefixes);
        }
        next = last + 1;
    }
}

/// Returns the host port's MTU: the smallest of the ports', from 1280 to 1500 bytes. A tunnel's
/// ICMP makes it smaller still, which is no reason to begin larger.
pub fn host_mtu(port_mtus: impl Iterator<Item = u32>) -> u32 {
    port_mtus.chain([MAX_MTU]).min().map_or(MAX_MTU, |mtu| mtu.max(LEAST_MTU))
}
