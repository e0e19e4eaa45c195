//! Users of local TCP connections, from the kernel's socket diagnosis (sock_diag(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// `SOCK_DIAG_BY_FAMILY`: type of the request and of its answer.
const BY_FAMILY: u16 = 20;
/// Header of a netlink message, bytes.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`, bytes.
const REQUEST: usize = 56;
/// Place of a socket's state in an answer, behind the header and the family.
const STATE_AT: usize = HEADER + 1;
/// Place of the two ports of a socket, behind the family and three more bytes.
const PORTS_AT: usize = HEADER + 4;
/// Place of the user id in an answer: behind the header, `struct inet_diag_msg` has the family and
/// three more bytes, the ends, a time and two lengths. The inode follows.
const USER_AT: usize = HEADER + 4 + 48 + 12;
/// Room for an answer without attributes, bytes. The rest of a longer one is cut off.
const ANSWER: usize = 512;
/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`: states of a socket that a process holds open.
const HELD_STATES: [u8; 2] = [1, 8];

/// Returns the user id of the local process whose TCP socket is at `client`, connected to `server`,
/// where a socket listens. `None`: no process holds such a socket, or the kernel does not tell.
///
/// A kernel without the diagnosis tries to load a module at each question. So the first question
/// that the kernel cannot answer is the last.
pub fn tcp_user(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    static CANNOT_TELL: AtomicBool = AtomicBool::new(false);
    if CANNOT_TELL.load(Ordering::Relaxed) {
        return None;
    }
    let answer = ask(client, server).unwrap_or_default();
    if !is_socket(&answer) {
        // The kernel has one error for a missing socket and for a missing diagnosis. The socket
        // that listens is always there.
        let cannot_tell = match ask(server, client) {
            Ok(answer) => !is_socket(&answer),
            Err(error) => error.raw_os_error() == Some(libc::EPROTONOSUPPORT),
        };
        CANNOT_TELL.fetch_or(cannot_tell, Ordering::Relaxed);
    }
    user_in(&answer, [client.port(), server.port()])
}

/// Asks for a socket and returns the kernel's answer.
fn ask(client: SocketAddr, server: SocketAddr) -> io::Result<Vec<u8>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.set_non_blocking(true)?;
    socket.send_to(&request(client, server), &NetlinkAddress::new(0, 0), 0)?;
    let mut answer = Vec::with_capacity(ANSWER);
    socket.recv(&mut answer, 0)?;
    Ok(answer)
}

/// The question for one socket of TCP, in any state.
fn request(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let (from, to) = (client.ip().to_canonical(), server.ip().to_canonical());
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut message = Vec::with_capacity(HEADER + REQUEST);
    message.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port.
    message.extend([0; 8]);
    message.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // All states.
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(client.port().to_be_bytes());
    message.extend(server.port().to_be_bytes());
    message.extend(address(from));
    message.extend(address(to));
    // Any interface, and no cookie.
    message.extend([0; 4]);
    message.extend([0xff; 8]);
    message
}

/// An address in the 16 bytes that the kernel has for both families.
fn address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns whether an answer describes a socket.
fn is_socket(answer: &[u8]) -> bool {
    answer.get(4..6) == Some(&BY_FAMILY.to_ne_bytes()[..]) && answer.len() >= USER_AT + 8
}

/// Returns the user in an answer about a socket between two ports. A socket that its process has
/// closed has no inode, and the kernel answers with root as the user.
fn user_in(answer: &[u8], [from, to]: [u16; 2]) -> Option<u32> {
    if !is_socket(answer) || !HELD_STATES.contains(answer.get(STATE_AT)?) {
        return None;
    }
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let mut ports = [0; 4];
    ports[..2].copy_from_slice(&from.to_be_bytes());
    ports[2..].copy_from_slice(&to.to_be_bytes());
    let is_asked = answer.get(PORTS_AT..PORTS_AT + 4)? == ports;
    let has_inode = number(USER_AT + 4)? != 0;
    number(USER_AT).filter(|_| is_asked && has_inode)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::{MetadataExt, fchown};
    use std::time::{Duration, Instant};

    use super::*;

    const NOBODY: u32 = 65_534;
    /// Maximum time for another process to close an inherited socket.
    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn local_client_has_its_user() {
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                eprintln!("SKIPPED: local_client_has_its_user: {host} is no address here");
                continue;
            };
            let server = listener.local_addr().unwrap();
            let stream = TcpStream::connect(server).unwrap();
            let client = stream.local_addr().unwrap();
            if !is_socket(&ask(client, server).unwrap_or_default()) {
                eprintln!("SKIPPED: local_client_has_its_user: the kernel does not tell");
                continue;
            }
            assert_eq!(tcp_user(client, server), Some(own));
            let mut nowhere = client;
            nowhere.set_port(1);
            assert_eq!(tcp_user(nowhere, server), None);
            assert_eq!(tcp_user(client, server), Some(own), "the kernel still tells");
            if own == 0 {
                fchown(&stream, Some(NOBODY), None).unwrap();
                assert_eq!(tcp_user(client, server), Some(NOBODY));
            } else {
                eprintln!("SKIPPED: local_client_has_its_user: another user needs root");
            }
            // Once a client that had closed its socket counted as root. Child processes of other
            // tests hold the socket until their programs start.
            drop(stream);
            let closed = Instant::now();
            while tcp_user(client, server).is_some() {
                assert!(closed.elapsed() < PATIENCE, "no process holds the socket");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn answers_that_name_no_user_are_refused() {
        let mut answer = vec![0; USER_AT + 8];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[STATE_AT] = 1;
        answer[PORTS_AT..PORTS_AT + 4].copy_from_slice(&[0x12, 0x34, 0x23, 0x7a]);
        answer[USER_AT..USER_AT + 4].copy_from_slice(&7u32.to_ne_bytes());
        answer[USER_AT + 4..].copy_from_slice(&99u32.to_ne_bytes());
        let ports = [0x1234, 0x237a];
        assert_eq!(user_in(&answer, ports), Some(7));
        assert_eq!(user_in(&answer, [0x1234, 0]), None, "the socket that listens");
        assert_eq!(user_in(&answer[..USER_AT + 7], ports), None);
        let changed = |at: usize, byte: u8| {
            let mut answer = answer.clone();
            answer[at] = byte;
            user_in(&answer, ports)
        };
        assert_eq!(changed(4, 2), None, "an error");
        assert_eq!(changed(STATE_AT, 5), None, "FIN_WAIT2");
        assert_eq!(changed(STATE_AT, 8), Some(7), "CLOSE_WAIT");
        answer[USER_AT + 4..].fill(0);
        assert_eq!(user_in(&answer, ports), None, "no inode");
        assert_eq!(user_in(&[], ports), None);
    }
}
