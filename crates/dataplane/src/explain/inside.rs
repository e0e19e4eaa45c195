//! Explains the verdict on a packet inside a virtual network: makes the overlay packet that its
//! host would send, and asks the walk's own questions about it.

use endpoints::EndpointKey;
pub use endpoints::Found;
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol;
use wire::outer::{HOP_LIMIT, Outer};
use wire::{Address, Flow, LinkAddress, Packet, Upper, Vni};

use super::{Arrival, Explanation, ask, conclude, row_with};
use crate::overlays::{Overlays, VirtualNetwork};
use crate::snapshot::Snapshot;
use crate::verdict::Verdict;

/// UDP source port of the overlay packet: any of those that hosts draw theirs from (RFC 7348 §5).
const SOURCE_PORT: u16 = 0xc000;
/// Link addresses of a sender that no endpoint names, and of whomever it sends to.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The virtual network that the packet in question is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside {
    /// Its number.
    pub vni: Vni,
    /// The host that sends; `None`: the one that has the packet's source.
    pub host: Option<Address>,
}

/// The overlay packet that carries a tenant's packet, and on whose behalf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// The virtual network.
    pub vni: Vni,
    /// Name of its overlay.
    pub overlay: String,
    /// The host that sends.
    pub host: Address,
    /// The endpoint that has the packet's source; `None`: there is none.
    pub from: Option<Found>,
    /// The endpoint that has its destination; `None`: there is none.
    pub to: Option<Found>,
    /// Addresses and ports of the overlay packet that goes on, if the destination is known.
    pub onward: Option<Flow>,
}

/// A question about a virtual network that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsideError {
    /// There is no such network.
    NoNetwork(Vni),
    /// Nobody says which host sends: no endpoint of the network has the packet's source.
    NoHost(EndpointKey),
    /// The overlay has no entrance of the family of this host.
    NoEntrance(Address),
}

/// Explains the verdict that the walk would give a packet of a flow in a virtual network, in the
/// overlay packet that its host sends to the first entrance of its family; `arrival` is the way by
/// which that comes, or came in ESP. The sender's link address is taken to be its own.
///
/// Not judged is what [`explain`](super::explain) does not judge of the packet inside.
///
/// # Errors
/// [`InsideError`].
pub fn explain_inside(
    (snapshot, now_ns): (&Snapshot, u64),
    arrival: Arrival,
    inside: Inside,
    flow: Flow,
) -> Result<Explanation, InsideError> {
    let Inside { vni, host } = inside;
    let overlays = snapshot.overlays().ok_or(InsideError::NoNetwork(vni))?;
    let network = overlays.networks().find(|network| network.vni == vni);
    let network = *network.ok_or(InsideError::NoNetwork(vni))?;
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let find = |address| overlays.endpoints().find(EndpointKey { vni, address });
    let (from, to) = (find(source), find(destination));
    let no_host = InsideError::NoHost(EndpointKey { vni, address: source });
    let host = host.or(from.map(|from| from.host)).ok_or(no_host)?;
    let mut told = Explanation::nothing();
    let frame = tenants_frame(&flow, from.map(|from| from.mac));
    let bytes = overlay_packet(overlays, &network, host, &frame)?;
    let overlay = overlays.overlay(network.overlay);
    let mut carried = Carried { vni, overlay: overlay.name.clone(), host, from, to, onward: None };
    let packet = match wire::packet::parse(&bytes) {
        Ok(packet) => packet,
        Err(error) => {
            told.verdict = Verdict::Drop(error.into());
            told.carried = Some(carried);
            return Ok(told);
        }
    };
    let row = row_with(snapshot, arrival, packet);
    let judged = ask((snapshot, now_ns), &row, &bytes, &mut told);
    let onward = to.and_then(|to| {
        let entrance = match to.host.family == packet.flow.family {
            true => packet.flow.destination_address(),
            false => overlay.entrance(to.host.family)?,
        };
        let Address { family, value } = to.host;
        Some(Flow { family, source: entrance.value, destination: value, ..packet.flow })
    });
    let sent = Packet { flow: onward.unwrap_or(packet.flow), ..packet };
    told.verdict = conclude((snapshot, now_ns), &sent, judged, &mut told);
    told.route = onward.and_then(|flow| snapshot.routes().lookup(flow.destination_address()));
    // A packet of the tenant's has what the headers around it leave.
    let around = (frame_offset(&bytes, &packet) + LINK_BYTES) as u32;
    told.mtu = told.mtu.map(|mtu| mtu.saturating_sub(around));
    carried.onward = onward;
    told.carried = Some(carried);
    Ok(told)
}

/// Bytes of the link header of a tenant's frame.
const LINK_BYTES: usize = wire::link::ETHERNET_BYTES;

/// Returns where the tenant's frame begins in an overlay packet that we made.
fn frame_offset(bytes: &[u8], packet: &Packet) -> usize {
    let headers = usize::from(packet.upper_offset) + wire::outer::UDP_BYTES;
    (headers + wire::overlay::HEADER_BYTES).min(bytes.len())
}

/// A tenant's frame with a packet of a flow; of TCP a segment with SYN.
fn tenants_frame(flow: &Flow, mac: Option<LinkAddress>) -> Vec<u8> {
    let packet = PacketBuilder::new(flow.source_address(), flow.destination_address());
    let packet = match (flow.upper, flow.protocol) {
        (Upper::Ports { source, destination }, protocol::UDP) => packet.udp(source, destination),
        (Upper::Ports { source, destination }, protocol::TCP) => {
            let flags = if flow.opens { tcp_flags::SYN } else { tcp_flags::SYN | tcp_flags::ACK };
            packet.tcp_with(source, destination, flags, None)
        }
        (Upper::Ports { source, destination }, number) => {
            let mut upper = [0; 16];
            upper[..2].copy_from_slice(&source.to_be_bytes());
            upper[2..4].copy_from_slice(&destination.to_be_bytes());
            packet.protocol(number).payload(&upper)
        }
        (Upper::Icmp { kind, code }, _) => packet.icmp(kind, code, [0; 4]),
        (Upper::None, number) => packet.protocol(number).payload(&[0; 8]),
        (Upper::Fragment, number) => packet.protocol(number).payload(&[0; 8]).fragment(1, false),
    };
    packet.frame(ROUTER, mac.map_or(NOBODY, LinkAddress::bytes), None)
}

/// The overlay packet with a frame that a host sends to an entrance.
fn overlay_packet(
    overlays: &Overlays,
    network: &VirtualNetwork,
    host: Address,
    frame: &[u8],
) -> Result<Vec<u8>, InsideError> {
    let overlay = overlays.overlay(network.overlay);
    let entrance = overlay.entrance(host.family).ok_or(InsideError::NoEntrance(host))?;
    let outer = Outer {
        source: host,
        destination: entrance,
        source_port: SOURCE_PORT,
        udp_port: overlay.udp_port,
        kind: overlay.kind,
        vni: network.vni,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
    };
    let mut bytes = vec![0; outer.bytes()];
    bytes.extend_from_slice(frame);
    let start = outer.write(&mut bytes, outer.bytes(), frame.len());
    debug_assert_eq!(start, Some(0), "there is room");
    Ok(bytes)
}
