//! What became of a packet. Every row of a batch ends with exactly one [`Verdict`], but for those
//! that are handed over: another worker walks them, and there they have theirs.

use crate::{PortId, SetIndex};

/// The end of a packet's walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Left in clear by this port: allowed by a BYPASS policy, or between protected ports.
    Forward(PortId),
    /// Sealed with an SA of this set.
    Protect(SetIndex),
    /// Handed to Linux on this machine.
    Host,
    /// Waits; the caller of the walk holds it or drops it.
    Hold(HoldKind),
    /// Replaced by packets made from it (its fragments), which have verdicts of their own.
    Consumed,
    /// Dropped and counted.
    Drop(DropReason),
}

/// What a held packet waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HoldKind {
    /// The link address of its next hop.
    Neighbour,
}

macro_rules! drop_reasons {
    ($($variant:ident $name:literal $help:literal)*) => {
        /// Why a packet was dropped: the closed list of reasons, counters and help texts.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum DropReason {
            $(#[doc = $help] $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of the walk.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant,)*];

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// What it means and what to do.
            pub const fn help(self) -> &'static str {
                match self { $(DropReason::$variant => $help,)* }
            }
        }
    };
}

drop_reasons! {
    Oversize "oversize"
        "larger than a frame: segmentation offload (ethtool -K DEV tso off gso off), or a port's \
         mtu that is too low"
    Vlan "vlan"
        "the frame's VLAN id, or having none, is declared for no port of the device"
    LinkMulticast "link_multicast"
        "a link-layer broadcast or multicast from an unprotected port; add to allow_host if wanted"
    NotIp "not_ip"
        "neither IPv4 nor IPv6, received on an unprotected port or tunnelled"
    Malformed "malformed"
        "truncated, or a header's length does not fit what was received"
    Checksum "ip_checksum"
        "the IPv4 header checksum is wrong"
    SourceRoute "source_route"
        "carries a source route: an IPv4 LSRR or SSRR option, or an IPv6 routing header in use"
    BadAddress "bad_address"
        "an invalid or spoofed address: loopback, multicast, unspecified, link-local, reserved, or \
         broadcast; an own address as source; or an inside source that arrives from outside"
    HopLimit "hop_limit"
        "TTL or hop limit used up; a traceroute looks like this"
    EspFragment "esp_fragment"
        "a fragment of an ESP packet to one of our addresses, alone or in UDP; such fragments are \
         not reassembled: at the peer lower the tunnel's MTU, set DF, or clamp the TCP MSS \
         (mss_clamp); at a Linux peer use an XFRM interface with an MTU of its own"
    Keepalive "keepalive"
        "a NAT keepalive (RFC 3948 §2.3): swallowed as it should be"
    UnknownSpi "unknown_spi"
        "ESP to us under an SPI that no SA has: the peer uses an SA that is gone, or is a stranger"
    Encapsulation "encapsulation"
        "ESP in UDP for an SA without it, or ESP alone for an SA in UDP: the peers' \
         `encapsulation` differs"
    HandoverFull "handover_full"
        "the SA is another worker's, and the ring to that worker is full"
    Replayed "replayed"
        "an ESP sequence number that was already received"
    TooOld "replay_too_old"
        "an ESP sequence number left of the replay window; reordering is larger than the window"
    Integrity "integrity"
        "the ESP integrity check failed: damaged, forged, or the keys differ"
    BadPadding "bad_padding"
        "ESP authenticated, but its padding is not 1, 2, 3 …: the peer's software is at fault"
    BadNextHeader "bad_next_header"
        "ESP authenticated, but what it carries in tunnel mode is neither IPv4 nor IPv6"
    Dummy "dummy"
        "an ESP dummy packet (RFC 4303 §2.6): swallowed as it should be"
    Ecn "ecn"
        "congestion was marked outside on a packet whose inside cannot carry the mark (RFC 6040)"
    SelectorMismatch "selector_mismatch"
        "decrypted, but no policy of the SA that opened it matches: the peer may not send this"
    Unprotected "unprotected"
        "received in clear though a policy wants it protected"
    NoRoute "no_route"
        "no route to its destination"
    Blackhole "blackhole"
        "the route to its destination is a blackhole"
    NoMatch "no_match"
        "no policy matches, and what matches nothing is dropped"
    PolicyDiscard "policy_discard"
        "a DISCARD policy"
    FragmentPorts "fragment_ports"
        "a non-first fragment under a policy that asks for ports, ICMP types or (IPv6) a protocol, \
         which only the first fragment has"
    IcmpInClear "icmp_in_clear"
        "an ICMP message of ours that quotes a protected packet and would have left in clear by a \
         BYPASS policy"
    NoSa "no_sa"
        "a policy wants it protected and no SA that can send is there"
    TransportMode "transport_mode"
        "transport mode carries only whole packets between the SA's two ends, not fragments"
    SequenceExhausted "sequence_exhausted"
        "the SA has used all its sequence numbers: rekey"
    SequenceNotReserved "sequence_not_reserved"
        "no durable reservation of the SA's next sequence numbers: the disk is full or the control \
         thread is stuck"
    CipherRefused "cipher_refused"
        "the cipher library refused to seal; never seen in health: report it"
    TooBig "too_big"
        "does not fit the path MTU and may not be fragmented; the sender was told by ICMP"
    NoFrame "no_frame"
        "no free frame for its fragments"
    NoNeighbour "no_neighbour"
        "the link address of its next hop is unknown"
    Unsteered "unsteered"
        "for Linux, but the steering program sent it to a worker: our addresses just changed"
    TransmitFull "tx_full"
        "the transmit ring of its port was full"
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = DropReason::ALL.len();
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
