use std::sync::Arc;
use std::time::SystemTime;

use ipsec::{Advance, KeyMaterial, ReplayWindow, SequenceNumbers, Spi, Suite};

use super::*;
use crate::words::FILE_BYTES;
use crate::{KeyFileFacts, KeyOrigin, KeyState, RESERVATION_STEP};

const NUMBERS: SequenceNumbers = SequenceNumbers::Extended;

fn key(seed: u32) -> ipsec::Fingerprint {
    let mut bytes = [7; 20];
    bytes[..4].copy_from_slice(&seed.to_be_bytes());
    KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint()
}

struct Machine {
    root: tempfile::TempDir,
    host: HostIdentity,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        Machine { root, host: HostIdentity::new("machine", "boot") }
    }

    fn record(&self) -> PathBuf {
        self.root.path().join("run/keystate")
    }

    fn open(&self) -> KeyState {
        let [run, state] = ["run", "state"].map(|name| self.root.path().join(name));
        KeyState::open_as(&run, &state, &self.host).unwrap()
    }

    fn file(&self) -> KeyFileFacts {
        KeyFileFacts { path: self.root.path().join("a.keys"), modified: SystemTime::now() }
    }

    /// Rewrites the record in an earlier layout. The rings of version 1 mean something else.
    fn make_earlier(&self, version: u64) {
        let file = File::open(self.record()).unwrap();
        let Ok(Layout::Whole(found)) = layouts::read(&file, &self.record()) else { panic!() };
        let slot_words = 8 + if version == 1 { 128 } else { 256 };
        let mut words = layouts::header(version, 8192, &self.host).to_vec();
        words.resize(HEADER_WORDS + 8192 * slot_words, 0);
        words[header::KEY_COUNTS..][..header::KEY_COUNT_WORDS].copy_from_slice(&found.key_counts);
        let mut ring = vec![0; RING_WORDS * 8];
        for (place, owned) in found.slots.iter().enumerate() {
            let Subject { fingerprint, usage } = owned.subject;
            let slot = &mut words[HEADER_WORDS + place * slot_words..][..slot_words];
            slot[0] = state_of(usage);
            slot[1] = (fingerprint >> 64) as u64;
            slot[2] = fingerprint as u64;
            slot[3] = owned.spi;
            slot[4] = slot_check(usage, fingerprint, owned.spi);
            (slot[5], slot[6]) = (owned.reserved, owned.last);
            if version == 2 && usage == KeyUse::Opens {
                file.read_exact_at(&mut ring, bytes(ring_at(owned.number))).unwrap();
                for (word, bytes) in slot[8..].iter_mut().zip(ring.chunks_exact(8)) {
                    *word = u64::from_ne_bytes(*bytes.first_chunk().unwrap());
                }
            }
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(self.record(), bytes).unwrap();
    }
}

#[test]
fn record_of_version_1_says_what_was_used_at_least() {
    let machine = Machine::new();
    let mut before = machine.open();
    let counter = before.outbound(key(1), Spi::LOWEST, NUMBERS, &machine.file()).unwrap();
    counter.draw(64).whole().unwrap();
    for (seed, edge) in [(2, 5000), (3, 1 << 40)] {
        let window = before.inbound(key(seed), Spi::LOWEST, 64, NUMBERS).unwrap();
        window.commit(edge).unwrap();
    }
    // As a killed process leaves it: what is on disk does not know the edges.
    drop((counter, before));
    machine.make_earlier(1);

    // The second time it is of this version, and still says so.
    for _ in 0..2 {
        let mut after = machine.open();
        assert_eq!(after.take_notices(), []);
        for (seed, edge) in [(2, 5000), (3, 1 << 40)] {
            let window = after.inbound(key(seed), Spi::LOWEST, 4096, NUMBERS).unwrap();
            for number in edge - 4100..=edge {
                assert!(window.check(number).is_err(), "{number} may have been received");
            }
            assert_eq!(window.check(edge + 1), Ok(()));
        }
    }
    let mut after = machine.open();
    let window = after.inbound(key(2), Spi::LOWEST, 64, NUMBERS).unwrap();
    assert_eq!(window.commit(5001), Ok(Advance::Moved));
    let counter = after.outbound(key(1), Spi::LOWEST, NUMBERS, &machine.file()).unwrap();
    assert_eq!(counter.draw(1).whole(), Ok(RESERVATION_STEP + 1), "behind what was reserved");
}

#[test]
fn record_of_version_2_goes_on_as_it_was() {
    let machine = Machine::new();
    let mut before = machine.open();
    let counter = before.outbound(key(1), Spi::LOWEST, NUMBERS, &machine.file()).unwrap();
    counter.draw(64).whole().unwrap();
    let window = before.inbound(key(2), Spi::LOWEST, 4096, NUMBERS).unwrap();
    for number in [5000, 4000, 4002] {
        window.commit(number).unwrap();
    }
    let _ = before.use_once(key(3), KeyOrigin::AnyTime).unwrap();
    drop((counter, window, before));
    machine.make_earlier(2);
    // A replacement that another process left half written is in nobody's way.
    std::fs::write(machine.record().with_file_name(".keystate.new"), [7; 5000]).unwrap();

    for round in 0..2 {
        let mut after = machine.open();
        assert_eq!(after.take_notices(), []);
        assert!(after.use_once(key(3), KeyOrigin::AnyTime).is_err());
        let counter = after.outbound(key(1), Spi::LOWEST, NUMBERS, &machine.file()).unwrap();
        assert_eq!(counter.draw(1).whole(), Ok(65 + round));
        let window = after.inbound(key(2), Spi::LOWEST, 4096, NUMBERS).unwrap();
        assert_eq!(window.right_edge(), 5000);
        for (number, is_new) in [(5000, false), (4000, false), (4002, false), (4001, true)] {
            assert_eq!(window.check(number).is_ok(), is_new, "{number}");
        }
        assert!(!machine.record().with_file_name(".keystate.new").exists());
    }
    assert_eq!(std::fs::metadata(machine.record()).unwrap().len(), FILE_BYTES);
}

#[test]
fn record_of_any_layout_that_was_cut_is_set_aside() {
    for version in 1..=3 {
        let machine = Machine::new();
        let mut before = machine.open();
        before.inbound(key(2), Spi::LOWEST, 64, NUMBERS).unwrap().commit(9).unwrap();
        before.close().unwrap();
        if version < 3 {
            machine.make_earlier(version);
        }
        let file = std::fs::OpenOptions::new().write(true).open(machine.record()).unwrap();
        let length = file.metadata().unwrap().len();
        for cut in [length - 1, bytes(HEADER_WORDS), bytes(HEADER_WORDS) - 1, 1] {
            file.set_len(cut).unwrap();
            let mut after = machine.open();
            let path = machine.record().with_extension("bad");
            assert_eq!(after.take_notices(), [Notice::SetAside { path: path.clone() }]);
            let window = after.inbound(key(2), Spi::LOWEST, 64, NUMBERS).unwrap();
            assert_eq!(window.right_edge(), 9, "the durable edge goes on");
            drop((window, after));
            std::fs::rename(path, machine.record()).unwrap();
        }
    }
}

/// Blocks that a file has on disk, bytes.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn record_takes_the_room_of_the_sas_that_it_has() {
    const SAS: u32 = 1000;
    let machine = Machine::new();
    let mut state = machine.open();
    let empty = allocated(&machine.record());
    assert!(empty <= 64 << 10, "{empty} bytes");
    let mut windows: Vec<Arc<ReplayWindow>> = Vec::new();
    for seed in 0..SAS {
        windows.push(state.inbound(key(seed), Spi::LOWEST, 64, NUMBERS).unwrap());
    }
    let inbound = allocated(&machine.record()) - empty;
    assert!(inbound <= u64::from(SAS) * 2176 + (64 << 10), "{inbound} bytes");
    let record = &mut state.run;
    for seed in 0..SAS {
        let subject = Subject { fingerprint: seed.into(), usage: KeyUse::Seals };
        record.take(subject, 256, |_| {}).unwrap().unwrap();
    }
    let outbound = allocated(&machine.record()) - empty - inbound;
    assert!(outbound <= u64::from(SAS) * 128 + (64 << 10), "{outbound} bytes");
    println!("{SAS} SAs: opening {inbound} bytes, sealing {outbound} bytes");
}

#[test]
fn process_killed_while_a_slot_is_taken_leaves_the_other_slots() {
    let machine = Machine::new();
    let mut state = machine.open();
    for seed in 1..=3 {
        let window = state.inbound(key(seed), Spi::LOWEST, 64, NUMBERS).unwrap();
        window.commit(seed.into()).unwrap();
    }
    let file = std::fs::OpenOptions::new().write(true).open(machine.record()).unwrap();
    drop(state);
    // The owner is written, and the state is not: what a kill before the last store leaves.
    let at = bytes(head_at(KeyUse::Opens, 1));
    file.write_all_at(&[0; 8], at).unwrap();
    // The state is there, and a word of the owner is not.
    file.write_all_at(&STATE_OPENS.to_ne_bytes(), bytes(head_at(KeyUse::Opens, 7))).unwrap();
    let mut state = machine.open();
    let mut edge = |seed| {
        let window = state.inbound(key(seed), Spi::LOWEST, 64, NUMBERS).unwrap();
        window.right_edge()
    };
    assert_eq!([1, 2, 3].map(&mut edge), [1, 0, 3]);
    let places: HashSet<u32> = state.run.slots.values().copied().collect();
    assert_eq!(places.len(), state.run.slots.len(), "each has a place of its own");
}
