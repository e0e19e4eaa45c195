use super::ring::{Admission, NAMES, Record, rings};
use super::*;

fn record(bytes: &[u8], names: &[&str; NAMES]) -> Record {
    Record {
        now_ns: 7,
        original: 1500,
        bytes: bytes.len() as u32,
        layer: Layer::Outer,
        heading: Heading::In,
        medium: Medium::Ethernet,
        verdict: Some(Verdict::Drop(DropReason::NoMatch)),
        names: names.map(|name| name.len() as u16),
    }
}

#[test]
fn a_packet_comes_out_of_its_ring_as_it_went_in_with_its_names() {
    let (mut rings, mut reader) = rings(2, 96, 10);
    let names = ["wan", "", "berlin", "in-rule", "out-rule"];
    assert!(rings[1].push(record(b"abcdef", &names), b"abcdef", &names));
    assert_eq!(reader.take(0), None);
    let taken = reader.take(1).expect("a packet");
    assert_eq!((taken.worker, taken.now_ns, taken.original), (1, 7, 1500));
    assert_eq!(taken.bytes, b"abcdef");
    assert_eq!((taken.port.as_str(), taken.opened_from.as_str()), ("wan", "berlin"));
    assert_eq!((taken.to.as_str(), taken.inbound_policy.as_str()), ("", "in-rule"));
    assert_eq!(taken.outbound_policy, "out-rule");
    assert_eq!(taken.verdict, Some(Verdict::Drop(DropReason::NoMatch)));
    assert_eq!(reader.take(1), None);
}

#[test]
fn a_full_ring_refuses_packets_whole_and_takes_them_again_when_it_was_read() {
    let (mut rings, mut reader) = rings(1, 96, u64::MAX);
    let names = ["wan", "", "", "", ""];
    let push = |ring: &mut Outgoing| ring.push(record(b"ab", &names), b"ab", &names);
    for _ in 0..RING_PACKETS {
        assert!(push(&mut rings[0]));
    }
    assert!(!push(&mut rings[0]), "records");
    assert!(reader.take(0).is_some());
    assert!(push(&mut rings[0]));
    let mut left = 0;
    while let Some(taken) = reader.take(0) {
        assert_eq!((&taken.bytes[..], taken.port.as_str()), (&b"ab"[..], "wan"));
        left += 1;
    }
    assert_eq!(left, RING_PACKETS);
}

#[test]
fn large_packets_fill_the_ring_of_bytes_before_that_of_records() {
    let (mut rings, mut reader) = rings(1, MAX_SNAPLEN, u64::MAX);
    let (packet, names) = (vec![5; MAX_SNAPLEN as usize], [""; NAMES]);
    let mut pushed = 0;
    while rings[0].push(record(&packet, &names), &packet, &names) {
        pushed += 1;
    }
    assert_eq!(pushed, RING_BYTES / MAX_SNAPLEN as usize);
    assert!(pushed < RING_PACKETS);
    assert_eq!(reader.take(0).map(|taken| taken.bytes), Some(packet));
}

#[test]
fn a_ring_that_nobody_reads_any_more_takes_nothing() {
    let (mut rings, reader) = rings(1, 96, 10);
    drop(reader);
    let names = [""; NAMES];
    assert!(!rings[0].push(record(b"ab", &names), b"ab", &names));
}

#[test]
fn the_rate_and_the_number_of_packets_are_bounds_over_all_workers() {
    let (_rings, reader) = rings(2, 96, 5);
    let shared = reader.shared();
    assert_eq!(shared.admit(), Admission::BeyondRate, "nothing is allowed yet");
    reader.allow(3, 3);
    reader.allow(9, 3);
    let admitted: Vec<Admission> = (0..5).map(|_| shared.admit()).collect();
    assert_eq!(admitted[..3], [Admission::Granted; 3]);
    assert_eq!(admitted[3..], [Admission::BeyondRate; 2]);
    assert_eq!(reader.left_out(), LeftOut { beyond_rate: 3, ring_full: 0 });
    reader.allow(100, 100);
    // One finds no room: it is counted, and another one may come in its stead.
    assert_eq!(shared.admit(), Admission::Granted);
    shared.had_no_room();
    assert_eq!((shared.admit(), shared.admit()), (Admission::Granted, Admission::Granted));
    assert_eq!((shared.admit(), reader.taken()), (Admission::Complete, 5));
    assert_eq!(reader.left_out(), LeftOut { beyond_rate: 3, ring_full: 1 });
}
