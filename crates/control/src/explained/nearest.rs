//! The policy that almost matches a flow which no policy matches, and the fields that differ.

use std::cmp::Reverse;

use policy::selector::protocol_text;
use policy::{Action, AddressRange, Direction, Policy, PortRange, Spd, UpperSelector};
use wire::{Address, Flow, Upper};

/// Fields that a near policy may differ in.
const MAX_DIFFERING: usize = 2;

/// A sentence about the PROTECT or BYPASS policy that differs from a flow in the fewest fields, an
/// address counting twice, the one of highest precedence among equals. `None`: every policy differs
/// in more than two, or in both addresses. Cost: all policies are compared.
pub(super) fn nearest(
    spd: &Spd,
    (direction, ingress): (Direction, u16),
    flow: &Flow,
) -> Option<String> {
    // To match a DISCARD policy would not help.
    let passing = spd.holding_policies().filter(|(_, policy)| policy.action != Action::Discard);
    let near = passing.filter_map(|(_, policy)| {
        let differing = DifferingFields::of(policy, direction, ingress, flow);
        let count = differing.count();
        let is_near = (1..=MAX_DIFFERING).contains(&count);
        let is_elsewhere = differing.local && differing.remote;
        // Who asks about two hosts means the policy between them.
        let distance = count + usize::from(differing.local || differing.remote);
        (is_near && !is_elsewhere).then_some((distance, policy, differing))
    });
    let precedence = |policy: &Policy| Reverse((policy.priority, policy.id));
    let (_, policy, differing) =
        near.min_by_key(|(distance, policy, _)| (*distance, precedence(policy)))?;
    let fields = differing.in_words(policy, direction, flow).join(" and ");
    Some(format!("policy \"{}\" matches but for {fields}", policy.name))
}

/// The fields of a policy that a flow does not match.
#[derive(Clone, Copy, Default)]
struct DifferingFields {
    direction: bool,
    ports: bool,
    local: bool,
    remote: bool,
    protocol: bool,
    local_ports: bool,
    remote_ports: bool,
    icmp: bool,
}

/// The addresses and ports of a flow as a selector sees them: local, then remote.
fn ends(direction: Direction, flow: &Flow) -> ([Address; 2], Option<[u16; 2]>) {
    let addresses = [flow.source_address(), flow.destination_address()];
    let ports = match flow.upper {
        Upper::Ports { source, destination } => Some([source, destination]),
        Upper::Icmp { .. } | Upper::None | Upper::Fragment => None,
    };
    match direction {
        Direction::Outbound => (addresses, ports),
        Direction::Inbound => {
            let [source, destination] = addresses;
            ([destination, source], ports.map(|[source, destination]| [destination, source]))
        }
    }
}

impl DifferingFields {
    fn of(policy: &Policy, direction: Direction, ingress: u16, flow: &Flow) -> DifferingFields {
        let selector = &policy.selector;
        let ([local, remote], ports) = ends(direction, flow);
        let lacks = |ranges: &[AddressRange], address| !ranges.iter().any(|r| r.contains(address));
        let lacks_port = |ranges: &[PortRange], place: usize| {
            let port = ports.map(|ports| ports[place]);
            let has = |port| ranges.iter().any(|range| range.lo <= port && port <= range.hi);
            !ranges.is_empty() && !port.is_some_and(has)
        };
        let mut differing = DifferingFields {
            direction: policy.only.is_some_and(|only| only != direction),
            ports: policy.ingress.as_ref().is_some_and(|ports| !ports.contains(&ingress)),
            local: lacks(&selector.local, local),
            remote: lacks(&selector.remote, remote),
            protocol: selector.protocol.is_some_and(|protocol| protocol != flow.protocol),
            ..DifferingFields::default()
        };
        match &selector.upper {
            UpperSelector::Any => {}
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
                differing.local_ports = lacks_port(local, 0);
                differing.remote_ports = lacks_port(remote, 1);
            }
            UpperSelector::Icmp(messages) => {
                let has = match flow.upper {
                    Upper::Icmp { kind, code } => {
                        let message = u16::from_be_bytes([kind, code]);
                        messages.iter().any(|range| range.lo <= message && message <= range.hi)
                    }
                    _ => false,
                };
                // Of another protocol no message is told.
                differing.icmp = !has && !differing.protocol;
            }
        }
        differing
    }

    fn count(self) -> usize {
        let fields = [
            self.direction,
            self.ports,
            self.local,
            self.remote,
            self.protocol,
            self.local_ports,
            self.remote_ports,
            self.icmp,
        ];
        fields.into_iter().filter(|differs| *differs).count()
    }

    fn in_words(self, policy: &Policy, direction: Direction, flow: &Flow) -> Vec<String> {
        let ([local, remote], ports) = ends(direction, flow);
        let selector = &policy.selector;
        let mut words = Vec::new();
        if self.direction {
            words.push(format!("its direction, which is not {}", direction.name()));
        }
        if self.ports {
            words.push("its `ports`, which do not name the port that the packet came by".into());
        }
        if self.local {
            words.push(format!("local {local} (it has {})", some(&selector.local)));
        }
        if self.remote {
            words.push(format!("remote {remote} (it has {})", some(&selector.remote)));
        }
        if self.protocol {
            let (found, wanted) =
                (protocol_text(Some(flow.protocol)), protocol_text(selector.protocol));
            words.push(format!("protocol {found} (it has {wanted})"));
        }
        if let Some([local, remote]) = selector.upper.ports() {
            let port = |place: usize| {
                ports.map_or_else(|| "of a packet without".to_owned(), |of| of[place].to_string())
            };
            if self.local_ports {
                words.push(format!("local port {} (it has {})", port(0), some(local)));
            }
            if self.remote_ports {
                words.push(format!("remote port {} (it has {})", port(1), some(remote)));
            }
        }
        if let (UpperSelector::Icmp(messages), true) = (&selector.upper, self.icmp) {
            words.push(format!("the ICMP message (it has {})", some(messages)));
        }
        words
    }
}

/// The first entry of a list, and how many there are beside it.
fn some<T: std::fmt::Display>(list: &[T]) -> String {
    match list {
        [] => "none".into(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
