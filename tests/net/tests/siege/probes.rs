//! Numbered honest packets in the aim of an attack.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use net::Lab;
use netlab::Namespace;
use netlab::inject::FrameSender;
use netlab::listen::Listener;
use netlab::sites::HOST_INTERFACE;
use wire::build::PacketBuilder;

use crate::frames::{HOST, to_lan, to_wan};

/// First bytes of a probe's payload.
const MARK: [u8; 6] = *b"honest";
/// Receiving UDP port of probes.
const PORT: u16 = 7008;
/// UDP port in the policies.
const NAMED_PORT: u16 = 53;
/// MAC address of gateway 2 on the protected side.
const FAR_LAN_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// MAC address of the host of site 2.
const FAR_HOST_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0x10];
/// Address of the host of site 2.
const FAR_HOST: &str = "10.2.0.10";
/// Protocol number of UDP.
const UDP: u8 = 17;
/// Bytes of a UDP datagram in its first fragment.
const FIRST_BYTES: usize = 40;
/// Place of the quoted identification in an ICMP error's frame: Ethernet, IPv4, ICMP, 4 bytes.
const QUOTED_IDENTIFICATION: usize = 14 + 20 + 8 + 4;

/// Packets of one kind.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    /// Number of the next packet.
    pub(crate) next: u16,
    /// Sends the packet of a number.
    pub(crate) send: Box<dyn FnMut(u16) + Send>,
    /// Returns the number of an arrived packet.
    pub(crate) receive: Box<dyn FnMut() -> Option<u16> + Send>,
}

impl Probe {
    fn new(
        name: &'static str,
        send: impl FnMut(u16) + Send + 'static,
        receive: impl FnMut() -> Option<u16> + Send + 'static,
    ) -> Probe {
        Probe { name, next: 0, send: Box::new(send), receive: Box::new(receive) }
    }
}

fn payload(number: u16) -> Vec<u8> {
    let mut bytes = [&MARK[..], &number.to_be_bytes()].concat();
    bytes.resize(64, 0);
    bytes
}

/// Receives numbers at a UDP port of a host.
fn receiver(host: &Namespace, address: IpAddr, port: u16) -> impl FnMut() -> Option<u16> + use<> {
    let socket = host.enter(|| UdpSocket::bind(SocketAddr::new(address, port))).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    move || {
        let mut bytes = [0; 2048];
        let length = socket.recv(&mut bytes).ok()?;
        bytes[..length].strip_prefix(&MARK)?.first_chunk().map(|number| u16::from_be_bytes(*number))
    }
}

/// Datagrams in two fragments, the later one first.
fn fragments(lab: &Lab, source: &'static str, target: &'static str) -> Probe {
    let gateways = &lab.gateways;
    let sender = FrameSender::open(&gateways.sites.wire, &gateways.site(1).wire_port()).unwrap();
    let send = move |number: u16| {
        let packet = || PacketBuilder::between(source, target).identification(number.into());
        let whole = packet().udp(4001, NAMED_PORT).payload(&payload(number)).ip();
        let header = if target.contains(':') { 40 } else { 20 };
        let (first, later) = whole[header..].split_at(FIRST_BYTES);
        let first = packet().protocol(UDP).payload(first).fragment(0, true);
        let later = packet().protocol(UDP).payload(later).fragment(FIRST_BYTES as u16 / 8, false);
        for fragment in [later, first] {
            sender.send(&to_wan(&fragment)).unwrap();
        }
    };
    let host = &gateways.site(1).host;
    host.enter(forget_fragments_soon).unwrap().unwrap();
    Probe::new("fragments", send, receiver(host, target.parse().unwrap(), NAMED_PORT))
}

/// Has the kernel of a host forget incomplete datagrams after a second. By default the kernel keeps
/// incomplete datagrams for 30 s, and refuses all fragments above 4 MB. First fragments of an
/// attack pass the gateway, and would fill this memory.
fn forget_fragments_soon() -> std::io::Result<()> {
    for name in ["ipv4/ipfrag_time", "ipv6/ip6frag_time"] {
        std::fs::write(format!("/proc/sys/net/{name}"), "1")?;
    }
    Ok(())
}

/// Fragments of IPv4.
pub(crate) fn fragments_v4(lab: &Lab) -> Probe {
    fragments(lab, "203.0.113.9", HOST)
}

/// Fragments of IPv6.
pub(crate) fn fragments_v6(lab: &Lab) -> Probe {
    fragments(lab, "2001:db8:abcd:ffff::9", "2001:db8:1::10")
}

/// First packets to neighbours without an entry.
pub(crate) fn new_neighbours(lab: &Lab) -> Probe {
    let [near, far] = [1, 2].map(|number| &lab.gateways.site(number).host);
    let socket = far.enter(|| UdpSocket::bind("10.2.0.10:0")).unwrap().unwrap();
    let send = move |number: u16| {
        let target =
            SocketAddr::from(([10, 1, 96 + (number / 250) as u8, 2 + (number % 250) as u8], PORT));
        socket.send_to(&payload(number), target).unwrap();
    };
    Probe::new("new neighbours", send, receiver(near, IpAddr::from([0; 4]), PORT))
}

/// First packets of connections through the tunnel.
pub(crate) fn new_connections(lab: &Lab) -> Probe {
    let [near, far] = [1, 2].map(|number| &lab.gateways.site(number).host);
    let sender = FrameSender::open(far, HOST_INTERFACE).unwrap();
    let send = move |number: u16| {
        let packet = PacketBuilder::v4(FAR_HOST, HOST).udp(20_000 + number, PORT);
        let packet = packet.payload(&payload(number));
        sender.send(&packet.frame(FAR_LAN_MAC, FAR_HOST_MAC, None)).unwrap();
    };
    Probe::new("new connections", send, receiver(near, IpAddr::from([0; 4]), PORT))
}

/// Packets above the tunnel's MTU: the gateway answers each with "too big".
pub(crate) fn packets_too_big(lab: &Lab) -> Probe {
    let host = &lab.gateways.site(1).host;
    let sender = FrameSender::open(host, HOST_INTERFACE).unwrap();
    let listener = Listener::open(host, HOST_INTERFACE).unwrap();
    let send = move |number: u16| {
        let packet = PacketBuilder::v4(HOST, FAR_HOST).udp(4001, 9).dont_fragment();
        let packet = packet.identification(number.into()).payload_of(1472);
        sender.send(&to_lan(&packet, None)).unwrap();
    };
    let receive = move || {
        while let Some(frame) = listener.next().unwrap() {
            if let Some(number) = quoted_identification(&frame) {
                return Some(number);
            }
        }
        None
    };
    Probe::new("too big messages", send, receive)
}

/// Returns the identification of the packet in an ICMP message "fragmentation needed".
fn quoted_identification(frame: &[u8]) -> Option<u16> {
    let number = frame.get(QUOTED_IDENTIFICATION..)?.first_chunk()?;
    // IPv4 without options, ICMP, type 3, code 4.
    let is_too_big = frame[12..15] == [8, 0, 0x45] && frame[23] == 1 && frame[34..36] == [3, 4];
    is_too_big.then(|| u16::from_be_bytes(*number))
}
