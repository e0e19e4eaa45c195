//! Tags of a network card: whatever they say, verdicts and packets are those of the walk without
//! them; and one that counts saves the question. The card is emulated.

use std::cell::Cell;
use std::sync::Arc;

use dataplane::{
    CacheUse, CardMarks, Counters, FastPathUse, FastTier, FlowCache, Input, NetdevId, Outputs,
    Snapshot, Verdict, Walk,
};
use emulated_card::{EmulatedCard, Faults};
use io::MemoryFrames;
use offload::{
    Capabilities, Card as _, CardEvent, Effect, Ledger, Order, Problem, RuleAbilities, plan,
};
use packets::lab::{HOST_MAC, Hub, LAN, LAN_MAC, ROUTER_MAC, frame, policy, with_ports};
use policy::{Action, FlowAction, GroupMode, GroupSide, Policy, PolicyIndex, Refusal};
use proptest::prelude::*;
use proptest::sample::select;
use wire::build::PacketBuilder;
use wire::flow::protocol::{TCP, UDP};
use wire::link::ethertype;
use wire::mark::MarkVlan;
use wire::{BATCH, Descriptor, Frames as _, HEADROOM, Mark, Received};

use crate::groups::{group, with};

/// A rule, as it is drawn.
#[derive(Clone, Debug)]
struct Line {
    action: Action,
    from: &'static str,
    to: &'static str,
    upper: Option<(u8, &'static str)>,
}

/// A packet, as it is drawn: ends, ports, protocol.
#[derive(Clone, Debug)]
struct PacketLine {
    from: &'static str,
    to: &'static str,
    ports: (u16, u16),
    protocol: u8,
}

const ACTIONS: [Action; 4] = [
    Action::Permit(GroupMode::Enforce),
    Action::Deny(GroupMode::Enforce),
    Action::Permit(GroupMode::Audit),
    Action::Deny(GroupMode::Audit),
];
const FROM: [&str; 5] = ["any", "10.1.0.0/16", "10.1.0.5", "10.1.0.4-10.1.0.5", "2001:db8:1::/48"];
const TO: [&str; 4] = ["any", "10.12.0.0/16", "10.12.0.5", "2001:db8:12::5"];
const PORTS: [&str; 4] = ["80", "79-80", "1024-65535", "443"];

fn a_rule() -> impl Strategy<Value = Line> {
    let upper = prop::option::of((select(&[TCP, UDP][..]), select(&PORTS[..])));
    (select(&ACTIONS[..]), select(&FROM[..]), select(&TO[..]), upper)
        .prop_map(|(action, from, to, upper)| Line { action, from, to, upper })
}

/// Ends of packets: the first three go one route.
const ENDS: [(&str, &str); 6] = [
    ("10.1.0.5", "10.12.0.5"),
    ("10.1.0.4", "10.12.0.5"),
    ("10.1.0.6", "10.12.0.6"),
    ("2001:db8:1::5", "2001:db8:12::5"),
    // To a peer, and nowhere.
    ("10.1.0.5", "10.2.0.5"),
    ("10.1.0.5", "10.99.0.5"),
];

/// Packets of one route, of one route but for one packet, or of all routes.
fn packets() -> impl Strategy<Value = Vec<(PacketLine, u8)>> {
    let of = |ends: &'static [(&str, &str)], count| {
        prop::collection::vec((a_packet(ends), any::<u8>()), count)
    };
    let but_for_one = (of(&ENDS[..3], 1..BATCH - 1), of(&ENDS, 1..2)).prop_map(|(most, one)| {
        let at = usize::from(one[0].1) % (most.len() + 1);
        [&most[..at], &one, &most[at..]].concat()
    });
    prop_oneof![
        of(&ENDS[..3], 1..BATCH),
        of(&ENDS[3..4], 1..BATCH),
        but_for_one,
        of(&ENDS, 1..BATCH)
    ]
}

fn a_packet(ends: &'static [(&str, &str)]) -> impl Strategy<Value = PacketLine> {
    let ends = select(ends);
    let ports = (select(&[1, 1023, 1024, 65535][..]), select(&[79, 80, 81, 443, 1024][..]));
    (ends, ports, select(&[TCP, UDP, 1, 99][..]))
        .prop_map(|((from, to), ports, protocol)| PacketLine { from, to, ports, protocol })
}

impl PacketLine {
    fn frame(&self) -> Vec<u8> {
        let packet = PacketBuilder::between(self.from, self.to);
        let (source, destination) = self.ports;
        let packet = match self.protocol {
            TCP => packet.tcp(source, destination),
            UDP => packet.udp(source, destination),
            1 => packet.icmp(8, 0, [0; 4]),
            other => packet.protocol(other).payload_of(20),
        };
        let is_v6 = self.from.contains(':');
        let ethertype = if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        frame(LAN_MAC, HOST_MAC, None, ethertype, &packet.ip())
    }
}

/// The groups of lan: the rules in their order, then the last.
fn hub(lines: &[Line]) -> Hub {
    let rules = lines.iter().map(|line| {
        let rule = policy("rule", 0, line.action, &[line.from], &[line.to]);
        let rule = match line.upper {
            Some((protocol, ports)) => with_ports(rule, protocol, &[ports]),
            None => rule,
        };
        let (group, ingress) = (Some(GroupSide::In), Some([LAN.0].as_slice().into()));
        Policy { group, ingress, ..rule }
    });
    let mut hub = Hub::default();
    with(group(GroupSide::In, LAN, rules.collect(), GroupMode::Enforce))(&mut hub);
    hub
}

/// An emulated card on lan, with its ledger.
struct Carded {
    card: EmulatedCard,
    ledger: Ledger,
    now_ms: u64,
}

impl Carded {
    /// A card with as many of the rules as it may have.
    fn of(snapshot: &Snapshot, capabilities: Capabilities) -> Carded {
        let ledger = Ledger::new(capabilities.clone());
        let mut carded = Carded { card: EmulatedCard::new(capabilities, 7), ledger, now_ms: 0 };
        let spd = snapshot.spd();
        let rules: Vec<(PolicyIndex, &Policy)> =
            (0..spd.slots() as u32).map(PolicyIndex).map(|slot| (slot, spd.policy(slot))).collect();
        let plan = plan(&Problem {
            rules: &rules,
            ports: &[LAN.0],
            unused: &[],
            card: &carded.ledger.card().clone(),
            effect: Effect::Mark,
            own: &[],
            packets: &|slot| 1000 + u64::from(slot.0),
            standing: &carded.ledger.standing(),
            most_moves: usize::MAX,
        });
        carded.ledger.adopt(&plan).unwrap();
        for _ in 0..16 {
            carded.round();
        }
        carded
    }

    fn round(&mut self) {
        self.ledger.orders().give(&mut self.card);
        self.now_ms += 1000;
        self.card.advance(self.now_ms);
        let mut events: Vec<CardEvent> = Vec::new();
        self.card.poll(&mut events);
        events.iter().for_each(|event| drop(self.ledger.event(event)));
        self.ledger.look(&self.card);
    }

    /// The snapshot of a gateway that believes the card.
    fn snapshot(&self, hub: Hub) -> Snapshot {
        let mut hub = hub;
        let placements = Arc::new(self.ledger.placements());
        hub.parts.cards = Some(CardMarks::new([(LAN, placements)]).into());
        hub.snapshot()
    }
}

/// A mark with a card's tag.
fn tag(bits: u64) -> Mark {
    let mark = Mark {
        netdev: 0,
        vlan: MarkVlan::Untagged,
        incarnation: 1,
        generation: 0,
        zone: 0,
        verdict: 0,
        domain: 0,
    };
    mark.with_card_tag(bits)
}

/// Verdicts on a batch, and the frames that leave.
#[derive(PartialEq, Debug)]
struct Outcome {
    verdicts: Vec<Option<Verdict>>,
    sent: Vec<Vec<u8>>,
}

/// Walks packets with their marks, twice, so that a cache knows them.
fn walk(
    snapshot: &Snapshot,
    packets: &[(Vec<u8>, Option<Mark>)],
    (fast, remembers): (FastPathUse, bool),
) -> (Outcome, Counters) {
    let mut walk = Walk::new(snapshot);
    walk.use_fast_path(fast);
    walk.auditor().judge_one_of(1);
    if remembers {
        walk.take_cache(Some(cache()));
    }
    let first = walk_batch(&mut walk, snapshot, packets);
    let second = walk_batch(&mut walk, snapshot, packets);
    assert_eq!(first.verdicts, second.verdicts);
    assert_eq!(walk.auditor().disagreements().count(), 0);
    assert_eq!(walk.counters().audit.wrong, [0; 3]);
    (second, walk.counters().clone())
}

fn cache() -> FlowCache {
    FlowCache::new(64, &[42; 32], CacheUse::Always).unwrap()
}

/// Walks a batch of packets with their marks.
fn walk_batch(
    walk: &mut Walk,
    snapshot: &Snapshot,
    packets: &[(Vec<u8>, Option<Mark>)],
) -> Outcome {
    let mut frames = MemoryFrames::new(4 * BATCH as u32);
    let (mut received, mut marks) = (Vec::new(), Vec::new());
    for (bytes, mark) in packets {
        let frame = frames.take().unwrap();
        let (offset, length) = (HEADROOM as u32, bytes.len() as u32);
        frames.bytes_mut(frame)[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        marks.extend(*mark);
        let hint = mark.map_or(0, |_| marks.len() as u32);
        received.push(Received { packet: Descriptor { frame, offset, length }, hint });
    }
    let mut out = Outputs::default();
    let input = Input::received(NetdevId(0), &received).marked(&marks);
    walk.run(snapshot, 1_000_000_000, input, &mut frames, &mut out);
    let sent: Vec<_> = out.tx.iter().map(|sent| sent.packet).collect();
    let bytes = |packet: &Descriptor| {
        let start = packet.offset as usize;
        let frame = &frames.bytes(packet.frame)[start..start + packet.length as usize];
        // What is sealed is so with another number each time.
        let is_sealed = frame[..6] == ROUTER_MAC;
        if is_sealed { frame[..34].to_vec() } else { frame.to_vec() }
    };
    Outcome {
        verdicts: out.verdicts.iter().copied().take(packets.len()).collect(),
        sent: sent.iter().map(bytes).collect(),
    }
}

const WAYS: [(FastPathUse, bool); 4] = [
    (FastPathUse::Never, false),
    (FastPathUse::Never, true),
    (FastPathUse::Eager, false),
    (FastPathUse::Eager, true),
];

// HA-21
#[test]
fn tags_change_no_verdict_and_no_packet() {
    let tagged = Cell::new(0);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    let rules = prop::collection::vec(a_rule(), 0..8);
    let packets = packets();
    let card = (select(&Order::ALL[..]), 1..12u32, select(&[0u32, 0, 300][..]));
    proptest!(config, |(rules in rules, packets in packets, (order, entries, garbage) in card)| {
        let plain = hub(&rules).snapshot();
        let abilities = RuleAbilities { order, entries, ..RuleAbilities::default() };
        let mut carded = Carded::of(&plain, Capabilities::emulated(abilities));
        let believing = carded.snapshot(hub(&rules));
        carded.card.set_faults(Faults { garbage: garbage as _, ..Faults::default() });
        let list: Vec<_> = packets.iter().map(|(line, lost)| {
            let frame = line.frame();
            let mark = carded.card.receive(LAN.0, &frame).mark;
            // The card leaves some alone.
            let mark = (mark != 0 && lost % 4 != 0).then(|| tag(mark));
            (frame, mark)
        }).collect();
        let bare: Vec<_> = list.iter().map(|(frame, _)| (frame.clone(), None)).collect();
        let (expected, _) = walk(&plain, &bare, WAYS[0]);
        for way in WAYS {
            let (got, counters) = walk(&believing, &list, way);
            prop_assert_eq!(&got, &expected, "{:?} {:?}", way, rules);
            tagged.set(tagged.get() + counters.tagged);
            prop_assert_eq!(walk(&believing, &bare, way).1.tagged, 0);
            prop_assert_eq!(walk(&plain, &list, way).1.tagged, 0, "nobody says that they count");
        }
    });
    println!("{} packets were decided by their tags", tagged.get());
    assert!(tagged.get() > 10_000, "{}", tagged.get());
}

/// The packets that are judged by the rule that comes first, and those by the second.
const RULES: [Line; 2] = [
    Line {
        action: Action::Permit(GroupMode::Enforce),
        from: "10.1.0.5",
        to: "any",
        upper: Some((UDP, "80")),
    },
    Line { action: Action::Deny(GroupMode::Enforce), from: "10.1.0.5", to: "any", upper: None },
];

fn udp(port: u16) -> Vec<u8> {
    let (from, to, ports) = ("10.1.0.5", "10.12.0.5", (1, port));
    PacketLine { from, to, ports, protocol: UDP }.frame()
}

// HA-08
#[test]
fn tagged_and_untagged_packets_of_one_burst_leave_in_the_order_they_came() {
    let plain = hub(&RULES).snapshot();
    let carded = &mut Carded::of(&plain, Capabilities::emulated(RuleAbilities::default()));
    let believing = carded.snapshot(hub(&RULES));
    // The place of a packet in the burst is its source port. The fast path takes none with options.
    let numbered = |number: u16, options: &[u8]| {
        let packet = PacketBuilder::between("10.1.0.5", "10.12.0.5").udp(number, 80);
        frame(LAN_MAC, HOST_MAC, None, ethertype::IPV4, &packet.options(options).ip())
    };
    // One rule has them all, so all have one tag.
    let mark = tag(carded.card.receive(LAN.0, &numbered(0, &[])).mark);
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    let masks = (any::<u64>(), any::<u64>(), any::<u64>());
    proptest!(config, |((tags, ones, others) in masks, length in select(&[1, 2, 63, 64][..]))| {
        let is_in = |mask: u64, number: u16| mask >> number & 1 == 1;
        // A quarter has options and no tag.
        let (odd, tags) = (ones & others, tags & !(ones & others));
        let burst: Vec<_> = (0..length).map(|number| {
            let options: &[u8] = if is_in(odd, number) { &[1; 4] } else { &[] };
            (numbered(number, options), is_in(tags, number).then_some(mark))
        }).collect();
        let count = burst.iter().filter(|(_, mark)| mark.is_some()).count() as u64;
        for way in WAYS {
            let (outcome, counters) = walk(&believing, &burst, way);
            let order = outcome.sent.iter().map(|sent| {
                // Behind the headers of Ethernet and IPv4, whose lengths differ.
                let ports = sent.len() - (numbered(0, &[]).len() - 34);
                u16::from_be_bytes([sent[ports], sent[ports + 1]])
            });
            prop_assert!(order.eq(0..length), "{:?} {:#x} {:#x}", way, tags, odd);
            // The burst was walked twice. What has a tag is decided by it, all else is judged.
            prop_assert_eq!(counters.tagged, 2 * count);
        }
    });
}

/// The disagreements of one kind of tier, each with what it said and the tables say.
fn found(walk: &mut Walk) -> Vec<(FastTier, FlowAction, FlowAction)> {
    let found: Vec<_> = walk.auditor().disagreements().collect();
    found.into_iter().map(|it| (it.tier, it.said.action, it.judged.action)).collect()
}

#[test]
fn the_audit_finds_a_card_that_tags_wrongly() {
    for (fast, remembers) in WAYS {
        let plain = hub(&RULES).snapshot();
        let carded = &mut Carded::of(&plain, Capabilities::emulated(RuleAbilities::default()));
        let believing = carded.snapshot(hub(&RULES));
        let right = [80, 81].map(|port| tag(carded.card.receive(LAN.0, &udp(port)).mark));
        let mut walk = Walk::new(&believing);
        walk.use_fast_path(fast);
        walk.take_cache(remembers.then(cache));
        walk.auditor().judge_one_of(1);
        let of = |port, mark| [(udp(port), Some(mark))];
        for (port, mark) in [(80, right[0]), (81, right[1])] {
            walk_batch(&mut walk, &believing, &of(port, mark));
        }
        assert_eq!(found(&mut walk), []);
        // The tag of the rule that permits, on a packet that the other one denies.
        let outcome = walk_batch(&mut walk, &believing, &of(81, right[0]));
        assert_eq!(outcome.sent.len(), 1, "a card that lies is believed until it is found");
        let denied = FlowAction::Refuse(Refusal::GroupDeny);
        assert_eq!(found(&mut walk), [(FastTier::Card, FlowAction::Permit, denied)]);
        let counts = walk.counters().audit;
        let card = FastTier::Card as usize;
        assert_eq!((counts.judged[card], counts.wrong[card]), (3, 1));
        // One in a thousand, later: it is found then.
        walk.auditor().judge_one_of(1000);
        for _ in 0..999 {
            walk_batch(&mut walk, &believing, &of(81, right[0]));
        }
        assert_eq!(found(&mut walk), []);
        walk_batch(&mut walk, &believing, &of(81, right[0]));
        assert_eq!(found(&mut walk).len(), 1);
    }
}

#[test]
fn the_audit_finds_a_cache_that_remembers_wrongly() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        let snapshot = hub(&RULES).snapshot();
        // As if the cache had not heard of a change: the generations are the same.
        let [permit, deny] = RULES;
        let changed = hub(&[Line { action: deny.action, ..permit.clone() }, deny]).snapshot();
        let mut walk = Walk::new(&snapshot);
        walk.use_fast_path(fast);
        walk.take_cache(Some(cache()));
        walk.auditor().judge_one_of(1);
        let packets = [(udp(80), None)];
        (0..3).for_each(|_| drop(walk_batch(&mut walk, &snapshot, &packets)));
        assert_eq!(found(&mut walk), []);
        assert!(walk.counters().audit.judged[FastTier::Cache as usize] > 0);
        walk_batch(&mut walk, &changed, &packets);
        let denied = FlowAction::Refuse(Refusal::GroupDeny);
        assert_eq!(found(&mut walk), [(FastTier::Cache, FlowAction::Permit, denied)]);
        assert_eq!(walk.counters().audit.wrong, [1, 0, 0]);
    }
}
