//! The files of a replay: written under temporary names and moved to their own when all is well,
//! so that bad input destroys nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use config::ReplayKey;
use dataplane::{Medium, PortId, Snapshot};
use io::{CaptureError, CaptureWriter, Defect, LinkType, Resolution};
use ipsec::suite::{Encryption, Integrity};
use zeroize::Zeroizing;

use super::engine::Output;
use crate::ReplayError;

/// Output files of a replay: `x/out.pcap`, and files whose names begin with `x/out.`.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The capture of all packets that left by Ethernet ports.
    pub(crate) all: PathBuf,
    stem: String,
}

impl Places {
    pub(crate) fn new(all: &Path) -> Result<Places, ReplayError> {
        let name = all.file_name().ok_or(ReplayError::NoFileName)?.to_string_lossy();
        let stem = match name.rsplit_once('.') {
            Some((stem, "pcap" | "pcapng" | "cap")) if !stem.is_empty() => stem,
            _ => &name,
        };
        Ok(Places { all: all.into(), stem: stem.to_owned() })
    }

    fn beside(&self, ending: &str) -> PathBuf {
        self.all.with_file_name(format!("{}.{ending}", self.stem))
    }

    /// The capture of packets that left by one port.
    pub(crate) fn port(&self, name: &str) -> PathBuf {
        self.beside(&format!("{name}.pcap"))
    }

    /// The file of keys for the replay of the other gateway.
    pub(crate) fn keys(&self) -> PathBuf {
        self.beside("keys")
    }

    /// The file of keys for tshark.
    pub(crate) fn esp_sa(&self) -> PathBuf {
        self.beside("esp_sa")
    }

    /// Refuses to overwrite an input, and to replace anything but a regular file.
    pub(crate) fn check(&self, snapshot: &Snapshot, read: &[&Path]) -> Result<(), ReplayError> {
        let identity =
            |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let read: Vec<_> = read.iter().filter_map(|path| identity(path)).collect();
        let ports = snapshot.ports().map(|(_, port)| self.port(&port.name));
        for file in ports.chain([self.all.clone(), self.keys(), self.esp_sa()]) {
            if identity(&file).is_some_and(|identity| read.contains(&identity)) {
                return Err(ReplayError::OverwritesInput { file });
            }
            if fs::symlink_metadata(&file).is_ok_and(|metadata| !metadata.is_file()) {
                return Err(ReplayError::NotRegular { file });
            }
        }
        Ok(())
    }
}

/// A file under a temporary name. Removed when dropped, unless it was moved to its place.
struct Pending {
    temporary: PathBuf,
    place: PathBuf,
    moved: bool,
}

impl Pending {
    /// Makes an empty file beside `place`, readable by its owner only: it gets keys or decrypted
    /// packets.
    fn create(place: &Path) -> Result<(Pending, File), std::io::Error> {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let temporary = place.with_file_name(format!(".{name}.{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok((Pending { temporary, place: place.into(), moved: false }, file))
    }

    fn move_to_place(mut self) -> Result<(), ReplayError> {
        fs::rename(&self.temporary, &self.place).map_err(ReplayError::file(&self.place))?;
        self.moved = true;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.moved {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

struct CaptureFile {
    pending: Pending,
    writer: CaptureWriter<BufWriter<File>>,
    bytes: u64,
}

impl CaptureFile {
    fn create(place: &Path, link: LinkType) -> Result<CaptureFile, CaptureError> {
        let open = |error| CaptureError {
            file: place.to_owned(),
            packet: None,
            defect: Defect::Open(error),
        };
        let (pending, file) = Pending::create(place).map_err(open)?;
        let writer = CaptureWriter::new(BufWriter::new(file), place, link, Resolution::Nanosecond)?;
        Ok(CaptureFile { pending, writer, bytes: 0 })
    }

    fn write(&mut self, time_ns: u64, packet: &[u8]) -> Result<(), CaptureError> {
        self.bytes += packet.len() as u64;
        self.writer.write(time_ns, packet)
    }
}

/// Contents of one output file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct OutputFile {
    /// The port; `None`: all Ethernet ports together.
    pub(crate) port: Option<String>,
    pub(crate) file: PathBuf,
    pub(crate) packets: u64,
    /// Bytes of the packets, link headers included.
    pub(crate) bytes: u64,
}

/// The captures that a replay writes: one of everything, one per port that sends something.
pub(crate) struct Captures<'a> {
    snapshot: &'a Snapshot,
    places: &'a Places,
    all: CaptureFile,
    /// One entry per slot of a port; `None`: nothing sent yet.
    ports: Vec<Option<CaptureFile>>,
}

impl<'a> Captures<'a> {
    pub(crate) fn create(
        snapshot: &'a Snapshot,
        places: &'a Places,
    ) -> Result<Captures<'a>, CaptureError> {
        let all = CaptureFile::create(&places.all, LinkType::Ethernet)?;
        let ports = (0..snapshot.port_slots()).map(|_| None).collect();
        Ok(Captures { snapshot, places, all, ports })
    }

    /// Moves all captures to their places. Removes captures of an earlier replay for ports that
    /// sent nothing in this one: the files next to `out.pcap` belong to one run.
    pub(crate) fn finish(self) -> Result<Vec<OutputFile>, ReplayError> {
        let Captures { snapshot, places, mut all, mut ports } = self;
        let mut written = Vec::new();
        let mut pending = Vec::new();
        all.writer.finish()?;
        written.push(OutputFile {
            port: None,
            file: places.all.clone(),
            packets: all.writer.written(),
            bytes: all.bytes,
        });
        pending.push(all.pending);
        for (slot, port) in snapshot.ports() {
            let file = places.port(&port.name);
            let Some(mut capture) = ports[usize::from(slot.0)].take() else {
                match fs::remove_file(&file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(ReplayError::File { file, error });
                    }
                    _ => continue,
                }
            };
            capture.writer.finish()?;
            let (packets, bytes) = (capture.writer.written(), capture.bytes);
            written.push(OutputFile { port: Some(port.name.clone()), file, packets, bytes });
            pending.push(capture.pending);
        }
        pending.into_iter().try_for_each(Pending::move_to_place)?;
        Ok(written)
    }
}

impl Output for Captures<'_> {
    fn write(&mut self, port: PortId, time_ns: u64, packet: &[u8]) -> Result<(), CaptureError> {
        let info = self.snapshot.port(port);
        let link = match info.medium {
            Medium::Ethernet => LinkType::Ethernet,
            Medium::Ip => LinkType::Raw,
        };
        if link == LinkType::Ethernet {
            self.all.write(time_ns, packet)?;
        }
        let slot = &mut self.ports[usize::from(port.0)];
        let capture = match slot {
            Some(capture) => capture,
            None => slot.insert(CaptureFile::create(&self.places.port(&info.name), link)?),
        };
        capture.write(time_ns, packet)
    }
}

/// Writes the keys that tshark needs, in the form of its table `esp_sa`, readable by their owner
/// only. Suites that tshark does not know are left out.
pub(crate) fn write_esp_sa(place: &Path, keys: &[ReplayKey]) -> Result<(), ReplayError> {
    let failed = || ReplayError::file(place);
    let (pending, mut file) = Pending::create(place).map_err(failed())?;
    for line in keys.iter().filter_map(esp_sa_line) {
        file.write_all(line.as_bytes()).map_err(failed())?;
    }
    drop(file);
    pending.move_to_place()
}

/// One SA as tshark reads it; `None` if tshark does not know its suite.
fn esp_sa_line(key: &ReplayKey) -> Option<Zeroizing<String>> {
    let family = if key.tunnel.local.is_ipv4() { "IPv4" } else { "IPv6" };
    let suite = key.material.suite();
    let encryption = match suite.encryption() {
        Encryption::Gcm => "AES-GCM with 16 octet ICV [RFC4106]",
        Encryption::Cbc => "AES-CBC [RFC3602]",
        Encryption::Null => "NULL",
        Encryption::ChaCha20Poly1305 => return None,
    };
    let integrity = match suite.integrity() {
        Some(Integrity::HmacSha256) => "HMAC-SHA-256-128 [RFC4868]",
        Some(Integrity::HmacSha384) => "HMAC-SHA-384-192 [RFC4868]",
        Some(Integrity::HmacSha512) => "HMAC-SHA-512-256 [RFC4868]",
        None => "NULL",
    };
    let (local, remote) = (key.tunnel.local, key.tunnel.remote);
    let before =
        format!("\"{family}\",\"{local}\",\"{remote}\",\"{}\",\"{encryption}\",\"", key.spi);
    let between = format!("\",\"{integrity}\",\"");
    let material = key.material.expose();
    let (key, integrity_key) = material.split_at(material.len() - suite.integrity_key_bytes());
    // Allocated at its full size: growing would leave copies behind that nobody wipes.
    let most = before.len() + between.len() + 2 * material.len() + 2 * "0x".len() + "\"\n".len();
    let mut line = Zeroizing::new(String::with_capacity(most));
    line.push_str(&before);
    push_hex(&mut line, key);
    line.push_str(&between);
    push_hex(&mut line, integrity_key);
    line.push_str("\"\n");
    debug_assert!(line.len() <= most);
    Some(line)
}

/// Appends a key as tshark reads it: hexadecimal, or nothing where there is none.
fn push_hex(line: &mut String, key: &[u8]) {
    if !key.is_empty() {
        line.push_str("0x");
    }
    for byte in key {
        for nibble in [byte >> 4, byte & 15] {
            line.extend(char::from_digit(nibble.into(), 16));
        }
    }
}

/// Returns the tshark command that decrypts the sealed packets of an output.
pub(crate) fn tshark_command(places: &Places) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
    format!(
        "sed 's/^/-ouat:esp_sa:/' {} | xargs -d '\\n' tshark -r {} \
         -o esp.enable_encryption_decode:TRUE",
        quoted(&places.esp_sa()),
        quoted(&places.all),
    )
}
