//! Pings to thousands of addresses by one socket.

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use netlab::{LabError, Namespace, interrupt};
use socket2::{Domain, Protocol, Socket, Type};

/// Pings in a row, and the time from one row to the next: 4000 a second.
const ROW: usize = 8;
const PACE: Duration = Duration::from_millis(2);
/// Time for the last answers to one round of pings.
const LAST: Duration = Duration::from_millis(300);
/// Rounds at most: who has answered is not asked again.
const ROUNDS: u32 = 5;
/// Buffer of the socket.
const BUFFER_BYTES: usize = 4 << 20;
/// Number by which answers are known.
const IDENTIFIER: [u8; 2] = *b"LG";
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// The result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Swept {
    /// Addresses that answered.
    pub(super) reached: usize,
    /// Pings that were sent.
    pub(super) sent: u64,
}

/// Pings each address until it has answered, a few times at most.
pub(super) fn sweep(from: &Namespace, addresses: &[Ipv4Addr]) -> Result<Swept, LabError> {
    let socket = from.enter(open)?.map_err(LabError::socket("cannot open a socket for pings"))?;
    let failed = || LabError::socket("cannot send a ping");
    let mut answered = HashSet::new();
    let mut swept = Swept::default();
    for round in 0..ROUNDS {
        let due: Vec<Ipv4Addr> =
            addresses.iter().copied().filter(|address| !answered.contains(address)).collect();
        if due.is_empty() {
            break;
        }
        for row in due.chunks(ROW) {
            let began = Instant::now();
            for address in row {
                let to = SocketAddr::from((*address, 0));
                socket.send_to(&request(round as u16), &to.into()).map_err(failed())?;
                swept.sent += 1;
            }
            hear(&socket, &mut answered);
            interrupt::check()?;
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        let end = Instant::now() + LAST;
        while answered.len() < addresses.len() && Instant::now() < end {
            hear(&socket, &mut answered);
            interrupt::sleep(PACE)?;
        }
    }
    swept.reached = addresses.iter().filter(|address| answered.contains(address)).count();
    Ok(swept)
}

fn open() -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Takes all answers that have come.
fn hear(mut socket: &Socket, answered: &mut HashSet<Ipv4Addr>) {
    let mut packet = [0; 128];
    while let Ok(length) = socket.read(&mut packet) {
        answered.extend(answerer(&packet[..length]));
    }
}

/// Returns who answers one of our pings with an IPv4 packet.
fn answerer(packet: &[u8]) -> Option<Ipv4Addr> {
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    let header = usize::from(packet[0] & 15) * 4;
    let icmp = packet.get(header..header + 8)?;
    let is_answer = icmp[0] == ECHO_REPLY && icmp[4..6] == IDENTIFIER;
    is_answer.then(|| source.into())
}

/// An echo request (RFC 792) without data.
fn request(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    let mut packet = [ECHO_REQUEST, 0, 0, 0, IDENTIFIER[0], IDENTIFIER[1], high, low];
    let words =
        packet.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_right_checksum_and_is_no_answer() {
        let packet = request(3);
        let words = packet.chunks_exact(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
        let sum = words.sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let in_ip =
            |icmp: &[u8]| [&[0x45; 1][..], &[0; 11], &[10, 0, 0, 7], &[0; 4], icmp].concat();
        assert_eq!(answerer(&in_ip(&packet)), None);
        let answer = [&[ECHO_REPLY][..], &packet[1..]].concat();
        assert_eq!(answerer(&in_ip(&answer)), Some(Ipv4Addr::new(10, 0, 0, 7)));
        assert_eq!([answerer(&in_ip(&answer[..7])), answerer(&[])], [None; 2]);
    }
}
