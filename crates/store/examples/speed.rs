//! Times of the store with a million endpoints, in a directory of its own:
//! `cargo run --release --package store --example speed -- [DIRECTORY] [ENDPOINTS] [BATCH]`,
//! with BATCH for that size of batch alone. `SORTED=1`: the endpoints come in the order of keys.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use store::{Change, Journal, Record, SqliteStore, Store, StoreError, image};

/// An endpoint: half IPv4 and half IPv6, in no order.
fn endpoint(n: u64, revision: u64) -> Change {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let host = u32::to_be_bytes(0x0a80_0000 | (mixed >> 40) as u32 & 0x3ff).into();
    let address = match n % 2 {
        0 => u32::to_be_bytes(0x0a00_0000 | n as u32).into(),
        _ => (0xfd00_u128 << 112 | u128::from(mixed)).to_be_bytes().into(),
    };
    let mac = std::array::from_fn(|i| (mixed >> (8 * i)) as u8);
    let vni = (mixed >> 48) as u32 % 1000;
    Change::Put(Record { vni, address, host, host_mac: Some(mac), mac, revision })
}

fn timed<T>(what: &str, run: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let begin = Instant::now();
    let result = run()?;
    println!("{what:<58}{:>9.3} s", begin.elapsed().as_secs_f64());
    Ok(result)
}

fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path)
}

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| ".".into()));
    let count: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let only: Option<usize> = arguments.next().and_then(|text| text.parse().ok());
    let path = directory.join("speed.db");
    let mut all: Vec<Change> = (0..count).map(|n| endpoint(n, n + 1)).collect();
    if std::env::var_os("SORTED").is_some() {
        all.sort_by_key(Change::key);
    }

    for (batch, limit, journal) in [
        (all.len(), all.len(), Journal::Nothing),
        (all.len(), all.len(), Journal::Each),
        (131_072, all.len(), Journal::Each),
        (16_384, all.len(), Journal::Nothing),
        (16_384, all.len(), Journal::Each),
        (4096, all.len(), Journal::Each),
        (360, 100_000, Journal::Each),
        (32, 10_000, Journal::Each),
        (1, 1000, Journal::Each),
    ] {
        if only.is_some_and(|only| only != batch) {
            continue;
        }
        remove(&path);
        let mut store = open(&path)?;
        let mut longest = Duration::ZERO;
        let part = &all[..limit.min(all.len())];
        let what = format!("commit {} in batches of {batch}, journal {journal:?}", part.len());
        timed(&what, || {
            part.chunks(batch).try_for_each(|batch| {
                let begin = Instant::now();
                let committed = store.commit(batch, journal).map(drop);
                longest = longest.max(begin.elapsed());
                committed
            })
        })?;
        println!("{:<58}{:>9.3} ms", "  longest commit", longest.as_secs_f64() * 1e3);
    }

    if only.is_some() {
        return Ok(());
    }
    remove(&path);
    let mut store = open(&path)?;
    all.chunks(131_072).try_for_each(|batch| store.commit(batch, Journal::Each).map(drop))?;
    let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    println!("database: {} MiB", bytes >> 20);
    let mut sum = 0;
    let mut each = |change: Change| sum += change.revision();
    timed("snapshot", || store.snapshot(&mut each))?;
    timed("verify", || store.verify())?;
    timed("write the image", || store.write_image())?;
    let image = store.image_path();
    timed("load the image alone", || {
        let image = image::read(&image).map_err(|_| StoreError::Locked { path: image.clone() })?;
        image.each(&mut each);
        Ok(())
    })?;
    let newer: Vec<Change> = (0..50_000).map(|n| endpoint(n * 7 % count, count + n)).collect();
    timed("commit 50000 newer in batches of 360", || {
        newer.chunks(360).try_for_each(|batch| store.commit(batch, Journal::Each).map(drop))
    })?;
    timed("close", || {
        drop(store);
        Ok(())
    })?;
    let mut store = timed("open", || open(&path))?;
    let (_, how) = timed("start", || store.start(&mut each))?;
    println!("{how:?}, sum of revisions {sum}");
    drop(store);
    remove(&path);
    Ok(())
}

fn remove(path: &Path) {
    for behind in ["", "-wal", ".image"] {
        let mut name = path.as_os_str().to_owned();
        name.push(behind);
        let _ = std::fs::remove_file(name);
    }
}
