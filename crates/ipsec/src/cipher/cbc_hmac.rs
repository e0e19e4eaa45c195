//! AES-CBC and HMAC (RFC 3602, RFC 4868) in portable libraries, packet by packet.

use aes::cipher::{
    Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt,
    BlockSizeUser, InnerIvInit, KeyInit, consts::U16,
};
use aes::{Aes128, Aes256};
use aws_lc_rs::{constant_time, hmac};
use wire::Frames;

use super::place::{BLOCK_BYTES, HmacLayout, HmacParts};
use super::{OpenJob, SealError, SealJob, high_half};
use crate::suite::{Encryption, Integrity};
use crate::{KeyMaterial, SequenceNumbers};

/// The expanded keys of one SA.
pub(super) struct CbcHmac {
    encryption: TextCipher,
    integrity: hmac::Key,
    layout: HmacLayout,
}

enum TextCipher {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
    Null,
}

impl CbcHmac {
    /// `None` if the suite has no integrity algorithm of its own, or an encryption beside it that
    /// is not AES-CBC.
    pub(super) fn new(material: &KeyMaterial) -> Option<CbcHmac> {
        let suite = material.suite();
        let algorithm = match suite.integrity()? {
            Integrity::HmacSha256 => hmac::HMAC_SHA256,
            Integrity::HmacSha384 => hmac::HMAC_SHA384,
            Integrity::HmacSha512 => hmac::HMAC_SHA512,
        };
        let encryption = match (suite.encryption(), material.key().len()) {
            (Encryption::Null, _) => TextCipher::Null,
            (Encryption::Cbc, 16) => {
                TextCipher::Aes128(Box::new(Aes128::new_from_slice(material.key()).ok()?))
            }
            (Encryption::Cbc, 32) => {
                TextCipher::Aes256(Box::new(Aes256::new_from_slice(material.key()).ok()?))
            }
            _ => return None,
        };
        Some(CbcHmac {
            encryption,
            integrity: hmac::Key::new(algorithm, material.integrity_key()),
            layout: HmacLayout::of(suite),
        })
    }

    /// Returns whether it encrypts with AES-CBC beside the HMAC.
    pub(super) fn encrypts(&self) -> bool {
        !matches!(self.encryption, TextCipher::Null)
    }

    /// Seals job by job; see [`Cipher::seal`](super::Cipher::seal).
    pub(super) fn seal<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &[SealJob],
    ) -> Result<(), SealError> {
        for (index, job) in jobs.iter().enumerate() {
            let HmacParts { packet, text, icv: end } = self
                .layout
                .parts(frames.bytes_mut(job.frame), job.into())
                .ok_or(SealError { job: index })?;
            let (covered, icv) = packet.split_at_mut(end);
            self.encryption.encrypt(&job.nonce, &mut covered[text..]);
            let full = self.authenticate(covered, high_half(numbers, job.sequence));
            icv.copy_from_slice(&full.as_ref()[..self.layout.icv_bytes()]);
        }
        Ok(())
    }

    /// Opens job by job, and decrypts nothing that is not authentic (RFC 4303 §3.4.4.1); see
    /// [`Cipher::open`](super::Cipher::open).
    pub(super) fn open<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &mut [OpenJob],
    ) {
        for job in jobs {
            job.authentic = false;
            let parts = self.layout.parts(frames.bytes_mut(job.frame), (&*job).into());
            let Some(HmacParts { packet, text, icv: end }) = parts else { continue };
            let (covered, icv) = packet.split_at_mut(end);
            let full = self.authenticate(covered, high_half(numbers, job.sequence));
            let right = &full.as_ref()[..self.layout.icv_bytes()];
            job.authentic = constant_time::verify_slices_are_equal(right, icv).is_ok();
            if job.authentic {
                self.encryption.decrypt(&job.nonce, &mut covered[text..]);
            }
        }
    }

    /// The whole HMAC; the ICV is its front.
    fn authenticate(&self, covered: &[u8], behind: Option<[u8; 4]>) -> hmac::Tag {
        match behind {
            None => hmac::sign(&self.integrity, covered),
            Some(high) => {
                let mut context = hmac::Context::with_key(&self.integrity);
                context.update(covered);
                context.update(&high);
                context.sign()
            }
        }
    }
}

impl TextCipher {
    /// Encrypts whole blocks in place; bytes behind the last whole block stay in clear.
    fn encrypt(&self, iv: &[u8; BLOCK_BYTES], text: &mut [u8]) {
        match self {
            TextCipher::Aes128(key) => cbc_encrypt(&**key, iv, text),
            TextCipher::Aes256(key) => cbc_encrypt(&**key, iv, text),
            TextCipher::Null => {}
        }
    }

    /// Decrypts whole blocks in place.
    fn decrypt(&self, iv: &[u8; BLOCK_BYTES], text: &mut [u8]) {
        match self {
            TextCipher::Aes128(key) => cbc_decrypt(&**key, iv, text),
            TextCipher::Aes256(key) => cbc_decrypt(&**key, iv, text),
            TextCipher::Null => {}
        }
    }
}

fn cbc_encrypt<C>(key: &C, iv: &[u8; BLOCK_BYTES], text: &mut [u8])
where
    C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>,
{
    let mut mode = cbc::Encryptor::inner_iv_init(key, Array::cast_from_core(iv));
    mode.encrypt_blocks(blocks::<C>(text));
}

fn cbc_decrypt<C>(key: &C, iv: &[u8; BLOCK_BYTES], text: &mut [u8])
where
    C: BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>,
{
    let mut mode = cbc::Decryptor::inner_iv_init(key, Array::cast_from_core(iv));
    mode.decrypt_blocks(blocks::<C>(text));
}

fn blocks<C: BlockSizeUser<BlockSize = U16>>(text: &mut [u8]) -> &mut [Block<C>] {
    let (whole, _) = Array::slice_as_chunks_mut(text);
    whole
}
