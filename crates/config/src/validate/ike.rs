//! `[ike]`, `[ike.lifetime]` and `[[ike.shunt]]`.

use ipsec::{Encryption, Suite};
use policy::AddressRange;

use super::lifetime;
use super::selectors::{MAX_ENTRIES, Matched, addresses};
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::ike::{DEFAULT_CHILDREN, IkeBounds, MAX_CHILDREN, MAX_SHUNTS, Shunt, ShuntAction};
use crate::raw::{RawIke, RawIkeSelector, RawShunt};
use crate::source::Spanned;
use crate::values::{bounded, word};

/// `None`: a value means nothing, which was noted; inside: there is no such section.
pub(super) fn validate(
    raw: Option<&RawIke>,
    problems: &mut Diagnostics<'_>,
) -> Option<Option<IkeBounds>> {
    let Some(raw) = raw else { return Some(None) };
    let ends = addresses(problems, "ends", &raw.ends);
    let peers = addresses(problems, "peers", &raw.peers);
    let selector = raw.selector.matched("section").selector(problems);
    let suites = suites(raw, problems);
    let children =
        bounded(problems, "max_children", &raw.max_children, DEFAULT_CHILDREN, (1, MAX_CHILDREN));
    let lifetime = lifetime::validate(raw.lifetime.as_ref(), problems);
    lifetime::warn_of_lone_hard_limits(raw.lifetime.as_ref(), problems);
    if let Some(beyond) = raw.shunts.get(MAX_SHUNTS) {
        let mistake = DiagnosticKind::TooMany { what: "shunts", limit: MAX_SHUNTS };
        problems.error(&beyond.selector.at, mistake);
    }
    let written = raw.shunts.iter().take(MAX_SHUNTS);
    let shunts: Vec<Option<Shunt>> = written.map(|raw| shunt(raw, problems)).collect();
    let (ends, peers) = (ends?, peers?);
    check_families(raw, [&ends, &peers], problems)?;
    Some(Some(IkeBounds {
        ends: ends.into(),
        peers: peers.into(),
        selector: selector?,
        suites: suites?,
        max_children: children?,
        lifetime: lifetime?,
        shunts: shunts.into_iter().collect::<Option<_>>()?,
    }))
}

/// Notes ends between which there can be no tunnel.
fn check_families(
    raw: &RawIke,
    [ends, peers]: [&[AddressRange]; 2],
    problems: &mut Diagnostics<'_>,
) -> Option<()> {
    let meet = ends.iter().any(|end| peers.iter().any(|peer| peer.family == end.family));
    if !meet {
        let span = raw.peers.as_ref().map_or(raw.selector.at.clone(), Spanned::span);
        let (one, other) = ("ends", "peers");
        problems.error(&span, DiagnosticKind::NeverMatches { one, other, what: "section" });
    }
    meet.then_some(())
}

fn suites(raw: &RawIke, problems: &mut Diagnostics<'_>) -> Option<Vec<Suite>> {
    let offered = || Suite::ALL.iter().copied().filter(|suite| suite.is_authenticated());
    let Some(written) = &raw.suites else {
        // One that everybody on the path can read is meant only if it is named.
        return Some(offered().filter(|suite| suite.encryption() != Encryption::Null).collect());
    };
    if written.get_ref().is_empty() {
        problems.error(&written.span(), DiagnosticKind::EmptyList { key: "suites" });
        return None;
    }
    let (mut suites, mut sound) = (Vec::new(), true);
    for entry in written.get_ref().iter().take(MAX_ENTRIES) {
        let word = entry.get_ref().clone();
        match offered().find(|suite| suite.name() == word) {
            Some(suite) if suites.contains(&suite) => {
                problems.error(&entry.span(), DiagnosticKind::Repeated { text: word });
                sound = false;
            }
            Some(suite) => suites.push(suite),
            None => {
                let allowed: Vec<&'static str> = offered().map(|suite| suite.name()).collect();
                let nearest = nearest(&word, allowed.iter().copied());
                let mistake = DiagnosticKind::UnknownWord { key: "suites", word, nearest, allowed };
                problems.error(&entry.span(), mistake);
                sound = false;
            }
        }
    }
    sound.then_some(suites)
}

fn shunt(raw: &RawShunt, problems: &mut Diagnostics<'_>) -> Option<Shunt> {
    let actions = ShuntAction::ALL.map(|action| (action.name(), action));
    let action = word(problems, "action", &raw.action, ShuntAction::Discard, &actions);
    let selector = raw.selector.matched("shunt").selector(problems);
    // That it lacks one was noted.
    raw.action.as_ref()?;
    Some(Shunt { action: action?, selector: selector? })
}

impl RawIkeSelector {
    fn matched(&self, what: &'static str) -> Matched<'_> {
        Matched {
            what,
            at: &self.at,
            ends: [("local", &self.local), ("remote", &self.remote)],
            protocol: &self.protocol,
            ports: [("local_ports", &self.local_ports), ("remote_ports", &self.remote_ports)],
            tcp: &None,
            icmp: &None,
        }
    }
}
