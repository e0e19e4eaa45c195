//! Stage 6: all headers, nonces and trailers of the batch, then the cipher over the batch, SA by
//! SA: a nonce written just before it is used stalls the cipher. What a card is to encrypt leaves
//! without, behind a header that names the SA to the card. Nothing cuts behind a card: software
//! encrypts packets to be sent in fragments.

use ipsec::{Mode, OutboundSa, SaId, SealJob, SequenceError};
use wire::{Descriptor, Frames};

use crate::batch_context::BatchContext;
use crate::card_sas;
use crate::ids::SetIndex;
use crate::outer_fragments::{self, Cuts, Whole};
use crate::output_batch::{OutputBatch, OutputRow, PathUse};
use crate::output_path::{OutputPath, Protection, hold, link_bytes, write_link};
use crate::outputs::Outputs;
use crate::port::Adjacency;
use crate::row::{Origin, Row, State};
use crate::stage::{Stage, StageClock};
use crate::tx_batch::TxPacket;
use crate::verdict::{DropReason, Verdict};

impl OutputBatch {
    /// Runs the cipher over the jobs, SA by SA. What it refuses is in clear and is dropped.
    fn run_cipher<F: Frames>(&mut self, context: &mut BatchContext<'_, F>, rows: &mut [Row]) {
        let OutputBatch { list, paths, jobs, .. } = self;
        let path_of = |list: &[OutputRow], job: &SealJob| list[job.row as usize].path;
        if paths.iter().any(|path_use| path_use.path.cipher_card().is_some()) {
            // A card encrypts each packet behind a header for the card, or drops it.
            jobs.retain(|job| {
                let OutputRow { path, is_cut, .. } = list[job.row as usize];
                is_cut || paths[path as usize].path.cipher_card().is_none()
            });
        }
        if paths.len() > 1 {
            jobs.sort_unstable_by_key(|job| (path_of(list, job), job.row));
        }
        let mut rest = &jobs[..];
        for (number, path_use) in paths.iter().enumerate() {
            let Some(sa) = path_use.path.sealed_by_software() else { continue };
            let behind = rest.partition_point(|job| path_of(list, job) as usize <= number);
            let (jobs, others) = rest.split_at(behind);
            rest = others;
            if jobs.is_empty() {
                continue;
            }
            let sa = context.snapshot.outbound_sa(sa);
            let mut sealed = jobs.len();
            if let Err(error) = sa.cipher.seal(context.frames, jobs) {
                sealed = error.job;
                for job in &jobs[sealed..] {
                    let output_row = &mut list[job.row as usize];
                    output_row.ends();
                    context.drop(&mut rows[output_row.row as usize], DropReason::CipherRefused);
                }
            }
            if sa.encapsulation.udp.is_some() && sa.tunnel().remote.is_ipv6() {
                for job in &jobs[..sealed] {
                    finish_udp(context, job, &list[job.row as usize], path_use.path.adjacency);
                }
            }
        }
    }

    /// Transmits or holds what is finished, in the order of the output rows.
    fn transmit_or_hold<F: Frames>(&mut self, context: &mut BatchContext<'_, F>, rows: &mut [Row]) {
        let OutputBatch { list, paths, cuts, again, .. } = self;
        for run in list.chunk_by_mut(|one, next| one.path == next.path) {
            let path_use = &mut paths[run[0].path as usize];
            if let Some(outer) = path_use.path.outer {
                keep_for_again(context, rows, run, (path_use, outer), again);
                continue;
            }
            match (path_use.path.cut_at, path_use.path.sealed_by_software()) {
                (Some(mtu), Some(sa)) => {
                    let limit = Limit { mtu, sa: context.snapshot.outbound_sa(sa) };
                    transmit_cut(context, rows, run, path_use, &limit, cuts);
                }
                _ => transmit_or_hold_run(context, rows, run, path_use),
            }
        }
    }
}

/// Transmits or holds packets that follow each other on one path.
fn transmit_or_hold_run<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &[Row],
    run: &[OutputRow],
    path_use: &mut PathUse,
) {
    let adjacency = path_use.path.adjacency;
    let finished = run.iter().filter(|output_row| output_row.leaves());
    if adjacency.mac.is_none() {
        for output_row in finished {
            let row = &rows[output_row.row as usize];
            path_use.leaves(row);
            hold(context, row, &path_use.path, output_row.packet(row.frame));
        }
        return;
    }
    let Outputs { tx, verdicts, .. } = &mut *context.out;
    for output_row in finished {
        let row = &rows[output_row.row as usize];
        path_use.leaves(row);
        let packet = output_row.packet(row.frame);
        tx.push(TxPacket { egress: adjacency.port, ingress: row.ingress, packet });
        verdicts[row.place as usize] = Some(verdict_on(row, &path_use.path));
    }
}

/// Makes packets that are sealed and follow each other on one path rows again, which are to be
/// sealed by the set around theirs.
#[cold]
fn keep_for_again<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    run: &mut [OutputRow],
    (path_use, outer): (&mut PathUse, SetIndex),
    again: &mut Vec<Row>,
) {
    let Some(Protection { set, .. }) = path_use.path.protection else { return };
    for output_row in run.iter_mut().filter(|output_row| output_row.leaves()) {
        let row = &mut rows[output_row.row as usize];
        let Descriptor { frame, offset: ip, length } = output_row.packet(row.frame);
        let bytes = context.frames.bytes(frame).get(ip as usize..(ip + length) as usize);
        let Ok(packet) = wire::packet::parse(bytes.unwrap_or_default()) else {
            output_row.ends();
            context.drop(row, DropReason::Oversize);
            continue;
        };
        path_use.leaves(row);
        let (origin, state) = (Origin::Sealed(set), State::Protect(outer));
        again.push(Row { ip, hint: 0, echo: None, tenant: None, origin, state, packet, ..*row });
    }
}

/// The verdict on a row that leaves by a path: what was sealed twice is protected as the policies
/// said.
#[inline]
fn verdict_on(row: &Row, path: &OutputPath) -> Verdict {
    match row.origin {
        Origin::Sealed(set) => Verdict::Protect(set),
        _ => path.verdict(),
    }
}

/// The size above which packets of an SA leave in fragments.
struct Limit<'a> {
    /// Bytes of the outer packet.
    mtu: u32,
    sa: &'a OutboundSa,
}

/// Transmits or holds packets that follow each other on one path; those that are too large for it
/// leave in fragments, all of a packet or none. The first has the packet's verdict, the others are
/// packets that we make.
#[cold]
fn transmit_cut<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    run: &mut [OutputRow],
    path_use: &mut PathUse,
    Limit { mtu, sa }: &Limit<'_>,
    cuts: &mut Cuts,
) {
    let path = path_use.path;
    // No card encrypts a fragment.
    let protection = path.protection.map(|protection| Protection { card: None, ..protection });
    let path_of_pieces = OutputPath { protection, ..path };
    let link = link_bytes(context.snapshot, path.adjacency);
    for output_row in run.iter_mut().filter(|output_row| output_row.leaves()) {
        let row = rows[output_row.row as usize];
        let packet = output_row.packet(row.frame);
        if !output_row.is_cut {
            path_use.leaves(&row);
            transmit_or_hold_one(context, &row, &path, packet);
            continue;
        }
        if let Err(reason) = cuts.cut(context, &Whole { packet, link, mtu: *mtu, sa }) {
            output_row.ends();
            context.drop(&mut rows[output_row.row as usize], reason);
            continue;
        }
        path_use.leaves(&row);
        for (number, piece) in cuts.pieces.drain(..).enumerate() {
            let place = if number == 0 { row.place } else { context.make(row.ingress) };
            transmit_or_hold_one(context, &Row { place, ..row }, &path_of_pieces, piece);
        }
        context.frames.give(row.frame);
    }
}

/// Transmits or holds one packet of a row.
fn transmit_or_hold_one<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    path: &OutputPath,
    packet: Descriptor,
) {
    if path.adjacency.mac.is_none() {
        return hold(context, row, path, packet);
    }
    let (egress, ingress) = (path.adjacency.port, row.ingress);
    context.out.tx.push(TxPacket { egress, ingress, packet });
    context.out.verdicts[row.place as usize] = Some(verdict_on(row, path));
}

/// The checksum of ESP in UDP over IPv6.
#[cold]
fn finish_udp<F: Frames>(
    context: &mut BatchContext<'_, F>,
    job: &SealJob,
    output_row: &OutputRow,
    adjacency: Adjacency,
) {
    // Behind the link header begins IPv6, in transport mode perhaps with extension headers.
    let start = output_row.offset as usize + link_bytes(context.snapshot, adjacency);
    let end = output_row.offset as usize + output_row.length as usize;
    let packet = context.frames.bytes_mut(job.frame).get_mut(start..end);
    ipsec::finish_udp(packet.unwrap_or_default());
}

/// Seals what is to be protected, puts the link header on everything, and sends it. What a card is
/// to seal leaves in clear, behind a header that names the SA to the card.
///
/// 1. draw each SA's numbers with one atomic step, for the packets that its limits allow
/// 2. each output row: ESP headers and trailer, link header
/// 3. the cipher, SA by SA; what it refuses is dropped
/// 4. each output row that is finished: it leaves or waits, with its verdict; what the limits
///    allowed and what did not leave is given back
pub(crate) fn seal<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    output_batch: &mut OutputBatch,
    clock: &mut impl StageClock,
) {
    if output_batch.is_empty() {
        return;
    }
    output_batch.draw(context, rows);
    let OutputBatch { list, paths, jobs, .. } = output_batch;
    for (place, output_row) in list.iter_mut().enumerate() {
        let row = &mut rows[output_row.row as usize];
        let path_use = &mut paths[output_row.path as usize];
        let path = path_use.path;
        let written = match (path.sealed_by_software(), path.protection) {
            (Some(sa), _) => {
                write_sealed(context, output_row, row, (path_use, sa), place as u32, jobs)
            }
            (None, Some(protection)) => card_sas::may_seal(context.snapshot, protection, row)
                .and_then(|()| write_clear(context, output_row, row, &path)),
            (None, None) => write_clear(context, output_row, row, &path),
        };
        if let Err(reason) = written {
            context.drop(row, reason);
        }
    }
    clock.ended(Stage::SealHeaders);
    output_batch.run_cipher(context, rows);
    clock.ended(Stage::SealCipher);
    output_batch.transmit_or_hold(context, rows);
    output_batch.give_back(context, rows);
    for path_use in &output_batch.paths {
        if let Some(sa) = path_use.path.sealed_by_software() {
            context.counters.sealed(sa, path_use.left.into(), path_use.bytes);
        }
    }
    clock.ended(Stage::SealConclude);
}

/// Writes the link header of an output row that leaves in clear, or to be sealed by a card.
fn write_clear<F: Frames>(
    context: &mut BatchContext<'_, F>,
    output_row: &mut OutputRow,
    row: &Row,
    path: &OutputPath,
) -> Result<(), DropReason> {
    let (ip, family) = (row.ip as usize, row.packet.flow.family);
    let frame = context.frames.bytes_mut(row.frame);
    let start = write_link(context.snapshot, frame, ip, path.adjacency, family);
    // What waits for its next hop gets both headers when that is known.
    let start = match path.card().filter(|_| path.adjacency.mac.is_some()) {
        Some(seat) => start.and_then(|start| card_sas::header(seat).write(frame, start)),
        None => start,
    };
    let start = start.ok_or(DropReason::Oversize)?;
    output_row.is_at(start..ip + row.packet.length as usize);
    Ok(())
}

/// Writes ESP headers, trailer and link header of an output row, and adds what the cipher has to
/// do.
fn write_sealed<F: Frames>(
    context: &mut BatchContext<'_, F>,
    output_row: &mut OutputRow,
    row: &Row,
    (path_use, sa): (&mut PathUse, SaId),
    place: u32,
    jobs: &mut Vec<SealJob>,
) -> Result<(), DropReason> {
    let sequence = path_use.numbers.take().map_err(|_| path_use.numberless)?;
    let sa = context.snapshot.outbound_sa(sa);
    let (path, snapshot) = (&path_use.path, context.snapshot);
    let card = path.cipher_card();
    if card.is_some() {
        card_sas::may_encrypt(sa, &row.packet)?;
    }
    let frame = context.frames.bytes_mut(row.frame);
    let (job, outer) = sa
        .encapsulate(row.frame, frame, row.ip as usize, &row.packet, sequence, place)
        .ok_or_else(|| unfit(sa))?;
    output_row.is_cut &= path.cut_at.is_some_and(|mtu| outer.len() > mtu as usize);
    if output_row.is_cut && path.outer.is_some() {
        outer_fragments::let_routers_cut(sa, frame.get_mut(outer.clone()).unwrap_or_default());
    }
    let card = card.filter(|_| !output_row.is_cut);
    let start = match path.outer {
        None => write_link(snapshot, frame, outer.start, path.adjacency, sa.family()),
        // It is sealed again first.
        Some(_) => Some(outer.start),
    };
    let start = match card {
        None => start,
        Some(seat) => start.and_then(|start| {
            let icv = job.text as usize + job.text_length as usize..outer.end;
            frame.get_mut(icv)?.fill(0);
            // What waits for its next hop gets both headers when that is known.
            match path.adjacency.mac {
                Some(_) => card_sas::header(seat).write(frame, start),
                None => Some(start),
            }
        }),
    };
    let start = start.ok_or(DropReason::Oversize)?;
    output_row.is_at(start..outer.end);
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
