//! Packets that arrive, read from the fuzzer's bytes: mostly valid ones, so that the walk is
//! entered deep, then changed where the input says.

use dataplane::{Medium, NetdevId, SetIndex, Side};
use packets::lab::{self, Laboratory, agreements, host, own};
use packets::peer::{text_of, text_with};
use packets::table::sum_header;
use wire::build::{PacketBuilder, tcp_flags};
use wire::link::{Link, ethertype};
use wire::{Address, BATCH, Family, Flow, icmp, packet};

use super::PORTS;
use crate::Bytes;

/// One packet on the wire, and what is in it.
pub(super) struct Arrival {
    /// The frame that arrives.
    pub(super) frame: Vec<u8>,
    /// The peer that sealed it and the number it was sealed under.
    pub(super) sealed_as: Option<(SetIndex, u64)>,
    /// Its flow as it stands on the wire.
    pub(super) clear: Option<Flow>,
    /// Sealer and flow of the packet inside, and flow of the packet that one quotes.
    pub(super) inside: Option<(SetIndex, Flow, Option<Flow>)>,
}

/// Packets that arrive together on one netdev.
pub(super) struct Batch {
    pub(super) netdev: NetdevId,
    pub(super) side: Side,
    /// Time since the batch before.
    pub(super) after_ns: u64,
    pub(super) arrivals: Vec<Arrival>,
}

impl Batch {
    /// Port, time, then packets for as long as the input says that there is another.
    pub(super) fn read(input: &mut Bytes<'_>, lab: &mut Laboratory) -> Batch {
        let port = input.pick(&PORTS);
        let info = lab.snapshot.port(port).clone();
        let after_ns = u64::from(input.byte()) * 1_000_000;
        let mut arrivals = vec![];
        loop {
            let kind = input.byte();
            let (bytes, sealed_as, inside) = match kind & 3 {
                1 | 2 => sealed(input, lab),
                _ => (ip_packet(input), None, None),
            };
            let frame = match kind & 3 {
                3 => odd_frame(input, info.mac, &bytes),
                _ => lab.frame(port, &bytes),
            };
            let clear = on_the_wire(&frame, info.medium);
            arrivals.push(Arrival { frame, sealed_as, clear, inside });
            if kind & 4 == 0 || input.is_empty() || arrivals.len() >= BATCH + 2 {
                break;
            }
        }
        Batch { netdev: info.netdev, side: info.side, after_ns, arrivals }
    }
}

/// The flow of a frame as it is.
fn on_the_wire(frame: &[u8], medium: Medium) -> Option<Flow> {
    let start = match medium {
        Medium::Ethernet => Link::parse(frame)?.length,
        Medium::Ip => 0,
    };
    Some(packet::parse(&frame[start..]).ok()?.flow)
}

/// The flow of a packet, and that of the packet it quotes.
fn flows(bytes: &[u8]) -> Option<(Flow, Option<Flow>)> {
    let packet = packet::parse(bytes).ok()?;
    Some((packet.flow, icmp::quoted_flow(bytes, &packet)))
}

type Sealed = (Vec<u8>, Option<(SetIndex, u64)>, Option<(SetIndex, Flow, Option<Flow>)>);

/// A packet that a peer sealed, perhaps with a trailer or a number that it should not have.
fn sealed(input: &mut Bytes<'_>, lab: &mut Laboratory) -> Sealed {
    let set = agreements()[usize::from(input.byte()) % 3].index;
    let inner = ip_packet(input);
    let choice = input.byte();
    let text = match choice & 3 {
        3 => {
            let padding_bytes = usize::from(input.byte() & 15);
            let padding = input.take(padding_bytes);
            text_with(&inner, padding, input.byte(), input.pick(&[4, 41, 59, 6]))
        }
        _ => text_of(&inner),
    };
    let peer = lab.peer(set);
    let sequence = match choice >> 2 & 3 {
        0 | 1 => peer.next_sequence,
        2 => u64::from(input.byte()),
        _ => u64::from(input.byte()) << 32 | u64::from(input.word()),
    };
    peer.next_sequence = peer.next_sequence.max(sequence.saturating_add(1));
    let esp = peer.esp(sequence, &text);
    let mut outer = peer.outer(&esp);
    if choice & 16 != 0 {
        outer = outer.traffic_class(input.byte()).hop_limit(input.byte());
    }
    if choice & 32 != 0 {
        outer = outer.fragment(u16::from(input.byte()), input.byte() & 1 == 1);
    }
    let outer = changed(input, outer.ip());
    // Whatever trailer it has, the inner packet is found by its own length.
    let inside = flows(&text).map(|(flow, quoted)| (set, flow, quoted));
    (outer, Some((set, sequence)), inside)
}

/// An IP packet: first what is usual, then what is not.
fn ip_packet(input: &mut Bytes<'_>) -> Vec<u8> {
    let shape = input.byte();
    if shape == 0xff {
        let length = usize::from(input.short() & 0x7ff);
        return input.take(length).to_vec();
    }
    let family = if shape & 1 == 0 { Family::V4 } else { Family::V6 };
    let (source, destination) = (address(input, family), address(input, family));
    let mut packet = upper(input, PacketBuilder::new(source, destination));
    if shape & 2 != 0 {
        packet = packet.hop_limit(input.byte()).traffic_class(input.byte());
    }
    if shape & 4 != 0 {
        packet = packet.dont_fragment();
    }
    if shape & 8 != 0 {
        packet = packet.fragment(u16::from(input.byte()), input.byte() & 1 == 1);
    }
    if shape & 16 != 0 {
        let length = usize::from(input.byte() & 31);
        packet = match family {
            Family::V4 => packet.options(input.take(length)),
            Family::V6 => {
                packet.extension(input.pick(&[60, 0, 43, 44, 135, 51]), input.take(length))
            }
        };
    }
    if shape & 32 != 0 {
        // Around the largest that a tunnel carries, an MTU and a frame hold.
        let around = input.pick(&[1400, 1420, 1438, 1500, 600, 2900, 3600, 9000]);
        packet = packet.payload_of(around + usize::from(input.byte()) - 128);
    }
    match shape & 64 {
        0 => packet.ip(),
        _ => changed(input, packet.ip()),
    }
}

/// An address that means something to the laboratory, or any.
fn address(input: &mut Bytes<'_>, family: Family) -> Address {
    let text = |v4: &str, v6: &str| {
        let text = if family == Family::V4 { v4 } else { v6 };
        let ip: std::net::IpAddr = text.parse().expect("an address written here");
        ip.into()
    };
    match input.byte() % 32 {
        0 => host(family, 1),
        1 => host(family, 2),
        2 => host(family, 3),
        3 => host(family, 4),
        4 => host(family, 12),
        n @ 5..=11 => host(family, u32::from(n)),
        12 => text("9.9.9.9", "2001:db8:53::9"),
        13 => own(family, 1),
        14 => text("192.0.2.1", "2001:db8:ff::1"),
        15 => text("192.0.2.254", "2001:db8:ff::fe"),
        16 => text("198.51.100.7", "2001:db8:dd::4"),
        17 => text("203.0.113.9", "2001:db8:dd::4"),
        18 => host(family, 66),
        19 => host(family, 86),
        20 => text("10.1.255.255", "ff02::1"),
        21 => text("169.254.1.1", "fe80::1"),
        22 => text("127.0.0.1", "::1"),
        23 => text("198.18.0.1", "2001:db8:198::1"),
        24 => text("172.16.0.1", "3fff::1"),
        25 => own(family, 12),
        26 => text("192.0.2.2", "::ffff:10.1.0.5"),
        _ => match family {
            Family::V4 => Address::v4(input.word()),
            Family::V6 => Address::v6(
                u128::from(input.word()) << 96
                    | u128::from(input.word()) << 64
                    | u128::from(input.word()),
            ),
        },
    }
}

/// The upper layer of a packet.
fn upper(input: &mut Bytes<'_>, packet: PacketBuilder) -> PacketBuilder {
    const PORTS: [u16; 8] = [1000, 53, 443, 8000, 8999, 9000, 500, 4500];
    let port = |input: &mut Bytes<'_>| match input.byte() {
        n if n < 128 => PORTS[usize::from(n) % PORTS.len()],
        _ => input.short(),
    };
    let payload = usize::from(input.byte());
    match input.byte() & 7 {
        0 => packet.udp(port(input), port(input)).payload_of(payload),
        1 => packet.tcp(port(input), port(input)).payload_of(payload),
        2 => packet.tcp_with(port(input), port(input), tcp_flags::SYN, Some(input.short())),
        3 => packet.icmp(input.byte(), input.byte(), [0; 4]).payload_of(payload),
        4 => {
            let quoted = quoted(input);
            let kind = input.pick(&[3, 11, 1, 2, 4, 12, 5]);
            packet.icmp(kind, input.byte(), [0; 4]).payload(&quoted)
        }
        5 => packet.protocol(input.byte()).payload_of(payload),
        6 => packet.protocol(input.pick(&[50, 132, 33, 136, 47, 59])).payload_of(payload),
        _ => packet.udp(port(input), 4500).payload(input.take(payload)),
    }
}

/// Makes the bytes that an ICMP error quotes: a packet of its own, which may be cut.
fn quoted(input: &mut Bytes<'_>) -> Vec<u8> {
    let family = input.pick(&[Family::V4, Family::V6]);
    let (source, destination) = (address(input, family), address(input, family));
    let mut packet = PacketBuilder::new(source, destination).udp(1000, 443);
    if input.byte() & 1 == 1 {
        packet = packet.tcp(1000, 443);
    }
    let mut bytes = packet.payload_of(8).ip();
    bytes.truncate(bytes.len().saturating_sub(usize::from(input.byte() & 63)));
    bytes
}

/// Changes bytes, cuts the end off or adds to it, and may mend the header's checksum after that.
fn changed(input: &mut Bytes<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    let choice = input.byte();
    for _ in 0..choice & 3 {
        let (at, flip) = (usize::from(input.byte()), input.byte());
        // Mostly headers are worth changing; the far end is reached from behind.
        let at = if choice & 4 == 0 { Some(at) } else { bytes.len().checked_sub(at + 1) };
        if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
            *byte ^= flip;
        }
    }
    match choice >> 3 & 3 {
        1 => bytes.truncate(bytes.len().saturating_sub(usize::from(input.byte()))),
        2 => bytes.extend(std::iter::repeat_n(0, usize::from(input.byte()))),
        _ => {}
    }
    let header_bytes = usize::from(bytes.first().map_or(0, |byte| byte & 15)) * 4;
    let is_v4 = bytes.first().is_some_and(|byte| byte >> 4 == 4);
    if choice & 32 != 0 && is_v4 && (20..=bytes.len()).contains(&header_bytes) {
        sum_header(&mut bytes);
    }
    bytes
}

/// A frame with a link header that is not the usual one.
fn odd_frame(input: &mut Bytes<'_>, mac: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let destination =
        input.pick(&[mac, [0xff; 6], [1, 0, 0x5e, 0, 0, 5], [0x33, 0x33, 0, 0, 0, 1], [2; 6]]);
    let vlan = input.pick(&[None, Some(lab::LAN2_VLAN), Some(0), Some(4095), Some(13)]);
    let kind = input.pick(&[
        ethertype::IPV4,
        ethertype::IPV6,
        ethertype::ARP,
        ethertype::VLAN,
        ethertype::STACKED_VLAN,
        0x88cc,
    ]);
    let mut frame = lab::frame(destination, lab::HOST_MAC, vlan, kind, packet);
    let cut = usize::from(input.byte());
    if cut < 32 {
        frame.truncate(frame.len().saturating_sub(cut));
    }
    frame
}
