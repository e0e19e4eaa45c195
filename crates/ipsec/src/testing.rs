//! Test data that several modules share.

use wire::{FrameId, Frames};

use crate::{KeyMaterial, Suite};

/// Frames on the heap, without a free list.
pub(crate) struct Heap(pub(crate) Vec<Vec<u8>>);

impl Frames for Heap {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.0[frame.0 as usize]
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        &mut self.0[frame.0 as usize]
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        let mut named = 0;
        for (number, bytes) in self.0.iter_mut().enumerate() {
            let place = frames.iter().position(|frame| frame.0 as usize == number);
            if let Some(place) = place {
                into[place] = bytes;
                named += 1;
            }
        }
        named == frames.len()
    }

    fn take(&mut self) -> Option<FrameId> {
        None
    }

    fn give(&mut self, _frame: FrameId) {}
}

pub(crate) const SPI: u32 = 0x0102_0304;

/// Key material that differs for different seeds.
pub(crate) fn material(suite: Suite, seed: u8) -> KeyMaterial {
    let bytes: Vec<u8> = (0..suite.material_bytes() as u8).map(|n| n.wrapping_add(seed)).collect();
    KeyMaterial::new(suite, &bytes).unwrap()
}

/// The bytes that `digits` write in hexadecimal; white space is ignored.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    assert_eq!(digits.len() % 2, 0);
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
