//! Frames and their layout, who owns each, and the list of the free ones. Those of closed sockets:
//! `quarantine.rs`.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::census::{Census, OwnedFrames, OwnerTally};
use crate::owner::{MAX_SOCKETS, Owner};
use crate::quarantine::{self, Queue};
use crate::system::{self, Mapping};
use crate::{OptionFault, XskError};

/// Bytes of a frame, headroom included. All frames of one memory have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FrameSize {
    /// Half a page, the least that the kernel takes: for packets of the usual MTU. Half the memory
    /// that packets under way pass through.
    Half,
    /// A page, the most that the kernel takes.
    Page,
}

/// Bytes of the smaller frame.
const HALF_BYTES: usize = PAGE_BYTES / 2;
/// Bytes of the larger frame.
const PAGE_BYTES: usize = 4096;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl FrameSize {
    /// Bytes of a frame.
    pub const fn bytes(self) -> usize {
        match self {
            FrameSize::Half => HALF_BYTES,
            FrameSize::Page => PAGE_BYTES,
        }
    }
}

/// The gap between one frame and the next.
///
/// A walk touches the same few lines of each frame. A power of two apart they all fall into the
/// same few sets of the first cache and push each other out, which costs it a seventh of its time;
/// an odd number of lines apart they do not. The kernel then has to be told that chunks are not
/// aligned (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`, 5.4), and frames lie across pages: a driver that works
/// on them itself would have to find those pages behind each other in physical memory, so packets
/// are always copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spacing {
    /// No gap: a frame begins at a multiple of its size.
    Aligned,
    /// A cache line: for netdevs whose packets are copied anyway.
    Staggered,
}

/// The layout of a memory: the size of its frames and the gap between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a frame.
    pub size: FrameSize,
    /// The gap between two frames.
    pub spacing: Spacing,
}

/// Bits of an address in unaligned chunks that say where the chunk begins; above them lies the
/// packet's offset in it.
const BASE_BITS: u32 = libc::XSK_UNALIGNED_BUF_OFFSET_SHIFT as u32;

impl Layout {
    /// Frames of a page each, without gaps: any kernel and any driver takes them.
    pub const PAGES: Layout = Layout { size: FrameSize::Page, spacing: Spacing::Aligned };

    /// Makes the layout for netdevs whose packets are copied anyway: [`Spacing::Staggered`] if the
    /// kernel lets a socket of this process have it.
    pub fn of_copies(size: FrameSize) -> Layout {
        let layout = Layout { size, spacing: Spacing::Staggered };
        let taken = || -> std::io::Result<()> {
            let (socket, memory) = (system::socket()?, Mapping::anonymous(2 * layout.stride())?);
            // SAFETY: no fill ring of this socket, which ends here, ever names a chunk. Threat: the
            // kernel would write packets into memory that is not there for them.
            unsafe { system::register(&socket, &memory, layout) }
        };
        match taken() {
            Ok(()) => layout,
            Err(_) => Layout { size, spacing: Spacing::Aligned },
        }
    }

    /// Bytes from the start of one frame to that of the next.
    pub const fn stride(self) -> usize {
        match self.spacing {
            Spacing::Aligned => self.size.bytes(),
            Spacing::Staggered => self.size.bytes() + LINE_BYTES,
        }
    }

    /// Address of a byte of a frame, as the rings have it.
    #[inline]
    pub(crate) fn address(self, frame: u32, offset: u32) -> u64 {
        u64::from(frame) * self.stride() as u64 + u64::from(offset)
    }

    /// The frame an address lies in, and where in it. Addresses that no 32-bit frame number reaches
    /// become the last number, which no memory has.
    #[inline]
    pub(crate) fn place(self, address: u64) -> (u32, u32) {
        // By constants: a division by a number that is only known when it is made takes longer.
        match (self.size, self.spacing) {
            (FrameSize::Half, Spacing::Aligned) => divided::<{ HALF_BYTES as u64 }>(address),
            (FrameSize::Page, Spacing::Aligned) => divided::<{ PAGE_BYTES as u64 }>(address),
            (FrameSize::Half, Spacing::Staggered) => {
                divided::<{ (HALF_BYTES + LINE_BYTES) as u64 }>(unfolded(address))
            }
            (FrameSize::Page, Spacing::Staggered) => {
                divided::<{ (PAGE_BYTES + LINE_BYTES) as u64 }>(unfolded(address))
            }
        }
    }
}

/// Adds the offset in the upper bits of an address in unaligned chunks to where the chunk begins.
#[inline]
fn unfolded(address: u64) -> u64 {
    (address & ((1 << BASE_BITS) - 1)) + (address >> BASE_BITS)
}

/// Returns the frame of an address and the place in it, by the distance of frames in bytes.
#[inline]
fn divided<const STRIDE: u64>(address: u64) -> (u32, u32) {
    (u32::try_from(address / STRIDE).unwrap_or(u32::MAX), (address % STRIDE) as u32)
}

/// Bytes in front of every received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: usize = 256;

/// Frames of one memory at most: 16 GiB of the larger.
const MAX_FRAMES: u32 = 1 << 22;

/// A packet in a frame: bytes `offset .. offset + length` of frame `frame`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The frame that holds the packet.
    pub frame: u32,
    /// First byte of the packet, from the start of the frame.
    pub offset: u32,
    /// Bytes of the packet.
    pub length: u32,
}

impl Packet {
    /// Returns true if a ring can carry the packet: it is not empty and lies inside its frame.
    #[inline]
    pub(crate) fn fits(self, size: FrameSize) -> bool {
        let end = self.offset.checked_add(self.length);
        self.length > 0 && end.is_some_and(|end| end as usize <= size.bytes())
    }
}

/// One place for a socket of an area; its number is in the owner tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Vacant,
    /// A socket being opened; it shares nothing yet.
    Reserved,
    /// Bound, and so a socket that others can share memory with.
    Bound(BoundSocket),
    /// Closed; the kernel may still have its frames.
    Closed(ClosedSocket),
    /// Closed, and the kernel has let go of its frames, which are not yet reclaimed.
    Released,
}

/// A bound socket of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BoundSocket {
    pub(crate) fd: RawFd,
    pub(crate) queue: Queue,
    /// The order of its binding's beginning.
    pub(crate) order: u64,
}

/// A closed socket of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClosedSocket {
    queue: Queue,
    /// The order of its closing.
    order: u64,
}

/// The memory of a [`Umem`], and the sockets that use it. What another thread needs to open
/// sockets on it; it does not give access to the frames.
pub struct Area {
    memory: Mapping,
    frames: u32,
    layout: Layout,
    slots: Mutex<Vec<Slot>>,
    /// Some slot is [`Slot::Released`].
    released: AtomicBool,
}

impl Area {
    /// Frames of the memory.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The size of the frames and the gap between them.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Returns the number of sockets that were opened and are not yet reclaimed.
    pub fn sockets(&self) -> usize {
        self.registry().0.iter().filter(|slot| **slot != Slot::Vacant).count()
    }

    pub(crate) fn registry(&self) -> Registry<'_> {
        // A panic elsewhere leaves the list whole: every change is one assignment.
        Registry(self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues of closed sockets whose frames are in quarantine, and when they were closed.
    pub(crate) fn quarantined(&self) -> Vec<(Queue, u64)> {
        let of = |slot: &Slot| match slot {
            Slot::Closed(closed) => Some((closed.queue, closed.order)),
            _ => None,
        };
        self.registry().0.iter().filter_map(of).collect()
    }

    /// Returns the order of the binding to a queue; `None`: no socket of this area is bound to it.
    pub(crate) fn bound_to(&self, queue: Queue) -> Option<u64> {
        self.registry().0.iter().find_map(|slot| match slot {
            Slot::Bound(bound) if bound.queue == queue => Some(bound.order),
            _ => None,
        })
    }

    /// Notes that the kernel has let go of the frames of sockets of a queue that were closed by
    /// then.
    ///
    /// # Safety
    /// The kernel has proven it (`quarantine.rs`). Else their frames are free while a driver still
    /// writes into them.
    pub(crate) unsafe fn release(&self, queue: Queue, until: u64) {
        // SAFETY: the caller keeps the promise. Threat: as above.
        unsafe { self.registry().release(self, queue, until) };
    }

    /// Takes a place for a socket that is being opened.
    pub(crate) fn reserve(&self) -> Result<usize, XskError> {
        let mut slots = self.registry().0;
        let slot = match slots.iter().position(|slot| *slot == Slot::Vacant) {
            Some(slot) => slot,
            None if slots.len() < MAX_SOCKETS => {
                slots.push(Slot::Vacant);
                slots.len() - 1
            }
            None => return Err(XskError::TooManySockets { maximum: MAX_SOCKETS }),
        };
        slots[slot] = Slot::Reserved;
        Ok(slot)
    }
}

/// The list of an area's sockets, locked. While it is locked no socket of the area is closed.
pub(crate) struct Registry<'a>(MutexGuard<'a, Vec<Slot>>);

impl Registry<'_> {
    /// The bound sockets, on other queues than the given one.
    pub(crate) fn others(&self, queue: Queue) -> impl Iterator<Item = RawFd> {
        self.0.iter().filter_map(move |slot| match slot {
            Slot::Bound(bound) if bound.queue != queue => Some(bound.fd),
            _ => None,
        })
    }

    /// Enters a socket that is bound, which proves that the earlier ones of its queue are gone.
    ///
    /// # Safety
    /// The slot is reserved for the socket; its binding to the queue began at `order`, succeeded,
    /// and did not share the memory of a socket on the same queue. Else frames of closed sockets
    /// are free while a driver still writes into them.
    pub(crate) unsafe fn bound(&mut self, area: &Area, slot: usize, bound: BoundSocket) {
        self.0[slot] = Slot::Bound(bound);
        // SAFETY: a binding that succeeds is the proof. Threat: as above.
        unsafe { self.release(area, bound.queue, bound.order) };
    }

    /// # Safety
    /// As [`Area::release`]; `area` is the one whose list this is.
    unsafe fn release(&mut self, area: &Area, queue: Queue, until: u64) {
        let is_of = |closed: &ClosedSocket| closed.queue == queue && closed.order <= until;
        for slot in &mut self.0[..] {
            if matches!(slot, Slot::Closed(closed) if is_of(closed)) {
                *slot = Slot::Released;
                area.released.store(true, Ordering::Release);
            }
        }
    }

    /// Gives up the place of a socket to which the kernel owes nothing.
    ///
    /// # Safety
    /// No frame has the slot's tags. Else the next socket with these tags frees frames that the
    /// kernel has of the one before.
    pub(crate) unsafe fn vacate(&mut self, slot: usize) {
        self.0[slot] = Slot::Vacant;
    }

    /// Notes that a socket's descriptor is closed: its frames are in quarantine.
    ///
    /// # Safety
    /// The slot is the socket's, its descriptor is closed, and the queue is the one that it was
    /// bound to. Else the proof that frees its frames is one about another socket or from before.
    pub(crate) unsafe fn closed(&mut self, slot: usize, queue: Queue) {
        self.0[slot] = Slot::Closed(ClosedSocket { queue, order: quarantine::next_order() });
    }
}

/// Frame memory of one worker. The bytes of a frame can be reached from [`Umem::take`], or from
/// receiving it, until it is given back or transmitted.
pub struct Umem {
    area: Arc<Area>,
    /// Bytes of a frame.
    frame_bytes: usize,
    /// Bytes from the start of one frame to that of the next, `frame_bytes` at least.
    stride: usize,
    /// One entry a frame.
    owners: Vec<Owner>,
    /// The census under way, if any.
    tally: OwnerTally,
    /// Last freed, first taken: it is warm in the cache.
    free: Vec<u32>,
}

impl Umem {
    /// Memory of `frames` frames of a page each, all free.
    ///
    /// # Errors
    /// As [`Umem::laid_out`].
    pub fn new(frames: u32) -> Result<Umem, XskError> {
        Umem::laid_out(frames, Layout::PAGES)
    }

    /// Memory of `frames` frames of this layout, all free.
    ///
    /// # Errors
    /// [`XskError::Option`] for no frames or too many, [`XskError::NoMemory`].
    pub fn laid_out(frames: u32, layout: Layout) -> Result<Umem, XskError> {
        if frames == 0 || frames > MAX_FRAMES {
            return Err(OptionFault::Frames { frames, maximum: MAX_FRAMES }.into());
        }
        let (frame_bytes, stride) = (layout.size.bytes(), layout.stride());
        let memory = Mapping::anonymous(frames as usize * stride)
            .map_err(|source| XskError::NoMemory { frames, frame_bytes, source })?;
        let slots = Mutex::new(Vec::new());
        let area = Area { memory, frames, layout, slots, released: AtomicBool::new(false) };
        Ok(Umem {
            area: Arc::new(area),
            frame_bytes,
            stride,
            owners: vec![Owner::FREE; frames as usize],
            tally: OwnerTally::new(),
            free: (0..frames).rev().collect(),
        })
    }

    /// The memory, for [`Socket::open`](crate::Socket::open).
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// The bytes of a frame that the caller owns, headroom included. Cost: two loads.
    ///
    /// # Panics
    /// If the caller does not own the frame.
    #[inline]
    pub fn frame(&self, frame: u32) -> &[u8] {
        self.assert_outside(frame);
        // SAFETY: `frame` is below the number of frames (its owner was found), so the range lies
        // in the memory. Nobody else writes there: the kernel has only frames with a socket's tag
        // (`Producer::push`, `obtain`, `free_of`), and `&mut self` is needed to change a tag or to
        // write. Threat: a read past the mapping is a SIGSEGV, one of a frame in a ring a race.
        unsafe { std::slice::from_raw_parts(self.start(frame), self.frame_bytes) }
    }

    /// The bytes of a frame that the caller owns, for writing.
    ///
    /// # Panics
    /// If the caller does not own the frame.
    #[inline]
    pub fn frame_mut(&mut self, frame: u32) -> &mut [u8] {
        self.assert_outside(frame);
        // SAFETY: as in `frame`; `&mut self` makes this the only slice of the memory. Threat: two
        // writers of one packet.
        unsafe { std::slice::from_raw_parts_mut(self.start(frame), self.frame_bytes) }
    }

    /// The bytes of several frames that the caller owns, for writing: fills `into` place by place.
    /// Returns false, with `into` filled in part, if a frame is named twice. Cost: a comparison of
    /// each with each.
    ///
    /// # Panics
    /// If the caller does not own one of the frames, or they are not as many as places.
    pub fn frames_mut<'f>(
        &'f mut self,
        frames: impl ExactSizeIterator<Item = u32>,
        into: &mut [&'f mut [u8]],
    ) -> bool {
        assert_eq!(frames.len(), into.len(), "a place for every frame");
        for (place, frame) in frames.take(into.len()).enumerate() {
            self.assert_outside(frame);
            let start = self.start(frame);
            // What was handed out is asked, not the iterator, which may say another thing when it
            // is asked again.
            if into[..place].iter().any(|earlier| earlier.as_ptr() == start) {
                return false;
            }
            // SAFETY: as in `frame`; none of the slices handed out so far is of this frame, and
            // `&mut self` is borrowed for as long as they live, so these are the only slices of
            // the memory. Threat: two slices of one frame, both written.
            into[place] = unsafe { std::slice::from_raw_parts_mut(start, self.frame_bytes) };
        }
        true
    }

    /// Takes a free frame, the most recently freed first. `None`: none is free.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.take_for(Owner::OUTSIDE)
    }

    /// Gives a frame back that the caller owns.
    ///
    /// # Panics
    /// If the caller does not own the frame: two owners of one frame are two packets in one place.
    #[inline]
    pub fn give(&mut self, frame: u32) {
        self.assert_outside(frame);
        // SAFETY: the frame was the caller's, who has no slice of it (`&mut self`). Threat: as
        // `free_from` says.
        unsafe { self.free_from(frame) };
    }

    /// Counts all frames by owner. Cost: one pass over the owner tags, 2 bytes a frame. A worker
    /// counts in parts: [`begin_census`](Self::begin_census).
    pub fn census(&self) -> Census {
        self.sort_owners(self.owners.iter().map(|owner| OwnedFrames { owner: *owner, frames: 1 }))
    }

    /// Begins a census in parts; a census under way ends.
    pub fn begin_census(&mut self) {
        self.tally.begin();
    }

    /// Counts up to `step` more frames (at least 1). After the last part, returns the census of
    /// this moment.
    pub fn go_on_with_census(&mut self, step: usize) -> Option<Census> {
        if !self.tally.visit(&self.owners, step.max(1)) {
            return None;
        }
        let census = self.sort_owners(self.tally.by_owner());
        self.tally.end();
        Some(census)
    }

    /// Sorts frames by the state of their owners.
    fn sort_owners(&self, by_owner: impl Iterator<Item = OwnedFrames>) -> Census {
        let mut census =
            Census { total: self.owners.len(), free: self.free.len(), ..Census::default() };
        let slots = self.area.registry().0;
        let is_closed = |owner: Owner| {
            let slot = owner.slot().and_then(|slot| slots.get(slot));
            matches!(slot, Some(Slot::Closed(_) | Slot::Released))
        };
        for OwnedFrames { owner, frames } in by_owner {
            match owner {
                Owner::FREE => {}
                Owner::OUTSIDE => census.outside += frames,
                owner if is_closed(owner) => census.quarantined += frames,
                owner if owner.is_transmit() => census.transmit += frames,
                _ => census.receive += frames,
            }
        }
        census
    }

    /// Frees the frames of closed sockets that the kernel is proven to have let go of
    /// ([`release_quarantined`](crate::release_quarantined)) since the last call. Returns how many.
    /// [`Umem::take`] does it when no frame is left.
    pub fn reclaim(&mut self) -> usize {
        let before = self.free.len();
        if self.area.released.swap(false, Ordering::AcqRel) {
            self.reclaim_released();
        }
        self.free.len() - before
    }

    fn reclaim_released(&mut self) {
        let area = Arc::clone(&self.area);
        let mut slots = area.registry().0;
        for frame in 0..self.owners.len() as u32 {
            let slot = self.owners[frame as usize].slot();
            if slot.and_then(|slot| slots.get(slot)) == Some(&Slot::Released) {
                // SAFETY: its socket is closed and the kernel has let go of it (`Slot::Released`).
                // Threat: as `free_from` says.
                unsafe { self.free_from(frame) };
            }
        }
        for slot in slots.iter_mut().filter(|slot| **slot == Slot::Released) {
            *slot = Slot::Vacant;
        }
    }

    /// Takes a free frame for an owner.
    #[inline]
    pub(crate) fn take_for(&mut self, owner: Owner) -> Option<u32> {
        let frame = match self.free.pop() {
            Some(frame) => frame,
            None => self.take_reclaimed()?,
        };
        self.owners[frame as usize] = owner;
        self.tally.note(frame, Owner::FREE, owner);
        Some(frame)
    }

    #[cold]
    fn take_reclaimed(&mut self) -> Option<u32> {
        self.reclaim();
        self.free.pop()
    }

    /// Passes a frame from the caller to a socket.
    #[inline]
    pub(crate) fn pass(&mut self, frame: u32, to: Owner) -> OwnerChange {
        // SAFETY: the frame is the caller's; only `obtain` and `free_of` take it from the socket.
        // Threat: none yet; a frame that a ring never names comes back with its socket's closing.
        unsafe { self.hand(frame, Owner::OUTSIDE, to) }
    }

    /// Passes a frame from a socket to the caller.
    ///
    /// # Safety
    /// The kernel has handed the frame back by a ring of this socket, and has not got it again.
    /// Else the kernel writes into it while the caller reads it.
    #[inline]
    pub(crate) unsafe fn obtain(&mut self, frame: u32, from: Owner) -> OwnerChange {
        // SAFETY: the caller keeps the promise. Threat: as above.
        unsafe { self.hand(frame, from, Owner::OUTSIDE) }
    }

    /// Frees a frame of a socket.
    ///
    /// # Safety
    /// As [`Umem::obtain`]; or the kernel never got the frame.
    #[inline]
    pub(crate) unsafe fn free_of(&mut self, frame: u32, from: Owner) -> OwnerChange {
        if self.owners.get(frame as usize) != Some(&from) {
            return OwnerChange::NotTheOwner;
        }
        // SAFETY: the frame has a socket's tag, so it is not on the list, and the caller promises
        // that the kernel does not have it. Threat: as `free_from` says.
        unsafe { self.free_from(frame) };
        OwnerChange::Done
    }

    /// Changes a frame's tag.
    ///
    /// # Safety
    /// If `from` is a socket: as [`Umem::obtain`].
    #[inline]
    unsafe fn hand(&mut self, frame: u32, from: Owner, to: Owner) -> OwnerChange {
        match self.owners.get_mut(frame as usize) {
            Some(owner) if *owner == from => {
                *owner = to;
                self.tally.note(frame, from, to);
                OwnerChange::Done
            }
            _ => OwnerChange::NotTheOwner,
        }
    }

    /// Puts a frame on the free list.
    ///
    /// # Safety
    /// Nobody has the frame, neither the kernel nor the list. Else the next who takes it shares it.
    #[inline]
    unsafe fn free_from(&mut self, frame: u32) {
        let owner = std::mem::replace(&mut self.owners[frame as usize], Owner::FREE);
        self.tally.note(frame, owner, Owner::FREE);
        self.free.push(frame);
    }

    #[inline]
    fn assert_outside(&self, frame: u32) {
        if self.owners.get(frame as usize) != Some(&Owner::OUTSIDE) {
            not_the_callers(frame);
        }
    }

    fn start(&self, frame: u32) -> *mut u8 {
        self.area.memory.start().wrapping_add(frame as usize * self.stride)
    }
}

/// Outcome of changing a frame's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum OwnerChange {
    Done,
    NotTheOwner,
}

#[cold]
fn not_the_callers(frame: u32) -> ! {
    panic!("frame {frame} is not the caller's: it is free, in a ring, or does not exist")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUEUE: Queue = Queue { ifindex: 7, number: 0 };

    // No kernel has any frame of these memories: whatever is said of it endangers none.

    fn close(area: &Area, slot: usize) {
        // SAFETY: see above. Threat: none.
        unsafe { area.registry().closed(slot, QUEUE) };
    }

    fn bind(area: &Area, slot: usize, bound: BoundSocket) {
        // SAFETY: see above. Threat: none.
        unsafe { area.registry().bound(area, slot, bound) };
    }

    fn release(area: &Area, queue: Queue, until: u64) {
        // SAFETY: see above. Threat: none.
        unsafe { area.release(queue, until) };
    }

    #[test]
    fn the_most_recently_freed_frame_is_taken_first_and_frames_run_out() {
        let mut umem = Umem::new(3).unwrap();
        let frames = [umem.take().unwrap(), umem.take().unwrap(), umem.take().unwrap()];
        assert_eq!(umem.take(), None);
        umem.give(frames[1]);
        umem.give(frames[0]);
        assert_eq!((umem.take(), umem.take()), (Some(frames[0]), Some(frames[1])));
        let census = umem.census();
        assert_eq!((census.total, census.free, census.outside), (3, 0, 3));
        assert_eq!(census.imbalance(), 0);
    }

    /// All layouts that there are.
    const LAYOUTS: [Layout; 4] = [
        Layout { size: FrameSize::Half, spacing: Spacing::Aligned },
        Layout { size: FrameSize::Half, spacing: Spacing::Staggered },
        Layout { size: FrameSize::Page, spacing: Spacing::Aligned },
        Layout { size: FrameSize::Page, spacing: Spacing::Staggered },
    ];

    #[test]
    fn frames_of_every_layout_have_their_size_and_do_not_overlap() {
        for layout in LAYOUTS {
            // An odd number: the last page may be filled in part.
            let mut umem = Umem::laid_out(5, layout).unwrap();
            let frames: Vec<u32> = std::iter::from_fn(|| umem.take()).collect();
            frames.iter().for_each(|frame| umem.frame_mut(*frame).fill(*frame as u8 + 1));
            for &frame in &frames {
                assert_eq!(umem.frame(frame).len(), layout.size.bytes());
                assert!(umem.frame(frame).iter().all(|byte| *byte == frame as u8 + 1));
                let start = umem.frame(frame).as_ptr() as usize;
                let is_aligned = start.is_multiple_of(layout.size.bytes());
                assert!(is_aligned || layout.spacing == Spacing::Staggered, "{layout:?}");
            }
        }
    }

    #[test]
    fn staggered_frames_begin_in_every_set_of_a_cache() {
        for layout in LAYOUTS.into_iter().filter(|of| of.spacing == Spacing::Staggered) {
            let mut umem = Umem::laid_out(4, layout).unwrap();
            let frames: Vec<u32> = std::iter::from_fn(|| umem.take()).collect();
            let starts: Vec<usize> =
                frames.iter().map(|frame| umem.frame(*frame).as_ptr() as usize).collect();
            assert!(starts.windows(2).all(|two| two[0].abs_diff(two[1]) / LINE_BYTES % 2 == 1));
        }
    }

    #[test]
    fn an_address_is_found_again_in_its_frame() {
        for layout in LAYOUTS {
            let size = layout.size.bytes() as u32;
            for frame in [0, 1, 2, 31, 32, 33, 63, 64, 65, MAX_FRAMES - 1] {
                for offset in [0, 1, 255, 256, 2047, 2048, 2111, 2112, 4095] {
                    let address = layout.address(frame, offset);
                    if offset >= size {
                        continue;
                    }
                    assert_eq!(layout.place(address), (frame, offset), "{layout:?}");
                    if layout.spacing == Spacing::Staggered {
                        // As the kernel writes it.
                        let written = layout.address(frame, 0) | u64::from(offset) << 48;
                        assert_eq!(layout.place(written), (frame, offset));
                    }
                }
            }
            // What lies nowhere.
            for address in [u64::MAX, (1 << 48) - 1, 1 << 47] {
                let (frame, offset) = layout.place(address);
                let beyond = Packet { frame, offset, length: 1 };
                let is_nowhere = frame >= MAX_FRAMES || !beyond.fits(layout.size);
                assert!(is_nowhere, "{layout:?} {address:#x}");
            }
            // Between two frames there is nothing.
            let (frame, offset) = layout.place(layout.size.bytes() as u64);
            let beyond = Packet { frame, offset, length: 1 };
            assert_eq!(beyond.fits(layout.size), layout.spacing == Spacing::Aligned, "{layout:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_address_of_every_layout_lies_in_one_frame_or_in_a_gap(
            frame in 0..MAX_FRAMES,
            offset in 0_u32..4160,
            address: u64,
        ) {
            for layout in LAYOUTS {
                let (size, stride) = (layout.size.bytes() as u32, layout.stride() as u32);
                let offset = offset % stride;
                let found = layout.place(layout.address(frame, offset));
                proptest::prop_assert_eq!(found, (frame, offset));
                let packet = Packet { frame, offset, length: 1 };
                proptest::prop_assert_eq!(packet.fits(layout.size), offset < size);
                // Whatever the kernel says lies below the next frame.
                proptest::prop_assert!(layout.place(address).1 < stride);
            }
        }
    }

    #[test]
    fn several_frames_come_in_the_order_they_are_named_in() {
        let mut umem = Umem::new(5).unwrap();
        let frames: Vec<u32> = std::iter::from_fn(|| umem.take()).collect();
        for named in [&[][..], &[2], &[4, 0, 3], &[0, 1, 2, 3, 4], &[4, 3, 2, 1, 0]] {
            let mut places: Vec<&mut [u8]> = named.iter().map(|_| &mut [][..]).collect();
            assert!(umem.frames_mut(named.iter().copied(), &mut places));
            for (number, bytes) in named.iter().zip(places) {
                assert_eq!(bytes.len(), PAGE_BYTES);
                bytes.fill(*number as u8 + 1);
            }
            for &number in named {
                assert!(umem.frame(number).iter().all(|byte| *byte == number as u8 + 1));
                umem.frame_mut(number).fill(0);
            }
        }
        for frame in frames {
            assert!(umem.frame(frame).iter().all(|byte| *byte == 0), "frame {frame}");
        }
    }

    #[test]
    fn a_frame_named_twice_is_not_lent_twice() {
        let mut umem = Umem::new(4).unwrap();
        while umem.take().is_some() {}
        for named in [[1, 1, 2], [1, 2, 1], [2, 1, 1]] {
            let mut places: [&mut [u8]; 3] = Default::default();
            assert!(!umem.frames_mut(named.into_iter(), &mut places), "{named:?}");
            let starts: Vec<_> =
                places.iter().filter(|b| !b.is_empty()).map(|b| b.as_ptr()).collect();
            assert!(starts.iter().enumerate().all(|(n, start)| !starts[..n].contains(start)));
        }
    }

    /// Says another frame each time it is asked anew.
    #[derive(Clone)]
    struct Fickle<'a>(&'a std::cell::Cell<u32>, usize);

    impl Iterator for Fickle<'_> {
        type Item = u32;

        fn next(&mut self) -> Option<u32> {
            self.1 = self.1.checked_sub(1)?;
            self.0.set(self.0.get() + 1);
            // 1, 1, 0, 0 …: whoever asks twice is told twice another thing.
            Some(self.0.get() / 2 % 2)
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.1, Some(self.1))
        }
    }

    impl ExactSizeIterator for Fickle<'_> {}

    #[test]
    fn an_iterator_that_changes_its_mind_gets_no_frame_twice() {
        for start in 0..4 {
            let mut umem = Umem::new(2).unwrap();
            while umem.take().is_some() {}
            let cell = std::cell::Cell::new(start);
            let mut places: [&mut [u8]; 3] = Default::default();
            assert!(!umem.frames_mut(Fickle(&cell, 3), &mut places));
        }
    }

    #[test]
    #[should_panic(expected = "is not the caller's")]
    fn a_free_frame_is_not_lent_among_others() {
        let mut umem = Umem::new(3).unwrap();
        let frame = umem.take().unwrap();
        let mut places: [&mut [u8]; 2] = Default::default();
        umem.frames_mut([frame, frame + 1].into_iter(), &mut places);
    }

    #[test]
    #[should_panic(expected = "a place for every frame")]
    fn frames_and_places_are_as_many() {
        let mut umem = Umem::new(3).unwrap();
        let frame = umem.take().unwrap();
        let mut places: [&mut [u8]; 2] = Default::default();
        umem.frames_mut(std::iter::once(frame), &mut places);
    }

    #[test]
    #[should_panic(expected = "is not the caller's")]
    fn a_free_frame_cannot_be_read() {
        let _ = Umem::new(2).unwrap().frame(0);
    }

    #[test]
    #[should_panic(expected = "is not the caller's")]
    fn a_frame_beyond_the_memory_cannot_be_read() {
        let _ = Umem::new(2).unwrap().frame(2);
    }

    #[test]
    #[should_panic(expected = "is not the caller's")]
    fn a_frame_cannot_be_given_back_twice() {
        let mut umem = Umem::new(2).unwrap();
        let frame = umem.take().unwrap();
        umem.give(frame);
        umem.give(frame);
    }

    #[test]
    fn frames_of_a_closed_socket_come_back_and_nobody_elses() {
        let mut umem = Umem::new(10).unwrap();
        let area = Arc::clone(umem.area());
        let (dead, alive) = (area.reserve().unwrap(), area.reserve().unwrap());
        for slot in [dead, alive] {
            for owner in [Owner::receive(slot), Owner::receive(slot), Owner::transmit(slot)] {
                umem.take_for(owner).unwrap();
            }
        }
        umem.take().unwrap();
        close(&area, dead);
        assert_eq!(umem.reclaim(), 0, "the kernel may have them");
        assert_eq!((umem.census().free, umem.census().quarantined), (3, 3));
        release(&area, Queue { number: 1, ..QUEUE }, u64::MAX);
        release(&area, QUEUE, 0);
        assert_eq!(umem.reclaim(), 0, "another queue's proof, and one from before it was closed");
        release(&area, QUEUE, u64::MAX);
        assert_eq!(umem.reclaim(), 3);
        let census = umem.census();
        assert_eq!((census.free, census.outside), (6, 1));
        assert_eq!((census.receive, census.transmit, census.imbalance()), (2, 1, 0));
        assert_eq!(umem.reclaim(), 0);
        assert_eq!(area.reserve().unwrap(), dead, "the place is free again");
    }

    /// A step of a history of frames: see `change`.
    fn a_change() -> impl Strategy<Value = (u8, u32)> {
        (0u8..8, 0u32..40)
    }

    /// Changes an owner as rings do: frames are taken, passed, come back and are freed; sockets
    /// close, and the kernel lets go of their frames.
    fn change(umem: &mut Umem, slots: [usize; 3], (kind, frame): (u8, u32)) {
        let (area, slot) = (Arc::clone(umem.area()), slots[frame as usize % 3]);
        let [receive, transmit] = [Owner::receive(slot), Owner::transmit(slot)];
        match kind {
            0 => _ = umem.take(),
            1 => _ = umem.take_for(receive),
            2 => _ = umem.pass(frame, transmit),
            // SAFETY: no kernel has any frame of this memory. Threat: none.
            3 => _ = unsafe { umem.obtain(frame, receive) },
            // SAFETY: see above. Threat: none.
            4 => _ = unsafe { umem.free_of(frame, transmit) },
            5 if umem.owners[frame as usize] == Owner::OUTSIDE => umem.give(frame),
            6 if frame == 3 => close(&area, slots[0]),
            7 if frame == 3 => {
                release(&area, QUEUE, u64::MAX);
                umem.reclaim();
            }
            _ => {}
        }
    }

    proptest! {
        /// Oracle: the count at once.
        #[test]
        fn a_census_in_parts_is_the_count_of_its_last_moment(
            before in prop::collection::vec(a_change(), 0..200),
            parts in prop::collection::vec(
                (prop_oneof![Just(1usize), Just(39), Just(40), 2usize..12],
                 prop::collection::vec(a_change(), 0..30)),
                1..60,
            ),
        ) {
            let mut umem = Umem::new(40).unwrap();
            let area = Arc::clone(umem.area());
            let slots = [(); 3].map(|()| area.reserve().unwrap());
            before.into_iter().for_each(|step| change(&mut umem, slots, step));
            umem.begin_census();
            let (mut counted, mut finished) = (0, 0);
            for (step, changes) in parts {
                changes.into_iter().for_each(|step| change(&mut umem, slots, step));
                counted += step;
                let census = umem.go_on_with_census(step);
                prop_assert_eq!(census.is_some(), counted >= 40);
                if let Some(census) = census {
                    prop_assert_eq!(census, umem.census());
                    prop_assert_eq!(census.imbalance(), 0);
                    (counted, finished) = (0, finished + 1);
                    // Every third is abandoned on its way, before the next begins.
                    umem.begin_census();
                    if finished % 3 == 0 {
                        umem.go_on_with_census(7);
                        umem.begin_census();
                    }
                }
            }
        }
    }

    #[test]
    fn a_socket_that_is_bound_to_the_queue_proves_that_the_one_before_is_gone() {
        let mut umem = Umem::new(3).unwrap();
        let area = Arc::clone(umem.area());
        let (first, second) = (area.reserve().unwrap(), area.reserve().unwrap());
        umem.take_for(Owner::receive(first)).unwrap();
        umem.take_for(Owner::transmit(first)).unwrap();
        let began_before = quarantine::next_order();
        close(&area, first);
        let bound = |order| BoundSocket { fd: 0, queue: QUEUE, order };
        bind(&area, second, bound(began_before));
        assert_eq!(umem.reclaim(), 0, "it is not known which came first");
        bind(&area, second, bound(quarantine::next_order()));
        assert_eq!(umem.reclaim(), 2);
        assert_eq!((umem.census().free, umem.census().imbalance()), (3, 0));
    }

    #[test]
    fn a_socket_of_another_memory_on_the_queue_is_a_proof_only_if_it_is_the_later_one() {
        let (mut one, two) = (Umem::new(2).unwrap(), Umem::new(2).unwrap());
        let areas = [one.area().clone(), two.area().clone()];
        let (dead, alive) = (areas[0].reserve().unwrap(), areas[1].reserve().unwrap());
        one.take_for(Owner::receive(dead)).unwrap();
        let early = BoundSocket { fd: 0, queue: QUEUE, order: quarantine::next_order() };
        close(&areas[0], dead);
        bind(&areas[1], alive, early);
        assert_eq!((crate::release_quarantined(&areas), one.reclaim()), (1, 0));
        let late = BoundSocket { order: quarantine::next_order(), ..early };
        bind(&areas[1], alive, late);
        assert_eq!((crate::release_quarantined(&areas), one.reclaim()), (0, 1));
    }

    #[test]
    fn a_starved_memory_reclaims_by_itself() {
        let mut umem = Umem::new(1).unwrap();
        let area = Arc::clone(umem.area());
        let slot = area.reserve().unwrap();
        umem.take_for(Owner::receive(slot)).unwrap();
        assert_eq!(umem.take(), None);
        close(&area, slot);
        assert_eq!(umem.take(), None, "in quarantine");
        release(&area, QUEUE, u64::MAX);
        assert_eq!(umem.take(), Some(0));
    }

    #[test]
    fn a_memory_without_frames_or_with_too_many_is_refused() {
        for frames in [0, MAX_FRAMES + 1, u32::MAX] {
            let fault = OptionFault::Frames { frames, maximum: MAX_FRAMES };
            assert!(matches!(Umem::new(frames), Err(XskError::Option(f)) if f == fault));
        }
    }

    #[test]
    fn packets_fit_only_inside_their_frame() {
        let packet = |offset, length| Packet { frame: 0, offset, length };
        for (size, bytes) in [(FrameSize::Half, 2048), (FrameSize::Page, 4096)] {
            for (offset, length) in [(0, bytes), (bytes - 1, 1), (256, bytes - 256)] {
                assert!(packet(offset, length).fits(size), "{offset} {length}");
            }
            let beyond = [(256, 0), (0, bytes + 1), (bytes, 1), (256, bytes - 255)];
            for (offset, length) in beyond.into_iter().chain([(u32::MAX, 2), (1, u32::MAX)]) {
                assert!(!packet(offset, length).fits(size), "{offset} {length}");
            }
        }
    }
}
