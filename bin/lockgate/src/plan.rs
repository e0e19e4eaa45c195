//! `lockgate plan`: which rules of a configuration a card would have, and why not the others.

mod counters;
mod own;
mod sas;
mod text;

use std::path::PathBuf;

use config::{FIRST_NETWORK, GroupOffload, Validated};
use console::output::{print, print_json};
use offload::{
    Capabilities, Decision, Effect, Placing, Plan, Problem, Reason, RuleKey, Source, Standing,
};
use policy::{Policy, PolicyId, PolicyIndex};
use serde_json::{Value, json};
use wire::Family;

use crate::failure::{Failure, Usage};
use crate::input::Input;

use counters::Counters;
use sas::PlannedSas;

/// Show which rules a network card would decide, and why not the others
///
/// Reads a configuration and shows which rules of its security groups a network card could decide
/// without ever deciding otherwise than the rules say, and for each other rule the reason. Asks no
/// daemon and no card, and changes nothing. Without counters every rule counts as much as any
/// other. Where the configuration has cards, it also shows for each peer whether its SAs would be
/// in a card, or in Linux for the card, and why not.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration; `-` reads standard input
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE")]
    #[arg(default_value = "/etc/lockgate/lockgate.toml")]
    config: PathBuf,
    /// The card: emulated, emulated:rules=2000,ms=5,order=none|priority,sas=N, acl-2000, v9, 6.4+
    /// or mlx5-as-read. SAs are no rules: sas=N changes no plan
    #[arg(long, value_name = "CARD", default_value = "emulated")]
    card: Capabilities,
    /// Ports of the card, by name [default: all of the configuration]
    #[arg(long = "port", value_name = "PORT", value_delimiter = ',')]
    ports: Vec<String>,
    /// Packets by rule: a file with the answer of `lockgate show group --json`
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
    /// Print every rule
    #[arg(long)]
    all: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockgate plan --config gw-a.toml
  lockgate plan --config gw-a.toml --card emulated:rules=100,order=none --all
  lockgate plan --config gw-a.toml --card acl-2000 --counters groups.json

Only the emulated card can be tried. The others are described as their documents
or drivers read; `lockgate help offload` lists what each can do.";

/// A plan with all that its answer names.
struct Planned<'a> {
    card: &'a Capabilities,
    /// Names of the card's ports.
    ports: Vec<&'a str>,
    /// Names of all ports, by their numbers.
    names: Vec<&'a str>,
    rules: &'a [(PolicyIndex, &'a Policy)],
    counters: Option<&'a Counters>,
    plan: Plan,
    notes: Vec<&'static str>,
    sas: Vec<PlannedSas<'a>>,
}

/// The card's action on what rules deny: it marks, unless ports say that it drops.
fn effect(validated: &Validated, ports: &[u16]) -> Effect {
    let drops = |port: &u16| {
        let port = validated.ports.get(usize::from(*port));
        port.is_some_and(|port| port.offload_groups == GroupOffload::Drop)
    };
    if ports.iter().any(drops) { Effect::Drop } else { Effect::Mark }
}

/// The part of the card's ports whose rules it may decide, and the rest.
fn used(validated: &Validated, ports: &[u16]) -> (Vec<u16>, Vec<u16>) {
    let is_used = |port: &u16| {
        let port = validated.ports.get(usize::from(*port));
        port.is_none_or(|port| port.offload_groups != GroupOffload::None)
    };
    ports.iter().partition(|port| is_used(port))
}

/// Limits of the knowledge of a plan, as sentences.
fn notes(validated: &Validated, effect: Effect) -> Vec<&'static str> {
    let asks_linux = validated.ports.iter().any(|port| port.addresses.is_empty());
    let notes = (effect == Effect::Drop && asks_linux).then_some(UNKNOWN_ADDRESSES);
    notes.into_iter().collect()
}

const UNKNOWN_ADDRESSES: &str = "\
The plan knows the gateway's own addresses from the file alone. The daemon knows those of Linux
too, and leaves a rule to the gateway that would drop packets to one of them (own_traffic).";

/// Plans, and prints the plan.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let input = Input::of(&args.config);
    let validated = input.parsed().map_err(Failure::Unusable)?.validated;
    let counters = args.counters.as_deref().map(Counters::read).transpose()?;
    let policies = policies(&validated);
    if let Some(counters) = &counters {
        counters.judge(&policies)?;
    }
    let rules: Vec<(PolicyIndex, &Policy)> = (0..).map(PolicyIndex).zip(&policies).collect();
    let ports = ports(&validated, &args.ports)?;
    let own = own::own(&validated);
    let (used, unused) = used(&validated, &ports);
    let effect = effect(&validated, &used);
    let packets = counters::by_slot(counters.as_ref(), &policies);
    let plan = offload::plan(&Problem {
        rules: &rules,
        ports: &used,
        unused: &unused,
        card: &args.card,
        effect,
        own: &own,
        packets: &|slot: PolicyIndex| packets[slot.0 as usize],
        standing: &Standing::default(),
        most_moves: usize::MAX,
    });
    let names: Vec<&str> = validated.ports.iter().map(|port| port.name.as_str()).collect();
    let planned = Planned {
        card: &args.card,
        ports: ports.iter().map(|port| names[usize::from(*port)]).collect(),
        names,
        rules: &rules,
        counters: counters.as_ref(),
        plan,
        notes: notes(&validated, effect),
        sas: sas::sas(&validated, &policies),
    };
    match args.json {
        true => print_json(&planned.json())?,
        false => {
            let most = if args.all { usize::MAX } else { text::MOST_LINES };
            print(&planned.text(most))?;
        }
    }
    Ok(())
}

/// Policies and rules of groups, numbered as a configuration by itself is.
fn policies(validated: &Validated) -> Vec<Policy> {
    let policies = (0..).map(PolicyId).zip(&validated.policies);
    let policies = policies.map(|(id, policy)| policy.by_itself(id));
    let rules = (validated.policies.len() as u32..).map(PolicyId).zip(validated.group_policies());
    policies.chain(rules.map(|(id, rule)| Policy { id, ..rule })).collect()
}

/// Numbers of the ports of a card, ascending.
fn ports(validated: &Validated, named: &[String]) -> Result<Vec<u16>, Failure> {
    let count = validated.ports.len().min(usize::from(FIRST_NETWORK)) as u16;
    if named.is_empty() {
        return Ok((0..count).collect());
    }
    let place = |name: &String| {
        let place = validated.ports.iter().position(|port| port.name == *name);
        place.map(|place| place as u16).ok_or_else(|| {
            let known = validated.ports.iter().map(|port| port.name.clone()).collect();
            Failure::from(Usage::UnknownPort { name: name.clone(), known })
        })
    };
    let mut ports = named.iter().map(place).collect::<Result<Vec<u16>, Failure>>()?;
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

impl Planned<'_> {
    fn policy(&self, key: RuleKey) -> &Policy {
        self.rules[key.slot.0 as usize].1
    }

    fn name(&self, key: RuleKey) -> &str {
        &self.policy(key).name
    }

    /// Packets of a rule, if they were counted.
    fn packets(&self, key: RuleKey) -> Option<u64> {
        self.counters.map(|counters| counters.of(&self.policy(key).name))
    }

    /// Names of ports and virtual networks.
    fn port_names(&self, ports: &[u16]) -> Vec<&str> {
        let name = |port: &u16| self.names.get(usize::from(*port)).copied();
        ports.iter().map(|port| name(port).unwrap_or("a virtual network")).collect()
    }

    /// Names of the ports that a rule judges.
    fn ports_of(&self, key: RuleKey) -> Vec<&str> {
        self.policy(key).ingress.as_deref().map_or(Vec::new(), |ports| self.port_names(ports))
    }

    fn json(&self) -> Value {
        let placed = |placing: &Placing| {
            json!({
                "rule": self.name(placing.key),
                "family": version(placing.key.family),
                "action": action(&placing.policy),
                "ports": self.port_names(&placing.rule.ports),
                "entries": placing.rule.entries(),
                "packets": self.packets(placing.key),
                "behind": placing.guards.iter().map(|key| self.name(*key)).collect::<Vec<_>>(),
            })
        };
        let left = |(key, reason): &(RuleKey, Reason)| {
            json!({
                "rule": self.name(*key),
                "family": version(key.family),
                "action": action(self.policy(*key)),
                "ports": self.ports_of(*key),
                "packets": self.packets(*key),
                "reason": reason.name(),
                "why": reason.help(),
                "because_of": reason.cause().map(|key| self.name(key)),
            })
        };
        let reasons = text::by_reason(&self.plan);
        let reasons = reasons.iter().map(|(reason, rules)| {
            json!({ "reason": reason.name(), "rules": rules, "why": reason.help() })
        });
        json!({
            "card": self.card_json(),
            "ports": self.ports,
            "counted": self.counters.is_some(),
            "placed": self.plan.place.iter().map(placed).collect::<Vec<_>>(),
            "left": self.plan.left.iter().map(left).collect::<Vec<_>>(),
            "reasons": reasons.collect::<Vec<_>>(),
            "entries": self.plan.entries,
            "share": {
                "tagged": self.plan.share.tagged,
                "of": self.plan.share.of,
                "fraction": self.plan.share.fraction(),
            },
            "notes": self.notes.iter().map(|note| note.replace('\n', " ")).collect::<Vec<_>>(),
            "sas": self.sas.iter().map(PlannedSas::json).collect::<Vec<_>>(),
        })
    }

    fn card_json(&self) -> Value {
        let Capabilities { name, source, rules, .. } = self.card;
        json!({
            "name": name,
            "emulated": *source == Source::Emulated,
            "source": source.name(),
            "entries": rules.get().map(|rules| rules.entries),
            "programming_ms": rules.get().map(|rules| rules.programming_ms),
            "order": rules.get().map(|rules| rules.order.name()),
            "no_rules": rules.lack(),
        })
    }
}

/// The version of IP.
const fn version(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

/// The word for what a rule does.
fn action(policy: &Policy) -> &'static str {
    Decision::of(policy.action).name()
}
