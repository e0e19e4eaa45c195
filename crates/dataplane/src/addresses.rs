//! Tells whose an address is, and on which side of the gateway it lives.

use wire::{Address, Packet};

use crate::ids::PortId;
use crate::port::Side;
use crate::routes::RouteTarget;
use crate::snapshot::Snapshot;

/// Returns whether an address is our own, a broadcast address, or behind a protected port.
pub(crate) fn is_inside(snapshot: &Snapshot, address: Address) -> bool {
    match snapshot.routes().lookup(address) {
        Some(RouteTarget::Local | RouteTarget::Broadcast) => true,
        Some(RouteTarget::Via(hop)) => {
            snapshot.path_port(snapshot.next_hop(hop).port).side == Side::Protected
        }
        Some(RouteTarget::Blackhole | RouteTarget::Elsewhere) | None => false,
    }
}

/// Returns whether a packet from outside may have this source: neither ours nor behind a protected
/// port. The unspecified address passes: it asks whether an address is free.
pub(crate) fn may_speak(snapshot: &Snapshot, flow: &wire::Flow) -> bool {
    let source = flow.source_address();
    source.value == 0 || !is_inside(snapshot, source)
}

/// [`is_to_us`] of a packet by the same port as the packets before it; `last` is what was asked
/// last, and the answer.
#[inline]
pub(crate) fn is_to_us_as_before(
    snapshot: &Snapshot,
    ingress: PortId,
    packet: &Packet,
    last: &mut Option<(Address, bool)>,
) -> bool {
    let destination = packet.flow.destination_address();
    match *last {
        Some((known, answer)) if known == destination => answer,
        _ => last.insert((destination, is_to_us(snapshot, ingress, packet))).1,
    }
}

/// Returns whether a packet comes from outside to one of our addresses: only then is ESP opened.
#[inline]
pub(crate) fn is_to_us(snapshot: &Snapshot, ingress: PortId, packet: &Packet) -> bool {
    let is_outside = snapshot.path_port(ingress).side == Side::Unprotected;
    let destination = packet.flow.destination_address();
    is_outside && snapshot.routes().lookup(destination) == Some(RouteTarget::Local)
}
