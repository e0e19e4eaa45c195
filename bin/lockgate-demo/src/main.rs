//! Demonstrations, which `lockgate demo` executes: laboratories that show what Lockgate does, and
//! check it.
#![forbid(unsafe_code)]

mod compare;
mod failure;
mod gateways;
mod laboratory;
mod progress;
mod replay;
mod report;
mod traffic;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use console::failure::{Form, tell};
use console::line::{LineError, parsed};
use ipsec::SelfTestError;

use failure::{Failure, Usage};

/// Show what Lockgate does in a laboratory, and check it
///
/// Builds a laboratory, sends traffic through it, and checks what comes out. Ends with 0 only if
/// every check holds.
#[derive(Parser)]
#[command(name = "lockgate-demo", bin_name = "lockgate demo", version, max_term_width = 100)]
struct Args {
    /// Demonstration to run
    #[arg(value_enum, default_value = "replay")]
    name: Name,
    /// replay: repeat with new keys and new traffic for this many seconds; gateways: measure each
    /// throughput for this many seconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u64,
    /// replay: keep configurations, keys and captures of the last round in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// gateways: run this program too, between the same hosts, and show its figures for comparison
    #[arg(long, value_name = "wireguard-go=PATH")]
    peer: Option<gateways::Rival>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Two gateways with their hosts in five namespaces, real traffic over AF_XDP; needs root
    Gateways,
    /// Three gateways, a hub and two spokes, as replays of captures; needs no privileges
    Replay,
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let form = Form::asked_for(&args);
    match run(args, ipsec::self_test) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(&failure, form),
    }
}

/// Runs a demonstration, if the ciphers do what they must on this machine.
fn run(
    args: Vec<OsString>,
    self_test: impl FnOnce() -> Result<(), SelfTestError>,
) -> Result<(), Failure> {
    let Some(matches) = parsed(&mut Args::command(), args)? else { return Ok(()) };
    let args = Args::from_arg_matches(&matches).map_err(LineError::Refused)?;
    self_test()?;
    let form = if args.json { Form::Json } else { Form::Text };
    match args.name {
        Name::Gateways if args.keep.is_some() => {
            Err(Usage::OtherDemo { option: "--keep", demo: "replay" }.into())
        }
        Name::Gateways => gateways::run(args.seconds, args.peer.as_ref(), form),
        Name::Replay if args.peer.is_some() => {
            Err(Usage::OtherDemo { option: "--peer", demo: "gateways" }.into())
        }
        Name::Replay => replay::run(args.seconds, args.keep.as_deref(), form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::failure::Failed;
    use ipsec::cipher::BackendKind;
    use ipsec::{SelfTestStep, Suite};

    #[test]
    fn nothing_is_shown_with_a_cipher_that_fails_its_self_test() {
        let (suite, backend, step) = (Suite::Aes128Gcm, BackendKind::AwsLc, SelfTestStep::Seal);
        let broken = SelfTestError { suite, backend, step };
        let args = ["lockgate-demo", "replay"].map(OsString::from).to_vec();
        let failure = run(args, || Err(broken)).unwrap_err();
        assert!(failure.to_string().ends_with("; nothing was sealed"), "{failure}");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn every_demonstration_of_the_documents_parses() {
        let all = documents::commands();
        let shown = all.iter().filter(|it| it.words.get(1).is_some_and(|word| word == "demo"));
        let mut count = 0;
        for command in shown {
            let mistake = Args::try_parse_from(&command.words[1..]).err();
            assert!(mistake.is_none(), "{command:?}: {mistake:?}");
            count += 1;
        }
        assert!(count > 0, "the README shows a demonstration");
        assert!(Args::try_parse_from(["demo", "replya"]).is_err());
    }
}
