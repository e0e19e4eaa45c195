//! ARP for IPv4 over Ethernet (RFC 826): requests read, and turned into their replies in place.

use crate::flow::Address;
use crate::link::{ETHERNET_BYTES, LinkAddress};

/// Bytes of a packet.
pub const BYTES: usize = 28;

/// Hardware type 1, protocol 0x0800, addresses of 6 and 4 bytes.
const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Link address of who asks.
    pub sender_mac: [u8; 6],
    /// Address of who asks; `None`: it has none yet (RFC 5227 §2.1.1, a probe).
    pub sender: Option<Address>,
    /// The address whose link address is asked for.
    pub target: Address,
}

/// Reads a request; `bytes` is behind the link header. `None`: it is cut off, of another protocol,
/// or no request.
pub fn parse_request(bytes: &[u8]) -> Option<Request> {
    let packet = bytes.first_chunk::<BYTES>()?;
    if packet[..6] != HEAD || packet[6..8] != REQUEST {
        return None;
    }
    let address = |at: usize| -> u32 {
        u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    };
    let sender_mac = packet[8..14].first_chunk().copied()?;
    let sender = Some(address(14)).filter(|sender| *sender != 0).map(Address::v4);
    Some(Request { sender_mac, sender, target: Address::v4(address(24)) })
}

/// Turns the frame of a request into that of the reply: `mac` has the address that was asked for.
/// `frame` begins with an untagged link header. Returns false, and changes nothing, if it holds no
/// request.
#[must_use]
pub fn reply_in_place(frame: &mut [u8], mac: LinkAddress) -> bool {
    let Some(frame) = frame.first_chunk_mut::<{ ETHERNET_BYTES + BYTES }>() else { return false };
    let Some(request) = parse_request(&frame[ETHERNET_BYTES..]) else { return false };
    let mac = mac.bytes();
    frame[..6].copy_from_slice(&request.sender_mac);
    frame[6..12].copy_from_slice(&mac);
    let packet = &mut frame[ETHERNET_BYTES..];
    packet[6..8].copy_from_slice(&REPLY);
    // Who asked is who is answered, with both addresses.
    packet.copy_within(8..18, 18);
    packet[8..14].copy_from_slice(&mac);
    packet[14..18].copy_from_slice(&(request.target.value as u32).to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
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
            Some(Request {
                sender_mac: ASKS,
                sender: Some(Address::v4(0x0a00_0001)),
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
        }
    }

    proptest! {
        #[test]
        fn only_ethernet_and_ipv4_are_meant(at in 14usize..22, byte in any::<u8>()) {
            let mut frame = request();
            let is_same = frame[at] == byte;
            frame[at] = byte;
            prop_assert_eq!(parse_request(&frame[14..]).is_some(), is_same);
        }
    }
}
