//! The verdicts on flows in the kernel tier: of networks whose groups judge packets by their flow,
//! or by its connection.

use bpf::BpfError;
use bpf::tier::FlowKey;
use dataplane::TenantSample;
use placement::{Admission, Counts, Heat, Moment, Moves, Tried, Tries};

use super::{Inner, LOOKED_AT};

/// Counts of verdicts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FlowTally {
    /// Verdicts that were placed.
    pub(crate) placed: u64,
    /// Verdicts that gave their place up.
    pub(crate) evicted: u64,
    /// Verdicts that were taken out because they held no longer, by other rules.
    pub(crate) void: u64,
    /// Verdicts that were taken out because their connections ended or began to close.
    pub(crate) ended: u64,
    /// Verdicts for which there was no room.
    pub(crate) full: u64,
}

/// The flows that are worth a verdict in the kernel.
#[derive(Default)]
pub(super) struct FlowUse {
    heat: Heat<FlowKey>,
    tries: Tries<FlowKey>,
    /// Flows whose use is looked at next.
    to_look_at: Vec<FlowKey>,
}

impl Inner {
    /// Counts the flows of packets that workers saw: each sample stands for `times` of them.
    pub(super) fn count_flows(&mut self, samples: &[TenantSample], times: u64) {
        let Inner { residents, flows, .. } = self;
        let seen = samples.iter().filter_map(|sample| residents.flow_of(sample));
        let FlowUse { heat, tries, .. } = flows;
        heat.count(seen, times, |key| residents.has_flow(key) || tries.rests(key));
    }

    /// Ends a second: takes out what holds no longer, or is used little, and returns the flows on
    /// which verdicts are to be placed.
    pub(super) fn end_period_of_flows(&mut self, now: Moment) -> Result<Vec<FlowKey>, BpfError> {
        for key in self.residents.void_flows() {
            self.residents.withdraw_flow(key, now.kernel_ns)?;
            self.flows.heat.forget(key);
            self.tally.flows.void += 1;
        }
        self.look_at_flows(now)?;
        let Counts { flows, max_flows, .. } = self.residents.counts();
        let room = max_flows.saturating_sub(flows);
        let Moves { enter, leave } = self.flows.heat.end_period(room);
        for key in leave {
            self.residents.withdraw_flow(key, now.kernel_ns)?;
            self.flows.heat.forget(key);
            self.tally.flows.evicted += 1;
        }
        self.flows.tries.end_period();
        Ok(enter)
    }

    /// Looks at the use of some flows: at all of them in turn.
    fn look_at_flows(&mut self, now: Moment) -> Result<(), BpfError> {
        let FlowUse { heat, to_look_at, .. } = &mut self.flows;
        if to_look_at.is_empty() {
            *to_look_at = self.residents.flows().collect();
        }
        let rest = to_look_at.len().saturating_sub(LOOKED_AT);
        let keys = to_look_at.split_off(rest);
        let used = self.residents.look_at_flows(&keys, &self.snapshot, now)?;
        heat.used(&used);
        Ok(())
    }

    /// Takes out the verdicts of connections that end.
    pub(super) fn look_at_connections(&mut self, now: Moment) -> Result<(), BpfError> {
        let ended = self.residents.look_at_connections(&self.snapshot, now)?;
        self.tally.flows.ended += ended.len() as u64;
        ended.into_iter().for_each(|key| self.flows.heat.forget(key));
        Ok(())
    }

    /// Places the verdict on a flow, as the workers' snapshot has it now. Returns the reason why it
    /// is skipped from now on, if it is.
    pub(super) fn promote_flow(
        &mut self,
        key: FlowKey,
        now: Moment,
    ) -> Result<Option<BpfError>, BpfError> {
        let Inner { residents, snapshot, tally, flows, .. } = self;
        match flows.tries.count(key, residents.admit_flow(key, snapshot, now))? {
            Tried::Done(Admission::Admitted) => {
                flows.heat.forget(key);
                tally.flows.placed += 1;
            }
            Tried::Done(Admission::Full) => tally.flows.full += 1,
            Tried::Done(Admission::Resident | Admission::Ineligible) => {}
            Tried::Refused(_) => tally.refused += 1,
            Tried::Skipped(error) => {
                flows.heat.forget(key);
                tally.refused += 1;
                tally.skipped += 1;
                return Ok(Some(error));
            }
        }
        Ok(None)
    }
}
