//! Suites of algorithms and their key material.

use std::fmt;

use aws_lc_rs::digest;
use zeroize::Zeroizing;

/// The algorithms of an SA with their key sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Suite {
    /// AES-GCM with a 128-bit key and a 16-byte ICV (RFC 4106).
    Aes128Gcm,
    /// AES-GCM with a 192-bit key and a 16-byte ICV (RFC 4106).
    Aes192Gcm,
    /// AES-GCM with a 256-bit key and a 16-byte ICV (RFC 4106).
    Aes256Gcm,
    /// ChaCha20-Poly1305 with a 16-byte ICV (RFC 7634).
    ChaCha20Poly1305,
    /// AES-CBC with a 128-bit key (RFC 3602), HMAC-SHA-256-128 (RFC 4868).
    Aes128CbcSha256,
    /// AES-CBC with a 128-bit key (RFC 3602), HMAC-SHA-384-192 (RFC 4868).
    Aes128CbcSha384,
    /// AES-CBC with a 128-bit key (RFC 3602), HMAC-SHA-512-256 (RFC 4868).
    Aes128CbcSha512,
    /// AES-CBC with a 256-bit key (RFC 3602), HMAC-SHA-256-128 (RFC 4868).
    Aes256CbcSha256,
    /// AES-CBC with a 256-bit key (RFC 3602), HMAC-SHA-384-192 (RFC 4868).
    Aes256CbcSha384,
    /// AES-CBC with a 256-bit key (RFC 3602), HMAC-SHA-512-256 (RFC 4868).
    Aes256CbcSha512,
    /// No encryption (RFC 2410), HMAC-SHA-256-128 (RFC 4868).
    NullSha256,
    /// No encryption (RFC 2410), HMAC-SHA-384-192 (RFC 4868).
    NullSha384,
    /// No encryption (RFC 2410), HMAC-SHA-512-256 (RFC 4868).
    NullSha512,
    /// Neither encryption nor integrity: measures the framing alone. Forbidden to every SA that
    /// carries traffic (RFC 4303 §3.2).
    Null,
}

/// The encryption of a suite, which also decides the source of its IV.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encryption {
    /// AES in Galois/counter mode: the IV is the sequence number, behind a secret salt.
    Gcm,
    /// ChaCha20-Poly1305: the IV is the sequence number, behind a secret salt.
    ChaCha20Poly1305,
    /// AES in cipher block chaining mode: the IV must not be predictable (RFC 3602 §3).
    Cbc,
    /// None, and no IV.
    Null,
}

/// The integrity algorithm beside an encryption that has none of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Integrity {
    /// HMAC-SHA-256-128.
    HmacSha256,
    /// HMAC-SHA-384-192.
    HmacSha384,
    /// HMAC-SHA-512-256.
    HmacSha512,
}

impl Integrity {
    /// Bytes of its key: those of the hash's output (RFC 4868 §2.1.1).
    pub const fn key_bytes(self) -> usize {
        match self {
            Integrity::HmacSha256 => 32,
            Integrity::HmacSha384 => 48,
            Integrity::HmacSha512 => 64,
        }
    }

    /// Bytes of the ICV: half of the hash's output (RFC 4868 §2.3).
    pub const fn icv_bytes(self) -> usize {
        self.key_bytes() / 2
    }
}

impl Suite {
    /// Every suite, the one without integrity last.
    pub const ALL: &[Suite] = &[
        Suite::Aes128Gcm,
        Suite::Aes192Gcm,
        Suite::Aes256Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aes128CbcSha256,
        Suite::Aes128CbcSha384,
        Suite::Aes128CbcSha512,
        Suite::Aes256CbcSha256,
        Suite::Aes256CbcSha384,
        Suite::Aes256CbcSha512,
        Suite::NullSha256,
        Suite::NullSha384,
        Suite::NullSha512,
        Suite::Null,
    ];

    /// Place in [`Suite::ALL`].
    pub(crate) fn place(self) -> usize {
        Suite::ALL.iter().position(|suite| *suite == self).expect("one of all")
    }

    /// Bytes of the longest ICV.
    pub const MAX_ICV_BYTES: usize = 32;
    /// Bytes of the longest IV.
    pub const MAX_IV_BYTES: usize = 16;
    /// The largest alignment.
    pub const MAX_ALIGNMENT: usize = 16;

    /// Returns the suite's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
            Suite::Aes128CbcSha256 => "aes-128-cbc-hmac-sha-256",
            Suite::Aes128CbcSha384 => "aes-128-cbc-hmac-sha-384",
            Suite::Aes128CbcSha512 => "aes-128-cbc-hmac-sha-512",
            Suite::Aes256CbcSha256 => "aes-256-cbc-hmac-sha-256",
            Suite::Aes256CbcSha384 => "aes-256-cbc-hmac-sha-384",
            Suite::Aes256CbcSha512 => "aes-256-cbc-hmac-sha-512",
            Suite::NullSha256 => "null-hmac-sha-256",
            Suite::NullSha384 => "null-hmac-sha-384",
            Suite::NullSha512 => "null-hmac-sha-512",
            Suite::Null => "null",
        }
    }

    /// The suite with this name.
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL.iter().copied().find(|suite| suite.name() == name)
    }

    /// Returns its encryption.
    pub const fn encryption(self) -> Encryption {
        match self {
            Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm => Encryption::Gcm,
            Suite::ChaCha20Poly1305 => Encryption::ChaCha20Poly1305,
            Suite::Aes128CbcSha256 | Suite::Aes128CbcSha384 | Suite::Aes128CbcSha512 => {
                Encryption::Cbc
            }
            Suite::Aes256CbcSha256 | Suite::Aes256CbcSha384 | Suite::Aes256CbcSha512 => {
                Encryption::Cbc
            }
            Suite::NullSha256 | Suite::NullSha384 | Suite::NullSha512 | Suite::Null => {
                Encryption::Null
            }
        }
    }

    /// The integrity algorithm beside the encryption; `None` for those that have their own, and
    /// for [`Suite::Null`], which has none.
    pub const fn integrity(self) -> Option<Integrity> {
        match self {
            Suite::Aes128CbcSha256 | Suite::Aes256CbcSha256 | Suite::NullSha256 => {
                Some(Integrity::HmacSha256)
            }
            Suite::Aes128CbcSha384 | Suite::Aes256CbcSha384 | Suite::NullSha384 => {
                Some(Integrity::HmacSha384)
            }
            Suite::Aes128CbcSha512 | Suite::Aes256CbcSha512 | Suite::NullSha512 => {
                Some(Integrity::HmacSha512)
            }
            _ => None,
        }
    }

    /// Returns whether a packet that was changed on the way is refused.
    pub const fn is_authenticated(self) -> bool {
        !matches!(self, Suite::Null)
    }

    /// Returns whether one algorithm encrypts and authenticates, packet by packet.
    pub const fn is_aead(self) -> bool {
        matches!(self.encryption(), Encryption::Gcm | Encryption::ChaCha20Poly1305)
    }

    /// Bytes of the encryption key, salt not counted. That of [`Suite::Null`] encrypts nothing: it
    /// tells one SA's material from another's.
    pub const fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm => 16,
            Suite::Aes192Gcm => 24,
            Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => 32,
            Suite::Aes128CbcSha256 | Suite::Aes128CbcSha384 | Suite::Aes128CbcSha512 => 16,
            Suite::Aes256CbcSha256 | Suite::Aes256CbcSha384 | Suite::Aes256CbcSha512 => 32,
            Suite::NullSha256 | Suite::NullSha384 | Suite::NullSha512 => 0,
            Suite::Null => 16,
        }
    }

    /// Bytes of the salt behind the key (RFC 4106 §8.1, RFC 7634 §2).
    pub const fn salt_bytes(self) -> usize {
        match self.encryption() {
            Encryption::Gcm | Encryption::ChaCha20Poly1305 => 4,
            Encryption::Cbc | Encryption::Null => 0,
        }
    }

    /// Bytes of the integrity key behind the encryption key (in that order: RFC 7296 §2.17).
    pub const fn integrity_key_bytes(self) -> usize {
        match self.integrity() {
            Some(integrity) => integrity.key_bytes(),
            None => 0,
        }
    }

    /// Bytes of all key material: key and salt, or encryption and integrity key.
    pub const fn material_bytes(self) -> usize {
        self.key_bytes() + self.salt_bytes() + self.integrity_key_bytes()
    }

    /// Bytes of the IV that each packet carries.
    pub const fn iv_bytes(self) -> usize {
        match self.encryption() {
            Encryption::Gcm | Encryption::ChaCha20Poly1305 => 8,
            Encryption::Cbc => 16,
            Encryption::Null => 0,
        }
    }

    /// Bytes of the ICV that each packet carries.
    pub const fn icv_bytes(self) -> usize {
        match (self.encryption(), self.integrity()) {
            (Encryption::Gcm | Encryption::ChaCha20Poly1305, _) => 16,
            (_, Some(integrity)) => integrity.icv_bytes(),
            (_, None) => 0,
        }
    }

    /// Pad length and next header end on a multiple of this many bytes (RFC 4303 §2.4): the
    /// cipher's block, at least 4.
    pub const fn alignment(self) -> usize {
        match self.encryption() {
            Encryption::Cbc => 16,
            _ => 4,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why bytes are not key material. Never holds their content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Too long or too short for the suite.
    #[error("{suite} takes {expected} bytes of key material, got {got}")]
    Length {
        /// The suite that was asked for.
        suite: Suite,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes that were given.
        got: usize,
    },
}

/// Key ‖ salt, or encryption key ‖ integrity key, of one SA, wiped when dropped. Neither `Debug`
/// nor `Clone`, on purpose.
pub struct KeyMaterial {
    suite: Suite,
    bytes: Zeroizing<Vec<u8>>,
}

impl KeyMaterial {
    /// Takes a copy of the material; the caller wipes its own.
    ///
    /// # Errors
    /// [`KeyError::Length`] if `bytes` is not [`Suite::material_bytes`] long.
    pub fn new(suite: Suite, bytes: &[u8]) -> Result<KeyMaterial, KeyError> {
        let expected = suite.material_bytes();
        if bytes.len() != expected {
            return Err(KeyError::Length { suite, expected, got: bytes.len() });
        }
        // Allocated at its full size: growing would leave a copy behind that nobody wipes.
        Ok(KeyMaterial { suite, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// The suite that it is a key of.
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns a value that tells this material from other material without giving it away. Equal
    /// for equal bytes, whatever SPI, direction or suite they are used under.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(Fingerprint::LABEL);
        context.update(&self.bytes);
        let mut short = [0; Fingerprint::BYTES];
        short.copy_from_slice(&context.finish().as_ref()[..Fingerprint::BYTES]);
        Fingerprint(short)
    }

    /// The material in clear. Only for writing the key files of a laboratory: never show, log or
    /// compare it.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    pub(crate) fn salt(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes()..][..self.suite.salt_bytes()]
    }

    pub(crate) fn integrity_key(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - self.suite.integrity_key_bytes()..]
    }
}

/// Names key material without giving it away: SHA-256 of a label and the material, cut to 16
/// bytes. May be shown and stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; Fingerprint::BYTES]);

impl Fingerprint {
    /// Length of a fingerprint.
    pub const BYTES: usize = 16;

    /// Keeps these digests apart from every other use of SHA-256 on the same bytes.
    const LABEL: &[u8] = b"lockgate key fingerprint v1\0";

    /// Returns the bytes of the fingerprint.
    pub const fn as_bytes(&self) -> &[u8; Fingerprint::BYTES] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_found_by_its_name_and_nothing_else_is() {
        for &suite in Suite::ALL {
            assert_eq!(Suite::from_name(suite.name()), Some(suite));
            assert_eq!(Suite::from_name(&suite.name().to_uppercase()), None);
            assert!(suite.icv_bytes() <= Suite::MAX_ICV_BYTES);
            assert!(suite.iv_bytes() <= Suite::MAX_IV_BYTES);
            assert!(suite.alignment() <= Suite::MAX_ALIGNMENT);
            assert_eq!(suite.is_authenticated(), suite.icv_bytes() > 0);
        }
        assert_eq!(Suite::from_name(""), None);
        assert_eq!(Suite::Aes128Gcm.material_bytes(), 20);
        assert_eq!(Suite::Aes256Gcm.material_bytes(), 36);
        assert_eq!(Suite::Aes256CbcSha384.material_bytes(), 32 + 48);
        assert_eq!(Suite::NullSha512.material_bytes(), 64);
    }

    #[test]
    fn material_of_the_wrong_length_is_refused_with_the_lengths_and_without_the_bytes() {
        for &suite in Suite::ALL {
            let right = suite.material_bytes();
            for got in [0, 1, right.wrapping_sub(1), right + 1, 37, 1000] {
                if got == right || got == usize::MAX {
                    continue;
                }
                let error = KeyMaterial::new(suite, &vec![0xe9; got]).err().expect("refused");
                let expected = suite.material_bytes();
                assert_eq!(error, KeyError::Length { suite, expected, got });
                let text = format!("{error} {error:?}");
                assert!(text.contains(&format!("{expected} bytes")), "{text}");
                assert!(!text.contains("e9") && !text.contains("233"), "{text}");
            }
        }
    }

    #[test]
    fn key_and_salt_are_the_two_ends_of_the_material() {
        let bytes: Vec<u8> = (0..36).collect();
        let material = KeyMaterial::new(Suite::Aes256Gcm, &bytes).unwrap();
        assert_eq!(material.key(), &bytes[..32]);
        assert_eq!(material.salt(), &bytes[32..]);
        assert!(material.integrity_key().is_empty());
        assert_eq!(material.expose(), &bytes[..]);
        let bytes: Vec<u8> = (0..64).collect();
        let material = KeyMaterial::new(Suite::Aes128CbcSha384, &bytes).unwrap();
        assert_eq!(material.key(), &bytes[..16]);
        assert!(material.salt().is_empty());
        assert_eq!(material.integrity_key(), &bytes[16..]);
    }

    #[test]
    fn fingerprints_are_equal_exactly_for_equal_material() {
        let of = |bytes: &[u8]| KeyMaterial::new(Suite::Aes128Gcm, bytes).unwrap().fingerprint();
        let bytes: Vec<u8> = (0..20).collect();
        assert_eq!(of(&bytes), of(&bytes));
        for changed in 0..bytes.len() {
            let mut other = bytes.clone();
            other[changed] ^= 1;
            assert_ne!(of(&bytes), of(&other), "byte {changed}");
        }
    }

    #[test]
    fn fingerprint_is_the_labelled_digest_and_not_the_bare_one() {
        let bytes = [7u8; 20];
        let fingerprint = KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint();
        let labelled = [b"lockgate key fingerprint v1\0".as_slice(), &bytes].concat();
        let digest = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes).as_ref()[..16].to_vec();
        assert_eq!(fingerprint.as_bytes().to_vec(), digest(&labelled));
        assert_ne!(fingerprint.as_bytes().to_vec(), digest(&bytes));
        assert_eq!(fingerprint.to_string().len(), 32);
    }
}
