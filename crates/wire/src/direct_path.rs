//! Messages about direct paths: a gateway of an overlay tells the host that sends a flow where the
//! host of the flow's destination is, so that the flow's next packets go there without the gateway.
//!
//! The form is that of Arion's hosts (`flow_ctx_t`, as read; no such host was at hand), all in
//! network byte order, behind UDP:
//!
//! ```text
//! operation 32
//! flow         source 32 | destination 32 | source port 16 | destination port 16
//!              protocol 8 | VNI 24
//! path         destination 32 | host 32 | destination's MAC 48 | host's MAC 48
//!              seconds without packets after which the host forgets it 16 | reserved 16
//! ```
//!
//! IPv4 only, as the form is. Of protocols without ports both are 0.

use core::net::Ipv4Addr;

use crate::link::LinkAddress;
use crate::vni::Vni;

/// UDP port that hosts hear messages at, if nothing else is agreed (Arion's, as read).
pub const UDP_PORT: u16 = 8300;
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 44;

/// Orders to a host. Arion knows a third operation, 2: drop the flow's packets. It is not
/// sent: a host could not be told in time that they are permitted again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Send the flow's packets to the host in the message.
    Encap = 0,
    /// Send them to the gateway again.
    Delete = 1,
}

/// A flow between two endpoints of a network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectFlow {
    /// The network.
    pub vni: Vni,
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// Address of the destination.
    pub destination: Ipv4Addr,
    /// Number of the upper layer's protocol.
    pub protocol: u8,
    /// Source and destination port; 0 where the protocol has none.
    pub ports: (u16, u16),
}

/// The way to the destination of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectPath {
    /// Address of the destination's host.
    pub host: Ipv4Addr,
    /// Link address that packets to that host go to.
    pub host_mac: LinkAddress,
    /// Link address of the destination in its network.
    pub mac: LinkAddress,
}

/// A message to the host of a flow's sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The order.
    pub operation: Operation,
    /// The flow.
    pub flow: DirectFlow,
    /// The way that the message is about.
    pub path: DirectPath,
    /// Seconds without packets of the flow after which the host forgets the path.
    pub timeout_s: u16,
}

impl Message {
    /// Writes the message.
    pub fn write(&self) -> [u8; MESSAGE_BYTES] {
        let Message { operation, flow, path, timeout_s } = self;
        let [a, b, c] = flow.vni.to_bytes();
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&(*operation as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&flow.source.octets());
        bytes[8..12].copy_from_slice(&flow.destination.octets());
        bytes[12..14].copy_from_slice(&flow.ports.0.to_be_bytes());
        bytes[14..16].copy_from_slice(&flow.ports.1.to_be_bytes());
        bytes[16..20].copy_from_slice(&[flow.protocol, a, b, c]);
        bytes[20..24].copy_from_slice(&flow.destination.octets());
        bytes[24..28].copy_from_slice(&path.host.octets());
        bytes[28..34].copy_from_slice(&path.mac.bytes());
        bytes[34..40].copy_from_slice(&path.host_mac.bytes());
        bytes[40..42].copy_from_slice(&timeout_s.to_be_bytes());
        bytes
    }

    /// Reads a message, as a host does. `None`: it is none, or of another operation.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.first_chunk()?;
        let four = |at: usize| bytes[at..].first_chunk::<4>().copied();
        let six = |at: usize| bytes[at..].first_chunk::<6>().copied().map(LinkAddress::new);
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let operation = match u32::from_be_bytes(four(0)?) {
            0 => Operation::Encap,
            1 => Operation::Delete,
            _ => return None,
        };
        let vni = u32::from_be_bytes([0, bytes[17], bytes[18], bytes[19]]);
        let flow = DirectFlow {
            vni: Vni::new(vni)?,
            source: four(4)?.into(),
            destination: four(8)?.into(),
            protocol: bytes[16],
            ports: (two(12), two(14)),
        };
        let path = DirectPath { host: four(24)?.into(), host_mac: six(34)?, mac: six(28)? };
        (four(20)? == flow.destination.octets()).then_some(Message {
            operation,
            flow,
            path,
            timeout_s: two(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            operation: Operation::Delete,
            flow: DirectFlow {
                vni: Vni::new(0x01_0203).unwrap(),
                source: Ipv4Addr::new(10, 0, 0, 1),
                destination: Ipv4Addr::new(10, 0, 0, 2),
                protocol: 17,
                ports: (0x1122, 0x3344),
            },
            path: DirectPath {
                host: Ipv4Addr::new(192, 0, 2, 9),
                host_mac: LinkAddress::new([2, 0, 0, 0, 0, 9]),
                mac: LinkAddress::new([6, 5, 4, 3, 2, 1]),
            },
            timeout_s: 30,
        }
    }

    #[test]
    fn a_message_has_the_form_of_arions_hosts() {
        let expected = [
            0, 0, 0, 1, 10, 0, 0, 1, 10, 0, 0, 2, 0x11, 0x22, 0x33, 0x44, 17, 1, 2, 3, 10, 0, 0, 2,
            192, 0, 2, 9, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0, 9, 0, 30, 0, 0,
        ];
        assert_eq!(message().write(), expected);
        assert_eq!(Message::read(&expected), Some(message()));
    }

    #[test]
    fn what_is_no_message_is_none() {
        let good = message().write();
        assert_eq!(Message::read(&good[..MESSAGE_BYTES - 1]), None);
        // Operation 2, drop; and a path to another destination than the flow's.
        for at in [3, 20] {
            let mut bytes = good;
            bytes[at] += 1;
            assert_eq!(Message::read(&bytes), None, "byte {at}");
        }
    }
}
