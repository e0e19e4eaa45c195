//! The running gateway, and the order in which it changes: one configuration, compiled against one
//! view of the kernel, by which the workers process packets of the attached netdevs.
//!
//! The gateway does nothing to the machine itself: it asks a [`Machine`], step by step, and each
//! step may be refused. So changes, refusals and the way back are tested without privileges,
//! against a machine that is simulated and refuses what the test wants (`gateway/tests.rs`).
//!
//! | module | what |
//! |---|---|
//! | `machine` | what is asked of the machine |
//! | `transaction` | every change of what runs: withhold, guard, publish, take over, or all back |
//! | `view` | a change of what the kernel says |
//! | `associations` | single SAs that come and go |
//! | `roaming` | peers that are elsewhere now |
//! | `lower_tier` | what of virtual networks the kernel may answer |
//! | `netdevs` | which netdevs are attached, and what their programs know |
//! | `carrying` | peers whose packets Linux carries |
//! | `guarding` | the guard, and packets of `allow_host` that policies may want |
//! | `connections` | connections that must not outlast a change |
//! | `publish` | snapshots to the workers, with counters and flow caches |

mod associations;
mod carrying;
mod connections;
mod guarding;
mod lower_tier;
mod machine;

mod netdevs;
mod publish;
mod roaming;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
mod transaction;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use config::validated::Validated;
use control::guard::Guard;
use control::{Compiled, LiveParts, PortState, live_parts_towards};
use dataplane::Snapshot;
use dataplane::carve_out::Reserved;
use linux::View;

use crate::cards::Cards;
use crate::events::{Events, Kind};
use crate::kernel_tier::KernelTier;
use crate::netdev::Netdev;
use crate::totals::Totals;
use crate::worker::WorkerGone;

use carrying::Carrying;
pub(crate) use guarding::{reserved_by, reserved_of_earlier};
pub(crate) use machine::{Machine, Program};
pub(crate) use netdevs::{OtherMode, netdevs};
pub(crate) use roaming::{MAX_SEEN_ELSEWHERE, MoveRefusal, SeenElsewhere, is_inside};
pub(crate) use transaction::{NextGuard, Transaction, TransactionError};

/// The running gateway: configuration, snapshot, netdevs, workers and guard.
pub(crate) struct Gateway {
    pub(crate) compiled: Compiled,
    pub(crate) view: Arc<View>,
    pub(crate) live: Arc<LiveParts>,
    /// Remote ends of SAs are others: neighbours on the way there are to be kept fresh.
    pub(crate) ends_have_changed: bool,
    /// Number of times that each peer has moved since the start.
    pub(crate) moves: Arc<HashMap<String, u64>>,
    /// The snapshot that the workers run on.
    pub(crate) snapshot: Arc<Snapshot>,
    /// Packets of each port's `allow_host` that policies may want, as programs and guard know them.
    pub(crate) reserved: Reserved,
    /// The last narrowing failed: it is tried again with the next change of the view.
    reservation_due: bool,
    /// The last update of a program failed: it is tried again with the next change of the view.
    instruction_due: bool,
    /// Bytes of a frame of the workers.
    frame_bytes: usize,
    /// The workers.
    pub(crate) workers: usize,
    /// Number of workers, from the first on, that serve queues.
    pub(crate) active: usize,
    /// Attached netdevs, by name.
    pub(crate) netdevs: Arc<BTreeMap<String, Netdev>>,
    /// Reason why a netdev could not be attached, by its name.
    pub(crate) troubles: Arc<HashMap<String, String>>,
    /// Index of each netdev that could not be taken over when it was tried last, by name.
    refused: BTreeMap<String, u32>,
    /// Counts of workers under earlier snapshots.
    pub(crate) totals: Arc<Totals>,
    pub(crate) guard: Guard,
    /// State of the guard: `intact`, or `missing: ` and why.
    pub(crate) guard_state: Arc<str>,
    /// Set if `guard` was refused and another one stands in its place: it is put up as soon as it
    /// can be.
    guard_is_owed: bool,
    /// Size of each worker's flow cache when it was last reported, in IPv4 entries; 0: it has had
    /// none.
    pub(crate) cache_entries: Vec<usize>,
    /// The workers' flow caches are to be replaced.
    pub(crate) caches_need_replacement: bool,
    pub(crate) events: Events,
    /// The kernel tier of virtual networks.
    pub(crate) tier: Arc<KernelTier>,
    /// The network cards.
    pub(crate) cards: Cards,
    /// Packets that Linux carries, as programs and guard know them.
    carrying: Carrying,
    next_mark: u16,
    machine: Box<dyn Machine>,
}

/// The parts that a gateway begins with: workers run on the snapshot already, and no netdev is
/// taken yet.
pub(crate) struct GatewayParts {
    pub(crate) compiled: Compiled,
    pub(crate) view: Arc<View>,
    pub(crate) live: LiveParts,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) guard: Guard,
    pub(crate) events: Events,
    pub(crate) tier: Arc<KernelTier>,
    pub(crate) machine: Box<dyn Machine>,
}

/// Returns the parts of the kernel's view that a compiled configuration needs, for the current
/// addresses of peers and for frames of this size.
pub(crate) fn live_parts_of(compiled: &Compiled, view: &View, frame_bytes: usize) -> LiveParts {
    let slots = compiled.slots().clone();
    let mut live = live_parts_towards(compiled.settings(), view, slots, compiled.remotes());
    live.judge_mtus(view, frame_bytes);
    live
}

impl Gateway {
    pub(crate) fn new(parts: GatewayParts) -> Gateway {
        let GatewayParts { compiled, view, live, snapshot, guard, events, tier, machine } = parts;
        let workers = machine.workers();
        Gateway {
            reserved: reserved_by(&compiled, &live),
            compiled,
            view,
            live: live.into(),
            ends_have_changed: false,
            moves: Arc::default(),
            snapshot,
            reservation_due: false,
            instruction_due: false,
            frame_bytes: machine.frame_bytes(),
            workers,
            active: workers,
            netdevs: Arc::default(),
            troubles: Arc::default(),
            refused: BTreeMap::new(),
            totals: Arc::default(),
            guard,
            guard_state: "intact".into(),
            guard_is_owed: false,
            cache_entries: vec![0; workers],
            caches_need_replacement: false,
            cards: Cards::new(events.clone()),
            carrying: Carrying::default(),
            events,
            tier,
            next_mark: 1,
            machine,
        }
    }

    /// The running configuration without its policies, which are the compiled one's.
    pub(crate) fn config(&self) -> &Arc<Validated> {
        self.compiled.settings()
    }

    /// Returns whether all workers still run.
    pub(crate) fn is_alive(&self) -> bool {
        self.machine.is_alive()
    }

    /// Ends the workers.
    ///
    /// # Errors
    /// [`WorkerGone`]: one had ended before; the others end too.
    pub(crate) async fn stop(&mut self) -> Result<(), WorkerGone> {
        self.tier.end();
        let mut gone = Ok(());
        for last in self.machine.stop().await {
            match last {
                Ok(flushed) => Arc::make_mut(&mut self.totals).add(&flushed),
                Err(error) => gone = Err(error),
            }
        }
        gone
    }

    /// Takes the programs off all netdevs: Linux has their packets.
    pub(crate) fn open(&mut self) {
        for name in self.netdevs.keys() {
            if let Err(error) = self.machine.forget(name, Program::Goes) {
                self.events.record(Kind::PortRefused, name, error.to_string(), &[]);
            }
        }
        self.netdevs = Arc::default();
    }

    /// Records events for what does not fit in a view that is about to be gone over to, and for
    /// what fits again.
    fn report_problems(&self, live: &LiveParts) {
        let (old, new) = (&self.live.problems, &live.problems);
        for problem in new.iter().filter(|problem| !old.contains(problem)) {
            self.events.record(Kind::Misfit, problem.subject(), problem.to_string(), &[]);
        }
        for problem in old.iter().filter(|problem| !new.contains(problem)) {
            let message = format!("resolved: {problem}");
            self.events.record(Kind::MisfitResolved, problem.subject(), message, &[]);
        }
    }

    /// Records an event for each port whose state is another one.
    fn report_ports(&self, live: &LiveParts) {
        for (slot, port) in live.ports.iter() {
            let (old, new) = (&self.live.states[slot], &live.states[slot]);
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
