//! `lockgate generate`: writes the files that a package needs beside the program, derived from the
//! argument parser.

use std::path::PathBuf;

use clap_complete::Shell;

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

/// Writes them.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).map_err(Failure::file(directory))?;
    match args.what {
        What::Completions => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut command, "lockgate", directory)
                    .map_err(Failure::file(directory))?;
            }
        }
        What::Man => {
            clap_mangen::generate_to(command, directory).map_err(Failure::file(directory))?;
        }
    }
    Ok(())
}
