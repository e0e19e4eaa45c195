//! The map under its writer and a reader in every order that the memory model allows (loom): keys
//! of one word, values of two, four buckets of one place.

use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, Ordering};

use super::{Hash, Map, Word, Writer};

impl Word for AtomicU64 {
    fn new() -> Self {
        AtomicU64::new(0)
    }

    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}

type Small = Map<AtomicU64, 1, 2, 1, 1>;

/// The last two digits of a key are its buckets. All keys have the same tag.
fn hash(key: &[u64; 1]) -> Hash {
    let [first, second] = [key[0] / 10 % 10, key[0] % 10];
    Hash(second << 20 | first)
}

/// Acts of the writer, in order. A value is put as two equal words.
#[derive(Clone, Copy)]
enum Act {
    Insert(u64, u64),
    Replace(u64, u64),
    Remove(u64),
}
use Act::{Insert, Remove, Replace};

fn act(map: &Small, writer: &mut Writer, act: Act) {
    let key = match act {
        Insert(key, _) | Replace(key, _) | Remove(key) => [key],
    };
    let with_hash = (&key, hash(&key));
    match (act, map.locate(&key, hash(&key))) {
        (Insert(_, value), None) => {
            map.insert(writer, with_hash, &[value; 2], hash).expect("a place for it");
        }
        (Replace(_, value), Some(at)) => {
            map.replace(writer, at, with_hash, &[value; 2]).expect("a record for it");
        }
        (Remove(_), Some(at)) => map.remove(writer, at),
        _ => panic!("key {key:?} is not as the test says"),
    }
}

/// Runs the writer beside a reader that finds keys, in every order, after acts that were alone.
/// `is_right` judges what was found; all that are `wanted` are found in some order.
fn in_every_order(
    before: &'static [Act],
    beside: &'static [Act],
    finds: &'static [u64],
    is_right: fn(&[Option<u64>]) -> bool,
    wanted: &[&[Option<u64>]],
) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let seen = all.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let map = Arc::new(Small::new(4, 4).expect("memory"));
        let mut writer = Writer::default();
        before.iter().for_each(|it| act(&map, &mut writer, *it));
        let reader = {
            let map = map.clone();
            loom::thread::spawn(move || {
                let found = finds.iter().map(|key| {
                    let value = map.find(&[*key], hash(&[*key]));
                    value.map(|[one, other]| {
                        assert_eq!(one, other, "both words are of one value");
                        one
                    })
                });
                found.collect::<Vec<_>>()
            })
        };
        beside.iter().for_each(|it| act(&map, &mut writer, *it));
        let found = reader.join().expect("it does not panic");
        assert!(is_right(&found), "{found:?}");
        seen.lock().expect("nobody has panicked").push(found);
    });
    let seen = all.lock().expect("nobody has panicked");
    for wanted in wanted {
        assert!(seen.iter().any(|seen| seen == wanted), "{wanted:?} never came");
    }
}

#[test]
fn a_value_that_changes_is_found_before_and_after_and_never_in_parts() {
    in_every_order(
        &[Insert(1, 100)],
        &[Replace(1, 101), Replace(1, 102)],
        &[1, 1],
        |found| found.iter().all(Option::is_some) && found.is_sorted(),
        &[&[Some(100), Some(100)], &[Some(100), Some(102)], &[Some(102), Some(102)]],
    );
}

#[test]
fn a_record_that_passes_to_another_key_is_found_by_its_own_key_only() {
    in_every_order(
        &[Insert(1, 100)],
        &[Remove(1), Insert(101, 200)],
        &[1, 101],
        |found| matches!(found, [Some(100) | None, Some(200) | None]),
        &[&[Some(100), Some(200)], &[None, Some(200)], &[Some(100), None], &[None, None]],
    );
}

#[test]
fn a_key_that_moves_to_its_other_bucket_is_found_all_the_time() {
    // Key 10 is in bucket 0 and goes to bucket 1, where it is looked for first.
    in_every_order(
        &[Insert(13, 1), Insert(10, 100), Remove(13), Insert(23, 3)],
        &[Insert(2, 200), Remove(2)],
        &[10, 2],
        |found| matches!(found, [Some(100), Some(200) | None]),
        &[&[Some(100), Some(200)], &[Some(100), None]],
    );
    // The other way round.
    in_every_order(
        &[Insert(1, 100), Insert(23, 3)],
        &[Insert(2, 200)],
        &[1, 2],
        |found| matches!(found, [Some(100), Some(200) | None]),
        &[&[Some(100), Some(200)], &[Some(100), None]],
    );
}

#[test]
fn a_key_that_is_removed_and_inserted_again_has_its_old_value_or_none_before_its_new_one() {
    in_every_order(
        &[Insert(1, 100)],
        &[Remove(1), Insert(1, 101)],
        &[1, 1],
        |found| !matches!(found, [Some(101), Some(100) | None] | [None, Some(100)]),
        &[&[Some(100), None], &[None, Some(101)], &[Some(100), Some(101)]],
    );
}
