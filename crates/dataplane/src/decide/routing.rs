//! The routes of packets, as far as they may go: to the protected side, to the unprotected one, or
//! to Linux.

use wire::packet::is_link_local;
use wire::{Address, Flow};

use crate::ids::NextHopId;
use crate::port::Side;
use crate::routes::{LastRoute, RouteTable, RouteTarget};
use crate::row::{Origin, Row};
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;

/// The destination of a packet by its route.
#[derive(Clone, Copy)]
pub(crate) enum Routed {
    /// To this machine.
    Host,
    /// To a next hop on the protected side: no policy of the SPD has to be asked.
    Inside(NextHopId),
    /// To a next hop on the unprotected side, if the outbound SPD says so of its flow.
    Outside(NextHopId),
}

/// Routes a packet.
///
/// # Errors
/// The reason why it goes nowhere.
pub(super) fn route(snapshot: &Snapshot, row: &Row) -> Result<Routed, DropReason> {
    routed(snapshot, (&row.packet.flow, row.origin), |routes, to| routes.lookup(to))
}

/// Routes a flow whose packets are to be forwarded, by the route that was found last if it has it.
///
/// # Errors
/// The reason why its packets go nowhere.
#[inline]
pub(crate) fn route_flow(
    snapshot: &Snapshot,
    last_route: &mut LastRoute,
    flow: &Flow,
) -> Result<Routed, DropReason> {
    routed(snapshot, (flow, Origin::Received), |routes, to| last_route.lookup(routes, to))
}

/// Routes overlay packets that go on from an entrance to a host, as the general walk does.
///
/// # Errors
/// The reason why they go nowhere.
#[inline]
pub(crate) fn route_carried(
    snapshot: &Snapshot,
    last_route: &mut LastRoute,
    flow: &Flow,
) -> Result<Routed, DropReason> {
    let origin = Origin::Carried(None);
    routed(snapshot, (flow, origin), |routes, to| last_route.lookup(routes, to))
}

#[inline(always)]
fn routed(
    snapshot: &Snapshot,
    (flow, origin): (&Flow, Origin),
    look_up: impl FnOnce(&RouteTable, Address) -> Option<RouteTarget>,
) -> Result<Routed, DropReason> {
    let routes = snapshot.routes();
    // RFC 1812 §5.3.8: nobody else sends from our own or a broadcast address.
    if origin.is_forwarded() && routes.is_ours(flow.source_address()) {
        return Err(DropReason::BadAddress);
    }
    let target = look_up(routes, flow.destination_address());
    let stays_on_link =
        is_link_local(flow.family, flow.source) || is_link_local(flow.family, flow.destination);
    match target {
        Some(RouteTarget::Via(hop)) if !stays_on_link => Ok(match snapshot.side_of(hop) {
            Side::Unprotected => Routed::Outside(hop),
            Side::Protected => Routed::Inside(hop),
        }),
        // The host of an endpoint that is ourselves: nobody is there.
        Some(RouteTarget::Local) if matches!(origin, Origin::Carried(_)) => {
            Err(DropReason::BadAddress)
        }
        Some(RouteTarget::Local) => Ok(Routed::Host),
        _ => Err(no_way(target, stays_on_link)),
    }
}

/// Returns the reason why a packet with this route goes nowhere.
#[cold]
fn no_way(target: Option<RouteTarget>, stays_on_link: bool) -> DropReason {
    match target {
        _ if stays_on_link => DropReason::BadAddress,
        Some(RouteTarget::Broadcast) => DropReason::BadAddress,
        Some(RouteTarget::Blackhole) => DropReason::Blackhole,
        _ => DropReason::NoRoute,
    }
}
