use wire::flow::Upper;
use wire::{Flow, Fragment};

use super::*;

mod book;
mod opening;
mod sealing;
mod transport;
mod udp;

const FRAME: FrameId = FrameId(0);

/// Bytes that differ by place and by seed.
fn noise(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Returns the answer of a parser for `length` bytes if they were a packet of this family.
fn invented(family: Family, length: usize) -> Packet {
    let (upper_offset, upper) = (0, Upper::None);
    Packet {
        flow: Flow { family, source: 1, destination: 2, protocol: 253, upper, opens: false },
        length: length as u32,
        upper_offset,
        hop_limit: 64,
        traffic_class: 0,
        fragment: Fragment::Whole,
        fragment_fields: wire::FragmentFields::UNKNOWN,
        dont_fragment: true,
    }
}

/// Places in and around a frame.
fn edges() -> impl proptest::strategy::Strategy<Value = usize> {
    use proptest::prelude::*;
    prop_oneof![8 => 0usize..220, 1 => (usize::MAX - 50)..=usize::MAX, 1 => any::<usize>()]
}
