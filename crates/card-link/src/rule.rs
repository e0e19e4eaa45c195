//! Checks on rules and policies that came from outside: the types of `offload` can say more than a
//! card takes.

use std::net::IpAddr;

use offload::{CardPolicy, CardRule, MOST_ENTRIES_A_RULE, Pattern, Span, UpperPattern};

/// A rule, or a policy, that no card takes. The host is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// No entries, or too many.
    #[error("a rule of {0} entries: rules have 1 to {most}", most = MOST_ENTRIES_A_RULE)]
    Entries(usize),
    /// Ports in another order, or one twice.
    #[error("the rule's ports are not ascending")]
    Ports,
    /// Addresses of two families in one pattern.
    #[error("pattern {0} has addresses of two families")]
    Families(usize),
    /// A range that ends before it begins.
    #[error("pattern {0} has a range that ends before it begins")]
    Range(usize),
}

/// Checks a rule.
///
/// # Errors
/// [`Malformed`]: the rule is not to be placed.
pub(crate) fn check(rule: &CardRule) -> Result<(), Malformed> {
    check_all(&rule.ports, &rule.patterns)
}

/// Checks a policy.
///
/// # Errors
/// [`Malformed`]: the policy is not to be placed.
pub(crate) fn check_policy(policy: &CardPolicy) -> Result<(), Malformed> {
    check_all(&policy.ports, &policy.patterns)
}

fn check_all(ports: &[u16], patterns: &[Pattern]) -> Result<(), Malformed> {
    let entries = patterns.len().saturating_mul(ports.len());
    if !(1..=MOST_ENTRIES_A_RULE).contains(&entries) {
        return Err(Malformed::Entries(entries));
    }
    if !ports.is_sorted_by(|lower, higher| lower < higher) {
        return Err(Malformed::Ports);
    }
    patterns.iter().enumerate().try_for_each(|(number, pattern)| check_one(number, pattern))
}

fn check_one(number: usize, pattern: &Pattern) -> Result<(), Malformed> {
    let Pattern { source, destination, upper } = pattern;
    let addresses = [source.first, source.last, destination.first, destination.last];
    let is_v4 = addresses.map(|address: IpAddr| address.is_ipv4());
    if is_v4 != [is_v4[0]; 4] {
        return Err(Malformed::Families(number));
    }
    let ascends = |span: &Span| span.first <= span.last;
    let upper_ascends = match upper {
        UpperPattern::Any | UpperPattern::Protocol(_) => true,
        UpperPattern::Ports { source, destination, .. } => {
            source.0 <= source.1 && destination.0 <= destination.1
        }
        UpperPattern::Messages { messages, .. } => messages.0 <= messages.1,
    };
    let all_ascend = ascends(source) && ascends(destination) && upper_ascends;
    all_ascend.then_some(()).ok_or(Malformed::Range(number))
}
