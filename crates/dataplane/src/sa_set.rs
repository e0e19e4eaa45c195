//! Sets of SAs.

use ipsec::SaId;
use policy::SaSetId;

use crate::path_mtu::PathMtu;

/// The SAs that a PROTECT policy names, with what depends on the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaSet {
    /// Number of the set.
    pub id: SaSetId,
    /// The peer's name in the configuration.
    pub peer: String,
    /// Our outer address and the peer's. SAs may have others: each goes to its own remote end.
    pub tunnel: ipsec::Tunnel,
    /// SAs that seal, in the order they are preferred; empty: nothing can be sent (`no_sa`).
    pub outbound: Vec<SaId>,
    /// True if its SAs come from a key manager: without a lasting outbound SA, packets wait while
    /// [`AcquireSwitch`](crate::AcquireSwitch) is on.
    pub acquires: bool,
    /// True if TCP SYN segments are clamped to the tunnel's path MTU.
    pub mss_clamp: bool,
    /// True if the peer may be behind a NAT, so that its address and UDP port may change: what its
    /// packets show of that is told.
    pub may_move: bool,
    /// True if IKE moves its SAs to other ends (RFC 4555): what comes for one is taken at any
    /// address of ours, alone or in UDP, because one gateway learns of a move before the other.
    pub moves_by_ike: bool,
    /// Seconds without a packet to the peer after which a NAT keepalive is sent; `None`: none is.
    pub keepalive_s: Option<u32>,
    /// The path MTU to the peer, the least of all its remote ends, as far as ICMP told it; `None`:
    /// ICMP is not believed.
    pub path_mtu: Option<PathMtu>,
    /// The set whose SA seals again what an SA of this one has sealed, and by which alone it comes;
    /// `None`: none does. That set has none itself.
    pub outer: Option<SaSetId>,
}

impl SaSet {
    /// Goes on with the path MTU that an earlier form of the set has learned, if both learn one of
    /// the same path.
    pub fn keep_path_mtu_of(&mut self, earlier: &SaSet) {
        if let (Some(path), Some(known)) = (&mut self.path_mtu, &earlier.path_mtu)
            && self.tunnel == earlier.tunnel
        {
            *path = known.clone();
        }
    }

    /// Returns the set between other ends, or with its peer at another UDP port: another path, of
    /// which nothing is known.
    #[must_use]
    pub fn moved_to(&self, ends: ipsec::Tunnel) -> SaSet {
        let mut moved = self.clone();
        moved.tunnel = ends;
        moved.path_mtu = self.path_mtu.as_ref().map(|_| PathMtu::default());
        moved
    }
}
