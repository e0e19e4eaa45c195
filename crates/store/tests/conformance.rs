//! Both stores against the suite, and against histories that proptest draws.
#![forbid(unsafe_code)]

use std::path::Path;

use proptest::prelude::*;
use store::conformance::{
    contents, delete, follow, journaled, kept_revisions, put, revision, run, sample, watched,
};
use store::{
    Change, Journal, Limits, MemoryStore, Options, Revision, Revisions, SqliteStore, Store,
};

fn open(path: &Path, limits: Limits) -> SqliteStore {
    SqliteStore::open_with(path, Options { limits, ..Options::default() }).unwrap()
}

// AX-30, AX-33
#[test]
fn memory_conforms() {
    run(MemoryStore::with_limits);
}

// AX-30, AX-33
#[test]
fn sqlite_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let next = std::cell::Cell::new(0);
    run(|limits| {
        next.set(next.get() + 1);
        open(&directory.path().join(format!("{}.db", next.get())), limits)
    });
}

fn change() -> impl Strategy<Value = Change> {
    // Few keys and few revisions, so that they meet; and any others.
    prop_oneof![
        4 => (0..6_u32, 0..12_u64).prop_map(|(key, revision)| put(key, revision)),
        2 => (0..6_u32, 0..12_u64).prop_map(|(key, revision)| delete(key, revision)),
        1 => (0..40_u64).prop_map(sample),
    ]
}

fn history() -> impl Strategy<Value = Vec<(Vec<Change>, Journal<'static>)>> {
    let journal = prop_oneof![3 => Just(Journal::Each), 1 => Just(Journal::Nothing)];
    prop::collection::vec((prop::collection::vec(change(), 0..12), journal), 0..16)
}

fn limits() -> impl Strategy<Value = Limits> {
    let bound = || prop_oneof![0..30_usize, Just(1 << 20)];
    (bound(), bound()).prop_map(|(log, journal)| Limits { log, journal, ..Limits::default() })
}

/// Few histories, because each waits for the disk; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let cases = asked.unwrap_or(48);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A change of the revisions that are kept.
#[derive(Clone, Debug)]
enum Step {
    /// So many more, so far back that they replace some; the first is whole, or a change of the
    /// revision before it.
    Put { back: u64, count: u64, is_whole: bool },
    /// All but the last so many go.
    Forget { keep: u64 },
    /// The store is closed and opened again.
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (prop_oneof![3 => Just(0), 1 => 0..4_u64], 1..5_u64, any::<bool>());
    let put = put.prop_map(|(back, count, is_whole)| Step::Put { back, count, is_whole });
    let forget = (0..6_u64).prop_map(|keep| Step::Forget { keep });
    prop::collection::vec(prop_oneof![4 => put, 1 => forget, 1 => Just(Step::Reopen)], 0..20)
}

/// The revisions that a step puts upon these.
fn put_upon(kept: &[Revision], back: u64, count: u64, is_whole: bool) -> Vec<Revision> {
    let first = kept.last().map_or(0, |last| last.number).saturating_sub(back) + 1;
    let before = kept.iter().rev().find(|of| of.number < first);
    let whole = before.filter(|_| !is_whole).map(|of| of.upon.unwrap_or(of.number));
    let later = (first + 1..first + count).map(|number| revision(number, whole.or(Some(first))));
    std::iter::once(revision(first, whole)).chain(later).collect()
}

proptest! {
    #![proptest_config(config())]

    /// The twin is a list that is written down and cut.
    #[test]
    fn both_stores_keep_revisions_as_a_list_does_over_restarts(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        let mut sqlite = open(&path, Limits::default());
        let (mut memory, mut list) = (MemoryStore::default(), Vec::<Revision>::new());
        for step in steps {
            match step {
                Step::Put { back, count, is_whole } => {
                    let batch = put_upon(&list, back, count, is_whole);
                    list.retain(|of| of.number < batch[0].number);
                    list.extend(batch.iter().cloned());
                    prop_assert_eq!(sqlite.put_revisions(&batch), Ok(()));
                    prop_assert_eq!(memory.put_revisions(&batch), Ok(()));
                }
                Step::Forget { keep } => {
                    let next = list.last().map_or(0, |last| last.number) + 1;
                    let below = next.saturating_sub(keep);
                    let before = list.len();
                    list.retain(|of| of.number >= below);
                    let gone = before - list.len();
                    prop_assert_eq!(sqlite.forget_revisions(below), Ok(gone));
                    prop_assert_eq!(memory.forget_revisions(below), Ok(gone));
                }
                Step::Reopen => {
                    drop(sqlite);
                    sqlite = open(&path, Limits::default());
                }
            }
            prop_assert_eq!(&kept_revisions(&sqlite), &list);
            prop_assert_eq!(&kept_revisions(&memory), &list);
            for of in &list {
                let whole = of.upon.unwrap_or(of.number);
                let is_part = |part: &&Revision| part.number == whole || part.upon == Some(whole);
                let parts = list.iter().filter(|part| part.number <= of.number).filter(is_part);
                let parts: Vec<Revision> = parts.cloned().collect();
                prop_assert_eq!(sqlite.revision(of.number), Ok(parts.clone()));
                prop_assert_eq!(memory.revision(of.number), Ok(parts));
            }
        }
    }

    #[test]
    fn memory_follows_plain_maps(history in history(), limits in limits()) {
        follow(&mut MemoryStore::with_limits(limits), &history);
    }

    #[test]
    fn sqlite_follows_plain_maps_and_memory_over_restarts(
        first in history(), second in history(), limits in limits(), image_at in 0..2_u8,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        let mut memory = MemoryStore::with_limits(limits);
        for (part, history) in [first, second].iter().enumerate() {
            let mut sqlite = open(&path, limits);
            follow(&mut sqlite, history);
            for (batch, journal) in history {
                memory.commit(batch, *journal).unwrap();
            }
            if usize::from(image_at) == part {
                sqlite.write_image().unwrap();
            }
        }
        let mut sqlite = open(&path, limits);
        sqlite.verify().unwrap();
        prop_assert_eq!(contents(&mut sqlite), contents(&mut memory));
        prop_assert_eq!(journaled(&sqlite, 0), journaled(&memory, 0));
        for after in 0..=sqlite.number() + 1 {
            prop_assert_eq!(watched(&sqlite, after), watched(&memory, after));
        }
        // By the image, if it reaches so far, or without.
        let mut started = std::collections::BTreeMap::new();
        let each = &mut |change: Change| {
            started.insert(change.key(), change);
        };
        let (number, _) = sqlite.start(each).unwrap();
        prop_assert_eq!(number, memory.number());
        prop_assert_eq!(started, contents(&mut memory));
    }
}
