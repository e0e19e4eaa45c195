//! Keys over restarts, reboots, lost and restored state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipsec::{
    Advance, Fingerprint, KeyMaterial, ReplayWindow, SequenceCounter, SequenceNumbers, Spi, Suite,
};
use keystate::{
    HostIdentity, KeyFileFacts, KeyRefused, KeyState, KeyStateError, KeyUse, MAX_SAS, NEW_KEY_AGE,
    Notice, RESERVATION_STEP, Refusal,
};

/// A machine with its directories.
struct Machine {
    root: tempfile::TempDir,
    id: u32,
    boot: u32,
}

impl Machine {
    fn new() -> Machine {
        Machine { root: tempfile::tempdir().unwrap(), id: 1, boot: 1 }
    }

    fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn sequence(&self) -> PathBuf {
        self.state().join("sequence")
    }

    fn try_open(&self) -> Result<KeyState, KeyStateError> {
        let host =
            HostIdentity::new(&format!("machine {}", self.id), &format!("boot {}", self.boot));
        KeyState::open_as(&self.run(), &self.state(), &host)
    }

    fn open(&self) -> KeyState {
        self.try_open().unwrap()
    }

    /// /run is empty and the boot another one.
    fn reboot(&mut self) {
        self.boot += 1;
        std::fs::remove_dir_all(self.run()).unwrap();
    }

    fn key_file(&self, age: Duration) -> KeyFileFacts {
        let path = self.root.path().join("berlin.keys");
        KeyFileFacts { path, modified: SystemTime::now() - age }
    }

    fn witness(&self) -> PathBuf {
        self.root.path().join("berlin.keys.used")
    }

    fn record(&self, seed: u8) -> PathBuf {
        self.sequence().join(format!("{}.out", fingerprint(seed)))
    }
}

fn fingerprint(seed: u8) -> Fingerprint {
    KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
}

const SPI: Spi = Spi::LOWEST;
const SHORT: SequenceNumbers = SequenceNumbers::Short;
const DAY: Duration = NEW_KEY_AGE;

/// The counter of key 1, whose file is older than that of any new key.
fn old_key(machine: &Machine, state: &mut KeyState) -> Result<Arc<SequenceCounter>, Refusal> {
    counter(machine, state, 1, DAY * 2)
}

fn new_key(machine: &Machine, state: &mut KeyState) -> Arc<SequenceCounter> {
    counter(machine, state, 1, Duration::from_secs(60)).unwrap()
}

fn counter(
    machine: &Machine,
    state: &mut KeyState,
    seed: u8,
    age: Duration,
) -> Result<Arc<SequenceCounter>, Refusal> {
    let counter = state.outbound(fingerprint(seed), SPI, SHORT, &machine.key_file(age));
    counter.map_err(|KeyRefused { fingerprint: of, usage, spi, reason }| {
        assert_eq!((of, usage, spi), (fingerprint(seed), KeyUse::Seals, SPI));
        reason
    })
}

fn window(state: &mut KeyState, size: u32) -> Result<Arc<ReplayWindow>, KeyRefused> {
    state.inbound(fingerprint(2), SPI, size, SHORT)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn counter_goes_on_at_the_very_next_number_after_a_kill() {
    let machine = Machine::new();
    let mut state = machine.open();
    let key = new_key(&machine, &mut state);
    assert_eq!(key.draw(64).whole(), Ok(1));
    drop((key, state));
    for round in 1..5 {
        let mut state = machine.open();
        let key = old_key(&machine, &mut state).unwrap();
        assert_eq!(key.draw(64).whole(), Ok(round * 64 + 1));
        // A key that is in use has one counter.
        assert!(Arc::ptr_eq(&key, &old_key(&machine, &mut state).unwrap()));
    }
}

#[test]
fn reboot_skips_what_was_reserved() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let key = new_key(&machine, &mut state);
    key.draw(64).whole().unwrap();
    drop((key, state));
    machine.reboot();
    let mut state = machine.open();
    let key = old_key(&machine, &mut state).unwrap();
    assert_eq!(key.draw(1).whole(), Ok(RESERVATION_STEP + 1));
}

#[test]
fn run_record_of_another_boot_is_not_gone_on_with() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    new_key(&machine, &mut state).draw(64).whole().unwrap();
    drop(state);
    // /run was not emptied.
    machine.boot += 1;
    let mut state = machine.open();
    assert_eq!(old_key(&machine, &mut state).unwrap().draw(1).whole(), Ok(RESERVATION_STEP + 1));
    assert_eq!(state.take_notices(), []);
}

#[test]
fn numbers_stop_at_the_reservation_and_go_on_after_topping_up() {
    let machine = Machine::new();
    let mut state = machine.open();
    let key = new_key(&machine, &mut state);
    let run = RESERVATION_STEP as u32 / 2;
    assert_eq!(key.reserved(), RESERVATION_STEP);
    assert_eq!(key.draw(run).whole(), Ok(1));
    state.top_up().unwrap();
    assert_eq!(key.reserved(), RESERVATION_STEP, "half is left");
    assert_eq!(key.draw(run).whole(), Ok(u64::from(run) + 1));
    assert_eq!(key.draw(1).whole(), Err(ipsec::SequenceError::NotReserved));
    state.top_up().unwrap();
    assert_eq!(key.reserved(), 2 * RESERVATION_STEP);
    assert_eq!(key.draw(1).whole(), Ok(RESERVATION_STEP + 1));
}

#[test]
fn lost_record_is_found_out_by_the_run_record_and_by_the_witness_and_stays_found_out() {
    for remembers in ["run", "witness"] {
        let mut machine = Machine::new();
        let mut state = machine.open();
        new_key(&machine, &mut state).draw(64).whole().unwrap();
        drop(state);
        std::fs::remove_dir_all(machine.state()).unwrap();
        match remembers {
            "run" => std::fs::remove_file(machine.witness()).unwrap(),
            _ => machine.reboot(),
        }
        let mut state = machine.open();
        // However young the file is.
        let refusal = counter(&machine, &mut state, 1, Duration::ZERO).unwrap_err();
        assert_eq!(refusal, Refusal::RecordMissing { used: RESERVATION_STEP }, "{remembers}");
        let other = counter(&machine, &mut state, 3, Duration::ZERO).unwrap();
        assert_eq!(other.draw(1).whole(), Ok(1), "the other SAs run");
        drop((other, state));
        // Also when nothing remembers any more but the refusal.
        let _ = std::fs::remove_file(machine.witness());
        machine.reboot();
        let mut state = machine.open();
        let refusal = counter(&machine, &mut state, 1, Duration::ZERO).unwrap_err();
        assert_eq!(refusal, Refusal::Spent);
    }
}

#[test]
fn record_that_went_back_is_refused() {
    for remembers in ["run", "witness", "run of another boot"] {
        let mut machine = Machine::new();
        let mut state = machine.open();
        let key = new_key(&machine, &mut state);
        let backup = machine.root.path().join("backup");
        copy(&machine.sequence(), &backup);
        key.draw(RESERVATION_STEP as u32 - 1).whole().unwrap();
        state.top_up().unwrap();
        drop((key, state));
        copy(&backup, &machine.sequence());
        match remembers {
            "witness" => machine.reboot(),
            "run" => std::fs::remove_file(machine.witness()).unwrap(),
            _ => {
                std::fs::remove_file(machine.witness()).unwrap();
                machine.boot += 1;
            }
        }
        let mut state = machine.open();
        let refusal = old_key(&machine, &mut state).unwrap_err();
        let used = 2 * RESERVATION_STEP - 1;
        let expected = match remembers {
            // Found out when the state was opened.
            "run of another boot" => Refusal::Spent,
            _ => Refusal::RecordWentBack { recorded: RESERVATION_STEP, used },
        };
        assert_eq!(refusal, expected, "{remembers}");
        assert_eq!(old_key(&machine, &mut state).unwrap_err(), Refusal::Spent);
    }
}

#[test]
fn machine_refuses_the_keys_of_another() {
    // The disk moved, with and without the witness; the key file and its witness moved.
    for moved in ["all", "state", "witness"] {
        let mut machine = Machine::new();
        let mut state = machine.open();
        new_key(&machine, &mut state).draw(64).whole().unwrap();
        drop(state);
        machine.reboot();
        machine.id += 1;
        match moved {
            "state" => std::fs::remove_file(machine.witness()).unwrap(),
            "witness" => std::fs::remove_dir_all(machine.state()).unwrap(),
            _ => {}
        }
        let mut state = machine.open();
        let refusal = counter(&machine, &mut state, 1, Duration::ZERO).unwrap_err();
        assert_eq!(refusal, Refusal::OtherMachine, "{moved}");
    }
}

#[test]
fn key_that_no_record_knows_is_new_only_if_its_file_is() {
    let machine = Machine::new();
    let mut state = machine.open();
    let hour = Duration::from_secs(3600);
    let refusal = counter(&machine, &mut state, 1, DAY + hour).unwrap_err();
    assert_eq!(refusal, Refusal::OldFile { hours: 25 });
    let path = machine.key_file(hour).path;
    let modified = SystemTime::now() + DAY + 2 * hour;
    let ahead = state.outbound(fingerprint(1), SPI, SHORT, &KeyFileFacts { path, modified });
    assert_eq!(ahead.unwrap_err().reason, Refusal::FutureFile { hours: 25 });
    assert!(!machine.witness().exists() && !machine.record(1).exists(), "nothing was taken");
    assert_eq!(counter(&machine, &mut state, 1, DAY - hour).unwrap().draw(1).whole(), Ok(1));
}

#[test]
fn damaged_records_are_refused_and_stay_in_the_way() {
    for damaged in ["record", "witness"] {
        let mut machine = Machine::new();
        let mut state = machine.open();
        new_key(&machine, &mut state);
        drop(state);
        let path = if damaged == "record" { machine.record(1) } else { machine.witness() };
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("4194304", "4194305")).unwrap();
        for _ in 0..2 {
            machine.reboot();
            let mut state = machine.open();
            let refusal = counter(&machine, &mut state, 1, Duration::ZERO).unwrap_err();
            assert!(matches!(refusal, Refusal::Damaged { .. }), "{refusal:?}");
            if damaged == "record" {
                let _ = std::fs::remove_file(machine.witness());
            }
        }
    }
}

#[test]
fn damaged_run_record_is_set_aside_and_the_durable_one_goes_on() {
    for damage in ["magic", "version", "check", "cut"] {
        let machine = Machine::new();
        let mut state = machine.open();
        new_key(&machine, &mut state).draw(64).whole().unwrap();
        drop(state);
        let path = machine.run().join("keystate");
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "magic" => bytes[0] ^= 1,
            "version" => bytes[8] ^= 2,
            "check" => bytes[24] ^= 1,
            _ => bytes.truncate(100),
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut state = machine.open();
        // One that was cut too, though its header may be whole: half a place says less than was
        // used.
        let expected = vec![Notice::SetAside { path: machine.run().join("keystate.bad") }];
        assert_eq!(state.take_notices(), expected, "{damage}");
        let key = old_key(&machine, &mut state).unwrap();
        assert_eq!(key.draw(1).whole(), Ok(RESERVATION_STEP + 1), "{damage}");
    }
}

#[test]
fn second_daemon_is_told_the_pid_of_the_first() {
    let machine = Machine::new();
    let state = machine.open();
    let pid = Some(std::process::id());
    let lock = machine.sequence().join("lock");
    assert_eq!(machine.try_open().err(), Some(KeyStateError::InUse { path: lock, pid }));
    // With a state directory of its own it still has not its own run directory.
    let host = HostIdentity::new("machine 1", "boot 1");
    let other = machine.root.path().join("other");
    let error = KeyState::open_as(&machine.run(), &other, &host).err();
    let path = machine.run().join("keystate");
    assert_eq!(error, Some(KeyStateError::InUse { path, pid }));
    let text = error.unwrap().to_string();
    assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
    drop(state);
    machine.open();
}

#[test]
fn state_stays_locked_while_anyone_may_count() {
    let machine = Machine::new();
    let mut state = machine.open();
    let key = new_key(&machine, &mut state);
    drop(state);
    assert!(matches!(machine.try_open().err(), Some(KeyStateError::InUse { .. })));
    assert_eq!(key.draw(1).whole(), Ok(1));
}

#[test]
fn directory_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    drop(machine.open());
    std::fs::set_permissions(machine.run(), PermissionsExt::from_mode(0o777)).unwrap();
    let error = machine.try_open().err().expect("refused").to_string();
    assert!(error.contains("mode 0777"), "{error}");
}

#[test]
fn key_is_used_in_one_direction() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let file = machine.key_file(Duration::ZERO);
    let key = state.outbound(fingerprint(1), SPI, SHORT, &file).unwrap();
    let opened = state.inbound(fingerprint(1), SPI, 64, SHORT).unwrap_err();
    assert_eq!((opened.reason, opened.usage), (Refusal::OtherDirection, KeyUse::Opens));
    let opening = window(&mut state, 64).unwrap();
    opening.commit(7).unwrap();
    let sealed = state.outbound(fingerprint(2), SPI, SHORT, &file).unwrap_err();
    assert_eq!(sealed.reason, Refusal::OtherDirection);
    drop((key, opening));
    state.close().unwrap();
    machine.reboot();
    let mut state = machine.open();
    assert!(state.inbound(fingerprint(1), SPI, 64, SHORT).is_err());
    assert!(state.outbound(fingerprint(2), SPI, SHORT, &file).is_err());
}

#[test]
fn replay_window_goes_on_after_a_kill_and_after_a_reboot() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let first = window(&mut state, 64).unwrap();
    for number in [1, 2, 5, 100, 99] {
        first.commit(number).unwrap();
    }
    drop((first, state));
    let mut state = machine.open();
    let second = window(&mut state, 64).unwrap();
    assert_eq!(second.right_edge(), 100);
    for (number, accepted) in [(100, false), (99, false), (5, false), (98, true), (101, true)] {
        assert_eq!(second.commit(number).is_ok(), accepted, "{number}");
    }
    drop(second);
    state.close().unwrap();
    machine.reboot();
    let mut state = machine.open();
    let third = window(&mut state, 64).unwrap();
    for number in 0..=101 {
        assert!(third.commit(number).is_err(), "{number} was or may have been received");
    }
    for number in [164, 103, 102, 128, 127, 129] {
        assert!(third.commit(number).is_ok(), "{number} was not");
    }
}

#[test]
fn window_of_another_size_remembers_what_the_first_one_received() {
    let machine = Machine::new();
    let mut state = machine.open();
    let small = window(&mut state, 64).unwrap();
    for number in [10, 5000, 5001] {
        small.commit(number).unwrap();
    }
    let large = window(&mut state, 4096).unwrap();
    assert!(Arc::ptr_eq(&small, &window(&mut state, 64).unwrap()));
    // Both are in use while workers pass from one to the other.
    assert!(large.commit(5000).is_err());
    assert_eq!(large.commit(4990), Ok(Advance::Inside));
    assert!(small.commit(4990).is_err());
    assert_eq!(small.commit(5010), Ok(Advance::Moved));
    assert!(large.commit(5010).is_err());
    assert_eq!(large.commit(1000), Ok(Advance::Inside), "left of the small one only");
    assert!(window(&mut state, 33).is_err_and(|r| matches!(r.reason, Refusal::Window(_))));
}

#[test]
fn windows_committed_to_by_several_workers_accept_each_number_once() {
    let machine = Machine::new();
    let mut state = machine.open();
    let windows = [window(&mut state, 64).unwrap(), window(&mut state, 1024).unwrap()];
    const LAST: u64 = 20_000;
    let accept_all = |window: &ReplayWindow| {
        (1..=LAST).filter(|number| window.commit_shared(*number).is_ok()).collect::<Vec<_>>()
    };
    let mut accepted: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            windows.iter().map(|window| scope.spawn(move || accept_all(window))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let before = accepted.len();
    accepted.sort_unstable();
    accepted.dedup();
    assert_eq!(accepted.len(), before, "a number was accepted twice");
    assert!(accepted.contains(&LAST));
}

#[test]
fn nothing_on_disk_holds_a_key() {
    let machine = Machine::new();
    let mut state = machine.open();
    let bytes = *b"twentyBytesOfKeySalt";
    let secret = KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint();
    let file = machine.key_file(Duration::ZERO);
    let key = state.outbound(secret, SPI, SHORT, &file).unwrap();
    let other = state.inbound(fingerprint(5), SPI, 64, SHORT).unwrap();
    other.commit(1).unwrap();
    drop((key, other));
    state.close().unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut looked_at = 0;
    for directory in
        [machine.root.path().to_owned(), machine.run(), machine.state(), machine.sequence()]
    {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if !entry.file_type().unwrap().is_file() {
                continue;
            }
            let content = std::fs::read(entry.path()).unwrap();
            for needle in [&bytes[..16], &hex.as_bytes()[..32], [5; 16].as_slice()] {
                let found = content.windows(needle.len()).any(|window| window == needle);
                assert!(!found, "{:?}", entry.path());
            }
            looked_at += 1;
        }
    }
    assert_eq!(looked_at, 7, "keystate, named-keys, put-keys, lock, record, edges, witness");
}

#[test]
fn full_table_refuses_until_places_are_idle_and_forgets_nothing() {
    let machine = Machine::new();
    let mut state = machine.open();
    let of = |number: u32| {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint()
    };
    let sealing = new_key(&machine, &mut state);
    sealing.draw(9).whole().unwrap();
    let mut windows: Vec<_> =
        (0..MAX_SAS).map(|number| state.inbound(of(number), SPI, 64, SHORT).unwrap()).collect();
    windows[4].commit(1000).unwrap();
    let full = state.inbound(of(MAX_SAS), SPI, 64, SHORT).unwrap_err();
    assert_eq!(full.reason, Refusal::NoPlace { slots: MAX_SAS });
    assert!(counter(&machine, &mut state, 3, Duration::ZERO).is_ok(), "the other direction");
    // A few are idle now; the one that seals too.
    windows.drain(3..6);
    drop(sealing);
    let late = state.inbound(of(MAX_SAS), SPI, 64, SHORT).unwrap();
    assert_eq!(late.commit(1), Ok(Advance::Moved));
    let again = state.inbound(of(4), SPI, 64, SHORT).unwrap();
    assert_eq!(again.right_edge(), 1000);
    assert!(again.commit(990).is_err(), "whether it came is not known any more");
    assert_eq!(again.commit(1001), Ok(Advance::Moved));
    let sealing = old_key(&machine, &mut state).unwrap();
    assert_eq!(sealing.draw(1).whole(), Ok(RESERVATION_STEP + 1), "on from the durable record");
    assert!(windows[0].commit(1).is_ok(), "those in use are untouched");
}
