//! A port of preloaded packets with the tags of a network card.

use io::memory::{MemoryFrames, PreloadedPort};
use wire::mark::MarkVlan;
use wire::{BATCH, Descriptor, Mark, Port, Received};

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

/// A [`PreloadedPort`] whose packets have the tags of a card, or none at all. The tags lie one
/// behind the other, as in a ring of descriptors, and become marks of a batch when it is received.
pub struct MarkedPort {
    port: PreloadedPort,
    /// One a loaded packet; empty: the packets have none.
    tags: Vec<u64>,
    /// Tags of packets that were received.
    taken: usize,
    /// Marks of the packets that were received last.
    marks: Vec<Mark>,
}

/// A mark without a tag.
const PLAIN: Mark = Mark {
    netdev: 0,
    vlan: MarkVlan::Untagged,
    incarnation: 1,
    generation: 0,
    zone: 0,
    verdict: 0,
    domain: 0,
};

impl MarkedPort {
    /// Makes a port with room for `capacity` packets to receive and as many to send.
    pub fn new(capacity: usize) -> MarkedPort {
        let (tags, marks) = (Vec::with_capacity(capacity), Vec::with_capacity(BATCH));
        MarkedPort { port: PreloadedPort::new(capacity), tags, taken: 0, marks }
    }

    /// Sets the tags of the packets that are loaded, in their order.
    pub fn tag(&mut self, tags: impl Iterator<Item = u64>) {
        self.tags.clear();
        self.tags.extend(tags);
        self.taken = 0;
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
        if !self.tags.is_empty() {
            self.marks.clear();
            let tags = &self.tags[self.taken..self.taken + received];
            self.marks.extend(tags.iter().map(|tag| PLAIN.with_card_tag(*tag)));
            self.taken += received;
            let hints = into[before..].iter_mut().zip(1..);
            hints.for_each(|(packet, hint)| packet.hint = hint);
        }
        received
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn transmit(&mut self, frames: &mut MemoryFrames, packets: &[Descriptor]) -> usize {
        self.port.transmit(frames, packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Frames as _;

    #[test]
    fn each_packet_comes_with_its_own_tag() {
        let (mut frames, mut port) = (MemoryFrames::new(5), MarkedPort::new(5));
        for _ in 0..2 {
            port.preloaded().recycle(&mut frames);
            for byte in 0..5 {
                let stored = frames.store(&[byte; 60]).unwrap();
                port.preloaded().load(stored);
            }
            port.tag(10..15);
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
