//! Validates `moves_to` and `local_moves_to` of `[peer.NAME]`: the addresses that the ends of its
//! SAs may move to when IKE says so.

use std::net::IpAddr;

use ipsec::Tunnel;
use policy::AddressRange;
use wire::Family;

use super::ports::Ports;
use super::selectors;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::peer_moves::PeerMoves;
use crate::raw::{RawPeer, Texts};
use crate::source::Spanned;
use crate::validated::KeySource;
use crate::values::unusable;

/// The end of an SA that moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Ours,
    Theirs,
}

/// Returns whether an end of the peer's SAs may move, by what is written.
pub(super) fn may_move(raw: &RawPeer) -> bool {
    let lists = [&raw.moves_to, &raw.local_moves_to];
    raw.behind_nat.as_ref().is_some_and(|written| *written.get_ref())
        || lists.iter().any(|list| has_entries(list))
}

fn has_entries(list: &Texts) -> bool {
    list.as_ref().is_some_and(|written| !written.get_ref().is_empty())
}

/// `None`: something is wrong, and was noted. `tunnel` and `keys` are `None` if they were.
pub(super) fn moves(
    raw: &RawPeer,
    (tunnel, keys): (Option<Tunnel>, Option<&KeySource>),
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> Option<PeerMoves> {
    let is_transport = raw.mode.as_ref().is_some_and(|mode| mode.get_ref() == "transport");
    let keys = keys.filter(|keys| **keys != KeySource::Ike);
    let mut of = |key: &'static str, written: &Texts, end: End| {
        if !has_entries(written) {
            return Some(Vec::new());
        }
        let span = written.as_ref().map(Spanned::span)?;
        let mistake = match (keys, is_transport) {
            (Some(_), _) => DiagnosticKind::OnlyWithIke { key },
            (None, true) => DiagnosticKind::OnlyInTunnelMode { key },
            (None, false) => {
                let ranges = selectors::addresses(problems, key, written)?;
                return single_ones_fit(written, end, ports, problems).then_some(ranges);
            }
        };
        problems.error(&span, mistake);
        None
    };
    let remote = of("moves_to", &raw.moves_to, End::Theirs);
    let local = of("local_moves_to", &raw.local_moves_to, End::Ours);
    let (remote, local) = (remote?, local?);
    let made = || Some(PeerMoves { local: (&*local).into(), remote: (&*remote).into() });
    let Some(tunnel) = tunnel else { return made() };
    let pairs = [
        ("moves_to", &raw.moves_to, &remote, (tunnel.local, &local)),
        ("local_moves_to", &raw.local_moves_to, &local, (tunnel.remote, &remote)),
    ];
    let mut fits = true;
    for (key, written, ranges, other) in pairs {
        if let (Some(family), Some(written)) = (alone(ranges, other), written) {
            let mistake = DiagnosticKind::MovesAlone { key, family };
            problems.error(&written.span(), mistake);
            fits = false;
        }
    }
    fits.then(made).flatten()
}

/// Checks entries that are one address each: prefixes may well have some that cannot be used.
fn single_ones_fit(
    written: &Texts,
    end: End,
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> bool {
    let mut fits = true;
    for entry in written.iter().flat_map(|list| list.get_ref()) {
        let Ok(address) = entry.get_ref().parse::<IpAddr>() else { continue };
        let mistake = match unusable(address) {
            Some(why) => DiagnosticKind::UnusableAddress { address, why },
            None if end == End::Theirs && ports.own.contains_key(&address.into()) => {
                DiagnosticKind::RemoteIsOurs { address }
            }
            None => continue,
        };
        problems.error(&entry.span(), mistake);
        fits = false;
    }
    fits
}

/// Returns the name of a family that one end may have and the other never has. A list for both
/// families, as `any` is, is no mistake.
fn alone(
    ranges: &[AddressRange],
    (address, others): (IpAddr, &Vec<AddressRange>),
) -> Option<&'static str> {
    let families =
        [(Family::V4, address.is_ipv4(), "IPv4"), (Family::V6, address.is_ipv6(), "IPv6")];
    let is_met = |(family, is_of_address, _): &(Family, bool, &'static str)| {
        *is_of_address || others.iter().any(|other| other.family == *family)
    };
    let has = |family: Family| ranges.iter().any(|range| range.family == family);
    if has(Family::V4) && has(Family::V6) {
        return None;
    }
    families.iter().find(|of| has(of.0) && !is_met(of)).map(|of| of.2)
}
