//! Real processes, really killed, and a disk that is really full.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use ipsec::{Fingerprint, KeyMaterial, SequenceError, SequenceNumbers, Spi, Suite};
use keystate::{HostIdentity, KeyFileFacts, KeyState, KeyStateError, RESERVATION_STEP};

/// Tells a copy of this test program that it is the process that a test is about.
const DIRECTORY: &str = "LOCKGATE_KEYSTATE_TEST";
const ROUNDS: u32 = 40;
const WINDOW: u32 = 4096;

fn open(root: &Path) -> Result<KeyState, KeyStateError> {
    let host = HostIdentity::new("machine", "boot");
    KeyState::open_as(&root.join("run"), &root.join("state"), &host)
}

fn fingerprint(seed: u8) -> Fingerprint {
    KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
}

fn key_file(root: &Path) -> KeyFileFacts {
    KeyFileFacts { path: root.join("a.keys"), modified: SystemTime::now() }
}

/// Returns a command that runs one test of this program as the process that is killed or starved.
fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(DIRECTORY, directory).stdout(Stdio::null());
    command
}

fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// The `n`th number that arrives: a walk of steps small and large, forwards.
fn arriving(n: u64) -> u64 {
    let step = |n: u64| [1, 1, 3, 64, 129, 4000, 2, 700][n as usize % 8];
    (0..8).map(step).sum::<u64>() * (n / 8) + (0..n % 8).map(step).sum::<u64>() + 1
}

/// A record of what the killed process has done for sure: a number is drawn, and used from here on;
/// a packet was accepted, and is delivered from here on.
struct Done {
    file: File,
}

impl Done {
    fn open(directory: &Path) -> Done {
        let path = directory.join("done");
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        Done { file }
    }

    fn read(&self, place: u64) -> u64 {
        let mut bytes = [0; 8];
        let _ = self.file.read_exact_at(&mut bytes, place * 8);
        u64::from_ne_bytes(bytes)
    }

    fn write(&self, place: u64, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), place * 8).unwrap();
    }
}

/// Draws and accepts until it is killed. Does nothing in a plain test run.
#[test]
fn process_that_is_killed() {
    let Some(root) = directory() else { return };
    let mut state = open(&root).unwrap();
    let file = key_file(&root);
    let numbers = SequenceNumbers::Extended;
    let counter = state.outbound(fingerprint(1), Spi::LOWEST, numbers, &file).unwrap();
    let window = state.inbound(fingerprint(2), Spi::LOWEST, WINDOW, numbers).unwrap();
    let done = Done::open(&root);
    let mut arrived = done.read(1);
    loop {
        // Large runs, so that reservations are written all the time.
        let mut run = counter.draw(100_000);
        let count = run.left();
        match run.take() {
            Ok(first) => {
                assert!(first > done.read(0), "number {first} again");
                done.write(0, first + count - 1);
            }
            Err(SequenceError::NotReserved) => state.top_up().unwrap(),
            Err(SequenceError::Exhausted) => panic!("64 bits are enough"),
        }
        for _ in 0..50 {
            // The last one before the kill may have been accepted and not delivered.
            let _ = window.commit(arriving(arrived));
            arrived += 1;
            done.write(1, arrived);
        }
    }
}

#[test]
fn killed_at_any_moment_no_number_is_drawn_twice_and_no_packet_accepted_twice() {
    let root = tempfile::tempdir().unwrap();
    let done = Done::open(root.path());
    let mut seed = std::process::id();
    for round in 0..ROUNDS {
        let before = (done.read(0), done.read(1));
        let mut process = child("process_that_is_killed", root.path()).spawn().unwrap();
        while (done.read(0), done.read(1)) == before {
            assert_eq!(process.try_wait().unwrap(), None, "round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        std::thread::sleep(Duration::from_micros(u64::from(seed >> 16) % 20_000));
        assert_eq!(process.try_wait().unwrap(), None, "round {round}: it ended by itself");
        process.kill().unwrap();
        process.wait().unwrap();

        let mut state = open(root.path()).unwrap();
        assert_eq!(state.take_notices(), []);
        let file = key_file(root.path());
        let numbers = SequenceNumbers::Extended;
        let counter = state.outbound(fingerprint(1), Spi::LOWEST, numbers, &file).unwrap();
        assert!(counter.last() >= done.read(0));
        assert!(counter.last() <= done.read(0) + 100_000, "SIGKILL loses nothing");
        let window = state.inbound(fingerprint(2), Spi::LOWEST, WINDOW, numbers).unwrap();
        let delivered = done.read(1);
        for place in delivered.saturating_sub(3000)..delivered {
            let number = arriving(place);
            assert!(window.check(number).is_err(), "round {round}: {number} accepted again");
        }
        let next = arriving(delivered + 1);
        assert_eq!(window.check(next), Ok(()), "round {round}: what is new is accepted");
    }
    println!("{ROUNDS} kills: {} numbers, {} packets", done.read(0), done.read(1));
}

/// Fills up the rest of a disk.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let file = File::create(&path).unwrap();
    for size in [4096, 1] {
        let mut at = file.metadata().unwrap().len();
        while file.write_all_at(&vec![1; size], at).is_ok() {
            at += size as u64;
        }
    }
    path
}

/// Runs with tiny file systems for the run and state directories. Does nothing in a plain run.
#[test]
fn process_on_a_full_disk() {
    let Some(root) = directory() else { return };
    assert_ne!(root.metadata().unwrap().dev(), root.join("state").metadata().unwrap().dev());
    let mut state = open(&root).unwrap();
    let file = key_file(&root);
    let numbers = SequenceNumbers::Short;
    let counter = state.outbound(fingerprint(1), Spi::LOWEST, numbers, &file).unwrap();
    let half = RESERVATION_STEP as u32 / 2;
    counter.draw(half + 1).whole().unwrap();

    let filler = fill(&root.join("state"));
    for _ in 0..3 {
        let error = state.top_up().unwrap_err();
        assert!(error.failed == 1 && error.first.is_disk_full(), "{error}");
        assert!(error.to_string().contains("No space left on device"), "{error}");
    }
    // A key that comes now is not refused, but cannot send yet.
    let other = state.outbound(fingerprint(3), Spi::LOWEST, numbers, &file).unwrap();
    assert_eq!(other.draw(1).whole(), Err(SequenceError::NotReserved));
    assert_eq!(state.top_up().unwrap_err().failed, 2);
    assert_eq!(counter.draw(half - 1).whole(), Ok(u64::from(half) + 2), "up to the end of what is");
    assert_eq!(counter.draw(1).whole(), Err(SequenceError::NotReserved));
    // A restart changes nothing of it.
    drop((counter, other, state));
    let mut state = open(&root).unwrap();
    let counter = state.outbound(fingerprint(1), Spi::LOWEST, numbers, &file).unwrap();
    let other = state.outbound(fingerprint(3), Spi::LOWEST, numbers, &file).unwrap();
    assert_eq!(counter.draw(1).whole(), Err(SequenceError::NotReserved));

    std::fs::remove_file(filler).unwrap();
    state.top_up().unwrap();
    assert_eq!(counter.draw(1).whole(), Ok(RESERVATION_STEP + 1));
    assert_eq!(other.draw(1).whole(), Ok(1));

    drop((counter, other, state));
    std::fs::remove_file(root.join("run/keystate")).unwrap();
    let filler = fill(&root.join("run"));
    match open(&root).err() {
        Some(KeyStateError::File(error)) => assert!(error.is_disk_full(), "{error}"),
        other => panic!("a full run directory: {other:?}"),
    }
    std::fs::remove_file(filler).unwrap();
    open(&root).unwrap();
    std::fs::write(root.join("passed"), "").unwrap();
}

#[test]
fn full_disk_stops_numbers_at_the_reservation_and_nothing_else() {
    let name = "full_disk_stops_numbers_at_the_reservation_and_nothing_else";
    let root = tempfile::tempdir().unwrap();
    for directory in ["run", "state"] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
    }
    // Mounts in a namespace of their own, which end with it.
    let mount = r#"
        set -e
        mount -t tmpfs -o size=256k,mode=700 none "$LOCKGATE_KEYSTATE_TEST/run" || exit 77
        mount -t tmpfs -o size=64k,mode=700 none "$LOCKGATE_KEYSTATE_TEST/state" || exit 77
        exec "$0" "$@"
    "#;
    let process = child("process_on_a_full_disk", root.path());
    let mut unshared = Command::new("unshare");
    unshared.args(["--mount", "--", "sh", "-c", mount]).arg(process.get_program());
    unshared.args(process.get_args()).env(DIRECTORY, root.path()).stdout(Stdio::null());
    let status = match unshared.status() {
        Ok(status) => status,
        Err(error) => return println!("SKIPPED: {name}: unshare: {error}"),
    };
    if matches!(status.code(), Some(1 | 77)) {
        return println!("SKIPPED: {name}: no mounts in a namespace of our own (needs root)");
    }
    assert!(status.success(), "{status}");
    assert!(root.path().join("passed").exists());
}
