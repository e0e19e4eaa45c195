//! Every committed input of every fuzz target, once.

use std::io::Write;
use std::path::PathBuf;

use fuzz_replay::TARGETS;

/// Files of a target's corpus, with their bytes, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("the corpus of {target}: {}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn every_input_of_every_corpus_keeps_its_targets_promises() {
    for (target, body) in TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "the corpus of {target} is empty");
        for (path, input) in &inputs {
            let outcome = std::panic::catch_unwind(|| body(input));
            assert!(outcome.is_ok(), "{target} fails on {}", path.display());
        }
        // Not `println!`, which the test runner keeps to itself.
        writeln!(std::io::stdout(), "{target}: {} inputs replayed", inputs.len()).unwrap();
    }
}

#[test]
fn every_target_has_its_file_and_every_file_its_target() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    names.sort();
    assert_eq!(files, names);
}

#[test]
fn the_corpora_stay_small() {
    let mut bytes = 0;
    for (target, _) in TARGETS {
        let inputs = corpus(target);
        assert!(inputs.len() <= 300, "{target}: {} inputs: cargo fuzz cmin", inputs.len());
        bytes += inputs.iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes <= 1_000_000, "{bytes} bytes: cargo fuzz cmin");
}
