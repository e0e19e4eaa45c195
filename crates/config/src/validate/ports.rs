//! `[port.NAME]`: the gateway's ports and addresses, with their sides.

use std::collections::HashMap;

use dataplane::carve_out::MAX_SERVICES;
use dataplane::{L4Checksum, PortId, Side};
use policy::AddressRange;
use wire::{Address, Family};

use super::NamedSections;
use crate::cards::GroupOffload;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::groups::Group;
use crate::interface_address::InterfaceAddress;
use crate::raw::{MAX_PORTS, RawPort};
use crate::source::{Span, Spanned};
use crate::validated::{Port, XdpUse};
use crate::values::{bounded, interface, mac, name, service, word};

/// Smallest MTU of a link that carries IPv4 (RFC 791 §3.2).
const LEAST_MTU: u32 = 68;
/// Smallest MTU of a link that carries IPv6 (RFC 8200 §5).
const LEAST_MTU_V6: u32 = 1280;

/// The ports, and what other sections ask about them.
pub(crate) struct Ports {
    /// Right ports; complete only if nothing was wrong.
    pub(crate) list: Vec<Port>,
    /// Every name in the file, right or wrong.
    pub(crate) ids: HashMap<String, PortId>,
    /// Our addresses, with the port and the place where each is written.
    pub(crate) own: HashMap<Address, (PortId, Span)>,
    /// Networks that we are in, with the same.
    pub(crate) networks: HashMap<AddressRange, (PortId, Span)>,
    /// True if all addresses were valid; if not, nothing can be said about foreign addresses.
    pub(crate) sound: bool,
}

impl Ports {
    /// Ports that have an address in a network with this address, each once.
    pub(crate) fn on_link(&self, address: Address) -> Vec<PortId> {
        let mut ports: Vec<PortId> = self
            .networks
            .iter()
            .filter(|(range, _)| range.contains(address))
            .map(|(_, (port, _))| *port)
            .collect();
        ports.sort();
        ports.dedup();
        ports
    }

    /// Name of a port in the file.
    pub(crate) fn name(&self, port: PortId) -> &str {
        self.ids.iter().find(|(_, id)| **id == port).map_or("", |(name, _)| name)
    }
}

pub(crate) fn validate(
    raw: &[RawPort],
    groups: &NamedSections<Group>,
    problems: &mut Diagnostics<'_>,
) -> Ports {
    let mut ports = Ports {
        list: Vec::with_capacity(raw.len()),
        ids: HashMap::new(),
        own: HashMap::new(),
        networks: HashMap::new(),
        sound: true,
    };
    let mut links: HashMap<(&str, Option<i128>), Span> = HashMap::new();
    let xdp = xdp_of_netdevs(raw, problems);
    if let Some(beyond) = raw.get(MAX_PORTS) {
        problems.error(&beyond.at, DiagnosticKind::TooMany { what: "ports", limit: MAX_PORTS });
    }
    for (place, written) in raw.iter().take(MAX_PORTS).enumerate() {
        let id = PortId(place as u16);
        ports.ids.insert(written.name.get_ref().clone(), id);
        if let Some(netdev) = &written.netdev {
            let vlan = written.vlan.as_ref().map(|vlan| *vlan.get_ref());
            let span = written.vlan.as_ref().map_or(netdev.span(), |vlan| vlan.span());
            match links.get(&(netdev.get_ref().as_str(), vlan)) {
                Some(earlier) => {
                    let netdev = netdev.get_ref().clone();
                    problems.clash(&span, earlier, DiagnosticKind::SameLink { netdev, vlan });
                }
                None => {
                    links.insert((netdev.get_ref(), vlan), span);
                }
            }
        }
        if is_only_groups(written) {
            let name = written.name.get_ref().clone();
            let others = raw.iter().filter(|port| !is_only_groups(port));
            let nearest = nearest(&name, others.map(|port| port.name.get_ref().as_str()));
            problems.error(&written.name.span(), DiagnosticKind::UnknownPort { name, nearest });
        }
        let addresses = addresses(written, id, &mut ports, problems);
        let listed = [("groups_in", &written.groups_in), ("groups_out", &written.groups_out)]
            .map(|(key, written)| super::groups::listed(key, written, groups, problems));
        if let Some(port) = port(written, id, addresses, problems) {
            let [groups_in, groups_out] = listed;
            let xdp = xdp.get(port.netdev.as_str()).map_or(XdpUse::Auto, |(xdp, _)| *xdp);
            ports.list.push(Port { groups_in, groups_out, xdp, ..port });
        }
    }
    ports
}

/// Returns whether a section only lists groups: it is of a port that is not there.
fn is_only_groups(port: &RawPort) -> bool {
    let lists_groups = port.groups_in.is_some() || port.groups_out.is_some();
    lists_groups && port.netdev.is_none() && port.side.is_none()
}

fn port(
    raw: &RawPort,
    id: PortId,
    addresses: Vec<InterfaceAddress>,
    problems: &mut Diagnostics<'_>,
) -> Option<Port> {
    let mut port_name = name(problems, &raw.name);
    if raw.name.get_ref() == crate::host_port::HOST_PORT {
        problems.error(&raw.name.span(), DiagnosticKind::ReservedPortName);
        port_name = None;
    }
    if port_name.is_none() {
        problems.doubt(Some("port".into()));
    }
    let netdev = raw.netdev.as_ref().and_then(|written| netdev(written, problems));
    let vlan = match &raw.vlan {
        None => Some(None),
        written => bounded(problems, "vlan", written, 0, (1, 4094)).map(|id| Some(id as u16)),
    };
    let sides = [("protected", Side::Protected), ("unprotected", Side::Unprotected)];
    let side = word(problems, "side", &raw.side, Side::Unprotected, &sides);
    let mut allow_host = Vec::new();
    for written in raw.allow_host.iter().flat_map(|list| list.get_ref()) {
        match service(problems, written) {
            Some(service) if allow_host.contains(&service) => {
                problems.warning(
                    &written.span(),
                    DiagnosticKind::Repeated { text: written.get_ref().clone() },
                );
            }
            service => allow_host.extend(service),
        }
    }
    if let Some(list) = raw.allow_host.as_ref().filter(|_| allow_host.len() > MAX_SERVICES) {
        let (count, limit) = (allow_host.len(), MAX_SERVICES);
        problems.error(&list.span(), DiagnosticKind::TooManyServices { count, limit });
    }
    if let (Some(Side::Protected), Some(list)) = (side, &raw.allow_host)
        && !list.get_ref().is_empty()
    {
        problems.warning(&list.span(), DiagnosticKind::AllowHostInside);
    }
    // Locally administered, and another for each port.
    let [high, low] = (id.0 + 1).to_be_bytes();
    let default_mac = Some([0x02, 0x4c, 0x47, 0, high, low]);
    let mac = raw.mac.as_ref().map_or(default_mac, |written| mac(problems, written));
    let mtu = bounded(problems, "mtu", &raw.mtu, 1500, (LEAST_MTU, 65535));
    let speaks_v6 = addresses.iter().any(|a| a.address.family == Family::V6);
    if let (Some(written), Some(LEAST_MTU..LEAST_MTU_V6), true) = (&raw.mtu, mtu, speaks_v6) {
        problems.error(&written.span(), DiagnosticKind::MtuBelowV6);
    }
    let l4_checksum = l4_checksum(raw, side, problems);
    let offload_groups = offload_groups(raw, problems);
    Some(Port {
        name: port_name?,
        netdev: netdev?,
        vlan: vlan?,
        side: side.filter(|_| raw.side.is_some())?,
        allow_host,
        mac: mac?,
        mtu: mtu?,
        addresses,
        l4_checksum: l4_checksum?,
        xdp: XdpUse::Auto,
        offload_groups: offload_groups?,
        groups_in: Vec::new(),
        groups_out: Vec::new(),
    })
}

/// Reads the name of a netdev.
fn netdev(written: &Spanned<String>, problems: &mut Diagnostics<'_>) -> Option<String> {
    let text = written.get_ref();
    let allowed = |c: char| c.is_ascii_graphic() && c != '/';
    let fits = (1..=15).contains(&text.len()) && text.chars().all(allowed);
    let mistake = match text.as_str() {
        crate::HOST_NETDEV => Some(DiagnosticKind::ReservedNetdev),
        "." | ".." => Some(DiagnosticKind::BadNetdev { text: text.clone() }),
        _ => (!fits).then(|| DiagnosticKind::BadNetdev { text: text.clone() }),
    };
    let fits = mistake.is_none();
    if let Some(mistake) = mistake {
        problems.error(&written.span(), mistake);
    }
    fits.then(|| text.clone())
}

/// Reads `xdp` of each netdev where a port has it: the ports that do not have it follow.
fn xdp_of_netdevs<'r>(
    raw: &'r [RawPort],
    problems: &mut Diagnostics<'_>,
) -> HashMap<&'r str, (XdpUse, Span)> {
    let mut of_netdevs: HashMap<&str, (XdpUse, Span)> = HashMap::new();
    for port in raw.iter().take(MAX_PORTS) {
        let Some(written) = &port.xdp else { continue };
        if written.get_ref() == "offload" {
            problems.error(&written.span(), DiagnosticKind::XdpOffload);
            continue;
        }
        let words = XdpUse::ALL.map(|xdp| (xdp.name(), xdp));
        let xdp = word(problems, "xdp", &port.xdp, XdpUse::Auto, &words);
        let (Some(xdp), Some(netdev)) = (xdp, &port.netdev) else { continue };
        match of_netdevs.get(netdev.get_ref().as_str()) {
            Some((earlier, at)) if *earlier != xdp => {
                let (netdev, earlier) = (netdev.get_ref().clone(), earlier.name());
                let differs = DiagnosticKind::XdpDiffers { netdev, earlier };
                problems.clash(&written.span(), at, differs);
            }
            Some(_) => {}
            None => {
                of_netdevs.insert(netdev.get_ref(), (xdp, written.span()));
            }
        }
    }
    of_netdevs
}

/// The use of the port's card for its groups.
fn offload_groups(raw: &RawPort, problems: &mut Diagnostics<'_>) -> Option<GroupOffload> {
    let words = GroupOffload::ALL.map(|usage| (usage.name(), usage));
    word(problems, "offload_groups", &raw.offload_groups, GroupOffload::Auto, &words)
}

/// Treatment of unfinished checksums: on a protected port they are completed unless the file says
/// otherwise, on an unprotected one never.
fn l4_checksum(
    raw: &RawPort,
    side: Option<Side>,
    problems: &mut Diagnostics<'_>,
) -> Option<L4Checksum> {
    let words = [("complete", L4Checksum::Complete), ("pass", L4Checksum::Pass)];
    let is_inside = side == Some(Side::Protected);
    let default = if is_inside { L4Checksum::Complete } else { L4Checksum::Pass };
    let l4_checksum = word(problems, "l4_checksum", &raw.l4_checksum, default, &words);
    if let (Some(written), Some(Side::Unprotected), Some(L4Checksum::Complete)) =
        (&raw.l4_checksum, side, l4_checksum)
    {
        problems.error(&written.span(), DiagnosticKind::ChecksumOutside);
        return None;
    }
    l4_checksum
}

/// Returns the port's addresses, which also become addresses of the gateway.
fn addresses(
    raw: &RawPort,
    id: PortId,
    ports: &mut Ports,
    problems: &mut Diagnostics<'_>,
) -> Vec<InterfaceAddress> {
    let mut addresses = Vec::new();
    for written in raw.addresses.iter().flat_map(|list| list.get_ref()) {
        let span = written.span();
        let Some(interface) = interface(problems, written) else {
            ports.sound = false;
            continue;
        };
        let InterfaceAddress { address, .. } = interface;
        // Each port has link-local addresses and their network (RFC 4291 §2.5.6) of its own.
        let link_local = crate::values::is_link_local(address);
        if let Some((_, earlier)) = ports.own.get(&address) {
            problems.clash(&span, earlier, DiagnosticKind::SameAddress { address: address.into() });
            ports.sound = false;
            continue;
        }
        ports.own.insert(address, (id, span.clone()));
        let network = interface.network();
        match ports.networks.get(&network) {
            Some((port, earlier)) if *port != id && !link_local => {
                problems.clash(&span, earlier, DiagnosticKind::SameNetwork { network });
                ports.sound = false;
            }
            Some(_) => {}
            None => {
                ports.networks.insert(network, (id, span));
            }
        }
        addresses.push(interface);
    }
    addresses
}
