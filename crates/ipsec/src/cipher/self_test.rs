//! The test of the ciphers at start-up, on published vectors.

use super::{Backend, NONCE_BYTES};
use crate::esp::ICV_BYTES;
use crate::{KeyMaterial, Suite};

/// The cipher library gives wrong results on this machine. Nothing may be sealed with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the self-test of {suite} failed ({step:?}): the cipher library cannot be trusted")]
pub struct SelfTestError {
    /// The suite that failed.
    pub suite: Suite,
    /// What it did wrong.
    pub step: SelfTestStep,
}

/// What of a suite was tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelfTestStep {
    /// Ciphertext and ICV are the published ones.
    Seal,
    /// The published ciphertext opens to the published text.
    Open,
    /// A changed ciphertext is refused.
    Refuse,
}

/// Seals and opens a published vector with every suite, and checks that a changed one is refused.
/// Cost: microseconds. Done once, before the first packet.
///
/// # Errors
/// [`SelfTestError`]: the process must not start.
pub fn self_test() -> Result<(), SelfTestError> {
    Suite::ALL.iter().try_for_each(|&suite| check(suite, &published(suite)))
}

struct Vector {
    /// Key ‖ salt: the salt is the front of the nonce and not used by itself here.
    material: Vec<u8>,
    nonce: [u8; NONCE_BYTES],
    aad: [u8; 20],
    text: [u8; 60],
    sealed: [u8; 60],
    icv: [u8; ICV_BYTES],
}

/// Test cases 4 and 16 of D. McGrew, J. Viega, "The Galois/Counter Mode of Operation (GCM)",
/// Appendix B. They have one nonce, text and AAD; the longer key is the shorter one twice.
fn published(suite: Suite) -> Vector {
    let nonce = hex("cafebabefacedbaddecaf888");
    let key: [u8; 16] = hex("feffe9928665731c6d6a8f9467308308");
    let (sealed, icv) = match suite {
        Suite::Aes128Gcm => (
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
             21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        Suite::Aes256Gcm => (
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    };
    let mut material = key.repeat(suite.key_bytes() / key.len());
    material.extend(&nonce[..suite.salt_bytes()]);
    Vector {
        material,
        nonce,
        aad: hex("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
        text: hex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                   1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"),
        sealed: hex(sealed),
        icv: hex(icv),
    }
}

fn check(suite: Suite, vector: &Vector) -> Result<(), SelfTestError> {
    let demand =
        |right: bool, step| if right { Ok(()) } else { Err(SelfTestError { suite, step }) };
    let Ok(material) = KeyMaterial::new(suite, &vector.material) else {
        return demand(false, SelfTestStep::Seal);
    };
    let backend = Backend::new(&material);

    let (mut text, mut icv) = (vector.text, [0; ICV_BYTES]);
    let sealed = backend.seal(&vector.nonce, &vector.aad, &mut text, &mut icv);
    demand(sealed && text == vector.sealed && icv == vector.icv, SelfTestStep::Seal)?;

    let mut text = vector.sealed;
    let opened = backend.open(&vector.nonce, &vector.aad, &mut text, &vector.icv);
    demand(opened && text == vector.text, SelfTestStep::Open)?;

    let mut text = vector.sealed;
    text[17] ^= 0x40;
    let opened = backend.open(&vector.nonce, &vector.aad, &mut text, &vector.icv);
    demand(!opened, SelfTestStep::Refuse)
}

/// The bytes of a vector written as hexadecimal digits.
///
/// # Panics
/// If `digits` is not `N` bytes in hexadecimal: vectors are written in this file.
fn hex<const N: usize>(digits: &str) -> [u8; N] {
    assert_eq!(digits.len(), 2 * N, "digits of a vector");
    std::array::from_fn(|at| {
        u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("a hexadecimal digit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_passes() {
        assert_eq!(self_test(), Ok(()));
    }

    #[test]
    fn a_wrong_result_at_any_step_is_named() {
        for &suite in Suite::ALL {
            let fails = |change: fn(&mut Vector)| {
                let mut vector = published(suite);
                change(&mut vector);
                check(suite, &vector).unwrap_err()
            };
            let at = |step| SelfTestError { suite, step };
            assert_eq!(fails(|v| v.sealed[59] ^= 1), at(SelfTestStep::Seal));
            assert_eq!(fails(|v| v.icv[15] ^= 1), at(SelfTestStep::Seal));
            assert_eq!(fails(|v| v.text[0] ^= 1), at(SelfTestStep::Seal));
            assert_eq!(fails(|v| v.aad[19] ^= 1), at(SelfTestStep::Seal));
            assert_eq!(fails(|v| v.nonce[11] ^= 1), at(SelfTestStep::Seal));
            assert_eq!(fails(|v| v.material[0] ^= 1), at(SelfTestStep::Seal));
        }
    }
}
