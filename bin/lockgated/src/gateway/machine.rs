//! Declares the operations that a gateway asks of the machine that it runs on.

use bpf::tier::Tier;
use bpf::{Attached, PortRule};
use config::validated::{Cache, Policy};
use control::guard::{Guard, GuardError, Integrity};
use dataplane::{FlowCache, NetdevId};
use linux::{Link, Offload};

use crate::cache_memory::{CacheError, Sizes};
use crate::netdev::{Instruction, Netdev, NetdevError, Taking};
use crate::worker::{FlushedCounts, Next, RetiredParts, WorkerGone};

/// The machine: its nftables, its netdevs with their programs and sockets, and the workers.
#[tonic::async_trait]
pub(crate) trait Machine: Send {
    /// Worker threads.
    fn workers(&self) -> usize;

    /// Bytes of a frame, the same for all workers.
    fn frame_bytes(&self) -> usize;

    /// Puts a guard in place, instead of the one that stands.
    ///
    /// # Errors
    /// [`GuardError`]: the one that stood still does.
    async fn install(&mut self, guard: Guard) -> Result<Guard, GuardError>;

    /// Puts rules for policies behind those of the guard that stands.
    ///
    /// # Errors
    /// [`GuardError`]: the guard is as it was.
    async fn extend(&mut self, guard: Guard, behind: Vec<Policy>) -> Result<Guard, GuardError>;

    /// Says whether a guard is as it was put in place.
    ///
    /// # Errors
    /// [`GuardError`]: it cannot be asked.
    async fn integrity(&mut self, guard: Guard) -> Result<Integrity, GuardError>;

    /// Makes each worker switch to its own entry of a list, and returns when all have.
    ///
    /// # Errors
    /// [`WorkerGone`]: the daemon ends.
    async fn publish(&mut self, next: Vec<Next>) -> Result<Vec<RetiredParts>, WorkerGone>;

    /// Makes flow caches for the workers, one entry each, of these sizes.
    ///
    /// # Errors
    /// [`CacheError`]: none was made.
    async fn make_caches(
        &mut self,
        cache: Cache,
        sizes: Sizes,
    ) -> Result<Vec<Option<FlowCache>>, CacheError>;

    /// Takes a netdev over: claims it, opens its queues, attaches its program.
    ///
    /// # Errors
    /// [`NetdevError`]: the netdev is as it was found.
    async fn take(&mut self, taking: Taking) -> Result<Netdev, NetdevError>;

    /// Makes the workers close a netdev's sockets. Its XDP program stays and drops.
    ///
    /// # Errors
    /// [`WorkerGone`]: the daemon ends.
    async fn release(&mut self, netdev: &str, id: NetdevId) -> Result<(), WorkerGone>;

    /// Forgets a netdev whose sockets are closed. Its program stays and drops, unless it is to go.
    ///
    /// # Errors
    /// [`NetdevError`]: the program stays.
    fn forget(&mut self, netdev: &str, program: Program) -> Result<(), NetdevError>;

    /// Tells the program of a netdev what changed.
    ///
    /// # Errors
    /// [`NetdevError`]: some of it may be as it was.
    fn instruct(&mut self, netdev: &str, instruction: &Instruction) -> Result<(), NetdevError>;

    /// Tells the program of a netdev other rules of its ports; all else stays.
    ///
    /// # Errors
    /// [`NetdevError`]: the rules are as they were.
    fn set_ports(&mut self, netdev: &str, rules: &[PortRule]) -> Result<(), NetdevError>;

    /// Makes the program of a netdev pass nothing to Linux until its ports are set again.
    ///
    /// # Errors
    /// [`NetdevError`]: the rules are as they were.
    fn close(&mut self, netdev: &str) -> Result<(), NetdevError>;

    /// Returns whether a Lockgate program is on a netdev.
    fn is_attached(&mut self, netdev: &str) -> bool;

    /// Puts the kernel tier of virtual networks in front of a netdev's workers.
    ///
    /// # Errors
    /// [`NetdevError`]: the workers have all packets.
    fn add_tier(&mut self, netdev: &str, tables: &Tier) -> Result<(), NetdevError>;

    /// Attaches the program of a netdev again, where something took it off.
    ///
    /// # Errors
    /// [`NetdevError`].
    fn attach_again(&mut self, netdev: &str) -> Result<Attached, NetdevError>;

    /// Gives each of the first `active` workers its queue of the host port. Returns the reasons of
    /// queues that were refused.
    ///
    /// # Errors
    /// [`WorkerGone`]: the daemon ends.
    async fn attach_host(
        &mut self,
        host: NetdevId,
        active: usize,
    ) -> Result<Vec<std::io::Error>, WorkerGone>;

    /// Receive queues of a netdev, if the kernel says.
    fn queues_of(&mut self, link: &Link) -> Option<u32>;

    /// Switches off the offloads by which a netdev's driver changes received frames. Returns those
    /// that the driver does not switch off; a driver that cannot be asked has none.
    fn leave_frames_alone(&mut self, link: &Link) -> Vec<Offload>;

    /// Returns the frames of closed sockets to the workers, as far as the kernel has released them.
    async fn release_frames(&mut self);

    /// Returns whether all workers still run.
    fn is_alive(&self) -> bool;

    /// Ends the workers: each sends what is in its rings, closes its sockets, and returns what it
    /// counted last.
    async fn stop(&mut self) -> Vec<Result<FlushedCounts, WorkerGone>>;
}

/// Fate of the program of a netdev that is no port any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    /// The program stays, and drops.
    Stays,
    /// The program is detached: the kernel gets the netdev's packets.
    Goes,
}
