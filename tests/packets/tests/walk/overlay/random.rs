//! Random senders: no packet reaches another tenant, and both walks agree about each.

use endpoints::{Change, Endpoint, EndpointKey};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use wire::flow::protocol;

use super::*;

/// A packet of a random sender, to be changed at random.
#[derive(Clone, Debug)]
struct Sending {
    outer: Family,
    /// The host of a tenant, or a stranger.
    host: u8,
    network: u32,
    inner: Family,
    ends: (u8, u8),
    /// The tenant whose link address is the frame's.
    mac: u8,
    tcp: Option<(u16, u8)>,
    has_checksum: bool,
    flips: Vec<(prop::sample::Index, u8)>,
}

fn a_family() -> impl Strategy<Value = Family> {
    prop::sample::select(&FAMILIES[..])
}

fn a_sending() -> impl Strategy<Value = Sending> {
    let number = || prop_oneof![8 => 1u8..=5, 1 => Just(77)];
    let network = prop_oneof![4 => Just(PLAIN), 4 => Just(WEB), 1 => Just(BY_HOST), 1 => 0u32..12];
    let flips = prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4);
    let flips = prop_oneof![3 => Just(vec![]), 1 => flips];
    let flags = prop::sample::select(&[tcp_flags::SYN, tcp_flags::ACK, 0x12, 0x04][..]);
    let port = prop::sample::select(&[22u16, 80, 5000][..]);
    let tcp = prop_oneof![1 => Just(None), 2 => (port, flags).prop_map(Some)];
    let who = (a_family(), number(), network, a_family(), (number(), number()), number());
    (who, tcp, any::<bool>(), flips, any::<bool>()).prop_map(
        |((outer, host, network, inner, ends, mac), tcp, has_checksum, flips, is_honest)| {
            let (host, mac) = if is_honest { (ends.0, ends.0) } else { (host, mac) };
            Sending { outer, host, network, inner, ends, mac, tcp, has_checksum, flips }
        },
    )
}

impl Sending {
    fn bytes(&self) -> Vec<u8> {
        self.bytes_to(Kind::Vxlan, own(self.outer, 1))
    }

    /// The packet to an entrance.
    fn bytes_to(&self, kind: Kind, to: Address) -> Vec<u8> {
        let packet =
            PacketBuilder::new(tenant(self.inner, self.ends.0), tenant(self.inner, self.ends.1));
        let packet = match self.tcp {
            Some((port, flags)) if flags == tcp_flags::SYN => {
                packet.tcp_with(5000, port, flags, None)
            }
            Some((port, flags)) => packet.tcp_with(port, 5000, flags, None),
            None => packet.udp(1, 2).payload_of(21),
        };
        let frame = packet.frame(mac(self.ends.1), mac(self.mac), None);
        let stranger = Address { value: host(self.outer, 1).value + 9, ..host(self.outer, 1) };
        let sender = host_of(self.outer, self.host).filter(|host| host.family == self.outer);
        let sent = OverlayPacket {
            from: sender.unwrap_or(stranger),
            to,
            has_checksum: self.has_checksum || self.outer == Family::V6,
            ..OverlayPacket::new(self.outer, kind, self.network, frame)
        };
        let mut bytes = sent.ip();
        for (at, bits) in &self.flips {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        bytes
    }

    /// The verdict on a packet that nobody changed, rule by rule; `None`: groups or connections
    /// decide.
    fn expected(&self, hosts: Family) -> Option<Result<u8, DropReason>> {
        let (known, mac_of) = (|tenant| host_of(hosts, tenant), self.mac);
        let sender = host_of(self.outer, self.host).filter(|host| host.family == self.outer);
        let is_host = (1..=5).any(|tenant| sender.is_some() && known(tenant) == sender);
        if ![PLAIN, WEB, BY_HOST, UNCHECKED].contains(&self.network) {
            return Some(Err(DropReason::UnknownVni));
        }
        let is_it = sender.is_some() && known(self.ends.0) == sender && mac_of == self.ends.0;
        let refused = match self.network {
            UNCHECKED => None,
            BY_HOST => (!is_host).then_some(DropReason::OverlayHost),
            _ if is_it => None,
            _ if is_host => Some(DropReason::OverlaySource),
            _ => Some(DropReason::OverlayHost),
        };
        Some(match (refused, known(self.ends.1)) {
            (Some(reason), _) => Err(reason),
            (None, None) => Err(DropReason::NoEndpoint),
            (None, Some(_)) if self.network == WEB => return None,
            (None, Some(_)) => Ok(self.ends.1),
        })
    }
}

/// A packet as hosts mostly send them, a few times: honest, in a network without groups.
fn a_common_run() -> impl Strategy<Value = (Sending, usize)> {
    let tenant = || prop::sample::select(&[1u8, 2, 3, 4, 5, 6, 7, 8, 77][..]);
    let network = prop_oneof![6 => Just(PLAIN), 1 => Just(WEB), 1 => Just(BY_HOST)];
    let who = (network, a_family(), tenant(), tenant(), any::<bool>());
    (a_sending(), who, 1..24usize).prop_map(|(sending, who, count)| {
        let (network, inner, from, to, is_changed) = who;
        let flips = if is_changed { sending.flips } else { vec![] };
        let (ends, host, mac) = ((from, to), from, from);
        (Sending { network, inner, ends, host, mac, flips, ..sending }, count)
    })
}

/// Counters but those that say which walk it was: the fast path asks the tables about packets that
/// it then leaves to the general walk.
fn comparable(lab: &Laboratory) -> Counters {
    Counters { fast_path: 0, full_lookups: 0, ..lab.counters().clone() }
}

/// A tenant that goes to the host of another one, or is gone, between two batches.
fn a_move() -> impl Strategy<Value = Option<(u8, Option<u8>)>> {
    prop::option::weighted(0.15, (1u8..=8, prop::option::weighted(0.7, 1u8..=8)))
}

/// The change of a book that a move is, in the network that most packets are of.
fn change_of((tenant_number, to): (u8, Option<u8>), hosts: Family, revision: u64) -> Vec<Change> {
    let of = |family| {
        let key = EndpointKey { vni: vni(PLAIN), address: tenant(family, tenant_number) };
        match to.and_then(|to| host_of(hosts, to)) {
            None => Change::Delete { revision, key },
            Some(host) => {
                let mac = LinkAddress::new(mac(tenant_number));
                Change::Put { revision, endpoint: Endpoint { key, host, host_mac: None, mac } }
            }
        }
    };
    FAMILIES.map(of).to_vec()
}

/// The fast path ≡ the general walk for overlay packets: bytes in order, verdicts, every counter;
/// also while endpoints move and go.
// AX-23, AX-38
#[test]
fn overlay_packets_leave_by_the_fast_path_as_by_the_general_walk() {
    let runs = prop_oneof![6 => a_common_run(), 1 => (a_sending(), 1..4usize)];
    let strategy = (
        (a_family(), any::<bool>(), any::<bool>()),
        prop::collection::vec(runs, 1..12),
        1..=64usize,
        prop::collection::vec(a_move(), 16),
    );
    let (taken, mut runner) = (std::cell::Cell::new([0u64; 2]), TestRunner::new(config()));
    let compared = runner.run(&strategy, |((hosts, is_geneve, is_tagged), runs, size, moves)| {
        let kind = if is_geneve { Kind::Geneve } else { Kind::Vxlan };
        let (port, network) = if is_tagged { (LAN2, 12) } else { (LAN, 1) };
        let lab = |use_| {
            let mut hub = Hub::default();
            web_only(hosts, kind)(&mut hub);
            let (overlays, book) = overlays_of_book(hosts, kind, (port, network));
            hub.parts.overlays = Some(overlays);
            (hub.laboratory().with_fast_path(use_), book)
        };
        let (mut fast, mut book_of_fast) = lab(FastPathUse::Eager);
        let (mut general, mut book_of_general) = lab(FastPathUse::Never);
        let packets: Vec<Vec<u8>> = runs
            .iter()
            .flat_map(|(sending, count)| {
                // Mostly from the family of the hosts.
                let outer = if *count > 3 { hosts } else { sending.outer };
                let bytes =
                    Sending { outer, ..sending.clone() }.bytes_to(kind, own(outer, network));
                vec![bytes; *count]
            })
            .collect();
        for (batch, revision) in packets.chunks(size).zip(2u64..) {
            if let Some(moves) = moves[revision as usize % moves.len()] {
                let changes = change_of(moves, hosts, revision);
                prop_assert_eq!(book_of_fast.apply(&changes), book_of_general.apply(&changes));
            }
            prop_assert_eq!(fast.send_all(port, batch), general.send_all(port, batch));
            prop_assert_eq!(comparable(&fast), comparable(&general));
        }
        let [fast, all] = [fast.counters().fast_path, packets.len() as u64];
        taken.set([taken.get()[0] + fast, taken.get()[1] + all]);
        Ok(())
    });
    compared.unwrap_or_else(|failure| panic!("{failure}"));
    let [fast, all] = taken.get();
    assert!(fast * 6 > all, "{fast} of {all} by the fast path");
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever hosts send: no packet goes to another host than that of its destination, and those
    /// that nobody changed are judged as the rules say one by one.
    #[test]
    fn no_bytes_reach_another_tenant(
        hosts in a_family(),
        sendings in prop::collection::vec(a_sending(), 1..100),
        remembers in any::<bool>(),
    ) {
        let mut hub = Hub::default();
        web_only(hosts, Kind::Vxlan)(&mut hub);
        let mut lab = hub.laboratory();
        if remembers {
            lab = lab.remembering(256);
        }
        for batch in sendings.chunks(16) {
            let packets: Vec<Vec<u8>> = batch.iter().map(Sending::bytes).collect();
            let outcome = lab.send_all(LAN, &packets);
            for (sending, verdict) in batch.iter().zip(&outcome.verdicts) {
                let Some(expected) = sending.expected(hosts).filter(|_| sending.flips.is_empty())
                else {
                    continue;
                };
                match expected {
                    Err(why) => prop_assert_eq!(*verdict, Verdict::Drop(why), "{:?}", sending),
                    Ok(4) => prop_assert_eq!(*verdict, Verdict::Protect(BERLIN), "{:?}", sending),
                    Ok(1 | 3) => prop_assert_eq!(*verdict, Verdict::Forward(LAN), "{:?}", sending),
                    Ok(_) => prop_assert_eq!(*verdict, Verdict::Forward(LAN2), "{:?}", sending),
                }
            }
            for left in packets::table::opened(&mut lab, &outcome) {
                let (Out::Sealed(_, packet) | Out::Clear(_, packet)) = &left;
                // What does not come from an entrance was changed so that it entered none.
                let Some(outer) = wire::packet::quoted(packet) else { continue };
                let entrances = FAMILIES.map(|family| own(family, 1));
                if !entrances.contains(&outer.flow.source_address()) {
                    continue;
                }
                if [protocol::ICMP, protocol::ICMPV6].contains(&outer.flow.protocol) {
                    // It was, and cannot go on: its sender hears of that, and nobody else.
                    let to = outer.flow.destination_address();
                    let of = |sent| Some(wire::packet::quoted(sent)?.flow.source_address());
                    prop_assert!(packets.iter().any(|sent| of(sent) == Some(to)), "{:?}", left);
                    continue;
                }
                match left {
                    Out::Sealed(set, packet) => {
                        prop_assert_eq!(set, BERLIN);
                        assert_rightly_sent(Kind::Vxlan, hosts, &packet);
                    }
                    Out::Clear(LAN | LAN2, packet) => {
                        assert_rightly_sent(Kind::Vxlan, hosts, &packet);
                    }
                    Out::Clear(port, _) => prop_assert!(false, "by {:?}", port),
                }
            }
        }
    }
}
