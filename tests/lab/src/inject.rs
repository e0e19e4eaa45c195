//! Frames put on an interface as they are.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};

use crate::{LabError, Namespace};

/// Time between two frames: about 10 000 a second.
const INTERVAL: Duration = Duration::from_micros(100);
/// Time for all of them.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends whole Ethernet frames by `interface`, in order, and returns how many the kernel took.
///
/// # Errors
/// [`LabError::NoInterface`], [`LabError::Socket`], [`LabError::TimedOut`], and as
/// [`Namespace::enter`].
pub fn inject(
    namespace: &Namespace,
    interface: &str,
    frames: &[Vec<u8>],
) -> Result<usize, LabError> {
    namespace.enter(|| {
        let address = link_address(interface)?.ok_or_else(|| LabError::NoInterface {
            namespace: namespace.name().to_owned(),
            interface: interface.to_owned(),
        })?;
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)
            .map_err(|error| LabError::socket("cannot open a packet socket")(error.into()))?;
        let start = Instant::now();
        for (place, frame) in frames.iter().enumerate() {
            let due = start + INTERVAL * place as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if start.elapsed() > LIMIT {
                let what = format!("sending {} frames", frames.len());
                return Err(LabError::TimedOut { what, limit: LIMIT, output: String::new() });
            }
            sendto(socket.as_raw_fd(), frame, &address, MsgFlags::empty())
                .map_err(|error| LabError::socket("cannot send a frame")(error.into()))?;
        }
        Ok(frames.len())
    })?
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
