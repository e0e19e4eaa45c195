//! The promises of every store, as functions that panic where one breaks them.
//!
//! A store's tests call [`run`] with a way to make an empty one, and [`follow`] with histories that
//! a property test draws.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::{
    Change, Deleted, Journal, JournalLine, Limits, MAX_REVISION, Record, Revision, RevisionLine,
    Revisions, Store, StoreError,
};

/// Returns a change that depends on the seed alone, with values at the edges of their ranges.
pub fn sample(seed: u64) -> Change {
    let mut state = seed;
    let mut draw = || {
        // SplitMix64: any seed does, 0 too.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let address = |kind: u64, bits: u64, more: u64| -> IpAddr {
        match kind % 5 {
            0 => u32::to_be_bytes(bits as u32).into(),
            1 => [0, 0, 0, 0].into(),
            2 => u128::from(more as u32 | 1).to_be_bytes().into(),
            // IPv4-mapped: not the IPv4 address.
            3 => (0xffff_u128 << 32 | u128::from(bits as u32)).to_be_bytes().into(),
            _ => (u128::from(bits) << 64 | u128::from(more)).to_be_bytes().into(),
        }
    };
    let mac = |bits: u64| -> [u8; 6] { std::array::from_fn(|i| (bits >> (8 * i)) as u8) };
    let vni = [0, 7, 0x00ff_ffff, u32::MAX, draw() as u32][draw() as usize % 5];
    let revision = [0, 1, MAX_REVISION, draw() >> 1, draw() % 1000][draw() as usize % 5];
    let key = address(draw(), draw(), draw());
    if draw().is_multiple_of(4) {
        return Change::Delete(Deleted { vni, address: key, revision });
    }
    let host_mac = [None, Some([0; 6]), Some(mac(draw()))][draw() as usize % 3];
    let host = address(draw(), draw(), draw());
    Change::Put(Record { vni, address: key, host, host_mac, mac: mac(draw()), revision })
}

/// Returns a put of endpoint `key` that differs by revision.
pub fn put(key: u32, revision: u64) -> Change {
    let address = IpAddr::from(u32::to_be_bytes(0x0a00_0000 | key));
    let host = IpAddr::from(u32::to_be_bytes(0xc000_0200 | (revision as u32 & 0xff)));
    let host_mac = revision.is_multiple_of(2).then_some([2, 0, 0, 0, 0, revision as u8]);
    let mac = [2, 1, revision as u8, (key >> 16) as u8, (key >> 8) as u8, key as u8];
    Change::Put(Record { vni: 7, address, host, host_mac, mac, revision })
}

/// Returns a deletion of endpoint `key`.
pub fn delete(key: u32, revision: u64) -> Change {
    let (vni, address) = put(key, revision).key();
    Change::Delete(Deleted { vni, address, revision })
}

/// Returns all that a store holds, by key.
///
/// # Panics
/// The store cannot be read, or gives a key twice.
pub fn contents(store: &mut impl Store) -> BTreeMap<(u32, IpAddr), Change> {
    let mut all = BTreeMap::new();
    let number = store.snapshot(&mut |change| {
        assert_eq!(all.insert(change.key(), change), None, "a key twice");
    });
    assert_eq!(number, Ok(store.number()));
    all
}

/// Returns the changes of the commits after `after`.
///
/// # Errors
/// The store's own.
pub fn watched(store: &impl Store, after: u64) -> Result<Vec<(u64, Change)>, StoreError> {
    let mut found = Vec::new();
    let last = store.watch(after, &mut |number, change| found.push((number, change)))?;
    assert_eq!(last, store.number());
    Ok(found)
}

/// Returns the lines of the journal from a revision on.
///
/// # Panics
/// The store cannot be read.
pub fn journaled(store: &impl Store, from: u64) -> Vec<JournalLine> {
    let mut found = Vec::new();
    assert_eq!(store.journal(from, &mut |line| found.push(line)), Ok(()));
    found
}

/// Applies a batch to a map, and returns what applied: the rule in its plainest form.
pub fn model(map: &mut BTreeMap<(u32, IpAddr), Change>, batch: &[Change]) -> Vec<Change> {
    let mut applied = Vec::new();
    for change in batch {
        let last = map.get(&change.key()).map(Change::revision);
        if last.is_none_or(|last| change.revision() > last) {
            map.insert(change.key(), *change);
            applied.push(*change);
        }
    }
    applied
}

/// Commits batches, and compares the store with plain maps after each.
///
/// # Panics
/// They differ.
pub fn follow(store: &mut impl Store, history: &[(Vec<Change>, Journal)]) {
    let mut map = contents(store);
    let begin = store.number();
    let mut applied: Vec<Vec<Change>> = Vec::new();
    let mut revisions: BTreeMap<u64, JournalLine> = BTreeMap::new();
    for (batch, journal) in history {
        let number = begin + applied.len() as u64 + u64::from(!batch.is_empty());
        assert_eq!(store.commit(batch, *journal), Ok(number));
        if batch.is_empty() {
            continue;
        }
        let before = map.clone();
        let new = model(&mut map, batch);
        if *journal == Journal::Each {
            // Taken one by one, as the rule says.
            let mut one_by_one = before;
            for change in batch {
                let revision = change.revision();
                let none = JournalLine { revision, done: number, delivered: 0, applied: 0 };
                let line = revisions.entry(revision).or_insert(none);
                line.done = number;
                line.delivered += 1;
                line.applied += model(&mut one_by_one, &[*change]).len() as u64;
            }
        }
        applied.push(new);
        assert_eq!(contents(store), map, "after commit {number}");
    }
    let limits = store.limits();
    let newest = begin + applied.len() as u64;
    assert_eq!(store.number(), newest);
    for after in begin.saturating_sub(2)..=newest + 2 {
        let kept = after.saturating_sub(begin) as usize;
        let sizes = applied.iter().skip(kept).map(|changes| changes.len().max(1));
        let fits = sizes.sum::<usize>() <= limits.log && after <= newest;
        if after >= begin && fits {
            let numbered = applied.iter().zip(begin + 1..).skip(kept);
            let wanted = numbered.flat_map(|(all, number)| all.iter().map(move |c| (number, *c)));
            assert_eq!(watched(store, after), Ok(wanted.collect()), "after {after}");
        } else if after > newest || after >= begin {
            let found = watched(store, after);
            let is_gap = matches!(found, Err(StoreError::Gap { after: a, .. }) if a == after);
            assert!(is_gap, "after {after}: {found:?}");
        }
    }
    let lines = journaled(store, 0);
    let is_bounded = lines.len() <= limits.journal;
    assert!(is_bounded, "{} lines", lines.len());
    if revisions.len() <= limits.journal && begin == 0 {
        let wanted: Vec<_> = revisions.into_values().collect();
        assert_eq!(lines, wanted);
    }
}

/// Checks each promise of [`Store`] and [`Revisions`] by example. `make` makes an empty store with
/// these bounds.
///
/// # Panics
/// A promise is broken.
pub fn run<S: Store + Revisions>(make: impl Fn(Limits) -> S) {
    older_revision_is_journaled_and_does_not_apply(make(Limits::default()));
    tombstone_outlives_a_late_put(make(Limits::default()));
    forgotten_tombstones_let_nothing_come_back(make(Limits::default()));
    revisions_of_no_change_are_journaled(make(Limits::default()));
    keys_differ_by_network_and_family(make(Limits::default()));
    batch_of_any_size_is_one_commit(make(Limits::default()));
    edges_are_kept(make(Limits::default()));
    bad_batch_changes_nothing(make(Limits { batch: 3, ..Limits::default() }));
    log_is_bounded(make(Limits { log: 10, ..Limits::default() }));
    journal_is_bounded(make(Limits { journal: 16, ..Limits::default() }));
    revisions_are_kept_until_forgotten(make(Limits::default()));
}

fn older_revision_is_journaled_and_does_not_apply(mut store: impl Store) {
    assert_eq!(store.number(), 0);
    assert_eq!(store.commit(&[put(1, 5)], Journal::Each), Ok(1));
    assert_eq!(store.commit(&[put(1, 4)], Journal::Each), Ok(2));
    assert_eq!(store.commit(&[delete(1, 5)], Journal::Each), Ok(3));
    assert_eq!(store.commit(&[], Journal::Each), Ok(3));
    assert_eq!(contents(&mut store).into_values().collect::<Vec<_>>(), [put(1, 5)]);
    let late = JournalLine { revision: 4, done: 2, delivered: 1, applied: 0 };
    let both = JournalLine { revision: 5, done: 3, delivered: 2, applied: 1 };
    assert_eq!(journaled(&store, 0), [late, both]);
    assert_eq!(journaled(&store, 4), [late, both]);
    assert_eq!(journaled(&store, 5), [both]);
    assert_eq!(journaled(&store, 6), []);
    assert_eq!(journaled(&store, u64::MAX), []);
    assert_eq!(watched(&store, 0), Ok(vec![(1, put(1, 5))]));
    // What is not to be journaled applies all the same.
    assert_eq!(store.commit(&[put(1, 6)], Journal::Nothing), Ok(4));
    assert_eq!(journaled(&store, 0), [late, both]);
    assert_eq!(watched(&store, 3), Ok(vec![(4, put(1, 6))]));
}

fn tombstone_outlives_a_late_put(mut store: impl Store) {
    let batch = [put(1, 5), delete(1, 7), put(1, 6), delete(2, 1), put(3, 9), put(3, 8)];
    assert_eq!(store.commit(&batch, Journal::Each), Ok(1));
    let all: Vec<_> = contents(&mut store).into_values().collect();
    assert_eq!(all, [delete(1, 7), delete(2, 1), put(3, 9)]);
    let wanted = [put(1, 5), delete(1, 7), delete(2, 1), put(3, 9)].map(|change| (1, change));
    assert_eq!(watched(&store, 0), Ok(wanted.to_vec()));
    assert_eq!(store.commit(&[put(1, 8)], Journal::Each), Ok(2));
    assert_eq!(contents(&mut store).into_values().next(), Some(put(1, 8)));
}

fn forgotten_tombstones_let_nothing_come_back(mut store: impl Store) {
    let begin = [put(1, 5), delete(1, 6), delete(2, 9), put(3, 4)];
    assert_eq!(store.commit(&begin, Journal::Each), Ok(1));
    assert_eq!((store.floor(), store.forget_up_to(6)), (0, Ok(1)));
    assert_eq!((store.forget_up_to(3), store.floor(), store.number()), (Ok(0), 6, 1));
    assert_eq!(contents(&mut store).len(), 2);
    let late = [put(1, 5), put(9, 6), delete(9, 6), put(2, 8)];
    assert_eq!(store.commit(&late, Journal::Each), Ok(2));
    assert_eq!(watched(&store, 1), Ok(vec![]), "none applies");
    // What the store has goes by its own revision, and new keys by revisions above the floor.
    let new = [put(3, 5), put(9, 7), delete(1, 7)];
    assert_eq!(store.commit(&new, Journal::Each), Ok(3));
    assert_eq!(watched(&store, 2), Ok(new.map(|change| (3, change)).to_vec()));
    assert_eq!(contents(&mut store).len(), 4);
}

fn revisions_of_no_change_are_journaled(mut store: impl Store) {
    assert_eq!(store.commit(&[put(1, 5)], Journal::EachAnd(&[3, 5])), Ok(1));
    assert_eq!(store.commit(&[], Journal::EachAnd(&[])), Ok(1));
    assert_eq!(store.commit(&[], Journal::EachAnd(&[3])), Ok(2));
    let line =
        |revision, done, delivered, applied| JournalLine { revision, done, delivered, applied };
    assert_eq!(journaled(&store, 0), [line(3, 2, 2, 0), line(5, 1, 2, 1)]);
    assert_eq!(watched(&store, 1), Ok(vec![]));
}

fn keys_differ_by_network_and_family(mut store: impl Store) {
    let Change::Put(one) = put(1, 1) else { return };
    let IpAddr::V4(v4) = one.address else { return };
    let mapped = Record { address: v4.to_ipv6_mapped().into(), ..one };
    let all = [one, mapped, Record { vni: 8, ..one }, Record { vni: u32::MAX, ..one }];
    assert_eq!(store.commit(&all.map(Change::Put), Journal::Each), Ok(1));
    assert_eq!(contents(&mut store).len(), all.len());
}

fn batch_of_any_size_is_one_commit(mut store: impl Store) {
    for (number, size) in [(1, 361), (2, 5000)] {
        let batch: Vec<Change> = (0..size).map(|key| put(key, number)).collect();
        assert_eq!(store.commit(&batch, Journal::Each), Ok(number));
        assert_eq!(contents(&mut store).len(), size as usize);
        assert_eq!(watched(&store, number - 1).map(|changes| changes.len()), Ok(size as usize));
    }
}

fn edges_are_kept(mut store: impl Store) {
    let batch: Vec<Change> = (0..2000).map(sample).collect();
    follow(&mut store, &[(batch.clone(), Journal::Each), (batch, Journal::Nothing)]);
}

fn bad_batch_changes_nothing(mut store: impl Store) {
    assert_eq!(store.commit(&[put(1, 1)], Journal::Each), Ok(1));
    let before = (contents(&mut store), journaled(&store, 0));
    let large = StoreError::BatchTooLarge { size: 4, largest: 3 };
    assert_eq!(store.commit(&[put(2, 2); 4], Journal::Each), Err(large));
    let revision = MAX_REVISION + 1;
    let above = StoreError::RevisionTooLarge { revision };
    assert_eq!(store.commit(&[put(2, 2), put(3, revision)], Journal::Each), Err(above));
    assert_eq!((contents(&mut store), journaled(&store, 0)), before);
    assert_eq!(store.commit(&[put(2, 2); 3], Journal::Each), Ok(2));
}

fn log_is_bounded(mut store: impl Store) {
    for number in 1..=20 {
        assert_eq!(store.commit(&[put(number as u32, number)], Journal::Each), Ok(number));
    }
    let gap = |after, oldest, newest| Err(StoreError::Gap { after, oldest, newest });
    assert_eq!(watched(&store, 9), gap(9, 10, 20));
    assert_eq!(watched(&store, 21), gap(21, 10, 20));
    assert_eq!(watched(&store, u64::MAX), gap(u64::MAX, 10, 20));
    assert_eq!(watched(&store, 10).map(|changes| changes.len()), Ok(10));
    assert_eq!(watched(&store, 20), Ok(vec![]));
    // A commit larger than the log leaves it empty.
    let large: Vec<Change> = (100..111).map(|key| put(key, 21)).collect();
    assert_eq!(store.commit(&large, Journal::Each), Ok(21));
    assert_eq!(watched(&store, 20), gap(20, 21, 21));
    assert_eq!(watched(&store, 21), Ok(vec![]));
    assert_eq!(store.commit(&[put(1, 22), put(1, 3)], Journal::Each), Ok(22));
    assert_eq!(watched(&store, 21), Ok(vec![(22, put(1, 22))]));
    // Commits of which nothing applies take room too.
    for number in 23..=32 {
        assert_eq!(store.commit(&[put(1, 3)], Journal::Each), Ok(number));
    }
    assert_eq!(watched(&store, 21), gap(21, 22, 32));
    assert_eq!(watched(&store, 22), Ok(vec![]));
}

fn journal_is_bounded(mut store: impl Store) {
    for revision in 1..=16 {
        assert_eq!(store.commit(&[put(1, revision)], Journal::Each), Ok(revision));
    }
    assert_eq!(journaled(&store, 0).len(), 16);
    // The seventeenth: an eighth goes, and the excess.
    assert_eq!(store.commit(&[put(1, 17)], Journal::Each), Ok(17));
    let kept: Vec<u64> = journaled(&store, 0).iter().map(|line| line.revision).collect();
    assert_eq!(kept, (4..=17).collect::<Vec<u64>>());
}

/// Returns a revision that depends on the number alone: whole, or a change of another.
pub fn revision(number: u64, upon: Option<u64>) -> Revision {
    let facts = format!("{{\"file\": \"ü {number}\\n\"}}");
    Revision { number, upon, facts, text: format!("port = \"{number}\"\n\0").repeat(40) }
}

/// Returns all revisions of a store, each with its text.
///
/// # Panics
/// The store cannot be read, or its list differs from what it gives one by one.
pub fn kept_revisions(store: &impl Revisions) -> Vec<Revision> {
    let lines = store.revisions().unwrap();
    let mut all = Vec::new();
    for line in &lines {
        let revision = store.revision(line.number).unwrap().pop().unwrap();
        let Revision { number, upon, facts, text } = revision.clone();
        assert_eq!(*line, RevisionLine { number, upon, facts, bytes: text.len() as u64 });
        all.push(revision);
    }
    assert!(lines.is_sorted_by(|a, b| a.number < b.number), "{lines:?}");
    all
}

fn revisions_are_kept_until_forgotten(mut store: impl Revisions) {
    assert_eq!((store.revisions(), store.put_revisions(&[])), (Ok(vec![]), Ok(())));
    let all = [(1, None), (2, Some(1)), (3, Some(1)), (4, None), (5, Some(4))];
    let all = all.map(|(number, upon)| revision(number, upon));
    assert_eq!(store.put_revisions(&all[..1]), Ok(()));
    assert_eq!(store.put_revisions(&all[1..3]), Ok(()));
    assert_eq!(store.put_revisions(&all[3..]), Ok(()));
    assert_eq!(kept_revisions(&store), all);
    assert_eq!(store.revision(1), Ok(all[..1].to_vec()));
    assert_eq!(store.revision(3), Ok(all[..3].to_vec()));
    assert_eq!(store.revision(5), Ok(all[3..].to_vec()));
    for number in [0, 6, u64::MAX] {
        assert_eq!(store.revision(number), Ok(vec![]));
    }
    let above = Err(StoreError::RevisionTooLarge { revision: MAX_REVISION + 1 });
    let batch = [revision(6, None), revision(MAX_REVISION + 1, None)];
    assert_eq!((store.put_revisions(&batch), kept_revisions(&store).len()), (above, 5));
    // Whatever has its number or a higher one was never told of.
    assert_eq!(store.put_revisions(&[revision(3, None)]), Ok(()));
    let now = [revision(1, None), revision(2, Some(1)), revision(3, None)];
    assert_eq!(kept_revisions(&store), now);
    assert_eq!((store.forget_revisions(1), store.forget_revisions(3)), (Ok(0), Ok(2)));
    assert_eq!(kept_revisions(&store), now[2..]);
    assert_eq!((store.forget_revisions(u64::MAX), store.revisions()), (Ok(1), Ok(vec![])));
}
