//! Sealing in packet mode: the card writes all headers.

use offload::{Numbers, SaDirection, SaMode, Service};

use super::cipher::{BLOCK, ICV, IV};
use super::clear::Clear;
use super::frame::Link;
use super::headers::{self, ESP, UDP, UDP_BYTES};
use super::{Limits, LoadedSa, Loss, octets};

/// Next headers of whole packets (RFC 4303 §2.6), and of one that carries nothing.
pub(super) const IPV4_INSIDE: u8 = 4;
pub(super) const IPV6_INSIDE: u8 = 41;
pub(super) const NOTHING_INSIDE: u8 = 59;

impl LoadedSa {
    /// Seals the packet of a frame. Returns the frame that leaves, and the limits reached.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(Vec<u8>, Limits), Loss> {
        self.serves(SaDirection::Out, Service::Packet)?;
        let link = Link::read(frame)?;
        let clear = Clear::read(link.packet)?;
        if !link.carries(clear.version) {
            return Err(Loss::Malformed);
        }
        let (payload, next_header) = match self.sa.mode {
            SaMode::Tunnel(_) if clear.version == 4 => (clear.bytes, IPV4_INSIDE),
            SaMode::Tunnel(_) => (clear.bytes, IPV6_INSIDE),
            SaMode::Transport => {
                let ends = (octets(self.sa.ends.source), octets(self.sa.ends.destination));
                if clear.addresses() != (&ends.0, &ends.1) {
                    return Err(Loss::Ends);
                }
                // It would be taken for a dummy.
                if clear.protocol == NOTHING_INSIDE {
                    return Err(Loss::Malformed);
                }
                (&clear.bytes[clear.header_bytes()..], clear.protocol)
            }
        };
        self.has_room()?;
        let number = self.next.filter(|next| *next <= self.sa.numbers.highest());
        let number = number.ok_or(Loss::Number)?;
        let text = text(payload, next_header);
        let (text_bytes, ports) = (text.len(), self.sa.udp);
        let esp_bytes = 8 + IV + text_bytes + ICV;
        let behind = esp_bytes + ports.map_or(0, |_| UDP_BYTES);
        let protocol = if ports.is_some() { UDP } else { ESP };
        let head = match self.sa.mode {
            SaMode::Tunnel(fields) => headers::outer(&self.sa, fields, &clear, (behind, number))?,
            SaMode::Transport => headers::own(&clear, protocol, behind)?,
        };
        let esp = self.seal(number, text).ok_or(Loss::TooLong)?;
        // Used, whatever becomes of the packet.
        self.next = number.checked_add(1);
        let udp = ports.map(|ports| headers::udp(ports, &head, &esp));
        let udp = udp.as_ref().map_or(&[][..], |udp| udp);
        let version = if self.sa.ends.source.is_ipv4() { 4 } else { 6 };
        let sealed = link.around(version, &[&head[..], udp, &esp].concat());
        Ok((sealed, self.count(text_bytes)))
    }

    /// ESP of a text: SPI, number, IV, ciphertext, integrity check value. The IV is the number.
    fn seal(&self, number: u64, mut text: Vec<u8>) -> Option<Vec<u8>> {
        let spi = self.sa.spi.to_be_bytes();
        let iv = number.to_be_bytes();
        let authenticated = authenticated(&spi, number, self.sa.numbers);
        let icv = self.key.seal(iv, &authenticated, &mut text)?;
        Some([&spi[..], &(number as u32).to_be_bytes(), &iv, &text, &icv].concat())
    }
}

/// The bytes that are authenticated and not encrypted: SPI and number, with ESN all of it
/// (RFC 4106 §5, RFC 7634 §2.1).
pub(super) fn authenticated(spi: &[u8; 4], number: u64, numbers: Numbers) -> Vec<u8> {
    match numbers {
        Numbers::Short => [&spi[..], &(number as u32).to_be_bytes()].concat(),
        Numbers::Extended => [&spi[..], &number.to_be_bytes()].concat(),
    }
}

/// Payload, padding 1, 2, 3 …, pad length, next header (RFC 4303 §2.4).
fn text(payload: &[u8], next_header: u8) -> Vec<u8> {
    let mut text = payload.to_vec();
    let mut padding = 0;
    while !(text.len() + 2).is_multiple_of(BLOCK) {
        padding += 1;
        text.push(padding);
    }
    text.extend([padding, next_header]);
    text
}
