//! Captures: a tap in every worker, drained here and sent to the client. Each is bounded in
//! packets, time and rate, and ends with its client. A client that reads slowly loses packets,
//! which are counted; the workers never wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::{MAX_CAPTURES, v1};
use dataplane::tap::{self, Fate, Layer, Layers, Outcome};
use dataplane::{CapturedPacket, DropReason, Medium, TapId, TapReader, TapSettings, Verdict};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::backend::{CaptureError, CaptureOrder};
use crate::events::{Events, Kind};
use crate::picture::Picture;
use crate::who::Uid;
use crate::worker::{Caller, Command};

/// Time between two looks into the rings.
const DRAIN_EVERY: Duration = Duration::from_millis(10);
/// Packets of one message at most.
const MESSAGE_PACKETS: usize = 256;
/// Messages that wait for a client at most.
const MESSAGES_WAITING: usize = 4;
/// Time that the last packets may take to a client that reads slowly.
const LAST: Duration = Duration::from_secs(2);
/// A capture takes its rate of a second divided by this at once.
const BURSTS_A_SECOND: u64 = 5;
/// Packets that even the slowest capture takes at once.
const LEAST_BURST: u64 = 16;

/// The captures that run.
pub(crate) struct Captures {
    permits: Arc<Semaphore>,
    next: AtomicU64,
}

impl Default for Captures {
    fn default() -> Captures {
        Captures { permits: Arc::new(Semaphore::new(MAX_CAPTURES)), next: AtomicU64::new(0) }
    }
}

impl Captures {
    /// Begins a capture and returns its stream; a task of its own sees it to its end.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub(crate) fn begin(
        &self,
        running: &Picture,
        (order, by): (CaptureOrder, Uid),
        events: Events,
    ) -> Result<mpsc::Receiver<v1::Captured>, CaptureError> {
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| CaptureError::TooMany)?;
        if running.stopping {
            return Err(CaptureError::Stopping);
        }
        if let Some(port) = &order.port {
            control::port_named(&running.snapshot, port)?;
        }
        let workers = running.workers.all().to_vec();
        let id = TapId(self.next.fetch_add(1, Ordering::Relaxed));
        let (to, stream) = mpsc::channel(MESSAGES_WAITING);
        let bounds = order.bounds;
        let settings = TapSettings {
            id,
            port: order.port.clone(),
            layers: order.layers,
            outcome: order.outcome,
            filter: order.filter.clone(),
            snaplen: bounds.snaplen,
            packets: bounds.packets,
        };
        report_start(&events, &order, by);
        let capture = Capture {
            settings,
            subject: subject(&order),
            bounds,
            workers,
            to,
            events,
            by,
            started: Instant::now(),
            sent: SentCounts::default(),
            _permit: permit,
        };
        tokio::spawn(capture.run());
        Ok(stream)
    }
}

/// The port that a capture is about, for events.
fn subject(order: &CaptureOrder) -> String {
    order.port.clone().unwrap_or_else(|| "all ports".into())
}

fn report_start(events: &Events, order: &CaptureOrder, by: Uid) {
    let v1::CaptureBounds { snaplen, packets, seconds, packets_per_second } = order.bounds;
    let shown = match order.layers {
        Layers::Outer => "packets as they are on the wire",
        Layers::Inner => "packets inside tunnels, which policies hide from the wire",
        Layers::Both => "packets on the wire and inside tunnels, which policies hide from the wire",
    };
    let layers = match order.layers {
        Layers::Outer => "outer",
        Layers::Inner => "inner",
        Layers::Both => "both",
    };
    let drops = match order.outcome {
        Outcome::Any => "",
        Outcome::Dropped => ", dropped ones only",
    };
    let filter = if order.filter_text.is_empty() { "none" } else { &order.filter_text };
    let details: crate::events::Details<'_> = &[
        ("filter", &filter),
        ("layers", &layers),
        ("snaplen", &snaplen),
        ("packets", &packets),
        ("seconds", &seconds),
        ("packets_per_second", &packets_per_second),
    ];
    let message = format!("captures {shown}{drops}");
    events.audit(by, Kind::CaptureStarted, &subject(order), message, details);
}

/// The reason why a capture ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaptureEnd {
    Packets,
    Seconds,
    ClientGone,
    WorkerGone,
}

impl CaptureEnd {
    const fn text(self) -> &'static str {
        match self {
            CaptureEnd::Packets => "packet limit reached",
            CaptureEnd::Seconds => "time limit reached",
            CaptureEnd::ClientGone => "the client disconnected",
            CaptureEnd::WorkerGone => "the daemon ends",
        }
    }
}

/// Counts of what went to the client.
#[derive(Default)]
struct SentCounts {
    packets: u64,
    bytes: u64,
    /// Packets that were read from the rings and that the client did not take.
    lost: u64,
}

/// A capture that runs.
struct Capture {
    settings: TapSettings,
    subject: String,
    bounds: v1::CaptureBounds,
    workers: Vec<Caller>,
    to: mpsc::Sender<v1::Captured>,
    events: Events,
    by: Uid,
    started: Instant,
    sent: SentCounts,
    _permit: OwnedSemaphorePermit,
}

impl Capture {
    async fn run(mut self) {
        let (taps, mut reader) = tap::taps(&self.settings, self.workers.len());
        let burst = (u64::from(self.bounds.packets_per_second) / BURSTS_A_SECOND).max(LEAST_BURST);
        reader.allow(burst, burst);
        let mut answers = Vec::new();
        for (worker, tap) in self.workers.iter().zip(taps) {
            answers.push(worker.send(|reply| Command::AddTap { tap, reply }));
        }
        let mut epochs = Vec::new();
        for answer in answers {
            let Ok(answer) = answer else { continue };
            epochs.extend(answer.await.map(unix_ns_of));
        }
        let end = match epochs.len() == self.workers.len() {
            true => self.follow(&mut reader, &epochs, burst).await,
            false => CaptureEnd::WorkerGone,
        };
        let mut answers = Vec::new();
        for worker in &self.workers {
            let id = self.settings.id;
            answers.extend(worker.send(|reply| Command::RemoveTap { id, reply }));
        }
        for answer in answers {
            // A worker that has ended has no tap.
            drop(answer.await);
        }
        self.finish(&mut reader, &epochs, end).await;
    }

    /// Sends packets on until a bound is reached.
    async fn follow(&mut self, reader: &mut TapReader, epochs: &[u64], burst: u64) -> CaptureEnd {
        let rate = u64::from(self.bounds.packets_per_second);
        let until = self.started + Duration::from_secs(self.bounds.seconds.into());
        let first = v1::Captured { bounds: Some(self.bounds), ..v1::Captured::default() };
        if self.to.send(first).await.is_err() {
            return CaptureEnd::ClientGone;
        }
        let mut clock = interval(DRAIN_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut allowed, mut told) = (0, 0);
        loop {
            clock.tick().await;
            let due = (self.started.elapsed().as_micros() as u64).saturating_mul(rate) / 1_000_000;
            reader.allow(due.saturating_sub(allowed), burst);
            allowed = due;
            loop {
                let message = self.next_message(reader, epochs);
                let left_out = message.left_out_by_rate + message.left_out_by_room;
                let packets = message.packets.len();
                if packets == 0 && left_out == told {
                    break;
                }
                told = left_out;
                let left = until.saturating_duration_since(Instant::now());
                match timeout(left, self.to.send(message)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return CaptureEnd::ClientGone,
                    Err(_) => {
                        self.sent.packets -= packets as u64;
                        self.sent.lost += packets as u64;
                        return CaptureEnd::Seconds;
                    }
                }
                if packets < MESSAGE_PACKETS {
                    break;
                }
            }
            if self.to.is_closed() {
                return CaptureEnd::ClientGone;
            }
            if self.sent.packets >= self.bounds.packets {
                return CaptureEnd::Packets;
            }
            if Instant::now() >= until {
                return CaptureEnd::Seconds;
            }
        }
    }

    /// Sends what is left in the rings and the end, and records it.
    async fn finish(&mut self, reader: &mut TapReader, epochs: &[u64], end: CaptureEnd) {
        let last = async {
            loop {
                let message = self.next_message(reader, epochs);
                let packets = message.packets.len() as u64;
                if packets == 0
                    || end == CaptureEnd::ClientGone
                    || self.to.send(message).await.is_err()
                {
                    self.sent.packets -= packets;
                    self.sent.lost += packets;
                    break;
                }
            }
            let ended = end.text().to_owned();
            let message = v1::Captured { ended, ..self.next_message(reader, epochs) };
            // A client that has gone is told nothing.
            let _ = self.to.send(message).await;
        };
        let _ = timeout(LAST, last).await;
        let left_out = reader.left_out().total() + self.sent.lost;
        let SentCounts { packets, bytes, .. } = self.sent;
        let seconds = format!("{:.3}", self.started.elapsed().as_secs_f64());
        let details: crate::events::Details<'_> = &[
            ("packets", &packets),
            ("bytes", &bytes),
            ("left_out", &left_out),
            ("seconds", &seconds),
        ];
        let message = format!("{packets} packets captured: {}", end.text());
        self.events.audit(self.by, Kind::CaptureEnded, &self.subject, message, details);
    }

    /// Takes packets out of the rings, oldest first, as many as a message and the capture hold.
    fn next_message(&mut self, reader: &mut TapReader, epochs: &[u64]) -> v1::Captured {
        let mut packets: Vec<v1::CapturedPacket> = Vec::new();
        let wanted = self.bounds.packets.saturating_sub(self.sent.packets);
        let room = (MESSAGE_PACKETS as u64).min(wanted) as usize;
        for worker in 0..reader.workers() {
            while packets.len() < room {
                let Some(tapped) = reader.take(worker) else { break };
                let epoch = epochs.get(worker).copied().unwrap_or_default();
                packets.push(present(tapped, epoch));
            }
        }
        packets.sort_by_key(|packet| packet.unix_ns);
        self.sent.packets += packets.len() as u64;
        self.sent.bytes += packets.iter().map(|packet| packet.bytes.len() as u64).sum::<u64>();
        let left_out = reader.left_out();
        v1::Captured {
            packets,
            left_out_by_rate: left_out.beyond_rate,
            left_out_by_room: left_out.ring_full + self.sent.lost,
            ..v1::Captured::default()
        }
    }
}

/// Nanoseconds since 1970 of a moment that is not long ago.
fn unix_ns_of(moment: Instant) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = now.saturating_sub(moment.elapsed());
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

/// A packet in the API's words.
fn present(tapped: CapturedPacket, epoch_ns: u64) -> v1::CapturedPacket {
    let reason = match tapped.verdict {
        Some(Verdict::Drop(reason)) => DropReason::name(reason),
        _ => "",
    };
    let link = match tapped.medium {
        Medium::Ethernet => "ethernet",
        Medium::Ip => "ip",
    };
    v1::CapturedPacket {
        unix_ns: epoch_ns.saturating_add(tapped.now_ns),
        port: tapped.port,
        direction: tapped.heading.name().into(),
        inner: tapped.layer == Layer::Inner,
        link: link.into(),
        original_length: tapped.original,
        bytes: tapped.bytes,
        verdict: tapped.verdict.map_or("", |verdict| Fate::of(verdict).name()).into(),
        reason: reason.into(),
        to: tapped.to,
        opened_from: tapped.opened_from,
        inbound_policy: tapped.inbound_policy,
        outbound_policy: tapped.outbound_policy,
        worker: tapped.worker as u32,
    }
}
