//! `lockgate bench store --paths`: one lookup a packet, in stores of the same endpoints: alone, and
//! in the path of packets. The slow ones are in this crate alone, so that no worker can come to
//! use them.
//!
//! | store | a lookup |
//! |---|---|
//! | `sqlite` | a prepared query of one row, by key; all pages are in SQLite's cache |
//! | `concurrent map` | 64 maps, each behind a lock that readers share; nobody writes |
//! | `map` | `HashMap` without a lock, so it cannot change during the run |
//! | `table` | the table of workers, one key at a time |
//! | `table, 64` | the same, 64 keys at once, as a worker looks up a batch |

mod path;
mod stores;

use clap::ValueEnum;
use comfy_table::{Table as TextTable, presets};
use endpoints::EndpointKey;
use scene::Random;
use serde::Serialize;

use super::super::measure::{Figure, measure};
use super::{BenchError, endpoint};
use path::{PACKET_BYTES, Path};
use stores::Stores;

/// Laps of lookups alone, each over all keys, and of packets. Both alternate between the stores;
/// the medians count.
const LAPS: usize = 7;
const PACKET_LAPS: usize = 31;
/// Keys of a lap; of the database, which is slower, a part.
const KEYS: usize = 1 << 20;
const DATABASE_KEYS: usize = 1 << 16;
/// Packets of a lap, likewise.
const PACKETS: usize = 1 << 16;
const DATABASE_PACKETS: usize = 1 << 13;

/// A store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Store {
    /// A query of SQLite.
    Sqlite,
    /// Maps behind locks that readers share.
    ConcurrentMap,
    /// A map.
    Map,
    /// The table of workers, a key at a time.
    Table,
    /// The table of workers, a batch at a time.
    TableBatch,
}

impl Store {
    /// Its name in rows.
    fn name(self) -> &'static str {
        match self {
            Store::Sqlite => "sqlite",
            Store::ConcurrentMap => "concurrent map",
            Store::Map => "map",
            Store::Table => "table",
            Store::TableBatch => "table, 64",
        }
    }

    /// Keys and packets of its laps.
    fn lap(self) -> (usize, usize) {
        match self {
            Store::Sqlite => (DATABASE_KEYS, DATABASE_PACKETS),
            _ => (KEYS, PACKETS),
        }
    }
}

/// A store with a number of endpoints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    entries: usize,
    store: &'static str,
    lookup_ns: f64,
    /// Distance of the quartiles, of the median.
    spread: f64,
    lookups_per_s: f64,
    /// A packet's way through a worker with one lookup before it.
    packet_ns: f64,
    packet_spread: f64,
    /// Packets of 1400 bytes of one core.
    gbps_1400: f64,
}

/// Measures stores with a number of endpoints.
///
/// # Errors
/// [`BenchError`].
pub(super) fn rows(
    entries: usize,
    which: &[Store],
    random: &mut Random,
) -> Result<Vec<Row>, BenchError> {
    let stores = Stores::new(entries)?;
    let mut path = Path::new()?;
    let keys: Vec<EndpointKey> = (0..KEYS).map(|_| endpoint(random.below(entries)).key).collect();
    let mut alone = vec![Vec::new(); which.len()];
    for _ in 0..LAPS {
        for (store, laps) in which.iter().zip(&mut alone) {
            let keys = &keys[..store.lap().0];
            let lap = stores.with(*store, |look_up| {
                let (found, span) = measure(|| look_up(keys));
                all_found(found?, keys.len())?;
                Ok(span.cpu.as_secs_f64() * 1e9 / keys.len() as f64)
            })?;
            laps.push(lap);
        }
    }
    let mut carried = vec![Vec::new(); which.len()];
    for _ in 0..PACKET_LAPS {
        for (store, laps) in which.iter().zip(&mut carried) {
            let keys = &keys[..store.lap().1];
            laps.push(stores.with(*store, |look_up| path.carry(keys, look_up))?);
        }
    }
    let rows = which.iter().zip(alone.iter().zip(&carried));
    Ok(rows.map(|(store, (alone, carried))| Row::of(entries, *store, alone, carried)).collect())
}

fn all_found(found: usize, keys: usize) -> Result<(), BenchError> {
    if found == keys {
        return Ok(());
    }
    Err(BenchError::system("lookups")(std::io::Error::other("an endpoint was not found")))
}

impl Row {
    /// A row from the nanoseconds of its laps: of a lookup alone, and of a packet.
    fn of(entries: usize, store: Store, alone: &[f64], carried: &[f64]) -> Row {
        let [alone, carried] = [alone, carried].map(Figure::of);
        Row {
            entries,
            store: store.name(),
            lookup_ns: alone.median,
            spread: alone.spread,
            lookups_per_s: 1e9 / alone.median,
            packet_ns: carried.median,
            packet_spread: carried.spread,
            gbps_1400: (PACKET_BYTES * 8) as f64 / carried.median,
        }
    }
}

/// The figures as a table.
pub(super) fn text(rows: &[Row]) -> String {
    let mut table = TextTable::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "endpoints",
        "store",
        "lookup ns",
        "± IQR",
        "lookups M/s",
        "packet ns",
        "± IQR",
        "Gbit/s, 1400 B",
    ]);
    for row in rows {
        table.add_row([
            row.entries.to_string(),
            row.store.to_owned(),
            format!("{:.1}", row.lookup_ns),
            format!("{:.0} %", row.spread * 100.0),
            format!("{:.2}", row.lookups_per_s / 1e6),
            format!("{:.1}", row.packet_ns),
            format!("{:.0} %", row.packet_spread * 100.0),
            format!("{:.2}", row.gbps_1400),
        ]);
    }
    format!(
        "{table}\nCPU time of a core, in memory. packet: a lookup in the store for each packet of \
         a batch, then a worker's fast path sends the batch on in its overlay, as always. Arion \
         published about 0.010 Gbit/s with SQLite in the packet path, and more than 8 in the \
         kernel (BM-4g)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // AX-11, BM-4g: database, concurrent map, map and table, each alone and in the packets' path.
    #[test]
    fn each_store_has_its_lookups_and_the_packets_that_it_lets_pass() {
        let all = [Store::Sqlite, Store::ConcurrentMap, Store::Map, Store::TableBatch];
        let row = |(number, store): (usize, &Store)| {
            let ns = 100.0 * (number + 1) as f64;
            Row::of(1000, *store, &[ns, 1.1 * ns, 0.9 * ns], &[2.0 * ns, 2.2 * ns, 1.8 * ns])
        };
        let text = text(&all.iter().enumerate().map(row).collect::<Vec<Row>>());
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let lines: Vec<String> = lines.collect();
        for line in [
            "1000 sqlite 100.0 10 % 10.00 200.0 10 % 56.00",
            "1000 concurrent map 200.0 10 % 5.00 400.0 10 % 28.00",
            "1000 map 300.0 10 % 3.33 600.0 10 % 18.67",
            "1000 table, 64 400.0 10 % 2.50 800.0 10 % 14.00",
        ] {
            assert!(lines.iter().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(text.contains("0.010 Gbit/s with SQLite in the packet path, and more than 8"));
    }

    // BM-4g, AX-13: `cargo xtask flame --stores` draws them.
    #[test]
    fn each_kind_of_store_has_its_picture_and_the_report_shows_it() {
        let report = documents::file("performance.md");
        // The table one key at a time is there for comparison only.
        for store in Store::value_variants().iter().filter(|store| **store != Store::Table) {
            let value = store.to_possible_value().unwrap();
            let name = format!("flames/store-{}.svg", value.get_name());
            let picture = documents::file(&name);
            let lookups = match store {
                Store::Sqlite => "sqlite3_step",
                Store::ConcurrentMap => "in_concurrent_map",
                Store::Map => "in_map",
                Store::Table | Store::TableBatch => "in_table_together",
            };
            assert!(picture.contains("<svg") && picture.contains(lookups), "{name}");
            assert!(picture.contains("FastPath"), "{name}: no packet's path");
            assert!(report.contains(&format!("({name})")), "{name} is not shown");
        }
    }

    // AX-11, BM-4g: what is measured is what the rows say.
    #[test]
    fn all_stores_find_all_endpoints_before_their_packets_leave() {
        let mut path = Path::new().unwrap();
        let stores = Stores::new(1000).unwrap();
        let keys: Vec<EndpointKey> = (0..1000).map(|number| endpoint(number).key).collect();
        let absent = endpoint(1000).key;
        for store in Store::value_variants() {
            let mut asked = Vec::new();
            let done = stores.with(*store, |look_up| {
                assert_eq!(look_up(&keys)?, 1000, "{store:?}");
                assert_eq!(look_up(&[keys[7], absent])?, 1, "{store:?}");
                path.carry(&keys, &mut |keys| {
                    asked.extend_from_slice(keys);
                    look_up(keys)
                })?;
                // A packet whose endpoint is not there.
                Ok(path.carry(&[keys[7], absent], look_up).is_err())
            });
            assert!(done.unwrap(), "{store:?}");
            assert_eq!(asked, keys);
        }
    }
}
