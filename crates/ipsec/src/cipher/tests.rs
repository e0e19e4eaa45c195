use std::sync::Once;

use wire::FrameId;

use super::aead::Aead;
use super::*;
use crate::testing::{Heap, material};

mod agreement;
mod by_size;
mod choosing;
mod published;

/// Bytes of the longest text that goes to the first backend of a pair.
const SHORT_BYTES: u32 = 64;

/// The cipher on each backend of this machine, and an AEAD's on pairs of them; a backend that it
/// does not have is said to be skipped.
fn on_every_backend(material: &KeyMaterial) -> Vec<Cipher> {
    let alone = BackendKind::ALL.iter().filter_map(|kind| on(material, *kind));
    let pairs = pairs(material.suite()).into_iter();
    let in_pairs = pairs.map(|pair| Cipher::with_choice(material, pair).expect("both are there"));
    alone.chain(in_pairs).collect()
}

/// Pairs of an AEAD's backends on this machine, in which each of them is once the first or once the
/// second.
fn pairs(suite: Suite) -> Vec<Choice> {
    let kinds: Vec<BackendKind> =
        BackendKind::ALL.iter().copied().filter(|kind| kind.has(suite)).collect();
    let pair = |pair: &[BackendKind]| Choice::BySize {
        short: pair[0],
        long: pair[1],
        short_bytes: SHORT_BYTES,
    };
    if suite.is_aead() { kinds.windows(2).map(pair).collect() } else { Vec::new() }
}

static SAID: Once = Once::new();

fn on(material: &KeyMaterial, kind: BackendKind) -> Option<Cipher> {
    let cipher = Cipher::with_backend(material, kind);
    if cipher.is_none() {
        let (name, suite) = (kind.name(), material.suite());
        let is_left_out = match kind {
            // Which it leaves to others on processors without AVX2.
            BackendKind::IpsecMb => suite == Suite::ChaCha20Poly1305,
            BackendKind::Ring => !suite.is_aead() || suite == Suite::Aes192Gcm,
            BackendKind::AwsLc => false,
        };
        assert!(!kind.is_available() || is_left_out, "{name} has no {suite}");
        SAID.call_once(|| println!("SKIPPED: this machine has no {name} for {suite}"));
    }
    cipher
}

/// Every suite on every backend.
fn each(mut test: impl FnMut(Cipher)) {
    for &suite in Suite::ALL {
        on_every_backend(&material(suite, 1)).into_iter().for_each(&mut test);
    }
}

/// A frame of 128 bytes and a good job in it: header at 10, IV of 16 bytes or less, text of 48 at
/// 34, ICV at 82.
fn good_job(frame: u32) -> SealJob {
    SealJob {
        frame: FrameId(frame),
        aad: 10,
        text: 34,
        text_length: 48,
        nonce: [frame as u8; 16],
        sequence: 1,
        row: 0,
    }
}

const FRAME: [u8; 128] = [0x5a; 128];

fn opening(job: SealJob) -> OpenJob {
    let SealJob { frame, aad, text, text_length, nonce, sequence, row } = job;
    OpenJob { frame, aad, text, text_length, nonce, sequence, row, authentic: false }
}

/// Jobs that do not lie in a frame of 128 bytes, and some whose text is not whole blocks.
fn bad(suite: Suite) -> Vec<SealJob> {
    let good = good_job(0);
    let mut bad = vec![
        SealJob { text_length: u32::MAX, ..good },
        SealJob { text_length: u32::MAX - 15, ..good },
        SealJob { text_length: 96, ..good },
        SealJob { text: 129 - 48, ..good },
        SealJob { text: 129, text_length: 0, ..good },
        SealJob { text: u32::MAX, ..good },
        SealJob { text: u32::MAX, text_length: 0, ..good },
        SealJob { aad: 27, ..good },
        SealJob { aad: 34, ..good },
        SealJob { aad: 35, ..good },
        SealJob { aad: u32::MAX, ..good },
        SealJob { text: 7, aad: 0, ..good },
    ];
    if suite.icv_bytes() > 0 {
        // The text lies in the frame, but not the last byte of the ICV.
        bad.push(SealJob { text: 128 - 48 + 1 - suite.icv_bytes() as u32, ..good });
        bad.push(SealJob { text: 128, text_length: 0, ..good });
    }
    if suite.encryption() == Encryption::Cbc {
        bad.extend([0, 1, 15, 17, 47].map(|text_length| SealJob { text_length, ..good }));
    }
    bad
}

#[test]
fn bad_job_is_not_sealed_and_nothing_is_written() {
    each(|cipher| {
        for job in bad(cipher.suite()) {
            let mut frames = Heap(vec![FRAME.to_vec()]);
            let sealed = cipher.seal(&mut frames, &[job]);
            assert_eq!(sealed, Err(SealError { job: 0 }), "{} {job:?}", cipher.suite());
            assert_eq!(frames.0[0], FRAME, "{} {job:?}", cipher.suite());
        }
    });
}

/// Places of the bad job among 80: at the edges of bursts of 16 and 40. One of them for each kind
/// of bad job, another one for the next; with `LOCKGATE_LONG` all of them.
fn places(number: usize) -> Vec<usize> {
    const ALL: [usize; 6] = [0, 2, 15, 16, 40, 79];
    match std::env::var_os("LOCKGATE_LONG") {
        Some(_) => ALL.to_vec(),
        None => vec![ALL[number % ALL.len()]],
    }
}

#[test]
fn sealing_stops_at_the_first_bad_job() {
    each(|cipher| {
        let (authenticated, name) = (cipher.suite().is_authenticated(), cipher.backend_name());
        for (number, job) in bad(cipher.suite()).into_iter().enumerate() {
            for at in places(number) {
                let mut frames = Heap(vec![FRAME.to_vec(); 80]);
                let mut jobs: Vec<SealJob> = (0..80).map(good_job).collect();
                jobs[at] = SealJob { frame: FrameId(at as u32), ..job };
                let sealed = cipher.seal(&mut frames, &jobs);
                assert_eq!(sealed, Err(SealError { job: at }), "{name} {job:?}");
                for (row, frame) in frames.0.iter().enumerate() {
                    let is_sealed = frame[..] != FRAME;
                    assert_eq!(is_sealed, row < at && authenticated, "{name} {row} {job:?}");
                }
            }
        }
    });
}

#[test]
fn bad_job_is_not_authentic_and_does_not_hold_up_the_others() {
    each(|cipher| {
        for (number, job) in bad(cipher.suite()).into_iter().enumerate() {
            for at in places(number) {
                let good: Vec<SealJob> = (0..80).map(good_job).collect();
                let mut frames = Heap(vec![FRAME.to_vec(); 80]);
                cipher.seal(&mut frames, &good).unwrap();
                let mut jobs: Vec<OpenJob> = good.into_iter().map(opening).collect();
                let bad = SealJob { frame: FrameId(at as u32), ..job };
                jobs[at] = OpenJob { authentic: true, ..opening(bad) };
                let before = frames.0[at].clone();
                cipher.open(&mut frames, &mut jobs);
                assert_eq!(frames.0[at], before);
                for (row, job) in jobs.iter().enumerate() {
                    assert_eq!(job.authentic, row != at, "{} {row}", cipher.suite());
                    assert!(row == at || frames.0[row][34..82] == [0x5a; 48]);
                }
            }
        }
    });
}

#[test]
fn jobs_of_a_batch_do_not_touch_each_other() {
    each(|cipher| {
        let icv_bytes = cipher.suite().icv_bytes();
        let jobs: Vec<SealJob> = (0..64).map(good_job).collect();
        let mut together = Heap(vec![FRAME.to_vec(); 64]);
        cipher.seal(&mut together, &jobs).unwrap();
        for job in &jobs {
            let mut alone = Heap(vec![FRAME.to_vec(); 64]);
            cipher.seal(&mut alone, std::slice::from_ref(job)).unwrap();
            let frame = job.frame.0 as usize;
            assert_eq!(alone.0[frame], together.0[frame]);
            assert_eq!(together.0[frame][..34], FRAME[..34]);
            assert_eq!(together.0[frame][82 + icv_bytes..], FRAME[82 + icv_bytes..]);
        }
        let mut opened: Vec<OpenJob> = jobs.iter().copied().map(opening).collect();
        together.0[5][40] ^= 1;
        cipher.open(&mut together, &mut opened);
        for (row, job) in opened.iter().enumerate() {
            assert_eq!(job.authentic, row != 5 || !cipher.suite().is_authenticated());
        }
    });
}

/// Two packets in one frame, as two jobs of a batch: no library may be handed the frame twice.
#[test]
fn two_jobs_of_one_frame_are_sealed_and_opened_in_their_order() {
    each(|cipher| {
        let second = SealJob { aad: 140, text: 164, nonce: [9; 16], ..good_job(0) };
        let jobs = [good_job(0), second, good_job(1)];
        let mut frames = Heap(vec![vec![0x5a; 256]; 2]);
        cipher.seal(&mut frames, &jobs).unwrap();
        let mut alone = Heap(vec![vec![0x5a; 256]; 2]);
        jobs.iter().for_each(|job| cipher.seal(&mut alone, &[*job]).unwrap());
        assert_eq!(frames.0, alone.0, "{}", cipher.suite());
        let mut jobs = jobs.map(opening);
        cipher.open(&mut frames, &mut jobs);
        assert_eq!(jobs.map(|job| job.authentic), [true; 3], "{}", cipher.suite());
        assert_eq!(frames.0[0][164..212], [0x5a; 48]);
    });
}

#[test]
fn nothing_to_do_is_done() {
    each(|cipher| {
        let mut frames = Heap(vec![]);
        assert_eq!(cipher.seal(&mut frames, &[]), Ok(()));
        cipher.open(&mut frames, &mut []);
    });
}

/// RFC 4303 §3.4.4.1: integrity first. The text that is left is not even wrongly decrypted.
#[test]
fn text_under_hmac_that_is_not_authentic_is_not_decrypted() {
    each(|cipher| {
        if cipher.suite().integrity().is_none() {
            return;
        }
        let mut frames = Heap(vec![FRAME.to_vec()]);
        cipher.seal(&mut frames, &[good_job(0)]).unwrap();
        frames.0[0][82] ^= 0x80;
        let before = frames.0[0].clone();
        cipher.open(&mut frames, &mut [opening(good_job(0))]);
        assert_eq!(frames.0[0], before);
    });
}

#[test]
fn iv_of_an_aead_is_the_sequence_number_behind_the_salt() {
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let key = material(suite, 1);
        let cipher = Cipher::new(&key);
        let sequence = 0x0102_0304_0506_0708_u64;
        let expected = [key.salt(), &sequence.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(cipher.nonce(sequence).to_ne_bytes()[..], expected);
        assert_eq!(cipher.received_nonce(&sequence.to_be_bytes()).to_ne_bytes()[..], expected);
    }
}

#[test]
fn iv_of_cbc_is_no_function_of_key_and_number_and_the_same_where_the_key_is_shared() {
    let key = material(Suite::Aes128CbcSha256, 1);
    let (one, other) = (Cipher::new(&key), Cipher::new(&key));
    for sequence in [0, 1, 2, u64::from(u32::MAX), u64::MAX] {
        let iv = one.nonce(sequence);
        assert_eq!(one.share().nonce(sequence), iv);
        assert_eq!(one.share().with_numbers(SequenceNumbers::Extended).nonce(sequence), iv);
        assert_ne!(other.nonce(sequence), iv);
        assert_eq!(one.received_nonce(&iv.to_ne_bytes()), iv);
    }
}

#[test]
fn without_encryption_there_is_no_iv() {
    for suite in [Suite::NullSha256, Suite::NullSha384, Suite::NullSha512, Suite::Null] {
        let cipher = Cipher::new(&material(suite, 1));
        assert_eq!(cipher.nonce(77), 0);
        assert_eq!(cipher.received_nonce(&[]), 0);
    }
}

#[test]
fn iv_of_another_length_makes_no_panic() {
    each(|cipher| {
        for length in 0..40 {
            cipher.received_nonce(&vec![3; length]);
        }
    });
}

#[test]
fn new_cipher_is_on_the_chosen_backends_and_the_choice_holds() {
    self_test().unwrap();
    for &suite in Suite::ALL {
        let (key, choice) = (material(suite, 1), Choice::of(suite));
        assert_eq!(Choice::of(suite), choice);
        assert!(choice.kinds().all(|kind| kind.has(suite)), "{suite}: {choice:?}");
        let (new, chosen) = (Cipher::new(&key), Cipher::with_choice(&key, choice).unwrap());
        assert_eq!(new.backend_name(), chosen.backend_name());
        assert_eq!(new.suite(), suite);
        let first = on_every_backend(&key)[0].backend_name();
        assert_eq!(Cipher::on_first_backend(&key).backend_name(), first);
        assert!(suite.is_aead() || new.backend_name() == first, "{suite}");
    }
}

#[test]
fn backends_have_names_and_the_portable_one_is_everywhere() {
    for &kind in BackendKind::ALL {
        assert_eq!(BackendKind::from_name(kind.name()), Some(kind));
        assert_eq!(BackendKind::from_name(&kind.name().to_uppercase()), None);
        assert!(kind.version().is_none() || kind.is_available());
    }
    assert!(BackendKind::AwsLc.is_available());
    let name = |suite| on(&material(suite, 1), BackendKind::AwsLc).unwrap().backend_name();
    assert_eq!(name(Suite::Aes128Gcm), "aws-lc-rs");
    assert_eq!(name(Suite::NullSha256), "aws-lc-rs");
    assert_eq!(name(Suite::Aes128CbcSha256), "aws-lc-rs, RustCrypto AES-CBC");
    assert_eq!(name(Suite::Null), "none");
    let ring = Cipher::with_backend(&material(Suite::Aes128Gcm, 1), BackendKind::Ring).unwrap();
    let locked = include_str!("../../../../Cargo.lock");
    let version = locked.split_once("name = \"ring\"\nversion = \"").unwrap().1;
    let version = version.split_once('"').unwrap().0;
    assert_eq!(ring.backend_name(), format!("ring {version}"));
}
