//! Keys that are put while the gateway runs: each seals for one SA.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ipsec::{Fingerprint, KeyMaterial, SequenceNumbers, Spi, Suite};
use keystate::KeyOrigin::{AnyTime, Ike, NamedRun};
use keystate::{Clocks, HostIdentity, KeyFileFacts, KeyState, KeyUsed, Refusal};
use proptest::prelude::*;

const SPI: Spi = Spi::LOWEST;
const SHORT: SequenceNumbers = SequenceNumbers::Short;

/// A boot clock that the test sets.
struct SetClock(Arc<AtomicU64>);

impl Clocks for SetClock {
    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

struct Machine {
    root: tempfile::TempDir,
    boot: u32,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Machine { root, boot: 1 }
    }

    fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn open(&self) -> KeyState {
        let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
        KeyState::open_as(&self.run(), &self.root.path().join("state"), &host).unwrap()
    }

    fn open_at(&self) -> (KeyState, Arc<AtomicU64>) {
        let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
        let time = Arc::<AtomicU64>::default();
        let clocks = Box::new(SetClock(time.clone()));
        let (run, state) = (self.run(), self.root.path().join("state"));
        (KeyState::open_with(&run, &state, &host, clocks).unwrap(), time)
    }

    fn key_file(&self) -> KeyFileFacts {
        KeyFileFacts { path: self.root.path().join("a.keys"), modified: SystemTime::now() }
    }
}

fn key(seed: u8) -> Fingerprint {
    KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
}

/// A memory file of keys by hand survives the boot; once such a key sealed twice under one number.
#[test]
fn key_of_any_time_is_put_once_over_kills_boots_and_an_empty_run_directory() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    assert_eq!(state.use_once(key(1), AnyTime).unwrap().fingerprint(), key(1));
    let again = KeyUsed::PutBefore { fingerprint: key(1) };
    assert!(again.is_met_before());
    let all = [AnyTime, NamedRun, Ike];
    for step in ["same run", "killed", "closed", "booted", "run directory emptied"] {
        match step {
            "same run" => {}
            "closed" => {
                state.close().unwrap();
                state = machine.open();
            }
            step => {
                drop(state);
                machine.boot += u32::from(step == "booted");
                if step == "run directory emptied" {
                    std::fs::remove_dir_all(machine.run()).unwrap();
                    machine.boot += 1;
                }
                state = machine.open();
            }
        }
        for origin in all {
            assert_eq!(state.use_once(key(1), origin), Err(again.clone()), "{step}, {origin:?}");
        }
    }
    assert_eq!(state.key_counts().put, 1);
    assert!(state.use_once(key(2), AnyTime).is_ok());
    // Fewer keys than were put: the state directory went back within a boot.
    drop(state);
    let path = machine.root.path().join("state/put-keys");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 24]).unwrap();
    let damaged = KeyUsed::Damaged { path };
    assert_eq!(machine.open().use_once(key(3), AnyTime), Err(damaged));
}

#[test]
fn keys_of_a_named_run_last_until_the_boot_and_keys_of_ike_until_minutes_after_their_sas() {
    let mut machine = Machine::new();
    let (mut state, time) = machine.open_at();
    let _ = state.use_once(key(1), NamedRun).unwrap();
    let _ = state.use_all_once(&[key(2), key(3)], Ike).unwrap();
    let minutes = |count: u64| time.fetch_add(count * 60_000_000_000, Ordering::Relaxed);
    let is_known =
        |state: &mut KeyState| [1, 2, 3].map(|seed| state.use_once(key(seed), AnyTime).is_err());
    assert!(!state.is_sweep_due());
    for _ in 0..3 {
        minutes(5);
        assert!(state.is_sweep_due());
        state.forget_ended_keys([key(2)].into_iter());
    }
    assert!(state.use_once(key(3), Ike).is_ok());
    assert_eq!(is_known(&mut state), [true; 3]);
    assert!(!machine.run().join("keys-used").exists());
    drop(state);
    // The person drops the name of the run that is refused; a new key file has the key.
    let mut state = machine.open();
    let file = machine.key_file();
    let sealed = state.outbound(key(1), SPI, SHORT, &file).unwrap_err();
    assert_eq!(sealed.reason, Refusal::PutOverApi);
    let opened = state.inbound(key(1), SPI, 64, SHORT).unwrap_err();
    assert_eq!(opened.reason, Refusal::OtherDirection);
    assert_eq!(is_known(&mut state), [true, false, false]);
    drop(state);
    machine.boot += 1;
    // Not covered: the boot.
    assert!(machine.open().use_once(key(1), AnyTime).is_ok());
}

/// `sa put` of SAs that a named put began once recorded nothing: after a boot the same request was
/// taken, from number 1.
#[test]
fn keys_of_running_sas_in_a_put_of_any_time_are_remembered_for_ever() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let _ = state.use_all_once(&[key(1), key(2)], NamedRun).unwrap();
    assert_eq!(state.use_all_once_beside(&[], &[key(1)], NamedRun), Ok(vec![]));
    assert_eq!(state.key_counts().put, 0);
    for _ in 0..2 {
        assert_eq!(state.use_all_once_beside(&[], &[key(1), key(2)], AnyTime), Ok(vec![]));
        assert_eq!(state.key_counts().put, 2);
    }
    let fresh = state.use_all_once_beside(&[key(3)], &[key(1)], AnyTime).unwrap();
    assert_eq!((fresh.len(), state.key_counts().put), (1, 3));
    drop(state);
    machine.boot += 1;
    let mut state = machine.open();
    for seed in 1..=3 {
        assert!(state.use_once(key(seed), AnyTime).unwrap_err().is_met_before());
    }
}

/// A file of the run directory that lost keys once counted as empty.
#[test]
fn lost_keys_of_this_boot_refuse_puts_of_any_time_until_the_next_boot() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let _ = state.use_once(key(1), NamedRun).unwrap();
    drop(state);
    let path = machine.run().join("named-keys");
    std::fs::remove_file(&path).unwrap();
    let mut state = machine.open();
    let damaged = Err(KeyUsed::DamagedUntilBoot { path });
    assert_eq!(state.use_once(key(2), AnyTime), damaged);
    assert_eq!(state.use_once(key(3), NamedRun), damaged);
    assert!(state.use_once(key(4), Ike).is_ok());
    drop(state);
    machine.boot += 1;
    let mut state = machine.open();
    assert!(state.use_once(key(2), AnyTime).is_ok() && state.use_once(key(3), NamedRun).is_ok());
}

#[test]
fn several_keys_are_taken_together_or_not_at_all() {
    let machine = Machine::new();
    let mut state = machine.open();
    for (origin, base) in [(AnyTime, 0), (NamedRun, 10), (Ike, 20)] {
        let [one, two, three] = [1, 2, 3].map(|seed| key(base + seed));
        let _ = state.use_once(two, origin).unwrap();
        let refused = |fingerprint| Err(KeyUsed::PutBefore { fingerprint });
        assert_eq!(state.use_all_once(&[one, two], origin), refused(two));
        assert_eq!(state.use_all_once(&[one, three, one], origin), refused(one));
        let taken = state.use_all_once(&[one, three], origin).unwrap();
        assert_eq!(taken.iter().map(|once| once.fingerprint()).collect::<Vec<_>>(), [one, three]);
        assert_eq!(state.use_all_once(&[], origin), Ok(vec![]));
    }
}

#[test]
fn key_of_a_file_is_not_put_and_a_key_that_was_put_is_not_taken_from_a_file() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let file = machine.key_file();
    let counter = state.outbound(key(1), SPI, SHORT, &file).unwrap();
    let window = state.inbound(key(2), SPI, 64, SHORT).unwrap();
    window.commit(1).unwrap();
    let refused = |seed| Err(KeyUsed::FileKey { fingerprint: key(seed) });
    assert_eq!([1, 2].map(|seed| state.use_once(key(seed), NamedRun)), [1, 2].map(refused));
    let _ = state.use_once(key(3), AnyTime).unwrap();
    let sealed = state.outbound(key(3), SPI, SHORT, &file).unwrap_err();
    assert_eq!(sealed.reason, Refusal::PutOverApi);
    let opened = state.inbound(key(3), SPI, 64, SHORT).unwrap_err();
    assert_eq!(opened.reason, Refusal::OtherDirection);
    drop((counter, window));
    state.close().unwrap();
    // The durable records know the keys of files.
    machine.boot += 1;
    std::fs::remove_dir_all(machine.run()).unwrap();
    let mut state = machine.open();
    assert_eq!([1, 2].map(|seed| state.use_once(key(seed), NamedRun)), [1, 2].map(refused));
}

#[test]
fn lost_or_damaged_file_refuses_new_keys_and_no_others() {
    for damage in ["lost", "emptied", "changed"] {
        let machine = Machine::new();
        let mut state = machine.open();
        let file = machine.key_file();
        drop(state.outbound(key(1), SPI, SHORT, &file).unwrap());
        let _ = state.use_all_once(&[key(2), key(3)], AnyTime).unwrap();
        drop(state);
        let path = machine.root.path().join("state/put-keys");
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "lost" => std::fs::remove_file(&path).unwrap(),
            "emptied" => std::fs::write(&path, "").unwrap(),
            _ => {
                bytes[70] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
        for round in 0..2 {
            let mut state = machine.open();
            let damaged = KeyUsed::Damaged { path: path.clone() };
            assert!(!damaged.is_met_before());
            assert_eq!(state.use_once(key(4), AnyTime), Err(damaged), "{damage}");
            assert!(state.use_once(key(6), Ike).is_ok(), "{damage}");
            assert!(state.use_once(key(7 + round), NamedRun).is_ok(), "{damage}");
            let refused = state.outbound(key(4), SPI, SHORT, &file).unwrap_err();
            assert_eq!(refused.reason, Refusal::Damaged { path: path.clone() }, "{damage}");
            assert!(state.outbound(key(1), SPI, SHORT, &file).is_ok(), "{damage}");
            assert!(state.inbound(key(5), SPI, 64, SHORT).is_ok(), "{damage}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(32)
    })]

    /// Against sets: puts of few keys, kills, torn records, boots and empty run directories.
    #[test]
    fn no_key_is_put_twice_as_long_as_its_origin_asks_for(
        steps in prop::collection::vec((0u8..8, prop::collection::vec(0u8..40, 1..4)), 1..60),
    ) {
        let mut machine = Machine::new();
        let mut state = machine.open();
        let (mut by_hand, mut of_named, mut of_ike) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        for (step, keys) in steps {
            match step {
                0 => {
                    drop(state);
                    let path = machine.root.path().join("state/put-keys");
                    let mut bytes = std::fs::read(&path).unwrap();
                    // Killed amid a record.
                    bytes.extend(vec![7; usize::from(keys[0]) % 24]);
                    std::fs::write(&path, bytes).unwrap();
                    of_ike.clear();
                    state = machine.open();
                }
                1 => {
                    drop(state);
                    machine.boot += 1;
                    if keys[0] % 2 == 0 {
                        std::fs::remove_dir_all(machine.run()).unwrap();
                    }
                    of_named.clear();
                    of_ike.clear();
                    state = machine.open();
                }
                step => {
                    let origin = [AnyTime, NamedRun, Ike][usize::from(step) % 3];
                    let distinct: HashSet<u8> = keys.iter().copied().collect();
                    let is_new = distinct.len() == keys.len()
                        && by_hand.is_disjoint(&distinct)
                        && of_named.is_disjoint(&distinct)
                        && of_ike.is_disjoint(&distinct);
                    let all: Vec<Fingerprint> = keys.iter().map(|seed| key(*seed)).collect();
                    prop_assert_eq!(state.use_all_once(&all, origin).is_ok(), is_new);
                    if is_new {
                        let put = match origin {
                            AnyTime => &mut by_hand,
                            NamedRun => &mut of_named,
                            _ => &mut of_ike,
                        };
                        put.extend(distinct);
                    }
                }
            }
        }
    }
}
