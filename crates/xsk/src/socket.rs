//! A socket: opened by any thread, then worked by the one that owns the frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::owner::Owner;
use crate::quarantine::{self, Queue};
use crate::ring::{Consumer, Producer};
use crate::system::{self, Mapping, XdpSocket};
use crate::umem::{BoundSocket, OwnerChange, Spacing};
use crate::{Area, OptionFault, Packet, Umem, XskError};

/// Least and most entries of a ring.
const RING: std::ops::RangeInclusive<u32> = 64..=32768;

/// First and longest pause between two tries to bind a busy queue.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];

/// An address that lies in no memory.
const NOWHERE: u64 = u64::MAX;

/// The way of packets between the driver's memory and the UMEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// The kernel copies each packet: any driver.
    Copy,
    /// The driver works on our frames.
    ZeroCopy,
}

/// Options of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Entries of the rx and fill rings each, a power of two between 64 and 32768.
    pub receive_ring: u32,
    /// Entries of the tx and completion rings each, likewise. As many frames at most wait for
    /// transmission.
    pub transmit_ring: u32,
    /// Frames that this socket may hold for receiving, at most `receive_ring`.
    pub receive_frames: u32,
    /// `None`: the kernel chooses, zero-copy if the driver can and frames are aligned. A socket
    /// that shares registered memory follows the one that registered it.
    pub transfer: Option<Transfer>,
    /// Time to retry while the queue is busy: the kernel frees a closed socket's queue late.
    pub busy_retry: Duration,
}

impl Default for Options {
    /// Rings of 2048 entries, as many receive frames, the kernel's choice, 2 s of retries.
    fn default() -> Options {
        Options {
            receive_ring: 2048,
            transmit_ring: 2048,
            receive_frames: 2048,
            transfer: None,
            busy_retry: Duration::from_secs(2),
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), OptionFault> {
        for ring in [self.receive_ring, self.transmit_ring] {
            if !ring.is_power_of_two() || !RING.contains(&ring) {
                return Err(OptionFault::Ring(ring));
            }
        }
        if self.receive_frames > self.receive_ring {
            let (frames, ring) = (self.receive_frames, self.receive_ring);
            return Err(OptionFault::ReceiveFrames { frames, ring });
        }
        Ok(())
    }
}

/// The kernel's counters of a socket (`XDP_STATISTICS`), in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelStatistics {
    /// Redirected here and dropped: no frame was in the fill ring, or the packet was too long for
    /// one.
    pub rx_dropped: u64,
    /// Fill entries refused.
    pub rx_invalid_descs: u64,
    /// Tx entries refused.
    pub tx_invalid_descs: u64,
    /// Dropped because the rx ring was full.
    pub rx_ring_full: u64,
    /// Packets that found the fill ring empty, the worker being too slow for its quota; all of
    /// them are among `rx_dropped` too.
    pub rx_fill_ring_empty_descs: u64,
    /// Times the kernel found the tx ring empty; no loss.
    pub tx_ring_empty_descs: u64,
}

impl KernelStatistics {
    /// Packets that were redirected to the socket and never came out of its rx ring. Until the
    /// ring is empty: redirected = received + invalid + lost + those in the ring.
    pub const fn lost(&self) -> u64 {
        self.rx_dropped + self.rx_ring_full
    }
}

/// Counters of a socket that this crate keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets received.
    pub received: u64,
    /// Packets put into the tx ring.
    pub sent: u64,
    /// Frames that came back by the completion ring.
    pub completed: u64,
    /// Packets not accepted because the tx ring, or the quota, was full.
    pub tx_full: u64,
    /// Packets offered that no ring can carry (empty, or beyond their frame) or whose frame was
    /// not the caller's. Never sent; a bug of the caller.
    pub tx_refused: u64,
    /// System calls to transmit.
    pub kicks: u64,
    /// Calls of `kicks` that the kernel refused for now (no room in the driver).
    pub kicks_again: u64,
    /// Calls of `kicks` that the kernel refused because the netdev is down or gone.
    pub kicks_down: u64,
    /// System calls to wake a driver that waits for fill entries.
    pub wakeups: u64,
    /// Entries of the rx ring that were no packet in a frame of this socket.
    pub rx_invalid: u64,
    /// Entries of the completion ring that were no frame of this socket.
    pub completion_invalid: u64,
    /// Received packets that were in the rx ring when the socket was closed.
    pub rx_abandoned: u64,
    /// Packets in the tx ring when the socket was closed: accepted, never sent.
    pub tx_abandoned: u64,
    /// Ring counters that no ring can reach.
    pub impossible: u64,
}

/// Statistics of a socket: this crate's and the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// The kernel's counters.
    pub kernel: KernelStatistics,
    /// Counters that this crate keeps.
    pub own: Counters,
}

/// Frames that a socket holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldFrames {
    /// Frames in the fill and rx rings.
    pub receive: u32,
    /// Frames in the tx and completion rings, or on their way.
    pub transmit: u32,
}

/// An AF_XDP socket bound to one queue of one netdev.
///
/// Dropping it closes it, as [`Socket::close`] does; its frames are in quarantine until the kernel
/// is proven to have let go of them (`quarantine.rs`). Nobody should have a copy of its descriptor
/// then: the kernel keeps a socket, its queue and its place in an XSKMAP until the last copy is
/// closed.
pub struct Socket {
    /// `None` only while being dropped.
    fd: Option<XdpSocket>,
    area: Arc<Area>,
    slot: usize,
    ifindex: u32,
    queue: u32,
    transfer: Transfer,
    fill: Producer<u64>,
    receive: Consumer<libc::xdp_desc>,
    transmit: Producer<libc::xdp_desc>,
    completion: Consumer<u64>,
    receive_quota: u32,
    transmit_quota: u32,
    held: HeldFrames,
    own: Counters,
}

/// A refusal of one try to open.
enum OpenRefusal {
    /// The queue is taken; it may be free soon.
    Busy,
    For(XskError),
}

impl From<XskError> for OpenRefusal {
    fn from(error: XskError) -> OpenRefusal {
        OpenRefusal::For(error)
    }
}

impl Socket {
    /// Opens a socket on a queue. It holds no frames and receives nothing until
    /// [`Socket::start`]. May sleep up to [`Options::busy_retry`]; meant for a control thread.
    ///
    /// # Errors
    /// All of [`XskError`] but the memory's; [`XskError::Busy`] after the retries.
    pub fn open(
        area: &Arc<Area>,
        ifindex: u32,
        queue: u32,
        options: &Options,
    ) -> Result<Socket, XskError> {
        options.check()?;
        let begun = Instant::now();
        let mut pause = PAUSE[0];
        loop {
            match Socket::attempt(area, ifindex, queue, options) {
                Ok(socket) => return Ok(socket),
                Err(OpenRefusal::For(error)) => return Err(error),
                Err(OpenRefusal::Busy) if begun.elapsed() >= options.busy_retry => {
                    return Err(XskError::Busy { ifindex, queue, waited: begun.elapsed() });
                }
                Err(OpenRefusal::Busy) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(PAUSE[1]);
        }
    }

    /// One try, with a socket of its own: what was set on it cannot be taken back.
    fn attempt(
        area: &Arc<Area>,
        ifindex: u32,
        queue: u32,
        options: &Options,
    ) -> Result<Socket, OpenRefusal> {
        let fd = system::socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => XskError::NotPermitted,
            Some(libc::EAFNOSUPPORT) => XskError::NoAfXdp,
            _ => XskError::System { call: "socket(AF_XDP)", source: error },
        })?;
        let rings = Rings::map(&fd, options)?;
        let slot = area.reserve()?;
        let number = fd.as_fd().as_raw_fd();
        let order = quarantine::next_order();
        let bound = BoundSocket { fd: number, queue: Queue { ifindex, number: queue }, order };
        // From here on until the socket is entered no other can be closed: their descriptors,
        // which are passed to the kernel as numbers, stay what they are.
        let mut registry = area.registry();
        let others: Vec<_> = registry.others(bound.queue).collect();
        // SAFETY: `others` are bound with the area's memory and open while the list is locked; only
        // frames of the area with this socket's tags go into its rings (`assert_mine`). Threat: the
        // kernel writes into frames that somebody uses.
        match unsafe { bind(&fd, area, &others, bound, options) } {
            // SAFETY: the slot was reserved above, the binding began after `order` and succeeded,
            // and `others` are on other queues. Threat: frames freed while a driver has them.
            Ok(()) => unsafe { registry.bound(area, slot, bound) },
            Err(refused) => {
                // SAFETY: no frame was ever given to a socket that is not bound. Threat: a frame
                // freed by the next socket with these tags.
                unsafe { registry.vacate(slot) };
                return Err(refused);
            }
        }
        drop(registry);
        let flags = system::options(&fd);
        let zero_copy = flags.is_ok_and(|flags| flags & libc::XDP_OPTIONS_ZEROCOPY != 0);
        Ok(Socket {
            fd: Some(fd),
            area: Arc::clone(area),
            slot,
            ifindex,
            queue,
            transfer: if zero_copy { Transfer::ZeroCopy } else { Transfer::Copy },
            fill: rings.fill,
            receive: rings.receive,
            transmit: rings.transmit,
            completion: rings.completion,
            receive_quota: options.receive_frames,
            transmit_quota: options.transmit_ring,
            held: HeldFrames::default(),
            own: Counters::default(),
        })
    }

    /// Index of the netdev it is bound to.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The queue it is bound to.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns the way of packets between the driver's memory and the UMEM.
    pub fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// Another descriptor of the socket, to enter it in an XSKMAP after it has gone to its worker.
    /// Close it before the socket is closed.
    ///
    /// # Errors
    /// [`XskError::System`]: no descriptor is left.
    pub fn try_clone_fd(&self) -> Result<OwnedFd, XskError> {
        self.as_fd().try_clone_to_owned().map_err(XskError::system("dup"))
    }

    /// Frames that the socket holds.
    pub fn held(&self) -> HeldFrames {
        self.held
    }

    /// Gives the kernel frames to receive into, up to the quota, and returns how many more it
    /// got. [`Socket::receive`] keeps it there.
    ///
    /// # Panics
    /// Here and in all that takes a [`Umem`]: if it is not the one the socket was opened on.
    pub fn start(&mut self, umem: &mut Umem) -> usize {
        self.assert_mine(umem);
        // SAFETY: `umem` is the socket's. Threat: as `refill` says.
        unsafe { self.refill(umem) }
    }

    /// Takes up to `limit` received packets, hands each with its frame to `sink`, gives the
    /// kernel as many new frames, and returns how many packets there were.
    pub fn receive(
        &mut self,
        umem: &mut Umem,
        limit: usize,
        mut sink: impl FnMut(&mut Umem, Packet),
    ) -> usize {
        self.assert_mine(umem);
        let (mut taken, mut received) = (0, 0);
        while taken < limit {
            let Some(entry) = self.receive.pop() else { break };
            taken += 1;
            // SAFETY: `umem` is the socket's, and the entry is from its rx ring. Threat: as
            // `accept` says.
            if let Some(packet) = unsafe { self.accept(umem, &entry) } {
                received += 1;
                sink(umem, packet);
            }
        }
        if taken > 0 {
            self.receive.release();
            self.own.received += received as u64;
        }
        if self.held.receive < self.receive_quota {
            // SAFETY: `umem` is the socket's. Threat: as `refill` says.
            unsafe { self.refill(umem) };
        }
        received
    }

    /// Puts packets into the tx ring until it, or the quota, is full; takes what has been sent
    /// out of the completion ring first. Returns how many were accepted: their frames are the
    /// socket's. They leave with the next [`Socket::kick`].
    ///
    /// A packet that no ring can carry is accepted, not sent, and counted (`tx_refused`).
    pub fn transmit(
        &mut self,
        umem: &mut Umem,
        mut packets: impl Iterator<Item = Packet>,
    ) -> usize {
        self.complete(umem);
        let (owner, layout) = (Owner::transmit(self.slot), self.area.layout());
        let (mut accepted, mut pushed) = (0, 0_u32);
        while let Some(packet) = packets.next() {
            if self.held.transmit >= self.transmit_quota || self.transmit.free(1) == 0 {
                self.own.tx_full += 1 + packets.count() as u64;
                break;
            }
            accepted += 1;
            if umem.pass(packet.frame, owner) == OwnerChange::NotTheOwner {
                self.own.tx_refused += 1;
                continue;
            }
            if !packet.fits(layout.size) {
                self.own.tx_refused += 1;
                // SAFETY: it was passed just now and no ring names it. Threat: none.
                let _freed = unsafe { umem.free_of(packet.frame, owner) };
                continue;
            }
            let addr = layout.address(packet.frame, packet.offset);
            let entry = libc::xdp_desc { addr, len: packet.length, options: 0 };
            // SAFETY: the frame is of this socket's memory (`complete` asserts it) and has its tag,
            // so that `Umem` lends its bytes to nobody. Threat: a packet sent while it is written.
            unsafe { self.transmit.push(entry) };
            self.held.transmit += 1;
            pushed += 1;
        }
        if pushed > 0 {
            self.transmit.submit();
            self.own.sent += u64::from(pushed);
        }
        accepted
    }

    /// Makes the kernel send the packets in the tx ring, and returns how many are left: the driver
    /// has no room, or the netdev is down. No packet is lost; call it again later.
    pub fn kick(&mut self) -> u32 {
        let mut pending = self.transmit.pending();
        while pending > 0 && self.transmit.needs_wakeup() {
            self.own.kicks += 1;
            let result = system::wake_transmit(self.fd());
            let before = std::mem::replace(&mut pending, self.transmit.pending());
            match result.map_err(|error| error.raw_os_error()) {
                Ok(()) => {}
                Err(Some(libc::EINTR)) => continue,
                Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) => self.own.kicks_again += 1,
                Err(_) => {
                    self.own.kicks_down += 1;
                    break;
                }
            }
            if pending >= before {
                break;
            }
        }
        pending
    }

    /// Frees the frames of packets that have left. Returns how many.
    pub fn complete(&mut self, umem: &mut Umem) -> usize {
        self.assert_mine(umem);
        if self.held.transmit == 0 {
            return 0;
        }
        let (mut taken, mut freed) = (0, 0);
        // A ring that always has one more must not hold the worker.
        while taken < self.transmit_quota {
            let Some(address) = self.completion.pop() else { break };
            taken += 1;
            let frame = self.area.layout().place(address).0;
            // SAFETY: the completion ring handed it back. Threat: a frame that is used again while
            // the driver still sends it.
            if unsafe { umem.free_of(frame, Owner::transmit(self.slot)) } == OwnerChange::Done {
                freed += 1;
            } else {
                self.own.completion_invalid += 1;
            }
        }
        if taken > 0 {
            self.completion.release();
            self.held.transmit -= freed;
            self.own.completed += u64::from(freed);
        }
        freed as usize
    }

    /// Packets in the tx ring that the kernel has not taken.
    pub fn pending_tx(&mut self) -> u32 {
        self.transmit.pending()
    }

    /// Returns both sets of counters. Cost: a system call.
    pub fn statistics(&self) -> Statistics {
        let kernel = system::statistics(self.fd()).map_or_else(
            |_| KernelStatistics::default(),
            |kernel| KernelStatistics {
                rx_dropped: kernel.rx_dropped,
                rx_invalid_descs: kernel.rx_invalid_descs,
                tx_invalid_descs: kernel.tx_invalid_descs,
                rx_ring_full: kernel.rx_ring_full,
                rx_fill_ring_empty_descs: kernel.rx_fill_ring_empty_descs,
                tx_ring_empty_descs: kernel.tx_ring_empty_descs,
            },
        );
        Statistics { kernel, own: self.counters() }
    }

    /// Returns this crate's counters. No system call.
    pub fn counters(&self) -> Counters {
        let impossible = self.fill.impossible()
            + self.receive.impossible()
            + self.transmit.impossible()
            + self.completion.impossible();
        Counters { impossible, ..self.own }
    }

    /// Closes the socket. What waits in its rings is lost and counted; to lose no received packet
    /// uncounted, take it out of the XSKMAP first. Its frames are in quarantine.
    pub fn close(mut self, umem: &mut Umem) -> Statistics {
        self.complete(umem);
        self.own.tx_abandoned = self.transmit.pending().into();
        self.own.rx_abandoned = self.receive.waiting().into();
        let statistics = self.statistics();
        drop(self);
        statistics
    }

    /// Checks a received entry and takes its frame over. What the kernel should never say is
    /// counted; a frame that is certainly this socket's is freed.
    ///
    /// # Safety
    /// The entry came out of this socket's rx ring just now, and `umem` is the socket's. Else a
    /// frame is read, or free, that the kernel still writes into.
    unsafe fn accept(&mut self, umem: &mut Umem, entry: &libc::xdp_desc) -> Option<Packet> {
        let layout = self.area.layout();
        let (frame, offset) = layout.place(entry.addr);
        let packet = Packet { frame, offset, length: entry.len };
        let owner = Owner::receive(self.slot);
        if !packet.fits(layout.size) || entry.options & libc::XDP_PKT_CONTD != 0 {
            self.own.rx_invalid += 1;
            // SAFETY: the rx ring handed it back. Threat: a frame in use that the kernel writes
            // into.
            if unsafe { umem.free_of(frame, owner) } == OwnerChange::Done {
                self.held.receive -= 1;
            }
            return None;
        }
        // SAFETY: the rx ring handed it back. Threat: a packet that changes while it is read.
        if unsafe { umem.obtain(frame, owner) } == OwnerChange::NotTheOwner {
            self.own.rx_invalid += 1;
            return None;
        }
        self.held.receive -= 1;
        Some(packet)
    }

    /// Fills the fill ring up to the quota, as far as frames are free.
    ///
    /// # Safety
    /// `umem` is the socket's. Else the kernel writes into frames of the same numbers that somebody
    /// uses.
    unsafe fn refill(&mut self, umem: &mut Umem) -> usize {
        let wanted = self.receive_quota - self.held.receive;
        let room = self.fill.free(wanted).min(wanted);
        let mut given = 0;
        while given < room {
            let Some(frame) = umem.take_for(Owner::receive(self.slot)) else { break };
            let address = self.area.layout().address(frame, 0);
            // SAFETY: the frame is of this socket's memory and has its tag, so that `Umem` lends
            // its bytes to nobody. Threat: the kernel writes into a packet that is in use.
            unsafe { self.fill.push(address) };
            given += 1;
        }
        if given > 0 {
            self.fill.submit();
            self.held.receive += given;
        }
        if self.fill.needs_wakeup() {
            self.own.wakeups += 1;
            // Refused (the netdev is down): there is nothing to wake; the next call tries again.
            let _: io::Result<()> = system::wake_receive(self.fd());
        }
        given as usize
    }

    fn fd(&self) -> &XdpSocket {
        self.fd.as_ref().expect("the descriptor is there until the socket is dropped")
    }

    fn bound_queue(&self) -> Queue {
        Queue { ifindex: self.ifindex, number: self.queue }
    }

    fn assert_mine(&self, umem: &Umem) {
        assert!(Arc::ptr_eq(&self.area, umem.area()), "the socket belongs to another memory");
    }

    /// Overwrites what the kernel has not taken out of the fill and tx rings by addresses that no
    /// memory has: should the socket outlive its closing (a child process between fork and exec has
    /// a copy of the descriptor), what arrives finds no frame and is dropped, and nothing is sent.
    fn take_back(&mut self) {
        // SAFETY: the address lies in no memory. Threat: the kernel writes into a frame of that
        // address.
        unsafe { self.fill.overwrite(NOWHERE) };
        let nothing = libc::xdp_desc { addr: NOWHERE, len: 0, options: 0 };
        // SAFETY: as above. Threat: the kernel sends a frame of that address.
        unsafe { self.transmit.overwrite(nothing) };
    }
}

impl AsFd for Socket {
    /// Returns the descriptor to poll and to enter in an XSKMAP.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.take_back();
        let area = Arc::clone(&self.area);
        let mut registry = area.registry();
        // Closed under the lock: nobody may share the memory by a number that means another file.
        self.fd = None;
        match self.held == HeldFrames::default() {
            // SAFETY: what the socket holds is counted with every tag, and it is none. Threat: a
            // frame freed by the next socket with these tags.
            true => unsafe { registry.vacate(self.slot) },
            // SAFETY: the descriptor was closed above, and the queue is what it was bound to.
            // Threat: frames freed by a proof about another queue.
            false => unsafe { registry.closed(self.slot, self.bound_queue()) },
        }
    }
}

/// The four rings of a socket.
struct Rings {
    fill: Producer<u64>,
    receive: Consumer<libc::xdp_desc>,
    transmit: Producer<libc::xdp_desc>,
    completion: Consumer<u64>,
}

impl Rings {
    /// Sizes the rings and maps them.
    fn map(socket: &XdpSocket, options: &Options) -> Result<Rings, XskError> {
        let (rx, tx) = (options.receive_ring, options.transmit_ring);
        let set = |ring, entries, call| {
            system::set_ring(socket, ring, entries).map_err(XskError::system(call))
        };
        set(libc::XDP_UMEM_FILL_RING, rx, "setsockopt(XDP_UMEM_FILL_RING)")?;
        set(libc::XDP_UMEM_COMPLETION_RING, tx, "setsockopt(XDP_UMEM_COMPLETION_RING)")?;
        set(libc::XDP_RX_RING, rx, "setsockopt(XDP_RX_RING)")?;
        set(libc::XDP_TX_RING, tx, "setsockopt(XDP_TX_RING)")?;
        let offsets = system::ring_offsets(socket)
            .map_err(XskError::system("getsockopt(XDP_MMAP_OFFSETS)"))?;
        let map = |entries: u32, bytes: usize, start: usize, page_offset: i64| {
            let length = start.saturating_add(entries as usize * bytes);
            Mapping::ring(socket, length, page_offset).map_err(XskError::system("mmap of a ring"))
        };
        let (descriptor, address) = (size_of::<libc::xdp_desc>(), size_of::<u64>());
        let fill = map(rx, address, offsets.fill.entries, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?;
        let completion = map(
            tx,
            address,
            offsets.completion.entries,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
        )?;
        let receive = map(rx, descriptor, offsets.receive.entries, libc::XDP_PGOFF_RX_RING)?;
        let transmit = map(tx, descriptor, offsets.transmit.entries, libc::XDP_PGOFF_TX_RING)?;
        // SAFETY: each ring has the size that was set above and the entries that `if_xdp.h` says,
        // and is mapped this once for a socket that is new. Threat: entries read while the kernel
        // writes them, or the other way round.
        unsafe {
            Ok(Rings {
                fill: Producer::new(fill, offsets.fill, rx),
                receive: Consumer::new(receive, offsets.receive, rx),
                transmit: Producer::new(transmit, offsets.transmit, tx),
                completion: Consumer::new(completion, offsets.completion, tx),
            })
        }
    }
}

/// Binds a socket: shares the memory with one of `others`, or registers it.
///
/// # Safety
/// `others` are sockets that are open and bound with the area's memory, on other queues. The caller
/// answers for the frames of the area that go into the socket's rings, as in [`system::register`].
unsafe fn bind(
    socket: &XdpSocket,
    area: &Area,
    others: &[std::os::fd::RawFd],
    bound: BoundSocket,
    options: &Options,
) -> Result<(), OpenRefusal> {
    let Queue { ifindex, number: queue } = bound.queue;
    for &other in others {
        // SAFETY: the caller answers for `others`. Threat: the kernel writes into another memory.
        let shared = unsafe { system::bind_shared(socket, ifindex, queue, other) };
        match shared.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => return Ok(()),
            // The other's netdev is gone and it is bound no more; or it works without copies
            // and this netdev cannot.
            Err((Some(libc::EBADF | libc::EOPNOTSUPP), _)) => {}
            Err((_, error)) => return Err(refused(error, ifindex, queue)),
        }
    }
    // SAFETY: the caller answers for the frames. Threat: the kernel writes into frames in use.
    let registered = unsafe { system::register(socket, area.memory(), area.layout()) };
    registered.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOBUFS) => XskError::MemoryLock { bytes: area.memory().length() },
        _ => XskError::System { call: "setsockopt(XDP_UMEM_REG)", source: error },
    })?;
    let transfer = match options.transfer {
        Some(Transfer::Copy) => libc::XDP_COPY,
        Some(Transfer::ZeroCopy) if area.layout().spacing == Spacing::Staggered => {
            return Err(OpenRefusal::For(XskError::NotSupported { ifindex, queue }));
        }
        Some(Transfer::ZeroCopy) => libc::XDP_ZEROCOPY,
        // A driver cannot work on frames that lie across pages.
        None if area.layout().spacing == Spacing::Staggered => libc::XDP_COPY,
        None => 0,
    };
    system::bind(socket, ifindex, queue, libc::XDP_USE_NEED_WAKEUP | transfer)
        .map_err(|error| refused(error, ifindex, queue))
}

/// Translates a refusal to bind.
fn refused(error: io::Error, ifindex: u32, queue: u32) -> OpenRefusal {
    OpenRefusal::For(match error.raw_os_error() {
        Some(libc::EBUSY) => return OpenRefusal::Busy,
        Some(libc::ENODEV) => XskError::NoDevice { ifindex },
        Some(libc::ENETDOWN) => XskError::DeviceDown { ifindex },
        Some(libc::EINVAL) => XskError::NoQueue { ifindex, queue },
        Some(libc::EOPNOTSUPP) => XskError::NotSupported { ifindex, queue },
        Some(libc::EPERM | libc::EACCES) => XskError::NotPermitted,
        _ => XskError::System { call: "bind(AF_XDP)", source: error },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::RingOffsets;

    const OFFSETS: RingOffsets =
        RingOffsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
    const RING: u32 = 64;
    const QUEUE: Queue = Queue { ifindex: 1, number: 0 };

    /// A kernel that does as it likes: the other ends of a socket's rings.
    struct Kernel {
        fill: Consumer<u64>,
        receive: Producer<libc::xdp_desc>,
        transmit: Consumer<libc::xdp_desc>,
        completion: Producer<u64>,
    }

    /// A socket of the memory over plain memory instead of a kernel's rings; its system calls
    /// fail.
    fn socket(umem: &Umem) -> (Socket, Kernel) {
        let ring = || Mapping::anonymous(4096).unwrap();
        let (fill, receive, transmit, completion) = (ring(), ring(), ring(), ring());
        // SAFETY: each mapping has room for a ring of this type, of which this is one of two ends.
        // Threat: none; one thread has both.
        let kernel = unsafe {
            Kernel {
                fill: Consumer::new(fill.alias(), OFFSETS, RING),
                receive: Producer::new(receive.alias(), OFFSETS, RING),
                transmit: Consumer::new(transmit.alias(), OFFSETS, RING),
                completion: Producer::new(completion.alias(), OFFSETS, RING),
            }
        };
        // SAFETY: as above, and these are the other ends. Threat: as above.
        let rings = unsafe {
            Rings {
                fill: Producer::new(fill, OFFSETS, RING),
                receive: Consumer::new(receive, OFFSETS, RING),
                transmit: Producer::new(transmit, OFFSETS, RING),
                completion: Consumer::new(completion, OFFSETS, RING),
            }
        };
        let socket = Socket {
            fd: Some(XdpSocket::that_fails()),
            area: Arc::clone(umem.area()),
            slot: umem.area().reserve().unwrap(),
            ifindex: 1,
            queue: 0,
            transfer: Transfer::Copy,
            fill: rings.fill,
            receive: rings.receive,
            transmit: rings.transmit,
            completion: rings.completion,
            receive_quota: 40,
            transmit_quota: RING,
            held: HeldFrames::default(),
            own: Counters::default(),
        };
        (socket, kernel)
    }

    impl Kernel {
        /// Hands a packet over.
        fn receives(&mut self, entry: libc::xdp_desc) -> bool {
            // SAFETY: the other end of the ring takes nothing on trust. Threat: none.
            unsafe { self.receive.push(entry) }
        }

        /// Hands a sent frame back.
        fn completes(&mut self, address: u64) -> bool {
            // SAFETY: as above. Threat: none.
            unsafe { self.completion.push(address) }
        }
    }

    /// Frees the frames of closed sockets.
    fn lets_go(umem: &Umem) {
        // SAFETY: no test's kernel has a frame any more. Threat: none.
        unsafe { umem.area().release(QUEUE, u64::MAX) };
    }

    fn entry(addr: u64, len: u32) -> libc::xdp_desc {
        libc::xdp_desc { addr, len, options: 0 }
    }

    #[test]
    fn frames_go_round_through_an_honest_kernel() {
        let mut umem = Umem::new(128).unwrap();
        let (mut socket, mut kernel) = socket(&umem);
        assert_eq!(socket.start(&mut umem), 40);
        let mut packets = Vec::new();
        for round in 0..50 {
            for _ in 0..=round % 40 {
                let frame = kernel.fill.pop().unwrap();
                assert!(kernel.receives(entry(frame + 256, 60)));
            }
            kernel.fill.release();
            kernel.receive.submit();
            let received = socket.receive(&mut umem, 64, |_, packet| packets.push(packet));
            assert_eq!(received, round % 40 + 1);
            assert_eq!(socket.held().receive, 40, "what was taken was filled up");
            assert!(packets.iter().all(|packet| (packet.offset, packet.length) == (256, 60)));
            assert_eq!(socket.transmit(&mut umem, packets.drain(..)), received);
            while let Some(sent) = kernel.transmit.pop() {
                assert!(kernel.completes(sent.addr));
            }
            kernel.transmit.release();
            kernel.completion.submit();
            assert_eq!(umem.census().imbalance(), 0);
        }
        assert_eq!(socket.complete(&mut umem), 10);
        assert_eq!(socket.held(), HeldFrames { receive: 40, transmit: 0 });
        assert_eq!(umem.census().free, 88);
        socket.close(&mut umem);
        assert_eq!((umem.census().free, umem.census().quarantined), (88, 40));
        lets_go(&umem);
        assert_eq!((umem.reclaim(), umem.census().free), (40, 128));
    }

    #[test]
    fn the_frame_that_was_sent_last_is_taken_first() {
        let mut umem = Umem::new(128).unwrap();
        let (mut socket, mut kernel) = socket(&umem);
        let frames: Vec<u32> = (0..40).map(|_| umem.take().unwrap()).collect();
        let packets = frames.iter().map(|frame| Packet { frame: *frame, offset: 256, length: 60 });
        assert_eq!(socket.transmit(&mut umem, packets), 40);
        while let Some(sent) = kernel.transmit.pop() {
            assert!(kernel.completes(sent.addr));
        }
        kernel.completion.submit();
        assert_eq!(socket.complete(&mut umem), 40);
        // The next are the kernel's to receive into.
        assert_eq!(socket.start(&mut umem), 40);
        let filled: Vec<u32> =
            std::iter::from_fn(|| kernel.fill.pop()).map(|at| (at / 4096) as u32).collect();
        assert!(filled.iter().eq(frames.iter().rev()), "{filled:?}");
    }

    /// A kernel without copies takes entries long before it says so, keeps frames as long as it
    /// likes, and goes on after the socket was closed.
    #[test]
    fn no_frame_is_free_that_a_kernel_without_copies_still_has() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..300 {
            let mut umem = Umem::new(128).unwrap();
            let (mut socket, mut kernel) = socket(&umem);
            socket.start(&mut umem);
            let mut hands: Vec<u64> = Vec::new();
            for _ in 0..next(40) {
                let frame = umem.take().unwrap();
                let packet = Packet { frame, offset: 256, length: 60 };
                socket.transmit(&mut umem, std::iter::once(packet));
                while next(3) > 0
                    && let Some(sent) = kernel.transmit.pop()
                {
                    hands.push(sent.addr / 4096);
                }
                while next(3) > 0
                    && let Some(address) = kernel.fill.pop()
                {
                    hands.push(address / 4096);
                }
                // It may or may not publish what it took.
                if next(4) == 0 {
                    kernel.transmit.release();
                    kernel.fill.release();
                }
            }
            drop(socket);
            umem.reclaim();
            let mut taken = Vec::new();
            while let Some(frame) = umem.take() {
                assert!(!hands.contains(&u64::from(frame)), "the kernel has frame {frame}");
                taken.push(frame);
            }
            assert_eq!(umem.census().imbalance(), 0);
            assert_eq!(umem.census().quarantined, 128 - taken.len());
            lets_go(&umem);
            umem.reclaim();
            assert_eq!(umem.census().quarantined, 0);
            assert_eq!(umem.census().free, 128 - taken.len());
        }
    }

    #[test]
    fn received_entries_outside_the_sockets_frames_are_counted_and_go_nowhere() {
        let mut umem = Umem::new(64).unwrap();
        let (mut socket, mut kernel) = socket(&umem);
        let mine = umem.take().unwrap();
        socket.start(&mut umem);
        let own = kernel.fill.pop().unwrap();
        let nobodys = [u64::MAX, 64 * 4096, 64 * 4096 - 1, u64::from(u32::MAX) * 4096 + 5];
        let hostile = nobodys
            .iter()
            .map(|address| entry(*address, 60))
            .chain([entry(u64::from(mine) * 4096 + 256, 60)])
            .chain([entry(own + 256, 0), entry(own + 256, 3841), entry(own, u32::MAX)])
            .chain([libc::xdp_desc { addr: own, len: 60, options: libc::XDP_PKT_CONTD }]);
        let count = hostile.clone().count();
        hostile.for_each(|entry| assert!(kernel.receives(entry)));
        kernel.receive.submit();
        assert_eq!(socket.receive(&mut umem, 64, |_, packet| panic!("{packet:?}")), 0);
        assert_eq!(socket.counters().rx_invalid, count as u64);
        let census = umem.census();
        assert_eq!((census.outside, census.receive, census.imbalance()), (1, 40, 0));
        assert_eq!(socket.held().receive, 40);
    }

    #[test]
    fn completions_of_frames_that_were_not_sent_are_counted_and_free_nothing() {
        let mut umem = Umem::new(64).unwrap();
        let (mut socket, mut kernel) = socket(&umem);
        let frame = umem.take().unwrap();
        let other = umem.take().unwrap();
        let packet = Packet { frame, offset: 256, length: 60 };
        assert_eq!(socket.transmit(&mut umem, [packet].into_iter()), 1);
        let sent = kernel.transmit.pop().unwrap();
        for address in [u64::MAX, u64::from(other) * 4096, 64 * 4096, sent.addr, sent.addr] {
            assert!(kernel.completes(address));
        }
        kernel.completion.submit();
        assert_eq!(socket.complete(&mut umem), 1);
        assert_eq!(socket.held().transmit, 0);
        // With nothing under way nothing is looked for.
        assert_eq!(socket.counters().completion_invalid, 4);
        let census = umem.census();
        assert_eq!((census.outside, census.free, census.imbalance()), (1, 63, 0));
    }

    #[test]
    fn a_kernel_gone_mad_loses_no_frame_and_stops_nothing() {
        // AX-05
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut umem = Umem::new(100).unwrap();
        let (mut socket, mut kernel) = socket(&umem);
        socket.start(&mut umem);
        let mut outside = Vec::new();
        for _ in 0..20_000 {
            for _ in 0..next() % 20 {
                let addr = if next() % 8 == 0 { next() } else { next() % (110 * 4096) };
                let len = if next() % 8 == 0 { next() as u32 } else { next() as u32 % 4200 };
                let options = u32::from(next() % 16 == 0);
                kernel.receives(libc::xdp_desc { addr, len, options });
                kernel.completes(next() % (110 * 4096));
            }
            if next() % 2 == 0 {
                kernel.receive.submit();
                kernel.completion.submit();
            }
            while next() % 4 != 0 && kernel.fill.pop().is_some() {}
            kernel.fill.release();
            while next() % 4 != 0 && kernel.transmit.pop().is_some() {}
            kernel.transmit.release();
            let limit = next() as usize % 70;
            socket.receive(&mut umem, limit, |umem, packet| {
                let end = packet.offset as usize + packet.length as usize;
                assert!(umem.frame(packet.frame).get(packet.offset as usize..end).is_some());
                outside.push(packet);
            });
            let count = next() as usize % (outside.len() + 1);
            let accepted = socket.transmit(&mut umem, outside[..count].iter().copied());
            outside.drain(..accepted);
            while outside.len() > 20 {
                umem.give(outside.pop().unwrap().frame);
            }
            let (census, held) = (umem.census(), socket.held());
            assert_eq!(census.imbalance(), 0);
            assert_eq!(census.outside, outside.len());
            assert_eq!((census.receive, census.transmit), (held.receive as _, held.transmit as _));
            assert!(held.receive <= 40 && held.transmit <= RING);
        }
        assert!(socket.counters().received > 0 && socket.counters().completed > 0);
        outside.into_iter().for_each(|packet| umem.give(packet.frame));
        drop(socket);
        umem.reclaim();
        let census = umem.census();
        assert_eq!((census.free + census.quarantined, census.imbalance()), (100, 0));
    }
}
