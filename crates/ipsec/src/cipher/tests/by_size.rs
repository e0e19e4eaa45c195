//! A key in two libraries, its packets routed by their length.

use super::*;
use crate::sequence::SequenceNumbers;

/// Lengths on both sides of the cut, in an order that goes to and fro.
const LENGTHS: [u32; 8] = [SHORT_BYTES, SHORT_BYTES + 1, 0, 1420, 1, 9000, SHORT_BYTES - 1, 512];

/// A batch of packets of these lengths, each in a frame of its own.
fn mixed() -> (Heap, Vec<SealJob>) {
    let lengths = (0..64).map(|row| LENGTHS[row % LENGTHS.len()]);
    let job = |(row, text_length): (u32, u32)| SealJob {
        frame: FrameId(row),
        aad: 3,
        text: 3 + HEADER_BYTES as u32 + 8,
        text_length,
        nonce: [row as u8; 16],
        sequence: u64::from(row) << 30,
        row,
    };
    let jobs: Vec<SealJob> = (0..64).zip(lengths).map(job).collect();
    let frame = |job: &SealJob| vec![0x5a; (job.text + job.text_length) as usize + 16 + 5];
    (Heap(jobs.iter().map(frame).collect()), jobs)
}

fn each_pair(mut test: impl FnMut(&KeyMaterial, Choice, Cipher)) {
    for &suite in Suite::ALL.iter().filter(|suite| suite.is_aead()) {
        let key = material(suite, 7);
        for pair in pairs(suite) {
            for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
                let cipher = Cipher::with_choice(&key, pair).unwrap().with_numbers(numbers);
                test(&key, pair, cipher);
            }
        }
    }
}

#[test]
fn mixed_batch_of_a_pair_opens_with_each_backend_and_the_other_way_about() {
    each_pair(|key, pair, cipher| {
        for kind in BackendKind::ALL.iter().copied().filter(|kind| kind.has(key.suite())) {
            let alone = Cipher::with_backend(key, kind).unwrap().with_numbers(cipher.numbers);
            let (clear, jobs) = mixed();
            for (sealing, opener) in [(&cipher, &alone), (&alone, &cipher)] {
                let mut frames = Heap(clear.0.clone());
                sealing.seal(&mut frames, &jobs).unwrap();
                let mut opened: Vec<OpenJob> = jobs.iter().copied().map(opening).collect();
                opener.open(&mut frames, &mut opened);
                for (job, frame) in opened.iter().zip(&frames.0) {
                    assert!(job.authentic, "{pair:?} and {kind:?}: {job:?}");
                    let end = (job.text + job.text_length) as usize;
                    assert!(frame[..end].iter().all(|byte| *byte == 0x5a), "{pair:?}: {job:?}");
                }
            }
        }
    });
}

#[test]
fn refused_job_of_a_mixed_batch_leaves_it_and_all_behind_it_in_clear() {
    each_pair(|_, pair, cipher| {
        for at in 0..LENGTHS.len() {
            let (mut frames, mut jobs) = mixed();
            jobs[at].text_length = frames.0[at].len() as u32;
            let clear = frames.0.clone();
            assert_eq!(cipher.seal(&mut frames, &jobs), Err(SealError { job: at }), "{pair:?}");
            for (row, (frame, clear)) in frames.0.iter().zip(&clear).enumerate() {
                assert_eq!(frame != clear, row < at, "{pair:?}: row {row}, refused {at}");
            }
        }
    });
}

/// Every packet is under one of the two keys: its text and no other's goes to each.
#[test]
fn each_text_goes_to_the_backend_of_its_length() {
    let [short, long] = [BackendKind::Ring, BackendKind::AwsLc];
    let key = material(Suite::Aes128Gcm, 1);
    let pair = Choice::BySize { short, long, short_bytes: SHORT_BYTES };
    let Backend::BySize(keys) = Backend::new(&key, pair).unwrap() else { panic!("no pair") };
    for (length, name) in [(0, short), (64, short), (65, long), (9000, long)] {
        assert!(keys.of(&vec![0; length]).name().starts_with(name.name()), "{length} bytes");
    }
    assert_eq!(keys.name(), "ring 0.17.14 up to 64 B, aws-lc-rs above");
}

#[test]
fn suite_that_is_no_aead_has_no_pair() {
    let pair = Choice::BySize {
        short: BackendKind::AwsLc,
        long: BackendKind::AwsLc,
        short_bytes: SHORT_BYTES,
    };
    for &suite in Suite::ALL.iter().filter(|suite| !suite.is_aead()) {
        assert!(Cipher::with_choice(&material(suite, 1), pair).is_none(), "{suite}");
    }
}
