//! The copy of the tree in which changes are tried, and the test programs that are built there.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Mutation;
use crate::built::{TestProgram, test_program};
use crate::runs::NET_PACKAGE;
use crate::{Failure, cargo, copy, display, succeed, target_directory};

/// A test that takes longer has been caught in an endless loop.
const PATIENCE: Duration = Duration::from_secs(120);
/// Files of `target/debug/deps` that spare a first build the packages of others.
const LIBRARIES: &[&str] = &["rlib", "rmeta", "so", "a", "d"];
/// Programs that tests in network namespaces run.
const PROGRAMS: &[&str] = &["lockgated", "lockgate", "lockgate-demo"];
/// Names that one command takes.
const NAMES: usize = 500;

/// A test program, as cargo selects it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Target {
    /// The unit tests of a library. Cargo builds those of all libraries, because one package alone
    /// would get dependencies with other features.
    Library(String),
    /// The unit tests of a program.
    Program(String),
    /// A file or folder of the folder `tests`.
    Tests { package: String, name: String },
}

impl Target {
    fn arguments(&self) -> Vec<&str> {
        match self {
            Target::Library(_) => vec!["--lib"],
            Target::Program(name) => vec!["--bin", name],
            Target::Tests { name, .. } => vec!["--test", name],
        }
    }

    fn is(&self, program: &TestProgram) -> bool {
        let (package, name) = match self {
            Target::Library(name) | Target::Program(name) => (name, name),
            Target::Tests { package, name } => (package, name),
        };
        program.package == *package && program.target.replace('-', "_") == name.replace('-', "_")
    }
}

/// Result of running a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Passed,
    Failed,
    /// The test cannot run here.
    Skipped,
    /// The test was ended after its time.
    Endless,
    /// There is no such test.
    Absent,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::Passed => "passes",
            Fate::Failed => "fails",
            Fate::Skipped => "is skipped",
            Fate::Endless => "does not end",
            Fate::Absent => "does not run",
        })
    }
}

/// Test programs of a build.
pub(super) struct Built {
    pub(super) complete: bool,
    /// The compiler's errors.
    pub(super) errors: String,
    programs: Vec<TestProgram>,
}

/// The copy.
pub(super) struct Scratch {
    folder: PathBuf,
}

/// A changed file of the copy; dropped, it is as before.
pub(super) struct Changed {
    path: PathBuf,
    before: String,
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Copied anew before the next run, whatever becomes of this.
        let _ = fs::write(&self.path, &self.before);
    }
}

impl Scratch {
    /// Brings the copy up to date. The first time it takes over libraries that are built already.
    pub(super) fn prepare(folder: &Path) -> Result<Scratch, Failure> {
        let scratch = Scratch { folder: folder.to_owned() };
        copy::sources(&scratch.tree())?;
        if !scratch.target().exists() {
            scratch.take_over(&target_directory().join("debug"))?;
        }
        Ok(scratch)
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    fn target(&self) -> PathBuf {
        self.folder.join("target")
    }

    /// Copies built libraries, with their times, and what cargo knows of them.
    fn take_over(&self, built: &Path) -> Result<(), Failure> {
        let (from, to) = (built.join("deps"), self.target().join("debug"));
        fs::create_dir_all(to.join("deps")).map_err(Failure::write(&to))?;
        let archive = |names: &[PathBuf], to: &Path| {
            let mut command = Command::new("cp");
            succeed(command.args(["--archive", "--reflink=auto"]).args(names).arg(to))
        };
        let files = fs::read_dir(&from).into_iter().flatten().flatten().map(|file| file.path());
        let is_library = |path: &PathBuf| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            extension.is_some_and(|extension| LIBRARIES.contains(&extension))
        };
        let libraries: Vec<PathBuf> = files.filter(is_library).collect();
        libraries.chunks(NAMES).try_for_each(|names| archive(names, &to.join("deps")))?;
        let folders = [".fingerprint", "build"].map(|name| built.join(name));
        folders
            .iter()
            .filter(|from| from.exists())
            .try_for_each(|from| archive(std::slice::from_ref(from), &to))
    }

    /// Reads a file of the copy.
    pub(super) fn read(&self, name: &str) -> Result<String, Failure> {
        let path = self.tree().join(name);
        fs::read_to_string(&path).map_err(Failure::read(&path))
    }

    /// Changes a file of the copy until the result is dropped.
    pub(super) fn change(&self, name: &str, text: &str) -> Result<Changed, Failure> {
        let (path, before) = (self.tree().join(name), self.read(name)?);
        fs::write(&path, text).map_err(Failure::write(&path))?;
        Ok(Changed { path, before })
    }

    /// Builds test programs, without lints: a change may well leave a variable unused.
    pub(super) fn build(&self, targets: &BTreeSet<Target>) -> Result<Built, Failure> {
        let mut command = cargo();
        command.current_dir(self.tree()).env("CARGO_TARGET_DIR", self.target());
        command.env_remove("RUSTC_WORKSPACE_WRAPPER");
        command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json"]);
        let arguments: BTreeSet<Vec<&str>> = targets.iter().map(Target::arguments).collect();
        command.args(arguments.into_iter().flatten());
        let name = display(&command);
        let start = |error| Failure::Start { program: name.clone(), error };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(start)?;
        let mut built = Built { complete: false, errors: String::new(), programs: Vec::new() };
        if let Some(stdout) = child.stdout.take() {
            let messages = serde_json::Deserializer::from_reader(BufReader::new(stdout));
            for message in messages.into_iter::<Value>() {
                built.add(&message.map_err(|_| Failure::Metadata)?);
            }
        }
        built.complete = child.wait().map_err(start)?.success();
        let runs_programs = |target: &Target| match target {
            Target::Tests { package, .. } => package == NET_PACKAGE,
            Target::Library(_) | Target::Program(_) => false,
        };
        if built.complete && targets.iter().any(runs_programs) {
            built.complete = self.build_programs()?;
        }
        Ok(built)
    }

    /// Builds the programs that tests in network namespaces run: beside the tests, where these look
    /// for them. Returns whether they compile.
    fn build_programs(&self) -> Result<bool, Failure> {
        let mut command = cargo();
        command.current_dir(self.tree()).env("CARGO_TARGET_DIR", self.target());
        command.env_remove("RUSTC_WORKSPACE_WRAPPER").args(["build", "--quiet"]);
        PROGRAMS.iter().for_each(|program| _ = command.args(["--package", program]));
        let name = display(&command);
        let start = |error| Failure::Start { program: name, error };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status();
        Ok(status.map_err(start)?.success())
    }

    /// Runs the test of a change.
    pub(super) fn run(
        &self,
        built: &Built,
        target: &Target,
        one: &Mutation,
    ) -> Result<Fate, Failure> {
        let Some(program) = built.programs.iter().find(|program| target.is(program)) else {
            return Ok(Fate::Absent);
        };
        let said = self.folder.join("output");
        let mut command = program.command();
        command.args([&*one.test, "--show-output"]).stdin(Stdio::null());
        command.stdout(File::create(&said).map_err(Failure::write(&said))?).stderr(Stdio::null());
        let start = |error| Failure::Start { program: program.name(), error };
        let child = command.spawn().map_err(start)?;
        if !has_ended(child, PATIENCE).map_err(start)? {
            return Ok(Fate::Endless);
        }
        let text = fs::read(&said).map_err(Failure::read(&said))?;
        Ok(fate(&String::from_utf8_lossy(&text), &one.test))
    }
}

impl Built {
    /// Adds what one of cargo's messages says.
    fn add(&mut self, message: &Value) {
        match message["reason"].as_str() {
            Some("compiler-artifact") => self.programs.extend(test_program(message)),
            Some("compiler-message") if message["message"]["level"] == "error" => {
                self.errors.push_str(message["message"]["rendered"].as_str().unwrap_or_default());
            }
            _ => {}
        }
    }
}

/// Waits for a process, and ends it after its time: `false`.
fn has_ended(mut child: Child, patience: Duration) -> std::io::Result<bool> {
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Reads what a test program printed about a test: other tests' names may begin with its name.
fn fate(text: &str, test: &str) -> Fate {
    let result = text.lines().find_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        (name.rsplit("::").next() == Some(test)).then_some(result)
    });
    match result {
        Some("ok") if text.contains("SKIPPED: ") => Fate::Skipped,
        Some("ok") => Fate::Passed,
        Some("FAILED") => Fate::Failed,
        // The program begins a test and does not come to its end: it was aborted.
        None if text.contains("running 1 test") && !text.contains("test result: ") => Fate::Failed,
        _ => Fate::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fate_of_a_test_is_read_from_what_its_program_printed() {
        let text = "\nrunning 2 tests\ntest a::one_more ... FAILED\ntest a::one ... ok\n\n\
                    test result: FAILED. 1 passed; 1 failed\n";
        assert_eq!(fate(text, "one"), Fate::Passed);
        assert_eq!(fate(text, "one_more"), Fate::Failed);
        assert_eq!(fate(text, "two"), Fate::Absent);
        let skipped = "test one ... ok\n\nsuccesses:\n\n---- one ----\nSKIPPED: one: needs root\n";
        assert_eq!(fate(skipped, "one"), Fate::Skipped);
        assert_eq!(fate("test one ... ignored, slow\n", "one"), Fate::Absent);
        assert_eq!(fate("\nrunning 1 test\n", "one"), Fate::Failed, "aborted");
        let none = "\nrunning 0 tests\n\ntest result: ok. 0 passed\n";
        assert_eq!(fate(none, "one"), Fate::Absent);
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let run = |seconds: &str| Command::new("sleep").arg(seconds).spawn().unwrap();
        assert!(has_ended(run("0"), Duration::from_secs(60)).unwrap());
        assert!(!has_ended(run("3600"), Duration::from_millis(10)).unwrap());
    }

    #[test]
    fn a_changed_file_is_as_before_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let scratch = Scratch { folder: directory.path().to_owned() };
        fs::create_dir_all(scratch.tree()).unwrap();
        fs::write(scratch.tree().join("a.rs"), "before").unwrap();
        let changed = scratch.change("a.rs", "after").unwrap();
        assert_eq!(scratch.read("a.rs").unwrap(), "after");
        drop(changed);
        assert_eq!(scratch.read("a.rs").unwrap(), "before");
    }

    #[test]
    fn errors_of_a_build_are_kept_and_warnings_are_not() {
        let message = |level: &str| {
            serde_json::json!({
                "reason": "compiler-message",
                "message": { "level": level, "rendered": format!("{level}!") },
            })
        };
        let mut built = Built { complete: false, errors: String::new(), programs: Vec::new() };
        built.add(&message("warning"));
        built.add(&message("error"));
        assert_eq!(built.errors, "error!");
    }
}
