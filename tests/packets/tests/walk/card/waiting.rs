//! Packets for a card that wait for the link address of their next hop: they leave with the card's
//! header, and not without the SA.

use dataplane::{DropReason, HoldKind, Neighbour, Verdict};
use ipsec::SaId;
use offload::Service;
use packets::lab::{BERLIN, Hub, LAN, Laboratory, ROUTER_MAC, Sent, WAN, tags};
use packets::table::forwarded;

use super::emulated::CardOnWire;
use super::serving;
use crate::{FAMILIES, datagram};

const WAITS: Verdict = Verdict::Hold(HoldKind::Neighbour);

/// A laboratory whose routers have no known link address, and a packet of each family that waits.
fn waiting(service: Service) -> (Laboratory, CardOnWire, [Vec<u8>; 2]) {
    let mut hub = Hub::default();
    hub.parts.neighbours.retain(|neighbour| neighbour.port != WAN);
    let (lab, card) = serving(service, hub);
    let mut lab = lab.live();
    let packets = FAMILIES.map(|family| datagram(family, 1, 2).ip());
    let outcome = lab.send_all(LAN, &packets);
    assert_eq!(outcome.verdicts, [WAITS; 2]);
    assert_eq!((outcome.sent, lab.waiting()), (vec![], 2));
    (lab, card, packets)
}

/// Lets the router be known.
fn resolve(lab: &mut Laboratory) -> Vec<Sent> {
    let routers = Hub::default().parts.neighbours.into_iter();
    let routers: Vec<Neighbour> = routers.filter(|neighbour| neighbour.port == WAN).collect();
    lab.change(|sources| {
        let known = std::mem::take(&mut sources.neighbours).into_iter();
        let more = routers.iter().map(|router| ((router.port, router.address), router.mac));
        sources.neighbours = known.chain(more).collect();
    });
    lab.release()
}

#[test]
fn what_waits_leaves_sealed_by_the_card_when_its_next_hop_is_known() {
    for service in [Service::Packet, Service::Crypto] {
        let (mut lab, card, packets) = waiting(service);
        let sent = resolve(&mut lab);
        assert_eq!((sent.len(), lab.waiting()), (2, 0));
        for (sent, packet) in sent.iter().zip(&packets) {
            assert_eq!((sent.port, sent.to), (WAN, Some(ROUTER_MAC)));
            let opened = lab.peer(BERLIN).open(&sent.packet).expect("sealed for berlin");
            assert_eq!(opened.inner, forwarded(packet));
        }
        assert_eq!(card.packets(tags(BERLIN)[0]), 2);
    }
}

#[test]
fn what_waits_does_not_leave_when_its_sa_is_gone_or_is_software_s_now() {
    let changes = [without_sa as fn(&mut Laboratory), by_software];
    for (service, changes) in
        [Service::Packet, Service::Crypto].into_iter().flat_map(|it| changes.map(|to| (it, to)))
    {
        let (mut lab, card, _) = waiting(service);
        changes(&mut lab);
        assert_eq!(resolve(&mut lab), [], "nothing leaves in clear");
        assert_eq!(lab.waiting(), 0);
        assert_eq!(lab.counters().dropped(DropReason::NoSa), 2);
        assert_eq!(card.packets(tags(BERLIN)[0]), 0);
    }
}

/// The SA that seals is gone, and its set has none.
fn without_sa(lab: &mut Laboratory) {
    let mut set = lab.snapshot.set(BERLIN).clone();
    set.outbound.clear();
    lab.change(|sources| {
        sources.sad.put_set(set);
        sources.sad.remove_outbound(SaId(BERLIN.0));
    });
}

/// In the SA's slot is one of software's.
fn by_software(lab: &mut Laboratory) {
    let sa = Hub::default().parts.outbound[BERLIN.0 as usize].clone();
    lab.change(|sources| sources.sad.put_outbound(sa));
}
