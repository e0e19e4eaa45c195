//! `[[policy]]`: who may speak with whom, and how.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use dataplane::Side;
use ipsec::{Mode, Tunnel};
use policy::selector::parse_protocol;
use policy::{
    AddressRange, Direction, IcmpRange, PortRange, Selector, SelectorError, Spd, UpperSelector,
};
use toml::Spanned;
use wire::flow::protocol;
use wire::{Address, Family};

use super::NamedSections;
use super::doubts::Review;
use super::ingress::Ingress;
use super::ports::Ports;
use crate::diagnostic::{DiagnosticKind, Refusal, nearest};
use crate::errors::Diagnostics;
use crate::raw::{RawPeer, RawPolicy, Texts};
use crate::read::Scalar;
use crate::source::Span;
use crate::validated::{Action, IngressPorts, Peer, PeerId, Policy};
use crate::values::{bounded, name, word};

/// Policies at most.
const MAX_POLICIES: usize = 1 << 20;
/// Entries of one list at most.
const MAX_ENTRIES: usize = 4096;

/// IPv6 mobility header (RFC 6275).
const MOBILITY: u8 = 135;
/// Host Identity Protocol (RFC 7401): over IPv6 an extension header.
const HIP: u8 = 139;
/// Shim6 (RFC 5533).
const SHIM6: u8 = 140;

/// Validates the policies of a file, some at a time.
pub(super) struct Judge<'a> {
    peers: &'a NamedSections<Peer>,
    ingress: Ingress<'a>,
    /// Networks of protected ports, with the port's name.
    inside: Vec<(AddressRange, &'a str)>,
    /// Every name so far, and where it stands.
    names: HashMap<String, Span>,
    /// Peers that some policy names.
    used: HashSet<PeerId>,
    /// Policies so far, right or wrong.
    count: usize,
    /// The right ones.
    list: Vec<Policy>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(ports: &'a Ports, peers: &'a NamedSections<Peer>) -> Judge<'a> {
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
            list: Vec::new(),
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
            match self.names.entry(written.get_ref().clone()) {
                Entry::Occupied(earlier) => {
                    let mistake = DiagnosticKind::SamePolicy { name: written.get_ref().clone() };
                    problems.clash(&written.span(), earlier.get(), mistake);
                }
                Entry::Vacant(entry) => {
                    entry.insert(written.span());
                }
            }
        }
        if let Some(peer) = &written.peer {
            self.used.extend(self.peers.id(peer.get_ref()));
        }
        let action = action(written, self.peers, problems);
        let selector = selector(written, problems);
        if let Some(Action::Protect(peer)) = action {
            check_transport(self.peers.peer(peer), selector.as_ref(), written, problems);
        }
        let ingress = self.ingress.resolve(&written.ports, problems);
        let Some(policy) = policy(written, action, ingress, selector, problems) else { return };
        self.warn_of_swapped(&policy, written, problems);
        self.list.push(policy);
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

    /// Refuses policies whose lists multiply to more rules than the SPD holds, at the first that is
    /// too much. A rule stands once in the list of each class of ports that it speaks of, and each
    /// port that some policy names is a class.
    fn count_rules(&self, problems: &mut Diagnostics<'_>) {
        let limit = Spd::MAX_RULES;
        let all_classes = self.ingress.named_ports() + 1;
        let mut rules = 0usize;
        for policy in &self.list {
            let classes = policy.ingress.as_ref().map_or(all_classes, |of| of.numbers().len());
            let directions = if policy.only.is_none() { 2 } else { 1 };
            for family in [Family::V4, Family::V6] {
                let more = policy.selector.rules(family).saturating_mul(directions * classes);
                rules = rules.saturating_add(more);
            }
            if rules > limit {
                let span = self.names.get(&policy.name).cloned().unwrap_or_default();
                return problems.error(&span, DiagnosticKind::TooManyRules { rules, limit });
            }
        }
    }

    /// Returns the valid policies, in the order of the file. Call it when all were validated.
    pub(super) fn finish(self, peers: &[RawPeer], problems: &mut Diagnostics<'_>) -> Vec<Policy> {
        for peer in peers {
            let name = peer.name.get_ref();
            if self.peers.id(name).is_none_or(|id| !self.used.contains(&id)) {
                problems
                    .warning(&peer.name.span(), DiagnosticKind::UnusedPeer { peer: name.clone() });
            }
        }
        self.count_rules(problems);
        if !problems.has_errors() {
            let peer = |id| self.peers.peer(id).map(|peer| peer.name.as_str());
            let (policies, names, ports) = (&self.list[..], &self.names, self.ingress.ports());
            Review { policies, names, ports, peer: &peer }.warn(problems);
        }
        self.list
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

fn selector(raw: &RawPolicy, problems: &mut Diagnostics<'_>) -> Option<Selector> {
    let local = addresses(problems, "local", &raw.local);
    let remote = addresses(problems, "remote", &raw.remote);
    let protocol = protocol(raw, problems);
    let local_ports = list::<PortRange>(problems, "local_ports", &raw.local_ports);
    let remote_ports = list::<PortRange>(problems, "remote_ports", &raw.remote_ports);
    let messages = list::<IcmpRange>(problems, "icmp", &raw.icmp);
    let upper = match protocol {
        Some(protocol) => upper(raw, protocol, local_ports?, remote_ports?, messages?, problems),
        None => None,
    };
    let selector = Selector { local: local?, remote: remote?, protocol: protocol?, upper: upper? };
    let both = |family| {
        let of = |list: &[AddressRange]| list.iter().any(|range| range.family == family);
        of(&selector.local) && of(&selector.remote)
    };
    let needed = match selector.protocol {
        Some(protocol::ICMP) => both(Family::V4),
        Some(protocol::ICMPV6) => both(Family::V6),
        _ => both(Family::V4) || both(Family::V6),
    };
    if !needed {
        let span = raw.remote.as_ref().map_or(raw.at.clone(), Spanned::span);
        let mistake = match selector.protocol {
            Some(protocol::ICMP) if both(Family::V6) => {
                DiagnosticKind::IcmpOfOtherFamily { right: "icmpv6" }
            }
            Some(protocol::ICMPV6) if both(Family::V4) => {
                DiagnosticKind::IcmpOfOtherFamily { right: "icmp" }
            }
            _ => DiagnosticKind::NeverMatches,
        };
        problems.error(&span, mistake);
        return None;
    }
    Some(selector)
}

fn upper(
    raw: &RawPolicy,
    protocol: Option<u8>,
    local: Vec<PortRange>,
    remote: Vec<PortRange>,
    messages: Vec<IcmpRange>,
    problems: &mut Diagnostics<'_>,
) -> Option<UpperSelector> {
    let mut sound = true;
    for (key, written, empty) in [
        ("local_ports", &raw.local_ports, local.is_empty()),
        ("remote_ports", &raw.remote_ports, remote.is_empty()),
    ] {
        let Some(written) = written.as_ref().filter(|_| !empty) else { continue };
        match protocol {
            None => problems.warning(&written.span(), DiagnosticKind::PortsOfAny { key }), // FC-04
            Some(number) if !protocol::has_ports(number) => {
                problems.error(&written.span(), DiagnosticKind::NoPorts { key, protocol: number });
                sound = false;
            }
            Some(_) => {}
        }
    }
    if let Some(written) = raw.icmp.as_ref().filter(|_| !messages.is_empty()) {
        if !matches!(protocol, Some(protocol::ICMP | protocol::ICMPV6)) {
            problems.error(&written.span(), DiagnosticKind::IcmpWithoutProtocol);
            sound = false;
        }
        return sound.then_some(UpperSelector::Icmp(messages));
    }
    let ports = !local.is_empty() || !remote.is_empty();
    let upper = if ports { UpperSelector::Ports { local, remote } } else { UpperSelector::Any };
    sound.then_some(upper)
}

fn protocol(raw: &RawPolicy, problems: &mut Diagnostics<'_>) -> Option<Option<u8>> {
    let Some(written) = &raw.protocol else { return Some(None) };
    let text = match written.get_ref() {
        Scalar::Text(text) => text.clone(),
        Scalar::Number(number) => number.to_string(),
    };
    let mistake = match parse_protocol(&text) {
        Ok(Some(
            number @ (protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::DESTINATION
            | MOBILITY
            | HIP
            | SHIM6),
        )) => DiagnosticKind::ExtensionHeader { protocol: number },
        Ok(protocol) => return Some(protocol),
        Err(_) if text.eq_ignore_ascii_case("ah") => {
            DiagnosticKind::Refused { key: text, refusal: Refusal::Ah }
        }
        Err(error) => {
            let names = policy::selector::PROTOCOL_NAMES.iter().map(|(name, _)| *name);
            DiagnosticKind::UnknownProtocol {
                nearest: nearest(&text, names.chain(["any"])),
                error: error.into(),
            }
        }
    };
    problems.error(&written.span(), mistake);
    None
}

fn addresses(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Texts,
) -> Option<Vec<AddressRange>> {
    let written = written.as_ref()?;
    if written.get_ref().is_empty() {
        problems.error(&written.span(), DiagnosticKind::EmptyList { key });
        return None;
    }
    let mut ranges: Vec<(AddressRange, Span)> = Vec::new();
    let mut sound = bounded_list(problems, key, written);
    for entry in written.get_ref().iter().take(MAX_ENTRIES) {
        match policy::selector::parse_addresses(entry.get_ref()) {
            Ok(parsed) => ranges.extend(parsed.into_iter().map(|range| (range, entry.span()))),
            Err(error) => {
                problems.error(&entry.span(), DiagnosticKind::Selector(error.into()));
                sound = false;
            }
        }
    }
    let bounds = |range: &AddressRange| {
        (
            Address { family: range.family, value: range.lo },
            Address { family: range.family, value: range.hi },
        )
    };
    warn_of_overlaps(
        problems,
        key,
        ranges.iter().map(|(range, span)| (bounds(range), span.clone())),
    );
    sound.then(|| ranges.into_iter().map(|(range, _)| range).collect())
}

/// A range of something that stands in a list.
trait Range: std::str::FromStr<Err = SelectorError> {
    fn bounds(&self) -> (u16, u16);
}

impl Range for PortRange {
    fn bounds(&self) -> (u16, u16) {
        (self.lo, self.hi)
    }
}

impl Range for IcmpRange {
    fn bounds(&self) -> (u16, u16) {
        (self.lo, self.hi)
    }
}

fn list<R: Range>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Texts,
) -> Option<Vec<R>> {
    let Some(written) = written else { return Some(Vec::new()) };
    // To leave the key out means any; a list that came out empty must not.
    if written.get_ref().is_empty() {
        problems.error(&written.span(), DiagnosticKind::EmptyList { key });
        return None;
    }
    let mut ranges: Vec<(R, Span)> = Vec::new();
    let mut sound = bounded_list(problems, key, written);
    for entry in written.get_ref().iter().take(MAX_ENTRIES) {
        match entry.get_ref().parse() {
            Ok(range) => ranges.push((range, entry.span())),
            Err(error) => {
                problems.error(&entry.span(), DiagnosticKind::Selector(error.into()));
                sound = false;
            }
        }
    }
    warn_of_overlaps(
        problems,
        key,
        ranges.iter().map(|(range, span)| (range.bounds(), span.clone())),
    );
    sound.then(|| ranges.into_iter().map(|(range, _)| range).collect())
}

fn bounded_list<T>(
    problems: &mut Diagnostics<'_>,
    what: &'static str,
    written: &Spanned<Vec<T>>,
) -> bool {
    let fits = written.get_ref().len() <= MAX_ENTRIES;
    if !fits {
        problems.error(&written.span(), DiagnosticKind::TooMany { what, limit: MAX_ENTRIES });
    }
    fits
}

/// Notes entries of a list that another entry of it covers in part or in full.
fn warn_of_overlaps<B: Ord + Copy>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    ranges: impl Iterator<Item = ((B, B), Span)>,
) {
    let mut sorted: Vec<_> = ranges.collect();
    sorted.sort_by_key(|((lo, _), _)| *lo);
    let mut highest: Option<B> = None;
    for ((lo, hi), span) in sorted {
        if highest.is_some_and(|highest| lo <= highest) {
            problems.warning(&span, DiagnosticKind::Overlap { key });
        }
        highest = highest.max(Some(hi));
    }
}
