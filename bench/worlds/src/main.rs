//! Runs a worker's turns among few and among very many objects, under valgrind's callgrind or not:
//! the instructions of a turn must not depend on the number of objects.
//!
//! Without arguments: prints the rows' names, line by line. With a row's name: makes a gateway and
//! runs turns; only the last turns, [`counted`], are measured. Prints the number of turns.
//!
//! * `idle turn`: a turn without packets, and a tick
//! * `sealed packet`, `opened packet`: a batch of a single packet, and a tick
//! * `keepalive step`: a tick with the most NAT keepalives for a single tick
#![forbid(unsafe_code)]

mod gateway;

use std::process::ExitCode;

use dataplane::keepalive::{ROUND_NS, STEP_SETS};
use dataplane::{CacheUse, FlowCache, NetdevId, Snapshot, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use ipsec::Suite;
use ipsec::cipher::BackendKind;
use scene::{Case, Direction, Keys, OtherCipher};
use wire::Family;

use gateway::{MANY, ONE, WorldSize};

/// Counted turns.
const TURNS: usize = 256;
/// Counted steps of keepalives.
const STEPS: usize = 64;
/// Time of all turns but the steps: nothing becomes due between two of them.
const NOW_NS: u64 = 1_000_000_000;
const CACHE_ENTRIES: usize = 65_536;
/// Seconds after which a keepalive is due.
const KEEPALIVE_S: u32 = 20;

type MemoryWorker = Worker<MemoryFrames, PreloadedPort>;

/// A row: the work of a turn, among so many objects.
#[derive(Clone, Copy)]
struct Row {
    work: TurnWork,
    size: WorldSize,
}

/// The work of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnWork {
    Idle,
    SealedPacket,
    OpenedPacket,
    KeepaliveStep,
}

impl TurnWork {
    const ALL: [TurnWork; 4] =
        [TurnWork::Idle, TurnWork::SealedPacket, TurnWork::OpenedPacket, TurnWork::KeepaliveStep];

    fn name(self) -> &'static str {
        match self {
            TurnWork::Idle => "idle turn",
            TurnWork::SealedPacket => "sealed packet",
            TurnWork::OpenedPacket => "opened packet",
            TurnWork::KeepaliveStep => "keepalive step",
        }
    }
}

impl Row {
    fn all() -> Vec<Row> {
        let both = |work| [ONE, MANY].map(|size| Row { work, size });
        TurnWork::ALL.into_iter().flat_map(both).collect()
    }

    fn name(&self) -> String {
        format!("{}, {}", self.work.name(), self.size.name)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (name, rows) = (words.join(" "), Row::all());
    if name.is_empty() {
        rows.iter().for_each(|row| println!("{}", row.name()));
        return ExitCode::SUCCESS;
    }
    let Some(row) = rows.iter().find(|row| row.name() == name) else {
        eprintln!("worlds: there is no row `{name}`; without arguments, the program prints all");
        return ExitCode::FAILURE;
    };
    println!("turns {}", run(row));
    ExitCode::SUCCESS
}

/// Runs a row and returns the number of counted turns.
fn run(row: &Row) -> usize {
    let direction = match row.work {
        TurnWork::OpenedPacket => Direction::In,
        TurnWork::Idle | TurnWork::SealedPacket | TurnWork::KeepaliveStep => Direction::Out,
    };
    let (suite, family) = (Suite::Null, Family::V4);
    let backend = Some(BackendKind::first(suite));
    let case =
        Case { direction, suite, family, size: 64, flows: TURNS, backend, workers: 1, sas: 1 };
    let keys = Keys::fresh(suite).expect("random numbers");
    let snapshot = gateway::snapshot(&case, &keys, row.size);
    let mut lane = TestLane::new(case, scene::other_cipher(&case, &keys), &snapshot);
    match row.work {
        TurnWork::KeepaliveStep => lane.run_steps(&snapshot),
        TurnWork::Idle => lane.run_turns(&snapshot, 0),
        TurnWork::SealedPacket | TurnWork::OpenedPacket => lane.run_turns(&snapshot, TURNS),
    }
}

/// A worker with the packets of a case.
struct TestLane {
    case: Case,
    other: OtherCipher,
    worker: MemoryWorker,
    /// Packets until now.
    carried: usize,
}

impl TestLane {
    fn new(case: Case, other: OtherCipher, snapshot: &Snapshot) -> TestLane {
        let packets = TURNS.max(STEPS * STEP_SETS as usize);
        let netdevs = (0..snapshot.netdev_slots()).map(|_| Some(PreloadedPort::new(packets)));
        let frames = MemoryFrames::new(packets as u32);
        let mut worker = Worker::new(snapshot, frames, netdevs.collect());
        // The same secret each time: counts under different secrets cannot be compared.
        let cache = FlowCache::new(CACHE_ENTRIES, &[7; 32], CacheUse::Always).expect("memory");
        worker.take_cache(Some(cache));
        worker.adopt(snapshot, 0);
        TestLane { case, other, worker, carried: 0 }
    }

    /// Runs turns of a single packet each; `packets` 0: turns without packets.
    fn run_turns(&mut self, snapshot: &Snapshot, packets: usize) -> usize {
        let netdev = self.case.ingress();
        while self.worker.has_overdue_work() || self.carried == 0 {
            self.worker.tick(snapshot, NOW_NS);
            self.carried = 1;
        }
        for turns in [warm_up, counted] as [Turns; 2] {
            let first = self.carried;
            let arriving = (0..packets).map(|flow| {
                scene::arriving(&self.case, &self.other, 0, flow, (first + flow) as u32)
            });
            scene::load(&mut self.worker, netdev, arriving);
            turns(&mut self.worker, snapshot, netdev);
            self.carried += packets;
            assert_eq!(self.sent(), packets, "every packet leaves");
        }
        TURNS
    }

    /// Runs steps over sets whose keepalives are due.
    fn run_steps(&mut self, snapshot: &Snapshot) -> usize {
        let mut now_ns = NOW_NS;
        // Each set is seen once.
        loop {
            self.worker.tick(snapshot, now_ns);
            if !self.worker.has_overdue_work() {
                break;
            }
        }
        now_ns += u64::from(KEEPALIVE_S) * ROUND_NS;
        warm_up_step(&mut self.worker, snapshot, now_ns);
        self.sent();
        counted_steps(&mut self.worker, snapshot, now_ns);
        self.sent();
        STEPS
    }

    /// Takes out the sent packets, and returns their number.
    fn sent(&mut self) -> usize {
        let (frames, port) = self.worker.parts_mut(self.case.egress());
        let port = port.expect("every netdev has a port");
        let sent = port.sent().len();
        port.recycle(frames);
        sent
    }
}

/// Runs turns of a netdev.
type Turns = fn(&mut MemoryWorker, &Snapshot, NetdevId);

#[inline(always)]
fn turns(worker: &mut MemoryWorker, snapshot: &Snapshot, netdev: NetdevId, now_ns: u64) {
    for _ in 0..TURNS {
        worker.turn(snapshot, now_ns, netdev, 1);
        worker.tick(snapshot, now_ns);
    }
}

#[inline(never)]
fn warm_up(worker: &mut MemoryWorker, snapshot: &Snapshot, netdev: NetdevId) {
    turns(worker, snapshot, netdev, NOW_NS);
}

/// Runs the counted turns. Not inlined, and different from [`warm_up`]: the linker must not merge
/// both functions.
#[inline(never)]
fn counted(worker: &mut MemoryWorker, snapshot: &Snapshot, netdev: NetdevId) {
    turns(worker, snapshot, netdev, std::hint::black_box(NOW_NS));
}

#[inline(never)]
fn warm_up_step(worker: &mut MemoryWorker, snapshot: &Snapshot, now_ns: u64) {
    worker.tick(snapshot, now_ns);
}

/// Runs the counted steps. The last steps of a small gateway find nothing.
#[inline(never)]
fn counted_steps(worker: &mut MemoryWorker, snapshot: &Snapshot, now_ns: u64) {
    for _ in 0..STEPS {
        worker.tick(snapshot, std::hint::black_box(now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: WorldSize = WorldSize { name: "some", sets: 300, ports: 20 };

    #[test]
    fn every_row_carries_its_packets() {
        for work in TurnWork::ALL {
            for size in [ONE, SOME] {
                let counted = if work == TurnWork::KeepaliveStep { STEPS } else { TURNS };
                assert_eq!(run(&Row { work, size }), counted);
            }
        }
        const { assert!(wire::BATCH > 1, "a turn takes one packet of a batch's room") };
    }
}
