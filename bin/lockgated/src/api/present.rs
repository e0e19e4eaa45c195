//! Puts what runs into the words of the API.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use api::{Message, v1};
use config::validated::{self, Peer, PeerPlace};
use config::{Diagnostic, Difference, KeyChange, KeyName, Severity, service_text};
use control::{Explained, IKE_NAMES, Takeover, Takeovers};
use dataplane::counters::Volume;
use dataplane::explain::Inside;
use dataplane::{NextHop, PortId, Prefix, RouteTarget, SaSet, Side, Snapshot, WorkerShare};
use ipsec::{Encapsulation, InboundSa, OutboundSa, SequenceNumbers, Suite, Tunnel};
use policy::selector::protocol_text;
use policy::{Action, Direction, Policy, PolicyIndex, PortRange, SaSetId};
use wire::{Address, Flow, Upper, Vni};

use super::pages::{PAGE_BYTES, PageEntry};
use crate::backend::{
    ChangeError, ChangeReport, EntryIter, ExportedText, Intent, Now, Running, WaitingChange,
};
use crate::clock;
use crate::freeing::FreedAside;
use crate::liveness::PeerLiveness;
use crate::running::{CountedState, PeerFacts};
use crate::shown::{in_front, short};

/// Presents the sums of counters by action, from one place of [`Action::NAMES`] to another.
pub(super) fn action_volumes(
    running: &Running,
    places: std::ops::Range<usize>,
) -> Vec<v1::ActionVolume> {
    let sums = Action::NAMES.into_iter().zip(&running.actions);
    let one = |(name, [outbound, inbound]): (&str, &[Volume; 2])| v1::ActionVolume {
        action: name.into(),
        outbound: Some(volume(*outbound)),
        inbound: Some(volume(*inbound)),
    };
    sums.skip(places.start).take(places.len()).map(one).collect()
}

/// Slots of the policies in order of precedence.
pub(super) type PolicyOrder = Arc<[PolicyIndex]>;

/// Returns the order of a snapshot's policies. Cost: they are sorted.
pub(super) fn policy_order(snapshot: &Snapshot) -> PolicyOrder {
    snapshot.spd().policies().into_iter().map(|(index, _)| index).collect()
}

/// Presents the policies in an order, with their counters.
pub(super) fn policies(state: Arc<CountedState>, order: PolicyOrder) -> EntryIter<v1::Policy> {
    let count = order.len();
    Box::new((0..count).map(move |place| policy(&state.running, order[place])))
}

fn policy(running: &Running, index: PolicyIndex) -> v1::Policy {
    let snapshot = &*running.snapshot;
    let policy = snapshot.spd().policy(index);
    let [outbound, inbound] =
        running.policies.get(policy.name.as_str()).copied().unwrap_or_default();
    let peer = |set: SaSetId| {
        let set = snapshot.sad().places().get(set).map(|place| snapshot.set(place));
        set.map(|set| set.peer.clone())
    };
    let (action, peer) = match policy.action {
        Action::Protect(set) => ("PROTECT", peer(set)),
        Action::Bypass => ("BYPASS", None),
        Action::Discard => ("DISCARD", None),
        Action::Permit(_) => ("PERMIT", None),
        Action::Reflect(_) => ("REFLECT", None),
        Action::Deny(_) | Action::NoRule(_) => ("DENY", None),
    };
    let direction = match policy.only {
        None => "both",
        Some(Direction::Inbound) => "inbound",
        Some(Direction::Outbound) => "outbound",
    };
    let selector = &policy.selector;
    let texts =
        |ports: &[PortRange]| -> Vec<String> { ports.iter().map(PortRange::to_string).collect() };
    let [local_ports, remote_ports] = selector.upper.ports().unwrap_or_default().map(texts);
    let icmp = selector.upper.messages().iter().map(ToString::to_string).collect();
    v1::Policy {
        id: policy.id.0,
        name: policy.name.clone(),
        action: action.into(),
        peer,
        priority: policy.priority,
        direction: direction.into(),
        local: validated::addresses(&selector.local),
        remote: validated::addresses(&selector.remote),
        protocol: protocol_text(selector.protocol),
        local_ports,
        remote_ports,
        icmp,
        outbound: Some(volume(outbound)),
        inbound: Some(volume(inbound)),
        ports: ingress(snapshot, policy),
    }
}

/// Names of the ports that a policy speaks of; none: of any.
fn ingress(snapshot: &Snapshot, policy: &Policy) -> Vec<String> {
    let places = policy.ingress.iter().flat_map(|ports| ports.iter());
    places.map(|place| snapshot.port(PortId(*place)).name.clone()).collect()
}

/// Returns what unprotected ports let through to this machine: `allow_host`, and what always
/// passes.
pub(super) fn host_bypasses(running: &Running) -> Vec<v1::HostBypass> {
    let ports = running.snapshot.ports().map(|(_, port)| port);
    let unprotected = ports.filter(|port| port.side == Side::Unprotected);
    let entries = unprotected.flat_map(|port| {
        let always = ["arp".to_owned(), "nd".to_owned()];
        let services = always.into_iter().chain(port.allow_host.iter().map(service_text));
        services.map(|service| v1::HostBypass { port: port.name.clone(), service })
    });
    entries.collect()
}

/// Returns the pieces of a configuration.
pub(super) fn exported(exported: ExportedText) -> EntryIter<v1::Exported> {
    let ExportedText { text, revision, base_directory } = exported;
    let text = FreedAside::new(text);
    let mut first = Some(v1::Exported { toml: String::new(), revision, base_directory });
    let mut at = 0;
    Box::new(std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty() || first.is_some())?;
        let end = (0..=rest.len().min(PAGE_BYTES)).rev().find(|end| rest.is_char_boundary(*end))?;
        let piece = &rest[..end];
        at += piece.len();
        Some(v1::Exported { toml: piece.into(), ..first.take().unwrap_or_default() })
    }))
}

/// An entry of `show placement`.
pub(super) enum Placed {
    /// A rule of a group.
    Rule(v1::PlacedRule),
    /// A policy.
    Policy(v1::PlacedPolicy),
}

impl PageEntry for Placed {
    fn bytes(&self) -> usize {
        match self {
            Placed::Rule(rule) => rule.encoded_len(),
            Placed::Policy(policy) => policy.encoded_len(),
        }
    }
}

/// A page of `show placement`.
pub(super) fn placement(cards: Vec<v1::Card>, placed: Vec<Placed>) -> v1::Placement {
    let mut page = v1::Placement { cards, ..v1::Placement::default() };
    for entry in placed {
        match entry {
            Placed::Rule(rule) => page.rules.push(rule),
            Placed::Policy(policy) => page.policies.push(policy),
        }
    }
    page
}

/// Returns the peers with the state of their SAs. Cost: [`CountedState::peer_facts`].
pub(crate) fn peers(state: Arc<CountedState>) -> EntryIter<v1::Peer> {
    let now_ns = clock::now_ns();
    let count = state.peer_facts().len();
    let present = move |place: usize| {
        let (running, facts) = (&state.running, state.peer_facts()[place]);
        let configured = &running.settings.peers;
        let of = configured.get(place).unwrap_or_else(|| {
            // A peer of charon's own.
            &running.ike_peers[place - configured.len()]
        });
        peer(running, of, facts, now_ns)
    };
    Box::new((0..count).map(present))
}

fn peer(running: &Running, peer: &Peer, facts: PeerFacts, now_ns: u64) -> v1::Peer {
    let snapshot = &*running.snapshot;
    let PeerFacts { set: place, policies, volumes: [sealed, opened] } = facts;
    let set = place.map(|place| snapshot.set(place));
    let openers = place.map_or(&[][..], |place| snapshot.sad().openers_of(place));
    let opening = openers.iter().min().map(|sa| snapshot.inbound_sa(*sa));
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let Encapsulation { mode, tunnel, udp, .. } = peer.encapsulation;
    let (now_between, port) = current_ends(snapshot, (set, opening), peer);
    let route = route_to(snapshot, now_between.remote);
    let PeerLiveness { last_received, silent_since, sent_since } = (running.liveness)(&peer.name);
    let sizes = place.map(|place| snapshot.set_sizes(place, now_ns));
    let learned = set.and_then(|set| set.path_mtu.as_ref()?.learned(now_ns));
    let learned = learned.filter(|learned| sizes.is_some_and(|of| of.outer == learned.mtu));
    let state = peer_state(snapshot, set, route.is_some());
    v1::Peer {
        name: peer.name.clone(),
        local: tunnel.local.to_string(),
        remote: tunnel.remote.to_string(),
        suite: suite_of(snapshot, set, peer).to_string(),
        keys: peer.keys.to_string(),
        state: if state == READY && silent_since.is_some() { "silent" } else { state }.into(),
        route: route.unwrap_or_default(),
        inner_mtu: sizes.map_or(0, |sizes| sizes.whole),
        outbound_sas: set.map_or(0, |set| count(set.outbound.len())),
        inbound_sas: count(openers.len()),
        sealed: Some(volume(sealed)),
        opened: Some(volume(opened)),
        policies,
        mode: mode.name().into(),
        encapsulation: in_front(&peer.encapsulation).into(),
        remote_port: udp.map(|ports| ports.remote.into()),
        current_remote: now_between.remote.to_string(),
        current_remote_port: port.map(u32::from),
        current_local: now_between.local.to_string(),
        moves_to: validated::addresses(&peer.moves.remote),
        local_moves_to: validated::addresses(&peer.moves.local),
        behind_nat: peer.place == PeerPlace::BehindNat,
        moves: running.moves.get(&peer.name).copied().unwrap_or(0),
        nat_keepalive_s: peer.nat_keepalive_s,
        extended_sequence_numbers: peer.numbers == SequenceNumbers::Extended,
        last_received: last_received.map(wall_clock),
        last_received_age_ms: last_received.map(|time| time.elapsed().as_millis() as u64),
        silent: silent_since.is_some(),
        silent_since: silent_since.map(wall_clock),
        sent_since,
        path_mtu: sizes.map_or(0, |sizes| sizes.outer),
        path_mtu_age_ms: learned.map(|learned| learned.age_ms),
        pmtu: peer.pmtu.name().into(),
        fragment_outer: sizes.is_some_and(|sizes| sizes.fragments),
        outer: peer.outer.clone(),
        ike: set.and_then(|set| ike_child(running, set, peer)),
    }
}

/// Returns the child of charon's whose SA seals for the first worker of a peer.
fn ike_child(running: &Running, set: &SaSet, peer: &Peer) -> Option<v1::IkeChild> {
    let sa = running.snapshot.outbound_sa(running.snapshot.sealing_sa(set, WorkerShare::ALL)?);
    let key = (Direction::Outbound, sa.spi, peer.name.clone());
    running.ike_names.shown(&key, sa.allowance.as_ref(), crate::sa_limits::boot_clock_ns())
}

/// Returns the suite of a peer's section; of a peer of charon's own that of its newest SA.
fn suite_of(snapshot: &Snapshot, set: Option<&SaSet>, peer: &Peer) -> Suite {
    let newest = set.and_then(|set| set.outbound.last());
    let newest = newest.filter(|_| peer.name.starts_with(IKE_NAMES));
    newest.map_or(peer.suite, |sa| snapshot.outbound_sa(*sa).suite)
}

/// Returns the current ends of a peer's SAs and, with ESP in UDP, the peer's port.
fn current_ends(
    snapshot: &Snapshot,
    (set, opening): (Option<&SaSet>, Option<&InboundSa>),
    peer: &Peer,
) -> (Tunnel, Option<u16>) {
    let sealing = set.and_then(|set| set.outbound.last());
    let sealing = sealing.map(|sa| snapshot.outbound_sa(*sa).encapsulation);
    let opening = opening.map(|sa| sa.encapsulation);
    let Encapsulation { udp, .. } = sealing.or(opening).unwrap_or(peer.encapsulation);
    (set.map_or(peer.tunnel(), |set| set.tunnel), udp.map(|ports| ports.remote))
}

/// A moment as RFC 3339, to a second.
fn wall_clock(moment: Instant) -> String {
    let time = SystemTime::now().checked_sub(moment.elapsed());
    humantime::format_rfc3339_seconds(time.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}

/// The state of a peer that packets can be sent to.
const READY: &str = "ready";

/// Returns [`READY`] if a peer can be sent to, else the reason why not.
fn peer_state(snapshot: &Snapshot, set: Option<&SaSet>, routed: bool) -> &'static str {
    let outbound = set.map_or(&[][..], |set| &set.outbound).iter();
    cannot_seal(outbound.map(|sa| snapshot.outbound_sa(*sa))).unwrap_or(match routed {
        true => READY,
        false => "no route to it",
    })
}

/// Returns the reason why none of these SAs of a peer seals; `None`: one does. One in a card that
/// writes whole packets has its numbers there, and ends at a limit like any other.
fn cannot_seal<'s>(outbound: impl Iterator<Item = &'s OutboundSa> + Clone) -> Option<&'static str> {
    let exhausted = |sa: &OutboundSa| sa.packet_card().is_none() && sa.sequence.is_exhausted();
    let ended = |sa: &OutboundSa| !sa.lasts();
    match () {
        () if outbound.clone().next().is_none() => {
            Some("no SA that can send: see `lockgate show sa`")
        }
        () if outbound.clone().all(exhausted) => {
            Some("all sequence numbers used: give it new keys")
        }
        () if outbound.clone().all(ended) => Some("all SAs at a hard limit: give it new keys"),
        () => None,
    }
}

/// The way to an address outside, if there is one.
fn route_to(snapshot: &Snapshot, address: IpAddr) -> Option<String> {
    let Some(RouteTarget::Via(hop)) = snapshot.routes().lookup(address.into()) else { return None };
    let hop = snapshot.next_hop(hop);
    let port = &snapshot.port(hop.port).name;
    Some(match hop.gateway {
        Some(gateway) => format!("via {gateway} by port {port}"),
        None => format!("on the link of port {port}"),
    })
}

/// The routes that the walk knows, as they were given.
pub(super) fn routes(running: &Running) -> Vec<v1::Route> {
    let snapshot = &*running.snapshot;
    let one = |(prefix, target): (&Prefix, &RouteTarget<NextHop>)| {
        let (kind, via, port) = match target {
            RouteTarget::Local => ("local", None, None),
            RouteTarget::Broadcast => ("broadcast", None, None),
            RouteTarget::Blackhole => ("blackhole", None, None),
            RouteTarget::Elsewhere => ("elsewhere", None, None),
            RouteTarget::Via(hop) => {
                let kind = if hop.gateway.is_some() { "via" } else { "link" };
                (kind, hop.gateway, Some(snapshot.port(hop.port).name.clone()))
            }
        };
        v1::Route {
            to: format!("{}/{}", prefix.address, prefix.length),
            kind: kind.into(),
            via: via.map_or(String::new(), |gateway| gateway.to_string()),
            port: port.unwrap_or_default(),
        }
    };
    running.routes.iter().map(one).collect()
}

/// Reads the flow of a request; `None` if it describes none.
pub(super) fn flow(request: &v1::ExplainRequest) -> Option<Flow> {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(Address::from);
    let (source, destination) = (address(&request.source)?, address(&request.destination)?);
    let upper = match (request.later_fragment, request.ports, request.icmp) {
        (true, None, None) => Upper::Fragment,
        (false, Some(ports), None) => Upper::Ports {
            source: ports.source.try_into().ok()?,
            destination: ports.destination.try_into().ok()?,
        },
        (false, None, Some(icmp)) => {
            Upper::Icmp { kind: icmp.r#type.try_into().ok()?, code: icmp.code.try_into().ok()? }
        }
        (false, None, None) => Upper::None,
        _ => return None,
    };
    let is_tcp =
        request.ports.is_some() && request.protocol == u32::from(wire::flow::protocol::TCP);
    let opens = match (is_tcp, request.tcp.as_deref()) {
        (true, None | Some("new")) => true,
        (true, Some("established")) | (false, None) => false,
        _ => return None,
    };
    (source.family == destination.family).then_some(Flow {
        family: source.family,
        source: source.value,
        destination: destination.value,
        protocol: request.protocol.try_into().ok()?,
        upper,
        opens,
    })
}

/// Reads the virtual network of a request.
///
/// # Errors
/// It names one that cannot be, or a host that is no address or comes without a network.
pub(super) fn inside(request: &v1::ExplainRequest) -> Result<Option<Inside>, &'static str> {
    let host = request.host.as_deref().map(str::parse::<IpAddr>).transpose();
    let host = host.map_err(|_| "a host is an IP address")?.map(Address::from);
    match (request.vni, host) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err("a host sends in a virtual network: name its VNI"),
        (Some(number), host) => {
            let vni = Vni::new(number).ok_or("a VNI has 24 bits: 0 to 16777215")?;
            Ok(Some(Inside { vni, host }))
        }
    }
}

/// An explanation.
pub(super) fn explanation(told: Explained) -> v1::Explanation {
    let consultation = |asked: control::PolicyLookup| v1::Consultation {
        direction: asked.direction.into(),
        decided_by: asked.decided_by,
        fragment_lacks_ports: asked.fragment_lacks_ports,
        beat: asked.beat,
        generation: asked.generation,
        tier: asked.tier.into(),
        tier_reason: asked.tier_reason,
    };
    let ends = |ends: control::TunnelEnds| v1::TunnelEnds {
        local: ends.local.to_string(),
        remote: ends.remote.to_string(),
    };
    let tunnel = told.tunnel.map(ends);
    let inside = told.inside.map(|inside| v1::ExplainedInside {
        vni: inside.vni,
        overlay: inside.overlay,
        host: inside.host.to_string(),
        source_host: inside.source_host.map(|host| host.to_string()),
        destination_host: inside.destination_host.map(|host| host.to_string()),
        outer: inside.outer.map(ends),
        kernel_tier: inside.kernel_tier,
    });
    let lines = told.lines.into_iter();
    let place = |of: control::RulePlace| v1::ExplainedPlacement { rule: of.rule, place: of.place };
    v1::Explanation {
        flow: told.flow,
        verdict: told.verdict.into(),
        reason: told.reason.map(Into::into),
        help: told.help.map(Into::into),
        text: told.text,
        policies: told.policies.into_iter().map(consultation).collect(),
        connections: told.connections,
        let_through: told.let_through,
        route: told.route,
        egress: told.egress,
        peer: told.peer,
        tunnel,
        spi: told.spi,
        outer: told.outer,
        child: told.child,
        mtu: told.mtu,
        inside,
        generation: told.generation,
        notes: told.notes,
        placement: told.placement.into_iter().map(place).collect(),
        lines: lines.map(|(heading, text)| v1::Line { heading: heading.into(), text }).collect(),
    }
}

/// Names the child of charon's whose SA seals the packet, if charon has told it.
pub(super) fn name_child(told: &mut Explained, running: &Running) {
    let (Some(peer), Some(spi)) = (&told.peer, &told.spi) else { return };
    let digits = spi.trim_start_matches("0x");
    let spi = u32::from_str_radix(digits, 16).ok().and_then(ipsec::Spi::new);
    let key = spi.map(|spi| (Direction::Outbound, spi, peer.clone()));
    let child = key.and_then(|key| running.ike_names.shown(&key, None, 0));
    let Some(child) = child.filter(|child| !child.child.is_empty()) else { return };
    let text = format!("{} of connection {}", child.child, child.connection);
    let behind_sa = told.lines.iter().position(|(heading, _)| *heading == "SA");
    let place = behind_sa.map_or(told.lines.len(), |place| place + 1);
    told.lines.insert(place, ("child", format!("{text}, reqid {}", child.reqid)));
    told.child = Some(text);
}

fn key_change(found: KeyChange) -> v1::KeyChange {
    let name = |name: &KeyName| v1::KeyName {
        direction: name.direction.into(),
        spi: name.spi.to_string(),
        fingerprint: short(&name.fingerprint),
    };
    let KeyChange { peer, removed, added } = found;
    v1::KeyChange {
        peer,
        removed: removed.iter().map(name).collect(),
        added: added.iter().map(name).collect(),
    }
}

/// A change that waits to be confirmed.
pub(crate) fn waiting(waits: WaitingChange) -> v1::Waiting {
    let WaitingChange { revision, previous, left } = waits;
    v1::Waiting { revision, previous, left_ms: left.as_millis() as u64 }
}

/// Returns the answer to a change; `now`: the revision and generation that run.
pub(super) fn applied(
    result: Result<ChangeReport, ChangeError>,
    intent: Intent,
    now: Now,
    took_us: u64,
) -> v1::Applied {
    let refusal = v1::Applied {
        ok: false,
        revision: now.revision,
        generation: now.generation.0,
        dry_run: intent == Intent::DryRun,
        took_us,
        ..v1::Applied::default()
    };
    match result {
        Ok(done) => v1::Applied {
            ok: true,
            revision: done.revision,
            generation: done.generation.0,
            differences: done.differences.into_iter().map(difference).collect(),
            problems: done.warnings.iter().map(problem).collect(),
            rendered: config::render(&done.warnings),
            notes: done.notes,
            key_changes: done.key_changes.into_iter().map(key_change).collect(),
            unchanged: done.unchanged,
            waiting: done.waits.map(waiting),
            saved_to: done.saved_to.unwrap_or_default(),
            not_saved: done.not_saved.unwrap_or_default(),
            takeovers: takeovers(&done.takeovers),
            ..refusal
        },
        Err(ChangeError::Config(errors)) => v1::Applied {
            problems: errors.problems.iter().map(problem).collect(),
            rendered: format!("{errors}\n"),
            ..refusal
        },
        Err(other) => {
            let takeovers = match &other {
                ChangeError::Takes(found) => takeovers(found),
                _ => Vec::new(),
            };
            v1::Applied { refused: other.to_string(), takeovers, ..refusal }
        }
    }
}

fn takeovers(found: &Takeovers) -> Vec<v1::Takeover> {
    let one = |takeover: &Takeover| {
        let Takeover { by, by_action, from, from_action, example } = takeover.clone();
        v1::Takeover { by, by_action, from, from_action, example }
    };
    found.found.iter().map(one).collect()
}

fn difference(found: Difference) -> v1::Difference {
    v1::Difference {
        change: found.change.name().into(),
        what: found.what.into(),
        name: found.name,
        before: found.before,
        after: found.after,
    }
}

fn problem(problem: &Diagnostic) -> v1::Problem {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    v1::Problem {
        severity: severity.into(),
        file: problem.place.file.clone(),
        line: problem.place.line,
        column: problem.place.column,
        message: problem.mistake.to_string(),
        help: problem.mistake.help(),
    }
}

pub(super) fn volume(volume: Volume) -> v1::Volume {
    v1::Volume { packets: volume.packets, bytes: volume.bytes }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ipsec::{CardSeat, CardWork, KeyMaterial, SaId, SeatCarrier, SequenceCounter, Spi, Suite};

    use super::*;

    #[test]
    fn an_sa_in_a_card_that_writes_whole_packets_seals_without_numbers_of_the_gateway() {
        let numbers = SequenceNumbers::Extended;
        let sa = |counter: SequenceCounter, work: Option<CardWork>| {
            let suite = Suite::Aes128Gcm;
            let key = KeyMaterial::new(suite, &vec![1; suite.material_bytes()]).unwrap();
            let ends = Tunnel { local: [192, 0, 2, 1].into(), remote: [192, 0, 2, 2].into() };
            let (spi, set) = (Spi::new(0x1000).unwrap(), SaSetId(1));
            let sa = OutboundSa::new(SaId(1), spi, set, &key, ends, Arc::new(counter)).unwrap();
            let carrier = SeatCarrier::Worker;
            sa.seated(work.map(|work| CardSeat { netdev: 1, tag: 7, work, carrier }))
        };
        let spent = |work| sa(SequenceCounter::spent(numbers), work);
        let fresh = |work| sa(SequenceCounter::new(numbers), work);
        let used = Some("all sequence numbers used: give it new keys");
        assert_eq!(cannot_seal([spent(Some(CardWork::Packets))].iter()), None);
        assert_eq!(cannot_seal([spent(Some(CardWork::Cipher))].iter()), used);
        assert_eq!(cannot_seal([spent(None)].iter()), used);
        assert_eq!(cannot_seal([fresh(Some(CardWork::Cipher))].iter()), None);
        assert_eq!(cannot_seal([spent(None), fresh(None)].iter()), None);
        let none = Some("no SA that can send: see `lockgate show sa`");
        assert_eq!(cannot_seal([].iter()), none);
    }
}
