//! The system calls of AF_XDP, each wrapped once, and mapped memory.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::umem::{Layout, Spacing};

/// Offsets of a ring's words and entries in its mapping, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingOffsets {
    pub(crate) producer: usize,
    pub(crate) consumer: usize,
    pub(crate) flags: usize,
    pub(crate) entries: usize,
}

impl RingOffsets {
    fn of(offset: &libc::xdp_ring_offset) -> RingOffsets {
        // A kernel value that does not fit is refused where the ring is made.
        let fit = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        RingOffsets {
            producer: fit(offset.producer),
            consumer: fit(offset.consumer),
            flags: fit(offset.flags),
            entries: fit(offset.desc),
        }
    }
}

/// The offsets of a socket's four rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllOffsets {
    pub(crate) receive: RingOffsets,
    pub(crate) transmit: RingOffsets,
    pub(crate) fill: RingOffsets,
    pub(crate) completion: RingOffsets,
}

/// Memory from `mmap`, unmapped when the last clone is gone.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    _unmap: Arc<Unmap>,
}

struct Unmap {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is an address and a length, and belongs to the process, not to a thread.
// Nothing here reads or writes through the address. Threat: none from another thread that drops it.
unsafe impl Send for Unmap {}
// SAFETY: no method changes anything through a shared reference. Threat: two threads that write the
// same field.
unsafe impl Sync for Unmap {}
// SAFETY: as for `Unmap`. Threat: as there.
unsafe impl Send for Mapping {}
// SAFETY: as for `Unmap`. Threat: as there.
unsafe impl Sync for Mapping {}

impl Drop for Unmap {
    fn drop(&mut self) {
        // SAFETY: start and length are those of a successful mmap, this is the only munmap, and the
        // last `Mapping` that could give the address away is gone. Threat: else memory that
        // somebody uses is unmapped, or memory of another owner that the address has by then.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

impl Mapping {
    /// Zeroed memory of the process, page-aligned, not inherited by children: a fork must not
    /// leave the kernel with other pages than ours. Huge pages are asked for.
    pub(crate) fn anonymous(length: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the flags name no address and no file. Threat: as `Mapping::map` says.
        let mapping = unsafe { Mapping::map(length, flags, -1, 0) }?;
        for advice in [libc::MADV_DONTFORK, libc::MADV_HUGEPAGE] {
            // SAFETY: the range is exactly the mapping made above, and neither advice changes its
            // contents. Threat: advice such as MADV_DONTNEED would empty memory that is in use.
            unsafe { libc::madvise(mapping.start.as_ptr().cast(), length, advice) };
        }
        Ok(mapping)
    }

    /// One ring of a socket; `page_offset` says which.
    pub(crate) fn ring(socket: &XdpSocket, length: usize, page_offset: i64) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the flags name no address, and the descriptor is an AF_XDP socket, of which the
        // kernel maps whole rings only. Threat: as `Mapping::map` says.
        unsafe { Mapping::map(length, flags, socket.0.as_raw_fd(), page_offset) }
    }

    /// Maps memory of a file, or of none (`fd` is -1).
    ///
    /// # Safety
    /// The flags do not have `MAP_FIXED`, which would replace what the address holds. A file never
    /// gets shorter than the mapping: every access behind its end is a SIGBUS.
    unsafe fn map(length: usize, flags: c_int, fd: RawFd, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, as the caller promises. Threat: else it replaces
        // memory that is in use.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length, _unmap: Arc::new(Unmap { start, length }) })
    }

    /// Another handle of the same memory.
    #[cfg(test)]
    pub(crate) fn alias(&self) -> Mapping {
        Mapping { start: self.start, length: self.length, _unmap: Arc::clone(&self._unmap) }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

/// A descriptor that is an AF_XDP socket: nothing else makes one than [`socket`].
pub(crate) struct XdpSocket(OwnedFd);

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
impl XdpSocket {
    /// A descriptor whose system calls fail.
    pub(crate) fn that_fails() -> XdpSocket {
        XdpSocket(std::fs::File::open("/dev/null").expect("/dev/null").into())
    }
}

/// Opens an AF_XDP socket, bound to nothing.
pub(crate) fn socket() -> io::Result<XdpSocket> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers. Threat: none; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was opened just now, so nobody else has it. Threat: two owners, of which the
    // second closes a descriptor that means another file by then.
    Ok(XdpSocket(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Plain data of the kernel's interface.
///
/// # Safety
/// Any bytes are a value, all zeros too: integers, and structures of nothing but integers. A value
/// that the kernel wrote is else no value of the type.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer. Threat: as `Plain` says.
unsafe impl Plain for u32 {}
// SAFETY: an integer. Threat: as `Plain` says.
unsafe impl Plain for u64 {}
// SAFETY: integers only. Threat: as `Plain` says.
unsafe impl Plain for libc::xdp_desc {}
// SAFETY: integers only. Threat: as `Plain` says.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: integers only. Threat: as `Plain` says.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: integers only. Threat: as `Plain` says.
unsafe impl Plain for libc::xdp_options {}

/// Sets an option of a socket.
///
/// # Safety
/// If the option makes the kernel write to an address in `value`, as `XDP_UMEM_REG` does, the
/// caller keeps the promise of [`register`].
unsafe fn set<T>(socket: &XdpSocket, option: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `value` points to `length` readable bytes for the whole call. Threat: else the kernel
    // takes other bytes of ours for the option.
    let result =
        unsafe { libc::setsockopt(socket.0.as_raw_fd(), libc::SOL_XDP, option, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option; what an older kernel does not fill stays zero. Returns the bytes it wrote.
fn get<T: Plain>(socket: &XdpSocket, option: c_int) -> io::Result<(T, usize)> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: all zeros are a value of every `Plain` type. Threat: a value that its type does not
    // have.
    let mut value: T = unsafe { std::mem::zeroed() };
    let target = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `target` points to `length` writable bytes, and any bytes are a value of a `Plain`
    // type. Threat: else the kernel writes over what lies behind the value.
    let result = unsafe {
        libc::getsockopt(socket.0.as_raw_fd(), libc::SOL_XDP, option, target, &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((value, length as usize)) }
}

/// Sets the number of entries of a ring (`XDP_RX_RING` and its three sisters).
pub(crate) fn set_ring(socket: &XdpSocket, ring: c_int, entries: u32) -> io::Result<()> {
    // SAFETY: a number; it names no memory. Threat: none.
    unsafe { set(socket, ring, &entries) }
}

/// Registers memory as the socket's UMEM: it is pinned, and charged to RLIMIT_MEMLOCK unless the
/// process has CAP_IPC_LOCK.
///
/// # Safety
/// From now on the kernel writes packets into every chunk of `memory` that a fill ring of this
/// socket names, or of a socket that shares its memory, until it has let go of them. Nobody else
/// may read or write such a chunk in the meantime. The mapping itself may go: the pages are pinned.
pub(crate) unsafe fn register(
    socket: &XdpSocket,
    memory: &Mapping,
    layout: Layout,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.start() as u64,
        len: memory.length() as u64,
        chunk_size: layout.size.bytes() as u32,
        headroom: 0,
        flags: match layout.spacing {
            Spacing::Aligned => 0,
            Spacing::Staggered => libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
        },
        tx_metadata_len: 0,
    };
    // SAFETY: the address and length are those of a mapping that is alive; the caller answers for
    // what the kernel writes there. Threat: else the kernel writes packets over other memory.
    unsafe { set(socket, libc::XDP_UMEM_REG, &registration) }
}

/// Returns the offsets of the four rings' parts.
pub(crate) fn ring_offsets(socket: &XdpSocket) -> io::Result<AllOffsets> {
    let (offsets, length) = get::<libc::xdp_mmap_offsets>(socket, libc::XDP_MMAP_OFFSETS)?;
    if length < size_of::<libc::xdp_mmap_offsets>() {
        // Linux before 5.4: no flags words.
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(AllOffsets {
        receive: RingOffsets::of(&offsets.rx),
        transmit: RingOffsets::of(&offsets.tx),
        fill: RingOffsets::of(&offsets.fr),
        completion: RingOffsets::of(&offsets.cr),
    })
}

/// The kernel's counters of a socket.
pub(crate) fn statistics(socket: &XdpSocket) -> io::Result<libc::xdp_statistics> {
    Ok(get(socket, libc::XDP_STATISTICS)?.0)
}

/// The socket's option flags (`XDP_OPTIONS_ZEROCOPY`).
pub(crate) fn options(socket: &XdpSocket) -> io::Result<u32> {
    Ok(get::<libc::xdp_options>(socket, libc::XDP_OPTIONS)?.0.flags)
}

/// Binds a socket to a queue, with the memory that it has registered.
///
/// # Panics
/// With `XDP_SHARED_UMEM` among the flags: [`bind_shared`] does that.
pub(crate) fn bind(socket: &XdpSocket, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    assert_eq!(flags & libc::XDP_SHARED_UMEM, 0, "sharing names a socket");
    // SAFETY: the socket has its own memory; no other descriptor is named. Threat: none.
    unsafe { bind_as(socket, ifindex, queue, flags, None) }
}

/// Binds a socket to a queue, with the memory of the bound socket `other`.
///
/// # Safety
/// `other` is the descriptor of a socket that is open and bound with the memory whose frames the
/// caller will put into this socket's rings. If the number means another socket by now, the kernel
/// writes packets into frames of a memory whose owner does not know of it.
pub(crate) unsafe fn bind_shared(
    socket: &XdpSocket,
    ifindex: u32,
    queue: u32,
    other: RawFd,
) -> io::Result<()> {
    // SAFETY: the caller keeps the promise. Threat: as above.
    unsafe { bind_as(socket, ifindex, queue, libc::XDP_SHARED_UMEM, Some(other)) }
}

/// # Safety
/// As [`bind_shared`], if `shared` names a socket.
unsafe fn bind_as(
    socket: &XdpSocket,
    ifindex: u32,
    queue: u32,
    flags: u16,
    shared: Option<RawFd>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared.unwrap_or(0) as u32,
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    let pointer = (&raw const address).cast();
    // SAFETY: `pointer` points to `length` readable bytes for the whole call; the caller answers
    // for the shared socket. Threat: else the kernel reads another address than this one.
    let result = unsafe { libc::bind(socket.0.as_raw_fd(), pointer, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel to look at the tx ring.
pub(crate) fn wake_transmit(socket: &XdpSocket) -> io::Result<()> {
    // SAFETY: no data and no address are passed. Threat: the kernel would read what they point to.
    let result = unsafe {
        libc::sendto(
            socket.0.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel to look at the fill ring.
pub(crate) fn wake_receive(socket: &XdpSocket) -> io::Result<()> {
    // SAFETY: no buffer and no address are passed. Threat: the kernel would write to them.
    let result = unsafe {
        libc::recvfrom(
            socket.0.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
