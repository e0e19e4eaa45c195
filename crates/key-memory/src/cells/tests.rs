//! The memory beside its obvious twin, a map, with a stop at every store.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CELLS: u32 = 24;

/// A change of the memory.
#[derive(Clone, Debug)]
enum Step {
    Store { key: RecordKey, payload: Vec<u8> },
    Remove { key: RecordKey },
}

type Twin = BTreeMap<RecordKey, Vec<u8>>;

fn blank_words() -> &'static [AtomicU64] {
    Box::leak((0..memory_words(CELLS)).map(|_| AtomicU64::new(0)).collect())
}

fn key(id: u64) -> RecordKey {
    RecordKey { kind: 7, id }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![0usize..40, 950usize..970, 1900usize..2900];
    let payload = (length, 1u8..).prop_map(|(length, byte)| vec![byte; length]);
    let store = (0u64..4, payload).prop_map(|(id, payload)| Step::Store { key: key(id), payload });
    let remove = (0u64..4).prop_map(|id| Step::Remove { key: key(id) });
    prop::collection::vec(prop_oneof![3 => store, 1 => remove], 1..8)
}

fn apply(step: &Step, memory: &mut Cells) {
    match step {
        Step::Store { key, payload } => memory.store(*key, payload).unwrap(),
        Step::Remove { key } => memory.remove(*key),
    }
}

fn apply_to_twin(step: &Step, twin: &mut Twin) {
    match step {
        Step::Store { key, payload } => drop(twin.insert(*key, payload.clone())),
        Step::Remove { key } => drop(twin.remove(key)),
    }
}

fn content(memory: &Cells) -> Twin {
    memory.records().into_iter().map(|record| (record.key, record.payload.to_vec())).collect()
}

/// Payload words that are not zero, outside of the cells of whole records.
fn leftover_words(memory: &Cells) -> usize {
    let owned: Vec<u32> =
        memory.records.values().flat_map(|place| memory.chain(place.first).unwrap()).collect();
    let words = |cell| (0..CELL_WORDS).filter(move |place| memory.field(cell, *place) != 0);
    (0..CELLS).filter(|cell| !owned.contains(cell)).flat_map(words).count()
}

/// Stores that all steps need.
fn count_stores(steps: &[Step]) -> u64 {
    let mut memory = Cells::format(blank_words(), CELLS);
    steps.iter().for_each(|step| apply(step, &mut memory));
    u64::MAX - memory.words.stores_left
}

/// Stops after this many stores, and returns the memory that the next process recovers.
fn stop_after(stores: u64, steps: &[Step]) -> (Cells, Twin, Twin) {
    let words = blank_words();
    let mut memory = Cells::format(words, CELLS);
    memory.words.stores_left = stores;
    let (mut before, mut after) = (Twin::new(), Twin::new());
    for step in steps {
        before.clone_from(&after);
        apply_to_twin(step, &mut after);
        apply(step, &mut memory);
        if memory.words.stores_left == 0 {
            break;
        }
    }
    (Cells::recover(words, CELLS).unwrap(), before, after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_stop_at_any_store_leaves_each_record_whole_or_absent(steps in steps()) {
        for stores in 0..count_stores(&steps) {
            let (memory, before, after) = stop_after(stores, &steps);
            let found = content(&memory);
            prop_assert!(found == before || found == after, "stop after {stores} stores");
            prop_assert_eq!(leftover_words(&memory), 0, "stop after {} stores", stores);
        }
    }

    #[test]
    fn a_recovered_memory_goes_on_like_its_twin(
        first in steps(), second in steps(), share in 0.0..1.0,
    ) {
        let stores = (count_stores(&first) as f64 * share) as u64;
        let (mut memory, ..) = stop_after(stores, &first);
        let mut twin = content(&memory);
        for step in &second {
            apply(step, &mut memory);
            apply_to_twin(step, &mut twin);
            prop_assert_eq!(content(&memory), twin.clone());
        }
        prop_assert_eq!(leftover_words(&memory), 0);
    }

    #[test]
    fn any_words_recover_without_a_panic(
        words in prop::collection::vec((512usize..1400, any::<u64>()), 0..40),
        states in prop::collection::vec((0u32..8, 0u64..10, 0u64..9000), 0..8),
    ) {
        let memory = blank_words();
        let mut cells = Cells::format(memory, CELLS);
        cells.words.store(header::USED, 8);
        for (at, value) in words {
            cells.words.store(at, value);
        }
        for (cell, next, length) in states {
            let state = if next % 2 == 0 { STATE_RECORD } else { STATE_CONTINUATION };
            cells.set(cell, field::STATE, state);
            cells.set(cell, field::NEXT, if next > 7 { LAST_CELL } else { next });
            cells.set(cell, field::KIND_LENGTH, length);
        }
        let recovered = Cells::recover(memory, CELLS).unwrap();
        prop_assert!(recovered.records().len() <= 8);
    }
}

#[test]
fn a_full_memory_keeps_the_old_version() {
    let mut memory = Cells::format(blank_words(), CELLS);
    for id in 0..u64::from(CELLS) {
        memory.store(key(id), b"old").unwrap();
    }
    assert_eq!(memory.store(key(3), b"new"), Err(StoreRefused::Full));
    assert_eq!(content(&memory)[&key(3)], b"old");
    memory.remove(key(9));
    memory.store(key(3), b"new").unwrap();
    assert_eq!(content(&memory)[&key(3)], b"new");
    let length = MAX_PAYLOAD + 1;
    assert_eq!(memory.store(key(3), &vec![1; length]), Err(StoreRefused::TooLong(length)));
}

#[test]
fn records_come_in_the_order_of_their_stores_after_a_recovery() {
    let words = blank_words();
    let mut memory = Cells::format(words, CELLS);
    for id in [5, 1, 9] {
        memory.store(key(id), &[1; MAX_PAYLOAD / 2]).unwrap();
    }
    memory.store(key(5), b"moved").unwrap();
    let recovered = Cells::recover(words, CELLS).unwrap();
    let order: Vec<u64> = recovered.records().iter().map(|record| record.key.id).collect();
    assert_eq!(order, [1, 9, 5]);
}

#[test]
fn memory_of_another_layout_or_size_is_foreign() {
    assert!(Cells::recover(blank_words(), CELLS).is_none());
    let words = blank_words();
    drop(Cells::format(words, CELLS - 1));
    assert!(Cells::recover(words, CELLS).is_none());
    let words = blank_words();
    Cells::format(words, CELLS).words.store(header::USED, u64::from(CELLS) + 1);
    assert!(Cells::recover(words, CELLS).is_none());
}

#[test]
fn an_erased_memory_holds_no_record_and_no_byte() {
    let words = blank_words();
    let mut memory = Cells::format(words, CELLS);
    for id in 0..4 {
        memory.store(key(id), &[1; 2000]).unwrap();
    }
    memory.erase();
    assert_eq!((memory.records().len(), leftover_words(&memory)), (0, 0));
    assert!(Cells::recover(words, CELLS).unwrap().records().is_empty());
}
