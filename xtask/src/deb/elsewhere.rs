//! Builds the programs a second time, in another folder, and compares them byte for byte. That a
//! package is packed the same is a short test beside this one (`check`).

use std::fs;
use std::path::Path;

use super::read;
use crate::test::{Counts, Outcome};
use crate::{Build, Failure, cargo, copy, root, succeed, target_directory};

/// Builds both programs here and in a copy of the sources. Fails if they differ.
///
/// Both are built with the profile of the demonstration, because a release takes too long twice.
pub(crate) fn same_from_elsewhere() -> Result<Outcome, Failure> {
    let folder = target_directory().join("elsewhere");
    let sources = folder.join("sources in a folder of another length");
    let built = folder.join("built");
    remove(&folder)?;
    copy::sources(&sources)?;
    build(root(), &target_directory())?;
    build(&sources, &built)?;
    let profile = Build::Demo.profile();
    let mut counts = Counts::default();
    for name in ["lockgate", "lockgated"] {
        let here = read(&target_directory().join(profile).join(name))?;
        let there = read(&built.join(profile).join(name))?;
        let same = here == there;
        println!("{name}, built in two folders: {}", if same { "the same" } else { "DIFFERS" });
        counts.add_test(same);
    }
    if counts.failed() > 0 {
        println!("both are kept: {}", built.display());
        return Ok(Outcome::Failed(counts));
    }
    remove(&folder)?;
    Ok(Outcome::Passed(counts))
}

fn build(sources: &Path, target: &Path) -> Result<(), Failure> {
    let programs = ["--package", "lockgate", "--package", "lockgated", "--bins"];
    let mut command = cargo();
    command.current_dir(sources).env("CARGO_TARGET_DIR", target);
    succeed(command.args(["build", "--profile", Build::Demo.profile()]).args(programs))
}

/// Removes a folder, if it is there.
fn remove(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::write(folder)(error))
        }
        _ => Ok(()),
    }
}
