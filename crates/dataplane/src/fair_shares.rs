//! Fair shares of a bounded memory: the common rule of waiting packets, fragmented datagrams and
//! waiting fragments.
//!
//! Members are slots of the owner's slab. A member belongs to a sender, a sender to an entrance: an
//! ingress port, or a tunnel behind the port. The rule counts a tunnel as a port of its own, so no
//! stranger displaces the packets of a tunnel. The owner admits every member. Above the owner's
//! bound, one member gives way ([`eviction_candidate`](FairShares::eviction_candidate)):
//!
//! 1. The port with the most members gives way. If all ports are within their guarantee, the oldest
//!    member of all gives way.
//! 2. Of this port, the sender with the most members loses the oldest. If all senders of the port
//!    are within their guarantee, the oldest member of the port gives way.
//!
//! So a flood displaces members of the flood's sender or port.
//!
//! **Guarantee.** A flood may forge a new source address for every packet. Beside senders with one
//! member each, an honest sender with two members would have the longest share. Shares within the
//! guarantee therefore count as equally long: the flood displaces older members of the flood first.
//!
//! **Cost.** Each operation takes a bounded number of steps. All memory is taken at the start. A
//! keyed hash finds senders and ports, because strangers choose addresses.

mod ranking;

#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

use self::ranking::{RankedShares, ShareRanking};
use crate::ids::PortId;
use crate::packet_sender::{Entrance, PacketSender};
use crate::slots::{AgeList, Index, Links, NONE, Slab, Slot, SlotValues};

/// Lengths up to which shares count as equally long. 0 counts as 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareGuarantee {
    /// Members of a port.
    pub(crate) port: usize,
    /// Members of a sender.
    pub(crate) sender: usize,
}

/// Maximum members, and the guarantee above this maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareBound {
    pub(crate) all: usize,
    pub(crate) guarantee: ShareGuarantee,
}

/// Lengths of the shares that a member is in, in the order of comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ShareLengths {
    pub(crate) port: u32,
    pub(crate) sender: u32,
}

/// Members and claims of a sender.
#[derive(Debug)]
struct SenderShare {
    sender: PacketSender,
    port: Slot,
    members: AgeList,
    claims: usize,
}

/// Members and senders of a port, or of a tunnel behind a port.
#[derive(Debug)]
struct PortShare {
    entrance: Entrance,
    members: AgeList,
    /// Senders with members, by length.
    ranking: ShareRanking,
    /// Senders with members or claims.
    senders: usize,
}

/// Links of the lists by age: of all members, of a port, of a sender.
#[derive(Debug)]
struct MemberLinks {
    all: Links,
    port: Links,
    sender: Links,
}

/// The members of one memory, by sender and port.
pub(crate) struct FairShares {
    hasher: RandomState,
    senders: Slab<SenderShare>,
    by_sender: Index,
    ports: Slab<PortShare>,
    by_port: Index,
    port_ranking: ShareRanking,
    ranked_ports: RankedShares,
    ranked_senders: RankedShares,
    /// Senders by member; [`NONE`]: no member.
    sender_of: SlotValues<Slot>,
    links: MemberLinks,
    all: AgeList,
    /// Ports with members or claims.
    live_ports: AgeList,
    live_port_links: Links,
}

impl FairShares {
    /// Takes the memory for so many members and claims.
    pub(crate) fn new(members: usize, claims: usize) -> FairShares {
        let senders = members + claims;
        let links = || Links::unlinked(members);
        FairShares {
            hasher: RandomState::new(),
            senders: Slab::new(senders),
            by_sender: Index::new(senders),
            ports: Slab::new(senders),
            by_port: Index::new(senders),
            port_ranking: ShareRanking::EMPTY,
            ranked_ports: RankedShares::new(senders),
            ranked_senders: RankedShares::new(senders),
            sender_of: SlotValues::new(members, NONE),
            links: MemberLinks { all: links(), port: links(), sender: links() },
            all: AgeList::default(),
            live_ports: AgeList::default(),
            live_port_links: Links::unlinked(senders),
        }
    }

    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The oldest member.
    pub(crate) fn oldest(&self) -> Option<Slot> {
        self.all.oldest()
    }

    /// The next younger member.
    pub(crate) fn after(&self, member: Slot) -> Option<Slot> {
        self.all.after(&self.links.all, member)
    }

    /// The slot of a port with members or claims; [`port_after`](Self::port_after) returns the
    /// others.
    pub(crate) fn first_port(&self) -> Option<Slot> {
        self.live_ports.oldest()
    }

    /// The slot of the next port with members or claims.
    pub(crate) fn port_after(&self, port: Slot) -> Option<Slot> {
        self.live_ports.after(&self.live_port_links, port)
    }

    /// The port of a slot.
    pub(crate) fn port(&self, port: Slot) -> PortId {
        self.ports[port].entrance.port
    }

    /// The oldest member of a port, by slot. `None`: the last member has left.
    pub(crate) fn oldest_of_port(&self, port: Slot) -> Option<Slot> {
        // A free slot keeps its empty list.
        self.ports[port].members.oldest()
    }

    /// Returns the sender of a member, by slot.
    pub(crate) fn sender_of(&self, member: Slot) -> Slot {
        self.sender_of.value(member)
    }

    /// Returns the port of a sender, by slot.
    pub(crate) fn port_of(&self, sender: Slot) -> Slot {
        self.senders[sender].port
    }

    /// Returns the lengths of a member's shares.
    pub(crate) fn lengths(&self, member: Slot) -> ShareLengths {
        let sender = self.sender_of(member);
        let port = self.ranked_ports.length(self.senders[sender].port);
        ShareLengths { port, sender: self.ranked_senders.length(sender) }
    }

    /// Adds a slot as the youngest member. Returns the sender's slot.
    pub(crate) fn join(&mut self, member: Slot, sender: PacketSender) -> Slot {
        let sender = self.find_sender(&sender).unwrap_or_else(|| self.insert_sender(sender));
        let SenderShare { port, members, .. } = &mut self.senders[sender];
        let port_share = &mut self.ports[*port];
        *self.sender_of.place(member) = sender;
        self.all.push(&mut self.links.all, member);
        port_share.members.push(&mut self.links.port, member);
        members.push(&mut self.links.sender, member);
        self.ranked_senders.grow(&mut port_share.ranking, sender);
        self.ranked_ports.grow(&mut self.port_ranking, *port);
        sender
    }

    /// Takes a member out.
    pub(crate) fn leave(&mut self, member: Slot) {
        let sender = std::mem::replace(self.sender_of.place(member), NONE);
        let SenderShare { port, members, .. } = &mut self.senders[sender];
        let port_share = &mut self.ports[*port];
        self.all.remove(&mut self.links.all, member);
        port_share.members.remove(&mut self.links.port, member);
        members.remove(&mut self.links.sender, member);
        self.ranked_senders.shrink(&mut port_share.ranking, sender);
        self.ranked_ports.shrink(&mut self.port_ranking, *port);
        self.remove_idle(sender);
    }

    /// Claims the slot of a sender: the slot outlives the sender's members.
    pub(crate) fn claim(&mut self, sender: Slot) {
        self.senders[sender].claims += 1;
    }

    /// Releases a claim.
    pub(crate) fn release_claim(&mut self, sender: Slot) {
        self.senders[sender].claims -= 1;
        self.remove_idle(sender);
    }

    /// Returns the member that gives way: never the youngest of several.
    pub(crate) fn eviction_candidate(&self, guarantee: ShareGuarantee) -> Option<Slot> {
        let is_guaranteed = |length: u32, guarantee: usize| length as usize <= guarantee.max(1);
        let port = self.ranked_ports.longest(&self.port_ranking)?;
        if is_guaranteed(self.ranked_ports.length(port), guarantee.port) {
            return self.all.oldest();
        }
        let PortShare { members, ranking, .. } = &self.ports[port];
        let sender = self.ranked_senders.longest(ranking)?;
        if is_guaranteed(self.ranked_senders.length(sender), guarantee.sender) {
            return members.oldest();
        }
        self.senders[sender].members.oldest()
    }

    fn find_sender(&self, sender: &PacketSender) -> Option<Slot> {
        let hash = self.hasher.hash_one(sender);
        self.by_sender.find(hash, |slot| self.senders[slot].sender == *sender)
    }

    fn insert_sender(&mut self, sender: PacketSender) -> Slot {
        let port = self.find_port(sender.entrance);
        let port = port.unwrap_or_else(|| self.insert_port(sender.entrance));
        self.ports[port].senders += 1;
        let share = SenderShare { sender, port, members: AgeList::default(), claims: 0 };
        let slot = self.senders.insert(share).expect("a sender has a member or a claim");
        self.by_sender.insert(self.hasher.hash_one(sender), slot);
        slot
    }

    fn find_port(&self, entrance: Entrance) -> Option<Slot> {
        let hash = self.hasher.hash_one(entrance);
        self.by_port.find(hash, |slot| self.ports[slot].entrance == entrance)
    }

    fn insert_port(&mut self, entrance: Entrance) -> Slot {
        let (members, ranking) = (AgeList::default(), ShareRanking::EMPTY);
        let share = PortShare { entrance, members, ranking, senders: 0 };
        let slot = self.ports.insert(share).expect("as many ports as senders");
        self.by_port.insert(self.hasher.hash_one(entrance), slot);
        self.live_ports.push(&mut self.live_port_links, slot);
        slot
    }

    /// Removes a sender without members and claims, and a port with the last sender.
    fn remove_idle(&mut self, sender: Slot) {
        let SenderShare { sender: address, port, members, claims } = &self.senders[sender];
        if members.len() > 0 || *claims > 0 {
            return;
        }
        let (address, port) = (*address, *port);
        self.by_sender.remove(self.hasher.hash_one(address), sender);
        self.senders.remove(sender);
        self.ports[port].senders -= 1;
        if self.ports[port].senders == 0 {
            self.by_port.remove(self.hasher.hash_one(address.entrance), port);
            self.live_ports.remove(&mut self.live_port_links, port);
            self.ports.remove(port);
        }
    }
}

#[cfg(test)]
impl FairShares {
    /// Capacities of the memory.
    pub(crate) fn memory(&self) -> [usize; 7] {
        [
            self.senders.memory(),
            self.by_sender.memory(),
            self.ports.memory(),
            self.by_port.memory(),
            self.ranked_ports.memory(),
            self.ranked_senders.memory(),
            self.sender_of.memory() + self.links.all.memory(),
        ]
    }
}
