//! One card: its connection, its ledger, and the plan of the rules that it gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{CardKind, CardSettings, GroupOffload};
use dataplane::counters::Volume;
use dataplane::{PortId, Side, Snapshot};
use offload::{
    Card as _, CardEvent, Effect, Incarnation, Ledger, Placements, Plan, Problem, Reading, RuleKey,
    SaBook, SaNews, Seasons, Told, plan,
};
use policy::{Policy, PolicyIndex, RuleChanges, Selector, Spd};
use tokio::sync::mpsc::{Sender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use wire::Family;
use wire::link::ETHERNET_BYTES;

use super::link::{self, LinkNews, LinkReport};
use super::linked::{LinkedCard, Requests};
use super::linux::{self, LinuxCard};
use super::own;
use crate::events::{Events, Kind};

/// Time between two polls of a card while the daemon awaits an answer.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Time between two polls of a card otherwise.
const LOOK: Duration = Duration::from_secs(1);
/// Time that a card may take to list what it has.
const ANSWER: Duration = Duration::from_secs(2);
/// Least time between two plans if nothing but packet counts has changed.
const PLAN: Duration = Duration::from_secs(1);
/// Least time between two plans, as a multiple of the time that the last plan took: planning uses
/// 1 % of a core at most.
const PLAN_SHARE: u32 = 100;
/// Largest number of rules that one plan places.
const MOST_MOVES: usize = 10_000;
/// Time for which the daemon does not use a card after an audit found one of its tags wrong.
const DISTRUST: Duration = Duration::from_secs(60);

/// The reason for a lost SA if the card named none.
const FORGOTTEN: &str = "it has forgotten the SA";

/// Number of packets that each rule decided in a period, by slot.
pub(super) type PacketsBySlot = Arc<HashMap<PolicyIndex, u64>>;

/// A card that is configured.
pub(super) struct Desk {
    /// Its number in this process.
    pub(super) number: u64,
    pub(super) settings: CardSettings,
    /// Name of the netdev of its first port.
    netdev: String,
    /// Names of its ports in the order of the settings, each with its use for rules.
    ports: Vec<(String, GroupOffload)>,
    link: Link,
    /// The reason why the card does not serve; `None`: it serves.
    absent: Option<String>,
    /// `None` until the card serves for the first time.
    pub(super) held: Option<Held>,
    seasons: Seasons,
    /// The plan that the daemon adopted last, with its rules.
    pub(super) plan: Option<Arc<(Plan, Arc<Spd>)>>,
    planning: Option<oneshot::Receiver<Planned>>,
    plan_at: Instant,
    looks: Looks,
    distrusted_until: Option<Instant>,
    /// Its link is down: it has forgotten all, and is given nothing before the link is up again.
    is_down: bool,
    /// Each poll of the card sets it; the control thread clears it when it has noted the use of the
    /// card's SAs.
    pub(super) was_read: bool,
    /// News of SAs, each with its reason.
    sa_news: Vec<(SaNews, &'static str)>,
    /// Packets that the card may not drop.
    own: Arc<[Selector]>,
    /// Packets that the card dropped by rules, since the last period and since the last reading.
    dropped: Dropped,
    /// A card that ran with other settings may still drop by their rules, until this one begins.
    heritage: Heritage,
    events: Events,
}

/// The state in which a desk finds its card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heritage {
    /// No desk has let it drop packets.
    None,
    /// An earlier desk let it drop packets, and the card has not begun anew since.
    Drops,
}

/// Packets that a card dropped by rules.
#[derive(Default)]
struct Dropped {
    /// By slot, for the next plan.
    by_slot: HashMap<PolicyIndex, u64>,
    /// By rule: what the daemon has not added to the rule's counters yet.
    by_rule: Vec<DroppedByRule>,
}

/// Packets that a card dropped by a rule.
pub(crate) struct DroppedByRule {
    /// Name of the rule.
    pub(crate) name: String,
    /// Its [`policy::Action::kind`].
    pub(crate) kind: usize,
    /// Packets and bytes that a port would have sent, and those that it received.
    pub(crate) volumes: [Volume; 2],
}

/// The task that carries requests and reports. It ends when this is dropped.
struct Link {
    requests: Requests,
    task: AbortHandle,
    reports: Sender<LinkReport>,
}

impl Link {
    fn open(
        number: u64,
        settings: &CardSettings,
        netdev: &str,
        reports: Sender<LinkReport>,
    ) -> Link {
        let (requests, task) = match settings.kind {
            CardKind::Emulated => {
                let (requests, asked) = unbounded_channel();
                // An emulated card without a socket is refused with the configuration.
                let socket = settings.socket.clone().unwrap_or_default();
                let task = link::serve(number, socket, asked, reports.clone());
                (Requests::Process(requests), tokio::spawn(task))
            }
            CardKind::Xfrm(esp) => {
                let card = Arc::new(LinuxCard::new(number, esp, reports.clone()));
                let task = linux::serve(card.clone(), netdev.to_owned());
                (Requests::Linux(card), tokio::spawn(task))
            }
        };
        Link { requests, task: task.abort_handle(), reports }
    }
}

impl Link {
    /// Has Linux forget all that it carries for the card.
    fn end(&self) {
        if let Requests::Linux(card) = &self.requests {
            card.forget_all();
        }
    }
}

/// The task may still hold the card for a while.
impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        self.end();
    }
}

/// The card's ledger and SAs, from the time when it first served.
pub(super) struct Held {
    pub(super) card: LinkedCard,
    pub(super) ledger: Ledger,
    pub(super) sas: SaBook,
    /// Time of the last reading.
    pub(super) read_at: Option<Instant>,
    /// The tags that workers accept.
    marks: Arc<Placements>,
    /// Slots of the card's ports, in its order.
    slots: Arc<[u16]>,
}

impl Held {
    /// Asks the card to forget SAs that this desk has lost, whether or not the card still has them.
    fn forget(&mut self, news: &[SaNews]) {
        for one in news {
            if let SaNews::Lost(tag) = one {
                self.card.withdraw(*tag);
            }
        }
    }
}

/// A finished plan, with its input.
struct Planned {
    plan: Plan,
    rules: Arc<Spd>,
    took: Duration,
}

/// The readings of the card.
struct Looks {
    number: u64,
    last: Instant,
    /// The daemon awaits one.
    is_awaited: bool,
}

impl Desk {
    /// A card to which the task is still connecting.
    pub(super) fn open(
        number: u64,
        (settings, netdev): (CardSettings, String),
        ports: Vec<(String, GroupOffload)>,
        reports: Sender<LinkReport>,
        events: Events,
    ) -> Desk {
        let now = Instant::now();
        Desk {
            number,
            link: Link::open(number, &settings, &netdev, reports),
            settings,
            netdev,
            ports,
            absent: Some("not found yet".into()),
            held: None,
            seasons: Seasons::default(),
            plan: None,
            planning: None,
            plan_at: now,
            looks: Looks { number: 0, last: now, is_awaited: false },
            distrusted_until: None,
            is_down: false,
            was_read: false,
            sa_news: Vec::new(),
            own: Arc::default(),
            dropped: Dropped::default(),
            heritage: Heritage::None,
            events,
        }
    }

    /// Says in which state the desk finds its card.
    pub(super) fn with(self, heritage: Heritage) -> Desk {
        Desk { heritage, ..self }
    }

    /// The card's action on packets that rules deny.
    fn effect(&self) -> Effect {
        match self.ports.iter().any(|(_, usage)| *usage == GroupOffload::Drop) {
            true => Effect::Drop,
            false => Effect::Mark,
        }
    }

    /// Returns whether the card may drop packets that the rules permit: it has not confirmed that
    /// it stopped.
    pub(super) fn is_unconfirmed(&self) -> bool {
        let held = self.held.as_ref();
        self.heritage == Heritage::Drops
            || held.is_some_and(|held| held.ledger.unconfirmed_drops() > 0)
    }

    /// Returns whether the card may drop packets.
    pub(super) fn may_drop(&self) -> bool {
        let held = self.held.as_ref();
        self.heritage == Heritage::Drops || held.is_some_and(|held| held.ledger.may_drop())
    }

    /// Takes all rules out of the card.
    pub(super) fn withdraw_all(&mut self) {
        if let Some(held) = &mut self.held {
            held.ledger.withdraw_all();
        }
        self.planning = None;
    }

    /// Takes what the card dropped by each rule since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<DroppedByRule> {
        std::mem::take(&mut self.dropped.by_rule)
    }

    /// Takes the number of packets that the card dropped by the rule of each slot since the last
    /// call.
    pub(super) fn take_dropped_by_slot(&mut self) -> HashMap<PolicyIndex, u64> {
        std::mem::take(&mut self.dropped.by_slot)
    }

    /// Notes the counts of rules that drop: no worker sees these packets. The card counts frames.
    fn note_dropped(&mut self, readings: &[(RuleKey, Reading)], snapshot: &Snapshot) {
        let Some(held) = self.held.as_ref().filter(|_| self.effect() == Effect::Drop) else {
            return;
        };
        let port = held.slots.first().and_then(|slot| snapshot.find_port(PortId(*slot)));
        let is_outbound = port.is_none_or(|port| port.side == Side::Protected);
        for (key, reading) in readings.iter().filter(|(_, reading)| reading.packets > 0) {
            let policy = snapshot.spd().policy(key.slot);
            if !offload::Decision::of(policy.action).drops() {
                continue;
            }
            *self.dropped.by_slot.entry(key.slot).or_default() += reading.packets;
            let link = reading.packets.saturating_mul(ETHERNET_BYTES as u64);
            let bytes = reading.bytes.saturating_sub(link);
            let volume = Volume { packets: reading.packets, bytes };
            let none = Volume::default();
            let volumes = if is_outbound { [volume, none] } else { [none, volume] };
            let (name, kind) = (policy.name.clone(), policy.action.kind());
            self.dropped.by_rule.push(DroppedByRule { name, kind, volumes });
        }
    }

    /// Finds the packets that the card may not drop. If they have changed, withdraws all rules that
    /// drop.
    fn find_own(&mut self, snapshot: &Snapshot) {
        if self.effect() == Effect::Mark {
            return;
        }
        let own = own::own(snapshot);
        if *own != *self.own {
            self.own = own.into();
            if let Some(held) = &mut self.held {
                held.ledger.withdraw_drops();
            }
            self.plan_at = Instant::now();
        }
    }

    /// Has Linux forget all that it carries for the card.
    pub(super) fn end(&self) {
        self.link.end();
    }

    /// Returns whether the desk is for the card with these settings and ports.
    pub(super) fn is_of(&self, settings: &CardSettings, ports: &[(String, GroupOffload)]) -> bool {
        let CardSettings { name, kind, socket, .. } = &self.settings;
        (name, kind, socket) == (&settings.name, &settings.kind, &settings.socket)
            && self.ports == ports
    }

    /// The names of its ports.
    pub(super) fn port_names(&self) -> impl Iterator<Item = &str> {
        self.ports.iter().map(|(name, _)| name.as_str())
    }

    /// Returns whether a port is on the card.
    pub(super) fn has_port(&self, port: PortId) -> bool {
        self.held.as_ref().is_some_and(|held| held.slots.contains(&port.0))
    }

    /// The reason why workers do not use the card's tags now.
    pub(super) fn trouble(&self) -> Option<&str> {
        match (&self.absent, self.distrusted_until) {
            (Some(why), _) => Some(why),
            (None, Some(_)) => Some("a tag of it was wrong: it is not used for a minute"),
            (None, None) => None,
        }
    }

    /// Takes in a report of the connection.
    pub(super) fn take(&mut self, news: LinkNews, snapshot: &Snapshot) {
        match news {
            LinkNews::Begun(capabilities) => self.begin(*capabilities, snapshot),
            LinkNews::Lost(why) => self.lose(why),
            LinkNews::Event(event) => self.hear(&event),
            LinkNews::Found(found, capabilities) => {
                let Some(held) = &mut self.held else { return };
                if found.number != self.looks.number {
                    return;
                }
                self.looks.is_awaited = false;
                let is_other = *capabilities != *held.ledger.card();
                held.card.take(&found, *capabilities);
                let Held { card, sas, .. } = held;
                let lost = match is_other {
                    false => sas.look(|handle| card.use_of(handle)),
                    // The card is another one now: it may treat the rules in another way.
                    true => sas.lose(),
                };
                held.read_at = Some(Instant::now());
                self.was_read = true;
                held.forget(&lost);
                self.sa_news.extend(lost.into_iter().map(|news| (news, FORGOTTEN)));
                let look = held.ledger.look(&held.card);
                self.note_dropped(&look.readings, snapshot);
                if look.lost > 0 || !look.missing.is_empty() {
                    self.plan_at = Instant::now();
                    self.report_missing(&look.missing, look.lost, snapshot);
                }
            }
        }
    }

    fn begin(&mut self, capabilities: offload::Capabilities, snapshot: &Snapshot) {
        let text = capabilities.spec();
        let held = match self.held.take() {
            Some(mut held) => {
                // Linux forgets what this desk has lost.
                self.end();
                held.card.begins(capabilities);
                held.ledger.event(&CardEvent::Reset);
                held.ledger.is_empty_now();
                let lost = held.sas.lose();
                self.sa_news.extend(lost.into_iter().map(|news| (news, "it began anew")));
                held
            }
            None => {
                let card = LinkedCard::new(capabilities.clone(), self.link.requests.clone());
                let ledger = Ledger::beginning(capabilities, first_incarnation());
                let marks = Arc::new(ledger.placements());
                let sas = SaBook::beginning(first_incarnation());
                Held { card, ledger, sas, read_at: None, marks, slots: Arc::default() }
            }
        };
        self.held = Some(held);
        self.heritage = Heritage::None;
        self.find_ports(snapshot);
        self.find_own(snapshot);
        self.absent = None;
        // If it is, the card says so next.
        self.is_down = false;
        self.looks.is_awaited = false;
        self.plan_at = Instant::now();
        let name = &self.settings.name;
        let kind = self.settings.kind.name();
        let message = format!("card {name} ({kind}) serves: {text}");
        self.events.record(Kind::CardServes, name, message, &[("card", &text), ("kind", &kind)]);
    }

    fn lose(&mut self, why: String) {
        let was_there = self.absent.is_none();
        self.end();
        if let Some(held) = &mut self.held {
            // Only the connection is lost: the card may go on dropping packets.
            held.ledger.event(&CardEvent::Reset);
            let lost = held.sas.lose();
            self.sa_news.extend(lost.into_iter().map(|news| (news, "it is lost")));
        }
        // One event for each reason, however often it repeats.
        if self.absent.as_ref() != Some(&why) {
            let name = &self.settings.name;
            let kind = if was_there { Kind::CardLost } else { Kind::CardAbsent };
            let message = format!("card {name}: {why}; the gateway judges all packets by itself");
            self.events.record(kind, name, message, &[]);
        }
        self.absent = Some(why);
    }

    fn hear(&mut self, event: &CardEvent) {
        let Some(held) = &mut self.held else { return };
        let is_of_sa = match event {
            CardEvent::Live(tag) | CardEvent::Withdrawn(tag) | CardEvent::Refused(tag, _) => {
                tag.handle.is_of_sa()
            }
            _ => false,
        };
        let news = held.sas.event(event);
        held.forget(&news);
        let why = happening(event).unwrap_or(FORGOTTEN);
        self.sa_news.extend(news.into_iter().map(|news| (news, why)));
        if is_of_sa {
            return;
        }
        let told = held.ledger.event(event);
        match event {
            CardEvent::Down => (self.is_down, self.planning) = (true, None),
            CardEvent::Up => self.is_down = false,
            _ => {}
        }
        let name = &self.settings.name;
        if let Some(happened) = happening(event) {
            let lost = if let Told::Lost(lost) = told { lost } else { 0 };
            let message = format!("card {name}: {happened}; {lost} rules in it are lost");
            self.events.record(Kind::CardChanged, name, message, &[("lost", &lost)]);
            self.plan_at = Instant::now();
        }
        if let Told::Refused(key, refusal) = told {
            let rule = self.plan.as_ref().map_or("", |plan| name_of(&plan.1, key));
            let message = format!("card {name} refused rule {rule}: {refusal}");
            let details: crate::events::Details<'_> = &[
                ("rule", &rule),
                ("code", &refusal.code.to_string()),
                ("text", &&*refusal.text),
                ("reason", &refusal.kind.name()),
            ];
            self.events.record(Kind::CardRefused, name, message, details);
        }
    }

    /// Records an event about rules that the card lost without telling.
    fn report_missing(&self, missing: &[RuleKey], lost: usize, snapshot: &Snapshot) {
        let name = &self.settings.name;
        let count = missing.len() + lost;
        let first = missing.first().map(|key| name_of(snapshot.spd(), *key));
        let of = first.map_or_else(String::new, |first| format!(", the first of them {first}"));
        let message = format!("card {name} lost {count} rules without a word{of}");
        self.events.record(Kind::CardChanged, name, message, &[("lost", &count)]);
    }

    /// Follows a snapshot that workers are about to use.
    pub(super) fn follow(&mut self, before: &Snapshot, next: &Snapshot) {
        let Some(held) = &mut self.held else { return };
        if before.policy_slots() != next.policy_slots() {
            held.ledger.given_anew();
            self.plan_at = Instant::now();
        } else {
            let changes = next.spd().rules_since(before.spd());
            if changes != RuleChanges::default() {
                tell(&mut held.ledger, &changes, next.spd());
                self.plan_at = Instant::now();
            }
        }
        self.find_ports(next);
        if !next.sources().routes.ptr_eq(&before.sources().routes) {
            self.find_own(next);
        }
    }

    /// Finds the slots of the card's ports. If they have changed, withdraws all
    /// rules and plans anew.
    fn find_ports(&mut self, snapshot: &Snapshot) {
        let Some(held) = &mut self.held else { return };
        let slot = |(name, _): &(String, GroupOffload)| slot_of(snapshot, name).map(|port| port.0);
        // A missing port gets a number that no rule names.
        let slots: Arc<[u16]> =
            self.ports.iter().map(|port| slot(port).unwrap_or(u16::MAX)).collect();
        if slots != held.slots {
            held.card.has_ports(slots.clone());
            held.slots = slots;
            held.ledger.given_anew();
            self.plan_at = Instant::now();
        }
    }

    /// The tags that count, by port; empty if none counts.
    pub(super) fn marks(&mut self) -> impl Iterator<Item = (PortId, Arc<Placements>)> {
        let held = self.held.as_mut().map(|held| {
            let now = held.ledger.placements();
            if *held.marks != now {
                held.marks = now.into();
            }
            &*held
        });
        let held = held.filter(|held| held.marks.rules().next().is_some());
        held.into_iter().flat_map(|held| {
            let slots = held.slots.iter().filter(|slot| **slot != u16::MAX);
            slots.map(|slot| (PortId(*slot), held.marks.clone()))
        })
    }

    /// Sends the card the requests that are due. Workers must have the tags that count before.
    pub(super) fn order(&mut self) {
        let takes = self.absent.is_none() && !self.is_down;
        if let Some(held) = self.held.as_mut().filter(|_| takes) {
            held.ledger.orders().give(&mut held.card);
        }
    }

    /// Does what is due by the clock: polls the card, and adopts a finished plan.
    pub(super) fn tick(&mut self, now: Instant) {
        self.distrusted_until = self.distrusted_until.filter(|until| now < *until);
        let Some(held) = self.held.as_mut().filter(|_| self.absent.is_none()) else { return };
        let since = now.duration_since(self.looks.last);
        if self.looks.is_awaited {
            if since > ANSWER {
                self.looks.is_awaited = false;
                self.hang_up();
            }
            return self.adopt();
        }
        let every = if held.ledger.is_settled() { LOOK } else { LOOK_SOON };
        if since >= every {
            let number = self.looks.number + 1;
            self.looks = Looks { number, last: now, is_awaited: true };
            held.card.look(number);
        }
        self.adopt();
    }

    /// Treats a card that does not answer as lost, until it answers again.
    fn hang_up(&mut self) {
        self.lose("it does not answer".into());
        self.link =
            Link::open(self.number, &self.settings, &self.netdev, self.link.reports.clone());
        if let Some(held) = &mut self.held {
            held.card.is_reached_by(self.link.requests.clone());
        }
    }

    /// Returns whether the next plan needs the packet counts of a period.
    pub(super) fn wants_packets(&self, now: Instant) -> bool {
        let may_plan = self.trouble().is_none() && self.planning.is_none() && !self.is_down;
        may_plan && now >= self.plan_at
    }

    /// Ends a period and starts a plan for the packets that rules decided in it.
    pub(super) fn plan(&mut self, snapshot: &Snapshot, packets: &PacketsBySlot) {
        let Some(held) = &mut self.held else { return };
        held.ledger.end_period();
        let of_rule = |(slot, count): (&PolicyIndex, &u64)| {
            [Family::V4, Family::V6].map(|family| (RuleKey { slot: *slot, family }, *count))
        };
        self.seasons.end_period(packets.iter().flat_map(of_rule));
        let mut standing = held.ledger.standing();
        standing.seasoned = self.seasons.seasoned();
        let card = held.ledger.card().clone();
        let there = held.slots.iter().zip(&self.ports).filter(|(slot, _)| **slot != u16::MAX);
        let (mut unused, mut ports) = (Vec::new(), Vec::new());
        for (slot, (_, usage)) in there {
            let of = if *usage == GroupOffload::None { &mut unused } else { &mut ports };
            of.push(*slot);
        }
        ports.sort_unstable();
        let (rules, packets) = (Arc::new(snapshot.spd().clone()), packets.clone());
        let (effect, own) = (self.effect(), self.own.clone());
        let (made, planning) = oneshot::channel();
        self.planning = Some(planning);
        tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            let holding: Vec<(PolicyIndex, &Policy)> = rules.holding_rules().collect();
            let plan = plan(&Problem {
                rules: &holding,
                ports: &ports,
                unused: &unused,
                card: &card,
                effect,
                own: &own,
                packets: &|slot| packets.get(&slot).copied().unwrap_or(0),
                standing: &standing,
                most_moves: MOST_MOVES,
            });
            drop(holding);
            // If the card is gone, no one receives the plan.
            let _ = made.send(Planned { plan, rules, took: begin.elapsed() });
        });
    }

    /// Carries out a plan that has finished.
    fn adopt(&mut self) {
        let Some(planning) = &mut self.planning else { return };
        let made = match planning.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return,
            made => made,
        };
        self.planning = None;
        let (Some(held), Ok(planned)) = (&mut self.held, made) else { return };
        let Planned { plan, rules, took } = planned;
        match held.ledger.adopt(&plan) {
            Ok(()) => {
                self.plan = Some(Arc::new((plan, rules)));
                self.plan_at = Instant::now() + PLAN.max(took * PLAN_SHARE);
            }
            Err(offload::Outdated) => self.plan_at = Instant::now(),
        }
    }

    /// Polls the card with the next tick.
    pub(super) fn look_soon(&mut self) {
        if let Some(long_ago) = Instant::now().checked_sub(LOOK) {
            self.looks.last = long_ago;
        }
    }

    /// Takes the news of SAs since the last call.
    pub(super) fn sa_news(&mut self) -> Vec<(SaNews, &'static str)> {
        std::mem::take(&mut self.sa_news)
    }

    /// Stops using the card for a while: an audit found one of its tags wrong.
    pub(super) fn distrust(&mut self) {
        if let Some(held) = &mut self.held {
            held.ledger.event(&CardEvent::Reset);
        }
        self.distrusted_until = Some(Instant::now() + DISTRUST);
        self.planning = None;
    }
}

/// An event that concerns the whole card, in words.
const fn happening(event: &CardEvent) -> Option<&'static str> {
    match event {
        CardEvent::Down => Some("its link is down"),
        CardEvent::Up => Some("its link is up again"),
        CardEvent::Reset => Some("it began anew"),
        CardEvent::Reloaded => Some("another driver runs it"),
        CardEvent::Unplugged => Some("it was unplugged"),
        _ => None,
    }
}

/// Tells a ledger which rules are gone and which are new.
fn tell(ledger: &mut Ledger, changes: &RuleChanges, spd: &Spd) {
    let families = |slot: &PolicyIndex| {
        let slot = *slot;
        [Family::V4, Family::V6].map(|family| RuleKey { slot, family })
    };
    let gone: Vec<RuleKey> = changes.gone.iter().flat_map(families).collect();
    let came: Vec<(PolicyIndex, &Policy)> =
        changes.came.iter().map(|slot| (*slot, spd.policy(*slot))).collect();
    ledger.changed(&gone, &came);
}

/// The name of a rule; empty if it is of an earlier arrangement of slots, of which a card may tell
/// late.
fn name_of(spd: &Spd, key: RuleKey) -> &str {
    let is_there = (key.slot.0 as usize) < spd.slots();
    if is_there { &spd.policy(key.slot).name } else { "" }
}

/// The slot of a port, by its name.
fn slot_of(snapshot: &Snapshot, name: &str) -> Option<PortId> {
    snapshot.ports().find(|(_, port)| port.name == name).map(|(slot, _)| slot)
}

/// The number of the first life of a card: a daemon before this one may have used others, and what
/// it placed may still tag packets until the card has begun anew.
fn first_incarnation() -> Incarnation {
    let mut number = [0; 4];
    // Without it the card's answer to `begin` still keeps them apart.
    let _ = getrandom::fill(&mut number);
    Incarnation(u32::from_ne_bytes(number))
}

#[cfg(test)]
impl Desk {
    /// Has a kernel of a test's carry packets for the card, which has these abilities. To be called
    /// before the card was asked for anything.
    pub(super) fn play(
        &mut self,
        kernel: &linux::played::SharedKernel,
        capabilities: &offload::Capabilities,
        snapshot: &Snapshot,
    ) {
        let CardKind::Xfrm(esp) = self.settings.kind else { panic!("a card of another kind") };
        let reports = self.link.reports.clone();
        let card =
            LinuxCard::over((self.number, esp), reports.clone(), kernel.clone(), capabilities);
        let requests = Requests::Linux(Arc::new(card));
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        self.link = Link { requests, task, reports };
        self.take(LinkNews::Begun(Box::new(capabilities.clone())), snapshot);
    }
}
