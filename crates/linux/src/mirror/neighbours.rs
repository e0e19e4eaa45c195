//! Neighbours on demand: the kernel resolves, Lockgate asks and listens.

use std::collections::{BTreeSet, VecDeque};

use imbl::OrdSet;
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourHeader,
    NeighbourMessage, NeighbourState as Nud,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use wire::{Address, Family};

use super::{Mirror, kind, read};
use crate::netlink::NetlinkError;
use crate::view::{NeighbourEntry, NeighbourState};

/// Maximum requests without an answer. The kernel's table has 1024 places by default
/// (`neigh.default.gc_thresh3`), shared by all network namespaces, and refuses to answer ARP when
/// the table is full.
const MAX_UNANSWERED: usize = 128;
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

/// Neighbours that [`Mirror::resolve`] asked the kernel for, the oldest request first.
///
/// An entry without an answer fills a place of the kernel's table for three seconds, so a scan of a
/// subnet could fill the table. Above [`MAX_UNANSWERED`] the oldest entry without an answer gives
/// way. Packets that still wait for this neighbour ask again.
#[derive(Default)]
pub(super) struct UnansweredRequests {
    oldest_first: VecDeque<(u32, Address)>,
}

impl Mirror {
    /// Asks the kernel to resolve a neighbour's link address, as if it had a packet for it. The
    /// address arrives as a change of the view. Of more than 128 requests without an answer the
    /// oldest gives way; if the kernel's table is full, the older half.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`]: the netdev is gone or down; others: netlink broke.
    pub fn resolve(&mut self, link: u32, address: Address) -> Result<(), NetlinkError> {
        let keeping = match self.fresh.contains(&(link, address)) {
            true => Keeping::Kernel,
            false => Keeping::Nobody,
        };
        let mut asked = self.ask(link, address, keeping);
        let is_full = |error: &NetlinkError| error.errno() == Some(libc::ENOBUFS);
        if asked.as_ref().is_err_and(is_full) {
            self.keep_unanswered(self.unanswered.oldest_first.len() / 2);
            asked = self.ask(link, address, keeping);
        }
        let neighbour = (link, address);
        let is_answered = |entry: &NeighbourEntry| entry.usable_mac().is_some();
        let is_waiting = asked.is_ok()
            && keeping == Keeping::Nobody
            && !self.view.neighbours.get(&neighbour).is_some_and(is_answered);
        if is_waiting && !self.unanswered.oldest_first.contains(&neighbour) {
            self.unanswered.oldest_first.push_back(neighbour);
            self.keep_unanswered(MAX_UNANSWERED);
        }
        asked
    }

    /// Keeps so many requests. The kernel forgets the neighbours of older requests without an
    /// answer.
    fn keep_unanswered(&mut self, maximum: usize) {
        while self.unanswered.oldest_first.len() > maximum
            && let Some((link, address)) = self.unanswered.oldest_first.pop_front()
        {
            if !self.fresh.contains(&(link, address)) && self.is_unanswered(link, address) {
                let payload = question(link, address, Keeping::Nobody);
                // Refused: the kernel has removed the entry already.
                let _ =
                    self.requests.request("neighbour", kind::DEL_NEIGHBOUR, 0, &payload, |_| {});
            }
        }
    }

    /// Asks the kernel whether a neighbour of a packet has not answered yet. The view may lag: the
    /// answer of the neighbour may be among the messages to read.
    fn is_unanswered(&mut self, link: u32, address: Address) -> bool {
        let mut is_unanswered = false;
        let payload = payload(&named(link, address));
        // Refused: the kernel has removed the entry already.
        let _ = self.requests.request("neighbour", kind::GET_NEIGHBOUR, 0, &payload, |message| {
            let Some(RouteNetlinkMessage::NewNeighbour(message)) =
                read::message(message.kind, message.payload)
            else {
                return;
            };
            is_unanswered = read::neighbour(&message).is_some_and(|(_, entry)| match entry.state {
                NeighbourState::Unresolved | NeighbourState::Failed => !entry.managed,
                NeighbourState::Good | NeighbourState::Permanent | NeighbourState::Stale => false,
            });
        });
        is_unanswered
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

/// Returns the message that names a neighbour.
fn named(link: u32, address: Address) -> NeighbourMessage {
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
        ..NeighbourHeader::default()
    };
    message.attributes.push(NeighbourAttribute::Destination(destination));
    message
}

fn question(link: u32, address: Address, keeping: Keeping) -> Vec<u8> {
    let mut message = named(link, address);
    message.header.flags = NeighbourFlags::Use;
    if keeping == Keeping::Kernel {
        message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    }
    payload(&message)
}

fn payload(message: &NeighbourMessage) -> Vec<u8> {
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    payload
}
