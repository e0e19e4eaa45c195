//! The files of a store: schemas old and new, other programs' files, modes and links, images.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use store::conformance::{contents, delete, journaled, kept_revisions, put, revision};
use store::image::Ignored;
use store::{
    Change, Journal, JournalLine, Limits, Options, Revisions, SqliteStore, Start, Store, StoreError,
};

/// Tells a copy of this test program which store it is refused.
const LOCKED: &str = "LOCKGATE_STORE_LOCKED";

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }
}

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path).unwrap()
}

fn refused(path: &Path) -> StoreError {
    SqliteStore::open(path).err().expect("the file is refused")
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// A database of schema 1: no counts in the journal, no configurations.
const SCHEMA_1: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE neighbor (
        vni INTEGER NOT NULL, vpc_ip TEXT NOT NULL, host_ip TEXT, host_mac TEXT, vpc_mac TEXT,
        version INTEGER NOT NULL, deleted INTEGER NOT NULL, PRIMARY KEY (vni, vpc_ip)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE journal (version INTEGER PRIMARY KEY, done INTEGER NOT NULL) STRICT;
    CREATE TABLE log (
        number INTEGER PRIMARY KEY, mark INTEGER NOT NULL, count INTEGER NOT NULL,
        changes BLOB NOT NULL
    ) STRICT;
    CREATE TABLE identity (id INTEGER PRIMARY KEY CHECK (id = 1), store BLOB NOT NULL) STRICT;
    INSERT INTO identity VALUES (1, randomblob(16));
    INSERT INTO log VALUES (8, 77, 0, x'');
    INSERT INTO neighbor VALUES
        (7, '10.0.0.1', '192.0.2.6', '02:00:00:00:00:06', '02:01:06:00:00:01', 6, 0),
        (7, '10.0.0.2', '192.0.2.5', NULL, '02:01:05:00:00:02', 5, 0),
        (7, '10.0.0.3', NULL, NULL, NULL, 9, 1);
    INSERT INTO journal VALUES (4, 3), (5, 6), (6, 7), (9, 8);
    PRAGMA application_id = 1279742804;
    PRAGMA user_version = 1;";

#[test]
fn old_schema_is_brought_to_the_latest() {
    let place = Place::new();
    let path = place.path("store.db");
    Connection::open(&path).unwrap().execute_batch(SCHEMA_1).unwrap();
    let wanted = [put(1, 6), put(2, 5), delete(3, 9)];
    let line = |revision, done, applied| JournalLine { revision, done, delivered: 1, applied };
    let lines = [line(4, 3, 0), line(5, 6, 1), line(6, 7, 1), line(9, 8, 1)];
    for number in 8..11 {
        let mut store = open(&path);
        assert_eq!(store.number(), number);
        assert_eq!(contents(&mut store).into_values().collect::<Vec<_>>(), wanted);
        assert_eq!(journaled(&store, 0)[..4], lines);
        // What the new schema has.
        assert_eq!(store.put_revisions(&[revision(number, None)]), Ok(()));
        assert_eq!(kept_revisions(&store).len() as u64, number - 7);
        assert_eq!((store.floor(), store.forget_up_to(0)), (0, Ok(0)));
        assert_eq!(store.commit(&[put(1, 3)], Journal::Each), Ok(number + 1));
        store.verify().unwrap();
        drop(store);
        if number == 8 {
            // The lines of the journal go on counting.
            let mut store = open(&path);
            assert_eq!(journaled(&store, 0)[0], line(3, 9, 0));
            assert_eq!(store.commit(&[], Journal::Each), Ok(9));
            let connection = (drop(store), Connection::open(&path).unwrap()).1;
            connection.execute("DELETE FROM journal WHERE version = 3", []).unwrap();
            let version = "PRAGMA user_version";
            let version: u32 = connection.query_row(version, [], |row| row.get(0)).unwrap();
            assert_eq!(version, 4);
        } else {
            let connection = Connection::open(&path).unwrap();
            connection.execute("DELETE FROM journal WHERE version = 3", []).unwrap();
        }
    }
}

/// A database of schema 3 with a row in the table that schema 4 makes anew.
const SCHEMA_2_AND_3: &str = "
    ALTER TABLE journal ADD COLUMN delivered INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE journal ADD COLUMN applied INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE revisions (number INTEGER PRIMARY KEY, at INTEGER NOT NULL, text TEXT NOT NULL)
        STRICT;
    CREATE TABLE floor (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL) STRICT;
    INSERT INTO floor VALUES (1, 4);
    CREATE INDEX tombstone ON neighbor (version) WHERE deleted = 1;
    INSERT INTO revisions VALUES (1, 2, 'three');
    PRAGMA user_version = 3;";

#[test]
fn schema_3_keeps_its_endpoints_and_gets_a_table_of_revisions() {
    let place = Place::new();
    let path = place.path("store.db");
    for schema in [SCHEMA_1, SCHEMA_2_AND_3] {
        Connection::open(&path).unwrap().execute_batch(schema).unwrap();
    }
    let batch = [revision(7, None), revision(8, Some(7))];
    for _ in 0..2 {
        let mut store = open(&path);
        assert_eq!((store.number(), store.floor(), contents(&mut store).len()), (8, 4, 3));
        assert_eq!(store.put_revisions(&batch), Ok(()));
        assert_eq!(kept_revisions(&store), batch);
        store.verify().unwrap();
    }
}

#[test]
fn other_programs_read_endpoints_and_journal_by_sql() {
    // AX-35
    let place = Place::new();
    let path = place.path("store.db");
    let mut store = open(&path);
    store.commit(&[put(1, 4), put(2, 5), delete(3, 6), put(2, 3)], Journal::Each).unwrap();
    drop(store);
    let connection = Connection::open(&path).unwrap();
    let columns = |table: &str| -> Vec<(String, String, i64)> {
        let mut of = connection.prepare(&format!("PRAGMA table_info({table})")).unwrap();
        let rows = of.query_map([], |row| Ok((row.get(1)?, row.get(2)?, row.get(5)?))).unwrap();
        rows.map(Result::unwrap).filter(|(_, _, key)| *key > 0).collect()
    };
    let key = |name: &str, kind: &str, place| (name.to_owned(), kind.to_owned(), place);
    assert_eq!(columns("neighbor"), [key("vni", "INTEGER", 1), key("vpc_ip", "TEXT", 2)]);
    assert_eq!(columns("journal"), [key("version", "INTEGER", 1)]);
    let lines = |sql: &str| -> Vec<String> {
        let mut select = connection.prepare(sql).unwrap();
        select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let endpoints = lines(
        "SELECT concat_ws(' ', vni, vpc_ip, host_ip, host_mac, vpc_mac, version, deleted)
         FROM neighbor ORDER BY vni, vpc_ip",
    );
    assert_eq!(
        endpoints,
        [
            "7 10.0.0.1 192.0.2.4 02:00:00:00:00:04 02:01:04:00:00:01 4 0",
            "7 10.0.0.2 192.0.2.5 02:01:05:00:00:02 5 0",
            "7 10.0.0.3 6 1",
        ]
    );
    assert_eq!(lines("SELECT CAST(version AS TEXT) FROM journal"), ["3", "4", "5", "6"]);
}

#[test]
fn revision_that_is_not_what_was_written_is_seen_and_others_are_read() {
    let place = Place::new();
    let path = place.path("store.db");
    let all = [revision(1, None), revision(2, Some(1)), revision(3, None)];
    for damage in ["text = text || ' '", "facts = ''", "upon = 2", "checksum = checksum + 1"] {
        let mut store = open(&path);
        store.put_revisions(&all).unwrap();
        drop(store);
        let sql = format!("UPDATE revisions SET {damage} WHERE number = 2");
        assert_eq!(Connection::open(&path).unwrap().execute(&sql, []), Ok(1), "{damage}");
        let store = open(&path);
        let damaged = StoreError::Corrupt { path: path.clone(), code: 11 };
        assert_eq!(store.revision(2), Err(damaged), "{damage}");
        assert_eq!(store.revision(3), Ok(all[2..].to_vec()), "{damage}");
        assert_eq!(store.revisions().map(|list| list.len()), Ok(3), "{damage}");
    }
}

#[test]
fn floor_survives_a_restart() {
    let place = Place::new();
    let path = place.path("store.db");
    let mut store = open(&path);
    let begin = [put(1, 5), delete(1, 6), delete(2, 9), put(3, 4)];
    assert_eq!(store.commit(&begin, Journal::Each), Ok(1));
    store.write_image().unwrap();
    assert_eq!(store.forget_up_to(6), Ok(1));
    drop(store);
    let mut store = open(&path);
    assert_eq!(store.floor(), 6);
    store.verify().unwrap();
    // The image still has the tombstone, which does no harm; the database has not.
    let mut given = 0;
    store.start(&mut |_| given += 1).unwrap();
    assert_eq!((given, contents(&mut store).len()), (3, 2));
    assert_eq!(store.commit(&[put(1, 5), put(4, 6)], Journal::Each), Ok(2));
    assert_eq!(contents(&mut store).len(), 2, "nothing came back");
}

#[test]
fn newer_schema_and_other_programs_files_are_refused_by_name_and_left_alone() {
    let place = Place::new();
    let path = place.path("newer.db");
    drop(open(&path));
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 5).unwrap();
    let before = std::fs::read(&path).unwrap();
    let newer = StoreError::Newer { path: path.clone(), found: 5, known: 4 };
    assert_eq!(refused(&path), newer);
    assert!(newer.to_string().contains("newer.db: schema 5"), "{newer}");
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let path = place.path("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(refused(&path), StoreError::Foreign { path: path.clone(), id: 0 });
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let path = place.path("text.db");
    std::fs::write(&path, "no database at all, but longer than its header would be: ".repeat(9))
        .unwrap();
    let error = refused(&path);
    assert!(matches!(error, StoreError::Corrupt { code: 26, .. }), "{error:?}");

    // The marks without the tables.
    let path = place.path("empty.db");
    let marks = "PRAGMA application_id = 1279742804; PRAGMA user_version = 4";
    Connection::open(&path).unwrap().execute_batch(marks).unwrap();
    let error = refused(&path);
    assert!(matches!(error, StoreError::Engine { .. }), "{error:?}");
}

#[test]
fn damaged_pages_and_foreign_values_are_seen() {
    let place = Place::new();
    let path = place.path("store.db");
    let mut store = open(&path);
    let all: Vec<Change> = (0..2000).map(|key| put(key, 1)).collect();
    store.commit(&all, Journal::Each).unwrap();
    store.verify().unwrap();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0xa5);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, damaged).unwrap();
        let found = SqliteStore::open(&path).and_then(|store| store.verify());
        assert!(matches!(found, Err(StoreError::Corrupt { .. })), "page {page}: {found:?}");
    }
    for foreign in [
        "vpc_ip = '10.0.0.300'",
        "vpc_ip = '::0001'",
        "vni = -1",
        "vni = 4294967296",
        "version = -1",
        "host_ip = NULL",
        "host_mac = ''",
        "vpc_mac = '02:00:00:00:00:0G'",
    ] {
        std::fs::write(&path, &whole).unwrap();
        let sql = format!("UPDATE neighbor SET {foreign} WHERE vpc_ip = '10.0.0.77'");
        assert_eq!(Connection::open(&path).unwrap().execute(&sql, []), Ok(1), "{foreign}");
        let found = open(&path).snapshot(&mut |_| ());
        assert_eq!(found, Err(StoreError::Corrupt { path: path.clone(), code: 11 }), "{foreign}");
    }
}

#[test]
fn file_is_ours_alone_and_reached_through_no_link() {
    let place = Place::new();
    let path = place.path("store.db");
    let mut store = open(&path);
    store.commit(&[put(1, 1)], Journal::Each).unwrap();
    store.write_image().unwrap();
    for name in ["store.db", "store.db-wal", "store.db.image"] {
        assert_eq!(mode(&place.path(name)), 0o600, "{name}");
    }
    drop(store);
    let link = place.path("link.db");
    symlink(&path, &link).unwrap();
    let error = refused(&link);
    assert!(matches!(error, StoreError::Insecure { .. }), "{error:?}");
    symlink(place.path("missing"), place.path("dangling.db")).unwrap();
    let error = refused(&place.path("dangling.db"));
    assert!(matches!(error, StoreError::Insecure { .. }), "{error:?}");
    // A directory may be a link: whoever may change it may change the file.
    symlink(place.directory.path(), place.path("here")).unwrap();
    assert_eq!(open(&place.path("here").join("store.db")).number(), 1);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).unwrap();
    let error = refused(&path);
    assert!(matches!(error, StoreError::Insecure { mode: 0o100_620, .. }), "{error:?}");
    let error = refused(&place.path("no/store.db"));
    assert_eq!(error, StoreError::System { path: place.path("no"), code: libc::ENOENT });
}

/// Fails to open a store and to read its tables. Does nothing in a plain test run.
#[test]
fn process_that_is_refused() {
    let Some(path) = std::env::var_os(LOCKED).map(PathBuf::from) else { return };
    assert_eq!(refused(&path), StoreError::Locked { path: path.clone() });
    let other = Connection::open(&path).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let read = other.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0));
    let code = read.unwrap_err().sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::DatabaseBusy));
}

#[test]
fn second_store_is_refused_and_does_not_open_the_first_ones_lock() {
    let place = Place::new();
    let path = place.path("store.db");
    let mut first = open(&path);
    for number in 1..3 {
        assert_eq!(refused(&path), StoreError::Locked { path: path.clone() });
        // Locks belong to processes: another one is refused only as long as ours is there.
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "process_that_is_refused"]).env(LOCKED, &path);
        assert!(other.stdout(Stdio::null()).status().unwrap().success());
        assert_eq!(first.commit(&[put(1, number)], Journal::Each), Ok(number));
    }
    drop(first);
    assert_eq!(open(&path).number(), 2);
}

fn started(store: &mut SqliteStore) -> (Vec<Change>, Start) {
    let mut found = BTreeMap::new();
    let (number, how) = store
        .start(&mut |change| {
            found.insert(change.key(), change);
        })
        .unwrap();
    assert_eq!(number, store.number());
    assert_eq!(found, contents(store));
    (found.into_values().collect(), how)
}

fn ignored(store: &mut SqliteStore) -> Ignored {
    match started(store).1 {
        Start::Snapshot { because } => because,
        how => panic!("{how:?}"),
    }
}

#[test]
fn start_takes_the_image_and_later_commits_or_else_the_database() {
    let place = Place::new();
    let path = place.path("store.db");
    let mut store = open(&path);
    assert_eq!(ignored(&mut store), Ignored::Missing);
    store.write_image().unwrap();
    assert_eq!(started(&mut store), (vec![], Start::Image { at: 0, replayed: 0 }));
    store.commit(&[put(1, 1), put(2, 1), put(3, 1)], Journal::Each).unwrap();
    assert_eq!(store.write_image(), Ok(1));
    store.commit(&[put(1, 2), delete(2, 2), put(3, 0)], Journal::Each).unwrap();
    store.commit(&[put(4, 3)], Journal::Each).unwrap();
    drop(store);
    let mut store = open(&path);
    let wanted = vec![put(1, 2), delete(2, 2), put(3, 1), put(4, 3)];
    assert_eq!(started(&mut store), (wanted, Start::Image { at: 1, replayed: 3 }));

    let image = store.image_path();
    let whole = std::fs::read(&image).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    std::fs::write(&image, &damaged).unwrap();
    assert_eq!(ignored(&mut store), Ignored::Records);
    std::fs::write(&image, &whole[..150]).unwrap();
    assert_eq!(ignored(&mut store), Ignored::Length { found: 150, expected: 256 });
    // Half of a new image that a crash left is no obstacle.
    std::fs::write(place.path("store.db.image.new"), "half").unwrap();
    assert_eq!(store.write_image(), Ok(3));
    assert_eq!(started(&mut store).1, Start::Image { at: 3, replayed: 0 });
    assert!(!place.path("store.db.image.new").exists());
}

#[test]
fn image_of_another_store_or_history_or_older_than_the_log_is_ignored() {
    let place = Place::new();
    let path = place.path("store.db");
    let copy = place.path("copy.db");
    let mut store = open(&path);
    store.commit(&[put(1, 1)], Journal::Each).unwrap();
    drop(store);
    std::fs::copy(&path, &copy).unwrap();
    let mut store = open(&path);
    store.commit(&[put(1, 2)], Journal::Each).unwrap();
    store.write_image().unwrap();
    drop(store);
    // The copy is put back, with the image of what came after it.
    std::fs::copy(&copy, &path).unwrap();
    let mut store = open(&path);
    assert_eq!(ignored(&mut store), Ignored::Ahead { image: 2, store: 1 });
    store.commit(&[put(2, 2)], Journal::Each).unwrap();
    assert_eq!(ignored(&mut store), Ignored::OtherHistory { image: 2 });
    store.write_image().unwrap();
    assert_eq!(started(&mut store).1, Start::Image { at: 2, replayed: 0 });

    let other = place.path("other.db");
    let mut stranger = open(&other);
    std::fs::copy(store.image_path(), stranger.image_path()).unwrap();
    assert_eq!(ignored(&mut stranger), Ignored::OtherStore);

    drop(store);
    let limits = Limits { log: 2, ..Limits::default() };
    let mut store =
        SqliteStore::open_with(&path, Options { limits, ..Options::default() }).unwrap();
    for revision in 3..6 {
        store.commit(&[put(1, revision)], Journal::Each).unwrap();
    }
    assert_eq!(ignored(&mut store), Ignored::TooOld { image: 2, oldest: 3 });
}
