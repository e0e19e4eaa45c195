//! Opens overlay packets (RFC 7348 §5, RFC 8926 §3), and checks that senders are who they say.
//! Every byte of it is a stranger's.

use wire::flow::protocol;
use wire::link::{ETHERNET_BYTES, Link, LinkAddress, ethertype};
use wire::overlay::{self, OverlayError};
use wire::{Address, Family, Fragment, Packet, Upper};

use crate::overlays::{Overlay, OverlayId, Overlays, SourceCheck, VirtualNetwork};
use crate::verdict::DropReason;
use endpoints::{EndpointKey, Found, Probe};

/// Bytes of a UDP header.
pub(super) const UDP_BYTES: usize = 8;
/// ICMPv6 type of a neighbour solicitation (RFC 4861 §4.3). Around it are what else neighbours and
/// routers say to many (RFC 2710, RFC 3810, RFC 4861).
const SOLICITATION: u8 = 135;

/// A tenant's frame in an overlay packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantFrame {
    pub(super) overlay: OverlayId,
    pub(super) network: VirtualNetwork,
    /// The host that sent it.
    pub(super) host: Address,
    /// Offset of the frame in the outer IP packet.
    pub(super) at: u32,
    pub(super) link: Link,
}

/// The content of a tenant's frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// An IP packet to one station.
    Packet(Packet),
    /// An ARP request, or a neighbour solicitation: nothing of it is checked yet.
    Arp,
    /// See [`Content::Arp`].
    Solicitation,
}

/// Reads the overlay packet that `outer` is: `bytes` from its IP header on, perhaps cut off at the
/// end.
///
/// # Errors
/// The reason why it is dropped, whoever sent it.
pub(super) fn open(
    overlays: &Overlays,
    (id, overlay): (OverlayId, &Overlay),
    outer: &Packet,
    bytes: &[u8],
) -> Result<(TenantFrame, Content), DropReason> {
    if outer.fragment != Fragment::Whole {
        return Err(DropReason::OverlayFragment);
    }
    let udp_at = usize::from(outer.upper_offset);
    let udp = bytes.get(udp_at..).unwrap_or_default();
    let length = udp.get(4..6).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]).into());
    let is_whole = (UDP_BYTES..=outer.length as usize - udp_at).contains(&length);
    let payload = udp.get(UDP_BYTES..length.min(udp.len())).filter(|_| is_whole);
    let payload = payload.ok_or(DropReason::OverlayHeader)?;
    let header = overlay::parse(overlay.kind, payload)?;
    let network = overlays.network(header.vni, id).ok_or(DropReason::UnknownVni)?;
    let frame = &payload[header.length..];
    let link = Link::parse(frame).ok_or(DropReason::Malformed)?;
    // A priority tag is a tag: the frame would go on with it.
    if link.length != ETHERNET_BYTES {
        return Err(DropReason::InnerVlan);
    }
    let at = (udp_at + UDP_BYTES + header.length) as u32;
    let host = outer.flow.source_address();
    let extent = if length > udp.len() { Extent::Cut } else { Extent::Whole };
    let content = content(&link, &frame[link.length..], extent)?;
    Ok((TenantFrame { overlay: id, network: *network, host, at, link }, content))
}

/// Returns the content of a frame; `bytes` is behind the link header, cut off at the end or not.
///
/// # Errors
/// The drop reason. The EtherType goes on unchanged, so it must name the version of the packet:
/// groups judge the packet.
fn content(link: &Link, bytes: &[u8], extent: Extent) -> Result<Content, DropReason> {
    let family = match link.ethertype {
        ethertype::ARP => return Ok(Content::Arp),
        ethertype::IPV4 => Family::V4,
        ethertype::IPV6 => Family::V6,
        _ => return Err(DropReason::NotIp),
    };
    let packet = match (link.is_group(), extent) {
        (false, Extent::Whole) => wire::packet::parse(bytes)?,
        (true, _) | (false, Extent::Cut) => {
            wire::packet::quoted(bytes).ok_or(DropReason::Malformed)?
        }
    };
    if packet.flow.family != family {
        return Err(DropReason::Malformed);
    }
    match (packet.flow.protocol, packet.flow.upper) {
        (protocol::ICMPV6, Upper::Icmp { kind: SOLICITATION, .. }) => Ok(Content::Solicitation),
        (protocol::ICMPV6, Upper::Icmp { kind: 130..=137 | 143, .. }) => {
            Err(DropReason::NoFlooding)
        }
        _ if link.is_group() => Err(DropReason::NoFlooding),
        _ => Ok(Content::Packet(packet)),
    }
}

/// Returns whether an outer packet may carry a fragment of a tenant's datagram; `false` is sure.
/// Looks at no more than that takes: most packets have none.
#[inline]
pub(crate) fn may_carry_fragment<'b>(
    overlays: &Overlays,
    outer: &Packet,
    bytes: impl FnOnce() -> &'b [u8],
) -> bool {
    let Upper::Ports { destination: port, .. } = outer.flow.upper else { return false };
    if !overlays.has_udp_port(port) {
        return false;
    }
    let payload = bytes().get(usize::from(outer.upper_offset) + UDP_BYTES..).unwrap_or_default();
    // One of the overlays on this port says what the header is; the others refuse it later.
    let kinds = overlays.overlays().iter().filter(|it| it.udp_port == port).map(|it| it.kind);
    let headers = kinds.filter_map(|kind| overlay::parse(kind, payload).ok());
    headers.map(|header| &payload[header.length..]).any(|frame| {
        let behind = Link::parse(frame).and_then(|link| frame.get(link.length..));
        match behind.and_then(|ip| Some((ip.first()? >> 4, ip))) {
            Some((4, ip)) => {
                ip.get(6).is_some_and(|flags| flags & 0x3f != 0) || ip.get(7) != Some(&0)
            }
            Some((6, ip)) => ip.get(6).is_some_and(|next| wire::packet::is_extension(*next)),
            _ => false,
        }
    })
}

/// The part of a packet that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    /// Its beginning: a capture has no more.
    Cut,
}

impl TenantFrame {
    /// Asks for the memory of the endpoints that a packet is from and to.
    #[inline]
    pub(super) fn probes(&self, overlays: &Overlays, packet: &Packet) -> Probes {
        let vni = self.network.vni;
        let probe = |address| overlays.endpoints().prefetch(EndpointKey { vni, address });
        Probes {
            source: probe(packet.flow.source_address()),
            destination: probe(packet.flow.destination_address()),
        }
    }

    /// Returns the endpoint of the network that has an address.
    pub(super) fn find(&self, overlays: &Overlays, address: Address) -> Option<Found> {
        overlays.endpoints().find(EndpointKey { vni: self.network.vni, address })
    }

    /// Checks the sender of an answer or a question: the address `source` that it speaks from, or
    /// none; and that of its frame.
    ///
    /// # Errors
    /// As [`check_sender`](Self::check_sender).
    pub(super) fn check_address(
        &self,
        overlays: &Overlays,
        source: Option<Address>,
    ) -> Result<(), DropReason> {
        self.check_sender(overlays, source.map(|source| self.find(overlays, source)))
    }

    /// Checks that a sender is who it says: the host that sends, and with it the endpoint that has
    /// the address it speaks from, and the link address of the frame. `found` is that endpoint, if
    /// there is one; `None`: it speaks from no address.
    ///
    /// # Errors
    /// [`DropReason::OverlayHost`] or [`DropReason::OverlaySource`].
    #[inline]
    pub(super) fn check_sender(
        &self,
        overlays: &Overlays,
        found: Option<Option<Found>>,
    ) -> Result<(), DropReason> {
        let is_host = || overlays.endpoints().has_host(self.network.vni, self.host);
        let mac = LinkAddress::new(self.link.source);
        match (self.network.source_check, found) {
            (SourceCheck::None, _) => Ok(()),
            (SourceCheck::Endpoint, Some(Some(found)))
                if found.host == self.host && found.mac == mac =>
            {
                Ok(())
            }
            (SourceCheck::Endpoint, Some(_)) if is_host() => Err(DropReason::OverlaySource),
            (SourceCheck::Endpoint, None) | (SourceCheck::Host, _) if is_host() => Ok(()),
            (SourceCheck::Endpoint | SourceCheck::Host, _) => Err(DropReason::OverlayHost),
        }
    }
}

/// Places of the endpoints that a packet is from and to, in the table.
#[derive(Clone, Copy)]
pub(super) struct Probes {
    pub(super) source: Probe,
    pub(super) destination: Probe,
}

impl From<OverlayError> for DropReason {
    fn from(error: OverlayError) -> DropReason {
        match error {
            OverlayError::Control => DropReason::OverlayControl,
            OverlayError::CriticalOption => DropReason::OverlayOption,
            _ => DropReason::OverlayHeader,
        }
    }
}
