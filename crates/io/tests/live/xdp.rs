//! AF_XDP ports behind the steering program.

use std::time::{Duration, Instant};

use bpf::Counter;
use io::{BareForwarder, XdpFrames, XdpPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::frame::{Descriptor, Frames, HEADROOM, Port};
use wire::mark::Marker;
use xsk::{FrameSize, Layout, Spacing, Umem};

use crate::place::{Link, give_all, in_namespace, numbers, received, run, wait_until};

/// All layouts that there are.
const LAYOUTS: [Layout; 4] = [
    Layout { size: FrameSize::Half, spacing: Spacing::Aligned },
    Layout { size: FrameSize::Half, spacing: Spacing::Staggered },
    Layout { size: FrameSize::Page, spacing: Spacing::Aligned },
    Layout { size: FrameSize::Page, spacing: Spacing::Staggered },
];

/// Runs a test for each layout of frames, in a namespace of its own.
fn for_each_layout(name: &str, test: impl Fn(Layout) + Copy + Send + 'static) {
    for layout in LAYOUTS {
        in_namespace(&format!("{name}, {layout:?}"), move || test(layout));
    }
}

/// Receives until `count` packets have come.
fn receive(port: &mut XdpPort, frames: &mut XdpFrames, count: usize) -> Vec<Descriptor> {
    let mut packets = Vec::new();
    wait_until("packets come", || {
        receive_into(port, frames, 64, &mut packets);
        packets.len() >= count
    });
    assert_eq!(packets.len(), count);
    packets
}

/// Receives what is there, and returns how many packets: none of them claims anything.
fn receive_into(
    port: &mut XdpPort,
    frames: &mut XdpFrames,
    limit: usize,
    packets: &mut Vec<Descriptor>,
) -> usize {
    let mut received = Vec::new();
    let count = port.receive(frames, limit, &mut received);
    assert!(received.iter().all(|received| received.hint == 0) && port.marks().is_empty());
    packets.extend(received.iter().map(|received| received.packet));
    count
}

/// Waits until a batch that the kernel has counted is delivered too.
fn settle() {
    std::thread::sleep(Duration::from_millis(20));
}

fn assert_all_free(frames: &mut XdpFrames) {
    assert_umem_free(frames.umem_mut());
}

/// Frames of closed sockets are free when the kernel has let go of them.
fn assert_umem_free(umem: &mut Umem) {
    let areas = [umem.area().clone()];
    wait_until("the kernel has let go of the queues", || xsk::release_quarantined(&areas) == 0);
    umem.reclaim();
    let census = umem.census();
    assert_eq!((census.free, census.imbalance()), (census.total, 0), "{census:?}");
}

#[test]
fn packets_come_through_the_program_whole_and_in_order() {
    // AX-02
    for_each_layout("packets_come_through_the_program", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        let mut port = link.port(&mut frames, &[0]);
        for round in 0..100 {
            link.send(0, round * 60..(round + 1) * 60);
            let mut packets = receive(&mut port, &mut frames, 60);
            for (packet, number) in packets.iter().zip(round * 60..) {
                assert_eq!(packet.offset as usize, HEADROOM);
                assert_eq!(numbers(&frames, *packet), (0, number));
            }
            let census = frames.census();
            assert_eq!((census.outside, census.receive, census.imbalance()), (60, 100, 0));
            give_all(&mut frames, &mut packets);
        }
        let counters = link.counted();
        assert_eq!(counters.of(Counter::ToWorker), 6000);
        let queues = port.close(&mut frames);
        assert_eq!(queues.len(), 1);
        assert_eq!((queues[0].statistics.own.received, queues[0].foreign), (6000, 0));
        assert_eq!(queues[0].statistics.kernel.rx_dropped, 0);
        assert_eq!(queues[0].statistics.own.rx_invalid, 0);
        assert_all_free(&mut frames);
    });
}

#[test]
fn what_comes_faster_than_it_is_taken_is_dropped_by_the_kernel_and_counted() {
    for_each_layout("faster_than_it_is_taken", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        let mut port = link.port(&mut frames, &[0]);
        link.send(0, 0..1000);
        wait_until("all were steered", || link.counted().of(Counter::ToWorker) == 1000);
        let mut packets = receive(&mut port, &mut frames, 100);
        give_all(&mut frames, &mut packets);
        let kernel = port.statistics()[0].statistics.kernel;
        assert_eq!(kernel.rx_ring_full, 0, "the quota is smaller than the ring");
        assert_eq!((kernel.rx_dropped, kernel.lost()), (900, 900), "{kernel:?}");
        // And it goes on.
        link.send(0, 0..50);
        let mut packets = receive(&mut port, &mut frames, 50);
        give_all(&mut frames, &mut packets);
        // Every packet is on the books when the socket is closed with some still in its ring.
        link.send(0, 0..70);
        wait_until("they were steered", || link.counted().of(Counter::ToWorker) == 1120);
        link.forget(0);
        settle();
        let statistics = port.close(&mut frames)[0].statistics;
        let own = statistics.own;
        assert_eq!((own.received, own.rx_abandoned, own.rx_invalid), (150, 70, 0));
        assert_eq!(own.received + own.rx_abandoned + statistics.kernel.lost(), 1120);
        assert_all_free(&mut frames);
    });
}

#[test]
fn packets_marked_for_another_device_are_dropped_and_counted() {
    for_each_layout("packets_marked_for_another_device", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        let mut port = XdpPort::new(Marker { netdev: 4, incarnation: 0 });
        let socket = link.open(frames.umem().area(), 0);
        port.add(&mut frames, socket);
        link.send(0, 0..50);
        let mut none = Vec::new();
        wait_until("they are counted", || {
            port.receive(&mut frames, 64, &mut none);
            port.statistics()[0].foreign == 50
        });
        assert!(none.is_empty());
        assert_eq!((frames.census().outside, frames.census().receive), (0, 100));
        port.close(&mut frames);
        assert_all_free(&mut frames);
    });
}

#[test]
fn queues_get_their_turns() {
    // AX-03, AX-04
    for_each_layout("queues_get_their_turns", |layout| {
        let mut link = Link::new("va", 3, 4);
        let mut frames = XdpFrames::new(Umem::laid_out(1024, layout).unwrap());
        let mut port = link.port(&mut frames, &[2, 0, 3]);
        assert_eq!(port.queues().collect::<Vec<_>>(), [0, 2, 3]);
        (0..4).for_each(|queue| link.send(queue, 0..90));
        wait_until("all were steered", || link.counted().received() == 360);
        assert_eq!(link.counted().of(Counter::NoSocket), 90, "queue 1 has no socket");
        let (mut seen, mut packets) = ([0; 4], Vec::new());
        for _ in 0..4 {
            assert_eq!(receive_into(&mut port, &mut frames, 60, &mut packets), 60);
            for packet in &packets {
                seen[numbers(&frames, *packet).0 as usize] += 1;
            }
            assert_eq!((seen[1], seen[0], seen[2]), (0, seen[2], seen[3]), "{seen:?}");
            give_all(&mut frames, &mut packets);
        }
        // One queue alone may use the whole limit.
        port.remove(&mut frames, 0).unwrap();
        port.remove(&mut frames, 2).unwrap();
        assert!(port.remove(&mut frames, 2).is_none());
        assert_eq!(receive_into(&mut port, &mut frames, 60, &mut packets), 10);
        link.send(3, 0..90);
        wait_until("they came", || link.counted().received() == 450);
        give_all(&mut frames, &mut packets);
        assert_eq!(receive_into(&mut port, &mut frames, 64, &mut packets), 64);
        give_all(&mut frames, &mut packets);
        port.close(&mut frames);
        assert_all_free(&mut frames);
    });
}

#[test]
fn a_stuck_port_starves_no_other() {
    for_each_layout("a_stuck_port_starves_no_other", |layout| {
        let mut links = [Link::new("va", 1, 1), Link::new("vb", 2, 1), Link::new("vc", 3, 1)];
        let mut frames = XdpFrames::new(Umem::laid_out(1024, layout).unwrap());
        let [mut from, mut stuck, mut good] = [0, 1, 2].map(|i| links[i].port(&mut frames, &[0]));
        run("ip link set vb0 down");
        let before = received("vc1");
        let (mut accepted, mut refused) = (0, 0);
        for round in 0..100 {
            links[0].send(0, round * 50..(round + 1) * 50);
            let packets = receive(&mut from, &mut frames, 50);
            let (left, right) = packets.split_at(25);
            let taken = stuck.transmit(&mut frames, left);
            accepted += taken;
            refused += left.len() - taken;
            for packet in &left[taken..] {
                frames.give(packet.frame);
            }
            assert_eq!(good.transmit(&mut frames, right), 25, "round {round}");
            assert_eq!(frames.census().imbalance(), 0);
        }
        assert_eq!((accepted, refused), (256, 2500 - 256), "the stuck ring holds its quota");
        wait_until("the good port's have arrived", || received("vc1") - before == 2500);
        assert_eq!(stuck.push(&mut frames), 256);
        assert_eq!(stuck.statistics()[0].statistics.own.tx_full, 2500 - 256);
        // It comes back and sends what waited.
        let before = received("vb1");
        run("ip link set vb0 up");
        wait_until("the stuck port's leave", || stuck.push(&mut frames) == 0);
        wait_until("and arrive", || received("vb1") - before >= 256);
        for port in [from, stuck, good] {
            port.close(&mut frames);
        }
        assert_all_free(&mut frames);
    });
}

#[test]
fn a_port_whose_netdev_is_deleted_ends_quietly() {
    for_each_layout("a_port_whose_netdev_is_deleted", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        let mut port = link.port(&mut frames, &[0]);
        link.send(0, 0..10);
        let mut packets = receive(&mut port, &mut frames, 10);
        run("ip link del va0");
        assert_eq!(port.transmit(&mut frames, &packets), 10, "the ring is still there");
        packets.clear();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            assert_eq!(receive_into(&mut port, &mut frames, 64, &mut packets), 0);
        }
        assert_eq!(port.push(&mut frames), 10);
        // Sleeping on it sleeps: a dead socket must not make its worker spin.
        let mut waits: Vec<_> =
            port.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        assert_eq!(poll(&mut waits, Some(&timeout)), Ok(0));
        let queues = port.close(&mut frames);
        assert!(queues[0].statistics.own.kicks_down > 0);
        assert_all_free(&mut frames);
    });
}

#[test]
fn a_queue_is_served_again_after_its_socket_was_replaced() {
    for_each_layout("a_queue_is_served_again", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        for round in 1..=5 {
            let mut port = link.port(&mut frames, &[0]);
            link.send(0, 0..50);
            let mut packets = receive(&mut port, &mut frames, 50);
            // Some are closed while they are under way.
            packets.split_off(40).into_iter().for_each(|packet| {
                port.transmit(&mut frames, &[packet]);
            });
            link.forget(0);
            port.close(&mut frames);
            give_all(&mut frames, &mut packets);
            assert_all_free(&mut frames);
            // Nobody serves the queue: closed, and counted.
            link.send(0, 0..50);
            wait_until("they are dropped", || link.counted().of(Counter::NoSocket) == 50 * round);
        }
    });
}

#[test]
fn a_socket_that_outlives_its_closing_writes_into_no_frame() {
    for_each_layout("a_socket_that_outlives_its_closing", |layout| {
        let mut link = Link::new("va", 3, 1);
        let mut frames = XdpFrames::new(Umem::laid_out(256, layout).unwrap());
        let mut port = XdpPort::new(Marker { netdev: 3, incarnation: 0 });
        let socket = link.open(frames.umem().area(), 0);
        let copy = socket.try_clone_fd().unwrap();
        port.add(&mut frames, socket);
        link.send(0, 0..30);
        let mut packets = receive(&mut port, &mut frames, 30);
        give_all(&mut frames, &mut packets);
        port.close(&mut frames);
        assert!(frames.census().quarantined > 0, "{:?}", frames.census());
        let areas = [frames.umem().area().clone()];
        assert_ne!(xsk::release_quarantined(&areas), 0, "the copy keeps the socket");
        let all: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
        all.iter().for_each(|frame| frames.bytes_mut(*frame).fill(0xee));
        let before = link.counted().of(Counter::ToWorker);
        link.send(0, 0..300);
        wait_until("they are steered", || link.counted().of(Counter::ToWorker) == before + 300);
        settle();
        for frame in &all {
            assert!(frames.bytes(*frame).iter().all(|byte| *byte == 0xee), "{frame:?}");
        }
        all.into_iter().for_each(|frame| frames.give(frame));
        // With the copy the socket goes; a process that another test is about to start may have it
        // a little longer.
        drop(copy);
        wait_until("nobody is there", || {
            link.send(0, 0..10);
            link.counted().of(Counter::NoSocket) >= 10
        });
        assert_all_free(&mut frames);
    });
}

#[test]
fn the_bare_forwarder_forwards_both_ways_and_loses_no_frame() {
    // AX-05
    for_each_layout("the_bare_forwarder", |layout| {
        let mut links = [Link::new("va", 1, 1), Link::new("vb", 2, 1)];
        let umem = Umem::laid_out(1024, layout).unwrap();
        let sockets = [0, 1].map(|i| links[i].open(umem.area(), 0));
        let mut forwarder = BareForwarder::new(umem, sockets);
        let before = [received("va1"), received("vb1")];
        for round in 0..50 {
            links[0].send(0, round * 64..(round + 1) * 64);
            links[1].send(0, round * 32..(round + 1) * 32);
            let mut forwarded = 0;
            wait_until("a round is through", || {
                forwarded += forwarder.turn();
                forwarded == 96
            });
        }
        wait_until("all have arrived", || {
            received("vb1") - before[1] == 3200 && received("va1") - before[0] == 1600
        });
        assert_eq!(forwarder.dropped(), 0);
        let (mut umem, [left, right]) = forwarder.close();
        assert_eq!((left.own.received, left.own.sent), (3200, 1600));
        assert_eq!((right.own.received, right.own.sent), (1600, 3200));
        assert_umem_free(&mut umem);
    });
}
