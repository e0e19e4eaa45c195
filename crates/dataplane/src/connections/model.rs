//! The lines under several threads in every order that the memory model allows (loom): one bucket
//! of two short lines.

use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, Ordering};
use policy::connection::{Flags, State, Status};

use super::half_open::{HalfOpenEntry, HalfOpenRing};
use super::key::ZoneSlot;
use super::lines::{
    Bounds, Candidates, LineInserted, LineKey, Lines, Removals, RemovedTenant, Word,
};
use super::state_word::StateWord;

impl Word for AtomicU64 {
    fn new() -> Self {
        AtomicU64::new(0)
    }

    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn fetch_add(&self, number: u64) -> u64 {
        self.fetch_add(number, Ordering::AcqRel)
    }

    fn pause(_: u32) {
        loom::thread::yield_now();
    }
}

/// A key and three words of value: two that are written anew, and the constant.
type Small = Lines<AtomicU64, 1, 3, 2>;

/// Every key has the one bucket.
const CANDIDATES: Candidates = Candidates { buckets: [0, 0], start: 0 };

/// Keys from here on take both lines.
const WIDE: u64 = 100;
/// The amount by which a value written anew is larger.
const RENEWED: u64 = 1000;

fn key(number: u64) -> LineKey<1> {
    LineKey { head: [number], tail: (number >= WIDE).then_some([number + 1]) }
}

/// A tenant that was seen so many times. The constant of an entry is its key's number.
fn tenant(state: State, seen: u32) -> StateWord {
    StateWord::new(Status { state, flags: Flags::default() }, seen)
}

fn state_of(word: StateWord) -> State {
    word.status().expect("a connection").state
}

/// Acts of threads, in order. Each that needs a place finds it first.
#[derive(Clone, Copy)]
enum Act {
    Insert(u64),
    /// As [`Insert`](Act::Insert), and whoever does not let others in stays.
    InsertAssured(u64),
    Find(u64),
    /// Reads the key in the first line, as packets do that change nothing.
    Read(u64),
    /// Sees the key once more.
    See(u64),
    Remove(u64),
    Renew(u64),
}
use Act::{Find, Insert, InsertAssured, Read, Remove, Renew, See};

/// Acts that had an effect, by key.
#[derive(Default)]
struct Happened {
    /// Keys that were inserted, each time.
    new: Vec<u64>,
    raced: Vec<u64>,
    refused: Vec<u64>,
    /// Keys that were removed for whatever reason, with how often they had been seen.
    removed: Vec<(u64, u32)>,
    /// Removals that were asked for.
    removals: Vec<u64>,
    seen: Vec<u64>,
    found: Vec<u64>,
    /// Reads that told of a connection, in order.
    read: Vec<u64>,
}

/// The record, which is not part of what is checked.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Happened>>);

impl Record {
    fn put(&self, put: impl FnOnce(&mut Happened)) {
        put(&mut self.0.lock().expect("nobody panics"));
    }
}

impl Removals for Record {
    fn removed(&self, RemovedTenant { word, constant, note, width, .. }: RemovedTenant) {
        assert_eq!(width, key(constant).width());
        assert_eq!(note, constant, "the note is the tenant's");
        self.put(|happened| happened.removed.push((constant, word.last_seen_s())));
    }
}

/// The insertion of a key.
struct Insertion<'a> {
    record: &'a Record,
    number: u64,
}

impl Removals for Insertion<'_> {
    fn removed(&self, tenant: RemovedTenant) {
        self.record.removed(tenant);
    }
}

impl Bounds for Insertion<'_> {
    type Refusal = ();
    const FULL: () = ();

    fn reserve(&self) -> Result<(), ()> {
        Ok(())
    }

    fn give_back(&self) {}

    fn note(&self, _: usize) -> u64 {
        self.number
    }

    fn readiness(&self, word: StateWord) -> Option<u32> {
        (state_of(word) == State::SynSent).then(|| u32::MAX - word.last_seen_s())
    }

    fn is_over(&self, word: StateWord, _: u64) -> bool {
        state_of(word) == State::TimeWait
    }
}

fn insert(lines: &Small, record: &Record, number: u64, state: State) {
    let value = [number; 3];
    let insertion = Insertion { record, number };
    match lines.insert(CANDIDATES, &key(number), (&value, tenant(state, 0)), &insertion) {
        LineInserted::New(_) => record.put(|it| it.new.push(number)),
        LineInserted::Raced(entry) => {
            assert_eq!(entry.constant, number, "it is of this key");
            record.put(|it| it.raced.push(number));
        }
        LineInserted::Refused(()) => record.put(|it| it.refused.push(number)),
    }
}

/// Returns whether a value is what a key was inserted with, or what it was renewed with.
fn is_of(number: u64, value: [u64; 3]) -> bool {
    let renewed = number + RENEWED;
    [[number; 3], [renewed, renewed, number]].contains(&value)
}

/// Reads where a key is looked for first, as `Connections::steady` does: a word that is not live,
/// or is renewing, tells nothing.
fn read(lines: &Small, record: &Record, number: u64) {
    let key = key(number);
    if let Some((word, value)) = lines.read(0, &key.head, key.tail.as_ref())
        && word.is_live()
        && !word.is_renewing()
    {
        assert!(is_of(number, value), "{value:?} for {number}");
        record.put(|it| it.read.push(number));
    }
}

fn act(lines: &Small, record: &Record, act: Act) {
    let number = match act {
        Insert(number) => return insert(lines, record, number, State::SynSent),
        InsertAssured(number) => return insert(lines, record, number, State::Established),
        Read(number) => return read(lines, record, number),
        Find(number) | See(number) | Remove(number) | Renew(number) => number,
    };
    let key = key(number);
    let Some(entry) = lines.find(&key, CANDIDATES) else { return };
    // What was read is of one tenant, and of one writing.
    assert_eq!(entry.constant, number, "the value of another key");
    let renewed = number + RENEWED;
    assert!(entry.value.is_none_or(|value| is_of(number, value)), "{:?}", entry.value);
    match act {
        See(_) => {
            let again = |word: StateWord, constant| {
                assert_eq!(constant, number, "the word of another key");
                Some(word.with(word.status()?, word.last_seen_s() + 1))
            };
            if lines.update(entry.at, &key, again).is_some() {
                record.put(|it| it.seen.push(number));
            }
        }
        Remove(_) => {
            if lines.remove_key(entry.at, &key, record) {
                record.put(|it| it.removals.push(number));
            }
        }
        Renew(_) => {
            lines.renew(entry.at, &key, &[renewed, renewed, 0]);
        }
        _ => record.put(|it| it.found.push(number)),
    }
}

/// Runs two threads in every order, after acts of one that was alone. `check` looks at what
/// happened and who is there in the end.
fn in_every_order(
    before: &'static [Act],
    threads: [&'static [Act]; 2],
    check: impl Fn(&Happened, &[u64]) + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let (lines, record) = (Arc::new(Small::new(1)), Record::default());
        let run = |acts: &[Act]| acts.iter().for_each(|it| act(&lines, &record, *it));
        run(before);
        let other = {
            let (lines, record) = (lines.clone(), record.clone());
            let acts = threads[1];
            loom::thread::spawn(move || acts.iter().for_each(|it| act(&lines, &record, *it)))
        };
        run(threads[0]);
        other.join().expect("it does not panic");
        let there = adds_up(&lines, &record);
        record.put(|happened| check(happened, &there));
    });
}

/// Checks that nothing was lost and nothing is there twice; returns the keys that are there.
fn adds_up(lines: &Small, record: &Record) -> Vec<u64> {
    let there: Vec<(u64, u32)> = (0..2)
        .filter_map(|at| {
            let (entry, line_key) = lines.any_entry(at)?;
            assert_eq!(line_key, key(entry.constant), "key and value are of one entry");
            assert!(entry.value.is_some(), "nobody writes any more");
            Some((entry.constant, entry.word.last_seen_s()))
        })
        .collect();
    record.put(|it| {
        let keys = |list: &[(u64, u32)]| list.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        let mut ended = [keys(&it.removed), keys(&there)].concat();
        let mut new = it.new.clone();
        ended.sort_unstable();
        new.sort_unstable();
        assert_eq!(ended, new, "what was inserted was removed or is there");
        let seen: u32 = it.removed.iter().chain(&there).map(|(_, seen)| seen).sum();
        assert_eq!(seen as usize, it.seen.len(), "each time that it was seen counts once");
    });
    let mut keys: Vec<u64> = there.into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "one entry a key: {keys:?}");
    keys
}

#[test]
fn first_packets_of_both_directions_make_one_connection() {
    in_every_order(
        &[],
        [&[Insert(1), See(1), Find(1)], &[Insert(1), See(1), Find(1)]],
        |it, there| {
            assert_eq!((it.new.len(), it.raced.len(), there), (1, 1, &[1][..]));
            assert_eq!((it.seen.len(), it.found.len()), (2, 2), "nobody loses sight of it");
        },
    );
}

#[test]
fn connection_that_is_removed_is_changed_by_nobody_afterwards() {
    in_every_order(
        &[Insert(1)],
        [&[See(1), See(1), Find(1)], &[Remove(1), Insert(2), See(2)]],
        |it, there| {
            assert_eq!((it.removals.len(), there), (1, &[2][..]));
        },
    );
    in_every_order(
        &[Insert(1)],
        [&[Remove(1), Insert(1)], &[Remove(1), Insert(1)]],
        |it, there| {
            assert!(it.new.len() >= 2 && it.removals.len() + 1 == it.new.len());
            assert!(there == [1]);
        },
    );
}

#[test]
fn half_open_connection_gives_way_and_an_assured_one_does_not() {
    in_every_order(
        &[Insert(1), InsertAssured(2)],
        [&[InsertAssured(3)], &[See(1), Find(2)]],
        |it, there| {
            assert_eq!(there, [2, 3]);
            assert!(it.found == [2] && it.refused.is_empty());
        },
    );
    in_every_order(
        &[Insert(1), InsertAssured(2)],
        [&[Insert(3), See(2)], &[Insert(4), See(2)]],
        |it, there| {
            assert!(there.contains(&2) && there.len() == 2, "{there:?}");
            assert_eq!(it.seen.iter().filter(|key| **key == 2).count(), 2);
        },
    );
}

#[test]
fn wide_connection_takes_both_lines_and_gives_both_back() {
    in_every_order(
        &[],
        [&[Insert(WIDE), Find(WIDE), Remove(WIDE)], &[Insert(WIDE), See(WIDE)]],
        |it, _| {
            // An entry on its way out still has its lines.
            assert!(it.refused.is_empty() || it.removals == [WIDE]);
        },
    );
    in_every_order(
        &[InsertAssured(WIDE)],
        [&[Remove(WIDE), Insert(1), See(1)], &[Insert(2), See(WIDE), See(2)]],
        |it, there| {
            assert!(there.contains(&1) && it.removals == [WIDE]);
        },
    );
    in_every_order(
        &[Insert(1), Insert(2)],
        [&[InsertAssured(WIDE)], &[See(1), Remove(2)]],
        |_, there| {
            assert!(there == [WIDE] || there == [1], "{there:?}");
        },
    );
}

#[test]
fn value_is_written_anew_while_others_read_and_remove() {
    in_every_order(
        &[Insert(1)],
        [&[Renew(1), See(1)], &[Find(1), See(1), Renew(1)]],
        |it, there| {
            assert_eq!((it.found.len(), it.seen.len(), there), (1, 2, &[1][..]));
        },
    );
    in_every_order(
        &[Insert(1)],
        [&[Renew(1), Find(1)], &[Remove(1), Insert(2), Find(2)]],
        |it, there| {
            assert_eq!((there, it.removals.len()), (&[2][..], 1));
        },
    );
}

// FC-30, FC-31
#[test]
fn short_read_tells_of_one_tenant_and_one_writing() {
    // The writer is the first thread: loom misses orders where the reader is.
    in_every_order(&[Insert(1)], [&[Remove(1), Insert(2)], &[Read(2), Read(1)]], |it, there| {
        // Who sees the new one sees that the old one is gone.
        assert!(there == [2] && it.read != [2, 1], "{:?}", it.read);
    });
    in_every_order(&[Insert(1)], [&[Renew(1), See(1), Read(1)], &[Read(1)]], |it, there| {
        assert!(there == [1] && !it.read.is_empty(), "who has renewed it reads it");
    });
}

// FC-30, FC-31
#[test]
fn short_read_of_two_lines_tells_of_one_tenant() {
    let wide = &[InsertAssured(WIDE)];
    in_every_order(wide, [&[Remove(WIDE), Insert(1)], &[Read(WIDE)]], |_, there| {
        assert_eq!(there, [1]);
    });
    in_every_order(&[Insert(1)], [&[Remove(1), InsertAssured(WIDE)], &[Read(WIDE)]], |_, there| {
        assert_eq!(there, [WIDE]);
    });
}

fn ring_entry(line: u32) -> HalfOpenEntry {
    HalfOpenEntry { line, zone: ZoneSlot(line as u16 % 2) }
}

/// Lines of all entries, in ascending order.
fn ring_entries(ring: &HalfOpenRing<AtomicU64>) -> Vec<u32> {
    let (hand, mut steps, mut lines) = (AtomicU64::new(0), 4, Vec::new());
    while let Some((_, entry)) = ring.advance(&hand, &mut steps, |_| true) {
        lines.push(entry.line);
    }
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// The work of a thread on a ring: the ring, a hand, and the lines that the thread took.
type RingThread = fn(&HalfOpenRing<AtomicU64>, &AtomicU64, &Mutex<Vec<u32>>);

/// Runs two threads on a ring of four slots in every order.
fn ring_in_every_order(threads: [RingThread; 2], check: fn(Vec<u32>, Vec<u32>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Arc::new(HalfOpenRing::new(4));
        let (hand, removed) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        ring.push(ring_entry(1), |_| false);
        let other = {
            let (ring, hand, removed) = (ring.clone(), hand.clone(), removed.clone());
            loom::thread::spawn(move || threads[1](&ring, &hand, &removed))
        };
        threads[0](&ring, &hand, &removed);
        other.join().expect("it does not panic");
        let mut removed = removed.lock().expect("nobody panics").clone();
        removed.sort_unstable();
        check(ring_entries(&ring), removed);
    });
}

fn push_two(ring: &HalfOpenRing<AtomicU64>, _: &AtomicU64, _: &Mutex<Vec<u32>>) {
    ring.push(ring_entry(2), |_| false);
    ring.push(ring_entry(4), |_| false);
}

fn evict(ring: &HalfOpenRing<AtomicU64>, hand: &AtomicU64, removed: &Mutex<Vec<u32>>) {
    let mut steps = 4;
    while let Some((slot, entry)) = ring.advance(hand, &mut steps, |_| true) {
        if ring.remove(slot, entry) {
            removed.lock().expect("nobody panics").push(entry.line);
        }
    }
}

#[test]
fn ring_keeps_each_entry_until_one_thread_removes_it() {
    ring_in_every_order([push_two, evict], |there, removed| {
        let mut all = [there, removed].concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 4]);
    });
    ring_in_every_order([evict, evict], |there, removed| {
        assert!(there.is_empty() && removed == [1]);
    });
    let push_one: fn(&HalfOpenRing<AtomicU64>, &AtomicU64, &Mutex<Vec<u32>>) = |ring, _, _| {
        ring.push(ring_entry(3), |_| false);
    };
    ring_in_every_order([push_two, push_one], |there, removed| {
        assert!(there == [1, 2, 3, 4] && removed.is_empty());
    });
}
