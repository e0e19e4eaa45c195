//! Errors of setting up, each with a remedy.

use std::io;
use std::time::Duration;

/// A failure to set up memory or a socket. Nothing stays half open.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// The process may not open AF_XDP sockets.
    #[error("AF_XDP sockets need CAP_NET_RAW: run as root or grant the capability")]
    NotPermitted,
    /// The kernel knows no AF_XDP.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): Linux 6.1 or newer with it is needed")]
    NoAfXdp,
    /// There is no memory for the frames.
    #[error("no memory for {frames} frames of {frame_bytes} bytes: {source}")]
    NoMemory {
        /// Frames asked for.
        frames: u32,
        /// Bytes of a frame.
        frame_bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The frames cannot be pinned.
    #[error(
        "{bytes} bytes of packet memory cannot be locked: raise RLIMIT_MEMLOCK (LimitMEMLOCK= of \
         the unit) or grant CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// The netdev does not exist (any more) in this network namespace.
    #[error("there is no netdev with index {ifindex} here")]
    NoDevice {
        /// The netdev.
        ifindex: u32,
    },
    /// The netdev is down, and its driver wants it up.
    #[error("netdev {ifindex} is down: set it up first")]
    DeviceDown {
        /// The netdev.
        ifindex: u32,
    },
    /// The netdev has no such queue, or its driver refuses the layout of the memory.
    #[error(
        "queue {queue} of netdev {ifindex} is refused: the netdev has fewer queues (ethtool -l), \
         or its MTU does not fit a frame"
    )]
    NoQueue {
        /// The netdev.
        ifindex: u32,
        /// The queue.
        queue: u32,
    },
    /// Somebody has the queue, and still had it after all retries.
    #[error(
        "queue {queue} of netdev {ifindex} is in use by another AF_XDP socket (waited {} ms): is \
         another program, or a second daemon, running on this port?",
        waited.as_millis()
    )]
    Busy {
        /// The netdev.
        ifindex: u32,
        /// The queue.
        queue: u32,
        /// Time spent on retries.
        waited: Duration,
    },
    /// The driver cannot do what was asked.
    #[error("the driver of netdev {ifindex} refuses AF_XDP on queue {queue} in the asked mode")]
    NotSupported {
        /// The netdev.
        ifindex: u32,
        /// The queue.
        queue: u32,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Option(#[from] OptionFault),
    /// More sockets than owner tags on one memory.
    #[error("more than {maximum} sockets on one packet memory")]
    TooManySockets {
        /// Sockets that fit.
        maximum: usize,
    },
    /// Anything else the kernel said.
    #[error("{call} failed: {source}")]
    System {
        /// The system call, with its option.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl XskError {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> XskError {
        move |source| XskError::System { call, source }
    }
}

/// An option that is out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionFault {
    /// A ring's size.
    #[error("a ring has a power of two of entries between 64 and 32768, not {0}")]
    Ring(u32),
    /// The receive quota.
    #[error("{frames} receive frames do not fit into a ring of {ring} entries")]
    ReceiveFrames {
        /// Frames asked for.
        frames: u32,
        /// Entries of the receive and fill rings.
        ring: u32,
    },
    /// The number of frames.
    #[error("packet memory has between 1 and {maximum} frames, not {frames}")]
    Frames {
        /// Frames asked for.
        frames: u32,
        /// Frames at most.
        maximum: u32,
    },
}
