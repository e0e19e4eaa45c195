//! The walk as a black box: frames in, verdicts and opened packets out.

use std::sync::Arc;

use dataplane::{
    AddressUpdate, CacheUse, CapturedPacket, Counters, Entry, FastPathUse, FlowCache, Handover,
    Input, Medium, NetdevId, Outputs, PortId, SetIndex, Snapshot, Tap, TapReader, TapSettings,
    Verdict, Walk, WorkerShare, tap,
};
use io::MemoryFrames;
use ipsec::{DontFragment, Dscp, Encapsulation, Mode};
use model::carried::{self, Carrier};
use model::esp::{self, Text};
use model::headers::{self, Ip, Part};
use model::icmp;
use model::world::{Keys, Supply, World};
use wire::{Descriptor, Family, Frames, HEADROOM, Received, Upper};

/// A gateway that runs the real walk.
pub(crate) struct Gateway<'w> {
    world: &'w World,
    snapshot: Arc<Snapshot>,
    /// One a worker. Their frames are one memory here: who hands over does not copy.
    walks: Vec<Walk>,
    frames: MemoryFrames,
    /// The time of the last batch.
    now_ns: u64,
    /// From one batch to the next.
    pace_ns: u64,
    /// A capture: one tap a worker, and where its packets come out.
    #[expect(clippy::vec_box, reason = "as they are made")]
    capture: Option<(Vec<Box<Tap>>, TapReader)>,
}

/// The outcome of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Observed {
    /// One a packet given in, then one a packet made.
    pub(crate) verdicts: Vec<Verdict>,
    /// The packets that left, in order: sent, held, given to Linux.
    pub(crate) emissions: Vec<Emission>,
    /// The peers that have moved.
    pub(crate) moved: Vec<AddressUpdate>,
}

/// One packet that came out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Emission {
    pub(crate) fate: Out,
    /// The IP packet; opened if it was sealed. A frame for Linux as it came.
    pub(crate) packet: Vec<u8>,
    /// The place of the peer whose SA sealed it.
    pub(crate) sealed: Option<u32>,
    pub(crate) ingress: PortId,
    /// Number of packets on the wire: several if the outer packet left in fragments.
    pub(crate) pieces: usize,
}

/// One IP packet on the wire.
struct Leaving {
    fate: Out,
    egress: PortId,
    ingress: PortId,
    packet: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Out {
    /// By this port to this link address.
    Sent(PortId, [u8; 6]),
    Held(PortId),
    Host,
}

/// The numbers of a packet that one of our SAs sealed, which must never come twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OnTheWire {
    pub(crate) spi: u32,
    pub(crate) sequence: u32,
    /// The IV as a number; none under a suite without.
    pub(crate) iv: Option<u128>,
}

impl<'w> Gateway<'w> {
    pub(crate) fn new(world: &'w World) -> Gateway<'w> {
        Gateway::over(world, Arc::new(world.snapshot()))
    }

    /// Returns the same gateway once more: other workers, the same SAs.
    pub(crate) fn beside(&self) -> Gateway<'w> {
        Gateway::over(self.world, self.snapshot.clone())
    }

    /// A gateway with a snapshot of that world.
    pub(crate) fn over(world: &'w World, snapshot: Arc<Snapshot>) -> Gateway<'w> {
        let walk = |worker| {
            let mut walk = Walk::new(&snapshot);
            walk.take_share(WorkerShare { worker, workers: world.workers });
            walk
        };
        let walks = (0..world.workers).map(walk).collect();
        let frames = MemoryFrames::with_frame_bytes(512, HEADROOM + world.room);
        let pace_ns = 1_000_000_000;
        Gateway { world, snapshot, walks, frames, now_ns: 0, pace_ns, capture: None }
    }

    /// Sets the time between two batches, at least 64 ms: no ICMP is held back.
    pub(crate) fn at_pace(mut self, milliseconds: u64) -> Gateway<'w> {
        self.pace_ns = milliseconds * 1_000_000;
        self
    }

    /// Sets the time at which the next batch is walked.
    pub(crate) fn set_next_ns(&mut self, next_ns: u64) {
        self.now_ns = next_ns - self.pace_ns;
    }

    /// The time at which the next batch is walked.
    pub(crate) fn next_ns(&self) -> u64 {
        self.now_ns + self.pace_ns
    }

    /// Gives each worker a flow cache, of so many entries and for every domain.
    pub(crate) fn remembering(mut self, entries: usize) -> Gateway<'w> {
        for walk in &mut self.walks {
            let cache = FlowCache::new(entries, &[42; 32], CacheUse::Always).unwrap();
            assert!(walk.take_cache(Some(cache)).is_none());
        }
        self
    }

    /// A gateway like this one, with another use of the fast path.
    pub(crate) fn with_fast_path(mut self, use_: FastPathUse) -> Gateway<'w> {
        self.walks.iter_mut().for_each(|walk| walk.use_fast_path(use_));
        self
    }

    /// A gateway like this one, under a capture.
    pub(crate) fn tapped(mut self, settings: &TapSettings) -> Gateway<'w> {
        self.capture = Some(tap::taps(settings, self.walks.len()));
        self
    }

    /// Packets captured since this was last asked; as many more may be.
    pub(crate) fn captured(&mut self) -> Vec<CapturedPacket> {
        let Some((taps, reader)) = &mut self.capture else { return vec![] };
        let workers = 0..taps.len();
        let all = workers
            .flat_map(|worker| std::iter::from_fn(|| reader.take(worker)).collect::<Vec<_>>());
        all.collect()
    }

    /// Walks a batch of one worker, under the capture if there is one.
    fn walk(
        &mut self,
        worker: usize,
        netdev: NetdevId,
        packets: &[Descriptor],
        entry: Entry,
    ) -> Outputs {
        let mut out = Outputs::default();
        let Gateway { snapshot, walks, frames, now_ns, capture, .. } = self;
        let walk = &mut walks[worker];
        // Hints without marks: they change nothing.
        let received = |(packet, hint): (&Descriptor, u32)| Received { packet: *packet, hint };
        let packets: Vec<Received> = packets.iter().zip(0..).map(received).collect();
        let input = Input { netdev, packets: &packets, marks: &[], entry };
        match capture {
            Some((taps, reader)) => {
                reader.allow(1 << 20, 1 << 20);
                let taps = &mut taps[worker..=worker];
                tap::walk(walk, taps, snapshot, *now_ns, input, frames, &mut out);
                taps.iter_mut().for_each(|tap| tap.finish(snapshot, *now_ns, &out.verdicts));
            }
            None => walk.run(snapshot, *now_ns, input, frames, &mut out),
        }
        out
    }

    /// Goes over to a world of as many workers, ports, slots and SAs, by a snapshot of it.
    pub(crate) fn go_over(&mut self, world: &'w World, snapshot: Arc<Snapshot>) {
        (self.world, self.snapshot) = (world, snapshot);
    }

    /// The workers' walks.
    pub(crate) fn walks(&self) -> &[Walk] {
        &self.walks
    }

    /// Returns the counters of the only worker.
    pub(crate) fn counters(&self) -> &Counters {
        assert_eq!(self.walks.len(), 1, "whose counters?");
        self.walks[0].counters()
    }

    /// Walks one batch. Each netdev's packets arrive at one worker, which hands over what is
    /// another's.
    pub(crate) fn run(
        &mut self,
        netdev: NetdevId,
        packets: &[&[u8]],
    ) -> (Observed, Vec<OnTheWire>) {
        self.now_ns = self.next_ns();
        let store = |bytes: &&[u8]| self.frames.store(bytes).expect("a free frame");
        let descriptors: Vec<Descriptor> = packets.iter().map(store).collect();
        let receiver = usize::from(netdev.0) % self.walks.len();
        let mut out = self.walk(receiver, netdev, &descriptors, Entry::Received);
        let mut verdicts = out.verdicts.clone();
        let mut handed_over = places(&mut out, &descriptors);
        let (mut observed, mut on_the_wire) = (Observed::default(), vec![]);
        self.collect(receiver, out, &mut observed, &mut on_the_wire);
        // A fragment goes to the worker of its datagram, and what becomes of it to that of its SA.
        loop {
            let given = std::mem::take(&mut handed_over);
            for worker in 0..self.walks.len() {
                let own = given.iter().filter(|(_, handover)| {
                    handover.worker as usize == worker && handover.netdev == netdev
                });
                let (own_places, own): (Vec<usize>, Vec<Descriptor>) =
                    own.map(|(place, handover)| (*place, handover.packet)).unzip();
                let mut out = self.walk(worker, netdev, &own, Entry::HandedOver);
                let further = places(&mut out, &own).into_iter();
                handed_over.extend(further.map(|(place, further)| (own_places[place], further)));
                let (theirs, made) = out.verdicts.split_at(own.len());
                for (place, verdict) in own_places.iter().zip(theirs) {
                    assert_eq!(verdicts[*place], None, "handed over and judged");
                    verdicts[*place] = *verdict;
                }
                verdicts.extend(made);
                self.collect(worker, out, &mut observed, &mut on_the_wire);
            }
            if handed_over.is_empty() {
                break;
            }
        }
        observed.verdicts = verdicts.into_iter().map(|v| v.expect("a verdict")).collect();
        // I7, and no frame is lost.
        for ledger in self.walks.iter().flat_map(|walk| &walk.counters().ledgers) {
            assert_eq!(ledger.imbalance(), 0, "{ledger:?}");
        }
        let waiting: usize = self.walks.iter().map(Walk::fragments_waiting).sum();
        assert_eq!(self.frames.conservation().held(), waiting);
        (observed, on_the_wire)
    }

    /// Takes what a worker's walk put out.
    fn collect(
        &mut self,
        worker: usize,
        out: Outputs,
        observed: &mut Observed,
        on_the_wire: &mut Vec<OnTheWire>,
    ) {
        let mut leaving = vec![];
        for tx_packet in &out.tx {
            let bytes = self.take(tx_packet.packet);
            let (egress, ingress) = (tx_packet.egress, tx_packet.ingress);
            let (mac, packet) = self.unlink(egress, &bytes);
            leaving.push(Leaving { fate: Out::Sent(egress, mac), egress, ingress, packet });
            self.walks[worker].counters_mut().ledger(Some(tx_packet.ingress)).sent += 1;
        }
        for held in &out.held {
            let packet = self.take(held.packet);
            let (egress, ingress) = (held.egress, held.ingress);
            leaving.push(Leaving { fate: Out::Held(egress), egress, ingress, packet });
            self.walks[worker].counters_mut().ledger(Some(held.ingress)).held += 1;
        }
        self.unseal_all(worker, &leaving, observed, on_the_wire);
        for host in &out.host {
            let packet = self.take(host.packet);
            let ingress = host.ingress;
            if host.form == Medium::Ip {
                assert_eq!(headers::ip(&packet).unwrap().bytes, packet, "an IP packet, no more");
            }
            let (fate, sealed, pieces) = (Out::Host, None, 1);
            observed.emissions.push(Emission { fate, packet, sealed, ingress, pieces });
            self.walks[worker].counters_mut().ledger(Some(ingress)).host += 1;
        }
        observed.moved.extend(out.moved);
    }

    /// Opens the packets sealed by our SAs. Reassembles fragments of outer packets first.
    fn unseal_all(
        &self,
        worker: usize,
        mut leaving: &[Leaving],
        observed: &mut Observed,
        on_the_wire: &mut Vec<OnTheWire>,
    ) {
        while let Some(first) = leaving.first() {
            let whole = whole_of(leaving).filter(|(outer, _)| headers::ip(outer).is_ok());
            let cut = whole.map(|(outer, pieces)| {
                let largest = leaving[..pieces].iter().map(|piece| piece.packet.len()).max();
                (self.unseal(worker, first.egress, outer, largest), pieces)
            });
            let ((sealed, packet, number), pieces) = match cut {
                Some((opened @ (Some(_), ..), pieces)) => (opened, pieces),
                _ => (self.unseal(worker, first.egress, first.packet.clone(), None), 1),
            };
            on_the_wire.extend(number);
            let (fate, ingress) = (first.fate, first.ingress);
            observed.emissions.push(Emission { fate, packet, sealed, ingress, pieces });
            leaving = &leaving[pieces..];
        }
    }

    fn take(&mut self, packet: Descriptor) -> Vec<u8> {
        let bytes = self.frames.packet(packet).expect("inside its frame").to_vec();
        self.frames.give(packet.frame);
        bytes
    }

    /// Takes the link header off: to whom, and the IP packet.
    fn unlink(&self, egress: PortId, bytes: &[u8]) -> ([u8; 6], Vec<u8>) {
        let port = self.world.port(egress);
        if port.medium == Medium::Ip {
            return ([0; 6], bytes.to_vec());
        }
        let link = headers::link(bytes).expect("a link header");
        let version = link.payload[0] >> 4;
        let ethertype = if version == 4 { 0x0800 } else { 0x86dd };
        assert_eq!((link.source, link.vlan, link.stacked), (port.mac, port.vlan, false));
        assert_eq!(link.ethertype, ethertype);
        (link.destination, link.payload)
    }

    /// Opens a packet sealed by one of our SAs, and compares the outer headers with the RFCs.
    /// `largest`: bytes of the largest fragment of the outer packet, if there were fragments.
    fn unseal(
        &self,
        worker: usize,
        egress: PortId,
        bytes: Vec<u8>,
        largest: Option<usize>,
    ) -> (Option<u32>, Vec<u8>, Option<OnTheWire>) {
        let outer = headers::ip(&bytes).expect("what leaves has no defects");
        assert_eq!(outer.bytes.len(), bytes.len(), "nothing behind the packet");
        for (place, peer) in self.world.peers.iter().enumerate() {
            let Some(body) = esp_of(&peer.carriage, &outer) else { continue };
            let Some((spi, low)) = esp::header(body) else { continue };
            let Some(keys) = peer.outbound.iter().find(|keys| keys.spi == spi) else { continue };
            let Some(text) = esp::open(keys, low.into(), body) else { continue };
            // RFC 9611 §3: each worker has an SA of its own, as far as they last.
            let lasts = |keys: &&Keys| keys.supply != Supply::UsedUp;
            let lasting: Vec<&Keys> = peer.outbound.iter().filter(lasts).collect();
            assert_eq!(lasting[worker % lasting.len()].spi, spi, "another worker's SA");
            let ends = (outer.flow.source_address(), outer.flow.destination_address());
            let tunnel = peer.tunnel();
            assert_eq!(ends, (tunnel.local.into(), tunnel.remote.into()));
            let packet = match peer.carriage.mode {
                Mode::Tunnel => carried_whole(&peer.carriage, &outer, &text, largest.is_some()),
                Mode::Transport => carried_in_its_own(&outer, &text),
            };
            // The MTU of a set is that of a packet without options.
            let own = if outer.flow.family == Family::V4 { 20 } else { 40 };
            let options = match peer.carriage.mode {
                Mode::Tunnel => 0,
                Mode::Transport => outer.upper - own,
            };
            let slack = options.min(esp::layout(keys.suite).block - 4);
            let mtu = self.world.mtu_to(peer, egress);
            let longest = largest.unwrap_or(bytes.len());
            assert!(longest <= mtu + slack, "{longest} bytes of {mtu}, cut {largest:?}");
            if largest.is_some() {
                // Only large IPv6 packets need fragments.
                assert!(bytes.len() > mtu, "{} bytes in fragments", bytes.len());
                assert!(packet[0] >> 4 == 6 && packet.len() <= 1280, "{} bytes", packet.len());
            }
            let iv = &body[8..8 + esp::layout(keys.suite).iv];
            let iv = (!iv.is_empty())
                .then(|| iv.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)));
            return (Some(place as u32), packet, Some(OnTheWire { spi, sequence: low, iv }));
        }
        let mtu = self.world.port(egress).mtu as usize;
        assert!(largest.is_some() || bytes.len() <= mtu, "{} bytes", bytes.len());
        (None, bytes, None)
    }
}

/// Finds ESP in a packet to a peer, if it is carried so.
fn esp_of<'p>(carriage: &Encapsulation, outer: &'p Ip) -> Option<&'p [u8]> {
    let data = &outer.bytes[outer.upper..];
    let Some(ports) = carriage.udp else {
        return (outer.flow.protocol == 50).then_some(data);
    };
    let (source, destination) = (ports.local, ports.remote);
    if outer.flow.protocol != 17 || outer.flow.upper != (Upper::Ports { source, destination }) {
        return None;
    }
    let field = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let payload = &data[8..];
    if payload.get(..4).is_none_or(|spi| *spi == [0; 4]) {
        return None;
    }
    if usize::from(field(4)) != data.len() {
        return None;
    }
    match outer.flow.family {
        // RFC 3948 §2.1: should be zero. What is not is no ESP of ours.
        Family::V4 if field(6) != 0 => return None,
        Family::V4 => {}
        // RFC 8200 §8.1: must not be.
        Family::V6 => {
            let mut summed = outer.flow.source.to_be_bytes().to_vec();
            summed.extend(outer.flow.destination.to_be_bytes());
            summed.extend((data.len() as u32).to_be_bytes());
            summed.extend([0, 0, 0, 17]);
            summed.extend(data);
            if field(6) == 0 || icmp::internet_checksum(&summed) != 0 {
                return None;
            }
        }
    }
    Some(payload)
}

/// RFC 791 §3.2, RFC 8200 §4.5: reassembles the fragments at the start of a list, all of one
/// datagram and in order. Returns the packet and the number of fragments.
fn whole_of(leaving: &[Leaving]) -> Option<(Vec<u8>, usize)> {
    let parsed = |leaving: &Leaving| headers::ip(&leaving.packet).ok();
    let first = parsed(leaving.first()?).filter(|first| first.part == Part::First)?;
    // Routers may cut fragments again.
    if first.flow.family == Family::V4 && first.dont_fragment {
        return None;
    }
    let (mut data, mut pieces) = (Vec::<u8>::new(), 0);
    for piece in leaving {
        let ip = parsed(piece)?;
        let (offset, _, more) = ip.data;
        let follows = ip.part != Part::Whole
            && (ip.identification, offset) == (first.identification, data.len())
            && piece.fate == leaving[0].fate;
        if !follows {
            return None;
        }
        data.extend(&ip.bytes[ip.upper..]);
        pieces += 1;
        if !more {
            break;
        }
    }
    let mut whole = first.bytes.clone();
    match first.flow.family {
        Family::V4 => {
            whole.truncate(20);
            whole[2..4].copy_from_slice(&u16::try_from(20 + data.len()).ok()?.to_be_bytes());
            whole[6..8].fill(0);
            whole[10..12].fill(0);
            let sum = icmp::internet_checksum(&whole);
            whole[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Family::V6 => {
            whole[6] = whole[40];
            whole.truncate(40);
            whole[4..6].copy_from_slice(&(data.len() as u16).to_be_bytes());
        }
    }
    whole.extend(data);
    Some((whole, pieces))
}

/// RFC 4301 §5.1.2: the outer header of a tunnel, and the packet in it.
fn carried_whole(carriage: &Encapsulation, outer: &Ip, text: &Text, is_cut: bool) -> Vec<u8> {
    let (inner, padding) = split(text);
    assert!(padding.iter().zip(1..).all(|(byte, n)| *byte == n), "{padding:?}");
    let whole = headers::ip(inner).expect("what is sealed has no defects");
    assert_eq!(whole.bytes.len(), inner.len());
    assert_eq!(text.next_header, if whole.flow.family == Family::V4 { 4 } else { 41 });
    let class = match carriage.dscp {
        Dscp::Copy => whole.traffic_class,
        Dscp::Fixed(dscp) => dscp << 2 | whole.traffic_class & 3,
    };
    assert_eq!(outer.traffic_class, class, "DSCP by option, ECN is copied");
    let dont_fragment = match carriage.dont_fragment {
        _ if is_cut => false,
        DontFragment::Set => true,
        DontFragment::Copy => whole.dont_fragment,
        DontFragment::Clear => false,
    };
    let is_v6 = outer.flow.family == Family::V6;
    assert_eq!(outer.dont_fragment, dont_fragment || is_v6);
    assert!(outer.hop_limit > 1);
    whole.bytes
}

/// RFC 4303 §3.1.1: the packet that its own header and what ESP carried are.
fn carried_in_its_own(outer: &Ip, text: &Text) -> Vec<u8> {
    assert_eq!(outer.part, Part::Whole, "a fragment in transport mode");
    let whole = carried::restored(outer, text, Carrier::Ip).expect("a packet without defects");
    whole.bytes
}

fn split(text: &Text) -> (&[u8], &[u8]) {
    text.payload.split_at(text.carried().expect("padding that is there").len())
}

impl Emission {
    /// Returns whether the emission goes the way of a departure; `packet` is not compared.
    pub(crate) fn is_way(
        &self,
        port: PortId,
        to: Option<[u8; 6]>,
        sealed: Option<SetIndex>,
    ) -> bool {
        let fate = match to {
            Some(mac) => Out::Sent(port, mac),
            None => Out::Held(port),
        };
        self.fate == fate && self.sealed == sealed.map(|set| set.0)
    }
}

/// Takes out what a walk handed over, each with the place of the packet given. What was put
/// together is no packet given: it takes the place of the fragment that came last.
fn places(out: &mut Outputs, given: &[Descriptor]) -> Vec<(usize, Handover)> {
    let handovers = std::mem::take(&mut out.handovers);
    // A frame may have been given back and taken again.
    let is_out = |place: &usize| out.verdicts[*place].is_none();
    let found = |handover: &Handover| {
        given.iter().position(|given| *given == handover.packet).filter(is_out)
    };
    let as_given: Vec<usize> = handovers.iter().filter_map(found).collect();
    let mut others = (0..given.len()).filter(|place| is_out(place) && !as_given.contains(place));
    let mut place = |handover: &Handover| found(handover).or_else(|| others.next());
    handovers.iter().map(|handover| (place(handover).expect("its place"), *handover)).collect()
}
