//! Errors that an operator can act on: which file, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// The reason why a store does not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The log does not hold the changes after this commit: the caller takes a snapshot.
    #[error(
        "the changes after commit {after} are not in the store: it has those after {oldest}, up \
         to {newest}; take a snapshot"
    )]
    Gap {
        /// The commit number that was asked for.
        after: u64,
        /// The lowest number that can be asked for.
        oldest: u64,
        /// The number of the last commit, the highest that can be asked for.
        newest: u64,
    },
    /// The batch is larger than this store takes: the caller splits it.
    #[error("a batch of {size} changes: this store takes {largest} at once")]
    BatchTooLarge {
        /// Changes in the batch.
        size: usize,
        /// The store's bound.
        largest: usize,
    },
    /// A change has a revision above [`crate::MAX_REVISION`]: its sender is at fault.
    #[error("revision {revision} is above {}, the highest that a store holds", crate::MAX_REVISION)]
    RevisionTooLarge {
        /// The revision.
        revision: u64,
    },
    /// No room is left. What was committed before is intact, and the store works again once there
    /// is room.
    #[error(
        "{}: the disk is full, nothing of the last change was kept; make room on it and try again",
        .path.display()
    )]
    Full {
        /// The database or the image.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{}: damaged (SQLite error {code}); stop Lockgate, move the file and its -wal aside, and \
         start again with an empty store or a copy; `sqlite3 FILE .recover` saves what is legible",
        .path.display()
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// SQLite's extended error code; 11 if a value is none that Lockgate writes.
        code: i32,
    },
    /// A later version of Lockgate wrote the file.
    #[error(
        "{}: schema {found} of a later Lockgate, this one knows up to {known}; install that \
         version again, or start with another file", .path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// The schema's version.
        found: u32,
        /// The latest version that this program knows.
        known: u32,
    },
    /// The file is a database, but of another program.
    #[error(
        "{}: a database of another program (application id {id:#010x}); give the store a file of \
         its own", .path.display()
    )]
    Foreign {
        /// The database.
        path: PathBuf,
        /// Its application id.
        id: u32,
    },
    /// Another process, or another store of this one, has the file open.
    #[error(
        "{}: in use by another process; `fuser FILE` names it: end it, or give each its own file",
        .path.display()
    )]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// The file is a link or no regular file, or other users could have written to it.
    #[error(
        "{}: mode {mode:06o}, owner {owner}: must be a regular file of root or the user of this \
         process, and nobody else may write to it", .path.display()
    )]
    Insecure {
        /// The database or the image.
        path: PathBuf,
        /// Its type and permissions.
        mode: u32,
        /// User id of its owner.
        owner: u32,
    },
    /// A write failed for which the system had promised to tell the truth only once. The store
    /// takes no more commits, because what is on the disk is unknown until it is opened again.
    #[error(
        "{}: an earlier write did not reach the disk; look for disk errors in the kernel's log, \
         then restart Lockgate", .path.display()
    )]
    Unknown {
        /// The database.
        path: PathBuf,
    },
    /// The operating system refuses.
    #[error("{}: {}", .path.display(), io::Error::from_raw_os_error(*.code))]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error number.
        code: i32,
    },
    /// SQLite failed in another way: a disk that does not read or write, or no memory.
    #[error(
        "{}: SQLite error {code} ({}); look for disk errors in the kernel's log",
        .path.display(), rusqlite::ffi::code_to_str(*.code)
    )]
    Engine {
        /// The database.
        path: PathBuf,
        /// SQLite's extended error code.
        code: i32,
    },
}

impl StoreError {
    /// The system's error about a path.
    pub(crate) fn system(path: &Path, error: &io::Error) -> StoreError {
        let path = path.to_owned();
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => StoreError::Full { path },
            code => StoreError::System { path, code },
        }
    }

    /// A value in the database that Lockgate does not write.
    pub(crate) fn illegible(path: &Path) -> StoreError {
        StoreError::Corrupt { path: path.to_owned(), code: rusqlite::ffi::SQLITE_CORRUPT }
    }

    /// SQLite's error about a database.
    pub(crate) fn engine(path: &Path, error: &rusqlite::Error) -> StoreError {
        let rusqlite::Error::SqliteFailure(error, _) = error else {
            // A column of another type, or no row where one must be.
            return StoreError::illegible(path);
        };
        let (path, code) = (path.to_owned(), error.extended_code);
        match error.code {
            ErrorCode::DiskFull => StoreError::Full { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                StoreError::Corrupt { path, code }
            }
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Locked { path },
            _ => StoreError::Engine { path, code },
        }
    }
}
