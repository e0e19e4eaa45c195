//! IP and UDP headers as the card writes them.

use std::net::IpAddr;

use offload::{CardSa, OuterDontFragment, OuterDscp, OuterEcn, OuterFields, UdpEnds};

use super::clear::{Clear, V4, V6};
use super::{Loss, octets};

pub(super) const ESP: u8 = 50;
pub(super) const UDP: u8 = 17;
/// Bytes of a UDP header.
pub(super) const UDP_BYTES: usize = 8;
/// ECN in a traffic class: its bits, and "congestion experienced".
const ECN: u8 = 3;
const CONGESTED: u8 = 3;

/// The fields of an outer header that the card writes where they are left to it.
const OWN: OuterFields = OuterFields::Exactly {
    hop_limit: 64,
    dscp: OuterDscp::Copy,
    ecn: OuterEcn::Rfc6040,
    dont_fragment: OuterDontFragment::Set,
};

/// The sum of the Internet's checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u64::from(high) << 8 | u64::from(low),
        [high] => u64::from(high) << 8,
        _ => 0,
    });
    words.sum()
}

fn checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Fills in the checksum of an IPv4 header.
fn finish_v4(header: &mut [u8]) {
    header[10..12].fill(0);
    let checksum = checksum(sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// An outer header around `behind` bytes.
pub(super) fn outer(
    sa: &CardSa,
    fields: OuterFields,
    inner: &Clear<'_>,
    (behind, number): (usize, u64),
) -> Result<Vec<u8>, Loss> {
    let fields = if fields == OuterFields::LeftToCard { OWN } else { fields };
    let OuterFields::Exactly { hop_limit, dscp, ecn, dont_fragment } = fields else {
        return Err(Loss::WrongSa);
    };
    let dscp = match dscp {
        OuterDscp::Copy => inner.class & !ECN,
        OuterDscp::Fixed(dscp) => dscp << 2,
    };
    let ecn = match ecn {
        OuterEcn::Rfc6040 => inner.class & ECN,
        OuterEcn::Cleared => 0,
    };
    let (class, protocol) = (dscp | ecn, if sa.udp.is_some() { UDP } else { ESP });
    let (source, destination) = (octets(sa.ends.source), octets(sa.ends.destination));
    let head = match sa.ends.source {
        IpAddr::V4(_) => {
            let total = u16::try_from(V4 + behind).map_err(|_| Loss::TooLong)?;
            let is_set = match dont_fragment {
                OuterDontFragment::Set => true,
                OuterDontFragment::Copy => inner.dont_fragment,
                OuterDontFragment::Clear => false,
            };
            // RFC 6864 §4.1: the identification of a packet that is never fragmented is not used.
            let (identification, flags) = if is_set { (0, 0x40) } else { (number as u16, 0) };
            let [total, identification] = [total, identification].map(u16::to_be_bytes);
            let start = [0x45, class, total[0], total[1], identification[0], identification[1]];
            let middle = [flags, 0, hop_limit, protocol, 0, 0];
            let mut head = [&start[..], &middle, &source, &destination].concat();
            finish_v4(&mut head);
            head
        }
        IpAddr::V6(_) => {
            let payload = u16::try_from(behind).map_err(|_| Loss::TooLong)?.to_be_bytes();
            let start = [0x60 | class >> 4, class << 4, 0, 0, payload[0], payload[1]];
            [&start[..], &[protocol, hop_limit], &source, &destination].concat()
        }
    };
    Ok(head)
}

/// A packet's own header around another upper layer of `behind` bytes.
pub(super) fn own(clear: &Clear<'_>, protocol: u8, behind: usize) -> Result<Vec<u8>, Loss> {
    let mut head = clear.bytes[..clear.header_bytes()].to_vec();
    if clear.version == 4 {
        let total = u16::try_from(V4 + behind).map_err(|_| Loss::TooLong)?;
        head[2..4].copy_from_slice(&total.to_be_bytes());
        head[9] = protocol;
        finish_v4(&mut head);
    } else {
        let payload = u16::try_from(behind).map_err(|_| Loss::TooLong)?;
        head[4..6].copy_from_slice(&payload.to_be_bytes());
        head[6] = protocol;
    }
    Ok(head)
}

/// A UDP header in front of `esp`, behind this IP header. IPv4 needs no checksum (RFC 3948 §2.1),
/// IPv6 does (RFC 8200 §8.1).
pub(super) fn udp(ports: UdpEnds, ip: &[u8], esp: &[u8]) -> [u8; UDP_BYTES] {
    // Not above 65,535: the IP header has said so.
    let length = (UDP_BYTES + esp.len()) as u16;
    let [source, destination] = [ports.source, ports.destination].map(u16::to_be_bytes);
    let [high, low] = length.to_be_bytes();
    let [a, b] = source;
    let [c, d] = destination;
    let mut header = [a, b, c, d, high, low, 0, 0];
    if ip.len() == V6 {
        let sum = sum(&ip[8..]) + u64::from(length) + u64::from(UDP) + sum(&header) + sum(esp);
        let checksum = match checksum(sum) {
            0 => 0xffff,
            checksum => checksum,
        };
        header[6..].copy_from_slice(&checksum.to_be_bytes());
    }
    header
}

/// Combines the ECN of an outer header with that inside (RFC 6040 §4.2), in place.
pub(super) fn take_ecn(inner: &mut [u8], version: u8, outer_class: u8) -> Result<(), Loss> {
    let inside = if version == 4 { inner[1] } else { inner[0] << 4 | inner[1] >> 4 };
    let combined = match (inside & ECN, outer_class & ECN) {
        (0, CONGESTED) => return Err(Loss::Congestion),
        (0, _) => 0,
        (_, CONGESTED) => CONGESTED,
        // ECT(1) outside, which some mark instead of dropping.
        (2, 1) => 1,
        (inside, _) => inside,
    };
    // The header stays as it came, right or wrong, where nothing in it changes.
    if combined == inside & ECN {
        return Ok(());
    }
    let class = inside & !ECN | combined;
    if version == 4 {
        inner[1] = class;
        // Of the same length: the header was read as a bare one.
        finish_v4(&mut inner[..V4]);
    } else {
        inner[1] = class << 4 | inner[1] & 15;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_of_0_is_written_as_all_ones() {
        let ip = [[0x60, 0, 0, 0, 0, 0, UDP, 64].as_slice(), &[0x20; 32]].concat();
        let ports = UdpEnds { source: 4500, destination: 4500 };
        let written = (0..=u16::MAX).map(|word| {
            let [.., high, low] = udp(ports, &ip, &word.to_be_bytes());
            u16::from_be_bytes([high, low])
        });
        let written: Vec<u16> = written.collect();
        assert!(written.iter().all(|checksum| *checksum != 0));
        assert_eq!(written.iter().filter(|checksum| **checksum == 0xffff).count(), 1);
    }
}
