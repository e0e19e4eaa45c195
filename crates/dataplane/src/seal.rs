//! Stage 5: all headers, nonces and trailers of the batch, then the cipher over the batch, SA by
//! SA: a nonce written just before it is used stalls the cipher.

use ipsec::{Mode, OutboundSa, SaId, SealJob, SequenceError};
use wire::link::{ETHERNET_BYTES, Untagged, VLAN_TAG_BYTES, ethertype};
use wire::{Descriptor, Family, FrameId, Frames, link};

use crate::sends::Send;
use crate::snapshot::Egress;
use crate::stage::{Stage, StageClock};
use crate::walk::{Held, Row, Scratch, Turn};
use crate::{DropReason, HoldKind, Medium, SetIndex, Snapshot, Verdict};

/// What seals a departure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) set: SetIndex,
    pub(crate) sa: SaId,
}

/// Where packets leave, with what is the same for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) egress: Egress,
    /// The link header, where it is an untagged one and the neighbour is known, as it mostly is.
    pub(crate) untagged: Option<Untagged>,
}

impl Exit {
    pub(crate) fn of(snapshot: &Snapshot, egress: Egress) -> Exit {
        let port = snapshot.path_port(egress.port);
        let is_untagged = port.medium == Medium::Ethernet && port.vlan.is_none();
        let mac = egress.mac.filter(|_| is_untagged);
        Exit { egress, untagged: mac.map(|mac| Untagged::new(mac, port.mac)) }
    }
}

/// How packets leave, with all that is the same for those of a batch that leave so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) exit: Exit,
    /// `None`: in clear.
    pub(crate) protection: Option<Protection>,
    /// Bytes of the largest packet that may go this way, before sealing.
    pub(crate) mtu: u32,
}

/// A way that packets wait on.
#[derive(Clone, Copy)]
struct Taken {
    way: Way,
    /// Packets. A batch of large ones becomes more than 65,535 fragments on a narrow path.
    count: u32,
    /// Sequence number of the next, or why there is none.
    next: Result<u64, SequenceError>,
    /// Those that were sealed, and bytes of their IP packets before.
    sealed: u32,
    bytes: u64,
}

/// A row's packet on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// The row.
    row: u32,
    /// The place of its way.
    way: u32,
    /// Where in the frame the packet lies that leaves, once its headers are written.
    offset: u32,
    length: u32,
}

/// What leaves in a batch, kept over batches.
#[derive(Default)]
pub(crate) struct Departures {
    list: Vec<Departure>,
    ways: Vec<Taken>,
    jobs: Vec<SealJob>,
}

impl Departures {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.ways.clear();
        self.jobs.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The place of a way on which packets are to wait. Two ways can be of one SA, reached through
    /// two sets: each has a run of numbers of its own.
    #[cold]
    pub(crate) fn take(&mut self, way: &Way) -> u32 {
        let known = |taken: &Taken| {
            taken.way.protection == way.protection && taken.way.exit.egress == way.exit.egress
        };
        let place = self.ways.iter().rposition(known).unwrap_or_else(|| {
            let (way, next) = (*way, Ok(0));
            self.ways.push(Taken { way, count: 0, next, sealed: 0, bytes: 0 });
            self.ways.len() - 1
        });
        place as u32
    }

    /// The way at a place.
    #[inline(always)]
    pub(crate) fn way(&self, place: u32) -> &Way {
        &self.ways[place as usize].way
    }

    /// Adds a row that leaves by the way at this place, behind those that wait already.
    #[inline(always)]
    pub(crate) fn push(&mut self, row: usize, way: u32) {
        self.ways[way as usize].count += 1;
        self.list.push(Departure { row: row as u32, way, offset: 0, length: 0 });
    }

    /// Draws a run of sequence numbers for every way that seals, with one atomic step each.
    fn draw<F>(&mut self, turn: &Turn<'_, F>) {
        for taken in &mut self.ways {
            if let Some(protection) = taken.way.protection {
                let sa = &turn.snapshot.outbound()[protection.sa.0 as usize];
                taken.next = sa.sequence.draw(taken.count);
            }
        }
    }

    /// Runs the cipher over the jobs, SA by SA. What it refuses is in clear and is dropped.
    fn run_cipher<F: Frames>(&mut self, turn: &mut Turn<'_, F>, rows: &mut [Row]) {
        let Departures { list, ways, jobs } = self;
        let way_of = |job: &SealJob| list[job.row as usize].way;
        if ways.len() > 1 {
            jobs.sort_unstable_by_key(|job| (way_of(job), job.row));
        }
        let mut rest = &jobs[..];
        for (number, taken) in ways.iter_mut().enumerate() {
            let Some(protection) = taken.way.protection else { continue };
            let behind = rest.partition_point(|job| way_of(job) as usize <= number);
            let (jobs, others) = rest.split_at(behind);
            rest = others;
            if jobs.is_empty() {
                continue;
            }
            let sa = &turn.snapshot.outbound()[protection.sa.0 as usize];
            let mut sealed = jobs.len();
            if let Err(error) = sa.cipher.seal(turn.frames, jobs) {
                sealed = error.job;
                for job in &jobs[sealed..] {
                    let row = &mut rows[list[job.row as usize].row as usize];
                    taken.sealed -= 1;
                    taken.bytes -= u64::from(row.packet.length);
                    take_back(turn, row);
                }
            }
            if sa.encapsulation.udp.is_some() && sa.tunnel().remote.is_ipv6() {
                let exit = &taken.way.exit;
                for job in &jobs[..sealed] {
                    finish_udp(turn, job, &list[job.row as usize], exit);
                }
            }
        }
    }
}

/// A packet that the cipher refused is in clear: it does not leave, nor wait to leave.
#[cold]
fn take_back<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row) {
    let frame: FrameId = row.frame;
    if !turn.out.sends.take_back(frame) {
        turn.out.held.retain(|held| held.packet.frame != frame);
    }
    turn.drop(row, DropReason::CipherRefused);
}

/// The checksum of ESP in UDP over IPv6.
#[cold]
fn finish_udp<F: Frames>(
    turn: &mut Turn<'_, F>,
    job: &SealJob,
    departure: &Departure,
    exit: &Exit,
) {
    // Behind the link header begins IPv6, in transport mode perhaps with extension headers.
    let start = departure.offset as usize + link_bytes(turn.snapshot, exit.egress);
    let end = departure.offset as usize + departure.length as usize;
    let packet = turn.frames.bytes_mut(job.frame).get_mut(start..end);
    ipsec::finish_udp(packet.unwrap_or_default());
}

/// Seals what is to be protected, puts the link header on everything, and sends it.
///
/// 1. draw each SA's numbers with one atomic step
/// 2. each departure: ESP headers and trailer, link header, its verdict
/// 3. the cipher, SA by SA; what it refuses is taken back
pub(crate) fn seal<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    scratch: &mut Scratch,
    clock: &mut impl StageClock,
) {
    let departures = &mut scratch.departures;
    if departures.is_empty() {
        return;
    }
    departures.draw(turn);
    let Departures { list, ways, jobs } = departures;
    for (place, departure) in list.iter_mut().enumerate() {
        let row = &mut rows[departure.row as usize];
        let taken = &mut ways[departure.way as usize];
        match taken.way.protection {
            Some(protection) => {
                let job = place as u32;
                match write_sealed(turn, departure, row, taken, protection, job, jobs) {
                    Ok(packet) => {
                        let verdict = Verdict::Protect(protection.set);
                        leave(turn, row, taken.way.exit.egress, packet, verdict);
                    }
                    Err(reason) => turn.drop(row, reason),
                }
            }
            None => leave_in_clear(turn, row, &taken.way.exit),
        }
    }
    clock.ended(Stage::SealHeaders);
    departures.run_cipher(turn, rows);
    clock.ended(Stage::SealCipher);
    for taken in &departures.ways {
        if let Some(protection) = taken.way.protection {
            turn.counters.sealed(protection.sa, taken.sealed.into(), taken.bytes);
        }
    }
    clock.ended(Stage::SealConclude);
}

/// Puts the link header on a packet that leaves in clear, and sends it.
#[inline]
pub(crate) fn leave_in_clear<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, exit: &Exit) {
    let (offset, length, family) = (row.ip as usize, row.packet.length, row.packet.flow.family);
    let frame = turn.frames.bytes_mut(row.frame);
    match write_link(turn.snapshot, frame, offset, exit, family) {
        Some(start) => {
            let length = length + (offset - start) as u32;
            let packet = Descriptor { frame: row.frame, offset: start as u32, length };
            leave(turn, row, exit.egress, packet, Verdict::Forward(exit.egress.port));
        }
        None => turn.drop(row, DropReason::Oversize),
    }
}

/// Writes ESP headers, trailer and link header of a departure, adds what the cipher has to do, and
/// returns the packet that is to leave.
#[inline(always)]
fn write_sealed<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    row: &Row,
    taken: &mut Taken,
    protection: Protection,
    place: u32,
    jobs: &mut Vec<SealJob>,
) -> Result<Descriptor, DropReason> {
    let sequence = match &mut taken.next {
        Ok(next) => {
            *next = next.wrapping_add(1);
            next.wrapping_sub(1)
        }
        Err(error) => return Err(sequence_reason(*error)),
    };
    let sa = &turn.snapshot.outbound()[protection.sa.0 as usize];
    let frame = turn.frames.bytes_mut(row.frame);
    jobs.push(SealJob { row: place, ..SealJob::of(row.frame) });
    let job = jobs.last_mut().expect("pushed just now");
    let written = match sa.encapsulate_into(job, frame, row.ip as usize, &row.packet, sequence) {
        Some(outer) => {
            let exit = &taken.way.exit;
            write_link(turn.snapshot, frame, outer.start, exit, sa.family())
                .map(|start| (start, outer.end))
                .ok_or(DropReason::Oversize)
        }
        None => Err(unfit(sa)),
    };
    let (start, end) = match written {
        Ok(place) => place,
        Err(reason) => {
            jobs.pop();
            return Err(reason);
        }
    };
    let (offset, length) = (start as u32, (end - start) as u32);
    (departure.offset, departure.length) = (offset, length);
    taken.sealed += 1;
    taken.bytes += u64::from(row.packet.length);
    Ok(Descriptor { frame: row.frame, offset, length })
}

/// Why an SA cannot carry a packet: in transport mode what it carries is narrow, in tunnel mode
/// only the frame and the outer header are.
#[cold]
fn unfit(sa: &OutboundSa) -> DropReason {
    match sa.encapsulation.mode {
        Mode::Tunnel => DropReason::Oversize,
        Mode::Transport => DropReason::TransportMode,
    }
}

fn sequence_reason(error: SequenceError) -> DropReason {
    match error {
        SequenceError::Exhausted => DropReason::SequenceExhausted,
        SequenceError::NotReserved => DropReason::SequenceNotReserved,
    }
}

/// Writes the link header in front of `end`, where it has one and the neighbour is known; returns
/// where the packet then begins. `None`: there is no room.
#[inline(always)]
fn write_link(
    snapshot: &Snapshot,
    frame: &mut [u8],
    end: usize,
    exit: &Exit,
    family: Family,
) -> Option<usize> {
    let ethertype = match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let Some(untagged) = &exit.untagged else {
        return write_other_link(snapshot, frame, end, exit.egress, ethertype);
    };
    let start = end.checked_sub(ETHERNET_BYTES)?;
    untagged.write(frame.get_mut(start..)?.first_chunk_mut()?, ethertype);
    Some(start)
}

/// [`write_link`] of a tagged header, or of none.
#[inline(never)]
fn write_other_link(
    snapshot: &Snapshot,
    frame: &mut [u8],
    end: usize,
    egress: Egress,
    ethertype: u16,
) -> Option<usize> {
    let port = snapshot.path_port(egress.port);
    match egress.mac.filter(|_| port.medium == Medium::Ethernet) {
        Some(mac) => link::write(frame, end, mac, port.mac, port.vlan, ethertype),
        None => Some(end),
    }
}

/// Bytes that [`write_link`] writes.
fn link_bytes(snapshot: &Snapshot, egress: Egress) -> usize {
    let port = snapshot.path_port(egress.port);
    match (egress.mac, port.medium, port.vlan) {
        (None, ..) | (_, Medium::Ip, _) => 0,
        (Some(_), Medium::Ethernet, None) => ETHERNET_BYTES,
        (Some(_), Medium::Ethernet, Some(_)) => ETHERNET_BYTES + VLAN_TAG_BYTES,
    }
}

/// A finished packet leaves, or waits for its neighbour.
#[inline(always)]
pub(crate) fn leave<F: Frames>(
    turn: &mut Turn<'_, F>,
    row: &Row,
    egress: Egress,
    packet: Descriptor,
    verdict: Verdict,
) {
    let (ingress, port) = (row.ingress, egress.port);
    let verdict = if egress.mac.is_some() {
        turn.out.sends.push(Send { egress: port, ingress, packet });
        verdict
    } else {
        turn.out.held.push(Held { egress: port, ingress, packet });
        Verdict::Hold(HoldKind::Neighbour)
    };
    turn.out.verdicts[row.place as usize] = Some(verdict);
}
