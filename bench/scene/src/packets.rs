//! Packets of a case: made as they arrive, laid out in frames, walked.

use std::time::Instant;

use dataplane::{NetdevId, Snapshot, Worker};
use io::memory::MemoryFrames;
use wire::flow::protocol;
use wire::{FrameId, Frames};

use crate::case::{Case, Direction, HOP_LIMIT, Keys, own_mac, router_mac, spi};
use crate::marked_port::Preloaded;
use crate::other_cipher::OtherCipher;
use crate::overlay_packets;
use crate::random::Random;

/// Puts packets into free frames, and these into a port. Each is written as soon as it is made: a
/// second copy of all of them would push the frames out of the caches. Returns the frames, in the
/// order of the packets.
pub fn load<P: Preloaded>(
    worker: &mut Worker<MemoryFrames, P>,
    netdev: NetdevId,
    packets: impl Iterator<Item = Vec<u8>>,
) -> Vec<FrameId> {
    let (frames, port) = worker.parts_mut(netdev);
    let port = port.expect("all devices have ports").preloaded();
    port.recycle(frames);
    let store = |packet: Vec<u8>| {
        let stored = frames.store(&packet).expect("a frame a flow");
        port.load(stored);
        stored.frame
    };
    packets.map(store).collect()
}

/// The timed span, in turns of up to `burst` packets. A function of its own, so that a profiler can
/// be told to look at nothing else.
#[inline(never)]
pub fn drain<P: Preloaded>(
    worker: &mut Worker<MemoryFrames, P>,
    snapshot: &Snapshot,
    netdev: NetdevId,
    begin: Instant,
    burst: usize,
) {
    while worker.turn(snapshot, begin.elapsed().as_nanos() as u64, netdev, burst) > 0 {}
}

/// Puts the free frames in random order.
pub fn mix(frames: &mut MemoryFrames, random: &mut Random) {
    let mut free: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
    random.shuffle(&mut free);
    free.into_iter().for_each(|frame| frames.give(frame));
}

/// The other end of an SA of the case.
pub fn other_cipher(case: &Case, keys: &Keys) -> OtherCipher {
    match case.direction {
        Direction::In => OtherCipher::new(case.suite, keys.inbound.expose()),
        _ => OtherCipher::new(case.suite, keys.outbound.expose()),
    }
}

/// A packet as it arrives at a worker: in clear, or as the `sequence`th that the flow's peer has
/// sealed.
pub fn arriving(
    case: &Case,
    other: &OtherCipher,
    worker: usize,
    flow: usize,
    sequence: u32,
) -> Vec<u8> {
    let (to, from) = (own_mac(case.ingress()), router_mac(case.ingress()));
    let inner = case.inner(flow, HOP_LIMIT);
    match case.direction {
        Direction::In | Direction::CryptoIn => {}
        Direction::Overlay => return overlay_packets::arriving(case, flow),
        _ => return inner.frame(to, from, None),
    }
    let peer = case.peer_of(flow);
    let (local, remote) = case.tunnel(peer);
    let spi = spi(case.place(worker, peer));
    let esp = match case.direction {
        Direction::CryptoIn => crate::check::in_clear(spi, sequence, &inner.ip()),
        _ => other.seal(spi.value(), sequence, &inner.ip()),
    };
    let outer = wire::build::PacketBuilder::new(remote, local);
    outer.protocol(protocol::ESP).payload(&esp).frame(to, from, None)
}
