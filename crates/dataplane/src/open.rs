//! Stage 2: ESP to us becomes the packet inside (RFC 4303 §3.4, RFC 4301 §5.2 steps 1 to 3).

use ipsec::replay::Advance;
use ipsec::{EspHeader, InboundSa, Mode, OpenError, OpenJob, ReplayError};
use wire::{Family, Frames};

use crate::DropReason;
use crate::esp::{self, Carrier, Moved};
use crate::stage::{Stage, StageClock};
use crate::walk::{Opening, Origin, Row, Scratch, State, Turn};

/// Opens the sealed rows of a batch.
///
/// 1. each row: SA by SPI, replay check, nonce
/// 2. the cipher, SA by SA
/// 3. each row: replay commit, trailer, ECN, the inner packet's own checks
pub(crate) fn open<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    scratch: &mut Scratch,
    clock: &mut impl StageClock,
) {
    scratch.openings.clear();
    if rows.iter().all(|row| row.state != State::Sealed) {
        return;
    }
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Sealed) {
        match prepare(turn, row, number as u32) {
            Ok(opening) => match turn.other_worker(opening.sa) {
                Some(worker) => turn.hand_over(row, worker),
                None => scratch.openings.push(opening),
            },
            Err(reason) => turn.drop(row, reason),
        }
    }
    let first = scratch.openings.first().map(|opening| opening.sa);
    if scratch.openings.iter().any(|opening| Some(opening.sa) != first) {
        scratch.openings.sort_unstable_by_key(|opening| (opening.sa, opening.job.row));
    }
    clock.ended(Stage::OpenPrepare);
    for group in scratch.openings.chunk_by(|a, b| a.sa == b.sa) {
        let sa = &turn.snapshot.inbound()[group[0].sa.0 as usize];
        scratch.open_jobs.clear();
        scratch.open_jobs.extend(group.iter().map(|opening| opening.job));
        sa.cipher.open(turn.frames, &mut scratch.open_jobs);
        clock.ended(Stage::OpenCipher);
        for job in &scratch.open_jobs {
            let row = &mut rows[job.row as usize];
            match finish(turn, row, sa, job) {
                Ok(()) => turn.counters.opened(sa.id, row.packet.length as usize),
                Err(reason) => turn.drop(row, reason),
            }
        }
        clock.ended(Stage::OpenFinish);
    }
}

/// SA, nonce and replay check of one ESP packet.
fn prepare<F: Frames>(turn: &Turn<'_, F>, row: &Row, number: u32) -> Result<Opening, DropReason> {
    let bytes = row.bytes(turn.frames);
    let (start, end, carrier) = esp::place(bytes, &row.packet).ok_or(DropReason::Malformed)?;
    let esp = bytes.get(start..end).unwrap_or_default();
    let header = EspHeader::read(esp).ok_or(DropReason::Malformed)?;
    let sa = header.spi.and_then(|spi| turn.snapshot.inbound_by_spi(spi));
    let sa = sa.ok_or(DropReason::UnknownSpi)?;
    // RFC 4301 §4.1: the SPI alone finds a unicast SA; that it came to the SA's own address is
    // checked all the same.
    if row.packet.flow.destination_address() != sa.tunnel().local.into() {
        return Err(DropReason::UnknownSpi);
    }
    if sa.encapsulation.udp.is_some() != (carrier != Carrier::Ip) {
        return Err(DropReason::Encapsulation);
    }
    let (start, end) = (row.ip as usize + start, row.ip as usize + end);
    let frame = turn.frames.bytes(row.frame);
    let job = sa.open_job(row.frame, frame, start..end, number).map_err(open_reason)?;
    sa.window.check(job.sequence).map_err(replay_reason)?;
    Ok(Opening { sa: sa.id, job })
}

/// Replay commit and the inner packet of one authentic ESP packet.
fn finish<F: Frames>(
    turn: &mut Turn<'_, F>,
    row: &mut Row,
    sa: &InboundSa,
    job: &OpenJob,
) -> Result<(), DropReason> {
    if !job.authentic {
        return Err(DropReason::Integrity);
    }
    let committed = match turn.snapshot.workers() {
        1 => sa.window.commit(job.sequence),
        _ => sa.window.commit_shared(job.sequence),
    };
    let advance = committed.map_err(replay_reason)?;
    let set = turn.snapshot.set_of(sa.id);
    if sa.encapsulation.udp.is_some() && advance == Advance::Moved {
        note_move(turn, row, sa, set);
    }
    let frame = turn.frames.bytes(row.frame);
    let mode = sa.encapsulation.mode;
    let payload = ipsec::esp::strip(frame, job, mode).map_err(open_reason)?;
    let (ip, packet) = esp::take_out(turn.frames, row, payload)?;
    let (inside, outside) = (packet.traffic_class & 3, row.packet.traffic_class & 3);
    let ecn = match mode {
        Mode::Tunnel => ipsec::ecn::decapsulate(inside, outside).ok_or(DropReason::Ecn)?,
        Mode::Transport => inside,
    };
    *row = Row {
        ip,
        origin: Origin::Opened(set),
        state: State::Clear,
        packet: wire::Packet { traffic_class: packet.traffic_class & !3 | ecn, ..packet },
        ..*row
    };
    if ecn != inside {
        let family: Family = packet.flow.family;
        wire::packet::set_ecn(row.bytes_mut(turn.frames), family, ecn);
    }
    Ok(())
}

/// Remembers where a peer behind a NAT is now: the packet is authentic and the newest of its SA,
/// so nobody who has merely recorded it can send it from elsewhere.
fn note_move<F: Frames>(turn: &mut Turn<'_, F>, row: &Row, sa: &InboundSa, set: crate::SetIndex) {
    let Some((.., carrier)) = esp::place(row.bytes(turn.frames), &row.packet) else { return };
    let elsewhere = esp::elsewhere(sa, carrier, &row.packet);
    if let Some((address, port)) = elsewhere.filter(|_| turn.snapshot.set(set).may_move) {
        turn.out.moved.retain(|moved| moved.set != set);
        turn.out.moved.push(Moved { set, address, port });
    }
}

fn replay_reason(error: ReplayError) -> DropReason {
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
