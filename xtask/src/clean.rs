//! Clean Debian roots: made by debootstrap, changed only in overlays, and removed at the end.
//!
//! The scripts in `xtask/clean` do what needs mounts, in a mount namespace that ends with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::release::Release;
use crate::runs::{Outcome, watch_into};
use crate::{Failure, copy, output, program, setup, target_directory};

/// Archive that roots are made from, if the environment names no other.
const ARCHIVE: &str = "http://deb.debian.org/debian";
/// Environment variable that names another one.
const ARCHIVE_VARIABLE: &str = "LOCKGATE_DEBIAN_ARCHIVE";
/// Words of debootstrap when it could not fetch something.
const NOT_FETCHED: [&str; 4] =
    ["Failed getting release", "Invalid Release file", "Couldn't download", "Failed getting"];

/// Script that does something with a clean root: `$1` is its folder.
#[derive(Clone, Copy)]
pub(crate) struct Script(&'static str);

impl Script {
    const BUILD: Script =
        Script(concat!(include_str!("../clean/common.sh"), include_str!("../clean/build.sh")));
    const INSTALL: Script =
        Script(concat!(include_str!("../clean/common.sh"), include_str!("../clean/install.sh")));
    pub(crate) const IMAGE: Script =
        Script(concat!(include_str!("../clean/common.sh"), include_str!("../clean/image.sh")));
    /// Tries the package of charon's plugin, and leaves it installed in `clean`.
    pub(crate) const CHARON: Script = Script(concat!(
        include_str!("../clean/common.sh"),
        include_str!("../clean/plugin.sh"),
        include_str!("../clean/charon.sh")
    ));
    /// Tries it in a copy of this machine's files.
    pub(crate) const PLUGIN_HERE: Script = Script(concat!(
        include_str!("../clean/common.sh"),
        include_str!("../clean/plugin.sh"),
        include_str!("../clean/here.sh")
    ));
}

/// A folder with a clean root, `clean`. Dropping it removes the folder.
pub(crate) struct CleanRoot {
    folder: PathBuf,
}

/// A root, or the reason why there is none on this machine.
pub(crate) enum Made {
    Root(CleanRoot),
    None(Lack),
}

/// Reason why there is no clean root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    Root,
    Debootstrap,
    Archive,
}

impl Lack {
    const fn text(self) -> &'static str {
        match self {
            Lack::Root => "needs root",
            Lack::Debootstrap => "there is no debootstrap: run `make setup`",
            Lack::Archive => "the archive of this Debian cannot be reached",
        }
    }

    /// Returns the outcome of a part that needs the root.
    pub(crate) const fn skipped(self) -> Outcome {
        Outcome::Skipped(self.text())
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl CleanRoot {
    /// Makes a root below the target directory.
    ///
    /// # Errors
    /// debootstrap failed for another reason than the archive; its last lines are printed.
    pub(crate) fn make(release: Release) -> Result<Made, Failure> {
        let archive = std::env::var(ARCHIVE_VARIABLE).unwrap_or_else(|_| ARCHIVE.into());
        CleanRoot::make_from(release, &archive, release.name())
    }

    fn make_from(release: Release, archive: &str, name: &str) -> Result<Made, Failure> {
        if output(program("id").arg("-u"))?.trim() != "0" {
            return Ok(Made::None(Lack::Root));
        }
        if !setup::is_there("debootstrap") {
            return Ok(Made::None(Lack::Debootstrap));
        }
        let root = CleanRoot { folder: folder_of(name) };
        // Of a run that was killed.
        root.remove();
        let clean = root.folder.join("clean");
        fs::create_dir_all(&clean).map_err(Failure::write(&clean))?;
        println!("debootstrap: Debian {} from {archive}", release.name());
        let mut command = in_namespace();
        command.args(["debootstrap", "--variant=minbase", release.name()]).arg(&clean);
        let made = command.arg(archive).env("LC_ALL", "C").stdin(Stdio::null()).output();
        let made = made.map_err(|error| Failure::Start { program: "unshare".into(), error })?;
        if made.status.success() {
            return Ok(Made::Root(root));
        }
        let told = format!(
            "{}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );
        let lines: Vec<&str> = told.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(5)..].join("\n"));
        if NOT_FETCHED.iter().any(|words| told.contains(words)) {
            return Ok(Made::None(Lack::Archive));
        }
        Err(Failure::Program { program: "debootstrap".into(), status: made.status })
    }

    /// Returns where [`CleanRoot::make`] makes the root of a release, `clean` itself.
    pub(crate) fn of(release: Release) -> PathBuf {
        folder_of(release.name()).join("clean")
    }

    /// Runs a script; its lines that begin with `ok` or `SKIPPED` are its tests.
    pub(crate) fn run(&self, script: Script, words: &[&Path]) -> Result<Outcome, Failure> {
        run_in(&self.folder, script, words)
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn remove(&self) {
        // Nothing is mounted there: mounts end with their namespaces.
        let mut command = program("rm");
        command.args(["-rf", "--one-file-system", "--"]).arg(&self.folder);
        let _ = command.status();
    }
}

impl Drop for CleanRoot {
    fn drop(&mut self) {
        self.remove();
    }
}

fn folder_of(name: &str) -> PathBuf {
    target_directory().join("roots").join(name)
}

/// Runs a script in a folder, as [`CleanRoot::run`] does.
pub(crate) fn run_in(folder: &Path, script: Script, words: &[&Path]) -> Result<Outcome, Failure> {
    let mut command = in_namespace();
    command.args(["sh", "-c", &counted(script), "xtask"]).arg(folder).args(words);
    // Not with the command first: it is the whole script.
    watch_into(&mut command, &mut std::io::stdout())
}

/// Returns whether scripts can run here: they mount.
pub(crate) fn can_mount() -> bool {
    let mut command = in_namespace();
    command.arg("true").stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A command in a mount namespace of its own.
fn in_namespace() -> Command {
    let mut command = program("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    command
}

/// The script, with a last line that tells how many of its tests passed.
fn counted(script: Script) -> String {
    format!(
        "passed=0 skipped=0\n{}\necho \"$passed passed, 0 failed, $skipped skipped\"\n",
        script.0
    )
}

/// Builds the packages in a clean root of a release, and installs, starts and removes them in
/// another.
pub(crate) fn packages(release: Release) -> Result<Outcome, Failure> {
    let root = match CleanRoot::make(release)? {
        Made::Root(root) => root,
        Made::None(lack) => return Ok(lack.skipped()),
    };
    let sources = root.folder().join("sources");
    copy::sources(&sources)?;
    let toolchain = output(program("rustc").args(["--print", "sysroot"]))?;
    let needs = setup::packages_to_build();
    let words = [&*sources, Path::new(toolchain.trim()), &cargo_home(), Path::new(&needs)];
    match root.run(Script::BUILD, &words)? {
        Outcome::Passed(mut counts) => match root.run(Script::INSTALL, &[])? {
            Outcome::Passed(more) => {
                counts.add(more);
                Ok(Outcome::Passed(counts))
            }
            other => Ok(other),
        },
        other => Ok(other),
    }
}

/// The folder in which cargo keeps what it downloaded.
fn cargo_home() -> PathBuf {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let usual = || Path::new(&home).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(usual, PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_its_archive_there_is_no_root_and_nothing_of_it_is_left() {
        // Port 9 of this machine: nobody answers, whatever the network does.
        let made =
            CleanRoot::make_from(Release::Trixie, "http://127.0.0.1:9/debian", "unreachable");
        match made.unwrap() {
            Made::None(Lack::Archive) => {}
            Made::None(lack) => return println!("SKIPPED: no archive: {lack}"),
            Made::Root(_) => panic!("it was made from nothing"),
        }
        assert!(!target_directory().join("roots/unreachable").exists());
    }

    #[test]
    fn every_script_is_shell() {
        let here = [Script::CHARON, Script::PLUGIN_HERE];
        for script in [Script::BUILD, Script::INSTALL, Script::IMAGE].into_iter().chain(here) {
            let checked = program("sh").args(["-n", "-c", &counted(script)]).status().unwrap();
            assert!(checked.success());
        }
    }
}
