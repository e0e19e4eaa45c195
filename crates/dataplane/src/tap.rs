//! A capture's place in a worker: a tap copies packets, with what became of them, into a bounded
//! ring that the control side drains. It changes no verdict, no tier and no counter but its own,
//! and it never waits: what finds the ring full is counted as left out.
//!
//! A tap sees packets of a batch at these points, and says what became of them when the batch has
//! been sent:
//! 1. as received, before anything is changed: [`Layer::Outer`], [`Heading::In`]
//! 2. what an SA opened: [`Layer::Inner`], [`Heading::In`]
//! 3. what is to be sealed, before it is: [`Layer::Inner`], [`Heading::Out`]
//! 4. as sent, with all headers: [`Layer::Outer`], [`Heading::Out`]
//!
//! The policies that decided a packet are found by asking the walk's own questions once more (see
//! `rule`), and only for packets that go into the ring: the walk itself remembers nothing for a
//! capture.
//!
//! Not seen here: what the steering program passed to Linux or dropped in the kernel.

pub mod filter;
mod ring;
mod rule;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use wire::link::{Link, Tag};
use wire::{BATCH, Descriptor, FrameId, Frames, Received, packet::parse_quoted};

use crate::card_sas;
use crate::ids::{NetdevId, PortId, RouteGeneration};
use crate::input::Input;
use crate::outputs::{HeldPacket, Outputs};
use crate::port::Medium;
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::stage::NoClock;
use crate::tx_batch::TxBatch;
use crate::verdict::{DropReason, Verdict};
use crate::walk::Walk;
use crate::watch::{Beside, Point, Watch};
pub use filter::{Ends, Fate, Filter, Heading, Subject, Test};
use ring::{Admission, NAMES, Outgoing, Record, Shared};
pub use ring::{CapturedPacket, LeftOut, RING_BYTES, RING_PACKETS, TapReader};
use rule::Rule;

/// Bytes of a packet that are taken at most.
pub const MAX_SNAPLEN: u32 = 9216;
/// Bytes of a packet that the filter and the questions need: link header, IP header with options,
/// and what an ICMP error quotes.
const HEAD_BYTES: usize = 192;
/// Sightings of a batch at most: each packet at three points, and as many again that were made.
const MAX_SEEN: usize = 4 * BATCH;

/// The layer at which a packet was seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layer {
    /// The packet as it is on the wire.
    Outer,
    /// The packet inside a tunnel: opened, or not sealed yet.
    Inner,
}

/// Layers that a capture shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layers {
    /// Packets as they are on the wire.
    Outer,
    /// Packets inside tunnels.
    Inner,
    /// Both.
    Both,
}

/// Packets that a capture shows, by what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All.
    Any,
    /// Dropped ones.
    Dropped,
}

/// Names a tap for the worker's commands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TapId(pub u64);

/// Settings of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapSettings {
    /// Number of the tap.
    pub id: TapId,
    /// The port's name; `None`: all ports.
    pub port: Option<String>,
    /// Layers that are shown.
    pub layers: Layers,
    /// Outcomes that are shown.
    pub outcome: Outcome,
    /// Packets that it refuses are not taken; `None`: it refuses none.
    pub filter: Option<Filter>,
    /// Bytes of a packet that are taken, at most [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// Packets that are taken in all.
    pub packets: u64,
}

impl Watch for [Box<Tap>] {
    fn look<F: Frames>(&mut self, point: Point, snapshot: &Snapshot, rows: &[Row], frames: &F) {
        self.iter_mut().for_each(|tap| tap.look(point, snapshot, rows, frames));
    }
}

/// One worker's tap of a capture.
pub struct Tap {
    settings: TapSettings,
    out: Outgoing,
    shared: Arc<Shared>,
    /// The route generation under which `port` was found.
    found_under: Option<RouteGeneration>,
    port: Option<PortId>,
    seen: Vec<SeenPacket>,
    /// Beginnings of the packets in `seen` and `known`.
    bytes: Vec<u8>,
    known: Vec<KnownRow>,
    /// The policies that decided the rows in `known`, as far as they were asked again: a packet is
    /// seen up to four times.
    rules: Vec<Option<Rule>>,
    /// Packets that were received in the batch.
    received: u32,
    /// Packets of the batch that were not looked at: there was no room.
    overlooked: u64,
}

/// A packet that was seen at a point.
#[derive(Clone, Copy)]
struct SeenPacket {
    layer: Layer,
    heading: Heading,
    port: Option<PortId>,
    medium: Medium,
    frame: FrameId,
    /// The place of its verdict; `None`: it has none, or it is found by the frame.
    place: Option<u32>,
    original: u32,
    head: Part,
    /// Reason why it was dropped behind the walk, if it was.
    refused: Option<DropReason>,
}

/// Bytes that were copied.
#[derive(Clone, Copy)]
struct Part {
    start: u32,
    length: u32,
}

/// A row that the policies were asked about.
#[derive(Clone, Copy)]
struct KnownRow {
    row: Row,
    /// The beginning of its IP packet.
    head: Part,
}

/// Makes the taps of a capture, one a worker, and the end that reads them.
pub fn taps(settings: &TapSettings, workers: usize) -> (Vec<Box<Tap>>, TapReader) {
    let snaplen = settings.snaplen.min(MAX_SNAPLEN);
    let (rings, reader) = ring::rings(workers, snaplen, settings.packets);
    let head = HEAD_BYTES.max(snaplen as usize);
    let make = |out| {
        Box::new(Tap {
            settings: TapSettings { snaplen, ..settings.clone() },
            out,
            shared: reader.shared(),
            found_under: None,
            port: None,
            seen: Vec::with_capacity(MAX_SEEN),
            bytes: Vec::with_capacity(MAX_SEEN * head),
            known: Vec::with_capacity(MAX_SEEN),
            rules: Vec::with_capacity(MAX_SEEN),
            received: 0,
            overlooked: 0,
        })
    };
    (rings.into_iter().map(make).collect(), reader)
}

impl Tap {
    /// Returns the number of the tap.
    pub fn id(&self) -> TapId {
        self.settings.id
    }

    /// Sees packets as they were received, before the walk.
    pub(crate) fn received<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        netdev: NetdevId,
        packets: &[Received],
        frames: &F,
    ) {
        self.begin(snapshot);
        self.received = packets.len() as u32;
        if self.settings.layers == Layers::Inner {
            return;
        }
        let medium = snapshot.medium(netdev).unwrap_or(Medium::Ethernet);
        for (place, Received { packet, .. }) in packets.iter().enumerate() {
            let bytes = packet_bytes(packet, frames);
            let port = port_of(snapshot, netdev, medium, bytes);
            self.see(Heading::In, port, medium, packet, Some(place as u32), frames);
        }
    }

    /// Sees packets that are about to be given to their ports.
    pub(crate) fn sent<F: Frames>(&mut self, snapshot: &Snapshot, tx: &TxBatch, frames: &F) {
        self.find_port(snapshot);
        if self.settings.layers == Layers::Inner {
            return;
        }
        for tx_packet in tx.iter() {
            let medium = snapshot.path_port(tx_packet.egress).medium;
            let packet = card_sas::behind_header(snapshot, &tx_packet, frames);
            self.see(Heading::Out, Some(tx_packet.egress), medium, &packet, None, frames);
        }
    }

    /// Sees a packet that waited for its neighbour in vain: without a link header.
    pub(crate) fn held_in_vain<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        (held, reason): (&HeldPacket, DropReason),
        frames: &F,
    ) {
        self.find_port(snapshot);
        if self.settings.layers != Layers::Inner {
            let port = Some(held.egress);
            self.see(Heading::Out, port, Medium::Ip, &held.packet, None, frames);
            self.refused(held.packet.frame, reason);
        }
    }

    /// Sees a packet that waited for an SA in vain: not sealed.
    pub(crate) fn waited_in_vain<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        (row, reason): (&Row, DropReason),
        frames: &F,
    ) {
        self.find_port(snapshot);
        if self.settings.layers != Layers::Outer && self.wants_port(None) {
            self.note(row.bytes(frames), |head| SeenPacket {
                layer: Layer::Inner,
                heading: Heading::Out,
                port: None,
                medium: Medium::Ip,
                frame: row.frame,
                place: None,
                original: row.packet.length,
                head,
                refused: Some(reason),
            });
        }
    }

    /// Notes that a packet of the batch was dropped behind the walk.
    pub(crate) fn refused(&mut self, frame: FrameId, reason: DropReason) {
        let of_frame = self.seen.iter_mut().filter(|seen| seen.frame == frame);
        of_frame.for_each(|seen| seen.refused = Some(reason));
    }

    /// Ends a batch: what the capture wants of it goes into the ring. `verdicts` are those of the
    /// batch, empty if there was none.
    pub fn finish(&mut self, snapshot: &Snapshot, now_ns: u64, verdicts: &[Option<Verdict>]) {
        let seen = std::mem::take(&mut self.seen);
        for one in &seen {
            self.offer(snapshot, now_ns, verdicts, one);
        }
        self.shared.overlooked(std::mem::take(&mut self.overlooked));
        self.seen = seen;
        self.clear();
    }

    fn begin(&mut self, snapshot: &Snapshot) {
        self.clear();
        self.find_port(snapshot);
    }

    fn clear(&mut self) {
        self.seen.clear();
        self.bytes.clear();
        self.known.clear();
        self.rules.clear();
    }

    /// Finds the port again where ports may have come or gone.
    fn find_port(&mut self, snapshot: &Snapshot) {
        let generation = Some(snapshot.route_generation());
        if self.found_under != generation {
            self.found_under = generation;
            let name = self.settings.port.as_deref();
            self.port = name.and_then(|name| snapshot.port_named(name));
        }
    }

    fn wants_port(&self, port: Option<PortId>) -> bool {
        self.settings.port.is_none() || self.port.is_some() && self.port == port
    }

    fn see<F: Frames>(
        &mut self,
        heading: Heading,
        port: Option<PortId>,
        medium: Medium,
        packet: &Descriptor,
        place: Option<u32>,
        frames: &F,
    ) {
        if !self.wants_port(port) {
            return;
        }
        let bytes = packet_bytes(packet, frames);
        let (layer, frame, original) = (Layer::Outer, packet.frame, packet.length);
        self.note(bytes, |head| SeenPacket {
            layer,
            heading,
            port,
            medium,
            frame,
            place,
            original,
            head,
            refused: None,
        });
    }

    fn look<F: Frames>(&mut self, point: Point, snapshot: &Snapshot, rows: &[Row], frames: &F) {
        for row in rows {
            match point {
                Point::Opened if row.state == State::Clear => {
                    if matches!(row.origin, Origin::Opened(_)) {
                        self.see_inner(Heading::In, Some(row.ingress), row, frames);
                    }
                }
                Point::Followed if row.state == State::Clear => {
                    self.know(row, row.bytes(frames));
                }
                Point::Decided => {
                    if let State::Protect(set) = row.state {
                        let egress = snapshot.set_adjacency(set).map(|adjacency| adjacency.port);
                        self.see_inner(Heading::Out, egress, row, frames);
                    }
                    // One that was refused has given its frame back, and never left.
                    if matches!(row.origin, Origin::Made(_)) && row.state != State::Ended {
                        self.know(row, row.bytes(frames));
                    }
                }
                // Fragments; their bytes are finished and answer no question.
                Point::Sealed if self.is_fragment_of_ours(row) => self.know(row, &[]),
                Point::Opened | Point::Followed | Point::Sealed => {}
            }
        }
    }

    /// Tells fragments that we made in this batch from what was received or made as ICMP.
    fn is_fragment_of_ours(&self, row: &Row) -> bool {
        row.place >= self.received && !matches!(row.origin, Origin::Made(_))
    }

    fn see_inner<F: Frames>(
        &mut self,
        heading: Heading,
        port: Option<PortId>,
        row: &Row,
        frames: &F,
    ) {
        if self.settings.layers == Layers::Outer || !self.wants_port(port) {
            return;
        }
        self.note(row.bytes(frames), |head| SeenPacket {
            layer: Layer::Inner,
            heading,
            port,
            medium: Medium::Ip,
            frame: row.frame,
            place: Some(row.place),
            original: row.packet.length,
            head,
            refused: None,
        });
    }

    /// Copies the beginning of a packet that was seen.
    fn note(&mut self, bytes: &[u8], seen: impl FnOnce(Part) -> SeenPacket) {
        if self.seen.len() >= MAX_SEEN {
            self.overlooked += 1;
            return;
        }
        let head = self.copy(bytes, HEAD_BYTES.max(self.settings.snaplen as usize));
        self.seen.push(seen(head));
    }

    fn know(&mut self, row: &Row, bytes: &[u8]) {
        if self.known.len() < MAX_SEEN {
            let head = self.copy(bytes, HEAD_BYTES);
            self.known.push(KnownRow { row: *row, head });
        }
    }

    fn copy(&mut self, bytes: &[u8], most: usize) -> Part {
        let start = self.bytes.len() as u32;
        let bytes = &bytes[..bytes.len().min(most)];
        self.bytes.extend_from_slice(bytes);
        Part { start, length: bytes.len() as u32 }
    }

    fn part(&self, part: Part) -> &[u8] {
        let start = part.start as usize;
        &self.bytes[start..start + part.length as usize]
    }

    /// Returns the place in `known` of a packet's row. What was made here and sent is found by its
    /// frame: of the rows that had the frame in this batch, one has left.
    fn known(&self, seen: &SeenPacket, verdicts: &[Option<Verdict>]) -> Option<usize> {
        let left = |known: &KnownRow| {
            let verdict = verdicts.get(known.row.place as usize).copied().flatten();
            let has_left = matches!(verdict, Some(Verdict::Forward(_) | Verdict::Protect(_)));
            known.row.frame == seen.frame && has_left
        };
        match seen.place {
            Some(place) => self.known.iter().position(|known| known.row.place == place),
            None => self.known.iter().position(left),
        }
    }

    /// Puts a packet into the ring if the capture wants it.
    fn offer(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        verdicts: &[Option<Verdict>],
        seen: &SeenPacket,
    ) {
        let known = self.known(seen, verdicts);
        let place = seen.place.or(known.map(|known| self.known[known].row.place));
        let judged = place.and_then(|place| verdicts.get(place as usize).copied().flatten());
        let verdict = match (judged, seen.refused) {
            // Its frame was given back and then another packet's.
            (Some(Verdict::Drop(_) | Verdict::Consumed), _) | (_, None) => judged,
            (_, Some(reason)) => Some(Verdict::Drop(reason)),
        };
        if verdict.is_none() && seen.place.is_some() {
            // Another worker has it, and its tap sees it there.
            return;
        }
        if self.settings.outcome == Outcome::Dropped && !matches!(verdict, Some(Verdict::Drop(_))) {
            return;
        }
        let head = self.part(seen.head);
        let flow = match seen.medium {
            Medium::Ip => parse_quoted(head),
            Medium::Ethernet => Link::parse(head)
                .and_then(|link| parse_quoted(head.get(link.length..).unwrap_or_default())),
        };
        let (length, heading) = (seen.original, seen.heading);
        let subject = Subject { flow, length, heading, verdict };
        if self.settings.filter.as_ref().is_some_and(|filter| !filter.accepts(&subject)) {
            return;
        }
        if self.shared.admit() == Admission::Granted {
            self.put(snapshot, now_ns, seen, known, verdict);
        }
    }

    /// Returns the policies that decided the row at a place in `known`.
    fn rule(&mut self, (snapshot, now_ns): (&Snapshot, u64), known: usize) -> Rule {
        if let Some(Some(rule)) = self.rules.get(known) {
            return *rule;
        }
        let KnownRow { row, head } = self.known[known];
        let rule = Rule::of((snapshot, now_ns), &row, self.part(head));
        self.rules.resize(self.rules.len().max(known + 1), None);
        self.rules[known] = Some(rule);
        rule
    }

    fn put(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        seen: &SeenPacket,
        known: Option<usize>,
        verdict: Option<Verdict>,
    ) {
        let rule = known.map(|known| self.rule((snapshot, now_ns), known));
        let Rule { inbound, outbound } = rule.unwrap_or_default();
        let policy = |index| snapshot.spd().policy(index).name.as_str();
        let peer = |set| snapshot.set(set).peer.as_str();
        let to = match verdict {
            Some(Verdict::Forward(port)) => snapshot.port(port).name.as_str(),
            Some(Verdict::Protect(set)) => peer(set),
            _ => "",
        };
        let opened_from = match known.map(|known| self.known[known].row.origin) {
            Some(Origin::Opened(set)) => peer(set),
            _ => "",
        };
        let names: [&str; NAMES] = [
            seen.port.map_or("", |port| snapshot.port(port).name.as_str()),
            to,
            opened_from,
            inbound.map_or("", policy),
            outbound.map_or("", policy),
        ];
        let head = self.part(seen.head);
        let head = head.len().min(self.settings.snaplen as usize);
        let start = seen.head.start as usize;
        let record = Record {
            now_ns,
            original: seen.original,
            bytes: head as u32,
            layer: seen.layer,
            heading: seen.heading,
            medium: seen.medium,
            verdict,
            names: names.map(|name| name.len() as u16),
        };
        if !self.out.push(record, &self.bytes[start..start + head], &names) {
            self.shared.had_no_room();
        }
    }
}

/// The packet; of one that is longer than its frame the part that is there.
fn packet_bytes<'f, F: Frames>(packet: &Descriptor, frames: &'f F) -> &'f [u8] {
    let frame = frames.bytes(packet.frame);
    let start = (packet.offset as usize).min(frame.len());
    let end = (start + packet.length as usize).min(frame.len());
    &frame[start..end]
}

/// The port that a frame belongs to.
fn port_of(snapshot: &Snapshot, netdev: NetdevId, medium: Medium, bytes: &[u8]) -> Option<PortId> {
    let tag = match medium {
        Medium::Ip => Tag::Untagged,
        Medium::Ethernet => Link::parse(bytes).map_or(Tag::Untagged, |link| link.tag),
    };
    match tag {
        Tag::Untagged => snapshot.port_of(netdev, None),
        Tag::Vlan(id) => snapshot.port_of(netdev, Some(id)),
        Tag::Stacked => None,
    }
}

/// Walks a batch as [`Walk::run`] while taps look on. Whoever transmits what is in `out` calls
/// [`Tap::finish`] of each tap afterwards.
///
/// # Panics
/// If the batch is longer than [`BATCH`].
#[cold]
pub fn walk<F: Frames>(
    walk: &mut Walk,
    taps: &mut [Box<Tap>],
    snapshot: &Snapshot,
    now_ns: u64,
    input: Input<'_>,
    frames: &mut F,
    out: &mut Outputs,
) {
    for tap in taps.iter_mut() {
        tap.received(snapshot, input.netdev, input.packets, frames);
    }
    let beside = Beside { clock: &mut NoClock, watch: &mut *taps };
    walk.run_beside(snapshot, now_ns, input, frames, out, beside);
    for tap in taps {
        tap.sent(snapshot, &out.tx, frames);
    }
}
