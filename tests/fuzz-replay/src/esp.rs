//! ESP: opening what anybody may have sent.

use std::ops::Range;
use std::sync::Arc;

use ipsec::esp::{ICV_BYTES, SMALLEST, TRAILER_BYTES, strip};
use ipsec::{
    InboundSa, Inner, KeyMaterial, OpenError, OpenJob, OutboundSa, ReplayWindow, SaId, SealJob,
    SequenceCounter, SequenceNumbers, Spi, Suite, Tunnel,
};
use policy::SaSetId;
use wire::flow::protocol;
use wire::{Family, FrameId, Frames, HEADROOM};

use crate::Bytes;

/// Bytes of the frame that everything happens in.
const FRAME_BYTES: usize = 4096;
/// Room for an inner packet: what is behind the headroom, trailer and ICV taken off.
const MAX_INNER_BYTES: usize = FRAME_BYTES - HEADROOM - ICV_BYTES - 8;
/// Changes made to a sealed packet at most.
const MAX_CHANGES: u8 = 8;

/// Opens with a fixed SA. The first byte says which SA and what is opened:
/// 0. the input as it is, as an ESP packet;
/// 1. the input sealed in tunnel mode, then changed where the input says;
/// 2. the input sealed as the text, trailer included, so that it is authentic whatever it says.
pub fn esp_open(data: &[u8]) {
    let mut input = Bytes::new(data);
    let choice = input.byte();
    let suite = Suite::ALL[usize::from(choice & 1)];
    let numbers = match choice & 2 {
        0 => SequenceNumbers::Short,
        _ => SequenceNumbers::Extended,
    };
    let tunnel = match choice & 4 {
        0 => ("192.0.2.1", "198.51.100.7"),
        _ => ("2001:db8::1", "2001:db8::7"),
    };
    let ends = Ends::new(suite, numbers, tunnel);
    match choice >> 3 & 3 {
        0 | 3 => as_it_is(&ends, input),
        1 => sealed_and_changed(&ends, input),
        _ => authentic_text(&ends, input),
    }
}

/// Both ends of one SA.
struct Ends {
    out: OutboundSa,
    inbound: InboundSa,
}

impl Ends {
    fn new(suite: Suite, numbers: SequenceNumbers, (a, b): (&str, &str)) -> Ends {
        let (local, remote) = (a.parse().expect("an address"), b.parse().expect("an address"));
        let key: Vec<u8> = (0..suite.material_bytes() as u8).map(|n| n ^ 0x5a).collect();
        let material = KeyMaterial::new(suite, &key).expect("as long as the suite says");
        let spi = Spi::new(0x0102_0304).expect("not reserved");
        let window = ReplayWindow::new(64, numbers).expect("a size that is offered");
        let (id, set) = (SaId(0), SaSetId(0));
        let counter = Arc::new(SequenceCounter::new(numbers));
        let there = Tunnel { local, remote };
        let back = Tunnel { local: remote, remote: local };
        let out = OutboundSa::new(id, spi, set, &material, there, counter);
        let inbound = InboundSa::new(id, spi, set, &material, back, Arc::new(window));
        Ends { out: out.expect("one family"), inbound: inbound.expect("one family") }
    }

    /// Bytes of the outer IP header.
    fn outer_bytes(&self) -> usize {
        if self.out.tunnel.local.is_ipv4() { 20 } else { 40 }
    }

    /// What the walk does with an ESP packet: the inner packet, or why there is none.
    fn open(&self, frames: &mut Frame, esp: Range<usize>) -> Result<Inner, OpenError> {
        let mut jobs = [self.inbound.open_job(FrameId(0), &frames.0, esp.clone(), 7)?];
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
        let stripped = strip(&frames.0, &job);
        assert_eq!(stripped, trailer_by_the_book(&frames.0, &job));
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
    if let Ok(mut job) = ends.inbound.open_job(FrameId(0), &frame.0, esp.clone(), 0) {
        // As if the cipher had found it good: the trailer is read all the same.
        job.authentic = true;
        assert_eq!(strip(&frame.0, &job), trailer_by_the_book(&frame.0, &job));
    }
    let opened = ends.open(&mut frame, esp);
    let expected = match length {
        _ if excess > 0 => OpenError::Truncated,
        length if length < SMALLEST => OpenError::Truncated,
        length if length % 4 != 0 => OpenError::Alignment,
        _ => OpenError::Integrity,
    };
    assert_eq!(opened, Err(expected));
}

/// A valid packet that is changed on the way, or is not.
fn sealed_and_changed(ends: &Ends, mut input: Bytes<'_>) {
    let family = input.pick(&[Family::V4, Family::V6]);
    let traffic_class = input.byte();
    let sequence = u64::from(input.word());
    let changes: Vec<(u16, u8)> =
        (0..input.byte() % MAX_CHANGES).map(|_| (input.short(), input.byte())).collect();
    let shorter = usize::from(input.byte());
    let inner_bytes = input.take(MAX_INNER_BYTES);
    let (mut frame, length) = Frame::with(inner_bytes, HEADROOM);
    let inner = Inner { family, offset: HEADROOM, length };
    let sealed = ends.out.encapsulate(FrameId(0), &mut frame.0, inner, traffic_class, sequence, 9);
    let Some((job, outer)) = sealed else {
        assert_eq!(sequence, 0, "there is room");
        return;
    };
    assert_eq!(outer.len(), ends.out.sealed_length(length));
    ends.out.cipher.seal(&mut frame, &[job]).expect("a job inside its frame");
    outer_header_is_good(ends, &frame.0[outer.clone()], traffic_class);

    let esp = outer.start + ends.outer_bytes()..outer.end;
    let before = frame.0;
    for (at, flip) in changes {
        frame.0[esp.start + usize::from(at) % esp.len()] ^= flip;
    }
    let cut = esp.start..esp.end - shorter.min(esp.len());
    let unchanged = cut == esp && frame.0 == before;
    let opened = ends.open(&mut frame, cut);
    if unchanged {
        assert_eq!(opened, Ok(inner));
        assert_eq!(frame.0[inner.offset..][..length], *inner_bytes);
        assert!(ends.inbound.window.check(sequence).is_err(), "sequence {sequence} was opened");
    } else {
        let error = opened.expect_err("a changed packet must not open");
        use OpenError::{Alignment, Integrity, Truncated};
        assert!(matches!(error, Truncated | Alignment | Integrity), "{error}");
        assert_eq!(ends.inbound.window.right_edge(), 0, "what is not authentic moves no window");
    }
}

/// The outer packet is one that a router forwards.
fn outer_header_is_good(ends: &Ends, outer: &[u8], traffic_class: u8) {
    let packet = wire::packet::parse(outer).expect("what we seal is a packet");
    assert_eq!(packet.length as usize, outer.len());
    assert_eq!(packet.flow.protocol, protocol::ESP);
    assert_eq!(packet.flow.source_address(), ends.out.tunnel.local.into());
    assert_eq!(packet.flow.destination_address(), ends.out.tunnel.remote.into());
    assert_eq!(packet.traffic_class >> 2, traffic_class >> 2, "DSCP");
}

/// A peer that seals anything at all under the right key.
fn authentic_text(ends: &Ends, mut input: Bytes<'_>) {
    let sequence = u64::from(input.word());
    let text = input.take(MAX_INNER_BYTES);
    let at = HEADROOM + 16;
    let (mut frame, length) = Frame::with(text, at);
    let header = u64::from(ends.out.spi.value()) << 32 | sequence;
    frame.0[HEADROOM..at - 8].copy_from_slice(&header.to_be_bytes());
    frame.0[at - 8..at].copy_from_slice(&sequence.to_be_bytes());
    // The nonce as the receiver makes it.
    let Ok(job) = ends.inbound.open_job(FrameId(0), &frame.0, HEADROOM..at + length + ICV_BYTES, 0)
    else {
        assert!(length < TRAILER_BYTES || length % 4 != 0, "a text of {length} bytes");
        return;
    };
    let OpenJob { aad, text: text_at, text_length, nonce, sequence, row, .. } = job;
    let seal = SealJob { frame: FrameId(0), aad, text: text_at, text_length, nonce, sequence, row };
    ends.out.cipher.seal(&mut frame, &[seal]).expect("a job inside its frame");
    let opened = ends.open(&mut frame, HEADROOM..at + length + ICV_BYTES);
    assert_ne!(opened, Err(OpenError::Integrity), "sealed with the SA's own key");
    if let Ok(inner) = opened {
        assert_eq!(inner.offset, at);
        assert_eq!(frame.0[at..at + inner.length], text[..inner.length]);
    }
}

/// RFC 4303 §2.4 to §2.6, one clause after the other.
fn trailer_by_the_book(frame: &[u8], job: &OpenJob) -> Result<Inner, OpenError> {
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
    let family = match next_header {
        4 => Family::V4,
        41 => Family::V6,
        59 => return Err(OpenError::Dummy),
        _ => return Err(OpenError::NextHeader),
    };
    Ok(Inner { family, offset: start, length: payload })
}
