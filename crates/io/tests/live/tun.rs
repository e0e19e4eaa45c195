//! TUN ports: packets from and to the Linux stack of the namespace.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use io::{Lifetime, MemoryFrames, TunError, TunPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::frame::{Descriptor, Frames, HEADROOM, Port};

use crate::place::{in_namespace, index, run, wait_until};

/// Runs a test where there is a TUN driver.
fn with_tun(name: &'static str, test: impl FnOnce() + Send + 'static) {
    in_namespace(name, move || match TunPort::open("lgprobe", Lifetime::Process) {
        Ok(port) => {
            drop(port);
            test();
        }
        Err(error @ (TunError::NoDriver | TunError::NotPermitted { .. })) => {
            eprintln!("SKIPPED: {name}: {error}");
        }
        Err(error) => panic!("{error}"),
    });
}

/// A netdev with the address 10.9.0.1/24, up, without IPv6's own packets.
fn netdev(name: &str) -> TunPort {
    let port = TunPort::open(name, Lifetime::Process).unwrap();
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").ok();
    run(&format!("ip addr add 10.9.0.1/24 dev {name}"));
    run(&format!("ip link set {name} up"));
    port
}

fn receive_one(port: &mut TunPort, frames: &mut MemoryFrames) -> Descriptor {
    let mut packets = Vec::new();
    wait_until("a packet comes", || port.receive(frames, 64, &mut packets) > 0);
    assert_eq!(packets.len(), 1);
    packets[0].packet
}

#[test]
fn a_packet_routed_into_the_device_comes_out_and_its_answer_goes_back() {
    with_tun("a_packet_routed_into_the_device", || {
        let mut port = netdev("lgtun0");
        assert_eq!(port.name(), "lgtun0");
        let mut frames = MemoryFrames::new(8);
        let socket = UdpSocket::bind("10.9.0.1:7000").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        for number in 0..100u8 {
            socket.send_to(&[number; 33], "10.9.0.2:9").unwrap();
            let packet = receive_one(&mut port, &mut frames);
            assert_eq!((packet.offset as usize, packet.length), (HEADROOM, 20 + 8 + 33));
            // Addresses and ports swapped: the checksums stay right.
            let bytes = &mut frames.bytes_mut(packet.frame)[HEADROOM..];
            let (source, destination) = bytes[12..20].split_at_mut(4);
            source.swap_with_slice(destination);
            let (source, destination) = bytes[20..24].split_at_mut(2);
            source.swap_with_slice(destination);
            assert_eq!(port.transmit(&mut frames, &[packet]), 1);
            let mut answer = [0; 64];
            let (length, from) = socket.recv_from(&mut answer).unwrap();
            assert_eq!(
                (&answer[..length], from),
                (&[number; 33][..], "10.9.0.2:9".parse().unwrap())
            );
        }
        let statistics = port.statistics();
        assert_eq!((statistics.received, statistics.sent), (100, 100));
        assert_eq!(frames.conservation().held(), 0);
    });
}

#[test]
fn an_empty_device_gives_nothing_and_holds_no_frame() {
    with_tun("an_empty_device", || {
        let mut port = netdev("lgtun0");
        let mut frames = MemoryFrames::new(8);
        assert_eq!(port.receive(&mut frames, 64, &mut Vec::new()), 0);
        assert_eq!(frames.conservation().held(), 0);
        // With no frame free a packet waits in the netdev.
        let taken: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.send_to(b"x", "10.9.0.2:9").unwrap();
        assert_eq!(port.receive(&mut frames, 64, &mut Vec::new()), 0);
        taken.into_iter().for_each(|frame| frames.give(frame));
        receive_one(&mut port, &mut frames);
    });
}

#[test]
fn packets_longer_than_a_frame_are_dropped_and_counted() {
    with_tun("packets_longer_than_a_frame", || {
        let mut port = netdev("lgtun0");
        run("ip link set lgtun0 mtu 9000");
        let mut frames = MemoryFrames::with_frame_bytes(8, 1024);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        for length in [8000, 1024 - HEADROOM - 28, 1024 - HEADROOM - 28 - 1, 5] {
            socket.send_to(&vec![1; length], "10.9.0.2:9").unwrap();
        }
        let mut packets = Vec::new();
        wait_until("the short ones come", || {
            port.receive(&mut frames, 64, &mut packets);
            packets.len() == 2
        });
        assert_eq!(packets[0].packet.length as usize, 1024 - HEADROOM - 1);
        assert_eq!(packets[1].packet.length, 33);
        assert_eq!(port.statistics().too_long, 2);
        assert_eq!(frames.conservation().held(), 2);
    });
}

#[test]
fn what_is_no_ip_packet_is_refused_and_counted_and_the_rest_goes_on() {
    with_tun("what_is_no_ip_packet", || {
        let mut port = netdev("lgtun0");
        let mut frames = MemoryFrames::new(8);
        let nonsense = frames.store(&[0xff; 40]).unwrap();
        let mut beyond = frames.store(&[0x45; 40]).unwrap();
        beyond.length = u32::MAX;
        let packet = frames.store(&[0x45; 40]).unwrap();
        assert_eq!(port.transmit(&mut frames, &[nonsense, beyond, packet]), 3);
        let statistics = port.statistics();
        assert_eq!((statistics.refused, statistics.sent), (2, 1));
        assert_eq!(frames.conservation().held(), 0);
    });
}

#[test]
fn a_device_that_is_down_or_deleted_accepts_nothing_and_keeps_no_frame() {
    with_tun("a_device_that_is_down_or_deleted", || {
        let mut port = netdev("lgtun0");
        let mut frames = MemoryFrames::new(8);
        for change in ["ip link set lgtun0 down", "ip link del lgtun0"] {
            assert!(port.fd().is_some(), "before {change}");
            run(change);
            let packet = frames.store(&[0x45; 40]).unwrap();
            assert_eq!(port.transmit(&mut frames, &[packet]), 0, "{change}");
            frames.give(packet.frame);
            assert_eq!(port.receive(&mut frames, 64, &mut Vec::new()), 0, "{change}");
        }
        assert!(port.fd().is_none(), "nobody must sleep on what is gone");
        assert!(port.statistics().down >= 2);
        assert_eq!(frames.conservation().held(), 0);
    });
}

#[test]
fn workers_share_a_device_and_each_sleeps_on_its_own_queue() {
    with_tun("workers_share_a_device", || {
        let mut ports = [netdev("lgtun0"), TunPort::open("lgtun0", Lifetime::Process).unwrap()];
        let mut frames = MemoryFrames::new(64);
        let sockets: Vec<_> = (0..32).map(|_| UdpSocket::bind("10.9.0.1:0").unwrap()).collect();
        for socket in &sockets {
            socket.send_to(b"x", "10.9.0.2:9").unwrap();
        }
        let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
        let mut packets = Vec::new();
        while packets.len() < 32 {
            let mut waits =
                ports.each_ref().map(|port| PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN));
            assert!(poll(&mut waits, Some(&timeout)).unwrap() > 0, "{} came", packets.len());
            for port in &mut ports {
                port.receive(&mut frames, 64, &mut packets);
            }
        }
        let [first, second] = ports.each_ref().map(|port| port.statistics().received);
        assert_eq!(first + second, 32);
        assert!(first > 0 && second > 0, "flows are spread: {first} and {second}");
    });
}

#[test]
fn a_persistent_device_outlives_its_port_and_another_does_not() {
    with_tun("a_persistent_device", || {
        drop(TunPort::open("lgstay", Lifetime::Persistent).unwrap());
        drop(TunPort::open("lggo", Lifetime::Process).unwrap());
        let first = index("lgstay");
        let _port = TunPort::open("lgstay", Lifetime::Persistent).unwrap();
        assert_eq!(index("lgstay"), first);
        let names = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(names().contains("lgstay:"));
        // A process that another test begins may hold the descriptor until its exec.
        wait_until("lggo is gone", || !names().contains("lggo:"));
    });
}

#[test]
fn names_that_cannot_be_had_are_refused_with_the_reason() {
    with_tun("names_that_cannot_be_had", || {
        for name in ["", ".", "..", "a/b", "a b", "a%d", "a:1", "sixteen-bytes-it", "nul\0l"] {
            let refused = TunPort::open(name, Lifetime::Process).map(drop);
            assert!(matches!(refused, Err(TunError::Name { .. })), "{name:?}");
        }
        run("ip link add name lgveth type veth peer name lgpeer");
        run("ip tuntap add name lgone mode tun");
        run("ip tuntap add name lgtap mode tap multi_queue");
        for name in ["lo", "lgveth", "lgone", "lgtap"] {
            let refused = TunPort::open(name, Lifetime::Process).map(drop).unwrap_err();
            assert!(matches!(refused, TunError::Taken { .. }), "{name}: {refused}");
        }
    });
}
