//! `[card.NAME]` and `[audit]`.

use std::collections::HashMap;
use std::path::PathBuf;

use dataplane::PortId;

use super::ports::Ports;
use crate::cards::{
    AuditSettings, CardKind, CardSettings, DEFAULT_ONE_OF, EspBy, GroupOffload, MAX_CARDS,
    MAX_ONE_OF,
};
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::raw::{Raw, RawAudit, RawCard};
use crate::source::Span;
use crate::values::{bounded, name, word};

/// Longest path of a socket, bytes (unix(7), with its final zero 108).
const LONGEST_SOCKET: usize = 107;

/// The cards and the audit.
pub(super) fn validate(
    raw: &Raw,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> (Vec<CardSettings>, Option<AuditSettings>) {
    (cards(&raw.cards, ports, problems), audit(raw.audit.as_ref(), problems))
}

fn audit(raw: Option<&RawAudit>, problems: &mut Diagnostics<'_>) -> Option<AuditSettings> {
    let Some(raw) = raw else { return Some(AuditSettings::default()) };
    let one_of = bounded(problems, "one_of", &raw.one_of, DEFAULT_ONE_OF, (0, MAX_ONE_OF))?;
    Some(AuditSettings { one_of })
}

fn cards(raw: &[RawCard], ports: &Ports, problems: &mut Diagnostics<'_>) -> Vec<CardSettings> {
    if let Some(beyond) = raw.get(MAX_CARDS) {
        let mistake = DiagnosticKind::TooMany { what: "cards", limit: MAX_CARDS };
        problems.error(&beyond.name.span(), mistake);
    }
    let mut taken = Taken::default();
    raw.iter()
        .take(MAX_CARDS)
        .filter_map(|written| card(written, ports, &mut taken, problems))
        .collect()
}

/// The places where ports and sockets were given to cards.
#[derive(Default)]
struct Taken {
    ports: HashMap<PortId, Span>,
    /// The card of each netdev, by their names: all ports on a netdev are on one card.
    netdevs: HashMap<String, (String, Span)>,
    sockets: HashMap<PathBuf, Span>,
}

fn card(
    raw: &RawCard,
    ports: &Ports,
    taken: &mut Taken,
    problems: &mut Diagnostics<'_>,
) -> Option<CardSettings> {
    let name = name(problems, &raw.name);
    let kind = kind(raw, problems);
    let socket = socket(raw, kind, taken, problems);
    let mut list = Vec::new();
    let written = raw.ports.as_ref();
    if let Some(empty) = written.filter(|list| list.get_ref().is_empty()) {
        problems.error(&empty.span(), DiagnosticKind::CardWithoutPorts);
    }
    for written in written.into_iter().flat_map(|list| list.get_ref()) {
        let port_name = written.get_ref();
        let Some(port) = ports.ids.get(port_name).copied() else {
            let nearest = nearest(port_name, ports.ids.keys().map(String::as_str));
            let mistake = DiagnosticKind::UnknownPort { name: port_name.clone(), nearest };
            problems.error(&written.span(), mistake);
            continue;
        };
        if let Some(earlier) = taken.ports.get(&port) {
            let mistake = DiagnosticKind::PortOnTwoCards { port: port_name.clone() };
            problems.clash(&written.span(), earlier, mistake);
            continue;
        }
        taken.ports.insert(port, written.span());
        if let Some(of) = ports.list.get(usize::from(port.0)).filter(|_| ports.sound) {
            let card = raw.name.get_ref();
            match taken.netdevs.get(&of.netdev) {
                Some((other, earlier)) if other != card => {
                    let netdev = of.netdev.clone();
                    let mistake = DiagnosticKind::NetdevOnTwoCards { netdev };
                    problems.clash(&written.span(), earlier, mistake);
                }
                _ => {
                    taken.netdevs.insert(of.netdev.clone(), (card.clone(), written.span()));
                }
            }
        }
        list.push(port);
    }
    let uses = |usage: GroupOffload| {
        let of = |port: &PortId| ports.list.get(usize::from(port.0));
        ports.sound && list.iter().filter_map(of).any(|port| port.offload_groups == usage)
    };
    if let Some(written) = written
        && uses(GroupOffload::Drop)
        && uses(GroupOffload::Auto)
    {
        problems.error(&written.span(), DiagnosticKind::DropBesideAuto);
    }
    let ports = written.map(|_| list)?;
    Some(CardSettings { name: name?, kind: kind?, socket: socket?, ports })
}

/// The kind, with who does ESP.
fn kind(raw: &RawCard, problems: &mut Diagnostics<'_>) -> Option<CardKind> {
    let xfrm = CardKind::Xfrm(EspBy::Card);
    let kinds = [CardKind::Emulated, xfrm].map(|kind| (kind.name(), kind));
    let kind = word(problems, "kind", &raw.kind, CardKind::Emulated, &kinds)?;
    raw.kind.as_ref()?;
    let Some(written) = &raw.stand_in else { return Some(kind) };
    let words = [("linux", CardKind::Xfrm(EspBy::Linux))];
    if kind == CardKind::Emulated {
        problems.error(&written.span(), DiagnosticKind::NotOfThisCard { key: "stand_in" });
        return None;
    }
    let stands_in = word(problems, "stand_in", &raw.stand_in, xfrm, &words)?;
    problems.warning(&written.span(), DiagnosticKind::LinuxStandsIn);
    Some(stands_in)
}

/// The path of the socket, of an emulated card. `None`: it is wrong.
fn socket(
    raw: &RawCard,
    kind: Option<CardKind>,
    taken: &mut Taken,
    problems: &mut Diagnostics<'_>,
) -> Option<Option<PathBuf>> {
    let is_xfrm = matches!(kind, Some(CardKind::Xfrm(_)));
    let Some(written) = raw.socket.as_ref() else {
        if kind == Some(CardKind::Emulated) && !raw.has_socket {
            problems.error(&raw.name.span(), DiagnosticKind::CardWithoutSocket);
        }
        return is_xfrm.then_some(None);
    };
    if is_xfrm {
        problems.error(&written.span(), DiagnosticKind::NotOfThisCard { key: "socket" });
        return None;
    }
    let path = PathBuf::from(written.get_ref());
    let fits = path.is_absolute()
        && written.get_ref().len() <= LONGEST_SOCKET
        && !written.get_ref().contains('\0');
    if !fits {
        problems.error(&written.span(), DiagnosticKind::BadSocket { limit: LONGEST_SOCKET });
        return None;
    }
    if let Some(earlier) = taken.sockets.get(&path) {
        let mistake = DiagnosticKind::SameSocket { path: path.display().to_string() };
        problems.clash(&written.span(), earlier, mistake);
        return None;
    }
    taken.sockets.insert(path.clone(), written.span());
    Some(Some(path))
}
