//! The walk allocates nothing once its lists have their sizes: the packets of all tables, mixed
//! in batches, under an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::discriminant;

use dataplane::cache::CacheUse;
use dataplane::{FlowCache, Input, NetdevId, Outputs, Snapshot, Verdict, Walk};
use io::MemoryFrames;
use packets::lab::{Hub, Laboratory, WAN};
use packets::{In, Row};
use wire::{BATCH, Frames, Received};

/// Rounds after which every list has its size.
const WARM_UP: usize = 4;
/// Frames: a batch, all of its fragments, and ICMP.
const FRAMES: u32 = 2048;

thread_local! {
    /// Allocations of this thread while they are counted.
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The system's allocator, which counts while a thread asks for it.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    // A thread that ends has no variables any more, and counts nothing.
    let _ = COUNTED.try_with(|counted| counted.set(counted.get().map(|count| count + 1)));
}

// SAFETY: every call goes to the system's allocator with its own arguments, which the caller
// answers for; counting touches a variable of the thread that needs no memory. Threat: an allocator
// that calls itself.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    /// As the trait says.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above. Threat: memory that two owners have.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// As the trait says.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above. Threat: memory that two owners have.
        unsafe { System.realloc(pointer, layout, size) }
    }

    /// # Safety
    /// As the trait says.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above. Threat: memory that two owners have.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs something and returns how often it allocated.
fn allocations(run: impl FnOnce()) -> u64 {
    COUNTED.set(Some(0));
    run();
    COUNTED.take().expect("counted")
}

/// A frame that carries what a row lets arrive.
fn frame(lab: &mut Laboratory, packet: &In) -> (NetdevId, Vec<u8>) {
    let (port, frame) = match packet {
        In::Clear(port, packet) => (*port, lab.frame(*port, packet)),
        In::Frame(port, frame) => (*port, frame.clone()),
        In::Sealed(set, packet) => {
            let sealed = lab.peer(*set).seal(packet);
            (WAN, lab.frame(WAN, &sealed))
        }
        // Its mark is left out: it is dropped as one that came in clear.
        In::Opened(_, packet) => (WAN, lab.frame(WAN, packet)),
        In::Crafted(set, craft) => {
            let outer = craft(lab.peer(*set));
            (WAN, lab.frame(WAN, &outer))
        }
    };
    (lab.snapshot.port(port).netdev, frame)
}

/// The frames of all rows, in batches by netdev. Rows far from each other stand side by side, so
/// that batches mix SAs and fates.
fn batches(lab: &mut Laboratory, rows: &[Row]) -> Vec<(NetdevId, Vec<Vec<u8>>)> {
    const STRIDE: usize = 97;
    let mut by_device: Vec<Vec<Vec<u8>>> = vec![vec![]; 3];
    for start in 0..STRIDE {
        for row in rows.iter().skip(start).step_by(STRIDE) {
            let (netdev, frame) = frame(lab, &row.packet);
            by_device[usize::from(netdev.0)].push(frame);
        }
    }
    let netdevs = (0..).map(NetdevId).zip(by_device);
    netdevs
        .flat_map(|(netdev, frames)| {
            let batches: Vec<_> = frames.chunks(BATCH).map(<[_]>::to_vec).collect();
            batches.into_iter().map(move |batch| (netdev, batch))
        })
        .collect()
}

struct Gateway<'s> {
    snapshot: &'s Snapshot,
    walk: Walk,
    frames: MemoryFrames,
    out: Outputs,
    now_ns: u64,
    /// Kinds of verdicts that were seen.
    seen: BTreeSet<String>,
}

impl Gateway<'_> {
    /// Walks a batch; returns how often that allocated.
    fn run(&mut self, netdev: NetdevId, batch: &[Vec<u8>]) -> u64 {
        // No ICMP is held back by the rate limit.
        self.now_ns += 10_000_000_000;
        let store = |frame: &Vec<u8>| self.frames.store(frame).map(Received::from);
        let received: Vec<Received> = batch.iter().filter_map(store).collect();
        let Gateway { snapshot, walk, frames, out, now_ns, .. } = self;
        let input = Input::received(netdev, &received);
        let count = allocations(|| walk.run(snapshot, *now_ns, input, frames, out));
        for verdict in out.verdicts.iter().flatten() {
            self.seen.insert(match verdict {
                Verdict::Drop(reason) => reason.name().to_owned(),
                other => format!("{:?}", discriminant(other)),
            });
        }
        let packets = out.tx.iter().map(|tx_packet| tx_packet.packet);
        let packets = packets.chain(out.host.iter().map(|host| host.packet));
        let packets = packets.chain(out.held.iter().map(|held| held.packet));
        packets.for_each(|packet| frames.give(packet.frame));
        out.clear();
        count
    }
}

fn nothing_is_allocated(cache: Option<FlowCache>) {
    let rows = crate::all_rows();
    let mut lab = Laboratory::default();
    let snapshot = Hub::default().snapshot();
    let mut gateway = Gateway {
        walk: Walk::new(&snapshot),
        snapshot: &snapshot,
        frames: MemoryFrames::new(FRAMES),
        out: Outputs::default(),
        now_ns: 0,
        seen: BTreeSet::new(),
    };
    gateway.walk.take_cache(cache);
    for _ in 0..WARM_UP {
        for (netdev, batch) in batches(&mut lab, &rows) {
            gateway.run(netdev, &batch);
        }
    }
    gateway.seen.clear();
    for (number, (netdev, batch)) in batches(&mut lab, &rows).into_iter().enumerate() {
        let count = gateway.run(netdev, &batch);
        assert_eq!(count, 0, "batch {number}, of {} packets of {netdev:?}", batch.len());
    }
    assert!(gateway.seen.len() >= 25, "few fates: {:?}", gateway.seen);
    let opened = gateway.walk.counters().opened.iter().filter(|sa| sa.packets > 0).count();
    let sealed = gateway.walk.counters().sealed.iter().filter(|sa| sa.packets > 0).count();
    assert_eq!((opened, sealed), (3, 3), "all SAs, in either direction");
    let total = gateway.walk.counters().total();
    assert!(total.consumed > 0 && total.made > 0, "no fragment or no ICMP: {total:?}");
}

#[test]
fn the_walk_allocates_nothing() {
    // AX-10
    nothing_is_allocated(None);
}

#[test]
fn the_walk_with_a_flow_cache_allocates_nothing() {
    // AX-10
    let cache = FlowCache::new(1 << 12, &[42; 32], CacheUse::Always).expect("memory");
    nothing_is_allocated(Some(cache));
}

/// The allocator counts: without that the tests above could not fail.
#[test]
fn the_allocator_counts() {
    let count = allocations(|| drop(std::hint::black_box(vec![1u8, 2, 3])));
    assert_eq!(count, 1);
    assert_eq!(allocations(|| ()), 0);
}
