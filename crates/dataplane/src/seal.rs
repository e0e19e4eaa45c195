//! Stage 5: all headers, nonces and trailers of the batch, then the cipher over the batch, SA by SA
//! (FACTS "Ciphers": a nonce written just before it is used stalls the cipher).

use ipsec::{Mode, OutboundSa, SaId, SealJob, SequenceError};
use wire::link::ethertype;
use wire::{Descriptor, Family, FrameId, Frames, Packet, link};

use crate::snapshot::Egress;
use crate::stage::{Stage, StageClock};
use crate::walk::{Held, Row, Scratch, Send, Turn};
use crate::{DropReason, HoldKind, Medium, PortId, SetIndex, Verdict};

/// What seals a departure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) set: SetIndex,
    pub(crate) sa: SaId,
}

/// A packet on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// Its place among the verdicts.
    pub(crate) place: u32,
    pub(crate) frame: FrameId,
    /// Where the packet lies: at first the IP packet, in the end with all that is in front of it.
    offset: u32,
    length: u32,
    /// Bytes of the IP packet, before sealing.
    bytes: u32,
    /// Bytes of its link header, once that is written.
    link: u32,
    ingress: PortId,
    /// The IP packet, before sealing.
    packet: Packet,
    egress: Egress,
    fate: Fate,
}

/// How a packet leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// In clear.
    Clear,
    /// Sealed: by which SA, which group of the batch, and its rank there.
    Sealed { protection: Protection, group: u32, rank: u32 },
    /// It does not.
    Dropped(DropReason),
}

impl Departure {
    /// The departure of a row's packet.
    #[inline]
    pub(crate) fn of(row: &Row, egress: Egress, protection: Option<Protection>) -> Departure {
        Departure {
            place: row.place,
            frame: row.frame,
            offset: row.ip,
            length: row.packet.length,
            bytes: row.packet.length,
            link: 0,
            ingress: row.ingress,
            packet: row.packet,
            egress,
            fate: match protection {
                Some(protection) => Fate::Sealed { protection, group: 0, rank: 0 },
                None => Fate::Clear,
            },
        }
    }

    /// Its IP packet, sealed and with its link header in front by now.
    fn ip_packet<'f, F: Frames>(&self, frames: &'f mut F) -> &'f mut [u8] {
        let Departure { frame, offset, length, link, .. } = *self;
        let (start, end) = (offset as usize + link as usize, offset as usize + length as usize);
        frames.bytes_mut(frame).get_mut(start..end).unwrap_or_default()
    }

    /// Its group, if it is to be sealed.
    fn group(&self) -> Option<u32> {
        match self.fate {
            Fate::Sealed { group, .. } => Some(group),
            Fate::Clear | Fate::Dropped(_) => None,
        }
    }
}

/// The departures of one SA in a batch.
#[derive(Clone, Copy)]
struct Group {
    sa: SaId,
    count: u32,
    /// Sequence number of the first, or why there is none.
    first: Result<u64, SequenceError>,
}

/// Lists of this stage, kept over batches.
#[derive(Default)]
pub(crate) struct Sealing {
    groups: Vec<Group>,
    jobs: Vec<SealJob>,
}

/// Seals what is to be protected, puts the link header on everything, and sends it.
///
/// 1. group the departures by SA and draw each group's numbers with one atomic step
/// 2. each departure: ESP headers and trailer, link header
/// 3. the cipher, SA by SA
/// 4. each departure: its verdict
pub(crate) fn seal<F: Frames>(
    turn: &mut Turn<'_, F>,
    scratch: &mut Scratch,
    clock: &mut impl StageClock,
) {
    let Scratch { departures, sealing, .. } = scratch;
    if departures.is_empty() {
        return;
    }
    sealing.number(turn, departures);
    sealing.jobs.clear();
    for (row, departure) in departures.iter_mut().enumerate() {
        let written = write_headers(turn, departure, &sealing.groups, row as u32);
        match written {
            Ok(Some(job)) => sealing.jobs.push(job),
            Ok(None) => {}
            Err(reason) => departure.fate = Fate::Dropped(reason),
        }
    }
    clock.ended(Stage::SealHeaders);
    sealing.run_cipher(turn, departures);
    clock.ended(Stage::SealCipher);
    for departure in departures {
        conclude(turn, departure);
    }
    clock.ended(Stage::SealConclude);
}

impl Sealing {
    /// Gives every departure that is to be sealed its place in its SA's group, and every group its
    /// run of sequence numbers.
    fn number<F>(&mut self, turn: &Turn<'_, F>, departures: &mut [Departure]) {
        self.groups.clear();
        for departure in departures {
            let Fate::Sealed { protection: Protection { sa, .. }, group, rank } =
                &mut departure.fate
            else {
                continue;
            };
            let known = self.groups.iter().rposition(|known| known.sa == *sa);
            let place = known.unwrap_or_else(|| {
                self.groups.push(Group { sa: *sa, count: 0, first: Ok(0) });
                self.groups.len() - 1
            });
            (*group, *rank) = (place as u32, self.groups[place].count);
            self.groups[place].count += 1;
        }
        for group in &mut self.groups {
            let sa = &turn.snapshot.outbound()[group.sa.0 as usize];
            group.first = sa.sequence.draw(group.count);
        }
    }

    /// Runs the cipher over the jobs, SA by SA. What it refuses is in clear and is dropped.
    fn run_cipher<F: Frames>(&mut self, turn: &mut Turn<'_, F>, departures: &mut [Departure]) {
        if self.groups.len() > 1 {
            self.jobs.sort_unstable_by_key(|job| (departures[job.row as usize].group(), job.row));
        }
        let group_of = |job: &SealJob| departures[job.row as usize].group();
        let mut refused: Option<Vec<u32>> = None;
        for jobs in self.jobs.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let Some(group) = group_of(&jobs[0]) else { continue };
            let sa = self.groups[group as usize].sa;
            let sa = &turn.snapshot.outbound()[sa.0 as usize];
            let mut sealed = jobs.len();
            if let Err(error) = sa.cipher.seal(turn.frames, jobs) {
                sealed = error.job;
                let rows = jobs[error.job..].iter().map(|job| job.row);
                refused.get_or_insert_default().extend(rows);
            }
            if sa.encapsulation.udp.is_some() && sa.tunnel().remote.is_ipv6() {
                for job in &jobs[..sealed] {
                    let departure = &departures[job.row as usize];
                    ipsec::finish_udp(departure.ip_packet(turn.frames));
                }
            }
        }
        for row in refused.into_iter().flatten() {
            departures[row as usize].fate = Fate::Dropped(DropReason::CipherRefused);
        }
    }
}

/// Puts the link header on a packet that is not to be sealed, and sends it.
#[inline]
pub(crate) fn leave_in_clear<F: Frames>(turn: &mut Turn<'_, F>, mut departure: Departure) {
    let family = departure.packet.flow.family;
    if let Err(reason) = write_link(turn, &mut departure, family) {
        departure.fate = Fate::Dropped(reason);
    }
    conclude(turn, &departure);
}

/// Writes what goes in front of and behind a departure's IP packet.
#[inline]
fn write_headers<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    groups: &[Group],
    row: u32,
) -> Result<Option<SealJob>, DropReason> {
    let mut family = departure.packet.flow.family;
    let mut job = None;
    if let Fate::Sealed { protection: Protection { sa, .. }, group, rank } = departure.fate {
        let first = groups[group as usize].first.map_err(sequence_reason)?;
        let sequence = first + u64::from(rank);
        let sa = &turn.snapshot.outbound()[sa.0 as usize];
        let frame = turn.frames.bytes_mut(departure.frame);
        let ip = departure.offset as usize;
        let (seal, outer) = sa
            .encapsulate(departure.frame, frame, ip, &departure.packet, sequence, row)
            .ok_or_else(|| unfit(sa))?;
        departure.offset = outer.start as u32;
        departure.length = outer.len() as u32;
        family = if sa.tunnel().remote.is_ipv4() { Family::V4 } else { Family::V6 };
        job = Some(seal);
    }
    write_link(turn, departure, family)?;
    Ok(job)
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

/// Writes the link header, if the neighbour is known.
#[inline]
fn write_link<F: Frames>(
    turn: &mut Turn<'_, F>,
    departure: &mut Departure,
    family: Family,
) -> Result<(), DropReason> {
    let port = turn.snapshot.path_port(departure.egress.port);
    let Some(mac) = departure.egress.mac.filter(|_| port.medium == Medium::Ethernet) else {
        return Ok(());
    };
    let ethertype = match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let frame = turn.frames.bytes_mut(departure.frame);
    let end = departure.offset as usize;
    let start =
        link::write(frame, end, mac, port.mac, port.vlan, ethertype).ok_or(DropReason::Oversize)?;
    departure.link = (end - start) as u32;
    departure.length += departure.link;
    departure.offset = start as u32;
    Ok(())
}

/// A departure's verdict, and its frame to who gets it.
#[inline]
fn conclude<F: Frames>(turn: &mut Turn<'_, F>, departure: &Departure) {
    let Departure { place, frame, ingress, egress, .. } = *departure;
    let packet = Descriptor { frame, offset: departure.offset, length: departure.length };
    if let Fate::Sealed { protection, .. } = departure.fate {
        turn.counters.sealed(protection.sa, departure.bytes as usize);
    }
    let verdict = match (departure.fate, egress.mac) {
        (Fate::Dropped(reason), _) => {
            turn.counters.drop(Some(ingress), reason);
            turn.frames.give(frame);
            Verdict::Drop(reason)
        }
        (_, None) => {
            turn.out.held.push(Held { egress: egress.port, ingress, packet });
            Verdict::Hold(HoldKind::Neighbour)
        }
        (fate, Some(_)) => {
            turn.out.sends.push(Send { egress: egress.port, ingress, packet });
            match fate {
                Fate::Sealed { protection, .. } => Verdict::Protect(protection.set),
                Fate::Clear | Fate::Dropped(_) => Verdict::Forward(egress.port),
            }
        }
    };
    turn.out.verdicts[place as usize] = Some(verdict);
}
