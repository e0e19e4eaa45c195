//! Packets that come by ports and that their groups are not asked about: a card may not drop them.

use dataplane::{RouteTarget, Snapshot};
use policy::{AddressRange, Selector, UpperSelector};
use wire::{Address, Family};

/// Destinations that are never forwarded, besides our own: groups, and addresses of one link.
const NEVER_FORWARDED: [(Address, u8); 5] = [
    (Address::v4(0xe000_0000), 4),
    (Address::v4(0xffff_ffff), 32),
    (Address::v4(0xa9fe_0000), 16),
    (Address::v6(0xff << 120), 8),
    (Address::v6(0xfe80 << 112), 10),
];

/// Packets to this machine itself, ESP and IKE among them, and to groups.
pub(super) fn own(snapshot: &Snapshot) -> Vec<Selector> {
    let is_own =
        |target: &RouteTarget<_>| matches!(target, RouteTarget::Local | RouteTarget::Broadcast);
    let routes = snapshot.sources().routes.iter().filter(|(_, target)| is_own(target));
    let ours = routes.map(|(prefix, _)| AddressRange::network(prefix.address, prefix.length));
    let never = NEVER_FORWARDED.into_iter();
    let never = never.map(|(address, length)| AddressRange::network(address, length));
    vec![Selector {
        local: vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)],
        remote: ours.chain(never).collect(),
        protocol: None,
        upper: UpperSelector::Any,
    }]
}
