//! The stage between the first question and the second: packets that came to an entrance are
//! opened, judged inside their network, and addressed to the host that has their destination.
//!
//! Of each packet, in this order: its headers; the sender; the destination; the groups of the
//! network. The groups of the fabric's port are not asked, because what is in the packet is for no
//! port. What goes on is an outer packet that we send: the next questions judge it by its own flow.

use std::net::Ipv4Addr;

use policy::{
    Direction, Exit, FlowAction, FlowVerdict, KnownConnections, Question, Scope, TrackedVerdict,
};
use wire::flow::protocol;
use wire::{Address, Family, Flow, Fragment, Frames, LinkAddress, Packet, Upper, Vni};

use super::super::audited::audit;
use super::super::lookup_batch::{Answer, LookupBatch};
use super::super::{Asked, LookupLists, remember, said};
use super::answers;
use super::claims::claimed;
use super::open::{Content, Probes, TenantFrame, open};
use crate::audit::FastTier;
use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, FlowCache, Lane, Lanes, Words};
use crate::direct_flows::{Sender, direct_flow};
use crate::overlays::{Overlay, OverlayId, Overlays, SourceCheck, VirtualNetwork};
use crate::routes::RouteTarget;
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::tenant_samples::TenantSample;
use crate::tracking::{Appearance, Foreseen, Tracker};
use crate::upper_layer::UpperLayer;
use crate::verdict::DropReason;
use crate::verdict_basis::VerdictBasis;
use endpoints::Found;

/// The tenants' packets of a batch; kept so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct Crossing {
    packets: Vec<TenantPacket>,
}

/// A tenant's packet in a row.
#[derive(Clone, Copy)]
struct TenantPacket {
    row: u16,
    frame: TenantFrame,
    packet: Packet,
    probes: Probes,
    /// The endpoint that has its destination.
    to: Option<Found>,
}

/// Sends the overlay packets of a batch on, each as its network says.
pub(crate) fn cross<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lookups: &mut LookupLists,
    mut cache: Option<&mut FlowCache>,
) {
    let Some(overlays) = context.snapshot.overlays() else { return };
    let LookupLists { lanes, batch, crossing } = lookups;
    open_all(context, overlays, rows, crossing);
    if crossing.packets.is_empty() {
        return;
    }
    for TenantPacket { probes, .. } in &crossing.packets {
        overlays.endpoints().prefetch_endpoint(&probes.source);
        overlays.endpoints().prefetch_endpoint(&probes.destination);
    }
    lanes.clear();
    batch.clear();
    for number in 0..crossing.packets.len() {
        let tenant = &mut crossing.packets[number];
        let row = &mut rows[usize::from(tenant.row)];
        if let Err(reason) = tenant.find_way(overlays) {
            context.drop(row, reason);
            continue;
        }
        let flow = tenant.packet.flow;
        let (scope, exit) = question(context.snapshot, &tenant.frame.network, flow.family);
        let is_asked = context.snapshot.tables().asks(scope, exit);
        context.tenants.see(|| tenant.sample(is_asked.then_some(flow)));
        if !is_asked {
            if context.direct.is_on() {
                see_direct(context, overlays, row, tenant);
            }
            send_on(context, row, tenant);
            continue;
        }
        let (network, packet) = (&tenant.frame.network, &tenant.packet);
        let below = (context.snapshot, context.marks);
        if let Some(verdict) = claimed(below, row, (network, packet), (scope, exit)) {
            let about = (row.ingress, &packet.flow);
            audit(context, FastTier::Kernel, about, (scope, exit), &verdict);
            apply(context, row, tenant, &verdict);
            continue;
        }
        let is_served = cache.as_ref().is_some_and(|cache| cache.serves(scope));
        if !(is_served && lanes.push(number, scope, &flow)) {
            batch.enqueue(number, (scope, exit), flow, None);
        }
    }
    if let Some(cache) = &mut cache {
        let Lanes { v4, v6 } = lanes;
        recall(context, (rows, crossing), v4, batch, cache);
        recall(context, (rows, crossing), v6, batch, cache);
    }
    batch.run(context.snapshot, context.counters);
    for Answer { pending, verdict, tracked } in batch.answers() {
        let tenant = &crossing.packets[pending.row()];
        let row = &mut rows[usize::from(tenant.row)];
        let settled = settle(context, row, tenant, (verdict, tracked));
        if let (Some(cache), Some(entry)) = (&mut cache, pending.entry()) {
            let said = said(verdict, tracked, &settled);
            remember(lanes, entry, (said, CachedRoute::Other), cache, context);
        }
        apply(context, row, tenant, &settled);
    }
}

/// Notes a packet's flow, if its host is to be told a direct path.
#[cold]
fn see_direct<F: Frames>(
    context: &mut BatchContext<'_, F>,
    overlays: &Overlays,
    row: &Row,
    tenant: &TenantPacket,
) {
    let Flow { family, source, destination, .. } = row.packet.flow;
    let (network, outer) = (tenant.frame.network, [source, destination]);
    let udp_port = overlays.overlay(network.overlay).direct_port;
    let (Some(udp_port), Family::V4, Origin::Received) = (udp_port, family, row.origin) else {
        return;
    };
    let flow = direct_flow(network.vni, &tenant.packet.flow);
    let [host, entrance] = outer.map(|address| Ipv4Addr::from(address as u32));
    let sender = Sender { overlay: network.overlay, entrance, host };
    let is_whole = tenant.packet.fragment == Fragment::Whole;
    if let Some(flow) = flow.filter(|_| is_whole && context.snapshot.tells_direct_paths(&network)) {
        context.direct.see(flow, (sender, udp_port), &mut context.counters.direct, context.now_ns);
    }
}

/// Opens the overlay packets of a batch. What asks for a link address is answered at once.
fn open_all<F: Frames>(
    context: &mut BatchContext<'_, F>,
    overlays: &Overlays,
    rows: &mut [Row],
    crossing: &mut Crossing,
) {
    crossing.packets.clear();
    for (number, row) in rows.iter_mut().enumerate() {
        let entered = match overlays.entered(context.snapshot, row) {
            Entered::None => continue,
            Entered::Astray => {
                context.drop(row, DropReason::EntranceIp);
                continue;
            }
            Entered::By(id, overlay) => (id, overlay),
        };
        match open(overlays, entered, &row.packet, row.bytes(context.frames)) {
            Ok((frame, Content::Packet(packet))) => {
                let packet = followed(packet, row);
                let (row, probes) = (number as u16, frame.probes(overlays, &packet));
                crossing.packets.push(TenantPacket { row, frame, packet, probes, to: None });
            }
            Ok((frame, question)) => answers::answer(context, overlays, row, &frame, question),
            Err(reason) => context.drop(row, reason),
        }
    }
}

/// A tenant's packet, with the upper layer of its datagram's first fragment if the row has it.
#[inline]
fn followed(packet: Packet, row: &Row) -> Packet {
    let Some(UpperLayer { protocol, upper, opens, .. }) = row.tenant else { return packet };
    Packet { flow: Flow { protocol, upper, opens, ..packet.flow }, ..packet }
}

/// Returns the fragment of a tenant's datagram that a row carries, its offset in `bytes`, the row's
/// packet, and its network. `None`: the row carries no fragment, its network has no groups, or its
/// sender or destination makes it a drop.
#[cold]
pub(crate) fn tenants_fragment(
    snapshot: &Snapshot,
    row: &Row,
    bytes: &[u8],
) -> Option<(Vni, usize, Packet)> {
    let overlays = snapshot.overlays()?;
    let Entered::By(id, overlay) = overlays.entered(snapshot, row) else { return None };
    let opened = open(overlays, (id, overlay), &row.packet, bytes);
    let Ok((frame, Content::Packet(packet))) = opened else { return None };
    let is_asked = packet.fragment != Fragment::Whole
        && asks_inside(snapshot, &frame.network, packet.flow.family);
    let probes = is_asked.then(|| frame.probes(overlays, &packet))?;
    TenantPacket { row: 0, frame, packet, probes, to: None }.find_way(overlays).ok()?;
    Some((frame.network.vni, frame.at as usize + frame.link.length, packet))
}

/// The overlay that a packet enters.
enum Entered<'o> {
    /// None: it is another packet.
    None,
    /// This one: it is to an entrance on the overlay's UDP port, and came by the overlay's port, or
    /// an SA opened it.
    By(OverlayId, &'o Overlay),
    /// It came by the port of an overlay, to its UDP port at another address of ours.
    Astray,
}

impl Overlays {
    #[inline]
    fn entered(&self, snapshot: &Snapshot, row: &Row) -> Entered<'_> {
        let Upper::Ports { destination: port, .. } = row.packet.flow.upper else {
            return Entered::None;
        };
        if row.state != State::Clear || !self.has_udp_port(port) {
            return Entered::None;
        }
        self.entered_at(snapshot, row, port)
    }

    /// Tells what a packet to the UDP port of an overlay enters.
    fn entered_at(&self, snapshot: &Snapshot, row: &Row, port: u16) -> Entered<'_> {
        let is_opened = match row.origin {
            Origin::Received => false,
            Origin::Opened(_) => true,
            Origin::Host | Origin::Made(_) | Origin::Sealed(_) | Origin::Carried(_) => {
                return Entered::None;
            }
        };
        let entrance = row.packet.flow.destination_address();
        match self.of_entrance(port, entrance) {
            _ if row.packet.flow.protocol != protocol::UDP => Entered::None,
            Some((id, overlay)) if is_opened || overlay.port == row.ingress => {
                Entered::By(id, overlay)
            }
            Some(_) => Entered::None,
            None => {
                let is_ours = || snapshot.routes().lookup(entrance) == Some(RouteTarget::Local);
                let is_here = self.is_on(port, row.ingress);
                if !is_opened && is_here && is_ours() { Entered::Astray } else { Entered::None }
            }
        }
    }
}

impl TenantPacket {
    fn sample(&self, judged: Option<Flow>) -> TenantSample {
        TenantSample {
            vni: self.frame.network.vni,
            source: self.packet.flow.source_address(),
            destination: self.packet.flow.destination_address(),
            judged,
        }
    }

    /// Checks the sender, and finds the endpoint of the destination.
    fn find_way(&mut self, overlays: &Overlays) -> Result<(), DropReason> {
        let TenantPacket { frame, probes, .. } = self;
        let found = |probe| overlays.endpoints().find_probed(probe);
        let source = match frame.network.source_check {
            SourceCheck::Endpoint => found(&probes.source),
            SourceCheck::Host | SourceCheck::None => None,
        };
        frame.check_sender(overlays, Some(source))?;
        self.to = Some(found(&probes.destination).ok_or(DropReason::NoEndpoint)?);
        Ok(())
    }
}

/// The question that is asked about packets between endpoints of a network.
pub(crate) fn question(
    snapshot: &Snapshot,
    network: &VirtualNetwork,
    family: Family,
) -> (Scope, Exit) {
    let class = snapshot.gate_of_network(network).class;
    let tables = snapshot.tables();
    let scope = tables.scope(class, Question::Through, family, None);
    (scope, Exit::Inside(class))
}

/// Returns the verdict on a packet of a flow that is of these connections.
pub(crate) fn judge_inside(
    snapshot: &Snapshot,
    network: &VirtualNetwork,
    flow: &Flow,
    known: KnownConnections,
) -> FlowVerdict {
    let (scope, exit) = question(snapshot, network, flow.family);
    let (verdict, tracked) = Asked::of(scope, exit, flow).classify(snapshot.tables());
    tracked.map_or(verdict, |tracked| tracked.with(known))
}

/// Returns whether a network has groups that judge its packets of a family.
pub(crate) fn asks_inside(snapshot: &Snapshot, network: &VirtualNetwork, family: Family) -> bool {
    let (scope, exit) = question(snapshot, network, family);
    snapshot.tables().asks(scope, exit)
}

/// Answers for the packets of a lane; those that are not remembered go to the batch of lookups.
fn recall<F: Frames, const WORDS: usize>(
    context: &mut BatchContext<'_, F>,
    (rows, crossing): (&mut [Row], &Crossing),
    lane: &mut Lane<WORDS>,
    batch: &mut LookupBatch,
    cache: &mut FlowCache,
) where
    Flow: Words<WORDS>,
{
    cache.look_up(lane);
    batch.begin_lane();
    let mut misses = 0;
    for at in 0..lane.len() {
        let tenant = &crossing.packets[lane.row(at)];
        let row = &mut rows[usize::from(tenant.row)];
        let (scope, exit) =
            question(context.snapshot, &tenant.frame.network, tenant.packet.flow.family);
        let egress = context.snapshot.tables().egress_class(scope, exit);
        let found = cache.found(lane, at).map(|(verdict, _)| *verdict);
        match found.filter(|verdict| verdict.egress.admits(egress)) {
            Some(verdict) => {
                let tracked = cache.found_tracked(lane, at).copied();
                if tracked.is_none() {
                    let about = (row.ingress, &tenant.packet.flow);
                    audit(context, FastTier::Cache, about, (scope, exit), &verdict);
                }
                let settled = settle(context, row, tenant, (&verdict, tracked.as_ref()));
                apply(context, row, tenant, &settled);
            }
            None => {
                let asked = (tenant.packet.flow, exit);
                misses += usize::from(batch.enqueue_unique(lane, at, asked, None));
            }
        }
    }
    context.counters.cache.count(lane.len(), misses);
}

/// Settles the verdict on a tenant's packet: where connections are tracked it is of one, or begins
/// one.
fn settle<F: Frames>(
    context: &BatchContext<'_, F>,
    row: &Row,
    tenant: &TenantPacket,
    (verdict, tracked): (&FlowVerdict, Option<&TrackedVerdict>),
) -> FlowVerdict {
    let Some(tracked) = tracked else { return *verdict };
    let bytes = tenant.bytes(row.bytes(context.frames));
    let appearance = Appearance::of_packet(&tenant.packet, echo_of(row), bytes);
    let gate = context.snapshot.gate_of_network(&tenant.frame.network);
    let tracker = Tracker::new(context.snapshot, context.now_ns);
    tracker.settle(tracked, appearance.as_ref(), (gate, Some(gate)))
}

/// The identifier of an ICMP echo that the first fragment of a tenant's datagram shows.
fn echo_of(row: &Row) -> Option<u16> {
    row.tenant.and_then(|tenant| tenant.echo)
}

impl TenantPacket {
    /// The tenant's IP packet; `outer` is the packet that it is in.
    fn bytes<'b>(&self, outer: &'b [u8]) -> &'b [u8] {
        let start = self.frame.at as usize + self.frame.link.length;
        outer.get(start..).unwrap_or_default()
    }
}

fn apply<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    tenant: &TenantPacket,
    verdict: &FlowVerdict,
) {
    for slot in verdict.deciders.slots() {
        context.counters.policy(Direction::Outbound, slot, tenant.packet.length as usize);
    }
    match verdict.action {
        FlowAction::Permit => send_on(context, row, tenant),
        FlowAction::Refuse(refusal) => context.drop(row, refusal.into()),
        // No policy of the SPD is asked inside a network.
        FlowAction::Protect(_) => context.drop(row, DropReason::PolicyDiscard),
    }
}

/// Addresses a tenant's packet to the host that has its destination. From here on the row is the
/// outer packet that we send there.
fn send_on<F: Frames>(context: &mut BatchContext<'_, F>, row: &mut Row, tenant: &TenantPacket) {
    match readdressed(context, row, tenant) {
        Ok(()) => row.origin = Origin::Carried(tenant.to.and_then(|to| to.host_mac)),
        Err(reason) => context.drop(row, reason),
    }
}

fn readdressed<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    tenant: &TenantPacket,
) -> Result<(), DropReason> {
    let Some(to) = tenant.to else { return Err(DropReason::NoEndpoint) };
    // The hosts of two gateways that believe each other would send it round for ever.
    if row.packet.hop_limit <= 1 {
        return Err(DropReason::HopLimit);
    }
    let overlays = context.snapshot.overlays().ok_or(DropReason::NoEndpoint)?;
    let flow = &mut row.packet.flow;
    if to.host.family != flow.family {
        let overlay = overlays.overlay(tenant.frame.overlay);
        return answers::wrap_anew(context, row, overlay, &tenant.frame, to);
    }
    (flow.source, flow.destination) = (flow.destination, to.host.value);
    row.packet.hop_limit -= 1;
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let header = usize::from(row.packet.upper_offset);
    let bytes = row.bytes_mut(context.frames);
    wire::outer::set_tenant_destination(bytes, header, tenant.frame.at as usize, to.mac);
    wire::outer::forward(bytes, header, (source, destination));
    Ok(())
}

impl TenantPacket {
    /// Asks the groups of the network, as [`cross`] does. Changes no connection.
    ///
    /// # Errors
    /// The reason of a refusal.
    fn ask_groups(
        &self,
        (snapshot, now_ns): (&Snapshot, u64),
        row: &Row,
        bytes: &[u8],
        mut told: impl FnMut(&Asked<'_>, &Foreseen),
    ) -> Result<(), DropReason> {
        let TenantPacket { frame, packet, .. } = self;
        let (scope, exit) = question(snapshot, &frame.network, packet.flow.family);
        if !snapshot.tables().asks(scope, exit) {
            return Ok(());
        }
        let asked = Asked::of(scope, exit, &packet.flow);
        let gate = snapshot.gate_of_network(&frame.network);
        let appearance = || Appearance::of_packet(packet, echo_of(row), self.bytes(bytes));
        let foreseen = asked.foresee((snapshot, now_ns), appearance, (gate, Some(gate)), None);
        told(&asked, &foreseen);
        match foreseen.verdict.action {
            FlowAction::Refuse(refusal) => Err(refusal.into()),
            FlowAction::Permit | FlowAction::Protect(_) => Ok(()),
        }
    }
}

/// Judges a tenant's packet again after a wait: the endpoints must be where the packet goes, and
/// after a change of the verdict's basis the groups of the network must permit the packet. `row`
/// is the overlay packet to the next host, `bytes` the content. The packet no longer shows the host
/// of the sender.
///
/// # Errors
/// The reason to drop the packet.
pub(crate) fn cross_again(
    now: (&Snapshot, u64),
    row: &Row,
    bytes: &[u8],
    basis: VerdictBasis,
) -> Result<(), DropReason> {
    let (snapshot, is_current) = (now.0, basis == VerdictBasis::of(now.0));
    let overlays = snapshot.overlays().ok_or(DropReason::NoEndpoint)?;
    let Some((_, frame, packet)) = answers::carried(overlays, row, bytes) else {
        // An answer about a link address, or a packet of a removed network.
        return if is_current { Ok(()) } else { Err(DropReason::NoEndpoint) };
    };
    let packet = followed(packet, row);
    let to = frame.find(overlays, packet.flow.destination_address());
    let host = row.packet.flow.destination_address();
    let to = to.filter(|to| to.host == host).ok_or(DropReason::NoEndpoint)?;
    if frame.network.source_check == SourceCheck::Endpoint {
        let from = frame.find(overlays, packet.flow.source_address());
        let mac = LinkAddress::new(frame.link.source);
        from.filter(|from| from.mac == mac).ok_or(DropReason::OverlaySource)?;
    }
    if is_current {
        return Ok(());
    }
    let probes = frame.probes(overlays, &packet);
    let tenant = TenantPacket { row: 0, frame, packet, probes, to: Some(to) };
    tenant.ask_groups(now, row, bytes, |_, _| {})
}

/// The twin of [`cross`] for one packet that is looked at and not sent: without cache and counters.
/// `told` hears the question and what follows from the answer. Returns the flow of the outer packet
/// that goes on, and the link address that it has; `None`: the packet enters no network.
///
/// # Errors
/// The reason why it is dropped.
pub(crate) fn cross_one(
    (snapshot, now_ns): (&Snapshot, u64),
    row: &Row,
    bytes: &[u8],
    mut told: impl FnMut(&Asked<'_>, &Foreseen),
) -> Result<Option<(Flow, Option<LinkAddress>)>, DropReason> {
    let Some(overlays) = snapshot.overlays() else { return Ok(None) };
    let entered = match overlays.entered(snapshot, row) {
        Entered::None => return Ok(None),
        Entered::Astray => return Err(DropReason::EntranceIp),
        Entered::By(id, overlay) => (id, overlay),
    };
    let overlay = entered.1;
    let (frame, content) = open(overlays, entered, &row.packet, bytes)?;
    let Content::Packet(packet) = content else {
        answers::resolve(overlays, &frame, content, bytes)?;
        // The answer goes back to where the question came from.
        let Flow { source, destination, .. } = row.packet.flow;
        let back = Flow { source: destination, destination: source, ..row.packet.flow };
        return Ok(Some((back, None)));
    };
    let packet = followed(packet, row);
    let probes = frame.probes(overlays, &packet);
    let mut tenant = TenantPacket { row: 0, frame, packet, probes, to: None };
    tenant.find_way(overlays)?;
    tenant.ask_groups((snapshot, now_ns), row, bytes, &mut told)?;
    let Found { host, host_mac, .. } = tenant.to.ok_or(DropReason::NoEndpoint)?;
    let source = match host.family == row.packet.flow.family {
        true => row.packet.flow.destination_address(),
        false => overlay.entrance(host.family).ok_or(DropReason::NoRoute)?,
    };
    let Address { family, value } = host;
    let flow = Flow { family, source: source.value, destination: value, ..row.packet.flow };
    Ok(Some((flow, host_mac)))
}
