//! Several workers: which of them opens and seals with an SA, and the rings by which packets that
//! arrived at another reach it.

use ipsec::SaId;
use wire::Frames;

use crate::Snapshot;
use crate::walk::{Handover, Row, State, Turn};

/// The SA of a set that a worker seals with: each worker another one as far as they last, so that
/// the numbers of each come from one worker and stay in order (RFC 9611 §3). Where all are
/// exhausted the last, which says so. `None`: the set has none.
#[inline]
pub(crate) fn sealing_sa(snapshot: &Snapshot, set: &[SaId], worker: u32) -> Option<SaId> {
    if let [only] = set {
        return Some(*only);
    }
    let lasts = |sa: &&SaId| !snapshot.outbound()[sa.0 as usize].sequence.is_exhausted();
    let lasting = set.iter().filter(lasts).count();
    let place = worker as usize % lasting.max(1);
    set.iter().filter(lasts).nth(place).or(set.last()).copied()
}

impl<F: Frames> Turn<'_, F> {
    /// The worker that opens with an SA, if it is another one and packets go over to it. Two SAs
    /// of one pair are neighbours in the snapshot, so they are two workers', whatever their SPIs.
    #[inline]
    pub(crate) fn other_worker(&self, sa: SaId) -> Option<u32> {
        self.handing?;
        let owner = sa.0 % self.snapshot.workers();
        (owner != self.worker).then_some(owner)
    }

    /// Ends a row whose packet is another worker's, before anything of it has been changed. It
    /// will be on that worker's ledger and so leaves this one's.
    pub(crate) fn hand_over(&mut self, row: &mut Row, worker: u32) {
        let Some((device, packets)) = self.handing else { return };
        row.state = State::Ended;
        self.counters.ledger(Some(row.ingress)).received -= 1;
        let (ingress, packet) = (row.ingress, packets[row.place as usize]);
        self.out.handovers.push(Handover { worker, device, ingress, packet });
    }
}
