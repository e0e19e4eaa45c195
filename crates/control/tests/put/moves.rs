//! SAs of IKE's that move: key, numbers, window and use go on, whatever else happens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use control::{ChangedSas, KeyManager, MoveError, PeerEnds, PutSa};
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
    fn moves(&mut self, to: PeerEnds) -> Result<bool, MoveError> {
        let mut compiled = self.compiled.copied();
        let moved = compiled.move_ends("a", to)?.is_some();
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
    Move(usize, usize, Option<u16>),
    Draw(u32, u32),
    Receive(u32, u64),
    Replace(Direction),
    Delete(Direction),
    Configure(&'static str),
}

fn step() -> impl Strategy<Value = Step> {
    let port = prop_oneof![Just(None), Just(Some(4500)), (1..=u16::MAX).prop_map(Some)];
    prop_oneof![
        4 => (0..LOCAL.len(), 0..REMOTE.len(), port).prop_map(|(a, b, c)| Step::Move(a, b, c)),
        4 => (0..8u32, 1..70u32).prop_map(|(which, count)| Step::Draw(which, count)),
        4 => (0..8u32, 1..3000u64).prop_map(|(which, number)| Step::Receive(which, number)),
        1 => any::<bool>().prop_map(|out| Step::Replace(if out { Outbound } else { Inbound })),
        1 => any::<bool>().prop_map(|out| Step::Delete(if out { Outbound } else { Inbound })),
        1 => prop::sample::select(&["", "dscp = 8\n", "mss_clamp = false\n"][..])
            .prop_map(Step::Configure),
    ]
}

/// The obvious twin: which numbers each key has sealed with, and which it has opened.
#[derive(Default)]
struct Twin {
    sealed: HashMap<u32, u64>,
    opened: HashMap<u32, HashSet<u64>>,
    present: Option<PeerEnds>,
    next: u32,
}

impl Twin {
    fn take(&mut self, gateway: &mut Gateway, step: Step) {
        match step {
            Step::Move(local, remote, port) => {
                let to = ends(LOCAL[local], REMOTE[remote], port);
                let of_one_family = to.tunnel.local.is_ipv4() == to.tunnel.remote.is_ipv4();
                let moved = gateway.moves(to);
                assert_eq!(moved.is_ok(), of_one_family, "{moved:?}");
                if of_one_family {
                    self.present = Some(to);
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
            Step::Replace(direction) => self.replace(gateway, direction),
            Step::Delete(direction) => {
                let newest = self.newest(gateway, direction);
                let names: Vec<_> =
                    newest.map(|value| name(direction, value)).into_iter().collect();
                gateway.delete(&names).unwrap();
            }
            Step::Configure(more) => gateway.configure(&section(more)),
        }
    }

    /// Puts a new SA in the place of the newest.
    fn replace(&mut self, gateway: &mut Gateway, direction: Direction) {
        self.next += 1;
        let base = if direction == Outbound { 0x500 } else { 0x600 };
        if self.next > 7 {
            return;
        }
        let new = ike(sa(direction, base + self.next, 100 + base + self.next));
        let new = match self.newest(gateway, direction) {
            Some(old) => instead_of(old, new),
            None => new,
        };
        gateway.put(vec![new]).unwrap();
    }

    fn newest(&self, gateway: &Gateway, direction: Direction) -> Option<u32> {
        let of = gateway.all();
        of.keys().filter(|(of, ..)| *of == direction).map(|(_, value, _)| *value).max()
    }

    /// All SAs, and the set, have the ends that were said last.
    fn check(&self, gateway: &Gateway) {
        let present = self.present.unwrap_or(ends(LOCAL[0], REMOTE[0], None));
        for sa in gateway.snapshot.outbound() {
            assert_eq!(PeerEnds::of(&sa.encapsulation), present);
        }
        for sa in gateway.snapshot.inbound() {
            assert_eq!(PeerEnds::of(&sa.encapsulation), present);
        }
        let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == "a").unwrap();
        assert_eq!(set.tunnel, present.tunnel);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn sas_that_move_seal_no_number_twice_and_open_none_again(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut gateway = Gateway::new(&section(""));
        gateway.put(vec![ike(sa(Outbound, 0x500, 1)), ike(sa(Inbound, 0x600, 2))]).unwrap();
        let mut twin = Twin::default();
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
    assert_eq!(gateway.moves(there), Ok(true));
    assert_eq!(gateway.moves(there), Ok(false), "it is there already");
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
    // A section that no longer has that address sends everything to the configured ends.
    gateway.configure(&peer("a", REMOTE[0], "keys = \"ike\""));
    let sa = gateway.snapshot.outbound().next().unwrap();
    assert_eq!(PeerEnds::of(&sa.encapsulation), ends(LOCAL[0], REMOTE[0], None));
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
    let refused = gateway.moves(ends(LOCAL[0], REMOTE[0], Some(61_000)));
    assert_eq!(refused, Err(MoveError::InCard { peer: "a".into() }));
}
