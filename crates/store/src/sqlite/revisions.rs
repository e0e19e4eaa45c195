//! The table of the configuration's revisions. Each row has a checksum: a bit that flips in a text
//! makes another configuration, which no page of SQLite would notice.

use rusqlite::{Row, params};

use super::SqliteStore;
use crate::{Revision, RevisionLine, Revisions, StoreError, check_revisions};

/// Returns the checksum of a row.
fn checksum(revision: &Revision) -> u32 {
    let Revision { number, upon, facts, text } = revision;
    let mut sum = crc32fast::Hasher::new();
    for part in [*number, upon.unwrap_or(u64::MAX), facts.len() as u64] {
        sum.update(&part.to_be_bytes());
    }
    sum.update(facts.as_bytes());
    sum.update(text.as_bytes());
    sum.finalize()
}

/// Reads a row of number, upon, facts, text and checksum; `None` if it is not what was written.
fn revision_of(row: &Row<'_>) -> rusqlite::Result<Option<Revision>> {
    let revision = Revision {
        number: row.get::<_, i64>(0)? as u64,
        upon: row.get::<_, Option<i64>>(1)?.map(|upon| upon as u64),
        facts: row.get(2)?,
        text: row.get(3)?,
    };
    let is_whole = row.get::<_, i64>(4)? == i64::from(checksum(&revision));
    Ok(is_whole.then_some(revision))
}

impl Revisions for SqliteStore {
    fn put_revisions(&mut self, batch: &[Revision]) -> Result<(), StoreError> {
        check_revisions(batch)?;
        let Some(first) = batch.first() else { return Ok(()) };
        self.write(|transaction| {
            let first = [first.number as i64];
            transaction.execute("DELETE FROM revisions WHERE number >= ?1", first)?;
            let mut insert =
                transaction.prepare("INSERT INTO revisions VALUES (?1, ?2, ?3, ?4, ?5)")?;
            for revision in batch {
                let Revision { number, upon, facts, text } = revision;
                let upon = upon.map(|upon| upon as i64);
                insert.execute(params![*number as i64, upon, facts, text, checksum(revision)])?;
            }
            Ok(())
        })
    }

    fn revisions(&self) -> Result<Vec<RevisionLine>, StoreError> {
        let of = |error: rusqlite::Error| self.error(&error);
        let list = "SELECT number, upon, facts, octet_length(text) FROM revisions ORDER BY number";
        let mut select = self.connection.prepare(list).map_err(of)?;
        let line = |row: &Row<'_>| {
            Ok(RevisionLine {
                number: row.get::<_, i64>(0)? as u64,
                upon: row.get::<_, Option<i64>>(1)?.map(|upon| upon as u64),
                facts: row.get(2)?,
                bytes: row.get::<_, i64>(3)? as u64,
            })
        };
        select.query_map([], line).and_then(Iterator::collect).map_err(of)
    }

    fn revision(&self, number: u64) -> Result<Vec<Revision>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(Vec::new()) };
        let of = |error: rusqlite::Error| self.error(&error);
        let mut select = self
            .connection
            .prepare(
                "WITH last AS (SELECT coalesce(upon, number) AS whole FROM revisions
                     WHERE number = ?1)
                 SELECT revisions.* FROM revisions, last
                 WHERE number <= ?1 AND (number = whole OR upon = whole) ORDER BY number",
            )
            .map_err(of)?;
        let rows = select.query_map([number], revision_of);
        let all: Option<Vec<Revision>> = rows.and_then(Iterator::collect).map_err(of)?;
        all.ok_or_else(|| StoreError::illegible(&self.path))
    }

    fn forget_revisions(&mut self, below: u64) -> Result<usize, StoreError> {
        let below = i64::try_from(below).unwrap_or(i64::MAX);
        self.write(|transaction| {
            transaction.execute("DELETE FROM revisions WHERE number < ?1", [below])
        })
    }
}
