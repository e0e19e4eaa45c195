//! Sealing: what is written, where, and what is refused; and that opening gives it back.

use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{Family, Packet};

use super::book::{
    EXTENDED, PORTS, SHORT, Setting, V4_ENDS, check_headers, families, settings, trailer,
    v6_udp_checksum_is_right,
};
use super::{FRAME, invented, noise};
use crate::encapsulation::{DontFragment, Dscp, Mode};
use crate::esp::*;
use crate::suite::Encryption;
use crate::testing::{Heap, SPI};
use crate::{InboundSa, Suite, finish_udp};

/// A packet to seal: its bytes, and what a parser says of them.
#[derive(Clone, Debug)]
struct Given {
    bytes: Vec<u8>,
    packet: Packet,
}

/// The shape of a packet without options or extension headers, of protocol 253.
const BARE: u8 = 36;

impl Given {
    /// In tunnel mode noise that is called a packet: the framing looks at nothing but its length.
    fn noise(family: Family, length: usize, traffic_class: u8, dont_fragment: bool) -> Given {
        let packet = Packet { traffic_class, dont_fragment, ..invented(family, length) };
        Given { bytes: noise(length, traffic_class), packet }
    }

    /// In transport mode a packet between the ends; `shape` chooses its options or extension
    /// headers.
    fn own(setting: &Setting, payload: usize, traffic_class: u8, shape: u8) -> Given {
        let (a, b) = setting.ends();
        let builder =
            PacketBuilder::between(a, b).traffic_class(traffic_class).hop_limit(shape | 1);
        let builder = match (setting.outer, shape % 6) {
            (Family::V4, words) => builder.options(&[1; 40][..usize::from(words % 3) * 20]),
            (Family::V6, 0) => builder,
            (Family::V6, 1) => builder.extension(0, &[1, 4]),
            (Family::V6, 2) => builder.extension(60, &[1, 12]),
            (Family::V6, 3) => builder.extension(0, &[1, 4]).extension(60, &[1, 28]),
            (Family::V6, 4) => builder.extension(43, &[0, 0]).fragment(0, false),
            (Family::V6, _) => (0..8).fold(builder, |builder, _| builder.extension(60, &[])),
        };
        let builder = if shape & 64 == 0 { builder } else { builder.dont_fragment() };
        let builder = match shape >> 4 & 3 {
            0 => builder.udp(7, 8),
            1 => builder.tcp(9, 10),
            _ => builder.protocol(253),
        };
        let bytes = builder.payload_of(payload).ip();
        let packet = wire::packet::parse(&bytes).unwrap();
        Given { bytes, packet }
    }

    /// Bytes that are not sealed: in transport mode the IP header.
    fn kept(&self, setting: &Setting) -> usize {
        match setting.mode {
            Mode::Tunnel => 0,
            Mode::Transport => usize::from(self.packet.upper_offset),
        }
    }

    fn next_header(&self, setting: &Setting) -> u8 {
        match (setting.mode, self.packet.flow.family) {
            (Mode::Transport, _) => self.packet.flow.protocol,
            (Mode::Tunnel, Family::V4) => 4,
            (Mode::Tunnel, Family::V6) => 41,
        }
    }
}

/// Seals the packet in a frame with room around it, checks every byte of what comes out, opens it
/// and checks that the packet is back and nothing else was touched.
fn seal_and_open(setting: &Setting, given: &Given, sequence: u64, room: (usize, usize)) {
    let (outbound, inbound) = setting.pair();
    let (suite, kept) = (setting.suite, given.kept(setting));
    let payload = given.bytes[kept..].to_vec();
    let trailer = trailer(payload.len(), suite, given.next_header(setting));
    let front = setting.headers() + 8 + suite.iv_bytes();
    let total = kept + front + payload.len() + trailer.len() + suite.icv_bytes();

    let (headroom, tailroom) = room;
    let before = noise(headroom + total + tailroom, sequence as u8);
    let mut frames = Heap(vec![before.clone()]);
    let ip = headroom + front;
    frames.0[0][ip..ip + given.bytes.len()].copy_from_slice(&given.bytes);
    let frame = &mut frames.0[0];
    let (job, outer) =
        outbound.encapsulate(FRAME, frame, ip, &given.packet, sequence, 77).expect("there is room");
    assert_eq!(outer, headroom..headroom + total);
    assert_eq!((job.row, job.sequence, job.frame), (77, sequence, FRAME));
    let text = [payload.as_slice(), &trailer].concat();
    let at = ip + kept;
    assert_eq!((job.text as usize, job.text_length as usize), (at, text.len()));
    assert_eq!(job.aad as usize, at - 8 - suite.iv_bytes());
    assert_eq!(outbound.text_bytes(&given.packet), text.len() as u64, "as limits count it");
    assert_eq!(frame[at..at + text.len()], text, "the trailer, by the book");

    outbound.cipher.seal(&mut frames, &[job]).unwrap();
    if setting.outer == Family::V6 && setting.udp.is_some() {
        assert!(finish_udp(&mut frames.0[0][outer.clone()]));
    }
    let frame = &frames.0[0];
    assert_eq!(frame[..headroom], before[..headroom], "in front");
    assert_eq!(frame[outer.end..], before[outer.end..], "behind");
    let sealed = &frame[outer.clone()];
    let esp = check_headers(sealed, setting, &given.packet, &given.bytes, sequence);
    assert_eq!(headroom + esp, job.aad as usize);
    assert_eq!(sealed[esp..esp + 4], SPI.to_be_bytes());
    assert_eq!(sealed[esp + 4..esp + 8], sequence.to_be_bytes()[4..]);
    let iv = &sealed[esp + 8..esp + 8 + suite.iv_bytes()];
    match suite.encryption() {
        Encryption::Gcm | Encryption::ChaCha20Poly1305 => assert_eq!(iv, sequence.to_be_bytes()),
        Encryption::Cbc => assert_eq!(iv, job.nonce),
        Encryption::Null => assert!(iv.is_empty()),
    }
    let ciphertext = &frame[at..at + text.len()];
    if suite.encryption() == Encryption::Null {
        assert_eq!(ciphertext, text, "NULL encrypts nothing");
    } else if payload.len() >= 16 {
        assert_ne!(ciphertext, text, "left in clear");
    }
    receive(setting, &inbound, &mut frames, outer, given, sequence);
}

/// The receiver's half: what it knows it reads from the packet.
fn receive(
    setting: &Setting,
    inbound: &InboundSa,
    frames: &mut Heap,
    outer: Range<usize>,
    given: &Given,
    sequence: u64,
) {
    inbound.window.commit(sequence.saturating_sub(10).max(1)).unwrap();
    let arrived = wire::packet::parse(&frames.0[0][outer.clone()]).expect("a packet");
    assert_eq!(arrived.length as usize, outer.len());
    assert_eq!(arrived.flow.protocol, if setting.udp.is_some() { 17 } else { 50 });
    let udp = if setting.udp.is_some() { 8 } else { 0 };
    let esp = outer.start + usize::from(arrived.upper_offset) + udp..outer.end;
    let header = EspHeader::read(&frames.0[0][esp.clone()]).unwrap();
    assert_eq!(header.spi, Some(inbound.spi));
    assert_eq!(header.sequence_low, sequence as u32);
    let mut job = inbound.open_job(FRAME, &frames.0[0], esp, 9).unwrap();
    assert_eq!((job.row, job.sequence, job.authentic), (9, sequence, false));
    inbound.cipher.open(frames, std::slice::from_mut(&mut job));
    let payload = strip(&frames.0[0], &job, setting.mode).expect("what was sealed");
    let opened = match payload {
        Payload::Packet(inner) => {
            assert_eq!(setting.mode, Mode::Tunnel);
            assert_eq!(inner.family, given.packet.flow.family);
            inner.offset..inner.offset + inner.length
        }
        Payload::Upper { protocol, offset, length } => {
            assert_eq!((setting.mode, protocol), (Mode::Transport, given.packet.flow.protocol));
            let (frame, end) = (&mut frames.0[0], offset + length);
            let start = restore(frame, outer.start, &arrived, protocol, offset..end);
            start.expect("the parts fit")..end
        }
    };
    assert!(frames.0[0][opened] == given.bytes, "the packet is not the one that was sealed");
}

fn sequences() -> impl Strategy<Value = u64> {
    let edge = u64::from(u32::MAX);
    prop_oneof![
        1u64..1000,
        Just(edge),
        Just(edge + 1),
        Just(edge + 6),
        Just(0x1_8000),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=70, 0usize..=9000, 1400usize..=1500, 8990usize..=9000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn opening_what_was_sealed_gives_the_packet_back(
        setting in settings(),
        (family, length) in (families(), lengths()),
        room in (0usize..300, 0usize..300),
        (traffic_class, shape, dont_fragment) in any::<(u8, u8, bool)>(),
        sequence in sequences(),
    ) {
        let given = match setting.mode {
            Mode::Tunnel => Given::noise(family, length, traffic_class, dont_fragment),
            Mode::Transport => Given::own(&setting, length, traffic_class, shape),
        };
        seal_and_open(&setting, &given, sequence.clamp(1, setting.numbers.limit()), room);
    }

    #[test]
    fn largest_inner_is_the_largest_whose_sealed_length_fits(
        setting in settings(),
        path_mtu in prop_oneof![
            0usize..200, 1200usize..1600, 65000usize..66000, Just(usize::MAX),
        ],
    ) {
        let (sa, _) = setting.pair();
        let limit = path_mtu.min(sa.outer.largest_packet());
        let largest = sa.largest_inner(path_mtu);
        if largest > 0 {
            prop_assert!(sa.sealed_length(largest) <= limit);
        }
        prop_assert!(sa.sealed_length(largest + 1) > limit);
    }

    #[test]
    fn sealed_length_is_the_length_of_what_is_sealed(
        setting in settings(),
        family in families(),
        length in lengths(),
    ) {
        let given = match setting.mode {
            Mode::Tunnel => Given::noise(family, length, 0, true),
            // Without options, as `sealed_length` takes it.
            Mode::Transport => Given::own(&setting, length, 0, BARE),
        };
        let (sa, _) = setting.pair();
        let mut frame = noise(11_000, 5);
        frame[1000..1000 + given.bytes.len()].copy_from_slice(&given.bytes);
        let (_, outer) = sa.encapsulate(FRAME, &mut frame, 1000, &given.packet, 1, 0).unwrap();
        prop_assert_eq!(outer.len(), sa.sealed_length(given.bytes.len()));
    }
}

#[test]
fn every_setting_seals_and_opens_every_short_length() {
    for setting in Setting::all() {
        for length in (0..=36).chain([1419, 8999]) {
            for (family, shape) in [(Family::V4, 0), (Family::V6, 17)] {
                let given = match setting.mode {
                    Mode::Tunnel => Given::noise(family, length, 0xb8, false),
                    Mode::Transport => Given::own(&setting, length, 0xb8, shape),
                };
                seal_and_open(&setting, &given, length as u64 + 1, (0, 0));
            }
        }
    }
}

#[test]
fn every_option_of_the_outer_header_is_written_as_it_is_set() {
    for outer in [Family::V4, Family::V6] {
        for dscp in [Dscp::Copy, Dscp::Fixed(0), Dscp::Fixed(46), Dscp::Fixed(63)] {
            for dont_fragment in [DontFragment::Set, DontFragment::Copy, DontFragment::Clear] {
                let plain = Setting::plain(Suite::Aes128Gcm, Mode::Tunnel, outer);
                let plain = Setting { dscp, dont_fragment, ..plain };
                for setting in [plain, Setting { udp: Some(PORTS), ..plain }] {
                    for (class, dont) in [(0, true), (0xb9, false), (0xff, true), (3, false)] {
                        let given = Given::noise(Family::V4, 60, class, dont);
                        for sequence in [1, 0xffff, 0x1_0000, 0x1234_5678] {
                            seal_and_open(&setting, &given, sequence, (3, 5));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn known_packet_has_the_known_bytes() {
    let (sa, _) = Setting::plain(Suite::Aes128Gcm, Mode::Tunnel, Family::V4).pair();
    let mut frame = vec![0xee; 80];
    let packet = Packet { traffic_class: 0xb9, ..invented(Family::V6, 5) };
    let (job, outer) = sa.encapsulate(FrameId(6), &mut frame, 40, &packet, 0x1122_3344, 8).unwrap();
    #[rustfmt::skip]
    let expected = [
        // 60 bytes; 45b9 + 003c + 4000 + 4032 + c000 + 0201 + c633 + 6407 = 2b262
        0x45, 0xb9, 0, 60, 0, 0, 0x40, 0, 64, 50, 0x4d, 0x9b,
        192, 0, 2, 1, 198, 51, 100, 7,
        1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44,
        0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44,
        0xee, 0xee, 0xee, 0xee, 0xee, 1, 1, 41,
    ];
    assert_eq!(outer, 4..64);
    assert_eq!(frame[4..48], expected);
    assert_eq!(frame[64..], [0xee; 16]);
    let mut nonce = [0; 16];
    // The salt is the end of the key material 1, 2, 3 ….
    nonce[..12].copy_from_slice(&[17, 18, 19, 20, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44]);
    let sequence = 0x1122_3344;
    let frame = FrameId(6);
    assert_eq!(job, SealJob { frame, aad: 24, text: 40, text_length: 8, nonce, sequence, row: 8 });
}

#[test]
fn known_packet_in_udp_that_may_be_fragmented_has_the_known_bytes() {
    let setting = Setting {
        udp: Some(PORTS),
        dscp: Dscp::Fixed(10),
        dont_fragment: DontFragment::Clear,
        ..Setting::plain(Suite::NullSha256, Mode::Tunnel, Family::V4)
    };
    let (sa, _) = setting.pair();
    let mut frame = vec![0xee; 80];
    let packet = Packet { traffic_class: 0xb9, ..invented(Family::V4, 2) };
    let (job, outer) = sa.encapsulate(FRAME, &mut frame, 40, &packet, 0x1122_3344, 0).unwrap();
    #[rustfmt::skip]
    let expected = [
        // 56 bytes; 4529 + 0038 + 3344 + 0000 + 4011 + c000 + 0201 + c633 + 6407 = 2a4f1
        0x45, 0x29, 0, 56, 0x33, 0x44, 0, 0, 64, 17, 0x5b, 0x0c,
        192, 0, 2, 1, 198, 51, 100, 7,
        0x11, 0x94, 0xef, 0x32, 0, 36, 0, 0,
        1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44,
        0xee, 0xee, 0, 4,
    ];
    assert_eq!(outer, 4..60);
    assert_eq!(frame[4..44], expected);
    assert_eq!((job.aad, job.text, job.text_length), (32, 40, 4));
}

#[test]
fn largest_packets_are_the_known_ones() {
    let (gcm, cbc) = (Suite::Aes256Gcm, Suite::Aes128CbcSha512);
    let (tunnel, transport) = (Mode::Tunnel, Mode::Transport);
    let (v4, v6) = (Family::V4, Family::V6);
    for (suite, mode, outer, udp, path_mtu, largest) in [
        (gcm, tunnel, v4, None, 1500, 1446),
        (gcm, tunnel, v6, None, 1500, 1426),
        (gcm, tunnel, v4, Some(PORTS), 1500, 1438),
        (gcm, tunnel, v6, Some(PORTS), 1500, 1418),
        (gcm, transport, v4, None, 1500, 1466),
        (gcm, transport, v6, Some(PORTS), 1500, 1458),
        // 1500 - 20 - 8 - 16 - 32 = 1424 = 89 blocks
        (cbc, tunnel, v4, None, 1500, 1422),
        (cbc, tunnel, v4, None, 1499, 1406),
        (cbc, tunnel, v6, Some(PORTS), 1500, 1390),
        (cbc, transport, v4, None, 1500, 1442),
        (Suite::NullSha256, tunnel, v4, None, 1500, 1454),
        (Suite::Null, tunnel, v4, None, 1500, 1470),
        (gcm, tunnel, v4, None, usize::MAX, 65478),
        (gcm, tunnel, v6, None, usize::MAX, 65498),
        // What the UDP header's 16 bits can say: the outer header is not counted in them.
        (gcm, tunnel, v4, Some(PORTS), usize::MAX, 65470),
        (gcm, tunnel, v6, Some(PORTS), usize::MAX, 65490),
        (gcm, tunnel, v4, None, 0, 0),
        (gcm, tunnel, v6, None, 75, 0),
        (gcm, tunnel, v6, None, 76, 2),
        (gcm, transport, v4, None, 55, 0),
        (gcm, transport, v4, None, 56, 22),
        (cbc, tunnel, v4, None, 91, 0),
        (cbc, tunnel, v4, None, 92, 14),
    ] {
        let (sa, _) = Setting { udp, ..Setting::plain(suite, mode, outer) }.pair();
        let what = format!("{suite} {} {outer:?} {udp:?} {path_mtu}", mode.name());
        assert_eq!(sa.largest_inner(path_mtu), largest, "{what}");
    }
}

#[test]
fn largest_packets_are_sealed_and_larger_ones_are_not() {
    for setting in Setting::all() {
        let (sa, _) = setting.pair();
        let largest = sa.largest_inner(usize::MAX);
        let mut frame = vec![0; 70_000];
        let mut attempt = |length: usize| {
            let packet = match setting.mode {
                Mode::Tunnel => invented(Family::V4, length),
                Mode::Transport => {
                    let Given { bytes, packet } = Given::own(&setting, 0, 0, BARE);
                    frame[100..100 + bytes.len()].copy_from_slice(&bytes);
                    Packet { length: length as u32, ..packet }
                }
            };
            let (_, outer) = sa.encapsulate(FRAME, &mut frame, 100, &packet, 1, 0)?;
            if setting.outer == Family::V6 && setting.udp.is_some() {
                let sealed = &mut frame[outer.clone()];
                assert!(finish_udp(sealed) && v6_udp_checksum_is_right(sealed, &sealed[40..]));
            }
            Some(outer.len())
        };
        assert_eq!(attempt(largest), Some(sa.sealed_length(largest)));
        assert_eq!(attempt(largest + 1), None);
        assert_eq!(attempt(u32::MAX as usize), None);
    }
}

#[test]
fn too_little_headroom_or_tailroom_seals_nothing() {
    for setting in Setting::all() {
        let (sa, _) = setting.pair();
        for length in 0..9 {
            let given = match setting.mode {
                Mode::Tunnel => Given::noise(Family::V4, length, 0, true),
                Mode::Transport => Given::own(&setting, length, 0, BARE),
            };
            let front = sa.sizes.front;
            let enough = sa.sealed_length(given.bytes.len());
            let attempt = |offset: usize, size: usize| {
                let mut frame = vec![0; size];
                if let Some(place) =
                    frame.get_mut(offset..).and_then(|f| f.get_mut(..given.bytes.len()))
                {
                    place.copy_from_slice(&given.bytes);
                }
                sa.encapsulate(FRAME, &mut frame, offset, &given.packet, 1, 0).is_some()
            };
            assert!(attempt(front, enough));
            assert!(!attempt(front, enough - 1));
            assert!(!attempt(front - 1, enough));
            assert!(!attempt(enough, enough));
            assert!(!attempt(usize::MAX, enough));
        }
    }
}

#[test]
fn sequence_number_0_and_numbers_beyond_the_limit_are_never_sealed() {
    for (numbers, sequence, allowed) in [
        (SHORT, 0, false),
        (SHORT, 1, true),
        (SHORT, u64::from(u32::MAX), true),
        (SHORT, 1 << 32, false),
        (SHORT, u64::MAX, false),
        (EXTENDED, 0, false),
        (EXTENDED, 1 << 32, true),
        (EXTENDED, u64::MAX, true),
    ] {
        for mode in [Mode::Tunnel, Mode::Transport] {
            let setting = Setting { numbers, ..Setting::plain(Suite::Aes128Gcm, mode, Family::V4) };
            let (sa, _) = setting.pair();
            let bytes = PacketBuilder::v4(V4_ENDS.0, V4_ENDS.1).udp(1, 2).ip();
            let mut frame = vec![0; 300];
            frame[100..100 + bytes.len()].copy_from_slice(&bytes);
            let packet = wire::packet::parse(&bytes).unwrap();
            let made = sa.encapsulate(FRAME, &mut frame, 100, &packet, sequence, 0);
            assert_eq!(made.is_some(), allowed, "{numbers:?} {sequence}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sealing_at_hostile_places_never_panics_and_stays_in_the_frame(
        setting in settings(),
        size in 0usize..300,
        (ip, length) in (super::edges(), any::<u32>()),
        small in 0u32..300,
        (upper_offset, protocol) in (0u16..400, any::<u8>()),
        family in families(),
    ) {
        let (sa, _) = setting.pair();
        let mut frame = noise(size, 9);
        // Between the ends or not, of another family or not, and its bytes are none of that.
        let own = Given::own(&setting, 0, 0, 0).packet;
        let flow = wire::Flow { protocol, ..own.flow };
        for packet in [
            Packet { length, upper_offset, flow, ..own },
            Packet { length: small, upper_offset, flow, ..own },
            Packet { length: small, upper_offset, ..invented(family, 0) },
        ] {
            if let Some((job, outer)) = sa.encapsulate(FRAME, &mut frame, ip, &packet, 1, 0) {
                prop_assert!(outer.start < outer.end && outer.end <= size);
                prop_assert!(job.aad as usize >= outer.start);
                let icv_end = job.text as usize + job.text_length as usize + sa.sizes.icv;
                prop_assert_eq!(icv_end, outer.end);
            }
        }
    }
}
