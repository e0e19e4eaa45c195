//! Network cards that decide rules, as the daemon runs them: one desk a card.
//!
//! ```text
//!  a change      ledgers hear of it ─▶ tags that still count ─▶ workers go over ─▶ cards are asked
//!  a report      ledgers hear of it ─▶ other tags count? workers are told ─▶ cards are asked
//!  the clock     looks at cards; counters ─▶ planner, in the background ─▶ ledgers
//! ```
//!
//! Workers are always told which tags count before a card is asked for anything (`offload`'s
//! ledger says why). A card that is slow, or gone, holds nothing up: its packets are judged by the
//! rules.
//!
//! | module | what |
//! |---|---|
//! | `desk` | one card: ledger, plans, looks |
//! | `link` | the connection to a card that is a process |
//! | `linked` | that card, as a ledger sees it |
//! | `linux` | a card that does ESP under Linux |
//! | `own` | packets that no card may drop |
//! | `sas` | SAs in cards |
//! | `shown` | cards in the words of the API |

mod desk;
mod link;
mod linked;
mod linux;
mod own;
mod sas;
mod shown;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::validated::Validated;
use config::{CardSettings, GroupOffload};
use dataplane::{CardMarks, Disagreement, FastTier, PortId, Snapshot};
use offload::Placements;
use policy::PolicyIndex;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::events::{Events, Kind};
use crate::worker::Report;

pub(crate) use desk::DroppedByRule;
use desk::{Desk, Heritage, PacketsBySlot};
pub(crate) use link::LinkReport;
pub(crate) use linux::sweep;
pub(crate) use sas::{CarriedSeat, NetdevCard, NoSeat, SeatAnswer, SeatRequest, Seatable};
pub(crate) use shown::{CardPicture, cards, explain, explain_carried, placement};

/// Reports that may wait for the control thread; then cards wait.
const MAX_REPORTS: usize = 1024;
/// Time after which a card that is configured no more is left, whatever it drops.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// Interval at which cards are looked after.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The cards of the running configuration.
pub(crate) struct Cards {
    desks: Vec<Desk>,
    /// Cards that are configured no more and may drop packets still, and when they are given up.
    leaving: Vec<(Desk, Instant)>,
    next: u64,
    reports: Sender<LinkReport>,
    told: Receiver<LinkReport>,
    /// Packets that slots had decided when the last period ended, with the number of their
    /// arrangement.
    counted: (u32, HashMap<PolicyIndex, u64>),
    /// The tags that workers were told.
    stamped: Vec<(PortId, Arc<Placements>)>,
    seats: sas::Seats,
    events: Events,
}

impl Cards {
    /// No cards yet.
    pub(crate) fn new(events: Events) -> Cards {
        let (reports, told) = channel(MAX_REPORTS);
        let counted = (0, HashMap::new());
        let (desks, stamped, seats) = (Vec::new(), Vec::new(), sas::Seats::default());
        let leaving = Vec::new();
        Cards { desks, leaving, next: 1, reports, told, counted, stamped, seats, events }
    }

    /// Returns whether there is anything to look after.
    pub(crate) fn need_care(&self) -> bool {
        !self.desks.is_empty() || !self.leaving.is_empty() || self.has_lost_seats()
    }

    /// Has the cards of a configuration: those that it names as before go on.
    pub(crate) fn configure(&mut self, config: &Validated) {
        let netdev = |card: &CardSettings| {
            let first = card.ports.first().map(|id| &config.ports[usize::from(id.0)]);
            first.map_or_else(String::new, |port| port.netdev.clone())
        };
        let ports = |card: &CardSettings| -> Vec<(String, GroupOffload)> {
            let port = |id: &PortId| &config.ports[usize::from(id.0)];
            card.ports.iter().map(port).map(|of| (of.name.clone(), of.offload_groups)).collect()
        };
        let mut before = std::mem::take(&mut self.desks);
        for settings in &config.cards {
            let ports = ports(settings);
            let known = before.iter().position(|desk| desk.is_of(settings, &ports));
            let desk = match known {
                Some(place) => before.swap_remove(place),
                None => {
                    self.next += 1;
                    let (reports, events) = (self.reports.clone(), self.events.clone());
                    let card = (settings.clone(), netdev(settings));
                    let had = |desk: &Desk| desk.settings.socket == settings.socket;
                    let earlier = before.iter().position(had).map(|place| before.remove(place));
                    let heritage = match earlier.is_some_and(|desk| desk.may_drop()) {
                        true => Heritage::Drops,
                        false => Heritage::None,
                    };
                    Desk::open(self.next, card, ports, reports, events).with(heritage)
                }
            };
            self.desks.push(desk);
        }
        let until = Instant::now() + GIVEN_UP;
        let leaving = before.into_iter().filter(Desk::may_drop).map(|mut desk| {
            desk.withdraw_all();
            (desk, until)
        });
        self.leaving.extend(leaving);
        self.lose_seats_without_desks();
    }

    /// Names of the cards that have not confirmed that they drop nothing any more which the rules
    /// permit.
    pub(crate) fn unconfirmed(&self) -> Vec<String> {
        let desks = self.desks.iter().chain(self.leaving.iter().map(|(desk, _)| desk));
        let unconfirmed = desks.filter(|desk| desk.is_unconfirmed());
        unconfirmed.map(|desk| desk.settings.name.clone()).collect()
    }

    /// Takes what cards dropped by rules since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<DroppedByRule> {
        self.desks.iter_mut().flat_map(Desk::take_dropped).collect()
    }

    /// Has Linux forget all that it carries: the daemon ends.
    pub(crate) fn end(&mut self) {
        self.desks.iter().for_each(Desk::end);
    }

    /// The next report of a card.
    pub(crate) async fn told(&mut self) -> LinkReport {
        match self.told.recv().await {
            Some(report) => report,
            // This holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Takes a report in, and all that wait behind it.
    pub(crate) fn take(&mut self, first: LinkReport, snapshot: &Snapshot) {
        let mut next = Some(first);
        while let Some(LinkReport { card, what }) = next {
            // One of a card that is configured no more is late.
            let leaving = self.leaving.iter_mut().map(|(desk, _)| desk);
            let mut desks = self.desks.iter_mut().chain(leaving);
            if let Some(desk) = desks.find(|desk| desk.number == card) {
                desk.take(what, snapshot);
            }
            next = self.told.try_recv().ok();
        }
        self.take_sa_news();
    }

    /// Tells ledgers of the rules of a snapshot that workers are about to go over to, and returns
    /// it with the tags that count then.
    pub(crate) fn stamp(&mut self, before: &Snapshot, next: Arc<Snapshot>) -> Arc<Snapshot> {
        self.desks.iter_mut().for_each(|desk| desk.follow(before, &next));
        self.stamped = self.marks();
        match self.stamped.is_empty() && next.card_marks().is_none() {
            true => next,
            false => {
                let marks = self.stamped.clone();
                let marks = (!marks.is_empty()).then(|| Arc::new(CardMarks::new(marks)));
                next.with_cards(marks).into()
            }
        }
    }

    fn marks(&mut self) -> Vec<(PortId, Arc<Placements>)> {
        self.desks.iter_mut().flat_map(Desk::marks).collect()
    }

    /// Returns whether workers must be told of other tags.
    pub(crate) fn has_other_marks(&mut self) -> bool {
        let now = self.marks();
        let is_same = |((port, marks), (of, stamped)): (&(PortId, Arc<_>), &(PortId, Arc<_>))| {
            port == of && Arc::ptr_eq(marks, stamped)
        };
        now.len() != self.stamped.len() || !now.iter().zip(&self.stamped).all(is_same)
    }

    /// Asks the cards for what is due. Workers must have the tags that count first.
    pub(crate) fn order(&mut self) {
        self.desks.iter_mut().for_each(Desk::order);
        self.leaving.iter_mut().for_each(|(desk, _)| desk.order());
    }

    /// The packets that slots decided since the last call.
    fn period(&mut self, snapshot: &Snapshot, reports: &[Report]) -> PacketsBySlot {
        let mut now: HashMap<PolicyIndex, u64> = HashMap::new();
        for report in reports {
            let counters = &report.flushed.counters;
            let counted = counters.policy_outbound.iter().zip(&counters.policy_inbound);
            for (slot, (outbound, inbound)) in (0..).map(PolicyIndex).zip(counted) {
                let packets = outbound.packets + inbound.packets;
                if packets > 0 {
                    *now.entry(slot).or_default() += packets;
                }
            }
        }
        let arrangement = snapshot.policy_slots();
        let (of, before) = std::mem::replace(&mut self.counted, (arrangement, now.clone()));
        // Counters begin anew when there is no room for them any more.
        let since = |(slot, now): (PolicyIndex, u64)| {
            let before = before.get(&slot).filter(|_| of == arrangement).copied().unwrap_or(0);
            (slot, now.checked_sub(before).unwrap_or(now))
        };
        let mut packets: HashMap<PolicyIndex, u64> =
            now.into_iter().map(since).filter(|(_, packets)| *packets > 0).collect();
        // What cards drop no worker counts.
        for (slot, count) in self.desks.iter_mut().flat_map(Desk::take_dropped_by_slot) {
            *packets.entry(slot).or_default() += count;
        }
        packets.into()
    }

    /// Does what is due by the clock: looks at cards, adopts plans that were made.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.desks.iter_mut().for_each(|desk| desk.tick(now));
        self.leaving.iter_mut().for_each(|(desk, _)| desk.tick(now));
        let events = &self.events;
        self.leaving.retain(|(desk, until)| {
            let (waits, is_over) = (desk.is_unconfirmed(), now >= *until);
            if waits && is_over {
                let name = &desk.settings.name;
                let message = format!(
                    "card {name} is configured no more and has not confirmed in {} s that it \
                     drops nothing: it may drop packets still; begin the card anew",
                    GIVEN_UP.as_secs()
                );
                events.record(Kind::CardUnconfirmed, name, message, &[]);
            }
            waits && !is_over
        });
        self.take_sa_news();
    }

    /// Returns whether the packets of a period are wanted, for plans.
    pub(crate) fn want_packets(&self, now: Instant) -> bool {
        self.desks.iter().any(|desk| desk.wants_packets(now))
    }

    /// Ends a period, after which the workers reported this, and begins to plan.
    pub(crate) fn plan(&mut self, now: Instant, snapshot: &Snapshot, reports: &[Report]) {
        let packets = self.period(snapshot, reports);
        let due = self.desks.iter_mut().filter(|desk| desk.wants_packets(now));
        due.for_each(|desk| desk.plan(snapshot, &packets));
    }

    /// Tells of verdicts that an audit found wrong. Cards of which some were are not used for a
    /// while.
    pub(crate) fn found_wrong(&mut self, found: &[Disagreement], snapshot: &Snapshot) {
        for disagreement in found {
            shown::report_disagreement(disagreement, snapshot, &self.events);
        }
        let of_card = |found: &&Disagreement| found.tier == FastTier::Card;
        let ports: Vec<PortId> = found.iter().filter(of_card).map(|found| found.ingress).collect();
        let lied = |desk: &&mut Desk| ports.iter().any(|port| desk.has_port(*port));
        self.desks.iter_mut().filter(lied).for_each(Desk::distrust);
    }
}

#[cfg(test)]
pub(crate) use linux::played;

#[cfg(test)]
impl Cards {
    /// Has a kernel of a test's carry packets for the first card.
    pub(crate) fn play(
        &mut self,
        kernel: &played::SharedKernel,
        capabilities: &offload::Capabilities,
        snapshot: &Snapshot,
    ) {
        self.desks[0].play(kernel, capabilities, snapshot);
    }

    /// News of the first card's connection.
    pub(crate) fn is_lost_or_begins(
        &mut self,
        begins: Option<&offload::Capabilities>,
        snapshot: &Snapshot,
    ) {
        let news = match begins {
            None => link::LinkNews::Lost("gone".into()),
            Some(capabilities) => link::LinkNews::Begun(Box::new(capabilities.clone())),
        };
        self.desks[0].take(news, snapshot);
        self.take_sa_news();
    }
}
