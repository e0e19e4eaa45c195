//! Benches, which `lockgate bench` executes: figures that can be had again, or none.
//!
//! `bench esp`: the real walk, through ports in memory, on pinned cores, all checks and counters
//! on. A lap in which a packet was dropped, or an output was wrong, stops the bench: there is no
//! figure then. `bench io`: the daemon on real ports, beside the kernel and a forwarder that does
//! nothing.
//!
//! | file | what |
//! |---|---|
//! | `esp` | `bench esp`: its arguments, its rounds |
//! | `subject` | what a row is about: packets, walk, cache, frames in flight |
//! | `rows` | what laps come to: the table, the JSON |
//! | `rows/table` | the rows as text |
//! | `pairs` | the fast path against the general walk |
//! | `counted` | instructions a packet, of the committed table |
//! | `targets` | what rows are meant to take |
//! | `spd` | `bench spd`: its arguments, its rounds |
//! | `spd/fillers` | policies in front of the one that matches |
//! | `draw` | which flow the next packet is of |
//! | `spd/rows` | what laps come to: table, JSON, curves |
//! | `spd/published` | VPP's table, ours beside it |
//! | `acl` | `bench acl`: security groups; its arguments |
//! | `acl/rows` | what laps come to: table, goals, JSON, curves |
//! | `conn` | `bench conn`: connections; its arguments, its rows |
//! | `conn/gateway` | a gateway with connections, and what must be true of its packets |
//! | `conn/laps` | one lap of each kind of work |
//! | `conn/rows` | what laps come to: tables, goals, JSON, curves |
//! | `station` | one row's worker of `spd` and `acl`, its laps, and when they do not count |
//! | `station/course` | options and rounds of both |
//! | `station/crew` | several workers of one row |
//! | `station/measured` | the figures that both show |
//! | `cache` | `bench cache`: the table alone |
//! | `cache/strain` | the walk under flows that collide and floods |
//! | `churn` | `bench churn`: policies that change under load |
//! | `churn/adds` | adds of policies by the size of the flow cache |
//! | `churn/worker` | the worker, and how it is given snapshots |
//! | `churn/rows` | what turns come to: table, JSON, curves |
//! | `classify` | `bench classify`: its arguments, its laps |
//! | `classify/sets` | sets of rules, read and generated |
//! | `classify/trace` | flows that they are asked about |
//! | `classify/rows` | what laps come to: table, JSON, curves |
//! | `ike` | `bench ike`: CHILD_SAs of an IKE daemon: install, requests, memory |
//! | `ike/plugin` | the other end of the daemon's socket for charon |
//! | `ike/children` | CHILD_SAs as charon installs and removes them |
//! | `ike/rows` | what they come to: the tables |
//! | `io` | `bench io`: its rounds, the tables, the JSON |
//! | `io/lane` | a source, a forwarder and a sink in their namespaces |
//! | `io/forwarder` | the three forwarders |
//! | `overlay` | `bench overlay`: virtual networks on real ports; its parts |
//! | `overlay/frames` | raw frames through each forwarder |
//! | `overlay/tenants` | tenants behind VXLAN devices: round trips, TCP, numbered packets |
//! | `overlay/tenants/stage` | the hosts, the switch and the gateway of a way |
//! | `overlay/tenants/rows` | what rounds come to: the tables |
//! | `overlay/published` | Arion's figures, ours beside them |
//! | `offload` | `bench offload`: modes of a card that seals; its arguments, its rounds |
//! | `offload/rows` | what laps come to: tables, JSON |
//! | `offload/published` | the table published of Linux XFRM |
//! | `store` | `bench store`: endpoints through the API, onto the disk and back |
//! | `card_engine` | the emulated card's own engine at work beside the workers |
//! | `lap` | one lap of one row |
//! | `lap_error` | when a lap does not count |
//! | `kits` | what stays from lap to lap: frames, caches |
//! | `yardstick` | what no gateway can leave out, on the frames of a lap |
//! | `cipher_alone` | the cipher on the packets of a lap |
//! | `stages` | where the walk's time goes, by looking at the clock |
//! | `scene` | the gateway, its keys, its traffic |
//! | `check` | what must be true of an output |
//! | `other_cipher` | ESP by another hand |
//! | `shares` | where the walk's instructions go, by valgrind |
//! | `measure` | clocks, median, spread, random order |
//! | `memory` | how far away memory is |
//! | `machine` | what it was measured on |
//! | `placing` | `bench plan`: how long it takes to plan which rules a card should have |
//! | `plot` | curves as SVG |
//! | `failure` | why there are none, and the exit code |
#![forbid(unsafe_code)]

mod acl;
mod cache;
mod card_engine;
mod churn;
mod cipher_alone;
mod classify;
mod conn;
mod counted;
mod draw;
mod esp;
mod failure;
mod ike;
mod io;
mod kits;
mod lap;
mod lap_error;
mod machine;
mod measure;
mod memory;
mod offload;
mod overlay;
mod pairs;
mod placing;
mod plot;
mod rows;
mod shares;
mod spd;
mod stages;
mod station;
mod store;
mod subject;
mod targets;
mod yardstick;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use console::failure::{Form, tell};
use console::line::{LineError, parsed};
use ipsec::SelfTestError;
use serde::Serialize;

pub(crate) use acl::AclArguments;
pub(crate) use cache::CacheArguments;
pub(crate) use churn::ChurnArguments;
pub(crate) use classify::ClassifyArguments;
pub(crate) use conn::ConnArguments;
pub(crate) use esp::EspArguments;
pub(crate) use ike::IkeArguments;
pub(crate) use io::IoArguments;
pub(crate) use offload::OffloadArguments;
pub(crate) use overlay::OverlayArguments;
pub(crate) use placing::PlanArguments;
pub(crate) use spd::SpdArguments;
pub(crate) use store::StoreArguments;

use failure::Failure;

/// Measure
#[derive(Parser, Debug)]
#[command(name = "lockgate-bench", bin_name = "lockgate bench", version, max_term_width = 100)]
struct BenchArguments {
    /// Bench to run.
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// ESP in tunnel mode, and forwarding without it: Mpps, Gbit/s, ns a packet.
    Esp(Box<EspArguments>),
    /// Many policies: searched linearly, compiled, cached; Mpps over their number.
    Spd(Box<SpdArguments>),
    /// Security groups between two ports: what they cost over none, over the number of rules.
    Acl(Box<AclArguments>),
    /// Connections of `reflect` rules: new ones a second, established ones, the sweep, full tables.
    Conn(Box<ConnArguments>),
    /// The classifier alone, every packet a miss: ns a lookup, by sets of rules.
    Classify(Box<ClassifyArguments>),
    /// The planner of a card: time to plan, and to take a change in. The card is emulated.
    Plan(PlanArguments),
    /// The flow cache's table alone, over its size; colliding flows and floods through the walk.
    Cache(CacheArguments),
    /// Policies that change while a worker walks: rate kept, stalls, time to effect.
    Churn(ChurnArguments),
    /// CHILD_SAs of an IKE daemon: time to install, time of an answer, memory. Needs root.
    Ike(IkeArguments),
    /// Forwarding on real ports: the daemon, a bare AF_XDP forwarder, the kernel. Needs root.
    Io(IoArguments),
    /// Packets of virtual networks: in the kernel, in workers, beside forwarders that know one
    /// endpoint. Needs root.
    Overlay(OverlayArguments),
    /// A card that seals: the host's cost of a packet without ESP, with it in software, and by each
    /// mode of a card. The card is emulated.
    Offload(OffloadArguments),
    /// Endpoints of virtual networks: put, made durable, read again after a SIGKILL. Needs root.
    Store(StoreArguments),
}

/// A reason why a bench gives no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// An argument does not fit another.
    #[error("{0}")]
    Argument(ArgumentError),
    /// A lap does not count.
    #[error("{case}: {error}; there are no figures")]
    Lap {
        /// The row it was a lap of.
        case: String,
        /// The reason why it does not count.
        error: LapRefused,
    },
    /// The classifier is wrong.
    #[error("{0}; there are no figures")]
    Wrong(WrongAnswer),
    /// The worker thread ended, or did not answer the control thread.
    #[error("the worker did not take a snapshot")]
    Worker,
    /// A table gave a wrong answer.
    #[error("{0}; there are no figures")]
    Hits(cache::WrongHits),
    /// A file of rules cannot be used.
    #[error("{0}")]
    Rules(RulesRefused),
    /// The JSON cannot be written.
    #[error("{}: {error}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Valgrind cannot be run.
    #[error("cannot run valgrind: {0}; it is in the package of that name")]
    Valgrind(std::io::Error),
    /// The program that valgrind ran failed.
    #[error("under valgrind: {0}")]
    UnderValgrind(std::process::ExitStatus),
    /// Valgrind counted nothing: the timed span was not found by its name.
    #[error("valgrind counted no instruction of the timed span")]
    NothingCounted,
    /// The laboratory cannot be built or used.
    #[error("{0}")]
    Laboratory(#[from] netlab::LabError),
    /// A program of the kernel could not be loaded.
    #[error("{0}")]
    Bpf(#[from] bpf::BpfError),
    /// A socket of the bare forwarder could not be opened.
    #[error("{0}")]
    Socket(#[from] xsk::XskError),
    /// Generator and forwarder on one core would measure each other.
    #[error("this bench needs two cores, {found} can be used")]
    Cores {
        /// Cores that this process may use.
        found: usize,
    },
    /// The operating system refuses a request of the bench.
    #[error("{doing}: {error}")]
    System {
        /// The step that failed.
        doing: &'static str,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// The kernel tier did not take its endpoints.
    #[error("{there} of {all} endpoints and verdicts went over to the kernel, not all")]
    NotPromoted {
        /// Those in the kernel.
        there: u64,
        /// Those that were to go.
        all: u64,
    },
    /// A plan is not safe, or a card did not take it.
    #[error("{0}; there are no figures")]
    Plan(placing::WrongPlan),
    /// A forwarder forwarded nothing, or other packets than it received.
    #[error(
        "{forwarder}: {packets} packets with {bytes} bytes arrived, {size} bytes each are right"
    )]
    Arrived {
        /// Name of the forwarder.
        forwarder: &'static str,
        /// Packets.
        packets: u64,
        /// Bytes of the packets.
        bytes: u64,
        /// Bytes of a packet.
        size: usize,
    },
}

impl BenchError {
    /// Returns a function for `map_err` that names the operation that failed.
    fn system<E: Into<std::io::Error>>(doing: &'static str) -> impl FnOnce(E) -> BenchError {
        move |error| BenchError::System { doing, error: error.into() }
    }
}

/// An answer that is not the linear search's.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct WrongAnswer(classify::WrongDecision);

/// A reason why a file of rules was refused.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct RulesRefused(classify::SetError);

/// A reason why a lap was refused.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct LapRefused(lap_error::LapError);

/// Arguments that do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    /// No packet of the family has that size, or it is not sealed whole.
    #[error("--size {size}: an IPv{family} packet of this bench has {least} to {most} bytes")]
    Size {
        /// Bytes asked for.
        size: usize,
        /// IP version.
        family: u8,
        /// Fewest bytes.
        least: usize,
        /// Largest size, bytes.
        most: usize,
    },
    /// Number of laps or flows out of range.
    #[error("{name} {found}: from {least} to {most}")]
    Range {
        /// The option.
        name: &'static str,
        /// Its value.
        found: usize,
        /// Least value.
        least: usize,
        /// Largest value.
        most: usize,
    },
}

impl ArgumentError {
    /// Checks that the values of an option are in its range.
    fn check(
        name: &'static str,
        values: &[usize],
        least: usize,
        most: usize,
    ) -> Result<(), ArgumentError> {
        let is_out = |value: &&usize| !(least..=most).contains(*value);
        match values.iter().find(is_out) {
            Some(&found) => Err(ArgumentError::Range { name, found, least, most }),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    // `--json` names a file: errors are text.
    match run(std::env::args_os().collect(), ipsec::self_test) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(&failure, Form::Text),
    }
}

/// Runs a bench, if the ciphers pass their self-tests on this machine.
///
/// # Errors
/// [`Failure`]: nothing was measured, or what was measured means nothing.
fn run(
    args: Vec<OsString>,
    self_test: impl FnOnce() -> Result<(), SelfTestError>,
) -> Result<(), Failure> {
    let Some(matches) = parsed(&mut BenchArguments::command(), args)? else { return Ok(()) };
    let arguments = BenchArguments::from_arg_matches(&matches).map_err(LineError::Refused)?;
    self_test()?;
    match &arguments.bench {
        Bench::Esp(arguments) => esp::run(arguments),
        Bench::Spd(arguments) => spd::run(arguments),
        Bench::Acl(arguments) => acl::run(arguments),
        Bench::Conn(arguments) => conn::run(arguments),
        Bench::Classify(arguments) => classify::run(arguments),
        Bench::Plan(arguments) => placing::run(arguments),
        Bench::Cache(arguments) => cache::run(arguments),
        Bench::Churn(arguments) => churn::run(arguments),
        Bench::Ike(arguments) => ike::run(arguments),
        Bench::Io(arguments) => io::run(arguments),
        Bench::Overlay(arguments) => overlay::run(arguments),
        Bench::Offload(arguments) => offload::run(arguments),
        Bench::Store(arguments) => store::run(arguments),
    }?;
    Ok(())
}

/// All that `--json` writes.
#[derive(Serialize)]
struct Report<'r, R> {
    bench: &'static str,
    machine: &'r machine::Machine,
    commit: &'r str,
    rows: &'r [R],
}

/// Prints a text and a line end.
fn print(text: &str) -> Result<(), BenchError> {
    let error = |error| BenchError::Write { file: "standard output".into(), error };
    console::output::write_text(&format!("{text}\n")).map_err(error)
}

/// Prints the text, and writes the JSON where it was asked for.
fn publish(report: &impl Serialize, text: &str, json: Option<&Path>) -> Result<(), BenchError> {
    let Some(file) = json else {
        return print(text);
    };
    let error = |error| BenchError::Write { file: file.to_owned(), error };
    let mut line = serde_json::to_vec(report).map_err(|cause| error(cause.into()))?;
    line.push(b'\n');
    if file == Path::new("-") {
        console::output::complain(&format!("{text}\n"));
        return std::io::stdout().write_all(&line).map_err(error);
    }
    print(text)?;
    std::fs::write(file, line).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::failure::Failed;
    use ipsec::cipher::BackendKind;
    use ipsec::{SelfTestStep, Suite};

    #[test]
    fn nothing_is_measured_with_a_cipher_that_fails_its_self_test() {
        let (suite, backend, step) = (Suite::Aes128Gcm, BackendKind::AwsLc, SelfTestStep::Seal);
        let broken = SelfTestError { suite, backend, step };
        let args = ["lockgate-bench", "esp"].map(OsString::from).to_vec();
        let failure = run(args, || Err(broken)).unwrap_err();
        assert!(failure.to_string().ends_with("; nothing was sealed"), "{failure}");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn every_bench_of_the_documents_parses() {
        let all = documents::commands();
        let shown = all.iter().filter(|it| it.words.get(1).is_some_and(|word| word == "bench"));
        for command in shown {
            let mistake = BenchArguments::try_parse_from(&command.words[1..]).err();
            assert!(mistake.is_none(), "{command:?}: {mistake:?}");
        }
        assert!(BenchArguments::try_parse_from(["bench", "eps"]).is_err());
    }
}
