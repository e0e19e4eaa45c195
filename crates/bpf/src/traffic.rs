//! Traffic for benches, made and counted inside the kernel: UDP frames in many flows out of a
//! netdev, faster than a socket sends them, and a sink that counts and drops them.
//!
//! The kernel runs the generator over frames of its own (`bpf_prog_test_run` with
//! `BPF_F_TEST_XDP_LIVE_FRAMES`) and sends each by the netdev, as if that had received it and
//! answered `XDP_TX`. The netdev must run an XDP program (a [`Sink`] does), and the veth at its
//! other end must run one or have GRO on. What the other end has no room for is lost.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use libbpf_rs::libbpf_sys::{BPF_F_TEST_XDP_LIVE_FRAMES, xdp_md};
use libbpf_rs::{MapCore, MapFlags, Object, Program, ProgramInput};

use wire::shared::Shared;

use crate::attach::{ModeChoice, attach_first};
pub use crate::layout::Received;
use crate::layout::{ConstantOptions, HEADER_BYTES, MAX_FLOWS, TENANT_BYTES, TrafficOptions};
use crate::steering::{Aligned, load};
use crate::{Attached, BpfError, Steering};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/traffic.bpf.o")));
static CONSTANT_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/constant.bpf.o")));

const GENERATOR: &str = "lockgate_generate";
const OVERLAY_GENERATOR: &str = "lockgate_generate_overlay";
const CONSTANT: &str = "lockgate_constant";
const SINK: &str = "lockgate_sink";

/// Bytes of a frame at least: so many the generator writes.
pub const LEAST_BYTES: usize = HEADER_BYTES;
/// Bytes of a frame at most: it must fit a page with the kernel's own room.
pub const MOST_BYTES: usize = 3400;
/// Flows at most.
pub const MOST_FLOWS: usize = MAX_FLOWS;

/// Makes copies of one UDP frame in many flows: source and destination port differ, in such a way
/// that the checksum stays right.
pub struct Generator {
    object: Object,
    frame: Vec<u8>,
    program: &'static str,
}

impl Generator {
    /// A generator of copies of `frame`, a whole Ethernet frame whose UDP ports are at byte
    /// `ports_at` and count as 0 in its checksum, in `flows` flows (a power of two).
    ///
    /// # Errors
    /// [`BpfError::Template`], and as [`Steering::load`](crate::Steering::load).
    pub fn load(frame: &[u8], ports_at: usize, flows: usize) -> Result<Generator, BpfError> {
        let bytes = frame.len();
        let fits = (LEAST_BYTES..=MOST_BYTES).contains(&bytes) && ports_at <= LEAST_BYTES - 4;
        if !fits || !ports_at.is_multiple_of(2) || !flows.is_power_of_two() || flows > MOST_FLOWS {
            return Err(BpfError::Template { bytes, ports_at, flows });
        }
        let options = TrafficOptions {
            header: Shared::read(frame),
            ports_at: ports_at as u16,
            flow_mask: flows as u16 - 1,
            tenant: Shared::zeroed(),
            cold: 0,
        };
        let object = load("traffic", &OBJECT.0, &options.bytes(), &[])?;
        Ok(Generator { object, frame: frame.to_vec(), program: GENERATOR })
    }

    /// A generator of overlay packets between pairs of endpoints (a power of two, at most half as
    /// many as there may be flows) that are drawn at random: of the inner IPv4 addresses the last
    /// two bytes are written, a number for the destination and its complement for the source.
    /// `frame` has VXLAN or Geneve without options in IPv4, its inner checksum as if those bytes
    /// were 0 and 0xffff. Of 256 packets `cold` are between pairs with numbers from `pairs` on.
    ///
    /// # Errors
    /// As [`load`](Generator::load).
    pub fn load_overlay(frame: &[u8], pairs: usize, cold: u16) -> Result<Generator, BpfError> {
        let bytes = frame.len();
        let least = HEADER_BYTES + TENANT_BYTES;
        let fits = (least..=MOST_BYTES).contains(&bytes);
        if !fits || !pairs.is_power_of_two() || pairs > MOST_FLOWS / 2 {
            return Err(BpfError::Template { bytes, ports_at: 0, flows: pairs });
        }
        let options = TrafficOptions {
            header: Shared::read(frame),
            ports_at: 0,
            flow_mask: pairs as u16 - 1,
            tenant: Shared::read(&frame[HEADER_BYTES..]),
            cold,
        };
        let object = load("traffic", &OBJECT.0, &options.bytes(), &[])?;
        Ok(Generator { object, frame: frame.to_vec(), program: OVERLAY_GENERATOR })
    }

    /// Puts the program in front of a netdev that carries nothing: a program that is attached
    /// somewhere is run at once, another one only after the kernel has waited for all cores, at
    /// each [`Generator::send`].
    ///
    /// # Errors
    /// As [`Steering::attach`](crate::Steering::attach).
    pub fn hold(&self, ifindex: u32) -> Result<Attached, BpfError> {
        attach(&self.object, self.program, ifindex)
    }

    /// Makes `count` frames and sends them by a netdev of the calling thread's namespace, as fast
    /// as its core can. How many arrive, the receiver knows.
    ///
    /// # Errors
    /// [`BpfError::Run`]: the netdev or its other end runs no XDP, among others.
    pub fn send(&self, ifindex: u32, count: u32) -> Result<(), BpfError> {
        let program = self.object.progs_mut().find(|program| program.name() == self.program);
        let program = program.ok_or(BpfError::Shape { part: self.program })?;
        let length = self.frame.len() as u32;
        let context = xdp_md { data_end: length, ingress_ifindex: ifindex, ..Default::default() };
        let input = ProgramInput {
            context_in: Some(&mut context_bytes(&context)),
            data_in: Some(&self.frame),
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            repeat: count,
            ..ProgramInput::default()
        };
        program.test_run(input).map(drop).map_err(|source| BpfError::Run { source })
    }
}

/// The kernel's `struct xdp_md`: its fields in their order.
fn context_bytes(context: &xdp_md) -> [u8; size_of::<xdp_md>()] {
    let xdp_md { data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex } =
        *context;
    let fields = [data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex];
    let mut bytes = [0; size_of::<xdp_md>()];
    for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    bytes
}

/// Counts and drops what a [`Generator`] made, and passes everything else to Linux.
pub struct Sink {
    object: Object,
}

impl Sink {
    /// A sink that has counted nothing.
    ///
    /// # Errors
    /// As [`Steering::load`](crate::Steering::load).
    pub fn load() -> Result<Sink, BpfError> {
        let object = load("traffic", &OBJECT.0, &TrafficOptions::zeroed().bytes(), &[])?;
        Ok(Sink { object })
    }

    /// Puts it in front of a netdev of the calling thread's namespace that runs no program. It
    /// stays there when the process ends.
    ///
    /// # Errors
    /// As [`Steering::attach`](crate::Steering::attach).
    pub fn attach(&self, ifindex: u32) -> Result<Attached, BpfError> {
        attach(&self.object, SINK, ifindex)
    }

    /// Has it run after each frame of a steering program with an answer of XDP's:
    /// [`Steering::set_after`](crate::Steering::set_after).
    ///
    /// # Errors
    /// As there.
    pub fn look_on(&self, steering: &Steering, answer: u32) -> Result<(), BpfError> {
        let named = |program: &Program<'_>| program.name() == SINK;
        let program = self.object.progs().find(named).ok_or(BpfError::Shape { part: SINK })?;
        steering.set_after(answer, program.as_fd())
    }

    /// Returns the count of dropped frames. Cost: a system call.
    ///
    /// # Errors
    /// [`BpfError::Counters`].
    pub fn received(&self) -> Result<Received, BpfError> {
        let map = self.object.maps().find(|map| map.name() == "received");
        let map = map.ok_or(BpfError::Shape { part: "received" })?;
        let cores = map.lookup_percpu(&[0; 4], MapFlags::ANY);
        let cores = cores.map_err(|source| BpfError::Counters { source })?;
        let mut sum = Received::default();
        for core in cores.unwrap_or_default() {
            let Received { packets, bytes } = Received::read(&core);
            sum.packets += packets;
            sum.bytes += bytes;
        }
        Ok(sum)
    }
}

/// Addresses every overlay packet to one endpoint and sends it out by a netdev: what the kernel
/// tier is compared with.
pub struct Constant {
    _object: Object,
}

/// The endpoint that a [`Constant`] knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstantEndpoint {
    /// Its host.
    pub host: Ipv4Addr,
    /// Link addresses of the host, and of the port that leads there.
    pub destination: [u8; 6],
    /// See `destination`.
    pub source: [u8; 6],
    /// Link address of the tenant.
    pub mac: [u8; 6],
}

impl Constant {
    /// The program, in front of the netdev `from`, sending by the netdev `to`, both of the calling
    /// thread's namespace.
    ///
    /// # Errors
    /// As [`Steering::load`](crate::Steering::load) and
    /// [`Steering::attach`](crate::Steering::attach).
    pub fn attach(endpoint: ConstantEndpoint, from: u32, to: u32) -> Result<Constant, BpfError> {
        let ConstantEndpoint { host, destination, source, mac } = endpoint;
        let host = u32::from_ne_bytes(host.octets());
        let options = ConstantOptions { host, destination, source, mac, reserved: 0 };
        let object = load("constant", &CONSTANT_OBJECT.0, &options.bytes(), &[])?;
        let map = object.maps().find(|map| map.name() == "out");
        let map = map.ok_or(BpfError::Shape { part: "out" })?;
        map.update(&[0; 4], &to.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| BpfError::Table { table: "out", source })?;
        attach(&object, CONSTANT, from)?;
        Ok(Constant { _object: object })
    }
}

fn attach(object: &Object, name: &'static str, ifindex: u32) -> Result<Attached, BpfError> {
    let named = |program: &Program<'_>| program.name() == name;
    let program = object.progs().find(named).ok_or(BpfError::Shape { part: name })?;
    attach_first(ifindex, program.as_fd(), ModeChoice::Auto)?.ok_or(BpfError::Contended { ifindex })
}
