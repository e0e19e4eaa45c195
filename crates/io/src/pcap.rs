//! Classic pcap: a 24-byte header, then records of a 16-byte header and a packet
//! (draft-ietf-opsawg-pcap). The reader is our own for the reasons told in `pcapng.rs`.

use crate::stream::{ByteOrder, Filled, fill, must_fill};
use crate::{CaptureError, Defect, LinkType};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes of a packet in a capture at most: tcpdump's own largest snapshot length.
pub const MAX_RECORD: u32 = 262_144;

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// The header's link-type word: a flag, and the length of a frame check sequence behind packets.
const FCS_PRESENT: u32 = 0x0400_0000;
const LINK_NUMBER: u32 = 0xffff;

/// The record of one packet in a capture file; its bytes lie in the buffer it was read into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) timestamp_ns: u64,
    /// Bytes of the packet on the wire; more than `bytes` holds if the capture cut it.
    pub(crate) original: u32,
    pub(crate) link: LinkType,
    pub(crate) bytes: Range<usize>,
}

/// Unit of a file's timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The older kind of pcap file, read by everything.
    Microsecond,
    /// The resolution that Lockgate writes unless told otherwise.
    Nanosecond,
}

impl Resolution {
    const fn unit_ns(self) -> u32 {
        match self {
            Resolution::Microsecond => 1000,
            Resolution::Nanosecond => 1,
        }
    }
}

/// Reads records one by one; holds no packet.
pub(crate) struct PcapReader<R> {
    from: R,
    order: ByteOrder,
    resolution: Resolution,
    pub(crate) link: LinkType,
}

/// Returns the byte order and resolution if `magic`, the file's first four bytes, begins a classic
/// pcap file.
fn kind_of(magic: [u8; 4]) -> Option<(ByteOrder, Resolution)> {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        match order.u32(&magic, 0) {
            MICROSECONDS => return Some((order, Resolution::Microsecond)),
            NANOSECONDS => return Some((order, Resolution::Nanosecond)),
            _ => {}
        }
    }
    None
}

impl<R: Read> PcapReader<R> {
    /// Reads the rest of the file header, behind its magic number.
    pub(crate) fn new(mut from: R, magic: [u8; 4]) -> Result<Self, Defect> {
        let Some((order, resolution)) = kind_of(magic) else {
            return Err(Defect::NotACapture(u32::from_be_bytes(magic)));
        };
        let mut header = [0; 20];
        must_fill(&mut from, &mut header)?;
        let version = order.u16(&header, 0);
        if version != 2 {
            return Err(Defect::Version(version));
        }
        let word = order.u32(&header, 16);
        let number = word & LINK_NUMBER;
        let link = LinkType::from_number(number).ok_or(Defect::LinkType(number))?;
        if word & FCS_PRESENT != 0 && word >> 28 != 0 {
            return Err(Defect::FrameCheckSequence);
        }
        Ok(PcapReader { from, order, resolution, link })
    }

    /// Reads the next record's packet into `buffer`. `None`: the file ended behind a record.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Record>, Defect> {
        let mut header = [0; 16];
        if fill(&mut self.from, &mut header)? == Filled::Ended {
            return Ok(None);
        }
        let field = |at| self.order.u32(&header, at);
        let (seconds, fraction, captured, original) = (field(0), field(4), field(8), field(12));
        check_lengths(captured, original)?;
        buffer.clear();
        buffer.resize(captured as usize, 0);
        must_fill(&mut self.from, buffer)?;
        let timestamp_ns = u64::from(seconds) * 1_000_000_000
            + u64::from(fraction) * u64::from(self.resolution.unit_ns());
        let bytes = 0..captured as usize;
        Ok(Some(Record { timestamp_ns, original, link: self.link, bytes }))
    }
}

/// Refuses lengths that no capture program writes.
pub(crate) fn check_lengths(captured: u32, original: u32) -> Result<(), Defect> {
    if captured > MAX_RECORD {
        return Err(Defect::RecordTooLong { length: captured.into(), limit: MAX_RECORD.into() });
    }
    if captured > original {
        return Err(Defect::Lengths { captured, original });
    }
    Ok(())
}

/// Writes a classic pcap file, little-endian on every machine: equal packets, equal files.
///
/// Packets are buffered: call [`finish`](CaptureWriter::finish) to know that they are written.
pub struct CaptureWriter<W: Write = BufWriter<File>> {
    file: PathBuf,
    to: W,
    resolution: Resolution,
    written: u64,
}

impl CaptureWriter {
    /// Makes the file `path`, or empties it, and writes its header.
    ///
    /// # Errors
    /// [`Defect::Open`], [`Defect::Io`].
    pub fn create(
        path: &Path,
        link: LinkType,
        resolution: Resolution,
    ) -> Result<Self, CaptureError> {
        let file = File::create(path).map_err(|error| CaptureError {
            file: path.to_owned(),
            packet: None,
            defect: Defect::Open(error),
        })?;
        CaptureWriter::new(BufWriter::new(file), path, link, resolution)
    }
}

impl<W: Write> CaptureWriter<W> {
    /// Writes a file header to `to`; `name` is what errors call it.
    ///
    /// # Errors
    /// [`Defect::Io`].
    pub fn new(
        mut to: W,
        name: &Path,
        link: LinkType,
        resolution: Resolution,
    ) -> Result<Self, CaptureError> {
        let magic = match resolution {
            Resolution::Microsecond => MICROSECONDS,
            Resolution::Nanosecond => NANOSECONDS,
        };
        let mut header = [0; 24];
        header[0..4].copy_from_slice(&magic.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&MAX_RECORD.to_le_bytes());
        header[20..24].copy_from_slice(&link.number().to_le_bytes());
        let file = name.to_owned();
        match to.write_all(&header) {
            Ok(()) => Ok(CaptureWriter { file, to, resolution, written: 0 }),
            Err(error) => Err(CaptureError { file, packet: None, defect: Defect::Io(error) }),
        }
    }

    /// Packets written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// [`Defect::PacketTooLong`] and [`Defect::Clock`]: nothing was written. [`Defect::Io`]: the
    /// file may end inside the packet; nothing more should be written to it.
    pub fn write(&mut self, timestamp_ns: u64, packet: &[u8]) -> Result<(), CaptureError> {
        self.write_record(timestamp_ns, packet).map_err(|defect| self.error(defect))?;
        self.written += 1;
        Ok(())
    }

    /// Hands all that was written to the operating system.
    ///
    /// # Errors
    /// [`Defect::Io`].
    pub fn finish(&mut self) -> Result<(), CaptureError> {
        let flushed = self.to.flush();
        flushed.map_err(|error| self.error(Defect::Io(error)))
    }

    /// The error `defect` of the packet that would be written next.
    pub(crate) fn error(&self, defect: Defect) -> CaptureError {
        CaptureError { file: self.file.clone(), packet: Some(self.written + 1), defect }
    }

    fn write_record(&mut self, timestamp_ns: u64, packet: &[u8]) -> Result<(), Defect> {
        let length = match u32::try_from(packet.len()) {
            Ok(length) if length <= MAX_RECORD => length,
            _ => {
                let (length, limit) = (packet.len() as u64, MAX_RECORD.into());
                return Err(Defect::PacketTooLong { length, limit });
            }
        };
        let Ok(seconds) = u32::try_from(timestamp_ns / 1_000_000_000) else {
            return Err(Defect::Clock { timestamp_ns });
        };
        let fraction = (timestamp_ns % 1_000_000_000) as u32 / self.resolution.unit_ns();
        let mut header = [0; 16];
        header[0..4].copy_from_slice(&seconds.to_le_bytes());
        header[4..8].copy_from_slice(&fraction.to_le_bytes());
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[12..16].copy_from_slice(&length.to_le_bytes());
        self.to.write_all(&header)?;
        self.to.write_all(packet)?;
        Ok(())
    }
}
