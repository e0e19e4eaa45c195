//! Stage 2: a packet to us that carries another one becomes that one: ESP, alone or in UDP
//! (RFC 4303 §3.4, RFC 4301 §5.2 steps 1 to 3).

use ipsec::replay::Advance;
use ipsec::{EspHeader, InboundSa, Mode, OpenError, OpenJob, ReplayError, SaId};
use wire::{Deciphered, Family, Frames};

use crate::batch_context::BatchContext;
use crate::ids::{PortId, SetIndex};
use crate::outputs::AddressUpdate;
use crate::row::{Carrier, Origin, Row, State};
use crate::stage::{Stage, StageClock};
use crate::verdict::{DropReason, Verdict};
use crate::{card_sas, esp, sa_selectors};

/// Opens the rows of a batch that carry ESP.
///
/// 1. each row: SA by SPI, replay check, nonce
/// 2. the cipher, SA by SA
/// 3. each row: replay commit, trailer, ECN, the inner packet's own checks
pub(crate) fn decapsulate<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    opening: &mut Opening,
    clock: &mut impl StageClock,
) {
    let Opening { jobs, sas, .. } = opening;
    jobs.clear();
    sas.clear();
    if !rows.iter().any(|row| matches!(row.state, State::Outer(_))) {
        return;
    }
    let may_be_others = context.handing.is_some();
    for (number, row) in rows.iter_mut().enumerate() {
        let State::Outer(carrier) = row.state else { continue };
        match prepare(context, row, carrier, number as u32, jobs) {
            Ok(Opener::Other(worker)) => {
                context.hand_over(row, worker);
                continue;
            }
            Ok(Opener::This(sa)) => sas.push(sa),
            Err(reason) => context.drop(row, reason),
        }
        if may_be_others && !matches!(row.origin, Origin::Opened(_)) {
            // It was not, and `receive` could not know.
            context.counters.ledger(Some(row.ingress)).received += 1;
        }
    }
    opening.group();
    clock.ended(Stage::OpenPrepare);
    let Opening { jobs, sas, numbers, commits, .. } = opening;
    let mut rest = &mut jobs[..];
    for group in sas.chunk_by(|a, b| a == b) {
        let (jobs, others) = rest.split_at_mut(group.len());
        rest = others;
        let (sa, set) = (context.snapshot.inbound_sa(group[0]), context.snapshot.set_of(group[0]));
        // What a card has deciphered is authentic or not by what that said.
        if sa.card.is_none() {
            sa.cipher.open(context.frames, jobs);
        }
        clock.ended(Stage::OpenCipher);
        commit(context, sa, jobs, numbers, commits);
        let mut committed = commits.iter().copied();
        let mut allowed = within_limits(sa, jobs, commits);
        for job in jobs {
            let row = &mut rows[job.row as usize];
            let answer = match job.authentic {
                // Without an answer of the window nothing passes.
                true => committed.next().unwrap_or(Err(ReplayError::TooOld)).map_err(replay_reason),
                false => Err(DropReason::Integrity),
            };
            let answer = answer.and_then(|advance| {
                allowed = allowed.checked_sub(1).ok_or(DropReason::SaHardLimit)?;
                Ok(advance)
            });
            let finished = finish(context, row, (sa, set), job, answer);
            if let Err(reason) = finished.and_then(|()| take_in(context, row, sa)) {
                context.drop(row, reason);
            }
        }
        clock.ended(Stage::OpenFinish);
    }
}

/// The ESP packets of a batch that are to be opened; kept over batches.
#[derive(Default)]
pub(crate) struct Opening {
    jobs: Vec<OpenJob>,
    /// The SA of each job.
    sas: Vec<SaId>,
    /// For grouping: each job's SA and its place among the jobs as they came, and the jobs in their
    /// new order.
    order: Vec<(SaId, u32)>,
    grouped: Vec<OpenJob>,
    /// Sequence numbers of the authentic packets of one SA, and what the window says of each.
    numbers: Vec<u64>,
    commits: Vec<Result<Advance, ReplayError>>,
}

impl Opening {
    /// Brings the jobs of each SA together. Most batches are of one.
    fn group(&mut self) {
        let Opening { jobs, sas, order, grouped, .. } = self;
        if sas.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        order.clear();
        order.extend(sas.iter().copied().zip(0..));
        // In place, without memory; the places keep the packets of an SA in their order.
        order.sort_unstable();
        grouped.clear();
        grouped.extend(order.iter().map(|(_, place)| jobs[*place as usize]));
        std::mem::swap(jobs, grouped);
        sas.clear();
        sas.extend(order.iter().map(|(sa, _)| *sa));
    }
}

/// Marks the authentic packets of one SA as received, in their order; `commits` becomes one entry
/// for each of them.
fn commit<F>(
    context: &BatchContext<'_, F>,
    sa: &InboundSa,
    jobs: &[OpenJob],
    numbers: &mut Vec<u64>,
    commits: &mut Vec<Result<Advance, ReplayError>>,
) {
    let authentic = jobs.iter().filter(|job| job.authentic).map(|job| job.sequence);
    commits.clear();
    match context.snapshot.workers() {
        1 => commits.extend(authentic.map(|number| sa.window.commit(number))),
        _ => {
            numbers.clear();
            numbers.extend(authentic);
            sa.window.commit_batch_shared(numbers, commits);
        }
    }
}

/// Counts the packets of one SA that its window accepted; returns how many of them its limits
/// allow: the first ones.
fn within_limits(
    sa: &InboundSa,
    jobs: &[OpenJob],
    commits: &[Result<Advance, ReplayError>],
) -> u32 {
    let Some(allowance) = &sa.allowance else { return u32::MAX };
    let authentic = || jobs.iter().filter(|job| job.authentic).zip(commits);
    let accepted = || authentic().filter(|(_, commit)| commit.is_ok());
    let bytes = || accepted().map(|(job, _)| u64::from(job.text_length));
    allowance.take(accepted().count() as u32, bytes().sum(), bytes)
}

/// The worker that opens a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opener {
    /// This one, by this SA: there is a job.
    This(SaId),
    /// Another one: nothing of the packet has been changed.
    Other(u32),
}

/// SA, nonce and replay check of one ESP packet: adds its job, if its SA is this worker's. What the
/// checks refuse goes into no other worker's ring.
fn prepare<F: Frames>(
    context: &BatchContext<'_, F>,
    row: &Row,
    carrier: Carrier,
    number: u32,
    jobs: &mut Vec<OpenJob>,
) -> Result<Opener, DropReason> {
    let frame = context.frames.bytes(row.frame);
    let whole = row.ip as usize..row.ip as usize + row.packet.length as usize;
    let bytes = frame.get(whole).unwrap_or_default();
    let (start, end) = esp::place(bytes, &row.packet, carrier).ok_or(DropReason::Malformed)?;
    let esp = bytes.get(start..end).unwrap_or_default();
    let header = EspHeader::read(esp).ok_or(DropReason::Malformed)?;
    let spi = header.spi.ok_or(DropReason::UnknownSpi)?;
    let sa = context.snapshot.inbound_by_spi(spi).ok_or(DropReason::UnknownSpi)?;
    // RFC 4301 §4.1: the SPI alone finds a unicast SA; that it came to the SA's own address is
    // checked all the same, unless that address moves.
    let is_elsewhere = row.packet.flow.destination_address() != sa.tunnel().local.into();
    let is_other_form = sa.encapsulation.udp.is_some() != (carrier != Carrier::Esp);
    let moves = (is_elsewhere || is_other_form) && context.snapshot.moves_by_ike(sa);
    if is_elsewhere && !moves {
        return Err(DropReason::UnknownSpi);
    }
    let is_received = !matches!(row.origin, Origin::Opened(_));
    if is_received && context.snapshot.needs_outer(sa) {
        return Err(DropReason::Unprotected);
    }
    if is_other_form && !moves {
        return Err(DropReason::Encapsulation);
    }
    let by_card = match sa.card {
        None => None,
        Some(_) => Some(card_sas::deciphered(context, sa, (row.ingress, row.hint))?),
    };
    let (start, end) = (row.ip as usize + start, row.ip as usize + end);
    let mut job = sa.open_job(row.frame, frame, start..end, number).map_err(open_reason)?;
    sa.window.check(job.sequence).map_err(replay_reason)?;
    if sa.allowance.as_ref().is_some_and(|allowance| allowance.is_spent()) {
        return Err(DropReason::SaHardLimit);
    }
    // What was opened here is opened on here: any worker may mark a number as received.
    let other = context.other_worker(sa.id).filter(|_| is_received);
    match (by_card, other) {
        // There is no cipher to run for it, and its mark would stay behind.
        (Some(outcome), _) => job.authentic = outcome == Deciphered::Authentic,
        (None, Some(worker)) => return Ok(Opener::Other(worker)),
        (None, None) => {}
    }
    jobs.push(job);
    Ok(Opener::This(sa.id))
}

/// The place of a packet that the fast path opened and that the general walk goes on with.
pub(crate) struct LatePacket {
    /// The place of its verdict.
    pub(crate) place: u32,
    /// Offset of its outer IP header in the frame.
    pub(crate) ip: u32,
    pub(crate) ingress: PortId,
}

/// Finishes a packet that was opened and is not common: makes it a row of the packet in it, or
/// drops it. `answer` says how an authentic one moved the window, or why it is dropped.
#[cold]
pub(crate) fn late<F: Frames>(
    context: &mut BatchContext<'_, F>,
    outer: LatePacket,
    (sa, set): (&InboundSa, SetIndex),
    job: &OpenJob,
    answer: Result<Advance, DropReason>,
) -> Option<Row> {
    let LatePacket { place, ip, ingress } = outer;
    let frame = context.frames.bytes(job.frame);
    let Ok(packet) = wire::packet::parse(frame.get(ip as usize..).unwrap_or_default()) else {
        // It was whole when it was looked at, and a cipher writes behind its headers only.
        context.out.verdicts[place as usize] = Some(Verdict::Drop(DropReason::Malformed));
        context.counters.drop(Some(ingress), DropReason::Malformed);
        context.frames.give(job.frame);
        return None;
    };
    let carrier = esp::carrier(&packet);
    let (origin, state) = (Origin::Received, State::Outer(carrier));
    let mut row = Row {
        place,
        frame: job.frame,
        ip,
        hint: 0,
        echo: None,
        tenant: None,
        ingress,
        origin,
        state,
        packet,
    };
    let finished = finish(context, &mut row, (sa, set), job, answer);
    match finished.and_then(|()| take_in(context, &row, sa)) {
        Ok(()) => Some(row),
        Err(reason) => {
            context.drop(&mut row, reason);
            None
        }
    }
}

/// Counts an opened packet and checks it against its SA's selectors.
fn take_in<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    sa: &InboundSa,
) -> Result<(), DropReason> {
    context.counters.opened(sa.id, row.packet.length as usize);
    sa_selectors::check(context.snapshot, sa, row, row.bytes(context.frames))
}

/// The inner packet of one ESP packet. `answer` says how an authentic one moved the window, or why
/// it is dropped.
fn finish<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    (sa, set): (&InboundSa, SetIndex),
    job: &OpenJob,
    answer: Result<Advance, DropReason>,
) -> Result<(), DropReason> {
    let advance = answer?;
    if !job.authentic {
        return Err(DropReason::Integrity);
    }
    if sa.encapsulation.udp.is_some() && advance == Advance::Moved {
        note_move(context, row, sa, set);
    }
    let frame = context.frames.bytes(row.frame);
    let mode = sa.encapsulation.mode;
    let payload = ipsec::esp::strip(frame, job, mode).map_err(open_reason)?;
    let outside = row.packet.traffic_class & 3;
    esp::decapsulate(context.frames, row, payload)?;
    let inside = row.packet.traffic_class & 3;
    let ecn = match mode {
        Mode::Tunnel => ipsec::ecn::decapsulate(inside, outside).ok_or(DropReason::Ecn)?,
        Mode::Transport => inside,
    };
    row.origin = Origin::Opened(set);
    row.hint = 0;
    row.state = State::Clear;
    if ecn != inside {
        row.packet.traffic_class = row.packet.traffic_class & !3 | ecn;
        let family: Family = row.packet.flow.family;
        wire::packet::set_ecn(row.bytes_mut(context.frames), family, ecn);
    }
    Ok(())
}

/// Remembers where a peer behind a NAT is now: the packet is authentic and the newest of its SA,
/// so nobody who has merely recorded it can send it from elsewhere.
fn note_move<F>(context: &mut BatchContext<'_, F>, row: &Row, sa: &InboundSa, set: SetIndex) {
    let State::Outer(carrier) = row.state else { return };
    let elsewhere = esp::elsewhere(sa, carrier, &row.packet);
    let set = context.snapshot.set(set);
    if let Some((address, port)) = elsewhere.filter(|_| set.may_move) {
        let (set, spi) = (set.id, sa.spi);
        context.out.moved.retain(|moved| (moved.set, moved.spi) != (set, spi));
        context.out.moved.push(AddressUpdate { set, spi, address, port });
    }
}

pub(crate) fn replay_reason(error: ReplayError) -> DropReason {
    match error {
        ReplayError::Duplicate => DropReason::Replayed,
        ReplayError::TooOld => DropReason::TooOld,
    }
}

fn open_reason(error: OpenError) -> DropReason {
    match error {
        OpenError::Truncated | OpenError::Alignment => DropReason::Malformed,
        OpenError::Integrity => DropReason::Integrity,
        OpenError::Padding => DropReason::BadPadding,
        OpenError::NextHeader => DropReason::BadNextHeader,
        OpenError::Dummy => DropReason::Dummy,
    }
}
