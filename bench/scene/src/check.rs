//! Checks a packet that came out of the walk byte by byte.

use dataplane::NetdevId;
use ipsec::{CardWork, Spi, Suite};
use wire::build::PacketBuilder;
use wire::flow::protocol;
use wire::link::{ETHERNET_BYTES, Link, ethertype};
use wire::{CardHeader, Family, packet};

use crate::case::{Case, Direction, HOP_LIMIT, own_mac, router_mac, seat, spi as scene_spi};
use crate::other_cipher::{OtherCipher, OtherError};
use crate::overlay_packets;

/// A fault of a packet that came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// Another length, in bytes.
    #[error("it has {found} bytes, {expected} are right")]
    Length {
        /// Right.
        expected: usize,
        /// Length that it has, in bytes.
        found: usize,
    },
    /// Another byte.
    #[error("byte {at} is {found:#04x}, {expected:#04x} is right")]
    Byte {
        /// Its place, from 0.
        at: usize,
        /// Right.
        expected: u8,
        /// Byte that is there.
        found: u8,
    },
    /// The link header is not from our port to its router.
    #[error("its link header is not from us to the router")]
    LinkHeader,
    /// The outer IP header is not that of the tunnel.
    #[error("its outer header is not that of the tunnel")]
    OuterHeader,
    /// The other cipher refuses it.
    #[error("the other cipher refuses it: {0}")]
    OtherCipher(#[from] OtherError),
    /// Another SPI or sequence number.
    #[error("its SPI is {found:#x}, its sequence number {sequence}; {expected} is right")]
    Number {
        /// Its SPI.
        found: u32,
        /// Its sequence number.
        sequence: u32,
        /// The right sequence number.
        expected: u32,
    },
}

/// Checks what became of flow `flow`'s packet, which was the `number`th of its SA, from 1. `other`:
/// the other end of that SA.
///
/// Outbound: the headers, then the ESP packet is opened by the other cipher and what is inside
/// compared byte for byte with the packet that went in, its hop limit one less. All others: the
/// whole frame compared byte for byte.
///
/// # Errors
/// [`Flaw`]: the lap is worthless.
pub fn check(
    case: &Case,
    other: &OtherCipher,
    spi: Spi,
    flow: usize,
    number: u32,
    output: &[u8],
) -> Result<(), Flaw> {
    let egress = case.egress();
    let inner = case.inner(flow, HOP_LIMIT - 1);
    match case.direction {
        Direction::Out => {
            let opened = other.open(outer(case, case.peer_of(flow), output)?)?;
            if (opened.spi, opened.sequence) != (spi.value(), number) {
                let (found, sequence) = (opened.spi, opened.sequence);
                return Err(Flaw::Number { found, sequence, expected: number });
            }
            same(&inner.ip(), &opened.inner)
        }
        Direction::Overlay => same(&overlay_packets::leaving(case, flow), output),
        Direction::In
        | Direction::Forward
        | Direction::Bypass
        | Direction::PacketIn
        | Direction::CryptoIn => {
            same(&inner.frame(router_mac(egress), own_mac(egress), None), output)
        }
        Direction::PacketOut => same(&for_card(&inner, egress), output),
        Direction::CryptoOut => {
            let peer = case.peer_of(flow);
            // All workers seal by the first SA, so that its numbers are theirs together.
            let place = case.place(0, peer);
            let header = CardHeader::Cipher(seat(place, CardWork::Cipher).tag).bytes();
            same(&header, &output[..header.len().min(output.len())])?;
            let esp = outer(case, peer, &output[header.len()..])?;
            let found = esp.get(4..8).and_then(|low| <[u8; 4]>::try_from(low).ok());
            let found = u32::from_be_bytes(found.unwrap_or_default());
            same(&in_clear(scene_spi(place), found, &inner.ip()), esp)
        }
    }
}

/// ESP with its text in clear and zeros for the ICV, as a host and its card hand it over where the
/// card does the cipher of an AEAD.
pub(crate) fn in_clear(spi: Spi, number: u32, inner: &[u8]) -> Vec<u8> {
    // Without a cipher there is neither IV nor ICV.
    let bare = OtherCipher::new(Suite::Null, &[]).seal(spi.value(), number, inner);
    let (header, text) = bare.split_at(8);
    [header, &u64::from(number).to_be_bytes(), text, &[0; 16]].concat()
}

/// A packet as it leaves for the card, to be sealed by the first SA: all workers seal by that one.
fn for_card(inner: &PacketBuilder, egress: NetdevId) -> Vec<u8> {
    let frame = inner.frame(router_mac(egress), own_mac(egress), None);
    [&CardHeader::Sa(seat(0, CardWork::Packets).tag).bytes()[..], &frame].concat()
}

/// Checks link header and outer IP header of a sealed packet and returns what is behind them.
fn outer<'o>(case: &Case, peer: usize, output: &'o [u8]) -> Result<&'o [u8], Flaw> {
    let link = Link::parse(output).ok_or(Flaw::LinkHeader)?;
    let ethertype = match case.family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let macs = (router_mac(case.egress()), own_mac(case.egress()));
    if (link.destination, link.source) != macs || link.ethertype != ethertype {
        return Err(Flaw::LinkHeader);
    }
    let bytes = &output[ETHERNET_BYTES..];
    let packet = packet::parse(bytes).map_err(|_| Flaw::OuterHeader)?;
    let (local, remote) = case.tunnel(peer);
    let ends = (packet.flow.source_address(), packet.flow.destination_address());
    if ends != (local, remote) || packet.flow.protocol != protocol::ESP {
        return Err(Flaw::OuterHeader);
    }
    if packet.length as usize != bytes.len() {
        return Err(Flaw::Length { expected: packet.length as usize, found: bytes.len() });
    }
    bytes.get(packet.upper_offset.into()..).ok_or(Flaw::OuterHeader)
}

/// Compares byte for byte.
///
/// # Errors
/// The first difference.
pub fn same(expected: &[u8], found: &[u8]) -> Result<(), Flaw> {
    if expected.len() != found.len() {
        return Err(Flaw::Length { expected: expected.len(), found: found.len() });
    }
    match (0..expected.len()).find(|at| expected[*at] != found[*at]) {
        Some(at) => Err(Flaw::Byte { at, expected: expected[at], found: found[at] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::spi;

    const MATERIAL: [u8; 20] = [3; 20];
    /// The worker whose SA it is.
    const WORKER: usize = 1;

    fn case(direction: Direction, family: Family) -> Case {
        let suite = Suite::Aes128Gcm;
        Case { direction, suite, family, size: 70, flows: 4096, backend: None, workers: 1, sas: 1 }
    }

    /// Makes the right output for flow 5 as packet 9, without the walk.
    fn right_output(case: &Case, other: &OtherCipher) -> Vec<u8> {
        let (to, from) = (router_mac(case.egress()), own_mac(case.egress()));
        let inner = case.inner(5, HOP_LIMIT - 1);
        match case.direction {
            Direction::In
            | Direction::Forward
            | Direction::Bypass
            | Direction::PacketIn
            | Direction::CryptoIn => {
                return inner.frame(to, from, None);
            }
            Direction::PacketOut => return for_card(&inner, case.egress()),
            Direction::Overlay => return overlay_packets::leaving(case, 5),
            Direction::Out | Direction::CryptoOut => {}
        }
        let (local, remote) = case.tunnel(0);
        let esp = match case.direction {
            Direction::CryptoOut => in_clear(spi(0), 9, &inner.ip()),
            _ => other.seal(spi(WORKER).value(), 9, &inner.ip()),
        };
        let outer = PacketBuilder::new(local, remote).protocol(protocol::ESP).payload(&esp);
        let frame = outer.frame(to, from, None);
        match case.direction {
            Direction::CryptoOut => {
                [&CardHeader::Cipher(seat(0, CardWork::Cipher).tag).bytes()[..], &frame].concat()
            }
            _ => frame,
        }
    }

    #[test]
    fn a_right_output_passes_and_one_with_any_wrong_byte_is_caught() {
        let other = OtherCipher::new(Suite::Aes128Gcm, &MATERIAL);
        for direction in Direction::ALL {
            for family in [Family::V4, Family::V6] {
                let case = case(direction, family);
                let mut output = right_output(&case, &other);
                assert_eq!(check(&case, &other, spi(WORKER), 5, 9, &output), Ok(()));
                // Fields of the outer header that differ from packet to packet are free: IPv6's
                // traffic class and flow label, its hop limit; IPv4's are under the checksum.
                let free = match (direction, family) {
                    (Direction::Out, Family::V6) => vec![14, 15, 16, 17, 21],
                    // Behind the header for the card.
                    (Direction::CryptoOut, Family::V6) => vec![30, 31, 32, 33, 37],
                    _ => vec![],
                };
                for place in (0..output.len()).filter(|place| !free.contains(place)) {
                    output[place] ^= 1;
                    let found = check(&case, &other, spi(WORKER), 5, 9, &output);
                    assert!(found.is_err(), "{direction:?} {family:?} byte {place}");
                    output[place] ^= 1;
                }
                output.pop();
                assert!(check(&case, &other, spi(WORKER), 5, 9, &output).is_err());
            }
        }
    }

    #[test]
    fn another_flow_number_sa_or_key_is_caught() {
        let other = OtherCipher::new(Suite::Aes128Gcm, &MATERIAL);
        let case = case(Direction::Out, Family::V4);
        let output = right_output(&case, &other);
        assert!(matches!(check(&case, &other, spi(WORKER), 6, 9, &output), Err(Flaw::Byte { .. })));
        let number = check(&case, &other, spi(WORKER), 5, 10, &output);
        assert!(matches!(number, Err(Flaw::Number { .. })));
        let number = check(&case, &other, spi(0), 5, 9, &output);
        assert!(matches!(number, Err(Flaw::Number { .. })), "another worker's SA");
        let key = OtherCipher::new(Suite::Aes128Gcm, &[4; 20]);
        let integrity = Err(Flaw::OtherCipher(OtherError::Integrity));
        assert_eq!(check(&case, &key, spi(WORKER), 5, 9, &output), integrity);
    }
}
