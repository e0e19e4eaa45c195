//! `[card.NAME]` and `[audit]`.

use std::collections::HashMap;
use std::path::PathBuf;

use dataplane::PortId;

use super::ports::Ports;
use crate::cards::{AuditSettings, CardKind, CardSettings, DEFAULT_ONE_OF, MAX_CARDS, MAX_ONE_OF};
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
    let kind = match &raw.kind {
        Some(written) if written.get_ref() == "xfrm" => {
            problems.error(&written.span(), DiagnosticKind::XfrmNotYet);
            None
        }
        written => {
            let kinds = [(CardKind::Emulated.name(), CardKind::Emulated)];
            let kind = word(problems, "kind", written, CardKind::Emulated, &kinds);
            kind.filter(|_| written.is_some())
        }
    };
    let socket = socket(raw, taken, problems);
    let mut list = Vec::new();
    let written = raw.ports.as_ref();
    if let Some(empty) = written.filter(|list| list.get_ref().is_empty()) {
        problems.error(&empty.span(), DiagnosticKind::EmptyList { key: "ports" });
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
    let ports = written.map(|_| list)?;
    Some(CardSettings { name: name?, kind: kind?, socket: socket?, ports })
}

/// The path of the socket.
fn socket(raw: &RawCard, taken: &mut Taken, problems: &mut Diagnostics<'_>) -> Option<PathBuf> {
    let written = raw.socket.as_ref()?;
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
    Some(path)
}
