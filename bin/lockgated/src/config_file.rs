//! The daemon's configuration file: replaced as a whole, and how it was when it was compared.
//!
//! A new file is written beside the old one, synced, and takes its name, with the old one's owner
//! and mode. So the file is the old one or the new one, whole, whatever happens. A link is never
//! followed and never replaced: what it leads to may be somebody else's.

use std::fs::{File, Metadata, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use api::v1;

use crate::durable_file::sync_names;

/// Mode of a file that was not there.
const NEW_MODE: u32 = 0o600;

/// Reason why the file was not written. It is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The file is a link.
    #[error(
        "{} is a symbolic link, which lockgated does not write through: give lockgated the file \
         itself, or use `lockgate export`", .file.display()
    )]
    Link {
        /// The link.
        file: PathBuf,
    },
    /// The path is something else than a file.
    #[error("{} is not a regular file", .file.display())]
    NotRegular {
        /// The path.
        file: PathBuf,
    },
    /// The daemon has given away the privilege to keep its owner.
    #[error(
        "{} belongs to user {uid} and group {gid}, and lockgated cannot keep that: make it root's, \
         or use `lockgate export`", .file.display()
    )]
    Owner {
        /// The file.
        file: PathBuf,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// The text means other set files in the file's directory.
    #[error(
        "a restart with this text in {} would read other set files, or none: copy them into its \
         directory under these names, or write `addresses`", .file.display()
    )]
    SetFiles {
        /// The file.
        file: PathBuf,
    },
    /// The text means other keys in the file's directory.
    #[error(
        "keys_dir is relative, and beside {} would not be the directory that lockgated reads keys \
         from: write it as an absolute path", .file.display()
    )]
    KeysDir {
        /// The daemon's file.
        file: PathBuf,
    },
    /// The operating system refuses.
    #[error("{}: {error}", .path.display())]
    System {
        /// The path that it is about.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

/// A new file next to the old one, which it replaces when written. If dropped before, it leaves
/// nothing.
#[derive(Debug)]
pub(crate) struct Target {
    file: PathBuf,
    temporary: PathBuf,
    handle: File,
}

impl Target {
    /// Finds out whether the file can be replaced, and makes the new one, empty.
    ///
    /// # Errors
    /// [`SaveError`].
    pub(crate) fn open(file: &Path) -> Result<Target, SaveError> {
        let system = |error| SaveError::System { path: file.to_owned(), error };
        let old = match std::fs::symlink_metadata(file) {
            Ok(old) if old.is_symlink() => return Err(SaveError::Link { file: file.to_owned() }),
            Ok(old) if !old.is_file() => {
                return Err(SaveError::NotRegular { file: file.to_owned() });
            }
            Ok(old) => Some(old),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(system(error)),
        };
        let mut name = std::ffi::OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(".new");
        let temporary = file.with_file_name(name);
        // One that a crash left behind; a link of this name is removed, not followed.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(SaveError::System { path: temporary, error });
            }
            _ => {}
        }
        let made = File::options().write(true).create_new(true).mode(NEW_MODE).open(&temporary);
        let handle = made.map_err(|error| SaveError::System { path: temporary.clone(), error })?;
        let target = Target { file: file.to_owned(), temporary, handle };
        if let Some(old) = old {
            target.take_after(&old)?;
        }
        Ok(target)
    }

    /// Gives the new file the owner and the mode of the old one.
    fn take_after(&self, old: &Metadata) -> Result<(), SaveError> {
        let system = |error| SaveError::System { path: self.temporary.clone(), error };
        let new = self.handle.metadata().map_err(system)?;
        let (uid, gid) = (old.uid(), old.gid());
        if (new.uid(), new.gid()) != (uid, gid) {
            let kept = fchown(&self.handle, Some(uid), Some(gid));
            kept.map_err(|_| SaveError::Owner { file: self.file.clone(), uid, gid })?;
        }
        let mode = Permissions::from_mode(old.mode() & 0o777);
        self.handle.set_permissions(mode).map_err(system)
    }

    /// Writes the text and replaces the file. When this returns it is on disk.
    ///
    /// # Errors
    /// [`SaveError::System`].
    pub(crate) fn write(mut self, text: &str) -> Result<PathBuf, SaveError> {
        let file = self.file.clone();
        let system = |error| SaveError::System { path: file.clone(), error };
        self.handle.write_all(text.as_bytes()).map_err(system)?;
        self.handle.sync_all().map_err(system)?;
        std::fs::rename(&self.temporary, &file).map_err(system)?;
        sync_names(&file).map_err(system)?;
        Ok(file)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Where it has taken the file's name, nothing is there.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// A file's facts when it was compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    place: (u64, u64),
    bytes: u64,
    changed: [(i64, i64); 2],
}

impl Stamp {
    /// Returns the stamp of a file; `None`: there is no such file.
    pub(crate) fn of(file: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(file).ok()?;
        Some(Stamp {
            place: (found.dev(), found.ino()),
            bytes: found.len(),
            changed: [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())],
        })
    }
}

/// A comparison, which holds as long as neither side changes.
pub(crate) struct KnownDrift {
    pub(crate) stamp: Option<Stamp>,
    pub(crate) revision: u64,
    pub(crate) drift: v1::Drift,
}

impl KnownDrift {
    /// The comparison, if neither the file nor the revision changed since.
    pub(crate) fn still(&self, file: &Path, revision: u64) -> Option<&v1::Drift> {
        let holds = self.revision == revision && self.stamp == Stamp::of(file);
        holds.then_some(&self.drift)
    }

    /// Returns the result of the comparison.
    pub(crate) fn drift(&self) -> &v1::Drift {
        &self.drift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_nothing_stays_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lockgate.toml");
        Target::open(&file).unwrap().write("one").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        // One that a crash left.
        std::fs::write(directory.path().join(".lockgate.toml.new"), "half").unwrap();
        Target::open(&file).unwrap().write("two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
        drop(Target::open(&file).unwrap());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(names(directory.path()), ["lockgate.toml"]);
    }

    #[test]
    fn links_and_directories_are_refused_and_what_links_lead_to_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("other"), "somebody's").unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        assert!(matches!(Target::open(&at("link")), Err(SaveError::Link { .. })));
        assert!(matches!(Target::open(directory.path()), Err(SaveError::NotRegular { .. })));
        // A link in the new file's place is replaced, not followed.
        std::os::unix::fs::symlink(at("other"), at(".file.new")).unwrap();
        Target::open(&at("file")).unwrap().write("ours").unwrap();
        assert_eq!(std::fs::read_to_string(at("other")).unwrap(), "somebody's");
        assert_eq!(names(directory.path()), ["file", "link", "other"]);
        // A file that became a link meanwhile: the link goes, what it led to stays.
        let target = Target::open(&at("file")).unwrap();
        std::fs::remove_file(at("file")).unwrap();
        std::os::unix::fs::symlink(at("other"), at("file")).unwrap();
        target.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(at("other")).unwrap(), "somebody's");
        assert!(std::fs::symlink_metadata(at("file")).unwrap().is_file());
    }
}
