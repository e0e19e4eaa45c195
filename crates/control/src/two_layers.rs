//! `outer` of peers, beside changes of single policies: ESP between the ends of an inner tunnel
//! stays with policies of the outer peer. `config` checks whole files for this.

use std::collections::HashSet;

use ipsec::Tunnel;
use policy::{
    Action, AddressRange, Direction, Policy, PolicyIndex, SaSetId, Selector, UpperSelector,
};
use wire::flow::protocol;

use crate::compiled::Compiled;

/// ESP of a peer that is behind another would not be sealed again: a change of policies is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "ESP between {} and {} would not be protected {} by a policy of peer \"{outer}\"{}: peer \
     \"{inner}\" has outer = \"{outer}\"; keep a policy of \"{outer}\" with these two addresses, \
     protocol = \"esp\", without `ports` and for both directions, above all others that match",
    .tunnel.local, .tunnel.remote, .direction.name(),
    .by.as_ref().map_or(String::new(), |by| format!(", as policy \"{by}\" would decide"))
)]
pub struct OuterWithoutPolicy {
    /// Name of the inner peer.
    pub inner: String,
    /// Name of the outer peer.
    pub outer: String,
    /// Ends of the inner tunnel.
    pub tunnel: Tunnel,
    /// The direction in which a policy of the outer peer is missing.
    pub direction: Direction,
    /// Name of the policy that would decide; `None`: no policy would.
    pub by: Option<String>,
}

/// Checks that a change leaves ESP of each inner tunnel, both ways, with a policy of its outer
/// peer. Looks at all policies only if one that comes or goes matches such ESP.
///
/// # Errors
/// [`OuterWithoutPolicy`].
pub(crate) fn check(
    running: &Compiled,
    removed: &[PolicyIndex],
    added: &[Policy],
) -> Result<(), OuterWithoutPolicy> {
    let settings = running.settings();
    for peer in &settings.peers {
        let Some(outer) = &peer.outer else { continue };
        let place = settings.peers.iter().position(|other| other.name == *outer);
        let Some(place) = place else { continue };
        let esp = esp_between(peer.tunnel());
        let gone = removed.iter().map(|index| running.spd.policy(*index));
        if !gone.chain(added).any(|policy| policy.selector.overlaps(&esp)) {
            continue;
        }
        for direction in [Direction::Outbound, Direction::Inbound] {
            let decider = decider(running, (removed, added), &esp, direction);
            if !decider.is_some_and(|policy| covers(policy, running.peers[place])) {
                return Err(OuterWithoutPolicy {
                    inner: peer.name.clone(),
                    outer: outer.clone(),
                    tunnel: peer.tunnel(),
                    direction,
                    by: decider.map(|policy| policy.name.clone()),
                });
            }
        }
    }
    Ok(())
}

/// ESP between the ends of a tunnel.
fn esp_between(tunnel: Tunnel) -> Selector {
    Selector {
        local: vec![AddressRange::from(tunnel.local)],
        remote: vec![AddressRange::from(tunnel.remote)],
        protocol: Some(protocol::ESP),
        upper: UpperSelector::Any,
    }
}

/// The policy that decides about these packets after a change.
fn decider<'p>(
    running: &'p Compiled,
    (removed, added): (&[PolicyIndex], &'p [Policy]),
    packets: &Selector,
    direction: Direction,
) -> Option<&'p Policy> {
    let removed: HashSet<PolicyIndex> = removed.iter().copied().collect();
    let stay = running.spd.holding_policies().filter(|(index, _)| !removed.contains(index));
    let policies = stay.map(|(_, policy)| policy).chain(added);
    let holds = |policy: &&Policy| {
        policy.only.is_none_or(|only| only == direction) && policy.selector.overlaps(packets)
    };
    policies.filter(holds).max_by_key(|policy| policy.rank())
}

/// Returns whether a policy protects by a set, by whatever port a packet came.
fn covers(policy: &Policy, set: SaSetId) -> bool {
    policy.action == Action::Protect(set) && policy.ingress.is_none()
}
