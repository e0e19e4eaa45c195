//! Stage 5: all headers, nonces and trailers of the batch, then the cipher over the batch, SA by
//! SA: a nonce written just before it is used stalls the cipher.

use ipsec::{Mode, OutboundSa, SaId, SealJob, SequenceError};
use wire::link::ethertype;
use wire::{Descriptor, Family, Frames, link};

use crate::sends::Send;
use crate::snapshot::Egress;
use crate::stage::{Stage, StageClock};
use crate::walk::{Held, Row, Scratch, Turn};
use crate::{DropReason, HoldKind, Medium, SetIndex, Verdict};

/// What seals a departure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) set: SetIndex,
    pub(crate) sa: SaId,
}

/// A row's packet on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// The row.
    row: u32,
    fate: Fate,
    /// Where in the frame the packet lies that leaves, once its headers are written.
    offset: u32,
    length: u32,
    egress: Egress,
}

/// How a packet leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// In clear.
    Clear,
    /// Sealed: which group of the batch, and its rank there.
    Sealed { group: u16, rank: u32 },
    /// It does not.
    Dropped(DropReason),
}

/// The departures of one SA in a batch.
#[derive(Clone, Copy)]
struct Group {
    protection: Protection,
    /// A batch of large packets becomes more than 65,535 fragments on a narrow path.
    count: u32,
    /// Bytes of the IP packets before sealing, of those that were sealed.
    bytes: u64,
    sealed: u32,
    /// Sequence number of the first, or why there is none.
    first: Result<u64, SequenceError>,
}

/// What leaves in a batch, kept over batches.
#[derive(Default)]
pub(crate) struct Departures {
    list: Vec<Departure>,
    groups: Vec<Group>,
    jobs: Vec<SealJob>,
}

impl Departures {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.groups.clear();
        self.jobs.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a row that leaves in clear, behind those that wait for the cipher.
    pub(crate) fn push_clear(&mut self, row: usize, egress: Egress) {
        let (row, fate) = (row as u32, Fate::Clear);
        self.list.push(Departure { row, fate, offset: 0, length: 0, egress });
    }

    /// Adds a row that is to be sealed.
    #[inline]
    pub(crate) fn push_sealed(&mut self, row: usize, egress: Egress, protection: Protection) {
        let known = self.groups.iter().rposition(|group| group.protection == protection);
        let group = known.unwrap_or_else(|| self.add_group(protection));
        let rank = self.groups[group].count;
        self.groups[group].count += 1;
        let (row, fate) = (row as u32, Fate::Sealed { group: group as u16, rank });
        self.list.push(Departure { row, fate, offset: 0, length: 0, egress });
    }

    #[cold]
    fn add_group(&mut self, protection: Protection) -> usize {
        let first = Ok(0);
        self.groups.push(Group { protection, count: 0, bytes: 0, sealed: 0, first });
        self.groups.len() - 1
    }

    /// Draws every group's run of sequence numbers, with one atomic step each. Two groups can be of
    /// one SA, reached through two sets: each has a run of its own.
    fn draw<F>(&mut self, turn: &Turn<'_, F>) {
        for group in &mut self.groups {
            let sa = &turn.snapshot.outbound()[group.protection.sa.0 as usize];
            group.first = sa.sequence.draw(group.count);
        }
    }

    /// Runs the cipher over the jobs, SA by SA. What it refuses is in clear and is dropped.
    fn run_cipher<F: Frames>(&mut self, turn: &mut Turn<'_, F>) {
        let Departures { list, groups, jobs } = self;
        let group_of = |job: &SealJob| match list[job.row as usize].fate {
            Fate::Sealed { group, .. } => group,
            Fate::Clear | Fate::Dropped(_) => u16::MAX,
        };
        if groups.len() > 1 {
            jobs.sort_unstable_by_key(|job| (group_of(job), job.row));
        }
        let mut refused: Option<Vec<u32>> = None;
        let mut rest = &jobs[..];
        for (number, group) in groups.iter().enumerate() {
            let behind = match groups.len() {
                1 => rest.len(),
                _ => rest.partition_point(|job| usize::from(group_of(job)) <= number),
            };
            let (jobs, others) = rest.split_at(behind);
            rest = others;
            if jobs.is_empty() {
                continue;
            }
            let sa = &turn.snapshot.outbound()[group.protection.sa.0 as usize];
            let mut sealed = jobs.len();
            if let Err(error) = sa.cipher.seal(turn.frames, jobs) {
                sealed = error.job;
                let rows = jobs[error.job..].iter().map(|job| job.row);
                refused.get_or_insert_default().extend(rows);
            }
            if sa.encapsulation.udp.is_some() && sa.tunnel().remote.is_ipv6() {
                for job in &jobs[..sealed] {
                    finish_udp(turn, job, &list[job.row as usize]);
                }
            }
        }
        for place in refused.into_iter().flatten() {
            list[place as usize].fate = Fate::Dropped(DropReason::CipherRefused);
        }
    }
}

/// The checksum of ESP in UDP over IPv6.
#[cold]
fn finish_udp<F: Frames>(turn: &mut Turn<'_, F>, job: &SealJob, departure: &Departure) {
    // Behind the link header begins IPv6, in transport mode perhaps with extension headers.
    let start = departure.offset as usize + link_bytes(turn.snapshot, departure.egress);
    let end = departure.offset as usize + departure.length as usize;
    let packet = turn.frames.bytes_mut(job.frame).get_mut(start..end);
    ipsec::finish_udp(packet.unwrap_or_default());
}

/// Seals what is to be protected, puts the link header on everything, and sends it.
///
/// 1. draw each SA's numbers with one atomic step
/// 2. each departure: ESP headers and trailer, link header
/// 3. the cipher, SA by SA
/// 4. each departure: its verdict
pub(crate) fn seal<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &[Row],
    scratch: &mut Scratch,
    clock: &mut impl StageClock,
) {
    let departures = &mut scratch.departures;
    if departures.is_empty() {
        return;
    }
    departures.draw(turn);
    let Departures { list, groups, jobs } = departures;
    for (place, departure) in list.iter_mut().enumerate() {
        let row = &rows[departure.row as usize];
        let written = match departure.fate {
            Fate::Sealed { group, rank } => {
                let group = &groups[usize::from(group)];
                write_sealed(turn, departure, row, group, rank, place as u32, jobs)
            }
            _ => write_clear(turn, departure, row),
        };
        if let Err(reason) = written {
            departure.fate = Fate::Dropped(reason);
        }
    }
    clock.ended(Stage::SealHeaders);
    departures.run_cipher(turn);
    clock.ended(Stage::SealCipher);
    let Departures { list, groups, .. } = departures;
    for departure in list.iter() {
        let row = &rows[departure.row as usize];
        let verdict = match departure.fate {
            Fate::Clear => Verdict::Forward(departure.egress.port),
            Fate::Sealed { group, .. } => {
                let group = &mut groups[usize::from(group)];
                group.sealed += 1;
                group.bytes += u64::from(row.packet.length);
                Verdict::Protect(group.protection.set)
            }
            Fate::Dropped(reason) => {
                turn.counters.drop(Some(row.ingress), reason);
                turn.frames.give(row.frame);
                turn.out.verdicts[row.place as usize] = Some(Verdict::Drop(reason));
                continue;
            }
        };
        let Departure { offset, length, egress, .. } = *departure;
        let packet = Descriptor { frame: row.frame, offset, length };
        leave(turn, row, egress, packet, verdict);
    }
    for group in groups.iter() {
        turn.counters.sealed(group.protection.sa, group.sealed.into(), group.bytes);
    }
    clock.ended(Stage::SealConclude);
}

/// Puts the link header on a packet that leaves in clear with nothing before it that waits for the
/// cipher, and sends it.
#[inline]
pub(crate) fn leave_in_clear<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, egress: Egress) {
    let (offset, length, family) = (row.ip as usize, row.packet.length, row.packet.flow.family);
    let frame = turn.frames.bytes_mut(row.frame);
    match write_link(turn.snapshot, frame, offset, egress, family) {
        Some(start) => {
            let length = length + (offset - start) as u32;
            let packet = Descriptor { frame: row.frame, offset: start as u32, length };
            leave(turn, row, egress, packet, Verdict::Forward(egress.port));
        }
        None => turn.drop(row, DropReason::Oversize),
    }
}

/// Writes ESP headers, trailer and link header of a departure, and adds what the cipher has to do.
#[inline(always)]
fn write_sealed<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    row: &Row,
    group: &Group,
    rank: u32,
    place: u32,
    jobs: &mut Vec<SealJob>,
) -> Result<(), DropReason> {
    let sequence = match group.first {
        Ok(first) => first + u64::from(rank),
        Err(error) => return Err(sequence_reason(error)),
    };
    let sa = &turn.snapshot.outbound()[group.protection.sa.0 as usize];
    let frame = turn.frames.bytes_mut(row.frame);
    jobs.push(SealJob { row: place, ..SealJob::of(row.frame) });
    let job = jobs.last_mut().expect("pushed just now");
    let written = sa
        .encapsulate_into(job, frame, row.ip as usize, &row.packet, sequence)
        .ok_or_else(|| unfit(sa))
        .and_then(|outer| {
            let (egress, family) = (departure.egress, sa.family());
            let start = write_link(turn.snapshot, frame, outer.start, egress, family);
            Ok((start.ok_or(DropReason::Oversize)?, outer.end))
        });
    match written {
        Ok((start, end)) => {
            departure.offset = start as u32;
            departure.length = (end - start) as u32;
            Ok(())
        }
        Err(reason) => {
            jobs.pop();
            Err(reason)
        }
    }
}

fn write_clear<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    row: &Row,
) -> Result<(), DropReason> {
    let (offset, family) = (row.ip as usize, row.packet.flow.family);
    let frame = turn.frames.bytes_mut(row.frame);
    let start = write_link(turn.snapshot, frame, offset, departure.egress, family)
        .ok_or(DropReason::Oversize)?;
    departure.offset = start as u32;
    departure.length = row.packet.length + (offset - start) as u32;
    Ok(())
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
    snapshot: &crate::Snapshot,
    frame: &mut [u8],
    end: usize,
    egress: Egress,
    family: Family,
) -> Option<usize> {
    let port = snapshot.path_port(egress.port);
    let Some(mac) = egress.mac.filter(|_| port.medium == Medium::Ethernet) else {
        return Some(end);
    };
    let ethertype = match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    link::write(frame, end, mac, port.mac, port.vlan, ethertype)
}

/// Bytes that [`write_link`] writes.
fn link_bytes(snapshot: &crate::Snapshot, egress: Egress) -> usize {
    let port = snapshot.path_port(egress.port);
    match (egress.mac, port.medium, port.vlan) {
        (None, ..) | (_, Medium::Ip, _) => 0,
        (Some(_), Medium::Ethernet, None) => link::ETHERNET_BYTES,
        (Some(_), Medium::Ethernet, Some(_)) => link::ETHERNET_BYTES + link::VLAN_TAG_BYTES,
    }
}

/// A finished packet leaves, or waits for its neighbour.
#[inline(always)]
fn leave<F: Frames>(
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
