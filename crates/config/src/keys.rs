//! Key files: manual keys for laboratories, one line an SA.
//!
//! ```text
//! # direction SPI key-material
//! out 0x00001001 000102…
//! in  4098       a0a1a2…
//! ```
//! A file is read only from `keys_dir`, only if it is regular, nobody else's, and readable by
//! nobody else. Its content is wiped after use and never shown: mistakes in it are told by file,
//! line and column alone, without the line and without any word of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipsec::{Fingerprint, KeyMaterial, Spi, Suite};
use keystate::KeyFileFacts;
use policy::Direction;
use zeroize::Zeroizing;

use crate::diagnostic::{DiagnosticKind, kind_text, material_text};
use crate::errors::{ConfigErrors, Diagnostic, MAX_PROBLEMS, Severity};
use crate::source::Location;
use crate::validated::{KeySource, Peer, PeerId, Validated};

/// The largest key file that is read, bytes.
pub const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// One SA's key. No `Debug`: it holds key bytes.
pub struct KeyLine {
    /// The direction: the SA seals outbound packets or opens inbound ones.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Key and salt, or encryption key and HMAC key.
    pub material: KeyMaterial,
}

/// The keys of all peers of a configuration, in the order of [`Validated::peers`]. No `Debug`.
#[derive(Default)]
pub struct Keys {
    /// The keys of each peer, in the order of its file.
    pub peers: Vec<Vec<KeyLine>>,
    /// The file of each peer's keys, `None` for a peer without one; empty for keys without files.
    pub files: Vec<Option<KeyFileFacts>>,
}

impl Keys {
    /// The keys of a peer, in the order of its file.
    ///
    /// # Panics
    /// If `peer` is from another configuration.
    pub fn of(&self, peer: PeerId) -> &[KeyLine] {
        &self.peers[peer.0 as usize]
    }

    /// Reads the key files of all peers in this directory. `named` holds, for each peer, the
    /// location that names its key file.
    ///
    /// Returns the keys with warnings.
    ///
    /// # Errors
    /// All mistakes of all files.
    pub(crate) fn read(
        config: &Validated,
        directory: &Path,
        named: &[Location],
    ) -> Result<(Keys, Vec<Diagnostic>), ConfigErrors> {
        // By components, so that no message names `directory/./file`.
        let directory: PathBuf = directory.components().collect();
        let is_key = crate::source::holds_key(&config.node.keys_dir.to_string_lossy());
        let mut seen = SeenKeys { directory_is_key: is_key, ..SeenKeys::default() };
        let mut keys = Keys::default();
        let of_files = |peer: &Peer| matches!(peer.keys, KeySource::File(_));
        let first = config.peers.iter().zip(named).find(|(peer, _)| of_files(peer));
        if let (Some((_, named)), Err(mistake)) = (first, check_directory(&directory)) {
            // Who may put files there chooses the keys: none of them is read.
            seen.problem(Severity::Error, named.clone(), mistake);
            return seen.finish().map(|warnings| (keys, warnings));
        }
        for (peer, named) in config.peers.iter().zip(named) {
            let KeySource::File(name) = &peer.keys else {
                keys.files.push(None);
                keys.peers.push(Vec::new());
                continue;
            };
            let path = directory.join(name);
            let lines = match read_dated_secret(&path) {
                Ok((content, modified)) => {
                    keys.files.push(Some(KeyFileFacts { path: path.clone(), modified }));
                    let file = path.display().to_string();
                    let (lines, problems) = parse(&content, peer.suite, &file);
                    for (line, place) in &lines {
                        seen.note(line, place, peer.tunnel().remote);
                    }
                    // What a file lacks may stand in the lines that are wrong.
                    if problems.is_empty() {
                        seen.judge_whole(&lines, named, &file);
                    }
                    seen.problems.extend(problems);
                    lines
                }
                Err(mistake) => {
                    seen.problem(Severity::Error, named.clone(), mistake);
                    Vec::new()
                }
            };
            keys.peers.push(lines.into_iter().map(|(line, _)| line).collect());
        }
        seen.finish().map(|warnings| (keys, warnings))
    }
}

/// Keys that a snapshot may seal with: every outbound one was made at random in this process, so
/// that sequence numbers may begin at 1. Configured keys come in to open with, never to seal with
/// (DESIGN I9); [`Keys::for_replay`] makes these of those. No `Debug`.
#[derive(Default)]
pub struct ReplayKeys(pub(crate) Keys);

impl ReplayKeys {
    /// Returns an empty list of keys for each peer, to evaluate a configuration alone: packets to
    /// encrypt are dropped, and none is decrypted.
    pub fn none(config: &Validated) -> ReplayKeys {
        let peers = config.peers.iter().map(|_| Vec::new()).collect();
        ReplayKeys(Keys { peers, files: Vec::new() })
    }

    /// Makes fresh random keys, one outbound key for each peer, under SPIs without meaning: for
    /// `explain` without key files, which seals nothing but shows what would be sealed.
    ///
    /// # Errors
    /// [`KeyFileError::NoRandom`].
    pub fn stand_ins(config: &Validated) -> Result<ReplayKeys, KeyFileError> {
        let line = |peer: &Peer| {
            let material = random_material(peer.suite)?;
            Ok(vec![KeyLine { direction: Direction::Outbound, spi: random_spi()?, material }])
        };
        let peers = config.peers.iter().map(line).collect::<Result<_, _>>()?;
        Ok(ReplayKeys(Keys { peers, files: Vec::new() }))
    }

    /// The keys of a peer, in the order of its file.
    ///
    /// # Panics
    /// If `peer` is from another configuration.
    pub fn of(&self, peer: PeerId) -> &[KeyLine] {
        self.0.of(peer)
    }

    /// The keys, for SAs whose sequence numbers begin at 1.
    pub fn into_keys(self) -> Keys {
        self.0
    }
}

/// Keys and SPIs seen so far: over all key files each may be there only once.
#[derive(Default)]
struct SeenKeys {
    problems: Vec<Diagnostic>,
    /// True if `keys_dir` looks like a key; then files in it are not named.
    directory_is_key: bool,
    inbound: HashMap<Spi, Location>,
    outbound: HashMap<(Spi, IpAddr), Location>,
    material: HashMap<Fingerprint, Location>,
}

impl SeenKeys {
    fn problem(&mut self, severity: Severity, place: Location, mistake: DiagnosticKind) {
        let mistake = if self.directory_is_key { DiagnosticKind::NotShown } else { mistake };
        self.problems.push(Diagnostic::new(severity, place, mistake));
    }

    fn note(&mut self, line: &KeyLine, place: &Location, remote: IpAddr) {
        let spi = match line.direction {
            Direction::Inbound => (self.inbound.get(&line.spi), DiagnosticKind::SameInboundSpi),
            Direction::Outbound => {
                (self.outbound.get(&(line.spi, remote)), DiagnosticKind::SameOutboundSpi)
            }
        };
        let fingerprint = line.material.fingerprint();
        let material = (self.material.get(&fingerprint), DiagnosticKind::SameMaterial);
        for (earlier, mistake) in [spi, material] {
            if let Some(earlier) = earlier {
                let mut problem = Diagnostic::new(Severity::Error, place.clone(), mistake);
                problem.earlier = Some(earlier.clone());
                self.problems.push(problem);
            }
        }
        match line.direction {
            Direction::Inbound => self.inbound.entry(line.spi).or_insert(place.clone()),
            Direction::Outbound => self.outbound.entry((line.spi, remote)).or_insert(place.clone()),
        };
        self.material.entry(fingerprint).or_insert(place.clone());
    }

    /// Judges a file of which every line is right.
    fn judge_whole(&mut self, lines: &[(KeyLine, Location)], named: &Location, file: &str) {
        if lines.is_empty() {
            let mistake = DiagnosticKind::KeyFileEmpty { file: file.to_owned() };
            return self.problem(Severity::Error, named.clone(), mistake);
        }
        for (missing, direction, consequence) in
            [(Direction::Outbound, "out", "sent"), (Direction::Inbound, "in", "received")]
        {
            if lines.iter().all(|(line, _)| line.direction != missing) {
                let mistake =
                    DiagnosticKind::KeyFileOneWay { file: file.to_owned(), direction, consequence };
                self.problem(Severity::Warning, named.clone(), mistake);
            }
        }
    }

    fn finish(self) -> Result<Vec<Diagnostic>, ConfigErrors> {
        let mut problems = self.problems;
        if problems.iter().all(|problem| problem.severity == Severity::Warning) {
            return Ok(problems);
        }
        let untold = problems.len().saturating_sub(MAX_PROBLEMS);
        problems.truncate(MAX_PROBLEMS);
        Err(ConfigErrors { problems, untold })
    }
}

/// Returns whether a name names a file in a directory and nothing outside it.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fits = (1..=255).contains(&name.len()) && !matches!(name, "." | "..");
    fits && !name.contains(['/', '\0']) && !name.contains(char::is_control)
}

/// Refuses a directory that others may put files into, be it sticky. One that cannot be looked at
/// is passed: its files will say why.
fn check_directory(path: &Path) -> Result<(), DiagnosticKind> {
    let directory = || path.display().to_string();
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & 0o022 != 0 {
        return Err(DiagnosticKind::KeysDirMode { directory: directory(), mode });
    }
    if owner != 0 && Some(owner) != effective_user() {
        return Err(DiagnosticKind::KeysDirOwner { directory: directory(), owner });
    }
    Ok(())
}

/// Opens a file that holds secrets and reads all of it.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, DiagnosticKind> {
    read_dated_secret(path).map(|(content, _)| content)
}

/// The same, with the time when the file was last changed; where the file system does not say,
/// long ago.
fn read_dated_secret(path: &Path) -> Result<(Zeroizing<Vec<u8>>, SystemTime), DiagnosticKind> {
    let name = path.display().to_string();
    let (mut file, bytes) = open_secret(path, &mut std::fs::OpenOptions::new())?;
    // Allocated at its full size: growing would leave copies behind that nobody wipes.
    let mut content = Zeroizing::new(Vec::with_capacity(bytes as usize + 1));
    let read = (&mut file).take(bytes + 1).read_to_end(&mut content);
    match read {
        Err(error) => Err(DiagnosticKind::KeyFileUnreadable { file: name, kind: error.kind() }),
        Ok(read) if read as u64 > bytes => {
            Err(DiagnosticKind::KeyFileTooLarge { file: name, limit: MAX_KEY_FILE_BYTES })
        }
        Ok(_) => {
            let modified = file.metadata().and_then(|metadata| metadata.modified());
            Ok((content, modified.unwrap_or(SystemTime::UNIX_EPOCH)))
        }
    }
}

/// Opens a file for reading (and for whatever `options` say) if it is fit to hold secrets:
/// 1. no symbolic link, and no waiting at a pipe;
/// 2. regular, ours or root's, closed to everyone else, and not too large, judged by the open
///    file and not by its name.
///
/// Returns its size too.
pub(crate) fn open_secret(
    path: &Path,
    options: &mut std::fs::OpenOptions,
) -> Result<(File, u64), DiagnosticKind> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::ELOOP) => DiagnosticKind::KeyFileIsLink { file: name.clone() },
        _ => DiagnosticKind::KeyFileUnreadable { file: name.clone(), kind: error.kind() },
    };
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(&unreadable)?;
    let metadata = file.metadata().map_err(&unreadable)?;
    if !metadata.is_file() {
        return Err(DiagnosticKind::KeyFileNotRegular { file: name });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & !0o600 != 0 {
        return Err(DiagnosticKind::KeyFileMode { file: name, mode });
    }
    let owner = metadata.uid();
    if owner != 0 && Some(owner) != effective_user() {
        return Err(DiagnosticKind::KeyFileOwner { file: name, owner });
    }
    if metadata.len() > MAX_KEY_FILE_BYTES {
        return Err(DiagnosticKind::KeyFileTooLarge { file: name, limit: MAX_KEY_FILE_BYTES });
    }
    Ok((file, metadata.len()))
}

/// The effective user id of this process; `None` if the kernel does not say, and then only root's
/// files are trusted. (`geteuid` would be a foreign call, which is unsafe.)
pub fn effective_user() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Words of a line of a key file, each with its column (from 1, in characters). What follows `#`
/// is a comment.
pub(crate) fn words(line: &[u8]) -> Vec<(u32, &[u8])> {
    let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
    let mut words = Vec::new();
    let mut start = None;
    for (at, byte) in line[..end].iter().chain(b" ").enumerate() {
        match (start, byte.is_ascii_whitespace()) {
            (None, false) => start = Some(at),
            (Some(first), true) => {
                words.push((first as u32 + 1, &line[first..at]));
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Parses the lines of a key file. Returns the valid ones, each with its place, and the mistakes of
/// the others.
pub(crate) fn parse(
    content: &[u8],
    suite: Suite,
    file: &str,
) -> (Vec<(KeyLine, Location)>, Vec<Diagnostic>) {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for (number, text) in content.split(|byte| *byte == b'\n').enumerate() {
        let words = words(text);
        let place = |column| Location { file: file.into(), line: number as u32 + 1, column };
        match words.as_slice() {
            [] => {}
            [direction, spi, hex] => match key_line(*direction, *spi, *hex, suite) {
                Ok(line) => lines.push((line, place(direction.0))),
                Err((column, mistake)) => {
                    problems.push(Diagnostic::new(Severity::Error, place(column), mistake));
                }
            },
            [(column, _), ..] => {
                let mistake = DiagnosticKind::KeyWords { expected: 3, got: words.len() };
                problems.push(Diagnostic::new(Severity::Error, place(*column), mistake));
            }
        }
    }
    (lines, problems)
}

type Word<'a> = (u32, &'a [u8]);

fn key_line(
    direction: Word<'_>,
    spi: Word<'_>,
    hex: Word<'_>,
    suite: Suite,
) -> Result<KeyLine, (u32, DiagnosticKind)> {
    let direction = match direction.1 {
        b"in" => Direction::Inbound,
        b"out" => Direction::Outbound,
        _ => return Err((direction.0, DiagnosticKind::KeyDirection { expected: "in` or `out" })),
    };
    Ok(KeyLine { direction, spi: parse_spi(spi)?, material: parse_hex(hex, suite)? })
}

/// An SPI, decimal or `0x…`.
pub(crate) fn parse_spi((column, word): Word<'_>) -> Result<Spi, (u32, DiagnosticKind)> {
    let text = std::str::from_utf8(word).map_err(|_| (column, DiagnosticKind::KeySpi))?;
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` would take a sign too.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = plain.then(|| u32::from_str_radix(digits, radix).ok()).flatten();
    let number = number.ok_or((column, DiagnosticKind::KeySpi))?;
    Spi::new(number).ok_or((column, DiagnosticKind::KeySpiReserved))
}

/// Key material in hexadecimal.
pub(crate) fn parse_hex(
    (column, word): Word<'_>,
    suite: Suite,
) -> Result<KeyMaterial, (u32, DiagnosticKind)> {
    let expected = 2 * suite.material_bytes();
    let wrong = |got| (column, DiagnosticKind::KeyLength { suite, expected, got });
    if let Some(at) = word.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return Err((column + at as u32, DiagnosticKind::KeyDigit));
    }
    if word.len() != expected {
        return Err(wrong(word.len()));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    let mut bytes = Zeroizing::new(Vec::with_capacity(suite.material_bytes()));
    bytes.extend(word.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
    KeyMaterial::new(suite, &bytes).map_err(|_| wrong(word.len()))
}

/// Appends bytes in hexadecimal. The caller has reserved the room.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
}

/// Reason why keys could not be made or written. The machine or the command line is at fault.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum KeyFileError {
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandom,
    /// A file of this name is there; it is never overwritten.
    #[error("{file} is there already and is not overwritten")]
    Exists {
        /// The file.
        file: String,
    },
    /// The file cannot be written.
    #[error("{file} cannot be written: {}", kind_text(*.kind))]
    Unwritable {
        /// The file.
        file: String,
        /// The kernel's answer.
        kind: ErrorKind,
    },
}

/// Fresh random key material.
pub(crate) fn random_material(suite: Suite) -> Result<KeyMaterial, KeyFileError> {
    let mut bytes = Zeroizing::new(vec![0; suite.material_bytes()]);
    getrandom::fill(&mut bytes).map_err(|_| KeyFileError::NoRandom)?;
    KeyMaterial::new(suite, &bytes).map_err(|_| KeyFileError::NoRandom)
}

/// A random SPI that is not reserved.
fn random_spi() -> Result<Spi, KeyFileError> {
    loop {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).map_err(|_| KeyFileError::NoRandom)?;
        if let Some(spi) = Spi::new(u32::from_be_bytes(bytes)) {
            return Ok(spi);
        }
    }
}

/// Room for a key file with two keys of any suite: the longest has 2 × 192 digits.
const KEY_FILE_BYTES: usize = 1024;

/// The texts of two key files for the two ends of a tunnel: what one seals with, the other opens
/// with. Fresh random keys and SPIs.
///
/// # Errors
/// [`KeyFileError::NoRandom`].
pub fn generate_pair(suite: Suite) -> Result<[Zeroizing<String>; 2], KeyFileError> {
    let (there, back) = (random_material(suite)?, random_material(suite)?);
    let there_spi = random_spi()?;
    let back_spi = loop {
        let spi = random_spi()?;
        if spi != there_spi {
            break spi;
        }
    };
    let text = |out: (Spi, &KeyMaterial), inwards: (Spi, &KeyMaterial)| {
        // Allocated at its full size: growing would leave copies behind that nobody wipes.
        let mut text = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES));
        text.push_str("# Lockgate keys for a laboratory: direction, SPI, ");
        text.push_str(&format!("{}. Suite: {suite}", material_text(suite)));
        for (direction, (spi, material)) in [("out", out), ("in", inwards)] {
            text.push_str(&format!("\n{direction} {spi} "));
            push_hex(&mut text, material.expose());
        }
        text.push('\n');
        debug_assert!(text.len() <= KEY_FILE_BYTES);
        text
    };
    Ok([text((there_spi, &there), (back_spi, &back)), text((back_spi, &back), (there_spi, &there))])
}

/// Writes a key file that was not there before, readable by its owner only.
///
/// # Errors
/// [`KeyFileError::Exists`], [`KeyFileError::Unwritable`].
pub fn write_key_file(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let name = || path.display().to_string();
    let unwritable = |kind| match kind {
        ErrorKind::AlreadyExists => KeyFileError::Exists { file: name() },
        kind => KeyFileError::Unwritable { file: name(), kind },
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| unwritable(error.kind()))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| {
        remove_partial(path, &file);
        unwritable(error.kind())
    })
}

/// Removes what was written of a key file, unless another file has its name by now: half a key is
/// of no use and in the way of the next try.
fn remove_partial(path: &Path, file: &File) {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::symlink_metadata(path).map(identity).ok();
    if there.is_some() && there == file.metadata().map(identity).ok() {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_of_a_key_file_is_removed_and_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("partial");
        let file = File::create_new(&path).unwrap();
        remove_partial(&path, &file);
        assert!(!path.exists());
        let other = File::create_new(&path).unwrap();
        remove_partial(&path, &file);
        assert!(path.exists(), "not the file that was written");
        remove_partial(&path, &other);
        remove_partial(&path, &other);
        assert!(!path.exists());
    }
}
