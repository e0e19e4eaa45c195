//! Sets of SAs.

use ipsec::SaId;
use policy::SaSetId;

/// The SAs that a PROTECT policy names, with what depends on the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaSet {
    /// Number of the set.
    pub id: SaSetId,
    /// The peer's name in the configuration.
    pub peer: String,
    /// Our outer address and the peer's.
    pub tunnel: ipsec::Tunnel,
    /// SAs that seal, in the order they are preferred; empty: nothing can be sent (`no_sa`).
    pub outbound: Vec<SaId>,
    /// True if its SAs come from somebody who makes them when asked: without one that seals,
    /// packets wait while [`AcquireSwitch`](crate::AcquireSwitch) is on.
    pub acquires: bool,
    /// True if TCP SYN segments are clamped to the tunnel's path MTU.
    pub mss_clamp: bool,
    /// True if the peer is behind a NAT, so that its address and UDP port may change.
    pub may_move: bool,
    /// Seconds without a packet to the peer after which a NAT keepalive is sent; `None`: none is.
    pub keepalive_s: Option<u32>,
}
