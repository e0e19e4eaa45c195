//! `lockgate replay`: the real walk over captured packets, without privileges.

mod engine;
mod files;
mod report;

use std::path::{Path, PathBuf};

use config::validated::{Cache, CacheUse};
use config::{KeyLine, Loaded, PeerId, ReplayKey, read_replay_keys, write_replay_keys};
use dataplane::{DropReason, FlowCache, Generation, Medium, PortId, Side, Snapshot};
use io::{CaptureReader, LinkType};
use policy::Direction;

use crate::failure::{Failure, Usage};
use crate::input;
use crate::output::{counted, print, print_json};

use engine::Input;
use files::{Captures, Places};
pub(crate) use report::{DropLine, LedgerLine, Report, drops_text, ledger_text};

/// Walk captures through a gateway's configuration; needs no privileges
///
/// Walks captured packets through a gateway's configuration as the daemon would walk live ones,
/// and tells what became of them. Needs no privileges and touches no port. The flow cache is that
/// of [cache] in the configuration, for one worker.
///
/// OUT.pcap gets every frame that left, OUT.PORT.pcap those of one port, OUT.host.pcap the IP
/// packets for this machine itself. The packets' times are the clock; several inputs are merged by
/// time. Frames must be addressed to the port's `mac`, next hops need a [[neighbour]].
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
    /// Where to write what leaves
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
    let job = Job {
        config: input::Input::of(&args.config),
        keys_dir: args.keys_dir.clone(),
        inputs,
        keys: args.keys.clone(),
        output: args.output.clone(),
    };
    let report = perform(&job)?;
    match args.json {
        true => print_json(&report),
        false => print(&report.text()),
    }?;
    match report.ledger_imbalance {
        0 => Ok(()),
        imbalance => Err(Failure::Ledger { imbalance }),
    }
}

/// What to replay, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) config: input::Input,
    /// The directory of its key files; `None`: the one that it names.
    pub(crate) keys_dir: Option<PathBuf>,
    /// Captures with the names of their ports; `None`: the first protected port.
    pub(crate) inputs: Vec<(Option<String>, PathBuf)>,
    /// Keys that other replays sealed with.
    pub(crate) keys: Vec<PathBuf>,
    pub(crate) output: PathBuf,
}

/// Replays.
///
/// 1. load the configuration, put replay keys in the place of its own, compile
/// 2. open the inputs, walk them, write captures under temporary names
/// 3. write the keys, move the captures to their places, tell what happened
///
/// # Errors
/// Nothing was written to its place, unless the operating system failed at that very step.
pub(crate) fn perform(job: &Job) -> Result<Report, Failure> {
    let parsed = job.config.parsed()?;
    let directory = job.config.keys_directory(&parsed, job.keys_dir.as_deref());
    let loaded = parsed.load_keys_in(&directory)?;
    let mut opened = Vec::new();
    for file in &job.keys {
        opened.push(read_replay_keys(file)?);
    }
    let mut warnings = unfitting_keys(&loaded, job, &opened);
    let opened: Vec<ReplayKey> = opened.into_iter().flatten().collect();
    let (keys, sealed) = loaded.keys.for_replay(&loaded.validated, &opened)?;
    let snapshot = control::compile(&loaded.validated, keys, Generation(1))
        .map_err(|error| Failure::Compile { file: job.config.name().into(), error })?;
    let places = Places::new(&job.output)?;
    let files = job.inputs.iter().map(|(_, file)| file.as_path());
    let keys = job.keys.iter().map(PathBuf::as_path);
    let read: Vec<&Path> = files.chain(keys).chain(job.config.file()).collect();
    places.check(&snapshot, &read)?;

    let (ports, inputs) = open_inputs(&snapshot, job)?;
    let mut captures = Captures::create(&snapshot, &places)?;
    let (cache, refused) = flow_cache(loaded.validated.cache);
    warnings.extend(refused);
    let outcome = engine::replay(&snapshot, inputs, cache, &mut captures)?;

    let key_files = write_keys(&places, &sealed)?;
    let written = captures.finish()?;
    let files = ports.into_iter().zip(job.inputs.iter().map(|(_, file)| file.clone()));
    let mut report = Report::new(&snapshot, &outcome, files.collect(), written, key_files);
    let unopened = outcome.counters.dropped(DropReason::Integrity);
    if unopened > 0 && job.keys.is_empty() {
        warnings.push(format!(
            "{} could not be opened; if another gateway's replay sealed them, give its OUT.keys \
             by --keys",
            counted(unopened, "ESP packet"),
        ));
    }
    report.warnings.extend(warnings);
    Ok(report)
}

/// The flow cache that a daemon with one worker has. Without memory for it the replay goes on
/// without: the verdicts are the same; the text says so.
fn flow_cache(cache: Cache) -> (Option<FlowCache>, Option<String>) {
    /// Keys the hash. An operator's own capture attacks nobody, and replays stay reproducible.
    const HASH_KEY: [u8; 32] = [0x5c; 32];
    let (Some(size), Cache::On { usage, .. }) = (cache.size(1), cache) else {
        return (None, None);
    };
    let usage = match usage {
        CacheUse::Auto => dataplane::CacheUse::WherePaid,
        CacheUse::Always => dataplane::CacheUse::Always,
    };
    match FlowCache::new(size.entries as usize, &HASH_KEY, usage) {
        Ok(cache) => (Some(cache), None),
        Err(error) => {
            let text = format!(
                "replayed without the flow cache: its {} bytes could not be allocated: {error}",
                size.bytes
            );
            (None, Some(text))
        }
    }
}

/// Says of key files that fit no inbound SA of the configuration that they are of no use.
fn unfitting_keys(loaded: &Loaded, job: &Job, opened: &[Vec<ReplayKey>]) -> Vec<String> {
    let fits = |key: &ReplayKey| {
        let mut peers = (0..).map(PeerId).zip(&loaded.validated.peers);
        peers.any(|(id, peer)| {
            let from_there = key.tunnel.local == peer.tunnel().remote
                && key.tunnel.remote == peer.tunnel().local
                && key.material.suite() == peer.suite;
            let inbound =
                |line: &KeyLine| line.direction == Direction::Inbound && line.spi == key.spi;
            from_there && loaded.keys.of(id).iter().any(inbound)
        })
    };
    let useless = job.keys.iter().zip(opened).filter(|(_, keys)| !keys.iter().any(fits));
    useless
        .map(|(file, _)| {
            format!("{}: none of these keys is for an SA of this gateway", file.display())
        })
        .collect()
}

type Inputs = Vec<Input<std::io::BufReader<std::fs::File>>>;

fn open_inputs(snapshot: &Snapshot, job: &Job) -> Result<(Vec<PortId>, Inputs), Failure> {
    let mut inputs = Vec::new();
    for (port, file) in &job.inputs {
        let port = match port {
            Some(name) => control::port_named(snapshot, name)?,
            None => first_protected(snapshot)?,
        };
        let reader = CaptureReader::open(file)?;
        let info = snapshot.port(port);
        let expected = match info.medium {
            Medium::Ethernet => LinkType::Ethernet,
            Medium::Ip => LinkType::Raw,
        };
        if reader.link() != expected {
            let (file, port, found) = (file.clone(), info.name.clone(), reader.link());
            return Err(Failure::WrongLink { file, port, expected, found });
        }
        inputs.push(Input { port, reader });
    }
    Ok((inputs.iter().map(|input| input.port).collect(), inputs))
}

fn first_protected(snapshot: &Snapshot) -> Result<PortId, Failure> {
    let protected = |port: &dataplane::PortInfo| {
        port.side == Side::Protected && port.medium == Medium::Ethernet
    };
    let place = snapshot.ports().iter().position(protected).ok_or(Usage::NoProtectedPort)?;
    Ok(PortId(place as u16))
}

/// Where the keys of a replay went.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct KeyFiles {
    pub(crate) keys: PathBuf,
    pub(crate) esp_sa: PathBuf,
    pub(crate) tshark: String,
}

/// Writes the keys in both forms, unless there are none.
fn write_keys(places: &Places, sealed: &[ReplayKey]) -> Result<Option<KeyFiles>, Failure> {
    if sealed.is_empty() {
        return Ok(None);
    }
    let (keys, esp_sa) = (places.keys(), places.esp_sa());
    write_replay_keys(&keys, sealed)?;
    files::write_esp_sa(&esp_sa, sealed)?;
    Ok(Some(KeyFiles { keys, esp_sa, tshark: files::tshark_command(places) }))
}
