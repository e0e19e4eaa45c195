//! Frames by what became of them.

use emulated_card::{EspCounts, Loss};
use offload::SaDirection;
use serde_json::{Map, Value, json};

/// Frames of a queue that were handed to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueCounts {
    /// Without a tag.
    pub(crate) plain: u64,
    /// With that of a rule.
    pub(crate) tagged: u64,
    /// In clear, with that of the SA that opened them.
    pub(crate) opened: u64,
    /// As ESP whose text is in clear, with that of the SA of crypto mode that deciphered it.
    pub(crate) deciphered: u64,
    /// As they came, with that of the SA of crypto mode that does not authenticate them.
    pub(crate) forged: u64,
}

/// Counts of the card's frames since it began; each counts once, here or among the card's own
/// counts of packets of SAs that it dropped. (A forged one of crypto mode counts in both.)
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Handed to the host, by queue.
    pub(crate) queues: Vec<QueueCounts>,
    /// Sent to the wire as the host gave them.
    pub(crate) to_wire: u64,
    /// Sent to the wire sealed.
    pub(crate) sealed: u64,
    /// Sent to the wire sealed where the host had written all but the cipher's part.
    pub(crate) encrypted: u64,
    /// From the host, dropped because their header was not that of an SA.
    pub(crate) wrong_header: u64,
    /// From the wire, dropped by a rule.
    pub(crate) dropped_by_rule: u64,
    /// Dropped because the link was down or the card out of its slot.
    pub(crate) not_up: u64,
    /// Dropped because they were longer than the card takes.
    pub(crate) too_long: u64,
    /// From the wire, dropped because the host's netdev was down or had no room.
    pub(crate) host_refused: u64,
    /// From the host, dropped because the wire's netdev was down, had no room, or a smaller MTU
    /// than they needed, sealed or not.
    pub(crate) wire_refused: u64,
}

impl Counts {
    /// Zeros, for this number of queues.
    pub(crate) fn of(queues: usize) -> Counts {
        Counts { queues: vec![QueueCounts::default(); queues], ..Counts::default() }
    }

    /// The counts for an operator, with the card's own of packets of SAs.
    pub(crate) fn as_json(&self, esp: &EspCounts) -> Value {
        let queue = |counts: &QueueCounts| {
            let QueueCounts { plain, tagged, opened, deciphered, forged } = counts;
            json!({
                "plain": plain,
                "tagged": tagged,
                "opened": opened,
                "deciphered": deciphered,
                "forged": forged,
            })
        };
        let dropped = |way| -> Map<String, Value> {
            let of = |loss: Loss| (loss.name().to_owned(), esp.dropped(way, loss).into());
            Loss::ALL.into_iter().map(of).collect()
        };
        json!({
            "emulated": true,
            "queues": self.queues.iter().map(queue).collect::<Vec<_>>(),
            "to_wire": self.to_wire,
            "sealed": self.sealed,
            "encrypted": self.encrypted,
            "dropped_by_sa": {
                "out": dropped(SaDirection::Out),
                "in": dropped(SaDirection::In),
            },
            "dropped_by_rule": self.dropped_by_rule,
            "wrong_header": self.wrong_header,
            "not_up": self.not_up,
            "too_long": self.too_long,
            "host_refused": self.host_refused,
            "wire_refused": self.wire_refused,
        })
    }
}
