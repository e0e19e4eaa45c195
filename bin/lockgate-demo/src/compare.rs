//! Looks at what came out: written apart from the walk, so that it does not share its mistakes.

use wire::flow::protocol;
use wire::link::{ETHERNET_BYTES, Link};
use wire::{Address, Upper, checksum};

use super::laboratory::{Seen, Site};
use super::traffic::{Fate, MARKER, Parcel};

/// A difference between the packets expected and those that arrived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Difference {
    /// An expected packet did not arrive.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A byte is another.
    #[error("{what}: byte {at} is {found:#04x} instead of {expected:#04x}")]
    Byte { what: &'static str, at: usize, expected: u8, found: u8 },
    /// Longer or shorter.
    #[error("{what}: {found} bytes instead of {expected}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// The fragments do not make up the packet.
    #[error("{0}: its fragments do not fit together")]
    Pieces(&'static str),
    /// More packets came out than went in.
    #[error("{0} packets more came out than went in")]
    More(usize),
    /// The frame is not from the gateway to the host.
    #[error("{0}: its link header is wrong")]
    LinkHeader(&'static str),
}

/// The IP packets of frames, their link headers checked to be from the gateway to its host.
fn packets(site: Site, frames: &[Seen]) -> Result<Vec<&[u8]>, Difference> {
    let packet = |seen: &'_ Seen| {
        let link = Link::parse(&seen.frame);
        let good = link.is_some_and(|link| {
            (link.destination, link.source) == (site.host_mac(), site.lan_mac())
        });
        good.then_some(()).ok_or(Difference::LinkHeader("a packet to a host"))
    };
    frames
        .iter()
        .map(|seen| packet(seen).map(|()| seen.frame.get(ETHERNET_BYTES..).unwrap_or_default()))
        .collect()
}

/// Source and destination of an IP packet.
fn ends(packet: &[u8]) -> Option<(Address, Address)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0u128, |n, byte| n << 8 | u128::from(*byte));
    match packet.first()? >> 4 {
        4 => {
            let address = |at| Some(Address::v4(number(packet.get(at..at + 4)?) as u32));
            Some((address(12)?, address(16)?))
        }
        _ => {
            let address = |at| Some(Address::v6(number(packet.get(at..at + 16)?)));
            Some((address(8)?, address(24)?))
        }
    }
}

/// Checks that the packets that arrived at a site from another are, in order, those sent to it.
/// Returns the number of packets compared, those that arrived in fragments among them.
pub(crate) fn arrived(
    parcels: &[Parcel],
    from: Site,
    to: Site,
    frames: &[Seen],
) -> Result<usize, Difference> {
    let all = packets(to, frames)?;
    let mut came = all.into_iter().filter(|packet| {
        ends(packet).is_some_and(|(source, _)| Site::of_host(source) == Some(from))
    });
    let mut compared = 0;
    for parcel in parcels.iter().filter(|parcel| parcel.from == from) {
        match &parcel.fate {
            Fate::Arrives(at, expected) if *at == to => {
                let found = came.next().ok_or(Difference::Missing(parcel.what))?;
                equal(parcel.what, expected, found)?;
            }
            Fate::InPieces(at, expected) if *at == to => {
                let mut pieces = Vec::new();
                loop {
                    let piece = came.next().ok_or(Difference::Missing(parcel.what))?;
                    pieces.push(piece);
                    if !has_more_fragments(piece) {
                        break;
                    }
                }
                let whole = reassemble(&pieces).ok_or(Difference::Pieces(parcel.what))?;
                equal(parcel.what, expected, &whole)?;
            }
            _ => continue,
        }
        compared += 1;
    }
    match came.count() {
        0 => Ok(compared),
        more => Err(Difference::More(more)),
    }
}

fn equal(what: &'static str, expected: &[u8], found: &[u8]) -> Result<(), Difference> {
    let differing = expected.iter().zip(found).position(|(a, b)| a != b);
    match differing {
        Some(at) => {
            let (expected, found) = (expected[at], found[at]);
            Err(Difference::Byte { what, at, expected, found })
        }
        None if expected.len() != found.len() => {
            Err(Difference::Length { what, expected: expected.len(), found: found.len() })
        }
        None => Ok(()),
    }
}

fn has_more_fragments(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| flags & 0x20 != 0)
}

/// Puts IPv4 fragments without options, in order, together again (RFC 791 §3.2).
fn reassemble(pieces: &[&[u8]]) -> Option<Vec<u8>> {
    let mut whole = pieces.first()?.get(..20)?.to_vec();
    for piece in pieces {
        let header = piece.get(..20)?;
        let offset = usize::from(u16::from_be_bytes([header[6] & 0x1f, header[7]])) * 8;
        let same_datagram = header[0] == 0x45 && header[4..6] == whole[4..6];
        if !same_datagram || offset != whole.len() - 20 || !checksum::header_is_good(header) {
            return None;
        }
        whole.extend(&piece[20..]);
    }
    let length = u16::try_from(whole.len()).ok()?;
    whole[2..4].copy_from_slice(&length.to_be_bytes());
    whole[6..8].fill(0);
    whole[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&whole[..20]));
    whole[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(whole)
}

/// An ICMP error as a host reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    TooBig(u32),
    TimeExceeded,
}

/// Returns the ICMP errors that a site's host received, each with the packet that it quotes.
pub(crate) fn told(site: Site, frames: &[Seen]) -> Result<Vec<(IcmpError, Vec<u8>)>, Difference> {
    let mut errors = Vec::new();
    for packet in packets(site, frames)? {
        let version = packet.first().map_or(0, |first| first >> 4);
        let (at, is_icmp) = match version {
            4 => (20, packet.get(9) == Some(&protocol::ICMP)),
            _ => (40, packet.get(6) == Some(&protocol::ICMPV6)),
        };
        let Some(([kind, code, _, _, a, b, c, d], quote)) =
            packet.get(at..).and_then(<[u8]>::split_first_chunk)
        else {
            continue;
        };
        let value = u32::from_be_bytes([*a, *b, *c, *d]);
        let told = match (is_icmp, version, kind, code) {
            (true, 4, 3, 4) | (true, 6, 2, 0) => IcmpError::TooBig(value),
            (true, 4, 11, 0) | (true, 6, 3, 0) => IcmpError::TimeExceeded,
            _ => continue,
        };
        errors.push((told, quote.to_vec()));
    }
    Ok(errors)
}

/// Returns whether an ICMP error quotes the beginning of a packet, whatever its hop limit was then.
pub(crate) fn quotes(quote: &[u8], packet: &[u8]) -> bool {
    let plain = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        match bytes.first().map_or(0, |first| first >> 4) {
            4 if bytes.len() >= 20 => [8, 10, 11].iter().for_each(|at| bytes[*at] = 0),
            6 if bytes.len() >= 40 => bytes[7] = 0,
            _ => {}
        }
        bytes
    };
    quote.len() >= 28 && plain(packet).starts_with(&plain(quote))
}

/// Number of packets and frames on the unprotected link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) esp: u64,
    /// Packets in cleartext that a BYPASS policy allows.
    pub(crate) bypassed: u64,
    /// Packets in cleartext that no policy allows.
    pub(crate) clear: u64,
    /// Frames in which a payload of the demonstration can be read.
    pub(crate) readable: u64,
}

impl Wire {
    /// Counts frames; `bypassed` are the IP packets that may be in clear, each once.
    pub(crate) fn count(&mut self, frames: &[Seen], bypassed: &mut Vec<Vec<u8>>) {
        for Seen { frame, .. } in frames {
            let ip = frame.get(ETHERNET_BYTES..).unwrap_or_default();
            let is_esp = wire::packet::parse(ip).is_ok_and(|packet| {
                packet.flow.protocol == protocol::ESP && packet.flow.upper == Upper::None
            });
            let allowed = bypassed.iter().position(|packet| packet == ip);
            match (is_esp, allowed) {
                (true, _) => self.esp += 1,
                (false, Some(place)) => {
                    bypassed.swap_remove(place);
                    self.bypassed += 1;
                }
                (false, None) => self.clear += 1,
            }
            let readable = frame.windows(MARKER.len()).any(|window| window == MARKER);
            self.readable += u64::from(readable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::build::PacketBuilder;

    fn delivered(site: Site, packet: Vec<u8>) -> Seen {
        let [d, s] = [site.host_mac(), site.lan_mac()];
        let frame = [&d[..], &s[..], &[8, 0], &packet].concat();
        Seen { time_ns: 0, frame }
    }

    fn parcel(number: u8) -> (Parcel, Vec<u8>) {
        let packet = PacketBuilder::new(Site::A.host_v4(), Site::B.host_v4()).udp(1, 2);
        let packet = packet.payload(&[number; 40]);
        let arrives = packet.clone().hop_limit(62).ip();
        let fate = Fate::Arrives(Site::B, arrives.clone());
        (Parcel { what: "it", from: Site::A, packet: packet.ip(), fate }, arrives)
    }

    #[test]
    fn every_way_of_arriving_wrong_is_noticed() {
        let (first, arrives_first) = parcel(1);
        let (second, arrives_second) = parcel(2);
        let parcels = [first.clone(), second];
        let good = [arrives_first.clone(), arrives_second.clone()];
        let check = |packets: &[Vec<u8>]| {
            let frames: Vec<Seen> =
                packets.iter().map(|packet| delivered(Site::B, packet.clone())).collect();
            arrived(&parcels, Site::A, Site::B, &frames)
        };
        assert_eq!(check(&good), Ok(2));
        assert!(check(&[arrives_second.clone(), arrives_first.clone()]).is_err(), "order");
        assert_eq!(check(&good[..1]), Err(Difference::Missing("it")));
        let twice = [good[0].clone(), good[1].clone(), good[1].clone()];
        assert_eq!(check(&twice), Err(Difference::More(1)));
        assert!(matches!(
            check(&[first.packet, arrives_second]),
            Err(Difference::Byte { at: 8, expected: 62, found: 64, .. })
        ));
        let mut short = good.clone();
        short[0].pop();
        assert!(matches!(check(&short), Err(Difference::Length { .. })));
    }

    #[test]
    fn fragments_out_of_place_are_not_put_together() {
        let part = |offset, more, payload: &[u8]| {
            let packet = PacketBuilder::v4("10.1.0.10", "10.2.0.10").identification(9);
            packet.protocol(253).payload(payload).fragment(offset, more).ip()
        };
        let (first, last) = (part(0, true, &[1; 16]), part(2, false, &[2; 5]));
        let whole = reassemble(&[&first, &last]).unwrap();
        assert_eq!(whole[20..], [&[1u8; 16][..], &[2; 5]].concat());
        assert_eq!(reassemble(&[&last, &first]), None);
        assert_eq!(reassemble(&[&first, &part(3, false, &[2; 5])]), None);
    }

    #[test]
    fn what_is_in_clear_on_the_wire_is_counted() {
        let sealed = PacketBuilder::v4("192.0.2.1", "192.0.2.2").protocol(protocol::ESP);
        let clear = PacketBuilder::v4("10.1.0.10", "10.2.0.10").udp(1, 2).payload(MARKER);
        let dns = PacketBuilder::v4("10.1.0.10", "9.9.9.9").udp(1, 53);
        let frames = [sealed.payload(&[7; 40]), clear, dns.clone(), dns.clone()]
            .map(|packet| delivered(Site::A, packet.ip()));
        let mut wire = Wire::default();
        wire.count(&frames, &mut vec![dns.ip()]);
        assert_eq!(wire, Wire { esp: 1, bypassed: 1, clear: 2, readable: 1 });
    }
}
