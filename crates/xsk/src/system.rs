//! The system calls of AF_XDP, each wrapped once, and mapped memory.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::umem::{FRAME_BYTES, Spacing};

/// Where the words and the entries of a ring lie in its mapping, in bytes.
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

// SAFETY: a mapping is an address and a length; it belongs to the process, not to a thread. Who
// reads and writes through the address keeps its own rules.
unsafe impl Send for Unmap {}
// SAFETY: as above; no method changes anything through a shared reference.
unsafe impl Sync for Unmap {}
// SAFETY: as for `Unmap`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Unmap`.
unsafe impl Sync for Mapping {}

impl Drop for Unmap {
    fn drop(&mut self) {
        // SAFETY: start and length are those of a successful mmap, unmapped nowhere else, and no
        // `Mapping` that could hand out the address exists any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

impl Mapping {
    /// Zeroed memory of the process, page-aligned, not inherited by children: a fork must not
    /// leave the kernel with other pages than ours. Huge pages are asked for.
    pub(crate) fn anonymous(length: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = Mapping::map(length, flags, -1, 0)?;
        for advice in [libc::MADV_DONTFORK, libc::MADV_HUGEPAGE] {
            // SAFETY: the range is exactly the mapping made above; neither advice changes its
            // contents. Refused advice costs speed, not correctness.
            unsafe { libc::madvise(mapping.start.as_ptr().cast(), length, advice) };
        }
        Ok(mapping)
    }

    /// One ring of a socket; `page_offset` says which.
    pub(crate) fn ring(
        socket: BorrowedFd<'_>,
        length: usize,
        page_offset: i64,
    ) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Mapping::map(length, flags, socket.as_raw_fd(), page_offset)
    }

    fn map(length: usize, flags: c_int, fd: RawFd, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
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

/// Opens an AF_XDP socket, bound to nothing.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was opened just now and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Plain data of the kernel's interface: any bytes are a value, and so are all zeros.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for libc::xdp_umem_reg {}
impl Plain for libc::xdp_mmap_offsets {}
impl Plain for libc::xdp_statistics {}
impl Plain for libc::xdp_options {}

fn set<T: Plain>(socket: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `value` points to `length` readable bytes for the whole call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option; what an older kernel does not fill stays zero. Returns the bytes it wrote.
fn get<T: Plain>(socket: BorrowedFd<'_>, option: c_int) -> io::Result<(T, usize)> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: all zeros are a value of every `Plain` type.
    let mut value: T = unsafe { std::mem::zeroed() };
    let target = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `target` points to `length` writable bytes, and any bytes are a value of `T`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, target, &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((value, length as usize)) }
}

/// Sets the number of entries of a ring (`XDP_RX_RING` and its three sisters).
pub(crate) fn set_ring(socket: BorrowedFd<'_>, ring: c_int, entries: u32) -> io::Result<()> {
    set(socket, ring, &entries)
}

/// Registers memory as the socket's UMEM: it is pinned, and charged to RLIMIT_MEMLOCK unless the
/// process has CAP_IPC_LOCK.
pub(crate) fn register(
    socket: BorrowedFd<'_>,
    memory: &Mapping,
    spacing: Spacing,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.start() as u64,
        len: memory.length() as u64,
        chunk_size: FRAME_BYTES as u32,
        headroom: 0,
        flags: match spacing {
            Spacing::Pages => 0,
            Spacing::Staggered => libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
        },
        tx_metadata_len: 0,
    };
    set(socket, libc::XDP_UMEM_REG, &registration)
}

/// Where the rings' parts lie.
pub(crate) fn ring_offsets(socket: BorrowedFd<'_>) -> io::Result<AllOffsets> {
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
pub(crate) fn statistics(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    Ok(get(socket, libc::XDP_STATISTICS)?.0)
}

/// The socket's option flags (`XDP_OPTIONS_ZEROCOPY`).
pub(crate) fn options(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get::<libc::xdp_options>(socket, libc::XDP_OPTIONS)?.0.flags)
}

/// Binds a socket to a queue; with `shared`, to the UMEM of that bound socket.
pub(crate) fn bind(
    socket: BorrowedFd<'_>,
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
    // SAFETY: `pointer` points to `length` readable bytes for the whole call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), pointer, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel to look at the tx ring.
pub(crate) fn wake_transmit(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no data and no address are passed.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
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
pub(crate) fn wake_receive(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer and no address are passed.
    let result = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
