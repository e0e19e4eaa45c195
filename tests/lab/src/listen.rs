//! Frames that an interface hands to this machine, as they are.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};

use crate::inject::link_address;
use crate::{LabError, Namespace, interrupt};

/// Bytes of the longest frame that is read whole.
const LONGEST: usize = 9216;
/// Kind of a packet that this machine sends.
const OUTGOING: u8 = 4;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Hears the frames that come in by one interface.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    interface: String,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`LabError::NoInterface`], [`LabError::Socket`], and as [`Namespace::enter`].
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Listener, LabError> {
        let system = |error: Errno| LabError::socket("cannot listen to frames")(error.into());
        let socket = namespace.enter(|| {
            let address = link_address(interface)?.ok_or_else(|| LabError::NoInterface {
                namespace: namespace.name().to_owned(),
                interface: interface.to_owned(),
            })?;
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let all = Some(SockProtocol::EthAll);
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, flags, all).map_err(system)?;
            bind(socket.as_raw_fd(), &address).map_err(system)?;
            Ok::<_, LabError>(socket)
        })??;
        Ok(Listener { socket, interface: interface.to_owned() })
    }

    /// The next frame that is there; `None`: there is none.
    ///
    /// # Errors
    /// [`LabError::Socket`].
    pub fn next(&self) -> Result<Option<Vec<u8>>, LabError> {
        let mut frame = vec![0; LONGEST];
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut frame) {
                Ok((_, Some(from))) if from.pkttype() == OUTGOING => {}
                Ok((length, _)) => {
                    frame.truncate(length);
                    return Ok(Some(frame));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => {
                    return Err(LabError::socket("cannot read a frame")(error.into()));
                }
            }
        }
    }

    /// Waits for a number of frames for which `wanted` holds; others are thrown away.
    ///
    /// # Errors
    /// [`LabError::TimedOut`], [`LabError::Interrupted`], [`LabError::Socket`].
    pub fn wait(
        &self,
        count: usize,
        limit: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>, LabError> {
        let (end, mut frames) = (Instant::now() + limit, Vec::new());
        while frames.len() < count {
            match self.next()? {
                Some(frame) if wanted(&frame) => frames.push(frame),
                Some(_) => {}
                None if Instant::now() > end => {
                    let what = format!("waiting for {count} frames from {}", self.interface);
                    let output = format!("{} came", frames.len());
                    return Err(LabError::TimedOut { what, limit, output });
                }
                None => interrupt::sleep(LOOK)?,
            }
        }
        Ok(frames)
    }
}
