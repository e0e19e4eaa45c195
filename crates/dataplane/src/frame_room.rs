//! The room for packets in a frame.
//!
//! ```text
//! headroom │ link header, VLAN tag │ IP packet of the MTU │ padding, trailer, ICV
//! ```
//!
//! Outer headers are written in the headroom. Behind the packet the fast path asks for room for the
//! tail of an ESP packet, whatever is done with the packet. Everything that the walk makes or
//! copies (fragments, ICMP errors, packets of other workers) is no longer than the MTU of a port,
//! and has the same headroom.

use ipsec::MAX_TAIL_BYTES;
use wire::HEADROOM;
use wire::link::{ETHERNET_BYTES, VLAN_TAG_BYTES};

/// Bytes of a frame, headroom included, that a gateway chooses from: half a page, or a page.
pub const FRAME_BYTES: [usize; 2] = [2048, 4096];

/// Bytes of a frame that are not for the IP packet.
const AROUND_BYTES: usize = HEADROOM + ETHERNET_BYTES + VLAN_TAG_BYTES + MAX_TAIL_BYTES;

/// Returns the largest MTU whose packets fit frames of `frame_bytes` bytes, headroom included.
pub const fn largest_mtu(frame_bytes: usize) -> u32 {
    frame_bytes.saturating_sub(AROUND_BYTES) as u32
}

/// Maximum frames of a worker whose packets wait: for neighbours, for SAs, and for fragments.
pub const MAX_WAITING_FRAMES: usize = crate::neighbour_queues::MAX_WAITING
    + crate::sa_queues::MAX_WAITING
    + crate::reassembly::MAX_WAITING
    + crate::reassembly::MAX_ESP_WAITING;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_half_a_page_hold_packets_of_ethernet() {
        assert_eq!(FRAME_BYTES.map(largest_mtu), [1725, 3773]);
        assert_eq!((largest_mtu(0), largest_mtu(AROUND_BYTES + 1)), (0, 1));
    }

    #[test]
    fn the_kernel_stores_the_largest_packet_behind_the_headroom() {
        for bytes in FRAME_BYTES {
            let stored = ETHERNET_BYTES + VLAN_TAG_BYTES + largest_mtu(bytes) as usize;
            assert!(HEADROOM + stored + MAX_TAIL_BYTES <= bytes);
        }
    }
}
