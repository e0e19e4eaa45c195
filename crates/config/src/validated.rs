//! A configuration that makes sense: typed, complete, every reference resolved, every default
//! filled in. Holds no keys, only where they are.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use dataplane::{HostService, L4Checksum, Neighbour, PortId, Prefix, Side};
use ipsec::{DontFragment, Dscp, Encapsulation, Lifetime, Mode, SequenceNumbers, Suite, Tunnel};
use policy::{AddressRange, Direction, GroupSide, PolicyId, PolicyShape, SaSetId, Selector};
use wire::Address;

use crate::cards::{AuditSettings, CardSettings, GroupOffload, SaOffload};
use crate::connections::ConnectionSettings;
use crate::groups::{Group, GroupId, Rule, RuleAction, Set};
use crate::host_port::HOST_PORT;
use crate::ike::IkeBounds;
use crate::interface_address::InterfaceAddress;
use crate::lifetime;
use crate::overlays::{KernelSettings, NetworkSettings, OverlaySettings, StoreSettings};
use crate::peer_moves::PeerMoves;
use crate::written::{count_text, list, mac_text, quoted, service_text, write_selector};

pub use crate::written::addresses;

/// A peer: place in [`Validated::peers`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

/// A complete configuration, typed and resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validated {
    /// `[node]`.
    pub node: Node,
    /// `[cache]`.
    pub cache: Cache,
    /// `[connections]`.
    pub connections: ConnectionSettings,
    /// `[metrics]`.
    pub metrics: Metrics,
    /// `[port.NAME]`, in the order of the file; [`PortId`] counts into it. Without the host port.
    pub ports: Vec<Port>,
    /// `[peer.NAME]`, in the order of the file; [`PeerId`] counts into it.
    pub peers: Vec<Peer>,
    /// `[set.NAME]`, in the order of the file; [`SetId`](crate::groups::SetId) counts into it.
    pub sets: Vec<Set>,
    /// `[group.NAME]`, in the order of the file; [`GroupId`] counts into it.
    pub groups: Vec<Group>,
    /// `[[policy]]`, in the order of the file: the later is the newer.
    pub policies: Vec<Policy>,
    /// `[[rule]]`, in the order of the file: of a group the first that matches decides.
    pub rules: Vec<Rule>,
    /// `[[route]]`, in the order of the file, one per prefix.
    pub routes: Vec<Route>,
    /// `[[neighbour]]`, in the order of the file.
    pub neighbours: Vec<Neighbour>,
    /// `[overlay.NAME]`, in the order of the file; [`OverlayId`](dataplane::OverlayId) counts into
    /// it.
    pub overlays: Vec<OverlaySettings>,
    /// `[vni.NUMBER]`, ascending by their numbers.
    pub networks: Vec<NetworkSettings>,
    /// `[store]`.
    pub store: StoreSettings,
    /// `[kernel]`.
    pub kernel: KernelSettings,
    /// `[card.NAME]`, in the order of the file.
    pub cards: Vec<CardSettings>,
    /// `[audit]`.
    pub audit: AuditSettings,
    /// `[ike]`; `None`: charon installs nothing but SAs for policies of the file.
    pub ike: Option<IkeBounds>,
}

/// The machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Name of the gateway.
    pub name: String,
    /// Worker threads.
    pub workers: Workers,
    /// Cores that workers leave free when their number is automatic.
    pub reserve_cores: u32,
    /// The state of the ports after the daemon has ended.
    pub on_exit: OnExit,
    /// The directory of key files, relative to that of the configuration file.
    pub keys_dir: PathBuf,
    /// Directory of files that are gone after a reboot: the API's socket, SA counters. Absolute.
    pub run_dir: PathBuf,
    /// Directory of files that outlive a reboot: sequence number reservations, revisions. Absolute.
    pub state_dir: PathBuf,
    /// The way in which an idle worker waits.
    pub poll: Poll,
}

/// The number of worker threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workers {
    /// Cores − `reserve_cores`, at least 1.
    Auto,
    /// This number of workers.
    Exactly(u32),
}

/// The state of the ports after the daemon has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnExit {
    /// The ports stay closed: nothing passes (DESIGN I10).
    Closed,
    /// Linux forwards again, in clear.
    Open,
}

/// The way in which an idle worker waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// The worker sleeps until the kernel wakes it.
    Sleep,
    /// The worker polls continuously: it need not be woken, and its core is never idle.
    Busy,
}

/// The place where the kernel runs the program of a port's netdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpUse {
    /// In its driver if that can, else behind it.
    Auto,
    /// In its driver.
    Native,
    /// Behind its driver.
    Generic,
}

impl XdpUse {
    /// All of them.
    pub const ALL: [XdpUse; 3] = [XdpUse::Auto, XdpUse::Native, XdpUse::Generic];

    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            XdpUse::Auto => "auto",
            XdpUse::Native => "native",
            XdpUse::Generic => "generic",
        }
    }
}

/// The address where counters are read as Prometheus text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metrics {
    /// Nowhere.
    Off,
    /// The daemon serves metrics at `http://ADDRESS/metrics`.
    Listen(SocketAddr),
}

/// The flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// No cache is allocated.
    Off,
    /// Each worker has a cache.
    On {
        /// Flows that all of them together are sized for, as written.
        flows: u64,
        /// The lookups that ask it.
        usage: CacheUse,
    },
}

/// The lookups that ask the flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheUse {
    /// Domains for which the cache is cheaper than the search it saves.
    Auto,
    /// Everywhere: for tests.
    Always,
}

/// The size of one worker's flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSize {
    /// Entries of [`Cache::ENTRY_BYTES`], a power of two; an IPv6 flow takes two of them.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Cache {
    /// Bytes of an entry.
    pub const ENTRY_BYTES: u64 = 32;
    /// Entries for each flow: a table that is full to a quarter (FC-10).
    pub const ENTRIES_PER_FLOW: u64 = 4;
    /// Entries that a worker has at least: a bucket of two ways for IPv6.
    pub const LEAST_ENTRIES: u64 = 4;

    /// Flows that it is sized for, as written; 0: there is none.
    pub const fn flows(self) -> u64 {
        match self {
            Cache::Off => 0,
            Cache::On { flows, .. } => flows,
        }
    }

    /// Returns the largest number of flows whose tables fit into this many bytes.
    pub(crate) fn flows_within(bytes: u64) -> u64 {
        let entries = bytes / Cache::ENTRY_BYTES;
        let tables = entries.checked_ilog2().map_or(0, |bits| 1 << bits);
        tables / Cache::ENTRIES_PER_FLOW
    }

    /// Returns the size of the table of each of `workers` workers; `None`: there is no cache. The
    /// entries of all flows are rounded up to a power of two, and each worker's share of them again
    /// (FC-10, FC-11).
    pub fn size(self, workers: u32) -> Option<CacheSize> {
        let Cache::On { flows, .. } = self else { return None };
        let all = flows.saturating_mul(Cache::ENTRIES_PER_FLOW).checked_next_power_of_two();
        let share = all.unwrap_or(1 << 63).div_ceil(u64::from(workers.max(1)));
        let entries = share.max(Cache::LEAST_ENTRIES).next_power_of_two();
        Some(CacheSize { entries, bytes: entries.saturating_mul(Cache::ENTRY_BYTES) })
    }
}

/// A port: (netdev, VLAN id).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Name of the port.
    pub name: String,
    /// The netdev it is on.
    pub netdev: String,
    /// VLAN id of the port; `None`: untagged.
    pub vlan: Option<u16>,
    /// Clear or world.
    pub side: Side,
    /// The services that it lets through to Linux.
    pub allow_host: Vec<HostService>,
    /// Our MAC address. The daemon reads the live one instead.
    pub mac: [u8; 6],
    /// Largest IP packet that leaves by it, bytes. The daemon reads the live one instead.
    pub mtu: u32,
    /// Our addresses. The daemon reads the live ones instead.
    pub addresses: Vec<InterfaceAddress>,
    /// Treatment of unfinished TCP and UDP checksums. On a netdev whose senders leave none the
    /// daemon passes packets as they are.
    pub l4_checksum: L4Checksum,
    /// The place where the kernel runs the program of its netdev; all ports on a netdev have the
    /// same.
    pub xdp: XdpUse,
    /// The use of its card for rules of the groups below.
    pub offload_groups: GroupOffload,
    /// The groups that judge what comes by it, in their order, each once; none: all may come.
    pub groups_in: Vec<GroupId>,
    /// The groups that judge what leaves by it, likewise.
    pub groups_out: Vec<GroupId>,
}

/// A peer gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Name of the peer.
    pub name: String,
    /// Mode, the two ends, and how packets to it look outside.
    pub encapsulation: Encapsulation,
    /// The source of its keys.
    pub keys: KeySource,
    /// Algorithms of its SAs. One that is put over the API may have others.
    pub suite: Suite,
    /// Width of the sequence numbers of its SAs. One that is put over the API may have the other.
    pub numbers: SequenceNumbers,
    /// Packets that its replay windows remember. That of an SA that is put over the API may
    /// remember more or fewer.
    pub replay_window: u32,
    /// True if the MSS of TCP SYN segments is clamped to the tunnel's path MTU.
    pub mss_clamp: bool,
    /// The treatment of ICMP that tells the path MTU to the peer.
    pub pmtu: PathMtuUse,
    /// Fixed, or behind a NAT: then its address and UDP port may change.
    pub place: PeerPlace,
    /// Addresses that the ends may move to when IKE says so.
    pub moves: PeerMoves,
    /// Seconds without a packet to it after which a NAT keepalive is sent (RFC 3948 §4); `None`:
    /// none is.
    pub nat_keepalive_s: Option<u32>,
    /// Limits of each of its SAs.
    pub lifetime: Lifetime,
    /// The carrier of its SAs.
    pub offload: SaOffload,
    /// Name of the peer whose SA seals again what this one's has sealed; `None`: none does. That
    /// peer has none itself.
    pub outer: Option<String>,
}

impl Peer {
    /// The two ends, as configured.
    pub const fn tunnel(&self) -> Tunnel {
        self.encapsulation.tunnel
    }

    /// Returns whether the peer's SAs may be between these ends when IKE says so: the configured
    /// ones, or such as `moves_to` and `local_moves_to` have. A peer behind a NAT may be anywhere.
    pub fn may_be_between(&self, ends: Tunnel) -> bool {
        let Tunnel { local, remote } = self.tunnel();
        let has = |ranges: &[AddressRange], end: IpAddr| {
            ranges.iter().any(|range| range.contains(end.into()))
        };
        let is_tunnel = self.encapsulation.mode == Mode::Tunnel;
        let is_roaming = is_tunnel && self.place == PeerPlace::BehindNat;
        ends.local.is_ipv4() == ends.remote.is_ipv4()
            && (ends.local == local || has(&self.moves.local, ends.local))
            && (ends.remote == remote || is_roaming || has(&self.moves.remote, ends.remote))
    }
}

/// The source of a peer's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// A key file in [`Node::keys_dir`], by its name: manual keys, for laboratories.
    File(String),
    /// The API: SAs are put, replaced and deleted while the daemon runs, and end with it.
    Api,
    /// An IKE daemon, strongSwan's charon, which installs its SAs while the daemon runs.
    Ike,
}

/// The value of `keys`.
impl std::fmt::Display for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeySource::File(name) => write!(f, "file:{name}"),
            KeySource::Api => f.write_str("api"),
            KeySource::Ike => f.write_str("ike"),
        }
    }
}

/// The treatment of ICMP from outside that tells the path MTU to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathMtuUse {
    /// The path MTU falls where it is credible (RFC 4301 §8.2).
    Learn,
    /// It changes nothing.
    Ignore,
}

impl PathMtuUse {
    /// Returns the word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            PathMtuUse::Learn => "learn",
            PathMtuUse::Ignore => "ignore",
        }
    }
}

/// Location of a peer: its address and UDP port stay, or may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerPlace {
    /// The peer's address and port stay as configured.
    Fixed,
    /// The peer is behind a NAT: its address and UDP port may change.
    BehindNat,
}

/// The action of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// PROTECT with this peer.
    Protect(PeerId),
    /// BYPASS.
    Bypass,
    /// DISCARD.
    Discard,
}

impl Action {
    /// The action as the SPD holds it, with the SA set of the peer.
    pub(crate) fn for_spd(self, set_of: impl FnOnce(PeerId) -> SaSetId) -> policy::Action {
        match self {
            Action::Protect(peer) => policy::Action::Protect(set_of(peer)),
            Action::Bypass => policy::Action::Bypass,
            Action::Discard => policy::Action::Discard,
        }
    }
}

/// A policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Name of the policy.
    pub name: String,
    /// Action of the policy.
    pub action: Action,
    /// Precedence: the higher wins; among equals, the policy later in the file.
    pub priority: u32,
    /// The only direction it holds in; `None`: both.
    pub only: Option<Direction>,
    /// The ports by which a packet must come for the policy to speak of it; `None`: any.
    pub ingress: Option<IngressPorts>,
    /// Whom it matches.
    pub selector: Selector,
}

impl Policy {
    /// The policy as the SPD holds it: under an id, with the SA sets that its peers have and the
    /// slots of the ports that it names.
    pub fn for_spd(
        &self,
        id: PolicyId,
        set_of: impl FnOnce(PeerId) -> SaSetId,
        slots_of: impl FnOnce(&IngressPorts) -> Arc<[u16]>,
    ) -> policy::Policy {
        policy::Policy {
            id,
            name: self.name.clone(),
            action: self.action.for_spd(set_of),
            priority: self.priority,
            only: self.only,
            group: None,
            ingress: self.ingress.as_ref().map(slots_of),
            selector: self.selector.clone(),
        }
    }

    /// The policy as the SPD of its configuration alone holds it: SA sets and ports have the
    /// numbers of their places in the file.
    pub fn by_itself(&self, id: PolicyId) -> policy::Policy {
        self.for_spd(id, |peer| SaSetId(peer.0), |ports| ports.numbers().clone())
    }

    /// Returns the packets of the policy. Ports have the numbers of their places in the file.
    pub(crate) fn shape(&self) -> PolicyShape<'_> {
        let ingress = self.ingress.as_ref().map(|ports| &**ports.numbers());
        PolicyShape { only: self.only, ingress, selector: &self.selector }
    }

    /// A policy of the SPD as it is configured, with the peers of SA sets and the places of ports.
    pub fn from_spd(
        policy: &policy::Policy,
        peer_of: impl FnOnce(SaSetId) -> PeerId,
        places_of: impl FnOnce(&Arc<[u16]>) -> Arc<[u16]>,
    ) -> Policy {
        Policy {
            name: policy.name.clone(),
            action: match policy.action {
                policy::Action::Protect(set) => Action::Protect(peer_of(set)),
                policy::Action::Bypass => Action::Bypass,
                policy::Action::Discard => Action::Discard,
                policy::Action::Permit(_)
                | policy::Action::Reflect(_)
                | policy::Action::Deny(_)
                | policy::Action::NoRule(_) => {
                    unreachable!("a rule of a group is no policy of the SPD")
                }
            },
            priority: policy.priority,
            only: policy.only,
            ingress: policy.ingress.as_ref().map(|ports| IngressPorts::new(places_of(ports))),
            selector: policy.selector.clone(),
        }
    }
}

/// The ports by which packets come that a policy speaks of: of both sides, sorted, each once, not
/// all there are. Shared by the policies that name the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IngressPorts(Arc<[u16]>);

impl IngressPorts {
    /// Makes a set of sorted places in the list of ports, the host port's last.
    pub(crate) fn new(places: impl Into<Arc<[u16]>>) -> IngressPorts {
        IngressPorts(places.into())
    }

    /// The ports, ascending. The host port's number is that of [`Validated::ports`]' end.
    pub fn ports(&self) -> impl Iterator<Item = PortId> {
        self.0.iter().copied().map(PortId)
    }

    /// Returns the ports' places in the list of ports, ascending.
    pub fn numbers(&self) -> &Arc<[u16]> {
        &self.0
    }
}

/// A route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destinations.
    pub to: Prefix,
    /// The port and router, or the drop, that it leads to.
    pub target: Target,
}

/// The end of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Drop.
    Blackhole,
    /// Forward by this port, to this router or (`None`) to the destination itself.
    Via(PortId, Option<Address>),
}

/// The word that a peer without integrity must hold: `benchmark = "no-integrity"`.
pub(crate) const NO_INTEGRITY: &str = "no-integrity";

/// A section of a configuration, as [`Validated::effective`] writes it.
pub(crate) struct Section {
    /// Kind of the section: node, port, cache, connections, metrics, peer, set, group, policy,
    /// rule, overlay, vni, store, kernel, card, audit, ike, route, neighbour.
    pub(crate) what: &'static str,
    /// Name of the section; empty for a kind with a single section.
    pub(crate) name: String,
    /// Lines of the section.
    pub(crate) text: String,
}

impl Validated {
    /// Returns the configuration with every default, as TOML that parses back to the same
    /// [`Validated`]. Names key files only.
    pub fn effective(&self) -> String {
        let texts: Vec<String> = self.sections().into_iter().map(|section| section.text).collect();
        texts.join("\n")
    }

    /// Returns whether a rule makes connections. A group that no port lists counts too.
    pub fn tracks_connections(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == RuleAction::Reflect)
    }

    /// [`Self::effective`], section by section.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        let mut add = |what, name: &str, write: &dyn Fn(&mut String) -> std::fmt::Result| {
            let mut text = String::new();
            write(&mut text).expect("writing to a string");
            sections.push(Section { what, name: name.to_owned(), text });
        };
        add("node", "", &|out| write_node(out, &self.node));
        for port in &self.ports {
            add("port", &port.name, &|out| self.write_port(out, port));
        }
        add("cache", "", &|out| match self.cache {
            Cache::Off => writeln!(out, "[cache]\nflows = \"off\""),
            Cache::On { flows, usage } => {
                let usage = if usage == CacheUse::Always { "always" } else { "auto" };
                let flows = count_text(flows);
                writeln!(out, "[cache]\nflows = \"{flows}\"\nuse = \"{usage}\"")
            }
        });
        add("connections", "", &|out| self.connections.write(out));
        add("metrics", "", &|out| match self.metrics {
            Metrics::Off => writeln!(out, "[metrics]\nlisten = \"off\""),
            Metrics::Listen(address) => writeln!(out, "[metrics]\nlisten = \"{address}\""),
        });
        for peer in &self.peers {
            add("peer", &peer.name, &|out| {
                write_peer(out, peer)?;
                let header = format!("[peer.{}.lifetime]", quoted(&peer.name));
                lifetime::write(out, &header, &peer.lifetime)
            });
        }
        for set in &self.sets {
            add("set", &set.name, &|out| set.write(out));
        }
        for group in &self.groups {
            add("group", &group.name, &|out| group.write(out));
        }
        for policy in &self.policies {
            add("policy", &policy.name, &|out| self.write_policy(out, policy));
        }
        for rule in &self.rules {
            add("rule", &self.rule_name(rule), &|out| rule.write(out, &self.groups, &self.sets));
        }
        for overlay in &self.overlays {
            add("overlay", &overlay.name, &|out| overlay.write(out, self.port_name(overlay.port)));
        }
        for network in &self.networks {
            let overlay = &self.overlays[usize::from(network.overlay.0)].name;
            add("vni", &network.vni.to_string(), &|out| network.write(out, overlay, &self.groups));
        }
        add("store", "", &|out| self.store.write(out));
        add("kernel", "", &|out| self.kernel.write(out));
        for card in &self.cards {
            let ports: Vec<&str> = card.ports.iter().map(|port| self.port_name(*port)).collect();
            add("card", &card.name, &|out| card.write(out, &ports));
        }
        add("audit", "", &|out| self.audit.write(out));
        if let Some(ike) = &self.ike {
            add("ike", "", &|out| ike.write(out));
        }
        for route in &self.routes {
            let Prefix { address, length } = route.to;
            add("route", &format!("{address}/{length}"), &|out| self.write_route(out, route));
        }
        for neighbour in &self.neighbours {
            let name = format!("{} on {}", neighbour.address, self.port_name(neighbour.port));
            add("neighbour", &name, &|out| self.write_neighbour(out, neighbour));
        }
        sections
    }

    /// `GROUP/RULE`.
    pub(crate) fn rule_name(&self, rule: &Rule) -> String {
        format!("{}/{}", self.groups[rule.group.0 as usize].name, rule.name)
    }

    /// Name of a port, the host port among them.
    fn port_name(&self, port: PortId) -> &str {
        self.ports.get(usize::from(port.0)).map_or(HOST_PORT, |port| &port.name)
    }

    /// Writes a policy's section.
    pub(crate) fn write_policy(&self, out: &mut String, policy: &Policy) -> std::fmt::Result {
        let Policy { name, action, priority, only, ingress, selector } = policy;
        writeln!(out, "[[policy]]\nname = {}", quoted(name))?;
        match action {
            Action::Protect(peer) => {
                let peer = &self.peers[peer.0 as usize].name;
                writeln!(out, "peer = {}\naction = \"protect\"", quoted(peer))?;
            }
            Action::Bypass => writeln!(out, "action = \"bypass\"")?,
            Action::Discard => writeln!(out, "action = \"discard\"")?,
        }
        match ingress {
            None => writeln!(out, "# ports: all")?,
            Some(ingress) => {
                let names = ingress.ports().map(|port| self.port_name(port).to_owned());
                writeln!(out, "ports = {}", list(names))?;
            }
        }
        write_selector(out, selector)?;
        let direction = match only {
            None => "both",
            Some(Direction::Inbound) => "inbound",
            Some(Direction::Outbound) => "outbound",
        };
        writeln!(out, "priority = {priority}\ndirection = \"{direction}\"")
    }

    fn write_port(&self, out: &mut String, port: &Port) -> std::fmt::Result {
        writeln!(out, "[port.{}]\nnetdev = {}", quoted(&port.name), quoted(&port.netdev))?;
        match port.vlan {
            Some(vlan) => writeln!(out, "vlan = {vlan}")?,
            None => writeln!(out, "# vlan: untagged")?,
        }
        let side = if port.side == Side::Protected { "protected" } else { "unprotected" };
        writeln!(out, "side = \"{side}\"")?;
        writeln!(out, "allow_host = {}", list(port.allow_host.iter().map(service_text)))?;
        writeln!(out, "mac = \"{}\"\nmtu = {}", mac_text(port.mac), port.mtu)?;
        let addresses = port.addresses.iter().map(|a| format!("{}/{}", a.address, a.length));
        writeln!(out, "addresses = {}", list(addresses))?;
        let l4_checksum = match port.l4_checksum {
            L4Checksum::Complete => "complete",
            L4Checksum::Pass => "pass",
        };
        writeln!(out, "l4_checksum = \"{l4_checksum}\"\nxdp = \"{}\"", port.xdp.name())?;
        writeln!(out, "offload_groups = \"{}\"", port.offload_groups.name())?;
        for side in GroupSide::ALL {
            let groups = port.groups(side).iter();
            let names = groups.map(|group| self.groups[group.0 as usize].name.clone());
            writeln!(out, "groups_{} = {}", side.name(), list(names))?;
        }
        Ok(())
    }

    fn write_neighbour(&self, out: &mut String, neighbour: &Neighbour) -> std::fmt::Result {
        let Neighbour { port, address, mac } = neighbour;
        writeln!(out, "[[neighbour]]\nport = {}", quoted(self.port_name(*port)))?;
        writeln!(out, "address = \"{address}\"\nmac = \"{}\"", mac_text(*mac))
    }

    fn write_route(&self, out: &mut String, route: &Route) -> std::fmt::Result {
        let Prefix { address, length } = route.to;
        writeln!(out, "[[route]]\nto = \"{address}/{length}\"")?;
        match route.target {
            Target::Blackhole => writeln!(out, "type = \"blackhole\""),
            Target::Via(port, gateway) => {
                if let Some(gateway) = gateway {
                    writeln!(out, "via = \"{gateway}\"")?;
                }
                writeln!(out, "port = {}", quoted(self.port_name(port)))
            }
        }
    }
}

fn write_node(out: &mut String, node: &Node) -> std::fmt::Result {
    let Node { name, workers, reserve_cores, on_exit, keys_dir, run_dir, state_dir, poll } = node;
    writeln!(out, "[node]\nname = {}", quoted(name))?;
    match workers {
        Workers::Auto => writeln!(out, "workers = \"auto\" # cores - reserve_cores, at least 1")?,
        Workers::Exactly(count) => writeln!(out, "workers = {count}")?,
    }
    writeln!(out, "reserve_cores = {reserve_cores}")?;
    let on_exit = if *on_exit == OnExit::Open { "open" } else { "closed" };
    writeln!(out, "on_exit = \"{on_exit}\"")?;
    write!(out, "keys_dir = {}", quoted(&keys_dir.to_string_lossy()))?;
    let relative = keys_dir.is_relative();
    writeln!(out, "{}", if relative { " # from the directory of this file" } else { "" })?;
    writeln!(out, "run_dir = {}", quoted(&run_dir.to_string_lossy()))?;
    writeln!(out, "state_dir = {}", quoted(&state_dir.to_string_lossy()))?;
    let poll = if *poll == Poll::Busy { "busy" } else { "sleep" };
    writeln!(out, "poll = \"{poll}\"")
}

fn write_peer(out: &mut String, peer: &Peer) -> std::fmt::Result {
    let Peer { name, encapsulation, keys, suite, numbers, replay_window, .. } = peer;
    let Encapsulation { mode, tunnel, udp, dscp, dont_fragment } = encapsulation;
    writeln!(out, "[peer.{}]\nlocal = \"{}\"", quoted(name), tunnel.local)?;
    writeln!(out, "remote = \"{}\"", tunnel.remote)?;
    writeln!(out, "keys = {}", quoted(&keys.to_string()))?;
    if matches!(keys, KeySource::File(_)) {
        writeln!(out, "manual = \"laboratory\"")?;
    }
    writeln!(out, "suite = \"{suite}\"")?;
    if !suite.is_authenticated() {
        writeln!(out, "benchmark = \"{NO_INTEGRITY}\"")?;
    }
    let esn = *numbers == SequenceNumbers::Extended;
    writeln!(out, "mode = \"{}\"\nesn = {esn}", mode.name())?;
    writeln!(out, "replay_window = {replay_window}\nmss_clamp = {}", peer.mss_clamp)?;
    writeln!(out, "pmtu = \"{}\"", peer.pmtu.name())?;
    writeln!(out, "offload = \"{}\"", peer.offload.name())?;
    let is_of_ike = *keys == KeySource::Ike;
    match &peer.outer {
        Some(outer) => writeln!(out, "outer = {}", quoted(outer))?,
        // No value says so.
        None if is_of_ike => writeln!(out, "# outer: none")?,
        None => {}
    }
    for (key, ranges) in [("moves_to", &peer.moves.remote), ("local_moves_to", &peer.moves.local)] {
        if !ranges.is_empty() || is_of_ike && *mode == Mode::Tunnel {
            writeln!(out, "{key} = {}", list(addresses(ranges)))?;
        }
    }
    match udp {
        None => writeln!(out, "encapsulation = \"none\"")?,
        Some(ports) => {
            writeln!(out, "encapsulation = \"udp\"\nremote_port = {}", ports.remote)?;
            writeln!(out, "behind_nat = {}", peer.place == PeerPlace::BehindNat)?;
            match peer.nat_keepalive_s {
                Some(seconds) => writeln!(out, "nat_keepalive = {seconds}")?,
                None => writeln!(out, "nat_keepalive = \"off\"")?,
            }
        }
    }
    if *mode == Mode::Transport {
        return Ok(());
    }
    match dscp {
        Dscp::Copy => writeln!(out, "dscp = \"copy\"")?,
        Dscp::Fixed(value) => writeln!(out, "dscp = {value}")?,
    }
    if tunnel.remote.is_ipv4() {
        let df = match dont_fragment {
            DontFragment::Set => "set",
            DontFragment::Copy => "copy",
            DontFragment::Clear => "clear",
        };
        writeln!(out, "df = \"{df}\"")?;
    }
    Ok(())
}
