//! Every command of the documents is one that this program takes.

use std::path::Path;

use clap::Parser;

use super::CommandLine;

/// The commands of a document's blocks, each with the number of its line. Comments, redirections
/// and pipes are left out; a line that ends with a backslash goes on in the next.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
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

/// The parser's message about a command that it refuses.
fn mistake(words: &[String]) -> Option<String> {
    let error = CommandLine::try_parse_from(words).err()?;
    error.use_stderr().then(|| error.to_string())
}

#[test]
fn every_command_of_the_documents_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    let documents = std::fs::read_dir(root.join("docs")).unwrap();
    files.extend(documents.map(|entry| entry.unwrap().path()));
    let mut count = 0;
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "md")) {
        for (line, words) in commands(&std::fs::read_to_string(file).unwrap()) {
            let mistake = mistake(&words);
            assert_eq!(mistake, None, "{}:{line}: {}", file.display(), words.join(" "));
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands");
}

#[test]
fn a_command_that_the_program_does_not_take_is_found() {
    let text = "lockgate outside\n```sh\nlockgate chekc a.toml # no\nlockgate show port; \
                lockgate \\\n  \
                check --no-such x && ls\nlockgate export > \"a b\"\n```\n";
    let found = commands(text);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 5, 5, 6]);
    let wrong: Vec<bool> = found.iter().map(|(_, words)| mistake(words).is_some()).collect();
    assert_eq!(wrong, [true, false, true, false]);
}
