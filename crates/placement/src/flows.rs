//! The verdicts on flows in the tier.

use std::collections::HashMap;

use bpf::tier::{FlowKey, FlowRecord};

use crate::admission::{Admission, AdmitError};
use crate::slots::Slots;
use crate::tables::Tables;

/// A flow whose verdict is in the tier.
struct KnownFlow {
    slot: u32,
    /// Number of its network, and the generation that the verdict was given under.
    given: (u32, u32),
    /// Hits of the slot when it was last looked at.
    seen: u64,
}

/// The flows in the tables, each with its verdict.
pub(crate) struct Flows {
    known: HashMap<FlowKey, KnownFlow>,
    slots: Slots,
}

impl Flows {
    /// For tables with room for so many.
    pub(crate) fn new(flows: u32) -> Flows {
        Flows { known: HashMap::new(), slots: Slots::new(0, flows) }
    }

    /// Flows in the tier.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns whether a verdict on a flow is in the tier.
    pub(crate) fn has(&self, key: FlowKey) -> bool {
        self.known.contains_key(&key)
    }

    /// The flows in the tier, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = FlowKey> {
        self.known.keys().copied()
    }

    /// The flows whose number of the network and generation are others by now.
    pub(crate) fn void(&self, now: impl Fn(&FlowKey) -> Option<(u32, u32)>) -> Vec<FlowKey> {
        let void = self.known.iter().filter(|(key, flow)| now(key) != Some(flow.given));
        void.map(|(key, _)| *key).collect()
    }

    /// Takes a verdict in.
    ///
    /// # Errors
    /// [`AdmitError`]: a table refuses it. The flow is not in the tier.
    pub(crate) fn admit<T: Tables>(
        &mut self,
        tables: &T,
        record: &FlowRecord,
        now_ns: u64,
    ) -> Result<Admission, AdmitError<T::Error>> {
        let FlowRecord { key, generation, network, .. } = *record;
        let given = (network, generation);
        match self.known.get(&key) {
            Some(flow) if flow.given == given => return Ok(Admission::Resident),
            Some(_) => self.withdraw(tables, key, now_ns).map_err(AdmitError::Left)?,
            None => {}
        }
        let Some(slot) = self.slots.take(now_ns) else { return Ok(Admission::Full) };
        let written = tables.write_flow(slot, record).and_then(|()| tables.publish_flow(key, slot));
        if let Err(error) = written {
            // Whatever was written of it leads nowhere.
            tables.withdraw_flow(key).map_err(AdmitError::Left)?;
            self.slots.give(slot, now_ns);
            return Err(AdmitError::RolledBack(error));
        }
        let seen = tables.flow_hits(slot).unwrap_or(0);
        self.known.insert(key, KnownFlow { slot, given, seen });
        Ok(Admission::Admitted)
    }

    /// Takes a verdict out.
    ///
    /// # Errors
    /// The table refuses it: the verdict is there still.
    pub(crate) fn withdraw<T: Tables>(
        &mut self,
        tables: &T,
        key: FlowKey,
        now_ns: u64,
    ) -> Result<(), T::Error> {
        let Some(KnownFlow { slot, .. }) = self.known.get(&key) else { return Ok(()) };
        let slot = *slot;
        tables.withdraw_flow(key)?;
        self.known.remove(&key);
        self.slots.give(slot, now_ns);
        Ok(())
    }

    /// Returns the packets of each flow of a list since it was last looked at.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub(crate) fn look_at<T: Tables>(
        &mut self,
        tables: &T,
        keys: &[FlowKey],
    ) -> Result<Vec<(FlowKey, u64)>, T::Error> {
        let mut used = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(flow) = self.known.get_mut(key) else { continue };
            let now = tables.flow_hits(flow.slot)?;
            used.push((*key, now.saturating_sub(flow.seen)));
            flow.seen = now;
        }
        Ok(used)
    }
}
