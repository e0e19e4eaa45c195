//! Records rewritten as fast as they can be under load: no frame is sent to another tenant, and
//! none is judged by the verdict on another flow.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use bpf::tier::{FlowKey, Tier};
use bpf::{Action, Counter, Steering};
use common::*;
use endpoints::{Endpoint, EndpointKey};
use placement::{Admission, Residents};
use wire::{Address, LinkAddress};

/// A packet from the first tenant to another, of an endpoint's network.
fn plain(to: u8) -> Vec<u8> {
    carried(PLAIN, (1, to), |packet| packet.udp(5000, 53).payload_of(30))
}

/// Records that are written, and frames that are sent meanwhile, before the test ends.
const ENOUGH_WRITTEN: u64 = 20_000;
const ENOUGH_SENT: u64 = 1000;
/// The test fails if this has not happened by then; it takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Checks a frame that was sent: it is for this tenant, and its host and link address are of one
/// way.
fn check_sent(bytes: &[u8], number: u8) {
    assert_eq!(bytes[50..56], mac_of(number), "a frame for tenant {number}");
    let to = Address::v4(u32::from_be_bytes([bytes[30], bytes[31], bytes[32], bytes[33]]));
    let place = HOSTS[..3].iter().position(|host| v4(host) == to);
    let place = place.unwrap_or_else(|| panic!("sent to {to}"));
    let next = [11, 12, 254][place];
    assert_eq!(bytes[..6], [2, 9, 0, 0, 0, next], "to {to}");
    assert_eq!(wire::packet::parse(&bytes[14..]).unwrap().hop_limit, 63);
}

// TORN
#[test]
fn no_frame_is_sent_to_another_tenant_while_records_change() {
    let Some((steering, tier)) = program_with(16_384) else { return };
    let hosts = &HOSTS[..3];
    let began = std::time::Instant::now();
    let clock = || began.elapsed().as_nanos() as u64;
    let mut residents = Residents::new(tier);
    let mut book = book_of(&[]);
    let snapshot = snapshot(book.table(), false);
    residents.widen(&snapshot, place_of, 0).unwrap();
    let put = |book: &mut endpoints::Book, residents: &mut Residents<Arc<Tier>>, round: u64| {
        let mut admitted = 0;
        for number in 1..=TENANTS {
            let key = EndpointKey { vni: vni(PLAIN), address: tenant(number) };
            let host = match number {
                1 => hosts[0],
                _ => hosts[(round as usize + usize::from(number)) % hosts.len()],
            };
            let mac = LinkAddress::new(mac_of(number));
            let endpoint = Endpoint { key, host: v4(host), host_mac: None, mac };
            let change = endpoints::Change::Put { revision: round + 1, endpoint };
            book.apply(&[change]);
            residents.withdraw(key, clock()).unwrap();
            let admission = residents.admit(key, &snapshot, place_of, clock()).unwrap();
            admitted += u64::from(admission == Admission::Admitted);
        }
        admitted
    };
    assert_eq!(put(&mut book, &mut residents, 0), TENANTS.into());
    let frames: Vec<Vec<u8>> = (2..=TENANTS).map(plain).collect();
    let done = AtomicBool::new(false);
    let frames_seen = [const { AtomicU64::new(0) }; 2];
    let (sent, missed, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // As fast as it goes, until both sides have done enough; slots come round again when
            // their second is over.
            let mut written = 0;
            for round in 1.. {
                let [sent, missed] = frames_seen.each_ref().map(|seen| seen.load(Relaxed));
                let is_enough = written > ENOUGH_WRITTEN && sent > ENOUGH_SENT && missed > 10;
                if is_enough || began.elapsed() > LIMIT {
                    break;
                }
                written += put(&mut book, &mut residents, round);
            }
            done.store(true, Relaxed);
            written
        });
        let (mut sent, mut missed) = (0u64, 0u64);
        while !done.load(Relaxed) {
            frames_seen[0].store(sent, Relaxed);
            frames_seen[1].store(missed, Relaxed);
            for (frame, number) in frames.iter().zip(2..) {
                let run = steering.run(frame).unwrap();
                let Some(bytes) = run.sent else {
                    missed += 1;
                    continue;
                };
                sent += 1;
                check_sent(&bytes, number);
            }
        }
        (sent, missed, writer.join().unwrap())
    });
    println!("{written} records written; {sent} frames sent, {missed} missed");
    assert!(began.elapsed() < LIMIT, "{written} written, {sent} sent, {missed} missed");
}

/// UDP ports of flows between two tenants.
const PORTS: u16 = 8;

/// A flow of the network with groups, from tenant 1.
fn flow(to: u8, port: u16) -> FlowKey {
    let [source, destination] = [1, to].map(|number| (tenant(number).value as u32).into());
    let [high, low] = port.to_be_bytes();
    FlowKey { vni: GROUPED, source, destination, protocol: 17, upper: [0x13, 0x88, high, low] }
}

/// All flows whose verdicts are written: by `Rules::Some` those to DNS and to tenant 2 are dropped.
fn flows() -> Vec<(FlowKey, Vec<u8>, bool)> {
    let of = |to: u8| {
        (50..50 + PORTS).map(move |port| {
            let frame = carried(GROUPED, (1, to), |packet| packet.udp(5000, port).payload_of(30));
            (flow(to, port), frame, to != 2 && port != 53)
        })
    };
    (2..=4).flat_map(of).collect()
}

/// A tier with the tenants of the network with groups.
fn grouped(tier: Arc<Tier>) -> (dataplane::Snapshot, Residents<Arc<Tier>>) {
    let endpoint = |number| Endpoint {
        key: EndpointKey { vni: vni(GROUPED), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    let endpoints: Vec<Endpoint> = (1..=4).map(endpoint).collect();
    let snapshot = ruled(&table_of(&endpoints), (false, Rules::Some), None);
    let mut residents = Residents::new(tier);
    residents.widen(&snapshot, place_of, 0).unwrap();
    for Endpoint { key, .. } in endpoints {
        assert_eq!(residents.admit(key, &snapshot, place_of, 0).unwrap(), Admission::Admitted);
    }
    (snapshot, residents)
}

/// The program's answer about a frame; `None`: it is a miss.
fn is_sent(steering: &Steering, frame: &[u8]) -> Option<bool> {
    let dropped = || steering.counters().unwrap().of(Counter::VerdictDropped);
    let before = dropped();
    let is_transmitted = steering.run(frame).unwrap().action == Action::Transmit;
    match (is_transmitted, dropped() - before) {
        (true, 0) => Some(true),
        (false, 1) => Some(false),
        (false, 0) => None,
        both => panic!("{both:?}"),
    }
}

// TORN
#[test]
fn no_frame_is_judged_by_the_verdict_on_another_flow_while_verdicts_change() {
    let Some((steering, tier)) = program_with(16_384) else { return };
    let (snapshot, mut residents) = grouped(tier);
    let began = std::time::Instant::now();
    let clock = || moment(began.elapsed().as_nanos() as u64);
    let (flows, done) = (flows(), AtomicBool::new(false));
    let seen = [const { AtomicU64::new(0) }; 3];
    let [sent, dropped, missed] = &seen;
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0u64;
            let counts = || seen.each_ref().map(|count| count.load(Relaxed));
            let is_enough = |[sent, dropped, missed]: [u64; 3]| {
                sent > ENOUGH_SENT && dropped > ENOUGH_SENT && missed > 10
            };
            while began.elapsed() < LIMIT && !(written > ENOUGH_WRITTEN && is_enough(counts())) {
                for (key, ..) in &flows {
                    residents.withdraw_flow(*key, clock().kernel_ns).unwrap();
                    let admission = residents.admit_flow(*key, &snapshot, clock()).unwrap();
                    written += u64::from(admission == Admission::Admitted);
                }
            }
            done.store(true, Relaxed);
            written
        });
        while !done.load(Relaxed) {
            for (key, frame, is_permitted) in &flows {
                let count = match is_sent(&steering, frame) {
                    None => missed,
                    Some(is_sent) => {
                        assert_eq!(is_sent, *is_permitted, "{key:?}");
                        if is_sent { sent } else { dropped }
                    }
                };
                count.fetch_add(1, Relaxed);
            }
        }
        writer.join().unwrap()
    });
    println!("{written} verdicts written; {sent:?} sent, {dropped:?} dropped, {missed:?} missed");
    assert!(began.elapsed() < LIMIT, "{written} written, {seen:?}");
}
