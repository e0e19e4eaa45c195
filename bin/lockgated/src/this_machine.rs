//! The machine that the daemon runs on: nftables, netdevs, worker threads.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use bpf::tier::Tier;
use bpf::{Attached, PortRule};
use config::HOST_NETDEV;
use config::validated::{Cache, Policy};
use control::guard::{Guard, GuardError, Integrity};
use dataplane::{FlowCache, NetdevId};
use io::{Lifetime, TunPort};
use linux::nft::NftError;
use linux::{Ethtool, Link, Offload};

use crate::cache_memory::{self, CacheError, Sizes, When};
use crate::gateway::{Machine, Program};
use crate::netdev::{Instruction, Netdev, NetdevError, SteeredNetdev, Taking};
use crate::worker::{Command, FlushedCounts, Handle, Next, RetiredParts, WorkerGone};
use crate::workers::Workers;

/// The machine.
pub(crate) struct ThisMachine {
    workers: Vec<Handle>,
    netdevs: BTreeMap<String, SteeredNetdev>,
    ethtool: Ethtool,
}

impl ThisMachine {
    /// Returns a machine without attached netdevs.
    pub(crate) fn new(workers: Vec<Handle>, ethtool: Ethtool) -> ThisMachine {
        ThisMachine { workers, netdevs: BTreeMap::new(), ethtool }
    }

    /// Ways to its workers.
    pub(crate) fn ways(&self) -> Workers {
        Workers::new(self.workers.iter().map(Handle::caller).collect())
    }

    /// Returns a netdev that Lockgate holds.
    fn netdev(&mut self, netdev: &str) -> Result<&mut SteeredNetdev, NetdevError> {
        let missing =
            || NetdevError::Claim { netdev: netdev.into(), error: ErrorKind::NotFound.into() };
        self.netdevs.get_mut(netdev).ok_or_else(missing)
    }
}

/// Receive queues of a netdev, if the kernel says.
pub(crate) fn queues_of(ethtool: &mut Ethtool, link: &Link) -> Option<u32> {
    ethtool.channels(link).ok().map(|channels| channels.rx.max(1))
}

#[tonic::async_trait]
impl Machine for ThisMachine {
    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn frame_bytes(&self) -> usize {
        // There is a worker always, and all have frames of one size.
        let size = self.workers.first().map(|worker| worker.area.layout().size);
        size.unwrap_or(xsk::FrameSize::Page).bytes()
    }

    async fn install(&mut self, guard: Guard) -> Result<Guard, GuardError> {
        guard.installed().await
    }

    async fn extend(&mut self, guard: Guard, behind: Vec<Policy>) -> Result<Guard, GuardError> {
        let extended = tokio::task::spawn_blocking(|| guard.extend(behind)).await;
        extended.unwrap_or_else(|_| Err(NftError::interrupted().into()))
    }

    async fn integrity(&mut self, guard: Guard) -> Result<Integrity, GuardError> {
        let asked = tokio::task::spawn_blocking(move || guard.integrity()).await;
        asked.unwrap_or_else(|_| Err(NftError::interrupted().into()))
    }

    async fn publish(&mut self, next: Vec<Next>) -> Result<Vec<RetiredParts>, WorkerGone> {
        let mut answers = Vec::with_capacity(next.len());
        for (worker, next) in self.workers.iter().zip(next) {
            let next = Box::new(next);
            answers.push(worker.send(|reply| Command::Publish { next, reply })?);
        }
        let mut retired = Vec::with_capacity(answers.len());
        for answer in answers {
            retired.push(answer.await.map_err(|_| WorkerGone)?);
        }
        Ok(retired)
    }

    async fn make_caches(
        &mut self,
        cache: Cache,
        sizes: Sizes,
    ) -> Result<Vec<Option<FlowCache>>, CacheError> {
        let cores: Vec<usize> = self.ways().all().iter().map(|worker| worker.core).collect();
        let make = move || cache_memory::make(cache, &sizes, &cores, When::Running);
        let made = tokio::task::spawn_blocking(make).await;
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    async fn take(&mut self, taking: Taking) -> Result<Netdev, NetdevError> {
        let (steered, netdev) =
            SteeredNetdev::take(&taking, &self.workers[..taking.active]).await?;
        self.netdevs.insert(taking.netdev, steered);
        Ok(netdev)
    }

    async fn release(&mut self, netdev: &str, id: NetdevId) -> Result<(), WorkerGone> {
        match self.netdevs.remove(netdev) {
            Some(steered) => steered.release(&self.workers, id).await,
            None => Ok(()),
        }
    }

    fn forget(&mut self, netdev: &str, program: Program) -> Result<(), NetdevError> {
        match (self.netdevs.remove(netdev), program) {
            (Some(steered), Program::Goes) => steered.detach(),
            (Some(_), Program::Stays) | (None, _) => Ok(()),
        }
    }

    fn instruct(&mut self, netdev: &str, instruction: &Instruction) -> Result<(), NetdevError> {
        self.netdev(netdev)?.instruct(instruction)
    }

    fn set_ports(&mut self, netdev: &str, rules: &[PortRule]) -> Result<(), NetdevError> {
        self.netdev(netdev)?.set_ports(rules)
    }

    fn close(&mut self, netdev: &str) -> Result<(), NetdevError> {
        self.netdev(netdev)?.close()
    }

    fn is_attached(&mut self, netdev: &str) -> bool {
        self.netdevs.get(netdev).is_none_or(SteeredNetdev::is_attached)
    }

    fn add_tier(&mut self, netdev: &str, tables: &Tier) -> Result<(), NetdevError> {
        self.netdev(netdev)?.add_tier(tables)
    }

    fn attach_again(&mut self, netdev: &str) -> Result<Attached, NetdevError> {
        self.netdev(netdev)?.attach_again()
    }

    async fn attach_host(
        &mut self,
        host: NetdevId,
        active: usize,
    ) -> Result<Vec<std::io::Error>, WorkerGone> {
        let netdev = host;
        for worker in &self.workers {
            worker.ask(|reply| Command::Detach { netdev, reply }).await?;
        }
        let mut refused = Vec::new();
        for worker in &self.workers[..active] {
            match TunPort::open(HOST_NETDEV, Lifetime::Persistent) {
                Ok(port) => {
                    worker.ask(|reply| Command::AttachHost { netdev, port, reply }).await?;
                }
                Err(error) => refused.push(std::io::Error::other(error)),
            }
        }
        Ok(refused)
    }

    fn queues_of(&mut self, link: &Link) -> Option<u32> {
        queues_of(&mut self.ethtool, link)
    }

    fn leave_frames_alone(&mut self, link: &Link) -> Vec<Offload> {
        self.ethtool.leave_frames_alone(link).unwrap_or_default()
    }

    async fn release_frames(&mut self) {
        let areas: Vec<_> = self.workers.iter().map(|worker| worker.area.clone()).collect();
        // It may wait for the kernel. What is not proven now is asked again at the next inspection.
        let _ = tokio::task::spawn_blocking(move || xsk::release_quarantined(&areas)).await;
    }

    fn is_alive(&self) -> bool {
        self.workers.iter().all(Handle::is_alive)
    }

    async fn stop(&mut self) -> Vec<Result<FlushedCounts, WorkerGone>> {
        let mut last = Vec::with_capacity(self.workers.len());
        for worker in &mut self.workers {
            last.push(worker.stop().await);
        }
        last
    }
}
