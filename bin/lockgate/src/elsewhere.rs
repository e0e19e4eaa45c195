//! Commands that are programs of their own: `lockgate bench` executes `lockgate-bench`, and
//! `lockgate demo` executes `lockgate-demo`, with the words behind the command as they stand.
//!
//! A program is looked for beside this one, then where the package `lockgate-tools` puts it, never
//! in PATH: whoever may set PATH could run anything under our name. It takes this process over, so
//! that its exit code and its signals are its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the package's programs that nobody calls by their names.
const PACKAGED: &str = "/usr/libexec/lockgate";

/// The words of a command that is a program of its own.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Words {
    /// Arguments of the program; `--help` lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// A program that runs in place of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    /// Measurements.
    Bench,
    /// Demonstrations.
    Demo,
}

/// A reason why a program does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The program is in none of its folders.
    #[error(
        "{program} is not in {}: install the package lockgate-tools, or run `make build` in the \
         source tree",
        listed(.folders)
    )]
    Missing {
        /// The name of the program.
        program: &'static str,
        /// The folders in which it was looked for.
        folders: Vec<PathBuf>,
    },
    /// The operating system does not start it.
    #[error("{}: cannot be started: {error}", .file.display())]
    Start {
        /// The program.
        file: PathBuf,
        /// The operating system's reason.
        error: std::io::Error,
    },
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Program::Bench => "lockgate-bench",
            Program::Demo => "lockgate-demo",
        }
    }
}

/// Runs a program in place of this one. Returns only if it does not run.
///
/// # Errors
/// [`ProgramError`].
pub(crate) fn run(program: Program, words: &Words) -> Result<(), ProgramError> {
    let beside = std::env::current_exe().ok();
    let beside = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let folders: Vec<PathBuf> = beside.into_iter().chain([PathBuf::from(PACKAGED)]).collect();
    let name = program.name();
    let Some(file) = found(name, &folders) else {
        return Err(ProgramError::Missing { program: name, folders });
    };
    let error = Command::new(&file).args(&words.words).exec();
    Err(ProgramError::Start { file, error })
}

/// The first file of this name in the folders.
fn found(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn listed(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_with_a_file_of_the_name_wins() {
        let place = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| place.path().join(name));
        std::fs::create_dir_all(first.join("x")).unwrap();
        std::fs::create_dir(&second).unwrap();
        std::fs::write(second.join("x"), "").unwrap();
        let folders = [first.clone(), second.clone()];
        // A folder is no program.
        assert_eq!(found("x", &folders), Some(second.join("x")));
        std::fs::write(first.join("y"), "").unwrap();
        std::fs::write(second.join("y"), "").unwrap();
        assert_eq!(found("y", &folders), Some(first.join("y")));
        assert_eq!(found("z", &folders), None);
    }
}
