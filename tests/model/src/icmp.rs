//! ICMP errors told plainly (RFC 792, RFC 4443): which messages are errors, and making one.

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header};
use wire::{Address, Family, Flow, Upper};

use crate::headers::{Ip, Part};

/// An error that a gateway tells a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// The hop limit is used up.
    TimeExceeded,
    /// The packet is larger than this many bytes.
    TooBig(u32),
}

/// Errors by their type: RFC 1122 §3.2.2 (with redirect and source quench), RFC 4443 §2.1.
pub fn is_error(flow: &Flow) -> bool {
    let Upper::Icmp { kind, .. } = flow.upper else { return false };
    match flow.family {
        Family::V4 => [3, 4, 5, 11, 12].contains(&kind),
        Family::V6 => kind <= 127,
    }
}

/// Errors that a router far away may have to send: not redirects and source quench.
pub fn is_from_far(flow: &Flow) -> bool {
    let Upper::Icmp { kind, .. } = flow.upper else { return false };
    match flow.family {
        Family::V4 => [3, 11, 12].contains(&kind),
        Family::V6 => [1, 2, 3, 4].contains(&kind),
    }
}

/// RFC 1812 §4.3.2.7, RFC 4443 §2.4 e: no error about an error or about a later fragment.
pub fn may_complain(about: &Ip) -> bool {
    !is_error(&about.flow) && about.part != Part::Later
}

/// The message: as much of the packet as fits 576 bytes (RFC 1812 §4.3.2.3) or the least IPv6 MTU
/// (RFC 4443 §2.4 c).
///
/// # Panics
/// If `from` is not of the packet's family.
pub fn message(complaint: Complaint, from: Address, about: &Ip) -> Vec<u8> {
    assert_eq!(from.family, about.flow.family);
    let (limit, header_bytes) = match from.family {
        Family::V4 => (576, 20),
        Family::V6 => (1280, 40),
    };
    let (kind, code, word) = match (from.family, complaint) {
        (Family::V4, Complaint::TimeExceeded) => (11, 0, 0),
        (Family::V4, Complaint::TooBig(mtu)) => (3, 4, mtu),
        (Family::V6, Complaint::TimeExceeded) => (3, 0, 0),
        (Family::V6, Complaint::TooBig(mtu)) => (2, 0, mtu),
    };
    let mut body: Vec<u8> = vec![kind, code, 0, 0];
    body.extend(word.to_be_bytes());
    let room = limit - header_bytes - body.len();
    body.extend(about.bytes.iter().take(room));
    let to = about.flow.source;
    let (mut packet, pseudo) = match from.family {
        Family::V4 => {
            let addresses = [(from.value as u32).to_be_bytes(), (to as u32).to_be_bytes()];
            let length = body.len() as u16;
            let [source, destination] = addresses;
            let header = Ipv4Header::new(length, 64, IpNumber::ICMP, source, destination);
            let mut header = header.expect("a length that fits");
            header.dont_fragment = false;
            header.header_checksum = header.calc_header_checksum();
            (header.to_bytes().to_vec(), vec![])
        }
        Family::V6 => {
            let header = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: body.len() as u16,
                next_header: IpNumber::IPV6_ICMP,
                hop_limit: 64,
                source: from.value.to_be_bytes(),
                destination: to.to_be_bytes(),
            };
            let mut pseudo = [from.value.to_be_bytes(), to.to_be_bytes()].concat();
            pseudo.extend((body.len() as u32).to_be_bytes());
            pseudo.extend([0, 0, 0, 58]);
            (header.to_bytes().to_vec(), pseudo)
        }
    };
    let checksum = internet_checksum(&[pseudo, body.clone()].concat());
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(body);
    packet
}

/// RFC 1071, word by word.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) * 256 + u32::from(*word.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !(sum as u16)
}
