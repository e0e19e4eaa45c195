//! Stage 5, packets that a policy protects by an SA set without an outbound SA: they wait for one
//! if a key manager listens ([`crate::sa_queues`]), and continue when the SA is there.

use policy::{Action, PolicyIndex, SetIndex};
use wire::Frames;

use crate::batch_context::BatchContext;
use crate::decide::{cross_again, decide_one};
use crate::large_packet;
use crate::row::{Origin, Row, State};
use crate::sa_queues::{Lacks, Next, PATIENCE_NS, WaitingForSa};
use crate::snapshot::Snapshot;
use crate::verdict::{DropReason, HoldKind, Verdict};
use crate::verdict_basis::VerdictBasis;
use crate::waiting_row::WaitingRow;

/// Holds a packet until its SA set has an outbound SA, or drops it.
#[cold]
pub(crate) fn wait<F: Frames>(context: &mut BatchContext<'_, F>, row: &mut Row) {
    let snapshot = context.snapshot;
    let lacking = match (row.state, row.origin) {
        // What we made ourselves is not worth an SA; a large packet would lose its memory.
        (_, Origin::Made(_) | Origin::Sealed(_)) => None,
        (State::Protect(set), _) if row.frame != large_packet::FRAME => {
            Some(lacking(snapshot, set))
        }
        _ => None,
    };
    let Some((set, lacks)) = lacking.filter(|(set, _)| snapshot.awaits_sa(*set)) else {
        return context.drop(row, DropReason::NoSa);
    };
    let now = (snapshot, context.now_ns);
    let (_, Some(policy)) = judge(now, row, row.bytes(context.frames)) else {
        return context.drop(row, DropReason::NoSa);
    };
    let packet = WaitingForSa {
        row: WaitingRow::of(snapshot, row),
        since_ns: context.now_ns,
        set: snapshot.set(set).id,
        lacks,
        basis: VerdictBasis::of(snapshot),
    };
    match context.sa_queues.take_in(snapshot, context.share, policy, packet) {
        Some(itself) if itself.frame == row.frame => {
            return context.drop(row, DropReason::NoSa);
        }
        Some(other) => {
            context.counters.ledger(Some(other.ingress)).held -= 1;
            context.counters.drop(Some(other.ingress), DropReason::NoSa);
            context.frames.give(other.frame);
        }
        None => {}
    }
    context.end(row, Verdict::Hold(HoldKind::Sa));
    context.counters.ledger(Some(row.ingress)).held += 1;
}

/// The set that lacks an SA for packets of a set: itself, or the one around it.
fn lacking(snapshot: &Snapshot, set: SetIndex) -> (SetIndex, Lacks) {
    match snapshot.outer_of(set).filter(|_| snapshot.seals(snapshot.set(set))) {
        Some(outer) => (outer, Lacks::Outer),
        None => (set, Lacks::Own),
    }
}

/// Returns the next step of a packet that waits. `judged`: the policy that protects it, unless the
/// basis of this verdict has changed.
pub(crate) fn next<F: Frames>(
    (snapshot, now_ns): (&Snapshot, u64),
    waiting: &WaitingForSa,
    judged: Option<PolicyIndex>,
    frames: &F,
) -> Next {
    if now_ns.saturating_sub(waiting.since_ns) >= PATIENCE_NS {
        return Next::Drop(DropReason::NoSa);
    }
    let Some(mut row) = waiting.row.under(snapshot) else { return Next::Drop(DropReason::NoSa) };
    let go_on = |row: Row| match row.origin {
        Origin::Carried(_) => {
            let basis = waiting.basis;
            match cross_again((snapshot, now_ns), &row, row.bytes(frames), basis) {
                Ok(()) => Next::GoOn(row),
                Err(reason) => Next::Drop(reason),
            }
        }
        _ => Next::GoOn(row),
    };
    let seals = |set: SetIndex| snapshot.seals(snapshot.set(set));
    if let Some(policy) = judged {
        return match snapshot.sad().places().get(waiting.set) {
            None => Next::Drop(DropReason::NoSa),
            Some(set) if seals(set) => match waiting.lacks {
                Lacks::Own => go_on(Row { state: State::Protect(set), ..row }),
                // By the set that it is to be sealed by first.
                Lacks::Outer => go_on(Row { state: State::Clear, ..row }),
            },
            Some(_) => Next::Wait(policy),
        };
    }
    row.state = State::Clear;
    match judge((snapshot, now_ns), &row, row.bytes(frames)) {
        (Ok(State::Protect(set)), Some(policy)) => {
            let (lacking, layer) = lacking(snapshot, set);
            match (snapshot.set(lacking).id, layer) == (waiting.set, waiting.lacks) {
                true if !seals(lacking) => Next::Wait(policy),
                _ => go_on(row),
            }
        }
        _ => go_on(row),
    }
}

/// Evaluates the policies for a row as the walk does. Returns also the policy that protects it.
fn judge(
    (snapshot, now_ns): (&Snapshot, u64),
    row: &Row,
    bytes: &[u8],
) -> (Result<State, DropReason>, Option<PolicyIndex>) {
    let mut policy = None;
    let wants_protected =
        |slot: &PolicyIndex| matches!(snapshot.spd().policy(*slot).action, Action::Protect(_));
    let state = decide_one((snapshot, now_ns), row, bytes, |_, foreseen| {
        policy = foreseen.verdict.deciders.slots().find(wants_protected).or(policy);
    });
    (state, policy)
}
