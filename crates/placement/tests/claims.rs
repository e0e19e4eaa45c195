//! Claims of a lower tier, in marks in front of packets: whatever they say, verdicts and counts of
//! rules are those of the walk without them; and one that fits saves the question.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;

use bpf::tier::FlowKey;
use common::memory::Memory;
use common::*;
use dataplane::{Input, NetdevId, Outputs, Snapshot, Verdict, Walk};
use endpoints::{Endpoint, EndpointKey};
use policy::{Book, DomainId};
use proptest::prelude::*;
use proptest::sample::select;
use wire::mark::MarkVlan;
use wire::{Claim, ClaimKind, Descriptor, Family, FrameId, HEADROOM, LinkAddress, Mark, Received};

/// Tenants that speak.
const SPEAKERS: u8 = 4;

/// The claim in front of a packet.
#[derive(Clone, Copy, Debug)]
enum Said {
    Nothing,
    /// The tier's claim by the rules of now, or of before, of this packet's flow.
    Now,
    Before,
    /// Words that are not by the rules of now.
    Garbage([u32; 4]),
    /// By the rules of now, but of a place where there is no mark, or of a connection.
    Elsewhere(u32),
}

/// A tenant's packet to another: UDP to a port, or a ping.
#[derive(Clone, Copy, Debug)]
struct Packet {
    ends: (u8, u8),
    protocol: u8,
    port: u16,
    is_fragment: bool,
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        carried(GROUPED, self.ends, |packet| {
            let packet = match self.protocol {
                17 => packet.udp(5000, self.port),
                6 => packet.tcp_with(5000, self.port, 0x10, None),
                _ => packet.icmp(8, 0, [0; 4]),
            };
            let packet = packet.payload_of(24);
            if self.is_fragment { packet.fragment(3, false) } else { packet }
        })
    }

    /// The flow that it has as a whole.
    fn flow(&self) -> FlowKey {
        let [source, destination] =
            [self.ends.0, self.ends.1].map(|number| (tenant(number).value as u32).into());
        let ports = [5000u16.to_be_bytes(), self.port.to_be_bytes()].concat();
        let upper = match self.protocol {
            1 => [8, 0, 0, 0],
            _ => ports.try_into().expect("two ports"),
        };
        FlowKey { vni: GROUPED, source, destination, protocol: self.protocol, upper }
    }
}

fn a_packet() -> impl Strategy<Value = Packet> {
    let ends = (1..=SPEAKERS, 1..=SPEAKERS);
    let upper = (select(&[17u8, 17, 6, 1][..]), select(&[53u16, 80][..]));
    (ends, upper, prop::bool::weighted(0.1)).prop_map(|(ends, (protocol, port), is_fragment)| {
        Packet { ends, protocol, port, is_fragment }
    })
}

fn a_claim() -> impl Strategy<Value = Said> {
    let small = (0u32..20, 0u32..40, select(&NETWORKS[..]), (0u32..4, 0u32..12));
    let small = small.prop_map(|(generation, domain, zone, (kind, rule))| {
        Said::Garbage([generation, domain, zone, kind << 30 | rule])
    });
    prop_oneof![
        1 => Just(Said::Nothing),
        3 => Just(Said::Now),
        1 => Just(Said::Before),
        1 => any::<[u32; 4]>().prop_map(Said::Garbage),
        2 => small,
        1 => prop_oneof![2u32..5, Just(u32::MAX)].prop_map(Said::Elsewhere),
    ]
}

fn mark([generation, domain, zone, verdict]: [u32; 4]) -> Mark {
    let (netdev, vlan, incarnation) = (1, MarkVlan::Untagged, 1);
    Mark { netdev, vlan, incarnation, generation, zone, verdict, domain }
}

/// Domain and generation of the rules of the network, for whole packets.
fn rules_of_now(snapshot: &Snapshot) -> [u32; 2] {
    let domain = DomainId::new(snapshot.spd().class(0x8000), Book::GroupIn, Family::V4);
    [snapshot.spd().generation(domain).0, domain.0.into()]
}

/// The tier's claim of a flow under a snapshot.
fn claim_by(snapshot: &Snapshot, key: FlowKey) -> Option<Mark> {
    let networks = snapshot.overlays().unwrap().networks();
    let network = networks.into_iter().find(|network| network.vni == vni(GROUPED)).unwrap();
    let claim = snapshot.flow_below(network, &key.flow(), 0).ok()?.claim?;
    Some(mark([claim.generation, claim.domain, GROUPED, claim.claim.word()?]))
}

/// The hint and the marks of a packet.
fn said(packet: &Packet, said: Said, (before, now): (&Snapshot, &Snapshot)) -> (u32, Vec<Mark>) {
    let of = |mark: Option<Mark>| mark.map_or((0, vec![]), |mark| (1, vec![mark]));
    let key = packet.flow();
    match said {
        Said::Nothing => (0, vec![]),
        Said::Now => of(claim_by(now, key)),
        Said::Before => of(claim_by(before, key)),
        Said::Garbage([generation, domain, zone, verdict]) => {
            let is_of_now = [generation, domain] == rules_of_now(now);
            let generation = if is_of_now { generation + 1 } else { generation };
            of(Some(mark([generation, domain, zone, verdict])))
        }
        Said::Elsewhere(hint) => {
            let [generation, domain] = rules_of_now(now);
            // Where connections are tracked no claim is taken at all.
            let tracks = now.spd().tracks(now.spd().class(0x8000), Family::V4);
            let hint = if tracks { 1 } else { hint };
            let permit = Claim { kind: ClaimKind::Permit, rule: 0 }.word().unwrap();
            (hint, vec![mark([generation, domain, GROUPED, permit])])
        }
    }
}

/// All that comes of a packet.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    verdict: Option<Verdict>,
    sent: Vec<Vec<u8>>,
    /// Packets and bytes by rule.
    counts: BTreeMap<u32, (u64, u64)>,
}

/// Walks a packet; returns what comes of it, and how many searches it took.
fn walk(snapshot: &Snapshot, frame: &[u8], (hint, marks): (u32, &[Mark])) -> (Outcome, u64) {
    let mut memory = Memory::new(frame);
    let packet =
        Descriptor { frame: FrameId(0), offset: HEADROOM as u32, length: frame.len() as u32 };
    let (mut out, packets) = (Outputs::default(), [Received { packet, hint }]);
    let mut walk = Walk::new(snapshot);
    let input = Input::received(NetdevId(0), &packets).marked(marks);
    walk.run(snapshot, 1_000_000_000, input, &mut memory, &mut out);
    let bytes = |sent: dataplane::TxPacket| {
        let start = sent.packet.offset as usize;
        let frame = &memory.0[sent.packet.frame.0 as usize];
        frame[start..start + sent.packet.length as usize].to_vec()
    };
    let volumes = (0..).zip(&walk.counters().policy_outbound);
    let counts = volumes.map(|(rule, volume)| (rule, (volume.packets, volume.bytes)));
    let outcome = Outcome {
        verdict: out.verdicts[0],
        sent: out.tx.iter().map(bytes).collect(),
        counts: counts.filter(|(_, (packets, _))| *packets > 0).collect(),
    };
    (outcome, walk.counters().full_lookups)
}

fn endpoints() -> Vec<Endpoint> {
    let endpoint = |number| Endpoint {
        key: EndpointKey { vni: vni(GROUPED), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    (1..SPEAKERS).map(endpoint).collect()
}

// AX-15
#[test]
fn claims_change_no_verdict_and_no_count_and_those_that_fit_save_the_question() {
    let table = table_of(&endpoints());
    let saved = Cell::new(0u32);
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
    let packets = || prop::collection::vec((a_packet(), a_claim()), 1..20);
    let rules = || [select(&RULES[..]), select(&RULES[..])];
    proptest!(config, |([rules, then] in rules(), list in packets())| {
        let before = ruled(&table, (false, rules), None);
        let now = ruled(&table, (false, then), Some(&before));
        for (packet, claim) in list {
            let (hint, marks) = said(&packet, claim, (&before, &now));
            let frame = packet.frame();
            let (plain, searches) = walk(&now, &frame, (0, &[]));
            let (marked, fewer) = walk(&now, &frame, (hint, &marks));
            prop_assert_eq!(&plain, &marked, "{:?} {:?} {:?}", packet, claim, marks);
            let right = claim_by(&now, packet.flow());
            let fits = hint == 1 && marks.first() == right.as_ref() && !packet.is_fragment;
            prop_assert_eq!(fewer, if fits { 0 } else { searches }, "{:?}", claim);
            saved.set(saved.get() + u32::from(fewer < searches));
        }
    });
    println!("{} questions saved", saved.get());
    assert!(saved.get() > 700);
}
