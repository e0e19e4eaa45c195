//! Connections by two tiers against the walk alone: packets of random histories have the same
//! verdicts, the same connections are alive after any pause, and rules count the same packets.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bpf::tier::{FlowKey, Verdict};
use common::memory::Memory;
use common::picture::Picture;
use common::*;
use dataplane::connections::{Connections, LEEWAY_S, Limits, Place};
use dataplane::{Input, NetdevId, Outputs, Snapshot, Walk};
use endpoints::{Endpoint, EndpointKey, Table};
use placement::{Admission, Moment, Residents, Standing};
use policy::connection::{Segment, Timeouts};
use proptest::prelude::*;
use proptest::sample::select;
use wire::{Descriptor, FrameId, HEADROOM, LinkAddress};

/// Tenants that speak.
const SPEAKERS: u8 = 3;
const SECOND_NS: u64 = 1_000_000_000;
/// The kernel's clock is ahead of the walk's by this.
const AHEAD_NS: u64 = 77 * SECOND_NS + 123;
/// Nanoseconds between two looks at connections.
const LOOK_NS: u64 = SECOND_NS / 4;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

fn timeouts() -> Timeouts {
    Timeouts {
        tcp_syn_s: 7,
        tcp_established_s: 20,
        tcp_closing_s: 9,
        tcp_time_wait_s: 8,
        tcp_reset_s: 6,
        udp_unreplied_s: 5,
        udp_replied_s: 12,
        icmp_echo_s: 6,
        other_unreplied_s: 5,
        other_replied_s: 11,
    }
}

/// A tenant's packet.
#[derive(Clone, Copy, Debug)]
struct Packet {
    from: u8,
    to: u8,
    protocol: u8,
    /// Of TCP.
    flags: u8,
    bytes: u8,
}

impl Packet {
    /// Ports are the tenants' numbers, so that answers are answers; DNS is tenant 3's.
    fn ports(&self) -> [u16; 2] {
        [self.from, self.to].map(|tenant| if tenant == 3 { 53 } else { 1000 + u16::from(tenant) })
    }

    fn frame(&self) -> Vec<u8> {
        let [source, destination] = self.ports();
        carried(GROUPED, (self.from, self.to), |packet| {
            let packet = match self.protocol {
                6 => packet.tcp_with(source, destination, self.flags, None),
                17 => packet.udp(source, destination),
                1 => packet.icmp(8, 0, [0; 4]),
                other => packet.protocol(other),
            };
            packet.payload_of(self.bytes.into())
        })
    }

    /// The flow and the bytes of the tenant's packet, as the tier sees it. `None`: the packet is
    /// the workers', whatever verdicts there are.
    fn seen(&self) -> Option<(FlowKey, u64)> {
        const HEADERS: usize = 14 + 20 + 8 + 8 + 14;
        let packet = self.frame().split_off(HEADERS);
        let bytes = packet.len() as u64;
        let flow = wire::packet::parse(&packet).expect("a packet").flow;
        let is_steady = self.protocol != 6 || Segment::of_flags(self.flags) == Segment::Ack;
        FlowKey::of(GROUPED, &flow).filter(|_| is_steady).map(|key| (key, bytes))
    }

    /// It may change the status of a connection that is established.
    fn disturbs(&self) -> bool {
        self.protocol == 6 && Segment::of_flags(self.flags) != Segment::Ack
    }
}

/// A step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(Packet),
    /// The verdict on a packet's flow is to be placed, and on that of the answers.
    Place(Packet),
    Wait(u32),
    /// Connections that tenant 1 began are removed, or all.
    Clear(bool),
    Change(Rules),
}

fn a_packet() -> impl Strategy<Value = Packet> {
    let ends = (1..=SPEAKERS, 1..SPEAKERS).prop_map(|(from, other)| {
        let to = (from + other - 1) % SPEAKERS + 1;
        (from, to)
    });
    let protocol = select(&[6u8, 6, 6, 17, 17, 47, 1][..]);
    let flags = prop_oneof![
        6 => Just(ACK),
        3 => select(&[SYN, SYN | ACK, 0x11, RST, RST | ACK, 0x18][..]),
        1 => any::<u8>(),
    ];
    (ends, protocol, flags, 0u8..30).prop_map(|((from, to), protocol, flags, bytes)| Packet {
        from,
        to,
        protocol,
        flags,
        bytes,
    })
}

/// A handshake, and a few segments with the flows placed.
fn a_connection() -> impl Strategy<Value = Vec<Step>> {
    let later = prop::collection::vec((any::<bool>(), 0u32..5), 0..8);
    (a_packet(), later).prop_map(|(packet, later)| {
        let there = |flags| Step::Send(Packet { flags, ..packet });
        let back = |flags| Step::Send(Packet { from: packet.to, to: packet.from, flags, ..packet });
        let mut steps =
            vec![there(SYN), back(SYN | ACK), there(ACK), back(ACK), Step::Place(packet)];
        for (is_back, seconds) in later {
            steps.push(Step::Wait(seconds));
            steps.push(if is_back { back(ACK) } else { there(ACK) });
        }
        steps
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        20 => a_packet().prop_map(Step::Send),
        4 => a_packet().prop_map(Step::Place),
        5 => prop_oneof![3 => 0u32..3, 2 => 3u32..25].prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Clear),
        1 => select(&[Rules::Tracked, Rules::Guarded, Rules::Guarded, Rules::Open][..])
            .prop_map(Step::Change),
    ];
    let some = prop_oneof![6 => one.prop_map(|step| vec![step]), 1 => a_connection()];
    prop::collection::vec(some, 1..60).prop_map(|lists| lists.concat())
}

/// A gateway's walk with its connections.
struct Gateway {
    connections: Arc<Connections>,
    snapshot: Snapshot,
    walk: Walk,
    /// Packets and bytes by rule, under earlier rules.
    counted: BTreeMap<String, (u64, u64)>,
}

impl Gateway {
    fn new(table: &Arc<Table>) -> Gateway {
        let connections = Arc::new(Connections::new(Limits::of(256), timeouts(), &[3; 32]));
        let groups = (false, Rules::Guarded);
        let snapshot = remembering(table, groups, None, Some(connections.clone()));
        let walk = Walk::new(&snapshot);
        Gateway { connections, snapshot, walk, counted: BTreeMap::new() }
    }

    /// The gateway with other rules.
    fn next(&self, table: &Arc<Table>, rules: Rules) -> Snapshot {
        let connections = Some(self.connections.clone());
        remembering(table, (false, rules), Some(&self.snapshot), connections)
    }

    fn go_over(&mut self, next: Snapshot) {
        self.counted = self.counts();
        self.snapshot = next;
        self.walk = Walk::new(&self.snapshot);
    }

    /// Returns whether the walk sends a packet.
    fn sends(&mut self, packet: &Packet, now_ns: u64) -> bool {
        let frame = packet.frame();
        let mut memory = Memory::new(&frame);
        let descriptor =
            Descriptor { frame: FrameId(0), offset: HEADROOM as u32, length: frame.len() as u32 };
        let (mut out, packets) = (Outputs::default(), [descriptor.into()]);
        let input = Input::received(NetdevId(0), &packets);
        self.walk.run(&self.snapshot, now_ns, input, &mut memory, &mut out);
        out.tx.iter().any(|sent| sent.packet.frame == FrameId(0))
    }

    /// Packets and bytes by rule.
    fn counts(&self) -> BTreeMap<String, (u64, u64)> {
        let mut counts = self.counted.clone();
        let volumes = self.walk.counters().policy_outbound.iter();
        for ((_, rule), volume) in self.snapshot.spd().counted().zip(volumes) {
            let sum = counts.entry(rule.name.clone()).or_default();
            *sum = (sum.0 + volume.packets, sum.1 + volume.bytes);
        }
        counts.retain(|_, (packets, _)| *packets > 0);
        counts
    }

    /// The connections that are alive: ends, protocol, status, and seconds since they were seen.
    fn alive(&self, now_ns: u64) -> Vec<String> {
        let mut page = Vec::new();
        self.connections.page(Place(0), usize::MAX, (now_ns / SECOND_NS) as u32, &mut page);
        let mut alive: Vec<String> = page
            .iter()
            .map(|it| {
                let (from, to) = (it.originator, it.responder);
                let state = (it.protocol, it.status, it.idle_s);
                format!("{from:?} {to:?} {state:?}")
            })
            .collect();
        alive.sort_unstable();
        alive
    }

    fn clear(&self, all: bool, now_ns: u64) {
        let now_s = (now_ns / SECOND_NS) as u32;
        self.connections.clear(now_s, |it| all || it.originator.address == tenant(1));
    }
}

/// Packets by what became of them, so that the test is known to test.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    in_kernel: u64,
    sent_by_walk: u64,
    dropped: u64,
    placed: u64,
    ended: u64,
}

/// The walk alone, and two tiers.
struct Pair<'p> {
    table: Arc<Table>,
    alone: Gateway,
    below: Gateway,
    picture: &'p Picture,
    residents: Residents<&'p Picture>,
    now_ns: u64,
    /// Packets and bytes that the tier counted.
    counted: BTreeMap<String, (u64, u64)>,
    seen: Seen,
}

fn endpoints() -> Vec<Endpoint> {
    let endpoint = |number| Endpoint {
        key: EndpointKey { vni: vni(GROUPED), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    (1..=SPEAKERS).map(endpoint).collect()
}

impl<'p> Pair<'p> {
    fn begin(picture: &'p Picture) -> Pair<'p> {
        let table = table_of(&endpoints());
        let (alone, below) = (Gateway::new(&table), Gateway::new(&table));
        let mut residents = Residents::new(picture);
        let now_ns = 100 * SECOND_NS;
        picture.now_ns.set(now_ns + AHEAD_NS);
        residents.widen(&below.snapshot, place_of, now_ns + AHEAD_NS).unwrap();
        for Endpoint { key, .. } in endpoints() {
            residents.admit(key, &below.snapshot, place_of, now_ns + AHEAD_NS).unwrap();
        }
        let (counted, seen) = (BTreeMap::new(), Seen::default());
        Pair { table, alone, below, picture, residents, now_ns, counted, seen }
    }

    fn moment(&self) -> Moment {
        Moment { kernel_ns: self.now_ns + AHEAD_NS, walk_ns: self.now_ns }
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.picture.now_ns.set(self.moment().kernel_ns);
    }

    /// The control loop looks at connections.
    fn look(&mut self) {
        self.pass(LOOK_NS);
        let now = self.moment();
        let ended = self.residents.look_at_connections(&self.below.snapshot, now).unwrap();
        self.seen.ended += ended.len() as u64;
    }

    /// The control loop ends a period.
    fn end_period(&mut self) {
        let now = self.moment();
        for key in self.residents.void_flows() {
            self.residents.withdraw_flow(key, now.kernel_ns).unwrap();
        }
        let flows: Vec<FlowKey> = self.residents.flows().collect();
        self.residents.look_at_flows(&flows, &self.below.snapshot, now).unwrap();
        for (rule, volume) in self.residents.take_rule_use().unwrap() {
            let sum = self.counted.entry(rule.name.to_string()).or_default();
            *sum = (sum.0 + volume.packets, sum.1 + volume.bytes);
        }
    }

    /// Returns whether the two tiers send a packet.
    fn sends_below(&mut self, packet: &Packet) -> bool {
        let verdict = packet.seen().and_then(|(key, bytes)| {
            let (now, snapshot) = (self.moment(), &self.below.snapshot);
            let standing = self.residents.standing(vni(key.vni), &key.flow(), snapshot, now);
            let verdict = self.picture.judge(key, bytes);
            let told = match standing {
                Standing::Judged(verdict, _) => Some(verdict),
                Standing::Open | Standing::Leaves(_) => None,
            };
            assert_eq!(told, verdict, "{standing:?}");
            verdict
        });
        match verdict {
            Some(verdict) => {
                self.seen.in_kernel += 1;
                verdict == Verdict::Permit
            }
            None => self.below.sends(packet, self.now_ns),
        }
    }

    /// Sends a packet to both; returns what the walk alone does, and what the two tiers do.
    fn send(&mut self, packet: &Packet) -> [bool; 2] {
        let both = [self.alone.sends(packet, self.now_ns), self.sends_below(packet)];
        self.seen.sent_by_walk += u64::from(both[0]);
        self.seen.dropped += u64::from(!both[0]);
        both
    }

    fn place(&mut self, packet: &Packet) {
        let back = Packet { from: packet.to, to: packet.from, ..*packet };
        for packet in [*packet, back] {
            let Some((key, _)) = (Packet { flags: ACK, ..packet }).seen() else { continue };
            let now = self.moment();
            let done = self.residents.admit_flow(key, &self.below.snapshot, now).unwrap();
            self.seen.placed += u64::from(done == Admission::Admitted);
        }
    }

    fn change(&mut self, rules: Rules) {
        let kernel_ns = self.moment().kernel_ns;
        let next = self.below.next(&self.table, rules);
        self.residents.narrow(&next, place_of, kernel_ns).unwrap();
        self.below.go_over(next);
        self.residents.widen(&self.below.snapshot, place_of, kernel_ns).unwrap();
        let next = self.alone.next(&self.table, rules);
        self.alone.go_over(next);
    }

    fn clear(&mut self, all: bool) {
        self.alone.clear(all, self.now_ns);
        self.below.clear(all, self.now_ns);
        self.look();
    }

    fn wait(&mut self, seconds: u32) {
        for _ in 0..seconds {
            (0..SECOND_NS / LOOK_NS).for_each(|_| self.look());
            self.end_period();
        }
    }

    fn counts(&self) -> BTreeMap<String, (u64, u64)> {
        let mut counts = self.below.counts();
        for (name, (packets, bytes)) in &self.counted {
            let sum = counts.entry(name.clone()).or_default();
            *sum = (sum.0 + packets, sum.1 + bytes);
        }
        counts
    }

    /// Takes a step, after which the control loop has looked before the next packet comes.
    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Send(packet) => {
                let [alone, below] = self.send(&packet);
                prop_assert_eq!(alone, below, "{:?} at {}", packet, self.now_ns);
                if packet.disturbs() {
                    self.look();
                }
            }
            Step::Place(packet) => self.place(&packet),
            Step::Wait(seconds) => self.wait(seconds),
            Step::Clear(all) => self.clear(all),
            Step::Change(rules) => self.change(rules),
        }
        self.end_period();
        prop_assert_eq!(self.alone.alive(self.now_ns), self.below.alive(self.now_ns));
        prop_assert_eq!(self.alone.counts(), self.counts());
        Ok(())
    }

    fn add_to(&self, sum: &Cell<Seen>) {
        let (so_far, seen) = (sum.get(), self.seen);
        sum.set(Seen {
            in_kernel: so_far.in_kernel + seen.in_kernel,
            sent_by_walk: so_far.sent_by_walk + seen.sent_by_walk,
            dropped: so_far.dropped + seen.dropped,
            placed: so_far.placed + seen.placed,
            ended: so_far.ended + seen.ended,
        });
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

// AX-15
#[test]
fn two_tiers_say_and_remember_what_the_walk_alone_would() {
    let seen = Cell::new(Seen::default());
    proptest!(config(400), |(steps in steps())| {
        let picture = Picture::with_flows(64);
        let mut pair = Pair::begin(&picture);
        steps.into_iter().try_for_each(|step| pair.take(step))?;
        // Whatever pause follows, the same connections outlast it.
        for _ in 0..timeouts().tcp_established_s + LEEWAY_S {
            pair.take(Step::Wait(1))?;
        }
        pair.add_to(&seen);
    });
    println!("{:?}", seen.get());
    let Seen { in_kernel, sent_by_walk, dropped, placed, ended } = seen.get();
    assert!(
        in_kernel > 2000 && sent_by_walk > 3000 && dropped > 1000 && placed > 200 && ended > 50
    );
}

// AX-15
#[test]
fn before_the_control_loop_has_looked_two_tiers_permit_no_more_than_the_walk_alone() {
    let seen = Cell::new(Seen::default());
    proptest!(config(400), |(steps in steps())| {
        let picture = Picture::with_flows(64);
        let mut pair = Pair::begin(&picture);
        for step in steps {
            match step {
                Step::Send(packet) => {
                    let [alone, below] = pair.send(&packet);
                    prop_assert!(alone || !below, "{:?} at {}", packet, pair.now_ns);
                    pair.pass(SECOND_NS / 20);
                }
                Step::Place(packet) => pair.place(&packet),
                Step::Wait(seconds) => pair.wait(seconds),
                Step::Clear(all) => pair.clear(all),
                Step::Change(rules) => pair.change(rules),
            }
        }
        pair.add_to(&seen);
    });
    println!("{:?}", seen.get());
    assert!(seen.get().in_kernel > 2000);
}
