//! Crypto mode: the host writes headers and trailer, keeps the numbers and the window, and leaves
//! room for the integrity check value; the card ciphers in place.
//!
//! The whole number of a packet to seal stands in its IV: the card takes the high half from there,
//! and checks the low one against the header. It seals under each number once, in any order within
//! [`MOST_DISORDER`]: workers of the host draw numbers for whole batches, and send side by side.

use offload::{SaDirection, Service};

use super::cipher::{BLOCK, ICV, IV};
use super::opening::Arrived;
use super::sealing::authenticated;
use super::{Limits, LoadedSa, Loss};

/// Numbers by which a packet to seal may be behind the highest.
pub(super) const MOST_DISORDER: u32 = 4096;

impl LoadedSa {
    /// Seals ESP in place: SPI, number, IV and a text in clear, with room for the integrity check
    /// value at the end of the packet.
    pub(crate) fn seal_in_place(&mut self, frame: &mut [u8]) -> Result<Limits, Loss> {
        self.serves(SaDirection::Out, Service::Crypto)?;
        let arrived = Arrived::read(frame).ok_or(Loss::Malformed)?;
        let port = self.sa.udp.map(|ports| ports.destination);
        let is_ours = arrived.spi == Some(self.sa.spi) && arrived.udp == port;
        arrived.outside?;
        let (place, length) = (place_of(frame, arrived.esp), arrived.esp.len());
        if !is_ours {
            return Err(Loss::WrongSa);
        }
        self.has_room()?;
        let esp = &mut frame[place..place + length];
        let (head, text) = esp.split_at_mut_checked(8 + IV).ok_or(Loss::Malformed)?;
        let (text, icv) = text.split_last_chunk_mut::<ICV>().ok_or(Loss::Malformed)?;
        if text.is_empty() || !text.len().is_multiple_of(BLOCK) {
            return Err(Loss::Malformed);
        }
        let (spi, rest) = head.split_first_chunk::<4>().ok_or(Loss::Malformed)?;
        let (low, iv) = rest.split_first_chunk::<4>().ok_or(Loss::Malformed)?;
        let iv: [u8; IV] = iv.try_into().map_err(|_| Loss::Malformed)?;
        let number = u64::from_be_bytes(iv);
        let is_said = number as u32 == u32::from_be_bytes(*low);
        // The same number twice would be the same nonce twice.
        let is_new = self.window.accepts(number) && number <= self.sa.numbers.highest();
        if !is_said || !is_new {
            return Err(Loss::Number);
        }
        self.window.note(number);
        let header = authenticated(spi, number, self.sa.numbers);
        *icv = self.key.seal(iv, &header, text).ok_or(Loss::TooLong)?;
        let text_bytes = text.len();
        Ok(self.count(text_bytes))
    }

    /// Opens ESP in place: text and trailer are in clear then, and all headers stay.
    pub(crate) fn open_in_place(&mut self, frame: &mut [u8]) -> Result<Limits, Loss> {
        self.serves(SaDirection::In, Service::Crypto)?;
        let arrived = Arrived::read(frame).ok_or(Loss::Malformed)?;
        arrived.outside?;
        let (text, number) = self.text(arrived.esp)?;
        let place = place_of(frame, arrived.esp) + 8 + IV;
        frame[place..place + text.len()].copy_from_slice(&text);
        // The card knows by it which high half is next; whether a number is new the host says.
        if number > self.window.top() {
            self.window.note(number);
        }
        Ok(self.count(text.len()))
    }
}

/// The place of a part in the frame that it is of.
fn place_of(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - frame.as_ptr() as usize
}
