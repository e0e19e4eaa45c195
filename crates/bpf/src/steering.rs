//! A loaded program, its tables and counters.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::libbpf_sys::{BPF_F_NO_PREALLOC, bpf_map_create_opts};
use libbpf_rs::{
    Error, ErrorKind, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, Program,
    ProgramInput,
};

use wire::shared::Shared;
use wire::{CardHeader, Mark};

use crate::layout::{
    AddressKey, CARRIED_IN, CARRIED_OUT, CarriedSaKey, LINK_CARDED, OWN_PROTECTED, OWN_UNPROTECTED,
    Options, PortEntry, PortsEntry, PrefixKey, SERVICE_FRAGMENTS, SERVICE_PORTS, SERVICE_TO_GROUPS,
    SERVICE_TO_US, SIDE_PROTECTED, SIDE_UNPROTECTED, ServiceEntry, VLAN_IDS,
};
use crate::messages::{Messages, with_messages};
use crate::{
    BpfError, KernelCounters, MAX_ADDRESSES, MAX_CARRIED_SAS, MAX_OVERLAYS, MAX_PORTS,
    MAX_PREFIXES, MAX_QUEUES, MAX_SERVICES, PROGRAM, probe,
};

/// The compiled program, at an address that ELF readers like.
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o")));

#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);

/// The side of RFC 4301's boundary that a port is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The gateway's own networks, in cleartext.
    Protected,
    /// The world.
    Unprotected,
}

impl Side {
    fn number(self) -> u8 {
        match self {
            Side::Protected => SIDE_PROTECTED,
            Side::Unprotected => SIDE_UNPROTECTED,
        }
    }
}

/// Traffic to this machine itself that the program passes to Linux by an unprotected port: an
/// entry of `allow_host`, as far as no policy may want its packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Service {
    /// Upper-layer protocol. ESP is never let through.
    pub protocol: u8,
    /// First and last destination port; `None`: the whole protocol.
    pub ports: Option<(u16, u16)>,
    /// The packets of the service that are passed.
    pub scope: Scope,
}

/// Packets of a service that are passed to Linux; all others go to the worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scope(u8);

impl Scope {
    /// Packets to an own address.
    pub const TO_US: Scope = Scope(SERVICE_TO_US);
    /// Packets to a group or a broadcast address.
    pub const TO_GROUPS: Scope = Scope(SERVICE_TO_GROUPS);
    /// Fragments of the packets in scope, of which later ones show no port. A first one is passed
    /// only if those of its protocol are.
    pub const FRAGMENTS: Scope = Scope(SERVICE_FRAGMENTS);
    /// All packets.
    pub const ALL: Scope = Scope::TO_US.and(Scope::TO_GROUPS).and(Scope::FRAGMENTS);
    /// No packet.
    pub const NONE: Scope = Scope(0);

    /// Returns the packets of both scopes.
    #[must_use]
    pub const fn and(self, other: Scope) -> Scope {
        Scope(self.0 | other.0)
    }
}

/// The form of a netdev's frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LinkForm {
    /// They are as they were on the wire.
    #[default]
    Plain,
    /// Each begins with the header of an emulated card ([`CardHeader`]): the program takes it away
    /// and drops frames that lack it.
    Carded,
}

/// A port of a netdev: one VLAN id, or what is untagged.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PortRule {
    /// VLAN id of the port, 1 to 4094; `None`: untagged.
    pub vlan: Option<u16>,
    /// Clear or world.
    pub side: Side,
    /// The gateway's link address on it.
    pub mac: [u8; 6],
    /// The services that it lets through to Linux, [`MAX_SERVICES`] at most; used on unprotected
    /// ports only.
    pub services: Vec<Service>,
    /// UDP ports of overlays, [`MAX_OVERLAYS`] at most: what is to an own address and one of them
    /// is a worker's; used on protected ports only, because on others it is without them.
    pub overlays: Vec<u16>,
}

/// Addresses from `address` with `bits` leading bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    /// Any address in it; bits behind `bits` are ignored.
    pub address: IpAddr,
    /// Leading bits: up to 32 or 128.
    pub bits: u8,
}

/// The packets of a network of a peer that Linux carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Carried {
    /// Those that go there, by protected ports.
    Out,
    /// Those that come from there, by unprotected ports.
    In,
    /// Both.
    Both,
}

/// The side that a route leads to. Inside are the gateway itself and all behind protected ports: no
/// packet from outside may have such a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inside {
    /// An own address, a broadcast address, or reached by a protected port.
    Yes,
    /// Reached by an unprotected port, or a blackhole.
    No,
}

/// The program's answer about a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Left to Linux.
    Pass,
    /// Into the queue's socket.
    Redirect,
    /// Dropped.
    Drop,
    /// Sent out by the netdev that it came by, by the kernel tier.
    Transmit,
    /// Another answer of XDP's, which the program does not give.
    Other(u32),
}

/// One frame's way through the program, see [`Steering::run`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The program's answer.
    pub action: Action,
    /// The mark that it wrote in front of the frame.
    pub mark: Option<[u8; Mark::BYTES]>,
    /// The frame as it leaves, if it is transmitted.
    pub sent: Option<Vec<u8>>,
    /// The frame as the program leaves it, without the mark.
    pub left: Vec<u8>,
}

/// The program of one netdev: loaded, perhaps attached, with its own tables and counters.
///
/// It is loaded closed: until [`Steering::set_ports`] nothing is passed, until
/// [`Steering::set_queue`] everything else is dropped. Dropping a `Steering` leaves an attached
/// program in place; its tables stay as they are and its sockets go when they are closed.
pub struct Steering {
    object: Object,
    sockets: MapHandle,
    counters: CounterReader,
    ports: Table,
    addresses: Table,
    prefixes: Table,
    carried: Table,
    carried_sas: Table,
    /// The form of frames in force.
    link: LinkForm,
    /// The program of the kernel tier of overlays; `None`: all their packets are the workers'.
    pub(crate) overlay: Option<Object>,
}

impl Steering {
    /// Loads a program for the netdev that the process numbers `netdev`; `incarnation` is the
    /// number of the attachment, for the marks.
    ///
    /// # Errors
    /// [`BpfError::NotPermitted`], [`BpfError::Refused`]: the operator grants it;
    /// [`BpfError::Verifier`], [`BpfError::Load`]: the kernel cannot run it.
    pub fn load(netdev: u16, incarnation: u32) -> Result<Steering, BpfError> {
        let options = Options { incarnation, netdev, ..Options::zeroed() };
        let object = load("steer", &OBJECT.0, &options.bytes(), &[])?;
        let map = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name);
            let handle = map.as_ref().map(MapHandle::try_from);
            handle.and_then(Result::ok).ok_or(BpfError::Shape { part: name })
        };
        let steering = Steering {
            sockets: map("sockets")?,
            counters: CounterReader(map("counters")?.into()),
            ports: Table::new(map("ports")?, "ports"),
            addresses: Table::new(map("addresses")?, "own addresses"),
            prefixes: Table::new(map("prefixes")?, "prefixes"),
            carried: Table::new(map("carried")?, "carried networks"),
            carried_sas: Table::new(map("carried_sas")?, "carried SAs"),
            link: LinkForm::Plain,
            object,
            overlay: None,
        };
        if steering.counters.0.value_size() as usize != size_of::<KernelCounters>() {
            return Err(BpfError::Shape { part: "counters" });
        }
        steering.program()?;
        Ok(steering)
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<MapHandle, BpfError> {
        let map = self.object.maps().find(|map| map.name() == name);
        let handle = map.as_ref().map(MapHandle::try_from);
        handle.and_then(Result::ok).ok_or(BpfError::Shape { part: name })
    }

    /// Has a program run after each frame with an answer of XDP's, a number below
    /// [`XDP_ACTIONS`](crate::XDP_ACTIONS); see `after` in `frame.h`.
    ///
    /// # Errors
    /// [`BpfError::Table`]: it is no XDP program, say, or there is no such answer.
    pub fn set_after(&self, answer: u32, program: BorrowedFd<'_>) -> Result<(), BpfError> {
        let descriptor = program.as_raw_fd().to_ne_bytes();
        let put = self.map("after")?.update(&answer.bytes(), &descriptor, MapFlags::ANY);
        put.map_err(|source| BpfError::Table { table: "after", source })
    }

    /// Replaces the netdev's ports and the form of its frames, all at once. Frames of a VLAN id
    /// that is not declared go to the worker. Cost: the kernel waits until no core reads the old
    /// ones, some milliseconds.
    ///
    /// # Errors
    /// [`BpfError::TooMany`], [`BpfError::SamePort`], [`BpfError::BadVlan`]: the caller's mistake;
    /// [`BpfError::Table`]. The old ports stay in force.
    pub fn set_ports(&mut self, ports: &[PortRule], link: LinkForm) -> Result<(), BpfError> {
        limited("ports of a netdev", ports.len(), MAX_PORTS)?;
        let mut seen = HashSet::new();
        let mut entries = Vec::with_capacity(ports.len());
        for port in ports {
            if let Some(vlan) = port.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
                return Err(BpfError::BadVlan { vlan });
            }
            if !seen.insert(port.vlan) {
                return Err(BpfError::SamePort { vlan: port.vlan });
            }
            limited("allow_host entries of a port", port.services.len(), MAX_SERVICES)?;
            limited("overlays of a port", port.overlays.len(), MAX_OVERLAYS)?;
            entries.push((port.vlan, port_entry(port)));
        }
        let table = ports_entry(&entries, link);
        self.ports.publish(&Kind::PORTS, vec![(vec![0; 4], table.bytes())])?;
        self.link = link;
        Ok(())
    }

    /// Forgets the netdev's ports, as before the first [`Steering::set_ports`]: nothing is passed
    /// to Linux, and the workers get every frame, those of an emulated card with its header, of
    /// which they make nothing. Takes no memory, so that it works where replacing them does not.
    ///
    /// # Errors
    /// [`BpfError::Table`]: the old ports stay in force.
    pub fn forget_ports(&mut self) -> Result<(), BpfError> {
        self.ports.withdraw()?;
        self.link = LinkForm::Plain;
        Ok(())
    }

    /// Replaces the host's own addresses, all at once. Each has the side of its port, or
    /// [`Side::Protected`] without a port. An address that is given twice is on both sides.
    ///
    /// # Errors
    /// [`BpfError::TooMany`]: more than [`MAX_ADDRESSES`] different ones; [`BpfError::Table`]. The
    /// old addresses stay in force.
    pub fn set_own_addresses(&mut self, own: &[(IpAddr, Side)]) -> Result<(), BpfError> {
        let mut values = BTreeMap::<[u8; size_of::<AddressKey>()], u32>::new();
        for (address, side) in own {
            *values.entry(octets(*address)).or_default() |= match side {
                Side::Protected => OWN_PROTECTED,
                Side::Unprotected => OWN_UNPROTECTED,
            };
        }
        limited("own addresses", values.len(), MAX_ADDRESSES)?;
        let entries = values.into_iter().map(|(key, value)| (key.to_vec(), value.bytes()));
        self.addresses.publish(&Kind::ADDRESSES, entries.collect())
    }

    /// Replaces what is known of who lives inside: one entry per route, and one per own and
    /// broadcast address. The longest prefix decides; what none covers is outside.
    ///
    /// Until this was called (perhaps with nothing), and after [`Steering::forget_inside`], packets
    /// to us that `allow_host` lists go to the worker, which knows: safe, but slower. Neighbour
    /// discovery is passed all the same.
    /// Entries that change nothing, such as a full table of routes to the world, cost no room.
    ///
    /// # Errors
    /// [`BpfError::TooMany`]: more than [`MAX_PREFIXES`] that matter; [`BpfError::Table`]. The old
    /// ones stay in force: the caller then calls [`Steering::forget_inside`].
    pub fn set_inside(&mut self, prefixes: &[(Prefix, Inside)]) -> Result<(), BpfError> {
        let entries = needed(prefixes);
        limited("prefixes", entries.len(), MAX_PREFIXES)?;
        self.prefixes.publish(&Kind::PREFIXES, entries)
    }

    /// Forgets who lives inside, as before the first [`Steering::set_inside`].
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn forget_inside(&mut self) -> Result<(), BpfError> {
        self.prefixes.withdraw()
    }

    /// Replaces what Linux carries for a card that does ESP under Linux, here and not all at once:
    /// `networks` of peers, whose packets to our station are passed by their destination on
    /// protected ports and by their source on others; and SAs, by destination and SPI, whose ESP is
    /// passed. Without networks nothing is.
    ///
    /// # Errors
    /// [`BpfError::TooMany`]: more than [`MAX_PREFIXES`] or [`MAX_CARRIED_SAS`];
    /// [`BpfError::Table`]. The old ones stay in force, or some of them.
    pub fn set_carried(
        &mut self,
        networks: &[(Prefix, Carried)],
        sas: &[(IpAddr, u32)],
    ) -> Result<(), BpfError> {
        limited("carried networks", networks.len(), MAX_PREFIXES)?;
        limited("carried SAs", sas.len(), MAX_CARRIED_SAS)?;
        if networks.is_empty() {
            self.carried.withdraw()?;
            return self.carried_sas.withdraw();
        }
        let sas = sas.iter().map(|(address, spi)| {
            let address = AddressKey::read(&octets(*address));
            (CarriedSaKey { address, spi: spi.to_be() }.bytes(), 1u32.bytes())
        });
        self.carried_sas.publish(&Kind::CARRIED_SAS, sas.collect())?;
        let networks = networks.iter().map(|(network, ways)| {
            let (value, bits) = leading(network);
            let address = AddressKey::read(&value.to_be_bytes());
            let ways = match ways {
                Carried::Out => CARRIED_OUT,
                Carried::In => CARRIED_IN,
                Carried::Both => CARRIED_OUT | CARRIED_IN,
            };
            (PrefixKey { bits: bits.into(), address }.bytes(), ways.bytes())
        });
        self.carried.publish(&Kind::PREFIXES, networks.collect())
    }

    /// Puts a socket behind a receive queue, or takes it away: then the queue drops. A socket that
    /// is closed goes by itself.
    ///
    /// # Errors
    /// [`BpfError::BadQueue`]; [`BpfError::Table`]: among others, the descriptor is not an AF_XDP
    /// socket with an rx ring.
    pub fn set_queue(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> Result<(), BpfError> {
        if queue >= MAX_QUEUES {
            return Err(BpfError::BadQueue { queue });
        }
        let key = queue.to_ne_bytes();
        let done = match socket {
            Some(socket) => {
                let value = socket.as_raw_fd().to_ne_bytes();
                self.sockets.update(&key, &value, MapFlags::ANY)
            }
            None => absent_is_fine(self.sockets.delete(&key)),
        };
        done.map_err(|source| BpfError::Table { table: "sockets", source })
    }

    /// Frames by what the program did with them, since it was loaded. Cost: a system call.
    ///
    /// # Errors
    /// [`BpfError::Counters`].
    pub fn counters(&self) -> Result<KernelCounters, BpfError> {
        self.counters.read()
    }

    /// Returns a reader of the counters for a holder that may do nothing else with the program, and
    /// may outlive it.
    pub fn counter_reader(&self) -> CounterReader {
        self.counters.clone()
    }

    /// Runs the program over a frame as if it had come by queue 0, without any netdev: nothing is
    /// sent or delivered, but its counters move. Load another one to ask without trace.
    ///
    /// # Errors
    /// [`BpfError::Run`]: among others, a frame shorter than an Ethernet header.
    pub fn run(&self, frame: &[u8]) -> Result<Run, BpfError> {
        let mut out = vec![0; frame.len() + Mark::BYTES];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat: 1,
            ..ProgramInput::default()
        };
        let program = self.object.progs_mut().find(|program| program.name() == PROGRAM);
        let program = program.ok_or(BpfError::Shape { part: PROGRAM })?;
        let output = program.test_run(input).map_err(|source| BpfError::Run { source })?;
        let action = match output.return_value {
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Transmit,
            4 => Action::Redirect,
            other => Action::Other(other),
        };
        let data: Option<&[u8]> = output.data.as_deref();
        let header = match self.link {
            LinkForm::Plain => 0,
            LinkForm::Carded => CardHeader::BYTES,
        };
        let marked = data.filter(|data| data.len() + header == frame.len() + Mark::BYTES);
        let mark = marked.and_then(|data| data.first_chunk().copied());
        let sent = data.filter(|_| action == Action::Transmit).map(<[u8]>::to_vec);
        let before = if mark.is_some() { Mark::BYTES } else { 0 };
        let left = data.and_then(|data| data.get(before..)).unwrap_or_default().to_vec();
        Ok(Run { action, mark, sent, left })
    }

    pub(crate) fn program(&self) -> Result<Program<'_>, BpfError> {
        let ours = |program: &Program<'_>| program.name() == PROGRAM;
        self.object.progs().find(ours).ok_or(BpfError::Shape { part: PROGRAM })
    }
}

/// Reads the counters of a program.
#[derive(Clone)]
pub struct CounterReader(Arc<MapHandle>);

impl CounterReader {
    /// Frames by what the program did with them, since it was loaded. Cost: a system call.
    ///
    /// # Errors
    /// [`BpfError::Counters`].
    pub fn read(&self) -> Result<KernelCounters, BpfError> {
        let cores = self.0.lookup_percpu(&[0; 4], MapFlags::ANY);
        let cores = cores.map_err(|source| BpfError::Counters { source })?;
        let mut counters = KernelCounters::default();
        for core in cores.unwrap_or_default() {
            counters.add(&core);
        }
        Ok(counters)
    }
}

fn limited(what: &'static str, count: usize, limit: usize) -> Result<(), BpfError> {
    match count <= limit {
        true => Ok(()),
        false => Err(BpfError::TooMany { what, count, limit }),
    }
}

fn absent_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Loads an object whose constants are `options`.
/// `shared`: maps that others have made already.
pub(crate) fn load(
    name: &str,
    object: &[u8],
    options: &[u8],
    shared: &[(&str, BorrowedFd<'_>)],
) -> Result<Object, BpfError> {
    let (object, messages) = with_messages(|| load_object(name, object, options, shared));
    object.map_err(|failure| match failure {
        Failure::Shape(part) => BpfError::Shape { part },
        Failure::Load(source) => load_error(source, &messages),
    })
}

/// Reason why an object was not loaded.
enum Failure {
    Shape(&'static str),
    Load(Error),
}

fn load_object(
    name: &str,
    bytes: &[u8],
    options: &[u8],
    shared: &[(&str, BorrowedFd<'_>)],
) -> Result<Object, Failure> {
    let mut builder = ObjectBuilder::default();
    let builder = builder.name(name).map_err(Failure::Load)?;
    let mut object = builder.open_memory(bytes).map_err(Failure::Load)?;
    let is_constants = |name: &OsStr| name.as_encoded_bytes().ends_with(b".rodata");
    let mut constants = object.maps_mut().find(|map| is_constants(map.name()));
    let constants = constants.as_mut().and_then(|map| map.initial_value_mut());
    let constants = constants.filter(|bytes| bytes.len() == options.len());
    constants.ok_or(Failure::Shape(".rodata"))?.copy_from_slice(options);
    for mut map in object.maps_mut() {
        if let Some((_, made)) = shared.iter().find(|(name, _)| map.name() == *name) {
            map.reuse_fd(*made).map_err(Failure::Load)?;
        }
    }
    object.load().map_err(Failure::Load)
}

fn load_error(source: Error, messages: &Messages) -> BpfError {
    if let Some(log) = messages.verifier_log() {
        return BpfError::Verifier { release: probe::kernel_release(), log };
    }
    match source.kind() {
        ErrorKind::PermissionDenied => match probe::missing_capabilities() {
            Some(missing) => BpfError::NotPermitted { missing },
            None => BpfError::Refused { lockdown: probe::lockdown() },
        },
        _ => BpfError::Load { said: messages.last(), source },
    }
}

/// The table of these ports, [`MAX_PORTS`] at most, of different VLAN ids.
fn ports_entry(ports: &[(Option<u16>, PortEntry)], link: LinkForm) -> PortsEntry {
    let mut table = PortsEntry::zeroed();
    if link == LinkForm::Carded {
        table.link = LINK_CARDED;
    }
    // The first place stands for "undeclared".
    for (place, (vlan, port)) in (1..=u8::MAX).zip(ports) {
        table.place[usize::from(vlan.unwrap_or(0)) % VLAN_IDS] = place;
        table.ports[usize::from(place)] = *port;
    }
    table
}

fn port_entry(port: &PortRule) -> PortEntry {
    let mut entry = PortEntry {
        mac: port.mac,
        side: port.side.number(),
        services_count: port.services.len() as u8,
        services: Shared::zeroed(),
        overlays: Shared::zeroed(),
    };
    entry.overlays.iter_mut().zip(&port.overlays).for_each(|(place, port)| *place = *port);
    for (place, service) in entry.services.iter_mut().zip(&port.services) {
        let (first_port, last_port) = service.ports.unwrap_or_default();
        let names_ports = if service.ports.is_some() { SERVICE_PORTS } else { 0 };
        let flags = service.scope.0 | names_ports;
        *place = ServiceEntry { protocol: service.protocol, flags, first_port, last_port };
    }
    entry
}

/// IPv4 as IPv4-mapped IPv6.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A prefix among all addresses, IPv4-mapped ones among them: its first address and its length.
fn leading(prefix: &Prefix) -> (u128, u8) {
    let bits = match prefix.address {
        IpAddr::V4(_) => 96 + prefix.bits.min(32),
        IpAddr::V6(_) => prefix.bits.min(128),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    (u128::from_be_bytes(octets(prefix.address)) & mask, bits)
}

/// The prefixes without which another answer would be given, as keys and values.
///
/// 1. By family, address and length: who covers a prefix comes before it.
/// 2. Of equal ones the last stands, but inside wins over outside.
/// 3. One that says what the longest that covers it says (or nobody: outside) is left out.
fn needed(prefixes: &[(Prefix, Inside)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut sorted: Vec<(u128, u8, Inside)> = prefixes
        .iter()
        .map(|(prefix, inside)| {
            let (value, bits) = leading(prefix);
            (value, bits, *inside)
        })
        .collect();
    // `Yes` last among equals, so that it stands.
    sorted.sort_by_key(|(value, bits, inside)| (*value, *bits, *inside == Inside::Yes));
    let mut covering: Vec<(u128, u8, Inside)> = Vec::new();
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut sorted = sorted.into_iter().peekable();
    while let Some((value, bits, inside)) = sorted.next() {
        if sorted.peek().is_some_and(|(v, b, _)| (*v, *b) == (value, bits)) {
            continue;
        }
        let covers = |(v, b, _): &(u128, u8, Inside)| {
            *b == 0 || (value ^ *v).checked_shr(128 - u32::from(*b)) == Some(0)
        };
        while covering.last().is_some_and(|last| !covers(last)) {
            covering.pop();
        }
        if covering.last().map_or(Inside::No, |(_, _, inside)| *inside) == inside {
            continue;
        }
        covering.push((value, bits, inside));
        let address = AddressKey::read(&value.to_be_bytes());
        let key = PrefixKey { bits: bits.into(), address };
        let side = match inside {
            Inside::Yes => SIDE_PROTECTED,
            Inside::No => SIDE_UNPROTECTED,
        };
        entries.push((key.bytes(), u32::from(side).bytes()));
    }
    entries
}

/// The parameters with which a kind of table is made.
struct Kind {
    map: MapType,
    name: &'static str,
    key_bytes: u32,
    value_bytes: u32,
    flags: u32,
}

impl Kind {
    const PORTS: Kind = Kind {
        map: MapType::Array,
        name: "lockgate_ports",
        key_bytes: 4,
        value_bytes: size_of::<PortsEntry>() as u32,
        flags: 0,
    };
    const ADDRESSES: Kind = Kind {
        map: MapType::Hash,
        name: "lockgate_own",
        key_bytes: size_of::<AddressKey>() as u32,
        value_bytes: 4,
        flags: 0,
    };
    const PREFIXES: Kind = Kind {
        map: MapType::LpmTrie,
        name: "lockgate_inside",
        key_bytes: size_of::<PrefixKey>() as u32,
        value_bytes: 4,
        flags: BPF_F_NO_PREALLOC,
    };
    const CARRIED_SAS: Kind = Kind {
        map: MapType::Hash,
        name: "lockgate_esp",
        key_bytes: size_of::<CarriedSaKey>() as u32,
        value_bytes: 4,
        flags: 0,
    };
}

/// A slot of the program that holds a table, replaced whole.
struct Table {
    slot: MapHandle,
    what: &'static str,
    /// The entries in force; `None`: nothing.
    entries: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Table {
    fn new(slot: MapHandle, what: &'static str) -> Table {
        Table { slot, what, entries: None }
    }

    /// Builds a table and puts it in place by one pointer; does nothing if it is the same.
    fn publish(&mut self, kind: &Kind, entries: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), BpfError> {
        if self.entries.as_ref() == Some(&entries) {
            return Ok(());
        }
        let put = || {
            let options = bpf_map_create_opts {
                sz: size_of::<bpf_map_create_opts>() as _,
                map_flags: kind.flags,
                ..Default::default()
            };
            let size = entries.len().max(1) as u32;
            let (key, value) = (kind.key_bytes, kind.value_bytes);
            let table = MapHandle::create(kind.map, Some(kind.name), key, value, size, &options)?;
            for (key, value) in &entries {
                table.update(key, value, MapFlags::ANY)?;
            }
            let table = table.as_fd().as_raw_fd().to_ne_bytes();
            self.slot.update(&[0; 4], &table, MapFlags::ANY)
        };
        put().map_err(|source| BpfError::Table { table: self.what, source })?;
        self.entries = Some(entries);
        Ok(())
    }

    fn withdraw(&mut self) -> Result<(), BpfError> {
        let done = absent_is_fine(self.slot.delete(&[0; 4]));
        done.map_err(|source| BpfError::Table { table: self.what, source })?;
        self.entries = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    /// Returns the side of an address, by looking at every prefix.
    fn is_inside(prefixes: &[(u128, u8, Inside)], address: u128) -> Inside {
        let covers =
            |bits: u8, value: u128| bits == 0 || (address ^ value) >> (128 - u32::from(bits)) == 0;
        let covering = prefixes.iter().filter(|(value, bits, _)| covers(*bits, *value));
        let best = covering.max_by_key(|(_, bits, inside)| (*bits, *inside == Inside::Yes));
        best.map_or(Inside::No, |(_, _, inside)| *inside)
    }

    proptest! {
        #[test]
        fn prefixes_that_are_left_out_change_no_answer(
            list in proptest::collection::vec((0u32..64, 24u8..33, any::<bool>()), 0..40),
        ) {
            // Sixteen /30 at most, all within one /26: they nest and repeat.
            let inside = |yes| if yes { Inside::Yes } else { Inside::No };
            let given: Vec<(Prefix, Inside)> = list
                .iter()
                .map(|(low, bits, yes)| {
                    let address = Ipv4Addr::from(0x0a00_0000 + low).into();
                    (Prefix { address, bits: *bits }, inside(*yes))
                })
                .collect();
            let plain: Vec<(u128, u8, Inside)> = given
                .iter()
                .map(|(prefix, inside)| {
                    (u128::from_be_bytes(octets(prefix.address)), 96 + prefix.bits, *inside)
                })
                .collect();
            let kept: Vec<(u128, u8, Inside)> = needed(&given)
                .into_iter()
                .map(|(key, value)| {
                    let PrefixKey { bits, address } = PrefixKey::read(&key);
                    let inside = inside(u32::read(&value) == u32::from(SIDE_PROTECTED));
                    let address = u128::from_be_bytes(address.bytes().try_into().unwrap());
                    (address, bits as u8, inside)
                })
                .collect();
            prop_assert!(kept.len() <= given.len());
            for low in 0..300u32 {
                let address = u128::from_be_bytes(octets(Ipv4Addr::from(0x0a00_0000 + low).into()));
                prop_assert_eq!(is_inside(&kept, address), is_inside(&plain, address));
            }
        }
    }

    #[test]
    fn routes_to_the_world_need_no_room() {
        let world = |i: u32| Prefix { address: Ipv4Addr::from(i << 8).into(), bits: 24 };
        let mut all: Vec<_> = (0..100_000).map(|i| (world(i), Inside::No)).collect();
        all.push((Prefix { address: Ipv4Addr::UNSPECIFIED.into(), bits: 0 }, Inside::No));
        assert_eq!(needed(&all), Vec::new());
        all.push((Prefix { address: Ipv4Addr::new(0, 1, 0, 0).into(), bits: 16 }, Inside::Yes));
        // One inside, and the 256 holes in it.
        assert_eq!(needed(&all).len(), 257);
    }

    #[test]
    fn the_verifier_has_little_to_do() {
        let steering = match Steering::load(1, 1) {
            Ok(steering) => steering,
            Err(error @ (BpfError::NotPermitted { .. } | BpfError::Refused { .. })) => {
                return eprintln!("SKIPPED: the verifier's work: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let id = Program::id_from_fd(steering.program().unwrap().as_fd()).unwrap();
        let mut programs = libbpf_rs::query::ProgInfoIter::default();
        let verified = programs.find(|program| program.id == id).unwrap().verified_insns;
        // A million is the kernel's limit, and takes seconds: a restart has one for all netdevs.
        assert!((1..50_000).contains(&verified), "{verified} instructions");
    }

    #[test]
    fn without_room_for_the_mark_a_frame_is_dropped_and_counted() {
        let steering = match Steering::load(1, 1) {
            Ok(steering) => steering,
            Err(error @ (BpfError::NotPermitted { .. } | BpfError::Refused { .. })) => {
                return eprintln!("SKIPPED: no room for the mark: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        // Metadata is there already, as much as the kernel allows.
        for metadata in (4..=252u32).rev().step_by(4) {
            let frame = vec![0xff; metadata as usize + 60];
            // struct xdp_md: data, data_end, data_meta, then what stays zero.
            let context = [metadata, frame.len() as u32, 0, 0, 0, 0];
            let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let input = ProgramInput {
                data_in: Some(&frame),
                context_in: Some(&mut context),
                ..ProgramInput::default()
            };
            let before = steering.counters().unwrap();
            let program = steering.object.progs_mut().find(|p| p.name() == PROGRAM).unwrap();
            let Ok(output) = program.test_run(input) else { continue };
            assert_eq!(output.return_value, 1, "XDP_DROP");
            let after = steering.counters().unwrap();
            assert_eq!(after.received(), before.received() + 1);
            return assert_eq!(after.of(Counter::MarkFailed), 1, "with {metadata} bytes");
        }
        panic!("the kernel takes no metadata");
    }
}
