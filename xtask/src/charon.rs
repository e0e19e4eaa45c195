//! The plugin of strongSwan's charon: built where strongSwan is installed, and tested.
//!
//! Its headers are in no Debian package, so the source of the installed version is fetched once.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::release::Release;
use crate::runs::{self, Outcome};
use crate::{Failure, program, root, succeed, target_directory};

/// The folder of strongSwan's source and of the plugin, below the target directory.
const FOLDER: &str = "charon";
/// The plugin's own folder, below the workspace's.
const SOURCES: &str = "plugins/charon";

fn folder() -> PathBuf {
    target_directory().join(FOLDER)
}

/// Builds the plugin if it is not there or older than its source. Returns whether it was built.
///
/// # Errors
/// [`Failure`]: the source cannot be had, or does not compile.
pub(crate) fn build() -> Result<bool, Failure> {
    let plugin = folder().join("libstrongswan-lockgate.so");
    let before = modified(&plugin);
    succeed(make().arg(source()?))?;
    Ok(modified(&plugin) != before)
}

/// Tests the plugin by itself, with the sanitizer of memory, and builds it against the next
/// Debian's strongSwan.
///
/// # Errors
/// [`Failure`]: `make` cannot be run.
pub(crate) fn check(said: &mut impl Write) -> Result<Outcome, Failure> {
    let by_itself = runs::watch_into(make().arg("check-short"), said)?;
    let mut next = program(root().join(SOURCES).join("tests/next.sh"));
    Ok(by_itself.and(runs::watch_into(next.arg(folder()), said)?))
}

/// Tests the plugin by itself with every sanitizer, and in two charons against scripted daemons.
///
/// # Errors
/// [`Failure`]: `make` cannot be run.
pub(crate) fn check_long() -> Result<Outcome, Failure> {
    let by_itself = runs::watch(make().arg("check"))?;
    let Outcome::Passed(mut counts) = by_itself else { return Ok(by_itself) };
    match runs::watch(make().arg(source()?).arg("check-charon"))? {
        Outcome::Passed(more) => {
            counts.add(more);
            Ok(Outcome::Passed(counts))
        }
        other => Ok(other),
    }
}

/// Says where strongSwan's source is, as the Makefile takes it. Fetches it if it is not there.
fn source() -> Result<String, Failure> {
    let fetched = crate::output(program(root().join(SOURCES).join("source.sh")).arg(folder()))?;
    Ok(format!("STRONGSWAN={}", last_line(&fetched)))
}

/// Makes the package of the plugin for a release's strongSwan in folder `out`. `None`: the source
/// of that strongSwan cannot be had, for a reason that was printed.
///
/// # Errors
/// [`Failure`]: the plugin does not compile, or `dpkg-deb` fails.
pub(crate) fn pack(release: Release, out: &Path, epoch: &str) -> Result<Option<PathBuf>, Failure> {
    let folder = folder();
    std::fs::create_dir_all(&folder).map_err(Failure::write(&folder))?;
    let mut fetch = program(root().join(SOURCES).join("source.sh"));
    let source = match crate::output(fetch.arg(&folder).arg(release.name())) {
        Ok(fetched) => last_line(&fetched).to_owned(),
        Err(error) => {
            println!("{error}");
            return Ok(None);
        }
    };
    let mut command = program(root().join(SOURCES).join("package.sh"));
    command.arg(source).arg(out).arg(release.number());
    let packed = crate::output(command.env("SOURCE_DATE_EPOCH", epoch))?;
    Ok(Some(last_line(&packed).into()))
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default().trim()
}

/// A call of the plugin's Makefile.
fn make() -> Command {
    let mut make = program("make");
    make.arg("--silent").arg("--directory").arg(root().join(SOURCES));
    make.arg(format!("BUILD={}", folder().display()));
    make
}

fn modified(file: &Path) -> Option<std::time::SystemTime> {
    file.metadata().and_then(|found| found.modified()).ok()
}
