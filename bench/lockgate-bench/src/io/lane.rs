//! A lane: a source, a forwarder and a sink, each in a namespace of its own.
//!
//! ```text
//! source ── left │ forwarder │ right ── sink
//! ```
//! All lanes look the same from both ends: one link address for both hosts and one for both ports
//! of the forwarder, so that swapping the two is forwarding too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf::traffic::{Generator, Received, Sink};
use netlab::laboratory::connect;
use netlab::ping::{Answers, Ping};
use netlab::{LabError, Laboratory, Namespace, interrupt};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;

use super::super::measure::Figure;
use super::super::{BenchError, machine};
use super::forwarder::{Drops, Forwarder};

/// Netdev of the source and of the sink.
const END: &str = "end";
/// The forwarder's netdevs.
pub(crate) const PORTS: [&str; 2] = ["left", "right"];
/// Link address of source and sink.
pub(crate) const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];
/// Link address of the forwarder's ports.
pub(crate) const FORWARDER: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];
/// Frames made by one call of the generator: some 20 ms.
const BURST: u32 = 1 << 15;
/// Time for the rings to fill before anything is counted.
const WARM_UP: Duration = Duration::from_millis(200);

/// The cores that the bench works on: the first make the traffic, the last forward it. Where there
/// are too few, some do both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cores {
    /// Ascending, two at least.
    allowed: Vec<usize>,
}

impl Cores {
    /// Returns those that this process may use.
    ///
    /// # Errors
    /// [`BenchError::Cores`]: there is only one.
    pub(crate) fn look() -> Result<Cores, BenchError> {
        let set = sched_getaffinity(None).map_err(BenchError::system("asking for the cores"))?;
        Cores::of((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    /// Returns these, in ascending order.
    pub(crate) fn of(allowed: Vec<usize>) -> Result<Cores, BenchError> {
        match allowed.len() {
            0 | 1 => Err(BenchError::Cores { found: allowed.len() }),
            _ => Ok(Cores { allowed }),
        }
    }

    /// Returns their number.
    pub(crate) fn count(&self) -> usize {
        self.allowed.len()
    }

    /// Returns the core that makes the traffic of a queue.
    pub(crate) fn generator(&self, queue: usize) -> usize {
        self.allowed[queue % self.allowed.len()]
    }

    /// Returns the core that forwards what comes by a queue.
    pub(crate) fn forwarder(&self, queue: usize) -> usize {
        self.allowed[self.allowed.len() - 1 - queue % self.allowed.len()]
    }
}

/// Source, forwarder and sink.
pub(crate) struct Lane {
    pub(crate) forwarder: Forwarder,
    // Torn down after the forwarder.
    source: Namespace,
    sink: Namespace,
    gateway: Namespace,
    /// Receive queues of each netdev, and threads that forward.
    queues: u32,
    source_index: u32,
    sink_index: u32,
    counted: Sink,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// Million packets a second that the generator made.
    pub(crate) offered_mpps: f64,
    /// Million packets a second that arrived at the sink.
    pub(crate) mpps: f64,
}

/// Median rates of some samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rate {
    /// Million packets a second that arrived at the sink.
    pub(crate) mpps: f64,
    /// Distance of the quartiles over the median.
    pub(crate) spread: f64,
    mpps_min: f64,
    mpps_max: f64,
    /// Million packets a second that the generator sent.
    offered_mpps: f64,
    /// Part of the offered that did not arrive.
    pub(crate) lost: f64,
    rounds: usize,
}

impl Rate {
    /// Returns the rates of samples, one a round.
    pub(crate) fn of(samples: &[Sample]) -> Rate {
        let figure =
            |of: fn(&Sample) -> f64| Figure::of(&samples.iter().map(of).collect::<Vec<_>>());
        let mpps = figure(|sample| sample.mpps);
        Rate {
            mpps: mpps.median,
            spread: mpps.spread,
            mpps_min: mpps.least,
            mpps_max: mpps.most,
            offered_mpps: figure(|sample| sample.offered_mpps).median,
            lost: figure(|sample| 1.0 - sample.mpps / sample.offered_mpps).median,
            rounds: samples.len(),
        }
    }

    /// Gigabits a second of frames of so many bytes.
    pub(crate) fn gbps(&self, size: usize) -> f64 {
        self.mpps * 8e-3 * size as f64
    }
}

/// Commands of `ip` that give one host its addresses and neighbours, in its namespace.
fn host(own: u8, other: u8) -> String {
    format!(
        "link set {END} address 02:00:00:00:00:aa up
         addr add 10.9.{own}.2/24 dev {END}
         addr add fd09:{own}::2/64 dev {END} nodad
         neigh add 10.9.{own}.1 lladdr 02:00:00:00:00:bb dev {END} nud permanent
         neigh add fd09:{own}::1 lladdr 02:00:00:00:00:bb dev {END} nud permanent
         route add 10.9.{other}.0/24 via 10.9.{own}.1
         route add fd09:{other}::/64 via fd09:{own}::1"
    )
}

fn port(name: &str, number: u8) -> String {
    format!(
        "link set {name} address 02:00:00:00:00:bb up
         addr add 10.9.{number}.1/24 dev {name}
         addr add fd09:{number}::1/64 dev {name} nodad
         neigh add 10.9.{number}.2 lladdr 02:00:00:00:00:aa dev {name} nud permanent
         neigh add fd09:{number}::2 lladdr 02:00:00:00:00:aa dev {name} nud permanent\n"
    )
}

impl Lane {
    /// Builds the namespaces, with netdevs of `queues` queues, and has `start` start the forwarder
    /// in its own.
    pub(crate) fn build(
        laboratory: &Laboratory,
        (name, queues): (&str, u32),
        start: impl FnOnce(&Namespace) -> Result<Forwarder, BenchError>,
    ) -> Result<Lane, BenchError> {
        let namespace = |role: &str| laboratory.namespace(&format!("{name}-{role}"));
        let (source, gateway, sink) = (namespace("src")?, namespace("fwd")?, namespace("dst")?);
        connect((&source, END), (&gateway, PORTS[0]), queues)?;
        connect((&sink, END), (&gateway, PORTS[1]), queues)?;
        gateway.set("net/ipv4/ip_forward", "1")?;
        gateway.set("net/ipv6/conf/all/forwarding", "1")?;
        gateway.ip(&(port(PORTS[0], 1) + &port(PORTS[1], 2)))?;
        for (namespace, own, other) in [(&source, 1, 2), (&sink, 2, 1)] {
            namespace.ip(&host(own, other))?;
            namespace.offload_off(END)?;
        }
        let (source_index, sink_index) = (index(&source, END)?, index(&sink, END)?);
        let forwarder = start(&gateway)?;
        let counted = Sink::load()?;
        Ok(Lane { forwarder, source, sink, gateway, queues, source_index, sink_index, counted })
    }

    /// Pings from the source to the sink and back.
    pub(super) fn ping(&self, count: u32, interval: Duration) -> Result<Answers, LabError> {
        Ping { interval, ..Ping::new("10.9.2.2", count) }.run(&self.source)
    }

    /// Switches from pings to load: the sink counts and drops from now on, and the forwarder, also
    /// the kernel's, works on its own core.
    pub(crate) fn load(&self, cores: &Cores) -> Result<(), BenchError> {
        self.forwarder.pin(cores)?;
        let attach = |namespace: &Namespace, sink: &Sink, index| -> Result<(), BenchError> {
            namespace.enter(|| sink.attach(index))??;
            Ok(())
        };
        attach(&self.sink, &self.counted, self.sink_index)?;
        // The generator can send by a netdev that runs a program.
        attach(&self.source, &Sink::load()?, self.source_index)?;
        if matches!(self.forwarder, Forwarder::Kernel) {
            // What the generator sends gets to a veth without a program only by GRO's path; from
            // there receive packet steering has it forwarded by the other core.
            let mask = format!("{:x}", 1_u64 << (cores.forwarder(0) % 64));
            let script = format!(
                "ethtool -K {0} gro on && echo {mask} > /sys/class/net/{0}/queues/rx-0/rps_cpus",
                PORTS[0]
            );
            self.gateway.run(&["sh", "-c", &script], Duration::from_secs(5))?.success()?;
        }
        Ok(())
    }

    /// Offers frames of `size` bytes as fast as the generators can, one for each queue, for
    /// `seconds`.
    pub(crate) fn sample(
        &self,
        generator: &Generator,
        size: usize,
        seconds: Duration,
        cores: &Cores,
    ) -> Result<Sample, BenchError> {
        let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
        let index = self.source_index;
        // A veth puts a frame into the queue that has its core's number.
        let generate = |core| -> Result<(), BenchError> {
            machine::pin(Some(core)).map_err(BenchError::system("pinning a thread"))?;
            while !stop.load(Ordering::Relaxed) {
                generator.send(index, BURST)?;
                made.fetch_add(u64::from(BURST), Ordering::Relaxed);
            }
            Ok(())
        };
        let (source, generate) = (&self.source, &generate);
        let (before, after) = std::thread::scope(|scope| {
            let start = |queue| {
                let core = cores.generator(queue as usize);
                scope.spawn(move || source.enter(|| generate(core)))
            };
            let threads: Vec<_> = (0..self.queues).map(start).collect();
            let counts = || -> Result<Counts, BenchError> {
                let received = self.counted.received()?;
                Ok(Counts { at: Instant::now(), made: made.load(Ordering::Relaxed), received })
            };
            let measured = || -> Result<(Counts, Counts), BenchError> {
                interrupt::sleep(WARM_UP)?;
                let before = counts()?;
                interrupt::sleep(seconds)?;
                Ok((before, counts()?))
            };
            let measured = measured();
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                let made = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                made??;
            }
            measured
        })?;
        let span = (after.at - before.at).as_secs_f64();
        let packets = after.received.packets - before.received.packets;
        let bytes = after.received.bytes - before.received.bytes;
        if packets == 0 || bytes != packets * size as u64 {
            let forwarder = self.forwarder.name();
            return Err(BenchError::Arrived { forwarder, packets, bytes, size });
        }
        let million = |count: u64| count as f64 / span / 1e6;
        Ok(Sample { offered_mpps: million(after.made - before.made), mpps: million(packets) })
    }

    /// Offers some frames from the calling thread.
    pub(crate) fn trickle(&self, generator: &Generator, count: u32) -> Result<(), BenchError> {
        self.source.enter(|| generator.send(self.source_index, count))??;
        Ok(())
    }

    /// Returns the forwarder's drops, by reason.
    pub(crate) fn drops(&self) -> Result<Drops, BenchError> {
        self.forwarder.drops(&self.gateway)
    }
}

struct Counts {
    at: Instant,
    made: u64,
    received: Received,
}

/// The index of a netdev.
pub(crate) fn index(namespace: &Namespace, netdev: &str) -> Result<u32, LabError> {
    let answer = namespace.ip_json(&["link", "show", "dev", netdev])?;
    let index = answer.pointer("/0/ifindex").and_then(serde_json::Value::as_u64);
    index.and_then(|index| index.try_into().ok()).ok_or_else(|| LabError::NoInterface {
        namespace: namespace.name().to_owned(),
        interface: netdev.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_cores_of_their_own_where_there_are_enough() {
        let cores = Cores::of(vec![0, 1, 2, 5]).unwrap();
        assert_eq!([0, 1].map(|queue| cores.generator(queue)), [0, 1]);
        assert_eq!([0, 1].map(|queue| cores.forwarder(queue)), [5, 2]);
        // Two cores and two queues: each makes the traffic of one and forwards that of the other.
        let cores = Cores::of(vec![0, 1]).unwrap();
        assert_eq!([0, 1].map(|queue| cores.generator(queue)), [0, 1]);
        assert_eq!([0, 1].map(|queue| cores.forwarder(queue)), [1, 0]);
        assert!(matches!(Cores::of(vec![3]), Err(BenchError::Cores { found: 1 })));
    }
}
