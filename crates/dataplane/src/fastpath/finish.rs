//! Finishes a run of packets: completes and checks checksums, shows packets to captures, lowers the
//! MSS of segments with SYN, where any of that has to be done; then the packets leave.

use std::ops::Range;

use wire::{Address, Frames, Packet, Received};

use super::prepared_path::{Heading, PathTarget};
use super::{FastPath, mask_of};
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::l4_checksum;
use crate::mss::{self, SegmentMtu};
use crate::row::{Origin, Row as GeneralRow, State};
use crate::snapshot::Snapshot;
use crate::stage::StageClock;
use crate::watch::{Beside, Point, Watch};

impl FastPath {
    /// Sends a run of packets that came in clear, or were opened by cards.
    #[inline]
    pub(crate) fn finish<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
        beside: &mut Beside<'_, C, W>,
    ) {
        let ingress = self.gate.ingress;
        context.counters.ledger(Some(ingress)).received += run.len() as u64;
        if self.by_card {
            return self.emit_run(context, Heading::In, packets, run, beside);
        }
        if context.snapshot.path_port(ingress).completes_checksums {
            self.complete_checksums(context, packets, run.clone());
        }
        if let Some(entry) = self.entry {
            if beside.watch.is_watching() {
                self.show(context, Heading::Out, packets, run.clone(), &mut *beside.watch);
            }
            return self.carry(context, &entry, packets, run, &mut *beside.clock);
        }
        if context.sample.is_some_and(|from| (from as usize) < run.end) {
            self.check_sample(context, packets, run.clone());
        }
        self.emit_run(context, Heading::Out, packets, run, beside);
    }

    /// Sends a run of packets that were opened.
    #[inline]
    pub(crate) fn finish_opened<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
        beside: &mut Beside<'_, C, W>,
    ) {
        self.emit_run(context, Heading::In, packets, run, beside);
    }

    #[inline]
    fn emit_run<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        heading: Heading,
        packets: &[Received],
        run: Range<usize>,
        Beside { clock, watch }: &mut Beside<'_, C, W>,
    ) {
        if watch.is_watching() {
            self.show(context, heading, packets, run.clone(), &mut **watch);
        }
        if self.syn & mask_of(&run) != 0 {
            self.clamp(context, packets, run.clone());
        }
        self.emit(context, heading, packets, run, &mut **clock);
    }

    #[cold]
    fn complete_checksums<F: Frames>(
        &self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
    ) {
        for place in run {
            let frame = context.frames.bytes_mut(packets[place].packet.frame);
            let row = &self.columns.rows[place];
            let bytes = frame.get_mut(row.ip as usize..).unwrap_or_default();
            let Some(bytes) = bytes.get_mut(..row.length as usize) else { continue };
            if l4_checksum::complete_packet(bytes) {
                let counts = &mut context.counters.l4_checksums;
                counts[usize::from(self.gate.ingress.0)].completed += 1;
            }
        }
    }

    #[cold]
    fn check_sample<F: Frames>(
        &self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
    ) {
        let Some(from) = context.sample else { return };
        for place in run.filter(|place| *place >= from as usize) {
            let row = &self.columns.rows[place];
            if self.paths.list[row.path.place()].drops().is_some() {
                continue;
            }
            let (frame, ingress) = (packets[place].packet.frame, self.gate.ingress);
            let Some(packet) = self.parsed(context, packets, place) else { continue };
            if l4_checksum::check(context, ingress, frame, row.ip, &packet) {
                context.sample = None;
                return;
            }
        }
    }

    /// A packet as the general walk sees it.
    fn parsed<F: Frames>(
        &self,
        context: &BatchContext<'_, F>,
        packets: &[Received],
        place: usize,
    ) -> Option<Packet> {
        let frame = context.frames.bytes(packets[place].packet.frame);
        let row = &self.columns.rows[place];
        let bytes = frame.get(row.ip as usize..)?.get(..row.length as usize)?;
        wire::packet::parse(bytes).ok()
    }

    /// Lowers the MSS of segments with SYN for the tunnels that they cross.
    #[cold]
    fn clamp<F: Frames>(
        &self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
    ) {
        for place in bits(self.syn & mask_of(&run)) {
            let row = &self.columns.rows[place];
            let path = &self.paths.list[row.path.place()];
            let clamp = path.clamp.narrower(self.clamp_of_opener(place));
            if clamp == SegmentMtu::NONE || path.drops().is_some() {
                continue;
            }
            let Some(packet) = self.parsed(context, packets, place) else { continue };
            let Some(mtu) = clamp.of(packet.flow.family) else { continue };
            let frame = context.frames.bytes_mut(packets[place].packet.frame);
            let start = row.ip as usize;
            if let Some(bytes) = frame.get_mut(start..start + row.length as usize) {
                mss::clamp(bytes, &packet, mtu);
            }
        }
    }

    /// Shows packets to a watcher as the general walk does.
    #[cold]
    fn show<F: Frames, W: Watch + ?Sized>(
        &mut self,
        context: &BatchContext<'_, F>,
        heading: Heading,
        packets: &[Received],
        run: Range<usize>,
        watch: &mut W,
    ) {
        let mut shown = std::mem::take(&mut self.shown);
        shown.clear();
        shown.extend(run.clone().filter_map(|place| {
            let packet = self.parsed(context, packets, place)?;
            let origin = match heading {
                Heading::Out => Origin::Received,
                Heading::In => Origin::Opened(self.opened_by(place)),
            };
            let Received { packet: descriptor, hint } = packets[place];
            Some(GeneralRow {
                place: place as u32,
                frame: descriptor.frame,
                ip: self.columns.rows[place].ip,
                hint: if heading == Heading::Out { hint } else { 0 },
                echo: None,
                tenant: None,
                ingress: self.gate.ingress,
                origin,
                state: State::Clear,
                packet,
            })
        }));
        watch.look(Point::Opened, context.snapshot, &shown, context.frames);
        watch.look(Point::Followed, context.snapshot, &shown, context.frames);
        for row in &mut shown {
            row.state = self.state_of(context.snapshot, row);
        }
        watch.look(Point::Decided, context.snapshot, &shown, context.frames);
        self.shown = shown;
    }

    /// The state that a packet has when it is decided.
    fn state_of(&self, snapshot: &Snapshot, row: &GeneralRow) -> State {
        let path = &self.paths.list[self.columns.rows[row.place as usize].path.place()];
        match path.target {
            PathTarget::Set(set) => State::Protect(set),
            PathTarget::Hop(hop, neighbour) => {
                let nobody = Address { family: row.packet.flow.family, value: 0 };
                State::Forward(snapshot.adjacency(hop, neighbour.unwrap_or(nobody)))
            }
            PathTarget::Drop(_) => State::Ended,
        }
    }
}
