//! The start, in an order in which nothing is ever open that was closed, and the undoing of a
//! start that fails.
//!
//! 1. the configuration with its keys, the ciphers' self-test, privileges
//! 2. the directories, the record of sequence numbers (a second daemon finds it locked)
//! 3. the kernel's view; every port must be there; then privileges are dropped
//! 4. the guard, before the first port is taken
//! 5. the host port, the workers, the netdevs one by one
//!
//! If step 5 fails, netdevs that had no program of ours before are let go again, and so is the
//! guard if it was not there: the machine is as it was found.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::validated::{Port, Validated};
use config::{HOST_NETDEV, Loaded};
use control::guard::{self, Guard};
use control::{Compiled, Compiler, check_netdevs, host_mtu};
use dataplane::{AcquireRequest, AddressUpdate, ResolveRequest, Snapshot};
use io::{Lifetime, TunPort};
use keystate::{KeyCounts, KeyState};
use linux::{Ethtool, Mirror, View};
use xsk::{FrameSize, Layout, Spacing};

use crate::acquires::{AcquireDesk, MAX_OUTSTANDING};
use crate::assign;
use crate::cache_memory::{self, When};
use crate::cards;
use crate::endpoints::EndpointDesk;
use crate::events::{Events, Kind};
use crate::failure::Failure;
use crate::gateway::{self, Gateway, live_parts_of, netdevs, reserved_by};
use crate::hardening;
use crate::kept_connections;
use crate::kernel_tier::KernelTier;
use crate::netdev::{Claim, NetdevError};
use crate::put_sas::report_filling_memories;
use crate::revisions::{Body, Cause, Confirmation, Content, Revision, Revisions, on_disk};
use crate::state::{State, StateParts};
use crate::stored_keys::stored;
use crate::this_machine::{ThisMachine, queues_of};
use crate::unconfirmed::{self, DamagedRecord, StandInRevision};
use crate::worker::{Handle, Setup};

/// Neighbours that may wait to be asked for.
const MAX_RESOLVE_REQUESTS: usize = 1024;
/// Moves of peers that may wait to be followed.
const MAX_MOVED: usize = 1024;

/// Time that the kernel may take to report the host port.
const HOST_WAIT: Duration = Duration::from_secs(2);

/// The result of a start.
pub(crate) struct StartedDaemon {
    pub(crate) state: State,
    pub(crate) compiler: Compiler,
    pub(crate) mirror: Mirror,
    pub(crate) resolve_requests: tokio::sync::mpsc::Receiver<ResolveRequest>,
    pub(crate) acquire_requests: tokio::sync::mpsc::Receiver<AcquireRequest>,
    pub(crate) moved: tokio::sync::mpsc::Receiver<AddressUpdate>,
}

/// Checks what can be found wrong without touching anything.
pub(crate) fn preflight() -> Result<(), Failure> {
    hardening::check_kernel()?;
    let missing = hardening::missing_privileges();
    if !missing.is_empty() {
        return Err(Failure::Privileges { how: hardening::how_to_get(&missing) });
    }
    ipsec::self_test()?;
    Ok(())
}

/// The parts that exist before the first port is taken.
struct StartParts {
    loaded: Loaded,
    file: PathBuf,
    base: PathBuf,
    instead: Option<StandInRevision>,
    damaged: Option<DamagedRecord>,
    keystate: KeyState,
    revisions: Revisions,
    compiler: Compiler,
    compiled: Compiled,
    endpoints: Arc<EndpointDesk>,
    tier: Arc<KernelTier>,
    mirror: Mirror,
    ethtool: Ethtool,
    queues: Vec<u32>,
    frame_size: FrameSize,
    guard: Guard,
    events: Events,
    namespace: Claim,
}

/// Starts everything but the API. `file` is absolute.
///
/// # Errors
/// [`Failure`]; the machine is then as it was found.
pub(crate) async fn start(
    beginning: unconfirmed::StartConfiguration,
    file: &Path,
    events: Events,
) -> Result<StartedDaemon, Failure> {
    let unconfirmed::StartConfiguration { loaded, base, instead, damaged } = beginning;
    let node = &loaded.validated.node;
    let mut keystate = KeyState::open(&node.run_dir, &node.state_dir)?;
    report_filling_memories(&events, KeyCounts::default(), keystate.key_counts());
    // What cannot be read or kept is told, and is no reason not to start.
    let (revisions, trouble) = Revisions::at_start(&node.state_dir);
    if let Some(trouble) = trouble {
        events.record(Kind::RevisionRefused, "", trouble, &[]);
    }
    let mirror = Mirror::start().await?;
    check_netdevs(&loaded.validated, mirror.view()).map_err(Failure::Ports)?;
    let namespace = claim_all(&loaded.validated, mirror.view())?;
    recognise(&loaded.validated, mirror.view());
    hardening::drop_privileges()?;
    let mut ethtool = Ethtool::open()?;
    let queues = queue_counts(&mut ethtool, &loaded.validated, mirror.view());
    let mut compiler = Compiler::for_workers(worker_count(&loaded.validated, &queues));
    let compiled = compiler.compile(&loaded, &mut keystate)?;
    let tier = KernelTier::new(loaded.validated.kernel, events.clone());
    let endpoints = EndpointDesk::new(tier.clone(), events.clone());
    if let Some(book) = compiler.take_endpoints() {
        endpoints.open(book, loaded.validated.store, &node.state_dir)?;
    }
    let frame_size = frame_size(&loaded.validated, mirror.view());
    let live = live_parts_of(&compiled, mirror.view(), frame_size.bytes());
    let mut guard = Guard::new(&loaded.validated, mirror.view(), &reserved_by(&compiled, &live))?;
    let earlier = guard::Earlier::look()?;
    guard.install()?;
    cards::sweep(&events);
    let file = file.to_owned();
    let prepared = StartParts {
        loaded,
        file,
        base,
        instead,
        damaged,
        keystate,
        revisions,
        compiler,
        compiled,
        endpoints,
        tier,
        mirror,
        ethtool,
        queues,
        frame_size,
        guard,
        events,
        namespace,
    };
    let started = begin(prepared).await;
    if started.is_err() {
        // As it was found: the one of an earlier daemon may be stricter. Where it cannot be put
        // back ours stays, which is for the ports that could not be had.
        let _ = earlier.restore();
    }
    started
}

/// Refuses to begin where another daemon has one of the netdevs, before its guard and its host port
/// are touched. The claim of the namespace is to be kept.
fn claim_all(config: &Validated, view: &View) -> Result<Claim, NetdevError> {
    for link in config.ports.iter().filter_map(|port| view.link_named(&port.netdev)) {
        // Made again, and kept, when the netdev is taken over.
        drop(Claim::make(&link.name, link.index)?);
    }
    Claim::namespace()
}

/// Looks at the programs that an earlier daemon left. Whose a program is that this process did not
/// attach, only a process with `CAP_SYS_ADMIN` is told, and that is about to be dropped.
fn recognise(config: &Validated, view: &View) {
    for link in netdevs(config).iter().filter_map(|name| view.link_named(name)) {
        // What cannot be looked at is refused when it is to be replaced.
        let _ = bpf::attached(link.index);
    }
}

async fn begin(prepared: StartParts) -> Result<StartedDaemon, Failure> {
    let StartParts { loaded, file, base, keystate, revisions, compiler, compiled, .. } = prepared;
    let StartParts {
        mut mirror,
        ethtool,
        queues,
        frame_size,
        guard,
        events,
        namespace,
        instead,
        damaged,
        endpoints,
        tier,
        ..
    } = prepared;
    prepare_host_port(&loaded.validated, &mut mirror).await?;
    events.record(Kind::HostStarted, HOST_NETDEV, "the host port is up", &[]);
    let live = live_parts_of(&compiled, mirror.view(), frame_size.bytes());
    let snapshot = compiled.assemble(&live, None)?;
    kept_connections::restore(&loaded.validated.node.run_dir, &snapshot, &events);
    let (asking, resolve_requests) = tokio::sync::mpsc::channel(MAX_RESOLVE_REQUESTS);
    let (acquiring, acquire_requests) = tokio::sync::mpsc::channel(MAX_OUTSTANDING);
    let (telling, moved) = tokio::sync::mpsc::channel(MAX_MOVED);
    let layout = layout(&loaded.validated, frame_size);
    let told = WorkersTell { resolve: asking, acquire: acquiring, moved: telling };
    let workers = start_workers(&loaded.validated, (&queues, layout), &snapshot, &told)?;
    leave_cores_to(&workers);
    let machine = ThisMachine::new(workers, ethtool);
    let ways = machine.ways();
    let gateway = Gateway::new(gateway::GatewayParts {
        compiled,
        view: mirror.view().clone().into(),
        live,
        snapshot,
        guard,
        events: events.clone(),
        tier,
        machine: Box::new(machine),
    });
    let mut state = State::new(StateParts {
        gateway,
        workers: ways,
        file,
        base: base.clone(),
        revisions,
        keystate,
        events,
        acquires: AcquireDesk::new(compiler.acquires().clone()),
        endpoints,
        namespace,
    });
    keep_first(&mut state, &loaded, (base, instead, damaged)).await;
    state.gateway.attach_host().await?;
    take_all(&mut state.gateway).await?;
    state.gateway.serve_tier();
    state.gateway.has_cards_configured().await?;
    state.report_refused();
    state.report_beginning().await;
    for warning in &loaded.warnings {
        state.events.record(Kind::ConfigurationWarning, "", warning.in_one_line(), &[]);
    }
    Ok(StartedDaemon { state, compiler, mirror, resolve_requests, acquire_requests, moved })
}

/// Makes what starts the first revision of this run, and tells if it is not what the file says.
async fn keep_first(
    state: &mut State,
    loaded: &Loaded,
    (base, instead, damaged): (PathBuf, Option<StandInRevision>, Option<DamagedRecord>),
) {
    let number = state.revisions.next();
    let revision = Revision {
        number,
        time: std::time::SystemTime::now(),
        uid: rustix::process::geteuid().as_raw(),
        cause: Cause::Start,
        file: match &instead {
            None => state.file.display().to_string(),
            Some(instead) => format!("revision {}", instead.previous),
        },
        base,
        changes: 0,
        restored: instead.as_ref().map(|instead| instead.previous),
        confirmation: Confirmation::NotAsked,
    };
    (state.revision, state.restored) = (number, revision.restored);
    let keys = stored(&loaded.keys.names(&loaded.validated));
    if let Some(damaged) = &damaged {
        state.report_damaged(damaged).await;
    }
    if let Some(instead) = &instead {
        let message = instead.message(&state.file, &keys);
        let details: crate::events::Details<'_> =
            &[("unconfirmed", &instead.refused), ("restored", &instead.previous)];
        state.events.record(Kind::UnconfirmedNotStarted, "", message, details);
    }
    let content = Content::Whole(Body { text: loaded.validated.effective(), keys });
    let written = Arc::make_mut(&mut state.revisions).keep(revision, content);
    if let Err(error) = on_disk(written).await {
        state.lose(number, &error);
    }
}

/// Makes the host port. A machine that cannot fails here, before the first port is taken.
async fn prepare_host_port(config: &Validated, mirror: &mut Mirror) -> Result<(), Failure> {
    drop(TunPort::open(HOST_NETDEV, Lifetime::Persistent)?);
    see_host_port(mirror).await;
    let link = |netdev: &str| mirror.view().link_named(netdev);
    let mtus = config.ports.iter().filter_map(|port| link(&port.netdev).map(|link| link.mtu));
    let mtu = host_mtu(mtus);
    mirror.prepare_host_port(HOST_NETDEV, mtu)?;
    Ok(())
}

/// Waits until the mirror shows the host port's netdev; what is missing then is said later.
async fn see_host_port(mirror: &mut Mirror) {
    let seen = async {
        while mirror.view().link_named(HOST_NETDEV).is_none() {
            mirror.changed().await;
        }
    };
    let _ = tokio::time::timeout(HOST_WAIT, seen).await;
}

/// Takes over all netdevs. If one cannot be had, those that were open before are open again.
async fn take_all(gateway: &mut Gateway) -> Result<(), Failure> {
    let mut opened_before = Vec::new();
    for (name, ifindex) in gateway.there() {
        match gateway.take(&name, ifindex).await {
            Ok(()) if !gateway.netdevs[&name].attached.replaced => opened_before.push(ifindex),
            Ok(()) => {}
            Err(error) => {
                for ifindex in opened_before {
                    // What cannot be detached stays closed.
                    let _ = bpf::detach(ifindex);
                }
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Receive queues of each netdev that is there.
fn queue_counts(ethtool: &mut Ethtool, config: &Validated, view: &View) -> Vec<u32> {
    let names = netdevs(config);
    let links = names[..names.len() - 1].iter().filter_map(|name| view.link_named(name));
    links.map(|link| queues_of(ethtool, link).unwrap_or(1)).collect()
}

fn worker_count(config: &Validated, queues: &[u32]) -> u32 {
    let cores = allowed_cores().len() as u32;
    let wanted = assign::wanted(config.node.workers, cores, config.node.reserve_cores);
    assign::usable(wanted, queues.iter().copied())
}

/// Channels by which workers tell the control thread.
struct WorkersTell {
    resolve: tokio::sync::mpsc::Sender<ResolveRequest>,
    acquire: tokio::sync::mpsc::Sender<AcquireRequest>,
    moved: tokio::sync::mpsc::Sender<AddressUpdate>,
}

fn start_workers(
    config: &Validated,
    (queues, layout): (&[u32], Layout),
    snapshot: &Arc<Snapshot>,
    told: &WorkersTell,
) -> Result<Vec<Handle>, Failure> {
    // As many as the snapshot is for: its replay windows know whether several commit to them.
    let count = snapshot.workers();
    let cores = assign::cores(count, &allowed_cores());
    cache_memory::check(config.cache, count, 0)?;
    let sizes = cache_memory::sizes(config.cache, &vec![0; cores.len()]);
    let caches = cache_memory::make(config.cache, &sizes, &cores, When::AtStart)?;
    let mut setups = Vec::new();
    for (number, (core, cache)) in cores.into_iter().zip(caches).enumerate() {
        let sockets = assign::sockets(number as u32, count, queues.iter().copied());
        let quota = assign::quota(sockets, layout.size);
        let frames = assign::frames(sockets, quota);
        let umem = xsk::Umem::laid_out(frames, layout).map_err(Failure::Memory)?;
        let (snapshot, poll) = (snapshot.clone(), config.node.poll);
        let WorkersTell { resolve, acquire, moved } = told;
        setups.push(Setup {
            number,
            core,
            umem,
            quota,
            poll,
            snapshot,
            cache,
            resolve_requests: resolve.clone(),
            acquire_requests: acquire.clone(),
            moved: moved.clone(),
        });
    }
    Handle::start_all(setups).map_err(Failure::Thread)
}

/// Returns the size of frames that holds the packets of every port, by its netdev's MTU and by the
/// one that the configuration names: so that it can name one that is to come.
fn frame_size(config: &Validated, view: &View) -> FrameSize {
    let netdev = |port: &Port| {
        let link = view.link_named(&port.netdev)?;
        // A VLAN netdev that comes later has the MTU of the one below.
        port.vlan.map_or(Some(link), |id| view.vlan_on(link.index, id).or(Some(link)))
    };
    let mtu = |port: &Port| netdev(port).map_or(port.mtu, |link| link.mtu.max(port.mtu));
    assign::frame_size(config.ports.iter().map(mtu).max().unwrap_or(0))
}

/// Returns the layout of the workers' frames: staggered where every netdev is one of the kernel's
/// own (veth, say), so that its packets are copied anyway. A driver of a device may work on the
/// frames itself, which is worth more.
fn layout(config: &Validated, size: FrameSize) -> Layout {
    let of = |netdev: &str| Path::new("/sys/class/net").join(netdev);
    let is_kernels = |netdev: &str| of(netdev).exists() && !of(netdev).join("device").exists();
    match config.ports.iter().all(|port| is_kernels(&port.netdev)) {
        true => Layout::of_copies(size),
        false => Layout { size, spacing: Spacing::Aligned },
    }
}

/// Keeps this thread, and what it starts from now on (threads for slow work, `nft`), off the
/// workers' cores, if there are others: where the kernel does not preempt, a worker waits as long
/// as a system call on its core takes, and 100 000 addresses for nftables take more than a second.
fn leave_cores_to(workers: &[Handle]) {
    let mut others = rustix::thread::CpuSet::new();
    let is_free = |core: &usize| workers.iter().all(|worker| worker.caller().core != *core);
    allowed_cores().into_iter().filter(is_free).for_each(|core| others.set(core));
    if others.count() > 0 {
        // Refused, it stays where it was: slower, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &others);
    }
}

/// Cores that this process may use: what `taskset` or a unit's `CPUAffinity=` left.
fn allowed_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => vec![0],
    }
}

/// Makes the directories that the configuration names, where they are missing.
pub(crate) fn make_directories(config: &Validated) -> Result<(), Failure> {
    make_directory(&config.node.run_dir, 0o750)?;
    make_directory(&config.node.state_dir, 0o700)
}

fn make_directory(path: &Path, mode: u32) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|error| Failure::Directory { path: path.to_owned(), error })
}
