//! Memory of a few frames, for the walk.
#![allow(dead_code, unreachable_pub, missing_docs)]

use wire::{FrameId, Frames, HEADROOM};

/// Memory of a few frames.
pub struct Memory(pub Vec<Vec<u8>>, Vec<FrameId>);

impl Memory {
    pub fn new(frame: &[u8]) -> Memory {
        let first = [&[0; HEADROOM], frame, &[0; 64]].concat();
        Memory(vec![first, vec![0; 2048], vec![0; 2048]], vec![FrameId(1), FrameId(2)])
    }
}

impl Frames for Memory {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.0[frame.0 as usize]
    }
    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        &mut self.0[frame.0 as usize]
    }
    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        match (frames, into) {
            ([frame], [place]) => *place = &mut self.0[frame.0 as usize],
            _ => return frames.is_empty(),
        }
        true
    }
    fn take(&mut self) -> Option<FrameId> {
        self.1.pop()
    }
    fn give(&mut self, frame: FrameId) {
        self.1.push(frame);
    }
}
