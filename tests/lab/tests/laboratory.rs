//! The laboratory itself, without Lockgate: traffic crosses, the capture sees it in clear, and
//! nothing is left behind. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use io::CaptureReader;
use netlab::capture::{Capture, Scope, Tally, marked};
use netlab::inject::inject;
use netlab::ping::{Fragments, Ping};
use netlab::sites::{BRIDGE, HOST_INTERFACE, Plan, Shape, Sites};
use netlab::stream::Stream;
use netlab::{LabError, iperf};

/// Builds, or says loudly why not.
fn build(test: &str, plan: Plan) -> Option<Sites> {
    match Sites::build(plan) {
        Ok(sites) => Some(sites),
        Err(error @ (LabError::NotRoot | LabError::Missing(_))) => {
            println!("SKIPPED: {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn without_lockgate_pings_cross_and_are_seen_in_clear() {
    let Some(sites) = build("without_lockgate", Plan::default()) else { return };
    let [a, b] = [sites.site(1), sites.site(2)];
    let directory = sites.laboratory.directory();
    let capture = Capture::start(&sites.wire, BRIDGE, Scope::Whole, (directory, "clear")).unwrap();
    for to in [b.host_v4(), b.host_v6()] {
        let answers = Ping::new(&to, 20).run(&a.host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
        assert_eq!(answers.times_us.len(), 20);
    }
    let file = capture.stop().unwrap();
    let tally = Tally::of(&file).unwrap();
    assert_eq!((tally.clear, tally.esp, tally.repeated), (80, 0, 0), "{tally:?}");
    assert!(tally.resolution > 0, "{tally:?}");

    // The same frames again, at the other end.
    let mut frames = Vec::new();
    let mut reader = CaptureReader::open(&file).unwrap();
    while let Some(packet) = reader.peek().unwrap() {
        frames.push(packet.bytes.to_vec());
        reader.skip();
    }
    let capture =
        Capture::start(&b.host, HOST_INTERFACE, Scope::Whole, (directory, "again")).unwrap();
    let sent = inject(&sites.wire, BRIDGE, &frames).unwrap();
    assert_eq!(sent, frames.len());
    // 40 requests to the host, and its 40 answers.
    assert_eq!(marked(&capture.stop().unwrap()).unwrap(), 80);
    assert!(matches!(inject(&sites.wire, "nowhere", &frames), Err(LabError::NoInterface { .. })));
}

#[test]
fn a_stream_knows_its_losses_and_iperf_its_rates() {
    let Some(sites) = build("a_stream", Plan::default()) else { return };
    let [a, b] = [sites.site(1), sites.site(2)];
    let ends = (address(&a.host_v4()), address(&b.host_v4()));
    let stream =
        Stream::start((&a.host, ends.0), (&b.host, ends.1), 64, Duration::from_millis(1)).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    a.gateway.ip("link set wan down").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    a.gateway.ip("link set wan up\nroute replace 10.2.0.0/16 via 192.0.2.2").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let delivery = stream.finish();
    let (sent, lost) = (delivery.sent.len(), delivery.lost());
    assert!(sent > lost && lost > 0, "{lost} of {sent} lost");
    assert_eq!(delivery.repeated(), 0);

    let server = iperf::Server::start(&b.host).unwrap();
    let gigabits = iperf::tcp(&a.host, &b.host_v4(), 1).unwrap();
    assert!(gigabits > 0.0, "{gigabits} Gbit/s");
    let udp = iperf::udp(&a.host, &b.host_v4(), 1, (1200, 5000)).unwrap();
    // The rate is 5000; a busy machine sends less.
    assert!(udp.sent_pps > 0.0 && udp.sent_pps <= 6000.0, "{udp:?}");
    drop(server);
}

#[test]
fn a_packet_that_is_too_big_is_told_its_mtu() {
    let Some(sites) = build("too_big", Plan::default()) else { return };
    let [a, b] = [sites.site(1), sites.site(2)];
    a.gateway.ip("link set wan mtu 1400").unwrap();
    for to in [b.host_v4(), b.host_v6()] {
        let ping = Ping { size: 1420, fragments: Fragments::Forbidden, ..Ping::new(&to, 2) };
        let answers = ping.run(&a.host).unwrap();
        assert_eq!((answers.received, answers.mtu), (0, Some(1400)), "{}", answers.text);
    }
}

#[test]
fn nothing_is_left_of_a_laboratory_also_after_a_panic() {
    let plan = Plan { sites: 3, queues: 2, shape: Shape::Hub };
    let Some(sites) = build("nothing_is_left", plan) else { return };
    let to = sites.site(3).host_v4();
    let answers = Ping::new(&to, 2).run_until_answered(&sites.site(2).host).unwrap();
    assert!(answers.all_answered(), "{}", answers.text);
    let names: Vec<String> = sites.all().iter().map(|site| site.host.name().into()).collect();
    let directory = sites.laboratory.directory().to_owned();
    let sleeper = sites.site(1).host.start(&["sleep", "60"]).unwrap();
    let pid = sleeper.pid();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _alive = (sites, sleeper);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    for name in names {
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name}");
    }
    assert!(!directory.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn what_a_killed_run_has_left_is_swept() {
    let Some(sites) = build("swept", Plan::default()) else { return };
    // No process has this id: it is beyond the kernel's largest.
    let left = format!("lg{}-0-left", 1 << 23);
    let add = std::process::Command::new("ip").args(["netns", "add", &left]).status();
    assert!(add.unwrap().success());
    let directory = std::env::temp_dir().join(&left);
    std::fs::create_dir(&directory).unwrap();
    let again = Sites::build(Plan::default()).unwrap();
    assert!(!directory.exists());
    assert!(!Path::new("/run/netns").join(&left).exists());
    let alive = Path::new("/run/netns").join(sites.wire.name());
    assert!(alive.exists(), "the laboratory of a living run was swept");
    drop(again);
    let wan: Ipv4Addr = sites.site(1).wan_v4().parse().unwrap();
    assert_eq!(wan, Ipv4Addr::new(192, 0, 2, 1));
}
