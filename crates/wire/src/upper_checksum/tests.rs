use super::*;
use crate::build::PacketBuilder;
use crate::packet::parse;
use proptest::prelude::*;
use std::vec::Vec;

fn v4() -> PacketBuilder {
    PacketBuilder::v4("10.1.0.1", "10.2.0.2")
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6("2001:db8:1::1", "2001:db8:2::2")
}

fn find(bytes: &[u8]) -> Option<UpperChecksum> {
    UpperChecksum::find(bytes, &parse(bytes).expect("a packet"))
}

/// Every form that has a checksum of ours, with this payload.
fn forms(payload: &[u8]) -> Vec<PacketBuilder> {
    [
        v4().udp(1, 65535),
        v4().tcp(65535, 0),
        v4().options(&[1, 1, 7, 4, 0, 0, 0, 0]).tcp(5, 6),
        v6().udp(1, 65535),
        v6().tcp(65535, 0),
        v6().extension(0, &[1, 4]).extension(60, &[1, 12]).udp(5, 6),
        v6().extension(43, &[0, 0]).tcp(5, 6),
        // An atomic fragment is whole (RFC 6946).
        v6().fragment(0, false).udp(5, 6),
    ]
    .map(|form| form.payload(payload))
    .into()
}

proptest! {
    #[test]
    fn an_unfinished_checksum_becomes_the_one_that_the_sender_would_have_made(
        payload in proptest::collection::vec(any::<u8>(), 0..70),
        padding in 0usize..8,
    ) {
        for form in forms(&payload) {
            let right = form.ip();
            let mut bytes = form.clone().unfinished_upper_checksum().ip();
            prop_assert!(find(&right).unwrap().is_good(&right));
            bytes.resize(bytes.len() + padding, 0xee);
            let checksum = find(&bytes).unwrap();
            prop_assert!(checksum.is_unfinished() && !checksum.is_absent());
            checksum.complete(&mut bytes);
            prop_assert_eq!(&bytes[..right.len()], &right[..]);
            prop_assert!(bytes[right.len()..].iter().all(|byte| *byte == 0xee));
        }
    }

    /// Checks that a finished checksum that looks unfinished by chance stays as it is.
    #[test]
    fn to_complete_a_right_checksum_changes_nothing(
        payload in proptest::collection::vec(any::<u8>(), 0..70),
    ) {
        for form in forms(&payload) {
            let right = form.ip();
            let mut bytes = right.clone();
            find(&bytes).unwrap().complete(&mut bytes);
            prop_assert_eq!(bytes, right);
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, cut in 0usize..80) {
        if let Ok(packet) = parse(&bytes) {
            let checksum = UpperChecksum::find(&bytes, &packet);
            checksum.map(|checksum| checksum.is_good(&bytes));
        }
        // Bytes of another packet than the one that was parsed.
        for form in forms(&[7; 20]) {
            let whole = form.ip();
            let packet = parse(&whole).unwrap();
            let mut part = whole[..whole.len() - cut.min(whole.len())].to_vec();
            let _ = UpperChecksum::find(&part, &packet);
            let checksum = UpperChecksum::find(&whole, &packet).unwrap();
            let _ = checksum.is_good(&part);
            checksum.complete(&mut part);
        }
    }
}

#[test]
fn wrong_checksums_are_neither_good_nor_unfinished() {
    for form in forms(b"twenty bytes of data") {
        let bytes = form.bad_upper_checksum().ip();
        let checksum = find(&bytes).unwrap();
        assert!(!checksum.is_good(&bytes) && !checksum.is_unfinished(), "{bytes:x?}");
    }
}

#[test]
fn udp_may_leave_the_checksum_out() {
    for (form, family) in [(v4(), Family::V4), (v6(), Family::V6)] {
        let none = find(&form.clone().udp(1, 2).no_upper_checksum().ip()).unwrap();
        assert!(none.is_absent() && !none.is_unfinished());
        assert_eq!(none.is_left_out(family), family == Family::V4);
        let tcp = find(&form.tcp(1, 2).no_upper_checksum().ip()).unwrap();
        assert!(!tcp.is_absent() && !tcp.is_left_out(family), "0 is a checksum of TCP");
    }
}

#[test]
fn udp_whose_sum_is_zero_says_ffff() {
    let mut form = v4().udp(1, 2).payload(&[0, 0]);
    let bytes = form.ip();
    let value = u16::from_be_bytes([bytes[26], bytes[27]]);
    form = form.payload(&value.to_be_bytes());
    let right = form.ip();
    assert_eq!(right[26..28], [0xff, 0xff]);
    let mut bytes = form.unfinished_upper_checksum().ip();
    find(&bytes).unwrap().complete(&mut bytes);
    assert_eq!(bytes, right);
}

#[test]
fn udp_is_summed_by_its_own_length() {
    let right = v4().udp(1, 2).payload(b"data").ip();
    // Four bytes behind the datagram, within the IP packet (RFC 9868 keeps options there).
    let mut bytes = [&right[..], b"more"].concat();
    bytes[3] += 4;
    bytes[10..12].fill(0);
    let header = checksum::finish(checksum::sum(&bytes[..20]));
    bytes[10..12].copy_from_slice(&header.to_be_bytes());
    let found = find(&bytes).unwrap();
    assert!(found.is_good(&bytes));
    found.complete(&mut bytes);
    assert_eq!(bytes[20..32], right[20..32]);
    // A length that is no datagram's: longer than what is there, or shorter than its header.
    for length in [17u8, 7] {
        bytes[25] = length;
        assert_eq!(find(&bytes), None);
    }
}

#[test]
fn fragments_and_other_protocols_have_none() {
    for bytes in [
        v4().fragment(0, true).udp(5, 6).payload_of(16).ip(),
        v4().fragment(100, false).udp(5, 6).payload_of(24).ip(),
        v6().fragment(0, true).tcp(5, 6).payload_of(12).ip(),
        v6().fragment(7, false).tcp(5, 6).payload_of(24).ip(),
        v4().icmp(8, 0, [0; 4]).ip(),
        v6().icmp(128, 0, [0; 4]).ip(),
        v4().protocol(protocol::ESP).payload_of(40).ip(),
        v4().protocol(protocol::UDP_LITE).payload_of(40).ip(),
    ] {
        assert_eq!(find(&bytes), None, "{bytes:x?}");
    }
}
