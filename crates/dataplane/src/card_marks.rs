//! Tags of network cards: which rule a card says that a packet is decided by, and when the walk
//! takes its word.
//!
//! A tag counts only while the ledger of the card says so ([`offload::Placements`], which are of
//! one set of rules, as the snapshot is). It saves the question to the groups of the port that the
//! packet came by, where nothing else is asked: between protected ports without groups on the way
//! out, and without connections. Everything else is judged in full, tagged or not; what a tag says
//! that does not count is not looked at.

use std::sync::Arc;

use offload::Placements;
use policy::PolicyIndex;
use wire::{Family, Mark};

use crate::ids::PortId;

/// The tags that count, by the port that packets come by.
#[derive(Clone, Default, Debug)]
pub struct CardMarks {
    /// [`PortId`] counts into it; behind its end there are none.
    ports: Box<[Option<Arc<Placements>>]>,
}

impl CardMarks {
    /// The tags that count on these ports.
    pub fn new(of: impl IntoIterator<Item = (PortId, Arc<Placements>)>) -> CardMarks {
        let mut ports: Vec<Option<Arc<Placements>>> = Vec::new();
        for (port, placements) in of {
            let place = usize::from(port.0);
            ports.resize(ports.len().max(place + 1), None);
            ports[place] = Some(placements);
        }
        CardMarks { ports: ports.into() }
    }

    /// The tags that count on a port; `None`: none do.
    #[inline]
    pub(crate) fn on(&self, port: PortId) -> Option<&Placements> {
        self.ports.get(usize::from(port.0))?.as_deref()
    }
}

/// Returns the rule that decides a packet of a family, as its card says, if the tag counts.
#[inline]
pub(crate) fn tagged_rule(
    placements: &Placements,
    mark: &Mark,
    family: Family,
) -> Option<PolicyIndex> {
    rule_of_tag(placements, mark.card_tag()?, family)
}

/// Returns the rule that a tag of a packet of a family names, if the tag counts.
#[inline]
pub(crate) fn rule_of_tag(
    placements: &Placements,
    tag: u64,
    family: Family,
) -> Option<PolicyIndex> {
    let rule = placements.read(tag)?;
    (rule.family == family).then_some(rule.slot)
}
