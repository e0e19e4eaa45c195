//! Users of local TCP connections, from the kernel's socket diagnosis (sock_diag(7)).

use std::net::{IpAddr, SocketAddr};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// `SOCK_DIAG_BY_FAMILY`: type of the request and of its answer.
const BY_FAMILY: u16 = 20;
/// Header of a netlink message, bytes.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`, bytes.
const REQUEST: usize = 56;
/// Place of the user id in an answer: behind the header, `struct inet_diag_msg` has the family and
/// three more bytes, the ends, a time and two lengths.
const USER_AT: usize = HEADER + 4 + 48 + 12;

/// Returns the user id of the local process whose TCP socket is at `client`, connected to `server`.
/// `None`: there is no such socket, or the kernel does not tell. Never waits.
pub fn tcp_user(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let socket = Socket::new(NETLINK_SOCK_DIAG).ok()?;
    socket.set_non_blocking(true).ok()?;
    socket.send_to(&request(client, server), &NetlinkAddress::new(0, 0), 0).ok()?;
    let (answer, _) = socket.recv_from_full().ok()?;
    user_in(&answer)
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

fn user_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let user = answer.get(USER_AT..USER_AT + 4)?.try_into().ok()?;
    (kind == BY_FAMILY).then(|| u32::from_ne_bytes(user))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn local_client_has_its_user() {
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                eprintln!("SKIPPED: local_client_has_its_user: {host} is no address here");
                continue;
            };
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap().local_addr().unwrap();
            let stream = TcpStream::connect(server).unwrap();
            let Some(user) = tcp_user(stream.local_addr().unwrap(), server) else {
                eprintln!("SKIPPED: local_client_has_its_user: the kernel does not tell");
                continue;
            };
            assert_eq!(user, own);
            let mut nowhere = client;
            nowhere.set_port(1);
            assert_eq!(tcp_user(nowhere, server), None);
        }
    }

    #[test]
    fn answers_that_name_no_user_are_refused() {
        let mut answer = vec![0; USER_AT + 4];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[USER_AT..].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(user_in(&answer), Some(7));
        assert_eq!(user_in(&answer[..USER_AT + 3]), None);
        answer[4] = 2;
        assert_eq!(user_in(&answer), None, "an error");
        assert_eq!(user_in(&[]), None);
    }
}
