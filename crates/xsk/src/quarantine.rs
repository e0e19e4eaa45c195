//! The quarantine of a closed socket's frames, and the proof that ends it.
//!
//! **The rule.** A frame that a socket gave the kernel comes back by the rx or the completion ring,
//! or it stays in quarantine until the kernel has let go of the socket's queue.
//!
//! Nothing that the rings say at closing proves more. The kernel publishes its consumer words late,
//! so an entry behind them may have been taken; in zero-copy the driver has frames of its own; and
//! in copy mode some drivers (`IFF_TX_SKB_NO_LINEAR`) send out of our pages. A frame that is free
//! too early is written by a driver while a packet is in it, or sent with another packet's bytes.
//! No time is long enough to wait.
//!
//! **The proof.** The kernel keeps a socket's buffer pool registered at its netdev's queue until
//! the last descriptor of the socket is closed, every packet that points into its memory is freed,
//! and the driver has given the pool up (`xp_clear_dev`, whose last step takes it off the queue).
//! While it is there nobody else can bind to that queue (`EBUSY`). So either of these, asked after
//! the closing, proves that nothing of the socket is in anyone's hands:
//! * a bind to the same netdev and queue succeeds;
//! * a bind says that there is no such netdev (`ENODEV`): it is unregistered under the lock that a
//!   bind takes, pools first.
//!
//! [`Socket::open`](crate::Socket::open) finds the first by itself; [`release_quarantined`] asks
//! for the other closed sockets, by a socket of its own that binds in copy mode, which no driver
//! hears of. Where the answer is another one (the netdev is down, the queue busy) the frames wait.
//! The kernel pins the pages, so a memory may be dropped with frames in quarantine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Area;
use crate::system::{self, Mapping};
use crate::umem::Layout;

/// Counts bindings and closings, so that it is known which came first.
static ORDER: AtomicU64 = AtomicU64::new(1);

/// The number of a binding that begins now, or of a closing that is done.
pub(crate) fn next_order() -> u64 {
    ORDER.fetch_add(1, Ordering::SeqCst)
}

/// A queue of a netdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queue {
    pub(crate) ifindex: u32,
    pub(crate) number: u32,
}

/// Looks for closed sockets of these memories whose queues the kernel has let go of; their frames
/// are free after the next [`Umem::reclaim`](crate::Umem::reclaim). Returns how many still wait. To
/// be called with all memories whose sockets may be on the same queues, by a control thread: it may
/// wait for the kernel.
pub fn release_quarantined(areas: &[Arc<Area>]) -> usize {
    let mut waiting = 0;
    for area in areas {
        for (queue, closed) in area.quarantined() {
            let is_proven = match areas.iter().find_map(|other| other.bound_to(queue)) {
                // It was bound by one of ours since, or still is by the one before.
                Some(order) => order > closed,
                None => is_let_go(queue),
            };
            match is_proven {
                // SAFETY: one of the two proofs above was found after the closing. Threat: else the
                // frames are free while a driver still writes into them.
                true => unsafe { area.release(queue, closed) },
                false => waiting += 1,
            }
        }
    }
    waiting
}

/// Returns true if the kernel proves now that no socket is on a queue.
fn is_let_go(queue: Queue) -> bool {
    /// Entries of rings that carry nothing.
    const RING: u32 = 64;
    let ready = || {
        let socket = system::socket()?;
        let memory = Mapping::anonymous(2 * Layout::PAGES.stride())?;
        // SAFETY: the fill ring of this socket stays empty, and no other shares its memory. Threat:
        // the kernel would write packets into memory that is not there for them.
        unsafe { system::register(&socket, &memory, Layout::PAGES) }?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            system::set_ring(&socket, ring, RING)?;
        }
        std::io::Result::Ok((socket, memory))
    };
    let Ok((socket, _memory)) = ready() else { return false };
    let bound = system::bind(&socket, queue.ifindex, queue.number, libc::XDP_COPY);
    match bound {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::ENODEV),
    }
}
