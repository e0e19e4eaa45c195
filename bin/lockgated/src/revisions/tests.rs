//! Revisions over restarts, over faults of their store, and from files of earlier versions.

use std::sync::atomic::{AtomicBool, Ordering};

use store::{MemoryStore, RevisionLine};

use super::*;

/// A store in memory whose writes fail while `refuses` is set.
#[derive(Default)]
struct Faulty {
    inner: MemoryStore,
    refuses: Arc<AtomicBool>,
}

impl store::Revisions for Faulty {
    fn put_revisions(&mut self, batch: &[store::Revision]) -> Result<(), StoreError> {
        match self.refuses.load(Ordering::SeqCst) {
            true => Err(StoreError::Full { path: "faulty".into() }),
            false => self.inner.put_revisions(batch),
        }
    }

    fn revisions(&self) -> Result<Vec<RevisionLine>, StoreError> {
        self.inner.revisions()
    }

    fn revision(&self, number: u64) -> Result<Vec<store::Revision>, StoreError> {
        self.inner.revision(number)
    }

    fn forget_revisions(&mut self, below: u64) -> Result<usize, StoreError> {
        self.inner.forget_revisions(below)
    }
}

/// Revisions upon a store that can be told to refuse.
fn faulty() -> (Revisions, Arc<AtomicBool>) {
    let store = Faulty::default();
    let refuses = store.refuses.clone();
    (Revisions::of(Box::new(store)).unwrap(), refuses)
}

/// Closes a store and opens it again.
fn reopened(revisions: Revisions, directory: &tempfile::TempDir) -> Revisions {
    drop(revisions);
    Revisions::open(directory.path()).unwrap()
}

fn revision(number: u64) -> Revision {
    Revision {
        number,
        time: SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123),
        uid: 1000,
        cause: Cause::Rollback,
        file: "a \"b\"\n.toml".into(),
        base: PathBuf::from("/etc/x y"),
        changes: 3,
        restored: None,
        confirmation: Confirmation::Asked,
    }
}

fn text(number: u64) -> Body {
    let key = format!("out 0x00000100 {number:032x}");
    let keys = [("a \"peer\"".to_owned(), vec![key])].into();
    Body { text: format!("[node]\nname = \"{number}\"\n"), keys }
}

fn edit(number: u64) -> PolicyEdit {
    let add = format!("[[policy]]\nname = \"p{number}\"\n");
    PolicyEdit { remove: vec![format!("\"{number}\"")], add }
}

fn try_keep(revisions: &mut Revisions, number: u64, body: Body) -> Result<(), RevisionError> {
    revisions.keep(revision(number), Content::Whole(body)).blocking_recv().unwrap()
}

fn keep(revisions: &mut Revisions, number: u64) {
    try_keep(revisions, number, text(number)).unwrap();
}

fn change(revisions: &mut Revisions, number: u64) {
    let written = revisions.keep(revision(number), Content::Edit(edit(number)));
    written.blocking_recv().unwrap().unwrap();
}

fn numbers(revisions: &Revisions) -> Vec<u64> {
    revisions.all().map(|revision| revision.number).collect()
}

fn read(revisions: &Revisions, number: u64) -> Text {
    revisions.reader(number).unwrap().read().unwrap()
}

/// Returns the error of a change whose predecessor was not written.
fn error_of(revisions: &mut Revisions, number: u64) -> String {
    let written = revisions.keep(revision(number), Content::Edit(edit(number)));
    written.blocking_recv().unwrap().unwrap_err().to_string()
}

#[test]
fn revisions_outlive_the_process_and_the_oldest_are_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    assert_eq!(revisions.next(), 1);
    let last = MAX_KEPT as u64 + 3;
    for number in 1..=last {
        assert_eq!(revisions.next(), number);
        keep(&mut revisions, number);
    }
    // What is forgotten is forgotten behind what is kept.
    read(&revisions, last);
    let again = reopened(revisions, &directory);
    assert_eq!(numbers(&again), (4..=last).collect::<Vec<u64>>());
    assert_eq!(again.find(last), Some(&revision(last)));
    assert_eq!(again.find(3), None);
    assert_eq!(again.next(), last + 1);
    assert_eq!(read(&again, last), Text { whole: text(last), edits: Vec::new() });
    assert!(again.reader(3).is_none());
}

#[test]
fn changes_of_policies_are_kept_upon_the_revision_before_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    assert!(revisions.wants_whole(), "there is none yet");
    keep(&mut revisions, 1);
    (2..=4).for_each(|number| change(&mut revisions, number));
    keep(&mut revisions, 5);
    change(&mut revisions, 6);
    let look = |revisions: &Revisions| {
        assert_eq!(numbers(revisions), [1, 2, 3, 4, 5, 6]);
        assert_eq!(revisions.find(3), Some(&revision(3)));
        assert!(!revisions.wants_whole());
        assert_eq!(read(revisions, 1), Text { whole: text(1), edits: Vec::new() });
        assert_eq!(read(revisions, 3), Text { whole: text(1), edits: vec![edit(2), edit(3)] });
        assert_eq!(read(revisions, 6), Text { whole: text(5), edits: vec![edit(6)] });
    };
    look(&revisions);
    look(&reopened(revisions, &directory));
}

#[test]
fn after_many_changes_the_next_revision_is_whole_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    keep(&mut revisions, 1);
    let mut last = None;
    for number in 2..MAX_CHANGES as u64 + 2 {
        assert!(!revisions.wants_whole());
        last = Some(revisions.keep(revision(number), Content::Edit(edit(number))));
    }
    assert!(revisions.wants_whole());
    last.unwrap().blocking_recv().unwrap().unwrap();
    assert_eq!(read(&revisions, revisions.next() - 1).edits.len(), MAX_CHANGES);
    keep(&mut revisions, MAX_CHANGES as u64 + 2);
    assert!(!revisions.wants_whole());
}

#[test]
fn of_large_revisions_fewer_are_kept_and_never_less_than_two() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    let mut large = |number, bytes| {
        let body = Body { text: "#".repeat(bytes), ..Body::default() };
        try_keep(&mut revisions, number, body).unwrap();
        numbers(&revisions)
    };
    for number in 1..=4 {
        large(number, MAX_KEPT_BYTES / 3 + 1);
    }
    assert_eq!(large(5, MAX_KEPT_BYTES), [4, 5]);
    read(&revisions, 5);
    assert_eq!(numbers(&reopened(revisions, &directory)), [4, 5]);
}

#[test]
fn changes_behind_one_that_is_lost_are_lost_until_a_revision_is_whole() {
    let (mut revisions, refuses) = faulty();
    keep(&mut revisions, 1);
    refuses.store(true, Ordering::SeqCst);
    let refused = error_of(&mut revisions, 2);
    assert!(refused.contains("the disk is full"), "{refused}");
    refuses.store(false, Ordering::SeqCst);
    let refused = error_of(&mut revisions, 3);
    assert!(refused.contains("the next one is kept as a whole"), "{refused}");
    revisions.lost(2);
    assert!(revisions.wants_whole());
    keep(&mut revisions, 4);
    // It is heard of late, and says nothing of what came since.
    revisions.lost(3);
    assert!(!revisions.wants_whole());
    change(&mut revisions, 5);
    assert_eq!(numbers(&revisions), [1, 4, 5]);
    assert_eq!(read(&revisions, 5), Text { whole: text(4), edits: vec![edit(5)] });
}

#[test]
fn changes_upon_a_whole_revision_that_is_lost_are_lost_too() {
    let (mut revisions, refuses) = faulty();
    keep(&mut revisions, 1);
    refuses.store(true, Ordering::SeqCst);
    assert!(try_keep(&mut revisions, 2, text(2)).is_err());
    refuses.store(false, Ordering::SeqCst);
    let refused = error_of(&mut revisions, 3);
    assert!(refused.contains("the next one is kept as a whole"), "{refused}");
    for number in [2, 3] {
        revisions.lost(number);
        assert!(revisions.wants_whole());
    }
    keep(&mut revisions, 4);
    assert_eq!(numbers(&revisions), [1, 4]);
    read(&revisions, 4);
}

#[test]
fn a_revision_that_was_brought_back_is_the_one_to_step_back_from() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    let restored = [None, None, None, Some(2), None, Some(4), Some(9)];
    for (number, restored) in (1..).zip(restored) {
        let revision = Revision { restored, ..revision(number) };
        let written = revisions.keep(revision, Content::Whole(text(number)));
        written.blocking_recv().unwrap().unwrap();
    }
    let look = |revisions: &Revisions| {
        let origins: Vec<u64> = (1..=8).map(|number| revisions.origin_of(number)).collect();
        // Whatever the store says, nothing goes round in circles.
        assert_eq!(origins, [1, 2, 3, 2, 5, 2, 7, 8]);
        let before = |number| revisions.before(number).map(|kept| kept.number);
        assert_eq!([before(1), before(2), before(8)], [None, Some(1), Some(7)]);
        assert_eq!(revisions.ends(), Some((1, 7)));
    };
    look(&revisions);
    look(&reopened(revisions, &directory));
}

/// Files as an earlier version wrote them: revision 1 with two changes upon it and half a third,
/// revision 4 of a version that wrote no names of keys, one that is no revision, and a note.
const EARLIER_FILES: [(&str, &str); 5] = [
    (
        "1.toml",
        "# lockgate revision: {\"base\":\"/etc/x y\",\"cause\":\"rollback\",\"changes\":3,\
         \"file\":\"a \\\"b\\\"\\n.toml\",\"keys\":{\"a \\\"peer\\\"\":\
         [\"out 0x00000100 00000000000000000000000000000001\"]},\"to_confirm\":true,\"uid\":1000,\
         \"unix_ns\":1234567890123}\n[node]\nname = \"1\"\n",
    ),
    (
        "1.changes",
        "{\"add\":\"[[policy]]\\nname = \\\"p2\\\"\\n\",\"base\":\"/\",\"cause\":\"policy\",\
         \"changes\":1,\"file\":\"f\",\"number\":2,\"remove\":[\"\\\"2\\\"\"],\"uid\":0,\
         \"unix_ns\":5}\n{\"add\":\"[[policy]]\\nname = \\\"p3\\\"\\n\",\"base\":\"/\",\
         \"cause\":\"policy\",\"changes\":1,\"file\":\"f\",\"number\":3,\
         \"remove\":[\"\\\"3\\\"\"],\"uid\":0,\"unix_ns\":6}\n{\"add\":\"[[pol",
    ),
    (
        "4.toml",
        "# lockgate revision: {\"base\":\"/\",\"cause\":\"start\",\"changes\":0,\"file\":\"f\",\
         \"restored\":1,\"uid\":0,\"unix_ns\":7}\n[node]\nname = \"4\"\n",
    ),
    ("5.toml", "name = \"by hand\"\n"),
    ("note.txt", "not ours"),
];

fn write_earlier_files(directory: &tempfile::TempDir) -> PathBuf {
    let of_earlier = directory.path().join("revisions");
    std::fs::create_dir_all(&of_earlier).unwrap();
    for (name, text) in EARLIER_FILES {
        std::fs::write(of_earlier.join(name), text).unwrap();
    }
    of_earlier
}

/// The names of the files in a directory, sorted; none if it is not there.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_of_earlier_versions_are_taken_over_once_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let of_earlier = write_earlier_files(&directory);
    let look = |revisions: &Revisions| {
        assert_eq!(numbers(revisions), [1, 2, 3, 4]);
        assert_eq!(revisions.find(1), Some(&revision(1)));
        let facts = |number| revisions.find(number).map(|of| (of.cause, of.restored));
        assert_eq!(facts(3), Some((Cause::Policy, None)));
        assert_eq!(facts(4), Some((Cause::Start, Some(1))));
        assert_eq!(read(revisions, 3), Text { whole: text(1), edits: vec![edit(2), edit(3)] });
        let without_keys = Body { keys: StoredKeys::default(), ..text(4) };
        assert_eq!(read(revisions, 4), Text { whole: without_keys, edits: Vec::new() });
        // What no version of Lockgate wrote stays.
        assert_eq!(names_in(&of_earlier), ["5.toml", "note.txt"]);
    };
    let mut revisions = Revisions::open(directory.path()).unwrap();
    look(&revisions);
    keep(&mut revisions, 5);
    // After a crash before they were removed they are there again.
    write_earlier_files(&directory);
    let mut revisions = reopened(revisions, &directory);
    assert_eq!(numbers(&revisions), [1, 2, 3, 4, 5]);
    assert_eq!(read(&revisions, 5).whole, text(5));
    revisions.lost(5);
    look(&revisions);
    for name in names_in(&of_earlier) {
        std::fs::remove_file(of_earlier.join(name)).unwrap();
    }
    std::fs::write(of_earlier.join("6.toml"), EARLIER_FILES[0].1).unwrap();
    let revisions = reopened(revisions, &directory);
    assert_eq!((numbers(&revisions), of_earlier.exists()), (vec![1, 2, 3, 4, 5, 6], false));
}

#[test]
fn files_that_the_store_does_not_take_stay() {
    let directory = tempfile::tempdir().unwrap();
    let of_earlier = write_earlier_files(&directory);
    let mut store = Faulty::default();
    store.refuses.store(true, Ordering::SeqCst);
    let error = earlier_files::take_over(directory.path(), &mut store).unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(names_in(&of_earlier).len(), EARLIER_FILES.len());
    for (name, text) in EARLIER_FILES {
        assert_eq!(std::fs::read_to_string(of_earlier.join(name)).unwrap(), text);
    }
}

#[test]
fn a_damaged_store_is_set_aside_and_an_empty_one_takes_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut revisions = Revisions::open(directory.path()).unwrap();
    keep(&mut revisions, 1);
    drop(revisions);
    let path = directory.path().canonicalize().unwrap().join(FILE);
    // Closed, it is in one file.
    Revisions::open(directory.path()).map(drop).unwrap();
    let garbage = "not a database, and longer than the header of one would be: ".repeat(100);
    std::fs::write(&path, &garbage).unwrap();
    assert!(matches!(
        Revisions::open(directory.path()).err(),
        Some(RevisionError::Store(StoreError::Corrupt { .. }))
    ));
    let (mut revisions, trouble) = Revisions::at_start(directory.path());
    let trouble = trouble.unwrap();
    for part in ["revisions.sqlite is damaged", "revisions.sqlite.damaged now", ".recover"] {
        assert!(trouble.contains(part), "{part}: {trouble}");
    }
    assert_eq!(std::fs::read_to_string(path.with_extension("sqlite.damaged")).unwrap(), garbage);
    assert_eq!((numbers(&revisions), revisions.next()), (vec![], 1));
    keep(&mut revisions, 1);
    drop(revisions);
    let (revisions, trouble) = Revisions::at_start(directory.path());
    assert_eq!((numbers(&revisions), trouble), (vec![1], None));
}

#[test]
fn a_store_that_cannot_be_opened_is_left_alone_and_nothing_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let (mut revisions, trouble) = Revisions::at_start(directory.path());
    let trouble = trouble.unwrap();
    assert!(trouble.contains("can neither be read nor kept"), "{trouble}");
    assert!(trouble.contains("must be a regular file"), "{trouble}");
    assert!(path.is_symlink());
    let refused = try_keep(&mut revisions, 1, text(1)).unwrap_err().to_string();
    assert!(refused.contains("was not opened at the start"), "{refused}");
    revisions.lost(1);
    assert!(revisions.wants_whole());
    assert!(error_of(&mut revisions, 2).contains("was not opened"));
    revisions.lost(2);
    assert_eq!((numbers(&revisions), revisions.next()), (vec![], 3));
    assert!(revisions.reader(1).is_none());
}

#[test]
fn what_cannot_be_written_is_told() {
    let (mut revisions, refuses) = faulty();
    keep(&mut revisions, 1);
    refuses.store(true, Ordering::SeqCst);
    assert!(try_keep(&mut revisions, 2, text(2)).is_err());
    revisions.lost(2);
    assert!(revisions.wants_whole());
    error_of(&mut revisions, 3);
    revisions.lost(3);
    assert_eq!((numbers(&revisions), revisions.next()), (vec![1], 4));
}
