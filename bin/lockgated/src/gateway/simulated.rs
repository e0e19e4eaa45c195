//! A machine that is simulated: it keeps what it was asked, refuses the step that a test wants
//! refused, or takes its time for it, and looks after every step whether something is open that
//! must be closed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bpf::{Attached, Mode, ModeChoice, PortRule};
use config::Loaded;
use config::validated::{Cache, Policy};
use control::guard::{Guard, GuardError, Integrity};
use control::{Compiler, live_parts};
use dataplane::carve_out::Reserved;
use dataplane::{CacheUse, Counters, FlowCache, HostService, NetdevId, PortInfo, Snapshot};
use keystate::{HostIdentity, KeyState};
use linux::nft::NftError;
use linux::{Link, LinkKind, Offload, View};
use policy::PortRange;
use tokio::sync::Semaphore;

use super::machine::{Machine, Program};
use super::netdevs::scope;
use super::{Gateway, GatewayParts, netdevs, reserved_by};
use crate::cache_memory::{CacheError, Sizes};
use crate::events::Events;
use crate::netdev::{Instruction, Netdev, NetdevError, Taking};
use crate::worker::{
    FlushedCounts, Next, NextCache, NextCounters, RetiredParts, ReturnedCounts, WorkerGone,
};

/// Workers of the machine.
pub(super) const WORKERS: usize = 2;

/// A gateway that runs a configuration over such a machine.
pub(crate) struct StartedGateway {
    pub(crate) gateway: Gateway,
    pub(crate) machine: Simulated,
    pub(crate) compiler: Compiler,
    pub(crate) keys: KeyState,
}

/// Starts one. No netdev is taken over yet.
pub(crate) fn started(loaded: &Loaded, view: View, folder: &Path) -> StartedGateway {
    let host = HostIdentity::new("machine", "boot");
    let mut keys = KeyState::open_as(&folder.join("run"), &folder.join("state"), &host).unwrap();
    let mut compiler = Compiler::new();
    let compiled = compiler.compile(loaded, &mut keys).unwrap();
    let live = live_parts(compiled.settings(), &view);
    let snapshot = compiled.assemble(&live, None).unwrap();
    let guard = Guard::new(compiled.validated(), &view, &reserved_by(&compiled, &live)).unwrap();
    let machine = Simulated::new(snapshot.clone(), netdevs(compiled.settings()), &guard);
    let gateway = Gateway::new(GatewayParts {
        tier: crate::kernel_tier::KernelTier::off(),
        compiled,
        view: view.into(),
        live,
        snapshot,
        guard,
        events: Events::new(),
        machine: Box::new(machine.clone()),
    });
    StartedGateway { gateway, machine, compiler, keys }
}

/// Netdevs `eth0` to `eth4`, of which `eth0` has an address.
pub(crate) fn view() -> View {
    let link = |index: u32| Link {
        index,
        name: format!("eth{}", index - 1),
        mac: [2, 0, 0, 0, 0, index as u8],
        mtu: 1500,
        admin_up: true,
        carrier: true,
        kind: LinkKind::Veth,
        ethernet: true,
        master: None,
        lower: None,
        queues: (2, 2),
    };
    let address = IpAddr::from([192, 0, 2, 1]).into();
    View {
        links: (1..=5).map(|index| (index, link(index))).collect(),
        addresses: [(1, address, 24)].into(),
        ..View::default()
    }
}

/// An operation of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Install,
    Extend,
    Caches,
    Publish,
    Take,
    Release,
    Forget,
    Instruct,
    SetPorts,
    /// Never refused.
    Close,
}

/// A netdev with Lockgate's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SimulatedProgram {
    pub(super) rules: Vec<PortRule>,
    /// Workers serve its queues.
    pub(super) is_served: bool,
}

/// The machine as a test sees it.
pub(crate) struct World {
    pub(super) steps: Vec<Step>,
    /// The step to be refused, counted from now; 0 is the next.
    pub(super) refuse: Option<usize>,
    /// Number of steps that are refused from that one on.
    pub(super) in_a_row: usize,
    /// Netdevs that cannot be taken over.
    pub(super) untakable: BTreeSet<String>,
    pub(super) guard: String,
    /// The snapshot that the workers run on.
    pub(super) walked: Arc<Snapshot>,
    /// The netdevs of that snapshot, in its order.
    pub(super) names: Vec<String>,
    pub(super) programs: BTreeMap<String, SimulatedProgram>,
    /// Programs that somebody took off their netdevs.
    pub(super) taken_off: BTreeMap<String, SimulatedProgram>,
    /// Entries of each worker's flow cache, as far as it was given one.
    pub(super) caches: [Option<usize>; WORKERS],
    /// Semaphore without whose permits no guard is installed; `guards_waiting` counts the waiting
    /// ones.
    pub(crate) held_up: Option<Arc<Semaphore>>,
    pub(crate) guards_waiting: usize,
}

/// The machine as the gateway has it.
#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<World>>);

impl Simulated {
    /// Snapshots that workers were given so far.
    pub(crate) fn published(&self) -> usize {
        self.world().steps.iter().filter(|step| **step == Step::Publish).count()
    }

    pub(super) fn new(walked: Arc<Snapshot>, names: Vec<String>, guard: &Guard) -> Simulated {
        let world = World {
            steps: Vec::new(),
            refuse: None,
            in_a_row: 1,
            untakable: BTreeSet::new(),
            guard: guard.text(),
            walked,
            names,
            programs: BTreeMap::new(),
            taken_off: BTreeMap::new(),
            caches: [None; WORKERS],
            held_up: None,
            guards_waiting: 0,
        };
        Simulated(Arc::new(Mutex::new(world)))
    }

    /// Returns whether the program of a netdev passes fragments of some service of UDP to Linux.
    pub(crate) fn passes_fragments(&self, netdev: &str) -> bool {
        let rules = &self.world().programs[netdev].rules;
        let mut services = rules.iter().flat_map(|rule| &rule.services);
        let passes = |scope: bpf::Scope| scope.and(bpf::Scope::FRAGMENTS) == scope;
        services.any(|of| of.protocol == wire::flow::protocol::UDP && passes(of.scope))
    }

    /// Has the next step refused.
    pub(crate) fn refuse_next(&self) {
        self.world().refuse = Some(0);
    }

    /// The snapshot that the workers run on.
    pub(crate) fn walked(&self) -> Arc<Snapshot> {
        self.world().walked.clone()
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Begins a step.
    ///
    /// # Errors
    /// The step is the one to be refused.
    fn begin(&self, step: Step) -> Result<MutexGuard<'_, World>, ()> {
        let mut world = self.world();
        world.steps.push(step);
        match &mut world.refuse {
            None => Ok(world),
            Some(0) => {
                world.in_a_row -= 1;
                if world.in_a_row == 0 {
                    (world.refuse, world.in_a_row) = (None, 1);
                }
                Err(())
            }
            Some(later) => {
                *later -= 1;
                Ok(world)
            }
        }
    }
}

impl World {
    /// Returns the ports that are walked, by name, each with the name of its netdev: slots tell of
    /// what ran before.
    pub(super) fn ports(&self) -> BTreeMap<String, (PortInfo, String)> {
        let port = |(_, port): (_, &PortInfo)| {
            let netdev = self.names[usize::from(port.netdev.0)].clone();
            (port.name.clone(), (PortInfo { netdev: NetdevId(0), ..port.clone() }, netdev))
        };
        self.walked.ports().map(port).collect()
    }

    /// Asserts that no program passes a packet of `allow_host` that a policy which is walked may
    /// want.
    fn nothing_is_open_that_must_be_closed(&self) {
        for (netdev, steered) in &self.programs {
            let Some(id) = self.names.iter().position(|name| name == netdev) else { continue };
            for rule in &steered.rules {
                self.passes_nothing_wanted(NetdevId(id as u16), rule);
            }
        }
    }

    fn passes_nothing_wanted(&self, id: NetdevId, rule: &PortRule) {
        let mut ports = self.walked.sources().ports.clone();
        let is_its = |port: &PortInfo| port.netdev == id && port.vlan == rule.vlan;
        let Some((port, info)) = self.walked.ports().find(|(_, port)| is_its(port)) else { return };
        if rule.side != super::netdevs::side(info.side) {
            return;
        }
        let service = |service: &bpf::Service| HostService {
            protocol: service.protocol,
            ports: service.ports.map(|(lo, hi)| PortRange { lo, hi }),
        };
        let services: Vec<HostService> = rule.services.iter().map(service).collect();
        let info = PortInfo { allow_host: services.clone(), ..info.clone() };
        ports.set(usize::from(port.0), Some(info.clone()));
        let policies = self.walked.spd().holding_policies().map(|(_, policy)| policy);
        let reserved = Reserved::by(&ports, &self.walked.sources().routes, policies)
            .with_fragments_of(self.walked.sad(), &ports);
        let open = reserved.open(&info.name, &services);
        for (passed, of) in rule.services.iter().zip(&services) {
            let free = open.iter().filter(|open| open.service == *of);
            let free = free.fold(bpf::Scope::NONE, |all, open| all.and(scope(open.packets)));
            let both = free.and(passed.scope);
            assert_eq!(both, free, "{rule:?} passes more than {open:?}");
        }
    }
}

fn guard_refused() -> GuardError {
    NftError::Refused { action: "do it", message: "the test".into() }.into()
}

fn netdev_refused(netdev: &str) -> NetdevError {
    NetdevError::Claim { netdev: netdev.into(), error: std::io::ErrorKind::Other.into() }
}

#[tonic::async_trait]
impl Machine for Simulated {
    fn workers(&self) -> usize {
        WORKERS
    }

    fn frame_bytes(&self) -> usize {
        2048
    }

    async fn install(&mut self, guard: Guard) -> Result<Guard, GuardError> {
        let held_up = self.world().held_up.clone();
        if let Some(held_up) = held_up {
            self.world().guards_waiting += 1;
            held_up.acquire().await.unwrap().forget();
        }
        let mut world = self.begin(Step::Install).map_err(|()| guard_refused())?;
        world.guard = guard.text();
        Ok(guard)
    }

    async fn extend(&mut self, guard: Guard, _: Vec<Policy>) -> Result<Guard, GuardError> {
        drop(self.begin(Step::Extend).map_err(|()| guard_refused())?);
        Ok(guard)
    }

    async fn integrity(&mut self, _: Guard) -> Result<Integrity, GuardError> {
        Ok(Integrity::Intact)
    }

    async fn publish(&mut self, next: Vec<Next>) -> Result<Vec<RetiredParts>, WorkerGone> {
        let mut world = self.world();
        world.steps.push(Step::Publish);
        assert_eq!(next.len(), WORKERS);
        let walked = next[0].snapshot.clone();
        let before = std::mem::replace(&mut world.walked, walked.clone());
        // Netdevs that are gone are closed. The names of those that come are learned as they are
        // taken.
        let old = std::mem::take(&mut world.names);
        for slot in 0..walked.netdev_slots().max(old.len()) {
            let name = old.get(slot).cloned().unwrap_or_default();
            if walked.has_netdev(NetdevId(slot as u16)) {
                world.names.resize(slot, String::new());
                world.names.push(name);
            } else if let Some(steered) = world.programs.get_mut(&name) {
                steered.is_served = false;
            }
        }
        world.nothing_is_open_that_must_be_closed();
        for (known, next) in world.caches.iter_mut().zip(&next) {
            if let NextCache::Other(cache) = &next.cache {
                *known = cache.as_ref().map(FlowCache::capacity);
            }
        }
        let retired = |next: Next| RetiredParts {
            counted: match next.counters {
                NextCounters::Same(mut gone) => {
                    // Every port has counted one packet on each worker.
                    let ledgers = gone.ports.iter_mut().map(|(_, counts)| &mut counts.ledger);
                    ledgers.for_each(|ledger| (ledger.received, ledger.sent) = (1, 1));
                    ReturnedCounts::Gone(gone)
                }
                NextCounters::Other(_) => {
                    let counters = Counters::new(&before);
                    ReturnedCounts::All(Box::new(FlushedCounts {
                        snapshot: before.clone(),
                        counters,
                    }))
                }
            },
            snapshot: before.clone(),
            cache: None,
            wants_cache: false,
        };
        Ok(next.into_iter().map(retired).collect())
    }

    async fn make_caches(
        &mut self,
        _: Cache,
        sizes: Sizes,
    ) -> Result<Vec<Option<FlowCache>>, CacheError> {
        let refused = |()| CacheError::TooLarge { flows: 1, needed: 1, available: 0 };
        drop(self.begin(Step::Caches).map_err(refused)?);
        let cache = |entries| FlowCache::new(entries, &[0; 32], CacheUse::Always).unwrap();
        Ok(sizes.into_iter().map(|entries| entries.map(cache)).collect())
    }

    async fn take(&mut self, taking: Taking) -> Result<Netdev, NetdevError> {
        let Taking { netdev, ifindex, id, queues, instruction, .. } = taking;
        let mut world = self.begin(Step::Take).map_err(|()| netdev_refused(&netdev))?;
        if world.untakable.contains(&netdev) {
            return Err(netdev_refused(&netdev));
        }
        let replaced = world.programs.contains_key(&netdev);
        world.names[usize::from(id.0)] = netdev.clone();
        let steered = SimulatedProgram { rules: instruction.rules, is_served: true };
        world.programs.insert(netdev, steered);
        world.nothing_is_open_that_must_be_closed();
        let mode = match instruction.mode {
            ModeChoice::Native => Mode::Native,
            ModeChoice::Auto | ModeChoice::Generic => Mode::Generic,
        };
        let attached = Attached { mode, native_refused: None, replaced }.into();
        Ok(Netdev { ifindex, queues, attached, is_squatted: false, counters: None, tier: None })
    }

    async fn release(&mut self, netdev: &str, _: NetdevId) -> Result<(), WorkerGone> {
        let mut world = self.world();
        world.steps.push(Step::Release);
        world.programs.get_mut(netdev).unwrap().is_served = false;
        Ok(())
    }

    fn forget(&mut self, netdev: &str, program: Program) -> Result<(), NetdevError> {
        let mut world = self.begin(Step::Forget).map_err(|()| netdev_refused(netdev))?;
        if program == Program::Goes {
            world.programs.remove(netdev);
        }
        Ok(())
    }

    fn instruct(&mut self, netdev: &str, instruction: &Instruction) -> Result<(), NetdevError> {
        let mut world = self.begin(Step::Instruct).map_err(|()| netdev_refused(netdev))?;
        world.programs.get_mut(netdev).unwrap().rules = instruction.rules.clone();
        world.nothing_is_open_that_must_be_closed();
        Ok(())
    }

    fn set_ports(&mut self, netdev: &str, rules: &[PortRule]) -> Result<(), NetdevError> {
        let mut world = self.begin(Step::SetPorts).map_err(|()| netdev_refused(netdev))?;
        world.programs.get_mut(netdev).unwrap().rules = rules.to_vec();
        world.nothing_is_open_that_must_be_closed();
        Ok(())
    }

    fn close(&mut self, netdev: &str) -> Result<(), NetdevError> {
        let mut world = self.world();
        world.steps.push(Step::Close);
        world.programs.get_mut(netdev).unwrap().rules.clear();
        Ok(())
    }

    fn is_attached(&mut self, netdev: &str) -> bool {
        self.world().programs.contains_key(netdev)
    }

    fn add_tier(&mut self, _: &str, _: &bpf::tier::Tier) -> Result<(), NetdevError> {
        Ok(())
    }

    fn attach_again(&mut self, netdev: &str) -> Result<Attached, NetdevError> {
        let mut world = self.world();
        let program = world.taken_off.remove(netdev).ok_or_else(|| netdev_refused(netdev))?;
        world.programs.insert(netdev.to_owned(), program);
        Ok(Attached { mode: Mode::Generic, native_refused: None, replaced: false })
    }

    async fn attach_host(
        &mut self,
        _: NetdevId,
        _: usize,
    ) -> Result<Vec<std::io::Error>, WorkerGone> {
        Ok(Vec::new())
    }

    fn queues_of(&mut self, _: &Link) -> Option<u32> {
        Some(WORKERS as u32)
    }

    fn leave_frames_alone(&mut self, _: &Link) -> Vec<Offload> {
        Vec::new()
    }

    async fn release_frames(&mut self) {}

    fn is_alive(&self) -> bool {
        true
    }

    async fn stop(&mut self) -> Vec<Result<FlushedCounts, WorkerGone>> {
        Vec::new()
    }
}
