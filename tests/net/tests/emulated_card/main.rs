//! The emulated card as a process, without a daemon: frames both ways, tags in front of them, what
//! a host is told, and what happens to cards. `sas`: the same of SAs.

mod sas;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bpf::{Counter, LinkForm, ModeChoice, PortRule, Side, Steering};
use card_link::{Found, Lines, Report, Request, decode_report, encode};
use io::{XdpFrames, XdpPort};
use net::AGAIN;
use netlab::laboratory::connect;
use netlab::{CardPlan, EmulatedCard, LabError, Laboratory, Listener, Namespace, inject};
use offload::{
    CardEvent, CardRule, Effect, Handle, Incarnation, Pattern, RefusalKind, Segments, Span, Tag,
    UpperPattern,
};
use wire::CardHeader;
use wire::build::PacketBuilder;
use wire::frame::{Frames, Port};
use wire::mark::Marker;
use xsk::{Options, Socket, Umem};

/// The host's netdev, the wire, and its other end.
const TAP: &str = "c0";
const WIRE: &str = "w0";
const FAR: &str = "p0";
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 7, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 7, 2];
/// Bytes of the longest frame that the card takes.
const LONGEST: usize = 3498;
/// UDP port that the rules of these tests are for.
const RULED: u16 = 53;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A card between a host's netdev and a wire; all quiet but for what a test sends.
struct Place {
    card: EmulatedCard,
    host: Namespace,
    far: Namespace,
    lab: Laboratory,
    _alone: MutexGuard<'static, ()>,
}

/// A place; `None` (said aloud): something that it needs is missing.
fn place(test: &str, plan: CardPlan<'_>) -> Option<Place> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
    let build = || {
        let lab = Laboratory::new()?;
        let (host, far) = (lab.namespace("host")?, lab.namespace("far")?);
        for namespace in [&host, &far] {
            namespace.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        connect((&host, WIRE), (&far, FAR), 1)?;
        far.offload_off(FAR)?;
        host.ip(&format!("link set {WIRE} mtu 9000 up"))?;
        far.ip(&format!("link set {FAR} mtu 9000 up"))?;
        let card = EmulatedCard::start(&host, &plan, (lab.directory(), "card"))?;
        host.ip(&format!("link set {TAP} mtu 3484 up"))?;
        Ok(Place { card, host, far, lab, _alone: alone })
    };
    match build() {
        Ok(place) => Some(place),
        Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
            println!("SKIPPED: {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn plan<'a>() -> CardPlan<'a> {
    CardPlan { mac: "02:00:00:00:07:01", card: "emulated:rules=8,ms=1", ..CardPlan::new(TAP, WIRE) }
}

/// UDP from a port to a port, so many bytes in all.
fn frame(from: u16, to: u16, length: usize) -> Vec<u8> {
    let packet = PacketBuilder::v4("10.7.0.2", "10.7.0.1").udp(from, to);
    let frame = packet.payload_of(length - 42).frame(HOST_MAC, FAR_MAC, None);
    assert_eq!(frame.len(), length);
    frame
}

/// A rule for UDP to [`RULED`], or for everything.
fn rule(to: Option<u16>) -> Arc<CardRule> {
    let any = Span { first: [0; 4].into(), last: [255; 4].into() };
    let upper = to.map_or(UpperPattern::Any, |port| UpperPattern::Ports {
        protocol: 17,
        source: (0, u16::MAX),
        destination: (port, port),
        segments: Segments::All,
    });
    let patterns = [Pattern { source: any, destination: any, upper }].into();
    Arc::new(CardRule { ports: Arc::new([5]), rank: 1, effect: Effect::Mark, patterns })
}

fn tag(number: u32) -> Tag {
    Tag { handle: Handle::new(number).unwrap(), incarnation: Incarnation(3) }
}

/// A host's end of the connection.
struct Host {
    stream: UnixStream,
    lines: Lines,
    looks: u64,
}

impl Host {
    /// Connects and begins.
    fn begin(card: &EmulatedCard) -> Host {
        let stream = UnixStream::connect(card.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut host = Host { stream, lines: Lines::of_reports(), looks: 0 };
        host.ask(&Request::Begin {});
        assert!(matches!(host.report(), Report::Begun { card } if card.starts_with("emulated:")));
        host
    }

    fn ask(&mut self, request: &Request) {
        self.stream.write_all(&encode(request)).unwrap();
    }

    /// The next report; `None`: the card has closed the connection.
    fn next(&mut self) -> Option<Report> {
        let end = Instant::now() + AGAIN;
        let mut piece = [0; 4096];
        loop {
            if let Some(line) = self.lines.take().unwrap() {
                return Some(decode_report(line).unwrap());
            }
            match (&self.stream).read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => self.lines.extend(&piece[..count]),
                Err(error) => assert!(Instant::now() < end, "no report: {error}"),
            }
        }
    }

    fn report(&mut self) -> Report {
        self.next().expect("the card has closed the connection")
    }

    /// The next report, which is an event.
    fn event(&mut self) -> CardEvent {
        match self.report() {
            Report::Event(event) => event,
            other => panic!("{other:?}"),
        }
    }

    /// Places a rule and waits until it is in the card.
    fn place(&mut self, tag: Tag, rule: Arc<CardRule>) {
        self.ask(&Request::Place { tag, rule });
        assert_eq!(self.event(), CardEvent::Live(tag));
    }

    /// Looks at the card; nothing is told before it answers.
    fn look(&mut self) -> Found {
        self.looks += 1;
        self.ask(&Request::Look { number: self.looks });
        match self.report() {
            Report::Found(found) if found.number == self.looks => found,
            other => panic!("{other:?}"),
        }
    }

    /// Handles of what is in the card.
    fn handles(&mut self) -> Vec<u32> {
        self.look().items.iter().map(|item| item.handle.get()).collect()
    }
}

impl Place {
    /// Sends frames from the wire's far end, and returns what the host's netdev brings of each.
    fn bring_in(&self, frames: &[Vec<u8>]) -> Vec<(CardHeader, Vec<u8>)> {
        self.bring_some_in(frames, frames.len())
    }

    /// Likewise, of frames of which the card drops all but so many.
    fn bring_some_in(&self, frames: &[Vec<u8>], some: usize) -> Vec<(CardHeader, Vec<u8>)> {
        let listener = Listener::open(&self.host, TAP).unwrap();
        inject::inject(&self.far, FAR, frames).unwrap();
        let got = listener.wait(some, AGAIN, |_| true).unwrap();
        let split = |frame: Vec<u8>| {
            let (header, frame) = frame.split_first_chunk().unwrap();
            (CardHeader::read(header).unwrap(), frame.to_vec())
        };
        got.into_iter().map(split).collect()
    }

    /// The number at a place in the card's counts.
    fn count(&self, pointer: &str) -> u64 {
        let counts = self.card.tell("counts").unwrap();
        counts.pointer(pointer).and_then(|count| count.as_u64()).unwrap()
    }

    fn has_netdev(&self, name: &str) -> bool {
        self.host.ip_json(&["link", "show"]).unwrap().as_array().unwrap().iter().any(|netdev| {
            // A netdev whose peer is elsewhere is listed as NAME@….
            netdev["ifname"].as_str() == Some(name)
        })
    }
}

#[test]
fn frames_pass_both_ways_with_the_cards_header_in_front_towards_the_host_alone() {
    let Some(place) = place("frames pass both ways", plan()) else { return };
    let frames: Vec<Vec<u8>> = [60, 61, 1514, LONGEST].map(|length| frame(9, RULED, length)).into();
    let plain: Vec<_> = frames.iter().map(|frame| (CardHeader::Plain, frame.clone())).collect();
    assert_eq!(place.bring_in(&frames), plain);

    let mut host = Host::begin(&place.card);
    host.place(tag(7), rule(Some(RULED)));
    let other = frame(9, RULED + 1, 100);
    let both = [frames.clone(), vec![other.clone()]].concat();
    let mut tagged: Vec<_> =
        frames.iter().map(|frame| (CardHeader::Rule(tag(7).to_bits()), frame.clone())).collect();
    tagged.push((CardHeader::Plain, other));
    assert_eq!(place.bring_in(&both), tagged);
    let found = host.look();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!((found.items.len(), found.items[0].handle.get()), (1, 7));
    assert_eq!((found.items[0].packets, found.items[0].bytes), (4, bytes as u64));

    let ear = Listener::open(&place.far, FAR).unwrap();
    inject::inject(&place.host, TAP, &frames).unwrap();
    assert_eq!(ear.wait(frames.len(), AGAIN, |_| true).unwrap(), frames);

    // What is longer is dropped and counted.
    inject::inject(&place.far, FAR, &[frame(9, RULED, LONGEST + 1), frame(9, 1, 9014)]).unwrap();
    assert_eq!(place.bring_in(&frames[..1]).len(), 1);
    assert_eq!(place.count("/too_long"), 2);

    let seen = place.card.seen().unwrap();
    let to_host: Vec<_> = seen.iter().filter(|frame| frame.to_host).collect();
    assert_eq!((to_host.len(), seen.len() - to_host.len()), (4 + 5 + 1, 4));
    let tags = to_host.iter().filter(|frame| frame.tag == Some((7, 3))).count();
    assert_eq!(tags, 4 + 1);
    assert_eq!(to_host[3].bytes, frames[3]);
}

// HA-27
#[test]
fn a_flow_keeps_its_queue_of_the_host_whether_tagged_or_not() {
    let Some(place) = place("queues of flows", plan()) else { return };
    let frames: Vec<Vec<u8>> = (1..=200).map(|port| frame(port, RULED, 80)).collect();
    assert_eq!(place.bring_in(&frames).len(), 200);
    let mut host = Host::begin(&place.card);
    host.place(tag(1), rule(None));
    let tagged = place.bring_in(&frames);
    assert!(tagged.iter().all(|(header, _)| header.tag() == Some(tag(1).to_bits())));
    for queue in 0..4 {
        let of = |kind: &str| place.count(&format!("/queues/{queue}/{kind}"));
        assert_eq!(of("plain"), of("tagged"), "queue {queue}");
        assert!(of("plain") > 20, "queue {queue}: {}", of("plain"));
    }
}

#[test]
fn a_card_keeps_its_rules_while_no_host_is_there_and_forgets_them_for_the_next() {
    let Some(place) = place("hosts come and go", plan()) else { return };
    let mut first = Host::begin(&place.card);
    first.place(tag(1), rule(None));
    drop(first);
    let ruled = frame(9, RULED, 80);
    let header = || place.bring_in(std::slice::from_ref(&ruled))[0].0;
    assert_eq!(header(), CardHeader::Rule(tag(1).to_bits()));
    let mut second = Host::begin(&place.card);
    assert_eq!((second.handles(), header()), (vec![], CardHeader::Plain));
    second.place(tag(1), rule(None));
    // A third takes the card over: the second is closed.
    let mut third = Host::begin(&place.card);
    assert_eq!(second.next(), None);
    assert_eq!((third.handles(), header()), (vec![], CardHeader::Plain));
    // Who does not begin is nobody's host, and one that says nonsense is closed.
    let mut rude = UnixStream::connect(place.card.socket()).unwrap();
    rude.write_all(b"{\"look\":{\"number\":1}}\n").unwrap();
    assert_eq!(rude.read(&mut [0; 9]).unwrap(), 0);
    third.stream.write_all(b"{\"place\":5}\n").unwrap();
    assert_eq!(third.next(), None);
}

#[test]
fn a_host_is_told_of_what_happens_to_its_card_or_finds_it_out() {
    let Some(place) = place("what happens to cards", plan()) else { return };
    let mut host = Host::begin(&place.card);
    let tell = |words: &str| place.card.tell(words).unwrap();
    host.place(tag(1), rule(None));
    host.place(tag(2), rule(Some(RULED)));
    assert_eq!(host.handles(), [1, 2]);
    assert_eq!(tell("tags")["tags"].as_array().unwrap().len(), 2);
    tell("forget 1 silent");
    assert_eq!(host.handles(), [2]);
    tell("forget 2 told");
    assert_eq!(host.event(), CardEvent::Withdrawn(tag(2)));
    host.place(tag(3), rule(None));
    tell("reset silent");
    assert_eq!(host.handles(), [0; 0]);
    tell("reset told");
    assert_eq!(host.event(), CardEvent::Reset);
    tell("reload emulated:rules=1,ms=2,order=none");
    assert_eq!(host.event(), CardEvent::Reloaded);
    assert_eq!(host.look().card, "emulated:rules=1,ms=2,order=none");
    // It has one port, which has the number of the host's first rule.
    let mut elsewhere = CardRule::clone(&rule(None));
    elsewhere.ports = Arc::new([6]);
    host.ask(&Request::Place { tag: tag(4), rule: Arc::new(elsewhere) });
    let refused = |event: CardEvent| match event {
        CardEvent::Refused(tag, refusal) => (tag.handle.get(), refusal.kind),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(host.event()), (4, RefusalKind::Unsupported));
    host.place(tag(5), rule(None));
    host.ask(&Request::Place { tag: tag(6), rule: rule(Some(RULED)) });
    assert_eq!(refused(host.event()), (6, RefusalKind::Full));
    host.ask(&Request::Withdraw { tag: tag(5) });
    assert_eq!(host.event(), CardEvent::Withdrawn(tag(5)));
    tell("faults refuse=1000");
    host.ask(&Request::Place { tag: tag(7), rule: rule(None) });
    assert_eq!(refused(host.event()), (7, RefusalKind::Failed));
    tell("faults garbage=1000");
    let (header, bytes) = place.bring_in(&[frame(9, 9, 80)]).remove(0);
    assert!(header.tag().is_some_and(|mark| mark != 0), "{header:?}");
    assert_eq!(bytes, frame(9, 9, 80));
    assert!(place.card.tell("forget 99 told").is_err());
    assert!(place.card.tell("reload acl-2000").is_err());
}

#[test]
fn nothing_passes_while_the_link_is_down_and_the_netdev_goes_with_the_card() {
    let Some(place) = place("links down, cards out", plan()) else { return };
    let mut host = Host::begin(&place.card);
    host.place(tag(1), rule(None));
    let one = [frame(9, 9, 80)];
    place.card.tell("link down").unwrap();
    assert_eq!((host.event(), host.handles()), (CardEvent::Down, vec![]));
    let netdev = place.host.ip_json(&["link", "show", TAP]).unwrap();
    assert!(netdev[0]["flags"].as_array().unwrap().contains(&"NO-CARRIER".into()), "{netdev}");
    inject::inject(&place.far, FAR, &one).unwrap();
    let end = Instant::now() + AGAIN;
    while place.count("/not_up") == 0 {
        assert!(Instant::now() < end, "the frame did not reach the card");
    }
    // A host that begins now is told at once.
    let mut host = Host::begin(&place.card);
    assert_eq!(host.event(), CardEvent::Down);
    place.card.tell("link up").unwrap();
    assert_eq!(host.event(), CardEvent::Up);
    assert_eq!(place.bring_in(&one), [(CardHeader::Plain, one[0].clone())]);

    assert!(place.has_netdev(TAP));
    place.card.tell("unplug").unwrap();
    assert_eq!(host.event(), CardEvent::Unplugged);
    assert!(!place.has_netdev(TAP));
    assert!(place.card.tell("link up").is_err());
    let said = place.card.end().unwrap().success().unwrap();
    assert!(said.lines().all(|line| line.contains("emulated")), "{said}");
    let left = std::fs::read_dir(place.lab.directory()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["card.pcapng"], "sockets are left");
}

/// The steering program in front of the host's netdev, and an AF_XDP port for each queue.
struct Sockets {
    steering: Steering,
    frames: XdpFrames,
    ports: Vec<XdpPort>,
}

impl Sockets {
    /// Opens them in the namespace of the calling thread.
    fn open(ifindex: u32, queues: u32, choice: ModeChoice) -> Sockets {
        let mut steering = Steering::load(5, 7).unwrap();
        let (side, services, overlays) = (Side::Protected, Vec::new(), Vec::new());
        let rule = PortRule { vlan: None, side, mac: HOST_MAC, services, overlays };
        steering.set_own_addresses(&[]).unwrap();
        steering.set_ports(&[rule], LinkForm::Carded).unwrap();
        let mut frames = XdpFrames::new(Umem::new(1024).unwrap());
        let options = Options { receive_frames: 100, ..Options::default() };
        let port = |queue| {
            let socket = Socket::open(frames.umem().area(), ifindex, queue, &options).unwrap();
            steering.set_queue(queue, Some(socket.as_fd())).unwrap();
            let mut port = XdpPort::new(Marker { netdev: 5, incarnation: 7 });
            port.add(&mut frames, socket);
            port
        };
        let ports = (0..queues).map(port).collect();
        steering.attach_in(ifindex, choice).unwrap();
        Sockets { steering, frames, ports }
    }

    /// Receives a number of frames: the queue, the tag and the bytes of each.
    fn receive(&mut self, count: usize) -> Vec<(usize, Option<u64>, Vec<u8>)> {
        let (end, mut all) = (Instant::now() + AGAIN, Vec::new());
        while all.len() < count {
            assert!(Instant::now() < end, "{} of {count} frames", all.len());
            for (queue, port) in self.ports.iter_mut().enumerate() {
                let mut received = Vec::new();
                port.receive(&mut self.frames, 64, &mut received);
                for one in received {
                    let (at, length) = (one.packet.offset as usize, one.packet.length as usize);
                    let bytes = self.frames.bytes(one.packet.frame)[at..at + length].to_vec();
                    self.frames.give(one.packet.frame);
                    let mark = (one.hint as usize).checked_sub(1).map(|hint| port.marks()[hint]);
                    all.push((queue, mark.and_then(|mark| mark.card_tag()), bytes));
                }
            }
        }
        all
    }
}

// HA-27
#[test]
fn the_cards_tags_are_in_the_marks_of_af_xdp_on_the_queues_that_it_chose() {
    for choice in [ModeChoice::Native, ModeChoice::Generic] {
        let Some(place) = place("tags in marks", plan()) else { return };
        let mut host = Host::begin(&place.card);
        host.place(tag(7), rule(Some(RULED)));
        let ports = |port| [RULED, RULED + 1].map(|to| frame(port, to, 90));
        let sent: Vec<Vec<u8>> = (1..=40).flat_map(ports).collect();
        let netdev = place.host.ip_json(&["link", "show", TAP]).unwrap();
        let ifindex = netdev[0]["ifindex"].as_u64().unwrap() as u32;
        let (received, counters) = place
            .host
            .enter(|| {
                let mut sockets = Sockets::open(ifindex, 4, choice);
                inject::inject(&place.far, FAR, &sent).unwrap();
                (sockets.receive(sent.len()), sockets.steering.counters().unwrap())
            })
            .unwrap();
        assert_eq!(counters.of(Counter::ToWorker), sent.len() as u64);
        assert_eq!(counters.of(Counter::NoCardHeader), 0);
        for frame in &sent {
            let (_, got, _) = received.iter().find(|(_, _, bytes)| bytes == frame).unwrap();
            let is_ruled = frame[36..38] == RULED.to_be_bytes();
            assert_eq!(*got, is_ruled.then(|| tag(7).to_bits()), "{choice:?}");
        }
        for queue in 0..4 {
            let of = |kind: &str| place.count(&format!("/queues/{queue}/{kind}"));
            let here = received.iter().filter(|(by, _, _)| *by == queue).count() as u64;
            assert_eq!(here, of("plain") + of("tagged"), "queue {queue}");
        }
    }
}
