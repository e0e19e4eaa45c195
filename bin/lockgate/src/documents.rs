//! Every command of the documents is one that this program takes, or hands on.

use clap::Parser;
use documents::{commands, commands_of};

use super::CommandLine;

/// The parser's message about a command that it refuses.
fn mistake(words: &[String]) -> Option<String> {
    let error = CommandLine::try_parse_from(words).err()?;
    error.use_stderr().then(|| error.to_string())
}

// What `bench` and `demo` hand on is parsed in the tests of the programs that get it.
#[test]
fn every_command_of_the_documents_parses() {
    let commands = commands();
    for shown in &commands {
        let (file, line) = (shown.file.display(), shown.line);
        assert_eq!(mistake(&shown.words), None, "{file}:{line}: {}", shown.words.join(" "));
    }
    assert!(commands.len() > 20, "{} commands", commands.len());
}

#[test]
fn a_command_that_the_program_does_not_take_is_found() {
    let text = "lockgate outside\n```sh\nlockgate chekc a.toml # no\nlockgate show port; \
                lockgate \\\n  \
                check --no-such x && ls\nlockgate export > \"a b\"\n```\n";
    let found = commands_of(text);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 5, 5, 6]);
    let wrong: Vec<bool> = found.iter().map(|(_, words)| mistake(words).is_some()).collect();
    assert_eq!(wrong, [true, false, true, false]);
}
