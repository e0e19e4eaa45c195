//! The tables, and the way from each schema to the next.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

/// "LGST": the file is a store of Lockgate.
const APPLICATION_ID: i32 = 0x4c47_5354;
/// The latest schema, in `user_version`.
pub(super) const VERSION: u32 = 4;

/// Each step makes a schema out of the one before; the first makes schema 1 in an empty file.
///
/// `neighbor` and `journal` have the shapes that other programs import. The rest is our own.
const STEPS: [&str; VERSION as usize] = [
    "CREATE TABLE neighbor (
         vni INTEGER NOT NULL,
         vpc_ip TEXT NOT NULL,
         host_ip TEXT,
         host_mac TEXT,
         vpc_mac TEXT,
         version INTEGER NOT NULL,
         deleted INTEGER NOT NULL,
         PRIMARY KEY (vni, vpc_ip)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE journal (
         version INTEGER PRIMARY KEY,
         done INTEGER NOT NULL
     ) STRICT;
     -- The latest commits. The first row's changes are never read: it says where the log begins.
     -- mark: drawn at random by the process that made the commit.
     CREATE TABLE log (
         number INTEGER PRIMARY KEY,
         mark INTEGER NOT NULL,
         count INTEGER NOT NULL,
         changes BLOB NOT NULL
     ) STRICT;
     INSERT INTO log VALUES (0, 0, 0, x'');
     -- Which database this is, so that another one's image is told from its own.
     CREATE TABLE identity (
         id INTEGER PRIMARY KEY CHECK (id = 1),
         store BLOB NOT NULL
     ) STRICT;
     INSERT INTO identity VALUES (1, randomblob(16));",
    // Lines of schema 1 do not say how many changes they stand for: one each, and a key that has
    // this version says that it applied.
    "ALTER TABLE journal ADD COLUMN delivered INTEGER NOT NULL DEFAULT 1;
     ALTER TABLE journal ADD COLUMN applied INTEGER NOT NULL DEFAULT 0;
     UPDATE journal SET applied = 1 WHERE version IN (SELECT version FROM neighbor);
     CREATE TABLE revisions (
         number INTEGER PRIMARY KEY,
         at INTEGER NOT NULL,
         text TEXT NOT NULL
     ) STRICT;",
    // Tombstones up to the floor are gone: changes up to it of keys without a row do not apply.
    "CREATE TABLE floor (
         id INTEGER PRIMARY KEY CHECK (id = 1),
         revision INTEGER NOT NULL
     ) STRICT;
     INSERT INTO floor VALUES (1, 0);
     CREATE INDEX tombstone ON neighbor (version) WHERE deleted = 1;",
    // No program wrote a row of the table of this name in schemas 2 and 3.
    "DROP TABLE revisions;
     CREATE TABLE revisions (
         number INTEGER PRIMARY KEY,
         upon INTEGER,
         facts TEXT NOT NULL,
         text TEXT NOT NULL,
         checksum INTEGER NOT NULL
     ) STRICT;",
];

/// Brings the file to the latest schema, in one transaction: a crash leaves the old one.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let of = |error: rusqlite::Error| StoreError::engine(path, &error);
    let value = |connection: &Connection, sql: &str| -> Result<i64, StoreError> {
        connection.query_row(sql, [], |row| row.get(0)).map_err(of)
    };
    let id = value(connection, "PRAGMA application_id")? as i32;
    let found = value(connection, "PRAGMA user_version")? as u32;
    let is_new =
        id == 0 && found == 0 && value(connection, "SELECT count(*) FROM sqlite_schema")? == 0;
    if !is_new && id != APPLICATION_ID {
        return Err(StoreError::Foreign { path: path.to_owned(), id: id as u32 });
    }
    if found > VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found, known: VERSION });
    }
    if !is_new && found == 0 {
        return Err(StoreError::illegible(path));
    }
    // Only now: the file is ours to write to.
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(of)?;
    if mode != "wal" {
        return Err(StoreError::Engine {
            path: path.to_owned(),
            code: rusqlite::ffi::SQLITE_CANTOPEN,
        });
    }
    if found == VERSION {
        return Ok(());
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(of)?;
    for step in &STEPS[found as usize..] {
        transaction.execute_batch(step).map_err(of)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(of)?;
    transaction.pragma_update(None, "user_version", VERSION).map_err(of)?;
    transaction.commit().map_err(of)
}
