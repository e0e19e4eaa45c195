//! The addresses that the ends of a peer's SAs may have.

use std::net::IpAddr;

use ipsec::{Mode, Tunnel};
use policy::AddressRange;

use crate::validated::{Peer, PeerPlace};

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

impl Peer {
    /// Returns whether the peer's SAs may be between these ends when IKE says so: the configured
    /// ones, or such as `moves_to` and `local_moves_to` have. A peer behind a NAT may be anywhere.
    pub fn may_be_between(&self, ends: Tunnel) -> bool {
        let Tunnel { local, remote } = self.tunnel();
        let has = |ranges: &[AddressRange], end: IpAddr| {
            ranges.iter().any(|range| range.contains(end.into()))
        };
        let is_tunnel = self.encapsulation.mode == Mode::Tunnel;
        let is_roaming = is_tunnel && self.place == PeerPlace::BehindNat;
        ends.local.is_ipv4() == ends.remote.is_ipv4()
            && (ends.local == local || has(&self.moves.local, ends.local))
            && (ends.remote == remote || is_roaming || has(&self.moves.remote, ends.remote))
    }
}
