//! Frames in the process's own memory and ports made of lists: for tests, replay and in-memory
//! benchmarks.

use memmap2::{Advice, MmapMut};
use std::collections::VecDeque;
use wire::Mark;
use wire::frame::{BATCH, Descriptor, FrameId, Frames, HEADROOM, Port, Received};

/// Bytes of a frame by default: those of the larger AF_XDP frames.
pub const FRAME_BYTES: usize = 4096;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Returns the distance from the start of one frame to that of the next: an odd number of cache
/// lines, as AF_XDP lays frames out where the kernel lets it. At a stride of a page the lines that
/// a worker touches, the same few of each frame, would all fall into the same few sets of the first
/// cache, and push each other out (5 ns a packet).
const fn stride_of(frame_bytes: usize) -> usize {
    (frame_bytes.div_ceil(LINE) | 1) * LINE
}

/// Numbers of free and of existing frames. Every other frame is held by somebody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conservation {
    /// Frames on the free list.
    pub free: usize,
    /// Frames that exist.
    pub total: usize,
}

impl Conservation {
    /// Frames taken and not given back.
    pub const fn held(self) -> usize {
        self.total - self.free
    }
}

/// Frame memory of the process, from the start of a page on, with a free list that gives the most
/// recently freed frame first. The kernel is asked for huge pages: a walk touches a few lines of
/// many frames, and with small pages each frame costs a walk of the page tables too.
///
/// With debug assertions on, giving back a frame that is free panics, and so does access to its
/// bytes, as with AF_XDP: two owners of one frame are the worst kind of bug to find later.
pub struct MemoryFrames {
    memory: MmapMut,
    frame_bytes: usize,
    stride: usize,
    free: Vec<FrameId>,
    total: usize,
    /// One entry a frame: whether somebody holds it.
    #[cfg(debug_assertions)]
    held: Vec<bool>,
}

impl MemoryFrames {
    /// `count` frames of [`FRAME_BYTES`] bytes.
    ///
    /// # Panics
    /// As [`MemoryFrames::with_frame_bytes`].
    pub fn new(count: u32) -> Self {
        MemoryFrames::with_frame_bytes(count, FRAME_BYTES)
    }

    /// `count` frames of `frame_bytes` bytes each, headroom included.
    ///
    /// # Panics
    /// If a frame would have no room behind its headroom, or there is no memory.
    pub fn with_frame_bytes(count: u32, frame_bytes: usize) -> Self {
        assert!(frame_bytes > HEADROOM, "a frame of {frame_bytes} bytes is all headroom");
        let (total, stride) = (count as usize, stride_of(frame_bytes));
        let memory = MmapMut::map_anon((total * stride).max(1))
            .unwrap_or_else(|error| panic!("no memory for {count} frames: {error}"));
        // Without huge pages (an old kernel, or switched off) it is slower, not wrong.
        let _ = memory.advise(Advice::HugePage);
        MemoryFrames {
            memory,
            frame_bytes,
            stride,
            free: (0..count).rev().map(FrameId).collect(),
            total,
            #[cfg(debug_assertions)]
            held: vec![false; total],
        }
    }

    /// Bytes of a frame, headroom included.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The frames' books: a caller that holds `n` frames checks that `held()` is `n`.
    pub fn conservation(&self) -> Conservation {
        Conservation { free: self.free.len(), total: self.total }
    }

    /// Takes a frame and stores `packet` behind its headroom, cut where the frame ends; the
    /// descriptor carries the packet's true length. `None`: no frame is free.
    pub fn store(&mut self, packet: &[u8]) -> Option<Descriptor> {
        store(self, packet)
    }

    /// The bytes of a packet; `None` if its descriptor reaches beyond the frame.
    pub fn packet(&self, packet: Descriptor) -> Option<&[u8]> {
        packet_bytes(self, packet)
    }

    fn start(&self, frame: FrameId) -> usize {
        frame.0 as usize * self.stride
    }

    /// Panics with debug assertions on if nobody holds the frame.
    #[inline(always)]
    fn assert_held(&self, _frame: FrameId) {
        #[cfg(debug_assertions)]
        assert!(
            self.held.get(_frame.0 as usize).is_none_or(|is_held| *is_held),
            "frame {} is free",
            _frame.0,
        );
    }
}

impl Frames for MemoryFrames {
    #[inline]
    fn bytes(&self, frame: FrameId) -> &[u8] {
        self.assert_held(frame);
        let start = self.start(frame);
        &self.memory[start..start + self.frame_bytes]
    }

    #[inline]
    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        self.assert_held(frame);
        let start = self.start(frame);
        &mut self.memory[start..start + self.frame_bytes]
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        assert_eq!(frames.len(), into.len(), "a place for every frame");
        frames.iter().for_each(|frame| self.assert_held(*frame));
        let mut order = [0usize; BATCH];
        let order = &mut order[..frames.len()];
        order.iter_mut().enumerate().for_each(|(place, entry)| *entry = place);
        order.sort_unstable_by_key(|place| frames[*place]);
        let (mut rest, mut at) = (&mut self.memory[..], 0);
        for &mut place in order {
            let Some(skipped) = (frames[place].0 as usize * self.stride).checked_sub(at) else {
                return false;
            };
            let (frame, behind) = rest[skipped..].split_at_mut(self.frame_bytes);
            into[place] = frame;
            (rest, at) = (behind, at + skipped + self.frame_bytes);
        }
        true
    }

    #[inline]
    fn prefetch(&self, frame: FrameId, offset: u32) {
        cpu::prefetch(&self.memory, self.start(frame) + offset as usize);
    }

    fn take(&mut self) -> Option<FrameId> {
        let frame = self.free.pop()?;
        #[cfg(debug_assertions)]
        {
            self.held[frame.0 as usize] = true;
        }
        Some(frame)
    }

    fn give(&mut self, frame: FrameId) {
        #[cfg(debug_assertions)]
        {
            let held = &mut self.held[frame.0 as usize];
            assert!(*held, "frame {} was given back twice", frame.0);
            *held = false;
        }
        self.free.push(frame);
    }
}

/// Takes a frame and stores `packet` behind its headroom, cut where the frame ends. The
/// descriptor carries the true length, so that whoever reads it can tell.
pub(crate) fn store<F: Frames>(frames: &mut F, packet: &[u8]) -> Option<Descriptor> {
    let frame = frames.take()?;
    let room = &mut frames.bytes_mut(frame)[HEADROOM..];
    let stored = packet.len().min(room.len());
    room[..stored].copy_from_slice(&packet[..stored]);
    let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    Some(Descriptor { frame, offset: HEADROOM as u32, length })
}

/// The bytes of a packet; `None` if its descriptor reaches beyond the frame.
pub(crate) fn packet_bytes<F: Frames>(frames: &F, packet: Descriptor) -> Option<&[u8]> {
    let start = packet.offset as usize;
    let end = start.checked_add(packet.length as usize)?;
    frames.bytes(packet.frame).get(start..end)
}

/// A port for tests: packets are pushed in as bytes and read out as bytes.
pub struct MemoryPort {
    queue: VecDeque<(Vec<u8>, Option<Mark>)>,
    /// Marks of the packets that were received last.
    marks: Vec<Mark>,
    transmitted: Vec<Vec<u8>>,
    capacity: usize,
}

impl MemoryPort {
    /// A port whose transmit ring accepts `capacity` packets until they are taken from it.
    pub fn new(capacity: usize) -> Self {
        let (queue, marks) = (VecDeque::new(), Vec::new());
        MemoryPort { queue, marks, transmitted: Vec::new(), capacity }
    }

    /// Adds a packet to those that will be received.
    pub fn push(&mut self, packet: impl Into<Vec<u8>>) {
        self.push_marked(packet, None);
    }

    /// Adds a packet with what a lower tier claims of it.
    pub fn push_marked(&mut self, packet: impl Into<Vec<u8>>, mark: Option<Mark>) {
        self.queue.push_back((packet.into(), mark));
    }

    /// Packets pushed and not yet received.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Packets transmitted and not yet taken, oldest first.
    pub fn transmitted(&self) -> &[Vec<u8>] {
        &self.transmitted
    }

    /// Takes all transmitted packets, oldest first, and so empties the transmit ring.
    pub fn take_transmitted(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.transmitted)
    }
}

impl<F: Frames> Port<F> for MemoryPort {
    /// Stops early when no frame is free; the packets then wait for the next call.
    fn receive(&mut self, frames: &mut F, limit: usize, into: &mut Vec<Received>) -> usize {
        let mut received = 0;
        self.marks.clear();
        while received < limit {
            let Some((packet, mark)) = self.queue.front() else { break };
            let Some(packet) = store(frames, packet) else { break };
            self.marks.extend(*mark);
            let hint = mark.map_or(0, |_| self.marks.len() as u32);
            self.queue.pop_front();
            into.push(Received { packet, hint });
            received += 1;
        }
        received
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// # Panics
    /// If a packet reaches beyond its frame: the walk must not let such a packet out.
    fn transmit(&mut self, frames: &mut F, packets: &[Descriptor]) -> usize {
        let accepted = packets.len().min(self.capacity.saturating_sub(self.transmitted.len()));
        for &packet in &packets[..accepted] {
            let bytes = packet_bytes(frames, packet).expect("a packet ends inside its frame");
            self.transmitted.push(bytes.to_vec());
            frames.give(packet.frame);
        }
        accepted
    }
}

/// A port for benchmarks: packets are loaded into frames outside the timed span, and inside it
/// only descriptors move. No call of [`Port`] copies a packet or, within the port's capacity,
/// allocates.
///
/// A lap is: load, receive and transmit until the port is drained, look at [`sent`], recycle.
///
/// [`sent`]: PreloadedPort::sent
pub struct PreloadedPort {
    loaded: Vec<Received>,
    /// First entry of `loaded` that has not been received.
    next: usize,
    sent: Vec<Descriptor>,
    capacity: usize,
    /// The mark of each packet, if they have one; and those of the packets received last.
    mark: Option<Mark>,
    marks: Vec<Mark>,
}

impl PreloadedPort {
    /// Makes a port with room for `capacity` packets to receive and as many to send.
    pub fn new(capacity: usize) -> Self {
        let (loaded, sent) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        PreloadedPort { loaded, next: 0, sent, capacity, mark: None, marks: Vec::new() }
    }

    /// Gives every packet a mark of its own, all alike.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.reserve(BATCH);
        self.mark = Some(mark);
    }

    /// Queues a packet that lies in a frame already; the port owns the frame from here on.
    ///
    /// # Panics
    /// If the port is at its capacity: a benchmark that lost packets here would measure less
    /// work than it says.
    pub fn load(&mut self, packet: Descriptor) {
        assert!(self.loaded.len() < self.capacity, "the port holds {} packets", self.capacity);
        self.loaded.push(packet.into());
    }

    /// Packets loaded and not yet received.
    pub fn waiting(&self) -> usize {
        self.loaded.len() - self.next
    }

    /// Returns the packets transmitted since the last recycling, oldest first.
    pub fn sent(&self) -> &[Descriptor] {
        &self.sent
    }

    /// Gives the frames of all sent packets back and makes room for the next lap.
    pub fn recycle<F: Frames>(&mut self, frames: &mut F) {
        for packet in self.sent.drain(..) {
            frames.give(packet.frame);
        }
        self.loaded.drain(..self.next);
        self.next = 0;
    }
}

impl<F: Frames> Port<F> for PreloadedPort {
    fn receive(&mut self, _: &mut F, limit: usize, into: &mut Vec<Received>) -> usize {
        let received = limit.min(self.waiting());
        let before = into.len();
        into.extend_from_slice(&self.loaded[self.next..self.next + received]);
        self.next += received;
        if let Some(mark) = self.mark {
            self.marks.clear();
            for (received, hint) in into[before..].iter_mut().zip(1..) {
                self.marks.push(mark);
                received.hint = hint;
            }
        }
        received
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn transmit(&mut self, _: &mut F, packets: &[Descriptor]) -> usize {
        let accepted = packets.len().min(self.capacity - self.sent.len());
        self.sent.extend_from_slice(&packets[..accepted]);
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Frames that are all taken.
    fn taken(mut frames: MemoryFrames) -> MemoryFrames {
        while frames.take().is_some() {}
        frames
    }

    fn descriptors(received: &[Received]) -> Vec<Descriptor> {
        received.iter().map(|received| received.packet).collect()
    }

    #[test]
    fn the_most_recently_freed_frame_is_taken_first() {
        let mut frames = MemoryFrames::new(4);
        let (a, b) = (frames.take().unwrap(), frames.take().unwrap());
        frames.give(a);
        frames.give(b);
        assert_eq!(frames.take(), Some(b));
        assert_eq!(frames.take(), Some(a));
    }

    #[test]
    fn frames_run_out_and_the_books_say_so() {
        let mut frames = MemoryFrames::new(2);
        assert!(frames.take().is_some() && frames.take().is_some());
        assert_eq!(frames.take(), None);
        assert_eq!(frames.conservation(), Conservation { free: 0, total: 2 });
        assert_eq!(frames.conservation().held(), 2);
    }

    #[test]
    fn frames_do_not_overlap_and_begin_in_every_set_of_the_first_cache() {
        let mut frames = taken(MemoryFrames::new(3));
        let starts = [0, 1, 2].map(|id| frames.bytes(FrameId(id)).as_ptr() as usize);
        assert!(starts.iter().all(|start| start % LINE == 0));
        for frame_bytes in [257, 2048, 2112, FRAME_BYTES] {
            let stride = stride_of(frame_bytes);
            assert!(stride >= frame_bytes && stride % (2 * LINE) == LINE, "{frame_bytes}");
        }
        assert_eq!(starts[1] - starts[0], stride_of(FRAME_BYTES));
        for id in 0..3 {
            frames.bytes_mut(FrameId(id)).fill(id as u8 + 1);
        }
        for id in 0..3 {
            assert!(frames.bytes(FrameId(id)).iter().all(|byte| *byte == id as u8 + 1));
        }
    }

    #[test]
    fn a_frame_named_twice_is_not_lent_twice() {
        let mut frames = taken(MemoryFrames::new(4));
        for named in [[1, 1, 2], [1, 2, 1], [2, 1, 1], [0, 0, 0]] {
            let mut places: [&mut [u8]; 3] = Default::default();
            assert!(!frames.many_mut(&named.map(FrameId), &mut places), "{named:?}");
        }
    }

    #[test]
    fn a_whole_batch_of_frames_is_lent() {
        let mut frames = taken(MemoryFrames::with_frame_bytes(BATCH as u32, HEADROOM + 1));
        let named: Vec<FrameId> = (0..BATCH as u32).rev().map(FrameId).collect();
        let mut places: Vec<&mut [u8]> = named.iter().map(|_| &mut [][..]).collect();
        assert!(frames.many_mut(&named, &mut places));
        assert!(places.iter().all(|bytes| bytes.len() == HEADROOM + 1));
    }

    #[test]
    #[should_panic(expected = "a place for every frame")]
    fn frames_and_places_are_as_many() {
        let mut places: [&mut [u8]; 2] = Default::default();
        MemoryFrames::new(4).many_mut(&[FrameId(1)], &mut places);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_frame_beyond_the_memory_is_not_lent() {
        let mut places: [&mut [u8]; 2] = Default::default();
        taken(MemoryFrames::new(4)).many_mut(&[FrameId(1), FrameId(5)], &mut places);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "given back twice")]
    fn giving_a_frame_back_twice_panics_in_debug_builds() {
        let mut frames = MemoryFrames::new(2);
        let frame = frames.take().unwrap();
        frames.give(frame);
        frames.give(frame);
    }

    #[test]
    fn a_packet_longer_than_its_frame_is_cut_and_keeps_its_true_length() {
        let mut frames = MemoryFrames::new(1);
        let mut port = MemoryPort::new(1);
        port.push(vec![7; 9000]);
        let mut batch = Vec::new();
        assert_eq!(port.receive(&mut frames, 64, &mut batch), 1);
        assert_eq!(batch[0].packet.length, 9000);
        assert_eq!(batch[0].packet.offset as usize, HEADROOM);
        assert_eq!(frames.packet(batch[0].packet), None);
        assert!(frames.bytes(batch[0].packet.frame)[HEADROOM..].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn packets_wait_in_the_memory_port_while_no_frame_is_free() {
        let mut frames = MemoryFrames::new(1);
        let mut port = MemoryPort::new(8);
        port.push([1u8]);
        port.push([2u8]);
        let mut batch = Vec::new();
        assert_eq!(port.receive(&mut frames, 64, &mut batch), 1);
        assert_eq!(port.waiting(), 1);
        assert_eq!(port.transmit(&mut frames, &descriptors(&batch)), 1);
        batch.clear();
        assert_eq!(port.receive(&mut frames, 64, &mut batch), 1);
        assert_eq!(frames.packet(batch[0].packet), Some(&[2u8][..]));
    }

    #[test]
    fn a_full_transmit_ring_leaves_the_rest_to_the_caller() {
        let mut frames = MemoryFrames::new(4);
        let mut port = MemoryPort::new(2);
        let packets: Vec<_> = (0..3u8).map(|n| frames.store(&[n]).unwrap()).collect();
        assert_eq!(port.transmit(&mut frames, &packets), 2);
        assert_eq!(port.transmitted(), [vec![0], vec![1]]);
        assert_eq!(frames.conservation().held(), 1);
        assert_eq!(port.transmit(&mut frames, &packets[2..]), 0);
        port.take_transmitted();
        assert_eq!(port.transmit(&mut frames, &packets[2..]), 1);
        assert_eq!(frames.conservation().held(), 0);
    }

    #[test]
    fn the_preloaded_port_passes_descriptors_and_recycles_their_frames() {
        let mut frames = MemoryFrames::new(4);
        let mut port = PreloadedPort::new(4);
        for lap in 0..3u8 {
            let loaded: Vec<_> = (0..4).map(|n| frames.store(&[lap, n]).unwrap()).collect();
            loaded.iter().for_each(|packet| port.load(*packet));
            let mut batch = Vec::new();
            assert_eq!(port.receive(&mut frames, 3, &mut batch), 3);
            assert_eq!(port.receive(&mut frames, 3, &mut batch), 1);
            assert_eq!(port.receive(&mut frames, 3, &mut batch), 0);
            let batch = descriptors(&batch);
            assert_eq!(batch, loaded);
            assert_eq!(port.transmit(&mut frames, &batch), 4);
            assert_eq!(port.transmit(&mut frames, &batch[..1]), 0, "the ring is full");
            assert_eq!(port.sent(), loaded);
            assert_eq!(frames.conservation().held(), 4);
            port.recycle(&mut frames);
            assert_eq!(frames.conservation().held(), 0);
        }
    }

    proptest! {
        /// Oracle: the same frames, one after the other.
        #[test]
        fn several_frames_are_the_frames_named_in_that_order(
            named in prop_oneof![
                proptest::collection::vec(0u32..BATCH as u32, 0..=BATCH),
                proptest::sample::subsequence((0..BATCH as u32).collect::<Vec<_>>(), 0..=BATCH)
                    .prop_shuffle(),
            ],
        ) {
            let named: Vec<FrameId> = named.into_iter().map(FrameId).collect();
            let mut frames = taken(MemoryFrames::with_frame_bytes(BATCH as u32, HEADROOM + 8));
            let starts: Vec<*const u8> =
                named.iter().map(|frame| frames.bytes(*frame).as_ptr()).collect();
            let once = (0..named.len()).all(|place| !named[..place].contains(&named[place]));
            let mut places: Vec<&mut [u8]> = named.iter().map(|_| &mut [][..]).collect();
            prop_assert_eq!(frames.many_mut(&named, &mut places), once);
            if once {
                let lent: Vec<*const u8> = places.iter().map(|bytes| bytes.as_ptr()).collect();
                prop_assert_eq!(lent, starts);
                prop_assert!(places.iter().all(|bytes| bytes.len() == HEADROOM + 8));
            }
        }

        #[test]
        fn what_goes_through_the_memory_port_comes_out_unchanged(
            packets in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..=FRAME_BYTES - HEADROOM), 0..20),
            limit in 1usize..=64,
        ) {
            let mut frames = MemoryFrames::new(8);
            let mut port = MemoryPort::new(usize::MAX);
            packets.iter().for_each(|packet| port.push(packet.clone()));
            let mut batch = Vec::new();
            while port.receive(&mut frames, limit, &mut batch) > 0 {
                prop_assert_eq!(port.transmit(&mut frames, &descriptors(&batch)), batch.len());
                batch.clear();
                prop_assert_eq!(frames.conservation().held(), 0);
            }
            prop_assert_eq!(port.transmitted(), &packets[..]);
        }
    }
}
