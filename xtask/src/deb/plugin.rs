//! The packages of charon's plugin, `lockgate-charon`: one for the strongSwan of each Debian.
//!
//! Each is built against the source of that strongSwan, by this machine's compiler; so there are
//! packages for this machine's release and for later ones.

use std::fs;
use std::path::{Path, PathBuf};

use super::trial::{Trial, broken, holds, unpacked};
use super::{epoch, read, target};
use crate::clean::{self, Script};
use crate::release::Release;
use crate::runs::Outcome;
use crate::{Failure, charon, output, program};

/// Files that each package must hold.
const EXPECTED: &[&str] = &[
    "usr/lib/ipsec/plugins/libstrongswan-lockgate.so",
    "etc/strongswan.d/charon/lockgate.conf",
    "usr/share/doc/lockgate-charon/README.md",
    "usr/share/doc/lockgate-charon/copyright",
];

/// A package, and the release whose strongSwan it fits.
pub(crate) struct Plugin {
    pub(crate) release: Release,
    pub(crate) package: PathBuf,
}

/// Makes the packages in a folder. One whose strongSwan cannot be fetched is left out, loudly.
pub(crate) fn make(folder: &Path) -> Result<Vec<Plugin>, Failure> {
    made(folder, &epoch()?)
}

fn made(folder: &Path, epoch: &str) -> Result<Vec<Plugin>, Failure> {
    let mut plugins = Vec::new();
    for release in Release::to_build_for() {
        match charon::pack(release, folder, epoch)? {
            Some(package) => plugins.push(Plugin { release, package }),
            None => println!("SKIPPED: {}", lacking(release)),
        }
    }
    Ok(plugins)
}

fn lacking(release: Release) -> String {
    let number = release.number();
    format!("lockgate-charon for Debian {number}: the source of its strongSwan cannot be had")
}

/// Tries the packages: taken apart, packed twice, and (as root) installed and removed in a copy of
/// this machine's files, which refuses those of another release.
pub(super) fn check(trial: &mut Trial) -> Result<(), Failure> {
    let folder = target().join("debian/charon");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::write(&folder))?;
    }
    // Not the time of the last commit: it may not be the last any more.
    let pack = |name| made(&folder.join(name), "1700000000");
    let plugins = pack("once")?;
    for plugin in &plugins {
        contents(plugin)?;
    }
    let again = pack("again")?;
    for (one, two) in plugins.iter().zip(&again) {
        if read(&one.package)? != read(&two.package)? {
            return Err(broken(format!("packed twice, {} differs", one.package.display())));
        }
    }
    for release in Release::to_build_for() {
        let number = release.number();
        match plugins.iter().any(|plugin| plugin.release == release) {
            true => trial.pass(&format!(
                "the plugin's package for Debian {number} fits its strongSwan alone"
            )),
            false => trial.skip("packages", &lacking(release)),
        }
    }
    install(trial, &plugins)
}

/// Fails unless a package holds its files, and asks for one strongSwan and no other.
fn contents(plugin: &Plugin) -> Result<(), Failure> {
    let Plugin { release, package } = plugin;
    let number = release.number();
    let unpacked = unpacked(package, &format!("unpacked-charon-{number}"))?;
    holds(package, &unpacked, EXPECTED)?;
    let field = |name| output(program("dpkg-deb").arg("-f").arg(package).arg(name));
    let version = field("Version")?;
    let bounds = field("Pre-Depends")?;
    let Some(strongswan) = version.trim().strip_suffix(&format!("+deb{number}")) else {
        return Err(broken(format!("{version} does not say that it is for Debian {number}")));
    };
    let strongswan = strongswan.rsplit_once("+strongswan").map_or("", |(_, version)| version);
    // The plugin holds the version of the headers, which it compares with charon's.
    let library = read(&unpacked.join(EXPECTED[0]))?;
    let is_in = library.windows(strongswan.len().max(1)).any(|part| part == strongswan.as_bytes());
    let from = format!("libstrongswan (>= {strongswan}), libstrongswan (<< ");
    if !is_in || !bounds.starts_with(&from) || !bounds.trim().ends_with("~)") {
        return Err(broken(format!("{version} pre-depends on {bounds}")));
    }
    Ok(())
}

fn install(trial: &mut Trial, plugins: &[Plugin]) -> Result<(), Failure> {
    let what = "installing the plugin";
    let own = |plugin: &&Plugin| plugin.release == Release::of_this_machine();
    if !clean::can_mount() {
        trial.skip(what, "needs root, and the right to mount");
        return Ok(());
    }
    let Some(fitting) = plugins.iter().find(own) else {
        trial.skip(what, "there is no package for this machine's release");
        return Ok(());
    };
    let mut installed = program("dpkg-query");
    if output(installed.args(["-W", "libstrongswan"])).is_err() {
        trial.skip(what, "strongSwan is not installed: run `make setup`");
        return Ok(());
    }
    let other = plugins.iter().find(|plugin| !own(plugin));
    let other = other.map_or(Path::new(""), |plugin| &plugin.package);
    let folder = target().join("debian");
    match clean::run_in(&folder, Script::PLUGIN_HERE, &[&fitting.package, other])? {
        // Its last line has been counted.
        Outcome::Passed(_) => Ok(()),
        _ => Err(broken("the plugin's package, in a copy of this machine's files")),
    }
}
