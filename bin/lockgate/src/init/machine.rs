//! The interfaces of this machine, as `lockgate init` offers them: read through the mirror of
//! Linux, which needs no privileges. A machine that cannot be read has none.

use std::collections::BTreeMap;
use std::net::IpAddr;

use linux::{KernelRoute, LinkKind, MAIN_TABLE, Mirror, RouteKind, View};
use policy::AddressRange;
use wire::{Address, Family};

/// An interface that could be a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// Name of the interface.
    pub(super) name: String,
    /// Addresses with the lengths of their prefixes, without link-local ones.
    pub(super) addresses: Vec<(Address, u8)>,
    /// True if a default route leaves by it.
    pub(super) way_out: WayOut,
}

/// Says whether a default route leads out by an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WayOut {
    /// A default route leads out by it.
    Default,
    /// No default route leads out by it.
    None,
}

impl Interface {
    /// Returns the first address, IPv4 before IPv6.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let of = |family| self.addresses.iter().find(|(address, _)| address.family == family);
        of(Family::V4).or_else(|| of(Family::V6)).map(|(address, _)| (*address).into())
    }

    /// Returns the first address of the same family as another one.
    pub(super) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        let family = Address::from(other).family;
        let found = self.addresses.iter().find(|(address, _)| address.family == family);
        found.map(|(address, _)| (*address).into())
    }

    /// The networks that its addresses are in.
    pub(super) fn networks(&self) -> Vec<AddressRange> {
        let mut networks = Vec::new();
        for (address, length) in &self.addresses {
            let network = AddressRange::network(*address, *length);
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
        networks
    }

    fn line(&self) -> String {
        let mut words: Vec<String> =
            self.addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
        if words.is_empty() {
            words.push("no address".to_owned());
        }
        if self.way_out == WayOut::Default {
            words.push("default route".to_owned());
        }
        format!("  {:<15} {}\n", self.name, words.join(", "))
    }
}

/// The interfaces of this machine, as defaults for answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// Host name, if it can be a gateway's name.
    pub(super) name: Option<String>,
    /// Interfaces by name.
    pub(super) interfaces: Vec<Interface>,
}

impl Machine {
    /// Describes this machine.
    pub(super) fn look() -> Machine {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let name = name.and_then(|name| {
            let first = name.trim().split('.').next()?;
            super::answer::name(first).ok().filter(|name| name != "localhost")
        });
        let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let view = builder.ok().and_then(|runtime| {
            runtime.block_on(async { Some(Mirror::start().await.ok()?.view().clone()) })
        });
        let interfaces = view.map(|view| interfaces(&view)).unwrap_or_default();
        Machine { name, interfaces }
    }

    /// The interface of that name.
    pub(super) fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interface that leads to the world: the one with the default route.
    pub(super) fn outside(&self, except: Option<&str>) -> Option<&Interface> {
        let mut others = self.interfaces.iter().filter(|one| Some(one.name.as_str()) != except);
        others.find(|interface| interface.way_out == WayOut::Default)
    }

    /// Returns the interface that leads to the gateway's own hosts: the first with an address and
    /// without the default route.
    pub(super) fn inside(&self) -> Option<&Interface> {
        let outside = self.outside(None);
        let others = self.interfaces.iter().filter(|one| Some(*one) != outside);
        others.clone().find(|one| !one.addresses.is_empty())
    }

    /// Lists the interfaces, one line each, for the person who chooses.
    pub(super) fn text(&self) -> String {
        if self.interfaces.is_empty() {
            return "This machine shows no interfaces; write their names as they will be.\n".into();
        }
        let lines: String = self.interfaces.iter().map(Interface::line).collect();
        format!("Interfaces of this machine:\n{lines}")
    }
}

fn interfaces(view: &View) -> Vec<Interface> {
    let default = |route: &&KernelRoute| {
        route.prefix.length == 0 && route.table == MAIN_TABLE && route.kind == RouteKind::Unicast
    };
    let ways_out: Vec<u32> = view
        .routes
        .values()
        .flatten()
        .filter(default)
        .flat_map(|route| &route.hops)
        .map(|hop| hop.link)
        .collect();
    let mut interfaces = BTreeMap::new();
    for link in view.links.values() {
        if link.kind == LinkKind::Loopback || link.name == config::HOST_NETDEV || !link.ethernet {
            continue;
        }
        let own = view.addresses.iter().filter(|(index, ..)| *index == link.index);
        let addresses = own
            .map(|(_, address, length)| (*address, *length))
            .filter(|(address, _)| !config::is_link_local(*address))
            .collect();
        let way_out = match ways_out.contains(&link.index) {
            true => WayOut::Default,
            false => WayOut::None,
        };
        let name = link.name.clone();
        interfaces.insert(name.clone(), Interface { name, addresses, way_out });
    }
    interfaces.into_values().collect()
}
