//! The emulated card's own ESP at work on a thread of its own, beside the workers.
//!
//! ```text
//! worker   walks frames (timed) ── copies them (not timed) ──▶ queue ──▶ engine: seals each
//!                                    full: they are passed over            0, 1 or 10 times
//! ```
//!
//! The workers never wait for it, as a host does not wait for its card. It counts what it has
//! sealed: the rate of the host is not the rate of the card. It seals each frame as a clear one, in
//! rows of crypto mode and of packets that come in too: that costs as much as the card's real work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use emulated_card::{EmulatedCard, Sent};
use ipsec::Suite;
use offload::{
    Capabilities, Card as _, CardSa, Carrier, Carries, Ends, FlowConfidentiality, Handle,
    Incarnation, Item, Numbers, OuterFields, SaDirection, SaKey, SaLimits, SaMode, Service, Tag,
};
use wire::CardHeader;

use super::machine;

/// Batches that wait for the engine at most.
const WAITING: usize = 2;
/// SPI of its SAs: nothing of what it seals leaves.
const SPI: u32 = 0x4c47_0001;

/// The thread, and what it has done. Ends when it is dropped.
pub(super) struct Engine {
    queue: Option<SyncSender<Batch>>,
    /// Times that each packet is sealed.
    times: Arc<AtomicU32>,
    sealed: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Packets of one lap, as the card gets them.
pub(super) struct Batch {
    suite: Suite,
    /// Bytes in front of each frame that are for the card itself.
    header: usize,
    bytes: Vec<u8>,
    /// Ends of the packets in `bytes`.
    ends: Vec<usize>,
}

impl Batch {
    pub(super) fn new(suite: Suite, has_header: HasHeader) -> Batch {
        let header = if has_header == HasHeader::Yes { CardHeader::BYTES } else { 0 };
        Batch { suite, header, bytes: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
    }

    /// The frames, without what is for the card itself.
    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).filter_map(|(begin, end)| {
            self.bytes.get(begin..*end).and_then(|packet| packet.get(self.header..))
        })
    }
}

/// Presence of a card's header in front of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HasHeader {
    Yes,
    No,
}

impl Engine {
    /// Starts the thread, on this core if there is one for it.
    pub(super) fn start(core: Option<usize>) -> Engine {
        let (queue, batches) = sync_channel(WAITING);
        let (times, sealed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let shared = (times.clone(), sealed.clone());
        let thread = thread::spawn(move || {
            if let Some(core) = core {
                // Elsewhere it is only slower.
                let _ = machine::pin(Some(core));
            }
            work(&batches, &shared.0, &shared.1);
        });
        Engine { queue: Some(queue), times, sealed, thread: Some(thread) }
    }

    /// Sets how often it seals each packet from now on.
    pub(super) fn seal_each(&self, times: u32) {
        self.times.store(times, Ordering::Release);
    }

    /// Gives it packets, unless it is behind.
    pub(super) fn give(&self, batch: Batch) {
        let _ = self.queue.as_ref().map(|queue| queue.try_send(batch));
    }

    /// Packets that it has sealed so far, once or as often as it was to.
    pub(super) fn sealed(&self) -> u64 {
        self.sealed.load(Ordering::Acquire)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it was printed.
            let _ = thread.join();
        }
    }
}

/// Seals until the queue is closed.
fn work(batches: &Receiver<Batch>, times: &AtomicU32, sealed: &AtomicU64) {
    let mut card = card();
    for batch in batches {
        let times = times.load(Ordering::Acquire);
        let tag = tag_of(batch.suite);
        for frame in batch.frames() {
            let all = (0..times).all(|_| matches!(card.send(tag, frame), Sent::Frame(_)));
            sealed.fetch_add(u64::from(all && times > 0), Ordering::AcqRel);
        }
    }
}

/// A card with an SA of each suite that it has. Their keys are of no other SA.
fn card() -> EmulatedCard {
    let capabilities: Capabilities = "emulated:sas=64".parse().expect("words of a profile");
    let mut card = EmulatedCard::new(capabilities, 1);
    for suite in Suite::ALL {
        card.place(&Item::Sa(sa(*suite).into()), tag_of(*suite));
    }
    card.advance(u64::from(u32::MAX));
    card
}

fn tag_of(suite: Suite) -> Tag {
    let place = Suite::ALL.iter().position(|one| *one == suite).unwrap_or(0) as u32;
    Tag { handle: Handle::new(place + 1).expect("not 0"), incarnation: Incarnation(0) }
}

fn sa(suite: Suite) -> CardSa {
    let mut key = vec![0; suite.material_bytes()];
    // Zeros do as well: nothing of what it seals leaves.
    let _ = getrandom::fill(&mut key);
    let ends = ["192.0.2.1", "198.51.100.7"].map(|ip| ip.parse().expect("an address"));
    CardSa {
        direction: SaDirection::Out,
        spi: SPI,
        ends: Ends { source: ends[0], destination: ends[1] },
        mode: SaMode::Tunnel(OuterFields::LeftToCard),
        udp: None,
        service: Service::Packet,
        carrier: Carrier::Worker,
        suite: suite.name().into(),
        key: SaKey::new(&key),
        icv_bytes: 16,
        numbers: Numbers::Extended,
        window: 64,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: SaLimits { hard_packets: Some(u64::from(u32::MAX)), ..SaLimits::default() },
        carries: Carries::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Address;
    use wire::build::PacketBuilder;

    #[test]
    fn every_packet_of_a_batch_is_sealed() {
        for header in [HasHeader::No, HasHeader::Yes] {
            for times in [1, 3] {
                let engine = Engine::start(None);
                engine.seal_each(times);
                let mut batch = Batch::new(Suite::Aes256Gcm, header);
                let ip = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
                let frame = PacketBuilder::new(ip("10.1.0.1"), ip("10.2.0.1"))
                    .udp(1, 2)
                    .payload_of(30)
                    .frame([2; 6], [4; 6], None);
                let card = CardHeader::Sa(7).bytes();
                for _ in 0..5 {
                    match header {
                        HasHeader::Yes => batch.push(&[&card[..], &frame].concat()),
                        HasHeader::No => batch.push(&frame),
                    }
                }
                engine.give(batch);
                let sealed = engine.sealed.clone();
                drop(engine);
                assert_eq!(sealed.load(Ordering::Acquire), 5, "{header:?}");
            }
        }
    }

    #[test]
    fn what_is_no_packet_is_not_counted_as_sealed() {
        let engine = Engine::start(None);
        engine.seal_each(1);
        let mut batch = Batch::new(Suite::Aes128Gcm, HasHeader::No);
        batch.push(&[0; 60]);
        engine.give(batch);
        let sealed = engine.sealed.clone();
        drop(engine);
        assert_eq!(sealed.load(Ordering::Acquire), 0);
    }
}
