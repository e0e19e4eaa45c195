//! ARP for IPv4 over Ethernet (RFC 826): messages read, and requests turned into their replies in
//! place.

use crate::flow::Address;
use crate::link::{ETHERNET_BYTES, LinkAddress, ethertype};

/// Bytes of a message.
pub const BYTES: usize = 28;

/// Hardware type 1, protocol 0x0800, addresses of 6 and 4 bytes.
const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// The operation of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Asks for the link address of the target.
    Request,
    /// Tells the sender's.
    Reply,
}

/// A request or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Request or reply.
    pub operation: Operation,
    /// Link address of the sender: of one station, never a group's.
    pub sender_mac: [u8; 6],
    /// Address of the sender; `None`: it has none yet (0.0.0.0).
    pub sender: Option<Address>,
    /// Link address of the target: in a request any bytes (RFC 826).
    pub target_mac: [u8; 6],
    /// Address of the target: in a request the one whose link address is asked for.
    pub target: Address,
}

impl Message {
    /// Returns whether it is a probe: a request of somebody who has no address yet, for the address
    /// that it would like to have (RFC 5227 §1.1).
    pub fn is_probe(&self) -> bool {
        self.operation == Operation::Request && self.sender.is_none()
    }

    /// Returns whether it is gratuitous: a request or a reply by which the sender tells everybody
    /// its own link address (RFC 5227 §3). A request of this form is an announcement (§1.1).
    pub fn is_gratuitous(&self) -> bool {
        self.sender == Some(self.target)
    }
}

/// Reads a message; `bytes` is behind the link header and may end with padding. `None`: it is cut
/// off, of another protocol or operation, or its sender has the link address of a group (RFC 1812
/// §3.3.2).
pub fn parse(bytes: &[u8]) -> Option<Message> {
    let packet = bytes.first_chunk::<BYTES>()?;
    let operation = match [packet[6], packet[7]] {
        REQUEST => Operation::Request,
        REPLY => Operation::Reply,
        _ => return None,
    };
    let address = |at: usize| -> u32 {
        u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    };
    let message = Message {
        operation,
        sender_mac: packet[8..].first_chunk().copied()?,
        sender: Some(address(14)).filter(|sender| *sender != 0).map(Address::v4),
        target_mac: packet[18..].first_chunk().copied()?,
        target: Address::v4(address(24)),
    };
    let is_station = message.sender_mac[0] & 1 == 0;
    (packet[..6] == HEAD && is_station).then_some(message)
}

/// Reads a request. `None`: as [`parse`], or it is a reply.
pub fn parse_request(bytes: &[u8]) -> Option<Message> {
    parse(bytes).filter(|message| message.operation == Operation::Request)
}

/// Turns the frame of a request into that of the reply: `mac` has the address that was asked for.
/// `frame` begins with the link header. Returns false, and changes nothing, if it holds no request
/// or has a VLAN tag.
#[must_use]
pub fn reply_in_place(frame: &mut [u8], mac: LinkAddress) -> bool {
    let Some(frame) = frame.first_chunk_mut::<{ ETHERNET_BYTES + BYTES }>() else { return false };
    let Some(request) = parse_request(&frame[ETHERNET_BYTES..]) else { return false };
    if frame[12..14] != ethertype::ARP.to_be_bytes() {
        return false;
    }
    let mac = mac.bytes();
    frame[..6].copy_from_slice(&request.sender_mac);
    frame[6..12].copy_from_slice(&mac);
    let packet = &mut frame[ETHERNET_BYTES..];
    packet[6..8].copy_from_slice(&REPLY);
    // Who asked is answered, with both addresses.
    packet.copy_within(8..18, 18);
    packet[8..14].copy_from_slice(&mac);
    packet[14..18].copy_from_slice(&(request.target.value as u32).to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{ArpEthIpv4Packet, ArpOperation};
    use proptest::prelude::*;

    const ASKS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const HAS: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn request() -> [u8; 42] {
        let mut frame = [0xff; 42];
        frame[6..12].copy_from_slice(&ASKS);
        frame[12..14].copy_from_slice(&[8, 6]);
        frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        frame[22..28].copy_from_slice(&ASKS);
        frame[28..32].copy_from_slice(&[10, 0, 0, 1]);
        frame[32..38].fill(0);
        frame[38..42].copy_from_slice(&[10, 0, 0, 9]);
        frame
    }

    #[test]
    fn a_request_becomes_its_reply() {
        let mut frame = request();
        assert_eq!(
            parse_request(&frame[14..]),
            Some(Message {
                operation: Operation::Request,
                sender_mac: ASKS,
                sender: Some(Address::v4(0x0a00_0001)),
                target_mac: [0; 6],
                target: Address::v4(0x0a00_0009),
            })
        );
        assert!(reply_in_place(&mut frame, LinkAddress::new(HAS)));
        let mut expected = [0; 42];
        expected[..6].copy_from_slice(&ASKS);
        expected[6..12].copy_from_slice(&HAS);
        expected[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        expected[22..28].copy_from_slice(&HAS);
        expected[28..32].copy_from_slice(&[10, 0, 0, 9]);
        expected[32..38].copy_from_slice(&ASKS);
        expected[38..42].copy_from_slice(&[10, 0, 0, 1]);
        assert_eq!(frame, expected);
        assert_eq!(parse_request(&frame[14..]), None, "a reply is no request");
        assert_eq!(
            parse(&frame[14..]),
            Some(Message {
                operation: Operation::Reply,
                sender_mac: HAS,
                sender: Some(Address::v4(0x0a00_0009)),
                target_mac: ASKS,
                target: Address::v4(0x0a00_0001),
            })
        );
    }

    #[test]
    fn probes_and_announcements_are_told_from_questions() {
        // RFC 5227 §2.1.1, §2.3, §3
        let told = |operation: u8, sender: [u8; 4], target: [u8; 4]| {
            let mut frame = request();
            frame[21] = operation;
            frame[28..32].copy_from_slice(&sender);
            frame[38..42].copy_from_slice(&target);
            let message = parse(&frame[14..]).unwrap();
            (message.is_probe(), message.is_gratuitous())
        };
        let (one, other) = ([10, 0, 0, 1], [10, 0, 0, 9]);
        assert_eq!(told(1, one, other), (false, false));
        assert_eq!(told(1, [0; 4], other), (true, false));
        assert_eq!(told(1, one, one), (false, true));
        assert_eq!(told(2, one, one), (false, true));
        assert_eq!(told(2, [0; 4], other), (false, false));
        assert_eq!(told(1, [0; 4], [0; 4]), (true, false));
    }

    #[test]
    fn neither_groups_nor_other_frames_are_answered() {
        let untouched = |frame: [u8; 42]| {
            let mut answered = frame;
            assert!(!reply_in_place(&mut answered, LinkAddress::new(HAS)));
            assert_eq!(answered, frame);
        };
        for mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            let mut frame = request();
            frame[22..28].copy_from_slice(&mac);
            assert_eq!(parse(&frame[14..]), None);
            untouched(frame);
        }
        let mut frame = request();
        frame[12..14].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        untouched(frame);
    }

    #[test]
    fn a_probe_has_no_sender_and_what_is_cut_off_is_nothing() {
        let mut frame = request();
        frame[28..32].fill(0);
        assert_eq!(parse_request(&frame[14..]).unwrap().sender, None);
        for length in 0..42 {
            let mut cut = frame;
            assert!(!reply_in_place(&mut cut[..length], LinkAddress::new(HAS)));
            assert_eq!(cut, frame);
            assert_eq!(parse(cut[..length].get(14..).unwrap_or_default()), None);
        }
    }

    proptest! {
        #[test]
        fn only_ethernet_and_ipv4_are_meant(at in 14usize..22, byte in any::<u8>()) {
            let mut frame = request();
            let is_same = frame[at] == byte;
            let is_reply = (at, byte) == (21, 2);
            frame[at] = byte;
            prop_assert_eq!(parse_request(&frame[14..]).is_some(), is_same);
            prop_assert_eq!(parse(&frame[14..]).is_some(), is_same || is_reply);
        }

        #[test]
        fn what_etherparse_writes_is_read(
            operation in 0u16..4,
            (sender_mac, target_mac) in any::<([u8; 6], [u8; 6])>(),
            (sender, target) in (prop_oneof![Just(0), any::<u32>()], any::<u32>()),
            padding in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let written = ArpEthIpv4Packet {
                operation: ArpOperation(operation),
                sender_mac,
                sender_ipv4: sender.to_be_bytes(),
                target_mac,
                target_ipv4: target.to_be_bytes(),
            };
            let bytes = [&written.to_bytes()[..], &padding].concat();
            let operation = match operation {
                1 => Some(Operation::Request),
                2 => Some(Operation::Reply),
                _ => None,
            };
            let expected = operation.filter(|_| sender_mac[0] & 1 == 0).map(|operation| Message {
                operation,
                sender_mac,
                sender: (sender != 0).then(|| Address::v4(sender)),
                target_mac,
                target: Address::v4(target),
            });
            prop_assert_eq!(parse(&bytes), expected);
        }

        #[test]
        fn no_bytes_panic(
            mut frame in prop::collection::vec(any::<u8>(), 0..80),
            is_plausible in any::<bool>(),
        ) {
            if is_plausible && frame.len() >= 22 {
                frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            }
            let before = frame.clone();
            let asked = frame.get(14..).and_then(parse_request);
            if reply_in_place(&mut frame, LinkAddress::new(HAS)) {
                let (asked, told) = (asked.unwrap(), parse(&frame[14..]).unwrap());
                prop_assert_eq!(told.operation, Operation::Reply);
                prop_assert_eq!(told.sender.map_or(0, |sender| sender.value), asked.target.value);
                prop_assert_eq!((told.sender_mac, told.target_mac), (HAS, asked.sender_mac));
                prop_assert_eq!(told.target.value, asked.sender.map_or(0, |sender| sender.value));
                prop_assert_eq!(&frame[42..], &before[42..]);
            } else {
                prop_assert_eq!(frame, before);
            }
        }
    }
}
