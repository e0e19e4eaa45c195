//! `[[rule]]`: rules of groups, in their order.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use policy::selector::parse_addresses;
use policy::{AddressRange, GroupSide, Spd};
use wire::{Address, Family};

use super::NamedSections;
use super::ports::Ports;
use super::rule_doubts::RuleReview;
use super::selectors::{MAX_ENTRIES, Matched, bounded_list, warn_of_overlaps};
use crate::chunked::EntryCounts;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::group_policies::{MAX_RULES_A_GROUP, attachments};
use crate::groups::{Group, GroupId, Rule, RuleAction, RuleAddresses, Set, ranges};
use crate::overlays::NetworkSettings;
use crate::raw::{RawRule, Text, Texts};
use crate::source::{ShortSpan, Span, Spanned};
use crate::values::{name, word};

/// Addresses in `from` and `to` of all rules at most, each set counted where a rule names it.
const MAX_ADDRESSES: usize = 2 * Spd::MAX_RULES;

/// Judges the rules of a file, some at a time.
pub(super) struct RuleJudge<'a> {
    groups: &'a NamedSections<Group>,
    sets: &'a NamedSections<Set>,
    /// Every name so far, and where it stands.
    names: HashMap<(GroupId, Box<str>), ShortSpan>,
    /// Rules so far, right or wrong, of each group.
    counts: HashMap<GroupId, usize>,
    /// Addresses so far, those of sets among them.
    addresses: usize,
    /// The right ones.
    list: Vec<Rule>,
    /// The places of their names, or of those without one.
    places: Vec<ShortSpan>,
}

impl<'a> RuleJudge<'a> {
    pub(super) fn new(
        groups: &'a NamedSections<Group>,
        sets: &'a NamedSections<Set>,
        counts: EntryCounts,
    ) -> RuleJudge<'a> {
        RuleJudge {
            groups,
            sets,
            names: HashMap::new(),
            counts: HashMap::new(),
            addresses: 0,
            list: Vec::with_capacity(counts.rules),
            places: Vec::with_capacity(counts.rules),
        }
    }

    /// Judges the next ones of the file.
    pub(super) fn judge(&mut self, rules: &[RawRule], problems: &mut Diagnostics<'_>) {
        for written in rules {
            self.one(written, problems);
        }
    }

    fn one(&mut self, written: &RawRule, problems: &mut Diagnostics<'_>) {
        let group = written.group.as_ref().and_then(|name| {
            let id = self.groups.id(name.get_ref());
            if id.is_none() {
                super::groups::unknown(self.groups, name, problems);
            }
            id
        });
        let number = group.map(|group| {
            let count = self.counts.entry(group).or_default();
            *count += 1;
            *count
        });
        match number {
            Some(number) if number > MAX_RULES_A_GROUP => {
                if number == MAX_RULES_A_GROUP + 1 {
                    let (what, limit) = ("rules in one group", MAX_RULES_A_GROUP);
                    problems.error(&written.at, DiagnosticKind::TooMany { what, limit });
                }
                return;
            }
            _ => {}
        }
        let place = written.name.as_ref().map_or(written.at.clone(), Spanned::span);
        let rule_name = match &written.name {
            Some(written) => name(problems, written),
            None => number.map(|number| number.to_string()),
        };
        if let (Some(group), Some(name)) = (group, &rule_name) {
            self.note_name(group, name, &place, problems);
        }
        let action = action(&written.action, problems);
        let [from, to] = [("from", &written.from), ("to", &written.to)]
            .map(|(key, written)| self.addresses(key, written, problems));
        let resolved = [&from, &to].map(|entries| self.resolved(entries.as_deref()));
        let selector = written.matched().selector_between(resolved, problems);
        let (Some(group), Some(number), Some(name)) = (group, number, rule_name) else { return };
        let (Some(action), Some(from), Some(to), Some(selector)) = (action, from, to, selector)
        else {
            return;
        };
        let (protocol, upper) = (selector.protocol, selector.upper);
        let number = number as u32;
        self.list.push(Rule { group, name, number, action, from, to, protocol, upper });
        self.places.push(place.into());
    }

    fn note_name(
        &mut self,
        group: GroupId,
        name: &str,
        place: &Span,
        problems: &mut Diagnostics<'_>,
    ) {
        match self.names.entry((group, name.into())) {
            Entry::Occupied(earlier) => {
                let named = self.groups.ids.iter().find(|(_, id)| **id == group.0);
                let group = named.map_or_else(String::new, |(name, _)| name.clone());
                let mistake = DiagnosticKind::SameRule { group, name: name.to_owned() };
                problems.clash(place, &earlier.get().span(), mistake);
            }
            Entry::Vacant(entry) => {
                entry.insert(place.clone().into());
            }
        }
    }

    /// Reads `from` or `to`.
    fn addresses(
        &mut self,
        key: &'static str,
        written: &Texts,
        problems: &mut Diagnostics<'_>,
    ) -> Option<Vec<RuleAddresses>> {
        let written = written.as_ref()?;
        if written.get_ref().is_empty() {
            problems.error(&written.span(), DiagnosticKind::EmptyList { key });
            return None;
        }
        let mut sound = bounded_list(problems, key, written);
        let (mut entries, mut spans) = (Vec::new(), Vec::new());
        for entry in written.get_ref().iter().take(MAX_ENTRIES) {
            match self.entry(entry, problems) {
                Some(meant) => {
                    if let [RuleAddresses::Set(_)] = meant[..]
                        && entries.contains(&meant[0])
                    {
                        let text = entry.get_ref().clone();
                        problems.warning(&entry.span(), DiagnosticKind::Repeated { text });
                        continue;
                    }
                    spans.extend(meant.iter().map(|_| entry.span()));
                    entries.extend(meant);
                }
                None => sound = false,
            }
        }
        let written_ranges = entries.iter().zip(spans).filter_map(|(entry, span)| {
            let RuleAddresses::Range(AddressRange { family, lo, hi }) = *entry else { return None };
            Some(((Address { family, value: lo }, Address { family, value: hi }), span))
        });
        warn_of_overlaps(problems, key, written_ranges);
        self.count_addresses(&entries, &written.span(), problems);
        entries.shrink_to_fit();
        sound.then_some(entries)
    }

    /// The meaning of one entry of `from` or `to`.
    fn entry(
        &self,
        written: &Spanned<String>,
        problems: &mut Diagnostics<'_>,
    ) -> Option<Vec<RuleAddresses>> {
        let text = written.get_ref();
        if let Some(name) = text.strip_prefix('@') {
            let id = self.sets.id(name);
            if id.is_none() {
                let (name, nearest) = (name.to_owned(), nearest(name, self.sets.names()));
                problems.error(&written.span(), DiagnosticKind::UnknownSet { name, nearest });
            }
            return Some(vec![RuleAddresses::Set(id?)]);
        }
        let mistake = match parse_addresses(text) {
            Ok(ranges) => return Some(ranges.into_iter().map(RuleAddresses::Range).collect()),
            Err(_) if self.sets.id(text).is_some() => {
                DiagnosticKind::SetWithoutAt { name: text.clone() }
            }
            Err(error) => DiagnosticKind::Selector(error.into()),
        };
        problems.error(&written.span(), mistake);
        None
    }

    /// Refuses rules that together name so many addresses that judging them would take too long.
    fn count_addresses(
        &mut self,
        entries: &[RuleAddresses],
        span: &Span,
        problems: &mut Diagnostics<'_>,
    ) {
        let count = |entry: &RuleAddresses| match entry {
            RuleAddresses::Range(_) => 1,
            RuleAddresses::Set(id) => {
                self.sets.list.get(id.0 as usize).map_or(0, |set| set.addresses.len())
            }
        };
        let before = self.addresses;
        self.addresses += entries.iter().map(count).sum::<usize>();
        if before <= MAX_ADDRESSES && self.addresses > MAX_ADDRESSES {
            let what = "addresses in `from` and `to` of all rules, those of sets among them";
            problems.error(span, DiagnosticKind::TooMany { what, limit: MAX_ADDRESSES });
        }
    }

    /// The ranges of entries; `None` while any entry or set is wrong.
    fn resolved(&self, entries: Option<&[RuleAddresses]>) -> Option<Vec<AddressRange>> {
        let is_judged = self.sets.is_complete() && self.addresses <= MAX_ADDRESSES;
        entries.filter(|_| is_judged).map(|entries| ranges(entries, &self.sets.list))
    }

    /// The right ones, in the order of the file, once all were judged. `compiled` rules come of
    /// policies.
    pub(super) fn finish(
        mut self,
        attached: (&Ports, &[NetworkSettings]),
        compiled: usize,
        problems: &mut Diagnostics<'_>,
    ) -> Vec<Rule> {
        if problems.has_errors() {
            return self.list;
        }
        self.list.shrink_to_fit();
        self.names = HashMap::new();
        self.count_rules(attached, compiled, problems);
        if !problems.has_errors() {
            let (rules, places) = (&self.list[..], &self.places[..]);
            let (groups, sets) = (&self.groups.list[..], &self.sets.list[..]);
            RuleReview { rules, places, groups, sets }.warn(problems);
        }
        self.list
    }

    /// Refuses rules whose lists multiply to more than the database holds, at the first that is too
    /// much. A rule stands once in the list of each side of a port or virtual network that lists
    /// its group.
    fn count_rules(
        &self,
        (ports, networks): (&Ports, &[NetworkSettings]),
        compiled: usize,
        problems: &mut Diagnostics<'_>,
    ) {
        let limit = Spd::MAX_RULES;
        let mut sides = vec![0usize; self.groups.list.len()];
        for ((_, group, _), places) in attachments(&ports.list, networks) {
            sides[group.0 as usize] += places.len();
        }
        // The last rule of each side with groups, in both families.
        let listed =
            ports.list.iter().flat_map(|port| GroupSide::ALL.map(|side| port.groups(side)));
        let of_networks = networks.iter();
        let of_networks =
            of_networks.flat_map(|network| GroupSide::ALL.map(|side| network.groups(side)));
        let last_rules = 2 * listed.chain(of_networks).filter(|groups| !groups.is_empty()).count();
        let mut rules = compiled.saturating_add(last_rules);
        for (rule, place) in self.list.iter().zip(&self.places) {
            let sides = sides[rule.group.0 as usize];
            if sides == 0 {
                continue;
            }
            let selector = rule.selector(&self.sets.list);
            for family in [Family::V4, Family::V6] {
                rules = rules.saturating_add(selector.rules_of_group(family).saturating_mul(sides));
            }
            if rules > limit {
                return problems
                    .error(&place.span(), DiagnosticKind::TooManyGroupRules { rules, limit });
            }
        }
    }
}

fn action(written: &Text, problems: &mut Diagnostics<'_>) -> Option<RuleAction> {
    written.as_ref()?;
    let actions = RuleAction::ALL.map(|action| (action.name(), action));
    word(problems, "action", written, RuleAction::Deny, &actions)
}

impl RawRule {
    /// Its keys that say which packets it matches.
    fn matched(&self) -> Matched<'_> {
        Matched {
            what: "rule",
            at: &self.at,
            ends: [("from", &self.from), ("to", &self.to)],
            protocol: &self.protocol,
            ports: [("from_ports", &self.from_ports), ("to_ports", &self.to_ports)],
            tcp: &self.tcp,
            icmp: &self.icmp,
        }
    }
}
