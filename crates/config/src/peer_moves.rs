//! The addresses that the ends of a peer's SAs may have.

use std::sync::Arc;

use policy::AddressRange;

/// Addresses that the ends of a peer's SAs may move to when IKE says so (RFC 4555), beside those
/// that are configured. Cheap to copy: charon may have very many peers of its own.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PeerMoves {
    /// Those of this gateway.
    pub local: Arc<[AddressRange]>,
    /// The peer's.
    pub remote: Arc<[AddressRange]>,
}

impl PeerMoves {
    /// True if both ends stay.
    pub fn is_none(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty()
    }
}
