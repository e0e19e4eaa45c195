//! A run of overlay packets leaves for the hosts of their destinations: addresses, link headers,
//! hop limits and checksums are written.

use std::net::Ipv4Addr;
use std::ops::Range;

use wire::flow::protocol;
use wire::glance::word;
use wire::link::{ETHERNET_BYTES, LinkTemplate, TAGGED_BYTES, ethertype};
use wire::outer::{self, UDP_BYTES};
use wire::overlay::HEADER_BYTES;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{Address, Descriptor, DirectFlow, Family, Frames, Received};

use super::overlay::{Entry, Onward};
use super::{FastPath, Row};
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::direct_flows::Sender;
use crate::ids::PortId;
use crate::stage::{Stage, StageClock};
use crate::tenant_samples::TenantSample;
use crate::verdict::{DropReason, Verdict};

/// Bytes between the outer IP header and the tenant's frame.
const BETWEEN: usize = UDP_BYTES + HEADER_BYTES;
/// Bytes from the IP header on that a packet is changed in: the longest headers, and a word with
/// the frame's destination.
const CHANGED_IP_BYTES: usize = IPV6_BYTES + BETWEEN + 8;
/// [`CHANGED_IP_BYTES`], with the longest link header in front.
const CHANGED_BYTES: usize = TAGGED_BYTES + CHANGED_IP_BYTES;

/// Bytes from the outer IPv4 header on, up to the ports of a tenant's packet.
const TENANT_SEEN: usize = IPV4_BYTES + BETWEEN + ETHERNET_BYTES + IPV4_BYTES + 4;

impl FastPath {
    /// Sends a run of overlay packets on from an entrance.
    pub(super) fn carry<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        entry: &Entry,
        packets: &[Received],
        run: Range<usize>,
        clock: &mut impl StageClock,
    ) {
        let entrance = entry.entrance;
        context.counters.fast_path += run.len() as u64;
        if context.tenants.is_on() {
            self.sample(context, run.clone());
        }
        if context.direct.is_on() {
            self.see_direct(context, entry, packets, run.clone());
        }
        match entrance.family {
            Family::V4 => self.carry_all::<IPV4_BYTES, F>(context, entrance, packets, run),
            Family::V6 => self.carry_all::<IPV6_BYTES, F>(context, entrance, packets, run),
        }
        clock.ended(Stage::SealHeaders);
    }

    /// Shows the packets of a run to those who count endpoints.
    #[inline(never)]
    fn sample<F: Frames>(&self, context: &mut BatchContext<'_, F>, run: Range<usize>) {
        for place in run {
            context.tenants.see(|| {
                let (from, to) = self.overlay.keys(place);
                let (source, destination) = (from.address, to.address);
                TenantSample { vni: to.vni, source, destination, judged: None }
            });
        }
    }

    /// Notes the flows of a run whose hosts are to be told direct paths.
    #[inline(never)]
    fn see_direct<F: Frames>(
        &self,
        context: &mut BatchContext<'_, F>,
        entry: &Entry,
        packets: &[Received],
        run: Range<usize>,
    ) {
        let overlays = context.snapshot.overlays();
        let udp_port = overlays.and_then(|it| it.overlay(entry.overlay).direct_port);
        let (Some(udp_port), Family::V4) = (udp_port, entry.entrance.family) else { return };
        let (overlay, entrance) = (entry.overlay, Ipv4Addr::from(entry.entrance.value as u32));
        for (place, Received { packet, .. }) in run.clone().zip(&packets[run]) {
            let ip = self.columns.rows[place].ip as usize;
            let behind = context.frames.bytes(packet.frame).get(ip..);
            let seen = behind.and_then(<[u8]>::first_chunk::<TENANT_SEEN>);
            let (Some(seen), (from, to)) = (seen, self.overlay.keys(place)) else { continue };
            if to.address.family != Family::V4 {
                continue;
            }
            let tenant = &seen[IPV4_BYTES + BETWEEN + ETHERNET_BYTES..];
            // A common packet has a whole IPv4 header without options, and all that is in front of
            // its payload.
            let port = |at: usize| u16::from_be_bytes([tenant[at], tenant[at + 1]]);
            let [source, destination] =
                [from, to].map(|key| Ipv4Addr::from(key.address.value as u32));
            let ports = match tenant[9] {
                protocol::TCP | protocol::UDP => (port(IPV4_BYTES), port(IPV4_BYTES + 2)),
                _ => (0, 0),
            };
            let flow = DirectFlow { vni: to.vni, source, destination, protocol: tenant[9], ports };
            let host = Ipv4Addr::from(u32::from_be(word(seen, 12)));
            let sender = Sender { overlay, entrance, host };
            context.direct.see(
                flow,
                (sender, udp_port),
                &mut context.counters.direct,
                context.now_ns,
            );
        }
    }

    #[inline(always)]
    fn carry_all<const OUTER: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        entrance: Address,
        packets: &[Received],
        run: Range<usize>,
    ) {
        let ingress = self.gate.ingress;
        let tx_before = context.out.tx.len();
        let (rows, mut first, mut refused) = (&self.columns.rows[run.clone()], run.start, 0u64);
        for alike in rows.chunk_by(|one, other| one.path == other.path) {
            let path = &self.paths.list[alike[0].path.place()];
            let places = first..first + alike.len();
            first = places.end;
            context.out.verdicts[places.clone()].fill(Some(path.verdict));
            let into = context.out.tx.add(path.egress, ingress, alike.len());
            let onward = &self.overlay.onward[places.clone()];
            let (packets, link) = (&packets[places.clone()], &path.link);
            let together = alike.iter().zip(packets).zip(onward).zip(into).enumerate();
            for (at, (((row, Received { packet, .. }), onward), into)) in together {
                let memory = context.frames.bytes_mut(packet.frame);
                let way = (entrance.value, onward);
                let start = match link.is_tagged() {
                    false => write::<ETHERNET_BYTES, OUTER>(memory, row, link, way),
                    true => write::<TAGGED_BYTES, OUTER>(memory, row, link, way),
                };
                let Some(offset) = start else {
                    refused |= 1 << (places.start + at);
                    continue;
                };
                let length = row.ip + row.length - offset;
                *into = Descriptor { frame: packet.frame, offset, length };
            }
        }
        if refused != 0 {
            take_back(context, ingress, packets, (tx_before, refused));
        }
    }
}

/// Drops packets that could not be written. No packet comes here: `look` has seen the room around
/// them.
#[cold]
fn take_back<F: Frames>(
    context: &mut BatchContext<'_, F>,
    ingress: PortId,
    packets: &[Received],
    (tx_before, refused): (usize, u64),
) {
    context.out.tx.take_back(tx_before, |packet| packet.length > 0);
    for place in bits(refused) {
        context.out.verdicts[place] = Some(Verdict::Drop(DropReason::Oversize));
        context.counters.drop(Some(ingress), DropReason::Oversize);
        context.frames.give(packets[place].packet.frame);
    }
}

/// Writes headers of `LINK` and `OUTER` bytes; returns where the packet then begins. `None`: there
/// is no room.
#[inline(always)]
fn write<const LINK: usize, const OUTER: usize>(
    memory: &mut [u8],
    row: &Row,
    link: &LinkTemplate,
    (entrance, onward): (u128, &Onward),
) -> Option<u32> {
    let ethertype = if OUTER == IPV4_BYTES { ethertype::IPV4 } else { ethertype::IPV6 };
    let start = row.ip.checked_sub(LINK as u32)?;
    let changed = memory.get_mut(start as usize..)?.first_chunk_mut::<CHANGED_BYTES>()?;
    let (header, ip) = changed.split_first_chunk_mut::<LINK>()?;
    link.write(header, ethertype);
    if let Some(neighbour) = onward.neighbour {
        header[..6].copy_from_slice(&neighbour.bytes());
    }
    let ip = ip.first_chunk_mut::<CHANGED_IP_BYTES>()?;
    outer::carry::<OUTER, CHANGED_IP_BYTES>(
        ip,
        OUTER + BETWEEN,
        (entrance, onward.host),
        onward.tenant,
    );
    Some(start)
}
