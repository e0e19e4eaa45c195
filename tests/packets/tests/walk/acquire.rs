//! Packets that wait for an SA, which a key manager is asked for (XO-21).

use std::sync::Arc;

use dataplane::Verdict::{self, Drop, Hold, Protect};
use dataplane::sa_queues::{ASK_EVERY_NS, MAX_PER_POLICY, MAX_WAITING, PATIENCE_NS};
use dataplane::{AcquireRequest, DropReason, Generation, HoldKind, KeyManager, SetIndex, Sources};
use ipsec::SaId;
use packets::lab::{BERLIN, CARLA, Hub, LAN, LAN2, Laboratory, WAN, numbered, policy};
use policy::{Action, Spd};
use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{Address, Family};

use crate::{FAMILIES, between, datagram};

const WAITS: Verdict = Hold(HoldKind::Sa);
const NO_SA: Verdict = Drop(DropReason::NoSa);

/// A laboratory with a key manager, in which berlin and carla have no outbound SA.
fn asking() -> Hub {
    let mut hub = Hub { frames: 4096, ..Hub::default() };
    hub.parts.acquires.set(KeyManager::Present);
    for set in [BERLIN, CARLA] {
        let set = &mut hub.parts.sets[set.0 as usize];
        (set.acquires, set.outbound) = (true, Vec::new());
    }
    hub
}

/// Puts the SA of a set into it, or takes it out.
fn with_sa(sources: &mut Sources, set: SetIndex, has_one: bool) {
    let mut changed = (**sources.sad.set(set).expect("a set of the laboratory")).clone();
    changed.outbound = if has_one { vec![SaId(set.0)] } else { Vec::new() };
    sources.sad.put_set(changed);
}

fn put_sa(lab: &mut Laboratory, set: SetIndex) {
    lab.change(|sources| with_sa(sources, set, true));
}

fn no_sa(lab: &Laboratory) -> u64 {
    lab.counters().dropped(DropReason::NoSa)
}

/// Changes the action of a policy, as a configuration does: under another generation.
fn with_action(lab: &mut Laboratory, name: &str, action: Action) {
    let mut policies = Hub::default().policies;
    let changed = policies.iter_mut().find(|policy| policy.name == name);
    changed.expect("a policy of the laboratory").action = action;
    lab.change(|sources| {
        sources.spd = Arc::new(Spd::new(policies).expect("few policies"));
        sources.generation = Generation(sources.generation.0 + 1);
    });
}

#[test]
fn packets_wait_ask_once_and_leave_in_order_when_the_sa_comes() {
    for family in FAMILIES {
        let mut lab = asking().laboratory().live();
        let packets: Vec<Vec<u8>> =
            (0..5u8).map(|n| datagram(family, 1, 2).payload_of(40 + usize::from(n)).ip()).collect();
        let outcome = lab.send_all(LAN, &packets);
        assert_eq!(outcome.verdicts, [WAITS; 5]);
        assert!(outcome.sent.is_empty());
        let flow = wire::packet::parse(&packets[0]).expect("a packet").flow;
        let set = lab.snapshot.set(BERLIN).id;
        let asked = AcquireRequest { set, policy: "berlin-net".into(), flow };
        assert_eq!(lab.acquire_requests(), [asked]);
        assert_eq!((lab.waiting(), lab.counters().total().held), (5, 5));

        put_sa(&mut lab, BERLIN);
        let sent = lab.release();
        assert_eq!((lab.waiting(), lab.counters().total().held), (0, 0));
        for (number, (sent, packet)) in (1..).zip(sent.iter().zip(&packets)) {
            let opened = lab.peer(BERLIN).open(&sent.packet).expect("sealed for berlin");
            assert_eq!((sent.port, opened.sequence_low), (WAN, number));
            assert_eq!(opened.inner.len(), packet.len());
            assert_eq!(opened.inner[opened.inner.len() - 8..], packet[packet.len() - 8..]);
        }
        assert_eq!((sent.len(), lab.counters().total().sent), (5, 5));
        // The next one goes at once, behind them.
        let outcome = lab.send(LAN, &packets[0]);
        assert_eq!(outcome.verdicts, [Protect(BERLIN)]);
        let opened = lab.peer(BERLIN).open(&outcome.sent[0].packet).expect("sealed for berlin");
        assert_eq!(opened.sequence_low, 6);
        assert_eq!(lab.acquire_requests(), []);
    }
}

/// Each of the three conditions is needed.
#[test]
fn without_a_key_manager_or_for_a_set_with_keys_of_its_own_packets_are_dropped() {
    let packet = datagram(Family::V4, 1, 2).ip();
    for (key_manager, acquires, expected) in [
        (KeyManager::Absent, true, NO_SA),
        (KeyManager::Present, false, NO_SA),
        (KeyManager::Present, true, WAITS),
    ] {
        let mut hub = asking();
        hub.parts.acquires.set(key_manager);
        hub.parts.sets[BERLIN.0 as usize].acquires = acquires;
        let mut lab = hub.laboratory().live();
        assert_eq!(lab.send(LAN, &packet).verdicts, [expected]);
        assert_eq!(lab.acquire_requests().len(), usize::from(expected == WAITS));
        assert_eq!(no_sa(&lab), u64::from(expected == NO_SA));
    }
    // The key manager stops listening: waiting packets stay, later ones are dropped.
    let mut lab = asking().laboratory().live();
    lab.send(LAN, &packet);
    lab.snapshot.sources().acquires.set(KeyManager::Absent);
    assert_eq!(lab.send(LAN, &packet).verdicts, [NO_SA]);
    assert_eq!(lab.waiting(), 1);
    put_sa(&mut lab, BERLIN);
    assert_eq!(lab.release().len(), 1);
}

#[test]
fn at_most_16_packets_of_a_policy_wait_and_those_of_another_are_not_kept_out() {
    let mut lab = asking().laboratory().live();
    let packet = datagram(Family::V4, 1, 2).ip();
    let outcome = lab.send_all(LAN, &vec![packet; MAX_PER_POLICY + 1000]);
    assert_eq!(outcome.verdicts, vec![WAITS; MAX_PER_POLICY + 1000], "the oldest give way");
    assert_eq!((lab.waiting(), no_sa(&lab)), (MAX_PER_POLICY, 1000));
    assert_eq!(lab.acquire_requests().len(), 1, "one request for a policy");
    assert_eq!(lab.send(LAN, &datagram(Family::V4, 1, 3).ip()).verdicts, [WAITS]);
    let asked = lab.acquire_requests();
    assert_eq!((asked.len(), &*asked[0].policy), (1, "carla-net"));
    put_sa(&mut lab, CARLA);
    let sent = lab.release();
    assert_eq!((sent.len(), lab.waiting()), (1, MAX_PER_POLICY));
    assert!(lab.peer(CARLA).open(&sent[0].packet).is_some());
}

/// One policy a host, for more hosts than there is room for packets.
fn one_policy_a_host() -> Hub {
    let mut hub = asking();
    let set = hub.parts.sets[BERLIN.0 as usize].id;
    let of = |host: u32| {
        let remote = std::net::Ipv4Addr::from(0x0a02_0000 + host).to_string();
        policy(&format!("host-{host}"), 300, Action::Protect(set), &["10.0.0.0/8"], &[&remote])
    };
    let more = (1..=MAX_WAITING as u32 + 10).map(of);
    hub.policies = numbered(hub.policies.into_iter().chain(more).collect());
    hub
}

fn to_host(host: u32) -> Vec<u8> {
    from_to_host(packets::lab::host(Family::V4, 1), host)
}

fn from_to_host(from: Address, host: u32) -> Vec<u8> {
    let address = std::net::Ipv4Addr::from(0x0a02_0000 + host);
    let to: Address = std::net::IpAddr::from(address).into();
    PacketBuilder::new(from, to).udp(1, 2).ip()
}

/// A host fills all room by 64 policies, and goes on. The first packets of all other hosts find
/// room, and their SAs are asked for.
#[test]
fn a_flood_does_not_keep_the_packets_of_other_senders_out() {
    let mut lab = one_policy_a_host().laboratory().live();
    let policies = (MAX_WAITING / MAX_PER_POLICY) as u32;
    for host in 1..=policies {
        lab.send_all(LAN, &vec![to_host(host); MAX_PER_POLICY]);
    }
    assert_eq!((lab.waiting(), no_sa(&lab)), (MAX_WAITING, 0));
    assert_eq!(lab.acquire_requests().len(), policies as usize);
    let others = policies + 1..=policies + 40;
    for (round, host) in (1..).zip(others.clone()) {
        let from = Address::v4(0x0a01_0100 + host);
        assert_eq!(lab.send(LAN, &from_to_host(from, host)).verdicts, [WAITS]);
        assert_eq!(lab.acquire_requests().len(), 1);
        // The flood goes on: it displaces its own packets.
        assert_eq!(lab.send(LAN, &to_host(host % policies + 1)).verdicts, [WAITS]);
        assert_eq!((lab.waiting(), no_sa(&lab)), (MAX_WAITING, 2 * round));
        lab.acquire_requests();
    }
    put_sa(&mut lab, BERLIN);
    let sent = lab.release();
    assert_eq!(sent.len(), MAX_WAITING);
    let sources =
        sent.iter().map(|sent| lab.peer(BERLIN).open(&sent.packet).expect("sealed").inner);
    let of_others = sources.filter(|inner| inner[14] == 1).count();
    assert_eq!(of_others, others.count(), "all packets of the others leave");
    assert_eq!((lab.waiting(), lab.counters().total().imbalance()), (0, 0));
}

#[test]
fn an_sa_is_asked_for_once_a_second_for_30_seconds() {
    const TICK_NS: u64 = 10_000_000;
    let mut lab = asking().laboratory().live();
    let packet = datagram(Family::V4, 1, 2).ip();
    lab.send(LAN, &packet);
    let (begun, mut asked) = (lab.now_ns, lab.acquire_requests().len());
    while lab.waiting() > 0 {
        lab.now_ns += TICK_NS;
        assert_eq!(lab.tick(), []);
        asked += lab.acquire_requests().len();
        assert!(lab.now_ns < begun + 2 * PATIENCE_NS, "it is given up");
    }
    let waited = lab.now_ns - begun;
    assert!((PATIENCE_NS..=PATIENCE_NS + 100_000_000).contains(&waited), "{waited} ns");
    assert_eq!((asked, no_sa(&lab)), ((PATIENCE_NS / ASK_EVERY_NS) as usize, 1));
    // A packet that comes then begins anew.
    assert_eq!(lab.send(LAN, &packet).verdicts, [WAITS]);
    assert_eq!(lab.acquire_requests().len(), 1);
}

/// Policies change while a packet waits: it is judged by those that hold when it leaves.
#[test]
fn what_waits_is_judged_again_where_policies_changed() {
    let packet = datagram(Family::V4, 1, 2).ip();
    let cases = [(Action::Bypass, 1, None), (Action::Discard, 0, Some(DropReason::PolicyDiscard))];
    for (action, sent, dropped) in cases {
        let mut lab = asking().laboratory().live();
        lab.send(LAN, &packet);
        with_action(&mut lab, "berlin-net", action);
        assert_eq!((lab.release().len(), lab.waiting()), (sent, 0));
        assert!(dropped.is_none_or(|reason| lab.counters().dropped(reason) == 1));
        assert_eq!(no_sa(&lab), 0);
    }
    // Another policy is nothing to it: it waits on, not longer than it would have.
    let mut lab = asking().laboratory().live();
    lab.send(LAN, &packet);
    lab.now_ns += PATIENCE_NS / 2;
    with_action(&mut lab, "carla-net", Action::Discard);
    assert_eq!((lab.release().len(), lab.waiting()), (0, 1));
    lab.now_ns += PATIENCE_NS / 2;
    assert_eq!((lab.release().len(), lab.waiting(), no_sa(&lab)), (0, 0, 1));
}

#[test]
fn what_does_not_fit_the_sa_that_came_is_answered() {
    let mut lab = asking().laboratory().live();
    let big = between(Family::V4, 1, 2).dont_fragment().udp(1, 2).payload_of(1472).ip();
    assert_eq!(lab.send(LAN, &big).verdicts, [WAITS]);
    put_sa(&mut lab, BERLIN);
    let sent = lab.release();
    assert_eq!((sent.len(), sent[0].port), (1, LAN));
    assert_eq!((sent[0].packet[9], sent[0].packet[20], sent[0].packet[21]), (1, 3, 4));
    assert_eq!(lab.counters().dropped(DropReason::TooBig), 1);
}

#[test]
fn a_port_that_goes_takes_what_came_by_it_and_waits() {
    let mut lab = asking().laboratory().live();
    lab.send(LAN, &datagram(Family::V4, 1, 2).ip());
    lab.send(LAN2, &datagram(Family::V4, 12, 2).ip());
    assert_eq!(lab.waiting(), 2);
    lab.change(|sources| Laboratory::without_port(sources, LAN2));
    assert_eq!((lab.waiting(), no_sa(&lab)), (1, 1));
    put_sa(&mut lab, BERLIN);
    assert_eq!(lab.release().len(), 1);
}

/// Packets that the gateway makes are not worth an SA: here an ICMP error about one of berlin's.
#[test]
fn icmp_of_the_gateway_does_not_wait() {
    let mut lab = asking().laboratory().live();
    let last_hop = between(Family::V4, 2, 1).hop_limit(1).udp(1, 2).ip();
    let outer = lab.peer(BERLIN).seal(&last_hop);
    let outcome = lab.send(WAN, &outer);
    assert_eq!(outcome.verdicts, [Drop(DropReason::HopLimit), NO_SA]);
    assert_eq!((lab.waiting(), lab.acquire_requests().len()), (0, 0));
}

/// Policies of the random worlds, three a peer.
const POLICIES: usize = 6;

fn peer_of(policy: usize) -> SetIndex {
    [BERLIN, CARLA][policy / 3]
}

/// A world with [`POLICIES`] policies, one a host.
fn one_policy_a_place() -> Hub {
    let mut hub = asking();
    let of = |place: usize| {
        let set = hub.parts.sets[peer_of(place).0 as usize].id;
        let remote = host_of(place).to_string();
        policy(&format!("p{place}"), 300, Action::Protect(set), &["10.0.0.0/8"], &[&remote])
    };
    let more: Vec<_> = (0..POLICIES).map(of).collect();
    hub.policies = numbered(hub.policies.into_iter().chain(more).collect());
    hub
}

fn host_of(place: usize) -> std::net::Ipv4Addr {
    let network = if place / 3 == 0 { 0x0a02_0000u32 } else { 0x0a03_0000 };
    std::net::Ipv4Addr::from(network + 100 + place as u32)
}

/// A step of a random world.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Packets of a policy.
    Send(usize, usize),
    /// A peer gets its SA, or loses it.
    Sa(SetIndex, bool),
    /// Time passes, milliseconds.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..POLICIES, 1..20usize).prop_map(|(place, count)| Step::Send(place, count)),
        1 => (prop_oneof![Just(BERLIN), Just(CARLA)], any::<bool>())
            .prop_map(|(set, has_one)| Step::Sa(set, has_one)),
        2 => prop_oneof![Just(999u64), Just(1000), 0..16_000u64].prop_map(Step::Wait),
    ]
}

/// The twin: a list a policy.
#[derive(Default)]
struct Twin {
    now_ms: u64,
    has_sa: [bool; 2],
    waiting: [Vec<(u16, u64)>; POLICIES],
    asked_ms: [u64; POLICIES],
    dropped: u64,
}

impl Twin {
    /// Returns the numbers that leave at once, by policy, and who is asked for.
    fn step(&mut self, step: Step, mut number: u16) -> ([Vec<u16>; POLICIES], Vec<String>) {
        let (mut sent, mut asked): ([Vec<u16>; POLICIES], Vec<String>) = Default::default();
        match step {
            Step::Wait(ms) => self.now_ms += ms,
            Step::Sa(set, has_one) => self.has_sa[usize::from(set == CARLA)] = has_one,
            Step::Send(place, count) => {
                for _ in 0..count {
                    number += 1;
                    match self.waiting[place].len() {
                        _ if self.has_sa[place / 3] => sent[place].push(number),
                        length => {
                            if length == 0 {
                                asked.push(format!("p{place}"));
                                self.asked_ms[place] = self.now_ms;
                            }
                            self.waiting[place].push((number, self.now_ms));
                            if length == MAX_PER_POLICY {
                                self.waiting[place].remove(0);
                                self.dropped += 1;
                            }
                        }
                    }
                }
            }
        }
        for (place, waiting) in self.waiting.iter_mut().enumerate() {
            let before = waiting.len();
            waiting.retain(|(_, since)| (self.now_ms - since) * 1_000_000 < PATIENCE_NS);
            self.dropped += (before - waiting.len()) as u64;
            if self.has_sa[place / 3] {
                sent[place].extend(waiting.drain(..).map(|(number, _)| number));
            }
            let passed = (self.now_ms - self.asked_ms[place]) * 1_000_000;
            if !waiting.is_empty() && passed >= ASK_EVERY_NS {
                asked.push(format!("p{place}"));
                self.asked_ms[place] = self.now_ms;
            }
        }
        (sent, asked)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Packets wait, leave and are dropped as lists say, and SAs are asked for so.
    #[test]
    fn queues_of_policies_do_what_lists_do(steps in prop::collection::vec(step(), 1..60)) {
        let mut lab = one_policy_a_place().laboratory().live();
        let (mut twin, mut number, begun) = (Twin::default(), 0u16, lab.now_ns);
        for step in steps {
            let (expected, mut asked) = twin.step(step, number);
            let mut sent = Vec::new();
            match step {
                Step::Wait(ms) => lab.now_ns += ms * 1_000_000,
                Step::Sa(set, has_one) => _ = lab.change(|it| with_sa(it, set, has_one)),
                Step::Send(place, count) => {
                    let to: Address = std::net::IpAddr::from(host_of(place)).into();
                    let packets: Vec<Vec<u8>> = (1..=count as u16)
                        .map(|more| {
                            let from = packets::lab::host(Family::V4, 1);
                            PacketBuilder::new(from, to).udp(number + more, 2).ip()
                        })
                        .collect();
                    number += count as u16;
                    sent = lab.send_all(LAN, &packets).sent;
                }
            }
            prop_assert_eq!(lab.now_ns - begun, twin.now_ms * 1_000_000);
            sent.extend(lab.release());
            let mut left: [Vec<u16>; POLICIES] = Default::default();
            for sent in &sent {
                let mut peers = [BERLIN, CARLA].iter();
                let opened = peers.find_map(|set| lab.peer(*set).open(&sent.packet));
                let inner = opened.expect("sealed").inner;
                let place = usize::from(inner[19]) - 100;
                left[place].push(u16::from_be_bytes([inner[20], inner[21]]));
            }
            prop_assert_eq!(left, expected);
            let mut told: Vec<String> =
                lab.acquire_requests().into_iter().map(|asked| asked.policy).collect();
            told.sort();
            asked.sort();
            prop_assert_eq!(told, asked);
            let waiting: usize = twin.waiting.iter().map(Vec::len).sum();
            prop_assert_eq!((lab.waiting(), no_sa(&lab)), (waiting, twin.dropped));
            prop_assert_eq!(lab.counters().total().imbalance(), 0);
        }
    }
}

/// A port becomes another side's while packets that came by it wait.
#[test]
fn what_waits_for_an_sa_is_judged_again_where_sides_changed() {
    let packet = datagram(Family::V4, 1, 2).ip();
    let mut lab = asking().laboratory().live();
    assert_eq!(lab.send(LAN, &packet).verdicts, [WAITS]);
    let slot = usize::from(LAN.0);
    lab.change(|sources| {
        let lan = sources.ports.get(slot).expect("a port of the laboratory").clone();
        let info = dataplane::PortInfo { side: dataplane::Side::Unprotected, ..lan };
        sources.ports.set(slot, Some(info));
        with_sa(sources, BERLIN, true);
    });
    assert_eq!((lab.release(), lab.waiting()), (vec![], 0));
    let reasons = DropReason::ALL.iter().filter(|reason| lab.counters().dropped(**reason) > 0);
    let reasons: Vec<DropReason> = reasons.copied().collect();
    let fresh = lab.send(LAN, &packet);
    assert_eq!(fresh.verdicts, [Drop(reasons[0])], "as a fresh packet");
    assert_eq!((reasons.len(), no_sa(&lab)), (1, 0));
}
