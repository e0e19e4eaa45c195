//! Sealed packets: a look at them, and what was in them.

use std::ops::Range;

use ipsec::replay::Advance;
use ipsec::sealer::Opener;
use ipsec::{InboundSa, OpenJob, ReplayError, SaId, Spi, Suite};
use policy::{Question, Scope};
use wire::flow::protocol;
use wire::glance::{self, Glance, V4_SEEN, V6_SEEN, double, word};
use wire::link::{TAGGED_BYTES, ethertype};
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{Address, BATCH, Descriptor, Family, Frames, Received};

use super::ahead;
use super::clear::{head_v4, head_v6};
use super::judge::{FramesOf, Judge, PacketGroup};
use super::prepared_path::Heading;
use super::{Columns, FastPath, Gate, MOST_RUNS, Row, limited, mask_of};
use crate::batch_context::BatchContext;
use crate::cache::{FlowCache, Scopes, bits};
use crate::ids::SetIndex;
use crate::mss::SegmentMtu;
use crate::routes::RouteTarget;
use crate::row::Row as GeneralRow;
use crate::snapshot::Snapshot;
use crate::stage::{Stage, StageClock};
use crate::verdict::DropReason;
use crate::{card_sas, decapsulate};

/// Bytes of a sealed packet that are looked at: IPv6, UDP, ESP header, IV.
const OUTER_SEEN: usize = IPV6_BYTES + UDP_BYTES + 16;
/// Bytes of a frame that are looked at, from the packet on.
const SEEN: usize = TAGGED_BYTES + OUTER_SEEN;
const UDP_BYTES: usize = 8;
/// Bytes of pad length and next header.
const TRAILER_BYTES: u32 = 2;

/// Lists for packets that are opened, kept over batches.
#[derive(Default)]
pub(super) struct Opening {
    known: Vec<KnownSa>,
    /// By place in the batch: the place of its SA in `known`.
    of: Places,
    /// For grouping: SA and place of each job of a run, and the jobs in their new order.
    order: Vec<(u8, u8)>,
    grouped: Vec<OpenJob>,
    numbers: Vec<u64>,
    answers: Vec<Result<Advance, ReplayError>>,
    /// Packets that were refused, and why; few.
    refused: Vec<(usize, DropReason)>,
}

struct Places([u8; BATCH]);

impl Default for Places {
    fn default() -> Places {
        Places([0; BATCH])
    }
}

/// An SA of the common form, with what is looked up once a batch.
#[derive(Clone, Copy)]
struct KnownSa {
    spi: u32,
    id: SaId,
    set: SetIndex,
    /// Scopes of the packets in it, of IPv4 and IPv6.
    scopes: [Scope; 2],
    ends: AddressPair,
    /// Ports of the UDP header in front of ESP, as they lie in memory.
    udp: Option<u32>,
    opener: Opener,
    /// Bytes of ESP header, IV and ICV.
    around: u32,
    /// True if there is something to decrypt here.
    is_ciphered: bool,
    /// Its name in the card that deciphers; `None`: none does.
    in_card: Option<u64>,
    /// The window's right edge before the batch: numbers right of it are new.
    right: u64,
    /// MTU that clamps the MSS of packets from the tunnel.
    clamp: SegmentMtu,
}

/// Source and destination of an SA's packets, as they lie in memory.
#[derive(Clone, Copy)]
enum AddressPair {
    V4(u64),
    V6([u64; 4]),
}

impl FastPath {
    /// Looks at packets from an unprotected port, by link headers of `LINK` bytes: those that are
    /// whole ESP of an SA of this worker, from its peer, of a number that was not seen before.
    /// First those of the first packet's family: mostly there are no others.
    #[inline]
    pub(super) fn look_sealed<const LINK: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        clock: &mut impl StageClock,
    ) -> u64 {
        ahead::ask_openers(context, packets, LINK);
        let FastPath { columns, opening, gate, .. } = self;
        opening.known.clear();
        let Columns { rows, open_jobs: jobs, .. } = &mut **columns;
        let Opening { known, of, .. } = opening;
        let (gate, of) = (*gate, &mut of.0);
        let mut looks =
            Looks { context, packets, gate, rows, jobs, of, known, last: None, common: 0 };
        let others = match looks.ethertype::<LINK>() == Some(ethertype::IPV6.to_be()) {
            true => looks.all::<LINK, V6>(),
            false => looks.all::<LINK, V4>(),
        };
        if others != 0 {
            looks.others::<LINK>(others);
        }
        let common = looks.common;
        clock.ended(Stage::Receive);
        self.taken(common)
    }

    /// Opens a run of sealed packets, and returns those whose packet has a path: a bit each. The
    /// others become rows for the general walk, behind those in `late`, or are dropped.
    pub(crate) fn open<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
        cache: Option<&mut FlowCache>,
        late: &mut Vec<GeneralRow>,
        clock: &mut impl StageClock,
    ) -> u64 {
        context.counters.ledger(Some(self.gate.ingress)).received += run.len() as u64;
        let accepted = self.decipher(context, run.clone(), clock);
        let inner = self.look_inside(context, run.clone(), accepted);
        self.tell_segments(context, Question::Enter, inner, |jobs, place| jobs[place].frame);
        clock.ended(Stage::OpenFinish);
        self.counts_lookups = cache.is_some();
        let mut fit = self.judge_inner(context, run.clone(), inner, cache);
        if (fit & !(fit << 1)).count_ones() > MOST_RUNS {
            fit = 0;
        }
        self.count_opened(context, run.clone(), fit);
        clock.ended(Stage::Decide);
        for place in bits(mask_of(&run) & !fit) {
            let known = &self.opening.known[usize::from(self.opening.of.0[place])];
            let refused = self.opening.refused.iter().find(|(at, _)| *at == place);
            let answer = refused.map_or(Ok(Advance::Inside), |(_, reason)| Err(*reason));
            let job = &self.columns.open_jobs[place];
            let ip = packets[place].packet.offset + self.link_bytes();
            let outer =
                decapsulate::LatePacket { place: place as u32, ip, ingress: self.gate.ingress };
            let sa = context.snapshot.inbound_sa(known.id);
            late.extend(decapsulate::late(context, outer, (sa, known.set), job, answer));
        }
        fit
    }

    fn link_bytes(&self) -> u32 {
        if self.gate.is_tagged { 18 } else { 14 }
    }

    /// Runs the cipher over a run, SA by SA, and marks its authentic packets as received; returns
    /// those that the windows accept.
    #[inline]
    fn decipher<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        run: Range<usize>,
        clock: &mut impl StageClock,
    ) -> u64 {
        let FastPath { columns, opening, .. } = self;
        opening.refused.clear();
        let jobs = &mut columns.open_jobs;
        let of = &opening.of.0[run.clone()];
        let first = of[0];
        if of.iter().any(|sa| *sa != first) {
            return opening.decipher_several(context, run, jobs, clock);
        }
        let known = opening.known[usize::from(first)];
        let sa = context.snapshot.inbound_sa(known.id);
        let jobs = &mut jobs[run];
        known.open(sa, context.frames, jobs);
        clock.ended(Stage::OpenCipher);
        opening.commit(context.snapshot.workers(), sa, jobs)
    }

    /// Writes place, length and key of each packet inside that is common and is not changed by what
    /// stood outside; returns those of IPv4 and of IPv6.
    #[inline]
    fn look_inside<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        run: Range<usize>,
        accepted: u64,
    ) -> [u64; 2] {
        let Columns { rows, v4, v6, open_jobs, .. } = &mut *self.columns;
        let (frames, jobs, syn) = (&*context.frames, &*open_jobs, 0);
        let mut insides = Insides { frames, jobs, rows, syn };
        // Mostly all are of the family of the first.
        let first = accepted.trailing_zeros() as usize % BATCH;
        let (is_v4, is_v6);
        // Of none, no frame may be looked at: the first place's may be another owner's by now.
        if accepted == 0 {
            (is_v4, is_v6) = (0, 0);
        } else if insides.next_header(first) == Some(protocol::IPV6) {
            is_v6 = insides.each::<V6, 6>(&mut v6.heads, run, accepted);
            is_v4 = insides.some::<V4, 2>(&mut v4.heads, accepted & !is_v6);
        } else {
            is_v4 = insides.each::<V4, 2>(&mut v4.heads, run, accepted);
            is_v6 = insides.some::<V6, 6>(&mut v6.heads, accepted & !is_v4);
        }
        self.syn = insides.syn;
        [is_v4, is_v6]
    }

    /// Counts opened packets by their SAs.
    #[inline]
    fn count_opened<F>(&self, context: &mut BatchContext<'_, F>, run: Range<usize>, fit: u64) {
        let Opening { known, of, .. } = &self.opening;
        let rows = &self.columns.rows[run.clone()];
        if let ([only], true) = (&known[..], fit == mask_of(&run)) {
            let volume = &mut context.counters.opened[only.id.0 as usize];
            volume.packets += rows.len() as u64;
            volume.bytes += rows.iter().map(|row| u64::from(row.length)).sum::<u64>();
            return;
        }
        for place in bits(fit) {
            let id = known[usize::from(of.0[place])].id;
            context.counters.opened(id, self.columns.rows[place].length as usize);
        }
    }

    /// Judges what was opened, in the scopes of the sets whose SAs opened it.
    #[inline]
    fn judge_inner<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        run: Range<usize>,
        inner: [u64; 2],
        mut cache: Option<&mut FlowCache>,
    ) -> u64 {
        let mut fit = 0;
        let tracks = |family| context.snapshot.spd().tracks_any(family);
        let inner = match tracks(Family::V4) || tracks(Family::V6) {
            false => inner,
            // Each connection sees its packets in order: those up to the first of the general walk.
            true => {
                let taken = (inner[0] | inner[1]) >> run.start;
                let first = mask_of(&(run.start..run.start + taken.trailing_ones() as usize));
                inner.map(|mask| mask & first)
            }
        };
        for (family, mask) in [(Family::V4, inner[0]), (Family::V6, inner[1])] {
            if mask == 0 {
                continue;
            }
            let FastPath { columns, opening, paths, learning, tracking, misses, gate, .. } = self;
            let Columns { rows, v4, v6, scopes, open_jobs, .. } = &mut **columns;
            let scopes = opening.scopes(run.clone(), family, scopes);
            let mut judge = Judge { rows, paths, learning, tracking, misses };
            let (ingress, frames) = (gate.ingress, FramesOf::Opened(open_jobs));
            let heading = Heading::In;
            let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
            let cache = cache.as_deref_mut();
            fit |= match family {
                Family::V4 => judge.judge::<2, 4, F>(context, cache, v4, &group),
                Family::V6 => judge.judge::<6, 8, F>(context, cache, v6, &group),
            };
        }
        fit
    }

    /// MTU that the MSS of an opened packet is clamped to by the tunnel it came by.
    pub(super) fn clamp_of_opener(&self, place: usize) -> SegmentMtu {
        match (self.is_sealed(), self.by_card) {
            (true, _) => self.opening.known[usize::from(self.opening.of.0[place])].clamp,
            (false, true) => self.card_openers.clamp_of(place),
            (false, false) => SegmentMtu::NONE,
        }
    }

    /// The set whose SA opened a packet.
    pub(super) fn opened_by(&self, place: usize) -> SetIndex {
        if self.by_card {
            return self.card_openers.set_of(place);
        }
        self.opening.known[usize::from(self.opening.of.0[place])].set
    }
}

impl Opening {
    /// Does as [`FastPath::decipher`] for packets of several SAs.
    #[inline(never)]
    fn decipher_several<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        run: Range<usize>,
        jobs: &mut [OpenJob; BATCH],
        clock: &mut impl StageClock,
    ) -> u64 {
        let mut order = std::mem::take(&mut self.order);
        let mut grouped = std::mem::take(&mut self.grouped);
        order.clear();
        order.extend(run.map(|place| (self.of.0[place], place as u8)));
        // In place, without memory; the places keep the packets of an SA in their order.
        order.sort_unstable();
        let mut accepted = 0;
        for alike in order.chunk_by(|a, b| a.0 == b.0) {
            let known = self.known[usize::from(alike[0].0)];
            let sa = context.snapshot.inbound_sa(known.id);
            grouped.clear();
            grouped.extend(alike.iter().map(|(_, place)| jobs[usize::from(*place)]));
            known.open(sa, context.frames, &mut grouped);
            for job in &grouped {
                jobs[job.row as usize].authentic = job.authentic;
            }
            clock.ended(Stage::OpenCipher);
            accepted |= self.commit(context.snapshot.workers(), sa, &grouped);
        }
        (self.order, self.grouped) = (order, grouped);
        accepted
    }

    /// Marks the authentic packets of one SA as received, in their order, before any of them goes
    /// on; returns those that the window accepts and the limits of the SA allow.
    #[inline]
    fn commit(&mut self, workers: u32, sa: &InboundSa, jobs: &[OpenJob]) -> u64 {
        let accepted = self.accept(workers, sa, jobs);
        match &sa.allowance {
            Some(allowance) => limited::open(allowance, jobs, accepted, &mut self.refused),
            None => accepted,
        }
    }

    #[inline(always)]
    fn accept(&mut self, workers: u32, sa: &InboundSa, jobs: &[OpenJob]) -> u64 {
        let mut accepted = 0u64;
        if workers == 1 {
            let mut window = sa.window.cursor();
            for job in jobs {
                let answer = job.authentic.then(|| window.commit(job.sequence));
                match answer {
                    Some(Ok(_)) => accepted |= 1 << job.row,
                    refused => self.refused.push((job.row as usize, reason(refused))),
                }
            }
            window.finish();
            return accepted;
        }
        self.numbers.clear();
        self.numbers.extend(jobs.iter().filter(|job| job.authentic).map(|job| job.sequence));
        sa.window.commit_batch_shared(&self.numbers, &mut self.answers);
        let mut answers = self.answers.iter();
        for job in jobs {
            let answer = if job.authentic { answers.next().copied() } else { None };
            match answer {
                Some(Ok(_)) => accepted |= 1 << job.row,
                refused => self.refused.push((job.row as usize, reason(refused))),
            }
        }
        accepted
    }

    /// The scopes of opened packets: one, or one each, which are written to `each`.
    fn scopes<'a>(
        &self,
        run: Range<usize>,
        family: Family,
        each: &'a mut [Scope; BATCH],
    ) -> Scopes<'a> {
        let place = usize::from(family == Family::V6);
        let scope = |known: &KnownSa| known.scopes[place];
        let first = scope(&self.known[0]);
        if self.known.iter().all(|known| scope(known) == first) {
            return Scopes::One(first);
        }
        for at in run {
            each[at] = scope(&self.known[usize::from(self.of.0[at])]);
        }
        Scopes::Each(each)
    }
}

/// Reason why the window refused a packet; `None`: it is not authentic.
#[cold]
fn reason(answer: Option<Result<Advance, ReplayError>>) -> DropReason {
    match answer {
        Some(Err(error)) => decapsulate::replay_reason(error),
        Some(Ok(_)) | None => DropReason::Integrity,
    }
}

/// Returns the SA with an SPI, and its place in `known`. `None`: no SA that this worker opens with
/// has the common form, the SA is at a limit, or it has selectors: the general walk judges.
#[inline(never)]
fn find<'s, F: Frames>(
    known: &mut Vec<KnownSa>,
    context: &BatchContext<'s, F>,
    ingress: crate::ids::PortId,
    spi: u32,
) -> Option<(&'s InboundSa, usize)> {
    let snapshot: &'s Snapshot = context.snapshot;
    if let Some(at) = known.iter().rposition(|known| known.spi == spi) {
        return Some((snapshot.inbound_sa(known[at].id), at));
    }
    let sa = &**snapshot.inbound_by_spi(Spi::new(spi)?)?;
    let opener = sa.opener()?;
    let in_card = match sa.card {
        None => None,
        Some(_) => Some(card_sas::tag_at(snapshot, sa, ingress)?),
    };
    // What a card deciphers any worker opens.
    let is_others = in_card.is_none() && context.other_worker(sa.id).is_some();
    if sa.allowance.as_ref().is_some_and(|allowance| allowance.is_spent()) {
        return None;
    }
    let (local, remote) = (Address::from(sa.tunnel().local), Address::from(sa.tunnel().remote));
    let is_ours = snapshot.routes().lookup(local) == Some(RouteTarget::Local);
    let is_unicast = [local, remote].iter().all(|address| match address.family {
        Family::V4 => wire::packet::ipv4_is_unicast(address.value as u32),
        Family::V6 => wire::packet::ipv6_is_unicast(address.value),
    });
    let has_general_walk = snapshot.needs_outer(sa) || sa.selectors.is_some();
    if !is_ours || !is_unicast || is_others || has_general_walk {
        return None;
    }
    let set = snapshot.set_of(sa.id);
    let scope = |family| snapshot.scope(ingress, Question::Enter, family, Some(set));
    known.push(KnownSa {
        spi,
        id: sa.id,
        set,
        scopes: [scope(Family::V4), scope(Family::V6)],
        ends: AddressPair::of(remote, local),
        udp: sa.encapsulation.udp.map(|ports| {
            let [a, b] = ports.remote.to_be_bytes();
            let [c, d] = ports.local.to_be_bytes();
            u32::from_ne_bytes([a, b, c, d])
        }),
        opener,
        around: opener.front + opener.icv,
        is_ciphered: sa.suite != Suite::Null && in_card.is_none(),
        in_card,
        right: sa.window.right_edge(),
        clamp: SegmentMtu::of_set(snapshot, set, context.now_ns),
    });
    Some((sa, known.len() - 1))
}

impl AddressPair {
    fn of(source: Address, destination: Address) -> AddressPair {
        let halves =
            |address: Address| [(address.value >> 64) as u64, address.value as u64].map(u64::to_be);
        match source.family {
            Family::V4 => {
                AddressPair::V4(((source.value as u64) << 32 | destination.value as u64).to_be())
            }
            Family::V6 => {
                let ([a, b], [c, d]) = (halves(source), halves(destination));
                AddressPair::V6([a, b, c, d])
            }
        }
    }
}

impl KnownSa {
    #[inline]
    fn open<F: Frames>(&self, sa: &InboundSa, frames: &mut F, jobs: &mut [OpenJob]) {
        // Where nothing is to be decrypted, `look` has said that the packets are authentic: each
        // job lies in its frame, or a card has said so.
        if self.is_ciphered {
            sa.cipher.open(frames, jobs);
        }
    }
}

/// Looks at the sealed packets of a batch.
struct Looks<'a, 's, F> {
    context: &'a BatchContext<'s, F>,
    packets: &'a [Received],
    gate: Gate,
    rows: &'a mut [Row; BATCH],
    jobs: &'a mut [OpenJob; BATCH],
    of: &'a mut [u8; BATCH],
    known: &'a mut Vec<KnownSa>,
    /// The SA of the packet before, and its place among those that are known.
    last: Option<(&'s InboundSa, usize, KnownSa)>,
    /// Packets that are taken: a bit each.
    common: u64,
}

/// A family of sealed packets: the parts of a look that differ.
trait Version {
    const ETHERTYPE: u16;
    /// Bytes of the header.
    const BYTES: usize;

    /// Returns protocol, length and ECN field of a packet whose header is a common one.
    fn outer(ip: &[u8; OUTER_SEEN]) -> Option<(u8, u32, u8)>;

    /// Returns whether a packet is between these ends.
    fn is_between(ip: &[u8; OUTER_SEEN], ends: &AddressPair) -> bool;
}

struct V4;
struct V6;

impl Version for V4 {
    const ETHERTYPE: u16 = ethertype::IPV4;
    const BYTES: usize = IPV4_BYTES;

    #[inline(always)]
    fn outer(ip: &[u8; OUTER_SEEN]) -> Option<(u8, u32, u8)> {
        let length = u32::from(u16::from_be_bytes([ip[2], ip[3]]));
        (glance::header_v4(ip) & (ip[8] != 0)).then_some((ip[9], length, ip[1] & 3))
    }

    #[inline(always)]
    fn is_between(ip: &[u8; OUTER_SEEN], ends: &AddressPair) -> bool {
        matches!(ends, AddressPair::V4(ends) if double(ip, 12) == *ends)
    }
}

impl Version for V6 {
    const ETHERTYPE: u16 = ethertype::IPV6;
    const BYTES: usize = IPV6_BYTES;

    #[inline(always)]
    fn outer(ip: &[u8; OUTER_SEEN]) -> Option<(u8, u32, u8)> {
        let length = u32::from(u16::from_be_bytes([ip[4], ip[5]])) + IPV6_BYTES as u32;
        ((ip[0] >> 4 == 6) & (ip[7] != 0)).then_some((ip[6], length, ip[1] >> 4 & 3))
    }

    #[inline(always)]
    fn is_between(ip: &[u8; OUTER_SEEN], ends: &AddressPair) -> bool {
        let at = |at: usize| double(ip, at);
        matches!(ends, AddressPair::V6(ends) if [at(8), at(16), at(24), at(32)] == *ends)
    }
}

/// A packet that may be ESP.
struct Outer<'a> {
    place: usize,
    /// The frame's memory from the packet on.
    behind: &'a [u8],
    ip: &'a [u8; OUTER_SEEN],
    /// Offset of the IP header in the frame, and from the packet on.
    at: u32,
    link: u32,
    /// Bytes of the IP packet.
    length: u32,
    ecn: u8,
}

impl<F: Frames> Looks<'_, '_, F> {
    /// The EtherType of the first packet, as it lies in memory.
    fn ethertype<const LINK: usize>(&self) -> Option<u16> {
        let Descriptor { frame, offset, .. } = self.packets.first()?.packet;
        let behind = self.context.frames.bytes(frame).get(offset as usize..)?;
        self.gate.entrance.ethertype::<LINK, SEEN>(behind.first_chunk()?)
    }

    /// Looks at all packets as one family; returns those to this station that are of another.
    #[inline(always)]
    fn all<const LINK: usize, V: Version>(&mut self) -> u64 {
        let mut others = 0;
        for place in 0..self.packets.len().min(BATCH) {
            others |= self.one::<LINK, V>(place);
        }
        others
    }

    /// Looks at packets of the other family.
    #[inline(never)]
    fn others<const LINK: usize>(&mut self, places: u64) {
        for place in bits(places) {
            self.one::<LINK, V4>(place);
            self.one::<LINK, V6>(place);
        }
    }

    /// Looks at a packet as one family; returns its bit if it is of another.
    #[inline(always)]
    fn one<const LINK: usize, V: Version>(&mut self, place: usize) -> u64 {
        let Descriptor { frame, offset, length } = self.packets[place].packet;
        let memory = self.context.frames.bytes(frame);
        let Some(behind) = memory.get(offset as usize..) else { return 0 };
        let Some(seen) = behind.first_chunk::<SEEN>() else { return 0 };
        let Some(ethertype) = self.gate.entrance.ethertype::<LINK, SEEN>(seen) else { return 0 };
        if ethertype != V::ETHERTYPE.to_be() {
            return 1 << place;
        }
        let ip: Option<&[u8; OUTER_SEEN]> = seen[LINK..].first_chunk();
        let Some(ip) = ip else { return 0 };
        let Some((number, bytes, ecn)) = V::outer(ip) else { return 0 };
        let (at, link) = (offset + LINK as u32, LINK as u32);
        if (bytes + link > length) | (length as usize > behind.len()) {
            return 0;
        }
        let outer = Outer { place, behind, ip, at, link, length: bytes, ecn };
        match number {
            protocol::ESP if V::BYTES == IPV4_BYTES => self.esp::<V, IPV4_BYTES>(outer, None),
            protocol::ESP => self.esp::<V, IPV6_BYTES>(outer, None),
            protocol::UDP => self.esp_in_udp::<V>(outer),
            _ => {}
        }
        0
    }

    #[inline(never)]
    fn esp_in_udp<V: Version>(&mut self, outer: Outer<'_>) {
        let ip = outer.ip;
        let length = u16::from_be_bytes([ip[V::BYTES + 4], ip[V::BYTES + 5]]);
        if u32::from(length) + V::BYTES as u32 != outer.length {
            return;
        }
        let ports = Some(word(ip, V::BYTES));
        if V::BYTES == IPV4_BYTES {
            self.esp::<V, { IPV4_BYTES + UDP_BYTES }>(outer, ports);
        } else {
            self.esp::<V, { IPV6_BYTES + UDP_BYTES }>(outer, ports);
        }
    }

    /// Takes a packet whose ESP header is at `AT`, if all is as it should be.
    #[inline(always)]
    fn esp<V: Version, const AT: usize>(&mut self, outer: Outer<'_>, udp: Option<u32>) {
        let Outer { place, behind, ip, at, link, length, ecn } = outer;
        let (spi, low) = (u32::from_be(word(ip, AT)), u32::from_be(word(ip, AT + 4)));
        let (sa, known_at, known) = match &self.last {
            Some((sa, at, known)) if known.spi == spi => (*sa, *at, known),
            _ => match find(self.known, self.context, self.gate.ingress, spi) {
                Some((sa, at)) => {
                    let (sa, at, known) = self.last.insert((sa, at, self.known[at]));
                    (*sa, *at, &*known)
                }
                None => return,
            },
        };
        let around = AT as u32 + known.around;
        let text_length = length.wrapping_sub(around);
        let sequence = sa.window.infer(low);
        let good = V::is_between(ip, &known.ends)
            & (known.udp == udp)
            & (length >= around + TRAILER_BYTES)
            & (text_length & 3 == 0);
        if !good || (sequence <= known.right && sa.window.check(sequence).is_err()) {
            return;
        }
        if let Some(tag) = known.in_card
            && !card_sas::is_deciphered(self.context, self.packets[place].hint, tag)
        {
            return;
        }
        // The ICV, which is read first of all.
        cpu::prefetch(behind, (link + length - 1) as usize);
        let (row, job) = (&mut self.rows[place], &mut self.jobs[place]);
        (row.ip, row.decision, self.of[place]) = (at, ecn.into(), known_at as u8);
        (job.frame, job.row) = (self.packets[place].packet.frame, place as u32);
        let iv = known.is_ciphered.then(|| double(ip, AT + 8).to_ne_bytes());
        sa.write_open_job(job, known.opener, (at + AT as u32, text_length), sequence, iv);
        job.authentic = !known.is_ciphered;
        self.common |= 1 << place;
    }
}

/// Padding 1, 2, 3, its length and the next header, by the bytes of padding: the bits that count,
/// and their value.
const fn trailers(next_header: u8) -> [(u64, u64); 4] {
    let next = next_header as u64;
    [
        (0xffff, next),
        (0xff_ffff, 0x01_0100 | next),
        (0xffff_ffff, 0x0102_0200 | next),
        (0xff_ffff_ffff, 0x01_0203_0300 | next),
    ]
}

/// A packet inside one that was opened.
trait Inner<const HEAD: usize> {
    const TRAILERS: [(u64, u64); 4];

    /// Returns a glance at a packet that is common and no ICMP error, and its ECN field; writes the
    /// head of its key. ICMP errors are judged by what they quote: of ICMP only echo request and
    /// reply pass here.
    fn look(behind: &[u8], head: &mut [u64; HEAD]) -> Option<(Glance, u8)>;
}

impl Inner<2> for V4 {
    const TRAILERS: [(u64, u64); 4] = trailers(protocol::IPV4);

    #[inline(always)]
    fn look(behind: &[u8], head: &mut [u64; 2]) -> Option<(Glance, u8)> {
        let ip: &[u8; V4_SEEN] = behind.first_chunk()?;
        let glance = glance::v4(ip)?;
        if glance.protocol == protocol::ICMP && !matches!(glance.upper >> 8, 0 | 8) {
            return None;
        }
        *head = head_v4(ip, &glance);
        Some((glance, ip[1] & 3))
    }
}

impl Inner<6> for V6 {
    const TRAILERS: [(u64, u64); 4] = trailers(protocol::IPV6);

    #[inline(always)]
    fn look(behind: &[u8], head: &mut [u64; 6]) -> Option<(Glance, u8)> {
        let ip: &[u8; V6_SEEN] = behind.first_chunk()?;
        let glance = glance::v6(ip)?;
        if glance.protocol == protocol::ICMPV6 && !matches!(glance.upper >> 8, 128 | 129) {
            return None;
        }
        *head = head_v6(ip, &glance);
        Some((glance, ip[1] >> 4 & 3))
    }
}

/// Looks at packets that were opened.
struct Insides<'a, F> {
    frames: &'a F,
    jobs: &'a [OpenJob; BATCH],
    rows: &'a mut [Row; BATCH],
    syn: u64,
}

impl<F: Frames> Insides<'_, F> {
    /// The family that a trailer names.
    fn next_header(&self, place: usize) -> Option<u8> {
        let job = &self.jobs[place];
        let behind = self.frames.bytes(job.frame).get(job.text as usize..)?;
        behind.get(..job.text_length as usize)?.last().copied()
    }

    /// Looks at the packets of a run as one family; returns those that are common.
    #[expect(clippy::needless_range_loop, reason = "an iterator costs 9 instructions a packet")]
    #[inline(always)]
    fn each<V: Inner<HEAD>, const HEAD: usize>(
        &mut self,
        heads: &mut [[u64; HEAD]; BATCH],
        run: Range<usize>,
        accepted: u64,
    ) -> u64 {
        let mut common = 0u64;
        for place in run.start..run.end.min(BATCH) {
            common |= u64::from(self.one::<V, HEAD>(place, &mut heads[place]).is_some()) << place;
        }
        common & accepted
    }

    /// Looks at some packets as one family; returns those that are common.
    #[inline(always)]
    fn some<V: Inner<HEAD>, const HEAD: usize>(
        &mut self,
        heads: &mut [[u64; HEAD]; BATCH],
        places: u64,
    ) -> u64 {
        if places == 0 {
            return 0;
        }
        let mut common = 0u64;
        for place in bits(places) {
            common |= u64::from(self.one::<V, HEAD>(place, &mut heads[place]).is_some()) << place;
        }
        common
    }

    /// Looks at a packet. `None`: it is not common, its trailer is not right, or the ECN field
    /// outside changes it.
    #[inline(always)]
    fn one<V: Inner<HEAD>, const HEAD: usize>(
        &mut self,
        place: usize,
        head: &mut [u64; HEAD],
    ) -> Option<()> {
        let (job, row) = (&self.jobs[place], &mut self.rows[place]);
        let behind = self.frames.bytes(job.frame).get(job.text as usize..)?;
        let trailer: &[u8; 8] = behind.get(..job.text_length as usize)?.last_chunk()?;
        let trailer = u64::from_be_bytes(*trailer);
        let padding = (trailer >> 8) as usize & 3;
        let (counts, right) = V::TRAILERS[padding];
        if trailer & counts != right {
            return None;
        }
        let (glance, inside) = V::look(behind, head)?;
        let (outside, around) = (row.decision as u8, padding as u32 + TRAILER_BYTES);
        if glance.length + around > job.text_length {
            return None;
        }
        if outside != 0 && outside != inside {
            return None;
        }
        (row.ip, row.length) = (job.text, glance.length);
        self.syn |= u64::from(glance.is_syn) << place;
        Some(())
    }
}
