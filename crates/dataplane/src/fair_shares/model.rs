//! The naive twin of the shares: plain lists, searched from end to end.

use std::cmp::Reverse;

use super::{ShareGuarantee, ShareLengths};
use crate::packet_sender::{Entrance, PacketSender};

/// A member, as a number.
#[derive(Clone, Copy, Debug)]
struct ModelMember {
    number: u32,
    sender: PacketSender,
}

/// The length of a share, and the number of the last change of this length.
#[derive(Debug)]
struct ModelShare<S> {
    owner: S,
    length: usize,
    since: u64,
}

/// Members, the oldest first, and shares with members.
#[derive(Default, Debug)]
pub(crate) struct SharesModel {
    members: Vec<ModelMember>,
    ports: Vec<ModelShare<Entrance>>,
    senders: Vec<ModelShare<PacketSender>>,
    changes: u64,
}

fn change<S: PartialEq>(shares: &mut Vec<ModelShare<S>>, owner: S, by: isize, since: u64) {
    let at = shares.iter().position(|share| share.owner == owner).unwrap_or_else(|| {
        shares.push(ModelShare { owner, length: 0, since });
        shares.len() - 1
    });
    let share = &mut shares[at];
    (share.length, share.since) = (share.length.checked_add_signed(by).unwrap(), since);
    if share.length == 0 {
        shares.remove(at);
    }
}

fn length_of<S: PartialEq>(shares: &[ModelShare<S>], owner: &S) -> u32 {
    shares.iter().find(|share| share.owner == *owner).map_or(0, |share| share.length as u32)
}

/// The longest share; of equal shares the share with the earliest last change.
fn longest<'s, S: 's>(
    shares: impl Iterator<Item = &'s ModelShare<S>>,
) -> Option<&'s ModelShare<S>> {
    shares.max_by_key(|share| (share.length, Reverse(share.since)))
}

impl SharesModel {
    /// Members, the oldest first.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().map(|member| member.number)
    }

    /// Number of ports with members.
    pub(crate) fn ports(&self) -> usize {
        self.ports.len()
    }

    pub(crate) fn lengths(&self, sender: PacketSender) -> ShareLengths {
        let port = length_of(&self.ports, &sender.entrance);
        ShareLengths { port, sender: length_of(&self.senders, &sender) }
    }

    pub(crate) fn join(&mut self, number: u32, sender: PacketSender) {
        self.members.push(ModelMember { number, sender });
        self.count(sender, 1);
    }

    pub(crate) fn leave(&mut self, number: u32) {
        let at = self.members.iter().position(|member| member.number == number).unwrap();
        let ModelMember { sender, .. } = self.members.remove(at);
        self.count(sender, -1);
    }

    pub(crate) fn eviction_candidate(&self, guarantee: ShareGuarantee) -> Option<u32> {
        let port = longest(self.ports.iter())?;
        if port.length <= guarantee.port.max(1) {
            return self.oldest(|_| true);
        }
        let of_port = self.senders.iter().filter(|share| share.owner.entrance == port.owner);
        let sender = longest(of_port)?;
        if sender.length <= guarantee.sender.max(1) {
            return self.oldest(|sender| sender.entrance == port.owner);
        }
        self.oldest(|other| other == sender.owner)
    }

    fn oldest(&self, counts: impl Fn(PacketSender) -> bool) -> Option<u32> {
        self.members.iter().find(|member| counts(member.sender)).map(|member| member.number)
    }

    fn count(&mut self, sender: PacketSender, by: isize) {
        self.changes += 1;
        change(&mut self.senders, sender, by, self.changes);
        change(&mut self.ports, sender.entrance, by, self.changes);
    }
}
