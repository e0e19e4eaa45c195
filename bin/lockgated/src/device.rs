//! One netdev that ports are on: claimed, steered, its queues served.
//!
//! Taking one over, in this order, so that nothing is ever open that was closed:
//! 1. claim it: a second daemon on it finds the claim
//! 2. load a program with the ports' rules; open a socket per queue; workers take them over
//! 3. attach the program, in the place of an earlier one of ours

mod claim;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bpf::{Attached, BpfError, Inside, PortRule, Prefix, Scope, Steering};
use dataplane::carve_out::{IKE_SERVICES, MAX_SERVICES, Packets, Reserved};
use dataplane::{NetdevId, PortId, Side, Snapshot};
use xsk::XskError;

use crate::assign::{self, MAX_QUEUES, QUOTA};
use crate::worker::{Command, Handle, WorkerGone};

pub(crate) use claim::Claim;

/// Number of the next attachment in this process. What another process attached runs no more when
/// this one takes its sockets, so nobody compares numbers of two processes.
static INCARNATIONS: AtomicU32 = AtomicU32::new(1);
/// How long a queue may be busy: the kernel takes that long to let go of a dead process's socket.
const BUSY_RETRY: Duration = Duration::from_secs(5);
// The program has room for every entry that `check` accepts.
const _: () = assert!(MAX_SERVICES + IKE_SERVICES == bpf::MAX_SERVICES);

/// Why a netdev cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// Another daemon has it.
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
    /// More queues than are served.
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

/// A netdev that is ours. Dropping it leaves the program attached and closed.
pub(crate) struct Device {
    pub(crate) netdev: String,
    pub(crate) ifindex: u32,
    pub(crate) queues: u32,
    pub(crate) attached: Attached,
    /// Kept as long as the netdev is.
    pub(crate) claim: Claim,
    steering: Steering,
}

/// What every program knows of the box and its routes.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Surroundings {
    /// Our addresses with the side of the port that each is on.
    pub(crate) own: Vec<(IpAddr, bpf::Side)>,
    /// Where those live who may not speak from outside.
    pub(crate) inside: Vec<(Prefix, Inside)>,
    /// Packets of each port's `allow_host` that policies may want: the program does not pass them.
    pub(crate) reserved: Reserved,
}

/// What a netdev is taken over with.
pub(crate) struct Taking<'a> {
    pub(crate) netdev: &'a str,
    pub(crate) ifindex: u32,
    /// Its number in the mark in front of packets: another one each time.
    pub(crate) mark: u16,
    pub(crate) device: NetdevId,
    pub(crate) queues: u32,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) surroundings: &'a Surroundings,
    /// Those that serve queues.
    pub(crate) workers: &'a [Handle],
}

impl Device {
    /// Takes a netdev over.
    ///
    /// # Errors
    /// [`DeviceError`]; the netdev is then as it was found.
    pub(crate) async fn take(taking: Taking<'_>) -> Result<Device, DeviceError> {
        let Taking { netdev, ifindex, mark, device, queues, .. } = taking;
        if queues > MAX_QUEUES {
            return Err(DeviceError::TooManyQueues { netdev: netdev.into(), queues });
        }
        let claim = Claim::make(netdev, ifindex)?;
        let mut steering = Steering::load(mark, INCARNATIONS.fetch_add(1, Ordering::Relaxed))
            .map_err(|error| DeviceError::Bpf { netdev: netdev.into(), error })?;
        let attached = match serve(&mut steering, &taking).await {
            Ok(attached) => attached,
            Err(error) => {
                release(taking.workers, device).await?;
                return Err(error);
            }
        };
        let netdev = netdev.to_owned();
        Ok(Device { netdev, ifindex, queues, attached, claim, steering })
    }

    /// Lets the workers close the netdev's sockets. Its program stays and drops.
    pub(crate) async fn release(
        self,
        workers: &[Handle],
        device: NetdevId,
    ) -> Result<(), WorkerGone> {
        for queue in 0..self.queues {
            // First here, so that nothing is redirected into a socket that is being closed; that
            // would be dropped too, but by nobody who counts.
            let _ = self.steering.set_queue(queue, None);
        }
        release(workers, device).await
    }

    /// Tells the program what changed.
    pub(crate) fn update(
        &mut self,
        device: NetdevId,
        snapshot: &Snapshot,
        surroundings: &Surroundings,
    ) -> Result<(), DeviceError> {
        let netdev = &self.netdev;
        instruct(&mut self.steering, device, snapshot, surroundings)
            .map_err(|error| DeviceError::Bpf { netdev: netdev.clone(), error })
    }

    /// Has the program pass no more of `allow_host` than this leaves; everything else stays.
    pub(crate) fn reserve(
        &mut self,
        device: NetdevId,
        snapshot: &Snapshot,
        reserved: &Reserved,
    ) -> Result<(), DeviceError> {
        let netdev = &self.netdev;
        self.steering
            .set_ports(&rules(device, snapshot, reserved))
            .map_err(|error| DeviceError::Bpf { netdev: netdev.clone(), error })
    }

    /// Attaches the program again where something took it off.
    pub(crate) fn attach_again(&mut self) -> Result<(), DeviceError> {
        let netdev = &self.netdev;
        self.attached = self
            .steering
            .attach(self.ifindex)
            .map_err(|error| DeviceError::Bpf { netdev: netdev.clone(), error })?;
        Ok(())
    }

    /// Whether a program of ours is on the netdev.
    pub(crate) fn is_attached(&self) -> bool {
        // What cannot be asked is not taken for gone.
        bpf::attached(self.ifindex).map_or(true, |program| {
            program.is_some_and(|program| program.owner == bpf::Owner::Lockgate)
        })
    }

    /// What the kernel side counted.
    pub(crate) fn counters(&self) -> Option<bpf::KernelCounters> {
        self.steering.counters().ok()
    }
}

async fn serve(steering: &mut Steering, taking: &Taking<'_>) -> Result<Attached, DeviceError> {
    let Taking { netdev, ifindex, mark, device, queues, snapshot, surroundings, workers } = *taking;
    let refused = |error| DeviceError::Bpf { netdev: netdev.into(), error };
    instruct(steering, device, snapshot, surroundings).map_err(refused)?;
    for queue in 0..queues {
        let worker = &workers[assign::worker_of(queue, workers.len() as u32) as usize];
        let failed = |error| DeviceError::Socket { netdev: netdev.into(), queue, error };
        let area = worker.area.clone();
        let options = xsk::Options {
            receive_frames: QUOTA,
            transmit_ring: QUOTA,
            busy_retry: BUSY_RETRY,
            ..xsk::Options::default()
        };
        // It may have to wait for the kernel, and the control thread has other work.
        let opened =
            tokio::task::spawn_blocking(move || xsk::Socket::open(&area, ifindex, queue, &options));
        let socket = Box::new(opened.await.map_err(|_| WorkerGone)?.map_err(failed)?);
        steering.set_queue(queue, Some(socket.as_fd())).map_err(refused)?;
        worker.ask(|reply| Command::Attach { device, mark, socket, reply }).await?;
    }
    steering.attach(ifindex).map_err(refused)
}

async fn release(workers: &[Handle], device: NetdevId) -> Result<(), WorkerGone> {
    for worker in workers {
        worker.ask(|reply| Command::Detach { device, reply }).await?;
    }
    Ok(())
}

/// Gives the program the rules of the device's ports and our addresses.
fn instruct(
    steering: &mut Steering,
    device: NetdevId,
    snapshot: &Snapshot,
    surroundings: &Surroundings,
) -> Result<(), BpfError> {
    steering.set_own_addresses(&surroundings.own)?;
    if steering.set_inside(&surroundings.inside).is_err() {
        // More routes than it has room for: the workers, who know them all, are asked instead.
        steering.forget_inside()?;
    }
    steering.set_ports(&rules(device, snapshot, &surroundings.reserved))
}

/// The rules of a device's ports.
fn rules(device: NetdevId, snapshot: &Snapshot, reserved: &Reserved) -> Vec<PortRule> {
    let ports = snapshot.ports().iter().enumerate();
    let ports = ports.filter(|(_, port)| port.device == device);
    ports
        .map(|(place, port)| PortRule {
            vlan: port.vlan,
            side: side(port.side),
            mac: port.mac,
            services: reserved
                .open(PortId(place as u16), &port.allow_host)
                .iter()
                .map(|open| bpf::Service {
                    protocol: open.service.protocol,
                    ports: open.service.ports.map(|range| (range.lo, range.hi)),
                    scope: scope(open.packets),
                })
                .collect(),
        })
        .collect()
}

/// Packets of a service in the program's words.
fn scope(packets: Packets) -> Scope {
    let all = [
        (Packets::TO_US, Scope::TO_US),
        (Packets::TO_GROUPS, Scope::TO_GROUPS),
        (Packets::FRAGMENTS, Scope::FRAGMENTS),
    ];
    let among = all.into_iter().filter(|(packets_of, _)| packets.has(*packets_of));
    among.fold(Scope::NONE, |scope, (_, one)| scope.and(one))
}

/// A port's side in the program's words.
pub(crate) fn side(side: Side) -> bpf::Side {
    match side {
        Side::Protected => bpf::Side::Protected,
        Side::Unprotected => bpf::Side::Unprotected,
    }
}
