//! Frames put on an interface as they are.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};

use crate::{LabError, Namespace};

/// Time between two frames: about 10 000 a second.
const INTERVAL: Duration = Duration::from_micros(100);
/// Time for all of them.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two bursts of a flood.
const BURST: Duration = Duration::from_millis(1);
/// Longest delay by a busy machine for which a flood makes up.
const MAX_DELAY: Duration = Duration::from_millis(10);

/// A socket for whole Ethernet frames, bound to an interface of a namespace.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
    address: LinkAddr,
}

impl FrameSender {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`LabError::NoInterface`], [`LabError::Socket`], and as [`Namespace::enter`].
    pub fn open(namespace: &Namespace, interface: &str) -> Result<FrameSender, LabError> {
        namespace.enter(|| {
            let address = link_address(interface)?.ok_or_else(|| LabError::NoInterface {
                namespace: namespace.name().to_owned(),
                interface: interface.to_owned(),
            })?;
            let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)
                .map_err(|error| LabError::socket("cannot open a packet socket")(error.into()))?;
            Ok(FrameSender { socket, address })
        })?
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`LabError::Socket`].
    pub fn send(&self, frame: &[u8]) -> Result<(), LabError> {
        self.try_send(frame).map_err(|error| LabError::socket("cannot send a frame")(error.into()))
    }

    fn try_send(&self, frame: &[u8]) -> Result<(), Errno> {
        sendto(self.socket.as_raw_fd(), frame, &self.address, MsgFlags::empty()).map(drop)
    }

    /// Sends `frame(0)`, `frame(1)` and so on, `rate` a second in bursts of one millisecond, until
    /// `stop` is set, a minute at most. Returns the number of frames sent. After a delay of the
    /// machine the flood makes up for 10 ms at most.
    ///
    /// # Errors
    /// [`LabError::Socket`].
    pub fn flood(
        &self,
        rate: u32,
        stop: &AtomicBool,
        mut frame: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<u64, LabError> {
        let end = Instant::now() + LIMIT;
        let interval = Duration::from_secs(1) / rate.max(1);
        let (mut due, mut number, mut taken) = (Instant::now(), 0, 0);
        while !stop.load(Ordering::Relaxed) && Instant::now() < end {
            let now = Instant::now();
            due = due.max(now.checked_sub(MAX_DELAY).unwrap_or(now));
            while due <= now {
                match self.try_send(&frame(number)) {
                    Ok(()) => taken += 1,
                    // The interface is full: the frame is lost, as on a wire.
                    Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => {}
                    Err(error) => {
                        return Err(LabError::socket("cannot send a frame")(error.into()));
                    }
                }
                number += 1;
                due += interval;
            }
            std::thread::sleep(BURST);
        }
        Ok(taken)
    }
}

/// Sends whole Ethernet frames by `interface`, in order, and returns how many the kernel took.
///
/// # Errors
/// As [`FrameSender::open`] and [`FrameSender::send`], and [`LabError::TimedOut`].
pub fn inject(
    namespace: &Namespace,
    interface: &str,
    frames: &[Vec<u8>],
) -> Result<usize, LabError> {
    let sender = FrameSender::open(namespace, interface)?;
    let start = Instant::now();
    for (place, frame) in frames.iter().enumerate() {
        let due = start + INTERVAL * place as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if start.elapsed() > LIMIT {
            let what = format!("sending {} frames", frames.len());
            return Err(LabError::TimedOut { what, limit: LIMIT, output: String::new() });
        }
        sender.send(frame)?;
    }
    Ok(frames.len())
}

/// Returns the link address of an interface.
///
/// # Errors
/// [`LabError::NoInterface`], [`LabError::Socket`], and as [`Namespace::enter`].
pub fn mac(namespace: &Namespace, interface: &str) -> Result<[u8; 6], LabError> {
    let address = namespace.enter(|| link_address(interface))??;
    address.and_then(|address| address.addr()).ok_or_else(|| LabError::NoInterface {
        namespace: namespace.name().to_owned(),
        interface: interface.to_owned(),
    })
}

/// The address of an interface for a packet socket, as the kernel lists it.
pub(crate) fn link_address(interface: &str) -> Result<Option<LinkAddr>, LabError> {
    let mut all = getifaddrs()
        .map_err(|error| LabError::socket("cannot list the interfaces")(error.into()))?;
    Ok(all.find_map(|entry| {
        (entry.interface_name == interface)
            .then(|| entry.address.as_ref().and_then(|address| address.as_link_addr().copied()))
            .flatten()
    }))
}
