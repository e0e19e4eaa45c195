//! The daemon as the API sees it: what runs, in the API's words.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use api::v1;
use control::Validated;
use control::mirror::{NeighbourState, PortState};
use control::validated::OnExit;
use control::{HOST_NETDEV, mac_text, service_text};
use dataplane::cache::{Key, Recall};
use dataplane::{DropReason, L4Checksum, Ledger, PortInfo, Side};
use ipsec::{Encapsulation, Fingerprint, SequenceNumbers, Spi};
use policy::Direction;
use tokio::sync::{Mutex, Notify, broadcast, mpsc};

use crate::assign;
use crate::backend::{
    Backend, CacheQuestion, CaptureOrder, CaptureRefused, Change, ConnectionNumber, Done, Intent,
    NotConfirmed, Now, PolicyChange, Refused, Running, Save, Uid,
};
use crate::cached;
use crate::captures::Captures;
use crate::change::body_of;
use crate::events::{Events, Kind};
use crate::numbers;
use crate::overview;
use crate::policies::Waiting;
use crate::state::State;
use crate::totals::Totals;
use crate::unconfirmed;
use crate::worker::Report;

/// The daemon: its state, shared by the API's requests and the control loop.
pub(crate) struct Daemon {
    pub(crate) state: Mutex<State>,
    pub(crate) events: Events,
    /// Held while a change is made: one at a time. Taken before the state.
    pub(crate) changing: Mutex<()>,
    /// Changes of policies that wait for that.
    pub(crate) waiting: std::sync::Mutex<Vec<Waiting>>,
    /// Policies were changed: what follows from it is to be done.
    pub(crate) changed: Notify,
    /// A change waits to be confirmed, or does no more.
    pub(crate) waits_changed: Notify,
    /// Captures that run.
    pub(crate) captures: Captures,
}

impl Daemon {
    /// Shares a state.
    pub(crate) fn new(state: State) -> Arc<Daemon> {
        let events = state.events.clone();
        Arc::new(Daemon {
            state: Mutex::new(state),
            events,
            changing: Mutex::new(()),
            waiting: std::sync::Mutex::default(),
            changed: Notify::new(),
            waits_changed: Notify::new(),
            captures: Captures::default(),
        })
    }

    fn audit(&self, by: Uid, kinds: [Kind; 2], subject: &str, done: &Result<Done, Refused>) {
        let [made, refused] = kinds;
        match done {
            Ok(done) => {
                let changes = match done.differences.len() + done.key_changes.len() {
                    _ if done.unchanged => "unchanged".to_owned(),
                    1 => "1 change".to_owned(),
                    many => format!("{many} changes"),
                };
                let mut message = format!("revision {}: {changes}", done.revision);
                // Which peers have other keys; refused keys have events of their own.
                if let Some(note) = done.notes.first() {
                    message.push_str("; ");
                    message.push_str(note);
                }
                let details: crate::events::Details<'_> =
                    &[("revision", &done.revision), ("generation", &done.generation.0)];
                self.events.audit(by, made, subject, message, details);
            }
            Err(error) => self.events.audit(by, refused, subject, error.to_string(), &[]),
        }
    }
}

impl Daemon {
    /// Tells of a change of single policies: each with its action, and what it takes from whom.
    fn audit_policies(&self, by: Uid, done: &Done) {
        let mut message = format!("revision {}: {}", done.revision, done.policies.text);
        for sentence in done.takeovers.sentences() {
            message.push_str("; ");
            message.push_str(&sentence);
        }
        let from: Vec<&str> = done.takeovers.found.iter().map(|one| one.from.as_str()).collect();
        let takes_from = from.join(", ");
        let (revision, generation) = (&done.revision, &done.generation.0);
        let details: crate::events::Details<'_> = match done.takeovers.found.is_empty() {
            true => &[("revision", revision), ("generation", generation)],
            false => {
                &[("revision", revision), ("generation", generation), ("takes_from", &takes_from)]
            }
        };
        self.events.audit(by, Kind::PoliciesChanged, &done.policies.subject, message, details);
    }
}

#[tonic::async_trait]
impl Backend for Daemon {
    async fn running(&self) -> Running {
        let state = self.state.lock().await;
        let (reports, totals) = totals(&state).await;
        Running {
            settings: state.config().clone(),
            cache_entries: cached::entries(&state, &reports),
            snapshot: state.snapshot.clone(),
            routes: state.live.routes.clone(),
            policies: totals.policies,
            sas: totals.sas,
            moves: state.moves.clone(),
            liveness: state.liveness_of_peers(),
            spis: control::Spis::Configured,
        }
    }

    async fn configuration(&self) -> Arc<Validated> {
        let compiled = self.state.lock().await.compiled.copied();
        let settings = compiled.settings().clone();
        let whole = tokio::task::spawn_blocking(move || compiled.validated().clone()).await;
        whole.unwrap_or(settings)
    }

    async fn key_names(&self) -> control::KeyNames {
        let compiled = self.state.lock().await.compiled.copied();
        compiled.key_names()
    }

    async fn now(&self) -> Now {
        let state = self.state.lock().await;
        Now { revision: state.revision, generation: state.snapshot.generation() }
    }

    async fn status(&self) -> v1::Status {
        let drift = self.drift().await;
        let state = self.state.lock().await;
        v1::Status {
            node: state.config().node.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_ms: state.since.elapsed().as_millis() as u64,
            started: rfc3339(state.started),
            revision: state.revision,
            generation: state.snapshot.generation().0,
            workers: state.active as u32,
            on_exit: match state.config().node.on_exit {
                OnExit::Closed => "closed".into(),
                OnExit::Open => "open".into(),
            },
            guard: state.guard_state.clone(),
            config_file: state.file.display().to_string(),
            waiting: state.pending.as_ref().map(|pending| crate::api::waiting(pending.waits())),
            drift: Some(drift),
            troubles: state.troubles_that_last(),
            ..v1::Status::default()
        }
    }

    async fn overview(&self) -> v1::Status {
        let mut status = self.status().await;
        let peers = crate::api::peers(&self.running().await);
        let state = self.state.lock().await;
        let (reports, totals) = totals(&state).await;
        let ports: Vec<v1::Port> = ports(&state, &reports, &totals);
        let sas = security_associations(&state, &totals);
        overview::fill(&state, &mut status, &ports, &peers, &sas);
        status
    }

    async fn ports(&self) -> Vec<v1::Port> {
        let state = self.state.lock().await;
        let (reports, totals) = totals(&state).await;
        ports(&state, &reports, &totals)
    }

    async fn security_associations(&self) -> Vec<v1::SecurityAssociation> {
        let state = self.state.lock().await;
        let totals = totals(&state).await.1;
        security_associations(&state, &totals)
    }

    async fn neighbours(&self) -> Vec<v1::Neighbour> {
        neighbours(&*self.state.lock().await)
    }

    async fn cache(&self) -> v1::Cache {
        let state = self.state.lock().await;
        cached::cache(&state, &state.brief_reports().await.unwrap_or_default())
    }

    async fn cache_entries(&self, question: CacheQuestion) -> Option<v1::CachedFlows> {
        let state = self.state.lock().await;
        cached::flows(&state, question).await
    }

    async fn recall(&self, keys: Vec<Key>) -> Vec<Option<Vec<Recall>>> {
        let state = self.state.lock().await;
        cached::recall(&state, &keys).await
    }

    async fn counters(&self) -> v1::Counters {
        let state = self.state.lock().await;
        let (reports, totals) = totals(&state).await;
        counters(&state, &reports, &totals)
    }

    async fn export(&self, revision: Option<u64>) -> Option<v1::Exported> {
        let state = self.state.lock().await;
        let number = revision.unwrap_or(state.revision);
        // Of a large configuration it takes a while.
        let (toml, base) = if number == state.revision {
            let (compiled, base) = (state.compiled.copied(), state.base.clone());
            drop(state);
            let write = move || compiled.validated().effective();
            (tokio::task::spawn_blocking(write).await.ok()?, base)
        } else {
            let (base, reader) =
                (state.revisions.find(number)?.base.clone(), state.revisions.reader(number)?);
            drop(state);
            let read = tokio::task::spawn_blocking(move || body_of(reader, number)).await.ok()?;
            // What cannot be read is as good as gone.
            (read.ok()?.text, base)
        };
        let base_directory = base.display().to_string();
        Some(v1::Exported { toml, revision: number, base_directory })
    }

    async fn revisions(&self) -> Vec<v1::Revision> {
        let state = self.state.lock().await;
        let newest_first = state.revisions.all().rev();
        newest_first
            .map(|kept| v1::Revision {
                revision: kept.number,
                time: rfc3339(kept.time),
                uid: kept.uid,
                cause: kept.cause.name().into(),
                file: kept.file.clone(),
                running: kept.number == state.revision,
                changes: kept.changes,
                restored: kept.restored,
            })
            .collect()
    }

    async fn apply(&self, change: Change, by: Uid) -> Result<Done, Refused> {
        let (file, intent) = (change.file.clone(), change.intent);
        let done = match change.save {
            Save::No => self.apply_change(change, by).await,
            Save::Yes => self.apply_and_save(change, by).await,
        };
        if intent == Intent::Apply || done.is_err() {
            self.audit(by, [Kind::Applied, Kind::ApplyRefused], &file, &done);
        }
        done
    }

    async fn change_policies(&self, change: PolicyChange, by: Uid) -> Result<Done, Refused> {
        let intent = change.intent;
        let asked = change.remove.first().unwrap_or(&change.file).clone();
        let done = match (change.save, intent) {
            (Save::Yes, Intent::Apply) => self.change_and_save(change, by).await,
            _ => self.change_in_turn(change, by).await,
        };
        match &done {
            Ok(done) if intent == Intent::Apply => self.audit_policies(by, done),
            Ok(_) => {}
            Err(error) => {
                let subject = match error {
                    Refused::Takes(takeovers) => takeovers.found.first().map(|one| &one.by),
                    _ => None,
                };
                let (kind, message) = (Kind::PoliciesRefused, error.to_string());
                self.events.audit(by, kind, subject.unwrap_or(&asked), message, &[]);
            }
        }
        done
    }

    async fn confirm(
        &self,
        revision: Option<u64>,
        over: ConnectionNumber,
        by: Uid,
    ) -> Result<u64, NotConfirmed> {
        let done = self.confirm_change(revision, over).await;
        unconfirmed::audit(self, by, &done);
        done
    }

    async fn save(&self, by: Uid) -> Result<v1::Saved, Refused> {
        let done = self.save_running().await;
        self.audit_saved(by, &done);
        done
    }

    async fn rollback(&self, revision: Option<u64>, by: Uid) -> Result<Done, Refused> {
        let done = self.roll_back(revision, by).await;
        let subject = revision.map(|number| number.to_string()).unwrap_or_default();
        self.audit(by, [Kind::RolledBack, Kind::RollbackRefused], &subject, &done);
        done
    }

    async fn events(&self) -> (Vec<v1::Event>, broadcast::Receiver<v1::Event>) {
        self.events.subscribe()
    }

    async fn event_counts(&self) -> Vec<(&'static str, u64)> {
        self.events.counts().into_iter().map(|(kind, count)| (kind.name(), count)).collect()
    }

    async fn capture(
        &self,
        order: CaptureOrder,
        by: Uid,
    ) -> Result<mpsc::Receiver<v1::Captured>, CaptureRefused> {
        self.begin_capture(order, by).await
    }

    async fn denied(&self, by: Uid, what: &'static str) {
        let message = format!("user {} may not {what}: neither root nor in lockgate-admin", by.0);
        self.events.audit(by, Kind::ChangeDenied, what, message, &[]);
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// What the workers say now, and what was counted since the start. A worker that has ended ends
/// the daemon; until then it has counted nothing.
async fn totals(state: &State) -> (Vec<Report>, Totals) {
    let reports = state.reports().await.unwrap_or_default();
    let totals = state.totals_with(&reports);
    (reports, totals)
}

fn ledger(ledger: &Ledger) -> v1::Ledger {
    v1::Ledger {
        received: ledger.received,
        made: ledger.made,
        sent: ledger.sent,
        dropped: ledger.dropped,
        consumed: ledger.consumed,
        host: ledger.host,
        held: ledger.held,
        imbalance: ledger.imbalance(),
    }
}

fn ports(state: &State, reports: &[Report], totals: &Totals) -> Vec<v1::Port> {
    (0..state.live.ports.len()).map(|place| port(state, place, reports, totals)).collect()
}

fn port(state: &State, place: usize, reports: &[Report], totals: &Totals) -> v1::Port {
    let info = &state.live.ports[place];
    let configured = state.config().ports.get(place);
    let netdev = configured.map_or(HOST_NETDEV, |port| port.netdev.as_str());
    let device = state.devices.get(netdev);
    let is_host = configured.is_none();
    let ifindex = state.live.devices.get(usize::from(info.device.0)).copied().flatten();
    let (port_state, reason) = port_state(state, place, netdev);
    let queues = queues(state, info, reports);
    let copy_mode = reports.iter().find_map(|report| {
        report.queues.get(usize::from(info.device.0))?.first().map(|queue| match queue.transfer {
            xsk::Transfer::Copy => "copy",
            xsk::Transfer::ZeroCopy => "zero-copy",
        })
    });
    let transmitted = totals.transmitted.get(&info.name).copied().unwrap_or_default();
    v1::Port {
        name: info.name.clone(),
        netdev: netdev.into(),
        ifindex: ifindex.unwrap_or(0),
        vlan: info.vlan.map(u32::from),
        side: side_text(info.side).into(),
        state: port_state.into(),
        state_reason: reason,
        xdp_mode: match device {
            _ if is_host => "tun".into(),
            Some(device) => device.attached.mode.name().into(),
            None => String::new(),
        },
        native_refused: device
            .and_then(|device| device.attached.native_refused.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        copy_mode: copy_mode.unwrap_or_default().into(),
        mac: mac_text(info.mac),
        mtu: info.mtu,
        addresses: addresses(state, place),
        allow_host: info.allow_host.iter().map(service_text).collect(),
        kernel: device.and_then(|device| kernel_counters(device, &queues)),
        queues,
        ledger: Some(totals.ledgers.get(&info.name).map(ledger).unwrap_or_default()),
        tx_packets: transmitted.packets,
        tx_bytes: transmitted.bytes,
        l4_checksum: Some(l4_checksum(info, totals)),
    }
}

fn l4_checksum(info: &PortInfo, totals: &Totals) -> v1::L4Checksum {
    let counts = totals.l4_checksums.get(&info.name).copied().unwrap_or_default();
    v1::L4Checksum {
        mode: match info.l4_checksum {
            L4Checksum::Complete => "complete".into(),
            L4Checksum::Pass => "pass".into(),
        },
        completed: counts.completed,
        checked: counts.checked,
        bad: counts.bad,
    }
}

fn port_state(state: &State, place: usize, netdev: &str) -> (&'static str, String) {
    let trouble = state.troubles.get(netdev);
    let is_ours = place >= state.config().ports.len() || state.devices.contains_key(netdev);
    match (state.live.states.get(place), trouble) {
        (Some(PortState::Absent) | None, _) => ("absent", format!("there is no netdev {netdev}")),
        (_, Some(trouble)) => ("refused", trouble.clone()),
        _ if !is_ours => ("detached", "its netdev is not taken yet".into()),
        (Some(PortState::Down), _) => {
            ("down", format!("{netdev} is switched off: ip link set {netdev} up"))
        }
        (Some(PortState::NoCarrier), _) => ("down", format!("{netdev} has no carrier")),
        (Some(PortState::Up), _) => ("up", String::new()),
    }
}

fn side_text(side: Side) -> &'static str {
    match side {
        Side::Protected => "protected",
        Side::Unprotected => "unprotected",
    }
}

fn addresses(state: &State, place: usize) -> Vec<String> {
    let Some(link) = state.live.links.get(place).copied().flatten() else { return Vec::new() };
    let on_link = state.view.addresses.iter().filter(|(index, ..)| *index == link);
    on_link.map(|(_, address, length)| format!("{address}/{length}")).collect()
}

fn queues(state: &State, info: &PortInfo, reports: &[Report]) -> Vec<v1::Queue> {
    let mut queues = Vec::new();
    for (worker, report) in reports.iter().enumerate() {
        for queue in report.queues.get(usize::from(info.device.0)).into_iter().flatten() {
            let (kernel, own) = (queue.statistics.kernel, queue.statistics.own);
            queues.push(v1::Queue {
                queue: queue.queue,
                worker: worker as u32,
                socket: true,
                socket_refused: String::new(),
                rx_packets: own.received,
                tx_packets: own.sent,
                rx_dropped: kernel.rx_dropped + own.rx_invalid + own.rx_abandoned,
                queue_full: kernel.rx_ring_full,
                foreign: queue.foreign,
                fill_empty: kernel.rx_fill_ring_empty_descs,
                tx_invalid: kernel.tx_invalid_descs,
                tx_full: own.tx_full,
            });
        }
    }
    if usize::from(info.device.0) + 1 == state.live.devices.len() {
        queues.extend(host_queues(reports));
        return queues;
    }
    let device = state.devices.values().find(|device| {
        state.live.devices.get(usize::from(info.device.0)) == Some(&Some(device.ifindex))
    });
    for queue in 0..device.map_or(0, |device| device.queues) {
        if queues.iter().all(|known| known.queue != queue) {
            queues.push(v1::Queue {
                queue,
                worker: assign::worker_of(queue, state.active as u32),
                socket_refused: "its socket is not bound".into(),
                ..v1::Queue::default()
            });
        }
    }
    queues.sort_by_key(|queue| queue.queue);
    queues
}

/// The host port's queues, one per worker.
fn host_queues(reports: &[Report]) -> impl Iterator<Item = v1::Queue> {
    let with_host = (0..).zip(reports).filter_map(|(worker, report)| Some((worker, report.host?)));
    with_host.map(|(worker, host)| v1::Queue {
        queue: worker,
        worker,
        socket: true,
        rx_packets: host.received,
        tx_packets: host.sent,
        rx_dropped: host.too_long,
        tx_invalid: host.refused,
        tx_full: host.full + host.down,
        ..v1::Queue::default()
    })
}

/// What the program counted, held against what the sockets say they got of it.
fn kernel_counters(
    device: &crate::device::Device,
    queues: &[v1::Queue],
) -> Option<v1::KernelCounters> {
    let counters = device.counters()?;
    let of = |counter| counters.of(counter);
    let to_worker = of(bpf::Counter::ToWorker);
    let lost: u64 = queues.iter().map(|queue| queue.rx_dropped + queue.queue_full).sum();
    let received: u64 = queues.iter().map(|queue| queue.rx_packets).sum();
    Some(v1::KernelCounters {
        received: counters.received(),
        passed_not_to_us: of(bpf::Counter::PassedNotToUs),
        passed_arp_nd: of(bpf::Counter::PassedArpNd),
        passed_not_ip: of(bpf::Counter::PassedNotIp),
        passed_to_host: of(bpf::Counter::PassedToHost),
        passed_allow_host: of(bpf::Counter::PassedAllowHost),
        to_worker,
        no_socket: of(bpf::Counter::NoSocket),
        mark_failed: of(bpf::Counter::MarkFailed),
        ring_full: lost,
        imbalance: to_worker as i64 - (received + lost) as i64,
    })
}

fn security_associations(state: &State, totals: &Totals) -> Vec<v1::SecurityAssociation> {
    let snapshot = &state.snapshot;
    let peers: HashMap<_, _> =
        snapshot.sets().map(|(_, set)| (set.id, set.peer.as_str())).collect();
    let mut sas = Vec::new();
    for sa in snapshot.outbound() {
        let (state_text, reason) = match () {
            () if sa.sequence.is_exhausted() => {
                ("exhausted", DropReason::SequenceExhausted.help().to_owned())
            }
            () if sa.sequence.last() >= sa.sequence.reserved() => {
                ("not_reserved", DropReason::SequenceNotReserved.help().to_owned())
            }
            () => ("ok", String::new()),
        };
        let peer = peers.get(&sa.set).copied().unwrap_or_default();
        let (last, numbers) = (sa.sequence.last(), sa.sequence.numbers());
        sas.push(v1::SecurityAssociation {
            backend: sa.cipher.backend_name().into(),
            sequence: last,
            sequence_used: numbers::part(last, numbers),
            reserved_to: Some(sa.sequence.reserved()),
            extended_sequence_numbers: numbers == SequenceNumbers::Extended,
            state: state_text.into(),
            state_reason: reason,
            fingerprint: short(&state.compiled.outbound_fingerprint(sa.id)),
            ..association((Direction::Outbound, sa.spi, peer), sa.suite, &sa.encapsulation, totals)
        });
    }
    for sa in snapshot.inbound() {
        let peer = peers.get(&sa.set).copied().unwrap_or_default();
        let (edge, numbers) = (sa.window.right_edge(), sa.window.numbers());
        sas.push(v1::SecurityAssociation {
            backend: sa.cipher.backend_name().into(),
            sequence: edge,
            sequence_used: numbers::part(edge, numbers),
            window_packets: Some(sa.window.size()),
            extended_sequence_numbers: numbers == SequenceNumbers::Extended,
            state: "ok".into(),
            fingerprint: short(&state.compiled.inbound_fingerprint(sa.id)),
            ..association((Direction::Inbound, sa.spi, peer), sa.suite, &sa.encapsulation, totals)
        });
    }
    for refused in &state.compiled.refused {
        let config = state.config();
        let Some(peer) = config.peers.iter().find(|peer| peer.name == refused.peer) else {
            continue;
        };
        let key = (refused.direction, refused.spi, peer.name.as_str());
        sas.push(v1::SecurityAssociation {
            extended_sequence_numbers: peer.numbers == SequenceNumbers::Extended,
            state: "refused".into(),
            state_reason: refused.to_string(),
            fingerprint: short(&refused.fingerprint),
            ..association(key, peer.suite, &peer.encapsulation, totals)
        });
    }
    sas
}

/// What all SAs have in common.
fn association(
    (direction, spi, peer): (Direction, Spi, &str),
    suite: ipsec::Suite,
    encapsulation: &Encapsulation,
    totals: &Totals,
) -> v1::SecurityAssociation {
    let volume = totals.sas.get(&(direction, spi, peer.to_owned())).copied().unwrap_or_default();
    let Encapsulation { mode, tunnel, udp, .. } = encapsulation;
    v1::SecurityAssociation {
        direction: match direction {
            Direction::Outbound => "outbound".into(),
            Direction::Inbound => "inbound".into(),
        },
        spi: spi.to_string(),
        peer: peer.into(),
        suite: suite.to_string(),
        local: tunnel.local.to_string(),
        remote: tunnel.remote.to_string(),
        packets: volume.packets,
        bytes: volume.bytes,
        mode: mode.name().into(),
        encapsulation: in_front(encapsulation).into(),
        local_port: udp.map(|ports| ports.local.into()),
        remote_port: udp.map(|ports| ports.remote.into()),
        ..v1::SecurityAssociation::default()
    }
}

/// What is in front of ESP, in the configuration's words.
pub(crate) fn in_front(encapsulation: &Encapsulation) -> &'static str {
    if encapsulation.udp.is_some() { "udp" } else { "none" }
}

/// The first digits of a fingerprint.
pub(crate) fn short(fingerprint: &Fingerprint) -> String {
    fingerprint.to_string().chars().take(16).collect()
}

fn neighbours(state: &State) -> Vec<v1::Neighbour> {
    let mut all: Vec<(IpAddr, v1::Neighbour)> = state
        .view
        .neighbours
        .iter()
        .filter_map(|((link, address), entry)| {
            let port = state.live.port_of_link(*link)?;
            let text = match entry.state {
                NeighbourState::Good => "reachable",
                NeighbourState::Permanent => "permanent",
                NeighbourState::Stale => "stale",
                NeighbourState::Unresolved => "incomplete",
                NeighbourState::Failed => "failed",
            };
            let neighbour = v1::Neighbour {
                port: state.live.ports[usize::from(port.0)].name.clone(),
                address: address.to_string(),
                mac: entry.mac.map(mac_text).unwrap_or_default(),
                state: text.into(),
                next_hop: state.live.fresh.contains(&(*link, *address)),
                held: 0,
            };
            Some(((*address).into(), neighbour))
        })
        .collect();
    all.sort_by(|(a, left), (b, right)| (&left.port, a).cmp(&(&right.port, b)));
    all.into_iter().map(|(_, neighbour)| neighbour).collect()
}

fn counters(state: &State, reports: &[Report], totals: &Totals) -> v1::Counters {
    let total = totals.ledger();
    let ports = ports(state, reports, totals);
    let mut kernel_imbalance = 0;
    let mut in_kernel = 0;
    let mut seen = Vec::new();
    for port in &ports {
        if let (Some(kernel), false) = (&port.kernel, seen.contains(&port.netdev)) {
            seen.push(port.netdev.clone());
            kernel_imbalance += kernel.imbalance.unsigned_abs();
            in_kernel += kernel.received - kernel.to_worker;
        }
    }
    let ledgers = totals.ledgers.values().map(|ledger| ledger.imbalance().unsigned_abs());
    v1::Counters {
        tiers: Some(v1::Tiers {
            device: 0,
            kernel: in_kernel,
            cache: totals.cache.hits,
            classifier: total.received.saturating_sub(totals.cache.hits),
        }),
        drops: DropReason::ALL
            .iter()
            .map(|reason| v1::Drop {
                name: reason.name().into(),
                count: totals.drops.get(reason).copied().unwrap_or(0),
                help: reason.help().into(),
            })
            .collect(),
        ledger_imbalance: ledgers.sum::<u64>() + kernel_imbalance,
        ledger: Some(ledger(&total)),
        workers: reports.iter().enumerate().map(|(n, report)| worker(state, n, report)).collect(),
        held: reports.iter().map(|report| report.waiting as u32).sum(),
        icmp_limited: totals.icmp_limited,
        generation: state.snapshot.generation().0,
        revision: state.revision,
        uptime_ms: state.since.elapsed().as_millis() as u64,
        netlink_resyncs: state.netlink_resyncs,
        keepalives: totals.keepalives,
        full_lookups: totals.full_lookups,
        ports: ports.iter().map(|port| overview::port_activity(state, port)).collect(),
        drops_last_minute: overview::drops(state),
        rate_time_ms: overview::milliseconds(state.history.lately()),
    }
}

fn worker(state: &State, number: usize, report: &Report) -> v1::Worker {
    let census = &report.census;
    v1::Worker {
        worker: number as u32,
        cpu: state.workers[number].core as u32,
        turns: report.turns,
        cpu_ms: report.cpu.as_millis() as u64,
        sleeps: report.sleeps,
        generation: report.flushed.snapshot.generation().0,
        frames: Some(v1::FrameCensus {
            total: census.total as u64,
            free: census.free as u64,
            fill: census.receive as u64,
            rx: 0,
            tx: census.transmit as u64,
            completion: census.quarantined as u64,
            held: census.outside as u64,
            missing: census.imbalance(),
        }),
        handed_over: report.handed_over,
        taken_over: report.taken_over,
    }
}
