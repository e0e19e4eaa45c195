//! Completion as a shell asks for it: names that the running daemon knows, and nothing without one.

mod common;
#[path = "common/daemon.rs"]
mod daemon;

use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::Place;
use daemon::Lab;

/// Asks as the script of a shell does. The last word is the one that is being typed.
fn asked(shell: &str, socket: &str, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    command.env("LOCKGATE_COMPLETE", shell).env("LOCKGATE_SOCKET", socket);
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    command.args(["--", "lockgate"]).args(words).stdin(Stdio::null());
    command.output().unwrap()
}

/// The words that are offered; nothing may be said beside them.
fn offered(shell: &str, socket: &str, words: &[&str]) -> Vec<String> {
    let output = asked(shell, socket, words);
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn names_of_the_running_gateway_complete_a_line() {
    let lab = Lab::new();
    let socket = lab.socket.to_str().unwrap();
    for (words, expected) in [
        (&["show", "port", "w"][..], &["wan"][..]),
        (&["show", "ports", "w"], &["wan"]),
        (&["show", "peer", "b"], &["berlin"]),
        (&["show", "sa", "b"], &["berlin"]),
        (&["show", "policy", "be"], &["berlin-net"]),
        (&["show", "policy", "--wide", "d"], &["dns"]),
        (&["show", "route", "w"], &[]),
        (&["explain", "--in", ""], &["host", "wan"]),
        (&["explain", "--in=w"], &["--in=wan"]),
        (&["explain", "--from-peer", "b"], &["berlin"]),
        (&["capture", "a"], &["any"]),
        (&["capture", "w"], &["wan"]),
        (&["replay", "--in", ""], &["host=", "wan="]),
        (&["replay", "--in=w"], &["--in=wan="]),
        (&["policy", "add", "--peer", "b"], &["berlin"]),
        (&["policy", "add", "--ports", "lan,w"], &["lan,wan"]),
        (&["policy", "del", "dns", "b"], &["berlin-net"]),
        (&["policy", "change", "--del", "dn"], &["dns"]),
        (&["show", "group", "w"], &["web"]),
        (&["rule", "add", "--group", "w"], &["web"]),
        (&["rule", "del", "web/h"], &["web/https"]),
        // A shell would run the third policy's name.
        (&["policy", "del", "$"], &[]),
        // Commands and values complete as before.
        (&["sho"], &["show"]),
        (&["show", "po"], &["port", "policy"]),
    ] {
        assert_eq!(offered("bash", socket, words), expected, "{words:?}");
    }
    for shell in ["zsh", "fish"] {
        assert_eq!(offered(shell, socket, &["show", "port", "w"]), ["wan"], "{shell}");
    }
    // The line's own socket comes first.
    let named = ["--socket", socket, "show", "peer", "b"];
    assert_eq!(offered("bash", "/none.sock", &named), ["berlin"]);
}

#[test]
fn names_of_a_configuration_on_the_line_come_first() {
    let lab = Lab::new();
    let socket = lab.socket.to_str().unwrap();
    let file = lab.place.file("a.toml");
    let file = file.to_str().unwrap();
    let equals = format!("--config={file}");
    for (words, expected) in [
        (&["replay", "--config", file, "--in", "l"][..], &["lan="][..]),
        (&["replay", &equals, "--in", "w"], &["wan="]),
        (&["explain", "-f", file, "--in", ""], &["host", "lan", "wan"]),
        (&["explain", "--file", file, "--from-peer", ""], &["b", "c"]),
        // These options name no configuration.
        (&["policy", "add", "--file", file, "--ports", ""], &["wan"]),
        (&["replay", "--config", "/none.toml", "--in", ""], &["host="]),
    ] {
        assert_eq!(offered("bash", socket, words), expected, "{words:?}");
    }
    let begun = format!("lan={}", file.strip_suffix("toml").unwrap());
    let words = ["replay", "--in", &begun];
    assert_eq!(offered("bash", socket, &words), [format!("lan={file}")]);
}

#[test]
fn without_a_daemon_nothing_is_offered_and_nothing_said() {
    let place = Place::empty();
    place.write("file", "no socket");
    for socket in ["none.sock", "file"].map(|name| place.file(name)) {
        let socket = socket.to_str().unwrap();
        for words in [&["show", "port", "w"][..], &["policy", "del", "d"], &["capture", "w"]] {
            assert_eq!(offered("bash", socket, words), [""; 0], "{words:?}");
        }
        assert_eq!(offered("bash", socket, &["explain", "--in", "h"]), ["host"]);
        assert_eq!(offered("bash", socket, &["che"]), ["check"]);
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_not_waited_for() {
    let place = Place::empty();
    let socket = place.file("api.sock");
    let _mute = UnixListener::bind(&socket).unwrap();
    let began = Instant::now();
    assert_eq!(offered("bash", socket.to_str().unwrap(), &["show", "port", "w"]), [""; 0]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn an_unknown_shell_is_refused_without_a_word_on_the_line() {
    let output = asked("tcsh", "none.sock", &["sho"]);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn every_command_completes() {
    let words = [
        "apply", "confirm", "diff", "rollback", "save", "export", "policy", "show", "explain",
        "events", "probe",
    ];
    let offered = offered("bash", "none.sock", &[""]);
    for word in words.into_iter().chain(["detach", "check", "keygen", "replay", "demo", "bench"]) {
        assert!(offered.iter().any(|it| it == word), "{word} in {offered:?}");
    }
}

/// The packaged script, in the shell that it is for.
#[test]
fn bash_completes_a_line_with_the_script_of_the_package() {
    let lab = Lab::new();
    lab.place.succeeds(&["generate", "completions", "scripts"]);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockgate")).parent().unwrap();
    let script = r#"
        source scripts/lockgate.bash
        COMP_WORDS=(lockgate show peer b) COMP_CWORD=3 COMP_TYPE=9
        "$(complete -p lockgate | sed 's/.*-F \([^ ]*\).*/\1/')" lockgate b peer
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", script]).current_dir(&lab.place.path);
    let path = std::env::var("PATH").unwrap_or_default();
    bash.env("PATH", format!("{}:{path}", program.display())).env("LOCKGATE_SOCKET", &lab.socket);
    let Ok(output) = bash.output() else {
        println!("SKIPPED: completion in bash: there is no bash");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "berlin\n", "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
