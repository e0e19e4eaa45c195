//! A port of preloaded packets whose marks lie beside them, as a network card gives them.

use std::ops::Range;

use io::memory::{MemoryFrames, PreloadedPort};
use wire::{Descriptor, Mark, Port, Received};

/// A port that packets are loaded into before they are walked.
pub trait Preloaded: Port<MemoryFrames> {
    /// The packets.
    fn preloaded(&mut self) -> &mut PreloadedPort;
}

impl Preloaded for PreloadedPort {
    fn preloaded(&mut self) -> &mut PreloadedPort {
        self
    }
}

/// A [`PreloadedPort`] with a mark for each packet, or with none at all. The marks lie one behind
/// the other: to fetch one from in front of its frame is not part of what is measured.
pub struct MarkedPort {
    port: PreloadedPort,
    /// One a loaded packet; empty: the packets have none.
    marks: Vec<Mark>,
    /// Marks of the packets that were received last.
    last: Range<usize>,
}

impl MarkedPort {
    /// Makes a port with room for `capacity` packets to receive and as many to send.
    pub fn new(capacity: usize) -> MarkedPort {
        let (port, marks) = (PreloadedPort::new(capacity), Vec::with_capacity(capacity));
        MarkedPort { port, marks, last: 0..0 }
    }

    /// Sets the marks of the packets that are loaded, in their order.
    pub fn mark(&mut self, marks: impl Iterator<Item = Mark>) {
        self.marks.clear();
        self.marks.extend(marks);
        self.last = 0..0;
    }
}

impl Preloaded for MarkedPort {
    fn preloaded(&mut self) -> &mut PreloadedPort {
        &mut self.port
    }
}

impl Port<MemoryFrames> for MarkedPort {
    fn receive(
        &mut self,
        frames: &mut MemoryFrames,
        limit: usize,
        into: &mut Vec<Received>,
    ) -> usize {
        let before = into.len();
        let received = self.port.receive(frames, limit, into);
        if !self.marks.is_empty() {
            self.last = self.last.end..self.last.end + received;
            let hints = into[before..].iter_mut().zip(1..);
            hints.for_each(|(packet, hint)| packet.hint = hint);
        }
        received
    }

    fn marks(&self) -> &[Mark] {
        &self.marks[self.last.clone()]
    }

    fn transmit(&mut self, frames: &mut MemoryFrames, packets: &[Descriptor]) -> usize {
        self.port.transmit(frames, packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Frames as _;
    use wire::mark::MarkVlan;

    #[test]
    fn each_packet_comes_with_its_own_mark() {
        let mark = |bits| {
            let (vlan, generation) = (MarkVlan::Untagged, 0);
            let (netdev, incarnation, zone, verdict, domain) = (0, 1, 0, 0, 0);
            let mark = Mark { netdev, vlan, incarnation, generation, zone, verdict, domain };
            mark.with_card_tag(bits)
        };
        let (mut frames, mut port) = (MemoryFrames::new(5), MarkedPort::new(5));
        for _ in 0..2 {
            port.preloaded().recycle(&mut frames);
            for byte in 0..5 {
                let stored = frames.store(&[byte; 60]).unwrap();
                port.preloaded().load(stored);
            }
            port.mark((10..15).map(mark));
            let mut seen = Vec::new();
            loop {
                let mut into = Vec::new();
                if port.receive(&mut frames, 2, &mut into) == 0 {
                    break;
                }
                for received in &into {
                    let tag = port.marks()[received.hint as usize - 1].card_tag().unwrap();
                    seen.push((frames.packet(received.packet).unwrap()[0], tag));
                    frames.give(received.packet.frame);
                }
            }
            assert_eq!(seen, [(0, 10), (1, 11), (2, 12), (3, 13), (4, 14)]);
        }
    }
}
