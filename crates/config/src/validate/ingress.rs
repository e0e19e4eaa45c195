//! `ports` of a policy: by which ports a packet must come for the policy to speak of it.
//!
//! Of a side that it names ports of, only those; of a side that it names none of, all. So a policy
//! for one of several protected ports still speaks of what comes from outside.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use dataplane::Side;

use super::ports::Ports;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::host_port::HOST_PORT;
use crate::raw::Texts;
use crate::source::Spanned;
use crate::validated::IngressPorts;

/// Different lists of ports at most: each is kept once, and each may stand for all ports there are.
const MAX_LISTS: usize = 1024;

/// The lists of ports that policies name.
pub(super) struct Ingress<'a> {
    ports: &'a Ports,
    /// Side of each port, the host port's last. Right only if every port is.
    sides: Vec<Side>,
    /// The meaning of each sorted list of named ports.
    known: HashMap<Vec<u16>, Option<IngressPorts>>,
}

impl<'a> Ingress<'a> {
    pub(super) fn new(ports: &'a Ports) -> Ingress<'a> {
        let mut sides: Vec<Side> = ports.list.iter().map(|port| port.side).collect();
        // While one of them is wrong the list has a gap, and nothing comes of what is resolved.
        sides.resize(ports.ids.len(), Side::Protected);
        sides.push(Side::Protected);
        Ingress { ports, sides, known: HashMap::new() }
    }

    /// The ports of the configuration.
    pub(super) fn ports(&self) -> &'a Ports {
        self.ports
    }

    /// Returns the ports that a list means: `Some(None)`: all ports; `None`: it is wrong.
    pub(super) fn resolve(
        &mut self,
        written: &Texts,
        problems: &mut Diagnostics<'_>,
    ) -> Option<Option<IngressPorts>> {
        let Some(written) = written else { return Some(None) };
        if written.get_ref().is_empty() {
            problems.error(&written.span(), DiagnosticKind::EmptyList { key: "ports" });
            return None;
        }
        let mut named = Vec::with_capacity(written.get_ref().len());
        let mut sound = true;
        for entry in written.get_ref() {
            match self.number(entry, problems) {
                Some(number) => named.push(number),
                None => sound = false,
            }
        }
        named.sort_unstable();
        named.dedup();
        if !sound {
            return None;
        }
        if named.len() < written.get_ref().len() {
            self.warn_of_repeated(written, problems);
        }
        let lists = self.known.len();
        let meant = match self.known.entry(named) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(_) if lists == MAX_LISTS => {
                let what = "different lists in `ports`";
                problems.error(&written.span(), DiagnosticKind::TooMany { what, limit: MAX_LISTS });
                return None;
            }
            Entry::Vacant(entry) => {
                let meant = meant(&self.sides, entry.key());
                entry.insert(meant).clone()
            }
        };
        if meant.is_none() {
            problems.warning(&written.span(), DiagnosticKind::AllPorts);
        }
        Some(meant)
    }

    fn number(&self, written: &Spanned<String>, problems: &mut Diagnostics<'_>) -> Option<u16> {
        let text = written.get_ref();
        if let Some(port) = self.ports.ids.get(text) {
            return Some(port.0);
        }
        if text == HOST_PORT {
            return Some(self.ports.ids.len() as u16);
        }
        let names = self.ports.ids.keys().map(String::as_str);
        let nearest = nearest(text, names.chain([HOST_PORT]));
        problems
            .error(&written.span(), DiagnosticKind::UnknownPort { name: text.clone(), nearest });
        None
    }

    fn warn_of_repeated(
        &self,
        written: &Spanned<Vec<Spanned<String>>>,
        problems: &mut Diagnostics<'_>,
    ) {
        let mut seen = HashSet::new();
        for entry in written.get_ref() {
            if !seen.insert(entry.get_ref().as_str()) {
                let text = entry.get_ref().clone();
                problems.warning(&entry.span(), DiagnosticKind::Repeated { text });
            }
        }
    }
}

/// The ports that a sorted list of named ones stands for; `None`: all.
fn meant(sides: &[Side], named: &[u16]) -> Option<IngressPorts> {
    let names_of = |side: Side| named.iter().any(|&number| sides[usize::from(number)] == side);
    let names = [Side::Protected, Side::Unprotected].map(|side| (side, names_of(side)));
    let is_meant = |number: u16, side: Side| {
        let names_side = names.iter().any(|&(named_side, names)| names && named_side == side);
        !names_side || named.binary_search(&number).is_ok()
    };
    let numbered = (0..).zip(sides);
    let meant: Vec<u16> = numbered
        .filter(|&(number, side)| is_meant(number, *side))
        .map(|(number, _)| number)
        .collect();
    (meant.len() < sides.len()).then(|| IngressPorts::new(meant))
}
