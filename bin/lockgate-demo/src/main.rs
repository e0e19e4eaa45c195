//! Demonstrations, which `lockgate demo` executes: laboratories that show what Lockgate does, and
//! check it.
#![forbid(unsafe_code)]

mod acl;
mod compare;
mod failure;
mod gateways;
mod ike;
mod laboratory;
mod offload;
mod overlay;
mod play;
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
    /// replay: repeat with new keys and new traffic for this many seconds; gateways, acl,
    /// overlay: measure each throughput for this many seconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u64,
    /// replay: keep configurations, keys and captures of the last round in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// gateways: run this program too, between the same hosts, and show its figures for comparison
    #[arg(long, value_name = "wireguard-go=PATH")]
    peer: Option<gateways::Rival>,
    /// acl, ike: play only the first N scenes; the last one of acl compares rates
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SCENES))]
    scenes: Option<u32>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The number of scenes of `acl`, which has most.
const SCENES: i64 = acl::LAST_SCENE as i64;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Security groups between a client and a server, in six namespaces; needs root
    Acl,
    /// Two gateways with their hosts in five namespaces, real traffic over AF_XDP; needs root
    Gateways,
    /// Two gateways whose keys strongSwan's charon negotiates, in five namespaces; needs root
    Ike,
    /// Security groups on an emulated network card, between a client and a server, in three
    /// namespaces; needs root
    Offload,
    /// Virtual networks of two compute nodes, answered in the kernel and by workers, in four
    /// namespaces; needs root
    Overlay,
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
    args.check()?;
    match args.name {
        Name::Acl => acl::run(args.seconds, args.scenes.unwrap_or(acl::LAST_SCENE), form),
        Name::Gateways => gateways::run(args.seconds, args.peer.as_ref(), form),
        Name::Ike => ike::run(args.scenes.unwrap_or(ike::LAST_SCENE), form),
        Name::Offload => offload::run(form),
        Name::Overlay => overlay::run(args.seconds, form),
        Name::Replay => replay::run(args.seconds, args.keep.as_deref(), form),
    }
}

impl Args {
    /// Checks that no option of another demonstration is given.
    fn check(&self) -> Result<(), Usage> {
        let options = [
            (self.keep.is_some(), "--keep", &[Name::Replay][..]),
            (self.peer.is_some(), "--peer", &[Name::Gateways]),
            (self.scenes.is_some(), "--scenes", &[Name::Acl, Name::Ike]),
        ];
        let other = options.into_iter().find(|(given, _, of)| *given && !of.contains(&self.name));
        match other {
            Some((_, option, of)) => Err(Usage::OtherDemo { option, demo: of[0].text() }),
            None => Ok(()),
        }
    }
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Name::Acl => "acl",
            Name::Gateways => "gateways",
            Name::Ike => "ike",
            Name::Offload => "offload",
            Name::Overlay => "overlay",
            Name::Replay => "replay",
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
