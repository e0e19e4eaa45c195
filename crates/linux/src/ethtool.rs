//! Asks the driver of a netdev, by ethtool's netlink, how many queues it has, and that it leaves
//! received frames as they are. Right in whatever network namespace the thread is in.
//!
//! Not crate `ethtool`: for these two questions it would bring a second kind of netlink socket,
//! with a task that carries its messages, beside `Requests`.

use netlink_packet_core::{NlaBuffer, NlasIterator};

use crate::netlink::{NetlinkError, Requests};
use crate::view::Link;

const GENERIC_PROTOCOL: isize = 16;
/// Attributes that hold attributes are marked.
const NESTED: u16 = 1 << 15;

/// Number of queues of a netdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// An offload by which a driver changes received frames before XDP or AF_XDP sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Offload {
    /// VLAN tags are taken off: the frame of a tagged port would look untagged.
    VlanStripping,
    /// Tags of service providers (802.1ad) are taken off likewise.
    ServiceVlanStripping,
    /// TCP segments are put together (LRO): larger than the frame memory.
    LargeReceive,
    /// TCP segments are put together by the card (GRO-HW).
    HardwareGro,
}

impl Offload {
    const ALL: [Offload; 4] = [
        Offload::VlanStripping,
        Offload::ServiceVlanStripping,
        Offload::LargeReceive,
        Offload::HardwareGro,
    ];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Offload::VlanStripping => "rx-vlan-hw-parse",
            Offload::ServiceVlanStripping => "rx-vlan-stag-hw-parse",
            Offload::LargeReceive => "rx-lro",
            Offload::HardwareGro => "rx-gro-hw",
        }
    }
}

/// Asks drivers.
pub struct Ethtool {
    requests: Requests,
    /// Message type that the kernel gave to ethtool.
    family: u16,
}

impl Ethtool {
    /// Opens a socket for the netdevs of this thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError`]: this kernel's ethtool does not speak netlink (before 5.6), or none works.
    pub fn open() -> Result<Ethtool, NetlinkError> {
        const CONTROL: u16 = 16;
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let mut requests = Requests::open(GENERIC_PROTOCOL)?;
        let mut payload = vec![GET_FAMILY, 1, 0, 0];
        push(&mut payload, FAMILY_NAME, b"ethtool\0");
        let mut family = None;
        requests.request("ethtool", CONTROL, 0, &payload, |message| {
            for (kind, value) in attributes(message.payload.get(4..).unwrap_or_default()) {
                if kind == FAMILY_ID {
                    family = value.try_into().map(u16::from_ne_bytes).ok();
                }
            }
        })?;
        let family = family.ok_or(NetlinkError::Garbled { request: "ethtool" })?;
        Ok(Ethtool { requests, family })
    }

    /// Returns the number of queues that a netdev uses; if its driver does not say, the number it
    /// was created with.
    ///
    /// # Errors
    /// [`NetlinkError`]: the netdev is gone, or netlink broke.
    pub fn channels(&mut self, link: &Link) -> Result<Channels, NetlinkError> {
        const CHANNELS_GET: u8 = 17;
        const RX: u16 = 6;
        const TX: u16 = 7;
        const COMBINED: u16 = 9;
        let mut channels = Channels { rx: 0, tx: 0 };
        let payload = about(CHANNELS_GET, link);
        let asked = self.requests.request("channels", self.family, 0, &payload, |message| {
            for (kind, value) in attributes(message.payload.get(4..).unwrap_or_default()) {
                let count = value.try_into().map_or(0, u32::from_ne_bytes);
                match kind {
                    RX => channels.rx += count,
                    TX => channels.tx += count,
                    COMBINED => {
                        (channels.rx, channels.tx) = (channels.rx + count, channels.tx + count);
                    }
                    _ => {}
                }
            }
        });
        match asked {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {}
            asked => asked?,
        }
        let (made_rx, made_tx) = link.queues;
        Ok(match channels {
            Channels { rx: 0, .. } | Channels { tx: 0, .. } => {
                Channels { rx: made_rx.max(1), tx: made_tx.max(1) }
            }
            channels => channels,
        })
    }

    /// Switches off the offloads that change received frames. Returns those that the driver keeps
    /// on: the caller refuses the port (tags) or warns.
    ///
    /// # Errors
    /// [`NetlinkError`]: the netdev is gone, the privilege is missing, or netlink broke.
    pub fn leave_frames_alone(&mut self, link: &Link) -> Result<Vec<Offload>, NetlinkError> {
        const FEATURES_SET: u8 = 12;
        const WANTED: u16 = 3;
        const BIT_NAME: u16 = 2;
        let active = self.active(link)?;
        if active.is_empty() {
            return Ok(active);
        }
        // A bit that is named and has no value is switched off; the others stay.
        let mut bits = Vec::new();
        for offload in active {
            let mut bit = Vec::new();
            push(&mut bit, BIT_NAME, &[offload.name().as_bytes(), b"\0"].concat());
            push(&mut bits, NESTED | BITS_BIT, &bit);
        }
        let mut bitset = Vec::new();
        push(&mut bitset, NESTED | BITSET_BITS, &bits);
        let mut payload = about(FEATURES_SET, link);
        push(&mut payload, NESTED | WANTED, &bitset);
        self.requests.request("features", self.family, 0, &payload, |_| {})?;
        self.active(link)
    }

    /// Returns those of the offloads that are on.
    fn active(&mut self, link: &Link) -> Result<Vec<Offload>, NetlinkError> {
        const FEATURES_GET: u8 = 11;
        const ACTIVE: u16 = 4;
        const BIT_NAME: u16 = 2;
        let mut active = Vec::new();
        let payload = about(FEATURES_GET, link);
        self.requests.request("features", self.family, 0, &payload, |message| {
            let bitset = attributes(message.payload.get(4..).unwrap_or_default());
            let bits = bitset.filter(|(kind, _)| *kind == ACTIVE).flat_map(|(_, v)| attributes(v));
            let bits =
                bits.filter(|(kind, _)| *kind == BITSET_BITS).flat_map(|(_, v)| attributes(v));
            // Without a mask every bit that is listed is set.
            for (_, bit) in bits {
                let name = attributes(bit).find(|(kind, _)| *kind == BIT_NAME);
                let name = name.map(|(_, name)| name.strip_suffix(b"\0").unwrap_or(name));
                active.extend(Offload::ALL.iter().filter(|o| Some(o.name().as_bytes()) == name));
            }
        })?;
        Ok(active)
    }
}

const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;

/// The head of a message about a netdev.
fn about(command: u8, link: &Link) -> Vec<u8> {
    const HEADER: u16 = 1;
    const LINK_INDEX: u16 = 1;
    let mut header = Vec::new();
    push(&mut header, LINK_INDEX, &link.index.to_ne_bytes());
    let mut payload = vec![command, 1, 0, 0];
    push(&mut payload, NESTED | HEADER, &header);
    payload
}

/// Appends an attribute: length, kind, value, padding to four bytes.
fn push(payload: &mut Vec<u8>, kind: u16, value: &[u8]) {
    payload.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    payload.extend_from_slice(&kind.to_ne_bytes());
    payload.extend_from_slice(value);
    payload.resize(payload.len().next_multiple_of(4), 0);
}

/// Kinds and values of attributes, as far as they can be read.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let attributes = NlasIterator::new(bytes).map_while(Result::ok);
    attributes.map(move |attribute: NlaBuffer<&[u8]>| {
        let kind = attribute.kind();
        let value = attribute.into_inner();
        let length = usize::from(u16::from_ne_bytes([value[0], value[1]]));
        (kind, &value[4..length])
    })
}
