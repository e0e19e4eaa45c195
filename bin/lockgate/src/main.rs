//! The operator's command: one file a subcommand; this one only parses and dispatches.
//!
//! Exit codes: 0 it is well, 1 what was asked about is bad, 2 the command line makes no sense.
//! Answers go to standard output, errors to standard error.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod demo;
#[cfg(test)]
mod documents;
mod explain;
mod failure;
mod generate;
mod init;
mod keygen;
mod live;
mod output;
mod replay;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use ipsec::SelfTestError;

use failure::Failure;
use live::{Socket, change, detach, events, policy, probe, show};

/// Lockgate: an IPsec gateway in user space.
#[derive(Parser)]
#[command(name = "lockgate", version, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    socket: Socket,
    #[command(subcommand)]
    command: Command,
}

/// Each says what it is for in its own file; its first line stands in the overview.
#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Init(init::Args),
    Keygen(keygen::Args),
    Apply(change::ApplyArgs),
    Confirm(change::ConfirmArgs),
    Diff(change::DiffArgs),
    Rollback(change::RollbackArgs),
    Save(change::SaveArgs),
    Export(change::ExportArgs),
    Policy(policy::Args),
    Show(show::Args),
    Explain(explain::Args),
    Events(events::Args),
    Probe(probe::Args),
    Detach(detach::Args),
    Replay(replay::Args),
    Demo(demo::Args),
    Bench(bench::BenchArguments),
    /// Write completions or manual pages, for the package
    #[command(hide = true)]
    Generate(generate::Args),
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
    let CommandLine { socket, command } = CommandLine::parse();
    let result = match command {
        Command::Check(args) => check::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Apply(args) => change::apply(&args, &socket),
        Command::Confirm(args) => change::confirm(&args, &socket),
        Command::Diff(args) => change::diff(&args, &socket),
        Command::Rollback(args) => change::rollback(&args, &socket),
        Command::Save(args) => change::save(&args, &socket),
        Command::Export(args) => change::export(&args, &socket),
        Command::Policy(args) => policy::run(&args, &socket),
        Command::Show(args) => show::run(&args, &socket),
        Command::Explain(args) => explain::run(&args, &socket),
        Command::Events(args) => events::run(&args, &socket),
        Command::Probe(args) => probe::run(&args),
        Command::Detach(args) => detach::run(&args, &socket),
        Command::Replay(args) => tested(ipsec::self_test, || replay::run(&args)),
        Command::Demo(args) => tested(ipsec::self_test, || demo::run(&args)),
        Command::Bench(args) => tested(ipsec::self_test, || Ok(bench::run(&args)?)),
        Command::Generate(args) => generate::run(&args, CommandLine::command()),
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
    use ipsec::cipher::BackendKind;
    use ipsec::{SelfTestStep, Suite};

    #[test]
    fn nothing_is_sealed_with_a_cipher_that_fails_its_self_test() {
        let (suite, backend, step) = (Suite::Aes128Gcm, BackendKind::AwsLc, SelfTestStep::Seal);
        let broken = SelfTestError { suite, backend, step };
        let failure = tested(|| Err(broken), || panic!("went on")).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("self-test of aes-128-gcm by aws-lc-rs failed"), "{text}");
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
