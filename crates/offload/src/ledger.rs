//! The ledger of a card: what was placed, what became of it, and which marks count.
//!
//! The control thread keeps it and alone talks to the card. What it does with a change of rules, a
//! plan or an answer goes in this order, so that at no moment a mark says what the rules do not:
//!
//! ```text
//! 1. ledger.changed, ledger.adopt, ledger.event, ledger.look
//! 2. publish ledger.placements         and wait until every worker has them
//! 3. card.withdraw, card.place         what ledger.orders says
//! ```
//!
//! A mark counts if its item is [live](State::Live) and every rule that wins over the item's, and
//! decides otherwise, is in the card. Answers alone do not say so: they come late, and a card that
//! began anew may not have said it yet. So
//!
//! * an item is *confirmed* by a look at the card after its answer;
//! * an item is ordered only when all that must be there before it is confirmed: no packet, however
//!   long it is on its way, has its mark from a time before;
//! * it counts when it and all of those were there in a look after its own answer: a card forgets
//!   everything together, so nothing was forgotten in between.
//!
//! Nothing waits for a card that is slow: until it has answered, the walk judges by itself. Rules
//! are ordered by their turns in the plan, and only as many as the card is about to program: the
//! others wait here, where a later plan may choose anew.
//!
//! **Rules that drop.** What a card drops nobody judges again, so no mark can be ignored: the item
//! must go. A change that may permit what one drops, or by which what must stand before it goes,
//! has it withdrawn at once, before all others, and it is [unconfirmed](Ledger::unconfirmed_drops)
//! until the card says, or a look shows, that it is gone. Whoever answers for the change waits for
//! that; until then the card drops too much, and never too little.
//!
//! A card that keeps an order and forgets a single rule without a word marks wrongly until the next
//! look. That is a fault that an audit of marks finds; planning cannot prevent it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use policy::{Policy, PolicyIndex};

use crate::capabilities::Capabilities;
use crate::card::{Card, CardEvent, Reading, Refusal, RefusalKind};
use crate::handle::{Handle, Incarnation, Tag};
use crate::item::{CardRule, Effect, Item};
use crate::leaving::LeavingDrops;
use crate::placement::{Happening, Stale, State};
use crate::placements::{Placed, Placements};
use crate::planner::{Placing, Plan, Standing};
use crate::reason::RuleKey;

/// Milliseconds of programming that a card is asked for in advance: several looks.
const ADVANCE_MS: u32 = 250;
/// Entries that it is asked for in advance at least.
const LEAST_ADVANCE: usize = 16;
/// Looks after which an answer is given up: a minute, if there are twenty a second.
const PATIENCE: u64 = 1200;
/// Looks after which an answer is late, and no other rule waits its turn for it.
const LATE: u64 = 200;
/// Periods that a rule rests after the card refused it once; twice as many after each further time.
const FIRST_REST: u32 = 1;
/// Periods that a rule rests at most.
const LONGEST_REST: u32 = 64;

/// The ledger of one card.
#[derive(Debug)]
pub struct Ledger {
    card: Capabilities,
    capacity: usize,
    /// Looks at the card.
    looks: u64,
    incarnation: Incarnation,
    /// Changes of rules that it was told of.
    revision: u64,
    next: u32,
    entries: BTreeMap<Handle, Entry>,
    /// Rules that were ordered behind each.
    behind: HashMap<Handle, Vec<Handle>>,
    /// The handle of each rule that is wanted.
    handles: HashMap<RuleKey, Handle>,
    /// Rules that wait for their turn, for room or for those before them, in the order of their
    /// turns.
    waiting: Vec<Placing>,
    refused: HashMap<RuleKey, Rest>,
    /// Items that the card may have and should not: it is asked to take them out.
    strays: Vec<Tag>,
    /// Entries that are to be withdrawn and that the card was not asked about yet.
    to_withdraw: Vec<Tag>,
    /// Items that drop, that are to go, and of which the card has not confirmed that they went.
    dropping: LeavingDrops,
}

/// A rule that was placed.
#[derive(Debug)]
struct Entry {
    placing: Placing,
    /// Handles of those that were in the card before it, ascending.
    before: Box<[Handle]>,
    state: State,
    /// Looks at the card when it was last asked about the rule.
    asked: u64,
    /// Looks at the card when it answered that the rule is there.
    answered: u64,
    /// The last look that found the rule.
    seen: u64,
    /// Knowledge of those that must be in the card before it.
    company: Company,
    reading: Reading,
}

/// Knowledge of the rules that must be in the card before one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Company {
    /// No look since the rule's answer has found them all.
    Unknown,
    /// A look after the rule's answer found them all, and none has gone since.
    Complete,
}

impl Entry {
    /// Returns whether a look after the answer found the rule.
    fn is_confirmed(&self) -> bool {
        self.state.stands_before_others() && self.seen > self.answered
    }

    /// Returns whether the card drops what the rule matches.
    fn drops(&self) -> bool {
        self.placing.rule.effect == Effect::Drop
    }

    /// Returns whether marks of the rule count.
    fn counts(&self) -> bool {
        self.state == State::Live && self.is_confirmed() && self.company == Company::Complete
    }
}

/// Findings of a look at the card.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Packets and bytes of each rule since the last look.
    pub readings: Vec<(RuleKey, Reading)>,
    /// Rules that should be in the card and are not.
    pub missing: Vec<RuleKey>,
    /// Rules that are lost because the card can other things than before; it is to be planned anew.
    pub lost: usize,
}

/// A rule that the card refused.
#[derive(Clone, Debug)]
struct Rest {
    refusal: Refusal,
    times: u32,
    /// Periods that are left.
    periods: u32,
}

/// The outcome of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// A rule has another state now.
    Became(RuleKey, State),
    /// The card refused a rule.
    Refused(RuleKey, Refusal),
    /// The card lost this many rules.
    Lost(usize),
    /// The event changes nothing: it is a repetition, or about an item that is not in the ledger.
    Nothing,
}

/// The rules have changed since a plan was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the rules have changed since the plan was made")]
pub struct Outdated;

/// Requests to the card, in this order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders {
    /// Items to be withdrawn.
    pub withdraw: Vec<Tag>,
    /// Items to be placed.
    pub place: Vec<(Tag, Item)>,
}

impl Orders {
    /// Asks the card.
    pub fn give(self, card: &mut impl Card) {
        self.withdraw.into_iter().for_each(|tag| card.withdraw(tag));
        self.place.iter().for_each(|(tag, item)| card.place(item, *tag));
    }
}

impl Ledger {
    /// The ledger of a card that has nothing, and that says that it can this.
    pub fn new(card: Capabilities) -> Ledger {
        Ledger::beginning(card, Incarnation::default())
    }

    /// The same, with the number of its first life: another one for each daemon, so that no tag of
    /// an earlier daemon's is taken for one of this.
    pub fn beginning(card: Capabilities, incarnation: Incarnation) -> Ledger {
        Ledger {
            capacity: capacity_of(&card),
            card,
            looks: 0,
            incarnation,
            revision: 0,
            next: 1,
            entries: BTreeMap::new(),
            behind: HashMap::new(),
            handles: HashMap::new(),
            waiting: Vec::new(),
            refused: HashMap::new(),
            strays: Vec::new(),
            to_withdraw: Vec::new(),
            dropping: LeavingDrops::default(),
        }
    }

    /// Returns all that the planner must know of the card.
    pub fn standing(&self) -> Standing {
        let wanted = self.handles.iter().filter_map(|(key, handle)| {
            let entry = self.entries.get(handle)?;
            (!entry.state.is_going()).then(|| (*key, entry.placing.rule.clone()))
        });
        let resting = self.refused.iter().filter(|(_, rest)| rest.periods > 0);
        Standing {
            placed: wanted.collect(),
            refused: resting.map(|(key, rest)| (*key, rest.refusal.clone())).collect(),
            seasoned: HashSet::new(),
            revision: self.revision,
        }
    }

    /// Does as a plan says, which was made with [`standing`](Self::standing) for the rules that the
    /// ledger was told of last.
    ///
    /// # Errors
    /// [`Outdated`]: the rules have changed since; nothing is done, and the caller plans again.
    pub fn adopt(&mut self, plan: &Plan) -> Result<(), Outdated> {
        if plan.revision != self.revision {
            return Err(Outdated);
        }
        self.waiting.clear();
        plan.withdraw.iter().for_each(|key| self.withdraw(*key));
        for placing in plan.keep.iter().chain(&plan.place) {
            let handle = self.handles.get(&placing.key);
            let was_before = handle.is_some_and(|handle| self.were_before(*handle, placing));
            match handle.and_then(|handle| self.entries.get_mut(handle)) {
                Some(entry) if was_before && entry.placing.rule == placing.rule => {
                    if entry.placing.guards != placing.guards {
                        entry.placing.guards = placing.guards.clone();
                        entry.company = Company::Unknown;
                    }
                    entry.state = entry.state.after(Happening::Restamp);
                }
                // Packets on their way may have its mark from a time when others were not before
                // it: it gets another number.
                Some(_) => {
                    self.withdraw(placing.key);
                    self.waiting.push(placing.clone());
                }
                None => self.waiting.push(placing.clone()),
            }
        }
        self.waiting.sort_by_key(|placing| placing.turn);
        Ok(())
    }

    /// Takes a change of rules in. Marks of what it concerns do not count until the next plan.
    /// Cost: rules that came times rules in the card.
    pub fn changed(&mut self, gone: &[RuleKey], came: &[(PolicyIndex, &Policy)]) {
        self.revision += 1;
        for key in gone {
            // Those behind it do not need it any more.
            self.take_out(*key);
            self.refused.remove(key);
        }
        let is_beaten =
            |placing: &Placing| came.iter().any(|(_, policy)| placing.is_beaten_by(policy));
        // What begins connections lets their packets pass, whatever other rules say of them.
        let reflects = |policy: &Policy| matches!(policy.action, policy::Action::Reflect(_));
        let begins = came.iter().any(|(_, policy)| reflects(policy));
        let mut wrong = Vec::new();
        for entry in self.entries.values_mut().filter(|entry| !entry.state.is_going()) {
            let is_beaten = is_beaten(&entry.placing);
            match entry.drops() {
                true if is_beaten || begins => wrong.push(entry.placing.key),
                false if is_beaten => entry.state = entry.state.after(Happening::Change),
                _ => {}
            }
        }
        wrong.into_iter().for_each(|key| self.withdraw(key));
        let is_wrong =
            |placing: &Placing| is_beaten(placing) || begins && placing.rule.effect == Effect::Drop;
        self.waiting.retain(|placing| !is_wrong(placing));
    }

    /// Takes all rules that drop out of the card: it is not known any more what they may drop.
    pub fn withdraw_drops(&mut self) {
        self.revision += 1;
        let drops = self.entries.values().filter(|entry| entry.drops());
        let keys: Vec<RuleKey> = drops.map(|entry| entry.placing.key).collect();
        keys.into_iter().for_each(|key| self.withdraw(key));
        self.waiting.retain(|placing| placing.rule.effect != Effect::Drop);
    }

    /// Rules that drop, that are to go, and of which the card has not confirmed that they went.
    pub fn unconfirmed_drops(&self) -> usize {
        self.dropping.count()
    }

    /// Returns whether a rule that drops is in the card, or may be.
    pub fn may_drop(&self) -> bool {
        self.unconfirmed_drops() > 0 || self.entries.values().any(Entry::drops)
    }

    /// Notes that the card is known to have nothing.
    pub fn is_empty_now(&mut self) {
        self.dropping.clear();
    }

    /// Takes a rule out of the card, or off the list of those that wait. Those behind it do not
    /// count any more.
    fn withdraw(&mut self, key: RuleKey) {
        if let Some(handle) = self.take_out(key) {
            self.part(handle);
        }
    }

    /// Takes a rule out of the card, or off the list of those that wait; returns its handle.
    fn take_out(&mut self, key: RuleKey) -> Option<Handle> {
        self.waiting.retain(|placing| placing.key != key);
        let handle = self.handles.remove(&key)?;
        let entry = self.entries.get_mut(&handle)?;
        if !entry.state.is_going() {
            let tag = Tag { handle, incarnation: self.incarnation };
            if entry.drops() {
                self.dropping.leaves(tag, entry.state, self.looks);
            }
            entry.state = entry.state.after(Happening::Withdraw);
            entry.asked = self.looks;
            self.to_withdraw.push(tag);
        }
        Some(handle)
    }

    /// Notes that a rule stands before those behind it no more.
    fn part(&mut self, handle: Handle) {
        for behind in self.behind.remove(&handle).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(&behind) else { continue };
            entry.company = Company::Unknown;
            // It would drop what that one lets pass.
            if entry.drops() && !entry.state.is_going() {
                let key = entry.placing.key;
                self.withdraw(key);
            }
        }
    }

    /// Takes all rules out of the card.
    pub fn withdraw_all(&mut self) {
        let keys: Vec<RuleKey> = self.handles.keys().copied().collect();
        keys.into_iter().for_each(|key| self.withdraw(key));
        self.waiting.clear();
    }

    /// Forgets what it knows of rules, since slots name others now: all are taken out of the card,
    /// and a plan that was made before is outdated.
    pub fn given_anew(&mut self) {
        self.withdraw_all();
        self.refused.clear();
        self.revision += 1;
    }

    /// Returns whether no answer and no look is awaited: all that was asked is answered, and of
    /// all that is there it is known whether its marks count.
    pub fn is_settled(&self) -> bool {
        self.to_withdraw.is_empty()
            && self.strays.is_empty()
            && self.dropping.count() == 0
            && self.entries.values().all(|entry| match entry.state {
                State::Live => entry.is_confirmed() && entry.company == Company::Complete,
                State::Stale(Stale::Changed) => true,
                _ => false,
            })
    }

    /// Requests to the card that are due: to withdraw what is to go, and to place what waits, if
    /// there is room, all that must be there before it is, and the card does not have enough to do
    /// already. Each is made once.
    pub fn orders(&mut self) -> Orders {
        let mut withdraw = std::mem::take(&mut self.strays);
        withdraw.append(&mut self.to_withdraw);
        // What drops goes before what stands before it.
        withdraw.sort_by_key(|tag| !self.dropping.has(*tag));
        let mut place = Vec::new();
        let mut room = self.capacity.saturating_sub(self.entries_taken());
        let mut used = self.used_places();
        let most = advance_of(&self.card);
        let mut pending = self.entries_pending();
        for placing in std::mem::take(&mut self.waiting) {
            let fits = pending < most && placing.rule.entries() <= room;
            let before = if fits { self.confirmed(&placing.guards) } else { None };
            let ready = before.and_then(|before| Some((self.free_tag(&mut used)?, before)));
            let Some((tag, before)) = ready else {
                self.waiting.push(placing);
                continue;
            };
            room -= placing.rule.entries();
            pending += placing.rule.entries();
            place.push((tag, Item::Rule(placing.rule.clone())));
            self.handles.insert(placing.key, tag.handle);
            let state = State::Absent.after(Happening::Place);
            let (asked, answered, seen, reading) = (self.looks, 0, 0, Reading::default());
            let company = Company::Unknown;
            for guard in &before {
                self.behind.entry(*guard).or_default().push(tag.handle);
            }
            let entry = Entry { placing, before, state, asked, answered, seen, company, reading };
            self.entries.insert(tag.handle, entry);
        }
        Orders { withdraw, place }
    }

    /// Entries that the card may have, or is asked to have.
    pub fn entries_taken(&self) -> usize {
        let taken = self.entries.values().filter(|entry| entry.state.takes_room());
        taken.map(|entry| entry.placing.rule.entries()).sum()
    }

    /// Entries that the card was asked for, and whose answers are not there and not late.
    fn entries_pending(&self) -> usize {
        let is_pending = |entry: &&Entry| {
            matches!(entry.state, State::Pending(_)) && self.looks - entry.asked <= LATE
        };
        let pending = self.entries.values().filter(is_pending);
        pending.map(|entry| entry.placing.rule.entries()).sum()
    }

    /// The handles of these rules, ascending, if all of them are confirmed.
    fn confirmed(&self, guards: &[RuleKey]) -> Option<Box<[Handle]>> {
        let confirmed = |guard: &RuleKey| {
            let handle = self.handles.get(guard)?;
            self.entries.get(handle)?.is_confirmed().then_some(*handle)
        };
        let mut handles = guards.iter().map(confirmed).collect::<Option<Box<[Handle]>>>()?;
        handles.sort_unstable();
        Some(handles)
    }

    /// Returns whether all that must be in the card before a rule was there when it was ordered.
    fn were_before(&self, handle: Handle, placing: &Placing) -> bool {
        let Some(entry) = self.entries.get(&handle) else { return false };
        let was_before = |guard: &RuleKey| {
            let handle = self.handles.get(guard);
            handle.is_some_and(|handle| entry.before.binary_search(handle).is_ok())
        };
        placing.guards.iter().all(was_before)
    }

    /// Returns whether all that must be in the card before a rule was there when it was ordered,
    /// and was found there by a look after its answer.
    fn is_in_company(&self, entry: &Entry) -> bool {
        entry.placing.guards.iter().all(|guard| {
            let Some(handle) = self.handles.get(guard) else { return false };
            let was_before = entry.before.binary_search(handle).is_ok();
            let guard = self.entries.get(handle).filter(|_| was_before);
            guard.is_some_and(|guard| {
                guard.state.stands_before_others() && guard.seen > entry.answered
            })
        })
    }

    /// Finds out of which rules all that must be before them was found in the last look.
    fn find_company(&mut self) {
        let has_all = |entry: &Entry| {
            entry.company == Company::Unknown && entry.is_confirmed() && self.is_in_company(entry)
        };
        let complete = self.entries.iter().filter(|(_, entry)| has_all(entry));
        let complete: Vec<Handle> = complete.map(|(handle, _)| *handle).collect();
        for handle in complete {
            if let Some(entry) = self.entries.get_mut(&handle) {
                entry.company = Company::Complete;
            }
        }
    }

    /// The next number whose place in the table of marks is free; `None`: all were given.
    fn free_tag(&mut self, used: &mut HashSet<u32>) -> Option<Tag> {
        let mask = Placements::mask(self.capacity);
        // Every place is tried once at most: there are more than entries.
        for number in self.next..=self.next.saturating_add(mask) {
            let handle = Handle::new(number).filter(|handle| !handle.is_of_sa())?;
            if used.insert(number & mask) {
                self.next = number + 1;
                return Some(Tag { handle, incarnation: self.incarnation });
            }
        }
        None
    }

    /// The places of the table of marks that are taken.
    fn used_places(&self) -> HashSet<u32> {
        let mask = Placements::mask(self.capacity);
        self.entries.keys().map(|handle| handle.get() & mask).collect()
    }

    /// Takes an event of the card in.
    pub fn event(&mut self, event: &CardEvent) -> Told {
        self.dropping.event(event);
        match event {
            CardEvent::Live(tag) => self.answer(*tag, Happening::Live),
            CardEvent::Withdrawn(tag) => self.answer(*tag, Happening::Withdrawn),
            CardEvent::Refused(tag, refusal) => match self.answer(*tag, Happening::Refused) {
                Told::Became(key, _) => {
                    self.rest(key, refusal.clone());
                    Told::Refused(key, refusal.clone())
                }
                told => told,
            },
            // One that comes late or again says nothing of what was placed since: what drops is
            // looked for.
            CardEvent::Down | CardEvent::Reset | CardEvent::Reloaded | CardEvent::Unplugged => {
                Told::Lost(self.lost())
            }
            // Rules have no limits and ask for no SAs.
            CardEvent::Up | CardEvent::Limit(..) | CardEvent::Acquire(_) => Told::Nothing,
        }
    }

    /// Takes an answer about one item in.
    fn answer(&mut self, tag: Tag, happening: Happening) -> Told {
        let Tag { handle, incarnation } = tag;
        let known = self.entries.get_mut(&handle).filter(|_| incarnation == self.incarnation);
        let Some(entry) = known else {
            if happening == Happening::Live {
                self.strays.push(tag);
            }
            return Told::Nothing;
        };
        let before = entry.state;
        entry.state = before.after(happening);
        if matches!((before, happening), (State::Pending(_), Happening::Live)) {
            entry.answered = self.looks;
        }
        let (key, state) = (entry.placing.key, entry.state);
        if state.is_going() && self.handles.get(&key) == Some(&handle) {
            self.handles.remove(&key);
        }
        if before.stands_before_others() && !state.stands_before_others() {
            self.part(handle);
        }
        if happening == Happening::Refused && state.takes_room() && !before.is_going() {
            // It said that the rule was there, and now says that it is not.
            self.to_withdraw.push(tag);
            if self.entries.get(&handle).is_some_and(Entry::drops) {
                self.dropping.leaves(tag, before, self.looks);
            }
        }
        if !state.takes_room() {
            self.entries.remove(&handle);
        }
        if state == State::Live {
            self.refused.remove(&key);
        }
        if state == before { Told::Nothing } else { Told::Became(key, state) }
    }

    /// Notes that the card refused a rule: it is not asked again at once.
    fn rest(&mut self, key: RuleKey, refusal: Refusal) {
        let times = self.refused.get(&key).map_or(0, |rest| rest.times);
        let periods = FIRST_REST.checked_shl(times).unwrap_or(LONGEST_REST).min(LONGEST_REST);
        let periods = match refusal.kind {
            // It will not learn it.
            RefusalKind::Unsupported => LONGEST_REST,
            RefusalKind::Full | RefusalKind::Failed => periods,
        };
        self.refused.insert(key, Rest { refusal, times: times.saturating_add(1), periods });
    }

    /// Ends a period: rules that the card refused come nearer to being tried again, and what is
    /// kept about rules that are gone is forgotten.
    pub fn end_period(&mut self) {
        for rest in self.refused.values_mut() {
            rest.periods = rest.periods.saturating_sub(1);
        }
        let entries = &self.entries;
        self.behind.retain(|guard, behind| {
            behind.retain(|handle| entries.contains_key(handle));
            entries.contains_key(guard)
        });
    }

    /// The card has lost everything. All that it may still have is to be withdrawn.
    fn lost(&mut self) -> usize {
        let lost = std::mem::take(&mut self.entries);
        let tag = |handle: &Handle| Tag { handle: *handle, incarnation: self.incarnation };
        for (handle, entry) in lost.iter().filter(|(_, entry)| entry.drops()) {
            self.dropping.leaves(tag(handle), entry.state, self.looks);
        }
        self.strays.extend(lost.keys().map(tag));
        self.behind.clear();
        self.handles.clear();
        self.waiting.clear();
        self.to_withdraw.clear();
        self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
        lost.values().filter(|entry| !entry.state.is_going()).count()
    }

    /// Looks at the card: what it can, and what it has. Reads the counters of its rules.
    pub fn look(&mut self, card: &impl Card) -> Look {
        let mut look = Look::default();
        let now = card.probe();
        if now != self.card {
            // Whatever it answered since, it answered as another card.
            look.lost = self.lost();
            self.capacity = capacity_of(&now);
            self.card = now;
            self.refused.clear();
        }
        self.looks += 1;
        self.dropping.look(self.looks, |handle| card.reading(handle).is_some());
        let mut missing = Vec::new();
        let known = self.entries.iter_mut().filter(|(_, entry)| entry.state.stands_before_others());
        for (handle, entry) in known {
            let Some(now) = card.reading(*handle) else {
                look.missing.push(entry.placing.key);
                missing.push(Tag { handle: *handle, incarnation: self.incarnation });
                continue;
            };
            entry.seen = self.looks;
            // A count that went backwards began anew.
            let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            let reading = Reading {
                packets: since(now.packets, entry.reading.packets),
                bytes: since(now.bytes, entry.reading.bytes),
                as_of_ms: now.as_of_ms,
            };
            entry.reading = now;
            look.readings.push((entry.placing.key, reading));
        }
        for tag in missing {
            self.answer(tag, Happening::Withdrawn);
        }
        self.lose_patience(card);
        self.find_company();
        look
    }

    /// Gives up answers that do not come. What was asked for is to be withdrawn; what was to be
    /// withdrawn is gone if the card does not have it, and else is asked for again.
    fn lose_patience(&mut self, card: &impl Card) {
        let is_late = |entry: &Entry| {
            let waits = matches!(entry.state, State::Pending(_) | State::Stale(Stale::Leaving));
            waits && self.looks - entry.asked > PATIENCE
        };
        let late = self.entries.iter().filter(|(_, entry)| is_late(entry));
        let late: Vec<(Handle, RuleKey)> =
            late.map(|(handle, entry)| (*handle, entry.placing.key)).collect();
        for (handle, key) in late {
            let tag = Tag { handle, incarnation: self.incarnation };
            if self.handles.get(&key) == Some(&handle) {
                self.withdraw(key);
                let text = "the card does not answer".into();
                self.rest(key, Refusal { kind: RefusalKind::Failed, code: 0, text });
            } else if card.reading(handle).is_none() {
                self.answer(tag, Happening::Withdrawn);
            } else if let Some(entry) = self.entries.get_mut(&handle) {
                entry.asked = self.looks;
                self.to_withdraw.push(tag);
            }
        }
    }

    /// The abilities that the card named when it was last looked at.
    pub fn card(&self) -> &Capabilities {
        &self.card
    }

    /// The state of a rule; of one that waits it is `absent`.
    pub fn state(&self, key: RuleKey) -> State {
        let handle = self.handles.get(&key);
        let entry = handle.and_then(|handle| self.entries.get(handle));
        match entry {
            Some(entry) => entry.state,
            None if self.refused.contains_key(&key) => State::Refused,
            None => State::Absent,
        }
    }

    /// The card's last refusal of a rule.
    pub fn refusal(&self, key: RuleKey) -> Option<&Refusal> {
        self.refused.get(&key).map(|rest| &rest.refusal)
    }

    /// Packets and bytes of a rule at the last look.
    pub fn reading(&self, key: RuleKey) -> Reading {
        let entry = self.handles.get(&key).and_then(|handle| self.entries.get(handle));
        entry.map(|entry| entry.reading).unwrap_or_default()
    }

    /// Rules that wait for their turn, for room, or for those before them.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether marks of a rule count.
    pub fn counts(&self, key: RuleKey) -> bool {
        let entry = self.handles.get(&key).and_then(|handle| self.entries.get(handle));
        entry.is_some_and(Entry::counts)
    }

    /// The marks that count now, for workers. It belongs to the rules that the ledger was told of
    /// last, and to no others.
    pub fn placements(&self) -> Placements {
        let counting = self.entries.iter().filter(|(_, entry)| entry.counts());
        let placed =
            counting.map(|(handle, entry)| Placed { handle: *handle, rule: entry.placing.key });
        Placements::new(self.capacity, self.incarnation, placed)
    }

    /// The rule that was placed under a tag, whatever its state: for events and counters.
    pub fn rule(&self, tag: Tag) -> Option<(RuleKey, &Arc<CardRule>)> {
        let entry = self.entries.get(&tag.handle)?;
        (tag.incarnation == self.incarnation).then_some((entry.placing.key, &entry.placing.rule))
    }
}

/// Entries that a card has room for.
fn capacity_of(card: &Capabilities) -> usize {
    card.rules.get().map_or(0, |rules| rules.entries as usize)
}

/// Entries that a card is asked for before it has answered about the first of them.
fn advance_of(card: &Capabilities) -> usize {
    let programming_ms = card.rules.get().map_or(0, |rules| rules.programming_ms);
    let advance = ADVANCE_MS.checked_div(programming_ms);
    advance.map_or(usize::MAX, |entries| LEAST_ADVANCE.max(entries as usize))
}

#[cfg(test)]
mod tests;
