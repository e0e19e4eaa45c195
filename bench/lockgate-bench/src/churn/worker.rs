//! The worker, and how the control thread gives it snapshots.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dataplane::{CacheUse, FlowCache, Snapshot, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use wire::BATCH;

use super::super::draw::{Distribution, Draw};
use super::super::lap_error::LapError;
use super::super::measure::{measure, overhead};
use scene::{Case, HOP_LIMIT, Random, SceneError, own_mac, router_mac};

/// Loops that a slice has room for.
const MOST_LOOPS: usize = 1 << 20;

/// The worker's packets and times in one turn of a rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Slice {
    pub(super) packets: u64,
    /// Packets that did not leave.
    pub(super) lost: u64,
    /// Packets that the cache answered.
    pub(super) hits: u64,
    /// CPU time of each loop: reading the mailbox, receiving, processing and transmitting a batch.
    pub(super) loops_ns: Vec<u32>,
}

/// Exchange of snapshots and counts between the control thread and the worker.
#[derive(Default)]
pub(super) struct Mailbox {
    /// Set if `next` holds a snapshot: all that the worker looks at each loop.
    rings: AtomicBool,
    next: Mutex<Option<Arc<Snapshot>>>,
    /// Snapshots that the worker is done with: they are not freed on its thread.
    old: Mutex<Vec<Arc<Snapshot>>>,
    /// Number of the slice to be filled. Work in another slice counts nowhere.
    slice: AtomicU32,
    slices: Mutex<Vec<(u32, Slice)>>,
    is_ready: AtomicBool,
    is_over: AtomicBool,
    pub(super) is_left: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For the control thread.
impl Mailbox {
    pub(super) fn put(&self, snapshot: Arc<Snapshot>) {
        lock(&self.old).clear();
        *lock(&self.next) = Some(snapshot);
        self.rings.store(true, Ordering::Release);
    }

    /// Returns whether the worker has taken the snapshot.
    pub(super) fn is_empty(&self) -> bool {
        !self.rings.load(Ordering::Acquire)
    }

    pub(super) fn wait_ready(&self) {
        while !self.is_ready.load(Ordering::Acquire) && !self.is_left.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Starts a new slice: the worker fills it from now on.
    pub(super) fn begin_slice(&self) {
        self.slice.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the slice and returns it; `None`: the worker has left.
    pub(super) fn end_slice(&self) -> Option<Slice> {
        let number = self.slice.fetch_add(1, Ordering::AcqRel);
        while !self.is_left.load(Ordering::Acquire) {
            let mut slices = lock(&self.slices);
            if let Some(place) = slices.iter().position(|(of, _)| *of == number) {
                return Some(slices.swap_remove(place).1);
            }
            drop(slices);
            std::thread::yield_now();
        }
        None
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Says so when the worker leaves, in whatever way.
struct LeaveNotice<'m>(&'m Mailbox);

impl Drop for LeaveNotice<'_> {
    fn drop(&mut self) {
        self.0.is_left.store(true, Ordering::Release);
    }
}

/// Walks packets of so many flows, with a flow cache of so many entries, until the mailbox says
/// that it is over.
///
/// # Errors
/// [`LapError`].
pub(super) fn walk(
    mailbox: &Mailbox,
    case: &Case,
    first: Arc<Snapshot>,
    (flows, cache_entries): (usize, usize),
    seed: u64,
) -> Result<(), LapError> {
    let _leaving = LeaveNotice(mailbox);
    let mut random = Random::new(seed);
    let mut draw = Draw::new(flows, Distribution::Uniform, &mut random);
    let packet = |flow| {
        let ends = (own_mac(case.ingress()), router_mac(case.ingress()));
        case.inner(flow, HOP_LIMIT).frame(ends.0, ends.1, None)
    };
    let packets: Vec<Vec<u8>> = (0..flows).map(packet).collect();
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(SceneError::Random)?;
    let cache = FlowCache::new(cache_entries, &secret, CacheUse::Always);
    let mut cache = cache.map_err(LapError::Memory)?;
    cache.touch().map_err(LapError::Memory)?;
    let netdevs = (0..3).map(|_| Some(PreloadedPort::new(BATCH))).collect();
    let frames = MemoryFrames::new(4096);
    let mut worker = Worker::new(&first, frames, netdevs);
    worker.take_cache(Some(cache));
    let mut snapshot = first;
    let (begin, overhead) = (Instant::now(), overhead());
    let (mut slice, mut number) = (Slice::default(), 0);
    slice.loops_ns.reserve(MOST_LOOPS);
    while !mailbox.is_over.load(Ordering::Acquire) {
        let filled = mailbox.slice.load(Ordering::Acquire);
        if filled != number {
            let mut next = Slice::default();
            next.loops_ns.reserve(MOST_LOOPS);
            lock(&mailbox.slices).push((number, std::mem::replace(&mut slice, next)));
            number = filled;
        }
        lay_out(&mut worker, case, &packets, &mut draw, &mut random);
        let before = worker.counters().cache.hits;
        let sent_before = worker.counters().total().sent;
        let (received, span) = measure(|| {
            take(mailbox, &mut snapshot);
            let now_ns = begin.elapsed().as_nanos() as u64;
            worker.turn(&snapshot, now_ns, case.ingress(), BATCH)
        });
        let counters = worker.counters();
        let sent = counters.total().sent - sent_before;
        slice.packets += sent;
        slice.lost += received as u64 - sent.min(received as u64);
        slice.hits += counters.cache.hits - before;
        if slice.loops_ns.len() < MOST_LOOPS {
            let ns = span.cpu.saturating_sub(overhead).as_nanos();
            slice.loops_ns.push(ns as u32);
        }
        let (frames, egress) = worker.parts_mut(case.egress());
        egress.expect("all devices have ports").recycle(frames);
        mailbox.is_ready.store(true, Ordering::Release);
    }
    match worker.counters().total().imbalance() {
        0 => Ok(()),
        off => Err(LapError::Imbalance(off)),
    }
}

/// A batch of packets, outside the timed loop.
fn lay_out(
    worker: &mut Worker<MemoryFrames, PreloadedPort>,
    case: &Case,
    packets: &[Vec<u8>],
    draw: &mut Draw,
    random: &mut Random,
) {
    let (frames, port) = worker.parts_mut(case.ingress());
    let port = port.expect("all devices have ports");
    port.recycle(frames);
    for _ in 0..BATCH {
        let flow = draw.flow(random);
        port.load(frames.store(&packets[flow]).expect("a frame is free"));
    }
}

/// Switches to a snapshot that the mailbox holds, and returns the old one to the control thread.
fn take(mailbox: &Mailbox, snapshot: &mut Arc<Snapshot>) {
    if !mailbox.rings.load(Ordering::Acquire) {
        return;
    }
    if let Some(next) = lock(&mailbox.next).take() {
        let old = std::mem::replace(snapshot, next);
        lock(&mailbox.old).push(old);
    }
    mailbox.rings.store(false, Ordering::Release);
}
