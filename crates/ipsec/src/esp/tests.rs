use proptest::prelude::*;

use super::*;
use crate::testing::{Heap, SPI, pair};
use crate::{ReplayError, SequenceNumbers, Suite};

const V4_ENDS: (&str, &str) = ("192.0.2.1", "198.51.100.7");
const V6_ENDS: (&str, &str) = ("2001:db8::1", "2001:db8:ffff::7");
const SHORT: SequenceNumbers = SequenceNumbers::Short;
const EXTENDED: SequenceNumbers = SequenceNumbers::Extended;
const FRAME: FrameId = FrameId(0);

fn suites() -> impl Strategy<Value = Suite> {
    prop::sample::select(Suite::ALL)
}

fn numbers() -> impl Strategy<Value = SequenceNumbers> {
    prop::sample::select(vec![SHORT, EXTENDED])
}

fn families() -> impl Strategy<Value = Family> {
    prop::sample::select(vec![Family::V4, Family::V6])
}

fn ends() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![V4_ENDS, V6_ENDS])
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=70, 0usize..=9000, 1400usize..=1500, 8990usize..=9000]
}

/// A frame of noise with `length` bytes of it called an inner packet.
fn noise(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// An inner IPv4 packet of `length` bytes, sealed in a frame that fits exactly.
fn sealed(sa: &OutboundSa, length: usize, sequence: u64) -> (Heap, Range<usize>) {
    let offset = sa.outer.bytes();
    let mut frames = Heap(vec![noise(sa.sealed_length(length), 5)]);
    let inner = Inner { family: Family::V4, offset, length };
    let (job, outer) =
        sa.encapsulate(FRAME, &mut frames.0[0], inner, 0, sequence, 0).expect("fits exactly");
    sa.cipher.seal(&mut frames, &[job]).unwrap();
    (frames, outer)
}

fn open(sa: &InboundSa, frames: &mut Heap, esp: Range<usize>) -> Result<Inner, OpenError> {
    let mut job = sa.open_job(FRAME, &frames.0[0], esp, 9)?;
    sa.cipher.open(frames, std::slice::from_mut(&mut job));
    assert_eq!(job.row, 9);
    strip(&frames.0[0], &job)
}

/// RFC 1071 by its text: the sum of all words with end-around carry is all ones.
fn ip_checksum_is_right(header: &[u8]) -> bool {
    let mut sum: u64 =
        header.chunks(2).map(|word| u64::from(word[0]) * 256 + u64::from(word[1])).sum();
    while sum > 0xffff {
        sum = sum % 0x10000 + sum / 0x10000;
    }
    sum == 0xffff
}

/// Checks every field of the outer IP header and returns the offset of the ESP header in it.
fn check_outer(packet: &[u8], tunnel: crate::Tunnel, traffic_class: u8) -> usize {
    match (tunnel.local, tunnel.remote) {
        (std::net::IpAddr::V4(local), std::net::IpAddr::V4(remote)) => {
            assert_eq!(packet[0], 0x45);
            assert_eq!(packet[1], traffic_class);
            assert_eq!(usize::from(packet[2]) * 256 + usize::from(packet[3]), packet.len());
            assert_eq!(packet[4..8], [0, 0, 0x40, 0]);
            assert_eq!(packet[8..10], [64, 50]);
            assert_eq!(packet[12..16], local.octets());
            assert_eq!(packet[16..20], remote.octets());
            assert!(ip_checksum_is_right(&packet[..20]));
            20
        }
        (std::net::IpAddr::V6(local), std::net::IpAddr::V6(remote)) => {
            assert_eq!(packet[0], 0x60 | traffic_class >> 4);
            assert_eq!(packet[1..4], [traffic_class << 4, 0, 0]);
            assert_eq!(usize::from(packet[4]) * 256 + usize::from(packet[5]), packet.len() - 40);
            assert_eq!(packet[6..8], [50, 64]);
            assert_eq!(packet[8..24], local.octets());
            assert_eq!(packet[24..40], remote.octets());
            40
        }
        _ => panic!("mixed families"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn opening_what_was_sealed_gives_the_inner_packet_back(
        (suite, numbers, ends) in (suites(), numbers(), ends()),
        (family, length) in (families(), lengths()),
        (headroom, tailroom) in (0usize..300, 0usize..300),
        (traffic_class, seed, row) in any::<(u8, u8, u32)>(),
        sequence in prop_oneof![
            1u64..1000, Just(u64::from(u32::MAX)), Just(1 << 32), Just((1 << 32) + 5),
            Just(u64::MAX), any::<u64>(),
        ],
    ) {
        let (outbound, inbound) = pair(suite, numbers, ends);
        let sequence = sequence.min(numbers.limit()).max(1);
        let offset = headroom + outbound.outer.bytes();
        let before = noise(headroom + outbound.sealed_length(length) + tailroom, seed);
        let mut frames = Heap(vec![before.clone()]);
        let inner = Inner { family, offset, length };
        let (job, outer) = outbound
            .encapsulate(FRAME, &mut frames.0[0], inner, traffic_class, sequence, row)
            .unwrap();
        prop_assert_eq!(&frames.0[0][offset..offset + length], &before[offset..offset + length]);
        outbound.cipher.seal(&mut frames, &[job]).unwrap();

        prop_assert_eq!((job.row, job.sequence), (row, sequence));
        prop_assert_eq!(outer.clone(), headroom..headroom + outbound.sealed_length(length));
        let after = frames.0[0].clone();
        prop_assert_eq!(&after[..headroom], &before[..headroom]);
        prop_assert_eq!(&after[outer.end..], &before[outer.end..]);
        let packet = &after[outer.clone()];
        let esp = check_outer(packet, outbound.tunnel, traffic_class);
        prop_assert_eq!(&packet[esp..esp + 4], &SPI.to_be_bytes());
        prop_assert_eq!(&packet[esp + 4..esp + 8], &sequence.to_be_bytes()[4..]);
        prop_assert_eq!(&packet[esp + 8..esp + 16], &sequence.to_be_bytes());
        let header = EspHeader::read(&packet[esp..]).unwrap();
        prop_assert_eq!(header.spi, Some(outbound.spi));
        prop_assert_eq!(header.sequence_low, sequence as u32);
        if length >= 16 {
            let there = |place: &[u8]| place == &before[offset..offset + length];
            prop_assert!(!there(&after[offset..offset + length]), "left in clear");
        }

        inbound.window.commit(sequence.saturating_sub(10).max(1)).unwrap();
        let esp = outer.start + esp..outer.end;
        let mut job = inbound.open_job(FRAME, &after, esp, row).unwrap();
        prop_assert_eq!((job.row, job.sequence, job.authentic), (row, sequence, false));
        inbound.cipher.open(&mut frames, std::slice::from_mut(&mut job));
        prop_assert_eq!(strip(&frames.0[0], &job), Ok(inner));
        prop_assert_eq!(&frames.0[0][offset..offset + length], &before[offset..offset + length]);
    }

    #[test]
    fn largest_inner_is_the_largest_whose_sealed_length_fits(
        ends in ends(),
        path_mtu in prop_oneof![
            0usize..200, 1200usize..1600, 65000usize..66000, Just(usize::MAX),
        ],
    ) {
        let (sa, _) = pair(Suite::Aes128Gcm, SHORT, ends);
        let limit = path_mtu.min(sa.outer.largest_packet());
        let largest = sa.largest_inner(path_mtu);
        if largest > 0 {
            prop_assert!(sa.sealed_length(largest) <= limit);
        }
        prop_assert!(sa.sealed_length(largest + 1) > limit);
    }

    #[test]
    fn hostile_places_and_lengths_never_panic(
        frame in prop::collection::vec(any::<u8>(), 0..200),
        (start, end) in (edges(), edges()),
        (aad, text, text_length) in any::<(u32, u32, u32)>(),
        (small_text, small_length) in (0u32..250, 0u32..250),
    ) {
        let (outbound, inbound) = pair(Suite::Aes128Gcm, EXTENDED, V4_ENDS);
        let mut frames = Heap(vec![frame]);
        EspHeader::read(&frames.0[0]);
        if let Ok(job) = inbound.open_job(FRAME, &frames.0[0], start..end, 0) {
            prop_assert!(start < end && end <= frames.0[0].len());
            let mut jobs = [job, OpenJob { aad, text, text_length, ..job }];
            inbound.cipher.open(&mut frames, &mut jobs);
            prop_assert!(!jobs[0].authentic && !jobs[1].authentic);
            let lie = OpenJob { text, text_length, authentic: true, ..job };
            strip(&frames.0[0], &lie).ok();
            let lie = OpenJob { text: small_text, text_length: small_length, ..lie };
            strip(&frames.0[0], &lie).ok();
        }
        let inner = Inner { family: Family::V4, offset: start, length: end };
        if let Some((_, outer)) = outbound.encapsulate(FRAME, &mut frames.0[0], inner, 0, 1, 0) {
            prop_assert!(outer.end <= frames.0[0].len());
        }
    }
}

fn edges() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..220, 1 => (usize::MAX - 50)..=usize::MAX, 1 => any::<usize>()]
}

#[test]
fn known_packet_has_the_known_bytes() {
    let (sa, _) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let mut frame = vec![0xee; 80];
    let inner = Inner { family: Family::V6, offset: 40, length: 5 };
    let (job, outer) = sa.encapsulate(FrameId(6), &mut frame, inner, 0xb9, 0x1122_3344, 8).unwrap();
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
    assert!(ip_checksum_is_right(&frame[4..24]));
    assert_eq!(frame[64..], [0xee; 16]);
    let mut nonce = [0; 16];
    // The salt is the end of the key material 1, 2, 3 ….
    nonce[..12].copy_from_slice(&[17, 18, 19, 20, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44]);
    let sequence = 0x1122_3344;
    let frame = FrameId(6);
    assert_eq!(job, SealJob { frame, aad: 24, text: 40, text_length: 8, nonce, sequence, row: 8 });
}

#[test]
fn largest_inner_packets_are_the_known_ones() {
    for (ends, path_mtu, largest) in [
        (V4_ENDS, 1500, 1446),
        (V6_ENDS, 1500, 1426),
        (V4_ENDS, usize::MAX, 65478),
        (V6_ENDS, usize::MAX, 65498),
        (V4_ENDS, 0, 0),
        (V6_ENDS, 75, 0),
        (V6_ENDS, 76, 2),
    ] {
        let (sa, _) = pair(Suite::Aes256Gcm, SHORT, ends);
        assert_eq!(sa.largest_inner(path_mtu), largest, "{path_mtu}");
    }
}

#[test]
fn padding_brings_the_trailer_to_a_multiple_of_4_and_counts_1_2_3() {
    let (sa, _) = pair(Suite::Aes256Gcm, SHORT, V6_ENDS);
    for (length, trailer) in
        [(0, vec![1, 2, 2, 4]), (1, vec![1, 1, 4]), (2, vec![0, 4]), (3, vec![1, 2, 3, 3, 4])]
    {
        let offset = sa.outer.bytes();
        let mut frame = vec![0; sa.sealed_length(length)];
        let inner = Inner { family: Family::V4, offset, length };
        let (job, _) = sa.encapsulate(FRAME, &mut frame, inner, 0, 1, 0).unwrap();
        assert_eq!(job.text_length as usize, length + trailer.len());
        assert_eq!(job.text_length % 4, 0);
        assert_eq!(frame[offset + length..][..trailer.len()], trailer);
    }
}

#[test]
fn any_flipped_bit_of_header_iv_text_or_icv_fails_to_authenticate() {
    for &suite in Suite::ALL {
        for numbers in [SHORT, EXTENDED] {
            for (ends, esp) in [(V4_ENDS, 20), (V6_ENDS, 40)] {
                let (outbound, inbound) = pair(suite, numbers, ends);
                let (mut frames, outer) = sealed(&outbound, 33, 77);
                let original = frames.0[0].clone();
                for bit in esp * 8..outer.len() * 8 {
                    frames.0[0].copy_from_slice(&original);
                    frames.0[0][bit / 8] ^= 1 << (bit % 8);
                    let result = open(&inbound, &mut frames, esp..outer.end);
                    assert_eq!(result, Err(OpenError::Integrity), "bit {bit}");
                }
                frames.0[0].copy_from_slice(&original);
                assert!(open(&inbound, &mut frames, esp..outer.end).is_ok());
            }
        }
    }
}

#[test]
fn another_key_or_salt_does_not_open() {
    let (outbound, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let bytes: Vec<u8> = (1..=20).collect();
    for changed in 0..20 {
        let mut bytes = bytes.clone();
        bytes[changed] ^= 0x80;
        let other = crate::KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap();
        let window = inbound.window.clone();
        let other =
            InboundSa::new(inbound.id, inbound.spi, inbound.set, &other, inbound.tunnel, window)
                .unwrap();
        let (mut frames, outer) = sealed(&outbound, 40, 1);
        let result = open(&other, &mut frames, 20..outer.end);
        assert_eq!(result, Err(OpenError::Integrity), "byte {changed}");
    }
}

#[test]
fn too_little_headroom_or_tailroom_seals_nothing() {
    for ends in [V4_ENDS, V6_ENDS] {
        let (sa, _) = pair(Suite::Aes128Gcm, SHORT, ends);
        for length in 0..9 {
            let enough = sa.sealed_length(length);
            let attempt = |offset, size| {
                let inner = Inner { family: Family::V4, offset, length };
                sa.encapsulate(FRAME, &mut vec![0; size], inner, 0, 1, 0).is_some()
            };
            assert!(attempt(sa.outer.bytes(), enough));
            assert!(!attempt(sa.outer.bytes(), enough - 1));
            assert!(!attempt(sa.outer.bytes() - 1, enough));
            assert!(!attempt(usize::MAX, enough));
        }
    }
}

#[test]
fn packet_beyond_what_the_outer_header_can_say_is_not_sealed() {
    for ends in [V4_ENDS, V6_ENDS] {
        let (sa, _) = pair(Suite::Aes128Gcm, SHORT, ends);
        let largest = sa.largest_inner(usize::MAX);
        let mut frame = vec![0; 70_000];
        let mut attempt = |length| {
            let inner = Inner { family: Family::V4, offset: 100, length };
            sa.encapsulate(FRAME, &mut frame, inner, 0, 1, 0).map(|(_, outer)| outer.len())
        };
        assert_eq!(attempt(largest), Some(sa.sealed_length(largest)));
        assert_eq!(attempt(largest + 1), None);
        assert_eq!(attempt(usize::MAX), None);
    }
}

#[test]
fn sequence_number_0_and_numbers_beyond_the_limit_are_never_sealed() {
    let inner = Inner { family: Family::V4, offset: 100, length: 20 };
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
        let (sa, _) = pair(Suite::Aes128Gcm, numbers, V4_ENDS);
        let made = sa.encapsulate(FRAME, &mut [0; 300], inner, 0, sequence, 0);
        assert_eq!(made.is_some(), allowed, "{numbers:?} {sequence}");
    }
}

#[test]
fn sequence_number_0_is_not_accepted() {
    let (_, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let job = inbound.open_job(FRAME, &[0; 100], 0..36, 0).unwrap();
    assert_eq!(inbound.window.check(job.sequence), Err(ReplayError::TooOld));
}

#[test]
fn with_esn_the_high_half_of_the_number_is_authenticated() {
    let (outbound, inbound) = pair(Suite::Aes128Gcm, EXTENDED, V4_ENDS);
    let (mut frames, outer) = sealed(&outbound, 40, (1 << 32) + 7);
    let (mut again, _) = sealed(&outbound, 40, (1 << 32) + 7);
    // The receiver is still in the first 2³² numbers, and guesses the number 7.
    assert_eq!(open(&inbound, &mut frames, 20..outer.end), Err(OpenError::Integrity));
    inbound.window.commit(u64::from(u32::MAX)).unwrap();
    assert!(open(&inbound, &mut again, 20..outer.end).is_ok());
}

#[test]
fn truncated_esp_has_no_header_and_no_job() {
    let (_, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let frame = [0; 100];
    for length in 0..8 {
        assert_eq!(EspHeader::read(&frame[..length]), None);
    }
    for length in 0..34 {
        let job = inbound.open_job(FRAME, &frame, 10..10 + length, 0);
        assert_eq!(job, Err(OpenError::Truncated), "{length}");
    }
    for place in [80..120, 100..136, 101..137, 200..236, usize::MAX - 36..usize::MAX] {
        let job = inbound.open_job(FRAME, &frame, place, 0);
        assert_eq!(job, Err(OpenError::Truncated));
    }
    #[expect(clippy::reversed_empty_ranges)]
    let inverted = 50..10;
    assert_eq!(inbound.open_job(FRAME, &frame, inverted, 0), Err(OpenError::Truncated));
}

#[test]
fn reserved_spi_in_a_packet_is_no_spi() {
    for (bytes, spi) in [
        ([0, 0, 0, 255, 0, 0, 0, 1], None),
        ([0, 0, 1, 0, 0, 0, 0, 1], Spi::new(256)),
        ([255, 255, 255, 255, 0, 0, 0, 1], Spi::new(u32::MAX)),
    ] {
        assert_eq!(EspHeader::read(&bytes), Some(EspHeader { spi, sequence_low: 1 }));
    }
}

#[test]
fn text_that_is_no_multiple_of_4_is_refused() {
    let (_, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    for length in 34..80 {
        let job = inbound.open_job(FRAME, &[0; 100], 3..3 + length, 0);
        match length % 4 {
            0 => assert_eq!(job.unwrap().text_length as usize, length - 32),
            _ => assert_eq!(job, Err(OpenError::Alignment)),
        }
    }
}

/// `strip` of an authentic job whose text is `text`.
fn strip_of(text: &[u8]) -> Result<Inner, OpenError> {
    let job = OpenJob {
        frame: FRAME,
        aad: 0,
        text: 16,
        text_length: text.len() as u32,
        nonce: [0; 16],
        sequence: 1,
        row: 0,
        authentic: true,
    };
    strip(&[&[0xaa; 16], text, &[0xbb; 16]].concat(), &job)
}

#[test]
fn strip_finds_what_lies_in_front_of_the_padding() {
    let inner = |family, length| Ok(Inner { family, offset: 16, length });
    assert_eq!(strip_of(&[9, 9, 0, 4]), inner(Family::V4, 2));
    assert_eq!(strip_of(&[9, 9, 0, 41]), inner(Family::V6, 2));
    assert_eq!(strip_of(&[1, 2, 2, 4]), inner(Family::V4, 0));
    assert_eq!(strip_of(&[0, 4]), inner(Family::V4, 0));
    // More padding than is needed is allowed, up to 255.
    let padding: Vec<u8> = (1..=255).collect();
    assert_eq!(strip_of(&[&[9; 7], &padding[..], &[255, 41]].concat()), inner(Family::V6, 7));
}

#[test]
fn wrong_padding_is_refused_wherever_it_is_wrong() {
    for text in [
        &[0, 1, 4][..],
        &[0, 1, 4, 3, 4],
        &[1, 2, 2, 3, 4],
        &[0, 0, 0, 3, 4],
        // More padding than there is text.
        &[1, 4],
        &[1, 2, 3, 4],
        &[1, 2, 255, 4],
    ] {
        assert_eq!(strip_of(text), Err(OpenError::Padding), "{text:?}");
    }
    let padding: Vec<u8> = (1..=255).collect();
    let right = [&[9; 7], &padding[..], &[255, 41]].concat();
    for wrong in 7..7 + 255 {
        let mut text = right.clone();
        text[wrong] ^= 1;
        assert_eq!(strip_of(&text), Err(OpenError::Padding), "{wrong}");
    }
}

#[test]
fn next_header_is_ipv4_or_ipv6_or_dummy_or_refused() {
    for next in 0..=255 {
        let expected = match next {
            4 => Ok(Family::V4),
            41 => Ok(Family::V6),
            59 => Err(OpenError::Dummy),
            _ => Err(OpenError::NextHeader),
        };
        assert_eq!(strip_of(&[9, 9, 0, next]).map(|inner| inner.family), expected);
    }
}

#[test]
fn text_outside_its_frame_or_without_trailer_is_truncated() {
    assert_eq!(strip_of(&[]), Err(OpenError::Truncated));
    assert_eq!(strip_of(&[4]), Err(OpenError::Truncated));
    let (_, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let frame = [0; 60];
    let job = inbound.open_job(FRAME, &frame, 0..60, 0).unwrap();
    let job = OpenJob { authentic: true, ..job };
    assert_eq!(strip(&frame[..40], &job), Err(OpenError::Truncated));
    assert_eq!(strip(&frame[..10], &job), Err(OpenError::Truncated));
}

#[test]
fn what_is_not_authentic_is_never_stripped() {
    let (_, inbound) = pair(Suite::Aes128Gcm, SHORT, V4_ENDS);
    let mut frame = [0; 60];
    frame[42..44].copy_from_slice(&[0, 4]);
    let job = inbound.open_job(FRAME, &frame, 0..60, 0).unwrap();
    assert_eq!(strip(&frame, &job), Err(OpenError::Integrity));
    assert!(strip(&frame, &OpenJob { authentic: true, ..job }).is_ok());
}
