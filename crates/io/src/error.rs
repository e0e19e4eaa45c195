//! Defects of a capture file, and where they lie.

use crate::LinkType;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A capture file that cannot be read or written further. The packets read before remain valid.
#[derive(Debug)]
pub struct CaptureError {
    /// The file.
    pub file: PathBuf,
    /// Number of the packet, from 1 as Wireshark counts; `None` for the file as a whole.
    pub packet: Option<u64>,
    /// The defect found.
    pub defect: Defect,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.packet {
            Some(number) => {
                write!(f, "{}: packet {number}: {}", self.file.display(), self.defect)
            }
            None => write!(f, "{}: {}", self.file.display(), self.defect),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.defect)
    }
}

/// Returns the advice for a capture of all interfaces at once (`LINKTYPE_LINUX_SLL` and its
/// successor).
fn cooked(link_number: u32) -> &'static str {
    match link_number {
        113 | 276 => "; capture on one interface, not on any",
        _ => "",
    }
}

/// A defect of a capture file. All but the first three are the file's fault.
#[derive(Debug, thiserror::Error)]
pub enum Defect {
    /// The file cannot be opened or made.
    #[error("cannot open: {0}")]
    Open(#[source] io::Error),
    /// The operating system failed to read or write.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A packet to be written lies beyond its frame or is longer than a capture record.
    #[error("a packet of {length} bytes does not fit a record of at most {limit}")]
    PacketTooLong {
        /// Bytes of the packet.
        length: u64,
        /// Bytes that there is room for.
        limit: u64,
    },
    /// A time that classic pcap's 32-bit seconds cannot hold.
    #[error("{timestamp_ns} ns is beyond the year 2106, where pcap's clock ends")]
    Clock {
        /// The time.
        timestamp_ns: u64,
    },
    /// The file begins with the magic number of neither format.
    #[error("neither pcap nor pcapng: it begins with {0:#010x}")]
    NotACapture(u32),
    /// A format version that this reader does not know.
    #[error("format version {0} is unknown")]
    Version(u16),
    /// The file ends inside a header, a record or a block.
    #[error("the file ends in the middle of it")]
    Truncated,
    /// A link type other than Ethernet and raw IP.
    #[error("link type {} is not supported: Ethernet (1) and raw IP (101) are{}", .0, cooked(*.0))]
    LinkType(u32),
    /// Packets carry a frame check sequence, which the walk would take for payload.
    #[error("its packets carry a frame check sequence; write it again without")]
    FrameCheckSequence,
    /// The interfaces of a pcapng file have different link types.
    #[error("its link type is {found:?}, that of the packets before {expected:?}")]
    MixedLinks {
        /// Link type of the first packet.
        expected: LinkType,
        /// Link type of this one.
        found: LinkType,
    },
    /// A record or block whose length field is more than any capture program writes.
    #[error("a record of {length} bytes; at most {limit} are read")]
    RecordTooLong {
        /// The length field.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A record that holds more bytes than its packet had.
    #[error("{captured} bytes were captured of a packet of {original}")]
    Lengths {
        /// Bytes in the file.
        captured: u32,
        /// Bytes of the packet when it was captured.
        original: u32,
    },
    /// A pcapng block whose length field cannot be.
    #[error("a block of type {kind:#x} gives its length as {length}")]
    BlockLength {
        /// Block type.
        kind: u32,
        /// The length field, before or behind the block.
        length: u32,
    },
    /// A pcapng section whose byte-order magic is wrong.
    #[error("the byte-order magic of a section is {0:#010x}")]
    ByteOrder(u32),
    /// A pcapng option that reaches beyond its block.
    #[error("option {0} reaches beyond its block")]
    OptionLength(u16),
    /// A packet of an interface that the section did not describe.
    #[error("it names interface {0}, which is not described")]
    Interface(u32),
    /// More interfaces in a section than this reader keeps.
    #[error("more than {0} interfaces in one section")]
    TooManyInterfaces(usize),
}
