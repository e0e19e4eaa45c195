//! Services of `allow_host` and IKE: those that IKE needs, and those whose answers the guard drops
//! because `[ike]` has them.

use dataplane::{HostService, PortInfos, Side};
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use policy::{Action, Direction, Policy, PolicyId, PortRange};
use wire::Address;
use wire::flow::protocol;

use crate::allow_host;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::ike::ShuntAction;
use crate::meeting::{Meeting, MissingIke};
use crate::raw::Raw;
use crate::source::Spanned;
use crate::validated::{KeySource, Validated};

/// The port at which IKE begins (RFC 7296 §2).
const IKE_PORT: u16 = 500;

/// Warns once of ports of IKE that no unprotected port lists, if charon has a part here.
pub(super) fn want(raw: &Raw, validated: &Validated, problems: &mut Diagnostics<'_>) {
    let mut peers = validated.peers.iter().zip(&raw.peers);
    let of_ike = peers.find(|(peer, _)| peer.keys == KeySource::Ike);
    let of_ike =
        of_ike.map(|(_, raw)| raw.keys.as_ref().map_or_else(|| raw.at.clone(), Spanned::span));
    let section = raw.ike.as_ref().map(|raw| raw.selector.at.clone());
    let Some(span) = of_ike.or(section) else { return };
    let outside = || validated.ports.iter().filter(|port| port.side == Side::Unprotected);
    if outside().next().is_none() {
        // Another warning says so.
        return;
    }
    let listed = |wanted: u16| {
        outside().flat_map(|port| &port.allow_host).any(|service| lists(service, wanted))
    };
    let missing = match (listed(IKE_PORT), listed(NAT_TRAVERSAL_PORT)) {
        (true, true) => return,
        (false, false) => MissingIke::Both,
        (false, true) => MissingIke::Main,
        (true, false) => MissingIke::NatTraversal,
    };
    problems.warning(&span, DiagnosticKind::IkeNotListed { missing });
}

fn lists(service: &HostService, port: u16) -> bool {
    let HostService { protocol, ports } = *service;
    let PortRange { lo, hi } = ports.unwrap_or(PortRange::ANY);
    protocol == protocol::UDP && (lo..=hi).contains(&port)
}

/// The services whose answers the guard drops because they are within `[ike]`, whatever charon has
/// negotiated. `own` are our addresses that are known without it.
pub(super) fn closed(
    validated: &Validated,
    ports: &PortInfos,
    mut own: Vec<Address>,
    policies: &[Policy],
) -> Vec<Meeting> {
    let Some(bounds) = &validated.ike else { return Vec::new() };
    let single = bounds.ends.iter().filter(|range| range.lo == range.hi);
    own.extend(single.map(|range| Address { family: range.family, value: range.lo }));
    let discards = bounds.shunts.iter().filter(|of| of.action == ShuntAction::Discard);
    let selectors = discards.map(|shunt| &shunt.selector).chain([&bounds.selector]);
    let closes = selectors.map(|selector| Policy {
        id: PolicyId(0),
        name: String::new(),
        action: Action::Discard,
        priority: 0,
        only: None,
        group: None,
        ingress: None,
        selector: selector.clone(),
    });
    let closes: Vec<Policy> = closes.collect();
    // All policies of the file come before, as in the guard, which asks about what leaves.
    let passes = |policy: &&Policy| {
        policy.action == Action::Bypass && policy.only != Some(Direction::Inbound)
    };
    let before =
        |of: &Policy| Policy { id: PolicyId(of.id.0 + 1), only: None, ..Policy::clone(of) };
    let passes: Vec<Policy> = policies.iter().filter(passes).map(before).collect();
    allow_host::meetings(ports, &own, passes.iter().chain(&closes))
}
