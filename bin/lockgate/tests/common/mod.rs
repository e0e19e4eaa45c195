//! Fixtures shared by the tests of the command: a directory, the real binary, the gateways of
//! `etc/demo`.

#![allow(dead_code, reason = "each test file is a program of its own and uses a part of this")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use io::{CaptureReader, CaptureWriter, LinkType, Resolution};
use serde_json::Value;
use tempfile::TempDir;

/// A directory that is removed at the end, with the gateways' configurations and fresh keys in it.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl Place {
    /// An empty one.
    pub(crate) fn empty() -> Place {
        let directory = tempfile::Builder::new().prefix("lockgate-test-").tempdir().unwrap();
        Place { path: directory.path().to_owned(), _directory: directory }
    }

    /// One with gateways a, b and c.
    pub(crate) fn with_gateways() -> Place {
        let place = Place::empty();
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc/demo");
        for name in ["a.toml", "b.toml", "c.toml"] {
            fs::copy(demo.join(name), place.file(name)).unwrap();
        }
        place.succeeds(&["keygen", "a", "b"]);
        place.succeeds(&["keygen", "--suite", "aes-256-gcm", "a", "c"]);
        place
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Copies the command into the directory. `cp` writes the copy: a child of another test's
    /// thread could inherit the descriptor of our own copy, and Linux executes no file open for
    /// writing.
    pub(crate) fn copy_program(&self) -> PathBuf {
        let program = self.file("lockgate");
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_lockgate")).arg(&program);
        assert!(copy.status().unwrap().success());
        program
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// Names of all files, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A directory and everything in it, each with its mode.
    pub(crate) fn tree(&self, name: &str) -> Vec<(PathBuf, u32)> {
        let mut found = vec![self.file(name)];
        let mut next = 0;
        while let Some(path) = found.get(next) {
            next += 1;
            if path.is_dir() {
                let entries = fs::read_dir(path).unwrap();
                found.extend(entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>());
            }
        }
        let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        found.into_iter().map(|path| (path.clone(), mode(&path))).collect()
    }

    /// Runs the command in this directory.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let output = command.args(args).current_dir(&self.path).output().unwrap();
        Ran { args: args.join(" "), output }
    }

    /// Runs the command, which must end with 0, and returns what it printed.
    pub(crate) fn succeeds(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code(), 0, "{}: {}", ran.args, ran.err());
        ran.out()
    }

    /// Runs the command with `--json`; it must end with 0.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.succeeds(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Runs the command, which must end with `code` and say `words` on standard error, and nothing
    /// on standard output.
    pub(crate) fn fails(&self, code: i32, args: &[&str], words: &[&str]) {
        let ran = self.run(args);
        let (out, err) = (ran.out(), ran.err());
        assert_eq!(ran.code(), code, "{}: {out}{err}", ran.args);
        assert_eq!(out, "", "{}", ran.args);
        for word in words {
            assert!(err.contains(word), "{}: no {word:?} in: {err}", ran.args);
        }
    }

    /// Writes Ethernet frames as a capture, a millisecond apart.
    pub(crate) fn capture(&self, name: &str, frames: &[Vec<u8>]) {
        let path = self.file(name);
        let mut writer =
            CaptureWriter::create(&path, LinkType::Ethernet, Resolution::Nanosecond).unwrap();
        for (place, frame) in frames.iter().enumerate() {
            writer.write(1_700_000_000_000_000_000 + place as u64 * 1_000_000, frame).unwrap();
        }
        writer.finish().unwrap();
    }

    /// The packets of a capture.
    pub(crate) fn packets(&self, name: &str) -> Vec<Vec<u8>> {
        let mut reader = CaptureReader::open(&self.file(name)).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.peek().unwrap() {
            packets.push(packet.bytes.to_vec());
            reader.skip();
        }
        packets
    }
}

/// A command that ran.
pub(crate) struct Ran {
    pub args: String,
    output: Output,
}

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.output.status.code().expect("ended by itself")
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }
}

/// Link address of a gateway's protected port: `lan_mac(b'a')`.
pub(crate) fn lan_mac(letter: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0x0a + letter - b'a', 1]
}

/// Link address of the host behind a gateway.
pub(crate) fn host_mac(letter: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0x0a + letter - b'a', 0x10]
}
