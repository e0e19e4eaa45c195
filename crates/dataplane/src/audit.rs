//! The audit of what answers in the tables' place: of the packets that the flow cache, a claim of
//! the kernel's or a card's tag decided, every so many is judged again by the tables of the same
//! snapshot (DESIGN I9). It changes no verdict and no counter but its own.
//!
//! Not audited are packets of tracked connections: to judge one again would move its connection.
//! Not here: packets that the kernel answered by itself; `placement` judges samples of those.

use policy::{Deciders, FlowAction, FlowVerdict, Generation};
use wire::Flow;

use crate::ids::PortId;

/// Disagreements that are kept until somebody fetches them.
const MAX_KEPT: usize = 64;

/// A tier that answers in the tables' place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FastTier {
    /// The flow cache.
    Cache,
    /// The kernel tier, by the claim in a packet's mark.
    Kernel,
    /// A network card, by the tag in a packet's mark.
    Card,
}

impl FastTier {
    /// All of them; as a number each counts into [`AuditCounts`].
    pub const ALL: [FastTier; 3] = [FastTier::Cache, FastTier::Kernel, FastTier::Card];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            FastTier::Cache => "cache",
            FastTier::Kernel => "kernel",
            FastTier::Card => "card",
        }
    }
}

/// A verdict of a tier that the tables do not give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disagreement {
    /// The tier.
    pub tier: FastTier,
    /// The port that the packet came by.
    pub ingress: PortId,
    /// The packet's flow.
    pub flow: Flow,
    /// The tier's verdict.
    pub said: Judged,
    /// That of the tables.
    pub judged: Judged,
    /// Generation of the policies.
    pub generation: Generation,
}

/// A verdict and the rules that gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The fate of the packet.
    pub action: FlowAction,
    /// The rules.
    pub deciders: Deciders,
}

impl From<&FlowVerdict> for Judged {
    fn from(verdict: &FlowVerdict) -> Judged {
        Judged { action: verdict.action, deciders: verdict.deciders }
    }
}

/// Packets that were audited, by tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AuditCounts {
    /// Packets judged again.
    pub judged: [u64; FastTier::ALL.len()],
    /// Those about which the tables say otherwise.
    pub wrong: [u64; FastTier::ALL.len()],
}

impl AuditCounts {
    /// Counts packets of a tier that were judged again, and of these the wrong ones.
    pub fn count(&mut self, tier: FastTier, judged: u64, wrong: u64) {
        self.judged[tier as usize] += judged;
        self.wrong[tier as usize] += wrong;
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &AuditCounts) {
        for (mine, theirs) in [(&mut self.judged, &other.judged), (&mut self.wrong, &other.wrong)] {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
    }
}

/// The auditor of one worker.
#[derive(Default)]
pub struct Auditor {
    /// The auditor judges 1 of this many packets again; 0: none.
    every: u32,
    /// Packets until the next.
    until_next: u32,
    kept: Vec<Disagreement>,
}

impl Auditor {
    /// Judges 1 of `every` packets again from now on; 0: none.
    pub fn judge_one_of(&mut self, every: u32) {
        (self.every, self.until_next) = (every, every);
        self.kept.reserve(MAX_KEPT);
    }

    /// The number of packets of which one is judged again; 0: none is.
    pub fn share(&self) -> u32 {
        self.every
    }

    /// The disagreements since they were last fetched, the first ones.
    pub fn disagreements(&mut self) -> std::vec::Drain<'_, Disagreement> {
        self.kept.drain(..)
    }

    /// Counts packets that a tier decided; returns the place among them of one to be judged again.
    #[inline]
    pub(crate) fn draw(&mut self, packets: u32) -> Option<u32> {
        if self.every == 0 || packets == 0 {
            return None;
        }
        if packets < self.until_next {
            self.until_next -= packets;
            return None;
        }
        let place = self.until_next - 1;
        // Of a batch one at most: shares above one of its packets are not reached.
        self.until_next = self.every.saturating_sub(packets - self.until_next).max(1);
        Some(place)
    }

    /// Notes a packet that was judged again. Cache and tables name the same rules; of the rules
    /// that decide the same, a card may know one that stands lower.
    pub(crate) fn note(&mut self, counts: &mut AuditCounts, found: Disagreement) {
        let tier = found.tier as usize;
        let agrees = match found.tier {
            FastTier::Cache | FastTier::Kernel => found.said == found.judged,
            FastTier::Card => found.said.action == found.judged.action,
        };
        counts.judged[tier] += 1;
        if !agrees {
            counts.wrong[tier] += 1;
            if self.kept.len() < MAX_KEPT {
                self.kept.push(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_packets_is_drawn() {
        for every in [1, 2, 7, 64, 1000] {
            for batch in [1, 3, 64] {
                let mut auditor = Auditor::default();
                assert_eq!(auditor.draw(batch), None);
                auditor.judge_one_of(every);
                let batches = 64_000 / batch;
                let drawn = (0..batches).filter_map(|_| auditor.draw(batch));
                let drawn: Vec<u32> = drawn.inspect(|place| assert!(*place < batch)).collect();
                let expected = (batches * batch / every).min(batches);
                assert!(expected.abs_diff(drawn.len() as u32) <= 1, "{every} {batch}");
            }
        }
    }
}
