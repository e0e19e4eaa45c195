//! `ipsec policy add spd N priority P inbound|outbound action A …`.

use std::net::IpAddr;

use config::Location;
use policy::{AddressRange, Direction, PortRange, Selector, UpperSelector};
use wire::flow::protocol;
use wire::{Address, Family};

use crate::problem::{Mistake, Omissions, Parsed, at, shown, unknown};
use crate::values::{number, number32, value};
use crate::words::{Cursor, Word};

/// Words of the command.
const WORDS: &[&str] = &[
    "spd",
    "priority",
    "inbound",
    "outbound",
    "action",
    "sa",
    "protocol",
    "local-ip-range",
    "remote-ip-range",
    "local-port-range",
    "remote-port-range",
    "ip6",
];

/// The protocol that stands for any.
const ANY_PROTOCOL: u64 = 255;

/// IP protocols that are extension headers of IPv6 or belong to them: no selector here names them.
const EXTENSIONS: [u8; 7] = [0, 43, 44, 60, 135, 139, 140];

/// A policy's action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Protect, with the SA of this number.
    Protect(u32),
    Bypass,
    Discard,
}

/// A policy of VPP.
pub(super) struct VppPolicy {
    pub(super) at: Location,
    pub(super) spd: u32,
    pub(super) priority: i64,
    pub(super) direction: Direction,
    pub(super) act: Act,
    pub(super) selector: Selector,
    /// True if VPP would match more packets.
    pub(super) is_narrower_here: bool,
}

/// The words of a policy.
#[derive(Default)]
struct Words<'a> {
    spd: Option<u32>,
    priority: i64,
    direction: Option<Direction>,
    action: Option<Word<'a>>,
    sa: Option<u32>,
    protocol: Option<u8>,
    addresses: [Option<AddressRange>; 2],
    ports: [Option<PortRange>; 2],
    is_ipv6: bool,
}

/// Reads a policy, behind the words of the command. `None`: it has no place here, which was noted.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'_, 'a>,
    command: &[Word<'a>],
    omissions: &mut Omissions,
) -> Parsed<Option<VppPolicy>> {
    for _ in command {
        cursor.next();
    }
    let mut words = Words::default();
    while let Some(word) = cursor.next() {
        words.word(cursor, word)?;
    }
    match command.first() {
        Some(first) => words.finish(cursor, *first, omissions),
        None => Ok(None),
    }
}

impl<'a> Words<'a> {
    fn word(&mut self, cursor: &mut Cursor<'_, 'a>, word: Word<'a>) -> Parsed<()> {
        match word.text {
            "spd" => self.spd = Some(number32(cursor, word)?),
            "priority" => self.priority = signed(cursor, word)?,
            "inbound" => self.direction = Some(Direction::Inbound),
            "outbound" => self.direction = Some(Direction::Outbound),
            "ip6" => self.is_ipv6 = true,
            "action" => self.action = Some(value(cursor, word)?),
            "sa" => self.sa = Some(number32(cursor, word)?),
            "protocol" => {
                let number = number(cursor, word, ANY_PROTOCOL)?;
                self.protocol = (number != ANY_PROTOCOL).then_some(number as u8);
            }
            "local-ip-range" => self.addresses[0] = Some(address_range(cursor, word)?),
            "remote-ip-range" => self.addresses[1] = Some(address_range(cursor, word)?),
            "local-port-range" => self.ports[0] = Some(port_range(cursor, word)?),
            "remote-port-range" => self.ports[1] = Some(port_range(cursor, word)?),
            _ => return unknown(cursor, word, "`ipsec policy add`", WORDS),
        }
        Ok(())
    }

    fn finish(
        self,
        cursor: &Cursor<'_, '_>,
        first: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<Option<VppPolicy>> {
        let missing = |what| at(cursor, first, Mistake::Missing { what });
        let Some(action) = self.action else { return missing("`action` of the policy") };
        let act = match (action.text, self.sa) {
            ("bypass", _) => Act::Bypass,
            ("discard", _) => Act::Discard,
            ("protect", Some(sa)) => Act::Protect(sa),
            ("protect", None) => return missing("`sa` of the policy that protects"),
            _ => return unknown(cursor, action, "actions", &["protect", "bypass", "discard"]),
        };
        let Some(spd) = self.spd else { return missing("`spd` of the policy") };
        // As VPP takes a policy that says none.
        let direction = self.direction.unwrap_or(Direction::Inbound);
        let place = cursor.place(first);
        if self.protocol.is_some_and(|number| EXTENSIONS.contains(&number)) {
            let reason = "no selector here names this protocol";
            let advice = "leave `protocol` out for all of them";
            omissions.left((&place, "protocol"), reason, advice);
            return Ok(None);
        }
        let named = self.addresses.iter().flatten().next().map(|range| range.family);
        let usual = if self.is_ipv6 { Family::V6 } else { Family::V4 };
        let any = AddressRange::any(named.unwrap_or(usual));
        let [local, remote] = self.addresses.map(|range| range.unwrap_or(any));
        let is_mixed = local.family != remote.family;
        if is_mixed || self.is_ipv6 && local.family == Family::V4 {
            return at(cursor, first, Mistake::BadPair);
        }
        let fits = match self.protocol {
            Some(protocol::ICMP) => local.family == Family::V4,
            Some(protocol::ICMPV6) => local.family == Family::V6,
            _ => true,
        };
        let ports = self.ports.map(|range| range.filter(|range| *range != PortRange::ANY));
        let has_ports = ports != [None, None];
        let wrong_ports =
            has_ports && self.protocol.is_some_and(|number| !protocol::has_ports(number));
        if !fits || wrong_ports {
            let reason = "packets of this protocol have no ports, or another IP version";
            omissions.left((&place, "protocol"), reason, "correct the policy");
            return Ok(None);
        }
        let [local_ports, remote_ports] = ports.map(|range| range.into_iter().collect());
        let upper = match has_ports {
            true => UpperSelector::Ports { local: local_ports, remote: remote_ports },
            false => UpperSelector::Any,
        };
        let says_more = self.protocol.is_some() || has_ports;
        let is_narrower_here = match direction {
            Direction::Inbound => says_more,
            Direction::Outbound => has_ports && self.protocol.is_none(),
        };
        let protocol = self.protocol;
        let selector = Selector { local: vec![local], remote: vec![remote], protocol, upper };
        let priority = self.priority;
        let at = place;
        Ok(Some(VppPolicy { at, spd, priority, direction, act, selector, is_narrower_here }))
    }
}

fn signed(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<i64> {
    let word = value(cursor, behind)?;
    match word.text.parse::<i32>() {
        Ok(number) => Ok(number.into()),
        Err(_) => {
            let text = shown(word.text);
            at(cursor, word, Mistake::NotANumber { text, lowest: 0, highest: i32::MAX as u64 })
        }
    }
}

/// Takes both ends of a range: `A - B`, or `A-B`.
fn ends<'a>(cursor: &mut Cursor<'_, 'a>, behind: Word<'_>) -> Parsed<(Word<'a>, [&'a str; 2])> {
    let word = value(cursor, behind)?;
    if let Some((lo, hi)) = word.text.split_once('-') {
        return Ok((word, [lo, hi]));
    }
    let dash = value(cursor, word)?;
    if dash.text != "-" {
        return unknown(cursor, dash, "ranges", &["-"]);
    }
    Ok((word, [word.text, value(cursor, dash)?.text]))
}

fn address_range(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<AddressRange> {
    let (word, ends) = ends(cursor, behind)?;
    let [lo, hi] = ends.map(|text| text.parse::<IpAddr>().ok().map(Address::from));
    let (Some(lo), Some(hi)) = (lo, hi) else {
        let wrong = if lo.is_none() { ends[0] } else { ends[1] };
        return at(cursor, word, Mistake::NotAnAddress { text: shown(wrong) });
    };
    match AddressRange::new(lo, hi) {
        Ok(range) => Ok(range),
        Err(_) => at(cursor, word, Mistake::BadPair),
    }
}

fn port_range(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<PortRange> {
    let (word, ends) = ends(cursor, behind)?;
    let [lo, hi] = ends.map(|text| text.parse::<u16>().ok());
    match (lo, hi) {
        (Some(lo), Some(hi)) if lo <= hi => Ok(PortRange { lo, hi }),
        (Some(_), Some(_)) => at(cursor, word, Mistake::BadPair),
        _ => {
            let text = shown(if lo.is_none() { ends[0] } else { ends[1] });
            at(cursor, word, Mistake::NotANumber { text, lowest: 0, highest: u16::MAX.into() })
        }
    }
}
