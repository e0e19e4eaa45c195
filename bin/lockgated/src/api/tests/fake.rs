//! A stand-in for the daemon's state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::v1;
use config::ReplayKeys;
use control::{Spis, Takeover, Takeovers};
use dataplane::cache::{Key, Recall};
use dataplane::counters::Volume;
use dataplane::{Generation, Routes, Snapshot};
use policy::Direction;
use tokio::sync::{broadcast, mpsc};
use wire::{Flow, Vni};

use crate::backend::{
    Backend, CacheQuestion, CaptureError, CaptureOrder, Change, ChangeError, ChangeReport,
    ConfirmError, ConnectionClearing, Consent, CountedState, EntryIter, ExportedText, Intent, Now,
    PolicyChange, Running, ToConfirm,
};
use crate::cards::CardPicture;
use crate::endpoints::{ChangeSums, EndpointDesk};
use crate::fair_turns::WorkCaller;
use crate::liveness::PeerLiveness;
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaPut, SaRefusal};
use crate::who::{ConnectionNumber, Uid};

pub(super) const CONFIG: &str = r#"
[node]
name = "gw-a"
[port.lan]
netdev = "eth1"
side = "protected"
mac = "02:00:00:00:0a:01"
mtu = 1500
addresses = ["10.1.0.1/16"]
groups_in = ["out"]
[port.wan]
netdev = "eth0"
side = "unprotected"
allow_host = ["udp/500"]
mac = "02:00:00:00:00:01"
mtu = 1500
addresses = ["192.0.2.1/24"]
[peer.berlin]
local = "192.0.2.1"
remote = "192.0.2.2"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-128-gcm"
mode = "tunnel"
[[policy]]
name = "berlin-net"
peer = "berlin"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
protocol = "tcp"
local_ports = ["1-9"]
remote_ports = ["443", "8000-8999"]
priority = 100
[[policy]]
name = "rest"
action = "discard"
local = ["any"]
remote = ["any"]
protocol = "any"
priority = 1
[group.out]
[[rule]]
group = "out"
name = "all"
action = "reflect"
from = ["any"]
to = ["any"]
[connections]
max = 4096
half_open_per_port = 1000
[[route]]
to = "10.2.0.0/16"
via = "192.0.2.2"
"#;

/// A backend that runs [`CONFIG`] and remembers the changes that clients asked for.
pub(in super::super) struct Fake {
    running: Running,
    asked: Mutex<Vec<String>>,
    pub(super) to_confirm: Mutex<Option<ToConfirm>>,
    pub(super) events: broadcast::Sender<v1::Event>,
    endpoints: Arc<EndpointDesk>,
    /// SAs that there are.
    pub(super) sa_count: AtomicU64,
    /// SAs that were presented.
    pub(super) made: Arc<AtomicU64>,
    /// Counts that were made.
    pub(super) counted: AtomicU64,
    /// The time that a change takes.
    slow: Duration,
}

impl Fake {
    pub(in super::super) fn new(slow: Duration) -> Arc<Fake> {
        let parsed = config::parse(CONFIG, "a.toml").unwrap_or_else(|e| panic!("{e}"));
        let keys = ReplayKeys::stand_ins(&parsed.validated).unwrap();
        let snapshot = control::compile(&parsed.validated, keys, Generation(7)).unwrap();
        let volume = Volume { packets: 3, bytes: 300 };
        let running = Running {
            settings: Arc::new(parsed.validated),
            ike_peers: Vec::new(),
            snapshot: Arc::new(snapshot),
            routes: Routes::new(),
            policies: imbl::HashMap::unit("berlin-net".into(), [volume, Volume::default()]),
            actions: std::array::from_fn(|_| [volume, Volume::default()]),
            sas: imbl::HashMap::unit(
                (Direction::Outbound, ipsec::Spi::LOWEST, "berlin".into()),
                volume,
            ),
            retired: imbl::OrdMap::unit("berlin".into(), [Volume { packets: 2, bytes: 200 }; 2]),
            moves: Arc::new([("berlin".into(), 3)].into()),
            liveness: Arc::new(|peer| if peer == "berlin" { heard() } else { Default::default() }),
            ike_names: crate::ike_names::IkeNames::default(),
            spis: Spis::Unknown,
            cache_entries: ["ipv4", "ipv6"].map(entries).into(),
        };
        Arc::new(Fake {
            running,
            asked: Mutex::default(),
            to_confirm: Mutex::default(),
            events: broadcast::channel(api::MAX_EVENTS_WAITING).0,
            endpoints: EndpointDesk::new(
                crate::kernel_tier::KernelTier::off(),
                crate::events::Events::new(),
            ),
            sa_count: AtomicU64::new(0),
            made: Arc::default(),
            counted: AtomicU64::new(0),
            slow,
        })
    }

    /// The running state with as many SAs as [`Fake::sa_count`] says. Each SA is counted when it is
    /// made.
    pub(in super::super) fn state(&self) -> CountedState {
        let (made, count) = (self.made.clone(), self.sa_count.load(Ordering::Relaxed));
        let sas = move || -> EntryIter<v1::SecurityAssociation> {
            let made = made.clone();
            Box::new((0..count).map(move |number| {
                made.fetch_add(1, Ordering::Relaxed);
                let spi = format!("{number:#010x}");
                v1::SecurityAssociation { spi, peer: "berlin".into(), ..Default::default() }
            }))
        };
        CountedState::new(self.running.clone(), Box::new(sas))
    }

    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

pub(super) fn entries(family: &str) -> v1::CacheEntries {
    v1::CacheEntries { family: family.into(), direction: "outbound".into(), entries: 7 }
}

/// Heard a minute ago, silent for 20 s.
fn heard() -> PeerLiveness {
    let ago = |seconds| std::time::Instant::now().checked_sub(Duration::from_secs(seconds));
    PeerLiveness { last_received: ago(60), silent_since: ago(20), sent_since: 17 }
}

pub(super) fn event(number: u64) -> v1::Event {
    v1::Event { number, kind: "port_up".into(), ..v1::Event::default() }
}

#[tonic::async_trait]
impl Backend for Fake {
    async fn running(&self, _: WorkCaller) -> Running {
        self.running.clone()
    }

    async fn counted_state(&self, _: WorkCaller) -> CountedState {
        self.counted.fetch_add(1, Ordering::Relaxed);
        self.state()
    }

    async fn snapshot(&self) -> Arc<Snapshot> {
        self.running.snapshot.clone()
    }

    async fn clear_connections(&self, clearing: ConnectionClearing, by: Uid) -> Option<u64> {
        self.note(format!("clear {} by {}", clearing.filter_text, by.0));
        Some(3)
    }

    async fn now(&self) -> Now {
        Now { revision: 4, generation: Generation(7) }
    }

    async fn overview(&self, _: WorkCaller) -> v1::Status {
        v1::Status { node: "gw-a".into(), generation: 7, ..v1::Status::default() }
    }

    async fn ports(&self, _: WorkCaller) -> Vec<v1::Port> {
        ["lan", "wan"].map(|name| v1::Port { name: name.into(), ..v1::Port::default() }).into()
    }

    async fn neighbours(&self) -> Vec<v1::Neighbour> {
        Vec::new()
    }

    async fn cache(&self) -> v1::Cache {
        let entries = self.running.cache_entries.clone();
        v1::Cache { state: "on".into(), entries, ..v1::Cache::default() }
    }

    async fn cache_entries(&self, question: CacheQuestion) -> Option<v1::CachedFlows> {
        let CacheQuestion { limit, worker, stale } = question;
        self.note(format!("{limit} entries of {worker:?}, stale ones too: {stale}"));
        worker.is_none_or(|worker| worker < 1).then(v1::CachedFlows::default)
    }

    async fn recall(&self, keys: Vec<Key>) -> Vec<Option<Vec<Recall>>> {
        vec![Some(vec![Recall::Known; keys.len()]), None]
    }

    async fn kernel_standing(&self, _: Vni, _: Flow) -> String {
        "forwards it: no group judges it".into()
    }

    async fn cards(&self) -> Vec<CardPicture> {
        Vec::new()
    }

    async fn policies_in_order(&self, _: WorkCaller) -> Vec<v1::PlacedPolicy> {
        Vec::new()
    }

    async fn counters(&self, _: WorkCaller) -> v1::Counters {
        let drop = |name: &str, count| v1::Drop { name: name.into(), count, help: String::new() };
        let drops = vec![drop("no_route", 0), drop("no_match", 5)];
        v1::Counters { drops, ..v1::Counters::default() }
    }

    async fn export(&self, _: WorkCaller, revision: Option<u64>) -> Option<ExportedText> {
        let text = self.running.settings.effective().into();
        let kept = revision.is_none_or(|revision| revision == 4);
        kept.then_some(ExportedText { text, revision: 4, base_directory: "/etc".into() })
    }

    async fn revisions(&self) -> Vec<v1::Revision> {
        Vec::new()
    }

    async fn apply(&self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError> {
        self.note(format!("apply begun by {}", by.0));
        tokio::time::sleep(self.slow).await;
        let parsed = config::parse(&change.text, &change.file)?;
        *self.to_confirm.lock().unwrap() = change.confirm;
        if change.intent == Intent::Apply {
            self.note(format!("applied {} in {}", change.file, change.base_directory.display()));
        }
        Ok(ChangeReport {
            revision: 5,
            generation: Generation(8),
            differences: config::differences(&self.running.settings, &parsed.validated),
            warnings: parsed.warnings,
            notes: vec!["peer berlin: its key is refused".into()],
            ..ChangeReport::default()
        })
    }

    async fn change_policies(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError> {
        let PolicyChange { remove, add, file, intent, consent, .. } = change;
        let parsed = config::parse_policies(&add, &file, &self.running.settings)?;
        let added: Vec<String> = parsed.policies.into_iter().map(|policy| policy.name).collect();
        // A policy of this name takes packets.
        let taking = added.iter().any(|name| name == "oops");
        let example = "outbound tcp 10.1.0.1 port 1024 → 10.2.0.1 port 443".to_owned();
        let found = taking.then(|| Takeover {
            by: "oops".into(),
            by_action: "bypass".into(),
            from: "rest".into(),
            from_action: "protect with peer berlin".into(),
            example,
        });
        let takeovers = Takeovers { found: found.into_iter().collect(), ..Takeovers::default() };
        if taking && consent == Consent::NotGiven {
            return Err(ChangeError::Takes(takeovers));
        }
        self.note(format!("{} {intent:?} -{remove:?} +{added:?}", by.0));
        Ok(ChangeReport {
            revision: 5,
            generation: Generation(8),
            warnings: parsed.warnings,
            takeovers,
            ..ChangeReport::default()
        })
    }

    async fn put_sas(&self, put: SaPut, by: Uid) -> Result<SaChange, SaRefusal> {
        let SaPut { incarnation, sas, .. } = put;
        self.note(format!("{} puts {} SAs for {incarnation}", by.0, sas.len()));
        match incarnation.as_str() {
            "this" => Ok(SaChange { put: sas.len() as u32, ..SaChange::default() }),
            _ => Err(SaRefusal::OtherIncarnation { runs: "this".into() }),
        }
    }

    async fn delete_sas(&self, deletion: SaDeletion, by: Uid) -> Result<SaChange, SaRefusal> {
        self.note(format!("{} deletes {:?}", by.0, deletion.names));
        let name = &deletion.names[0];
        let (direction, spi, peer) = (name.direction.name(), name.spi, name.peer.clone());
        match &peer {
            None => Ok(SaChange { deleted: deletion.names.len() as u32, ..SaChange::default() }),
            Some(_) => {
                let why = control::DeleteRefusal::Unknown { direction, spi, peer };
                Err(SaRefusal::Delete { place: 0, why })
            }
        }
    }

    async fn reserve_spi(&self, asked: control::SpiRequest) -> Result<Reserved, ReserveError> {
        let spi = ipsec::Spi::new(0x0501).unwrap();
        match asked.peer.as_str() {
            "berlin" => Ok(Reserved { spi, worker: 1, incarnation: "this".into() }),
            _ => Err(ReserveError::Stopping),
        }
    }

    async fn confirm(
        &self,
        revision: Option<u64>,
        over: ConnectionNumber,
        by: Uid,
    ) -> Result<u64, ConfirmError> {
        self.note(format!("confirm of {revision:?} by {}", by.0));
        let asked_over = self.to_confirm.lock().unwrap().map(|confirm| confirm.asked_over);
        match asked_over {
            None => Err(ConfirmError::Nothing { running: 4 }),
            Some(before) if before == over => Err(ConfirmError::SameConnection { revision: 5 }),
            Some(_) => Ok(5),
        }
    }

    async fn save(&self, by: Uid) -> Result<v1::Saved, ChangeError> {
        self.note(format!("saved by {}", by.0));
        Ok(v1::Saved { file: "/etc/x".into(), revision: 4, unchanged: false })
    }

    async fn rollback(&self, revision: Option<u64>, _: Uid) -> Result<ChangeReport, ChangeError> {
        match revision {
            Some(revision) => Err(ChangeError::NoRevision { revision, kept: Some((2, 4)) }),
            None => Err(ChangeError::NoEarlier),
        }
    }

    async fn events(&self) -> (Vec<v1::Event>, broadcast::Receiver<v1::Event>) {
        (vec![event(1), event(2)], self.events.subscribe())
    }

    fn endpoints(&self) -> Arc<EndpointDesk> {
        self.endpoints.clone()
    }

    fn endpoints_changed(&self, by: Uid, sums: ChangeSums) {
        self.note(format!("endpoints changed by {}: {sums:?}", by.0));
    }

    async fn acquires(&self) -> (Vec<v1::Acquire>, broadcast::Receiver<v1::Acquire>) {
        let (sender, to_come) = broadcast::channel(1);
        let acquire = |id| v1::Acquire { id, peer: "berlin".into(), ..v1::Acquire::default() };
        let _ = sender.send(acquire(2));
        (vec![acquire(1)], to_come)
    }

    async fn event_counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    async fn capture(
        &self,
        order: CaptureOrder,
        by: Uid,
    ) -> Result<mpsc::Receiver<v1::Captured>, CaptureError> {
        self.note(format!("{} captures {:?} {:?}", by.0, order.port, order.filter_text));
        let (to, stream) = mpsc::channel(1);
        let packet = v1::CapturedPacket { port: "wan".into(), ..v1::CapturedPacket::default() };
        let message = v1::Captured { packets: vec![packet], ..v1::Captured::default() };
        to.try_send(message).unwrap();
        Ok(stream)
    }

    async fn denied(&self, by: Uid, what: &'static str) {
        self.note(format!("{what} denied to {}", by.0));
    }
}
