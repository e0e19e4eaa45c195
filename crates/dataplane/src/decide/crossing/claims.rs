//! Claims of a lower tier about tenants' packets: what the rules said of a packet's flow, in the
//! mark in front of it. One that fits saves the question. With any other the packet is judged in
//! full.

use policy::{Exit, FlowVerdict, PolicyIndex, Scope, Tracks};
use wire::{Claim, ClaimKind, Fragment, Mark, Packet};

use crate::overlays::VirtualNetwork;
use crate::row::{Origin, Row};
use crate::snapshot::Snapshot;

/// Returns the verdict that a packet's mark claims, if it is of the rules of now: those of the
/// packet's network, at the generation that their domain has in this snapshot. `packet` is the
/// tenant's; `question` is the one that it saves.
#[inline]
pub(super) fn claimed(
    (snapshot, marks): (&Snapshot, &[Mark]),
    row: &Row,
    (network, packet): (&VirtualNetwork, &Packet),
    question: (Scope, Exit),
) -> Option<FlowVerdict> {
    let mark = marks.get((row.hint as usize).checked_sub(1)?)?;
    // What waited has its hint of another batch; only fragments wait.
    let is_whole = [row.packet.fragment, packet.fragment] == [Fragment::Whole; 2];
    let fits = is_whole
        && row.origin == Origin::Received
        && mark.zone == network.vni.get()
        && is_of_now(snapshot, mark, question);
    let Claim { kind, rule } = Claim::of_word(mark.verdict).filter(|_| fits)?;
    let verdict = snapshot.tables().verdict_of_group_rule(PolicyIndex(rule))?;
    (verdict.passes() == (kind == ClaimKind::Permit)).then_some(verdict)
}

/// Returns whether a claim is by the rules of now, and these are all that the question asks.
fn is_of_now(snapshot: &Snapshot, mark: &Mark, (scope, exit): (Scope, Exit)) -> bool {
    let (tables, spd) = (snapshot.tables(), snapshot.spd());
    let domain = tables.scopes().domain(scope);
    let by = (mark.domain, mark.generation);
    by == (domain.0.into(), spd.generation(domain).0)
        // Generations that began anew name others than those before.
        && spd.wraps() == 0
        && tables.tracks(scope, exit) == Tracks::default()
}
