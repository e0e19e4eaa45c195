//! Overlay packets: VXLAN and Geneve, headers and tenants' frames of any bytes.

use dataplane::FastPathUse;
use packets::lab::{Hub, LAN, LAN2, host, own};
use packets::overlay::{assert_rightly_sent, having};
use packets::table::opened;
use packets::{Laboratory, Out};
use wire::build::PacketBuilder;
use wire::link::LinkAddress;
use wire::overlay::Kind;
use wire::{Family, Vni};

use crate::Bytes;

/// Sends a gateway with virtual networks overlay packets whose content the bytes say.
///
/// # Panics
/// If the books do not balance, or a packet goes to another host than that of its destination; or
/// if a parser reads beyond its bytes.
pub fn overlay(data: &[u8]) {
    parse_alone(data);
    let mut bytes = Bytes::new(data);
    let flags = bytes.byte();
    let hosts = if flags & 1 == 0 { Family::V4 } else { Family::V6 };
    let kind = if flags & 2 == 0 { Kind::Vxlan } else { Kind::Geneve };
    let mut hub = Hub::default();
    having(hosts, kind)(&mut hub);
    let mut lab: Laboratory = hub.laboratory();
    if flags & 4 != 0 {
        lab = lab.remembering(64).with_fast_path(FastPathUse::Eager);
    }
    // Up to four packets, parted by their lengths.
    for _ in 0..4 {
        let form = bytes.byte();
        let length = usize::from(bytes.byte()) * 2;
        let content = bytes.take(length);
        if content.is_empty() {
            break;
        }
        send(&mut lab, (hosts, kind), form, content);
    }
}

fn send(lab: &mut Laboratory, (hosts, kind): (Family, Kind), form: u8, content: &[u8]) {
    let payload = match form & 3 {
        // All of it: header and frame.
        0 => content.to_vec(),
        // The frame, behind a good header.
        _ => {
            let vni = Vni::new(u32::from(7 + form % 5)).unwrap_or(Vni::MAX);
            [&kind.header(vni)[..], content].concat()
        }
    };
    let packet = match form & 0x0c {
        // All of the outer packet.
        0x0c => content.to_vec(),
        _ => PacketBuilder::new(host(hosts, 1), own(hosts, 1))
            .udp(0xc000, kind.udp_port())
            .payload(&payload)
            .ip(),
    };
    let outcome = lab.send(LAN, &packet);
    let came = wire::packet::parse(&packet);
    let Ok(came) = came.map(|packet| packet.flow) else { return };
    if came.destination_address() != own(hosts, 1) {
        return;
    }
    for left in opened(lab, &outcome) {
        match left {
            Out::Clear(LAN | LAN2, packet) if is_answer(kind, &packet) => {}
            Out::Clear(LAN | LAN2, packet) | Out::Sealed(_, packet) => {
                assert_rightly_sent(kind, hosts, &packet);
            }
            Out::Clear(..) => {}
        }
    }
}

/// Returns whether a packet holds an answer of the gateway: it is ARP, or discovery.
fn is_answer(kind: Kind, packet: &[u8]) -> bool {
    let Ok(outer) = wire::packet::parse(packet) else { return false };
    let overlay = packet.get(usize::from(outer.upper_offset) + 8..).unwrap_or_default();
    let Ok(header) = wire::overlay::parse(kind, overlay) else { return false };
    let frame = &overlay[header.length..];
    let ethertype = frame.get(12..14);
    let is_advertisement = ethertype == Some(&[0x86, 0xdd]) && frame.get(54) == Some(&136);
    ethertype == Some(&[8, 6]) || is_advertisement
}

/// The parsers by themselves.
fn parse_alone(data: &[u8]) {
    for kind in [Kind::Vxlan, Kind::Geneve] {
        if let Ok(header) = wire::overlay::parse(kind, data) {
            assert!(header.length <= data.len());
        }
    }
    _ = wire::discovery::parse_solicitation(data);
    let mut frame = data.to_vec();
    let is_arp = data.len() >= 42 && data[12..14] == [8, 6];
    let is_request = is_arp && wire::arp::parse_request(&data[14..]).is_some();
    assert_eq!(wire::arp::reply_in_place(&mut frame, LinkAddress::new([2; 6])), is_request);
    if let Ok(packet) = wire::packet::parse(data) {
        let (udp, mut bytes) = (packet.upper_offset.into(), data.to_vec());
        let ends = (packet.flow.destination_address(), packet.flow.source_address());
        wire::outer::forward(&mut bytes, udp, ends);
        assert_eq!(bytes.len(), data.len());
    }
}
