//! The host's view of the traffic, as a pcapng file: frames without the card's header, and their
//! tags as comments. tcpdump cannot take it where AF_XDP receives.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use io::LinkType;
use io::pcapng::{Direction, InterfaceId, Packet, PcapNgWriter, WrittenInterface};

use crate::failure::Failure;

/// Name of the file's interface.
const NAME: &str = "emulated card, host side";

/// A capture that is being written.
pub(crate) struct Capture {
    writer: PcapNgWriter<BufWriter<File>>,
    interface: InterfaceId,
    /// Set if something was written since the last flush.
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Flushed,
    Written,
}

impl Capture {
    /// Begins a file.
    ///
    /// # Errors
    /// [`Failure::File`], [`Failure::Capture`].
    pub(crate) fn create(path: &Path, snaplen: usize) -> Result<Capture, Failure> {
        let file = File::create(path);
        let file = file.map_err(|source| Failure::File { path: path.to_owned(), source })?;
        let program = concat!("lockgate-emulated-card ", env!("CARGO_PKG_VERSION"));
        let mut writer = PcapNgWriter::new(BufWriter::new(file), program, "emulated")?;
        let interface = writer.interface(WrittenInterface {
            name: NAME,
            description: "inbound: from the emulated card to the host",
            filter: "",
            link: LinkType::Ethernet,
            snaplen: snaplen as u32,
        })?;
        Ok(Capture { writer, interface, state: State::Flushed })
    }

    /// Writes a frame; `tag` 0: none.
    ///
    /// # Errors
    /// [`Failure::Capture`].
    pub(crate) fn write(
        &mut self,
        direction: Direction,
        frame: &[u8],
        tag: u64,
    ) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let comment = match tag {
            0 => String::new(),
            tag => format!("emulated card's tag: handle {}, incarnation {}", tag as u32, tag >> 32),
        };
        self.state = State::Written;
        Ok(self.writer.packet(Packet {
            interface: self.interface,
            timestamp_ns: now.as_nanos() as u64,
            original: frame.len() as u32,
            bytes: frame,
            direction,
            comment: &comment,
        })?)
    }

    /// Gives what was written to the operating system.
    ///
    /// # Errors
    /// [`Failure::Capture`].
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if self.state == State::Written {
            self.writer.flush()?;
            self.state = State::Flushed;
        }
        Ok(())
    }
}
