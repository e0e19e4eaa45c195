//! Builds every program and every test once, with clippy as the compiler, and runs the tests.
//!
//! `cargo test --package NAME` gives dependencies other features than `--workspace` does and
//! compiles them again; `cargo clippy` looks at everything once more. Here one `cargo build` does
//! it all: clippy's driver is a compiler that also lints. The tests are run by their files, as
//! cargo would: in their package's folder.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Failure, cargo, display, output, program};

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// Name of its package.
    pub(crate) package: String,
    /// Name of its target: the package's own, or a file of its folder `tests`.
    pub(crate) target: String,
    /// The package's folder: where it runs.
    folder: PathBuf,
    executable: PathBuf,
}

impl TestProgram {
    /// A command that runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Its file.
    pub(crate) fn executable(&self) -> &Path {
        &self.executable
    }

    /// Its name for people: `package`, or `package/tests/target.rs`.
    pub(crate) fn name(&self) -> String {
        match self.target == self.package {
            true => self.package.clone(),
            false => format!("{}/tests/{}.rs", self.package, self.target),
        }
    }
}

/// Everything that a build came to.
#[derive(Default)]
pub(crate) struct Built {
    /// The test programs, in the order of their names.
    pub(crate) tests: Vec<TestProgram>,
    /// Warnings and errors of the compiler and of clippy.
    pub(crate) lints: u64,
    /// Set if everything compiled.
    pub(crate) complete: bool,
}

impl Built {
    /// The test programs of a package; `targets` are their names, none: all.
    pub(crate) fn of<'a>(
        &'a self,
        package: &'a str,
        targets: &'a [&'a str],
    ) -> impl Iterator<Item = &'a TestProgram> {
        let wanted = move |test: &&TestProgram| {
            let target = targets.is_empty() || targets.contains(&&*test.target);
            test.package == package && target
        };
        self.tests.iter().filter(wanted)
    }

    /// Adds what one of cargo's messages says, and prints a lint.
    fn add(&mut self, message: &Value) {
        match message["reason"].as_str() {
            Some("compiler-artifact") => self.tests.extend(test_program(message)),
            Some("compiler-message") => {
                let rendered = message["message"]["rendered"].as_str();
                let level = message["message"]["level"].as_str().unwrap_or_default();
                // Cargo sums up a package's lints in a message without a place.
                let placed = message["message"]["spans"].as_array().is_some_and(|s| !s.is_empty());
                if level.starts_with("error") || (level == "warning" && placed) {
                    self.lints += 1;
                    print!("{}", rendered.unwrap_or_default());
                }
            }
            _ => {}
        }
    }
}

/// The test program that an artifact of cargo's is, if it is one.
pub(crate) fn test_program(artifact: &Value) -> Option<TestProgram> {
    if artifact["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned();
    Some(TestProgram {
        package: package_name(artifact["package_id"].as_str()?)?.to_owned(),
        target: artifact["target"]["name"].as_str()?.to_owned(),
        executable: artifact["executable"].as_str()?.into(),
        folder,
    })
}

/// The package of an id: `path+file:///…/folder#name@1.0.0`, or `…/name#1.0.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, rest) = id.rsplit_once('#')?;
    match rest.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

/// Builds everything. Cargo shows its progress on stderr; lints are printed to stdout.
pub(crate) fn build() -> Result<Built, Failure> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--all-targets", "--keep-going"]);
    command.arg("--message-format=json-diagnostic-rendered-ansi");
    with_clippy(&mut command);
    println!("$ {}", display(&command));
    let name = display(&command);
    let start = |error| Failure::Start { program: name.clone(), error };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut built = Built::default();
    if let Some(stdout) = child.stdout.take() {
        let messages = serde_json::Deserializer::from_reader(BufReader::new(stdout));
        for message in messages.into_iter::<Value>() {
            built.add(&message.map_err(|_| Failure::Metadata)?);
        }
    }
    built.complete = child.wait().map_err(start)?.success();
    built.tests.sort_by_key(TestProgram::name);
    Ok(built)
}

/// Makes clippy's driver the compiler of our packages, where there is one. A cargo without it would
/// compile them again.
pub(crate) fn with_clippy(command: &mut Command) -> &mut Command {
    match clippy_driver() {
        Some(driver) => command.env("RUSTC_WORKSPACE_WRAPPER", driver),
        None => {
            println!("SKIPPED: lints: this toolchain has no clippy");
            command
        }
    }
}

/// Clippy's compiler, beside the one that cargo uses.
fn clippy_driver() -> Option<PathBuf> {
    let sysroot = output(program("rustc").args(["--print", "sysroot"])).ok()?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    driver.is_file().then_some(driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package_id: &str, target: &str, test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": package_id,
            "manifest_path": "/x/crates/wire/Cargo.toml",
            "target": { "name": target },
            "profile": { "test": test },
            "executable": test.then_some("/x/target/debug/deps/wire-1"),
        })
    }

    #[test]
    fn test_programs_are_found_among_what_was_built() {
        let mut built = Built::default();
        built.add(&artifact("path+file:///x/crates/wire#0.1.0", "wire", true));
        built.add(&artifact("path+file:///x/tests/net#netlab@0.1.0", "leaks", true));
        built.add(&artifact("registry+https://example.org#libc@0.2.1", "libc", false));
        let names: Vec<String> = built.tests.iter().map(TestProgram::name).collect();
        assert_eq!(names, ["wire", "netlab/tests/leaks.rs"]);
        assert_eq!(built.of("netlab", &["crash"]).count(), 0);
        assert_eq!(built.of("netlab", &["crash", "leaks"]).count(), 1);
        assert_eq!(built.of("wire", &[]).count(), 1);
    }

    #[test]
    fn lints_are_counted_and_sums_are_not() {
        let message = |level: &str, spans: Value| {
            serde_json::json!({
                "reason": "compiler-message",
                "message": { "level": level, "rendered": "", "spans": spans },
            })
        };
        let mut built = Built::default();
        built.add(&message("warning", serde_json::json!([{}])));
        built.add(&message("error", serde_json::json!([])));
        built.add(&message("warning", serde_json::json!([])));
        built.add(&message("note", serde_json::json!([{}])));
        assert_eq!(built.lints, 2);
    }
}
