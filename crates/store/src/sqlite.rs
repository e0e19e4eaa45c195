//! The store in one file of SQLite, embedded.
//!
//! The database is in WAL mode and synced at every commit (`synchronous = EXTRA`). One process has
//! it, locked exclusively from open to drop: whoever wants to look into it meanwhile asks that
//! process, or copies the file once it has ended.
//!
//! | table | key | holds |
//! |---|---|---|
//! | `neighbor` | (vni, vpc_ip) | latest change of each key, tombstones too |
//! | `journal` | version | revisions that are done, applied or not |
//! | `log` | commit number | the changes of the latest commits, as the image writes them |
//! | `floor` | | the revision up to which tombstones were forgotten |
//! | `identity` | | which database this is |
//! | `revisions` | number | revisions of the configuration |
//!
//! Opening checks the header, the schema and the log's ends, but does not read the whole file: a
//! million endpoints would take longer to check than to load. [`SqliteStore::verify`] reads it all.

mod revisions;
mod schema;
mod start;
mod text;
mod write;

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, TransactionBehavior, ffi};

use crate::{
    Change, Deleted, Journal, JournalLine, Limits, MAX_REVISION, Record, Store, StoreError, files,
    record,
};
use write::Log;

pub use start::Start;

/// The time to wait for the lock of a process that is just ending.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// The page cache, KiB: a commit that changes more writes them ahead before its end.
const CACHE_KIB: i64 = 64 << 10;
/// Pages of the write-ahead file at which SQLite carries them into the database: 64 MiB, so that a
/// page that many commits change is written there once.
const CHECKPOINT_PAGES: u32 = 16_384;
/// Bytes that the write-ahead file keeps after a large commit.
const WAL_BYTES: i64 = 64 << 20;

/// The promise of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Durability {
    /// On the disk when the commit returns.
    #[default]
    Synced,
    /// With the system, which writes it when it pleases: a power cut loses commits or the file. For
    /// tests that prove that syncing is needed.
    Unsynced,
}

/// The choices at opening a store.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Bounds of log and journal.
    pub limits: Limits,
    /// The promise of a commit.
    pub durability: Durability,
    /// The largest database, pages of 4096 bytes; above it commits fail as on a full disk.
    pub max_pages: Option<u32>,
    /// Pages of the write-ahead file, 4096 bytes each, at which they are carried into the database;
    /// `None`: 16,384. A start after a crash reads them all.
    pub checkpoint_pages: Option<u32>,
    /// SQLite's name of another file system below it, which has no modes nor links; an image is
    /// beside the path on the real one.
    pub vfs: Option<&'static CStr>,
}

/// A store in one file.
pub struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    limits: Limits,
    identity: [u8; 16],
    /// Drawn when the store was opened: tells this history's commits from another's that has the
    /// same numbers, as after a copy was put back.
    mark: i64,
    log: Log,
    floor: u64,
    /// Lines of the journal, once counted.
    journal_lines: Option<u64>,
    is_unknown: bool,
}

impl SqliteStore {
    /// Opens the store in a file, and makes it if it is missing, for this user alone (mode 0600).
    /// An older schema is brought to the latest one.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Newer`], [`StoreError::Foreign`],
    /// [`StoreError::Corrupt`], [`StoreError::Insecure`], [`StoreError::Full`], or the system's.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_with(path, Options::default())
    }

    /// Opens the store as [`SqliteStore::open`] does, with choices.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn open_with(path: &Path, options: Options) -> Result<SqliteStore, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let (path, opened) = match options.vfs {
            None => {
                let path = files::prepare_database(path)?;
                let flags = flags | OpenFlags::SQLITE_OPEN_NOFOLLOW;
                let opened = Connection::open_with_flags(&path, flags);
                (path, opened)
            }
            Some(vfs) => {
                let flags = flags | OpenFlags::SQLITE_OPEN_CREATE;
                (path.to_owned(), Connection::open_with_flags_and_vfs(path, flags, vfs))
            }
        };
        let of = |error: rusqlite::Error| StoreError::engine(&path, &error);
        let mut connection = opened.map_err(of)?;
        configure(&connection, options).map_err(of)?;
        schema::migrate(&mut connection, &path)?;
        let identity = connection
            .query_row("SELECT store FROM identity", [], |row| row.get::<_, [u8; 16]>(0))
            .map_err(of)?;
        let log = read_log(&connection).map_err(of)?;
        let floor: i64 =
            connection.query_row("SELECT revision FROM floor", [], |row| row.get(0)).map_err(of)?;
        let mut mark = [0; 8];
        getrandom::fill(&mut mark)
            .map_err(|_| StoreError::System { path: path.clone(), code: libc::EIO })?;
        Ok(SqliteStore {
            connection,
            path,
            limits: options.limits,
            identity,
            mark: i64::from_ne_bytes(mark),
            log,
            floor: floor as u64,
            journal_lines: None,
            is_unknown: false,
        })
    }

    /// Returns the path of the database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file and checks it: every page, every row's order and type. Takes about as
    /// long as a snapshot and blocks commits meanwhile; a daemon calls it when its dataplane runs.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub fn verify(&self) -> Result<(), StoreError> {
        let found: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| self.error(&error))?;
        if found == "ok" { Ok(()) } else { Err(StoreError::illegible(&self.path)) }
    }

    fn error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::engine(&self.path, error)
    }

    /// Runs a transaction; on an error nothing of it is kept.
    fn write<T>(
        &mut self,
        run: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.is_unknown {
            return Err(StoreError::Unknown { path: self.path.clone() });
        }
        let written = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .and_then(|transaction| {
                let result = run(&transaction)?;
                transaction.commit()?;
                Ok(result)
            });
        written.map_err(|error| {
            // The kernel reports a failed sync once and drops the pages: the next sync would
            // succeed without them.
            self.is_unknown = is_failed_sync(&error);
            self.error(&error)
        })
    }

    /// Returns the mark of a commit that is still in the log.
    fn mark_of(&self, number: u64) -> Result<Option<i64>, StoreError> {
        let mark = self.connection.query_row(
            "SELECT mark FROM log WHERE number = ?1",
            [number as i64],
            |row| row.get(0),
        );
        match mark {
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
            mark => mark.map(Some).map_err(|error| self.error(&error)),
        }
    }
}

/// Sets up a connection. Nothing here writes to the file.
fn configure(connection: &Connection, options: Options) -> rusqlite::Result<()> {
    connection.busy_timeout(LOCK_WAIT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Before the first read: WAL needs no shared memory then, and the lock is never given back.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let synchronous = match options.durability {
        // FULL, and the directory is synced when a journal is removed: the one of the switch to WAL
        // would undo everything if it came back.
        Durability::Synced => "EXTRA",
        Durability::Unsynced => "OFF",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    // 0 would mean never, and the file would grow for ever.
    let pages = options.checkpoint_pages.unwrap_or(CHECKPOINT_PAGES).max(1);
    connection.pragma_update(None, "wal_autocheckpoint", pages)?;
    if let Some(pages) = options.max_pages {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(())
}

/// Reads where the log begins and ends, and its size.
fn read_log(connection: &Connection) -> rusqlite::Result<Log> {
    let ends = "SELECT min(number), max(number) FROM log";
    let (oldest, newest): (i64, i64) =
        connection.query_row(ends, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let size = "SELECT coalesce(sum(max(count, 1)), 0) FROM log WHERE number > ?1";
    let size: i64 = connection.query_row(size, [oldest], |row| row.get(0))?;
    Ok(Log { oldest: oldest as u64, newest: newest as u64, size: size as u64 })
}

fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let syncs = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
    matches!(error, rusqlite::Error::SqliteFailure(failure, _)
        if failure.code == ErrorCode::SystemIoFailure && syncs.contains(&failure.extended_code))
}

/// Reads a row of `neighbor`; `None` if it holds what is never written.
fn change_of(row: &Row<'_>) -> rusqlite::Result<Option<Change>> {
    let text = |column: usize| -> rusqlite::Result<Option<&[u8]>> {
        Ok(match row.get_ref(column)? {
            ValueRef::Text(text) => Some(text),
            _ => None,
        })
    };
    let ip = |column| -> rusqlite::Result<_> { Ok(text(column)?.and_then(text::read_ip)) };
    let vni = u32::try_from(row.get::<_, i64>(0)?).ok();
    let revision = u64::try_from(row.get::<_, i64>(5)?).ok();
    let (Some(vni), Some(address), Some(revision)) = (vni, ip(1)?, revision) else {
        return Ok(None);
    };
    if row.get::<_, i64>(6)? != 0 {
        return Ok(Some(Change::Delete(Deleted { vni, address, revision })));
    }
    let host_mac = match text(3)? {
        None => None,
        Some(text) => match text::read_mac(text) {
            None => return Ok(None),
            mac => mac,
        },
    };
    let (Some(host), Some(mac)) = (ip(2)?, text(4)?.and_then(text::read_mac)) else {
        return Ok(None);
    };
    Ok(Some(Change::Put(Record { vni, address, host, host_mac, mac, revision })))
}

impl Store for SqliteStore {
    fn number(&self) -> u64 {
        self.log.newest
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn commit(&mut self, batch: &[Change], journal: Journal<'_>) -> Result<u64, StoreError> {
        self.limits.check(batch)?;
        let others = journal.others();
        if let Some(&revision) = others.iter().find(|revision| **revision > MAX_REVISION) {
            return Err(StoreError::RevisionTooLarge { revision });
        }
        if batch.is_empty() && others.is_empty() {
            return Ok(self.number());
        }
        let (mut log, mark, limits, floor) = (self.log, self.mark, self.limits, self.floor);
        let mut lines = self.journal_lines;
        self.write(|transaction| {
            let applied = write::apply(transaction, batch, floor)?;
            write::log(transaction, mark, batch, &applied, limits.log as u64, &mut log)?;
            if journal != Journal::Nothing {
                let mut count = match lines {
                    Some(count) => count,
                    None => count_journal(transaction)?,
                };
                let revisions = (&applied[..], others);
                write::journal(transaction, log.newest, batch, revisions, &mut count)?;
                write::shorten_journal(transaction, &limits, &mut count)?;
                lines = Some(count);
            }
            Ok(())
        })?;
        (self.log, self.journal_lines) = (log, lines);
        Ok(self.number())
    }

    fn floor(&self) -> u64 {
        self.floor
    }

    fn forget_up_to(&mut self, revision: u64) -> Result<u64, StoreError> {
        if revision <= self.floor {
            return Ok(0);
        }
        if revision > MAX_REVISION {
            return Err(StoreError::RevisionTooLarge { revision });
        }
        let gone = self.write(|transaction| write::forget(transaction, revision))?;
        self.floor = revision;
        Ok(gone)
    }

    fn snapshot(&mut self, each: &mut dyn FnMut(Change)) -> Result<u64, StoreError> {
        let of = |error: rusqlite::Error| StoreError::engine(&self.path, &error);
        let mut select = self
            .connection
            .prepare(
                "SELECT vni, vpc_ip, host_ip, host_mac, vpc_mac, version, deleted FROM neighbor",
            )
            .map_err(of)?;
        let mut rows = select.query([]).map_err(of)?;
        while let Some(row) = rows.next().map_err(of)? {
            each(change_of(row).map_err(of)?.ok_or_else(|| StoreError::illegible(&self.path))?);
        }
        Ok(self.log.newest)
    }

    fn watch(&self, after: u64, each: &mut dyn FnMut(u64, Change)) -> Result<u64, StoreError> {
        let Log { oldest, newest, .. } = self.log;
        if !(oldest..=newest).contains(&after) {
            return Err(StoreError::Gap { after, oldest, newest });
        }
        let of = |error: rusqlite::Error| self.error(&error);
        let illegible = || StoreError::illegible(&self.path);
        let mut select = self
            .connection
            .prepare("SELECT number, changes FROM log WHERE number > ?1 ORDER BY number")
            .map_err(of)?;
        let mut rows = select.query([after as i64]).map_err(of)?;
        let mut expected = after;
        while let Some(row) = rows.next().map_err(of)? {
            expected += 1;
            let number = row.get::<_, i64>(0).map_err(of)? as u64;
            let ValueRef::Blob(blob) = row.get_ref(1).map_err(of)? else {
                return Err(illegible());
            };
            let (records, rest) = blob.as_chunks::<{ record::BYTES }>();
            if number != expected || !rest.is_empty() {
                return Err(illegible());
            }
            for bytes in records {
                each(number, record::decode(bytes).ok_or_else(illegible)?);
            }
        }
        if expected == newest { Ok(newest) } else { Err(illegible()) }
    }

    fn journal(&self, from: u64, each: &mut dyn FnMut(JournalLine)) -> Result<(), StoreError> {
        let of = |error: rusqlite::Error| self.error(&error);
        let Ok(from) = i64::try_from(from) else { return Ok(()) };
        let mut select = self
            .connection
            .prepare(
                "SELECT version, done, delivered, applied FROM journal WHERE version >= ?1
                 ORDER BY version",
            )
            .map_err(of)?;
        let mut rows = select.query([from]).map_err(of)?;
        while let Some(row) = rows.next().map_err(of)? {
            let value = |column| -> Result<u64, StoreError> {
                Ok(row.get::<_, i64>(column).map_err(of)? as u64)
            };
            each(JournalLine {
                revision: value(0)?,
                done: value(1)?,
                delivered: value(2)?,
                applied: value(3)?,
            });
        }
        Ok(())
    }
}

fn count_journal(connection: &Connection) -> rusqlite::Result<u64> {
    let count = "SELECT count(*) FROM journal";
    connection.query_row(count, [], |row| Ok(row.get::<_, i64>(0)? as u64))
}
