//! What runs: one configuration, compiled against one view of the kernel, walked by the workers
//! over the netdevs that are ours.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use control::guard::{Detail, Guard, GuardError, Integrity, UnwritableName};
use control::mirror::{Ethtool, LiveParts, Offload, PortState, View};
use control::validated::Validated;
use control::{Compiled, Compiler, HOST_NETDEV};
use dataplane::carve_out::Reserved;
use dataplane::{Counters, NetdevId, NextHop, Prefix, RouteTarget, Side, Snapshot};
use io::{Lifetime, TunPort};
use ipsec::Fingerprint;
use keystate::{KeyState, Notice};

use crate::assign;
use crate::checksums::ChecksumEvents;
use crate::device::{Claim, Device, DeviceError, Surroundings, Taking};
use crate::events::{Events, Kind};
use crate::history::History;
use crate::liveness::Liveness;
use crate::numbers::Used;
use crate::revisions::Revisions;
use crate::save::KnownDrift;
use crate::totals::Totals;
use crate::unconfirmed::{LastWait, Pending, Records};
use crate::worker::{Command, Handle, Report, WorkerGone};

/// Policies whose counters a worker copies between two turns.
const COUNTED_AT_A_TIME: usize = 4096;

/// Everything that changes while the daemon runs; the control thread's.
pub(crate) struct State {
    /// The configuration file that was started with.
    pub(crate) file: PathBuf,
    /// What a relative `keys_dir` of the running configuration is relative to.
    pub(crate) base: PathBuf,
    pub(crate) started: SystemTime,
    pub(crate) since: Instant,
    pub(crate) revision: u64,
    /// The revision that the running one brought back.
    pub(crate) restored: Option<u64>,
    pub(crate) revisions: Revisions,
    /// A change that waits to be confirmed.
    pub(crate) pending: Option<Pending>,
    /// The end of the last one.
    pub(crate) last_wait: Option<LastWait>,
    /// The record that a restart goes by.
    pub(crate) records: Records,
    /// Differences between the daemon's file and the running configuration, as far as known.
    pub(crate) drift: Option<KnownDrift>,
    /// The reason why the running configuration is not kept as a revision.
    pub(crate) not_kept: Option<String>,
    /// The reason why records of sequence numbers are not written.
    pub(crate) not_reserved: Option<String>,
    pub(crate) keystate: KeyState,
    /// Used without the state, too, by the one change that is made at a time.
    pub(crate) compiler: Arc<Mutex<Compiler>>,
    pub(crate) compiled: Compiled,
    /// Policies that single changes took away since the start.
    pub(crate) policies_removed: u64,
    pub(crate) ethtool: Ethtool,
    pub(crate) view: View,
    pub(crate) live: LiveParts,
    pub(crate) snapshot: Arc<Snapshot>,
    /// Packets of each port's `allow_host` that policies may want, as the programs and the guard
    /// know them.
    pub(crate) reserved: Reserved,
    /// The last narrowing failed: it is tried again with the next change of the view.
    pub(crate) reservation_due: bool,
    /// The last update of a program failed: it is tried again with the next change of the view.
    pub(crate) instruction_due: bool,
    /// All worker threads; the first `active` of them serve queues.
    pub(crate) workers: Vec<Handle>,
    pub(crate) active: usize,
    /// Netdevs that are ours, by name.
    pub(crate) devices: BTreeMap<String, Device>,
    /// Why a netdev is not ours although it should be.
    pub(crate) troubles: HashMap<String, String>,
    pub(crate) totals: Totals,
    /// Counters of the last minute.
    pub(crate) history: History,
    pub(crate) liveness: Liveness,
    /// How often each peer has moved since the start.
    pub(crate) moves: HashMap<String, u64>,
    /// What was told of sealing keys' sequence numbers.
    pub(crate) numbers_told: HashMap<Fingerprint, Used>,
    /// Events about wrong checksums so far.
    pub(crate) checksum_events: ChecksumEvents,
    pub(crate) netlink_resyncs: u64,
    pub(crate) guard: Guard,
    /// How the guard is: `intact`, or `missing: ` and why.
    pub(crate) guard_state: String,
    pub(crate) stopping: bool,
    /// The workers' flow caches are to be replaced.
    pub(crate) cache_outworn: bool,
    /// When they last were to be because they were full of verdicts.
    pub(crate) cache_filled: Option<Instant>,
    pub(crate) events: Events,
    /// The netdevs of the snapshot that the workers walk by, in its order.
    pub(crate) device_names: Vec<String>,
    next_mark: u16,
    /// Kept as long as the guard and the host port are ours.
    _namespace: Claim,
}

/// What the state is made of at the start.
pub(crate) struct Beginning {
    pub(crate) file: PathBuf,
    pub(crate) base: PathBuf,
    pub(crate) revisions: Revisions,
    pub(crate) keystate: KeyState,
    pub(crate) compiler: Compiler,
    pub(crate) compiled: Compiled,
    pub(crate) ethtool: Ethtool,
    pub(crate) view: View,
    pub(crate) live: LiveParts,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) workers: Vec<Handle>,
    pub(crate) guard: Guard,
    pub(crate) events: Events,
    pub(crate) namespace: Claim,
}

/// The netdevs of a configuration in the order of their [`NetdevId`]s, the host port's last.
pub(crate) fn netdevs(config: &Validated) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for port in &config.ports {
        if !names.contains(&port.netdev) {
            names.push(port.netdev.clone());
        }
    }
    names.push(HOST_NETDEV.to_owned());
    names
}

/// The reason why something of `allow_host` cannot be taken from the programs or the guard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// A program.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A name that the guard cannot be written with.
    #[error(transparent)]
    Name(#[from] UnwritableName),
}

/// Packets of each port's `allow_host` that the policies of a configuration may want.
pub(crate) fn reserved_by(compiled: &Compiled, live: &LiveParts) -> Reserved {
    Reserved::by(&live.ports, &live.routes, compiled.spd.holding().map(|(_, policy)| policy))
}

/// Packets that they may want of the services that the running ports list.
pub(crate) fn reserved_of_earlier(
    state: &State,
    compiled: &Compiled,
    live: &LiveParts,
) -> Reserved {
    let policies = compiled.spd.holding().map(|(_, policy)| policy);
    Reserved::of_earlier(state.snapshot.ports(), &live.ports, &live.routes, policies)
}

impl State {
    pub(crate) fn new(beginning: Beginning) -> State {
        let Beginning { file, base, revisions, keystate, compiler, compiled, namespace, .. } =
            beginning;
        let Beginning { ethtool, view, live, snapshot, workers, guard, events, .. } = beginning;
        let device_names = netdevs(compiled.settings());
        let records = Records::new(&compiled.settings().node.state_dir);
        let reserved = reserved_by(&compiled, &live);
        State {
            file,
            base,
            started: SystemTime::now(),
            since: Instant::now(),
            revision: 0,
            restored: None,
            revisions,
            pending: None,
            last_wait: None,
            records,
            drift: None,
            not_kept: None,
            not_reserved: None,
            keystate,
            compiler: Arc::new(Mutex::new(compiler)),
            compiled,
            policies_removed: 0,
            ethtool,
            view,
            live,
            snapshot,
            reserved,
            reservation_due: false,
            instruction_due: false,
            active: workers.len(),
            workers,
            devices: BTreeMap::new(),
            troubles: HashMap::new(),
            totals: Totals::default(),
            history: History::default(),
            liveness: Liveness::default(),
            moves: HashMap::new(),
            numbers_told: HashMap::new(),
            checksum_events: ChecksumEvents::default(),
            netlink_resyncs: 0,
            guard,
            guard_state: "intact".into(),
            stopping: false,
            cache_outworn: false,
            cache_filled: None,
            events,
            device_names,
            next_mark: 1,
            _namespace: namespace,
        }
    }

    /// Troubles that last, one sentence each.
    pub(crate) fn troubles_that_last(&self) -> Vec<String> {
        let kept = self.not_kept.clone();
        let reserved = self.not_reserved.as_ref().map(|error| {
            format!("sequence numbers: {error}; SAs send until what is reserved is used")
        });
        kept.into_iter().chain(reserved).collect()
    }

    /// The running configuration without its policies, which are the compiled one's.
    pub(crate) fn config(&self) -> &Arc<Validated> {
        self.compiled.settings()
    }

    /// Takes over every netdev that is there and not ours, lets go of those that are gone.
    pub(crate) async fn tend(&mut self) -> Result<(), WorkerGone> {
        for (name, ifindex) in self.gone() {
            if let Some(device) = self.devices.remove(&name) {
                let id = self.device_id(&name);
                device.release(&self.workers, id).await?;
                let message = format!("netdev {name} (index {ifindex}) is gone");
                self.events.record(Kind::PortLost, &name, message, &[]);
            }
        }
        let queues = self.queue_counts();
        let wanted = self.workers.len() as u32;
        let usable = assign::usable(wanted, queues.values().copied()) as usize;
        let changed: Vec<String> = self
            .devices
            .values()
            .filter(|device| queues.get(&device.netdev) != Some(&device.queues))
            .map(|device| device.netdev.clone())
            .collect();
        if usable != self.active {
            // Every queue may get another worker.
            let all = self.devices.keys().cloned().collect();
            self.let_go(all).await?;
            self.active = usable;
            self.attach_host().await?;
        } else {
            self.let_go(changed).await?;
        }
        let absent: Vec<(String, u32)> = self.to_take();
        for (name, ifindex) in absent {
            match self.take(&name, ifindex).await {
                Ok(()) => {}
                Err(DeviceError::Worker(gone)) => return Err(gone),
                Err(error) => {
                    let message = error.to_string();
                    self.events.record(Kind::PortRefused, &name, message.as_str(), &[]);
                    self.troubles.insert(name, message);
                }
            }
        }
        self.settle().await;
        Ok(())
    }

    /// Has the workers have the frames of closed sockets again, as far as the kernel has let go of
    /// them.
    async fn settle(&self) {
        let areas: Vec<_> = self.workers.iter().map(|worker| worker.area.clone()).collect();
        // It may wait for the kernel. What is not proven now is asked again at the next inspection.
        let _ = tokio::task::spawn_blocking(move || xsk::settle(&areas)).await;
    }

    /// Takes one netdev over.
    ///
    /// # Errors
    /// [`DeviceError`]; it is then as it was found.
    pub(crate) async fn take(&mut self, netdev: &str, ifindex: u32) -> Result<(), DeviceError> {
        self.leave_frames_alone(netdev, ifindex)?;
        let queues = self.queues_of(netdev, ifindex);
        let mark = self.next_mark;
        self.next_mark = self.next_mark.wrapping_add(1).max(1);
        let surroundings = self.surroundings();
        let device = Device::take(Taking {
            netdev,
            ifindex,
            mark,
            device: self.device_id(netdev),
            queues,
            snapshot: &self.snapshot,
            surroundings: &surroundings,
            workers: &self.workers[..self.active],
        })
        .await?;
        let mode = device.attached.mode.name();
        let message = match &device.attached.native_refused {
            None => format!("{mode} XDP, queues: {queues}"),
            Some(reason) => format!("{mode} XDP, queues: {queues} (native refused: {reason})"),
        };
        self.events.record(Kind::PortAttached, netdev, message, &[("mark", &mark)]);
        if let Claim::Squatted = device.claim {
            let message = format!(
                "a user who runs no daemon listens on @lockgate/port/{ifindex} (`ss -xlp`): \
                 {netdev} is taken over all the same"
            );
            self.events.record(Kind::Misfit, netdev, message, &[]);
        }
        self.troubles.remove(netdev);
        self.devices.insert(netdev.to_owned(), device);
        Ok(())
    }

    /// Has the driver leave received frames as they are: a tag that it strips would move a frame
    /// to another port.
    fn leave_frames_alone(&mut self, netdev: &str, ifindex: u32) -> Result<(), DeviceError> {
        let Some(link) = self.view.links.get(&ifindex) else { return Ok(()) };
        // A driver that cannot be asked has nothing to switch off.
        let stays = self.ethtool.leave_frames_alone(link).unwrap_or_default();
        let is_strip = |offload: &&Offload| {
            matches!(offload, Offload::VlanStripping | Offload::ServiceVlanStripping)
        };
        let tagged = self.config().ports.iter().any(|p| p.netdev == netdev && p.vlan.is_some());
        match stays.iter().find(is_strip).filter(|_| tagged) {
            Some(offload) => {
                Err(DeviceError::Offload { netdev: netdev.into(), offload: offload.name() })
            }
            None => Ok(()),
        }
    }

    /// Gives every worker that serves queues its queue of the host port.
    pub(crate) async fn attach_host(&mut self) -> Result<(), WorkerGone> {
        let device = self.device_id(HOST_NETDEV);
        for worker in &self.workers {
            worker.ask(|reply| Command::Detach { device, reply }).await?;
        }
        for worker in &self.workers[..self.active] {
            match TunPort::open(HOST_NETDEV, Lifetime::Persistent) {
                Ok(port) => {
                    worker.ask(|reply| Command::AttachHost { device, port, reply }).await?;
                }
                Err(error) => {
                    self.events.record(Kind::HostRefused, HOST_NETDEV, error.to_string(), &[]);
                }
            }
        }
        Ok(())
    }

    /// Has programs and guard pass no more of `allow_host` than what they do now and this leaves:
    /// before what policies want is published. [`State::instruct`] and [`State::renew_guard`] pass
    /// what is free again, after it is.
    ///
    /// # Errors
    /// Why some do not. They pass no more than before.
    pub(crate) async fn reserve(&mut self, more: &Reserved) -> Result<(), ReserveError> {
        let reserved = self.reserved.and(more);
        if reserved == self.reserved {
            return Ok(());
        }
        if let Some(guard) = self.guard.with_netdevs(self.config(), &self.view, &reserved)? {
            self.guard = guard.installed().await?;
        }
        for device in self.devices.values_mut() {
            let place = self.device_names.iter().position(|name| *name == device.netdev);
            let id = NetdevId(place.unwrap_or(self.device_names.len()) as u16);
            device.reserve(id, &self.snapshot, &reserved)?;
        }
        self.reserved = reserved;
        Ok(())
    }

    /// Puts up the guard that the netdevs want now, if it is another one.
    pub(crate) async fn renew_guard(&mut self) {
        match self.guard.with_netdevs(self.config(), &self.view, &self.reserved) {
            Ok(None) => {}
            Ok(Some(guard)) => match guard.installed().await {
                Ok(guard) => self.guard = guard,
                Err(error) => self.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
            },
            Err(error) => self.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
        }
    }

    /// Puts the guard up again if somebody changed it.
    pub(crate) async fn restore_guard(&mut self) {
        match self.guard.integrity() {
            Ok(Integrity::Intact) => return,
            Ok(Integrity::Broken) => {}
            Err(error) => {
                self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
                return;
            }
        }
        let message = "the nftables table lockgate was removed or changed";
        self.events.record(Kind::GuardRemoved, "", message, &[]);
        match self.guard.clone().installed().await {
            Ok(guard) => {
                self.guard = guard;
                self.guard_state = "intact".into();
                let message = "the nftables table lockgate is whole again";
                self.events.record(Kind::GuardRestored, "", message, &[]);
            }
            Err(error) => {
                self.guard_state = format!("missing: {error}");
                self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
            }
        }
    }

    /// An event if the guard does not follow the policies one by one.
    pub(crate) fn tell_guard(&self) {
        let Detail::ByAddress { policies, bypasses_left_out } = self.guard.detail() else { return };
        let message = format!(
            "{policies} outbound policies are too many to guard one by one: what this machine \
             itself sends to a remote address of any PROTECT or DISCARD policy is dropped, \
             {bypasses_left_out} BYPASS policies notwithstanding; forwarding follows them all"
        );
        self.events.record(Kind::GuardCoarse, "", message, &[("policies", &policies)]);
    }

    /// Events for what does not fit in a view that is about to be gone over to, and for what fits
    /// again.
    pub(crate) fn tell_problems(&self, live: &LiveParts) {
        let (old, new) = (&self.live.problems, &live.problems);
        for problem in new.iter().filter(|problem| !old.contains(problem)) {
            self.events.record(Kind::Misfit, problem.subject(), problem.to_string(), &[]);
        }
        for problem in old.iter().filter(|problem| !new.contains(problem)) {
            let message = format!("resolved: {problem}");
            self.events.record(Kind::MisfitResolved, problem.subject(), message, &[]);
        }
    }

    /// Events for what was found at the start: what does not fit, and damaged records of keys.
    pub(crate) fn tell_beginning(&mut self) {
        for problem in &self.live.problems {
            self.events.record(Kind::Misfit, problem.subject(), problem.to_string(), &[]);
        }
        for Notice::SetAside { path } in self.keystate.take_notices() {
            let message = format!(
                "a record of sequence numbers was damaged and is {} now: keys that it knew as \
                 used do not send until they are replaced (lockgate keygen)",
                path.display()
            );
            self.events.record(Kind::RecordSetAside, "", message, &[]);
        }
        self.tell_guard();
    }

    /// Looks after what nothing tells: programs taken off, queue counts changed.
    pub(crate) async fn inspect(&mut self) -> Result<(), WorkerGone> {
        for device in self.devices.values_mut() {
            let name = device.netdev.clone();
            if device.is_attached() {
                continue;
            }
            let message = format!("the XDP program was taken off {name}");
            self.events.record(Kind::ProgramRemoved, &name, message, &[]);
            match device.attach_again() {
                Ok(()) => {
                    let message = format!("the XDP program is on {name} again");
                    self.events.record(Kind::ProgramRestored, &name, message, &[]);
                }
                Err(error) => {
                    self.events.record(Kind::PortRefused, &name, error.to_string(), &[]);
                }
            }
        }
        self.tend().await
    }

    /// What each worker counted and has, now.
    pub(crate) async fn reports(&self) -> Result<Vec<Report>, WorkerGone> {
        let mut reports = self.brief_reports().await?;
        let slots = self.snapshot.spd().slots();
        // Piece by piece: a worker copies no more of it between two turns.
        for from in (0..slots).step_by(COUNTED_AT_A_TIME) {
            let mut answers = Vec::new();
            for worker in &self.workers {
                let into = Vec::with_capacity(COUNTED_AT_A_TIME.min(slots - from));
                let ask = |reply| Command::ReportPolicies { from, into, reply };
                answers.push(worker.send(ask)?);
            }
            for (report, answer) in reports.iter_mut().zip(answers) {
                let counted = answer.await.map_err(|_| WorkerGone)?;
                let Counters { policy_outbound, policy_inbound, .. } = &mut report.flushed.counters;
                policy_outbound.extend(counted.iter().map(|[outbound, _]| *outbound));
                policy_inbound.extend(counted.iter().map(|[_, inbound]| *inbound));
            }
        }
        Ok(reports)
    }

    /// The same without what policies decided: its cost does not go by how many there are.
    pub(crate) async fn brief_reports(&self) -> Result<Vec<Report>, WorkerGone> {
        let mut answers = Vec::new();
        for worker in &self.workers {
            answers.push(worker.send(|reply| Command::Report { reply })?);
        }
        let mut reports = Vec::new();
        for answer in answers {
            reports.push(answer.await.map_err(|_| WorkerGone)?);
        }
        Ok(reports)
    }

    /// What was counted since the start, over workers and layouts.
    pub(crate) fn totals_with(&self, reports: &[Report]) -> Totals {
        let mut totals = self.totals.clone();
        reports.iter().for_each(|report| totals.add(&report.flushed));
        totals
    }

    /// The device number of a netdev.
    pub(crate) fn device_id(&self, netdev: &str) -> NetdevId {
        let place = self.device_names.iter().position(|name| name == netdev);
        NetdevId(place.unwrap_or(self.device_names.len()) as u16)
    }

    /// Tells the programs which ports and addresses there are.
    pub(crate) fn instruct(&mut self) {
        let surroundings = self.surroundings();
        self.instruction_due = false;
        let names = self.device_names.clone();
        for device in self.devices.values_mut() {
            let place = names.iter().position(|name| *name == device.netdev);
            let id = NetdevId(place.unwrap_or(names.len()) as u16);
            if let Err(error) = device.update(id, &self.snapshot, &surroundings) {
                let message = error.to_string();
                self.events.record(Kind::PortRefused, &device.netdev, message, &[]);
                self.instruction_due = true;
            }
        }
    }

    /// Lets go of netdevs whose sockets must be bound anew; their programs stay and drop.
    async fn let_go(&mut self, names: Vec<String>) -> Result<(), WorkerGone> {
        for name in names {
            let id = self.device_id(&name);
            if let Some(device) = self.devices.remove(&name) {
                device.release(&self.workers, id).await?;
                let message = format!("the queues of {name} changed");
                self.events.record(Kind::QueuesChanged, &name, message, &[]);
            }
        }
        Ok(())
    }

    /// Netdevs of ours that the kernel has no more, or has anew under the name.
    fn gone(&self) -> Vec<(String, u32)> {
        let now = |name: &str| self.live.devices.get(usize::from(self.device_id(name).0)).copied();
        self.devices
            .values()
            .filter(|device| now(&device.netdev).flatten() != Some(device.ifindex))
            .map(|device| (device.netdev.clone(), device.ifindex))
            .collect()
    }

    /// Netdevs that should be ours and are there.
    fn to_take(&self) -> Vec<(String, u32)> {
        let ports = &self.device_names[..self.device_names.len() - 1];
        let there = ports.iter().zip(&self.live.devices);
        there
            .filter(|(name, _)| !self.devices.contains_key(*name))
            .filter_map(|(name, ifindex)| Some((name.clone(), (*ifindex)?)))
            .collect()
    }

    /// Receive queues of the netdevs that are there.
    fn queue_counts(&mut self) -> HashMap<String, u32> {
        let ports = self.device_names[..self.device_names.len() - 1].to_vec();
        let mut counts = HashMap::new();
        for (name, ifindex) in ports.into_iter().zip(self.live.devices.clone()) {
            if let Some(ifindex) = ifindex {
                let count = self.queues_of(&name, ifindex);
                counts.insert(name, count);
            }
        }
        counts
    }

    /// Receive queues of a netdev; as it was, or 1, where the kernel does not say.
    fn queues_of(&mut self, name: &str, ifindex: u32) -> u32 {
        queues_of(&mut self.ethtool, &self.view, ifindex)
            .or_else(|| self.devices.get(name).map(|device| device.queues))
            .unwrap_or(1)
    }

    /// What the programs know of the box and its routes.
    fn surroundings(&self) -> Surroundings {
        // Addresses of netdevs that are no ports are reached from inside only.
        let mut own: BTreeMap<IpAddr, bpf::Side> = BTreeMap::new();
        for (link, address, _) in &self.view.addresses {
            let port = self.live.port_of_link(*link);
            let port = port.map(|port| &self.live.ports[usize::from(port.0)]);
            let known = own.entry((*address).into()).or_insert(bpf::Side::Protected);
            if port.is_some_and(|port| port.side == Side::Unprotected) {
                *known = bpf::Side::Unprotected;
            }
        }
        let of =
            |prefix: &Prefix| bpf::Prefix { address: prefix.address.into(), bits: prefix.length };
        let routes = self.live.routes.iter();
        let inside =
            routes.map(|(prefix, target)| (of(prefix), inside(&self.live, target))).collect();
        let reserved = self.reserved.clone();
        Surroundings { own: own.into_iter().collect(), inside, reserved }
    }

    pub(crate) fn tell_ports(&self, live: &LiveParts) {
        for (port, (old, new)) in live.ports.iter().zip(self.live.states.iter().zip(&live.states)) {
            if old == new {
                continue;
            }
            let (kind, message) = match new {
                PortState::Up => (Kind::PortUp, "is up"),
                PortState::Down => (Kind::PortDown, "is switched off"),
                PortState::NoCarrier => (Kind::PortDown, "has no carrier"),
                PortState::Absent => (Kind::PortDown, "has no netdev"),
            };
            self.events.record(kind, &port.name, format!("port {} {message}", port.name), &[]);
        }
    }
}

/// Returns whether a route leads to us or behind a protected port.
pub(crate) fn inside(live: &LiveParts, target: &RouteTarget<NextHop>) -> bpf::Inside {
    match target {
        RouteTarget::Local | RouteTarget::Broadcast => bpf::Inside::Yes,
        RouteTarget::Blackhole | RouteTarget::Elsewhere => bpf::Inside::No,
        RouteTarget::Via(hop) => match live.ports[usize::from(hop.port.0)].side {
            Side::Protected => bpf::Inside::Yes,
            Side::Unprotected => bpf::Inside::No,
        },
    }
}

/// Receive queues of a netdev, if the kernel says.
pub(crate) fn queues_of(ethtool: &mut Ethtool, view: &View, ifindex: u32) -> Option<u32> {
    let link = view.links.get(&ifindex)?;
    ethtool.channels(link).ok().map(|channels| channels.rx.max(1))
}
