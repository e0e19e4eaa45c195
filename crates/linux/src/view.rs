//! Holds the kernel's network state as plain data: netdevs, addresses, routes, neighbours.

use std::collections::{BTreeMap, BTreeSet};

use dataplane::Prefix;
use imbl::OrdMap;
use wire::{Address, Family};

/// The kernel's state at one moment. Every list is complete: it is replaced, never patched in part.
/// A copy costs as much as there are netdevs and addresses; routes and neighbours are shared.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct View {
    /// Netdevs by interface index.
    pub links: BTreeMap<u32, Link>,
    /// Our addresses: interface index, address, length of the network's prefix.
    pub addresses: BTreeSet<(u32, Address, u8)>,
    /// Routes of the tables `main` and `local`.
    pub routes: RouteList,
    /// Routes of [`HOST_ROUTE_TABLE`], which apply to this machine's own packets only.
    pub host_routes: RouteList,
    /// Neighbours by interface index and address.
    pub neighbours: OrdMap<(u32, Address), NeighbourEntry>,
    /// Destinations that refused policy rules may lead elsewhere, with all that is narrower.
    pub shadows: BTreeSet<(Address, u8)>,
    /// Kernel configuration that Lockgate does not follow: reported by name, never ignored.
    pub refused: BTreeSet<Refused>,
}

/// Routes by prefix; those to one prefix with the best in front, equals in the kernel's order.
pub type RouteList = OrdMap<Prefix, Vec<KernelRoute>>;

/// A netdev.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name of the netdev.
    pub name: String,
    /// Link address; zeros where there is none of six bytes.
    pub mac: [u8; 6],
    /// Largest IP packet that leaves by it, bytes.
    pub mtu: u32,
    /// True if the netdev is up (administratively).
    pub admin_up: bool,
    /// Set if the other end is there.
    pub carrier: bool,
    /// Kind of the netdev.
    pub kind: LinkKind,
    /// Set if its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// Interface index of the bond, bridge or VRF that it is a member of.
    pub master: Option<u32>,
    /// Interface index of the netdev it is on, if that is in this namespace.
    pub lower: Option<u32>,
    /// Queues that it was made with, receive and transmit: an upper limit.
    pub queues: (u32, u32),
}

impl Link {
    /// Returns whether packets can leave by the netdev.
    pub fn is_up(&self) -> bool {
        self.admin_up && self.carrier
    }
}

/// Kind of a netdev.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// A network card, or something that looks like one: no kind is given by the kernel.
    Physical,
    /// A virtual machine's card of virtio.
    Virtio,
    /// One end of a virtual cable.
    Veth,
    /// The loopback netdev.
    Loopback,
    /// A bond of netdevs.
    BondMaster,
    /// A bridge.
    Bridge,
    /// A virtual routing table.
    Vrf,
    /// A VLAN on another netdev.
    Vlan {
        /// Interface index of the netdev it is on.
        parent: u32,
        /// VLAN id.
        id: u16,
    },
    /// A TUN or TAP netdev.
    Tun,
    /// A link of another kind, by the kernel's name for it.
    Other(String),
}

impl LinkKind {
    /// Returns whether senders behind such a netdev may leave TCP and UDP checksums unfinished, and
    /// the netdev passes them on so.
    pub fn passes_unfinished_checksums(&self) -> bool {
        matches!(self, LinkKind::Veth | LinkKind::Tun | LinkKind::Virtio)
    }
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelRoute {
    /// Destinations.
    pub prefix: Prefix,
    /// Number of its table: [`MAIN_TABLE`], [`LOCAL_TABLE`] or [`HOST_ROUTE_TABLE`].
    pub table: u32,
    /// Metric: of several routes to one prefix, the lowest wins.
    pub metric: u32,
    /// Number of the route's maker (`proto`): [`HOST_ROUTE_PROTOCOL`] is Lockgate's.
    pub protocol: u8,
    /// Treatment of packets.
    pub kind: RouteKind,
    /// Next hops, in the kernel's order: more than one is ECMP. All are kept; the first that is
    /// usable is used.
    pub hops: Vec<Hop>,
    /// The source that this machine itself speaks from on this route.
    pub source: Option<Address>,
    /// Status of the route: followed or refused.
    pub standing: RouteStatus,
}

/// Status of a route: followed or refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteStatus {
    /// The route is followed.
    Followed,
    /// The route is not followed: it shadows wider ones, and leads nowhere ([`View::refused`] says
    /// why).
    Refused,
}

/// Table `main`.
pub const MAIN_TABLE: u32 = 254;
/// Table `local`: our own addresses and broadcast addresses.
pub const LOCAL_TABLE: u32 = 255;
/// Table of the routes that lead this machine's own packets, and no others, into the host port. The
/// same number is the priority of the rule that looks it up.
pub const HOST_ROUTE_TABLE: u32 = 76;
/// `proto` of these routes and of that rule.
pub const HOST_ROUTE_PROTOCOL: u8 = 76;

/// Treatment of packets by a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteKind {
    /// Sends them on.
    Unicast,
    /// Addresses of this machine, also anycast.
    Local,
    /// Broadcast addresses.
    Broadcast,
    /// Drops them in silence.
    Blackhole,
    /// Drops them and says so.
    Unreachable,
    /// Drops them and says that it is forbidden.
    Prohibit,
    /// The lookup goes on as if the route were not there.
    Throw,
}

/// A next hop of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Interface index.
    pub link: u32,
    /// The router; `None`: the destination itself is on the link.
    pub gateway: Option<Address>,
    /// State of the hop, by the kernel.
    pub usability: Usability,
}

/// State of a hop, by the kernel: used or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usability {
    /// The kernel would use the hop.
    Usable,
    /// The link is down.
    Dead,
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourEntry {
    /// Link address of the neighbour; `None`: not known.
    pub mac: Option<[u8; 6]>,
    /// State of the entry, by the kernel.
    pub state: NeighbourState,
    /// Set if the kernel keeps it fresh by itself (`NTF_MANAGED`).
    pub managed: bool,
}

impl NeighbourEntry {
    /// The link address, if packets may be sent to it.
    pub fn usable_mac(&self) -> Option<[u8; 6]> {
        match self.state {
            NeighbourState::Good | NeighbourState::Permanent | NeighbourState::Stale => self.mac,
            NeighbourState::Unresolved | NeighbourState::Failed => None,
        }
    }
}

/// State of a neighbour, by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighbourState {
    /// Reachable, being asked again, or on a link without neighbour discovery.
    Good,
    /// Set by hand: nobody asks.
    Permanent,
    /// Was reachable; still used, and asked again.
    Stale,
    /// Being asked for the first time.
    Unresolved,
    /// Did not answer.
    Failed,
}

/// Kernel configuration that would lead packets, and that Lockgate does not follow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refused {
    /// A policy rule beyond the default ones: where it may lead, nothing leads here.
    PolicyRule {
        /// IP version.
        family: Family,
        /// Its priority.
        priority: u32,
        /// The table it looks up; `None`: it drops.
        table: Option<u32>,
    },
    /// A VRF: its routes are not looked at.
    Vrf {
        /// The netdev's name.
        name: String,
    },
    /// A route into a lightweight tunnel: it leads nowhere.
    LightweightTunnel {
        /// Lowest destination.
        address: Address,
        /// Bits of the prefix.
        length: u8,
    },
    /// A route for some sources or types of service only: it leads nowhere.
    ConditionalRoute {
        /// Lowest destination.
        address: Address,
        /// Bits of the prefix.
        length: u8,
    },
    /// A route that cannot be read: it leads nowhere.
    UnreadableRoute {
        /// Lowest destination.
        address: Address,
        /// Bits of the prefix.
        length: u8,
    },
    /// A nexthop object that is gone or of an unknown kind: routes by it lead nowhere.
    NexthopObject {
        /// Its number.
        id: u32,
    },
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = |family: &Family| match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        match self {
            Self::PolicyRule { family, priority, table } => {
                write!(f, "the {} policy rule with priority {priority}", version(family))?;
                match table {
                    Some(table) => write!(
                        f,
                        " is not supported: destinations that its table {table} has routes to have \
                         no route here"
                    ),
                    None => write!(
                        f,
                        " is not supported: destinations that it matches have no route here"
                    ),
                }
            }
            Self::Vrf { name } => write!(f, "VRF {name} is not supported: its routes are not used"),
            Self::LightweightTunnel { address, length } => write!(
                f,
                "the route to {address}/{length} uses a lightweight tunnel (encap), which is not \
                 supported: its destinations have no route here"
            ),
            Self::ConditionalRoute { address, length } => write!(
                f,
                "the route to {address}/{length} holds only for some sources or types of service, \
                 which is not supported: its destinations have no route here"
            ),
            Self::UnreadableRoute { address, length } => {
                write!(
                    f,
                    "the route to {address}/{length} cannot be read: its destinations have no \
                     route here"
                )
            }
            Self::NexthopObject { id } => {
                write!(
                    f,
                    "nexthop object {id} is unknown or of an unknown kind: destinations of its \
                     routes have no route here"
                )
            }
        }
    }
}

impl View {
    /// Returns the list that holds the routes of a table.
    pub fn routes_of(&self, table: u32) -> &RouteList {
        if table == HOST_ROUTE_TABLE { &self.host_routes } else { &self.routes }
    }

    /// Returns the routes of a table, to be changed.
    pub fn routes_of_mut(&mut self, table: u32) -> &mut RouteList {
        if table == HOST_ROUTE_TABLE { &mut self.host_routes } else { &mut self.routes }
    }

    /// Adds a route behind those to its prefix that are as good (table `local`, then the lowest
    /// metric).
    pub fn add_route(&mut self, route: KernelRoute) {
        let rank = |route: &KernelRoute| (route.table != LOCAL_TABLE, route.metric, route.table);
        let routes = self.routes_of_mut(route.table).entry(route.prefix).or_default();
        let place = routes.partition_point(|there| rank(there) <= rank(&route));
        routes.insert(place, route);
    }

    /// The netdev of that name.
    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// The VLAN netdev with this id on the netdev with this index.
    pub fn vlan_on(&self, parent: u32, id: u16) -> Option<&Link> {
        self.links.values().find(|link| link.kind == LinkKind::Vlan { parent, id })
    }
}
