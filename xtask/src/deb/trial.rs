//! Parts that every trial of a package needs.

use std::fs;
use std::path::{Path, PathBuf};

use super::target;
use crate::{Failure, output, program, succeed};

/// Counts of the trial's checks, each of which prints one line.
#[derive(Default)]
pub(super) struct Trial {
    passed: u32,
    skipped: u32,
}

impl Trial {
    pub(super) fn passed(&self) -> u32 {
        self.passed
    }

    pub(super) fn skipped(&self) -> u32 {
        self.skipped
    }

    pub(super) fn pass(&mut self, what: &str) {
        println!("ok {what}");
        self.passed += 1;
    }

    pub(super) fn skip(&mut self, what: &str, reason: &str) {
        println!("SKIPPED: {what}: {reason}");
        self.skipped += 1;
    }
}

pub(super) fn broken(what: impl Into<String>) -> Failure {
    Failure::Package { what: what.into() }
}

/// Takes a package apart in a folder of its own, which it returns.
pub(super) fn unpacked(package: &Path, name: &str) -> Result<PathBuf, Failure> {
    let folder = target().join("debian").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::write(&folder))?;
    }
    succeed(program("dpkg-deb").arg("-x").arg(package).arg(&folder))?;
    Ok(folder)
}

/// Fails unless a package holds these files, and every file is root's.
pub(super) fn holds(package: &Path, unpacked: &Path, expected: &[&str]) -> Result<(), Failure> {
    let list = output(program("dpkg-deb").arg("-c").arg(package))?;
    if let Some(line) = list.lines().find(|line| !line.contains(" root/root ")) {
        return Err(broken(format!("not root's: {line}")));
    }
    match expected.iter().find(|expected| !unpacked.join(expected).is_file()) {
        Some(missing) => Err(broken(format!("{missing} is not in {}", package.display()))),
        None => Ok(()),
    }
}
