//! The daemon's configuration file: written when somebody asks for it (`--save`, `lockgate save`),
//! and compared with what runs.
//!
//! A new file is written beside the old one, synced, and takes its name, with the old one's owner
//! and mode. So the file is the old one or the new one, whole, whatever happens. A link is never
//! followed and never replaced: what it leads to may be somebody else's.

use std::fs::{File, Metadata, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use api::v1;
use control::{Compiled, Validated, differences};

use crate::backend::{Change, Done, Intent, PolicyChange, Refused, Uid};
use crate::change::{RESTART_NOTE, machine};
use crate::daemon::Daemon;
use crate::events::Kind;
use crate::revisions::sync_names;
use crate::unconfirmed;

/// Mode of a file that was not there.
const NEW_MODE: u32 = 0o600;

/// The reason why the file is not written. It is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// It is a link.
    #[error(
        "{} is a link, and links are not written through: give lockgated the file itself, or use \
         `lockgate export`", .file.display()
    )]
    Link {
        /// The link.
        file: PathBuf,
    },
    /// It is something else than a file.
    #[error("{} is no regular file", .file.display())]
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
    /// The text means other keys in the file's directory.
    #[error(
        "keys_dir is relative, and would be another directory beside {} than beside the file that \
         was applied: write it as an absolute path", .file.display()
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

/// A new file beside the old one, which it replaces when it is written. Dropped before, it leaves
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

/// Returns whether two paths are the same directory, links followed.
pub(crate) fn same_directory(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

/// Checks that a text which was written for the directory `base` means the same beside `file`.
pub(crate) fn check_keys_dir(
    config: &Validated,
    base: &Path,
    file: &Path,
) -> Result<(), SaveError> {
    let is_fine = config.node.keys_dir.is_absolute();
    match is_fine || same_directory(base, control::base_of(file)) {
        true => Ok(()),
        false => Err(SaveError::KeysDir { file: file.to_owned() }),
    }
}

/// The running configuration as a text for `file`: a relative `keys_dir` of another directory is
/// written whole.
fn text_for(file: &Path, running: &Compiled, base: &Path) -> String {
    let config = running.validated();
    match check_keys_dir(config, base, file) {
        Ok(()) => config.effective(),
        Err(_) => {
            let mut config = Validated::clone(config);
            config.node.keys_dir = base.join(&config.node.keys_dir);
            config.effective()
        }
    }
}

/// A file's facts when it was compared.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stamp {
    place: (u64, u64),
    bytes: u64,
    changed: [(i64, i64); 2],
}

impl Stamp {
    /// `None`: there is no such file.
    fn of(file: &Path) -> Option<Stamp> {
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
    stamp: Option<Stamp>,
    revision: u64,
    drift: v1::Drift,
}

/// Compares the file with what runs.
fn compare(file: &Path, running: &Compiled, base: &Path, revision: u64) -> v1::Drift {
    let name = file.display();
    let drift = |changes: u32, text: String| v1::Drift { saved: false, changes, text };
    let parsed = match control::read(file) {
        Ok(parsed) => parsed.validated,
        Err(errors) => {
            let first = errors
                .problems
                .first()
                .map_or(String::new(), |problem| format!(": {}", problem.mistake));
            let text = format!("{name} could not be started from{first}: `lockgate check {name}`");
            return drift(0, text);
        }
    };
    let config = running.validated();
    let mut changes = differences(&parsed, config).len() as u32;
    changes += u32::from(check_keys_dir(config, base, file).is_err());
    if changes == 0 {
        return v1::Drift { saved: true, ..v1::Drift::default() };
    }
    let noun = if changes == 1 { "change" } else { "changes" };
    let mut text = format!(
        "running revision {revision} differs from {name}: {changes} {noun} not saved \
         (`lockgate diff`)"
    );
    if let Some(refused) = unconfirmed::refused_revision(&parsed) {
        text.push_str(&format!(
            "; the file holds revision {refused}, which was never confirmed and does not start"
        ));
    }
    drift(changes, text)
}

impl Daemon {
    /// Compares what runs with the daemon's file. Costs a look at the file, and the comparison if
    /// either changed since.
    pub(crate) async fn drift(&self) -> v1::Drift {
        let (file, running, base, revision) = {
            let state = self.state.lock().await;
            let stamp = Stamp::of(&state.file);
            if let Some(known) = &state.drift
                && (known.revision, &known.stamp) == (state.revision, &stamp)
            {
                return known.drift.clone();
            }
            (state.file.clone(), state.compiled.copied(), state.base.clone(), state.revision)
        };
        let compared = tokio::task::spawn_blocking(move || {
            // Before it is read: what changes meanwhile is compared again.
            let stamp = Stamp::of(&file);
            KnownDrift { stamp, revision, drift: compare(&file, &running, &base, revision) }
        });
        let Ok(known) = compared.await else { return v1::Drift::default() };
        let drift = known.drift.clone();
        self.state.lock().await.drift = Some(known);
        drift
    }

    /// Writes what runs to the daemon's file, unless it means that already.
    pub(crate) async fn save_running(&self) -> Result<v1::Saved, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let (file, running, base, revision) = {
            let state = self.state.lock().await;
            if state.stopping {
                return Err(Refused::Stopping);
            }
            state.check_not_waiting()?;
            (state.file.clone(), state.compiled.copied(), state.base.clone(), state.revision)
        };
        let unchanged = self.drift().await.saved;
        let name = file.display().to_string();
        if !unchanged {
            let write = move || {
                let text = text_for(&file, &running, &base);
                Target::open(&file)?.write(&text).map(|_| text)
            };
            let written = tokio::task::spawn_blocking(write).await.map_err(machine)?;
            let text = written.map_err(Refused::NotSaved)?;
            self.state.lock().await.accept(&text).await;
        }
        Ok(v1::Saved { file: name, revision, unchanged })
    }

    /// Makes a change and writes its own text to the daemon's file, comments and all. Whether the
    /// file can be written is found out before anything changes.
    pub(crate) async fn apply_and_save(&self, change: Change, by: Uid) -> Result<Done, Refused> {
        if change.intent == Intent::DryRun {
            return self.apply_change(change, by).await;
        }
        let file = self.state.lock().await.file.clone();
        let (text, name, base) =
            (change.text.clone(), change.file.clone(), change.base_directory.clone());
        let prepare = move || {
            // What is wrong with it is told where it is applied.
            if let Ok(parsed) = control::parse(&text, &name) {
                check_keys_dir(&parsed.validated, &base, &file)?;
            }
            Target::open(&file).map(|target| (target, text))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await.map_err(machine)?;
        let (target, text) = prepared.map_err(Refused::NotSaved)?;
        let mut done = self.apply_change(change, by).await?;
        let written = tokio::task::spawn_blocking(move || target.write(&text)).await;
        let written = written.map_err(machine)?;
        let saved = written.map_err(Refused::NotSaved).map(|file| v1::Saved {
            file: file.display().to_string(),
            revision: done.revision,
            unchanged: false,
        });
        self.audit_saved(by, &saved);
        done.take_saved(saved);
        Ok(done)
    }

    /// Makes a change of policies and writes what then runs to the daemon's file.
    pub(crate) async fn change_and_save(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<Done, Refused> {
        let file = self.state.lock().await.file.clone();
        let can_write = move || Target::open(&file).map(drop);
        let can_write = tokio::task::spawn_blocking(can_write).await.map_err(machine)?;
        can_write.map_err(Refused::NotSaved)?;
        let mut done = self.change_in_turn(change, by).await?;
        let saved = self.save_running().await;
        self.audit_saved(by, &saved);
        done.take_saved(saved);
        Ok(done)
    }

    /// Tells what became of a request to save.
    pub(crate) fn audit_saved(&self, by: Uid, done: &Result<v1::Saved, Refused>) {
        match done {
            Ok(saved) if saved.unchanged => {}
            Ok(v1::Saved { file, revision, .. }) => {
                let message = format!("revision {revision} is written to {file}");
                self.events.audit(by, Kind::Saved, file, message, &[("revision", revision)]);
            }
            Err(error) => {
                self.events.audit(by, Kind::SaveRefused, "", error.to_string(), &[]);
            }
        }
    }
}

impl Done {
    fn take_saved(&mut self, saved: Result<v1::Saved, Refused>) {
        match saved {
            Ok(saved) => {
                self.notes.retain(|note| !note.starts_with(RESTART_NOTE));
                self.saved_to = Some(saved.file);
            }
            Err(error) => self.not_saved = Some(error.to_string()),
        }
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

    #[test]
    fn a_relative_keys_dir_means_the_same_only_beside_its_own_file() {
        let config = |keys_dir: &str| {
            let text = format!("[node]\nname = \"a\"\nkeys_dir = \"{keys_dir}\"\n{PORT}");
            control::parse(&text, "t").unwrap_or_else(|errors| panic!("{errors}")).validated
        };
        let file = Path::new("/etc/lockgate/lockgate.toml");
        let check = |keys_dir, base| check_keys_dir(&config(keys_dir), Path::new(base), file);
        assert!(check("keys", "/etc/lockgate").is_ok());
        assert!(check("/k", "/root").is_ok());
        assert!(matches!(check("keys", "/root"), Err(SaveError::KeysDir { .. })));
    }

    const PORT: &str = "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";
}
