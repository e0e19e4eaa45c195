//! `lockgate bench` as a program of its own, until `lockgate` itself dispatches to it.
#![forbid(unsafe_code)]

#[path = "../src/bench/mod.rs"]
mod bench;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
enum CommandLine {
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let CommandLine::Bench(arguments) = CommandLine::parse();
    match bench::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockgate: {error}");
            ExitCode::FAILURE
        }
    }
}
