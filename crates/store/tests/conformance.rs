//! Both stores against the suite, and against histories that proptest draws.
#![forbid(unsafe_code)]

use std::path::Path;

use proptest::prelude::*;
use store::conformance::{contents, delete, follow, journaled, put, run, sample, watched};
use store::{Change, Journal, Limits, MemoryStore, Options, SqliteStore, Store};

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

proptest! {
    #![proptest_config(config())]

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
