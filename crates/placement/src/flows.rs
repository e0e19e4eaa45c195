//! The verdicts on flows in the tier.

use std::collections::{HashMap, HashSet};

use bpf::tier::{FlowKey, FlowRecord, FlowUse, Verdict};
use dataplane::Grounds;

use crate::admission::{Admission, AdmitError};
use crate::rule_use::{RuleUse, Rules};
use crate::slots::Slots;
use crate::tables::Tables;

/// Verdicts at most that have connections for grounds: all of them are looked at several times a
/// second.
pub(crate) const MOST_OF_CONNECTIONS: usize = 1 << 16;

/// A verdict that the tier may have.
pub(crate) struct Judged {
    pub(crate) record: FlowRecord,
    pub(crate) grounds: Grounds,
    pub(crate) rules: Rules,
}

/// A flow whose verdict is in the tier.
struct KnownFlow {
    slot: u32,
    /// Number of its network, and the generation that the verdict was given under.
    given: (u32, u32),
    verdict: Verdict,
    counted: Counted,
}

/// The use of a slot that was counted so far, and the rules that it counts for.
struct Counted {
    seen: FlowUse,
    rules: Rules,
}

/// The flows in the tables, each with its verdict.
pub(crate) struct Flows {
    known: HashMap<FlowKey, KnownFlow>,
    /// Those whose verdicts have connections for grounds.
    of_connections: HashSet<FlowKey>,
    slots: Slots,
    /// Slots whose flows left, and which a program may have counted in a moment longer.
    left: HashMap<u32, Counted>,
    pub(crate) rule_use: RuleUse,
}

impl Flows {
    /// For tables with room for so many.
    pub(crate) fn new(flows: u32) -> Flows {
        Flows {
            known: HashMap::new(),
            of_connections: HashSet::new(),
            slots: Slots::new(0, flows),
            left: HashMap::new(),
            rule_use: RuleUse::default(),
        }
    }

    /// Flows in the tier.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// Flows in the tier whose verdicts have connections for grounds.
    pub(crate) fn count_of_connections(&self) -> usize {
        self.of_connections.len()
    }

    /// Returns whether a verdict on a flow is in the tier.
    pub(crate) fn has(&self, key: FlowKey) -> bool {
        self.known.contains_key(&key)
    }

    /// Returns whether the verdict on a flow has a connection for grounds.
    pub(crate) fn is_of_connection(&self, key: FlowKey) -> bool {
        self.of_connections.contains(&key)
    }

    /// The flows in the tier, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = FlowKey> {
        self.known.keys().copied()
    }

    /// Those whose verdicts have connections for grounds, in no order.
    pub(crate) fn of_connections(&self) -> impl Iterator<Item = FlowKey> {
        self.of_connections.iter().copied()
    }

    /// The verdict on a flow, with its grounds; it may be void.
    pub(crate) fn verdict(&self, key: FlowKey) -> Option<(Verdict, Grounds)> {
        let grounds = match self.is_of_connection(key) {
            true => Grounds::Connection,
            false => Grounds::Rules,
        };
        self.known.get(&key).map(|flow| (flow.verdict, grounds))
    }

    /// Number of a flow's network, and the generation that its verdict was given under.
    pub(crate) fn given(&self, key: FlowKey) -> Option<(u32, u32)> {
        self.known.get(&key).map(|flow| flow.given)
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
        Judged { record, grounds, rules }: Judged,
        now_ns: u64,
    ) -> Result<Admission, AdmitError<T::Error>> {
        let FlowRecord { key, generation, network, verdict, .. } = record;
        let given = (network, generation);
        match self.known.get(&key) {
            Some(flow) if flow.given == given => return Ok(Admission::Resident),
            Some(_) => self.withdraw(tables, key, now_ns).map_err(AdmitError::Left)?,
            None => {}
        }
        let is_of_connection = grounds == Grounds::Connection;
        if is_of_connection && self.of_connections.len() >= MOST_OF_CONNECTIONS {
            return Ok(Admission::Full);
        }
        let Some(slot) = self.slots.take(now_ns) else { return Ok(Admission::Full) };
        let seen = self.last_use(tables, slot).map_err(AdmitError::Left)?;
        let written =
            tables.write_flow(slot, &record).and_then(|()| tables.publish_flow(key, slot));
        if let Err(error) = written {
            // Whatever was written of it leads nowhere.
            tables.withdraw_flow(key, slot).map_err(AdmitError::Left)?;
            self.slots.give(slot, now_ns);
            return Err(AdmitError::RolledBack(error));
        }
        let counted = Counted { seen, rules };
        self.known.insert(key, KnownFlow { slot, given, verdict, counted });
        if is_of_connection {
            self.of_connections.insert(key);
        }
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
        let Some(flow) = self.known.get(&key) else { return Ok(()) };
        tables.withdraw_flow(key, flow.slot)?;
        if let Some(KnownFlow { slot, counted, .. }) = self.known.remove(&key) {
            self.of_connections.remove(&key);
            self.slots.give(slot, now_ns);
            self.left.insert(slot, counted);
        }
        Ok(())
    }

    /// The use of a slot that another flow is to get: the last of the flow that left it is counted.
    fn last_use<T: Tables>(&mut self, tables: &T, slot: u32) -> Result<FlowUse, T::Error> {
        let now = tables.flow_use(slot)?;
        if let Some(Counted { seen, rules }) = self.left.remove(&slot) {
            self.rule_use.count(&rules, seen, now);
        }
        Ok(now)
    }

    /// Counts the use of slots whose flows left.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub(crate) fn count_left<T: Tables>(&mut self, tables: &T) -> Result<(), T::Error> {
        let slots: Vec<u32> = self.left.keys().copied().collect();
        slots.into_iter().try_for_each(|slot| self.last_use(tables, slot).map(drop))
    }

    /// Counts the packets of a flow since it was last looked at; returns how many there were, and
    /// the moment of the last. `None`: it is not in the tier.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub(crate) fn look_at<T: Tables>(
        &mut self,
        tables: &T,
        key: FlowKey,
    ) -> Result<Option<(u64, u64)>, T::Error> {
        let Some(KnownFlow { slot, counted, .. }) = self.known.get_mut(&key) else {
            return Ok(None);
        };
        let now = tables.flow_use(*slot)?;
        let Counted { seen, rules } = counted;
        self.rule_use.count(rules, *seen, now);
        let packets = now.packets.saturating_sub(seen.packets);
        *seen = now;
        Ok(Some((packets, now.last_ns)))
    }
}
