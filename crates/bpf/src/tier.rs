//! The tables of the kernel tier of overlays: what `c/overlay.bpf.c` answers by in front of the
//! workers. One [`Tier`] serves the programs of all netdevs.
//!
//! Everything here is what the walk said some time before. Three things keep it from being said any
//! longer than it holds:
//! * the **lease**: past the moment that [`Tier::renew`] named the program finds nothing;
//! * **closing**: one write closes a network, a way to a host, or one endpoint; and one write voids
//!   all verdicts on the flows of a network, which hold under its **generation** only;
//! * **quarantine**: a slot, a way, a network or an overlay that was closed is written again only
//!   when no program can be in the middle of reading it ([`QUARANTINE`]). The caller sees to it.
//!
//! The maps live as long as the process: they are pinned nowhere, and the kernel empties the table
//! of tiers when its maker goes.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use wire::flow::protocol;
use wire::overlay::Kind;
use wire::shared::Shared;
use wire::{Claim, Family, Flow, Upper};

use crate::index::Index;
use crate::layout::{
    EndpointEntry, FlowEntry, FlowKeyEntry, FlowUseEntry, KIND_CLOSED, KIND_GENEVE, KIND_VXLAN,
    LeaseEntry, MAX_ENTRANCES, MAX_EXITS, MAX_TIER_OVERLAYS, MISSES, Miss, NETWORK_ASKS,
    NETWORK_OPEN, NetworkEntry, Options, OverlayEntry, TIER_OVERLAY, TIERS, VERDICT_DROP,
    VERDICT_PERMIT, WAY_OPEN, WayEntry,
};
use crate::maps::make;
use crate::samples::Samples;
use crate::steering::{Aligned, load};
use crate::{BpfError, Steering};

/// The program of the kernel tier of overlays.
static OVERLAY: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/overlay.bpf.o")));
const _: () = assert!(TIER_OVERLAY < TIERS);
const OVERLAY_PROGRAM: &str = "lockgate_overlay";

/// Time between closing a slot or a way and writing it again: the program runs for microseconds,
/// and is not preempted.
pub const QUARANTINE: Duration = Duration::from_secs(1);

/// Endpoints that a tier has room for at most.
pub const MAX_ENDPOINTS: u32 = 4_194_304;

/// The room in a tier's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Endpoints, 1 to [`MAX_ENDPOINTS`]; as many slots, and twice as many ways to hosts.
    pub endpoints: u32,
    /// Verdicts on flows, at least 1.
    pub flows: u32,
    /// Virtual networks, at least 1.
    pub networks: u32,
}

/// The state of an overlay or a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Packets pass. It has been closed for [`QUARANTINE`], if it was open before.
    Open,
    /// None does.
    Closed,
}

/// The state of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkState {
    /// Packets pass. If another network had the number before, it has been closed for
    /// [`QUARANTINE`].
    Open,
    /// Packets pass, or are dropped, as the verdict on their flow says that was given under this
    /// generation. Requests for link addresses are answered.
    Asks {
        /// The generation, at least 1. No verdict is of it yet, and none will be when it has
        /// become another.
        generation: u32,
    },
    /// None passes.
    Closed,
}

/// The flow of a tenant's IPv4 packet that is no fragment, and opens no TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey {
    /// Number of the network, below 2^24.
    pub vni: u32,
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// Address of the destination.
    pub destination: Ipv4Addr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Both ports, as in the packet; type and code of ICMP, and two zeros; or zeros.
    pub upper: [u8; 4],
}

/// The verdict of a network's groups on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Its packets are forwarded.
    Permit,
    /// They are dropped.
    Drop,
}

/// A verdict as the tier knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRecord {
    /// The flow.
    pub key: FlowKey,
    /// The generation of the network's rules that it was given by.
    pub generation: u32,
    /// Number of its network in the table.
    pub network: u32,
    /// The verdict.
    pub verdict: Verdict,
    /// The claim about its packets that go up to a worker all the same; `None`: there is none.
    pub claim: Option<FlowClaim>,
}

/// A claim by rules of the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowClaim {
    /// Number of the domain of the rules.
    pub domain: u32,
    /// The domain's generation.
    pub generation: u32,
    /// The claim.
    pub claim: Claim,
}

/// The packets of the flows that had a slot, since the tables were made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowUse {
    /// Packets.
    pub packets: u64,
    /// Bytes of the tenants' IP packets.
    pub bytes: u64,
    /// The moment of the last, in nanoseconds of `CLOCK_MONOTONIC`, some milliseconds early; 0:
    /// there was none.
    pub last_ns: u64,
}

/// An overlay, and where its packets come in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay {
    /// Form of its packets.
    pub kind: Kind,
    /// UDP port that they are sent to.
    pub udp_port: u16,
    /// Index of the netdev that they come by.
    pub ifindex: u32,
    /// VLAN id of the port on it; `None`: untagged.
    pub vlan: Option<u16>,
    /// Our addresses that they are sent to; those behind the first [`MAX_ENTRANCES`] are not
    /// known.
    pub entrances: Vec<Ipv4Addr>,
    /// Packets with a UDP checksum are the workers', which may have to complete it.
    pub unsummed: bool,
}

/// An endpoint's key: a virtual network, and an address in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The network's number, below 2^24.
    pub vni: u32,
    /// The tenant's address.
    pub address: Ipv4Addr,
}

/// An endpoint as the tier knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its key.
    pub key: Key,
    /// Address of the host that it lives on.
    pub host: Ipv4Addr,
    /// The tenant's link address.
    pub mac: [u8; 6],
    /// Number of the way of packets to it; 0: none.
    pub way: u32,
    /// Number of the way of answers to it; 0: none.
    pub answers: u32,
    /// Number of its network.
    pub network: u32,
}

/// The way to a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Way {
    /// The host.
    pub host: Ipv4Addr,
    /// Index of the netdev that packets leave by.
    pub ifindex: u32,
    /// VLAN id of the port on it; `None`: untagged.
    pub vlan: Option<u16>,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Link address of the next hop.
    pub destination: [u8; 6],
    /// Our link address.
    pub source: [u8; 6],
}

/// The tables.
pub struct Tier {
    process: u32,
    size: Size,
    lease: MapHandle,
    overlays: MapHandle,
    networks: MapHandle,
    endpoint_index: Index,
    endpoint_records: MapHandle,
    flow_index: Index,
    flow_records: MapHandle,
    flow_hits: MapHandle,
    ways: MapHandle,
    hits: MapHandle,
    exits: MapHandle,
    misses: MapHandle,
    samples: Samples,
    /// [`LeaseEntry::sampled`], for the next lease.
    sampled: AtomicU32,
}

impl Tier {
    /// Makes the tables, empty and closed. `process` is a number that no earlier process had, as
    /// far as chance goes.
    ///
    /// # Errors
    /// [`BpfError::Table`]: the kernel has not that much memory, say.
    pub fn new(process: u32, size: Size) -> Result<Tier, BpfError> {
        let Size { endpoints, flows, networks } = size;
        let (array, per_cpu) = (MapType::Array, MapType::PercpuArray);
        Ok(Tier {
            process,
            size,
            lease: make("lockgate_lease", array, (4, size_of::<LeaseEntry>()), 1)?,
            overlays: make(
                "lockgate_doors",
                array,
                (4, size_of::<OverlayEntry>()),
                MAX_TIER_OVERLAYS,
            )?,
            networks: make("lockgate_vnis", array, (4, size_of::<NetworkEntry>()), networks)?,
            endpoint_index: Index::new("lockgate_slots", "endpoints", endpoints, process)?,
            endpoint_records: make(
                "lockgate_hosts",
                array,
                (4, size_of::<EndpointEntry>()),
                endpoints,
            )?,
            flow_index: Index::new("lockgate_flows", "flows", flows, process)?,
            flow_records: make("lockgate_said", array, (4, size_of::<FlowEntry>()), flows)?,
            flow_hits: make("lockgate_used", per_cpu, (4, size_of::<FlowUseEntry>()), flows)?,
            ways: make("lockgate_ways", array, (4, size_of::<WayEntry>()), 2 * endpoints + 1)?,
            hits: make("lockgate_hits", per_cpu, (4, 8), endpoints)?,
            exits: make("lockgate_exits", MapType::DevmapHash, (4, 4), MAX_EXITS as u32)?,
            misses: make("lockgate_misses", per_cpu, (4, 8), MISSES as u32)?,
            samples: Samples::new()?,
            sampled: AtomicU32::new(0),
        })
    }

    /// The room in its tables.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The ring of samples.
    pub(crate) fn samples(&self) -> &Samples {
        &self.samples
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// The tables by the names that the program has for them.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        [
            ("lease", &self.lease),
            ("overlays", &self.overlays),
            ("networks", &self.networks),
            ("endpoint_index", &self.endpoint_index.map),
            ("endpoint_records", &self.endpoint_records),
            ("flow_index", &self.flow_index.map),
            ("flow_records", &self.flow_records),
            ("flow_hits", &self.flow_hits),
            ("ways", &self.ways),
            ("hits", &self.hits),
            ("exits", &self.exits),
            ("misses", &self.misses),
            ("samples", &self.samples.map),
            ("unheard", &self.samples.unheard),
        ]
        .into_iter()
        .map(|(name, map)| (name, map.as_fd()))
    }

    /// Lets the tables hold until a moment of `CLOCK_MONOTONIC`, in nanoseconds; 0: not any more.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn renew(&self, until_ns: u64) -> Result<(), BpfError> {
        let sampled = self.sampled.load(Ordering::Relaxed);
        let lease = LeaseEntry { until_ns, incarnation: self.process, sampled };
        put(&self.lease, "lease", &0u32, &lease)
    }

    /// Has one of so many packets that the program answers sampled, by chance, from the next
    /// [renewal](Self::renew) of the lease on; 0: none, as in the beginning. They are
    /// [taken](Self::take_samples) now and then.
    pub fn sample_one_of(&self, packets: u32) {
        let highest = (u64::from(u32::MAX) + 1).checked_div(packets.into());
        let highest = highest.map_or(0, |draws| (draws - 1) as u32);
        self.sampled.store(highest, Ordering::Relaxed);
    }

    /// Sets the state of an overlay. `number` is below [`MAX_TIER_OVERLAYS`]; an overlay that
    /// closes is the one that is there.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn set_overlay(
        &self,
        number: u32,
        overlay: &Overlay,
        state: State,
    ) -> Result<(), BpfError> {
        let open = overlay.entry();
        let closed = OverlayEntry { kind: KIND_CLOSED, ..open };
        set(&self.overlays, "overlays", number, state, [closed, open])
    }

    /// Sets the state of a network of an overlay; a network that closes, or goes from one state to
    /// another, is the one that is there.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn set_network(
        &self,
        number: u32,
        vni: u32,
        overlay: u32,
        state: NetworkState,
    ) -> Result<(), BpfError> {
        let entry = |state, generation| NetworkEntry { vni, state, overlay, generation };
        let (state, open) = match state {
            NetworkState::Open => (State::Open, entry(NETWORK_OPEN, 0)),
            NetworkState::Asks { generation } => (State::Open, entry(NETWORK_ASKS, generation)),
            NetworkState::Closed => (State::Closed, entry(0, 0)),
        };
        // A program in the middle of it may find the one's state with the other's generation: of
        // generation 0 no verdict is, and of the new one none yet.
        set(&self.networks, "networks", number, state, [entry(0, 0), open])
    }

    /// Writes a record to which no key leads, nor has for [`QUARANTINE`].
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn write_record(&self, slot: u32, record: &Record) -> Result<(), BpfError> {
        let [vni, address] = record.key.words();
        let entry = EndpointEntry {
            vni,
            address,
            host: raw(record.host),
            way: record.way,
            answers: record.answers,
            network: record.network,
            mac: record.mac,
            reserved: 0,
        };
        put(&self.endpoint_records, "endpoint records", &slot, &entry)
    }

    /// Makes a key lead to a record that was written.
    ///
    /// # Errors
    /// [`BpfError::NoPlace`]; [`BpfError::Table`].
    pub fn publish(&self, key: Key, slot: u32) -> Result<(), BpfError> {
        self.endpoint_index.publish(&key.words(), slot)
    }

    /// Makes a key that may lead to a record lead to none.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn withdraw(&self, key: Key, slot: u32) -> Result<(), BpfError> {
        self.endpoint_index.withdraw(&key.words(), slot)
    }

    /// Writes a verdict to which no flow leads, nor has for [`QUARANTINE`].
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn write_flow(&self, slot: u32, record: &FlowRecord) -> Result<(), BpfError> {
        let FlowRecord { key, generation, network, verdict, claim } = *record;
        let FlowKeyEntry { vni, source, destination, protocol, upper } = key.entry();
        let verdict = match verdict {
            Verdict::Permit => VERDICT_PERMIT,
            Verdict::Drop => VERDICT_DROP,
        };
        let word = |of: FlowClaim| Some((of.domain, of.generation, of.claim.word()?));
        let (rules_domain, rules_generation, claim) = claim.and_then(word).unwrap_or_default();
        let flow = FlowEntry {
            vni,
            source,
            destination,
            protocol,
            upper,
            generation,
            network,
            verdict,
            rules_domain,
            rules_generation,
            claim,
        };
        put(&self.flow_records, "verdicts on flows", &slot, &flow)
    }

    /// Makes a flow lead to a verdict that was written.
    ///
    /// # Errors
    /// [`BpfError::NoPlace`]; [`BpfError::Table`].
    pub fn publish_flow(&self, key: FlowKey, slot: u32) -> Result<(), BpfError> {
        self.flow_index.publish(&key.words(), slot)
    }

    /// Makes a flow that may lead to a verdict lead to none.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn withdraw_flow(&self, key: FlowKey, slot: u32) -> Result<(), BpfError> {
        self.flow_index.withdraw(&key.words(), slot)
    }

    /// Returns the use of a slot.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn flow_use(&self, slot: u32) -> Result<FlowUse, BpfError> {
        let mut sum = FlowUse::default();
        for core in of_cores(&self.flow_hits, "flow hits", slot)? {
            let FlowUseEntry { packets, bytes, last_ns } = FlowUseEntry::read(&core);
            sum.packets += packets;
            sum.bytes += bytes;
            sum.last_ns = sum.last_ns.max(last_ns);
        }
        Ok(sum)
    }

    /// Sets the state of a way; `number` is 1 to twice the number of endpoints. A way that closes
    /// is the one that is there.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn set_way(&self, number: u32, way: &Way, state: State) -> Result<(), BpfError> {
        set(&self.ways, "ways", number, state, [way.entry(0), way.entry(WAY_OPEN)])
    }

    /// Lets packets leave by a netdev other than the one that they came by.
    ///
    /// # Errors
    /// [`BpfError::Table`]: among others, there is no such netdev.
    pub fn add_exit(&self, ifindex: u32) -> Result<(), BpfError> {
        put(&self.exits, "exits", &ifindex, &ifindex)
    }

    /// Returns the number of packets from and to the endpoints that had a slot.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn hits(&self, slot: u32) -> Result<u64, BpfError> {
        sum(&self.hits, "hits", slot)
    }

    /// Frames that were left to the workers, by [`Miss::ALL`].
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn misses(&self) -> Result<[u64; MISSES], BpfError> {
        let mut counts = [0; MISSES];
        for (count, miss) in counts.iter_mut().zip(Miss::ALL) {
            *count = sum(&self.misses, "misses", miss as u32)?;
        }
        Ok(counts)
    }
}

impl Steering {
    /// Puts the kernel tier in front of the workers for the packets of overlays. It is closed
    /// until its [lease](Tier::renew) is renewed.
    ///
    /// # Errors
    /// As [`load`](Steering::load); and [`BpfError::Table`].
    pub fn add_tier(&mut self, tier: &Tier, netdev: u16, incarnation: u32) -> Result<(), BpfError> {
        let options = Options {
            incarnation,
            process: tier.process(),
            netdev,
            reserved: 0,
            endpoint_mask: tier.endpoint_index.mask(),
            flow_mask: tier.flow_index.mask(),
        };
        let own = ["sockets", "counters", "after"].into_iter();
        let own: Result<Vec<_>, BpfError> = own.map(|name| Ok((name, self.map(name)?))).collect();
        let own = own?;
        let own = own.iter().map(|(name, map)| (*name, map.as_fd()));
        let shared: Vec<(&str, BorrowedFd<'_>)> = own.chain(tier.maps()).collect();
        let object = load("overlay", &OVERLAY.0, &options.bytes(), &shared)?;
        let program = object.progs().find(|program| program.name() == OVERLAY_PROGRAM);
        let program = program.ok_or(BpfError::Shape { part: OVERLAY_PROGRAM })?;
        let descriptor = program.as_fd().as_raw_fd().to_ne_bytes();
        let put = self.map("tiers")?.update(&TIER_OVERLAY.bytes(), &descriptor, MapFlags::ANY);
        put.map_err(|source| BpfError::Table { table: "tiers", source })?;
        self.overlay = Some(object);
        Ok(())
    }
}

impl Overlay {
    fn entry(&self) -> OverlayEntry {
        let mut entrances = [0; MAX_ENTRANCES];
        for (place, entrance) in entrances.iter_mut().zip(&self.entrances) {
            *place = raw(*entrance);
        }
        let kind = match self.kind {
            Kind::Vxlan => KIND_VXLAN,
            Kind::Geneve => KIND_GENEVE,
        };
        OverlayEntry {
            entrances,
            ifindex: self.ifindex,
            udp_port: self.udp_port,
            vlan: tag(self.vlan),
            kind,
            unsummed: self.unsummed.into(),
        }
    }
}

impl Key {
    /// The words that the program hashes.
    fn words(self) -> [u32; 2] {
        [self.vni, raw(self.address)]
    }
}

impl FlowKey {
    /// The key of a tenant's flow. `None`: the tier knows none like it.
    pub fn of(vni: u32, flow: &Flow) -> Option<FlowKey> {
        let upper = match flow.upper {
            Upper::Fragment => return None,
            Upper::Ports { source, destination } => {
                let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
                [a, b, c, d]
            }
            Upper::Icmp { kind, code } => [kind, code, 0, 0],
            Upper::None => [0; 4],
        };
        let is_known = flow.family == Family::V4 && !flow.opens;
        let [source, destination] =
            [flow.source, flow.destination].map(|address| Ipv4Addr::from(address as u32));
        let protocol = flow.protocol;
        is_known.then_some(FlowKey { vni, source, destination, protocol, upper })
    }

    /// The flow.
    pub fn flow(&self) -> Flow {
        let [a, b, c, d] = self.upper;
        let upper = match self.protocol {
            protocol::ICMP => Upper::Icmp { kind: a, code: b },
            number if protocol::has_ports(number) => Upper::Ports {
                source: u16::from_be_bytes([a, b]),
                destination: u16::from_be_bytes([c, d]),
            },
            _ => Upper::None,
        };
        Flow {
            family: Family::V4,
            source: self.source.to_bits().into(),
            destination: self.destination.to_bits().into(),
            protocol: self.protocol,
            upper,
            opens: false,
        }
    }

    /// The words that the program hashes, in the order of the fields.
    fn words(self) -> [u32; 5] {
        let FlowKeyEntry { vni, source, destination, protocol, upper } = self.entry();
        [vni, source, destination, protocol, upper]
    }

    fn entry(self) -> FlowKeyEntry {
        FlowKeyEntry {
            vni: self.vni,
            source: raw(self.source),
            destination: raw(self.destination),
            protocol: self.protocol.into(),
            upper: u32::from_ne_bytes(self.upper),
        }
    }
}

impl Way {
    fn entry(&self, state: u32) -> WayEntry {
        let Way { host, ifindex, vlan, mtu, destination, source } = *self;
        let (host, vlan) = (raw(host), tag(vlan));
        WayEntry { state, host, ifindex, mtu, vlan, destination, source, reserved: 0 }
    }
}

/// The word that an address is in network byte order.
fn raw(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

fn tag(vlan: Option<u16>) -> u16 {
    vlan.unwrap_or(wire::mark::VLAN_UNTAGGED)
}

fn put(
    map: &MapHandle,
    table: &'static str,
    key: &impl Shared,
    value: &impl Shared,
) -> Result<(), BpfError> {
    map.update(&key.bytes(), &value.bytes(), MapFlags::ANY)
        .map_err(|source| BpfError::Table { table, source })
}

/// Writes a place in the state that is wanted, closed or open. The two differ in the state alone: a
/// program that reads the place while it closes finds the content that it had when it was open, and
/// one that opens has all of its content before.
fn set(
    map: &MapHandle,
    table: &'static str,
    number: u32,
    state: State,
    [closed, open]: [impl Shared; 2],
) -> Result<(), BpfError> {
    put(map, table, &number, &closed)?;
    match state {
        State::Open => put(map, table, &number, &open),
        State::Closed => Ok(()),
    }
}

/// The sum of a per-CPU number.
pub(crate) fn sum(map: &MapHandle, table: &'static str, key: u32) -> Result<u64, BpfError> {
    Ok(of_cores(map, table, key)?.iter().map(|core| u64::read(core)).sum())
}

/// The values that the cores have of a key.
fn of_cores(map: &MapHandle, table: &'static str, key: u32) -> Result<Vec<Vec<u8>>, BpfError> {
    let cores = map.lookup_percpu(&key.bytes(), MapFlags::ANY);
    let cores = cores.map_err(|source| BpfError::Table { table, source })?;
    Ok(cores.unwrap_or_default())
}
