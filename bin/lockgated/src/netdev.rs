//! A netdev that ports are on: claims it, attaches the steering program, serves its queues.
//!
//! Taking one over, in this order, so that nothing is ever open that was closed:
//! 1. claim it: a second daemon on it finds the claim
//! 2. load a program with the ports' rules; open a socket per queue; workers take them over
//! 3. attach the program, in the place of an earlier one of ours

mod claim;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bpf::tier::Tier;
use bpf::{
    Attached, BpfError, Carried, CounterReader, Inside, LinkForm, ModeChoice, PortRule, Prefix,
    Steering,
};
use dataplane::NetdevId;
use dataplane::carve_out::{IKE_SERVICES, MAX_SERVICES};
use wire::mark::Marker;
use xsk::XskError;

use crate::assign::{self, MAX_QUEUES};
use crate::worker::{Command, Handle, WorkerGone};

pub(crate) use claim::Claim;

/// Number of the next attachment in this process. What another process attached runs no more when
/// this one takes its sockets, so nobody compares numbers of two processes.
static INCARNATIONS: AtomicU32 = AtomicU32::new(1);
/// Time that a queue may be busy: the kernel takes that long to let go of a dead process's socket.
const BUSY_RETRY: Duration = Duration::from_secs(5);
// The program has room for every entry that `check` accepts.
const _: () = assert!(MAX_SERVICES + IKE_SERVICES == bpf::MAX_SERVICES);

/// Reason why a netdev could not be attached, or its program not be updated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetdevError {
    /// Another daemon has the netdev.
    #[error(
        "{netdev} is another daemon's port: stop that one first (`ss -xlp` shows who listens on \
         @lockgate/port/{ifindex})"
    )]
    Claimed { netdev: String, ifindex: u32 },
    /// Another daemon has the guard and the host port.
    #[error(
        "another lockgated runs in this network namespace, and there is one guard and one \
         lockgate0: give its configuration these ports too (`ss -xlp` shows who listens on \
         @lockgate/namespace)"
    )]
    NamespaceClaimed,
    /// The claim cannot be made.
    #[error("{netdev} cannot be claimed: {error}")]
    Claim { netdev: String, error: std::io::Error },
    /// The program.
    #[error("{netdev}: {error}")]
    Bpf { netdev: String, error: BpfError },
    /// A socket.
    #[error("{netdev} queue {queue}: {error}")]
    Socket { netdev: String, queue: u32, error: XskError },
    /// The netdev has too many receive queues.
    #[error(
        "{netdev} has {queues} receive queues and {MAX_QUEUES} are served at most: lower them \
         with `ethtool -L {netdev} combined {MAX_QUEUES}`"
    )]
    TooManyQueues { netdev: String, queues: u32 },
    /// The driver changes received frames and cannot do without.
    #[error(
        "{netdev}: its driver does not switch {offload} off, so frames of tagged ports would look \
         untagged"
    )]
    Offload { netdev: String, offload: &'static str },
    /// A worker has ended.
    #[error(transparent)]
    Worker(#[from] WorkerGone),
}

impl NetdevError {
    /// The netdev's name, as far as it is about one.
    pub(crate) fn netdev(&self) -> &str {
        match self {
            NetdevError::Claimed { netdev, .. }
            | NetdevError::Claim { netdev, .. }
            | NetdevError::Bpf { netdev, .. }
            | NetdevError::Socket { netdev, .. }
            | NetdevError::TooManyQueues { netdev, .. }
            | NetdevError::Offload { netdev, .. } => netdev,
            NetdevError::NamespaceClaimed | NetdevError::Worker(_) => "",
        }
    }
}

/// A netdev to be taken over.
pub(crate) struct Taking {
    pub(crate) netdev: String,
    pub(crate) ifindex: u32,
    pub(crate) id: NetdevId,
    /// Number in the mark before each packet; a new one each time that a netdev is taken.
    pub(crate) mark: u16,
    pub(crate) queues: u32,
    /// Number of workers, from the first on, that serve queues.
    pub(crate) active: usize,
    pub(crate) instruction: Instruction,
}

/// The configuration of a netdev's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    /// The rules of its ports.
    pub(crate) rules: Vec<PortRule>,
    /// Our addresses with the side of the port that each is on.
    pub(crate) own: Arc<[(IpAddr, bpf::Side)]>,
    /// Prefixes of the routes, each with whether it leads inside: hosts there may not send from
    /// outside.
    pub(crate) inside: Arc<[(Prefix, Inside)]>,
    /// Packets that Linux carries.
    pub(crate) passed: Arc<Passed>,
    /// The modes in which it may run.
    pub(crate) mode: ModeChoice,
    /// The form in which frames come by it.
    pub(crate) link: LinkForm,
}

/// Packets of peers that programs pass to Linux, which carries them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Passed {
    /// Networks of peers, sorted.
    pub(crate) networks: Vec<(bpf::Prefix, Carried)>,
    /// Destination and SPI of ESP, sorted.
    pub(crate) sas: Vec<(IpAddr, u32)>,
}

/// An attached netdev.
#[derive(Clone)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) queues: u32,
    pub(crate) attached: Arc<Attached>,
    /// A user who runs no daemon has its claim.
    pub(crate) is_squatted: bool,
    /// The program's counters; `None`: they cannot be read.
    pub(crate) counters: Option<CounterReader>,
    /// True if the kernel tier's program is there; `None`: it was not asked for yet.
    pub(crate) tier: Option<bool>,
}

/// A netdev with Lockgate's program and sockets that workers serve. Dropping it leaves the program
/// attached and closed.
pub(crate) struct SteeredNetdev {
    netdev: String,
    ifindex: u32,
    queues: u32,
    steering: Steering,
    /// The modes in which the program may run.
    mode: ModeChoice,
    /// The form in which frames come by it.
    link: LinkForm,
    /// Numbers of the netdev and of the attachment, for the marks.
    marker: Marker,
    /// The claim, kept as long as the netdev is attached.
    _claim: Claim,
}

impl SteeredNetdev {
    /// Takes a netdev over. `workers`: those that serve queues.
    ///
    /// # Errors
    /// [`NetdevError`]; the netdev is then as it was found.
    pub(crate) async fn take(
        taking: &Taking,
        workers: &[Handle],
    ) -> Result<(SteeredNetdev, Netdev), NetdevError> {
        let Taking { netdev, ifindex, id, mark, queues, .. } = taking;
        let (netdev, ifindex, queues) = (netdev.clone(), *ifindex, *queues);
        if queues > MAX_QUEUES {
            return Err(NetdevError::TooManyQueues { netdev, queues });
        }
        let claim = Claim::make(&netdev, ifindex)?;
        let incarnation = INCARNATIONS.fetch_add(1, Ordering::Relaxed);
        let marker = Marker { netdev: *mark, incarnation };
        let steering = Steering::load(marker.netdev, incarnation)
            .map_err(|error| NetdevError::Bpf { netdev: netdev.clone(), error })?;
        let is_squatted = matches!(claim, Claim::Squatted);
        let Instruction { mode, link, .. } = taking.instruction;
        let mut steered =
            SteeredNetdev { netdev, ifindex, queues, steering, mode, link, marker, _claim: claim };
        let attached = match steered.serve(taking, workers).await {
            Ok(attached) => attached.into(),
            Err(error) => {
                release(workers, *id).await?;
                return Err(error);
            }
        };
        let counters = Some(steered.steering.counter_reader());
        Ok((steered, Netdev { ifindex, queues, attached, is_squatted, counters, tier: None }))
    }

    /// Makes the workers close the netdev's sockets. Its program stays and drops.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn release(self, workers: &[Handle], id: NetdevId) -> Result<(), WorkerGone> {
        for queue in 0..self.queues {
            // First here, so that nothing is redirected into a socket that is being closed; that
            // would be dropped too, but by nobody who counts.
            let _ = self.steering.set_queue(queue, None);
        }
        release(workers, id).await
    }

    /// Takes the program off.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`]: it stays.
    pub(crate) fn detach(self) -> Result<(), NetdevError> {
        let SteeredNetdev { netdev, ifindex, .. } = self;
        bpf::detach(ifindex).map(drop).map_err(|error| NetdevError::Bpf { netdev, error })
    }

    /// Gives the program changed instructions.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`]: some of it may be as it was.
    pub(crate) fn instruct(&mut self, instruction: &Instruction) -> Result<(), NetdevError> {
        let Instruction { rules, own, inside, passed, mode, link } = instruction;
        (self.mode, self.link) = (*mode, *link);
        let mut set = || {
            self.steering.set_own_addresses(own)?;
            if self.steering.set_inside(inside).is_err() {
                // More routes than it has room for: the workers, who know them all, are asked
                // instead.
                self.steering.forget_inside()?;
            }
            self.steering.set_carried(&passed.networks, &passed.sas)?;
            self.steering.set_ports(rules, self.link)
        };
        let done = set();
        done.map_err(|error| self.refused(error))
    }

    /// Replaces the program's rules for its ports, and nothing else.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`]: the rules are as they were.
    pub(crate) fn set_ports(&mut self, rules: &[PortRule]) -> Result<(), NetdevError> {
        self.steering.set_ports(rules, self.link).map_err(|error| self.refused(error))
    }

    /// Makes the program pass nothing to Linux until its ports are set again.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`]: the rules are as they were.
    pub(crate) fn close(&mut self) -> Result<(), NetdevError> {
        self.steering.forget_ports().map_err(|error| self.refused(error))
    }

    /// Puts the kernel tier of virtual networks in front of the workers.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`]: it is not there.
    pub(crate) fn add_tier(&mut self, tables: &Tier) -> Result<(), NetdevError> {
        let Marker { netdev, incarnation } = self.marker;
        let added = self.steering.add_tier(tables, netdev, incarnation);
        added.map_err(|error| self.refused(error))
    }

    /// Attaches the program again where something took it off.
    ///
    /// # Errors
    /// [`NetdevError::Bpf`].
    pub(crate) fn attach_again(&mut self) -> Result<Attached, NetdevError> {
        self.steering.attach_in(self.ifindex, self.mode).map_err(|error| self.refused(error))
    }

    /// Returns whether Lockgate's program is on the netdev.
    pub(crate) fn is_attached(&self) -> bool {
        // What cannot be asked is not taken for gone.
        bpf::attached(self.ifindex).map_or(true, |program| {
            program.is_some_and(|program| program.owner == bpf::Owner::Lockgate)
        })
    }

    async fn serve(
        &mut self,
        taking: &Taking,
        workers: &[Handle],
    ) -> Result<Attached, NetdevError> {
        let Taking { ifindex, id, queues, instruction, .. } = taking;
        let (ifindex, id) = (*ifindex, *id);
        let marker = self.marker;
        self.instruct(instruction)?;
        for queue in 0..*queues {
            let worker = &workers[assign::worker_of(queue, workers.len() as u32) as usize];
            let (area, quota) = (worker.area.clone(), worker.quota);
            let options = xsk::Options {
                receive_frames: quota,
                transmit_ring: quota,
                busy_retry: BUSY_RETRY,
                ..xsk::Options::default()
            };
            // It may have to wait for the kernel, and the control thread has other work.
            let opened = tokio::task::spawn_blocking(move || {
                xsk::Socket::open(&area, ifindex, queue, &options)
            });
            let netdev = || self.netdev.clone();
            let socket = opened.await.map_err(|_| WorkerGone)?;
            let failed = |error| NetdevError::Socket { netdev: netdev(), queue, error };
            let socket = Box::new(socket.map_err(failed)?);
            let set = self.steering.set_queue(queue, Some(socket.as_fd()));
            set.map_err(|error| self.refused(error))?;
            worker.ask(|reply| Command::Attach { netdev: id, marker, socket, reply }).await?;
        }
        self.attach_again()
    }

    fn refused(&self, error: BpfError) -> NetdevError {
        NetdevError::Bpf { netdev: self.netdev.clone(), error }
    }
}

async fn release(workers: &[Handle], netdev: NetdevId) -> Result<(), WorkerGone> {
    for worker in workers {
        worker.ask(|reply| Command::Detach { netdev, reply }).await?;
    }
    Ok(())
}
