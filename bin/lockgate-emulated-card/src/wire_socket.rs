//! The packet socket on the card's wire.
//!
//! A packet socket gets every frame of its netdev, whatever station it is for: of a veth, that is
//! all that the other end sends. A filter leaves out what this end sends, and frames with VLAN
//! tags, which the kernel takes out of the frame.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind, setsockopt, sockopt};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::failure::Failure;

/// All protocols, as the kernel counts them, in network byte order.
const ALL_PROTOCOLS: i32 = (0x0003u16).to_be() as i32;

/// Classic BPF: load a word from the address `k`; jump over so many instructions if it is equal to
/// `k`, or else; return `k` bytes of the frame.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Addresses of what is not in the frame: its kind, and whether it has a VLAN tag.
const PACKET_KIND: u32 = 0xffff_f000 + 4;
const HAS_VLAN_TAG: u32 = 0xffff_f000 + 48;
/// The kind of a frame that this end sends.
const OUTGOING: u32 = 4;
const WHOLE: u32 = 0x4_0000;

/// Bytes of the frames that wait at the wire: a card loses none because this process has no core
/// for a while.
const BUFFER: usize = 8 << 20;

/// Takes nothing: until the socket is bound it would get the frames of every netdev.
const NOTHING: [SockFilter; 1] = [SockFilter::new(RETURN, 0, 0, 0)];
/// Takes what the other end sends without a VLAN tag.
const FROM_THE_WIRE: [SockFilter; 6] = [
    SockFilter::new(LOAD, 0, 0, PACKET_KIND),
    SockFilter::new(JUMP_IF_EQUAL, 3, 0, OUTGOING),
    SockFilter::new(LOAD, 0, 0, HAS_VLAN_TAG),
    SockFilter::new(JUMP_IF_EQUAL, 0, 1, 0),
    SockFilter::new(RETURN, 0, 0, WHOLE),
    SockFilter::new(RETURN, 0, 0, 0),
];

/// The card's end of the wire.
pub(crate) struct WireSocket(Socket);

impl WireSocket {
    /// Opens a socket on a netdev, and returns it with the netdev's link address.
    ///
    /// # Errors
    /// [`Failure::NoWire`]; [`Failure::System`]: among others, the right is missing.
    pub(crate) fn open(name: &str) -> Result<(WireSocket, [u8; 6]), Failure> {
        let system = |call| move |source: io::Error| Failure::System { call, source };
        let address = link_address(name).map_err(system("listing the netdevs"))?;
        let address = address.ok_or_else(|| Failure::NoWire { name: name.to_owned() })?;
        let open = || {
            let protocol = Protocol::from(ALL_PROTOCOLS);
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
            socket.set_nonblocking(true)?;
            socket.attach_filter(&NOTHING)?;
            bind(socket.as_raw_fd(), &address)?;
            // What came before the filter.
            let mut frame = [0; 1];
            while (&socket).read(&mut frame).is_ok() {}
            socket.attach_filter(&FROM_THE_WIRE)?;
            Ok(socket)
        };
        let socket = open().map_err(system("opening a packet socket on the wire"))?;
        let link = address.addr().unwrap_or_default();
        Ok((WireSocket(socket), link))
    }

    /// Reads a frame; one that does not fit is cut to the length of `into`.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. Others: the netdev is down or gone.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Others: the netdev is down or gone, or its MTU smaller.
    pub(crate) fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.0).write(frame).map(drop)
    }
}

impl AsFd for WireSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The address of a netdev for a packet socket, as the kernel lists it.
fn link_address(name: &str) -> io::Result<Option<LinkAddr>> {
    let of = |address: Option<nix::sys::socket::SockaddrStorage>| {
        address.and_then(|address| address.as_link_addr().copied())
    };
    let mut all = getifaddrs()?.filter(|entry| entry.interface_name == name);
    Ok(all.find_map(|entry| of(entry.address)))
}
