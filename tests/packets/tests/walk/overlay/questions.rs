//! ARP, and neighbour discovery.

use wire::discovery::Solicitation;

use super::*;

/// IP version of the hosts, and the form of their packets.
const OUTER: Family = Family::V4;
const KIND: Kind = Kind::Vxlan;

/// IPv4 address of a tenant.
fn of(number: u8) -> [u8; 4] {
    [172, 16, 0, number]
}

/// An ARP message of a tenant that says that it has `sender`.
fn arp((number, sender): (u8, [u8; 4]), target: [u8; 4], operation: u8) -> OverlayPacket {
    let frame = [
        &[0xff; 6][..],
        &mac(number),
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation],
        &mac(number),
        &sender,
        &[0; 6],
        &target,
    ];
    OverlayPacket::new(OUTER, KIND, PLAIN, frame.concat())
}

/// The gateway's answer to a tenant behind the first host, with a frame.
fn answer(frame: Vec<u8>) -> Out {
    let packet = OverlayPacket {
        from: own(OUTER, 1),
        to: host(OUTER, 1),
        has_checksum: false,
        ..OverlayPacket::new(OUTER, KIND, PLAIN, frame)
    };
    let mut bytes = packet.ip();
    bytes[6] = 0x40;
    packets::table::sum_header(&mut bytes);
    Out::Clear(LAN, bytes)
}

/// The answer that `has` has `target`, to the first tenant, which asked from the address `asks`.
fn answered(asks: [u8; 4], target: [u8; 4], has: u8) -> Out {
    let frame = [
        &mac(1)[..],
        &mac(has),
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
        &mac(has),
        &target,
        &mac(1),
        &asks,
    ];
    answer(frame.concat())
}

/// A neighbour solicitation of a tenant, perhaps with a link address of its own.
fn solicit(sender: u8, target: u8, option: Option<u8>) -> OverlayPacket {
    let (source, target) = (tenant(Family::V6, sender), tenant(Family::V6, target));
    let group = 0xff02 << 112 | 0x01_ff00_0000 | target.value & 0xff_ffff;
    let mut payload = target.value.to_be_bytes().to_vec();
    if let Some(number) = option {
        payload.extend([1, 1]);
        payload.extend(mac(number));
    }
    let packet = PacketBuilder::new(source, Address::v6(group)).hop_limit(255);
    let packet = packet.icmp(135, 0, [0; 4]).payload(&payload);
    let [.., b, c, d] = target.value.to_be_bytes();
    let frame = packet.frame([0x33, 0x33, 0xff, b, c, d], mac(sender), None);
    OverlayPacket::new(OUTER, KIND, PLAIN, frame)
}

/// The answer to the first tenant about the second.
fn advertised() -> Out {
    let solicitation = Solicitation {
        source: Some(tenant(Family::V6, 1)),
        source_mac: Some(mac(1)),
        target: tenant(Family::V6, 2),
    };
    let has = LinkAddress::new(mac(2));
    answer(wire::discovery::advertisement(&solicitation, mac(1), has).to_vec())
}

/// An advertisement that the first tenant sends the third.
fn advertisement() -> OverlayPacket {
    let packet = PacketBuilder::new(tenant(Family::V6, 1), tenant(Family::V6, 3));
    let packet = packet.hop_limit(255).icmp(136, 0, [0x60, 0, 0, 0]);
    let frame = packet.payload(&[9; 24]).frame(mac(3), mac(1), None);
    OverlayPacket::new(OUTER, KIND, PLAIN, frame)
}

pub(super) fn rows() -> Vec<Row> {
    let drops =
        |what: &str, packet: OverlayPacket, reason| Row::drops(what, packet.arrives(), reason);
    let mut of_another = arp((1, of(1)), of(2), 1);
    of_another.frame[22..28].copy_from_slice(&mac(3));
    let (source, flooding) = (DropReason::OverlaySource, DropReason::NoFlooding);
    let ask = arp((1, of(1)), of(2), 1).arrives();
    let probe = arp((1, [0; 4]), of(3), 1).arrives();
    [
        // AX-24
        Row::passes("ARP is answered", ask, answered(of(1), of(2), 2)),
        Row::passes("an ARP probe too", probe, answered([0; 4], of(3), 3)),
        Row::passes("a solicitation is answered", solicit(1, 2, Some(1)).arrives(), advertised()),
        drops("ARP for nobody", arp((1, of(1)), of(77), 1), DropReason::NoEndpoint),
        drops("ARP for itself", arp((1, of(1)), of(1), 1), flooding),
        drops("an ARP reply", arp((1, of(1)), of(2), 2), flooding),
        drops("ARP in another's name", arp((1, of(3)), of(2), 1), source),
        drops("ARP with another's link address", of_another, source),
        drops("an advertisement to a neighbour", advertisement(), flooding),
        drops("a solicitation with another's link address", solicit(1, 2, Some(3)), source),
        drops("a solicitation in another's name", solicit(2, 3, None), source),
        drops("a solicitation for nobody", solicit(1, 77, None), DropReason::NoEndpoint),
    ]
    .into_iter()
    .map(|row| row.with(having(OUTER, KIND)))
    .collect()
}
