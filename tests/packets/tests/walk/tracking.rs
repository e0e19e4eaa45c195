//! Connections against a naive model: random rules, packets in any order, lost and repeated ones,
//! rules that change, time that passes, and two workers that share the table, each with or without
//! a flow cache and the fast path.
//!
//! The model reads the rules of each port one after the other, every time, and keeps connections
//! in a map. What a packet does to a connection it takes from [`policy::connection`], which has a
//! model of its own.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::connections::{Connections, Limits, Place};
use dataplane::{DropReason, FastPathUse, PortId, Verdict};
use packets::lab::{Hub, LAN, LAN2, Laboratory, WAN, host, with_ports};
use policy::connection::{self, Event, Next, Segment, Shown, Side, Status, Timeouts};
use policy::{Action, GroupMode, GroupSide, Policy, PolicyId, Spd};
use proptest::prelude::*;
use proptest::sample::select;
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::{ICMP, ICMPV6, TCP, UDP};

use crate::groups::{group, rule};

/// The networks behind the ports. All policies let packets between them pass in cleartext.
const NETWORKS: [(u32, PortId); 3] = [(1, LAN), (12, LAN2), (8, WAN)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Permit,
    Deny,
    Reflect,
}

/// A rule: its networks are places in [`NETWORKS`]; empty means any.
#[derive(Clone, Debug)]
struct Rule {
    kind: Kind,
    from: Vec<usize>,
    to: Vec<usize>,
    /// A protocol, of packets to port 80.
    service: Option<u8>,
}

/// The rules of both sides of the three ports; `None`: no groups there.
type Rules = [[Option<Vec<Rule>>; 2]; 3];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// TCP flags, from the client or the server.
    Tcp(u8),
    Udp,
    /// An echo request of the client, or a reply.
    Echo {
        is_reply: bool,
    },
    /// An ICMP error about a datagram or segment of the other end.
    Error {
        about: u8,
    },
}

/// A packet between a client in one network and a server in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packet {
    client: usize,
    server: usize,
    /// The client's port, or the identifier of an echo.
    port: u16,
    /// True if the server sends it.
    is_turned: bool,
    content: Content,
}

#[derive(Clone, Debug)]
enum Step {
    /// Packets that come by one port, together, at a worker.
    Packets(Vec<Packet>, usize),
    Wait(u32),
    Change(usize, usize, Option<Vec<Rule>>),
}

impl Packet {
    /// Places of sender and receiver.
    fn ends(&self) -> (usize, usize) {
        if self.is_turned { (self.server, self.client) } else { (self.client, self.server) }
    }

    fn bytes(&self, family: Family) -> Vec<u8> {
        let (from, to) = self.ends();
        let of = |from: usize, to: usize| {
            PacketBuilder::new(host(family, NETWORKS[from].0), host(family, NETWORKS[to].0))
        };
        let ports = |turned: bool| if turned { (80, self.port) } else { (self.port, 80) };
        let (source, destination) = ports(self.is_turned);
        let builder = of(from, to);
        match self.content {
            Content::Tcp(flags) => builder.tcp_with(source, destination, flags, None).ip(),
            Content::Udp => builder.udp(source, destination).payload_of(9).ip(),
            Content::Echo { is_reply } => {
                let kind = match (family, is_reply) {
                    (V4, false) => 8,
                    (V4, true) => 0,
                    (V6, false) => 128,
                    (V6, true) => 129,
                };
                let [high, low] = self.port.to_be_bytes();
                builder.icmp(kind, 0, [high, low, 0, 1]).ip()
            }
            Content::Error { about } => {
                let (source, destination) = ports(!self.is_turned);
                let quoted = of(to, from);
                let quoted = match about {
                    TCP => quoted.tcp_with(source, destination, 0x10, None).ip(),
                    _ => quoted.udp(source, destination).ip(),
                };
                let kind = if family == V4 { 3 } else { 1 };
                builder.icmp(kind, 1, [0; 4]).payload(&quoted).ip()
            }
        }
    }

    /// Protocol and destination port, for the rules.
    fn service(&self) -> (Option<u8>, u16) {
        let port = if self.is_turned { self.port } else { 80 };
        match self.content {
            Content::Tcp(_) => (Some(TCP), port),
            Content::Udp => (Some(UDP), port),
            Content::Echo { .. } | Content::Error { .. } => (None, 0),
        }
    }
}

impl Rule {
    fn policy(&self, side: GroupSide, port: PortId) -> Policy {
        let networks = |of: &[usize]| of.iter().map(|place| NETWORKS[*place].0).collect::<Vec<_>>();
        let mode = GroupMode::Enforce;
        let action = match self.kind {
            Kind::Permit => Action::Permit(mode),
            Kind::Deny => Action::Deny(mode),
            Kind::Reflect => Action::Reflect(mode),
        };
        let policy = rule(side, port, action, &networks(&self.from), &networks(&self.to));
        match self.service {
            Some(protocol) => with_ports(policy, protocol, &["80"]),
            None => policy,
        }
    }

    fn matches(&self, (from, to): (usize, usize), (protocol, port): (Option<u8>, u16)) -> bool {
        (self.from.is_empty() || self.from.contains(&from))
            && (self.to.is_empty() || self.to.contains(&to))
            && self.service.is_none_or(|wanted| protocol == Some(wanted) && port == 80)
    }
}

/// The packet that began a connection, without what a later packet changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flow {
    ends: (usize, usize),
    service: (Option<u8>, u16),
}

/// All that tells connections apart in one zone: the ends in a fixed order, with their ports.
type Key = (usize, [(usize, u16); 2], u8);

#[derive(Clone, Copy, Debug)]
struct Entry {
    status: Status,
    seen_s: u32,
    /// The end that began it.
    originator: (usize, u16),
    side: GroupSide,
    first: Flow,
}

#[derive(Default)]
struct Model {
    connections: HashMap<Key, Entry>,
    now_s: u32,
}

impl Model {
    fn key(zone: usize, packet: &Packet) -> (Key, (usize, u16), Shown) {
        let (mut from, mut to) = packet.ends();
        let mut ports = if packet.is_turned { (80, packet.port) } else { (packet.port, 80) };
        let (number, shown) = match packet.content {
            Content::Tcp(flags) => (TCP, Shown::Tcp(Segment::of_flags(flags))),
            Content::Udp => (UDP, Shown::Udp),
            Content::Echo { is_reply } => {
                // Who asks is told apart from who answers.
                let asker = if is_reply { to } else { from };
                ports = (packet.port, packet.port);
                (100 + asker as u8, if is_reply { Shown::EchoReply } else { Shown::EchoRequest })
            }
            Content::Error { about } => {
                (from, to) = (to, from);
                ports = (ports.1, ports.0);
                (if about == TCP { TCP } else { UDP }, Shown::IcmpError)
            }
        };
        let (sender, other) = ((from, ports.0), (to, ports.1));
        let mut ends = [sender, other];
        ends.sort_unstable();
        ((zone, ends, number), sender, shown)
    }

    /// The first rule that matches, of a side of a port.
    fn first_match(rules: &Rules, at: (usize, GroupSide), of: Flow) -> Option<&Rule> {
        let rules = rules[at.0][at.1 as usize].as_ref()?;
        rules.iter().find(|rule| rule.matches(of.ends, of.service))
    }

    /// Returns whether the packet is of a connection at a port.
    fn knows(&mut self, rules: &Rules, zone: usize, packet: &Packet) -> bool {
        let (key, sender, shown) = Model::key(zone, packet);
        let Some(entry) = self.connections.get(&key).copied() else { return false };
        if self.now_s - entry.seen_s >= Timeouts::default().of(entry.status) {
            self.connections.remove(&key);
            return false;
        }
        let from = if sender == entry.originator { Side::Originator } else { Side::Responder };
        if connection::next(Some(entry.status), Event { from, shown }) == Next::IsNew {
            return false;
        }
        let now = Model::first_match(rules, (zone, entry.side), entry.first);
        let stays = now.is_some_and(|rule| rule.kind == Kind::Reflect);
        if !stays {
            self.connections.remove(&key);
        }
        stays
    }

    fn observe(&mut self, zone: usize, packet: &Packet) {
        let (key, sender, shown) = Model::key(zone, packet);
        let entry = self.connections.get_mut(&key).unwrap();
        let from = if sender == entry.originator { Side::Originator } else { Side::Responder };
        match connection::next(Some(entry.status), Event { from, shown }) {
            Next::Begins(status) | Next::Continues(status) | Next::Resets(status) => {
                (entry.status, entry.seen_s) = (status, self.now_s);
            }
            Next::Keeps(status) => entry.status = status,
            Next::IsNew | Next::MakesNone => {}
        }
    }

    fn begin(&mut self, zone: usize, packet: &Packet, side: GroupSide) {
        let (key, originator, shown) = Model::key(zone, packet);
        let event = Event { from: Side::Originator, shown };
        let Next::Begins(status) = connection::next(None, event) else { return };
        let first = Flow { ends: packet.ends(), service: packet.service() };
        let entry = Entry { status, seen_s: self.now_s, originator, side, first };
        self.connections.insert(key, entry);
    }

    fn judge(&mut self, rules: &Rules, packet: &Packet) -> Verdict {
        let (from, to) = packet.ends();
        let flow = Flow { ends: (from, to), service: packet.service() };
        let zones = [(from, GroupSide::In), (to, GroupSide::Out)];
        let tracks = |zone: usize| {
            let all = rules[zone].iter().flatten().flatten();
            all.clone().any(|rule| rule.kind == Kind::Reflect)
        };
        let known = zones.map(|(zone, _)| tracks(zone) && self.knows(rules, zone, packet));
        for ((zone, side), known) in zones.into_iter().zip(known) {
            if known || rules[zone][side as usize].is_none() {
                continue;
            }
            match Model::first_match(rules, (zone, side), flow).map(|rule| rule.kind) {
                Some(Kind::Permit | Kind::Reflect) => {}
                Some(Kind::Deny) => return Verdict::Drop(DropReason::GroupDeny),
                None => return Verdict::Drop(DropReason::GroupNoMatch),
            }
        }
        for ((zone, side), known) in zones.into_iter().zip(known) {
            let first = Model::first_match(rules, (zone, side), flow);
            match known {
                true => self.observe(zone, packet),
                false if first.is_some_and(|rule| rule.kind == Kind::Reflect) => {
                    self.begin(zone, packet, side);
                }
                false => {}
            }
        }
        Verdict::Forward(NETWORKS[to].1)
    }
}

fn a_rule() -> impl Strategy<Value = Rule> {
    let kind = select(vec![Kind::Permit, Kind::Deny, Kind::Reflect, Kind::Reflect]);
    let networks = || proptest::collection::vec(0..3usize, 0..2);
    let service = prop_oneof![2 => Just(None), 1 => Just(Some(TCP)), 1 => Just(Some(UDP))];
    (kind, networks(), networks(), service).prop_map(|(kind, from, to, service)| Rule {
        kind,
        from,
        to,
        service,
    })
}

fn side_rules() -> impl Strategy<Value = Option<Vec<Rule>>> {
    prop_oneof![
        1 => Just(None),
        2 => proptest::collection::vec(a_rule(), 0..3).prop_map(Some),
    ]
}

fn a_packet() -> impl Strategy<Value = Packet> {
    let flags = select(vec![0x02, 0x02, 0x12, 0x10, 0x10, 0x18, 0x11, 0x04, 0x14, 0x03, 0x00]);
    let content = prop_oneof![
        6 => flags.prop_map(Content::Tcp),
        2 => Just(Content::Udp),
        1 => any::<bool>().prop_map(|is_reply| Content::Echo { is_reply }),
        1 => select(vec![TCP, UDP]).prop_map(|about| Content::Error { about }),
    ];
    let pair = select(vec![(0, 1), (0, 2), (1, 2), (2, 0)]);
    (pair, 4000u16..4002, any::<bool>(), content).prop_map(
        |((client, server), port, is_turned, content)| {
            // Replies come from the server.
            let is_turned = match content {
                Content::Echo { is_reply } => is_reply,
                _ => is_turned,
            };
            Packet { client, server, port, is_turned, content }
        },
    )
}

/// A TCP connection that is set up, some segments of it that follow each other at once, and what
/// comes then: nearly all that a gateway sees.
fn a_conversation() -> impl Strategy<Value = Vec<Packet>> {
    let pair = select(vec![(0, 1), (0, 2), (1, 2), (2, 0)]);
    let data = || proptest::collection::vec(any::<bool>(), 0..9);
    let end = proptest::collection::vec(
        (any::<bool>(), select(vec![0x10, 0x18, 0x11, 0x14, 0x04, 0x02])),
        0..4,
    );
    (pair, 4000u16..4002, data(), end, data()).prop_map(
        |((client, server), port, data, end, more)| {
            let of = |(is_turned, flags)| {
                let content = Content::Tcp(flags);
                Packet { client, server, port, is_turned, content }
            };
            let acks = |of: Vec<bool>| of.into_iter().map(|is_turned| (is_turned, 0x10));
            let begin = [(false, 0x02), (true, 0x12), (false, 0x10)];
            let all = begin.into_iter().chain(acks(data)).chain(end).chain(acks(more));
            all.map(of).collect()
        },
    )
}

/// Some TCP connections whose originators send one segment after the other, so that the flows are
/// marked, and then segments of all kinds, SYNs of others among them.
fn a_mixed_batch() -> impl Strategy<Value = Vec<Packet>> {
    const FLAGS: [u8; 8] = [0x10, 0x10, 0x10, 0x10, 0x02, 0x11, 0x04, 0x10];
    let pair = select(vec![(0, 1), (0, 2), (2, 0)]);
    let mix = proptest::collection::vec((0..5u16, select(FLAGS.to_vec())), 1..40);
    (pair, 1..4u16, mix).prop_map(|((client, server), marked, mix)| {
        let of = |(number, is_turned, flags): (u16, bool, u8)| {
            let content = Content::Tcp(flags);
            Packet { client, server, port: 4000 + number, is_turned, content }
        };
        let begin = [(false, 0x02), (true, 0x12), (false, 0x10), (false, 0x10), (false, 0x10)];
        let begin = (0..marked)
            .flat_map(|number| begin.map(|(is_turned, flags)| (number, is_turned, flags)));
        let again = [0x10; 2].into_iter().flat_map(|flags| (0..marked).map(move |it| (it, flags)));
        let one_way = again.chain(mix).map(|(number, flags)| (number, false, flags));
        begin.chain(one_way).map(of).collect()
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    let packets = prop_oneof![
        3 => proptest::collection::vec(a_packet(), 1..12),
        1 => a_conversation(),
        1 => a_mixed_batch(),
    ];
    let seconds = select(vec![1, 9, 10, 29, 30, 59, 119, 120, 179, 180]);
    prop_oneof![
        12 => (packets, 0..2usize).prop_map(|(packets, worker)| Step::Packets(packets, worker)),
        2 => seconds.prop_map(Step::Wait),
        1 => (0..3usize, 0..2usize, side_rules())
            .prop_map(|(port, side, rules)| Step::Change(port, side, rules)),
    ]
}

/// The gateway's policies with these rules, whose ids begin at `first`.
fn policies(rules: &Rules, first: u32) -> Vec<Policy> {
    let mut policies = Hub::default().policies;
    let mut groups = Vec::new();
    for ((_, port), sides) in NETWORKS.iter().zip(rules) {
        for (side, rules) in GroupSide::ALL.into_iter().zip(sides) {
            let Some(rules) = rules else { continue };
            let rules = rules.iter().map(|rule| rule.policy(side, *port)).collect();
            groups.extend(group(side, *port, rules, GroupMode::Enforce));
        }
    }
    let groups = (first..).map(PolicyId).zip(groups);
    policies.extend(groups.map(|(id, policy)| Policy { id, ..policy }));
    policies
}

const ROOM: usize = 4000;

/// A connection as both sides tell it: place of its zone's port, originator, protocol, status, and
/// seconds since it was seen.
type Told = (usize, (usize, u16), u8, Status, u32);

/// The connections of a table whose time-outs have not passed.
fn told_by_table(table: &Connections, now_s: u32) -> Vec<Told> {
    let mut page = Vec::new();
    assert_eq!(table.page(Place(0), usize::MAX, now_s, &mut page), None);
    let told = page.into_iter().map(|it| {
        let zone = NETWORKS.iter().position(|(_, port)| port.0 == it.zone.attachment).unwrap();
        let network = |(number, _): &(u32, PortId)| {
            [V4, V6].iter().any(|family| host(*family, *number) == it.originator.address)
        };
        let originator = NETWORKS.iter().position(network).unwrap();
        let protocol = if matches!(it.protocol, ICMP | ICMPV6) { ICMP } else { it.protocol };
        (zone, (originator, it.originator.port), protocol, it.status, it.idle_s)
    });
    sorted(told.collect())
}

fn told_by_model(model: &Model) -> Vec<Told> {
    let told = model.connections.iter().map(|((zone, _, protocol), entry)| {
        let protocol = if *protocol >= 100 { ICMP } else { *protocol };
        (*zone, entry.originator, protocol, entry.status, model.now_s - entry.seen_s)
    });
    let lives = |told: &Told| told.4 < Timeouts::default().of(told.3);
    sorted(told.filter(lives).collect())
}

fn sorted(mut told: Vec<Told>) -> Vec<Told> {
    told.sort_unstable_by_key(|it| format!("{it:?}"));
    told
}

fn worker(
    spd: &Spd,
    connections: &Arc<Connections>,
    (use_, has_cache): (FastPathUse, bool),
) -> Laboratory {
    let mut hub = Hub::default();
    hub.parts.connections = Some(connections.clone());
    hub.spd = Some(spd.clone());
    let lab = hub.laboratory().with_fast_path(use_);
    if has_cache { lab.remembering(1 << 8) } else { lab }
}

// hostile T3
#[test]
fn an_unasked_echo_reply_lets_no_request_in() {
    let any = Rule { kind: Kind::Reflect, from: Vec::new(), to: Vec::new(), service: None };
    let mut rules: Rules = Default::default();
    rules[0] = [Some(vec![any]), Some(Vec::new())];
    for family in [V4, V6] {
        let limits = Limits::of(64);
        let connections = Arc::new(Connections::new(limits, Timeouts::default(), &[3; 32]));
        let spd = Spd::with_room(policies(&rules, 1000), ROOM).unwrap();
        let mut lab = worker(&spd, &connections, (FastPathUse::Eager, true));
        let mut verdict_on = |sender: usize, is_reply: bool, asker: usize| {
            let server = [2, 0][asker / 2];
            let (client, content) = (asker, Content::Echo { is_reply });
            let packet = Packet { client, server, port: 77, is_turned: is_reply, content };
            let bytes = packet.bytes(family);
            lab.send_all(NETWORKS[sender].1, &[bytes]).verdicts[0]
        };
        let (inside, outside) = (0, 2);
        let denied = Verdict::Drop(DropReason::GroupNoMatch);
        assert_eq!(verdict_on(inside, true, outside), Verdict::Forward(WAN));
        assert_eq!(connections.counts().lines, 0, "a reply begins nothing");
        assert_eq!(verdict_on(outside, false, outside), denied);
        assert_eq!(verdict_on(inside, false, inside), Verdict::Forward(WAN));
        assert_eq!(verdict_on(outside, true, inside), Verdict::Forward(LAN));
        assert_eq!(verdict_on(outside, false, outside), denied, "an answer is no request");
    }
}

fn a_worker() -> impl Strategy<Value = (FastPathUse, bool)> {
    (select(vec![FastPathUse::Eager, FastPathUse::Never]), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    // REPLY
    #[test]
    fn every_packet_is_judged_as_by_the_model(
        family in select(vec![V4, V6]),
        mut rules in proptest::array::uniform3([side_rules(), side_rules()]),
        steps in proptest::collection::vec(a_step(), 1..60),
        workers in [a_worker(), a_worker()],
    ) {
        let limits = Limits { per_zone: 1024, half_open: 1024, ..Limits::of(1024) };
        let limits = Limits { half_open_per_zone: 1024, ..limits };
        let connections = Arc::new(Connections::new(limits, Timeouts::default(), &[3; 32]));
        let mut spd = Spd::with_room(policies(&rules, 1000), ROOM).unwrap();
        let mut labs = workers.map(|how| worker(&spd, &connections, how));
        let mut model = Model { now_s: 1, ..Model::default() };
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(seconds) => {
                    prop_assert_eq!(
                        told_by_table(&connections, model.now_s), told_by_model(&model)
                    );
                    model.now_s += seconds;
                    for lab in &mut labs {
                        lab.now_ns += u64::from(seconds) * 1_000_000_000;
                        lab.tick();
                    }
                }
                Step::Change(port, side, to) => {
                    rules[port][side] = to;
                    let first = 2000 + number as u32 * 100;
                    spd = spd.renewed(policies(&rules, first), ROOM).unwrap().0;
                    for lab in &mut labs {
                        lab.change(|sources| sources.spd = spd.clone().into());
                    }
                }
                Step::Packets(packets, worker) => {
                    // A batch is judged flow by flow: errors about a flow may overtake it there.
                    let is_error = |packet: &Packet| {
                        matches!(packet.content, Content::Error { .. })
                    };
                    let together = |a: &Packet, b: &Packet| {
                        a.ends().0 == b.ends().0 && is_error(a) == is_error(b)
                    };
                    for alike in packets.chunk_by(together) {
                        let bytes: Vec<_> = alike.iter().map(|it| it.bytes(family)).collect();
                        let port = NETWORKS[alike[0].ends().0].1;
                        let told = labs[worker].send_all(port, &bytes).verdicts;
                        let expected: Vec<_> =
                            alike.iter().map(|packet| model.judge(&rules, packet)).collect();
                        prop_assert_eq!(told, expected, "{:?}\n{:?}", alike, model.connections);
                    }
                }
            }
        }
        prop_assert_eq!(told_by_table(&connections, model.now_s), told_by_model(&model));
    }
}
