//! The writes of one commit, inside its transaction.

use std::net::IpAddr;

use rusqlite::{Result, Transaction, params};

use super::text::{write_ip, write_mac};
use crate::{Change, Limits, record};

/// Applies the changes that are newer than their keys, or than the floor if there is no such key.
/// Returns for each change 1 if it applied.
///
/// The changes go in by key, so that those of one page of the table are written together; those of
/// one key keep their order.
pub(super) fn apply(
    transaction: &Transaction<'_>,
    batch: &[Change],
    floor: u64,
) -> Result<Vec<bool>> {
    // A floor of 0 covers nothing.
    let floor = if floor == 0 { -1 } else { floor as i64 };
    let mut order: Vec<(u32, IpAddr, usize)> =
        batch.iter().enumerate().map(|(i, change)| (change.key().0, change.key().1, i)).collect();
    order.sort_unstable();
    let mut upsert = transaction.prepare(
        "INSERT INTO neighbor SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
         WHERE ?6 > ?8 OR EXISTS (SELECT 1 FROM neighbor WHERE vni = ?1 AND vpc_ip = ?2)
         ON CONFLICT (vni, vpc_ip) DO UPDATE SET
             host_ip = excluded.host_ip, host_mac = excluded.host_mac,
             vpc_mac = excluded.vpc_mac, version = excluded.version, deleted = excluded.deleted
         WHERE excluded.version > version",
    )?;
    let [mut address, mut host, mut host_mac, mut mac] = [const { String::new() }; 4];
    let mut applied = vec![false; batch.len()];
    for (vni, key, i) in order {
        write_ip(&mut address, key);
        let version = batch[i].revision() as i64;
        let changed = match &batch[i] {
            Change::Put(record) => {
                write_ip(&mut host, record.host);
                write_mac(&mut mac, record.mac);
                let host_mac = record.host_mac.map(|mac| {
                    write_mac(&mut host_mac, mac);
                    &host_mac
                });
                upsert.execute(params![vni, address, host, host_mac, mac, version, 0, floor])?
            }
            Change::Delete(_) => {
                let none = None::<&str>;
                upsert.execute(params![vni, address, none, none, none, version, 1, floor])?
            }
        };
        applied[i] = changed > 0;
    }
    Ok(applied)
}

/// Writes one line of the journal for each revision, of the batch and of `others`, which did not
/// apply. `lines` is what the journal holds, and will
/// hold.
pub(super) fn journal(
    transaction: &Transaction<'_>,
    number: u64,
    batch: &[Change],
    (applied, others): (&[bool], &[u64]),
    lines: &mut u64,
) -> Result<()> {
    let revisions = batch.iter().map(|change| change.revision() as i64);
    let mut revisions: Vec<(i64, bool)> = revisions.zip(applied.iter().copied()).collect();
    revisions.extend(others.iter().map(|revision| (*revision as i64, false)));
    revisions.sort_unstable();
    let mut insert =
        transaction.prepare("INSERT OR IGNORE INTO journal VALUES (?1, ?2, ?3, ?4)")?;
    let mut update = transaction.prepare(
        "UPDATE journal SET done = ?2, delivered = delivered + ?3, applied = applied + ?4
         WHERE version = ?1",
    )?;
    for same in revisions.chunk_by(|a, b| a.0 == b.0) {
        let applied = same.iter().filter(|(_, applied)| *applied).count();
        let line = params![same[0].0, number as i64, same.len() as i64, applied as i64];
        match insert.execute(line)? {
            0 => drop(update.execute(line)?),
            _ => *lines += 1,
        }
    }
    Ok(())
}

/// Raises the floor, and removes the tombstones that it covers. Returns how many they are.
pub(super) fn forget(transaction: &Transaction<'_>, floor: u64) -> Result<u64> {
    transaction.execute("UPDATE floor SET revision = ?1", [floor as i64])?;
    let remove = "DELETE FROM neighbor WHERE deleted = 1 AND version <= ?1";
    Ok(transaction.execute(remove, [floor as i64])? as u64)
}

/// Removes the lowest lines of a journal that has become too long.
pub(super) fn shorten_journal(
    transaction: &Transaction<'_>,
    limits: &Limits,
    lines: &mut u64,
) -> Result<()> {
    if *lines <= limits.journal as u64 {
        return Ok(());
    }
    let excess = *lines - limits.journal_kept() as u64;
    let removed = transaction.execute(
        "DELETE FROM journal WHERE version IN
             (SELECT version FROM journal ORDER BY version LIMIT ?1)",
        [excess as i64],
    )?;
    *lines -= removed as u64;
    Ok(())
}

/// The state of the log.
#[derive(Clone, Copy)]
pub(super) struct Log {
    /// The lowest commit number after which it has all changes.
    pub(super) oldest: u64,
    /// The number of the last commit.
    pub(super) newest: u64,
    /// Changes that it holds, a commit of none counted as one.
    pub(super) size: u64,
}

/// Adds a commit to the log, and removes the oldest ones that are too many.
pub(super) fn log(
    transaction: &Transaction<'_>,
    mark: i64,
    batch: &[Change],
    applied: &[bool],
    bound: u64,
    log: &mut Log,
) -> Result<()> {
    let count = applied.iter().filter(|applied| **applied).count() as u64;
    log.newest += 1;
    let fits = count.max(1) <= bound;
    let mut blob = Vec::new();
    if fits {
        blob.reserve_exact(count as usize * record::BYTES);
        let changes = batch.iter().zip(applied).filter(|(_, applied)| **applied);
        changes.for_each(|(change, _)| blob.extend_from_slice(&record::encode(change)));
    }
    let row = params![log.newest as i64, mark, count as i64, blob];
    transaction.execute("INSERT INTO log VALUES (?1, ?2, ?3, ?4)", row)?;
    log.size += count.max(1);
    if log.size <= bound {
        return Ok(());
    }
    let mut rows =
        transaction.prepare("SELECT number, count FROM log WHERE number > ?1 ORDER BY number")?;
    let mut rows = rows.query([log.oldest as i64])?;
    while log.size > bound
        && let Some(row) = rows.next()?
    {
        log.oldest = row.get::<_, i64>(0)? as u64;
        log.size -= (row.get::<_, i64>(1)? as u64).max(1).min(log.size);
    }
    drop(rows);
    let oldest = [log.oldest as i64];
    transaction.execute("DELETE FROM log WHERE number < ?1", oldest)?;
    transaction.execute("UPDATE log SET count = 0, changes = x'' WHERE number = ?1", oldest)?;
    Ok(())
}
