//! Keys of peers that no card obeys, where a card carries their SAs.

use ipsec::{Dscp, Mode};

use crate::cards::{CardKind, SaOffload};
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::raw::Raw;
use crate::source::Spanned;
use crate::validated::{KeySource, Peer, Validated};

/// Warns of such keys of peers whose SAs may be in a card of the configuration.
pub(super) fn warn(raw: &Raw, validated: &Validated, problems: &mut Diagnostics<'_>) {
    if validated.cards.is_empty() {
        return;
    }
    let by_linux = validated.cards.iter().find(|card| matches!(card.kind, CardKind::Xfrm(_)));
    let may_be_there =
        |peer: &Peer| peer.offload != SaOffload::None && !matches!(peer.keys, KeySource::File(_));
    let peers = validated.peers.iter().zip(&raw.peers);
    for (peer, raw) in peers.filter(|(peer, _)| may_be_there(peer)) {
        let hides = peer.encapsulation.mode == Mode::Tunnel
            && matches!(peer.encapsulation.dscp, Dscp::Fixed(_));
        if let Some(card) = by_linux.filter(|_| hides && peer.offload.needs_card()) {
            let span = raw.dscp.as_ref().map_or(raw.at.clone(), Spanned::span);
            let card = card.name.clone();
            problems.warning(&span, DiagnosticKind::DscpOnCard { card });
        }
    }
}
