//! The directory of key files, which only a restart of the daemon changes.

use std::path::Path;

use crate::validated::Validated;

/// Returns whether two paths name the same directory.
pub fn same_directory(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

impl Validated {
    /// Writes `keys_dir` in the words of the running configuration if both name the same directory.
    /// `base` and `running_base` are the directories at which relative paths begin. Returns false
    /// if `keys_dir` names another directory.
    pub fn keep_keys_dir(&mut self, base: &Path, running: &Validated, running_base: &Path) -> bool {
        let (named, words) = (&mut self.node.keys_dir, &running.node.keys_dir);
        if *named != *words && !same_directory(&base.join(&*named), &running_base.join(words)) {
            return false;
        }
        named.clone_from(words);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "[node]\nname = \"gw\"\n[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";

    #[test]
    fn other_paths_to_the_running_directory_become_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let (base, elsewhere) = (folder.path(), Path::new("/nowhere"));
        for directory in ["keys", "others"] {
            std::fs::create_dir(base.join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("keys", base.join("link")).unwrap();
        let with = |keys_dir: &Path| {
            let mut validated = crate::parse(TEXT, "a.toml").unwrap().validated;
            validated.node.keys_dir = keys_dir.to_owned();
            validated
        };
        let running = with(Path::new("keys"));
        for (named, at) in [
            (Path::new("keys"), elsewhere),
            (Path::new("link"), base),
            (Path::new("./others/../keys"), base),
            (&base.join("keys"), elsewhere),
        ] {
            let mut new = with(named);
            assert!(new.keep_keys_dir(at, &running, base), "{named:?}");
            assert_eq!(new.node.keys_dir, Path::new("keys"));
        }
        for (named, at) in [(Path::new("others"), base), (Path::new("link"), elsewhere)] {
            let mut new = with(named);
            assert!(!new.keep_keys_dir(at, &running, base), "{named:?}");
            assert_eq!(new.node.keys_dir, named);
        }
    }
}
