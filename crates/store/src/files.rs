//! Files that only this user writes, opened without following links.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Returns the path of a database with its directory's links resolved, so that SQLite need follow
/// none. Makes the file, mode 0600 and empty, if it is missing, and refuses one that others could
/// have written to.
///
/// An existing file is not opened: to close it would release the locks that another store of this
/// process holds on it (POSIX locks belong to the process).
pub(crate) fn prepare_database(path: &Path) -> Result<PathBuf, StoreError> {
    let directory = directory_of(path);
    let resolved = directory.canonicalize().map_err(|e| StoreError::system(directory, &e))?;
    let name = path
        .file_name()
        .ok_or_else(|| StoreError::system(path, &io::Error::from_raw_os_error(libc::EISDIR)))?;
    let path = resolved.join(name);
    match create_new(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let metadata = path.symlink_metadata();
            check(&path, &metadata.map_err(|e| StoreError::system(&path, &e))?)?;
        }
        // SQLite syncs the names of the files that it makes itself, but not this one's.
        created => {
            created.map_err(|e| StoreError::system(&path, &e))?;
            sync_directory(&path)?;
        }
    }
    Ok(path)
}

/// Opens a file for reading; `None`: it is not there.
pub(crate) fn open(path: &Path) -> Result<Option<File>, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| StoreError::system(path, &e))?,
    };
    check(path, &file.metadata().map_err(|e| StoreError::system(path, &e))?)?;
    Ok(Some(file))
}

/// Replaces a file so that after a crash it is the old or the new one, and after success the new
/// one: `write` fills a new file, which is synced, takes the name, and the directory is synced.
pub(crate) fn replace<T>(
    path: &Path,
    write: impl FnOnce(&File) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let new = beside(path, ".new");
    let of = |error: io::Error| StoreError::system(&new, &error);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(of(error)),
        _ => {}
    }
    let written = create_new(&new).map_err(of).and_then(|file| {
        let result = write(&file)?;
        file.sync_all().map_err(of)?;
        std::fs::rename(&new, path).map_err(|error| StoreError::system(path, &error))?;
        Ok(result)
    });
    if written.is_err() {
        // Half a file is of no use, and takes room where there may be none.
        let _ = std::fs::remove_file(&new);
    }
    let result = written?;
    sync_directory(path)?;
    Ok(result)
}

/// A path in the same directory, with something behind its name.
pub(crate) fn beside(path: &Path, behind: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(behind);
    path.with_file_name(name)
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = directory_of(path);
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| StoreError::system(directory, &error))
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), StoreError> {
    let (mode, owner) = (metadata.mode(), metadata.uid());
    let is_ours = owner == 0 || owner == user()?;
    match metadata.is_file() && is_ours && mode & 0o022 == 0 {
        true => Ok(()),
        false => Err(StoreError::Insecure { path: path.to_owned(), mode, owner }),
    }
}

/// The user of this process, as the kernel shows it.
fn user() -> Result<u32, StoreError> {
    let of = Path::new("/proc/self");
    let metadata = std::fs::metadata(of).map_err(|error| StoreError::system(of, &error))?;
    Ok(metadata.uid())
}
