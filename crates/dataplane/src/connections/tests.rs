//! The table against a map: packet by packet, and with two workers at once.

mod evictions;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use policy::connection::Segment::{Ack, Fin, Rst, Syn, SynAck};
use proptest::prelude::*;
use wire::{Family, Flow, Upper};

use super::*;

const SECRET: &Secret = &[7; 32];

/// Attachments of the zones of these tests.
const ZONES: u16 = 2;

/// One of a few connections that packets are of, and the direction of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Pair {
    number: u8,
    is_v6: bool,
    zone: u16,
}

fn flow(number: u8, is_v6: bool) -> Flow {
    let (family, high) =
        if is_v6 { (Family::V6, 0x2001_0db8 << 96) } else { (Family::V4, 10 << 24) };
    // Some have the lower address first, others the higher one.
    let (source, destination) = if number.is_multiple_of(2) { (1, 2) } else { (2, 1) };
    let upper = Upper::Ports { source: 1000 + u16::from(number), destination: 80 };
    let (source, destination) = (high | source, high | destination);
    Flow { family, source, destination, protocol: 6, upper, opens: false }
}

fn turned(flow: &Flow) -> Flow {
    let Upper::Ports { source, destination } = flow.upper else { panic!("ports") };
    Flow {
        source: flow.destination,
        destination: flow.source,
        upper: Upper::Ports { source: destination, destination: source },
        ..*flow
    }
}

impl Pair {
    /// The key of a packet of the end that has the port above 1000, or of the other.
    fn key(self, is_turned: bool) -> Key {
        let flow = flow(self.number, self.is_v6);
        let flow = if is_turned { turned(&flow) } else { flow };
        Key::of(&flow, Zone { attachment: self.zone, vni: 0xab_cdef }).expect("ports")
    }
}

fn judgement(number: u32) -> Judgement {
    let domain = DomainId(number as u16);
    Judgement { rule: PolicyIndex(number), domain, generation: Generation(number + 1) }
}

/// An entry of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Modelled {
    status: Status,
    /// The originator is the end with port 80.
    is_turned: bool,
    last_s: u32,
    judgement: Judgement,
    /// Rank by the moment of becoming half-open.
    rank: u64,
}

/// Kind of admission under the bounds.
#[derive(Clone, Copy, PartialEq)]
enum Admitted {
    New,
    /// An assured connection that begins anew.
    Again,
}

#[derive(Clone, Debug)]
enum Step {
    /// A packet, which makes a connection if it is of none.
    Packet {
        pair: Pair,
        is_turned: bool,
        segment: Segment,
    },
    Remove(Pair),
    Renew(Pair, u32),
    Wait(u32),
    Sweep,
    Clear(u16),
}

fn pairs(numbers: u8, families: bool) -> impl Strategy<Value = Pair> {
    let is_v6 = if families { any::<bool>().boxed() } else { Just(false).boxed() };
    (0..numbers, is_v6, 0..ZONES).prop_map(|(number, is_v6, zone)| Pair { number, is_v6, zone })
}

fn steps(numbers: u8, families: bool) -> impl Strategy<Value = Vec<Step>> {
    let pair = move || pairs(numbers, families);
    let segment = prop_oneof![
        4 => Just(Syn), 4 => Just(SynAck), 5 => Just(Ack), 1 => Just(Fin), 1 => Just(Rst),
    ];
    let step = prop_oneof![
        20 => (pair(), any::<bool>(), segment)
            .prop_map(|(pair, is_turned, segment)| Step::Packet { pair, is_turned, segment }),
        1 => pair().prop_map(Step::Remove),
        1 => (pair(), 0u32..1000).prop_map(|(pair, number)| Step::Renew(pair, number)),
        4 => (0u32..12).prop_map(Step::Wait),
        1 => (100u32..200).prop_map(Step::Wait),
        2 => Just(Step::Sweep),
        1 => (0..ZONES).prop_map(Step::Clear),
    ];
    prop::collection::vec(step, 1..120)
}

/// The table and a map of what is in it, fed with the same steps.
struct Both {
    table: Connections,
    limits: Limits,
    model: HashMap<Pair, Modelled>,
    now_s: u32,
    /// No connection is wide and no bucket is full: the model predicts each eviction.
    is_exact: bool,
    ranks: u64,
}

impl Both {
    fn new(limits: Limits, now_s: u32, is_exact: bool) -> Both {
        let table = Connections::new(limits, Timeouts::default(), SECRET);
        Both { table, limits, model: HashMap::new(), now_s, is_exact, ranks: 0 }
    }

    fn run(&mut self, steps: &[Step]) {
        for (at, step) in steps.iter().enumerate() {
            self.step(step, at as u32);
            self.compare();
        }
        self.sweep_all();
        self.compare_counts();
    }

    fn sweep_all(&self) {
        let everything = self.table.lines();
        self.table.sweep(&mut self.table.stripe(0, 1), everything, self.now_s);
    }

    fn next_rank(&mut self) -> u64 {
        self.ranks += 1;
        self.ranks
    }

    fn step(&mut self, step: &Step, at: u32) {
        match *step {
            Step::Packet { pair, is_turned, segment } => {
                self.packet(pair, is_turned, segment, judgement(at));
            }
            Step::Remove(pair) => {
                let key = pair.key(false);
                let found = self.table.find(&key, self.now_s);
                let is_removed = found.is_some_and(|it| self.table.remove(it.place, &key));
                assert_eq!(is_removed, self.model.remove(&pair).is_some());
            }
            Step::Renew(pair, number) => {
                let key = pair.key(true);
                let found = self.table.find(&key, self.now_s);
                let judgement = judgement(number);
                let is_renewed =
                    found.is_some_and(|it| self.table.renew(it.place, &key, judgement));
                let modelled = self.model.get_mut(&pair);
                assert_eq!(is_renewed, modelled.is_some());
                modelled.into_iter().for_each(|it| it.judgement = judgement);
            }
            Step::Wait(seconds) => {
                self.now_s = self.now_s.wrapping_add(seconds);
                let (now_s, timeouts) = (self.now_s, Timeouts::default());
                self.model.retain(|_, it| now_s.wrapping_sub(it.last_s) < timeouts.of(it.status));
                if self.is_exact {
                    self.sweep_all();
                }
            }
            Step::Sweep => {
                let mut stripe = self.table.stripe(0, 2);
                self.table.sweep(&mut stripe, 1 + self.table.lines() / 4, self.now_s);
            }
            Step::Clear(zone) => {
                let there = self.model.len();
                let is_of = |it: &Connection| it.zone.attachment == zone;
                let cleared = self.table.clear(self.now_s, is_of);
                self.model.retain(|pair, _| pair.zone != zone);
                assert_eq!(cleared, there - self.model.len());
            }
        }
    }

    /// Does with a packet as a worker would whose rules permit everything in every direction.
    fn packet(&mut self, pair: Pair, is_turned: bool, segment: Segment, judgement: Judgement) {
        let (key, shown) = (pair.key(is_turned), Shown::Tcp(segment));
        let found = self.table.find(&key, self.now_s);
        let modelled = self.model.get(&pair).copied();
        assert_eq!(found.is_some(), modelled.is_some(), "{pair:?}");
        if let (Some(found), Some(modelled)) = (found, modelled) {
            let from =
                if is_turned == modelled.is_turned { Side::Originator } else { Side::Responder };
            assert_eq!((found.from, found.status), (from, modelled.status));
            assert_eq!(found.judgement, modelled.judgement);
            assert_eq!(self.table.at(found.place, &key, self.now_s), Some(found));
            if self.observe(found.place, pair, (&key, shown), from) {
                return;
            }
        }
        let event = Event { from: Side::Originator, shown };
        let begins = connection::next(None, event);
        match (self.table.insert(&key, shown, judgement, self.now_s), begins) {
            (Inserted::MakesNone, Next::MakesNone) => {}
            (Inserted::New(_), Next::Begins(status)) => {
                self.model.remove(&pair);
                self.give_way(pair, Admitted::New, None);
                let (last_s, rank) = (self.now_s, self.next_rank());
                self.model.insert(pair, Modelled { status, is_turned, last_s, judgement, rank });
            }
            (Inserted::Refused(refusal), Next::Begins(_)) => {
                // What is closed has made room before the bound was looked at.
                if modelled.is_some_and(|it| it.status.gives_way()) {
                    self.model.remove(&pair);
                }
                self.give_way(pair, Admitted::New, Some(refusal));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether the packet was of the connection.
    fn observe(
        &mut self,
        place: Place,
        pair: Pair,
        (key, shown): (&Key, Shown),
        from: Side,
    ) -> bool {
        let observed = self.table.observe(place, key, shown, self.now_s);
        let modelled = self.model[&pair];
        let before = modelled.status;
        let next = connection::next(Some(before), Event { from, shown });
        let (after, last_s) = match next {
            Next::Begins(after) | Next::Continues(after) | Next::Resets(after) => {
                (after, self.now_s)
            }
            Next::Keeps(after) => (after, modelled.last_s),
            Next::IsNew => {
                assert_eq!(observed, Observed::IsNew);
                return false;
            }
            Next::MakesNone => panic!("there is one"),
        };
        assert_eq!(observed, Observed::Seen { from, before, after });
        let mut rank = modelled.rank;
        if after.is_half_open() && !before.is_half_open() {
            self.give_way(pair, Admitted::Again, None);
            rank = self.next_rank();
        }
        self.model.insert(pair, Modelled { status: after, last_s, rank, ..modelled });
        true
    }

    fn half_open(&self, filter: impl Fn(&Pair) -> bool) -> usize {
        let half_open = self.model.iter().filter(|(_, it)| it.status.is_half_open());
        half_open.filter(|(pair, _)| filter(pair)).count()
    }

    fn half_open_lines(&self) -> usize {
        self.half_open(|_| true) + self.half_open(|pair| pair.is_v6)
    }

    /// Removes the victims of an admission from the model, and checks each of them.
    fn give_way(&mut self, new: Pair, admitted: Admitted, refusal: Option<Refusal>) {
        let is_there = |pair: &Pair| self.table.find(&pair.key(false), self.now_s).is_some();
        let others = self.model.keys().copied().filter(|pair| *pair != new);
        let mut gone: Vec<Pair> = others.filter(|pair| !is_there(pair)).collect();
        assert!(gone.iter().all(|it| self.model[it].status.is_half_open()), "{gone:?}");
        if !self.is_exact {
            self.model.retain(|pair, _| !gone.contains(pair));
            return;
        }
        loop {
            let cause = self.cause(new, admitted);
            let is_of_zone = cause.is_some_and(Refusal::is_of_zone);
            let may_go = self.model.iter().filter(|(pair, it)| {
                it.status.is_half_open() && (!is_of_zone || pair.zone == new.zone)
            });
            let oldest = may_go.min_by_key(|(_, it)| it.rank).map(|(pair, _)| *pair);
            let (Some(_), Some(oldest)) = (cause, oldest) else {
                assert_eq!(cause, refusal, "{:?}", self.model);
                break;
            };
            let at = gone.iter().position(|pair| *pair == oldest);
            gone.swap_remove(at.expect("the oldest gives way"));
            self.model.remove(&oldest);
        }
        assert!(gone.is_empty(), "{gone:?} gave way for nothing");
    }

    /// The bound that is in the way of one more connection.
    fn cause(&self, new: Pair, admitted: Admitted) -> Option<Refusal> {
        let zone = self.model.keys().filter(|it| it.zone == new.zone).count();
        let (limits, is_new) = (&self.limits, admitted == Admitted::New);
        let half_open = |count: usize, limit: u32| count >= limit as usize;
        if is_new && zone >= limits.per_zone as usize {
            Some(Refusal::ZoneLimit)
        } else if half_open(self.half_open(|it| it.zone == new.zone), limits.half_open_per_zone) {
            Some(Refusal::ZoneHalfOpenLimit)
        } else if is_new && self.model.len() >= limits.max as usize {
            Some(Refusal::TableFull)
        } else if half_open(self.half_open(|_| true), limits.half_open) {
            Some(Refusal::HalfOpenLimit)
        } else {
            None
        }
    }

    fn compare(&self) {
        let (mut all, mut from) = (Vec::new(), Some(Place(0)));
        while let Some(place) = from {
            from = self.table.page(place, 3, self.now_s, &mut all);
        }
        assert_eq!(all.len(), self.model.len());
        for (pair, modelled) in &self.model {
            let key = pair.key(modelled.is_turned);
            let shown = all.iter().find(|it| it.key == key).expect("its originator's key");
            assert_eq!((shown.status, shown.judgement), (modelled.status, modelled.judgement));
            assert_eq!(shown.idle_s, self.now_s.wrapping_sub(modelled.last_s));
            let flow = flow(pair.number, pair.is_v6);
            let flow = if modelled.is_turned { turned(&flow) } else { flow };
            let Upper::Ports { source, destination } = flow.upper else { panic!("ports") };
            assert_eq!((shown.originator.port, shown.responder.port), (source, destination));
            assert_eq!(shown.originator.address.value, flow.source);
            assert_eq!(shown.responder.address.value, flow.destination);
            assert_eq!((shown.zone.attachment, shown.zone.vni), (pair.zone, 0xab_cdef));
        }
        let counts = self.table.counts();
        assert!(counts.lines <= self.limits.max, "{counts:?}");
        assert!(counts.half_open_lines <= self.limits.half_open, "{counts:?}");
        for zone in self.table.zones() {
            assert!(zone.live <= self.limits.per_zone, "{zone:?}");
            assert!(zone.half_open <= self.limits.half_open_per_zone, "{zone:?}");
        }
    }

    fn compare_counts(&self) {
        let counts = self.table.counts();
        let lines = self.model.keys().map(|pair| 1 + u32::from(pair.is_v6)).sum::<u32>();
        assert_eq!(counts.lines, lines);
        assert_eq!(counts.half_open_lines as usize, self.half_open_lines());
        for zone in self.table.zones() {
            let of_zone = |pair: &Pair| pair.zone == zone.attachment;
            let live = self.model.keys().filter(|it| of_zone(it)).count();
            assert_eq!(
                (zone.live as usize, zone.half_open as usize),
                (live, self.half_open(of_zone))
            );
        }
    }
}

proptest! {
    // `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The table is small: each bound is met all the time.
    #[test]
    fn small_table_does_as_a_map_with_bounds(
        steps in steps(5, false), half_open in 1u32..5, per_zone in 2u32..5,
        half_open_per_zone in 1u32..4, now_s: u32,
    ) {
        let limits = Limits { max: 4, half_open, per_zone, half_open_per_zone };
        Both::new(limits, now_s, true).run(&steps);
    }

    #[test]
    fn table_of_both_families_does_as_a_map(
        steps in steps(12, true), max in 4u32..60, now_s: u32,
    ) {
        let limits = Limits { half_open_per_zone: max, ..Limits::of(max) };
        Both::new(limits, now_s, false).run(&steps);
    }

    #[test]
    fn both_directions_have_one_key_and_zones_none_in_common(
        source: u128, destination: u128, ports: (u16, u16), protocol: u8, is_v6: bool,
        zones: ((u16, u32), (u16, u32)),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let [source, destination] = [source, destination].map(|it| it & family.highest_address());
        let upper = Upper::Ports { source: ports.0, destination: ports.1 };
        let flow = Flow { family, source, destination, protocol, upper, opens: false };
        let zone = |(attachment, vni): (u16, u32)| Zone { attachment, vni: vni >> 8 };
        let key = Key::of(&flow, zone(zones.0)).expect("ports");
        let answer = Key::of(&turned(&flow), zone(zones.0)).expect("ports");
        prop_assert_eq!(key.line, answer.line);
        prop_assert_eq!((key.zone(), key.protocol()), (zone(zones.0), protocol));
        if (source, ports.0) != (destination, ports.1) {
            prop_assert_eq!(answer, key.reversed());
            prop_assert_eq!(answer.side(key.sender()), Side::Responder);
        }
        let elsewhere = Key::of(&flow, zone(zones.1)).expect("ports");
        prop_assert_eq!(elsewhere.line == key.line, zone(zones.0) == zone(zones.1));
    }
}

/// Acts of one of two workers upon one connection.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Act {
    Insert { is_turned: bool, segment: Segment },
    Observe { is_turned: bool, segment: Segment },
    Remove,
    Find { is_turned: bool },
}

/// Answer that a worker gets, without places.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    New,
    Raced(Side, Status),
    MakesNone,
    Observed(Observed),
    Removed(bool),
    Found(Option<(Side, Status)>),
}

fn really(table: &Connections, pair: Pair, place: Option<Place>, act: Act) -> Told {
    let key = |is_turned| pair.key(is_turned);
    let nowhere = place.unwrap_or(Place(u32::MAX));
    match act {
        Act::Insert { is_turned, segment } => {
            match table.insert(&key(is_turned), Shown::Tcp(segment), judgement(1), 5) {
                Inserted::New(_) => Told::New,
                Inserted::Raced(found) => Told::Raced(found.from, found.status),
                Inserted::MakesNone => Told::MakesNone,
                Inserted::Refused(refusal) => panic!("{refusal:?}"),
            }
        }
        Act::Observe { is_turned, segment } => {
            Told::Observed(table.observe(nowhere, &key(is_turned), Shown::Tcp(segment), 5))
        }
        Act::Remove => Told::Removed(table.remove(nowhere, &key(false))),
        Act::Find { is_turned } => {
            Told::Found(table.find(&key(is_turned), 5).map(|it| (it.from, it.status)))
        }
    }
}

/// The connection of a pair, if there is one: its status, and whether it is turned.
type There = Option<(Status, bool)>;

/// Says what [`really`] would if nobody else were there. `is_placed`: the place that it is given is
/// good as long as the connection is the one that was there at first.
fn in_model(there: &mut There, is_placed: bool, act: Act) -> Told {
    let side = |is_turned, (_, turned): (Status, bool)| {
        if is_turned == turned { Side::Originator } else { Side::Responder }
    };
    match (act, *there) {
        (Act::Insert { is_turned, segment }, now) => {
            let event = Event { from: Side::Originator, shown: Shown::Tcp(segment) };
            let Next::Begins(status) = connection::next(None, event) else {
                return Told::MakesNone;
            };
            if let Some(now) = now {
                let from = side(is_turned, now);
                if !(segment == Syn && from == Side::Responder && now.0.gives_way()) {
                    return Told::Raced(from, now.0);
                }
            }
            *there = Some((status, is_turned));
            Told::New
        }
        (Act::Observe { is_turned, segment }, Some(now)) if is_placed => {
            let from = side(is_turned, now);
            let event = Event { from, shown: Shown::Tcp(segment) };
            let after = match connection::next(Some(now.0), event) {
                Next::Begins(it) | Next::Continues(it) | Next::Keeps(it) | Next::Resets(it) => it,
                Next::IsNew | Next::MakesNone => return Told::Observed(Observed::IsNew),
            };
            *there = Some((after, now.1));
            Told::Observed(Observed::Seen { from, before: now.0, after })
        }
        (Act::Observe { .. }, _) => Told::Observed(Observed::Gone),
        (Act::Remove, now) => {
            let is_there = now.is_some() && is_placed;
            *there = there.filter(|_| !is_there);
            Told::Removed(is_there)
        }
        (Act::Find { is_turned }, now) => Told::Found(now.map(|now| (side(is_turned, now), now.0))),
    }
}

/// Numbers that are random enough.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % end
    }

    fn act(&mut self) -> Act {
        let segment = [Syn, SynAck, Ack, Ack, Fin, Rst][self.below(6) as usize];
        let is_turned = self.below(2) == 1;
        match self.below(8) {
            0..=2 => Act::Insert { is_turned, segment },
            3..=5 => Act::Observe { is_turned, segment },
            6 => Act::Remove,
            _ => Act::Find { is_turned },
        }
    }
}

/// A place where two threads meet again and again, and leave at nearly the same moment.
#[derive(Default)]
struct Meeting(AtomicU64);

impl Meeting {
    fn wait(&self) {
        let mine = self.0.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0;
        while self.0.load(Ordering::Acquire) / 2 == mine / 2 {
            turns += 1;
            if turns < 2000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// In each round both workers do one act at once, upon one connection. What they are told, and
/// what is there afterwards, is as if one had been first.
#[test]
fn two_workers_at_once_are_as_one_after_the_other() {
    const ROUNDS: u64 = 30_000;
    let table = Connections::new(Limits::of(64), Timeouts::default(), SECRET);
    let (meeting, mut random) = (Meeting::default(), Random(0x1234_5678_9abc_def1));
    let rounds: Vec<(Pair, [Act; 2])> = (0..ROUNDS)
        .map(|_| {
            let (number, is_v6) = (random.below(3) as u8, random.below(2) == 1);
            (Pair { number, is_v6, zone: 0 }, [random.act(), random.act()])
        })
        .collect();
    let status = |pair: Pair| {
        let found = table.find(&pair.key(false), 5);
        found.map(|it| (it.place, (it.status, it.from == Side::Responder)))
    };
    let worker = |me: usize, mut look: Box<dyn FnMut(usize, There, There) + '_>| {
        let mut told = Vec::new();
        for (round, (pair, acts)) in rounds.iter().enumerate() {
            meeting.wait();
            let before = status(*pair);
            meeting.wait();
            told.push(really(&table, *pair, before.map(|it| it.0), acts[me]));
            meeting.wait();
            look(round, before.map(|it| it.1), status(*pair).map(|it| it.1));
        }
        told
    };
    let mut seen = Vec::new();
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| worker(1, Box::new(|_, _, _| {})));
        let mine = worker(0, Box::new(|_, before, after| seen.push((before, after))));
        (mine, other.join().expect("it does not panic"))
    });
    for (round, ((pair, acts), (before, after))) in rounds.iter().zip(seen).enumerate() {
        let told = [first[round], second[round]];
        let is_as_in_order = |order: [usize; 2]| {
            let (mut there, mut said) = (before, [None; 2]);
            for me in order {
                // What is made anew while nearly all lines are free has the same place.
                said[me] = Some(in_model(&mut there, before.is_some(), acts[me]));
            }
            said == told.map(Some) && there == after
        };
        // A closed connection is removed before the new one takes its place: another worker may
        // come in between.
        let is_in_between = |replacer: usize| {
            let (mut there, mut nothing) = (before, None);
            let replaced = in_model(&mut there, true, acts[replacer]);
            let other = in_model(&mut nothing, true, acts[1 - replacer]);
            before.is_some()
                && (replaced, Some(replaced)) == (Told::New, told.get(replacer).copied())
                && nothing.is_none()
                && other == told[1 - replacer]
                && there == after
        };
        assert!(
            is_in_between(0)
                || is_in_between(1)
                || is_as_in_order([0, 1])
                || is_as_in_order([1, 0]),
            "round {round}: {pair:?} {before:?} {acts:?}, told {told:?}, then {after:?}"
        );
    }
}

/// Both workers send, remove, sweep and clear as they like, on a table that is too small.
#[test]
fn what_two_workers_did_adds_up() {
    for round in 0..20u64 {
        let limits = Limits { half_open_per_zone: 9, per_zone: 20, ..Limits::of(32) };
        let table = Connections::new(limits, Timeouts::default(), SECRET);
        let run = |me: u64| {
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (round << 8 | me));
            let (mut stripe, mut taken) = (table.stripe(me as usize, 2), 0);
            for at in 0..20_000u32 {
                let pair = Pair {
                    number: random.below(40) as u8,
                    is_v6: random.below(4) == 0,
                    zone: random.below(2) as u16,
                };
                // Clocks of two workers that are a little apart.
                let now_s = at / 50 + me as u32;
                taken += work(&table, pair, &mut random, now_s);
                if at.is_multiple_of(8) {
                    table.sweep(&mut stripe, 4, now_s);
                }
                let counts = table.counts();
                assert!(counts.lines <= 32 && counts.half_open_lines <= 8, "{counts:?}");
            }
            taken
        };
        let taken: u64 = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(1));
            run(0) + other.join().expect("it does not panic")
        });
        let counts = table.counts();
        let mut all = Vec::new();
        assert_eq!(table.page(Place(0), table.lines(), 0, &mut all), None);
        let there = all.len() as u64;
        assert_eq!(counts.made, counts.expired + counts.replaced + taken + there, "{counts:?}");
        let width =
            |it: &Connection| if it.originator.address.family == Family::V6 { 2 } else { 1 };
        assert_eq!(counts.lines, all.iter().map(width).sum::<u32>());
        let half_open = |it: &&Connection| it.status.is_half_open();
        assert_eq!(counts.half_open_lines, all.iter().filter(half_open).map(width).sum::<u32>());
        let mut keys: Vec<_> = all.iter().map(|it| it.key.line.head).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]), "one entry a connection");
        let zones: u32 = table.zones().map(|it| it.live).sum();
        assert_eq!(u64::from(zones), there);
    }
}

/// One packet or removal of a worker; returns how many connections it removed itself.
fn work(table: &Connections, pair: Pair, random: &mut Random, now_s: u32) -> u64 {
    let key = pair.key(random.below(2) == 1);
    let segment = [Syn, SynAck, Ack, Ack, Fin, Rst][random.below(6) as usize];
    let found = table.find(&key, now_s);
    let shown = Shown::Tcp(segment);
    match (found, random.below(200)) {
        (Some(found), 0..5) => return u64::from(table.remove(found.place, &key)),
        (Some(found), 5..15) => drop(table.renew(found.place, &key, judgement(3))),
        (_, 15) => return table.clear(now_s, |it| it.key.line == key.line) as u64,
        (Some(found), _) => match table.observe(found.place, &key, shown, now_s) {
            Observed::IsNew => drop(table.insert(&key, shown, judgement(1), now_s)),
            Observed::Seen { .. } | Observed::Gone | Observed::Refused(_) => {}
        },
        (None, _) => drop(table.insert(&key, shown, judgement(1), now_s)),
    }
    0
}
