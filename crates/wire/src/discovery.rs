//! Neighbour discovery (RFC 4861): solicitations and advertisements read, and advertisements made
//! that answer solicitations.

use crate::flow::{Address, Family, Upper, protocol};
use crate::icmp;
use crate::ip_header::IpHeader;
use crate::link::{self, ETHERNET_BYTES, LinkAddress, ethertype};
use crate::packet::{self, Fragment, IPV6_BYTES};

/// Bytes of the frame of an advertisement: link header, IPv6 header, message, one option.
pub const ADVERTISEMENT_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + MESSAGE + OPTION;

/// Bytes of either message without options, and of an option with a link address.
const MESSAGE: usize = 24;
const OPTION: usize = 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Hop limit of both messages: no router has passed them on (RFC 4861 §7.1).
const HOP_LIMIT: u8 = 255;
/// All nodes on the link, and their link address (RFC 2464 §7).
const ALL_NODES: u128 = 0xff02 << 112 | 1;
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// A solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solicitation {
    /// Address of who asks; `None`: it asks whether an address is free (RFC 4862 §5.4).
    pub source: Option<Address>,
    /// Link address that it says it has.
    pub source_mac: Option<[u8; 6]>,
    /// The address whose link address is asked for.
    pub target: Address,
}

/// An advertisement that somebody else sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// Address that it is sent from; need not be the target's.
    pub source: Address,
    /// The address whose link address it tells.
    pub target: Address,
    /// That link address; `None`: that of the frame.
    pub target_mac: Option<[u8; 6]>,
    /// True if the sender is a router.
    pub is_router: bool,
    /// True if it answers a solicitation.
    pub is_solicited: bool,
    /// True if it replaces a link address that is known already.
    pub is_override: bool,
}

/// Reads a solicitation with the checks of RFC 4861 §7.1.1; `bytes` begins with the IPv6 header.
/// `None`: it is another packet, or a check fails.
pub fn parse_solicitation(bytes: &[u8]) -> Option<Solicitation> {
    let message = parse(bytes, SOLICITATION)?;
    let source_mac = link_address(message.options, SOURCE_LINK_ADDRESS)?;
    let Message { source, target, .. } = message;
    if source.value != 0 {
        return Some(Solicitation { source: Some(source), source_mac, target });
    }
    // ff02::1:ff00:0/104
    let is_to_group = message.destination.value >> 24 == 0xff02 << 88 | 0x01_ff;
    let is_valid = is_to_group && source_mac.is_none();
    is_valid.then_some(Solicitation { source: None, source_mac, target })
}

/// Reads an advertisement with the checks of RFC 4861 §7.1.2; `bytes` begins with the IPv6 header.
/// `None`: it is another packet, or a check fails.
pub fn parse_advertisement(bytes: &[u8]) -> Option<Advertisement> {
    let message = parse(bytes, ADVERTISEMENT)?;
    let target_mac = link_address(message.options, TARGET_LINK_ADDRESS)?;
    let is_solicited = message.flags & SOLICITED != 0;
    let is_valid = message.source.value != 0 && !(is_solicited && is_group(message.destination));
    is_valid.then_some(Advertisement {
        source: message.source,
        target: message.target,
        target_mac,
        is_router: message.flags & ROUTER != 0,
        is_solicited,
        is_override: message.flags & OVERRIDE != 0,
    })
}

/// The parts that both messages have.
struct Message<'b> {
    source: Address,
    destination: Address,
    /// Of a solicitation reserved.
    flags: u8,
    target: Address,
    options: &'b [u8],
}

/// Reads a message of a type with the checks that both have. Its source may be unspecified.
fn parse(bytes: &[u8], kind: u8) -> Option<Message<'_>> {
    let packet = packet::quoted(bytes)?;
    let flow = packet.flow;
    let is_fit = flow.family == Family::V6
        && flow.protocol == protocol::ICMPV6
        && flow.upper == Upper::Icmp { kind, code: 0 }
        && packet.hop_limit == HOP_LIMIT
        && packet.fragment == Fragment::Whole;
    if !is_fit {
        return None;
    }
    let message = bytes.get(usize::from(packet.upper_offset)..packet.length as usize)?;
    let (fixed, options) = message.split_first_chunk::<MESSAGE>()?;
    let source = flow.source_address();
    let target = Address::v6(u128::from_be_bytes(*fixed[8..].first_chunk()?));
    // RFC 4291 §2.7: no packet is sent from a group.
    let is_valid = !is_group(target) && !is_group(source) && icmp::is_intact(&flow, message);
    let destination = flow.destination_address();
    is_valid.then_some(Message { source, destination, flags: fixed[4], target, options })
}

const fn is_group(address: Address) -> bool {
    address.value >> 120 == 0xff
}

/// Returns the link address in the option of a type, if there is one (RFC 4861 §4.6.1). `None`: an
/// option has no length, options do not end where the message does, or that option has another
/// length or is there twice: who reads the other one would hear of another station.
fn link_address(mut options: &[u8], kind: u8) -> Option<Option<[u8; 6]>> {
    let mut found = None;
    while let [other, words, ..] = *options {
        let length = usize::from(words) * OPTION;
        let (option, rest) = options.split_at_checked(length).filter(|_| length > 0)?;
        if other == kind {
            if length != OPTION || found.is_some() {
                return None;
            }
            found = option[2..].first_chunk().copied();
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

/// Returns the frame of the advertisement that answers a solicitation: `mac` has the target (RFC
/// 4861 §7.2.4). `asks` is the link address that the solicitation came from. Who asks whether an
/// address is free is answered together with everybody.
pub fn advertisement(
    solicitation: &Solicitation,
    asks: [u8; 6],
    mac: LinkAddress,
) -> [u8; ADVERTISEMENT_BYTES] {
    let (destination, to, flags) = match solicitation.source {
        Some(source) => (source.value, asks, SOLICITED | OVERRIDE),
        None => (ALL_NODES, ALL_NODES_MAC, OVERRIDE),
    };
    let target = solicitation.target;
    let destination = Address::v6(destination);
    let mut frame = [0; ADVERTISEMENT_BYTES];
    let to = LinkAddress::new(to);
    link::write(&mut frame, ETHERNET_BYTES, to, mac, None, ethertype::IPV6);
    let packet = &mut frame[ETHERNET_BYTES..];
    let header = IpHeader {
        source: target,
        destination,
        protocol: protocol::ICMPV6,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        dont_fragment: true,
    };
    header.write(packet);
    let message = &mut packet[IPV6_BYTES..];
    message[0] = ADVERTISEMENT;
    message[4] = flags;
    message[8..24].copy_from_slice(&target.value.to_be_bytes());
    (message[24], message[25]) = (TARGET_LINK_ADDRESS, 1);
    message[26..32].copy_from_slice(&mac.bytes());
    icmp::write_checksum(message, target, destination);
    frame
}

#[cfg(test)]
mod tests;
