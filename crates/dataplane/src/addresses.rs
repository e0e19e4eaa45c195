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

/// Returns whether a packet from outside may have this source: no address of the gateway, and none
/// behind a protected port. The unspecified address passes: it asks whether an address is free.
pub(crate) fn may_speak(snapshot: &Snapshot, flow: &wire::Flow) -> bool {
    let source = flow.source_address();
    source.value == 0 || !is_inside(snapshot, source)
}

/// Returns whether a packet comes from outside to one of our addresses: only then is ESP opened.
pub(crate) fn is_to_us(snapshot: &Snapshot, ingress: PortId, packet: &Packet) -> bool {
    let is_outside = snapshot.path_port(ingress).side == Side::Unprotected;
    let destination = packet.flow.destination_address();
    is_outside && snapshot.routes().lookup(destination) == Some(RouteTarget::Local)
}
