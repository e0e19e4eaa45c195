//! Counters for Prometheus, at `http://ADDRESS/metrics`; `/healthz` says whether all ports are
//! served, `/` where to look.
//!
//! A scrape shows what the API showed at most a second ago: all scrapes of a second share one
//! report, which threads for blocking work add up and render. Names begin with `lockgate_`, or with
//! `process_` for what all exporters have; names of counters end in `_total`. There is no password:
//! see `[metrics] listen`. So the cost of readers is bounded: one report a second, and connections
//! as `connections.rs` admits them.

mod connections;
mod exposition;
mod families;
#[cfg(test)]
pub(crate) mod lint;
mod process;
#[cfg(test)]
mod queries;
mod shared;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use policy::Action;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::backend::Running;
use crate::cards::CardPicture;
use crate::counted::CountedPicture;
use connections::{ConnectionPlace, OpenConnections, ScrapeClient};
use exposition::Format;
use process::Process;
use shared::{SHARED_TIME, SharedScrapes};

pub(crate) use shared::{ScrapeSource, SourceFuture};

/// Longest time of a connection, from its first byte to its last.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Time for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// Largest head of a request, bytes.
const MAX_HEAD: usize = 8 << 10;
/// Policies whose counters are shown; `lockgate_policies` tells how many there are.
const MAX_POLICIES: usize = 10_000;
/// The answer at `/`.
const INDEX: &str = "\
lockgated

/metrics  counters, for Prometheus: text format 0.0.4, or OpenMetrics if Accept asks for it
/healthz  200 while all ports are up and served, else 503 with the reasons
";

/// The listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics cannot be read at {listen}: {error}; is another daemon there? Name another address \
     in [metrics] listen, or \"off\""
)]
pub(crate) struct ListenError {
    /// The address and port to listen on.
    listen: SocketAddr,
    /// The kernel's answer.
    error: std::io::Error,
}

/// The content of a scrape.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) status: v1::Status,
    pub(crate) ports: Vec<v1::Port>,
    pub(crate) sas: Vec<v1::SecurityAssociation>,
    pub(crate) peers: Vec<v1::Peer>,
    pub(crate) process: Process,
    /// The first [`MAX_POLICIES`].
    pub(crate) policies: Vec<PolicyVolumes>,
    /// All policies.
    pub(crate) policy_count: usize,
    /// Security groups, with the first [`MAX_POLICIES`] of all rules.
    pub(crate) groups: v1::Groups,
    /// Sums over policies and rules of groups, by what they did to packets.
    pub(crate) actions: Vec<(&'static str, v1::Volume)>,
    pub(crate) counters: v1::Counters,
    pub(crate) cache: v1::Cache,
    pub(crate) connections: v1::ConnectionTable,
    pub(crate) endpoints: v1::EndpointSums,
    pub(crate) cards: Vec<v1::Card>,
    /// Number of events of each kind.
    pub(crate) events: Vec<(&'static str, u64)>,
}

/// Packets and bytes that a policy decided.
#[derive(Clone, Debug)]
pub(crate) struct PolicyVolumes {
    pub(crate) name: String,
    pub(crate) outbound: v1::Volume,
    pub(crate) inbound: v1::Volume,
}

/// Leaves out the rules behind the first [`MAX_POLICIES`].
fn first_rules(mut groups: v1::Groups) -> v1::Groups {
    let mut room = MAX_POLICIES;
    for group in &mut groups.groups {
        group.rules.truncate(room);
        room -= group.rules.len();
    }
    groups
}

/// Parts of a report that other threads gather.
pub(crate) struct GatheredParts {
    pub(crate) cards: Vec<CardPicture>,
    pub(crate) endpoints: v1::EndpointSums,
    pub(crate) kernel_tier: Option<v1::KernelTier>,
    /// Number of events of each kind.
    pub(crate) events: Vec<(&'static str, u64)>,
}

impl Report {
    /// Makes a report. Its cost grows with the numbers of policies and SAs: for a thread for
    /// blocking work.
    pub(crate) fn of(status: v1::Status, counted: CountedPicture, parts: GatheredParts) -> Report {
        let GatheredParts { cards, endpoints, kernel_tier, events } = parts;
        let (ports, sas) = (counted.ports(), counted.sas().collect());
        let counters = v1::Counters { kernel_tier, ..counted.counters() };
        let cache = counted.cache();
        let state = Arc::new(counted.into_state());
        let running = &state.running;
        let policies = running.snapshot.spd().policies();
        let sums = running.actions.map(|[outbound, inbound]| v1::Volume {
            packets: outbound.packets + inbound.packets,
            bytes: outbound.bytes + inbound.bytes,
        });
        let first = policies.iter().take(MAX_POLICIES);
        Report {
            status,
            ports,
            sas,
            peers: crate::api::peers(state.clone()).collect(),
            process: Process::read(),
            policies: first.map(|(_, policy)| policy_volumes(running, policy)).collect(),
            policy_count: policies.len(),
            groups: first_rules(crate::api::groups(running)),
            actions: Action::NAMES.into_iter().zip(sums).collect(),
            counters,
            cache,
            connections: running.snapshot.connections().map(crate::api::totals).unwrap_or_default(),
            endpoints,
            cards: crate::cards::cards(&cards),
            events,
        }
    }
}

fn policy_volumes(running: &Running, policy: &policy::Policy) -> PolicyVolumes {
    let volume = |volume: dataplane::counters::Volume| v1::Volume {
        packets: volume.packets,
        bytes: volume.bytes,
    };
    let counted = running.policies.get(policy.name.as_str()).copied().unwrap_or_default();
    let [outbound, inbound] = counted.map(volume);
    PolicyVolumes { name: policy.name.clone(), outbound, inbound }
}

/// Returns the ports that are not served, one sentence each; none: all is well.
fn unserved(ports: &[v1::Port]) -> Vec<String> {
    let mut faults = Vec::new();
    for port in ports {
        let v1::Port { name, state, state_reason, queues, .. } = port;
        if state != "up" {
            faults.push(format!("port {name}: {state}: {state_reason}"));
        }
        for v1::Queue { queue, socket_refused, .. } in queues.iter().filter(|q| !q.socket) {
            faults.push(format!("port {name}: queue {queue}: {socket_refused}"));
        }
    }
    faults
}

/// Every answer is of its moment.
const NOT_STORED: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

/// Opens the listener and serves it in a task of the current runtime. Returns its address.
///
/// # Errors
/// [`ListenError`]: the address is not one of the host, or is in use. Not a reason to stop the
/// daemon.
pub(crate) async fn serve<S: ScrapeSource>(
    listen: SocketAddr,
    source: Arc<S>,
) -> Result<SocketAddr, ListenError> {
    let failed = |error| ListenError { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let router = Router::new()
        .route("/metrics", get(scrape::<S>))
        .route("/healthz", get(health::<S>))
        .route("/", get(async || plain(StatusCode::OK, INDEX.to_owned())))
        .with_state(SharedScrapes::new(source, SHARED_TIME));
    tokio::spawn(accept(listener, router));
    Ok(address)
}

async fn scrape<S: ScrapeSource>(
    State(scrapes): State<Arc<SharedScrapes<S>>>,
    headers: HeaderMap,
) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    match scrapes.text(format).await {
        Ok(text) => {
            ([(header::CONTENT_TYPE, format.content_type()), NOT_STORED], text).into_response()
        }
        Err(_) => internal_error().into_response(),
    }
}

async fn health<S: ScrapeSource>(
    State(scrapes): State<Arc<SharedScrapes<S>>>,
) -> impl IntoResponse {
    let response = match scrapes.unserved().await {
        Ok(faults) if faults.is_empty() => plain(StatusCode::OK, "ok\n".to_owned()),
        Ok(faults) => plain(StatusCode::SERVICE_UNAVAILABLE, faults.join("\n") + "\n"),
        Err(_) => return internal_error().into_response(),
    };
    response.into_response()
}

fn internal_error() -> impl IntoResponse {
    plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error: report it\n".to_owned())
}

fn plain(status: StatusCode, text: String) -> impl IntoResponse {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), NOT_STORED], text)
}

async fn accept(listener: TcpListener, router: Router) -> Infallible {
    let open = OpenConnections::default();
    loop {
        let (stream, source) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Too many open files: the error passes, or others report it.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // The client of a connection that has ended already has no address.
        if let Ok(server) = stream.local_addr() {
            let (place, ended) = open.admit(ScrapeClient::of(source, server));
            tokio::spawn(serve_connection(stream, router.clone(), place, ended));
        }
    }
}

/// Serves one request of a connection. What fails here is the reader's affair.
async fn serve_connection(
    stream: TcpStream,
    router: Router,
    _place: ConnectionPlace,
    ended: oneshot::Receiver<()>,
) {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    server.keep_alive(false).max_buf_size(MAX_HEAD);
    let service = TowerToHyperService::new(router);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = tokio::time::timeout(CONNECTION_TIME, connection) => {}
        _ = ended => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::lint::{labels, samples};
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Poll;

    use dataplane::DropReason;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::Semaphore;

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
            l4_checksum: Some(v1::L4Checksum { bad: count, checked: count, ..Default::default() }),
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
            lifetime: Some(v1::SaLifetime {
                packets: count,
                seconds: Some(count),
                soft: Some(v1::SaLimits { bytes: Some(7), ..Default::default() }),
                hard: Some(v1::SaLimits { packets: Some(9), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let peer = v1::Peer {
            name: "berlin".into(),
            sealed: Some(volume),
            opened: Some(volume),
            moves: count,
            path_mtu: 1400,
            last_received: Some("2026-08-30T12:00:00Z".into()),
            silent: true,
            ..Default::default()
        };
        let drop = v1::Drop { name: "no_match".into(), count, help: String::new() };
        Report {
            status: v1::Status { guard: "intact".into(), ..Default::default() },
            ports: vec![port("wan"), port("wan.7")],
            sas: vec![sa],
            peers: vec![peer],
            process: Process::read(),
            policies: vec![policy("berlin-net"), policy("\"\\")],
            policy_count: 2,
            groups: v1::Groups {
                groups: vec![v1::Group {
                    name: "web".into(),
                    rules: vec![v1::GroupRule {
                        name: "https".into(),
                        decided: Some(volume),
                        ..Default::default()
                    }],
                    ..Default::default()
                }],
                ports: vec![v1::PortGroups {
                    port: "wan".into(),
                    side: "in".into(),
                    decided: Some(volume),
                    ..Default::default()
                }],
                sums: Vec::new(),
            },
            actions: Action::NAMES.map(|action| (action, volume)).into(),
            counters: v1::Counters {
                tiers: Some(v1::Tiers { classifier: count, ..Default::default() }),
                drops: vec![drop],
                workers: vec![v1::Worker {
                    turns: count,
                    handed_over: count,
                    ..Default::default()
                }],
                keepalives: count,
                direct_paths: Some(v1::DirectPaths { told: count, ended: count, refused: count }),
                fast_path: count,
                audited: vec![v1::Audited { tier: "card".into(), packets: count, wrong: count }],
                full_lookups: count,
                ..Default::default()
            },
            connections: v1::ConnectionTable {
                max: count,
                live: count,
                made: count,
                refused: vec![v1::RefusedConnections { bound: "max".into(), count }],
                ..Default::default()
            },
            endpoints: v1::EndpointSums {
                endpoints: count,
                max: count,
                hosts: count,
                tombstones: count,
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
            cards: vec![v1::Card {
                name: "nic0".into(),
                kind: "emulated".into(),
                state: "serves".into(),
                entries: count,
                max_entries: count,
                rules: count,
                ..Default::default()
            }],
            events: vec![("port_up", count)],
        }
    }

    /// The text of a scrape, in either format.
    pub(crate) fn texts(count: u64) -> [String; 2] {
        [Format::Text, Format::OpenMetrics].map(|format| Arc::new(report(count)).text(format))
    }

    #[test]
    fn both_formats_pass_the_lint_and_show_the_same_samples() {
        let [text, open] = texts(3);
        let (text, open) = (samples(&text), samples(&open));
        // The process goes on meanwhile.
        let ours = |name: &&String| !name.starts_with("process_");
        let of = |all: &std::collections::BTreeMap<String, f64>| {
            all.keys().filter(ours).map(|name| (name.clone(), all[name])).collect::<Vec<_>>()
        };
        assert!(text.len() > 100);
        assert_eq!(of(&text), of(&open));
        for name in ["start_time_seconds", "cpu_seconds_total", "resident_memory_bytes", "open_fds"]
        {
            assert!(text[&format!("process_{name}")] > 0.0, "{name}");
        }
    }

    #[test]
    fn the_lint_finds_what_it_looks_for() {
        let good = "# HELP lockgate_x_seconds_total Time of a worker in all\n\
                    # TYPE lockgate_x_seconds_total counter\n\
                    lockgate_x_seconds_total{a=\"b\"} 1\n";
        assert_eq!(samples(good).len(), 1);
        for (from, to) in [
            ("Time of a worker in all", ""),
            ("Time of a worker in all", "Their time, of all the workers"),
            ("_total", ""),
            ("x_seconds", "x_milliseconds"),
            ("x_seconds", "x_counter"),
            ("x_seconds", "xSeconds"),
            ("lockgate_", "other_"),
            ("} 1", "} one"),
            ("} 1", "} -1"),
            (" counter", " untyped"),
            ("lockgate_x_seconds_total{", "lockgate_y_total{"),
            ("} 1\n", "} 1\nlockgate_x_seconds_total{a=\"b\"} 1\n"),
            (
                "} 1\n",
                "} 1\n# HELP lockgate_y_total Time of a worker in all\n\
                       # TYPE lockgate_y_total counter\n",
            ),
            ("# TYPE", "# UNIT lockgate_x_seconds_total bytes\n# TYPE"),
            ("} 1\n", "} 1"),
            ("} 1\n", "} 1\n# HELP lockgate_y_total Time of nothing at all\n"),
            ("} 1\n", "} 1\n# UNIT lockgate_x_seconds_total seconds\n"),
            ("} 1", "} inf"),
            ("worker in", "\"worker\" in"),
            ("a=\"b\"", "a=\"b"),
            ("a=\"b\"", "a=\"b\","),
            ("a=\"b\"", "a=\"b\",a=\"c\""),
            ("a=\"b\"", "a=\"b\\t\""),
            ("a=\"b\"", "a=\"b\"c=\"d\""),
            ("a=\"b\"", "1a=\"b\""),
            ("a=\"b\"", ""),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(good, bad);
            assert!(std::panic::catch_unwind(|| samples(&bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn hostile_names_come_back_from_both_formats_as_they_were() {
        let name = "a\"b\\c\nd}, e=\u{202e}\\n";
        for format in [Format::Text, Format::OpenMetrics] {
            let mut report = report(3);
            report.policies[1].name = name.into();
            let samples = samples(&Arc::new(report).text(format));
            let of_policy = |sample: &&String| {
                let labels = labels(sample).expect("checked by the lint");
                labels.contains(&("policy".to_owned(), name.to_owned()))
            };
            assert_eq!(samples.keys().filter(of_policy).count(), 4, "{samples:#?}");
        }
    }

    #[test]
    fn openmetrics_names_types_and_units_apart_from_suffixes() {
        let [text, open] = texts(3);
        for lines in [
            "# TYPE lockgate_worker_cpu_seconds counter\n\
             # UNIT lockgate_worker_cpu_seconds seconds\n\
             lockgate_worker_cpu_seconds_total{worker=\"0\"} 0.0\n",
            "# TYPE lockgate_build info\nlockgate_build_info{node=\"\",version=\"\"} 1\n",
            "# TYPE lockgate_keepalives counter\nlockgate_keepalives_total 3\n",
        ] {
            assert!(open.contains(lines), "{lines}\nis not in\n{open}");
        }
        for lines in [
            "# TYPE lockgate_worker_cpu_seconds_total counter\n\
             lockgate_worker_cpu_seconds_total{worker=\"0\"} 0\n",
            "# TYPE lockgate_build_info gauge\nlockgate_build_info{node=\"\",version=\"\"} 1\n",
            "# TYPE lockgate_keepalives_total counter\nlockgate_keepalives_total 3\n",
        ] {
            assert!(text.contains(lines), "{lines}\nis not in\n{text}");
        }
    }

    #[test]
    fn a_scrape_of_500_peers_and_10_000_sas_is_complete() {
        let mut report = report(3);
        let peer = |number: u32| v1::Peer { name: format!("peer-{number}"), ..Default::default() };
        let sa = |number: u32| v1::SecurityAssociation {
            direction: "inbound".into(),
            spi: format!("0x{number:08x}"),
            peer: format!("peer-{}", number % 500),
            ..Default::default()
        };
        report.peers = (0..500).map(peer).collect();
        report.sas = (0..10_000).map(sa).collect();
        for format in [Format::Text, Format::OpenMetrics] {
            let text = Arc::new(report.clone()).text(format);
            let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
            assert_eq!(count("lockgate_sa_packets_total{"), 10_000);
            assert_eq!(count("lockgate_peer_silent{"), 500);
        }
    }

    #[test]
    fn every_drop_reason_is_there_with_its_help() {
        let [text, _] = texts(3);
        let samples = samples(&text);
        for reason in DropReason::ALL {
            let name = format!("lockgate_dropped_packets_total{{reason=\"{reason}\"}}");
            let expected = if reason.name() == "no_match" { 3.0 } else { 0.0 };
            assert_eq!(samples.get(&name), Some(&expected), "{name}");
            let info = format!("lockgate_drop_reason_info{{reason=\"{reason}\",help=\"");
            assert!(text.contains(&info), "{info}");
        }
    }

    #[test]
    fn samples_stand_under_the_names_and_labels_that_dashboards_are_written_for() {
        let samples = samples(&texts(3)[0]);
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
            ("lockgate_port_l4_checksum_bad_packets_total{port=\"wan\"}", 3),
            ("lockgate_keepalives_total", 3),
            ("lockgate_direct_path_messages_total{kind=\"tell\"}", 3),
            ("lockgate_direct_path_messages_total{kind=\"end\"}", 3),
            ("lockgate_direct_path_refused_flows_total", 3),
            ("lockgate_fast_path_packets_total", 3),
            ("lockgate_cache_hits_total", 3),
            ("lockgate_full_lookups_total", 3),
            ("lockgate_cache_entries{family=\"ipv4\",direction=\"outbound\"}", 3),
            ("lockgate_connections", 3),
            ("lockgate_connections_max", 3),
            ("lockgate_endpoints", 3),
            ("lockgate_endpoints_max", 3),
            ("lockgate_connections_made_total", 3),
            ("lockgate_connections_refused_total{bound=\"max\"}", 3),
            ("lockgate_peer_moves_total{peer=\"berlin\"}", 3),
            ("lockgate_guard_intact", 1),
            ("lockgate_ledger_imbalance_packets", 0),
            ("lockgate_peer_sent_bytes_total{peer=\"berlin\"}", 300),
            ("lockgate_peer_received_packets_total{peer=\"berlin\"}", 3),
            ("lockgate_peer_silent{peer=\"berlin\"}", 1),
            ("lockgate_peer_path_mtu_bytes{peer=\"berlin\"}", 1400),
            ("lockgate_peer_last_received_timestamp_seconds{peer=\"berlin\"}", 1_788_091_200),
        ] {
            assert_eq!(samples.get(name), Some(&f64::from(value)), "{name} in {samples:#?}");
        }
    }

    #[test]
    fn counters_only_rise_from_scrape_to_scrape() {
        let (before, after) = (samples(&texts(3)[1]), samples(&texts(4)[1]));
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

    /// A source that counts its reports and shows the count.
    #[derive(Default)]
    struct CountingSource {
        reports: AtomicU64,
        change: Option<fn(&mut Report)>,
    }

    impl ScrapeSource for CountingSource {
        fn report(self: Arc<Self>) -> SourceFuture<Report> {
            let count = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
            let mut made = report(count);
            self.change.into_iter().for_each(|change| change(&mut made));
            Box::pin(async { made })
        }

        fn ports(self: Arc<Self>) -> SourceFuture<Vec<v1::Port>> {
            let mut made = report(1);
            self.change.into_iter().for_each(|change| change(&mut made));
            Box::pin(async { made.ports })
        }
    }

    const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[tokio::test]
    async fn all_scrapes_of_a_second_share_one_report() {
        let source = Arc::<CountingSource>::default();
        // A second that does not end.
        let scrapes = SharedScrapes::new(source.clone(), Duration::from_secs(3600));
        let (first, second) =
            tokio::join!(scrapes.text(Format::Text), scrapes.text(Format::OpenMetrics));
        let first = first.unwrap();
        for _ in 0..100 {
            let again = scrapes.text(Format::Text).await.unwrap();
            assert_eq!(again.as_ptr(), first.as_ptr(), "the bytes are shared");
        }
        assert!(second.unwrap().ends_with(b"# EOF\n"));
        assert_eq!(source.reports.load(Ordering::Relaxed), 1);
        // A second that is over at once.
        let scrapes = SharedScrapes::new(source.clone(), Duration::ZERO);
        for made in 2..5 {
            assert_ne!(scrapes.text(Format::Text).await.unwrap(), first);
            assert_eq!(source.reports.load(Ordering::Relaxed), made);
        }
        while scrapes.holds_report().await {
            tokio::task::yield_now().await;
        }
    }

    /// A source whose answers wait for a permit each.
    struct HeldSource {
        reports: AtomicU64,
        looks: AtomicU64,
        released: Semaphore,
    }

    impl ScrapeSource for HeldSource {
        fn report(self: Arc<Self>) -> SourceFuture<Report> {
            self.reports.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                self.released.acquire().await.unwrap().forget();
                report(1)
            })
        }

        fn ports(self: Arc<Self>) -> SourceFuture<Vec<v1::Port>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                self.released.acquire().await.unwrap().forget();
                report(1).ports
            })
        }
    }

    /// Begins a request, and drops the request before its answer.
    async fn close_early(request: impl Future) {
        let mut request = std::pin::pin!(request);
        std::future::poll_fn(|context| {
            assert!(request.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        // The work that the request began.
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn requests_that_are_closed_before_the_answer_make_one_report() {
        let (reports, looks) = Default::default();
        let source = Arc::new(HeldSource { reports, looks, released: Semaphore::new(0) });
        let scrapes = SharedScrapes::new(source.clone(), Duration::from_secs(3600));
        for _ in 0..100 {
            close_early(scrapes.text(Format::Text)).await;
            close_early(scrapes.unserved()).await;
        }
        source.released.add_permits(2);
        assert!(!scrapes.text(Format::Text).await.unwrap().is_empty());
        assert!(scrapes.unserved().await.unwrap().is_empty());
        assert_eq!(source.reports.load(Ordering::Relaxed), 1);
        assert_eq!(source.looks.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let source = Arc::<CountingSource>::default();
        let address = serve(LOCAL, source).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..3 * connections::MAX_LOCAL_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for path in ["/healthz", "/metrics"] {
            let answer = ask(address, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        }
        // The oldest ones gave way; the others end when the time for a head is over.
        for mut stream in silent {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
    }

    /// Once sixteen connections whose clients read nothing held all places of an address.
    #[tokio::test]
    async fn unread_answers_keep_nobody_out() {
        let source = Arc::<CountingSource>::default();
        let address = serve(LOCAL, source).await.unwrap();
        let mut unread = Vec::new();
        for _ in 0..3 * connections::MAX_LOCAL_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // An older connection may have given way already.
            let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await;
            unread.push(stream);
        }
        for path in ["/healthz", "/metrics"] {
            let answer = ask(address, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        }
    }

    /// Once eight connections without a request held all places for ten seconds.
    #[tokio::test]
    async fn head_that_does_not_end_is_cut_off() {
        let address = serve(LOCAL, Arc::<CountingSource>::default()).await.unwrap();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nX: ").await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn only_get_is_answered_and_heads_are_bounded() {
        let source = Arc::<CountingSource>::default();
        let address = serve(LOCAL, source.clone()).await.unwrap();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        assert!(samples(body).len() > 100 && !body.contains("# EOF"));
        let asking = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
        let answer = ask(address, asking).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
        assert!(samples(body).len() > 100 && body.ends_with("# EOF\n"));
        let answer = ask(address, b"GET / HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("/metrics"), "{answer}");
        let answer = ask(address, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
        let answer = ask(address, b"GET /x HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");
        let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
        let answer = ask(address, huge.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        let error = serve(address, source).await.unwrap_err().to_string();
        assert!(error.contains("[metrics] listen"), "{error}");
    }

    #[tokio::test]
    async fn health_is_200_only_while_all_ports_are_served() {
        let answer_of = async |change: fn(&mut Report)| {
            let source = CountingSource { change: Some(change), ..CountingSource::default() };
            let address = serve(LOCAL, Arc::new(source)).await.unwrap();
            ask(address, b"GET /healthz HTTP/1.0\r\n\r\n").await
        };
        let well = answer_of(|_| ()).await;
        assert!(well.starts_with("HTTP/1.0 200") && well.ends_with("ok\n"), "{well}");
        let down = answer_of(|report| {
            report.ports[1].state = "down".into();
            report.ports[1].state_reason = "eth0 has no carrier".into();
        });
        let down = down.await;
        assert!(down.starts_with("HTTP/1.0 503"), "{down}");
        assert!(down.contains("port wan.7: down: eth0 has no carrier"), "{down}");
        let unbound = answer_of(|report| report.ports[0].queues[0].socket = false).await;
        assert!(unbound.contains("port wan: queue 0"), "{unbound}");
    }
}
