//! `lockgate bench store --paths`: one lookup a packet, in four stores of the same endpoints. The
//! slow ones are in this crate alone, so that no worker can come to use them.
//!
//! | store | a lookup |
//! |---|---|
//! | `sqlite` | a prepared query of one row, by key; all pages are in SQLite's cache |
//! | `locked map` | `RwLock<HashMap>`: lock to read, look up, unlock; no other thread locks it |
//! | `map` | `HashMap` without a lock, so it cannot change during the run |
//! | `table` | the table of workers, one key at a time |
//! | `table, 64` | the same, 64 keys at once, as a worker looks up a batch |

use std::collections::HashMap;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::RwLock;
use std::time::Instant;

use comfy_table::{Table as TextTable, presets};
use endpoints::{Book, Change, Endpoint, EndpointKey, Table};
use rusqlite::{Connection, params};
use scene::Random;
use serde::Serialize;

use super::{BenchError, endpoint};

/// Keys that are looked up together by the last variant.
const TOGETHER: usize = 64;
/// Laps, each over all keys. They alternate between the stores; the median counts.
const LAPS: usize = 7;
/// Keys of a lap; of the database, which is slower, a part.
const KEYS: usize = 1 << 20;
const DATABASE_KEYS: usize = 1 << 16;
/// Bits of a packet for the throughput (BM-4g).
const PACKET_BITS: f64 = 1400.0 * 8.0;

/// A store with a number of endpoints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    entries: usize,
    store: &'static str,
    lookup_ns: f64,
    /// Slowest lap less the fastest, of the median.
    spread: f64,
    lookups_per_s: f64,
    /// Of packets of 1400 bytes, if a core did nothing but wait for lookups.
    gbps_1400: f64,
}

/// The stores.
struct Stores {
    database: Connection,
    locked: RwLock<HashMap<EndpointKey, Endpoint>>,
    map: HashMap<EndpointKey, Endpoint>,
    book: Book,
}

/// Measures all stores with a number of endpoints.
///
/// # Errors
/// [`BenchError`].
pub(super) fn rows(entries: usize, random: &mut Random) -> Result<Vec<Row>, BenchError> {
    let stores = Stores::new(entries)?;
    let keys: Vec<EndpointKey> = (0..KEYS).map(|_| endpoint(random.below(entries)).key).collect();
    let names = ["sqlite", "locked map", "map", "table", "table, 64"];
    let mut laps = [const { Vec::new() }; 5];
    for _ in 0..LAPS {
        for (store, laps) in laps.iter_mut().enumerate() {
            let keys = if store == 0 { &keys[..DATABASE_KEYS] } else { &keys[..] };
            let began = Instant::now();
            let found = match store {
                0 => stores.in_database(keys)?,
                1 => keys.iter().filter(|key| stores.in_locked_map(**key)).count(),
                2 => keys.iter().filter(|key| black_box(stores.map.get(*key)).is_some()).count(),
                3 => keys.iter().filter(|key| stores.in_table(**key)).count(),
                _ => stores.together(keys),
            };
            laps.push(began.elapsed().as_secs_f64() * 1e9 / keys.len() as f64);
            if found != keys.len() {
                let error = std::io::Error::other("an endpoint was not found");
                return Err(BenchError::system("lookups")(error));
            }
        }
    }
    let row = |(store, mut laps): (&'static str, Vec<f64>)| {
        laps.sort_by(f64::total_cmp);
        let lookup_ns = laps[LAPS / 2];
        let spread = (laps[LAPS - 1] - laps[0]) / lookup_ns;
        let (lookups_per_s, gbps_1400) = (1e9 / lookup_ns, PACKET_BITS / lookup_ns);
        Row { entries, store, lookup_ns, spread, lookups_per_s, gbps_1400 }
    };
    Ok(names.into_iter().zip(laps).map(row).collect())
}

impl Stores {
    fn new(entries: usize) -> Result<Stores, BenchError> {
        let all: Vec<Endpoint> = (0..entries).map(endpoint).collect();
        let table = Table::new(entries, &[9; 32]).map_err(BenchError::system("a table"))?;
        let mut book = Book::new(table, 1);
        let put = |endpoint: &Endpoint| Change::Put { revision: 1, endpoint: *endpoint };
        book.apply_each(&all.iter().map(put).collect::<Vec<_>>(), |_, _| {});
        let map: HashMap<_, _> = all.iter().map(|endpoint| (endpoint.key, *endpoint)).collect();
        let database = database(&all).map_err(failed("a database"))?;
        Ok(Stores { database, locked: RwLock::new(map.clone()), map, book })
    }

    fn in_database(&self, keys: &[EndpointKey]) -> Result<usize, BenchError> {
        let query =
            "SELECT host_ip, host_mac, vpc_mac FROM neighbor WHERE vni = ?1 AND vpc_ip = ?2";
        let mut query = self.database.prepare(query).map_err(failed("a query"))?;
        let mut found = 0;
        for key in keys {
            let address = IpAddr::from(key.address).to_string();
            let read = query.query_row(params![key.vni.get(), address], |row| {
                let host = row.get_ref(0)?.as_str()?.parse::<IpAddr>();
                Ok(black_box(host).is_ok() && black_box(row.get_ref(2)?).as_str().is_ok())
            });
            found += usize::from(read.map_err(failed("a query"))?);
        }
        Ok(found)
    }

    fn in_locked_map(&self, key: EndpointKey) -> bool {
        let map = self.locked.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        black_box(map.get(&key)).is_some()
    }

    fn in_table(&self, key: EndpointKey) -> bool {
        black_box(self.book.table().find(key)).is_some()
    }

    fn together(&self, keys: &[EndpointKey]) -> usize {
        let mut found = Vec::with_capacity(TOGETHER);
        let mut sum = 0;
        for keys in keys.chunks(TOGETHER) {
            self.book.table().find_many(keys, &mut found);
            sum += black_box(&found).iter().flatten().count();
        }
        sum
    }
}

fn failed(what: &'static str) -> impl Fn(rusqlite::Error) -> BenchError {
    move |error| BenchError::system(what)(std::io::Error::other(error))
}

/// A database with the table that the store has, in a file that SQLite removes at the end.
fn database(all: &[Endpoint]) -> rusqlite::Result<Connection> {
    let mut database = Connection::open("")?;
    database.pragma_update(None, "cache_size", -(1 << 20))?;
    database.execute_batch(
        "CREATE TABLE neighbor (
             vni INTEGER NOT NULL, vpc_ip TEXT NOT NULL, host_ip TEXT, host_mac TEXT, vpc_mac TEXT,
             version INTEGER NOT NULL, deleted INTEGER NOT NULL, PRIMARY KEY (vni, vpc_ip)
         ) STRICT, WITHOUT ROWID",
    )?;
    let transaction = database.transaction()?;
    let mut insert =
        transaction.prepare("INSERT INTO neighbor VALUES (?1, ?2, ?3, NULL, ?4, 1, 0)")?;
    for Endpoint { key, host, mac, .. } in all {
        let [a, b, c, d, e, f] = mac.bytes();
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        insert.execute(params![key.vni.get(), key.address.to_string(), host.to_string(), mac])?;
    }
    drop(insert);
    transaction.commit()?;
    Ok(database)
}

/// The figures as a table.
pub(super) fn text(rows: &[Row]) -> String {
    let mut table = TextTable::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "endpoints",
        "store",
        "lookup ns",
        "spread",
        "lookups M/s",
        "Gbit/s, 1400 B",
    ]);
    for row in rows {
        table.add_row([
            row.entries.to_string(),
            row.store.to_owned(),
            format!("{:.1}", row.lookup_ns),
            format!("{:.0} %", row.spread * 100.0),
            format!("{:.2}", row.lookups_per_s / 1e6),
            format!("{:.1}", row.gbps_1400),
        ]);
    }
    format!(
        "{table}\nOne core that waits for one lookup a packet and does nothing else, in memory; \
         Arion published about 0.010 Gbit/s with SQLite in the packet path (BM-4g)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // AX-11, BM-4g: what is compared finds the same.
    #[test]
    fn all_stores_have_the_same_endpoints() {
        let stores = Stores::new(1000).unwrap();
        let keys: Vec<EndpointKey> = (0..1000).map(|number| endpoint(number).key).collect();
        assert_eq!(stores.in_database(&keys).unwrap(), 1000);
        assert_eq!(stores.together(&keys), 1000);
        let found = |key: &EndpointKey| {
            stores.in_locked_map(*key) && stores.map.contains_key(key) && stores.in_table(*key)
        };
        assert!(keys.iter().all(found));
    }
}
