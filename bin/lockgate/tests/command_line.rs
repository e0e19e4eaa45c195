//! Properties of all commands: how files are named, how errors and hostile text are shown,
//! the words that are commands, and answers that cannot be written.

mod common;

use std::fs::File;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::Place;
use serde_json::Value;

fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    command.args(args).current_dir(&place.path).stdin(Stdio::null());
    command
}

/// Runs the command with this text on its standard input.
fn with_input(place: &Place, args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = command(place, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    said(child.wait_with_output().unwrap())
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("ended by itself"), text(output.stdout), text(output.stderr))
}

#[test]
fn an_answer_that_cannot_be_written_is_told() {
    let place = Place::with_gateways();
    for args in [
        &["check", "a.toml"][..],
        &["check", "--json", "a.toml"],
        &["check", "--effective", "a.toml"],
        &["keygen", "x", "y"],
        &["probe"],
        &["explain", "-f", "a.toml", "--in", "lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"],
        &["chekc", "--json"],
        &["--help"],
        &["check", "--help"],
        &["--version"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ran = command(&place, args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let (code, _, err) = said(ran);
        assert!(code == 1 || code == 2, "{args:?} ended with {code}: {err}");
        let is_told = err.contains("standard output: No space left on device");
        assert!(is_told || err.contains("there is no command"), "{args:?}: {err}");
        // Nobody can be told any more, and it ends all the same.
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let ran = command(&place, args).stdout(full()).stderr(full()).status().unwrap();
        assert!(ran.code() == Some(1) || ran.code() == Some(2), "{args:?} ended with {ran}");
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let place = Place::with_gateways();
    for args in
        [&["check", "--effective", "a.toml"][..], &["check", "--json", "a.toml"], &["--help"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = command(&place, args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let (code, _, err) = said(ran);
        assert_eq!(code, 0, "{args:?}: {err}");
        assert!(!err.contains("standard output"), "{err}");
    }
}

#[test]
fn a_file_is_named_as_an_argument_or_as_an_option() {
    let place = Place::with_gateways();
    let good = place.succeeds(&["check", "a.toml"]);
    for args in [&["check", "-f", "a.toml"][..], &["check", "--file", "a.toml"]] {
        assert_eq!(place.succeeds(args), good, "{args:?}");
    }
    place.fails(2, &["check", "a.toml", "-f", "a.toml"], &["cannot be used with"]);
    let flow = ["--in", "lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"];
    let told = place.succeeds(&[&["explain", "--config", "a.toml"], &flow[..]].concat());
    for option in ["-f", "--file"] {
        assert_eq!(place.succeeds(&[&["explain", option, "a.toml"], &flow[..]].concat()), told);
    }
}

#[test]
fn a_dash_reads_standard_input_and_keys_lie_where_they_are_said_to() {
    let place = Place::with_gateways();
    let text = place.text("a.toml");
    let (code, out, err) = with_input(&place, &["check", "-"], &text);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("<stdin>: OK: node gw-a, 2 ports"), "{out}");
    std::fs::create_dir(place.file("keys")).unwrap();
    for name in ["a-b.keys", "a-c.keys"] {
        std::fs::rename(place.file(name), place.file("keys").join(name)).unwrap();
    }
    let (code, _, err) = with_input(&place, &["check", "-f", "-"], &text);
    assert_eq!(code, 1);
    assert!(err.contains("<stdin>:") && err.contains("a-b.keys"), "{err}");
    let (code, _, err) = with_input(&place, &["check", "-", "--keys-dir", "keys"], &text);
    assert_eq!(code, 0, "{err}");
    place.succeeds(&["check", "a.toml", "--keys-dir", "keys"]);
    let flow = ["--in", "lan", "tcp", "10.1.0.10:1", "10.2.0.10:443"];
    let args = [&["explain", "-f", "-", "--keys-dir", "keys"], &flow[..]].concat();
    let (code, _, err) = with_input(&place, &args, &text);
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let place = Place::with_gateways();
    let made = Command::new("mkfifo").arg(place.file("pipe")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(place.file("socket")).unwrap();
    std::fs::create_dir(place.file("directory")).unwrap();
    let began = Instant::now();
    let advice = "name a file, or `-` to read standard input";
    for (file, kind) in [
        ("pipe", "is a pipe, not a regular file"),
        ("socket", "is a socket, not a regular file"),
        ("directory", "is a directory, not a regular file"),
        ("/dev/zero", "is a device, not a regular file"),
    ] {
        place.fails(1, &["check", file], &[file, kind, advice]);
        place.fails(
            1,
            &["explain", "-f", file, "--in", "lan", "esp", "1.1.1.1", "2.2.2.2"],
            &[kind],
        );
        place.fails(1, &["apply", file], &[kind]);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "none of them is waited for");
    let huge = File::create(place.file("huge.toml")).unwrap();
    huge.set_len(300 << 20).unwrap();
    let sizes = "is 314572800 bytes long; at most 268435456 bytes are read";
    place.fails(1, &["check", "huge.toml"], &[sizes]);
}

/// One object in one line, for errors of the parser, of the command and of the connection.
#[test]
fn with_json_an_error_is_one_object_on_standard_output() {
    let place = Place::with_gateways();
    for (code, args, words) in [
        (1, &["show", "status", "--socket", "none.sock"][..], "none.sock"),
        (1, &["apply", "missing.toml"], "missing.toml"),
        (2, &["diff", "missing.toml"], "missing.toml"),
        (2, &["shw", "port"], "did you mean `lockgate show`?"),
        (2, &["show"], "required"),
        (2, &["show", "cache", "--entries", "30000"], "30000"),
        (2, &["explain", "-f", "a.toml", "--in", "nope", "esp", "1.1.1.1", "2.2.2.2"], "nope"),
        (2, &["keygen", "a", "a"], "different names"),
    ] {
        let ran = place.run(&[args, &["--json"]].concat());
        assert_eq!((ran.code(), ran.err().as_str()), (code, ""), "{args:?}");
        let out = ran.out();
        assert_eq!(out.lines().count(), 1, "{args:?}: {out}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(answer["error"]["exit_code"], code, "{args:?}: {out}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{args:?}: {message}");
    }
    let ran = place.run(&["apply", "missing.toml", "--json"]);
    let answer: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(answer["error"]["problems"][0]["file"], "missing.toml");
}

#[test]
fn an_unknown_command_gets_the_nearest_one() {
    let place = Place::empty();
    for (args, nearest) in [
        (&["chekc", "a.toml"][..], "there is no command `chekc`: did you mean `lockgate check`?"),
        (&["ports"], "there is no command `ports`: did you mean `lockgate show port`?"),
        (&["statsu"], "did you mean `lockgate status`?"),
        (&["reload"], "did you mean `lockgate apply`?"),
        (&["policy", "ad"], "there is no command `policy ad`: did you mean `lockgate policy add`?"),
        (&["policy", "remove"], "there is no command `policy remove`"),
        (&["xyzzy"], "there is no command `xyzzy`: `lockgate --help` lists them"),
    ] {
        place.fails(2, args, &[nearest]);
    }
    // Aliases: the daemon is looked for, so the command was understood.
    let missing = ["--socket", "none.sock"];
    for alias in [&["status"][..], &["sh", "port"], &["policy", "list"], &["show", "ports"]] {
        place.fails(1, &[&missing, alias].concat(), &["none.sock", "is lockgated running?"]);
    }
}

#[test]
fn a_socket_is_offered_only_where_a_daemon_is_asked() {
    let place = Place::with_gateways();
    for (command, offered) in [
        ("check", false),
        ("keygen", false),
        ("replay", false),
        ("probe", false),
        ("show", true),
        ("apply", true),
        ("explain", true),
        ("events", true),
        ("detach", true),
    ] {
        let help = place.succeeds(&[command, "--help"]);
        assert_eq!(help.contains("--socket"), offered, "{command}: {help}");
    }
    // Their `--help` is that of the programs which they execute.
    for command in ["bench", "demo"] {
        let help = place.succeeds(&["help", command]);
        assert!(!help.contains("--socket") && help.contains("lockgate-tools"), "{help}");
    }
    let refused = "`--socket` means nothing to `lockgate check`, which asks no daemon";
    place.fails(2, &["check", "--socket", "x.sock", "a.toml"], &[refused]);
    place.fails(2, &["--socket", "x.sock", "check", "a.toml"], &[refused]);
    let help = place.succeeds(&["--help"]);
    assert!(help.contains("`lockgate help offload` lists"), "{help}");
    place.fails(2, &["help", "offlod"], &["did you mean `lockgate help offload`?"]);
    assert!(help.contains("Exit codes:") && help.contains("{\"error\":{"), "{help}");
}

/// Escape sequences and characters that turn the order of a line round, in a file, in a name, and
/// in the name of a file: escaped in text and in JSON.
#[test]
fn hostile_text_reaches_no_terminal_raw() {
    let place = Place::with_gateways();
    let hostile = "x\u{1b}[2J\u{9b}31m\u{202e}y\u{2066}\u{200b}\u{7f}";
    let text = place.text("a.toml");
    let bad = [
        text.replace(
            "priority = 50",
            &format!("\"{}\" = 50", hostile.replace('\u{1b}', "\\u001b")),
        ),
        text.replace("priority = 50", &format!("priority = 50 # {hostile}\npriority = 51")),
        text.replace("name = \"gw-a\"", &format!("name = \"{}\"", hostile.replace('\u{1b}', ""))),
    ];
    for (number, bad) in bad.iter().enumerate() {
        assert_ne!(*bad, text);
        let name = format!("bad-{number}-{hostile}.toml");
        place.write(&name, bad);
        for args in [&["check", &name][..], &["check", "--json", &name]] {
            let ran = place.run(args);
            assert_ne!(ran.code(), 0, "{args:?}");
            let all = ran.out() + &ran.err();
            assert!(all.contains("\\u"), "{all:?}");
            let raw = |c: char| config::is_hidden(c) && c != '\n';
            assert!(!all.contains(raw), "{args:?}: {all:?}");
        }
    }
    let ran = place.run(&["explain", "-f", "a.toml", "--in", hostile, "esp", "1.1.1.1", "2.2.2.2"]);
    assert!(!ran.err().contains('\u{1b}') && ran.err().contains("\\u{1b}"), "{:?}", ran.err());
}
