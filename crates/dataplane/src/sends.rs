//! What a batch sends: the packets in one list, ready for a port, and beside it, run by run, whose
//! they are. Most of a batch comes by one port and leaves by one port, so there are few runs.

use wire::Descriptor;

use crate::PortId;

/// A packet to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Send {
    /// The port it leaves by.
    pub egress: PortId,
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// The packet with its link header; the frame is the receiver's.
    pub packet: Descriptor,
}

/// Packets that follow each other on one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) egress: PortId,
    pub(crate) ingress: PortId,
    /// How many, not 0.
    pub(crate) count: u32,
}

/// Packets to transmit, in order.
#[derive(Default, Debug)]
pub struct Sends {
    packets: Vec<Descriptor>,
    /// As many as `packets`, counted together.
    runs: Vec<Run>,
}

impl Sends {
    /// Adds a packet behind the others.
    #[inline(always)]
    pub fn push(&mut self, send: Send) {
        let Send { egress, ingress, packet } = send;
        match self.runs.last_mut() {
            Some(run) if run.egress == egress && run.ingress == ingress => run.count += 1,
            _ => self.begin(egress, ingress),
        }
        self.packets.push(packet);
    }

    #[cold]
    fn begin(&mut self, egress: PortId, ingress: PortId) {
        self.runs.push(Run { egress, ingress, count: 1 });
    }

    /// How many packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Forgets all of them; the frames must have found their owners.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.runs.clear();
    }

    /// The packets in their order.
    pub fn iter(&self) -> impl Iterator<Item = Send> {
        self.by_run().flat_map(|(run, packets)| {
            let Run { egress, ingress, .. } = run;
            packets.iter().map(move |packet| Send { egress, ingress, packet: *packet })
        })
    }

    /// The packets, as a port takes them.
    pub(crate) fn packets(&self) -> &[Descriptor] {
        &self.packets
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The packets of each run.
    pub(crate) fn by_run(&self) -> impl Iterator<Item = (Run, &[Descriptor])> {
        let mut rest = &self.packets[..];
        self.runs.iter().map(move |run| {
            let (packets, others) = rest.split_at(run.count as usize);
            rest = others;
            (*run, packets)
        })
    }

    /// Adds the packets of a run behind the others.
    pub(crate) fn extend(&mut self, run: Run, packets: &[Descriptor]) {
        debug_assert_eq!(run.count as usize, packets.len(), "a run is its packets");
        self.runs.push(run);
        self.packets.extend_from_slice(packets);
    }
}

impl<'s> IntoIterator for &'s Sends {
    type Item = Send;
    type IntoIter = Box<dyn Iterator<Item = Send> + 's>;

    /// For who looks at what was sent; on the path runs are taken.
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::FrameId;

    proptest! {
        #[test]
        fn what_is_sent_comes_out_in_its_order(ways in prop::collection::vec((0u16..3, 0u16..2), 0..70)) {
            let mut sends = Sends::default();
            let all: Vec<Send> = ways
                .iter()
                .zip(0u32..)
                .map(|((egress, ingress), number)| Send {
                    egress: PortId(*egress),
                    ingress: PortId(*ingress),
                    packet: Descriptor { frame: FrameId(number), offset: 256, length: 60 },
                })
                .collect();
            all.iter().for_each(|send| sends.push(*send));
            prop_assert_eq!(sends.iter().collect::<Vec<_>>(), all);
            // No two runs that follow each other could be one.
            let ways = |run: &Run| (run.egress, run.ingress);
            prop_assert!(sends.runs().windows(2).all(|two| ways(&two[0]) != ways(&two[1])));
            prop_assert_eq!((sends.len(), sends.is_empty()), (ways_of(&sends), ways_of(&sends) == 0));
        }
    }

    fn ways_of(sends: &Sends) -> usize {
        sends.runs().iter().map(|run| run.count as usize).sum()
    }
}
