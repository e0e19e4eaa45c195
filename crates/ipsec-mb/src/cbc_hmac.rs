//! AES-CBC (RFC 3602) or NULL (RFC 2410) with HMAC-SHA-2 (RFC 4868): bursts of packets.
//!
//! 1. Every packet's ranges are checked: nothing outside of its bytes is ever told to the library.
//! 2. With ESN the high half of the number is written behind the text, where the ICV goes: it is
//!    authenticated there and not sent (RFC 4303 §2.2.1).
//! 3. Sealing ciphers all texts, then computes all ICVs beside the packets, then copies them
//!    behind the texts. Opening computes all ICVs, compares, and ciphers what is authentic.

use std::ops::Range;

use crate::lanes::{self, BURST, Failure, Lanes, Schedule};
use crate::sys::{Direction, HashNumber, Row};

const BLOCK_BYTES: usize = 16;
/// Bytes of the longest ICV.
const MAX_ICV_BYTES: usize = 32;
/// Bytes of the high half of an extended sequence number.
const EXTENDED_BYTES: usize = 4;

/// Bytes of the longest packet up to the end of its text. The library counts in 16 bits.
pub const MAX_PACKET_BYTES: usize = 65_520;

/// The integrity algorithm and how much of it is sent (RFC 4868 §2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// HMAC-SHA-256, 16 bytes of it.
    Sha256_128,
    /// HMAC-SHA-384, 24 bytes of it.
    Sha384_192,
    /// HMAC-SHA-512, 32 bytes of it.
    Sha512_256,
}

impl Hash {
    /// Bytes of the ICV.
    pub const fn icv_bytes(self) -> usize {
        match self {
            Hash::Sha256_128 => 16,
            Hash::Sha384_192 => 24,
            Hash::Sha512_256 => 32,
        }
    }

    const fn number(self) -> HashNumber {
        match self {
            Hash::Sha256_128 => HashNumber::Sha256,
            Hash::Sha384_192 => HashNumber::Sha384,
            Hash::Sha512_256 => HashNumber::Sha512,
        }
    }
}

/// One packet of a burst. No `Debug`: text.
pub struct Packet<'f> {
    /// Bytes from the ESP header on, which is authenticated with the IV and the text; behind the
    /// text the ICV, or room for it.
    pub bytes: &'f mut [u8],
    /// Initialization vector of AES-CBC; not used with NULL encryption.
    pub iv: [u8; BLOCK_BYTES],
    /// The range of `bytes` that is ciphered: for AES-CBC whole blocks, at least one. Authenticated
    /// are the bytes from the first to the end of the text.
    pub text: Range<usize>,
    /// High half of the number with ESN, in network order: authenticated behind the text and not
    /// sent (RFC 4303 §2.2.1).
    pub extended: Option<[u8; EXTENDED_BYTES]>,
    /// The result of opening: the ICV was right, and the text is decrypted.
    pub authentic: bool,
}

/// Reason why nothing of a burst may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SealError {
    /// A packet's text or the room for its ICV does not lie in its bytes, is not made of whole
    /// blocks, or is too long. No packet has been touched. The caller's mistake.
    #[error("packet {packet} of the burst cannot be sealed: its text or its ICV does not fit")]
    Range {
        /// Index of the first such packet.
        packet: usize,
    },
    /// The library did not complete the burst: of some packets the text may still be plain.
    #[error("the cipher library did not complete the burst")]
    Library,
}

/// The expanded keys of one SA, for both directions. Threads share it; it is wiped on drop. No
/// `Debug`, no `Clone`: key bytes.
pub struct CbcHmac {
    schedule: Schedule,
    hash: Hash,
}

impl CbcHmac {
    /// Expands an AES key of 16, 24 or 32 bytes (`None`: NULL encryption) and an HMAC key.
    ///
    /// The HMAC key may have any length but 0; that of an SA is as long as the whole hash (RFC
    /// 4868 §2.1.1), which the caller sees to. `None`: another length, or there is no library.
    pub fn new(cipher: Option<&[u8]>, hash: Hash, hmac_key: &[u8]) -> Option<CbcHmac> {
        let schedule = Schedule::new(cipher, hash.number(), hmac_key)?;
        Some(CbcHmac { schedule, hash })
    }

    /// Encrypts the text of every packet, then writes its ICV behind it (RFC 4303 §3.3.2).
    ///
    /// The caller answers for it that the IVs cannot be foretold (RFC 3602 §2.1). `authentic` is
    /// left as it is. The first call of a thread sets its lanes up, see
    /// [`crate::prepare_thread`].
    ///
    /// # Errors
    /// [`SealError`]; none of the packets may be sent.
    pub fn seal(&self, packets: &mut [Packet<'_>]) -> Result<(), SealError> {
        if let Some(packet) = packets.iter().position(|packet| !self.fits(packet)) {
            return Err(SealError::Range { packet });
        }
        for burst in packets.chunks_mut(BURST) {
            // SAFETY: all packets fit, see above. Threat: as `seal_burst` says.
            let seal = |lanes: &mut Lanes| unsafe { self.seal_burst(lanes, burst) };
            lanes::with(seal).map_err(|_| SealError::Library)?;
        }
        Ok(())
    }

    /// Compares the ICV of every packet, and decrypts the texts of those where it is right: their
    /// `authentic` is set, that of all others is not and their bytes are as they were.
    ///
    /// A packet whose ranges are not sound (see [`SealError::Range`]) is not authentic. Comparing
    /// takes the same time wherever ICVs differ. The first call of a thread sets its lanes up, see
    /// [`crate::prepare_thread`].
    pub fn open(&self, packets: &mut [Packet<'_>]) {
        for burst in packets.chunks_mut(BURST) {
            burst.iter_mut().for_each(|packet| packet.authentic = false);
            // SAFETY: no packet is authentic. Threat: as `open_burst` says.
            let open = |lanes: &mut Lanes| unsafe { self.open_burst(lanes, &mut *burst) };
            if lanes::with(open).is_err() {
                burst.iter_mut().for_each(|packet| packet.authentic = false);
            }
        }
    }

    /// Returns whether the library touches only bytes of the packet, and can cipher its text.
    fn fits(&self, packet: &Packet<'_>) -> bool {
        let Range { start, end } = packet.text;
        let within = start <= end && end <= MAX_PACKET_BYTES;
        let room = packet.bytes.len() >= end.saturating_add(self.hash.icv_bytes());
        let blocks = match self.schedule.has_cipher() {
            // The hash wants a byte at least.
            false => end > 0,
            true => start < end && end.wrapping_sub(start).is_multiple_of(BLOCK_BYTES),
        };
        within && room && blocks
    }

    /// Seals at most [`BURST`] packets.
    ///
    /// # Safety
    /// All of them fit ([`CbcHmac::fits`]). Else the library reads and writes behind a packet.
    unsafe fn seal_burst(
        &self,
        lanes: &mut Lanes,
        burst: &mut [Packet<'_>],
    ) -> Result<(), Failure> {
        let mut icvs = [[0; MAX_ICV_BYTES]; BURST];
        let mut rows = [Row::NONE; BURST];
        let rows = &mut rows[..burst.len()];
        for ((row, packet), icv) in rows.iter_mut().zip(burst.iter_mut()).zip(&mut icvs) {
            packet.extend();
            *row = packet.row(icv);
        }
        // SAFETY: every packet fits and has bytes of its own, borrowed for this call. Threat: as
        // above.
        unsafe { lanes.cipher(&self.schedule, Direction::Seal, rows)? };
        // SAFETY: as above; every ICV has its own place, of the longest one's length. Threat: as
        // above.
        unsafe { lanes.authenticate(&self.schedule, rows)? };
        let icv_bytes = self.hash.icv_bytes();
        for (packet, icv) in burst.iter_mut().zip(&icvs) {
            let end = packet.text.end;
            packet.bytes[end..end + icv_bytes].copy_from_slice(&icv[..icv_bytes]);
        }
        Ok(())
    }

    /// Opens at most [`BURST`] packets, none of them `authentic` yet: those that fit.
    ///
    /// # Safety
    /// No packet that does not fit is `authentic`. Else the library writes behind it.
    unsafe fn open_burst(
        &self,
        lanes: &mut Lanes,
        burst: &mut [Packet<'_>],
    ) -> Result<(), Failure> {
        let mut icvs = [[0; MAX_ICV_BYTES]; BURST];
        let mut rows = [Row::NONE; BURST];
        let mut received = [[0; EXTENDED_BYTES]; BURST];
        let mut count = 0;
        for packet in burst.iter_mut().filter(|packet| self.fits(packet)) {
            received[count] = packet.extend();
            rows[count] = packet.row(&mut icvs[count]);
            count += 1;
        }
        // SAFETY: these packets fit and have bytes of their own, borrowed for this call; every
        // ICV has its own place, of the longest one's length. Threat: a read behind a packet.
        let computed = unsafe { lanes.authenticate(&self.schedule, &rows[..count]) };
        let fitting = burst.iter_mut().filter(|packet| self.fits(packet));
        for ((packet, icv), received) in fitting.zip(&icvs).zip(received) {
            packet.restore(received);
            packet.authentic = computed.is_ok() && same(packet.icv(self.hash), icv);
        }
        computed?;
        if !self.schedule.has_cipher() {
            return Ok(());
        }
        count = 0;
        for packet in burst.iter_mut().filter(|packet| packet.authentic) {
            rows[count] = packet.row(&mut icvs[count]);
            count += 1;
        }
        // SAFETY: these packets fit: `open` has unset `authentic` of all, and above only those that
        // fit became it. Threat: a write behind a packet.
        unsafe { lanes.cipher(&self.schedule, Direction::Open, &rows[..count]) }
    }
}

impl Packet<'_> {
    /// A row for the shim: pointers into a packet that fits, and anywhere of another.
    fn row(&mut self, icv: &mut [u8; MAX_ICV_BYTES]) -> Row {
        let Packet { bytes, iv, text, extended, .. } = self;
        let extended_bytes = extended.map_or(0, |half| half.len());
        let bytes = bytes.as_mut_ptr();
        Row {
            text: bytes.wrapping_add(text.start),
            text_bytes: text.len(),
            iv: iv.as_ptr(),
            authenticated: bytes,
            authenticated_bytes: text.end + extended_bytes,
            icv: icv.as_mut_ptr(),
        }
    }

    /// Writes the high half of the number behind the text, of a packet that fits; what was there.
    fn extend(&mut self) -> [u8; EXTENDED_BYTES] {
        let end = self.text.end;
        let behind = &mut self.bytes[end..end + EXTENDED_BYTES];
        let mut before = [0; EXTENDED_BYTES];
        before.copy_from_slice(behind);
        if let Some(half) = self.extended {
            behind.copy_from_slice(&half);
        }
        before
    }

    /// Undoes [`Packet::extend`].
    fn restore(&mut self, before: [u8; EXTENDED_BYTES]) {
        let end = self.text.end;
        self.bytes[end..end + EXTENDED_BYTES].copy_from_slice(&before);
    }

    /// The ICV of a packet that fits.
    fn icv(&self, hash: Hash) -> &[u8] {
        &self.bytes[self.text.end..self.text.end + hash.icv_bytes()]
    }
}

/// Returns whether an ICV is the beginning of the computed one, in a time that does not tell where
/// they differ.
fn same(received: &[u8], computed: &[u8; MAX_ICV_BYTES]) -> bool {
    let differ = received.iter().zip(computed).fold(0, |differ, (one, other)| differ | one ^ other);
    std::hint::black_box(differ) == 0
}
