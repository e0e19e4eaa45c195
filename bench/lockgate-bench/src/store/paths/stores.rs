//! The stores.

use std::collections::HashMap;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use endpoints::{Book, Change, Endpoint, EndpointKey, Table};
use rusqlite::{Connection, Statement, params};

use super::super::{BenchError, endpoint};
use super::Store;

/// Maps that the concurrent one consists of.
const SHARDS: usize = 64;
/// Keys that the table of workers looks up together.
const TOGETHER: usize = 64;

/// The query of the database.
const QUERY: &str = "SELECT host_ip, host_mac, vpc_mac FROM neighbor \
                     WHERE vni = ?1 AND vpc_ip = ?2";

type Map = HashMap<EndpointKey, Endpoint>;
/// Looks keys up, and returns how many are there.
pub(super) type LookUp<'l> = dyn FnMut(&[EndpointKey]) -> Result<usize, BenchError> + 'l;

/// All stores, with the same endpoints.
pub(super) struct Stores {
    database: Connection,
    concurrent: Vec<RwLock<Map>>,
    map: Map,
    book: Book,
}

impl Stores {
    /// Makes stores of so many endpoints.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(super) fn new(entries: usize) -> Result<Stores, BenchError> {
        let all: Vec<Endpoint> = (0..entries).map(endpoint).collect();
        let table = Table::new(entries, &[9; 32]).map_err(BenchError::system("a table"))?;
        let mut book = Book::new(table, 1);
        let put = |endpoint: &Endpoint| Change::Put { revision: 1, endpoint: *endpoint };
        book.apply_each(&all.iter().map(put).collect::<Vec<_>>(), |_, _| {});
        let map = all.iter().map(|endpoint| (endpoint.key, *endpoint)).collect();
        let mut shards = vec![Map::new(); SHARDS];
        for endpoint in &all {
            shards[shard(endpoint.key)].insert(endpoint.key, *endpoint);
        }
        let concurrent = shards.into_iter().map(RwLock::new).collect();
        let database = database(&all).map_err(failed("a database"))?;
        Ok(Stores { database, concurrent, map, book })
    }

    /// Runs `run` with the lookup of a store, which returns how many keys are there.
    ///
    /// # Errors
    /// Those of `run`; [`BenchError::System`]: the database failed.
    pub(super) fn with<T>(
        &self,
        store: Store,
        run: impl FnOnce(&mut LookUp<'_>) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        match store {
            Store::Sqlite => {
                let mut query = self.database.prepare(QUERY).map_err(failed("a query"))?;
                run(&mut |keys| in_database(&mut query, keys).map_err(failed("a query")))
            }
            Store::ConcurrentMap => run(&mut |keys| Ok(self.in_concurrent_map(keys))),
            Store::Map => run(&mut |keys| Ok(self.in_map(keys))),
            Store::Table => run(&mut |keys| Ok(self.in_table(keys))),
            Store::TableBatch => run(&mut |keys| Ok(self.in_table_together(keys))),
        }
    }

    // Each is a function of its own, which a profile can name.
    #[inline(never)]
    fn in_concurrent_map(&self, keys: &[EndpointKey]) -> usize {
        let is_there = |key: &&EndpointKey| {
            let map = self.concurrent[shard(**key)].read();
            let map = map.unwrap_or_else(PoisonError::into_inner);
            black_box(map.get(key)).is_some()
        };
        keys.iter().filter(is_there).count()
    }

    #[inline(never)]
    fn in_map(&self, keys: &[EndpointKey]) -> usize {
        keys.iter().filter(|key| black_box(self.map.get(key)).is_some()).count()
    }

    #[inline(never)]
    fn in_table(&self, keys: &[EndpointKey]) -> usize {
        keys.iter().filter(|key| black_box(self.book.table().find(**key)).is_some()).count()
    }

    #[inline(never)]
    fn in_table_together(&self, keys: &[EndpointKey]) -> usize {
        let mut found = Vec::with_capacity(TOGETHER);
        let mut sum = 0;
        for keys in keys.chunks(TOGETHER) {
            self.book.table().find_many(keys, &mut found);
            sum += black_box(&found).iter().flatten().count();
        }
        sum
    }
}

#[inline(never)]
fn in_database(query: &mut Statement<'_>, keys: &[EndpointKey]) -> rusqlite::Result<usize> {
    let mut found = 0;
    for key in keys {
        let address = IpAddr::from(key.address).to_string();
        let mut rows = query.query(params![key.vni.get(), address])?;
        let Some(row) = rows.next()? else { continue };
        let host = row.get_ref(0)?.as_str()?.parse::<IpAddr>();
        let mac = row.get_ref(2)?.as_str()?;
        found += usize::from(black_box(host).is_ok() && !black_box(mac).is_empty());
    }
    Ok(found)
}

/// The map of a key: neighbours are in different ones.
fn shard(key: EndpointKey) -> usize {
    (key.address.value as usize ^ key.vni.get() as usize) % SHARDS
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
