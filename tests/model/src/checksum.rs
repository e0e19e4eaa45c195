//! The checksums of TCP and UDP, summed by `etherparse`: RFC 9293 §3.1, RFC 768, RFC 8200 §8.1.

use etherparse::checksum::Sum16BitWords;
use wire::Address;

use crate::headers::{Ip, Part};

/// Place of a packet's checksum, with the bytes that it covers.
struct Place {
    at: usize,
    end: usize,
    pseudo: Sum16BitWords,
}

/// Makes the checksum right if the field holds the sum of the pseudo-header, as senders leave it to
/// their netdev. All other packets stay as they are.
pub fn complete_unfinished(packet: &mut Ip) {
    let Some(Place { at, end, pseudo }) = place(packet) else { return };
    let folded = !pseudo.clone().ones_complement().to_be();
    if packet.bytes[at..at + 2] != folded.to_be_bytes() {
        return;
    }
    packet.bytes[at..at + 2].fill(0);
    let sum = pseudo.add_slice(&packet.bytes[packet.upper..end]);
    let value = match packet.flow.protocol {
        17 => sum.to_ones_complement_with_no_zero(),
        _ => sum.ones_complement(),
    };
    packet.bytes[at..at + 2].copy_from_slice(&value.to_be().to_be_bytes());
}

/// Returns whether a whole TCP or UDP packet has a right checksum; `None`: it has none.
pub fn is_right(packet: &Ip) -> Option<bool> {
    let Place { at, end, pseudo } = place(packet)?;
    if packet.flow.protocol == 17 && packet.bytes[at..at + 2] == [0; 2] {
        return None;
    }
    // With the checksum in it, a right sum is all ones.
    Some(pseudo.add_slice(&packet.bytes[packet.upper..end]).ones_complement() == 0)
}

fn place(packet: &Ip) -> Option<Place> {
    let upper = &packet.bytes[packet.upper..];
    let (at, length) = match packet.flow.protocol {
        _ if packet.part != Part::Whole => return None,
        6 => (16, upper.len()),
        17 => (6, usize::from(u16::from_be_bytes([upper[4], upper[5]]))),
        _ => return None,
    };
    if length < at + 2 || length > upper.len() {
        return None;
    }
    let pseudo = Sum16BitWords::new();
    let pseudo = add(add(pseudo, packet.flow.source_address()), packet.flow.destination_address());
    let pseudo = pseudo.add_slice(&(length as u32).to_be_bytes());
    let pseudo = pseudo.add_slice(&[0, 0, 0, packet.flow.protocol]);
    Some(Place { at: packet.upper + at, end: packet.upper + length, pseudo })
}

fn add(sum: Sum16BitWords, address: Address) -> Sum16BitWords {
    match std::net::IpAddr::from(address) {
        std::net::IpAddr::V4(address) => sum.add_slice(&address.octets()),
        std::net::IpAddr::V6(address) => sum.add_slice(&address.octets()),
    }
}
