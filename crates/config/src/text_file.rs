//! Reads text files: the configuration, and those that it names.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::diagnostic::DiagnosticKind;

/// Reads a regular file of at most `limit` bytes. Never waits: a pipe or a device is refused.
///
/// # Errors
/// The reason why it cannot be read: rights, kind, size or encoding.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, DiagnosticKind> {
    let unreadable = |error: std::io::Error| DiagnosticKind::Unreadable { kind: error.kind() };
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = match options.open(path) {
        // A socket.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(DiagnosticKind::NotRegular { kind: "a socket" });
        }
        opened => opened.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
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
    String::from_utf8(bytes).map_err(|_| DiagnosticKind::NotText)
}
