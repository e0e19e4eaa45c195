//! Builds the programs a second time, in another folder, and compares them byte for byte. That a
//! package is packed the same is a short test beside this one (`check`).

use std::fs;
use std::path::Path;

use super::{OURS, read, without_paths};
use crate::runs::{Counts, Outcome};
use crate::{Failure, cargo, copy, root, succeed, target_directory};

/// Builds the programs here and in a copy of the sources. Fails if one differs.
///
/// They are built without optimisation, because a release takes too long twice.
pub(crate) fn same_from_elsewhere() -> Result<Outcome, Failure> {
    let folder = target_directory().join("elsewhere");
    let sources = folder.join("sources in a folder of another length");
    // Without spaces: the Makefile of libbpf knows none.
    let built = ["here", "built-there"].map(|name| folder.join(name));
    remove(&folder)?;
    copy::sources(&sources)?;
    build(root(), &built[0])?;
    build(&sources, &built[1])?;
    let mut counts = Counts::default();
    for name in OURS.iter().filter(|word| **word != "--package") {
        let [here, there] = built.each_ref().map(|built| read(&built.join("debug").join(name)));
        let same = here? == there?;
        println!("{name}, built in two folders: {}", if same { "the same" } else { "DIFFERS" });
        match same {
            true => counts.add_passed(),
            false => counts.add_failed(),
        }
    }
    if counts.failed() > 0 {
        println!("both are kept: {}", folder.display());
        return Ok(Outcome::Failed(counts));
    }
    remove(&folder)?;
    Ok(Outcome::Passed(counts))
}

fn build(sources: &Path, built: &Path) -> Result<(), Failure> {
    let mut command = cargo();
    command.current_dir(sources).args(["build", "--bins"]).args(OURS);
    command.env("CARGO_TARGET_DIR", built).env("CARGO_INCREMENTAL", "0");
    succeed(without_paths(&mut command, sources, built))
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
