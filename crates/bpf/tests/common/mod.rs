//! Tools that the tests of the steering program share: a gateway's rules, a socket, skipping.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use bpf::{Inside, LinkForm, PortRule, Prefix, Scope, Service, Side, Steering};

pub const NETDEV: u16 = 7;
pub const INCARNATION: u32 = 0xabcd_0042;
/// Link addresses of our ports, and of somebody else.
pub const LAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const DMZ_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const WAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// VLAN ids: the LAN is untagged.
pub const DMZ_VLAN: u16 = 12;
pub const WAN_VLAN: u16 = 20;

pub const ESP: u8 = 50;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;

/// Our addresses.
pub const OWN: [(&str, Side); 8] = [
    ("10.1.0.1", Side::Protected),
    ("2001:db8:1::1", Side::Protected),
    ("fe80::1", Side::Protected),
    ("169.254.3.4", Side::Protected),
    ("10.9.0.1", Side::Protected),
    ("192.0.2.1", Side::Unprotected),
    ("2001:db8:ff::1", Side::Unprotected),
    ("fe80::2", Side::Unprotected),
];

/// Routes: nested, and some to the world inside what is ours.
pub const ROUTES: [(&str, u8, Inside); 9] = [
    ("10.0.0.0", 8, Inside::Yes),
    ("10.2.0.0", 16, Inside::No),
    ("10.2.128.0", 17, Inside::Yes),
    ("10.2.200.1", 32, Inside::No),
    ("192.0.2.0", 24, Inside::No),
    ("0.0.0.0", 0, Inside::No),
    ("2001:db8:1::", 48, Inside::Yes),
    ("2001:db8:1:8000::", 49, Inside::No),
    ("::", 0, Inside::No),
];

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address written in a test")
}

pub fn service(protocol: u8, ports: Option<(u16, u16)>) -> Service {
    Service { protocol, ports, scope: Scope::ALL }
}

pub fn services() -> Vec<Service> {
    vec![
        service(UDP, Some((500, 500))),
        service(UDP, Some((4500, 4500))),
        service(ICMP, None),
        service(TCP, Some((8000, 8010))),
    ]
}

/// UDP port of an overlay, on the untagged port.
pub const OVERLAY: u16 = 4789;

pub fn ports() -> Vec<PortRule> {
    let port = |vlan: Option<u16>, side, mac, services| {
        let overlays = if vlan.is_none() { vec![OVERLAY] } else { Vec::new() };
        PortRule { vlan, side, mac, services, overlays }
    };
    vec![
        port(None, Side::Protected, LAN_MAC, Vec::new()),
        port(Some(DMZ_VLAN), Side::Protected, DMZ_MAC, Vec::new()),
        port(Some(WAN_VLAN), Side::Unprotected, WAN_MAC, services()),
    ]
}

/// A program with these rules and a socket behind queue 0; `None` (said aloud): no privilege.
pub fn steering(test: &str) -> Option<(Steering, OwnedFd)> {
    let mut steering = match Steering::load(NETDEV, INCARNATION) {
        Ok(steering) => steering,
        Err(error @ (bpf::BpfError::NotPermitted { .. } | bpf::BpfError::Refused { .. })) => {
            eprintln!("SKIPPED: {test}: {error}");
            return None;
        }
        Err(error) => panic!("{test}: {error}"),
    };
    steering.set_ports(&ports(), LinkForm::Plain).expect("three ports");
    let own: Vec<_> = OWN.iter().map(|(text, side)| (address(text), *side)).collect();
    steering.set_own_addresses(&own).expect("eight addresses");
    steering.set_inside(&inside()).expect("few prefixes");
    let socket = match socket() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("SKIPPED: {test}: no AF_XDP socket: {error}");
            return None;
        }
    };
    use std::os::fd::AsFd;
    steering.set_queue(0, Some(socket.as_fd())).expect("a socket with an rx ring");
    Some((steering, socket))
}

pub fn inside() -> Vec<(Prefix, Inside)> {
    let route = |(text, bits, inside): (&str, u8, Inside)| {
        (Prefix { address: address(text), bits }, inside)
    };
    let own = OWN.iter().map(|(text, _)| {
        let address = address(text);
        (Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }, Inside::Yes)
    });
    ROUTES.into_iter().map(route).chain(own).collect()
}

/// An AF_XDP socket with an rx ring, bound to nothing.
pub fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers. Threat: none.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and nobody else knows it. Threat: a file of
    // another owner is closed.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let entries: libc::c_int = 64;
    // SAFETY: the option is a whole integer that outlives the call. Threat: a read behind it.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_RX_RING,
            (&raw const entries).cast(),
            size_of_val(&entries) as libc::socklen_t,
        )
    };
    if code == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
