//! The far end of a tunnel: seals what it sends to the gateway and opens what comes from there.
//!
//! Framing is written here once more, straight from RFC 4303 §2 and RFC 4106 §3, so that a mistake
//! in the gateway's own does not cancel itself out. Only the cipher is the gateway's.

use std::net::IpAddr;

use dataplane::SetIndex;
use io::MemoryFrames;
use ipsec::{Cipher, KeyMaterial, OpenJob, SealJob, SequenceNumbers, Suite};
use policy::SaSetId;
use wire::build::PacketBuilder;
use wire::flow::protocol;
use wire::{Frames, HEADROOM};

/// Bytes in front of the text: SPI, sequence number, IV.
const HEAD: usize = 16;
const ICV: usize = 16;

/// Key and salt made of a number, different for different numbers. Only for tests.
pub fn material(suite: Suite, seed: u8) -> KeyMaterial {
    let bytes: Vec<u8> =
        (0..suite.material_bytes() as u8).map(|n| n.wrapping_mul(7).wrapping_add(seed)).collect();
    KeyMaterial::new(suite, &bytes).expect("material as long as the suite wants it")
}

/// What the two ends of a tunnel agree on.
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
    /// SPI of what the gateway opens.
    pub spi_to_hub: u32,
    /// SPI of what the gateway seals.
    pub spi_from_hub: u32,
}

impl Agreement {
    /// Key of the SA towards the gateway.
    pub fn material_to_hub(&self) -> KeyMaterial {
        material(self.suite, self.index.0 as u8 * 2 + 1)
    }

    /// Key of the SA from the gateway.
    pub fn material_from_hub(&self) -> KeyMaterial {
        material(self.suite, self.index.0 as u8 * 2 + 2)
    }
}

/// What a packet from the gateway was, before and after opening.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The packet inside, without padding.
    pub inner: Vec<u8>,
    /// TOS or traffic class of the outer header.
    pub traffic_class: u8,
    /// Whether the outer packet may not be fragmented.
    pub dont_fragment: bool,
    /// The sequence number as the header carries it.
    pub sequence_low: u32,
    /// The IV.
    pub iv: u64,
    /// Bytes of the outer packet.
    pub outer_bytes: usize,
}

/// The far end of a tunnel.
pub struct Peer {
    /// What it and the gateway agree on.
    pub agreement: Agreement,
    /// Sequence number of the next packet sealed.
    pub next_sequence: u64,
    sealing: Cipher,
    sealing_salt: [u8; 4],
    opening: Cipher,
    opening_salt: [u8; 4],
    frames: MemoryFrames,
}

impl Peer {
    /// The peer of this agreement; its first packet has number 1.
    pub fn new(agreement: Agreement) -> Peer {
        let (to_hub, from_hub) = (agreement.material_to_hub(), agreement.material_from_hub());
        let salt = |material: &KeyMaterial| {
            *material.expose().last_chunk::<4>().expect("the salt stands behind the key")
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
    pub fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.seal_as(sequence, inner)
    }

    /// Seals an IP packet under a number of the caller's choice.
    pub fn seal_as(&mut self, sequence: u64, inner: &[u8]) -> Vec<u8> {
        let esp = self.esp(sequence, &text_of(inner));
        self.outer(&esp).ip()
    }

    /// The outer packet that carries these ESP bytes, for the caller to change before it is built.
    pub fn outer(&self, esp: &[u8]) -> PacketBuilder {
        let Agreement { address, hub, .. } = self.agreement;
        PacketBuilder::new(address.into(), hub.into()).protocol(protocol::ESP).payload(esp)
    }

    /// ESP bytes, SPI to ICV, around a text that the caller made: see [`text_of`].
    ///
    /// # Panics
    /// If the cipher refuses.
    pub fn esp(&mut self, sequence: u64, text: &[u8]) -> Vec<u8> {
        let mut bytes = self.agreement.spi_to_hub.to_be_bytes().to_vec();
        bytes.extend((sequence as u32).to_be_bytes());
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(text);
        bytes.extend([0; ICV]);
        let packet = self.frames.store(&bytes).expect("the peer's frame is free");
        let job = SealJob {
            frame: packet.frame,
            aad: HEADROOM as u32,
            text: (HEADROOM + HEAD) as u32,
            text_length: text.len() as u32,
            nonce: nonce(self.sealing_salt, sequence),
            sequence,
            row: 0,
        };
        self.sealing.seal(&mut self.frames, &[job]).expect("the peer's cipher seals");
        let sealed = self.frames.packet(packet).expect("a packet in its frame").to_vec();
        self.frames.give(packet.frame);
        sealed
    }

    /// Opens an outer IP packet of the gateway's. `None`: not from the gateway to this peer, not
    /// its SPI, not authentic, or its padding or next header are wrong.
    pub fn open(&mut self, packet: &[u8]) -> Option<Opened> {
        let outer = wire::packet::parse(packet).ok()?;
        let Agreement { address, hub, spi_from_hub, .. } = self.agreement;
        let ends = (outer.flow.source_address(), outer.flow.destination_address());
        if ends != (hub.into(), address.into()) || outer.flow.protocol != protocol::ESP {
            return None;
        }
        if outer.length as usize != packet.len() {
            return None; // the gateway pads nothing
        }
        let esp = &packet[outer.upper_offset.into()..];
        let word = |at: usize| Some(u32::from_be_bytes(*esp.get(at..)?.first_chunk()?));
        let (spi, sequence_low) = (word(0)?, word(4)?);
        let iv = u64::from(word(8)?) << 32 | u64::from(word(12)?);
        let text_length = esp.len().checked_sub(HEAD + ICV)?;
        if spi != spi_from_hub || text_length % 4 != 0 {
            return None;
        }
        let text = self.decrypt(esp, text_length, iv, sequence_low)?;
        let (&next_header, text) = text.split_last()?;
        let (&pad, text) = text.split_last()?;
        let (inner, padding) = text.split_at_checked(text.len().checked_sub(pad.into())?)?;
        let expected = match inner.first()? >> 4 {
            4 => protocol::IPV4,
            6 => protocol::IPV6,
            _ => return None,
        };
        let pads_right = padding.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i + 1);
        (pads_right && next_header == expected).then(|| Opened {
            inner: inner.to_vec(),
            traffic_class: outer.traffic_class,
            dont_fragment: outer.dont_fragment,
            sequence_low,
            iv,
            outer_bytes: packet.len(),
        })
    }

    fn decrypt(&mut self, esp: &[u8], length: usize, iv: u64, low: u32) -> Option<Vec<u8>> {
        let sequence = match self.agreement.numbers {
            SequenceNumbers::Short => u64::from(low),
            // The gateway's IV is the whole number; what is authenticated shows whether it is.
            SequenceNumbers::Extended => iv & !u64::from(u32::MAX) | u64::from(low),
        };
        let stored = self.frames.store(esp).expect("the peer's frame is free");
        let mut job = [OpenJob {
            frame: stored.frame,
            aad: HEADROOM as u32,
            text: (HEADROOM + HEAD) as u32,
            text_length: length as u32,
            nonce: nonce(self.opening_salt, iv),
            sequence,
            row: 0,
            authentic: false,
        }];
        self.opening.open(&mut self.frames, &mut job);
        let opened = self.frames.packet(stored).expect("a packet in its frame").to_vec();
        self.frames.give(stored.frame);
        job[0].authentic.then(|| opened[HEAD..HEAD + length].to_vec())
    }
}

/// ESP's text for an IP packet (RFC 4303 §2.4): the packet, padding 1, 2, 3 … to a multiple of 4,
/// pad length, next header.
pub fn text_of(inner: &[u8]) -> Vec<u8> {
    let next_header = match inner.first().map(|byte| byte >> 4) {
        Some(6) => protocol::IPV6,
        _ => protocol::IPV4,
    };
    let pad = (4 - (inner.len() + 2) % 4) % 4;
    text_with(inner, &[1, 2, 3][..pad], pad as u8, next_header)
}

/// ESP's text with a trailer of the caller's choice.
pub fn text_with(inner: &[u8], padding: &[u8], pad_length: u8, next_header: u8) -> Vec<u8> {
    [inner, padding, &[pad_length, next_header]].concat()
}

/// RFC 4106 §4: salt ‖ IV.
fn nonce(salt: [u8; 4], iv: u64) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..12].copy_from_slice(&iv.to_be_bytes());
    nonce
}
