//! The running configuration and the daemon's file: compared, and written when somebody asks for it
//! (`--save`, `lockgate save`).

use std::path::Path;

use api::v1;
use config::{Parsed, SetFiles, Validated, differences, same_directory};
use control::Compiled;

use crate::backend::{ChangeError, ChangeReport};
use crate::change::RESTART_NOTE;
use crate::config_file::{KnownDrift, SaveError, Stamp, Target};
use crate::events::{Events, Kind};
use crate::picture::Picture;
use crate::unconfirmed;
use crate::who::Uid;

/// Checks that a text which was written for the directory `base` means the same in the directory of
/// `file`.
fn check_keys_dir(config: &Validated, base: &Path, file: &Path) -> Result<(), SaveError> {
    let is_fine = config.node.keys_dir.is_absolute();
    match is_fine || same_directory(base, config::base_of(file)) {
        true => Ok(()),
        false => Err(SaveError::KeysDir { file: file.to_owned() }),
    }
}

/// Checks that a restart with this text in `file` would have the same key files, which lie in
/// `keys_dir`, and the same set files as `parsed`.
///
/// # Errors
/// [`SaveError::KeysDir`], [`SaveError::SetFiles`].
pub(crate) fn check_file_text(
    parsed: &Parsed,
    text: &str,
    file: &Path,
    keys_dir: &Path,
) -> Result<(), SaveError> {
    let (directory, named) = (config::base_of(file), &parsed.validated.node.keys_dir);
    if named.is_relative() && !same_directory(&directory.join(named), keys_dir) {
        return Err(SaveError::KeysDir { file: file.to_owned() });
    }
    if !parsed.includes_files {
        return Ok(());
    }
    let saved = config::parse_with(text, "", SetFiles::Beneath(directory));
    match saved.is_ok_and(|saved| saved.validated.sets == parsed.validated.sets) {
        true => Ok(()),
        false => Err(SaveError::SetFiles { file: file.to_owned() }),
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

/// Compares the file with what runs.
fn compare(picture: &Picture) -> v1::Drift {
    let Picture { file, compiled: running, base, revision, revisions, .. } = picture;
    let name = file.display();
    let drift = |changes: u32, text: String| v1::Drift { saved: false, changes, text };
    let parsed = match config::read(file) {
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
    if let Some(refused) = unconfirmed::refused_revision(&parsed, revisions) {
        text.push_str(&format!(
            "; the file holds revision {refused}, which was never confirmed and does not start"
        ));
    }
    drift(changes, text)
}

/// Compares a file with a picture of the running state. Blocks.
pub(crate) fn compared(picture: &Picture) -> KnownDrift {
    // Before it is read: what changes meanwhile is compared again.
    let stamp = Stamp::of(&picture.file);
    let drift = compare(picture);
    KnownDrift { stamp, revision: picture.revision, drift }
}

/// Writes the running configuration to the daemon's file, and returns the text. Blocks.
///
/// # Errors
/// [`SaveError`]: the file is as it was.
pub(crate) fn write_running(picture: &Picture) -> Result<String, SaveError> {
    let Picture { file, compiled, base, .. } = picture;
    let text = text_for(file, compiled, base);
    Target::open(file)?.write(&text).map(|_| text)
}

/// Records the result of a request to save as an audit event.
pub(crate) fn audit(events: &Events, by: Uid, done: &Result<v1::Saved, ChangeError>) {
    match done {
        Ok(saved) if saved.unchanged => {}
        Ok(v1::Saved { file, revision, .. }) => {
            let message = format!("revision {revision} is written to {file}");
            events.audit(by, Kind::Saved, file, message, &[("revision", revision)]);
        }
        Err(error) => events.audit(by, Kind::SaveRefused, "", error.to_string(), &[]),
    }
}

impl ChangeReport {
    /// Notes whether a change was saved.
    pub(crate) fn take_saved(&mut self, saved: Result<v1::Saved, ChangeError>) {
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

    #[test]
    fn a_relative_keys_dir_means_the_same_only_beside_its_own_file() {
        let config = |keys_dir: &str| {
            let text = format!("[node]\nname = \"a\"\nkeys_dir = \"{keys_dir}\"\n{PORT}");
            config::parse(&text, "t").unwrap_or_else(|errors| panic!("{errors}")).validated
        };
        let file = Path::new("/etc/lockgate/lockgate.toml");
        let check = |keys_dir, base| check_keys_dir(&config(keys_dir), Path::new(base), file);
        assert!(check("keys", "/etc/lockgate").is_ok());
        assert!(check("/k", "/root").is_ok());
        assert!(matches!(check("keys", "/root"), Err(SaveError::KeysDir { .. })));
    }

    #[test]
    fn a_saved_text_names_set_files_that_a_restart_reads_with_the_same_members() {
        let (beside, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = beside.path().join("lockgate.toml");
        std::fs::write(elsewhere.path().join("a.txt"), "10.0.0.0/8\n").unwrap();
        let check = |set_file: &str| {
            let text = format!("[node]\nname = \"a\"\n{PORT}[set.s]\nfile = \"{set_file}\"\n");
            let files = SetFiles::OfCaller(elsewhere.path());
            let parsed = config::parse_with(&text, "t", files).unwrap();
            check_file_text(&parsed, &text, &file, beside.path())
        };
        assert!(matches!(check("a.txt"), Err(SaveError::SetFiles { .. })));
        std::fs::write(beside.path().join("a.txt"), "10.0.0.0/9\n").unwrap();
        assert!(matches!(check("a.txt"), Err(SaveError::SetFiles { .. })));
        std::fs::write(beside.path().join("a.txt"), "10.0.0.0/8 # the same\n").unwrap();
        assert!(check("a.txt").is_ok());
        let whole = elsewhere.path().join("a.txt").display().to_string();
        assert!(matches!(check(&whole), Err(SaveError::SetFiles { .. })));
    }

    #[test]
    fn a_saved_text_names_the_running_keys_dir() {
        let beside = tempfile::tempdir().unwrap();
        let file = beside.path().join("lockgate.toml");
        let check = |keys_dir: &str, running: &Path| {
            let text = format!("[node]\nname = \"a\"\nkeys_dir = \"{keys_dir}\"\n{PORT}");
            check_file_text(&config::parse(&text, "t").unwrap(), &text, &file, running)
        };
        assert!(check(".", beside.path()).is_ok());
        assert!(matches!(check(".", Path::new("/root")), Err(SaveError::KeysDir { .. })));
    }

    const PORT: &str = "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";
}
