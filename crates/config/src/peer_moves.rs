//! The addresses that the ends of a peer's SAs may have.

use policy::AddressRange;

/// Addresses that the ends of a peer's SAs may move to when IKE says so (RFC 4555), beside those
/// that are configured.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PeerMoves {
    /// Those of this gateway.
    pub local: Vec<AddressRange>,
    /// The peer's.
    pub remote: Vec<AddressRange>,
}

impl PeerMoves {
    /// True if both ends stay.
    pub const fn is_none(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty()
    }
}
