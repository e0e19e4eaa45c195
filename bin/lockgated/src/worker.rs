//! A worker's thread: turns over the other workers' rings and its netdevs, and between two turns
//! the commands of the control thread. It sleeps in `poll` when nothing comes; a bell wakes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::validated::Poll;
use dataplane::Disagreement;
use dataplane::cache::{CacheEntry, Key, Recall};
use dataplane::counters::Volume;
use dataplane::handover::RING_PACKETS;
use dataplane::{
    AcquireRequest, AddressUpdate, CacheCounters, Counters, FlowCache, Handovers, NetdevId,
    ResolveRequest, Snapshot, Tap, TapId, TenantSample, VacatedSlots, Worker,
};
use io::{LivePort, TunPort, XdpFrames, XdpPort};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;
use wire::BATCH;
use wire::mark::Marker;

use crate::worker_report::ReportQueue;
pub(crate) use crate::worker_report::{
    CacheReport, Changeovers, FlushedCounts, Report, ReportLists,
};

/// Longest sleep of a worker while packets are under way, and while none are.
const SHORT_SLEEP: Duration = Duration::from_millis(5);
const LONG_SLEEP: Duration = Duration::from_millis(250);
/// While hosts have direct paths: what changed is to be told within a tenth of a second.
const SLEEP_WITH_PATHS: Duration = Duration::from_millis(25);
/// Turns after which the host port is read although nothing says that there is something: reading
/// it is a system call, also in vain, and most turns are about other ports.
const HOST_EVERY: u8 = 16;
/// Time that the end waits for transmit rings to drain.
const DRAIN: Duration = Duration::from_millis(200);

/// A command of the control thread to a worker, obeyed between two turns.
pub(crate) enum Command {
    /// Goes over to a snapshot. Unless ports or SAs go, it costs the worker no more than an
    /// exchange of pointers: what goes is handed back, for somebody else to free.
    Publish { next: Box<Next>, reply: oneshot::Sender<RetiredParts> },
    /// Takes a socket over.
    Attach {
        netdev: NetdevId,
        marker: Marker,
        socket: Box<xsk::Socket>,
        reply: oneshot::Sender<()>,
    },
    /// Closes all sockets of a netdev.
    Detach { netdev: NetdevId, reply: oneshot::Sender<Vec<io::QueueStatistics>> },
    /// Takes the host port over.
    AttachHost { netdev: NetdevId, port: TunPort, reply: oneshot::Sender<()> },
    /// Reports all counters but the policies', copied into the given lists, some entries a turn.
    Report { lists: Box<ReportLists>, reply: oneshot::Sender<Report> },
    /// Says what policies decided, outbound and inbound, from slot `from` on: as many as there is
    /// room for in `into`, which is empty; and under which snapshot.
    ReportPolicies { from: usize, into: Decided, reply: oneshot::Sender<(Arc<Snapshot>, Decided)> },
    /// Shows the entries of some lines of its flow cache, and the line to go on with; `None`: that
    /// was all.
    ShowCache { line: usize, reply: oneshot::Sender<(Vec<CacheEntry>, Option<usize>)> },
    /// Says what its flow cache would do with packets; `None`: it has none.
    Recall { keys: Vec<Key>, reply: oneshot::Sender<Option<Vec<Recall>>> },
    /// Lets a capture look on; answers with the moment that its times count from.
    AddTap { tap: Box<Tap>, reply: oneshot::Sender<Instant> },
    /// Ends a capture; what is handed back is for somebody else to free.
    RemoveTap { id: TapId, reply: oneshot::Sender<Option<Box<Tap>>> },
    /// Says which tenants' packets crossed since it was last asked, and how many packets each
    /// sample stands for; samples are taken from the first time on.
    FetchTenants { reply: oneshot::Sender<(Vec<TenantSample>, u64)> },
    /// Sets the audit to 1 of `one_of` packets (0: no audit), and returns the wrong verdicts that
    /// it has found since the last call.
    Audit { one_of: u32, reply: oneshot::Sender<Vec<Disagreement>> },
    /// Answers when no packet waits in its rings.
    WhenIdle { reply: oneshot::Sender<()> },
    /// Sends what is in the rings, drops what waits, closes everything and ends.
    Stop { reply: oneshot::Sender<FlushedCounts> },
}

/// Counters of policies, outbound and inbound, slot by slot.
pub(crate) type Decided = Vec<[Volume; 2]>;

/// Lines of the flow cache that are shown between two turns: some microseconds.
const SHOWN_LINES: usize = 512;
/// Samples of tenants' packets that are kept until they are fetched.
const TENANT_SAMPLES: usize = 4096;

/// The snapshot that a worker goes over to, with its counters and its flow cache.
pub(crate) struct Next {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) counters: NextCounters,
    pub(crate) cache: NextCache,
}

/// The counters that a worker uses from now on.
pub(crate) enum NextCounters {
    /// Those in use. The counts of these ports and SAs, which are gone, are handed back.
    Same(VacatedSlots),
    /// New ones, all zeros, with room for the new snapshot. All counts so far are handed back.
    Other(Box<Counters>),
}

/// The flow cache that a worker uses from now on.
#[expect(clippy::large_enum_variant, reason = "it is in the box that `Next` is sent in")]
pub(crate) enum NextCache {
    /// The one in use.
    Same,
    /// This one, or none.
    Other(Option<FlowCache>),
}

/// Parts that a worker needs no more, to be freed by somebody else.
pub(crate) struct RetiredParts {
    pub(crate) counted: ReturnedCounts,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) cache: Option<FlowCache>,
    /// The flow cache must be replaced by a fresh one.
    pub(crate) wants_cache: bool,
}

/// Counts of the snapshot before that go on nowhere.
pub(crate) enum ReturnedCounts {
    /// Counts of ports and SAs that are gone.
    Gone(VacatedSlots),
    /// All counts.
    All(Box<FlushedCounts>),
}

/// A wake-up signal for a worker, with the state that says whether the worker needs one.
struct Bell {
    rung: AtomicBool,
    /// The worker sleeps, or is about to and will look at its rings once more.
    asleep: AtomicBool,
    /// The worker has queues, so packets may be handed over to it.
    serves: AtomicBool,
    event: OwnedFd,
}

impl Bell {
    fn new() -> std::io::Result<Bell> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let [rung, asleep, serves] = [const { AtomicBool::new(false) }; 3];
        Ok(Bell { rung, asleep, serves, event })
    }

    /// The event first: who sees that it is rung finds it there and takes it away. One that came
    /// after would keep `poll` awake until the next.
    fn ring(&self) {
        // Full means it is rung already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        self.rung.store(true, Ordering::Release);
    }

    /// Rings if its worker may sleep: after something was put where that worker looks.
    fn wake(&self) {
        // Either it sees what was put there, or we see that it sleeps: the other half of the pair
        // is in `falls_asleep`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Says that its worker is about to sleep: it must look for work once more before it does.
    fn falls_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn is_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Returns whether it was rung since the last call.
    fn answered(&self) -> bool {
        if !self.rung.load(Ordering::Acquire) {
            return false;
        }
        self.rung.store(false, Ordering::Release);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        true
    }
}

/// The worker has ended: it panicked, and the daemon ends too.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread has ended unexpectedly")]
pub(crate) struct WorkerGone;

/// The control thread's end of a worker.
pub(crate) struct Handle {
    pub(crate) area: Arc<xsk::Area>,
    /// Frames in each socket's fill ring, and in its transmit ring, at most.
    pub(crate) quota: u32,
    caller: Caller,
    thread: Option<JoinHandle<()>>,
}

/// A way to a worker's inbox.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) core: usize,
    commands: mpsc::Sender<Command>,
    bell: Arc<Bell>,
    /// Turns so far: moves at least every [`LONG_SLEEP`].
    turns: Arc<AtomicU64>,
}

/// The parts that a worker is made of.
pub(crate) struct Setup {
    pub(crate) number: usize,
    pub(crate) core: usize,
    pub(crate) umem: xsk::Umem,
    /// Frames in each socket's fill ring, and in its transmit ring, at most.
    pub(crate) quota: u32,
    pub(crate) poll: Poll,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) cache: Option<FlowCache>,
    /// Channel for neighbours to resolve; sending never waits.
    pub(crate) resolve_requests: tokio::sync::mpsc::Sender<ResolveRequest>,
    /// Channel for SAs to make; sending never waits.
    pub(crate) acquire_requests: tokio::sync::mpsc::Sender<AcquireRequest>,
    /// Channel for peers that have moved; sending never waits.
    pub(crate) moved: tokio::sync::mpsc::Sender<AddressUpdate>,
}

/// A worker's ways to the others.
struct WorkerLinks {
    handovers: Handovers,
    /// One entry a worker.
    bells: Arc<[Arc<Bell>]>,
}

impl Handle {
    /// Starts workers without ports; their numbers are their places.
    pub(crate) fn start_all(setups: Vec<Setup>) -> std::io::Result<Vec<Handle>> {
        let bells: Arc<[Arc<Bell>]> = setups
            .iter()
            .map(|_| Bell::new().map(Arc::new))
            .collect::<std::io::Result<Vec<_>>>()?
            .into();
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
        let rings = Handovers::among(setups.len() as u32, &secret);
        let start = |(setup, handovers)| {
            Handle::start(setup, WorkerLinks { handovers, bells: bells.clone() })
        };
        setups.into_iter().zip(rings).map(start).collect()
    }

    fn start(setup: Setup, links: WorkerLinks) -> std::io::Result<Handle> {
        let bell = links.bells[setup.number].clone();
        let turns = Arc::new(AtomicU64::new(0));
        let (commands, inbox) = mpsc::channel();
        let (core, area, quota) = (setup.core, setup.umem.area().clone(), setup.quota);
        let name = format!("worker-{}", setup.number);
        let counted = turns.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            pin(setup.core);
            // Before there are ports: later packets would wait for it.
            ipsec::cipher::prepare_thread();
            Thread::new(setup, links, inbox, counted).run();
        })?;
        let caller = Caller { core, commands, bell, turns };
        Ok(Handle { area, quota, caller, thread: Some(thread) })
    }

    /// Calls [`Caller::send`].
    pub(crate) fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>, WorkerGone> {
        self.caller.send(command)
    }

    /// Calls [`Caller::ask`].
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, WorkerGone> {
        self.caller.ask(command).await
    }

    /// A way to the worker for somebody else.
    pub(crate) fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Returns whether its thread still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the worker and returns what it counted last.
    pub(crate) async fn stop(&mut self) -> Result<FlushedCounts, WorkerGone> {
        let last = self.ask(|reply| Command::Stop { reply }).await;
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| WorkerGone)?;
        }
        last
    }
}

impl Caller {
    /// Sends a command; the answer is waited for by whoever sent it.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>, WorkerGone> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| WorkerGone)?;
        self.bell.ring();
        Ok(answer)
    }

    /// Sends a command; the answer comes when the worker has done it.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, WorkerGone> {
        self.send(command)?.await.map_err(|_| WorkerGone)
    }

    /// Returns the number of turns it has done: stands still only if it hangs.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

/// A core that a thread may not be put on is not worth refusing to work for.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

struct Thread {
    worker: Worker<XdpFrames, LivePort>,
    quota: u32,
    snapshot: Arc<Snapshot>,
    inbox: mpsc::Receiver<Command>,
    bell: Arc<Bell>,
    /// One entry a worker.
    bells: Arc<[Arc<Bell>]>,
    /// Workers that walk packets, as far as this one knows.
    walking: usize,
    turns: Arc<AtomicU64>,
    resolve_requests: tokio::sync::mpsc::Sender<ResolveRequest>,
    acquire_requests: tokio::sync::mpsc::Sender<AcquireRequest>,
    moved: tokio::sync::mpsc::Sender<AddressUpdate>,
    poll: Poll,
    start: Instant,
    sleeps: u64,
    changeovers: Changeovers,
    /// Packets given to other workers and taken from them before counters were last exchanged.
    handed_before: [u64; 2],
    /// Counters of the flow cache before counters were last exchanged.
    cache_before: CacheCounters,
    /// Turns until the host port is read.
    host_in: u8,
    /// Those who wait for a turn without packets.
    when_idle: Vec<oneshot::Sender<()>>,
    reports: ReportQueue,
    /// Netdevs with a port on this worker.
    served: Vec<NetdevId>,
}

/// The thread's next step after a command.
enum GoOn {
    Turn,
    End,
}

impl Thread {
    fn new(
        setup: Setup,
        WorkerLinks { handovers, bells }: WorkerLinks,
        inbox: mpsc::Receiver<Command>,
        turns: Arc<AtomicU64>,
    ) -> Thread {
        let Setup { number, umem, quota, poll, snapshot, cache, .. } = setup;
        let Setup { resolve_requests, acquire_requests, moved, .. } = setup;
        let bell = bells[number].clone();
        let netdevs = (0..snapshot.netdev_slots()).map(|_| None).collect();
        let worker = Worker::new(&snapshot, XdpFrames::new(umem), netdevs);
        let mut worker = worker.live().beside(handovers);
        worker.take_cache(cache);
        worker.adopt(&snapshot, 0);
        let (start, sleeps, host_in) = (crate::clock::start(), 0, 0);
        Thread {
            worker,
            quota,
            snapshot,
            inbox,
            bell,
            bells,
            walking: 0,
            turns,
            resolve_requests,
            acquire_requests,
            moved,
            poll,
            start,
            sleeps,
            changeovers: Changeovers::default(),
            handed_before: [0; 2],
            cache_before: CacheCounters::default(),
            host_in,
            when_idle: Vec::new(),
            reports: ReportQueue::default(),
            served: Vec::new(),
        }
    }

    fn run(mut self) {
        loop {
            if self.bell.answered() {
                while let Ok(command) = self.inbox.try_recv() {
                    if matches!(self.obey(command), GoOn::End) {
                        return;
                    }
                }
            }
            let received = self.turn();
            if !self.reports.is_empty() {
                self.go_on_reporting();
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
            if received == 0 {
                self.when_idle.drain(..).for_each(|asked| _ = asked.send(()));
            }
            let has_work = self.worker.has_overdue_work() || !self.reports.is_empty();
            if received == 0 && self.poll == Poll::Sleep && !has_work {
                self.sleep();
            }
        }
    }

    /// Runs a turn over the rings and the netdevs with ports; returns the number of packets.
    fn turn(&mut self) -> usize {
        self.see_who_walks();
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let mut received = self.worker.take_over(&self.snapshot, now_ns);
        for place in 0..self.served.len() {
            let netdev = self.served[place];
            let port = &self.worker.netdevs()[usize::from(netdev.0)];
            let is_host = matches!(port, Some(LivePort::Tun(_)));
            if is_host && self.host_in > 0 {
                self.host_in -= 1;
                continue;
            }
            let count = self.worker.turn(&self.snapshot, now_ns, netdev, BATCH);
            if is_host && count == 0 {
                self.host_in = HOST_EVERY;
            }
            received += count;
        }
        self.worker.tick(&self.snapshot, now_ns);
        self.tell();
        received
    }

    /// Packets are handed over among the workers that have queues: those with the lowest numbers.
    fn see_who_walks(&mut self) {
        let serves = |bell: &&Arc<Bell>| bell.serves.load(Ordering::Relaxed);
        let walking = self.bells.iter().take_while(serves).count();
        if walking != self.walking {
            self.walking = walking;
            self.worker.walk_among(walking as u32);
        }
    }

    /// Tells the control thread what it is to know, and wakes who was handed packets.
    fn tell(&mut self) {
        for request in self.worker.resolve_requests() {
            // Full: it is asked for again in a second.
            let _ = self.resolve_requests.try_send(request);
        }
        for request in self.worker.acquire_requests() {
            // Full: it is asked for again in a second.
            let _ = self.acquire_requests.try_send(request);
        }
        for moved in self.worker.moved() {
            // Full: the peer's next packet tells it again.
            let _ = self.moved.try_send(moved);
        }
        for worker in self.worker.handed_to() {
            self.bells[worker as usize].wake();
        }
    }

    fn sleep(&mut self) {
        let mut under_way = self.worker.waiting() > 0;
        for netdev in &self.served {
            let (frames, port) = self.worker.parts_mut(*netdev);
            if let Some(LivePort::Xdp(port)) = port {
                under_way |= port.push(frames) > 0;
            }
        }
        let longest = match self.worker.has_direct_paths() {
            _ if under_way => SHORT_SLEEP,
            true => SLEEP_WITH_PATHS,
            false => LONG_SLEEP,
        };
        let mut host = None;
        let mut waits: Vec<PollFd<'_>> = vec![PollFd::new(&self.bell.event, PollFlags::IN)];
        let netdevs = self.worker.netdevs();
        for port in self.served.iter().filter_map(|netdev| netdevs[usize::from(netdev.0)].as_ref())
        {
            match port {
                LivePort::Xdp(port) => {
                    waits.extend(port.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)))
                }
                LivePort::Tun(port) => {
                    host = port.fd().map(|_| waits.len());
                    waits.extend(port.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)))
                }
            }
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as _ };
        self.bell.falls_asleep();
        if !self.worker.has_handovers() {
            self.sleeps += 1;
            // A signal or a dead port: the next turn sees.
            let _ = poll(&mut waits, Some(&timeout));
        }
        self.bell.is_awake();
        if host.is_some_and(|place| !waits[place].revents().is_empty()) {
            self.host_in = 0;
        }
    }

    fn obey(&mut self, command: Command) -> GoOn {
        // Who asked and has gone since needs no answer.
        match command {
            Command::Publish { next, reply } => {
                let began = Instant::now();
                let retired = self.publish(*next);
                self.changeovers.add(began.elapsed());
                let _ = reply.send(retired);
            }
            Command::Attach { netdev, marker, socket, reply } => {
                self.attach(netdev, marker, *socket);
                let _ = reply.send(());
            }
            Command::Detach { netdev, reply } => {
                let _ = reply.send(self.detach(netdev));
            }
            Command::AttachHost { netdev, port, reply } => {
                self.worker.put_netdev(netdev, Some(LivePort::Tun(port)));
                self.list_served();
                let _ = reply.send(());
            }
            Command::Report { lists, reply } => self.reports.push(*lists, reply),
            Command::ReportPolicies { from, mut into, reply } => {
                let Counters { policy_outbound, policy_inbound, .. } = self.worker.counters();
                let counted = policy_outbound.iter().zip(policy_inbound).skip(from);
                into.extend(counted.take(into.capacity()).map(|(out, inb)| [*out, *inb]));
                let _ = reply.send((self.snapshot.clone(), into));
            }
            Command::ShowCache { line, reply } => {
                let shown = self.worker.cache().map(|cache| cache.entries(line, SHOWN_LINES));
                let _ = reply.send(shown.unwrap_or_default());
            }
            Command::Recall { keys, reply } => {
                let recall = |cache: &FlowCache| keys.iter().map(|key| cache.recall(key)).collect();
                let _ = reply.send(self.worker.cache().map(recall));
            }
            Command::AddTap { tap, reply } => {
                self.worker.add_tap(tap);
                let _ = reply.send(self.start);
            }
            Command::RemoveTap { id, reply } => {
                let _ = reply.send(self.worker.remove_tap(id));
            }
            Command::FetchTenants { reply } => {
                let tenants = self.worker.tenants();
                if !tenants.is_on() {
                    tenants.take_at_most(TENANT_SAMPLES);
                }
                let _ = reply.send(tenants.fetch());
            }
            Command::Audit { one_of, reply } => {
                let auditor = self.worker.auditor();
                if auditor.share() != one_of {
                    auditor.judge_one_of(one_of);
                }
                let _ = reply.send(auditor.disagreements().collect());
            }
            Command::WhenIdle { reply } => self.when_idle.push(reply),
            Command::Stop { reply } => {
                let _ = reply.send(self.stop());
                return GoOn::End;
            }
        }
        GoOn::Turn
    }

    fn publish(&mut self, next: Next) -> RetiredParts {
        self.finish_reports();
        let Next { snapshot, counters, cache } = next;
        if snapshot.ports_gone_since(&self.snapshot).next().is_some() {
            self.empty_rings();
        }
        let old = std::mem::replace(&mut self.snapshot, snapshot);
        for port in self.worker.leave_ports(&self.snapshot) {
            self.close(port);
        }
        let counted = match counters {
            NextCounters::Same(gone) => ReturnedCounts::Gone(self.worker.take_counts(gone)),
            NextCounters::Other(zeroed) => {
                let counters = self.worker.exchange_counters(*zeroed);
                self.handed_before[0] += counters.handed_over;
                self.handed_before[1] += counters.taken_over;
                self.cache_before.add(&counters.cache);
                ReturnedCounts::All(Box::new(FlushedCounts { snapshot: old.clone(), counters }))
            }
        };
        let cache = match cache {
            NextCache::Same => None,
            NextCache::Other(cache) => self.worker.take_cache(cache),
        };
        self.list_served();
        let now_ns = self.start.elapsed().as_nanos() as u64;
        self.worker.adopt(&self.snapshot, now_ns);
        let wants_cache = self.worker.cache().is_some_and(FlowCache::needs_replacement);
        RetiredParts { counted, snapshot: old, cache, wants_cache }
    }

    /// Walks what others handed over before this moment, or as much as a ring holds.
    fn empty_rings(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        for _ in 0..RING_PACKETS.div_ceil(BATCH) {
            if self.worker.take_over(&self.snapshot, now_ns) == 0 {
                break;
            }
        }
        self.tell();
    }

    /// Lists the netdevs with ports, and publishes whether queues are among them. Call it after
    /// each change of ports: a turn visits only listed netdevs.
    fn list_served(&mut self) {
        let netdevs = (0..).map(NetdevId).zip(self.worker.netdevs());
        self.served.clear();
        self.served.extend(netdevs.filter(|(_, port)| port.is_some()).map(|(netdev, _)| netdev));
        let is_queue = |port: &LivePort| matches!(port, LivePort::Xdp(_));
        let serves = self.worker.netdevs().iter().flatten().any(is_queue);
        self.bell.serves.store(serves, Ordering::Relaxed);
    }

    fn attach(&mut self, netdev: NetdevId, marker: Marker, socket: xsk::Socket) {
        let (frames, port) = self.worker.parts_mut(netdev);
        match port {
            Some(LivePort::Xdp(port)) => port.add(frames, socket),
            _ => {
                let mut port = XdpPort::new(marker);
                port.add(frames, socket);
                self.worker.put_netdev(netdev, Some(LivePort::Xdp(port)));
            }
        }
        self.list_served();
    }

    fn detach(&mut self, netdev: NetdevId) -> Vec<io::QueueStatistics> {
        let port = self.worker.put_netdev(netdev, None);
        self.list_served();
        port.map(|port| self.close(port)).unwrap_or_default()
    }

    fn close(&mut self, port: LivePort) -> Vec<io::QueueStatistics> {
        match port {
            LivePort::Xdp(port) => port.close(self.worker.frames_mut()),
            LivePort::Tun(_) => Vec::new(),
        }
    }

    /// Makes the next part of the oldest requested report.
    fn go_on_reporting(&mut self) {
        if let Some((lists, reply)) = self.reports.step(&mut self.worker) {
            // A requester may be gone.
            let _ = reply.send(self.report(lists));
        }
    }

    /// Makes all requested reports, before their ports and SAs leave their slots. A report without
    /// a requester is not made: no packet is processed meanwhile.
    fn finish_reports(&mut self) {
        self.reports.discard_abandoned();
        while !self.reports.is_empty() {
            self.go_on_reporting();
        }
    }

    /// Returns a report with complete lists.
    fn report(&self, lists: ReportLists) -> Report {
        let census = lists.census();
        let ReportLists { counters, queues, host, domains, .. } = lists;
        let counters = counters.finish(self.worker.counters());
        let mut cache_counters = self.cache_before;
        cache_counters.add(&counters.cache);
        let cache = self.worker.cache().map(|cache| CacheReport {
            entries: cache.capacity(),
            bytes: cache.bytes(),
            is_full: cache.is_full(),
            domains,
        });
        let [handed_over, taken_over] = self.handed_before;
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Report {
            census,
            frame_bytes: self.worker.frames().umem().area().layout().size.bytes(),
            quota: self.quota,
            waiting: self.worker.waiting(),
            queues,
            host,
            turns: self.turns.load(Ordering::Relaxed),
            sleeps: self.sleeps,
            changeovers: self.changeovers,
            handed_over: handed_over + counters.handed_over,
            taken_over: taken_over + counters.taken_over,
            cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
            cache,
            cache_counters,
            flushed: FlushedCounts { snapshot: self.snapshot.clone(), counters },
        }
    }

    /// The end: what is in the rings is sent, what waits is dropped, sockets are closed.
    fn stop(&mut self) -> FlushedCounts {
        self.finish_reports();
        self.empty_rings();
        self.turn();
        self.worker.stop_waiting();
        let until = Instant::now() + DRAIN;
        for netdev in 0..self.worker.netdevs().len() {
            let netdev = NetdevId(netdev as u16);
            let (frames, port) = self.worker.parts_mut(netdev);
            if let Some(LivePort::Xdp(port)) = port {
                while port.push(frames) > 0 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            self.detach(netdev);
        }
        FlushedCounts { snapshot: self.snapshot.clone(), counters: self.worker.counters().clone() }
    }
}
