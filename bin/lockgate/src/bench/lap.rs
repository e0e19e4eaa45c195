//! One lap of one case: packets laid out, walked under the clock, and looked at afterwards.
//!
//! A lap is one untimed pass and then some timed ones, each over all flows: one frame a flow, flows
//! and frames in random order. Keys are fresh for every lap. The timed span of a pass runs from the
//! first header read to the last descriptor written: `Worker::turn` until its port is empty, which
//! is what the daemon does, with a look at the clock every turn. After each pass no packet may be
//! missing, no drop counted, the ledger balanced, and a sample of the outputs be right.

use std::time::Instant;

use dataplane::{DeviceId, DropReason, Snapshot, SnapshotError, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use ipsec::{Inner, SaError};
use policy::SpdError;
use wire::flow::protocol;
use wire::link::ETHERNET_BYTES;
use wire::{BATCH, Descriptor, Frames};

use super::check::{Flaw, check, same};
use super::measure::{Figure, Random, Span, measure};
use super::other_cipher::OtherCipher;
use super::scene::{Case, Direction, HOP_LIMIT, Keys, SPI, own_mac, router_mac};

/// Outputs looked at after each pass.
pub(super) const SAMPLE: usize = 32;

/// Why a lap does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum LapError {
    /// The walk dropped packets: it did less work than the figure says.
    #[error("{packets} packets were dropped, reason {reason}")]
    Dropped { reason: DropReason, packets: u64 },
    /// Packets are missing, or were made.
    #[error("{expected} packets should have left, {left} did")]
    Missing { expected: usize, left: usize },
    /// The ledger does not balance.
    #[error("the ledger is out of balance by {0}")]
    Imbalance(i64),
    /// Frames are neither free nor with the port.
    #[error("{expected} frames should be in use, {held} are")]
    Frames { expected: usize, held: usize },
    /// An output is wrong.
    #[error("output {packet}: {flaw}")]
    Output { packet: usize, flaw: Flaw },
    /// The cipher alone refused a job.
    #[error("the cipher refused packet {packet}")]
    Cipher { packet: usize },
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
    /// The scene's SA was refused: a mistake of the bench.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// The scene's policies were refused: a mistake of the bench.
    #[error(transparent)]
    Spd(#[from] SpdError),
    /// The scene's parts do not fit: a mistake of the bench.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// What a lap came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LapFigures {
    /// CPU time of the walk, ns a packet.
    pub(super) walk_ns: f64,
    /// Time of the cipher alone on the same packets, ns a packet; 0 where nothing is ciphered.
    pub(super) cipher_ns: f64,
    /// The timed spans.
    pub(super) span: Span,
}

/// The frames of all laps, so that they lie in the same memory.
pub(super) fn frames(flows: usize, frame_bytes: usize) -> MemoryFrames {
    MemoryFrames::with_frame_bytes(flows as u32, frame_bytes)
}

/// Runs a lap of `passes` timed passes and measures the cipher alone.
///
/// # Errors
/// [`LapError`]; the frames are then lost.
pub(super) fn run(
    case: &Case,
    frames: MemoryFrames,
    passes: u32,
    random: &mut Random,
) -> Result<(MemoryFrames, LapFigures), LapError> {
    let mut lap = Lap::new(case, frames)?;
    lap.pass(random)?;
    let mut span = Span::default();
    for _ in 0..passes {
        span.add(lap.pass(random)?);
    }
    let mut frames = lap.into_frames();
    let cipher_ns = match case.direction {
        Direction::Forward => 0.0,
        Direction::Out | Direction::In => cipher_alone(case, &mut frames, random)?,
    };
    let packets = f64::from(passes) * case.flows as f64;
    let walk_ns = span.cpu.as_nanos() as f64 / packets;
    Ok((frames, LapFigures { walk_ns, cipher_ns, span }))
}

/// A gateway with one set of keys, and how far its numbers are.
pub(super) struct Lap<'c> {
    case: &'c Case,
    snapshot: Snapshot,
    worker: Worker<MemoryFrames, PreloadedPort>,
    other: OtherCipher,
    /// Packets that the SA carried so far.
    carried: u32,
    begin: Instant,
}

impl<'c> Lap<'c> {
    pub(super) fn new(case: &'c Case, frames: MemoryFrames) -> Result<Lap<'c>, LapError> {
        let keys = Keys::fresh(case.suite)?;
        let snapshot = case.gateway(&keys)?;
        let devices = (0..3).map(|_| Some(PreloadedPort::new(case.flows))).collect();
        let worker = Worker::new(&snapshot, frames, devices);
        let other = other_cipher(case, &keys);
        Ok(Lap { case, snapshot, worker, other, carried: 0, begin: Instant::now() })
    }

    /// One pass over all flows.
    pub(super) fn pass(&mut self, random: &mut Random) -> Result<Span, LapError> {
        let mut order: Vec<usize> = (0..self.case.flows).collect();
        random.shuffle(&mut order);
        let case = self.case;
        let packets = order.iter().zip(self.carried + 1..);
        let packets = packets.map(|(flow, number)| arriving(case, &self.other, *flow, number));
        let packets: Vec<Vec<u8>> = packets.collect();
        let span = self.walk(&packets, random);
        self.check_counts(packets.len())?;
        self.check_sample(&order, random)?;
        self.carried += packets.len() as u32;
        let (frames, egress) = self.worker.parts_mut(case.egress());
        egress.expect("all devices have ports").recycle(frames);
        Ok(span)
    }

    /// Lays packets out in frames in random order and walks them under the clock.
    fn walk(&mut self, packets: &[Vec<u8>], random: &mut Random) -> Span {
        let ingress = self.case.ingress();
        let (frames, port) = self.worker.parts_mut(ingress);
        let port = port.expect("all devices have ports");
        port.recycle(frames);
        mix(frames, random);
        for packet in packets {
            port.load(frames.store(packet).expect("a frame a flow"));
        }
        let (begin, worker, snapshot) = (self.begin, &mut self.worker, &self.snapshot);
        measure(|| drain(worker, snapshot, ingress, begin)).1
    }

    /// No packet dropped, missing or made; every frame where it should be; the ledger balanced.
    fn check_counts(&mut self, packets: usize) -> Result<(), LapError> {
        let counters = self.worker.counters();
        if let Some(reason) = DropReason::ALL.iter().find(|reason| counters.dropped(**reason) > 0) {
            return Err(LapError::Dropped { reason: *reason, packets: counters.dropped(*reason) });
        }
        let total = counters.total();
        if total.imbalance() != 0 {
            return Err(LapError::Imbalance(total.imbalance()));
        }
        let expected = self.carried as usize + packets;
        if total.sent != expected as u64 || total.received != expected as u64 {
            return Err(LapError::Missing { expected, left: total.sent as usize });
        }
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        let left = egress.map_or(0, |port| port.sent().len());
        if left != packets {
            return Err(LapError::Missing { expected: packets, left });
        }
        match frames.conservation().held() {
            held if held == packets => Ok(()),
            held => Err(LapError::Frames { expected: packets, held }),
        }
    }

    /// A sample of the outputs is what it should be. `order`: flows in the order they arrived.
    fn check_sample(&mut self, order: &[usize], random: &mut Random) -> Result<(), LapError> {
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        let sent = egress.map_or(&[][..], |port| port.sent());
        for _ in 0..SAMPLE {
            let packet = random.below(sent.len());
            let number = self.carried + 1 + packet as u32;
            let output = frames.packet(sent[packet]).unwrap_or_default();
            check(self.case, &self.other, order[packet], number, output)
                .map_err(|flaw| LapError::Output { packet, flaw })?;
        }
        Ok(())
    }

    /// Ends the lap; all frames are free.
    pub(super) fn into_frames(self) -> MemoryFrames {
        self.worker.into_parts().0
    }
}

/// The timed span. A function of its own, so that a profiler can be told to look at nothing else.
#[inline(never)]
fn drain(
    worker: &mut Worker<MemoryFrames, PreloadedPort>,
    snapshot: &Snapshot,
    device: DeviceId,
    begin: Instant,
) {
    while worker.turn(snapshot, begin.elapsed().as_nanos() as u64, device, BATCH) > 0 {}
}

/// Puts the free frames in random order.
fn mix(frames: &mut MemoryFrames, random: &mut Random) {
    let mut free: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
    random.shuffle(&mut free);
    free.into_iter().for_each(|frame| frames.give(frame));
}

/// The other end of the SA that the case uses.
fn other_cipher(case: &Case, keys: &Keys) -> OtherCipher {
    match case.direction {
        Direction::In => OtherCipher::new(case.suite, keys.inbound.expose()),
        Direction::Out | Direction::Forward => OtherCipher::new(case.suite, keys.outbound.expose()),
    }
}

/// A packet as it arrives: in clear, or as the `number`th that the peer sealed.
fn arriving(case: &Case, other: &OtherCipher, flow: usize, number: u32) -> Vec<u8> {
    let (to, from) = (own_mac(case.ingress()), router_mac(case.ingress()));
    let inner = case.inner(flow, HOP_LIMIT);
    if case.direction != Direction::In {
        return inner.frame(to, from, None);
    }
    let (local, remote) = case.tunnel();
    let esp = other.seal(SPI.value(), number, &inner.ip());
    let outer = wire::build::PacketBuilder::new(remote, local);
    outer.protocol(protocol::ESP).payload(&esp).frame(to, from, None)
}

/// Time of the cipher alone, ns a packet: the jobs of a batch are prepared, then the cipher runs
/// under the clock, batch after batch, over the same packets in the same frames as in a pass. The
/// median batch is taken, which a thread that is put aside for a while does not move.
fn cipher_alone(
    case: &Case,
    frames: &mut MemoryFrames,
    random: &mut Random,
) -> Result<f64, LapError> {
    let keys = Keys::fresh(case.suite)?;
    let snapshot = case.gateway(&keys)?;
    let other = other_cipher(case, &keys);
    mix(frames, random);
    let mut packets = Vec::with_capacity(case.flows);
    for flow in 0..case.flows {
        let packet = arriving(case, &other, flow, flow as u32 + 1);
        packets.push(frames.store(&packet).expect("a frame a flow"));
    }
    let batches = packets.chunks_exact(BATCH).enumerate().map(|(batch, packets)| {
        let first = batch * BATCH;
        match case.direction {
            Direction::In => open_batch(case, &snapshot, frames, packets, first),
            _ => seal_batch(case, &snapshot, frames, packets, first, &other),
        }
    });
    let batches: Vec<f64> = batches.collect::<Result<_, _>>()?;
    packets.iter().for_each(|packet| frames.give(packet.frame));
    Ok(Figure::of(&batches).median / BATCH as f64)
}

/// Seals one batch of packets in clear and returns the cipher's ns; the first packet is checked.
fn seal_batch(
    case: &Case,
    snapshot: &Snapshot,
    frames: &mut MemoryFrames,
    packets: &[Descriptor],
    first: usize,
    other: &OtherCipher,
) -> Result<f64, LapError> {
    let sa = &snapshot.outbound()[0];
    let refused = LapError::Cipher { packet: first };
    let Ok(number) = sa.sequence.draw(packets.len() as u32) else { return Err(refused) };
    let (family, length) = (case.family, case.size);
    let mut jobs = Vec::with_capacity(packets.len());
    let mut outer = 0..0;
    for (row, packet) in packets.iter().enumerate() {
        let inner = Inner { family, offset: packet.offset as usize + ETHERNET_BYTES, length };
        let frame = frames.bytes_mut(packet.frame);
        let number = number + row as u64;
        match sa.encapsulate(packet.frame, frame, inner, 0, number, row as u32) {
            Some((job, place)) => (jobs.push(job), outer = place),
            None => return Err(refused),
        };
    }
    let begin = Instant::now();
    let sealed = sa.cipher.seal(frames, &jobs);
    let time = begin.elapsed();
    if sealed.is_err() {
        return Err(refused);
    }
    let last = packets.len() - 1;
    let output = |flaw| LapError::Output { packet: first + last, flaw };
    let esp = jobs[last].aad as usize..outer.end;
    let opened = other.open(&frames.bytes(packets[last].frame)[esp]);
    let opened = opened.map_err(|error| output(error.into()))?;
    let expected = case.inner(first + last, HOP_LIMIT).ip();
    same(&expected, &opened.inner).map_err(output)?;
    Ok(time.as_nanos() as f64)
}

/// Opens one batch of sealed packets and returns the cipher's ns; all must be authentic, and the
/// last is compared.
fn open_batch(
    case: &Case,
    snapshot: &Snapshot,
    frames: &mut MemoryFrames,
    packets: &[Descriptor],
    first: usize,
) -> Result<f64, LapError> {
    let sa = &snapshot.inbound()[0];
    let mut jobs = Vec::with_capacity(packets.len());
    for (row, packet) in packets.iter().enumerate() {
        let ip = packet.offset as usize + ETHERNET_BYTES;
        let frame = frames.bytes(packet.frame);
        let end = packet.offset as usize + packet.length as usize;
        let job = wire::packet::parse(&frame[ip..end]).ok().and_then(|outer| {
            let esp = ip + usize::from(outer.upper_offset)..end;
            sa.open_job(packet.frame, frame, esp, row as u32).ok()
        });
        jobs.push(job.ok_or(LapError::Cipher { packet: first + row })?);
    }
    let begin = Instant::now();
    sa.cipher.open(frames, &mut jobs);
    let time = begin.elapsed();
    if let Some(row) = jobs.iter().position(|job| !job.authentic) {
        return Err(LapError::Cipher { packet: first + row });
    }
    let last = packets.len() - 1;
    let text = jobs[last].text as usize;
    let found = &frames.bytes(packets[last].frame)[text..text + case.size];
    same(&case.inner(first + last, HOP_LIMIT).ip(), found)
        .map_err(|flaw| LapError::Output { packet: first + last, flaw })?;
    Ok(time.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipsec::Suite;
    use wire::Family;

    const FLOWS: usize = 256;

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for direction in [Direction::Out, Direction::In, Direction::Forward] {
            for family in [Family::V4, Family::V6] {
                for (suite, size) in [(Suite::Aes128Gcm, 64), (Suite::Aes256Gcm, 1420)] {
                    cases.push(Case { direction, suite, family, size, flows: FLOWS });
                }
            }
        }
        cases
    }

    fn lap(case: &Case) -> Lap<'_> {
        Lap::new(case, frames(FLOWS, 2048)).unwrap()
    }

    /// The first packets of a lap in order, as they arrive.
    fn first_packets(lap: &Lap) -> Vec<Vec<u8>> {
        (0..FLOWS).map(|flow| arriving(lap.case, &lap.other, flow, flow as u32 + 1)).collect()
    }

    #[test]
    fn every_kind_of_lap_counts_and_leaves_its_frames_for_the_next() {
        let mut random = Random::new(1);
        for case in cases() {
            let (frames, figures) =
                run(&case, frames(FLOWS, 2048), 2, &mut random).expect("a right lap");
            assert_eq!(frames.conservation().held(), 0);
            assert!(figures.walk_ns > 0.0, "{case:?}");
            assert_eq!(figures.cipher_ns > 0.0, case.direction != Direction::Forward);
            run(&case, frames, 1, &mut random).expect("another in the same frames");
        }
    }

    #[test]
    fn a_lap_that_drops_a_packet_is_refused() {
        for case in cases() {
            let mut lap = lap(&case);
            let mut packets = first_packets(&lap);
            let expected = match case.direction {
                Direction::In => {
                    packets[77] = packets[76].clone();
                    DropReason::Replayed
                }
                Direction::Out | Direction::Forward => {
                    packets[77] = case.inner(77, 0).frame(
                        own_mac(case.ingress()),
                        router_mac(case.ingress()),
                        None,
                    );
                    DropReason::HopLimit
                }
            };
            lap.walk(&packets, &mut Random::new(2));
            let error = lap.check_counts(packets.len()).unwrap_err();
            assert!(
                matches!(error, LapError::Dropped { reason, packets: 1 } if reason == expected),
                "{case:?}: {error}"
            );
        }
    }

    #[test]
    fn a_lap_with_a_packet_too_few_is_refused() {
        for case in cases() {
            let mut lap = lap(&case);
            let packets = first_packets(&lap);
            lap.walk(&packets[1..], &mut Random::new(3));
            let error = lap.check_counts(packets.len()).unwrap_err();
            assert!(matches!(error, LapError::Missing { .. }), "{case:?}: {error}");
        }
    }

    #[test]
    fn a_lap_with_a_wrong_byte_in_its_outputs_is_refused() {
        let order: Vec<usize> = (0..FLOWS).collect();
        for case in cases() {
            let mut lap = lap(&case);
            let packets = first_packets(&lap);
            lap.walk(&packets, &mut Random::new(4));
            lap.check_counts(packets.len()).unwrap();
            lap.check_sample(&order, &mut Random::new(5)).unwrap();
            let (frames, port) = lap.worker.parts_mut(case.egress());
            for packet in port.unwrap().sent() {
                let middle = (packet.offset + packet.length / 2) as usize;
                frames.bytes_mut(packet.frame)[middle] ^= 0x10;
            }
            let error = lap.check_sample(&order, &mut Random::new(5)).unwrap_err();
            assert!(matches!(error, LapError::Output { .. }), "{case:?}: {error}");
        }
    }
}
