use super::*;
use etherparse::icmpv6::{NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementHeader};
use etherparse::{Icmpv6Slice, Icmpv6Type};
use proptest::prelude::*;
use std::vec::Vec;

const ASKS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HAS: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SOURCE: u128 = 0x2001_0db8 << 96 | 1;
const TARGET: u128 = 0x2001_0db8 << 96 | 9;
/// ff02::1:ff00:9
const SOLICITED_NODE: u128 = 0xff02 << 112 | 0x01_ff00_0009;
const SOURCE_OPTION: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 1];
const TARGET_OPTION: [u8; 8] = [2, 1, 2, 0, 0, 0, 0, 9];

/// RFC 4861 §4.3, from 2001:db8::1 for 2001:db8::9.
const ASKED: [u8; 72] = [
    0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // source
    0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9, // destination
    135, 0, 0x1c, 0x19, 0, 0, 0, 0, // solicitation
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, // target
    1, 1, 2, 0, 0, 0, 0, 1, // source link address
];

/// RFC 4861 §4.4, the answer.
const TOLD: [u8; 86] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, // Ethernet
    0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, // source
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // destination
    136, 0, 0x8a, 0x5c, 0x60, 0, 0, 0, // advertisement: solicited, override
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, // target
    2, 1, 2, 0, 0, 0, 0, 9, // target link address
];

/// The fields of a message under test.
#[derive(Clone)]
struct Spec {
    kind: u8,
    source: u128,
    destination: u128,
    target: u128,
    hop_limit: u8,
    code: u8,
    flags: u8,
    options: Vec<u8>,
}

fn solicitation() -> Spec {
    Spec {
        kind: SOLICITATION,
        source: SOURCE,
        destination: SOLICITED_NODE,
        target: TARGET,
        hop_limit: 255,
        code: 0,
        flags: 0,
        options: SOURCE_OPTION.to_vec(),
    }
}

fn told() -> Spec {
    Spec {
        kind: ADVERTISEMENT,
        source: TARGET,
        destination: SOURCE,
        flags: SOLICITED | OVERRIDE,
        options: TARGET_OPTION.to_vec(),
        ..solicitation()
    }
}

/// Writes a message; `etherparse` sums it.
fn write(spec: &Spec) -> Vec<u8> {
    let length = MESSAGE + spec.options.len();
    let mut packet = Vec::from([0x60, 0, 0, 0, 0, length as u8, 58, spec.hop_limit]);
    packet.extend(spec.source.to_be_bytes());
    packet.extend(spec.destination.to_be_bytes());
    let (mut message, mut rest) =
        (Vec::from([spec.kind, spec.code, 0, 0, spec.flags, 0, 0, 0]), Vec::new());
    rest.extend(spec.target.to_be_bytes());
    rest.extend(&spec.options);
    let sum = Icmpv6Type::Unknown {
        type_u8: spec.kind,
        code_u8: spec.code,
        bytes5to8: [spec.flags, 0, 0, 0],
    };
    let ends = (spec.source.to_be_bytes(), spec.destination.to_be_bytes());
    let sum = sum.calc_checksum(ends.0, ends.1, &rest).unwrap();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    packet.extend(rest);
    packet
}

#[test]
fn a_solicitation_is_answered_byte_by_byte() {
    assert_eq!(write(&solicitation()), ASKED, "the packet written by hand");
    let asked = parse_solicitation(&ASKED).unwrap();
    assert_eq!(
        asked,
        Solicitation {
            source: Some(Address::v6(SOURCE)),
            source_mac: Some(ASKS),
            target: Address::v6(TARGET),
        }
    );
    assert_eq!(advertisement(&asked, ASKS, LinkAddress::new(HAS)), TOLD);
    assert_eq!(parse_advertisement(&ASKED), None);
    assert_eq!(parse_solicitation(&TOLD[14..]), None);
    assert_eq!(
        parse_advertisement(&TOLD[14..]),
        Some(Advertisement {
            source: Address::v6(TARGET),
            target: Address::v6(TARGET),
            target_mac: Some(HAS),
            is_router: false,
            is_solicited: true,
            is_override: true,
        })
    );
}

#[test]
fn who_has_no_address_yet_is_answered_with_everybody() {
    let spec = Spec { source: 0, options: Vec::new(), ..solicitation() };
    let asked = parse_solicitation(&write(&spec)).unwrap();
    assert_eq!((asked.source, asked.source_mac), (None, None));
    let mut expected = TOLD;
    expected[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    expected[38..54].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected[56..59].copy_from_slice(&[0xf9, 0x12, 0x20]);
    assert_eq!(advertisement(&asked, ASKS, LinkAddress::new(HAS)), expected);
}

#[test]
fn a_solicitation_that_fails_a_check_is_none() {
    // RFC 4861 §7.1.1
    let of = |spec: Spec| parse_solicitation(&write(&spec));
    let fine = solicitation();
    let plain = Spec { options: Vec::new(), ..fine.clone() };
    assert!(of(fine.clone()).is_some() && of(plain.clone()).is_some());
    assert_eq!(of(Spec { hop_limit: 254, ..fine.clone() }), None);
    assert_eq!(of(Spec { code: 1, ..fine.clone() }), None);
    assert_eq!(of(Spec { target: ALL_NODES, ..fine.clone() }), None);
    assert_eq!(of(Spec { source: ALL_NODES, ..fine.clone() }), None);
    // Whether an address is free is asked of its group, and without a link address.
    let free = Spec { source: 0, ..plain };
    assert!(of(free.clone()).is_some());
    assert_eq!(of(Spec { destination: TARGET, ..free.clone() }), None);
    assert_eq!(of(Spec { destination: ALL_NODES, ..free.clone() }), None);
    assert_eq!(of(Spec { options: fine.options, ..free }), None);
}

#[test]
fn an_advertisement_that_fails_a_check_is_none() {
    // RFC 4861 §7.1.2
    let of = |spec: Spec| parse_advertisement(&write(&spec));
    let fine = told();
    assert!(of(fine.clone()).is_some());
    assert_eq!(of(Spec { hop_limit: 254, ..fine.clone() }), None);
    assert_eq!(of(Spec { code: 1, ..fine.clone() }), None);
    assert_eq!(of(Spec { target: ALL_NODES, ..fine.clone() }), None);
    assert_eq!(of(Spec { source: 0, ..fine.clone() }), None);
    assert_eq!(of(Spec { source: ALL_NODES, ..fine.clone() }), None);
    let to_all = Spec { destination: ALL_NODES, ..fine };
    assert_eq!(of(to_all.clone()), None, "solicited, and sent to everybody");
    let unasked = of(Spec { flags: ROUTER | OVERRIDE, options: Vec::new(), ..to_all }).unwrap();
    assert!(unasked.is_router && unasked.is_override && !unasked.is_solicited);
    assert_eq!(unasked.target_mac, None);
}

#[test]
fn options_are_walked_to_the_end() {
    let of = |options: &[&[u8]]| {
        let asked = Spec { options: options.concat(), ..solicitation() };
        let told = Spec { options: options.concat(), ..told() };
        let asked = parse_solicitation(&write(&asked)).map(|asked| asked.source_mac);
        (asked, parse_advertisement(&write(&told)).map(|told| told.target_mac))
    };
    let other: &[u8] = &[14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (source, target): (&[u8], &[u8]) = (&SOURCE_OPTION, &TARGET_OPTION);
    assert_eq!(of(&[other, target, source]), (Some(Some(ASKS)), Some(Some(HAS))));
    assert_eq!(of(&[other]), (Some(None), Some(None)));
    // No length; cut off by a word; a piece of an option.
    assert_eq!(of(&[source, target, &[14, 0, 0, 0, 0, 0, 0, 0]]), (None, None));
    assert_eq!(of(&[source, target, &other[..8]]), (None, None));
    assert_eq!(of(&[source, target, &[14]]), (None, None));
    // Twice, or of a length that a link address of Ethernet does not have.
    assert_eq!(of(&[source, source, target]), (None, Some(Some(HAS))));
    assert_eq!(of(&[source, target, target]), (Some(Some(ASKS)), None));
    let long = |kind| [&[kind, 2][..], &[2; 14]].concat();
    assert_eq!(of(&[&long(1), target]), (None, Some(Some(HAS))));
    assert_eq!(of(&[source, &long(2)]), (Some(Some(ASKS)), None));
}

#[test]
fn a_message_is_read_whole_or_not_at_all() {
    for length in 0..ASKED.len() {
        assert_eq!(parse_solicitation(&ASKED[..length]), None, "{length} bytes");
        assert_eq!(parse_advertisement(&TOLD[14..14 + length]), None, "{length} bytes");
    }
    // One bit of what the checksum covers, and of the checksum.
    for at in (8..72).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let (mut asked, mut told) = (ASKED, TOLD);
        asked[at.0] ^= 1 << at.1;
        told[14 + at.0] ^= 1 << at.1;
        assert_eq!(parse_solicitation(&asked), None, "{at:?}");
        assert_eq!(parse_advertisement(&told[14..]), None, "{at:?}");
    }
    // Padding of the link is no part of it.
    let padded = [&ASKED[..], &[0xee; 9]].concat();
    assert_eq!(parse_solicitation(&padded), parse_solicitation(&ASKED));
}

fn address() -> impl Strategy<Value = u128> {
    any::<u128>().prop_map(|value| 0x2001 << 112 | value >> 16)
}

proptest! {
    #[test]
    fn etherparse_reads_what_is_advertised(
        source in prop::option::of(address()),
        target in address(),
        (asks, has) in any::<([u8; 6], [u8; 6])>(),
    ) {
        let asked = Solicitation {
            source: source.map(Address::v6), source_mac: None, target: Address::v6(target),
        };
        let frame = advertisement(&asked, asks, LinkAddress::new(has));
        let destination = source.unwrap_or(ALL_NODES).to_be_bytes();
        prop_assert_eq!(&frame[38..54], destination);
        let message = Icmpv6Slice::from_slice(&frame[54..]).unwrap();
        prop_assert!(message.is_checksum_valid(target.to_be_bytes(), destination));
        let flags = NeighborAdvertisementHeader {
            router: false, solicited: source.is_some(), r#override: true,
        };
        prop_assert_eq!(message.icmp_type(), Icmpv6Type::NeighborAdvertisement(flags));
        prop_assert_eq!(&message.payload()[..16], target.to_be_bytes());
        let options: Vec<_> = NdpOptionsIterator::from_slice(&message.payload()[16..]).collect();
        prop_assert_eq!(options.len(), 1);
        let Ok(NdpOptionSlice::TargetLinkLayerAddress(option)) = &options[0] else {
            return Err(TestCaseError::fail("another option"));
        };
        prop_assert_eq!(option.link_layer_address(), has);
        let read = parse_advertisement(&frame[14..]).unwrap();
        prop_assert_eq!(read, Advertisement {
            source: Address::v6(target),
            target: Address::v6(target),
            target_mac: Some(has),
            is_router: false,
            is_solicited: source.is_some(),
            is_override: true,
        });
    }

    #[test]
    fn what_is_written_is_read(
        source in address(),
        target in address(),
        flags in any::<u8>(),
        mac in prop::option::of(any::<[u8; 6]>()),
    ) {
        let option = |kind| mac.map_or(Vec::new(), |mac| [&[kind, 1][..], &mac].concat());
        let asked = Spec { source, target, flags, options: option(1), ..solicitation() };
        prop_assert_eq!(parse_solicitation(&write(&asked)), Some(Solicitation {
            source: Some(Address::v6(source)), source_mac: mac, target: Address::v6(target),
        }));
        let told = Spec { source, target, flags, options: option(2), ..told() };
        prop_assert_eq!(parse_advertisement(&write(&told)), Some(Advertisement {
            source: Address::v6(source),
            target: Address::v6(target),
            target_mac: mac,
            is_router: flags & 0x80 != 0,
            is_solicited: flags & 0x40 != 0,
            is_override: flags & 0x20 != 0,
        }));
    }

    #[test]
    fn no_options_panic(options in prop::collection::vec(0u8..4, 0..80), kind in 135u8..=136) {
        // The checksum is right, so that the options are reached.
        let packet = write(&Spec { kind, options, ..told() });
        let (asked, told) = (parse_solicitation(&packet), parse_advertisement(&packet));
        prop_assert!(asked.is_none() || told.is_none());
    }

    #[test]
    fn no_bytes_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        kind in 135u8..=136,
    ) {
        if bytes.len() > 46 {
            (bytes[0], bytes[6], bytes[7], bytes[40], bytes[41]) = (0x60, 58, 255, kind, 0);
        }
        _ = parse_solicitation(&bytes);
        _ = parse_advertisement(&bytes);
    }
}
