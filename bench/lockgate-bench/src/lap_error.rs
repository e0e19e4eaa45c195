//! Reasons why a lap does not count.

use dataplane::{DropReason, SnapshotError};
use policy::SpdError;
use scene::{Flaw, SceneError};

/// A reason why a lap does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum LapError {
    /// The walk dropped packets: it did less work than the figure says.
    #[error("{packets} packets were dropped, reason {reason}")]
    Dropped { reason: DropReason, packets: u64 },
    /// Packets are missing, or were made.
    #[error("{expected} packets should have left, {left} did")]
    Missing { expected: usize, left: usize },
    /// The ledger does not balance.
    #[error("the ledger is out of balance by {0}")]
    Imbalance(i64),
    /// Frames are neither free nor with the port.
    #[error("{expected} frames should be in use, {held} are")]
    Frames { expected: usize, held: usize },
    /// The policy that is to decide every packet counted others.
    #[error("policy {name} counted {counted} packets, {expected} are right")]
    Decider { name: String, expected: u64, counted: u64 },
    /// Another tier answered than the row is about.
    #[error(
        "the cache answered {hits:.4} of the packets, the classifier {searches:.4}, tags {tags:.4}"
    )]
    Tier { hits: f64, searches: f64, tags: f64 },
    /// The audit judged other than as many packets again as it is to, or found a wrong verdict.
    #[error(
        "{expected} packets should be judged again, {judged} were, and {wrong} verdicts are wrong"
    )]
    Audit { expected: u64, judged: u64, wrong: u64 },
    /// An emulated card has not every rule, or does not tag every packet.
    #[error("{tagged} of {packets} flows have a tag that counts, and {placed} rules do")]
    Tags { tagged: usize, packets: usize, placed: usize },
    /// Not every flow is a connection, or others are.
    #[error("{expected} connections should be live, {found} are")]
    Connections { expected: usize, found: usize },
    /// New connections were refused that are to be accepted, or accepted that are to be refused.
    #[error("{expected} new connections should be refused, {found} were")]
    Refused { expected: usize, found: usize },
    /// The table of connections gave a wrong answer.
    #[error("{found} of {expected} lookups and changes of the table did what they should")]
    Table { expected: usize, found: usize },
    /// An output is wrong.
    #[error("output {packet}: {flaw}")]
    Output { packet: usize, flaw: Flaw },
    /// The cipher alone refused a job.
    #[error("the cipher refused packet {packet}")]
    Cipher { packet: usize },
    /// The yardstick left work out.
    #[error("the yardstick did not do its work on packet {packet}")]
    Yardstick { packet: usize },
    /// A worker cannot be bound to its core.
    #[error("a worker cannot be bound to its core: {0}")]
    Pin(std::io::Error),
    /// The flow cache could not be allocated.
    #[error("no memory for the flow cache: {0}")]
    Memory(std::io::Error),
    /// The gateway could not be built.
    #[error(transparent)]
    Scene(#[from] SceneError),
}

impl From<SpdError> for LapError {
    fn from(error: SpdError) -> LapError {
        SceneError::from(error).into()
    }
}

impl From<SnapshotError> for LapError {
    fn from(error: SnapshotError) -> LapError {
        SceneError::from(error).into()
    }
}
