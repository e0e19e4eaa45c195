//! Opening in packet mode: the card takes all headers off.

use offload::{OuterEcn, OuterFields, SaDirection, SaMode, Service};

use super::cipher::{BLOCK, ICV, IV};
use super::clear::{Clear, FRAGMENT_HEADER, V4, V6};
use super::frame::Link;
use super::headers::{self, ESP, UDP, UDP_BYTES};
use super::sealing::{IPV4_INSIDE, IPV6_INSIDE, NOTHING_INSIDE, authenticated};
use super::{Limits, LoadedSa, Loss, octets};

/// ESP as it stands in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'f> {
    link: Link<'f>,
    /// The packet that carries it, if it is whole and bare.
    pub(super) outside: Result<Clear<'f>, Loss>,
    source: &'f [u8],
    destination: &'f [u8],
    /// The receiver's port of ESP in UDP; `None`: ESP alone.
    pub(super) udp: Option<u16>,
    /// `None`: it stands in the first fragment, and this is a later one.
    pub(super) spi: Option<u32>,
    /// From the SPI to the end of the packet.
    pub(super) esp: &'f [u8],
}

/// The upper layer of a packet that may be a fragment, or have options.
struct Upper<'f> {
    protocol: u8,
    bytes: &'f [u8],
    is_later_fragment: bool,
    source: &'f [u8],
    destination: &'f [u8],
}

impl<'f> Upper<'f> {
    /// Looks at a packet as far as the card does: it sees what is behind IPv4 options, and behind
    /// the fragment header of IPv6, and nothing behind other extension headers.
    fn read(packet: &'f [u8]) -> Option<Upper<'f>> {
        match packet.first()? >> 4 {
            4 => {
                let header = usize::from(packet[0] & 15) * 4;
                let offset = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
                Some(Upper {
                    protocol: *packet.get(9)?,
                    bytes: packet.get(header.max(V4)..)?,
                    is_later_fragment: offset != 0,
                    source: packet.get(12..16)?,
                    destination: packet.get(16..20)?,
                })
            }
            6 => {
                let (source, destination) = (packet.get(8..24)?, packet.get(24..40)?);
                let is_fragment = packet[6] == FRAGMENT_HEADER;
                let header = packet.get(V6..V6 + 8).filter(|_| is_fragment);
                let offset = header.map_or(0, |it| u16::from_be_bytes([it[2], it[3]]) >> 3);
                Some(Upper {
                    protocol: header.map_or(packet[6], |header| header[0]),
                    bytes: packet.get(if is_fragment { V6 + 8 } else { V6 }..)?,
                    is_later_fragment: offset != 0,
                    source,
                    destination,
                })
            }
            _ => None,
        }
    }
}

impl<'f> Arrived<'f> {
    /// Looks for ESP in a frame. `None`: there is none that the card sees.
    pub(crate) fn read(frame: &'f [u8]) -> Option<Arrived<'f>> {
        let link = Link::read(frame).ok()?;
        if !link.carries(link.packet.first()? >> 4) {
            return None;
        }
        let outside = Clear::read(link.packet);
        let upper = Upper::read(outside.map_or(link.packet, |clear| clear.bytes))?;
        let Upper { protocol, bytes, is_later_fragment, source, destination } = upper;
        let (udp, esp) = match protocol {
            ESP => (None, bytes),
            // Of a later fragment nothing tells which port it is for.
            UDP if !is_later_fragment => {
                let &[_, _, high, low, ..] = bytes else { return None };
                let length = usize::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]));
                let end = if outside.is_ok() { length } else { bytes.len() };
                (Some(u16::from_be_bytes([high, low])), bytes.get(UDP_BYTES..end)?)
            }
            _ => return None,
        };
        let spi = match is_later_fragment {
            true => None,
            false => Some(u32::from_be_bytes(*esp.first_chunk()?)),
        };
        Some(Arrived { link, outside, source, destination, udp, spi, esp })
    }
}

impl LoadedSa {
    /// Returns whether this SA opens it; a later fragment, if it is between the SA's ends.
    pub(crate) fn is_for(&self, arrived: &Arrived<'_>) -> bool {
        let is_named = match arrived.spi {
            Some(spi) => self.sa.spi == spi,
            None => octets(self.sa.ends.source) == arrived.source,
        };
        // The sender's port may change: a NAT is on the way.
        let port = self.sa.udp.map(|ports| ports.destination);
        self.is(SaDirection::In)
            && is_named
            && port == arrived.udp
            && octets(self.sa.ends.destination) == arrived.destination
    }

    /// Returns whether it opens in packet mode.
    pub(crate) fn opens_packets(&self) -> bool {
        self.serves(SaDirection::In, Service::Packet).is_ok()
    }

    /// Opens what came. Returns the frame in clear, and the limits reached, whatever an authentic
    /// packet carried.
    pub(crate) fn open(&mut self, arrived: &Arrived<'_>) -> (Result<Vec<u8>, Loss>, Limits) {
        let text = arrived.outside.and_then(|_| self.text(arrived.esp));
        match text {
            Err(loss) => (Err(loss), [None; 2]),
            Ok((text, number)) => {
                self.window.note(number);
                let limits = self.count(text.len());
                (self.clear(arrived, &text), limits)
            }
        }
    }

    /// The frame in clear of an authentic text.
    fn clear(&self, arrived: &Arrived<'_>, text: &[u8]) -> Result<Vec<u8>, Loss> {
        let outside = arrived.outside?;
        let (payload, next_header) = strip(text)?;
        if next_header == NOTHING_INSIDE {
            return Err(Loss::Dummy);
        }
        let packet = match (self.sa.mode, next_header) {
            (SaMode::Transport, protocol) => {
                let head = headers::own(&outside, protocol, payload.len())?;
                [&head[..], payload].concat()
            }
            (SaMode::Tunnel(fields), IPV4_INSIDE | IPV6_INSIDE) => {
                self.inside(payload, next_header, (fields, outside.class))?
            }
            (SaMode::Tunnel(_), _) => return Err(Loss::Inside),
        };
        let version = packet[0] >> 4;
        Ok(arrived.link.around(version, &packet))
    }

    /// The packet that a tunnel carried.
    fn inside(
        &self,
        payload: &[u8],
        next_header: u8,
        (fields, outer_class): (OuterFields, u8),
    ) -> Result<Vec<u8>, Loss> {
        let clear = Clear::read(payload).map_err(|loss| match loss {
            Loss::Malformed => Loss::Inside,
            other => other,
        })?;
        let version = if next_header == IPV4_INSIDE { 4 } else { 6 };
        if clear.version != version {
            return Err(Loss::Inside);
        }
        let mut packet = clear.bytes.to_vec();
        match fields {
            OuterFields::Exactly { ecn: OuterEcn::Cleared, .. } => {}
            OuterFields::Exactly { ecn: OuterEcn::Rfc6040, .. } | OuterFields::LeftToCard => {
                headers::take_ecn(&mut packet, version, outer_class)?;
            }
        }
        Ok(packet)
    }

    /// Checks the number, authenticates and decrypts; returns the text and the whole number, which
    /// is not noted yet.
    pub(super) fn text(&self, esp: &[u8]) -> Result<(Vec<u8>, u64), Loss> {
        self.has_room()?;
        let (head, sealed) = esp.split_at_checked(8 + IV).ok_or(Loss::Malformed)?;
        let (sealed, icv) = sealed.split_last_chunk::<ICV>().ok_or(Loss::Malformed)?;
        if sealed.is_empty() || !sealed.len().is_multiple_of(BLOCK) {
            return Err(Loss::Malformed);
        }
        let &[s0, s1, s2, s3, n0, n1, n2, n3, ref iv @ ..] = head else {
            return Err(Loss::Malformed);
        };
        let iv: [u8; IV] = iv.try_into().map_err(|_| Loss::Malformed)?;
        let number = self.window.whole(u32::from_be_bytes([n0, n1, n2, n3])).ok_or(Loss::Replay)?;
        // Before the cipher: a repeated packet costs little. The window of crypto mode is the
        // host's.
        if self.sa.service == Service::Packet && !self.window.accepts(number) {
            return Err(Loss::Replay);
        }
        let header = authenticated(&[s0, s1, s2, s3], number, self.sa.numbers);
        let mut text = sealed.to_vec();
        match self.key.open(iv, &header, &mut text, *icv) {
            true => Ok((text, number)),
            false => Err(Loss::Authentication),
        }
    }
}

/// Payload and next header of a text.
fn strip(text: &[u8]) -> Result<(&[u8], u8), Loss> {
    let [padded @ .., pad_length, next_header] = text else { return Err(Loss::Inside) };
    let payload = padded.len().checked_sub(usize::from(*pad_length)).ok_or(Loss::Inside)?;
    let (payload, padding) = padded.split_at(payload);
    let is_right = padding.iter().zip(1..=u8::MAX).all(|(byte, expected)| *byte == expected);
    if is_right { Ok((payload, *next_header)) } else { Err(Loss::Inside) }
}
