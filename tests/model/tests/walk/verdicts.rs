//! The walk of one packet ≡ the oracle's, verdict and output.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dataplane::{DropReason, HoldKind, NetdevId, Verdict};
use ipsec::{SequenceNumbers, Suite};
use model::headers::{self, Ip, Part};
use model::oracle::{Course, Oracle};
use model::world::World;
use proptest::prelude::*;
use proptest::sample::select;
use wire::build::PacketBuilder;

use crate::agreement::agrees;
use crate::gateway::{Gateway, Observed};
use crate::packets::{Arrival, Builder};
use crate::seeds::{Seed, a_seed};
use crate::worlds::{DMZ, HOST, LAN, a_plain_world, a_world, own_mac};

const WORLDS: u32 = 700;
const PACKETS: usize = 60;

/// Reasons that cannot come about here, and why.
const OUT_OF_REACH: [(DropReason, &str); 11] = [
    (DropReason::SaHardLimit, "these SAs have no limits: `packets: limits`, and the workers there"),
    (
        DropReason::ConnectionLimit,
        "these worlds reflect nothing: `tracked` does, and the packet tables",
    ),
    (DropReason::FragmentTimeout, "behind the walk: of what waited, which has no verdict then"),
    (DropReason::FragmentLimit, "there are few datagrams, of few fragments"),
    (DropReason::IcmpInClear, "of what we make, not of what is received: `made: icmp_in_clear`"),
    (DropReason::CipherRefused, "a cipher library in health refuses nothing"),
    (DropReason::NoFrame, "there are more frames than a packet has fragments"),
    (DropReason::HandoverFull, "between two walks: the worker's ring, which a walk does not see"),
    (DropReason::Unsteered, "before the walk: the worker's"),
    (DropReason::NoNeighbour, "behind the walk: the worker holds and gives up"),
    (DropReason::TransmitFull, "behind the walk: the port's"),
];

/// Reasons that need virtual networks, which these worlds do not have. `packets: overlay` brings
/// about each of them.
const OF_NETWORKS: [DropReason; 11] = [
    DropReason::OverlayFragment,
    DropReason::OverlayHeader,
    DropReason::OverlayControl,
    DropReason::OverlayOption,
    DropReason::EntranceIp,
    DropReason::UnknownVni,
    DropReason::OverlayHost,
    DropReason::OverlaySource,
    DropReason::InnerVlan,
    DropReason::NoFlooding,
    DropReason::NoEndpoint,
];

/// Reasons that need SAs in cards, which these worlds do not have. `packets: card` brings about
/// each of them.
const OF_CARDS: [DropReason; 5] = [
    DropReason::CardFragmentRx,
    DropReason::CardSa,
    DropReason::DevMismatch,
    DropReason::CardFragmentTx,
    DropReason::CardOptions,
];

/// Kinds of packets, besides those of drop reasons, that the generator must bring about.
const KINDS: [&str; 27] = [
    "ESP in fragments",
    "forward",
    "protect",
    "host",
    "hold",
    "consumed",
    "made: forward",
    "made: protect",
    "made: host",
    "made: no_match",
    "made: icmp_in_clear",
    "made: hold",
    "sealed from inside",
    "sealed from outside",
    "sealed from this machine",
    "sealed in tunnel mode over IPv4",
    "sealed in tunnel mode over IPv4 in UDP",
    "sealed in tunnel mode over IPv6",
    "sealed in tunnel mode over IPv6 in UDP",
    "sealed in transport mode over IPv4",
    "sealed in transport mode over IPv4 in UDP",
    "sealed in transport mode over IPv6",
    "sealed in transport mode over IPv6 in UDP",
    "a peer moved",
    "a later fragment of ESP in UDP",
    "a fragment waits",
    "a fragment waited",
];

#[test]
fn the_walk_does_what_the_oracle_allows() {
    let seen: RefCell<BTreeMap<String, u64>> = RefCell::default();
    // Fast enough that fragments meet, and slow enough now and then that fragmented datagrams are
    // forgotten.
    let pace = select(&[100u64, 100, 100, 100, 1000, 20_000, 60_000, 120_000][..]);
    let strategy = (a_world(), prop::collection::vec(a_seed(), PACKETS), pace);
    let property = |(world, seeds, pace): (World, Vec<Seed>, u64)| {
        let mut builder = Builder::new(&world);
        let mut oracle = Oracle::new(&world);
        let mut gateway = Gateway::new(&world).at_pace(pace);
        for seed in &seeds {
            let arrival = builder.build(seed);
            let courses = oracle.judge(gateway.next_ns(), arrival.netdev, &arrival.bytes);
            let (observed, _) = gateway.run(arrival.netdev, &[&arrival.bytes]);
            let told = || {
                let bytes = brief(&format!("{:02x?}", arrival.bytes));
                let (did, should) = (format!("{observed:02x?}"), format!("{courses:02x?}"));
                let (did, should) = (brief(&did), brief(&should));
                let netdev = arrival.netdev;
                let came = format!("{bytes}\non {netdev:?} came to {did}");
                format!("{came}\nbut should {should}\nby {seed:?}\nin {world:?}")
            };
            prop_assert!(agrees(&courses, &observed), "{}", told());
            note(&mut seen.borrow_mut(), &world, &arrival, (&courses, &observed));
        }
        Ok(())
    };
    let lacks = || {
        let seen = seen.borrow();
        wanted().into_iter().filter(|kind| !seen.contains_key(kind)).collect()
    };
    crate::check_until_seen(WORLDS, strategy, property, lacks);
    let seen = seen.into_inner();
    let judged: u64 = seen.iter().filter(|(k, _)| !k.contains(' ')).map(|(_, n)| n).sum();
    println!("{judged} packets judged: {seen:#?}");
}

/// Names of the drop reasons and of the other kinds that the generator must bring about.
fn wanted() -> Vec<String> {
    let is_in_reach = |reason: &&DropReason| {
        let is_elsewhere = OF_NETWORKS.contains(reason) || OF_CARDS.contains(reason);
        OUT_OF_REACH.iter().all(|(out, _)| out != *reason) && !is_elsewhere
    };
    let reasons = DropReason::ALL.iter().filter(is_in_reach);
    let names = reasons.map(|reason| reason.name().to_string());
    names.chain(KINDS.map(String::from)).collect()
}

/// Counts what became of an arrival, by kind.
fn note(
    seen: &mut BTreeMap<String, u64>,
    world: &World,
    arrival: &Arrival,
    (courses, observed): (&[Course], &Observed),
) {
    for (place, verdict) in observed.verdicts.iter().enumerate() {
        let made = if place == 0 { "" } else { "made: " };
        *seen.entry(format!("{made}{}", name(verdict))).or_default() += 1;
    }
    if is_later_fragment_of_udp(world, arrival, &observed.verdicts) {
        *seen.entry("a later fragment of ESP in UDP".into()).or_default() += 1;
    }
    if completes_esp(world, arrival, &observed.verdicts) {
        *seen.entry("ESP in fragments".into()).or_default() += 1;
    }
    if observed.verdicts[0] == Verdict::Hold(HoldKind::Fragment) {
        *seen.entry("a fragment waits".into()).or_default() += 1;
    }
    if courses.iter().any(|course| !course.followers.is_empty()) {
        *seen.entry("a fragment waited".into()).or_default() += 1;
    }
    if !observed.moved.is_empty() {
        *seen.entry("a peer moved".into()).or_default() += 1;
    }
    for sealed in observed.emissions.iter().filter(|e| e.sealed.is_some()) {
        let from = match sealed.ingress {
            HOST => "this machine",
            LAN | DMZ => "inside",
            _ => "outside",
        };
        let carriage = world.peers[sealed.sealed.unwrap_or_default() as usize].carriage;
        let udp = if carriage.udp.is_some() { " in UDP" } else { "" };
        let family = if carriage.tunnel.local.is_ipv4() { "IPv4" } else { "IPv6" };
        let how = format!("sealed in {} mode over {family}{udp}", carriage.mode.name());
        *seen.entry(how).or_default() += 1;
        *seen.entry(format!("sealed from {from}")).or_default() += 1;
    }
}

/// Returns whether the last fragment of an ESP packet to come was opened with the others.
fn completes_esp(world: &World, arrival: &Arrival, verdicts: &[Verdict]) -> bool {
    let link = Oracle::new(world).link(arrival.netdev, &arrival.bytes);
    let packet = link.ok().and_then(|(_, bytes)| headers::ip(&bytes).ok());
    let is_part = |packet: Ip| packet.part != Part::Whole && packet.flow.protocol == 50;
    matches!(verdicts[0], Verdict::Forward(_)) && packet.is_some_and(is_part)
}

/// Returns whether a fragment of UDP without ports was dropped as one of ESP.
fn is_later_fragment_of_udp(world: &World, arrival: &Arrival, verdicts: &[Verdict]) -> bool {
    let link = Oracle::new(world).link(arrival.netdev, &arrival.bytes);
    let packet = link.ok().and_then(|(_, bytes)| headers::ip(&bytes).ok());
    let is_later_udp = |packet: Ip| packet.part == Part::Later && packet.flow.protocol == 17;
    verdicts[0] == Verdict::Drop(DropReason::EspFragment) && packet.is_some_and(is_later_udp)
}

/// RFC 1624 §3: adding to the checksum in place must not make it 0xffff, which no sum has. One
/// packet in 65,536 is such a one: too few for the random test.
#[test]
fn a_checksum_that_becomes_zero_is_zero() {
    let world = a_plain_world(Suite::Aes128Gcm, 64, SequenceNumbers::Short);
    let packet = |id: u32| {
        PacketBuilder::v4("10.1.0.10", "10.2.0.1").identification(id).udp(1, 2).payload_of(8)
    };
    let lowers_to_zero = |id: &u32| packet(*id).ip()[10..12] == [0xfe, 0xff];
    let id = (0..0x10000).find(lowers_to_zero).expect("one identification in 65,536");
    let frame = packet(id).frame(own_mac(LAN), [2, 0, 0, 0, 1, 1], None);
    let (observed, _) = Gateway::new(&world).run(NetdevId(0), &[&frame]);
    assert_eq!(observed.emissions[0].packet[10..12], [0, 0]);
    let courses = Oracle::new(&world).judge(0, NetdevId(0), &frame);
    assert!(agrees(&courses, &observed));
}

/// Cuts every list of bytes short.
fn brief(text: &str) -> String {
    let mut out = String::new();
    for part in text.split(']') {
        let (before, list) = part.rsplit_once('[').unwrap_or((part, ""));
        let cut: String = list.chars().take(200).collect();
        let bytes = list.split(", ").count();
        out.push_str(&match cut.len() < list.len() {
            true => format!("{before}[{cut} … {bytes} bytes]"),
            false => format!("{part}]"),
        });
    }
    out
}

/// One word for a verdict; of a drop its reason.
pub(crate) fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Forward(_) => "forward",
        Verdict::Protect(_) => "protect",
        Verdict::Host => "host",
        Verdict::Hold(_) => "hold",
        Verdict::Consumed => "consumed",
        Verdict::Drop(reason) => reason.name(),
    }
}
