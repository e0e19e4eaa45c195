//! Packets that are ciphered for a test or a measurement at the start of the process.

use wire::{FrameId, Frames};

use super::{OpenJob, SealJob};

/// One frame a packet.
pub(super) struct Trial(pub(super) Vec<Vec<u8>>);

impl Frames for Trial {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.0[frame.0 as usize]
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        &mut self.0[frame.0 as usize]
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        assert_eq!(frames.len(), into.len(), "a place for every frame");
        let mut filled = 0;
        for (number, bytes) in self.0.iter_mut().enumerate() {
            if let Some(place) = frames.iter().position(|frame| frame.0 as usize == number) {
                into[place] = bytes;
                filled += 1;
            }
        }
        filled == frames.len()
    }

    fn take(&mut self) -> Option<FrameId> {
        None
    }

    fn give(&mut self, _frame: FrameId) {}
}

/// The job that opens what another has sealed.
pub(super) fn opening(job: &SealJob) -> OpenJob {
    let SealJob { frame, aad, text, text_length, nonce, sequence, row } = *job;
    OpenJob { frame, aad, text, text_length, nonce, sequence, row, authentic: false }
}
