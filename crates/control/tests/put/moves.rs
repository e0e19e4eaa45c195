//! SAs of IKE's that move: key, numbers, window and use go on, whatever else happens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use control::{ChangedSas, KeyManager, MoveError, PeerEnds, PutRefusal, PutSa, SaName};
use ipsec::{CardSeat, CardWork, SeatCarrier, SequenceNumbers, Tunnel, UdpPorts};
use keystate::KeyOrigin;
use policy::Direction::{self, Inbound, Outbound};
use proptest::prelude::*;

use crate::gateway::{Gateway, instead_of, name, peer, sa, spi};

/// Addresses that each end may have.
const LOCAL: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
const REMOTE: [&str; 4] = ["198.51.100.1", "203.0.113.7", "203.0.113.8", "2001:db8:1::7"];

/// Peer `a`, which may move, with further lines.
fn section(more: &str) -> String {
    let moves = "keys = \"ike\"\nlocal_moves_to = [\"192.0.2.2\", \"2001:db8::/64\"]\n\
                 moves_to = [\"203.0.113.0/24\", \"2001:db8:1::/64\"]\n";
    peer("a", REMOTE[0], &format!("{moves}{more}"))
}

fn ike(sa: PutSa) -> PutSa {
    let numbers = Some(SequenceNumbers::Extended);
    PutSa { manager: KeyManager::Ike, numbers, ..sa }
}

fn ends(local: &str, remote: &str, port: Option<u16>) -> PeerEnds {
    let tunnel = Tunnel { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
    PeerEnds { tunnel, udp: port.map(|remote| UdpPorts { local: 4500, remote }) }
}

impl Gateway {
    fn moves(&mut self, of: SaName, to: PeerEnds) -> Result<bool, MoveError> {
        let mut compiled = self.compiled.copied();
        let moved = compiled.move_sa(&of, to)?.is_some();
        self.go_over(ChangedSas { compiled, gone: Vec::new() });
        Ok(moved)
    }

    /// Goes over to another configuration as the daemon does.
    fn configure(&mut self, sections: &str) {
        let before = self.compiled.copied();
        self.apply(sections).unwrap();
        let mut compiled = self.compiled.copied();
        compiled.keep_put_sas(&before).unwrap();
        compiled.keep_moved_peers(&before);
        self.go_over(ChangedSas { compiled, gone: Vec::new() });
    }

    /// Draws numbers of an outbound SA; `None`: it does not run.
    fn draws(&self, value: u32, count: u32) -> Option<Vec<u64>> {
        let sa = self.snapshot.sad().outbound_by_spi(spi(value)).next()?;
        let first = sa.sequence.draw(count).whole().unwrap();
        Some((first..first + u64::from(count)).collect())
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The newest SA of a direction goes to other ends.
    Move(Direction, Place),
    Draw(u32, u32),
    Receive(u32, u64),
    /// Another SA comes between some ends, in the place of the newest.
    Replace(Direction, Place),
    /// Another SA comes beside the others.
    Add(Direction, Place),
    Delete(Direction),
    Configure(&'static str),
}

/// Numbers of a local and a remote address, and a UDP port.
type Place = (usize, usize, Option<u16>);

fn ends_at((local, remote, port): Place) -> PeerEnds {
    ends(LOCAL[local], REMOTE[remote], port)
}

fn is_of_one_family(of: PeerEnds) -> bool {
    of.tunnel.local.is_ipv4() == of.tunnel.remote.is_ipv4()
}

fn step() -> impl Strategy<Value = Step> {
    let port = || prop_oneof![Just(None), Just(Some(4500)), (1..=u16::MAX).prop_map(Some)];
    let place = || (0..LOCAL.len(), 0..REMOTE.len(), port());
    let direction = || prop::sample::select(&[Outbound, Inbound][..]);
    prop_oneof![
        4 => (direction(), place()).prop_map(|(of, place)| Step::Move(of, place)),
        4 => (0..8u32, 1..70u32).prop_map(|(which, count)| Step::Draw(which, count)),
        4 => (0..8u32, 1..3000u64).prop_map(|(which, number)| Step::Receive(which, number)),
        1 => (direction(), place()).prop_map(|(of, place)| Step::Replace(of, place)),
        1 => (direction(), place()).prop_map(|(of, place)| Step::Add(of, place)),
        1 => direction().prop_map(Step::Delete),
        1 => prop::sample::select(&["", "dscp = 8\n", "mss_clamp = false\n"][..])
            .prop_map(Step::Configure),
    ]
}

/// The obvious twin: which numbers each key has sealed with, and which it has opened.
#[derive(Default)]
struct Twin {
    sealed: HashMap<u32, u64>,
    opened: HashMap<u32, HashSet<u64>>,
    /// The ends of each SA.
    ends: HashMap<(Direction, u32), PeerEnds>,
    /// The SPIs of outbound SAs, in the order of their puts.
    order: Vec<u32>,
    /// The ends of the set.
    set: Option<Tunnel>,
    next: u32,
}

impl Twin {
    fn take(&mut self, gateway: &mut Gateway, step: Step) {
        match step {
            Step::Move(direction, place) => {
                let Some(value) = self.newest(gateway, direction) else { return };
                let to = ends_at(place);
                let moved = gateway.moves(of_peer(direction, value), to);
                assert_eq!(moved.is_ok(), is_of_one_family(to), "{moved:?}");
                if moved.is_ok() {
                    self.ends.insert((direction, value), to);
                }
            }
            Step::Draw(which, count) => {
                let value = 0x500 + which;
                let Some(numbers) = gateway.draws(value, count) else { return };
                let last = self.sealed.entry(value).or_default();
                assert_eq!(numbers[0], *last + 1, "no number twice, none left out");
                *last += u64::from(count);
            }
            Step::Receive(which, number) => {
                let value = 0x600 + which;
                let Some(sa) = gateway.snapshot.inbound_by_spi(spi(value)) else { return };
                let seen = self.opened.entry(value).or_default();
                let highest = seen.iter().max().copied().unwrap_or_default();
                let is_new = !seen.contains(&number) && number + 1024 > highest;
                assert_eq!(sa.window.commit(number).is_ok(), is_new, "{number} of {value:#x}");
                if is_new {
                    seen.insert(number);
                }
            }
            Step::Replace(direction, place) => {
                let old = self.newest(gateway, direction);
                self.put(gateway, direction, old, place);
            }
            Step::Add(direction, place) => self.put(gateway, direction, None, place),
            Step::Delete(direction) => {
                let newest = self.newest(gateway, direction);
                let names: Vec<_> =
                    newest.map(|value| name(direction, value)).into_iter().collect();
                gateway.delete(&names).unwrap();
            }
            Step::Configure(more) => {
                gateway.configure(&section(more));
                self.set = None;
            }
        }
        let running = gateway.all();
        self.order.retain(|value| running.contains_key(&(Outbound, *value, "a".into())));
        if let Some(newest) = self.order.last() {
            self.set = Some(self.ends[&(Outbound, *newest)].tunnel);
        }
    }

    /// Puts a new SA between some ends, for an old one or beside the others.
    fn put(&mut self, gateway: &mut Gateway, direction: Direction, old: Option<u32>, place: Place) {
        self.next += 1;
        let base = if direction == Outbound { 0x500 } else { 0x600 };
        if self.next > 7 {
            return;
        }
        let (value, ends) = (base + self.next, ends_at(place));
        let new = PutSa { ends: Some(ends), ..ike(sa(direction, value, 100 + value)) };
        let new = match old {
            Some(old) => instead_of(old, new),
            None => new,
        };
        let is_put = gateway.put(vec![new]).is_ok();
        assert_eq!(is_put, is_of_one_family(ends), "{ends}");
        if is_put {
            self.ends.insert((direction, value), ends);
            self.order.extend((direction == Outbound).then_some(value));
        }
    }

    fn newest(&self, gateway: &Gateway, direction: Direction) -> Option<u32> {
        let of = gateway.all();
        of.keys().filter(|(of, ..)| *of == direction).map(|(_, value, _)| *value).max()
    }

    /// Checks the ends of each SA; the set has the ends of the newest outbound SA.
    fn check(&self, gateway: &Gateway) {
        for sa in gateway.snapshot.outbound() {
            let own = self.ends[&(Outbound, sa.spi.value())];
            assert_eq!(PeerEnds::of(&sa.encapsulation), own);
        }
        for sa in gateway.snapshot.inbound() {
            let own = self.ends[&(Inbound, sa.spi.value())];
            assert_eq!(PeerEnds::of(&sa.encapsulation), own);
        }
        let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == "a").unwrap();
        let order: Vec<u32> =
            set.outbound.iter().map(|sa| gateway.snapshot.outbound_sa(*sa).spi.value()).collect();
        assert_eq!(order, self.order);
        assert_eq!(set.tunnel, self.set.unwrap_or(ends(LOCAL[0], REMOTE[0], None).tunnel));
    }
}

fn of_peer(direction: Direction, value: u32) -> SaName {
    SaName { peer: Some("a".into()), ..name(direction, value) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn sas_that_move_seal_no_number_twice_and_open_none_again(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut gateway = Gateway::new(&section(""));
        gateway.put(vec![ike(sa(Outbound, 0x500, 1)), ike(sa(Inbound, 0x600, 2))]).unwrap();
        let mut twin = Twin { order: vec![0x500], ..Twin::default() };
        for key in [(Outbound, 0x500), (Inbound, 0x600)] {
            twin.ends.insert(key, ends(LOCAL[0], REMOTE[0], None));
        }
        for step in steps {
            twin.take(&mut gateway, step);
            twin.check(&gateway);
        }
    }
}

#[test]
fn an_sa_that_moves_is_the_same_sa_in_its_slot() {
    let mut gateway = Gateway::new(&section(""));
    gateway.put(vec![ike(sa(Outbound, 0x500, 1)), ike(sa(Inbound, 0x600, 2))]).unwrap();
    let before = gateway.snapshot.clone();
    let there = ends(LOCAL[1], REMOTE[1], Some(61_000));
    for of in [of_peer(Outbound, 0x500), of_peer(Inbound, 0x600)] {
        assert_eq!(gateway.moves(of.clone(), there), Ok(true));
        assert_eq!(gateway.moves(of, there), Ok(false), "it is there already");
    }
    let after = &gateway.snapshot;
    for (old, new) in before.outbound().zip(after.outbound()) {
        assert_eq!((old.id, old.spi, old.suite), (new.id, new.spi, new.suite));
        assert!(Arc::ptr_eq(&old.sequence, &new.sequence));
        let account = |sa: &ipsec::OutboundSa| sa.allowance.as_ref().unwrap().account.clone();
        assert!(Arc::ptr_eq(&account(old), &account(new)));
    }
    for (old, new) in before.inbound().zip(after.inbound()) {
        assert_eq!((old.id, old.spi, old.suite), (new.id, new.spi, new.suite));
        assert!(Arc::ptr_eq(&old.window, &new.window));
    }
    // SAs end with a section that does not have their ends. Nobody but IKE knows another place.
    gateway.configure(&peer("a", REMOTE[0], "keys = \"ike\""));
    assert!(gateway.all().is_empty());
    let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == "a").unwrap();
    assert_eq!(set.tunnel, ends(LOCAL[0], REMOTE[0], None).tunnel);
}

#[test]
fn move_of_a_new_sa_leaves_the_old_sa_of_its_peer_where_it_is() {
    let mut gateway = Gateway::new(&section(""));
    gateway.put(vec![ike(sa(Outbound, 0x500, 1)), ike(sa(Inbound, 0x600, 2))]).unwrap();
    let there = ends(LOCAL[1], REMOTE[1], Some(61_000));
    let new = |direction, value, key| PutSa { ends: Some(there), ..ike(sa(direction, value, key)) };
    gateway.put(vec![new(Outbound, 0x501, 3), new(Inbound, 0x601, 4)]).unwrap();
    let further = ends(LOCAL[0], REMOTE[2], None);
    for of in [of_peer(Outbound, 0x501), of_peer(Inbound, 0x601)] {
        assert_eq!(gateway.moves(of, further), Ok(true));
    }
    let home = ends(LOCAL[0], REMOTE[0], None);
    let of = |sa: &ipsec::OutboundSa| (sa.spi.value(), PeerEnds::of(&sa.encapsulation));
    let sealing: Vec<_> = gateway.snapshot.outbound().map(|sa| of(sa)).collect();
    assert_eq!(sealing, [(0x500, home), (0x501, further)]);
    let of = |sa: &ipsec::InboundSa| (sa.spi.value(), PeerEnds::of(&sa.encapsulation));
    let opening: Vec<_> = gateway.snapshot.inbound().map(|sa| of(sa)).collect();
    assert_eq!(opening, [(0x600, home), (0x601, further)]);
    // Without the new SA the old one seals, and the set is where that is.
    gateway.delete(&[of_peer(Outbound, 0x501)]).unwrap();
    let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == "a").unwrap();
    assert_eq!(set.tunnel, home.tunnel);
}

#[test]
fn sa_that_runs_is_not_put_again_between_other_ends() {
    let mut gateway = Gateway::new(&section(""));
    let home = ends(LOCAL[0], REMOTE[0], None);
    for (direction, value) in [(Outbound, 0x500), (Inbound, 0x600)] {
        let asked = |ends| PutSa { ends: Some(ends), ..ike(sa(direction, value, value)) };
        gateway.put(vec![asked(home)]).unwrap();
        assert_eq!(gateway.compiled.plan_put(vec![asked(home)]).unwrap().unchanged(), 1);
        for there in [ends(LOCAL[0], REMOTE[1], None), ends(LOCAL[0], REMOTE[0], Some(4500))] {
            let refused = gateway.compiled.plan_put(vec![asked(there)]).err().unwrap();
            assert!(matches!(refused.why, PutRefusal::SpiTaken { .. }), "{refused}");
        }
    }
}

#[test]
fn put_of_an_sa_between_ends_that_the_section_does_not_have_is_refused() {
    let gateway = Gateway::new(&section(""));
    let beyond = ends(LOCAL[0], "198.51.100.9", None);
    let port_zero = ends(LOCAL[0], REMOTE[1], Some(0));
    let mixed = ends(LOCAL[2], REMOTE[0], None);
    for (to, words) in [(beyond, "`moves_to`"), (port_zero, "port 0"), (mixed, "famil")] {
        let asked = PutSa { ends: Some(to), ..ike(sa(Outbound, 0x500, 1)) };
        let refused = gateway.compiled.plan_put(vec![asked]).err().unwrap();
        assert!(matches!(refused.why, PutRefusal::Ends(_)), "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert!(gateway.all().is_empty());
}

// A change of policies that dropped SAs would leave IKE with SAs that do not run.
#[test]
fn sas_keep_their_ends_while_policies_come_and_lose_them_with_another_configuration() {
    let narrow = section("").replace("remote = [\"any\"]", "remote = [\"10.2.0.0/16\"]");
    let mut gateway = Gateway::new(&narrow);
    let there = ends(LOCAL[1], REMOTE[1], Some(61_000));
    let put = |direction, value, key| PutSa { ends: Some(there), ..ike(sa(direction, value, key)) };
    gateway.put(vec![put(Outbound, 0x500, 1), put(Inbound, 0x600, 2)]).unwrap();
    // A policy with packets to the remote end of the SAs.
    let mut around = gateway.compiled.validated().policies[0].clone();
    around.name = "around".into();
    around.selector.remote = vec![REMOTE[1].parse::<std::net::IpAddr>().unwrap().into()];
    let before = gateway.compiled.copied();
    let mut compiled = gateway.compiler.change_policies(&before, &[], vec![around]).unwrap();
    compiled.keep_put_sas(&before).unwrap();
    assert!(compiled.put_sas_gone_since(&before).is_empty());
    gateway.go_over(ChangedSas { compiled, gone: Vec::new() });
    assert_eq!(gateway.all().len(), 2);
    // An SA still moves among ports of the address.
    let elsewhere = ends(LOCAL[1], REMOTE[1], Some(61_001));
    assert_eq!(gateway.moves(of_peer(Outbound, 0x500), elsewhere), Ok(true));
    // Another configuration decides anew.
    let around = "[[policy]]\nname = \"around\"\npeer = \"a\"\nlocal = [\"any\"]\n\
                  remote = [\"203.0.113.7\"]\n";
    gateway.configure(&format!("{narrow}{around}"));
    assert!(gateway.all().is_empty());
}

#[test]
fn an_sa_in_a_card_moves_nowhere() {
    let card = "[card.nic0]\nkind = \"emulated\"\nsocket = \"/c\"\nports = [\"wan\"]\n";
    let more = "keys = \"ike\"\nencapsulation = \"udp\"\noffload = \"packet\"";
    let mut gateway = Gateway::new(&(card.to_owned() + &peer("a", REMOTE[0], more)));
    let mut plan = gateway.compiled.plan_put(vec![ike(sa(Outbound, 0x500, 1))]).unwrap();
    let carrier = SeatCarrier::Worker;
    plan.seat(0, CardSeat { netdev: 1, tag: 7, work: CardWork::Packets, carrier });
    let proofs = gateway.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap();
    let changed = gateway.compiled.with_put(plan, proofs, gateway.now_ns).unwrap();
    gateway.go_over(changed);
    let refused = gateway.moves(of_peer(Outbound, 0x500), ends(LOCAL[0], REMOTE[0], Some(61_000)));
    assert_eq!(refused, Err(MoveError::InCard { peer: "a".into() }));
}
