//! Suites of ours by the names that others have for algorithms.

use ipsec::{KeyMaterial, Suite};
use zeroize::Zeroizing;

/// Reason why an SA has no suite here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSuite {
    /// No such algorithm here.
    Algorithm,
    /// An ICV of another length.
    Icv,
    /// A key of another length.
    KeyLength,
    /// Encryption without integrity.
    NoIntegrity,
}

impl NoSuite {
    /// The reason and the advice.
    pub(crate) const fn why(self) -> (&'static str, &'static str) {
        match self {
            NoSuite::Algorithm => (
                "Lockgate has no such algorithm",
                "agree on a suite of docs/CONFIGURATION.md with the peer",
            ),
            NoSuite::Icv => (
                "Lockgate has this algorithm only with its full ICV",
                "GCM and ChaCha20-Poly1305: 128 bits; HMAC-SHA-256, -384, -512: 128, 192, 256 bits",
            ),
            NoSuite::KeyLength => (
                "the key has a length that no suite has",
                "agree on a suite of docs/CONFIGURATION.md with the peer",
            ),
            NoSuite::NoIntegrity => (
                "encryption without integrity is refused",
                "agree on an AEAD such as aes-128-gcm with the peer",
            ),
        }
    }
}

/// A cipher with its key; `None`: the key is hidden.
pub(crate) struct Keyed<'k> {
    pub(crate) cipher: Cipher,
    pub(crate) key: Option<&'k [u8]>,
}

/// Encryption algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cipher {
    Gcm,
    ChaCha20Poly1305,
    Cbc,
    Null,
}

/// Hash functions of HMAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Bits of its full ICV (RFC 4868 §2.3).
    pub(crate) const fn icv_bits(self) -> u32 {
        match self {
            Hash::Sha256 => 128,
            Hash::Sha384 => 192,
            Hash::Sha512 => 256,
        }
    }
}

/// Finds the suite of an AEAD. The key is followed by the salt, as RFC 4106 and RFC 7634 have it.
/// A hidden key leaves the suite open where it decides on it.
pub(crate) fn aead(keyed: &Keyed<'_>) -> Result<Option<Suite>, NoSuite> {
    let suite = match (keyed.cipher, keyed.key.map(<[u8]>::len)) {
        (Cipher::Gcm, None) => return Ok(None),
        (Cipher::ChaCha20Poly1305, None | Some(36)) => Suite::ChaCha20Poly1305,
        (Cipher::Gcm, Some(20)) => Suite::Aes128Gcm,
        (Cipher::Gcm, Some(28)) => Suite::Aes192Gcm,
        (Cipher::Gcm, Some(36)) => Suite::Aes256Gcm,
        (Cipher::Gcm | Cipher::ChaCha20Poly1305, Some(_)) => return Err(NoSuite::KeyLength),
        (Cipher::Cbc | Cipher::Null, _) => return Err(NoSuite::Algorithm),
    };
    Ok(Some(suite))
}

/// Finds the suite of a cipher and a hash.
pub(crate) fn with_hmac(keyed: &Keyed<'_>, hash: Hash) -> Result<Option<Suite>, NoSuite> {
    let suites = match (keyed.cipher, keyed.key.map(<[u8]>::len)) {
        (Cipher::Cbc, None) => return Ok(None),
        (Cipher::Cbc, Some(16)) => {
            [Suite::Aes128CbcSha256, Suite::Aes128CbcSha384, Suite::Aes128CbcSha512]
        }
        (Cipher::Cbc, Some(32)) => {
            [Suite::Aes256CbcSha256, Suite::Aes256CbcSha384, Suite::Aes256CbcSha512]
        }
        (Cipher::Cbc, Some(_)) => return Err(NoSuite::KeyLength),
        (Cipher::Null, _) => [Suite::NullSha256, Suite::NullSha384, Suite::NullSha512],
        (Cipher::Gcm | Cipher::ChaCha20Poly1305, _) => return Err(NoSuite::Algorithm),
    };
    Ok(Some(suites[hash as usize]))
}

/// Puts the parts of a key together: key and salt, or encryption key and HMAC key.
pub(crate) fn material(suite: Suite, parts: [&[u8]; 2]) -> Result<KeyMaterial, NoSuite> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(parts[0].len() + parts[1].len()));
    bytes.extend_from_slice(parts[0]);
    bytes.extend_from_slice(parts[1]);
    KeyMaterial::new(suite, &bytes).map_err(|_| NoSuite::KeyLength)
}
