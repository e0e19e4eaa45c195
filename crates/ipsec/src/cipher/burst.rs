//! AES-CBC and HMAC of ipsec-mb: many packets side by side, because one packet's blocks wait for
//! each other.

use ipsec_mb::{CbcHmac, Hash, Packet};
use wire::{BATCH, FrameId, Frames};

use super::place::{HmacLayout, HmacParts};
use super::{OpenJob, SealError, SealJob, high_half};
use crate::suite::{Encryption, Integrity};
use crate::{KeyMaterial, SequenceNumbers};

// What lies in its frame as the layout demands the library can do.
const _: () = assert!(HmacLayout::MAX_AUTHENTICATED_BYTES <= ipsec_mb::MAX_PACKET_BYTES);

/// The expanded keys of one SA.
pub(super) struct BurstCbcHmac {
    keys: CbcHmac,
    layout: HmacLayout,
}

impl BurstCbcHmac {
    /// `None` if the suite has no integrity algorithm of its own, or an encryption beside it that
    /// is not AES-CBC, or the library cannot be used.
    pub(super) fn new(material: &KeyMaterial) -> Option<BurstCbcHmac> {
        let suite = material.suite();
        let hash = match suite.integrity()? {
            Integrity::HmacSha256 => Hash::Sha256_128,
            Integrity::HmacSha384 => Hash::Sha384_192,
            Integrity::HmacSha512 => Hash::Sha512_256,
        };
        let key = match suite.encryption() {
            Encryption::Cbc => Some(material.key()),
            Encryption::Null => None,
            Encryption::Gcm | Encryption::ChaCha20Poly1305 => return None,
        };
        let keys = CbcHmac::new(key, hash, material.integrity_key())?;
        Some(BurstCbcHmac { keys, layout: HmacLayout::of(suite) })
    }

    /// Seals group by group; see [`Cipher::seal`](super::Cipher::seal).
    pub(super) fn seal<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &[SealJob],
    ) -> Result<(), SealError> {
        in_groups(BATCH, jobs, |group| self.seal_group(numbers, frames, group))
    }

    /// Seals at most [`BATCH`] packets together; one by one where two lie in one frame.
    fn seal_group<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &[SealJob],
    ) -> Result<(), SealError> {
        let mut places: [&mut [u8]; BATCH] = std::array::from_fn(|_| Default::default());
        let ids = frames_of(jobs.iter().map(|job| job.frame));
        if !frames.many_mut(&ids[..jobs.len()], &mut places[..jobs.len()]) {
            return match jobs.len() {
                1 => Err(SealError { job: 0 }),
                _ => in_groups(1, jobs, |job| self.seal_group(numbers, frames, job)),
            };
        }
        let mut packets: [Packet<'_>; BATCH] = std::array::from_fn(no_packet);
        let mut whole = 0;
        for ((job, place), packet) in jobs.iter().zip(places).zip(&mut packets) {
            let Some(parts) = self.layout.parts(place, job.into()) else { break };
            *packet = laid(parts, job.nonce, high_half(numbers, job.sequence));
            whole += 1;
        }
        self.keys.seal(&mut packets[..whole]).map_err(|_| SealError { job: 0 })?;
        if whole < jobs.len() { Err(SealError { job: whole }) } else { Ok(()) }
    }

    /// Opens group by group; the library decrypts nothing that is not authentic (RFC 4303
    /// §3.4.4.1). See [`Cipher::open`](super::Cipher::open).
    pub(super) fn open<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &mut [OpenJob],
    ) {
        for group in jobs.chunks_mut(BATCH) {
            self.open_group(numbers, frames, group);
        }
    }

    /// Opens at most [`BATCH`] packets together; one by one where two lie in one frame.
    fn open_group<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &mut [OpenJob],
    ) {
        jobs.iter_mut().for_each(|job| job.authentic = false);
        let mut places: [&mut [u8]; BATCH] = std::array::from_fn(|_| Default::default());
        let ids = frames_of(jobs.iter().map(|job| job.frame));
        if !frames.many_mut(&ids[..jobs.len()], &mut places[..jobs.len()]) {
            if jobs.len() > 1 {
                jobs.chunks_mut(1).for_each(|job| self.open_group(numbers, frames, job));
            }
            return;
        }
        let mut packets: [Packet<'_>; BATCH] = std::array::from_fn(no_packet);
        let mut rows = [0; BATCH];
        let mut whole = 0;
        for (row, (job, place)) in jobs.iter().zip(places).enumerate() {
            let Some(parts) = self.layout.parts(place, job.into()) else { continue };
            packets[whole] = laid(parts, job.nonce, high_half(numbers, job.sequence));
            rows[whole] = row;
            whole += 1;
        }
        self.keys.open(&mut packets[..whole]);
        for (packet, row) in packets[..whole].iter().zip(rows) {
            jobs[row].authentic = packet.authentic;
        }
    }
}

/// A place of a burst that is not used.
fn no_packet<'f>(_place: usize) -> Packet<'f> {
    Packet { bytes: &mut [], iv: [0; 16], text: 0..0, extended: None, authentic: false }
}

fn laid<'f>(parts: HmacParts<'f>, iv: [u8; 16], extended: Option<[u8; 4]>) -> Packet<'f> {
    let HmacParts { packet, text, icv } = parts;
    Packet { bytes: packet, iv, text: text..icv, extended, authentic: false }
}

/// The frames of at most [`BATCH`] jobs; the rest is not used.
fn frames_of(frames: impl Iterator<Item = FrameId>) -> [FrameId; BATCH] {
    let mut ids = [FrameId(0); BATCH];
    for (id, frame) in ids.iter_mut().zip(frames) {
        *id = frame;
    }
    ids
}

/// Calls `seal` with groups of `size` jobs; an error counts from the first of all.
fn in_groups(
    size: usize,
    jobs: &[SealJob],
    mut seal: impl FnMut(&[SealJob]) -> Result<(), SealError>,
) -> Result<(), SealError> {
    for (group, jobs) in jobs.chunks(size).enumerate() {
        seal(jobs).map_err(|SealError { job }| SealError { job: group * size + job })?;
    }
    Ok(())
}
