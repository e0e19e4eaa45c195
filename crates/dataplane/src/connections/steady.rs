//! Packets that change nothing of their connection: neither its status nor the second in which it
//! was last seen. That is nearly every packet of a busy connection, so it is found out by as few
//! steps as can be, for many packets together. Whatever it is not sure of it leaves to
//! [`find`](Connections::find) and [`observe`](Connections::observe).

use cpu::aes::KeyedHash;
use policy::PolicyIndex;
use policy::connection::{self, Event, Flags, Next, Segment, Shown, Side, State, Status, Timeouts};
use wire::BATCH;

use super::changes::{ChangeGroup, ChangesView};
use super::key::{Key, Zone};
use super::state_word::StateWord;
use super::{BUCKET, Connections, Constant, Originator, VALUE};

/// Content of a packet, as a number: a TCP segment by its flags, or a packet of another protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventClass(u8);

const SEGMENTS: [Segment; 6] =
    [Segment::Syn, Segment::SynAck, Segment::Ack, Segment::Fin, Segment::Rst, Segment::Odd];

/// Classes by the low 5 bits of TCP's flags: `ACK PSH RST SYN FIN`.
const OF_FLAGS: [u8; 32] = {
    let (mut classes, mut flags) = ([0; 32], 0);
    while flags < 32 {
        classes[flags] = match Segment::of_flags(flags as u8) {
            Segment::Syn => 0,
            Segment::SynAck => 1,
            Segment::Ack => 2,
            Segment::Fin => 3,
            Segment::Rst => 4,
            Segment::Odd => 5,
        };
        flags += 1;
    }
    classes
};

impl EventClass {
    /// A TCP segment that acknowledges, and does nothing else.
    pub(crate) const ACK: EventClass = EventClass(2);
    /// A packet of another protocol than TCP and ICMP.
    pub(crate) const OTHER: EventClass = EventClass(6);

    /// A TCP segment with these flags.
    #[inline(always)]
    pub(crate) fn of_flags(flags: u8) -> EventClass {
        EventClass(OF_FLAGS[usize::from(flags & 0x1f)])
    }
}

/// Tables by a state word's status: [`StateWord::status_bits`].
pub(super) struct Steady {
    /// A bit for each class and sender whose packet leaves the status as it is, and refreshes it.
    keeps: [u16; 256],
    /// Time-out of a connection of this status; 0 for none.
    timeouts_s: [u32; 256],
    /// True if the changes of a connection of this status are counted.
    may_be_marked: [bool; 256],
}

impl Steady {
    pub(super) fn new(timeouts: &Timeouts) -> Steady {
        let mut steady =
            Steady { keeps: [0; 256], timeouts_s: [0; 256], may_be_marked: [false; 256] };
        for state in State::ALL {
            for flags in 0..16 {
                let status = Status { state, flags: Flags::of_bits(flags) };
                let bits = StateWord::new(status, 0).status_bits();
                steady.timeouts_s[bits] = timeouts.of(status);
                let is_tcp = !matches!(state, State::Datagram | State::Echo | State::Other);
                steady.may_be_marked[bits] = !(is_tcp && status.is_half_open());
                for class in 0..=EventClass::OTHER.0 {
                    for from in [Side::Originator, Side::Responder] {
                        // Datagrams and packets of other protocols do the same.
                        let segment = SEGMENTS.get(usize::from(class)).copied();
                        let shown = segment.map_or(Shown::Udp, Shown::Tcp);
                        let next = connection::next(Some(status), Event { from, shown });
                        let keeps = next == Next::Continues(status);
                        steady.keeps[bits] |= u16::from(keeps) << bit(class, from);
                    }
                }
            }
        }
        steady
    }

    /// Time-out of the connection of a live state word.
    #[inline(always)]
    pub(super) fn timeout_s(&self, word: StateWord) -> u32 {
        self.timeouts_s[word.status_bits()]
    }

    /// Returns whether the changes of a connection with this state word are counted, so that a flow
    /// cache may hold a mark for it.
    #[inline(always)]
    pub(super) fn may_be_marked(&self, word: StateWord) -> bool {
        self.may_be_marked[word.status_bits()]
    }
}

#[inline(always)]
fn bit(class: u8, from: Side) -> u32 {
    u32::from(class) << 1 | u32::from(from == Side::Responder)
}

/// The words of a key with the side that sent the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HotKey<K> {
    pub(crate) words: K,
    pub(crate) is_from_second: bool,
}

/// The words of a key: those of the first line, then those of the second.
pub(crate) trait KeyWords: Copy {
    const NOTHING: Self;
    /// Lines of an entry.
    const LINES: usize;
    fn head(&self) -> &[u64; 3];
    fn tail(&self) -> Option<&[u64; 3]>;
    fn hash(hash: &KeyedHash, keys: &[Self], out: &mut [u64]);
}

impl KeyWords for [u64; 4] {
    const NOTHING: Self = [0; 4];
    const LINES: usize = 1;

    #[inline(always)]
    fn head(&self) -> &[u64; 3] {
        self.first_chunk().expect("four words")
    }

    #[inline(always)]
    fn tail(&self) -> Option<&[u64; 3]> {
        None
    }

    #[inline(always)]
    fn hash(hash: &KeyedHash, keys: &[Self], out: &mut [u64]) {
        hash.hash(keys, out);
    }
}

impl KeyWords for [u64; 6] {
    const NOTHING: Self = [0; 6];
    const LINES: usize = 2;

    #[inline(always)]
    fn head(&self) -> &[u64; 3] {
        self.first_chunk().expect("six words")
    }

    #[inline(always)]
    fn tail(&self) -> Option<&[u64; 3]> {
        self.last_chunk()
    }

    #[inline(always)]
    fn hash(hash: &KeyedHash, keys: &[Self], out: &mut [u64]) {
        hash.hash(keys, out);
    }
}

/// The head of a flow's key in the flow cache ([`v4_head`](crate::cache::v4_head)), whose flow has
/// ports: the same words, in the order of the packet.
pub(crate) trait FlowHead {
    type Key: KeyWords;

    /// The key of the flow in a zone.
    fn connection(&self, zone: u64) -> HotKey<Self::Key>;

    /// The group in which the connection's changes are counted, in whatever zone.
    fn group(&self, changes: &ChangesView<'_>) -> ChangeGroup;

    /// Digest of the flow's ends, the same in both directions.
    fn ends(&self) -> u32;

    /// Changes until now of the flow's connections and of those that are counted with them: the low
    /// byte.
    #[inline(always)]
    fn changes(&self, changes: &ChangesView<'_>) -> u8 {
        changes.of(self.group(changes))
    }
}

/// Protocol, and the part of the kind that says the family, in the identities of a flow and of a
/// connection alike.
const PROTOCOL_AND_FAMILY: u64 = 0xc0ff << 32;

/// The identity of a connection by that of a flow with these ports: the first one's lowest.
#[inline(always)]
fn identity(of_flow: u64, ports: u32) -> u64 {
    of_flow & PROTOCOL_AND_FAMILY | u64::from(ports)
}

/// The ports of a flow, `source << 16 | destination`, with that of the first end lowest.
#[inline(always)]
fn ports(of_flow: u64, from: Originator) -> u32 {
    match from {
        Originator::First => (of_flow as u32).rotate_left(16),
        Originator::Second => of_flow as u32,
    }
}

/// Mixes addresses and ports of both ends in either order.
#[inline(always)]
fn mixed_ends(addresses: u32, ports: u32) -> u32 {
    addresses ^ (ports ^ ports.rotate_left(16)).wrapping_mul(0x9e37_79b1)
}

/// Returns whether the source port is the higher one.
#[inline(always)]
fn source_port_is_higher(identity: u64) -> bool {
    (identity as u32) >> 16 > identity as u32 & 0xffff
}

impl FlowHead for [u64; 2] {
    type Key = [u64; 4];

    #[inline(always)]
    fn connection(&self, zone: u64) -> HotKey<[u64; 4]> {
        let [addresses, of_flow] = *self;
        let (source, destination) = (addresses as u32, (addresses >> 32) as u32);
        let is_from_second =
            (source > destination) | (source == destination) & source_port_is_higher(of_flow);
        let ends = if is_from_second { addresses.rotate_left(32) } else { addresses };
        let ports =
            ports(of_flow, if is_from_second { Originator::Second } else { Originator::First });
        let words = [ends, identity(of_flow, ports), zone, 0];
        HotKey { words, is_from_second }
    }

    #[inline(always)]
    fn group(&self, changes: &ChangesView<'_>) -> ChangeGroup {
        changes.group_v4(self[0], self[1] as u32)
    }

    #[inline(always)]
    fn ends(&self) -> u32 {
        let [addresses, of_flow] = *self;
        mixed_ends(addresses as u32 ^ (addresses >> 32) as u32, of_flow as u32)
    }
}

impl FlowHead for [u64; 6] {
    type Key = [u64; 6];

    #[inline(always)]
    fn connection(&self, zone: u64) -> HotKey<[u64; 6]> {
        let [source_low, of_flow, source_high, low, high, _] = *self;
        let source = u128::from(source_high) << 64 | u128::from(source_low);
        let destination = u128::from(high) << 64 | u128::from(low);
        let is_from_second =
            (source > destination) | (source == destination) & source_port_is_higher(of_flow);
        let identity = identity(
            of_flow,
            ports(of_flow, if is_from_second { Originator::Second } else { Originator::First }),
        );
        let words = match is_from_second {
            false => [source_low, identity, zone, source_high, low, high],
            true => [low, identity, zone, high, source_low, source_high],
        };
        HotKey { words, is_from_second }
    }

    #[inline(always)]
    fn group(&self, changes: &ChangesView<'_>) -> ChangeGroup {
        let [source_low, of_flow, source_high, low, high, _] = *self;
        changes.group_v6([source_low, source_high], [low, high], of_flow as u32)
    }

    #[inline(always)]
    fn ends(&self) -> u32 {
        let [source_low, of_flow, source_high, low, high, _] = *self;
        let addresses = source_low ^ low ^ (source_high ^ high).rotate_left(13);
        mixed_ends(addresses as u32 ^ (addresses >> 32) as u32, of_flow as u32)
    }
}

/// Keys of a batch in one zone, with their hashes, by the places of their packets.
pub(crate) struct KeyColumn<K> {
    words: [K; BATCH],
    hashes: [u64; BATCH],
    is_from_second: [bool; BATCH],
}

impl<K: KeyWords> KeyColumn<K> {
    pub(crate) fn new() -> KeyColumn<K> {
        KeyColumn { words: [K::NOTHING; BATCH], hashes: [0; BATCH], is_from_second: [false; BATCH] }
    }
}

impl Zone {
    /// The zone as a word of a key.
    pub(crate) fn key_word(self) -> u64 {
        self.word()
    }
}

/// A connection of which a packet changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SteadyConnection {
    /// The rule that let it begin.
    pub(crate) rule: PolicyIndex,
    /// The groups that judged it, and their generation: [`Judgement::by`](super::Judgement::by).
    pub(crate) by: u64,
    /// Its changes are counted.
    pub(crate) may_be_marked: bool,
}

impl Connections {
    /// Writes the keys of flows in a zone and their hashes, for the places from `first` on, and
    /// asks for the memory where they are looked for first.
    #[inline(always)]
    pub(crate) fn prepare<H: FlowHead>(
        &self,
        column: &mut KeyColumn<H::Key>,
        heads: &[H],
        (first, zone): (usize, u64),
    ) {
        let places = first..first + heads.len();
        let (words, hashes) =
            (&mut column.words[places.clone()], &mut column.hashes[places.clone()]);
        let seconds = &mut column.is_from_second[places];
        for ((head, words), is_second) in heads.iter().zip(&mut *words).zip(seconds) {
            let key = head.connection(zone);
            (*words, *is_second) = (key.words, key.is_from_second);
        }
        H::Key::hash(&self.hash, words, hashes);
        for hash in hashes {
            let bucket = self.bucket(*hash & u64::from(u32::MAX)) * BUCKET;
            let first = bucket + start::<H::Key>(*hash);
            (first..first + H::Key::LINES).for_each(|line| self.lines.prefetch(line));
        }
    }

    /// Prefetches all candidate lines of the keys at a range of places.
    #[inline(always)]
    pub(crate) fn prefetch_buckets<K: KeyWords>(
        &self,
        column: &KeyColumn<K>,
        places: std::ops::Range<usize>,
    ) {
        for hash in &column.hashes[places] {
            for bucket in self.buckets(*hash) {
                self.lines.prefetch_bucket(bucket);
            }
        }
    }

    #[inline(always)]
    fn bucket(&self, half: u64) -> usize {
        let buckets = self.lines.len() / BUCKET;
        ((half * buckets as u64) >> 32) as usize
    }

    /// Counts of changes.
    #[inline(always)]
    pub(crate) fn changes(&self) -> ChangesView<'_> {
        self.changes.view()
    }

    /// The group in which the changes of a key's connection are counted.
    pub(super) fn group_of(&self, key: &Key) -> ChangeGroup {
        let [low, identity, _] = key.line.head;
        let changes = self.changes();
        match key.line.tail {
            None => changes.group_v4(low, identity as u32),
            Some([high, other_low, other_high]) => {
                changes.group_v6([low, high], [other_low, other_high], identity as u32)
            }
        }
    }

    /// The connection that the packet at a place is of, if the packet changes nothing of it.
    /// `None`: it may change something, or it is of no connection.
    #[inline(always)]
    pub(crate) fn steady<K: KeyWords>(
        &self,
        column: &KeyColumn<K>,
        (place, class): (usize, EventClass),
        now_s: u32,
    ) -> Option<SteadyConnection> {
        let (key, hash) = (&column.words[place], column.hashes[place]);
        let first = self.bucket(hash & u64::from(u32::MAX)) * BUCKET + start::<K>(hash);
        let (word, value) = match self.lines.read(first, key.head(), key.tail()) {
            Some(read) => read,
            None => self.look_further(key, hash)?,
        };
        let bits = word.status_bits();
        let originator = Constant(value[2]).originator();
        let is_from_originator = column.is_from_second[place] == (originator == Originator::Second);
        let from = if is_from_originator { Side::Originator } else { Side::Responder };
        let keeps = self.steady.keeps[bits] >> bit(class.0, from) & 1 != 0;
        let is_now = word.last_seen_s() == now_s & super::state_word::SECONDS;
        let is_steady = keeps & is_now & !word.is_renewing() & (self.steady.timeouts_s[bits] > 0);
        let by = value[0] & !u64::from(u32::MAX) | value[1];
        let may_be_marked = self.steady.may_be_marked(word);
        is_steady.then_some(SteadyConnection {
            rule: PolicyIndex(value[0] as u32),
            by,
            may_be_marked,
        })
    }
}

impl Connections {
    /// Reads a key in the other lines where it may be.
    #[inline(never)]
    fn look_further<K: KeyWords>(&self, key: &K, hash: u64) -> Option<(StateWord, [u64; VALUE])> {
        let [first, second] = self.buckets(hash);
        let start = start::<K>(hash);
        let lines = |bucket: usize| self.lines.places_from(bucket * BUCKET + start, K::LINES);
        let mut lines = lines(first).skip(1).chain(lines(second));
        lines.find_map(|at| self.lines.read(at, key.head(), key.tail()))
    }

    /// The two buckets of a hash.
    #[inline]
    pub(super) fn buckets(&self, hash: u64) -> [usize; 2] {
        let (first, second) = (self.bucket(hash & u64::from(u32::MAX)), self.bucket(hash >> 32));
        let buckets = self.lines.len() / BUCKET;
        [first, if second == first { (first + 1) % buckets } else { second }]
    }
}

/// The line of a bucket that is looked at first.
#[inline(always)]
fn start<K: KeyWords>(hash: u64) -> usize {
    (hash as usize % BUCKET) & !(K::LINES - 1)
}

#[cfg(test)]
mod tests {
    use policy::{DomainId, Generation};
    use proptest::prelude::*;
    use wire::{Family, Flow, Upper};

    use super::super::key::Key;
    use super::*;
    use crate::cache::{v4_head, v6_head};
    use crate::connections::{Judgement, Limits};

    const NOW_S: u32 = 1000;

    fn flow(is_v6: bool, ends: (u8, u8), ports: (u8, u8), protocol: u8) -> Flow {
        let address = |number: u8| match is_v6 {
            false => 0x0a00_0000 + u128::from(number),
            true => u128::from(number >> 1) << 64 | u128::from(number),
        };
        Flow {
            family: if is_v6 { Family::V6 } else { Family::V4 },
            source: address(ends.0),
            destination: address(ends.1),
            protocol,
            upper: Upper::Ports { source: ports.0.into(), destination: ports.1.into() },
            opens: false,
        }
    }

    fn glance(flow: &Flow) -> wire::glance::Glance {
        let Upper::Ports { source, destination } = flow.upper else { unreachable!() };
        let upper = u32::from(source) << 16 | u32::from(destination);
        let (length, protocol) = (0, flow.protocol);
        wire::glance::Glance { length, protocol, upper, is_syn: false, opens: false }
    }

    fn column(table: &Connections, flow: &Flow, zone: Zone) -> (KeyColumn4, KeyColumn6) {
        let (mut v4, mut v6) = (KeyColumn::new(), KeyColumn::new());
        let at = (5, zone.key_word());
        match flow.family {
            Family::V4 => table.prepare(&mut v4, &[v4_head_of(flow)], at),
            Family::V6 => table.prepare(&mut v6, &[v6_head_of(flow)], at),
        }
        (v4, v6)
    }

    fn v4_head_of(flow: &Flow) -> [u64; 2] {
        v4_head(flow.source as u64 | (flow.destination as u64) << 32, &glance(flow))
    }

    fn v6_head_of(flow: &Flow) -> [u64; 6] {
        let halves = |of: u128| [(of >> 64) as u64, of as u64];
        v6_head((halves(flow.source), halves(flow.destination)), &glance(flow))
    }

    type KeyColumn4 = KeyColumn<[u64; 4]>;
    type KeyColumn6 = KeyColumn<[u64; 6]>;

    #[test]
    fn every_state_word_expires_at_the_time_out_of_its_status() {
        let timeouts = Timeouts {
            tcp_syn_s: 11,
            tcp_established_s: 12,
            tcp_closing_s: 13,
            tcp_time_wait_s: 14,
            tcp_reset_s: 15,
            udp_unreplied_s: 16,
            udp_replied_s: 17,
            icmp_echo_s: 18,
            other_unreplied_s: 19,
            other_replied_s: 20,
        };
        let table = Connections::new(Limits::of(16), timeouts, &[7; 32]);
        for status_bits in 0..=255u64 {
            for age_s in 0..=21 {
                let word = StateWord(status_bits << 28 | u64::from(NOW_S - age_s));
                let expected = word.status().is_some_and(|status| age_s >= timeouts.of(status));
                assert_eq!(table.is_expired(word, NOW_S), expected, "{word:?}, {age_s} s");
            }
        }
    }

    proptest! {
        /// A steady packet is one that `find` finds and `observe` leaves as it is.
        #[test]
        fn a_steady_packet_is_one_that_changes_nothing(
            is_v6: bool,
            ends in (0u8..4, 0u8..4),
            ports in (0u8..3, 0u8..3),
            is_tcp: bool,
            before in proptest::collection::vec((any::<bool>(), 0u8..32), 0..6),
            (turned, flags, later_s) in (any::<bool>(), 0u8..=255, 0u32..2),
        ) {
            let table = Connections::new(Limits::of(64), Timeouts::default(), &[3; 32]);
            let zone = Zone { attachment: 7, vni: 0 };
            let protocol = if is_tcp { 6 } else { 17 };
            let of = |turned: bool| match turned {
                false => flow(is_v6, ends, ports, protocol),
                true => flow(is_v6, (ends.1, ends.0), (ports.1, ports.0), protocol),
            };
            let shown = |flags: u8| match is_tcp {
                true => Shown::Tcp(Segment::of_flags(flags)),
                false => Shown::Udp,
            };
            let judgement = Judgement {
                rule: PolicyIndex(3), domain: DomainId(9), generation: Generation(4),
            };
            for (turned, flags) in before {
                let key = Key::of(&of(turned), zone).unwrap();
                match table.find(&key, NOW_S) {
                    Some(found) => drop(table.observe(found.place, &key, shown(flags), NOW_S)),
                    None => drop(table.insert(&key, shown(flags), judgement, NOW_S)),
                }
            }
            let (now_s, flow) = (NOW_S + later_s, of(turned));
            let (v4, v6) = column(&table, &flow, zone);
            let class = if is_tcp { EventClass::of_flags(flags) } else { EventClass::OTHER };
            let said = match is_v6 {
                false => table.steady(&v4, (5, class), now_s),
                true => table.steady(&v6, (5, class), now_s),
            };
            let key = Key::of(&flow, zone).unwrap();
            let expected = table.find(&key, now_s).filter(|found| {
                let event = Event { from: found.from, shown: shown(flags) };
                later_s == 0
                    && connection::next(Some(found.status), event)
                        == Next::Continues(found.status)
            });
            let expected = expected.map(|found| (found.judgement.rule, found.judgement.by()));
            prop_assert_eq!(said.map(|said| (said.rule, said.by)), expected);
        }

        /// A mark says that a packet changes nothing of its connection, until one more change is
        /// counted.
        #[test]
        fn a_steady_packet_stays_one_until_a_change_is_counted(
            is_v6: bool,
            ends in (0u8..4, 0u8..4),
            ports in (0u8..3, 0u8..3),
            is_tcp: bool,
            before in proptest::collection::vec((any::<bool>(), 0u8..32), 1..6),
            after in proptest::collection::vec((any::<bool>(), 0u8..33), 1..6),
            (turned, is_established) in any::<(bool, bool)>(),
        ) {
            let table = Connections::new(Limits::of(64), Timeouts::default(), &[3; 32]);
            let zone = Zone { attachment: 7, vni: 0 };
            let protocol = if is_tcp { 6 } else { 17 };
            let of = |turned: bool| match turned {
                false => flow(is_v6, ends, ports, protocol),
                true => flow(is_v6, (ends.1, ends.0), (ports.1, ports.0), protocol),
            };
            let judgement = Judgement {
                rule: PolicyIndex(3), domain: DomainId(9), generation: Generation(4),
            };
            let act = |(turned, flags): (bool, u8)| {
                let key = Key::of(&of(turned), zone).unwrap();
                let shown = if is_tcp { Shown::Tcp(Segment::of_flags(flags)) } else { Shown::Udp };
                match table.find(&key, NOW_S) {
                    Some(found) if flags == 32 => drop(table.remove(found.place, &key)),
                    Some(found) => drop(table.observe(found.place, &key, shown, NOW_S)),
                    None => drop(table.insert(&key, shown, judgement, NOW_S)),
                }
            };
            let class = if is_tcp { EventClass::ACK } else { EventClass::OTHER };
            let flow = of(turned);
            let (v4, v6) = column(&table, &flow, zone);
            let steady = || match is_v6 {
                false => table.steady(&v4, (5, class), NOW_S),
                true => table.steady(&v6, (5, class), NOW_S),
            };
            if is_established {
                [(false, 0x02), (true, 0x12), (false, 0x10)].into_iter().for_each(act);
            }
            before.into_iter().for_each(act);
            let group = table.group_of(&Key::of(&flow, zone).unwrap());
            let changes = || table.changes().of(group);
            let (marked_at, said) = (changes(), steady().filter(|said| said.may_be_marked));
            let [ends, other] = [turned, !turned].map(|turned| match is_v6 {
                false => v4_head_of(&of(turned)).ends(),
                true => v6_head_of(&of(turned)).ends(),
            });
            prop_assert_eq!(ends, other, "either order");
            prop_assert_eq!(marked_at, match is_v6 {
                false => v4_head_of(&flow).changes(&table.changes()),
                true => v6_head_of(&flow).changes(&table.changes()),
            });
            for event in after {
                act(event);
                if said.is_some() && changes() == marked_at {
                    prop_assert_eq!(steady(), said);
                }
            }
        }
    }
}
