//! `lockgate explain`: what the walk would do with a flow, and why: of a configuration file, or of
//! the daemon that runs.

mod flow;

use std::path::{Path, PathBuf};

use control::{Explained, Picture, Question, ReplayKeys, Severity, Spis, Validated};
use dataplane::{Generation, Snapshot};

use crate::failure::{Failure, Usage};
use crate::live::{Ask, Socket, explain_request};
use crate::output::{print, print_json};

pub(crate) use flow::FlowError;

/// Say what the walk would do with a flow, and which policy decides
///
/// Says what the walk would do with a flow, which policy decides, which ones that policy beat, and
/// how the packet leaves: by a configuration file, or as the running daemon would decide. Nothing
/// is sent, sealed or counted. Not judged, because a flow does not say them: checksums, hop limit,
/// size, and whether neighbours answer.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration; without it the running daemon is asked
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The port that the packet comes in by ("host": from this machine itself)
    #[arg(long = "in", value_name = "PORT")]
    port: String,
    /// The packet came sealed from this peer and was opened
    #[arg(long, value_name = "PEER")]
    from_peer: Option<String>,
    /// The packet is a later fragment: its ports are in another one
    #[arg(long)]
    fragment: bool,
    /// tcp, udp, icmp/8/0, icmpv6/128/0, esp, … or a number
    #[arg(value_name = "PROTO")]
    protocol: String,
    /// Source address, with a port if the protocol has ports (else 49152 is taken)
    #[arg(value_name = "SRC[:PORT]")]
    source: String,
    /// Destination address, with a port if the protocol has ports
    #[arg(value_name = "DST[:PORT]")]
    destination: String,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockgate explain --in lan tcp 10.1.0.5:1000 10.2.0.9:443
  lockgate explain --config a.toml --in lan tcp 10.1.0.5:1000 10.2.0.9:443
  lockgate explain --config a.toml --in lan icmp/8/0 10.1.0.5 10.2.0.9
  lockgate explain --config a.toml --in lan udp [2001:db8:1::5]:53 [2001:db8:2::9]:53
  lockgate explain --config a.toml --in wan --from-peer berlin tcp 10.2.0.9:443 10.1.0.5:1000";

/// Prints the explanation; succeeds whatever the verdict is.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let asked = if args.fragment { flow::Asked::LaterFragment } else { flow::Asked::Whole };
    let flow =
        flow::parse(&args.protocol, &args.source, &args.destination, asked).map_err(Usage::from)?;
    let question = Question { port: &args.port, from_peer: args.from_peer.as_deref(), flow };
    match &args.config {
        Some(file) => {
            let told = of_file(file, question)?;
            match args.json {
                true => print_json(&told),
                false => print(&text(told.lines.iter().map(|(h, t)| (*h, t.as_str())))),
            }
        }
        None => {
            let request = explain_request(question);
            let told = Ask::new(socket)?.explain(request)?;
            let lines = told.lines.iter().map(|line| (line.heading.as_str(), line.text.as_str()));
            match args.json {
                true => print_json(&told),
                false => print(&text(lines)),
            }
        }
    }
    Ok(())
}

fn text<'a>(lines: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    lines.map(|(heading, text)| format!("{heading:<11} {text}\n")).collect()
}

fn of_file(file: &Path, question: Question<'_>) -> Result<Explained, Failure> {
    let Loaded { validated, snapshot, spis } = load(file)?;
    let prefixes = validated.prefixes();
    Ok(control::explain(Picture { snapshot: &snapshot, prefixes: &prefixes, spis }, question)?)
}

struct Loaded {
    validated: Validated,
    snapshot: Snapshot,
    spis: Spis,
}

/// Loads a configuration and compiles it. The keys are only there for their SPIs: without them it
/// goes on with a warning, so that who may not read keys can ask too.
fn load(file: &Path) -> Result<Loaded, Failure> {
    let parsed = control::read(file)?;
    let (keys, spis) = match parsed.read_keys(control::base_of(file)) {
        Ok((keys, _)) => (keys.for_replay(&parsed.validated, &[])?.0, Spis::Configured),
        Err(errors) => {
            let first = errors.problems.iter().find(|problem| problem.severity == Severity::Error);
            let why = first.map_or(String::new(), |problem| problem.mistake.to_string());
            let more = match errors.errors() + errors.untold {
                0 | 1 => String::new(),
                all => format!(" (and {} more)", all - 1),
            };
            eprintln!("warning: keys not read: {why}{more}; SPIs unknown");
            (ReplayKeys::stand_ins(&parsed.validated)?, Spis::Unknown)
        }
    };
    let validated = parsed.validated;
    let snapshot = validated
        .compile(keys, Generation(1))
        .map_err(|error| Failure::Compile { file: file.into(), error })?;
    Ok(Loaded { validated, snapshot, spis })
}
