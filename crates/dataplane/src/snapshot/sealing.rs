//! The sealing SA of a set.

use ipsec::{SaId, SealingTurn};

use super::Snapshot;
use crate::ids::SetIndex;
use crate::sa_set::SaSet;
use crate::verdict::DropReason;
use crate::worker_share::WorkerShare;

impl Snapshot {
    /// True if packets of a set wait for an SA: no SA of the set lasts.
    #[inline]
    pub(crate) fn awaits_sa(&self, set: SetIndex) -> bool {
        let set = self.set(set);
        set.acquires && self.sources.acquires.is_on() && !self.seals(set)
    }

    /// True if a set has a lasting SA.
    ///
    /// # Panics
    /// If the set is from another snapshot.
    #[inline]
    pub fn seals(&self, set: &SaSet) -> bool {
        set.outbound.iter().any(|sa| self.outbound_sa(*sa).lasts())
    }

    /// Returns the sealing SA of a set for a worker, by the rule of the set ([`SealingTurn`]).
    /// Without a lasting SA, packets wait where waiting is on; else the last SA gives the reason
    /// for the drop.
    ///
    /// # Errors
    /// [`DropReason::NoSa`]: the set has no SA, or no lasting one and packets may wait.
    #[inline]
    pub(crate) fn ready_sa(&self, set: SetIndex, share: WorkerShare) -> Result<SaId, DropReason> {
        let sas = self.set(set);
        let chosen = self.sealing_sa(sas, share).ok_or(DropReason::NoSa)?;
        // Packets of a set of file keys never wait, so its SA's state is not read.
        let lasts = !sas.acquires || self.outbound_sa(chosen).lasts();
        match lasts || !self.awaits_sa(set) {
            true => Ok(chosen),
            false => Err(DropReason::NoSa),
        }
    }

    /// Returns the sealing SA of a set for a worker. Lasting SAs come first; without one, the last
    /// SA is chosen.
    ///
    /// # Panics
    /// If the set is from another snapshot.
    #[inline]
    pub fn sealing_sa(&self, set: &SaSet, share: WorkerShare) -> Option<SaId> {
        let sas = &set.outbound;
        let last = sas.last()?;
        if sas.len() == 1 {
            return Some(*last);
        }
        let chosen = match self.outbound_sa(*last).turn {
            SealingTurn::InOrder => self.first_in_order(sas, share),
            SealingTurn::Newest { .. } => self.newest(sas, share),
        };
        // Another worker may use an SA up meanwhile.
        chosen.or(Some(*last))
    }

    /// An SA in a card comes first, for all workers: the card numbers packets, or takes numbers in
    /// any order. Else each worker has its own SA, as far as the lasting SAs go: the numbers of an
    /// SA then come from one worker and stay in order (RFC 9611 §3).
    #[inline]
    fn first_in_order(&self, sas: &[SaId], share: WorkerShare) -> Option<SaId> {
        let lasts = |sa: &&SaId| self.outbound_sa(**sa).lasts();
        let mut in_card = sas.iter().filter(|sa| self.outbound_sa(**sa).card.is_some());
        if let Some(in_card) = in_card.find(lasts) {
            return Some(*in_card);
        }
        let lasting = sas.iter().filter(lasts).count();
        let place = share.worker as usize % lasting.max(1);
        sas.iter().filter(lasts).nth(place).copied()
    }

    /// Returns the newest lasting SA of the worker's CPU, else of no CPU, else of any. The state of
    /// an SA without a chance is not read.
    #[inline]
    fn newest(&self, sas: &[SaId], share: WorkerShare) -> Option<SaId> {
        let [mut without_cpu, mut of_other_cpu] = [None; 2];
        for id in sas.iter().rev() {
            let sa = self.outbound_sa(*id);
            let place = match sa.turn {
                SealingTurn::Newest { cpu: Some(cpu) } if cpu == share.worker => {
                    if sa.lasts() {
                        return Some(*id);
                    }
                    continue;
                }
                SealingTurn::Newest { cpu: Some(_) } => &mut of_other_cpu,
                SealingTurn::Newest { cpu: None } | SealingTurn::InOrder => &mut without_cpu,
            };
            if place.is_none() && sa.lasts() {
                *place = Some(*id);
            }
        }
        without_cpu.or(of_other_cpu)
    }
}
