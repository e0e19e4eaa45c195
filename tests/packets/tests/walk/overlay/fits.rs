//! Tenants' packets that do not fit the way to the host, and fragments of tenants.

use super::*;
use crate::path_mtu::whole;

/// A tenant whose packet does not fit the way to the host is told so, inside its network.
#[test]
fn tenants_are_told_what_fits() {
    for outer in FAMILIES {
        for inner in FAMILIES {
            let overhead = if outer == Family::V4 { 50 } else { 70 };
            let most = LAN2_MTU as usize - overhead;
            let header = if inner == Family::V4 { 28 } else { 48 };
            let sized = |bytes: usize| {
                let packet = PacketBuilder::new(tenant(inner, 1), tenant(inner, 2)).udp(1, 2);
                let packet = packet.dont_fragment().payload_of(bytes - header);
                let frame = packet.frame(mac(2), mac(1), None);
                OverlayPacket::new(outer, Kind::Vxlan, PLAIN, frame)
            };
            let mut hub = Hub::default();
            having(outer, Kind::Vxlan)(&mut hub);
            let mut lab: Laboratory = hub.laboratory();
            let fits = lab.send(LAN, &sized(most).ip());
            assert_eq!(fits.verdicts, [Verdict::Forward(LAN2)]);
            let told = lab.send(LAN, &sized(most + 1).ip());
            let too_big = Verdict::Drop(DropReason::TooBig);
            assert_eq!(told.verdicts, [too_big, Verdict::Forward(LAN)], "{outer:?} {inner:?}");
            let sent = &told.sent[0];
            assert_eq!(sent.to, Some(HOST_MAC));
            let packet = wire::packet::parse(&sent.packet).unwrap();
            assert_eq!(packet.flow.source_address(), own(outer, 1));
            assert_eq!(packet.flow.destination_address(), host(outer, 1));
            let overlay = &sent.packet[usize::from(packet.upper_offset) + 8..];
            let parsed = wire::overlay::parse(Kind::Vxlan, overlay).unwrap();
            assert_eq!(parsed.vni, vni(PLAIN));
            let frame = &overlay[parsed.length..];
            assert_eq!((&frame[..6], &frame[6..12]), (&mac(1)[..], &mac(2)[..]));
            let message = &frame[14..];
            let error = wire::packet::parse(message).unwrap();
            assert_eq!(error.flow.source_address(), tenant(inner, 2));
            assert_eq!(error.flow.destination_address(), tenant(inner, 1));
            let told = wire::icmp::too_big_message(message, &error).unwrap();
            assert_eq!(told.mtu as usize, most);
            assert_eq!(told.quoted.flow.destination_address(), tenant(inner, 2));
        }
    }
}

/// RFC 2473 §7.1, RFC 4213 §3.2: on a narrow path to the host, the sealed packet around a tenant's
/// IPv6 packet of up to 1280 bytes leaves in fragments. IPv4 obeys the path.
#[test]
fn tenants_ipv6_of_1280_bytes_crosses_a_narrow_path_in_fragments_of_the_sealed_packet() {
    for (outer, kind) in FAMILIES.into_iter().flat_map(|f| [(f, Kind::Vxlan), (f, Kind::Geneve)]) {
        for mtu in [1380, 1310, 576] {
            let mut hub = Hub::default();
            having(outer, kind)(&mut hub);
            let mut lab = hub.laboratory();
            lab.snapshot.set(BERLIN).path_mtu.as_ref().unwrap().lower(mtu, lab.now_ns);
            let sized = |inner: Family, bytes: usize| {
                let header = if inner == Family::V4 { 28 } else { 48 };
                let packet = PacketBuilder::new(tenant(inner, 1), tenant(inner, 4)).udp(1, 2);
                let packet = packet.dont_fragment().payload_of(bytes - header);
                OverlayPacket::new(outer, kind, PLAIN, packet.frame(mac(4), mac(1), None))
            };
            let sent = sized(Family::V6, 1280);
            let outcome = lab.send(LAN, &sent.ip());
            let pieces: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
            assert!(pieces.len() > 1, "{outer:?} {kind:?} {mtu}: {:?}", outcome.verdicts);
            assert!(pieces.iter().all(|piece| piece.len() <= mtu as usize));
            let opened = lab.peer(BERLIN).open(&whole(&pieces)).expect("opens").inner;
            assert_rightly_sent(kind, outer, &opened);
            assert!(opened.ends_with(&sent.frame), "the frame is the tenant's");
            for (inner, bytes) in [(Family::V6, 1281), (Family::V4, 1280)] {
                let outcome = lab.send(LAN, &sized(inner, bytes).ip());
                assert_eq!(outcome.verdicts[0], Verdict::Drop(DropReason::TooBig), "{inner:?}");
                let message = outcome.sent.last().expect("the tenant is told").packet.clone();
                let packet = wire::packet::parse(&message).unwrap();
                let overlay = &message[usize::from(packet.upper_offset) + 8..];
                let behind = wire::overlay::parse(kind, overlay).unwrap().length + 14;
                let error = wire::packet::parse(&overlay[behind..]).unwrap();
                let told = wire::icmp::too_big_message(&overlay[behind..], &error).unwrap();
                match inner {
                    Family::V6 => assert_eq!(told.mtu, 1280),
                    Family::V4 => assert!(told.mtu < u32::from(mtu) - 100, "{}", told.mtu),
                }
            }
        }
    }
}

/// Without a frame for the message nobody is told, and that is counted.
#[test]
fn tenants_are_not_told_without_a_frame_and_that_is_counted() {
    for outer in FAMILIES {
        let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, 2)).udp(1, 2);
        let packet = packet.dont_fragment().payload_of(LAN2_MTU as usize);
        let frame = packet.frame(mac(2), mac(1), None);
        let sent = OverlayPacket::new(outer, Kind::Vxlan, PLAIN, frame).ip();
        for (frames, missing) in [(1, 1), (2, 0)] {
            let mut hub = Hub { frames, ..Hub::default() };
            having(outer, Kind::Vxlan)(&mut hub);
            let mut lab: Laboratory = hub.laboratory();
            let told = lab.send(LAN, &sent);
            assert_eq!(told.verdicts[0], Verdict::Drop(DropReason::TooBig));
            let (made, counters) = (told.sent.len() as u64, lab.counters());
            assert_eq!((counters.icmp_no_frame, made), (missing, 1 - missing), "{outer:?}");
            assert_eq!(counters.drops.iter().sum::<u64>(), 1);
            let ledger = counters.port(LAN).ledger;
            assert_eq!((ledger.received, ledger.made, ledger.imbalance()), (1, made, 0));
        }
    }
}

/// A packet that a tenant lets routers fragment is cut inside its network; each fragment has an
/// overlay packet of its own.
#[test]
fn tenants_packets_are_fragmented_inside() {
    for outer in FAMILIES {
        for kind in [Kind::Vxlan, Kind::Geneve] {
            for (has_checksum, to, port) in [(true, 2, LAN2), (false, 2, LAN2), (true, 4, WAN)] {
                let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, to));
                let packet = packet.identification(77).udp(1, 2).payload_of(1410).ip();
                let frame = |packet: &[u8]| [&mac(to)[..], &mac(1), &[8, 0], packet].concat();
                let sent = OverlayPacket {
                    has_checksum: has_checksum || outer == Family::V6,
                    ..OverlayPacket::new(outer, kind, PLAIN, frame(&packet))
                };
                let mut hub = Hub::default();
                having(outer, kind)(&mut hub);
                let mut lab = hub.laboratory();
                let outcome = lab.send(LAN, &sent.ip());
                assert_eq!(outcome.verdicts.first(), Some(&Verdict::Consumed), "{outer:?} {to}");
                let mut data = Vec::new();
                let left = packets::table::opened(&mut lab, &outcome);
                assert_eq!(left.len(), 2, "{outer:?} {to}");
                for left in left {
                    let (Out::Clear(_, bytes) | Out::Sealed(_, bytes)) = &left;
                    let whole = wire::packet::parse(bytes).unwrap();
                    assert!(whole.dont_fragment && whole.fragment == wire::Fragment::Whole);
                    let sum = wire::UpperChecksum::find(bytes, &whole).unwrap();
                    assert!(sum.is_good(bytes) || sum.is_absent() && !sent.has_checksum);
                    assert_eq!(whole.flow.destination_address(), host_of(outer, to).unwrap());
                    assert_eq!(whole.hop_limit, 63);
                    let overlay = &bytes[usize::from(whole.upper_offset) + 8..];
                    assert_eq!(overlay[..8], sent.header);
                    let (link, inner) = overlay[8..].split_at(14);
                    assert_eq!(link, &frame(&[])[..]);
                    let part = wire::packet::parse(inner).unwrap();
                    assert_eq!(part.length as usize, inner.len());
                    let header = part.fragment_header().unwrap();
                    let place = (header.identification, usize::from(header.offset));
                    assert_eq!(place, (77, data.len()));
                    assert_eq!(header.more, data.is_empty());
                    data.extend_from_slice(&inner[20..]);
                }
                assert_eq!(data, packet[20..]);
                assert!(port == WAN || outcome.sent.iter().all(|sent| sent.port == port));
            }
        }
    }
}

/// The fragments of a segment of TCP with SYN from tenant 1 to a port of tenant 3, each in an
/// overlay packet: the first one, and the later one, which shows no port.
fn segments((outer, kind, network): (Family, Kind, u32), inner: Family, port: u16) -> [Vec<u8>; 2] {
    let ends = || PacketBuilder::new(tenant(inner, 1), tenant(inner, 3)).identification(77);
    let mut tcp = vec![0; 24];
    tcp[..4].copy_from_slice(&[0x13, 0x88, (port >> 8) as u8, port as u8]);
    (tcp[12], tcp[13]) = (0x50, tcp_flags::SYN);
    let first = ends().protocol(TCP).payload(&tcp).fragment(0, true);
    let later = ends().protocol(TCP).payload_of(9).fragment(3, false);
    [first, later].map(|packet| {
        OverlayPacket::new(outer, kind, network, packet.frame(mac(3), mac(1), None)).ip()
    })
}

/// A later fragment, where groups name ports, is judged by its datagram's first one, and waits for
/// it; in each network by itself.
#[test]
fn tenants_later_fragments_follow_their_first() {
    let goes = Verdict::Forward(LAN);
    let (waits, refused) =
        (Verdict::Hold(HoldKind::Fragment), Verdict::Drop(DropReason::GroupNoMatch));
    for outer in FAMILIES {
        for (kind, inner) in [(Kind::Vxlan, Family::V4), (Kind::Geneve, Family::V6)] {
            let lab = || {
                let mut hub = Hub::default();
                web_only(outer, kind)(&mut hub);
                hub.laboratory()
            };
            let [first, later] = segments((outer, kind, WEB), inner, 80);
            let mut in_order = lab();
            assert_eq!(in_order.send_all(LAN, &[&first, &later]).verdicts, [goes; 2]);
            let mut together = lab();
            assert_eq!(together.send_all(LAN, &[&later, &first]).verdicts, [waits, goes, goes]);
            let mut waited = lab();
            assert_eq!(waited.send(LAN, &later).verdicts, [waits]);
            let released = waited.send(LAN, &first);
            assert_eq!(released.verdicts, [goes; 2]);
            let payload = |sent: &packets::lab::Sent| sent.packet.len();
            let lengths: Vec<usize> = released.sent.iter().map(payload).collect();
            assert_eq!(lengths, [first.len(), later.len()], "the first one first");
            assert_eq!(waited.send(LAN, &later).verdicts, [waits], "all of it had come");

            let [other, its_later] = segments((outer, kind, WEB), inner, 22);
            assert_eq!(lab().send_all(LAN, &[&other, &its_later]).verdicts, [refused; 2]);
            // A network without groups asks for no port.
            let [_, plain] = segments((outer, kind, PLAIN), inner, 80);
            assert_eq!(lab().send(LAN, &plain).verdicts, [goes]);
            let mut apart = lab();
            let [elsewhere, _] = segments((outer, kind, PLAIN), inner, 80);
            assert_eq!(apart.send_all(LAN, &[&elsewhere, &later]).verdicts, [goes, waits]);

            // A stranger's fragment spoils no datagram, and waits for none.
            let mut spoiled = first.clone();
            let at = spoiled.windows(6).position(|bytes| bytes == mac(1)).unwrap();
            spoiled[at..at + 6].copy_from_slice(&mac(2));
            let udp = usize::from(wire::packet::parse(&spoiled).unwrap().upper_offset);
            spoiled[udp + 6..udp + 8].fill(0);
            let no_source = Verdict::Drop(DropReason::OverlaySource);
            let mut honest = lab();
            let verdicts = honest.send_all(LAN, &[&spoiled, &first, &later]).verdicts;
            assert_eq!(verdicts, [no_source, goes, goes]);

            let mut late = lab();
            late.send(LAN, &later);
            late.now_ns += dataplane::reassembly::PATIENCE_NS + 1;
            late.send(LAN, &plain);
            assert_eq!(late.counters().dropped(DropReason::FragmentTimeout), 1);
        }
    }
}
