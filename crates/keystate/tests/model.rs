//! The crash model: one key through kills, reboots, disks that refuse, and state that is lost or
//! put back, at random. Whatever happens, no number is handed out twice as long as one of the
//! three memories (run record, durable record, witness) still knows how far the key had come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ipsec::{KeyMaterial, SequenceCounter, SequenceNumbers, Spi, Suite};
use keystate::{HostIdentity, KeyFileFacts, KeyState, RESERVATION_STEP};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Draw(u32),
    TopUp,
    /// SIGKILL, or a crash of the daemon.
    Kill,
    Reboot(Run),
    Start,
    /// The disk takes no more writes to this file, or takes them again: with `TopUp` this is also
    /// every point at which a crash can come between the writes of a reservation.
    Block(File),
    Unblock(File),
    /// This and the next two happen only while the daemon is down.
    Backup(File),
    Restore(File),
    Lose(File),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum File {
    Durable,
    Witness,
}

/// The run record's knowledge of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    Nothing,
    /// The key's number in an earlier boot, until the state is opened the next time.
    Earlier,
    Everything,
}

/// The fate of the run directory at a reboot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Run {
    Emptied,
    /// The directory is on a disk.
    Kept,
}

fn a_file() -> impl Strategy<Value = File> {
    prop_oneof![Just(File::Durable), Just(File::Witness)]
}

fn a_step() -> impl Strategy<Value = Step> {
    const HALF: u32 = RESERVATION_STEP as u32 / 2;
    prop_oneof![
        6 => prop_oneof![1u32..200, HALF - 70..HALF + 70, Just(2 * HALF)].prop_map(Step::Draw),
        5 => Just(Step::TopUp),
        3 => Just(Step::Kill),
        2 => prop_oneof![Just(Run::Emptied), Just(Run::Kept)].prop_map(Step::Reboot),
        6 => Just(Step::Start),
        1 => a_file().prop_map(Step::Block),
        2 => a_file().prop_map(Step::Unblock),
        1 => a_file().prop_map(Step::Backup),
        1 => a_file().prop_map(Step::Restore),
        1 => a_file().prop_map(Step::Lose),
    ]
}

struct World {
    root: tempfile::TempDir,
    boot: u32,
    running: Option<(KeyState, Option<Arc<SequenceCounter>>)>,
    /// First and last number of each run that was handed out.
    used: BTreeMap<u64, u64>,
    run: Knows,
    tampered: bool,
    refusals: u32,
}

impl World {
    fn new() -> World {
        World {
            root: in_memory(),
            boot: 1,
            running: None,
            used: BTreeMap::new(),
            run: Knows::Nothing,
            tampered: false,
            refusals: 0,
        }
    }

    fn path(&self, file: File) -> PathBuf {
        match file {
            File::Durable => {
                self.root.path().join("state/sequence").join(format!("{}.out", key().fingerprint()))
            }
            File::Witness => self.root.path().join("a.keys.used"),
        }
    }

    /// The name that the file is written under before it takes its own.
    fn obstacle(&self, file: File) -> PathBuf {
        let path = self.path(file);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        path.with_file_name(format!(".{name}.new"))
    }

    fn backup(&self, file: File) -> PathBuf {
        self.root.path().join(format!("{file:?}"))
    }

    fn last_used(&self) -> u64 {
        self.used.values().copied().max().unwrap_or(0)
    }

    /// Returns whether a durable record or witness knows how far the key has come.
    fn knows(&self, path: &Path) -> bool {
        reserved(path).is_some_and(|up_to| up_to >= self.last_used())
    }

    /// Returns whether something still knows the key, were this file replaced by another one or by
    /// none.
    fn is_remembered(&self, without: File, with: Option<&Path>) -> bool {
        let other = match without {
            File::Durable => File::Witness,
            File::Witness => File::Durable,
        };
        self.run != Knows::Nothing
            || self.knows(&self.path(other))
            || with.is_some_and(|with| self.knows(with))
    }

    fn stop(&mut self) {
        // The counter goes first: workers die with the process.
        if let Some((state, counter)) = self.running.take() {
            drop(counter);
            drop(state);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Draw(count) => self.draw(count),
            Step::TopUp => {
                if let Some((state, _)) = &mut self.running {
                    let _ = state.top_up();
                }
            }
            Step::Kill => self.stop(),
            Step::Reboot(Run::Kept) => {
                self.stop();
                self.boot += 1;
                if self.run == Knows::Everything {
                    self.run = Knows::Earlier;
                }
            }
            Step::Reboot(Run::Emptied) => {
                self.stop();
                let files = [File::Durable, File::Witness].map(|file| self.path(file));
                if files.iter().any(|path| self.knows(path)) {
                    self.boot += 1;
                    self.run = Knows::Nothing;
                    let _ = std::fs::remove_dir_all(self.root.path().join("run"));
                }
            }
            Step::Start => self.start(),
            Step::Block(file) => {
                let obstacle = self.obstacle(file);
                let _ = std::fs::create_dir_all(obstacle);
            }
            Step::Unblock(file) => {
                let _ = std::fs::remove_dir(self.obstacle(file));
            }
            Step::Backup(file) if self.running.is_none() => {
                let _ = std::fs::copy(self.path(file), self.backup(file));
            }
            Step::Restore(file) if self.running.is_none() => {
                let backup = self.backup(file);
                if backup.exists() && self.is_remembered(file, Some(&backup)) {
                    std::fs::copy(backup, self.path(file)).unwrap();
                    self.tampered = true;
                }
            }
            Step::Lose(file) if self.running.is_none() => {
                if self.is_remembered(file, None) {
                    let _ = std::fs::remove_file(self.path(file));
                    self.tampered = true;
                }
            }
            Step::Backup(_) | Step::Restore(_) | Step::Lose(_) => {}
        }
    }

    fn start(&mut self) {
        self.stop();
        let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
        let root = self.root.path();
        std::fs::create_dir_all(root.join("state/sequence")).unwrap();
        let Ok(mut state) = KeyState::open_as(&root.join("run"), &root.join("state"), &host) else {
            // It must say that a key is spent, and the disk does not take it.
            assert!(self.tampered && self.obstacle(File::Durable).exists());
            return;
        };
        let file = KeyFileFacts { path: root.join("a.keys"), modified: SystemTime::now() };
        let counter =
            state.outbound(key().fingerprint(), Spi::LOWEST, SequenceNumbers::Extended, &file);
        if let Err(refused) = &counter {
            self.refusals += 1;
            assert!(self.tampered, "nobody touched anything: {refused}");
        }
        self.run = match (&counter, self.run) {
            (Ok(_), _) => Knows::Everything,
            (Err(_), Knows::Earlier) => Knows::Nothing,
            (Err(_), same) => same,
        };
        self.running = Some((state, counter.ok()));
    }

    fn draw(&mut self, count: u32) {
        let Some((_, Some(counter))) = &self.running else { return };
        let mut run = counter.draw(count);
        let count = run.left();
        let Ok(first) = run.take() else { return };
        let last = first + count - 1;
        let before = self.used.range(..=last).next_back();
        assert!(before.is_none_or(|(_, end)| *end < first), "{first}..={last} again");
        self.used.insert(first, last);
    }
}

/// The number in a durable record or a witness.
fn reserved(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().nth(1)?.split(' ').nth(2)?.parse().ok()
}

/// A directory where syncing costs nothing, if there is one.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn key() -> KeyMaterial {
    KeyMaterial::new(Suite::Aes128Gcm, &[7; 20]).unwrap()
}

proptest! {
    // Few histories, because each starts and kills many processes; `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    })]

    #[test]
    fn no_number_is_handed_out_twice(steps in prop::collection::vec(a_step(), 1..60)) {
        let mut world = World::new();
        world.start();
        for step in steps {
            world.take(step);
        }
        world.stop();
    }
}

/// The model reaches what it is about.
#[test]
fn rollback_of_the_durable_record_is_refused_in_the_model_too() {
    let mut world = World::new();
    let half = RESERVATION_STEP as u32 / 2 + 1;
    use Step::*;
    for step in [Start, Draw(5), Kill, Backup(File::Durable), Start, Draw(half), TopUp, Draw(half)]
    {
        world.take(step);
    }
    for step in [Kill, Reboot(Run::Emptied), Restore(File::Durable), Start, Draw(1)] {
        world.take(step);
    }
    assert_eq!((world.refusals, world.used.len()), (1, 3));
    assert!(world.tampered);
}
