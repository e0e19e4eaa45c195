//! A port whose packets come from a capture file and leave into another.
//!
//! The capture's timestamps are the clock. A caller with several ports asks each for its
//! [`next_timestamp`], advances all of them to the smallest, receives what is due, and hands that
//! time to the walk as "now":
//!
//! ```text
//! while let Some(now) = smallest next_timestamp of all ports {
//!     advance_to(now) on all; receive, walk, transmit
//! }
//! finish() on all
//! ```
//!
//! [`Port`] has no errors, so a defect found while receiving or transmitting stops the input or
//! the output and is kept for the next `next_timestamp` or `finish`.
//!
//! [`next_timestamp`]: CapturePort::next_timestamp

use crate::memory::{packet_bytes, store};
use crate::pcap::{CaptureWriter, PcapReader, Record};
use crate::pcapng::{self, PcapNgReader};
use crate::stream::must_fill;
use crate::{CaptureError, Defect, LinkType};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use wire::frame::{Descriptor, Frames, Port, Received};

/// Bytes read from a file at once.
const READ_BYTES: usize = 65_536;

enum Format<R> {
    Pcap(PcapReader<R>),
    PcapNg(PcapNgReader<R>),
}

/// Reads a pcap or pcapng file packet by packet, one packet ahead. Memory: one packet.
pub struct CaptureReader<R: Read = BufReader<File>> {
    file: PathBuf,
    format: Format<R>,
    link: LinkType,
    /// The packet read ahead; its bytes lie in `buffer`.
    ahead: Option<Record>,
    buffer: Vec<u8>,
    /// Packets read, the one read ahead included.
    packets: u64,
    /// Packets of which the file holds only the beginning.
    cut: u64,
    /// The file ended, or a defect was reported: nothing more is read.
    ended: bool,
    /// A defect found while reading ahead, to be reported when the caller gets there.
    defect: Option<Defect>,
}

/// A packet of a capture file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Captured<'a> {
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Bytes that the packet had on the wire.
    pub original: u32,
    /// Bytes that the file holds: all, or the first part if the capture was limited.
    pub bytes: &'a [u8],
}

impl CaptureReader {
    /// Opens a capture file of either format.
    ///
    /// # Errors
    /// [`Defect::Open`], and everything that can be wrong up to the first packet.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = File::open(path).map_err(|error| CaptureError {
            file: path.to_owned(),
            packet: None,
            defect: Defect::Open(error),
        })?;
        CaptureReader::new(BufReader::with_capacity(READ_BYTES, file), path)
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads a capture from `from`; `name` is what errors call it.
    ///
    /// # Errors
    /// Everything that can be wrong with the file's header. A defect of the first packet is
    /// reported when it is asked for, except its link type, which is the file's.
    pub fn new(mut from: R, name: &Path) -> Result<Self, CaptureError> {
        let file = name.to_owned();
        let error = |defect| CaptureError { file: name.to_owned(), packet: None, defect };
        let mut magic = [0; 4];
        must_fill(&mut from, &mut magic).map_err(error)?;
        let (format, link) = if magic == pcapng::MAGIC {
            (Format::PcapNg(PcapNgReader::new(from).map_err(error)?), LinkType::Ethernet)
        } else {
            let reader = PcapReader::new(from, magic).map_err(error)?;
            let link = reader.link;
            (Format::Pcap(reader), link)
        };
        let mut reader = CaptureReader {
            file,
            format,
            link,
            ahead: None,
            buffer: Vec::new(),
            packets: 0,
            cut: 0,
            ended: false,
            defect: None,
        };
        reader.read_ahead();
        if let Some(first) = &reader.ahead {
            reader.link = first.link;
        }
        match reader.defect.take() {
            Some(defect @ (Defect::LinkType(_) | Defect::FrameCheckSequence)) => Err(error(defect)),
            other => {
                reader.defect = other;
                Ok(reader)
            }
        }
    }

    /// Link type of the file's packets: of a pcapng file that of its first packet, Ethernet if it
    /// has none.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Packets of which the file holds only the beginning (the capture had a snapshot length),
    /// among those read so far. They are handed on as short as they are.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The next packet, which stays the next one until [`skip`](CaptureReader::skip). `None`: the
    /// file has ended.
    ///
    /// # Errors
    /// Everything that can be wrong with a packet. It is said once; after it the file has ended.
    pub fn peek(&mut self) -> Result<Option<Captured<'_>>, CaptureError> {
        if let Some(defect) = self.defect.take() {
            let packet = Some(self.packets + 1);
            return Err(CaptureError { file: self.file.clone(), packet, defect });
        }
        Ok(self.ahead.as_ref().map(|record| Captured {
            timestamp_ns: record.timestamp_ns,
            original: record.original,
            bytes: &self.buffer[record.bytes.clone()],
        }))
    }

    /// Goes on to the packet behind the next one.
    pub fn skip(&mut self) {
        self.ahead = None;
        self.read_ahead();
    }

    fn read_ahead(&mut self) {
        if self.ended {
            return;
        }
        let read = match &mut self.format {
            Format::Pcap(reader) => reader.next(&mut self.buffer),
            Format::PcapNg(reader) => reader.next(&mut self.buffer),
        };
        match read {
            Ok(Some(record)) if self.packets > 0 && record.link != self.link => {
                self.ended = true;
                self.defect = Some(Defect::MixedLinks { expected: self.link, found: record.link });
            }
            Ok(Some(record)) => {
                self.packets += 1;
                self.cut += u64::from(record.original as usize > record.bytes.len());
                self.ahead = Some(record);
            }
            Ok(None) => self.ended = true,
            Err(defect) => {
                self.ended = true;
                self.defect = Some(defect);
            }
        }
    }
}

/// Packets that a [`CapturePort`] moved. A caller that shows these must report `cut` prominently:
/// those packets were processed without their ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CaptureCounts {
    /// Packets received.
    pub received: u64,
    /// Packets transmitted.
    pub transmitted: u64,
    /// Packets of the input of which the capture held only the beginning.
    pub cut: u64,
}

/// A port between two capture files, either of which may be missing: without an input nothing is
/// received, without an output what is transmitted is counted and discarded.
pub struct CapturePort<R: Read = BufReader<File>, W: Write = BufWriter<File>> {
    input: Option<CaptureReader<R>>,
    output: Option<CaptureWriter<W>>,
    now_ns: u64,
    received: u64,
    transmitted: u64,
    /// The first defect that nobody was told of yet.
    fault: Option<CaptureError>,
    /// The output had a defect: nothing more is accepted. (A reader stops by itself.)
    output_stopped: bool,
}

impl<R: Read, W: Write> CapturePort<R, W> {
    /// A port at time 0. Nothing is due until [`advance_to`](CapturePort::advance_to).
    pub fn new(input: Option<CaptureReader<R>>, output: Option<CaptureWriter<W>>) -> Self {
        CapturePort {
            input,
            output,
            now_ns: 0,
            received: 0,
            transmitted: 0,
            fault: None,
            output_stopped: false,
        }
    }

    /// Returns the link type of the received packets; `None` without an input.
    pub fn link(&self) -> Option<LinkType> {
        self.input.as_ref().map(CaptureReader::link)
    }

    /// Returns the time at which the next packet arrives, in nanoseconds since 1970. Captures are
    /// not always in order: it can be earlier than the packet before it. `None`: there are no more.
    ///
    /// # Errors
    /// A defect of the input, or one kept from [`Port::transmit`]; each is returned once.
    pub fn next_timestamp(&mut self) -> Result<Option<u64>, CaptureError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let Some(input) = &mut self.input else { return Ok(None) };
        Ok(input.peek()?.map(|packet| packet.timestamp_ns))
    }

    /// Sets the clock forward: packets stamped up to `now_ns` are due, transmitted ones are
    /// stamped with it. An earlier time than before changes nothing.
    pub fn advance_to(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Returns the packets that the port moved so far.
    pub fn counts(&self) -> CaptureCounts {
        CaptureCounts {
            received: self.received,
            transmitted: self.transmitted,
            cut: self.input.as_ref().map_or(0, CaptureReader::cut),
        }
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// A defect that nobody was told of yet; else a failure to write.
    pub fn finish(&mut self) -> Result<(), CaptureError> {
        let flushed = self.output.as_mut().map_or(Ok(()), CaptureWriter::finish);
        self.fault.take().map_or(flushed, Err)
    }

    /// Writes one packet, if there is an output.
    fn write<F: Frames>(&mut self, frames: &F, packet: Descriptor) -> Result<(), CaptureError> {
        let Some(output) = &mut self.output else { return Ok(()) };
        match packet_bytes(frames, packet) {
            Some(bytes) => output.write(self.now_ns, bytes),
            None => {
                let room = frames.bytes(packet.frame).len() as u64;
                let limit = room.saturating_sub(packet.offset.into());
                Err(output.error(Defect::PacketTooLong { length: packet.length.into(), limit }))
            }
        }
    }
}

impl<F: Frames, R: Read, W: Write> Port<F> for CapturePort<R, W> {
    /// Receives what is due. Stops early when no frame is free or the file has a defect.
    fn receive(&mut self, frames: &mut F, limit: usize, into: &mut Vec<Received>) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(input) = &mut self.input else { break };
            let packet = match input.peek() {
                Ok(Some(packet)) if packet.timestamp_ns <= self.now_ns => packet,
                Ok(_) => break,
                Err(error) => {
                    self.fault.get_or_insert(error);
                    break;
                }
            };
            let Some(descriptor) = store(frames, packet.bytes) else { break };
            input.skip();
            into.push(descriptor.into());
            self.received += 1;
            count += 1;
        }
        count
    }

    /// Writes packets stamped with the port's clock. A packet that cannot be written stops the
    /// output and stays with the caller, as do all after it.
    fn transmit(&mut self, frames: &mut F, packets: &[Descriptor]) -> usize {
        for (accepted, &packet) in packets.iter().enumerate() {
            if self.output_stopped {
                return accepted;
            }
            if let Err(error) = self.write(frames, packet) {
                self.output_stopped = true;
                self.fault.get_or_insert(error);
                return accepted;
            }
            self.transmitted += 1;
            frames.give(packet.frame);
        }
        packets.len()
    }
}

#[cfg(test)]
mod tests;
