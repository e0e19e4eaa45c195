//! Stage 2: ESP to us becomes the packet inside (RFC 4303 §3.4, RFC 4301 §5.2 steps 1 to 3).

use ipsec::{EspHeader, InboundSa, OpenError, OpenJob, ReplayError};
use wire::{Family, Frames};

use crate::DropReason;
use crate::walk::{Opening, Origin, Row, Scratch, State, Turn};

/// Opens the sealed rows of a batch.
///
/// 1. each row: SA by SPI, replay check, nonce
/// 2. the cipher, SA by SA
/// 3. each row: replay commit, trailer, ECN, the inner packet's own checks
pub(crate) fn open<F: Frames>(turn: &mut Turn<'_, F>, rows: &mut [Row], scratch: &mut Scratch) {
    scratch.openings.clear();
    if rows.iter().all(|row| row.state != State::Sealed) {
        return;
    }
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Sealed) {
        match prepare(turn, row, number as u32) {
            Ok(opening) => scratch.openings.push(opening),
            Err(reason) => turn.drop(row, reason),
        }
    }
    let first = scratch.openings.first().map(|opening| opening.sa);
    if scratch.openings.iter().any(|opening| Some(opening.sa) != first) {
        scratch.openings.sort_unstable_by_key(|opening| (opening.sa, opening.job.row));
    }
    for group in scratch.openings.chunk_by(|a, b| a.sa == b.sa) {
        let sa = &turn.snapshot.inbound()[group[0].sa.0 as usize];
        scratch.open_jobs.clear();
        scratch.open_jobs.extend(group.iter().map(|opening| opening.job));
        sa.cipher.open(turn.frames, &mut scratch.open_jobs);
        for job in &scratch.open_jobs {
            let row = &mut rows[job.row as usize];
            match finish(turn, row, sa, job) {
                Ok(()) => turn.counters.opened(sa.id, row.packet.length as usize),
                Err(reason) => turn.drop(row, reason),
            }
        }
    }
}

/// SA, nonce and replay check of one ESP packet.
fn prepare<F: Frames>(turn: &Turn<'_, F>, row: &Row, number: u32) -> Result<Opening, DropReason> {
    let esp = row.bytes(turn.frames).get(row.packet.upper_offset.into()..).unwrap_or_default();
    let header = EspHeader::read(esp).ok_or(DropReason::Malformed)?;
    let sa = header.spi.and_then(|spi| turn.snapshot.inbound_by_spi(spi));
    let sa = sa.ok_or(DropReason::UnknownSpi)?;
    // RFC 4301 §4.1: the SPI alone finds a unicast SA; that it came to the SA's own address is
    // checked all the same.
    if row.packet.flow.destination_address() != sa.tunnel.local.into() {
        return Err(DropReason::UnknownSpi);
    }
    let start = row.ip as usize + usize::from(row.packet.upper_offset);
    let end = row.ip as usize + row.packet.length as usize;
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
    committed.map_err(replay_reason)?;
    let frame = turn.frames.bytes(row.frame);
    let inner = ipsec::esp::strip(frame, job).map_err(open_reason)?;
    let bytes = frame.get(inner.offset..inner.offset + inner.length).unwrap_or_default();
    let packet = wire::packet::parse(bytes)?;
    if packet.flow.family != inner.family {
        return Err(DropReason::Malformed);
    }
    let (inside, outside) = (packet.traffic_class & 3, row.packet.traffic_class & 3);
    let ecn = ipsec::ecn::decapsulate(inside, outside).ok_or(DropReason::Ecn)?;
    *row = Row {
        ip: inner.offset as u32,
        origin: Origin::Opened(turn.snapshot.set_of(sa.id)),
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
