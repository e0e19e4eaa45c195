//! Crypto mode: the host writes headers and trailer, keeps the numbers and the window, and leaves
//! room for the integrity check value; the card ciphers in place.

use offload::{SaDirection, Service};

use super::cipher::{BLOCK, ICV, IV};
use super::opening::Arrived;
use super::sealing::authenticated;
use super::{Limits, LoadedSa, Loss};

impl LoadedSa {
    /// Seals ESP in place: SPI, number, IV and a text in clear, with room for the integrity check
    /// value at the end of the packet. `number` is the whole number, whose low half stands in the
    /// packet.
    pub(crate) fn seal_in_place(&mut self, number: u64, frame: &mut [u8]) -> Result<Limits, Loss> {
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
        // The same number twice would be the same nonce twice: each is above the one before.
        let is_next = self.next.is_some_and(|next| number >= next.max(1));
        let is_said = number as u32 == u32::from_be_bytes(*low) && iv == number.to_be_bytes();
        if !is_next || !is_said || number > self.sa.numbers.highest() {
            return Err(Loss::Number);
        }
        self.next = number.checked_add(1);
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
