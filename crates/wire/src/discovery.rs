//! Neighbour discovery (RFC 4861): solicitations read, and advertisements made that answer them.

use crate::checksum;
use crate::flow::{Address, Family, Upper, protocol};
use crate::link::{ETHERNET_BYTES, LinkAddress, ethertype};
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
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
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

/// Reads a solicitation with the checks of RFC 4861 §7.1.1; `bytes` begins with the IPv6 header.
/// `None`: it is another packet, or a check fails.
pub fn parse_solicitation(bytes: &[u8]) -> Option<Solicitation> {
    let packet = packet::quoted(bytes)?;
    let flow = packet.flow;
    let Upper::Icmp { kind: SOLICITATION, code: 0 } = flow.upper else { return None };
    let is_fit = flow.family == Family::V6
        && flow.protocol == protocol::ICMPV6
        && packet.hop_limit == 255
        && packet.fragment == Fragment::Whole;
    let message = bytes.get(usize::from(packet.upper_offset)..packet.length as usize)?;
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let pseudo = checksum::pseudo_header(source, destination, protocol::ICMPV6, message.len());
    let is_good = (pseudo + checksum::sum(message)).is_multiple_of(0xffff);
    let (fixed, options) = message.split_first_chunk::<MESSAGE>()?;
    let target = u128::from_be_bytes(*fixed[8..].first_chunk()?);
    let source_mac = source_link_address(options)?;
    let is_probe = source.value == 0;
    let is_to_group = destination.value >> 24 == 0xff02 << 88 | 0x01_ff;
    let is_right_probe = is_to_group && source_mac.is_none();
    let is_valid = is_fit && is_good && target >> 120 != 0xff && (!is_probe || is_right_probe);
    let source = Some(source).filter(|_| !is_probe);
    is_valid.then_some(Solicitation { source, source_mac, target: Address::v6(target) })
}

/// Walks options; `None`: one has no length, or they do not end where the message does.
fn source_link_address(mut options: &[u8]) -> Option<Option<[u8; 6]>> {
    let mut found = None;
    while let [kind, words, ..] = *options {
        let length = usize::from(words) * OPTION;
        let (option, rest) = options.split_at_checked(length).filter(|_| length > 0)?;
        if kind == SOURCE_LINK_ADDRESS && length == OPTION {
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
    let (mac, target) = (mac.bytes(), solicitation.target);
    let mut frame = [0; ADVERTISEMENT_BYTES];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
    let (ip, message) = frame[ETHERNET_BYTES..].split_at_mut(IPV6_BYTES);
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
    (ip[6], ip[7]) = (protocol::ICMPV6, 255);
    ip[8..24].copy_from_slice(&target.value.to_be_bytes());
    ip[24..40].copy_from_slice(&destination.to_be_bytes());
    message[0] = ADVERTISEMENT;
    message[4] = flags;
    message[8..24].copy_from_slice(&target.value.to_be_bytes());
    (message[24], message[25]) = (TARGET_LINK_ADDRESS, 1);
    message[26..32].copy_from_slice(&mac);
    let to = Address::v6(destination);
    let pseudo = checksum::pseudo_header(target, to, protocol::ICMPV6, message.len());
    let sum = checksum::finish(pseudo + checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const ASKS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const HAS: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const SOURCE: u128 = 0x2001_0db8 << 96 | 1;
    const TARGET: u128 = 0x2001_0db8 << 96 | 0x9;

    fn solicit(source: u128, options: &[u8], hop_limit: u8) -> Vec<u8> {
        let destination = 0xff02 << 112 | 0x01_ff << 24 | TARGET & 0xff_ffff;
        let mut packet = Vec::from([0x60, 0, 0, 0, 0, 24 + options.len() as u8, 58, hop_limit]);
        packet.extend(source.to_be_bytes());
        packet.extend(destination.to_be_bytes());
        packet.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend(TARGET.to_be_bytes());
        packet.extend(options);
        let ends = (Address::v6(source), Address::v6(destination));
        let pseudo = checksum::pseudo_header(ends.0, ends.1, 58, packet.len() - 40);
        let sum = checksum::finish(pseudo + checksum::sum(&packet[40..]));
        packet[42..44].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn a_solicitation_is_answered() {
        let asked = parse_solicitation(&solicit(SOURCE, &[1, 1, 2, 0, 0, 0, 0, 1], 255)).unwrap();
        assert_eq!(
            asked,
            Solicitation {
                source: Some(Address::v6(SOURCE)),
                source_mac: Some(ASKS),
                target: Address::v6(TARGET),
            }
        );
        let frame = advertisement(&asked, ASKS, LinkAddress::new(HAS));
        let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
        assert_eq!(frame[..14], head);
        let packet = packet::parse(&frame[14..]).unwrap();
        assert_eq!(packet.flow.source_address(), Address::v6(TARGET));
        assert_eq!(packet.flow.destination_address(), Address::v6(SOURCE));
        assert_eq!((packet.hop_limit, packet.length), (255, 72));
        let pseudo = checksum::pseudo_header(Address::v6(TARGET), Address::v6(SOURCE), 58, 32);
        assert_eq!(checksum::finish(pseudo + checksum::sum(&frame[54..])), 0);
        assert_eq!(frame[54..56], [136, 0]);
        assert_eq!(frame[58..62], [0x60, 0, 0, 0]);
        assert_eq!(frame[62..78], TARGET.to_be_bytes());
        assert_eq!(frame[78..], [2, 1, 2, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn who_has_no_address_yet_is_answered_with_everybody() {
        let asked = parse_solicitation(&solicit(0, &[], 255)).unwrap();
        assert_eq!((asked.source, asked.source_mac), (None, None));
        let frame = advertisement(&asked, ASKS, LinkAddress::new(HAS));
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[38..54], ALL_NODES.to_be_bytes());
        assert_eq!(frame[58], 0x20);
    }

    #[test]
    fn what_fails_a_check_is_no_solicitation() {
        // RFC 4861 §7.1.1
        let none = |packet: &[u8]| assert_eq!(parse_solicitation(packet), None);
        none(&solicit(SOURCE, &[], 254));
        none(&solicit(SOURCE, &[1, 0, 0, 0, 0, 0, 0, 0], 255));
        none(&solicit(SOURCE, &[1, 2, 2, 0, 0, 0, 0, 1], 255));
        none(&solicit(0, &[1, 1, 2, 0, 0, 0, 0, 1], 255));
        let good = solicit(SOURCE, &[], 255);
        for at in 40..good.len() {
            let mut wrong = good.clone();
            wrong[at] ^= 0x10;
            none(&wrong);
        }
        for length in 0..good.len() {
            none(&good[..length]);
        }
        assert!(parse_solicitation(&good).is_some());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if bytes.len() > 46 {
                (bytes[0], bytes[6], bytes[7], bytes[40], bytes[41]) = (0x60, 58, 255, 135, 0);
            }
            _ = parse_solicitation(&bytes);
        }
    }
}
