//! The path of packets that a store is put into: a worker in memory, whose fast path sends tenants'
//! packets on to other hosts.

use std::time::{Duration, Instant};

use dataplane::{Snapshot, Worker};
use endpoints::EndpointKey;
use io::memory::{MemoryFrames, PreloadedPort};
use ipsec::Suite;
use scene::{Case, Direction, Keys, SceneError};
use wire::{BATCH, Family};

use super::super::super::measure::measure;
use super::super::BenchError;
use super::all_found;
use super::stores::LookUp;

/// Bytes of an inner packet.
pub(super) const PACKET_BYTES: usize = 1400;
/// Frames that hold packets at a time.
const IN_FLIGHT: usize = 512;

/// A worker, and packets for it.
pub(super) struct Path {
    case: Case,
    snapshot: Snapshot,
    worker: Worker<MemoryFrames, PreloadedPort>,
    /// One of each flow.
    packets: Vec<Vec<u8>>,
    began: Instant,
}

impl Path {
    /// Makes a worker.
    ///
    /// # Errors
    /// [`BenchError::System`]: no memory.
    pub(super) fn new() -> Result<Path, BenchError> {
        let case = Case {
            direction: Direction::Overlay,
            suite: Suite::Null,
            family: Family::V4,
            size: PACKET_BYTES,
            flows: IN_FLIGHT,
            backend: None,
            workers: 1,
            sas: 1,
        };
        let failed =
            |error: SceneError| BenchError::system("a scene")(std::io::Error::other(error));
        let keys = Keys::fresh(case.suite).map_err(failed)?;
        let snapshot = case.gateway(std::slice::from_ref(&keys)).map_err(failed)?;
        let other = scene::other_cipher(&case, &keys);
        let packets = (0..IN_FLIGHT).map(|flow| scene::arriving(&case, &other, 0, flow, 1));
        let packets = packets.collect();
        let netdevs = (0..3).map(|_| Some(PreloadedPort::new(IN_FLIGHT))).collect();
        let worker = Worker::new(&snapshot, MemoryFrames::new(IN_FLIGHT as u32), netdevs);
        Ok(Path { case, snapshot, worker, packets, began: Instant::now() })
    }

    /// Sends a packet for each key on, in batches, each after `look_up` was given the keys of the
    /// batch; returns the nanoseconds of CPU time of a packet with its lookup.
    ///
    /// # Errors
    /// Those of `look_up`; [`BenchError::System`]: a key was not found, or a packet did not leave.
    pub(super) fn carry(
        &mut self,
        keys: &[EndpointKey],
        look_up: &mut LookUp<'_>,
    ) -> Result<f64, BenchError> {
        let mut spent = Duration::ZERO;
        for keys in keys.chunks(IN_FLIGHT) {
            let packets = self.packets[..keys.len()].iter().cloned();
            scene::load(&mut self.worker, self.case.ingress(), packets);
            let (found, span) = measure(|| self.timed(keys, look_up));
            spent += span.cpu;
            all_found(found?, keys.len())?;
            let (frames, egress) = self.worker.parts_mut(self.case.egress());
            let egress = egress.expect("all netdevs have ports");
            let left = egress.sent().len();
            egress.recycle(frames);
            if left != keys.len() {
                let error = std::io::Error::other(format!("{left} of {} packets left", keys.len()));
                return Err(BenchError::system("the path of packets")(error));
            }
        }
        Ok(spent.as_secs_f64() * 1e9 / keys.len() as f64)
    }

    /// The timed span. It is a function of its own, so that a profile can be of nothing else.
    #[inline(never)]
    fn timed(
        &mut self,
        keys: &[EndpointKey],
        look_up: &mut LookUp<'_>,
    ) -> Result<usize, BenchError> {
        let mut found = 0;
        for keys in keys.chunks(BATCH) {
            found += look_up(keys)?;
            let now_ns = self.began.elapsed().as_nanos() as u64;
            self.worker.turn(&self.snapshot, now_ns, self.case.ingress(), BATCH);
        }
        Ok(found)
    }
}
