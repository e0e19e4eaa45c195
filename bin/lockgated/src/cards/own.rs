//! Packets that come by ports and that their groups are not asked about: a card may not drop them.

use dataplane::{RouteTarget, Snapshot};
use policy::{AddressRange, Selector, UpperSelector};
use wire::Family;

/// Packets to this machine itself, ESP and IKE among them, and to groups.
pub(super) fn own(snapshot: &Snapshot) -> Vec<Selector> {
    let is_own =
        |target: &RouteTarget<_>| matches!(target, RouteTarget::Local | RouteTarget::Broadcast);
    let routes = snapshot.sources().routes.iter().filter(|(_, target)| is_own(target));
    let ours = routes.map(|(prefix, _)| AddressRange::network(prefix.address, prefix.length));
    vec![Selector {
        local: vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)],
        remote: ours.chain(offload::never_forwarded()).collect(),
        protocol: None,
        upper: UpperSelector::Any,
    }]
}
