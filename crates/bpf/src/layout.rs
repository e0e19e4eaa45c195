//! The types shared with the program, byte by byte: `c/lockgate.h` in Rust.
//!
//! Values are written and read in host byte order by hand, so no memory is ever reinterpreted.

use std::mem::offset_of;

/// Ports of a device at most.
pub const MAX_PORTS: usize = 255;
/// Services of a port at most: 32 of `allow_host`, and IKE apart from the rest of an entry.
pub const MAX_SERVICES: usize = 34;
/// Own addresses at most.
pub const MAX_ADDRESSES: usize = 4096;
/// Prefixes at most, after those that change nothing have been left out.
pub const MAX_PREFIXES: usize = 65_536;
/// Receive queues of a device at most.
pub const MAX_QUEUES: u32 = 64;
/// Bytes of the mark in front of every frame that a socket receives.
pub const MARK_BYTES: usize = 32;

pub(crate) const SIDE_PROTECTED: u8 = 1;
pub(crate) const SIDE_UNPROTECTED: u8 = 2;

pub(crate) const SERVICE_PORTS: u8 = 1;
pub(crate) const SERVICE_TO_US: u8 = 2;
pub(crate) const SERVICE_TO_GROUPS: u8 = 4;
pub(crate) const SERVICE_FRAGMENTS: u8 = 8;

pub(crate) const OWN_PROTECTED: u32 = 1;
pub(crate) const OWN_UNPROTECTED: u32 = 2;

/// What happened to a frame: each counts once, in one of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counter {
    /// To Linux: to another station, or a group of a protected link.
    PassedNotToUs,
    /// To Linux: ARP; on an unprotected port also neighbour discovery.
    PassedArpNd,
    /// To Linux: to us on a protected port, neither IP nor ARP.
    PassedNotIp,
    /// To Linux: to an address of ours, on a protected port.
    PassedToHost,
    /// To Linux: on an unprotected port, listed by `allow_host`.
    PassedAllowHost,
    /// Redirected into a worker's socket. What the socket then refused (no frame in the fill ring,
    /// rx ring full, too long) is in the socket's own statistics.
    ToWorker,
    /// Dropped: the queue that it came by has no socket.
    NoSocket,
    /// Dropped: there was no room in front of it for the mark.
    MarkFailed,
}

impl Counter {
    /// All, in the order of the program's own enum.
    pub const ALL: [Counter; 8] = [
        Counter::PassedNotToUs,
        Counter::PassedArpNd,
        Counter::PassedNotIp,
        Counter::PassedToHost,
        Counter::PassedAllowHost,
        Counter::ToWorker,
        Counter::NoSocket,
        Counter::MarkFailed,
    ];

    /// Its name in figures and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Counter::PassedNotToUs => "passed_not_to_us",
            Counter::PassedArpNd => "passed_arp_nd",
            Counter::PassedNotIp => "passed_not_ip",
            Counter::PassedToHost => "passed_to_host",
            Counter::PassedAllowHost => "passed_allow_host",
            Counter::ToWorker => "to_worker",
            Counter::NoSocket => "no_socket",
            Counter::MarkFailed => "mark_failed",
        }
    }

    /// Whether the frame went to Linux.
    pub const fn is_pass(self) -> bool {
        matches!(
            self,
            Counter::PassedNotToUs
                | Counter::PassedArpNd
                | Counter::PassedNotIp
                | Counter::PassedToHost
                | Counter::PassedAllowHost
        )
    }
}

/// Frames by what the program did with them, summed over the cores, since it was loaded.
///
/// The program counts each frame once, by its end; there is no separate count of arrivals. So
/// `received() == passed() + to_worker + no_socket + mark_failed` holds by construction, under
/// traffic too, and nothing can be missing but the frames that are in the program right now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelCounters {
    frames: [u64; Counter::ALL.len()],
}

/// Bytes of one core's counters.
pub(crate) const COUNTERS_BYTES: usize = 8 * Counter::ALL.len();

impl KernelCounters {
    /// Frames that ended so.
    pub fn of(&self, counter: Counter) -> u64 {
        self.frames[counter as usize]
    }

    /// Frames left to Linux.
    pub fn passed(&self) -> u64 {
        Counter::ALL.into_iter().filter(|counter| counter.is_pass()).map(|c| self.of(c)).sum()
    }

    /// Frames that the program has seen.
    pub fn received(&self) -> u64 {
        self.frames.iter().sum()
    }

    /// Adds one core's counters, as the kernel hands them out.
    pub(crate) fn add(&mut self, core: &[u8]) {
        for (sum, bytes) in self.frames.iter_mut().zip(core.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*bytes));
        }
    }
}

/// VLAN ids, and bytes of `struct lockgate_ports` in front of the ports.
const VLAN_IDS: usize = 4096;

/// Bytes of `struct lockgate_ports`.
pub(crate) const PORTS_BYTES: usize = VLAN_IDS + (MAX_PORTS + 1) * size_of::<PortEntry>();

/// `struct lockgate_ports` with these ports, [`MAX_PORTS`] at most, of different VLAN ids.
pub(crate) fn ports_bytes(ports: &[(Option<u16>, PortEntry)]) -> Vec<u8> {
    let mut bytes = vec![0; PORTS_BYTES];
    let (places, entries) = bytes.split_at_mut(VLAN_IDS);
    // The first place stands for "undeclared".
    let entries = entries.chunks_exact_mut(size_of::<PortEntry>()).enumerate().skip(1);
    for ((vlan, port), (place, entry)) in ports.iter().zip(entries) {
        places[usize::from(vlan.unwrap_or(0)) % VLAN_IDS] = place as u8;
        entry.copy_from_slice(&port.bytes());
    }
    bytes
}

/// `struct lockgate_options`.
#[repr(C)]
pub(crate) struct Options {
    pub(crate) incarnation: u32,
    pub(crate) device: u16,
    pub(crate) reserved: u16,
}

impl Options {
    pub(crate) fn bytes(&self) -> [u8; size_of::<Options>()] {
        let [e0, e1, e2, e3] = self.incarnation.to_ne_bytes();
        let ([d0, d1], [r0, r1]) = (self.device.to_ne_bytes(), self.reserved.to_ne_bytes());
        [e0, e1, e2, e3, d0, d1, r0, r1]
    }
}

/// `struct lockgate_service`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ServiceEntry {
    pub(crate) protocol: u8,
    pub(crate) flags: u8,
    pub(crate) first_port: u16,
    pub(crate) last_port: u16,
}

/// `struct lockgate_port`.
#[repr(C)]
pub(crate) struct PortEntry {
    pub(crate) mac: [u8; 6],
    pub(crate) side: u8,
    pub(crate) services_count: u8,
    pub(crate) services: [ServiceEntry; MAX_SERVICES],
}

impl PortEntry {
    pub(crate) fn bytes(&self) -> [u8; size_of::<PortEntry>()] {
        let mut bytes = [0; size_of::<PortEntry>()];
        bytes[..6].copy_from_slice(&self.mac);
        bytes[6] = self.side;
        bytes[7] = self.services_count;
        let places = bytes[offset_of!(PortEntry, services)..].as_chunks_mut::<6>().0;
        for (place, service) in places.iter_mut().zip(&self.services) {
            let [f0, f1] = service.first_port.to_ne_bytes();
            let [l0, l1] = service.last_port.to_ne_bytes();
            *place = [service.protocol, service.flags, f0, f1, l0, l1];
        }
        bytes
    }
}

/// Bytes of `struct lockgate_prefix`.
pub(crate) const PREFIX_BYTES: usize = 20;

// The same numbers as at the foot of c/lockgate.h.
const _: () = {
    assert!(Counter::ALL.len() == 8);
    assert!(COUNTERS_BYTES == 64);
    assert!(size_of::<Options>() == 8);
    assert!(offset_of!(Options, device) == 4);
    assert!(size_of::<ServiceEntry>() == 6);
    assert!(offset_of!(ServiceEntry, first_port) == 2);
    assert!(size_of::<PortEntry>() == 212);
    assert!(offset_of!(PortEntry, side) == 6);
    assert!(offset_of!(PortEntry, services) == 8);
    assert!(PORTS_BYTES == 4096 + 256 * 212);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_numbered_as_the_program_numbers_them() {
        for (number, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, number, "{}", counter.name());
        }
    }

    #[test]
    fn counters_of_all_cores_are_summed() {
        let mut counters = KernelCounters::default();
        for core in 1..=2u64 {
            let bytes: Vec<u8> = (0..8u64).flat_map(|i| (core * 100 + i).to_ne_bytes()).collect();
            counters.add(&bytes);
        }
        assert_eq!(counters.of(Counter::PassedNotToUs), 300);
        assert_eq!(counters.of(Counter::MarkFailed), 314);
        assert_eq!(counters.passed(), 5 * 300 + 2 * (1 + 2 + 3 + 4));
        assert_eq!(counters.received(), 8 * 300 + 2 * 28);
    }
}
