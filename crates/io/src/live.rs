//! The ports of a live worker, as one type.

use wire::frame::{Descriptor, Port, Received};
use wire::mark::Mark;

use crate::{TunPort, XdpFrames, XdpPort};

/// A port of a live worker.
pub enum LivePort {
    /// Queues of a netdev.
    Xdp(XdpPort),
    /// The host port.
    Tun(TunPort),
}

impl Port<XdpFrames> for LivePort {
    #[inline]
    fn receive(&mut self, frames: &mut XdpFrames, limit: usize, into: &mut Vec<Received>) -> usize {
        match self {
            LivePort::Xdp(port) => port.receive(frames, limit, into),
            LivePort::Tun(port) => port.receive(frames, limit, into),
        }
    }

    #[inline]
    fn marks(&self) -> &[Mark] {
        match self {
            LivePort::Xdp(port) => port.marks(),
            LivePort::Tun(_) => &[],
        }
    }

    #[inline]
    fn transmit(&mut self, frames: &mut XdpFrames, packets: &[Descriptor]) -> usize {
        match self {
            LivePort::Xdp(port) => port.transmit(frames, packets),
            LivePort::Tun(port) => port.transmit(frames, packets),
        }
    }
}
