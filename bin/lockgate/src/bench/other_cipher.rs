//! ESP by another hand: framing written from RFC 4303 and RFC 4106, ciphered by RustCrypto.
//!
//! Nothing of crate `ipsec` but the names of the suites is used here, so that what the walk seals
//! is opened, and what it opens was sealed, by code that does not share its mistakes.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes128Gcm, Aes256Gcm, KeyInit, Nonce, Tag};
use ipsec::Suite;

/// SPI, sequence number, IV.
const HEAD_BYTES: usize = 16;
const ICV_BYTES: usize = 16;
const SALT_BYTES: usize = 4;

/// One SA's key.
pub(super) struct OtherCipher {
    key: Key,
    salt: [u8; SALT_BYTES],
}

enum Key {
    Aes128(Box<Aes128Gcm>),
    Aes256(Box<Aes256Gcm>),
}

/// What was in an ESP packet.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Opened {
    pub(super) spi: u32,
    pub(super) sequence: u32,
    /// IP version by the next header field.
    pub(super) version: u8,
    pub(super) inner: Vec<u8>,
}

/// Why bytes are no ESP packet of this SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum OtherError {
    #[error("too short for ESP, or its text does not end on a multiple of 4")]
    Length,
    #[error("the ICV is wrong")]
    Integrity,
    #[error("the padding is not 1, 2, 3 …")]
    Padding,
    #[error("next header {0}")]
    NextHeader(u8),
}

impl OtherCipher {
    /// A cipher from key ‖ salt, as many bytes as the suite takes.
    pub(super) fn new(suite: Suite, material: &[u8]) -> OtherCipher {
        let (key, salt) = material.split_last_chunk().expect("key and salt");
        let key = match suite {
            Suite::Aes128Gcm => Aes128Gcm::new_from_slice(key).map(|key| Key::Aes128(key.into())),
            Suite::Aes256Gcm => Aes256Gcm::new_from_slice(key).map(|key| Key::Aes256(key.into())),
        };
        OtherCipher { key: key.expect("the suite's key length"), salt: *salt }
    }

    /// Seals an IP packet, IV = sequence number: from the SPI to the end of the ICV.
    pub(super) fn seal(&self, spi: u32, sequence: u32, inner: &[u8]) -> Vec<u8> {
        let padding = (4 - (inner.len() + 2) % 4) % 4;
        let next_header = if inner[0] >> 4 == 4 { 4 } else { 41 };
        let mut esp = Vec::with_capacity(HEAD_BYTES + inner.len() + padding + 2 + ICV_BYTES);
        esp.extend(spi.to_be_bytes());
        esp.extend(sequence.to_be_bytes());
        esp.extend(u64::from(sequence).to_be_bytes());
        esp.extend(inner);
        esp.extend((1..).take(padding));
        esp.extend([padding as u8, next_header]);
        let (head, text) = esp.split_at_mut(HEAD_BYTES);
        let nonce = self.nonce(&head[8..]);
        let tag = match &self.key {
            Key::Aes128(key) => key.encrypt_inout_detached(&nonce, &head[..8], text.into()),
            Key::Aes256(key) => key.encrypt_inout_detached(&nonce, &head[..8], text.into()),
        };
        esp.extend(tag.expect("a packet is not too long for GCM"));
        esp
    }

    /// Opens an ESP packet, from the SPI to the end of the ICV.
    ///
    /// # Errors
    /// [`OtherError`]: it is not a right packet of this SA.
    pub(super) fn open(&self, esp: &[u8]) -> Result<Opened, OtherError> {
        let (head, rest) = esp.split_first_chunk::<HEAD_BYTES>().ok_or(OtherError::Length)?;
        let (text, tag) = rest.split_last_chunk::<ICV_BYTES>().ok_or(OtherError::Length)?;
        if text.len() < 2 || !text.len().is_multiple_of(4) {
            return Err(OtherError::Length);
        }
        let (nonce, tag) = (self.nonce(&head[8..]), Tag::from(*tag));
        let mut text = text.to_vec();
        let buffer = text.as_mut_slice().into();
        let opened = match &self.key {
            Key::Aes128(key) => key.decrypt_inout_detached(&nonce, &head[..8], buffer, &tag),
            Key::Aes256(key) => key.decrypt_inout_detached(&nonce, &head[..8], buffer, &tag),
        };
        opened.map_err(|_| OtherError::Integrity)?;
        let (pad_length, next_header) = (text[text.len() - 2], text[text.len() - 1]);
        text.truncate(text.len() - 2);
        let packet = text.len().checked_sub(pad_length.into()).ok_or(OtherError::Padding)?;
        if !text[packet..].iter().copied().eq(1..=pad_length) {
            return Err(OtherError::Padding);
        }
        text.truncate(packet);
        let version = match next_header {
            4 => 4,
            41 => 6,
            other => return Err(OtherError::NextHeader(other)),
        };
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        Ok(Opened { spi: word(0), sequence: word(4), version, inner: text })
    }

    fn nonce(&self, iv: &[u8]) -> Nonce<aes_gcm::aead::consts::U12> {
        let mut nonce = [0; 12];
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..].copy_from_slice(iv);
        nonce.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_again_and_no_byte_of_it_may_change() {
        for &suite in Suite::ALL {
            let material: Vec<u8> = (0..suite.material_bytes() as u8).collect();
            let cipher = OtherCipher::new(suite, &material);
            for length in 20..28 {
                let inner = [vec![0x45], vec![7; length - 1]].concat();
                let esp = cipher.seal(0x1000, 9, &inner);
                let expected = Opened { spi: 0x1000, sequence: 9, version: 4, inner };
                assert_eq!(cipher.open(&esp), Ok(expected));
                for place in 0..esp.len() {
                    let mut changed = esp.clone();
                    changed[place] ^= 1;
                    assert_eq!(cipher.open(&changed), Err(OtherError::Integrity), "byte {place}");
                }
            }
        }
    }

    /// The 256-bit case of draft-mcgrew-gcm-test-01 §4. Its next header says ICMP, so it is
    /// refused, but only for that: ICV and padding were right.
    #[test]
    fn the_published_esp_packet_authenticates() {
        let hex = |text: &str| -> Vec<u8> {
            let digits: Vec<u8> =
                text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
            digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
        };
        let material = hex("abbccddef00112233445566778899aab \
            abbccddef00112233445566778899aab 11223344");
        let mut esp = hex("4a2cbfe3 00000002 0102030405060708 \
            ff425c9b724599df7a3bcd510194e00d 6a78107f1b0b1cbf06efae9d65a5d763 \
            748a637985771d347f0545659f14e99d ef842d8eb335f4eecfdbf831824b4c49 15956c96");
        let cipher = OtherCipher::new(Suite::Aes256Gcm, &material);
        assert_eq!(cipher.open(&esp), Err(OtherError::NextHeader(1)));
        esp[4] ^= 1;
        assert_eq!(cipher.open(&esp), Err(OtherError::Integrity));
    }
}
