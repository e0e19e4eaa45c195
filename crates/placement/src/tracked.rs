//! Connections whose packets the tier passes. Workers do not see these packets: what the tier
//! counted of them keeps a connection alive, and a connection that changes takes its verdicts out.

use bpf::tier::FlowKey;
use dataplane::Snapshot;
use dataplane::counters::Volume;

use crate::moment::Moment;
use crate::residents::Residents;
use crate::rule_use::CountedRule;
use crate::tables::Tables;

impl<T: Tables> Residents<T> {
    /// Looks at all connections whose packets the tier passes, and takes out the verdicts on flows
    /// of those that are gone, begin to close or are about to end: before the lease is renewed, and
    /// before the removal of connections is answered. Returns these flows.
    ///
    /// # Errors
    /// A table refuses it, or numbers cannot be read: the caller ends the lease.
    pub fn look_at_connections(
        &mut self,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Result<Vec<FlowKey>, T::Error> {
        let doubtful = self.flows.of_connections();
        let doubtful = doubtful.filter(|key| !self.lasts(*key, snapshot, now)).collect::<Vec<_>>();
        // Either direction may keep a connection alive.
        for key in &doubtful {
            self.look_at_flow(*key, snapshot, now)?;
        }
        let ended = doubtful.into_iter().filter(|key| !self.lasts(*key, snapshot, now));
        let ended = ended.collect::<Vec<_>>();
        ended.iter().try_for_each(|key| self.withdraw_flow(*key, now.kernel_ns))?;
        Ok(ended)
    }

    /// Returns whether the connection of a flow lasts, or no packet passes by its verdict any more:
    /// one of earlier rules leaves with the others that are void.
    fn lasts(&self, key: FlowKey, snapshot: &Snapshot, now: Moment) -> bool {
        let Some((open, network)) = self.network_in(key, snapshot) else { return false };
        let is_void = self.flows.given(key) != open.generation().map(|of| (open.number, of));
        is_void || snapshot.connection_lasts_below(network, &key.flow(), now.walk_s())
    }

    /// Looks at the use of flows of a list; returns the packets of each since it was last looked
    /// at. Their connections were last seen when the last packet was.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub fn look_at_flows(
        &mut self,
        keys: &[FlowKey],
        snapshot: &Snapshot,
        now: Moment,
    ) -> Result<Vec<(FlowKey, u64)>, T::Error> {
        let mut used = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(packets) = self.look_at_flow(*key, snapshot, now)? {
                used.push((*key, packets));
            }
        }
        Ok(used)
    }

    fn look_at_flow(
        &mut self,
        key: FlowKey,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Result<Option<u64>, T::Error> {
        let is_of_connection = self.flows.is_of_connection(key);
        let Some((packets, last_ns)) = self.flows.look_at(&self.tables, key)? else {
            return Ok(None);
        };
        if packets > 0
            && is_of_connection
            && let Some((_, network)) = self.network_in(key, snapshot)
        {
            snapshot.connection_seen_below(network, &key.flow(), now.walk_s_of(last_ns));
        }
        Ok(Some(packets))
    }

    /// Takes the packets that the tier judged, as far as they were looked at, by the rules that the
    /// walk would have counted them for.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub fn take_rule_use(
        &mut self,
    ) -> Result<impl Iterator<Item = (CountedRule, Volume)>, T::Error> {
        self.flows.count_left(&self.tables)?;
        Ok(self.flows.rule_use.take())
    }
}
