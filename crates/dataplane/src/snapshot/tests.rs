//! A snapshot that follows another is what one made at once is.

use ipsec::encapsulation::UdpPorts;
use ipsec::{
    CardSeat, CardWork, Encapsulation, KeyMaterial, ReplayWindow, SequenceCounter, SequenceNumbers,
    Suite, Tunnel,
};
use policy::SaSetId;
use proptest::prelude::*;

use super::*;
use crate::port::L4Checksum;
use crate::routes::Prefix;

const PEERS: usize = 3;

/// A step from one snapshot to the next.
#[derive(Clone, Debug)]
enum Change {
    /// A route comes, goes, or leads elsewhere.
    Route(Prefix, Option<RouteTarget<NextHop>>),
    /// A neighbour comes, goes, or has another link address.
    Neighbour((PortId, Address), Option<[u8; 6]>),
    /// A peer, its set and its SAs come, go, or are elsewhere.
    Peer(usize, Option<Address>),
    /// One of a peer's SAs goes and another comes, maybe in its slot.
    Rekey(usize, u32),
    /// The outbound SA of a peer, or the inbound SA, gets another remote end than the set.
    Move(usize, Address, bool),
    /// A port has another MTU.
    Mtu(u32),
}

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Addresses that peers may have, and their routers.
const ADDRESSES: [&str; 6] =
    ["198.51.100.7", "198.51.100.8", "203.0.113.9", "192.0.2.254", "10.0.0.9", "192.0.2.7"];

fn change() -> impl Strategy<Value = Change> {
    let place = || proptest::sample::select(&ADDRESSES[..]).prop_map(address);
    let prefix = (place(), prop_oneof![Just(0u8), 8u8..=32]).prop_map(|(address, length)| {
        let range = policy::AddressRange::network(address, length);
        Prefix { address: range.first(), length }
    });
    let hop = (0u16..3, prop::option::of(place()))
        .prop_map(|(port, gateway)| RouteTarget::Via(NextHop { port: PortId(port), gateway }));
    let target =
        prop_oneof![1 => Just(RouteTarget::Local), 1 => Just(RouteTarget::Blackhole), 6 => hop];
    let port = (0u16..3).prop_map(PortId);
    let mac = prop::option::of((1u8..3).prop_map(|last| [2, 0, 0, 0, 0, last]));
    let there = prop::option::weighted(0.7, place());
    prop_oneof![
        4 => (prefix, prop::option::weighted(0.7, target)).prop_map(|(p, t)| Change::Route(p, t)),
        3 => ((port, place()), mac).prop_map(|(at, mac)| Change::Neighbour(at, mac)),
        3 => (0..PEERS, there).prop_map(|(peer, at)| Change::Peer(peer, at)),
        1 => (0..PEERS, 0u32..3).prop_map(|(peer, slot)| Change::Rekey(peer, slot)),
        2 => (0..PEERS, place(), any::<bool>()).prop_map(|(p, to, out)| Change::Move(p, to, out)),
        1 => (1400u32..1403).prop_map(Change::Mtu),
    ]
}

fn port(place: u16, mtu: u32) -> PortInfo {
    PortInfo {
        name: format!("port{place}"),
        netdev: NetdevId(place),
        vlan: None,
        side: if place == 0 { Side::Protected } else { Side::Unprotected },
        medium: if place == 2 { Medium::Ip } else { Medium::Ethernet },
        mac: [2, 0, 0, 0, 1, place as u8],
        mtu,
        addresses: Vec::new(),
        allow_host: Vec::new(),
        l4_checksum: L4Checksum::Pass,
    }
}

fn ports(mtu: u32) -> PortInfos {
    [port(0, 1500), port(1, mtu), port(2, 1500)].into_iter().collect()
}

fn key(seed: u8) -> KeyMaterial {
    let suite = Suite::Aes128Gcm;
    KeyMaterial::new(suite, &vec![seed; suite.material_bytes()]).unwrap()
}

/// A peer's set and SAs, at an address.
fn put_peer(sad: &mut Sad, peer: usize, remote: Address, id: SaId, spi: u32) {
    let (set, short) = (SaSetId(100 + peer as u32), SequenceNumbers::Short);
    let tunnel = Tunnel { local: [192, 0, 2, 1].into(), remote: remote.into() };
    let counter = Arc::new(SequenceCounter::new(short));
    // Some SAs are in UDP, and some peers want keepalives.
    let udp = (!spi.is_multiple_of(3)).then_some(UdpPorts { local: 4500, remote: 4500 });
    let carried = Encapsulation { udp, ..tunnel.into() };
    let outbound = OutboundSa::new(id, Spi::new(spi).unwrap(), set, &key(1), carried, counter);
    // Some peers' SAs are in a card.
    let seat = (peer % 2 == 1).then_some(CardSeat {
        netdev: 1,
        tag: u64::from(spi),
        work: CardWork::Packets,
        carrier: ipsec::SeatCarrier::Worker,
    });
    sad.put_outbound(Arc::new(outbound.unwrap().seated(seat)));
    sad.put_set(SaSet {
        id: set,
        peer: format!("peer{peer}"),
        tunnel,
        outbound: vec![id],
        acquires: false,
        mss_clamp: false,
        may_move: false,
        moves_by_ike: false,
        keepalive_s: (peer != 1).then_some(20),
        path_mtu: None,
        outer: None,
    });
    let window = Arc::new(ReplayWindow::new(64, short).unwrap());
    let inbound = InboundSa::new(id, Spi::new(spi + 100).unwrap(), set, &key(2), tunnel, window);
    sad.put_inbound(Arc::new(inbound.unwrap().seated(seat))).unwrap();
}

/// An SA like another, with an SPI of its own.
fn put_inbound_as(sa: &InboundSa, id: SaId, spi: u32) -> Arc<InboundSa> {
    let (spi, window) = (Spi::new(spi).unwrap(), sa.window.clone());
    Arc::new(InboundSa::new(id, spi, sa.set, &key(2), sa.encapsulation, window).unwrap())
}

fn remove_sas(sad: &mut Sad, peer: usize) {
    let set = SaSetId(100 + peer as u32);
    let outbound: Vec<SaId> = sad.outbound().filter(|sa| sa.set == set).map(|sa| sa.id).collect();
    let inbound: Vec<SaId> = sad.inbound().filter(|sa| sa.set == set).map(|sa| sa.id).collect();
    outbound.into_iter().for_each(|sa| sad.remove_outbound(sa));
    inbound.into_iter().for_each(|sa| sad.remove_inbound(sa));
}

/// Moves the outbound or the inbound SA of a peer, and leaves the set where it is.
fn move_sa(sad: &mut Sad, peer: usize, to: Address, seals: bool) {
    let set = SaSetId(100 + peer as u32);
    let elsewhere = |way: Encapsulation| {
        let tunnel = Tunnel { remote: to.into(), ..way.tunnel };
        Encapsulation { tunnel, ..way }
    };
    if seals {
        let Some(sa) = sad.outbound().find(|sa| sa.set == set).cloned() else { return };
        sad.put_outbound(Arc::new(sa.carried(elsewhere(sa.encapsulation)).unwrap()));
    } else {
        let Some(sa) = sad.inbound().find(|sa| sa.set == set).cloned() else { return };
        sad.put_inbound(Arc::new(sa.carried(elsewhere(sa.encapsulation)).unwrap())).unwrap();
    }
}

fn apply(sources: &mut Sources, change: &Change) {
    let sad = &mut sources.sad;
    match change {
        Change::Route(prefix, Some(target)) => _ = sources.routes.insert(*prefix, *target),
        Change::Route(prefix, None) => _ = sources.routes.remove(prefix),
        Change::Neighbour(at, Some(mac)) => _ = sources.neighbours.insert(*at, *mac),
        Change::Neighbour(at, None) => _ = sources.neighbours.remove(at),
        Change::Move(peer, to, seals) => move_sa(sad, *peer, *to, *seals),
        Change::Mtu(mtu) => sources.ports = ports(*mtu),
        Change::Peer(peer, at) => {
            remove_sas(sad, *peer);
            match at {
                Some(at) => {
                    let (id, spi) = (sad.vacant_outbound(), 0x1000 + *peer as u32);
                    put_peer(sad, *peer, *at, id, spi);
                }
                None => sad.remove_set(SaSetId(100 + *peer as u32)),
            }
        }
        Change::Rekey(peer, other) => {
            let place = sad.places().get(SaSetId(100 + *peer as u32));
            let Some(set) = place.and_then(|place| sad.set(place)).cloned() else { return };
            remove_sas(sad, *peer);
            let (id, spi) = (sad.vacant_outbound(), 0x2000 + other * 10 + *peer as u32);
            put_peer(sad, *peer, set.tunnel.remote.into(), id, spi);
        }
    }
}

/// Adjacency and sizes of the only SA of a set that seals: as its remote end is looked up.
fn way_of(snapshot: &Snapshot, sa: SaId) -> (Option<Adjacency>, SetSizes) {
    let sa = snapshot.outbound_sa(sa);
    let remote = sa.tunnel().remote.into();
    let hop = match snapshot.routes().lookup(remote) {
        Some(RouteTarget::Via(hop)) => Some(hop),
        _ => None,
    };
    let outer = hop.map_or(0, |hop| snapshot.port(snapshot.next_hop(hop).port).mtu);
    let whole = sa.largest_inner(outer as usize) as u32;
    let adjacency = hop.map(|hop| snapshot.adjacency(hop, remote));
    (adjacency, SetSizes { outer, whole, fragments: sa.packet_card().is_none() })
}

/// Everything that the walk can ask. Next hops are told as they are: each snapshot numbers them.
fn answers(snapshot: &Snapshot, sources: &Sources) -> Vec<String> {
    let mut answers = Vec::new();
    let destinations = ADDRESSES.map(address);
    let edges = sources.routes.keys().flat_map(|prefix| {
        let last = Address { value: prefix.last(), ..prefix.address };
        [prefix.address, last]
    });
    for to in destinations.into_iter().chain(edges) {
        let target = snapshot.routes().lookup(to);
        let told = target.map(|target| {
            target.map(|hop| {
                (*snapshot.next_hop(hop), snapshot.adjacency(hop, to), snapshot.side_of(hop))
            })
        });
        answers.push(format!("{to}: {told:?}, next {}", snapshot.next_hop_to(to)));
        let on = [0, 1, 2].map(|port| snapshot.link_address(PortId(port), to));
        answers.push(format!("{to}: {on:?}, ours {}", snapshot.routes().is_ours(to)));
    }
    for (place, set) in snapshot.sets() {
        let may = destinations.map(|from| snapshot.may_come_by(place, from));
        let (adjacency, mtu) = (snapshot.set_adjacency(place), snapshot.set_sizes(place, 0));
        answers.push(format!("{place:?} {set:?}: {adjacency:?} {mtu:?} {may:?}"));
        for sa in &set.outbound {
            let (adjacency, sizes) = way_of(snapshot, *sa);
            assert_eq!(snapshot.sealing_adjacency(place, *sa), adjacency);
            assert_eq!(snapshot.sealing_sizes(place, *sa, 0), sizes);
            answers.push(format!("{sa:?}: {adjacency:?} {sizes:?}"));
        }
        for from in destinations {
            let has = |of: ipsec::Tunnel| Address::from(of.remote) == from;
            let of_sas = snapshot.inbound().any(|sa| has(*sa.tunnel()));
            assert_eq!(snapshot.opens_from(from, |_| true), of_sas);
            let here = snapshot.outbound().any(|sa| sa.set == set.id && has(*sa.tunnel()));
            let is_listed = snapshot.sets_towards(from).any(|of| of.id == set.id);
            assert!(is_listed || !(here || has(set.tunnel)), "{place:?} {from}");
        }
    }
    for sa in snapshot.inbound() {
        let found = snapshot.inbound_by_spi(sa.spi).map(|sa| sa.id);
        let set = snapshot.sad().set_of(sa.id);
        answers.push(format!("{:?} {} {found:?} {set:?}", sa.id, sa.spi));
    }
    for spi in (0x1064..0x1068).chain(0x2064..0x2090) {
        let found = snapshot.inbound_by_spi(Spi::new(spi).unwrap()).map(|sa| sa.id);
        answers.push(format!("{spi}: {found:?}"));
    }
    for tag in (0x1000..0x1004).chain(0x2000..0x202c) {
        let found = |netdev| {
            let seat = CardSeat::of_worker(netdev, tag, CardWork::Packets);
            snapshot.sad().opened_in_card(seat)
        };
        let sealed = |netdev| {
            let seat = CardSeat::of_worker(netdev, tag, CardWork::Packets);
            let is_sealed = snapshot.sad().is_sealed_in_card(seat);
            assert_eq!(is_sealed, snapshot.outbound().any(|sa| sa.card == Some(seat)));
            is_sealed
        };
        let said = [found(1), found(2)];
        answers.push(format!("{tag}: {said:?} {:?}", [sealed(1), sealed(2)]));
    }
    answers.push(format!("{}", snapshot.sad().has_openers_in_cards()));
    let wants = |set: &SaSet| snapshot.keepalive_settings(set).is_some();
    let wanting = snapshot.sets().filter(|(_, set)| wants(set)).map(|(place, _)| place);
    let listed: Vec<SetIndex> = snapshot.keepalive_sets().keys().copied().collect();
    assert_eq!(listed, wanting.collect::<Vec<_>>());
    let sealing: Vec<_> = snapshot.outbound().map(|sa| (sa.id, sa.spi, sa.set)).collect();
    answers.push(format!("{sealing:?} {:?}", snapshot.port(PortId(1)).mtu));
    answers
}

proptest! {
    #[test]
    fn a_snapshot_that_follows_another_is_what_one_made_at_once_is(
        steps in prop::collection::vec(prop::collection::vec(change(), 0..4), 1..20),
    ) {
        let (ports, host) = (ports(1400), Some(PortId(2)));
        let mut sources = Sources { ports, host, ..Sources::default() };
        let mut last = Snapshot::after(sources.clone(), None).unwrap();
        for changes in steps {
            let before = sources.clone();
            changes.iter().for_each(|change| apply(&mut sources, change));
            let said_before = answers(&last, &before);
            let next = Snapshot::after(sources.clone(), Some(&last)).unwrap();
            let at_once = Snapshot::after(sources.clone(), None).unwrap();
            prop_assert_eq!(answers(&next, &sources), answers(&at_once, &sources));
            prop_assert_eq!(answers(&last, &before), said_before, "the one before stays as it is");
            let same = sources.routes == before.routes && sources.ports == before.ports;
            let raised = next.route_generation() != last.route_generation();
            prop_assert_eq!(raised, !same, "{:?}", changes);
            prop_assert!(next.number() != last.number() && next.number() != at_once.number());
            for (place, before) in last.keepalive_sets() {
                if let Some(now) = next.keepalive_sets().get(place)
                    && next.set(*place).id == last.set(*place).id
                {
                    prop_assert!(Arc::ptr_eq(&now.silence, &before.silence), "{:?}", changes);
                }
            }
            last = next;
        }
        // When nothing uses them any more, next hops have no numbers either.
        sources.routes = Routes::new();
        (0..PEERS).for_each(|peer| apply(&mut sources, &Change::Peer(peer, None)));
        let next = Snapshot::after(sources, Some(&last)).unwrap();
        prop_assert!(next.routing.is_idle());
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let sources = Sources { ports: ports(1400), ..Sources::default() };
    let refused = |sources: Sources| Snapshot::after(sources, None).err().unwrap();
    let nowhere = NextHop { port: PortId(3), gateway: None };
    let prefix = Prefix { address: address("10.0.0.0"), length: 8 };
    let mut other = sources.clone();
    other.routes.insert(prefix, RouteTarget::Via(nowhere));
    assert_eq!(refused(other), SnapshotError::Dangling("a next hop"));
    let mut other = sources.clone();
    other.neighbours.insert((PortId(3), address("10.0.0.9")), [2; 6]);
    assert_eq!(refused(other), SnapshotError::Dangling("a neighbour"));
    let other = Sources { host: Some(PortId(3)), ..sources.clone() };
    assert_eq!(refused(other), SnapshotError::Dangling("the host port"));
    let mut other = sources.clone();
    put_peer(&mut other.sad, 0, address("10.0.0.9"), SaId(0), 0x1000);
    other.sad.remove_outbound(SaId(0));
    assert_eq!(refused(other.clone()), SnapshotError::Dangling("an SA set"));
    put_peer(&mut other.sad, 0, address("10.0.0.9"), SaId(0), 0x1000);
    let whole = Snapshot::after(other.clone(), None).unwrap();
    other.sad.remove_outbound(SaId(0));
    let error = Snapshot::after(other, Some(&whole)).err().unwrap();
    assert_eq!(error, SnapshotError::Dangling("an SA set"), "nor when it follows another");
    let mut sad = sources.sad;
    put_peer(&mut sad, 0, address("10.0.0.9"), SaId(0), 0x1000);
    let sa = sad.inbound_sa(SaId(0)).clone();
    let twice = sad.put_inbound(Arc::new(sa.at(SaId(1), sa.set)));
    assert_eq!(twice, Err(SnapshotError::SameSpi(sa.spi)));
    let other = put_inbound_as(&sa, SaId(0), 0x3000);
    assert_eq!(sad.put_inbound(other), Err(SnapshotError::Taken(SaId(0))));
    let seat = CardSeat::of_worker(1, 5, CardWork::Packets);
    sad.put_inbound(Arc::new(sa.at(sa.id, sa.set).seated(Some(seat)))).unwrap();
    let other = put_inbound_as(&sa, SaId(1), 0x3000).at(SaId(1), sa.set).seated(Some(seat));
    assert_eq!(sad.put_inbound(Arc::new(other)), Err(SnapshotError::SameSeat(seat)));
    let stray = sad.put_inbound(Arc::new(sa.at(SaId(0), SaSetId(7))));
    assert_eq!(stray, Err(policy::TablesError::UnknownSet(SaSetId(7)).into()));
}

/// Counters go by slots: only what left its slot counts no more.
#[test]
fn sas_are_gone_when_their_slots_are_vacant_or_others() {
    let mut before = Sad::default();
    for peer in 0..3 {
        put_peer(&mut before, peer, address("10.0.0.9"), SaId(peer as u32), 0x1000 + peer as u32);
    }
    let mut after = before.clone();
    let gone = |after: &Sad| -> (Vec<SaId>, Vec<SaId>) {
        let (outbound, inbound) = after.gone_since(&before);
        (outbound.iter().map(|sa| sa.id).collect(), inbound.iter().map(|sa| sa.id).collect())
    };
    assert_eq!(gone(&after), (vec![], vec![]));
    // Carried elsewhere, with the same numbers.
    put_peer(&mut after, 0, address("10.0.0.10"), SaId(0), 0x1000);
    assert_eq!(gone(&after), (vec![], vec![]));
    after.remove_outbound(SaId(1));
    remove_sas(&mut after, 2);
    put_peer(&mut after, 2, address("10.0.0.9"), SaId(2), 0x2002);
    assert_eq!(gone(&after), (vec![SaId(1), SaId(2)], vec![SaId(2)]));
}

/// Packets that are under way name ports and netdevs by their slots.
#[test]
fn a_slot_goes_to_another_port_only_by_way_of_a_vacancy() {
    let sources = Sources { ports: ports(1400), ..Sources::default() };
    let first = Snapshot::after(sources.clone(), None).unwrap();
    let mut other = sources.clone();
    other.ports.set(1, Some(PortInfo { name: "other".into(), ..port(1, 1400) }));
    let refused = Snapshot::after(other.clone(), Some(&first)).err();
    assert_eq!(refused, Some(SnapshotError::OtherPort(PortId(1))));
    let mut vacant = sources;
    vacant.ports.set(1, None);
    let vacant = Snapshot::after(vacant, Some(&first)).unwrap();
    assert!(vacant.ports_gone_since(&first).eq([PortId(1)]));
    assert_eq!((vacant.port_slots(), vacant.port_named("port1")), (3, None));
    let next = Snapshot::after(other, Some(&vacant)).unwrap();
    assert!(next.ports_gone_since(&vacant).next().is_none());
    // The netdev came anew; those beside it did not.
    let since = |snapshot: &Snapshot| [0, 1, 2].map(|slot| snapshot.netdev_since(NetdevId(slot)));
    let ([a, b, c], [d, e, f]) = (since(&first), since(&next));
    assert_eq!((a, c), (d, f));
    assert!(since(&vacant)[1].is_none() && b < e);
}
