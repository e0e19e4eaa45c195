//! The far end of a tunnel: seals what it sends to the gateway and opens what comes from there.
//!
//! Framing is written here once more, straight from RFC 4303 §2 and §3.1, RFC 4106 §3, RFC 3602 §3
//! and RFC 3948 §2, so that a mistake in the gateway's own does not cancel itself out. Only the
//! ciphers are the gateway's.

use std::net::IpAddr;

use dataplane::SetIndex;
use io::MemoryFrames;
use ipsec::{
    Cipher, Encapsulation, Encryption, KeyMaterial, Mode, OpenJob, SealJob, SequenceNumbers, Suite,
    Tunnel, UdpPorts,
};
use policy::SaSetId;
use wire::build::PacketBuilder;
use wire::flow::{Upper, protocol};
use wire::{Family, Frames, HEADROOM, Packet, checksum};

/// Bytes of SPI and sequence number.
const HEAD: usize = 8;
/// Bytes of a UDP header.
const UDP: usize = 8;

/// Key and salt made of a number, different for different numbers. Only for tests.
pub fn material(suite: Suite, seed: u8) -> KeyMaterial {
    let bytes: Vec<u8> =
        (0..suite.material_bytes() as u8).map(|n| n.wrapping_mul(7).wrapping_add(seed)).collect();
    KeyMaterial::new(suite, &bytes).expect("material as long as the suite wants it")
}

/// The terms that the two ends of a tunnel agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The peer's name.
    pub name: &'static str,
    /// The gateway's SA set for it.
    pub set: SaSetId,
    /// Place of that set in the snapshot.
    pub index: SetIndex,
    /// The gateway's outer address.
    pub hub: IpAddr,
    /// The peer's outer address.
    pub address: IpAddr,
    /// Algorithms of both SAs.
    pub suite: Suite,
    /// Width of the sequence numbers of both SAs.
    pub numbers: SequenceNumbers,
    /// Mode of both SAs.
    pub mode: Mode,
    /// ESP in UDP, as the gateway sees it: its own port, and the peer's or its NAT's.
    pub udp: Option<UdpPorts>,
    /// SPI of what the gateway opens.
    pub spi_to_hub: u32,
    /// SPI of what the gateway seals.
    pub spi_from_hub: u32,
}

impl Agreement {
    /// Returns the encapsulation that the gateway uses for both SAs.
    pub fn encapsulation(&self) -> Encapsulation {
        let tunnel = Tunnel { local: self.hub, remote: self.address };
        Encapsulation { mode: self.mode, udp: self.udp, ..tunnel.into() }
    }

    /// Key of the SA towards the gateway.
    pub fn material_to_hub(&self) -> KeyMaterial {
        material(self.suite, self.index.0 as u8 * 2 + 1)
    }

    /// Key of the SA from the gateway.
    pub fn material_from_hub(&self) -> KeyMaterial {
        material(self.suite, self.index.0 as u8 * 2 + 2)
    }
}

/// A packet from the gateway, opened, with values of its outer packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The packet inside, without padding; in transport mode the packet as it was.
    pub inner: Vec<u8>,
    /// TOS or traffic class of the outer header.
    pub traffic_class: u8,
    /// Set if the outer packet may not be fragmented.
    pub dont_fragment: bool,
    /// The sequence number as the header carries it.
    pub sequence_low: u32,
    /// The first 8 bytes of the IV; 0 if there is none.
    pub iv: u64,
    /// Bytes of the outer packet.
    pub outer_bytes: usize,
}

/// The far end of a tunnel.
pub struct Peer {
    /// The terms that it and the gateway agree on.
    pub agreement: Agreement,
    /// Sequence number of the next packet sealed.
    pub next_sequence: u64,
    sealing: Cipher,
    sealing_salt: Vec<u8>,
    opening: Cipher,
    opening_salt: Vec<u8>,
    frames: MemoryFrames,
}

impl Peer {
    /// The peer of this agreement; its first packet has number 1.
    pub fn new(agreement: Agreement) -> Peer {
        let (to_hub, from_hub) = (agreement.material_to_hub(), agreement.material_from_hub());
        let salt = |material: &KeyMaterial| {
            let Agreement { suite, .. } = agreement;
            material.expose()[suite.key_bytes()..][..suite.salt_bytes()].to_vec()
        };
        Peer {
            agreement,
            next_sequence: 1,
            sealing_salt: salt(&to_hub),
            sealing: Cipher::new(&to_hub).with_numbers(agreement.numbers),
            opening_salt: salt(&from_hub),
            opening: Cipher::new(&from_hub).with_numbers(agreement.numbers),
            frames: MemoryFrames::with_frame_bytes(1, 1 << 17),
        }
    }

    /// Seals an IP packet under the next number: the outer IP packet, as the gateway receives it.
    /// In transport mode the packet is one between the two ends.
    pub fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.seal_as(sequence, inner)
    }

    /// Seals an IP packet under a number of the caller's choice.
    ///
    /// # Panics
    /// In transport mode, if it is no IP packet.
    pub fn seal_as(&mut self, sequence: u64, inner: &[u8]) -> Vec<u8> {
        if self.agreement.mode == Mode::Tunnel {
            let esp = self.esp(sequence, &self.text_of(inner));
            return self.outer(&esp).ip();
        }
        let packet = wire::packet::parse(inner).expect("a packet to carry");
        let (own, upper) = inner.split_at(packet.upper_offset.into());
        let text = padded(upper, packet.flow.protocol, self.agreement.suite);
        let esp = self.esp(sequence, &text);
        match self.agreement.udp {
            None => with_upper(own, protocol::ESP, &esp),
            Some(ports) => {
                let datagram = datagram(ports.remote, ports.local, &esp);
                let mut carried = with_upper(own, protocol::UDP, &datagram);
                if packet.flow.family == Family::V6 {
                    sum_udp(&mut carried, own.len());
                }
                carried
            }
        }
    }

    /// ESP's text for an IP packet in tunnel mode: see [`text_of`].
    pub fn text_of(&self, inner: &[u8]) -> Vec<u8> {
        padded(inner, own_number(inner), self.agreement.suite)
    }

    /// The outer packet of a tunnel that carries these ESP bytes, for the caller to change before
    /// it is built.
    pub fn outer(&self, esp: &[u8]) -> PacketBuilder {
        let Agreement { address, hub, udp, .. } = self.agreement;
        let packet = PacketBuilder::new(address.into(), hub.into());
        match udp {
            None => packet.protocol(protocol::ESP).payload(esp),
            Some(ports) => packet.udp(ports.remote, ports.local).payload(esp),
        }
    }

    /// ESP bytes, SPI to ICV, around a text that the caller made: see [`text_of`].
    ///
    /// # Panics
    /// If the cipher refuses.
    pub fn esp(&mut self, sequence: u64, text: &[u8]) -> Vec<u8> {
        let Agreement { suite, spi_to_hub, .. } = self.agreement;
        let iv = match suite.encryption() {
            Encryption::Gcm | Encryption::ChaCha20Poly1305 => sequence.to_be_bytes().to_vec(),
            // Another one for each number is all that a test needs.
            Encryption::Cbc => (u128::from(sequence) << 7 ^ 0x5a).to_be_bytes().to_vec(),
            Encryption::Null => vec![],
        };
        let mut bytes = spi_to_hub.to_be_bytes().to_vec();
        bytes.extend((sequence as u32).to_be_bytes());
        bytes.extend(&iv);
        bytes.extend(text);
        bytes.resize(bytes.len() + suite.icv_bytes(), 0);
        let packet = self.frames.store(&bytes).expect("the peer's frame is free");
        let job = SealJob {
            frame: packet.frame,
            aad: HEADROOM as u32,
            text: (HEADROOM + HEAD + iv.len()) as u32,
            text_length: text.len() as u32,
            nonce: nonce(&self.sealing_salt, &iv),
            sequence,
            row: 0,
        };
        self.sealing.seal(&mut self.frames, &[job]).expect("the peer's cipher seals");
        let sealed = self.frames.packet(packet).expect("a packet in its frame").to_vec();
        self.frames.give(packet.frame);
        sealed
    }

    /// Opens an outer IP packet of the gateway's. `None`: not from the gateway to this peer, not
    /// as they agreed, not its SPI, not authentic, or its padding or next header are wrong.
    pub fn open(&mut self, packet: &[u8]) -> Option<Opened> {
        let outer = wire::packet::parse(packet).ok()?;
        let Agreement { address, hub, spi_from_hub, suite, mode, .. } = self.agreement;
        let ends = (outer.flow.source_address(), outer.flow.destination_address());
        if ends != (hub.into(), address.into()) {
            return None;
        }
        if outer.length as usize != packet.len() {
            return None; // the gateway pads nothing
        }
        let esp = self.carried_esp(packet, &outer)?;
        let word = |at: usize| Some(u32::from_be_bytes(*esp.get(at..)?.first_chunk()?));
        let (spi, sequence_low) = (word(0)?, word(4)?);
        let around = HEAD + suite.iv_bytes() + suite.icv_bytes();
        let text_length = esp.len().checked_sub(around)?;
        if spi != spi_from_hub || !text_length.is_multiple_of(block(suite)) {
            return None;
        }
        let iv = &esp[HEAD..][..suite.iv_bytes()];
        let text = self.decrypt(esp, text_length, iv, sequence_low)?;
        let (&next_header, text) = text.split_last()?;
        let (&pad, text) = text.split_last()?;
        let (carried, padding) = text.split_at_checked(text.len().checked_sub(pad.into())?)?;
        let pads_right = padding.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i + 1);
        let inner = match mode {
            Mode::Tunnel => (next_header == own_number(carried) && !carried.is_empty())
                .then(|| carried.to_vec()),
            Mode::Transport => {
                let own = &packet[..outer.upper_offset.into()];
                Some(with_upper(own, next_header, carried))
            }
        };
        pads_right.then_some(Opened {
            inner: inner?,
            traffic_class: outer.traffic_class,
            dont_fragment: outer.dont_fragment,
            sequence_low,
            iv: iv.first_chunk().map_or(0, |iv| u64::from_be_bytes(*iv)),
            outer_bytes: packet.len(),
        })
    }

    /// The ESP bytes of an outer packet, if they are carried as was agreed (RFC 3948 §2.1).
    fn carried_esp<'p>(&self, packet: &'p [u8], outer: &Packet) -> Option<&'p [u8]> {
        let behind = &packet[outer.upper_offset.into()..];
        let Some(ports) = self.agreement.udp else {
            return (outer.flow.protocol == protocol::ESP).then_some(behind);
        };
        let expected = Upper::Ports { source: ports.local, destination: ports.remote };
        if outer.flow.protocol != protocol::UDP || outer.flow.upper != expected {
            return None;
        }
        let field = |at: usize| u16::from_be_bytes([behind[at], behind[at + 1]]);
        let mut summed = packet.to_vec();
        if outer.flow.family == Family::V6 {
            sum_udp(&mut summed, outer.upper_offset.into());
        } else {
            summed[usize::from(outer.upper_offset) + 6..][..2].fill(0);
        }
        let is_right = usize::from(field(4)) == behind.len() && summed == packet;
        is_right.then_some(&behind[UDP..])
    }

    fn decrypt(&mut self, esp: &[u8], length: usize, iv: &[u8], low: u32) -> Option<Vec<u8>> {
        let Agreement { numbers, suite, .. } = self.agreement;
        let sequence = match (numbers, suite.encryption(), iv.first_chunk()) {
            // The gateway's IV is the whole number; what is authenticated shows whether it is.
            (
                SequenceNumbers::Extended,
                Encryption::Gcm | Encryption::ChaCha20Poly1305,
                Some(iv),
            ) => u64::from_be_bytes(*iv) & !u64::from(u32::MAX) | u64::from(low),
            _ => u64::from(low),
        };
        let text = HEAD + iv.len();
        let stored = self.frames.store(esp).expect("the peer's frame is free");
        let mut job = [OpenJob {
            frame: stored.frame,
            aad: HEADROOM as u32,
            text: (HEADROOM + text) as u32,
            text_length: length as u32,
            nonce: nonce(&self.opening_salt, iv),
            sequence,
            row: 0,
            authentic: false,
        }];
        self.opening.open(&mut self.frames, &mut job);
        let opened = self.frames.packet(stored).expect("a packet in its frame").to_vec();
        self.frames.give(stored.frame);
        job[0].authentic.then(|| opened[text..text + length].to_vec())
    }
}

/// ESP's text for an IP packet under a suite without blocks (RFC 4303 §2.4): the packet, padding
/// 1, 2, 3 … to a multiple of 4, pad length, next header.
pub fn text_of(inner: &[u8]) -> Vec<u8> {
    padded(inner, own_number(inner), Suite::Aes128Gcm)
}

/// ESP's text with a trailer of the caller's choice.
pub fn text_with(inner: &[u8], padding: &[u8], pad_length: u8, next_header: u8) -> Vec<u8> {
    [inner, padding, &[pad_length, next_header]].concat()
}

/// Protocol number of an IP packet in a tunnel.
fn own_number(inner: &[u8]) -> u8 {
    match inner.first().map(|byte| byte >> 4) {
        Some(6) => protocol::IPV6,
        _ => protocol::IPV4,
    }
}

/// Returns the alignment at which pad length and next header end (RFC 4303 §2.4, RFC 3602 §2.4).
fn block(suite: Suite) -> usize {
    if suite.encryption() == Encryption::Cbc { 16 } else { 4 }
}

fn padded(carried: &[u8], next_header: u8, suite: Suite) -> Vec<u8> {
    let block = block(suite);
    let pad = (block - (carried.len() + 2) % block) % block;
    let padding: Vec<u8> = (1..=pad as u8).collect();
    text_with(carried, &padding, pad as u8, next_header)
}

/// An IP header, with options or extension headers as they are, in front of another upper layer.
///
/// # Panics
/// If `own` does not end where its headers do.
pub fn with_upper(own: &[u8], number: u8, upper: &[u8]) -> Vec<u8> {
    let mut packet = [own, upper].concat();
    if own[0] >> 4 == 4 {
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[9] = number;
        crate::table::sum_header(&mut packet);
        return packet;
    }
    let length = (packet.len() - 40) as u16;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    let (mut names, mut at) = (6, 40);
    while at < own.len() {
        let units = if packet[names] == protocol::FRAGMENT { 0 } else { packet[at + 1].into() };
        (names, at) = (at, at + 8 + 8 * units);
    }
    assert_eq!(at, own.len(), "headers end where they say");
    packet[names] = number;
    packet
}

/// A UDP datagram without a checksum.
fn datagram(source: u16, destination: u16, carried: &[u8]) -> Vec<u8> {
    let length = (UDP + carried.len()) as u16;
    let header = [source, destination, length, 0].map(u16::to_be_bytes).concat();
    [&header, carried].concat()
}

/// Writes the checksum of the UDP header at `at` of an IPv6 packet (RFC 8200 §8.1).
fn sum_udp(packet: &mut [u8], at: usize) {
    packet[at + 6..at + 8].fill(0);
    let length = (packet.len() - at) as u64;
    let pseudo = checksum::sum(&packet[8..40]) + u64::from(protocol::UDP) + length;
    let sum = match checksum::finish(pseudo + checksum::sum(&packet[at..])) {
        0 => 0xffff,
        sum => sum,
    };
    packet[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
}

/// Salt ‖ IV (RFC 4106 §4, RFC 7634 §2), or the IV alone, in the room of a nonce.
fn nonce(salt: &[u8], iv: &[u8]) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..salt.len()].copy_from_slice(salt);
    nonce[salt.len()..][..iv.len()].copy_from_slice(iv);
    nonce
}
