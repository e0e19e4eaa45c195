//! Writes pcapng: one section, its interfaces as they turn up, packets with comments, and at the
//! end the statistics of each interface. Little-endian on every machine, nanoseconds.

use std::io::Write;

use super::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, FRAMING, INTERFACE_DESCRIPTION, MAX_INTERFACES, OPTION_END,
    OPTION_TIMESTAMP_RESOLUTION, SECTION_HEADER,
};
use crate::{Defect, LinkType};

const INTERFACE_STATISTICS: u32 = 5;

const OPTION_COMMENT: u16 = 1;
const OPTION_USER_APPLICATION: u16 = 4;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_INTERFACE_DESCRIPTION: u16 = 3;
const OPTION_INTERFACE_FILTER: u16 = 11;
const OPTION_PACKET_FLAGS: u16 = 2;
const OPTION_STATISTICS_START: u16 = 2;
const OPTION_STATISTICS_END: u16 = 3;
const OPTION_STATISTICS_DROPPED: u16 = 5;
const OPTION_STATISTICS_ACCEPTED: u16 = 6;

/// Exponent of the unit of time: nanoseconds.
const NANOSECONDS: u8 = 9;
/// A filter in the syntax of pcap-filter.
const FILTER_TEXT: u8 = 0;
/// Bytes of an option at most; longer text is cut.
const MAX_OPTION: usize = 4096;

/// Numbers an interface of the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterfaceId(u32);

impl InterfaceId {
    /// Returns the interface's place in the file, from 0.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// An interface that packets were captured on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// A sentence about it.
    pub description: &'a str,
    /// The filter that packets passed; empty: none.
    pub filter: &'a str,
    /// The header that its packets begin with.
    pub link: LinkType,
    /// Bytes of a packet that the file holds at most.
    pub snaplen: u32,
}

/// The way of a packet, seen from its interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The packet was received.
    Inbound,
    /// The packet was sent.
    Outbound,
}

/// A packet for the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The interface on which it was captured.
    pub interface: InterfaceId,
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Bytes that it had.
    pub original: u32,
    /// Beginning of the packet, no longer than `original`.
    pub bytes: &'a [u8],
    /// Direction of the packet.
    pub direction: Direction,
    /// A comment; empty: none.
    pub comment: &'a str,
}

/// Counts of an interface at the end of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics<'a> {
    /// The times at which the capture began and ended, nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// Packets that the filter accepted.
    pub accepted: u64,
    /// Packets of these that are not in the file.
    pub left_out: u64,
    /// A comment; empty: none.
    pub comment: &'a str,
}

/// Writes a pcapng file.
pub struct PcapNgWriter<W> {
    to: W,
    interfaces: u32,
    block: Vec<u8>,
}

impl<W: Write> PcapNgWriter<W> {
    /// Writes the header of the file; `program` is what wrote it.
    ///
    /// # Errors
    /// [`Defect::Io`].
    pub fn new(to: W, program: &str, comment: &str) -> Result<PcapNgWriter<W>, Defect> {
        let mut writer = PcapNgWriter { to, interfaces: 0, block: Vec::new() };
        writer.u32(BYTE_ORDER_MAGIC);
        writer.u16(1);
        writer.u16(0);
        // The section's length: unknown.
        writer.u64(u64::MAX);
        writer.text_option(OPTION_COMMENT, comment);
        writer.text_option(OPTION_USER_APPLICATION, program);
        writer.end_block(SECTION_HEADER)?;
        Ok(writer)
    }

    /// Describes an interface, before its first packet.
    ///
    /// # Errors
    /// [`Defect::Io`], [`Defect::TooManyInterfaces`].
    pub fn interface(&mut self, interface: Interface<'_>) -> Result<InterfaceId, Defect> {
        if self.interfaces as usize >= MAX_INTERFACES {
            return Err(Defect::TooManyInterfaces(MAX_INTERFACES));
        }
        self.u16(interface.link.number() as u16);
        self.u16(0);
        self.u32(interface.snaplen);
        self.text_option(OPTION_INTERFACE_NAME, interface.name);
        self.text_option(OPTION_INTERFACE_DESCRIPTION, interface.description);
        self.option(OPTION_TIMESTAMP_RESOLUTION, &[NANOSECONDS]);
        if !interface.filter.is_empty() {
            let filter = [&[FILTER_TEXT], interface.filter.as_bytes()].concat();
            self.option(OPTION_INTERFACE_FILTER, &filter);
        }
        self.end_block(INTERFACE_DESCRIPTION)?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// [`Defect::Io`]; [`Defect::Lengths`]: there are more bytes than the packet had.
    pub fn packet(&mut self, packet: Packet<'_>) -> Result<(), Defect> {
        let captured = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
        crate::pcap::check_lengths(captured, packet.original)?;
        self.u32(packet.interface.0);
        self.time(packet.timestamp_ns);
        self.u32(captured);
        self.u32(packet.original);
        self.padded(packet.bytes);
        self.text_option(OPTION_COMMENT, packet.comment);
        let flags: u32 = match packet.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(OPTION_PACKET_FLAGS, &flags.to_le_bytes());
        self.end_block(ENHANCED_PACKET)
    }

    /// Writes the statistics of an interface.
    ///
    /// # Errors
    /// [`Defect::Io`].
    pub fn statistics(
        &mut self,
        interface: InterfaceId,
        statistics: Statistics<'_>,
    ) -> Result<(), Defect> {
        let Statistics { span_ns: (start, end), accepted, left_out, comment } = statistics;
        self.u32(interface.0);
        self.time(end);
        self.text_option(OPTION_COMMENT, comment);
        for (code, time) in [(OPTION_STATISTICS_START, start), (OPTION_STATISTICS_END, end)] {
            let halves = [(time >> 32) as u32, time as u32].map(u32::to_le_bytes);
            self.option(code, &halves.concat());
        }
        self.option(OPTION_STATISTICS_DROPPED, &left_out.to_le_bytes());
        self.option(OPTION_STATISTICS_ACCEPTED, &accepted.to_le_bytes());
        self.end_block(INTERFACE_STATISTICS)
    }

    /// Gives what was written to the operating system.
    ///
    /// # Errors
    /// [`Defect::Io`].
    pub fn flush(&mut self) -> Result<(), Defect> {
        Ok(self.to.flush()?)
    }

    /// Takes the writer apart.
    pub fn into_inner(self) -> W {
        self.to
    }

    fn u16(&mut self, value: u16) {
        self.block.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.block.extend(value.to_le_bytes());
    }

    /// A timestamp: the upper half comes first.
    fn time(&mut self, time_ns: u64) {
        self.u32((time_ns >> 32) as u32);
        self.u32(time_ns as u32);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    fn text_option(&mut self, code: u16, text: &str) {
        if !text.is_empty() {
            let mut end = text.len().min(MAX_OPTION);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            self.option(code, &text.as_bytes()[..end]);
        }
    }

    /// Ends the options of the block that was put together, and writes it.
    fn end_block(&mut self, kind: u32) -> Result<(), Defect> {
        self.u16(OPTION_END);
        self.u16(0);
        let length = self.block.len() as u32 + FRAMING;
        let head = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        self.to.write_all(&head)?;
        self.to.write_all(&self.block)?;
        self.to.write_all(&length.to_le_bytes())?;
        self.block.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CaptureReader;
    use pcap_file::pcapng::{
        Block, PcapNgReader as Other, blocks::enhanced_packet::EnhancedPacketOption,
    };
    use proptest::prelude::*;
    use std::path::Path;

    const ETHERNET: Interface<'_> = Interface {
        name: "wan",
        description: "port wan",
        filter: "tcp",
        link: LinkType::Ethernet,
        snaplen: 96,
    };

    fn packet<'a>(interface: InterfaceId, bytes: &'a [u8], comment: &'a str) -> Packet<'a> {
        let (timestamp_ns, original) = (1_700_000_000_123_456_789, bytes.len() as u32 + 4);
        let direction = Direction::Outbound;
        Packet { interface, timestamp_ns, original, bytes, direction, comment }
    }

    proptest! {
        #[test]
        fn two_readers_read_what_was_written(
            packets in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..200), "[ -~]{0,40}"), 0..20,
            ),
        ) {
            let mut writer = PcapNgWriter::new(Vec::new(), "lockgate test", "a note").unwrap();
            let wan = writer.interface(ETHERNET).unwrap();
            for (bytes, comment) in &packets {
                writer.packet(packet(wan, bytes, comment)).unwrap();
            }
            let comment = "3 packets were left out";
            let span_ns = (5, 1 << 40);
            let statistics = Statistics { span_ns, accepted: 9, left_out: 3, comment };
            writer.statistics(wan, statistics).unwrap();
            let file = writer.into_inner();

            let mut own = CaptureReader::new(&file[..], Path::new("x")).unwrap();
            let mut other = Other::new(&file[..]).unwrap();
            let mut seen = 0;
            let mut ended = false;
            while let Some(block) = other.next_block() {
                match block.unwrap() {
                    Block::EnhancedPacket(block) => {
                        let (bytes, comment) = &packets[seen];
                        prop_assert_eq!(&block.data[..], &bytes[..]);
                        prop_assert_eq!(block.original_len as usize, bytes.len() + 4);
                        let read = block.options.iter().find_map(|option| match option {
                            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                            _ => None,
                        });
                        prop_assert_eq!(read.unwrap_or_default(), comment.clone());
                        let flags = block.options.iter().find_map(|option| match option {
                            EnhancedPacketOption::Flags(flags) => Some(*flags),
                            _ => None,
                        });
                        prop_assert_eq!(flags, Some(2));
                        let ours = own.peek().unwrap().unwrap();
                        prop_assert_eq!(ours.bytes, &bytes[..]);
                        prop_assert_eq!(ours.timestamp_ns, 1_700_000_000_123_456_789);
                        own.skip();
                        seen += 1;
                    }
                    Block::InterfaceStatistics(block) => {
                        let text = format!("{:?}", block.options);
                        prop_assert!(text.contains("IfDrop(3)"), "{text}");
                        prop_assert!(text.contains("3 packets were left out"), "{text}");
                        ended = true;
                    }
                    Block::InterfaceDescription(_) => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            prop_assert_eq!((seen, ended), (packets.len(), true));
            prop_assert!(own.peek().unwrap().is_none());
        }
    }

    #[test]
    fn a_packet_is_never_longer_than_it_was() {
        let mut writer = PcapNgWriter::new(Vec::new(), "", "").unwrap();
        let wan = writer.interface(ETHERNET).unwrap();
        let wrong = Packet { original: 1, ..packet(wan, b"ab", "") };
        assert!(matches!(writer.packet(wrong), Err(Defect::Lengths { .. })));
        let length = writer.into_inner().len();
        assert!(length.is_multiple_of(4), "nothing of it was written");
    }
}
