//! Cards in the words of the API, and disagreements in those of people.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::v1;
use dataplane::explain::{TagUnused, tag_decides};
use dataplane::{Disagreement, DropReason, Judged, PortId, Snapshot};
use offload::{
    Capabilities, CardRule, Decision, Effect, Ledger, Plan, Reading, Reason, Refusal, RuleKey,
    SaDirection, State,
};
use policy::{FlowAction, Spd};
use wire::Family;

use super::Cards;
use super::desk::{Desk, Held};
use super::sas::CarriedSa;
use crate::events::{Details, Events, Kind};

/// A card at one moment. Cheap to make: the control thread makes it.
pub(crate) struct CardPicture {
    name: String,
    kind: &'static str,
    ports: Vec<String>,
    trouble: Option<String>,
    capabilities: Option<Capabilities>,
    entries: usize,
    waiting: usize,
    plan: Option<Arc<(Plan, Arc<Spd>)>>,
    rules: HashMap<RuleKey, RulePicture>,
    /// SAs whose packets Linux carries for it.
    carried: Vec<CarriedSa>,
    /// Says by which ports packets leave that tags decide.
    snapshot: Arc<Snapshot>,
}

/// All of a rule that says where its tag decides: its family, the card's action, its ports.
type Alike = (Family, Effect, Arc<[u16]>);

/// A rule that is to be in a card.
struct RulePicture {
    state: State,
    counts: bool,
    reading: Reading,
    refusal: Option<Refusal>,
}

impl Cards {
    /// The cards as they are, with the SAs of a snapshot.
    pub(crate) fn pictures(&self, snapshot: &Arc<Snapshot>) -> Vec<CardPicture> {
        let picture = |desk| CardPicture {
            carried: self.carried_by(desk, snapshot),
            ..CardPicture::of(desk, snapshot.clone())
        };
        self.desks.iter().map(picture).collect()
    }
}

impl CardPicture {
    fn of(desk: &Desk, snapshot: Arc<Snapshot>) -> CardPicture {
        let ledger = desk.held.as_ref().map(|Held { ledger, .. }| ledger);
        let plan = desk.plan.clone();
        let wanted = plan.iter().flat_map(|plan| plan.0.keep.iter().chain(&plan.0.place));
        let rule = |ledger: &Ledger, key: RuleKey| RulePicture {
            state: ledger.state(key),
            counts: ledger.counts(key),
            reading: ledger.reading(key),
            refusal: ledger.refusal(key).cloned(),
        };
        let rules = wanted.filter_map(|placing| Some((placing.key, rule(ledger?, placing.key))));
        CardPicture {
            name: desk.settings.name.clone(),
            kind: desk.settings.kind.name(),
            ports: desk.port_names().map(str::to_owned).collect(),
            trouble: desk.trouble().map(str::to_owned),
            capabilities: ledger.map(|ledger| ledger.card().clone()),
            entries: ledger.map_or(0, Ledger::entries_taken),
            waiting: ledger.map_or(0, Ledger::waiting),
            rules: rules.collect(),
            plan,
            carried: Vec::new(),
            snapshot,
        }
    }

    /// Names of the ports out for which a rule's tag decides packets, whichever of the rule's ports
    /// they came by. Empty: a policy or another group is asked too. A card that drops asks neither.
    fn leaves_by(&self, family: Family, rule: &CardRule) -> Vec<String> {
        let host = self.snapshot.host();
        let ports = self.snapshot.ports().filter(|(id, _)| Some(*id) != host);
        let slots = self.snapshot.port_slots();
        let known = |from: &&u16| usize::from(**from) < slots;
        let decides = |to: PortId| {
            let mut from = rule.ports.iter().filter(known).map(|from| PortId(*from));
            rule.effect == Effect::Drop
                || from.all(|from| tag_decides(&self.snapshot, family, from, to))
        };
        ports.filter(|(id, _)| decides(*id)).map(|(_, port)| port.name.clone()).collect()
    }

    /// Returns whether the card drops by itself what a rule matches.
    fn drops(&self, rule: &str) -> bool {
        let Some((plan, spd)) = self.plan.as_deref() else { return false };
        let mut drop = plan.keep.iter().chain(&plan.place);
        drop.any(|of| of.rule.effect == Effect::Drop && spd.policy(of.key.slot).name == rule)
    }

    /// Returns the ports of [`leaves_by`](Self::leaves_by) of all rules whose tags count.
    fn all_leave_by(&self) -> Vec<String> {
        let plan = self.plan.iter().flat_map(|plan| plan.0.keep.iter().chain(&plan.0.place));
        let counts = |key| self.rules.get(key).is_some_and(|rule| rule.counts);
        let kinds = plan.filter(|placing| counts(&placing.key));
        let kinds: HashMap<Alike, &CardRule> = kinds
            .map(|placing| {
                let rule: &CardRule = &placing.rule;
                ((placing.key.family, rule.effect, rule.ports.clone()), rule)
            })
            .collect();
        let names = kinds.iter().flat_map(|((family, ..), rule)| self.leaves_by(*family, rule));
        names.collect::<BTreeSet<String>>().into_iter().collect()
    }

    fn card(&self) -> v1::Card {
        let rules = self.capabilities.as_ref().and_then(|card| card.rules.get());
        let share = self.plan.as_ref().map(|plan| plan.0.share).unwrap_or_default();
        let counting = self.rules.values().filter(|rule| rule.counts).count();
        v1::Card {
            name: self.name.clone(),
            kind: self.kind.into(),
            emulated: self.kind == "emulated",
            ports: self.ports.clone(),
            state: if self.trouble.is_none() { "serves" } else { "none" }.into(),
            state_reason: self.trouble.clone().unwrap_or_default(),
            card: self.capabilities.as_ref().map(Capabilities::spec).unwrap_or_default(),
            entries: self.entries as u64,
            max_entries: rules.map_or(0, |rules| rules.entries.into()),
            order: rules.map(|rules| rules.order.name()).unwrap_or_default().into(),
            rules: counting as u64,
            waiting: self.waiting as u64,
            share_tagged: share.tagged,
            share_of: share.of,
            leaves_by: self.all_leave_by(),
        }
    }

    fn rules(&self) -> Vec<v1::PlacedRule> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let (plan, spd) = &**plan;
        let name = |key: RuleKey| spd.policy(key.slot).name.clone();
        let one = |key: RuleKey| v1::PlacedRule {
            card: self.name.clone(),
            rule: name(key),
            family: match key.family {
                Family::V4 => 4,
                Family::V6 => 6,
            },
            action: Decision::of(spd.policy(key.slot).action).name().into(),
            ..v1::PlacedRule::default()
        };
        let mut ways: HashMap<Alike, Vec<String>> = HashMap::new();
        let placed = plan.keep.iter().chain(&plan.place).map(|placing| {
            let (family, rule) = (placing.key.family, &placing.rule);
            let ways = ways.entry((family, rule.effect, rule.ports.clone()));
            let picture = self.rules.get(&placing.key);
            let refusal = picture.and_then(|picture| picture.refusal.as_ref());
            v1::PlacedRule {
                state: picture.map_or(State::Absent, |picture| picture.state).name().into(),
                counts: picture.is_some_and(|picture| picture.counts),
                reason: refusal.map(|_| "refused".to_owned()).unwrap_or_default(),
                why: refusal.map(ToString::to_string).unwrap_or_default(),
                entries: placing.rule.entries() as u64,
                packets: picture.map_or(0, |picture| picture.reading.packets),
                behind: placing.guards.iter().map(|key| name(*key)).collect(),
                leaves_by: ways.or_insert_with(|| self.leaves_by(family, rule)).clone(),
                ..one(placing.key)
            }
        });
        let left = plan.left.iter().map(|(key, reason)| v1::PlacedRule {
            state: "classifier".into(),
            reason: reason.name().into(),
            why: match reason {
                Reason::Refused(refusal) => refusal.to_string(),
                reason => reason.help().into(),
            },
            because_of: reason.cause().map(name).unwrap_or_default(),
            ..one(*key)
        });
        placed.chain(left).collect()
    }
}

/// The cards.
pub(crate) fn cards(pictures: &[CardPicture]) -> Vec<v1::Card> {
    pictures.iter().map(CardPicture::card).collect()
}

/// The cards and their rules.
pub(crate) fn placement(pictures: &[CardPicture]) -> (Vec<v1::Card>, Vec<v1::PlacedRule>) {
    (cards(pictures), pictures.iter().flat_map(CardPicture::rules).collect())
}

/// Adds to an explanation the SAs by which Linux carries the packet, in front of the workers: the
/// one that seals it, or those that may have opened it if it is from a peer.
pub(crate) fn explain_carried(
    pictures: &[CardPicture],
    from_peer: Option<&str>,
    answer: &mut v1::Explanation,
) {
    let sealed_for = answer.peer.clone().filter(|_| answer.verdict == "protect");
    let is_sealing = |sa: &CarriedSa| {
        let (peer, spi) = (Some(&sa.peer), Some(format!("{:#010x}", sa.spi)));
        sa.direction == SaDirection::Out && peer == sealed_for.as_ref() && spi == answer.spi
    };
    let is_opening =
        |sa: &CarriedSa| sa.direction == SaDirection::In && Some(sa.peer.as_str()) == from_peer;
    let mut found = Vec::new();
    for picture in pictures {
        for sa in &picture.carried {
            let (direction, done) = match sa.direction {
                SaDirection::Out if is_sealing(sa) => ("outbound", "sealed"),
                SaDirection::In if is_opening(sa) => ("inbound", "opened"),
                _ => continue,
            };
            let mut asked = answer.policies.iter().filter(|asked| asked.direction == direction);
            let policy = asked.find_map(|asked| asked.decided_by.clone()).unwrap_or_default();
            let CarriedSa { spi, reqid, .. } = sa;
            let place = format!(
                "Linux carries it for card {}, {done} by SA {spi:#010x} (reqid {reqid})",
                picture.name
            );
            found.push((policy, place));
        }
    }
    for (rule, place) in found {
        let text = format!("policy {rule}: {place}");
        answer.placement.push(v1::ExplainedPlacement { rule, place });
        answer.lines.push(v1::Line { heading: "placement".into(), text });
    }
}

/// Adds to an explanation where the rules of groups that it names are decided, for a packet that
/// comes by a port and that a tag decides or not.
pub(crate) fn explain(
    pictures: &[CardPicture],
    (port, family): (&str, u32),
    unused: Option<TagUnused>,
    answer: &mut v1::Explanation,
) {
    if pictures.is_empty() {
        return;
    }
    // `GROUP/RULE`, or `PORT (in)` where no rule matches; names of policies have neither sign.
    let rules = answer.policies.iter().filter_map(|asked| asked.decided_by.clone());
    let rules: Vec<String> = rules.filter(|rule| rule.contains(['/', ' '])).collect();
    for rule in rules {
        let place = place_of(pictures, (port, &rule, family), unused);
        let text = format!("rule {rule}: {place}");
        answer.placement.push(v1::ExplainedPlacement { rule, place });
        answer.lines.push(v1::Line { heading: "placement".into(), text });
    }
}

/// The place where a packet of a rule that comes by a port is decided: `card nic0 (live)`,
/// `classifier (reflect)`.
fn place_of(
    pictures: &[CardPicture],
    (port, rule, family): (&str, &str, u32),
    unused: Option<TagUnused>,
) -> String {
    let Some(picture) = pictures.iter().find(|of| of.ports.iter().any(|name| name == port)) else {
        return "classifier (the port is on no card)".into();
    };
    if let Some(trouble) = &picture.trouble {
        return format!("classifier (card {}: {trouble})", picture.name);
    }
    let rules = picture.rules();
    let found = rules.iter().find(|of| of.rule == rule && of.family == family);
    let unused = unused.filter(|why| !picture.drops(rule) || *why == TagUnused::Fragment);
    match (found, unused) {
        (Some(found), Some(why)) if found.counts => {
            let name = &picture.name;
            format!(
                "classifier (card {name} has the rule, and its tag is not used: {})",
                why.help()
            )
        }
        (Some(found), _) if found.counts => format!("card {} ({})", picture.name, found.state),
        (Some(found), _) if !found.reason.is_empty() => format!("classifier ({})", found.reason),
        (Some(found), _) => format!("classifier (card {}: {})", picture.name, found.state),
        (None, _) => "classifier (not planned yet)".into(),
    }
}

/// Records that a tier said otherwise than the rules.
pub(super) fn report_disagreement(found: &Disagreement, snapshot: &Snapshot, events: &Events) {
    let tier = found.tier.name();
    let port = &snapshot.port(found.ingress).name;
    let said = judged(&found.said, snapshot);
    let rules = judged(&found.judged, snapshot);
    let flow = found.flow.to_string();
    let generation = u64::from(found.generation.0);
    let message = format!(
        "the {tier} said {said} of a packet by port {port} ({flow}), and the rules say {rules} \
         (generation {generation})"
    );
    let details: Details<'_> = &[
        ("port", port),
        ("flow", &flow),
        ("said", &said),
        ("rules", &rules),
        ("generation", &generation),
    ];
    events.record(Kind::AuditFailed, tier, message, details);
}

/// A verdict with the names of the rules that gave it.
fn judged(verdict: &Judged, snapshot: &Snapshot) -> String {
    let spd = snapshot.spd();
    let slots = verdict.deciders.slots().map(|slot| spd.policy(slot).name.as_str());
    let names: Vec<&str> = slots.collect();
    let action = match verdict.action {
        FlowAction::Permit => "permit",
        FlowAction::Protect(_) => "protect",
        FlowAction::Refuse(refusal) => DropReason::from(refusal).name(),
    };
    if names.is_empty() { action.into() } else { format!("{action} by {}", names.join(", ")) }
}
