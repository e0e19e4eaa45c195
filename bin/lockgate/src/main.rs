//! The operator's command: one file a subcommand; this one only parses and dispatches.
//!
//! Exit codes: 0 it is well, 1 what was asked about is bad, 2 the command line makes no sense.
//! Answers go to standard output, errors to standard error.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod demo;
mod explain;
mod failure;
mod keygen;
mod output;
mod replay;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Lockgate: an IPsec gateway in user space.
#[derive(Parser)]
#[command(name = "lockgate", version, about, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judge a configuration and its key files; change nothing
    Check(check::Args),
    /// Make the two key files of a tunnel
    Keygen(keygen::Args),
    /// Say what the walk would do with a flow, and which policy decides
    Explain(explain::Args),
    /// Walk captures through a gateway's configuration; needs no privileges
    Replay(replay::Args),
    /// Show what Lockgate does in a laboratory, and check it
    Demo(demo::Args),
    /// Measure
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                eprintln!("lockgate: {}", text.trim_end());
            }
            failure.exit_code()
        }
    }
}
