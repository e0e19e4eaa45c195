//! Packets by rule, as `lockgate show group --json` answers them.

use std::collections::HashMap;
use std::path::Path;

use config::{last_rule_name, rule_name};
use policy::{GroupSide, Policy};
use serde::Deserialize;
use wire::Family;

use crate::failure::{Failure, Usage};

/// Packets that rules decided, by their names.
pub(super) struct Counters {
    /// The file's name.
    file: String,
    packets: HashMap<String, u64>,
    /// A rule has a number of packets.
    has_numbers: bool,
}

/// The part of the answer of `lockgate show group --json` that counts.
#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    name: String,
    #[serde(default)]
    decided: Option<Volume>,
}

#[derive(Deserialize)]
struct Port {
    port: String,
    side: String,
    #[serde(default)]
    decided: Option<Volume>,
}

#[derive(Deserialize)]
struct Volume {
    packets: u64,
}

impl Counters {
    /// Reads an answer of `lockgate show group --json`.
    pub(super) fn read(file: &Path) -> Result<Counters, Failure> {
        let text = std::fs::read_to_string(file).map_err(Failure::file(file))?;
        let groups: Groups = serde_json::from_str(&text).map_err(|error| {
            let (file, problem) = (file.display().to_string(), error.to_string());
            Failure::from(Usage::BadCounters { file, problem })
        })?;
        let mut packets: HashMap<String, u64> = HashMap::new();
        let mut has_numbers = false;
        let mut add = |name: String, decided: Option<Volume>| {
            has_numbers |= decided.is_some();
            let sum = packets.entry(name).or_default();
            *sum = sum.saturating_add(decided.map_or(0, |decided| decided.packets));
        };
        for Group { name: group, rules } in groups.groups {
            for Rule { name, decided } in rules {
                add(rule_name(&group, &name), decided);
            }
        }
        for Port { port, side, decided } in groups.ports {
            if let Some(side) = GroupSide::ALL.into_iter().find(|known| known.name() == side) {
                add(last_rule_name(&port, side), decided);
            }
        }
        Ok(Counters { file: file.display().to_string(), packets, has_numbers })
    }

    /// Refuses counters of which no rule is one of these policies.
    pub(super) fn judge(&self, policies: &[Policy]) -> Result<(), Usage> {
        let fits = policies.iter().any(|policy| self.packets.contains_key(&policy.name));
        if fits && !self.has_numbers {
            let problem = "none of its rules has `\"decided\": {\"packets\": N}`".to_owned();
            return Err(Usage::BadCounters { file: self.file.clone(), problem });
        }
        if fits || policies.is_empty() {
            return Ok(());
        }
        let mut names: Vec<&str> = self.packets.keys().map(String::as_str).collect();
        names.sort_unstable();
        let problem = match names.first() {
            Some(first) => format!(
                "no rule of it is in the configuration: {first} is not, nor are the {} others",
                names.len() - 1
            ),
            None => "it has no rules".to_owned(),
        };
        Err(Usage::BadCounters { file: self.file.clone(), problem })
    }

    /// Packets of the rule of a name.
    pub(super) fn of(&self, name: &str) -> u64 {
        self.packets.get(name).copied().unwrap_or(0)
    }
}

/// Packets of each policy, by its slot. A rule that ports list at several places is several
/// policies, which share its packets. Without counters each has one of each family.
pub(super) fn by_slot(counters: Option<&Counters>, policies: &[Policy]) -> Vec<u64> {
    let Some(counters) = counters else {
        let has = |policy: &Policy, family| u64::from(policy.selector.rules_of_group(family) > 0);
        let one = |policy| has(policy, Family::V4) + has(policy, Family::V6);
        return policies.iter().map(one).collect();
    };
    let mut sharing: HashMap<&str, u64> = HashMap::new();
    for policy in policies {
        *sharing.entry(&policy.name).or_default() += 1;
    }
    let packets = |policy: &Policy| counters.of(&policy.name) / sharing[policy.name.as_str()];
    policies.iter().map(packets).collect()
}
