use super::*;
use crate::build::PacketBuilder;
use proptest::prelude::*;
use std::vec::Vec;

fn v4() -> PacketBuilder {
    PacketBuilder::v4("10.1.0.1", "10.2.0.2")
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6("2001:db8:1::1", "2001:db8:2::2")
}

/// Every packet form that the builder knows, for mutation.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let forms = [
        v4().udp(1, 65535).payload_of(3),
        v4().tcp(65535, 0).payload_of(9),
        v4().icmp(8, 0, [0; 4]),
        v4().options(&[1, 1, 7, 4, 0, 0]).udp(5, 6),
        v4().fragment(0, true).udp(5, 6).payload_of(16),
        v4().fragment(100, false).udp(5, 6).payload_of(5),
        v4().protocol(50).payload_of(40),
        v6().protocol(50).payload_of(40),
        v6().udp(1, 65535).payload_of(3),
        v6().tcp(65535, 0).payload_of(9),
        v6().icmp(128, 0, [0; 4]),
        v6().extension(0, &[1, 4]).extension(60, &[1, 12]).udp(5, 6).payload_of(1),
        v6().extension(43, &[0, 0]).tcp(5, 6),
        v6().fragment(0, true).udp(5, 6).payload_of(16),
        v6().fragment(7, false).udp(5, 6).payload_of(5),
    ];
    let packets: Vec<Vec<u8>> = forms.iter().map(PacketBuilder::ip).collect();
    proptest::sample::select(packets)
}

/// A built packet with a few bytes changed, cut or padded; now and then with its checksum mended.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3);
    (any_packet(), edits, 0usize..4, 0usize..12, any::<bool>()).prop_map(
        |(mut bytes, edits, cut, pad, mend)| {
            for (place, value) in edits {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            bytes.truncate(bytes.len() - cut);
            bytes.extend(core::iter::repeat_n(0xee, pad));
            let header = usize::from(bytes[0] & 15) * 4;
            if mend && bytes[0] >> 4 == 4 && header >= 20 && header <= bytes.len() {
                bytes[10..12].fill(0);
                let checksum = checksum::finish(checksum::sum(&bytes[..header]));
                bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_parsed_packet_lies_inside_its_bytes(bytes in mutated()) {
        if let Ok(packet) = parse(&bytes) {
            prop_assert!(packet.length as usize <= bytes.len());
            prop_assert!(u32::from(packet.upper_offset) <= packet.length);
            prop_assert!(packet.hop_limit > 0);
        }
    }

    #[test]
    fn the_byte_found_names_the_upper_layer(bytes in mutated()) {
        if let Ok(packet) = parse(&bytes) {
            let place = upper_next_header(&bytes, &packet).unwrap();
            prop_assert!(place < usize::from(packet.upper_offset));
            prop_assert_eq!(bytes[place], packet.flow.protocol);
        }
    }

    #[test]
    fn of_another_packets_bytes_nothing_is_found_or_a_place_in_front_of_the_upper_layer(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        packet in any_packet(),
        upper_offset: u16,
    ) {
        let packet = Packet { upper_offset, ..parse(&packet).unwrap() };
        if let Some(place) = upper_next_header(&bytes, &packet) {
            let is_v4 = packet.flow.family == Family::V4;
            prop_assert!(is_v4 || place < usize::from(upper_offset));
        }
    }

    #[test]
    fn a_fragment_header_agrees_with_the_kind_of_its_packet(bytes in mutated()) {
        if let Ok(packet) = parse(&bytes) {
            let header = packet.fragment_header();
            prop_assert_eq!(header.is_some(), packet.fragment != Fragment::Whole);
            if let Some(FragmentHeader { offset, length, more, data_offset, .. }) = header {
                let expected = if offset == 0 { Fragment::First } else { Fragment::Later };
                prop_assert_eq!(packet.fragment, expected);
                prop_assert!(offset % 8 == 0 && offset.checked_add(length).is_some());
                prop_assert!(!more || length % 8 == 0);
                prop_assert!(data_offset <= packet.upper_offset);
                prop_assert_eq!(u32::from(data_offset) + u32::from(length), packet.length);
            }
        }
    }

    #[test]
    fn a_quote_cut_behind_eight_bytes_has_its_packets_flow(
        bytes in any_packet(),
        keep in 0usize..99,
    ) {
        let packet = parse(&bytes).unwrap();
        let least = usize::from(packet.upper_offset) + 8;
        let cut = bytes.len().min(least + keep);
        if cut >= least {
            let quoted = Flow { opens: false, ..packet.flow };
            prop_assert_eq!(parse_quoted(&bytes[..cut]), Some(quoted));
        }
    }

    #[test]
    fn lowering_the_hop_limit_keeps_the_checksum_good(hops in 1u8.., class: u8, ecn in 0u8..4) {
        for builder in [v4(), v6()] {
            let mut bytes = builder.hop_limit(hops).traffic_class(class).udp(1, 2).ip();
            let family = parse(&bytes).unwrap().flow.family;
            set_ecn(&mut bytes, family, ecn);
            let (before, original) = (parse(&bytes).unwrap(), bytes.clone());
            prop_assert_eq!(before.traffic_class, class & !3 | ecn);
            decrement_hop_limit(&mut bytes, family);
            let after = parse(&bytes);
            if hops == 1 {
                prop_assert_eq!(after, Err(ParseError::HopLimit));
            } else {
                prop_assert_eq!(after, Ok(Packet { hop_limit: hops - 1, ..before }));
            }
            restore_hop_limit(&mut bytes, family);
            prop_assert_eq!(bytes, original);
        }
    }
}

// FC-43
#[test]
fn ports_are_found_behind_options_of_every_length() {
    for words in 0..=10 {
        let bytes = v4().options(&std::vec![1; words * 4]).udp(1000, 2000).ip();
        let packet = parse(&bytes).unwrap();
        assert_eq!(packet.flow.upper, Upper::Ports { source: 1000, destination: 2000 });
        assert_eq!(usize::from(packet.upper_offset), 20 + words * 4);
    }
}

#[test]
fn the_upper_layer_is_named_in_the_last_header_in_front_of_it() {
    let of = |bytes: Vec<u8>| upper_next_header(&bytes, &parse(&bytes).unwrap());
    assert_eq!(of(v4().udp(1, 2).ip()), Some(9));
    assert_eq!(of(v4().options(&[1; 40]).tcp(1, 2).ip()), Some(9));
    assert_eq!(of(v6().udp(1, 2).ip()), Some(6));
    assert_eq!(of(v6().extension(0, &[1, 4]).udp(1, 2).ip()), Some(40));
    assert_eq!(of(v6().extension(60, &[1, 20]).udp(1, 2).ip()), Some(40));
    let two = || v6().extension(0, &[1, 12, 0, 0, 0, 0, 0, 0]).extension(60, &[1, 4]);
    assert_eq!(of(two().udp(1, 2).ip()), Some(40 + 16));
    assert_eq!(of(two().protocol(50).payload_of(8).ip()), Some(40 + 16));
    // A fragment header has no length of its own: its second byte is reserved.
    let mut atomic = v6().extension(0, &[1, 4]).fragment(0, false).udp(1, 2).ip();
    atomic[49] = 0xff;
    assert_eq!(of(atomic), Some(48));
    assert_eq!(of(v6().fragment(3, true).udp(1, 2).payload_of(8).ip()), Some(40));
    let longest = (0..MAX_EXTENSION_HEADERS).fold(v6(), |builder, _| builder.extension(60, &[]));
    assert_eq!(of(longest.udp(1, 2).ip()), Some(40 + 8 * (MAX_EXTENSION_HEADERS - 1)));
}

#[test]
fn fragments_say_their_datagrams_identification_wherever_their_headers_put_it() {
    let of = |bytes: &[u8]| Some(parse(bytes).unwrap().fragment_header()?.identification);
    let (v4, v6) = (|| v4().identification(0xabcd), || v6().identification(0x89ab_cdef));
    assert_eq!(of(&v4().udp(1, 2).ip()), None, "it is whole");
    assert_eq!(of(&v6().fragment(0, false).udp(1, 2).ip()), None, "it is whole all the same");
    for (offset, more) in [(0, true), (3, true), (3, false)] {
        let fragment = |builder: PacketBuilder| builder.udp(1, 2).payload_of(24);
        let v4 = || fragment(v4()).fragment(offset, more);
        assert_eq!(of(&v4().ip()), Some(0xabcd));
        assert_eq!(of(&v4().options(&[1; 40]).ip()), Some(0xabcd));
        let v6 = || fragment(v6());
        let behind = v6().extension(0, &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(of(&v6().fragment(offset, more).ip()), Some(0x89ab_cdef));
        assert_eq!(of(&behind.fragment(offset, more).ip()), Some(0x89ab_cdef));
    }
    // The destination's options may stand behind the fragment header.
    let header = [0, 1, 0x89, 0xab, 0xcd, 0xef];
    let before = v6().extension(44, &header).extension(60, &[1, 2]).udp(1, 2).payload_of(8).ip();
    assert_eq!(parse(&before).unwrap().fragment, Fragment::First);
    assert_eq!(of(&before), Some(0x89ab_cdef));
}

#[test]
fn fragments_say_where_their_data_lies() {
    let of = |builder: PacketBuilder| {
        let bytes = builder.ip();
        let packet = parse(&bytes).unwrap();
        let FragmentHeader { offset, length, more, .. } = packet.fragment_header().unwrap();
        (offset, length, more)
    };
    for builder in [v4(), v6(), v4().options(&[1; 40]), v6().extension(0, &[1, 4])] {
        let first = builder.clone().udp(1, 2).payload_of(16).fragment(0, true);
        assert_eq!(of(first), (0, 24, true));
        let later = builder.clone().protocol(17).fragment(8189, false);
        assert_eq!(of(later.payload_of(0)), (65_512, 0, false));
        let middle = builder.protocol(17).payload_of(16).fragment(3, true);
        assert_eq!(of(middle), (24, 16, true));
    }
    // Headers behind the Fragment header are data of the datagram (RFC 8200 §4.5).
    let header = [0, 1, 0, 0, 0, 9];
    let first = v6().extension(44, &header).extension(60, &[1, 2]).udp(1, 2).payload_of(8);
    assert_eq!(of(first), (0, 24, true));
}

#[test]
fn the_fragment_header_is_named_in_the_header_in_front_of_it() {
    let of = |bytes: Vec<u8>| fragment_next_header(&bytes, &parse(&bytes).unwrap());
    assert_eq!(of(v4().fragment(0, true).udp(1, 2).ip()), None);
    assert_eq!(of(v6().extension(0, &[1, 4]).udp(1, 2).ip()), None);
    for (offset, more) in [(0, false), (0, true), (3, true)] {
        let fragment =
            |packet: PacketBuilder| packet.fragment(offset, more).udp(1, 2).payload_of(16).ip();
        assert_eq!(of(fragment(v6())), Some(6));
        assert_eq!(of(fragment(v6().extension(0, &[1, 4]))), Some(40));
        assert_eq!(of(fragment(v6().extension(0, &[1, 4]).extension(60, &[1, 4]))), Some(48));
    }
}

// FC-44
#[test]
fn a_later_fragment_has_no_ports_whatever_its_bytes() {
    for builder in [v4(), v6()] {
        let packet = parse(&builder.fragment(1, true).udp(0, 0).payload_of(8).ip()).unwrap();
        assert_eq!((packet.flow.upper, packet.fragment), (Upper::Fragment, Fragment::Later));
    }
}

// FC-45
#[test]
fn a_truncated_upper_header_is_malformed() {
    // Protocols with the length of what is read of them.
    for (number, whole) in [(1, 8), (6, 20), (17, 8), (33, 12), (132, 12), (136, 8)] {
        for length in 0..whole {
            let bytes = v4().protocol(number).payload_of(length).ip();
            let parsed = parse(&bytes);
            assert_eq!(parsed, Err(ParseError::Malformed), "{length} bytes of {number}");
        }
    }
    let tiny_first = v4().protocol(6).fragment(0, true).payload_of(0).ip();
    assert_eq!(parse(&tiny_first), Err(ParseError::Malformed));
}

#[test]
fn what_is_wrong_is_named() {
    use ParseError::*;
    let with = |mut bytes: Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        bytes
    };
    let rows: &[(&str, Vec<u8>, ParseError)] = &[
        ("nothing", Vec::new(), Malformed),
        ("version 5", std::vec![0x55; 60], NotIp),
        ("checksum", with(v4().udp(1, 2).ip(), 10, 0xff), Checksum),
        (
            "total length beyond what came",
            v4().udp(1, 2).payload_of(9).ip()[..36].to_vec(),
            Malformed,
        ),
        ("loose source route", v4().options(&[131, 7, 4, 9, 9, 9, 9]).udp(1, 2).ip(), SourceRoute),
        ("strict source route", v4().options(&[1, 137, 3]).udp(1, 2).ip(), SourceRoute),
        ("option length 0", v4().options(&[7, 0]).udp(1, 2).ip(), Malformed),
        ("option beyond the header", v4().options(&[7, 9, 0, 0]).udp(1, 2).ip(), Malformed),
        ("TTL 0", v4().hop_limit(0).udp(1, 2).ip(), HopLimit),
        ("hop limit 0", v6().hop_limit(0).udp(1, 2).ip(), HopLimit),
        ("odd middle fragment", v4().fragment(1, true).payload_of(7).ip(), Malformed),
        ("ping of death", v4().fragment(8190, false).payload_of(999).ip(), Malformed),
        ("routing header in use", v6().extension(43, &[0, 1]).udp(1, 2).ip(), SourceRoute),
        (
            "hop-by-hop not first",
            v6().extension(60, &[]).extension(0, &[]).udp(1, 2).ip(),
            Malformed,
        ),
        (
            "fragment hides its protocol",
            v6().fragment(9, false).protocol(60).payload_of(8).ip(),
            ProtocolElsewhere,
        ),
        (
            "first IPv6 fragment without its chain",
            v6().fragment(0, true).protocol(60).ip(),
            Malformed,
        ),
        (
            "a Fragment header behind an atomic one",
            v6().extension(44, &[0, 0, 0, 0, 0, 1]).fragment(9, true).udp(1, 2).payload_of(8).ip(),
            Malformed,
        ),
        (
            "two atomic Fragment headers",
            v6().extension(44, &[0, 0, 0, 0, 0, 1]).fragment(0, false).udp(1, 2).ip(),
            Malformed,
        ),
        ("IPv6 jumbogram", with(with(v6().udp(1, 2).ip(), 4, 0), 5, 0), Malformed),
    ];
    for (what, bytes, error) in rows {
        assert_eq!(parse(bytes), Err(*error), "{what}");
    }
    let long_chain = (0..9).fold(v6(), |builder, _| builder.extension(60, &[]));
    assert_eq!(parse(&long_chain.udp(1, 2).ip()), Err(Malformed));
    // The ninth header is one too many, also if it says that the chain ends in another packet.
    for offset in [0, 9] {
        let longest = (0..8).fold(v6(), |builder, _| builder.extension(60, &[]));
        let packet = longest.fragment(offset, true).udp(1, 2).payload_of(8).ip();
        assert_eq!(parse(&packet), Err(Malformed), "{offset}");
    }
}

#[test]
fn martians_are_bad_addresses() {
    for bad in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
    ] {
        for packet in [PacketBuilder::v4(bad, "10.0.0.1"), PacketBuilder::v4("10.0.0.1", bad)] {
            assert_eq!(parse(&packet.udp(1, 2).ip()), Err(ParseError::BadAddress), "{bad}");
        }
    }
    for bad in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        for packet in [PacketBuilder::v6(bad, "2001:db8::1"), PacketBuilder::v6("2001:db8::1", bad)]
        {
            assert_eq!(parse(&packet.udp(1, 2).ip()), Err(ParseError::BadAddress), "{bad}");
        }
    }
    for good in ["1.0.0.0", "126.255.255.255", "128.0.0.0", "223.255.255.255", "10.0.0.0"] {
        assert!(parse(&PacketBuilder::v4(good, "10.0.0.1").udp(1, 2).ip()).is_ok(), "{good}");
    }
}

#[test]
fn a_segment_with_syn_and_without_ack_opens_a_connection() {
    use crate::build::tcp_flags::{ACK, SYN};
    const FIN_RST_PSH_URG: u8 = 0x2d;
    for v4_or_v6 in [v4, v6] {
        let opens = |bytes: &[u8]| parse(bytes).unwrap().flow.opens;
        for (flags, expected) in [
            (SYN, true),
            (SYN | FIN_RST_PSH_URG, true),
            (SYN | 0xc0, true),
            (SYN | ACK, false),
            (ACK, false),
            (FIN_RST_PSH_URG, false),
            (0, false),
        ] {
            let bytes = v4_or_v6().tcp_with(1, 2, flags, None).ip();
            assert_eq!(opens(&bytes), expected, "{flags:#04x}");
            assert!(!parse_quoted(&bytes).unwrap().opens, "a quote may lack the flags");
            assert_eq!(parse_group(&bytes).unwrap().opens, expected, "{flags:#04x}");
        }
        assert!(!opens(&v4_or_v6().protocol(132).payload(&[SYN; 20]).ip()), "SCTP has no SYN");
        let reversed = parse(&v4_or_v6().tcp_with(1, 2, SYN, None).ip()).unwrap().flow.reversed();
        assert!(!reversed.opens, "its answer has ACK");
    }
}
