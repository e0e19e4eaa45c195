//! A run of packets leaves: counted, numbered, written, ciphered.

use std::ops::Range;

use ipsec::SealJob;
use ipsec::sealer::{InnerPacket, Sealer};
use ipsec::template::{OUTER_V4, OUTER_V4_UDP, OUTER_V6, OUTER_V6_UDP, TAIL_BYTES};
use policy::Direction;
use wire::link::{LinkTemplate, ethertype};
use wire::packet::IPV4_BYTES;
use wire::{BATCH, CardHeader, Descriptor, Family, Frames, Received, glance};

use super::prepared_path::{Heading, Numberless, PathId, PathRun, PreparedPath, PreparedPaths};
use super::{Columns, FastPath, Row, limited, mask_of};
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::counters::Counters;
use crate::ids::PortId;
use crate::stage::{Stage, StageClock};
use crate::verdict::{DropReason, Verdict};

/// Bytes that a packet in clear is changed in: the header for a card, the longest link header, and
/// IPv4's.
const CHANGED_BYTES: usize = CardHeader::BYTES + 18 + IPV4_BYTES;

/// Bytes of a header for a card.
const CARD: usize = CardHeader::BYTES;

impl FastPath {
    /// Sends packets that have a path.
    ///
    /// 1. count them by rule and by path
    /// 2. draw each SA's numbers with one atomic step, for the packets that its limits allow
    /// 3. all headers, nonces and trailers; descriptors and verdicts
    /// 4. the cipher, SA by SA
    pub(super) fn emit<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        heading: Heading,
        packets: &[Received],
        run: Range<usize>,
        clock: &mut impl StageClock,
    ) {
        let of_run = |packets: u64| (packets & mask_of(&run)).count_ones() as usize;
        if self.tagged != 0 {
            context.counters.tagged += of_run(self.tagged) as u64;
        }
        if self.counts_lookups {
            let looked_up = run.len() - of_run(self.tagged);
            context.counters.cache.count(looked_up, of_run(self.misses));
        }
        context.counters.fast_path += run.len() as u64;
        let ingress = self.gate.ingress;
        let Columns { rows, seal_jobs, .. } = &mut *self.columns;
        let (rows, packets) = (&mut rows[run.clone()], &packets[run.clone()]);
        let paths = &mut self.paths;
        paths.list.iter_mut().for_each(|path| path.run = PathRun::default());
        count(context.counters, paths, heading, rows);
        if draw(context, &mut paths.list, rows) {
            drop_numberless(context, paths, rows);
        }
        let tx_before = context.out.tx.len();
        let (mut refused, mut first) = (0u64, 0);
        let which = if paths.list.len() == 1 { paths.alike() } else { Alike::Neighbours };
        for alike in alike(rows, which, |one, other| one.path == other.path) {
            let (family, path) = (alike[0].path.family(), paths.path_mut(alike[0].path));
            let range = first..first + alike.len();
            first = range.end;
            let verdict = Some(path.verdict);
            context.out.verdicts[run.start + range.start..run.start + range.end].fill(verdict);
            let jobs = &mut seal_jobs[path.run.next_job..];
            refused |= send(context, (path, family), (ingress, range), (alike, packets), jobs);
        }
        clock.ended(Stage::SealHeaders);
        let unciphered = cipher(context, &paths.list, seal_jobs);
        if refused | unciphered != 0 {
            let written_run = WrittenRun { rows, packets, tx_before, first: run.start, ingress };
            take_back(context, paths, &written_run, refused, unciphered);
        }
        clock.ended(Stage::SealCipher);
        for path in &paths.list {
            if let Some((sa, _)) = path.sealing {
                context.counters.sealed(sa, path.run.count.into(), path.run.bytes);
            }
        }
        clock.ended(Stage::SealConclude);
    }
}

/// Counts packets by the rules that decided, and adds up what each path takes.
#[inline(always)]
fn count(counters: &mut Counters, paths: &mut PreparedPaths, heading: Heading, rows: &[Row]) {
    let direction = match heading {
        Heading::Out => Direction::Outbound,
        Heading::In => Direction::Inbound,
    };
    for alike in alike(rows, paths.alike(), |a, b| a.decision == b.decision) {
        let (packets, bytes) = (alike.len(), alike.iter().map(|row| u64::from(row.length)).sum());
        let decision = *paths.decision(alike[0].decision);
        for slot in decision.deciders.slots() {
            counters.policy_run(direction, slot, packets as u64, bytes);
        }
        let run = &mut paths.path_mut(decision.path).run;
        run.count += packets as u32;
        run.bytes += bytes;
    }
}

/// The rows that are alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alike {
    /// All are: there is only one of what they could differ in.
    All,
    /// Neighbours that compare equal.
    Neighbours,
}

impl PreparedPaths {
    /// Returns which rows have the same decision.
    #[inline(always)]
    fn alike(&self) -> Alike {
        if self.is_one_decision() { Alike::All } else { Alike::Neighbours }
    }
}

/// Returns the rows in runs of those that follow each other and are alike.
#[inline(always)]
fn alike(
    rows: &[Row],
    which: Alike,
    is_alike: impl Fn(&Row, &Row) -> bool,
) -> impl Iterator<Item = &[Row]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let count = match which {
            Alike::All => rest.len(),
            Alike::Neighbours => rest.iter().take_while(|row| is_alike(first, row)).count(),
        };
        let (alike, behind) = rest.split_at(count);
        rest = behind;
        Some(alike)
    })
}

/// The rows of a path, in their order.
fn rows_of(rows: &[Row], place: usize) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.path.place() == place)
}

/// Draws numbers for each path that seals, and gives it its jobs. Returns whether numbers are
/// missing.
#[inline(always)]
fn draw<F>(context: &BatchContext<'_, F>, paths: &mut [PreparedPath], rows: &[Row]) -> bool {
    let (mut next_job, mut are_missing, is_only) = (0, false, paths.len() == 1);
    for (place, path) in paths.iter_mut().enumerate().filter(|(_, path)| path.run.count > 0) {
        let Some((sa, _)) = path.sealing else { continue };
        let sa = context.snapshot.outbound_sa(sa);
        let allowed = match &sa.allowance {
            None => path.run.count,
            Some(allowance) if is_only => limited::seal(allowance, path, || rows.iter()),
            Some(allowance) => limited::seal(allowance, path, || rows_of(rows, place)),
        };
        let (first, count, missing) = sa.sequence.draw(allowed).into_parts();
        let run = &mut path.run;
        (run.next, run.first_job, run.next_job) = (first, next_job, next_job);
        next_job += run.count as usize;
        if count as u32 != run.count {
            // Those behind the last number are dropped: see `drop_numberless`.
            let reason = missing.map_or(DropReason::SaHardLimit, DropReason::from);
            path.numberless = Some(Numberless { numbered: count as u32, allowed, reason });
            are_missing = true;
        }
    }
    are_missing
}

/// Gives packets that have no number the path on which they are dropped.
#[cold]
fn drop_numberless<F>(context: &BatchContext<'_, F>, paths: &mut PreparedPaths, rows: &mut [Row]) {
    for place in 0..paths.list.len() {
        let Some(numberless) = paths.list[place].numberless.take() else { continue };
        let Numberless { numbered, allowed, reason } = numberless;
        let allowed = rows_of(rows, place).take(allowed as usize);
        limited::give_back(context, &paths.list[place], allowed.skip(numbered as usize));
        let dropping = paths.dropping(reason);
        let its = rows.iter_mut().filter(|row| row.path.place() == place);
        for row in its.skip(numbered as usize) {
            row.path = dropping;
            let run = &mut paths.list[place].run;
            (run.count, run.bytes) = (run.count - 1, run.bytes - u64::from(row.length));
        }
    }
}

/// Sends packets that follow each other on one path; returns those that it could not write: a bit
/// each, by place in the run.
#[inline(always)]
fn send<F: Frames>(
    context: &mut BatchContext<'_, F>,
    (path, family): (&mut PreparedPath, Family),
    (ingress, range): (PortId, Range<usize>),
    (rows, packets): (&[Row], &[Received]),
    jobs: &mut [SealJob],
) -> u64 {
    let packets = &packets[range.clone()];
    if let Some(reason) = path.drops() {
        for Received { packet, .. } in packets {
            context.counters.drop(Some(ingress), reason);
            context.frames.give(packet.frame);
        }
        return 0;
    }
    let into = context.out.tx.add(path.egress, ingress, rows.len());
    let batch = Together { rows, packets, into, first: range.start };
    let frames = &mut *context.frames;
    match (path.sealing, path.card.is_some(), path.link.is_tagged()) {
        (None, false, false) => pass_on::<14, 0, F>(frames, (path, family), batch),
        (None, false, true) => pass_on::<18, 0, F>(frames, (path, family), batch),
        (None, true, false) => pass_on::<14, CARD, F>(frames, (path, family), batch),
        (None, true, true) => pass_on::<18, CARD, F>(frames, (path, family), batch),
        (Some((sa, form)), _, is_tagged) => {
            let Some(sealer) = context.snapshot.outbound_sa(sa).sealer() else { return 0 };
            let jobs = &mut jobs[..rows.len()];
            let sealing = Sealing { sealer, link: path.link };
            let run = &mut path.run;
            let is_shared = sealer.shares_identifications();
            macro_rules! by_form {
                ($($tagged:literal $link:literal $outer:ident $iv:literal $shared:literal),*) => {
                    match (is_tagged, form.outer, form.iv, is_shared, family) {
                        $(($tagged, $outer, $iv, $shared, Family::V4) => seal::<
                            $link, $outer, $iv, { $link + $outer + 8 + $iv }, false, $shared, F,
                        >(context.frames, sealing, run, batch, jobs),
                        ($tagged, $outer, $iv, $shared, Family::V6) => seal::<
                            $link, $outer, $iv, { $link + $outer + 8 + $iv }, true, $shared, F,
                        >(context.frames, sealing, run, batch, jobs),)*
                        _ => u64::MAX,
                    }
                };
            }
            let refused = by_form!(
                false 14 OUTER_V4 8 false, false 14 OUTER_V6 8 false,
                false 14 OUTER_V4_UDP 8 false, false 14 OUTER_V6_UDP 8 false,
                false 14 OUTER_V4 0 false, false 14 OUTER_V6 0 false,
                false 14 OUTER_V4_UDP 0 false, false 14 OUTER_V6_UDP 0 false,
                true 18 OUTER_V4 8 false, true 18 OUTER_V6 8 false,
                true 18 OUTER_V4_UDP 8 false, true 18 OUTER_V6_UDP 8 false,
                true 18 OUTER_V4 0 false, true 18 OUTER_V6 0 false,
                true 18 OUTER_V4_UDP 0 false, true 18 OUTER_V6_UDP 0 false,
                false 14 OUTER_V4 8 true, false 14 OUTER_V4_UDP 8 true,
                false 14 OUTER_V4 0 true, false 14 OUTER_V4_UDP 0 true,
                true 18 OUTER_V4 8 true, true 18 OUTER_V4_UDP 8 true,
                true 18 OUTER_V4 0 true, true 18 OUTER_V4_UDP 0 true
            );
            match path.card {
                None => refused,
                Some(header) => {
                    let into = context.out.tx.last_mut(rows.len());
                    refused | hand_to_card(context.frames, header, (into, jobs), range.start)
                }
            }
        }
    }
}

/// Packets that are written together.
struct Together<'a> {
    rows: &'a [Row],
    packets: &'a [Received],
    into: &'a mut [Descriptor],
    /// The place of the first in its run.
    first: usize,
}

/// The sealer of a run of packets, and the headers in front of it.
#[derive(Clone, Copy)]
struct Sealing {
    sealer: Sealer,
    link: LinkTemplate,
}

/// Puts the header for a card in front of packets that it is to encrypt, and zeros where it is to
/// put the ICV; returns the packets that have no room for it: a bit each, as [`send`] does.
#[inline(never)]
fn hand_to_card<F: Frames>(
    frames: &mut F,
    header: [u8; CARD],
    (into, jobs): (&mut [Descriptor], &[SealJob]),
    first: usize,
) -> u64 {
    let mut refused = 0u64;
    for (at, (descriptor, job)) in into.iter_mut().zip(jobs).enumerate() {
        let Descriptor { frame, offset, length } = *descriptor;
        if length == 0 {
            // It was refused before.
            continue;
        }
        let start = offset.wrapping_sub(CARD as u32);
        let end = (offset + length) as usize;
        let memory = frames.bytes_mut(frame);
        let icv = memory.get_mut((job.text + job.text_length) as usize..end);
        let is_room = icv.map(|icv| icv.fill(0)).is_some();
        let front = memory.get_mut(start as usize..offset as usize);
        match front.filter(|_| is_room) {
            Some(front) => {
                front.copy_from_slice(&header);
                *descriptor = Descriptor { frame, offset: start, length: length + CARD as u32 };
            }
            None => refused |= 1 << (first + at),
        }
    }
    refused
}

/// Lowers hop limits and writes link headers, and headers of `CARD` bytes for a card in front of
/// them; returns the packets that it could not write.
#[inline(never)]
fn pass_on<const LINK: usize, const CARD: usize, F: Frames>(
    frames: &mut F,
    (path, family): (&PreparedPath, Family),
    Together { rows, packets, into, first }: Together<'_>,
) -> u64 {
    let (ethertype, front) = (ethertype_of(family), (CARD + LINK) as u32);
    let header = path.card.unwrap_or_default();
    let mut refused = 0u64;
    let all = rows.iter().zip(packets).zip(into);
    for (at, ((row, Received { packet, .. }), into)) in all.enumerate() {
        let start = row.ip.wrapping_sub(front);
        let behind = frames.bytes_mut(packet.frame).get_mut(start as usize..);
        let head = behind.and_then(<[u8]>::first_chunk_mut::<CHANGED_BYTES>);
        let parts = head.and_then(|head| {
            let (card, behind) = head.split_first_chunk_mut::<CARD>()?;
            let (link, ip) = behind.split_first_chunk_mut::<LINK>()?;
            Some((card, link, ip.first_chunk_mut()?))
        });
        let Some((card, link, ip)) = parts else {
            refused |= 1 << (first + at);
            continue;
        };
        glance::pass_on(ip, family);
        path.link.write(link, ethertype);
        card.copy_from_slice(&header[..CARD]);
        *into = Descriptor { frame: packet.frame, offset: start, length: row.length + front };
    }
    refused
}

/// Writes all headers and trailers, and what the cipher has to do; returns the packets that it
/// could not write.
#[inline(never)]
fn seal<
    const LINK: usize,
    const OUTER: usize,
    const IV: usize,
    const FRONT: usize,
    const INNER_V6: bool,
    const SHARED: bool,
    F: Frames,
>(
    frames: &mut F,
    Sealing { sealer, link }: Sealing,
    run: &mut PathRun,
    Together { rows, packets, into, first }: Together<'_>,
    jobs: &mut [SealJob],
) -> u64 {
    let ethertype = ethertype_of(if OUTER <= OUTER_V4_UDP { Family::V4 } else { Family::V6 });
    let family = if INNER_V6 { Family::V6 } else { Family::V4 };
    let mut refused = 0u64;
    let first_number = run.next;
    run.next += rows.len() as u64;
    run.next_job += rows.len();
    let all = rows.iter().zip(packets).zip(into).zip(jobs);
    for (at, (((row, Received { packet, .. }), into), job)) in all.enumerate() {
        let (ip, length) = (row.ip as usize, row.length as usize);
        let start = ip.wrapping_sub(FRONT);
        let window = frames.bytes_mut(packet.frame).get_mut(start..ip + length + TAIL_BYTES);
        let parts = window.and_then(|window| window.split_first_chunk_mut::<FRONT>());
        let written = parts.and_then(|(head, body)| {
            let (before, head) = head.split_first_chunk_mut::<LINK>()?;
            link.write(before, ethertype);
            let inner = InnerPacket { family, ip: row.ip, length: row.length };
            sealer.write::<OUTER, IV, SHARED>(head, body, inner, first_number + at as u64, job)
        });
        if IV == 8 {
            (job.frame, job.row) = (packet.frame, (first + at) as u32);
        }
        let Some(total) = written else {
            // No cipher takes this job: what stands in it is of an earlier packet.
            *job = SealJob { text: u32::MAX, row: job.row, ..SealJob::of(packet.frame) };
            refused |= 1 << (first + at);
            continue;
        };
        let length = total + LINK as u32;
        *into = Descriptor { frame: packet.frame, offset: start as u32, length };
    }
    refused
}

const fn ethertype_of(family: Family) -> u16 {
    match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    }
}

/// Runs the cipher, path by path; returns what it refused, which is in clear: a bit each, by place
/// in the run.
#[inline(always)]
fn cipher<F: Frames>(
    context: &mut BatchContext<'_, F>,
    paths: &[PreparedPath],
    jobs: &mut [SealJob; BATCH],
) -> u64 {
    let mut refused = 0u64;
    for path in paths.iter().filter(|path| path.run.count > 0) {
        // What a card encrypts has a header for the card in front.
        let Some((sa, form)) = path.sealing.filter(|_| path.card.is_none()) else { continue };
        let jobs = &jobs[path.run.first_job..path.run.next_job];
        let sa = context.snapshot.outbound_sa(sa);
        if form.iv > 0
            && let Err(error) = sa.cipher.seal(context.frames, jobs)
        {
            refused |= jobs[error.job..].iter().fold(0, |all, job| all | 1 << job.row);
        }
        if form.outer == OUTER_V6_UDP && form.iv > 0 {
            finish_udp(context, jobs);
        }
    }
    refused
}

/// The checksums of ESP in UDP over IPv6.
#[cold]
fn finish_udp<F: Frames>(context: &mut BatchContext<'_, F>, jobs: &[SealJob]) {
    for job in jobs {
        let start = job.aad as usize - OUTER_V6_UDP;
        let frame = context.frames.bytes_mut(job.frame);
        let Some(packet) = frame.get_mut(start..) else { continue };
        let length = packet.get(4..6).map_or(0, |bytes| {
            usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) + wire::packet::IPV6_BYTES
        });
        ipsec::finish_udp(packet.get_mut(..length).unwrap_or_default());
    }
}

/// A run whose packets have been given to be sent.
struct WrittenRun<'a> {
    rows: &'a [Row],
    packets: &'a [Received],
    /// Packets that were to be sent before it.
    tx_before: usize,
    /// The place of the first in the batch.
    first: usize,
    ingress: PortId,
}

/// Drops packets of a run that could not be written or ciphered. No packet of a live gateway comes
/// here: `look` has seen the room around it, and a cipher refuses no job that lies in its frame.
#[cold]
fn take_back<F: Frames>(
    context: &mut BatchContext<'_, F>,
    paths: &mut PreparedPaths,
    written_run: &WrittenRun<'_>,
    refused: u64,
    unciphered: u64,
) {
    let all = refused | unciphered;
    let frame_of = |place: usize| written_run.packets[place].packet.frame;
    context.out.tx.take_back(written_run.tx_before, |packet| {
        packet.length > 0 && !bits(all).any(|place| frame_of(place) == packet.frame)
    });
    for place in bits(all).filter(|place| *place < written_run.rows.len()) {
        let row = &written_run.rows[place];
        if row.path == PathId::NONE {
            continue;
        }
        let reason = match refused >> place & 1 {
            0 => DropReason::CipherRefused,
            _ => DropReason::Oversize,
        };
        let run = &mut paths.path_mut(row.path).run;
        (run.count, run.bytes) = (run.count - 1, run.bytes - u64::from(row.length));
        limited::give_back(context, paths.path_mut(row.path), [row].into_iter());
        context.out.verdicts[written_run.first + place] = Some(Verdict::Drop(reason));
        context.counters.drop(Some(written_run.ingress), reason);
        context.frames.give(frame_of(place));
    }
}
