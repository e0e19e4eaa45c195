//! Packets that are sealed twice: by an SA of a peer, and again by one of the peer that its section
//! names as `outer`. The inner layer is made by software; the outer one by software or a card, as
//! for any packet.
//!
//! * **Out.** What the policies protect by the inner peer's set is sealed, and becomes a row of its
//!   own between the ends of the inner tunnel, which is planned and sealed by the outer peer's
//!   set (`GeneralWalk`). The SPD is not asked about it: the configuration has said so. Sizes are
//!   those of both layers ([`Snapshot::set_sizes`](crate::Snapshot::set_sizes)), so that what the
//!   inner layer makes fits the outer.
//! * **In.** What the outer peer's SA opened, ESP to us by an SA of a peer behind it, must match
//!   the inbound selectors of the SA that opened it, and is opened in its turn. ESP by such an SA
//!   that came without the outer layer is dropped (`unprotected`).
//! * **Once.** A set that is around another has none around itself.
//!
//! The fast path does neither: both go by the general walk.

use ipsec::{CardSeat, EspHeader};
use wire::flow::protocol;
use wire::{Fragment, Frames};

use crate::addresses::is_to_us;
use crate::batch_context::BatchContext;
use crate::decapsulate::{Opening, decapsulate};
use crate::decide;
use crate::ids::SetIndex;
use crate::row::{Carrier, Origin, Row, State};
use crate::stage::StageClock;
use crate::verdict::DropReason;

/// Says whether what an SA of a set seals can be sealed again by the set around it.
///
/// # Errors
/// `dev_mismatch`: a card seals by that SA, and nobody behind it can seal again; `no_sa`: the set
/// around it has no SA.
pub(crate) fn may_seal<F>(
    context: &BatchContext<'_, F>,
    card: Option<CardSeat>,
    outer: SetIndex,
) -> Result<(), DropReason> {
    if card.is_some() {
        return Err(DropReason::DevMismatch);
    }
    context.snapshot.ready_sa(outer, context.share).map(drop)
}

/// Opens the rows that were opened and carry ESP of a peer behind the one that sealed them.
#[inline]
pub(crate) fn open_inside<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    opening: &mut Opening,
    clock: &mut impl StageClock,
) {
    if context.snapshot.seals_again() {
        set_apart(context, rows);
        decapsulate(context, rows, opening, clock);
    }
}

#[cold]
fn set_apart<F: Frames>(context: &mut BatchContext<'_, F>, rows: &mut [Row]) {
    for row in rows.iter_mut() {
        let Origin::Opened(by) = row.origin else { continue };
        if row.state != State::Clear || !carries(context, row, by) {
            continue;
        }
        match decide::admit(context, row) {
            Ok(()) => row.state = State::Outer(Carrier::Esp),
            Err(reason) => context.drop(row, reason),
        }
    }
}

/// Returns whether a row, opened by an SA of a set, carries ESP by an SA of a set that is inside of
/// that one.
fn carries<F: Frames>(context: &BatchContext<'_, F>, row: &Row, by: SetIndex) -> bool {
    let (snapshot, packet) = (context.snapshot, &row.packet);
    let is_esp = packet.flow.protocol == protocol::ESP && packet.fragment == Fragment::Whole;
    if !is_esp || !is_to_us(snapshot, row.ingress, packet) {
        return false;
    }
    let esp = row.bytes(context.frames).get(usize::from(packet.upper_offset)..);
    let spi = esp.and_then(EspHeader::read).and_then(|header| header.spi);
    let sa = spi.and_then(|spi| snapshot.inbound_by_spi(spi));
    sa.is_some_and(|sa| snapshot.outer_of(snapshot.set_of(sa.id)) == Some(by))
}
