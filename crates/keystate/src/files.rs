//! Trusted files: opened without following links, owned by this user, replaced whole.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest record that is read, bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;
/// Files up to which each is synced alone.
const SYNCED_ONE_BY_ONE: usize = 16;

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

/// Opens a record file for reading; `None`: it is not there.
pub(crate) fn open(path: &Path) -> Result<Option<File>, FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(of)?,
    };
    let metadata = file.metadata().map_err(of)?;
    check_regular(path, &metadata)?;
    Ok(Some(file))
}

/// Reads a record file; `None`: it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let of = |error: io::Error| FileError::of(path, &error);
    let Some(mut file) = open(path)? else { return Ok(None) };
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
    let new = write_new(path, content, |file| file.sync_all())?;
    std::fs::rename(&new, path).map_err(|error| FileError::of(path, &error))?;
    sync_directory(path)
}

/// Replaces many files as [`replace`] does, each for itself and in any order, with one sync for
/// each file system and one for each directory. Returns one result for each file.
///
/// Few files are synced one by one: a sync of a file system also writes what others wrote to it.
pub(crate) fn replace_all(files: &[(PathBuf, Vec<u8>)]) -> Vec<Result<(), FileError>> {
    if files.len() <= SYNCED_ONE_BY_ONE {
        return files.iter().map(|(path, content)| replace(path, content)).collect();
    }
    let mut results: Vec<Result<(), FileError>> = vec![Ok(()); files.len()];
    let mut directories: BTreeMap<&Path, Directory> = BTreeMap::new();
    for ((path, content), result) in files.iter().zip(&mut results) {
        // Opened before the files are written, so that it sees the errors of their writes.
        *result = match directories.entry(directory_of(path)) {
            Entry::Occupied(_) => Ok(()),
            Entry::Vacant(vacant) => Directory::open(vacant.key()).map(|open| {
                vacant.insert(open);
            }),
        };
        if result.is_ok() {
            *result = write_new(path, content, |_| Ok(())).map(drop);
        }
    }
    let mut synced: BTreeMap<u64, Result<(), FileError>> = BTreeMap::new();
    for (path, directory) in &directories {
        synced.entry(directory.device).or_insert_with(|| sync_file_system(&directory.file, path));
    }
    for ((path, _), result) in files.iter().zip(&mut results).filter(|(_, r)| r.is_ok()) {
        let device = directories[directory_of(path)].device;
        let rename = || std::fs::rename(new_name(path), path);
        *result = synced[&device]
            .clone()
            .and_then(|()| rename().map_err(|error| FileError::of(path, &error)));
    }
    let synced: BTreeMap<&Path, Result<(), FileError>> = directories
        .iter()
        .map(|(path, directory)| {
            let synced = directory.file.sync_all();
            (*path, synced.map_err(|error| FileError::of(path, &error)))
        })
        .collect();
    for ((path, _), result) in files.iter().zip(&mut results) {
        match result {
            Ok(()) => *result = synced[directory_of(path)].clone(),
            Err(_) => drop(std::fs::remove_file(new_name(path))),
        }
    }
    results
}

/// A directory in which files are replaced.
struct Directory {
    file: File,
    device: u64,
}

impl Directory {
    fn open(path: &Path) -> Result<Directory, FileError> {
        let of = |error: io::Error| FileError::of(path, &error);
        let file = File::open(path).map_err(of)?;
        let device = file.metadata().map_err(of)?.dev();
        Ok(Directory { file, device })
    }
}

/// Writes all that was written to the file system of an open directory to its disk. Fails if a
/// write failed since the directory was opened (Linux 5.8 or later).
fn sync_file_system(directory: &File, path: &Path) -> Result<(), FileError> {
    // SAFETY: syncfs takes a file descriptor, which is open for as long as `directory` is borrowed,
    // and touches no memory of ours. Threat: another file system would be synced.
    let result = unsafe { libc::syncfs(directory.as_raw_fd()) };
    match result {
        0 => Ok(()),
        _ => Err(FileError::of(path, &io::Error::last_os_error())),
    }
}

/// The name under which a file is written before it takes its own.
fn new_name(path: &Path) -> PathBuf {
    beside(path, ".", ".new")
}

/// Writes the file that will take a name, and returns its own.
fn write_new(
    path: &Path,
    content: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> Result<PathBuf, FileError> {
    let new = new_name(path);
    let of = |error: io::Error| FileError::of(&new, &error);
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&new).map_err(of)?;
        let metadata = file.metadata().map_err(of)?;
        check_regular(&new, &metadata)?;
        file.write_all(content).and_then(|()| sync(&file)).map_err(of)
    };
    let written: Result<(), FileError> = write();
    if written.is_err() {
        // Half a file is of no use, and takes room where there may be none.
        let _ = std::fs::remove_file(&new);
    }
    written.map(|()| new)
}

/// Makes the names in a file's directory durable.
fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = directory_of(path);
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| FileError::of(directory, &error))
}

/// The directory that a file is in.
fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
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
    fn many_files_are_replaced_like_one_and_fail_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = |number: usize| root.path().join(format!("{}/{number}", number % 3));
        (0..3).for_each(|n| std::fs::create_dir(root.path().join(n.to_string())).unwrap());
        for count in [1, SYNCED_ONE_BY_ONE, SYNCED_ONE_BY_ONE + 1, 100] {
            // One has something in its way, one has no directory.
            let blocked = new_name(&path(count / 2));
            std::fs::create_dir(&blocked).unwrap();
            let mut files: Vec<(PathBuf, Vec<u8>)> =
                (0..count).map(|n| (path(n), format!("{n} of {count}").into_bytes())).collect();
            files.push((root.path().join("missing/file"), b"x".to_vec()));
            let results = replace_all(&files);
            for (number, ((path, content), result)) in files.iter().zip(results).enumerate() {
                let fails = number == count / 2 || number == count;
                assert_eq!(result.is_err(), fails, "{number} of {count}: {result:?}");
                if !fails {
                    assert_eq!(read(path), Ok(Some(content.clone())));
                    assert!(!new_name(path).exists());
                }
            }
            std::fs::remove_dir(blocked).unwrap();
        }
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
