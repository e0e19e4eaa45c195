//! The walk as a black box: frames in, verdicts and opened packets out.

use std::sync::Arc;

use dataplane::{Counters, DeviceId, Medium, Outputs, PortId, SetIndex, Snapshot, Verdict, Walk};
use io::MemoryFrames;
use model::world::World;
use model::{esp, headers};
use wire::{Address, Descriptor, Family, Frames, HEADROOM};

/// A gateway that runs the real walk.
pub(crate) struct Gateway<'w> {
    world: &'w World,
    snapshot: Arc<Snapshot>,
    walk: Walk,
    frames: MemoryFrames,
    out: Outputs,
    now_ns: u64,
}

/// What came of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Observed {
    /// One a packet given in, then one a packet made.
    pub(crate) verdicts: Vec<Verdict>,
    /// What left, in order: sent, held, given to Linux.
    pub(crate) emissions: Vec<Emission>,
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
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Out {
    /// By this port to this link address.
    Sent(PortId, [u8; 6]),
    Held(PortId),
    Host,
}

/// What must never come twice: numbers of a packet that one of our SAs sealed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OnTheWire {
    pub(crate) spi: u32,
    pub(crate) sequence: u32,
    pub(crate) iv: u64,
}

impl<'w> Gateway<'w> {
    pub(crate) fn new(world: &'w World) -> Gateway<'w> {
        Gateway::worker(world, Arc::new(world.snapshot()))
    }

    /// Another worker of the same gateway.
    pub(crate) fn beside(&self) -> Gateway<'w> {
        Gateway::worker(self.world, self.snapshot.clone())
    }

    fn worker(world: &'w World, snapshot: Arc<Snapshot>) -> Gateway<'w> {
        let walk = Walk::new(&snapshot);
        let frames = MemoryFrames::with_frame_bytes(512, HEADROOM + world.room);
        Gateway { world, snapshot, walk, frames, out: Outputs::default(), now_ns: 0 }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.walk.counters()
    }

    /// Walks one batch, each a second after the one before: no ICMP is held back.
    pub(crate) fn run(
        &mut self,
        device: DeviceId,
        packets: &[&[u8]],
    ) -> (Observed, Vec<OnTheWire>) {
        self.now_ns += 1_000_000_000;
        let store = |bytes: &&[u8]| self.frames.store(bytes).expect("a free frame");
        let descriptors: Vec<Descriptor> = packets.iter().map(store).collect();
        let Gateway { snapshot, walk, frames, out, .. } = self;
        walk.run(snapshot, self.now_ns, device, &descriptors, frames, out);
        let verdicts = out.verdicts.iter().map(|verdict| verdict.expect("a verdict")).collect();
        let out = std::mem::take(&mut self.out);
        let mut observed = Observed { verdicts, emissions: vec![] };
        let mut on_the_wire = vec![];
        for send in &out.sends {
            let bytes = self.take(send.packet);
            let (mac, packet) = self.unlink(send.egress, &bytes);
            let (sealed, packet, number) = self.unseal(send.egress, packet);
            on_the_wire.extend(number);
            let fate = Out::Sent(send.egress, mac);
            observed.emissions.push(Emission { fate, packet, sealed, ingress: send.ingress });
            self.walk.counters_mut().ledger(Some(send.ingress)).sent += 1;
        }
        for held in &out.held {
            let bytes = self.take(held.packet);
            let (sealed, packet, number) = self.unseal(held.egress, bytes);
            on_the_wire.extend(number);
            let fate = Out::Held(held.egress);
            observed.emissions.push(Emission { fate, packet, sealed, ingress: held.ingress });
            self.walk.counters_mut().ledger(Some(held.ingress)).held += 1;
        }
        for host in &out.host {
            let packet = self.take(host.packet);
            let ingress = host.ingress;
            if host.form == Medium::Ip {
                assert_eq!(headers::ip(&packet).unwrap().bytes, packet, "an IP packet, no more");
            }
            observed.emissions.push(Emission { fate: Out::Host, packet, sealed: None, ingress });
            self.walk.counters_mut().ledger(Some(ingress)).host += 1;
        }
        // I7, and no frame is lost.
        for ledger in &self.walk.counters().ledgers {
            assert_eq!(ledger.imbalance(), 0, "{ledger:?}");
        }
        assert_eq!(self.frames.conservation().held(), 0);
        (observed, on_the_wire)
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

    /// Opens what one of our SAs sealed, and holds the outer header against RFC 4301 §5.1.2.
    fn unseal(&self, egress: PortId, bytes: Vec<u8>) -> (Option<u32>, Vec<u8>, Option<OnTheWire>) {
        let outer = headers::ip(&bytes).expect("what leaves has no defects");
        assert_eq!(outer.bytes.len(), bytes.len(), "nothing behind the packet");
        assert!(bytes.len() <= self.world.port(egress).mtu as usize, "{} bytes", bytes.len());
        let (8.., 50) = (outer.bytes.len() - outer.upper, outer.flow.protocol) else {
            return (None, bytes, None);
        };
        let body = &bytes[outer.upper..];
        let (spi, low) = esp::header(body).unwrap();
        let number = u64::from(low);
        for (place, peer) in self.world.peers.iter().enumerate() {
            let Some(keys) = peer.outbound.as_ref().filter(|keys| keys.spi == spi) else {
                continue;
            };
            let Some(text) = esp::open(keys, number, body) else { continue };
            let source = outer.flow.source_address();
            let destination = outer.flow.destination_address();
            let tunnel = (peer.tunnel.local, peer.tunnel.remote);
            let tunnel: (Address, Address) = (tunnel.0.into(), tunnel.1.into());
            assert_eq!((source, destination), tunnel);
            let end = text.payload.len() - usize::from(text.pad_length);
            let (inner, padding) = text.payload.split_at(end);
            assert!(padding.iter().zip(1..).all(|(byte, n)| *byte == n), "{padding:?}");
            let inner = headers::ip(inner).expect("what is sealed has no defects");
            assert_eq!(inner.bytes.len(), end);
            let next_header = if inner.flow.family == Family::V4 { 4 } else { 41 };
            assert_eq!(text.next_header, next_header);
            assert_eq!(outer.traffic_class, inner.traffic_class, "DSCP and ECN are copied");
            assert!(outer.hop_limit > 1 && outer.dont_fragment);
            let iv = u64::from_be_bytes(body[8..16].try_into().unwrap());
            let numbers = OnTheWire { spi, sequence: low, iv };
            return (Some(place as u32), inner.bytes, Some(numbers));
        }
        (None, bytes, None)
    }
}

impl Emission {
    /// Whether it is what a departure says, `packet` aside.
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
