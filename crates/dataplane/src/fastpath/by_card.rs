//! Packets that a network card opened, and packets that one is to seal: both are in clear. The
//! first are looked at as packets in clear and judged as opened ones. Of the second the general
//! walk keeps back what cards do not carry; all that is not common goes by it anyway.

use ipsec::{CardSeat, CardWork, Mode, SaId};
use policy::{Question, Scope};
use wire::flow::protocol;
use wire::{BATCH, Family, Frames, Received};

use super::clear::{Common, parse};
use super::judge::{FramesOf, Judge, PacketGroup};
use super::prepared_path::Heading;
use super::{Columns, FastPath, TOO_MANY_RUNS};
use crate::batch_context::BatchContext;
use crate::cache::{Column, FlowCache, Scopes, bits};
use crate::card_sas;
use crate::ids::{NetdevId, PortId, SetIndex};
use crate::mss::SegmentMtu;
use crate::stage::{Stage, StageClock};

/// The SAs by which cards opened packets of a batch.
#[derive(Default)]
pub(super) struct CardOpeners {
    known: Vec<CardOpener>,
    /// By place in the batch: the place of its SA in `known`.
    of: Places,
}

struct Places([u8; BATCH]);

impl Default for Places {
    fn default() -> Places {
        Places([0; BATCH])
    }
}

/// An SA in a card, with what is looked up once a batch.
struct CardOpener {
    tag: u64,
    set: SetIndex,
    /// Scopes of the packets in it, of IPv4 and IPv6.
    scopes: [Scope; 2],
    /// MTU that clamps the MSS of packets from the tunnel.
    clamp: SegmentMtu,
}

/// Returns whether cards may have opened packets of a batch.
#[inline]
pub(super) fn may_be<F>(context: &BatchContext<'_, F>) -> bool {
    context.snapshot.sad().has_openers_in_cards()
        && context.marks.iter().any(|mark| mark.card_sa().is_some())
}

impl FastPath {
    /// Looks at packets that a card opened, by link headers of `LINK` bytes.
    #[inline(never)]
    pub(super) fn look_opened<const LINK: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        (netdev, packets): (NetdevId, &[Received]),
        mut cache: Option<&mut FlowCache>,
        clock: &mut impl StageClock,
    ) -> u64 {
        let common =
            parse::<LINK, F>(&mut self.columns, context.frames, packets, self.gate.entrance);
        let common = self.find_openers(context, (netdev, packets), common);
        clock.ended(Stage::Receive);
        let all = common.v4 | common.v6;
        self.syn = common.syn & all;
        if all == 0 || (all & !(all << 1)).count_ones() >= TOO_MANY_RUNS {
            return self.taken(all);
        }
        let frame = |_: &_, place: usize| packets[place].packet.frame;
        self.tell_segments(context, Question::Enter, [common.v4, common.v6], frame);
        self.counts_lookups = cache.is_some();
        let tracks = |family| context.snapshot.spd().tracks_any(family);
        // Each connection sees its packets in order: those up to the first of the general walk.
        let is_tracked = tracks(Family::V4) || tracks(Family::V6);
        let common = if is_tracked { common.first() } else { common };
        let mut fit = 0;
        for (family, mask) in [(Family::V4, common.v4), (Family::V6, common.v6)] {
            if mask == 0 {
                continue;
            }
            let FastPath { columns, card_openers, paths, learning, tracking, .. } = self;
            let FastPath { misses, gate, .. } = self;
            let Columns { rows, v4, v6, scopes, .. } = &mut **columns;
            let scopes = card_openers.scopes(family, mask, scopes);
            let mut judge = Judge { rows, paths, learning, tracking, misses };
            let (ingress, frames) = (gate.ingress, FramesOf::Received(packets));
            let heading = Heading::In;
            let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
            let cache = cache.as_deref_mut();
            fit |= match family {
                Family::V4 => judge.judge::<2, 4, F>(context, cache, v4, &group),
                Family::V6 => judge.judge::<6, 8, F>(context, cache, v6, &group),
            };
        }
        if self.paths.lead_to_cards() {
            fit = self.carried_by_cards(fit, common.v6);
        }
        clock.ended(Stage::Decide);
        self.taken(fit)
    }

    /// Finds the SAs by which a card opened common packets; returns those of which one is known.
    fn find_openers<F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        (netdev, packets): (NetdevId, &[Received]),
        common: Common,
    ) -> Common {
        let FastPath { columns, card_openers, gate, .. } = self;
        let Columns { v4, v6, .. } = &**columns;
        card_openers.known.clear();
        let mut tags = Tags { context, packets, openers: card_openers, at: (netdev, gate.ingress) };
        let only = tags.only();
        let v4 = tags.find::<2, 4>((v4, protocol::ICMP), common.v4, only);
        let v6 = tags.find::<6, 8>((v6, protocol::ICMPV6), common.v6, only);
        Common { v4, v6, ..common }
    }

    /// Of the packets that fit, those that no card is to seal, or that cards carry: of IPv6 some
    /// are kept back.
    #[inline(never)]
    pub(super) fn carried_by_cards(&self, fit: u64, v6: u64) -> u64 {
        let (rows, heads) = (&self.columns.rows, &self.columns.v6.heads);
        let extended = places(heads, fit & v6, |number| card_sas::EXTENSIONS.contains(&number));
        let is_kept_back = |place: &usize| self.paths.list[rows[*place].path.place()].is_cards();
        bits(extended).filter(is_kept_back).fold(fit, |fit, place| fit & !(1 << place))
    }
}

/// The tags of a batch.
struct Tags<'a, 'c, F> {
    context: &'a BatchContext<'c, F>,
    packets: &'a [Received],
    openers: &'a mut CardOpeners,
    at: (NetdevId, PortId),
}

impl<F> Tags<'_, '_, F> {
    /// The tag of all packets of the batch, if it is one.
    #[inline]
    fn only(&self) -> Option<u64> {
        let marks = self.context.marks;
        let first = marks.first()?.card_sa()?;
        let are_in_order = || self.packets.iter().zip(1..).all(|(it, hint)| it.hint == hint);
        let is_only = marks.len() == self.packets.len()
            && marks.iter().all(|mark| mark.card_sa() == Some(first))
            && are_in_order();
        is_only.then_some(first)
    }

    /// Finds the SA of each packet of a family; returns those of which one is known. ICMP errors
    /// are judged by what they quote: the general walk does so.
    #[inline(always)]
    fn find<const HEAD: usize, const WORDS: usize>(
        &mut self,
        (column, icmp): (&Column<HEAD>, u8),
        common: u64,
        only: Option<u64>,
    ) -> u64 {
        if common == 0 {
            return 0;
        }
        let found = match only {
            None => self.find_each(common),
            Some(tag) => match self.opener(tag) {
                Some(at) => {
                    self.openers.of.0 = [at; BATCH];
                    common
                }
                None => 0,
            },
        };
        let of_icmp = places(&column.heads, found, |number| number == icmp);
        let is_error = |place: &usize| wire::icmp::is_from_routers(&column.flow::<WORDS>(*place));
        bits(of_icmp).filter(is_error).fold(found, |found, place| found & !(1 << place))
    }

    /// Finds the SA of each packet, where tags differ or some packets have none.
    #[inline(never)]
    fn find_each(&mut self, common: u64) -> u64 {
        let (mut found, mut last) = (common, None);
        for place in bits(common) {
            let mark = (self.packets[place].hint as usize).checked_sub(1);
            let tag = mark.and_then(|at| self.context.marks.get(at)?.card_sa());
            let at = match (tag, last) {
                (Some(tag), Some((of, at))) if tag == of => Some(at),
                (Some(tag), _) => self.opener(tag),
                (None, _) => None,
            };
            match at {
                Some(at) => self.openers.of.0[place] = at,
                None => found &= !(1 << place),
            }
            last = tag.zip(at).or(last);
        }
        found
    }

    /// The place of the SA of a tag; `None`: there is none, or the general walk judges its packets.
    #[inline(never)]
    fn opener(&mut self, tag: u64) -> Option<u8> {
        let known = &mut self.openers.known;
        if let Some(at) = known.iter().rposition(|known| known.tag == tag) {
            return Some(at as u8);
        }
        let (netdev, ingress) = self.at;
        known.push(CardOpener::find(self.context, ingress, (netdev, tag))?);
        Some((known.len() - 1) as u8)
    }
}

/// Of the packets in a mask, those whose protocol is one of those meant.
#[inline(always)]
fn places<const HEAD: usize>(
    heads: &[[u64; HEAD]; BATCH],
    mask: u64,
    is_meant: impl Fn(u8) -> bool,
) -> u64 {
    let behind = BATCH - mask.leading_zeros() as usize;
    let heads = heads[..behind].iter().enumerate();
    let meant = heads
        .fold(0, |meant, (place, head)| meant | u64::from(is_meant(of_protocol(head))) << place);
    // What stands in the head of a place outside of the mask is of an earlier batch.
    meant & mask
}

/// The protocol in the head of a key.
#[inline(always)]
fn of_protocol<const HEAD: usize>(head: &[u64; HEAD]) -> u8 {
    let [_, _, _, _, number, ..] = head[1].to_le_bytes();
    number
}

impl CardOpener {
    /// The SA of a tag. `None`: there is none, or it is in transport mode, at a hard limit, or has
    /// selectors. The general walk judges packets of an SA with selectors.
    #[inline(never)]
    fn find<F>(
        context: &BatchContext<'_, F>,
        ingress: PortId,
        (netdev, tag): (NetdevId, u64),
    ) -> Option<CardOpener> {
        let snapshot = context.snapshot;
        let seat = CardSeat::of_worker(netdev.0, tag, CardWork::Packets);
        let id: SaId = snapshot.sad().opened_in_card(seat)?;
        let sa = snapshot.inbound_sa(id);
        let is_spent = card_sas::is_spent(sa.allowance.as_ref());
        let is_transport = sa.encapsulation.mode == Mode::Transport;
        if is_transport || is_spent || sa.selectors.is_some() {
            return None;
        }
        let set = snapshot.set_of(id);
        let scope = |family| snapshot.scope(ingress, Question::Enter, family, Some(set));
        Some(CardOpener {
            tag,
            set,
            scopes: [scope(Family::V4), scope(Family::V6)],
            clamp: SegmentMtu::of_set(snapshot, set, context.now_ns),
        })
    }
}

impl CardOpeners {
    /// The set whose SA opened a packet.
    pub(super) fn set_of(&self, place: usize) -> SetIndex {
        self.known[usize::from(self.of.0[place])].set
    }

    /// MTU that the MSS of a packet is clamped to by the tunnel it came by.
    pub(super) fn clamp_of(&self, place: usize) -> SegmentMtu {
        self.known[usize::from(self.of.0[place])].clamp
    }

    /// The scopes of packets: one, or one each, which are written to `each`.
    fn scopes<'a>(&self, family: Family, mask: u64, each: &'a mut [Scope; BATCH]) -> Scopes<'a> {
        let of_family = usize::from(family == Family::V6);
        let scope = |known: &CardOpener| known.scopes[of_family];
        let first = scope(&self.known[0]);
        if self.known.iter().all(|known| scope(known) == first) {
            return Scopes::One(first);
        }
        for place in bits(mask) {
            each[place] = scope(&self.known[usize::from(self.of.0[place])]);
        }
        Scopes::Each(each)
    }
}
