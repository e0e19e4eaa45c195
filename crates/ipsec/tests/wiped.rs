//! Keys that are dropped are nowhere left in the process. A program of its own: memory that other
//! threads map and unmap while it is read would be missed.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use ipsec::cipher::{BackendKind, Choice};
use ipsec::{Cipher, KeyMaterial, SealJob, Suite};
use wire::{FrameId, Frames};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the longest text that goes to the first backend of a pair.
const SHORT_BYTES: u32 = 64;

/// Bytes that are read of the process's memory at a time.
const WINDOW: usize = 1 << 16;
/// Hides the key in what the test itself keeps of it.
const MASK: u8 = 0xa5;

/// Places of this process's memory at which a key lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Places {
    /// On the stack of this thread, which the libraries use.
    stack: usize,
    elsewhere: usize,
}

/// Finds bytes that are these under [`MASK`].
fn places(masked: &[u8], window: &mut [u8]) -> Places {
    let memory = File::open("/proc/self/mem").unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Places { stack: 0, elsewhere: 0 };
    let on_stack = &raw const found as u64;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [mut at, to] = [from, to].map(|bound| u64::from_str_radix(bound, 16).unwrap());
        let count = match (at..to).contains(&on_stack) {
            true => &mut found.stack,
            false => &mut found.elsewhere,
        };
        while at < to {
            // Its own copy of a key that it found is gone before the heap is read.
            window.zeroize();
            let length = WINDOW.min((to - at) as usize);
            if memory.read_exact_at(&mut window[..length], at).is_ok() {
                *count += count_in(&window[..length], masked);
            }
            // A key may lie across the edge; none is counted twice.
            at += if length == WINDOW { length - (masked.len() - 1) } else { length } as u64;
        }
    }
    window.zeroize();
    found
}

fn count_in(mut bytes: &[u8], masked: &[u8]) -> usize {
    let (first, mut count) = (masked[0] ^ MASK, 0);
    while let Some(place) = bytes.iter().position(|byte| *byte == first) {
        let key = bytes[place..].get(..masked.len());
        let is_key = |key: &[u8]| key.iter().zip(masked).all(|(a, b)| a ^ b == MASK);
        count += usize::from(key.is_some_and(is_key));
        bytes = &bytes[place + 1..];
    }
    count
}

/// Random material of a suite, and its key under [`MASK`].
fn random(suite: Suite) -> (KeyMaterial, Vec<u8>) {
    let mut bytes = Zeroizing::new(vec![0; suite.material_bytes()]);
    getrandom::fill(&mut bytes).unwrap();
    let masked = bytes[..suite.key_bytes()].iter().map(|byte| byte ^ MASK).collect();
    (KeyMaterial::new(suite, &bytes).unwrap(), masked)
}

/// Frames on the heap.
struct Heap([Vec<u8>; 2]);

impl Frames for Heap {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.0[frame.0 as usize]
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        &mut self.0[frame.0 as usize]
    }

    fn many_mut<'f>(&'f mut self, _frames: &[FrameId], _into: &mut [&'f mut [u8]]) -> bool {
        false
    }

    fn take(&mut self) -> Option<FrameId> {
        None
    }

    fn give(&mut self, _frame: FrameId) {}
}

/// Seals a packet on either side of a pair's cut.
fn seal_some(cipher: &Cipher) {
    let mut frames = Heap([vec![0x5a; 1500], vec![0x5a; 1500]]);
    let job = |row: u32, text_length| SealJob {
        frame: FrameId(row),
        aad: 0,
        text: 16,
        text_length,
        nonce: [row as u8; 16],
        sequence: u64::from(row),
        row,
    };
    cipher.seal(&mut frames, &[job(0, SHORT_BYTES), job(1, 1420)]).unwrap();
}

/// Each backend of this machine that has the suite, and pairs of neighbours.
fn choices(suite: Suite) -> Vec<Choice> {
    let kinds: Vec<BackendKind> =
        BackendKind::ALL.iter().copied().filter(|kind| kind.has(suite)).collect();
    let pairs = kinds.windows(2).map(|pair| Choice::BySize {
        short: pair[0],
        long: pair[1],
        short_bytes: SHORT_BYTES,
    });
    kinds.iter().map(|kind| Choice::One(*kind)).chain(pairs).collect()
}

/// AWS-LC and ring lay the key of ChaCha20 on the stack for each packet, where the next packet's
/// call writes over it; ipsec-mb wipes its stack if it was built to. That is theirs to change.
#[test]
fn no_backend_and_no_pair_leaves_a_key_behind() {
    let mut window = vec![0; WINDOW];
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        for choice in choices(suite) {
            let (material, masked) = random(suite);
            let cipher = Cipher::with_choice(&material, choice).unwrap();
            drop(material);
            seal_some(&cipher);
            let alive = places(&masked, &mut window);
            drop(black_box(cipher));
            let left = places(&masked, &mut window);
            println!("{suite} {choice:?}: {alive:?}, dropped {left:?}");
            assert_eq!(alive.elsewhere, choice.kinds().count(), "{suite} {choice:?}");
            assert_eq!(left.elsewhere, 0, "{suite} {choice:?}");
            let is_aes_of_ring = suite != Suite::ChaCha20Poly1305
                && choice.kinds().all(|kind| kind == BackendKind::Ring);
            assert!(left.stack == 0 || !is_aes_of_ring, "{suite} {choice:?}");
        }
    }
}
