//! The types and numbers shared with the programs in `c/`: the only place where they stand.
//!
//! `build.rs` compiles this file, too, and writes `lockgate.h` from it, with the mark of crate
//! `wire`. A field or number that one side lacks, or takes for another, does not compile. The other
//! way round would leave more to write twice: BTF, which libbpf-cargo makes Rust types from, has no
//! `#define`, and of the types only those that maps and functions name, so neither the mark nor the
//! tables; and bindgen needs libclang and knows no names of counters for operators.
//!
//! To share another type or number, add it to the list in `build.rs`.

use wire::shared_struct;

/// Ports of a netdev at most.
pub const MAX_PORTS: usize = 255;
/// Services of a port at most: 32 of `allow_host`, and IKE apart from the rest of an entry.
pub const MAX_SERVICES: usize = 34;
/// UDP ports of overlays on a port at most.
pub const MAX_OVERLAYS: usize = 4;
/// Own addresses at most.
pub const MAX_ADDRESSES: usize = 4096;
/// Prefixes at most, after those that change nothing have been left out.
pub const MAX_PREFIXES: usize = 65_536;
/// Receive queues of a netdev at most.
pub const MAX_QUEUES: u32 = 64;

/// Values of [`PortEntry::side`], and of the table of prefixes.
pub(crate) const SIDE_PROTECTED: u8 = 1;
pub(crate) const SIDE_UNPROTECTED: u8 = 2;

/// Bits of [`ServiceEntry::flags`]: only these ports; without it the whole protocol.
pub(crate) const SERVICE_PORTS: u8 = 1;
/// Bit of a service whose packets to an own address are passed.
pub(crate) const SERVICE_TO_US: u8 = 2;
/// Bit of a service whose packets to a group or a broadcast address are passed.
pub(crate) const SERVICE_TO_GROUPS: u8 = 4;
/// Bit of a service whose packets are passed in fragments, too.
pub(crate) const SERVICE_FRAGMENTS: u8 = 8;

/// Bits of the value of an own address: it is on a protected port, on an unprotected one.
pub(crate) const OWN_PROTECTED: u32 = 1;
pub(crate) const OWN_UNPROTECTED: u32 = 2;

/// VLAN ids; untagged counts as 0.
pub(crate) const VLAN_IDS: usize = 4096;

/// Bytes that the generator of traffic writes at the beginning of a frame.
pub(crate) const HEADER_BYTES: usize = 60;
/// Flows of the generator at most.
pub(crate) const MAX_FLOWS: usize = 0x4000;

macro_rules! counters {
    ($($(#[doc = $meaning:literal])+ $variant:ident $name:literal)+) => {
        /// The fate of a frame: each counts once, in one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Counter {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl Counter {
            /// All, in the order of their numbers.
            pub const ALL: [Counter; COUNTERS] = [$(Counter::$variant,)+];

            /// Returns the counter's name in figures and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }
        }

        pub(crate) const COUNTERS: usize = [$($name),+].len();
    };
}

counters! {
    /// To Linux: to another station, or a group of a protected link.
    PassedNotToUs "passed_not_to_us"
    /// To Linux: ARP; on an unprotected port also neighbour discovery.
    PassedArpNd "passed_arp_nd"
    /// To Linux: to the gateway on a protected port, neither IP nor ARP.
    PassedNotIp "passed_not_ip"
    /// To Linux: to an address of the gateway, on a protected port.
    PassedToHost "passed_to_host"
    /// To Linux: to the gateway on an unprotected port, listed by `allow_host`.
    PassedAllowHost "passed_allow_host"
    /// Redirected into a worker's socket. What the socket then refused (no frame in the fill ring,
    /// rx ring full, too long) is in the socket's own statistics.
    ToWorker "to_worker"
    /// Dropped: the queue that it came by has no socket.
    NoSocket "no_socket"
    /// Dropped: there was no room in front of it for the mark.
    MarkFailed "mark_failed"
}

shared_struct! {
    /// Frames by what the program did with them, summed over the cores, since it was loaded.
    ///
    /// The program counts each frame once, by its end; there is no separate count of arrivals. So
    /// `received() == passed() + to_worker + no_socket + mark_failed` holds by construction, under
    /// traffic too, and nothing can be missing but the frames that are in the program right now.
    #[derive(PartialEq, Eq, Debug, Default)]
    pub struct KernelCounters as "lockgate_counters" {
        /// Frames by [`Counter`]; of one core in the program's map.
        pub(crate) frames: [u64; COUNTERS],
    }
}

shared_struct! {
    /// Load-time constants of the steering program.
    pub(crate) struct Options as "lockgate_options" {
        /// Number of the attachment.
        pub(crate) incarnation: u32,
        /// The process's number of the netdev.
        pub(crate) netdev: u16,
        pub(crate) reserved: u16,
    }
}

shared_struct! {
    /// One entry of `allow_host`, as far as no policy may want its packets.
    pub(crate) struct ServiceEntry as "lockgate_service" {
        pub(crate) protocol: u8,
        /// Bits of `SERVICE_*`.
        pub(crate) flags: u8,
        pub(crate) first_port: u16,
        /// Included.
        pub(crate) last_port: u16,
    }
}

shared_struct! {
    /// A port of the netdev.
    pub(crate) struct PortEntry as "lockgate_port" {
        pub(crate) mac: [u8; 6],
        /// One of `SIDE_*`.
        pub(crate) side: u8,
        pub(crate) services_count: u8,
        pub(crate) services: [ServiceEntry; MAX_SERVICES],
        /// UDP ports of overlays, whose packets to us are a worker's; 0: none.
        pub(crate) overlays: [u16; MAX_OVERLAYS],
    }
}

shared_struct! {
    /// All ports of the netdev.
    pub(crate) struct PortsEntry as "lockgate_ports" {
        /// Place in `ports` by VLAN id; 0: undeclared.
        pub(crate) place: [u8; VLAN_IDS],
        pub(crate) ports: [PortEntry; MAX_PORTS + 1],
    }
}

shared_struct! {
    /// An address, IPv4 as IPv4-mapped IPv6: key of the table of own addresses.
    pub(crate) struct AddressKey as "lockgate_address" {
        /// Network byte order; not octets, because the program compares words.
        pub(crate) words: [u32; 4],
    }
}

shared_struct! {
    /// Key of the table of prefixes.
    pub(crate) struct PrefixKey as "lockgate_prefix" {
        /// Leading bits of the address; 96 + n for IPv4.
        pub(crate) bits: u32,
        pub(crate) address: AddressKey,
    }
}

shared_struct! {
    /// Load-time constants of the generator.
    pub(crate) struct TrafficOptions as "lockgate_traffic_options" {
        /// Link, IP and UDP header, and what follows.
        pub(crate) header: [u8; HEADER_BYTES],
        /// First byte of the UDP ports.
        pub(crate) ports_at: u16,
        /// Flows - 1.
        pub(crate) flow_mask: u16,
    }
}

shared_struct! {
    /// Frames that a sink has dropped.
    #[derive(PartialEq, Eq, Debug, Default)]
    pub struct Received as "lockgate_received" {
        /// Frames.
        pub packets: u64,
        /// Bytes of the frames.
        pub bytes: u64,
    }
}
