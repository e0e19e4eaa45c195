//! Destinations of packets that no port forwards, so that groups are not asked about them.

use policy::AddressRange;
use wire::Address;

/// Destinations that are never forwarded, besides our own: groups, and addresses of one link.
pub const NEVER_FORWARDED: [(Address, u8); 5] = [
    (Address::v4(0xe000_0000), 4),
    (Address::v4(0xffff_ffff), 32),
    (Address::v4(0xa9fe_0000), 16),
    (Address::v6(0xff << 120), 8),
    (Address::v6(0xfe80 << 112), 10),
];

/// Returns [`NEVER_FORWARDED`] as ranges.
pub fn never_forwarded() -> impl Iterator<Item = AddressRange> {
    NEVER_FORWARDED.into_iter().map(|(address, length)| AddressRange::network(address, length))
}
