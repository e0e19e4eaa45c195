//! ESP by another hand: framing written from RFC 4303, 4106, 7634, 3602 and 4868, ciphered by
//! RustCrypto; the chaining of AES-CBC is written here.
//!
//! Nothing of crate `ipsec` but the names of the suites is used, so that what the walk seals is
//! opened, and what it opens was sealed, by code that does not share its mistakes. One exception:
//! AES itself, block by block, is RustCrypto's in the portable backend of AES-CBC too.

use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use aes_gcm::{Aes128Gcm, Aes256Gcm, AesGcm};
use chacha20poly1305::ChaCha20Poly1305;
use hmac::{Hmac, Mac};
use ipsec::Suite;
use sha2::{Sha256, Sha384, Sha512};

/// Bytes of SPI and sequence number.
const HEADER_BYTES: usize = 8;
/// Bytes of pad length and next header.
const TRAILER_BYTES: usize = 2;
/// Bytes of the IV of an AEAD.
const AEAD_IV_BYTES: usize = 8;
/// Bytes of the ICV of an AEAD.
const AEAD_ICV_BYTES: usize = 16;
/// Bytes of a block of AES.
const BLOCK_BYTES: usize = 16;

/// One SA's key.
pub struct OtherCipher(Key);

enum Key {
    /// AES-GCM, ChaCha20-Poly1305.
    Combined { aead: Box<dyn Aead>, salt: [u8; 4] },
    /// AES-CBC or no encryption, beside it HMAC or nothing.
    Separate { cbc: Option<Box<dyn Cbc>>, hmac: Option<Box<dyn Authenticator>> },
}

/// An AEAD with a nonce of 12 bytes and an ICV of 16.
trait Aead: Send + Sync {
    /// Encrypts in place; returns the ICV.
    fn seal(&self, nonce: &[u8; 12], header: &[u8], text: &mut [u8]) -> [u8; AEAD_ICV_BYTES];
    /// Decrypts in place; returns whether the ICV was right.
    fn open(&self, nonce: &[u8; 12], header: &[u8], text: &mut [u8], icv: &[u8]) -> bool;
}

impl<A: AeadInOut<NonceSize = U12, TagSize = U16> + Send + Sync> Aead for A {
    fn seal(&self, nonce: &[u8; 12], header: &[u8], text: &mut [u8]) -> [u8; AEAD_ICV_BYTES] {
        let tag = self.encrypt_inout_detached(&(*nonce).into(), header, text.into());
        tag.expect("a packet is not too long for an AEAD").into()
    }

    fn open(&self, nonce: &[u8; 12], header: &[u8], text: &mut [u8], icv: &[u8]) -> bool {
        let Ok(icv) = <[u8; AEAD_ICV_BYTES]>::try_from(icv) else { return false };
        let opened =
            self.decrypt_inout_detached(&(*nonce).into(), header, text.into(), &icv.into());
        opened.is_ok()
    }
}

/// A block cipher in cipher block chaining mode (RFC 3602 §2); the text is whole blocks.
trait Cbc: Send + Sync {
    fn encrypt(&self, iv: [u8; BLOCK_BYTES], text: &mut [u8]);
    fn decrypt(&self, iv: [u8; BLOCK_BYTES], text: &mut [u8]);
}

impl<C> Cbc for C
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> + Send + Sync,
{
    fn encrypt(&self, iv: [u8; BLOCK_BYTES], text: &mut [u8]) {
        let mut before = iv;
        for block in text.as_chunks_mut().0 {
            *block = xor(block, &before);
            self.encrypt_block(block.into());
            before = *block;
        }
    }

    fn decrypt(&self, iv: [u8; BLOCK_BYTES], text: &mut [u8]) {
        let mut before = iv;
        for block in text.as_chunks_mut().0 {
            let sealed = *block;
            self.decrypt_block(block.into());
            *block = xor(block, &before);
            before = sealed;
        }
    }
}

fn xor(a: &[u8; BLOCK_BYTES], b: &[u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

/// A message authentication code whose front half is the ICV (RFC 4868 §2.3).
trait Authenticator: Send + Sync {
    /// Bytes of the ICV.
    fn icv_bytes(&self) -> usize;
    /// The ICV of these bytes.
    fn icv(&self, bytes: &[u8]) -> Vec<u8>;
    /// Returns whether this is the ICV of these bytes.
    fn is_icv(&self, bytes: &[u8], icv: &[u8]) -> bool;
}

impl<M: Mac + Clone + Send + Sync> Authenticator for M {
    fn icv_bytes(&self) -> usize {
        M::output_size() / 2
    }

    fn icv(&self, bytes: &[u8]) -> Vec<u8> {
        let full = self.clone().chain_update(bytes).finalize().into_bytes();
        full[..self.icv_bytes()].to_vec()
    }

    fn is_icv(&self, bytes: &[u8], icv: &[u8]) -> bool {
        let authenticated = self.clone().chain_update(bytes).verify_truncated_left(icv);
        icv.len() == self.icv_bytes() && authenticated.is_ok()
    }
}

/// Contents of an ESP packet.
#[derive(PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its SPI.
    pub spi: u32,
    /// Its sequence number.
    pub sequence: u32,
    /// IP version by the next header field.
    pub version: u8,
    /// The packet inside.
    pub inner: Vec<u8>,
}

/// Reasons why bytes are no ESP packet of this SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OtherError {
    /// No length that a packet can have.
    #[error("too short for ESP, or its text does not end on a multiple of the cipher's block")]
    Length,
    /// The ICV is that of other bytes.
    #[error("the ICV is wrong")]
    Integrity,
    /// Padding that RFC 4303 §2.4 does not allow, or more than needed.
    #[error("the padding is not 1, 2, 3 …, or not the least")]
    Padding,
    /// A next header that is not IP.
    #[error("next header {0}")]
    NextHeader(u8),
}

/// A key schedule, boxed: they are large.
fn keyed<K: KeyInit>(key: &[u8]) -> Box<K> {
    Box::new(K::new_from_slice(key).expect("the suite's key length"))
}

/// Key ‖ salt (RFC 4106 §8.1, RFC 7634 §2).
fn combined<A: Aead + KeyInit + 'static>(material: &[u8]) -> Key {
    let (key, salt) = material.split_last_chunk().expect("key and salt");
    Key::Combined { aead: keyed::<A>(key), salt: *salt }
}

/// Encryption key ‖ integrity key (RFC 7296 §2.17).
fn cbc<C: Cbc + KeyInit + 'static>(material: &[u8], hmac: Option<MakeHmac>) -> Key {
    let (key, integrity_key) = material.split_at(C::key_size());
    Key::Separate { cbc: Some(keyed::<C>(key)), hmac: hmac.map(|make| make(integrity_key)) }
}

/// Makes an authenticator from its key.
type MakeHmac = fn(&[u8]) -> Box<dyn Authenticator>;

fn hmac<M: Authenticator + KeyInit + 'static>(key: &[u8]) -> Box<dyn Authenticator> {
    keyed::<M>(key)
}

const SHA_256: Option<MakeHmac> = Some(hmac::<Hmac<Sha256>>);
const SHA_384: Option<MakeHmac> = Some(hmac::<Hmac<Sha384>>);
const SHA_512: Option<MakeHmac> = Some(hmac::<Hmac<Sha512>>);

impl OtherCipher {
    /// A cipher from all of a suite's key material.
    pub fn new(suite: Suite, material: &[u8]) -> OtherCipher {
        let null = |hmac: MakeHmac| Key::Separate { cbc: None, hmac: Some(hmac(material)) };
        OtherCipher(match suite {
            Suite::Aes128Gcm => combined::<Aes128Gcm>(material),
            Suite::Aes192Gcm => combined::<AesGcm<Aes192, U12>>(material),
            Suite::Aes256Gcm => combined::<Aes256Gcm>(material),
            Suite::ChaCha20Poly1305 => combined::<ChaCha20Poly1305>(material),
            Suite::Aes128CbcSha256 => cbc::<Aes128>(material, SHA_256),
            Suite::Aes128CbcSha384 => cbc::<Aes128>(material, SHA_384),
            Suite::Aes128CbcSha512 => cbc::<Aes128>(material, SHA_512),
            Suite::Aes256CbcSha256 => cbc::<Aes256>(material, SHA_256),
            Suite::Aes256CbcSha384 => cbc::<Aes256>(material, SHA_384),
            Suite::Aes256CbcSha512 => cbc::<Aes256>(material, SHA_512),
            Suite::NullSha256 => null(hmac::<Hmac<Sha256>>),
            Suite::NullSha384 => null(hmac::<Hmac<Sha384>>),
            Suite::NullSha512 => null(hmac::<Hmac<Sha512>>),
            Suite::Null => Key::Separate { cbc: None, hmac: None },
        })
    }

    /// Seals an IP packet: from the SPI to the end of the ICV. An AEAD's IV is the sequence
    /// number, that of AES-CBC is made of it: nobody listens here.
    pub fn seal(&self, spi: u32, sequence: u32, inner: &[u8]) -> Vec<u8> {
        let block = self.block();
        let padding = (block - (inner.len() + TRAILER_BYTES) % block) % block;
        let next_header = if inner[0] >> 4 == 4 { 4 } else { 41 };
        let mut esp = Vec::with_capacity(inner.len() + 80);
        esp.extend(spi.to_be_bytes());
        esp.extend(sequence.to_be_bytes());
        let iv = u128::from(sequence).to_be_bytes();
        esp.extend(&iv[iv.len() - self.iv_bytes()..]);
        let text = esp.len();
        esp.extend(inner);
        esp.extend((1..).take(padding));
        esp.extend([padding as u8, next_header]);
        match &self.0 {
            Key::Combined { aead, salt } => {
                let (head, text) = esp.split_at_mut(text);
                let (header, iv) = head.split_at(HEADER_BYTES);
                let icv = aead.seal(&nonce(salt, iv), header, text);
                esp.extend(icv);
            }
            Key::Separate { cbc, hmac } => {
                if let Some(cbc) = cbc {
                    cbc.encrypt(iv, &mut esp[text..]);
                }
                if let Some(hmac) = hmac {
                    esp.extend(hmac.icv(&esp));
                }
            }
        }
        esp
    }

    /// Opens an ESP packet, from the SPI to the end of the ICV.
    ///
    /// # Errors
    /// [`OtherError`]: it is not a right packet of this SA.
    pub fn open(&self, esp: &[u8]) -> Result<Opened, OtherError> {
        let behind = esp.len().checked_sub(self.icv_bytes()).ok_or(OtherError::Length)?;
        let (covered, icv) = esp.split_at(behind);
        let text = HEADER_BYTES + self.iv_bytes();
        let (head, text) = covered.split_at_checked(text).ok_or(OtherError::Length)?;
        let block = self.block();
        if text.len() < TRAILER_BYTES || !text.len().is_multiple_of(block) {
            return Err(OtherError::Length);
        }
        let (header, iv) = head.split_at(HEADER_BYTES);
        let mut text = text.to_vec();
        let authentic = match &self.0 {
            Key::Combined { aead, salt } => aead.open(&nonce(salt, iv), header, &mut text, icv),
            Key::Separate { cbc, hmac } => {
                if let Some(cbc) = cbc {
                    cbc.decrypt(iv.try_into().expect("as long as a block"), &mut text);
                }
                hmac.as_ref().is_none_or(|hmac| hmac.is_icv(covered, icv))
            }
        };
        if !authentic {
            return Err(OtherError::Integrity);
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let (version, inner) = strip(text, block)?;
        Ok(Opened { spi: word(0), sequence: word(4), version, inner })
    }

    /// Bytes of which the text is a multiple (RFC 4303 §2.4).
    fn block(&self) -> usize {
        match &self.0 {
            Key::Separate { cbc: Some(_), .. } => BLOCK_BYTES,
            _ => 4,
        }
    }

    fn iv_bytes(&self) -> usize {
        match &self.0 {
            Key::Combined { .. } => AEAD_IV_BYTES,
            Key::Separate { cbc: Some(_), .. } => BLOCK_BYTES,
            Key::Separate { cbc: None, .. } => 0,
        }
    }

    fn icv_bytes(&self) -> usize {
        match &self.0 {
            Key::Combined { .. } => AEAD_ICV_BYTES,
            Key::Separate { hmac, .. } => hmac.as_ref().map_or(0, |hmac| hmac.icv_bytes()),
        }
    }
}

/// Takes the trailer off: IP version by the next header, and the packet.
fn strip(mut text: Vec<u8>, block: usize) -> Result<(u8, Vec<u8>), OtherError> {
    let (pad_length, next_header) = (text[text.len() - 2], text[text.len() - 1]);
    text.truncate(text.len() - TRAILER_BYTES);
    let packet = text.len().checked_sub(pad_length.into()).ok_or(OtherError::Padding)?;
    let is_least = usize::from(pad_length) < block;
    if !is_least || !text[packet..].iter().copied().eq(1..=pad_length) {
        return Err(OtherError::Padding);
    }
    text.truncate(packet);
    match next_header {
        4 => Ok((4, text)),
        41 => Ok((6, text)),
        other => Err(OtherError::NextHeader(other)),
    }
}

/// Salt ‖ IV (RFC 4106 §4, RFC 7634 §2).
fn nonce(salt: &[u8; 4], iv: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..salt.len()].copy_from_slice(salt);
    nonce[salt.len()..].copy_from_slice(iv);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn what_is_sealed_opens_again_and_no_byte_of_it_may_change() {
        for &suite in Suite::ALL {
            let material: Vec<u8> = (0..suite.material_bytes() as u8).collect();
            let cipher = OtherCipher::new(suite, &material);
            for length in 20..40 {
                let inner = [vec![0x45], vec![7; length - 1]].concat();
                let esp = cipher.seal(0x1000, 9, &inner);
                let expected = Opened { spi: 0x1000, sequence: 9, version: 4, inner };
                assert_eq!(cipher.open(&esp), Ok(expected), "{suite}");
                for place in (0..esp.len()).filter(|_| suite != Suite::Null) {
                    let mut changed = esp.clone();
                    changed[place] ^= 1;
                    let opened = cipher.open(&changed);
                    assert_eq!(opened, Err(OtherError::Integrity), "{suite}, byte {place}");
                }
                for short in 0..esp.len() {
                    assert!(cipher.open(&esp[..short]).is_err(), "{suite}, {short} bytes");
                }
            }
        }
    }

    #[test]
    fn without_integrity_padding_and_next_header_are_looked_at_all_the_same() {
        let cipher = OtherCipher::new(Suite::Null, &[0; 16]);
        let esp = cipher.seal(0x1000, 9, &[0x45; 21]);
        let changed = |from_end: usize, value: u8| {
            let mut esp = esp.clone();
            let place = esp.len() - from_end;
            esp[place] = value;
            cipher.open(&esp)
        };
        assert_eq!(changed(1, 1), Err(OtherError::NextHeader(1)));
        assert_eq!(changed(2, 200), Err(OtherError::Padding), "more than there is");
        assert_eq!(changed(3, 7), Err(OtherError::Padding), "not 1, 2, 3 …");
    }

    /// The 256-bit case of draft-mcgrew-gcm-test-01 §4. Its next header says ICMP, so it is
    /// refused, but only for that: ICV and padding were right.
    #[test]
    fn the_published_esp_packet_under_aes_gcm_authenticates() {
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

    /// RFC 7634 appendix A.
    #[test]
    fn the_published_esp_packet_under_chacha20_poly1305_opens() {
        let material = hex("808182838485868788898a8b8c8d8e8f \
            909192939495969798999a9b9c9d9e9f a0a1a2a3");
        let esp = hex("01020304 00000005 1011121314151617 \
            24039428b97f417e3c13753a4f05087b 67c352e6a7fab1b982d466ef407ae5c6 \
            14ee8099d52844eb61aa95dfab4c02f7 2aa71e7c4c4f64c9befe2facc638e8f3 \
            cbec163fac469b502773f6fb94e664da 9165b82829f641e0 \
            76aaa8266b7fb0f7b11b369907e1ad43");
        let opened = OtherCipher::new(Suite::ChaCha20Poly1305, &material).open(&esp).unwrap();
        assert_eq!((opened.spi, opened.sequence, opened.version), (0x0102_0304, 5, 4));
        assert_eq!(opened.inner.len(), 84);
        assert_eq!(opened.inner[12..20], hex("c6336405c0000205"), "its addresses");
    }

    /// RFC 3602 §4, cases 1 and 2, and RFC 4231 §4.3 (HMAC-SHA-256 with a short key).
    #[test]
    fn the_parts_of_the_other_suites_are_as_published() {
        let key = hex("c286696d887c9aa0611bbb3e2025a45a");
        let mut text = hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
        let clear = text.clone();
        let iv = hex("562e17996d093d28ddb3ba695a2e6f58").try_into().unwrap();
        let aes = keyed::<Aes128>(&key);
        aes.encrypt(iv, &mut text);
        let sealed = hex("d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1");
        assert_eq!(text, sealed);
        aes.decrypt(iv, &mut text);
        assert_eq!(text, clear);
        let hmac = hmac::<Hmac<Sha256>>(b"Jefe");
        let icv = hmac.icv(b"what do ya want for nothing?");
        assert_eq!(icv, hex("5bdcc146bf60754e6a042426089575c7"));
        assert!(!hmac.is_icv(b"what do ya want for nothing?", &icv[..8]), "a shorter one");
    }
}
