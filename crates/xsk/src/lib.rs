//! AF_XDP sockets: packets between the kernel and one worker's frames, not copied by this crate.
//!
//! # The kernel's interface
//!
//! A *UMEM* is a piece of this process's memory, registered with the kernel and cut into *frames*
//! (the kernel says chunks) of one size ([`FrameSize`]). A *socket* is bound to one receive queue
//! of one netdev. Four rings of the socket, mapped into both worlds, carry the numbers of frames:
//!
//! ```text
//!            fill        frames that may be written     user → kernel
//!   receive ─┤
//!            rx          packets in such frames         kernel → user
//!
//!            tx          packets to be sent             user → kernel
//!  transmit ─┤
//!            completion  frames that have been sent     kernel → user
//! ```
//!
//! A ring is a power of two of entries between two free-running 32-bit counters: the *producer*
//! word says how many entries were ever put in, the *consumer* word how many were taken out, each
//! written by one side only. Who writes an entry publishes it with a release store of its word;
//! who reads one has seen the other's word with an acquire load before.
//!
//! **Ownership.** A frame in the fill or the tx ring is the kernel's until it comes back by the rx
//! or the completion ring, whatever happens to the netdev meanwhile. The kernel may also keep
//! fill frames of its own accord (one whose packet it dropped), so what a socket holds is not to
//! be read from its rings: [`Umem`] keeps one owner tag a frame instead, and the bytes of a frame
//! can be reached only while no socket owns it. When a socket has been closed the frames with its
//! tag are free again, no more and no fewer.
//!
//! **Waking.** A kernel that sleeps says so in a ring's *flags* word (`XDP_RING_NEED_WAKEUP`). For
//! tx that means a system call ([`Socket::kick`]); where packets are copied (no driver support)
//! that call *is* the transmission, sends at most 32 packets and reports `EAGAIN` when it did not
//! get through. For fill it means a driver that found no frame and waits to be told.
//!
//! **Sharing.** Sockets of several netdevs and queues may use one UMEM (`XDP_SHARED_UMEM`, naming
//! a bound socket), each with its own four rings: then forwarding is handing a frame number from
//! one ring to another. The first socket registers the memory, later ones share it; when all are
//! gone, or what they do cannot be shared, the next registers it again.
//!
//! **In front of a packet** lie 256 bytes (`XDP_PACKET_HEADROOM`, [`HEADROOM`]). What an XDP
//! program put before the packet with `bpf_xdp_adjust_meta` ends where the packet begins. No
//! descriptor says whether it is there.
//!
//! **After closing**, the kernel frees the queue some time later: binding it again says `EBUSY`
//! meanwhile, and [`Socket::open`] retries. A closed socket leaves every XSKMAP by itself. Its
//! frames are in quarantine until the kernel has let go of the queue for certain
//! ([`release_quarantined`]).
//!
//! **Frames** have half a page or a page, and begin that far apart, or where packets are copied
//! anyway a cache line more ([`Layout`]).
//!
//! **Other crates.** `xdpilone` is as fast, but under the EUPL, hardly maintained, and its ring
//! accounting has traps; `xsk-rs` needs the C library libxdp. `libc` has every struct.
//!
//! Not handled here: packets over several frames (`XDP_USE_SG`), transmit metadata, loading an XDP
//! program. Nothing in this crate knows a header.
//!
//! | module | what |
//! |---|---|
//! | `ring` | the arithmetic of one ring, and its two ends |
//! | `umem` | frames, their owners, the free list |
//! | `owner` | the owner tags of frames |
//! | `census` | counts of frames by owner, at once or in parts |
//! | `socket` | opening, the four rings at work, closing |
//! | `quarantine` | when a closed socket's frames are free again, and what proves it |
//! | `system` | the few system calls, each once |
#![deny(clippy::undocumented_unsafe_blocks)]

mod census;
mod error;
mod owner;
mod quarantine;
mod ring;
mod socket;
mod system;
mod umem;

pub use census::Census;
pub use error::{OptionFault, XskError};
pub use quarantine::release_quarantined;
pub use socket::{Counters, HeldFrames, KernelStatistics, Options, Socket, Statistics, Transfer};
pub use umem::{Area, FrameSize, HEADROOM, Layout, Packet, Spacing, Umem};
