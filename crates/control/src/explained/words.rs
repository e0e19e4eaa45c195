//! Books, policies and rules in words.

use dataplane::{HostService, Side, Snapshot};
use policy::selector::protocol_text;
use policy::{Action, AddressRange, Book, GroupMode, Policy, TcpSegments, UpperSelector};
use wire::{Address, Family, Flow, Upper};

use super::set_of;

/// The name of a book in an explanation.
pub(super) fn book_name(book: Book) -> &'static str {
    match book {
        Book::SpdIn => "inbound",
        Book::SpdOut => "outbound",
        Book::GroupIn => "groups in",
        Book::GroupOut => "groups out",
    }
}

/// A policy or a rule of a group in one line.
pub(super) fn policy_text(snapshot: &Snapshot, policy: &Policy) -> String {
    let action = match policy.action {
        Action::Bypass => "bypass".into(),
        Action::Discard => "discard".into(),
        Action::Permit(_) => "permit".into(),
        Action::Reflect(_) => "reflect".into(),
        Action::Deny(GroupMode::Enforce) | Action::NoRule(GroupMode::Enforce) => "deny".into(),
        Action::Deny(GroupMode::Audit) | Action::NoRule(GroupMode::Audit) => {
            "deny, in audit mode: it passes".into()
        }
        Action::Protect(id) => match set_of(snapshot, id) {
            Some(set) => format!("protect with peer {}", set.peer),
            None => "protect".into(),
        },
    };
    let any = [AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    let ranges = |ranges: &[AddressRange]| match ranges {
        both if both == any => "any".into(),
        [first] => first.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => "nothing".into(),
    };
    let selector = &policy.selector;
    let upper = match &selector.upper {
        UpperSelector::Any => "",
        UpperSelector::Ports { .. } => " with ports",
        UpperSelector::Icmp(_) => " with types",
        UpperSelector::Tcp { segments: TcpSegments::New, .. } => " new",
        UpperSelector::Tcp { segments: TcpSegments::Established, .. } => " established",
    };
    if matches!(policy.action, Action::NoRule(_)) {
        // A port's name has no blank.
        let of = if policy.name.starts_with("vni ") { "" } else { "port " };
        return format!("no rule of the groups of {of}{} ({action})", policy.name);
    }
    if policy.group.is_some() {
        return format!(
            "rule \"{}\" ({action}, from {}, to {}, {}{upper})",
            policy.name,
            ranges(&selector.local),
            ranges(&selector.remote),
            protocol_text(selector.protocol),
        );
    }
    format!(
        "policy \"{}\" (priority {}: {action}, local {}, remote {}, {}{upper})",
        policy.name,
        policy.priority,
        ranges(&selector.local),
        ranges(&selector.remote),
        protocol_text(selector.protocol),
    )
}

/// A flow in the words of the command line: `tcp 10.1.0.5:1000 -> 10.2.0.9:443`.
pub fn flow_text(flow: &Flow) -> String {
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let name = protocol_text(Some(flow.protocol));
    let with = |ip: Address, port: u16| std::net::SocketAddr::new(ip.into(), port).to_string();
    match flow.upper {
        Upper::Ports { source: s, destination: d } => {
            format!("{name} {} -> {}", with(source, s), with(destination, d))
        }
        Upper::Icmp { kind, code } => format!("{name}/{kind}/{code} {source} -> {destination}"),
        Upper::None => format!("{name} {source} -> {destination}"),
        Upper::Fragment => format!("{name} {source} -> {destination}, later fragments"),
    }
}

/// Names a side.
pub(super) fn side_text(side: Side) -> &'static str {
    match side {
        Side::Protected => "protected",
        Side::Unprotected => "unprotected",
    }
}

/// Returns whether an entry of `allow_host` covers this flow.
pub(super) fn covers(service: &HostService, flow: &Flow) -> bool {
    let port_fits = match (service.ports, flow.upper) {
        (Some(range), Upper::Ports { destination, .. }) => {
            (range.lo..=range.hi).contains(&destination)
        }
        (Some(_), upper) => upper == Upper::Fragment,
        (None, _) => true,
    };
    service.protocol == flow.protocol && port_fits
}
