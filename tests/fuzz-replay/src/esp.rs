//! ESP: opening what anybody may have sent, under every suite, in both modes, alone and in UDP.

use std::ops::Range;
use std::sync::Arc;

use ipsec::esp::{HEADER_BYTES, TRAILER_BYTES, restore, strip};
use ipsec::{
    DontFragment, Dscp, Encapsulation, InboundSa, Inner, KeyMaterial, Mode, OpenError, OpenJob,
    OutboundSa, Payload, ReplayWindow, SaId, SealJob, SequenceCounter, SequenceNumbers, Spi, Suite,
    Tunnel, UdpPorts,
};
use policy::SaSetId;
use wire::build::PacketBuilder;
use wire::flow::{Upper, protocol};
use wire::{Family, Flow, Fragment, FrameId, Frames, HEADROOM, Packet};

use crate::Bytes;

/// Bytes of the frame that everything happens in.
const FRAME_BYTES: usize = 4096;
/// Payload that fits behind the headroom whatever stands around it.
const MAX_PAYLOAD_BYTES: usize = FRAME_BYTES - HEADROOM - 256;
/// Changes made to a sealed packet at most.
const MAX_CHANGES: u8 = 8;
const FRAME: FrameId = FrameId(0);

/// Opens with a fixed SA. The first byte of the input chooses the suite, the second numbers,
/// family, mode, UDP and what is opened:
/// 0. the rest as it is, as an ESP packet;
/// 1. the rest sealed, then changed where the input says;
/// 2. the rest sealed as the text, trailer included, so that it is authentic whatever it says.
pub fn esp_open(data: &[u8]) {
    let mut input = Bytes::new(data);
    let suite = input.pick(Suite::ALL);
    let choice = input.byte();
    let ends = Ends::new(suite, choice);
    match choice >> 4 & 3 {
        0 | 3 => as_it_is(&ends, input),
        1 => sealed_and_changed(&ends, input),
        _ => authentic_text(&ends, input),
    }
}

/// Both ends of one SA.
struct Ends {
    suite: Suite,
    out: OutboundSa,
    inbound: InboundSa,
}

impl Ends {
    fn new(suite: Suite, choice: u8) -> Ends {
        let numbers = match choice & 1 {
            0 => SequenceNumbers::Short,
            _ => SequenceNumbers::Extended,
        };
        let (a, b) = match choice & 2 {
            0 => ("192.0.2.1", "198.51.100.7"),
            _ => ("2001:db8::1", "2001:db8::7"),
        };
        let (local, remote) = (a.parse().expect("an address"), b.parse().expect("an address"));
        let there = Encapsulation {
            mode: if choice & 4 == 0 { Mode::Tunnel } else { Mode::Transport },
            tunnel: Tunnel { local, remote },
            udp: (choice & 8 != 0).then_some(UdpPorts { local: 4500, remote: 4501 }),
            dscp: if choice & 64 == 0 { Dscp::Copy } else { Dscp::Fixed(10) },
            dont_fragment: match choice & 128 {
                0 => DontFragment::Set,
                _ => DontFragment::Copy,
            },
        };
        let back =
            Encapsulation { tunnel: Tunnel { local: remote, remote: local }, udp: None, ..there };
        let key: Vec<u8> = (0..suite.material_bytes() as u8).map(|n| n ^ 0x5a).collect();
        let material = KeyMaterial::new(suite, &key).expect("as long as the suite says");
        let spi = Spi::new(0x0102_0304).expect("not reserved");
        let window = ReplayWindow::new(64, numbers).expect("a size that is offered");
        let (id, set) = (SaId(0), SaSetId(0));
        let counter = Arc::new(SequenceCounter::new(numbers));
        let out = OutboundSa::new(id, spi, set, &material, there, counter);
        let inbound = InboundSa::new(id, spi, set, &material, back, Arc::new(window));
        Ends { suite, out: out.expect("one family"), inbound: inbound.expect("one family") }
    }

    fn mode(&self) -> Mode {
        self.out.encapsulation.mode
    }

    /// A packet between the two ends.
    fn between(&self) -> PacketBuilder {
        let Tunnel { local, remote } = *self.out.tunnel();
        PacketBuilder::new(local.into(), remote.into())
    }

    /// Bytes of ESP in front of the text.
    fn front(&self) -> usize {
        HEADER_BYTES + self.suite.iv_bytes()
    }

    /// Opens an ESP packet as the walk does: returns what it carried, or why there is nothing.
    fn open(&self, frames: &mut Frame, esp: Range<usize>) -> Result<Payload, OpenError> {
        let mut jobs = [self.inbound.open_job(FRAME, &frames.0, esp.clone(), 7)?];
        let [job] = &jobs;
        assert_eq!((job.aad as usize, job.row), (esp.start, 7));
        assert!(!job.authentic, "nothing is authentic before the cipher ran");
        let fresh = self.inbound.window.check(job.sequence).is_ok();
        self.inbound.cipher.open(frames, &mut jobs);
        let [job] = jobs;
        if job.authentic {
            assert_eq!(self.inbound.window.commit(job.sequence).is_ok(), fresh);
            assert!(self.inbound.window.commit(job.sequence).is_err(), "a number came twice");
        }
        let stripped = strip(&frames.0, &job, self.mode());
        assert_eq!(stripped, trailer_by_the_book(&frames.0, &job, self.mode()));
        stripped
    }
}

/// One frame, without a free list.
struct Frame([u8; FRAME_BYTES]);

impl Frames for Frame {
    fn bytes(&self, _frame: FrameId) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self, _frame: FrameId) -> &mut [u8] {
        &mut self.0
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        match (frames, into) {
            ([_], [place]) => *place = &mut self.0,
            _ => return frames.is_empty(),
        }
        true
    }

    fn take(&mut self) -> Option<FrameId> {
        None
    }

    fn give(&mut self, _frame: FrameId) {}
}

impl Frame {
    /// A frame with these bytes at `at`, and how many of them found room.
    fn with(bytes: &[u8], at: usize) -> (Frame, usize) {
        let mut frame = Frame([0; FRAME_BYTES]);
        let length = bytes.len().min(FRAME_BYTES - at);
        frame.0[at..at + length].copy_from_slice(&bytes[..length]);
        (frame, length)
    }
}

/// Bytes that nobody with the key has sealed.
fn as_it_is(ends: &Ends, mut input: Bytes<'_>) {
    // A length that lies reaches beyond the frame.
    let excess = usize::from(input.byte() & 1) * FRAME_BYTES;
    let (mut frame, length) = Frame::with(input.rest(), HEADROOM);
    let esp = HEADROOM..HEADROOM + length + excess;
    if let Ok(mut job) = ends.inbound.open_job(FRAME, &frame.0, esp.clone(), 0) {
        // As if the cipher had found it good: the trailer is read all the same.
        job.authentic = true;
        let stripped = strip(&frame.0, &job, ends.mode());
        assert_eq!(stripped, trailer_by_the_book(&frame.0, &job, ends.mode()));
    }
    let opened = ends.open(&mut frame, esp);
    let around = ends.front() + ends.suite.icv_bytes();
    let block = ends.suite.alignment();
    let expected = match length {
        _ if excess > 0 => OpenError::Truncated,
        length if length < around + TRAILER_BYTES => OpenError::Truncated,
        length if !(length - around).is_multiple_of(block) => OpenError::Alignment,
        _ if !ends.suite.is_authenticated() => return,
        _ => OpenError::Integrity,
    };
    assert_eq!(opened, Err(expected));
}

/// A packet that the SA carries: in tunnel mode any bytes under a made-up parse, in transport mode
/// one between the ends with options or extension headers.
fn packet_to_seal(ends: &Ends, input: &mut Bytes<'_>) -> (Vec<u8>, Packet) {
    let (shape, traffic_class) = (input.byte(), input.byte());
    if ends.mode() == Mode::Tunnel {
        let family = if shape & 1 == 0 { Family::V4 } else { Family::V6 };
        let bytes = input.take(MAX_PAYLOAD_BYTES).to_vec();
        let upper = Upper::None;
        let packet = Packet {
            flow: Flow { family, source: 1, destination: 2, protocol: 253, upper, opens: false },
            length: bytes.len() as u32,
            upper_offset: 0,
            hop_limit: 1,
            traffic_class,
            fragment: Fragment::Whole,
            fragment_fields: wire::FragmentFields::UNKNOWN,
            dont_fragment: shape & 2 != 0,
        };
        return (bytes, packet);
    }
    let mut builder = ends.between().traffic_class(traffic_class).protocol(shape);
    builder = match ends.out.tunnel().local.is_ipv4() {
        true => builder.options(&[1; 40][..usize::from(input.byte() % 11) * 4]),
        false => (0..input.byte() % 9).fold(builder, |builder, n| {
            let number = if n == 0 { protocol::HOP_BY_HOP } else { protocol::DESTINATION };
            builder.extension(number, &[1, 4 + 8 * (n & 1)])
        }),
    };
    let bytes = builder.payload(input.take(MAX_PAYLOAD_BYTES)).ip();
    let is_carried = |packet: &Packet| {
        packet.flow.protocol != protocol::NONE && packet.fragment == Fragment::Whole
    };
    match wire::packet::parse(&bytes) {
        Ok(packet) if is_carried(&packet) => (bytes, packet),
        // Too short for its protocol, say, or a fragment made of the payload.
        _ => {
            let bytes = ends.between().protocol(253).ip();
            let packet = wire::packet::parse(&bytes).expect("a packet without payload");
            (bytes, packet)
        }
    }
}

/// A valid packet that is changed on the way, or is not.
fn sealed_and_changed(ends: &Ends, mut input: Bytes<'_>) {
    let sequence = u64::from(input.word());
    let changes: Vec<(u16, u8)> =
        (0..input.byte() % MAX_CHANGES).map(|_| (input.short(), input.byte())).collect();
    let shorter = usize::from(input.byte());
    let (bytes, packet) = packet_to_seal(ends, &mut input);
    let (mut frame, _) = Frame::with(&bytes, HEADROOM);
    let sealed = ends.out.encapsulate(FRAME, &mut frame.0, HEADROOM, &packet, sequence, 9);
    let Some((job, outer)) = sealed else {
        assert_eq!(sequence, 0, "there is room");
        return;
    };
    if ends.mode() == Mode::Tunnel {
        assert_eq!(outer.len(), ends.out.sealed_length(bytes.len()));
    }
    ends.out.cipher.seal(&mut frame, &[job]).expect("a job inside its frame");
    let (arrived, esp) = outer_packet(ends, &mut frame, outer.clone(), &packet);
    assert_eq!(esp.start, job.aad as usize);

    let before = frame.0;
    for (at, flip) in changes {
        frame.0[esp.start + usize::from(at) % esp.len()] ^= flip;
    }
    let cut = esp.start..esp.end - shorter.min(esp.len());
    let unchanged = cut == esp && frame.0 == before;
    let opened = ends.open(&mut frame, cut);
    if unchanged {
        let place = opened.expect("nothing was changed");
        let place = place_of(&mut frame, outer.start, &arrived, place).expect("it fits");
        assert_eq!(frame.0[place], bytes);
        assert!(ends.inbound.window.check(sequence).is_err(), "sequence {sequence} was opened");
    } else if ends.suite.is_authenticated() {
        let error = opened.expect_err("a changed packet must not open");
        use OpenError::{Alignment, Integrity, Truncated};
        assert!(matches!(error, Truncated | Alignment | Integrity), "{error}");
        assert_eq!(ends.inbound.window.right_edge(), 0, "what is not authentic moves no window");
    } else if let Ok(payload) = opened {
        // Nobody can tell; what comes out lies in the frame all the same.
        place_of(&mut frame, outer.start, &arrived, payload);
    }
}

/// Returns the place in the frame of the packet that an opened one carried.
fn place_of(
    frame: &mut Frame,
    ip: usize,
    arrived: &Packet,
    payload: Payload,
) -> Option<Range<usize>> {
    match payload {
        Payload::Packet(Inner { offset, length, .. }) => Some(offset..offset + length),
        Payload::Upper { protocol, offset, length } => {
            let upper = offset..offset + length;
            let start = restore(&mut frame.0, ip, arrived, protocol, upper)?;
            Some(start..offset + length)
        }
    }
}

/// The packet that leaves is one that a router forwards. Returns what its receiver sees of it, and
/// the place of ESP.
fn outer_packet(
    ends: &Ends,
    frame: &mut Frame,
    outer: Range<usize>,
    inner: &Packet,
) -> (Packet, Range<usize>) {
    let Encapsulation { tunnel, udp, dscp, .. } = ends.out.encapsulation;
    let bytes = &mut frame.0[outer.clone()];
    if udp.is_some() && tunnel.local.is_ipv6() {
        assert!(ipsec::finish_udp(bytes));
    }
    let packet = wire::packet::parse(bytes).expect("what we seal is a packet");
    assert_eq!(packet.length as usize, outer.len());
    assert_eq!(packet.flow.source_address(), tunnel.local.into());
    assert_eq!(packet.flow.destination_address(), tunnel.remote.into());
    let dscp = match dscp {
        Dscp::Fixed(dscp) if ends.mode() == Mode::Tunnel => dscp,
        _ => inner.traffic_class >> 2,
    };
    assert_eq!(packet.traffic_class, dscp << 2 | inner.traffic_class & 3);
    let mut start = outer.start + usize::from(packet.upper_offset);
    match (udp, packet.flow.upper) {
        (None, _) => assert_eq!(packet.flow.protocol, protocol::ESP),
        (Some(ports), Upper::Ports { source, destination }) => {
            assert_eq!(packet.flow.protocol, protocol::UDP);
            assert_eq!((source, destination), (ports.local, ports.remote));
            let length = u16::from_be_bytes([frame.0[start + 4], frame.0[start + 5]]);
            assert_eq!(usize::from(length), outer.end - start);
            start += 8;
        }
        (Some(_), other) => panic!("no UDP: {other:?}"),
    }
    (packet, start..outer.end)
}

/// A peer that seals anything at all under the right key.
fn authentic_text(ends: &Ends, mut input: Bytes<'_>) {
    let sequence = u64::from(input.word());
    let iv = match ends.suite.iv_bytes() {
        8 => sequence.to_be_bytes().to_vec(),
        bytes => [input.take(bytes), &[0; 16]].concat()[..bytes].to_vec(),
    };
    // The packet that carries it, without options; then its ESP.
    let own = ends.between().protocol(protocol::ESP).payload_of(8).ip();
    let esp = HEADROOM + own.len() - 8;
    let (mut frame, _) = Frame::with(&own, HEADROOM);
    let arrived = wire::packet::parse(&own).expect("a packet");
    let text = input.take(MAX_PAYLOAD_BYTES);
    let at = esp + ends.front();
    let header = u64::from(ends.out.spi.value()) << 32 | sequence;
    frame.0[esp..esp + 8].copy_from_slice(&header.to_be_bytes());
    frame.0[esp + 8..at].copy_from_slice(&iv);
    frame.0[at..at + text.len()].copy_from_slice(text);
    let esp = esp..at + text.len() + ends.suite.icv_bytes();

    // The nonce as the receiver makes it.
    let Ok(job) = ends.inbound.open_job(FRAME, &frame.0, esp.clone(), 0) else {
        let block = ends.suite.alignment();
        assert!(text.len() < TRAILER_BYTES || !text.len().is_multiple_of(block));
        return;
    };
    let OpenJob { aad, text: text_at, text_length, nonce, sequence, row, .. } = job;
    let seal = SealJob { frame: FRAME, aad, text: text_at, text_length, nonce, sequence, row };
    ends.out.cipher.seal(&mut frame, &[seal]).expect("a job inside its frame");
    let opened = ends.open(&mut frame, esp);
    assert_ne!(opened, Err(OpenError::Integrity), "sealed with the SA's own key");
    let Ok(payload) = opened else { return };
    let (Payload::Packet(Inner { offset, length, .. }) | Payload::Upper { offset, length, .. }) =
        payload;
    assert_eq!(offset, at);
    assert_eq!(frame.0[at..at + length], text[..length]);
    let place = place_of(&mut frame, HEADROOM, &arrived, payload).expect("it fits");
    if let Payload::Upper { protocol, .. } = payload {
        restored_by_the_book(&frame.0[place], &own, protocol, &text[..length]);
    }
}

/// RFC 4303 §3.1.1 the other way: the header says what follows and how long it is, and is otherwise
/// as it came.
fn restored_by_the_book(packet: &[u8], own: &[u8], protocol: u8, upper: &[u8]) {
    let header = own.len() - 8;
    let mut expected = own[..header].to_vec();
    if own[0] >> 4 == 4 {
        expected[2..4].copy_from_slice(&(packet.len() as u16).to_be_bytes());
        expected[9] = protocol;
        expected[10..12].fill(0);
        let checksum = wire::checksum::finish(wire::checksum::sum(&expected));
        expected[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        expected[4..6].copy_from_slice(&(upper.len() as u16).to_be_bytes());
        expected[6] = protocol;
    }
    assert_eq!(packet, [&expected, upper].concat());
}

/// RFC 4303 §2.4 to §2.6, one clause after the other.
fn trailer_by_the_book(frame: &[u8], job: &OpenJob, mode: Mode) -> Result<Payload, OpenError> {
    if !job.authentic {
        return Err(OpenError::Integrity);
    }
    let (start, length) = (job.text as usize, job.text_length as usize);
    let text = &frame[start..start + length];
    let (pad_length, next_header) = (usize::from(text[length - 2]), text[length - 1]);
    if pad_length > length - 2 {
        return Err(OpenError::Padding);
    }
    let payload = length - 2 - pad_length;
    for place in 0..pad_length {
        if usize::from(text[payload + place]) != place + 1 {
            return Err(OpenError::Padding);
        }
    }
    if next_header == 59 {
        return Err(OpenError::Dummy);
    }
    if mode == Mode::Transport {
        return Ok(Payload::Upper { protocol: next_header, offset: start, length: payload });
    }
    let family = match next_header {
        4 => Family::V4,
        41 => Family::V6,
        _ => return Err(OpenError::NextHeader),
    };
    Ok(Payload::Packet(Inner { family, offset: start, length: payload }))
}
