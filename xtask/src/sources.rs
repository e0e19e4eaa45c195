//! The project's packages and files, as its rules see them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Failure, cargo, output, program, root};

/// A package of the workspace, as `cargo metadata` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Set if it is a program of ours: nobody may import it.
    pub(crate) is_program: bool,
    pub(crate) dependencies: Vec<Dependency>,
    /// Root files of its library and its programs.
    pub(crate) roots: Vec<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) use_: Use,
}

/// Purpose of a dependency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The crate itself or its build script.
    Build,
    /// Its tests only.
    Tests,
}

/// A file of the project.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// The workspace's packages.
pub(crate) fn packages() -> Result<Vec<Package>, Failure> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = output(cargo().args(arguments))?;
    parse_packages(&metadata).ok_or(Failure::Metadata)
}

pub(crate) fn parse_packages(metadata: &str) -> Option<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).ok()?;
    metadata["packages"].as_array()?.iter().map(parse_package).collect()
}

pub(crate) fn parse_package(package: &Value) -> Option<Package> {
    let mut parsed = Package {
        name: package["name"].as_str()?.into(),
        is_program: true,
        dependencies: Vec::new(),
        roots: Vec::new(),
    };
    for dependency in package["dependencies"].as_array()? {
        let use_ = match dependency["kind"].as_str() {
            Some("dev") => Use::Tests,
            _ => Use::Build,
        };
        parsed.dependencies.push(Dependency { name: dependency["name"].as_str()?.into(), use_ });
    }
    for target in package["targets"].as_array()? {
        let kinds: Vec<&str> =
            target["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
        let is_library = kinds.iter().any(|kind| kind.ends_with("lib") || *kind == "proc-macro");
        parsed.is_program &= !is_library;
        if is_library || kinds.contains(&"bin") {
            parsed.roots.push(target["src_path"].as_str()?.into());
        }
    }
    Some(parsed)
}

/// Returns whether the whole file is tests.
pub(crate) fn is_tests(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path.components().any(|part| part.as_os_str() == "tests")
}

/// All files of the project, generated and ignored ones left out; what is not text is empty.
pub(crate) fn tracked_sources() -> Result<Vec<Source>, Failure> {
    let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listing = output(program("git").args(listing))?;
    let mut sources = Vec::new();
    for name in listing.split('\0').filter(|name| !name.is_empty()) {
        let path = root().join(name);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes).unwrap_or_default();
                sources.push(Source { path, text });
            }
            // Listed but deleted, or a link to nowhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Read { file: path, error }),
        }
    }
    Ok(sources)
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::Read { file: path.into(), error })
}

/// A path as seen from the workspace's root.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
