//! `[[route]]` and `[[neighbour]]`: how packets leave.

use std::collections::HashMap;

use dataplane::{Neighbour, PortId, Prefix};
use policy::AddressRange;
use wire::Address;

use super::ports::Ports;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::raw::{Raw, RawNeighbour, RawRoute};
use crate::source::{Span, Spanned};
use crate::validated::{Route, Target};
use crate::values::{address, is_link_local, mac, prefix, unusable, word};

/// Routes at most.
const MAX_ROUTES: usize = 1 << 21;
/// Neighbours at most.
const MAX_NEIGHBOURS: usize = 1 << 21;

/// The routes and the neighbours of a file.
pub(crate) fn both(
    raw: &Raw,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> (Vec<Route>, Vec<Neighbour>) {
    let routes = routes(&raw.routes, ports, problems);
    (routes, neighbours(&raw.neighbours, ports, problems))
}

fn routes(raw: &[RawRoute], ports: &Ports, problems: &mut Diagnostics<'_>) -> Vec<Route> {
    let mut routes = Vec::with_capacity(raw.len());
    let mut prefixes: HashMap<Prefix, Span> = HashMap::new();
    if let Some(beyond) = raw.get(MAX_ROUTES) {
        problems.error(&beyond.at, DiagnosticKind::TooMany { what: "routes", limit: MAX_ROUTES });
    }
    for written in raw.iter().take(MAX_ROUTES) {
        let to = written.to.as_ref().and_then(|to| {
            let prefix = prefix(problems, to)?;
            check_prefix(prefix, &to.span(), ports, &mut prefixes, problems);
            Some(prefix)
        });
        let target = target(written, to, ports, problems);
        routes.extend(to.zip(target).map(|(to, target)| Route { to, target }));
    }
    routes
}

/// A prefix has one route, and those of our networks are there already.
fn check_prefix(
    prefix: Prefix,
    span: &Span,
    ports: &Ports,
    seen: &mut HashMap<Prefix, Span>,
    problems: &mut Diagnostics<'_>,
) {
    let range = AddressRange::network(prefix.address, prefix.length);
    if let Some(earlier) = seen.insert(prefix, span.clone()) {
        problems.clash(span, &earlier, DiagnosticKind::SameRoute { range });
    } else if let Some((_, earlier)) = ports.networks.get(&range) {
        problems.clash(span, earlier, DiagnosticKind::RouteOfNetwork { range });
    } else if let Some((_, earlier)) =
        ports.own.get(&prefix.address).filter(|_| range.lo == range.hi)
    {
        problems.clash(span, earlier, DiagnosticKind::RouteOfNetwork { range });
    }
}

fn target(
    raw: &RawRoute,
    to: Option<Prefix>,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<Target> {
    let choices = [("unicast", false), ("blackhole", true)];
    let blackhole = word(problems, "type", &raw.kind, false, &choices);
    let port = raw.port.as_ref().map(|written| port(written, ports, problems));
    let via = raw.via.as_ref().map(|written| {
        let address = address(problems, written)?;
        router(address.into(), to, &written.span(), ports, problems)
    });
    if blackhole? {
        let extra = raw.via.as_ref().or(raw.port.as_ref());
        if let Some(extra) = extra {
            problems.error(&extra.span(), DiagnosticKind::BlackholeLeads);
            return None;
        }
        return Some(Target::Blackhole);
    }
    match (via, port) {
        (None, None) => {
            problems.error(&raw.at, DiagnosticKind::RouteLeadsNowhere);
            None
        }
        (None, Some(port)) => Some(Target::Via(port?, None)),
        (Some(via), port) => {
            let (via, port) = (via?, port.map_or(Some(None), |port| port.map(Some))?);
            let span = raw.via.as_ref().map_or(raw.at.clone(), Spanned::span);
            link(via, port, &span, ports, problems).map(|port| Target::Via(port, Some(via)))
        }
    }
}

/// Judges the address of a router.
fn router(
    via: Address,
    to: Option<Prefix>,
    span: &Span,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<Address> {
    let mistake = match unusable(via.into()) {
        Some(why) => DiagnosticKind::UnusableAddress { address: via.into(), why },
        None if ports.own.contains_key(&via) => DiagnosticKind::ViaIsOurs { via: via.into() },
        None if to.is_some_and(|to| to.address.family != via.family) => DiagnosticKind::MixedRoute,
        None => return Some(via),
    };
    problems.error(span, mistake);
    None
}

/// The port behind which a router is: the one that is written, if the router is in one of its
/// networks, else the one that is in a network with it.
fn link(
    via: Address,
    port: Option<PortId>,
    span: &Span,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<PortId> {
    let candidates = ports.on_link(via);
    let (via_ip, unsure) = (via.into(), !ports.sound);
    let mistake = match (port, candidates.as_slice()) {
        (Some(port), _) if is_link_local(via) || candidates.contains(&port) || unsure => {
            return Some(port);
        }
        (None, [port]) => return Some(*port),
        (None, _) if unsure => return None,
        (Some(port), [other, ..]) => DiagnosticKind::ViaOnOtherPort {
            via: via_ip,
            port: ports.name(port).to_owned(),
            right: ports.name(*other).to_owned(),
        },
        (_, []) => DiagnosticKind::ViaNotConnected { via: via_ip },
        (None, _) => DiagnosticKind::ViaAmbiguous { via: via_ip },
    };
    problems.error(span, mistake);
    None
}

fn port(
    written: &Spanned<String>,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<PortId> {
    let id = ports.ids.get(written.get_ref()).copied();
    if id.is_none() {
        let name = written.get_ref().clone();
        let nearest = nearest(&name, ports.ids.keys().map(String::as_str));
        problems.error(&written.span(), DiagnosticKind::UnknownPort { name, nearest });
    }
    id
}

fn neighbours(
    raw: &[RawNeighbour],
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Vec<Neighbour> {
    let mut neighbours = Vec::with_capacity(raw.len());
    let mut seen: HashMap<(Option<PortId>, Address), Span> = HashMap::new();
    if let Some(beyond) = raw.get(MAX_NEIGHBOURS) {
        problems.error(
            &beyond.at,
            DiagnosticKind::TooMany { what: "neighbours", limit: MAX_NEIGHBOURS },
        );
    }
    for written in raw.iter().take(MAX_NEIGHBOURS) {
        let port = written.port.as_ref().and_then(|name| port(name, ports, problems));
        let mac = written.mac.as_ref().and_then(|text| mac(problems, text));
        let address = written.address.as_ref().and_then(|text| {
            let ip = address(problems, text)?;
            let mistake = match unusable(ip) {
                Some(why) => DiagnosticKind::UnusableAddress { address: ip, why },
                None if ports.own.contains_key(&ip.into()) => {
                    DiagnosticKind::NeighbourIsOurs { address: ip }
                }
                None => return Some((Address::from(ip), text.span())),
            };
            problems.error(&text.span(), mistake);
            None
        });
        if let Some((address, span)) = &address {
            // A link-local address is another neighbour on another port.
            let scope = port.filter(|_| is_link_local(*address));
            if let Some(earlier) = seen.insert((scope, *address), span.clone()) {
                let mistake = DiagnosticKind::SameNeighbour { address: (*address).into() };
                problems.clash(span, &earlier, mistake);
            }
        }
        if let (Some(port), Some((address, _)), Some(mac)) = (port, address, mac) {
            neighbours.push(Neighbour { port, address, mac });
        }
    }
    neighbours
}
