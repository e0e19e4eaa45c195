//! The crash hunt: SIGKILL at random moments under load. No sequence number is ever used twice
//! under one key, and nothing captured before is delivered again. `NET_SEED` repeats a run.

use std::net::Ipv4Addr;
use std::time::Duration;

use net::{Random, running};
use netlab::capture::{Capture, Scope, Tally, esp_frames_to, marked};
use netlab::inject::inject;
use netlab::sites::{HOST_INTERFACE, Plan};
use netlab::stream::Stream;

/// Kills in `make test`, and in `make test-long PART=crash`.
const KILLS: (u32, u32) = (8, 50);
/// Packets a second in each direction: 1 every so often.
const LOAD: Duration = Duration::from_micros(300);
/// Time from a restart to the next packet: the next kill may come first, and others after it.
/// Longer is never.
const EVENTUALLY: Duration = net::AGAIN;
/// Frames sent again after each restart.
const AGAIN_FRAMES: usize = 100;

#[test]
fn kills_under_load_use_no_number_twice_and_let_no_replay_in() {
    let Some(mut lab) = running("kills_under_load", Plan::default()) else { return };
    let kills = if std::env::var_os("LOCKGATE_LONG").is_some() { KILLS.1 } else { KILLS.0 };
    let gateways = &mut lab.gateways;
    let mut random = Random::from_environment();
    let capture = gateways.capture(Scope::Whole).unwrap();
    let stream = gateways.stream(1, 2, LOAD).unwrap();
    assert!(stream.wait_for_arrivals(1500, net::AGAIN).unwrap());
    let file = capture.stop().unwrap();
    let early = stream.finish();
    assert_eq!(early.repeated(), 0);
    let mut tally = Tally::of(&file).unwrap();
    let frames = esp_frames_to(&file, Ipv4Addr::new(192, 0, 2, 2)).unwrap();
    assert!(frames.len() >= 1000, "{} frames", frames.len());

    let capture = gateways.capture(Scope::Heads).unwrap();
    let streams = [(1, 2), (2, 1)].map(|(from, to)| gateways.stream(from, to, LOAD).unwrap());
    let mut restarts = Vec::new();
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(20 + random.below(500)));
        let victim = 1 + random.below(2) as u8;
        gateways.kill(victim);
        std::thread::sleep(Duration::from_millis(random.below(100)));
        restarts.push(gateways.start(victim).unwrap());
        // Old frames, at once: by the bridge's port, so that the capture does not see them twice.
        let start = kill as usize * AGAIN_FRAMES % (frames.len() - AGAIN_FRAMES);
        let port = gateways.site(2).wire_port();
        inject(&gateways.sites.wire, &port, &frames[start..start + AGAIN_FRAMES]).unwrap();
    }
    net::wait_for_pings(gateways).unwrap();
    let streams = streams.map(Stream::finish);
    tally.add(&capture.stop().unwrap()).unwrap();
    assert_eq!(tally.clear, 0, "leaked: {:?}", tally.clear_examples);
    assert_eq!(tally.repeated, 0, "sealed twice: {:x?}", tally.repeated_examples);
    assert!(tally.esp > 200 * u64::from(kills), "hardly any load: {}", tally.esp);
    let known: std::collections::HashSet<u64> =
        streams[0].sent.iter().map(|&(number, _)| number).collect();
    for stream in &streams {
        assert_eq!(stream.repeated(), 0, "delivered twice");
        for started in &restarts {
            let first = stream.first_after(*started);
            assert!(first.is_some_and(|time| time <= EVENTUALLY), "after a restart: {first:?}");
        }
    }
    assert!(streams[0].arrived.iter().all(|(number, _)| known.contains(number)));
    println!("{kills} kills, {} ESP packets, {} SPIs", tally.esp, tally.spis().len());
    lab.flows_again();
    lab.balances();
}

#[test]
fn a_thousand_captured_packets_are_refused_after_a_restart_and_counted() {
    const REPLAYED: usize = 1000;
    let Some(mut lab) = running("replayed", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let capture = gateways.capture(Scope::Whole).unwrap();
    let stream = gateways.stream(1, 2, LOAD).unwrap();
    assert!(stream.wait_for_arrivals(REPLAYED + 100, net::AGAIN).unwrap());
    let file = capture.stop().unwrap();
    drop(stream);
    let frames = esp_frames_to(&file, Ipv4Addr::new(192, 0, 2, 2)).unwrap();
    let frames = &frames[frames.len() - REPLAYED..];
    gateways.kill(2);
    gateways.start(2).unwrap();
    let before = gateways.daemon(2).unwrap().counters().unwrap();
    let site = gateways.site(2);
    let place = (gateways.directory(), "host");
    let at_host = Capture::start(&site.host, HOST_INTERFACE, Scope::Whole, place).unwrap();
    let sent = inject(&gateways.sites.wire, &site.wire_port(), frames).unwrap();
    assert_eq!(marked(&at_host.stop().unwrap()).unwrap(), 0, "delivered again");
    let after = gateways.daemon(2).unwrap().counters().unwrap();
    let refused = |counters: &netlab::daemon::Counters| {
        counters.dropped("replayed") + counters.dropped("replay_too_old")
    };
    assert_eq!(refused(&after) - refused(&before), sent as u64, "{:?}", after.drops);
    lab.flows_again();
    lab.balances();
}
