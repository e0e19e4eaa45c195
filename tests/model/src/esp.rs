//! Tunnel-mode ESP told plainly (RFC 4303 §2 and §3, RFC 4106): for the peers of a test, and for
//! looking into what a gateway sends. Shares with the gateway the AEAD library and nothing else.

use std::collections::BTreeSet;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use ipsec::{SequenceNumbers, Suite};

use crate::world::Keys;

/// What an ESP packet carries, trailer included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Everything in front of pad length and next header: the inner packet, perhaps traffic flow
    /// confidentiality padding, and padding.
    pub payload: Vec<u8>,
    /// Bytes of padding that the trailer claims.
    pub pad_length: u8,
    /// IP protocol number of the inner packet.
    pub next_header: u8,
}

impl Text {
    /// RFC 4303 §2.4: padding 1, 2, 3 … to a multiple of 4.
    pub fn around(inner: &[u8], next_header: u8) -> Text {
        let mut payload = inner.to_vec();
        let mut pad_length = 0;
        while !(payload.len() + 2).is_multiple_of(4) {
            pad_length += 1;
            payload.push(pad_length);
        }
        Text { payload, pad_length, next_header }
    }
}

/// Seals a text: SPI, sequence number, IV, ciphertext, ICV.
pub fn seal(keys: &Keys, sequence: u64, text: &Text) -> Vec<u8> {
    let mut bytes = keys.spi.to_be_bytes().to_vec();
    bytes.extend((sequence as u32).to_be_bytes());
    bytes.extend(sequence.to_be_bytes());
    let mut sealed = text.payload.clone();
    sealed.extend([text.pad_length, text.next_header]);
    let (key, salt) = split(keys);
    let nonce = nonce(&salt, &bytes[8..16]);
    let aad = Aad::from(authenticated(keys, sequence));
    key.seal_in_place_append_tag(nonce, aad, &mut sealed).expect("a cipher that works");
    bytes.extend(sealed);
    bytes
}

/// Opens what [`seal`] made, if the ICV is right under this whole sequence number.
pub fn open(keys: &Keys, sequence: u64, bytes: &[u8]) -> Option<Text> {
    let (iv, sealed) = (bytes.get(8..16)?, bytes.get(16..)?);
    let (key, salt) = split(keys);
    let aad = Aad::from(authenticated(keys, sequence));
    let mut text = sealed.to_vec();
    let length = key.open_in_place(nonce(&salt, iv), aad, &mut text).ok()?.len();
    text.truncate(length);
    let next_header = text.pop()?;
    let pad_length = text.pop()?;
    Some(Text { payload: text, pad_length, next_header })
}

/// SPI and low half of the sequence number of an ESP packet.
pub fn header(bytes: &[u8]) -> Option<(u32, u32)> {
    let spi = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
    let low = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
    Some((spi, low))
}

/// Bytes of the outer packet that an inner packet of `inner` bytes becomes.
pub fn sealed_length(inner: usize, outer_is_v4: bool) -> usize {
    let outer = if outer_is_v4 { 20 } else { 40 };
    let text = (inner + 2).div_ceil(4) * 4;
    outer + 8 + 8 + text + 16
}

/// RFC 4106 §5: SPI and sequence number, all 64 bits of it with ESN.
fn authenticated(keys: &Keys, sequence: u64) -> Vec<u8> {
    let mut aad = keys.spi.to_be_bytes().to_vec();
    match keys.numbers {
        SequenceNumbers::Short => aad.extend((sequence as u32).to_be_bytes()),
        SequenceNumbers::Extended => aad.extend(sequence.to_be_bytes()),
    }
    aad
}

/// The suites that the model seals and opens by itself: those whose IV is the sequence number.
pub const SUITES: &[Suite] =
    &[Suite::Aes128Gcm, Suite::Aes192Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

fn split(keys: &Keys) -> (LessSafeKey, [u8; 4]) {
    let (algorithm, length) = match keys.suite {
        Suite::Aes128Gcm => (&AES_128_GCM, 16),
        Suite::Aes192Gcm => (&AES_192_GCM, 24),
        Suite::Aes256Gcm => (&AES_256_GCM, 32),
        Suite::ChaCha20Poly1305 => (&CHACHA20_POLY1305, 32),
        suite => panic!("the model does not speak {suite}"),
    };
    let (key, salt) = keys.material.split_at(length);
    let key = UnboundKey::new(algorithm, key).expect("a key of the right length");
    (LessSafeKey::new(key), salt.try_into().expect("a salt of 4 bytes"))
}

fn nonce(salt: &[u8; 4], iv: &[u8]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(salt);
    nonce[4..].copy_from_slice(iv);
    Nonce::assume_unique_for_key(nonce)
}

/// The replay window as what it stands for: the set of all numbers ever accepted.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    accepted: BTreeSet<u64>,
}

/// What the window says of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Not accepted before.
    Fresh,
    /// Accepted before.
    Replayed,
    /// Too far left of the highest.
    TooOld,
}

impl Numbers {
    /// The highest number accepted; 0 at the start.
    pub fn highest(&self) -> u64 {
        self.accepted.last().copied().unwrap_or(0)
    }

    /// RFC 4303 §3.4.3.
    pub fn judge(&self, number: u64, window: u32) -> Freshness {
        if number == 0 || number + u64::from(window) <= self.highest() {
            Freshness::TooOld
        } else if self.accepted.contains(&number) {
            Freshness::Replayed
        } else {
            Freshness::Fresh
        }
    }

    /// Whether a number was accepted before, however long ago.
    pub fn was_accepted(&self, number: u64) -> bool {
        self.accepted.contains(&number)
    }

    /// Notes that a number was accepted.
    pub fn accept(&mut self, number: u64) {
        self.accepted.insert(number);
    }

    /// RFC 4303 §A2.2: the whole number of a packet that shows its low half. Of all numbers with
    /// that low half it is the lowest that is not left of the window.
    pub fn infer(&self, low: u32, window: u32, numbers: SequenceNumbers) -> u64 {
        if numbers == SequenceNumbers::Short {
            return u64::from(low);
        }
        let mut number = u64::from(low);
        while number + u64::from(window) <= self.highest() {
            number += 1 << 32;
        }
        number
    }
}
