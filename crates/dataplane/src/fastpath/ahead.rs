//! Asks the processor for what a batch of many SAs is sealed or opened with, before any of it is
//! used. Set, SA, counter or window, account and key lie in memory of their own, and one says where
//! the next is. Used packet by packet, each is waited for; asked for level by level, many come at a
//! time.

use std::sync::Arc;

use ipsec::{InboundSa, Spi};
use policy::FlowAction;
use wire::flow::protocol;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{BATCH, Frames, Received};

use crate::batch_context::BatchContext;
use crate::cache::{FlowCache, Value};
use crate::ids::SetIndex;
use crate::snapshot::Snapshot;

/// Slots for sets (they come by 64, so 65 sets have 128) from which on what they use is more than
/// the fastest caches hold.
const MANY_SETS: usize = 128;
/// Of the values, one in so many is compared with the first; if none is equal, the batch counts as
/// mixed.
const LOOKED_AT: usize = 8;
/// Changes of the SPI from packet to packet in a batch from which on it pays to ask.
const MANY_CHANGES: usize = 8;
const UDP_BYTES: usize = 8;

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
    // Of SAs by key files the first one seals, of the others the newest.
    let likely_sa = |set: &SetIndex| {
        let set = snapshot.find_set(*set)?;
        if set.acquires { set.outbound.last() } else { set.outbound.first() }
    };
    let sas = || {
        let ids = sets.iter().filter_map(likely_sa);
        ids.filter_map(|id| snapshot.sad().find_outbound(*id))
    };
    sets.iter().for_each(|set| snapshot.ask_for_link(*set));
    sets.iter().filter_map(|set| snapshot.find_set(*set)).for_each(cpu::prefetch_all);
    sets.iter().filter_map(likely_sa).for_each(cpu::prefetch_all);
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

/// Asks for the SAs that open these packets, which begin with link headers of `link` bytes, if
/// there are many.
#[inline(always)]
pub(super) fn ask_openers<F: Frames>(
    context: &BatchContext<'_, F>,
    packets: &[Received],
    link: usize,
) {
    // Fewer packets have fewer changes: reading the SPIs would not pay.
    if packets.len() >= MANY_CHANGES && context.snapshot.set_slots() >= MANY_SETS {
        ask_for_openers(context, packets, link);
    }
}

#[cold]
#[inline(never)]
fn ask_for_openers<F: Frames>(context: &BatchContext<'_, F>, packets: &[Received], link: usize) {
    let snapshot = context.snapshot;
    let (mut spis, mut count, mut last) = ([0; BATCH], 0, None);
    for Received { packet, .. } in packets.iter().take(BATCH) {
        let from = packet.offset as usize + link;
        let ip = context.frames.bytes(packet.frame).get(from..).unwrap_or_default();
        let spi = probable_spi(ip);
        if let Some(spi) = spi
            && last != Some(spi)
        {
            (spis[count], count) = (spi, count + 1);
        }
        last = spi;
    }
    if count < MANY_CHANGES {
        return;
    }
    let mut sas = [None; BATCH];
    for (place, spi) in sas.iter_mut().zip(&spis[..count]) {
        let sa = Spi::new(*spi).and_then(|spi| snapshot.inbound_by_spi(spi));
        if let Some(sa) = sa {
            cpu::prefetch_all(&**sa);
        }
        *place = sa;
    }
    let sas = || sas.iter().flatten().map(|sa: &&Arc<InboundSa>| &***sa);
    for sa in sas() {
        snapshot.ask_for_link(snapshot.set_of(sa.id));
        cpu::prefetch_all(&*sa.window);
        if let Some(allowance) = &sa.allowance {
            cpu::prefetch_all(&*allowance.account);
        }
        sa.cipher.ask(0);
    }
    for sa in sas() {
        snapshot.find_set(snapshot.set_of(sa.id)).into_iter().for_each(cpu::prefetch_all);
        sa.window.ask();
        sa.cipher.ask(1);
    }
}

/// The SPI of a packet, if it is ESP behind a header of the usual length.
fn probable_spi(ip: &[u8]) -> Option<u32> {
    let (header, next) = match ip.first()? >> 4 {
        4 => (IPV4_BYTES, *ip.get(9)?),
        _ => (IPV6_BYTES, *ip.get(6)?),
    };
    let esp = match next {
        protocol::ESP => header,
        protocol::UDP => header + UDP_BYTES,
        _ => return None,
    };
    Some(u32::from_be_bytes(*ip.get(esp..)?.first_chunk()?))
}
