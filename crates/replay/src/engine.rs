//! The walk over captures: the worker that the daemon runs, its ports reading capture files.
//!
//! Inputs and outputs are values: files in the command, memory in tests.

use std::io::{Read, Sink};

use dataplane::{
    Counters, FlowCache, HoldKind, Ledger, Medium, NetdevId, PortId, Snapshot, Verdict, Worker,
};
use io::memory::FRAME_BYTES;
use io::{CaptureError, CapturePort, CaptureReader, MemoryFrames, MemoryPort};
use wire::link::{Link, Tag};
use wire::{BATCH, Descriptor, FrameId, Frames, HEADROOM, Port, Received};

/// Frames that the packets of one turn, their fragments and the ICMP about them lie in.
const FRAMES: u32 = 4096;
/// Bytes around a packet in its frame: link header, trailer and ICV.
const AROUND: usize = HEADROOM + 64;

/// A capture and the port whose netdev its packets enter by.
pub(crate) struct Input<R: Read> {
    pub(crate) port: PortId,
    pub(crate) reader: CaptureReader<R>,
}

/// Takes what leaves.
pub(crate) trait Output {
    /// Takes a packet that leaves by `port`: an Ethernet frame, or an IP packet for Linux.
    ///
    /// # Errors
    /// It cannot be written; the replay stops.
    fn write(&mut self, port: PortId, time_ns: u64, packet: &[u8]) -> Result<(), CaptureError>;
}

/// The result of a replay.
pub(crate) struct Outcome {
    pub(crate) counters: Counters,
    pub(crate) verdicts: Verdicts,
    /// One entry per input, in their order.
    pub(crate) inputs: Vec<InputCount>,
    /// Frames sent to another MAC address than that of the port they came by, if any.
    pub(crate) elsewhere: Vec<ForeignFrames>,
}

/// Packets read from one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputCount {
    pub(crate) packets: u64,
    /// Packets of which the capture held only the beginning.
    pub(crate) cut: u64,
}

/// Frames for other MAC addresses, which a gateway leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignFrames {
    /// A port of the netdev that they came by.
    pub(crate) port: PortId,
    pub(crate) packets: u64,
    /// Destination MAC address of the first.
    pub(crate) first: [u8; 6],
}

/// Number of packets by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    /// One entry per port.
    pub(crate) forward: Vec<u64>,
    /// One entry per SA set.
    pub(crate) protect: Vec<u64>,
    pub(crate) host: u64,
    pub(crate) hold: u64,
    pub(crate) consumed: u64,
    pub(crate) dropped: u64,
}

impl Verdicts {
    fn new(snapshot: &Snapshot) -> Verdicts {
        Verdicts {
            forward: vec![0; snapshot.port_slots()],
            protect: vec![0; snapshot.sets().count()],
            ..Verdicts::default()
        }
    }

    fn add(&mut self, verdict: Verdict) {
        *match verdict {
            // Its last verdict comes with the first fragment, or never.
            Verdict::Hold(HoldKind::Fragment) => return,
            Verdict::Forward(port) => &mut self.forward[usize::from(port.0)],
            Verdict::Protect(set) => &mut self.protect[set.0 as usize],
            Verdict::Host => &mut self.host,
            Verdict::Hold(_) => &mut self.hold,
            Verdict::Consumed => &mut self.consumed,
            Verdict::Drop(_) => &mut self.dropped,
        } += 1;
    }

    /// Adds the fragments that waited in vain: of all packets they alone have no last verdict.
    fn add_in_vain(&mut self, total: &Ledger) {
        let Verdicts { forward, protect, host, hold, consumed, dropped } = self;
        let left = forward.iter().chain(&*protect).sum::<u64>();
        let judged = left + *host + *hold + *consumed + *dropped;
        *dropped += (total.received + total.made).saturating_sub(judged);
    }
}

/// A netdev: packets come from captures and go to memory, from where they are written.
struct Device<R: Read> {
    /// Inputs, each with its place.
    inputs: Vec<(usize, CapturePort<R, Sink>)>,
    sent: MemoryPort,
    /// Its ports' own MAC addresses; none on an IP medium.
    macs: Vec<[u8; 6]>,
    elsewhere: u64,
    first_elsewhere: [u8; 6],
}

impl<R: Read> Port<MemoryFrames> for Device<R> {
    fn receive(
        &mut self,
        frames: &mut MemoryFrames,
        limit: usize,
        into: &mut Vec<Received>,
    ) -> usize {
        let before = into.len();
        for (_, input) in &mut self.inputs {
            let room = limit - (into.len() - before);
            input.receive(frames, room, into);
        }
        for received in &into[before..] {
            self.note_destination(frames, received.packet.frame);
        }
        into.len() - before
    }

    fn transmit(&mut self, frames: &mut MemoryFrames, packets: &[Descriptor]) -> usize {
        self.sent.transmit(frames, packets)
    }
}

impl<R: Read> Device<R> {
    /// Notes a frame for another MAC address, so that the report can say why nothing happened.
    fn note_destination(&mut self, frames: &MemoryFrames, frame: FrameId) {
        let Some(link) = Link::parse(&frames.bytes(frame)[HEADROOM..]) else { return };
        let ours = self.macs.contains(&link.destination) || self.macs.is_empty();
        if !ours && !link.is_group() {
            if self.elsewhere == 0 {
                self.first_elsewhere = link.destination;
            }
            self.elsewhere += 1;
        }
    }
}

/// Walks the packets of all inputs in the order of their times, which are the clock, and hands
/// what leaves to `output`.
///
/// Packets of one time on one netdev are walked as one batch, in the order of the inputs. With a
/// `cache` the worker remembers flows, as the daemon's workers do.
///
/// # Errors
/// An input is bad (with the packet's number) or the output failed. What was written so far is
/// worth nothing.
pub(crate) fn replay<R: Read>(
    snapshot: &Snapshot,
    inputs: Vec<Input<R>>,
    cache: Option<FlowCache>,
    output: &mut impl Output,
) -> Result<Outcome, CaptureError> {
    let count = inputs.len();
    let netdevs = netdevs(snapshot, inputs);
    let frames = MemoryFrames::with_frame_bytes(FRAMES, frame_bytes(snapshot));
    let ids: Vec<NetdevId> = (0..netdevs.len() as u16).map(NetdevId).collect();
    let mut worker = Worker::new(snapshot, frames, netdevs.into_iter().map(Some).collect());
    worker.take_cache(cache);
    let mut verdicts = Verdicts::new(snapshot);
    let mut now_ns = 0;
    while let Some(next_ns) = next_timestamp(&mut worker, &ids)? {
        now_ns = next_ns.max(now_ns);
        for &id in &ids {
            let inputs = worker.netdev_mut(id).map(|netdev| &mut netdev.inputs);
            inputs.into_iter().flatten().for_each(|(_, input)| input.advance_to(now_ns));
        }
        for &id in &ids {
            while worker.turn(snapshot, now_ns, id, BATCH) > 0 {
                worker.verdicts().iter().flatten().for_each(|verdict| verdicts.add(*verdict));
                drain(&mut worker, snapshot, &ids, now_ns, output)?;
            }
        }
    }
    worker.stop_waiting();
    let (frames, netdevs, counters) = worker.into_parts();
    verdicts.add_in_vain(&counters.total());
    debug_assert_eq!(frames.conservation().held(), 0, "a frame has no owner");
    let mut counts = vec![InputCount { packets: 0, cut: 0 }; count];
    let mut elsewhere = Vec::new();
    for (netdev, id) in netdevs.into_iter().flatten().zip(ids) {
        for (place, input) in &netdev.inputs {
            let seen = input.counts();
            counts[*place] = InputCount { packets: seen.received, cut: seen.cut };
        }
        let port = snapshot.ports().find(|(_, port)| port.netdev == id);
        if let (Some((port, _)), 1..) = (port, netdev.elsewhere) {
            let (packets, first) = (netdev.elsewhere, netdev.first_elsewhere);
            elsewhere.push(ForeignFrames { port, packets, first });
        }
    }
    Ok(Outcome { counters, verdicts, inputs: counts, elsewhere })
}

/// Returns the timestamp of the next packet over all inputs; `None`: there is none.
fn next_timestamp<R: Read>(
    worker: &mut Worker<MemoryFrames, Device<R>>,
    ids: &[NetdevId],
) -> Result<Option<u64>, CaptureError> {
    let mut earliest: Option<u64> = None;
    for &id in ids {
        let Some(netdev) = worker.netdev_mut(id) else { continue };
        for (_, input) in &mut netdev.inputs {
            if let Some(next) = input.next_timestamp()? {
                earliest = Some(earliest.map_or(next, |earliest| earliest.min(next)));
            }
        }
    }
    Ok(earliest)
}

/// Hands what left in this turn to the output.
fn drain<R: Read>(
    worker: &mut Worker<MemoryFrames, Device<R>>,
    snapshot: &Snapshot,
    ids: &[NetdevId],
    now_ns: u64,
    output: &mut impl Output,
) -> Result<(), CaptureError> {
    for &id in ids {
        let Some(netdev) = worker.netdev_mut(id) else { continue };
        if netdev.sent.transmitted().is_empty() {
            continue;
        }
        for packet in netdev.sent.take_transmitted() {
            if let Some(port) = port_of(snapshot, id, &packet) {
                output.write(port, now_ns, &packet)?;
            }
        }
    }
    Ok(())
}

/// The port that a packet left by: a netdev's ports differ by their VLAN tags.
fn port_of(snapshot: &Snapshot, netdev: NetdevId, packet: &[u8]) -> Option<PortId> {
    let vlan = match Link::parse(packet)?.tag {
        Tag::Vlan(id) => Some(id),
        Tag::Untagged | Tag::Stacked => None,
    };
    let left_by = |port: &dataplane::PortInfo| {
        port.netdev == netdev && (port.medium == Medium::Ip || port.vlan == vlan)
    };
    snapshot.ports().find(|(_, port)| left_by(port)).map(|(port, _)| port)
}

fn netdevs<R: Read>(snapshot: &Snapshot, inputs: Vec<Input<R>>) -> Vec<Device<R>> {
    let mut netdevs: Vec<Device<R>> = (0..snapshot.netdev_slots())
        .map(|id| {
            let ports = snapshot.ports().map(|(_, port)| port);
            let ours = ports
                .filter(|port| usize::from(port.netdev.0) == id && port.medium == Medium::Ethernet);
            Device {
                inputs: Vec::new(),
                sent: MemoryPort::new(usize::MAX),
                macs: ours.map(|port| port.mac).collect(),
                elsewhere: 0,
                first_elsewhere: [0; 6],
            }
        })
        .collect();
    for (place, input) in inputs.into_iter().enumerate() {
        let netdev = usize::from(snapshot.port(input.port).netdev.0);
        netdevs[netdev].inputs.push((place, CapturePort::new(Some(input.reader), None)));
    }
    netdevs
}

/// Room for the largest packet that a port of the configuration carries, at least a page.
fn frame_bytes(snapshot: &Snapshot) -> usize {
    let ports = snapshot.ports().map(|(_, port)| port);
    let links = ports.filter(|port| port.medium == Medium::Ethernet);
    let largest = links.map(|port| port.mtu as usize).max().unwrap_or(0);
    (largest + AROUND).next_power_of_two().max(FRAME_BYTES)
}
