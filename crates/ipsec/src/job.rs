//! Jobs of a cipher: places in a frame.

use std::fmt;

use wire::FrameId;

/// One packet to seal in place. Offsets count from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealJob {
    /// The frame that holds the packet.
    pub frame: FrameId,
    /// Offset of the 8-byte ESP header, in front of the text.
    pub aad: u32,
    /// Offset of the text: what is encrypted, ESP trailer included. The ICV, of
    /// [`Suite::icv_bytes`](crate::Suite::icv_bytes), is written behind it.
    pub text: u32,
    /// Bytes of the text; under AES-CBC a multiple of 16.
    pub text_length: u32,
    /// AEADs: salt, IV, and 4 bytes that are not used. AES-CBC: the IV. Else not used.
    pub nonce: [u8; 16],
    /// The whole sequence number; with ESN its high half is authenticated.
    pub sequence: u64,
    /// The caller's own, untouched.
    pub row: u32,
}

impl SealJob {
    /// Returns an empty job for a packet in this frame.
    #[inline]
    pub const fn of(frame: FrameId) -> SealJob {
        let (nonce, sequence, row) = ([0; 16], 0, 0);
        SealJob { frame, aad: 0, text: 0, text_length: 0, nonce, sequence, row }
    }
}

/// Without the nonce: the salt in it is key material.
impl fmt::Debug for SealJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SealJob { frame, aad, text, text_length, sequence, row, .. } = self;
        write!(f, "seal {frame:?} aad {aad} text {text}+{text_length} #{sequence} row {row}")
    }
}

/// One packet to open in place. Offsets count from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenJob {
    /// The frame that holds the packet.
    pub frame: FrameId,
    /// Offset of the 8-byte ESP header, in front of the text.
    pub aad: u32,
    /// Offset of the text: what is decrypted. The ICV lies behind it.
    pub text: u32,
    /// Bytes of the text; under AES-CBC a multiple of 16.
    pub text_length: u32,
    /// AEADs: salt, IV, and 4 bytes that are not used. AES-CBC: the IV. Else not used.
    pub nonce: [u8; 16],
    /// The whole sequence number, as the replay window inferred it; to be committed there once
    /// the packet has authenticated. With ESN its high half is authenticated.
    pub sequence: u64,
    /// The caller's own, untouched.
    pub row: u32,
    /// The result: the ICV was right. Only then the text means anything.
    pub authentic: bool,
}

impl OpenJob {
    /// Returns an empty job for a packet in this frame.
    #[inline]
    pub const fn of(frame: FrameId) -> OpenJob {
        let (nonce, sequence, row, authentic) = ([0; 16], 0, 0, false);
        OpenJob { frame, aad: 0, text: 0, text_length: 0, nonce, sequence, row, authentic }
    }
}

/// Without the nonce: the salt in it is key material.
impl fmt::Debug for OpenJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenJob { frame, aad, text, text_length, sequence, row, authentic, .. } = self;
        write!(f, "open {frame:?} aad {aad} text {text}+{text_length} #{sequence} row {row}")?;
        write!(f, " authentic {authentic}")
    }
}
