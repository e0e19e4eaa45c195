//! Virtual networks as they are configured: overlays, networks, and the store of their endpoints.

use std::fmt::Write;

use dataplane::connections::Zone;
use dataplane::{OverlayId, PortId, SourceCheck};
use policy::GroupSide;
use wire::overlay::Kind;
use wire::{Address, Vni};

use crate::groups::{Group, GroupId};
use crate::written::{count_text, list, quoted};

/// Endpoints that there is room for if nothing is written.
pub const DEFAULT_ENDPOINTS: u32 = 1 << 16;
/// Endpoints that there may be room for at most.
pub const MAX_ENDPOINTS: u32 = 1 << 22;
/// Overlays at most.
pub(crate) const MAX_OVERLAYS: usize = 64;
/// Virtual networks at most.
pub const MAX_NETWORKS: usize = 65_536;
/// Virtual networks with groups at most: each has a class of its own, as ports have.
pub(crate) const MAX_NETWORKS_WITH_GROUPS: usize = 4000;
/// The number under which rules of groups name the first virtual network with groups; ports have
/// lower ones.
pub const FIRST_NETWORK: u16 = Zone::FIRST_NETWORK;

/// `[overlay.NAME]`: how hosts' packets reach the gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverlaySettings {
    /// Its name.
    pub name: String,
    /// Form of its packets.
    pub kind: Kind,
    /// The port that they come by.
    pub port: PortId,
    /// UDP port that they are sent to.
    pub udp_port: u16,
    /// Addresses of ours that they are sent to.
    pub entrances: Vec<Address>,
    /// Hosts are told direct paths.
    pub direct: DirectUse,
    /// UDP port that hosts are told them at.
    pub direct_port: u16,
}

/// The use of direct paths between the hosts of an overlay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DirectUse {
    /// Hosts are told.
    On,
    /// All packets go by the gateway.
    #[default]
    Off,
}

impl DirectUse {
    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            DirectUse::On => "on",
            DirectUse::Off => "off",
        }
    }
}

/// `[vni.NUMBER]`: a virtual network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkSettings {
    /// Its number.
    pub vni: Vni,
    /// The overlay that carries it.
    pub overlay: OverlayId,
    /// Groups that judge what its endpoints send, in their order.
    pub groups_in: Vec<GroupId>,
    /// Groups that judge what its endpoints are sent.
    pub groups_out: Vec<GroupId>,
    /// The part of a sender that must be known.
    pub source_check: SourceCheck,
}

/// `[store]`: where endpoints are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreSettings {
    /// Its form.
    pub kind: StoreKind,
    /// Endpoints that there is room for.
    pub endpoints: u32,
}

/// `[kernel]`: the packets of virtual networks that the kernel answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSettings {
    /// The netdevs that it is used on.
    pub usage: KernelUse,
    /// Endpoints that there is room for.
    pub endpoints: u32,
    /// Endpoints go over to the kernel although packets of theirs wait for a worker.
    pub promote_busy: bool,
}

/// The netdevs whose packets the kernel answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelUse {
    /// Those of devices: a netdev of the kernel's own (veth, say) may lose what is sent so.
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

impl Default for KernelSettings {
    fn default() -> KernelSettings {
        KernelSettings { usage: KernelUse::Auto, endpoints: DEFAULT_ENDPOINTS, promote_busy: false }
    }
}

impl KernelUse {
    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            KernelUse::Auto => "auto",
            KernelUse::On => "on",
            KernelUse::Off => "off",
        }
    }
}

impl KernelSettings {
    /// Returns the first key that needs a restart and has another value in other settings.
    pub fn changed_key(&self, other: &KernelSettings) -> Option<String> {
        let key = match (self.usage == other.usage, self.endpoints == other.endpoints) {
            (false, _) => "use",
            (true, false) => "endpoints",
            (true, true) => return None,
        };
        Some(format!("kernel.{key}"))
    }

    /// Writes the section.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        let KernelSettings { usage, endpoints, promote_busy } = self;
        let endpoints = count_text((*endpoints).into());
        writeln!(out, "[kernel]\nuse = \"{}\"\nendpoints = \"{endpoints}\"", usage.name())?;
        writeln!(out, "promote_busy = {promote_busy}")
    }
}

/// The form of a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreKind {
    /// A database in `state_dir`.
    Sqlite,
    /// None: endpoints are gone when the daemon ends.
    Memory,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings { kind: StoreKind::Sqlite, endpoints: DEFAULT_ENDPOINTS }
    }
}

impl StoreKind {
    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Memory => "memory",
        }
    }
}

/// Returns the name of a check, as the file has it.
pub(crate) fn check_name(check: SourceCheck) -> &'static str {
    match check {
        SourceCheck::Endpoint => "endpoint",
        SourceCheck::Host => "host",
        SourceCheck::None => "none",
    }
}

impl StoreSettings {
    /// Bytes of the table of endpoints: 96 for each endpoint and its host, and 32 for the places
    /// of both, whose number is rounded up to a power of two.
    pub fn bytes(&self) -> u64 {
        let endpoints = u64::from(self.endpoints);
        96 * endpoints + 32 * endpoints.next_power_of_two()
    }

    /// Returns the largest power of two of endpoints whose table fits into this many bytes.
    pub(crate) fn endpoints_within(bytes: u64) -> u64 {
        (bytes / 128).checked_ilog2().map_or(0, |bits| 1 << bits)
    }

    /// Returns the first key whose value is another one in other settings: `store.endpoints`.
    pub fn changed_key(&self, other: &StoreSettings) -> Option<String> {
        let key = match (self.kind == other.kind, self.endpoints == other.endpoints) {
            (false, _) => "kind",
            (true, false) => "endpoints",
            (true, true) => return None,
        };
        Some(format!("store.{key}"))
    }

    /// Writes the section.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        let endpoints = count_text(self.endpoints.into());
        writeln!(out, "[store]\nkind = \"{}\"\nendpoints = \"{endpoints}\"", self.kind.name())
    }
}

impl OverlaySettings {
    /// Writes the section; `port` is the name of the port.
    pub(crate) fn write(&self, out: &mut String, port: &str) -> std::fmt::Result {
        let OverlaySettings { name, kind, udp_port, entrances, direct, direct_port, .. } = self;
        writeln!(out, "[overlay.{}]\nkind = \"{}\"", quoted(name), kind.name())?;
        writeln!(out, "port = {}\nudp_port = {udp_port}", quoted(port))?;
        writeln!(out, "entrances = {}", list(entrances.iter().map(ToString::to_string)))?;
        writeln!(out, "direct = \"{}\"\ndirect_port = {direct_port}", direct.name())
    }
}

impl NetworkSettings {
    /// Returns whether it lists groups, on either side.
    pub fn lists_groups(&self) -> bool {
        !self.groups_in.is_empty() || !self.groups_out.is_empty()
    }

    /// Returns the groups of one side, in their order.
    pub fn groups(&self, side: GroupSide) -> &[GroupId] {
        match side {
            GroupSide::In => &self.groups_in,
            GroupSide::Out => &self.groups_out,
        }
    }

    /// Writes the section; `overlay` is the name of the overlay.
    pub(crate) fn write(
        &self,
        out: &mut String,
        overlay: &str,
        groups: &[Group],
    ) -> std::fmt::Result {
        let names = |of: &[GroupId]| list(of.iter().map(|id| groups[id.0 as usize].name.clone()));
        writeln!(out, "[vni.{}]\noverlay = {}", self.vni, quoted(overlay))?;
        writeln!(out, "groups_in = {}", names(&self.groups_in))?;
        writeln!(out, "groups_out = {}", names(&self.groups_out))?;
        writeln!(out, "source_check = \"{}\"", check_name(self.source_check))
    }
}
