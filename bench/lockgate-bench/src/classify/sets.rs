//! Sets of rules: read from files of ClassBench's form, or generated. Each rule is a policy that
//! holds outbound, the first with the highest precedence.

use std::path::{Path, PathBuf};

use policy::{
    Action, AddressRange, Direction, Policy, PolicyId, PortRange, Selector, UpperSelector,
};
use wire::flow::protocol;
use wire::{Address, Family};

use scene::Random;

/// A set of rules.
pub(in super::super) struct Set {
    pub(in super::super) name: String,
    pub(in super::super) family: Family,
    pub(in super::super) policies: Vec<Policy>,
}

/// A file of rules that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum SetError {
    #[error("{}: {error}", file.display())]
    Read { file: PathBuf, error: std::io::Error },
    #[error(
        "{}:{line}: not a rule: \"@source/length destination/length low : high low : high \
         protocol/mask\" is one", file.display()
    )]
    Rule { file: PathBuf, line: usize },
    #[error("{}: no rules", .0.display())]
    Empty(PathBuf),
    #[error("{0}: no rule of it matches a packet between hosts")]
    NoFlows(String),
}

/// Sets that are generated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(in super::super) enum Generated {
    /// Ranges of addresses and ports, aligned to nothing, that overlap a little.
    Spd,
    /// Nested rules: each contains all before it.
    Nested,
    /// IPv6 prefixes of /32 to /128, with ports.
    Ipv6,
}

/// Reads a file of ClassBench's rules. What it says of TCP flags is left out: no selector has it.
///
/// # Errors
/// [`SetError`].
pub(in super::super) fn read(file: &Path) -> Result<Set, SetError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| SetError::Read { file: file.to_owned(), error })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let selectors = lines.map(|(number, line)| {
        rule(line).ok_or_else(|| SetError::Rule { file: file.to_owned(), line: number + 1 })
    });
    let selectors = selectors.collect::<Result<Vec<_>, _>>()?;
    if selectors.is_empty() {
        return Err(SetError::Empty(file.to_owned()));
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.split('_').next().unwrap_or_default().to_owned();
    Ok(Set { name, family: Family::V4, policies: policies(selectors) })
}

/// One line: "@1.2.3.4/32 5.6.7.0/24 0 : 65535 80 : 80 0x06/0xFF 0x0000/0x0200".
fn rule(line: &str) -> Option<Selector> {
    let words: Vec<&str> = line.strip_prefix('@')?.split_whitespace().collect();
    let [source, destination, s_lo, ":", s_hi, d_lo, ":", d_hi, upper, ..] = words[..] else {
        return None;
    };
    let prefix = |word: &str| {
        let (address, length) = word.split_once('/')?;
        let address: std::net::Ipv4Addr = address.parse().ok()?;
        let length: u8 = length.parse().ok().filter(|length| *length <= 32)?;
        Some(AddressRange::network(Address::v4(address.to_bits()), length))
    };
    let ports = |lo: &str, hi: &str| {
        let (lo, hi) = (lo.parse().ok()?, hi.parse().ok()?);
        (lo <= hi).then_some(PortRange { lo, hi })
    };
    let hex = |word: &str| u8::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let (number, mask) = upper.split_once('/')?;
    let protocol = match (hex(number)?, hex(mask)?) {
        (_, 0) => None,
        (number, 0xff) => Some(number),
        _ => return None,
    };
    let (near, far) = (ports(s_lo, s_hi)?, ports(d_lo, d_hi)?);
    let listed = |range| if range == PortRange::ANY { vec![] } else { vec![range] };
    let upper = match (listed(near), listed(far)) {
        (near, far) if near.is_empty() && far.is_empty() => UpperSelector::Any,
        (local, remote) => UpperSelector::Ports { local, remote },
    };
    let (local, remote) = (vec![prefix(source)?], vec![prefix(destination)?]);
    Some(Selector { local, remote, protocol, upper })
}

/// Policies with these selectors, the first with the highest precedence.
fn policies(selectors: Vec<Selector>) -> Vec<Policy> {
    let count = selectors.len() as u32;
    let policy = |(number, selector): (u32, Selector)| Policy {
        id: PolicyId(number),
        name: format!("rule-{number}"),
        action: Action::Bypass,
        priority: count - number,
        only: Some(Direction::Outbound),
        group: None,
        ingress: None,
        selector,
    };
    (0..).zip(selectors).map(policy).collect()
}

/// Returns a set with this number of rules: the first of them, or copies of all of them with other
/// network parts.
pub(in super::super) fn sized(set: &Set, rules: usize) -> Set {
    let mut random = Random::new(11);
    let mut selectors = Vec::with_capacity(rules);
    while selectors.len() < rules {
        let copy = if selectors.is_empty() { [0; 2] } else { [random.seed(), random.seed()] };
        let moved = set.policies.iter().map(|policy| {
            let Selector { local, remote, protocol, upper } = policy.selector.clone();
            let local = vec![moved(local[0], copy[0])];
            Selector { local, remote: vec![moved(remote[0], copy[1])], protocol, upper }
        });
        let left = rules - selectors.len();
        selectors.extend(moved.take(left));
    }
    Set { name: set.name.clone(), family: set.family, policies: policies(selectors) }
}

/// The network with other bits in its prefix.
fn moved(range: AddressRange, by: u64) -> AddressRange {
    let host = range.hi - range.lo;
    let change = u128::from(by) & range.family.highest_address() & !host;
    AddressRange { lo: range.lo ^ change, hi: range.hi ^ change, ..range }
}

/// Generates a set with this number of rules.
pub(super) fn generated(kind: Generated, rules: usize) -> Set {
    let mut random = Random::new(13);
    let (name, family) = match kind {
        Generated::Spd => ("spd", Family::V4),
        Generated::Nested => ("nested", Family::V4),
        Generated::Ipv6 => ("ipv6", Family::V6),
    };
    let selector = |place: usize| match kind {
        Generated::Spd => ranges(&mut random),
        Generated::Nested => nested(place),
        Generated::Ipv6 => prefixes(&mut random),
    };
    let selectors = (0..rules).map(selector).collect();
    Set { name: name.into(), family, policies: policies(selectors) }
}

fn ranges(random: &mut Random) -> Selector {
    let mut range = |longest: usize| {
        let length = 1 + random.below(longest);
        let lo = random.below((1 << 32) - length) as u128;
        AddressRange { family: Family::V4, lo, hi: lo + length as u128 - 1 }
    };
    let (local, remote) = (range(1 << 16), range(1 << 20));
    let lo = random.below(60_000) as u16;
    let hi = lo + random.below(2000) as u16;
    let udp = random.below(2) == 0;
    Selector {
        local: vec![local],
        remote: vec![remote],
        protocol: Some(if udp { protocol::UDP } else { protocol::TCP }),
        upper: UpperSelector::Ports { local: vec![], remote: vec![PortRange { lo, hi }] },
    }
}

fn nested(place: usize) -> Selector {
    let (middle, reach) = (1u128 << 31, place as u128);
    let range = AddressRange { family: Family::V4, lo: middle - reach, hi: middle + reach };
    Selector { local: vec![range], remote: vec![range], protocol: None, upper: UpperSelector::Any }
}

fn prefixes(random: &mut Random) -> Selector {
    let mut prefix = || {
        let length = [32, 40, 48, 48, 56, 64, 64, 64, 128][random.below(9)];
        let half = |random: &mut Random| u128::from(random.seed());
        // Some hundred sites, each with networks of its own.
        let site = 0x2001 << 112 | (random.below(300) as u128) << 80;
        let rest = half(random) << 16 | half(random) & 0xffff;
        AddressRange::network(Address::v6(site | rest), length)
    };
    let (local, remote) = (prefix(), prefix());
    let port = random.below(1 << 16) as u16;
    let remote_ports = vec![PortRange { lo: port, hi: port }];
    let upper = match random.below(4) {
        0 => UpperSelector::Any,
        _ => UpperSelector::Ports { local: vec![], remote: remote_ports },
    };
    let protocol = Some(if random.below(2) == 0 { protocol::UDP } else { protocol::TCP });
    Selector { local: vec![local], remote: vec![remote], protocol, upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "@202.110.67.0/24\t40.64.94.3/32\t0 : 65535\t1521 : 1522\t0x06/0xFF\t0x1000/0x1000\t";

    #[test]
    fn a_line_of_classbench_is_a_selector() {
        let found = rule(LINE).unwrap();
        let text = |range: AddressRange| {
            let end = |value| Address { family: Family::V4, value }.to_string();
            format!("{}-{}", end(range.lo), end(range.hi))
        };
        assert_eq!(text(found.local[0]), "202.110.67.0-202.110.67.255");
        assert_eq!(text(found.remote[0]), "40.64.94.3-40.64.94.3");
        assert_eq!(found.protocol, Some(6));
        let remote = vec![PortRange { lo: 1521, hi: 1522 }];
        assert_eq!(found.upper, UpperSelector::Ports { local: vec![], remote });
        let any = "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000";
        let found = rule(any).unwrap();
        assert_eq!((found.protocol, found.upper), (None, UpperSelector::Any));
    }

    #[test]
    fn what_is_no_rule_is_refused_by_its_line() {
        for wrong in [
            LINE.replace('@', ""),
            LINE.replace("/24", "/33"),
            LINE.replace("1521 :", "1523 :"),
            LINE.replace("0xFF", "0x0F"),
            LINE.replace("65535", "65536"),
            "@".into(),
        ] {
            assert!(rule(&wrong).is_none(), "{wrong}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("acl9_2.rules");
        std::fs::write(&file, format!("{LINE}\n\n@nonsense\n")).unwrap();
        let Err(error) = read(&file) else { panic!("nonsense was read") };
        assert!(error.to_string().contains("acl9_2.rules:3: not a rule"), "{error}");
        std::fs::write(&file, format!("{LINE}\n{LINE}\n")).unwrap();
        let set = read(&file).unwrap();
        assert_eq!((set.name.as_str(), set.policies.len()), ("acl9", 2));
        assert!(set.policies[0].priority > set.policies[1].priority, "the first wins");
    }

    #[test]
    fn a_larger_set_holds_the_original_and_copies_of_its_structure() {
        let set = Set {
            name: "x".into(),
            family: Family::V4,
            policies: policies(vec![rule(LINE).unwrap(); 3]),
        };
        let larger = sized(&set, 8);
        assert_eq!(larger.policies.len(), 8);
        let local = |place: usize| larger.policies[place].selector.local[0];
        assert_eq!(local(0), set.policies[0].selector.local[0]);
        assert_ne!(local(3), local(0));
        assert_eq!(local(3), local(5), "one copy moves as a whole");
        assert!((0..8).all(|place| local(place).hi - local(place).lo == 255));
        assert_eq!(sized(&set, 2).policies.len(), 2);
    }
}
