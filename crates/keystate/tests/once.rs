//! Keys that are put over the API: each seals for one SA, whatever happens until the next boot.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::SystemTime;

use ipsec::{Fingerprint, KeyMaterial, SequenceNumbers, Spi, Suite};
use keystate::{HostIdentity, KeyFileFacts, KeyState, KeyUsed, Refusal};
use proptest::prelude::*;

const SPI: Spi = Spi::LOWEST;
const SHORT: SequenceNumbers = SequenceNumbers::Short;

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

    fn key_file(&self) -> KeyFileFacts {
        KeyFileFacts { path: self.root.path().join("a.keys"), modified: SystemTime::now() }
    }
}

fn key(seed: u8) -> Fingerprint {
    KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
}

#[test]
fn key_is_put_once_over_restarts_and_kills() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    assert_eq!(state.use_once(key(1)).unwrap().fingerprint(), key(1));
    let again = KeyUsed::PutBefore { fingerprint: key(1) };
    assert!(again.is_met_before());
    assert_eq!(state.use_once(key(1)), Err(again.clone()));
    drop(state);
    let mut state = machine.open();
    assert_eq!(state.use_once(key(1)), Err(again.clone()));
    state.close().unwrap();
    let mut state = machine.open();
    assert_eq!(state.use_once(key(1)), Err(again));
    assert!(state.use_once(key(2)).is_ok());
    drop(state);
    // A peer makes new keys after a boot; /run was not emptied.
    machine.boot += 1;
    assert!(machine.open().use_once(key(1)).is_ok());
}

#[test]
fn several_keys_are_taken_together_or_not_at_all() {
    let machine = Machine::new();
    let mut state = machine.open();
    let _ = state.use_once(key(2)).unwrap();
    let refused = |seed| Err(KeyUsed::PutBefore { fingerprint: key(seed) });
    assert_eq!(state.use_all_once(&[key(1), key(2)]), refused(2));
    assert_eq!(state.use_all_once(&[key(1), key(3), key(1)]), refused(1));
    let taken = state.use_all_once(&[key(1), key(3)]).unwrap();
    assert_eq!(taken.iter().map(|once| once.fingerprint()).collect::<Vec<_>>(), [key(1), key(3)]);
    assert_eq!(state.use_all_once(&[]), Ok(vec![]));
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
    assert_eq!([1, 2].map(|seed| state.use_once(key(seed))), [1, 2].map(refused));
    let _ = state.use_once(key(3)).unwrap();
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
    assert_eq!([1, 2].map(|seed| state.use_once(key(seed))), [1, 2].map(refused));
}

#[test]
fn lost_or_damaged_file_refuses_new_keys_and_no_others() {
    for damage in ["lost", "emptied", "changed"] {
        let machine = Machine::new();
        let mut state = machine.open();
        let file = machine.key_file();
        drop(state.outbound(key(1), SPI, SHORT, &file).unwrap());
        let _ = state.use_all_once(&[key(2), key(3)]).unwrap();
        drop(state);
        let path = machine.run().join("keys-used");
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "lost" => std::fs::remove_file(&path).unwrap(),
            "emptied" => std::fs::write(&path, "").unwrap(),
            _ => {
                bytes[70] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
        for _ in 0..2 {
            let mut state = machine.open();
            let damaged = KeyUsed::Damaged { path: path.clone() };
            assert!(!damaged.is_met_before());
            assert_eq!(state.use_once(key(4)), Err(damaged), "{damage}");
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

    /// Against a set: puts of few keys, kills, torn records and boots.
    #[test]
    fn no_key_is_put_twice_in_a_boot(
        steps in prop::collection::vec((0u8..8, prop::collection::vec(0u8..40, 1..4)), 1..60),
    ) {
        let mut machine = Machine::new();
        let mut state = machine.open();
        let mut put = HashSet::new();
        for (step, keys) in steps {
            match step {
                0 => {
                    drop(state);
                    let path = machine.run().join("keys-used");
                    let mut bytes = std::fs::read(&path).unwrap();
                    // Killed amid a record.
                    bytes.extend(vec![7; usize::from(keys[0]) % 16]);
                    std::fs::write(&path, bytes).unwrap();
                    state = machine.open();
                }
                1 => {
                    drop(state);
                    machine.boot += 1;
                    put.clear();
                    state = machine.open();
                }
                _ => {
                    let distinct: HashSet<u8> = keys.iter().copied().collect();
                    let is_new = distinct.len() == keys.len() && put.is_disjoint(&distinct);
                    let all: Vec<Fingerprint> = keys.iter().map(|seed| key(*seed)).collect();
                    prop_assert_eq!(state.use_all_once(&all).is_ok(), is_new);
                    if is_new {
                        put.extend(distinct);
                    }
                }
            }
        }
    }
}
