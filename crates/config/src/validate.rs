//! Validates a raw configuration as a whole and turns it into a typed one.
//!
//! Every rule notes its mistake and goes on. Rules that would only repeat an earlier mistake (an
//! address is "not ours" because the line that makes it ours is broken) are left out.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use dataplane::Side;
use ipsec::{
    Encapsulation, KeyMaterial, Mode, OutboundSa, SaId, SequenceCounter, SequenceNumbers, Spi,
    Suite,
};
use policy::{Direction, PolicyId, SaSetId};
use wire::{Address, Family};

use crate::allow_host;
use crate::chunked::EntryCounts;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::groups::{Group, GroupId, Set, SetId};
use crate::meeting::Meeting;
use crate::raw::{Raw, RawLists};
use crate::set_files::SetFiles;
use crate::source::{Span, Spanned};
use crate::standalone::ConfiguredRoutes;
use crate::validated::{Action, Peer, PeerId, Policy, Port, Validated};

mod card_peers;
mod cards;
mod connections;
mod doubts;
mod encapsulation;
mod groups;
mod ike;
mod ike_services;
mod ingress;
mod lifetime;
mod links;
mod moves;
mod nested;
mod node;
mod overlays;
mod peers;
mod policies;
mod ports;
mod rule_doubts;
mod rules;
mod selectors;
mod sets;

use policies::Judge;
use rules::RuleJudge;

pub use node::{DEFAULT_FLOWS, MAX_FLOWS, MAX_WORKERS};

/// A validated configuration, with the places in the file that later checks refer to.
pub(crate) struct Outcome {
    pub(crate) validated: Validated,
    /// The place where each peer's key file is named.
    pub(crate) keys: Vec<Span>,
    /// The place where the size of the flow cache is named.
    pub(crate) flows: Span,
    /// The place where the size of the table of connections is named.
    pub(crate) max_connections: Span,
    /// The place where the size of the table of endpoints is named.
    pub(crate) max_endpoints: Span,
    /// True if a set is in a file.
    pub(crate) includes_files: bool,
}

/// Validates all sections, and returns the configuration unless there was an error. `lists` are
/// read some at a time, until `None`.
///
/// # Errors
/// The one that reading lists ended with.
pub(crate) fn validate<E>(
    raw: &Raw,
    counts: EntryCounts,
    mut lists: impl FnMut(&mut Diagnostics<'_>) -> Option<Result<RawLists, E>>,
    files: SetFiles<'_>,
    problems: &mut Diagnostics<'_>,
) -> Result<Option<Outcome>, E> {
    let node = raw.node.as_ref().and_then(|raw| node::node(raw, problems));
    let cache = node::cache(raw.cache.as_ref(), problems);
    let connections = connections::validate(raw.connections.as_ref(), problems);
    let metrics = node::metrics(raw.metrics.as_ref(), problems);
    let groups = groups::validate(&raw.groups, problems);
    let sets = sets::validate(&raw.sets, files, problems);
    let ports = ports::validate(&raw.ports, &groups, problems);
    let peers = peers::validate(&raw.peers, &ports, problems);
    let mut judge = Judge::new(&ports, &peers, counts);
    let mut rules = RuleJudge::new(&groups, &sets, counts);
    while let Some(some) = lists(problems) {
        let some = some?;
        judge.judge(&some.policies, problems);
        rules.judge(&some.rules, problems);
    }
    groups::warn_of_unused(raw, problems);
    let (policies, compiled) = judge.finish(&raw.peers, problems);
    let overlays = overlays::overlays(&raw.overlays, &ports, problems);
    let networks = overlays::networks(&raw.networks, &overlays, &groups, problems);
    let store = overlays::store(raw.store.as_ref(), problems);
    let kernel = overlays::kernel(raw.kernel.as_ref(), problems);
    overlays::warn((&raw.overlays, &overlays), &networks, &ports, &policies, problems);
    let (cards, audit) = cards::validate(raw, &ports, problems);
    let ike = ike::validate(raw.ike.as_ref(), problems);
    peers::want_cards(raw, problems);
    let rules = rules.finish((&ports, &networks), compiled, problems);
    warn_of_one_side(raw, &ports, &policies, problems);
    let links = links::both(raw, &ports, problems);
    let has_errors = problems.has_errors();
    let (Some(node), Some(cache), Some(metrics)) = (node, cache, metrics) else { return Ok(None) };
    let below = store.zip(kernel).zip(audit).zip(ike).filter(|_| !has_errors);
    let (Some(connections), Some((((store, kernel), audit), ike))) = (connections, below) else {
        return Ok(None);
    };
    let validated = Validated {
        node,
        cache,
        connections,
        metrics,
        ports: ports.list,
        peers: peers.list,
        sets: sets.list,
        groups: groups.list,
        policies,
        rules,
        routes: links.0,
        neighbours: links.1,
        overlays: overlays.list,
        networks,
        store,
        kernel,
        cards,
        audit,
        ike,
    };
    nested::validate(raw, &validated, problems);
    judge_paths(raw, &validated, problems);
    check_allow_host(raw, &validated, problems);
    ike_services::want(raw, &validated, problems);
    card_peers::warn(raw, &validated, problems);
    Ok(Some(outcome(raw, validated)))
}

/// Adds the places that later checks refer to.
fn outcome(raw: &Raw, validated: Validated) -> Outcome {
    let keys = raw.peers.iter().filter_map(|peer| Some(peer.keys.as_ref()?.span())).collect();
    let flows = place(raw.cache.as_ref().and_then(|raw| raw.flows.as_ref()));
    let max_connections = place(raw.connections.as_ref().and_then(|raw| raw.max.as_ref()));
    let max_endpoints = place(raw.store.as_ref().and_then(|raw| raw.endpoints.as_ref()));
    let includes_files = raw.sets.iter().any(|set| set.file.is_some());
    Outcome { validated, keys, flows, max_connections, max_endpoints, includes_files }
}

/// The place of a value, or the begin of the file.
fn place<T>(written: Option<&Spanned<T>>) -> Span {
    written.map(Spanned::span).unwrap_or_default()
}

/// Notes that all ports are on one side, so that the gateway forwards nothing or protects nothing.
fn warn_of_one_side(
    raw: &Raw,
    ports: &ports::Ports,
    policies: &[Policy],
    problems: &mut Diagnostics<'_>,
) {
    let is_on = |side| ports.list.iter().all(|port| port.side == side);
    let Some(first) = raw.ports.first().filter(|_| !problems.has_errors()) else { return };
    let span = first.side.as_ref().map_or(first.name.span(), Spanned::span);
    if is_on(Side::Unprotected) {
        problems.warning(&span, DiagnosticKind::NoProtectedPort);
    } else if is_on(Side::Protected) && !policies.is_empty() {
        problems.warning(&span, DiagnosticKind::NoUnprotectedPort);
    }
}

/// Warns of services of `allow_host` of which a policy wants packets to addresses of this machine
/// that the file names: those of unprotected ports and the local ends of tunnels.
fn check_allow_host(raw: &Raw, validated: &Validated, problems: &mut Diagnostics<'_>) {
    let lists = |port: &&Port| port.side == Side::Unprotected && !port.allow_host.is_empty();
    if !validated.ports.iter().any(|port| lists(&port)) {
        return;
    }
    let outside = validated.ports.iter().filter(|port| port.side == Side::Unprotected);
    let on_ports = outside.flat_map(|port| port.addresses.iter().map(|own| own.address));
    let ends = validated.peers.iter().map(|peer| Address::from(peer.tunnel().local));
    // A hub's tunnels all end at one address.
    let own: BTreeSet<Address> = on_ports.chain(ends).collect();
    let own: Vec<Address> = own.into_iter().collect();
    let policies = (0..).map(PolicyId).zip(&validated.policies);
    let policies: Vec<policy::Policy> = policies.map(|(id, policy)| policy.by_itself(id)).collect();
    let ports = validated.port_infos().into_iter().collect();
    let met = allow_host::meetings(&ports, &own, policies.iter());
    let closed = ike_services::closed(validated, &ports, own, &policies);
    let closed = closed.into_iter().filter(|closed| !met.iter().any(|met| met.is_about(closed)));
    for Meeting { port, service, .. } in closed {
        let span = list_of(raw, &port);
        problems.warning(&span, DiagnosticKind::AllowHostWithinIke { port, service });
    }
    for meeting in met {
        let span = list_of(raw, &meeting.port);
        problems.warning(&span, DiagnosticKind::AllowHostMeets { meeting });
    }
}

/// The place of a port's `allow_host`.
fn list_of(raw: &Raw, port: &str) -> Span {
    let written = raw.ports.iter().find(|written| *written.name.get_ref() == port);
    written.and_then(|port| Some(port.allow_host.as_ref()?.span())).unwrap_or_default()
}

/// Notes the peers that no route leads to, or only one into the protected side, and the ports that
/// are too narrow for the tunnels through them.
fn judge_paths(raw: &Raw, validated: &Validated, problems: &mut Diagnostics<'_>) {
    let names_addresses = validated.ports.iter().any(|port| !port.addresses.is_empty());
    if !names_addresses && validated.routes.is_empty() || validated.peers.is_empty() {
        // Without addresses and routes the daemon asks Linux.
        return;
    }
    let remotes = validated.peers.iter().map(|peer| peer.tunnel().remote.into());
    let ports = ConfiguredRoutes::of(validated).ports_towards(remotes);
    let speak_v6 = peers_sent_v6(validated);
    let mut tunnels = Tunnels::default();
    for (place, (peer, port)) in validated.peers.iter().zip(ports).enumerate() {
        if peer.outer.is_some() {
            // Its packets go where those of the peer around it go.
            continue;
        }
        let (remote, name) = (peer.tunnel().remote, peer.name.clone());
        let written = &raw.peers[place];
        let span = written.remote.as_ref().map_or(written.at.clone(), Spanned::span);
        let Some(id) = port else {
            problems.warning(&span, DiagnosticKind::NoRouteToPeer { peer: name, remote });
            continue;
        };
        let port = &validated.ports[usize::from(id.0)];
        if port.side == Side::Protected {
            problems.warning(&span, DiagnosticKind::PeerInside { peer: name.clone(), remote });
        }
        let narrow = raw.ports[usize::from(id.0)].mtu.as_ref().map_or(span, Spanned::span);
        let Some(sa) = tunnels.of(peer) else { continue };
        let (port, inner) = (port.name.clone(), sa.largest_inner(port.mtu as usize));
        if inner < LEAST_V4 {
            let least = sa.sealed_length(LEAST_V4);
            problems.error(&narrow, DiagnosticKind::TunnelBelowV4 { peer: name, inner, least });
        } else if inner < LEAST_V6 && speak_v6.contains(&PeerId(place as u32)) {
            let least = sa.sealed_length(LEAST_V6);
            problems
                .warning(&narrow, DiagnosticKind::TunnelBelowV6 { peer: name, port, inner, least });
        }
    }
}

/// Bytes that every IPv4 link carries whole (RFC 791 §3.2).
const LEAST_V4: usize = 68;
/// Bytes that every IPv6 link carries whole (RFC 8200 §5).
const LEAST_V6: usize = 1280;

/// The peers that some policy sends IPv6 packets to.
fn peers_sent_v6(validated: &Validated) -> HashSet<PeerId> {
    let sends = |policy: &&Policy| {
        policy.only != Some(Direction::Inbound) && policy.selector.rules(Family::V6) > 0
    };
    let protected = validated.policies.iter().filter(sends).filter_map(|policy| {
        let Action::Protect(peer) = policy.action else { return None };
        Some(peer)
    });
    protected.collect()
}

/// Lengths that tunnels add to packets: an SA for each suite and kind of headers that seals nothing
/// and is only asked how long its packets are.
#[derive(Default)]
struct Tunnels(HashMap<(Suite, Mode, OuterFamily, IsInUdp), OutboundSa>);

/// Family of outer headers.
type OuterFamily = Family;
/// True if there is a UDP header.
type IsInUdp = bool;

impl Tunnels {
    /// `None`: validation let a mistake through, which compiling will tell.
    fn of(&mut self, peer: &Peer) -> Option<&OutboundSa> {
        let Peer { suite, encapsulation, .. } = *peer;
        let Encapsulation { mode, tunnel, udp, .. } = encapsulation;
        let family = Address::from(tunnel.remote).family;
        match self.0.entry((suite, mode, family, udp.is_some())) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let material = KeyMaterial::new(suite, &vec![0; suite.material_bytes()]).ok()?;
                let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
                let (id, set, spi) = (SaId(0), SaSetId(0), Spi::LOWEST);
                let sa = OutboundSa::new(id, spi, set, &material, encapsulation, counter).ok()?;
                Some(entry.insert(sa))
            }
        }
    }
}

/// Sections with a name, and the list that their ids count into.
pub(crate) struct NamedSections<T> {
    /// Every section with a name in the file, right or wrong.
    pub(crate) ids: std::collections::HashMap<String, u32>,
    /// The right sections; complete only if nothing was wrong.
    pub(crate) list: Vec<T>,
}

impl<T> NamedSections<T> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.ids.keys().map(String::as_str)
    }
}

impl<T> NamedSections<T> {
    /// Returns whether every section was right.
    fn is_complete(&self) -> bool {
        self.list.len() == self.ids.len()
    }
}

impl NamedSections<Peer> {
    fn id(&self, name: &str) -> Option<PeerId> {
        self.ids.get(name).map(|id| PeerId(*id))
    }

    /// A peer; `None` while any of them is wrong.
    fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.list.get(id.0 as usize).filter(|_| self.is_complete())
    }
}

impl NamedSections<Group> {
    fn id(&self, name: &str) -> Option<GroupId> {
        self.ids.get(name).map(|id| GroupId(*id))
    }
}

impl NamedSections<Set> {
    fn id(&self, name: &str) -> Option<SetId> {
        self.ids.get(name).map(|id| SetId(*id))
    }
}
