//! Small files that survive a power cut as they were or as they are.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file of the state directory atomically: it is complete and on disk, or unchanged.
pub(crate) fn write_file(path: &Path, content: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut options = File::options();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = write() {
        // Half a file is of no use, and takes room where there may be none.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_names(path)
}

/// Waits until the names in the directory that a file is in are on disk: a file that was synced
/// and whose name was not is gone after a power cut.
pub(crate) fn sync_names(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(directory) if directory != Path::new("") => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
