//! A forwarder that does nothing: two sockets, no walk, frames changed as if all were alike. What a
//! forwarding rate over AF_XDP is to be compared with.

use std::os::fd::{AsFd, BorrowedFd};

use wire::BATCH;
use xsk::{Packet, Socket, Statistics, Umem};

/// Forwards all that one of two sockets receives out of the other.
pub struct BareForwarder {
    umem: Umem,
    sockets: [Socket; 2],
    batch: Vec<Packet>,
    dropped: u64,
    change: fn(&mut [u8]),
}

/// Swaps the MAC addresses of a frame.
fn swap_addresses(frame: &mut [u8]) {
    // XDP passes no frame that is shorter than an Ethernet header.
    if let Some(addresses) = frame.get_mut(..12) {
        let (destination, source) = addresses.split_at_mut(6);
        destination.swap_with_slice(source);
    }
}

impl BareForwarder {
    /// A forwarder between two sockets that were opened on this memory.
    ///
    /// # Panics
    /// If one of them was opened on other memory.
    pub fn new(umem: Umem, sockets: [Socket; 2]) -> BareForwarder {
        BareForwarder::changing(umem, sockets, swap_addresses)
    }

    /// A forwarder as [`new`](BareForwarder::new) makes, which changes each frame in another way.
    ///
    /// # Panics
    /// If one of the sockets was opened on other memory.
    pub fn changing(
        mut umem: Umem,
        mut sockets: [Socket; 2],
        change: fn(&mut [u8]),
    ) -> BareForwarder {
        sockets.iter_mut().for_each(|socket| {
            socket.start(&mut umem);
        });
        BareForwarder { umem, sockets, batch: Vec::with_capacity(BATCH), dropped: 0, change }
    }

    /// Takes a batch from each socket, changes its frames, sends it by the other. Returns how
    /// many packets were received; 0: it is time to sleep.
    pub fn turn(&mut self) -> usize {
        let [left, right] = &mut self.sockets;
        let (umem, batch, dropped) = (&mut self.umem, &mut self.batch, &mut self.dropped);
        let change = self.change;
        forward((&mut *umem, change), left, right, batch, dropped)
            + forward((umem, change), right, left, batch, dropped)
    }

    /// The sockets' descriptors, to sleep on until packets come.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.sockets[0].as_fd(), self.sockets[1].as_fd()]
    }

    /// Packets for which the other's transmit ring had no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the counters of each socket. Cost: a system call each.
    pub fn statistics(&self) -> [Statistics; 2] {
        [self.sockets[0].statistics(), self.sockets[1].statistics()]
    }

    /// Closes both sockets; returns the memory and the counters of each.
    pub fn close(self) -> (Umem, [Statistics; 2]) {
        let mut umem = self.umem;
        let statistics = self.sockets.map(|socket| socket.close(&mut umem));
        (umem, statistics)
    }
}

fn forward(
    (umem, change): (&mut Umem, fn(&mut [u8])),
    from: &mut Socket,
    to: &mut Socket,
    batch: &mut Vec<Packet>,
    dropped: &mut u64,
) -> usize {
    batch.clear();
    from.receive(umem, BATCH, |umem, packet| {
        let start = packet.offset as usize;
        let end = start + packet.length as usize;
        if let Some(frame) = umem.frame_mut(packet.frame).get_mut(start..end) {
            change(frame);
        }
        batch.push(packet);
    });
    let accepted = to.transmit(umem, batch.iter().copied());
    for packet in &batch[accepted..] {
        umem.give(packet.frame);
        *dropped += 1;
    }
    to.kick();
    batch.len()
}
