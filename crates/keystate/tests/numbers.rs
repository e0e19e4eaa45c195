//! Keys whose sequence numbers get another width: the numbers go on, and none is used twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ipsec::SequenceNumbers::{self, Extended, Short};
use ipsec::{Fingerprint, KeyMaterial, SequenceCounter, SequenceError, Spi, Suite};
use keystate::{HostIdentity, KeyFileFacts, KeyState, RESERVATION_STEP, Refusal, TOP_UP_INTERVAL};

/// The last number of 32 bits.
const LAST: u64 = u32::MAX as u64;

struct Machine {
    root: tempfile::TempDir,
    boot: u32,
}

impl Machine {
    fn new() -> Machine {
        Machine { root: tempfile::tempdir().unwrap(), boot: 1 }
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn open(&self) -> KeyState {
        let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
        KeyState::open_as(&self.directory("run"), &self.directory("state"), &host).unwrap()
    }

    fn reboot(&mut self) {
        self.boot += 1;
        std::fs::remove_dir_all(self.directory("run")).unwrap();
    }

    fn seals(
        &self,
        state: &mut KeyState,
        numbers: SequenceNumbers,
    ) -> Result<Arc<SequenceCounter>, Refusal> {
        let file = KeyFileFacts { path: self.directory("k.keys"), modified: SystemTime::now() };
        let counter = state.outbound(fingerprint(1), Spi::LOWEST, numbers, &file);
        counter.map_err(|refused| refused.reason)
    }
}

fn fingerprint(seed: u8) -> Fingerprint {
    KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
}

/// Uses numbers far beyond what a test has time to reserve.
fn use_up_to(counter: &SequenceCounter, number: u64) {
    counter.reserve(number);
    while counter.last() < number {
        counter.draw((number - counter.last()).min(LAST) as u32).whole().unwrap();
    }
}

#[test]
fn longer_numbers_go_on_behind_the_last_short_one_and_back() {
    let machine = Machine::new();
    let mut state = machine.open();
    let short = machine.seals(&mut state, Short).unwrap();
    assert_eq!(short.draw(10).whole(), Ok(1));
    let long = machine.seals(&mut state, Extended).unwrap();
    assert_eq!((long.numbers(), long.draw(5).whole()), (Extended, Ok(11)));
    let again = machine.seals(&mut state, Short).unwrap();
    assert!(Arc::ptr_eq(&short, &again), "one counter a width");
    assert_eq!((short.draw(1).whole(), long.draw(1).whole()), (Ok(16), Ok(17)));
}

#[test]
fn both_widths_are_topped_up_while_both_are_used() {
    let machine = Machine::new();
    let mut state = machine.open();
    let short = machine.seals(&mut state, Short).unwrap();
    let long = machine.seals(&mut state, Extended).unwrap();
    for round in 0..8 {
        state.top_up().unwrap();
        let drawn = RESERVATION_STEP as u32 / 4;
        for counter in [&short, &long] {
            counter.draw(drawn).whole().unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
}

// A thousand new keys, each with two files to sync, are one change of a configuration.
#[test]
fn a_key_that_seals_is_topped_up_while_other_keys_are_taken() {
    let machine = Machine::new();
    let mut state = machine.open();
    let used = machine.seals(&mut state, Short).unwrap();
    used.draw(RESERVATION_STEP as u32).whole().unwrap();
    assert_eq!(used.draw(1).whole(), Err(SequenceError::NotReserved));
    std::thread::sleep(TOP_UP_INTERVAL);
    let file = KeyFileFacts { path: machine.directory("b.keys"), modified: SystemTime::now() };
    let _other = state.outbound(fingerprint(2), Spi::LOWEST, Short, &file).unwrap();
    assert_eq!(used.draw(1).whole(), Ok(RESERVATION_STEP + 1));
}

#[test]
fn a_key_that_went_beyond_32_bits_is_refused_with_short_numbers_for_ever() {
    let mut machine = Machine::new();
    let mut state = machine.open();
    let long = machine.seals(&mut state, Extended).unwrap();
    use_up_to(&long, LAST + 1);
    let beyond = |used| Refusal::BeyondNumbers { used, last: LAST };
    assert_eq!(machine.seals(&mut state, Short).err(), Some(beyond(LAST + 1)));
    assert_eq!(machine.seals(&mut state, Extended).unwrap().draw(1).whole(), Ok(LAST + 2));
    state.top_up().unwrap();
    drop((long, state));
    let mut state = machine.open();
    assert_eq!(machine.seals(&mut state, Short).err(), Some(beyond(LAST + 2)));
    assert_eq!(machine.seals(&mut state, Extended).unwrap().draw(1).whole(), Ok(LAST + 3));
    drop(state);
    machine.reboot();
    let mut state = machine.open();
    let refused = machine.seals(&mut state, Short).err();
    assert!(matches!(refused, Some(Refusal::BeyondNumbers { used, .. }) if used > LAST + 3));
    assert!(machine.seals(&mut state, Extended).unwrap().draw(1).whole().unwrap() > LAST + 3);
}

#[test]
fn the_last_short_number_is_no_end_for_longer_ones() {
    let machine = Machine::new();
    let mut state = machine.open();
    let short = machine.seals(&mut state, Short).unwrap();
    use_up_to(&short, LAST);
    assert!(short.draw(1).whole().is_err());
    assert_eq!(machine.seals(&mut state, Extended).unwrap().draw(1).whole(), Ok(LAST + 1));
    // The counter that still has the old width hands out nothing that was used.
    assert!(short.draw(1).whole().is_err() && short.is_exhausted());
}

#[test]
fn windows_go_on_in_another_width_unless_it_is_too_short() {
    let machine = Machine::new();
    let mut state = machine.open();
    let mut opens = |numbers| state.inbound(fingerprint(2), Spi::LOWEST, 64, numbers);
    let short = opens(Short).unwrap();
    short.commit(1000).unwrap();
    let long = opens(Extended).unwrap();
    assert_eq!(long.right_edge(), 1000);
    assert!(long.commit(1000).is_err(), "a number that was seen under the other width");
    long.commit(LAST).unwrap();
    assert!(opens(Short).is_ok());
    long.commit(LAST + 1).unwrap();
    let refused = opens(Short).err().map(|refused| refused.reason);
    assert_eq!(refused, Some(Refusal::BeyondNumbers { used: LAST + 1, last: LAST }));
    assert!(opens(Extended).is_ok());
}
