//! A stand-in for the daemon behind a socket: it gives fixed answers and remembers the requests.

#![allow(dead_code, reason = "each test file is a program of its own and uses a part of this")]

use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use api::v1;
use api::v1::gateway_server::{Gateway, GatewayServer};
use control::{Picture, Question, Spis};
use dataplane::explain::Inside;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming};
use wire::{Address, Flow, Upper, Vni};

use crate::common::Place;

/// Running configuration.
pub(crate) const RUNNING: &str = "\
[node]\nname = \"gw-a\"\n[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n\
[[policy]]\nname = \"dns\"\naction = \"discard\"\nlocal = [\"any\"]\nremote = [\"any\"]\n\
priority = 1\n";

/// A stand-in for the daemon, which remembers the requests.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    config: PathBuf,
    pub(crate) applied: Arc<Mutex<Vec<v1::ApplyRequest>>>,
    pub(crate) changed: Arc<Mutex<Vec<v1::ChangePoliciesRequest>>>,
    pub(crate) watched: Arc<Mutex<Vec<v1::EventsRequest>>>,
    pub(crate) put: Arc<Mutex<Vec<v1::PutSecurityAssociationsRequest>>>,
    pub(crate) deleted: Arc<Mutex<Vec<v1::DeleteSecurityAssociationsRequest>>>,
    /// Set if streams of events go on for ever.
    pub(crate) follows: Arc<AtomicBool>,
    /// Ports that are not up.
    pub(crate) dead: Arc<Mutex<Vec<control::DeadPort>>>,
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(answer: T) -> Answer<T> {
    Ok(Response::new(answer))
}

type Pages<P> = Pin<Box<dyn tokio_stream::Stream<Item = Result<P, Status>> + Send>>;

/// Answers with pages.
fn in_pages<P: Send + 'static>(
    pages: impl IntoIterator<Item = P, IntoIter: Send + 'static>,
) -> Answer<Pages<P>> {
    Ok(Response::new(Box::pin(tokio_stream::iter(pages.into_iter().map(Ok)))))
}

fn event(number: u64) -> v1::Event {
    let details =
        [("port".to_owned(), v1::Detail::text("wan")), ("limit".into(), v1::Detail::number(5))];
    v1::Event {
        number,
        kind: "port_up".into(),
        severity: "notice".into(),
        subject: "wan".into(),
        message: "two\nlines".into(),
        details: details.into(),
        ..v1::Event::default()
    }
}

#[tonic::async_trait]
impl Gateway for Fake {
    async fn show_status(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Status> {
        let (node, uptime_ms) = ("gw-a\x1b[2J".into(), 65_000);
        let name = "berlin".into();
        let peer = v1::PeerActivity { name, state: "silent".into(), ..v1::PeerActivity::default() };
        let warnings = vec!["peer berlin does not answer".into()];
        let incarnation = "run-7".into();
        let status = v1::Status { node, uptime_ms, incarnation, ..v1::Status::default() };
        answer(v1::Status { peers: vec![peer], warnings, ..status })
    }

    async fn show_ports(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Ports> {
        match request.into_inner().name.as_deref() {
            None | Some("wan") => {}
            Some(name) => return Err(Status::not_found(format!("there is no port \"{name}\""))),
        }
        let queue = v1::Queue { socket: true, rx_packets: 41, ..v1::Queue::default() };
        let (name, xdp_mode, copy_mode) = ("wan".into(), "native".into(), "copy".into());
        let queues = vec![queue];
        let port = v1::Port { name, xdp_mode, copy_mode, queues, ..v1::Port::default() };
        answer(v1::Ports { ports: vec![port] })
    }

    type ShowPeersStream = Pages<v1::Peers>;

    async fn show_peers(&self, _: Request<v1::ShowRequest>) -> Answer<Self::ShowPeersStream> {
        let (name, state) = ("berlin".into(), "ready".into());
        in_pages([v1::Peers { peers: vec![v1::Peer { name, state, ..v1::Peer::default() }] }])
    }

    type ShowSecurityAssociationsStream = Pages<v1::SecurityAssociations>;

    async fn show_security_associations(
        &self,
        _: Request<v1::ShowRequest>,
    ) -> Answer<Self::ShowSecurityAssociationsStream> {
        let sa = v1::SecurityAssociation {
            spi: "0x00001001".into(),
            direction: "outbound".into(),
            owner: "file".into(),
            state: "refused".into(),
            state_reason: "its record is gone".into(),
            ..v1::SecurityAssociation::default()
        };
        let other = |direction: &str, spi: &str| v1::SecurityAssociation {
            direction: direction.into(),
            spi: spi.into(),
            owner: "api".into(),
            state: "ok".into(),
            last_packet_age_ms: Some(2500),
            ..v1::SecurityAssociation::default()
        };
        let others = [("inbound", "0x00002001"), ("outbound", "0x00002001"), ("inbound", "0x300")];
        let others = others.map(|(direction, spi)| other(direction, spi));
        in_pages([vec![sa], others.into()].map(|sas| v1::SecurityAssociations { sas }))
    }

    type ShowPoliciesStream = Pages<v1::Policies>;

    async fn show_policies(&self, _: Request<v1::ShowRequest>) -> Answer<Self::ShowPoliciesStream> {
        let (family, direction) = ("ipv6".into(), "outbound".into());
        let cache_entries = vec![v1::CacheEntries { family, direction, entries: 3 }];
        let named = |name: &str| v1::Policy { name: name.into(), ..v1::Policy::default() };
        let policies = ["berlin-net", "dns", "$(reboot)"].map(named).into();
        in_pages([v1::Policies { policies, cache_entries, ..v1::Policies::default() }])
    }

    async fn show_groups(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Groups> {
        let decided = Some(v1::Volume { packets: 3, bytes: 300 });
        let rule = v1::GroupRule { number: 1, name: "https".into(), decided, ..Default::default() };
        let (name, mode) = ("web".into(), "enforce".into());
        let (ports_in, rules) = (vec!["lan".into()], vec![rule]);
        let group = v1::Group { name, mode, ports_in, rules, ..v1::Group::default() };
        answer(v1::Groups { groups: vec![group], ..v1::Groups::default() })
    }

    type ShowPlacementStream = Pages<v1::Placement>;

    async fn show_placement(
        &self,
        _: Request<v1::ShowRequest>,
    ) -> Answer<Self::ShowPlacementStream> {
        let (name, kind, state) = ("nic0".to_owned(), "emulated".into(), "serves".into());
        let card = v1::Card { name: name.clone(), kind, state, ..v1::Card::default() };
        let rule = |rule: &str, state: &str, reason: &str| v1::PlacedRule {
            card: name.clone(),
            rule: rule.into(),
            family: 4,
            state: state.into(),
            reason: reason.into(),
            ..v1::PlacedRule::default()
        };
        let rules = vec![rule("web/https", "live", ""), rule("web/back", "classifier", "reflect")];
        let policy = v1::PlacedPolicy { direction: "outbound".into(), ..Default::default() };
        let policies = vec![v1::PlacedPolicy { card: name, in_front: true, ..policy }];
        in_pages([v1::Placement { cards: vec![card], rules, policies }])
    }

    type ShowConnectionsStream = Pages<v1::ConnectionPage>;

    async fn show_connections(
        &self,
        request: Request<v1::ConnectionsRequest>,
    ) -> Answer<Self::ShowConnectionsStream> {
        let filter = request.into_inner().filter;
        if filter.starts_with("hots") {
            return Err(Status::invalid_argument("filter: \"hots\" is no word of a filter"));
        }
        let end = |address: &str, port| Some(v1::ConnectionEnd { address: address.into(), port });
        let connection = v1::Connection {
            protocol: "tcp".into(),
            originator: end("10.1.0.7", 4000),
            responder: end("10.2.0.9\n", 443),
            state: "established".into(),
            port: Some(filter),
            ..v1::Connection::default()
        };
        let table = Some(v1::ConnectionTable { max: 64, live: 2, ..Default::default() });
        let pages = [(vec![connection.clone()], None), (vec![connection], table)];
        let pages = pages.map(|(connections, table)| v1::ConnectionPage { connections, table });
        answer(Box::pin(tokio_stream::iter(pages.map(Ok))))
    }

    async fn clear_connections(
        &self,
        request: Request<v1::ConnectionsRequest>,
    ) -> Answer<v1::ConnectionsCleared> {
        let removed = request.into_inner().filter.len() as u64;
        answer(v1::ConnectionsCleared { removed })
    }

    async fn show_cache(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Cache> {
        let size = Some(v1::CacheSize { entries: 65_536, bytes: 2_097_152 });
        let max_size = Some(v1::CacheSize { entries: 4_194_304, bytes: 134_217_728 });
        let (family, direction) = ("ipv4".into(), "outbound".into());
        let domain = v1::CacheDomain {
            generation: 7,
            bypassed: "3 rules cost less".into(),
            ..v1::CacheDomain::default()
        };
        answer(v1::Cache {
            state: "on".into(),
            size,
            max_size,
            entries: vec![v1::CacheEntries { family, direction, entries: 3 }],
            domains: vec![domain],
            ..v1::Cache::default()
        })
    }

    async fn show_cache_entries(
        &self,
        request: Request<v1::CacheEntriesRequest>,
    ) -> Answer<v1::CachedFlows> {
        let v1::CacheEntriesRequest { limit, worker, stale } = request.into_inner();
        let flow = v1::CachedFlow {
            worker: worker.unwrap_or(0),
            source: "10.1.0.7".into(),
            policy: Some("web".into()),
            answer: "policy".into(),
            generation: 7,
            current: !stale,
            ..v1::CachedFlow::default()
        };
        answer(v1::CachedFlows { flows: vec![flow; limit as usize], more: true })
    }

    async fn change_policies(
        &self,
        request: Request<v1::ChangePoliciesRequest>,
    ) -> Answer<v1::Applied> {
        let request = request.into_inner();
        self.changed.lock().unwrap().push(request.clone());
        let mut applied = v1::Applied {
            ok: true,
            revision: 6,
            generation: 10,
            dry_run: request.dry_run,
            ..v1::Applied::default()
        };
        if request.remove == ["unknown"] {
            (applied.ok, applied.refused) = (false, "there is no policy \"unknown\"".into());
        }
        answer(applied)
    }

    async fn put_security_associations(
        &self,
        request: Request<v1::PutSecurityAssociationsRequest>,
    ) -> Answer<v1::SecurityAssociationsChanged> {
        let request = request.into_inner();
        let count = request.sas.len() as u32;
        let is_met = request.sas.iter().position(|sa| sa.key == [0xff]);
        self.put.lock().unwrap().push(request);
        let mut done = v1::SecurityAssociationsChanged::default();
        match is_met {
            None => (done.ok, done.put, done.unchanged) = (true, count - 1, 1),
            Some(place) => {
                (done.refused, done.message) = ("key_used".into(), "the key was put before".into());
                done.place = Some(place as u32);
            }
        }
        answer(done)
    }

    async fn delete_security_associations(
        &self,
        request: Request<v1::DeleteSecurityAssociationsRequest>,
    ) -> Answer<v1::SecurityAssociationsChanged> {
        let request = request.into_inner();
        let deleted = request.sas.len() as u32;
        self.deleted.lock().unwrap().push(request);
        answer(v1::SecurityAssociationsChanged { ok: true, deleted, ..Default::default() })
    }

    async fn reserve_spi(
        &self,
        request: Request<v1::ReserveSpiRequest>,
    ) -> Answer<v1::ReservedSpi> {
        if request.into_inner().peer != "berlin" {
            return Err(Status::not_found("there is no peer \"brelin\"; did you mean \"berlin\"?"));
        }
        let (spi, incarnation) = ("0x5d3c7e01".into(), "run-7".into());
        answer(v1::ReservedSpi { spi, incarnation, worker: 1, seconds: 300 })
    }

    async fn show_neighbours(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Neighbours> {
        answer(v1::Neighbours::default())
    }

    async fn show_routes(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Routes> {
        let (to, kind) = ("10.9.0.0/16".into(), "blackhole".into());
        answer(v1::Routes { routes: vec![v1::Route { to, kind, ..v1::Route::default() }] })
    }

    async fn show_counters(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Counters> {
        let drop = v1::Drop { name: "no_match".into(), count: 5, help: "nothing matches".into() };
        let tiers = Some(v1::Tiers { classifier: 77, ..v1::Tiers::default() });
        answer(v1::Counters { tiers, drops: vec![drop], ..v1::Counters::default() })
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let request = request.into_inner();
        let loaded = config::load(&self.config, None).unwrap();
        let (keys, _) = loaded.keys.for_replay(&loaded.validated, &[]).unwrap();
        let snapshot = control::compile(&loaded.validated, keys, dataplane::Generation(1)).unwrap();
        let prefixes = loaded.validated.prefixes();
        let dead = self.dead.lock().unwrap().clone();
        let picture = Picture {
            snapshot: &snapshot,
            now_ns: 0,
            prefixes: &prefixes,
            spis: Spis::Configured,
            routing: control::Routing::Known,
            dead_ports: &dead,
            recalled: &[],
            kernel_tier: None,
        };
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let (source, destination) = (address(&request.source), address(&request.destination));
        let upper = match (request.ports, request.icmp) {
            (Some(ports), None) => {
                Upper::Ports { source: ports.source as u16, destination: ports.destination as u16 }
            }
            (None, Some(icmp)) => Upper::Icmp { kind: icmp.r#type as u8, code: icmp.code as u8 },
            _ if request.later_fragment => Upper::Fragment,
            _ => Upper::None,
        };
        let flow = Flow {
            family: source.family,
            source: source.value,
            destination: destination.value,
            protocol: request.protocol as u8,
            upper,
            opens: false,
        };
        let from_peer = request.from_peer.as_deref();
        let inside = request.vni.map(|number| Inside {
            vni: Vni::new(number).expect("the command checks it"),
            host: request.host.as_deref().map(address),
        });
        let told =
            control::explain(picture, Question { port: &request.port, from_peer, flow, inside });
        let told = told.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut answered: v1::Explanation =
            serde_json::from_value(serde_json::to_value(&told).unwrap()).unwrap();
        let line = |(heading, text): (&str, String)| v1::Line { heading: heading.into(), text };
        answered.lines = told.lines.into_iter().map(line).collect();
        answer(answered)
    }

    type ExportStream = Pages<v1::Exported>;

    async fn export(&self, _: Request<v1::ExportRequest>) -> Answer<Self::ExportStream> {
        let (first, rest) = RUNNING.split_at(20);
        let piece = |toml: &str| v1::Exported { toml: toml.into(), ..v1::Exported::default() };
        in_pages([v1::Exported { revision: 4, ..piece(first) }, piece(rest)])
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Answer<v1::Applied> {
        let request = request.into_inner();
        self.applied.lock().unwrap().push(request.clone());
        let mut applied = v1::Applied {
            ok: true,
            revision: 5,
            generation: 9,
            dry_run: request.dry_run,
            notes: vec!["peer berlin: its key is refused".into()],
            ..v1::Applied::default()
        };
        if request.save {
            applied.saved_to = "/etc/x.toml".into();
        }
        match request.text.as_str() {
            text if text.ends_with("# keys\n") => {
                let (direction, spi) = ("out".into(), "0x00001001".into());
                let key = v1::KeyName { direction, spi, fingerprint: "0123456789abcdef".into() };
                let (peer, added) = ("berlin".into(), vec![key]);
                applied.key_changes = vec![v1::KeyChange { peer, added, ..Default::default() }];
            }
            text if text.ends_with("# busy\n") => {
                (applied.ok, applied.refused) = (false, "revision 5 waits".into());
            }
            text if text.ends_with("# lost\n") => {
                (applied.ok, applied.rendered) = (false, "berlin.keys: is not there\n".into());
            }
            "full" => applied.not_saved = "not saved: no space".into(),
            "bad" => (applied.ok, applied.rendered) = (false, "new.toml:1:1: not good\n".into()),
            "unfit" => (applied.ok, applied.refused) = (false, "eth9 is not there".into()),
            "forbidden" => return Err(Status::permission_denied("be root")),
            _ => {}
        }
        answer(applied)
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Answer<v1::Confirmed> {
        match request.into_inner().revision {
            None | Some(5) => answer(v1::Confirmed { revision: 5 }),
            Some(_) => Err(Status::failed_precondition("nothing waits to be confirmed")),
        }
    }

    async fn save(&self, _: Request<v1::SaveRequest>) -> Answer<v1::Saved> {
        answer(v1::Saved { file: "/etc/x.toml".into(), revision: 5, unchanged: false })
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Answer<v1::Applied> {
        let revision = request.into_inner().revision.unwrap_or(6);
        answer(v1::Applied { ok: true, revision, ..v1::Applied::default() })
    }

    async fn show_revisions(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Revisions> {
        let one = v1::Revision { revision: 3, cause: "apply".into(), ..v1::Revision::default() };
        answer(v1::Revisions { revisions: vec![one] })
    }

    type CaptureStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Captured, Status>> + Send>>;

    async fn capture(
        &self,
        request: Request<v1::CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        if request.into_inner().port != "wan" {
            return Err(Status::permission_denied("capture: permission denied"));
        }
        let packet = v1::CapturedPacket {
            port: "wan".into(),
            direction: "in".into(),
            verdict: "drop".into(),
            reason: "policy_discard".into(),
            inbound_policy: "\x1b[2J\u{202e}\nforged".into(),
            ..v1::CapturedPacket::default()
        };
        let mut captured = v1::Captured { packets: vec![packet], ..v1::Captured::default() };
        if self.follows.load(Ordering::Relaxed) {
            let first = tokio_stream::iter([Ok(captured)]);
            return answer(Box::pin(first.chain(tokio_stream::pending())));
        }
        captured.ended = "time limit reached".into();
        answer(Box::pin(tokio_stream::iter([Ok(captured)])))
    }

    type EventsStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Event, Status>> + Send>>;

    async fn events(&self, request: Request<v1::EventsRequest>) -> Answer<Self::EventsStream> {
        self.watched.lock().unwrap().push(request.into_inner());
        let events = tokio_stream::iter([1, 2].map(event).map(Ok));
        match self.follows.load(Ordering::Relaxed) {
            true => answer(Box::pin(events.chain(tokio_stream::pending()))),
            false => answer(Box::pin(events)),
        }
    }

    type ChangeEndpointsStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::EndpointsChanged, Status>> + Send>>;

    async fn change_endpoints(
        &self,
        request: Request<Streaming<v1::EndpointChanges>>,
    ) -> Answer<Self::ChangeEndpointsStream> {
        let mut batches = request.into_inner();
        let mut told = Vec::new();
        while let Some(batch) = batches.message().await? {
            let applied = batch.changes.len() as u64;
            let number = told.len() as u64 / 2;
            let of = |stage: &str| v1::EndpointsChanged {
                batch: number,
                stage: stage.into(),
                ..v1::EndpointsChanged::default()
            };
            told.push(Ok(v1::EndpointsChanged { applied, ..of("applied") }));
            told.push(Ok(v1::EndpointsChanged { commit: 1, ..of("durable") }));
        }
        answer(Box::pin(tokio_stream::iter(told)))
    }

    type ShowEndpointsStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::EndpointPage, Status>> + Send>>;

    async fn show_endpoints(
        &self,
        request: Request<v1::EndpointsRequest>,
    ) -> Answer<Self::ShowEndpointsStream> {
        let endpoint = v1::Endpoint {
            vni: request.into_inner().vni.unwrap_or(7),
            address: "10.0.0.2".into(),
            host: "192.0.2.12".into(),
            host_mac: None,
            mac: "02:07:00:00:00:02".into(),
            revision: 3,
        };
        let sums = v1::EndpointSums { endpoints: 1, max: 65_536, hosts: 1, tombstones: 0 };
        let page = v1::EndpointPage { endpoints: vec![endpoint], sums: Some(sums) };
        answer(Box::pin(tokio_stream::iter([Ok(page)])))
    }

    type WatchEndpointsStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::EndpointsWatched, Status>> + Send>>;

    async fn watch_endpoints(
        &self,
        request: Request<v1::EndpointsWatch>,
    ) -> Answer<Self::WatchEndpointsStream> {
        let after = request.into_inner().after.unwrap_or(0);
        if after > 9 {
            return Err(Status::failed_precondition("take the whole table first"));
        }
        let (vni, address) = (7, "10.0.0.2".to_owned());
        let put = v1::Endpoint {
            vni,
            address: address.clone(),
            host: "192.0.2.12".into(),
            host_mac: None,
            mac: "02:07:00:00:00:02".into(),
            revision: after + 1,
        };
        let delete = v1::EndpointName { vni, address, revision: after + 2 };
        let changes =
            [v1::endpoint_change::Change::Put(put), v1::endpoint_change::Change::Delete(delete)];
        let changes = changes.map(|change| v1::EndpointChange { change: Some(change) });
        let first = v1::EndpointsWatched { changes: vec![], resume_after: after };
        let second = v1::EndpointsWatched { changes: changes.into(), resume_after: after + 2 };
        answer(Box::pin(tokio_stream::iter([Ok(first), Ok(second)])))
    }

    type WatchAcquiresStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Acquire, Status>> + Send>>;

    async fn watch_acquires(
        &self,
        _: Request<v1::WatchAcquiresRequest>,
    ) -> Answer<Self::WatchAcquiresStream> {
        let acquire = |id| v1::Acquire {
            id,
            peer: "berlin".into(),
            policy: "berlin-net".into(),
            source: "10.1.0.5".into(),
            destination: "10.2.0.9".into(),
            protocol: 17,
            ports: Some(v1::PortPair { source: 1000, destination: 53 }),
            icmp: None,
            flow: "10.1.0.5 port 1000 to 10.2.0.9 port 53, udp".into(),
        };
        answer(Box::pin(tokio_stream::iter([1, 2].map(acquire).map(Ok))))
    }
}

/// A directory with gateways' files, and a stand-in for the daemon behind `socket`.
pub(crate) struct Lab {
    pub(crate) place: Place,
    pub(crate) socket: PathBuf,
    pub(crate) fake: Fake,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let place = Place::with_gateways();
        let socket = place.file("api.sock");
        let fake = Fake { config: place.file("a.toml"), ..Fake::default() };
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = GatewayServer::new(fake.clone());
        // Ends with the test.
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                let mut server = tonic::transport::Server::builder();
                let connections = UnixListenerStream::new(listener);
                server.add_service(service).serve_with_incoming(connections).await.unwrap();
            });
        });
        Lab { place, socket, fake }
    }

    pub(crate) fn args<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [&["--socket", self.socket.to_str().unwrap()], words].concat()
    }

    pub(crate) fn succeeds(&self, words: &[&str]) -> String {
        self.place.succeeds(&self.args(words))
    }

    pub(crate) fn json(&self, words: &[&str]) -> Value {
        self.place.json(&self.args(words))
    }

    pub(crate) fn fails(&self, code: i32, words: &[&str], said: &[&str]) {
        self.place.fails(code, &self.args(words), said);
    }
}
