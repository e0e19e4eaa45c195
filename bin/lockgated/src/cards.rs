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
//! | `shown` | cards in the words of the API |

mod desk;
mod link;
mod linked;
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

use crate::events::Events;
use crate::worker::Report;

use desk::{Desk, PacketsBySlot};
pub(crate) use link::LinkReport;
pub(crate) use shown::{CardPicture, cards, explain, placement};

/// Reports that may wait for the control thread; then cards wait.
const MAX_REPORTS: usize = 1024;
/// Interval at which cards are looked after.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The cards of the running configuration.
pub(crate) struct Cards {
    desks: Vec<Desk>,
    next: u64,
    reports: Sender<LinkReport>,
    told: Receiver<LinkReport>,
    /// Packets that slots had decided when the last period ended, with the number of their
    /// arrangement.
    counted: (u32, HashMap<PolicyIndex, u64>),
    /// The tags that workers were told.
    stamped: Vec<(PortId, Arc<Placements>)>,
    events: Events,
}

impl Cards {
    /// No cards yet.
    pub(crate) fn new(events: Events) -> Cards {
        let (reports, told) = channel(MAX_REPORTS);
        let counted = (0, HashMap::new());
        let (desks, stamped) = (Vec::new(), Vec::new());
        Cards { desks, next: 1, reports, told, counted, stamped, events }
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.desks.is_empty()
    }

    /// Has the cards of a configuration: those that it names as before go on.
    pub(crate) fn configure(&mut self, config: &Validated) {
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
                    Desk::open(self.next, settings.clone(), ports, reports, events)
                }
            };
            self.desks.push(desk);
        }
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
            if let Some(desk) = self.desks.iter_mut().find(|desk| desk.number == card) {
                desk.take(what, snapshot);
            }
            next = self.told.try_recv().ok();
        }
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
        now.into_iter()
            .map(since)
            .filter(|(_, packets)| *packets > 0)
            .collect::<HashMap<_, _>>()
            .into()
    }

    /// Does what is due by the clock: looks at cards, adopts plans that were made.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.desks.iter_mut().for_each(|desk| desk.tick(now));
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
