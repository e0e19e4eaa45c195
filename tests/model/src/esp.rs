//! ESP told plainly (RFC 4303 §2 and §3, RFC 4106, 7634, 3602 and 4868): for the peers of a test,
//! and for looking into what a gateway sends. Shares with the gateway the AEADs of `aws-lc-rs`,
//! which it uses where Intel's library is not, and the block cipher under its portable CBC.

use std::collections::BTreeSet;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use hmac::{Hmac, Mac};
use ipsec::{SequenceNumbers, Suite};
use sha2::{Sha256, Sha384, Sha512};

use crate::world::Keys;

/// The plaintext of an ESP packet, trailer included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Everything in front of pad length and next header: the inner packet or the upper layer,
    /// perhaps traffic flow confidentiality padding, and padding.
    pub payload: Vec<u8>,
    /// Bytes of padding that the trailer claims.
    pub pad_length: u8,
    /// IP protocol number of what is carried.
    pub next_header: u8,
}

impl Text {
    /// RFC 4303 §2.4: padding 1, 2, 3 … to a multiple of the suite's block.
    pub fn around(inner: &[u8], next_header: u8, suite: Suite) -> Text {
        let mut payload = inner.to_vec();
        let mut pad_length = 0;
        while !(payload.len() + 2).is_multiple_of(layout(suite).block) {
            pad_length += 1;
            payload.push(pad_length);
        }
        Text { payload, pad_length, next_header }
    }

    /// Returns the bytes in front of the padding; `None`: there are fewer than the trailer claims.
    pub fn carried(&self) -> Option<&[u8]> {
        let end = self.payload.len().checked_sub(self.pad_length.into())?;
        Some(&self.payload[..end])
    }
}

/// Sizes of a suite's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of the IV that a packet carries.
    pub iv: usize,
    /// Bytes of the ICV.
    pub icv: usize,
    /// The text is a multiple of this, bytes.
    pub block: usize,
}

/// RFC 4106 §3.1 and §6, RFC 7634 §2: an IV of 8 bytes, an ICV of 16. RFC 3602 §3: an IV of a
/// block. RFC 4868 §2.3: half of the hash. RFC 4303 §2.4: always a multiple of 4 bytes.
///
/// # Panics
/// For the suite without integrity, which no SA of a gateway may have.
pub fn layout(suite: Suite) -> Layout {
    let cbc = |icv| Layout { iv: 16, icv, block: 16 };
    let null = |icv| Layout { iv: 0, icv, block: 4 };
    match suite {
        Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => {
            Layout { iv: 8, icv: 16, block: 4 }
        }
        Suite::Aes128CbcSha256 | Suite::Aes256CbcSha256 => cbc(16),
        Suite::Aes128CbcSha384 | Suite::Aes256CbcSha384 => cbc(24),
        Suite::Aes128CbcSha512 | Suite::Aes256CbcSha512 => cbc(32),
        Suite::NullSha256 => null(16),
        Suite::NullSha384 => null(24),
        Suite::NullSha512 => null(32),
        Suite::Null => panic!("the model does not speak {suite}"),
    }
}

/// Seals a text: SPI, sequence number, IV, ciphertext, ICV.
pub fn seal(keys: &Keys, sequence: u64, text: &Text) -> Vec<u8> {
    let mut bytes = keys.spi.to_be_bytes().to_vec();
    bytes.extend((sequence as u32).to_be_bytes());
    let mut sealed = text.payload.clone();
    sealed.extend([text.pad_length, text.next_header]);
    match Algorithms::of(keys) {
        Algorithms::Aead { key, salt } => {
            let iv = sequence.to_be_bytes();
            bytes.extend(iv);
            let aad = Aad::from(authenticated(keys, sequence));
            let nonce = nonce(&salt, &iv);
            key.seal_in_place_append_tag(nonce, aad, &mut sealed).expect("a cipher that works");
            bytes.extend(sealed);
        }
        Algorithms::Separate { cipher, integrity_key } => {
            if let Some(cipher) = cipher {
                // Who receives does not care whether an IV could have been predicted.
                let iv: [u8; 16] = u128::from(sequence).wrapping_mul(u128::MAX / 59).to_be_bytes();
                bytes.extend(iv);
                cipher.encrypt(iv, &mut sealed);
            }
            bytes.extend(sealed);
            let icv = integrity(keys, integrity_key, sequence, &bytes);
            bytes.extend(icv);
        }
    }
    bytes
}

/// Opens what [`seal`] made, if the ICV is right under this whole sequence number.
pub fn open(keys: &Keys, sequence: u64, bytes: &[u8]) -> Option<Text> {
    let Layout { iv, icv, block } = layout(keys.suite);
    let (covered, icv) = bytes.split_at_checked(bytes.len().checked_sub(icv)?)?;
    let (iv, ciphertext) = covered.get(8..)?.split_at_checked(iv)?;
    let mut text = ciphertext.to_vec();
    match Algorithms::of(keys) {
        Algorithms::Aead { key, salt } => {
            let aad = Aad::from(authenticated(keys, sequence));
            text.extend(icv);
            let length = key.open_in_place(nonce(&salt, iv), aad, &mut text).ok()?.len();
            text.truncate(length);
        }
        Algorithms::Separate { cipher, integrity_key } => {
            if integrity(keys, integrity_key, sequence, covered) != icv {
                return None;
            }
            if let Some(cipher) = cipher {
                text.len().is_multiple_of(block).then_some(())?;
                cipher.decrypt(iv.try_into().expect("a block"), &mut text);
            }
        }
    }
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

/// Bytes of ESP around `carried` bytes.
pub fn sealed_length(suite: Suite, carried: usize) -> usize {
    let Layout { iv, icv, block } = layout(suite);
    8 + iv + (carried + 2).div_ceil(block) * block + icv
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

/// RFC 4303 §2.8 and §2.2.1: over everything from the SPI on, with ESN the high half of the number
/// behind it; RFC 4868 §2.3: cut to half.
fn integrity(keys: &Keys, integrity_key: &[u8], sequence: u64, covered: &[u8]) -> Vec<u8> {
    let mut covered = covered.to_vec();
    if keys.numbers == SequenceNumbers::Extended {
        covered.extend(((sequence >> 32) as u32).to_be_bytes());
    }
    let mut icv = match integrity_key.len() {
        32 => hmac::<Hmac<Sha256>>(integrity_key, &covered),
        48 => hmac::<Hmac<Sha384>>(integrity_key, &covered),
        _ => hmac::<Hmac<Sha512>>(integrity_key, &covered),
    };
    icv.truncate(layout(keys.suite).icv);
    icv
}

fn hmac<M: Mac + KeyInit>(key: &[u8], covered: &[u8]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length");
    mac.update(covered);
    mac.finalize().into_bytes().to_vec()
}

/// A suite's algorithms with their keys: encryption key, then salt or integrity key.
enum Algorithms<'k> {
    Aead { key: LessSafeKey, salt: [u8; 4] },
    Separate { cipher: Option<Block>, integrity_key: &'k [u8] },
}

impl<'k> Algorithms<'k> {
    fn of(keys: &'k Keys) -> Algorithms<'k> {
        let (algorithm, length) = match keys.suite {
            Suite::Aes128Gcm => (&AES_128_GCM, 16),
            Suite::Aes192Gcm => (&AES_192_GCM, 24),
            Suite::Aes256Gcm => (&AES_256_GCM, 32),
            Suite::ChaCha20Poly1305 => (&CHACHA20_POLY1305, 32),
            suite => {
                let integrity_bytes = layout(suite).icv * 2;
                let at = keys.material.len() - integrity_bytes;
                let (key, integrity_key) = keys.material.split_at(at);
                return Algorithms::Separate { cipher: Block::with(key), integrity_key };
            }
        };
        let (key, salt) = keys.material.split_at(length);
        let key = UnboundKey::new(algorithm, key).expect("a key of the right length");
        let salt = salt.try_into().expect("a salt of 4 bytes");
        Algorithms::Aead { key: LessSafeKey::new(key), salt }
    }
}

/// AES, to be chained.
enum Block {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

impl Block {
    /// `None`: no key, no encryption.
    fn with(key: &[u8]) -> Option<Block> {
        let right = "a key of the right length";
        match key.len() {
            0 => None,
            16 => Some(Block::Aes128(Aes128::new_from_slice(key).expect(right).into())),
            _ => Some(Block::Aes256(Aes256::new_from_slice(key).expect(right).into())),
        }
    }

    /// Cipher block chaining: each block is mixed with the ciphertext before it, the first with
    /// the IV.
    fn encrypt(&self, iv: [u8; 16], text: &mut [u8]) {
        let mut before = iv;
        for block in text.as_chunks_mut().0 {
            mix(block, &before);
            let block: &mut [u8; 16] = block;
            match self {
                Block::Aes128(aes) => aes.encrypt_block(block.into()),
                Block::Aes256(aes) => aes.encrypt_block(block.into()),
            }
            before = *block;
        }
    }

    fn decrypt(&self, iv: [u8; 16], text: &mut [u8]) {
        let mut before = iv;
        for block in text.as_chunks_mut().0 {
            let block: &mut [u8; 16] = block;
            let sealed = *block;
            match self {
                Block::Aes128(aes) => aes.decrypt_block(block.into()),
                Block::Aes256(aes) => aes.decrypt_block(block.into()),
            }
            mix(block, &before);
            before = sealed;
        }
    }
}

fn mix(block: &mut [u8; 16], with: &[u8; 16]) {
    block.iter_mut().zip(with).for_each(|(byte, with)| *byte ^= with);
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

/// Answer of the replay window for a number.
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

    /// Returns whether a number was accepted before, however long ago.
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
