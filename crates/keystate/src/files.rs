//! Trusted files: opened without following links, owned by this user, replaced whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest record that is read, bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A file operation that failed: the machine is at fault, or the person who keeps its directories.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refuses.
    #[error("{}: {}", .path.display(), io::Error::from_raw_os_error(*.code))]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error number.
        code: i32,
    },
    /// Other users could have written to the file, so its content proves nothing.
    #[error(
        "{}: mode {mode:04o}, owner {owner}: must belong to root or the user of this process, and \
         nobody else may write to it", .path.display()
    )]
    Insecure {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// User id of its owner.
        owner: u32,
    },
    /// The file is larger than any record.
    #[error("{}: larger than any record of Lockgate", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

impl FileError {
    /// The system's error about a path.
    pub(crate) fn of(path: &Path, error: &io::Error) -> FileError {
        FileError::System { path: path.to_owned(), code: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// Returns true if the file is missing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::System { code: libc::ENOENT, .. })
    }

    /// Returns true if the disk, or the user's quota, is full.
    pub fn is_disk_full(&self) -> bool {
        let full = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG];
        matches!(self, FileError::System { code, .. } if full.contains(code))
    }
}

/// Makes a directory and those above it that are missing, and refuses one that others may write to.
pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(of)?;
    let metadata = std::fs::metadata(path).map_err(of)?;
    check_ours(path, &metadata)
}

/// Opens a record file for reading and writing, and makes it if it is missing.
pub(crate) fn open_or_create(path: &Path) -> Result<File, FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).map_err(of)?;
    let metadata = file.metadata().map_err(of)?;
    check_regular(path, &metadata)?;
    Ok(file)
}

/// Reads a record file; `None`: it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(of)?,
    };
    let metadata = file.metadata().map_err(of)?;
    check_regular(path, &metadata)?;
    let mut content = Vec::new();
    (&mut file).take(MAX_RECORD_BYTES + 1).read_to_end(&mut content).map_err(of)?;
    if content.len() as u64 > MAX_RECORD_BYTES {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    Ok(Some(content))
}

/// Reads a short text of the system's.
pub(crate) fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|error| FileError::of(path, &error))
}

/// Replaces a file's content so that after a crash it is the old or the new one, and after success
/// the new one: a new file is written and synced, takes the name, and the directory is synced.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let new = beside(path, ".", ".new");
    let done = write_whole(&new, content);
    if done.is_err() {
        // Half a file is of no use, and takes room where there may be none.
        let _ = std::fs::remove_file(&new);
    }
    done?;
    std::fs::rename(&new, path).map_err(|error| FileError::of(path, &error))?;
    sync_directory(path)
}

fn write_whole(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path).map_err(of)?;
    let metadata = file.metadata().map_err(of)?;
    check_regular(path, &metadata)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(of)
}

/// Makes the names in a file's directory durable.
fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| FileError::of(directory, &error))
}

/// Renames a file that cannot be used, so that its name says so, and returns the new name.
pub(crate) fn set_aside(path: &Path) -> Result<PathBuf, FileError> {
    let aside = set_aside_name(path);
    std::fs::rename(path, &aside).map_err(|error| FileError::of(path, &error))?;
    sync_directory(path)?;
    Ok(aside)
}

/// The name of a file that was set aside.
pub(crate) fn set_aside_name(path: &Path) -> PathBuf {
    beside(path, "", ".bad")
}

/// Removes a file; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::of(path, &error)),
        _ => Ok(()),
    }
}

/// A path in the same directory, with something in front of and behind its last name.
pub(crate) fn beside(path: &Path, front: &str, behind: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(front);
    name.push(path.file_name().unwrap_or_default());
    name.push(behind);
    path.with_file_name(name)
}

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockHolder {
    Ours,
    /// Another process holds the lock.
    Theirs,
}

/// Takes the exclusive lock of an open file without waiting. It is held until the file is closed
/// and unmapped, at the latest by the end of the process, however it comes.
pub(crate) fn lock(file: &File, path: &Path) -> Result<LockHolder, FileError> {
    // SAFETY: flock takes a file descriptor, which is open for as long as `file` is borrowed, and
    // touches no memory of ours. Threat: a descriptor that means another file would lock that one.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    match result {
        0 => Ok(LockHolder::Ours),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::WouldBlock => Ok(LockHolder::Theirs),
            error => Err(FileError::of(path, &error)),
        },
    }
}

/// Releases a lock before the file is closed: a mapping of the file keeps it open.
///
/// # Safety
/// Nobody uses a mapping of the file any more that the lock protects. Else another process takes
/// the lock and makes the file shorter under it: a SIGBUS, or two writers.
pub(crate) unsafe fn unlock(file: &File) {
    // SAFETY: as in `lock`. It can only fail for a descriptor that is not open. Threat: as above.
    let _ = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// Allocates the blocks of a part of a file, so that writing to a mapping of it cannot fail.
pub(crate) fn allocate(file: &File, path: &Path, at: u64, bytes: u64) -> Result<(), FileError> {
    loop {
        // SAFETY: posix_fallocate takes a file descriptor, which is open for as long as `file` is
        // borrowed, and touches no memory of ours. Threat: another file would grow.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), at as i64, bytes as i64) };
        match code {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(FileError::System { path: path.to_owned(), code }),
        }
    }
}

fn check_regular(path: &Path, metadata: &std::fs::Metadata) -> Result<(), FileError> {
    if !metadata.is_file() {
        return Err(insecure(path, metadata));
    }
    check_ours(path, metadata)
}

fn check_ours(path: &Path, metadata: &std::fs::Metadata) -> Result<(), FileError> {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail. Threat: none.
    let us = unsafe { libc::geteuid() };
    let ours = metadata.uid() == 0 || metadata.uid() == us;
    if ours && metadata.mode() & 0o022 == 0 { Ok(()) } else { Err(insecure(path, metadata)) }
}

fn insecure(path: &Path, metadata: &std::fs::Metadata) -> FileError {
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    FileError::Insecure { path: path.to_owned(), mode, owner }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn replaced_file_is_ours_alone_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        assert_eq!(read(&path), Ok(None));
        for content in [b"one".as_slice(), b"", b"three"] {
            replace(&path, content).unwrap();
            assert_eq!(read(&path), Ok(Some(content.to_vec())));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_and_files_that_others_may_write_to_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("record"), directory.path().join("link"));
        replace(&path, b"x").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(read(&link), Err(FileError::System { code: libc::ELOOP, .. })));
        assert!(open_or_create(&link).is_err());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).unwrap();
        assert!(matches!(read(&path), Err(FileError::Insecure { mode: 0o620, .. })));
        assert!(matches!(open_or_create(&path), Err(FileError::Insecure { .. })));
        assert!(matches!(read(directory.path()), Err(FileError::Insecure { .. })));
    }

    #[test]
    fn lock_is_held_by_one_open_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (one, two) = (open_or_create(&path).unwrap(), open_or_create(&path).unwrap());
        assert_eq!(lock(&one, &path), Ok(LockHolder::Ours));
        assert_eq!(lock(&two, &path), Ok(LockHolder::Theirs));
        drop(one);
        assert_eq!(lock(&two, &path), Ok(LockHolder::Ours));
    }
}
