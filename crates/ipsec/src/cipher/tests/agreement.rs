//! The backends against each other, and a batch against its packets one by one.

use proptest::prelude::*;

use super::*;

/// A packet to be: where in its frame, how long, with which number and bytes.
#[derive(Clone, Debug)]
struct Plan {
    offset: usize,
    length: usize,
    sequence: u64,
    nonce: [u8; 16],
    seed: u8,
}

/// Lengths at the edges of blocks, of what libraries do at once, and of frames; and any.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => (0..=12_usize, -1..=1_isize)
            .prop_map(|(power, by)| (1_usize << power).saturating_add_signed(by)),
        1 => 8990..=9000_usize,
        3 => 0..=300_usize,
        2 => 0..=9000_usize,
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let sequence = prop_oneof![
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(1 << 32),
        Just(u64::MAX),
        any::<u64>()
    ];
    (0..64_usize, length(), sequence, any::<[u8; 16]>(), any::<u8>()).prop_map(
        |(offset, length, sequence, nonce, seed)| Plan { offset, length, sequence, nonce, seed },
    )
}

/// The frame of a packet in clear, noise around it, and its job.
fn lay(suite: Suite, plan: &Plan, row: u32) -> (Vec<u8>, SealJob) {
    let length = match suite.encryption() {
        Encryption::Cbc => plan.length.max(1).next_multiple_of(16),
        _ => plan.length,
    };
    let text = plan.offset + HEADER_BYTES + suite.iv_bytes();
    let mut frame: Vec<u8> = (0..text + length + suite.icv_bytes() + 19)
        .map(|place| plan.seed.wrapping_add((place * place) as u8 >> 3))
        .collect();
    if suite.encryption() == Encryption::Cbc {
        frame[text - 16..text].copy_from_slice(&plan.nonce);
    }
    let job = SealJob {
        frame: FrameId(row),
        aad: plan.offset as u32,
        text: text as u32,
        text_length: length as u32,
        nonce: plan.nonce,
        sequence: plan.sequence,
        row,
    };
    (frame, job)
}

/// Seals packet by packet on the portable backend.
fn obvious(cipher: &Cipher, clear: &[Vec<u8>], jobs: &[SealJob]) -> Vec<Vec<u8>> {
    let mut frames = Heap(clear.to_vec());
    jobs.iter().for_each(|job| cipher.seal(&mut frames, &[*job]).unwrap());
    frames.0
}

/// Returns the sealed part of a frame: text and ICV.
fn sealed_part(suite: Suite, job: &SealJob) -> std::ops::Range<usize> {
    let (text, length) = (job.text as usize, job.text_length as usize);
    text..text + length + suite.icv_bytes()
}

fn check(
    suite: Suite,
    numbers: SequenceNumbers,
    plans: &[Plan],
    flip: (u16, u8),
) -> Result<(), TestCaseError> {
    let key = material(suite, plans[0].seed);
    let portable = on(&key, BackendKind::AwsLc).unwrap().with_numbers(numbers);
    let (clear, jobs): (Vec<_>, Vec<_>) =
        plans.iter().enumerate().map(|(row, plan)| lay(suite, plan, row as u32)).unzip();
    let sealed = obvious(&portable, &clear, &jobs);
    for (row, job) in jobs.iter().enumerate() {
        let part = sealed_part(suite, job);
        prop_assert_eq!(&sealed[row][..part.start], &clear[row][..part.start]);
        prop_assert_eq!(&sealed[row][part.end..], &clear[row][part.end..]);
    }
    for cipher in on_every_backend(&key) {
        let cipher = cipher.with_numbers(numbers);
        let name = cipher.backend_name();
        let mut frames = Heap(clear.clone());
        prop_assert_eq!(cipher.seal(&mut frames, &jobs), Ok(()));
        prop_assert!(frames.0 == sealed, "{name} sealed otherwise");

        let mut opened: Vec<OpenJob> = jobs.iter().copied().map(opening).collect();
        cipher.open(&mut frames, &mut opened);
        for (row, job) in jobs.iter().enumerate() {
            prop_assert!(opened[row].authentic, "row {row} on {name}");
            let (part, icv) = (sealed_part(suite, job), suite.icv_bytes());
            let mut expected = clear[row].clone();
            let behind = part.end - icv..part.end;
            expected[behind.clone()].copy_from_slice(&sealed[row][behind]);
            prop_assert!(frames.0[row] == expected, "row {row} on {name}");
        }
        if suite.is_authenticated() {
            refuses_one(&cipher, &sealed, &jobs, flip)?;
        }
    }
    Ok(())
}

/// Turns a bit of one packet over, anywhere in what is authenticated: it alone is refused.
fn refuses_one(
    cipher: &Cipher,
    sealed: &[Vec<u8>],
    jobs: &[SealJob],
    (place, bit): (u16, u8),
) -> Result<(), TestCaseError> {
    let changed = usize::from(place) % jobs.len();
    let job = &jobs[changed];
    let part = sealed_part(cipher.suite(), job);
    let start = job.aad as usize;
    let header_and_iv = match cipher.suite().integrity() {
        // ESN takes the sequence number of the job, not the one in the header, which is its half.
        None => start..start + 4,
        Some(_) => start..part.start,
    };
    let places: Vec<usize> = header_and_iv.chain(part).collect();
    let mut frames = Heap(sealed.to_vec());
    frames.0[changed][places[usize::from(place) * 31 % places.len()]] ^= 1 << (bit % 8);
    let mut opened: Vec<OpenJob> = jobs.iter().copied().map(opening).collect();
    cipher.open(&mut frames, &mut opened);
    for (row, job) in opened.iter().enumerate() {
        prop_assert_eq!(job.authentic, row != changed, "row {} of {}", row, cipher.suite());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Every suite, batches of 1 to 64 packets of 0 to 9000 bytes at all alignments.
    #[test]
    fn backends_agree_byte_for_byte_and_refuse_a_flipped_bit(
        suite in prop::sample::select(Suite::ALL),
        extended in any::<bool>(),
        plans in prop_oneof![
            prop::collection::vec(plan(), 1..=5),
            prop::collection::vec(plan(), 15..=18),
            prop::collection::vec(plan(), 64),
        ],
        flip in any::<(u16, u8)>(),
    ) {
        let numbers = match extended {
            false => SequenceNumbers::Short,
            true => SequenceNumbers::Extended,
        };
        check(suite, numbers, &plans, flip)?;
    }
}

/// Covers, without leaving it to chance, each length up to 300 bytes, and each alignment with each
/// suite.
#[test]
fn backends_agree_on_every_short_length_at_every_alignment() {
    for &suite in Suite::ALL {
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            for start in (0..=300).step_by(64) {
                let plan = |row: usize| Plan {
                    offset: row,
                    length: start + (row * 37 + start / 64) % 64,
                    sequence: 0x1_0000_0000 * row as u64 + 9,
                    nonce: [row as u8; 16],
                    seed: row as u8,
                };
                let plans: Vec<Plan> = (0..64).map(plan).collect();
                check(suite, numbers, &plans, (start as u16, 3)).unwrap();
            }
        }
    }
}

#[test]
fn every_bit_of_a_packet_matters() {
    each(|cipher| {
        let suite = cipher.suite();
        if !suite.is_authenticated() {
            return;
        }
        let cipher = cipher.with_numbers(SequenceNumbers::Extended);
        let plan = Plan { offset: 3, length: 32, sequence: 5, nonce: [8; 16], seed: 1 };
        let (mut clear, job) = lay(suite, &plan, 0);
        clear[3 + 4..3 + 8].copy_from_slice(&5_u32.to_be_bytes());
        let mut frames = Heap(vec![clear]);
        cipher.seal(&mut frames, &[job]).unwrap();
        let end = sealed_part(suite, &job).end;
        let is_opened = |frame: Vec<u8>, job: SealJob| {
            let mut opened = [opening(job)];
            cipher.open(&mut Heap(vec![frame]), &mut opened);
            opened[0].authentic
        };
        for (place, bit) in (3..end).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
            let mut frame = frames.0[0].clone();
            frame[place] ^= 1 << bit;
            // Of an AEAD's packet the IV counts by way of the nonce, and with ESN the number by
            // way of the job.
            let elsewhere = suite.integrity().is_none() && (7..3 + 16).contains(&place);
            assert_eq!(is_opened(frame, job), elsewhere, "{suite} byte {place} bit {bit}");
        }
        for bit in 32..64 {
            let other = SealJob { sequence: job.sequence ^ 1 << bit, ..job };
            assert!(!is_opened(frames.0[0].clone(), other), "{suite} number's bit {bit}");
        }
        assert!(is_opened(frames.0[0].clone(), job));
    });
}
