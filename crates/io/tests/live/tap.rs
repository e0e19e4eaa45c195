//! AF_XDP on a TAP netdev, as an emulated card has one: headers in front of frames become tags in
//! marks, queue by queue, and what is sent comes out whole.

use std::os::fd::AsFd;

use bpf::{Counter, LinkForm, Mode, ModeChoice, PortRule, Side, Steering};
use io::{Tap, TunError, XdpFrames, XdpPort};
use wire::CardHeader;
use wire::frame::{Descriptor, Frames, HEADROOM, Port};
use wire::mark::Marker;
use xsk::{FrameSize, Layout, Socket, Spacing, Umem};

use crate::place::{OURS, THEIRS, in_namespace, index, packet, run, small, wait_until};

const QUEUES: u32 = 3;
/// The longest frame that an emulated card takes.
const LONGEST: usize = 3498;

/// A TAP netdev with the program of netdev 5 in front, and a port for each of its queues.
struct Place {
    tap: Tap,
    steering: Steering,
    frames: XdpFrames,
    ports: Vec<XdpPort>,
}

impl Place {
    fn new(choice: ModeChoice) -> Place {
        let tap = Tap::open("lgtap0", QUEUES as usize).unwrap();
        tap.set_address(OURS).unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/lgtap0/disable_ipv6", "1").ok();
        run("ip link set lgtap0 mtu 3484 up");
        let mut steering = Steering::load(5, 7).unwrap();
        let (side, services, overlays) = (Side::Protected, Vec::new(), Vec::new());
        let rule = PortRule { vlan: None, side, mac: OURS, services, overlays };
        steering.set_own_addresses(&[]).unwrap();
        steering.set_ports(&[rule], LinkForm::Carded).unwrap();
        let layout = Layout { size: FrameSize::Page, spacing: Spacing::Aligned };
        let mut frames = XdpFrames::new(Umem::laid_out(1024, layout).unwrap());
        let ports = (0..QUEUES).map(|queue| {
            let socket =
                Socket::open(frames.umem().area(), index("lgtap0"), queue, &small()).unwrap();
            steering.set_queue(queue, Some(socket.as_fd())).unwrap();
            let mut port = XdpPort::new(Marker { netdev: 5, incarnation: 7 });
            port.add(&mut frames, socket);
            port
        });
        let ports = ports.collect();
        let attached = steering.attach_in(index("lgtap0"), choice).unwrap();
        assert_eq!(attached.mode == Mode::Generic, choice == ModeChoice::Generic);
        Place { tap, steering, frames, ports }
    }

    /// Hands a frame over by a queue; returns what comes by that queue's port: frame and tag.
    fn hand_over(
        &mut self,
        queue: u32,
        header: CardHeader,
        frame: &[u8],
    ) -> (Vec<u8>, Option<u64>) {
        let whole = [&header.bytes()[..], frame].concat();
        self.tap.write(queue as usize, &whole).unwrap();
        let port = &mut self.ports[queue as usize];
        let mut received = Vec::new();
        wait_until("a frame comes", || port.receive(&mut self.frames, 8, &mut received) > 0);
        assert_eq!(received.len(), 1);
        let Descriptor { frame, offset, length } = received[0].packet;
        let at = offset as usize;
        let bytes = self.frames.bytes(frame)[at..at + length as usize].to_vec();
        self.frames.give(frame);
        let mark = (received[0].hint as usize).checked_sub(1).map(|place| port.marks()[place]);
        (bytes, mark.and_then(|mark| mark.card_tag()))
    }

    /// Sends a frame by a queue's port; returns what the netdev's owner reads by that queue.
    fn send(&mut self, queue: u32, bytes: &[u8]) -> Vec<u8> {
        let frame = self.frames.take().unwrap();
        self.frames.bytes_mut(frame)[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        let (offset, length) = (HEADROOM as u32, bytes.len() as u32);
        let port = &mut self.ports[queue as usize];
        let packet = Descriptor { frame, offset, length };
        assert_eq!(port.transmit(&mut self.frames, &[packet]), 1);
        wait_until("the frame has left", || port.push(&mut self.frames) == 0);
        let mut read = vec![0; LONGEST + 1];
        let mut length = 0;
        wait_until("the frame comes out", || match self.tap.read(queue as usize, &mut read) {
            Ok(count) => {
                length = count;
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                false
            }
        });
        read.truncate(length);
        read
    }
}

/// Runs a test in both modes of XDP, where there is a TUN driver.
fn in_both_modes(name: &'static str, test: impl Fn(Place) + Copy + Send + 'static) {
    for choice in [ModeChoice::Native, ModeChoice::Generic] {
        in_namespace(name, move || match Tap::open("lgprobe", 1).map(drop) {
            Ok(()) => test(Place::new(choice)),
            Err(error @ (TunError::NoDriver | TunError::NotPermitted { .. })) => {
                eprintln!("SKIPPED: {name}: {error}");
            }
            Err(error) => panic!("{error}"),
        });
    }
}

// HA-27
#[test]
fn tags_reach_the_port_of_the_queue_by_which_an_emulated_card_hands_a_frame_over() {
    in_both_modes("tags_reach_the_port", |mut place| {
        for number in 0..30 {
            let queue = number % QUEUES;
            let mut frame = packet(queue, number);
            frame.resize([60, 61, 1514, LONGEST][number as usize % 4], number as u8);
            let tag = u64::from(number) << 32 | 77;
            let got = place.hand_over(queue, CardHeader::Rule(tag), &frame);
            assert_eq!(got, (frame.clone(), Some(tag)), "{} bytes", frame.len());
            let got = place.hand_over(queue, CardHeader::Plain, &frame);
            assert_eq!(got, (frame, None));
        }
        // Without the header, and with one that does not say what it is.
        place.tap.write(0, &packet(0, 0)).unwrap();
        place.tap.write(0, &[&[0; CardHeader::BYTES][..], &packet(0, 0)].concat()).unwrap();
        let counters = place.steering.counters().unwrap();
        assert_eq!((counters.of(Counter::NoCardHeader), counters.of(Counter::ToWorker)), (2, 60));
    });
}

#[test]
fn frames_that_a_port_sends_come_out_of_the_tap_netdev_whole() {
    in_both_modes("frames_that_a_port_sends", |mut place| {
        for number in 0..30 {
            let queue = number % QUEUES;
            let mut frame = packet(queue, number);
            frame.resize([60, 1514, LONGEST][number as usize / 10], 0);
            assert_eq!(place.send(queue, &frame), frame);
        }
        let names = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(names().contains("lgtap0:"));
        drop(place.tap);
        // A program that another test starts holds it until it has begun.
        wait_until("the netdev is gone", || !names().contains("lgtap0:"));
    });
}

#[test]
fn what_is_passed_reaches_linux_without_the_cards_header() {
    in_both_modes("what_is_passed", |place| {
        run("ip addr add 10.9.0.1/24 dev lgtap0");
        let question = [
            &[0xff; 6][..],
            &THEIRS,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &THEIRS,
            &[10, 9, 0, 2],
            &[0; 6],
            &[10, 9, 0, 1],
        ];
        let answer = [
            &THEIRS[..],
            &OURS,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &OURS,
            &[10, 9, 0, 1],
            &THEIRS,
            &[10, 9, 0, 2],
        ];
        let (question, answer) = (question.concat(), answer.concat());
        for header in [CardHeader::Plain, CardHeader::Rule(5)] {
            place.tap.write(1, &[&header.bytes()[..], &question].concat()).unwrap();
            let mut frame = [0; 128];
            wait_until("Linux answers", || {
                let read = |queue| place.tap.read(queue, &mut frame);
                let read: Vec<usize> = (0..QUEUES as usize).flat_map(read).collect();
                !read.is_empty() && frame.starts_with(&answer)
            });
        }
        let counters = place.steering.counters().unwrap();
        assert_eq!(counters.of(Counter::PassedArpNd), 2);
    });
}
