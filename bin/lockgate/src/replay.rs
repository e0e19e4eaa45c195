//! `lockgate replay`: the real walk over captured packets, without privileges.

use std::path::{Path, PathBuf};

use console::output::{print, print_json};
use replay::Job;

use crate::failure::{Failure, Usage};
use crate::input::Input;

/// Run captures through a gateway's configuration; needs no privileges
///
/// Processes captured packets by a gateway's configuration as the daemon processes live ones, and
/// reports the results. Needs no privileges and touches no port. The flow cache is that of
/// `[cache]` in the configuration, for one worker.
///
/// OUT.pcap gets every frame that left, OUT.PORT.pcap those of one port, OUT.host.pcap the IP
/// packets for this machine itself. The packets' times are the clock; several inputs are merged by
/// time. Frames must be addressed to the port's `mac`, next hops need a `[[neighbour]]`.
///
/// Nothing is ever sealed with a configured key: outbound SAs get fresh random ones, written to
/// OUT.keys (for --keys of the other gateway's replay) and OUT.esp_sa (for tshark). Inbound SAs
/// open with their configured keys, or with those of --keys.
#[derive(clap::Args)]
#[command(allow_missing_positional = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration; `-` reads standard input
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE")]
    config: PathBuf,
    /// Read the key files from this directory instead of the configuration's `keys_dir`
    #[arg(long, value_name = "DIR")]
    keys_dir: Option<PathBuf>,
    /// A capture and the port its packets enter by; may be repeated, also for one port.
    /// Port "host" takes IP packets sent by this machine itself
    #[arg(long = "in", value_name = "PORT=FILE", value_parser = named_input)]
    inputs: Vec<(String, PathBuf)>,
    /// Keys that another gateway's replay sealed with (its OUT.keys); may be repeated
    #[arg(long, value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// A capture (pcap or pcapng) that enters by the first protected port
    #[arg(value_name = "IN.pcap")]
    input: Option<PathBuf>,
    /// Capture file for all packets that leave
    #[arg(value_name = "OUT.pcap")]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples, gateways a and b:
  lockgate replay --config a.toml lan.pcap a.pcap
  lockgate replay --config b.toml --in wan=a.wan.pcap --keys a.keys b.pcap";

fn named_input(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((port, file)) if !port.is_empty() && !file.is_empty() => {
            Ok((port.to_owned(), PathBuf::from(file)))
        }
        _ => Err("write PORT=FILE".into()),
    }
}

/// Replays and prints the report. Fails if the input is bad or the ledger does not balance;
/// dropped packets are no failure.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let inputs = match (&args.input, args.inputs.as_slice()) {
        (None, []) => return Err(Usage::NoInput.into()),
        (Some(_), [_, ..]) => return Err(Usage::TwoInputs.into()),
        (Some(input), []) => vec![(None, input.clone())],
        (None, named) => {
            named.iter().map(|(port, file)| (Some(port.clone()), file.clone())).collect()
        }
    };
    let config = Input::of(&args.config);
    let parsed = config.parsed()?;
    let directory = config.keys_directory(&parsed, args.keys_dir.as_deref());
    let report = replay::perform(Job {
        loaded: parsed.load_keys_in(&directory)?,
        name: config.name(),
        file: config.file().map(Path::to_owned),
        inputs,
        keys: args.keys.clone(),
        output: args.output.clone(),
    })?;
    match args.json {
        true => print_json(&report),
        false => print(&report.text()),
    }?;
    match report.ledger_imbalance {
        0 => Ok(()),
        imbalance => Err(Failure::Ledger { imbalance }),
    }
}
