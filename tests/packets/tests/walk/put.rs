//! SAs that come and go in a running gateway disturb nothing else.

use std::sync::Arc;

use dataplane::Verdict::{Hold, Protect};
use dataplane::{DropReason, HoldKind, SaSet, Sad};
use ipsec::{InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Spi};
use packets::lab::{BERLIN, CARLA, Hub, LAN, ROUTER_MAC, WAN, agreements};
use packets::peer::material;
use wire::{Address, Family};

use crate::datagram;

/// An SPI that no agreement names.
const NEXT: u32 = 0x3000;

fn spi(value: u32) -> Spi {
    Spi::new(value).expect("an SPI")
}

/// Puts an SA that seals for berlin in place of the one that does.
fn replace_outbound(sad: &mut Sad, key: u8) -> SaId {
    let agreement = agreements()[BERLIN.0 as usize];
    let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
    let (id, key) = (sad.vacant_outbound(), material(agreement.suite, key));
    let (set, way) = (agreement.set, agreement.encapsulation());
    let sa = OutboundSa::new(id, spi(NEXT), set, &key, way, counter).expect("an SA");
    sad.put_outbound(Arc::new(sa));
    let mut changed = SaSet::clone(sad.set(BERLIN).expect("berlin's set"));
    let old = std::mem::replace(&mut changed.outbound, vec![id]);
    sad.put_set(changed);
    old.into_iter().for_each(|old| sad.remove_outbound(old));
    id
}

/// Puts an SA beside the one that opens for berlin.
fn add_inbound(sad: &mut Sad, key: u8) -> SaId {
    let agreement = agreements()[BERLIN.0 as usize];
    let window = Arc::new(ReplayWindow::new(64, SequenceNumbers::Short).expect("a window"));
    let (id, key) = (sad.vacant_inbound(), material(agreement.suite, key));
    let (set, way) = (agreement.set, agreement.encapsulation());
    let sa = InboundSa::new(id, spi(NEXT), set, &key, way, window).expect("an SA");
    sad.put_inbound(Arc::new(sa)).expect("its SPI is free");
    id
}

/// SPI of an ESP packet over IPv4.
fn spi_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[20..24].try_into().expect("a packet"))
}

/// FC-40: the cache remembers on, what waits goes on waiting and leaves as it was sealed, and every
/// other SA goes on where it was.
#[test]
fn a_replaced_sa_costs_no_cache_entry_no_waiting_packet_and_no_count() {
    let mut hub = Hub { frames: 2048, ..Hub::default() };
    hub.parts.neighbours.retain(|neighbour| neighbour.port != WAN);
    let mut lab = hub.laboratory().live().remembering(1024);
    lab.release();
    let to_carla = datagram(Family::V4, 1, 3).ip();
    let to_berlin = datagram(Family::V4, 1, 2).ip();
    let outcome = lab.send_all(LAN, &[to_berlin.clone(), to_carla, to_berlin.clone()]);
    assert_eq!(outcome.verdicts, [Hold(HoldKind::Neighbour); 3]);
    let cached = lab.cache().entries(0, usize::MAX);
    assert_eq!(cached.0.len(), 2);
    let searches = (lab.counters().full_lookups, lab.counters().cache.misses);
    let (generation, routes) = (lab.snapshot.generation(), lab.snapshot.route_generation());
    let old = lab.snapshot.set(BERLIN).outbound[0];

    let gone = lab.change(|sources| {
        replace_outbound(&mut sources.sad, 90);
        add_inbound(&mut sources.sad, 91);
    });
    lab.release();
    let [(slot, counted)] = gone.outbound[..] else { panic!("{gone:?}") };
    assert_eq!((slot, counted.packets, gone.inbound.len()), (old, 2, 0));
    assert_eq!(lab.counters().sealed[CARLA.0 as usize].packets, 1);
    assert_eq!(lab.waiting(), 3);
    assert_eq!(lab.cache().entries(0, usize::MAX), cached);
    assert_eq!(lab.snapshot.generation(), generation);
    assert_eq!(lab.snapshot.route_generation(), routes);

    lab.change(|sources| {
        let router: std::net::IpAddr = "192.0.2.254".parse().expect("an address");
        sources.neighbours.insert((WAN, Address::from(router)), ROUTER_MAC);
    });
    let spis: Vec<u32> = lab.release().iter().map(|sent| spi_of(&sent.packet)).collect();
    let [berlin, carla, _] = agreements().map(|agreement| agreement.spi_from_hub);
    assert_eq!(spis, [berlin, carla, berlin]);
    let outcome = lab.send(LAN, &to_berlin);
    assert_eq!((outcome.verdicts[0], spi_of(&outcome.sent[0].packet)), (Protect(BERLIN), NEXT));
    let now = (lab.counters().full_lookups, lab.counters().cache.misses);
    assert_eq!(now, searches, "nothing was searched again");
}

/// Make before break: both inbound SAs open; deleted, one is unknown, and the other opens on.
#[test]
fn an_old_inbound_sa_opens_beside_the_new_one_until_it_is_taken_out() {
    let mut lab = Hub::default().laboratory();
    let inner = datagram(Family::V4, 2, 1).ip();
    let sealed: Vec<Vec<u8>> = (0..3).map(|_| lab.peer(BERLIN).seal(&inner)).collect();
    assert_eq!(lab.send(WAN, &sealed[0]).sent.len(), 1);
    let mut added = None;
    lab.change(|sources| added = Some(add_inbound(&mut sources.sad, 92)));
    assert_eq!(lab.send(WAN, &sealed[1]).sent.len(), 1);
    assert_eq!(lab.send(WAN, &sealed[0]).sent.len(), 0, "its window goes on");
    assert_eq!(lab.counters().dropped(DropReason::Replayed), 1);
    let new = added.expect("it was added");
    let gone = lab.change(|sources| sources.sad.remove_inbound(SaId(BERLIN.0)));
    let [(slot, counted)] = gone.inbound[..] else { panic!("{gone:?}") };
    assert_eq!((slot, counted.packets), (SaId(BERLIN.0), 2));
    lab.send(WAN, &sealed[2]);
    assert_eq!(lab.counters().dropped(DropReason::UnknownSpi), 1);
    assert_eq!(lab.snapshot.inbound_by_spi(spi(NEXT)).map(|sa| sa.id), Some(new));
}
