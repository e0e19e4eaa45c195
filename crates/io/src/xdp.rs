//! Live ports over AF_XDP: the queues of one netdev that one worker serves.
//!
//! In front of each packet that the steering program sends here lies its [`Mark`], which says which
//! netdev's program it was. The packet's descriptor does not say that a mark is there, so a mark is
//! wiped when it has been read: one that is found was written for this packet. Marks that claim
//! something of their packet are kept for the walk, in [`Port::marks`].

use std::os::fd::{AsFd, BorrowedFd};

use wire::frame::{BATCH, Descriptor, FrameId, Frames, HEADROOM, Port, Received};
use wire::mark::{Mark, Marker};
use xsk::{Census, HeldFrames, Packet, Socket, Statistics, Transfer, Umem};

const _: () = assert!(HEADROOM == xsk::HEADROOM, "the walk and the kernel leave the same room");

/// Frames of a worker in memory that its sockets share with the kernel.
pub struct XdpFrames(Umem);

impl XdpFrames {
    /// Frames of this memory.
    pub fn new(umem: Umem) -> XdpFrames {
        XdpFrames(umem)
    }

    /// The memory.
    pub fn umem(&self) -> &Umem {
        &self.0
    }

    /// The memory, for whoever works with its sockets.
    pub fn umem_mut(&mut self) -> &mut Umem {
        &mut self.0
    }

    /// Returns the number of frames in each place.
    pub fn census(&self) -> Census {
        self.0.census()
    }
}

impl Frames for XdpFrames {
    /// # Panics
    /// If the frame is not the caller's: free, or in a ring.
    #[inline]
    fn bytes(&self, frame: FrameId) -> &[u8] {
        self.0.frame(frame.0)
    }

    /// # Panics
    /// As [`XdpFrames::bytes`].
    #[inline]
    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        self.0.frame_mut(frame.0)
    }

    /// # Panics
    /// As [`XdpFrames::bytes`].
    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        self.0.frames_mut(frames.iter().map(|frame| frame.0), into)
    }

    #[inline]
    fn prefetch(&self, frame: FrameId, offset: u32) {
        cpu::prefetch(self.bytes(frame), offset as usize);
    }

    fn take(&mut self) -> Option<FrameId> {
        self.0.take().map(FrameId)
    }

    /// # Panics
    /// As [`XdpFrames::bytes`].
    fn give(&mut self, frame: FrameId) {
        self.0.give(frame.0);
    }
}

/// One queue of a port and what was counted on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueStatistics {
    /// Index of the netdev.
    pub ifindex: u32,
    /// Number of the queue.
    pub queue: u32,
    /// The mode in which its packets pass between kernel and frames: copied or not.
    pub transfer: Transfer,
    /// The socket's counters, the kernel's and the port's own.
    pub statistics: Statistics,
    /// Frames it holds.
    pub held: HeldFrames,
    /// Packets without the netdev's mark: dropped, never processed.
    pub foreign: u64,
}

struct Queue {
    socket: Socket,
    foreign: u64,
}

impl Queue {
    fn statistics(&self) -> QueueStatistics {
        QueueStatistics {
            ifindex: self.socket.ifindex(),
            queue: self.socket.queue(),
            transfer: self.socket.transfer(),
            statistics: self.socket.statistics(),
            held: self.socket.held(),
            foreign: self.foreign,
        }
    }

    /// Appends up to `limit` marked packets to `into`, and marks that claim something to `marks`;
    /// returns how many entries were taken.
    fn receive(
        &mut self,
        umem: &mut Umem,
        marker: Marker,
        limit: usize,
        marks: &mut Vec<Mark>,
        into: &mut Vec<Received>,
    ) -> usize {
        let foreign = &mut self.foreign;
        self.socket.receive(umem, limit, |umem, packet| {
            let Packet { frame, offset, length } = packet;
            let mark = Mark::take(umem.frame_mut(frame), offset);
            match mark.filter(|mark| mark.netdev == marker.netdev) {
                Some(mark) => {
                    let packet = Descriptor { frame: FrameId(frame), offset, length };
                    into.push(Received { packet, hint: hint(mark, marker, marks) });
                }
                None => {
                    *foreign += 1;
                    umem.give(frame);
                }
            }
        })
    }

    /// Sends what waits and takes back what has left; returns how many packets have not.
    fn push(&mut self, umem: &mut Umem) -> usize {
        if self.socket.held().transmit > 0 {
            self.socket.kick();
            self.socket.complete(umem);
        }
        self.socket.held().transmit as usize
    }
}

/// Keeps a mark that claims something, if this attachment wrote it; returns the packet's hint.
#[inline]
fn hint(mark: Mark, marker: Marker, marks: &mut Vec<Mark>) -> u32 {
    if !mark.claims() || mark.incarnation != marker.incarnation {
        return 0;
    }
    marks.push(mark);
    marks.len() as u32
}

/// The queues of one netdev that one worker serves, as one port.
pub struct XdpPort {
    /// The program whose marks the packets must bear.
    marker: Marker,
    queues: Vec<Queue>,
    /// The queue that is received from first.
    first: usize,
    /// Marks of the last packets that claim something.
    marks: Vec<Mark>,
}

impl XdpPort {
    /// A port without queues, for packets that this program marks.
    pub fn new(marker: Marker) -> XdpPort {
        XdpPort { marker, queues: Vec::new(), first: 0, marks: Vec::with_capacity(BATCH) }
    }

    /// Takes over a socket that was opened on these frames and has it receive. Packets are sent
    /// by the first queue that has room, in the order of their numbers.
    ///
    /// # Panics
    /// If the socket was opened on other frames.
    pub fn add(&mut self, frames: &mut XdpFrames, mut socket: Socket) {
        socket.start(&mut frames.0);
        let place = self.queues.partition_point(|queue| queue.socket.queue() < socket.queue());
        self.queues.insert(place, Queue { socket, foreign: 0 });
    }

    /// Closes a queue's socket, if there is one, and says what was counted on it. What waited
    /// for transmission is lost.
    pub fn remove(&mut self, frames: &mut XdpFrames, queue: u32) -> Option<QueueStatistics> {
        let place = self.queues.iter().position(|entry| entry.socket.queue() == queue)?;
        Some(close(self.queues.remove(place), frames))
    }

    /// Closes all sockets and says what was counted on each. All their frames are free then.
    pub fn close(self, frames: &mut XdpFrames) -> Vec<QueueStatistics> {
        self.queues.into_iter().map(|queue| close(queue, frames)).collect()
    }

    /// The queues that are served, ascending.
    pub fn queues(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().map(|queue| queue.socket.queue())
    }

    /// Returns the counters, one entry per queue. Cost: a system call each.
    pub fn statistics(&self) -> Vec<QueueStatistics> {
        self.queues.iter().map(Queue::statistics).collect()
    }

    /// Sends what waits in the transmit rings, takes back what has left, and returns how many
    /// packets have not left: the driver has no room, or the netdev is down. Receiving does it
    /// too; before sleeping it is worth a call, and again after a while if the answer is not 0.
    pub fn push(&mut self, frames: &mut XdpFrames) -> usize {
        self.queues.iter_mut().map(|queue| queue.push(&mut frames.0)).sum()
    }

    /// The sockets' descriptors, to sleep on until packets come.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.socket.as_fd())
    }
}

fn close(queue: Queue, frames: &mut XdpFrames) -> QueueStatistics {
    let before = queue.statistics();
    let statistics = queue.socket.close(&mut frames.0);
    QueueStatistics { statistics, held: HeldFrames::default(), ..before }
}

impl Port<XdpFrames> for XdpPort {
    /// Each queue gets its share of `limit`, another one first at every call; what one leaves,
    /// the others may use.
    fn receive(&mut self, frames: &mut XdpFrames, limit: usize, into: &mut Vec<Received>) -> usize {
        let (marker, count, before) = (self.marker, self.queues.len(), into.len());
        self.marks.clear();
        if count == 0 {
            return 0;
        }
        self.first = (self.first + 1) % count;
        let mut left = limit;
        for share in [limit.div_ceil(count), limit] {
            for turn in 0..count {
                let queue = &mut self.queues[(self.first + turn) % count];
                let share = share.min(left);
                left -= queue.receive(&mut frames.0, marker, share, &mut self.marks, into);
            }
            if left == 0 || count == 1 {
                break;
            }
        }
        for queue in &mut self.queues {
            queue.push(&mut frames.0);
        }
        into.len() - before
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Offers the packets to the queues in turn and has the kernel send them, once a call.
    fn transmit(&mut self, frames: &mut XdpFrames, packets: &[Descriptor]) -> usize {
        let mut accepted = 0;
        for queue in &mut self.queues {
            let rest = packets[accepted..].iter().map(|packet| Packet {
                frame: packet.frame.0,
                offset: packet.offset,
                length: packet.length,
            });
            accepted += queue.socket.transmit(&mut frames.0, rest);
            queue.socket.kick();
            if accepted == packets.len() {
                break;
            }
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::mark::MarkVlan;

    #[test]
    fn only_marks_that_claim_something_are_kept() {
        let none = Mark {
            netdev: 7,
            vlan: MarkVlan::Untagged,
            incarnation: 1,
            generation: 0,
            zone: 0,
            verdict: 0,
            domain: 0,
        };
        let claim = Mark { generation: 3, verdict: 5, ..none };
        let of_another = Mark { incarnation: 2, ..claim };
        let (marker, mut marks) = (Marker { netdev: 7, incarnation: 1 }, Vec::new());
        let all = [none, claim, of_another, claim];
        let hints = all.map(|mark| hint(mark, marker, &mut marks));
        assert_eq!((hints, marks), ([0, 1, 0, 2], vec![claim, claim]));
    }

    #[test]
    fn several_frames_are_lent_in_their_order_and_none_twice() {
        let mut frames = XdpFrames::new(Umem::new(4).unwrap());
        while frames.take().is_some() {}
        let named = [FrameId(3), FrameId(0), FrameId(2)];
        let starts = named.map(|frame| frames.bytes(frame).as_ptr());
        let mut places: [&mut [u8]; 3] = Default::default();
        assert!(frames.many_mut(&named, &mut places));
        assert_eq!(places.map(|bytes| bytes.as_ptr()), starts);
        let mut places: [&mut [u8]; 3] = Default::default();
        assert!(!frames.many_mut(&[FrameId(1), FrameId(2), FrameId(1)], &mut places));
    }

    #[test]
    fn no_mark_lies_before_the_frame_or_beyond_it() {
        let mut frame = [0u8; 512];
        for offset in [0, 15, 513, u32::MAX] {
            assert_eq!(Mark::take(&mut frame, offset), None, "offset {offset}");
        }
    }

    #[test]
    fn a_port_without_queues_receives_and_accepts_nothing() {
        let mut frames = XdpFrames::new(Umem::new(2).unwrap());
        let mut port = XdpPort::new(Marker { netdev: 0, incarnation: 0 });
        let mut into = Vec::new();
        assert_eq!(port.receive(&mut frames, 64, &mut into), 0);
        let frame = frames.take().unwrap();
        let packet = Descriptor { frame, offset: 256, length: 60 };
        assert_eq!(port.transmit(&mut frames, &[packet]), 0);
        frames.give(frame);
        assert_eq!(frames.census().imbalance(), 0);
    }
}
