//! A copy of the sources in another folder, to be built there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Failure, output, program, root};

/// Copies every file that git knows or would add, as it is now, and removes others. A file that is
/// the same already keeps its time, so that nothing is compiled again because of it.
pub(crate) fn sources(to: &Path) -> Result<(), Failure> {
    let mut list = program("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let names = output(&mut list)?;
    // A file that was deleted may still be in git's list.
    let names = names.split_terminator('\0').filter(|name| root().join(name).exists());
    update(root(), to, &names.map(PathBuf::from).collect())
}

fn update(from: &Path, to: &Path, names: &BTreeSet<PathBuf>) -> Result<(), Failure> {
    for name in names {
        let (from, to) = (from.join(name), to.join(name));
        let bytes = fs::read(&from).map_err(Failure::read(&from))?;
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        let folder = to.parent().expect("a file lies in a folder");
        fs::create_dir_all(folder).map_err(Failure::write(folder))?;
        fs::copy(&from, &to).map_err(Failure::write(&to))?;
    }
    for path in files(to)? {
        if path.strip_prefix(to).is_ok_and(|name| !names.contains(name)) {
            fs::remove_file(&path).map_err(Failure::write(&path))?;
        }
    }
    Ok(())
}

/// The files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::read(folder))?.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(self::files(&entry.path())?),
            _ => files.push(entry.path()),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_follows_its_original_and_touches_only_what_differs() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("b")).unwrap();
        for (name, text) in [("a", "1"), ("b/c", "2")] {
            fs::write(from.join(name), text).unwrap();
        }
        let names = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        update(&from, &to, &names(&["a", "b/c"])).unwrap();
        let time = || fs::metadata(to.join("b/c")).unwrap().modified().unwrap();
        let before = time();
        fs::write(from.join("a"), "3").unwrap();
        update(&from, &to, &names(&["a", "b/c"])).unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "3");
        assert_eq!(time(), before);
        update(&from, &to, &names(&["a"])).unwrap();
        assert!(!to.join("b/c").exists());
    }
}
