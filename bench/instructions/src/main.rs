//! Walks the packets of one row of `cargo xtask instructions`, under valgrind's callgrind or not.
//!
//! Without arguments: prints the rows' names, one a line. With a row's name: lays one packet of
//! each flow out and walks them, twice. The first time makes the cache's entries; only the second
//! time, [`counted`], is measured. Then every packet must have left and none may be dropped.
//! Another cipher opens the packets that left and compares them byte for byte, because the count of
//! a wrong walk says nothing. Prints the number of packets, the instruction set and the cipher
//! library.
#![forbid(unsafe_code)]

mod rows;

use std::process::ExitCode;
use std::time::Instant;

use dataplane::tap::{Layers, Outcome, TapId, TapReader, TapSettings, taps};
use dataplane::{CacheUse, DropReason, FlowCache, Snapshot, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use ipsec::Suite;
use scene::{Case, Flaw, Keys, OtherCipher, SaLimits, SceneError, Shape};
use wire::BATCH;

use rows::{Cache, Capture, Row};

/// The only worker.
const WORKER: usize = 0;
/// Entries of the cache. No flow of a row overwrites another in a cache of this size.
const CACHE_ENTRIES: usize = 65_536;

/// Reasons why a row has no count.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("there is no row `{0}`; without arguments, the program prints all")]
    NoRow(String),
    #[error(transparent)]
    Scene(#[from] SceneError),
    #[error("no memory for the flow cache: {0}")]
    Memory(std::io::Error),
    #[error("{packets} packets were dropped: {reason}")]
    Dropped { reason: DropReason, packets: u64 },
    #[error("{expected} packets should have left, {left} did")]
    Missing { expected: usize, left: usize },
    #[error("of {expected} packets {found} found their flow in the cache")]
    Misses { expected: usize, found: u64 },
    #[error("the capture took {taken} packets, not {expected}")]
    Captured { expected: u64, taken: u64 },
    #[error("packet {flow}: {flaw}")]
    Output { flow: usize, flaw: Flaw },
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.join(" ")) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("instructions: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Walks of a row: each takes one packet of each flow.
const WALKS: u64 = 3;

/// Runs a row; without a name, lists them.
fn run(name: &str) -> Result<String, Failure> {
    let all = rows::all();
    if name.is_empty() {
        return Ok(all.iter().map(Row::name).collect::<Vec<_>>().join("\n"));
    }
    let row = all.iter().find(|row| row.name() == name);
    let row = row.ok_or_else(|| Failure::NoRow(name.to_owned()))?;
    let keys = Keys::fresh(row.case.suite)?;
    let rules = (row.rules, Shape::Uniform);
    let snapshot = row.case.grouped_gateway(std::slice::from_ref(&keys), rules, row.treatment)?;
    let snapshot = match row.limits {
        SaLimits::Without => snapshot,
        SaLimits::Far => scene::limited(&snapshot)?,
    };
    let mut counting = Counting::new(row, &snapshot, &keys)?;
    // The first packets of a flow begin its connection, the second ones find it.
    for walk in [warm_up, warm_up, counted] as [Walk; WALKS as usize] {
        counting.walk(walk)?;
    }
    let ciphers = match row.case.suite {
        Suite::Null => "none".into(),
        _ => snapshot.outbound_sa(ipsec::SaId(WORKER as u32)).cipher.backend_name(),
    };
    let set = cpu::lanes::Form::best().name();
    Ok(format!("packets {}\nset {set}\nciphers {ciphers}", row.case.flows))
}

/// A worker with the packets and the cipher of one row.
struct Counting<'r> {
    row: &'r Row,
    snapshot: &'r Snapshot,
    other: OtherCipher,
    worker: Worker<MemoryFrames, PreloadedPort>,
    /// The other end of the capture.
    capture: Option<TapReader>,
    /// Packets walked so far.
    carried: usize,
}

/// Walks until the port is empty.
type Walk = fn(&mut Worker<MemoryFrames, PreloadedPort>, &Snapshot, &Case);

impl<'r> Counting<'r> {
    fn new(row: &'r Row, snapshot: &'r Snapshot, keys: &Keys) -> Result<Self, Failure> {
        let flows = row.case.flows;
        let netdevs = (0..3).map(|_| Some(PreloadedPort::new(flows))).collect();
        let mut worker = Worker::new(snapshot, MemoryFrames::new(flows as u32), netdevs);
        worker.use_fast_path(row.fast_path);
        let port = worker.netdev_mut(row.case.ingress());
        if let (Some(mark), Some(port)) = (row.case.mark(WORKER), port) {
            port.mark(mark);
        }
        if row.cache == Cache::Hit {
            // The same secret each time: a count that depends on it could not be compared.
            let cache = FlowCache::new(CACHE_ENTRIES, &[7; 32], CacheUse::Always);
            worker.take_cache(Some(cache.map_err(Failure::Memory)?));
        }
        let capture = capture(row, snapshot).map(|settings| {
            let (taps, reader) = taps(&settings, 1);
            taps.into_iter().for_each(|tap| worker.add_tap(tap));
            // Each packet as received and as sent, each time.
            let all = 2 * WALKS * flows as u64;
            reader.allow(all, all);
            reader
        });
        let other = scene::other_cipher(&row.case, keys);
        Ok(Self { row, snapshot, other, worker, capture, carried: 0 })
    }

    /// Lays one packet of each flow out, walks them, and checks what left.
    fn walk(&mut self, walk: Walk) -> Result<(), Failure> {
        let (case, other, carried) = (&self.row.case, &self.other, self.carried);
        let packets = (0..case.flows)
            .map(|flow| scene::arriving(case, other, WORKER, flow, (carried + flow + 1) as u32));
        let hits = self.hits();
        scene::load(&mut self.worker, case.ingress(), packets);
        walk(&mut self.worker, self.snapshot, case);
        self.check()?;
        let found = self.hits() - hits;
        // The first time every flow is new; where no policy is asked, none is looked for.
        if self.row.cache == Cache::Hit && carried > 0 && found != case.flows as u64 {
            return Err(Failure::Misses { expected: case.flows, found });
        }
        self.carried += case.flows;
        self.check_capture()
    }

    /// Empties the capture's ring, which must hold every packet: one that finds it full costs less.
    fn check_capture(&mut self) -> Result<(), Failure> {
        let expected = match self.row.capture {
            Capture::Off | Capture::Elsewhere => 0,
            Capture::On => 2 * self.row.case.flows as u64,
        };
        let taken =
            self.capture.iter_mut().flat_map(|reader| std::iter::from_fn(|| reader.take(WORKER)));
        match taken.count() as u64 {
            taken if taken == expected => Ok(()),
            taken => Err(Failure::Captured { expected, taken }),
        }
    }

    fn hits(&self) -> u64 {
        self.worker.counters().cache.hits
    }

    fn check(&mut self) -> Result<(), Failure> {
        let counters = self.worker.counters();
        if let Some(reason) = DropReason::ALL.iter().find(|reason| counters.dropped(**reason) > 0) {
            let packets = counters.dropped(*reason);
            return Err(Failure::Dropped { reason: *reason, packets });
        }
        let case = &self.row.case;
        let (frames, egress) = self.worker.parts_mut(case.egress());
        let sent = egress.map_or(&[][..], |port| port.sent());
        if sent.len() != case.flows {
            return Err(Failure::Missing { expected: case.flows, left: sent.len() });
        }
        for (flow, packet) in sent.iter().enumerate() {
            let number = (self.carried + flow + 1) as u32;
            let output = frames.packet(*packet).unwrap_or_default();
            scene::check(case, &self.other, scene::spi(WORKER), flow, number, output)
                .map_err(|flaw| Failure::Output { flow, flaw })?;
        }
        let (frames, egress) = self.worker.parts_mut(case.egress());
        egress.expect("all devices have ports").recycle(frames);
        Ok(())
    }
}

/// Returns the settings of a row's capture.
fn capture(row: &Row, snapshot: &Snapshot) -> Option<TapSettings> {
    let is_crossed = |netdev| netdev == row.case.ingress() || netdev == row.case.egress();
    let port = match row.capture {
        Capture::Off => return None,
        Capture::On => None,
        Capture::Elsewhere => {
            let mut ports = snapshot.ports().map(|(_, port)| port);
            let other = ports.find(|port| !is_crossed(port.netdev));
            Some(other.expect("a scene has three ports").name.to_string())
        }
    };
    let (layers, outcome) = (Layers::Outer, Outcome::Any);
    Some(TapSettings {
        id: TapId(1),
        port,
        layers,
        outcome,
        filter: None,
        snaplen: 96,
        packets: u64::MAX,
    })
}

#[inline(never)]
fn warm_up(worker: &mut Worker<MemoryFrames, PreloadedPort>, snapshot: &Snapshot, case: &Case) {
    scene::drain(worker, snapshot, case.ingress(), Instant::now(), BATCH);
}

/// Walks the packets whose instructions are counted. It is not inlined, and differs from
/// [`warm_up`], so that the linker does not make one function of both.
#[inline(never)]
fn counted(worker: &mut Worker<MemoryFrames, PreloadedPort>, snapshot: &Snapshot, case: &Case) {
    scene::drain(worker, snapshot, case.ingress(), std::hint::black_box(Instant::now()), BATCH);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_walks_and_what_leaves_is_right() {
        for row in rows::all() {
            let said = run(&row.name()).unwrap_or_else(|error| panic!("{}: {error}", row.name()));
            assert!(said.starts_with("packets 1024"), "{said}");
        }
    }

    #[test]
    fn a_row_that_does_not_exist_is_refused() {
        assert!(matches!(run("null sideways"), Err(Failure::NoRow(_))));
        assert_eq!(run("").unwrap().lines().count(), rows::all().len());
    }
}
