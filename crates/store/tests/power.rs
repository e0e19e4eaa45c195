//! Power cuts, a disk that is full, and one that fails: what was acknowledged is there.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use powercut::{Cut, Disk, Loss};
use proptest::prelude::*;
use store::conformance::{
    contents, delete, journaled, kept_revisions, model, put, revision, sample, watched,
};
use store::{
    Change, Durability, Journal, Options, Revision, Revisions, SqliteStore, Store, StoreError,
};

type Contents = BTreeMap<(u32, IpAddr), Change>;

fn path(disk: &Disk) -> PathBuf {
    PathBuf::from(format!("{}/store.db", disk.root()))
}

fn options(durability: Durability) -> Options {
    Options { durability, vfs: Some(powercut::name()), ..Options::default() }
}

fn open(disk: &Disk, durability: Durability) -> Result<SqliteStore, StoreError> {
    SqliteStore::open_with(&path(disk), options(durability))
}

/// The states after each commit, from before the first one on.
fn states(history: &[Vec<Change>]) -> Vec<Contents> {
    let mut states = vec![Contents::new()];
    for batch in history {
        let mut next = states[states.len() - 1].clone();
        model(&mut next, batch);
        states.push(next);
    }
    states
}

/// Commits a history, with a restart after every fifth commit, and labels what was acknowledged. If
/// the options' checkpoint pages are few, most commits carry the write-ahead file into the
/// database and begin it anew. Returns all places where the power can be cut: at every
/// sync, and after every commit.
fn run(history: &[Vec<Change>], options: Options, disk: &Disk) -> Vec<Cut> {
    disk.note_cuts();
    let mut cuts = Vec::new();
    for (part, commits) in history.chunks(5).enumerate() {
        let mut store = SqliteStore::open_with(&path(disk), options).unwrap();
        for (i, batch) in commits.iter().enumerate() {
            let number = (part * 5 + i + 1) as u64;
            assert_eq!(store.commit(batch, Journal::Each), Ok(number));
            disk.label(number);
            cuts.extend(disk.cuts());
            cuts.push(disk.cut());
        }
    }
    cuts.extend(disk.cuts());
    cuts.push(disk.cut());
    cuts
}

/// Returns the number of the commit that the store holds after a cut, or `None` if it cannot be
/// read or holds a state that never was.
fn found(cut: &Cut, loss: Loss, states: &[Contents]) -> Option<u64> {
    let disk = cut.disk(loss);
    let mut store = open(&disk, Durability::Synced).ok()?;
    store.verify().ok()?;
    let number = store.number();
    let log = watched(&store, 0).ok()?;
    let mut replayed = Contents::new();
    let changes: Vec<Change> = log.into_iter().map(|(_, change)| change).collect();
    assert_eq!(model(&mut replayed, &changes), changes);
    let is_whole = states.get(number as usize)? == &contents(&mut store) && {
        let newest = journaled(&store, 0).iter().map(|line| line.done).max();
        newest.unwrap_or_default() == number && replayed == states[number as usize]
    };
    // It goes on from there.
    let next = store.commit(&[put(0, 1 << 40)], Journal::Each);
    (is_whole && next == Ok(number + 1)).then_some(number)
}

fn history() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let change = prop_oneof![
        (0..200_u32, 0..50_u64).prop_map(|(key, revision)| put(key, revision)),
        (0..200_u32, 0..50_u64).prop_map(|(key, revision)| delete(key, revision)),
        (0..500_u64).prop_map(sample),
    ];
    let batch = prop_oneof![
        3 => prop::collection::vec(change.clone(), 1..30),
        1 => prop::collection::vec(change, 100..300),
    ];
    prop::collection::vec(batch, 1..14)
}

/// Few histories, because each has many places to cut; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let cases = asked.unwrap_or(6);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn cut_at_any_sync_loses_nothing_acknowledged_and_leaves_no_half(
        history in history(), seed: u64,
        pages in prop_oneof![Just(None), (1..40_u32).prop_map(Some)],
    ) {
        let states = states(&history);
        let options = Options { checkpoint_pages: pages, ..options(Durability::Synced) };
        let cuts = run(&history, options, &Disk::new());
        prop_assert!(cuts.len() > 3 * history.len(), "{} cuts", cuts.len());
        for (i, cut) in cuts.iter().enumerate() {
            for loss in [Loss::All, Loss::Some(seed ^ i as u64), Loss::Some(!seed ^ i as u64)] {
                let found = found(cut, loss, &states);
                let acknowledged = cut.label;
                let is_there = found.is_some_and(|n| n == acknowledged || n == acknowledged + 1);
                prop_assert!(is_there, "cut {i}, {loss:?}: {found:?}, not {acknowledged}");
            }
        }
    }

    /// Controls: the disk above does lose what is not synced.
    #[test]
    fn without_syncs_cuts_lose_what_was_acknowledged(history in history()) {
        let states = states(&history);
        let deaf = Disk::new();
        deaf.ignore_syncs();
        for cuts in [
            run(&history, options(Durability::Unsynced), &Disk::new()),
            run(&history, options(Durability::Synced), &deaf),
        ] {
            let loses = |cut: &&Cut| found(cut, Loss::All, &states).is_none_or(|n| n < cut.label);
            let lost = cuts.iter().filter(loses).count();
            prop_assert!(lost >= history.len(), "{lost} of {} cuts lose", cuts.len());
        }
    }
}

/// The revisions after `number` steps: of every four the first is whole, and the oldest six of more
/// than twelve are forgotten with the step that made them too many.
fn revisions_after(number: u64) -> Vec<Revision> {
    let of =
        |number: u64| revision(number, Some(number - (number - 1) % 4).filter(|n| *n < number));
    let forgotten = number.saturating_sub(7) / 6 * 6;
    (forgotten + 1..=number).map(of).collect()
}

#[test]
fn cut_at_any_sync_leaves_the_revisions_before_or_the_new_one() {
    const LAST: u64 = 30;
    let mut looked_at = 0;
    for pages in [None, Some(1), Some(8)] {
        let (disk, mut cuts) = (Disk::new(), Vec::new());
        disk.note_cuts();
        let options = Options { checkpoint_pages: pages, ..options(Durability::Synced) };
        for first in (1..=LAST).step_by(10) {
            let mut store = SqliteStore::open_with(&path(&disk), options).unwrap();
            for number in first..first + 10 {
                let after = revisions_after(number);
                store.put_revisions(&after[after.len() - 1..]).unwrap();
                disk.label(number);
                store.forget_revisions(after[0].number).unwrap();
                cuts.extend(disk.cuts());
                cuts.push(disk.cut());
            }
        }
        for (i, cut) in cuts.iter().enumerate() {
            for loss in [Loss::All, Loss::Some(i as u64), Loss::Some(!i as u64)] {
                let store = open(&cut.disk(loss), Durability::Synced).unwrap();
                store.verify().unwrap();
                let found = kept_revisions(&store);
                let last = found.last().map_or(0, |of| of.number);
                let is_there = last == cut.label || last == cut.label + 1;
                assert!(is_there, "cut {i}, {loss:?}: {last}, not {}", cut.label);
                // Those that are to be forgotten may be there still; the others are.
                assert!(found.ends_with(&revisions_after(last)), "cut {i}, {loss:?}: {found:?}");
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 500, "{looked_at}");
}

#[test]
fn full_disk_is_an_error_and_the_store_works_again_when_there_is_room() {
    let mut full = 0;
    for room in (0..60_000).step_by(1500) {
        let disk = Disk::new();
        let mut store = open(&disk, Durability::Synced).unwrap();
        let first: Vec<Change> = (0..100).map(|key| put(key, 1)).collect();
        assert_eq!(store.commit(&first, Journal::Each), Ok(1));
        let before = (contents(&mut store), journaled(&store, 0));
        disk.set_capacity(Some(disk.used() + room));
        let second: Vec<Change> = (50..300).map(|key| put(key, 2)).collect();
        match store.commit(&second, Journal::Each) {
            Ok(number) => assert_eq!(number, 2),
            Err(error) => {
                full += 1;
                assert_eq!(error, StoreError::Full { path: path(&disk) });
                assert_eq!(store.number(), 1);
                assert_eq!((contents(&mut store), journaled(&store, 0)), before);
                assert_eq!(watched(&store, 1), Ok(vec![]));
                let number = found(&disk.cut(), Loss::All, &states(std::slice::from_ref(&first)));
                assert_eq!(number, Some(1));
                if room % 2000 == 0 {
                    // With the disk still full, over a restart.
                    drop(store);
                    store = open(&disk, Durability::Synced).unwrap();
                    assert_eq!(contents(&mut store), before.0);
                }
                disk.set_capacity(None);
                assert_eq!(store.commit(&second, Journal::Each), Ok(2), "room {room}");
            }
        }
        drop(store);
        disk.set_capacity(None);
        let mut store = open(&disk, Durability::Synced).unwrap();
        assert_eq!(contents(&mut store), states(&[first, second])[2]);
        store.verify().unwrap();
    }
    assert!((5..40).contains(&full), "{full}");
}

#[test]
fn largest_size_is_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("store.db");
    let small = Options { max_pages: Some(40), ..Options::default() };
    let mut store = SqliteStore::open_with(&path, small).unwrap();
    assert_eq!(store.commit(&[put(1, 1)], Journal::Each), Ok(1));
    let large: Vec<Change> = (0..5000).map(|key| put(key, 2)).collect();
    let full = StoreError::Full { path: path.clone() };
    assert_eq!(store.commit(&large, Journal::Each), Err(full.clone()));
    assert!(full.to_string().contains("make room"), "{full}");
    assert_eq!(contents(&mut store).into_values().collect::<Vec<_>>(), [put(1, 1)]);
    assert_eq!(store.commit(&[put(1, 3)], Journal::Each), Ok(2));
    drop(store);
    let mut store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.commit(&large, Journal::Each), Ok(3));
    assert_eq!(contents(&mut store).len(), 5000);
}

#[test]
fn failed_sync_ends_all_writing_until_the_store_is_opened_again() {
    let disk = Disk::new();
    let mut store = open(&disk, Durability::Synced).unwrap();
    assert_eq!(store.commit(&[put(1, 1)], Journal::Each), Ok(1));
    disk.label(1);
    disk.fail_syncs();
    let failed = store.commit(&[put(2, 2)], Journal::Each);
    assert!(matches!(failed, Err(StoreError::Engine { .. })), "{failed:?}");
    let unknown = StoreError::Unknown { path: path(&disk) };
    assert_eq!(store.commit(&[put(3, 3)], Journal::Each), Err(unknown.clone()));
    assert_eq!(store.put_revisions(&[revision(1, None)]), Err(unknown));
    assert_eq!(contents(&mut store).into_values().collect::<Vec<_>>(), [put(1, 1)]);
    let states = states(&[vec![put(1, 1)], vec![put(2, 2)]]);
    for loss in [Loss::All, Loss::Some(1), Loss::Some(2), Loss::Some(3)] {
        assert!(found(&disk.cut(), loss, &states) >= Some(1), "{loss:?}");
    }
}

#[test]
fn few_checkpoint_pages_make_commits_sync_the_database_too() {
    let history: Vec<Vec<Change>> = (1..=10).map(|n| vec![put(n, u64::from(n))]).collect();
    let cuts = |checkpoint_pages| {
        let options = Options { checkpoint_pages, ..options(Durability::Synced) };
        run(&history, options, &Disk::new()).len()
    };
    // Before and after the sync of the write-ahead file, and of the database.
    let (many, few) = (cuts(None), cuts(Some(1)));
    assert!(few >= many + 2 * history.len(), "{few} places to cut, and {many}");
}
