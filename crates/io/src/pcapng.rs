//! pcapng: sections of blocks, each section with its byte order and its interfaces, each
//! interface with its link type and clock (draft-ietf-opsawg-pcapng).
//!
//! Read are section headers, interface descriptions and the three kinds of packet block; all
//! other blocks are skipped. Decryption secrets and name resolution are not for this reader.
//! [`PcapNgWriter`] writes the same blocks, with comments and statistics.
//!
//! Not crate `pcap-file`, for this format and the classic one: it ignores `if_tsresol`, refuses
//! captures that a snapshot length limited, and asserts on hostile blocks. It is the other
//! implementation in the tests.

mod writer;

use crate::pcap::{MAX_RECORD, Record, check_lengths};
use crate::stream::{ByteOrder, Filled, fill, must_fill, skip};
use crate::{Defect, LinkType};
use std::io::Read;

pub use writer::{
    Direction, Interface as WrittenInterface, InterfaceId, Packet, PcapNgWriter, Statistics,
};

/// Interfaces that a section may describe.
pub const MAX_INTERFACES: usize = 4096;

/// Bytes of a block that is looked into: the largest packet and 64 KiB of options.
const MAX_BLOCK: u32 = MAX_RECORD + 65_536;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Bytes of a block around its body: type and length before, length again behind.
const FRAMING: u32 = 12;

const OPTION_END: u16 = 0;
const OPTION_TIMESTAMP_RESOLUTION: u16 = 9;
const OPTION_FCS_LENGTH: u16 = 13;
const OPTION_TIMESTAMP_OFFSET: u16 = 14;

/// The first four bytes of a pcapng file.
pub(crate) const MAGIC: [u8; 4] = SECTION_HEADER.to_be_bytes();

/// An interface that packets were captured on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interface {
    link_number: u32,
    snap_length: u32,
    clock: Clock,
    has_fcs: bool,
}

/// The unit and origin of an interface's timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Clock {
    /// `if_tsresol`: bit 7 chooses powers of 2 (set) or 10, the rest is the negative exponent.
    resolution: u8,
    /// `if_tsoffset`: seconds to add.
    offset_seconds: i64,
}

impl Clock {
    /// Nanoseconds since 1970 of a timestamp, clamped to what 64 bits hold.
    fn nanoseconds(self, timestamp: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let count = u128::from(timestamp);
        let since_offset = match (self.resolution & 0x80 != 0, exponent) {
            (true, _) => (count * 1_000_000_000) >> exponent,
            (false, 0..=9) => count * 10u128.pow(9 - exponent),
            (false, _) => 10u128.checked_pow(exponent - 9).map_or(0, |unit| count / unit),
        };
        let offset = i128::from(self.offset_seconds) * 1_000_000_000;
        let sum = i128::try_from(since_offset).unwrap_or(i128::MAX).saturating_add(offset);
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }
}

/// Reads packets one by one; holds the interfaces of the section it is in.
pub(crate) struct PcapNgReader<R> {
    from: R,
    order: ByteOrder,
    interfaces: Vec<Interface>,
    /// Time of the last packet: what a simple packet block, which has none, is given.
    last_ns: u64,
}

impl<R: Read> PcapNgReader<R> {
    /// Reads the first section header, behind its block type.
    pub(crate) fn new(from: R) -> Result<Self, Defect> {
        let mut reader =
            PcapNgReader { from, order: ByteOrder::Little, interfaces: Vec::new(), last_ns: 0 };
        let mut length = [0; 4];
        must_fill(&mut reader.from, &mut length)?;
        reader.begin_section(length)?;
        Ok(reader)
    }

    /// Reads on to the next packet block, into `buffer`. `None`: the file ended behind a block.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Record>, Defect> {
        loop {
            let mut header = [0; 8];
            if fill(&mut self.from, &mut header)? == Filled::Ended {
                return Ok(None);
            }
            if header[..4] == MAGIC {
                self.begin_section([header[4], header[5], header[6], header[7]])?;
                continue;
            }
            let (kind, length) = (self.order.u32(&header, 0), self.order.u32(&header, 4));
            let body_length = body_length(kind, length)?;
            match kind {
                INTERFACE_DESCRIPTION | OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET => {
                    self.read_body(kind, length, buffer)?;
                }
                _ => {
                    skip(&mut self.from, body_length.into())?;
                    self.read_trailer(kind, length)?;
                }
            }
            let record = match kind {
                INTERFACE_DESCRIPTION => {
                    self.describe_interface(buffer)?;
                    continue;
                }
                ENHANCED_PACKET => self.packet(self.order.u32(buffer, 0), buffer)?,
                OBSOLETE_PACKET => self.packet(self.order.u16(buffer, 0).into(), buffer)?,
                SIMPLE_PACKET => self.simple_packet(buffer)?,
                _ => continue,
            };
            self.last_ns = record.timestamp_ns;
            return Ok(Some(record));
        }
    }

    /// Reads a section header behind its type: byte order, version; then skips its options.
    fn begin_section(&mut self, raw_length: [u8; 4]) -> Result<(), Defect> {
        let mut head = [0; 16];
        must_fill(&mut self.from, &mut head)?;
        self.order = match ByteOrder::Little.u32(&head, 0) {
            BYTE_ORDER_MAGIC => ByteOrder::Little,
            magic if magic.swap_bytes() == BYTE_ORDER_MAGIC => ByteOrder::Big,
            magic => return Err(Defect::ByteOrder(magic)),
        };
        let version = self.order.u16(&head, 4);
        if version != 1 {
            return Err(Defect::Version(version));
        }
        let length = self.order.u32(&raw_length, 0);
        let body_length = body_length(SECTION_HEADER, length)?;
        let rest = body_length
            .checked_sub(head.len() as u32)
            .ok_or(Defect::BlockLength { kind: SECTION_HEADER, length })?;
        skip(&mut self.from, rest.into())?;
        self.read_trailer(SECTION_HEADER, length)?;
        self.interfaces.clear();
        Ok(())
    }

    fn read_body(&mut self, kind: u32, length: u32, into: &mut Vec<u8>) -> Result<(), Defect> {
        if length > MAX_BLOCK {
            return Err(Defect::RecordTooLong { length: length.into(), limit: MAX_BLOCK.into() });
        }
        into.clear();
        into.resize((length - FRAMING) as usize, 0);
        must_fill(&mut self.from, into)?;
        self.read_trailer(kind, length)
    }

    fn read_trailer(&mut self, kind: u32, length: u32) -> Result<(), Defect> {
        let mut trailer = [0; 4];
        must_fill(&mut self.from, &mut trailer)?;
        match self.order.u32(&trailer, 0) {
            again if again == length => Ok(()),
            again => Err(Defect::BlockLength { kind, length: again }),
        }
    }

    fn describe_interface(&mut self, body: &[u8]) -> Result<(), Defect> {
        if self.interfaces.len() == MAX_INTERFACES {
            return Err(Defect::TooManyInterfaces(MAX_INTERFACES));
        }
        let Some(options) = body.get(8..) else {
            return Err(block_length(INTERFACE_DESCRIPTION, body));
        };
        let mut interface = Interface {
            link_number: self.order.u16(body, 0).into(),
            snap_length: self.order.u32(body, 4),
            clock: Clock { resolution: 6, offset_seconds: 0 },
            has_fcs: false,
        };
        let order = self.order;
        for_each_option(order, options, |code, value| match (code, value) {
            (OPTION_TIMESTAMP_RESOLUTION, &[resolution]) => interface.clock.resolution = resolution,
            (OPTION_FCS_LENGTH, &[length]) => interface.has_fcs = length != 0,
            (OPTION_TIMESTAMP_OFFSET, value) if value.len() == 8 => {
                let (first, second) = (order.u32(value, 0), order.u32(value, 4));
                let (high, low) = match order {
                    ByteOrder::Little => (second, first),
                    ByteOrder::Big => (first, second),
                };
                interface.clock.offset_seconds = (u64::from(high) << 32 | u64::from(low)) as i64;
            }
            _ => {}
        })?;
        self.interfaces.push(interface);
        Ok(())
    }

    /// The interface numbered `number` and its link type, if its packets can be read.
    fn interface(&self, number: u32) -> Result<(Interface, LinkType), Defect> {
        let interface = *self.interfaces.get(number as usize).ok_or(Defect::Interface(number))?;
        let link = LinkType::from_number(interface.link_number)
            .ok_or(Defect::LinkType(interface.link_number))?;
        if interface.has_fcs {
            return Err(Defect::FrameCheckSequence);
        }
        Ok((interface, link))
    }

    /// An enhanced packet block, or the obsolete one: both have their packet behind 20 bytes.
    fn packet(&self, interface: u32, body: &[u8]) -> Result<Record, Defect> {
        let Some(behind) = body.get(20..) else {
            return Err(block_length(ENHANCED_PACKET, body));
        };
        let (interface, link) = self.interface(interface)?;
        let field = |at| self.order.u32(body, at);
        let timestamp = u64::from(field(4)) << 32 | u64::from(field(8));
        let (captured, original) = (field(12), field(16));
        check_lengths(captured, original)?;
        if captured as usize > behind.len() {
            return Err(block_length(ENHANCED_PACKET, body));
        }
        let timestamp_ns = interface.clock.nanoseconds(timestamp);
        Ok(Record { timestamp_ns, original, link, bytes: 20..20 + captured as usize })
    }

    /// A simple packet block: interface 0, no time, its captured length implied.
    fn simple_packet(&self, body: &[u8]) -> Result<Record, Defect> {
        let Some(behind) = body.get(4..) else {
            return Err(block_length(SIMPLE_PACKET, body));
        };
        let (interface, link) = self.interface(0)?;
        let original = self.order.u32(body, 0);
        let captured = match interface.snap_length {
            0 => original,
            limit => original.min(limit),
        };
        check_lengths(captured, original)?;
        if captured as usize > behind.len() {
            return Err(block_length(SIMPLE_PACKET, body));
        }
        let bytes = 4..4 + captured as usize;
        Ok(Record { timestamp_ns: self.last_ns, original, link, bytes })
    }
}

/// Bytes of a block's body, from its length field.
fn body_length(kind: u32, length: u32) -> Result<u32, Defect> {
    match length.checked_sub(FRAMING) {
        Some(body) if length.is_multiple_of(4) => Ok(body),
        _ => Err(Defect::BlockLength { kind, length }),
    }
}

/// The error of a block that is too short for what it should hold.
fn block_length(kind: u32, body: &[u8]) -> Defect {
    Defect::BlockLength { kind, length: body.len() as u32 + FRAMING }
}

/// Calls `see` with code and value of every option.
fn for_each_option(
    order: ByteOrder,
    mut options: &[u8],
    mut see: impl FnMut(u16, &[u8]),
) -> Result<(), Defect> {
    while options.len() >= 4 {
        let (code, length) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
        if code == OPTION_END {
            break;
        }
        let value = options.get(4..4 + length).ok_or(Defect::OptionLength(code))?;
        see(code, value);
        options = options.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(resolution: u8, offset_seconds: i64) -> Clock {
        Clock { resolution, offset_seconds }
    }

    #[test]
    fn a_timestamp_counts_what_the_interface_says() {
        assert_eq!(clock(6, 0).nanoseconds(1_500_000), 1_500_000_000, "microseconds");
        assert_eq!(clock(9, 0).nanoseconds(17), 17, "nanoseconds");
        assert_eq!(clock(12, 0).nanoseconds(17_999), 17, "picoseconds, rounded down");
        assert_eq!(clock(0, 3).nanoseconds(2), 5_000_000_000, "seconds, with an offset");
        assert_eq!(clock(0x80 | 1, 0).nanoseconds(3), 1_500_000_000, "halves of a second");
    }

    #[test]
    fn no_clock_overflows() {
        for resolution in 0..=u8::MAX {
            for offset in [i64::MIN, -1, 0, i64::MAX] {
                for timestamp in [0, 1, u64::MAX] {
                    clock(resolution, offset).nanoseconds(timestamp);
                }
            }
        }
        assert_eq!(clock(0, i64::MIN).nanoseconds(5), 0, "before 1970");
        assert_eq!(clock(0, 0).nanoseconds(u64::MAX), u64::MAX, "beyond 64 bits");
    }
}
