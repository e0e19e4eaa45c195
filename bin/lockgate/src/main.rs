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

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ipsec::SelfTestError;

use failure::Failure;

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

/// Runs a command that seals or opens, if the ciphers do what they must on this machine.
fn tested(
    self_test: impl FnOnce() -> Result<(), SelfTestError>,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    self_test()?;
    run()
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => tested(ipsec::self_test, || replay::run(&args)),
        Command::Demo(args) => tested(ipsec::self_test, || demo::run(&args)),
        Command::Bench(args) => tested(ipsec::self_test, || Ok(bench::run(&args)?)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use ipsec::{SelfTestStep, Suite};

    #[test]
    fn nothing_is_sealed_with_a_cipher_that_fails_its_self_test() {
        let broken = SelfTestError { suite: Suite::Aes128Gcm, step: SelfTestStep::Seal };
        let failure = tested(|| Err(broken), || panic!("went on")).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("self-test of aes-128-gcm failed"), "{text}");
        assert!(text.contains("nothing was sealed"), "{text}");
        assert_eq!(format!("{:?}", failure.exit_code()), format!("{:?}", ExitCode::from(1)));
        let mut ran = false;
        tested(ipsec::self_test, || {
            ran = true;
            Ok(())
        })
        .unwrap();
        assert!(ran);
    }
}
