//! The laboratory as a whole: namespaces whose names nobody else uses, and nothing left behind.
//!
//! Names are `lgPID-N-ROLE`: the process that made it, a number of the laboratory in it, what it
//! is for; the directory's ends with something random. A run that was killed leaves both; the next
//! one removes those whose process is gone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{LabError, Namespace, namespace, programs};

/// Directory where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

static LABORATORIES: AtomicU32 = AtomicU32::new(0);

/// A laboratory's prefix and its directory. Namespaces delete themselves; this only names them.
#[derive(Debug)]
pub struct Laboratory {
    prefix: String,
    directory: tempfile::TempDir,
}

impl Laboratory {
    /// Looks whether a laboratory can be built here, sweeps what a killed run has left, and makes
    /// a directory.
    ///
    /// # Errors
    /// [`LabError::NotRoot`], [`LabError::Missing`], [`LabError::File`].
    pub fn new() -> Result<Laboratory, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        programs::check()?;
        sweep();
        let number = LABORATORIES.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("lg{}-{number}-", std::process::id());
        let directory = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir()
            .map_err(LabError::file(std::env::temp_dir()))?;
        Ok(Laboratory { prefix, directory })
    }

    /// Makes a namespace.
    ///
    /// # Errors
    /// [`LabError::Failed`] where the kernel refuses.
    pub fn namespace(&self, role: &str) -> Result<Namespace, LabError> {
        Namespace::new(format!("{}{role}", self.prefix))
    }

    /// A directory that only we can read; removed with the laboratory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Joins two namespaces by a pair of veths with `queues` queues in each direction at either end,
/// both down. Native XDP needs as many receive queues as the other end has transmit queues.
///
/// # Errors
/// As [`Namespace::ip`].
pub fn connect(
    (a, a_interface): (&Namespace, &str),
    (b, b_interface): (&Namespace, &str),
    queues: u32,
) -> Result<(), LabError> {
    let many = format!("numtxqueues {queues} numrxqueues {queues}");
    let b_name = b.name();
    a.ip(&format!(
        "link add {a_interface} {many} type veth peer name {b_interface} netns {b_name} {many}"
    ))
}

/// Removes namespaces and directories of runs that are no more.
fn sweep() {
    for name in left_in(Path::new(NAMES)) {
        namespace::remove(&name);
    }
    let directories = std::env::temp_dir();
    for name in left_in(&directories) {
        // Made by root for root alone; others' of such a name are not ours to remove.
        let path = directories.join(name);
        let ours = path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == 0);
        if ours {
            // It is in nobody's way if it stays.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Names in a directory whose owner is gone.
fn left_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
    names.filter(|name| owner(name).is_some_and(gone)).collect()
}

/// The process that made a namespace or directory of this name; `None`: it is not ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("lg")?.split_once('-')?;
    let (number, role) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    (!role.is_empty()).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("lg12-0-gwa"), Some(12));
        for name in ["lg", "lg12", "lg12-gwa", "lg-0-gwa", "lg12-0-", "lab12-0-a", "lg12-x-a"] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
