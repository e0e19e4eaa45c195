//! Asks the processor for what a batch of many SAs seals with, before any of it is used. Set, SA,
//! counter, account and key lie in memory of their own, and one says where the next is. Used packet
//! by packet, each is waited for; asked for level by level, many come at a time.

use policy::FlowAction;
use wire::BATCH;

use crate::cache::{FlowCache, Value};
use crate::ids::SetIndex;
use crate::snapshot::Snapshot;

/// Slots for sets from which on their memory is more than a core's own caches hold.
const MANY_SETS: usize = 128;
/// Of the values, one in so many is looked at to see whether they are mostly different.
const LOOKED_AT: usize = 8;

/// Asks for the SAs of the sets that these values name, if there are many. Nothing depends on it:
/// what was not asked for is waited for.
#[inline(always)]
pub(super) fn ask(snapshot: &Snapshot, cache: &FlowCache, values: &[Value]) {
    if snapshot.set_slots() < MANY_SETS {
        return;
    }
    let mut few = values.iter().step_by(LOOKED_AT);
    let first = few.next();
    if few.len() > 2 && few.all(|value| Some(value) != first) {
        ask_for(snapshot, cache, values);
    }
}

#[cold]
#[inline(never)]
fn ask_for(snapshot: &Snapshot, cache: &FlowCache, values: &[Value]) {
    let (mut sets, mut count, mut last) = ([SetIndex(0); BATCH], 0, None);
    for value in values.iter().take(BATCH).filter(|value| !value.is_nothing()) {
        if last != Some(value)
            && let FlowAction::Protect(set) = cache.said_steady(*value).0.action
        {
            (sets[count], count) = (set, count + 1);
        }
        last = Some(value);
    }
    let sets = &sets[..count];
    let first_sa = |set: &SetIndex| snapshot.find_set(*set)?.outbound.first();
    let sas = || {
        let ids = sets.iter().filter_map(first_sa);
        ids.filter_map(|id| snapshot.sad().find_outbound(*id))
    };
    sets.iter().for_each(|set| snapshot.ask_for_link(*set));
    sets.iter().filter_map(|set| snapshot.find_set(*set)).for_each(cpu::prefetch_all);
    sets.iter().filter_map(first_sa).for_each(cpu::prefetch_all);
    sas().for_each(|sa| cpu::prefetch_all(&**sa));
    for sa in sas() {
        cpu::prefetch_all(&*sa.sequence);
        if let Some(allowance) = &sa.allowance {
            cpu::prefetch_all(&*allowance.account);
        }
        sa.cipher.ask(0);
    }
    sas().for_each(|sa| sa.cipher.ask(1));
}
