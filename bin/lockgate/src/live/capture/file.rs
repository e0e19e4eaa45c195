//! Captured packets as a pcapng file, or on standard output.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use api::v1::{CaptureRequest, CapturedPacket};
use console::output::Reader;
use io::pcapng::{
    Direction, InterfaceId, Packet, PcapNgWriter, Statistics, WrittenInterface as Interface,
};
use io::{CaptureError, Defect, LinkType};

use super::{Counts, STANDARD_OUTPUT, line};
use crate::failure::Failure;

/// Rights of a capture: the owner's alone.
const MODE: u32 = 0o600;

/// An interface of the file: a port's name, whether its packets were inside tunnels, and what they
/// begin with.
type Place = (String, bool, LinkType);

/// A pcapng file that is being written.
pub(super) struct CaptureFile {
    path: PathBuf,
    writer: PcapNgWriter<Box<dyn Write>>,
    interfaces: HashMap<Place, InterfaceId>,
    /// The request that the daemon accepted.
    request: CaptureRequest,
    start_ns: u64,
}

impl CaptureFile {
    /// Makes a new file that only its owner reads; one that is there stays as it is. `-`: standard
    /// output.
    pub(super) fn create(path: &Path, request: &CaptureRequest) -> Result<CaptureFile, Failure> {
        let to: Box<dyn Write> = if path == Path::new(STANDARD_OUTPUT) {
            Box::new(BufWriter::new(std::io::stdout()))
        } else {
            // `create_new` (O_EXCL) follows no link and opens nothing that is there.
            let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
            Box::new(BufWriter::new(file.map_err(Failure::file(path))?))
        };
        let layers = match request.layers.as_str() {
            "outer" => "packets on the wire",
            "inner" => "packets inside tunnels",
            _ => "packets on the wire and inside tunnels",
        };
        let drops = if request.drops { ", dropped ones only" } else { "" };
        let comment = format!("lockgate capture: {layers}{drops}");
        let program = concat!("lockgate ", env!("CARGO_PKG_VERSION"));
        let writer = PcapNgWriter::new(to, program, &comment).map_err(at(path))?;
        Ok(CaptureFile {
            path: path.to_owned(),
            writer,
            interfaces: HashMap::new(),
            request: request.clone(),
            start_ns: now_ns(),
        })
    }

    /// Writes packets so that a reader of the file sees them.
    pub(super) fn put(&mut self, packets: &[CapturedPacket]) -> Result<Reader, Failure> {
        let written = packets.iter().try_for_each(|packet| self.packet(packet));
        match written.and_then(|()| self.writer.flush()) {
            Ok(()) => Ok(Reader::Reads),
            Err(Defect::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
            Err(defect) => Err(at(&self.path)(defect)),
        }
    }

    /// Writes the number of packets left out, and ends the file.
    pub(super) fn finish(&mut self, counts: Counts) -> Result<(), Failure> {
        match self.statistics(counts).and_then(|()| self.writer.flush()) {
            Err(Defect::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(at(&self.path)),
        }
    }

    fn packet(&mut self, packet: &CapturedPacket) -> Result<(), Defect> {
        let link = if packet.link == "ip" { LinkType::Raw } else { LinkType::Ethernet };
        let interface = self.interface((packet.port.clone(), packet.inner, link))?;
        let direction = match packet.direction.as_str() {
            "in" => Direction::Inbound,
            _ => Direction::Outbound,
        };
        self.writer.packet(Packet {
            interface,
            timestamp_ns: packet.unix_ns,
            original: packet.original_length,
            bytes: &packet.bytes,
            direction,
            comment: &line::comment(packet),
        })
    }

    fn interface(&mut self, place: Place) -> Result<InterfaceId, Defect> {
        if let Some(known) = self.interfaces.get(&place) {
            return Ok(*known);
        }
        let (port, is_inner, link) = &place;
        let (name, description) = match is_inner {
            false => (port.clone(), format!("port {port}")),
            true => (format!("{port}:inner"), format!("packets inside tunnels of port {port}")),
        };
        let id = self.writer.interface(Interface {
            name: &name,
            description: &description,
            filter: &self.request.filter,
            link: *link,
            snaplen: self.request.snaplen,
        })?;
        self.interfaces.insert(place, id);
        Ok(id)
    }

    /// The counts are of the whole capture and stand at one interface.
    fn statistics(&mut self, counts: Counts) -> Result<(), Defect> {
        let first = self.interfaces.values().min_by_key(|id| id.number()).copied();
        let interface = match first {
            Some(id) => id,
            None => self.interface((self.request.port.clone(), false, LinkType::Ethernet))?,
        };
        let left_out = counts.by_rate + counts.by_room;
        let comment = format!("of the whole capture: {}", super::left_out(counts));
        self.writer.statistics(
            interface,
            Statistics {
                span_ns: (self.start_ns, now_ns()),
                accepted: counts.packets + left_out,
                left_out,
                comment: &comment,
            },
        )
    }
}

/// For `map_err`: a defect of this file.
fn at(path: &Path) -> impl FnOnce(Defect) -> Failure {
    move |defect| CaptureError { file: path.to_owned(), packet: None, defect }.into()
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::CaptureReader;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn request() -> CaptureRequest {
        let port = "wan".into();
        CaptureRequest { port, snaplen: 96, layers: "both".into(), ..CaptureRequest::default() }
    }

    #[test]
    fn a_file_is_its_owners_alone_and_never_one_that_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pcapng");
        let mut file = CaptureFile::create(&path, &request()).unwrap();
        let packet = CapturedPacket {
            port: "wan".into(),
            bytes: b"abcd".into(),
            original_length: 9,
            unix_ns: 77,
            link: "ip".into(),
            ..CapturedPacket::default()
        };
        assert_eq!(file.put(&[packet]).unwrap(), Reader::Reads);
        file.finish(Counts { packets: 1, by_rate: 2, by_room: 0 }).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut reader = CaptureReader::open(&path).unwrap();
        let read = reader.peek().unwrap().unwrap();
        assert_eq!((read.bytes, read.original, read.timestamp_ns), (&b"abcd"[..], 9, 77));

        let again = CaptureFile::create(&path, &request()).err().expect("it is there");
        assert!(again.to_string().contains("File exists"), "{again}");
        let link = directory.path().join("link");
        symlink(directory.path().join("elsewhere"), &link).unwrap();
        assert!(CaptureFile::create(&link, &request()).is_err(), "through a link");
        assert!(!directory.path().join("elsewhere").exists());
    }

    #[test]
    fn a_capture_without_packets_says_what_it_left_out_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty.pcapng");
        let mut file = CaptureFile::create(&path, &request()).unwrap();
        file.finish(Counts { packets: 0, by_rate: 0, by_room: 5 }).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let left_out = "5 left out (0 over the rate limit, 5 for lack of buffer space)";
        assert!(text.contains(left_out), "{text}");
    }
}
