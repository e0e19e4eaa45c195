//! Sets up the place of the tests: a network namespace of the test's thread, and packets in it.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bpf::{KernelCounters, LinkForm, PortRule, Side, Steering};
use io::{XdpFrames, XdpPort};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use wire::frame::{Descriptor, Frames, HEADROOM};
use wire::mark::Marker;
use xsk::{Area, Options, Packet, Socket, Umem};

/// A namespace that is deleted with this value; the kernel removes all that is in it.
struct Namespace(String);

impl Namespace {
    fn new() -> std::io::Result<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace(format!("lgio{}-{count}", std::process::id()));
        let output = Command::new("ip").args(["netns", "add", &namespace.0]).output()?;
        if !output.status.success() {
            return Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).to_string()));
        }
        let file = File::open(format!("/run/netns/{}", namespace.0))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Runs a test on a thread in a namespace of its own. Says loudly if that cannot be, and then
/// runs nothing.
pub(crate) fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let namespace = Namespace::new().map_err(|error| format!("no namespace: {error}"))?;
        Steering::load(0, 0).map_err(|error| format!("no XDP: {error}"))?;
        test();
        drop(namespace);
        Ok::<(), String>(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => eprintln!("SKIPPED: {name}: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub(crate) fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not after 60 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn index(name: &str) -> u32 {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, name).unwrap()
}

/// Packets that a netdev of this thread's namespace has received.
pub(crate) fn received(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let prefix = format!("{name}:");
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&prefix)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Link address of the near end of every link.
pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Link address of the far end of every link.
pub(crate) const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A veth pair: the near end `NAME0` steered to sockets, the far end `NAME1` that sends.
pub(crate) struct Link {
    name: &'static str,
    netdev: u16,
    steering: Steering,
    sender: (Umem, Vec<Socket>),
}

impl Link {
    /// Makes the pair with this many queues and attaches the program of netdev `netdev`.
    pub(crate) fn new(name: &'static str, netdev: u16, queues: u32) -> Link {
        let each = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip link add {name}0 {each} type veth peer name {name}1 {each}"));
        for end in [0, 1] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}{end}/disable_ipv6"), "1").ok();
            let address = if end == 0 { "02:00:00:00:00:01" } else { "02:00:00:00:00:02" };
            run(&format!("ip link set {name}{end} address {address} up"));
        }
        let mut steering = Steering::load(netdev, 7).unwrap();
        let side = Side::Protected;
        let port =
            PortRule { vlan: None, side, mac: OURS, services: Vec::new(), overlays: Vec::new() };
        steering.set_own_addresses(&[]).unwrap();
        steering.set_ports(&[port], LinkForm::Plain).unwrap();
        steering.attach(index(&format!("{name}0"))).unwrap();
        let umem = Umem::new(1024).unwrap();
        let sockets = (0..queues)
            .map(|queue| {
                let options = Options { receive_frames: 0, ..small() };
                Socket::open(umem.area(), index(&format!("{name}1")), queue, &options).unwrap()
            })
            .collect();
        Link { name, netdev, steering, sender: (umem, sockets) }
    }

    /// Opens a socket on a queue of the near end and steers the queue's packets to it.
    pub(crate) fn open(&self, area: &Arc<Area>, queue: u32) -> Socket {
        let ifindex = index(&format!("{}0", self.name));
        let socket = Socket::open(area, ifindex, queue, &small()).unwrap();
        self.steering.set_queue(queue, Some(socket.as_fd())).unwrap();
        socket
    }

    /// A port of these queues of the near end.
    pub(crate) fn port(&self, frames: &mut XdpFrames, queues: &[u32]) -> XdpPort {
        let mut port = XdpPort::new(Marker { netdev: self.netdev, incarnation: 0 });
        for &queue in queues {
            let socket = self.open(frames.umem().area(), queue);
            port.add(frames, socket);
        }
        port
    }

    /// Takes the queue's socket out of the program's map, as is to be done before closing it.
    pub(crate) fn forget(&self, queue: u32) {
        self.steering.set_queue(queue, None).unwrap();
    }

    /// Returns the program's counters.
    pub(crate) fn counted(&self) -> KernelCounters {
        self.steering.counters().unwrap()
    }

    /// Sends packets from the far end by one queue, with these numbers.
    pub(crate) fn send(&mut self, queue: u32, numbers: std::ops::Range<u32>) {
        let (umem, sockets) = &mut self.sender;
        let socket = &mut sockets[queue as usize];
        for number in numbers {
            let frame = umem.take().unwrap();
            let bytes = packet(queue, number);
            umem.frame_mut(frame)[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(&bytes);
            let (offset, length) = (HEADROOM as u32, bytes.len() as u32);
            let packet = Packet { frame, offset, length };
            wait_until("the sender has room", || socket.transmit(umem, [packet].into_iter()) == 1);
            socket.kick();
        }
        wait_until("the sender has sent", || socket.kick() == 0);
    }
}

/// Rings of 256 entries and 100 frames to receive into.
pub(crate) fn small() -> Options {
    Options { receive_ring: 256, transmit_ring: 256, receive_frames: 100, ..Options::default() }
}

/// An Ethernet frame for our end with an IPv4 UDP packet to somebody else, 60 bytes, that bears
/// its queue and its number.
pub(crate) fn packet(queue: u32, number: u32) -> Vec<u8> {
    let mut bytes = [&OURS[..], &THEIRS, &[8, 0]].concat();
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1]);
    bytes.extend([0, 9, 0, 9, 0, 26, 0, 0]);
    bytes.extend(queue.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.resize(60, 0x5a);
    bytes
}

/// Queue and number that a received packet bears, checked against what was sent.
pub(crate) fn numbers(frames: &XdpFrames, packet: Descriptor) -> (u32, u32) {
    let start = packet.offset as usize;
    let bytes = &frames.bytes(packet.frame)[start..start + packet.length as usize];
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (queue, number) = (word(42), word(46));
    assert_eq!(bytes, self::packet(queue, number));
    (queue, number)
}

pub(crate) fn give_all(frames: &mut XdpFrames, packets: &mut Vec<Descriptor>) {
    packets.drain(..).for_each(|packet| frames.give(packet.frame));
}
