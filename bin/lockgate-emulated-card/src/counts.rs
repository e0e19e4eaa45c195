//! Frames by what became of them.

use serde_json::{Value, json};

/// Frames of a queue that were handed to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueCounts {
    /// Without a tag.
    pub(crate) plain: u64,
    /// With one.
    pub(crate) tagged: u64,
}

/// Counts of the card's frames since it began; each counts once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Handed to the host, by queue.
    pub(crate) queues: Vec<QueueCounts>,
    /// Sent to the wire.
    pub(crate) to_wire: u64,
    /// From the wire, dropped by a rule.
    pub(crate) dropped_by_rule: u64,
    /// Dropped because the link was down or the card out of its slot.
    pub(crate) not_up: u64,
    /// Dropped because they were longer than the card takes.
    pub(crate) too_long: u64,
    /// From the wire, dropped because the host's netdev was down or had no room.
    pub(crate) host_refused: u64,
    /// From the host, dropped because the wire's netdev was down or had no room.
    pub(crate) wire_refused: u64,
}

impl Counts {
    /// Nothing yet, of so many queues.
    pub(crate) fn of(queues: usize) -> Counts {
        Counts { queues: vec![QueueCounts::default(); queues], ..Counts::default() }
    }

    /// The counts for an operator.
    pub(crate) fn as_json(&self) -> Value {
        let queue = |counts: &QueueCounts| json!({"plain": counts.plain, "tagged": counts.tagged});
        json!({
            "emulated": true,
            "queues": self.queues.iter().map(queue).collect::<Vec<_>>(),
            "to_wire": self.to_wire,
            "dropped_by_rule": self.dropped_by_rule,
            "not_up": self.not_up,
            "too_long": self.too_long,
            "host_refused": self.host_refused,
            "wire_refused": self.wire_refused,
        })
    }
}
