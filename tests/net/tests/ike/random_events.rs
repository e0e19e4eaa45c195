//! Random events of two gateways with charons, under streams of both ways: no tunnel stays dead,
//! nothing leaves in clear, and no number is sealed twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use net::{AGAIN, Random, lab, wait_for_pings};
use netlab::sites::Plan;
use netlab::stream::Stream;
use netlab::{ChildPlan, Scope, Tally};

use super::{Place, Wish};

/// Number of events, unless `NET_EVENTS` says otherwise.
const EVENTS: u64 = 300;
/// Number of events between two looks at the tunnel.
const EVENTS_PER_LOOK: u64 = 20;
/// Time between two packets of a stream.
const STEP: Duration = Duration::from_millis(5);

/// A disturbance of a gateway.
#[derive(Clone, Copy, Debug)]
enum Event {
    KillDaemon,
    RestartDaemon,
    RestartCharon,
    RekeyChild,
    RekeyChildAtBoth,
    RekeyIke,
    EndChild,
    EndIke,
    DeleteSa,
    ApplyLifetime,
    ApplyPriority,
}

const ALL: [Event; 11] = [
    Event::KillDaemon,
    Event::RestartDaemon,
    Event::RestartCharon,
    Event::RekeyChild,
    Event::RekeyChildAtBoth,
    Event::RekeyIke,
    Event::EndChild,
    Event::EndIke,
    Event::DeleteSa,
    Event::ApplyLifetime,
    Event::ApplyPriority,
];

/// Runs `swanctl`. A refusal is no failure: charon refuses while busy or starting.
fn ask_charon(place: &Place, number: u8, words: &[&str]) {
    let gateway = &place.lab.gateways.site(number).gateway;
    let _ = place.charon(number).swanctl(gateway, words);
}

/// Has an event happen at gateway `number`; `draw` chooses a value of the event.
fn happen(place: &mut Place, event: Event, number: u8, draw: u64) {
    match event {
        Event::KillDaemon => {
            place.lab.gateways.kill(number);
            place.lab.gateways.start(number).unwrap();
        }
        Event::RestartDaemon => {
            let daemon = place.lab.gateways.take(number).expect("a daemon that runs");
            daemon.terminate().unwrap();
            place.lab.gateways.start(number).unwrap();
        }
        Event::RestartCharon => {
            place.charons[usize::from(number - 1)].as_mut().expect("it runs").kill();
            place.start_charon(number).unwrap();
        }
        Event::RekeyChild => ask_charon(place, number, &["--rekey", "--child", "net"]),
        Event::RekeyChildAtBoth => {
            for number in [1, 2] {
                ask_charon(place, number, &["--rekey", "--child", "net"]);
            }
        }
        Event::RekeyIke => ask_charon(place, number, &["--rekey", "--ike", "gw"]),
        Event::EndChild => ask_charon(place, number, &["--terminate", "--child", "net"]),
        Event::EndIke => {
            ask_charon(place, number, &["--terminate", "--ike", "gw", "--timeout", "2"]);
        }
        Event::DeleteSa => {
            let sas = place.sas(number);
            if let Some(sa) = sas.get(draw as usize % sas.len().max(1)) {
                let spi = sa["spi"].as_str().unwrap_or_default();
                // Charon may have deleted the SA meanwhile.
                let _ = place.lab.gateways.daemon(number).unwrap().ask(&["sa", "del", spi]);
            }
        }
        Event::ApplyLifetime => {
            let seconds = 600 + draw % 600;
            let shown = place.ask(number, &["show", "peer"]);
            let peer = shown["peers"][0]["name"].as_str().expect("a peer").to_owned();
            change_file(place, number, |text| {
                format!("{text}\n[peer.{peer}.lifetime]\nhard_seconds = {seconds}\n")
            });
        }
        Event::ApplyPriority => {
            let priority = 100 + draw % 50;
            let line = format!("priority = {priority}");
            change_file(place, number, |text| text.replace("priority = 100", &line));
        }
    }
}

/// Applies a changed text of a gateway's file. A later start reads the unchanged file.
fn change_file(place: &Place, number: u8, change: impl FnOnce(String) -> String) {
    let file = place.lab.gateways.file(number);
    let changed = file.beside("changed.toml");
    std::fs::write(&changed, change(file.text())).unwrap();
    place.lab.gateways.daemon(number).unwrap().apply(&changed).unwrap();
}

/// Returns the SPIs of a gateway's SAs: Lockgate's list, and charon's list.
fn listed_spis(place: &Place, number: u8) -> [BTreeSet<String>; 2] {
    let sas = place.sas(number);
    let of_lockgate = sas.iter().map(|sa| {
        let spi = sa["spi"].as_str().unwrap_or_default();
        spi.trim_start_matches("0x").to_owned()
    });
    let gateway = &place.lab.gateways.site(number).gateway;
    let listed = place.charon(number).swanctl(gateway, &["--list-sas"]).unwrap_or_default();
    let of_charon = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("in" | "out") => words.next().map(|spi| spi.trim_end_matches(',').to_owned()),
            _ => None,
        }
    });
    [of_lockgate.collect(), of_charon.collect()]
}

/// Waits until Lockgate and charon list the same SAs at both gateways.
fn wait_for_agreement(place: &Place) {
    let end = Instant::now() + AGAIN;
    loop {
        let lists = [1, 2].map(|number| listed_spis(place, number));
        if lists.iter().all(|[lockgate, charon]| lockgate == charon) {
            return;
        }
        assert!(Instant::now() < end, "SAs differ: {lists:?}\n{}", place.story());
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
#[ignore = "make test-long PART=sas"]
fn no_tunnel_stays_dead_after_random_events_and_no_number_is_sealed_twice() {
    let test = "random_events";
    let Some(lab) = lab(test, Plan::default()) else { return };
    let child = |_, plan: &mut ChildPlan| {
        plan.connection = "mobike = no\ndpd_delay = 2s".into();
    };
    let wish = Wish { child: &child, roots: [None, None], ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    let count = std::env::var("NET_EVENTS").ok().and_then(|text| text.parse().ok());
    let (count, mut random) = (count.unwrap_or(EVENTS), Random::from_environment());
    place.lab.flows_again();
    let capture = place.lab.gateways.capture(Scope::Heads).unwrap();
    let streams =
        [(1, 2), (2, 1)].map(|(from, to)| place.lab.gateways.stream(from, to, STEP).unwrap());
    let mut longest_s = 0.0_f64;
    let mut since_look = Vec::new();
    for number in 1..=count {
        let event = ALL[random.below(ALL.len() as u64) as usize];
        let gateway = 1 + random.below(2) as u8;
        happen(&mut place, event, gateway, random.below(1 << 32));
        since_look.push((event, gateway));
        std::thread::sleep(Duration::from_millis(random.below(1000)));
        if number % EVENTS_PER_LOOK == 0 || number == count {
            let began = Instant::now();
            if let Err(answers) = wait_for_pings(&place.lab.gateways) {
                panic!("a dead tunnel after {since_look:?}: {answers}\n{}", place.story());
            }
            let seconds = began.elapsed().as_secs_f64();
            println!("{number} events: pings cross after {seconds:.1} s");
            longest_s = longest_s.max(seconds);
            since_look.clear();
        }
    }
    wait_for_agreement(&place);
    let streams = streams.map(Stream::finish);
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    let lost: Vec<_> = streams.iter().map(|it| (it.lost(), it.sent.len())).collect();
    println!(
        "{count} events; the longest wait for a tunnel {longest_s:.1} s; lost packets {lost:?}; \
         {} SPIs, {} ESP packets, {} in clear, {} numbers twice",
        wire.spis().len(),
        wire.esp,
        wire.clear,
        wire.repeated
    );
    assert_eq!(wire.clear, 0, "leaked: {:?}", wire.clear_examples);
    assert_eq!(wire.repeated, 0, "sealed twice: {:x?}", wire.repeated_examples);
    assert!(streams.iter().all(|stream| stream.repeated() == 0), "delivered twice");
    place.lab.balances();
}
