//! The operator's command: one file a subcommand; this one only parses and dispatches.
//!
//! Answers go to standard output, errors to standard error. With `--json` an error is an answer
//! too: `{"error":{"message":…,"exit_code":…}}`, one line on standard output.
#![forbid(unsafe_code)]

mod check;
mod completion;
#[cfg(test)]
mod documents;
mod elsewhere;
mod explain;
mod failure;
mod generate;
mod import;
mod init;
mod input;
mod keygen;
mod live;
mod offload_help;
mod plan;
mod replay;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use console::failure::{Form, tell};
use console::line::{self, LineError};
use ipsec::SelfTestError;

use elsewhere::Program;
use failure::{Failure, Usage};
use live::{
    Socket, capture, change, connection, detach, diff, endpoint, events, policy, probe, rule, sa,
    show, status,
};

/// Lockgate: an IPsec gateway in user space.
#[derive(Parser)]
#[command(name = "lockgate", version, max_term_width = 100, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(flatten)]
    socket: Socket,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str = "\
`lockgate help offload` lists what network cards can take over.

Exit codes:
  0  it succeeded
  1  it failed, or the answer is no: the configuration is bad, the daemon
     refused, a port is missing
  2  the command line is wrong, or names something that does not exist
`diff` ends like diff(1): 0 no difference, 1 differences, 2 trouble.

With --json an error is one line on standard output:
  {\"error\":{\"message\":\"…\",\"exit_code\":1}}
`check`, `apply`, `diff` and `policy` report mistakes of a file in their usual
answer, with \"ok\": false.";

/// Commands that ask no daemon.
const OFFLINE: &[&str] =
    &["check", "import", "init", "keygen", "plan", "replay", "demo", "bench", "probe", "generate"];

/// The subcommands. Each is described in its own file, whose first line is its line of the
/// overview.
#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Init(init::Args),
    Import(import::Args),
    Keygen(keygen::Args),
    Apply(change::ApplyArgs),
    Confirm(change::ConfirmArgs),
    Diff(diff::DiffArgs),
    Rollback(change::RollbackArgs),
    Save(change::SaveArgs),
    Export(change::ExportArgs),
    Policy(policy::Args),
    Rule(rule::RuleArgs),
    Set(rule::SetArgs),
    Connection(connection::Args),
    Endpoint(endpoint::Args),
    Sa(sa::Args),
    Status(status::Args),
    #[command(alias = "sh")]
    Show(show::Args),
    Explain(explain::Args),
    Plan(Box<plan::Args>),
    Events(events::Args),
    Capture(capture::Args),
    Probe(probe::Args),
    Detach(detach::Args),
    Replay(replay::Args),
    /// Show what Lockgate does in a laboratory, and check it
    ///
    /// Executes the program lockgate-demo, which the package lockgate-tools brings;
    /// `lockgate demo --help` shows what it takes.
    Demo(elsewhere::Words),
    /// Measure
    ///
    /// Executes the program lockgate-bench, which the package lockgate-tools brings;
    /// `lockgate bench --help` shows what it takes.
    Bench(elsewhere::Words),
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
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = completion::answer(&args, || offered(CommandLine::command())) {
        return code;
    }
    let form = Form::asked_for(&args);
    if let Some(printed) = offload_help::answer(&args) {
        return match printed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => tell(&Failure::from(error), form),
        };
    }
    match parsed(args).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(&failure, form),
    }
}

/// The parser, with `--socket` offered by those commands only that it means something to.
fn offered(mut command: clap::Command) -> clap::Command {
    fn without_socket(command: clap::Command) -> clap::Command {
        let hidden = |arg: clap::Arg| if arg.get_id() == "socket" { arg.hide(true) } else { arg };
        command.mut_args(hidden).mut_subcommands(without_socket)
    }
    // Global options are handed down when it is built.
    command.build();
    command.mut_subcommands(|sub| match OFFLINE.contains(&sub.get_name()) {
        true => without_socket(sub),
        false => sub,
    })
}

/// Parses the command line. Help and version are printed then.
fn parsed(args: Vec<OsString>) -> Result<Option<CommandLine>, Failure> {
    let mut parser = offered(CommandLine::command());
    let args = words::written_out(&parser, args);
    let matches = match line::parsed(&mut parser, args) {
        Ok(Some(matches)) => matches,
        Ok(None) => return Ok(None),
        Err(LineError::Refused(error)) => return Err(senseless(&parser, error)),
        Err(error) => return Err(error.into()),
    };
    if let Some((name, of_command)) = matches.subcommand()
        && OFFLINE.contains(&name)
        && of_command.value_source("socket") == Some(ValueSource::CommandLine)
    {
        return Err(Usage::NoDaemon { command: name.to_owned() }.into());
    }
    let parsed = CommandLine::from_arg_matches(&matches).map_err(LineError::Refused)?;
    Ok(Some(parsed))
}

/// A command line that is wrong, with the nearest command if it names one that is not there.
fn senseless(parser: &clap::Command, error: clap::Error) -> Failure {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return LineError::Refused(error).into();
    };
    // The usage line ends with the command that has no such subcommand.
    let parent = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => parent_of(parser, &usage.to_string()),
        _ => String::new(),
    };
    let nearest = words::nearest(parser, &parent, word);
    Usage::UnknownCommand { parent, word: word.clone(), nearest }.into()
}

/// The command in a usage line: `policy` in `Usage: lockgate policy [OPTIONS] <COMMAND>`.
fn parent_of(parser: &clap::Command, usage: &str) -> String {
    let mut words = usage.split_whitespace().skip_while(|word| *word != "lockgate").skip(1);
    let word = words.next().unwrap_or_default();
    parser.find_subcommand(word).map_or(String::new(), |command| command.get_name().to_owned())
}

fn run(line: Option<CommandLine>) -> Result<(), Failure> {
    let Some(CommandLine { socket, command }) = line else { return Ok(()) };
    let Some(command) = command else { return status::run_alone(&socket) };
    match command {
        Command::Check(args) => check::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Apply(args) => change::apply(&args, &socket),
        Command::Confirm(args) => change::confirm(&args, &socket),
        Command::Diff(args) => diff::diff(&args, &socket),
        Command::Rollback(args) => change::rollback(&args, &socket),
        Command::Save(args) => change::save(&args, &socket),
        Command::Export(args) => change::export(&args, &socket),
        Command::Policy(args) => policy::run(&args, &socket),
        Command::Rule(args) => rule::run_rule(&args, &socket),
        Command::Set(args) => rule::run_set(&args, &socket),
        Command::Connection(args) => connection::run(&args, &socket),
        Command::Endpoint(args) => endpoint::run(&args, &socket),
        Command::Sa(args) => sa::run(&args, &socket),
        Command::Status(args) => status::run(&args, &socket),
        Command::Show(args) => show::run(&args, &socket),
        Command::Explain(args) => explain::run(&args, &socket),
        Command::Plan(args) => plan::run(&args),
        Command::Events(args) => events::run(&args, &socket),
        Command::Capture(args) => capture::run(&args, &socket),
        Command::Probe(args) => probe::run(&args),
        Command::Detach(args) => detach::run(&args, &socket),
        Command::Replay(args) => tested(ipsec::self_test, || replay::run(&args)),
        Command::Demo(words) => Ok(elsewhere::run(Program::Demo, &words)?),
        Command::Bench(words) => Ok(elsewhere::run(Program::Bench, &words)?),
        Command::Generate(args) => {
            // There is no manual page for `help`.
            generate::run(&args, offered(CommandLine::command().disable_help_subcommand(true)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::failure::Failed;
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
        assert_eq!(failure.exit_code(), 1);
        let mut ran = false;
        tested(ipsec::self_test, || {
            ran = true;
            Ok(())
        })
        .unwrap();
        assert!(ran);
    }
}
