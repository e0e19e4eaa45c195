//! Meetings of `allow_host` and policies: a service that a port lists for this machine, and a
//! PROTECT or DISCARD policy that wants some of its packets. The policy decides (RFC 4301 §5.2), so
//! an operator who counts on the service should know.

use dataplane::carve_out::may_want;
use dataplane::{HostService, PortInfos, Side};
use policy::{Action, AddressRange, Direction, Policy, UpperSelector};
use wire::{Address, Family};

use crate::meeting::Meeting;
use crate::written::service_text;

/// The services that policies want packets of, one meeting a service. `own` are our addresses on
/// unprotected ports as far as they are known; a policy for every local address has them all. IKE
/// is spared, and so is a service that a BYPASS policy of higher precedence lets pass.
pub fn meetings<'p>(
    ports: &PortInfos,
    own: &[Address],
    policies: impl Iterator<Item = &'p Policy> + Clone,
) -> Vec<Meeting> {
    let mut meetings = Vec::new();
    for (place, port) in ports.iter() {
        if port.side != Side::Unprotected {
            continue;
        }
        for service in &port.allow_host {
            let mut wanting = policies.clone().filter(|policy| {
                let comes = policy.ingress.as_ref().is_none_or(|of| of.contains(&(place as u16)));
                comes && may_want(policy, service) && has_ours(policy, own)
            });
            let Some(first) = wanting.next() else { continue };
            let precedence = |policy: &Policy| (policy.priority, policy.id);
            let mut highest = first;
            let mut more = 0;
            for other in wanting {
                more += 1;
                if precedence(other) > precedence(highest) {
                    highest = other;
                }
            }
            let passes = |policy: &Policy| {
                passes_all(policy, service, own) && precedence(policy) > precedence(highest)
            };
            if policies.clone().any(passes) {
                continue;
            }
            meetings.push(Meeting {
                port: port.name.clone(),
                service: service_text(service),
                policy: highest.name.clone(),
                more,
            });
        }
    }
    meetings
}

fn has_ours(policy: &Policy, own: &[Address]) -> bool {
    let local = &policy.selector.local;
    local.iter().any(|range| {
        *range == AddressRange::any(range.family) || own.iter().any(|own| range.contains(*own))
    })
}

/// Returns whether a policy is a BYPASS for all packets of a service to our addresses, by every
/// port.
fn passes_all(policy: &Policy, service: &HostService, own: &[Address]) -> bool {
    let selector = &policy.selector;
    let holds_any = |family| selector.remote.contains(&AddressRange::any(family));
    let to_ours = |family| {
        let mut ours = own.iter().filter(|own| own.family == family);
        selector.local.contains(&AddressRange::any(family))
            || ours.all(|own| selector.local.iter().any(|range| range.contains(*own)))
    };
    let names = |family| own.iter().any(|own| own.family == family) || own.is_empty();
    let families = [Family::V4, Family::V6].into_iter();
    let is_upper = match &selector.upper {
        UpperSelector::Any => true,
        UpperSelector::Ports { local, remote } => {
            let listed = service.ports.unwrap_or(policy::PortRange::ANY);
            let holds = |range: &policy::PortRange| range.contains_range(&listed);
            remote.is_empty() && (local.is_empty() || local.iter().any(holds))
        }
        UpperSelector::Icmp(_) | UpperSelector::Tcp { .. } => false,
    };
    policy.action == Action::Bypass
        && policy.only != Some(Direction::Outbound)
        && policy.ingress.is_none()
        && selector.protocol.is_none_or(|protocol| protocol == service.protocol)
        && is_upper
        && families.filter(|family| names(*family)).all(|f| holds_any(f) && to_ours(f))
}
