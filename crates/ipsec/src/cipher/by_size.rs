//! Two libraries under one key, each for the lengths of text that it is the faster at.
//!
//! Packets go to one or the other where a job is done and in the order of the jobs, so a batch of
//! both kinds is sealed as one of either: packet by packet, up to the first that is refused.

use super::aead::Aead;
use super::aead_key::AeadKey;
use super::kind::BackendKind;
use super::place::AeadParts;
use crate::KeyMaterial;

/// The key of an SA, expanded twice. Each packet is sealed under one of the two, so a nonce that
/// comes once comes once.
pub(super) struct BySize {
    short: AeadKey,
    long: AeadKey,
    /// Bytes of the longest text that goes to `short`.
    short_bytes: usize,
}

impl BySize {
    /// `None`: this machine does not have one of the backends, or it not the suite as an AEAD.
    pub(super) fn new(
        material: &KeyMaterial,
        short: BackendKind,
        long: BackendKind,
        short_bytes: u32,
    ) -> Option<BySize> {
        let [short, long] = [short, long].map(|kind| AeadKey::new(material, kind));
        Some(BySize { short: short?, long: long?, short_bytes: short_bytes as usize })
    }

    /// "ipsec-mb 1.3.0 (avx2) up to 512 B, ring 0.17.14 above".
    pub(super) fn name(&self) -> String {
        let (short, long) = (self.short.name(), self.long.name());
        format!("{short} up to {} B, {long} above", self.short_bytes)
    }

    #[inline]
    pub(super) fn of(&self, text: &[u8]) -> &AeadKey {
        if text.len() <= self.short_bytes { &self.short } else { &self.long }
    }
}

impl Aead for BySize {
    #[inline]
    fn seal(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; AeadParts::ICV_BYTES],
    ) -> bool {
        self.of(text).seal(nonce, aad, text, icv)
    }

    #[inline]
    fn open(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; AeadParts::ICV_BYTES],
    ) -> bool {
        self.of(text).open(nonce, aad, text, icv)
    }
}
