//! Several workers: which of them does what.

use ipsec::{SaId, SealingTurn};

use crate::ids::SetIndex;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;

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

/// Returns the sealing SA of a set for a worker, by the rule of the set ([`SealingTurn`]). Without a
/// lasting SA, packets wait where waiting is on; else the last SA drops them and gives the reason.
///
/// # Errors
/// [`DropReason::NoSa`]: the set has no SA, or no lasting one and packets may wait.
#[inline]
pub(crate) fn sealing_sa(
    snapshot: &Snapshot,
    set: SetIndex,
    share: WorkerShare,
) -> Result<SaId, DropReason> {
    let sas = snapshot.set(set);
    let chosen = choose(snapshot, &sas.outbound, share).ok_or(DropReason::NoSa)?;
    // A set of file keys alone: nothing more is read for its packets.
    let lasts = !sas.acquires || snapshot.outbound_sa(chosen).lasts();
    match lasts || !snapshot.awaits_sa(set) {
        true => Ok(chosen),
        false => Err(DropReason::NoSa),
    }
}

/// Returns the sealing SA among some of one set. Lasting SAs come first; without one, the last SA is
/// chosen.
#[inline]
pub(crate) fn choose(snapshot: &Snapshot, set: &[SaId], share: WorkerShare) -> Option<SaId> {
    let last = set.last()?;
    if set.len() == 1 {
        return Some(*last);
    }
    let chosen = match snapshot.outbound_sa(*last).turn {
        SealingTurn::InOrder => in_order(snapshot, set, share),
        SealingTurn::Newest { .. } => newest(snapshot, set, share),
    };
    // Another worker may use one up meanwhile.
    chosen.or(Some(*last))
}

/// An SA in a card comes first, for all workers: the card numbers packets, or takes numbers in any
/// order. Else each worker has its own SA, as far as the lasting SAs go: the numbers of an SA then
/// come from one worker and stay in order (RFC 9611 §3).
#[inline]
fn in_order(snapshot: &Snapshot, set: &[SaId], share: WorkerShare) -> Option<SaId> {
    let lasts = |sa: &&SaId| snapshot.outbound_sa(**sa).lasts();
    let mut in_card = set.iter().filter(|sa| snapshot.outbound_sa(**sa).card.is_some());
    if let Some(in_card) = in_card.find(lasts) {
        return Some(*in_card);
    }
    let lasting = set.iter().filter(lasts).count();
    let place = share.worker as usize % lasting.max(1);
    set.iter().filter(lasts).nth(place).copied()
}

/// Returns the newest lasting SA of the worker's CPU, else of no CPU, else of any.
#[inline]
fn newest(snapshot: &Snapshot, set: &[SaId], share: WorkerShare) -> Option<SaId> {
    let cpu_of = |sa: SaId| match snapshot.outbound_sa(sa).turn {
        SealingTurn::Newest { cpu } => cpu,
        SealingTurn::InOrder => None,
    };
    let lasting = || set.iter().rev().copied().filter(|sa| snapshot.outbound_sa(*sa).lasts());
    lasting()
        .find(|sa| cpu_of(*sa) == Some(share.worker))
        .or_else(|| lasting().find(|sa| cpu_of(*sa).is_none()))
        .or_else(|| lasting().next())
}
