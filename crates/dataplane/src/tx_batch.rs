//! Packets that a batch sends: in one list, ready for a port, and beside it, run by run, their
//! ingress and egress. Most of a batch comes by one port and leaves by one port, so there are few
//! runs.

use wire::{Descriptor, FrameId};

use crate::ids::PortId;

/// A packet to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxPacket {
    /// The port it leaves by.
    pub egress: PortId,
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// The packet with its link header; the frame is the receiver's.
    pub packet: Descriptor,
}

/// Packets that follow each other on one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TxRun {
    pub(crate) egress: PortId,
    pub(crate) ingress: PortId,
    /// Number of packets, not 0.
    pub(crate) count: u32,
}

/// Packets to transmit, in order.
#[derive(Default, Debug)]
pub struct TxBatch {
    packets: Vec<Descriptor>,
    /// Runs of `packets`, in order; their counts add up to its length.
    runs: Vec<TxRun>,
}

impl TxBatch {
    /// Adds a packet behind the others.
    #[inline(always)]
    pub fn push(&mut self, tx_packet: TxPacket) {
        let TxPacket { egress, ingress, packet } = tx_packet;
        match self.runs.last_mut() {
            Some(run) if run.egress == egress && run.ingress == ingress => run.count += 1,
            _ => self.begin(egress, ingress),
        }
        self.packets.push(packet);
    }

    /// Adds packets of one path behind the others, which the caller writes.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        egress: PortId,
        ingress: PortId,
        count: usize,
    ) -> &mut [Descriptor] {
        match self.runs.last_mut() {
            Some(run) if run.egress == egress && run.ingress == ingress => {
                run.count += count as u32;
            }
            _ => self.runs.push(TxRun { egress, ingress, count: count as u32 }),
        }
        let before = self.packets.len();
        let nothing = Descriptor { frame: FrameId(0), offset: 0, length: 0 };
        self.packets.resize(before + count, nothing);
        &mut self.packets[before..]
    }

    /// The last packets, to be changed.
    pub(crate) fn last_mut(&mut self, count: usize) -> &mut [Descriptor] {
        let before = self.packets.len().saturating_sub(count);
        &mut self.packets[before..]
    }

    /// Takes packets back from behind the first `start`: those of which `goes` says false, in their
    /// order.
    #[cold]
    pub(crate) fn take_back(&mut self, start: usize, mut goes: impl FnMut(&Descriptor) -> bool) {
        let mut first = 0;
        let packets = std::mem::take(&mut self.packets);
        self.packets.extend_from_slice(&packets[..start.min(packets.len())]);
        for run in &mut self.runs {
            let end = first + run.count as usize;
            for packet in &packets[first.max(start).min(end)..end] {
                match goes(packet) {
                    true => self.packets.push(*packet),
                    false => run.count -= 1,
                }
            }
            first = end;
        }
        self.runs.retain(|run| run.count > 0);
    }

    #[cold]
    fn begin(&mut self, egress: PortId, ingress: PortId) {
        self.runs.push(TxRun { egress, ingress, count: 1 });
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Forgets all of them; the frames must have found their owners.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.runs.clear();
    }

    /// The packets in their order.
    pub fn iter(&self) -> impl Iterator<Item = TxPacket> {
        self.by_run().flat_map(|(run, packets)| {
            let TxRun { egress, ingress, .. } = run;
            packets.iter().map(move |packet| TxPacket { egress, ingress, packet: *packet })
        })
    }

    /// The packets, as a port takes them.
    pub(crate) fn packets(&self) -> &[Descriptor] {
        &self.packets
    }

    pub(crate) fn runs(&self) -> &[TxRun] {
        &self.runs
    }

    /// The packets of each run.
    pub(crate) fn by_run(&self) -> impl Iterator<Item = (TxRun, &[Descriptor])> {
        let mut rest = &self.packets[..];
        self.runs.iter().map(move |run| {
            let (packets, others) = rest.split_at(run.count as usize);
            rest = others;
            (*run, packets)
        })
    }

    /// Adds the packets of a run behind the others.
    pub(crate) fn extend(&mut self, run: TxRun, packets: &[Descriptor]) {
        debug_assert_eq!(run.count as usize, packets.len(), "a run is its packets");
        self.runs.push(run);
        self.packets.extend_from_slice(packets);
    }
}

impl<'s> IntoIterator for &'s TxBatch {
    type Item = TxPacket;
    type IntoIter = Box<dyn Iterator<Item = TxPacket> + 's>;

    /// Yields the packets one by one, for observers; the path of packets takes runs.
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tx_packet(egress: u16, ingress: u16, number: u32) -> TxPacket {
        let packet = Descriptor { frame: FrameId(number), offset: 256, length: 60 };
        TxPacket { egress: PortId(egress), ingress: PortId(ingress), packet }
    }

    proptest! {
        #[test]
        fn what_is_sent_comes_out_in_its_order(
            paths in prop::collection::vec((0u16..3, 0u16..2), 0..70),
        ) {
            let (mut tx, mut all) = (TxBatch::default(), Vec::new());
            for ((egress, ingress), number) in paths.iter().zip(0..) {
                let tx_packet = tx_packet(*egress, *ingress, number);
                tx.push(tx_packet);
                all.push(tx_packet);
            }
            let ends = |run: &TxRun| (run.egress, run.ingress);
            prop_assert!(tx.runs().windows(2).all(|two| ends(&two[0]) != ends(&two[1])));
            prop_assert_eq!(tx.iter().collect::<Vec<_>>(), all.clone());
            prop_assert_eq!((tx.len(), tx.is_empty()), (all.len(), all.is_empty()));
            let counts = tx.runs().iter().map(|run| run.count as usize);
            prop_assert_eq!(counts.sum::<usize>(), all.len());
            // Sorted by netdev, a run at a time.
            let mut queue = TxBatch::default();
            tx.by_run().for_each(|(run, packets)| queue.extend(run, packets));
            prop_assert_eq!(queue.iter().collect::<Vec<_>>(), all);
        }

        #[test]
        fn what_is_taken_back_leaves_the_others_in_their_order(
            paths in prop::collection::vec((0u16..3, 0u16..2, any::<bool>()), 0..70),
            start in 0usize..80,
        ) {
            let (mut tx, mut expected) = (TxBatch::default(), Vec::new());
            let mut goes = Vec::new();
            for ((egress, ingress, stays), number) in paths.iter().zip(0..) {
                let tx_packet = tx_packet(*egress, *ingress, number);
                tx.add(tx_packet.egress, tx_packet.ingress, 1)[0] = tx_packet.packet;
                goes.push(*stays);
                expected.extend((*stays || (number as usize) < start).then_some(tx_packet));
            }
            tx.take_back(start, |packet| goes[packet.frame.0 as usize]);
            prop_assert_eq!(tx.iter().collect::<Vec<_>>(), expected);
            prop_assert!(tx.runs().iter().all(|run| run.count > 0));
        }
    }
}
