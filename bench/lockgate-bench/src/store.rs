//! `lockgate bench store`: endpoints of virtual networks, from a file through the API into the
//! table and onto the disk, and back after a SIGKILL. The daemon runs in a laboratory; a host sends
//! it an ARP request of a tenant until it answers.
//!
//! | column | from … to |
//! |---|---|
//! | applied | `lockgate endpoint import` connects … the last change is in the table |
//! | durable | … the last commit is on the disk |
//! | first answer | the next daemon is started … it answers a tenant |
//! | cold | the next daemon is started … its API answers: all endpoints are read before |
//! | table alone | all are written into a table in this process |
//! | lookup | in that table, 64 random keys at once |
//!
//! The tenant that asks is there before the import, so one endpoint alone can be measured, too.
//!
//! With `--paths` it measures lookups alone: see [`paths`].

mod paths;
mod rows;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use endpoints::{Book, Change, Endpoint, EndpointKey, Table};
use netlab::sites::Plan;
use netlab::{Daemon, Gateways, interrupt};
use paths::Store;
use rows::{ARION_MS, Row};
use scene::Random;
use serde::Serialize;
use wire::overlay::Kind;
use wire::{Address, LinkAddress, Vni};

use super::machine::{self, Machine};
use super::{ArgumentError, BenchError, publish};

/// Endpoints at least and at most.
const LEAST: usize = 1;
const MOST: usize = 4_194_303;
/// Endpoints of a network.
const NETWORK: usize = 65_536;
/// Hosts that they are behind.
const HOSTS: usize = 250;
/// Time for one import, and for a daemon to answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two requests.
const STEP: Duration = Duration::from_millis(1);
/// Keys that are looked up together, and in all.
const TOGETHER: usize = 64;
const LOOKUPS: usize = 1 << 21;
/// Arguments of `lockgate bench store`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StoreArguments {
    /// Numbers of endpoints, 1 to 4194303.
    #[arg(long, value_delimiter = ',', default_values_t = ARION_MS.map(|(entries, _)| entries))]
    entries: Vec<usize>,
    /// Measures only a lookup a packet: in SQLite, a concurrent map, a map, and the workers' table.
    #[arg(long)]
    paths: bool,
    /// Stores that `--paths` measures; all of them without it.
    #[arg(long, value_enum, value_delimiter = ',', requires = "paths")]
    store: Vec<Store>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report<R> {
    bench: &'static str,
    machine: Machine,
    commit: String,
    rows: Vec<R>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &StoreArguments) -> Result<(), BenchError> {
    let StoreArguments { entries, paths: only_paths, store, json } = arguments;
    ArgumentError::check("--entries", entries, LEAST, MOST).map_err(BenchError::Argument)?;
    interrupt::listen()?;
    let mut random = Random::new(1);
    let (machine, commit) = (Machine::look(None), machine::commit());
    if *only_paths {
        let all = Store::value_variants();
        let stores = if store.is_empty() { all } else { store };
        let rows = entries.iter().map(|count| paths::rows(*count, stores, &mut random));
        let rows = rows.collect::<Result<Vec<Vec<paths::Row>>, BenchError>>()?.concat();
        let text = paths::text(&rows);
        return publish(&Report { bench: "store", machine, commit, rows }, &text, json.as_deref());
    }
    let rows = entries.iter().map(|count| row(*count, &mut random));
    let rows = rows.collect::<Result<Vec<Row>, BenchError>>()?;
    let text = rows::text(&rows);
    publish(&Report { bench: "store", machine, commit, rows }, &text, json.as_deref())
}

/// The endpoint of a number. The first is the tenant that asks.
fn endpoint(number: usize) -> Endpoint {
    let (network, place) = (number / NETWORK, number % NETWORK);
    let vni = Vni::new(7 + network as u32).expect("a few networks");
    // In no order, as names come.
    let place = (place as u32).wrapping_mul(0x9e37) & 0xffff;
    let host = match number {
        0 => 0x0a01_000a,
        _ => 0x0a01_0100 + (number % HOSTS) as u32,
    };
    let [_, b, c, d] = (number as u32).to_be_bytes();
    Endpoint {
        key: EndpointKey { vni, address: Address::v4(0xac10_0000 + place) },
        host: Address::v4(host),
        host_mac: None,
        mac: LinkAddress::new([2, 7, 0, b, c, d]),
    }
}

fn row(entries: usize, random: &mut Random) -> Result<Row, BenchError> {
    let mut gateways = Gateways::build(Plan::default())?;
    let networks = (entries + 1).div_ceil(NETWORK);
    let mut extra = String::from(
        "[overlay.fabric]\nkind = \"vxlan\"\nport = \"lan\"\nentrances = [\"10.1.0.1\"]\n",
    );
    for network in 0..networks {
        let _ = writeln!(extra, "[vni.{}]", 7 + network);
    }
    // And the tenant that asks.
    let _ = writeln!(extra, "[store]\nendpoints = {}", (entries + 1).max(NETWORK));
    gateways.file_mut(1).extra = extra;
    gateways.start(1)?;
    let directory = gateways.directory().to_owned();
    import(gateways.daemon(1)?, &directory, 0..1)?;
    let done = import(gateways.daemon(1)?, &directory, 1..1 + entries)?;
    let seconds = |name: &str| done[name].as_u64().unwrap_or(0) as f64 / 1e6;
    gateways.kill(1);
    let (first_answer_s, cold_s) = start_again(&mut gateways, entries)?;
    let (table_s, lookup_ns) = table_alone(entries, random)?;
    Ok(Row {
        entries,
        applied_s: seconds("applied_us"),
        durable_s: seconds("durable_us"),
        cold_s,
        first_answer_s,
        lookup_ns,
        table_s,
        arion_s: rows::arion_s(entries),
    })
}

/// Puts endpoints from a file, and returns what the command says of it.
fn import(
    daemon: &Daemon,
    directory: &Path,
    numbers: Range<usize>,
) -> Result<serde_json::Value, BenchError> {
    let all = numbers.len() as u64;
    let mut lines = String::from("vni,address,host,mac\n");
    for endpoint in numbers.map(endpoint) {
        let Endpoint { key, host, mac, .. } = endpoint;
        let [a, b, c, d, e, f] = mac.bytes();
        let _ = writeln!(
            lines,
            "{},{},{host},{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}",
            key.vni, key.address
        );
    }
    let file = directory.join("endpoints.csv");
    std::fs::write(&file, lines).map_err(BenchError::system("writing the endpoints"))?;
    let words = ["endpoint", "import", &*file.to_string_lossy(), "--json"];
    let done = netlab::process::run(daemon.command(&words), PATIENCE)?.success()?;
    let done: serde_json::Value =
        serde_json::from_str(&done).map_err(BenchError::system("the import's answer"))?;
    if done["applied"] != all || done["durable"] != true {
        let error = std::io::Error::other(format!("not all were put: {done}"));
        return Err(BenchError::system("importing")(error));
    }
    Ok(done)
}

/// Starts the daemon again, and asks it as a tenant for the link address of an endpoint; returns
/// the seconds until the answer, and until its API answers.
fn start_again(gateways: &mut Gateways, last: usize) -> Result<(f64, f64), BenchError> {
    let host = &gateways.site(1).host;
    let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, Kind::Vxlan.udp_port())))?;
    let socket = socket.map_err(BenchError::system("a socket for VXLAN"))?;
    socket.set_read_timeout(Some(STEP)).map_err(BenchError::system("a socket for VXLAN"))?;
    let (question, mac) = question(last);
    let began = Instant::now();
    let (answered, stop) = (std::sync::Mutex::new(None), std::sync::atomic::AtomicBool::new(false));
    let ask = || {
        let mut answer = [0; 256];
        while !stop.load(std::sync::atomic::Ordering::Relaxed) && began.elapsed() < PATIENCE {
            let _ = socket.send_to(&question, ("10.1.0.1", Kind::Vxlan.udp_port()));
            let got = socket.recv(&mut answer).unwrap_or(0);
            // Behind VXLAN and link header: the sender of the reply.
            if answer[..got].get(8 + 14 + 8..8 + 14 + 14) == Some(&mac[..]) {
                *answered.lock().unwrap_or_else(|it| it.into_inner()) = Some(began.elapsed());
                return;
            }
        }
    };
    let started = std::thread::scope(|scope| {
        let asking = scope.spawn(ask);
        let started = gateways.start(1).map(|_| began.elapsed());
        if started.is_err() {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        let _ = asking.join();
        started
    })?;
    let answered = answered.into_inner().unwrap_or_else(|it| it.into_inner());
    let Some(answered) = answered else {
        let error = std::io::Error::other("no answer to a tenant");
        return Err(BenchError::system("starting again")(error));
    };
    Ok((answered.as_secs_f64(), started.as_secs_f64()))
}

/// A VXLAN packet in which the first tenant asks for an endpoint of its network, and the link
/// address that is the answer.
fn question(last: usize) -> (Vec<u8>, [u8; 6]) {
    let (asks, target) = (endpoint(0), endpoint(last.min(NETWORK - 1)));
    let octets = |address: Address| (address.value as u32).to_be_bytes();
    let mac = asks.mac.bytes();
    let question = [
        &Kind::Vxlan.header(asks.key.vni)[..],
        &[0xff; 6],
        &mac,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &mac,
        &octets(asks.key.address),
        &[0; 6],
        &octets(target.key.address),
    ];
    (question.concat(), target.mac.bytes())
}

/// Seconds until a number of endpoints is in a table, and nanoseconds of a lookup there.
fn table_alone(entries: usize, random: &mut Random) -> Result<(f64, f64), BenchError> {
    let table = Table::new(entries, &[9; 32]).map_err(BenchError::system("a table"))?;
    let mut book = Book::new(table, 1);
    let changes: Vec<Change> =
        (0..entries).map(|n| Change::Put { revision: 1, endpoint: endpoint(n) }).collect();
    let began = Instant::now();
    book.apply_each(&changes, |_, _| {});
    let table_s = began.elapsed().as_secs_f64();
    let keys: Vec<EndpointKey> =
        (0..LOOKUPS).map(|_| endpoint(random.below(entries)).key).collect();
    let mut found = Vec::with_capacity(TOGETHER);
    let mut laps = Vec::new();
    for _ in 0..7 {
        let began = Instant::now();
        for keys in keys.chunks(TOGETHER) {
            book.table().find_many(keys, &mut found);
            if found.iter().any(Option::is_none) {
                let error = std::io::Error::other("an endpoint was not found");
                return Err(BenchError::system("lookups")(error));
            }
        }
        laps.push(began.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64);
    }
    laps.sort_by(f64::total_cmp);
    Ok((table_s, laps[laps.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_differ_and_the_question_is_an_arp_request() {
        let keys: std::collections::BTreeSet<EndpointKey> =
            (0..200_000).map(|number| endpoint(number).key).collect();
        assert_eq!(keys.len(), 200_000);
        let (question, _) = question(9);
        let overlay = wire::overlay::parse(Kind::Vxlan, &question).unwrap();
        assert_eq!(overlay.vni, endpoint(0).key.vni);
        let asked = wire::arp::parse_request(&question[8 + 14..]).unwrap();
        assert_eq!(asked.target, endpoint(9).key.address);
        assert_eq!(asked.sender, Some(endpoint(0).key.address));
    }
}
