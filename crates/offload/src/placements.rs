//! The marks that count, as workers read them.

use wire::Family;
use wire::packet::{Fragment, IPV4_BYTES, IPV6_BYTES, Packet};

use crate::handle::{Handle, Incarnation, Tag};
use crate::reason::RuleKey;

/// Places of the table for each entry of the card, at least: handles are given so that no two that
/// are in use share one.
const PLACES_AN_ENTRY: usize = 2;

/// A rule whose marks count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Its number in the card.
    pub handle: Handle,
    /// The rule.
    pub rule: RuleKey,
}

/// The marks of a card that count under one set of rules. Immutable; reading one is one load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placements {
    incarnation: Incarnation,
    /// A handle is at the place that its low bits say.
    places: Box<[Option<Placed>]>,
}

impl Placements {
    /// The bits of a handle that say its place.
    pub(crate) fn mask(capacity: usize) -> u32 {
        let places = capacity.saturating_mul(PLACES_AN_ENTRY).max(2).next_power_of_two();
        (places - 1) as u32
    }

    pub(crate) fn new(
        capacity: usize,
        incarnation: Incarnation,
        placed: impl Iterator<Item = Placed>,
    ) -> Placements {
        let mask = Placements::mask(capacity);
        let mut places = vec![None; mask as usize + 1];
        for placed in placed {
            places[(placed.handle.get() & mask) as usize] = Some(placed);
        }
        Placements { incarnation, places: places.into() }
    }

    /// The rule that decides a packet, as its mark says. `None`: the mark does not count, and the
    /// packet is judged in full. Any bits may come from a card.
    ///
    /// The caller reads no mark of a packet that the ingress groups are not asked about, nor of one
    /// that a card may see otherwise ([`is_plain`]).
    #[inline]
    pub fn read(&self, mark: u64) -> Option<RuleKey> {
        let Tag { handle, incarnation } = Tag::from_bits(mark)?;
        let place = handle.get() as usize & (self.places.len() - 1);
        let placed = self.places[place].as_ref()?;
        (placed.handle == handle && incarnation == self.incarnation).then_some(placed.rule)
    }

    /// The rules whose marks count, in no order.
    pub fn rules(&self) -> impl Iterator<Item = &Placed> {
        self.places.iter().flatten()
    }
}

/// Returns whether every card sees of a packet what the walk sees: it is whole, and its upper-layer
/// header stands behind an IP header without options or extensions. A card that stops at what it
/// does not know would miss the rule that wins, and tag by the one below.
#[inline]
pub const fn is_plain(packet: &Packet) -> bool {
    let header = match packet.flow.family {
        Family::V4 => IPV4_BYTES,
        Family::V6 => IPV6_BYTES,
    };
    matches!(packet.fragment, Fragment::Whole) && packet.upper_offset as usize == header
}
