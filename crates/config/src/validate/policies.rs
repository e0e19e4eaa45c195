//! `[[policy]]`: who may speak with whom, and how.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use dataplane::Side;
use ipsec::{Mode, Tunnel};
use policy::{AddressRange, Direction, ExcessRules, Selector, Spd};
use wire::Address;

use super::NamedSections;
use super::doubts::Review;
use super::ingress::Ingress;
use super::ports::Ports;
use super::selectors::Matched;
use crate::chunked::EntryCounts;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::raw::{RawPeer, RawPolicy};
use crate::source::{ShortSpan, Spanned};
use crate::validated::{Action, IngressPorts, Peer, PeerId, Policy};
use crate::values::{bounded, name, word};

/// Policies at most.
const MAX_POLICIES: usize = 1 << 20;

/// Validates the policies of a file, some at a time.
pub(super) struct Judge<'a> {
    peers: &'a NamedSections<Peer>,
    ingress: Ingress<'a>,
    /// Networks of protected ports, with the port's name.
    inside: Vec<(AddressRange, &'a str)>,
    /// Every name so far, and where it stands.
    names: HashMap<Box<str>, ShortSpan>,
    /// Peers that some policy names.
    used: HashSet<PeerId>,
    /// Policies so far, right or wrong.
    count: usize,
    /// The right ones.
    list: Vec<Policy>,
    /// The places of their names.
    places: Vec<ShortSpan>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        ports: &'a Ports,
        peers: &'a NamedSections<Peer>,
        counts: EntryCounts,
    ) -> Judge<'a> {
        let count = counts.policies.min(MAX_POLICIES);
        let protected = ports.list.iter().filter(|port| port.side == Side::Protected);
        let networks = protected.flat_map(|port| {
            port.addresses.iter().map(|address| (address.network(), port.name.as_str()))
        });
        Judge {
            peers,
            ingress: Ingress::new(ports),
            inside: networks.collect(),
            names: HashMap::new(),
            used: HashSet::new(),
            count: 0,
            list: Vec::with_capacity(count),
            places: Vec::with_capacity(count),
        }
    }

    /// Validates the next policies of the file.
    pub(super) fn judge(&mut self, policies: &[RawPolicy], problems: &mut Diagnostics<'_>) {
        for written in policies {
            self.count += 1;
            if self.count == MAX_POLICIES + 1 {
                let mistake = DiagnosticKind::TooMany { what: "policies", limit: MAX_POLICIES };
                problems.error(&written.at, mistake);
            }
            if self.count <= MAX_POLICIES {
                self.one(written, problems);
            }
        }
    }

    fn one(&mut self, written: &RawPolicy, problems: &mut Diagnostics<'_>) {
        if let Some(written) = &written.name {
            match self.names.entry(written.get_ref().as_str().into()) {
                Entry::Occupied(earlier) => {
                    let mistake = DiagnosticKind::SamePolicy { name: written.get_ref().clone() };
                    problems.clash(&written.span(), &earlier.get().span(), mistake);
                }
                Entry::Vacant(entry) => {
                    entry.insert(written.span().into());
                }
            }
        }
        if let Some(peer) = &written.peer {
            self.used.extend(self.peers.id(peer.get_ref()));
        }
        let action = action(written, self.peers, problems);
        let selector = written.matched().selector(problems);
        if let Some(Action::Protect(peer)) = action {
            check_transport(self.peers.peer(peer), selector.as_ref(), written, problems);
        }
        let ingress = self.ingress.resolve(&written.ports, problems);
        let Some(policy) = policy(written, action, ingress, selector, problems) else { return };
        self.warn_of_swapped(&policy, written, problems);
        self.list.push(policy);
        self.places.push(written.name.as_ref().map(Spanned::span).unwrap_or_default().into());
    }

    /// Notes a policy whose `remote` is all on our own side: sealed packets would be for there.
    fn warn_of_swapped(&self, policy: &Policy, raw: &RawPolicy, problems: &mut Diagnostics<'_>) {
        if !matches!(policy.action, Action::Protect(_)) {
            return;
        }
        let remote = &policy.selector.remote;
        let around = self
            .inside
            .iter()
            .find(|(network, _)| remote.iter().all(|range| network.contains_range(range)));
        if let (Some(&(network, port)), Some(written)) = (around, &raw.remote) {
            let mistake = DiagnosticKind::RemoteInside { network, port: port.to_owned() };
            problems.warning(&written.span(), mistake);
        }
    }

    /// Counts the rules of the policies. Refuses more rules than the SPD holds, at the first policy
    /// beyond the limit.
    fn count_rules(&self, problems: &mut Diagnostics<'_>) -> usize {
        let shapes = self.list.iter().map(Policy::shape);
        Spd::count_rules(shapes).unwrap_or_else(|ExcessRules { policy, rules }| {
            let span = self.places[policy].span();
            let limit = Spd::MAX_RULES;
            problems.error(&span, DiagnosticKind::TooManyRules { rules, limit });
            rules
        })
    }

    /// Returns the valid policies, in the order of the file, and the number of rules that they
    /// become. Call it when all were validated.
    pub(super) fn finish(
        mut self,
        peers: &[RawPeer],
        problems: &mut Diagnostics<'_>,
    ) -> (Vec<Policy>, usize) {
        for peer in peers {
            let name = peer.name.get_ref();
            if self.peers.id(name).is_none_or(|id| !self.used.contains(&id)) {
                problems
                    .warning(&peer.name.span(), DiagnosticKind::UnusedPeer { peer: name.clone() });
            }
        }
        self.list.shrink_to_fit();
        self.names = HashMap::new();
        let rules = self.count_rules(problems);
        if !problems.has_errors() {
            let peer = |id| self.peers.peer(id).map(|peer| peer.name.as_str());
            let (policies, places, ports) =
                (&self.list[..], &self.places[..], self.ingress.ports());
            Review { policies, places, ports, peer: &peer }.warn(problems);
        }
        (self.list, rules)
    }
}

fn policy(
    raw: &RawPolicy,
    action: Option<Action>,
    ingress: Option<Option<IngressPorts>>,
    selector: Option<Selector>,
    problems: &mut Diagnostics<'_>,
) -> Option<Policy> {
    let policy_name = raw.name.as_ref().and_then(|written| name(problems, written));
    let priority = bounded(problems, "priority", &raw.priority, 100, (0, u32::MAX));
    let directions = [
        ("both", None),
        ("inbound", Some(Direction::Inbound)),
        ("outbound", Some(Direction::Outbound)),
    ];
    let only = word(problems, "direction", &raw.direction, None, &directions);
    Some(Policy {
        name: policy_name?,
        action: action?,
        priority: priority?,
        only: only?,
        ingress: ingress?,
        selector: selector?,
    })
}

/// The word written behind `action`.
#[derive(Clone, Copy)]
enum WrittenAction {
    Nothing,
    Protect,
    Bypass,
    Discard,
}

fn action(
    raw: &RawPolicy,
    peers: &NamedSections<Peer>,
    problems: &mut Diagnostics<'_>,
) -> Option<Action> {
    let choices = [
        ("protect", WrittenAction::Protect),
        ("bypass", WrittenAction::Bypass),
        ("discard", WrittenAction::Discard),
    ];
    let action = word(problems, "action", &raw.action, WrittenAction::Nothing, &choices);
    let peer = raw.peer.as_ref().map(|written| {
        let id = peers.id(written.get_ref());
        if id.is_none() {
            let name = written.get_ref().clone();
            let nearest = nearest(&name, peers.names());
            problems.error(&written.span(), DiagnosticKind::UnknownPeer { name, nearest });
        }
        id
    });
    let span = raw.action.as_ref().map_or(raw.at.clone(), Spanned::span);
    match (action?, peer) {
        (WrittenAction::Nothing | WrittenAction::Protect, Some(peer)) => peer.map(Action::Protect),
        (WrittenAction::Bypass, None) => Some(Action::Bypass),
        (WrittenAction::Discard, None) => Some(Action::Discard),
        (WrittenAction::Bypass | WrittenAction::Discard, Some(_)) => {
            let action = raw.action.as_ref().map(|written| written.get_ref().clone());
            problems
                .error(&span, DiagnosticKind::PeerAndAction { action: action.unwrap_or_default() });
            None
        }
        (WrittenAction::Protect, None) => {
            problems.error(&span, DiagnosticKind::ProtectWithoutPeer);
            None
        }
        (WrittenAction::Nothing, None) => {
            problems.error(&span, DiagnosticKind::NoPeerNoAction);
            None
        }
    }
}

/// A peer in transport mode may only be named by policies for the two ends themselves
/// (RFC 4301 §4.1): what is sealed for it keeps its addresses.
fn check_transport(
    peer: Option<&Peer>,
    selector: Option<&Selector>,
    policy: &RawPolicy,
    problems: &mut Diagnostics<'_>,
) {
    let transport = peer.filter(|peer| peer.encapsulation.mode == Mode::Transport);
    let (Some(peer), Some(selector)) = (transport, selector) else { return };
    let Tunnel { local, remote } = peer.tunnel();
    for (key, written, named, end) in [
        ("local", &policy.local, &selector.local, local),
        ("remote", &policy.remote, &selector.remote, remote),
    ] {
        let alone = AddressRange::network(end.into(), Address::from(end).family.address_bits());
        if let (Some(written), false) = (written, named.iter().all(|range| *range == alone)) {
            let peer = peer.name.clone();
            problems.error(&written.span(), DiagnosticKind::TransportSelector { key, peer, end });
        }
    }
}

impl RawPolicy {
    /// Its keys that say which packets it matches.
    fn matched(&self) -> Matched<'_> {
        Matched {
            what: "policy",
            at: &self.at,
            ends: [("local", &self.local), ("remote", &self.remote)],
            protocol: &self.protocol,
            ports: [("local_ports", &self.local_ports), ("remote_ports", &self.remote_ports)],
            tcp: &None,
            icmp: &self.icmp,
        }
    }
}
