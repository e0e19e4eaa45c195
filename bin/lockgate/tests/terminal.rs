//! The real binary on a terminal: the dialogue of `init`, `--watch`, colours.

mod common;
#[path = "common/daemon.rs"]
mod daemon;
#[path = "common/pty.rs"]
mod pty;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use common::Place;
use daemon::Lab;
use pty::{CTRL_C, CTRL_D, Session};

/// The number of SIGINT.
const SIGINT: i32 = 2;
/// Clears the screen, as `--watch` does.
const CLEAR: &str = "\x1b[H\x1b[J";
/// A question's number, and an answer that can be used.
const ANSWERS: [(&str, &str); 5] = [
    ("1/5 ", "inside0\n"),
    ("2/5 ", "10.1.0.0/16\n"),
    ("3/5 ", "outside0 192.0.2.1\n"),
    ("4/5 ", "berlin 198.51.100.7\n"),
    ("5/5 ", "10.2.0.0/16\n"),
];

fn init(place: &Place) -> Session {
    Session::start(&place.path, ["init", "--name", "gw-a"], &[])
}

#[test]
fn init_asks_five_questions_and_writes_four_files() {
    let place = Place::empty();
    let mut session = init(&place);
    for (question, answer) in ANSWERS {
        session.until(question);
        session.until(": ");
        session.types(answer);
    }
    let (status, shown) = session.ends();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("lockgate check /etc/lockgate/lockgate.toml"), "{shown}");
    let mut files: Vec<_> = std::fs::read_dir(place.file("gw-a-berlin"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["berlin-gw-a.keys", "berlin.toml", "gw-a-berlin.keys", "gw-a.toml"]);
    place.json(&["check", "gw-a-berlin/gw-a.toml"]);
}

#[test]
fn init_explains_a_wrong_answer_and_asks_again() {
    let place = Place::empty();
    let mut session = init(&place);
    let wrong = [
        ("two words\n", "cannot be an interface"),
        ("10.1.0.1/16\n", "the network is 10.1.0.0/16"),
        ("inside0 192.0.2.1\n", "need two interfaces"),
        ("berlin vpn.example.com\n", "names are not resolved"),
        ("10.1.2.0/24\n", "overlaps 10.1.0.0/16"),
    ];
    for ((question, answer), (mistake, explained)) in ANSWERS.into_iter().zip(wrong) {
        session.until(question);
        session.until(": ");
        session.types(mistake);
        session.until(explained);
        session.until(question);
        session.until(": ");
        session.types(answer);
    }
    let (status, shown) = session.ends();
    assert!(status.success(), "{shown}");
}

#[test]
fn init_writes_nothing_when_the_input_ends_or_is_interrupted_before_the_last_answer() {
    for answered in 0..ANSWERS.len() {
        for key in [CTRL_D, CTRL_C] {
            let place = Place::empty();
            let mut session = init(&place);
            for (question, answer) in &ANSWERS[..answered] {
                session.until(question);
                session.until(": ");
                session.types(answer);
            }
            session.until(ANSWERS[answered].0);
            session.until(": ");
            session.types(key);
            let (status, shown) = session.ends();
            match key {
                CTRL_C => assert_eq!(status.signal(), Some(SIGINT), "{status} {shown}"),
                _ => assert_eq!(status.code(), Some(2), "{shown}"),
            }
            assert_eq!(place.names(), [""; 0], "after {answered} answers");
        }
    }
}

/// Whenever the interruption comes: no half of a tunnel is left.
#[test]
fn init_writes_all_four_files_or_none_when_it_is_interrupted_while_it_writes() {
    let place = Place::empty();
    for delay_us in (0..12_000).step_by(400) {
        let mut session = init(&place);
        for (question, answer) in ANSWERS {
            session.until(question);
            session.until(": ");
            session.types(answer);
        }
        std::thread::sleep(Duration::from_micros(delay_us));
        session.types(CTRL_C);
        let (_, shown) = session.ends();
        let directory = place.file("gw-a-berlin");
        let files = std::fs::read_dir(&directory).map_or(0, Iterator::count);
        assert!(directory.exists() == (files > 0), "an empty directory is left: {shown}");
        assert!(files == 0 || files == 4, "{files} files, {delay_us} µs: {shown}");
        if files == 4 {
            place.json(&["check", "gw-a-berlin/berlin.toml"]);
            std::fs::remove_dir_all(directory).unwrap();
        }
    }
}

fn on_terminal(lab: &Lab, words: &[&str], environment: &[(&str, &str)]) -> Session {
    Session::start(Path::new("/"), lab.args(words), environment)
}

#[test]
fn watch_draws_the_screen_again_until_it_is_interrupted() {
    let lab = Lab::new();
    let words = [&["status", "--watch", "1"][..], &["show", "port", "--watch=1"]];
    for (words, shown) in words.into_iter().zip(["peer berlin does not answer", "wan"]) {
        let mut session = on_terminal(&lab, words, &[]);
        let mut all = String::new();
        for _ in 0..3 {
            all += &session.until(CLEAR);
            all += &session.until(shown);
        }
        session.types(CTRL_C);
        let (status, rest) = session.ends();
        assert_eq!(status.signal(), Some(SIGINT), "{status}");
        // Nothing stays switched on: no colour, no hidden cursor, no other screen.
        all += &rest;
        assert!(!all.contains("\x1b[?"), "{all:?}");
        let painted = |code: &str| all.matches(&format!("\x1b[{code}m")).count();
        let begun: usize = ["1", "2", "31", "32", "33"].into_iter().map(painted).sum();
        assert_eq!(begun, painted("0"), "{all:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let lab = Lab::new();
    let shown = |environment: &[(&str, &str)]| {
        let (status, shown) = on_terminal(&lab, &["status"], environment).ends();
        assert!(status.success(), "{shown}");
        // A name may do nothing to the terminal, coloured or not.
        assert!(shown.contains("gw-a\\u{1b}[2J"), "{shown:?}");
        shown
    };
    let coloured = shown(&[]);
    assert!(coloured.contains("\x1b[33msilent\x1b[0m"), "{coloured:?}");
    assert!(shown(&[("NO_COLOR", "")]).contains('\x1b'), "an empty NO_COLOR says nothing");
    for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = shown(&[plain]);
        assert!(!text.contains('\x1b') && text.contains("silent"), "{plain:?}: {text:?}");
    }
    let piped = lab.succeeds(&["status"]);
    assert!(!piped.contains('\x1b') && piped.contains("silent"), "{piped:?}");
}
