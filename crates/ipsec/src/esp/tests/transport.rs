//! Transport mode: what may be sealed in it, and packets put together again.

use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{Family, Fragment, Packet};

use super::book::{Setting, V4_ENDS, V6_ENDS};
use super::{FRAME, noise};
use crate::encapsulation::Mode;
use crate::esp::restore;
use crate::{Suite, UdpPorts};

fn between((a, b): (&str, &str)) -> PacketBuilder {
    PacketBuilder::between(a, b)
}

/// Returns whether a transport SA of the two ends seals this packet.
fn seals(outer: Family, bytes: &[u8]) -> bool {
    let (sa, _) = Setting::plain(Suite::Aes128CbcSha256, Mode::Transport, outer).pair();
    let packet = wire::packet::parse(bytes).unwrap();
    let mut frame = noise(4000, 7);
    frame[1000..1000 + bytes.len()].copy_from_slice(bytes);
    sa.encapsulate(FRAME, &mut frame, 1000, &packet, 1, 0).is_some()
}

#[test]
fn only_packets_between_the_two_ends_are_sealed() {
    let cases = [(Family::V4, V4_ENDS, "192.0.2.2"), (Family::V6, V6_ENDS, "2001:db8::2")];
    for (family, (a, b), other) in cases {
        let udp = |source, destination| PacketBuilder::between(source, destination).udp(1, 2).ip();
        assert!(seals(family, &udp(a, b)));
        for (source, destination) in [(b, a), (a, other), (other, b), (a, a), (b, b)] {
            assert!(!seals(family, &udp(source, destination)), "{source} to {destination}");
        }
    }
    assert!(!seals(Family::V4, &between(V6_ENDS).udp(1, 2).ip()));
    assert!(!seals(Family::V6, &between(V4_ENDS).udp(1, 2).ip()));
}

#[test]
fn fragments_are_not_sealed_and_an_atomic_fragment_is() {
    for (family, ends) in [(Family::V4, V4_ENDS), (Family::V6, V6_ENDS)] {
        let udp = between(ends).udp(1, 2).payload_of(64);
        assert!(seals(family, &udp.clone().ip()));
        for (offset, more) in [(0, true), (1, true), (1, false)] {
            assert!(!seals(family, &udp.clone().fragment(offset, more).ip()), "{offset} {more}");
        }
        // RFC 6946: the fragment header says that this is all.
        assert!(seals(family, &udp.fragment(0, false).ip()));
    }
}

#[test]
fn packet_without_an_upper_layer_is_not_sealed_because_it_would_be_a_dummy() {
    for (family, ends) in [(Family::V4, V4_ENDS), (Family::V6, V6_ENDS)] {
        for payload in [0, 9] {
            assert!(!seals(family, &between(ends).protocol(59).payload_of(payload).ip()));
            assert!(seals(family, &between(ends).protocol(253).payload_of(payload).ip()));
        }
    }
}

#[test]
fn known_packet_in_transport_mode_has_the_known_bytes() {
    let setting = Setting {
        udp: Some(UdpPorts { local: 4500, remote: 0x1234 }),
        ..Setting::plain(Suite::NullSha256, Mode::Transport, Family::V4)
    };
    let (sa, _) = setting.pair();
    let bytes = between(V4_ENDS).hop_limit(3).options(&[1, 1, 1]).udp(5, 6).payload(&[9]).ip();
    let packet = wire::packet::parse(&bytes).unwrap();
    let mut frame = vec![0xee; 16];
    frame.extend(&bytes);
    frame.resize(100, 0xee);
    let (job, outer) = sa.encapsulate(FRAME, &mut frame, 16, &packet, 7, 1).unwrap();
    // 24 of its own, 8 of UDP, 8 of ESP, 9 of payload, 1 1 17 of trailer, 16 of ICV.
    assert_eq!(outer, 0..68);
    #[rustfmt::skip]
    let expected = [
        // 4600 + 0044 + 0000 + 0000 + 0311 + c000 + 0201 + c633 + 6407 + 0101 + 0100 = 23791
        0x46, 0, 0, 68, 0, 0, 0, 0, 3, 17, 0xc8, 0x6c,
        192, 0, 2, 1, 198, 51, 100, 7, 1, 1, 1, 0,
        0x11, 0x94, 0x12, 0x34, 0, 44, 0, 0,
        1, 2, 3, 4, 0, 0, 0, 7,
        0, 5, 0, 6, 0, 9,
    ];
    assert_eq!(frame[..expected.len()], expected);
    assert_eq!(frame[48..52], [9, 1, 1, 17]);
    assert_eq!(frame[68..], [0xee; 32]);
    assert_eq!((job.aad, job.text, job.text_length), (32, 40, 12));
}

/// Packets as a hostile sender might have them parsed, and lies about them.
fn any_packet() -> impl Strategy<Value = (Vec<u8>, Packet)> {
    let forms = vec![
        between(V4_ENDS).protocol(50).payload_of(60),
        between(V4_ENDS).options(&[1; 4]).udp(1, 4500).payload_of(60),
        between(V6_ENDS).protocol(50).payload_of(60),
        between(V6_ENDS).extension(0, &[1, 4]).extension(60, &[1, 12]).udp(1, 4500).payload_of(60),
        between(V6_ENDS).fragment(0, false).protocol(50).payload_of(60),
    ];
    let lies = (any::<prop::sample::Index>(), any::<u8>(), 0u16..300, 0u32..300, any::<bool>());
    (prop::sample::select(forms), lies).prop_map(|(form, (at, byte, offset, length, lie))| {
        let mut bytes = form.ip();
        let mut packet = wire::packet::parse(&bytes).unwrap();
        if lie {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            packet = Packet { upper_offset: offset, length, fragment: Fragment::First, ..packet };
        }
        (bytes, packet)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn restoring_what_lies_anywhere_never_panics_and_stays_in_the_frame(
        (bytes, packet) in any_packet(),
        ip in prop_oneof![0usize..60, Just(usize::MAX), Just(usize::MAX - 20)],
        (start, end) in (super::edges(), super::edges()),
        protocol: u8,
    ) {
        let mut frame = noise(40, 3);
        frame.extend(bytes);
        frame.extend(noise(30, 4));
        let before = frame.clone();
        if let Some(begin) = restore(&mut frame, ip, &packet, protocol, start..end) {
            let header = usize::from(packet.upper_offset);
            prop_assert!(begin >= ip && begin + header == start && start <= end);
            prop_assert!(end <= frame.len());
            prop_assert_eq!(&frame[..begin], &before[..begin]);
            prop_assert_eq!(&frame[start..], &before[start..]);
        }
    }
}
