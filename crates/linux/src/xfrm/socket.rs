//! Requests and answers over netlink. Requests are answered inside the system call that sends
//! them: a driver that programs a card takes its time there.

use std::future::poll_fn;
use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator};
use netlink_packet_xfrm::constants::{
    XFRM_MSG_ACQUIRE, XFRM_MSG_DELPOLICY, XFRM_MSG_DELSA, XFRM_MSG_EXPIRE, XFRM_MSG_GETPOLICY,
    XFRM_MSG_GETSA, XFRM_MSG_NEWPOLICY, XFRM_MSG_NEWSA, XFRMNLGRP_ACQUIRE, XFRMNLGRP_EXPIRE,
};
use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{AsyncSocket, Socket, SocketAddr, TokioSocket};
use zeroize::{Zeroize, Zeroizing};

use super::{
    FoundPolicy, FoundSa, OffloadTo, REQIDS, XfrmEnds, XfrmNews, XfrmPolicy, XfrmSa, decode, encode,
};

/// A datagram at most, bytes.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Header of a netlink message, bytes.
const HEADER_BYTES: usize = 16;
/// Bytes of an error in front of the text: the number, and the header of the request.
const ERROR_BYTES: usize = 4 + HEADER_BYTES;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of an answer: the request is not repeated; attributes follow (`linux/netlink.h`).
const CAPPED: u16 = 0x100;
const HAS_ATTRIBUTES: u16 = 0x200;
/// Attribute with the kernel's text.
const MESSAGE_ATTRIBUTE: u16 = 1;
/// Bytes that the kernel keeps of what it tells, until it is read.
const EVENT_ROOM_BYTES: u32 = 1 << 20;

/// The reason why a request was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum XfrmError {
    /// The kernel has no xfrm for user space.
    #[error("Linux cannot be asked for SAs (xfrm): {text}")]
    NoSocket {
        /// The kernel's answer.
        text: String,
    },
    /// The kernel refused.
    #[error("{text}")]
    Refused {
        /// Error number, positive.
        errno: i32,
        /// The kernel's own text, or that of the number.
        text: String,
    },
    /// The kernel took an SA and no card has it.
    #[error(
        "Linux took the SA and gave it to no card: this kernel is built without offload \
         (CONFIG_XFRM_OFFLOAD)"
    )]
    NotOffloaded,
    /// The answer cannot be read.
    #[error("the answer of Linux cannot be read")]
    Garbled,
}

impl XfrmError {
    /// The kernel's error number; 0: it gave none.
    pub fn errno(&self) -> i32 {
        match self {
            XfrmError::Refused { errno, .. } => *errno,
            _ => 0,
        }
    }

    /// Returns whether the kernel, or the driver, cannot do it at all.
    pub fn is_unsupported(&self) -> bool {
        match self {
            XfrmError::NoSocket { .. } | XfrmError::NotOffloaded => true,
            XfrmError::Refused { errno, .. } => {
                [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS, libc::EINVAL]
                    .contains(errno)
            }
            XfrmError::Garbled => false,
        }
    }
}

/// The SAs and policies of this thread's network namespace.
pub struct Xfrm {
    socket: Socket,
    sequence: u32,
    buffer: Zeroizing<Vec<u8>>,
}

impl Xfrm {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`XfrmError::NoSocket`].
    pub fn open() -> Result<Xfrm, XfrmError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.set_non_blocking(true)?;
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket: Socket = open().map_err(|error: io::Error| no_socket(&error))?;
        let buffer = Zeroizing::new(Vec::with_capacity(DATAGRAM_BYTES));
        Ok(Xfrm { socket, sequence: 0, buffer })
    }

    /// Puts an SA in. One that a card is to have, and that the kernel gave to none, is taken out.
    ///
    /// # Errors
    /// [`XfrmError`]: it is not there.
    pub fn add_sa(&mut self, sa: &XfrmSa<'_>) -> Result<(), XfrmError> {
        self.request(XFRM_MSG_NEWSA, 0, &encode::new_sa(sa), |_| {})?;
        if sa.offload.is_none() {
            return Ok(());
        }
        let there = self.find_sa(sa.ends, sa.spi).map(|found| found.and_then(|of| of.offload));
        match there {
            Ok(there) if there == sa.offload => Ok(()),
            other => {
                let why = other.err().unwrap_or(XfrmError::NotOffloaded);
                // Nothing more can be done if this fails too: the next look finds it.
                let _ = self.remove_sa(sa.ends, sa.spi);
                Err(why)
            }
        }
    }

    /// Reads an SA; `None`: there is none.
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn find_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<Option<FoundSa>, XfrmError> {
        let mut found = None;
        let asked = encode::sa_id(ends, spi, encode::ESP);
        let done = self.request(XFRM_MSG_GETSA, 0, &asked, |payload| found = decode::sa(payload));
        match done {
            Err(XfrmError::Refused { errno: libc::ESRCH, .. }) => Ok(None),
            done => done.map(|()| found),
        }
    }

    /// Takes an SA out; returns whether it was there.
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn remove_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<bool, XfrmError> {
        let asked = encode::sa_id(ends, spi, encode::ESP);
        gone(self.request(XFRM_MSG_DELSA, 0, &asked, |_| {}))
    }

    /// Puts a policy in.
    ///
    /// # Errors
    /// [`XfrmError`]; `EEXIST`: another one has its selector.
    pub fn add_policy(&mut self, policy: &XfrmPolicy) -> Result<(), XfrmError> {
        self.request(XFRM_MSG_NEWPOLICY, 0, &encode::new_policy(policy), |_| {})
    }

    /// Takes a policy out; returns whether it was there.
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn remove_policy(&mut self, policy: &XfrmPolicy) -> Result<bool, XfrmError> {
        gone(self.request(XFRM_MSG_DELPOLICY, 0, &encode::delete_policy(policy), |_| {}))
    }

    /// All SAs, whoever put them in.
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn sas(&mut self) -> Result<Vec<FoundSa>, XfrmError> {
        let mut all = Vec::new();
        self.request(XFRM_MSG_GETSA, NLM_F_DUMP, &[], |payload| all.extend(decode::sa(payload)))?;
        Ok(all)
    }

    /// All policies, whoever put them in.
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn policies(&mut self) -> Result<Vec<FoundPolicy>, XfrmError> {
        let mut all = Vec::new();
        self.request(XFRM_MSG_GETPOLICY, NLM_F_DUMP, &[], |payload| {
            all.extend(decode::policy(payload));
        })?;
        Ok(all)
    }

    /// Returns whether any SA or policy has a number that is one of [`REQIDS`].
    ///
    /// # Errors
    /// [`XfrmError`].
    pub fn has_ours(&mut self) -> Result<bool, XfrmError> {
        Ok(self.sas()?.iter().any(is_our_sa) || self.policies()?.iter().any(is_our_policy))
    }

    /// Takes out all SAs and policies whose number is one of [`REQIDS`], policies last: what an SA
    /// sealed stays closed until nothing is left. Touches no others. Returns how many there were.
    ///
    /// # Errors
    /// [`XfrmError`]: some may be left.
    pub fn sweep(&mut self) -> Result<usize, XfrmError> {
        let mut count = 0;
        for found in self.sas()?.iter().filter(|found| is_our_sa(found)) {
            let done = self.request(XFRM_MSG_DELSA, 0, &encode::delete_found_sa(found), |_| {});
            count += usize::from(gone(done)?);
        }
        for found in self.policies()?.iter().filter(|found| is_our_policy(found)) {
            let asked = encode::delete_found_policy(found);
            count += usize::from(gone(self.request(XFRM_MSG_DELPOLICY, 0, &asked, |_| {}))?);
        }
        Ok(count)
    }

    /// Asks whether a netdev's card could take an SA, by one that is taken out at once: with an SPI
    /// and addresses that nobody uses. Both directions, as drivers differ in them.
    ///
    /// # Errors
    /// [`XfrmError`]: why not, in the words of the kernel or the driver.
    pub fn probe(&mut self, card: Option<OffloadTo>) -> Result<(), XfrmError> {
        for way in [super::SaWay::In, super::SaWay::Out] {
            // RFC 5737: addresses for documentation.
            let ends = XfrmEnds { source: [198, 51, 100, 254].into(), destination: PROBE_END };
            let sa = XfrmSa {
                way,
                spi: PROBE_SPI,
                ends,
                reqid: *REQIDS.end(),
                cipher: "rfc4106(gcm(aes))",
                key: &PROBE_KEY,
                window: 32,
                esn: false,
                limits: super::XfrmLimits { hard_seconds: Some(1), ..Default::default() },
                offload: card,
            };
            self.add_sa(&sa)?;
            self.remove_sa(ends, PROBE_SPI)?;
        }
        Ok(())
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), XfrmError> {
        self.send(kind, flags, payload)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut *self.buffer, 0).map_err(|error| no_socket(&error))?;
            let mut rest = self.buffer.as_slice();
            let mut end = None;
            while let (None, Ok(message)) = (&end, NetlinkBuffer::new_checked(rest)) {
                let length = message.length() as usize;
                let payload = &rest[HEADER_BYTES..length];
                if message.sequence_number() == self.sequence {
                    match message.message_type() {
                        ERROR | DONE => end = Some(outcome(message.flags(), payload)),
                        _ => each(payload),
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
            // Answers have keys.
            self.buffer.as_mut_slice().zeroize();
            match end {
                Some(end) => return end,
                None => continue,
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, payload: &[u8]) -> Result<(), XfrmError> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER_BYTES + payload.len();
        let mut message = Zeroizing::new(vec![0; length]);
        let mut header = NetlinkBuffer::new(message.as_mut_slice());
        header.set_length(length as u32);
        header.set_message_type(kind);
        let is_dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        header.set_flags(flags | NLM_F_REQUEST | if is_dump { 0 } else { NLM_F_ACK });
        header.set_sequence_number(self.sequence);
        header.set_port_number(0);
        message[HEADER_BYTES..].copy_from_slice(payload);
        self.socket.send(&message, 0).map_err(|error| no_socket(&error))?;
        Ok(())
    }
}

/// Of the SA that asks for abilities.
const PROBE_SPI: u32 = 0x4c47_ffff;
const PROBE_END: std::net::IpAddr =
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 253));
const PROBE_KEY: [u8; 20] = [0x4c; 20];

/// The kernel's refusal of a socket: that it has no xfrm, or another reason.
fn no_socket(error: &io::Error) -> XfrmError {
    let text = error.to_string();
    match error.raw_os_error() {
        None | Some(libc::EPROTONOSUPPORT) => XfrmError::NoSocket { text },
        Some(errno) => XfrmError::Refused { errno, text },
    }
}

fn is_our_sa(found: &FoundSa) -> bool {
    REQIDS.contains(&found.reqid)
}

fn is_our_policy(found: &FoundPolicy) -> bool {
    found.reqid.is_some_and(|reqid| REQIDS.contains(&reqid))
}

/// That something is not there is no failure of taking it out.
fn gone(done: Result<(), XfrmError>) -> Result<bool, XfrmError> {
    match done {
        Ok(()) => Ok(true),
        Err(XfrmError::Refused { errno: libc::ESRCH | libc::ENOENT, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Outcome of a request: an error begins with the negative number, and so does a list's end.
fn outcome(flags: u16, payload: &[u8]) -> Result<(), XfrmError> {
    let Some(code) = payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) else {
        return Ok(());
    };
    if code >= 0 {
        return Ok(());
    }
    let errno = -code;
    let text = kernel_text(flags, payload);
    let text = text.unwrap_or_else(|| io::Error::from_raw_os_error(errno).to_string());
    Err(XfrmError::Refused { errno, text })
}

/// The text that the kernel or a driver gives with an error, as far as it can be printed.
pub(super) fn kernel_text(flags: u16, payload: &[u8]) -> Option<String> {
    if flags & HAS_ATTRIBUTES == 0 {
        return None;
    }
    let repeated = match flags & CAPPED {
        0 => NetlinkBuffer::new(payload.get(4..ERROR_BYTES)?).length() as usize,
        _ => HEADER_BYTES,
    };
    let attributes = payload.get(4 + repeated.next_multiple_of(4)..)?;
    let texts = NlasIterator::new(attributes).filter_map(Result::ok);
    let text = texts.into_iter().find(|of| of.kind() == MESSAGE_ATTRIBUTE)?;
    let text = String::from_utf8_lossy(text.value()).into_owned();
    let text: String = text.trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect();
    (!text.is_empty()).then_some(text)
}

/// A listener for what the kernel tells by itself.
pub struct XfrmEvents {
    socket: TokioSocket,
    buffer: Zeroizing<Vec<u8>>,
}

impl XfrmEvents {
    /// Listens in this thread's network namespace.
    ///
    /// # Errors
    /// [`XfrmError::NoSocket`].
    pub fn open() -> Result<XfrmEvents, XfrmError> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_XFRM)?;
            socket.socket_mut().bind_auto()?;
            socket.socket_ref().set_rx_buf_sz(EVENT_ROOM_BYTES)?;
            for group in [XFRMNLGRP_EXPIRE, XFRMNLGRP_ACQUIRE] {
                socket.socket_mut().add_membership(group)?;
            }
            Ok(socket)
        };
        let socket = open().map_err(|error: io::Error| no_socket(&error))?;
        Ok(XfrmEvents { socket, buffer: Zeroizing::new(Vec::with_capacity(DATAGRAM_BYTES)) })
    }

    /// Waits for news. Only the kernel is believed. Cancel safe.
    ///
    /// # Errors
    /// `ENOBUFS`: some were lost, and more will come; all others: the socket broke.
    pub async fn next(&mut self) -> io::Result<Vec<XfrmNews>> {
        self.buffer.clear();
        let (socket, buffer) = (&self.socket, &mut *self.buffer);
        let sender = poll_fn(|context| socket.poll_recv_from(context, buffer)).await?;
        let mut news = Vec::new();
        let mut rest = self.buffer.as_slice();
        if sender.port_number() != 0 {
            return Ok(news);
        }
        while let Ok(message) = NetlinkBuffer::new_checked(rest) {
            let length = message.length() as usize;
            news.extend(news_of(message.message_type(), &rest[HEADER_BYTES..length]));
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(news)
    }
}

pub(super) fn news_of(kind: u16, payload: &[u8]) -> Option<XfrmNews> {
    match kind {
        XFRM_MSG_EXPIRE => {
            let (sa, hard) = decode::expire(payload)?;
            Some(XfrmNews::Expired { sa, hard })
        }
        XFRM_MSG_ACQUIRE => Some(XfrmNews::Wanted { reqid: decode::acquire(payload)? }),
        _ => None,
    }
}
