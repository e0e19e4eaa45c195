//! Verdicts: every row of a batch ends with exactly one [`Verdict`], except those that are handed
//! over: another worker walks them, and they get theirs there.

use policy::Refusal;

use crate::ids::{PortId, SetIndex};

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
    /// Replaced by its fragments, or part of a packet that was put together: these have verdicts
    /// of their own.
    Consumed,
    /// Dropped and counted.
    Drop(DropReason),
}

/// The missing information that a held packet waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HoldKind {
    /// The link address of its next hop.
    Neighbour,
    /// The first fragment of its datagram, which policies want to see. Once that comes the packet
    /// has another verdict, behind those of the batch. Or, of ESP, the other fragments: the last of
    /// these to come has the verdict on the packet.
    Fragment,
    /// An SA to be sealed with. Once there is one the packet has another verdict, outside of any
    /// batch.
    Sa,
}

macro_rules! drop_reasons {
    ($($variant:ident $name:literal $help:literal)*) => {
        /// Reason why a packet was dropped: the closed list of reasons, counters and help texts.
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

            /// Returns the meaning of the reason, and what to do.
            pub const fn help(self) -> &'static str {
                match self { $(DropReason::$variant => $help,)* }
            }
        }
    };
}

drop_reasons! {
    Oversize "oversize"
        "larger than a frame; switch segmentation offload off at the sender (ethtool -K DEV tso \
         off gso off), or raise the port's mtu"
    Vlan "vlan"
        "no port of the device has the frame's VLAN id, or no port takes untagged frames; set \
         `vlan` of a port, or correct the switch"
    LinkMulticast "link_multicast"
        "a link-layer broadcast or multicast from an unprotected port; add its service to \
         allow_host if it is wanted"
    NotIp "not_ip"
        "neither IPv4 nor IPv6, received on an unprotected port or tunnelled; such packets are \
         never forwarded: nothing to do unless they are needed"
    Malformed "malformed"
        "truncated, a header's length does not fit what was received, two IPv6 Fragment headers, \
         or a tenant's EtherType that contradicts its packet; capture it (lockgate capture PORT \
         reason malformed) and look at its sender"
    Checksum "ip_checksum"
        "the IPv4 header checksum is wrong; the sender or a device on the path damages packets: \
         look at the error counters of the link"
    SourceRoute "source_route"
        "carries a source route: an IPv4 LSRR or SSRR option, or an IPv6 routing header in use; \
         such packets are never forwarded: the sender must leave it out"
    BadAddress "bad_address"
        "an invalid or spoofed address: a loopback, multicast, unspecified, link-local, reserved \
         or broadcast one, an address of this gateway as source, or an inside source that arrives \
         from outside; if it is genuine, look at the routes and at the `side` of the ports"
    HopLimit "hop_limit"
        "TTL or hop limit used up; a traceroute looks like this: if nobody runs one, look for a \
         routing loop"
    CardFragmentRx "card_fragment_rx"
        "a fragment that came with the tag of an SA in a network card, which opens whole packets \
         only; let the sender send smaller packets, or let software open them (`offload` of the \
         peer)"
    EspFragment "esp_fragment"
        "a fragment of an ESP packet to this gateway, alone or in UDP, from an address of no peer \
         that sends it so; only peers' fragments are put together: if it is a peer's, correct its \
         `remote` or `encapsulation` (lockgate show peer)"
    Keepalive "keepalive"
        "a NAT keepalive (RFC 3948 §2.3); dropped by design: nothing to do"
    UnknownSpi "unknown_spi"
        "ESP to this gateway with an SPI that no SA has; the peer uses an SA that is gone (give \
         both gateways the same keys), or the sender is a stranger"
    CardSa "card_sa"
        "ESP for an SA in a network card, which did not open it; lead the peer's packets to the \
         card's port, whole and without options, or let software open them (`offload` of the \
         peer; lockgate show sa)"
    Encapsulation "encapsulation"
        "ESP in UDP for an SA without it, or ESP alone for an SA in UDP; set the same \
         `encapsulation` on both gateways"
    HandoverFull "handover_full"
        "the SA, or the datagram of a fragment, is another worker's, and the ring to that worker \
         is full; one worker is overloaded: spread the traffic over more SAs"
    Replayed "replayed"
        "an ESP sequence number that was already received; the network duplicates packets, or an \
         attacker replays them: nothing to do if they are few"
    TooOld "replay_too_old"
        "an ESP sequence number left of the replay window; packets are reordered by more than the \
         window: raise `replay_window` of the peer"
    Integrity "integrity"
        "the ESP integrity check failed: damaged, forged, or the keys differ; give both gateways \
         the same keys"
    BadPadding "bad_padding"
        "ESP authenticated, but its padding is not 1, 2, 3 …; the peer's software is at fault: \
         report it there"
    BadNextHeader "bad_next_header"
        "ESP authenticated, but what it carries in tunnel mode is neither IPv4 nor IPv6; set the \
         same `mode` on both gateways"
    Dummy "dummy"
        "an ESP dummy packet (RFC 4303 §2.6); dropped by design: nothing to do"
    Ecn "ecn"
        "the outer header marks congestion and the inner packet cannot carry the mark (RFC 6040); \
         the drop signals the congestion to the sender: nothing to do here"
    SelectorMismatch "selector_mismatch"
        "decrypted, but no policy of the SA that opened it matches; the peer may not send this: \
         compare the policies of both gateways (lockgate explain --from-peer PEER)"
    Unprotected "unprotected"
        "received in cleartext although a policy wants it protected; at the sender's gateway look \
         at policies and SAs (lockgate explain names the policy here)"
    NoRoute "no_route"
        "no route to its destination; add one to Linux's routing table (lockgate show route), or \
         set the port up that it leads to"
    Blackhole "blackhole"
        "the route to its destination is a blackhole, unreachable or prohibit route; remove it \
         from Linux's routing table if the destination is wanted"
    NoMatch "no_match"
        "no policy matches, and what matches nothing is dropped; add a policy, or an entry to \
         allow_host (lockgate explain names the nearest)"
    PolicyDiscard "policy_discard"
        "a DISCARD policy wants it dropped; lockgate explain names the policy"
    GroupDeny "group_deny"
        "a rule of a security group denies it; lockgate explain names the rule and its group"
    GroupNoMatch "group_no_match"
        "no rule of the port's security groups matches, and what matches nothing is denied; add a \
         permit rule to one of the groups (lockgate show group; lockgate explain)"
    ConnectionLimit "connection_limit"
        "a reflect rule permits it, and the table has no room for another connection, of its port \
         or at all; if it is no flood, raise `max` or `per_port` of the section `connections` \
         (lockgate show connection)"
    FragmentPorts "fragment_ports"
        "a non-first fragment under a policy that matches ports, ICMP types or (IPv6) a protocol, \
         which its first fragment does not tell: an ICMP error, or IPv6 with more extension \
         headers; let the sender send smaller packets, or use a policy without ports"
    FragmentOverlap "fragment_overlap"
        "a fragment that overlaps another one of its datagram, or lies behind the datagram's end \
         (RFC 5722); all of that datagram is dropped: somebody tries to get past a policy, or the \
         sender is broken; look at the sender"
    FragmentDuplicate "fragment_duplicate"
        "a fragment with the place and length of another one of its datagram (RFC 8200 §4.5), \
         which goes on with the one that came first; the network duplicates packets: nothing to \
         do if they are few"
    FragmentTiny "fragment_tiny"
        "a first fragment too small to show the flags of TCP (RFC 1858) or the SPI of ESP, or \
         another fragment of its datagram; no sender needs such fragments: look at the sender"
    FragmentTimeout "fragment_timeout"
        "a non-first fragment that waited two seconds for its first one, which policies want to \
         see, or one of ESP that waited for the others; the network lost some, or sends them by \
         several ports: look at its loss and its routes"
    FragmentLimit "fragment_limit"
        "a fragment for which there was no room to wait for others of its datagram, or one of a \
         datagram in too many pieces; its sender or port sends too many fragments: let the sender \
         send smaller packets"
    IcmpInClear "icmp_in_clear"
        "an ICMP message of this gateway that quotes a protected packet and would have left in \
         cleartext by a BYPASS policy; add a PROTECT policy between this gateway's address and the \
         sender's"
    NoSa "no_sa"
        "a policy wants it protected and no SA can send; give the peer keys to send with (lockgate \
         show sa lists those it has)"
    DevMismatch "dev_mismatch"
        "its SA is in a network card, and the route to the peer leaves by another device; lead \
         the route to the card's port, or let software seal (`offload` of the peer)"
    CardFragmentTx "card_fragment_tx"
        "a fragment, or a packet that would have to be cut into fragments, for an SA in a network \
         card, which seals whole packets only; let the sender send smaller packets, or let \
         software seal (`offload` of the peer)"
    CardOptions "card_options"
        "has IPv4 options or IPv6 extension headers, and its SA is in a network card, which seals \
         packets without; let the sender leave them out, or let software seal (`offload` of the \
         peer)"
    TransportMode "transport_mode"
        "transport mode carries only whole packets between the SA's two ends, not fragments; use \
         tunnel mode for others, and let the sender send smaller packets"
    SequenceExhausted "sequence_exhausted"
        "the SA has used all its sequence numbers; give both gateways new keys"
    SequenceNotReserved "sequence_not_reserved"
        "no durable reservation of the SA's next sequence numbers; free space on the disk of \
         state_dir, or find out why it is slow (lockgate events)"
    SaHardLimit "sa_hard_limit"
        "the SA has reached a hard limit of its `lifetime` and has ended; give both gateways new \
         keys (lockgate show sa shows use and limits)"
    CipherRefused "cipher_refused"
        "the cipher library refused to seal, which should never happen; report it"
    OverlayFragment "overlay_fragment"
        "a fragment of an overlay packet; let hosts send packets that fit the path: lower the MTU \
         inside the virtual networks, or raise that of the links between hosts"
    OverlayHeader "overlay_header"
        "its overlay header, or UDP header, is malformed; the sender is broken or another program \
         uses the overlay's UDP port"
    OverlayControl "overlay_control"
        "Geneve with the O bit: for the ends of a tunnel, not for tenants; nothing to do unless \
         the sender expects an answer"
    OverlayOption "overlay_option"
        "Geneve with a critical option that the gateway does not know; configure the sender \
         without it"
    EntranceIp "entrance_ip"
        "to the overlay's UDP port at an address of ours that is no entrance; let hosts send to an \
         entrance, or add the address to `entrances`"
    UnknownVni "unknown_vni"
        "its virtual network is not configured for the overlay; add [vni.N], or stop the sender"
    OverlayHost "overlay_host"
        "no endpoint of its virtual network is behind the host that sent it; put its endpoints \
         (lockgate endpoint put), or find out who sends in that host's name"
    OverlaySource "overlay_source"
        "its source, with its link address, is no endpoint behind the host that sent it; put the \
         endpoint (lockgate endpoint put), or find the tenant that pretends"
    InnerVlan "inner_vlan"
        "a tenant's frame with a VLAN tag, or with a priority tag (VLAN id 0); let tenants send \
         without tags"
    NoFlooding "no_flooding"
        "a tenant's broadcast, multicast or discovery message that the gateway does not answer; \
         nothing to do: nothing is flooded, and known endpoints are answered for"
    NoEndpoint "no_endpoint"
        "no endpoint of the virtual network has its destination; put it (lockgate endpoint put), \
         or see lockgate show endpoint"
    TooBig "too_big"
        "does not fit the path MTU and may not be fragmented; ICMP told its sender: if the sender \
         does not adapt, a device on the path drops that ICMP"
    NoFrame "no_frame"
        "no free frame for its fragments; too many packets are in flight: let the sender send \
         smaller packets, which need no fragments"
    NoNeighbour "no_neighbour"
        "the link address of its next hop is unknown; the next hop does not answer ARP or \
         neighbour discovery (lockgate show neighbour)"
    Unsteered "unsteered"
        "for Linux, but the XDP program sent it to a worker; the gateway's addresses just changed: \
         nothing to do unless it lasts"
    TransmitFull "tx_full"
        "the transmit ring of its port was full; the port is too slow for its traffic: use a \
         faster link or shape the traffic"
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = DropReason::ALL.len();
}

impl From<Refusal> for DropReason {
    fn from(refusal: Refusal) -> DropReason {
        match refusal {
            Refusal::NoMatch => DropReason::NoMatch,
            Refusal::Discard => DropReason::PolicyDiscard,
            Refusal::FragmentPorts => DropReason::FragmentPorts,
            Refusal::Unprotected => DropReason::Unprotected,
            Refusal::SelectorMismatch => DropReason::SelectorMismatch,
            Refusal::GroupDeny => DropReason::GroupDeny,
            Refusal::GroupNoMatch => DropReason::GroupNoMatch,
            Refusal::ConnectionLimit => DropReason::ConnectionLimit,
        }
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_help_says_what_it_means_and_then_what_to_do() {
        for reason in DropReason::ALL {
            let help = reason.help();
            let (meaning, action) = help.split_once("; ").unwrap_or((help, ""));
            assert!(meaning.len() > 10 && action.len() > 8, "{reason}: {help}");
            assert!(help.chars().count() <= 280, "{reason}: {}", help.len());
            assert!(!help.contains("  ") && !help.ends_with('.'), "{reason}: {help}");
        }
    }
}
