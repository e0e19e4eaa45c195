//! Connections: the fast path and the general walk, with a cache and without one, come to the same
//! over random histories with `reflect` rules, answers and changes, counters included; and
//! `explain` says what becomes of a packet that may begin a connection.

use std::cell::RefCell;
use std::sync::Arc;

use dataplane::connections::{Connections, Limits};
use dataplane::explain::explain;
use dataplane::{Counters, DropReason, FastPathUse, RouteGeneration, Snapshot, Verdict};
use model::headers::{self, Part};
use model::icmp;
use model::world::World;
use policy::connection::Timeouts;
use policy::{Action, Policy, Spd};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use wire::build::{PacketBuilder, tcp_flags};
use wire::{Family, Upper};

use crate::cached::{Change, ROOM, a_change, next_spd};
use crate::explained::{Expected, excuse, expected, question};
use crate::fastpath::{comparable, same_as};
use crate::gateway::{Gateway, Observed, Out};
use crate::packets::{Arrival, Builder, plain_frame};
use crate::seeds::{Seed, a_seed};
use crate::worlds::a_tracking_world;

const WORLDS: u32 = 600;
/// Packets that a history is drawn from.
const SEEDS: usize = 4;
/// Time from one batch to the next: several packets of a connection are of one second.
const PACE_MS: u64 = 64;
/// Entries of the caches.
const ENTRIES: usize = 1 << 8;
/// Sizes of the tables of connections: full before long, and never; 0: none.
const ROOMS: [u32; 4] = [0, 4, 4096, 4096];

/// The packet that comes back for one that left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Nothing,
    /// The other end answers.
    Answers,
    /// An ICMP error about it.
    Error,
}

/// Counts over all histories.
#[derive(Default, Debug)]
struct Walked {
    packets: u64,
    fast: u64,
    begun: u64,
    /// Answers and errors that passed.
    answered: u64,
    limited: u64,
    explained: u64,
}

/// Four gateways of one world: walks that must come to the same. The first is the plainest.
struct Four<'w> {
    world: &'w World,
    gateways: [Gateway<'w>; 4],
    connections: [Option<Arc<Connections>>; 4],
    /// The snapshot of the second one, which `explain` is asked about.
    snapshot: Arc<Snapshot>,
}

impl<'w> Four<'w> {
    fn new(world: &'w World, spd: &Arc<Spd>, room: u32) -> Four<'w> {
        let table = || {
            let limits = Limits::of(room);
            (room > 0).then(|| Connections::new(limits, Timeouts::default(), &[3; 32]).into())
        };
        let connections: [Option<Arc<Connections>>; 4] = std::array::from_fn(|_| table());
        let snapshot = |place: usize| {
            let table = connections[place].clone();
            Arc::new(world.snapshot_tracking(spd.clone(), RouteGeneration(0), table))
        };
        let gateway = |place: usize| {
            let use_ = [FastPathUse::Never, FastPathUse::Eager][place % 2];
            let gateway = Gateway::over(world, snapshot(place)).at_pace(PACE_MS);
            let gateway = gateway.with_fast_path(use_);
            if place < 2 { gateway } else { gateway.remembering(ENTRIES) }
        };
        let gateways = [0, 1, 2, 3].map(gateway);
        let snapshot = snapshot(1);
        Four { world, gateways, connections, snapshot }
    }

    /// Goes over to another world.
    fn go_over(&mut self, world: &'w World, spd: &Arc<Spd>, routes: RouteGeneration) {
        for (place, gateway) in self.gateways.iter_mut().enumerate() {
            let table = self.connections[place].clone();
            let snapshot = Arc::new(world.snapshot_tracking(spd.clone(), routes, table));
            if place == 1 {
                self.snapshot = snapshot.clone();
            }
            gateway.go_over(world, snapshot);
        }
        self.world = world;
    }

    /// Walks the packets of one flow in all gateways.
    fn walk(&mut self, batch: &[Arrival], walked: &mut Walked) -> Result<Observed, TestCaseError> {
        let netdev = batch[0].netdev;
        let packets: Vec<&[u8]> = batch.iter().map(|arrival| &arrival.bytes[..]).collect();
        let now_ns = self.gateways[0].next_ns();
        let first = self.gateways[0].run(netdev, &packets);
        if let [arrival] = batch {
            self.explains(arrival, &first.0, now_ns, walked)?;
        }
        for gateway in &mut self.gateways[1..] {
            same_as(&first, (netdev, &packets), gateway)?;
        }
        let limit = Verdict::Drop(DropReason::ConnectionLimit);
        let limited = first.0.verdicts.iter().filter(|verdict| **verdict == limit);
        walked.limited += limited.count() as u64;
        walked.packets += batch.len() as u64;
        Ok(first.0)
    }

    /// Asks `explain` about a packet that the second gateway has not walked yet.
    fn explains(
        &self,
        arrival: &Arrival,
        observed: &Observed,
        now_ns: u64,
        walked: &mut Walked,
    ) -> Result<(), TestCaseError> {
        let verdict = observed.verdicts[0];
        let Some((by, packet)) = question(self.world, arrival, verdict) else { return Ok(()) };
        let flags = packet.bytes.get(packet.upper + 13).copied().unwrap_or(0);
        let says_enough = match packet.flow.protocol {
            // It is taken for a SYN.
            6 => packet.part == Part::Whole && flags & 0x1f == tcp_flags::SYN,
            // Its flow does not say the identifier of an echo.
            1 | 58 => false,
            // Taken for IKE, where routes and addresses may differ by a change.
            17 if matches!(packet.flow.upper, Upper::Ports { destination: 4500, .. }) => false,
            _ => packet.part == Part::Whole,
        };
        let is_limit = verdict == Verdict::Drop(DropReason::ConnectionLimit);
        let is_excused = excuse(self.world, by, &packet, observed).is_some();
        // Each worker seals with an SA of its own.
        if !says_enough || is_limit || is_excused || self.world.workers > 1 {
            return Ok(());
        }
        let told = explain((&self.snapshot, now_ns), by, packet.flow);
        let told = Expected { verdict: told.verdict, egress: told.egress };
        prop_assert_eq!(told, expected(observed), "{:?} {:?}", by, packet.flow);
        walked.explained += 1;
        Ok(())
    }

    /// Fails if the gateways have counted otherwise, packets or connections.
    fn counted_the_same(&self) -> Result<(), TestCaseError> {
        let counts = |place: usize| -> Vec<Counters> {
            self.gateways[place].walks().iter().map(|walk| comparable(walk.counters())).collect()
        };
        let table = |place: usize| self.connections[place].as_ref().map(|table| table.counts());
        for place in 1..4 {
            prop_assert_eq!(counts(place), counts(0));
            prop_assert_eq!(table(place), table(0));
        }
        Ok(())
    }
}

/// A change between two stretches of a history.
#[derive(Clone, Debug)]
enum Turn {
    Change(Change),
    /// A rule that reflects goes.
    Forgets(Index),
}

impl Turn {
    /// The world afterwards.
    fn of(&self, world: &World) -> World {
        match self {
            Turn::Change(change) => change.of(world),
            Turn::Forgets(which) => {
                let reflects = |rule: &&Policy| matches!(rule.action, Action::Reflect(_));
                let all: Vec<_> = world.policies.iter().filter(reflects).map(|it| it.id).collect();
                let mut world = world.clone();
                // Packets are aimed at policies: one stays.
                if !all.is_empty() && world.policies.len() > 1 {
                    let gone = *which.get(&all);
                    world.policies.retain(|rule| rule.id != gone);
                }
                world
            }
        }
    }

    fn is_of_routes(&self) -> bool {
        matches!(self, Turn::Change(change) if change.is_of_routes())
    }
}

/// Returns what comes back for the first packet that left in clear.
fn answer(world: &World, answer: Answer, observed: &Observed) -> Option<Arrival> {
    let sent = observed.emissions.iter().find(|sent| sent.sealed.is_none())?;
    let Out::Sent(port, _) = sent.fate else { return None };
    let packet = headers::ip(&sent.packet).ok().filter(|packet| packet.part == Part::Whole)?;
    let flow = packet.flow;
    let builder = PacketBuilder::new(flow.destination_address(), flow.source_address());
    let is_v4 = flow.family == Family::V4;
    let bytes = match (answer, flow.upper, flow.protocol) {
        (Answer::Nothing, ..) => return None,
        (Answer::Error, ..) if icmp::is_error(&flow) => return None,
        (Answer::Error, ..) => {
            let kind = if is_v4 { 3 } else { 1 };
            builder.icmp(kind, 1, [0; 4]).payload(&packet.bytes)
        }
        (_, Upper::Ports { source, destination }, 6) => {
            let flags = tcp_flags::SYN | tcp_flags::ACK;
            builder.tcp_with(destination, source, flags, None)
        }
        (_, Upper::Ports { source, destination }, 17) => builder.udp(destination, source),
        (_, Upper::Icmp { kind: 8 | 128, .. }, _) => {
            let kind = if is_v4 { 0 } else { 129 };
            let rest = packet.bytes.get(packet.upper + 4..packet.upper + 8)?;
            builder.icmp(kind, 0, rest.try_into().ok()?)
        }
        _ => return None,
    };
    Some(plain_frame(world, port, bytes.ip()))
}

// HA-29, REPLY
#[test]
fn connections_are_the_same_on_every_path_and_explained() {
    let all: RefCell<Walked> = RefCell::default();
    let seed = prop_oneof![3 => a_seed().prop_map(Seed::common), 1 => a_seed()];
    let seeds = prop::collection::vec(seed.prop_map(Seed::steady), SEEDS);
    let back = select(&[Answer::Nothing, Answer::Answers, Answer::Answers, Answer::Error][..]);
    let step = (any::<Index>(), 1..4usize, back);
    let change = prop_oneof![
        1 => a_change().prop_map(Turn::Change),
        1 => any::<Index>().prop_map(Turn::Forgets),
    ];
    let stretch = (change, prop::collection::vec(step, 1..12));
    let stretches = prop::collection::vec(stretch, 1..12);
    let strategy = (a_tracking_world(), seeds, stretches, select(&ROOMS[..]));
    crate::check(WORLDS, strategy, |(world, seeds, list, room)| {
        let mut worlds = vec![world];
        for (change, _) in &list {
            worlds.push(change.of(worlds.last().unwrap()));
        }
        let mut spd = Arc::new(Spd::with_room(worlds[0].policies.clone(), ROOM).unwrap());
        let mut routes = RouteGeneration(0);
        let mut four = Four::new(&worlds[0], &spd, room);
        let mut walked = all.borrow_mut();
        for ((change, steps), world) in list.iter().zip(&worlds[1..]) {
            spd = next_spd(&spd, &world.policies);
            routes.0 += u32::from(change.is_of_routes());
            four.go_over(world, &spd, routes);
            let mut builder = Builder::new(world);
            for (pick, count, back) in steps {
                let seed = pick.get(&seeds);
                let batch: Vec<Arrival> = (0..*count).map(|_| builder.build(seed)).collect();
                let observed = four.walk(&batch, &mut walked)?;
                if let Some(back) = answer(world, *back, &observed) {
                    let observed = four.walk(&[back], &mut walked)?;
                    walked.answered += u64::from(!matches!(observed.verdicts[0], Verdict::Drop(_)));
                }
            }
            four.counted_the_same()?;
        }
        let fast = four.gateways[1].walks().iter().map(|walk| walk.counters().fast_path);
        walked.fast += fast.sum::<u64>();
        walked.begun += four.connections[0].as_ref().map_or(0, |table| table.counts().made);
        Ok(())
    });
    let walked = all.into_inner();
    println!("{walked:?}");
    if std::env::var_os("PROPTEST_CASES").is_none() {
        let Walked { packets, fast, begun, answered, limited, explained } = walked;
        assert!(fast * 20 > packets && begun > 60 && answered > 200, "{walked:?}");
        assert!(limited > 50 && explained > 500, "{walked:?}");
    }
}
