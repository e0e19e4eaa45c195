//! charon 6, that of Debian 13, at run time: `make test-long PART=charon6`.
//!
//! Makes a clean root of Debian 13, installs strongSwan and the package of the plugin there, and
//! has the tests in network namespaces start that charon. The root is removed at the end; nothing
//! is installed on this machine.

use std::path::Path;
use std::process::Command;

use crate::built::Built;
use crate::clean::{CleanRoot, Made, Script};
use crate::release::Release;
use crate::runs::{self, Outcome};
use crate::{Failure, deb, target_directory};

/// Environment variable that names the root, as `tests/lab` reads it.
const ROOT_VARIABLE: &str = "LOCKGATE_CHARON_ROOT";
/// The release whose charon runs.
const RELEASE: Release = Release::Trixie;

/// Tries the package in the root, and then charon.
pub(crate) fn run(built: &Built) -> Result<Outcome, Failure> {
    if Release::of_this_machine() == RELEASE {
        return Ok(Outcome::Skipped("this machine's own charon is that one: make test runs it"));
    }
    let folder = target_directory().join("debian/charon-13");
    let plugins = deb::plugins(&folder)?;
    let Some(fits) = plugins.iter().find(|plugin| plugin.release == RELEASE) else {
        return Ok(Outcome::Skipped("the source of Debian 13's strongSwan cannot be had"));
    };
    let other = plugins.iter().find(|plugin| plugin.release != RELEASE);
    let other = other.map_or(Path::new(""), |plugin| &plugin.package);
    let root = match CleanRoot::make(RELEASE)? {
        Made::Root(root) => root,
        Made::None(lack) => return Ok(lack.skipped()),
    };
    let installed = root.run(Script::CHARON, &[&fits.package, other])?;
    if !matches!(installed, Outcome::Passed(_)) {
        return Ok(installed);
    }
    Ok(installed.and(runs::network_namespaces(built, &["ike"], in_root)?))
}

/// All tests, with the root for the first gateway, and those that need it.
fn in_root(command: &mut Command) -> &mut Command {
    command.arg("--include-ignored").env(ROOT_VARIABLE, CleanRoot::of(RELEASE))
}
