//! Finds the programs that a laboratory needs, Lockgate's own among them.

use std::path::{Path, PathBuf};

use crate::LabError;

/// A program of others, and the Debian package that brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Name of the program.
    pub program: &'static str,
    /// Debian package.
    pub package: &'static str,
}

impl Need {
    pub(crate) fn text(self) -> String {
        let Need { program, package } = self;
        format!("{program} (apt-get install {package})")
    }
}

/// Programs that [`crate::Laboratory`] and the traffic of this crate call.
pub const NEEDS: &[Need] = &[
    Need { program: "ip", package: "iproute2" },
    Need { program: "ethtool", package: "ethtool" },
    Need { program: "nft", package: "nftables" },
    Need { program: "tcpdump", package: "tcpdump" },
    Need { program: "ping", package: "iputils-ping" },
    Need { program: "iperf3", package: "iperf3" },
];

/// Folders that PATH often lacks.
const SYSTEM_FOLDERS: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Checks that everything in [`NEEDS`] is installed.
///
/// # Errors
/// [`LabError::Missing`] names all that is not.
pub fn check() -> Result<(), LabError> {
    let missing: Vec<Need> =
        NEEDS.iter().copied().filter(|need| find(need.program).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(LabError::Missing(missing)) }
}

/// Path of a program, from PATH or a folder of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Our own programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Programs {
    /// The daemon.
    pub lockgated: PathBuf,
    /// The operator's command.
    pub lockgate: PathBuf,
}

impl Programs {
    /// Finds both: by the environment variables `LOCKGATED` and `LOCKGATE`, beside the program
    /// that runs (or, for a test, in the folder above it), in PATH.
    ///
    /// # Errors
    /// [`LabError::NotBuilt`].
    pub fn find() -> Result<Programs, LabError> {
        Ok(Programs {
            lockgated: own("lockgated", "LOCKGATED")?,
            lockgate: own("lockgate", "LOCKGATE")?,
        })
    }
}

/// Finds the emulated card: by the environment variable `LOCKGATE_EMULATED_CARD`, or as
/// [`Programs::find`] finds programs.
///
/// # Errors
/// [`LabError::NotBuilt`].
pub fn emulated_card() -> Result<PathBuf, LabError> {
    own("lockgate-emulated-card", "LOCKGATE_EMULATED_CARD")
}

fn own(program: &'static str, variable: &'static str) -> Result<PathBuf, LabError> {
    if let Some(named) = std::env::var_os(variable) {
        return Ok(PathBuf::from(named));
    }
    let running = std::env::current_exe().ok();
    let folders = running.iter().flat_map(|running| running.ancestors().skip(1).take(2));
    folders
        .map(|folder: &Path| folder.join(program))
        .find(|file| file.is_file())
        .or_else(|| find(program))
        .ok_or(LabError::NotBuilt { program, variable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        assert!(find("sh").is_some());
        assert!(find("lockgate-no-such-program").is_none());
        let error = LabError::Missing(vec![NEEDS[5]]);
        assert_eq!(error.to_string(), "missing: iperf3 (apt-get install iperf3)");
    }
}
