//! Packets that the tier judged, by the rules that the walk would have counted them for.

use std::collections::HashMap;
use std::sync::Arc;

use bpf::tier::FlowUse;
use dataplane::Snapshot;
use dataplane::counters::Volume;
use policy::Deciders;

/// A rule that packets count for. It is known by its name: slots are others' in time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CountedRule {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of its action: see `policy::Action::kind`.
    pub kind: usize,
}

/// The rules that a flow's packets count for, as often as they are named.
pub(crate) type Rules = Arc<[CountedRule]>;

/// Counts that nobody has taken yet.
#[derive(Default)]
pub(crate) struct RuleUse {
    counts: HashMap<CountedRule, Volume>,
    /// Lists of rules that flows share, of one snapshot.
    known: HashMap<Deciders, Rules>,
}

impl RuleUse {
    /// The rules that decide under a snapshot.
    pub(crate) fn rules(&mut self, snapshot: &Snapshot, deciders: Deciders) -> Rules {
        let rules = self.known.entry(deciders).or_insert_with(|| {
            let named = |slot| {
                let rule = snapshot.spd().policy(slot);
                CountedRule { name: rule.name.as_str().into(), kind: rule.action.kind() }
            };
            deciders.slots().map(named).collect()
        });
        rules.clone()
    }

    /// Forgets what rules are in which slots: the next verdicts are of another snapshot.
    pub(crate) fn forget_slots(&mut self) {
        self.known.clear();
    }

    /// Counts the use of a slot since it was last looked at.
    pub(crate) fn count(&mut self, rules: &Rules, seen: FlowUse, now: FlowUse) {
        let packets = now.packets.saturating_sub(seen.packets);
        if packets == 0 {
            return;
        }
        for rule in rules.iter() {
            let volume = self.counts.entry(rule.clone()).or_default();
            volume.packets += packets;
            volume.bytes += now.bytes.saturating_sub(seen.bytes);
        }
    }

    /// Takes what was counted since the last call.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (CountedRule, Volume)> {
        std::mem::take(&mut self.counts).into_iter()
    }
}
