//! `lockgate bench overlay`: packets of a virtual network that the kernel tier answers, and those
//! that workers do, beside Linux and beside forwarders that know one endpoint only.
//!
//! | part | what is measured |
//! |---|---|
//! | [`frames`] | raw frames, as many as a forwarder carries: Mpps, by size and share of hits |
//! | [`tenants`] | tenants behind Linux's VXLAN devices: round trips, TCP, numbered packets |
//!
//! Each part has one topology and alternates between its ways, so its figures compare. All send
//! over veths: this measures no driver of a network card.

mod frames;
mod published;
mod tenants;

use std::path::PathBuf;
use std::time::Duration;

use netlab::interrupt;
use serde::Serialize;

use super::io::lane::Cores;
use super::machine::{self, Machine};
use super::{ArgumentError, BenchError, publish};

/// Rounds at least.
const LEAST_ROUNDS: usize = 3;
/// Bytes of an inner packet at least and at most: all headers of a tenant's UDP, and the MTU of a
/// port less the outer headers.
const LEAST_INNER: usize = 60;
const MOST_INNER: usize = 1450;
/// The sizes that are measured unless others are named: the frames of the last have 1514 bytes.
const INNER: [usize; 4] = [LEAST_INNER, 64, 1400, MOST_INNER];
/// Numbers of workers, each with a socket of every port.
const WORKERS: [Workers; 5] = [
    Workers { count: 1, user: ("worker", "w1"), kernel: ("kernel tier", "t1") },
    Workers { count: 2, user: ("2 workers", "w2"), kernel: ("kernel tier, 2 sockets", "t2") },
    Workers { count: 4, user: ("4 workers", "w4"), kernel: ("kernel tier, 4 sockets", "t4") },
    Workers { count: 8, user: ("8 workers", "w8"), kernel: ("kernel tier, 8 sockets", "t8") },
    Workers { count: 16, user: ("16 workers", "w16"), kernel: ("kernel tier, 16 sockets", "t16") },
];

/// A number of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Workers {
    count: u32,
    /// The rows of packets that they forward, and the beginning of those rows' namespaces.
    user: (&'static str, &'static str),
    /// Likewise, where the kernel answers the packets in front of them.
    kernel: (&'static str, &'static str),
}

/// Arguments of `lockgate bench overlay`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OverlayArguments {
    /// Parts: raw frames, and tenants of Linux hosts.
    #[arg(long, value_delimiter = ',', default_value = "frames,tenants")]
    part: Vec<Part>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Rounds, at least 3.
    #[arg(long, default_value_t = LEAST_ROUNDS)]
    rounds: usize,
    /// Endpoints in the kernel, a power of two; as many again are not in it. Of raw frames.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=16384))]
    endpoints: u32,
    /// Bytes of the inner packets, 60 to 1450. Of raw frames.
    #[arg(long, value_delimiter = ',', default_values_t = INNER)]
    inner: Vec<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the tables to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// Raw frames from a generator.
    Frames,
    /// Tenants behind VXLAN devices.
    Tenants,
}

/// The length of a measurement, how often each is made, and the cores.
#[derive(Clone, Debug)]
struct Course {
    length: Duration,
    rounds: usize,
    cores: Cores,
}

impl Course {
    /// Returns the numbers of workers that have a core each.
    fn workers(&self) -> impl Iterator<Item = Workers> {
        let cores = self.cores.count();
        WORKERS.into_iter().filter(move |workers| workers.count as usize <= cores)
    }
}

/// The report that `--json` writes.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    commit: String,
    seconds: u64,
    generator_core: usize,
    forwarder_core: usize,
    #[serde(flatten)]
    frames: Option<frames::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenants: Option<tenants::Figures>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &OverlayArguments) -> Result<(), BenchError> {
    let &OverlayArguments { ref part, seconds, rounds, endpoints, ref inner, ref json } = arguments;
    let is_in = |name, values: &[usize], least, most| {
        ArgumentError::check(name, values, least, most).map_err(BenchError::Argument)
    };
    is_in("--rounds", &[rounds], LEAST_ROUNDS, 1000)?;
    is_in("--inner", inner, LEAST_INNER, MOST_INNER)?;
    if !endpoints.is_power_of_two() {
        let (name, found) = ("--endpoints", endpoints as usize);
        let error = ArgumentError::Range { name, found, least: 64, most: 16384 };
        return Err(BenchError::Argument(error));
    }
    interrupt::listen()?;
    let course = Course { length: Duration::from_secs(seconds), rounds, cores: Cores::look()? };
    let frames = match part.contains(&Part::Frames) {
        true => Some(frames::measure(&course, endpoints, inner)?),
        false => None,
    };
    let tenants = match part.contains(&Part::Tenants) {
        true => Some(tenants::measure(&course)?),
        false => None,
    };
    let cores = &course.cores;
    let report = Report {
        bench: "overlay",
        machine: Machine::look(Some(cores.forwarder(0))),
        commit: machine::commit(),
        seconds,
        generator_core: cores.generator(0),
        forwarder_core: cores.forwarder(0),
        frames,
        tenants,
    };
    publish(&report, &text(&report), json.as_deref())
}

/// The report for a reader.
fn text(report: &Report) -> String {
    let Machine { cpu, cores, kernel, .. } = &report.machine;
    let mut text = format!(
        "bench overlay, commit {}\n{cpu}, {cores} cores, Linux {kernel}; veths\n",
        report.commit
    );
    if let Some(figures) = &report.frames {
        let (generator, forwarder) = (report.generator_core, report.forwarder_core);
        text += &format!(
            "\nRaw frames, generator on core {generator}, forwarder on core {forwarder}\n{}",
            figures.text()
        );
    }
    if let Some(figures) = &report.tenants {
        text += &format!("\nTenants behind VXLAN devices\n{}", figures.text());
    }
    let mut ours = published::Ours::default();
    if let Some(figures) = &report.frames {
        figures.note(&mut ours);
    }
    if let Some(figures) = &report.tenants {
        figures.note(&mut ours);
    }
    text + "\n" + &published::text(&ours) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_workers_than_cores() {
        let workers = |cores: usize| -> Vec<u32> {
            let cores = Cores::of((0..cores).collect()).unwrap();
            let course = Course { length: Duration::from_secs(1), rounds: 3, cores };
            course.workers().map(|workers| workers.count).collect()
        };
        assert_eq!(workers(2), [1, 2]);
        assert_eq!(workers(7), [1, 2, 4]);
        assert_eq!(workers(64), [1, 2, 4, 8, 16]);
    }
}
