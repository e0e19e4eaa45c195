//! `lockgate explain`: what the walk would do with a flow, and why: of a configuration file, or of
//! the daemon that runs.

mod flow;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use config::{ReplayKeys, Severity, Validated};
use console::output::{complain, print, print_json};
use control::{Explained, Picture, Question, Routing, Spis, compile};
use dataplane::explain::Inside;
use dataplane::{Generation, Snapshot};
use policy::TcpSegments;
use wire::{Address, Vni};

use crate::failure::{Failure, Usage};
use crate::input::Input;
use crate::live::{Ask, Socket, explain_request};

pub(crate) use flow::FlowError;

/// Show how a packet would be handled, and by which policy
///
/// Shows how Lockgate would handle a packet, which policy decides, which other policies match, and
/// how the packet leaves: by a configuration file, or as the running daemon would decide. If no
/// policy matches, the answer names the nearest one. Nothing is sent, sealed or counted. The answer
/// does not cover checksums, hop limit, size, and whether neighbours answer: a flow does not say
/// them. Of a packet in a virtual network the daemon says, too, whether the kernel answers it, or
/// why not. A file without `addresses` and `[[route]]` leaves both to Linux: its answer is UNKNOWN,
/// with what the policies say.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Use this configuration (`-` reads standard input) instead of the running daemon
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read the key files from this directory instead of the configuration's `keys_dir`
    #[arg(long, value_name = "DIR", requires = "config")]
    keys_dir: Option<PathBuf>,
    /// The port that the packet comes in by ("host": from this machine itself)
    #[arg(long = "in", value_name = "PORT")]
    port: String,
    /// The packet arrived in ESP from this peer and was decrypted
    #[arg(long, value_name = "PEER")]
    from_peer: Option<String>,
    /// The packet is in this virtual network, in an overlay packet that comes by PORT
    #[arg(long, value_name = "VNI", value_parser = vni)]
    vni: Option<Vni>,
    /// The host that sends the overlay packet [default: the one that has SRC's endpoint]
    #[arg(long, value_name = "ADDRESS", requires = "vni")]
    host: Option<IpAddr>,
    /// The packet is a later fragment: its ports are in another one
    #[arg(long)]
    fragment: bool,
    /// Of TCP, the segments: "new" (SYN without ACK) or "established" (all others) [default: new]
    #[arg(long, value_name = "KIND", value_parser = segments, conflicts_with = "fragment")]
    tcp: Option<TcpSegments>,
    /// tcp, udp, icmp/8/0, icmpv6/128/0, esp, … or a number
    #[arg(value_name = "PROTO")]
    protocol: String,
    /// Source address, with a port if the protocol has ports [default port: 49152]
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
  lockgate explain --in fabric --vni 7 tcp 172.16.0.1:1000 172.16.0.2:443
  lockgate explain --config a.toml --in lan tcp 10.1.0.5:1000 10.2.0.9:443
  lockgate explain --config a.toml --in lan icmp/8/0 10.1.0.5 10.2.0.9
  lockgate explain --config a.toml --in lan udp [2001:db8:1::5]:53 [2001:db8:2::9]:53
  lockgate explain --config a.toml --in wan --from-peer berlin tcp 10.2.0.9:443 10.1.0.5:1000";

/// Prints the explanation; succeeds whatever the verdict is.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let asked = match (args.fragment, args.tcp) {
        (true, _) => flow::Asked::LaterFragment,
        (false, Some(segments)) => flow::Asked::Segments(segments),
        (false, None) => flow::Asked::Whole,
    };
    let flow =
        flow::parse(&args.protocol, &args.source, &args.destination, asked).map_err(Usage::from)?;
    let inside = args.vni.map(|vni| Inside { vni, host: args.host.map(Address::from) });
    let from_peer = args.from_peer.as_deref();
    let question = Question { port: &args.port, from_peer, flow, inside };
    match &args.config {
        Some(file) => {
            let told = of_file(&Input::of(file), args.keys_dir.as_deref(), question)?;
            match args.json {
                true => print_json(&told),
                false => print(&text(told.lines.iter().map(|(h, t)| (*h, t.as_str())))),
            }?;
        }
        None => {
            let request = explain_request(question);
            let told = Ask::new(socket)?.explain(request)?;
            let lines = told.lines.iter().map(|line| (line.heading.as_str(), line.text.as_str()));
            match args.json {
                true => print_json(&told),
                false => print(&text(lines)),
            }?;
        }
    }
    Ok(())
}

/// Reads the number of a virtual network.
fn vni(text: &str) -> Result<Vni, &'static str> {
    text.parse().ok().and_then(Vni::new).ok_or("write a number from 0 to 16777215")
}

/// Reads a kind of TCP segments.
fn segments(text: &str) -> Result<TcpSegments, &'static str> {
    let named = TcpSegments::ALL.into_iter().find(|segments| segments.name() == text);
    named.ok_or("write new or established")
}

fn text<'a>(lines: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    lines.map(|(heading, text)| format!("{heading:<11} {text}\n")).collect()
}

fn of_file(
    input: &Input,
    keys: Option<&Path>,
    question: Question<'_>,
) -> Result<Explained, Failure> {
    let Loaded { validated, snapshot, spis } = load(input, keys)?;
    let prefixes = validated.prefixes();
    let (snapshot, prefixes, routing) = (&snapshot, &prefixes, Routing::of(&validated));
    // Without a daemon there are no connections, so the time does not matter.
    let (now_ns, dead_ports, recalled, kernel_tier) = (0, &[], &[], None);
    let picture =
        Picture { snapshot, now_ns, prefixes, spis, routing, dead_ports, recalled, kernel_tier };
    Ok(control::explain(picture, question)?)
}

struct Loaded {
    validated: Validated,
    snapshot: Snapshot,
    spis: Spis,
}

/// Loads a configuration and compiles it. The keys are only there for their SPIs: without them it
/// goes on with a warning, so that who may not read keys can ask too.
fn load(input: &Input, keys: Option<&Path>) -> Result<Loaded, Failure> {
    let parsed = input.parsed().map_err(Failure::Unusable)?;
    let directory = input.keys_directory(&parsed, keys);
    let (keys, spis) = match parsed.read_keys_in(&directory) {
        Ok((keys, _)) => (keys.for_replay(&parsed.validated, &[])?.0, Spis::Configured),
        Err(errors) => {
            let first = errors.problems.iter().find(|problem| problem.severity == Severity::Error);
            let why = first.map_or(String::new(), |problem| problem.mistake.to_string());
            let more = match errors.errors() + errors.untold {
                0 | 1 => String::new(),
                all => format!(" (and {} more)", all - 1),
            };
            complain(&format!("warning: keys not read: {why}{more}; SPIs unknown\n"));
            (ReplayKeys::stand_ins(&parsed.validated)?, Spis::Unknown)
        }
    };
    let validated = parsed.validated;
    let snapshot = compile(&validated, keys, Generation(1))
        .map_err(|error| Failure::Compile { file: input.name().into(), error })?;
    Ok(Loaded { validated, snapshot, spis })
}
