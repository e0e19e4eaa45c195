//! Sockets on veth pairs, each test in a network namespace of its own that ends with it.
//!
//! Transmission needs no XDP program. Receiving does and is tested with one in `io`.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xsk::{
    FrameSize, HeldFrames, Layout, Options, Packet, Socket, Spacing, Transfer, Umem, XskError,
};

const MARKER: &[u8] = b"lockgate test frame";

/// All layouts that there are.
const LAYOUTS: [Layout; 4] = [
    Layout { size: FrameSize::Half, spacing: Spacing::Aligned },
    Layout { size: FrameSize::Half, spacing: Spacing::Staggered },
    Layout { size: FrameSize::Page, spacing: Spacing::Aligned },
    Layout { size: FrameSize::Page, spacing: Spacing::Staggered },
];

/// Runs a test for each layout of frames, on a thread in a fresh network namespace, which is gone
/// when the thread ends. Says loudly if that cannot be, and then runs nothing.
fn in_namespace(name: &str, test: impl Fn(Layout) + Copy + Send + 'static) {
    for layout in LAYOUTS {
        let thread = std::thread::spawn(move || {
            // SAFETY: no pointers; it changes this thread's view of the network only. Threat: none.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
            }
            let mut probe = Umem::new(1).unwrap();
            let opened = Socket::open(probe.area(), 1, 0, &once());
            if let Err(error @ (XskError::NotPermitted | XskError::NoAfXdp)) = opened {
                return Err(error.to_string());
            }
            if let Ok(socket) = opened {
                socket.close(&mut probe);
            }
            // No kernel that we run on refuses it.
            assert_eq!(Layout::of_copies(layout.size).spacing, Spacing::Staggered);
            test(layout);
            Ok(())
        });
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => eprintln!("SKIPPED: {name}, {layout:?}: {reason}"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let status = command.args(words).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// A veth pair `va`-`vb` with this many queues each, both up.
fn veth(queues: u32) {
    let each = format!("numrxqueues {queues} numtxqueues {queues}");
    run(&format!("ip link add va {each} type veth peer name vb {each}"));
    run("ip link set va up");
    run("ip link set vb up");
}

fn index(name: &str) -> u32 {
    let name = CString::new(name).unwrap();
    // SAFETY: a string that ends in zero. Threat: a read behind it.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Packets that a netdev of this thread's namespace has received.
fn received(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let prefix = format!("{name}:");
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&prefix)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not after 60 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn once() -> Options {
    Options { busy_retry: Duration::ZERO, ..small() }
}

fn small() -> Options {
    Options { receive_ring: 128, transmit_ring: 256, receive_frames: 100, ..Options::default() }
}

/// A frame to everybody with an experimental ethertype: 60 bytes, the number in its last four.
fn packet(umem: &mut Umem, number: u32) -> Packet {
    let frame = umem.take().unwrap();
    let bytes = &mut umem.frame_mut(frame)[256..316];
    bytes.fill(0);
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..14 + MARKER.len()].copy_from_slice(MARKER);
    bytes[56..60].copy_from_slice(&number.to_be_bytes());
    Packet { frame, offset: 256, length: 60 }
}

/// Sends `count` packets, waiting for room; every frame is accepted once.
fn send(socket: &mut Socket, umem: &mut Umem, count: u32) {
    for number in 0..count {
        let packet = packet(umem, number);
        while socket.transmit(umem, [packet].into_iter()) == 0 {
            socket.kick();
        }
    }
    wait_until("the tx ring is empty", || socket.kick() == 0);
}

fn assert_all_free(umem: &mut Umem) {
    let areas = [umem.area().clone()];
    wait_until("the kernel has let go of the queues", || xsk::release_quarantined(&areas) == 0);
    umem.reclaim();
    let census = umem.census();
    assert_eq!((census.free, census.imbalance()), (census.total, 0), "{census:?}");
}

#[test]
fn packets_arrive_at_the_peer_in_order_and_their_frames_come_back() {
    in_namespace("packets_arrive_at_the_peer", |layout| {
        veth(1);
        run("sysctl -qw net.ipv6.conf.vb.disable_ipv6=1");
        // SAFETY: no pointers; the result is checked. Threat: none.
        let tap =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0x88b5_u16.to_be().into()) };
        assert!(tap >= 0);
        // SAFETY: opened just now, nobody else's. Threat: a file of another owner is closed.
        let _close = unsafe { OwnedFd::from_raw_fd(tap) };
        let mut umem = Umem::laid_out(512, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        assert_eq!(socket.transfer(), Transfer::Copy);
        let before = received("vb");
        for number in 0..100 {
            send_one(&mut socket, &mut umem, number);
            let mut bytes = [0u8; 256];
            // SAFETY: the buffer is writable for its whole length. Threat: a write behind it.
            let length = unsafe { libc::recv(tap, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            assert_eq!(length, 60);
            assert_eq!(&bytes[14..14 + MARKER.len()], MARKER);
            assert_eq!(bytes[56..60], u32::to_be_bytes(number));
        }
        send(&mut socket, &mut umem, 5000);
        wait_until("all have arrived", || received("vb") - before >= 5100);
        wait_until("all have come back", || {
            socket.complete(&mut umem);
            socket.held().transmit == 0
        });
        assert_eq!(umem.census().free, 512);
        let statistics = socket.close(&mut umem);
        assert_eq!((statistics.own.sent, statistics.own.completed), (5100, 5100));
        assert_eq!(statistics.own.completion_invalid + statistics.own.impossible, 0);
        assert_eq!(statistics.kernel.tx_invalid_descs, 0);
        assert_all_free(&mut umem);
    });
}

fn send_one(socket: &mut Socket, umem: &mut Umem, number: u32) {
    let packet = packet(umem, number);
    assert_eq!(socket.transmit(umem, [packet].into_iter()), 1);
    assert_eq!(socket.kick(), 0);
}

#[test]
fn a_netdev_that_is_down_holds_its_packets_and_closing_frees_them() {
    in_namespace("a_netdev_that_is_down", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(1024, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        assert_eq!(socket.start(&mut umem), 100);
        run("ip link set va down");
        let packets: Vec<Packet> = (0..300).map(|n| packet(&mut umem, n)).collect();
        let accepted = socket.transmit(&mut umem, packets.iter().copied());
        assert_eq!(accepted, 256, "the ring's entries are the quota");
        packets[accepted..].iter().for_each(|packet| umem.give(packet.frame));
        assert_eq!(socket.kick(), 256);
        let own = socket.counters();
        assert_eq!((own.tx_full, own.kicks_down, own.sent), (44, 1, 256));
        let census = umem.census();
        assert_eq!((census.receive, census.transmit, census.outside), (100, 256, 0));
        assert_eq!(socket.held(), HeldFrames { receive: 100, transmit: 256 });
        assert_eq!(census.imbalance(), 0);
        // Up again: what waited leaves.
        run("ip link set va up");
        let before = received("vb");
        wait_until("the ring drains", || socket.kick() == 0);
        wait_until("they arrive", || received("vb") - before >= 256);
        run("ip link set va down");
        let again = packet(&mut umem, 0);
        assert_eq!(socket.transmit(&mut umem, [again].into_iter()), 1);
        socket.kick();
        socket.close(&mut umem);
        assert_all_free(&mut umem);
    });
}

#[test]
fn a_deleted_netdev_keeps_no_frame() {
    in_namespace("a_deleted_netdev", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(1024, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        socket.start(&mut umem);
        send(&mut socket, &mut umem, 200);
        run("ip link del va");
        let packets: Vec<Packet> = (0..10).map(|n| packet(&mut umem, n)).collect();
        assert_eq!(socket.transmit(&mut umem, packets.into_iter()), 10);
        assert_eq!(socket.kick(), 10);
        assert!(socket.counters().kicks_down > 0);
        assert_eq!(socket.receive(&mut umem, 64, |_, _| unreachable!()), 0);
        let statistics = socket.close(&mut umem);
        assert_eq!(statistics.own.sent, 210);
        assert_all_free(&mut umem);
        let gone = Socket::open(umem.area(), 4711, 0, &small());
        assert!(matches!(gone, Err(XskError::NoDevice { ifindex: 4711 })));
        assert_eq!(umem.area().sockets(), 0);
    });
}

#[test]
fn sockets_of_two_netdevs_and_two_queues_share_one_memory() {
    in_namespace("sockets_share_one_memory", |layout| {
        veth(2);
        let mut umem = Umem::laid_out(1024, layout).unwrap();
        let (a, b) = (index("va"), index("vb"));
        let mut sockets: Vec<Socket> = [(a, 0), (a, 1), (b, 0), (b, 1)]
            .iter()
            .map(|(ifindex, queue)| Socket::open(umem.area(), *ifindex, *queue, &small()).unwrap())
            .collect();
        for socket in &mut sockets {
            assert_eq!(socket.start(&mut umem), 100);
            send(socket, &mut umem, 300);
            socket.complete(&mut umem);
        }
        assert_eq!(umem.census().receive, 400);
        wait_until("both have received", || received("va") >= 600 && received("vb") >= 600);
        // The one that registered the memory goes first; the others work on, and it comes back.
        sockets.remove(0).close(&mut umem);
        assert_eq!(umem.census().receive, 300);
        sockets.iter_mut().for_each(|socket| send(socket, &mut umem, 10));
        sockets.push(Socket::open(umem.area(), a, 0, &small()).unwrap());
        send(&mut sockets[3], &mut umem, 10);
        for socket in sockets {
            socket.close(&mut umem);
        }
        assert_all_free(&mut umem);
        // All are gone: the memory is registered again.
        let mut socket = Socket::open(umem.area(), b, 1, &small()).unwrap();
        send(&mut socket, &mut umem, 10);
        socket.close(&mut umem);
        assert_all_free(&mut umem);
    });
}

#[test]
fn memory_is_registered_again_when_only_dead_netdevs_have_it() {
    in_namespace("memory_is_registered_again", |layout| {
        veth(1);
        run("ip link add vc type veth peer name vd");
        run("ip link set vc up");
        run("ip link set vd up");
        let mut umem = Umem::laid_out(1024, layout).unwrap();
        let mut dead = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        dead.start(&mut umem);
        run("ip link del va");
        let mut alive = Socket::open(umem.area(), index("vc"), 0, &small()).unwrap();
        alive.start(&mut umem);
        send(&mut alive, &mut umem, 10);
        wait_until("they arrive", || received("vd") >= 10);
        dead.close(&mut umem);
        assert_eq!(umem.census().receive, 100);
        alive.close(&mut umem);
        assert_all_free(&mut umem);
    });
}

#[test]
fn a_queue_that_another_has_is_busy_and_is_had_once_it_is_free() {
    in_namespace("a_queue_that_another_has", |layout| {
        veth(1);
        let (mut ours, mut theirs) =
            (Umem::laid_out(256, layout).unwrap(), Umem::laid_out(256, layout).unwrap());
        let a = index("va");
        let socket = Socket::open(theirs.area(), a, 0, &small()).unwrap();
        let error = Socket::open(ours.area(), a, 0, &once()).map(drop).unwrap_err();
        assert!(matches!(error, XskError::Busy { queue: 0, .. }), "{error}");
        let mine = Socket::open(theirs.area(), a, 0, &once()).map(drop).unwrap_err();
        assert!(matches!(mine, XskError::Busy { queue: 0, .. }), "twice on one memory: {mine}");
        // Freed late by the kernel: the retry bridges that, every time.
        socket.close(&mut theirs);
        for _ in 0..20 {
            let mut socket = Socket::open(ours.area(), a, 0, &small()).unwrap();
            socket.start(&mut ours);
            socket.close(&mut ours);
        }
        // Another thread opens while this one still has the queue.
        let socket = Socket::open(ours.area(), a, 0, &small()).unwrap();
        let area = Arc::clone(ours.area());
        let opener = std::thread::spawn(move || Socket::open(&area, a, 0, &small()));
        std::thread::sleep(Duration::from_millis(50));
        socket.close(&mut ours);
        opener.join().unwrap().unwrap().close(&mut ours);
        assert_all_free(&mut ours);
        assert_all_free(&mut theirs);
    });
}

#[test]
fn a_queue_that_does_not_exist_is_refused() {
    in_namespace("a_queue_that_does_not_exist", |layout| {
        veth(1);
        let umem = Umem::laid_out(16, layout).unwrap();
        let error = Socket::open(umem.area(), index("va"), 7, &small()).map(drop).unwrap_err();
        assert!(matches!(error, XskError::NoQueue { queue: 7, .. }), "{error}");
        assert_eq!(umem.area().sockets(), 0);
    });
}

#[test]
fn a_dropped_socket_gives_its_frames_back_too() {
    in_namespace("a_dropped_socket", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(128, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        assert_eq!(socket.start(&mut umem), 100);
        drop(socket);
        assert_eq!(umem.census().quarantined, 100);
        assert_eq!(umem.reclaim(), 0, "nothing proves yet that the kernel has none of them");
        assert_all_free(&mut umem);
    });
}

#[test]
fn frames_of_a_netdev_that_is_gone_come_back() {
    in_namespace("a_netdev_that_is_gone", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(128, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        assert_eq!(socket.start(&mut umem), 100);
        run("ip link delete va");
        drop(socket);
        assert_eq!((umem.reclaim(), umem.census().quarantined), (0, 100));
        assert_all_free(&mut umem);
    });
}

#[test]
fn the_next_socket_of_a_queue_has_the_frames_of_the_one_before() {
    in_namespace("the_next_socket_of_a_queue", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(100, layout).unwrap();
        for _ in 0..5 {
            let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
            assert_eq!(socket.start(&mut umem), 100, "{:?}", umem.census());
            drop(socket);
        }
        assert_all_free(&mut umem);
    });
}

#[test]
fn a_socket_asks_for_no_more_frames_than_there_are() {
    in_namespace("no_more_frames_than_there_are", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(64, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        assert_eq!(socket.start(&mut umem), 64);
        assert_eq!(umem.take(), None);
        assert_eq!(socket.start(&mut umem), 0);
        socket.close(&mut umem);
        assert_all_free(&mut umem);
    });
}

#[test]
fn packets_that_no_ring_can_carry_are_counted_and_their_frames_freed() {
    in_namespace("packets_no_ring_can_carry", |layout| {
        veth(1);
        let mut umem = Umem::laid_out(64, layout).unwrap();
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        let free = Packet { frame: 63, offset: 256, length: 60 };
        let nowhere = Packet { frame: 64, offset: 256, length: 60 };
        let mut bad = vec![free, nowhere];
        for (offset, length) in [(256, 0), (4090, 60), (u32::MAX, 60), (256, u32::MAX)] {
            bad.push(Packet { frame: umem.take().unwrap(), offset, length });
        }
        let good = packet(&mut umem, 1);
        let before = received("vb");
        let packets = bad.iter().copied().chain([good]);
        assert_eq!(socket.transmit(&mut umem, packets), 7);
        assert_eq!(socket.kick(), 0);
        wait_until("the good one arrives", || received("vb") > before);
        let statistics = socket.close(&mut umem);
        assert_eq!((statistics.own.tx_refused, statistics.own.sent), (6, 1));
        assert_eq!(statistics.kernel.tx_invalid_descs, 0);
        assert_all_free(&mut umem);
    });
}

#[test]
fn options_out_of_range_are_refused() {
    let umem = Umem::new(1).unwrap();
    for ring in [0, 1, 63, 96, 65536] {
        for options in [
            Options { receive_ring: ring, receive_frames: 0, ..small() },
            Options { transmit_ring: ring, ..small() },
        ] {
            let error = Socket::open(umem.area(), 1, 0, &options).map(drop).unwrap_err();
            assert!(error.to_string().contains(&format!("not {ring}")), "{error}");
        }
    }
    let options = Options { receive_frames: 129, ..small() };
    assert!(matches!(Socket::open(umem.area(), 1, 0, &options), Err(XskError::Option(_))));
}

#[test]
fn a_socket_works_on_its_own_memory_only() {
    in_namespace("own_memory_only", |layout| {
        veth(1);
        let (umem, mut other) =
            (Umem::laid_out(8, layout).unwrap(), Umem::laid_out(8, layout).unwrap());
        let mut socket = Socket::open(umem.area(), index("va"), 0, &small()).unwrap();
        let attempt = std::panic::AssertUnwindSafe(|| socket.start(&mut other));
        let panic = std::panic::catch_unwind(attempt).unwrap_err();
        assert!(panic.downcast_ref::<&str>().unwrap().contains("another memory"));
        assert_all_free(&mut other);
    });
}
