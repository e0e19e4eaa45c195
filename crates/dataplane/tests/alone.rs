//! The packet path waits for nobody: no database and no runtime is built into it, and its code
//! names no lock and no file.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Our crates that the dataplane is built of.
const OURS: [&str; 9] = [
    "cpu",
    "dataplane",
    "endpoints",
    "ipsec",
    "ipsec-mb",
    "offload",
    "persistent",
    "policy",
    "wire",
];
/// Our crates whose code a worker's turn runs: those, and ports over AF_XDP.
const PACKET_PATH: [&str; 11] = [
    "cpu",
    "dataplane",
    "endpoints",
    "ipsec",
    "ipsec-mb",
    "offload",
    "persistent",
    "policy",
    "wire",
    "xsk",
    "io",
];
/// Words of locks that wait, and of files.
const WORDS: [&str; 9] =
    ["Mutex", "RwLock", "Condvar", "Barrier", "LazyLock", "std::fs", "File", "OpenOptions", "mpsc"];
/// Files in which such a word stands, with the reason why no packet meets it.
const ELSEWHERE: [(&str, &str); 7] = [
    ("dataplane/src/connections/model.rs", "a model that tests compare with"),
    ("endpoints/src/map/model.rs", "a model that tests compare with"),
    ("io/src/capture.rs", "capture files: `lockgate replay`"),
    ("io/src/pcap.rs", "capture files: `lockgate replay`"),
    ("io/src/tun.rs", "the file is the port itself: opened at the start"),
    ("xsk/src/system.rs", "a socket of tests"),
    ("xsk/src/umem.rs", "of one worker: locked when a socket opens, closes or is reclaimed"),
];

/// The names of all crates that the dataplane is built of.
fn crates() -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--package", "dataplane", "--edges", "normal"]);
    cargo.args(["--prefix", "none", "--format", "{p}"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

// AX-10
#[test]
fn no_database_and_no_runtime_is_built_into_the_dataplane() {
    let told = crates();
    // Of our own, cargo says the folder.
    let ours = told.lines().filter(|line| line.contains('/'));
    let mut ours: Vec<&str> = ours.filter_map(|line| line.split(' ').next()).collect();
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours, OURS, "{told}");
    let others = ["rusqlite", "libsqlite3", "tokio", "parking_lot", "crossbeam", "dashmap"];
    let is_one = |line: &&str| others.iter().any(|other| line.starts_with(other));
    assert_eq!(told.lines().find(is_one), None, "{told}");
}

/// All Rust files below a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, into),
            false if path.extension().is_some_and(|extension| extension == "rs") => into.push(path),
            false => {}
        }
    }
}

/// The first of [`WORDS`] that code names, with its line; comments and tests at a file's foot do
/// not count.
fn named(text: &str) -> Option<(usize, &'static str)> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    code.lines().enumerate().find_map(|(line, code)| {
        let code = code.split("//").next()?;
        let words = || code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let is_word = |wanted: &&&str| {
            let is = |word: &str| word == **wanted || word.split("::").any(|part| part == **wanted);
            words().any(|word| is(word) || word.contains("std::fs") && **wanted == "std::fs")
        };
        WORDS.iter().find(is_word).map(|word| (line + 1, *word))
    })
}

// AX-10
#[test]
fn the_packet_path_names_no_lock_and_no_file() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = Vec::new();
    for name in PACKET_PATH {
        files(&crates.join(name).join("src"), &mut all);
    }
    assert!(all.len() > 200, "{} files", all.len());
    let mut excused = Vec::new();
    for file in all {
        let shown = file.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
        let is_tests = shown.ends_with("tests.rs") || shown.contains("/tests/");
        let Some((line, word)) = named(&std::fs::read_to_string(&file).unwrap()) else { continue };
        match ELSEWHERE.iter().find(|(path, _)| *path == shown) {
            Some((path, _)) => excused.push(*path),
            None => assert!(is_tests, "{shown}:{line}: {word}: a worker would wait for another"),
        }
    }
    excused.sort_unstable();
    assert_eq!(excused, ELSEWHERE.map(|(path, _)| path), "an excuse that nothing needs");
}

/// Words are found where they stand in code: without that the test above could not fail.
#[test]
fn words_are_found_in_code_and_nowhere_else() {
    assert_eq!(named("use std::sync::{Arc, Mutex};"), Some((1, "Mutex")));
    assert_eq!(named("fn f() {}\nlet lock: std::sync::RwLock<u8>;"), Some((2, "RwLock")));
    assert_eq!(named("std::fs::read(path)"), Some((1, "std::fs")));
    assert_eq!(named("use std::fs;"), Some((1, "std::fs")));
    assert_eq!(named("// A Mutex would wait.\nProfile"), None);
    assert_eq!(named("fn f() {}\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }"), None);
}
