//! Suites as IKEv2 negotiates them: a transform of type 1 (encryption) and one of type 3
//! (integrity), by the numbers of IANA's registry for IKEv2.

use charon_link::Algorithm;
use ipsec::Suite;
use zeroize::Zeroizing;

/// ENCR_NULL.
const NULL: u16 = 11;
/// ENCR_AES_CBC.
const AES_CBC: u16 = 12;
/// AES-GCM with a 16-octet ICV.
const AES_GCM_16: u16 = 20;
/// ENCR_CHACHA20_POLY1305.
const CHACHA20_POLY1305: u16 = 28;
/// AUTH_HMAC_SHA2_256_128.
const SHA_256: u16 = 12;
/// AUTH_HMAC_SHA2_384_192.
const SHA_384: u16 = 13;
/// AUTH_HMAC_SHA2_512_256.
const SHA_512: u16 = 14;
/// Bytes of salt behind the key of a suite with AEAD.
const SALT_BYTES: usize = 4;

/// Returns the suite of two algorithms, and its key material; `None`: Lockgate does not have it.
pub(super) fn suite(
    encryption: &Algorithm,
    integrity: &Algorithm,
) -> Option<(Suite, Zeroizing<Vec<u8>>)> {
    let bits = encryption.key.len() * 8;
    let bits_without_salt = encryption.key.len().saturating_sub(SALT_BYTES) * 8;
    let suite = match (encryption.transform, integrity.transform) {
        (AES_GCM_16, 0) => match bits_without_salt {
            128 => Suite::Aes128Gcm,
            192 => Suite::Aes192Gcm,
            256 => Suite::Aes256Gcm,
            _ => return None,
        },
        (CHACHA20_POLY1305, 0) => Suite::ChaCha20Poly1305,
        (AES_CBC, SHA_256) if bits == 128 => Suite::Aes128CbcSha256,
        (AES_CBC, SHA_384) if bits == 128 => Suite::Aes128CbcSha384,
        (AES_CBC, SHA_512) if bits == 128 => Suite::Aes128CbcSha512,
        (AES_CBC, SHA_256) if bits == 256 => Suite::Aes256CbcSha256,
        (AES_CBC, SHA_384) if bits == 256 => Suite::Aes256CbcSha384,
        (AES_CBC, SHA_512) if bits == 256 => Suite::Aes256CbcSha512,
        (NULL, SHA_256) => Suite::NullSha256,
        (NULL, SHA_384) => Suite::NullSha384,
        (NULL, SHA_512) => Suite::NullSha512,
        _ => return None,
    };
    // Room for all of it from the start, so that no copy stays behind.
    let length = encryption.key.len() + integrity.key.len();
    let mut material = Zeroizing::new(Vec::with_capacity(length));
    material.extend_from_slice(&encryption.key);
    material.extend_from_slice(&integrity.key);
    (material.len() == suite.material_bytes()).then_some((suite, material))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn algorithm(transform: u16, bytes: usize) -> Algorithm {
        Algorithm { transform, key: Zeroizing::new(vec![7; bytes]) }
    }

    #[test]
    fn every_suite_with_integrity_comes_from_ike_and_no_other_length_of_key_does() {
        let known = [
            (Suite::Aes128Gcm, (20, 20), (0, 0)),
            (Suite::Aes192Gcm, (20, 28), (0, 0)),
            (Suite::Aes256Gcm, (20, 36), (0, 0)),
            (Suite::ChaCha20Poly1305, (28, 36), (0, 0)),
            (Suite::Aes128CbcSha256, (12, 16), (12, 32)),
            (Suite::Aes128CbcSha384, (12, 16), (13, 48)),
            (Suite::Aes128CbcSha512, (12, 16), (14, 64)),
            (Suite::Aes256CbcSha256, (12, 32), (12, 32)),
            (Suite::Aes256CbcSha384, (12, 32), (13, 48)),
            (Suite::Aes256CbcSha512, (12, 32), (14, 64)),
            (Suite::NullSha256, (11, 0), (12, 32)),
            (Suite::NullSha384, (11, 0), (13, 48)),
            (Suite::NullSha512, (11, 0), (14, 64)),
        ];
        let of = |(encryption, encryption_bytes), (integrity, integrity_bytes)| {
            let parts =
                [algorithm(encryption, encryption_bytes), algorithm(integrity, integrity_bytes)];
            suite(&parts[0], &parts[1]).map(|(suite, material)| (suite, material.len()))
        };
        for (suite, encryption, integrity) in known {
            assert_eq!(of(encryption, integrity), Some((suite, suite.material_bytes())));
            assert_eq!(of((encryption.0, encryption.1 + 1), integrity), None, "{suite}");
            assert_eq!(of(encryption, (integrity.0, integrity.1 + 1)), None, "{suite}");
        }
        let all = Suite::ALL.iter().filter(|suite| suite.is_authenticated());
        assert!(all.clone().all(|suite| known.iter().any(|(of, ..)| of == suite)));
        // 3DES, AES-GCM with a short ICV, AES-CTR, SHA-1; AEAD with integrity beside it.
        for (encryption, integrity) in
            [((3, 24), (12, 32)), ((18, 20), (0, 0)), ((13, 20), (12, 32)), ((12, 16), (2, 20))]
        {
            assert_eq!(of(encryption, integrity), None);
        }
        assert_eq!(of((20, 20), (12, 32)), None);
    }
}
