//! Stage 5: all headers, nonces and trailers of the batch, then the cipher over the batch, SA by
//! SA: a nonce written just before it is used stalls the cipher.

use ipsec::{Mode, OutboundSa, SealJob, SequenceError};
use wire::Frames;

use crate::departures::{Departure, Departures, Taken};
use crate::outputs::Outputs;
use crate::path::{Protection, hold, link_bytes, write_link};
use crate::port::Egress;
use crate::row::Row;
use crate::stage::{Stage, StageClock};
use crate::turn::Turn;
use crate::tx_batch::TxPacket;
use crate::verdict::{DropReason, Verdict};

impl Departures {
    /// Runs the cipher over the jobs, SA by SA. What it refuses is in clear and is dropped.
    fn run_cipher<F: Frames>(&mut self, turn: &mut Turn<'_, F>, rows: &mut [Row]) {
        let Departures { list, ways, jobs, .. } = self;
        let way_of = |list: &[Departure], job: &SealJob| list[job.row as usize].way;
        if ways.len() > 1 {
            jobs.sort_unstable_by_key(|job| (way_of(list, job), job.row));
        }
        let mut rest = &jobs[..];
        for (number, taken) in ways.iter().enumerate() {
            let Some(protection) = taken.way.protection else { continue };
            let behind = rest.partition_point(|job| way_of(list, job) as usize <= number);
            let (jobs, others) = rest.split_at(behind);
            rest = others;
            if jobs.is_empty() {
                continue;
            }
            let sa = turn.snapshot.outbound_sa(protection.sa);
            let mut sealed = jobs.len();
            if let Err(error) = sa.cipher.seal(turn.frames, jobs) {
                sealed = error.job;
                for job in &jobs[sealed..] {
                    let departure = &mut list[job.row as usize];
                    departure.ends();
                    turn.drop(&mut rows[departure.row as usize], DropReason::CipherRefused);
                }
            }
            if sa.encapsulation.udp.is_some() && sa.tunnel().remote.is_ipv6() {
                for job in &jobs[..sealed] {
                    finish_udp(turn, job, &list[job.row as usize], taken.way.egress);
                }
            }
        }
    }

    /// Sends what is finished, in the order of the departures.
    fn leave<F: Frames>(&mut self, turn: &mut Turn<'_, F>, rows: &[Row]) {
        let Departures { list, ways, .. } = self;
        for run in list.chunk_by(|one, next| one.way == next.way) {
            let taken = &mut ways[run[0].way as usize];
            let verdict = match taken.way.protection {
                Some(Protection { set, .. }) => Verdict::Protect(set),
                None => Verdict::Forward(taken.way.egress.port),
            };
            leave_together(turn, rows, run, taken, verdict);
        }
    }
}

/// Sends packets that follow each other on one way.
fn leave_together<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &[Row],
    run: &[Departure],
    taken: &mut Taken,
    verdict: Verdict,
) {
    let egress = taken.way.egress;
    let finished = run.iter().filter(|departure| departure.leaves());
    if egress.mac.is_none() {
        for departure in finished {
            let row = &rows[departure.row as usize];
            taken.leaves(row);
            hold(turn, row, egress.port, departure.packet(row.frame), verdict);
        }
        return;
    }
    let Outputs { tx, verdicts, .. } = &mut *turn.out;
    for departure in finished {
        let row = &rows[departure.row as usize];
        taken.leaves(row);
        let packet = departure.packet(row.frame);
        tx.push(TxPacket { egress: egress.port, ingress: row.ingress, packet });
        verdicts[row.place as usize] = Some(verdict);
    }
}

/// The checksum of ESP in UDP over IPv6.
#[cold]
fn finish_udp<F: Frames>(
    turn: &mut Turn<'_, F>,
    job: &SealJob,
    departure: &Departure,
    egress: Egress,
) {
    // Behind the link header begins IPv6, in transport mode perhaps with extension headers.
    let start = departure.offset as usize + link_bytes(turn.snapshot, egress);
    let end = departure.offset as usize + departure.length as usize;
    let packet = turn.frames.bytes_mut(job.frame).get_mut(start..end);
    ipsec::finish_udp(packet.unwrap_or_default());
}

/// Seals what is to be protected, puts the link header on everything, and sends it.
///
/// 1. draw each SA's numbers with one atomic step
/// 2. each departure: ESP headers and trailer, link header
/// 3. the cipher, SA by SA; what it refuses is dropped
/// 4. each departure that is finished: it leaves or waits, with its verdict
pub(crate) fn seal<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    departures: &mut Departures,
    clock: &mut impl StageClock,
) {
    if departures.is_empty() {
        return;
    }
    departures.draw(turn);
    let Departures { list, ways, jobs, .. } = departures;
    for (place, departure) in list.iter_mut().enumerate() {
        let row = &mut rows[departure.row as usize];
        let taken = &mut ways[departure.way as usize];
        let written = match taken.way.protection {
            Some(protection) => {
                write_sealed(turn, departure, row, taken, protection, place as u32, jobs)
            }
            None => write_clear(turn, departure, row, taken),
        };
        if let Err(reason) = written {
            turn.drop(row, reason);
        }
    }
    clock.ended(Stage::SealHeaders);
    departures.run_cipher(turn, rows);
    clock.ended(Stage::SealCipher);
    departures.leave(turn, rows);
    for taken in &departures.ways {
        if let Some(protection) = taken.way.protection {
            turn.counters.sealed(protection.sa, taken.left.into(), taken.bytes);
        }
    }
    clock.ended(Stage::SealConclude);
}

/// Writes the link header of a departure that leaves in clear.
fn write_clear<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    row: &Row,
    taken: &Taken,
) -> Result<(), DropReason> {
    let (ip, family) = (row.ip as usize, row.packet.flow.family);
    let frame = turn.frames.bytes_mut(row.frame);
    let start = write_link(turn.snapshot, frame, ip, taken.way.egress, family)
        .ok_or(DropReason::Oversize)?;
    departure.is_at(start..ip + row.packet.length as usize);
    Ok(())
}

/// Writes ESP headers, trailer and link header of a departure, and adds what the cipher has to do.
fn write_sealed<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    row: &Row,
    taken: &mut Taken,
    protection: Protection,
    place: u32,
    jobs: &mut Vec<SealJob>,
) -> Result<(), DropReason> {
    let sequence = taken.numbers.take()?;
    let sa = turn.snapshot.outbound_sa(protection.sa);
    let frame = turn.frames.bytes_mut(row.frame);
    let (job, outer) = sa
        .encapsulate(row.frame, frame, row.ip as usize, &row.packet, sequence, place)
        .ok_or_else(|| unfit(sa))?;
    let start = write_link(turn.snapshot, frame, outer.start, taken.way.egress, sa.family())
        .ok_or(DropReason::Oversize)?;
    departure.is_at(start..outer.end);
    jobs.push(job);
    Ok(())
}

/// Returns the reason why an SA cannot carry a packet: transport mode carries few kinds of packets,
/// tunnel mode is limited only by the frame and the outer header.
#[cold]
fn unfit(sa: &OutboundSa) -> DropReason {
    match sa.encapsulation.mode {
        Mode::Tunnel => DropReason::Oversize,
        Mode::Transport => DropReason::TransportMode,
    }
}

impl From<SequenceError> for DropReason {
    fn from(error: SequenceError) -> DropReason {
        match error {
            SequenceError::Exhausted => DropReason::SequenceExhausted,
            SequenceError::NotReserved => DropReason::SequenceNotReserved,
        }
    }
}
