//! Reads text files: the configuration, and those that it names.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::diagnostic::DiagnosticKind;

/// Reads a regular file of at most `limit` bytes. Never waits: a pipe or a device is refused.
///
/// # Errors
/// The reason why it cannot be read: rights, kind, size or encoding.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, DiagnosticKind> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    read_opened(options.open(path).map_err(|error| unopened(&error))?, limit)
}

/// Reads a regular file of at most `limit` bytes in `directory` or below. The kernel follows no
/// symbolic link on the way from `directory`, and never leaves it. Never waits.
///
/// # Errors
/// As [`read`]; [`DiagnosticKind::OutsideDirectory`], [`DiagnosticKind::ReachedByLink`].
pub(crate) fn read_beneath(
    directory: &Path,
    file: &Path,
    limit: u64,
) -> Result<String, DiagnosticKind> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    read_opened(open_beneath(directory, file, flags)?, limit)
}

/// Checks that [`read_beneath`] would reach the file. Opens no device and reads nothing.
///
/// # Errors
/// As [`read_beneath`].
pub(crate) fn check_beneath(directory: &Path, file: &Path) -> Result<(), DiagnosticKind> {
    open_beneath(directory, file, OFlags::PATH).map(drop)
}

/// Number of attempts to open a path whose directories are being renamed.
const RENAME_ATTEMPTS: usize = 8;

fn open_beneath(directory: &Path, file: &Path, flags: OFlags) -> Result<File, DiagnosticKind> {
    let failed = |error: Errno| match error {
        Errno::XDEV => DiagnosticKind::OutsideDirectory,
        Errno::LOOP => DiagnosticKind::ReachedByLink,
        error => unopened(&error.into()),
    };
    let here = Path::new(".");
    let directory = if directory == Path::new("") { here } else { directory };
    let directory = std::path::absolute(directory).map_err(|error| unopened(&error))?;
    let inside = match file.is_absolute() {
        true => file.strip_prefix(&directory).map_err(|_| DiagnosticKind::OutsideDirectory)?,
        false => file,
    };
    let (path, no_mode) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = rustix::fs::open(&directory, path, no_mode).map_err(failed)?;
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = || rustix::fs::openat2(&directory, inside, flags, no_mode, resolve);
    let mut opened = open();
    for _ in 1..RENAME_ATTEMPTS {
        if opened.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
        opened = open();
    }
    opened.map(File::from).map_err(failed)
}

/// Returns the reason why a file was not opened.
fn unopened(error: &std::io::Error) -> DiagnosticKind {
    match error.raw_os_error() {
        Some(libc::ENXIO) => DiagnosticKind::NotRegular { kind: "a socket" },
        _ => DiagnosticKind::Unreadable { kind: error.kind() },
    }
}

fn read_opened(file: File, limit: u64) -> Result<String, DiagnosticKind> {
    let metadata = file.metadata().map_err(|error| unopened(&error))?;
    let kind = metadata.file_type();
    match kind {
        _ if kind.is_file() && metadata.len() > limit => {
            Err(DiagnosticKind::TooLong { size: metadata.len(), limit })
        }
        _ if kind.is_file() => text_of(file, limit),
        _ if kind.is_dir() => Err(DiagnosticKind::NotRegular { kind: "a directory" }),
        _ if kind.is_fifo() => Err(DiagnosticKind::NotRegular { kind: "a pipe" }),
        _ => Err(DiagnosticKind::NotRegular { kind: "a device" }),
    }
}

/// Reads an open input of at most `limit` bytes up to its end.
///
/// # Errors
/// As [`read`].
pub(crate) fn text_of(input: impl Read, limit: u64) -> Result<String, DiagnosticKind> {
    let mut bytes = Vec::new();
    let read = input.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| DiagnosticKind::Unreadable { kind: error.kind() })?;
    if bytes.len() as u64 > limit {
        return Err(DiagnosticKind::TooLarge { limit });
    }
    String::from_utf8(bytes).map_err(|error| {
        let (line, column) = place_within(error.as_bytes(), error.utf8_error().valid_up_to());
        DiagnosticKind::NotText { line, column }
    })
}

/// Returns the line and the column, in characters, of the byte with this number. Both begin at 1;
/// the bytes before it are UTF-8.
pub fn place_within(bytes: &[u8], at: usize) -> (u32, u32) {
    let before = &bytes[..at];
    let is_end = |byte: &u8| *byte == b'\n';
    let line = before.iter().filter(|byte| is_end(byte)).count();
    let begin = before.iter().rposition(is_end).map_or(0, |end| end + 1);
    // A character has one byte that does not go on with another.
    let column = before[begin..].iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    let counted = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1);
    (counted(line), counted(column))
}
