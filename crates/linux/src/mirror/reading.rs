//! Reads whole lists from the kernel on a thread of its own: a large table takes longer than the
//! caller waits, who has other things to do in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use imbl::OrdMap;
use netlink_packet_route::RouteNetlinkMessage;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wire::Address;

use super::{Lists, kind, read};
use crate::netlink::{Dump, Message, NetlinkError, Requests};
use crate::view::{Link, NeighbourEntry, View};

/// Our addresses, as in [`View::addresses`].
type Addresses = BTreeSet<(u32, Address, u8)>;
/// Neighbours, as in [`View::neighbours`].
type Neighbours = OrdMap<(u32, Address), NeighbourEntry>;

/// A reading that goes on.
pub(super) struct Reading {
    pub(super) began: Instant,
    /// Thread that returns the socket and the lists that it read.
    pub(super) job: JoinHandle<(Requests, Result<ReadLists, NetlinkError>)>,
}

impl Reading {
    /// Begins to read these lists.
    pub(super) fn begin(mut requests: Requests, lists: Lists) -> Reading {
        let job = tokio::task::spawn_blocking(move || {
            let read = ReadLists::read(&mut requests, lists);
            (requests, read)
        });
        Reading { began: Instant::now(), job }
    }
}

/// Complete lists. `None`: the list was not requested, or it changed while it was read; then later
/// lists were not read.
#[derive(Default)]
pub(super) struct ReadLists {
    pub(super) links: Option<BTreeMap<u32, Link>>,
    pub(super) addresses: Option<Addresses>,
    pub(super) routes: Option<ReadRoutes>,
    pub(super) neighbours: Option<Neighbours>,
}

/// The result of reading the routes.
#[derive(Default)]
pub(super) struct ReadRoutes {
    /// The view's lists of routes, with shadows and refused routes; its other lists are empty.
    pub(super) view: View,
    pub(super) nexthops: read::Nexthops,
}

impl ReadLists {
    /// Reads these lists. Blocks as long as they are.
    pub(super) fn read(requests: &mut Requests, lists: Lists) -> Result<ReadLists, NetlinkError> {
        let mut read = ReadLists::default();
        if lists.links {
            read.links = links(requests)?;
            if read.links.is_none() {
                return Ok(read);
            }
        }
        if lists.addresses {
            read.addresses = addresses(requests)?;
            if read.addresses.is_none() {
                return Ok(read);
            }
        }
        if lists.routes {
            read.routes = routes(requests)?;
            if read.routes.is_none() {
                return Ok(read);
            }
        }
        if lists.neighbours {
            read.neighbours = neighbours(requests)?;
        }
        Ok(read)
    }
}

/// Reads the links. `None`: they changed meanwhile.
fn links(requests: &mut Requests) -> Result<Option<BTreeMap<u32, Link>>, NetlinkError> {
    let mut links = BTreeMap::new();
    let each = |message: Message<'_>| {
        if let Some(RouteNetlinkMessage::NewLink(message)) =
            read::message(message.kind, message.payload)
        {
            links.extend(read::link(&message).map(|link| (link.index, link)));
        }
    };
    // struct ifinfomsg
    let dump = requests.dump("links", kind::GET_LINK, &[0; 16], each)?;
    Ok((dump == Dump::Whole).then_some(links))
}

fn addresses(requests: &mut Requests) -> Result<Option<Addresses>, NetlinkError> {
    let mut addresses = BTreeSet::new();
    let each = |message: Message<'_>| {
        if let Some(RouteNetlinkMessage::NewAddress(message)) =
            read::message(message.kind, message.payload)
        {
            addresses.extend(read::address(&message));
        }
    };
    // struct ifaddrmsg
    let dump = requests.dump("addresses", kind::GET_ADDRESS, &[0; 8], each)?;
    Ok((dump == Dump::Whole).then_some(addresses))
}

/// Rules, nexthop objects and routes.
fn routes(requests: &mut Requests) -> Result<Option<ReadRoutes>, NetlinkError> {
    let mut rules = Vec::new();
    let each = |message: Message<'_>| {
        if let Some(RouteNetlinkMessage::NewRule(message)) =
            read::message(message.kind, message.payload)
        {
            rules.extend(read::rule(&message));
        }
    };
    // struct fib_rule_hdr
    let dumped = requests.dump("rules", kind::GET_RULE, &[0; 12], each)?;
    let mut nexthops = HashMap::new();
    let each = |message: Message<'_>| {
        if message.kind == kind::NEW_NEXTHOP {
            nexthops.extend(read::nexthop(message.payload));
        }
    };
    // struct nhmsg
    let objects = requests.dump("nexthops", kind::GET_NEXTHOP, &[0; 8], each)?;
    let mut found = ReadRoutes { nexthops, ..ReadRoutes::default() };
    let mut tables: HashMap<u32, read::Shadows> = HashMap::new();
    let each = |message: Message<'_>| {
        if let Some((route, refused)) = read::route(message.payload, &found.nexthops) {
            found.view.add_route(route);
            found.view.refused.extend(refused);
        } else if !rules.is_empty()
            && let Some(RouteNetlinkMessage::NewRoute(message)) =
                read::message(message.kind, message.payload)
            && let Some((table, prefix)) = read::table_of(&message)
        {
            tables.entry(table).or_default().insert(prefix);
        }
    };
    // struct rtmsg
    let routes = requests.dump("routes", kind::GET_ROUTE, &[0; 12], each)?;
    if [dumped, objects, routes].contains(&Dump::Interrupted) {
        return Ok(None);
    }
    for rule in &rules {
        found.view.refused.insert(rule.refused());
        found.view.shadows.extend(rule.shadows(&tables));
    }
    Ok(Some(found))
}

fn neighbours(requests: &mut Requests) -> Result<Option<Neighbours>, NetlinkError> {
    let mut neighbours = OrdMap::new();
    let each = |message: Message<'_>| {
        if let Some(RouteNetlinkMessage::NewNeighbour(message)) =
            read::message(message.kind, message.payload)
        {
            neighbours.extend(read::neighbour(&message));
        }
    };
    // struct ndmsg
    let dump = requests.dump("neighbours", kind::GET_NEIGHBOUR, &[0; 12], each)?;
    Ok((dump == Dump::Whole).then_some(neighbours))
}
