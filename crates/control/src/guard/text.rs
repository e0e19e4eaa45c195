//! The guard's table as text for `nft`.
//!
//! Text and not JSON (crate `nftables`): it is the form in which `nft` lists the table to an
//! operator. Nor are the handles needed that JSON gives back: no rule is changed or removed alone,
//! the table is replaced as a whole, or rules are added behind all others.

use std::collections::BTreeSet;
use std::fmt::Write;

use dataplane::carve_out::{Packets, Reserved};
use dataplane::{HostService, Side};
use policy::Direction;

use super::coarse::by_address;
use super::cover::Cover;
use super::rules::rules;
use super::{CarriedPeer, Detail, GUARD_TABLE};
use config::validated::{Policy, Port};
use config::{HOST_NETDEV, Validated};
use linux::{LinkKind, View};

/// A netdev whose name nftables cannot write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the guard cannot name netdev {name}: only letters, digits and . _ - @ + can be written in \
     nftables; rename it (ip link set {name} name NEW)"
)]
pub struct UnwritableName {
    /// The name.
    pub name: String,
}

/// Rules that outbound policies are written as one by one at most, beyond which they are written
/// by remote address: `nft` and the kernel take 0.1 ms for a rule and 8 µs for a range in a set.
const MAX_RULES: usize = 1000;

/// Part of the table that the netdevs make: chains `forward`, `output`, `input`, or some of them.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Netdevs(String);

/// Part of the table that the policies make; of any size, and unchanged while they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outbound {
    sets: String,
    /// Chain `outbound`, without its end.
    chain: String,
    pub(super) detail: Detail,
    /// Policies that these rules cover.
    pub(super) cover: Cover,
}

impl Netdevs {
    /// Returns the part for all netdevs: the kernel forwards nothing by any.
    pub(super) fn all() -> Netdevs {
        Netdevs(format!("{FORWARD}    counter drop\n  }}\n"))
    }

    /// Returns the part for a configuration's netdevs; `view` names the VLANs and what else is
    /// stacked on them.
    pub(super) fn of(
        config: &Validated,
        view: &View,
        reserved: &Reserved,
        carried: &[CarriedPeer],
    ) -> Result<Netdevs, UnwritableName> {
        let openings = Openings::of(config, view, carried)?;
        let Netdevs(mut text) = Netdevs::opened(config, view, &openings)?;
        input(&mut text, (config, view, reserved), &openings)?;
        Ok(Netdevs(text))
    }

    /// Returns the part of [`Netdevs::of`] without hook `input`: before the daemon starts, an
    /// administrator may need to reach the machine by such a port.
    pub(super) fn early(config: &Validated, view: &View) -> Result<Netdevs, UnwritableName> {
        Netdevs::opened(config, view, &Openings::default())
    }

    fn opened(
        config: &Validated,
        view: &View,
        openings: &Openings,
    ) -> Result<Netdevs, UnwritableName> {
        let mut text = String::from(FORWARD);
        text.push_str(&openings.forward);
        let closed = closed_netdevs(config, view)?;
        for direction in ["iifname", "oifname"] {
            for netdev in &closed {
                let _ = writeln!(text, "    {direction} \"{netdev}\" counter drop");
            }
        }
        text.push_str("  }\n");
        text.push_str("  chain output {\n    type filter hook output priority filter - 10;\n");
        text.push_str("    policy accept;\n");
        text.push_str(&openings.output);
        let mut unprotected = BTreeSet::new();
        for port in config.ports.iter().filter(|port| port.side == Side::Unprotected) {
            unprotected.append(&mut netdevs_of(port, view)?);
        }
        for netdev in unprotected {
            let _ = writeln!(text, "    oifname \"{netdev}\" goto outbound");
        }
        text.push_str("  }\n");
        Ok(Netdevs(text))
    }
}

/// Rules for peers whose packets Linux carries, by hook; each in front of those that close.
#[derive(Default)]
struct Openings {
    forward: String,
    output: String,
    input: String,
}

impl Openings {
    fn of(
        config: &Validated,
        view: &View,
        carried: &[CarriedPeer],
    ) -> Result<Openings, UnwritableName> {
        let mut openings = Openings::default();
        if carried.is_empty() {
            return Ok(openings);
        }
        let mut inside = BTreeSet::new();
        for port in config.ports.iter().filter(|port| port.side == Side::Protected) {
            inside.append(&mut netdevs_of(port, view)?);
        }
        let inside: Vec<String> = inside.iter().map(|netdev| format!("\"{netdev}\"")).collect();
        let inside = inside.join(", ");
        for CarriedPeer { port, reqid, remotes } in carried {
            let Some(port) = config.ports.iter().find(|of| of.name == *port) else { continue };
            for netdev in netdevs_of(port, view)? {
                let by = format!("oifname \"{netdev}\"");
                let from = format!("iifname \"{netdev}\"");
                let Openings { forward, output, input } = &mut openings;
                if !inside.is_empty() {
                    let _ = writeln!(
                        forward,
                        "    {from} oifname {{ {inside} }} ipsec in reqid {reqid} accept\n    \
                         iifname {{ {inside} }} {by} ipsec out reqid {reqid} accept"
                    );
                }
                // Of no SA of its own Linux drops it.
                let _ = writeln!(
                    input,
                    "    {from} meta l4proto esp accept\n    {from} ipsec in reqid {reqid} accept"
                );
                let _ = writeln!(output, "    {by} ipsec out reqid {reqid} accept");
                for (remote, bits) in remotes {
                    let family = if remote.is_ipv4() { "ip" } else { "ip6" };
                    let _ =
                        writeln!(output, "    {by} {family} daddr {remote}/{bits} counter drop");
                }
            }
        }
        Ok(openings)
    }
}

impl Outbound {
    /// Returns the part for no policy: no chain leads there.
    pub(super) fn none() -> Outbound {
        let (sets, chain, cover) = (String::new(), String::new(), Cover::default());
        Outbound { sets, chain, detail: Detail::ByPolicy, cover }
    }

    /// Returns whether both make the same text for `nft`.
    pub(super) fn is_written_as(&self, other: &Outbound) -> bool {
        self.sets == other.sets && self.chain == other.chain
    }

    /// Appends the rules of policies, and returns the `nft` commands that add them to an installed
    /// table.
    pub(super) fn add_behind(&mut self, policies: Vec<Policy>) -> String {
        let mut lines = String::new();
        for policy in &policies {
            rules(&mut lines, policy);
        }
        self.chain.push_str(&lines);
        self.cover.behind.extend(policies);
        let add = |line: &str| format!("add rule inet {GUARD_TABLE} outbound {}\n", line.trim());
        lines.lines().map(add).collect()
    }

    /// Returns the part for a configuration's policies.
    pub(super) fn of(policies: &[Policy]) -> Outbound {
        let policies = in_order(policies);
        let mut chain = String::from("  chain outbound {\n    meta l4proto esp accept\n");
        chain.push_str("    udp sport { 500, 4500 } accept\n    udp dport { 500, 4500 } accept\n");
        // Router and neighbour discovery (RFC 4861).
        chain.push_str("    icmpv6 type 133-137 accept\n");
        let head = chain.len();
        let mut count = 0;
        let fits = policies.iter().all(|policy| {
            count += rules(&mut chain, policy);
            count <= MAX_RULES
        });
        let (mut sets, mut detail) = (String::new(), Detail::ByPolicy);
        let mut cover = Cover::default();
        if fits {
            cover.listed = policies.into_iter().cloned().collect();
        } else {
            let made = by_address(&policies);
            chain.truncate(head);
            chain.push_str(&made.rules);
            (sets, cover) = (made.sets, made.cover);
            let (policies, bypasses_left_out) = (policies.len(), made.bypasses_left_out);
            detail = Detail::ByAddress { policies, bypasses_left_out };
        }
        Outbound { sets, chain, detail, cover }
    }
}

/// Returns the table as one transaction. Sets precede the rules that name them; chains may be
/// anywhere.
pub(super) fn table(netdevs: &Netdevs, outbound: &Outbound) -> String {
    let (head, Netdevs(netdevs)) = (head(), netdevs);
    let Outbound { sets, chain, .. } = outbound;
    let end = if chain.is_empty() { "" } else { "  }\n" };
    format!("{head}{sets}{netdevs}{chain}{end}}}\n")
}

/// Head of a transaction: whatever table was there is replaced.
fn head() -> String {
    format!(
        "table inet {GUARD_TABLE} {{}}\ndelete table inet {GUARD_TABLE}\n\
         table inet {GUARD_TABLE} {{\n"
    )
}

const FORWARD: &str =
    "  chain forward {\n    type filter hook forward priority filter - 10;\n    policy accept;\n";

/// A netdev name, checked.
fn checked(name: &str) -> Result<&str, UnwritableName> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    match name.chars().all(is_plain) && !name.is_empty() {
        true => Ok(name),
        false => Err(UnwritableName { name: name.into() }),
    }
}

/// Netdevs by which nothing is forwarded: our ports', the host port's, and what sends its frames
/// by them as they are, also if its name is only the usual one of a VLAN.
fn closed_netdevs(config: &Validated, view: &View) -> Result<BTreeSet<String>, UnwritableName> {
    let mut names = BTreeSet::from([HOST_NETDEV.to_owned()]);
    for port in &config.ports {
        let netdev = checked(&port.netdev)?;
        names.insert(netdev.into());
        names.insert(format!("{netdev}.*"));
        if let Some(link) = view.link_named(netdev) {
            for name in stacked_on(link.index, view, is_stacked) {
                names.insert(checked(name)?.into());
            }
        }
    }
    Ok(names)
}

/// Names of the netdevs of such kinds on top of one, and on top of those.
fn stacked_on(index: u32, view: &View, is_stacked: fn(&LinkKind) -> bool) -> Vec<&str> {
    let mut names = Vec::new();
    let mut below = BTreeSet::from([index]);
    let mut next = vec![index];
    while let Some(lower) = next.pop() {
        for link in view.links.values().filter(|link| link.lower == Some(lower)) {
            // An index of another namespace may make it look like a ring.
            if is_stacked(&link.kind) && below.insert(link.index) {
                names.push(link.name.as_str());
                next.push(link.index);
            }
        }
    }
    names
}

/// Returns whether frames that leave by such a netdev leave by the one below it, not wrapped in
/// packets that are judged themselves.
fn is_stacked(kind: &LinkKind) -> bool {
    match kind {
        LinkKind::Vlan { .. } => true,
        kind => is_same_link(kind),
    }
}

/// Returns whether frames that leave by such a netdev leave by the one below it with the tag, or
/// the lack of one, that the netdev below gives them.
fn is_same_link(kind: &LinkKind) -> bool {
    match kind {
        LinkKind::Other(kind) => {
            ["macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"].contains(&kind.as_str())
        }
        _ => false,
    }
}

/// Netdevs of a port, with those that send by the same link; for a tagged one without a VLAN
/// netdev, its usual name.
fn netdevs_of(port: &Port, view: &View) -> Result<BTreeSet<String>, UnwritableName> {
    let netdev = checked(&port.netdev)?;
    let device = view.link_named(netdev);
    let link = match port.vlan {
        None => device,
        Some(vlan) => device.and_then(|device| view.vlan_on(device.index, vlan)),
    };
    let Some(link) = link else {
        let name = port.vlan.map_or(netdev.to_owned(), |vlan| format!("{netdev}.{vlan}"));
        return Ok(BTreeSet::from([name]));
    };
    let mut names = BTreeSet::from([checked(&link.name)?.to_owned()]);
    for name in stacked_on(link.index, view, is_same_link) {
        names.insert(checked(name)?.to_owned());
    }
    Ok(names)
}

/// Hook `input`: by unprotected ports comes what the carve-out lists and no policy may want, and
/// discovery. The steering program passes nothing else, so this is for when it is not there, or not
/// yet.
fn input(
    text: &mut String,
    (config, view, reserved): (&Validated, &View, &Reserved),
    openings: &Openings,
) -> Result<(), UnwritableName> {
    text.push_str("  chain input {\n    type filter hook input priority filter - 10;\n");
    text.push_str("    policy accept;\n");
    text.push_str(&openings.input);
    for port in &config.ports {
        if port.side != Side::Unprotected {
            continue;
        }
        let open = reserved.open(&port.name, &port.allow_host);
        for netdev in netdevs_of(port, view)? {
            let from = format!("    iifname \"{netdev}\"");
            // Router and neighbour discovery (RFC 4861).
            let _ = writeln!(text, "{from} icmpv6 type 133-137 accept");
            for service in &open {
                let HostService { protocol, ports } = service.service;
                let ports = ports.map_or(String::new(), |ports| format!(" th dport {ports}"));
                for to in destinations(service.packets) {
                    let _ = writeln!(text, "{from} {to}meta l4proto {protocol}{ports} accept");
                }
            }
            let _ = writeln!(text, "{from} counter drop");
        }
    }
    text.push_str("  }\n");
    Ok(())
}

/// Matches of the destinations of these packets. Linux has put fragments together by then.
fn destinations(packets: Packets) -> &'static [&'static str] {
    const GROUPS: &[&str] = &["ip daddr { 224.0.0.0/4, 255.255.255.255 } ", "ip6 daddr ff00::/8 "];
    const US: &[&str] =
        &["ip daddr != { 224.0.0.0/4, 255.255.255.255 } ", "ip6 daddr != ff00::/8 "];
    match (packets.has(Packets::TO_US), packets.has(Packets::TO_GROUPS)) {
        (true, true) => &[""],
        (true, false) => US,
        (false, true) => GROUPS,
        (false, false) => &[],
    }
}

/// Outbound policies, the one that wins first.
pub(super) fn in_order(policies: &[Policy]) -> Vec<&Policy> {
    let outbound = policies.iter().filter(|policy| policy.only != Some(Direction::Inbound));
    let mut policies: Vec<&Policy> = outbound.collect();
    // Among equals the later in the file wins; the sort is stable.
    policies.reverse();
    policies.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    policies
}
