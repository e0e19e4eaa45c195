//! `outer` of `[peer.NAME]`: peers whose packets are sealed again for another peer.

use ipsec::{Mode, Tunnel};
use policy::{AddressRange, Direction, Selector, UpperSelector};
use wire::Address;
use wire::flow::protocol;

use crate::cards::SaOffload;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::raw::{Raw, RawPeer};
use crate::source::Spanned;
use crate::validated::{Action, Peer, PeerId, Policy, Validated};

/// Notes peers behind others that cannot be there.
pub(super) fn validate(raw: &Raw, validated: &Validated, problems: &mut Diagnostics<'_>) {
    for (peer, written) in validated.peers.iter().zip(&raw.peers) {
        if let Some(outer) = &written.outer {
            one(validated, peer, (written, outer), problems);
        }
    }
}

/// Notes the first mistake about a peer behind another.
fn one(
    validated: &Validated,
    peer: &Peer,
    (written, outer): (&RawPeer, &Spanned<String>),
    problems: &mut Diagnostics<'_>,
) {
    let (at, name) = (outer.span(), outer.get_ref());
    if let Some((key, at)) = not_beside(peer, written) {
        return problems.error(&at, DiagnosticKind::NotBesideOuter { key });
    }
    let Some(place) = validated.peers.iter().position(|other| other.name == *name) else {
        let nearest = nearest(name, validated.peers.iter().map(|peer| peer.name.as_str()));
        let name = name.clone();
        return problems.error(&at, DiagnosticKind::UnknownPeer { name, nearest });
    };
    let around = &validated.peers[place];
    let outer = name.clone();
    if around.outer.is_some() {
        return problems.error(&at, DiagnosticKind::OuterOfOuter { outer });
    }
    if around.encapsulation.mode == Mode::Transport {
        return problems.error(&at, DiagnosticKind::OuterInTransportMode { outer });
    }
    let place = PeerId(place as u32);
    for direction in [Direction::Outbound, Direction::Inbound] {
        let decider = decider(&validated.policies, peer.tunnel(), direction);
        let covers =
            |policy: &&Policy| policy.action == Action::Protect(place) && policy.ingress.is_none();
        if decider.filter(covers).is_none() {
            let by = decider.map(|policy| policy.name.clone());
            let tunnel = peer.tunnel();
            let missing = DiagnosticKind::OuterWithoutPolicy { outer, tunnel, direction, by };
            return problems.error(&at, missing);
        }
    }
}

/// A key of a peer behind another that does not go with that, and its place.
fn not_beside(peer: &Peer, written: &RawPeer) -> Option<(&'static str, std::ops::Range<usize>)> {
    let at = |key: &Option<Spanned<String>>| key.as_ref().map_or(written.at.clone(), Spanned::span);
    let encapsulation = &peer.encapsulation;
    match () {
        () if encapsulation.mode == Mode::Transport => {
            Some(("mode = \"transport\"", at(&written.mode)))
        }
        () if encapsulation.udp.is_some() => {
            Some(("encapsulation = \"udp\"", at(&written.encapsulation)))
        }
        () if !peer.moves.remote.is_empty() => {
            Some(("moves_to", written.moves_to.as_ref().map_or(written.at.clone(), Spanned::span)))
        }
        () if !peer.moves.local.is_empty() => {
            let at = written.local_moves_to.as_ref().map(Spanned::span);
            Some(("local_moves_to", at.unwrap_or(written.at.clone())))
        }
        () if peer.offload != SaOffload::None => Some(("offload", at(&written.offload))),
        () => None,
    }
}

/// The policy that decides about ESP between the ends of a tunnel, in one direction.
fn decider(policies: &[Policy], tunnel: Tunnel, direction: Direction) -> Option<&Policy> {
    let host = |address: std::net::IpAddr| {
        let address = Address::from(address);
        vec![AddressRange { family: address.family, lo: address.value, hi: address.value }]
    };
    let esp = Selector {
        local: host(tunnel.local),
        remote: host(tunnel.remote),
        protocol: Some(protocol::ESP),
        upper: UpperSelector::Any,
    };
    let holds = |policy: &&Policy| {
        policy.only.is_none_or(|only| only == direction) && policy.selector.overlaps(&esp)
    };
    // Among equals the later one wins, as `max_by_key` has it.
    policies.iter().filter(holds).max_by_key(|policy| policy.priority)
}
