//! Security groups in the words of the API.

use api::v1;
use config::groups::{Group, GroupId, Rule};
use config::validated::{Port, Validated};
use config::{NetworkSettings, last_rule_name, rule_name};
use policy::selector::protocol_text;
use policy::{Action, GroupMode, GroupSide, PortRange, TcpSegments};

use super::present::{action_volumes, volume};
use crate::backend::Running;

/// Presents the groups with their rules and counters, and the ports that they are bound to.
pub(crate) fn groups(running: &Running) -> v1::Groups {
    let settings = &*running.settings;
    let groups = (0..).map(GroupId).zip(&settings.groups);
    let ports = bindings(settings).flat_map(|binding| side_groups(running, binding));
    v1::Groups {
        groups: groups.map(|(id, of)| group(running, id, of)).collect(),
        ports: ports.collect(),
        sums: action_volumes(running, 3..Action::NAMES.len()),
    }
}

fn group(running: &Running, id: GroupId, group: &Group) -> v1::Group {
    let settings = &*running.settings;
    let bound = |side: GroupSide| {
        let lists = |binding: &Binding| binding.groups[side as usize].contains(&id);
        bindings(settings).filter(lists).map(|binding| binding.name).collect()
    };
    let rules = settings.rules.iter().filter(|rule| rule.group == id);
    v1::Group {
        name: group.name.clone(),
        mode: match group.mode {
            GroupMode::Enforce => "enforce".into(),
            GroupMode::Audit => "audit".into(),
        },
        ports_in: bound(GroupSide::In),
        ports_out: bound(GroupSide::Out),
        rules: rules.map(|of| rule(running, group, of)).collect(),
    }
}

fn rule(running: &Running, group: &Group, rule: &Rule) -> v1::GroupRule {
    let texts = |ports: &[PortRange]| ports.iter().map(PortRange::to_string).collect();
    let [from_ports, to_ports] = rule.upper.ports().unwrap_or_default().map(texts);
    let icmp = rule.upper.messages().iter().map(ToString::to_string).collect();
    let [from, to] = rule.ends_text(&running.settings.sets);
    v1::GroupRule {
        number: rule.number,
        name: rule.name.clone(),
        action: rule.action.name().into(),
        from,
        to,
        protocol: protocol_text(rule.protocol),
        from_ports,
        to_ports,
        icmp,
        tcp: rule.upper.segments().map_or("", TcpSegments::name).into(),
        decided: Some(decided(running, &rule_name(&group.name, &rule.name))),
    }
}

/// A port, or a virtual network, with the groups of its sides.
struct Binding<'s> {
    name: String,
    groups: [&'s [GroupId]; 2],
}

/// The ports and virtual networks of a configuration.
fn bindings(settings: &Validated) -> impl Iterator<Item = Binding<'_>> {
    let port = |port: &Port| port.name.clone();
    let network = |network: &NetworkSettings| format!("vni {}", network.vni);
    let ports = settings.ports.iter().map(move |of| Binding {
        name: port(of),
        groups: GroupSide::ALL.map(|side| of.groups(side)),
    });
    let networks = settings.networks.iter().map(move |of| Binding {
        name: network(of),
        groups: GroupSide::ALL.map(|side| of.groups(side)),
    });
    ports.chain(networks)
}

/// The sides of a port or network that have groups.
fn side_groups<'s>(
    running: &'s Running,
    Binding { name, groups }: Binding<'s>,
) -> impl Iterator<Item = v1::PortGroups> {
    let settings: &Validated = &running.settings;
    let sides = GroupSide::ALL.into_iter().zip(groups).filter(|(_, groups)| !groups.is_empty());
    sides.map(move |(side, groups)| {
        let groups = groups.iter().map(|id| &settings.groups[id.0 as usize]);
        let is_audit = groups.clone().all(|group| group.mode == GroupMode::Audit);
        v1::PortGroups {
            port: name.clone(),
            side: side.name().into(),
            groups: groups.map(|group| group.name.clone()).collect(),
            no_match: if is_audit { "would_deny" } else { "deny" }.into(),
            decided: Some(decided(running, &last_rule_name(&name, side))),
        }
    })
}

/// The packets that rules of a name decided, in either question.
fn decided(running: &Running, name: &str) -> v1::Volume {
    let [outbound, inbound] = running.policies.get(name).copied().unwrap_or_default();
    let (outbound, inbound) = (volume(outbound), volume(inbound));
    v1::Volume {
        packets: outbound.packets + inbound.packets,
        bytes: outbound.bytes + inbound.bytes,
    }
}
