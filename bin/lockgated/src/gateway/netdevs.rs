//! The gateway's netdevs: attaches those that appear, releases those that disappear, and passes
//! changes to their programs.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use bpf::{LinkForm, Mode, ModeChoice, PortRule, Scope};
use config::validated::{Validated, XdpUse};
use config::{CardKind, HOST_NETDEV};
use control::LiveParts;
use dataplane::PortId;
use dataplane::carve_out::{Packets, Reserved};
use dataplane::{NetdevId, NextHop, Prefix, RouteTarget, Side, Snapshot};
use linux::{ChangedLinks, Offload};

use super::Gateway;
use super::machine::Program;
use crate::assign;
use crate::events::Kind;
use crate::netdev::{Instruction, NetdevError, Taking};
use crate::worker::WorkerGone;

/// The netdevs of a configuration, each once, in the order of the file, the host port's last.
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

/// State in which a netdev is left that is no port any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReleaseMode {
    /// The operator took it out of the configuration: without a program.
    Open,
    /// The configuration that named it was refused: what an earlier daemon had closed stays so.
    AsFound,
}

/// Time at which netdevs are tried that could not be taken over before: a try can take seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Retry {
    /// At once, with the others.
    Now,
    /// Later, when [`Gateway::inspect`] runs.
    ByTheClock,
}

/// Sign of a removed program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemovalSign {
    /// The kernel reported the netdev as changed.
    Notification,
    /// The daemon looked, once a second.
    Inspection,
}

impl RemovalSign {
    fn name(self) -> &'static str {
        match self {
            RemovalSign::Notification => "notification",
            RemovalSign::Inspection => "inspection",
        }
    }
}

impl Gateway {
    /// Attaches every netdev that has appeared, and releases those that are gone.
    ///
    /// # Errors
    /// [`WorkerGone`]. A netdev that cannot be had is an event and a trouble.
    pub(super) async fn tend(&mut self, retry: Retry) -> Result<(), WorkerGone> {
        for (name, ifindex) in self.gone() {
            self.release(&name).await?;
            let message = format!("netdev {name} (index {ifindex}) is gone");
            self.events.record(Kind::PortLost, &name, message, &[]);
        }
        let queues = self.queue_counts();
        let usable = assign::usable(self.workers as u32, queues.values().copied()) as usize;
        let changed: Vec<String> = self
            .netdevs
            .iter()
            .filter(|(name, netdev)| queues.get(*name) != Some(&netdev.queues))
            .map(|(name, _)| name.clone())
            .collect();
        if usable != self.active {
            // Every queue may get another worker.
            let all = self.netdevs.keys().cloned().collect();
            self.let_go(all).await?;
            self.active = usable;
            self.attach_host().await?;
        } else {
            self.let_go(changed).await?;
        }
        for (name, ifindex) in self.to_take() {
            // Another netdev under the name is another matter.
            if retry == Retry::ByTheClock && self.refused.get(&name) == Some(&ifindex) {
                continue;
            }
            match self.take(&name, ifindex).await {
                Ok(()) => {}
                Err(NetdevError::Worker(gone)) => return Err(gone),
                Err(error) => {
                    let message = error.to_string();
                    self.events.record(Kind::PortRefused, &name, message.as_str(), &[]);
                    self.refused.insert(name.clone(), ifindex);
                    Arc::make_mut(&mut self.troubles).insert(name, message);
                }
            }
        }
        self.machine.release_frames().await;
        Ok(())
    }

    /// Takes one netdev over, if the configuration names it.
    ///
    /// # Errors
    /// [`NetdevError`]; the netdev is then as it was found.
    pub(crate) async fn take(&mut self, netdev: &str, ifindex: u32) -> Result<(), NetdevError> {
        self.leave_frames_alone(netdev, ifindex)?;
        let queues = self.queues_of(netdev, ifindex);
        let mark = self.next_mark;
        self.next_mark = self.next_mark.wrapping_add(1).max(1);
        let Some(id) = self.netdev_id(netdev) else { return Ok(()) };
        let instruction = self.instruction(netdev, &self.surroundings());
        let name = netdev.to_owned();
        let active = self.active;
        let taking = Taking { netdev: name, ifindex, id, mark, queues, active, instruction };
        let taken = self.machine.take(taking).await?;
        let mode = taken.attached.mode.name();
        let message = match &taken.attached.native_refused {
            None => format!("{mode} XDP, queues: {queues}"),
            Some(reason) => format!("{mode} XDP, queues: {queues} (native refused: {reason})"),
        };
        self.events.record(Kind::PortAttached, netdev, message, &[("mark", &mark)]);
        if taken.is_squatted {
            let message = format!(
                "a user who runs no daemon listens on @lockgate/port/{ifindex} (`ss -xlp`): \
                 {netdev} is taken over all the same"
            );
            self.events.record(Kind::Misfit, netdev, message, &[]);
        }
        self.refused.remove(netdev);
        Arc::make_mut(&mut self.troubles).remove(netdev);
        Arc::make_mut(&mut self.netdevs).insert(netdev.to_owned(), taken);
        Ok(())
    }

    /// Switches off offloads that change received frames: a VLAN tag that the driver strips would
    /// move a frame to another port.
    fn leave_frames_alone(&mut self, netdev: &str, ifindex: u32) -> Result<(), NetdevError> {
        let Some(link) = self.view.links.get(&ifindex) else { return Ok(()) };
        let stays = self.machine.leave_frames_alone(link);
        let is_strip = |offload: &&Offload| {
            matches!(offload, Offload::VlanStripping | Offload::ServiceVlanStripping)
        };
        let tagged = self.config().ports.iter().any(|p| p.netdev == netdev && p.vlan.is_some());
        match stays.iter().find(is_strip).filter(|_| tagged) {
            Some(offload) => {
                Err(NetdevError::Offload { netdev: netdev.into(), offload: offload.name() })
            }
            None => Ok(()),
        }
    }

    /// Gives every worker that serves queues its queue of the host port.
    ///
    /// # Errors
    /// [`WorkerGone`]. A queue that cannot be had is an event.
    pub(crate) async fn attach_host(&mut self) -> Result<(), WorkerGone> {
        let host = self.compiled.slots().host_netdev();
        for error in self.machine.attach_host(host, self.active).await? {
            self.events.record(Kind::HostRefused, HOST_NETDEV, error.to_string(), &[]);
        }
        Ok(())
    }

    /// Checks for changes that cause no notification: removed programs, changed queue counts,
    /// netdevs that could not be attached.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn inspect(&mut self) -> Result<(), WorkerGone> {
        let names = self.netdevs.keys().cloned().collect();
        self.restore_programs(names, RemovalSign::Inspection);
        // Refused before: the kernel may tell of nothing for hours.
        match self.reservation_due || self.instruction_due {
            true => self.follow(self.view.clone()).await?,
            false => self.renew_guard().await,
        }
        self.tend(Retry::Now).await
    }

    /// Restores removed programs of netdevs that the kernel reported as changed. Returns whether a
    /// program was removed.
    pub(crate) fn restore_changed_programs(&mut self, changed: &ChangedLinks) -> bool {
        let changed = self.netdevs.iter().filter(|(_, netdev)| changed.may_hold(netdev.ifindex));
        let names = changed.map(|(name, _)| name.clone()).collect();
        self.restore_programs(names, RemovalSign::Notification)
    }

    /// Restores removed programs of these netdevs. Returns whether a program was removed.
    fn restore_programs(&mut self, names: Vec<String>, sign: RemovalSign) -> bool {
        let mut was_removed = false;
        for name in names {
            if self.machine.is_attached(&name) {
                continue;
            }
            was_removed = true;
            // Before anything is reported: the netdev is open.
            let attached = self.machine.attach_again(&name);
            let message = format!("the XDP program was taken off {name}");
            let details: crate::events::Details<'_> = &[("sign", &sign.name())];
            self.events.record(Kind::ProgramRemoved, &name, message, details);
            match attached {
                Ok(attached) => {
                    if let Some(netdev) = Arc::make_mut(&mut self.netdevs).get_mut(&name) {
                        netdev.attached = attached.into();
                    }
                    let message = format!("the XDP program is on {name} again");
                    self.events.record(Kind::ProgramRestored, &name, message, details);
                }
                Err(error) => {
                    self.events.record(Kind::PortRefused, &name, error.to_string(), &[]);
                }
            }
        }
        was_removed
    }

    /// The slot of a netdev, if the running configuration names it.
    fn netdev_id(&self, netdev: &str) -> Option<NetdevId> {
        self.compiled.slots().netdev_named(netdev)
    }

    /// Gives the programs the current ports and addresses. A refused update is tried again with the
    /// next change of the view.
    ///
    /// # Errors
    /// The first refusal.
    pub(super) fn instruct(&mut self) -> Result<(), NetdevError> {
        let surroundings = self.surroundings();
        self.instruction_due = false;
        let names: Vec<String> = self.netdevs.keys().cloned().collect();
        let mut refused = Ok(());
        for name in names {
            let instruction = self.instruction(&name, &surroundings);
            if let Err(error) = self.machine.instruct(&name, &instruction) {
                self.instruction_due = true;
                refused = refused.and(Err(error));
            }
        }
        refused
    }

    /// Calls [`Gateway::instruct`] and records a refusal as an event.
    pub(super) fn instruct_and_tell(&mut self) {
        if let Err(error) = self.instruct() {
            let netdev = error.netdev().to_owned();
            self.events.record(Kind::PortRefused, &netdev, error.to_string(), &[]);
        }
    }

    /// Makes the programs pass no more of `allow_host` than this leaves; everything else stays.
    pub(super) fn narrow_programs(&mut self, reserved: &Reserved) -> Result<(), NetdevError> {
        let names: Vec<String> = self.netdevs.keys().cloned().collect();
        for name in names {
            let rules = rules(self.netdev_id(&name), &self.snapshot, reserved);
            self.machine.set_ports(&name, &rules)?;
        }
        Ok(())
    }

    /// Makes the programs pass no more of `allow_host` than the reservation leaves. A program that
    /// refuses passes nothing to Linux until its ports are set again.
    pub(super) fn narrow_or_close(&mut self) {
        let names: Vec<String> = self.netdevs.keys().cloned().collect();
        for name in names {
            let rules = rules(self.netdev_id(&name), &self.snapshot, &self.reserved);
            let Err(refused) = self.machine.set_ports(&name, &rules) else { continue };
            self.instruction_due = true;
            let message = match self.machine.close(&name) {
                Ok(()) => format!("{refused}: until it can be told, {name} passes Linux nothing"),
                Err(error) => format!("{refused}, nor can {name} be closed: {error}"),
            };
            self.events.record(Kind::PortRefused, &name, message, &[]);
        }
    }

    /// Attaches the netdevs that the configuration names and that are not attached yet.
    ///
    /// # Errors
    /// [`NetdevError`]: the first that cannot be had.
    pub(super) async fn take_new(&mut self) -> Result<(), NetdevError> {
        for (name, ifindex) in self.to_take() {
            self.take(&name, ifindex).await?;
        }
        Ok(())
    }

    /// Releases netdevs that are no longer ports. Their sockets went with the snapshot that had
    /// them.
    pub(super) fn drop_beyond(&mut self, leaving: ReleaseMode) {
        let names = netdevs(self.config());
        let beyond: Vec<String> =
            self.netdevs.keys().filter(|name| !names.contains(name)).cloned().collect();
        for name in beyond {
            let Some(netdev) = Arc::make_mut(&mut self.netdevs).remove(&name) else { continue };
            let program = match leaving == ReleaseMode::AsFound && netdev.attached.replaced {
                true => Program::Stays,
                false => Program::Goes,
            };
            if let Err(error) = self.machine.forget(&name, program) {
                self.events.record(Kind::PortRefused, &name, error.to_string(), &[]);
            }
        }
    }

    /// Takes over again the netdevs that a refused configuration did not name: the workers closed
    /// their sockets when they went over to it. Their programs stayed, and dropped.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(super) async fn serve_again(&mut self, refused: &[String]) -> Result<(), WorkerGone> {
        let unserved: Vec<String> =
            self.netdevs.keys().filter(|name| !refused.contains(name)).cloned().collect();
        for name in unserved {
            self.release(&name).await?;
        }
        self.tend(Retry::ByTheClock).await
    }

    /// Releases netdevs whose sockets must be bound anew; their programs stay and drop.
    async fn let_go(&mut self, names: Vec<String>) -> Result<(), WorkerGone> {
        for name in names {
            self.release(&name).await?;
            let message = format!("the queues of {name} changed");
            self.events.record(Kind::QueuesChanged, &name, message, &[]);
        }
        Ok(())
    }

    async fn release(&mut self, name: &str) -> Result<(), WorkerGone> {
        let Some(id) = self.netdev_id(name) else { return Ok(()) };
        if Arc::make_mut(&mut self.netdevs).remove(name).is_none() {
            return Ok(());
        }
        self.tier.narrow(&self.snapshot, &self.tier_places(&self.snapshot));
        self.machine.release(name, id).await
    }

    /// Returns the attached netdevs that disappeared from the kernel or were created again.
    fn gone(&self) -> Vec<(String, u32)> {
        let gone = self.netdevs.iter().filter(|(name, of)| self.index_of(name) != Some(of.ifindex));
        gone.map(|(name, netdev)| (name.clone(), netdev.ifindex)).collect()
    }

    /// Returns the configured netdevs that exist and are not attached.
    fn to_take(&self) -> Vec<(String, u32)> {
        let there = self.there().into_iter();
        there.filter(|(name, _)| !self.netdevs.contains_key(name)).collect()
    }

    /// Interface index of a netdev that the configuration names, if it is there.
    fn index_of(&self, netdev: &str) -> Option<u32> {
        let NetdevId(slot) = self.netdev_id(netdev)?;
        self.live.netdevs.get(usize::from(slot)).copied().flatten()
    }

    /// Returns the existing netdevs of the configuration, without the host port's.
    pub(crate) fn there(&self) -> Vec<(String, u32)> {
        let named = netdevs(self.config()).into_iter().filter(|name| name != HOST_NETDEV);
        named.filter_map(|name| self.index_of(&name).map(|ifindex| (name, ifindex))).collect()
    }

    /// Receive queues of the netdevs that are there.
    fn queue_counts(&mut self) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        for (name, ifindex) in self.there() {
            let count = self.queues_of(&name, ifindex);
            counts.insert(name, count);
        }
        counts
    }

    /// Receive queues of a netdev; as it was, or 1, where the kernel does not say.
    fn queues_of(&mut self, name: &str, ifindex: u32) -> u32 {
        let link = self.view.links.get(&ifindex);
        link.and_then(|link| self.machine.queues_of(link))
            .or_else(|| self.netdevs.get(name).map(|netdev| netdev.queues))
            .unwrap_or(1)
    }

    /// Returns the instruction for the program of a netdev.
    fn instruction(&self, netdev: &str, surroundings: &Surroundings) -> Instruction {
        let Surroundings { own, inside } = surroundings.clone();
        let rules = rules(self.netdev_id(netdev), &self.snapshot, &self.reserved);
        let (mode, link) = (mode_choice(self.config(), netdev), link_form(self.config(), netdev));
        let passed = self.passed_by(netdev);
        Instruction { rules, own, inside, passed, mode, link }
    }

    /// The first port of the configuration `next` whose netdev has a program now that runs in a
    /// mode which `xdp` of that port does not allow. The kernel cannot change it in one step.
    pub(crate) fn port_in_another_mode(&self, next: &Validated) -> Option<OtherMode> {
        next.ports.iter().find_map(|port| {
            let mode = self.netdevs.get(&port.netdev)?.attached.mode;
            let (name, netdev) = (port.name.clone(), port.netdev.clone());
            let other = OtherMode { port: name, netdev, mode };
            (!mode_choice(next, &port.netdev).allows(mode)).then_some(other)
        })
    }

    /// Returns the part of an instruction that is the same for every program: the gateway's
    /// addresses and routes.
    fn surroundings(&self) -> Surroundings {
        // Addresses of netdevs that are no ports are reached from inside only.
        let mut own: BTreeMap<IpAddr, bpf::Side> = BTreeMap::new();
        for (link, address, _) in &self.view.addresses {
            let port = self.live.port_of_link(*link);
            let port = port.map(|port| self.live.ports.at(usize::from(port.0)));
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
        Surroundings { own: own.into_iter().collect(), inside }
    }
}

/// A port whose netdev's program runs in a mode that was not chosen.
pub(crate) struct OtherMode {
    pub(crate) port: String,
    pub(crate) netdev: String,
    /// The mode in which it runs.
    pub(crate) mode: Mode,
}

/// The gateway's addresses and routes, as every program knows them: see [`Instruction`].
#[derive(Clone)]
struct Surroundings {
    own: Arc<[(IpAddr, bpf::Side)]>,
    inside: Arc<[(bpf::Prefix, bpf::Inside)]>,
}

/// Returns whether a route leads to us or behind a protected port.
pub(super) fn inside(live: &LiveParts, target: &RouteTarget<NextHop>) -> bpf::Inside {
    match target {
        RouteTarget::Local | RouteTarget::Broadcast => bpf::Inside::Yes,
        RouteTarget::Blackhole | RouteTarget::Elsewhere => bpf::Inside::No,
        RouteTarget::Via(hop) => match live.ports.at(usize::from(hop.port.0)).side {
            Side::Protected => bpf::Inside::Yes,
            Side::Unprotected => bpf::Inside::No,
        },
    }
}

/// The UDP ports of the overlays whose packets come by a port, ascending.
fn overlay_ports(snapshot: &Snapshot, port: PortId) -> Vec<u16> {
    let overlays = snapshot.overlays().into_iter().flat_map(|overlays| overlays.overlays());
    let mut ports: Vec<u16> =
        overlays.filter(|overlay| overlay.port == port).map(|overlay| overlay.udp_port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The modes in which a netdev's program may run; of a netdev that is no port, any.
fn mode_choice(config: &Validated, netdev: &str) -> ModeChoice {
    let port = config.ports.iter().find(|port| port.netdev == netdev);
    match port.map_or(XdpUse::Auto, |port| port.xdp) {
        XdpUse::Auto => ModeChoice::Auto,
        XdpUse::Native => ModeChoice::Native,
        XdpUse::Generic => ModeChoice::Generic,
    }
}

/// The form in which frames come by a netdev: that of an emulated card writes a header before each.
fn link_form(config: &Validated, netdev: &str) -> LinkForm {
    let is_on_it = |port: &PortId| config.ports[usize::from(port.0)].netdev == netdev;
    let mut cards = config.cards.iter().filter(|card| card.kind == CardKind::Emulated);
    match cards.any(|card| card.ports.iter().any(is_on_it)) {
        true => LinkForm::Carded,
        false => LinkForm::Plain,
    }
}

/// The rules of a netdev's ports; of a netdev that the configuration does not name, none.
pub(super) fn rules(
    id: Option<NetdevId>,
    snapshot: &Snapshot,
    reserved: &Reserved,
) -> Vec<PortRule> {
    snapshot
        .ports()
        .filter(|(_, port)| Some(port.netdev) == id)
        .map(|(port_id, port)| PortRule {
            vlan: port.vlan,
            side: side(port.side),
            mac: port.mac,
            services: reserved
                .open(&port.name, &port.allow_host)
                .iter()
                .map(|open| bpf::Service {
                    protocol: open.service.protocol,
                    ports: open.service.ports.map(|range| (range.lo, range.hi)),
                    scope: scope(open.packets),
                })
                .collect(),
            overlays: overlay_ports(snapshot, port_id),
        })
        .collect()
}

/// Packets of a service in the program's words.
pub(super) fn scope(packets: Packets) -> Scope {
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
