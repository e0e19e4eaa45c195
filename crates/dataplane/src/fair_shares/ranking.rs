//! Shares by length. To find the longest, and to grow or shrink a share by one, takes one step.

use crate::slots::{AgeList, Links, NONE, Slab, Slot, SlotValues};

/// Shares of one length, in the order of the last change.
#[derive(Clone, Copy, Debug)]
struct LengthGroup {
    length: u32,
    members: AgeList,
    longer: Slot,
    shorter: Slot,
}

/// The ends of a ranking; groups and members are in [`RankedShares`].
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareRanking {
    longest: Slot,
    shortest: Slot,
}

impl ShareRanking {
    /// A ranking without members.
    pub(super) const EMPTY: ShareRanking = ShareRanking { longest: NONE, shortest: NONE };
}

/// Memory of several rankings of the slots of one slab. A share is in at most one ranking.
#[derive(Debug)]
pub(super) struct RankedShares {
    groups: Slab<LengthGroup>,
    /// Groups by share.
    group_of: SlotValues<Slot>,
    /// Links in the group, by share.
    links: Links,
}

impl RankedShares {
    /// Takes the memory for so many shares.
    pub(super) fn new(shares: usize) -> RankedShares {
        RankedShares {
            // A share on the move may need a new group before the old group is free.
            groups: Slab::new(shares + 1),
            group_of: SlotValues::new(shares, NONE),
            links: Links::unlinked(shares),
        }
    }

    /// Capacity for groups.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.groups.memory()
    }

    /// Returns the length of a share; 0 without a ranking.
    pub(super) fn length(&self, share: Slot) -> u32 {
        match self.group_of.value(share) {
            NONE => 0,
            group => self.groups[group].length,
        }
    }

    /// Returns the longest share; of equal shares the share with the earliest last change.
    pub(super) fn longest(&self, ranking: &ShareRanking) -> Option<Slot> {
        match ranking.longest {
            NONE => None,
            group => self.groups[group].members.oldest(),
        }
    }

    /// Makes a share longer by one. A new share joins this ranking.
    pub(super) fn grow(&mut self, ranking: &mut ShareRanking, share: Slot) {
        let group = self.group_of.value(share);
        let (length, longer) = match group {
            NONE => (1, ranking.shortest),
            group => (self.groups[group].length + 1, self.groups[group].longer),
        };
        let next = match longer {
            longer if longer != NONE && self.groups[longer].length == length => longer,
            longer => self.insert_group(ranking, length, (group, longer)),
        };
        self.put(ranking, share, next);
    }

    /// Makes a share shorter by one. A share of length 0 leaves the ranking.
    pub(super) fn shrink(&mut self, ranking: &mut ShareRanking, share: Slot) {
        let group = self.group_of.value(share);
        if group == NONE {
            return;
        }
        let LengthGroup { length, shorter, .. } = self.groups[group];
        let next = match shorter {
            _ if length == 1 => NONE,
            shorter if shorter != NONE && self.groups[shorter].length == length - 1 => shorter,
            shorter => self.insert_group(ranking, length - 1, (shorter, group)),
        };
        self.put(ranking, share, next);
    }

    /// Adds a group between two others; `NONE` at the ends.
    fn insert_group(
        &mut self,
        ranking: &mut ShareRanking,
        length: u32,
        (shorter, longer): (Slot, Slot),
    ) -> Slot {
        let group = LengthGroup { length, members: AgeList::default(), longer, shorter };
        let group = self.groups.insert(group).expect("one more group than shares");
        match shorter {
            NONE => ranking.shortest = group,
            shorter => self.groups[shorter].longer = group,
        }
        match longer {
            NONE => ranking.longest = group,
            longer => self.groups[longer].shorter = group,
        }
        group
    }

    /// Moves a share into a group, or out of all groups. Removes the old group if empty.
    fn put(&mut self, ranking: &mut ShareRanking, share: Slot, into: Slot) {
        let from = std::mem::replace(self.group_of.place(share), into);
        if from != NONE {
            self.groups[from].members.remove(&mut self.links, share);
        }
        if into != NONE {
            self.groups[into].members.push(&mut self.links, share);
        }
        if from == NONE || self.groups[from].members.len() > 0 {
            return;
        }
        let LengthGroup { longer, shorter, .. } = self.groups[from];
        match shorter {
            NONE => ranking.shortest = longer,
            shorter => self.groups[shorter].longer = longer,
        }
        match longer {
            NONE => ranking.longest = shorter,
            longer => self.groups[longer].shorter = shorter,
        }
        self.groups.remove(from);
    }
}
