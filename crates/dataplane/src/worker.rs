//! One worker's turn: receive a batch, walk it, transmit what leaves. The same turn in the daemon,
//! in `lockgate replay` and in the benches; what a port is, the caller says.

use wire::{BATCH, Descriptor, Frames, Port};

use crate::walk::{Held, Outputs, ToHost, Walk};
use crate::{Counters, DeviceId, DropReason, Medium, PortId, Snapshot, Verdict};

/// A packet in a device's transmit queue, with the ledgers it will be on.
#[derive(Clone, Copy)]
struct Queued {
    ingress: PortId,
    egress: PortId,
}

/// What waits for one device during a turn; always empty between turns.
#[derive(Default)]
struct Queue {
    packets: Vec<Descriptor>,
    ledgers: Vec<Queued>,
}

/// A worker: frames, ports, the walk. Owns every frame that no port has.
pub struct Worker<F, P> {
    frames: F,
    /// One per device; [`DeviceId`] counts into it. `None`: nobody listens or sends there.
    devices: Vec<Option<P>>,
    walk: Walk,
    received: Vec<Descriptor>,
    out: Outputs,
    queues: Vec<Queue>,
}

impl<F: Frames, P: Port<F>> Worker<F, P> {
    /// A worker for these devices under this snapshot.
    pub fn new(snapshot: &Snapshot, frames: F, devices: Vec<Option<P>>) -> Worker<F, P> {
        let queues = devices.iter().map(|_| Queue::default()).collect();
        let received = Vec::with_capacity(BATCH);
        let out = Outputs::default();
        Worker { frames, devices, walk: Walk::new(snapshot), received, out, queues }
    }

    /// Takes up to `limit` packets (at most [`BATCH`]) from a device through the walk, transmits
    /// what leaves, and returns how many were received.
    pub fn turn(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        device: DeviceId,
        limit: usize,
    ) -> usize {
        self.received.clear();
        let Some(Some(port)) = self.devices.get_mut(usize::from(device.0)) else { return 0 };
        port.receive(&mut self.frames, limit.min(BATCH), &mut self.received);
        if !self.received.is_empty() {
            let (frames, out) = (&mut self.frames, &mut self.out);
            self.walk.run(snapshot, now_ns, device, &self.received, frames, out);
            self.dispatch(snapshot);
        }
        self.received.len()
    }

    /// What was counted. The ledger balances between turns.
    pub fn counters(&self) -> &Counters {
        self.walk.counters()
    }

    /// Verdicts of the last batch: those received in their order, then those made.
    pub fn verdicts(&self) -> &[Option<Verdict>] {
        &self.out.verdicts
    }

    /// A device's port.
    pub fn device_mut(&mut self, device: DeviceId) -> Option<&mut P> {
        self.devices.get_mut(usize::from(device.0))?.as_mut()
    }

    /// The frames and a device's port, for whoever feeds or empties it.
    pub fn parts_mut(&mut self, device: DeviceId) -> (&mut F, Option<&mut P>) {
        let port = self.devices.get_mut(usize::from(device.0)).and_then(Option::as_mut);
        (&mut self.frames, port)
    }

    /// Takes the worker apart.
    pub fn into_parts(self) -> (F, Vec<Option<P>>, Counters) {
        (self.frames, self.devices, self.walk.counters().clone())
    }

    fn dispatch(&mut self, snapshot: &Snapshot) {
        for send in self.out.sends.drain(..) {
            let device = usize::from(snapshot.port(send.egress).device.0);
            self.queues[device].push(send.packet, send.ingress, send.egress);
        }
        let counters = self.walk.counters_mut();
        for ToHost { ingress, form, packet } in self.out.host.drain(..) {
            // IP packets go up by the host port; frames left to Linux are there already.
            let port = snapshot.host().filter(|_| form == Medium::Ip);
            let device = port.map(|port| usize::from(snapshot.port(port).device.0));
            let sink = device.and_then(|device| self.devices.get_mut(device)?.as_mut());
            let accepted = sink.map(|sink| sink.transmit(&mut self.frames, &[packet]));
            if accepted == Some(0) {
                counters.drop(Some(ingress), DropReason::TransmitFull);
            } else {
                counters.ledger(Some(ingress)).host += 1;
            }
            if accepted != Some(1) {
                self.frames.give(packet.frame);
            }
        }
        // Nothing here resolves neighbours: what waits for one is dropped and says so.
        for Held { ingress, packet, .. } in self.out.held.drain(..) {
            counters.drop(Some(ingress), DropReason::NoNeighbour);
            self.frames.give(packet.frame);
        }
        for (queue, device) in self.queues.iter_mut().zip(&mut self.devices) {
            queue.flush(&mut self.frames, device.as_mut(), counters);
        }
    }
}

impl Queue {
    #[inline]
    fn push(&mut self, packet: Descriptor, ingress: PortId, egress: PortId) {
        self.packets.push(packet);
        self.ledgers.push(Queued { ingress, egress });
    }

    /// Offers the queue to its device; what the device does not accept is dropped.
    fn flush<F: Frames, P: Port<F>>(
        &mut self,
        frames: &mut F,
        device: Option<&mut P>,
        counters: &mut Counters,
    ) {
        if self.packets.is_empty() {
            return;
        }
        let accepted = device.map_or(0, |port| port.transmit(frames, &self.packets));
        for (i, (packet, queued)) in self.packets.iter().zip(&self.ledgers).enumerate() {
            if i < accepted {
                counters.ledger(Some(queued.ingress)).sent += 1;
                let volume = &mut counters.transmitted[usize::from(queued.egress.0)];
                volume.packets += 1;
                volume.bytes += u64::from(packet.length);
            } else {
                counters.drop(Some(queued.ingress), DropReason::TransmitFull);
                frames.give(packet.frame);
            }
        }
        self.packets.clear();
        self.ledgers.clear();
    }
}
