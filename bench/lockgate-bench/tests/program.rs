//! The real program: help, version, exit codes.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockgate-bench")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_shows_the_command_that_people_type() {
    for (args, usage) in [
        (&["--help"][..], "Usage: lockgate bench <COMMAND>"),
        (&["esp", "--help"], "Usage: lockgate bench esp "),
    ] {
        let ran = run(args);
        let help = text(&ran.stdout);
        assert_eq!(ran.status.code(), Some(0), "{args:?}");
        assert!(help.contains(usage) && !help.contains("--socket"), "{help}");
    }
    let ran = run(&["--version"]);
    assert!(text(&ran.stdout).contains(env!("CARGO_PKG_VERSION")), "{ran:?}");
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_2() {
    for (args, words) in [
        (&["eps"][..], "eps"),
        (&["esp", "--size", "1"], "--size 1"),
        (&["esp", "--json", "figures.json", "--size", "1"], "--size 1"),
        (&[], "Usage: lockgate bench"),
    ] {
        let ran = run(args);
        let told = text(&ran.stderr);
        assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(2), ""), "{args:?}: {told}");
        assert!(told.contains(words), "{args:?}: {told}");
    }
}
