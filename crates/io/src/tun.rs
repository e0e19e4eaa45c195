//! Port over a TUN netdev: IP packets to and from the Linux stack of this machine. And [`Tap`], a
//! TAP netdev, by which a process plays a network card.
//!
//! Opening `/dev/net/tun` and naming a netdev attaches one queue of it, and makes the netdev if
//! there is none. A read gives one IP packet (TAP: one Ethernet frame) that Linux routed into the
//! netdev, a write hands Linux one. The netdev must be up for either (`EIO` otherwise).
//!
//! Not handled here: addresses, routes and the netdev's state, which are netlink's.
#![allow(unsafe_code)] // system calls that no safe wrapper offers

use std::ffi::c_char;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use wire::frame::{Descriptor, Frames, HEADROOM, Port, Received};

/// The device that makes TUN netdevs.
const CLONE_DEVICE: &str = "/dev/net/tun";

/// The time that the netdev lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// The netdev is gone when the last queue is closed.
    Process,
    /// The netdev stays, with its addresses, until it is deleted.
    Persistent,
}

/// The kind of a netdev that a process plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// IP packets.
    Tun,
    /// Ethernet frames.
    Tap,
}

impl Kind {
    const fn flag(self) -> libc::c_int {
        match self {
            Kind::Tun => libc::IFF_TUN,
            Kind::Tap => libc::IFF_TAP,
        }
    }
}

impl fmt::Display for Kind {
    /// `TUN` or `TAP`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Tun => "TUN",
            Kind::Tap => "TAP",
        })
    }
}

/// Reason why a TUN or TAP netdev cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel has no TUN driver, or this place does not show it.
    #[error(
        "there is no {CLONE_DEVICE}: load the kernel's tun module (modprobe tun), or give the \
         container the netdev"
    )]
    NoDriver,
    /// The process lacks the right to make the netdev.
    #[error("the {kind} device {name} needs CAP_NET_ADMIN and access to {CLONE_DEVICE}")]
    NotPermitted {
        /// Kind asked for.
        kind: Kind,
        /// Name asked for.
        name: String,
    },
    /// A name Linux does not take.
    #[error("`{name}` is no name for a netdev: 1 to 15 bytes without `/`, `%`, `:` and spaces")]
    Name {
        /// Name asked for.
        name: String,
    },
    /// A netdev of another kind has that name.
    #[error("{name} exists and is no {kind} device with several queues: rename or delete it")]
    Taken {
        /// Kind asked for.
        kind: Kind,
        /// Name asked for.
        name: String,
    },
    /// Another process has the netdev, or all its queues.
    #[error("the {kind} device {name} is in use by another process")]
    Busy {
        /// Kind asked for.
        kind: Kind,
        /// Name asked for.
        name: String,
    },
    /// Anything else the kernel said.
    #[error("{call} for the {kind} device {name} failed: {source}")]
    System {
        /// Kind asked for.
        kind: Kind,
        /// The call.
        call: &'static str,
        /// Name asked for.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Counters of a [`TunPort`], in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TunStatistics {
    /// Received from Linux.
    pub received: u64,
    /// Handed to Linux.
    pub sent: u64,
    /// Came from Linux and did not fit a frame: dropped.
    pub too_long: u64,
    /// Offered to Linux, which did not take them for IP packets; or beyond their frame. Dropped.
    pub refused: u64,
    /// Not accepted: Linux had no room.
    pub full: u64,
    /// Calls that failed because the netdev is down or gone.
    pub down: u64,
}

/// One queue of a TUN netdev.
pub struct TunPort {
    file: CloneDevice,
    name: String,
    presence: Presence,
    statistics: TunStatistics,
}

/// The presence of the netdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    There,
    Gone,
}

impl TunPort {
    /// Attaches a queue of the netdev with this name, and makes the netdev if there is none. Each
    /// worker opens its own; Linux keeps a flow on one queue.
    ///
    /// # Errors
    /// [`TunError`]; a netdev that was made for it is gone again.
    pub fn open(name: &str, lifetime: Lifetime) -> Result<TunPort, TunError> {
        let file = CloneDevice::queue(name, Kind::Tun)?;
        if lifetime == Lifetime::Persistent {
            file.persist().map_err(|source| TunError::System {
                kind: Kind::Tun,
                call: "ioctl(TUNSETPERSIST)",
                name: name.to_owned(),
                source,
            })?;
        }
        Ok(TunPort {
            file,
            name: name.to_owned(),
            presence: Presence::There,
            statistics: TunStatistics::default(),
        })
    }

    /// Name of the netdev when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counters of this queue.
    pub fn statistics(&self) -> TunStatistics {
        self.statistics
    }

    /// The descriptor to sleep on until packets come. `None` once a call has found the netdev
    /// deleted: that is for good, sleeping on it would end at once, always, and the port is to be
    /// opened again.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.presence == Presence::There).then(|| self.file.0.as_fd())
    }

    /// A call failed: the netdev is down, or gone.
    fn failed(&mut self, error: &io::Error) {
        self.statistics.down += 1;
        if error.raw_os_error() == Some(libc::EBADFD) {
            self.presence = Presence::Gone;
        }
    }

    /// Reads one packet behind the headroom of a frame.
    fn read(&mut self, frame: &mut [u8]) -> Step {
        // Linux cuts a packet that does not fit, and says nothing: one byte more than may be
        // used tells.
        let room = &mut frame[HEADROOM..];
        match self.file.0.read(room) {
            Ok(length) if length == room.len() => {
                self.statistics.too_long += 1;
                Step::Dropped
            }
            Ok(length) if length > 0 => {
                self.statistics.received += 1;
                Step::Packet(length as u32)
            }
            Ok(_) => Step::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Dropped,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Nothing,
            Err(error) => {
                self.failed(&error);
                Step::Nothing
            }
        }
    }

    /// Writes one packet.
    fn write(&mut self, packet: &[u8]) -> Written {
        loop {
            let Err(error) = self.file.0.write(packet) else {
                self.statistics.sent += 1;
                return Written::Accepted;
            };
            return match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EINVAL | libc::EMSGSIZE) => {
                    self.statistics.refused += 1;
                    Written::Accepted
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.statistics.full += 1;
                    Written::Full
                }
                _ => {
                    self.failed(&error);
                    Written::Full
                }
            };
        }
    }
}

/// The result of a read.
enum Step {
    /// A packet of that many bytes.
    Packet(u32),
    /// Another read may bring one.
    Dropped,
    Nothing,
}

/// The owner of a packet's frame after a write: the port, unless it is full.
enum Written {
    Accepted,
    Full,
}

impl AsFd for TunPort {
    /// Returns the descriptor as [`TunPort::fd`] does, but also when the netdev is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.0.as_fd()
    }
}

impl<F: Frames> Port<F> for TunPort {
    /// Reads at most `limit` packets, dropped ones included. Cost: a system call each and one
    /// that finds nothing.
    fn receive(&mut self, frames: &mut F, limit: usize, into: &mut Vec<Received>) -> usize {
        let before = into.len();
        for _ in 0..limit {
            let Some(frame) = frames.take() else { break };
            match self.read(frames.bytes_mut(frame)) {
                Step::Packet(length) => {
                    let packet = Descriptor { frame, offset: HEADROOM as u32, length };
                    into.push(packet.into());
                    continue;
                }
                Step::Dropped => frames.give(frame),
                Step::Nothing => {
                    frames.give(frame);
                    break;
                }
            }
        }
        into.len() - before
    }

    /// Packets that Linux does not take for IP packets are accepted, dropped and counted
    /// (`refused`). While the netdev is down none is accepted.
    fn transmit(&mut self, frames: &mut F, packets: &[Descriptor]) -> usize {
        for (accepted, packet) in packets.iter().enumerate() {
            let start = packet.offset as usize;
            let end = start.saturating_add(packet.length as usize);
            let Some(bytes) = frames.bytes(packet.frame).get(start..end) else {
                self.statistics.refused += 1;
                frames.give(packet.frame);
                continue;
            };
            match self.write(bytes) {
                Written::Accepted => frames.give(packet.frame),
                Written::Full => return accepted,
            }
        }
        packets.len()
    }
}

/// A TAP netdev with several queues, gone when it is dropped. Its link is up unless
/// [`set_link`](Tap::set_link) says otherwise; the netdev itself is down until somebody sets it up.
///
/// Its files do not block, and the netdev hands no offloads over: every frame that is read is
/// whole, with its checksums.
pub struct Tap {
    queues: Vec<CloneDevice>,
    name: String,
}

/// The link of a [`Tap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// There is a carrier.
    Up,
    /// There is none: Linux sends nothing.
    Down,
}

impl Tap {
    /// Makes the netdev with this many queues.
    ///
    /// # Errors
    /// [`TunError`]; a netdev that was made for it is gone again.
    pub fn open(name: &str, queues: usize) -> Result<Tap, TunError> {
        let queues: Result<_, _> =
            (0..queues).map(|_| CloneDevice::queue(name, Kind::Tap)).collect();
        Ok(Tap { queues: queues?, name: name.to_owned() })
    }

    /// Name of the netdev when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptors of the queues, in their order: to sleep on until Linux sends.
    pub fn queues(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.0.as_fd())
    }

    /// Sets the link address; the netdev must be down.
    ///
    /// # Errors
    /// [`TunError::System`].
    pub fn set_address(&self, address: [u8; 6]) -> Result<(), TunError> {
        self.set("ioctl(SIOCSIFHWADDR)", |queue| queue.set_address(address))
    }

    /// Sets the link.
    ///
    /// # Errors
    /// [`TunError::System`].
    pub fn set_link(&self, link: Link) -> Result<(), TunError> {
        self.set("ioctl(TUNSETCARRIER)", |queue| queue.set_link(link))
    }

    fn set(
        &self,
        call: &'static str,
        set: impl FnOnce(&CloneDevice) -> io::Result<()>,
    ) -> Result<(), TunError> {
        let done = self.queues.first().map_or(Ok(()), set);
        let name = || self.name.clone();
        done.map_err(|source| TunError::System { kind: Kind::Tap, call, name: name(), source })
    }

    /// Reads a frame that Linux sent by a queue; one that does not fit is cut to the length of
    /// `into`.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. Others: the netdev is down or gone.
    pub fn read(&self, queue: usize, into: &mut [u8]) -> io::Result<usize> {
        (&self.queues[queue].0).read(into)
    }

    /// Hands Linux a frame by a queue: with it, its XDP program runs.
    ///
    /// # Errors
    /// Those of `write(2)`: the netdev is down or gone, or takes no such frame.
    pub fn write(&self, queue: usize, frame: &[u8]) -> io::Result<()> {
        (&self.queues[queue].0).write(frame).map(drop)
    }
}

/// The request about a netdev; `None`: no netdev can have that name.
fn request(name: &str, ifr_ifru: libc::__c_anonymous_ifr_ifru) -> Option<libc::ifreq> {
    let fits = !name.is_empty() && name.len() < libc::IFNAMSIZ && name != "." && name != "..";
    let bad = |byte: u8| matches!(byte, 0 | b'/' | b'%' | b':') || byte.is_ascii_whitespace();
    if !fits || name.bytes().any(bad) {
        return None;
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (target, byte) in ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte as c_char;
    }
    Some(libc::ifreq { ifr_name, ifr_ifru })
}

/// An open [`CLONE_DEVICE`], and nothing else: what an ioctl does depends on whose it is.
struct CloneDevice(File);

impl CloneDevice {
    fn open() -> io::Result<CloneDevice> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        options.open(CLONE_DEVICE).map(CloneDevice)
    }

    /// Opens a queue of the netdev of this kind and name, and makes the netdev if there is none.
    fn queue(name: &str, kind: Kind) -> Result<CloneDevice, TunError> {
        let named = || name.to_owned();
        let flags = kind.flag() | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
        let flags = libc::__c_anonymous_ifr_ifru { ifru_flags: flags as _ };
        let request = request(name, flags).ok_or_else(|| TunError::Name { name: named() })?;
        let file = CloneDevice::open().map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunError::NoDriver,
            Some(libc::EPERM | libc::EACCES) => TunError::NotPermitted { kind, name: named() },
            _ => TunError::System { kind, call: "open(/dev/net/tun)", name: named(), source },
        })?;
        file.attach(&request).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => TunError::NotPermitted { kind, name: named() },
            Some(libc::EINVAL) => TunError::Taken { kind, name: named() },
            Some(libc::EBUSY | libc::E2BIG) => TunError::Busy { kind, name: named() },
            _ => TunError::System { kind, call: "ioctl(TUNSETIFF)", name: named(), source },
        })?;
        Ok(file)
    }

    fn attach(&self, request: &libc::ifreq) -> io::Result<()> {
        let mut request = *request;
        // SAFETY: TUNSETIFF of this device reads and writes one `ifreq`, which `request` is, for
        // the call only. Threat: the kernel writes behind it, or through a pointer taken from it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn persist(&self) -> io::Result<()> {
        let on: libc::c_ulong = 1;
        // SAFETY: TUNSETPERSIST of this device takes a number, no pointer. Threat: the kernel reads
        // or writes at address 1.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETPERSIST, on) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn set_address(&self, address: [u8; 6]) -> io::Result<()> {
        let mut data = [0; 14];
        for (target, byte) in data.iter_mut().zip(address) {
            *target = byte as c_char;
        }
        let hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: data };
        let address = libc::__c_anonymous_ifr_ifru { ifru_hwaddr: hwaddr };
        let request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: address };
        // SAFETY: SIOCSIFHWADDR of this device reads one `ifreq`, which `request` is, for the call
        // only; it is about the netdev of the file, whatever name is in it. Threat: the kernel
        // reads behind it.
        let result = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SIOCSIFHWADDR as _, &raw const request)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn set_link(&self, link: Link) -> io::Result<()> {
        let carrier = match link {
            Link::Up => 1,
            Link::Down => 0,
        };
        let carrier: libc::c_int = carrier;
        // SAFETY: TUNSETCARRIER of this device reads one integer, which `carrier` is, for the call
        // only. Threat: the kernel reads behind it.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETCARRIER, &raw const carrier) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
