//! `[overlay.NAME]`, `[vni.NUMBER]` and `[store]`.

use std::collections::HashMap;

use dataplane::{OverlayId, PortId, Side, SourceCheck};
use policy::{AddressRange, Book, Direction};
use wire::flow::protocol;
use wire::overlay::Kind;
use wire::{Address, Family, Vni};

use super::NamedSections;
use super::connections::size;
use super::ports::Ports;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::groups::Group;
use crate::overlays::{
    DEFAULT_ENDPOINTS, DirectUse, FIRST_NETWORK, KernelSettings, KernelUse, MAX_ENDPOINTS,
    MAX_NETWORKS, MAX_NETWORKS_WITH_GROUPS, MAX_OVERLAYS, NetworkSettings, OverlaySettings,
    StoreKind, StoreSettings,
};
use crate::raw::{MAX_PORTS, RawKernel, RawNetwork, RawOverlay, RawStore};
use crate::source::{Span, Spanned};
use crate::validated::{Action, Policy};
use crate::values::{address, bounded, name, word};

/// Overlays of one port at most: the steering program has a place for each.
const MAX_ON_A_PORT: usize = 4;
/// Entrances of an overlay at most.
const MAX_ENTRANCES: usize = 128;

// Ports, with the host port, have numbers below those of networks. Each port and each network with
// groups has a class of its own beside class 0; the domains of all classes, two families in each
// book, are numbered in 16 bits.
const _: () = assert!(MAX_PORTS + 1 < FIRST_NETWORK as usize);
const _: () = assert!(
    (MAX_PORTS + MAX_NETWORKS_WITH_GROUPS + 2) * 2 * Book::ALL.len() <= u16::MAX as usize + 1
);

const KINDS: [(&str, Kind); 2] = [("vxlan", Kind::Vxlan), ("geneve", Kind::Geneve)];

pub(super) fn store(
    raw: Option<&RawStore>,
    problems: &mut Diagnostics<'_>,
) -> Option<StoreSettings> {
    let Some(raw) = raw else { return Some(StoreSettings::default()) };
    let kinds = [("sqlite", StoreKind::Sqlite), ("memory", StoreKind::Memory)];
    let kind = match &raw.kind {
        Some(written) if written.get_ref() == "etcd" => {
            problems.error(&written.span(), DiagnosticKind::EtcdNotYet);
            None
        }
        written => word(problems, "kind", written, StoreKind::Sqlite, &kinds),
    };
    let endpoints = ("endpoints", &raw.endpoints);
    let endpoints = size(endpoints, DEFAULT_ENDPOINTS, (1, MAX_ENDPOINTS), problems);
    Some(StoreSettings { kind: kind?, endpoints: endpoints? })
}

pub(super) fn kernel(
    raw: Option<&RawKernel>,
    problems: &mut Diagnostics<'_>,
) -> Option<KernelSettings> {
    let Some(raw) = raw else { return Some(KernelSettings::default()) };
    let uses = [KernelUse::Auto, KernelUse::On, KernelUse::Off].map(|one| (one.name(), one));
    let usage = word(problems, "use", &raw.usage, KernelUse::Auto, &uses);
    let endpoints = ("endpoints", &raw.endpoints);
    let endpoints = size(endpoints, DEFAULT_ENDPOINTS, (1, MAX_ENDPOINTS), problems);
    let promote_busy = raw.promote_busy.as_ref().is_some_and(|written| *written.get_ref());
    Some(KernelSettings { usage: usage?, endpoints: endpoints?, promote_busy })
}

pub(super) fn overlays(
    raw: &[RawOverlay],
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> NamedSections<OverlaySettings> {
    let mut overlays = NamedSections { ids: HashMap::new(), list: Vec::new() };
    if let Some(beyond) = raw.get(MAX_OVERLAYS) {
        let mistake = DiagnosticKind::TooMany { what: "overlays", limit: MAX_OVERLAYS };
        problems.error(&beyond.name.span(), mistake);
    }
    let (mut entrances, mut on_ports) = (HashMap::new(), HashMap::<PortId, usize>::new());
    for (id, written) in (0..).zip(raw.iter().take(MAX_OVERLAYS)) {
        overlays.ids.insert(written.name.get_ref().clone(), id);
        let Some(overlay) = overlay(written, ports, &mut entrances, problems) else { continue };
        let count = on_ports.entry(overlay.port).or_default();
        *count += 1;
        if *count > MAX_ON_A_PORT {
            let mistake =
                DiagnosticKind::TooMany { what: "overlays of one port", limit: MAX_ON_A_PORT };
            problems.error(&written.name.span(), mistake);
        }
        overlays.list.push(overlay);
    }
    overlays
}

fn overlay(
    raw: &RawOverlay,
    ports: &Ports,
    others: &mut HashMap<(Address, u16), Span>,
    problems: &mut Diagnostics<'_>,
) -> Option<OverlaySettings> {
    let name = name(problems, &raw.name);
    if name.is_none() {
        problems.doubt(Some("overlay".into()));
    }
    let kind = word(problems, "kind", &raw.kind, Kind::Vxlan, &KINDS);
    let kind = kind.filter(|_| raw.kind.is_some());
    let port = raw.port.as_ref().and_then(|written| port(written, ports, problems));
    let default = kind.unwrap_or(Kind::Vxlan).udp_port();
    let udp_port = bounded(problems, "udp_port", &raw.udp_port, default.into(), (1, 65_535));
    let udp_port = udp_port.map(|port| port as u16);
    if let (Some(written), Some(500 | 4500)) = (&raw.udp_port, udp_port) {
        problems.error(&written.span(), DiagnosticKind::OverlayOnIke);
    }
    let mut entrances = Vec::new();
    let written = raw.entrances.as_ref();
    if let Some(list) = written.filter(|list| list.get_ref().is_empty()) {
        problems.error(&list.span(), DiagnosticKind::EmptyList { key: "entrances" });
    }
    for (count, written) in written.into_iter().flat_map(|list| list.get_ref()).enumerate() {
        if count == MAX_ENTRANCES {
            let mistake =
                DiagnosticKind::TooMany { what: "entrances of an overlay", limit: MAX_ENTRANCES };
            problems.error(&written.span(), mistake);
            break;
        }
        let Some(entrance) = entrance(written, problems) else { continue };
        let Some(udp_port) = udp_port else { continue };
        match others.get(&(entrance, udp_port)) {
            Some(earlier) => {
                let mistake = DiagnosticKind::SameEntrance { entrance, udp_port };
                problems.clash(&written.span(), earlier, mistake);
            }
            None => {
                others.insert((entrance, udp_port), written.span());
                entrances.push(entrance);
            }
        }
    }
    let direct = direct(raw, port, ports, problems);
    let (port, udp_port, (direct, direct_port)) = (port?, udp_port?, direct?);
    let (name, kind) = (name?, kind?);
    Some(OverlaySettings { name, kind, port, udp_port, entrances, direct, direct_port })
}

/// The use of direct paths, and the UDP port that hosts are told them at.
fn direct(
    raw: &RawOverlay,
    port: Option<PortId>,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<(DirectUse, u16)> {
    let uses = [DirectUse::On, DirectUse::Off].map(|one| (one.name(), one));
    let direct = word(problems, "direct", &raw.direct, DirectUse::Off, &uses);
    let default = wire::direct_path::UDP_PORT.into();
    let udp_port = bounded(problems, "direct_port", &raw.direct_port, default, (1, 65_535));
    let port = port.and_then(|id| ports.list.get(usize::from(id.0)));
    if let (Some(written), Some(DirectUse::On), Some(port)) = (&raw.direct, direct, port)
        && ports.sound
        && port.side != Side::Protected
    {
        let mistake = DiagnosticKind::DirectUnprotected { port: port.name.clone() };
        problems.error(&written.span(), mistake);
    }
    Some((direct?, udp_port? as u16))
}

fn port(
    written: &Spanned<String>,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<PortId> {
    let name = written.get_ref();
    let port = ports.ids.get(name).copied();
    if port.is_none() {
        let nearest = nearest(name, ports.ids.keys().map(String::as_str));
        let mistake = DiagnosticKind::UnknownPort { name: name.clone(), nearest };
        problems.error(&written.span(), mistake);
    }
    port
}

/// An address that hosts can send to.
fn entrance(written: &Spanned<String>, problems: &mut Diagnostics<'_>) -> Option<Address> {
    let entrance = Address::from(address(problems, written)?);
    let is_unicast = match entrance.family {
        Family::V4 => wire::packet::ipv4_is_unicast(entrance.value as u32),
        Family::V6 => wire::packet::ipv6_is_unicast(entrance.value),
    };
    if !is_unicast || wire::packet::is_link_local(entrance.family, entrance.value) {
        problems.error(&written.span(), DiagnosticKind::BadEntrance { entrance });
        return None;
    }
    Some(entrance)
}

pub(super) fn networks(
    raw: &[RawNetwork],
    overlays: &NamedSections<OverlaySettings>,
    groups: &NamedSections<Group>,
    problems: &mut Diagnostics<'_>,
) -> Vec<NetworkSettings> {
    if let Some(beyond) = raw.get(MAX_NETWORKS) {
        let mistake = DiagnosticKind::TooMany { what: "virtual networks", limit: MAX_NETWORKS };
        problems.error(&beyond.name.span(), mistake);
    }
    let mut networks: Vec<(NetworkSettings, Span)> = Vec::new();
    for written in raw.iter().take(MAX_NETWORKS) {
        let network = network(written, overlays, groups, problems);
        networks.extend(network.map(|network| (network, written.name.span())));
    }
    networks.sort_by_key(|(network, _)| network.vni);
    // `[vni.7]` and `[vni.07]` are two keys of the file.
    for pair in networks.windows(2).filter(|pair| pair[0].0.vni == pair[1].0.vni) {
        let mistake = DiagnosticKind::SameVni { vni: pair[0].0.vni };
        problems.clash(&pair[1].1, &pair[0].1, mistake);
    }
    let has_groups = |(network, _): &&(NetworkSettings, Span)| network.lists_groups();
    if let Some((_, beyond)) = networks.iter().filter(has_groups).nth(MAX_NETWORKS_WITH_GROUPS) {
        let limit = MAX_NETWORKS_WITH_GROUPS;
        let what = "virtual networks with groups";
        problems.error(beyond, DiagnosticKind::TooMany { what, limit });
    }
    networks.into_iter().map(|(network, _)| network).collect()
}

fn network(
    raw: &RawNetwork,
    overlays: &NamedSections<OverlaySettings>,
    groups: &NamedSections<Group>,
    problems: &mut Diagnostics<'_>,
) -> Option<NetworkSettings> {
    let number = raw.name.get_ref();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let vni = number.parse().ok().filter(|_| is_number).and_then(Vni::new);
    if vni.is_none() {
        problems.error(&raw.name.span(), DiagnosticKind::BadVni { text: number.clone() });
    }
    let overlay = match (&raw.overlay, overlays.ids.len(), vni) {
        (Some(written), ..) => known_overlay(written, overlays, problems),
        (None, 1, _) => Some(OverlayId(0)),
        (None, _, None) => None,
        (None, count, Some(vni)) => {
            let mistake = match count {
                0 => DiagnosticKind::NoOverlay { vni },
                count => DiagnosticKind::WhichOverlay { vni, count },
            };
            problems.error(&raw.name.span(), mistake);
            None
        }
    };
    let listed = [("groups_in", &raw.groups_in), ("groups_out", &raw.groups_out)]
        .map(|(key, written)| super::groups::listed(key, written, groups, problems));
    let checks = [
        ("endpoint", SourceCheck::Endpoint),
        ("host", SourceCheck::Host),
        ("none", SourceCheck::None),
    ];
    let check = word(problems, "source_check", &raw.source_check, SourceCheck::Endpoint, &checks);
    let [groups_in, groups_out] = listed;
    let (vni, overlay, source_check) = (vni?, overlay?, check?);
    Some(NetworkSettings { vni, overlay, groups_in, groups_out, source_check })
}

fn known_overlay(
    written: &Spanned<String>,
    overlays: &NamedSections<OverlaySettings>,
    problems: &mut Diagnostics<'_>,
) -> Option<OverlayId> {
    let name = written.get_ref();
    let found = overlays.ids.get(name).map(|id| OverlayId(*id as u16));
    if found.is_none() {
        let nearest = nearest(name, overlays.names());
        let mistake = DiagnosticKind::UnknownOverlay { name: name.clone(), nearest };
        problems.error(&written.span(), mistake);
    }
    found
}

/// Warns of overlays without networks, which drop everything, of entrances that are not among the
/// addresses of their port where the file names any, and of those that send in cleartext by an
/// unprotected port.
pub(super) fn warn(
    (raw, overlays): (&[RawOverlay], &NamedSections<OverlaySettings>),
    networks: &[NetworkSettings],
    ports: &Ports,
    policies: &[Policy],
    problems: &mut Diagnostics<'_>,
) {
    if problems.has_errors() || overlays.list.len() != raw.len() {
        return;
    }
    for ((id, overlay), written) in (0..).map(OverlayId).zip(&overlays.list).zip(raw) {
        if !networks.iter().any(|network| network.overlay == id) {
            let overlay = overlay.name.clone();
            problems
                .warning(&written.name.span(), DiagnosticKind::OverlayWithoutNetwork { overlay });
        }
        let port = &ports.list[usize::from(overlay.port.0)];
        let is_there = |entrance: &Address| {
            port.addresses.iter().any(|own| AddressRange::from(own.address).contains(*entrance))
        };
        let absent = overlay.entrances.iter().find(|entrance| !is_there(entrance));
        if let Some(entrance) = absent.filter(|_| !port.addresses.is_empty()) {
            let (entrance, port) = (*entrance, port.name.clone());
            let span = written.entrances.as_ref().map_or(written.name.span(), Spanned::span);
            problems.warning(&span, DiagnosticKind::EntranceNotOurs { entrance, port });
        }
        if port.side == Side::Unprotected {
            let unsealed = SENDERS.into_iter().find_map(|family| {
                let entrance = overlay.entrances.iter().find(|own| own.family == family)?;
                (!policies.iter().any(|policy| seals(policy, *entrance))).then_some(*entrance)
            });
            if let Some(entrance) = unsealed {
                let (overlay, port) = (overlay.name.clone(), port.name.clone());
                let span = written.port.as_ref().map_or(written.name.span(), Spanned::span);
                let doubt = DiagnosticKind::OverlayInCleartext { overlay, port, entrance };
                problems.warning(&span, doubt);
            }
        }
    }
}

/// Packets leave from the first entrance of the family of their host.
const SENDERS: [Family; 2] = [Family::V4, Family::V6];

/// Returns whether a policy protects UDP packets from an address to somewhere.
fn seals(policy: &Policy, from: Address) -> bool {
    matches!(policy.action, Action::Protect(_))
        && policy.only != Some(Direction::Inbound)
        && matches!(policy.selector.protocol, None | Some(protocol::UDP))
        && policy.selector.local.iter().any(|range| range.contains(from))
}
