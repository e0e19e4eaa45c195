//! The daemon's walk over captured packets, without privileges: the engine of `lockgate replay`,
//! which the demonstration checks, too.
#![forbid(unsafe_code)]

mod engine;
mod error;
mod files;
mod report;

use std::path::{Path, PathBuf};

use config::validated::{Cache, CacheUse};
use config::{KeyLine, Loaded, PeerId, ReplayKey, read_replay_keys, write_replay_keys};
use console::output::counted;
use dataplane::{DropReason, FlowCache, Generation, Medium, PortId, Side, Snapshot};
use io::{CaptureReader, LinkType};
use policy::Direction;

use engine::Input;
pub use error::ReplayError;
use files::{Captures, Places};
pub use report::{DropLine, LedgerLine, Report, TierLine, drops_text, ledger_text};

/// A replay to perform: configuration, inputs, keys and output.
pub struct Job {
    /// The configuration, with its keys.
    pub loaded: Loaded,
    /// The configuration's name in messages.
    pub name: String,
    /// The configuration's file, which is not overwritten; `None`: it came from elsewhere.
    pub file: Option<PathBuf>,
    /// Captures with the names of their ports; `None`: the first protected port.
    pub inputs: Vec<(Option<String>, PathBuf)>,
    /// Keys that other replays sealed with.
    pub keys: Vec<PathBuf>,
    /// Capture of all packets that leave; other files lie in the same directory.
    pub output: PathBuf,
}

/// Replays.
///
/// 1. put replay keys in the place of the configuration's own, compile it
/// 2. open the inputs, walk them, write captures under temporary names
/// 3. write the keys, move the captures to their places, tell what happened
///
/// # Errors
/// [`ReplayError`].
pub fn perform(job: Job) -> Result<Report, ReplayError> {
    let mut opened = Vec::new();
    for file in &job.keys {
        opened.push(read_replay_keys(file)?);
    }
    let mut warnings = unfitting_keys(&job, &opened);
    let Job { loaded, name, file, inputs: named, keys: key_files, output } = job;
    let opened: Vec<ReplayKey> = opened.into_iter().flatten().collect();
    let (keys, sealed) = loaded.keys.for_replay(&loaded.validated, &opened)?;
    let snapshot = control::compile(&loaded.validated, keys, Generation(1))
        .map_err(|error| ReplayError::Compile { name, error })?;
    let places = Places::new(&output)?;
    let files = named.iter().map(|(_, file)| file.as_path());
    let keys = key_files.iter().map(PathBuf::as_path);
    let read: Vec<&Path> = files.chain(keys).chain(file.as_deref()).collect();
    places.check(&snapshot, &read)?;

    let (ports, inputs) = open_inputs(&snapshot, &named)?;
    let mut captures = Captures::create(&snapshot, &places)?;
    let (cache, refused) = flow_cache(loaded.validated.cache);
    warnings.extend(refused);
    let outcome = engine::replay(&snapshot, inputs, cache, &mut captures)?;

    let sealed = write_keys(&places, &sealed)?;
    let written = captures.finish()?;
    let files = ports.into_iter().zip(named.into_iter().map(|(_, file)| file));
    let mut report = Report::new(&snapshot, &outcome, files.collect(), written, sealed);
    let unopened = outcome.counters.dropped(DropReason::Integrity);
    if unopened > 0 && key_files.is_empty() {
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
fn unfitting_keys(job: &Job, opened: &[Vec<ReplayKey>]) -> Vec<String> {
    let loaded = &job.loaded;
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

fn open_inputs(
    snapshot: &Snapshot,
    named: &[(Option<String>, PathBuf)],
) -> Result<(Vec<PortId>, Inputs), ReplayError> {
    let mut inputs = Vec::new();
    for (port, file) in named {
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
            return Err(ReplayError::WrongLink { file, port, expected, found });
        }
        inputs.push(Input { port, reader });
    }
    Ok((inputs.iter().map(|input| input.port).collect(), inputs))
}

fn first_protected(snapshot: &Snapshot) -> Result<PortId, ReplayError> {
    let protected = |port: &dataplane::PortInfo| {
        port.side == Side::Protected && port.medium == Medium::Ethernet
    };
    let port = snapshot.ports().find(|(_, port)| protected(port));
    port.map(|(port, _)| port).ok_or(ReplayError::NoProtectedPort)
}

/// Files that hold the keys of a replay.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct KeyFiles {
    pub(crate) keys: PathBuf,
    pub(crate) esp_sa: PathBuf,
    pub(crate) tshark: String,
}

/// Writes the keys in both forms, unless there are none.
fn write_keys(places: &Places, sealed: &[ReplayKey]) -> Result<Option<KeyFiles>, ReplayError> {
    if sealed.is_empty() {
        return Ok(None);
    }
    let (keys, esp_sa) = (places.keys(), places.esp_sa());
    write_replay_keys(&keys, sealed)?;
    files::write_esp_sa(&esp_sa, sealed)?;
    Ok(Some(KeyFiles { keys, esp_sa, tshark: files::tshark_command(places) }))
}
