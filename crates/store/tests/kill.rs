//! A process that commits and is killed: what it acknowledged is there, and no half of a batch.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use store::conformance::{contents, delete, journaled, kept_revisions, model, put, revision};
use store::{Change, Journal, Revisions, SqliteStore, Start, Store};

/// Tells a copy of this test program that it is the process that is killed.
const DIRECTORY: &str = "LOCKGATE_STORE_TEST";

fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// The batch of a commit: of any size up to 400, over 5000 keys.
fn batch(number: u64) -> Vec<Change> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let size = [1, 2, 30, 400][mixed as usize % 4];
    (0..size)
        .map(|i| {
            let key = (mixed.wrapping_mul(i + 1) % 5000) as u32;
            if i % 5 == 4 { delete(key, number) } else { put(key, number) }
        })
        .collect()
}

/// Commits until it is killed, and says so after each commit. Does nothing in a plain test run.
#[test]
fn process_that_is_killed() {
    let Some(root) = directory() else { return };
    let mut store = SqliteStore::open(&root.join("store.db")).unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        let next = store.number() + 1;
        assert_eq!(store.commit(&batch(next), Journal::Each), Ok(next));
        // One write: the line is there, or is not.
        out.write_all(format!("acknowledged {next}\n").as_bytes()).unwrap();
        out.flush().unwrap();
        if next.is_multiple_of(7) {
            store.write_image().unwrap();
        }
    }
}

/// Keeps revisions until it is killed, 20 at most. Does nothing in a plain test run.
#[test]
fn process_that_keeps_revisions() {
    let Some(root) = directory() else { return };
    let mut store = SqliteStore::open(&root.join("store.db")).unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        let next = store.revisions().unwrap().last().map_or(0, |last| last.number) + 1;
        store.put_revisions(&[revision(next, None)]).unwrap();
        out.write_all(format!("acknowledged {next}\n").as_bytes()).unwrap();
        out.flush().unwrap();
        store.forget_revisions(next.saturating_sub(19)).unwrap();
    }
}

/// Runs a process, kills it so long after its first line, and returns the last number it said.
fn killed(process: &str, root: &Path, after: Duration) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", process, "--nocapture", "--test-threads=1"]);
    let mut process = command.env(DIRECTORY, root).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut numbers = lines.filter_map(|line| line.split_once("acknowledged ")?.1.parse().ok());
    let first: u64 = numbers.next().unwrap();
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| numbers.last());
        std::thread::sleep(after);
        process.kill().unwrap();
        process.wait().unwrap();
        reader.join().unwrap()
    });
    reader.unwrap_or(first)
}

fn kill_and_look(rounds: u32) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store.db");
    let mut state: BTreeMap<(u32, IpAddr), Change> = BTreeMap::new();
    let (mut reached, mut images, mut ahead) = (0, 0, 0);
    let mut seed = std::process::id();
    println!("seed {seed}");
    for round in 0..rounds {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        let after = Duration::from_micros(u64::from(seed >> 16) * 2);
        let acknowledged = killed("process_that_is_killed", root.path(), after);
        let mut store = SqliteStore::open(&path).unwrap();
        let number = store.number();
        let is_there = number == acknowledged || number == acknowledged + 1;
        assert!(is_there, "round {round}: commit {number}, acknowledged {acknowledged}");
        ahead += number - acknowledged;
        assert!(number > reached, "round {round}");
        for number in reached + 1..=number {
            model(&mut state, &batch(number));
        }
        assert_eq!(contents(&mut store), state, "round {round}");
        let done = journaled(&store, reached + 1);
        assert_eq!(done.len() as u64, number - reached, "round {round}: {done:?}");
        reached = number;
        store.verify().unwrap();
        let mut started = BTreeMap::new();
        let mut each = |change: Change| {
            started.insert(change.key(), change);
        };
        let (_, how) = store.start(&mut each).unwrap();
        assert_eq!(started, state, "round {round}: {how:?}");
        images += u32::from(matches!(how, Start::Image { .. }));
    }
    assert!(images > 0, "no start from an image in {rounds} rounds, {reached} commits");
    println!(
        "{rounds} kills, {reached} commits, {ahead} of them durable and not yet acknowledged, \
         {images} starts from an image"
    );
}

#[test]
fn killed_at_any_moment_the_store_holds_the_last_revision_or_the_one_after_it() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let after = Duration::from_millis(round * 7);
        let acknowledged = killed("process_that_keeps_revisions", root.path(), after);
        let store = SqliteStore::open(&root.path().join("store.db")).unwrap();
        let found = kept_revisions(&store);
        let last = found.last().unwrap().number;
        assert!(last == acknowledged || last == acknowledged + 1, "{last}, not {acknowledged}");
        for (of, number) in found.iter().rev().zip((1..=last).rev()) {
            assert_eq!(*of, revision(number, None), "round {round}");
        }
        assert!(found.len() as u64 >= last.min(19), "round {round}: {}", found.len());
        store.verify().unwrap();
    }
}

// AX-12
#[test]
fn killed_at_any_moment_the_store_holds_what_was_acknowledged() {
    kill_and_look(10);
}

#[test]
#[ignore = "make test-long PART=store"]
fn killed_fifty_times_the_store_holds_what_was_acknowledged() {
    kill_and_look(50);
}
