//! The test of the ciphers at start-up, on published vectors.

use std::sync::atomic::{AtomicBool, Ordering};

use wire::{BATCH, FrameId};

use super::trial::{Trial, opening};
use super::{BackendKind, Cipher, HEADER_BYTES, OpenJob, SealJob};
use crate::suite::Encryption;
use crate::{KeyMaterial, Suite};

/// A cipher library gives wrong results on this machine. Nothing may be sealed with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the self-test of {suite} by {} failed ({step:?}): it cannot be trusted", backend.name())]
pub struct SelfTestError {
    /// The suite that failed.
    pub suite: Suite,
    /// The backend on which it failed.
    pub backend: BackendKind,
    /// The step that went wrong.
    pub step: SelfTestStep,
}

/// The tested step of a suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelfTestStep {
    /// Ciphertext and ICV are the published ones.
    Seal,
    /// The published ciphertext opens to the published text.
    Open,
    /// A changed ciphertext is refused.
    Refuse,
}

/// Seals and opens a published vector with every suite on every backend of this machine, and
/// checks that a changed one is refused: through the very calls that packets take, a whole batch
/// at once, so that each lane of a library that works on several packets has its turn.
/// Cost: some milliseconds. Done once, before the first packet and the first key that is to carry
/// any: keys that are expanded before it are not on the quickest backend
/// ([`Choice::of`](super::Choice::of)).
///
/// # Errors
/// [`SelfTestError`]: the process must not start.
pub fn self_test() -> Result<(), SelfTestError> {
    for &backend in BackendKind::ALL {
        for &suite in Suite::ALL {
            check(suite, backend, &published(suite))?;
        }
    }
    PASSED.store(true, Ordering::Release);
    Ok(())
}

/// True once the self-test has passed in this process.
static PASSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the self-test has passed in this process.
pub(super) fn has_passed() -> bool {
    PASSED.load(Ordering::Acquire)
}

/// A packet, in hexadecimal.
struct Vector {
    material: String,
    /// SPI and sequence number, no ESN.
    header: &'static str,
    iv: &'static str,
    text: &'static str,
    /// Ciphertext and ICV.
    sealed: String,
}

/// Returns the published vector of a suite. Their sources:
///
/// * AES-GCM: D. McGrew, J. Viega, draft-mcgrew-gcm-test-01, §4;
/// * ChaCha20-Poly1305: RFC 7634, Appendix A;
/// * AES-CBC: RFC 3602 §4, case 4; NIST SP 800-38A §F.2.5;
/// * HMAC: RFC 4868 §2.7.2, cases AUTH256-2, AUTH384-2, AUTH512-2, whose data, "what do ya want for
///   nothing?", is header and text here. Over the ciphertexts of AES-CBC the published HMACs say
///   nothing: there the ICVs are those of Python's `hmac`.
fn published(suite: Suite) -> Vector {
    let (header, iv) = ("0000a5f80000000a", "facedbaddecaf888");
    let key = "feffe9928665731c6d6a8f9467308308";
    let of = |material: String, header, iv, text, sealed: &str| Vector {
        material,
        header,
        iv,
        text,
        sealed: sealed.to_owned(),
    };
    match suite {
        Suite::Aes128Gcm => of(
            format!("{key}cafebabe"),
            header,
            iv,
            "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100\
             0001000000000000037369700963796265726369747902646b00000100010001",
            "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c\
             3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1\
             83b70d3aa8bc6ee4c309e9d85a41ad4a",
        ),
        Suite::Aes192Gcm => of(
            format!("{key}feffe9928665731ccafebabe"),
            header,
            iv,
            "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e\
             501016d075680001",
            "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0\
             315b27452144cc7795457b9652037f5318027b5b4cd7a636",
        ),
        Suite::Aes256Gcm => of(
            "abbccddef00112233445566778899aab".repeat(2) + "11223344",
            "4a2cbfe300000002",
            "0102030405060708",
            "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
             7002400020bf0000020405b40101040201020201",
            "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763\
             748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49\
             15956c96",
        ),
        Suite::ChaCha20Poly1305 => of(
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3".to_owned(),
            "0102030400000005",
            "1011121314151617",
            "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10\
             0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
             2425262728292a2b2c2d2e2f303132333435363701020204",
            "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6\
             14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3\
             cbec163fac469b502773f6fb94e664da9165b82829f641e0\
             76aaa8266b7fb0f7b11b369907e1ad43",
        ),
        Suite::Null => of("00".repeat(16), header, "", "0102030405", "0102030405"),
        _ => published_hmac(suite),
    }
}

/// Returns the vector of a suite with HMAC. The HMAC keys are "Jefe" again and again.
fn published_hmac(suite: Suite) -> Vector {
    let integrity_key = "4a656665".repeat(suite.integrity_key_bytes() / 4);
    let (key, header, iv, text, sealed) = match (suite.encryption(), suite.key_bytes()) {
        (Encryption::Cbc, 16) => (
            "56e47a38c5598974bc46903dba290349",
            "0000432100000001",
            "8ce82eefbea0da3c44699ed7db51b7d9",
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf\
             c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf",
            "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e\
             35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55",
        ),
        (Encryption::Cbc, _) => (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "0000432100000001",
            "000102030405060708090a0b0c0d0e0f",
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
             30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
            "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d\
             39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b",
        ),
        _ => (
            "",
            "7768617420646f20",
            "",
            "79612077616e7420666f72206e6f7468696e673f",
            "79612077616e7420666f72206e6f7468696e673f",
        ),
    };
    let icv = match suite {
        Suite::Aes128CbcSha256 => "f64cc0a81c1a5f22d73bd71506d3c8e5",
        Suite::Aes128CbcSha384 => "60395982b5459017bb00256a40df38ad32e6575049954035",
        Suite::Aes128CbcSha512 => {
            "6e4f96c48be86194599242be85c2919db653c33001b23d17431249decb8b0ee1"
        }
        Suite::Aes256CbcSha256 => "9c7fb63b341980c6742ea97baa5abc45",
        Suite::Aes256CbcSha384 => "c4b97f77593c25702316a2ded075a47d00f3c894f0572818",
        Suite::Aes256CbcSha512 => {
            "5c7132acf7697a2ffe98383cdcc301d3bc343740d389ed22385941f867e0e6fb"
        }
        Suite::NullSha256 => "167f928588c5cc2eef8e3093caa0e87c",
        Suite::NullSha384 => "2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d",
        _ => "cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454",
    };
    Vector {
        material: format!("{key}{integrity_key}"),
        header,
        iv,
        text,
        sealed: format!("{sealed}{icv}"),
    }
}

/// Checks one suite; a backend that this machine does not have is not at fault.
fn check(suite: Suite, backend: BackendKind, vector: &Vector) -> Result<(), SelfTestError> {
    let demand = |right: bool, step| match right {
        true => Ok(()),
        false => Err(SelfTestError { suite, backend, step }),
    };
    let Ok(material) = KeyMaterial::new(suite, &hex(&vector.material)) else {
        return demand(false, SelfTestStep::Seal);
    };
    let Some(cipher) = Cipher::with_backend(&material, backend) else { return Ok(()) };
    let front = [hex(vector.header), hex(vector.iv)].concat();
    let (text, sealed) = (hex(vector.text), hex(&vector.sealed));
    let clear = [&front[..], &text, &vec![0; suite.icv_bytes()]].concat();
    let sealed = [&front[..], &sealed].concat();
    let jobs: Vec<SealJob> =
        (0..BATCH as u32).map(|row| job(&cipher, &front, text.len(), row)).collect();
    let opened = |frames: &mut Trial| {
        let mut jobs: Vec<OpenJob> = jobs.iter().map(opening).collect();
        cipher.open(frames, &mut jobs);
        jobs.into_iter().map(|job| job.authentic)
    };

    let mut frames = Trial(vec![clear; BATCH]);
    let done = cipher.seal(&mut frames, &jobs).is_ok();
    demand(done && frames.0.iter().all(|frame| *frame == sealed), SelfTestStep::Seal)?;

    let authentic = opened(&mut frames).all(|authentic| authentic);
    let right = |frame: &Vec<u8>| frame[front.len()..][..text.len()] == text;
    demand(authentic && frames.0.iter().all(right), SelfTestStep::Open)?;

    // Each packet has another bit turned over, the header's and the ICV's among them. The IV of
    // AES-CBC is authenticated where the packet carries it; that of an AEAD is in the nonce.
    let nowhere = match suite.encryption() {
        Encryption::Gcm | Encryption::ChaCha20Poly1305 => HEADER_BYTES..front.len(),
        Encryption::Cbc | Encryption::Null => 0..0,
    };
    let places: Vec<usize> = (0..sealed.len()).filter(|place| !nowhere.contains(place)).collect();
    let mut frames = Trial(vec![sealed; BATCH]);
    for (row, frame) in frames.0.iter_mut().enumerate() {
        frame[places[row * places.len() / BATCH]] ^= 1 << (row % 8);
    }
    let refused = opened(&mut frames).all(|authentic| !authentic);
    demand(refused || !suite.is_authenticated(), SelfTestStep::Refuse)
}

/// The packet of a vector, which starts where its frame does.
fn job(cipher: &Cipher, front: &[u8], text_length: usize, row: u32) -> SealJob {
    let low = front[4..HEADER_BYTES].iter().fold(0, |low, byte| low << 8 | u64::from(*byte));
    SealJob {
        frame: FrameId(row),
        aad: 0,
        text: front.len() as u32,
        text_length: text_length as u32,
        nonce: cipher.received_nonce(&front[HEADER_BYTES..]).to_ne_bytes(),
        sequence: low,
        row,
    }
}

/// The bytes of a vector written as hexadecimal digits.
///
/// # Panics
/// If `digits` is not bytes in hexadecimal: vectors are written in this file.
fn hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hexadecimal digits")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_passes_on_every_backend() {
        assert_eq!(self_test(), Ok(()));
    }

    #[test]
    fn a_wrong_result_at_any_step_is_named() {
        let change = |digits: &str, place: usize| {
            let mut digits = digits.to_owned();
            let other = if digits.as_bytes()[place] == b'0' { "1" } else { "0" };
            digits.replace_range(place..=place, other);
            digits
        };
        let all =
            Suite::ALL.iter().flat_map(|suite| BackendKind::ALL.iter().map(move |b| (suite, b)));
        for (&suite, &backend) in all {
            let material = KeyMaterial::new(suite, &vec![0; suite.material_bytes()]).unwrap();
            if Cipher::with_backend(&material, backend).is_none() {
                println!("SKIPPED: {} has no {suite} on this machine", backend.name());
                continue;
            }
            let fails = |vector: Vector, place: &str| {
                let error = SelfTestError { suite, backend, step: SelfTestStep::Seal };
                assert_eq!(check(suite, backend, &vector), Err(error), "{place}");
            };
            let right = || published(suite);
            let sealed = right().sealed;
            fails(Vector { sealed: change(&sealed, sealed.len() - 1), ..right() }, "end");
            fails(Vector { sealed: change(&sealed, 0), ..right() }, "start");
            if suite != Suite::Null {
                fails(Vector { material: change(&right().material, 1), ..right() }, "key");
            }
        }
    }
}
