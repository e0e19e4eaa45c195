//! Several workers: which of them does what.

use ipsec::{OutboundSa, SaId};

use crate::snapshot::Snapshot;

/// A worker's share of the work: which one it is, of how many that walk packets now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerShare {
    /// Number of the worker.
    pub worker: u32,
    /// Workers, at least 1 and more than `worker`.
    pub workers: u32,
}

impl WorkerShare {
    /// The only worker's.
    pub const ALL: WorkerShare = WorkerShare { worker: 0, workers: 1 };
}

/// The SA of a set that a worker seals with. One in a card comes before those of software, for all
/// workers: the card numbers, or takes numbers in any order that workers make of them. Else each
/// worker has another one as far as they last, so that the numbers of each come from one worker and
/// stay in order (RFC 9611 §3). An SA without numbers, or at a hard limit, is passed over; where
/// all are, the last, which says so. `None`: the set has none.
#[inline]
pub(crate) fn sealing_sa(snapshot: &Snapshot, set: &[SaId], share: WorkerShare) -> Option<SaId> {
    if let [only] = set {
        return Some(*only);
    }
    let is_spent =
        |sa: &OutboundSa| sa.allowance.as_ref().is_some_and(|allowance| allowance.is_spent());
    let in_card = |sa: &&SaId| {
        let sa = snapshot.outbound_sa(**sa);
        let has_numbers = sa.packet_card().is_some() || !sa.sequence.is_exhausted();
        sa.card.is_some() && !is_spent(sa) && has_numbers
    };
    if let Some(in_card) = set.iter().find(in_card) {
        return Some(*in_card);
    }
    let lasts = |sa: &&SaId| {
        let sa = snapshot.outbound_sa(**sa);
        !is_spent(sa) && !sa.sequence.is_exhausted()
    };
    let lasting = set.iter().filter(lasts).count();
    let place = share.worker as usize % lasting.max(1);
    // Another worker may use one up meanwhile.
    set.iter().filter(lasts).nth(place).or(set.last()).copied()
}
