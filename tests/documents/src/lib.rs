//! The commands in the blocks of README.md and `docs`, so that each program can test that it takes
//! its own.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// A command of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The document.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
    /// The command's words, `lockgate` first.
    pub words: Vec<String>,
}

/// Returns every `lockgate` command of the documents.
///
/// # Panics
/// If a document cannot be read.
pub fn commands() -> Vec<Shown> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    let documents = std::fs::read_dir(root.join("docs")).expect("the documents are there");
    files.extend(documents.map(|entry| entry.expect("readable").path()));
    let mut found = Vec::new();
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "md")) {
        let text = std::fs::read_to_string(&file).expect("a document is text");
        let shown = |(line, words)| Shown { file: file.clone(), line, words };
        found.extend(commands_of(&text).into_iter().map(shown));
    }
    found
}

/// Returns the text of a file of `docs`, such as `flames/plan.svg`.
///
/// # Panics
/// If it cannot be read.
pub fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("docs/{name}: {error}"))
}

/// The commands of a document's blocks, each with the number of its line. Comments, redirections
/// and pipes are left out; a line that ends with a backslash goes on in the next.
pub fn commands_of(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let (mut is_open, mut continued) = (false, String::new());
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_open = !is_open;
        } else if is_open {
            let line = line.split(" #").next().unwrap_or_default();
            if let Some(begun) = line.strip_suffix('\\') {
                continued += begun;
                continue;
            }
            let whole = std::mem::take(&mut continued) + line;
            for part in whole.split(';').flat_map(|part| part.split("&&")) {
                let part = part.split(['>', '|']).next().unwrap_or_default().trim();
                if part == "lockgate" || part.starts_with("lockgate ") {
                    let words = part.split_whitespace();
                    found.push((at + 1, words.map(|word| word.replace(['"', '\''], "")).collect()));
                }
            }
        }
    }
    found
}
