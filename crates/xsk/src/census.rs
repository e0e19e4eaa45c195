//! Counts of frames by owner, at once or in parts.
//!
//! A count in parts visits some frames a step while frames change owners. A change behind the hand
//! moves in the tally; a change ahead of the hand waits for the hand. So the tally of the last step
//! shows the moment of the last step, as a count at once does.

use crate::owner::Owner;

/// All frames by owner, counted afresh from the owner tags. Only `free` is the length of the free
/// list: the sum holds if tags and list agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Frames that exist.
    pub total: usize,
    /// Frames on the free list.
    pub free: usize,
    /// Frames taken by the caller: packets in progress, packets held.
    pub outside: usize,
    /// Frames in fill and rx rings of sockets.
    pub receive: usize,
    /// Frames in tx and completion rings of sockets.
    pub transmit: usize,
    /// Frames in quarantine: their socket is closed, and the kernel may not have let go of them.
    pub quarantined: usize,
}

impl Census {
    /// Frames of all owners.
    pub const fn sum(&self) -> usize {
        self.free + self.outside + self.receive + self.transmit + self.quarantined
    }

    /// Lost frames (positive) or frames with two owners (negative). Any value but 0 is a bug.
    pub const fn imbalance(&self) -> i64 {
        self.total as i64 - self.sum() as i64
    }
}

/// Frames of one owner tag.
pub(crate) struct OwnedFrames {
    pub(crate) owner: Owner,
    /// Number of frames.
    pub(crate) frames: usize,
}

/// Frames by owner tag, as far as a hand has visited them.
pub(crate) struct OwnerTally {
    /// First frame to visit; 0: no count is under way.
    hand: u32,
    /// Visited frames, by owner tag.
    frames: Vec<u32>,
}

impl OwnerTally {
    /// A tally with room for all owners; no count is under way.
    pub(crate) fn new() -> OwnerTally {
        OwnerTally { hand: 0, frames: vec![0; Owner::COUNT] }
    }

    /// Begins a count. Cost: bounded by the most sockets of an area.
    pub(crate) fn begin(&mut self) {
        self.hand = 0;
        self.frames.fill(0);
    }

    /// Visits up to `step` more frames. Returns true if all frames are visited.
    pub(crate) fn visit(&mut self, owners: &[Owner], step: usize) -> bool {
        let rest = owners.get(self.hand as usize..).unwrap_or_default();
        let visited = &rest[..rest.len().min(step)];
        visited.iter().for_each(|owner| self.frames[owner.place()] += 1);
        self.hand += visited.len() as u32;
        visited.len() == rest.len()
    }

    /// Ends a count: changes of owners are free again.
    pub(crate) fn end(&mut self) {
        self.hand = 0;
    }

    /// Notes a change of a frame's owner. Cost: a comparison, unless a count is under way.
    #[inline(always)]
    pub(crate) fn note(&mut self, frame: u32, from: Owner, to: Owner) {
        if frame < self.hand {
            self.change(from, to);
        }
    }

    #[cold]
    fn change(&mut self, from: Owner, to: Owner) {
        self.frames[from.place()] -= 1;
        self.frames[to.place()] += 1;
    }

    /// Visited frames by owner.
    pub(crate) fn by_owner(&self) -> impl Iterator<Item = OwnedFrames> {
        let owners = (0..).map(Owner::at).zip(&self.frames);
        let owned = owners.map(|(owner, frames)| OwnedFrames { owner, frames: *frames as usize });
        owned.filter(|owned| owned.frames > 0)
    }
}
