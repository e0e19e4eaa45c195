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
