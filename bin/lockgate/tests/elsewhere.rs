//! `bench` and `demo` are programs of their own: where they are looked for, what they are handed,
//! and what is told where they are missing. A shell stands in for them.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with our program alone in it.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = folder.path().join("lockgate");
        // The same file by another name: one that was written just now might not be executable yet.
        std::fs::hard_link(env!("CARGO_BIN_EXE_lockgate"), program).unwrap();
        Installed { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.file("lockgate"));
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// PATH with a folder in front of it.
fn path_with(folder: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap()
}

#[test]
fn a_missing_program_is_told_with_its_folders_and_what_brings_it() {
    let installed = Installed::new();
    for (command, program) in [("bench", "lockgate-bench"), ("demo", "lockgate-demo")] {
        let ran = installed.run(&[command, "esp"]);
        assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(1), ""));
        let told = text(&ran.stderr);
        let beside = installed.folder.path().to_str().unwrap();
        for word in
            [program, beside, "/usr/libexec/lockgate", "package lockgate-tools", "`make build`"]
        {
            assert!(told.contains(word), "no {word}: {told}");
        }
        let ran = installed.run(&[command, "esp", "--json"]);
        assert_eq!((ran.status.code(), text(&ran.stderr)), (Some(1), ""));
        let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(answer["error"]["exit_code"], 1);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{program} is not in ")), "{message}");
    }
}

#[test]
fn a_program_in_path_is_not_taken() {
    let installed = Installed::new();
    let other = tempfile::tempdir().unwrap();
    for (command, program) in [("bench", "lockgate-bench"), ("demo", "lockgate-demo")] {
        symlink("/bin/true", other.path().join(program)).unwrap();
        let mut command = installed.command(&[command]);
        // Neither there nor in the working directory.
        command.env("PATH", path_with(other.path())).current_dir(other.path());
        let ran = command.output().unwrap();
        assert_eq!(ran.status.code(), Some(1));
        assert!(text(&ran.stderr).contains("lockgate-tools"), "{}", text(&ran.stderr));
    }
}

#[test]
fn words_environment_and_exit_code_are_handed_on() {
    let installed = Installed::new();
    for (command, program) in [("bench", "lockgate-bench"), ("demo", "lockgate-demo")] {
        symlink("/bin/sh", installed.file(program)).unwrap();
        let script = "printf '%s|' \"$LOCKGATE_TEST_WORD\" \"$@\"; exit 7";
        let words = [command, "-c", script, "sh", "--help", "-h", "--json", "--version", "a b", ""];
        let ran = installed.command(&words).env("LOCKGATE_TEST_WORD", "here").output().unwrap();
        let told = (ran.status.code(), text(&ran.stdout), text(&ran.stderr));
        assert_eq!(told, (Some(7), "here|--help|-h|--json|--version|a b||", ""));
        // `lockgate bench --help` is the other program's, too.
        let ran = installed.run(&[command, "--help"]);
        assert!(!text(&ran.stdout).contains("lockgate-tools"), "{}", text(&ran.stdout));
    }
}

#[test]
fn a_signal_that_ends_the_program_is_seen_by_the_caller() {
    let installed = Installed::new();
    symlink("/bin/sh", installed.file("lockgate-demo")).unwrap();
    let ran = installed.run(&["demo", "-c", "kill -TERM $$"]);
    assert_eq!(ran.status.signal(), Some(15));
}

#[test]
fn a_program_that_cannot_be_started_is_told() {
    let installed = Installed::new();
    std::fs::write(installed.file("lockgate-bench"), "no program").unwrap();
    let ran = installed.run(&["bench", "esp"]);
    assert_eq!(ran.status.code(), Some(1));
    let told = text(&ran.stderr);
    assert!(told.contains("lockgate-bench: cannot be started: Permission denied"), "{told}");
}
