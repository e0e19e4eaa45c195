//! `lockgate generate`: writes the files that a package needs beside the program, derived from the
//! argument parser.

mod manual;
mod sections;

use std::path::PathBuf;

use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use crate::completion::{PROGRAM, VARIABLE};
use crate::failure::Failure;

/// Writes files for a package into a directory, which is made if it is not there.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kind of files to write
    #[arg(value_enum)]
    what: What,
    /// Directory to write to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Completions for bash, zsh and fish
    Completions,
    /// A manual page for each command
    Man,
}

/// Shells, each with the name of the file that it reads.
const SHELLS: [(&dyn EnvCompleter, &str); 3] =
    [(&Bash, "lockgate.bash"), (&Zsh, "_lockgate"), (&Fish, "lockgate.fish")];

/// Writes them.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<(), Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).map_err(Failure::file(directory))?;
    let files: Vec<(String, Vec<u8>)> = match args.what {
        What::Completions => SHELLS.iter().map(|(shell, file)| script(*shell, file)).collect(),
        What::Man => manual::pages(command),
    };
    for (name, content) in files {
        let file = directory.join(name);
        std::fs::write(&file, content).map_err(Failure::file(&file))?;
    }
    Ok(())
}

/// A shell's script, which asks this program how a line may go on.
fn script(shell: &dyn EnvCompleter, file: &str) -> (String, Vec<u8>) {
    let mut script = Vec::new();
    let written = shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script);
    written.expect("memory takes what is written");
    (file.to_owned(), script)
}
