//! `explain` ≡ the walk: what it says of a packet's flow is what became of the packet.
//!
//! Parts of a packet that its flow does not show are not judged. Where they decided, the walk is
//! asked again, with the plain packet of the flow: whole, small, sound, far from its hop limit.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dataplane::explain::{Arrival as By, explain};
use dataplane::{DropReason, HoldKind, PortId, RouteTarget, SetIndex, Side, Snapshot, Verdict};
use ipsec::Mode;
use model::carried::{self, Bearing, Carrier};
use model::esp::{self, Text};
use model::headers::{self, Ip, Part};
use model::icmp;
use model::oracle::Oracle;
use model::world::{Peer, World};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use wire::build::PacketBuilder;
use wire::{Address, Family, Flow, Upper};

use crate::gateway::{Gateway, Observed, Out};
use crate::packets::{Arrival, Builder, plain_frame};
use crate::seeds::{Seed, a_seed};
use crate::sensitivity::DIFFERENCES;
use crate::verdicts::name;
use crate::worlds::{WAN, a_world};

const WORLDS: u32 = 400;
const PACKETS: usize = 60;
/// Fewer comparisons than this prove too little.
const LEAST_COMPARISONS: usize = 10_000;
/// A difference that is not seen in this many worlds is not looked for.
const WORLDS_TO_DIFFER: usize = 1500;

/// A protocol that no policy and no service of the worlds names (RFC 3692), as none names ESP.
const NOBODYS_PROTOCOL: u8 = 253;

/// Reasons to drop what has no flow yet: frames that are not for us to forward, what cannot be
/// read, what is not opened.
const WITHOUT_FLOW: [DropReason; 16] = [
    DropReason::Oversize,
    DropReason::Vlan,
    DropReason::LinkMulticast,
    DropReason::NotIp,
    DropReason::Malformed,
    DropReason::EspFragment,
    DropReason::Keepalive,
    DropReason::UnknownSpi,
    DropReason::Encapsulation,
    DropReason::Replayed,
    DropReason::TooOld,
    DropReason::Integrity,
    DropReason::BadPadding,
    DropReason::BadNextHeader,
    DropReason::Dummy,
    DropReason::Ecn,
];

/// Drop reasons that `explain` is there to tell apart.
const JUDGED: [DropReason; 11] = [
    DropReason::BadAddress,
    DropReason::SelectorMismatch,
    DropReason::Unprotected,
    DropReason::NoRoute,
    DropReason::Blackhole,
    DropReason::NoMatch,
    DropReason::PolicyDiscard,
    DropReason::NoSa,
    DropReason::TransportMode,
    DropReason::SequenceExhausted,
    DropReason::SequenceNotReserved,
];

/// Reason why the packet itself does not say what `explain` has to say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Excuse {
    /// Dropped for its hop limit, size, checksum or source route.
    Dropped(DropReason),
    /// UDP to port 4500 of ours from outside: ESP or IKE, by its first bytes.
    NatTraversal,
    /// An ICMP error that was opened: judged by what it quotes.
    OpenedError,
    /// ESP to us, which has to say what it would be if it could not be opened.
    EspToUs,
    /// A later fragment: judged as its first one.
    Later,
    /// A first fragment, or a packet cut into fragments: none for transport mode.
    Fragment,
}

const EXCUSES: [Excuse; 12] = [
    Excuse::Dropped(DropReason::HopLimit),
    Excuse::Dropped(DropReason::TooBig),
    Excuse::Dropped(DropReason::Checksum),
    Excuse::Dropped(DropReason::SourceRoute),
    Excuse::NatTraversal,
    Excuse::OpenedError,
    Excuse::EspToUs,
    Excuse::Later,
    Excuse::Fragment,
    Excuse::Dropped(DropReason::FragmentOverlap),
    Excuse::Dropped(DropReason::FragmentDuplicate),
    Excuse::Dropped(DropReason::FragmentTiny),
];

/// The answer that `explain` has to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) verdict: Verdict,
    pub(crate) egress: Option<PortId>,
}

/// Counts of the comparisons: packets by the walk's verdict, and plain packets by the excuse.
#[derive(Default, Debug)]
struct Tally {
    packets: BTreeMap<&'static str, usize>,
    plain: BTreeMap<Excuse, usize>,
}

#[test]
fn explain_says_what_becomes_of_a_packet() {
    let tally: RefCell<Tally> = RefCell::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let world = a_world().prop_map(with_one_worker);
    let strategy = (world, prop::collection::vec(a_seed(), PACKETS));
    let property = |(world, seeds): (World, Vec<Seed>)| {
        let found = disagreement(&world, &world.snapshot(), &seeds, &mut tally.borrow_mut());
        prop_assert!(found.is_none(), "{}\nin {world:?}", found.unwrap_or_default());
        Ok(())
    };
    let lacks = || lacking(&tally.borrow());
    crate::check_until_seen(WORLDS, strategy, property, lacks);
    let Tally { packets, plain } = tally.into_inner();
    let compared = packets.values().chain(plain.values()).sum::<usize>();
    println!("{compared} comparisons: {packets:#?}, plain packets because of {plain:#?}");
    if !asked {
        assert!(compared >= LEAST_COMPARISONS, "{compared}");
    }
}

/// Names of verdicts never compared, and of excuses never compared with a plain packet.
fn lacking(tally: &Tally) -> Vec<String> {
    let others = ["forward", "protect", "host", "hold", "consumed"];
    let kinds = JUDGED.iter().map(|reason| reason.name()).chain(others);
    let kinds = kinds.filter(|kind| !tally.packets.contains_key(kind)).map(String::from);
    let excuses = EXCUSES.iter().filter(|excuse| !tally.plain.contains_key(excuse));
    kinds.chain(excuses.map(|excuse| format!("{excuse:?} with a plain packet"))).collect()
}

/// The comparison finds what it is there for: `explain` that is asked of a slightly different
/// gateway contradicts the walk before long.
#[test]
fn explain_of_another_gateway_is_found_out() {
    let not_judged = [
        "MTU",
        "path MTU",
        "link address",
        "own link address",
        "MSS clamp",
        "replay window",
        "ESP in UDP",
        "peer's port",
        "may move",
        "checksums",
    ];
    let mut missed = DIFFERENCES.to_vec();
    missed.retain(|(name, _)| !not_judged.contains(name));
    assert_eq!(missed.len(), DIFFERENCES.len() - not_judged.len());
    let mut runner = crate::seeded::runner(1);
    let world = a_world().prop_map(with_one_worker);
    let strategy = (world, prop::collection::vec(a_seed(), PACKETS));
    for drawn in 1..=WORLDS_TO_DIFFER {
        if missed.is_empty() {
            break;
        }
        let (world, seeds) = strategy.new_tree(&mut runner).unwrap().current();
        missed.retain(|(name, differ)| {
            let mut other = world.clone();
            differ(&mut other);
            let told = disagreement(&world, &other.snapshot(), &seeds, &mut Tally::default());
            if told.is_some() {
                println!("{name}: found in world {drawn}");
            }
            told.is_none()
        });
    }
    let missed: Vec<&str> = missed.iter().map(|(name, _)| *name).collect();
    assert!(missed.is_empty(), "not found out in {WORLDS_TO_DIFFER} worlds: {missed:?}");
}

/// Each worker seals with an SA of its own, and one may have numbers where another's has none.
fn with_one_worker(world: World) -> World {
    World { workers: 1, ..world }
}

/// The first packet of which `explain`, asked of a snapshot, says something else than the walk of
/// the world does.
fn disagreement(
    world: &World,
    snapshot: &Snapshot,
    seeds: &[Seed],
    tally: &mut Tally,
) -> Option<String> {
    let mut builder = Builder::new(world);
    let mut gateway = Gateway::new(world);
    let mut plain = Plain::new(world);
    let drawn = seeds.iter().map(|seed| (Some(seed), builder.build(seed)));
    let unseeded = nat_traversal(world).map(|frame| (None, frame));
    for (seed, frame) in drawn.chain(unseeded) {
        let (observed, _) = gateway.run(frame.netdev, &[&frame.bytes]);
        let verdict = observed.verdicts[0];
        let Some((by, packet)) = question(world, &frame, verdict) else { continue };
        let flow = packet.flow;
        let excuse = excuse(world, by, &packet, &observed);
        let expected = match excuse {
            Some(excuse) => {
                *tally.plain.entry(excuse).or_default() += 1;
                plain.outcome(by, flow)
            }
            None => {
                *tally.packets.entry(name(&verdict)).or_default() += 1;
                expected(&observed)
            }
        };
        let told = explain((snapshot, 0), by, flow);
        if (Expected { verdict: told.verdict, egress: told.egress }) != expected {
            let asked = format!("{by:?} {flow:?}\nfrom {seed:?}");
            let came = format!("came to {verdict:?}, excused by {excuse:?}");
            return Some(format!("{asked}\n{came}\nso {expected:?}\nbut {told:?}"));
        }
    }
    None
}

/// Returns packets that the seeds hardly ever make: UDP to port 4500 of ours, from the world and
/// from behind two peers, that does not begin with the marker of IKE.
fn nat_traversal(world: &World) -> impl Iterator<Item = Arrival> {
    let ends = [
        ("203.0.113.9", "192.0.2.1"),
        ("10.2.0.1", "192.0.2.1"),
        ("2001:db8:3::1", "2001:db8:ff::1"),
    ];
    ends.into_iter().map(|(source, destination)| {
        let packet = PacketBuilder::between(source, destination).udp(4500, 4500).payload_of(20);
        plain_frame(world, WAN, packet.ip())
    })
}

/// Returns the question about a frame's packet, the one inside if it was opened; `None`: a frame
/// that no question is about.
pub(crate) fn question(world: &World, frame: &Arrival, verdict: Verdict) -> Option<(By, Ip)> {
    if frame.bytes.len() > world.room {
        return None;
    }
    let (port, bytes) = Oracle::new(world).link(frame.netdev, &frame.bytes).ok()?;
    let packet = headers::group(&bytes)?;
    let by = By::Clear(port);
    let has_flow = !matches!(verdict, Verdict::Drop(reason) if WITHOUT_FLOW.contains(&reason));
    if is_to_us_from_outside(world, by, &packet.flow) && may_be_of_esp_in_udp(world, &packet) {
        return None;
    }
    let bears = match is_to_us_from_outside(world, by, &packet.flow) {
        true => carried::bearing(&packet),
        false => Bearing::Clear,
    };
    match bears {
        Bearing::Clear => has_flow.then_some((by, packet)),
        Bearing::Keepalive => Some((by, packet)),
        Bearing::Esp(bytes, carrier) => {
            // Of a fragment there is no question but about itself.
            let is_asked = has_flow && packet.part == Part::Whole;
            match opened(world, &packet, bytes, carrier).filter(|_| is_asked) {
                Some((set, inner)) => Some((By::Opened(port, set), headers::group(&inner)?)),
                None => Some((by, packet)),
            }
        }
    }
}

/// Returns whether a fragment comes from a peer whose ESP is in UDP: it waits, whatever a question
/// about it says.
fn may_be_of_esp_in_udp(world: &World, packet: &Ip) -> bool {
    let source = packet.flow.source_address();
    let is_its = |peer: &Peer| {
        peer.carriage.udp.is_some() && source == Address::from(peer.carriage.tunnel.remote)
    };
    packet.part != Part::Whole && packet.flow.protocol == 17 && world.peers.iter().any(is_its)
}

/// The packet in a sealed one, and whose SA opens it.
pub(crate) fn opened(
    world: &World,
    outer: &Ip,
    body: &[u8],
    carrier: Carrier,
) -> Option<(SetIndex, Vec<u8>)> {
    let (spi, low) = esp::header(body)?;
    let place = world.peers.iter().position(|peer| peer.inbound.iter().any(|k| k.spi == spi))?;
    let peer = &world.peers[place];
    let keys = peer.inbound.iter().find(|keys| keys.spi == spi)?;
    // No peer gets beyond its second 2³² numbers.
    let text = [0, 1 << 32].iter().find_map(|high| esp::open(keys, high + u64::from(low), body))?;
    let inner = match peer.carriage.mode {
        Mode::Tunnel => text.carried()?.to_vec(),
        Mode::Transport => carried::restored(outer, &text, carrier).ok()?.bytes,
    };
    Some((SetIndex(place as u32), inner))
}

pub(crate) fn excuse(world: &World, by: By, packet: &Ip, observed: &Observed) -> Option<Excuse> {
    let flow = &packet.flow;
    let nat_traversal =
        flow.protocol == 17 && matches!(flow.upper, Upper::Ports { destination: 4500, .. });
    let is_unfit = |verdict: &Verdict| *verdict == Verdict::Drop(DropReason::TransportMode);
    match (by, observed.verdicts[0]) {
        (By::Opened(..), _) if icmp::is_error(flow) => Some(Excuse::OpenedError),
        (By::Clear(_), _) if is_esp_to_us(world, by, flow) => Some(Excuse::EspToUs),
        (By::Clear(_), _) if nat_traversal && is_to_us_from_outside(world, by, flow) => {
            Some(Excuse::NatTraversal)
        }
        _ if packet.part == Part::Later => Some(Excuse::Later),
        (_, Verdict::Consumed) if observed.emissions.is_empty() => Some(Excuse::Fragment),
        (_, verdict) if is_unfit(&verdict) && packet.part == Part::First => Some(Excuse::Fragment),
        (_, Verdict::Drop(reason)) => {
            Some(Excuse::Dropped(reason)).filter(|excuse| EXCUSES.contains(excuse))
        }
        _ => None,
    }
}

fn is_esp_to_us(world: &World, by: By, flow: &Flow) -> bool {
    flow.protocol == 50 && is_to_us_from_outside(world, by, flow)
}

fn is_to_us_from_outside(world: &World, by: By, flow: &Flow) -> bool {
    let (By::Clear(port) | By::Opened(port, _)) = by;
    world.port(port).side == Side::Unprotected
        && world.route(flow.destination_address()) == Some(RouteTarget::Local)
}

/// Returns the answer that `explain` has to give for an observed packet. A packet that waits or was
/// cut into fragments goes where it goes all the same.
pub(crate) fn expected(observed: &Observed) -> Expected {
    match observed.verdicts[0] {
        // So it would be judged alone.
        Verdict::Hold(HoldKind::Fragment) => {
            Expected { verdict: Verdict::Drop(DropReason::FragmentPorts), egress: None }
        }
        Verdict::Forward(_) | Verdict::Protect(_) | Verdict::Hold(_) | Verdict::Consumed => {
            let emission = &observed.emissions[0];
            let (Out::Sent(port, _) | Out::Held(port)) = emission.fate else {
                panic!("leaves by no port: {observed:?}");
            };
            let verdict = match emission.sealed {
                Some(set) => Verdict::Protect(SetIndex(set)),
                None => Verdict::Forward(port),
            };
            Expected { verdict, egress: Some(port) }
        }
        verdict @ (Verdict::Host | Verdict::Drop(_)) => Expected { verdict, egress: None },
    }
}

/// A gateway of its own for plain packets: their numbers go on independently.
struct Plain<'w> {
    world: &'w World,
    gateway: Gateway<'w>,
    last: u64,
}

impl<'w> Plain<'w> {
    fn new(world: &'w World) -> Plain<'w> {
        Plain { world, gateway: Gateway::new(world), last: 0 }
    }

    /// Returns the outcome of the plain packet of a flow. Each is a datagram of its own.
    fn outcome(&mut self, by: By, flow: Flow) -> Expected {
        let world = self.world;
        self.last += 1;
        let plain = |flow: &Flow| plain(flow, self.last as u32);
        let frame = match by {
            By::Clear(port) if is_esp_to_us(world, by, &flow) => {
                let flow = Flow { protocol: NOBODYS_PROTOCOL, ..flow };
                plain_frame(world, port, plain(&flow))
            }
            By::Clear(port) => plain_frame(world, port, plain(&flow)),
            By::Opened(port, set) => {
                let sealed = self.sealed(set, &flow);
                plain_frame(world, port, sealed)
            }
        };
        let (observed, _) = self.gateway.run(frame.netdev, &[&frame.bytes]);
        let outcome = expected(&observed);
        let excused = |reason| EXCUSES.contains(&Excuse::Dropped(reason));
        if let Verdict::Drop(reason) = outcome.verdict {
            assert!(!excused(reason) && !WITHOUT_FLOW.contains(&reason), "{flow:?}: {reason}");
        }
        outcome
    }

    fn sealed(&self, set: SetIndex, flow: &Flow) -> Vec<u8> {
        let peer = &self.world.peers[set.0 as usize];
        let next_header = if flow.family == Family::V4 { 4 } else { 41 };
        let packet = plain(flow, self.last as u32);
        let header = if flow.family == Family::V4 { 20 } else { 40 };
        let (carried, next_header, ends) = match peer.carriage.mode {
            Mode::Tunnel => {
                let tunnel = peer.tunnel();
                (&packet[..], next_header, (tunnel.remote.into(), tunnel.local.into()))
            }
            Mode::Transport => {
                let ends = (flow.source_address(), flow.destination_address());
                (&packet[header..], flow.protocol, ends)
            }
        };
        let keys = &peer.inbound[0];
        let bytes = esp::seal(keys, self.last, &Text::around(carried, next_header, keys.suite));
        let outer = PacketBuilder::new(ends.0, ends.1);
        match peer.carriage.udp {
            Some(ports) => outer.udp(ports.remote, ports.local),
            None => outer.protocol(50),
        }
        .payload(&bytes)
        .ip()
    }
}

/// The plain packet of a flow: behind ports, or type and code, all zeros, which is IKE's marker on
/// port 4500 and quotes nothing. `number`: that of its datagram.
fn plain(flow: &Flow, number: u32) -> Vec<u8> {
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let packet = PacketBuilder::new(source, destination).protocol(flow.protocol);
    let mut payload = vec![];
    let packet = match flow.upper {
        Upper::Ports { source, destination } => {
            payload.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
            packet
        }
        Upper::Icmp { kind, code } => {
            payload.extend([kind, code]);
            packet
        }
        Upper::None => packet,
        Upper::Fragment => packet.identification(number).fragment(100, false),
    };
    payload.resize(40, 0);
    if flow.opens {
        payload[13] = 0x02;
    }
    packet.payload(&payload).ip()
}
