//! The mirror of what Linux knows, by rtnetlink: netdevs, addresses, routes, neighbours. Linux is
//! the control plane; Lockgate follows.
//!
//! * Neighbours, which change all the time, follow the messages, and so does a route of which one
//!   message says all (`patch.rs`).
//! * Netdevs, addresses and otherwise routes are read as whole lists whenever the kernel tells of a
//!   change in them, since it does not tell of all (a link that goes down takes its IPv4 routes
//!   along in silence, a nexthop object those that use it). Large tables are read at most one part
//!   in `READING_SHARE` of the time.
//! * If the kernel had more to tell than there was room (`ENOBUFS`) everything is read anew; a
//!   list that changed while it was read is read again. Until the new one is whole the old stands.
//! * If netlink breaks, the view stands, and the socket is opened again, later and later.

mod host_port;
mod neighbours;
mod patch;
mod read;
mod reading;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use netlink_packet_route::RouteNetlinkMessage;
use tokio::time::Instant;
use wire::Address;

pub use host_port::{HostPortError, HostRoute};

use crate::netlink::{Events, Message, NetlinkError, Requests};
use crate::view::{Link, LinkKind, NeighbourEntry, NeighbourState, Refused, View};
use neighbours::UnansweredRequests;
use patch::PatchOutcome;
use reading::{ReadLists, ReadRoutes, Reading};

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
    /// Lists that changed.
    pub lists: Lists,
    /// Events to report to the operator.
    pub notes: Vec<Note>,
}

/// A note for the event log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// All lists were read anew.
    Resynced(ResyncReason),
    /// Netlink broke; the view stands, and the socket is opened again.
    Cut(io::ErrorKind),
    /// The kernel does something that Lockgate does not follow.
    Refused(Refused),
    /// The kernel does so no longer.
    NoLongerRefused(Refused),
}

/// Reason why all lists were read anew.
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
                write!(
                    f,
                    "netlink messages were lost for lack of buffer space: all lists were read anew"
                )
            }
            Self::Resynced(ResyncReason::InterruptedDump) => {
                write!(f, "a list changed while it was read: it was read anew")
            }
            Self::Resynced(ResyncReason::Reconnected) => {
                write!(f, "netlink is back: all lists were read anew")
            }
            Self::Cut(kind) => {
                write!(
                    f,
                    "netlink failed ({kind}): the last known addresses, routes and neighbours hold \
                     until it is back"
                )
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
    /// The socket by which lists are read; `None`: a reading has it, or it broke.
    reader: Option<Requests>,
    reading: Option<Reading>,
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
    unanswered: UnansweredRequests,
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
            reader: None,
            reading: None,
            view: View::default(),
            nexthops: read::Nexthops::new(),
            readings: 0,
            stale: Lists::ALL,
            untold: Changes::default(),
            not_before: Instant::now(),
            retry: FIRST_RETRY,
            cut: false,
            fresh: OrdSet::new(),
            unanswered: UnansweredRequests::default(),
        };
        while !mirror.stale.is_empty() {
            tokio::time::sleep_until(mirror.not_before).await;
            // On this thread: another one would keep privileges that this one is about to drop.
            let (mut requests, began) = (Requests::open(ROUTE_PROTOCOL)?, Instant::now());
            let read = ReadLists::read(&mut requests, mirror.stale);
            mirror.finish(began, requests, read)?;
        }
        let refused = mirror.view.refused.iter().cloned().map(Note::Refused);
        mirror.untold = Changes { lists: Lists::NONE, notes: refused.collect() };
        Ok(mirror)
    }

    /// Returns the kernel's state, as far as it is known.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the number of times that all routes were read since the start.
    pub fn route_readings(&self) -> u64 {
        self.readings
    }

    /// Waits until the view changes or there is something to note, applies all pending messages,
    /// and returns the changes. Cancel safe: changes not returned are returned by the next call.
    pub async fn changed(&mut self) -> Changes {
        loop {
            // What is told while lists are read waits, and is applied to them afterwards.
            match (&self.reading, self.cut) {
                (Some(_), _) => {}
                (None, true) => self.reconnect().await,
                (None, false) => self.hear().await,
            }
            let is_due = !self.stale.is_empty() && Instant::now() >= self.not_before;
            if (is_due || self.reading.is_some())
                && let Err(error) = self.read_stale().await
            {
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
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.listen_anew(),
            Err(error) => self.broke(error.kind()),
        }
    }

    /// Listens by a fresh socket and has everything read anew, after the kernel had more to tell
    /// than there was room. Until the old socket was empty the kernel would go on dropping, and say
    /// so no more: what happened after the reading would be lost.
    fn listen_anew(&mut self) {
        match Events::open(ROUTE_PROTOCOL, &GROUPS, EVENT_ROOM_BYTES) {
            Ok(events) => {
                self.events = events;
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

    /// Reads the stale lists; each replaces the old one when it is whole. Cancel safe: the reading
    /// goes on, and the next call takes what it found.
    async fn read_stale(&mut self) -> Result<(), NetlinkError> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => {
                let requests =
                    self.reader.take().map_or_else(|| Requests::open(ROUTE_PROTOCOL), Ok)?;
                none.insert(Reading::begin(requests, self.stale))
            }
        };
        let joined = (&mut reading.job).await;
        let began = reading.began;
        self.reading = None;
        let lost =
            |_| NetlinkError::Socket { action: "lists", source: io::ErrorKind::Other.into() };
        let (requests, read) = joined.map_err(lost)?;
        self.finish(began, requests, read)
    }

    /// Takes what a reading found, and sets the time of the next.
    fn finish(
        &mut self,
        began: Instant,
        requests: Requests,
        read: Result<ReadLists, NetlinkError>,
    ) -> Result<(), NetlinkError> {
        self.reader = Some(requests);
        self.take(read?);
        if self.stale.is_empty() {
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

    /// Puts lists that are whole in the place of the old ones.
    fn take(&mut self, read: ReadLists) {
        let ReadLists { links, addresses, routes, neighbours } = read;
        let Mirror { view, untold, stale, .. } = self;
        if let Some(links) = links {
            let vrfs = links.values().filter(|link| link.kind == LinkKind::Vrf);
            let vrfs = vrfs.map(|link| Refused::Vrf { name: link.name.clone() });
            let kept = view.refused.iter().filter(|r| !matches!(r, Refused::Vrf { .. })).cloned();
            let refused = kept.chain(vrfs).collect();
            untold.note_refused(&mut view.refused, refused);
            replace(&mut view.links, links, &mut untold.lists.links);
            stale.links = false;
        }
        if let Some(addresses) = addresses {
            replace(&mut view.addresses, addresses, &mut untold.lists.addresses);
            stale.addresses = false;
        }
        if let Some(ReadRoutes { view: mut read, nexthops }) = routes {
            self.readings += 1;
            self.nexthops = nexthops;
            let vrfs = view.refused.iter().filter(|r| matches!(r, Refused::Vrf { .. }));
            read.refused.extend(vrfs.cloned());
            untold.note_refused(&mut view.refused, read.refused);
            let changed = &mut untold.lists.routes;
            follow(&mut view.routes, &read.routes, changed);
            follow(&mut view.host_routes, &read.host_routes, changed);
            replace(&mut view.shadows, read.shadows, changed);
            stale.routes = false;
        }
        if let Some(neighbours) = neighbours {
            follow(&mut view.neighbours, &neighbours, &mut untold.lists.neighbours);
            stale.neighbours = false;
        }
    }
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
            PatchOutcome::Done => untold.lists.routes = true,
            PatchOutcome::Known => {}
            PatchOutcome::InDoubt => stale.routes = true,
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
