//! Cipher suites and their key material.

use std::fmt;

use aws_lc_rs::digest;
use zeroize::Zeroizing;

/// An AEAD algorithm with its key size, as an SA uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Suite {
    /// AES-GCM with a 128-bit key and a 16-byte ICV (RFC 4106).
    Aes128Gcm,
    /// AES-GCM with a 256-bit key and a 16-byte ICV (RFC 4106).
    Aes256Gcm,
}

impl Suite {
    /// Every suite.
    pub const ALL: &[Suite] = &[Suite::Aes128Gcm, Suite::Aes256Gcm];

    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// The suite with this name.
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL.iter().copied().find(|suite| suite.name() == name)
    }

    /// Bytes of the key, salt not counted.
    pub const fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm => 16,
            Suite::Aes256Gcm => 32,
        }
    }

    /// Bytes of the salt behind the key (RFC 4106 §8.1).
    pub const fn salt_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 4,
        }
    }

    /// Bytes of key and salt together.
    pub const fn material_bytes(self) -> usize {
        self.key_bytes() + self.salt_bytes()
    }

    /// Bytes of the IV that each packet carries.
    pub const fn iv_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 8,
        }
    }

    /// Bytes of the ICV that each packet carries.
    pub const fn icv_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 16,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes are not key material. Never holds their content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Too long or too short for the suite.
    #[error("{suite} takes {expected} bytes of key and salt, got {got}")]
    Length {
        /// The suite that was asked for.
        suite: Suite,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes that were given.
        got: usize,
    },
}

/// Key ‖ salt of one SA, wiped when dropped. Neither `Debug` nor `Clone`, on purpose.
pub struct KeyMaterial {
    suite: Suite,
    bytes: Zeroizing<Vec<u8>>,
}

impl KeyMaterial {
    /// Takes a copy of key ‖ salt; the caller wipes its own.
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

    /// What it is a key of.
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// What tells this material from other material without giving it away. Equal for equal
    /// bytes, whatever SPI, direction or suite they are used under.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(Fingerprint::LABEL);
        context.update(&self.bytes);
        let mut short = [0; Fingerprint::BYTES];
        short.copy_from_slice(&context.finish().as_ref()[..Fingerprint::BYTES]);
        Fingerprint(short)
    }

    /// Key ‖ salt in clear. Only for writing the key files of a laboratory: never show, log or
    /// compare it.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    pub(crate) fn salt(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes()..]
    }
}

/// Names key material without giving it away: SHA-256 of a label and the material, cut to 16
/// bytes. May be shown and stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; Fingerprint::BYTES]);

impl Fingerprint {
    /// Its length.
    pub const BYTES: usize = 16;

    /// Keeps these digests apart from every other use of SHA-256 on the same bytes.
    const LABEL: &[u8] = b"lockgate key fingerprint v1\0";

    /// Its bytes.
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
        }
        assert_eq!(Suite::from_name(""), None);
        assert_eq!(Suite::Aes128Gcm.material_bytes(), 20);
        assert_eq!(Suite::Aes256Gcm.material_bytes(), 36);
    }

    #[test]
    fn material_of_the_wrong_length_is_refused_with_the_lengths_and_without_the_bytes() {
        for &suite in Suite::ALL {
            for got in [0, 1, suite.key_bytes(), suite.material_bytes() - 1, 37, 1000] {
                let error = KeyMaterial::new(suite, &vec![0xa5; got]).err().expect("refused");
                let expected = suite.material_bytes();
                assert_eq!(error, KeyError::Length { suite, expected, got });
                let text = format!("{error} {error:?}");
                assert!(text.contains(&format!("{expected} bytes")), "{text}");
                assert!(!text.contains("a5") && !text.contains("165"), "{text}");
            }
        }
    }

    #[test]
    fn key_and_salt_are_the_two_ends_of_the_material() {
        let bytes: Vec<u8> = (0..36).collect();
        let material = KeyMaterial::new(Suite::Aes256Gcm, &bytes).unwrap();
        assert_eq!(material.key(), &bytes[..32]);
        assert_eq!(material.salt(), &bytes[32..]);
        assert_eq!(material.expose(), &bytes[..]);
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
