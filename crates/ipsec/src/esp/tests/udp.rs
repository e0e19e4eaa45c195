//! ESP in UDP: the checksum over IPv6.

use proptest::prelude::*;
use wire::build::PacketBuilder;

use super::book::{V6_ENDS, v6_udp_checksum_is_right};
use crate::finish_udp;

fn v6() -> PacketBuilder {
    PacketBuilder::v6(V6_ENDS.0, V6_ENDS.1)
}

proptest! {
    #[test]
    fn checksum_of_a_v6_datagram_is_right_whatever_stood_there(
        payload in prop::collection::vec(any::<u8>(), 0..100),
        (before, extensions) in (any::<[u8; 2]>(), 0usize..3),
    ) {
        let numbers = [0, 60];
        let builder = numbers[..extensions]
            .iter()
            .fold(v6(), |builder, number| builder.extension(*number, &[1, 4]));
        let mut packet = builder.udp(4500, 4500).payload(&payload).ip();
        let udp = 40 + 8 * extensions;
        let right = packet.clone();
        packet[udp + 6..udp + 8].copy_from_slice(&before);
        prop_assert!(finish_udp(&mut packet));
        prop_assert!(v6_udp_checksum_is_right(&packet, &packet[udp..]));
        prop_assert_eq!(packet, right);
    }

    #[test]
    fn bytes_that_are_no_such_packet_stay_as_they_are(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        first in prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()],
    ) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let before = bytes.clone();
        if !finish_udp(&mut bytes) {
            prop_assert_eq!(bytes, before);
        }
    }
}

#[test]
fn sum_of_0_is_written_as_all_ones() {
    // The last two bytes take whatever brings the sum to all ones.
    let bare = v6().udp(4500, 4500).payload(&[0, 0]).ip();
    let last = [bare[46], bare[47]];
    let mut packet = v6().udp(4500, 4500).payload(&last).ip();
    packet[46..48].fill(0);
    assert!(finish_udp(&mut packet));
    assert_eq!(packet[46..48], [0xff, 0xff]);
    assert!(v6_udp_checksum_is_right(&packet, &packet[40..]));
}

#[test]
fn only_whole_v6_udp_packets_are_finished() {
    let udp = || v6().udp(4500, 4500).payload_of(40);
    let mut longer = udp().ip();
    longer.push(0);
    let mut shorter = udp().ip();
    shorter.pop();
    let others = [
        PacketBuilder::v4("192.0.2.1", "198.51.100.7").udp(4500, 4500).ip(),
        v6().tcp(4500, 4500).ip(),
        v6().protocol(50).payload_of(40).ip(),
        udp().fragment(0, true).ip(),
        v6().fragment(3, false).protocol(17).payload_of(40).ip(),
        udp().ip()[..47].to_vec(),
        longer,
        shorter,
        vec![],
    ];
    for mut packet in others {
        let before = packet.clone();
        assert!(!finish_udp(&mut packet), "{packet:x?}");
        assert_eq!(packet, before);
    }
}
