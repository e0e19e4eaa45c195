//! Counters as Prometheus text, at `http://ADDRESS/metrics`.
//!
//! Made anew for each scrape out of what the API shows, so that the two never differ. Names begin
//! with `lockgate_`; those of counters end in `_total`. There is no password: see
//! `[metrics] listen`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use dataplane::DropReason;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::backend::Backend;

/// Connections at a time; more wait.
const MAX_CONNECTIONS: usize = 8;
/// How long a connection may last, from its first byte to its last.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Largest head of a request, bytes.
const MAX_HEAD: usize = 8 << 10;
/// Policies whose counters are shown; `lockgate_policies` tells how many there are.
const MAX_POLICIES: usize = 10_000;

/// The listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics cannot be read at {listen}: {error}; is another daemon there? Name another address \
     in [metrics] listen, or \"off\""
)]
pub(crate) struct ListenError {
    /// Where.
    listen: SocketAddr,
    /// The kernel's answer.
    error: std::io::Error,
}

/// What a scrape shows.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) status: v1::Status,
    pub(crate) ports: Vec<v1::Port>,
    pub(crate) sas: Vec<v1::SecurityAssociation>,
    /// How often each peer has moved; those that have.
    pub(crate) moves: Vec<(String, u64)>,
    /// The first [`MAX_POLICIES`].
    pub(crate) policies: Vec<PolicyVolumes>,
    /// All policies.
    pub(crate) policy_count: usize,
    pub(crate) counters: v1::Counters,
    pub(crate) cache: v1::Cache,
    /// How often each kind of event happened.
    pub(crate) events: Vec<(&'static str, u64)>,
}

/// What a policy decided.
#[derive(Clone, Debug)]
pub(crate) struct PolicyVolumes {
    pub(crate) name: String,
    pub(crate) outbound: v1::Volume,
    pub(crate) inbound: v1::Volume,
}

impl Report {
    /// Asks the daemon.
    pub(crate) async fn of(backend: &dyn Backend) -> Report {
        let running = backend.running().await;
        let policies = running.snapshot.spd().policies();
        let volume = |volume: &dataplane::counters::Volume| v1::Volume {
            packets: volume.packets,
            bytes: volume.bytes,
        };
        let counted =
            |policy: &policy::Policy| running.policies.get(&policy.id).copied().unwrap_or_default();
        Report {
            status: backend.status().await,
            ports: backend.ports().await,
            sas: backend.security_associations().await,
            moves: running.moves.into_iter().collect(),
            policies: policies
                .iter()
                .take(MAX_POLICIES)
                .map(|(_, policy)| {
                    let [outbound, inbound] = counted(policy);
                    let name = policy.name.clone();
                    PolicyVolumes { name, outbound: volume(&outbound), inbound: volume(&inbound) }
                })
                .collect(),
            policy_count: policies.len(),
            counters: backend.counters().await,
            cache: backend.cache().await,
            events: backend.event_counts().await,
        }
    }

    /// As OpenMetrics text, which Prometheus reads.
    pub(crate) fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("lockgate");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing to a string");
        text
    }
}

/// Opens the listener and serves it for ever in a task of the current runtime. Returns where it
/// listens.
///
/// # Errors
/// [`ListenError`]: the address is not ours or in use. Not a reason to stop the daemon.
pub(crate) async fn serve(
    listen: SocketAddr,
    backend: Arc<dyn Backend>,
) -> Result<SocketAddr, ListenError> {
    let source: Source = Arc::new(move || {
        let backend = backend.clone();
        Box::pin(async move { Report::of(backend.as_ref()).await })
    });
    serve_reports(listen, source).await
}

/// Where reports come from.
type Source = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Report> + Send>> + Send + Sync>;

async fn serve_reports(listen: SocketAddr, source: Source) -> Result<SocketAddr, ListenError> {
    let failed = |error| ListenError { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let router = Router::new().route("/metrics", get(scrape)).with_state(source);
    tokio::spawn(accept(listener, router));
    Ok(address)
}

async fn scrape(State(source): State<Source>) -> impl IntoResponse {
    let text = source().await.into_text();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")], text)
}

async fn accept(listener: TcpListener, router: Router) -> Infallible {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Too many open files: it passes, or it is another's affair.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).keep_alive(false).max_buf_size(MAX_HEAD);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            // What fails here is the reader's affair.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
}

/// Writes families: a name, a help text, and rows of labels with a value.
struct Families<'a>(DescriptorEncoder<'a>);

type Written = Result<(), std::fmt::Error>;

impl Families<'_> {
    /// A counter; `_total` is added to its name.
    fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
    ) -> Written {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        rows.into_iter().try_for_each(|(labels, value)| {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, String); N], i64)>,
    ) -> Written {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        rows.into_iter()
            .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    /// A gauge without labels.
    fn level(&mut self, name: &str, help: &str, value: i64) -> Written {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A counter without labels.
    fn count(&mut self, name: &str, help: &str, value: u64) -> Written {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }
}

impl Collector for Report {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Written {
        let mut families = Families(encoder);
        self.write_status(&mut families)?;
        self.write_decisions(&mut families)?;
        self.write_cache(&mut families)?;
        self.write_ports(&mut families)?;
        self.write_queues(&mut families)?;
        self.write_kernel(&mut families)?;
        self.write_sas(&mut families)?;
        self.write_policies(&mut families)?;
        self.write_workers(&mut families)
    }
}

fn level(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Report {
    fn write_status(&self, families: &mut Families<'_>) -> Written {
        let v1::Status { node, version, guard, .. } = &self.status;
        let labels = [("node", node.clone()), ("version", version.clone())];
        families.gauge("build_info", "The node and what it runs", [(labels, 1)])?;
        let uptime = level(self.status.uptime_ms / 1000);
        families.level("uptime_seconds", "Since the daemon started", uptime)?;
        let revision = level(self.status.revision);
        families.level("revision", "Revision of the configuration that runs", revision)?;
        let generation = i64::from(self.status.generation);
        families.level("generation", "Generation of the policies that run", generation)?;
        let intact = i64::from(guard.starts_with("intact"));
        families.level("guard_intact", "1 while the nftables guard stands", intact)
    }

    fn write_decisions(&self, families: &mut Families<'_>) -> Written {
        let counters = &self.counters;
        let tiers = counters.tiers.unwrap_or_default();
        let tiers = [
            ("device", tiers.device),
            ("kernel", tiers.kernel),
            ("cache", tiers.cache),
            ("classifier", tiers.classifier),
        ];
        let tiers = tiers.map(|(tier, packets)| ([("tier", tier.into())], packets));
        families.counter("tier_packets", "Packets by the tier that decided them", tiers)?;
        let dropped = |reason: &DropReason| {
            let drop = counters.drops.iter().find(|drop| drop.name == reason.name());
            ([("reason", reason.name().into())], drop.map_or(0, |drop| drop.count))
        };
        let help = "Packets dropped, by reason; drop_reason_info says what each means";
        families.counter("dropped_packets", help, DropReason::ALL.iter().map(dropped))?;
        let info = |reason: &DropReason| {
            ([("reason", reason.name().into()), ("help", reason.help().into())], 1)
        };
        let help = "What each drop reason means and what to do";
        families.gauge("drop_reason_info", help, DropReason::ALL.iter().map(info))?;
        families.level(
            "ledger_imbalance",
            "Packets that no line of the ledgers accounts for; 0 whenever nothing is on its way",
            level(counters.ledger_imbalance),
        )?;
        let held = i64::from(counters.held);
        families.level("held_packets", "Packets that wait for a next hop", held)?;
        families.count(
            "icmp_limited",
            "ICMP messages not made because of the rate limit",
            counters.icmp_limited,
        )?;
        let help = "NAT keepalives made for tunnels on which nothing was sent";
        families.count("keepalives", help, counters.keepalives)?;
        let events = self.events.iter().map(|(kind, count)| ([("kind", (*kind).into())], *count));
        families.counter("events", "Events by kind; `lockgate events` tells them", events)?;
        families.count(
            "netlink_resyncs",
            "Times the kernel's addresses, routes and neighbours were read again as a whole",
            counters.netlink_resyncs,
        )
    }

    fn write_cache(&self, families: &mut Families<'_>) -> Written {
        let v1::CacheCounters { hits, misses, inserts, stale, evictions, .. } =
            self.cache.counters.unwrap_or_default();
        let counters = [
            ("cache_hits", "Packets that the flow cache answered", hits),
            ("cache_misses", "Packets whose flow had no entry that holds", misses),
            ("cache_inserts", "Entries written into the flow cache", inserts),
            ("cache_stale", "Of these, over an entry of another generation", stale),
            ("cache_evictions", "Entries that held when another took their place", evictions),
        ];
        for (name, help, count) in counters {
            families.count(name, help, count)?;
        }
        let searches = self.counters.full_lookups;
        families.count("full_lookups", "Times the classifier searched", searches)?;
        let entries = self.cache.entries.iter().map(|entry| {
            let labels = [("family", entry.family.clone()), ("direction", entry.direction.clone())];
            (labels, level(entry.entries))
        });
        families.gauge("cache_entries", "Entries of the flow cache that hold", entries)?;
        let bytes = self.cache.size.unwrap_or_default().bytes;
        families.level("cache_bytes", "Memory of the flow cache", level(bytes))
    }

    fn write_ports(&self, families: &mut Families<'_>) -> Written {
        let info = self.ports.iter().map(|port| {
            let labels = [
                ("port", port.name.clone()),
                ("netdev", port.netdev.clone()),
                ("side", port.side.clone()),
                ("state", port.state.clone()),
                ("xdp_mode", port.xdp_mode.clone()),
                ("copy_mode", port.copy_mode.clone()),
            ];
            (labels, 1)
        });
        families.gauge("port_info", "The ports and how they are served", info)?;
        let port = |port: &v1::Port| [("port", port.name.clone())];
        let up = self.ports.iter().map(|p| (port(p), i64::from(p.state == "up")));
        families.gauge("port_up", "1 while the port is up", up)?;
        type Line = fn(&v1::Ledger) -> u64;
        let lines: [(&str, &str, Line); 6] = [
            ("port_received_packets", "Packets received by the port", |l| l.received),
            ("port_made_packets", "Packets made because of what it received", |l| l.made),
            ("port_sent_packets", "Of those received and made, accepted by a transmit ring", |l| {
                l.sent
            }),
            ("port_dropped_packets", "Of those received and made, dropped", |l| l.dropped),
            ("port_consumed_packets", "Of those received and made, replaced by others", |l| {
                l.consumed
            }),
            ("port_host_packets", "Of those received and made, handed to Linux", |l| l.host),
        ];
        let ledger = |p: &v1::Port| p.ledger.unwrap_or_default();
        for (name, help, line) in lines {
            let rows = self.ports.iter().map(|p| (port(p), line(&ledger(p))));
            families.counter(name, help, rows)?;
        }
        let held = self.ports.iter().map(|p| (port(p), level(ledger(p).held)));
        families.gauge(
            "port_held_packets",
            "Of those received and made, waiting for a next hop",
            held,
        )?;
        let imbalance = self.ports.iter().map(|p| (port(p), ledger(p).imbalance));
        let help = "received + made - sent - dropped - consumed - host - held";
        families.gauge("port_ledger_imbalance", help, imbalance)?;
        let packets = self.ports.iter().map(|p| (port(p), p.tx_packets));
        let help = "Packets that left by the port";
        families.counter("port_transmitted_packets", help, packets)?;
        let bytes = self.ports.iter().map(|p| (port(p), p.tx_bytes));
        let help = "Their bytes, link headers counted";
        families.counter("port_transmitted_bytes", help, bytes)
    }

    fn write_queues(&self, families: &mut Families<'_>) -> Written {
        let all = || self.ports.iter().flat_map(|p| p.queues.iter().map(move |queue| (p, queue)));
        let labels = |port: &v1::Port, queue: &v1::Queue, key, word: &str| {
            [("port", port.name.clone()), ("queue", queue.queue.to_string()), (key, word.into())]
        };
        let packets = all().flat_map(|(port, queue)| {
            [("receive", queue.rx_packets), ("transmit", queue.tx_packets)]
                .map(|(word, count)| (labels(port, queue, "direction", word), count))
        });
        let help = "Frames of a receive queue's AF_XDP socket";
        families.counter("queue_packets", help, packets)?;
        let dropped = all().flat_map(|(port, queue)| {
            let reasons = [
                ("rx_dropped", queue.rx_dropped),
                ("queue_full", queue.queue_full),
                ("fill_empty", queue.fill_empty),
                ("tx_invalid", queue.tx_invalid),
                ("tx_full", queue.tx_full),
            ];
            reasons.map(|(word, count)| (labels(port, queue, "reason", word), count))
        });
        families.counter("queue_dropped_packets", "Frames dropped at the socket", dropped)?;
        let bound = all().map(|(port, queue)| {
            let labels = labels(port, queue, "worker", &queue.worker.to_string());
            (labels, i64::from(queue.socket))
        });
        families.gauge("queue_bound", "1 while the queue's socket is bound", bound)
    }

    /// Ports of one netdev share its program: each netdev once.
    fn write_kernel(&self, families: &mut Families<'_>) -> Written {
        let mut seen = BTreeSet::new();
        let netdevs: Vec<(&str, v1::KernelCounters)> = self
            .ports
            .iter()
            .filter_map(|port| Some((port.netdev.as_str(), port.kernel?)))
            .filter(|(netdev, _)| seen.insert(*netdev))
            .collect();
        let received =
            netdevs.iter().map(|(netdev, k)| ([("netdev", (*netdev).into())], k.received));
        let help = "Packets that the XDP program saw";
        families.counter("kernel_received_packets", help, received)?;
        let decided = netdevs.iter().flat_map(|(netdev, k)| {
            let words = [
                ("to_worker", k.to_worker),
                ("passed_not_to_us", k.passed_not_to_us),
                ("passed_arp_nd", k.passed_arp_nd),
                ("passed_not_ip", k.passed_not_ip),
                ("passed_to_host", k.passed_to_host),
                ("passed_allow_host", k.passed_allow_host),
                ("no_socket", k.no_socket),
                ("mark_failed", k.mark_failed),
            ];
            words.map(|(w, n)| ([("netdev", (*netdev).into()), ("decision", w.into())], n))
        });
        let help = "What the XDP program did with them; passed_ went to Linux, no_socket and \
                    mark_failed were dropped";
        families.counter("kernel_packets", help, decided)?;
        let full = netdevs.iter().map(|(netdev, k)| ([("netdev", (*netdev).into())], k.ring_full));
        let help = "Of to_worker, dropped because the socket's ring was full";
        families.counter("kernel_ring_full_packets", help, full)?;
        let rows = netdevs.iter().map(|(netdev, k)| ([("netdev", (*netdev).into())], k.imbalance));
        let help = "Packets that the XDP program's counters do not account for";
        families.gauge("kernel_imbalance", help, rows)
    }

    fn write_sas(&self, families: &mut Families<'_>) -> Written {
        let labels = |sa: &v1::SecurityAssociation| {
            [
                ("peer", sa.peer.clone()),
                ("spi", sa.spi.clone()),
                ("direction", sa.direction.clone()),
            ]
        };
        let ok = self.sas.iter().map(|sa| (labels(sa), i64::from(sa.state == "ok")));
        families.gauge("sa_ok", "1 while the SA seals or opens; show sa says why not", ok)?;
        let packets = self.sas.iter().map(|sa| (labels(sa), sa.packets));
        families.counter("sa_packets", "Inner packets sealed or opened", packets)?;
        let bytes = self.sas.iter().map(|sa| (labels(sa), sa.bytes));
        families.counter("sa_bytes", "Their bytes", bytes)?;
        let sequence = self.sas.iter().map(|sa| (labels(sa), level(sa.sequence)));
        let help = "Last sequence number used, or the replay window's right edge";
        families.gauge("sa_sequence", help, sequence)?;
        let outbound = self.sas.iter().filter_map(|sa| Some((labels(sa), level(sa.reserved_to?))));
        let help = "Sequence numbers are reserved on disk up to here";
        families.gauge("sa_reserved_sequence", help, outbound)?;
        let moves = self.moves.iter().map(|(peer, count)| ([("peer", peer.clone())], *count));
        let help = "Times that a peer behind a NAT was followed to another address or port";
        families.counter("peer_moves", help, moves)
    }

    fn write_policies(&self, families: &mut Families<'_>) -> Written {
        let help = "Policies that run; the first 10000 are counted here";
        families.level("policies", help, level(self.policy_count as u64))?;
        let labels = |policy: &PolicyVolumes, direction: &str| {
            [("policy", policy.name.clone()), ("direction", direction.into())]
        };
        let both = |of: fn(&v1::Volume) -> u64| {
            self.policies.iter().flat_map(move |policy| {
                [
                    (labels(policy, "outbound"), of(&policy.outbound)),
                    (labels(policy, "inbound"), of(&policy.inbound)),
                ]
            })
        };
        let help = "Packets that the policy decided";
        families.counter("policy_packets", help, both(|volume| volume.packets))?;
        families.counter("policy_bytes", "Their bytes", both(|volume| volume.bytes))
    }

    fn write_workers(&self, families: &mut Families<'_>) -> Written {
        let workers = &self.counters.workers;
        let worker = |worker: &v1::Worker| [("worker", worker.worker.to_string())];
        let turns = workers.iter().map(|w| (worker(w), w.turns));
        families.counter("worker_turns", "Times round the worker's loop", turns)?;
        let sleeps = workers.iter().map(|w| (worker(w), w.sleeps));
        families.counter("worker_sleeps", "Times the worker slept", sleeps)?;
        let handed = workers.iter().map(|w| (worker(w), w.handed_over));
        let help = "Packets that the worker received and another worker's SA was to open";
        families.counter("worker_handed_over_packets", help, handed)?;
        let taken = workers.iter().map(|w| (worker(w), w.taken_over));
        let help = "Packets that other workers received and the worker walked";
        families.counter("worker_taken_over_packets", help, taken)?;
        let cpu = workers.iter().map(|w| (worker(w), w.cpu_ms));
        families.counter("worker_cpu_milliseconds", "CPU time of the worker", cpu)?;
        let census = |w: &v1::Worker| w.frames.unwrap_or_default();
        let frames = workers.iter().flat_map(|w| {
            let frames = census(w);
            let places = [
                ("free", frames.free),
                ("fill", frames.fill),
                ("rx", frames.rx),
                ("tx", frames.tx),
                ("completion", frames.completion),
                ("held", frames.held),
            ];
            places.map(|(place, count)| {
                ([("worker", w.worker.to_string()), ("place", place.into())], level(count))
            })
        });
        families.gauge("frames", "Where the worker's frames are", frames)?;
        let missing = workers.iter().map(|w| (worker(w), census(w).missing));
        families.gauge("frames_missing", "Frames that are nowhere: always 0", missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// A report whose every counter is `count`.
    fn report(count: u64) -> Report {
        let ledger =
            v1::Ledger { received: 2 * count, sent: count, dropped: count, ..Default::default() };
        let queue = v1::Queue { rx_packets: count, socket: true, ..Default::default() };
        let kernel = v1::KernelCounters { received: count, to_worker: count, ..Default::default() };
        let port = |name: &str| v1::Port {
            name: name.into(),
            netdev: "eth0".into(),
            state: "up".into(),
            queues: vec![queue.clone()],
            ledger: Some(ledger),
            kernel: Some(kernel),
            ..Default::default()
        };
        let volume = v1::Volume { packets: count, bytes: 100 * count };
        let policy =
            |name: &str| PolicyVolumes { name: name.into(), outbound: volume, inbound: volume };
        let sa = v1::SecurityAssociation {
            direction: "outbound".into(),
            spi: "0x1001".into(),
            peer: "berlin".into(),
            state: "ok".into(),
            packets: count,
            reserved_to: Some(1 << 20),
            ..Default::default()
        };
        let drop = v1::Drop { name: "no_match".into(), count, help: String::new() };
        Report {
            status: v1::Status { guard: "intact".into(), ..Default::default() },
            ports: vec![port("wan"), port("wan.7")],
            sas: vec![sa],
            moves: vec![("berlin".into(), count)],
            policies: vec![policy("berlin-net"), policy("\"\\")],
            policy_count: 2,
            counters: v1::Counters {
                tiers: Some(v1::Tiers { classifier: count, ..Default::default() }),
                drops: vec![drop],
                workers: vec![v1::Worker {
                    turns: count,
                    handed_over: count,
                    ..Default::default()
                }],
                keepalives: count,
                full_lookups: count,
                ..Default::default()
            },
            cache: v1::Cache {
                counters: Some(v1::CacheCounters { hits: count, ..Default::default() }),
                entries: vec![v1::CacheEntries {
                    family: "ipv4".into(),
                    direction: "outbound".into(),
                    entries: count,
                }],
                ..Default::default()
            },
            events: vec![("port_up", count)],
        }
    }

    /// Samples by name and labels. Panics where the text is not OpenMetrics.
    fn samples(text: &str) -> BTreeMap<String, i64> {
        let mut family = String::new();
        let mut is_counter = false;
        let mut samples = BTreeMap::new();
        let (body, end) = text.split_at(text.len() - "# EOF\n".len());
        assert_eq!(end, "# EOF\n");
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split_once(' ').expect("a help text").0.to_owned();
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, family);
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                is_counter = kind == "counter";
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').expect(line);
            let name = sample.split('{').next().unwrap();
            let expected = format!("{family}{}", if is_counter { "_total" } else { "" });
            assert_eq!(name, expected, "{line}");
            assert!(name.starts_with("lockgate_"), "{line}");
            let earlier = samples.insert(sample.to_owned(), value.parse().expect(line));
            assert!(earlier.is_none(), "twice: {line}");
        }
        samples
    }

    #[test]
    fn every_drop_reason_is_there_with_its_help() {
        let text = report(3).into_text();
        let samples = samples(&text);
        for reason in DropReason::ALL {
            let name = format!("lockgate_dropped_packets_total{{reason=\"{reason}\"}}");
            let expected = if reason.name() == "no_match" { 3 } else { 0 };
            assert_eq!(samples.get(&name), Some(&expected), "{name}");
            let info = format!("lockgate_drop_reason_info{{reason=\"{reason}\",help=\"");
            assert!(text.contains(&info), "{info}");
        }
    }

    #[test]
    fn samples_stand_under_the_names_and_labels_that_dashboards_are_written_for() {
        let samples = samples(&report(3).into_text());
        for (name, value) in [
            ("lockgate_port_received_packets_total{port=\"wan\"}", 6),
            ("lockgate_port_up{port=\"wan\"}", 1),
            ("lockgate_tier_packets_total{tier=\"classifier\"}", 3),
            ("lockgate_sa_packets_total{peer=\"berlin\",spi=\"0x1001\",direction=\"outbound\"}", 3),
            ("lockgate_policy_bytes_total{policy=\"berlin-net\",direction=\"inbound\"}", 300),
            ("lockgate_policy_packets_total{policy=\"\\\"\\\\\",direction=\"outbound\"}", 3),
            ("lockgate_queue_packets_total{port=\"wan\",queue=\"0\",direction=\"receive\"}", 3),
            // Two ports, one netdev: once.
            ("lockgate_kernel_received_packets_total{netdev=\"eth0\"}", 3),
            ("lockgate_worker_handed_over_packets_total{worker=\"0\"}", 3),
            ("lockgate_keepalives_total", 3),
            ("lockgate_cache_hits_total", 3),
            ("lockgate_full_lookups_total", 3),
            ("lockgate_cache_entries{family=\"ipv4\",direction=\"outbound\"}", 3),
            ("lockgate_peer_moves_total{peer=\"berlin\"}", 3),
            ("lockgate_guard_intact", 1),
            ("lockgate_ledger_imbalance", 0),
        ] {
            assert_eq!(samples.get(name), Some(&value), "{name} in {samples:#?}");
        }
    }

    #[test]
    fn counters_only_rise_from_scrape_to_scrape() {
        let (before, after) = (samples(&report(3).into_text()), samples(&report(4).into_text()));
        assert!(before.keys().eq(after.keys()));
        let counters = || before.iter().filter(|(name, _)| name.contains("_total"));
        assert!(counters().all(|(name, value)| after[name] >= *value));
        assert!(counters().filter(|(name, value)| after[*name] > **value).count() > 10);
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn only_get_of_metrics_is_answered_and_heads_are_bounded() {
        let source: Source = Arc::new(|| Box::pin(async { report(1) }));
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = serve_reports(local, source.clone()).await.unwrap();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("application/openmetrics-text"), "{head}");
        assert!(samples(body).len() > 100);
        let answer = ask(address, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
        let answer = ask(address, b"GET / HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");
        let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
        let answer = ask(address, huge.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        let error = serve_reports(address, source).await.unwrap_err().to_string();
        assert!(error.contains("[metrics] listen"), "{error}");
    }
}
