//! Counts changes of connections, so that a worker which has looked at one need not look again
//! until something may have changed: each count is of all connections in one of many groups.
//!
//! Counted are changes of status and removals, of those connections alone of which a worker may say
//! that a packet changes nothing: not of TCP connections that are half open.
//!
//! The change comes first, then the count. Whoever reads the count and then the connection either
//! sees the change, or will see another count.
//!
//! A count has 8 bits: exactly 256 changes of a group restore the count. An older mark then holds
//! until the end of the tick: a packet may pass by a connection at most 1 s after its end.

use std::sync::atomic::{AtomicU8, Ordering};

use cpu::aes::Secret;

/// Bits of a group's number.
pub(super) const GROUP_BITS: u32 = 14;

/// The group in which a connection's changes are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangeGroup(pub(super) u16);

/// Counts of changes: one byte a group, 16 KiB.
pub(crate) struct Changes {
    counts: Box<[AtomicU8; 1 << GROUP_BITS]>,
    secrets: [u64; 3],
}

impl Changes {
    pub(super) fn new(secret: &Secret) -> Changes {
        let words = secret.chunks_exact(8).map(|word| {
            let word = word.first_chunk().expect("eight bytes");
            u64::from_le_bytes(*word)
        });
        let mut secrets = [0; 3];
        // Odd, so that a product keeps what it is made of.
        secrets.iter_mut().zip(words).for_each(|(to, word)| *to = word | 1);
        Changes { counts: Box::new([const { AtomicU8::new(0) }; 1 << GROUP_BITS]), secrets }
    }

    /// The counts as a reader holds them.
    #[inline(always)]
    pub(crate) fn view(&self) -> ChangesView<'_> {
        ChangesView { counts: &self.counts, secrets: self.secrets }
    }

    /// Counts a change that was made.
    #[inline]
    pub(super) fn count(&self, group: ChangeGroup) {
        self.counts[group.at()].fetch_add(1, Ordering::Release);
    }
}

impl ChangeGroup {
    #[inline(always)]
    fn at(self) -> usize {
        usize::from(self.0) % (1 << GROUP_BITS)
    }
}

/// The counts, with all that is needed to find one.
#[derive(Clone, Copy)]
pub(crate) struct ChangesView<'a> {
    counts: &'a [AtomicU8; 1 << GROUP_BITS],
    secrets: [u64; 3],
}

impl ChangesView<'_> {
    /// The group of a connection of IPv4 by its ends, in either order: both addresses in a word,
    /// both ports in another.
    #[inline(always)]
    pub(super) fn group_v4(&self, addresses: u64, ports: u32) -> ChangeGroup {
        self.group(addresses & u64::from(u32::MAX), addresses >> 32, ports)
    }

    /// The group of a connection of IPv6 by its ends, in either order: halves of addresses, the low
    /// one first, and both ports in a word.
    #[inline(always)]
    pub(super) fn group_v6(&self, one: [u64; 2], other: [u64; 2], ports: u32) -> ChangeGroup {
        let of = |[low, high]: [u64; 2]| high.wrapping_mul(self.secrets[1]).wrapping_add(low);
        self.group(of(one), of(other), ports)
    }

    #[inline(always)]
    fn group(&self, one: u64, other: u64, ports: u32) -> ChangeGroup {
        let [first, _, last] = self.secrets;
        let ends = (one ^ first).wrapping_mul(other ^ first);
        let ports = u64::from(ports ^ ports.rotate_left(16));
        let mixed = ends.wrapping_add(ports).wrapping_mul(last);
        ChangeGroup((mixed >> (u64::BITS - GROUP_BITS)) as u16)
    }

    /// Changes in a group until now: the low byte.
    #[inline(always)]
    pub(super) fn of(&self, group: ChangeGroup) -> u8 {
        self.counts[group.at()].load(Ordering::Acquire)
    }
}
