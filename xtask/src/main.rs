//! Build, set-up, checks and tests behind the Makefile: `cargo xtask NAME`.
//!
//! | command | what |
//! |---|---|
//! | `setup [--quiet]` | installs what building, testing and the demonstrations need |
//! | `setup --demo` | the same without what only tests need |
//! | `rows [--draw COMMIT]` | writes the tests into `docs/acceptance.md`; or draws twenty rows |
//! | `mutations [--row ROW\|--all]` | changes of one line, each of which a test must notice |
//! | `tidy` | the rules of the code that a compiler does not check |
//! | `tidy --record` | lowers the recorded figures of plain English; refuses to raise them |
//! | `reference` | writes `docs/reference` from the code's own tables |
//! | `test` | every promise, with a table at the end |
//! | `test-long [PART …]` | the hunts: what takes too long for `test`, part by part |
//! | `interop [WORD …]` | the part of it against scapy and tshark; rows that hold all words |
//! | `instructions [--renew]` | compares instructions a packet with a table, or renews it |
//! | `flame` | draws where the instructions of each stage go, as pictures in `docs/flames` |
//! | `flame --stores` | the part of it that shows stores in the path of packets, by the clock |
//! | `demo [NAME …]` | builds the programs quickly, runs a demonstration (default `gateways`) |
//! | `deb [--check]` | builds the Debian packages; or tries them with debug programs |
//! | `deb --programs` | packs debug programs and does nothing else, in a clean root |
//! | `image` | makes the folder that `docker build` makes an image of |
//! | `bench [NAME …]` | builds the programs for release, runs a benchmark (default `esp`) |
#![forbid(unsafe_code)]

mod built;
mod charon;
mod charon6;
mod clean;
mod copy;
mod deb;
mod disassembly;
mod flame;
mod guest;
mod image;
mod instructions;
mod long;
mod mutations;
mod plain_english;
mod prose;
mod release;
mod rows;
mod runs;
mod setup;
mod shape;
mod sources;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mutations::Choice;
use setup::{Scope, Voice};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match (name.as_str(), rest.as_slice()) {
        ("setup", []) => setup::run(Voice::Normal, Scope::All),
        ("setup", [flag]) if flag == "--quiet" => setup::run(Voice::Quiet, Scope::All),
        ("setup", [flag]) if flag == "--demo" => setup::run(Voice::Quiet, Scope::Demo),
        ("tidy", []) => tidy::run(),
        ("tidy", [flag]) if flag == "--record" => plain_english::renew(),
        ("rows", []) => sources::tracked_sources().and_then(|sources| rows::write(&sources)),
        ("rows", [flag, commit]) if flag == "--draw" => rows::draw(commit),
        ("mutations", []) => mutations::run(&Choice::Drawn),
        ("mutations", [flag]) if flag == "--all" => mutations::run(&Choice::All),
        ("mutations", [flag, row]) if flag == "--row" => mutations::run(&Choice::Row(row.clone())),
        ("reference", []) => write_reference(),
        ("test", []) => test::run(),
        ("test-long", parts) => long::run(parts),
        ("interop", words) => test::run_interop(words),
        ("demo", rest) => demo(rest),
        ("instructions", []) => instructions::run(),
        ("instructions", [flag]) if flag == "--renew" => instructions::renew(),
        ("flame", []) => flame::run(flame::Pictures::All),
        ("flame", [flag]) if flag == "--stores" => flame::run(flame::Pictures::Stores),
        ("deb", []) => deb::build(deb::Build::Release).map(|_| ()),
        ("deb", [flag]) if flag == "--check" => deb::check(),
        ("deb", [flag]) if flag == "--programs" => {
            deb::build_programs(deb::Build::Debug).map(|_| ())
        }
        ("image", []) => image::make(),
        ("bench", rest) => lockgate(Build::Release, "bench", "esp", rest),
        _ => Err(Failure::Usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Reason why a task did not succeed. The details were printed when it failed.
#[derive(Debug)]
enum Failure {
    /// The command line names no task.
    Usage,
    /// A program could not be started.
    Start { program: String, error: std::io::Error },
    /// A program ran and failed.
    Program { program: String, status: std::process::ExitStatus },
    /// A file could not be read.
    Read { file: PathBuf, error: std::io::Error },
    /// A file could not be written.
    Write { file: PathBuf, error: std::io::Error },
    /// A program needs a shared library and nobody said which package brings it.
    Library { library: String },
    /// There is no image.
    Image { what: String },
    /// The package is not as it should be.
    Package { what: String },
    /// `cargo metadata` printed something else than expected.
    Metadata,
    /// Things to install, and no right to install them.
    NotRoot { missing: Vec<&'static str> },
    /// Still missing after they were installed.
    StillMissing { missing: Vec<&'static str> },
    /// A row's program did not say what it should, or nothing was counted.
    Instructions { row: String },
    /// The table of instructions is not what `instructions --renew` writes.
    Table { file: PathBuf },
    /// The record of plain English cannot be read.
    Record { file: PathBuf },
    /// Findings of `tidy`.
    Untidy { findings: usize },
    /// Changes that no test noticed.
    Uncaught { changes: u64 },
    /// Parts of `test` that failed.
    Tests { failed: usize },
    /// `test-long` has no part of this name.
    NoPart { name: String },
    /// No change is listed for this row.
    NoMutation { row: String },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage => {
                write!(
                    f,
                    "usage: cargo xtask setup [--quiet|--demo] | tidy [--record] | \
                     rows [--draw COMMIT] | mutations [--row ROW|--all] | reference | test | \
                     test-long [PART …] | interop [WORD …] | demo [NAME …] | bench [NAME …] | \
                     instructions [--renew] | flame [--stores] | deb [--check|--programs] | image"
                )
            }
            Failure::Start { program, error } => write!(f, "cannot start {program}: {error}"),
            Failure::Program { program, status } => write!(f, "{program}: {status}"),
            Failure::Read { file, error } => write!(f, "{}: {error}", file.display()),
            Failure::Write { file, error } => write!(f, "{}: {error}", file.display()),
            Failure::Library { library } => {
                write!(f, "deb: which package brings {library}? Say so in LIBRARIES")
            }
            Failure::Package { what } => write!(f, "deb: {what}"),
            Failure::Image { what } => write!(f, "image: {what}"),
            Failure::Metadata => write!(f, "cannot make sense of `cargo metadata`"),
            Failure::NotRoot { missing } => {
                write!(f, "missing: {}; run this as root, or install them", missing.join(", "))
            }
            Failure::StillMissing { missing } => {
                write!(f, "still missing after installing: {}", missing.join(", "))
            }
            Failure::Instructions { row } => {
                write!(f, "instructions: row `{row}`: nothing was counted")
            }
            Failure::Table { file } => {
                write!(f, "{}: run `cargo xtask instructions --renew`", file.display())
            }
            Failure::Record { file } => {
                write!(
                    f,
                    "{}: this is no record of plain English; take the committed file \
                     (git checkout), then run `cargo xtask tidy --record`",
                    file.display()
                )
            }
            Failure::Untidy { findings } => write!(f, "tidy: {findings} findings"),
            Failure::NoPart { name } => {
                write!(f, "test-long has no part `{name}`; there are {}", long::names())
            }
            Failure::NoMutation { row } => {
                write!(f, "tests/mutations.json lists no change for `{row}`: held rows have one")
            }
            Failure::Uncaught { changes } => write!(f, "mutations: {changes} changes not caught"),
            Failure::Tests { failed } => write!(f, "test: {failed} parts failed"),
        }
    }
}

impl Failure {
    /// A file that could not be read.
    fn read(file: &Path) -> impl FnOnce(std::io::Error) -> Failure {
        let file = file.to_owned();
        |error| Failure::Read { file, error }
    }

    /// A file that could not be written.
    fn write(file: &Path) -> impl FnOnce(std::io::Error) -> Failure {
        let file = file.to_owned();
        |error| Failure::Write { file, error }
    }
}

/// The workspace's root folder.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// A program to be run in the workspace's root.
fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// The cargo that runs this.
fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a program, its output on ours, and waits for its end.
fn succeed(command: &mut Command) -> Result<(), Failure> {
    let name = display(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Program { program: name, status }),
        Err(error) => Err(Failure::Start { program: name, error }),
    }
}

/// Runs a program and returns what it printed.
fn output(command: &mut Command) -> Result<String, Failure> {
    let name = display(command);
    match command.stderr(std::process::Stdio::inherit()).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(Failure::Program { program: name, status: output.status }),
        Err(error) => Err(Failure::Start { program: name, error }),
    }
}

/// A command as one would type it.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ").replace(&*cargo().get_program().to_string_lossy(), "cargo")
}

/// Profile by which the programs are built that a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Build {
    /// Quickly: profile `demo`, without link-time optimisation.
    Demo,
    /// The profile in which they are shipped and measured.
    Release,
}

impl Build {
    /// The profile's name, which is also its folder's below the target directory.
    const fn profile(self) -> &'static str {
        match self {
            Build::Demo => "demo",
            Build::Release => "release",
        }
    }
}

/// Runs a demonstration, and before that installs what that alone needs.
fn demo(rest: &[String]) -> Result<(), Failure> {
    if rest.first().is_some_and(|name| name == "ike") {
        setup::run(Voice::Quiet, Scope::Ike)?;
    }
    lockgate(Build::Demo, "demo", "gateways", rest)
}

/// Runs `lockgate TASK NAME …`; the daemon and the program `lockgate-TASK`, which it executes, lie
/// beside it. Cargo shows its progress.
fn lockgate(build: Build, task: &str, default: &str, rest: &[String]) -> Result<(), Failure> {
    let mut command = program(build_programs(build, task)?.join("lockgate"));
    command.arg(task);
    match rest {
        [] => command.arg(default),
        rest => command.args(rest),
    };
    succeed(&mut command)
}

/// Builds the programs of a task, and returns their folder.
fn build_programs(build: Build, task: &str) -> Result<PathBuf, Failure> {
    let profile = build.profile();
    let mut command = cargo();
    command.args(["build", "--profile", profile, "--bins"]);
    let of_task = format!("lockgate-{task}");
    // The demonstration of cards plays with one.
    let card = (task == "demo").then_some("lockgate-emulated-card");
    for package in ["lockgate", "lockgated", &of_task].into_iter().chain(card) {
        command.args(["--package", package]);
    }
    succeed(&mut command)?;
    Ok(target_directory().join(profile))
}

/// Writes the files of `docs/reference`. The tests that compare them with the code's tables do it.
fn write_reference() -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "lockgated", "--bins", "reference::"]);
    command.env("LOCKGATE_WRITE_REFERENCE", "1");
    succeed(&mut command)
}

/// Returns the folder where cargo puts what it builds.
fn target_directory() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
