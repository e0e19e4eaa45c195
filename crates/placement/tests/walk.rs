//! The kernel tier against the walk, over random endpoints, rules, placements and frames: what the
//! program transmits is byte for byte what the walk sends, what it drops the walk drops by a rule,
//! or the frame is a miss.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use bpf::tier::{FlowKey, QUARANTINE, Tier};
use bpf::{Action, AnsweredSample, Counter, Steering};
use common::memory::Memory;
use common::*;
use dataplane::connections::{Connections, Key, Limits, Zone};
use dataplane::{DropReason, Input, NetdevId, Outputs, PortId, Snapshot, Verdict, Walk};
use endpoints::Endpoint;
use placement::{Admission, Again, Moment, Residents};
use policy::connection::{Segment, Shown, Timeouts};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wire::build::PacketBuilder;
use wire::overlay::Kind;
use wire::{Address, Descriptor, FrameId, HEADROOM, Mark, Received};

/// A tenant's frame.
#[derive(Clone, Debug)]
enum Content {
    Packet { protocol: u8, flags: u8, bytes: usize, hops: u8, options: bool, fragment: bool },
    Arp { operation: u8, sender_mac: Option<u8>, no_sender: bool, trailer: usize },
    Ipv6,
}

/// A frame to the gateway, right or nearly so.
#[derive(Clone, Debug)]
struct Draft {
    network: u32,
    kind: Kind,
    is_tagged: bool,
    host: &'static str,
    from: u8,
    to: u8,
    /// Whose link address the tenant's frame is from.
    speaks_as: Option<u8>,
    to_group: bool,
    content: Content,
    options: Vec<u8>,
    entrance: Option<&'static str>,
    hops: u8,
    has_checksum: bool,
    padding: usize,
    damage: Option<(usize, u8)>,
}

fn a_content() -> impl Strategy<Value = Content> {
    let bytes = prop_oneof![4 => 0usize..80, 1 => 780usize..880, 1 => 1380usize..1460];
    let flags = select(&[0x10u8, 0x18, 0x10, 0x18, 0x02, 0x11, 0x14, 0x12][..]);
    let hops = prop_oneof![20 => Just(64u8), 1 => select(&[255u8, 1, 0][..])];
    let (rarely, no) = (prop::bool::weighted(0.05), prop::bool::weighted(0.05));
    prop_oneof![
        6 => (select(&[6u8, 17, 17, 1, 50, 47][..]), flags, bytes, hops, rarely, no).prop_map(
            |(protocol, flags, bytes, hops, options, fragment)| Content::Packet {
                protocol, flags, bytes, hops, options, fragment,
            },
        ),
        2 => (
            select(&[1u8, 1, 1, 1, 1, 2, 3][..]),
            prop_oneof![9 => Just(None), 1 => (1..=TENANTS).prop_map(Some)],
            prop::bool::weighted(0.05),
            select(&[0usize, 0, 0, 18][..]),
        ).prop_map(|(operation, sender_mac, no_sender, trailer)| Content::Arp {
            operation, sender_mac, no_sender, trailer,
        }),
        1 => Just(Content::Ipv6),
    ]
}

fn options_of_geneve() -> impl Strategy<Value = Vec<u8>> {
    let option = (
        select(&[0x0111u16, 0x0111, 0x0102][..]),
        select(&[0x48u8, 0x49, 0xc8, 0xc9, 0xca, 0x4a][..]),
        0u8..3,
    );
    let option = option.prop_map(|(class, kind, words)| {
        let mut bytes = class.to_be_bytes().to_vec();
        bytes.extend([kind, words]);
        bytes.resize(4 + usize::from(words) * 4, 0xaa);
        bytes
    });
    prop_oneof![
        3 => Just(Vec::new()),
        2 => prop::collection::vec(option, 1..6).prop_map(|list| list.concat()),
    ]
}

/// A frame of an endpoint to another of a world, with a few things that are others.
fn a_draft(endpoints: Vec<Endpoint>) -> impl Strategy<Value = Draft> {
    let from = select(endpoints);
    let others = (
        prop_oneof![12 => Just(None), 1 => select(&[PLAIN, GENEVE, 12][..]).prop_map(Some)],
        prop_oneof![12 => Just(None), 1 => select(&HOSTS[..]).prop_map(Some)],
        prop_oneof![12 => Just(None), 1 => (1..=TENANTS).prop_map(Some)],
        prop_oneof![20 => Just(None), 1 => select(&["10.9.0.1", "10.1.0.7"][..]).prop_map(Some)],
        prop_oneof![12 => Just(None), 1 => (14usize..110, any::<u8>()).prop_map(Some)],
    );
    let rest = (
        1..=TENANTS,
        prop::bool::weighted(0.05),
        options_of_geneve(),
        prop_oneof![20 => Just(64u8), 1 => select(&[2u8, 1, 0][..])],
        any::<bool>(),
        prop_oneof![12 => Just(0usize), 1 => 1usize..9],
    );
    (from, a_content(), others, rest).prop_map(|(from, content, others, rest)| {
        let (network, host, speaks_as, entrance, damage) = others;
        let (to, to_group, options, hops, has_checksum, padding) = rest;
        let own = from.key.vni.get();
        let lives = HOSTS.iter().find(|host| v4(host) == from.host).expect("one of the hosts");
        Draft {
            network: network.unwrap_or(own),
            kind: if own == GENEVE { Kind::Geneve } else { Kind::Vxlan },
            is_tagged: own == TAGGED,
            host: host.unwrap_or(lives),
            from: from.key.address.value as u8,
            to,
            speaks_as,
            to_group,
            content,
            options: if own == GENEVE { options } else { Vec::new() },
            entrance,
            hops,
            has_checksum,
            padding,
            damage,
        }
    })
}

impl Draft {
    fn tenant_frame(&self) -> Vec<u8> {
        let source = mac_of(self.speaks_as.unwrap_or(self.from));
        let destination = if self.to_group { [0xff; 6] } else { [2, 7, 7, 7, 7, 7] };
        let (from, to) = (tenant(self.from), tenant(self.to));
        match &self.content {
            Content::Packet { protocol, flags, bytes, hops, options, fragment } => {
                let packet = PacketBuilder::new(from, to);
                let mut packet = match protocol {
                    6 => packet.tcp_with(40_000, 443, *flags, None),
                    17 => packet.udp(5000, 53),
                    1 => packet.icmp(8, 0, [0; 4]),
                    other => packet.protocol(*other),
                };
                packet = packet.payload_of(*bytes).hop_limit(*hops);
                if *options {
                    packet = packet.options(&[1, 1, 1, 1]);
                }
                if *fragment {
                    packet = packet.fragment(1, false);
                }
                packet.frame(destination, source, None)
            }
            Content::Arp { operation, sender_mac, no_sender, trailer } => {
                let sender = sender_mac.map_or(source, mac_of);
                let from = if *no_sender { [0; 4] } else { (from.value as u32).to_be_bytes() };
                let mut frame = [[0xff; 6], source].concat();
                frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, *operation]);
                frame.extend(sender);
                frame.extend(from);
                frame.extend([0; 6]);
                frame.extend((to.value as u32).to_be_bytes());
                frame.resize(frame.len() + trailer, 0);
                frame
            }
            Content::Ipv6 => {
                let of = |number: u8| Address::v6(0xfd00 << 112 | u128::from(number));
                PacketBuilder::new(of(self.from), of(self.to)).udp(1, 2).payload_of(9).frame(
                    destination,
                    source,
                    None,
                )
            }
        }
    }

    /// The flow of the tenant's packet.
    fn flow(&self) -> Option<FlowKey> {
        let packet = self.tenant_frame().split_off(14);
        let packet = wire::packet::parse(&packet).ok()?;
        FlowKey::of(self.network, &packet.flow)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut overlay = self.kind.header(vni(self.network)).to_vec();
        if self.kind == Kind::Geneve {
            overlay[0] = (self.options.len() / 4) as u8;
        }
        overlay.extend(&self.options);
        overlay.extend(self.tenant_frame());
        let own = if self.is_tagged { "10.9.0.1" } else { "10.1.0.1" };
        let (mac, vlan) = match self.is_tagged {
            true => (MACS[1], Some(DMZ_VLAN)),
            false => (MACS[0], None),
        };
        let mut outer = PacketBuilder::new(v4(self.host), v4(self.entrance.unwrap_or(own)))
            .udp(0xc123, self.kind.udp_port())
            .payload(&overlay)
            .hop_limit(self.hops);
        if !self.has_checksum {
            outer = outer.no_upper_checksum();
        }
        let mut frame = outer.frame(mac, [2, 9, 0, 0, 0, 11], vlan);
        frame.resize(frame.len() + self.padding, 0);
        if let Some((at, byte)) = self.damage
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        frame
    }
}

/// The frame that the walk sends, and its port; or the verdict on the one that came.
type Walked = Result<(PortId, Vec<u8>), Verdict>;

/// The time by the walk's clock.
const WALK_NS: u64 = 1_000_000_000;

/// The frame that the walk sends for one that came, and the port it leaves by.
fn walked(snapshot: &Snapshot, frame: &[u8]) -> Walked {
    walked_with(snapshot, frame, &[]).0
}

/// As [`walked`], of a frame that came with a mark, with the packets that each rule counted.
fn walked_with(snapshot: &Snapshot, frame: &[u8], marks: &[Mark]) -> (Walked, Vec<u64>) {
    let mut memory = Memory::new(frame);
    let packet =
        Descriptor { frame: FrameId(0), offset: HEADROOM as u32, length: frame.len() as u32 };
    let packet = Received { packet, hint: marks.len() as u32 };
    let (mut out, packets) = (Outputs::default(), [packet]);
    let input = Input::received(NetdevId(0), &packets).marked(marks);
    let mut walk = Walk::new(snapshot);
    walk.run(snapshot, WALK_NS, input, &mut memory, &mut out);
    let counts = walk.counters().policy_outbound.iter().map(|volume| volume.packets).collect();
    let sent = out.tx.iter().next().filter(|sent| sent.packet.frame == FrameId(0));
    let Some(sent) = sent else {
        return (Err(out.verdicts[0].expect("one verdict")), counts);
    };
    let start = sent.packet.offset as usize;
    let bytes = &memory.0[0][start..start + sent.packet.length as usize];
    (Ok((sent.egress, bytes.to_vec())), counts)
}

fn refused(error: impl ToString) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// Counts of each answer, so that the test is known to test.
#[derive(Default)]
struct Seen {
    carried: Cell<u64>,
    answered: Cell<u64>,
    left: Cell<u64>,
    /// On their way to a worker.
    up: Cell<u64>,
    /// Dropped by a verdict.
    refused: Cell<u64>,
    /// Left with a claim in the mark.
    claimed: Cell<u64>,
    dropped: RefCell<BTreeMap<String, u64>>,
    /// Flows at once whose connections permitted them.
    tracked: Cell<u64>,
    /// Samples that were found right when they were judged again, and outdated ones.
    right: Cell<u64>,
    outdated: Cell<u64>,
}

/// Judges the samples of what the program answered again.
fn judge_samples(
    residents: &Residents<Arc<Tier>>,
    snapshot: &Snapshot,
    seen: &Seen,
) -> Result<(), TestCaseError> {
    let mut samples = Vec::new();
    residents.tables().take_samples(&mut samples).map_err(refused)?;
    for sample in samples {
        // The clock of this test is not the kernel's.
        let sample = AnsweredSample { at_ns: u64::MAX, ..sample };
        let count = match residents.judge_again(&sample, snapshot, moment(WALK_NS)) {
            Again::Right => &seen.right,
            Again::Outdated => &seen.outdated,
            Again::Wrong(wrong) => return Err(refused(format!("{wrong:?}"))),
        };
        count.set(count.get() + 1);
    }
    Ok(())
}

/// Compares the program's answer about a frame with the walk's.
fn agree(
    steering: &Steering,
    snapshot: &Snapshot,
    frame: &[u8],
    seen: &Seen,
) -> Result<(), TestCaseError> {
    let before = steering.counters().map_err(refused)?;
    let run = steering.run(frame).map_err(refused)?;
    let after = steering.counters().map_err(refused)?;
    prop_assert_eq!(after.received(), before.received() + 1);
    let moved = |counter| after.of(counter) - before.of(counter);
    let add = |cell: &Cell<u64>| cell.set(cell.get() + 1);
    if moved(Counter::VerdictDropped) == 1 {
        let walked = walked(snapshot, frame);
        let refused = [DropReason::GroupDeny, DropReason::GroupNoMatch].map(Verdict::Drop);
        let is_refused = walked.as_ref().is_err_and(|verdict| refused.contains(verdict));
        prop_assert!(is_refused, "dropped, but the walk says {walked:?}: {frame:02x?}");
        prop_assert_eq!(run.action, Action::Drop);
        add(&seen.refused);
        return Ok(());
    }
    if run.action != Action::Transmit {
        // It has no socket: its answer is to drop what is the workers'. AX-02: one more for them,
        // and byte for byte as it came.
        prop_assert_eq!(moved(Counter::Transmitted) + moved(Counter::ArpAnswered), 0);
        if moved(Counter::NoSocket) == 1 {
            prop_assert_eq!(&run.left[..], frame, "changed on its way up");
            add(&seen.up);
        }
        let mark = run.mark.and_then(|bytes| Mark::read(&bytes)).filter(Mark::claims);
        if let Some(mark) = mark {
            let with = walked_with(snapshot, frame, &[mark]);
            prop_assert_eq!(with, walked_with(snapshot, frame, &[]), "{:?}", mark);
            add(&seen.claimed);
        }
        match walked(snapshot, frame) {
            Ok(_) => add(&seen.left),
            Err(verdict) => {
                *seen.dropped.borrow_mut().entry(format!("{verdict:?}")).or_default() += 1;
            }
        }
        return Ok(());
    }
    // AX-01: one more is sent, and nothing more is the workers'.
    prop_assert_eq!(moved(Counter::Transmitted) + moved(Counter::ArpAnswered), 1);
    prop_assert_eq!(moved(Counter::ToWorker) + moved(Counter::NoSocket), 0);
    let (port, expected) = match walked(snapshot, frame) {
        Ok(sent) => sent,
        Err(verdict) => {
            return Err(refused(format!("sent, but the walk says {verdict:?}: {frame:02x?}")));
        }
    };
    prop_assert!(place_of(port).is_some());
    prop_assert_eq!(run.sent.as_deref(), Some(&expected[..]), "came: {:02x?}", frame);
    add(if moved(Counter::ArpAnswered) == 1 { &seen.answered } else { &seen.carried });
    Ok(())
}

/// Takes endpoints in; returns how many.
fn place(
    residents: &mut Residents<Arc<Tier>>,
    snapshot: &Snapshot,
    (endpoints, placed): (&[Endpoint], &[bool]),
    now_ns: u64,
) -> Result<usize, TestCaseError> {
    let mut admitted = 0;
    for (endpoint, _) in endpoints.iter().zip(placed).filter(|(_, placed)| **placed) {
        let admission =
            residents.admit(endpoint.key, snapshot, place_of, now_ns).map_err(refused)?;
        admitted += usize::from(admission == Admission::Admitted);
        prop_assert_ne!(admission, Admission::Full);
    }
    Ok(admitted)
}

/// Takes everything out, and waits until all places are free.
fn empty(residents: &mut Residents<Arc<Tier>>, now: &Cell<u64>) -> Result<u64, TestCaseError> {
    for key in residents.flows().collect::<Vec<_>>() {
        residents.withdraw_flow(key, now.get()).map_err(refused)?;
    }
    for key in residents.keys().collect::<Vec<_>>() {
        residents.withdraw(key, now.get()).map_err(refused)?;
    }
    now.set(now.get() + 2 * QUARANTINE.as_nanos() as u64);
    Ok(now.get())
}

/// A frame, and whether the verdict on its flow is placed before.
type Judged = (Draft, bool);

/// Zone of a virtual network with groups, or of none.
fn zone_of(snapshot: &Snapshot, number: u32) -> Zone {
    let mut networks = snapshot.overlays().into_iter().flat_map(|of| of.networks());
    let network = networks.find(|network| network.vni == vni(number));
    let slot = network.and_then(|network| network.attachment);
    Zone::of_network(vni(number), slot.unwrap_or(u16::MAX))
}

/// Has the walk see, where connections are tracked, a packet of a flow, and an answer to it.
fn establish(snapshot: &Snapshot, draft: &Draft, flow: FlowKey) {
    let _ = walked(snapshot, &draft.bytes());
    let (zone, now_s) = (zone_of(snapshot, flow.vni), (WALK_NS / 1_000_000_000) as u32);
    let (connections, key) = (snapshot.connections().unwrap(), Key::of(&flow.flow(), zone));
    let Some((found, key)) = key.and_then(|key| Some((connections.find(&key, now_s)?, key))) else {
        return;
    };
    let answer = match flow.protocol {
        6 => Shown::Tcp(Segment::Ack),
        17 => Shown::Udp,
        _ => Shown::Other,
    };
    connections.observe(found.place, &key.reversed(), answer, now_s);
}

/// Places verdicts and sends frames, one after the other.
fn agree_on_all(
    steering: &Steering,
    residents: &mut Residents<Arc<Tier>>,
    snapshot: &Snapshot,
    (drafts, clock, seen): (&[Judged], u64, &Seen),
) -> Result<(), TestCaseError> {
    let of_connections = |residents: &Residents<_>| residents.counts().connection_flows as u64;
    for (draft, placed) in drafts {
        if let (true, Some(flow)) = (placed, draft.flow()) {
            establish(snapshot, draft, flow);
            let now = Moment { kernel_ns: clock, walk_ns: WALK_NS };
            let admission = residents.admit_flow(flow, snapshot, now).map_err(refused)?;
            prop_assert_ne!(admission, Admission::Full);
            seen.tracked.set(seen.tracked.get().max(of_connections(residents)));
        }
        agree(steering, snapshot, &draft.bytes(), seen)?;
    }
    judge_samples(residents, snapshot, seen)
}

/// Endpoints and those that are placed; groups before a change and after it; frames.
type World = (Vec<Endpoint>, Vec<bool>, [(bool, Rules); 2], Vec<Judged>);

fn a_judged_world() -> impl Strategy<Value = World> {
    a_world().prop_flat_map(|(endpoints, placed)| {
        let groups = |weight| (prop::bool::weighted(weight), select(&RULES[..]));
        let draft = (a_draft(endpoints.clone()), prop::bool::weighted(0.7));
        let groups = (groups(0.3), groups(0.8)).prop_map(|(before, after)| [before, after]);
        (Just(endpoints), Just(placed), groups, prop::collection::vec(draft, 200))
    })
}

// AX-01 AX-02 AX-15 AX-23 AX-24 AX-28 AX-38
#[test]
fn what_the_kernel_tier_sends_is_what_the_walk_sends() {
    let Some((steering, tier)) = program() else { return };
    // Samples for an audit change nothing, whether anybody takes them or not.
    tier.sample_one_of(2);
    tier.renew(FOREVER).unwrap();
    let (seen, residents) = (Seen::default(), RefCell::new(Residents::new(tier)));
    let now = Cell::new(0u64);
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let running: RefCell<Option<Snapshot>> = RefCell::default();
    let world = a_judged_world();
    let result = TestRunner::new(config).run(&world, |(endpoints, placed, groups, drafts)| {
        let mut residents = residents.borrow_mut();
        let clock = empty(&mut residents, &now)?;
        let table = table_of(&endpoints);
        let connections = Connections::new(Limits::of(512), Timeouts::default(), &[5; 32]);
        let connections = Some(Arc::new(connections));
        let running_now = running.borrow();
        let before = remembering(&table, groups[0], running_now.as_ref(), connections.clone());
        let after = remembering(&table, groups[1], Some(&before), connections);
        drop(running_now);
        residents.narrow(&before, place_of, clock).map_err(refused)?;
        residents.widen(&before, place_of, clock).map_err(refused)?;
        place(&mut residents, &before, (&endpoints, &placed), clock)?;
        let (first, rest) = drafts.split_at(130);
        agree_on_all(&steering, &mut residents, &before, (first, clock, &seen))?;
        // While workers change over the tier says what both say.
        residents.narrow(&after, place_of, clock).map_err(refused)?;
        let (both, last) = rest.split_at(30);
        for (draft, _) in first.iter().chain(both) {
            agree(&steering, &before, &draft.bytes(), &seen)?;
            agree(&steering, &after, &draft.bytes(), &seen)?;
        }
        judge_samples(&residents, &after, &seen)?;
        residents.widen(&after, place_of, clock).map_err(refused)?;
        agree_on_all(&steering, &mut residents, &after, (last, clock, &seen))?;
        running.replace(Some(after));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let Seen { carried, answered, left, up, refused, claimed, dropped, tracked, .. } = seen;
    println!("samples: {:?} right, {:?} outdated", seen.right, seen.outdated);
    println!("{claimed:?} claims, {tracked:?} flows of connections at once");
    println!("carried {carried:?}, answered {answered:?}, refused {refused:?}");
    println!("left to the walk {left:?}, {dropped:?}");
    let misses = residents.borrow().tables().misses().expect("counts");
    println!("misses {misses:?}");
    assert!(carried.get() > 800 && answered.get() > 100 && left.get() > 2_000);
    assert!(seen.right.get() > 500);
    assert!(up.get() > 2_000, "{up:?}");
    assert!(refused.get() > 30 && claimed.get() > 20 && tracked.get() > 1);
    // Each reason was met but two, which have tests of their own.
    let elsewhere = [bpf::Miss::Lease, bpf::Miss::Network];
    for (miss, count) in bpf::Miss::ALL.into_iter().zip(misses) {
        assert!(count > 0 || elsewhere.contains(&miss), "{}", miss.name());
    }
}
