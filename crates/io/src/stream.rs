//! Reading exact lengths from a stream, with "ended before" apart from "ended inside".

use crate::Defect;
use std::io::{ErrorKind, Read};

/// Byte order of a file or section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The 16-bit number at `at`; 0 where there are no bytes.
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let Some(Ok(raw)) = bytes.get(at..at + 2).map(TryInto::try_into) else { return 0 };
        match self {
            ByteOrder::Little => u16::from_le_bytes(raw),
            ByteOrder::Big => u16::from_be_bytes(raw),
        }
    }

    /// The 32-bit number at `at`; 0 where there are no bytes.
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let Some(Ok(raw)) = bytes.get(at..at + 4).map(TryInto::try_into) else { return 0 };
        match self {
            ByteOrder::Little => u32::from_le_bytes(raw),
            ByteOrder::Big => u32::from_be_bytes(raw),
        }
    }
}

/// The result of filling a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// The buffer is full.
    Whole,
    /// Nothing was read: the stream had ended.
    Ended,
}

/// Fills `buffer`. An end inside it is [`Defect::Truncated`].
pub(crate) fn fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<Filled, Defect> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(Filled::Ended),
            Ok(0) => return Err(Defect::Truncated),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Defect::Io(error)),
        }
    }
    Ok(Filled::Whole)
}

/// Fills `buffer`; the stream must not end before.
pub(crate) fn must_fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), Defect> {
    match fill(from, buffer)? {
        Filled::Ended if !buffer.is_empty() => Err(Defect::Truncated),
        _ => Ok(()),
    }
}

/// Skips `count` bytes without storing them.
pub(crate) fn skip(from: &mut impl Read, count: u64) -> Result<(), Defect> {
    let skipped = std::io::copy(&mut from.take(count), &mut std::io::sink())?;
    if skipped == count { Ok(()) } else { Err(Defect::Truncated) }
}
