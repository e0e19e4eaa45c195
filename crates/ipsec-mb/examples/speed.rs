//! Nanoseconds a packet of every algorithm: one thread on one core, frames of 2 KiB spread as a
//! worker's are, bursts of 64, all of a burst's ESP headers, IVs and nonces written before it.
//!
//! `cargo run --release -p ipsec-mb --example speed [core]`

use std::time::Instant;

use ipsec_mb::{CbcHmac, ChaCha20Poly1305, Gcm, Hash, Packet};

const FRAMES: usize = 2048;
const FRAME_BYTES: usize = 2048;
const BURST: usize = 64;
/// The offset of the ESP header in a frame.
const HEADER: usize = 256 + 34;
const ROUNDS: usize = 60;
const TEXTS: [usize; 2] = [64, 1440];

fn main() {
    let core = std::env::args().nth(1).and_then(|core| core.parse().ok()).unwrap_or(0);
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let pinned = rustix::thread::sched_setaffinity(None, &cores).is_ok();
    let Some(version) = ipsec_mb::version() else {
        println!("the ipsec-mb library is not there");
        return;
    };
    let (architecture, residue) = (ipsec_mb::architecture(), ipsec_mb::residue());
    println!("ipsec-mb {version}, {architecture}, {residue:?}; core {core}, pinned: {pinned}");
    println!("ns a packet: least and median of {ROUNDS} rounds of {FRAMES} packets");
    let mut memory = vec![0; FRAMES * FRAME_BYTES];
    for bits in [128, 192, 256] {
        let key = Gcm::new(&vec![7; bits / 8]).expect("a key of AES");
        one_by_one(&format!("AES-{bits}-GCM seal"), &mut memory, |nonce, aad, text, icv| {
            key.seal(nonce, aad, text, icv);
        });
        one_by_one(&format!("AES-{bits}-GCM open"), &mut memory, |nonce, aad, text, icv| {
            std::hint::black_box(key.open(nonce, aad, text, icv));
        });
    }
    let start = Instant::now();
    ipsec_mb::prepare_thread();
    println!("a thread's lanes: {} µs", start.elapsed().as_micros());
    if let Some(key) = ChaCha20Poly1305::new(&[7; 32]) {
        one_by_one("ChaCha20-Poly1305 seal", &mut memory, |nonce, aad, text, icv| {
            key.seal(nonce, aad, text, icv);
        });
        one_by_one("ChaCha20-Poly1305 open", &mut memory, |nonce, aad, text, icv| {
            std::hint::black_box(key.open(nonce, aad, text, icv));
        });
    }
    for (hash, name) in [
        (Hash::Sha256_128, "SHA-256"),
        (Hash::Sha384_192, "SHA-384"),
        (Hash::Sha512_256, "SHA-512"),
    ] {
        for bits in [0, 128, 256] {
            let cipher = vec![7; bits / 8];
            let cipher = (bits != 0).then_some(cipher.as_slice());
            let key = CbcHmac::new(cipher, hash, &[9; 32]).expect("keys");
            let cipher = if bits == 0 { "NULL".to_owned() } else { format!("AES-{bits}-CBC") };
            bursts(&format!("{cipher} HMAC-{name}"), &mut memory, &key);
        }
    }
}

/// Times one call a packet.
fn one_by_one(
    name: &str,
    memory: &mut [u8],
    mut call: impl FnMut(&[u8; 16], &[u8], &mut [u8], &mut [u8; 16]),
) {
    let times = TEXTS.map(|bytes| {
        rounds(|round| {
            for burst in memory.chunks_mut(BURST * FRAME_BYTES) {
                let mut nonces = [[0; 16]; BURST];
                for (frame, nonce) in burst.chunks_mut(FRAME_BYTES).zip(&mut nonces) {
                    nonce[..4].copy_from_slice(&round.to_be_bytes());
                    frame[HEADER..HEADER + 4].copy_from_slice(&round.to_be_bytes());
                }
                for (frame, nonce) in burst.chunks_mut(FRAME_BYTES).zip(&nonces) {
                    let (header, rest) = frame[HEADER..].split_at_mut(16);
                    let (text, behind) = rest.split_at_mut(bytes);
                    let icv = behind.first_chunk_mut().expect("room for the ICV");
                    call(nonce, &header[..8], text, icv);
                }
            }
        })
    });
    show(name, times);
}

/// Times bursts in both directions.
fn bursts(name: &str, memory: &mut [u8], key: &CbcHmac) {
    let run = |memory: &mut [u8], bytes: usize, work: &mut dyn FnMut(&mut [Packet<'_>])| {
        rounds(|round| {
            for burst in memory.chunks_mut(BURST * FRAME_BYTES) {
                let mut packets: Vec<_> = burst
                    .chunks_mut(FRAME_BYTES)
                    .map(|frame| packet(&mut frame[HEADER..], bytes))
                    .collect();
                for packet in &mut packets {
                    packet.iv[..4].copy_from_slice(&round.to_be_bytes());
                    packet.bytes[..4].copy_from_slice(&round.to_be_bytes());
                }
                work(&mut packets);
            }
        })
    };
    let sealed = TEXTS.map(|bytes| {
        run(memory, bytes, &mut |packets| key.seal(packets).expect("packets that fit"))
    });
    show(&format!("{name} seal"), sealed);
    // Decrypting in place what is not what was sealed would not be authentic: each round seals
    // and opens, and what sealing takes is subtracted.
    let both = TEXTS.map(|bytes| {
        run(memory, bytes, &mut |packets| {
            key.seal(packets).expect("packets that fit");
            key.open(packets);
            assert!(packets.iter().all(|packet| packet.authentic));
        })
    });
    let opened = [0, 1].map(|at| (both[at].0 - sealed[at].0, both[at].1 - sealed[at].1));
    show(&format!("{name} open"), opened);
}

fn packet(bytes: &mut [u8], text: usize) -> Packet<'_> {
    Packet { bytes, iv: [3; 16], text: 24..24 + text, extended: None, authentic: false }
}

/// Nanoseconds a packet: the least and the median.
fn rounds(mut round: impl FnMut(u32)) -> (f64, f64) {
    let mut times: Vec<_> = (0..ROUNDS as u32)
        .map(|number| {
            let start = Instant::now();
            round(number);
            start.elapsed().as_nanos() as f64 / FRAMES as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn show(name: &str, times: [(f64, f64); 2]) {
    print!("{name:32}");
    for (bytes, (least, median)) in TEXTS.iter().zip(times) {
        print!("  {bytes:5} B {least:6.1} {median:6.1}");
    }
    println!();
}
