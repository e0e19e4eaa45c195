//! Netlink without waiting: requests are answered inside the system call that sends them, and
//! dumps inside those that read them, so a socket of their own needs no readiness. Only what the
//! kernel tells by itself is waited for.
//!
//! Not crate `rtnetlink`: it hands out the entries of a dump without their headers, so a dump that
//! was interrupted (`NLM_F_DUMP_INTR`) looks whole, and it needs a task that carries its messages.
//! Messages are taken apart by the crates under it, `netlink-packet-*`.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer};
use netlink_sys::{AsyncSocket, Socket, SocketAddr, TokioSocket};

/// A datagram at most, bytes: the kernel makes dumps of up to 32 KiB, and single messages about
/// netdevs with many virtual functions are larger.
const DATAGRAM_BYTES: usize = 256 << 10;
/// Header of a netlink message, bytes.
const HEADER_BYTES: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// The reason why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket cannot be made, or broke.
    #[error("netlink {action}: {source}")]
    Socket {
        /// Name of the operation that was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused the request.
    #[error("netlink {request}: {source}")]
    Refused {
        /// Name of the request.
        request: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The answer was no netlink message.
    #[error("netlink {request}: the answer cannot be read")]
    Garbled {
        /// Name of the request.
        request: &'static str,
    },
}

impl NetlinkError {
    /// The kernel's error number, if it refused the request.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Completeness of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dump {
    /// The dump shows one moment.
    Whole,
    /// The list changed while it was read (`NLM_F_DUMP_INTR`): read it again.
    Interrupted,
}

/// A message: its type, its flags and what follows the netlink header.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) payload: &'a [u8],
}

/// A socket for requests.
pub(crate) struct Requests {
    socket: Socket,
    protocol: isize,
    sequence: u32,
    buffer: Vec<u8>,
    /// A dump was given up halfway: the socket still holds the rest of it.
    dirty: bool,
}

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

impl Requests {
    pub(crate) fn open(protocol: isize) -> Result<Requests, NetlinkError> {
        let socket =
            open(protocol).map_err(|source| NetlinkError::Socket { action: "socket", source })?;
        let buffer = Vec::with_capacity(DATAGRAM_BYTES);
        Ok(Requests { socket, protocol, sequence: 0, buffer, dirty: false })
    }

    /// Sends a request and reads until its acknowledgement; passes earlier messages to `each`.
    pub(crate) fn request(
        &mut self,
        request: &'static str,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        self.send(request, kind, flags | NLM_F_ACK, payload)?;
        while self.receive(request, &mut each)?.is_none() {}
        self.dirty = false;
        Ok(())
    }

    /// Requests a complete list and passes every entry to `each`. Blocks until the list ends.
    pub(crate) fn dump(
        &mut self,
        request: &'static str,
        kind: u16,
        payload: &[u8],
        mut each: impl FnMut(Message<'_>),
    ) -> Result<Dump, NetlinkError> {
        self.send(request, kind, NLM_F_DUMP, payload)?;
        let mut dump = Dump::Whole;
        while self.receive_noting(request, &mut dump, &mut each)?.is_none() {}
        self.dirty = false;
        Ok(dump)
    }

    fn send(
        &mut self,
        request: &'static str,
        kind: u16,
        flags: u16,
        payload: &[u8],
    ) -> Result<(), NetlinkError> {
        let broken = |action| move |source| NetlinkError::Socket { action, source };
        if self.dirty {
            self.socket = open(self.protocol).map_err(broken("socket"))?;
        }
        self.dirty = true;
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER_BYTES + payload.len();
        let mut message = vec![0; length];
        let mut header = NetlinkBuffer::new(&mut message);
        header.set_length(length as u32);
        header.set_message_type(kind);
        header.set_flags(flags | NLM_F_REQUEST);
        header.set_sequence_number(self.sequence);
        header.set_port_number(0);
        message[HEADER_BYTES..].copy_from_slice(payload);
        self.socket.send(&message, 0).map_err(broken(request))?;
        Ok(())
    }

    fn receive(
        &mut self,
        request: &'static str,
        each: &mut impl FnMut(Message<'_>),
    ) -> Result<Option<()>, NetlinkError> {
        self.receive_noting(request, &mut Dump::Whole, each)
    }

    /// One datagram. `Some`: the answer is complete.
    fn receive_noting(
        &mut self,
        request: &'static str,
        dump: &mut Dump,
        each: &mut impl FnMut(Message<'_>),
    ) -> Result<Option<()>, NetlinkError> {
        self.buffer.clear();
        self.socket
            .recv(&mut self.buffer, 0)
            .map_err(|source| NetlinkError::Socket { action: request, source })?;
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() {
            let message =
                NetlinkBuffer::new_checked(rest).map_err(|_| NetlinkError::Garbled { request })?;
            let length = message.length() as usize;
            let payload = &rest[HEADER_BYTES..length];
            let kind = message.message_type();
            let ours = message.sequence_number() == self.sequence;
            if ours && message.flags() & NLM_F_DUMP_INTR != 0 {
                *dump = Dump::Interrupted;
            }
            match kind {
                _ if !ours => {}
                ERROR | DONE => {
                    // An error begins with the negative number, and so does a dump's end.
                    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    let source = || io::Error::from_raw_os_error(-code);
                    return match code {
                        0.. => Ok(Some(())),
                        _ => {
                            self.dirty = false;
                            Err(NetlinkError::Refused { request, source: source() })
                        }
                    };
                }
                _ => each(Message { kind, flags: message.flags(), payload }),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(None)
    }
}

/// A socket that receives the kernel's notifications.
pub(crate) struct Events {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Events {
    /// Joins multicast groups, with room for `room` bytes that wait to be read.
    pub(crate) fn open(protocol: isize, groups: &[u32], room: u32) -> io::Result<Events> {
        let mut socket = TokioSocket::new(protocol)?;
        socket.socket_mut().bind_auto()?;
        socket.socket_ref().set_rx_buf_sz(room)?;
        for group in groups {
            socket.socket_mut().add_membership(*group)?;
        }
        Ok(Events { socket, buffer: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    /// Waits for a datagram and gives its messages to `each`. Cancel safe.
    ///
    /// # Errors
    /// `ENOBUFS`: the kernel had more to tell than there was room; all others: the socket broke.
    pub(crate) async fn receive(&mut self, each: impl FnMut(Message<'_>)) -> io::Result<()> {
        self.buffer.clear();
        let (socket, buffer) = (&self.socket, &mut self.buffer);
        let sender = poll_fn(|context| socket.poll_recv_from(context, buffer)).await?;
        self.split(sender, each);
        Ok(())
    }

    /// Receives like [`Events::receive`], without waiting. Returns whether there was a datagram.
    pub(crate) async fn receive_ready(
        &mut self,
        each: impl FnMut(Message<'_>),
    ) -> io::Result<bool> {
        self.buffer.clear();
        let (socket, buffer) = (&self.socket, &mut self.buffer);
        let polled = poll_fn(|context| match socket.poll_recv_from(context, buffer) {
            Poll::Pending => Poll::Ready(None),
            Poll::Ready(result) => Poll::Ready(Some(result)),
        });
        let Some(sender) = polled.await.transpose()? else { return Ok(false) };
        self.split(sender, each);
        Ok(true)
    }

    /// Splits a datagram into messages. Only the kernel is believed: any process may send to a
    /// netlink socket.
    fn split(&self, sender: SocketAddr, mut each: impl FnMut(Message<'_>)) {
        if sender.port_number() != 0 {
            return;
        }
        let mut rest = self.buffer.as_slice();
        while let Ok(message) = NetlinkBuffer::new_checked(rest) {
            let length = message.length() as usize;
            let (kind, flags) = (message.message_type(), message.flags());
            each(Message { kind, flags, payload: &rest[HEADER_BYTES..length] });
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}
