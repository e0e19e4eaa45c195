//! Everything that a stage may touch besides its rows.

use wire::{Frames, Mark, Received};

use crate::audit::Auditor;
use crate::counters::Counters;
use crate::direct_flows::DirectFlows;
use crate::esp_fragments::DroppedDatagrams;
use crate::ids::{NetdevId, PortId};
use crate::outputs::Outputs;
use crate::reassembly::Reassembly;
use crate::row::{Row, State};
use crate::sa_queues::SaQueues;
use crate::snapshot::Snapshot;
use crate::tenant_samples::TenantSampler;
use crate::verdict::{DropReason, Verdict};
use crate::worker_share::WorkerShare;

/// The context of a batch: everything a stage may touch besides its rows.
pub(crate) struct BatchContext<'a, F> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) now_ns: u64,
    /// Share of the worker that runs the batch.
    pub(crate) share: WorkerShare,
    /// Netdev and packets of the batch, if packets of other workers' SAs are handed over.
    pub(crate) handing: Option<(NetdevId, &'a [Received])>,
    /// Marks with lower tiers' claims about packets of the batch: [`Row::hint`] counts into them.
    pub(crate) marks: &'a [Mark],
    /// The place in the batch of the first packet that the general walk receives.
    pub(crate) first: u32,
    /// The place in the batch from where on a packet's checksum is checked; `None`: no packet's.
    pub(crate) sample: Option<u32>,
    /// Fragmented ESP in UDP that was dropped lately.
    pub(crate) dropped: &'a mut DroppedDatagrams,
    /// The datagrams whose fragments come.
    pub(crate) reassembly: &'a mut Reassembly,
    /// Packets that wait for an SA.
    pub(crate) sa_queues: &'a mut SaQueues,
    /// Samples of the packets that cross inside virtual networks.
    pub(crate) tenants: &'a mut TenantSampler,
    /// Flows of virtual networks that their hosts are told direct paths of.
    pub(crate) direct: &'a mut DirectFlows,
    /// Judges packets again that a fast tier decided.
    pub(crate) auditor: &'a mut Auditor,
    pub(crate) frames: &'a mut F,
    pub(crate) counters: &'a mut Counters,
    pub(crate) out: &'a mut Outputs,
}

impl<F: Frames> BatchContext<'_, F> {
    /// Ends a row with its verdict; who gets the frame is the caller's affair.
    pub(crate) fn end(&mut self, row: &mut Row, verdict: Verdict) {
        row.state = State::Ended;
        self.out.verdicts[row.place as usize] = Some(verdict);
    }

    /// Ends a row by dropping its packet.
    pub(crate) fn drop(&mut self, row: &mut Row, reason: DropReason) {
        self.end(row, Verdict::Drop(reason));
        self.counters.drop(Some(row.ingress), reason);
        self.frames.give(row.frame);
    }

    /// A place for the verdict of a packet that we make, on the ledger of the port that caused it.
    pub(crate) fn make(&mut self, ingress: PortId) -> u32 {
        self.counters.ledger(Some(ingress)).made += 1;
        self.out.verdicts.push(None);
        self.out.verdicts.len() as u32 - 1
    }
}
