//! The mirror of what Linux knows, by rtnetlink: netdevs, addresses, routes, neighbours. Linux is
//! the control plane; Lockgate follows.
//!
//! * Neighbours, which change all the time, follow the messages, and so does a route of which one
//!   message says all (`patch.rs`).
//! * Netdevs, addresses and otherwise routes are read as whole lists whenever the kernel tells of a
//!   change in them, since it does not tell of all (a link that goes down takes its IPv4 routes
//!   along in silence, a nexthop object those that use it). Large tables are read at most one part
//!   in [`READING_SHARE`] of the time.
//! * If the kernel had more to tell than there was room (`ENOBUFS`) everything is read anew; a
//!   list that changed while it was read is read again. Until the new one is whole the old stands.
//! * If netlink breaks, the view stands, and the socket is opened again, later and later.

mod host_port;
mod neighbours;
mod patch;
mod read;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use netlink_packet_route::RouteNetlinkMessage;
use tokio::time::Instant;
use wire::Address;

pub use host_port::{HostPortError, HostRoute};

use crate::netlink::{Dump, Events, Message, NetlinkError, Requests};
use crate::view::{Link, LinkKind, NeighbourEntry, NeighbourState, Refused, View};
use patch::Patched;

/// Routing, neighbours, netdevs (`NETLINK_ROUTE`).
const ROUTE_PROTOCOL: isize = 0;
/// Room for what the kernel tells while nobody reads, bytes; the kernel may grant less.
const EVENT_ROOM_BYTES: u32 = 4 << 20;
/// Lists are read at most one part in so many of the time.
const READING_SHARE: u32 = 10;
/// Datagrams that are read before lists are: a kernel that never stops telling is answered too.
const DATAGRAMS_AT_ONCE: usize = 256;
/// The first wait after netlink broke or a list changed while it was read.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest.
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Multicast groups of rtnetlink (linux/rtnetlink.h): links, neighbours; addresses, routes and
/// rules of IPv4 and of IPv6; nexthop objects.
const GROUPS: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];

/// Message types of rtnetlink that are asked for or told apart here (linux/rtnetlink.h).
mod kind {
    pub(super) const NEW_LINK: u16 = 16;
    pub(super) const DEL_LINK: u16 = 17;
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const SET_LINK: u16 = 19;
    pub(super) const NEW_ADDRESS: u16 = 20;
    pub(super) const DEL_ADDRESS: u16 = 21;
    pub(super) const GET_ADDRESS: u16 = 22;
    pub(super) const NEW_ROUTE: u16 = 24;
    pub(super) const DEL_ROUTE: u16 = 25;
    pub(super) const GET_ROUTE: u16 = 26;
    pub(super) const NEW_NEIGHBOUR: u16 = 28;
    pub(super) const DEL_NEIGHBOUR: u16 = 29;
    pub(super) const GET_NEIGHBOUR: u16 = 30;
    pub(super) const NEW_RULE: u16 = 32;
    pub(super) const DEL_RULE: u16 = 33;
    pub(super) const GET_RULE: u16 = 34;
    pub(super) const NEW_NEXTHOP: u16 = 104;
    pub(super) const DEL_NEXTHOP: u16 = 105;
    pub(super) const GET_NEXTHOP: u16 = 106;
}

/// Reads one netdev of this thread's network namespace. `None`: there is none with this index.
///
/// # Errors
/// [`NetlinkError`]: netlink cannot be used.
pub fn read_link(index: u32) -> Result<Option<Link>, NetlinkError> {
    // struct ifinfomsg: family, padding, type, index, flags, change.
    let mut payload = [0; 16];
    payload[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found = None;
    let asked =
        Requests::open(ROUTE_PROTOCOL)?.request("link", kind::GET_LINK, 0, &payload, |message| {
            if let Some(RouteNetlinkMessage::NewLink(message)) =
                read::message(message.kind, message.payload)
            {
                found = read::link(&message);
            }
        });
    match asked {
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// A selection of the lists of a [`View`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lists {
    /// [`View::links`].
    pub links: bool,
    /// [`View::addresses`].
    pub addresses: bool,
    /// [`View::routes`], [`View::host_routes`], [`View::shadows`], [`View::refused`].
    pub routes: bool,
    /// [`View::neighbours`].
    pub neighbours: bool,
}

impl Lists {
    const NONE: Lists = Lists { links: false, addresses: false, routes: false, neighbours: false };
    const ALL: Lists = Lists { links: true, addresses: true, routes: true, neighbours: true };

    /// Returns whether no list is selected.
    pub fn is_empty(&self) -> bool {
        *self == Lists::NONE
    }
}

/// The changes to the view since the last report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Lists that are not what they were.
    pub lists: Lists,
    /// Events that an operator should read of.
    pub notes: Vec<Note>,
}

/// Something for the event log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Everything was read anew.
    Resynced(ResyncReason),
    /// Netlink broke; the view stands, and the socket is opened again.
    Cut(io::ErrorKind),
    /// The kernel does something that Lockgate does not follow.
    Refused(Refused),
    /// The kernel does so no longer.
    NoLongerRefused(Refused),
}

/// The reason why everything was read anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResyncReason {
    /// The kernel had more to tell than there was room.
    Overrun,
    /// A list changed while it was read.
    InterruptedDump,
    /// Netlink is back after it broke.
    Reconnected,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Resynced(ResyncReason::Overrun) => {
                write!(f, "the kernel told more than there was room: everything was read anew")
            }
            Self::Resynced(ResyncReason::InterruptedDump) => {
                write!(f, "a list changed while it was read: it was read anew")
            }
            Self::Resynced(ResyncReason::Reconnected) => {
                write!(f, "netlink is back: everything was read anew")
            }
            Self::Cut(kind) => {
                write!(f, "netlink broke ({kind}): the last view stands until it is back")
            }
            Self::Refused(refused) => refused.fmt(f),
            Self::NoLongerRefused(refused) => write!(f, "no longer: {refused}"),
        }
    }
}

/// The reason why there is no mirror.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The kernel cannot be listened to.
    #[error("cannot listen to the kernel's addresses, routes and neighbours: {source}")]
    Listen {
        /// The kernel's answer.
        #[from]
        source: io::Error,
    },
    /// The kernel did not say what it knows.
    #[error("cannot read the kernel's addresses, routes and neighbours: {source}")]
    Read {
        /// The error of the request.
        #[from]
        source: NetlinkError,
    },
}

/// A live copy of what Linux knows.
pub struct Mirror {
    events: Events,
    requests: Requests,
    view: View,
    /// The nexthop objects that routes may name.
    nexthops: read::Nexthops,
    /// Number of times that all routes were read.
    readings: u64,
    /// Lists that are to be read.
    stale: Lists,
    /// Changes that the caller has not been told yet.
    untold: Changes,
    /// Earliest time to read lists again.
    not_before: Instant,
    retry: Duration,
    /// Set if `events` broke.
    cut: bool,
    /// Next hops that the kernel was asked to keep fresh.
    fresh: OrdSet<(u32, Address)>,
}

impl Mirror {
    /// Listens to the kernel of this thread's network namespace and reads everything once.
    ///
    /// # Errors
    /// [`MirrorError`]: netlink does not work here.
    pub async fn start() -> Result<Mirror, MirrorError> {
        let mut mirror = Mirror {
            // First listen, then read: what happens in between is told afterwards.
            events: Events::open(ROUTE_PROTOCOL, &GROUPS, EVENT_ROOM_BYTES)?,
            requests: Requests::open(ROUTE_PROTOCOL)?,
            view: View::default(),
            nexthops: read::Nexthops::new(),
            readings: 0,
            stale: Lists::ALL,
            untold: Changes::default(),
            not_before: Instant::now(),
            retry: FIRST_RETRY,
            cut: false,
            fresh: OrdSet::new(),
        };
        while !mirror.stale.is_empty() {
            tokio::time::sleep_until(mirror.not_before).await;
            mirror.read_stale().await?;
        }
        let refused = mirror.view.refused.iter().cloned().map(Note::Refused);
        mirror.untold = Changes { lists: Lists::NONE, notes: refused.collect() };
        Ok(mirror)
    }

    /// Returns the kernel's state, as far as the kernel told.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the number of times that all routes were read since the start.
    pub fn route_readings(&self) -> u64 {
        self.readings
    }

    /// Waits until the view changes or there is something to note, applies all that the kernel
    /// has told by then, and says what changed. Cancel safe: what was not told is told next time.
    pub async fn changed(&mut self) -> Changes {
        loop {
            if self.cut {
                self.reconnect().await;
            } else {
                self.hear().await;
            }
            let is_due = !self.stale.is_empty() && Instant::now() >= self.not_before;
            if is_due && let Err(error) = self.read_stale().await {
                self.broke(kind_of(&error));
            }
            if !self.untold.lists.is_empty() || !self.untold.notes.is_empty() {
                return std::mem::take(&mut self.untold);
            }
        }
    }

    /// Waits for what the kernel tells, at most until stale lists may be read, and takes all that
    /// is there.
    async fn hear(&mut self) {
        let waits_for_lists = !self.stale.is_empty();
        let Mirror { events, view, nexthops, stale, untold, not_before, .. } = self;
        let mut each = |message: Message<'_>| apply(&message, view, nexthops, stale, untold);
        let first = events.receive(&mut each);
        let first = match waits_for_lists {
            false => first.await,
            true => match tokio::time::timeout_at(*not_before, first).await {
                Ok(heard) => heard,
                Err(_elapsed) => return,
            },
        };
        let mut heard = first.map(|()| true);
        for _ in 0..DATAGRAMS_AT_ONCE {
            match heard {
                Ok(true) => heard = events.receive_ready(&mut each).await,
                _ => break,
            }
        }
        match heard {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.stale = Lists::ALL;
                self.untold.notes.push(Note::Resynced(ResyncReason::Overrun));
            }
            Err(error) => self.broke(error.kind()),
        }
    }

    /// Netlink does not work: the view stands, everything is read anew when it works again.
    fn broke(&mut self, kind: io::ErrorKind) {
        self.cut = true;
        self.stale = Lists::ALL;
        self.untold.notes.push(Note::Cut(kind));
        self.wait_longer();
    }

    fn wait_longer(&mut self) {
        self.not_before = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    async fn reconnect(&mut self) {
        tokio::time::sleep_until(self.not_before).await;
        let opened = Events::open(ROUTE_PROTOCOL, &GROUPS, EVENT_ROOM_BYTES).ok();
        match opened.zip(Requests::open(ROUTE_PROTOCOL).ok()) {
            None => self.wait_longer(),
            Some((events, requests)) => {
                (self.events, self.requests) = (events, requests);
                self.cut = false;
                self.not_before = Instant::now();
                self.untold.notes.push(Note::Resynced(ResyncReason::Reconnected));
            }
        }
    }

    /// Reads the stale lists; each replaces the old one when it is whole.
    async fn read_stale(&mut self) -> Result<(), NetlinkError> {
        let began = Instant::now();
        let whole = self.read_links().await?
            && self.read_addresses().await?
            && self.read_routes().await?
            && self.read_neighbours().await?;
        if whole {
            self.retry = FIRST_RETRY;
            self.not_before = Instant::now() + began.elapsed() * READING_SHARE;
        } else {
            let note = Note::Resynced(ResyncReason::InterruptedDump);
            if !self.untold.notes.contains(&note) {
                self.untold.notes.push(note);
            }
            self.wait_longer();
        }
        Ok(())
    }

    /// Each of these: whether the list is whole now.
    async fn read_links(&mut self) -> Result<bool, NetlinkError> {
        if !self.stale.links {
            return Ok(true);
        }
        let mut links = BTreeMap::new();
        let each = |message: Message<'_>| {
            if let Some(RouteNetlinkMessage::NewLink(message)) =
                read::message(message.kind, message.payload)
            {
                links.extend(read::link(&message).map(|link| (link.index, link)));
            }
        };
        // struct ifinfomsg
        let dump = self.requests.dump("links", kind::GET_LINK, &[0; 16], each).await?;
        if dump == Dump::Interrupted {
            return Ok(false);
        }
        let vrfs = links.values().filter(|link| link.kind == LinkKind::Vrf);
        let vrfs = vrfs.map(|link| Refused::Vrf { name: link.name.clone() });
        let kept = self.view.refused.iter().filter(|r| !matches!(r, Refused::Vrf { .. })).cloned();
        let refused = kept.chain(vrfs).collect();
        self.untold.note_refused(&mut self.view.refused, refused);
        replace(&mut self.view.links, links, &mut self.untold.lists.links);
        self.stale.links = false;
        Ok(true)
    }

    async fn read_addresses(&mut self) -> Result<bool, NetlinkError> {
        if !self.stale.addresses {
            return Ok(true);
        }
        let mut addresses = BTreeSet::new();
        let each = |message: Message<'_>| {
            if let Some(RouteNetlinkMessage::NewAddress(message)) =
                read::message(message.kind, message.payload)
            {
                addresses.extend(read::address(&message));
            }
        };
        // struct ifaddrmsg
        let dump = self.requests.dump("addresses", kind::GET_ADDRESS, &[0; 8], each).await?;
        if dump == Dump::Interrupted {
            return Ok(false);
        }
        replace(&mut self.view.addresses, addresses, &mut self.untold.lists.addresses);
        self.stale.addresses = false;
        Ok(true)
    }

    async fn read_routes(&mut self) -> Result<bool, NetlinkError> {
        if !self.stale.routes {
            return Ok(true);
        }
        let Some(mut read) = self.dump_routes().await? else { return Ok(false) };
        self.readings += 1;
        self.nexthops = std::mem::take(&mut read.nexthops);
        let vrfs = self.view.refused.iter().filter(|r| matches!(r, Refused::Vrf { .. }));
        read.view.refused.extend(vrfs.cloned());
        self.untold.note_refused(&mut self.view.refused, read.view.refused);
        let changed = &mut self.untold.lists.routes;
        follow(&mut self.view.routes, &read.view.routes, changed);
        follow(&mut self.view.host_routes, &read.view.host_routes, changed);
        replace(&mut self.view.shadows, read.view.shadows, changed);
        self.stale.routes = false;
        Ok(true)
    }

    /// Rules, nexthop objects and routes; `None`: they changed meanwhile.
    async fn dump_routes(&mut self) -> Result<Option<ReadRoutes>, NetlinkError> {
        let mut rules = Vec::new();
        let each = |message: Message<'_>| {
            if let Some(RouteNetlinkMessage::NewRule(message)) =
                read::message(message.kind, message.payload)
            {
                rules.extend(read::rule(&message));
            }
        };
        // struct fib_rule_hdr
        let dumped = self.requests.dump("rules", kind::GET_RULE, &[0; 12], each).await?;
        let mut nexthops = HashMap::new();
        let each = |message: Message<'_>| {
            if message.kind == kind::NEW_NEXTHOP {
                nexthops.extend(read::nexthop(message.payload));
            }
        };
        // struct nhmsg
        let objects = self.requests.dump("nexthops", kind::GET_NEXTHOP, &[0; 8], each).await?;
        let mut read = ReadRoutes { nexthops, ..ReadRoutes::default() };
        let mut tables: HashMap<u32, read::Shadows> = HashMap::new();
        let each = |message: Message<'_>| {
            if let Some((route, refused)) = read::route(message.payload, &read.nexthops) {
                read.view.add_route(route);
                read.view.refused.extend(refused);
            } else if !rules.is_empty()
                && let Some(RouteNetlinkMessage::NewRoute(message)) =
                    read::message(message.kind, message.payload)
                && let Some((table, prefix)) = read::table_of(&message)
            {
                tables.entry(table).or_default().insert(prefix);
            }
        };
        // struct rtmsg
        let routes = self.requests.dump("routes", kind::GET_ROUTE, &[0; 12], each).await?;
        if [dumped, objects, routes].contains(&Dump::Interrupted) {
            return Ok(None);
        }
        for rule in &rules {
            read.view.refused.insert(rule.refused());
            read.view.shadows.extend(rule.shadows(&tables));
        }
        Ok(Some(read))
    }

    async fn read_neighbours(&mut self) -> Result<bool, NetlinkError> {
        if !self.stale.neighbours {
            return Ok(true);
        }
        let mut neighbours = OrdMap::new();
        let each = |message: Message<'_>| {
            if let Some(RouteNetlinkMessage::NewNeighbour(message)) =
                read::message(message.kind, message.payload)
            {
                neighbours.extend(read::neighbour(&message));
            }
        };
        // struct ndmsg
        let dump = self.requests.dump("neighbours", kind::GET_NEIGHBOUR, &[0; 12], each).await?;
        if dump == Dump::Interrupted {
            return Ok(false);
        }
        follow(&mut self.view.neighbours, &neighbours, &mut self.untold.lists.neighbours);
        self.stale.neighbours = false;
        Ok(true)
    }
}

/// The result of reading the routes.
#[derive(Default)]
struct ReadRoutes {
    /// The view's lists of routes, with shadows and what was refused; the others are empty.
    view: View,
    nexthops: read::Nexthops,
}

impl Changes {
    fn note_refused(&mut self, known: &mut BTreeSet<Refused>, now: BTreeSet<Refused>) {
        self.notes.extend(now.difference(known).cloned().map(Note::Refused));
        self.notes.extend(known.difference(&now).cloned().map(Note::NoLongerRefused));
        *known = now;
    }
}

/// Makes a list what another is, and goes on sharing what is the same with copies of it.
fn follow<K: Ord + Clone, V: PartialEq + Clone>(
    list: &mut OrdMap<K, V>,
    now: &OrdMap<K, V>,
    changed: &mut bool,
) {
    use imbl::ordmap::DiffItem::{Add, Remove, Update};
    for change in list.clone().diff(now) {
        *changed = true;
        match change {
            Add(key, entry) | Update { new: (key, entry), .. } => {
                list.insert(key.clone(), entry.clone());
            }
            Remove(key, _) => _ = list.remove(key),
        }
    }
}

fn replace<T: PartialEq>(old: &mut T, new: T, changed: &mut bool) {
    *changed |= *old != new;
    *old = new;
}

/// Applies what the kernel told by itself.
fn apply(
    message: &Message<'_>,
    view: &mut View,
    nexthops: &read::Nexthops,
    stale: &mut Lists,
    untold: &mut Changes,
) {
    match message.kind {
        // A link that goes takes its addresses and routes along.
        kind::NEW_LINK | kind::DEL_LINK => {
            (stale.links, stale.addresses, stale.routes) = (true, true, true);
        }
        kind::NEW_ADDRESS | kind::DEL_ADDRESS => (stale.addresses, stale.routes) = (true, true),
        // All are read in any case, and this one with them.
        kind::NEW_ROUTE | kind::DEL_ROUTE if stale.routes => {}
        kind::NEW_ROUTE | kind::DEL_ROUTE => match patch::route(message, view, nexthops) {
            Patched::Done => untold.lists.routes = true,
            Patched::Known => {}
            Patched::InDoubt => stale.routes = true,
        },
        kind::NEW_RULE | kind::DEL_RULE => stale.routes = true,
        kind::NEW_NEXTHOP | kind::DEL_NEXTHOP => stale.routes = true,
        kind::NEW_NEIGHBOUR | kind::DEL_NEIGHBOUR => {
            let read = match read::message(message.kind, message.payload) {
                Some(RouteNetlinkMessage::NewNeighbour(message)) => {
                    read::neighbour(&message).map(|(key, entry)| (key, Some(entry)))
                }
                Some(RouteNetlinkMessage::DelNeighbour(message)) => {
                    read::neighbour(&message).map(|(key, _)| (key, None))
                }
                _ => None,
            };
            let Some((key, entry)) = read else { return };
            let old = match entry {
                Some(entry) => view.neighbours.insert(key, entry),
                None => view.neighbours.remove(&key),
            };
            untold.lists.neighbours |= told_apart(old) != told_apart(entry);
        }
        _ => {}
    }
}

/// Returns those parts of a neighbour whose change is reported: that a good one is asked again
/// concerns nobody.
fn told_apart(entry: Option<NeighbourEntry>) -> Option<(Option<[u8; 6]>, bool, bool)> {
    let failed = |entry: &NeighbourEntry| entry.state == NeighbourState::Failed;
    entry.map(|entry| (entry.usable_mac(), failed(&entry), entry.managed))
}

fn kind_of(error: &NetlinkError) -> io::ErrorKind {
    match error {
        NetlinkError::Socket { source, .. } | NetlinkError::Refused { source, .. } => source.kind(),
        NetlinkError::Garbled { .. } => io::ErrorKind::InvalidData,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listens and reads only: nothing of this machine is changed.
    #[test]
    fn the_view_stands_while_netlink_is_broken_and_is_read_anew() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut mirror = Mirror::start().await.expect("a mirror");
            let before = mirror.view().links.clone();
            assert!(before.values().any(|link| link.kind == LinkKind::Loopback));
            mirror.broke(io::ErrorKind::BrokenPipe);
            assert!(mirror.cut && mirror.view().links == before);
            let mut notes = Vec::new();
            let patience = Duration::from_secs(10);
            let _ = tokio::time::timeout(patience, async {
                while notes.len() < 2 || !mirror.stale.is_empty() {
                    notes.extend(mirror.changed().await.notes);
                }
            })
            .await;
            let expected =
                [Note::Cut(io::ErrorKind::BrokenPipe), Note::Resynced(ResyncReason::Reconnected)];
            assert_eq!(notes, expected);
            assert!(!mirror.cut);
        });
    }

    #[test]
    fn waits_grow_and_end_with_a_whole_reading() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut mirror = Mirror::start().await.expect("a mirror");
            for _ in 0..20 {
                mirror.wait_longer();
            }
            assert_eq!(mirror.retry, LAST_RETRY);
            mirror.stale = Lists::ALL;
            mirror.read_stale().await.expect("read");
            assert!(mirror.stale.is_empty());
            assert_eq!(mirror.retry, FIRST_RETRY);
        });
    }
}
