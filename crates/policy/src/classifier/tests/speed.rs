//! Measures the time of a lookup, by hand:
//!
//! `CLASSBENCH=DIR cargo test --release -p policy speed -- --ignored --nocapture`
//!
//! Every lookup is a miss: flows lie anywhere within rules drawn at random. Sets of 100,000 are
//! ten of the files' 10,000, each moved elsewhere in the address space. Thread CPU time.

use std::time::Duration;

use cpu::lanes::Form;
use rustix::time::{ClockId, clock_gettime};
use wire::flow::protocol::TCP;
use wire::{Family, Flow, Upper};

use super::super::*;
use super::sets::{Random, rule};
use crate::PortRange;
use crate::rule::{Rule, UpperRule};

/// A set of rules with a name.
struct Set {
    name: String,
    rules: Vec<Rule>,
}

/// The rules of a ClassBench file: `@source/length destination/length lo : hi lo : hi
/// protocol/mask flags/mask`; the flags are not looked at.
fn classbench(text: &str) -> Option<Vec<Rule>> {
    text.lines().map(|line| classbench_rule(line.strip_prefix('@')?)).collect()
}

fn classbench_rule(line: &str) -> Option<Rule> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let &[source, destination, from, ":", to, other_from, ":", other_to, protocol, ..] = &*fields
    else {
        return None;
    };
    let ports = |lo: &str, hi: &str| Some(PortRange { lo: lo.parse().ok()?, hi: hi.parse().ok()? });
    let (number, mask) = protocol.split_once('/')?;
    let number = u8::from_str_radix(number.strip_prefix("0x")?, 16).ok()?;
    let (source_ports, destination_ports) = (ports(from, to)?, ports(other_from, other_to)?);
    let upper = match (source_ports, destination_ports) {
        (PortRange::ANY, PortRange::ANY) => UpperRule::Any,
        (source, destination) => UpperRule::Ports { source, destination },
    };
    let base = rule(prefix(source)?, prefix(destination)?);
    Some(Rule { protocol: (mask != "0x00").then_some(number), upper, ..base })
}

fn prefix(text: &str) -> Option<(u128, u128)> {
    let (address, length) = text.split_once('/')?;
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    let below = u32::MAX.checked_shr(length.parse().ok()?).unwrap_or(0);
    Some(((address.to_bits() & !below).into(), (address.to_bits() | below).into()))
}

/// The rules ten times, each time elsewhere: the bits of a prefix that a random number has are
/// turned over.
fn ten_times(rules: &[Rule]) -> Vec<Rule> {
    let mut random = Random(10);
    let mut all = Vec::new();
    let turns: Vec<(u32, u32)> =
        (0..10).map(|_| (random.next() as u32, random.next() as u32)).collect();
    for rule in rules {
        for &(source, destination) in &turns {
            let moved = |(lo, hi): (u128, u128), turn: u32| {
                let turn = u128::from(turn) & !(hi - lo);
                // The first bit tells halves of everything apart: those stay what they are.
                let turn = if hi - lo >= 0x7fff_ffff { 0 } else { turn };
                (lo ^ turn, hi ^ turn)
            };
            let (source, destination) =
                (moved(rule.source, source), moved(rule.destination, destination));
            all.push(Rule { source, destination, lists: [None, None], ..*rule });
        }
    }
    all
}

/// Rules as an SPD has them: ranges of hosts on both sides, not aligned.
fn spd(count: usize) -> Vec<Rule> {
    let mut random = Random(42);
    let mut range = |widest: u64| {
        let lo = u128::from(random.below(0xffff_0000));
        (lo, lo + u128::from(1 + random.below(widest)))
    };
    (0..count).map(|_| rule(range(4096), range(1024))).collect()
}

/// Moves a set to IPv6: bits 32 to 64 from the top tell addresses apart.
fn in_ipv6(rules: &[Rule]) -> Vec<Rule> {
    let wide = |(lo, hi): (u128, u128)| {
        let at = |value: u128| 0x2001_0db8 << 96 | value << 64;
        (at(lo), at(hi) | u128::from(u64::MAX))
    };
    let wide = |rule: &Rule| Rule {
        source: wide(rule.source),
        destination: wide(rule.destination),
        lists: [None, None],
        ..*rule
    };
    rules.iter().map(wide).collect()
}

/// A flow anywhere within a rule.
fn flow_in(random: &mut Random, family: Family, rule: &Rule) -> Flow {
    let mut port = |range: PortRange| random.within((range.lo.into(), range.hi.into())) as u16;
    let upper = match rule.upper {
        UpperRule::Ports { source, destination } => {
            Upper::Ports { source: port(source), destination: port(destination) }
        }
        _ => Upper::Ports { source: port(PortRange::ANY), destination: port(PortRange::ANY) },
    };
    let (source, destination) = (random.within(rule.source), random.within(rule.destination));
    Flow {
        family,
        source,
        destination,
        protocol: rule.protocol.unwrap_or(TCP),
        upper,
        opens: false,
    }
}

/// Returns the processor time that this thread has used.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds a lookup in the fastest laps; with `dead`, where those rules do not count.
fn measure(classifier: &Classifier, flows: &[Flow], dead: Option<&Dead>) -> f64 {
    let mut out = vec![NONE; flows.len()];
    let mut laps: Vec<f64> = (0..41)
        .map(|_| {
            let from = thread_time();
            for (flows, out) in flows.chunks(64).zip(out.chunks_mut(64)) {
                match dead {
                    None => classifier.classify(flows, out),
                    Some(dead) => classifier.classify_alive(flows, dead, out),
                }
            }
            (thread_time() - from).as_secs_f64() * 1e9 / flows.len() as f64
        })
        .collect();
    laps.sort_by(f64::total_cmp);
    // Others use the machine too: the fastest twentieth is what the code takes.
    laps[laps.len() / 20]
}

fn show(family: Family, set: &Set) {
    let from = thread_time();
    let classifier = match Classifier::new(family, &set.rules, Budget::default()) {
        Ok(classifier) => classifier,
        Err(error) => return println!("{:12} {family:?} {error}", set.name),
    };
    let built = thread_time() - from;
    let mut random = Random(9);
    let flows: Vec<Flow> = (0..16384)
        .map(|_| {
            let rule = &set.rules[random.below(set.rules.len() as u64) as usize];
            flow_in(&mut random, family, rule)
        })
        .collect();
    let (shape, cost, bytes) =
        (classifier.shape(), classifier.worst_case_cost(), classifier.bytes());
    let mut classifier = classifier;
    let mut times = String::new();
    for form in Form::all() {
        classifier = classifier.with_form(form);
        times += &format!(" {:6.1}", measure(&classifier, &flows, None));
    }
    classifier = classifier.with_form(Form::best());
    let mut dead = Dead::default();
    (0..set.rules.len().div_ceil(100)).for_each(|_| {
        dead.insert(random.below(set.rules.len() as u64) as u32);
    });
    times += &format!(" {:6.1}", measure(&classifier, &flows, Some(&dead)));
    println!(
        "{:12} {family:?} {times} ns  built {:6.1} ms  {:5.2} MB  trees {} depth {} copies {:.2} \
         nodes {} blocks {} reserve {}",
        set.name,
        built.as_secs_f64() * 1e3,
        bytes as f64 / 1e6,
        shape.trees,
        shape.depth,
        shape.copies as f64 / shape.rules as f64,
        cost.nodes,
        cost.blocks,
        classifier.plain.reserve_blocks(),
    );
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let mut sets = Vec::new();
    if let Ok(folder) = std::env::var("CLASSBENCH") {
        for kind in ["acl1", "ipc1", "fw1"] {
            for count in ["1000", "10000"] {
                let path = format!("{folder}/{kind}_{count}.rules");
                let text = std::fs::read_to_string(&path).expect("a file of rules");
                let rules = classbench(&text).expect("rules in the form of ClassBench");
                if count == "10000" {
                    let rules = ten_times(&rules);
                    sets.push(Set { name: format!("{kind} 100k"), rules });
                }
                sets.push(Set { name: format!("{kind} {count}"), rules });
            }
        }
    }
    for count in [16, 128, 1000, 10_000, 100_000] {
        sets.push(Set { name: format!("spd {count}"), rules: spd(count) });
    }
    let only = std::env::var("SET").unwrap_or_default();
    sets.retain(|set| set.name.starts_with(&only));
    println!("columns: {:?}", Form::all().map(Form::name).collect::<Vec<_>>());
    for set in &sets {
        show(Family::V4, set);
    }
    let wide = std::env::var_os("V4").is_none();
    for set in sets.iter().filter(|_| wide) {
        let rules = in_ipv6(&set.rules);
        show(Family::V6, &Set { name: set.name.clone(), rules });
    }
}
