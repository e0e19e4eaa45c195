//! Opening: what is accepted, and why the rest is not.

use proptest::prelude::*;
use wire::Family;

use super::book::{EXTENDED, SHORT, Setting, settings};
use super::{FRAME, edges, invented, noise};
use crate::encapsulation::Mode;
use crate::esp::*;
use crate::suite::Encryption;
use crate::testing::Heap;
use crate::{InboundSa, KeyMaterial, OutboundSa, ReplayError, Suite};

fn tunnel_v4(suite: Suite) -> Setting {
    Setting::plain(suite, Mode::Tunnel, Family::V4)
}

/// An inner IPv4 packet of `length` bytes, sealed in a frame that fits exactly, and the place of
/// ESP in it.
fn sealed(sa: &OutboundSa, length: usize, sequence: u64) -> (Heap, Range<usize>) {
    let mut frames = Heap(vec![noise(sa.sealed_length(length), 5)]);
    let (packet, ip) = (invented(Family::V4, length), sa.sizes.front);
    let (job, outer) =
        sa.encapsulate(FRAME, &mut frames.0[0], ip, &packet, sequence, 0).expect("fits exactly");
    sa.cipher.seal(&mut frames, &[job]).unwrap();
    (frames, job.aad as usize..outer.end)
}

fn open(sa: &InboundSa, frames: &mut Heap, esp: Range<usize>) -> Result<Payload, OpenError> {
    let mut job = sa.open_job(FRAME, &frames.0[0], esp, 9)?;
    sa.cipher.open(frames, std::slice::from_mut(&mut job));
    assert_eq!(job.row, 9);
    strip(&frames.0[0], &job, Mode::Tunnel)
}

fn authenticated() -> impl Iterator<Item = Suite> {
    Suite::ALL.iter().copied().filter(|suite| suite.is_authenticated())
}

#[test]
fn any_flipped_bit_of_header_iv_text_or_icv_fails_to_authenticate() {
    for suite in authenticated() {
        for numbers in [SHORT, EXTENDED] {
            let (outbound, inbound) = Setting { numbers, ..tunnel_v4(suite) }.pair();
            let (mut frames, esp) = sealed(&outbound, 33, 77);
            let original = frames.0[0].clone();
            for bit in esp.start * 8..esp.end * 8 {
                frames.0[0].copy_from_slice(&original);
                frames.0[0][bit / 8] ^= 1 << (bit % 8);
                let result = open(&inbound, &mut frames, esp.clone());
                assert_eq!(result, Err(OpenError::Integrity), "{suite} bit {bit}");
            }
            frames.0[0].copy_from_slice(&original);
            assert!(open(&inbound, &mut frames, esp).is_ok());
        }
    }
}

#[test]
fn packet_cut_short_or_made_longer_does_not_open() {
    for suite in authenticated() {
        let (outbound, inbound) = tunnel_v4(suite).pair();
        let (frames, esp) = sealed(&outbound, 100, 1);
        for change in 1..esp.len() + 20 {
            let mut shorter = Heap(vec![frames.0[0].clone()]);
            let cut = esp.start..esp.end.saturating_sub(change).max(esp.start);
            assert!(open(&inbound, &mut shorter, cut).is_err(), "{suite} less {change}");
            let mut longer = Heap(vec![frames.0[0].clone()]);
            longer.0[0].resize(esp.end + change, 0);
            let grown = esp.start..esp.end + change;
            assert!(open(&inbound, &mut longer, grown).is_err(), "{suite} plus {change}");
        }
    }
}

#[test]
fn another_key_does_not_open() {
    for suite in authenticated() {
        let (outbound, inbound) = tunnel_v4(suite).pair();
        let right: Vec<u8> = (1..=suite.material_bytes() as u8).collect();
        for changed in 0..right.len() {
            let mut bytes = right.clone();
            bytes[changed] ^= 0x80;
            let other = KeyMaterial::new(suite, &bytes).unwrap();
            let (carried, window) = (inbound.encapsulation, inbound.window.clone());
            let other =
                InboundSa::new(inbound.id, inbound.spi, inbound.set, &other, carried, window)
                    .unwrap();
            let (mut frames, esp) = sealed(&outbound, 40, 1);
            let result = open(&other, &mut frames, esp);
            // A wrong encryption key beside the right integrity key: authentic, but noise. The IV
            // is unpredictable: once in some 32,000 packets the noise ends like a packet's padding.
            let in_key = suite.encryption() == Encryption::Cbc && changed < suite.key_bytes();
            if in_key {
                let opened = result
                    .map(|payload| matches!(payload, Payload::Packet(inner) if inner.length == 40));
                assert_ne!(opened, Ok(true), "{suite} byte {changed}");
                assert_ne!(opened, Err(OpenError::Integrity), "{suite} byte {changed}");
            } else {
                assert_eq!(result, Err(OpenError::Integrity), "{suite} byte {changed}");
            }
        }
    }
}

#[test]
fn sequence_number_0_is_not_accepted() {
    let (_, inbound) = tunnel_v4(Suite::Aes128Gcm).pair();
    let job = inbound.open_job(FRAME, &[0; 100], 0..36, 0).unwrap();
    assert_eq!(inbound.window.check(job.sequence), Err(ReplayError::TooOld));
}

#[test]
fn with_esn_the_high_half_of_the_number_is_authenticated() {
    for suite in authenticated() {
        let (outbound, inbound) = Setting { numbers: EXTENDED, ..tunnel_v4(suite) }.pair();
        let (mut frames, esp) = sealed(&outbound, 40, (1 << 32) + 7);
        let (mut again, _) = sealed(&outbound, 40, (1 << 32) + 7);
        // The receiver is still in the first 2³² numbers, and guesses the number 7.
        let guessed = open(&inbound, &mut frames, esp.clone());
        assert_eq!(guessed, Err(OpenError::Integrity), "{suite}");
        inbound.window.commit(u64::from(u32::MAX)).unwrap();
        assert!(open(&inbound, &mut again, esp).is_ok(), "{suite}");
    }
}

#[test]
fn truncated_esp_has_no_header_and_no_job() {
    let frame = [0; 100];
    for length in 0..8 {
        assert_eq!(EspHeader::read(&frame[..length]), None);
    }
    for &suite in Suite::ALL {
        let (_, inbound) = tunnel_v4(suite).pair();
        let least = 8 + suite.iv_bytes() + 2 + suite.icv_bytes();
        for length in 0..least {
            let job = inbound.open_job(FRAME, &frame, 10..10 + length, 0);
            assert_eq!(job, Err(OpenError::Truncated), "{suite} {length}");
        }
        for place in [80..180, 100..160, 101..161, 200..260, usize::MAX - 60..usize::MAX] {
            let job = inbound.open_job(FRAME, &frame, place, 0);
            assert_eq!(job, Err(OpenError::Truncated), "{suite}");
        }
        #[expect(clippy::reversed_empty_ranges)]
        let inverted = 50..10;
        assert_eq!(inbound.open_job(FRAME, &frame, inverted, 0), Err(OpenError::Truncated));
    }
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
fn text_that_is_no_multiple_of_the_block_is_refused() {
    for &suite in Suite::ALL {
        let (_, inbound) = tunnel_v4(suite).pair();
        let block = if suite.encryption() == Encryption::Cbc { 16 } else { 4 };
        let around = 8 + suite.iv_bytes() + suite.icv_bytes();
        for text in 2..80 {
            let job = inbound.open_job(FRAME, &[0; 200], 3..3 + around + text, 0);
            match text % block {
                0 => {
                    let job = job.unwrap();
                    assert_eq!(job.text_length as usize, text);
                    assert_eq!((job.aad, job.text as usize), (3, 3 + 8 + suite.iv_bytes()));
                }
                _ => assert_eq!(job, Err(OpenError::Alignment), "{suite} {text}"),
            }
        }
    }
}

/// `strip` of an authentic job whose text is `text`.
fn strip_as(mode: Mode, text: &[u8]) -> Result<Payload, OpenError> {
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
    strip(&[&[0xaa; 16], text, &[0xbb; 16]].concat(), &job, mode)
}

fn strip_of(text: &[u8]) -> Result<Payload, OpenError> {
    strip_as(Mode::Tunnel, text)
}

#[test]
fn strip_finds_what_lies_in_front_of_the_padding() {
    let inner = |family, length| Ok(Payload::Packet(Inner { family, offset: 16, length }));
    assert_eq!(strip_of(&[9, 9, 0, 4]), inner(Family::V4, 2));
    assert_eq!(strip_of(&[9, 9, 0, 41]), inner(Family::V6, 2));
    assert_eq!(strip_of(&[1, 2, 2, 4]), inner(Family::V4, 0));
    assert_eq!(strip_of(&[0, 4]), inner(Family::V4, 0));
    // More padding than is needed is allowed, up to 255.
    let padding: Vec<u8> = (1..=255).collect();
    let longest = [&[9; 7], &padding[..], &[255, 41]].concat();
    assert_eq!(strip_of(&longest), inner(Family::V6, 7));
    let upper = Payload::Upper { protocol: 41, offset: 16, length: 7 };
    assert_eq!(strip_as(Mode::Transport, &longest), Ok(upper));
}

#[test]
fn wrong_padding_is_refused_wherever_it_is_wrong() {
    for mode in [Mode::Tunnel, Mode::Transport] {
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
            assert_eq!(strip_as(mode, text), Err(OpenError::Padding), "{text:?}");
        }
        let padding: Vec<u8> = (1..=255).collect();
        let right = [&[9; 7], &padding[..], &[255, 41]].concat();
        for wrong in 7..7 + 255 {
            let mut text = right.clone();
            text[wrong] ^= 1;
            assert_eq!(strip_as(mode, &text), Err(OpenError::Padding), "{wrong}");
        }
    }
}

#[test]
fn next_header_is_ip_in_tunnel_mode_anything_in_transport_mode_and_59_a_dummy() {
    for next in 0..=255 {
        let packet = |family| Ok(Payload::Packet(Inner { family, offset: 16, length: 2 }));
        let expected = match next {
            4 => packet(Family::V4),
            41 => packet(Family::V6),
            59 => Err(OpenError::Dummy),
            _ => Err(OpenError::NextHeader),
        };
        assert_eq!(strip_of(&[9, 9, 0, next]), expected);
        let expected = match next {
            59 => Err(OpenError::Dummy),
            protocol => Ok(Payload::Upper { protocol, offset: 16, length: 2 }),
        };
        assert_eq!(strip_as(Mode::Transport, &[9, 9, 0, next]), expected);
    }
}

#[test]
fn text_outside_its_frame_or_without_trailer_is_truncated() {
    assert_eq!(strip_of(&[]), Err(OpenError::Truncated));
    assert_eq!(strip_of(&[4]), Err(OpenError::Truncated));
    let (_, inbound) = tunnel_v4(Suite::Aes128Gcm).pair();
    let frame = [0; 60];
    let job = inbound.open_job(FRAME, &frame, 0..60, 0).unwrap();
    let job = OpenJob { authentic: true, ..job };
    assert_eq!(strip(&frame[..40], &job, Mode::Tunnel), Err(OpenError::Truncated));
    assert_eq!(strip(&frame[..10], &job, Mode::Transport), Err(OpenError::Truncated));
}

#[test]
fn what_is_not_authentic_is_never_stripped() {
    let (_, inbound) = tunnel_v4(Suite::Aes128Gcm).pair();
    let mut frame = [0; 60];
    frame[42..44].copy_from_slice(&[0, 4]);
    let job = inbound.open_job(FRAME, &frame, 0..60, 0).unwrap();
    for mode in [Mode::Tunnel, Mode::Transport] {
        assert_eq!(strip(&frame, &job, mode), Err(OpenError::Integrity));
        assert!(strip(&frame, &OpenJob { authentic: true, ..job }, mode).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn hostile_places_and_lengths_never_panic(
        setting in settings(),
        frame in prop::collection::vec(any::<u8>(), 0..300),
        (start, end) in (edges(), edges()),
        (aad, text, text_length) in any::<(u32, u32, u32)>(),
        (small_text, small_length) in (0u32..350, 0u32..350),
    ) {
        let (_, inbound) = setting.pair();
        let mut frames = Heap(vec![frame]);
        EspHeader::read(&frames.0[0]);
        if let Ok(job) = inbound.open_job(FRAME, &frames.0[0], start..end, 0) {
            prop_assert!(start < end && end <= frames.0[0].len());
            let is_authentic = setting.suite.is_authenticated();
            for lie in [job, OpenJob { aad, text, text_length, ..job }] {
                let mut jobs = [lie];
                inbound.cipher.open(&mut frames, &mut jobs);
                prop_assert!(!(jobs[0].authentic && is_authentic));
            }
            let lie = OpenJob { text, text_length, authentic: true, ..job };
            strip(&frames.0[0], &lie, setting.mode).ok();
            let lie = OpenJob { text: small_text, text_length: small_length, ..lie };
            if let Ok(payload) = strip(&frames.0[0], &lie, setting.mode) {
                let (offset, length) = match payload {
                    Payload::Packet(inner) => (inner.offset, inner.length),
                    Payload::Upper { offset, length, .. } => (offset, length),
                };
                prop_assert!(offset + length <= frames.0[0].len());
            }
        }
    }
}
