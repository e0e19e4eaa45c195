//! Frames of the attacks, as functions of a number.

use wire::build::{PacketBuilder, tcp_flags};

/// MAC address of gateway 1 on the wire.
pub(crate) const WAN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// MAC address of gateway 1 on the protected side.
const LAN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
/// MAC address of the host of site 1.
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 1, 0x10];
/// MAC address of strangers on the wire.
pub(crate) const STRANGER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x98];
/// Address of the host of site 1.
pub(crate) const HOST: &str = "10.1.0.10";
/// Address of the host of site 2.
const FAR_HOST: &str = "10.2.0.10";
/// IPv6's Fragment header.
const FRAGMENT: u8 = 44;
/// Protocol number of UDP.
const UDP: u8 = 17;
/// Protocol number of ESP.
const ESP: u8 = 50;
/// Bytes of a small payload.
const SMALL: usize = 64;

/// Spreads numbers (splitmix64): the same number gives the same bits in each run.
fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// An address of strangers, from 131,072.
fn stranger(number: u64) -> String {
    let bits = spread(number).to_be_bytes();
    format!("198.{}.{}.{}", 18 + (bits[0] & 1), bits[1], bits[2])
}

/// An address of few strangers.
fn near_stranger(number: u64) -> String {
    format!("203.0.113.{}", 10 + spread(number) % 200)
}

/// A packet as the wire brings it to gateway 1.
pub(crate) fn to_wan(packet: &PacketBuilder) -> Vec<u8> {
    packet.frame(WAN_MAC, STRANGER_MAC, None)
}

/// A packet as the host of site 1 sends it.
pub(crate) fn to_lan(packet: &PacketBuilder, vlan: Option<u16>) -> Vec<u8> {
    packet.frame(LAN_MAC, HOST_MAC, vlan)
}

/// Two Fragment headers, the second of a later fragment.
pub(crate) fn two_fragment_headers(number: u64) -> Vec<u8> {
    let source = format!("2001:db8:abcd:{:x}::66", number % 0xffff);
    let header = |field: u16, identification: u32| {
        [&field.to_be_bytes()[..], &identification.to_be_bytes()].concat()
    };
    let packet = PacketBuilder::v6(&source, "2001:db8:1::10")
        .extension(FRAGMENT, &header(0, number as u32 + 1))
        .extension(FRAGMENT, &header(100 << 3 | 1, 7))
        .protocol(UDP)
        .payload_of(SMALL);
    to_wan(&packet)
}

/// A packet to an unused address of the protected subnet.
pub(crate) fn subnet_scan(number: u64) -> Vec<u8> {
    let number = number % (32 * 250);
    let target = format!("10.1.{}.{}", 64 + number / 250, 2 + number % 250);
    to_wan(&PacketBuilder::v4("203.0.113.7", &target).udp(4000, 4000).payload_of(SMALL))
}

/// A SYN without an answer.
pub(crate) fn syn(number: u64) -> Vec<u8> {
    let port = 1024 + (spread(number) % 60_000) as u16;
    let packet = PacketBuilder::v4(&stranger(number), HOST);
    to_wan(&packet.tcp_with(port, 80, tcp_flags::SYN, Some(1460)))
}

/// A datagram without an answer.
pub(crate) fn udp(number: u64) -> Vec<u8> {
    let bits = spread(number);
    let (source, destination) = (1024 + (bits % 60_000) as u16, 1000 + (bits >> 32) as u16 % 1000);
    to_wan(&PacketBuilder::v4(&stranger(number), HOST).udp(source, destination).payload_of(SMALL))
}

/// A packet with TTL 1, which ends at the gateway.
pub(crate) fn last_hop(number: u64) -> Vec<u8> {
    let packet = PacketBuilder::v4(&near_stranger(number), HOST).hop_limit(1);
    to_wan(&packet.udp(4000, 1000).payload_of(SMALL))
}

/// A fragment of a datagram without an end: first and later fragments of both families.
pub(crate) fn endless_fragments(number: u64) -> Vec<u8> {
    let packet = match number % 4 {
        0 | 1 => PacketBuilder::v4(&near_stranger(number), HOST),
        _ => PacketBuilder::v6(&format!("2001:db8:abcd:{:x}::66", number % 251), "2001:db8:1::10"),
    };
    let packet = packet.identification(number as u32 | 0x8000).payload_of(SMALL);
    to_wan(&match number % 2 {
        0 => packet.udp(4000, 53).fragment(0, true),
        _ => packet.protocol(UDP).fragment(100, true),
    })
}

/// ESP from the peer's address with an SPI of no SA.
pub(crate) fn esp_of_an_unknown_spi(number: u64) -> Vec<u8> {
    let spi = 0x8000_0000 | spread(number) as u32;
    let payload = [&spi.to_be_bytes()[..], &(number as u32 + 1).to_be_bytes(), &[0xa5; 64]];
    let packet = PacketBuilder::v4("192.0.2.2", "192.0.2.1").protocol(ESP);
    to_wan(&packet.payload(&payload.concat()))
}

/// An ICMP error about an invented packet of the gateway or of a host.
pub(crate) fn forged_icmp(number: u64) -> Vec<u8> {
    let bits = spread(number);
    let esp = [&(bits as u32).to_be_bytes()[..], &(number as u32).to_be_bytes(), &[0; 8]].concat();
    let (to, quoted) = match number % 2 {
        0 => {
            let quoted = PacketBuilder::v4("192.0.2.1", "192.0.2.2").protocol(ESP).payload(&esp);
            ("192.0.2.1", quoted)
        }
        _ => (HOST, PacketBuilder::v4(HOST, FAR_HOST).udp(bits as u16, 7007).payload_of(8)),
    };
    let (kind, code, rest) = match number / 2 % 4 {
        0 => (3, 4, [0, 0, 2, 64]),
        1 => (3, (bits >> 40) as u8 % 4, [0; 4]),
        2 => (11, 0, [0; 4]),
        _ => (5, 1, [203, 0, 113, 66]),
    };
    let packet = PacketBuilder::v4(&near_stranger(number), to);
    to_wan(&packet.icmp(kind, code, rest).payload(&quoted.ip()))
}

/// A packet with IPv4 options into the tunnel: no operations, a router alert, a timestamp.
pub(crate) fn ipv4_options(number: u64) -> Vec<u8> {
    let options: &[u8] = match spread(number) % 3 {
        0 => &[1, 1, 1, 1],
        1 => &[148, 4, 0, 0],
        _ => &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    let packet = PacketBuilder::v4(HOST, FAR_HOST).options(options);
    to_lan(&packet.udp(4000, 9).payload_of(SMALL), None)
}

/// A packet without a tag, of two served VLANs, or of an unknown VLAN.
pub(crate) fn mixed_vlans(number: u64) -> Vec<u8> {
    let vlan = [None, Some(10), Some(20), Some(30)][(spread(number) % 4) as usize];
    to_lan(&PacketBuilder::v4(HOST, FAR_HOST).udp(4000, 9).payload_of(SMALL), vlan)
}
