//! The types and numbers shared with the programs in `c/`: the only place where they stand.
//!
//! `build.rs` compiles this file, too, and writes `lockgate.h` from it, with the headers of crate
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
/// SAs of a netdev whose packets Linux opens, at most.
pub const MAX_CARRIED_SAS: usize = 4096;
/// Receive queues of a netdev at most.
pub const MAX_QUEUES: u32 = 64;

/// Answers of XDP.
pub const XDP_ACTIONS: u32 = 5;
/// Tiers that a frame may go on to, and the place of the one of overlays.
pub(crate) const TIERS: u32 = 1;
pub(crate) const TIER_OVERLAY: u32 = 0;
/// Overlays at most.
pub const MAX_TIER_OVERLAYS: u32 = 64;
/// Entrances of an overlay that the kernel tier knows; what comes to others is the workers'.
pub const MAX_ENTRANCES: usize = 4;
/// Netdevs that overlay packets leave by at most.
pub const MAX_EXITS: usize = 256;

/// Values of [`OverlayEntry::kind`]; no packet is of the first.
pub(crate) const KIND_CLOSED: u16 = 0;
pub(crate) const KIND_VXLAN: u16 = 1;
pub(crate) const KIND_GENEVE: u16 = 2;
/// Values of [`NetworkEntry::state`]: packets of the network are answered; or those of which the
/// tier has the verdict of the network's groups on their flow.
pub(crate) const NETWORK_OPEN: u32 = 1;
pub(crate) const NETWORK_ASKS: u32 = 2;
/// Values of [`FlowEntry::verdict`].
pub(crate) const VERDICT_PERMIT: u32 = 1;
pub(crate) const VERDICT_DROP: u32 = 2;
/// Places of a bucket of an index.
pub(crate) const BUCKET_PLACES: usize = 8;
/// The factor of an index's hash, which is Knuth's for MMIX.
pub(crate) const HASH_FACTOR: u64 = 6_364_136_223_846_793_005;
/// Value of [`WayEntry::state`]: packets may leave by it.
pub(crate) const WAY_OPEN: u32 = 1;

/// Values of [`SampleEntry::answer`].
pub(crate) const SAMPLE_SENT: u32 = 1;
pub(crate) const SAMPLE_DROPPED: u32 = 2;
pub(crate) const SAMPLE_ANSWERED: u32 = 3;
/// Value of [`SampleEntry::flow`] where no verdict on the flow was asked for.
pub(crate) const NO_FLOW: u32 = u32::MAX;

/// Value of [`PortsEntry::link`]: each frame begins with the header of an emulated card.
pub(crate) const LINK_CARDED: u16 = 1;

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
/// Bits of the value of a carried network: Linux seals what goes there, opens what comes from it.
pub(crate) const CARRIED_OUT: u32 = 1;
pub(crate) const CARRIED_IN: u32 = 2;

/// VLAN ids; untagged counts as 0.
pub(crate) const VLAN_IDS: usize = 4096;

/// Bytes that the generator of traffic writes at the beginning of a frame.
pub(crate) const HEADER_BYTES: usize = 60;
/// Bytes that the generator of overlay packets writes behind them: up to the end of the inner IP
/// header.
pub(crate) const TENANT_BYTES: usize = 28;
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
    /// Transmitted: an overlay packet, addressed to the host of its destination. Handed to the
    /// driver, that is: what it then loses is in its own statistics.
    Transmitted "transmitted"
    /// Transmitted: the answer to a tenant that asked for a link address.
    ArpAnswered "arp_answered"
    /// Dropped: the groups of a virtual network refuse the flow of the tenant's packet.
    VerdictDropped "verdict_dropped"
    /// Dropped: the netdev is of an emulated card, and the frame has no header of the card.
    NoCardHeader "no_card_header"
    /// To Linux: a packet of a peer whose SAs Linux has, for a card that does ESP under Linux.
    PassedCarried "passed_carried"
}

macro_rules! misses {
    ($($(#[doc = $meaning:literal])+ $variant:ident $name:literal)+) => {
        /// The reason why the kernel tier left an overlay packet to the workers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Miss {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl Miss {
            /// All, in the order of their numbers.
            pub const ALL: [Miss; MISSES] = [$(Miss::$variant,)+];

            /// Returns the reason's name in figures and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Miss::$variant => $name,)+ }
            }
        }

        pub(crate) const MISSES: usize = [$($name),+].len();
    };
}

misses! {
    /// It is one that only workers judge: malformed, a fragment, with IP options or padding, IPv6,
    /// a TCP segment that does more than acknowledge, or a question that is none.
    Unusual "unusual"
    /// The lease has run out: the daemon hangs, or the tier is closed.
    Lease "lease"
    /// It is to no entrance.
    Entrance "entrance"
    /// Its network is unknown, or the workers' alone.
    Network "network"
    /// The sender is not in the kernel's table, or not where it says.
    Sender "sender"
    /// The destination is not in the kernel's table.
    Endpoint "endpoint"
    /// No way to the destination's host is known, or it is too narrow.
    Way "way"
    /// Groups judge what is in its network, and their verdict on its flow is not in the kernel's
    /// table, or of an earlier generation of their rules.
    Flow "flow"
}

shared_struct! {
    /// Frames by what the program did with them, summed over the cores, since it was loaded.
    ///
    /// The program counts each frame once, by its end; there is no separate count of arrivals. So
    /// `received()` is the sum of all [`Counter`]s by construction, under traffic too, and nothing
    /// can be missing but the frames that are in the program right now.
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
        /// Number of the process's tier, and seed of its indexes.
        pub(crate) process: u32,
        /// The process's number of the netdev.
        pub(crate) netdev: u16,
        pub(crate) reserved: u16,
        /// Numbers of the last buckets of the tier's indexes.
        pub(crate) endpoint_mask: u32,
        pub(crate) flow_mask: u32,
    }
}

shared_struct! {
    /// A bucket of an index, from keys to slots.
    pub(crate) struct BucketEntry as "lockgate_bucket" {
        /// Tag of a key in the upper half, its slot in the lower; 0: empty.
        pub(crate) places: [u64; BUCKET_PLACES],
    }
}

shared_struct! {
    /// The time until which the kernel tier's tables hold.
    pub(crate) struct LeaseEntry as "lockgate_lease" {
        /// Nanoseconds of `CLOCK_MONOTONIC`.
        pub(crate) until_ns: u64,
        /// Number of the process's tier: what another one wrote does not count.
        pub(crate) incarnation: u32,
        /// A packet that is answered draws a number of 32 bits, and is sampled if it is not above
        /// this; 0: none is.
        pub(crate) sampled: u32,
    }
}

shared_struct! {
    /// A packet that was answered, by what, as the audit is told.
    pub(crate) struct SampleEntry as "lockgate_sample" {
        /// Nanoseconds of `CLOCK_MONOTONIC_COARSE`.
        pub(crate) at_ns: u64,
        /// One of `SAMPLE_*`.
        pub(crate) answer: u32,
        /// The tenant's flow, as in [`FlowKeyEntry`]; of a question for a link address the two
        /// addresses.
        pub(crate) vni: u32,
        pub(crate) source: u32,
        pub(crate) destination: u32,
        pub(crate) protocol: u32,
        pub(crate) upper: u32,
        /// Number of the network, and its generation at that moment; 0: it was open.
        pub(crate) network: u32,
        pub(crate) generation: u32,
        /// Slot of the verdict on the flow, or `NO_FLOW`.
        pub(crate) flow: u32,
        /// The claim that the verdict was written with, as in [`FlowEntry`].
        pub(crate) rules_domain: u32,
        pub(crate) rules_generation: u32,
        pub(crate) claim: u32,
        /// Slot of the endpoint that was sent to, or asked for; and what its record said.
        pub(crate) endpoint: u32,
        pub(crate) host: u32,
        pub(crate) mac: [u8; 6],
        pub(crate) reserved: u16,
    }
}

shared_struct! {
    /// An overlay, and where its packets come in.
    pub(crate) struct OverlayEntry as "lockgate_overlay" {
        /// Entrances, network byte order; 0: none.
        pub(crate) entrances: [u32; MAX_ENTRANCES],
        /// Index of the netdev that they come by.
        pub(crate) ifindex: u32,
        /// UDP port.
        pub(crate) udp_port: u16,
        /// Tag of the port on the netdev.
        pub(crate) vlan: u16,
        /// One of `KIND_*`.
        pub(crate) kind: u16,
        /// 1: packets with a UDP checksum are the workers', which may have to complete it.
        pub(crate) unsummed: u16,
    }
}

shared_struct! {
    /// A virtual network.
    pub(crate) struct NetworkEntry as "lockgate_network" {
        pub(crate) vni: u32,
        /// `NETWORK_OPEN`, `NETWORK_ASKS`, or 0: closed.
        pub(crate) state: u32,
        /// Number of its overlay.
        pub(crate) overlay: u32,
        /// Generation of the verdicts on its flows that hold; 0: none does.
        pub(crate) generation: u32,
    }
}

shared_struct! {
    /// Key of a flow in a network with groups.
    pub(crate) struct FlowKeyEntry as "lockgate_flow_key" {
        pub(crate) vni: u32,
        /// IPv4, network byte order.
        pub(crate) source: u32,
        pub(crate) destination: u32,
        pub(crate) protocol: u32,
        /// The two ports as they are in the packet, or type and code of ICMP and two zeros.
        pub(crate) upper: u32,
    }
}

shared_struct! {
    /// The verdict of a network's groups on a flow. It repeats its key, as an endpoint does.
    pub(crate) struct FlowEntry as "lockgate_flow" {
        pub(crate) vni: u32,
        pub(crate) source: u32,
        pub(crate) destination: u32,
        pub(crate) protocol: u32,
        pub(crate) upper: u32,
        /// Generation of the network's rules that it was given by.
        pub(crate) generation: u32,
        /// Number of the network.
        pub(crate) network: u32,
        /// One of `VERDICT_*`.
        pub(crate) verdict: u32,
        /// The claim in the marks of its packets that go up: domain and generation of the walk's
        /// rules, and `wire::Claim`; 0: none.
        pub(crate) rules_domain: u32,
        pub(crate) rules_generation: u32,
        pub(crate) claim: u32,
    }
}

shared_struct! {
    /// The use of a verdict on a flow: of one core in the program's map.
    pub(crate) struct FlowUseEntry as "lockgate_flow_use" {
        pub(crate) packets: u64,
        /// Of the tenant's IP packets.
        pub(crate) bytes: u64,
        /// The moment of the last packet: nanoseconds of `CLOCK_MONOTONIC_COARSE`.
        pub(crate) last_ns: u64,
    }
}

shared_struct! {
    /// An endpoint. It repeats its key: see `endpoint_index` in `overlay.bpf.c`.
    pub(crate) struct EndpointEntry as "lockgate_endpoint" {
        pub(crate) vni: u32,
        /// Network byte order, as the host's.
        pub(crate) address: u32,
        pub(crate) host: u32,
        /// Way of packets to it; 0: none.
        pub(crate) way: u32,
        /// Way of answers to it; 0: none.
        pub(crate) answers: u32,
        /// Number of its network.
        pub(crate) network: u32,
        pub(crate) mac: [u8; 6],
        pub(crate) reserved: u16,
    }
}

shared_struct! {
    /// The way to a host.
    pub(crate) struct WayEntry as "lockgate_way" {
        /// `WAY_OPEN`, or 0: closed.
        pub(crate) state: u32,
        /// Address of the host, network byte order.
        pub(crate) host: u32,
        pub(crate) ifindex: u32,
        /// Bytes of the largest IP packet that it takes.
        pub(crate) mtu: u32,
        /// Tag of the port that it leaves by.
        pub(crate) vlan: u16,
        pub(crate) destination: [u8; 6],
        pub(crate) source: [u8; 6],
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
        /// `LINK_CARDED`, or 0: frames are as they were on the wire.
        pub(crate) link: u16,
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
    /// Key of the table of SAs whose packets Linux opens.
    pub(crate) struct CarriedSaKey as "lockgate_carried_sa" {
        /// Destination of the packets.
        pub(crate) address: AddressKey,
        /// Network byte order.
        pub(crate) spi: u32,
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
        /// The bytes behind the header in an overlay packet.
        pub(crate) tenant: [u8; TENANT_BYTES],
        /// Number of overlay packets, of each 256, between endpoints of the second half.
        pub(crate) cold: u16,
    }
}

shared_struct! {
    /// Load-time constants of the program that addresses overlay packets to one constant endpoint.
    pub(crate) struct ConstantOptions as "lockgate_constant_options" {
        /// Address of the host, network byte order.
        pub(crate) host: u32,
        /// Link addresses of the host, of the port that leads there, and of the tenant.
        pub(crate) destination: [u8; 6],
        pub(crate) source: [u8; 6],
        pub(crate) mac: [u8; 6],
        pub(crate) reserved: u16,
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
